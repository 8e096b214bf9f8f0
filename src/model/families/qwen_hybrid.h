/* qwen_hybrid.h - what Qwen3-Next and Qwen3.5 have in common: all but the input projections of the
 * gated delta net.
 *
 * Place:  model/families, for the readers beside it.
 * Source: the public reference implementation of these families (transformers, qwen3_next and
 *         qwen3_5_moe); shapes and order of rows as their checkpoints store them. */
#ifndef MODEL_QWEN_HYBRID_H
#define MODEL_QWEN_HYBRID_H

#include "model/spec.h"

/* Adds the slots qkv, z, a, b of layer `layer` to g, whose sizes are set. */
typedef void qwen_gdn_inputs_fn(struct model_spec *spec, struct gdn_spec *g, size_t layer);

enum status qwen_hybrid_build(struct model_spec *spec, const struct model_config *c,
                              qwen_gdn_inputs_fn *gdn_inputs, struct error *err);

/* One matrix of a gated delta net's input side. rows and n_file_rows as in spec_matrix. */
matrix_slot qwen_gdn_matrix(struct model_spec *spec, size_t layer, const char *module, size_t n_out,
                            const int32_t *rows, size_t n_file_rows);

#endif
