/* attention_pairs.cuh - 16-bit pairs as operands of the matrix instructions, for both activation types.
 *
 * Place: backend/cuda/kernels; shared by attention_split.cuh and attention_flash.cuh. A pair is two
 *        values in a register, the first in the low half. */
#ifndef BACKEND_CUDA_ATTENTION_PAIRS_CUH
#define BACKEND_CUDA_ATTENTION_PAIRS_CUH

#include "backend/cuda/kernels/mma.cuh"

/* T: DTYPE_BF16 or DTYPE_F16. */
template <enum dtype T> DEVICE void mma_pairs(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    if (T == DTYPE_BF16) {
        mma_bf16(d, a, b);
    } else {
        mma_f16(d, a, b);
    }
}

template <enum dtype T> DEVICE uint32_t pair_from_f32(float low, float high)
{
    return T == DTYPE_BF16 ? bf16_pair_from_f32(low, high) : f16_pair_from_f32(low, high);
}

template <enum dtype T> DEVICE float pair_low(uint32_t pair)
{
    return T == DTYPE_BF16 ? f32_from_bits(pair << 16) : f16_to_f32((uint16_t)pair);
}

template <enum dtype T> DEVICE float pair_high(uint32_t pair)
{
    return T == DTYPE_BF16 ? f32_from_bits(pair & 0xffff0000u) : f16_to_f32((uint16_t)(pair >> 16));
}

/* Two fp8 values (the low 16 bits of two) of type F8; exact, since both 16-bit types hold every one. */
template <enum dtype T, enum dtype F8> DEVICE uint32_t pair_from_f8(uint32_t two)
{
    uint32_t h =
        F8 == DTYPE_F8_E4M3 ? f8e4m3_pair_to_f16(two & 0xffff) : f8e5m2_pair_to_f16(two & 0xffff);

    return T == DTYPE_F16 ? h : bf16_pair_from_f32(pair_low<DTYPE_F16>(h), pair_high<DTYPE_F16>(h));
}

/* What probabilities are rounded to before they meet the values. With fp8 they carry the values' scales,
 * for which float16 has not the range. */
template <enum dtype ACT, bool IS_F8> struct weigh_type {
    static constexpr enum dtype T = IS_F8 ? DTYPE_BF16 : ACT;
};

#endif
