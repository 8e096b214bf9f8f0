/* moe_choose.cu - the router's choices, made once for the kernels that follow.
 *
 * Place: backend/cuda/kernels; launched by cuda_fuse_moe.c between moe_in.cu and moe_gate.cu.
 * Idea:  one block, a warp per row. A launch of its own costs about two microseconds; what it was measured
 *        against is that every block of two kernels chooses for itself, which took the two 11 instead of
 *        about 6 each, and registers for the choice where weights should be on their way. */
#include "backend/cuda/kernels/moe_args.h"
#include "backend/cuda/kernels/route_choose.cuh"

KERNEL(moe_choose, moe_choose_args, MOE_THREADS, 1)
{
    int row = (int)threadIdx.x / WARP;

    depend_launch();
    depend_wait();
    if (row < a.route.view.counts[STEP_ROWS]) {
        select_row(&a.route, row, 1);
    }
}
