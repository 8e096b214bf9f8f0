/* linear_gemv_int8.cu - int8 weights times one row of 16-bit activations.
 *
 * Place:  backend/cuda/kernels; launched by cuda_linear.c for symmetric weights. linear_gemv_dot.cuh has the idea.
 * Less:   a step of one row is over when the weights have passed by once, so what is done for each 16 bytes of
 *         them decides. Against linear_gemv_dot.cuh: the zero, 128, is taken off the planes' sums where they
 *         are made; scales come a tile at a time, become floats once, and are read from shared memory; a
 *         thread turns eight inputs at a time into planes. So there is room for three blocks.
 * Exact:  as linear_gemv_dot.cuh. With two planes the integers have 16 bits: bfloat16 is exact within 2^7 of
 *         the largest of its chunk, float16 within 2^4; smaller ones are off by at most 2^-15 of the largest.
 * Beside: dense matrices with the same inputs (a delta net's gates stay floats) are the first blocks.
 * Shared: sums of slices, scales [warp][of a tile], then per step and lane 16 bytes each: the planes, the
 *         highest first, [lane], and [lane] of {what their sums start at, the power of two}.
 * Not finite: the power of two is NaN then. */
#include "backend/cuda/kernels/linear_gemv_rows.cuh"

enum {
    INT8_TILE = LINEAR_INT8_TILE,
    INT8_STEPS = 2,                         /* on their way */
    INT8_PLANES = 3,                        /* or 2 */
    INT8_BITS = INT8_PLANES == 3 ? 21 : 14, /* of an input below its highest */
    INT8_ROOM =
        INT8_PLANES == 3 ? 2 : 256, /* half of its last bit, and more, in those of a float */
    INT8_STEP_WORDS = (INT8_PLANES + 1) * DOT_UNIT, /* of x in shared memory */
    SCALE_WORDS = LINEAR_INT8_SCALES / 4 / WARP,    /* of a lane */
    SCALE_FLOATS = LINEAR_INT8_SCALES / 2,          /* of a warp, in shared memory */
    SUM_START = 0x4b400000                          /* bits of 1.5 * 2^23, see dot_multiply() */
};

struct int8_piece {
    uint4 w[INT8_TILE];
};

struct int8_tile {
    struct tile_rows<1> first;
    uint32_t more[INT8_TILE - 1]; /* bytes from the first row to the others */
};

/* --- inputs --- */

/* Four inputs as words of the planes, the highest first; their bits are those of fixed_bits(). */
DEVICE void int8_planes(uint32_t plane[INT8_PLANES], float4 v, float factor)
{
    uint32_t x = fixed_bits(v.x, factor), y = fixed_bits(v.y, factor);
    uint32_t z = fixed_bits(v.z, factor), w = fixed_bits(v.w, factor);
    uint32_t xy = __byte_perm(x, y, 0x5140), zw = __byte_perm(z, w, 0x5140); /* x0 y0 x1 y1 */

    plane[INT8_PLANES - 1] = __byte_perm(xy, zw, 0x5410);
    plane[INT8_PLANES - 2] = __byte_perm(xy, zw, 0x7632);
    if (INT8_PLANES == 3) { /* too large by 64: subtract it from each byte, without borrowing */
        plane[0] = __byte_perm(__byte_perm(x, y, 0x0062), __byte_perm(z, w, 0x0062), 0x5410);
        plane[0] = ((plane[0] | 0x80808080u) - 0x40404040u) ^ 0x80808080u;
    }
}

DEVICE uint32_t most_of(uint32_t most, float4 v)
{
    return max(max(most, max(magnitude_bits(v.x), magnitude_bits(v.y))),
               max(magnitude_bits(v.z), magnitude_bits(v.w)));
}

