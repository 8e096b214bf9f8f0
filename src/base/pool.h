/* pool.h - worker threads for data-parallel loops.
 *
 * Place: base; owned by whoever computes (the CPU backend, the loader). One caller at a time.
 * Idea:  workers spin for a few microseconds between regions, then sleep on a futex, and yield when
 *        there are more threads than cores, so that a decode step of hundreds of short regions pays
 *        about a microsecond each and an idle server costs nothing.
 *        pool_awake() keeps them from sleeping.
 * Split: who is done early takes over from who is late, so which thread does which index differs from run
 *        to run; a result must not depend on it. */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct pool;

/* n_threads counts the caller, so 1 makes no thread at all. 0: one per physical core. */
enum status pool_new(struct pool **out, size_t n_threads, struct error *err);
void pool_free(struct pool *pool); /* joins; accepts NULL */
size_t pool_threads(const struct pool *pool);
/* Go on with another number of threads, 1 to what pool_new was given (ERR_LIMIT): for measurements. After
 * ERR_IO fewer threads than asked for work. Not during a region. */
enum status pool_set_threads(struct pool *pool, size_t n_threads, struct error *err);

/* Run fn(ctx, begin, end, thread) on disjoint ranges that cover [0, n); ranges start at multiples of
 * grain (>= 1), except the last end. thread is in [0, pool_threads); it may be called several times, mostly
 * with rising ranges, never twice at once. Returns when all are done. Never nested. pool == NULL runs
 * inline. A grain should be some microseconds' work. */
typedef void pool_fn(void *ctx, size_t begin, size_t end, size_t thread);
void pool_run(struct pool *pool, size_t n, size_t grain, pool_fn *fn, void *ctx);

/* The same with one equal range for each thread, however long it takes: for measurements, and for work
 * that belongs to a thread. */
void pool_run_even(struct pool *pool, size_t n, size_t grain, pool_fn *fn, void *ctx);

/* Between regions workers spin without an end until this is called with false: for a caller that must answer
 * within microseconds and knows how long. Where threads are more than cores they yield at every
 * look. Any thread; pool == NULL: nothing. */
void pool_awake(struct pool *pool, bool is_awake);

#endif
