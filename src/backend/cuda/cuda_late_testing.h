/* cuda_late_testing.h - the emulated card with streams that take their time.
 *
 * Place: backend/cuda; for tests of what several streams share. The emulator does work when it is asked for,
 *        so a wait that somebody forgot is never missed. Here work lies in its stream's queue until
 *        something waits for it: another stream at an event, or the host. A queue can also be worked off
 *        at once as far as its own waits allow, or as a die decides. */
#ifndef BACKEND_CUDA_CUDA_LATE_TESTING_H
#define BACKEND_CUDA_CUDA_LATE_TESTING_H

#include <stdint.h>

#include "backend/cuda/cuda_driver.h"

enum late_policy {
    LATE_NOBODY, /* everything is done when it is asked for */
    LATE_ALL,
    LATE_FIRST,  /* the stream that was made first; the others work at once */
    LATE_OTHERS, /* the other way round */
    LATE_DICE,
};

/* For backends made from now on, one at a time; without graphs. Until the next call. */
const struct cuda_driver *late_driver(enum late_policy policy, uint64_t seed);

/* The call number `which` (1: the next) of a copy to the card, a launch, or what concerns events fails with
 * an error that leaves the device usable; 0: none. Returns how many calls there were since the last
 * late_fail(). */
size_t late_fail(size_t which);

/* The same for what allocates. */
size_t late_fail_memory(size_t which);

#endif
