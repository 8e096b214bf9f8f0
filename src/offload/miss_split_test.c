/* miss_split_test.c - how misses are split, for machines whose times are given: balanced within 10 %, found back
 * after a change, the same for the same measurements. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the four above */
#include <cmocka.h>

#include "offload/miss_split.h"
#include "offload/offload_testing.h"

enum { LAYERS = 40, EXPERTS = 256, TOP_K = 8 };

/* Times of a made-up machine in ns. A layer takes base and, at the same time, fetching and the CPU. */
struct machine {
    double base, fetch, cpu, cpu_start, trip;
    double noise; /* relative */
    uint32_t seed;
};

static double unit(struct machine *m)
{
    return (double)test_random(&m->seed) / 4294967296.0;
}

static double cpu_of(const struct machine *m, size_t n)
{
    return n > 0 ? m->cpu_start + m->cpu * (double)n : 0;
}

static double extra_of(const struct machine *m, size_t f, size_t n_cpu)
{
    return fmax(m->fetch * (double)f, n_cpu > 0 ? m->trip + cpu_of(m, n_cpu) : 0);
}

static struct miss_split_options options(enum expert_miss miss, size_t n_slots)
{
    return (struct miss_split_options){
        .miss = miss, .n_layers = LAYERS, .n_experts = EXPERTS, .n_slots = n_slots, .top_k = TOP_K};
}

/* One step of n_rows on the machine: up to 8 misses in a layer. recent: share of choices with a memory.
 * Returns what the misses took; *best what they would have at the best split. */
static double run(struct miss_split *s, struct machine *m, size_t n_rows, double recent,
                  double *best)
{
    struct miss_layer layers[LAYERS];
    struct miss_step step = {.n_rows = n_rows, .layers = layers, .n_choices = 320};
    struct expert_orders orders;
    double sum = 0;

    *best = 0;
    miss_split_orders(s, n_rows, &orders);
    for (size_t l = 0; l < LAYERS; l++) {
        size_t missing = (size_t)(unit(m) * (TOP_K + 1)), f = orders.n_fetch[missing];
        double least = INFINITY, extra = extra_of(m, f, missing - f);

        for (size_t i = 0; i <= missing; i++) {
            least = fmin(least, extra_of(m, i, missing - i));
        }
        sum += extra;
        *best += least;
        layers[l] = (struct miss_layer){
            .ns = (m->base + extra) * (1 + m->noise * (unit(m) - 0.5)),
            .cpu_ns = cpu_of(m, missing - f) * (1 + m->noise * (unit(m) - 0.5)),
            .n_fetched = (double)f,
            .n_cpu = missing - f,
        };
        if (unit(m) < 0.002) { /* the thread was put aside */
            layers[l].ns += 3e6;
        }
        step.n_fetched += f;
        step.n_cpu += missing - f;
    }
    layers[LAYERS - 1].ns = 0; /* nothing is posted after the last one */
    step.n_recent = (size_t)(recent * (double)step.n_choices);
    miss_split_learn(s, &step);
    return sum;
}

/* Mean of the steps from `from` to `to` against the best, without those that try. */
static double against_best(struct miss_split *s, struct machine *m, int from, int to)
{
    double sum = 0, sum_best = 0;

    for (int i = 0; i < to; i++) {
        double best, took = run(s, m, 1, (double)s->o.n_slots / (LAYERS * EXPERTS), &best);

        if (i >= from && took < 2 * best) {
            sum += took;
            sum_best += best;
        }
    }
    return sum / sum_best;
}

