/* simd_avx512.h - what the AVX-512 kernels share: sums, masks, conversions.
 *
 * Place: backend/cpu; included by *_avx512.c only. Tails are masked loads with zeros behind them and go
 *        through the same code as whole vectors. */
#ifndef BACKEND_CPU_SIMD_AVX512_H
#define BACKEND_CPU_SIMD_AVX512_H

#include "backend/cpu/simd_avx2.h"

/* The first n lanes, n <= 16. */
SIMD_INLINE __mmask16 simd_mask16(size_t n)
{
    return (__mmask16)((1u << n) - 1);
}

/* Lane l and lane l + 8, then as simd_sum: one order for one sum and for four at once. */
SIMD_INLINE __m256 simd_fold16(__m512 a)
{
    return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}

SIMD_INLINE __m128 simd_sum4_16(__m512 a, __m512 b, __m512 c, __m512 d)
{
    return simd_sum4(simd_fold16(a), simd_fold16(b), simd_fold16(c), simd_fold16(d));
}

SIMD_INLINE float simd_sum16(__m512 a)
{
    return simd_sum(simd_fold16(a));
}

/* n <= 16 elements at p, of any alignment; zeros behind them. */
SIMD_INLINE __m512 simd_load16(enum dtype t, const uint8_t *p, size_t n)
{
    __mmask16 mask = simd_mask16(n);
    __m256i half;

    if (t == DTYPE_F32) {
        return n == 16 ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(mask, p);
    }
    half = n == 16 ? _mm256_loadu_si256((const __m256i *)(const void *)p)
                   : _mm256_maskz_loadu_epi16(mask, p);
    if (t == DTYPE_F16) {
        return _mm512_cvtph_ps(half);
    }
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

#endif
