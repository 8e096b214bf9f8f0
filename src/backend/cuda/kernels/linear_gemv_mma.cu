/* linear_gemv_mma.cu - W x for 3 to 16 rows of 16-bit activations, by matrix instructions.
 *
 * Place:  backend/cuda/kernels; launched by cuda_linear.c where activations, weights and the card allow
 *         it; else linear_gemv.cu.
 * Tile:   16 outputs of one part are the rows of the instruction's left operand, 8 rows of x the columns
 *         of its right one. The four lanes that share a weight row read 16 bytes each in a step; which
 *         inputs an instruction multiplies is free as long as both operands agree, so a lane's 16 bytes are
 *         its own operand: two instructions' of 16-bit weights, four of int8, eight of int4.
 * Inputs: in shared memory in 16 bits, in the order that makes each lane's operand 16 bytes in a row:
 *         [row][step][8 inputs of each lane][lane][8]; inside a lane's inputs, quantised ones in the order
 *         in which they come out of a word. Rows lie 64 bytes past a multiple of 128, so that the eight
 *         lanes of a quarter warp meet different banks.
 * Sums:   products are exact in float32 (q - zero has 9 bits); scales multiply float32 sums of one step. */
#include "backend/cuda/kernels/linear_gemv.cuh"
#include "backend/cuda/kernels/mma.cuh"

#if defined(__CUDACC__)

/* a - b of two pairs; used where the result is exact. */
DEVICE uint32_t minus_f16(uint32_t a, uint32_t b)
{
    uint32_t d;

    asm("sub.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

DEVICE uint32_t minus_bf16(uint32_t a, uint32_t b)
{
#if __CUDA_ARCH__ >= 800
    uint32_t d;

    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(b), "r"(0xbf80bf80u), "r"(a));
    return d;
#else
    return a ^ b; /* never: no bfloat16 matrix instructions there */
#endif
}

#else

DEVICE uint32_t minus_f16(uint32_t a, uint32_t b)
{
    return f16_pair_from_f32(f16_to_f32((uint16_t)a) - f16_to_f32((uint16_t)b),
                             f16_to_f32((uint16_t)(a >> 16)) - f16_to_f32((uint16_t)(b >> 16)));
}

DEVICE uint32_t minus_bf16(uint32_t a, uint32_t b)
{
    return bf16_pair_from_f32(bf16_to_f32((uint16_t)a) - bf16_to_f32((uint16_t)b),
                              bf16_to_f32((uint16_t)(a >> 16)) - bf16_to_f32((uint16_t)(b >> 16)));
}

#endif

/* Both halves: what decode() subtracts for a zero. A small integer under the exponent of 1024 (float16) or
 * 128 (bfloat16) is that number plus the integer. Eight bits do not fit under bfloat16's: the byte is split
 * there, see below, and the zero counts from 128. */
template <enum gemv_kind KIND, bool IS_BF16> DEVICE uint32_t zero_pair(uint32_t zero)
{
    float z = (float)(int)zero;
    uint32_t half = !IS_BF16            ? f16_from_f32(1024.0f + z)
                    : KIND == GEMV_INT4 ? bf16_from_f32(128.0f + z)
                                        : bf16_from_f32(z - 128.0f);

    return half | half << 16;
}

/* Pairs of q - zero from the bytes 0 and 2 of a word. */
template <bool IS_BF16> DEVICE uint32_t decode_bytes(uint32_t word, uint32_t zero, bool has_zero)
{
    uint32_t v;

    if (!IS_BF16) {
        return minus_f16((word & 0x00ff00ffu) | 0x64006400u, zero);
    }
    /* q - 128 = (128 + q % 128) - (q < 128 ? 256 : 128), and these two are 0x4380 and 0x4300. */
    v = minus_bf16((word & 0x007f007fu) | 0x43004300u, (word & 0x00800080u) ^ 0x43804380u);
    return has_zero ? minus_bf16(v, zero) : v;
}

template <bool IS_BF16> DEVICE uint32_t decode_nibbles(uint32_t word, uint32_t zero)
{
    return IS_BF16 ? minus_bf16((word & 0x000f000fu) | 0x43004300u, zero)
                   : minus_f16((word & 0x000f000fu) | 0x64006400u, zero);
}

/* Weights 8j to 8j + 7 of a chunk, in the order of the inputs in shared memory. */
template <enum gemv_kind KIND, bool IS_BF16>
DEVICE void decode(uint32_t v[4], uint4 chunk, int j, uint32_t zero, bool has_zero)
{
    uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};

    UNROLL
    for (int i = 0; i < 4; i++) {
        if (KIND == GEMV_INT8) {
            v[i] = decode_bytes<IS_BF16>(words[2 * (j % 2) + i / 2] >> 8 * (i % 2), zero, has_zero);
        } else if (KIND == GEMV_INT4) {
            v[i] = decode_nibbles<IS_BF16>(words[j] >> 4 * i, zero);
        } else {
            v[i] = words[i];
        }
    }
}

