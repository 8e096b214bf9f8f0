/* linear_int8_amx.c - products with int8 activations for AMX: many inputs at a time.
 *
 * Place: backend/cpu; tested bit for bit against linear_int8_ref.c. Few inputs, inputs that are no
 *        neighbours and groups that are no multiple of 64 go to linear_int8_avx512vnni.c, which gives
 *        the same bits: which of the two computes a row does not show.
 * Idea:  one instruction multiplies 16 inputs of 64 bytes with 64 x 16 weights and keeps 256 exact integer
 *        sums. Per group of inputs the weights of two panels of 16 rows are unpacked, less their zeros, to
 *        the order that the instruction reads; they stay in four tile registers while all inputs of a
 *        block pass by:
 *
 *                                B: weights, panel 0 | panel 1
 *                                   tile 4  (k 0..63)    tile 5
 *                                   tile 6  (k 64..127)  tile 7
 *            A: tile 2 | tile 3     C: tile 0            tile 1       then C to memory, and
 *            16 inputs                                                sum = fma(C, scales, sum)
 *
 *        The float sums of a block live in memory, in the first level cache. Turning integers into floats
 *        costs as much as the products, so it is done for one tile of inputs while the next but
 *        one is multiplied.
 * Rows:  all tiles of a block have the same number of inputs; the last begins early enough to be full, and
 *        what it computes a second time is dropped. */
#if defined(__x86_64__)

#include <stdalign.h>
#include <string.h>

#include "backend/cpu/cpu_x86.h"
#include "backend/cpu/simd_amx.h"
#include "backend/cpu/simd_avx512.h"

enum {
    PANELS = 2,
    PANEL_ROWS = 16,
    PAIR_ROWS = PANELS * PANEL_ROWS,
    STEP = 64,      /* inputs per product */
    INPUTS_MIN = 4, /* fewer do not pay for unpacking */
    INPUTS_MIN_INT8 = 16,
    BLOCK_TILES = 8, /* of inputs */
    BLOCK_INPUTS = BLOCK_TILES * TILE_LINES,
    GROUPS_AHEAD = 3, /* weights are fetched */
    LATE = 2,         /* tiles of sums that wait for being added */
    CACHE_LINE = 64,
};

/* The scales take no more of the job's scratch than int8_tile_floats() gives: 16 bytes per input for the
 * block's, whose groups have 64 inputs or more, and 128 per group. */
_Static_assert(BLOCK_INPUTS * sizeof(float) <= INT8_TILE_ROWS * STEP &&
                   PAIR_ROWS <= 2 * INT8_TILE_ROWS,
               "scratch");

/* A block of inputs against a pair of panels. */
struct block {
    const struct linear_job *job;
    const struct weight *w;
    size_t first, n_inputs; /* of the job's inputs */
    size_t n_tiles, tile_inputs;
    size_t done;                   /* inputs at the beginning that an earlier block has computed */
    const uint8_t *row[PAIR_ROWS]; /* packed values of the pair's rows */
    size_t scales_at[PAIR_ROWS];   /* first scale of each */
    size_t to_next;                /* bytes to the pair that is next, 0: none */
    float *scales;                 /* [n_groups][32] of the weights */
    float *x_scales;               /* [n_groups][BLOCK_INPUTS] */
    alignas(64) uint8_t units[PANELS][INT8_GROUP_MAX / STEP][TILE_BYTES];
    /* Integer sums of the last products, as a ring: a load soon after a tile's store waits for it. */
    alignas(64) int32_t c[LATE + 1][PANELS][TILE_LINES][PANEL_ROWS];
    struct {
        size_t tile, group;
    } of[LATE + 1];
    size_t now, n_late;
    alignas(64) float sum[BLOCK_INPUTS][PANELS][PANEL_ROWS];
};

/* The input, counted within the block, that tile t begins with. */
static inline size_t tile_first(const struct block *b, size_t t)
{
    size_t first = t * b->tile_inputs, last = b->n_inputs - b->tile_inputs;

    return first < last ? first : last;
}

