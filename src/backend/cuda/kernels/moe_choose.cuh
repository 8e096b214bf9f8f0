/* moe_choose.cuh - the router's choices, made by every block that wants them.
 *
 * Place: backend/cuda/kernels; for moe_gate.cu and moe_down.cu.
 * Idea:  one block that chooses for all others has to find out that it is the last to have logits, and the
 *        others have to wait for its choice: twice the way to memory and back. The choice itself is
 *        short, and the same bits wherever it is made. */
#ifndef BACKEND_CUDA_MOE_CHOOSE_CUH
#define BACKEND_CUDA_MOE_CHOOSE_CUH

#include "backend/cuda/kernels/moe_args.h"
#include "backend/cuda/kernels/route_choose.cuh"

struct moe_choices { /* in shared memory */
    int32_t idx[MOE_ROWS_MAX * MOE_TOP_K_MAX];
    float prob[MOE_ROWS_MAX * MOE_TOP_K_MAX];
};

/* A warp per row. Rows past the step's choose no expert. has_margin: of one block only. Ends with a barrier. */
DEVICE void choose_all(struct moe_choices *c, const struct route_args *a, bool has_margin)
{
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, at = warp * a->top_k;

    if (warp < MOE_ROWS_MAX) {
        if (warp < a->view.counts[STEP_ROWS]) {
            choose_row<MOE_EXPERTS_MAX / WARP>(c->idx + at, c->prob + at, a, warp, 1,
                                               has_margin && a->view.router_margin != NULL);
        } else if (lane < a->top_k) {
            c->idx[at + lane] = -1;
            c->prob[at + lane] = 0;
        }
    }
    block_sync();
}

#endif
