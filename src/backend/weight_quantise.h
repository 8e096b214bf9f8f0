/* weight_quantise.h - a dense matrix as int8.
 *
 * Place:  backend; for the loader (--dense-quant int8) and for tests.
 * Form:   WEIGHT_INT8, symmetric: bytes q + 128 with q in [-127, 127] and no zeros, so that the dot
 *         products of all instruction sets read them as they are. Scales are bfloat16, rounded up, one
 *         per row and group: their range is that of float32, so tiny groups lose nothing, and with a
 *         scale that is never too small no value is clipped. The step is at most 0.8 % coarser than
 *         with exact scales. */
#ifndef BACKEND_WEIGHT_QUANTISE_H
#define BACKEND_WEIGHT_QUANTISE_H

#include "backend/weight.h"

struct pool;

/* Whether src is dense and its rows divide into groups (multiples of 32; n_in: one per row). */
bool weight_int8_fits(const struct weight *src, size_t group);

/* Bytes of the block that weight_quantise_int8 fills: values, then scales, each padded to 64. 0 when the
 * product does not fit a size_t. */
size_t weight_int8_bytes(const struct weight *src, size_t group);

/* *dst becomes src as int8, with its bytes in block (64-byte aligned, not within src, owned by the
 * caller). Rows are shared out over the pool (NULL: inline). A group with a value that is not finite gets
 * the scale NaN, so that it shows in every output of its row. */
void weight_quantise_int8(struct weight *dst, void *block, const struct weight *src, size_t group,
                          struct pool *pool);

#endif
