/* cuda_kv.h - one layer's part of the KV pool, as the kernels take it.
 *
 * Place: backend/cuda; written by cuda_qkv.c's kernels, read by cuda_attention.c's. */
#ifndef BACKEND_CUDA_CUDA_KV_H
#define BACKEND_CUDA_CUDA_KV_H

#include "backend/cuda/cuda_internal.h"
#include "backend/cuda/kernels/attention_args.h"

bool cuda_kv_is_fp8(enum dtype t);

/* ERR_INTERNAL when the pool does not fit a layer of nkv heads of hd. */
enum status cuda_kv_cache(struct kv_cache *out, const struct op *op,
                          const struct state_pools *state, size_t layer, size_t nkv, size_t hd,
                          struct error *err);

/* The shape rules of both ops: heads in whole groups, sizes that the kernels' numbers hold. */
enum status cuda_kv_check(const struct op *op, size_t nq, size_t nkv, size_t hd, struct error *err);

#endif