/* A thread has eight inputs at a time, so that two lanes share a chunk. */
template <int WARPS>
DEVICE void int8_stage(uint32_t *shared, const struct linear_args *a, const float *norm)
{
    ROLLED
    for (int i = (int)threadIdx.x; i < a->x_stride / 8; i += WARP * WARPS) {
        uint32_t *to = shared + i / (2 * WARP) * INT8_STEP_WORDS + i % (2 * WARP) * 2;
        uint32_t exponent, plane[2][INT8_PLANES], start[INT8_PLANES], most, unit;
        float4 v[2][1];
        float factor;

        ready_quads<1, true>(v[0], a, norm, a->x, 0, 1, 8 * i);
        ready_quads<1, true>(v[1], a, norm, a->x, 0, 1, 8 * i + 4);
        most = most_of(most_of(0, v[0][0]), v[1][0]);
        most = max(most, shuffle_xor(most, 1));
        /* What rounds up to a power of two has its exponent. Far below, where the factor would not be a
         * float, bits get lost. */
        exponent = max((most + INT8_ROOM) >> 23, 24u);
        factor = f32_from_bits((254u + INT8_BITS - exponent) << 23);
        int8_planes(plane[0], v[0][0], factor);
        int8_planes(plane[1], v[1][0], factor);
        UNROLL
        for (int p = 0; p < INT8_PLANES; p++) {
            int32_t sum = dot_plane(p, DOT_ONES, plane[0][p], 0);

            sum = dot_plane(p, DOT_ONES, plane[1][p], sum);
            sum += shuffle_xor(sum, 1);
            start[p] = (uint32_t)(SUM_START - 128 * sum);
            *(uint2 *)(to + p * DOT_UNIT) = make_uint2(plane[0][p], plane[1][p]);
        }
        unit = exponent >= 255 ? 0x7fc00000u : (exponent - INT8_BITS) << 23;
        *(uint2 *)(to + INT8_PLANES * DOT_UNIT) =
            i % 2 == 0 ? make_uint2(start[0], start[1]) : make_uint2(start[INT8_PLANES - 1], unit);
    }
}

/* --- weights --- */

DEVICE void int8_open(struct int8_tile *r, const struct linear_args *a, int tile)
{
    tile_open(&r->first, a, tile, INT8_TILE, 0, 1, 0);
    if (r->first.p >= 0) {
        int last = a->part[r->first.p].n_out - 1 - r->first.n0;

        UNROLL
        for (int t = 1; t < INT8_TILE; t++) {
            r->more[t - 1] = 16u * (uint32_t)(min(t, last) * a->n_chunks);
        }
    }
}

/* Lanes past a row's end take its last weights: their inputs are zero. */
DEVICE void int8_fetch(struct int8_piece *f, const struct linear_args *a, const struct int8_tile *r,
                       int step)
{
    uint32_t at = 16u * (uint32_t)min(step * WARP + (int)threadIdx.x % WARP, a->n_chunks - 1);

    if (r->first.p < 0) {
        return;
    }
    f->w[0] = stream16(r->first.data[0] + at);
    UNROLL
    for (int t = 1; t < INT8_TILE; t++) {
        f->w[t] = stream16(r->first.data[0] + at + r->more[t - 1]);
    }
}

/* The scales of a tile's rows, which lie one after the other, in words. */
DEVICE void scales_fetch(uint32_t raw[SCALE_WORDS], const struct linear_args *a,
                         const struct int8_tile *r)
{
    if (r->first.p >= 0) {
        const struct linear_part *part = &a->part[r->first.p];
        uint32_t each = part->dtype == DTYPE_F32 ? 4 : 2, at = r->first.group_at[0] * each / 4;
        uint32_t n = (uint32_t)(INT8_TILE * part->n_groups) * each / 4;
        uint32_t last = (uint32_t)part->n_out * (uint32_t)part->n_groups * each / 4 - 1;

        UNROLL
        for (int i = 0; i < SCALE_WORDS; i++) {
            if ((uint32_t)(i * WARP) < n) {
                uint32_t word = at + (uint32_t)(i * WARP + (int)threadIdx.x % WARP);

                raw[i] = ((const uint32_t *)part->scales)[min(word, last)];
            }
        }
    }
}

DEVICE void scales_put(float *scales, int dtype, const uint32_t raw[SCALE_WORDS])
{
    warp_sync(); /* the last tile's have been used */
    UNROLL
    for (int i = 0; i < SCALE_WORDS; i++) {
        int at = i * WARP + (int)threadIdx.x % WARP;

        if (dtype == DTYPE_F32) {
            scales[at] = f32_from_bits(raw[i]);
        } else {
            *(float2 *)(scales + 2 * at) =
                make_float2(scale_value(dtype, raw[i] & 0xffffu), scale_value(dtype, raw[i] >> 16));
        }
    }
    warp_sync();
}

