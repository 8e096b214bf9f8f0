/* emulator_races.h - finds threads of a block that meet in shared memory without a barrier between them.
 *
 * Place:  backend/cuda/emulator; private. In effect when the kernels are compiled with
 *         SPILLWAY_EMULATOR_RACES, several times slower.
 * Idea:   the compiler puts a call before each load and store (the instrumentation of ThreadSanitizer, with
 *         functions of our own behind it). Each byte of shared memory remembers who wrote and who read it
 *         last and when. Two threads are in order when the block had a barrier between, or their common
 *         warp a warp_sync(); other warp functions order no memory. So what is found does not depend on
 *         the order of turns. Global memory is not watched: blocks run in varying order instead. */
#ifndef BACKEND_CUDA_EMULATOR_EMULATOR_RACES_H
#define BACKEND_CUDA_EMULATOR_EMULATOR_RACES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct race_thread {
    uint16_t number, warp;
    uint16_t n_syncs; /* warp_sync() of its warp so far */
};
struct race_thread emulator_running(void); /* who runs (emulator_run.c) */

/* A block begins, with this much dynamic shared memory. False: no memory. */
bool races_block(const void *dynamic, size_t n_bytes);

/* The whole block has met. */
void races_barrier(void);

/* t touches these bytes; ends the launch (emulator_fail) when it may not. `where` is code, for the text. */
void races_access(struct race_thread t, const void *p, size_t n_bytes, bool is_write,
                  const void *where);

#endif
