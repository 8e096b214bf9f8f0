/* linear_int8_panel.h - products of many inputs with int8 activations in 256-bit registers.
 *
 * Place:  backend/cpu; included after linear_int8_ymm.h by linear_int8_{avx2,avxvnni}.c; over the same
 *         dot product. The 512-bit form of the same idea is in linear_int8_avx512vnni.c.
 * Idea:   eight weight rows are unpacked once and transposed in units of four bytes, so that a register
 *         holds the same unit of all rows:
 *
 *             lane        0        1              7
 *             vector j  row 0    row 1    ...   row 7       j-th unit of the activations' record
 *
 *         A unit of an input is broadcast and every lane sums its own row: no sum is folded across
 *         lanes. The transposition costs about as much as INPUTS_FOR_PANEL inputs gain. */
#ifndef BACKEND_CPU_LINEAR_INT8_PANEL_H
#define BACKEND_CPU_LINEAR_INT8_PANEL_H

#include "backend/cpu/linear_int8_ymm.h"

enum { PANEL_ROWS = 8, PANEL_INPUTS = 4, UNIT_BYTES = 4, UNITS_SAFE = 8, INPUTS_FOR_PANEL = 8 };

struct panel {
    const uint8_t *units; /* [record bytes / 4][8][4] */
    const float *scales;  /* [n_groups][8] */
    const int32_t *zeros; /* [n_groups][8] */
};

