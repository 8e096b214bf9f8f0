/* offload_large_test.c - large steps that share work with the CPU, on a stand-in device: what is divided has no slot,
 * sums are right whatever a small step left open, errors are errors. How much is divided is measured
 * (large_split_test.c has that with made-up times), so nothing here depends on it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the four above */
#include <cmocka.h>

#include "offload/offload.h"
#include "offload/offload_testing.h"

enum { LAYERS = 3, EXPERTS = 24, TOP_K = 3, HIDDEN = 64, WIDTH = 64, SLOTS = 30 };
enum { ROWS = EXPERT_HOME_LARGE_ROWS, MANY = 300 /* layers: the CPU is tried at least once */ };

struct rig {
    struct test_experts experts;
    struct card card;
    struct backend *cpu, *reference;
    struct offload *offload;
    bool pageable[LAYERS];
    int32_t idx[(ROWS + 1) * TOP_K], cpu_idx[ROWS * TOP_K];
    float prob[ROWS * TOP_K], x[ROWS * HIDDEN], y[ROWS * HIDDEN], want[ROWS * HIDDEN];
    bool on_cpu[EXPERTS];
    uint32_t seed;
};

static struct rig *rig_new(const struct offload_options *o, bool has_pageable)
{
    struct rig *r = calloc(1, sizeof *r);
    struct offload_shape shape;

    assert_non_null(r);
    r->seed = 77;
    r->pageable[1] = has_pageable;
    test_experts_make(&r->experts, LAYERS, EXPERTS, HIDDEN, WIDTH);
    card_init(&r->card);
    r->cpu = test_cpu_new(2);
    r->reference = test_cpu_new(1);
    shape = test_experts_shape(&r->experts, TOP_K);
    shape.is_pageable = r->pageable;
    assert_int_equal(offload_new(&r->offload, &shape, o, &r->card.base,
                                 o->miss == EXPERT_MISS_FETCH ? NULL : r->cpu, NULL),
                     OK);
    assert_int_equal(offload_fill(r->offload, NULL, NULL), OK);
    return r;
}

static void rig_free(struct rig *r)
{
    offload_free(r->offload);
    card_release(&r->card);
    r->cpu->ops->free(r->cpu);
    r->reference->ops->free(r->reference);
    test_experts_release(&r->experts);
    free(r);
}

static uint32_t next(struct rig *r)
{
    return test_random(&r->seed) >> 3;
}

/* Distinct choices of each row, some left out. */
static void rows_make(struct rig *r, size_t n_rows)
{
    for (size_t i = 0; i < n_rows * TOP_K; i++) {
        r->idx[i] =
            next(r) % 9 == 0 ? -1 : (int32_t)(next(r) % (EXPERTS / TOP_K) * TOP_K + i % TOP_K);
        r->prob[i] = (float)(next(r) % 1000) / 1000.0f;
    }
    for (size_t i = 0; i < n_rows * HIDDEN; i++) {
        r->x[i] = (float)(next(r) % 2001) / 1000.0f - 1.0f;
    }
}

static size_t divide(struct rig *r, size_t layer, size_t n_rows)
{
    const struct expert_home *h = offload_home(r->offload);

    memset(r->on_cpu, 0, sizeof r->on_cpu);
    return h->ops->large_divide(h->ctx, layer, n_rows, r->idx, r->on_cpu);
}

static enum status compute(struct rig *r, size_t layer, size_t n_rows, struct error *err)
{
    const struct expert_home *h = offload_home(r->offload);

    memset(r->y, 0xff, sizeof r->y);
    return h->ops->large_compute(h->ctx, layer, n_rows, r->cpu_idx, r->prob, r->x, r->y, err);
}

static bool is_chosen(const struct rig *r, size_t n_rows, size_t e)
{
    for (size_t i = 0; i < n_rows * TOP_K; i++) {
        if (r->idx[i] == (int32_t)e) {
            return true;
        }
    }
    return false;
}

