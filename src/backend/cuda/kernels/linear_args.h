/* linear_args.h - what the kernels of few-row products take.
 *
 * Place: backend/cuda/kernels; C and device code. Filled by cuda_linear.c.
 *
 * The outputs of all parts are cut into tiles, which form one range. A block of W warps works
 * on W / n_slices tiles at a time; the n_slices warps of a tile each take every n_slices-th
 * step of the inputs. A step is as many inputs as the lanes that share a row read with one load each of
 * 16 bytes: all 32 of them, or the four of a matrix instruction. */
#ifndef BACKEND_CUDA_LINEAR_ARGS_H
#define BACKEND_CUDA_LINEAR_ARGS_H

#include <stdint.h>

#include "base/tensor.h"

enum {
    LINEAR_ARGS_PARTS = 4,
    LINEAR_WARPS = 16, /* of a block */
    LINEAR_WARPS_FEW = 8,
    LINEAR_LANES_FMA = 32, /* lanes that share a row */
    LINEAR_LANES_MMA = 4,
    LINEAR_TILE_MMA = 16,            /* outputs of a tile of the matrix instructions */
    LINEAR_ANY_ROWS = 4,             /* of x, of the kernel for all shapes */
    LINEAR_INVERSE_BITS = 31,        /* of group_inverse */
    LINEAR_INPUTS_MAX = 1024 * 1024, /* for which group_inverse is exact */
    LINEAR_NORM_ROWS = 8,            /* of x, when a norm goes ahead */
    LINEAR_SWIGLU_INPUTS = 4096,     /* beyond, each block would compute for too long */
    LINEAR_INT8_TILE = 4,            /* outputs of a tile of linear_gemv_int8_one */
    LINEAR_INT8_SCALES = 256,        /* bytes that their scales may have */
    /* Floats in shared memory ahead of the norm's weights: a factor for each row, and sums of warps. */
    LINEAR_NORM_HEAD = LINEAR_NORM_ROWS * (1 + LINEAR_WARPS),
};

enum linear_kind { LINEAR_DENSE, LINEAR_INT4, LINEAR_INT8 };

struct linear_part {
    const void *data, *scales;
    const uint8_t *zeros; /* or NULL */
    const int32_t *perm;  /* or NULL */
    float *out;           /* [rows][n_out] */
    int32_t n_out, first_tile;
    int32_t kind, dtype; /* enum linear_kind; of the elements or scales */
    int32_t n_groups;    /* scales of an output */
    int32_t group_blocks;
    uint32_t group_inverse; /* 2^31 / group_blocks, rounded up; both: 32-input blocks of a group */
    int32_t round, accumulates;
};

/* Row r of the step is row r % rows of the blocks with blockIdx.y = r / rows. */
struct linear_args {
    const float *x;        /* [rows][n_in] */
    const int32_t *n_rows; /* of the step */
    const int32_t *perm;   /* of all parts, or NULL */
    int32_t n_in, rows;
    int32_t n_chunks;                       /* pieces of 16 bytes of a weight row */
    int32_t n_steps, n_slices, slices_log2; /* a power of two */
    int32_t n_tiles, n_parts;
    int32_t x_stride; /* elements of a row of x in shared memory */
    /* What goes ahead, all of it NULL for nothing. A norm: the product is of norm(x); its weights [n_in], and
     * what it adds to the mean of squares. A swiglu: the product is of silu(gate) * x. */
    const float *norm;
    float norm_eps;
    const float *gate;   /* [rows][n_in]; only for kernels of one row */
    int32_t ahead_round; /* the type that it rounds to */
    struct linear_part part[LINEAR_ARGS_PARTS];
};

/* Two products of the same inputs: the first beside_blocks blocks do that of dense weights. */
struct linear_pair_args {
    struct linear_args main, beside;
    int32_t beside_blocks;
};

#endif