/* sums += the piece's weights times its inputs. x: the lane's first 16 bytes of the step. */
DEVICE void int8_multiply(float sums[INT8_TILE][1], const struct int8_piece *f, const uint32_t *x,
                          const float *scales, int n_groups)
{
    uint4 about = *(const uint4 *)(x + INT8_PLANES * DOT_UNIT), in[INT8_PLANES];
    uint32_t start[3] = {about.x, about.y, about.z};

    UNROLL
    for (int p = 0; p < INT8_PLANES; p++) {
        in[p] = *(const uint4 *)(x + p * DOT_UNIT);
    }
    UNROLL
    for (int t = 0; t < INT8_TILE; t++) {
        float dot = 0;

        UNROLL
        for (int p = 0; p < INT8_PLANES; p++) {
            int32_t sum = (int32_t)start[p];

            sum = dot_plane(p, f->w[t].x, in[p].x, sum);
            sum = dot_plane(p, f->w[t].y, in[p].y, sum);
            sum = dot_plane(p, f->w[t].z, in[p].z, sum);
            sum = dot_plane(p, f->w[t].w, in[p].w, sum);
            dot = dot * 256.0f + (f32_from_bits((uint32_t)sum) - 12582912.0f);
        }
        sums[t][0] += dot * (f32_from_bits(about.w) * scales[t * n_groups]);
    }
}

/* --- the product --- */

DEVICE void int8_product(const struct linear_args *a, float *shared, int block, int n_blocks)
{
    enum { WARPS = LINEAR_WARPS_FEW, SLICE_SUMS = WARPS * INT8_TILE };
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int n_slices = a->n_slices, slice = warp & (n_slices - 1),
        at_once = opaque(WARPS >> a->slices_log2);
    int first = block * at_once, tile = first + (warp >> a->slices_log2), n_rows;
    float *scales = shared + 2 * SLICE_SUMS + warp * SCALE_FLOATS;
    uint32_t *x = (uint32_t *)(shared + 2 * SLICE_SUMS + WARPS * SCALE_FLOATS);
    float *norm = (float *)x + a->x_stride;
    struct int8_tile next = {};
    struct int8_piece f[INT8_STEPS];
    uint32_t raw[SCALE_WORDS] = {};

    n_rows = *a->n_rows; /* the step's tables were there before its first kernel */
    int8_open(&next, a, tile);
    UNROLL
    for (int u = 0; u < INT8_STEPS; u++) {
        int8_fetch(&f[u], a, &next, slice + u * n_slices);
    }
    scales_fetch(raw, a, &next);
    norm_begin(norm, a);
    depend_wait();
    if (n_rows <= 0) {
        copy_wait<0>();
        return;
    }
    if (a->norm) {
        norm_factors<1>(norm, a, a->x, 1);
    }
    int8_stage<WARPS>(x, a, norm);
    block_sync();
    for (int turn = 0; first < a->n_tiles; turn++) {
        float sums[INT8_TILE][1] = {};
        int p = next.first.p, n0 = next.first.n0, step = slice;
        const struct linear_part *part = &a->part[max(p, 0)];
        int n_groups = part->n_groups;
        bool is_last;

        scales_put(scales, part->dtype, raw);
        first += n_blocks * at_once;
        tile += n_blocks * at_once;
        do {
            int after = step + INT8_STEPS * n_slices;

            is_last = after >= a->n_steps;
            if (is_last) {
                int8_open(&next, a, tile);
                scales_fetch(raw, a, &next);
                after = slice;
            }
            UNROLL
            for (int u = 0; u < INT8_STEPS; u++) {
                int s = opaque(step + u * n_slices);

                if (s < a->n_steps) {
                    int chunk = min(s * WARP + lane, a->n_chunks - 1);

                    int8_multiply(sums, &f[u], x + s * INT8_STEP_WORDS + 4 * lane,
                                  scales + group_of(part, (uint32_t)chunk / 2), n_groups);
                }
                int8_fetch(&f[u], a, &next, opaque(after + u * n_slices));
            }
            step = after;
        } while (!is_last);
        finish<INT8_TILE, 1>(a, sums, shared + turn % 2 * SLICE_SUMS, p, n0);
    }
}

KERNEL(linear_gemv_int8_one, linear_pair_args, WARP *LINEAR_WARPS_FEW, 3)
{
    DYNAMIC_SHARED(float, shared);
    int block = (int)blockIdx.x, n_beside = a.beside_blocks;

    depend_launch();
    if (block >= n_beside) {
        int8_product(&a.main, shared, block - n_beside, (int)gridDim.x - n_beside);
    } else if (a.beside.part[0].dtype == DTYPE_BF16) {
        gemv<GEMV_BF16, 2, 2, 1, LINEAR_WARPS_FEW>(&a.beside, shared, block, n_beside);
    } else if (a.beside.part[0].dtype == DTYPE_F16) {
        gemv<GEMV_F16, 2, 2, 1, LINEAR_WARPS_FEW>(&a.beside, shared, block, n_beside);
    } else {
        gemv<GEMV_F32, 2, 2, 1, LINEAR_WARPS_FEW>(&a.beside, shared, block, n_beside);
    }
}
