/* emulator_memory.c - see emulator_memory.h.
 *
 * Allocations are kept in the order of their addresses, and the piece of the address space that was looked up
 * last, an allocation or a gap between two, is remembered: where races are watched, each load and store of
 * each thread asks, most of them about its own stack. */
#include "backend/cuda/emulator/emulator_memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGN = 256,
    RED_ZONE_BYTES = 256, /* after each allocation */
    RED_ZONE = 0xa5,
    POISON = 0xff, /* new memory: NaN in every float type */
    WRITTEN_EACH = 64,
    FIRST_CAPACITY = 64,
};
#define OPERAND UINT32_MAX /* instead of a launch's number */

struct allocation {
    unsigned char *data;
    size_t n_bytes;
    uint32_t *writer; /* number of the last launch that wrote, per WRITTEN_EACH bytes; 0: none */
};

static struct {
    struct allocation *list; /* by address */
    size_t n, capacity, used_bytes;
    uintptr_t last_from; /* what was looked up last: of last_bytes, an allocation or none */
    size_t last_bytes;
    struct allocation *last;
    /* Launches are numbered from 1. All up to `ended` have ended before the next begins; from `open_from`
     * on they may still run before the present one waits. */
    size_t n_launches, ended, open_from;
    bool waited_first; /* the last launch */
} memory;

/* ---- allocations ---- */

