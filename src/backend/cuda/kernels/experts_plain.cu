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

/* How a matrix is read. Wide: rows are multiples of four inputs, which then are one load. */
enum weight_form { FORM_INT4, FORM_INT8, FORM_WIDE16, FORM_WIDE32, FORM_NARROW };

DEVICE enum weight_form form_of(const struct experts_matrix *m, int n_in)
{
    return m->kind == WEIGHT_INT4   ? FORM_INT4
           : m->kind == WEIGHT_INT8 ? FORM_INT8
           : n_in % 4 != 0          ? FORM_NARROW
           : m->dtype == DTYPE_F32  ? FORM_WIDE32
                                    : FORM_WIDE16;
}

/* A lane's block of one weight row, and its group's scale and zero. */
struct lane_block {
    const uint8_t *data;
    float scale;
    int zero;
};

DEVICE struct lane_block block_of(enum weight_form form, const struct experts_matrix *m, int row,
                                  int n_in, int k)
{
    size_t at = (size_t)row * (size_t)n_in + (size_t)k;
    struct lane_block b = {m->data, 1, 0};

    if (form == FORM_INT4 || form == FORM_INT8) {
        size_t g = (size_t)row * (size_t)m->n_groups + (size_t)(k / m->group);

        b.data += form == FORM_INT4 ? at / 2 : at;
        b.scale = load_f32((enum dtype)m->dtype, m->scales, g);
        b.zero = m->zeros ? m->zeros[g] : form == FORM_INT4 ? 8 : 128;
    } else {
        b.data += at * (m->dtype == DTYPE_F32 ? 4 : 2);
    }
    return b;
}

DEVICE float half_to_f32(int32_t dtype, uint32_t low)
{
    return dtype == DTYPE_BF16 ? f32_from_bits(low << 16) : f16_to_f32((uint16_t)low);
}

/* Four inputs from input o of the block. */
template <int FORM>
DEVICE void unpack_four(float v[4], const struct lane_block *b, int32_t dtype, int o, int n_left)
{
    if (FORM == FORM_INT8) {
        uint32_t q = *(const uint32_t *)(b->data + o);

        UNROLL
        for (int i = 0; i < 4; i++) {
            v[i] = b->scale * (float)((int)(q >> (8 * i) & 255u) - b->zero);
        }
    } else if (FORM == FORM_NARROW || o >= n_left) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            v[i] = o + i < n_left ? load_f32((enum dtype)dtype, b->data, (size_t)(o + i)) : 0.0f;
        }
    } else if (FORM == FORM_WIDE16) {
        uint2 q = *(const uint2 *)(b->data + 2 * o);

        v[0] = half_to_f32(dtype, q.x);
        v[1] = half_to_f32(dtype, q.x >> 16);
        v[2] = half_to_f32(dtype, q.y);
        v[3] = half_to_f32(dtype, q.y >> 16);
    } else {
        float4 q = *(const float4 *)(b->data + 4 * o);

        v[0] = q.x;
        v[1] = q.y;
        v[2] = q.z;
        v[3] = q.w;
    }
}

