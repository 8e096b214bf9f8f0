/* ahead.cuh - asks for the weights of kernels to come, so that the second-level cache has them.
 *
 * Place:  backend/cuda/kernels; see cuda_ahead.c for who asks for what.
 * Idea:   a step of one row is half waiting for the last kernel's end, sums and barriers, while memory has
 *         nothing to do. Nothing is read and no register is taken: weights come into the cache, and the
 *         kernel that wants them finds them there.
 * Order:  a kernel asks for its own data first: what is asked for here stands before all that comes later in
 *         the memory's queue. Pieces are dealt out in turn, so the first are on their way first. */
#ifndef BACKEND_CUDA_AHEAD_CUH
#define BACKEND_CUDA_AHEAD_CUH

#include "backend/cuda/kernels/ahead_args.h"
#include "backend/cuda/kernels/kernel.cuh"

#if !defined(__CUDACC__) || __CUDA_ARCH__ >= 900
enum { AHEAD_LANES = 1 }; /* that ask together */
#else
enum { AHEAD_LANES = WARP };
#endif

/* n_bytes from p on, both multiples of 16. The emulator touches both ends, so that a wrong range shows. */
DEVICE void ahead_ask(const uint8_t *p, uint32_t n_bytes)
{
#if !defined(__CUDACC__)
    (void)*(const volatile uint8_t *)p;
    (void)*(const volatile uint8_t *)(p + n_bytes - 1);
#elif __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(n_bytes));
#else
    enum { LINE = 128 };

    for (uint32_t at = threadIdx.x % WARP * LINE; at < n_bytes; at += WARP * LINE) {
        prefetch_line(p + at);
    }
#endif
}

/* What block `block` of n_blocks has to ask for; AHEAD_LANES threads of one warp call. */
DEVICE void ahead_share(const struct ahead_args *a, int block, int n_blocks)
{
    uint32_t piece = a->piece_bytes, at = (uint32_t)block * piece;

    for (int r = 0; r < a->n_ranges; r++) {
        const struct ahead_range *range = &a->range[r];
        uint32_t end = (range->n_bytes + piece - 1) / piece * piece;

        for (; at < range->n_bytes; at += (uint32_t)n_blocks * piece) {
            ahead_ask((const uint8_t *)range->data + at, min(piece, range->n_bytes - at));
        }
        at -= end; /* the deal goes on in the next range */
    }
}

/* All blocks of the grid call; the asking is done by `thread` of each, or its warp, which has little else to do.
 * May come before depend_wait(). */
DEVICE void ahead_by_thread(const struct ahead_args *a, int thread)
{
    if ((int)threadIdx.x / AHEAD_LANES == thread / AHEAD_LANES) {
        ahead_share(a, (int)(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)),
                    (int)(gridDim.x * gridDim.y * gridDim.z));
    }
}

#endif
