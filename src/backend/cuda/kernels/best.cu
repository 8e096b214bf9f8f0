/* best.cu - each row's largest values and where they are.
 *
 * Place: backend/cuda/kernels.
 * Idea:  the first launch cuts a row into 256 classes and finds the largest of each. The n-th largest of
 *        these is not above the row's n-th largest; and as neighbours fall into different classes, not much
 *        below it. So the second launch lists what reaches it, some 70 values for 64, and a row's last
 *        block puts these in order. A row so full of equal or clustered values that the list is too short
 *        is searched bit by bit instead, by one block, which takes a millisecond.
 * Order: values become integers of the same order, with the place below them, the lower the larger. So no
 *        two are equal, and in which order blocks list them does not matter. */
#include "backend/cuda/kernels/best_args.h"
#include "backend/cuda/kernels/kernel.cuh"

enum {
    WARPS = BEST_THREADS / WARP,
    LOADS = 4,                  /* that a thread has under way */
    LINE_LANES = BEST_LINE / 4, /* threads that load a line, four values each */
    WARP_LINES = WARP / LINE_LANES,
    ROUND_LINES = LOADS * WARPS * WARP_LINES * BEST_PIECES, /* 262,144 columns */
};

static const uint32_t KEY_BAD = 0xffffffffu; /* not finite: above all others */

