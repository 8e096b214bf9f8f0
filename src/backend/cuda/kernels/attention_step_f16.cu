/* attention_step_f16.cu - attention_step.cuh for float16 activations. */
#include "backend/cuda/kernels/attention_step.cuh"

STEP_KERNEL(attention_step_f16_64, DTYPE_F16, DTYPE_F16, 64)
STEP_KERNEL(attention_step_f16_128, DTYPE_F16, DTYPE_F16, 128)
STEP_KERNEL(attention_step_f16_256, DTYPE_F16, DTYPE_F16, 256)
STEP_KERNEL(attention_step_f16_e4m3_128, DTYPE_F16, DTYPE_F8_E4M3, 128)
STEP_KERNEL(attention_step_f16_e4m3_256, DTYPE_F16, DTYPE_F8_E4M3, 256)
STEP_KERNEL(attention_step_f16_e5m2_128, DTYPE_F16, DTYPE_F8_E5M2, 128)
STEP_KERNEL(attention_step_f16_e5m2_256, DTYPE_F16, DTYPE_F8_E5M2, 256)
