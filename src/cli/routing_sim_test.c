/* routing_sim_test.c - the calibration of the made-up routings, and that cuts do not change them.
 *
 * Place: cli, cmocka. The cache here is a plain LRU over the experts of all layers, as the calibration
 *        defines it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/routing_sim.h"

enum { LAYERS = 40, EXPERTS = 256, TOP_K = 8, TOKENS = 256 };
static const struct routing_shape SHAPE = {2, LAYERS, EXPERTS, TOP_K};

/* A ring of experts in the order of use, the oldest before its head. */
struct lru {
    size_t n, n_max;
    int32_t next[LAYERS * EXPERTS + 1], before[LAYERS * EXPERTS + 1];
    bool is_in[LAYERS * EXPERTS];
};
enum { HEAD = LAYERS * EXPERTS };

static void lru_unlink(struct lru *c, int32_t id)
{
    c->next[c->before[id]] = c->next[id];
    c->before[c->next[id]] = c->before[id];
}

static bool lru_use(struct lru *c, int32_t id)
{
    bool hit = c->is_in[id];

    if (hit) {
        lru_unlink(c, id);
    } else if (c->n == c->n_max) {
        int32_t oldest = c->before[HEAD];
        lru_unlink(c, oldest);
        c->is_in[oldest] = false;
    } else {
        c->n++;
    }
    c->is_in[id] = true;
    c->next[id] = c->next[HEAD];
    c->before[id] = HEAD;
    c->before[c->next[HEAD]] = id;
    c->next[HEAD] = id;
    return hit;
}

struct locality {
    double hits, repeats; /* shares */
};

/* n_before tokens fill the cache, the next TOKENS count. */
static struct locality measure(enum routing_kind kind, double share, size_t n_before, uint64_t seed)
{
    struct routing_sim *r;
    struct lru *c = calloc(1, sizeof *c);
    int32_t last[LAYERS][TOP_K], now[TOP_K];
    size_t n_hits = 0, n_repeats = 0;

    assert_non_null(c);
    c->n_max = (size_t)(share * LAYERS * EXPERTS);
    c->next[HEAD] = c->before[HEAD] = HEAD;
    memset(last, -1, sizeof last);
    assert_int_equal(routing_sim_new(&r, kind, &SHAPE, seed, NULL), OK);
    for (size_t t = 0; t < n_before + TOKENS; t++) {
        for (size_t layer = 0; layer < LAYERS; layer++) {
            routing_sim_choose(r, 0, layer, 1, now);
            for (size_t i = 0; i < TOP_K; i++) {
                bool hit = lru_use(c, (int32_t)(layer * EXPERTS) + now[i]);

                n_hits += hit && t >= n_before;
                for (size_t j = 0; j < TOP_K; j++) {
                    n_repeats += now[i] == last[layer][j] && t >= n_before;
                }
            }
            memcpy(last[layer], now, sizeof now);
        }
    }
    routing_sim_free(r);
    free(c);
    return (struct locality){(double)n_hits / (LAYERS * TOP_K * TOKENS),
                             (double)n_repeats / (LAYERS * TOP_K * TOKENS)};
}

static void assert_within(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) {
        fail_msg("%.4f is not within %.3f of %.3f", got, tolerance, want);
    }
}

static void test_local_is_calibrated(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        for (size_t n_before = 0; n_before <= 64; n_before += 64) {
            struct locality at_26 = measure(ROUTING_LOCAL, 0.26, n_before, seed);
            struct locality at_37 = measure(ROUTING_LOCAL, 0.37, n_before, seed);

            print_message("local, after %zu tokens: hits %.3f and %.3f, repeats %.3f\n", n_before,
                          at_26.hits, at_37.hits, at_26.repeats);
            assert_within(at_26.hits, 0.835, 0.03);
            assert_within(at_37.hits, 0.89, 0.03);
            assert_within(at_26.repeats, 0.35, 0.03);
        }
    }
}

/* At random a full cache hits as often as its share of the experts. */
static void test_uniform_has_no_locality(void **state)
{
    struct locality l = measure(ROUTING_UNIFORM, 0.26, 256, 5);

    (void)state;
    assert_within(l.hits, 0.26, 0.015);
    assert_within(l.repeats, (double)TOP_K / EXPERTS, 0.005);
}

static void assert_valid(const int32_t *idx, size_t top_k, size_t n_experts)
{
    for (size_t i = 0; i < top_k; i++) {
        assert_in_range(idx[i], 0, n_experts - 1);
        for (size_t j = 0; j < i; j++) {
            assert_int_not_equal(idx[i], idx[j]);
        }
    }
}

