/* emulator_run.h - runs one grid: threads, barriers, warp functions.
 *
 * Place: backend/cuda/emulator; private, C and C++. device.h's functions end here, and so does the
 *        emulated driver's launch. */
#ifndef BACKEND_CUDA_EMULATOR_EMULATOR_RUN_H
#define BACKEND_CUDA_EMULATOR_EMULATOR_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cuda/emulator/emulator.h"

enum {
    EMULATOR_WARP = 32,
    EMULATOR_THREADS_MAX = 1024,
    EMULATOR_STATIC_SHARED_MAX = 48 << 10,
};

struct emulator_index {
    unsigned x, y, z;
};

/* What the running thread sees under CUDA's names. */
extern struct emulator_index threadIdx, blockIdx, blockDim, gridDim;
extern void *emulator_dynamic_shared;

/* A kernel of the program; registered by KERNEL before main(). */
struct emulator_kernel {
    const char *name;
    size_t args_bytes;
    unsigned threads_max; /* of its launch bounds */
    void (*call)(const void *args);
    struct emulator_kernel *next;
};
void emulator_register(struct emulator_kernel *kernel);
const struct emulator_kernel *emulator_kernel_find(const char *name);

struct emulator_launch {
    const struct emulator_kernel *kernel;
    const void *args;
    struct emulator_index grid, block;
    size_t shared_bytes;
    int sm;
    bool may_overlap; /* with the launches before, until it waits */
    enum emulator_order order;
    uint64_t seed; /* of the shuffled order */
};

/* Runs the grid to its end or its first fault; then false, with a text. */
bool emulator_run(const struct emulator_launch *launch, char *text, size_t text_bytes);

/* Of the last grid: whether each of its blocks let the next kernel begin only after its depend_wait(). */
bool emulator_waited_first(void);

/* The rest is called by running threads. */

/* Ends the launch with this text. */
void emulator_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

enum emulator_meeting {
    EMULATOR_WARP_SYNC,
    EMULATOR_EXCHANGE,
    EMULATOR_BALLOT,
    EMULATOR_MMA_BF16,
    EMULATOR_MMA_F16,
    EMULATOR_MMA_S8,
    EMULATOR_LOAD_MATRIX,
    EMULATOR_LOAD_MATRIX_TRANS,
    EMULATOR_MEETINGS
};

void emulator_depend_launch(void);
void emulator_depend_wait(void);
bool emulator_has_waited(void); /* some thread of the block */
void emulator_block_sync(void);
void emulator_warp_sync(void);
int emulator_lane(void);

/* out = lane `source`'s value; n_bytes up to 16. */
void emulator_exchange(void *out, const void *value, size_t n_bytes, int source);
uint32_t emulator_ballot(bool p);

/* See mma.cuh; d is float[4] or int32_t[4]. */
void emulator_mma(enum emulator_meeting kind, void *d, const uint32_t a[4], const uint32_t b[2]);
void emulator_load_matrix(enum emulator_meeting kind, uint32_t r[4], const void *row);

/* Not in device.h, where the compiler would watch them as it does other accesses (emulator_races.h). */
int32_t emulator_atomic_add(int32_t *p, int32_t v);
bool emulator_atomic_is_last(int32_t *ticket, int32_t n);
int32_t emulator_atomic_min(int32_t *p, int32_t v);
uint32_t emulator_atomic_exchange(uint32_t *p, uint32_t v);
uint32_t emulator_atomic_max_u32(uint32_t *p, uint32_t v);

/* The other side is a thread of the host, as on a card. */
void emulator_system_fence(void);
uint32_t emulator_system_load(const uint32_t *p);
void emulator_system_store(uint32_t *p, uint32_t v);
void emulator_system_store2(uint32_t *p, uint32_t first, uint32_t second);
uint64_t emulator_system_ns(void);
void emulator_system_pause(void);

void emulator_copy16_async(void *shared, const void *global, bool is_valid);
void emulator_copy_commit(void);
void emulator_copy_wait(unsigned n_groups);

#endif