/* v[r] holds eight dwords of row r; afterwards v[j] holds dword j of all rows. */
SIMD_INLINE void transpose8(__m256i v[PANEL_ROWS])
{
    __m256i t[PANEL_ROWS];

#pragma GCC unroll 4
    for (size_t i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
    }
#pragma GCC unroll 2
    for (size_t i = 0; i < 8; i += 4) {
        v[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        v[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        v[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        v[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (size_t d = 0; d < 4; d++) {
        t[d] = _mm256_permute2x128_si256(v[d], v[4 + d], 0x20);
        t[4 + d] = _mm256_permute2x128_si256(v[d], v[4 + d], 0x31);
    }
    memcpy(v, t, sizeof t);
}

/* 32 bytes of the unpacked row, in the order of the activations. */
SIMD_INLINE __m256i panel_bytes(const uint8_t *row, size_t at, enum weight_kind kind, size_t unit)
{
    __m256i nibble = _mm256_set1_epi8(15), packed;
    __m128i half;

    if (kind == WEIGHT_INT8) {
        return load_int8(row + at / VALUE_BYTES_INT8);
    }
    if (unit == WEIGHT_BLOCK) {
        half = _mm_loadu_si128((const __m128i *)(const void *)(row + at / 2));
        return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(half, 4), half), nibble);
    }
    packed = load_bytes(row + at / unit * (unit / 2) + at % (unit / 2));
    return _mm256_and_si256(at % unit < unit / 2 ? packed : _mm256_srli_epi16(packed, 4), nibble);
}

SIMD_INLINE void panel_units(uint8_t *units, const uint8_t *const row[PANEL_ROWS], size_t n_bytes,
                             enum weight_kind kind, size_t unit)
{
    for (size_t at = 0; at < n_bytes; at += VECTOR_BYTES) {
        __m256i v[PANEL_ROWS];

#pragma GCC unroll 8
        for (size_t r = 0; r < PANEL_ROWS; r++) {
            v[r] = panel_bytes(row[r], at, kind, unit);
        }
        transpose8(v);
#pragma GCC unroll 8
        for (size_t j = 0; j < PANEL_ROWS; j++) {
            _mm256_storeu_si256((__m256i *)(void *)(units + at * PANEL_ROWS + j * VECTOR_BYTES),
                                v[j]);
        }
    }
}

SIMD_INLINE void panel_fill(struct panel *p, float *tile, const struct weight *w, size_t n,
                            size_t n_end, const struct act_form *f, enum weight_kind kind)
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
    for (size_t i = 0; !w->zeros && i < PANEL_ROWS * f->n_groups; i++) {
        zeros[i] = zero_one(w, 0);
    }
    four_scales(scales, zeros, PANEL_ROWS, w, rows, f);
    four_scales(scales + TILE_ROWS, zeros + TILE_ROWS, PANEL_ROWS, w, rows + TILE_ROWS, f);
    if (f->unit == WEIGHT_BLOCK) {
        panel_units(units, row, f->n_in * f->value_bytes, kind, WEIGHT_BLOCK);
    } else {
        panel_units(units, row, f->n_in * f->value_bytes, kind, 2 * WEIGHT_BLOCK);
    }
    *p = (struct panel){.units = units, .scales = scales, .zeros = zeros};
}

SIMD_INLINE __m256i broadcast_unit(const uint8_t *p)
{
    int32_t unit;

    memcpy(&unit, p, sizeof unit);
    return _mm256_set1_epi32(unit);
}

SIMD_INLINE void panel_product(__m256 sum[PANEL_INPUTS], const struct panel *p,
                               const struct act_form *f, const uint8_t *const x[PANEL_INPUTS],
                               enum weight_kind kind, size_t group_bytes)
{
#pragma GCC unroll 4
    for (int i = 0; i < PANEL_INPUTS; i++) {
        sum[i] = _mm256_setzero_ps();
    }
    for (size_t g = 0; g < f->n_groups; g++) {
        __m256i isum[PANEL_INPUTS];
        __m256i zeros = load_bytes((const uint8_t *)(p->zeros + g * PANEL_ROWS));
        __m256 scales = _mm256_loadu_ps(p->scales + g * PANEL_ROWS);

#pragma GCC unroll 4
        for (int i = 0; i < PANEL_INPUTS; i++) {
            isum[i] = _mm256_setzero_si256();
        }
        for (size_t at = 0; at < group_bytes; at += UNITS_SAFE * UNIT_BYTES) {
            __m256i part[PANEL_INPUTS];

#pragma GCC unroll 8
            for (size_t k = 0; k < UNITS_SAFE * UNIT_BYTES; k += UNIT_BYTES) {
                size_t where = g * group_bytes + at + k;
                __m256i w = load_bytes(p->units + where * PANEL_ROWS);

#pragma GCC unroll 4
                for (int i = 0; i < PANEL_INPUTS; i++) {
                    __m256i in = broadcast_unit(x[i] + where);

                    part[i] = k == 0 ? dot_first(kind, w, in) : dot_next(kind, part[i], w, in);
                }
            }
#pragma GCC unroll 4
            for (int i = 0; i < PANEL_INPUTS; i++) {
                isum[i] = _mm256_add_epi32(isum[i], dot_fold(kind, part[i]));
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < PANEL_INPUTS; i++) {
            __m256i x_sum = _mm256_set1_epi32(act_sums(f, x[i])[g]);
            __m256 both = _mm256_mul_ps(scales, _mm256_broadcast_ss(act_scales(f, x[i]) + g));

            isum[i] = _mm256_sub_epi32(isum[i], _mm256_mullo_epi32(zeros, x_sum));
            sum[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum[i]), both, sum[i]);
        }
    }
}

SIMD_INLINE void panel_inputs(const struct linear_job *job, const struct panel *p, size_t n,
                              size_t n_rows, const uint8_t *next, size_t next_bytes,
                              enum weight_kind kind, size_t group_bytes)
{
    size_t n_parts = (job->n_x + PANEL_INPUTS - 1) / PANEL_INPUTS;

    for (size_t i = 0; i < job->n_x; i += PANEL_INPUTS) {
        const uint8_t *x[PANEL_INPUTS];
        __m256 sum[PANEL_INPUTS];

        for (size_t j = 0; j < PANEL_INPUTS; j++) {
            x[j] = linear_job_act(job, i + j < job->n_x ? i + j : job->n_x - 1);
        }
        prefetch_share(next, next_bytes, i / PANEL_INPUTS, n_parts);
        panel_product(sum, p, job->form, x, kind, group_bytes);
        for (size_t j = 0; j < PANEL_INPUTS && i + j < job->n_x; j++) {
            float *out = job->out + (i + j) * job->out_stride + n;

            if (job->accumulates) {
                sum[j] = _mm256_add_ps(simd_load_tail(out, n_rows), sum[j]);
            }
            simd_store_tail(out, sum[j], n_rows);
        }
    }
}

SIMD_INLINE void panels(const struct linear_job *job, const struct weight *w, size_t n0, size_t n1,
                        enum weight_kind kind, size_t group)
{
    size_t row_bytes = weight_row_bytes(w);
    size_t group_bytes = kind == WEIGHT_INT4 ? group : group * VALUE_BYTES_INT8;

    for (size_t n = n0; n < n1; n += PANEL_ROWS) {
        size_t n_rows = n1 - n < PANEL_ROWS ? n1 - n : PANEL_ROWS;
        const uint8_t *next = (const uint8_t *)w->data + (n + PANEL_ROWS) * row_bytes;
        struct panel p;

        panel_fill(&p, job->tile, w, n, n1, job->form, kind);
        panel_inputs(job, &p, n, n_rows, next, PANEL_ROWS * row_bytes, kind, group_bytes);
    }
}

static void linear_int8_panels(const struct linear_job *job, const struct weight *w, size_t n0,
                               size_t n1)
{
    size_t group = job->form->group;

    if (job->n_x < INPUTS_FOR_PANEL) {
        linear_int8_ymm(job, w, n0, n1);
    } else if (w->kind == WEIGHT_INT4) {
        group == 128 ? panels(job, w, n0, n1, WEIGHT_INT4, 128)
                     : panels(job, w, n0, n1, WEIGHT_INT4, group);
    } else {
        group == 128 ? panels(job, w, n0, n1, WEIGHT_INT8, 128)
                     : panels(job, w, n0, n1, WEIGHT_INT8, group);
    }
}

#endif
