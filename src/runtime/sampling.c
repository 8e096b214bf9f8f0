/* sampling.c - defaults and ranges of the sampling parameters.
 *
 * Place: runtime; called for every request before it is queued, so that the sampler itself never meets
 *        a value that it would have to refuse.
 * Idea:  each check is written as "not (low <= x and x <= high)", which also catches NaN. */
#include "runtime/sampling.h"

struct sampling sampling_default(void)
{
    return (struct sampling){
        .temperature = 1.0f,
        .top_p = 1.0f,
        .top_k = -1,
        .repetition_penalty = 1.0f,
    };
}

struct range {
    const char *name;
    float value, low, high;
    bool low_is_open; /* low itself is outside */
};

static enum status check_range(const struct range *r, struct error *err)
{
    if (!(r->value >= r->low && r->value <= r->high) || (r->low_is_open && r->value == r->low)) {
        return error_set_param(err, ERR_BAD_REQUEST, r->name, "%s must be in %c%g, %g], not %g",
                               r->name, r->low_is_open ? '(' : '[', (double)r->low, (double)r->high,
                               (double)r->value);
    }
    return OK;
}

static enum status check_bias(const struct sampling *s, size_t n_vocab, struct error *err)
{
    if (s->n_bias > LOGIT_BIAS_MAX) {
        return error_set_param(err, ERR_BAD_REQUEST, "logit_bias",
                               "logit_bias has %zu entries, at most %d are allowed", s->n_bias,
                               LOGIT_BIAS_MAX);
    }
    for (size_t i = 0; i < s->n_bias; i++) {
        const struct logit_bias *b = &s->bias[i];

        if (b->id < 0 || (size_t)b->id >= n_vocab) {
            return error_set_param(err, ERR_BAD_REQUEST, "logit_bias",
                                   "logit_bias names token %d, the vocabulary has %zu", b->id,
                                   n_vocab);
        }
        if (!(b->bias >= -100.0f && b->bias <= 100.0f)) {
            return error_set_param(err, ERR_BAD_REQUEST, "logit_bias",
                                   "logit_bias of token %d must be in [-100, 100], not %g", b->id,
                                   (double)b->bias);
        }
    }
    return OK;
}

enum status sampling_check(const struct sampling *s, size_t n_vocab, struct error *err)
{
    const struct range ranges[] = {
        {"temperature", s->temperature, 0.0f, SAMPLING_TEMPERATURE_MAX, false},
        {"top_p", s->top_p, 0.0f, 1.0f, true},
        {"min_p", s->min_p, 0.0f, 1.0f, false},
        {"repetition_penalty", s->repetition_penalty, 0.0f, 2.0f, true},
        {"presence_penalty", s->presence_penalty, -2.0f, 2.0f, false},
        {"frequency_penalty", s->frequency_penalty, -2.0f, 2.0f, false},
    };

    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        enum status rc = check_range(&ranges[i], err);
        if (rc != OK) {
            return rc;
        }
    }
    if (s->top_k != -1 && s->top_k < 1) {
        return error_set_param(err, ERR_BAD_REQUEST, "top_k",
                               "top_k must be -1 (off) or at least 1, not %d", s->top_k);
    }
    if (s->n_top_logprobs > TOP_LOGPROBS_MAX) {
        return error_set_param(err, ERR_BAD_REQUEST, "top_logprobs",
                               "top_logprobs must be at most %d, not %zu", TOP_LOGPROBS_MAX,
                               s->n_top_logprobs);
    }
    return check_bias(s, n_vocab, err);
}

bool sampling_has_penalties(const struct sampling *s)
{
    return s->repetition_penalty != 1.0f || s->presence_penalty != 0.0f ||
           s->frequency_penalty != 0.0f;
}
