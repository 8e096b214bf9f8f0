/* linear_gemv_dot.cuh - quantised weights times up to 8 rows of x, in sums of bytes.
 *
 * Place:  backend/cuda/kernels; for linear_gemv.cu.
 * Idea:   turning a byte into a float costs as much as its product, and a step of one row has time for
 *         little more than either. So it is x that is turned, once per block: the inputs of a lane's 16
 *         bytes of weights become integers of 23 bits times a power of two of their own, and these are cut
 *         into three planes of bytes. One instruction then adds up four products of a plane exactly.
 * Exact:  16-bit floats within 2^13 (bfloat16: 2^14) of the largest of their chunk; else x is off by at
 *         most 2^-22 of that, which float32 sums are too.
 * Shared: per step and lane 16 bytes each: [plane, the highest first][16 inputs][lane], then [lane] of
 *         {sums of the planes, the power of two}. No more than the same inputs as float32.
 * Not finite: the power of two is NaN then. */
#ifndef BACKEND_CUDA_LINEAR_GEMV_DOT_CUH
#define BACKEND_CUDA_LINEAR_GEMV_DOT_CUH

#include "backend/cuda/kernels/linear_gemv.cuh"

enum { DOT_PLANES = 3, DOT_ONES = 0x01010101, DOT_UNIT = 4 * WARP /* words of 16 bytes a lane */ };

/* c + the products of four bytes: a without a sign, b with or without. */
#if defined(__CUDACC__)

DEVICE int32_t dot_signed(uint32_t a, uint32_t b, int32_t c)
{
    int32_t d;

    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

DEVICE int32_t dot_unsigned(uint32_t a, uint32_t b, int32_t c)
{
    uint32_t d;

    asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"((uint32_t)c));
    return (int32_t)d;
}

#else

DEVICE int32_t dot_signed(uint32_t a, uint32_t b, int32_t c)
{
    for (int i = 0; i < 32; i += 8) {
        c += (uint8_t)(a >> i) * (int8_t)(b >> i);
    }
    return c;
}

DEVICE int32_t dot_unsigned(uint32_t a, uint32_t b, int32_t c)
{
    for (int i = 0; i < 32; i += 8) {
        c += (uint8_t)(a >> i) * (uint8_t)(b >> i);
    }
    return c;
}

#endif

DEVICE int32_t dot_plane(int plane, uint32_t a, uint32_t b, int32_t c)
{
    return plane == 0 ? dot_signed(a, b, c) : dot_unsigned(a, b, c);
}

DEVICE uint32_t magnitude_bits(float v)
{
    return f32_bits(v) & 0x7fffffffu;
}

/* Bits of v / 2^(exponent - 148) as an integer plus 1.5 * 2^23: the integer has 23 bits with its sign, and
 * its lower two bytes are those of these bits. */
DEVICE uint32_t fixed_bits(float v, float factor)
{
    return f32_bits(v * factor + 12582912.0f);
}

/* Four inputs as the words of the three planes, and their power of two. The LANES threads that have a chunk's
 * inputs call together. */
template <int LANES> DEVICE float dot_planes(uint32_t plane[DOT_PLANES], float4 v)
{
    uint32_t most = max(max(magnitude_bits(v.x), magnitude_bits(v.y)),
                        max(magnitude_bits(v.z), magnitude_bits(v.w)));
    uint32_t exponent, low, high;
    float factor;

    UNROLL
    for (int m = 1; m < LANES; m *= 2) {
        most = max(most, shuffle_xor(most, m));
    }
    /* Two more in the last place: what rounds up to a power of two has its exponent. Far below, where the
     * factor would not be a float, bits get lost. */
    exponent = max((most + 2) >> 23, 24u);
    factor = f32_from_bits((275u - exponent) << 23);
    {
        uint32_t x = fixed_bits(v.x, factor), y = fixed_bits(v.y, factor);
        uint32_t z = fixed_bits(v.z, factor), w = fixed_bits(v.w, factor);

        low = __byte_perm(x, y, 0x5140), high = __byte_perm(z, w, 0x5140); /* x0 y0 x1 y1 */
        plane[2] = __byte_perm(low, high, 0x5410);
        plane[1] = __byte_perm(low, high, 0x7632);
        /* The third bytes are too large by 64: subtract it from each, without borrowing. */
        plane[0] = __byte_perm(__byte_perm(x, y, 0x0062), __byte_perm(z, w, 0x0062), 0x5410);
        plane[0] = ((plane[0] | 0x80808080u) - 0x40404040u) ^ 0x80808080u;
    }
    return f32_from_bits(exponent >= 255 ? 0x7fc00000u : (exponent - 21) << 23);
}

/* Quad j of a chunk to its places. */
template <enum gemv_kind KIND> DEVICE void dot_put(uint32_t *chunk, float4 v, int j)
{
    enum { QUADS = chunk_inputs(KIND) / 4, HALVES = QUADS / 4 };
    uint32_t plane[DOT_PLANES];
    int32_t sum[DOT_PLANES];
    float unit = dot_planes<QUADS>(plane, v);

    UNROLL
    for (int i = 0; i < DOT_PLANES; i++) {
        chunk[(i * HALVES + j / 4) * DOT_UNIT + j % 4] = plane[i];
        sum[i] = dot_plane(i, DOT_ONES, plane[i], 0);
        UNROLL
        for (int m = 1; m < QUADS; m *= 2) {
            sum[i] += shuffle_xor(sum[i], m);
        }
    }
    if (j == 0) {
        *(uint4 *)(chunk + DOT_PLANES * HALVES * DOT_UNIT) =
            make_uint4((uint32_t)sum[0], (uint32_t)sum[1], (uint32_t)sum[2], f32_bits(unit));
    }
}

template <enum gemv_kind KIND, int R, int WARPS>
DEVICE void dot_stage(uint32_t *shared, const struct linear_args *a, const float *norm,
                      const float *x, int n_rows)
{
    enum { QUADS = chunk_inputs(KIND) / 4, THREADS = WARP * WARPS, AT_ONCE = R < 4 ? R : 4 };

    ROLLED
    for (int q = (int)threadIdx.x; q < a->x_stride / 4; q += THREADS) {
        int chunk = q / QUADS, j = q % QUADS;
        uint32_t *to = shared + chunk / WARP * (WARP * 4 * QUADS) + chunk % WARP * 4;

        ROLLED
        for (int r0 = 0; r0 < R; r0 += AT_ONCE) {
            float4 v[AT_ONCE];

            ready_quads<AT_ONCE, R == 1>(v, a, norm, x, r0, n_rows, 4 * q);
            UNROLL
            for (int r = 0; r < AT_ONCE; r++) {
                dot_put<KIND>(to + (r0 + r) * a->x_stride, v[r], j);
            }
        }
    }
}

/* sum += sixteen weights, the h-th of the chunk, times the planes of their inputs. */
template <enum gemv_kind KIND>
DEVICE void dot_chunk(int32_t sum[DOT_PLANES], uint4 chunk, int h, const uint4 in[DOT_PLANES])
{
    uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};

    UNROLL
    for (int j = 0; j < 4; j++) {
        uint32_t w = KIND == GEMV_INT8 ? words[j]
                     : h == 0          ? words[j] & 0x0f0f0f0fu
                                       : words[j] >> 4 & 0x0f0f0f0fu;

        UNROLL
        for (int i = 0; i < DOT_PLANES; i++) {
            uint32_t ins[4] = {in[i].x, in[i].y, in[i].z, in[i].w};

            sum[i] = dot_plane(i, w, ins[j], sum[i]);
        }
    }
}

