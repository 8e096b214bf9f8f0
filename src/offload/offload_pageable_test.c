/* offload_pageable_test.c - layers whose experts a device cannot read: what is brought in between steps and at what
 * cost, on plain numbers and on the stand-in device, which ends the test if such an expert is read in place. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the four above */
#include <cmocka.h>

#include "offload/hot_experts.h"
#include "offload/miss_split.h"
#include "offload/offload.h"
#include "offload/offload_testing.h"

enum { LAYERS = 4, EXPERTS = 12, TOP_K = 2, HIDDEN = 64, WIDTH = 64, SLOTS = LAYERS * 4 };

/* ---- hot_experts.h ---- */

static void the_hottest_come_first(void **state)
{
    struct hot_experts h = {.insert_ns = 100, .left_ns = 1e6};

    (void)state;
    for (size_t i = 0; i < 20; i++) { /* 0, 7, 14, 1, 8, ... */
        hot_experts_miss(&h, 3, i, (double)(i * 7 % 20));
    }
    assert_int_equal(h.n, HOT_STEP_MAX);
    for (size_t i = 0; i < HOT_STEP_MAX; i++) {
        assert_true(h.item[i].heat == (double)(19 - i));
        assert_int_equal(h.item[i].layer, 3);
        assert_int_equal(h.item[i].expert * 7 % 20, 19 - i);
    }
    assert_int_equal(hot_experts_allowed(&h), HOT_STEP_MAX);
    hot_experts_inserted(&h, HOT_STEP_MAX, HOT_STEP_MAX * 100);
    assert_int_equal(hot_experts_allowed(&h), 0);
}

static void hotter_by_a_margin(void **state)
{
    const struct hot_expert e = {.heat = 2};

    (void)state;
    assert_true(hot_experts_replaces(&e, 2 - HOT_MARGIN - 0.01));
    assert_false(hot_experts_replaces(&e, 2 - HOT_MARGIN));
    assert_true(hot_experts_replaces(&e, -1)); /* an empty slot */
}

/* Steps of `step_ns`, each missing enough, insertions of `insert_ns`. Returns the insertions of n steps. */
static size_t insertions_of(struct hot_experts *h, size_t n, double step_ns, double insert_ns)
{
    size_t sum = 0;

    for (size_t i = 0; i < n; i++) {
        size_t now;

        hot_experts_step(h, step_ns);
        for (size_t e = 0; e < HOT_STEP_MAX; e++) {
            hot_experts_miss(h, 0, e, 1);
        }
        now = hot_experts_allowed(h);
        assert_true(now <= HOT_STEP_MAX);
        hot_experts_inserted(h, now, (double)now * insert_ns);
        sum += now;
    }
    return sum;
}

static void a_share_of_the_time(void **state)
{
    struct hot_experts h = {0};
    size_t n;

    (void)state;
    n = insertions_of(&h, 100, 5e6, 3e5); /* 5 ms, 0.3 ms: 1.67 a step */
    assert_in_range(n, 160, 167);
    n = insertions_of(&h, 100, 1e6, 3e5); /* one in three steps */
    assert_in_range(n, 32, 40);
    n = insertions_of(&h, 10, 1e9, 3e5); /* the cap */
    assert_int_equal(n, 10 * HOT_STEP_MAX);
    hot_experts_inserted(&h, 1, 1e9); /* a thread was put aside: not for long */
    assert_true(h.insert_ns < 6e5);
    n = insertions_of(&h, 100, 5e6, 3e5);
    assert_in_range(n, 100, 175);
}

/* Layers that cannot fetch leave their part to the others; where none can nothing is planned. */
static void the_split_knows(void **state)
{
    struct miss_split_options o = {.miss = EXPERT_MISS_AUTO,
                                   .n_layers = 8,
                                   .n_experts = 64,
                                   .n_slots = 128,
                                   .top_k = 8,
                                   .fetch_ns = 1000,
                                   .cpu_ns = 1e6};
    struct expert_orders orders;
    struct miss_split s;

    (void)state;
    miss_split_init(&s, &o);
    miss_split_orders(&s, 1, &orders);
    assert_int_equal(orders.n_fetch[8], 4); /* 128 / 4 slots for 8 layers */
    o.n_pageable = 4;
    miss_split_init(&s, &o);
    miss_split_orders(&s, 1, &orders);
    assert_int_equal(orders.n_fetch[8], 8);
    o.n_pageable = 8;
    miss_split_init(&s, &o);
    assert_int_equal(miss_split_orders(&s, 1, &orders), 0);
    assert_int_equal(orders.n_fetch[8], 0);
    assert_int_equal(orders.n_next, 0);
}

/* ---- the stand-in device ---- */

struct rig {
    struct test_experts experts;
    struct card card;
    struct backend *cpu;
    struct offload *offload;
    struct card_step step;
    int32_t idx[LAYERS * TOP_K];
    float prob[LAYERS * TOP_K], x[LAYERS * HIDDEN], y[LAYERS * HIDDEN];
};

static enum status rig_open(struct rig *r, const bool *pageable, const struct offload_options *o,
                            struct error *err)
{
    struct offload_shape shape;

