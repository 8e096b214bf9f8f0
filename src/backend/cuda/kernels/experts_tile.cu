/* experts_tile.cu - the routed experts of many rows: int4 weights, 16-bit activations.
 *
 * Place: backend/cuda/kernels; between experts_sort and experts_sum (experts_sort.cu).
 * Idea:  a block multiplies some columns of one expert's weights by a tile of its slots. Each warp has 32
 *        weight rows: 16 of gate and the same 16 of up, so that silu and the product need no one else, or 32
 *        of down. Weights and rows of x run through a ring in shared memory, 128 inputs deep; a thread copies
 *        just the weights that it will read itself. The number of rows of x is a compile-time constant in
 *        the loop, 8 to 64, as the tile has them: a tile with few rows costs little but reading weights.
 * Trade: each tile of an expert unpacks the weights again; with 64 rows that is a sixth of the time.
 *        Results of down go to memory by slot, for experts_sum: adding here would need an order. */
#include "backend/cuda/kernels/experts_find.cuh"
#include "backend/cuda/kernels/experts_int4.cuh"

enum {
    TILE_WARPS = EXPERTS_TILE_THREADS / WARP,
    WEIGHT_UNITS = TILE_WARPS * 4 * WARP, /* of a stage */
};

/* What a block does, in terms that are the same for gate with up and for down. */
struct tile_work {
    struct experts_tile tile;
    int n_in, n_groups[2];
    int row; /* the warp's first weight row; the second 16 are those of up, or follow */
    const struct experts_matrix *w[2];
    const uint8_t *data[2]; /* the thread's place in the first chunk of its row g */
    const uint4 *x[2];      /* packed rows; x[1] only for two */
    uint4 *ring;
    int stage_units, n_stages, x_units; /* x_units: of one x in a stage */
    const int32_t *rows;                /* shared: row of x for each slot of the tile */
};

/* Chunk c into its stage. */
template <int NT, bool HAS_TWO> DEVICE void copy_stage(const struct tile_work *k, int c)
{
    int tid = (int)threadIdx.x;
    uint4 *stage = k->ring + c % k->n_stages * k->stage_units, *x = stage + WEIGHT_UNITS;
    size_t row_bytes = (size_t)k->n_in / 2;

    UNROLL
    for (int i = 0; i < 4; i++) {
        copy16_async(stage + i * EXPERTS_TILE_THREADS + tid,
                     k->data[i / 2] + (size_t)(i % 2 * 8) * row_bytes + (size_t)(c * CHUNK_BYTES),
                     true);
    }
    UNROLL
    for (int i = tid; i < NT * 8 * CHUNK_UNITS; i += EXPERTS_TILE_THREADS) {
        int row = i / CHUNK_UNITS, unit = i % CHUNK_UNITS;
        int to = row * CHUNK_UNITS + (unit ^ unit_flip(row));
        size_t from =
            (size_t)k->rows[row] * (size_t)(k->n_in / 8) + (size_t)(c * CHUNK_UNITS + unit);

        copy16_async(x + to, k->x[0] + from, row < k->tile.n);
        if (HAS_TWO) {
            copy16_async(x + k->x_units + to, k->x[1] + from, row < k->tile.n);
        }
    }
}

DEVICE void wait_stage(int n_stages) /* until the oldest of the stages on their way is there */
{
    if (n_stages == 3) {
        copy_wait<1>();
    } else {
        copy_wait<2>();
    }
    block_sync();
}

