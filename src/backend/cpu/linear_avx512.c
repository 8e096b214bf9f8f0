/* linear_avx512.c - matrix products for AVX-512: float32, bfloat16, float16, int4 and int8 weights.
 *
 * Place:  backend/cpu; tested against ref_matrix.c. The plan is that of linear_avx2.c with 16 lanes and
 *         32 registers.
 * Order:  every output is one accumulator of 16 lanes, filled by fused multiply-adds over k ascending
 *         and summed in one order (simd_sum4_16), whatever tile it is in.
 * Tiles:  4 weight rows by up to 6 inputs, or 8 rows by 1 input. Up to 2 inputs, weights are decoded in
 *         registers; for more, 4 rows are decoded to float32 once and serve all inputs.
 * int4:   a group has 16 possible weights. They are computed once, kept in a register, and the
 *         nibbles are looked up in it, which needs neither masks nor conversions. */
#if defined(__x86_64__)

#include "backend/cpu/cpu_x86.h"
#include "backend/cpu/simd_avx512.h"
#include "base/half.h"

enum { LANES = 16, ROWS_MAX = 8, INPUTS_MAX = 6, INPUTS_IN_REGISTERS = 2, CACHE_LINE = 64 };

/* Where a tile of R weight rows by X inputs reads and writes. */
struct tile {
    const uint8_t *w[ROWS_MAX];
    const float *x[INPUTS_MAX];
    float *out[INPUTS_MAX]; /* R neighbours each */
    size_t n_in;
    bool accumulates;
};

SIMD_INLINE void clear(__m512 acc[ROWS_MAX][INPUTS_MAX], int R, int X)
{
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 6
        for (int x = 0; x < X; x++) {
            acc[r][x] = _mm512_setzero_ps();
        }
    }
}

SIMD_INLINE void put_sums(const struct tile *t, __m512 acc[ROWS_MAX][INPUTS_MAX], int R, int X)
{
#pragma GCC unroll 6
    for (int x = 0; x < X; x++) {
        if (R == 1) {
            float sum = simd_sum16(acc[0][x]);

            *t->out[x] = t->accumulates ? *t->out[x] + sum : sum;
            continue;
        }
#pragma GCC unroll 2
        for (int r = 0; r < R; r += 4) {
            float *out = t->out[x] + r;
            __m128 sum = simd_sum4_16(acc[r][x], acc[r + 1][x], acc[r + 2][x], acc[r + 3][x]);

            _mm_storeu_ps(out, t->accumulates ? _mm_add_ps(_mm_loadu_ps(out), sum) : sum);
        }
    }
}

/* --- dense --- */

/* n inputs from k on. */
SIMD_INLINE void dense_step(const struct tile *t, __m512 acc[ROWS_MAX][INPUTS_MAX], size_t k,
                            size_t n, enum dtype type, int R, int X)
{
    size_t each = type == DTYPE_F32 ? 4 : 2;
    __m512 in[INPUTS_MAX];

    if (R == ROWS_MAX && k * each % CACHE_LINE == 0) { /* one input streams the weights */
        simd_prefetch_rows(t->w, ROWS_MAX, k * each, t->n_in * each);
    }
#pragma GCC unroll 6
    for (int x = 0; x < X; x++) {
        in[x] = simd_load16(DTYPE_F32, (const uint8_t *)(t->x[x] + k), n);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        __m512 w = simd_load16(type, t->w[r] + k * each, n);

#pragma GCC unroll 6
        for (int x = 0; x < X; x++) {
            acc[r][x] = _mm512_fmadd_ps(w, in[x], acc[r][x]);
        }
    }
}

SIMD_INLINE void dense_tile(const struct tile *t, enum dtype type, int R, int X)
{
    __m512 acc[ROWS_MAX][INPUTS_MAX];
    size_t k = 0;

    clear(acc, R, X);
    for (; k + LANES <= t->n_in; k += LANES) {
        dense_step(t, acc, k, LANES, type, R, X);
    }
    if (k < t->n_in) {
        dense_step(t, acc, k, t->n_in - k, type, R, X);
    }
    put_sums(t, acc, R, X);
}

/* --- quantised --- */

struct group_scale {
    float scale, shift; /* w = q * scale + shift */
};

static inline struct group_scale scale_of(const struct weight *w, size_t row, size_t group,
                                          size_t n_groups)
{
    size_t at = row * n_groups + group;
    float zero = w->zeros ? (float)w->zeros[at] : w->kind == WEIGHT_INT4 ? 8.0f : 128.0f;
    struct group_scale s;

    if (w->dtype == DTYPE_F32) {
        memcpy(&s.scale, (const uint8_t *)w->scales + 4 * at, sizeof s.scale);
    } else {
        uint16_t half;

        memcpy(&half, (const uint8_t *)w->scales + 2 * at, sizeof half);
        s.scale = w->dtype == DTYPE_F16 ? _cvtsh_ss(half) : bf16_to_f32(half);
    }
    s.shift = -zero * s.scale;
    return s;
}

