/* delta_args.h - what the kernels of the gated delta rule take.
 *
 * Place: backend/cuda/kernels; C and device code.
 * Rows:  a span of fewer than chunk_min rows belongs to the recurrent kernels, any other to the chunked
 *        ones; each looks at all spans and leaves those that are not its own.
 * Scratch of the chunked form is all laid out by the step's rows, so that no table of chunks is needed
 * and its size is bounded by the rows of a plan, however they are cut into spans:
 *
 *     square  [row][nv][64]   P and the inverse of I + M of the row's chunk, see delta_prepare.cu
 *     factors [row][nv][4]    enum delta_factor
 *     fade    [row][nv]       exp of the chunk's gates summed up to the row
 *     planes  [row][2][nk][terms][128]   queries, keys, each value as a sum of bfloat16 terms */
#ifndef BACKEND_CUDA_DELTA_ARGS_H
#define BACKEND_CUDA_DELTA_ARGS_H

#include <stdint.h>

#include "backend/cuda/kernels/step_args.h"
#include "base/tensor.h"

enum {
    DELTA_DIM = 128,             /* dk and dv of all kernels but delta_any */
    DELTA_THREADS = 256,         /* of delta_step, delta_prepare, delta_norm */
    DELTA_NORM_HEADS = 8,        /* heads of a row that a block of delta_norm does */
    DELTA_ANY_THREADS = 128,     /* of delta_any: columns in hand at the most */
    DELTA_ANY_SHARED = 48 << 10, /* bytes of it */
    DELTA_CHUNK = 64,            /* rows */
    DELTA_SLICE = 32,            /* columns of the state that a block of delta_scan carries */
    DELTA_SCAN_THREADS = 128,    /* 4 warps: 2 carry the state, 2 make the outputs */
    DELTA_TERMS_MAX = 3,

    /* Rows in shared memory are longer than their contents by 16 bytes, so that the same columns of
     * eight rows lie in different banks. */
    DELTA_PLANE = DELTA_DIM + 8,    /* bfloat16: terms of queries, keys */
    DELTA_VALUES = DELTA_SLICE + 4, /* floats: the slice of values */
    DELTA_SQUARE = DELTA_CHUNK + 4  /* floats: P and T, see delta_prepare.cu */
};

/* Per row and value head, with beta, the sum G of the gates up to the row, and the inverse norms. */
enum delta_factor {
    DELTA_BETA, /* beta */
    DELTA_READ, /* beta exp(G) / |k|: of what the state holds for the key */
    DELTA_ASK,  /* exp(G) / (|q| sqrt(dk)): of what it holds for the query */
    DELTA_LAST, /* exp(G of the last row - G) / |k|: what is left of the row at the chunk's end */
    DELTA_FACTORS
};

struct delta_args {
    struct step_view view;
    const float *qkv, *z, *a, *b;
    float *out;
    const float *neg_exp_a, *dt_bias, *norm;
    void *state; /* [slot][nv][dk][dv] of state_dtype, of one layer */
    float *square, *factors, *fade;
    uint16_t *planes;
    int32_t nk, nv, dk, dv, chunk_min;
    int32_t columns;     /* delta_any: of the state in hand at a time */
    int32_t key_buffers; /* delta_scan: 1 or 2 places for a chunk's keys */
    float eps;
    enum dtype state_dtype, round; /* F32 or BF16; of the output */
};

/* Bytes of dynamic shared memory of delta_prepare and delta_scan, and of one term
 * of a chunk's queries or keys. */
enum {
    DELTA_PREPARE_FIXED = DELTA_CHUNK * DELTA_SQUARE * 4,
    DELTA_SCAN_FRAGMENTS = (2 * (8 + 4) * 3) * 512, /* of 2 warps: state 8, R 4, three terms each */
    DELTA_SCAN_FIXED =
        DELTA_CHUNK * (DELTA_SQUARE + DELTA_FACTORS + DELTA_VALUES) * 4 + DELTA_SCAN_FRAGMENTS,
    DELTA_SHARED_PER_TERM = DELTA_CHUNK * DELTA_PLANE * 2
};

#endif
