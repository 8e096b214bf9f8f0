/* linear_gemm_int4.cu - the many-rows product with int4 weights.
 *
 * Place: backend/cuda/kernels; see gemm_tile.cuh. Two sets of sums fill the registers of the large tile. */
#include "backend/cuda/kernels/linear_gemm.cuh"

LINEAR_GEMM(linear_gemm_int4_bf16_32, 2, GEMM_INT4, false, 32, 128, 1, 4)
LINEAR_GEMM(linear_gemm_int4_bf16_64, 2, GEMM_INT4, false, 64, 128, 1, 4)
LINEAR_GEMM(linear_gemm_int4_bf16_128, 1, GEMM_INT4, false, 128, 128, 2, 4)
LINEAR_GEMM(linear_gemm_int4_f16_32, 2, GEMM_INT4, true, 32, 128, 1, 4)
LINEAR_GEMM(linear_gemm_int4_f16_64, 2, GEMM_INT4, true, 64, 128, 1, 4)
LINEAR_GEMM(linear_gemm_int4_f16_128, 1, GEMM_INT4, true, 128, 128, 2, 4)