/* The CPU's choices, as a device makes them. */
static void idx_mask(struct rig *r, size_t n_rows)
{
    for (size_t i = 0; i < n_rows * TOP_K; i++) {
        r->cpu_idx[i] = r->idx[i] >= 0 && r->on_cpu[r->idx[i]] ? r->idx[i] : -1;
    }
}

/* By another backend, where what is not the CPU's weighs nothing. */
static void check_sums(struct rig *r, size_t layer, size_t n_rows)
{
    float prob[ROWS * TOP_K];
    int32_t idx[ROWS * TOP_K];

    for (size_t i = 0; i < n_rows * TOP_K; i++) { /* all distinct in a row */
        idx[i] = r->cpu_idx[i] >= 0 ? r->cpu_idx[i] : (int32_t)(i % TOP_K);
        prob[i] = r->cpu_idx[i] >= 0 ? r->prob[i] : 0;
    }
    assert_int_equal(
        test_experts_sum(&r->experts, r->reference, layer, n_rows, TOP_K, idx, prob, r->x, r->want),
        OK);
    for (size_t i = 0; i < n_rows * HIDDEN; i++) {
        assert_true(r->y[i] == r->want[i]);
    }
}

/* Everything without a slot, if it were the CPU's. */
static void all_to_cpu(struct rig *r, size_t layer, size_t n_rows)
{
    const struct expert_home *h = offload_home(r->offload);

    for (size_t e = 0; e < EXPERTS; e++) {
        r->on_cpu[e] = h->ops->slot_of(h->ctx, layer, e) < 0;
    }
    idx_mask(r, n_rows);
}

static void parts_are_right(void **state)
{
    static const enum expert_miss modes[] = {EXPERT_MISS_AUTO, EXPERT_MISS_CPU};
    static const size_t rows[] = {1, 9, 40, ROWS};

    (void)state;
    for (size_t c = 0; c < 4; c++) {
        struct offload_options o = {.miss = modes[c % 2], .n_slots = c < 2 ? SLOTS : 0};
        struct rig *r = rig_new(&o, c % 2 == 1);
        const struct expert_home *h = offload_home(r->offload);
        struct offload_stats stats;
        uint64_t n_cpu = 0;

        for (size_t i = 0; i < MANY; i++) {
            size_t layer = i % LAYERS, n_rows = rows[i % 4], n, n_marked = 0;

            rows_make(r, n_rows);
            n = divide(r, layer, n_rows);
            for (size_t e = 0; e < EXPERTS; e++) {
                n_marked += r->on_cpu[e];
                assert_true(!r->on_cpu[e] ||
                            (h->ops->slot_of(h->ctx, layer, e) < 0 && is_chosen(r, n_rows, e)));
            }
            assert_int_equal(n, n_marked);
            n_cpu += n;
            if (n > 0) {
                idx_mask(r, n_rows);
                assert_int_equal(compute(r, layer, n_rows, NULL), OK);
                check_sums(r, layer, n_rows);
            }
            h->ops->streamed(h->ctx, layer, n_rows, r->idx, 1);
        }
        offload_read_stats(r->offload, &stats);
        assert_true(n_cpu > 0);
        assert_int_equal(stats.n_large_cpu, n_cpu);
        assert_int_equal(stats.n_streamed, MANY);
        assert_true(stats.large_cpu_ns > 0);
        assert_int_equal(stats.n_cpu, 0);
        rig_free(r);
    }
}

