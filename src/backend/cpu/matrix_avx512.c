/* matrix_avx512.c - delta rule, small matrix products and attention for AVX-512.
 *
 * Place: backend/cpu; tested against ref_matrix.c. As matrix_avx2.c, in strips of up to eight vectors of
 *        16 columns whose accumulators stay in registers while the long index runs. Except for scores
 *        (a sum across lanes), an element is computed by the same operations as there.
 * Memory: a strip covers a whole row of the usual state (128 columns), so the state is read in rising
 *        order, once from memory and once more from the second level cache. */
#if defined(__x86_64__)

#include "backend/cpu/cpu_x86.h"
#include "backend/cpu/simd_avx512.h"

enum { LANES = 16, STRIP_MAX = 8 };

/* Vector v of a strip; `lanes` < 16 only where the strip is one vector. */
SIMD_INLINE __m512 strip_load(const float *p, int v, size_t lanes)
{
    return simd_load16(DTYPE_F32, (const uint8_t *)(p + LANES * v), lanes);
}

SIMD_INLINE void strip_store(float *p, int v, __m512 x, size_t lanes)
{
    if (lanes == LANES) {
        _mm512_storeu_ps(p + LANES * v, x);
    } else {
        _mm512_mask_storeu_ps(p, simd_mask16(lanes), x);
    }
}

/* --- delta rule --- */

struct delta {
    float *out, *S;
    const float *q, *k, *v;
    float decay, beta;
    size_t dk, dv;
};

/* Row i of the state dk rows further on: as a rule that is the next head's. */
SIMD_INLINE void prefetch_row(const float *row, const struct delta *t, int N)
{
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) {
        _mm_prefetch((const char *)(row + t->dk * t->dv + (size_t)n * LANES), _MM_HINT_T1);
    }
}

/* Columns [j, j + 16 N) of one step, the last vector with `lanes` of them. */
SIMD_INLINE void delta_strip(const struct delta *t, size_t j, int N, size_t lanes)
{
    __m512 d[STRIP_MAX], o[STRIP_MAX];
    __m512 fade = _mm512_set1_ps(t->decay), strength = _mm512_set1_ps(t->beta);
    float *S = t->S + j;

#pragma GCC unroll 8
    for (int n = 0; n < N; n++) {
        d[n] = _mm512_setzero_ps();
        o[n] = _mm512_setzero_ps();
    }
    for (size_t i = 0; i < t->dk; i++) {
        __m512 key = _mm512_set1_ps(t->k[i]);

#pragma GCC unroll 8
        for (int n = 0; n < N; n++) {
            d[n] = _mm512_fmadd_ps(key, strip_load(S + i * t->dv, n, lanes), d[n]);
        }
    }
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) {
        d[n] =
            _mm512_mul_ps(strength, _mm512_fnmadd_ps(fade, d[n], strip_load(t->v + j, n, lanes)));
    }
    for (size_t i = 0; i < t->dk; i++) {
        __m512 key = _mm512_set1_ps(t->k[i]), query = _mm512_set1_ps(t->q[i]);

        prefetch_row(S + i * t->dv, t, N);
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) {
            __m512 s = _mm512_mul_ps(fade, strip_load(S + i * t->dv, n, lanes));

            s = _mm512_fmadd_ps(key, d[n], s);
            strip_store(S + i * t->dv, n, s, lanes);
            o[n] = _mm512_fmadd_ps(query, s, o[n]);
        }
    }
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) {
        strip_store(t->out + j, n, o[n], lanes);
    }
}

void delta_step_avx512(float *out, float *S, const float *q, const float *k, const float *v,
                       float decay, float beta, size_t dk, size_t dv, float *delta)
{
    struct delta t = {out, S, q, k, v, decay, beta, dk, dv};
    size_t j = 0;

    (void)delta;
    for (; j + 128 <= dv; j += 128) {
        delta_strip(&t, j, 8, LANES);
    }
    for (; j + 64 <= dv; j += 64) {
        delta_strip(&t, j, 4, LANES);
    }
    for (; j + LANES <= dv; j += LANES) {
        delta_strip(&t, j, 1, LANES);
    }
    if (j < dv) {
        delta_strip(&t, j, 1, dv - j);
    }
}

/* --- small products --- */

struct product {
    float *C;
    const float *A, *B;
    size_t ldc, lda, ldb, k;
    bool accumulates;
};

