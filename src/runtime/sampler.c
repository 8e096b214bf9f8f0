/* sampler.c - penalties, filters and the choice; see sampler.h for the order.
 *
 * Idea:      candidates are two arrays (id, value) in order of ids. Each filter shortens them in place;
 *            the value is the adjusted logit up to top_k and the weight exp((logit - max) / T) after.
 * Cutting:   "keep the k largest" and "keep the largest until their weights reach p" are one problem:
 *            find the place in falling order at which a running amount reaches a target. keep_top()
 *            finds it digit by digit over the value's 32 bits (11 + 11 + 10): a histogram of amounts, the
 *            digit at which the target is reached, then the same inside that digit. Three passes at
 *            most, of which the second and third see only what the first left.
 * Trade-off: sums are double and in a fixed order, so the result is exact up to rounding at the very
 *            edge of top_p. */
#include "runtime/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "base/size.h"

enum { DIGIT_BITS = 11, DIGITS = 3, BINS = 1 << DIGIT_BITS };

#define SEEN_IN_PROMPT  0x80000000u
#define SEEN_COUNT_MASK 0x7fffffffu

struct sampler {
    size_t n_vocab;
    size_t n; /* candidates */
    int32_t *ids;
    float *values;
    double *amounts; /* [BINS] */
};

enum status sampler_new(struct sampler **out, size_t n_vocab, struct error *err)
{
    struct sampler *s = calloc(1, sizeof *s);

    *out = NULL;
    if (s) {
        s->n_vocab = n_vocab;
        s->ids = calloc(n_vocab, sizeof *s->ids);
        s->values = calloc(n_vocab, sizeof *s->values);
        s->amounts = calloc(BINS, sizeof *s->amounts);
    }
    if (!s || !s->ids || !s->values || !s->amounts) {
        sampler_free(s);
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a sampler for %zu tokens", n_vocab);
    }
    *out = s;
    return OK;
}

void sampler_free(struct sampler *s)
{
    if (s) {
        free(s->ids);
        free(s->values);
        free(s->amounts);
        free(s);
    }
}

bool token_history_init(struct token_history *h, size_t n_vocab)
{
    h->n_vocab = n_vocab;
    h->seen = calloc(n_vocab, sizeof *h->seen);
    return h->seen != NULL;
}

void token_history_release(struct token_history *h)
{
    free(h->seen);
    h->seen = NULL;
}

void token_history_add_prompt(struct token_history *h, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= 0 && (size_t)ids[i] < h->n_vocab) {
            h->seen[ids[i]] |= SEEN_IN_PROMPT;
        }
    }
}

void token_history_add_output(struct token_history *h, int32_t id)
{
    if (id >= 0 && (size_t)id < h->n_vocab && (h->seen[id] & SEEN_COUNT_MASK) < SEEN_COUNT_MASK) {
        h->seen[id]++;
    }
}

/* A bijection on 64 bits in which every input bit moves every output bit (David Stafford's variant 13
 * of the MurmurHash3 finaliser, as SplitMix64 uses it). */
static uint64_t mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double sampler_uniform(uint64_t seed, uint64_t index)
{
    /* Mixing the seed before the index is added keeps (seed, index) and (seed + 1, index - 1) apart. */
    uint64_t key = mix64(seed + 0x9e3779b97f4a7c15u);
    uint64_t bits = mix64(key + (index + 1) * 0x9e3779b97f4a7c15u);

    return (double)(bits >> 11) * 0x1p-53;
}

/* ---- the adjusted row ---- */

static void apply_penalties(float *x, size_t n, const struct sampling *p,
                            const struct token_history *h)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t seen = h->seen[i];

        if (seen == 0) {
            continue;
        }
        if (p->repetition_penalty != 1.0f) {
            x[i] = x[i] > 0.0f ? x[i] / p->repetition_penalty : x[i] * p->repetition_penalty;
        }
        if (seen & SEEN_COUNT_MASK) {
            x[i] -= p->presence_penalty + p->frequency_penalty * (float)(seen & SEEN_COUNT_MASK);
        }
    }
}

