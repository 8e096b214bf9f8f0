/* linear_int8_avx512vnni.c - products with int8 activations for AVX-512 VNNI.
 *
 * Place: backend/cpu; tested bit for bit against linear_int8_ref.c.
 * Idea:  one instruction multiplies unsigned bytes (weights: nibbles or bytes as stored) with signed ones
 *        and sums fours into int32, so both kinds need no widening and nothing saturates. Few inputs
 *        take the 256-bit code; many take panels of 16 rows in 512-bit registers. */
#if defined(__x86_64__)

#include "backend/cpu/simd_avx512.h"

#include "backend/weight.h"

enum { VALUE_BYTES_INT8 = 1 };

SIMD_INLINE __m256i dot_next(enum weight_kind kind, __m256i sum, __m256i w, __m256i x)
{
    (void)kind;
    return _mm256_dpbusd_epi32(sum, w, x);
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

#include "backend/cpu/linear_int8_ymm.h"

/* --- many inputs ---
 *
 * Sixteen weight rows are unpacked once and transposed in units of four inputs, so that a register holds
 * the same four inputs of all rows:
 *
 *     lane         0             1                    15
 *     vector j   row 0 4j..4j+3  row 1 4j..4j+3  ...  row 15 4j..4j+3        j-th unit of the record
 *
 * Then a unit of an input is broadcast, each lane sums its own row, and no sum is ever folded across
 * lanes: 32 dot products and four more instructions for 16 rows, one input and a group of 128. The
 * transposition costs about as much as ten inputs, hence INPUTS_FOR_PANEL. */

enum { PANEL_ROWS = 16, PANEL_INPUTS = 8, UNIT_BYTES = 4, PANEL_BYTES = 64, INPUTS_FOR_PANEL = 12 };

struct panel {
    const uint8_t *units; /* [n_in / 4][16][4] */
    const float *scales;  /* [n_groups][16] */
    const int32_t *zeros; /* [n_groups][16]; NULL: all `zero` */
    int32_t zero;
};

/* Up to 64 values from input k on, in the order of the activations. n_in is a multiple of 32, so the last
 * may be 32. */
SIMD_INLINE __m512i panel_values(const uint8_t *row, size_t k, size_t n, enum weight_kind kind,
                                 size_t unit)
{
    __m256i nibble = _mm256_set1_epi8(15), low, high;
    __m128i packed;

    if (kind == WEIGHT_INT8) {
        return n == 64 ? _mm512_loadu_si512(row + k) : _mm512_castsi256_si512(load_bytes(row + k));
    }
    if (unit == 2 * WEIGHT_BLOCK) {
        __m256i both = load_bytes(row + k / 2);

        low = _mm256_and_si256(both, nibble);
        high = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
    } else {
        packed = _mm_loadu_si128((const __m128i *)(const void *)(row + k / 2));
        low = _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(packed, 4), packed), nibble);
        high = low;
        if (n == 64) {
            packed = _mm_loadu_si128((const __m128i *)(const void *)(row + k / 2 + 16));
            high = _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(packed, 4), packed), nibble);
        }
    }
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

SIMD_INLINE void panel_units(uint8_t *units, const uint8_t *const row[PANEL_ROWS], size_t n_in,
                             enum weight_kind kind, size_t unit)
{
    for (size_t k = 0; k < n_in; k += PANEL_BYTES) {
        size_t n = n_in - k < PANEL_BYTES ? n_in - k : PANEL_BYTES;
        __m512i v[PANEL_ROWS];

#pragma GCC unroll 16
        for (size_t r = 0; r < PANEL_ROWS; r++) {
            v[r] = panel_values(row[r], k, n, kind, unit);
        }
        simd_transpose16(v);
        for (size_t j = 0; j < n / UNIT_BYTES; j++) {
            _mm512_storeu_si512(units + k * PANEL_ROWS + j * PANEL_BYTES, v[j]);
        }
    }
}

static void panel_fill(struct panel *p, float *tile, const struct weight *w, size_t n, size_t n_end,
                       const struct act_form *f)
{
    size_t row_bytes = weight_row_bytes(w), rows[PANEL_ROWS];
    const uint8_t *row[PANEL_ROWS];
    float *scales = tile;
    int32_t *zeros = (int32_t *)(void *)(scales + PANEL_ROWS * f->n_groups);
    uint8_t *units = (uint8_t *)(zeros + PANEL_ROWS * f->n_groups);

    for (size_t r = 0; r < PANEL_ROWS; r++) {
        rows[r] = n + r < n_end ? n + r : n_end - 1;
        row[r] = (const uint8_t *)w->data + rows[r] * row_bytes;
    }
    for (size_t r = 0; r < PANEL_ROWS; r += TILE_ROWS) {
        four_scales(scales + r, zeros + r, PANEL_ROWS, w, rows + r, f);
    }
    if (w->kind == WEIGHT_INT8) {
        panel_units(units, row, f->n_in, WEIGHT_INT8, WEIGHT_BLOCK);
    } else if (f->unit == WEIGHT_BLOCK) {
        panel_units(units, row, f->n_in, WEIGHT_INT4, WEIGHT_BLOCK);
    } else {
        panel_units(units, row, f->n_in, WEIGHT_INT4, 2 * WEIGHT_BLOCK);
    }
    *p = (struct panel){
        .units = units, .scales = scales, .zeros = w->zeros ? zeros : NULL, .zero = zero_one(w, 0)};
}

