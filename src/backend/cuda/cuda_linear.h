/* cuda_linear.h - linear layers of few rows whose input a norm makes, for cuda_fuse_linear.c.
 *
 * Place: backend/cuda. */
#ifndef BACKEND_CUDA_CUDA_LINEAR_H
#define BACKEND_CUDA_CUDA_LINEAR_H

#include "backend/cuda/cuda_internal.h"

/* Whether kernels take norm(x) as the input of op, an OP_LINEAR, for up to LINEAR_NORM_ROWS rows. */
bool cuda_linear_takes_norm(const struct cuda_backend *be, const struct op *op,
                            const struct op_norm *norm);

/* op on what norm makes of its input; norm's output is not written. */
enum status cuda_linear_run_normed(struct cuda_backend *be, const struct op *op,
                                   const struct op_norm *norm, const struct cuda_shape *shape,
                                   struct error *err);

#endif
