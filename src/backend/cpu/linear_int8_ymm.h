/* linear_int8_ymm.h - products with int8 activations in 256-bit registers, over one dot product.
 *
 * Place:  backend/cpu; included by linear_int8_{avx2,avxvnni,avx512vnni}.c, which define before it
 *
 *             VALUE_BYTES_INT8                  bytes per activation against int8 weights, 1 or 2
 *             dot_first(kind, w, x)             products of one vector of weights and activations
 *             dot_next(kind, sum, w, x)         the same, added to sum
 *             dot_fold(kind, sum)               as eight int32
 *             load_int8(p)                      one vector of int8 weights, widened to VALUE_BYTES_INT8
 *
 * Tiles:  one input: four weight rows, unpacked in registers. More: four rows by two inputs, [4 rows of
 *         x0 | 4 rows of x1]; the rows are unpacked once for all inputs. The integer sums of a group
 *         are folded by a tree of additions to one lane each. A missing row or input is replaced by
 *         its neighbour and its result dropped, so there is one shape only.
 * Memory: one input streams the weights past once, so all depends on reading. The rows of a tile are
 *         neighbours, one stretch of memory; lines are fetched in rising order, ahead of the tile, which
 *         the hardware's own prefetchers follow. */
#ifndef BACKEND_CPU_LINEAR_INT8_YMM_H
#define BACKEND_CPU_LINEAR_INT8_YMM_H

#include "backend/cpu/cpu_x86.h"
#include "backend/cpu/simd_avx2.h"
#include "base/half.h"

enum {
    TILE_ROWS = 4,
    VECTOR_BYTES = 32,
    LINE_BYTES = 64,
    /* Lines are fetched a tile and this far ahead, since within a tile they are not used in rising
     * order: from afar into the second level, which waits for more of them at once, then from near.
     * Either distance may be half or double; either one alone loses a tenth. */
    PREFETCH_FAR = 8192,
    PREFETCH_NEAR = 2048,
};

SIMD_INLINE __m256i load_bytes(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

SIMD_INLINE void prefetch(const uint8_t *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

SIMD_INLINE __m128i four_ints(const int32_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

/* The lines that begin in n_bytes from p on, where p is a multiple of that from a line's start. */
SIMD_INLINE void prefetch_stream(const uint8_t *p, size_t n_bytes)
{
    if (n_bytes >= LINE_BYTES || (uintptr_t)p % LINE_BYTES < n_bytes) {
#pragma GCC unroll 4
        for (size_t i = 0; i < n_bytes; i += LINE_BYTES) {
            _mm_prefetch((const char *)p + i + PREFETCH_FAR, _MM_HINT_T1);
            prefetch(p + i + PREFETCH_NEAR);
        }
    }
}

/* Sums of a, b, c and d. */
SIMD_INLINE __m128i sum4_int32(__m256i a, __m256i b, __m256i c, __m256i d)
{
    __m256i t = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));

    return _mm_add_epi32(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
}

/* --- scales and zeros --- */

static inline float scale_one(const struct weight *w, size_t at)
{
    float scale;
    uint16_t half;

    if (w->dtype == DTYPE_F32) {
        memcpy(&scale, (const uint8_t *)w->scales + 4 * at, sizeof scale);
        return scale;
    }
    memcpy(&half, (const uint8_t *)w->scales + 2 * at, sizeof half);
    return w->dtype == DTYPE_F16 ? _cvtsh_ss(half) : bf16_to_f32(half);
}

/* Four neighbours. */
SIMD_INLINE __m128 scale_four(const struct weight *w, size_t at)
{
    const uint8_t *p = (const uint8_t *)w->scales;
    __m128i half;

    if (w->dtype == DTYPE_F32) {
        return _mm_loadu_ps((const float *)(const void *)(p + 4 * at));
    }
    half = _mm_loadl_epi64((const __m128i *)(const void *)(p + 2 * at));
    return w->dtype == DTYPE_F16 ? _mm_cvtph_ps(half)
                                 : _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(half), 16));
}

static inline int32_t zero_one(const struct weight *w, size_t at)
{
    return w->zeros ? w->zeros[at] : w->kind == WEIGHT_INT4 ? 8 : 128;
}

