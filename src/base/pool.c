/* pool.c - worker threads that spin a little, then sleep. See pool.h.
 *
 * A region is published by writing its fields and then raising `epoch`; each worker runs its part
 * and lowers `pending`. Both are futex words: who waits spins first, because within a decode step the
 * next region is a few microseconds away, and sleeps when it has spun in vain. `sleepers` spares the
 * wake system call when nobody sleeps. On a machine with fewer free cores than threads, spinning
 * would keep the very thread that is waited for from running; so the spin yields now and then.
 *
 * Cores are not alike: some are slower by design, some are two threads of one core, some are taken away
 * for a while. So a thread takes its share piece by piece from the front, each a part of what is left,
 * and one that is done takes pieces from the back of others' shares. What is left of a share is one
 * word, both its ends, so that a compare-and-swap claims a piece. */
#include "base/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/size.h"

enum {
    POOL_THREADS_MAX = 1024,
    SPIN_ROUNDS = 4000,
    SPIN_YIELD_EVERY = 256,
    AWAKE_YIELD_EVERY =
        4096,        /* who is in the kernel at the wrong time answers a microsecond late */
    PIECE_PARTS = 4, /* a piece is this part of what is left of a share */
};

/* Grains that nobody has claimed: the first in the low half, one past the last in the high one. */
struct share {
    _Atomic uint64_t left;
    char apart[64 - sizeof(uint64_t)]; /* no two threads write one cache line */
};

struct worker {
    struct pool *pool;
    pthread_t thread;
    size_t idx;     /* 1 .. n_threads-1; the caller is 0 */
    uint32_t epoch; /* when it was started: earlier regions are not its own */
};

struct pool {
    size_t n_threads, n_threads_max;
    struct worker *workers; /* [n_threads_max], n_threads - 1 of them run */
    struct share *shares;   /* [n_threads_max] */
    bool may_spin;          /* a core for each thread */

    /* The current region; written by the caller before epoch is raised. */
    pool_fn *fn;
    void *ctx;
    size_t n, grain;
    bool is_even; /* one call per thread */

    _Atomic uint32_t epoch;    /* futex: counts regions */
    _Atomic uint32_t pending;  /* futex: workers that have not finished the region */
    _Atomic uint32_t sleepers; /* workers in futex_wait on epoch */
    _Atomic bool caller_sleeps;
    _Atomic bool is_awake; /* nobody sleeps for want of work */
    _Atomic bool stop;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t expected)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static uint64_t share_pack(uint64_t first, uint64_t last)
{
    return last << 32 | first;
}

/* Every thread an equal share of the grains. */
static void shares_cut(struct pool *p)
{
    size_t n_grains = p->n / p->grain + (p->n % p->grain != 0);
    size_t base = n_grains / p->n_threads, extra = n_grains % p->n_threads, first = 0;

    for (size_t i = 0; i < p->n_threads; i++) {
        size_t last = first + base + (i < extra);

        atomic_store_explicit(&p->shares[i].left, share_pack(first, last), memory_order_relaxed);
        first = last;
    }
}

