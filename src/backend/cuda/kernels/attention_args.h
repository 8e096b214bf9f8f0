/* attention_args.h - what the kernels of the attention layers take: OP_QKV and OP_ATTENTION.
 *
 * Place: backend/cuda/kernels; C and device code.
 * Words: the query heads that share a KV head are its group. A lane is one query vector: row r of a span
 *        and head h of the group make lane r * group + h. A short span (decode, and drafts being checked)
 *        is cut along its context: each split of pages leaves a partial softmax in scratch, and a second
 *        kernel joins them. Longer spans are cut into tiles of lanes; one that is alone and has too few
 *        of them for the card is cut both ways. */
#ifndef BACKEND_CUDA_ATTENTION_ARGS_H
#define BACKEND_CUDA_ATTENTION_ARGS_H

#include <stdint.h>

#include "backend/cuda/kernels/step_args.h"
#include "base/tensor.h"

enum {
    ATTENTION_PAGE = 64,      /* KV_PAGE_TOKENS */
    ATTENTION_HEAD_MAX = 256, /* head_dim */
    ATTENTION_SHORT_ROWS = 4, /* spans of at most so many rows are short */
    ATTENTION_SPLITS_MAX = 128,

    ANY_LANES = 16, /* lanes and tokens of a tile of attention_any, which has ANY_THREADS threads */
    ANY_TOKENS = 32, /* one per thread of a warp */
    ANY_THREADS = 128,
    ANY_PAD = 4, /* floats after a row in shared memory: rows begin in different banks */

    SPLIT_LANES = 8,     /* lanes of a block of attention_split: the n of a matrix instruction */
    SPLIT_THREADS = 128, /* a warp takes 16 tokens of each page */
    SPLIT_P_STRIDE =
        20, /* floats of 16 tokens' weights in shared memory: spreads them over banks */

    FLASH_WARPS = 4,         /* of a block of attention_flash, each with 16 lanes */
    FLASH_TOKENS = 32,       /* of a tile */
    FLASH_SMALL_TOKENS = 16, /* for heads of 256 where a block has 64 KB */
    FLASH_LARGE_WARPS = 8,   /* the same where a block may have 192 KB of shared memory */
    FLASH_LARGE_TOKENS = 64,

    JOIN_THREADS = 256, /* one per column of a head */

    QKV_THREADS = 128 /* a warp for each head of each row */
};

/* One layer's cache: rows of hd elements, the row of token i of page p for KV head h being
 * (p * nkv + h) * 64 + i; a scale for each row. */
struct kv_cache {
    uint8_t *k, *v;
    float *k_scale, *v_scale; /* NULL unless fp8 */
    enum dtype dtype;
};

struct qkv_args {
    struct step_view view;
    struct kv_cache cache;
    float *q;
    const float *k, *v;
    const float *q_norm, *k_norm, *inv_freq;
    float eps, rope_scale;
    int32_t nq, nkv, hd, half; /* half: of the rotary dimensions */
    int32_t q_stride;          /* from one query head to the next: 2 hd with gates */
    enum dtype q_round, k_round;
};

struct attention_args {
    struct step_view view;
    struct kv_cache cache;
    const float *q;
    float *out;
    int32_t nkv, hd, group;
    int32_t q_cols, q_stride; /* of a row, of a head */
    int32_t is_gated;
    float scale;
    enum dtype round; /* of out */

    /* Spans that are cut along their context. A launch has spans [span_first, span_first + spans of its grid), each with places for
     * rows_each rows: lane `l` of split `s` of KV head h of the launch's span i is at
     *     ((i * nkv + h) * rows_each * group + l) * splits_max + s                                  */
    float *partial;                   /* [place][hd] sums, weighed by exp(score - max) */
    float *partial_max, *partial_sum; /* [place] */
    int32_t span_first, rows_each;
    int32_t splits_max; /* a span has a split for each page, up to so many; 0: it is not cut */
};

#endif
