/* linear_gemv_ring.cu - dense 16-bit weights times one row of 16-bit activations.
 *
 * Place:  backend/cuda/kernels; launched by cuda_linear.c in place of linear_gemv_*_1 where it fits twice into a
 *         multiprocessor's shared memory.
 * Idea:   a matrix of a layer is in the memory's queue for ten microseconds, and for the first three of them
 *         a block waits for its row, norms and stages it. What registers ask for beforehand has arrived long
 *         before that is over; so weights come by asynchronous copies into a ring in shared memory, which holds
 *         enough for the memory to stay busy until the first product.
 * Ring:   a thread copies what it will itself multiply, so it waits for its own copies only: no barrier.
 * Slices: any divisor of the twelve warps, so that matrices of few outputs fill the card evenly.
 * Shared: the ring [step][of a tile][thread], sums of slices, the row as stage_inputs() has it, the norm. */
#include "backend/cuda/kernels/linear_gemv_rows.cuh"

enum { RING_THREADS = WARP * LINEAR_RING_WARPS, RING_TILE = LINEAR_RING_TILE };

/* The next step to be asked for: the warp's steps of its tiles, one after the other. */
struct ring_cursor {
    struct tile_rows<RING_TILE> rows;
    int tile, step;
};

/* Ask for it, and go on to the one after; a group of copies, empty behind the last tile. */
template <enum gemv_kind KIND>
DEVICE void ring_fetch(uint4 *slot, struct ring_cursor *c, const struct linear_args *a, int slice,
                       int tiles_on)
{
    int lane = (int)threadIdx.x % WARP, chunk = c->step * WARP + lane;

    if (c->rows.p >= 0) {
        UNROLL
        for (int t = 0; t < RING_TILE; t++) {
            bool exists = chunk < a->n_chunks;

            copy16_async(slot + t * RING_THREADS,
                         c->rows.data[t] + (exists ? (size_t)c->step * (WARP * 16) : 0), exists);
        }
    }
    copy_commit();
    c->step += a->n_slices;
    if (c->step >= a->n_steps) {
        c->step = slice;
        c->tile += tiles_on;
        tile_open(&c->rows, a, c->tile, RING_TILE, 0, 1, lane);
    }
}

template <enum gemv_kind KIND> DEVICE void gemv_ring(const struct linear_args *a, uint4 *shared)
{
    enum { STEPS = LINEAR_RING_STEPS, SLOT = RING_TILE * RING_THREADS };
    enum { SLICE_SUMS = LINEAR_RING_WARPS * RING_TILE, STEP = WARP * chunk_inputs(KIND) };
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int n_slices = a->n_slices, at_once = LINEAR_RING_WARPS / n_slices;
    int first = (int)blockIdx.x * at_once, tiles_on = (int)gridDim.x * at_once;
    int slice = warp % n_slices, tile = first + warp / n_slices, n_rows, at = 0;
    uint4 *ring = shared + threadIdx.x;
    float *slice_sums = (float *)(shared + STEPS * SLOT), *x = slice_sums + 2 * SLICE_SUMS;
    float *norm = x + a->x_stride;
    struct ring_cursor next = {};

    n_rows = *a->n_rows; /* the step's tables were there before its first kernel */
    norm_begin(norm, a);
    next.tile = tile;
    next.step = slice;
    tile_open(&next.rows, a, tile, RING_TILE, 0, 1, lane);
    ROLLED
    for (int u = 0; u < STEPS; u++) {
        ring_fetch<KIND>(ring + u * SLOT, &next, a, slice, tiles_on);
    }
    depend_wait();
    if (n_rows <= 0) {
        copy_wait<0>();
        return;
    }
    if (a->norm) {
        norm_factors<1, STEPS>(norm, a, a->x, 1);
    }
    stage_inputs<KIND, 1, LINEAR_RING_WARPS>(x, a, norm, a->x, 1);
    block_sync();
    for (int turn = 0; first < a->n_tiles; turn++) {
        float sums[RING_TILE][1] = {};
        struct tile_rows<RING_TILE> now;

        tile_open(&now, a, tile, RING_TILE, 0, 1, lane);
        for (int step = slice; step < a->n_steps; step += n_slices) {
            struct piece<KIND, RING_TILE> f;

            copy_wait<STEPS - 1>();
            UNROLL
            for (int t = 0; t < RING_TILE; t++) {
                f.w[t] = ring[at * SLOT + t * RING_THREADS];
            }
            multiply<KIND, RING_TILE, 1>(sums, &f, x + step * STEP + 4 * lane, 0);
            ring_fetch<KIND>(ring + at * SLOT, &next, a, slice, tiles_on);
            at = at + 1 == STEPS ? 0 : at + 1;
        }
        finish<RING_TILE, 1>(a, sums, slice_sums + turn % 2 * SLICE_SUMS, now.p, now.n0, slice);
        first += tiles_on;
        tile += tiles_on;
    }
    copy_wait<0>();
}

#define GEMV_RING(name, kind)                                                                      \
    KERNEL(name, linear_args, RING_THREADS, 2)                                                     \
    {                                                                                              \
        DYNAMIC_SHARED(uint4, shared);                                                             \
                                                                                                   \
        depend_launch();                                                                           \
        gemv_ring<kind>(&a, shared);                                                               \
    }

GEMV_RING(linear_gemv_f16_ring, GEMV_F16)
GEMV_RING(linear_gemv_bf16_ring, GEMV_BF16)
