/* op_plan.h - a model compiled into the list of operations that one step runs.
 *
 * Place:  model; built once at load from the spec's blocks, then only read.
 * Memory: all operands are places in one buffer of the backend. The residual x and its normed copy u
 *         are shared by all layers; a block's intermediates start at the same place as any other
 *         block's, since only one block runs at a time. */
#ifndef MODEL_OP_PLAN_H
#define MODEL_OP_PLAN_H

#include "backend/backend.h"
#include "base/buf.h"
#include "base/status.h"
#include "model/dtype_table.h"
#include "model/spec.h"
#include "model/weights.h"

struct op_plan {
    struct backend *be; /* NULL: an outline */
    struct op *ops;
    size_t n_ops;
    struct op tap_norm; /* the final norm over all rows, run only for a tap */
    struct operand x, tap, logits, best;
    uint8_t *buffer; /* of the backend: every operand */
    size_t buffer_bytes;
    struct expert_weights *experts; /* [MoE layers][experts] */
    float *inv_freq;                /* [attention layers][dims/2], the backend's */
};

struct op_plan_options {
    size_t rows_max, out_rows_max, context_max;
    size_t gdn_chunk_min;
    const struct expert_home *home; /* of the arenas that stay in host memory; or NULL */
};

/* spec and weights are borrowed for as long as the plan lives. Released with op_plan_release, also
 * after a failure. An operation that the backend refuses ends the build with its text. */
enum status op_plan_build(struct op_plan *out, struct backend *be, const struct model_spec *spec,
                          const struct model_weights *weights, const struct dtype_table *dtypes,
                          const struct op_plan_options *o, struct error *err);
/* The same operations without memory and unchecked, for planning: operands lie behind `nowhere`, an address
 * that nobody reads; weights may be mere forms. Released the same way. */
enum status op_plan_outline(struct op_plan *out, const struct model_spec *spec,
                            const struct model_weights *weights, const struct dtype_table *dtypes,
                            const struct op_plan_options *o, void *nowhere, struct error *err);
void op_plan_release(struct op_plan *p);
void op_plan_print(const struct op_plan *p, struct buf *out);

#endif
