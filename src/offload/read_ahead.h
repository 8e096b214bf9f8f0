/* read_ahead.h - blocks of pageable layers that will be read soon are asked for before anyone touches them.
 *
 * Place:  offload, under offload.c and mail.c. Such blocks may be on a disk (base/file_memory.h); a thread that
 *         runs into a page that is missing waits for that page alone, a few hundred times for one block.
 * Bound:  the experts that are named, and of the layer after a large step's at most READ_AHEAD_NEXT.
 * Cost:   some microseconds for a block that is in memory already. Nothing for other layers.
 * Thread: any. */
#ifndef OFFLOAD_READ_AHEAD_H
#define OFFLOAD_READ_AHEAD_H

#include "backend/expert_home.h"

enum {
    READ_AHEAD_NEXT =
        64, /* blocks, about 100 MB: what a fast disk reads while a layer is computed */
    READ_AHEAD_FILL = 32, /* blocks between the one that is asked for and the one that is copied */
};

/* The experts of idx [n], each once; -1: none. */
void read_ahead_experts(const struct expert_home *home, size_t layer, const int32_t *idx, size_t n);

/* These experts of a layer, in this order, will stream past the device. If they are all that the layer has
 * without a slot, the step is so large that the next layer's will be too: the first of them are asked for. */
void read_ahead_stream(const struct expert_home *home, size_t layer, const int32_t *experts,
                       size_t n);

#endif