/* --- scales, transposed: neighbours belong to neighbouring rows or inputs --- */

static void weight_scales(const struct block *b)
{
    const struct act_form *f = b->job->form;
    const uint8_t *data = (const uint8_t *)b->w->scales;
    size_t each = b->w->dtype == DTYPE_F32 ? 4 : 2, per_scale = b->w->group / f->group;

    if (per_scale > 1) { /* large groups, which the activations cut */
        for (size_t i = 0; i < f->n_groups * PAIR_ROWS; i++) {
            size_t at = b->scales_at[i % PAIR_ROWS] + i / PAIR_ROWS / per_scale;

            b->scales[i] = _mm512_cvtss_f32(simd_load16(b->w->dtype, data + at * each, 1));
        }
        return;
    }
    for (size_t g = 0; g < f->n_groups; g += 16) {
        size_t n = f->n_groups - g < 16 ? f->n_groups - g : 16;

        for (size_t p = 0; p < PANELS; p++) {
            __m512i v[16];

#pragma GCC unroll 16
            for (size_t r = 0; r < 16; r++) {
                size_t at = b->scales_at[p * PANEL_ROWS + r] + g;

                v[r] = _mm512_castps_si512(simd_load16(b->w->dtype, data + at * each, n));
            }
            simd_transpose16(v);
            for (size_t j = 0; j < n; j++) {
                _mm512_storeu_si512(b->scales + (g + j) * PAIR_ROWS + p * PANEL_ROWS, v[j]);
            }
        }
    }
}

static void input_scales(const struct block *b)
{
    const struct act_form *f = b->job->form;

    for (size_t t = 0; t < b->n_tiles; t++) {
        size_t first = b->first + tile_first(b, t);

        for (size_t g = 0; g < f->n_groups; g += 16) {
            size_t n = f->n_groups - g < 16 ? f->n_groups - g : 16;
            __m512i v[16];

#pragma GCC unroll 16
            for (size_t r = 0; r < 16; r++) {
                size_t i = first + (r < b->tile_inputs ? r : b->tile_inputs - 1);

                v[r] = _mm512_maskz_loadu_epi32(simd_mask16(n),
                                                act_scales(f, linear_job_act(b->job, i)) + g);
            }
            simd_transpose16(v);
            for (size_t j = 0; j < n; j++) {
                _mm512_storeu_si512(b->x_scales + (g + j) * BLOCK_INPUTS + t * TILE_LINES, v[j]);
            }
        }
    }
}

/* --- weights of a group, unpacked --- */

/* Each lane's zero in its four bytes. */
static __m512i zeros_of(const struct block *b, size_t panel, size_t g)
{
    size_t per_scale = b->w->group / b->job->form->group;
    uint8_t zero[PANEL_ROWS];

    if (!b->w->zeros) {
        return _mm512_set1_epi8(b->w->kind == WEIGHT_INT4 ? 8 : -128);
    }
    for (size_t r = 0; r < PANEL_ROWS; r++) {
        zero[r] = b->w->zeros[b->scales_at[panel * PANEL_ROWS + r] + g / per_scale];
    }
    return _mm512_mullo_epi32(
        _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)zero)),
        _mm512_set1_epi32(0x01010101));
}

/* 64 bytes of each row hold 128 values. Dword j of a row has the values 4j .. 4j + 3 of the record in its
 * low nibbles and 32 further ones in its high nibbles, twice over (cpu_kernels.h, unit 64). */
