/* simd_avx512.h - what the AVX-512 kernels share: sums, masks, conversions.
 *
 * Place: backend/cpu; included by *_avx512.c, *_avx512vnni.c and *_amx.c only. Tails are masked loads with zeros behind them and go
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

/* v[r] holds 16 dwords of row r; afterwards v[j] holds dword j of all rows. */
SIMD_INLINE void simd_transpose16(__m512i v[16])
{
    __m512i t[16];

#pragma GCC unroll 8
    for (size_t i = 0; i < 16; i += 2) { /* pairs of rows, dwords interleaved */
        t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < 16; i += 4) { /* four rows; lane l of v[i + d] has dword 4l + d */
        v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (size_t d = 0; d < 4; d++) { /* 4 x 4 of lanes */
        t[d] = _mm512_shuffle_i32x4(v[d], v[4 + d], 0x88);
        t[4 + d] = _mm512_shuffle_i32x4(v[d], v[4 + d], 0xdd);
        t[8 + d] = _mm512_shuffle_i32x4(v[8 + d], v[12 + d], 0x88);
        t[12 + d] = _mm512_shuffle_i32x4(v[8 + d], v[12 + d], 0xdd);
    }
#pragma GCC unroll 4
    for (size_t d = 0; d < 4; d++) {
        v[d] = _mm512_shuffle_i32x4(t[d], t[8 + d], 0x88);
        v[4 + d] = _mm512_shuffle_i32x4(t[4 + d], t[12 + d], 0x88);
        v[8 + d] = _mm512_shuffle_i32x4(t[d], t[8 + d], 0xdd);
        v[12 + d] = _mm512_shuffle_i32x4(t[4 + d], t[12 + d], 0xdd);
    }
}

#endif