static void misses_are_balanced(void **state)
{
    static const struct machine machines[] = {
        {50000, 36000, 14000, 2000, 5000, 0.1, 1},  /* a fast link and 12 threads */
        {50000, 36000, 36000, 2000, 5000, 0.1, 2},  /* both alike */
        {50000, 36000, 130000, 2000, 5000, 0.1, 3}, /* one slow thread */
        {50000, 130000, 30000, 2000, -8000, 0.1,
         4},                                        /* a slow link; the device has work meanwhile */
        {90000, 65000, 28000, 5000, 10000, 0.3, 5}, /* noise */
        {30000, 1600000, 14000, 1000, 4000, 0.1, 6}, /* a link that is no use */
        {30000, 30000, 5000000, 1000, 4000, 0.1, 7}, /* a CPU that is none */
    };

    (void)state;
    printf("time of misses against the best split, 1 row:\n");
    for (size_t i = 0; i < sizeof machines / sizeof machines[0]; i++) {
        struct miss_split_options o = options(EXPERT_MISS_AUTO, 2662);
        struct machine m = machines[i];
        struct miss_split s;
        double ratio;

        miss_split_init(&s, &o); /* nothing is known at the start */
        ratio = against_best(&s, &m, 60, 400);
        printf("  link %7.1f us, CPU %7.1f us: %.3f (seen %.1f, %.1f, trip %.1f)\n", m.fetch / 1e3,
               m.cpu / 1e3, ratio, miss_split_fetch_ns(&s) / 1e3, miss_split_cpu_ns(&s) / 1e3,
               s.times[0].trip_ns / 1e3);
        assert_true(ratio < 1.1);
    }
}

/* The machine changes under way: other work takes the CPU, then the link. What is slow is left alone, so it
 * takes a while until it is tried again. */
static void changes_are_found(void **state)
{
    static const struct {
        double fetch, cpu;
        int from;
    } phases[] = {{36000, 14000, 10},
                  {36000, 400000, 60},
                  {36000, 14000, 260},
                  {800000, 14000, 60},
                  {36000, 14000, 260}};
    struct miss_split_options o = options(EXPERT_MISS_AUTO, 2662);
    struct machine m = {50000, 36000, 14000, 2000, 5000, 0.1, 11};
    struct miss_split s;

    (void)state;
    o.fetch_ns = 36000;
    o.cpu_ns = 14000;
    miss_split_init(&s, &o);
    printf("after a change:");
    for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++) {
        double ratio;

        m.fetch = phases[i].fetch;
        m.cpu = phases[i].cpu;
        ratio = against_best(&s, &m, phases[i].from, phases[i].from + 200);
        printf(" %.3f", ratio);
        assert_true(ratio < 1.1);
    }
    printf("\n");
}

/* Where what was used is used again, more is brought in than time alone would say. */
static void memory_of_choices_brings_experts_in(void **state)
{
    double fetched[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct miss_split_options o = options(EXPERT_MISS_AUTO, 2662);
        struct machine m = {50000, 36000, 14000, 2000, 5000, 0.1, 21};
        struct expert_orders orders;
        struct miss_split s;
        double best;

        miss_split_init(&s, &o);
        for (int step = 0; step < 120; step++) {
            run(&s, &m, 1, i == 0 ? 0.26 : 0.835, &best);
        }
        fetched[i] = s.fetched_share;
        miss_split_orders(&s, 1, &orders);
        printf("  of 1 to 8 misses fetched, %s memory:", i == 0 ? "no" : "a");
        for (size_t n = 1; n <= TOP_K; n++) {
            printf(" %d", orders.n_fetch[n]);
        }
        printf("\n");
        assert_int_equal(orders.n_fetch[1], i);
    }
    assert_true(fetched[1] > fetched[0] + 0.1);
}