SIMD_INLINE void unpack_int4(uint8_t (*units)[TILE_BYTES], const uint8_t *const *row, size_t at,
                             size_t n, __m512i zeros, size_t ahead)
{
    __m512i nibble = _mm512_set1_epi8(15), v[16];
    __mmask16 mask = simd_mask16(n / 8);

#pragma GCC unroll 16
    for (size_t r = 0; r < 16; r++) {
        v[r] = _mm512_maskz_loadu_epi32(mask, row[r] + at);
        _mm_prefetch((const char *)row[r] + at + ahead, _MM_HINT_T0);
    }
    simd_transpose16(v);
#pragma GCC unroll 2
    for (size_t half = 0; half < n / STEP; half++) {
#pragma GCC unroll 8
        for (size_t j = 0; j < 8; j++) {
            __m512i low = _mm512_and_si512(v[8 * half + j], nibble);
            __m512i high = _mm512_and_si512(_mm512_srli_epi16(v[8 * half + j], 4), nibble);

            _mm512_store_si512(units[half] + j * TILE_LINE_BYTES, _mm512_sub_epi8(low, zeros));
            _mm512_store_si512(units[half] + (8 + j) * TILE_LINE_BYTES,
                               _mm512_sub_epi8(high, zeros));
        }
    }
}

SIMD_INLINE void unpack_int8(uint8_t *units, const uint8_t *const *row, size_t at, __m512i zeros,
                             size_t ahead)
{
    __m512i v[16];

#pragma GCC unroll 16
    for (size_t r = 0; r < 16; r++) {
        v[r] = _mm512_loadu_si512(row[r] + at);
        _mm_prefetch((const char *)row[r] + at + ahead, _MM_HINT_T0);
    }
    simd_transpose16(v);
#pragma GCC unroll 16
    for (size_t j = 0; j < 16; j++) {
        _mm512_store_si512(units + j * TILE_LINE_BYTES, _mm512_sub_epi8(v[j], zeros));
    }
}

static void unpack_group(struct block *b, size_t panel, size_t g, enum weight_kind kind)
{
    size_t group = b->job->form->group, n_groups = b->job->form->n_groups;
    size_t group_bytes = kind == WEIGHT_INT4 ? group / 2 : group;
    size_t ahead = GROUPS_AHEAD * group_bytes; /* past the row's end: the row in the next pair */
    const uint8_t *const *row = b->row + panel * PANEL_ROWS;
    __m512i zeros = zeros_of(b, panel, g);

    if (g + GROUPS_AHEAD >= n_groups) {
        ahead = b->to_next > 0 ? ahead + b->to_next - n_groups * group_bytes : 0;
    }
    if (kind == WEIGHT_INT4) {
        for (size_t k = 0; k < group; k += 2 * STEP) {
            size_t n = group - k < 2 * STEP ? group - k : 2 * STEP;

            unpack_int4(b->units[panel] + k / STEP, row, (g * group + k) / 2, n, zeros, ahead);
        }
    } else {
        for (size_t k = 0; k < group; k += STEP) {
            unpack_int8(b->units[panel][k / STEP], row, g * group + k, zeros, ahead);
        }
    }
}

/* --- products --- */

/* sum += C * scales for the oldest product in the ring. */
SIMD_INLINE void add_oldest(struct block *b, size_t panels)
{
    size_t at = (b->now + LATE + 1 - b->n_late) % (LATE + 1);
    size_t first = b->of[at].tile * TILE_LINES, g = b->of[at].group, n = b->tile_inputs;
    const float *x_scales = b->x_scales + g * BLOCK_INPUTS + first;
    __m512 scales[PANELS];

    for (size_t p = 0; p < panels; p++) {
        scales[p] = _mm512_loadu_ps(b->scales + g * PAIR_ROWS + p * PANEL_ROWS);
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < n; r++) {
        float(*sum)[PANEL_ROWS] = b->sum[first + r];

        for (size_t p = 0; p < panels; p++) {
            __m512 isum = _mm512_cvtepi32_ps(_mm512_load_si512(b->c[at][p][r]));
            __m512 both = _mm512_mul_ps(scales[p], _mm512_set1_ps(x_scales[r]));

            _mm512_store_ps(sum[p], _mm512_fmadd_ps(isum, both, _mm512_load_ps(sum[p])));
        }
    }
    b->n_late--;
}

