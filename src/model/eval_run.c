/* eval_run.c - see eval_run.h. */
#include "model/eval_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

struct run {
    struct eval_result *r;
    const struct eval_options *o;
    struct model *m;
    struct seq_state *seq;
    size_t done; /* tokens of the prompt that are through */
};

static enum status array_new(float **out, size_t a, size_t b, size_t c, size_t d, struct error *err)
{
    size_t n;

    if (!size_mul(&n, a, b) || !size_mul(&n, n, c) || !size_mul(&n, n, d)) {
        return error_set(err, ERR_LIMIT, "the results are too large");
    }
    *out = calloc(n + 1, sizeof **out);
    return *out ? OK : error_set(err, ERR_NO_MEMORY, "cannot allocate %zu results", n);
}

static enum status result_make(struct run *run, size_t n_tokens, struct error *err)
{
    struct eval_result *r = run->r;
    const struct model_config *c = model_get_config(run->m);
    const struct state_pools *p = state_store_pools(model_states(run->m));
    const struct eval_options *o = run->o;
    enum status rc = array_new(&r->margins, n_tokens, 1, 1, 1, err);

    r->n_tokens = n_tokens;
    r->vocab = c->vocab_size;
    r->hidden_size = c->hidden_size;
    r->n_layers = c->n_layers;
    r->bad_layer = -1;
    r->n_gdn = p->n_gdn_layers;
    r->n_attn = p->n_attn_layers;
    r->nkv = c->n_kv_heads;
    r->hd = c->head_dim;
    r->nv = c->linear_n_value_heads;
    r->dk = c->linear_key_dim;
    r->dv = c->linear_value_dim;
    r->channels = 2 * c->linear_n_key_heads * r->dk + r->nv * r->dv;
    r->columns = p->n_gdn_layers > 0 ? p->conv_elems / r->channels : 0;
    if (rc == OK && o->want_logits) {
        rc = array_new(&r->logits, n_tokens, r->vocab, 1, 1, err);
    }
    if (rc == OK && o->want_hidden) {
        rc = array_new(&r->hidden, r->n_layers + 1, n_tokens, r->hidden_size, 1, err);
    }
    if (rc == OK && o->want_states) {
        rc = array_new(&r->conv, r->n_gdn, r->channels, r->columns, 1, err);
    }
    if (rc == OK && o->want_states) {
        rc = array_new(&r->recurrent, r->n_gdn, r->nv, r->dk, r->dv, err);
    }
    if (rc == OK && o->want_states) {
        rc = array_new(&r->keys, r->n_attn, r->nkv, n_tokens, r->hd, err);
    }
    if (rc == OK && o->want_states) {
        rc = array_new(&r->values, r->n_attn, r->nkv, n_tokens, r->hd, err);
    }
    if (rc == OK && o->n_greedy > 0) {
        rc = array_new(&r->greedy_logits, o->n_greedy, r->vocab, 1, 1, err);
        r->greedy = calloc(o->n_greedy, sizeof *r->greedy);
        if (rc == OK && !r->greedy) {
            rc = error_set(err, ERR_NO_MEMORY, "cannot allocate %zu tokens", o->n_greedy);
        }
    }
    return rc;
}

void eval_result_release(struct eval_result *r)
{
    free(r->logits);
    free(r->hidden);
    free(r->margins);
    free(r->conv);
    free(r->recurrent);
    free(r->keys);
    free(r->values);
    free(r->greedy);
    free(r->greedy_logits);
    *r = (struct eval_result){0};
}

static void keep_hidden(void *ctx, size_t layer, const float *rows, size_t n_rows)
{
    struct run *run = ctx;
    struct eval_result *r = run->r;

    memcpy(r->hidden + (layer * r->n_tokens + run->done) * r->hidden_size, rows,
           n_rows * r->hidden_size * sizeof *rows);
}

/* One step of the prompt or of the continuation. */
static enum status step(struct run *run, const int32_t *tokens, size_t n, size_t n_logits,
                        bool tapped, struct model_step_result *result, struct error *err)
{
    struct model_span span = {run->seq, tokens, n, n_logits};
    struct model_step_options o = {.want_margins = true};
    enum status rc = state_reserve(model_states(run->m), run->seq, n, err);

    if (rc != OK) {
        return rc;
    }
    if (tapped) {
        o.tap = keep_hidden;
        o.tap_ctx = run;
    }
    rc = model_step(run->m, &span, 1, &o, result, err);
    if (rc == OK) {
        run->r->bad_layer = result->bad_layer[0];
    }
    return rc;
}

static size_t piece_size(const struct run *run)
{
    size_t left = run->r->n_tokens - run->done;
    size_t n = size_min(left, model_get_options(run->m)->rows_max);

    if (run->done < run->o->first) {
        return size_min(n, run->o->first - run->done);
    }
    return run->o->window > 0 ? size_min(n, run->o->window) : n;
}

static enum status prompt(struct run *run, const int32_t *tokens, float *last_logits,
                          struct error *err)
{
    struct eval_result *r = run->r;

    while (run->done < r->n_tokens && r->bad_layer < 0) {
        struct model_step_result result;
        size_t n = piece_size(run), n_logits = run->o->want_logits ? n : 1;
        enum status rc =
            step(run, tokens + run->done, n, n_logits, r->hidden != NULL, &result, err);

        if (rc != OK) {
            return rc;
        }
        if (r->logits) {
            memcpy(r->logits + run->done * r->vocab, result.logits,
                   n * r->vocab * sizeof *r->logits);
        }
        memcpy(r->margins + run->done, result.router_margin, n * sizeof *r->margins);
        memcpy(last_logits, result.logits + (n_logits - 1) * r->vocab,
               r->vocab * sizeof *last_logits);
        run->done += n;
    }
    return OK;
}