/* acc += W x over all inputs. */
template <int TYPE, int NT, bool HAS_TWO>
DEVICE void multiply_tile(float acc[2][NT][4], const struct experts_args *a,
                          const struct tile_work *k, int m0, int m1)
{
    int tid = (int)threadIdx.x, g = tid % WARP / 4, n_chunks = k->n_in / EXPERTS_CHUNK;
    struct weight_part part[2], next[2] = {};

    for (int c = 0; c < k->n_stages - 1; c++) {
        if (c < n_chunks) {
            copy_stage<NT, HAS_TWO>(k, c);
        }
        copy_commit();
    }
    for (int c = -1; c < n_chunks; c++) {
        int at = min(c + 1, n_chunks - 1) * EXPERTS_CHUNK;

        part[0] = next[0];
        part[1] = next[1];
        load_scales(&next[0], k->w[0]->scales, k->w[0]->zeros, a->dtype[m0], k->row + g,
                    k->n_groups[0], at / a->group[m0]);
        load_scales(&next[1], k->w[1]->scales, k->w[1]->zeros, a->dtype[m1],
                    k->row + g + (m0 == m1 ? 16 : 0), k->n_groups[1], at / a->group[m1]);
        if (c >= 0) {
            const uint4 *stage = k->ring + c % k->n_stages * k->stage_units;
            const uint4 *x = stage + WEIGHT_UNITS + g * CHUNK_UNITS;

            wait_stage(k->n_stages);
            if (c + k->n_stages - 1 < n_chunks) {
                copy_stage<NT, HAS_TWO>(k, c + k->n_stages - 1);
            }
            copy_commit();
            UNROLL
            for (int i = 0; i < 4; i++) {
                part[i / 2].block[i % 2] = stage[i * EXPERTS_TILE_THREADS + tid];
            }
            multiply_chunk<TYPE, 2, NT>(acc, part, a->dtype[m0], x, HAS_TWO ? x + k->x_units : x,
                                        unit_flip(g));
        }
    }
}

/* silu(gate) * up of a warp's 16 columns, into mid by slot. */
template <int TYPE, int NT>
DEVICE void store_gate_up(const float acc[2][NT][4], const struct experts_args *a,
                          const struct tile_work *k)
{
    int g = (int)threadIdx.x % WARP / 4, t = (int)threadIdx.x % 4;

    UNROLL
    for (int i = 0; i < NT * 4; i++) {
        int j = i / 4 * 8 + 2 * t + i % 2, col = k->row + g + i / 2 % 2 * 8;
        float gate = round_f32((enum dtype)TYPE, acc[0][i / 4][i % 4]);
        float up = round_f32((enum dtype)TYPE, acc[1][i / 4][i % 4]);
        size_t at = a->has_perm ? (size_t)col : packed_at(col);

        if (j < k->tile.n) {
            a->mid[(size_t)(k->tile.slot + j) * (size_t)a->width + at] =
                to_half<TYPE>(silu(gate) * up);
        }
    }
}

template <int NT>
DEVICE void store_down(const float acc[2][NT][4], const struct experts_args *a,
                       const struct tile_work *k)
{
    int g = (int)threadIdx.x % WARP / 4, t = (int)threadIdx.x % 4;

    UNROLL
    for (int i = 0; i < 2 * NT * 4; i++) {
        int m = i / (NT * 4), n = i / 4 % NT, j = n * 8 + 2 * t + i % 2;
        int col = k->row + m * 16 + g + i / 2 % 2 * 8;

        if (j < k->tile.n) {
            a->y[(size_t)(k->tile.slot + j) * (size_t)a->n_out + (size_t)col] = acc[m][n][i % 4];
        }
    }
}

template <int TYPE, int NT, bool HAS_TWO>
DEVICE void gate_up_tile(const struct experts_args *a, const struct tile_work *k)
{
    float acc[2][NT][4] = {};

    multiply_tile<TYPE, NT, HAS_TWO>(acc, a, k, EXPERTS_GATE, EXPERTS_UP);
    store_gate_up<TYPE, NT>(acc, a, k);
}

template <int TYPE, int NT>
DEVICE void down_tile(const struct experts_args *a, const struct tile_work *k)
{
    float acc[2][NT][4] = {};

    multiply_tile<TYPE, NT, false>(acc, a, k, EXPERTS_DOWN, EXPERTS_DOWN);
    store_down<NT>(acc, a, k);
}