SIMD_INLINE void keep_product(struct block *b, size_t t, size_t g, size_t panels)
{
    _tile_stored(0, b->c[b->now][0], TILE_LINE_BYTES);
    if (panels == 2) {
        _tile_stored(1, b->c[b->now][1], TILE_LINE_BYTES);
    }
    b->of[b->now].tile = t;
    b->of[b->now].group = g;
    b->now = b->now == LATE ? 0 : b->now + 1;
    b->n_late++;
}

/* Rows of inputs lie too far apart for the hardware to see what comes next. */
SIMD_INLINE void fetch_inputs(const uint8_t *x, size_t stride, size_t n, size_t group)
{
    for (size_t r = 0; r < n; r++) {
        for (size_t k = 0; k < group; k += CACHE_LINE) {
            _mm_prefetch((const char *)x + r * stride + k, _MM_HINT_T0);
        }
    }
}

/* Group g of all inputs. steps: products per group, a constant where it is 1 or 2. */
SIMD_INLINE void group_product(struct block *b, size_t g, size_t panels, size_t steps)
{
    const struct act_form *f = b->job->form;
    size_t stride = f->row_bytes, group = steps * STEP;
    const uint8_t *x = linear_job_act(b->job, b->first) + g * group;

    if (steps <= 2) {
        _tile_loadd(4, b->units[0][0], TILE_LINE_BYTES);
    }
    if (steps <= 2 && panels == 2) {
        _tile_loadd(5, b->units[1][0], TILE_LINE_BYTES);
    }
    if (steps == 2) {
        _tile_loadd(6, b->units[0][1], TILE_LINE_BYTES);
    }
    if (steps == 2 && panels == 2) {
        _tile_loadd(7, b->units[1][1], TILE_LINE_BYTES);
    }
    for (size_t t = 0; t < b->n_tiles; t++) {
        const uint8_t *a = x + tile_first(b, t) * stride;

        fetch_inputs(t + 1 < b->n_tiles ? x + tile_first(b, t + 1) * stride : x + group, stride,
                     b->tile_inputs, group);
        _tile_zero(0);
        _tile_zero(1);
        for (size_t s = 0; steps > 2 && s < steps; s++) {
            _tile_loadd(2, a + s * STEP, stride);
            _tile_loadd(4, b->units[0][s], TILE_LINE_BYTES);
            _tile_dpbssd(0, 2, 4);
            if (panels == 2) {
                _tile_loadd(5, b->units[1][s], TILE_LINE_BYTES);
                _tile_dpbssd(1, 2, 5);
            }
        }
        if (steps <= 2) {
            _tile_loadd(2, a, stride);
            _tile_dpbssd(0, 2, 4);
            if (panels == 2) {
                _tile_dpbssd(1, 2, 5);
            }
        }
        if (steps == 2) {
            _tile_loadd(3, a + STEP, stride);
            _tile_dpbssd(0, 3, 6);
            if (panels == 2) {
                _tile_dpbssd(1, 3, 7);
            }
        }
        if (b->n_late == LATE) {
            add_oldest(b, panels);
        }
        keep_product(b, t, g, panels);
    }
}

SIMD_INLINE void pair_product(struct block *b, size_t panels, size_t steps, enum weight_kind kind)
{
    for (size_t g = 0; g < b->job->form->n_groups; g++) {
        for (size_t p = 0; p < panels; p++) {
            unpack_group(b, p, g, kind);
        }
        tile_stores_done();
        group_product(b, g, panels, steps);
    }
    while (b->n_late > 0) {
        add_oldest(b, panels);
    }
}

