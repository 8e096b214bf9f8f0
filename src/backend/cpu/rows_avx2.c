/* rows_avx2.c - the row kernels for AVX2.
 *
 * Place: backend/cpu; tested against ref_rows.c. */
#if defined(__x86_64__)

#include <math.h>

#include "backend/cpu/cpu_x86.h"
#include "backend/cpu/simd_avx2.h"

/* Whole vectors and the tail go through the same code: `lanes` is 8 or the length of the tail. */
SIMD_INLINE __m256 load_lanes(const float *p, size_t lanes)
{
    return lanes == 8 ? _mm256_loadu_ps(p) : simd_load_tail(p, lanes);
}

SIMD_INLINE void store_lanes(float *p, __m256 v, size_t lanes)
{
    if (lanes == 8) {
        _mm256_storeu_ps(p, v);
    } else {
        simd_store_tail(p, v, lanes);
    }
}

SIMD_INLINE size_t lanes_at(size_t i, size_t n)
{
    return n - i < 8 ? n - i : 8;
}

/* Four accumulators in turn, so that the additions do not wait for each other; then one fixed sum. */
float dot_avx2(const float *a, const float *b, size_t n)
{
    __m256 sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                     _mm256_setzero_ps()};
    size_t i = 0;

    for (; i + 32 <= n; i += 32) {
        for (size_t j = 0; j < 4; j++) {
            sum[j] = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 8 * j), _mm256_loadu_ps(b + i + 8 * j),
                                     sum[j]);
        }
    }
    for (size_t j = 0; i < n; i += 8, j++) {
        size_t lanes = lanes_at(i, n);

        sum[j] = _mm256_fmadd_ps(load_lanes(a + i, lanes), load_lanes(b + i, lanes), sum[j]);
    }
    return simd_sum(_mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3])));
}

static float inverse_rms(const float *x, size_t n, float eps)
{
    return 1.0f / sqrtf(dot_avx2(x, x, n) / (float)n + eps);
}

void norm_avx2(float *out, const float *x, const float *weight, size_t n, float eps)
{
    __m256 inverse = _mm256_set1_ps(inverse_rms(x, n, eps));

    for (size_t i = 0; i < n; i += 8) {
        size_t lanes = lanes_at(i, n);
        __m256 v = _mm256_mul_ps(load_lanes(x + i, lanes), inverse);

        store_lanes(out + i, _mm256_mul_ps(v, load_lanes(weight + i, lanes)), lanes);
    }
}

void gated_norm_avx2(float *out, const float *x, const float *weight, const float *z, size_t n,
                     float eps)
{
    __m256 inverse = _mm256_set1_ps(inverse_rms(x, n, eps));

    for (size_t i = 0; i < n; i += 8) {
        size_t lanes = lanes_at(i, n);
        __m256 v = _mm256_mul_ps(load_lanes(x + i, lanes), inverse);

        v = _mm256_mul_ps(v, load_lanes(weight + i, lanes));
        store_lanes(out + i, _mm256_mul_ps(v, simd_silu(load_lanes(z + i, lanes))), lanes);
    }
}

void swiglu_avx2(float *out, const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        size_t lanes = lanes_at(i, n);
        __m256 v = simd_silu(load_lanes(gate + i, lanes));

        store_lanes(out + i, _mm256_mul_ps(v, load_lanes(up + i, lanes)), lanes);
    }
}

void sigmoid_mul_avx2(float *out, const float *x, const float *gate, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        size_t lanes = lanes_at(i, n);
        __m256 v = simd_sigmoid(load_lanes(gate + i, lanes));

        store_lanes(out + i, _mm256_mul_ps(v, load_lanes(x + i, lanes)), lanes);
    }
}

void axpy_avx2(float *y, float a, const float *x, size_t n)
{
    __m256 factor = _mm256_set1_ps(a);

    for (size_t i = 0; i < n; i += 8) {
        size_t lanes = lanes_at(i, n);
        __m256 v = _mm256_fmadd_ps(factor, load_lanes(x + i, lanes), load_lanes(y + i, lanes));

        store_lanes(y + i, v, lanes);
    }
}

void scale_avx2(float *y, float a, size_t n)
{
    __m256 factor = _mm256_set1_ps(a);

    for (size_t i = 0; i < n; i += 8) {
        size_t lanes = lanes_at(i, n);

        store_lanes(y + i, _mm256_mul_ps(factor, load_lanes(y + i, lanes)), lanes);
    }
}

float exp_sum_avx2(float *x, float max, size_t n)
{
    __m256 sum = _mm256_setzero_ps(), shift = _mm256_set1_ps(max);

    for (size_t i = 0; i < n; i += 8) {
        size_t lanes = lanes_at(i, n);
        __m256 v = simd_exp(_mm256_sub_ps(load_lanes(x + i, lanes), shift));

        store_lanes(x + i, v, lanes);
        sum = _mm256_add_ps(sum, _mm256_and_ps(v, _mm256_castsi256_ps(simd_mask(lanes))));
    }
    return simd_sum(sum);
}

float max_avx2(const float *x, size_t n)
{
    __m256 max = _mm256_set1_ps(x[0]), unordered = _mm256_setzero_ps();
    float lanes_max[8], best;

    for (size_t i = 0; i < n; i += 8) {
        /* The last vector overlaps the one before, or repeats x[0]: a maximum does not mind. */
        size_t at = i + 8 <= n ? i : n >= 8 ? n - 8 : 0;
        __m256 v = _mm256_set1_ps(x[0]);

        if (n >= 8) {
            v = _mm256_loadu_ps(x + at);
        } else {
            v = _mm256_blendv_ps(v, simd_load_tail(x, n), _mm256_castsi256_ps(simd_mask(n)));
        }
        unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        max = _mm256_max_ps(max, v);
    }
    if (_mm256_movemask_ps(unordered)) {
        return NAN;
    }
    _mm256_storeu_ps(lanes_max, max);
    best = lanes_max[0];
    for (size_t i = 1; i < 8; i++) {
        best = lanes_max[i] > best ? lanes_max[i] : best;
    }
    return best;
}

