/* offload_test.c - experts that overflow, on a stand-in device: the mirror stays true over many steps, the sums
 * of answers are right in every mode, slots fill evenly, a prompt's end is remembered, failures end. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the four above */
#include <cmocka.h>

#include "offload/offload.h"
#include "offload/offload_testing.h"

enum { LAYERS = 5, EXPERTS = 12, TOP_K = 3, HIDDEN = 64, WIDTH = 64 };
enum { PAIRS = LAYERS * EXPERT_HOME_ROWS * TOP_K, ROWS = LAYERS * EXPERT_HOME_ROWS };

struct rig {
    struct test_experts experts;
    struct card card;
    struct backend *cpu, *reference;
    struct offload *offload;
    struct card_step step;
    int32_t idx[PAIRS];
    float prob[PAIRS], x[ROWS * HIDDEN], y[ROWS * HIDDEN];
    uint32_t seed;
};

static struct rig *rig_new(const struct offload_options *o)
{
    struct rig *r = calloc(1, sizeof *r);
    struct offload_shape shape;

    assert_non_null(r);
    r->seed = 31;
    test_experts_make(&r->experts, LAYERS, EXPERTS, HIDDEN, WIDTH);
    card_init(&r->card);
    r->cpu = test_cpu_new(2);
    r->reference = test_cpu_new(1);
    r->step = (struct card_step){.idx = r->idx, .prob = r->prob, .x = r->x, .y = r->y};
    shape = test_experts_shape(&r->experts, TOP_K);
    assert_int_equal(offload_new(&r->offload, &shape, o, &r->card.base,
                                 o->miss == EXPERT_MISS_FETCH ? NULL : r->cpu, NULL),
                     OK);
    return r;
}

