/* attention_split_bf16.cu - attention_split.cuh for bfloat16 activations. */
#include "backend/cuda/kernels/attention_split.cuh"

SPLIT_KERNEL(attention_split_bf16_64, DTYPE_BF16, DTYPE_BF16, 64)
SPLIT_KERNEL(attention_split_bf16_128, DTYPE_BF16, DTYPE_BF16, 128)
SPLIT_KERNEL(attention_split_bf16_256, DTYPE_BF16, DTYPE_BF16, 256)
SPLIT_KERNEL(attention_split_bf16_e4m3_128, DTYPE_BF16, DTYPE_F8_E4M3, 128)
SPLIT_KERNEL(attention_split_bf16_e4m3_256, DTYPE_BF16, DTYPE_F8_E4M3, 256)
SPLIT_KERNEL(attention_split_bf16_e5m2_128, DTYPE_BF16, DTYPE_F8_E5M2, 128)
SPLIT_KERNEL(attention_split_bf16_e5m2_256, DTYPE_BF16, DTYPE_F8_E5M2, 256)
