/* cuda_experts.h - the routed experts' way of a few rows, for who goes on from its first launch.
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

/* Launches the first kernel. data: what the op's family left. Fills what the second one takes; *down_shared
 * is how much shared memory it uses itself, which leaves `extra`. */
enum status cuda_experts_gate_up(struct cuda_backend *be, const struct op *op, void *data,
                                 const struct cuda_shape *shape, size_t extra,
                                 struct experts_args *args, size_t *down_shared, struct error *err);

#endif
