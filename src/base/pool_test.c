/* pool_test.c - every index once, whatever the thread count, the length and the grain. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/pool.h"

struct visit {
    unsigned char *seen; /* [n] */
    size_t grain, n, threads;
    int bad;
};

static void mark(void *ctx, size_t begin, size_t end, size_t thread)
{
    struct visit *v = ctx;

    if (begin >= end || end > v->n || thread >= v->threads || begin % v->grain != 0 ||
        (end % v->grain != 0 && end != v->n)) {
        v->bad = 1; /* only ever set to 1 */
        return;
    }
    for (size_t i = begin; i < end; i++) {
        v->seen[i]++;
    }
}

static void test_covers(void **state)
{
    static const size_t lengths[] = {0, 1, 2, 3, 7, 64, 65, 1000};
    static const size_t grains[] = {1, 2, 16, 64, 2000};

    (void)state;
    for (size_t threads = 1; threads <= 5; threads++) {
        struct pool *pool;
        assert_int_equal(pool_new(&pool, threads, NULL), OK);
        assert_int_equal(pool_threads(pool), threads);
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
            for (size_t g = 0; g < sizeof grains / sizeof *grains; g++) {
                unsigned char seen[1001] = {0};
                struct visit v = {seen, grains[g], lengths[l], threads, 0};
                pool_run(pool, v.n, v.grain, mark, &v);
                assert_int_equal(v.bad, 0);
                for (size_t i = 0; i < v.n; i++) {
                    assert_int_equal(seen[i], 1);
                }
                assert_int_equal(seen[v.n], 0);
                memset(seen, 0, sizeof seen);
                pool_run_even(pool, v.n, v.grain, mark, &v);
                assert_int_equal(v.bad, 0);
                for (size_t i = 0; i < v.n; i++) {
                    assert_int_equal(seen[i], 1);
                }
            }
        }
        pool_free(pool);
    }
}

static void add_range(void *ctx, size_t begin, size_t end, size_t thread)
{
    size_t *sums = ctx;
    for (size_t i = begin; i < end; i++) {
        sums[thread * 64] += i;
    }
}

/* Many short regions in a row: the hand-over between regions is where such pools break. */
static void test_many_regions(void **state)
{
    enum { REGIONS = 20000, N = 37, THREADS = 3 };
    struct pool *pool;
    size_t sums[THREADS * 64] = {0}, total = 0;

    (void)state;
    assert_int_equal(pool_new(&pool, THREADS, NULL), OK);
    for (int i = 0; i < REGIONS; i++) {
        pool_run(pool, N, 1, add_range, sums);
    }
    pool_free(pool);
    for (size_t t = 0; t < THREADS; t++) {
        total += sums[t * 64];
    }
    assert_int_equal(total, (size_t)REGIONS * (N * (N - 1) / 2));
}

static void test_edges(void **state)
{
    struct pool *pool;
    struct error err;
    size_t sum[64] = {0};

    (void)state;
    assert_int_equal(pool_new(&pool, 1 << 20, &err), ERR_LIMIT);
    assert_null(pool);
    pool_free(NULL);
    pool_run(NULL, 10, 1, add_range, sum);
    assert_int_equal(sum[0], 45);
    assert_int_equal(pool_new(&pool, 0, &err), OK);
    assert_true(pool_threads(pool) >= 1);
    pool_free(pool);
}

/* Fewer and more threads in turn: every index is still covered, and nobody runs a region twice. */
static void test_set_threads(void **state)
{
    enum { N = 1000, THREADS = 4 };
    static const size_t counts[] = {1, 4, 2, 3, 4, 1};
    struct pool *pool;
    struct error err;

    (void)state;
    assert_int_equal(pool_new(&pool, THREADS, NULL), OK);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        size_t sums[THREADS * 64] = {0}, total = 0;

        assert_int_equal(pool_set_threads(pool, counts[i], &err), OK);
        assert_int_equal(pool_threads(pool), counts[i]);
        pool_run_even(pool, N, 1, add_range, sums);
        for (size_t t = 0; t < THREADS; t++) {
            assert_true((sums[t * 64] > 0) == (t < counts[i]));
            total += sums[t * 64];
        }
        assert_int_equal(total, N * (N - 1) / 2);
    }
    assert_int_equal(pool_set_threads(pool, THREADS + 1, &err), ERR_LIMIT);
    assert_int_equal(pool_set_threads(pool, 0, &err), ERR_LIMIT);
    pool_free(pool);
}