/* Scales and zeros of four rows, by group: [g * stride + row]. */
static void four_scales(float *scales, int32_t *zeros, size_t stride, const struct weight *w,
                        const size_t rows[TILE_ROWS], const struct act_form *f)
{
    size_t n_scales = weight_n_groups(w), per_scale = w->group / f->group, g = 0;

    for (; per_scale == 1 && g + 4 <= f->n_groups; g += 4) {
        __m128 s[TILE_ROWS];

#pragma GCC unroll 4
        for (size_t r = 0; r < TILE_ROWS; r++) {
            s[r] = scale_four(w, rows[r] * n_scales + g);
        }
        _MM_TRANSPOSE4_PS(s[0], s[1], s[2], s[3]);
#pragma GCC unroll 4
        for (size_t j = 0; j < 4; j++) {
            _mm_storeu_ps(scales + (g + j) * stride, s[j]);
        }
    }
    for (; g < f->n_groups; g++) {
        for (size_t r = 0; r < TILE_ROWS; r++) {
            scales[g * stride + r] = scale_one(w, rows[r] * n_scales + g / per_scale);
        }
    }
    for (g = 0; w->zeros && g < f->n_groups; g++) {
        for (size_t r = 0; r < TILE_ROWS; r++) {
            zeros[g * stride + r] = zero_one(w, rows[r] * n_scales + g / per_scale);
        }
    }
}

/* --- one input --- */

/* Integer sum of one group; `group` is a constant where it matters. */
SIMD_INLINE __m256i group_sum(enum weight_kind kind, const uint8_t *w, const uint8_t *x,
                              size_t group, size_t unit)
{
    __m256i nibble = _mm256_set1_epi8(15), sum = _mm256_setzero_si256();

    if (kind == WEIGHT_INT8) {
        enum { STEP = VECTOR_BYTES / VALUE_BYTES_INT8 };

#pragma GCC unroll 8
        for (size_t k = 0; k < group; k += STEP) {
            __m256i values = load_int8(w + k), in = load_bytes(x + k * VALUE_BYTES_INT8);

            sum = k == 0 ? dot_first(kind, values, in) : dot_next(kind, sum, values, in);
        }
    } else if (unit == 2 * WEIGHT_BLOCK) {
#pragma GCC unroll 4
        for (size_t k = 0; k < group; k += 2 * WEIGHT_BLOCK) {
            __m256i packed = load_bytes(w + k / 2);
            __m256i low = _mm256_and_si256(packed, nibble);
            __m256i high = _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble);

            sum = k == 0 ? dot_first(kind, low, load_bytes(x))
                         : dot_next(kind, sum, low, load_bytes(x + k));
            sum = dot_next(kind, sum, high, load_bytes(x + k + WEIGHT_BLOCK));
        }
    } else {
        for (size_t k = 0; k < group; k += WEIGHT_BLOCK) {
            __m128i packed = _mm_loadu_si128((const __m128i *)(const void *)(w + k / 2));
            __m256i both = _mm256_set_m128i(_mm_srli_epi16(packed, 4), packed);
            __m256i values = _mm256_and_si256(both, nibble);

            sum = k == 0 ? dot_first(kind, values, load_bytes(x))
                         : dot_next(kind, sum, values, load_bytes(x + k));
        }
    }
    return dot_fold(kind, sum);
}

/* Four rows against one input. ahead: the end of the rows, from where lines are fetched. */
SIMD_INLINE __m128 stream_product(const uint8_t *const row[TILE_ROWS], const uint8_t *ahead,
                                  const float *scales, const int32_t *zeros, int32_t zero,
                                  const struct act_form *f, const uint8_t *act,
                                  enum weight_kind kind, size_t group, size_t unit)
{
    const float *x_scales = act_scales(f, act);
    const int32_t *x_sums = act_sums(f, act);
    size_t w_bytes = kind == WEIGHT_INT4 ? group / 2 : group;
    size_t x_bytes = kind == WEIGHT_INT4 ? group : group * VALUE_BYTES_INT8;
    __m128 sum = _mm_setzero_ps();

    for (size_t g = 0; g < f->n_groups; g++) {
        __m256i part[TILE_ROWS];
        __m128i isum, shift;
        __m128 both;

#pragma GCC unroll 4
        for (size_t r = 0; r < TILE_ROWS; r++) {
            prefetch_stream(ahead + (g * TILE_ROWS + r) * w_bytes, w_bytes);
            part[r] = group_sum(kind, row[r] + g * w_bytes, act + g * x_bytes, group, unit);
        }
        isum = sum4_int32(part[0], part[1], part[2], part[3]);
        shift = zeros ? _mm_mullo_epi32(four_ints(zeros + g * TILE_ROWS), _mm_set1_epi32(x_sums[g]))
                      : _mm_set1_epi32(zero * x_sums[g]);
        isum = _mm_sub_epi32(isum, shift);
        both = _mm_mul_ps(_mm_loadu_ps(scales + g * TILE_ROWS), _mm_set1_ps(x_scales[g]));
        sum = _mm_fmadd_ps(_mm_cvtepi32_ps(isum), both, sum);
    }
    return sum;
}

