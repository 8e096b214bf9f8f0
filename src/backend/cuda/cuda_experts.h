/* cuda_experts.h - the routed experts' way of a few rows, for who does more in its kernels.
 *
 * Place: backend/cuda; of cuda_experts.c, for cuda_fuse_moe.c. */
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

#endif
