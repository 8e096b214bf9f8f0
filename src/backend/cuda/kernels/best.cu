/* best.cu - where each row's largest value is.
 *
 * Place: backend/cuda/kernels. Blocks (piece, row) each search a piece of a row; then a warp per row
 *        compares the pieces, in order, so that the first of equals wins. */
#include "backend/cuda/kernels/best_args.h"
#include "backend/cuda/kernels/kernel.cuh"

/* Of two places: the larger value, of equals the first; a NaN wins over everything. */
DEVICE void take_better(float *value, int *place, float other, int other_place)
{
    bool is_better = other > *value || (other == *value && other_place < *place) || other != other;

    if (is_better && *value == *value) {
        *value = other;
        *place = other_place;
    }
}

DEVICE void warp_best(float *value, int *place)
{
    UNROLL
    for (int m = WARP / 2; m > 0; m /= 2) {
        float other = shuffle_xor(*value, m);
        int other_place = shuffle_xor(*place, m);

        take_better(value, place, other, other_place);
    }
}

DEVICE bool is_finite(float v)
{
    return (f32_bits(v) & 0x7f800000u) != 0x7f800000u;
}

KERNEL(best_pieces, best_args, BEST_THREADS, 4)
{
    SHARED float values[BEST_THREADS / WARP];
    SHARED int places[BEST_THREADS / WARP];
    int row = (int)blockIdx.y, piece = (int)blockIdx.x, thread = (int)threadIdx.x;
    int begin = piece * a.piece_cols, end = begin + a.piece_cols;
    float best = -INFINITY;
    int place = 0x7fffffff;
    const float *x = a.in + (size_t)row * a.cols;

    depend_launch();
    depend_wait();
    if (row >= a.view.counts[a.count]) {
        return;
    }
    end = end < a.cols ? end : a.cols;
    for (int i = begin + thread; i < end; i += BEST_THREADS) {
        float v = x[i];

        take_better(&best, &place, is_finite(v) ? v : f32_from_bits(0x7fc00000u), i);
    }
    warp_best(&best, &place);
    if (thread % WARP == 0) {
        values[thread / WARP] = best;
        places[thread / WARP] = place;
    }
    block_sync();
    if (thread == 0) {
        for (int w = 1; w < BEST_THREADS / WARP; w++) {
            take_better(&best, &place, values[w], places[w]);
        }
        a.pieces[(size_t)row * BEST_PIECES + piece].value = best;
        a.pieces[(size_t)row * BEST_PIECES + piece].place = place;
    }
}

KERNEL(best_rows, best_args, WARP, 1)
{
    int row = (int)blockIdx.x, lane = (int)threadIdx.x;
    const struct best_piece *p = a.pieces + (size_t)row * BEST_PIECES;
    float best = -INFINITY;
    int place = 0x7fffffff;

    depend_launch();
    depend_wait();
    if (row >= a.view.counts[a.count]) {
        return;
    }
    for (int i = lane; i < BEST_PIECES; i += WARP) {
        take_better(&best, &place, p[i].value, p[i].place);
    }
    warp_best(&best, &place);
    if (lane == 0) {
        a.out[row] = best == best ? place : -1;
    }
}