SIMD_INLINE void put_rows(float *out, __m128 sum, size_t n, bool accumulates)
{
    float value[TILE_ROWS];

    if (n == TILE_ROWS) {
        _mm_storeu_ps(out, accumulates ? _mm_add_ps(_mm_loadu_ps(out), sum) : sum);
        return;
    }
    _mm_storeu_ps(value, sum);
    for (size_t r = 0; r < n; r++) {
        out[r] = accumulates ? out[r] + value[r] : value[r];
    }
}

SIMD_INLINE void one_input(const struct linear_job *job, const struct weight *w, size_t n0,
                           size_t n1, enum weight_kind kind, size_t group, size_t unit)
{
    const struct act_form *f = job->form;
    const uint8_t *act = linear_job_act(job, 0);
    size_t row_bytes = weight_row_bytes(w);
    float *scales = job->tile;
    int32_t *zeros = (int32_t *)(void *)(scales + TILE_ROWS * f->n_groups);

    for (size_t n = n0; n < n1; n += TILE_ROWS) {
        size_t n_rows = n1 - n < TILE_ROWS ? n1 - n : TILE_ROWS, rows[TILE_ROWS];
        const uint8_t *row[TILE_ROWS];
        __m128 sum;

        for (size_t r = 0; r < TILE_ROWS; r++) {
            rows[r] = r < n_rows ? n + r : n1 - 1;
            row[r] = (const uint8_t *)w->data + rows[r] * row_bytes;
        }
        four_scales(scales, zeros, TILE_ROWS, w, rows, f);
        sum = stream_product(row, row[0] + TILE_ROWS * row_bytes, scales, w->zeros ? zeros : NULL,
                             zero_one(w, 0), f, act, kind, group, unit);
        put_rows(job->out + n, sum, n_rows, job->accumulates);
    }
}

/* --- several inputs --- */

struct int8_tile {
    const uint8_t *w[TILE_ROWS]; /* unpacked, in the order of the activations */
    float *scales;               /* [n_groups][4] */
    int32_t *zeros;              /* [n_groups][4] */
    uint8_t *values; /* [4][row bytes], where w points unless the rows need no unpacking */
};

static void unpack_int4(uint8_t *dst, const uint8_t *src, size_t n_in, size_t unit)
{
    __m256i nibble = _mm256_set1_epi8(15);

    if (unit == 2 * WEIGHT_BLOCK) {
        for (size_t k = 0; k < n_in; k += 2 * WEIGHT_BLOCK) {
            __m256i packed = load_bytes(src + k / 2);

            _mm256_storeu_si256((__m256i *)(void *)(dst + k), _mm256_and_si256(packed, nibble));
            _mm256_storeu_si256((__m256i *)(void *)(dst + k + VECTOR_BYTES),
                                _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble));
        }
        return;
    }
    for (size_t k = 0; k < n_in; k += WEIGHT_BLOCK) {
        __m128i packed = _mm_loadu_si128((const __m128i *)(const void *)(src + k / 2));
        __m256i both = _mm256_set_m128i(_mm_srli_epi16(packed, 4), packed);

        _mm256_storeu_si256((__m256i *)(void *)(dst + k), _mm256_and_si256(both, nibble));
    }
}

static void tile_fill(struct int8_tile *t, const struct weight *w, size_t n, size_t n_end,
                      const struct act_form *f, enum weight_kind kind)
{
    size_t row_bytes = weight_row_bytes(w), rows[TILE_ROWS];

    for (size_t r = 0; r < TILE_ROWS; r++) {
        uint8_t *dst = t->values + r * f->n_in * f->value_bytes;
        const uint8_t *src;

        rows[r] = n + r < n_end ? n + r : n_end - 1;
        src = (const uint8_t *)w->data + rows[r] * row_bytes;
        t->w[r] = dst;
        if (kind == WEIGHT_INT4) {
            unpack_int4(dst, src, f->n_in, f->unit);
        } else if (VALUE_BYTES_INT8 == 1) {
            t->w[r] = src;
        } else {
            for (size_t k = 0; k < f->n_in; k += VECTOR_BYTES / 2) {
                _mm256_storeu_si256((__m256i *)(void *)(dst + 2 * k), load_int8(src + k));
            }
        }
    }
    four_scales(t->scales, t->zeros, TILE_ROWS, w, rows, f);
}

