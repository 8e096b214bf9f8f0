/* eval_run.h - one prompt through a model with everything kept: logits, hidden rows, states.
 *
 * Place: model; used by `spillway eval` and by the golden tests, so that both look at the same
 *        numbers. Never on a serving path. */
#ifndef MODEL_EVAL_RUN_H
#define MODEL_EVAL_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/model.h"

struct eval_options {
    size_t first;    /* tokens of the first piece; 0: no cut there */
    size_t window;   /* tokens of each further piece; 0: as many as a step takes */
    size_t n_greedy; /* tokens to continue with, the most likely one each time */
    bool want_logits, want_hidden, want_states;
    /* Called between prompt and continuation, or NULL: for tests that look at or change the state. */
    void (*between)(void *ctx, struct model *m, struct seq_state *seq);
    void *between_ctx;
};

struct eval_result { /* arrays are NULL when not asked for */
    size_t n_tokens, vocab, hidden_size, n_layers;
    float *logits;  /* [n_tokens][vocab] */
    float *hidden;  /* [n_layers + 1][n_tokens][hidden_size]; numbering as model_tap_fn */
    float *margins; /* [n_tokens] smallest router margin */
    /* states after the prompt, before the continuation */
    size_t n_gdn, channels, columns, nv, dk, dv;
    size_t n_attn, nkv, hd;
    float *conv;          /* [n_gdn][channels][columns] */
    float *recurrent;     /* [n_gdn][nv][dk][dv] */
    float *keys, *values; /* [n_attn][nkv][n_tokens][hd] */
    size_t n_greedy;
    int32_t *greedy;      /* [n_greedy] */
    float *greedy_logits; /* [n_greedy][vocab] that each was chosen from */
    int16_t bad_layer;    /* as model_step_result; the run stops there */
};

/* The model needs out_rows_max == rows_max and a free live slot. ERR_LIMIT when the tokens do not fit its
 * context. *out is released with eval_result_release, also after a failure. */
enum status eval_run(struct eval_result *out, struct model *m, const int32_t *tokens,
                     size_t n_tokens, const struct eval_options *o, struct error *err);
void eval_result_release(struct eval_result *r);

/* Calls fn with the logits, [vocab], after each token but the last: they predict token position + 1. The
 * ids are checked first, the last one too. From an empty state. */
typedef void eval_logits_fn(void *ctx, size_t position, const float *logits);
enum status eval_each(struct model *m, const int32_t *tokens, size_t n_tokens, eval_logits_fn *fn,
                      void *ctx, struct error *err);

/* Sum over i >= 1 of -log p(token i | tokens before), from an empty state. */
enum status eval_loss(double *sum, struct model *m, const int32_t *tokens, size_t n_tokens,
                      struct error *err);

/* The index of the largest of n values; the lower one of equals. */
int32_t eval_argmax(const float *x, size_t n);

/* Model layer of the i-th gated delta net (or attention) layer. */
size_t eval_gdn_layer(const struct model *m, size_t i);
size_t eval_attn_layer(const struct model *m, size_t i);

#endif
