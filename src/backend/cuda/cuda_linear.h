/* cuda_linear.h - linear layers of few rows that compute their input themselves, for cuda_fuse_linear.c.
 *
 * Place: backend/cuda. */
#ifndef BACKEND_CUDA_CUDA_LINEAR_H
#define BACKEND_CUDA_CUDA_LINEAR_H

#include "backend/cuda/cuda_internal.h"

/* Whether kernels take what `ahead` makes as the input of op, an OP_LINEAR: an OP_NORM for up to
 * LINEAR_NORM_ROWS rows, a short OP_SWIGLU for one. */
bool cuda_linear_takes(const struct cuda_backend *be, const struct op *op, const struct op *ahead);

/* Both ops; the output of the one ahead is not written. */
enum status cuda_linear_run_after(struct cuda_backend *be, const struct op *op,
                                  const struct op *ahead, const struct cuda_shape *shape,
                                  struct error *err);

#endif