/* --- a thread that is late --- */

enum { LATE_N = 1000 };

struct late {
    atomic_size_t n_done;
    atomic_size_t n_waited_for;
};

/* Thread 1 stays in its first range until all the rest is done: nobody but others can do that. */
static void be_late(void *ctx, size_t begin, size_t end, size_t thread)
{
    struct late *l = ctx;

    if (thread == 1 && atomic_load(&l->n_waited_for) == 0) {
        atomic_store(&l->n_waited_for, end - begin);
        while (atomic_load(&l->n_done) < LATE_N - (end - begin)) {
            sched_yield();
        }
    }
    atomic_fetch_add(&l->n_done, end - begin);
}

static void test_others_take_over(void **state)
{
    struct pool *pool;

    (void)state;
    assert_int_equal(pool_new(&pool, 3, NULL), OK);
    for (int i = 0; i < 100; i++) {
        struct late l = {0};

        pool_run(pool, LATE_N, 1, be_late, &l);
        assert_int_equal(atomic_load(&l.n_done), LATE_N);
        assert_true(atomic_load(&l.n_waited_for) < LATE_N / 3);
    }
    pool_free(pool);
}

/* --- kept awake --- */

static void test_awake(void **state)
{
    enum { REGIONS = 2000, N = 37 };

    (void)state;
    pool_awake(NULL, true);
    for (size_t threads = 1; threads <= 5; threads += 2) { /* mostly more than cores */
        size_t sums[5 * 64] = {0}, total = 0;
        struct pool *pool;

        assert_int_equal(pool_new(&pool, threads, NULL), OK);
        usleep(5000); /* asleep by now */
        for (int i = 0; i < REGIONS; i++) {
            if (i % 50 == 0) {
                pool_awake(pool, i % 100 == 0);
                usleep(i % 400 == 0 ? 2000 : 0);
            }
            pool_run(pool, N, 1, add_range, sums);
        }
        pool_awake(pool, threads != 3); /* ends in either state */
        pool_free(pool);
        for (size_t t = 0; t < threads; t++) {
            total += sums[t * 64];
        }
        assert_int_equal(total, (size_t)REGIONS * (N * (N - 1) / 2));
    }
}

/* Processor time of the process in seconds. */
static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Looks again and again, for at most a minute: others may want the processor, too. */
static bool comes_true(bool (*is_true)(double since), double since)
{
    for (int i = 0; i < 3000; i++) {
        if (is_true(since)) {
            return true;
        }
        usleep(20000);
    }
    return false;
}

static bool has_worked(double since)
{
    return cpu_seconds() - since > 0.01;
}

static bool rests(double since)
{
    double start = cpu_seconds();

    (void)since;
    usleep(20000);
    return cpu_seconds() - start < 0.001;
}

/* Awake workers use their cores, others do not. */
static void test_awake_spins_and_stops(void **state)
{
    struct pool *pool;

    (void)state;
    assert_int_equal(pool_new(&pool, 2, NULL), OK);
    pool_awake(pool, true);
    assert_true(comes_true(has_worked, cpu_seconds()));
    pool_awake(pool, false);
    assert_true(comes_true(rests, 0));
    pool_free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_covers),
        cmocka_unit_test(test_many_regions),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_set_threads),
        cmocka_unit_test(test_others_take_over),
        cmocka_unit_test(test_awake),
        cmocka_unit_test(test_awake_spins_and_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
