/* moe_gate.cu - gate and up of the chosen experts.
 *
 * Place: backend/cuda/kernels; launched by cuda_fuse_moe.c between moe_choose.cu and moe_down.cu.
 * One:   of one row the kernel before moe_choose.cu made all of x, and that has ended when this one begins
 *        (moe_choose.cu): so x lies packed in shared memory before the choice is known.
 * Fetch: of one row a block whose expert has just got a slot brings its share of it from the host (offload_args.h).
 *        Blocks of resident experts run meanwhile, and moe_down.cu asks for its share at the same time. */
#include "backend/cuda/kernels/experts_decode.cuh"
#include "backend/cuda/kernels/experts_one.cuh"
#include "backend/cuda/kernels/moe_args.h"

#define MOE_GATE(name, type)                                                                       \
    KERNEL(name, moe_gate_args, EXPERTS_DECODE_THREADS, 3)                                         \
    {                                                                                              \
        SHARED float part[GATE_WARPS * EXPERTS_DECODE_MAX * SUM_STRIDE];                           \
        SHARED int32_t columns[EXPERTS_DECODE_MAX];                                                \
        DYNAMIC_SHARED(uint4, dynamic);                                                            \
                                                                                                   \
        gate_up<type>(&a.experts, dynamic, part, columns);                                         \
    }

MOE_GATE(moe_gate_bf16, DTYPE_BF16)
MOE_GATE(moe_gate_f16, DTYPE_F16)

/* --- one row --- */

/* The warp's two chunks of the row, packed, and their sums: in shared memory, for registers are scarce when they
 * are wanted. */
template <int TYPE> DEVICE void one_stage(uint4 *x, float *sums, const float *from)
{
    int lane = (int)threadIdx.x % WARP;
    float4 quad[2];

    UNROLL
    for (int c = 0; c < 2; c++) {
        quad[c] = *(const float4 *)(from + c * EXPERTS_CHUNK + 4 * lane);
    }
    UNROLL
    for (int c = 0; c < 2; c++) {
        const float v[4] = {quad[c].x, quad[c].y, quad[c].z, quad[c].w};
        float sum = warp_sum((v[0] + v[1]) + (v[2] + v[3]));

        pack_quad<TYPE>(x + c * CHUNK_UNITS, 4 * lane, v, 0);
        if (lane == 0) {
            sums[c] = sum;
        }
    }
    warp_sync();
}

/* The block's 16 columns of gate and up come from the host to the slot: they lie there one after the other, as do
 * their scales. All is asked for before the first of it is there. */
DEVICE void one_gate_fetch(const struct experts_matrix *m, int64_t away, int col0, int hidden)
{
    enum { N = ONE_HIDDEN_MAX / 2 / EXPERTS_DECODE_THREADS, STEP = 16 * EXPERTS_DECODE_THREADS };
    enum { REST = 64 };
    int tid = (int)threadIdx.x, n_bytes = 8 * hidden - 16 * tid, n_chunks = hidden / EXPERTS_CHUNK;
    int n_scales = tid < 2 * REST ? 2 * n_chunks : 0, i = tid % REST;
    const struct experts_matrix *of = m + tid / REST % 2;
    const uint8_t *rest = NULL, *from[2];
    uint4 v[2][N], last;

    if (i < n_scales) {
        rest = (const uint8_t *)of->scales + (col0 * 2 * n_chunks + 16 * i);
    } else if (of->zeros && i < n_scales + n_scales / 2) {
        rest = of->zeros + (col0 * n_chunks + 16 * (i - n_scales));
    }
    UNROLL
    for (int j = 0; j < 2; j++) {
        from[j] = m[j].data + (col0 * (hidden / 2) + 16 * tid) + away;
    }
    UNROLL
    for (int j = 0; j < 2 * N; j++) {
        if (j % N * STEP < n_bytes) {
            v[j / N][j % N] = stream16(from[j / N] + j % N * STEP);
        }
    }
    if (rest) {
        last = stream16(rest + away);
        *(uint4 *)(uintptr_t)rest = last;
    }
    UNROLL
    for (int j = 0; j < 2 * N; j++) {
        if (j % N * STEP < n_bytes) {
            *(uint4 *)((uintptr_t)(from[j / N] - away) + j % N * STEP) = v[j / N][j % N];
        }
    }
    block_sync();
}

