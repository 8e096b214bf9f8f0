/* attention_flash_bf16.cu - attention_flash.cuh for bfloat16 activations. */
#include "backend/cuda/kernels/attention_flash.cuh"

FLASH_KERNEL(attention_flash_bf16_64, DTYPE_BF16, DTYPE_BF16, 64, FLASH_WARPS, FLASH_TOKENS)
FLASH_KERNEL(attention_flash_bf16_128, DTYPE_BF16, DTYPE_BF16, 128, FLASH_WARPS, FLASH_TOKENS)
FLASH_KERNEL(attention_flash_bf16_256, DTYPE_BF16, DTYPE_BF16, 256, FLASH_WARPS, FLASH_TOKENS)
FLASH_KERNEL(attention_flash_bf16_256_large, DTYPE_BF16, DTYPE_BF16, 256, FLASH_LARGE_WARPS,
             FLASH_LARGE_TOKENS)
FLASH_KERNEL(attention_flash_bf16_e4m3_128, DTYPE_BF16, DTYPE_F8_E4M3, 128, FLASH_WARPS,
             FLASH_TOKENS)
FLASH_KERNEL(attention_flash_bf16_e4m3_256, DTYPE_BF16, DTYPE_F8_E4M3, 256, FLASH_WARPS,
             FLASH_TOKENS)
FLASH_KERNEL(attention_flash_bf16_e4m3_256_large, DTYPE_BF16, DTYPE_F8_E4M3, 256, FLASH_LARGE_WARPS,
             FLASH_LARGE_TOKENS)
FLASH_KERNEL(attention_flash_bf16_e5m2_128, DTYPE_BF16, DTYPE_F8_E5M2, 128, FLASH_WARPS,
             FLASH_TOKENS)
FLASH_KERNEL(attention_flash_bf16_e5m2_256, DTYPE_BF16, DTYPE_F8_E5M2, 256, FLASH_WARPS,
             FLASH_TOKENS)
FLASH_KERNEL(attention_flash_bf16_e5m2_256_large, DTYPE_BF16, DTYPE_F8_E5M2, 256, FLASH_LARGE_WARPS,
             FLASH_LARGE_TOKENS)