/* Sums of the block to outputs n .. n + n_rows. */
static void put_sums(const struct block *b, size_t n, size_t n_rows)
{
    const struct linear_job *job = b->job;

    for (size_t t = 0; t < b->n_tiles; t++) {
        size_t first = tile_first(b, t);
        size_t done = t == 0 ? b->done : t * b->tile_inputs - first;

        for (size_t r = done; r < b->tile_inputs; r++) {
            float *out = job->out + (b->first + first + r) * job->out_stride + n;

            for (size_t p = 0; p * PANEL_ROWS < n_rows; p++) {
                size_t left = n_rows - p * PANEL_ROWS;
                __mmask16 mask = simd_mask16(left < PANEL_ROWS ? left : PANEL_ROWS);
                __m512 sum = _mm512_load_ps(b->sum[t * TILE_LINES + r][p]);

                if (job->accumulates) {
                    sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out + p * PANEL_ROWS), sum);
                }
                _mm512_mask_storeu_ps(out + p * PANEL_ROWS, mask, sum);
            }
        }
    }
}

/* All outputs for the inputs of b. */
SIMD_INLINE void block_product(struct block *b, size_t n0, size_t n1, enum weight_kind kind)
{
    size_t row_bytes = weight_row_bytes(b->w), n_scales = weight_n_groups(b->w);
    size_t steps = b->job->form->group / STEP;

    input_scales(b);
    for (size_t n = n0; n < n1; n += PAIR_ROWS) {
        size_t n_rows = n1 - n < PAIR_ROWS ? n1 - n : PAIR_ROWS;

        for (size_t r = 0; r < PAIR_ROWS; r++) {
            size_t at = r < n_rows ? n + r : n1 - 1;

            b->row[r] = (const uint8_t *)b->w->data + at * row_bytes;
            b->scales_at[r] = at * n_scales;
        }
        b->to_next = n + n_rows < n1 ? PAIR_ROWS * row_bytes : 0;
        weight_scales(b);
        memset(b->sum, 0, b->n_tiles * TILE_LINES * sizeof b->sum[0]);
        if (n_rows <= PANEL_ROWS) {
            pair_product(b, 1, steps, kind);
        } else if (steps == 2) {
            pair_product(b, 2, 2, kind);
        } else if (steps == 1) {
            pair_product(b, 2, 1, kind);
        } else {
            pair_product(b, 2, steps, kind);
        }
        put_sums(b, n, n_rows);
    }
}

static size_t divide_up(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

static void all_blocks(const struct linear_job *job, const struct weight *w, size_t n0, size_t n1)
{
    size_t n_tiles = divide_up(job->n_x, TILE_LINES), tile = divide_up(job->n_x, n_tiles);
    size_t step = tile * divide_up(n_tiles, divide_up(n_tiles, BLOCK_TILES));
    struct block b; /* large, so not cleared */

    b.job = job;
    b.w = w;
    b.tile_inputs = tile;
    b.now = b.n_late = 0;
    b.scales = job->tile;
    b.x_scales = job->tile + PAIR_ROWS * job->form->n_groups;
    tile_open(tile);
    for (size_t i = 0; i < job->n_x; i += step) {
        size_t left = job->n_x - i;

        b.n_inputs = left > step ? step : left < tile ? tile : left;
        b.done = left < tile ? tile - left : 0;
        b.first = i - b.done;
        b.n_tiles = divide_up(b.n_inputs, tile);
        if (w->kind == WEIGHT_INT4) {
            block_product(&b, n0, n1, WEIGHT_INT4);
        } else {
            block_product(&b, n0, n1, WEIGHT_INT8);
        }
    }
    tile_close();
}

void linear_int8_amx(const struct linear_job *job, const struct weight *w, size_t n0, size_t n1)
{
    /* Few inputs and int8 weights are a decode step: dense matrices, read from memory. Four sequences at
     * once were a third slower with tiles than without. */
    size_t n_min = w->kind == WEIGHT_INT4 ? INPUTS_MIN : INPUTS_MIN_INT8;
    /* An int8 value less its zero needs nine bits, unless all zeros are the middle. */
    bool fits = job->form->group % STEP == 0 && (w->kind == WEIGHT_INT4 || !w->zeros);

    if (fits && job->n_x >= n_min && !job->x_rows) {
        all_blocks(job, w, n0, n1);
    } else {
        linear_int8_avx512vnni(job, w, n0, n1);
    }
}

#endif