/* One number per input: low half a, high half b. */
SIMD_INLINE __m256 two_floats(const float *a, const float *b)
{
    return _mm256_blend_ps(_mm256_broadcast_ss(a), _mm256_broadcast_ss(b), 0xf0);
}

SIMD_INLINE __m256i two_ints(const int32_t *a, const int32_t *b)
{
    return _mm256_blend_epi32(_mm256_set1_epi32(*a), _mm256_set1_epi32(*b), 0xf0);
}

/* The four rows against inputs a and b. `group_bytes`: of the activations. */
SIMD_INLINE __m256 tile_product(const struct int8_tile *t, const struct act_form *f,
                                const uint8_t *a, const uint8_t *b, enum weight_kind kind,
                                size_t group_bytes)
{
    const float *a_scales = act_scales(f, a), *b_scales = act_scales(f, b);
    const int32_t *a_sums = act_sums(f, a), *b_sums = act_sums(f, b);
    __m256 sum = _mm256_setzero_ps();

    for (size_t g = 0; g < f->n_groups; g++) {
        size_t begin = g * group_bytes;
        __m256i part[2 * TILE_ROWS], u, v, isum, zeros;
        __m256 scales;

        u = load_bytes(a + begin);
        v = load_bytes(b + begin);
#pragma GCC unroll 4
        for (size_t r = 0; r < TILE_ROWS; r++) {
            __m256i w = load_bytes(t->w[r] + begin);

            part[r] = dot_first(kind, w, u);
            part[TILE_ROWS + r] = dot_first(kind, w, v);
        }
#pragma GCC unroll 8
        for (size_t k = begin + VECTOR_BYTES; k < begin + group_bytes; k += VECTOR_BYTES) {
            u = load_bytes(a + k);
            v = load_bytes(b + k);
#pragma GCC unroll 4
            for (size_t r = 0; r < TILE_ROWS; r++) {
                __m256i w = load_bytes(t->w[r] + k);

                part[r] = dot_next(kind, part[r], w, u);
                part[TILE_ROWS + r] = dot_next(kind, part[TILE_ROWS + r], w, v);
            }
        }
#pragma GCC unroll 8
        for (size_t j = 0; j < 2 * TILE_ROWS; j++) {
            part[j] = dot_fold(kind, part[j]);
        }
        u = _mm256_hadd_epi32(_mm256_hadd_epi32(part[0], part[1]),
                              _mm256_hadd_epi32(part[2], part[3]));
        v = _mm256_hadd_epi32(_mm256_hadd_epi32(part[4], part[5]),
                              _mm256_hadd_epi32(part[6], part[7]));
        isum = _mm256_add_epi32(_mm256_permute2x128_si256(u, v, 0x20),
                                _mm256_permute2x128_si256(u, v, 0x31));
        zeros = _mm256_broadcastsi128_si256(
            _mm_loadu_si128((const __m128i *)(const void *)(t->zeros + g * TILE_ROWS)));
        scales = _mm256_broadcast_ps((const __m128 *)(const void *)(t->scales + g * TILE_ROWS));
        isum = _mm256_sub_epi32(isum, _mm256_mullo_epi32(zeros, two_ints(a_sums + g, b_sums + g)));
        sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum),
                              _mm256_mul_ps(scales, two_floats(a_scales + g, b_scales + g)), sum);
    }
    return sum;
}

/* While a tile is multiplied its successor is fetched, a share per pair of inputs. */
SIMD_INLINE void prefetch_share(const uint8_t *next, size_t n_bytes, size_t part, size_t n_parts)
{
    size_t n_lines = n_bytes / LINE_BYTES;

    for (size_t i = n_lines * part / n_parts; i < n_lines * (part + 1) / n_parts; i++) {
        prefetch(next + i * LINE_BYTES);
    }
}

