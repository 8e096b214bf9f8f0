/* failing_heap.h - allocations of our own code that fail on demand, for tests named allocation_*.
 *
 * Place:  runtime, included by one file of each such test.
 * Idea:   the linker sends every malloc, calloc, ... of this program to __wrap_malloc, ... here
 *         (CMakeLists.txt: -Wl,--wrap), which count, and fail the one of a given number. What a
 *         library does for itself is not wrapped: json-c ends the program when its own allocations
 *         fail, which a test of ours cannot mend. It works under sanitizers, which then see leaks.
 * Order:  with several threads it is not fixed which allocation is number k; what is asserted must
 *         hold for any. */
#ifndef RUNTIME_FAILING_HEAP_H
#define RUNTIME_FAILING_HEAP_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "base/status.h"

static struct {
    _Atomic bool is_counting;
    _Atomic size_t n_calls;
    size_t fail_at; /* the call of this number fails; SIZE_MAX: none */
} heap;

static bool heap_fails(void)
{
    if (!atomic_load(&heap.is_counting) || atomic_fetch_add(&heap.n_calls, 1) != heap.fail_at) {
        return false;
    }
    errno = ENOMEM;
    return true;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t each);
void *__real_realloc(void *p, size_t n);
void *__real_reallocarray(void *p, size_t n, size_t each);
void *__real_aligned_alloc(size_t align, size_t n);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t n);
void *__real_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t each);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_reallocarray(void *p, size_t n, size_t each);
void *__wrap_aligned_alloc(size_t align, size_t n);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t n);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);

void *__wrap_malloc(size_t n)
{
    return heap_fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t each)
{
    return heap_fails() ? NULL : __real_calloc(n, each);
}

void *__wrap_realloc(void *p, size_t n)
{
    return heap_fails() ? NULL : __real_realloc(p, n);
}

void *__wrap_reallocarray(void *p, size_t n, size_t each)
{
    return heap_fails() ? NULL : __real_reallocarray(p, n, each);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    return heap_fails() ? NULL : __real_aligned_alloc(align, n);
}

char *__wrap_strdup(const char *text)
{
    return heap_fails() ? NULL : __real_strdup(text);
}

char *__wrap_strndup(const char *text, size_t n)
{
    return heap_fails() ? NULL : __real_strndup(text, n);
}

void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    return heap_fails() ? MAP_FAILED : __real_mmap(at, n, prot, flags, fd, offset);
}

static void heap_arm(size_t fail_at)
{
    heap.fail_at = fail_at;
    atomic_store(&heap.n_calls, 0);
    atomic_store(&heap.is_counting, true);
}

/* How many allocations there were. */
static size_t heap_disarm(void)
{
    atomic_store(&heap.is_counting, false);
    return atomic_load(&heap.n_calls);
}

/* One run of what is tested. It gives everything back, whatever happens, and checks its own result
 * when it succeeds. */
typedef enum status scenario_fn(void *ctx, struct error *err);

/* Runs the scenario with one allocation failing: each of the first n_dense, then ever fewer, about
 * `per_doubling` in each doubling of the number. Each run must report the lack of memory, or succeed
 * because it could do without. At the end it must succeed. Returns how many allocations there are. */
static size_t fail_each(scenario_fn *scenario, void *ctx, size_t n_dense, size_t per_doubling)
{
    size_t n_calls, n_failed = 0, n_runs = 0;
    struct error err = {0};

    heap_arm(SIZE_MAX);
    enum status rc = scenario(ctx, &err);
    n_calls = heap_disarm();
    if (rc != OK) {
        fail_msg("without any failure: %s", err.text);
    }
    for (size_t k = 0; k < n_calls; k += k < n_dense ? 1 : k / per_doubling + 1) {
        err = (struct error){0};
        heap_arm(k);
        rc = scenario(ctx, &err);
        heap_disarm();
        if (rc != OK && rc != ERR_NO_MEMORY) {
            fail_msg("allocation %zu: %s '%s'", k, status_name(rc), err.text);
        }
        if (rc != OK && !err.text[0]) {
            fail_msg("allocation %zu: an error without a text", k);
        }
        n_failed += rc != OK;
        n_runs++;
    }
    err = (struct error){0};
    if (scenario(ctx, &err) != OK) {
        fail_msg("afterwards: %s", err.text);
    }
    print_message("%zu allocations, %zu of them made to fail, %zu times reported\n", n_calls,
                  n_runs, n_failed);
    assert_true(n_failed > 0);
    return n_calls;
}

#endif