/* Fills the candidates with the whole vocabulary and its adjusted logits. */
static enum status adjust(struct sampler *s, const struct sampler_input *in, struct error *err)
{
    const struct sampling *p = in->sampling;
    size_t n = s->n_vocab;

    for (size_t i = 0; i < n; i++) {
        if (in->logits[i] != in->logits[i]) {
            return error_set(err, ERR_INTERNAL, "the logit of token %zu is not a number", i);
        }
        s->ids[i] = (int32_t)i;
    }
    memcpy(s->values, in->logits, n * sizeof *s->values);
    s->n = n;
    if (in->history && in->history->seen && sampling_has_penalties(p)) {
        apply_penalties(s->values, size_min(n, in->history->n_vocab), p, in->history);
    }
    for (size_t i = 0; i < p->n_bias; i++) {
        s->values[p->bias[i].id] += p->bias[i].bias;
    }
    for (size_t i = 0; i < in->n_banned; i++) {
        if (in->banned[i] >= 0 && (size_t)in->banned[i] < n) {
            s->values[in->banned[i]] = -INFINITY;
        }
    }
    return OK;
}

/* The place of the largest value, the first of equals; the candidates are in order of ids. */
static size_t find_max(const float *x, size_t n)
{
    size_t best = 0;

    for (size_t i = 1; i < n; i++) {
        if (x[i] > x[best]) {
            best = i;
        }
    }
    return best;
}

/* ---- filters ---- */

/* Maps floats to integers of the same order; -0 counts as 0. No NaN. */
static uint32_t order_key(float v)
{
    uint32_t u = f32_bits(v + 0.0f);

    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Drops the candidates whose key without its low `shift` bits is below least. */
static void drop_below(struct sampler *s, unsigned shift, uint32_t least)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n; i++) {
        if (order_key(s->values[i]) >> shift >= least) {
            s->ids[n] = s->ids[i];
            s->values[n++] = s->values[i];
        }
    }
    s->n = n;
}

/* Keeps the candidates in falling order of value, up to and including the one at which the running
 * amount (1 each, or the value itself when by_value) reaches target; equal values come in order of
 * ids. Keeps all when the target is never reached. */
static void keep_top(struct sampler *s, bool by_value, double target)
{
    uint32_t prefix = 0; /* of the key where the target is reached; digits found so far */
    double above = 0;    /* amount of all candidates above the prefix */
    unsigned shift = 32;

    for (unsigned digit = 0; digit < DIGITS; digit++) {
        unsigned bits = digit + 1 < DIGITS ? DIGIT_BITS : 32 - (DIGITS - 1) * DIGIT_BITS;
        uint32_t bin = (1u << bits) - 1;

        shift -= bits;
        memset(s->amounts, 0, BINS * sizeof *s->amounts);
        for (size_t i = 0; i < s->n; i++) {
            uint32_t key = order_key(s->values[i]) >> shift;
            if (key >> bits == prefix) {
                s->amounts[key & ((1u << bits) - 1)] += by_value ? (double)s->values[i] : 1.0;
            }
        }
        while (bin > 0 && above + s->amounts[bin] < target) {
            above += s->amounts[bin--];
        }
        prefix = prefix << bits | bin;
        drop_below(s, shift, prefix);
    }
    /* Above the key everything stays; of the candidates with exactly this key, as many as needed. */
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        bool is_tie = order_key(s->values[i]) == prefix;

        if (is_tie && above >= target) {
            continue;
        }
        if (is_tie) {
            above += by_value ? (double)s->values[i] : 1.0;
        }
        s->ids[n] = s->ids[i];
        s->values[n++] = s->values[i];
    }
    s->n = n;
}

/* Logits become weights relative to the largest: its weight is exactly 1, so no temperature can
 * overflow, and a tiny one only drives the others to 0. */
static void weigh(struct sampler *s, float max, float temperature)
{
    for (size_t i = 0; i < s->n; i++) {
        float below = s->values[i] - max;

        if (max == INFINITY) { /* inf - inf: the infinite ones share everything */
            below = s->values[i] == INFINITY ? 0.0f : -INFINITY;
        }
        s->values[i] = expf(below / temperature);
    }
}

