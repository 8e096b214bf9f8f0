/* experts_plain.cu - the routed experts with float32 arithmetic: every kind of weight, size and activation.
 *
 * Place: backend/cuda/kernels; between experts_sort and experts_sum (experts_sort.cu), where the kernels
 *        with matrix instructions do not fit.
 * Idea:  a block has a tile of up to eight slots of one expert and some columns of its weights. x is staged in
 *        shared memory, 1024 inputs at a time; a lane has 32 of them, a warp four weight rows, so that what
 *        it reads of x is used four times. Each expert may be of another kind: the table says which.
 * Sums:  of a lane in the order of inputs, then over lanes; the same however many rows there are. */
#include "backend/cuda/kernels/experts_find.cuh"
#include "backend/weight.h"

enum {
    LANE_INPUTS = WEIGHT_BLOCK,
    LANE_STRIDE = LANE_INPUTS + 4, /* apart in banks */
    STAGE_INPUTS = WARP * LANE_INPUTS,
    WARP_COLS = EXPERTS_PLAIN_COLS / (EXPERTS_PLAIN_THREADS / WARP),
    PIECE = 8, /* inputs that are unpacked at once: 4w..4w+3 and 4w+16..4w+19 of a block */
};

/* Piece w of the block that begins with input k, zeros past n_in. */
DEVICE void unpack_piece(float v[PIECE], const struct experts_matrix *m, int row, int n_in, int k,
                         int w)
{
    size_t at = (size_t)row * (size_t)n_in + (size_t)(k + 4 * w);

    if (m->kind == WEIGHT_DENSE) {
        UNROLL
        for (int i = 0; i < PIECE; i++) {
            int o = i % 4 + i / 4 * 16;

            v[i] = k + 4 * w + o < n_in ? load_f32((enum dtype)m->dtype, m->data, at + (size_t)o)
                                        : 0.0f;
        }
        return;
    }
    if (k >= n_in) {
        UNROLL
        for (int i = 0; i < PIECE; i++) {
            v[i] = 0;
        }
        return;
    }
    size_t n_groups = (size_t)m->n_groups, g = (size_t)row * n_groups + (size_t)(k / m->group);
    float scale = load_f32((enum dtype)m->dtype, m->scales, g);
    int zero = m->zeros ? m->zeros[g] : m->kind == WEIGHT_INT4 ? 8 : 128;

    if (m->kind == WEIGHT_INT4) {
        uint32_t q =
            ((const uint32_t *)m->data)[((size_t)row * (size_t)n_in + (size_t)k) / 8 + (size_t)w];

        UNROLL
        for (int i = 0; i < 4; i++) {
            v[i] = scale * (float)((int)(q >> (8 * i) & 15u) - zero);
            v[i + 4] = scale * (float)((int)(q >> (8 * i + 4) & 15u) - zero);
        }
        return;
    }
    UNROLL
    for (int h = 0; h < 2; h++) {
        uint32_t q = *(const uint32_t *)(m->data + at + (size_t)(16 * h));

        UNROLL
        for (int i = 0; i < 4; i++) {
            v[4 * h + i] = scale * (float)((int)(q >> (8 * i) & 255u) - zero);
        }
    }
}

/* Inputs [k0, k0 + STAGE_INPUTS) of n rows, in the order of perm, zeros past the end. row_of[j]: in x. */
DEVICE void stage_rows(float *stage, const float *x, const int32_t *row_of, int n,
                       const int32_t *perm, int k0, int n_in)
{
    for (int i = (int)threadIdx.x; i < n * STAGE_INPUTS; i += EXPERTS_PLAIN_THREADS) {
        int j = i / STAGE_INPUTS, o = i % STAGE_INPUTS, k = k0 + o;
        float v = 0;

        if (k < n_in) {
            v = x[(size_t)row_of[j] * (size_t)n_in + (size_t)(perm ? perm[k] : k)];
        }
        stage[(j * WARP + o / LANE_INPUTS) * LANE_STRIDE + o % LANE_INPUTS] = v;
    }
}

/* One lane's part of WARP_COLS weight rows times n rows of x, over a stage. */
DEVICE void multiply_stage(float acc[WARP_COLS][EXPERTS_PLAIN_TILE], const float *stage, int n,
                           const struct experts_matrix *m, const int rows[WARP_COLS], int n_in,
                           int k)
{
    int lane = (int)threadIdx.x % WARP;

    UNROLL
    for (int w = 0; w < LANE_INPUTS / PIECE; w++) {
        float v[WARP_COLS][PIECE];

        UNROLL
        for (int c = 0; c < WARP_COLS; c++) {
            unpack_piece(v[c], m, rows[c], n_in, k, w);
        }
        UNROLL
        for (int j = 0; j < EXPERTS_PLAIN_TILE; j++) {
            if (j < n) {
                const float *x = stage + (j * WARP + lane) * LANE_STRIDE + 4 * w;
                float4 low = *(const float4 *)x, high = *(const float4 *)(x + 16);

                UNROLL
                for (int c = 0; c < WARP_COLS; c++) {
                    acc[c][j] += v[c][0] * low.x + v[c][1] * low.y + v[c][2] * low.z +
                                 v[c][3] * low.w + v[c][4] * high.x + v[c][5] * high.y +
                                 v[c][6] * high.z + v[c][7] * high.w;
                }
            }
        }
    }
}

