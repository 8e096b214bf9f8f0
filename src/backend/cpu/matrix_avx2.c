/* matrix_avx2.c - delta rule, small matrix products and attention for AVX2.
 *
 * Place: backend/cpu; tested against ref_matrix.c.
 * Idea:  columns are taken in strips of some vectors whose accumulators stay in registers while the
 *        long index runs; a narrower strip computes the same per element. */
#if defined(__x86_64__)

#include "backend/cpu/cpu_x86.h"
#include "backend/cpu/simd_avx2.h"

enum { STRIP_MAX = 8 };

SIMD_INLINE __m256 strip_load(const float *p, int v, size_t tail)
{
    return tail ? simd_load_tail(p, tail) : _mm256_loadu_ps(p + 8 * v);
}

SIMD_INLINE void strip_store(float *p, int v, __m256 x, size_t tail)
{
    if (tail) {
        simd_store_tail(p, x, tail);
    } else {
        _mm256_storeu_ps(p + 8 * v, x);
    }
}

/* Columns [j, j + 8 N) of one delta step, or `tail` columns when that is not 0 (then N is 1). A strip
 * of S fits the first level cache, so its second pass is cheap. */
SIMD_INLINE void delta_strip(float *out, float *S, const float *q, const float *k, const float *v,
                             float decay, float beta, size_t dk, size_t dv, int N, size_t tail)
{
    __m256 d[STRIP_MAX], o[STRIP_MAX];
    __m256 fade = _mm256_set1_ps(decay), strength = _mm256_set1_ps(beta);

#pragma GCC unroll 4
    for (int n = 0; n < N; n++) {
        d[n] = _mm256_setzero_ps();
        o[n] = _mm256_setzero_ps();
    }
    for (size_t i = 0; i < dk; i++) {
        __m256 key = _mm256_set1_ps(k[i]);

#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            d[n] = _mm256_fmadd_ps(key, strip_load(S + i * dv, n, tail), d[n]);
        }
    }
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) {
        d[n] = _mm256_mul_ps(strength, _mm256_fnmadd_ps(fade, d[n], strip_load(v, n, tail)));
    }
    for (size_t i = 0; i < dk; i++) {
        __m256 key = _mm256_set1_ps(k[i]), query = _mm256_set1_ps(q[i]);

#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            __m256 s = _mm256_mul_ps(fade, strip_load(S + i * dv, n, tail));

            s = _mm256_fmadd_ps(key, d[n], s);
            strip_store(S + i * dv, n, s, tail);
            o[n] = _mm256_fmadd_ps(query, s, o[n]);
        }
    }
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) {
        strip_store(out, n, o[n], tail);
    }
}

void delta_step_avx2(float *out, float *S, const float *q, const float *k, const float *v,
                     float decay, float beta, size_t dk, size_t dv, float *delta)
{
    size_t j = 0;

    (void)delta;
    for (; j + 32 <= dv; j += 32) {
        delta_strip(out + j, S + j, q, k, v + j, decay, beta, dk, dv, 4, 0);
    }
    for (; j + 8 <= dv; j += 8) {
        delta_strip(out + j, S + j, q, k, v + j, decay, beta, dk, dv, 1, 0);
    }
    if (j < dv) {
        delta_strip(out + j, S + j, q, k, v + j, decay, beta, dk, dv, 1, dv - j);
    }
}

struct product {
    float *C;
    const float *A, *B;
    size_t ldc, lda, ldb, k;
    bool accumulates;
};

/* M rows by N vectors of C. */
SIMD_INLINE void product_tile(const struct product *p, size_t i, size_t j, int M, int N,
                              size_t tail)
{
    float *C = p->C + i * p->ldc + j;
    const float *A = p->A + i * p->lda, *B = p->B + j;
    __m256 acc[4][STRIP_MAX];

#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) {
            acc[m][n] =
                p->accumulates ? strip_load(C + (size_t)m * p->ldc, n, tail) : _mm256_setzero_ps();
        }
    }
    for (size_t t = 0; t < p->k; t++) {
        __m256 b[STRIP_MAX];

#pragma GCC unroll 8
        for (int n = 0; n < N; n++) {
            b[n] = strip_load(B + t * p->ldb, n, tail);
        }
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
            __m256 a = _mm256_set1_ps(A[(size_t)m * p->lda + t]);

#pragma GCC unroll 8
            for (int n = 0; n < N; n++) {
                acc[m][n] = _mm256_fmadd_ps(a, b[n], acc[m][n]);
            }
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) {
            strip_store(C + (size_t)m * p->ldc, n, acc[m][n], tail);
        }
    }
}