static double total_weight(const struct sampler *s)
{
    double sum = 0;

    for (size_t i = 0; i < s->n; i++) {
        sum += (double)s->values[i];
    }
    return sum;
}

static void keep_at_least(struct sampler *s, float least)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n; i++) {
        if (s->values[i] >= least) {
            s->ids[n] = s->ids[i];
            s->values[n++] = s->values[i];
        }
    }
    s->n = n;
}

/* ---- choice ---- */

static int32_t draw(const struct sampler *s, double u)
{
    double target = u * total_weight(s);
    double sum = 0;
    int32_t last = s->ids[0];

    for (size_t i = 0; i < s->n; i++) {
        if (s->values[i] > 0.0f) {
            last = s->ids[i];
            sum += (double)s->values[i];
            if (sum > target) {
                break;
            }
        }
    }
    return last; /* the last candidate also when rounding kept the sum below the target */
}

/* Puts (id, logit) in its place among the best n seen so far. Ids come in rising order, so a later
 * one goes behind its equals. */
static void note_top(struct sample *out, size_t n_max, int32_t id, float logit)
{
    size_t at = out->n_top;

    while (at > 0 && out->top[at - 1].logprob < logit) {
        at--;
    }
    if (at == n_max) {
        return;
    }
    if (out->n_top < n_max) {
        out->n_top++;
    }
    memmove(&out->top[at + 1], &out->top[at], (out->n_top - 1 - at) * sizeof out->top[0]);
    out->top[at] = (struct token_logprob){id, logit};
}

static float to_logprob(float logit, float max, double log_sum)
{
    double below =
        max == INFINITY ? (logit == INFINITY ? 0.0 : -INFINITY) : (double)logit - (double)max;

    return fmaxf((float)(below - log_sum), LOGPROB_MIN);
}

/* Log-softmax of the raw row, over the tokenizer's vocabulary. */
static void add_logprobs(const struct sampler *s, const struct sampler_input *in,
                         struct sample *out)
{
    const float *x = in->logits;
    float max = x[find_max(x, s->n_vocab)];
    double sum = 0;

    for (size_t i = 0; i < s->n_vocab; i++) {
        float below = max == INFINITY ? (x[i] == INFINITY ? 0.0f : -INFINITY) : x[i] - max;

        sum += (double)expf(below);
        note_top(out, in->sampling->n_top_logprobs, (int32_t)i, x[i]);
    }
    double log_sum = log(sum);
    out->logprob = to_logprob(x[out->id], max, log_sum);
    for (size_t i = 0; i < out->n_top; i++) {
        out->top[i].logprob = to_logprob(out->top[i].logprob, max, log_sum);
    }
}

enum status sampler_choose(struct sampler *s, const struct sampler_input *in, double u,
                           struct sample *out, struct error *err)
{
    const struct sampling *p = in->sampling;
    enum status rc = adjust(s, in, err);

    out->n_top = 0;
    out->logprob = 0.0f;
    if (rc != OK) {
        return rc;
    }
    size_t best = find_max(s->values, s->n);
    float max = s->values[best];
    if (max == -INFINITY) {
        return error_set(err, ERR_INTERNAL, "no token can be chosen: every logit is -inf");
    }
    if (p->temperature < SAMPLING_TEMPERATURE_GREEDY) {
        out->id = s->ids[best];
        s->ids[0] = out->id;
        s->values[0] = 1.0f;
        s->n = 1;
    } else {
        if (p->top_k > 0 && (size_t)p->top_k < s->n) {
            keep_top(s, false, (double)p->top_k);
        }
        weigh(s, max, p->temperature);
        if (p->top_p < 1.0f) {
            keep_top(s, true, (double)p->top_p * total_weight(s));
        }
        if (p->min_p > 0.0f) {
            keep_at_least(s, p->min_p);
        }
        out->id = draw(s, u);
    }
    if (p->want_logprobs) {
        add_logprobs(s, in, out);
    }
    return OK;
}

size_t sampler_kept(const struct sampler *s, const int32_t **ids, const float **weights)
{
    *ids = s->ids;
    *weights = s->values;
    return s->n;
}