    memset(r, 0, sizeof *r);
    test_experts_make(&r->experts, LAYERS, EXPERTS, HIDDEN, WIDTH);
    card_init(&r->card);
    r->cpu = test_cpu_new(1);
    r->step = (struct card_step){.idx = r->idx, .prob = r->prob, .x = r->x, .y = r->y};
    shape = test_experts_shape(&r->experts, TOP_K);
    shape.is_pageable = pageable;
    return offload_new(&r->offload, &shape, o, &r->card.base,
                       o->miss == EXPERT_MISS_FETCH ? NULL : r->cpu, err);
}

static void rig_close(struct rig *r)
{
    offload_free(r->offload);
    card_release(&r->card);
    r->cpu->ops->free(r->cpu);
    test_experts_release(&r->experts);
}

/* A step of one row in which every layer chooses these two. */
static void step(struct rig *r, int32_t a, int32_t b)
{
    const struct expert_home *h = offload_home(r->offload);

    for (size_t l = 0; l < LAYERS; l++) {
        r->idx[l * TOP_K] = a;
        r->idx[l * TOP_K + 1] = b;
        r->prob[l * TOP_K] = r->prob[l * TOP_K + 1] = 0.5f;
    }
    for (size_t i = 0; i < LAYERS * HIDDEN; i++) {
        r->x[i] = (float)(i % 13) / 13.0f;
    }
    assert_true(card_run(&r->card, &r->step, 1));
    for (size_t l = 0; l < LAYERS; l++) { /* the mirror */
        for (size_t e = 0; e < EXPERTS; e++) {
            assert_int_equal(h->ops->slot_of(h->ctx, l, e), card_find(&r->card, l, e));
        }
    }
    for (size_t i = 0; i < r->step.report.n_insertions; i++) {
        assert_false(expert_home_is_pageable(h, (size_t)r->step.insertions[i].layer));
    }
}

/* Nothing of pageable layers is fetched in a step; what they miss again and again comes in all the same, and what
 * they had and nobody asks for goes. */
static void what_is_missed_often_comes_in(void **state)
{
    static const bool pageable[][LAYERS] = {{false, true, false, true}, {true, true, true, true}};

    (void)state;
    for (size_t c = 0; c < 2; c++) {
        struct offload_options o = {.miss = EXPERT_MISS_AUTO, .n_slots = SLOTS};
        struct offload_stats stats;
        struct rig r;

        assert_int_equal(rig_open(&r, pageable[c], &o, NULL), OK);
        assert_int_equal(offload_fill(r.offload, NULL, NULL), OK);
        r.card.layer_us = 20; /* so that there is time */
        step(&r, 9, 10);
        for (size_t l = 0; l < LAYERS; l++) {
            assert_true(!pageable[c][l] || card_find(&r.card, l, 9) < 0);
        }
        for (size_t i = 0; i < 300; i++) {
            step(&r, 9, i % 100 == 50 ? 11 : 10); /* 11 is not worth a slot of a hot one */
        }
        for (size_t l = 0; l < LAYERS; l++) {
            assert_true(!pageable[c][l] || card_find(&r.card, l, 9) >= 0);
            assert_true(!pageable[c][l] || card_find(&r.card, l, 10) >= 0);
        }
        offload_read_stats(r.offload, &stats);
        assert_int_equal(stats.n_pageable, c == 0 ? 2 : LAYERS);
        assert_true(stats.n_inserted >= stats.n_pageable * 2);
        assert_int_equal(r.card.n_inserted, SLOTS + stats.n_inserted);
        assert_true(c == 0 || stats.n_fetched == 0);
        rig_close(&r);
    }
}

/* With --expert-miss cpu, or where nothing is to be split, slots stay as they are. */
static void not_where_nothing_is_fetched(void **state)
{
    static const bool pageable[LAYERS] = {true, true, false, false};
    const struct offload_options options[] = {
        {.miss = EXPERT_MISS_CPU, .n_slots = SLOTS},
        {.miss = EXPERT_MISS_AUTO, .n_slots = SLOTS, .no_split = true},
        {.miss = EXPERT_MISS_AUTO, .n_slots = 0},
    };

    (void)state;
    for (size_t c = 0; c < 3; c++) {
        struct rig r;

        assert_int_equal(rig_open(&r, pageable, &options[c], NULL), OK);
        assert_int_equal(offload_fill(r.offload, NULL, NULL), OK);
        for (size_t i = 0; i < 20; i++) {
            step(&r, 9, 10);
        }
        assert_int_equal(r.card.n_inserted, options[c].n_slots);
        assert_int_equal(r.step.report.n_cpu, LAYERS * TOP_K);
        rig_close(&r);
    }
}

static void fetch_alone_is_refused(void **state)
{
    static const bool pageable[LAYERS] = {false, false, true, false};
    struct offload_options o = {.miss = EXPERT_MISS_FETCH, .n_slots = SLOTS};
    struct error err = {0};
    struct rig r;

    (void)state;
    assert_int_equal(rig_open(&r, pageable, &o, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "--expert-miss fetch"));
    assert_non_null(strstr(err.text, "1 of 4 layers"));
    assert_null(r.offload);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_hottest_come_first),
        cmocka_unit_test(hotter_by_a_margin),
        cmocka_unit_test(a_share_of_the_time),
        cmocka_unit_test(the_split_knows),
        cmocka_unit_test(what_is_missed_often_comes_in),
        cmocka_unit_test(not_where_nothing_is_fetched),
        cmocka_unit_test(fetch_alone_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