SIMD_INLINE __m512i broadcast_unit(const uint8_t *p)
{
    int32_t unit;

    memcpy(&unit, p, sizeof unit);
    return _mm512_set1_epi32(unit);
}

/* The panel against X inputs: one float per row and input in sum[]. */
SIMD_INLINE void panel_product(__m512 sum[PANEL_INPUTS], const struct panel *p,
                               const struct act_form *f, const uint8_t *const x[PANEL_INPUTS],
                               size_t group, int X)
{
    const uint8_t *units = p->units;

#pragma GCC unroll 8
    for (int i = 0; i < X; i++) {
        sum[i] = _mm512_setzero_ps();
    }
    for (size_t g = 0; g < f->n_groups; g++) {
        __m512i part[PANEL_INPUTS];
        __m512 scale = _mm512_loadu_ps(p->scales + g * PANEL_ROWS);

#pragma GCC unroll 8
        for (int i = 0; i < X; i++) {
            part[i] = _mm512_set1_epi32(p->zeros ? 0 : -p->zero * act_sums(f, x[i])[g]);
        }
        for (size_t k = g * group; k < (g + 1) * group; k += UNIT_BYTES) {
            __m512i w = _mm512_loadu_si512(units + k * PANEL_ROWS);

#pragma GCC unroll 8
            for (int i = 0; i < X; i++) {
                part[i] = _mm512_dpbusd_epi32(part[i], w, broadcast_unit(x[i] + k));
            }
        }
        if (p->zeros) {
            __m512i zeros = _mm512_loadu_si512(p->zeros + g * PANEL_ROWS);

#pragma GCC unroll 8
            for (int i = 0; i < X; i++) {
                __m512i x_sum = _mm512_set1_epi32(act_sums(f, x[i])[g]);

                part[i] = _mm512_sub_epi32(part[i], _mm512_mullo_epi32(zeros, x_sum));
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < X; i++) {
            __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(act_scales(f, x[i])[g]));

            sum[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(part[i]), both, sum[i]);
        }
    }
}

SIMD_INLINE void panel_inputs(const struct linear_job *job, const struct panel *p, size_t i0,
                              size_t n, size_t n_rows, size_t group, int X)
{
    const uint8_t *x[PANEL_INPUTS];
    __m512 sum[PANEL_INPUTS];
    __mmask16 mask = (__mmask16)(0xffffu >> (PANEL_ROWS - n_rows));

#pragma GCC unroll 8
    for (int i = 0; i < X; i++) {
        x[i] = linear_job_act(job, i0 + (size_t)i);
    }
    panel_product(sum, p, job->form, x, group, X);
#pragma GCC unroll 8
    for (int i = 0; i < X; i++) {
        float *out = job->out + (i0 + (size_t)i) * job->out_stride + n;

        if (job->accumulates) {
            sum[i] = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), sum[i]);
        }
        _mm512_mask_storeu_ps(out, mask, sum[i]);
    }
}

SIMD_INLINE void panel_all_inputs(const struct linear_job *job, const struct panel *p, size_t n,
                                  size_t n_rows, const uint8_t *next, size_t group)
{
    size_t panel_bytes = PANEL_ROWS * job->form->n_in / 2, i = 0; /* of int4; half of int8's */

    for (; i + 8 <= job->n_x; i += 8) {
        prefetch_share(next, panel_bytes, i / 8, (job->n_x + 7) / 8);
        panel_inputs(job, p, i, n, n_rows, group, 8);
    }
    for (; i + 4 <= job->n_x; i += 4) {
        panel_inputs(job, p, i, n, n_rows, group, 4);
    }
    for (; i + 2 <= job->n_x; i += 2) {
        panel_inputs(job, p, i, n, n_rows, group, 2);
    }
    if (i < job->n_x) {
        panel_inputs(job, p, i, n, n_rows, group, 1);
    }
}

static void linear_panels(const struct linear_job *job, const struct weight *w, size_t n0,
                          size_t n1)
{
    size_t row_bytes = weight_row_bytes(w);

    for (size_t n = n0; n < n1; n += PANEL_ROWS) {
        size_t n_rows = n1 - n < PANEL_ROWS ? n1 - n : PANEL_ROWS;
        const uint8_t *next = (const uint8_t *)w->data + (n + PANEL_ROWS) * row_bytes;
        struct panel p;

        panel_fill(&p, job->tile, w, n, n1, job->form);
        if (job->form->group == 128) {
            panel_all_inputs(job, &p, n, n_rows, next, 128);
        } else {
            panel_all_inputs(job, &p, n, n_rows, next, job->form->group);
        }
    }
}

void linear_int8_avx512vnni(const struct linear_job *job, const struct weight *w, size_t n0,
                            size_t n1)
{
    if (job->n_x >= INPUTS_FOR_PANEL) {
        linear_panels(job, w, n0, n1);
    } else {
        linear_int8_ymm(job, w, n0, n1);
    }
}

void act_order_avx512vnni(struct act_form *f, enum weight_kind kind)
{
    act_order_ymm(f, kind);
}

#endif