/* out[c][j] in all lanes: weight row rows[c] times row j of the tile. */
DEVICE void multiply_rows(float out[WARP_COLS][EXPERTS_PLAIN_TILE], float *stage, const float *x,
                          const int32_t *row_of, int n, const struct experts_matrix *m,
                          const int rows[WARP_COLS], int n_in)
{
    int lane = (int)threadIdx.x % WARP;

    UNROLL
    for (int i = 0; i < WARP_COLS * EXPERTS_PLAIN_TILE; i++) {
        out[i / EXPERTS_PLAIN_TILE][i % EXPERTS_PLAIN_TILE] = 0;
    }
    for (int k0 = 0; k0 < n_in; k0 += STAGE_INPUTS) {
        block_sync(); /* the stage before has been read */
        stage_rows(stage, x, row_of, n, m->perm, k0, n_in);
        block_sync();
        multiply_stage(out, stage, n, m, rows, n_in, k0 + lane * LANE_INPUTS);
    }
    UNROLL
    for (int i = 0; i < WARP_COLS * EXPERTS_PLAIN_TILE; i++) {
        int c = i / EXPERTS_PLAIN_TILE, j = i % EXPERTS_PLAIN_TILE;

        if (j < n) {
            out[c][j] = warp_sum(out[c][j]);
        }
    }
}

/* Lane j has row j's result of column c. */
DEVICE float own_result(const float out[EXPERTS_PLAIN_TILE])
{
    int lane = (int)threadIdx.x % WARP;
    float v = 0;

    UNROLL
    for (int j = 0; j < EXPERTS_PLAIN_TILE; j++) {
        v = lane == j ? out[j] : v;
    }
    return v;
}

DEVICE void weight_rows_of(int rows[WARP_COLS], int col0, int n_out)
{
    UNROLL
    for (int c = 0; c < WARP_COLS; c++) {
        rows[c] = min(col0 + c, n_out - 1); /* past the end: the last again, not stored */
    }
}

KERNEL(experts_gate_up_plain, experts_args, EXPERTS_PLAIN_THREADS, 2)
{
    SHARED float stage[EXPERTS_PLAIN_TILE * WARP * LANE_STRIDE];
    SHARED struct find_shared shared;
    SHARED int32_t row_of[EXPERTS_PLAIN_TILE];
    int tid = (int)threadIdx.x, n_blocks = (a.width + EXPERTS_PLAIN_COLS - 1) / EXPERTS_PLAIN_COLS;
    int col0 = (int)blockIdx.x % n_blocks * EXPERTS_PLAIN_COLS + tid / WARP * WARP_COLS;
    float y[WARP_COLS][EXPERTS_PLAIN_TILE], gate[WARP_COLS];
    float *mid = (float *)a.mid;
    const struct experts_matrix *w;
    struct experts_tile tile;
    int rows[WARP_COLS];

    depend_launch();
    depend_wait();
    tile = find_tile(&shared, &a, EXPERTS_PLAIN_TILE, (int)blockIdx.x / n_blocks);
    if (tile.n == 0) {
        return;
    }
    if (tid < tile.n) {
        row_of[tid] = a.slot_pair[tile.slot + tid] / a.top_k;
    }
    block_sync();
    w = a.experts + (size_t)tile.expert * EXPERTS_MATRICES;
    weight_rows_of(rows, col0, a.width);
    multiply_rows(y, stage, a.x, row_of, tile.n, w + EXPERTS_GATE, rows, a.hidden);
    UNROLL
    for (int c = 0; c < WARP_COLS; c++) {
        gate[c] = own_result(y[c]);
    }
    multiply_rows(y, stage, a.x, row_of, tile.n, w + EXPERTS_UP, rows, a.hidden);
    UNROLL
    for (int c = 0; c < WARP_COLS; c++) {
        enum dtype round = (enum dtype)a.round;
        float g = round_f32(round, gate[c]), u = round_f32(round, own_result(y[c]));

        if (tid % WARP < tile.n && col0 + c < a.width) {
            mid[(size_t)(tile.slot + tid % WARP) * (size_t)a.width + (size_t)(col0 + c)] =
                round_f32(round, silu(g) * u);
        }
    }
}

KERNEL(experts_down_plain, experts_args, EXPERTS_PLAIN_THREADS, 2)
{
    SHARED float stage[EXPERTS_PLAIN_TILE * WARP * LANE_STRIDE];
    SHARED struct find_shared shared;
    SHARED int32_t row_of[EXPERTS_PLAIN_TILE];
    int tid = (int)threadIdx.x, n_blocks = (a.n_out + EXPERTS_PLAIN_COLS - 1) / EXPERTS_PLAIN_COLS;
    int col0 = (int)blockIdx.x % n_blocks * EXPERTS_PLAIN_COLS + tid / WARP * WARP_COLS;
    float y[WARP_COLS][EXPERTS_PLAIN_TILE];
    struct experts_tile tile;
    int rows[WARP_COLS];

    depend_launch();
    depend_wait();
    tile = find_tile(&shared, &a, EXPERTS_PLAIN_TILE, (int)blockIdx.x / n_blocks);
    if (tile.n == 0) {
        return;
    }
    if (tid < tile.n) {
        row_of[tid] = tile.slot + tid;
    }
    block_sync();
    weight_rows_of(rows, col0, a.n_out);
    multiply_rows(y, stage, (const float *)a.mid, row_of, tile.n,
                  a.experts + (size_t)tile.expert * EXPERTS_MATRICES + EXPERTS_DOWN, rows, a.width);
    UNROLL
    for (int c = 0; c < WARP_COLS; c++) {
        float v = own_result(y[c]);

        if (tid % WARP < tile.n && col0 + c < a.n_out) {
            a.y[(size_t)(tile.slot + tid % WARP) * (size_t)a.n_out + (size_t)(col0 + c)] = v;
        }
    }
}
