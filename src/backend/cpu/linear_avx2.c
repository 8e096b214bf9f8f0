/* linear_avx2.c - matrix products for AVX2: float32, bfloat16, float16, int4 and int8 weights.
 *
 * Place:  backend/cpu; tested against ref_matrix.c.
 * Order:  every output is one accumulator of 8 lanes, filled by fused multiply-adds over k ascending
 *         and summed in one order (simd_sum4). Register tiles only put several such accumulators side
 *         by side, so an output is the same bits in any tile: alone in decode, or in a prefill of
 *         hundreds of rows.
 * Tiles:  4 weight rows by up to 3 inputs (12 accumulators + 3 inputs + 1 weight = the 16 registers),
 *         or 8 dense rows by 1 input. Dense weights are widened in registers. Quantised ones too for
 *         up to 2 inputs; for more, 4 rows are decoded to float32 once and serve all inputs.
 * Scale:  w = scale * (q - zero) is decoded as fma(q, scale, -zero * scale). For 16-bit scales that
 *         product is exact, so w is what the reference decodes. */
#if defined(__x86_64__)

#include "backend/cpu/cpu_x86.h"
#include "backend/cpu/simd_avx2.h"
#include "base/half.h"

enum { ROWS_MAX = 8, INPUTS_MAX = 3, CACHE_LINE = 64 };

/* Where a tile of R weight rows by X inputs reads and writes. */
struct tile {
    const uint8_t *w[ROWS_MAX];
    const float *x[INPUTS_MAX];
    float *out[INPUTS_MAX]; /* R neighbours each */
    size_t n_in;
    bool accumulates;
};

SIMD_INLINE void put4(float *out, __m128 v, bool accumulates)
{
    _mm_storeu_ps(out, accumulates ? _mm_add_ps(_mm_loadu_ps(out), v) : v);
}

SIMD_INLINE void put_sums(const struct tile *t, __m256 acc[ROWS_MAX][INPUTS_MAX], int R, int X)
{
#pragma GCC unroll 3
    for (int x = 0; x < X; x++) {
        if (R == 1) {
            float sum = simd_sum(acc[0][x]);

            *t->out[x] = t->accumulates ? *t->out[x] + sum : sum;
            continue;
        }
#pragma GCC unroll 2
        for (int r = 0; r < R; r += 4) {
            put4(t->out[x] + r, simd_sum4(acc[r][x], acc[r + 1][x], acc[r + 2][x], acc[r + 3][x]),
                 t->accumulates);
        }
    }
}

/* --- dense --- */

SIMD_INLINE void dense_tile(const struct tile *t, enum dtype type, int R, int X)
{
    size_t each = type == DTYPE_F32 ? 4 : 2, k = 0;
    __m256 acc[ROWS_MAX][INPUTS_MAX];

#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 3
        for (int x = 0; x < X; x++) {
            acc[r][x] = _mm256_setzero_ps();
        }
    }
    for (; k + 8 <= t->n_in; k += 8) {
        __m256 in[INPUTS_MAX];

        if (R == ROWS_MAX && k * each % CACHE_LINE == 0) { /* one input streams the weights */
            simd_prefetch_rows(t->w, ROWS_MAX, k * each, t->n_in * each);
        }
#pragma GCC unroll 3
        for (int x = 0; x < X; x++) {
            in[x] = _mm256_loadu_ps(t->x[x] + k);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            __m256 w = simd_load(type, t->w[r] + k * each);

#pragma GCC unroll 3
            for (int x = 0; x < X; x++) {
                acc[r][x] = _mm256_fmadd_ps(w, in[x], acc[r][x]);
            }
        }
    }
    if (k < t->n_in) {
        size_t rest = t->n_in - k;

#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            __m256 w = simd_load_part(type, t->w[r] + k * each, rest);

#pragma GCC unroll 3
            for (int x = 0; x < X; x++) {
                acc[r][x] = _mm256_fmadd_ps(w, simd_load_tail(t->x[x] + k, rest), acc[r][x]);
            }
        }
    }
    put_sums(t, acc, R, X);
}

/* --- quantised --- */

SIMD_INLINE __m256 bytes_to_f32(__m128i bytes)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}

/* The 32 values of a block in order, as float32 integers. */
SIMD_INLINE void unpack_block(__m256 q[4], const uint8_t *p, enum weight_kind kind)
{
    __m128i low, high;

    if (kind == WEIGHT_INT4) {
        __m128i packed = _mm_loadu_si128((const __m128i *)(const void *)p);
        __m128i nibble = _mm_set1_epi8(15);

        low = _mm_and_si128(packed, nibble);
        high = _mm_and_si128(_mm_srli_epi16(packed, 4), nibble);
    } else {
        low = _mm_loadu_si128((const __m128i *)(const void *)p);
        high = _mm_loadu_si128((const __m128i *)(const void *)(p + 16));
    }
    q[0] = bytes_to_f32(low);
    q[1] = bytes_to_f32(_mm_srli_si128(low, 8));
    q[2] = bytes_to_f32(high);
    q[3] = bytes_to_f32(_mm_srli_si128(high, 8));
}

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