/* Chunks c0 and c0 + 1 of 16 columns of gate and up from col0 on: acc[matrix][row g or g + 8]. */
template <int TYPE>
DEVICE void one_gate_up(float acc[2][2], const struct experts_args *a, int expert, int col0, int c0,
                        const uint4 *x, const float *sums)
{
    const struct experts_matrix *m = a->experts + expert * EXPERTS_MATRICES;
    int lane = (int)threadIdx.x % WARP, n_chunks = a->hidden / EXPERTS_CHUNK, row = col0 + lane / 4;
    int row_bytes = n_chunks * CHUNK_BYTES, at = row * row_bytes + c0 * CHUNK_BYTES + lane % 4 * 16;
    uint4 block[2][2][2];
    struct one_scales scales[2];

    UNROLL
    for (int i = 0; i < 8; i++) {
        int matrix = i / 4, h = i / 2 % 2, c = i % 2;

        block[matrix][c][h] = one_load16(m[matrix].data + at + h * 8 * row_bytes + c * CHUNK_BYTES);
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        one_scales_load(&scales[i], m[i].scales, m[i].zeros, row * n_chunks + c0, n_chunks);
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        one_add<TYPE>(acc[i], block[i], &scales[i], a->dtype[EXPERTS_GATE], x, sums);
    }
}

/* Blocks of (16 columns, pairs). x: packed, two chunks of a warp; sums: of them; part: [warp][gate's columns,
 * up's]. Warps past the last input add nothing. */
template <int TYPE>
DEVICE void gate_one(const struct experts_args *a, const int64_t *away, uint4 *x, float *sums,
                     float *part)
{
    enum { COLS = 2 * EXPERTS_DECODE_COLS };
    int tid = (int)threadIdx.x, pair = (int)blockIdx.y;
    int col0 = (int)blockIdx.x * EXPERTS_DECODE_COLS, warp = tid / WARP, c0 = 2 * warp;
    float acc[2][2] = {}, sum = 0, up;
    bool has_row = row_count(a) > 0, has_inputs = c0 < a->hidden / EXPERTS_CHUNK;
    int64_t from;
    int expert;

    prefetch_table(a);
    x += c0 * CHUNK_UNITS;
    sums += c0;
    if (has_inputs) {
        one_stage<TYPE>(x, sums, a->x + c0 * EXPERTS_CHUNK);
    }
    depend_wait();
    depend_launch();
    expert = a->idx[pair];
    from = away ? away[pair] : 0;
    if (!has_row || expert < 0 || expert >= a->n_experts) {
        return;
    }
    if (from != 0) {
        one_gate_fetch(a->experts + expert * EXPERTS_MATRICES, from, col0, a->hidden);
    }
    if (has_inputs) {
        one_gate_up<TYPE>(acc, a, expert, col0, c0, x, sums);
    }
    if (threadIdx.x % 4 ==
        0) { /* not what was computed above: that would be in a register too many */
        float *to = part + threadIdx.x / WARP * COLS + threadIdx.x % WARP / 4;

        UNROLL
        for (int i = 0; i < 4; i++) {
            to[8 * i] = acc[i / 2][i % 2];
        }
    }
    block_sync();
    if (tid < COLS) {
        UNROLL
        for (int w = 0; w < ONE_WARPS; w++) {
            sum += part[w * COLS + tid];
        }
        sum = round_f32((enum dtype)a->round, sum);
        up = shuffle_xor(sum, EXPERTS_DECODE_COLS);
        if (tid < EXPERTS_DECODE_COLS) {
            a->mid[(size_t)pair * (size_t)a->width + packed_at(col0 + tid)] =
                to_half<TYPE>(silu(sum) * up);
        }
    }
}

#define MOE_GATE_ONE(name, type)                                                                   \
    KERNEL(name, moe_gate_args, EXPERTS_DECODE_THREADS, 3)                                         \
    {                                                                                              \
        SHARED float part[ONE_WARPS * 2 * EXPERTS_DECODE_COLS];                                    \
        SHARED float sums[ONE_WARPS * 2];                                                          \
        SHARED uint4 x[ONE_WARPS * 2 * CHUNK_UNITS];                                               \
                                                                                                   \
        gate_one<type>(&a.experts, a.away, x, sums, part);                                         \
    }

MOE_GATE_ONE(moe_gate_one_bf16, DTYPE_BF16)
MOE_GATE_ONE(moe_gate_one_f16, DTYPE_F16)