/* A piece of the share: from its front, or for others from its back. False: nothing is left. */
static bool claim(struct share *s, bool is_own, bool is_all, size_t *first, size_t *last)
{
    uint64_t left = atomic_load_explicit(&s->left, memory_order_relaxed), rest;

    do {
        uint64_t begin = left & UINT32_MAX, end = left >> 32, n = end - begin, piece;

        if (n == 0) {
            return false;
        }
        piece = is_all ? n : (n + PIECE_PARTS - 1) / PIECE_PARTS;
        *first = is_own ? begin : end - piece;
        *last = *first + piece;
        rest = is_own ? share_pack(*last, end) : share_pack(begin, *first);
    } while (!atomic_compare_exchange_weak_explicit(&s->left, &left, rest, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

static void run_share(const struct pool *p, size_t idx)
{
    size_t n_victims = p->is_even ? 1 : p->n_threads, first, last;

    for (size_t i = 0; i < n_victims; i++) {
        struct share *s = &p->shares[(idx + i) % p->n_threads];

        while (claim(s, i == 0, p->is_even, &first, &last)) {
            size_t end = last > p->n / p->grain ? p->n : last * p->grain;

            p->fn(p->ctx, first * p->grain, end, idx);
        }
    }
}

/* One look of a thread that spins: how long is it worth it? `i` counts looks. */
static bool spin_on(struct pool *p, unsigned i)
{
    bool is_awake = atomic_load_explicit(&p->is_awake, memory_order_relaxed);
    unsigned yield_every = !p->may_spin ? 1 : is_awake ? AWAKE_YIELD_EVERY : SPIN_YIELD_EVERY;

    relax();
    if (i % yield_every == yield_every - 1) {
        sched_yield();
    }
    return is_awake || (p->may_spin && i < SPIN_ROUNDS);
}

/* Wait until *word differs from `old`. Who is woken without that, by pool_awake, spins again. (Who goes
 * to sleep just then is not seen by it; then the next region wakes him.) */
static uint32_t wait_change(struct pool *p, _Atomic uint32_t *word, uint32_t old)
{
    uint32_t now;

    for (;;) {
        for (unsigned i = 0; spin_on(p, i); i++) {
            now = atomic_load_explicit(word, memory_order_acquire);
            if (now != old) {
                return now;
            }
        }
        atomic_fetch_add(&p->sleepers, 1);
        if (atomic_load(word) == old && !atomic_load(&p->is_awake)) {
            futex_wait(word, old);
        }
        atomic_fetch_sub(&p->sleepers, 1);
        now = atomic_load(word);
        if (now != old) {
            return now;
        }
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    uint32_t epoch = w->epoch;

    for (;;) {
        epoch = wait_change(p, &p->epoch, epoch);
        if (atomic_load(&p->stop)) {
            return NULL;
        }
        run_share(p, w->idx);
        if (atomic_fetch_sub(&p->pending, 1) == 1 && atomic_load(&p->caller_sleeps)) {
            futex_wake(&p->pending, 1);
        }
    }
}

static void wait_workers(struct pool *p)
{
    uint32_t left;

    for (unsigned i = 0; spin_on(p, i); i++) {
        if (atomic_load_explicit(&p->pending, memory_order_acquire) == 0) {
            return;
        }
    }
    atomic_store(&p->caller_sleeps, true);
    while ((left = atomic_load(&p->pending)) != 0) {
        futex_wait(&p->pending, left);
    }
    atomic_store(&p->caller_sleeps, false);
}

static void publish(struct pool *p)
{
    atomic_fetch_add(&p->epoch, 1);
    if (atomic_load(&p->sleepers) > 0) {
        futex_wake(&p->epoch, POOL_THREADS_MAX);
    }
}

/* The workers 1 .. n-1; p has none. On failure p has those that started. */
static enum status workers_start(struct pool *p, size_t n_threads, struct error *err)
{
    p->may_spin = n_threads <= cpu_count_logical();
    for (p->n_threads = 1; p->n_threads < n_threads; p->n_threads++) {
        struct worker *w = &p->workers[p->n_threads - 1];
        int rc;

        w->pool = p;
        w->idx = p->n_threads;
        w->epoch = atomic_load(&p->epoch);
        rc = pthread_create(&w->thread, NULL, worker_main, w);
        if (rc != 0) {
            return error_set(err, ERR_IO, "cannot start worker thread %zu of %zu: %s", w->idx,
                             n_threads, strerror(rc));
        }
    }
    return OK;
}

static void workers_stop(struct pool *p)
{
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->epoch, 1);
    futex_wake(&p->epoch, POOL_THREADS_MAX);
    for (size_t i = 1; i < p->n_threads; i++) {
        pthread_join(p->workers[i - 1].thread, NULL);
    }
    p->n_threads = 1;
    atomic_store(&p->stop, false);
}

enum status pool_new(struct pool **out, size_t n_threads, struct error *err)
{
    struct pool *p;
    enum status rc;

    *out = NULL;
    if (n_threads == 0) {
        n_threads = cpu_count_physical();
    }
    if (n_threads > POOL_THREADS_MAX) {
        return error_set(err, ERR_LIMIT, "%zu threads asked for, at most %d are possible",
                         n_threads, POOL_THREADS_MAX);
    }
    p = calloc(1, sizeof *p);
    if (p) {
        p->workers = calloc(n_threads, sizeof *p->workers);
        p->shares = calloc(n_threads, sizeof *p->shares);
        p->n_threads_max = n_threads;
    }
    if (!p || !p->workers || !p->shares) {
        if (p) {
            free(p->workers);
            free(p->shares);
        }
        free(p);
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a pool of %zu threads", n_threads);
    }
    rc = workers_start(p, n_threads, err);
    if (rc != OK) {
        pool_free(p);
        return rc;
    }
    *out = p;
    return OK;
}

enum status pool_set_threads(struct pool *p, size_t n_threads, struct error *err)
{
    if (n_threads == 0 || n_threads > p->n_threads_max) {
        return error_set(err, ERR_LIMIT, "%zu threads of a pool of %zu", n_threads,
                         p->n_threads_max);
    }
    workers_stop(p);
    return workers_start(p, n_threads, err);
}

void pool_free(struct pool *p)
{
    if (!p) {
        return;
    }
    workers_stop(p);
    free(p->workers);
    free(p->shares);
    free(p);
}

size_t pool_threads(const struct pool *p)
{
    return p ? p->n_threads : 1;
}

static void run(struct pool *p, size_t n, size_t grain, bool is_even, pool_fn *fn, void *ctx)
{
    if (n == 0) {
        return;
    }
    if (!p || p->n_threads == 1 || n <= grain) {
        fn(ctx, 0, n, 0);
        return;
    }
    p->fn = fn;
    p->ctx = ctx;
    p->n = n;
    p->grain = grain > 0 ? grain : 1;
    while (n / p->grain >= UINT32_MAX) {
        p->grain *= 2;
    }
    p->is_even = is_even;
    shares_cut(p);
    atomic_store(&p->pending, (uint32_t)(p->n_threads - 1));
    publish(p);
    run_share(p, 0);
    wait_workers(p);
}

void pool_run(struct pool *p, size_t n, size_t grain, pool_fn *fn, void *ctx)
{
    run(p, n, grain, false, fn, ctx);
}

void pool_run_even(struct pool *p, size_t n, size_t grain, pool_fn *fn, void *ctx)
{
    run(p, n, grain, true, fn, ctx);
}

void pool_awake(struct pool *p, bool is_awake)
{
    if (!p) {
        return;
    }
    atomic_store(&p->is_awake, is_awake);
    if (is_awake && atomic_load(&p->sleepers) > 0) {
        futex_wake(&p->epoch, POOL_THREADS_MAX);
    }
}
