/* linear_int8_avx2.c - products with int8 activations for AVX2, and how activations become int8.
 *
 * Place: backend/cpu; tested bit for bit against linear_int8_ref.c.
 * int4:  unsigned nibbles times signed bytes, pairs summed to int16. A pair is at most 2 * 15 * 127 =
 *        3,810, and a group of 256 adds eight of them: 30,480, so nothing saturates.
 * int8:  a pair of 255 * 127 does not fit int16, so both sides are int16 (the activations are stored so)
 *        and pairs are summed to int32. It costs the same as a detour over signs, and is exact. */
#if defined(__x86_64__)

#include "backend/cpu/simd_avx2.h"

#include "backend/weight.h"

enum { VALUE_BYTES_INT8 = 2 };

SIMD_INLINE __m256i dot_first(enum weight_kind kind, __m256i w, __m256i x)
{
    return kind == WEIGHT_INT4 ? _mm256_maddubs_epi16(w, x) : _mm256_madd_epi16(w, x);
}

/* The empty instruction keeps the compiler from adding up in another order: it takes integer additions
 * as free to regroup, and a tree of them needs more registers than there are. */
SIMD_INLINE __m256i dot_next(enum weight_kind kind, __m256i sum, __m256i w, __m256i x)
{
    sum = kind == WEIGHT_INT4 ? _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, x))
                              : _mm256_add_epi32(sum, _mm256_madd_epi16(w, x));
    __asm__("" : "+x"(sum));
    return sum;
}

SIMD_INLINE __m256i dot_fold(enum weight_kind kind, __m256i sum)
{
    return kind == WEIGHT_INT4 ? _mm256_madd_epi16(sum, _mm256_set1_epi16(1)) : sum;
}

SIMD_INLINE __m256i load_int8(const uint8_t *p)
{
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
}

#include "backend/cpu/linear_int8_panel.h"

void linear_int8_avx2(const struct linear_job *job, const struct weight *w, size_t n0, size_t n1)
{
    linear_int8_panels(job, w, n0, n1);
}

void act_order_avx2(struct act_form *f, enum weight_kind kind)
{
    act_order_ymm(f, kind);
}

/* --- quantisation --- */

static const float QUANTISE_MIN = 1e-36f; /* as in linear_int8_ref.c */

/* Largest |x| of a group. Comparing bits as integers orders absolute values and puts infinities and
 * NaNs on top. */
static uint32_t largest_bits(const float *x, size_t n)
{
    __m256i most = _mm256_setzero_si256(), magnitude = _mm256_set1_epi32(0x7fffffff);
    __m128i half;

    for (size_t k = 0; k < n; k += 8) {
        __m256i bits = load_bytes((const uint8_t *)(x + k));

        most = _mm256_max_epu32(most, _mm256_and_si256(bits, magnitude));
    }
    half = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(half);
}

/* 32 values as int16 in order; their sum is added to *sum. */
SIMD_INLINE void quantise_block(__m256i out[2], const float *x, __m256 inverse, __m256i *sum)
{
    __m256i q[4];

#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
        q[v] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * v), inverse));
        *sum = _mm256_add_epi32(*sum, q[v]);
    }
    out[0] = _mm256_permute4x64_epi64(_mm256_packs_epi32(q[0], q[1]), 0xd8);
    out[1] = _mm256_permute4x64_epi64(_mm256_packs_epi32(q[2], q[3]), 0xd8);
}

SIMD_INLINE void store_half(uint8_t *p, __m128i v)
{
    _mm_storeu_si128((__m128i *)(void *)p, v);
}

static int32_t quantise_group(uint8_t *row, const struct act_form *f, size_t k0, const float *x,
                              float inverse)
{
    __m256 factor = _mm256_set1_ps(inverse);
    __m256i sum = _mm256_setzero_si256(), wide[2], bytes;

    for (size_t k = k0; k < k0 + f->group; k += WEIGHT_BLOCK) {
        quantise_block(wide, x + k, factor, &sum);
        if (f->value_bytes == 2) {
            _mm256_storeu_si256((__m256i *)(void *)(row + 2 * k), wide[0]);
            _mm256_storeu_si256((__m256i *)(void *)(row + 2 * k + VECTOR_BYTES), wide[1]);
        } else {
            size_t in_unit = k % f->unit;
            uint8_t *low = row + k - in_unit + in_unit / 2;

            bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(wide[0], wide[1]), 0xd8);
            store_half(low, _mm256_castsi256_si128(bytes));
            store_half(low + f->unit / 2, _mm256_extracti128_si256(bytes, 1));
        }
    }
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));

    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

void quantise_avx2(uint8_t *row, const struct act_form *f, const float *x)
{
    float *scales = (float *)(void *)(row + f->scale_at);
    int32_t *sums = (int32_t *)(void *)(row + f->sum_at);

    for (size_t g = 0; g < f->n_groups; g++) {
        uint32_t bits = largest_bits(x + g * f->group, f->group);
        float most = f32_from_bits(bits);

        if (bits >= 0x7f800000u || most < QUANTISE_MIN) {
            memset(row + g * f->group * f->value_bytes, 0, f->group * f->value_bytes);
            scales[g] = bits >= 0x7f800000u ? __builtin_nanf("") : 0;
            sums[g] = 0;
        } else {
            scales[g] = most / 127.0f;
            sums[g] = quantise_group(row, f, g * f->group, x, 127.0f / most);
        }
    }
}

#endif
