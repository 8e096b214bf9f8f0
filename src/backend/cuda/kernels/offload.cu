/* offload.cu - overflowing experts of a small step where the layer runs op by op, and what both ways share.
 *
 * Place: backend/cuda/kernels; launched by cuda_offload.c. */
#include "backend/cuda/kernels/offload_join.cuh"
#include "backend/cuda/kernels/offload_resolve.cuh"

KERNEL(experts_resolve, offload_args, OFFLOAD_THREADS, 1)
{
    SHARED struct resolve_shared shared;

    depend_launch();
    depend_wait();
    resolve(&shared, &a, a.idx, a.prob);
}

/* Expert after expert, so that the first is there early; all blocks on each. */
KERNEL(experts_fetch, offload_fetch_args, OFFLOAD_FETCH_THREADS, 2)
{
    size_t n_units = a.block_bytes / 16, stride = (size_t)gridDim.x * OFFLOAD_FETCH_THREADS;
    int n;

    depend_launch();
    depend_wait();
    n = a.list->n;
    for (int i = 0; i < n; i++) {
        const uint8_t *from = a.list->item[i].from;
        uint8_t *to = a.list->item[i].to;

        for (size_t at = (size_t)blockIdx.x * OFFLOAD_FETCH_THREADS + threadIdx.x; at < n_units;
             at += OFFLOAD_FETCH_HELD * stride) {
            uint4 v[OFFLOAD_FETCH_HELD];

            UNROLL
            for (int j = 0; j < OFFLOAD_FETCH_HELD; j++) {
                if (at + (size_t)j * stride < n_units) {
                    v[j] = stream16(from + (at + (size_t)j * stride) * 16);
                }
            }
            UNROLL
            for (int j = 0; j < OFFLOAD_FETCH_HELD; j++) {
                if (at + (size_t)j * stride < n_units) {
                    *(uint4 *)(to + (at + (size_t)j * stride) * 16) = v[j];
                }
            }
        }
    }
}

/* The expert's block is, or will be in stream order, in the slot. */
KERNEL(experts_insert, offload_insert_args, WARP, 1)
{
    depend_launch();
    depend_wait();
    if (threadIdx.x == 0) {
        int was = a.pool.slot_of[a.layer * a.pool.n_experts + a.expert];

        if (was >= 0) {
            a.pool.owner[was].layer = a.pool.owner[was].expert = -1;
        }
        slot_give(&a.pool, a.slot, a.layer, a.expert);
    }
}

KERNEL(experts_join, offload_join_args, OFFLOAD_JOIN_THREADS, 2)
{
    int row = (int)blockIdx.y, col = (int)(blockIdx.x * OFFLOAD_JOIN_THREADS + threadIdx.x);
    size_t at = (size_t)row * (size_t)a.hidden + (size_t)col;

    depend_launch();
    depend_wait();
    if (row >= *a.n_rows || !join_is_due(&a.join)) {
        return;
    }
    if (threadIdx.x == 0) {
        join_wait(&a.join);
    }
    block_sync();
    if (col < a.hidden) {
        a.out[at] += join_value(&a.join, at);
    }
}
