/* linear_int8_avxvnni.c - products with int8 activations by the 256-bit dot product of AVX-VNNI.
 *
 * Place: backend/cpu; tested bit for bit against linear_int8_ref.c.
 * Idea:  one instruction multiplies 32 unsigned bytes (weights: nibbles or bytes as stored) with 32 signed
 *        ones and sums fours into int32, so both kinds need no widening and nothing saturates. */
#if defined(__x86_64__)

#include "backend/cpu/simd_avx2.h"

#include "backend/weight.h"

enum { VALUE_BYTES_INT8 = 1 };

SIMD_INLINE __m256i dot_next(enum weight_kind kind, __m256i sum, __m256i w, __m256i x)
{
    (void)kind;
    return _mm256_dpbusd_avx_epi32(sum, w, x);
}

SIMD_INLINE __m256i dot_first(enum weight_kind kind, __m256i w, __m256i x)
{
    return dot_next(kind, _mm256_setzero_si256(), w, x);
}

SIMD_INLINE __m256i dot_fold(enum weight_kind kind, __m256i sum)
{
    (void)kind;
    return sum;
}

SIMD_INLINE __m256i load_int8(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

#include "backend/cpu/linear_int8_panel.h"

void linear_int8_avxvnni(const struct linear_job *job, const struct weight *w, size_t n0, size_t n1)
{
    linear_int8_panels(job, w, n0, n1);
}

void act_order_avxvnni(struct act_form *f, enum weight_kind kind)
{
    act_order_ymm(f, kind);
}

#endif
