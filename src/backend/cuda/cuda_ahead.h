/* cuda_ahead.h - which weights a fused kernel asks for on behalf of the kernels after it.
 *
 * Place: backend/cuda; made by cuda_backend.c when a plan is prepared, used by the fusions whose kernels have
 *        time for it (kernels/ahead.cuh). */
#ifndef BACKEND_CUDA_CUDA_AHEAD_H
#define BACKEND_CUDA_CUDA_AHEAD_H

#include "backend/cuda/cuda_internal.h"
#include "backend/cuda/kernels/ahead_args.h"

/* For each op that begins a unit; without memory for it nothing is asked for. */
void cuda_ahead_prepare(struct cuda_backend *be);
void cuda_ahead_free(struct cuda_backend *be);

/* What the kernel of the unit that begins with this op of the plan asks for; of other ops nothing. */
struct ahead_args cuda_ahead_of(const struct cuda_backend *be, const struct op *op);

/* The same dealt out to the kernels of a layer's tail that have time: moe_in and moe_gate. */
enum cuda_ahead_tail { CUDA_AHEAD_IN, CUDA_AHEAD_GATE, CUDA_AHEAD_TAIL };
struct ahead_args cuda_ahead_of_tail(const struct cuda_backend *be, const struct op *op,
                                     enum cuda_ahead_tail kernel);

/* Blocks to be added to a launch of n_blocks, which alone would ask from a few multiprocessors only. */
size_t cuda_ahead_blocks(const struct cuda_backend *be, const struct ahead_args *a,
                         size_t n_blocks);

#endif
