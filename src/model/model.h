/* model.h - a loaded model: weights, plan, state store; and one step over a batch.
 *
 * Place:  model; what runtime/ and cli/ see. Built from a checkpoint and a backend; everything that
 *         can be refused is refused here, with the name of the flag, field or tensor.
 * Thread: one at a time. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "base/buf.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/status.h"
#include "formats/checkpoint.h"
#include "formats/model_config.h"
#include "model/state.h"
#include "offload/offload.h"

struct pool;

/* What becomes of dense matrices when they are loaded; see dense_quant.h. */
enum dense_quant { DENSE_QUANT_NONE, DENSE_QUANT_INT8 };
const char *dense_quant_name(enum dense_quant q);

/* Routed experts that do not all fit a device; see offload/offload.h. */
struct model_offload {
    size_t n_slots, n_staging; /* as offload_options has them */
    enum expert_miss miss;
    bool no_prefetch, no_split, no_overlap;
    /* [model layers] whose experts are in host memory and share the slots; NULL: all layers that have
     * experts. The others are on the device. */
    const bool *may_overflow;
    const char
        *folder; /* their experts are in a file in it (base/file_memory.h); NULL: in memory */
    struct backend
        *cpu; /* computes misses, nothing else from then on; outlives the model. NULL: with
                            EXPERT_MISS_FETCH only */
};

struct model_options {
    enum dtype compute_dtype; /* DTYPE_NONE = auto; F32, F16, BF16. auto on a CPU = F32 */
    enum dtype
        kv_dtype; /* DTYPE_NONE = auto (the compute dtype); F32, F16, BF16, F8_E4M3, F8_E5M2 */
    enum dtype
        recurrent_dtype; /* DTYPE_NONE = auto (config's mamba_ssm_dtype, else F32); F32, BF16 */
    size_t rows_max;     /* rows of one step: prefill chunk + running sequences */
    size_t out_rows_max; /* logit rows of one step */
    struct state_budget budget;          /* context_max 0: the config's; n_tokens 0: context_max */
    struct json_object *config_override; /* or NULL */
    size_t gdn_chunk_min; /* 0: default; SIZE_MAX: always the recurrent form (tests) */
    struct pool *pool;    /* for loading; may be NULL */
    enum dense_quant dense_quant;
    const struct model_offload
        *offload; /* for the call only; NULL: all experts are on the device */
};

struct model;

/* Borrows ck and be; both must outlive the model. */
enum status model_open(struct model **out, const struct checkpoint *ck, struct backend *be,
                       const struct model_options *o, const struct log *log,
                       struct progress *progress, struct error *err);
void model_free(struct model *m); /* accepts NULL */

const struct model_config *model_get_config(const struct model *m);
struct state_store *model_states(struct model *m);
const struct model_options *model_get_options(const struct model *m); /* with auto resolved */
size_t model_weight_bytes(const struct model *m);
/* False: no experts overflow. From any thread. */
bool model_offload_stats(const struct model *m, struct offload_stats *out);
/* The operations of a step, in order; they live as long as the model. For print-outs and accounting. */
const struct op *model_plan(const struct model *m, size_t *n_ops);

/* Print-outs for start-up and `inspect`: the dtype table, the op plan, tensors skipped. */
void model_print_dtypes(const struct model *m, struct buf *out);
void model_print_plan(const struct model *m, struct buf *out);
void model_print_skipped(const struct model *m,
                         struct buf *out); /* "vision: 333 tensors, 893 MB" lines */

/* One sequence's part of a step. seq must have n_tokens reserved (state_reserve). */
struct model_span {
    struct seq_state *seq;
    const int32_t *tokens;
    size_t n_tokens;
    size_t n_logits; /* logits of the last n_logits tokens are wanted: 0, 1, or all of them */
};

/* The tap gets the rows' residual stream, [n_rows][hidden] float32, host memory, borrowed: after the
 * embedding as layer 0, after layer i (0-based) as i + 1; the last one after the final norm, as the
 * head sees it. For `eval` and tests. */
typedef void model_tap_fn(void *ctx, size_t layer, const float *rows, size_t n_rows);

struct model_step_result {
    const float
        *logits; /* [sum of n_logits][vocab_size] float32, in span order; valid until the next step;
                   NULL with no_logits */
    const struct best_row *top; /* per logits row: its largest values and their tokens */
    const int32_t *best; /* per logits row: the first of its most likely tokens; -1: not finite */
    const int16_t *bad_layer; /* per span: -1, or the first layer with a value that is not finite */
    const float *router_margin; /* per row, when asked for; else NULL */
};

struct model_step_options {
    model_tap_fn *tap; /* or NULL */
    void *tap_ctx;
    bool want_margins;
    bool no_logits;            /* `top` and `best` are enough: rows of logits stay where they are */
    route_hook_fn *route_hook; /* or NULL; see backend.h */
    void *route_ctx;
    /* For benchmarks on a device whose backend runs whole steps, or NULL: choices in place of the routers',
     * and predictions of them, as backend.h has them in struct step. Elsewhere ERR_UNSUPPORTED. */
    const int32_t *forced_idx, *forced_next;
    /* For profiles, or NULL: called after each operation with the time that it took. */
    void (*op_done)(void *ctx, const struct op *op, uint64_t ns);
    void *op_ctx;
};

/* Runs the spans and advances their states. Tokens are checked against the vocabulary
 * (ERR_BAD_REQUEST). A span with bad_layer >= 0 must be ended by the caller: its state is poisoned;
 * the others are unaffected. o may be NULL. */
enum status model_step(struct model *m, const struct model_span *spans, size_t n_spans,
                       const struct model_step_options *o, struct model_step_result *result,
                       struct error *err);

/* The logits of the last step, which had no_logits and was OK, as its result would have had them; for when
 * `top` turned out not to be enough. Waits for the device; a copy that fails gives NaNs. */
const float *model_logits(struct model *m);

#endif
