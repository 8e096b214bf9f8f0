/* emulator_races.c - see emulator_races.h. */
#include "backend/cuda/emulator/emulator_races.h"

#include <stdio.h>
#include <stdlib.h>

#include "backend/cuda/emulator/emulator_memory.h"
#include "backend/cuda/emulator/emulator_run.h"

/* Who read a byte in the last epoch in which it was read: a thread, several of one warp since its last
 * warp_sync(), or several warps. */
enum { READERS_OF_WARP = 0x8000, READERS_ANY = 0xffff };

struct cell { /* one byte's history; epochs count barriers from the start of the process */
    uint32_t write_epoch, read_epoch;
    uint16_t write_syncs, read_syncs; /* of the warp, then */
    uint16_t writer, reader;
};

struct watched {
    const char *base;
    size_t n_bytes, capacity;
    struct cell *cells;
};

static struct {
    struct watched dynamic, fixed; /* fixed: the kernels' SHARED variables */
    uint32_t epoch;
} races;

extern char __start_emulator_shared[] __attribute__((weak));
extern char __stop_emulator_shared[] __attribute__((weak));
extern char __executable_start[];

static bool watch(struct watched *w, const char *base, size_t n_bytes)
{
    if (n_bytes > w->capacity) {
        free(w->cells);
        w->cells = calloc(n_bytes, sizeof *w->cells);
        w->capacity = w->cells ? n_bytes : 0;
    }
    w->base = base;
    w->n_bytes = n_bytes;
    return n_bytes <= w->capacity;
}

bool races_block(const void *dynamic, size_t n_bytes)
{
    size_t n_fixed = (size_t)(__stop_emulator_shared - __start_emulator_shared);

    races.epoch++;
    return watch(&races.dynamic, dynamic, n_bytes) &&
           watch(&races.fixed, __start_emulator_shared, n_fixed);
}

void races_barrier(void)
{
    races.epoch++;
}

static void race(const struct watched *w, size_t at, const char *does, const char *did,
                 unsigned who, const void *where)
{
    char other[64];

    if (who >= READERS_OF_WARP) {
        snprintf(other, sizeof other, "several %s",
                 who == READERS_ANY ? "warps" : "threads of one warp");
    } else {
        snprintf(other, sizeof other, "thread %u", who);
    }
    emulator_fail("%s byte %zu of %s shared memory (code at 0x%zx), which %s %s, and no barrier is "
                  "between",
                  does, at, w == &races.dynamic ? "dynamic" : "static",
                  (size_t)((const char *)where - __executable_start), other, did);
}

/* Whether what this one did then may be at the same time as what t does now. */
static bool is_unordered(struct race_thread t, uint16_t who, uint16_t syncs)
{
    if (who == READERS_ANY) {
        return true;
    }
    if (who & READERS_OF_WARP) {
        return (who & ~READERS_OF_WARP) != t.warp || syncs == t.n_syncs;
    }
    return who != t.number && (who / EMULATOR_WARP != t.warp || syncs == t.n_syncs);
}

static void note_read(struct cell *c, struct race_thread t)
{
    bool same_warp, since_sync;

    if (c->read_epoch != races.epoch) {
        c->reader = t.number;
        c->read_syncs = t.n_syncs;
        c->read_epoch = races.epoch;
        return;
    }
    if (c->reader == READERS_ANY) {
        return;
    }
    same_warp = c->reader & READERS_OF_WARP ? (c->reader & ~READERS_OF_WARP) == t.warp
                                            : c->reader / EMULATOR_WARP == t.warp;
    since_sync = c->read_syncs == t.n_syncs;
    if (!same_warp) {
        c->reader = READERS_ANY;
    } else if (!since_sync) {
        c->reader = t.number;
        c->read_syncs = t.n_syncs;
    } else if (c->reader != t.number) {
        c->reader = (uint16_t)(READERS_OF_WARP | t.warp);
    }
}

static void shared_access(struct watched *w, size_t at, size_t n_bytes, bool is_write,
                          const void *where)
{
    struct race_thread t = emulator_running();

    for (size_t i = at; i < at + n_bytes && i < w->n_bytes; i++) {
        struct cell *c = &w->cells[i];

        if (c->write_epoch == races.epoch && is_unordered(t, c->writer, c->write_syncs)) {
            race(w, i, is_write ? "writes" : "reads", "wrote", c->writer, where);
        }
        if (!is_write) {
            note_read(c, t);
            continue;
        }
        if (c->read_epoch == races.epoch && is_unordered(t, c->reader, c->read_syncs)) {
            race(w, i, "writes", "read", c->reader, where);
        }
        c->write_epoch = races.epoch;
        c->writer = t.number;
        c->write_syncs = t.n_syncs;
    }
}

static void global_access(const void *p, size_t n_bytes, bool is_write, const void *where)
{
    if (emulator_has_waited()) {
        if (is_write) {
            emulator_memory_write(p, n_bytes);
        }
        return;
    }
    if (is_write ? emulator_memory_is_device(p) : emulator_memory_is_open(p, n_bytes)) {
        emulator_fail("%s device memory at %p (code at 0x%zx) before depend_wait(), which kernels "
                      "before it may still %s",
                      is_write ? "writes" : "reads", p,
                      (size_t)((const char *)where - __executable_start),
                      is_write ? "read" : "write");
    }
}

void races_access(const void *p, size_t n_bytes, bool is_write, const void *where)
{
    size_t in_dynamic = (size_t)((const char *)p - races.dynamic.base);
    size_t in_fixed = (size_t)((const char *)p - races.fixed.base);

    if (in_dynamic < races.dynamic.n_bytes) {
        shared_access(&races.dynamic, in_dynamic, n_bytes, is_write, where);
    } else if (in_fixed < races.fixed.n_bytes) {
        shared_access(&races.fixed, in_fixed, n_bytes, is_write, where);
    } else {
        global_access(p, n_bytes, is_write, where);
    }
}

/* ---- what instrumented code calls ---- */

#define ACCESS(name, n, is_write)                                                                  \
    void __tsan_##name(void *p);                                                                   \
    void __tsan_##name(void *p)                                                                    \
    {                                                                                              \
        races_access(p, n, is_write, __builtin_return_address(0));                                 \
    }
ACCESS(read1, 1, false)
ACCESS(read2, 2, false)
ACCESS(read4, 4, false)
ACCESS(read8, 8, false)
ACCESS(read16, 16, false)
ACCESS(unaligned_read2, 2, false)
ACCESS(unaligned_read4, 4, false)
ACCESS(unaligned_read8, 8, false)
ACCESS(unaligned_read16, 16, false)
ACCESS(write1, 1, true)
ACCESS(write2, 2, true)
ACCESS(write4, 4, true)
ACCESS(write8, 8, true)
ACCESS(write16, 16, true)
ACCESS(unaligned_write2, 2, true)
ACCESS(unaligned_write4, 4, true)
ACCESS(unaligned_write8, 8, true)
ACCESS(unaligned_write16, 16, true)

void __tsan_read_range(void *p, size_t n);
void __tsan_read_range(void *p, size_t n)
{
    races_access(p, n, false, __builtin_return_address(0));
}

void __tsan_write_range(void *p, size_t n);
void __tsan_write_range(void *p, size_t n)
{
    races_access(p, n, true, __builtin_return_address(0));
}

void __tsan_init(void);
void __tsan_init(void)
{
}

void __tsan_func_entry(void *p);
void __tsan_func_entry(void *p)
{
    (void)p;
}

void __tsan_func_exit(void);
void __tsan_func_exit(void)
{
}