/* A group's decoder: int4: its 16 weights; int8: scale and shift. */
struct decoder {
    __m512 a, b;
};

SIMD_INLINE struct decoder decoder_of(struct group_scale s, enum weight_kind kind)
{
    struct decoder d = {_mm512_set1_ps(s.scale), _mm512_set1_ps(s.shift)};

    if (kind == WEIGHT_INT4) {
        __m512 q = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);

        d.a = _mm512_fmadd_ps(q, d.a, d.b);
    }
    return d;
}

/* The 32 weights of a block. */
SIMD_INLINE void decode_block(__m512 out[2], const uint8_t *p, struct decoder d,
                              enum weight_kind kind)
{
    __m512i low = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));

    if (kind == WEIGHT_INT4) { /* a look-up takes the low four bits of each lane */
        out[0] = _mm512_permutexvar_ps(low, d.a);
        out[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(low, 4), d.a);
    } else {
        __m512i high =
            _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + 16)));

        out[0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(low), d.a, d.b);
        out[1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), d.a, d.b);
    }
}

/* Rows [row, row + R) by X inputs, decoded in registers. */
SIMD_INLINE void quant_tile(const struct tile *t, const struct weight *w, size_t row,
                            size_t n_groups, enum weight_kind kind, int R, int X)
{
    size_t block_bytes = kind == WEIGHT_INT4 ? WEIGHT_BLOCK / 2 : WEIGHT_BLOCK, k = 0;
    __m512 acc[ROWS_MAX][INPUTS_MAX];

    clear(acc, R, X);
    for (size_t g = 0; g < n_groups; g++) {
        size_t end = k + w->group < t->n_in ? k + w->group : t->n_in;
        struct decoder d[4];

#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            d[r] = decoder_of(scale_of(w, row + (size_t)r, g, n_groups), kind);
        }
        for (; k < end; k += WEIGHT_BLOCK) {
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                __m512 value[2];

                decode_block(value, t->w[r] + k / WEIGHT_BLOCK * block_bytes, d[r], kind);
#pragma GCC unroll 2
                for (int x = 0; x < X; x++) {
                    acc[r][x] = _mm512_fmadd_ps(value[0], _mm512_loadu_ps(t->x[x] + k), acc[r][x]);
                    acc[r][x] =
                        _mm512_fmadd_ps(value[1], _mm512_loadu_ps(t->x[x] + k + LANES), acc[r][x]);
                }
            }
        }
    }
    put_sums(t, acc, R, X);
}

SIMD_INLINE void decode_quantised(float *out, const struct weight *w, size_t row,
                                  enum weight_kind kind)
{
    size_t block_bytes = kind == WEIGHT_INT4 ? WEIGHT_BLOCK / 2 : WEIGHT_BLOCK, k = 0;
    size_t n_groups = weight_n_groups(w);
    const uint8_t *data = (const uint8_t *)w->data + row * weight_row_bytes(w);

    for (size_t g = 0; g < n_groups; g++) {
        size_t end = k + w->group < w->n_in ? k + w->group : w->n_in;
        struct decoder d = decoder_of(scale_of(w, row, g, n_groups), kind);

        for (; k < end; k += WEIGHT_BLOCK) {
            __m512 value[2];

            decode_block(value, data + k / WEIGHT_BLOCK * block_bytes, d, kind);
            _mm512_storeu_ps(out + k, value[0]);
            _mm512_storeu_ps(out + k + LANES, value[1]);
        }
    }
}

/* One row as float32. */
static void decode_row(float *out, const struct weight *w, size_t row)
{
    const uint8_t *data = (const uint8_t *)w->data + row * weight_row_bytes(w);

    if (w->kind == WEIGHT_INT4) {
        decode_quantised(out, w, row, WEIGHT_INT4);
        return;
    }
    if (w->kind == WEIGHT_INT8) {
        decode_quantised(out, w, row, WEIGHT_INT8);
        return;
    }
    for (size_t k = 0; k < w->n_in; k += LANES) {
        size_t n = w->n_in - k < LANES ? w->n_in - k : LANES;
        __m512 v = w->dtype == DTYPE_F16 ? simd_load16(DTYPE_F16, data + 2 * k, n)
                                         : simd_load16(DTYPE_BF16, data + 2 * k, n);

        _mm512_mask_storeu_ps(out + k, simd_mask16(n), v);
    }
}

/* --- shapes --- */

static void tile_inputs(struct tile *t, const struct linear_job *job, size_t i, size_t n_x,
                        size_t n)
{
    for (size_t x = 0; x < n_x; x++) {
        t->x[x] = linear_job_x(job, i + x);
        t->out[x] = job->out + (i + x) * job->out_stride + n;
    }
}

