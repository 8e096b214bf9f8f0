/* bench_choices_test.c - choices for whole runs: what is taken is what a routing would have said step by step.
 *
 * Place: cli, cmocka. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/bench_choices.h"

enum { LAYERS = 4, EXPERTS = 32, TOP_K = 4, STREAMS = 3, ROWS = 64 };

static const struct op ops[] = {
    {.kind = OP_NORM, .layer = 0},
    {.kind = OP_ROUTE, .layer = 0, .u.route = {.n_experts = EXPERTS, .top_k = TOP_K}},
    {.kind = OP_ROUTE, .layer = 2, .u.route = {.n_experts = EXPERTS, .top_k = TOP_K}},
};
enum { ROUTES = 2, N_OPS = sizeof ops / sizeof *ops };
static const size_t layer_of[ROUTES] = {0, 2};

static struct routing_sim *sim_new(void)
{
    const struct routing_shape shape = {STREAMS, LAYERS, EXPERTS, TOP_K};
    struct routing_sim *sim;
    struct error err;

    assert_int_equal(routing_sim_new(&sim, ROUTING_LOCAL, &shape, 7, &err), OK);
    return sim;
}

static void test_chunks(void **state)
{
    static const size_t chunks[] = {5, 5, 1};
    struct routing_sim *sim = sim_new(), *same = sim_new();
    struct bench_choices c;
    struct error err;

    (void)state;
    assert_int_equal(bench_choices_open(&c, sim, ops, N_OPS, ROWS, 0, 3, &err), OK);
    for (int run = 0; run < 3; run++) { /* a stream goes on from run to run */
        bench_choices_begin(&c);
        for (size_t i = 0; i < 3; i++) {
            bench_choices_add_chunk(&c, 1, chunks[i]);
        }
        for (size_t i = 0; i < 3; i++) {
            struct bench_choice taken = bench_choices_take(&c, chunks[i]);
            int32_t expected[ROUTES][5 * TOP_K];

            assert_null(taken.next);
            assert_true(taken.n_touched >= TOP_K && taken.n_touched <= (double)(chunks[i] * TOP_K));
            for (size_t r = 0; r < ROUTES; r++) {
                routing_sim_choose(same, 1, layer_of[r], chunks[i], expected[r]);
                assert_memory_equal(taken.idx + r * chunks[i] * TOP_K, expected[r],
                                    chunks[i] * TOP_K * sizeof(int32_t));
            }
        }
    }
    bench_choices_close(&c);
    routing_sim_free(sim);
    routing_sim_free(same);
}

static void test_tokens(void **state)
{
    static const size_t streams[] = {2, 0};
    struct routing_sim *sim = sim_new(), *same = sim_new();
    struct bench_choices c;
    struct error err;

    (void)state;
    assert_int_equal(bench_choices_open(&c, sim, ops, N_OPS, ROWS, ROWS, ROWS, &err), OK);
    bench_choices_begin(&c);
    for (size_t t = 0; t < ROWS / 2; t++) {
        bench_choices_add_tokens(&c, streams, 2);
    }
    for (size_t t = 0; t < ROWS / 2; t++) {
        struct bench_choice taken = bench_choices_take(&c, 2);
        int32_t expected[TOP_K], said[TOP_K];

        for (size_t r = 0; r < ROUTES; r++) {
            for (size_t i = 0; i < 2; i++) {
                size_t at = (r * 2 + i) * TOP_K;

                routing_sim_predict(same, streams[i], layer_of[r], 1, said);
                routing_sim_choose(same, streams[i], layer_of[r], 1, expected);
                assert_memory_equal(taken.idx + at, expected, sizeof expected);
                assert_memory_equal(taken.next + at, said, sizeof said);
            }
        }
    }
    bench_choices_close(&c);
    bench_choices_close(&c);
    routing_sim_free(sim);
    routing_sim_free(same);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_tokens),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
