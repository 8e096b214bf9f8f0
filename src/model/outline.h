/* outline.h - a model without its weights: what it consists of, in which form and size.
 *
 * Place:  model; for planning memory before anything large is read (cli/placement.c). Reads names, types and
 *         shapes of a checkpoint, never the values.
 * Forms:  weights as loading will make them: kind, types, groups, zero points, orders. What only values can
 *         tell is taken from the quantisation settings: zero points exist where the file is not symmetric,
 *         orders where desc_act is set. Data pointers lead nowhere.
 * Exact:  the activations' bytes and the operations are those of op_plan.c, whose code makes them here too. */
#ifndef MODEL_OUTLINE_H
#define MODEL_OUTLINE_H

#include "backend/expert_block.h"
#include "formats/checkpoint.h"
#include "model/dtype_table.h"
#include "model/op_plan.h"
#include "model/spec.h"
#include "model/weights.h"

struct model_outline {
    struct dtype_table dtypes;
    struct model_spec spec;
    struct model_weights weights; /* forms */
    struct op_plan plan;

    size_t class_bytes
        [CLASS_COUNT]; /* matrices as kernels read them; a tied head counts as a head only
                                        where it has a copy of its own */
    size_t
        embedding_may_stay_bytes; /* in host memory, when experts overflow; of the class's bytes */
    size_t vector_bytes;
    size_t int8_saves;     /* bytes that DENSE_QUANT_INT8 would save; 0 where it is chosen */
    size_t original_bytes; /* of rewritten matrices that became int8: loaded besides */
    size_t
        rewritten_bytes; /* in the host's memory until a device has them: copies that loading makes of
                               matrices and vectors, without experts in blocks */

    /* Routed experts in blocks of one shape, if all layers with experts have that. */
    bool has_blocks;
    struct expert_block block;
    size_t n_moe_layers, n_experts, top_k;
    bool *layer_has_experts; /* [spec.n_layers] */
};

/* Types, rows and context as in o; auto must be resolved. ERR_FORMAT names a tensor that is not there; whatever
 * else is wrong with a checkpoint is left to loading. *out is released also after a failure. */
enum status model_outline_make(struct model_outline *out, const struct checkpoint *ck,
                               const struct model_config *c, const struct model_options *o,
                               struct error *err);
void model_outline_release(struct model_outline *m);

#endif