/* -0 counts as 0. Any finite value is above 0, which is none. */
DEVICE uint32_t key_of(uint32_t bits)
{
    if ((bits & 0x7f800000u) == 0x7f800000u) {
        return KEY_BAD;
    }
    bits = bits == 0x80000000u ? 0 : bits;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

DEVICE uint32_t key_bits(uint32_t key)
{
    return key & 0x80000000u ? key & 0x7fffffffu : ~key;
}

DEVICE uint64_t order_of(uint32_t key, int place)
{
    return (uint64_t)key << 32 | ~(uint32_t)place;
}

/* The first column of a thread's i-th load in a round: lines go to the blocks of a row in turn. */
DEVICE int load_place(int round, int i)
{
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int line = (i * WARPS + warp) * WARP_LINES + lane / LINE_LANES;

    return (round + line * BEST_PIECES + (int)blockIdx.x) * BEST_LINE + lane % LINE_LANES * 4;
}

/* The thread's values of a round that begins with this line: all loads before anything is made of them. */
DEVICE void round_keys(uint32_t key[LOADS][4], const struct best_args *a, const float *x, int round)
{
    if (a->is_wide) {
        uint4 v[LOADS];

        UNROLL
        for (int i = 0; i < LOADS; i++) {
            int at = load_place(round, i);

            v[i] = *(const uint4 *)(x + (at < a->cols ? at : 0));
        }
        UNROLL
        for (int i = 0; i < LOADS; i++) {
            bool is_there = load_place(round, i) < a->cols;

            key[i][0] = is_there ? key_of(v[i].x) : 0;
            key[i][1] = is_there ? key_of(v[i].y) : 0;
            key[i][2] = is_there ? key_of(v[i].z) : 0;
            key[i][3] = is_there ? key_of(v[i].w) : 0;
        }
        return;
    }
    UNROLL
    for (int i = 0; i < LOADS; i++) {
        UNROLL
        for (int j = 0; j < 4; j++) {
            int at = load_place(round, i) + j;

            key[i][j] = at < a->cols ? key_of(f32_bits(x[at])) : 0;
        }
    }
}

DEVICE uint32_t larger(uint32_t x, uint32_t y)
{
    return x > y ? x : y;
}

KERNEL(best_classes, best_args, BEST_THREADS, 2)
{
    SHARED uint32_t part[WARPS][BEST_CLASSES];
    int thread = (int)threadIdx.x, row = a.row + (int)blockIdx.y;
    struct best_scratch *s = a.scratch + blockIdx.y;
    const float *x = a.in + (size_t)row * (size_t)a.cols;
    uint32_t key[LOADS][4], most = 0;

    depend_launch();
    depend_wait();
    if (row >= a.view.counts[a.count]) {
        return;
    }
    for (int round = 0; round < a.n_lines; round += ROUND_LINES) {
        round_keys(key, &a, x, round);
        UNROLL
        for (int i = 0; i < LOADS; i++) {
            most = larger(most, larger(larger(key[i][0], key[i][1]), larger(key[i][2], key[i][3])));
        }
    }
    UNROLL
    for (int m = BEST_CLASSES; m < WARP; m *= 2) {
        most = larger(most, shuffle_xor(most, m));
    }
    if (thread % WARP < BEST_CLASSES) {
        part[thread / WARP][thread % WARP] = most;
    }
    block_sync();
    if (thread < BEST_CLASSES) {
        for (int w = 0; w < WARPS; w++) {
            most = larger(most, part[w][thread]);
        }
        s->largest[(int)blockIdx.x * BEST_CLASSES + thread] = most;
    }
    if (thread == 0 && blockIdx.x == 0) {
        s->n_listed = 0;
        s->n_done = 0;
    }
}

/* The BEST_KEPT-th largest of the classes' values and the largest, to found[]. */
DEVICE void classes_rank(uint32_t found[2], uint32_t *all, const struct best_scratch *s)
{
    int thread = (int)threadIdx.x, rank = 0;
    uint32_t mine = s->largest[thread];

    all[thread] = mine;
    block_sync();
    UNROLL
    for (int i = 0; i < BEST_THREADS; i += 4) {
        uint4 v = *(const uint4 *)(all + i);

        rank += v.x > mine || (v.x == mine && i < thread);
        rank += v.y > mine || (v.y == mine && i + 1 < thread);
        rank += v.z > mine || (v.z == mine && i + 2 < thread);
        rank += v.w > mine || (v.w == mine && i + 3 < thread);
    }
    if (rank == BEST_KEPT - 1) {
        found[0] = mine > 0 ? mine : 1;
    }
    if (rank == 0) {
        found[1] = mine;
    }
    block_sync();
}

DEVICE void list_values(struct best_scratch *s, const uint32_t key[LOADS][4], uint32_t least,
                        int round)
{
    UNROLL
    for (int i = 0; i < LOADS; i++) {
        UNROLL
        for (int j = 0; j < 4; j++) {
            if (key[i][j] >= least) {
                int n = atomic_add(&s->n_listed, 1);

                if (n < BEST_LIST) {
                    s->list[n] = order_of(key[i][j], load_place(round, i) + j);
                }
            }
        }
    }
}

/* Lists exactly the BEST_KEPT first of a row that has more than that. found: zeros. */
DEVICE int list_bit_by_bit(uint64_t *list, int32_t found[65], const float *x, int cols)
{
    uint64_t least = 0;

    for (int bit = 63; bit >= 0; bit--) {
        uint64_t trial = least | (uint64_t)1 << bit;
        int n = 0;

        for (int i = (int)threadIdx.x; i < cols; i += BEST_THREADS) {
            n += order_of(key_of(f32_bits(x[i])), i) >= trial;
        }
        atomic_add(&found[bit], n);
        block_sync();
        least = found[bit] >= BEST_KEPT ? trial : least;
    }
    for (int i = (int)threadIdx.x; i < cols; i += BEST_THREADS) {
        uint64_t order = order_of(key_of(f32_bits(x[i])), i);

        if (order >= least) {
            list[atomic_add(&found[64], 1)] = order;
        }
    }
    block_sync();
    return BEST_KEPT;
}

/* The n of the list by their rank; each knows it by comparing itself with all. */
DEVICE void put_in_order(int32_t *out, const uint64_t *list, int n)
{
    for (int i = (int)threadIdx.x; i < n; i += BEST_THREADS) {
        uint64_t mine = list[i];
        int rank = 0;

        for (int j = 0; j < n; j++) {
            rank += list[j] > mine;
        }
        if (rank < BEST_KEPT) {
            out[rank] = (int32_t) ~(uint32_t)mine;
            out[BEST_KEPT + rank] = (int32_t)key_bits((uint32_t)(mine >> 32));
        }
    }
    for (int i = n + (int)threadIdx.x; i < BEST_KEPT; i += BEST_THREADS) {
        out[i] = -1;
        out[BEST_KEPT + i] = (int32_t)0xff800000u; /* -infinity */
    }
}

KERNEL(best_rows, best_args, BEST_THREADS, 2)
{
    SHARED uint32_t classes[BEST_THREADS];
    SHARED uint32_t bounds[2];
    SHARED uint64_t list[BEST_LIST];
    SHARED int32_t found[65];
    SHARED int32_t n_listed;
    int thread = (int)threadIdx.x, row = a.row + (int)blockIdx.y, n;
    struct best_scratch *s = a.scratch + blockIdx.y;
    const float *x = a.in + (size_t)row * (size_t)a.cols;
    int32_t *out = a.out + (size_t)row * 2 * BEST_KEPT;
    uint32_t key[LOADS][4];

    depend_launch();
    depend_wait();
    if (row >= a.view.counts[a.count]) {
        return;
    }
    for (int round = 0; round < a.n_lines; round += ROUND_LINES) {
        round_keys(key, &a, x, round);
        if (round == 0) {
            classes_rank(bounds, classes, s);
        }
        if (bounds[1] == KEY_BAD) {
            break;
        }
        list_values(s, key, bounds[0], round);
    }
    block_sync();
    if (thread == 0) { /* as the row's last block: how many are listed; else -1 */
        memory_fence();
        n_listed = atomic_add(&s->n_done, 1) == BEST_PIECES - 1 ? atomic_add(&s->n_listed, 0) : -1;
        memory_fence();
    }
    if (thread < 65) {
        found[thread] = 0;
    }
    block_sync();
    n = n_listed;
    if (n < 0) {
        return;
    }
    if (n > BEST_LIST) {
        n = list_bit_by_bit(list, found, x, a.cols);
    } else {
        for (int i = thread; i < n; i += BEST_THREADS) {
            list[i] = *(const volatile uint64_t *)(s->list + i);
        }
        block_sync();
    }
    put_in_order(out, list, n);
}
