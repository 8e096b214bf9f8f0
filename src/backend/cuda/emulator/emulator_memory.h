/* emulator_memory.h - the emulated card's memory: what is allocated, and which launch wrote it last.
 *
 * Place: backend/cuda/emulator; private, C and C++. The driver allocates and says when launches begin and
 *        end; emulator_races.c asks about every access of a watched kernel. */
#ifndef BACKEND_CUDA_EMULATOR_EMULATOR_MEMORY_H
#define BACKEND_CUDA_EMULATOR_EMULATOR_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* Full of NaN, aligned to 256 bytes, with a red zone behind. NULL: the host has no memory. */
void *emulator_memory_new(size_t n_bytes);

/* False: no allocation begins there. */
bool emulator_memory_free(void *p);

/* Of all allocations. */
size_t emulator_memory_used(void);

/* Whether [p, p + n_bytes) is in one allocation. */
bool emulator_memory_holds(const void *p, size_t n_bytes);

/* An allocation that was written past its end, and its size; NULL: none. */
const void *emulator_memory_broken(size_t *n_bytes);

/* ---- which launch wrote it ---- */

/* The next launch begins; may_overlap: before the one in front of it has ended. */
void emulator_memory_launch_begin(bool may_overlap);

/* It has run. waited_first: each of its blocks let the next begin only after its own depend_wait(). */
void emulator_memory_launch_end(bool waited_first);

/* All launches so far have ended before anything else begins. */
void emulator_memory_idle(void);

/* Launches begun since the start of the process. */
size_t emulator_memory_launches(void);

/* Whether a launch that may still run has written any of these bytes; that the present one does; whether they
 * are the card's; that they count as written by whoever came before. */
bool emulator_memory_is_open(const void *p, size_t n_bytes);
void emulator_memory_write(const void *p, size_t n_bytes);
bool emulator_memory_is_device(const void *p);
void emulator_memory_mark_operand(const void *p, size_t n_bytes);

#endif