static void product_row(const struct product *p, size_t i, size_t n)
{
    size_t j = 0;

    for (; j + 64 <= n; j += 64) {
        product_tile(p, i, j, 1, 8, 0);
    }
    for (; j + 8 <= n; j += 8) {
        product_tile(p, i, j, 1, 1, 0);
    }
    if (j < n) {
        product_tile(p, i, j, 1, 1, n - j);
    }
}

void matmul_avx2(float *C, size_t ldc, const float *A, size_t lda, const float *B, size_t ldb,
                 size_t m, size_t n, size_t k, bool accumulates)
{
    struct product p = {C, A, B, ldc, lda, ldb, k, accumulates};
    size_t i = 0;

    for (; i + 4 <= m; i += 4) {
        size_t j = 0;

        for (; j + 16 <= n; j += 16) {
            product_tile(&p, i, j, 4, 2, 0);
        }
        for (; j + 8 <= n; j += 8) {
            product_tile(&p, i, j, 4, 1, 0);
        }
        if (j < n) {
            product_tile(&p, i, j, 4, 1, n - j);
        }
    }
    for (; i < m; i++) {
        product_row(&p, i, n);
    }
}

SIMD_INLINE void score_rows(__m256 acc[4], const float *q, const float *K, size_t hd, int R)
{
    size_t i = 0;

#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        acc[r] = _mm256_setzero_ps();
    }
    for (; i + 8 <= hd; i += 8) {
        __m256 query = _mm256_loadu_ps(q + i);

#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            acc[r] = _mm256_fmadd_ps(query, _mm256_loadu_ps(K + (size_t)r * hd + i), acc[r]);
        }
    }
    if (i < hd) {
        __m256 query = simd_load_tail(q + i, hd - i);

#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            acc[r] = _mm256_fmadd_ps(query, simd_load_tail(K + (size_t)r * hd + i, hd - i), acc[r]);
        }
    }
}

void scores_avx2(float *s, const float *q, const float *K, size_t n, size_t hd, float scale)
{
    __m256 acc[4];
    size_t j = 0;

    for (; j + 4 <= n; j += 4) {
        score_rows(acc, q, K + j * hd, hd, 4);
        _mm_storeu_ps(s + j,
                      _mm_mul_ps(simd_sum4(acc[0], acc[1], acc[2], acc[3]), _mm_set1_ps(scale)));
    }
    for (; j < n; j++) {
        score_rows(acc, q, K + j * hd, hd, 1);
        s[j] = simd_sum(acc[0]) * scale;
    }
}

SIMD_INLINE void weigh_strip(float *acc, float keep, const float *p, const float *V, size_t n,
                             size_t hd, int N, size_t tail)
{
    __m256 sum[STRIP_MAX], old = _mm256_set1_ps(keep);

#pragma GCC unroll 8
    for (int v = 0; v < N; v++) {
        sum[v] = _mm256_mul_ps(old, strip_load(acc, v, tail));
    }
    for (size_t j = 0; j < n; j++) {
        __m256 share = _mm256_set1_ps(p[j]);

#pragma GCC unroll 8
        for (int v = 0; v < N; v++) {
            sum[v] = _mm256_fmadd_ps(share, strip_load(V + j * hd, v, tail), sum[v]);
        }
    }
#pragma GCC unroll 8
    for (int v = 0; v < N; v++) {
        strip_store(acc, v, sum[v], tail);
    }
}

void weigh_avx2(float *acc, float keep, const float *p, const float *V, size_t n, size_t hd)
{
    size_t i = 0;

    for (; i + 64 <= hd; i += 64) {
        weigh_strip(acc + i, keep, p, V + i, n, hd, 8, 0);
    }
    for (; i + 8 <= hd; i += 8) {
        weigh_strip(acc + i, keep, p, V + i, n, hd, 1, 0);
    }
    if (i < hd) {
        weigh_strip(acc + i, keep, p, V + i, n, hd, 1, hd - i);
    }
}

#endif
