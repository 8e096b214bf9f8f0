/* emulator.h - a card in software: runs our kernels where there is none, for tests.
 *
 * Place:  backend/cuda/emulator; tests only. A table in the driver's place (cuda_driver.h), so all of the
 *         backend above it is what runs on a card.
 * Idea:   the kernels' own source compiled by a C++ compiler against device.h. Blocks run one after the
 *         other; a block's threads are fibers that change places at barriers. Device memory is host
 *         memory. What a card leaves undefined is made to hurt: new memory, shared memory and the targets
 *         of copies in flight hold NaN, threads run in another order in every launch, red zones lie
 *         around allocations and shared memory, misaligned loads and barriers that some threads miss
 *         are errors, with a text on stderr.
 * Not shown: races between threads that no order of whole stretches between barriers reveals (shared
 *         memory can be watched: SPILLWAY_EMULATOR_RACES), kernels that overlap, blocks that wait for each other (they never return), time.
 * Thread: one launch at a time; nothing here is guarded by a lock. */
#ifndef BACKEND_CUDA_EMULATOR_EMULATOR_H
#define BACKEND_CUDA_EMULATOR_EMULATOR_H

#include "backend/cuda/cuda_driver.h"

/* The order in which blocks, warps of a block and lanes of a warp get their turns. VARIES: the three
 * others in turn, launch by launch. */
enum emulator_order {
    EMULATOR_ORDER_VARIES,
    EMULATOR_ORDER_FORWARD,
    EMULATOR_ORDER_REVERSE,
    EMULATOR_ORDER_SHUFFLED
};

/* A card of compute capability 9.0. */
const struct cuda_driver *cuda_emulator_driver(void);

/* Of another capability, times ten (75, 80, 86, 89, 90, 120), from now on. */
const struct cuda_driver *cuda_emulator_driver_sm(int sm);

void cuda_emulator_set_order(enum emulator_order order);

/* What went wrong in the last launch that failed; "" if none did. */
const char *cuda_emulator_failure(void);

/* Whether kernels were compiled with SPILLWAY_EMULATOR_RACES: accesses of shared memory by several threads
 * without a barrier between fail their launch. */
bool cuda_emulator_sees_races(void);

/* Device memory that holds what the kernels just before wrote, as the operands of an op do. With
 * SPILLWAY_EMULATOR_RACES a kernel that reads before depend_wait() what may still be written fails; what
 * kernels do write is known without this. */
void cuda_emulator_mark_operand(const void *data, size_t n_bytes);

/* Launches since the start of the process. */
size_t cuda_emulator_launches(void);

#endif
