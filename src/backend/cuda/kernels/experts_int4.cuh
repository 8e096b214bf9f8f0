/* experts_int4.cuh - int4 weights times 16-bit activations with the matrix instruction.
 *
 * Place: backend/cuda/kernels; for experts_decode.cu and experts_tile.cu.
 * Idea:  weights are the instruction's first operand (16 output columns), activations its second (8 rows of
 *        x). A thread loads 16 bytes of a weight row, one block of 32 inputs, as they lie in memory; the four
 *        threads of a row have four blocks, 128 inputs. Sums run over all inputs in any order, so instead of
 *        moving weights to where the instruction wants them, x is kept in the order that fits:
 *
 *            word w of a block holds  bits 0  4  8 12 16 20 24 28
 *                             input  4w   +16 +1 +17 +2 +18 +3 +19
 *
 *        so (word >> 4i) & 0x000f000f are two inputs of one register, and registers i = 0..3 hold
 *        {4w, 4w+2}, {4w+16, 4w+18}, {4w+1, 4w+3}, {4w+17, 4w+19}: two instructions' worth of 4 inputs per
 *        thread. The 8 values of x that belong to them are one unit of 16 bytes. A packed row is, for every
 *        128 inputs, 16 units: unit 4w + t belongs to word w of block t.
 * Exact: the integers q - zero are exact in float16 and bfloat16; each group of 128 is summed in float32 and
 *        then scaled. */
#ifndef BACKEND_CUDA_EXPERTS_INT4_CUH
#define BACKEND_CUDA_EXPERTS_INT4_CUH

#include "backend/cuda/kernels/experts_args.h"
#include "backend/cuda/kernels/mma.cuh"

enum { CHUNK_UNITS = EXPERTS_CHUNK / 8, CHUNK_BYTES = EXPERTS_CHUNK / 2 };

/* Where input k of a row lies in the packed row. */
DEVICE size_t packed_at(int k)
{
    int in_block = k % 32, half = in_block / 16, w = in_block % 16 / 4, b = in_block % 4;
    int unit = w * 4 + k / 32 % 4;

    return (size_t)(k / EXPERTS_CHUNK) * EXPERTS_CHUNK + (size_t)(unit * 8) +
           (size_t)((b & 1) * 4 + half * 2 + (b >> 1));
}

/* Units of rows that lie one after the other are read by eight threads at once, four of a row: odd rows
 * change the order of their units so that those eight are in different banks. */
DEVICE int unit_flip(int row)
{
    return (row & 1) << 2;
}

template <int TYPE> DEVICE uint16_t to_half(float v)
{
    return TYPE == DTYPE_BF16 ? bf16_from_f32(v) : f16_from_f32(v);
}

DEVICE uint16_t to_half_of(int32_t type, float v)
{
    return type == DTYPE_BF16 ? bf16_from_f32(v) : f16_from_f32(v);
}

/* a - b, twice. */
template <int TYPE> DEVICE uint32_t subtract2(uint32_t a, uint32_t b)
{
#if defined(__CUDACC__)
    if (TYPE == DTYPE_BF16) {
        __nv_bfloat162 r = __hsub2(*(const __nv_bfloat162 *)&a, *(const __nv_bfloat162 *)&b);

        return *(const uint32_t *)&r;
    }
    __half2 r = __hsub2(*(const __half2 *)&a, *(const __half2 *)&b);

    return *(const uint32_t *)&r;
#else
    uint32_t r = 0;

    for (int i = 0; i < 32; i += 16) {
        uint16_t x = (uint16_t)(a >> i), y = (uint16_t)(b >> i);
        float d =
            TYPE == DTYPE_BF16 ? bf16_to_f32(x) - bf16_to_f32(y) : f16_to_f32(x) - f16_to_f32(y);

        r |= (uint32_t)to_half<TYPE>(d) << i;
    }
    return r;
#endif
}

/* The integers 0..15 become floats by being put below an exponent: 128 + q in bfloat16, 1024 + q in float16.
 * This is what has to be subtracted for a zero point, twice. */
template <int TYPE> DEVICE uint32_t zero_pair(int zero)
{
    uint32_t h = to_half<TYPE>((float)(zero + (TYPE == DTYPE_BF16 ? 128 : 1024)));

    return h | h << 16;
}

template <int TYPE> DEVICE uint32_t weight_pair(uint32_t word, int i, uint32_t zero)
{
    const uint32_t magic = TYPE == DTYPE_BF16 ? 0x43004300u : 0x64006400u;

    return subtract2<TYPE>((word >> (4 * i) & 0x000f000fu) | magic, zero);
}

template <int TYPE> DEVICE void mma_half(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    const uint32_t b[2] = {b0, b1};

    if (TYPE == DTYPE_BF16) {
        mma_bf16(d, a, b);
    } else {
        mma_f16(d, a, b);
    }
}

