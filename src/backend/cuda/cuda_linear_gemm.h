/* cuda_linear_gemm.h - linear layers over many rows: tensor cores, tiles of rows and columns.
 *
 * Place:  backend/cuda; a part of the linear family. cuda_linear.c checks the op, and sends steps of
 *         LINEAR_GEMM_ROWS_MIN rows or more here. Every op that the family accepts can be run here with
 *         any number of rows.
 * Idea:   the input is written once more in the 16-bit type of the matrix instructions, in the order of
 *         inputs that the weights want; products of it with dense 16-bit weights and with the integers of
 *         quantised ones are exact, sums and scales are float32.
 * Bits:   an output depends on its row, its weights and the step's number of rows rounded up to a power of
 *         two, which chooses in how many pieces a sum over inputs is cut. */
#ifndef BACKEND_CUDA_CUDA_LINEAR_GEMM_H
#define BACKEND_CUDA_CUDA_LINEAR_GEMM_H

#include "backend/cuda/cuda_internal.h"

enum { LINEAR_GEMM_ROWS_MIN = 17 };

/* The kernels, for the family's table of names, in the order that run() counts from its `first`. */
#define LINEAR_GEMM_KERNELS(X)                                                                     \
    X(linear_gemm_convert)                                                                         \
    X(linear_gemm_reduce)                                                                          \
    X(linear_gemm_fma_32)                                                                          \
    X(linear_gemm_fma_128)                                                                         \
    X(linear_gemm_bf16_32)                                                                         \
    X(linear_gemm_bf16_64)                                                                         \
    X(linear_gemm_bf16_128)                                                                        \
    X(linear_gemm_bf16_256)                                                                        \
    X(linear_gemm_f16_32)                                                                          \
    X(linear_gemm_f16_64)                                                                          \
    X(linear_gemm_f16_128)                                                                         \
    X(linear_gemm_f16_256)                                                                         \
    X(linear_gemm_f16_by_bf16_32)                                                                  \
    X(linear_gemm_f16_by_bf16_64)                                                                  \
    X(linear_gemm_f16_by_bf16_128)                                                                 \
    X(linear_gemm_int4_bf16_32)                                                                    \
    X(linear_gemm_int4_bf16_64)                                                                    \
    X(linear_gemm_int4_bf16_128)                                                                   \
    X(linear_gemm_int4_f16_32)                                                                     \
    X(linear_gemm_int4_f16_64)                                                                     \
    X(linear_gemm_int4_f16_128)                                                                    \
    X(linear_gemm_int8_bf16_32)                                                                    \
    X(linear_gemm_int8_bf16_64)                                                                    \
    X(linear_gemm_int8_bf16_128)                                                                   \
    X(linear_gemm_int8_f16_32)                                                                     \
    X(linear_gemm_int8_f16_64)                                                                     \
    X(linear_gemm_int8_f16_128)

/* Whether a step of so many rows should be run here. */
bool cuda_linear_gemm_fits(const struct cuda_backend *be, const struct op *op, size_t n_rows);

/* Scratch bytes that steps of at most be->rows_max rows need; SIZE_MAX: more than there can be. */
size_t cuda_linear_gemm_scratch(const struct cuda_backend *be, const struct op *op);

/* first: the index of linear_gemm_convert in cuda_linear.kernels. */
enum status cuda_linear_gemm_run(struct cuda_backend *be, const struct op *op,
                                 const struct cuda_shape *shape, size_t first, struct error *err);

#endif
