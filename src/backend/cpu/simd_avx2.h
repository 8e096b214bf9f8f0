/* simd_avx2.h - what the AVX2 kernels share: sums, tails, conversions, exp.
 *
 * Place: backend/cpu; included by *_avx2.c only (compiled for AVX2 + FMA + F16C).
 * Tails: the last n < 8 elements of a row are read with zeros behind them and go through the same
 *        vector code, so an element's value does not depend on where a row was cut. */
#ifndef BACKEND_CPU_SIMD_AVX2_H
#define BACKEND_CPU_SIMD_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/tensor.h"

#define SIMD_INLINE static inline __attribute__((always_inline))

/* ((0+1)+(2+3)) + ((4+5)+(6+7)): one order for one sum and for four at once. */
SIMD_INLINE __m128 simd_sum4(__m256 a, __m256 b, __m256 c, __m256 d)
{
    __m256 t = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));

    return _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
}

SIMD_INLINE float simd_sum(__m256 a)
{
    return _mm_cvtss_f32(simd_sum4(a, a, a, a));
}

/* All ones in the first n lanes, n <= 8. */
SIMD_INLINE __m256i simd_mask(size_t n)
{
    static const int32_t lanes[16] = {-1, -1, -1, -1, -1, -1, -1, -1};

    return _mm256_loadu_si256((const __m256i *)(const void *)(lanes + 8 - n));
}

SIMD_INLINE __m256 simd_load_tail(const float *p, size_t n)
{
    return _mm256_maskload_ps(p, simd_mask(n));
}

SIMD_INLINE void simd_store_tail(float *p, __m256 v, size_t n)
{
    _mm256_maskstore_ps(p, simd_mask(n), v);
}

/* Eight elements at p, of any alignment. */
SIMD_INLINE __m256 simd_load(enum dtype t, const uint8_t *p)
{
    __m128i half;

    if (t == DTYPE_F32) {
        return _mm256_loadu_ps((const float *)(const void *)p);
    }
    half = _mm_loadu_si128((const __m128i *)(const void *)p);
    if (t == DTYPE_F16) {
        return _mm256_cvtph_ps(half);
    }
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

SIMD_INLINE __m256 simd_load_part(enum dtype t, const uint8_t *p, size_t n)
{
    uint8_t padded[32] = {0};

    memcpy(padded, p, n * (t == DTYPE_F32 ? 4 : 2));
    return simd_load(t, padded);
}

/* The bits of v as bfloat16 in the low half of each lane: nearest even, NaN stays a quiet NaN. */
SIMD_INLINE __m256i simd_bf16_bits(__m256 v)
{
    __m256i u = _mm256_castps_si256(v), high = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, bias), 16);
    __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));

    return _mm256_blendv_epi8(rounded, quiet, is_nan);
}

SIMD_INLINE __m128i simd_to_half(enum dtype t, __m256 v)
{
    __m256i bits;

    if (t == DTYPE_F16) {
        return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    bits = simd_bf16_bits(v);
    bits = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0xd8);
    return _mm256_castsi256_si128(bits);
}

SIMD_INLINE __m256 simd_round(enum dtype t, __m256 v)
{
    if (t == DTYPE_F16) {
        return _mm256_cvtph_ps(simd_to_half(DTYPE_F16, v));
    }
    if (t == DTYPE_BF16) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(simd_bf16_bits(v), 16));
    }
    return v;
}

/* exp(x) to about one unit in the last place, over the whole range: denormal results are kept, NaN
 * passes through. x = n ln 2 + r, |r| <= ln 2 / 2; the Taylor series to r^7 leaves 5e-9. 2^n is
 * applied in two halves, because n reaches from -150 to 128. */
SIMD_INLINE __m256 simd_exp(__m256 x)
{
    __m256 n, r, p;
    __m256i i, half;

    /* With the constant first, min and max return x when it is a NaN. */
    x = _mm256_max_ps(_mm256_set1_ps(-104.0f), x);
    x = _mm256_min_ps(_mm256_set1_ps(89.0f), x);
    n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    p = _mm256_set1_ps(1.0f / 5040);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 720));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
    p = _mm256_add_ps(p, _mm256_set1_ps(1.0f));
    i = _mm256_cvtps_epi32(n);
    half = _mm256_srai_epi32(i, 1);
    i = _mm256_sub_epi32(i, half);
    half = _mm256_slli_epi32(_mm256_add_epi32(half, _mm256_set1_epi32(127)), 23);
    i = _mm256_slli_epi32(_mm256_add_epi32(i, _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(half)), _mm256_castsi256_ps(i));
}

SIMD_INLINE __m256 simd_sigmoid(__m256 x)
{
    __m256 one = _mm256_set1_ps(1.0f);

    return _mm256_div_ps(one, _mm256_add_ps(one, simd_exp(_mm256_sub_ps(_mm256_setzero_ps(), x))));
}

SIMD_INLINE __m256 simd_silu(__m256 x)
{
    return _mm256_mul_ps(x, simd_sigmoid(x));
}

/* While R neighbouring rows of a matrix are read side by side, byte `at` of each at the moment: fetches the
 * line that each needs later, in the next R rows when this row ends before. Call once per line. */
SIMD_INLINE void simd_prefetch_rows(const uint8_t *const *row, int R, size_t at, size_t row_bytes)
{
    enum { AHEAD = 2048 };
    size_t later = at + AHEAD;

    if (later >= row_bytes) {
        later += (size_t)(R - 1) * row_bytes;
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        _mm_prefetch((const char *)(row[r] + later), _MM_HINT_T0);
    }
}

#endif
