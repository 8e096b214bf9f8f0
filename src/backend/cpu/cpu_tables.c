/* cpu_tables.c - which kernels make up each instruction set.
 *
 * Place: backend/cpu. A set names the best function it has for each job, its own or a lesser set's; so
 *        only what gains from wider registers exists twice. */
#include "backend/cpu/cpu_kernels.h"
#include "backend/cpu/cpu_x86.h"

/* Half of a small second level cache; machines with AMX have 2 MiB. */
#define INT8_BLOCKS     .int8_block_bytes = 256 * 1024, .int8_block_rows = 12
#define INT8_BLOCKS_AMX .int8_block_bytes = 1024 * 1024, .int8_block_rows = 16

const struct cpu_kernels cpu_kernels_scalar = {
    .isa = "scalar",
    .linear = linear_ref,
    .linear_int8 = linear_int8_ref,
    INT8_BLOCKS,
    .act_order = act_order_ref,
    .quantise = quantise_ref,
    .norm = norm_ref,
    .gated_norm = gated_norm_ref,
    .swiglu = swiglu_ref,
    .sigmoid_mul = sigmoid_mul_ref,
    .dot = dot_ref,
    .axpy = axpy_ref,
    .scale = scale_ref,
    .exp_sum = exp_sum_ref,
    .max = max_ref,
    .all_finite = all_finite_ref,
    .round = round_ref,
    .load = load_ref,
    .store = store_ref,
    .load_fp8 = load_fp8_ref,
    .conv = conv_ref,
    .delta_step = delta_step_ref,
    .matmul = matmul_ref,
    .scores = scores_ref,
    .weigh = weigh_ref,
};

#if defined(__x86_64__)

/* What the x86 sets have in common. */
#define ROWS_AVX2                                                                                  \
    .quantise = quantise_avx2, .norm = norm_avx2, .gated_norm = gated_norm_avx2,                   \
    .swiglu = swiglu_avx2, .sigmoid_mul = sigmoid_mul_avx2, .dot = dot_avx2, .axpy = axpy_avx2,    \
    .scale = scale_avx2, .exp_sum = exp_sum_avx2, .max = max_avx2, .all_finite = all_finite_avx2,  \
    .round = round_avx2, .load = load_avx2, .store = store_avx2, .load_fp8 = load_fp8_avx2,        \
    .conv = conv_avx2
#define MATRIX_AVX2                                                                                \
    .delta_step = delta_step_avx2, .matmul = matmul_avx2, .scores = scores_avx2, .weigh = weigh_avx2
#define MATRIX_AVX512                                                                              \
    .delta_step = delta_step_avx512, .matmul = matmul_avx512, .scores = scores_avx512,             \
    .weigh = weigh_avx512

const struct cpu_kernels cpu_kernels_avx2 = {
    .isa = "avx2",
    .linear = linear_avx2,
    .linear_int8 = linear_int8_avx2,
    INT8_BLOCKS,
    .act_order = act_order_avx2,
    MATRIX_AVX2,
    ROWS_AVX2,
};

const struct cpu_kernels cpu_kernels_avxvnni = {
    .isa = "avxvnni",
    .linear = linear_avx2,
    .linear_int8 = linear_int8_avxvnni,
    INT8_BLOCKS,
    .act_order = act_order_avxvnni,
    MATRIX_AVX2,
    ROWS_AVX2,
};

const struct cpu_kernels cpu_kernels_avx512 = {
    .isa = "avx512",
    .linear = linear_avx512,
    .linear_int8 = linear_int8_avx512vnni,
    INT8_BLOCKS,
    .act_order = act_order_avx512vnni,
    MATRIX_AVX512,
    ROWS_AVX2,
};

const struct cpu_kernels cpu_kernels_amx = {
    .isa = "amx",
    .linear = linear_avx512,
    .linear_int8 = linear_int8_amx,
    INT8_BLOCKS_AMX,
    .act_order = act_order_avx512vnni,
    MATRIX_AVX512,
    ROWS_AVX2,
};

#endif