/* Rows [row, row + R) by X inputs, decoded in registers. */
SIMD_INLINE void quant_tile(const struct tile *t, const struct weight *w, size_t row,
                            size_t n_groups, enum weight_kind kind, int R, int X)
{
    size_t block_bytes = kind == WEIGHT_INT4 ? WEIGHT_BLOCK / 2 : WEIGHT_BLOCK, k = 0;
    __m256 acc[ROWS_MAX][INPUTS_MAX];

#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 2
        for (int x = 0; x < X; x++) {
            acc[r][x] = _mm256_setzero_ps();
        }
    }
    for (size_t g = 0; g < n_groups; g++) {
        size_t end = k + w->group < t->n_in ? k + w->group : t->n_in;
        struct group_scale s[4];

        for (int r = 0; r < R; r++) {
            s[r] = scale_of(w, row + (size_t)r, g, n_groups);
        }
        for (; k < end; k += WEIGHT_BLOCK) {
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                __m256 q[4], scale = _mm256_set1_ps(s[r].scale);
                __m256 shift = _mm256_set1_ps(s[r].shift);

                unpack_block(q, t->w[r] + k / WEIGHT_BLOCK * block_bytes, kind);
#pragma GCC unroll 4
                for (int v = 0; v < 4; v++) {
                    q[v] = _mm256_fmadd_ps(q[v], scale, shift);
#pragma GCC unroll 2
                    for (int x = 0; x < X; x++) {
                        __m256 in = _mm256_loadu_ps(t->x[x] + k + 8 * v);

                        acc[r][x] = _mm256_fmadd_ps(q[v], in, acc[r][x]);
                    }
                }
            }
        }
    }
    put_sums(t, acc, R, X);
}

/* One row as float32. */
static void decode_row(float *out, const struct weight *w, size_t row, const uint8_t *data,
                       size_t n_groups)
{
    size_t k = 0;

    for (size_t g = 0; g < n_groups; g++) {
        size_t end = k + w->group < w->n_in ? k + w->group : w->n_in;
        struct group_scale s = scale_of(w, row, g, n_groups);
        __m256 scale = _mm256_set1_ps(s.scale), shift = _mm256_set1_ps(s.shift);

        for (; k < end; k += WEIGHT_BLOCK) {
            __m256 q[4];

            if (w->kind == WEIGHT_INT4) {
                unpack_block(q, data + k / 2, WEIGHT_INT4);
            } else {
                unpack_block(q, data + k, WEIGHT_INT8);
            }
            for (size_t v = 0; v < 4; v++) {
                _mm256_storeu_ps(out + k + 8 * v, _mm256_fmadd_ps(q[v], scale, shift));
            }
        }
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

/* Inputs of the next tile: three, but no single one is left over when two pairs serve as well. */
static size_t tile_width(size_t n_left)
{
    return n_left == 4 ? 2 : n_left < INPUTS_MAX ? n_left : INPUTS_MAX;
}

/* R dense rows against all inputs. */
SIMD_INLINE void dense_rows(struct tile *t, const struct linear_job *job, size_t n, enum dtype type,
                            int R)
{
    for (size_t i = 0, X; i < job->n_x; i += X) {
        X = tile_width(job->n_x - i);
        tile_inputs(t, job, i, X, n);
        if (X == 3) {
            dense_tile(t, type, R, 3);
        } else if (X == 2) {
            dense_tile(t, type, R, 2);
        } else {
            dense_tile(t, type, R, 1);
        }
    }
}

SIMD_INLINE void linear_dense(const struct linear_job *job, const struct weight *w, size_t n0,
                              size_t n1, enum dtype type)
{
    size_t row_bytes = w->n_in * (type == DTYPE_F32 ? 4 : 2);

    for (size_t n = n0, R; n < n1; n += R) {
        struct tile t = {.n_in = w->n_in, .accumulates = job->accumulates};

        R = job->n_x == 1 && n1 - n >= 8 ? 8 : n1 - n >= 4 ? 4 : 1;
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
    size_t row_bytes = weight_row_bytes(w), n_groups = weight_n_groups(w);
    size_t stride = linear_tile_stride(w->n_in);

    for (size_t n = n0, R; n < n1; n += R) {
        struct tile t = {.n_in = w->n_in, .accumulates = job->accumulates};

        R = n1 - n >= 4 ? 4 : 1;
        for (size_t r = 0; r < R; r++) {
            decode_row(job->tile + r * stride, w, n + r,
                       (const uint8_t *)w->data + (n + r) * row_bytes, n_groups);
            t.w[r] = (const uint8_t *)(job->tile + r * stride);
        }
        if (R == 4) {
            dense_rows(&t, job, n, DTYPE_F32, 4);
        } else {
            dense_rows(&t, job, n, DTYPE_F32, 1);
        }
    }
}

void linear_avx2(const struct linear_job *job, const struct weight *w, size_t n0, size_t n1)
{
    if (w->kind == WEIGHT_DENSE && w->dtype == DTYPE_F32) {
        linear_dense(job, w, n0, n1, DTYPE_F32);
    } else if (w->kind == WEIGHT_DENSE && w->dtype == DTYPE_F16) {
        linear_dense(job, w, n0, n1, DTYPE_F16);
    } else if (w->kind == WEIGHT_DENSE) {
        linear_dense(job, w, n0, n1, DTYPE_BF16);
    } else if (job->n_x > 2) {
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