template <bool IS_BF16> DEVICE void mma_16bit(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    if (IS_BF16) {
        mma_bf16(d, a, b);
    } else {
        mma_f16(d, a, b);
    }
}

/* sums += the piece's weights times its inputs. x: the lane's place in the step, x_at[c] from there to
 * its row of column block c. */
template <enum gemv_kind KIND, bool IS_BF16, int BLOCKS>
DEVICE void multiply(float sums[BLOCKS][4], const struct piece<KIND, 2> *f, int scale_dtype,
                     bool has_zeros, const uint16_t *x, const int x_at[BLOCKS])
{
    float dot[BLOCKS][4];
    uint32_t zero[2] = {0, 0};

    if (is_quantised(KIND)) {
        zero[0] = zero_pair<KIND, IS_BF16>(f->zero[0]);
        zero[1] = zero_pair<KIND, IS_BF16>(f->zero[is_quantised(KIND)]);
    }
    UNROLL
    for (int i = 0; i < 4 * BLOCKS; i++) {
        dot[i / 4][i % 4] = is_quantised(KIND) ? 0.0f : sums[i / 4][i % 4];
    }
    UNROLL
    for (int j = 0; j < chunk_inputs(KIND) / 8; j++) {
        uint32_t upper[4], lower[4]; /* rows g and g + 8 of the tile */

        decode<KIND, IS_BF16>(upper, f->w[0], j, zero[0], has_zeros);
        decode<KIND, IS_BF16>(lower, f->w[1], j, zero[1], has_zeros);
        UNROLL
        for (int c = 0; c < BLOCKS; c++) {
            uint4 in = *(const uint4 *)(x + x_at[c] + j * (8 * LINEAR_LANES_MMA));
            uint32_t first[4] = {upper[0], lower[0], upper[1], lower[1]}, x_first[2] = {in.x, in.y};
            uint32_t second[4] = {upper[2], lower[2], upper[3], lower[3]},
                     x_second[2] = {in.z, in.w};

            mma_16bit<IS_BF16>(dot[c], first, x_first);
            mma_16bit<IS_BF16>(dot[c], second, x_second);
        }
    }
    if (is_quantised(KIND)) {
        float scale[2] = {scale_value(scale_dtype, f->scale[0]),
                          scale_value(scale_dtype, f->scale[is_quantised(KIND)])};

        UNROLL
        for (int i = 0; i < 4 * BLOCKS; i++) {
            sums[i / 4][i % 4] += scale[i % 4 / 2] * dot[i / 4][i % 4];
        }
    } else {
        UNROLL
        for (int i = 0; i < 4 * BLOCKS; i++) {
            sums[i / 4][i % 4] = dot[i / 4][i % 4];
        }
    }
}

/* Where the inputs k to k + 3 of a row go: two pairs, one at the place returned and one *further. */
template <enum gemv_kind KIND> DEVICE int input_place(int k, int *further)
{
    enum { P = chunk_inputs(KIND), STEP = P * LINEAR_LANES_MMA };
    int lane = k / P % LINEAR_LANES_MMA, in_lane = k % P;

    *further = 2;
    if (KIND == GEMV_INT4) {
        in_lane = in_lane % 16 * 2 + in_lane / 16 * 2;
        *further = 4;
    }
    return k / STEP * STEP + (in_lane / 8 * LINEAR_LANES_MMA + lane) * 8 + in_lane % 8;
}