static void never_divided(void **state)
{
    static const struct offload_options all[] = {
        {.miss = EXPERT_MISS_FETCH, .n_slots = SLOTS},
        {.miss = EXPERT_MISS_AUTO, .n_slots = SLOTS, .no_split = true},
    };
    struct offload_options usual = {.miss = EXPERT_MISS_AUTO, .n_slots = SLOTS};
    struct rig *r;

    (void)state;
    for (size_t c = 0; c < 2; c++) {
        r = rig_new(&all[c], false);
        assert_int_equal(offload_home(r->offload)->has_cpu, all[c].miss != EXPERT_MISS_FETCH);
        for (size_t i = 0; i < MANY; i++) {
            rows_make(r, 20);
            assert_int_equal(divide(r, i % LAYERS, 20), 0);
        }
        rig_free(r);
    }
    r = rig_new(&usual, false);
    rows_make(r, ROWS);
    for (size_t i = 0; i < MANY; i++) {
        assert_int_equal(divide(r, 0, ROWS + 1), 0);
        assert_int_equal(divide(r, LAYERS, 20), 0);
    }
    rig_free(r);
}

static void errors_are_errors(void **state)
{
    struct offload_options o = {.miss = EXPERT_MISS_AUTO, .n_slots = SLOTS};
    struct rig *r = rig_new(&o, false);
    struct offload_stats stats;
    struct error err = {0};

    (void)state;
    rows_make(r, 20);
    all_to_cpu(r, 2, 20);
    r->cpu_idx[7] = EXPERTS;
    assert_int_equal(compute(r, 2, 20, &err), ERR_INTERNAL);
    assert_non_null(strstr(err.text, "not an expert"));
    assert_int_equal(compute(r, 2, ROWS + 1, &err), ERR_LIMIT);
    assert_non_null(strstr(err.text, "129 rows of overflowing layer 2"));
    assert_int_equal(compute(r, LAYERS, 1, &err), ERR_LIMIT);
    offload_read_stats(r->offload, &stats);
    assert_int_equal(stats.n_large_cpu, 0);
    all_to_cpu(r, 2, 20);
    assert_int_equal(compute(r, 2, 20, &err), OK);
    check_sums(r, 2, 20);
    rig_free(r);
}

/* A small step that failed has no end, so its mail is still waited for; and small steps go on as ever. */
static void beside_small_steps(void **state)
{
    struct offload_options o = {.miss = EXPERT_MISS_CPU, .n_slots = SLOTS};
    struct rig *r = rig_new(&o, false);
    const struct expert_home *h = offload_home(r->offload);
    static int32_t idx[LAYERS * TOP_K];
    static float zeros[LAYERS * HIDDEN], y[LAYERS * HIDDEN];
    struct card_step step = {.idx = idx, .prob = zeros, .x = zeros, .y = y};
    struct offload_stats stats;
    struct expert_orders orders;

    (void)state;
    for (size_t i = 0; i < LAYERS * TOP_K; i++) {
        idx[i] = (int32_t)(EXPERTS - 1 - i % TOP_K);
    }
    for (size_t i = 0; i < 20; i++) {
        if (i % 2) {
            h->ops->step_begin(h->ctx, &orders, 1);
        } else {
            assert_true(card_run(&r->card, &step, 1));
        }
        rows_make(r, 50);
        all_to_cpu(r, i % LAYERS, 50);
        assert_int_equal(compute(r, i % LAYERS, 50, NULL), OK);
        check_sums(r, i % LAYERS, 50);
    }
    offload_read_stats(r->offload, &stats);
    assert_int_equal(stats.n_steps, 10);
    assert_int_equal(stats.n_failed, 0);
    assert_true(stats.n_cpu > 0);
    rig_free(r);
}

static void turns_are_asked_for(void **state)
{
    struct offload_options o = {.miss = EXPERT_MISS_AUTO, .n_slots = SLOTS, .no_overlap = true};
    struct rig *r = rig_new(&o, false);

    (void)state;
    assert_true(offload_home(r->offload)->takes_turns);
    rig_free(r);
    o.no_overlap = false;
    r = rig_new(&o, false);
    assert_false(offload_home(r->offload)->takes_turns);
    rig_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_right),     cmocka_unit_test(never_divided),
        cmocka_unit_test(errors_are_errors),   cmocka_unit_test(beside_small_steps),
        cmocka_unit_test(turns_are_asked_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
