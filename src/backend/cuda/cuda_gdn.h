/* cuda_gdn.h - what the ops of a gated delta net layer lend to the kernel that runs both as one.
 *
 * Place: backend/cuda; between cuda_conv.c, cuda_delta.c and cuda_fuse_gdn.c. */
#ifndef BACKEND_CUDA_CUDA_GDN_H
#define BACKEND_CUDA_CUDA_GDN_H

#include "backend/cuda/cuda_internal.h"
#include "backend/cuda/kernels/conv_args.h"
#include "backend/cuda/kernels/delta_args.h"

/* Four taps, channels in fours at 16-byte borders. */
bool cuda_conv_fits_quads(const struct op_conv *u);
/* Heads of DELTA_DIM, rows at 16-byte borders. */
bool cuda_delta_has_fast_heads(const struct op_delta *u);

/* What the op's kernels take; ERR_INTERNAL when the pools do not fit it. */
enum status cuda_conv_args(struct conv_args *args, const struct op *op,
                           const struct cuda_shape *shape, const struct state_pools *state,
                           struct error *err);
enum status cuda_delta_args(struct delta_args *args, struct cuda_backend *be, const struct op *op,
                            const struct cuda_shape *shape, const struct state_pools *state,
                            struct error *err);

#endif