/* Four inputs as two pairs; those of quantised weights are 0 and 2, 1 and 3. */
template <enum gemv_kind KIND, bool IS_BF16>
DEVICE void put_inputs(uint16_t *to, int further, float4 v)
{
    float second = is_quantised(KIND) ? v.z : v.y, third = is_quantised(KIND) ? v.y : v.z;

    *(uint32_t *)to = IS_BF16 ? bf16_pair_from_f32(v.x, second) : f16_pair_from_f32(v.x, second);
    *(uint32_t *)(to + further) =
        IS_BF16 ? bf16_pair_from_f32(third, v.w) : f16_pair_from_f32(third, v.w);
}

template <enum gemv_kind KIND, bool IS_BF16, bool MAY_NORM, int WARPS>
DEVICE void stage_inputs(uint16_t *shared, const struct linear_args *a, const float *norm,
                         const float *x, int n_rows)
{
    enum { ROWS_AT_ONCE = 8, STEP = chunk_inputs(KIND) * LINEAR_LANES_MMA };
    int n = a->n_steps * STEP;

    ROLLED
    for (int r = 0; r < n_rows; r += ROWS_AT_ONCE) {
        ROLLED
        for (int k = 4 * (int)threadIdx.x; k < n; k += 4 * WARP * WARPS) {
            int further, at = input_place<KIND>(k, &further);
            float4 v[ROWS_AT_ONCE];

            if (MAY_NORM) {
                ready_quads<ROWS_AT_ONCE, false>(v, a, norm, x, r, n_rows, k);
            } else {
                input_quads<ROWS_AT_ONCE>(v, a, x, r, n_rows, k);
            }
            UNROLL
            for (int i = 0; i < ROWS_AT_ONCE; i++) {
                if (r + i < n_rows) {
                    put_inputs<KIND, IS_BF16>(shared + (r + i) * a->x_stride + at, further, v[i]);
                }
            }
        }
    }
}

/* Result i of the lane's fragment of column block c. */
DEVICE void put_fragment(const struct linear_args *a, int p, int n0, int lane, int c, int i,
                         float v)
{
    int n = n0 + lane / 4 + i / 2 * 8, r = c * 8 + lane % 4 * 2 + i % 2;
    int row = (int)blockIdx.y * a->rows + r;

    if (p >= 0 && n < a->part[p].n_out && r < a->rows && row < *a->n_rows) {
        put_result(&a->part[p], row, n, result_before(&a->part[p], row, n), v);
    }
}

/* Write a tile's results, summed over the warps of its slices. slice_sums [warps][BLOCKS * 4][WARP]
 * is free again after the next call with another one. All threads of the block call. */
template <int BLOCKS>
DEVICE void finish(const struct linear_args *a, const float sums[BLOCKS][4], float *slice_sums,
                   int p, int n0)
{
    enum { N = BLOCKS * 4 * WARP };
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int slice = warp & (a->n_slices - 1);
    float *own = slice_sums + warp * N;

    UNROLL
    for (int i = 0; i < 4 * BLOCKS; i++) {
        own[i * WARP + lane] = sums[i / 4][i % 4];
    }
    if (a->n_slices > 1) {
        block_sync();
    }
    ROLLED /* by way of shared memory even for one slice: next tile's weights fill the registers */
        for (int i = slice; i < 4 * BLOCKS; i += a->n_slices)
    {
        const float *at = own - slice * N + i * WARP + lane;
        float sum = 0;

        ROLLED
        for (int s = 0; s < a->n_slices; s++) {
            sum += at[s * N];
        }
        put_fragment(a, p, n0, lane, i / 4, i % 4, sum);
    }
}

