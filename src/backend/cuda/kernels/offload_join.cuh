/* offload_join.cuh - waits for the CPU's part of a layer's experts.
 *
 * Place: backend/cuda/kernels; for moe_down.cu and offload.cu.
 * Wait:  a thread of the block that comes first asks the host's memory until the answer is there and tells the
 *        others through the card's: 128 blocks that all ask make a layer 100 us longer (H200). What answers
 *        is a thread of the host, which needs nothing more of the card. After wait_ns the step is given up: it ends soon, with a note that end()
 *        turns into an error. */
#ifndef BACKEND_CUDA_OFFLOAD_JOIN_CUH
#define BACKEND_CUDA_OFFLOAD_JOIN_CUH

#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/offload_args.h"

/* By one thread; after a barrier all may ask join_value(). */
DEVICE void join_wait(const struct offload_join *j)
{
    uint32_t ticket = *j->ticket;
    bool asks = atomic_exchange(j->asked, ticket) != ticket;
    const uint32_t *word = asks ? j->answered : j->arrived;
    uint64_t begin = system_ns();

    while (system_load(word) != ticket) {
        if (*(const volatile int32_t *)j->late_layer != OFFLOAD_NOT_LATE) {
            return;
        }
        if (system_ns() - begin > j->wait_ns) {
            atomic_min(j->late_layer, j->layer);
            return;
        }
        system_pause();
    }
    if (asks) {
        system_store(j->arrived, ticket);
    }
}

/* Whether there is a part of the CPU's in this step; known when the choices are. */
DEVICE bool join_is_due(const struct offload_join *j)
{
    return j->posted && *j->posted > 0;
}

DEVICE float join_value(const struct offload_join *j, size_t at)
{
    return system_value(j->y + at);
}

#endif