/* Places in weights and ring. A warp past the last weight row works on the last rows again and writes them
 * again, with the same values. */
DEVICE void work_open(struct tile_work *k, const struct experts_args *a, uint4 *ring,
                      const int32_t *rows, int row, int n_out, int n_in, bool has_two)
{
    int lane = (int)threadIdx.x % WARP;
    size_t row_bytes = (size_t)n_in / 2;

    k->n_in = n_in;
    k->row = min(row, n_out);
    k->x_units = a->tile_max * CHUNK_UNITS;
    k->stage_units = WEIGHT_UNITS + k->x_units * (has_two ? 2 : 1);
    k->n_stages = a->stages;
    k->ring = ring;
    k->rows = rows;
    UNROLL
    for (int m = 0; m < 2; m++) {
        k->data[m] =
            k->w[m]->data + (size_t)(k->row + lane / 4) * row_bytes + (size_t)(lane % 4 * 16);
    }
}

/* 64 columns of gate and up for tile `which`; false: there is none. With HAS_TWO the x of gate and that of
 * up are different, by slot. NT_MAX: 8 times this is the most that a tile has. */
template <int TYPE, bool HAS_TWO, int NT_MAX>
DEVICE bool gate_up(const struct experts_args *a, uint4 *ring, struct find_shared *shared,
                    int32_t *rows, int col_block, int which)
{
    int tid = (int)threadIdx.x, row = col_block * EXPERTS_GATE_COLS + tid / WARP * 16;
    struct tile_work k;

    k.tile = find_tile(shared, a, a->tile_max, which);
    if (k.tile.n == 0) {
        return false;
    }
    if (tid < EXPERTS_TILE_MAX) {
        int slot = k.tile.slot + min(tid, k.tile.n - 1);

        rows[tid] = HAS_TWO ? slot : a->slot_pair[slot] / a->top_k;
    }
    block_sync();
    k.w[0] = a->experts + (size_t)k.tile.expert * EXPERTS_MATRICES + EXPERTS_GATE;
    k.w[1] = k.w[0] + (EXPERTS_UP - EXPERTS_GATE);
    k.n_groups[0] = a->hidden / a->group[EXPERTS_GATE];
    k.n_groups[1] = a->hidden / a->group[EXPERTS_UP];
    k.x[0] = (const uint4 *)a->packed;
    k.x[1] = k.x[0] + (size_t)a->rows_max * (size_t)a->top_k * (size_t)(a->hidden / 8);
    work_open(&k, a, ring, rows, row, a->width - 16, a->hidden, HAS_TWO);
    if (k.tile.n <= 8) {
        gate_up_tile<TYPE, 1, HAS_TWO>(a, &k);
    } else if (k.tile.n <= 16) {
        gate_up_tile<TYPE, 2, HAS_TWO>(a, &k);
    } else if (k.tile.n <= 24) {
        gate_up_tile<TYPE, 3, HAS_TWO>(a, &k);
    } else if (NT_MAX == 4 || k.tile.n <= 32) {
        gate_up_tile<TYPE, 4, HAS_TWO>(a, &k);
    } else if (k.tile.n <= 48) {
        gate_up_tile<TYPE, NT_MAX * 3 / 4, HAS_TWO>(a, &k);
    } else {
        gate_up_tile<TYPE, NT_MAX, HAS_TWO>(a, &k);
    }
    return true;
}

