/* linear_gemm_dense.cu - the many-rows product with 16-bit weights.
 *
 * Place:  backend/cuda/kernels; see gemm_tile.cuh.
 * Tiles:  rows x 128, and 128 x 256 for cards with much shared memory, where inputs and weights are read
 *         less often. The small ones keep two blocks on a multiprocessor, for the weights' way from memory. */
#include "backend/cuda/kernels/linear_gemm.cuh"

LINEAR_GEMM(linear_gemm_bf16_32, 2, GEMM_BF16, false, 32, 128, 1, 4)
LINEAR_GEMM(linear_gemm_bf16_64, 2, GEMM_BF16, false, 64, 128, 2, 4)
LINEAR_GEMM(linear_gemm_bf16_128, 1, GEMM_BF16, false, 128, 128, 2, 3)
LINEAR_GEMM(linear_gemm_bf16_256, 1, GEMM_BF16, false, 128, 256, 2, 4)

LINEAR_GEMM(linear_gemm_f16_32, 2, GEMM_F16, true, 32, 128, 1, 4)
LINEAR_GEMM(linear_gemm_f16_64, 2, GEMM_F16, true, 64, 128, 2, 4)
LINEAR_GEMM(linear_gemm_f16_128, 1, GEMM_F16, true, 128, 128, 2, 3)
LINEAR_GEMM(linear_gemm_f16_256, 1, GEMM_F16, true, 128, 256, 2, 4)

LINEAR_GEMM(linear_gemm_f16_by_bf16_32, 1, GEMM_F16_BY_BF16, false, 32, 128, 1, 4)
LINEAR_GEMM(linear_gemm_f16_by_bf16_64, 1, GEMM_F16_BY_BF16, false, 64, 128, 2, 4)
LINEAR_GEMM(linear_gemm_f16_by_bf16_128, 1, GEMM_F16_BY_BF16, false, 128, 128, 2, 3)