/* M rows by N vectors of C. */
SIMD_INLINE void product_tile(const struct product *p, size_t i, size_t j, int M, int N,
                              size_t lanes)
{
    float *C = p->C + i * p->ldc + j;
    const float *A = p->A + i * p->lda, *B = p->B + j;
    __m512 acc[4][STRIP_MAX];

#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) {
            acc[m][n] =
                p->accumulates ? strip_load(C + (size_t)m * p->ldc, n, lanes) : _mm512_setzero_ps();
        }
    }
    for (size_t t = 0; t < p->k; t++) {
        __m512 b[STRIP_MAX];

#pragma GCC unroll 8
        for (int n = 0; n < N; n++) {
            b[n] = strip_load(B + t * p->ldb, n, lanes);
        }
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
            __m512 a = _mm512_set1_ps(A[(size_t)m * p->lda + t]);

#pragma GCC unroll 8
            for (int n = 0; n < N; n++) {
                acc[m][n] = _mm512_fmadd_ps(a, b[n], acc[m][n]);
            }
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) {
            strip_store(C + (size_t)m * p->ldc, n, acc[m][n], lanes);
        }
    }
}

static void product_row(const struct product *p, size_t i, size_t n)
{
    size_t j = 0;

    for (; j + 128 <= n; j += 128) {
        product_tile(p, i, j, 1, 8, LANES);
    }
    for (; j + LANES <= n; j += LANES) {
        product_tile(p, i, j, 1, 1, LANES);
    }
    if (j < n) {
        product_tile(p, i, j, 1, 1, n - j);
    }
}

void matmul_avx512(float *C, size_t ldc, const float *A, size_t lda, const float *B, size_t ldb,
                   size_t m, size_t n, size_t k, bool accumulates)
{
    struct product p = {C, A, B, ldc, lda, ldb, k, accumulates};
    size_t i = 0;

    for (; i + 4 <= m; i += 4) {
        size_t j = 0;

        for (; j + 64 <= n; j += 64) {
            product_tile(&p, i, j, 4, 4, LANES);
        }
        for (; j + LANES <= n; j += LANES) {
            product_tile(&p, i, j, 4, 1, LANES);
        }
        if (j < n) {
            product_tile(&p, i, j, 4, 1, n - j);
        }
    }
    for (; i < m; i++) {
        product_row(&p, i, n);
    }
}

/* --- attention --- */

SIMD_INLINE void score_rows(__m512 acc[4], const float *q, const float *K, size_t hd, int R)
{
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        acc[r] = _mm512_setzero_ps();
    }
    for (size_t i = 0; i < hd; i += LANES) {
        size_t lanes = hd - i < LANES ? hd - i : LANES;
        __m512 query = strip_load(q + i, 0, lanes);

#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            acc[r] = _mm512_fmadd_ps(query, strip_load(K + (size_t)r * hd + i, 0, lanes), acc[r]);
        }
    }
}

void scores_avx512(float *s, const float *q, const float *K, size_t n, size_t hd, float scale)
{
    __m512 acc[4];
    size_t j = 0;

    for (; j + 4 <= n; j += 4) {
        score_rows(acc, q, K + j * hd, hd, 4);
        _mm_storeu_ps(s + j,
                      _mm_mul_ps(simd_sum4_16(acc[0], acc[1], acc[2], acc[3]), _mm_set1_ps(scale)));
    }
    for (; j < n; j++) {
        score_rows(acc, q, K + j * hd, hd, 1);
        s[j] = simd_sum16(acc[0]) * scale;
    }
}

SIMD_INLINE void weigh_strip(float *acc, float keep, const float *p, const float *V, size_t n,
                             size_t hd, int N, size_t lanes)
{
    __m512 sum[STRIP_MAX], old = _mm512_set1_ps(keep);

#pragma GCC unroll 8
    for (int v = 0; v < N; v++) {
        sum[v] = _mm512_mul_ps(old, strip_load(acc, v, lanes));
    }
    for (size_t j = 0; j < n; j++) {
        __m512 share = _mm512_set1_ps(p[j]);

#pragma GCC unroll 8
        for (int v = 0; v < N; v++) {
            sum[v] = _mm512_fmadd_ps(share, strip_load(V + j * hd, v, lanes), sum[v]);
        }
    }
#pragma GCC unroll 8
    for (int v = 0; v < N; v++) {
        strip_store(acc, v, sum[v], lanes);
    }
}

void weigh_avx512(float *acc, float keep, const float *p, const float *V, size_t n, size_t hd)
{
    size_t i = 0;

    for (; i + 128 <= hd; i += 128) {
        weigh_strip(acc + i, keep, p, V + i, n, hd, 8, LANES);
    }
    for (; i + LANES <= hd; i += LANES) {
        weigh_strip(acc + i, keep, p, V + i, n, hd, 1, LANES);
    }
    if (i < hd) {
        weigh_strip(acc + i, keep, p, V + i, n, hd, 1, hd - i);
    }
}

#endif
