/* linear_gemv.cu - W x for 1 to 8 rows of x in float32 arithmetic or as exact.
 *
 * Place: backend/cuda/kernels; launched by cuda_linear.c for decoding steps: all kinds of weights, all types of
 *        activations. More rows with 16-bit activations: linear_gemv_mma.cu; one such row and int8 weights:
 *        linear_gemv_int8.cu. */
#include "backend/cuda/kernels/linear_gemv_rows.cuh"

/* cuda_linear.c knows the tiles and the numbers of warps. One row: small blocks, several to a multiprocessor,
 * so that the next kernel's first weights are on their way as soon as one of them ends. More rows: large
 * blocks, since each reads all of x. A row of quantised weights is few steps: there more rows are on their
 * way together. */
#define GEMV(name, kind, tile, ahead, rows, warps, per_card)                                       \
    KERNEL(name, linear_args, WARP *warps, per_card)                                               \
    {                                                                                              \
        DYNAMIC_SHARED(float, shared);                                                             \
                                                                                                   \
        depend_launch();                                                                           \
        gemv<kind, tile, ahead, rows, warps>(&a, shared, (int)blockIdx.x, (int)gridDim.x);         \
    }
#define GEMV_DENSE(name, kind)                                                                     \
    GEMV(name##_1, kind, 2, 4, 1, LINEAR_WARPS_FEW, 3)                                             \
    GEMV(name##_2, kind, 2, 4, 2, LINEAR_WARPS, 1)                                                 \
    GEMV(name##_4, kind, 4, 2, 4, LINEAR_WARPS, 1)                                                 \
    GEMV(name##_8, kind, 4, 2, 8, LINEAR_WARPS, 1)
#define GEMV_QUANTISED(name, kind, ahead_2)                                                        \
    GEMV(name##_1, kind, 4, 2, 1, LINEAR_WARPS_FEW, 2)                                             \
    GEMV(name##_2, kind, 2, ahead_2, 2, LINEAR_WARPS, 1)                                           \
    GEMV(name##_4, kind, 2, 4, 4, LINEAR_WARPS, 1)                                                 \
    GEMV(name##_8, kind, 2, 3, 8, LINEAR_WARPS, 1)

GEMV_DENSE(linear_gemv_f32, GEMV_F32)
GEMV_DENSE(linear_gemv_f16, GEMV_F16)
GEMV_DENSE(linear_gemv_bf16, GEMV_BF16)
GEMV_QUANTISED(linear_gemv_int8, GEMV_INT8, 4)
GEMV_QUANTISED(linear_gemv_int4, GEMV_INT4, 3)
