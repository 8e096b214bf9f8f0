/* dense_quant.h - dense matrices as int8, made while a model is loaded (--dense-quant int8).
 *
 * Place:  model; between loading the weights and building the op plan.
 * What:   the matrices that every token reads in full: projections of attention and gated delta nets,
 *         dense MLPs, shared experts, the output head. Not: embedding rows, routers, the gates of one
 *         row per head, convolutions, norms; they are small or decide what the rest computes. Matrices
 *         that the checkpoint stores quantised stay as they are.
 * Tied:   where the head is the embedding, the embedding stays and the head gets an int8 copy. */
#ifndef MODEL_DENSE_QUANT_H
#define MODEL_DENSE_QUANT_H

#include "model/spec.h"
#include "model/weights.h"

struct pool;

/* In groups of as many inputs as fit: 128, else 64, 32, else the whole row. Matrices that no group fits
 * stay dense. w->n_bytes counts what kernels read afterwards; the copies belong to w. pool and progress
 * may be NULL. ERR_NO_MEMORY: w is as it was. */
enum status dense_quantise(struct model_weights *w, const struct model_spec *spec,
                           struct pool *pool, struct progress *progress, struct error *err);

/* For planning: the elements of those matrices, and bytes of a copy of so many. */
size_t dense_quant_elems(const struct model_spec *spec);
size_t dense_quant_bytes(size_t n_elems);

/* For planning: gives w's matrices, which need no data, the forms that dense_quantise() would. */
void dense_quant_outline(struct model_weights *w, const struct model_spec *spec);

#endif