SIMD_INLINE void many_inputs(const struct linear_job *job, const struct weight *w, size_t n0,
                             size_t n1, enum weight_kind kind, size_t group)
{
    const struct act_form *f = job->form;
    size_t tile_bytes = TILE_ROWS * weight_row_bytes(w), n_pairs = (job->n_x + 1) / 2;
    size_t group_bytes = kind == WEIGHT_INT4 ? group : group * VALUE_BYTES_INT8;
    struct int8_tile t = {.scales = job->tile};

    t.zeros = (int32_t *)(void *)(t.scales + TILE_ROWS * f->n_groups);
    t.values = (uint8_t *)(t.zeros + TILE_ROWS * f->n_groups);
    for (size_t i = 0; i < TILE_ROWS * f->n_groups; i++) {
        t.zeros[i] = kind == WEIGHT_INT4 ? 8 : 128;
    }
    for (size_t n = n0; n < n1; n += TILE_ROWS) {
        size_t n_rows = n1 - n < TILE_ROWS ? n1 - n : TILE_ROWS;
        const uint8_t *next = (const uint8_t *)w->data + n / TILE_ROWS * tile_bytes + tile_bytes;

        tile_fill(&t, w, n, n1, f, kind);
        for (size_t i = 0; i < job->n_x; i += 2) {
            size_t j = i + 1 < job->n_x ? i + 1 : i;
            __m256 sum;

            prefetch_share(next, tile_bytes, i / 2, n_pairs);
            sum = tile_product(&t, f, linear_job_act(job, i), linear_job_act(job, j), kind,
                               group_bytes);
            put_rows(job->out + i * job->out_stride + n, _mm256_castps256_ps128(sum), n_rows,
                     job->accumulates);
            if (j != i) {
                put_rows(job->out + j * job->out_stride + n, _mm256_extractf128_ps(sum, 1), n_rows,
                         job->accumulates);
            }
        }
    }
}

/* --- all shapes --- */

/* One function per shape that matters, so that each has the registers to itself. */
#define SHAPE(name, call)                                                                          \
    static __attribute__((noinline)) void name(const struct linear_job *job,                       \
                                               const struct weight *w, size_t n0, size_t n1)       \
    {                                                                                              \
        call;                                                                                      \
    }
SHAPE(one_int4_g128, one_input(job, w, n0, n1, WEIGHT_INT4, 128, 2 * WEIGHT_BLOCK))
SHAPE(one_int4_even, one_input(job, w, n0, n1, WEIGHT_INT4, job->form->group, 2 * WEIGHT_BLOCK))
SHAPE(one_int4_odd, one_input(job, w, n0, n1, WEIGHT_INT4, job->form->group, WEIGHT_BLOCK))
SHAPE(one_int8_g128, one_input(job, w, n0, n1, WEIGHT_INT8, 128, WEIGHT_BLOCK))
SHAPE(one_int8, one_input(job, w, n0, n1, WEIGHT_INT8, job->form->group, WEIGHT_BLOCK))
SHAPE(many_int4_g128, many_inputs(job, w, n0, n1, WEIGHT_INT4, 128))
SHAPE(many_int4, many_inputs(job, w, n0, n1, WEIGHT_INT4, job->form->group))
SHAPE(many_int8_g128, many_inputs(job, w, n0, n1, WEIGHT_INT8, 128))
SHAPE(many_int8, many_inputs(job, w, n0, n1, WEIGHT_INT8, job->form->group))

static void linear_int8_ymm(const struct linear_job *job, const struct weight *w, size_t n0,
                            size_t n1)
{
    bool is_one = job->n_x == 1, is_g128 = job->form->group == 128;

    if (w->kind == WEIGHT_INT8) {
        (is_one    ? is_g128 ? one_int8_g128 : one_int8
         : is_g128 ? many_int8_g128
                   : many_int8)(job, w, n0, n1);
    } else if (!is_one) {
        (is_g128 ? many_int4_g128 : many_int4)(job, w, n0, n1);
    } else {
        (is_g128                          ? one_int4_g128
         : job->form->unit > WEIGHT_BLOCK ? one_int4_even
                                          : one_int4_odd)(job, w, n0, n1);
    }
}

static void act_order_ymm(struct act_form *f, enum weight_kind kind)
{
    f->unit =
        kind == WEIGHT_INT4 && f->group % (2 * WEIGHT_BLOCK) == 0 ? 2 * WEIGHT_BLOCK : WEIGHT_BLOCK;
    f->value_bytes = kind == WEIGHT_INT4 ? 1 : VALUE_BYTES_INT8;
}

#endif