/* How many begin at p or before. */
static size_t count_until(uintptr_t p)
{
    size_t from = 0, to = memory.n;

    while (from < to) {
        size_t middle = from + (to - from) / 2;

        if ((uintptr_t)memory.list[middle].data <= p) {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    return from;
}

static struct allocation *allocation_of(const void *p)
{
    uintptr_t at = (uintptr_t)p, from = 0, to;
    struct allocation *a = NULL;
    size_t n;

    if (at - memory.last_from < memory.last_bytes) {
        return memory.last;
    }
    n = count_until(at);
    to = n < memory.n ? (uintptr_t)memory.list[n].data : UINTPTR_MAX;
    if (n > 0) {
        uintptr_t begin = (uintptr_t)memory.list[n - 1].data;
        size_t n_bytes = memory.list[n - 1].n_bytes;

        if (at - begin < n_bytes) {
            a = &memory.list[n - 1];
            from = begin;
            to = begin + n_bytes;
        } else {
            from = begin + n_bytes;
        }
    }
    memory.last_from = from;
    memory.last_bytes = to - from;
    memory.last = a;
    return a;
}

static bool make_room(void)
{
    size_t capacity = memory.capacity ? 2 * memory.capacity : FIRST_CAPACITY;
    struct allocation *list;

    if (memory.n < memory.capacity) {
        return true;
    }
    list = realloc(memory.list, capacity * sizeof *list);
    if (!list) {
        return false;
    }
    memory.list = list;
    memory.capacity = capacity;
    memory.last_bytes = 0; /* pointed into the old list */
    return true;
}

void *emulator_memory_new(size_t n_bytes)
{
    struct allocation a = {.n_bytes = n_bytes};
    void *data = NULL;
    size_t at;

    a.writer = calloc(n_bytes / WRITTEN_EACH + 1, sizeof *a.writer);
#if defined(__SANITIZE_ADDRESS__)
    if (!make_room() || !a.writer || posix_memalign(&data, ALIGN, n_bytes)) {
#else
    if (!make_room() || !a.writer || posix_memalign(&data, ALIGN, n_bytes + RED_ZONE_BYTES)) {
#endif
        free(a.writer);
        return NULL;
    }
    memset(data, POISON, n_bytes);
#if !defined(__SANITIZE_ADDRESS__) /* it watches the borders, reads too */
    memset((char *)data + n_bytes, RED_ZONE, RED_ZONE_BYTES);
#endif
    a.data = data;
    at = count_until((uintptr_t)data);
    memmove(memory.list + at + 1, memory.list + at, (memory.n - at) * sizeof a);
    memory.list[at] = a;
    memory.n++;
    memory.used_bytes += n_bytes;
    memory.last_bytes = 0;
    return data;
}

bool emulator_memory_free(void *p)
{
    size_t at = count_until((uintptr_t)p);
    struct allocation a;

    if (at == 0 || memory.list[at - 1].data != p) {
        return false;
    }
    a = memory.list[--at];
    memory.n--;
    memmove(memory.list + at, memory.list + at + 1, (memory.n - at) * sizeof a);
    memory.used_bytes -= a.n_bytes;
    memory.last_bytes = 0;
    free(a.writer);
    free(a.data);
    if (memory.n == 0) {
        free(memory.list);
        memory.list = NULL;
        memory.capacity = 0;
    }
    return true;
}

size_t emulator_memory_used(void)
{
    return memory.used_bytes;
}

bool emulator_memory_holds(const void *p, size_t n_bytes)
{
    const struct allocation *a = allocation_of(p);

    return n_bytes == 0 ||
           (a && n_bytes <= a->n_bytes - (size_t)((const unsigned char *)p - a->data));
}

const void *emulator_memory_broken(size_t *n_bytes)
{
#if !defined(__SANITIZE_ADDRESS__)
    for (size_t i = 0; i < memory.n; i++) {
        const struct allocation *a = &memory.list[i];

        for (size_t j = 0; j < RED_ZONE_BYTES; j++) {
            if (a->data[a->n_bytes + j] != RED_ZONE) {
                *n_bytes = a->n_bytes;
                return a->data;
            }
        }
    }
#endif
    *n_bytes = 0;
    return NULL;
}

/* ---- which launch wrote it ---- */

/* A launch that let the next begin early, before it had waited itself, may have done so while those before it
 * were running. */
void emulator_memory_launch_begin(bool may_overlap)
{
    memory.n_launches++;
    if (!may_overlap) {
        memory.open_from = memory.n_launches;
    } else if (memory.n_launches - 1 == memory.ended) {
        memory.open_from = memory.ended;
    } else if (memory.waited_first) {
        memory.open_from = memory.n_launches - 1;
    }
}

void emulator_memory_launch_end(bool waited_first)
{
    memory.waited_first = waited_first;
}

void emulator_memory_idle(void)
{
    memory.ended = memory.n_launches;
}

size_t emulator_memory_launches(void)
{
    return memory.n_launches;
}

/* The marks of these bytes; NULL when they are not the card's. */
static uint32_t *writers_of(const void *p, size_t n_bytes, size_t *n)
{
    struct allocation *a = allocation_of(p);
    size_t at, last;

    if (!a || n_bytes == 0) {
        return NULL;
    }
    at = (size_t)((const unsigned char *)p - a->data);
    last = at + n_bytes - 1 < a->n_bytes ? at + n_bytes - 1 : a->n_bytes - 1;
    *n = last / WRITTEN_EACH - at / WRITTEN_EACH + 1;
    return a->writer + at / WRITTEN_EACH;
}

bool emulator_memory_is_open(const void *p, size_t n_bytes)
{
    size_t n = 0;
    const uint32_t *writer = writers_of(p, n_bytes, &n);

    for (size_t i = 0; i < n; i++) {
        /* An operand counts as written by whoever came before the first launch after a wait. */
        if (writer[i] == OPERAND ? memory.ended >= memory.open_from
                                 : writer[i] > memory.ended && writer[i] >= memory.open_from) {
            return true;
        }
    }
    return false;
}

void emulator_memory_write(const void *p, size_t n_bytes)
{
    size_t n = 0;
    uint32_t *writer = writers_of(p, n_bytes, &n);

    for (size_t i = 0; i < n; i++) {
        writer[i] = writer[i] == OPERAND ? OPERAND : (uint32_t)memory.n_launches;
    }
}

bool emulator_memory_is_device(const void *p)
{
    return allocation_of(p) != NULL;
}

void emulator_memory_mark_operand(const void *p, size_t n_bytes)
{
    size_t n = 0;
    uint32_t *writer = writers_of(p, n_bytes, &n);

    for (size_t i = 0; i < n; i++) {
        writer[i] = OPERAND;
    }
}