static void modes_are_kept(void **state)
{
    static const struct {
        enum expert_miss miss;
        bool no_split;
        size_t n_slots, want_8, want_64; /* of 8 and 64 misses */
    } cases[] = {
        {EXPERT_MISS_FETCH, false, 2662, 8, 16}, /* a quarter of the slots in a step */
        {EXPERT_MISS_FETCH, false, 1024, 6, 6},  {EXPERT_MISS_FETCH, false, 10, 1, 1},
        {EXPERT_MISS_FETCH, false, 0, 0, 0},     {EXPERT_MISS_CPU, false, 2662, 0, 0},
        {EXPERT_MISS_AUTO, true, 2662, 0, 0},    {EXPERT_MISS_AUTO, false, 0, 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct miss_split_options o = options(cases[i].miss, cases[i].n_slots);
        struct machine m = {50000, 36000, 14000, 2000, 5000, 0.1, 31};
        struct expert_orders orders;
        struct miss_split s;
        double best;

        o.no_split = cases[i].no_split;
        miss_split_init(&s, &o);
        for (int step = 0; step < 500; step++) {
            size_t n_victims = miss_split_orders(&s, 8, &orders);

            assert_int_equal(orders.n_fetch[0], 0);
            assert_int_equal(orders.n_fetch[8], cases[i].want_8);
            assert_int_equal(orders.n_fetch[64], cases[i].want_64);
            assert_true((n_victims > 0) == (cases[i].want_8 > 0));
            assert_true(cases[i].want_8 > 0 || orders.n_next == 0);
            run(&s, &m, 1 + (size_t)step % EXPERT_HOME_ROWS, 0.5, &best);
        }
        o.no_prefetch = true;
        miss_split_init(&s, &o);
        miss_split_orders(&s, 1, &orders);
        assert_int_equal(orders.n_next, 0);
    }
}

/* What is fetched ahead fits the time of a layer, is given up where predictions are wrong and tried again, and
 * does not change what is measured. */
static void idle_links_fetch_ahead(void **state)
{
    static const struct {
        double base_us, fetch_us, truth;
        int want;
    } cases[] = {
        {55, 36, 0.8, 1},   {110, 36, 0.8, 3}, {20, 36, 0.8, 1},  {10, 36, 0.5, 0},
        {250, 150, 0.8, 2}, {900, 36, 0.8, 8}, {55, 36, 0.02, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct miss_split_options o = options(EXPERT_MISS_FETCH, 2662);
        struct expert_orders orders;
        struct miss_split s;
        size_t n_without = 0;

        o.fetch_ns = cases[i].fetch_us * 1e3;
        miss_split_init(&s, &o);
        for (size_t step = 0; step < 400; step++) {
            size_t n_fetched = 40 + step % 7 * 10, n_next;

            miss_split_orders(&s, 1, &orders);
            n_next = (size_t)orders.n_next * LAYERS;
            if (step >= 200) {
                assert_true(orders.n_next == cases[i].want || orders.n_next == 0 ||
                            cases[i].truth < 0.1);
                n_without += orders.n_next == 0;
            }
            miss_split_learn(&s, &(struct miss_step){
                                     .n_rows = 1,
                                     .ns = 1e3 * (cases[i].base_us * LAYERS +
                                                  cases[i].fetch_us * (double)(n_fetched + n_next)),
                                     .n_fetched = n_fetched,
                                     .n_next = n_next,
                                     .n_next_used = (size_t)(cases[i].truth * (double)n_next),
                                 });
        }
        if (cases[i].want > 0) { /* some steps are measured */
            assert_in_range(n_without, 1, 10);
        } else {
            assert_in_range(n_without, 150, 200);
        }
        assert_true(fabs(miss_split_fetch_ns(&s) / 1e3 - cases[i].fetch_us) <
                    0.1 * cases[i].fetch_us);
    }
}

/* Without mail only whole steps are seen. */
static void the_link_is_seen_in_steps(void **state)
{
    struct miss_split_options o = options(EXPERT_MISS_FETCH, 2662);
    struct miss_split s;

    (void)state;
    miss_split_init(&s, &o);
    for (size_t i = 0; i < 100; i++) {
        struct miss_step step = {.n_rows = 1,
                                 .n_choices = 320,
                                 .n_fetched = 100 + i * 37 % 50,
                                 .ns = 2.3e6 + 36000.0 * (double)(100 + i * 37 % 50)};

        miss_split_learn(&s, &step);
    }
    assert_true(fabs(miss_split_fetch_ns(&s) / 36000 - 1) < 0.02);
}

static void the_same_measurements_decide_alike(void **state)
{
    struct miss_split_options o = options(EXPERT_MISS_AUTO, 2662);
    struct machine m[2] = {{50000, 36000, 14000, 2000, 5000, 0.3, 41},
                           {50000, 36000, 14000, 2000, 5000, 0.3, 41}};
    struct miss_split s[2];
    double best[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        miss_split_init(&s[i], &o);
        for (size_t step = 0; step < 300; step++) {
            run(&s[i], &m[i], 1 + step % 3, 0.4, &best[i]);
        }
    }
    assert_memory_equal(&s[0].times, &s[1].times, sizeof s[0].times);
    assert_true(s[0].fetched_share == s[1].fetched_share);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(misses_are_balanced),
        cmocka_unit_test(changes_are_found),
        cmocka_unit_test(memory_of_choices_brings_experts_in),
        cmocka_unit_test(modes_are_kept),
        cmocka_unit_test(the_link_is_seen_in_steps),
        cmocka_unit_test(idle_links_fetch_ahead),
        cmocka_unit_test(the_same_measurements_decide_alike),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
