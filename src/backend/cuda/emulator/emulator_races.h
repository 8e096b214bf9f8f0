/* emulator_races.h - finds accesses that are not in order: of threads of a block that meet in shared memory
 * without a barrier between them, and of a kernel to what the kernels before it may still be writing.
 *
 * Place:  backend/cuda/emulator; private. In effect when the kernels are compiled with
 *         SPILLWAY_EMULATOR_RACES, several times slower.
 * Idea:   the compiler puts a call before each load and store (the instrumentation of ThreadSanitizer, with
 *         functions of our own behind it). Each byte of shared memory remembers who wrote and who read it
 *         last and when. Two threads are in order when the block had a barrier between, or their common
 *         warp a warp_sync(); other warp functions order no memory. So what is found does not depend on
 *         the order of turns. In global memory only what happens before depend_wait() is looked at: a
 *         kernel must not write then, and reads nothing that a kernel which may still run writes. Blocks that meet there are
 *         left to the varying order of blocks. */
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

/* The running thread touches these bytes of any memory; ends the launch (emulator_fail) when it may not.
 * `where` is code, for the text. */
void races_access(const void *p, size_t n_bytes, bool is_write, const void *where);

#endif
