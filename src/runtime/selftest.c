/* selftest.c - the same tokens twice: as a prompt in two chunks, and one at a time.
 *
 * Place: runtime; see selftest.h.
 * Idea:  the two ways share weights but few kernels: wide against narrow products, the chunked against the
 *        recurrent delta rule, a page border crossed inside a chunk and by a single step. If a kernel, a
 *        layout or a carried state is wrong, the logits part; in half precision, and over rounded
 *        activations, rounding alone parts them too, so the limit there only catches what is plainly
 *        broken. */
#include "runtime/selftest.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/size.h"

enum {
    FIRST_CHUNK = KV_PAGE_TOKENS + 6, /* crosses a page, and the 64 rows of a delta rule chunk */
    SECOND_CHUNK = 7,
    TOKENS_MAX = FIRST_CHUNK + SECOND_CHUNK
};

#define LIMIT_F32     1e-3
#define LIMIT_ROUNDED 0.5

struct selftest {
    struct model *model;
    struct seq_state *seq;
    size_t n_vocab;
    int32_t tokens[TOKENS_MAX];
    size_t n_tokens, first_chunk;
    float *prefill; /* [n_vocab] the last token's logits of the first way */
};

static size_t store_tokens(struct model *m)
{
    const struct state_budget *budget = state_store_budget(model_states(m));
    size_t n_pages = state_store_counts(model_states(m)).pages_total;

    return n_pages > 0 ? size_min(budget->context_max, n_pages * KV_PAGE_TOKENS)
                       : budget->context_max;
}

/* Ids over the lower half of the vocabulary, where no special tokens or padding rows are. */
static void choose_tokens(struct selftest *t)
{
    t->n_vocab = model_get_config(t->model)->vocab_size;
    t->first_chunk = size_min(FIRST_CHUNK, model_get_options(t->model)->rows_max);
    t->n_tokens = size_min(t->first_chunk + SECOND_CHUNK, store_tokens(t->model));
    t->first_chunk = size_min(t->first_chunk, t->n_tokens);
    for (size_t i = 0; i < t->n_tokens; i++) {
        t->tokens[i] = (int32_t)((i * 7919 + 13) % (t->n_vocab / 2 + 1));
    }
}

static enum status begin(struct selftest *t, struct error *err)
{
    enum status rc = state_new(&t->seq, model_states(t->model), err);

    if (rc == OK) {
        rc = state_reserve(model_states(t->model), t->seq, t->n_tokens, err);
    }
    return rc;
}

static void end(struct selftest *t)
{
    state_free(model_states(t->model), t->seq);
    t->seq = NULL;
}

/* Feeds n tokens from `from` on; *logits is the last one's row. */
static enum status feed(struct selftest *t, size_t from, size_t n, const float **logits,
                        struct error *err)
{
    struct model_span span = {
        .seq = t->seq, .tokens = t->tokens + from, .n_tokens = n, .n_logits = 1};
    struct model_step_result result;
    enum status rc = model_step(t->model, &span, 1, NULL, &result, err);

    if (rc != OK) {
        error_prefix(err, "self-test, %zu tokens from place %zu", n, from);
        return rc;
    }
    if (result.bad_layer[0] >= 0) {
        return error_set(err, ERR_INTERNAL,
                         "self-test, %zu tokens from place %zu: layer %d of %zu computed a value "
                         "that is not finite",
                         n, from, result.bad_layer[0], model_get_config(t->model)->n_layers);
    }
    for (size_t i = 0; i < t->n_vocab; i++) {
        if (!isfinite(result.logits[i])) {
            return error_set(err, ERR_INTERNAL,
                             "self-test, %zu tokens from place %zu: the logit of token %zu is not "
                             "finite",
                             n, from, i);
        }
    }
    *logits = result.logits;
    return OK;
}

static enum status run_prefill(struct selftest *t, struct error *err)
{
    const float *logits;
    enum status rc = begin(t, err);

    if (rc == OK) {
        rc = feed(t, 0, t->first_chunk, &logits, err);
    }
    if (rc == OK && t->first_chunk < t->n_tokens) {
        rc = feed(t, t->first_chunk, t->n_tokens - t->first_chunk, &logits, err);
    }
    if (rc == OK) {
        memcpy(t->prefill, logits, t->n_vocab * sizeof *t->prefill);
    }
    end(t);
    return rc;
}

static double relative_difference(const float *a, const float *b, size_t n)
{
    double difference = 0, norm = 0;

    for (size_t i = 0; i < n; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

static enum status run_one_by_one(struct selftest *t, double *error, struct error *err)
{
    const float *logits = NULL;
    enum status rc = begin(t, err);

    for (size_t i = 0; i < t->n_tokens && rc == OK; i++) {
        rc = feed(t, i, 1, &logits, err);
    }
    if (rc == OK) {
        *error = relative_difference(t->prefill, logits, t->n_vocab);
    }
    end(t);
    return rc;
}

static double error_limit(const struct model_options *o, bool has_rounded_inputs)
{
    bool is_f32 = !has_rounded_inputs && o->compute_dtype == DTYPE_F32 &&
                  o->kv_dtype == DTYPE_F32 && o->recurrent_dtype == DTYPE_F32;

    return is_f32 ? LIMIT_F32 : LIMIT_ROUNDED;
}

enum status selftest_run(struct model *m, bool has_rounded_inputs, struct selftest_report *out,
                         struct error *err)
{
    struct selftest t = {.model = m};
    uint64_t start = clock_now_ns();
    double limit = error_limit(model_get_options(m), has_rounded_inputs);
    enum status rc;

    *out = (struct selftest_report){0};
    choose_tokens(&t);
    t.prefill = malloc(t.n_vocab * sizeof *t.prefill);
    if (!t.prefill) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the self-test");
    }
    rc = run_prefill(&t, err);
    if (rc == OK) {
        rc = run_one_by_one(&t, &out->max_rel_error, err);
    }
    if (rc == OK && !(out->max_rel_error <= limit)) {
        rc =
            error_set(err, ERR_INTERNAL,
                      "self-test: %zu tokens as a prompt and one at a time differ by %.2g, at most "
                      "%.2g is expected",
                      t.n_tokens, out->max_rel_error, limit);
    }
    out->n_tokens = t.n_tokens;
    out->seconds = clock_seconds_since(start);
    free(t.prefill);
    return rc;
}