static void test_distinct_in_all_shapes(void **state)
{
    static const struct routing_shape shapes[] = {
        {1, 1, 1, 1}, {1, 2, 4, 4}, {3, 2, 16, 4}, {1, 1, 64, 64}, {2, 3, 512, 10}};
    int32_t idx[20 * 64];

    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        for (int kind = ROUTING_UNIFORM; kind <= ROUTING_LOCAL; kind++) {
            struct routing_sim *r;
            const struct routing_shape *shape = &shapes[s];

            assert_int_equal(routing_sim_new(&r, (enum routing_kind)kind, shape, s, NULL), OK);
            routing_sim_predict(r, 0, 0, 20, idx);
            for (size_t t = 0; t < 20; t++) {
                assert_valid(idx + t * shape->top_k, shape->top_k, shape->n_experts);
            }
            routing_sim_choose(r, shape->n_streams - 1, shape->n_layers - 1, 20, idx);
            for (size_t t = 0; t < 20; t++) {
                assert_valid(idx + t * shape->top_k, shape->top_k, shape->n_experts);
            }
            routing_sim_free(r);
        }
    }
}

/* Ten tokens at once, or one by one with other streams and layers asking in between. */
static void test_cuts_do_not_matter(void **state)
{
    struct routing_sim *whole, *cut;
    int32_t want[10 * TOP_K], got[10 * TOP_K], other[TOP_K];

    (void)state;
    assert_int_equal(routing_sim_new(&whole, ROUTING_LOCAL, &SHAPE, 7, NULL), OK);
    assert_int_equal(routing_sim_new(&cut, ROUTING_LOCAL, &SHAPE, 7, NULL), OK);
    routing_sim_choose(whole, 1, 3, 10, want);
    for (size_t t = 0; t < 10; t++) {
        routing_sim_choose(cut, 0, 3, 1, other);
        routing_sim_predict(cut, 1, 3, 1, other);
        routing_sim_choose(cut, 1, 3, 1, got + t * TOP_K);
        routing_sim_choose(cut, 1, 2, 1, other);
    }
    assert_memory_equal(want, got, sizeof want);
    routing_sim_free(whole);
    routing_sim_free(cut);
}

static void test_predictions(void **state)
{
    enum { N = 500 };
    struct routing_sim *r;
    int32_t guess[TOP_K], choice[TOP_K];
    size_t n_right = 0;

    (void)state;
    assert_int_equal(routing_sim_new(&r, ROUTING_LOCAL, &SHAPE, 11, NULL), OK);
    for (size_t t = 0; t < N; t++) {
        for (size_t layer = 0; layer < LAYERS; layer++) {
            routing_sim_predict(r, 0, layer, 1, guess);
            routing_sim_choose(r, 0, layer, 1, choice);
            for (size_t i = 0; i < TOP_K * TOP_K; i++) {
                n_right += guess[i / TOP_K] == choice[i % TOP_K];
            }
        }
    }
    assert_within((double)n_right / (N * LAYERS * TOP_K), 0.807, 0.005);
    routing_sim_free(r);
}

static void test_hook(void **state)
{
    const struct span spans[] = {{.row = 0, .n_rows = 3, .slot = 1}, {.row = 3, .n_rows = 1}};
    const struct step step = {.n_rows = 4, .spans = spans, .n_spans = 2};
    const struct op op = {.kind = OP_ROUTE, .layer = 5};
    struct routing_sim *a, *b;
    int32_t want[4 * TOP_K], got[4 * TOP_K];

    (void)state;
    assert_int_equal(routing_sim_new(&a, ROUTING_UNIFORM, &SHAPE, 1, NULL), OK);
    assert_int_equal(routing_sim_new(&b, ROUTING_UNIFORM, &SHAPE, 1, NULL), OK);
    routing_sim_choose(a, 1, 5, 3, want);
    routing_sim_choose(a, 0, 5, 1, want + 3 * TOP_K);
    assert_true(routing_sim_hook(b, &op, &step, 4, got));
    assert_memory_equal(want, got, sizeof want);
    routing_sim_free(a);
    routing_sim_free(b);
}

static void test_limits(void **state)
{
    static const struct routing_shape bad[] = {
        {0, 1, 4, 1}, {1, 1, 4, 5}, {1, 1, 4, 0}, {1, 1, 1 << 20, 1}, {SIZE_MAX / 2, 3, 4, 1}};
    struct routing_sim *r;
    struct error err;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(routing_sim_new(&r, ROUTING_LOCAL, &bad[i], 0, &err), ERR_LIMIT);
        assert_null(r);
    }
    routing_sim_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_local_is_calibrated),
        cmocka_unit_test(test_uniform_has_no_locality),
        cmocka_unit_test(test_distinct_in_all_shapes),
        cmocka_unit_test(test_cuts_do_not_matter),
        cmocka_unit_test(test_predictions),
        cmocka_unit_test(test_hook),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests_name("routing_sim", tests, NULL, NULL);
}