static void keep_states(struct run *run)
{
    struct eval_result *r = run->r;
    struct state_store *s = model_states(run->m);

    for (size_t i = 0; i < r->n_gdn; i++) {
        state_read_conv(s, run->seq, i, r->channels, r->conv + i * r->channels * r->columns);
        state_read_recurrent(s, run->seq, i, r->recurrent + i * r->nv * r->dk * r->dv);
    }
    for (size_t i = 0; i < r->n_attn; i++) {
        size_t at = i * r->nkv * r->n_tokens * r->hd;
        state_read_kv(s, run->seq, i, r->keys + at, r->values + at);
    }
}

static enum status continue_greedily(struct run *run, const float *last_logits, struct error *err)
{
    struct eval_result *r = run->r;
    const float *logits = last_logits;

    while (r->n_greedy < run->o->n_greedy && r->bad_layer < 0) {
        struct model_step_result result;
        int32_t token = eval_argmax(logits, r->vocab);
        enum status rc;

        memcpy(r->greedy_logits + r->n_greedy * r->vocab, logits, r->vocab * sizeof *logits);
        r->greedy[r->n_greedy++] = token;
        if (r->n_greedy == run->o->n_greedy) {
            break;
        }
        rc = step(run, &token, 1, 1, false, &result, err);
        if (rc != OK) {
            return rc;
        }
        logits = result.logits;
    }
    return OK;
}

enum status eval_run(struct eval_result *out, struct model *m, const int32_t *tokens,
                     size_t n_tokens, const struct eval_options *o, struct error *err)
{
    struct run run = {.r = out, .o = o, .m = m};
    float *last_logits = NULL;
    enum status rc;

    *out = (struct eval_result){0};
    if (n_tokens == 0) {
        return error_set(err, ERR_BAD_REQUEST, "a prompt without tokens");
    }
    rc = result_make(&run, n_tokens, err);
    if (rc == OK) {
        rc = array_new(&last_logits, out->vocab, 1, 1, 1, err);
    }
    if (rc == OK) {
        rc = state_new(&run.seq, model_states(m), err);
    }
    if (rc == OK) {
        rc = prompt(&run, tokens, last_logits, err);
    }
    if (rc == OK && out->bad_layer < 0) {
        if (o->want_states) {
            keep_states(&run);
        }
        if (o->between) {
            o->between(o->between_ctx, m, run.seq);
        }
        rc = continue_greedily(&run, last_logits, err);
    }
    state_free(model_states(m), run.seq);
    free(last_logits);
    return rc;
}

static double neg_log_prob(const float *logits, size_t n, int32_t token)
{
    double max = logits[eval_argmax(logits, n)], sum = 0;

    for (size_t i = 0; i < n; i++) {
        sum += exp(logits[i] - max);
    }
    return log(sum) + max - logits[token];
}

enum status eval_each(struct model *m, const int32_t *tokens, size_t n_tokens, eval_logits_fn *fn,
                      void *ctx, struct error *err)
{
    struct state_store *store = model_states(m);
    size_t vocab = model_get_config(m)->vocab_size, rows_max = model_get_options(m)->rows_max;
    struct seq_state *seq;
    enum status rc;

    for (size_t i = 0; i < n_tokens; i++) {
        if (tokens[i] < 0 || (size_t)tokens[i] >= vocab) {
            return error_set(err, ERR_BAD_REQUEST, "token id %d is outside the vocabulary",
                             tokens[i]);
        }
    }
    rc = state_new(&seq, store, err);
    for (size_t done = 0; rc == OK && done + 1 < n_tokens;) {
        struct model_step_result result;
        size_t n = size_min(rows_max, n_tokens - 1 - done); /* the last token is only predicted */
        struct model_span span = {seq, tokens + done, n, n};

        rc = state_reserve(store, seq, n, err);
        if (rc == OK) {
            rc = model_step(m, &span, 1, NULL, &result, err);
        }
        if (rc == OK && result.bad_layer[0] >= 0) {
            rc = error_set(err, ERR_INTERNAL, "layer %d gave a value that is not finite",
                           result.bad_layer[0]);
        }
        for (size_t i = 0; rc == OK && i < n; i++) {
            fn(ctx, done + i, result.logits + i * vocab);
        }
        done += n;
    }
    state_free(store, seq);
    return rc;
}

struct loss_sum {
    double sum;
    size_t vocab;
    const int32_t *tokens;
};

static void loss_add(void *ctx, size_t position, const float *logits)
{
    struct loss_sum *l = ctx;

    l->sum += neg_log_prob(logits, l->vocab, l->tokens[position + 1]);
}

enum status eval_loss(double *sum, struct model *m, const int32_t *tokens, size_t n_tokens,
                      struct error *err)
{
    struct loss_sum l = {.vocab = model_get_config(m)->vocab_size, .tokens = tokens};
    enum status rc = eval_each(m, tokens, n_tokens, loss_add, &l, err);

    *sum = l.sum;
    return rc;
}

int32_t eval_argmax(const float *x, size_t n)
{
    size_t best = 0;

    for (size_t i = 1; i < n; i++) {
        if (x[i] > x[best]) {
            best = i;
        }
    }
    return (int32_t)best;
}

static size_t nth_layer(const struct model *m, bool is_full, size_t i)
{
    const struct model_config *c = model_get_config(m);

    for (size_t layer = 0; layer < c->n_layers; layer++) {
        if (c->layer_is_full[layer] == is_full && i-- == 0) {
            return layer;
        }
    }
    return c->n_layers;
}

size_t eval_gdn_layer(const struct model *m, size_t i)
{
    return nth_layer(m, false, i);
}

size_t eval_attn_layer(const struct model *m, size_t i)
{
    return nth_layer(m, true, i);
}
