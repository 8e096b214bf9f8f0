/* experts_find.cuh - which slots a block works on.
 *
 * Place: backend/cuda/kernels; for experts_tile.cu and experts_plain.cu.
 * Idea:  each expert's slots are cut into tiles. Nobody writes the list of tiles down: a block counts the
 *        tiles of the experts before it, which takes less time than one more launch would.
 * Group: a launch may be for some of the experts; the others have no tiles then. */
#ifndef BACKEND_CUDA_EXPERTS_FIND_CUH
#define BACKEND_CUDA_EXPERTS_FIND_CUH

#include "backend/cuda/kernels/experts_args.h"
#include "backend/cuda/kernels/kernel.cuh"

struct experts_tile {
    int32_t expert, slot,
        n; /* slots [slot, slot + n) of the expert; n is 0: there is no such tile */
};

struct find_shared {
    struct experts_tile tile;
    int32_t which; /* the tile's number */
    int32_t warp_tiles[32];
};

DEVICE bool is_of_group(const struct experts_args *a, int e)
{
    return !a->group_of || a->group_of[e] == a->group_now;
}

DEVICE int tiles_of(const struct experts_args *a, int e, int tile_slots)
{
    return is_of_group(a, e) ? (a->first[e + 1] - a->first[e] + tile_slots - 1) / tile_slots : 0;
}

/* The tile number `which` of at most tile_slots slots. All threads of the block call; ends with a barrier. */
DEVICE struct experts_tile find_tile(struct find_shared *s, const struct experts_args *a,
                                     int tile_slots, int which)
{
    int tid = (int)threadIdx.x, lane = tid % WARP, warp = tid / WARP;
    int each = (a->n_experts + (int)blockDim.x - 1) / (int)blockDim.x;
    int begin = min(tid * each, a->n_experts), end = min(begin + each, a->n_experts);
    int own = 0, before;

    for (int e = begin; e < end; e++) {
        own += tiles_of(a, e, tile_slots);
    }
    before = own;
    UNROLL
    for (int d = 1; d < WARP; d *= 2) {
        int other = shuffle_up(before, d);

        before += lane >= d ? other : 0;
    }
    if (lane == WARP - 1) {
        s->warp_tiles[warp] = before;
    }
    if (tid == 0) {
        s->tile.n = 0;
    }
    block_sync();
    if (tid == 0) {
        s->which = which;
    }
    before -= own;
    for (int w = 0; w < warp; w++) {
        before += s->warp_tiles[w];
    }
    if (which >= before && which < before + own) {
        int e = begin, n = tiles_of(a, e, tile_slots), slot;

        while (which >= before + n) {
            before += n;
            e++;
            n = tiles_of(a, e, tile_slots);
        }
        slot = a->first[e] + (which - before) * tile_slots;
        s->tile.expert = e;
        s->tile.slot = slot;
        s->tile.n = min(tile_slots, a->first[e + 1] - slot);
    }
    block_sync();
    return s->tile;
}

/* The number of the block's next tile after the one that find_tile() gave, where n_blocks share a tile. From
 * shared memory, for the products have no register to keep it in. */
DEVICE int next_tile(const struct find_shared *s, int n_blocks)
{
    return s->which + (int)gridDim.x / n_blocks;
}

#endif
