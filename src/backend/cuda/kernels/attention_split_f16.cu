/* attention_split_f16.cu - attention_split.cuh for float16 activations. */
#include "backend/cuda/kernels/attention_split.cuh"

SPLIT_KERNEL(attention_split_f16_64, DTYPE_F16, DTYPE_F16, 64)
SPLIT_KERNEL(attention_split_f16_128, DTYPE_F16, DTYPE_F16, 128)
SPLIT_KERNEL(attention_split_f16_256, DTYPE_F16, DTYPE_F16, 256)
SPLIT_KERNEL(attention_split_f16_e4m3_128, DTYPE_F16, DTYPE_F8_E4M3, 128)
SPLIT_KERNEL(attention_split_f16_e4m3_256, DTYPE_F16, DTYPE_F8_E4M3, 256)
SPLIT_KERNEL(attention_split_f16_e5m2_128, DTYPE_F16, DTYPE_F8_E5M2, 128)
SPLIT_KERNEL(attention_split_f16_e5m2_256, DTYPE_F16, DTYPE_F8_E5M2, 256)
