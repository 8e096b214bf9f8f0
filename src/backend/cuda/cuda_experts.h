/* cuda_experts.h - parts of the routed experts' way, for who does more with them.
 *
 * Place: backend/cuda; of cuda_experts.c, for cuda_fuse_moe.c, and for those who move experts. */
#ifndef BACKEND_CUDA_CUDA_EXPERTS_H
#define BACKEND_CUDA_CUDA_EXPERTS_H

#include "backend/cuda/cuda_internal.h"
#include "backend/cuda/kernels/experts_args.h"

/* Whether a step of so many rows takes the kernels of experts_decode.cu, without act-order. extra: bytes of
 * shared memory that the second one shall have left. */
bool cuda_experts_decodes(const struct cuda_backend *be, const struct op *op, size_t n_rows,
                          size_t extra);

/* What its two kernels are given and how they are launched; data: what the op's family left. */
enum status cuda_experts_decode(struct cuda_backend *be, const struct op *op, void *data,
                                const struct cuda_shape *shape, size_t extra,
                                struct experts_args *args, struct cuda_grid grid[2],
                                struct error *err);

/* A weight as kernels see it. */
struct experts_matrix cuda_experts_matrix(const struct weight *w);

/* Rows that a step of n_rows (not 0) works off at a time; the last segment may have fewer. */
size_t cuda_experts_segment(const struct cuda_backend *be, const struct op *op, size_t n_rows);

/* Scratch of a checked op; with a home it may be larger. False: too large to address. */
bool cuda_experts_scratch(size_t *n_bytes, const struct cuda_backend *be, const struct op *op);

#endif
