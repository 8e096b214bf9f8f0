/* attention_step_bf16.cu - attention_step.cuh for bfloat16 activations. */
#include "backend/cuda/kernels/attention_step.cuh"

STEP_KERNEL(attention_step_bf16_64, DTYPE_BF16, DTYPE_BF16, 64)
STEP_KERNEL(attention_step_bf16_128, DTYPE_BF16, DTYPE_BF16, 128)
STEP_KERNEL(attention_step_bf16_256, DTYPE_BF16, DTYPE_BF16, 256)
STEP_KERNEL(attention_step_bf16_e4m3_128, DTYPE_BF16, DTYPE_F8_E4M3, 128)
STEP_KERNEL(attention_step_bf16_e4m3_256, DTYPE_BF16, DTYPE_F8_E4M3, 256)
STEP_KERNEL(attention_step_bf16_e5m2_128, DTYPE_BF16, DTYPE_F8_E5M2, 128)
STEP_KERNEL(attention_step_bf16_e5m2_256, DTYPE_BF16, DTYPE_F8_E5M2, 256)