static void rig_free(struct rig *r)
{
    offload_free(r->offload);
    assert_null(r->card.home); /* given back */
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

/* Random inputs; choices distinct in a row, more often low ids. */
static void random_step(struct rig *r, size_t n_rows)
{
    for (size_t i = 0; i < LAYERS * n_rows; i++) {
        size_t range = next(r) % 3 ? EXPERTS / 2 : EXPERTS;

        for (size_t j = 0; j < TOP_K; j++) {
            int32_t e;
            bool is_new;

            do {
                e = (int32_t)(next(r) % range);
                is_new = true;
                for (size_t k = 0; k < j; k++) {
                    is_new = is_new && r->idx[i * TOP_K + k] != e;
                }
            } while (!is_new);
            r->idx[i * TOP_K + j] = e;
            r->prob[i * TOP_K + j] = (float)(next(r) % 1000) / 1000.0f;
        }
        for (size_t k = 0; k < HIDDEN; k++) {
            r->x[i * HIDDEN + k] = (float)(next(r) % 2001) / 1000.0f - 1.0f;
        }
    }
}

static void check_mirror(const struct rig *r)
{
    const struct expert_home *h = offload_home(r->offload);

    for (size_t l = 0; l < LAYERS; l++) {
        for (size_t e = 0; e < EXPERTS; e++) {
            int slot = card_find(&r->card, l, e);

            assert_int_equal(h->ops->slot_of(h->ctx, l, e), slot);
            if (slot >= 0) {
                assert_ptr_equal(r->card.slots[slot].block,
                                 r->experts.blocks[l] + e * r->experts.block.n_bytes);
            }
        }
    }
}

/* Orders name valid slots, none twice; n_fetch[m] is at most m. */
static void check_orders(const struct rig *r)
{
    const struct expert_orders *o = &r->card.orders;
    bool seen[CARD_SLOTS_MAX] = {false};

    assert_true(o->ticket != 0 && o->n_victims >= 0 && o->n_victims <= EXPERT_HOME_VICTIMS);
    assert_true(o->n_next >= 0 && o->n_next <= EXPERT_HOME_NEXT);
    for (int32_t i = 0; i < o->n_victims; i++) {
        assert_true(o->victim[i] >= 0 && (size_t)o->victim[i] < r->card.home->n_slots);
        assert_false(seen[o->victim[i]]);
        seen[o->victim[i]] = true;
    }
    for (size_t m = 0; m <= EXPERT_HOME_PAIRS; m++) {
        assert_true(o->n_fetch[m] <= m);
    }
}

/* The CPU's share of a layer's sum, by another backend: choices without a slot after the step's layer weigh
 * nothing. The box still holds which they were. */
static void check_answers(struct rig *r, size_t n_rows)
{
    for (size_t l = 0; l < LAYERS; l++) {
        const struct expert_mail *box = &r->card.mail[l];
        float want[EXPERT_HOME_ROWS * HIDDEN], prob[EXPERT_HOME_ROWS * TOP_K];
        int32_t idx[EXPERT_HOME_ROWS * TOP_K];

        for (size_t i = 0; i < n_rows * TOP_K; i++) {
            idx[i] = r->idx[l * n_rows * TOP_K + i];
            prob[i] =
                box->n_rows > 0 && box->idx[i] == idx[i] ? r->prob[l * n_rows * TOP_K + i] : 0;
        }
        assert_int_equal(test_experts_sum(&r->experts, r->reference, l, n_rows, TOP_K, idx, prob,
                                          r->x + l * n_rows * HIDDEN, want),
                         OK);
        for (size_t i = 0; i < n_rows * HIDDEN; i++) {
            assert_true(r->y[l * n_rows * HIDDEN + i] == want[i]);
        }
    }
}

static void steps_keep_mirror_and_sums_right(void **state)
{
    static const enum expert_miss modes[] = {EXPERT_MISS_AUTO, EXPERT_MISS_FETCH, EXPERT_MISS_CPU};
    static const size_t slots[] = {0, 1, 7, 30, LAYERS * EXPERTS};
    enum { STEPS = 60 };

    (void)state;
    for (size_t c = 0; c < 15; c++) {
        struct offload_options o = {.miss = modes[c % 3], .n_slots = slots[c / 3]};
        struct rig *r = rig_new(&o);
        struct offload_stats stats;
        uint64_t n_seen = 0;

        assert_int_equal(offload_fill(r->offload, NULL, NULL), OK);
        check_mirror(r);
        for (int i = 0; i < STEPS; i++) {
            size_t n_rows = i % 3 ? 1 : 1 + next(r) % EXPERT_HOME_ROWS;

            random_step(r, n_rows);
            assert_true(card_run(&r->card, &r->step, n_rows));
            check_orders(r);
            check_mirror(r);
            if (o.miss != EXPERT_MISS_FETCH) {
                check_answers(r, n_rows);
            }
            n_seen += r->step.report.n_hits + r->step.report.n_fetched + r->step.report.n_cpu +
                      r->step.report.n_in_place;
        }
        offload_read_stats(r->offload, &stats);
        assert_int_equal(stats.n_steps, STEPS);
        assert_int_equal(stats.n_hits + stats.n_fetched + stats.n_cpu, n_seen);
        assert_int_equal(stats.n_failed, 0);
        assert_true(o.miss != EXPERT_MISS_CPU || stats.n_fetched == 0);
        assert_true(o.miss != EXPERT_MISS_FETCH || stats.n_cpu == 0);
        assert_true(o.n_slots < LAYERS * EXPERTS || stats.n_fetched + stats.n_cpu == 0);
        assert_true(stats.cpu_wait_ns >= stats.cpu_ns);
        assert_true(stats.both_ns <= stats.either_ns && stats.either_ns >= (double)stats.cpu_ns);
        assert_true(stats.n_fetched > 0 && stats.n_cpu > 0 ? offload_overlap(&stats) <= 1
                                                           : offload_overlap(&stats) == 0);
        rig_free(r);
    }
}

static void slots_fill_evenly(void **state)
{
    struct offload_options o = {.miss = EXPERT_MISS_FETCH, .n_slots = 23};
    struct rig *r = rig_new(&o);

    (void)state;
    assert_int_equal(offload_home(r->offload)->n_staging, OFFLOAD_STAGING_DEFAULT);
    assert_int_equal(offload_fill(r->offload, NULL, NULL), OK);
    assert_int_equal(r->card.n_inserted, 23);
    for (size_t l = 0; l < LAYERS; l++) {
        size_t n = 0;

        for (size_t e = 0; e < EXPERTS; e++) {
            n += card_find(&r->card, l, e) >= 0;
        }
        assert_int_equal(n, l < 3 ? 5 : 4);
    }
    check_mirror(r);
    rig_free(r);
}

/* What the end of a prompt chose often is there when the answer begins; a slot that it used stays. */
static void the_end_of_a_prompt_is_remembered(void **state)
{
    enum { N = 40 };
    struct offload_options o = {.miss = EXPERT_MISS_CPU, .n_slots = 20};
    struct rig *r = rig_new(&o);
    const struct expert_home *h = offload_home(r->offload);
    int32_t idx[N * TOP_K];
    struct offload_stats stats;

    (void)state;
    assert_int_equal(offload_fill(r->offload, NULL, NULL), OK); /* experts 0 to 3 of each layer */
    for (size_t l = 0; l < LAYERS; l++) {
        for (size_t i = 0; i < N; i++) {
            idx[i * TOP_K] = 0;
            idx[i * TOP_K + 1] = i % 2 ? 7 : 2 + (int32_t)(i / 2 % 5); /* 7 often */
            idx[i * TOP_K + 2] = i < N / 2 ? 9 : 11; /* 9 in rows that are too long ago */
        }
        h->ops->streamed(h->ctx, l, N, l == 2 ? NULL : idx, 5);
    }
    check_mirror(r); /* nothing yet */
    random_step(r, 1);
    assert_true(card_run(&r->card, &r->step, 1));
    check_mirror(r);
    for (size_t l = 0; l < LAYERS; l++) {
        assert_true((card_find(&r->card, l, 11) >= 0) == (l != 2));
        assert_true(card_find(&r->card, l, 9) < 0);
        assert_true(l == 2 || card_find(&r->card, l, 0) >= 0);
    }
    assert_int_equal(r->card.n_inserted, 20 + 8); /* 11 and 7 of four layers */
    assert_true(card_run(&r->card, &r->step, 1));
    assert_int_equal(r->card.n_inserted, 20 + 8);
    offload_read_stats(r->offload, &stats);
    assert_int_equal(stats.n_large_steps, 1);
    assert_int_equal(stats.n_streamed, 5 * LAYERS);
    rig_free(r);
}

/* A step that reports nonsense, or never ends, breaks nothing here. */
static void a_device_that_fails(void **state)
{
    struct offload_options o = {.miss = EXPERT_MISS_AUTO, .n_slots = 10};
    struct rig *r = rig_new(&o);
    const struct expert_home *h = offload_home(r->offload);
    struct expert_orders orders;
    struct expert_insertion bad[] = {
        {-1, 0, 0, 0}, {0, EXPERTS, 0, 1}, {LAYERS, 0, 0, 1}, {0, 0, 10, 1}, {0, 0, -1, 0}};
    struct expert_report report = {
        .n_rows = 1, .idx = r->idx, .insertions = bad, .n_insertions = 5, .n_fetched = 5};
    struct offload_shape shape = test_experts_shape(&r->experts, TOP_K);
    struct offload *other;
    struct error err;

    (void)state;
    r->card.fail_insert_at = 4;
    assert_int_equal(offload_fill(r->offload, NULL, &err), ERR_DEVICE);
    check_mirror(r);
    memset(r->idx, 0xff, sizeof r->idx);
    h->ops->step_begin(h->ctx, &orders, 1);
    h->ops->step_begin(h->ctx, &orders, 8); /* the one before has no end */
    report.ticket = orders.ticket;
    h->ops->step_end(h->ctx, &report);
    check_mirror(r);
    h->ops->step_begin(h->ctx, &orders, 1);
    offload_free(r->offload);

    r->card.refuses_open = true;
    assert_int_equal(offload_new(&other, &shape, &o, &r->card.base, r->cpu, &err), ERR_NO_MEMORY);
    assert_null(other);
    r->card.refuses_open = false;
    assert_int_equal(offload_new(&other, &shape, &o, &r->card.base, NULL, &err), ERR_UNSUPPORTED);
    assert_int_equal(offload_new(&other, &shape, &o, r->cpu, r->cpu, &err), ERR_UNSUPPORTED);
    shape.top_k = EXPERTS + 1;
    assert_int_equal(offload_new(&other, &shape, &o, &r->card.base, r->cpu, &err), ERR_LIMIT);
    shape.top_k = TOP_K;
    assert_int_equal(offload_new(&r->offload, &shape, &o, &r->card.base, r->cpu, &err), OK);
    offload_free(NULL);
    assert_string_equal(expert_miss_name(EXPERT_MISS_CPU), "cpu");
    rig_free(r);
}

/* Choices with a memory: slots come to hold what is used, in a device whose link is fast enough. */
static void slots_follow_what_is_used(void **state)
{
    struct offload_options o = {.miss = EXPERT_MISS_FETCH, .n_slots = LAYERS * 4};
    struct rig *r = rig_new(&o);

    (void)state;
    assert_int_equal(offload_fill(r->offload, NULL, NULL), OK);
    for (int i = 0; i < 10; i++) {
        for (size_t l = 0; l < LAYERS; l++) {
            for (size_t j = 0; j < TOP_K; j++) {
                r->idx[l * TOP_K + j] = (int32_t)(EXPERTS - 1 - j);
            }
        }
        assert_true(card_run(&r->card, &r->step, 1));
    }
    assert_int_equal(r->step.report.n_hits, LAYERS * TOP_K);
    assert_int_equal(r->step.report.n_fetched, 0);
    rig_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_keep_mirror_and_sums_right),  cmocka_unit_test(slots_fill_evenly),
        cmocka_unit_test(the_end_of_a_prompt_is_remembered), cmocka_unit_test(a_device_that_fails),
        cmocka_unit_test(slots_follow_what_is_used),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