DEVICE uint32_t word_of(uint4 v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* What a thread has of 128 inputs of 16 weight rows: of row g (h 0) and row g + 8 (h 1) its block, and the
 * rows' scales and zeros, as they are stored: to convert them where they are loaded would be to wait. */
struct weight_part {
    uint4 block[2];
    uint32_t scale[2], zero[2];
};

/* Scales and zeros of rows `row` and row + 8 in their group `at` of n_groups. */
DEVICE void load_scales(struct weight_part *p, const void *scales, const uint8_t *zeros,
                        int32_t dtype, int row, int n_groups, int at)
{
    UNROLL
    for (int h = 0; h < 2; h++) {
        size_t i = (size_t)(row + 8 * h) * (size_t)n_groups + (size_t)at;

        p->scale[h] = dtype == DTYPE_F32 ? ((const uint32_t *)scales)[i]
                                         : (uint32_t)((const uint16_t *)scales)[i];
        p->zero[h] = zeros ? zeros[i] : 8u;
    }
}

DEVICE float scale_of(int32_t dtype, uint32_t raw)
{
    return dtype == DTYPE_F32    ? f32_from_bits(raw)
           : dtype == DTYPE_BF16 ? bf16_to_f32((uint16_t)raw)
                                 : f16_to_f32((uint16_t)raw);
}

/* M times 16 weight rows by NT times 8 rows of x, over 128 inputs: acc += W x. x0 and x1 are this thread's
 * row g of x (which of its units come first says flip) for the first and the second 16 rows; rows g + 8,
 * g + 16 follow at x + 8 * CHUNK_UNITS. acc as the matrix instruction has it; dtype: of the scales. */
template <int TYPE, int M, int NT>
DEVICE void multiply_chunk(float acc[M][NT][4], const struct weight_part part[M], int32_t dtype,
                           const uint4 *x0, const uint4 *x1, int flip)
{
    int t = (int)threadIdx.x % 4;
    float d[M][NT][4], scale[M][2];
    uint32_t zero[M][2];

    UNROLL
    for (int i = 0; i < M * 2; i++) {
        zero[i / 2][i % 2] = zero_pair<TYPE>((int)part[i / 2].zero[i % 2]);
        scale[i / 2][i % 2] = scale_of(dtype, part[i / 2].scale[i % 2]);
    }

    UNROLL
    for (int i = 0; i < M * NT * 4; i++) {
        d[i / (NT * 4)][i / 4 % NT][i % 4] = 0;
    }
    UNROLL
    for (int w = 0; w < 4; w++) {
        int unit = (w * 4 + t) ^ flip;
        uint32_t a[M][2][4];

        UNROLL
        for (int i = 0; i < M * 8; i++) {
            int m = i / 8, reg = i / 2 % 4, h = i % 2;

            a[m][reg / 2][reg % 2 * 2 + h] =
                weight_pair<TYPE>(word_of(part[m].block[h], w), reg, zero[m][h]);
        }
        UNROLL
        for (int n = 0; n < NT; n++) {
            uint4 b = x0[n * 8 * CHUNK_UNITS + unit];

            UNROLL
            for (int m = 0; m < M; m++) {
                if (m == 1 && x1 != x0) {
                    b = x1[n * 8 * CHUNK_UNITS + unit];
                }
                mma_half<TYPE>(d[m][n], a[m][0], b.x, b.y);
                mma_half<TYPE>(d[m][n], a[m][1], b.z, b.w);
            }
        }
    }
    UNROLL
    for (int i = 0; i < M * NT * 4; i++) {
        int m = i / (NT * 4), n = i / 4 % NT, j = i % 4;

        acc[m][n][j] += scale[m][j / 2] * d[m][n][j];
    }
}

/* Inputs k..k+3 of a row, k a multiple of 4, into its packed form: `units` is the row's. */
DEVICE void pack_quad16(uint4 *units, int k, uint16_t v0, uint16_t v1, uint16_t v2, uint16_t v3,
                        int flip)
{
    int in_block = k % 32, w = in_block % 16 / 4, unit = (w * 4 + k / 32 % 4) ^ flip;
    uint32_t *word = (uint32_t *)(units + k / EXPERTS_CHUNK * CHUNK_UNITS + unit) + in_block / 16;

    word[0] = pack16(v0, v2);
    word[2] = pack16(v1, v3);
}

template <int TYPE> DEVICE void pack_quad(uint4 *units, int k, const float v[4], int flip)
{
    pack_quad16(units, k, to_half<TYPE>(v[0]), to_half<TYPE>(v[1]), to_half<TYPE>(v[2]),
                to_half<TYPE>(v[3]), flip);
}

#endif