/* WARPS of a block, BLOCKS of 8 columns, U steps of two loads on their way. */
template <enum gemv_kind KIND, bool IS_BF16, int U, int BLOCKS, int WARPS>
DEVICE void gemv_mma(const struct linear_args *a)
{
    enum { SLICE_SUMS = WARPS * BLOCKS * 4 * WARP };
    enum { LANES = LINEAR_LANES_MMA, STEP = LANES * chunk_inputs(KIND) };
    DYNAMIC_SHARED(float, shared);
    uint16_t *x = (uint16_t *)(shared + 2 * SLICE_SUMS);
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int n_slices = a->n_slices, slice = warp & (n_slices - 1),
        at_once = opaque(WARPS >> a->slices_log2);
    int first = (int)blockIdx.x * at_once, row0 = (int)blockIdx.y * a->rows, n_rows;
    int tile = first + (warp >> a->slices_log2), x_at[BLOCKS];
    const float *in = a->x + (size_t)row0 * (size_t)a->n_in;
    float *norm = (float *)(x + a->rows * a->x_stride);
    struct tile_rows<2> next;
    struct piece<KIND, 2> f[U];

    n_rows = min(*a->n_rows - row0, a->rows); /* tables were there before the step's first kernel */
    tile_open(&next, a, tile, LINEAR_TILE_MMA, lane / LANES, 8, lane % LANES);
    UNROLL
    for (int u = 0; u < U; u++) {
        fetch<KIND, 2, LANES>(&f[u], a, &next, slice + u * n_slices, lane % LANES);
    }
    if (BLOCKS == 1) { /* more rows than a norm goes with else */
        norm_begin(norm, a);
    }
    depend_wait();
    if (n_rows <= 0) {
        copy_wait<0>();
        return;
    }
    if (BLOCKS == 1 && a->norm) {
        norm_factors<LINEAR_NORM_ROWS>(norm, a, in, n_rows);
    }
    stage_inputs<KIND, IS_BF16, BLOCKS == 1, WARPS>(x, a, norm, in, n_rows);
    UNROLL
    for (int c = 0; c < BLOCKS; c++) { /* columns without a row repeat the last one; nobody looks */
        x_at[c] = min(8 * c + lane / LANES, n_rows - 1) * a->x_stride + lane % LANES * 8;
    }
    block_sync();
    ROLLED
    for (int turn = 0; first < a->n_tiles; turn++) {
        float sums[BLOCKS][4] = {};
        int p = next.p, n0 = next.n0, step = slice;
        bool is_last;

        first += (int)gridDim.x * at_once;
        tile += (int)gridDim.x * at_once;
        ROLLED
        do {
            int after = step + U * n_slices;

            is_last = after >= a->n_steps;
            if (is_last) {
                tile_open(&next, a, tile, LINEAR_TILE_MMA, lane / LANES, 8, lane % LANES);
                after = slice;
            }
            UNROLL
            for (int u = 0; u < U; u++) {
                int s = opaque(step + u * n_slices);

                if (s < a->n_steps) { /* the same for the whole warp */
                    multiply<KIND, IS_BF16, BLOCKS>(sums, &f[u], a->part[max(p, 0)].dtype,
                                                    a->part[max(p, 0)].zeros != NULL, x + s * STEP,
                                                    x_at);
                }
                fetch<KIND, 2, LANES>(&f[u], a, &next, opaque(after + u * n_slices), lane % LANES);
            }
            step = after;
        } while (!is_last);
        finish<BLOCKS>(a, sums, shared + turn % 2 * SLICE_SUMS, p, n0);
    }
}

/* cuda_linear.c knows the number of warps. */
#define GEMV_MMA(name, kind, is_bf16)                                                              \
    KERNEL(name##_8, linear_args, WARP *LINEAR_WARPS, 1)                                           \
    {                                                                                              \
        depend_launch();                                                                           \
        gemv_mma<kind, is_bf16, 4, 1, LINEAR_WARPS>(&a);                                           \
    }                                                                                              \
    KERNEL(name##_16, linear_args, WARP *LINEAR_WARPS, 1)                                          \
    {                                                                                              \
        depend_launch();                                                                           \
        gemv_mma<kind, is_bf16, 4, 2, LINEAR_WARPS>(&a);                                           \
    }

GEMV_MMA(linear_mma_f16, GEMV_F16, false)
GEMV_MMA(linear_mma_bf16, GEMV_BF16, true)
GEMV_MMA(linear_mma_int8_f16, GEMV_INT8, false)
GEMV_MMA(linear_mma_int8_bf16, GEMV_INT8, true)
GEMV_MMA(linear_mma_int4_f16, GEMV_INT4, false)
GEMV_MMA(linear_mma_int4_bf16, GEMV_INT4, true)