/* 128 columns of down, likewise. */
template <int TYPE, int NT_MAX>
DEVICE bool down(const struct experts_args *a, uint4 *ring, struct find_shared *shared,
                 int32_t *rows, int col_block, int which)
{
    int tid = (int)threadIdx.x, row = col_block * EXPERTS_DOWN_COLS + tid / WARP * 32;
    size_t row_bytes = (size_t)a->width / 2;
    struct tile_work k;

    k.tile = find_tile(shared, a, a->tile_max, which);
    if (k.tile.n == 0) {
        return false;
    }
    if (tid < EXPERTS_TILE_MAX) {
        rows[tid] = k.tile.slot + min(tid, k.tile.n - 1);
    }
    block_sync();
    k.w[0] = a->experts + (size_t)k.tile.expert * EXPERTS_MATRICES + EXPERTS_DOWN;
    k.w[1] = k.w[0];
    k.n_groups[0] = k.n_groups[1] = a->width / a->group[EXPERTS_DOWN];
    k.x[0] = k.x[1] = (const uint4 *)a->mid_packed;
    work_open(&k, a, ring, rows, row, a->n_out - 32, a->width, false);
    k.data[1] += 16 * row_bytes;
    if (k.tile.n <= 8) {
        down_tile<TYPE, 1>(a, &k);
    } else if (k.tile.n <= 16) {
        down_tile<TYPE, 2>(a, &k);
    } else if (k.tile.n <= 24) {
        down_tile<TYPE, 3>(a, &k);
    } else if (NT_MAX == 4 || k.tile.n <= 32) {
        down_tile<TYPE, 4>(a, &k);
    } else if (k.tile.n <= 48) {
        down_tile<TYPE, NT_MAX * 3 / 4>(a, &k);
    } else {
        down_tile<TYPE, NT_MAX>(a, &k);
    }
    return true;
}

/* Blocks: one for each piece of `cols` of the n columns of each tile, or of every few tiles: a launch for
 * some of the experts would else be mostly of blocks without a tile. */
#define TILE_KERNEL(name, blocks, cols_all, cols, ...)                                             \
    KERNEL(name, experts_args, EXPERTS_TILE_THREADS, blocks)                                       \
    {                                                                                              \
        SHARED struct find_shared shared;                                                          \
        SHARED int32_t rows[EXPERTS_TILE_MAX];                                                     \
        DYNAMIC_SHARED(uint4, ring);                                                               \
        int n_blocks = (a.cols_all + cols - 1) / cols, which = (int)blockIdx.x / n_blocks;         \
                                                                                                   \
        depend_launch();                                                                           \
        depend_wait();                                                                             \
        while (which < a.tiles_max &&                                                              \
               __VA_ARGS__(&a, ring, &shared, rows, (int)blockIdx.x % n_blocks, which)) {          \
            which = next_tile(&shared, n_blocks);                                                  \
        }                                                                                          \
    }
#define GATE_UP_KERNEL(name, blocks, ...)                                                          \
    TILE_KERNEL(name, blocks, width, EXPERTS_GATE_COLS, __VA_ARGS__)
#define DOWN_KERNEL(name, blocks, ...)                                                             \
    TILE_KERNEL(name, blocks, n_out, EXPERTS_DOWN_COLS, __VA_ARGS__)

/* Tiles of 64, of 32, and of 32 with two x. */
GATE_UP_KERNEL(experts_gate_up_tile_bf16, 2, gate_up<DTYPE_BF16, false, 8>)
GATE_UP_KERNEL(experts_gate_up_tile_f16, 2, gate_up<DTYPE_F16, false, 8>)
GATE_UP_KERNEL(experts_gate_up_small_bf16, 3, gate_up<DTYPE_BF16, false, 4>)
GATE_UP_KERNEL(experts_gate_up_small_f16, 3, gate_up<DTYPE_F16, false, 4>)
GATE_UP_KERNEL(experts_gate_up_perm_bf16, 2, gate_up<DTYPE_BF16, true, 4>)
GATE_UP_KERNEL(experts_gate_up_perm_f16, 2, gate_up<DTYPE_F16, true, 4>)
DOWN_KERNEL(experts_down_tile_bf16, 2, down<DTYPE_BF16, 8>)
DOWN_KERNEL(experts_down_tile_f16, 2, down<DTYPE_F16, 8>)
DOWN_KERNEL(experts_down_small_bf16, 3, down<DTYPE_BF16, 4>)
DOWN_KERNEL(experts_down_small_f16, 3, down<DTYPE_F16, 4>)