/* R dense rows against all inputs. */
SIMD_INLINE void dense_rows(struct tile *t, const struct linear_job *job, size_t n, enum dtype type,
                            int R)
{
    size_t i = 0;

    for (; i + 6 <= job->n_x; i += 6) {
        tile_inputs(t, job, i, 6, n);
        dense_tile(t, type, R, 6);
    }
    for (; i + 3 <= job->n_x; i += 3) {
        tile_inputs(t, job, i, 3, n);
        dense_tile(t, type, R, 3);
    }
    for (; i < job->n_x; i++) {
        tile_inputs(t, job, i, 1, n);
        dense_tile(t, type, R, 1);
    }
}

/* One row count at a time: 8 (one input only), 4 or 1. */
static size_t rows_at(const struct linear_job *job, size_t n, size_t n1)
{
    return job->n_x == 1 && n1 - n >= 8 ? 8 : n1 - n >= 4 ? 4 : 1;
}

SIMD_INLINE void linear_dense(const struct linear_job *job, const struct weight *w, size_t n0,
                              size_t n1, enum dtype type)
{
    size_t row_bytes = w->n_in * (type == DTYPE_F32 ? 4 : 2);

    for (size_t n = n0, R; n < n1; n += R) {
        struct tile t = {.n_in = w->n_in, .accumulates = job->accumulates};

        R = rows_at(job, n, n1);
        for (size_t r = 0; r < R; r++) {
            t.w[r] = (const uint8_t *)w->data + (n + r) * row_bytes;
        }
        if (R == 8) {
            tile_inputs(&t, job, 0, 1, n);
            dense_tile(&t, type, 8, 1);
        } else if (R == 4) {
            dense_rows(&t, job, n, type, 4);
        } else {
            dense_rows(&t, job, n, type, 1);
        }
    }
}

/* One or two inputs: the weights are decoded on the way. */
SIMD_INLINE void linear_quant(const struct linear_job *job, const struct weight *w, size_t n0,
                              size_t n1, enum weight_kind kind, int X)
{
    size_t row_bytes = weight_row_bytes(w), n_groups = weight_n_groups(w);

    for (size_t n = n0, R; n < n1; n += R) {
        struct tile t = {.n_in = w->n_in, .accumulates = job->accumulates};

        R = n1 - n >= 4 ? 4 : 1;
        for (size_t r = 0; r < R; r++) {
            t.w[r] = (const uint8_t *)w->data + (n + r) * row_bytes;
        }
        tile_inputs(&t, job, 0, (size_t)X, n);
        if (R == 4) {
            quant_tile(&t, w, n, n_groups, kind, 4, X);
        } else {
            quant_tile(&t, w, n, n_groups, kind, 1, X);
        }
    }
}

/* Many inputs: each row is decoded once. */
static void linear_decoded(const struct linear_job *job, const struct weight *w, size_t n0,
                           size_t n1)
{
    size_t stride = linear_tile_stride(w->n_in);

    for (size_t n = n0, R; n < n1; n += R) {
        struct tile t = {.n_in = w->n_in, .accumulates = job->accumulates};

        R = n1 - n >= 4 ? 4 : 1;
        for (size_t r = 0; r < R; r++) {
            decode_row(job->tile + r * stride, w, n + r);
            t.w[r] = (const uint8_t *)(job->tile + r * stride);
        }
        if (R == 4) {
            dense_rows(&t, job, n, DTYPE_F32, 4);
        } else {
            dense_rows(&t, job, n, DTYPE_F32, 1);
        }
    }
}

static void linear_dense_any(const struct linear_job *job, const struct weight *w, size_t n0,
                             size_t n1)
{
    if (w->dtype == DTYPE_F32) {
        linear_dense(job, w, n0, n1, DTYPE_F32);
    } else if (w->dtype == DTYPE_F16) {
        linear_dense(job, w, n0, n1, DTYPE_F16);
    } else {
        linear_dense(job, w, n0, n1, DTYPE_BF16);
    }
}

void linear_avx512(const struct linear_job *job, const struct weight *w, size_t n0, size_t n1)
{
    bool is_wide = w->kind == WEIGHT_DENSE && w->dtype == DTYPE_F32;

    if (job->n_x > 2 * INPUTS_MAX && !is_wide) {
        linear_decoded(job, w, n0, n1);
    } else if (w->kind == WEIGHT_DENSE) {
        linear_dense_any(job, w, n0, n1);
    } else if (job->n_x > INPUTS_IN_REGISTERS) {
        linear_decoded(job, w, n0, n1);
    } else if (w->kind == WEIGHT_INT4) {
        job->n_x == 1 ? linear_quant(job, w, n0, n1, WEIGHT_INT4, 1)
                      : linear_quant(job, w, n0, n1, WEIGHT_INT4, 2);
    } else {
        job->n_x == 1 ? linear_quant(job, w, n0, n1, WEIGHT_INT8, 1)
                      : linear_quant(job, w, n0, n1, WEIGHT_INT8, 2);
    }
}

#endif
