/* moe_choose.cu - the router's choices, made once for the kernels that follow; where experts overflow, also who
 * computes which.
 *
 * Place: backend/cuda/kernels; launched by cuda_fuse_moe.c between moe_in.cu and moe_gate.cu.
 * Idea:  one block, a warp per row. It is one more launch; but where every block of the two kernels after it
 *        chose for itself, those took 11 us each (H200, one row) for 9 and 5 MB, and the choice took the
 *        registers of weights on their way.
 * Early:  the next kernel may begin when this one has waited, and so finds the normed rows finished. */
#include "backend/cuda/kernels/moe_args.h"
#include "backend/cuda/kernels/offload_resolve.cuh"
#include "backend/cuda/kernels/route_choose.cuh"

enum { PAIRS_MAX = MOE_ROWS_MAX * ROUTE_TOP_K_MAX };

/* The choices of all rows to where the op's are. Ends with a barrier. */
DEVICE void choices_put(const struct route_args *a, const int32_t *idx, const float *prob,
                        int n_rows)
{
    int n = n_rows * a->top_k;

    block_sync();
    for (int i = (int)threadIdx.x; i < n; i += MOE_THREADS) {
        a->idx[i] = idx[i];
        a->prob[i] = prob[i];
    }
    block_sync();
}

KERNEL(moe_choose, moe_choose_args, MOE_THREADS, 1)
{
    SHARED int32_t idx[PAIRS_MAX];
    SHARED float prob[PAIRS_MAX];
    SHARED struct resolve_shared shared;
    int row = (int)threadIdx.x / WARP, at = row * a.route.top_k;
    int n_rows = min(a.route.view.counts[STEP_ROWS], (int)MOE_ROWS_MAX); /* known before */

    depend_wait();
    depend_launch();
    if (row < n_rows) {
        choose_any(idx + at, prob + at, &a.route, row, 1);
    }
    choices_put(&a.route, idx, prob, n_rows);
    if (a.has_home) {
        resolve(&shared, &a.home, idx, prob);
    }
}
