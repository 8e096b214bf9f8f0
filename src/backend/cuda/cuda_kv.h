/* cuda_kv.h - one layer's part of the KV pool, as the kernels take it.
 *
 * Place: backend/cuda; written by cuda_qkv.c's kernels, read by cuda_attention.c's. cuda_fuse_attention.c runs
 *        both as one. */
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

/* What the ops' kernels take; ERR_INTERNAL when the pools do not fit. */
enum status cuda_qkv_args(struct qkv_args *args, const struct op *op,
                          const struct cuda_shape *shape, const struct state_pools *state,
                          struct error *err);
enum status cuda_attention_args(struct attention_args *args, const struct op *op,
                                const struct cuda_shape *shape, const struct state_pools *state,
                                struct error *err);

/* The kernels with matrix instructions: by cache type and head size. */
enum mma_kernel {
    SAME_64, /* the cache has the activations' type */
    SAME_128,
    SAME_256,
    E4M3_128,
    E4M3_256,
    E5M2_128,
    E5M2_256,
    N_SPLIT,
    SAME_256_LARGE = N_SPLIT, /* flash only: larger tiles, for cards with more shared memory */
    E4M3_256_LARGE,
    E5M2_256_LARGE,
    N_FLASH,
    NO_MMA = N_FLASH
};
#define NAMES_SPLIT(at, name)                                                                      \
    [at + SAME_64] = name "_64", [at + SAME_128] = name "_128", [at + SAME_256] = name "_256",     \
          [at + E4M3_128] = name "_e4m3_128", [at + E4M3_256] = name "_e4m3_256",                  \
          [at + E5M2_128] = name "_e5m2_128", [at + E5M2_256] = name "_e5m2_256"

/* Whether there is one for these types on this card, and which, or NO_MMA. */
bool cuda_has_mma(const struct cuda_backend *be, enum dtype act, enum dtype kv);
enum mma_kernel cuda_choose_mma(const struct cuda_backend *be, const struct op_attention *u,
                                const struct kv_cache *c);

/* Short spans of rows_each rows in this step: takes their part of args, and says how many spans a launch
 * may have. */
size_t cuda_split_spans(struct cuda_backend *be, const struct op_attention *u, size_t rows_each,
                        size_t lanes, struct attention_args *args);
/* Of a kernel that is launched as attention_split is: its grid for n spans. */
struct cuda_grid cuda_split_grid(const struct op_attention *u, const struct cuda_shape *shape,
                                 size_t n, const struct attention_args *args);
enum status cuda_split_join(struct cuda_backend *be, const struct op_attention *u, size_t n,
                            const struct attention_args *args, struct error *err);

#endif
