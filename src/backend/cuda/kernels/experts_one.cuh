/* experts_one.cuh - the routed experts of one row: the products of experts_decode.cuh with as few instructions
 * as they take.
 *
 * Place:  backend/cuda/kernels; for moe_gate.cu and moe_down.cu. Takes groups of 128 with scales of 16 bits,
 *         in plain order; sizes as is_for_one() in cuda_fuse_moe.c says.
 * Idea:   one row has no experts in common with others, so a pair is its own group and a block or a warp knows
 *         its expert as soon as it has read one number. A warp has four parts of 16 weight rows by 128
 *         inputs, all in registers and asked for at once.
 * Zeros:  a nibble put into the upper bits of a mantissa beside the exponent of 16 is 16 + q. It is multiplied
 *         as it is, which saves a subtraction for every two weights; what is too much, (16 + zero) times
 *         the sum of 128 inputs, is taken off once. The sums come from the matrix instruction as well, from
 *         weights of 1. All products are exact, sums are in float32; what is taken off is four times a sum
 *         of usual weights, so that two bits of 24 are lost.
 * Column: all eight columns of an instruction are the same row of x, so each thread has its result. */
#ifndef BACKEND_CUDA_EXPERTS_ONE_CUH
#define BACKEND_CUDA_EXPERTS_ONE_CUH

#include "backend/cuda/kernels/experts_int4.cuh"

enum { ONE_WARPS = EXPERTS_DECODE_THREADS / WARP };

/* 16 bytes of an expert's weights. Not load16(): a slot's content may have been another's before this kernel
 * began to run, so nothing near the multiprocessor shall answer. */
DEVICE uint4 one_load16(const void *p)
{
#if defined(__CUDACC__)
    uint4 v;

    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
#else
    return *(const uint4 *)p;
#endif
}

/* (v & mask) | bits: of two constants the compiler would make two instructions. */
DEVICE uint32_t one_select(uint32_t v, uint32_t mask, uint32_t bits)
{
#if defined(__CUDACC__)
    uint32_t r;

    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(v), "r"(mask), "r"(bits));
    return r;
#else
    return (v & mask) | bits;
#endif
}

/* Two inputs' weights, both 16 + q: nibbles i of a word's halves. */
template <int TYPE> DEVICE uint32_t one_pair(uint32_t word, int i)
{
    enum { AT = TYPE == DTYPE_BF16 ? 3 : 6 }; /* mantissas have 7 and 10 bits */
    const uint32_t mask = 0x000f000fu << AT, magic = TYPE == DTYPE_BF16 ? 0x41804180u : 0x4c004c00u;
    int down = 4 * i - AT;

    return one_select(down < 0 ? word << (-down & 31) : word >> (down & 31), mask, magic);
}

/* The sums of N times 128 inputs; x: packed. */
template <int TYPE, int N> DEVICE void one_sums(float sum[N], const uint4 *x)
{
    const uint32_t one = TYPE == DTYPE_BF16 ? 0x3f803f80u : 0x3c003c00u;
    const uint32_t ones[4] = {one, one, one, one};
    int t = (int)threadIdx.x % 4;
    float d[N][4] = {};

    UNROLL
    for (int i = 0; i < 4 * N; i++) {
        uint4 b = x[i % N * CHUNK_UNITS + i / N * 4 + t];

        mma_half<TYPE>(d[i % N], ones, b.x, b.y);
        mma_half<TYPE>(d[i % N], ones, b.z, b.w);
    }
    UNROLL
    for (int c = 0; c < N; c++) {
        sum[c] = d[c][0];
    }
}

/* d[p]: 16 weight rows times chunk p of x; [0] of row lane / 4, [2] of the one 8 below. */
template <int TYPE> DEVICE void one_multiply(float d[2][4], const uint4 block[2][2], const uint4 *x)
{
    int t = (int)threadIdx.x % 4;

    UNROLL
    for (int i = 0; i < 8; i++) {
        int w = i / 2, p = i % 2;
        uint4 b = x[p * CHUNK_UNITS + w * 4 + t];
        uint32_t low = word_of(block[p][0], w), high = word_of(block[p][1], w);
        const uint32_t first[4] = {one_pair<TYPE>(low, 0), one_pair<TYPE>(high, 0),
                                   one_pair<TYPE>(low, 1), one_pair<TYPE>(high, 1)};
        const uint32_t second[4] = {one_pair<TYPE>(low, 2), one_pair<TYPE>(high, 2),
                                    one_pair<TYPE>(low, 3), one_pair<TYPE>(high, 3)};

        mma_half<TYPE>(d[p], first, b.x, b.y);
        mma_half<TYPE>(d[p], second, b.z, b.w);
    }
}

/* The scale in the low 16 bits. */
DEVICE float one_scale(int32_t dtype, uint32_t two)
{
    return dtype == DTYPE_BF16 ? f32_from_bits(two << 16) : f16_to_f32((uint16_t)two);
}

/* Of two weight rows, 8 apart, for two chunks. */
struct one_scales {
    uint32_t scale[2]; /* of a row: two, low half first */
    uint32_t zeros;    /* a byte each: [row][chunk] */
};

/* at: of the row's scale of an even chunk; n_groups, even, to the next row. zeros: NULL if they are 8. */
DEVICE void one_scales_load(struct one_scales *s, const void *scales, const uint8_t *zeros, int at,
                            int n_groups)
{
    int below = at + 8 * n_groups;

    s->scale[0] = *(const uint32_t *)((const uint16_t *)scales + at);
    s->scale[1] = *(const uint32_t *)((const uint16_t *)scales + below);
    s->zeros = 0x08080808u;
    if (zeros) {
        s->zeros = zeros[at] | (uint32_t)zeros[at + 1] << 8 | (uint32_t)zeros[below] << 16 |
                   (uint32_t)zeros[below + 1] << 24;
    }
}

/* The same back, to where one_scales_load() would find them. */
DEVICE void one_scales_store(const struct one_scales *s, const void *scales, const uint8_t *zeros,
                             int at, int n_groups)
{
    int below = at + 8 * n_groups;
    uint8_t *z = (uint8_t *)(uintptr_t)zeros;

    *(uint32_t *)((uint16_t *)(uintptr_t)scales + at) = s->scale[0];
    *(uint32_t *)((uint16_t *)(uintptr_t)scales + below) = s->scale[1];
    if (z) {
        z[at] = (uint8_t)s->zeros;
        z[at + 1] = (uint8_t)(s->zeros >> 8);
        z[below] = (uint8_t)(s->zeros >> 16);
        z[below + 1] = (uint8_t)(s->zeros >> 24);
    }
}

/* acc[h] += two chunks of 16 weight rows times x; sum: of the chunks of x. */
template <int TYPE>
DEVICE void one_add(float acc[2], const uint4 block[2][2], const struct one_scales *s,
                    int32_t dtype, const uint4 *x, const float *sum)
{
    float d[2][4] = {};

    one_multiply<TYPE>(d, block, x);
    UNROLL
    for (int i = 0; i < 4; i++) {
        int h = i / 2, c = i % 2;
        float offset = (float)(16u + (s->zeros >> (8 * i) & 255u));

        acc[h] += one_scale(dtype, s->scale[h] >> (16 * c)) * (d[c][2 * h] - offset * sum[c]);
    }
}

#endif