/* Piece w of a block, zeros past its n_left inputs (quantised blocks are whole). */
template <int FORM>
DEVICE void unpack_piece(float v[PIECE], const struct lane_block *b, int32_t dtype, int w,
                         int n_left)
{
    if (FORM == FORM_INT4) {
        uint32_t q = ((const uint32_t *)b->data)[w];

        UNROLL
        for (int i = 0; i < 4; i++) {
            v[i] = b->scale * (float)((int)(q >> (8 * i) & 15u) - b->zero);
            v[i + 4] = b->scale * (float)((int)(q >> (8 * i + 4) & 15u) - b->zero);
        }
    } else {
        unpack_four<FORM>(v, b, dtype, 4 * w, n_left);
        unpack_four<FORM>(v + 4, b, dtype, 4 * w + 16, n_left);
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

/* One lane's part of WARP_COLS weight rows times n rows of x, over a stage; its inputs begin with k. */
template <int FORM>
DEVICE void multiply_stage(float acc[WARP_COLS][EXPERTS_PLAIN_TILE], const float *stage, int n,
                           const struct experts_matrix *m, const int rows[WARP_COLS], int n_in,
                           int k)
{
    int lane = (int)threadIdx.x % WARP;
    struct lane_block block[WARP_COLS];

    if (k >= n_in) {
        return;
    }
    UNROLL
    for (int c = 0; c < WARP_COLS; c++) {
        block[c] = block_of((enum weight_form)FORM, m, rows[c], n_in, k);
    }
    UNROLL
    for (int w = 0; w < LANE_INPUTS / PIECE; w++) {
        float v[WARP_COLS][PIECE];

        UNROLL
        for (int c = 0; c < WARP_COLS; c++) {
            unpack_piece<FORM>(v[c], &block[c], m->dtype, w, n_in - k);
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

DEVICE void multiply_stage_as(enum weight_form form, float acc[WARP_COLS][EXPERTS_PLAIN_TILE],
                              const float *stage, int n, const struct experts_matrix *m,
                              const int rows[WARP_COLS], int n_in, int k)
{
    switch (form) {
    case FORM_INT4:
        multiply_stage<FORM_INT4>(acc, stage, n, m, rows, n_in, k);
        break;
    case FORM_INT8:
        multiply_stage<FORM_INT8>(acc, stage, n, m, rows, n_in, k);
        break;
    case FORM_WIDE16:
        multiply_stage<FORM_WIDE16>(acc, stage, n, m, rows, n_in, k);
        break;
    case FORM_WIDE32:
        multiply_stage<FORM_WIDE32>(acc, stage, n, m, rows, n_in, k);
        break;
    case FORM_NARROW:
        multiply_stage<FORM_NARROW>(acc, stage, n, m, rows, n_in, k);
        break;
    }
}

/* out[c][j] in all lanes: weight row rows[c] times row j of the tile. */
DEVICE void multiply_rows(float out[WARP_COLS][EXPERTS_PLAIN_TILE], float *stage, const float *x,
                          const int32_t *row_of, int n, const struct experts_matrix *w,
                          const int rows[WARP_COLS], int n_in)
{
    const struct experts_matrix m = *w;
    int lane = (int)threadIdx.x % WARP;

    UNROLL
    for (int i = 0; i < WARP_COLS * EXPERTS_PLAIN_TILE; i++) {
        out[i / EXPERTS_PLAIN_TILE][i % EXPERTS_PLAIN_TILE] = 0;
    }
    for (int k0 = 0; k0 < n_in; k0 += STAGE_INPUTS) {
        block_sync(); /* the stage before has been read */
        stage_rows(stage, x, row_of, n, m.perm, k0, n_in);
        block_sync();
        multiply_stage_as(form_of(&m, n_in), out, stage, n, &m, rows, n_in,
                          k0 + lane * LANE_INPUTS);
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

struct plain_shared {
    float stage[EXPERTS_PLAIN_TILE * WARP * LANE_STRIDE];
    struct find_shared find;
    int32_t row_of[EXPERTS_PLAIN_TILE];
};

/* Gate and up of a tile, the block's columns from col_block on. */
DEVICE void gate_up_plain(const struct experts_args *a, struct plain_shared *s,
                          const struct experts_tile *tile, int col_block)
{
    int tid = (int)threadIdx.x, col0 = col_block * EXPERTS_PLAIN_COLS + tid / WARP * WARP_COLS;
    const struct experts_matrix *w = a->experts + (size_t)tile->expert * EXPERTS_MATRICES;
    float y[WARP_COLS][EXPERTS_PLAIN_TILE], gate[WARP_COLS];
    float *mid = (float *)a->mid;
    int rows[WARP_COLS];

    if (tid < tile->n) {
        s->row_of[tid] = a->slot_pair[tile->slot + tid] / a->top_k;
    }
    block_sync();
    weight_rows_of(rows, col0, a->width);
    multiply_rows(y, s->stage, a->x, s->row_of, tile->n, w + EXPERTS_GATE, rows, a->hidden);
    UNROLL
    for (int c = 0; c < WARP_COLS; c++) {
        gate[c] = own_result(y[c]);
    }
    multiply_rows(y, s->stage, a->x, s->row_of, tile->n, w + EXPERTS_UP, rows, a->hidden);
    UNROLL
    for (int c = 0; c < WARP_COLS; c++) {
        enum dtype round = (enum dtype)a->round;
        float g = round_f32(round, gate[c]), u = round_f32(round, own_result(y[c]));

        if (tid % WARP < tile->n && col0 + c < a->width) {
            mid[(size_t)(tile->slot + tid % WARP) * (size_t)a->width + (size_t)(col0 + c)] =
                round_f32(round, silu(g) * u);
        }
    }
}

DEVICE void down_plain(const struct experts_args *a, struct plain_shared *s,
                       const struct experts_tile *tile, int col_block)
{
    int tid = (int)threadIdx.x, col0 = col_block * EXPERTS_PLAIN_COLS + tid / WARP * WARP_COLS;
    const struct experts_matrix *w = a->experts + (size_t)tile->expert * EXPERTS_MATRICES;
    float y[WARP_COLS][EXPERTS_PLAIN_TILE];
    int rows[WARP_COLS];

    if (tid < tile->n) {
        s->row_of[tid] = tile->slot + tid;
    }
    block_sync();
    weight_rows_of(rows, col0, a->n_out);
    multiply_rows(y, s->stage, (const float *)a->mid, s->row_of, tile->n, w + EXPERTS_DOWN, rows,
                  a->width);
    UNROLL
    for (int c = 0; c < WARP_COLS; c++) {
        float v = own_result(y[c]);

        if (tid % WARP < tile->n && col0 + c < a->n_out) {
            a->y[(size_t)(tile->slot + tid % WARP) * (size_t)a->n_out + (size_t)(col0 + c)] = v;
        }
    }
}

/* Blocks as in experts_tile.cu. */
#define PLAIN_KERNEL(name, cols_all, do_tile)                                                      \
    KERNEL(name, experts_args, EXPERTS_PLAIN_THREADS, 2)                                           \
    {                                                                                              \
        SHARED struct plain_shared shared;                                                         \
        int n_blocks = (a.cols_all + EXPERTS_PLAIN_COLS - 1) / EXPERTS_PLAIN_COLS;                 \
        int which = (int)blockIdx.x / n_blocks;                                                    \
        struct experts_tile tile;                                                                  \
                                                                                                   \
        depend_launch();                                                                           \
        depend_wait();                                                                             \
        while (which < a.tiles_max) {                                                              \
            tile = find_tile(&shared.find, &a, EXPERTS_PLAIN_TILE, which);                         \
            if (tile.n == 0) {                                                                     \
                return;                                                                            \
            }                                                                                      \
            do_tile(&a, &shared, &tile, (int)blockIdx.x % n_blocks);                               \
            which = next_tile(&shared.find, n_blocks);                                             \
        }                                                                                          \
    }

PLAIN_KERNEL(experts_gate_up_plain, width, gate_up_plain)
PLAIN_KERNEL(experts_down_plain, n_out, down_plain)