bool all_finite_avx2(const float *x, size_t n)
{
    __m256i exponent = _mm256_set1_epi32(0x7f800000), bad = _mm256_setzero_si256();

    for (size_t i = 0; i < n; i += 8) {
        __m256i v = _mm256_castps_si256(load_lanes(x + i, lanes_at(i, n)));

        bad = _mm256_or_si256(bad, _mm256_cmpeq_epi32(_mm256_and_si256(v, exponent), exponent));
    }
    return _mm256_testz_si256(bad, bad) != 0;
}

void round_avx2(enum dtype t, float *v, size_t n)
{
    if (t == DTYPE_F32) {
        return;
    }
    for (size_t i = 0; i < n; i += 8) {
        size_t lanes = lanes_at(i, n);
        __m256 x = load_lanes(v + i, lanes);

        x = t == DTYPE_F16 ? simd_round(DTYPE_F16, x) : simd_round(DTYPE_BF16, x);
        store_lanes(v + i, x, lanes);
    }
}

SIMD_INLINE void load_half(float *dst, enum dtype t, const uint8_t *src, size_t n)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(dst + i, simd_load(t, src + 2 * i));
    }
    if (i < n) {
        simd_store_tail(dst + i, simd_load_part(t, src + 2 * i, n - i), n - i);
    }
}

void load_avx2(float *dst, enum dtype t, const void *src, size_t n)
{
    if (t == DTYPE_F32) {
        memcpy(dst, src, n * sizeof *dst);
    } else if (t == DTYPE_F16) {
        load_half(dst, DTYPE_F16, src, n);
    } else {
        load_half(dst, DTYPE_BF16, src, n);
    }
}

SIMD_INLINE void store_half(enum dtype t, uint8_t *dst, const float *src, size_t n)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        _mm_storeu_si128((__m128i *)(void *)(dst + 2 * i),
                         simd_to_half(t, _mm256_loadu_ps(src + i)));
    }
    if (i < n) {
        uint8_t whole[16];

        _mm_storeu_si128((__m128i *)(void *)whole, simd_to_half(t, simd_load_tail(src + i, n - i)));
        memcpy(dst + 2 * i, whole, 2 * (n - i));
    }
}

void store_avx2(enum dtype t, void *dst, const float *src, size_t n)
{
    if (t == DTYPE_F32) {
        memcpy(dst, src, n * sizeof *src);
    } else if (t == DTYPE_F16) {
        store_half(DTYPE_F16, dst, src, n);
    } else {
        store_half(DTYPE_BF16, dst, src, n);
    }
}

/* e5m2 is the upper byte of a float16. e4m3 in a float16's fields has an exponent bias of 15 instead
 * of 7, so it reads as value / 256, denormals included; only its NaN needs help. */
SIMD_INLINE __m256 fp8_values(enum dtype t, __m128i bytes)
{
    __m128i wide = _mm_cvtepu8_epi16(bytes), size, sign, is_nan;

    if (t == DTYPE_F8_E5M2) {
        return _mm256_cvtph_ps(_mm_slli_epi16(wide, 8));
    }
    size = _mm_and_si128(wide, _mm_set1_epi16(0x7f));
    sign = _mm_slli_epi16(_mm_andnot_si128(_mm_set1_epi16(0x7f), wide), 8);
    is_nan = _mm_cmpeq_epi16(size, _mm_set1_epi16(0x7f));
    is_nan = _mm_and_si128(is_nan, _mm_set1_epi16(0x7e00));
    size = _mm_or_si128(_mm_slli_epi16(size, 7), is_nan);
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(size, sign)), _mm256_set1_ps(256.0f));
}

SIMD_INLINE void load_fp8(float *dst, enum dtype t, const uint8_t *src, size_t n, float scale)
{
    __m256 factor = _mm256_set1_ps(scale);
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)(src + i));

        _mm256_storeu_ps(dst + i, _mm256_mul_ps(factor, fp8_values(t, bytes)));
    }
    if (i < n) {
        uint8_t whole[16] = {0};

        memcpy(whole, src + i, n - i);
        __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)whole);

        simd_store_tail(dst + i, _mm256_mul_ps(factor, fp8_values(t, bytes)), n - i);
    }
}

void load_fp8_avx2(float *dst, enum dtype t, const uint8_t *src, size_t n, float scale)
{
    if (t == DTYPE_F8_E4M3) {
        load_fp8(dst, DTYPE_F8_E4M3, src, n, scale);
    } else {
        load_fp8(dst, DTYPE_F8_E5M2, src, n, scale);
    }
}

void conv_avx2(float *out, const float *const *column, const float *weight, size_t weight_stride,
               size_t taps, size_t n)
{
    for (size_t c = 0; c < n; c += 8) {
        size_t lanes = lanes_at(c, n);
        __m256 sum = _mm256_setzero_ps();

        for (size_t j = 0; j < taps; j++) {
            sum = _mm256_fmadd_ps(load_lanes(weight + j * weight_stride + c, lanes),
                                  load_lanes(column[j] + c, lanes), sum);
        }
        store_lanes(out + c, simd_silu(sum), lanes);
    }
}

#endif
