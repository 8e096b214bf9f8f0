/* linear_gemm_args.h - what the kernels of the many-rows product take.
 *
 * Place: backend/cuda/kernels; C and device code. */
#ifndef BACKEND_CUDA_LINEAR_GEMM_ARGS_H
#define BACKEND_CUDA_LINEAR_GEMM_ARGS_H

#include <stddef.h>
#include <stdint.h>

#include "base/tensor.h"

enum {
    GEMM_PARTS_MAX = 4,
    GEMM_K = 64,       /* inputs of one stage of a tile */
    GEMM_COLS = 128,   /* outputs of a tile; the widest have twice as many */
    GEMM_THREADS = 256 /* of every kernel */
};

/* The order in which a converted row holds its inputs. GEMM_ORDER_QUANT: in each 16 inputs, first the
 * pairs (0,2) (4,6) (8,10) (12,14), then (1,3) (5,7) (9,11) (13,15), which is how four bytes of a quantised
 * row come apart. */
enum gemm_order { GEMM_ORDER_PLAIN, GEMM_ORDER_QUANT };

/* x [rows][n_in] float32 -> out [rows][n_planes][n_in] in 16 bits. Plane 0 holds the largest term of each
 * value, the next ones what is left of it: their sum is the value, exactly for rounded types. Rows are the
 * chunk's: row r is row row0 + r of x. */
struct gemm_convert_args {
    const int32_t *n_rows; /* of the step */
    const float *x;
    const int32_t *perm; /* [n_in] or NULL */
    uint16_t *out;
    int32_t row0, rows_max; /* of the chunk */
    int32_t n_in, n_planes, order;
    int32_t is_f16;
};

struct gemm_part {
    const uint16_t *x; /* as converted */
    const void *data, *scales;
    const uint8_t *zeros;
    float *out;                     /* [rows][n_out] */
    int32_t n_out;                  /* also the stride of out */
    int32_t tile0;                  /* its first column tile in the launch */
    int32_t n_tiles;                /* column tiles */
    int32_t group_blocks, n_groups; /* 32-input blocks per scale, scales per output */
    int32_t scale_dtype, round, accumulates;
};

/* Parts of one kind of weight. Column tiles of all parts form one range. With n_splits > 1 block z takes
 * stages [z * split_stages, ...) of the sum and writes to partial [n_splits][rows_max][partial_cols]; the
 * reduce kernel adds them up in order. */
struct linear_gemm_args {
    const int32_t *n_rows; /* of the step */
    float *partial;
    int32_t row0, rows_max; /* of the chunk */
    int32_t n_in, n_planes;
    int32_t n_splits, split_stages, partial_cols, tile_cols;
    int32_t n_buffers; /* stages in shared memory */
    int32_t n_parts;
    struct gemm_part part[GEMM_PARTS_MAX];
};

/* One part in float32 arithmetic, any shape and type. */
struct gemm_fma_args {
    const int32_t *n_rows;
    const float *x;
    const int32_t *perm;
    const void *data, *scales;
    const uint8_t *zeros;
    float *out;
    int32_t row0, rows_max;
    int32_t n_in, n_out;
    int32_t kind, dtype; /* enum weight_kind; of the elements or scales */
    int32_t group, n_groups;
    int32_t round, accumulates;
};

#endif