/* sums += the piece's weights times its inputs. x: the lane's first 16 bytes of the step. The sums of a plane
 * stay below 2^22 in magnitude, so added to the bits of 1.5 * 2^23 they are a float that many above it. */
template <enum gemv_kind KIND, int T, int R>
DEVICE void dot_multiply(float sums[T][R], const struct piece<KIND, T> *f, int scale_dtype,
                         const uint32_t *x, int x_stride)
{
    enum { HALVES = chunk_inputs(KIND) / 16 };

    UNROLL
    for (int r = 0; r < R; r++) {
        uint4 about = *(const uint4 *)(x + r * x_stride + DOT_PLANES * HALVES * DOT_UNIT);
        uint32_t in_sums[DOT_PLANES] = {about.x, about.y, about.z};
        int32_t sum[T][DOT_PLANES];

        UNROLL
        for (int i = 0; i < T * DOT_PLANES; i++) {
            sum[i / DOT_PLANES][i % DOT_PLANES] =
                0x4b400000 - (int32_t)f->zero[i / DOT_PLANES] * (int32_t)in_sums[i % DOT_PLANES];
        }
        UNROLL
        for (int h = 0; h < HALVES; h++) {
            uint4 in[DOT_PLANES];

            UNROLL
            for (int i = 0; i < DOT_PLANES; i++) {
                in[i] = *(const uint4 *)(x + r * x_stride + (i * HALVES + h) * DOT_UNIT);
            }
            UNROLL
            for (int t = 0; t < T; t++) {
                dot_chunk<KIND>(sum[t], f->w[t], h, in);
            }
        }
        UNROLL
        for (int t = 0; t < T; t++) {
            float dot = 0;

            UNROLL
            for (int i = 0; i < DOT_PLANES; i++) {
                dot = dot * 256.0f + (f32_from_bits((uint32_t)sum[t][i]) - 12582912.0f);
            }
            sums[t][r] += dot * f32_from_bits(about.w) * scale_value(scale_dtype, f->scale[t]);
        }
    }
}

#endif
