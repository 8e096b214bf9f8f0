/* large_split_test.c - the CPU's part of large steps: both sides end together, the experts of fewest rows go first,
 * measured times are followed, and no single time turns it over. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the four above */
#include <cmocka.h>

#include "offload/large_split.h"

enum { EXPERTS = 64, TOP_K = 4, ROWS_MAX = 128 };

struct bed {
    struct large_split split;
    int32_t idx[ROWS_MAX * TOP_K], slot_of[EXPERTS];
    bool on_cpu[EXPERTS];
    size_t n_rows, n_streamed;
};

static void bed_make(struct bed *b, double link, double expert, double row)
{
    const struct large_times times = {.link = link, .expert = expert, .row = row};

    memset(b, 0, sizeof *b);
    assert_int_equal(large_split_init(&b->split, EXPERTS, NULL), OK);
    large_split_times(&b->split, &times);
    memset(b->slot_of, 0xff, sizeof b->slot_of);
    memset(b->idx, 0xff, sizeof b->idx);
    b->n_rows = ROWS_MAX;
}

/* So many rows choose the expert. */
static void choose(struct bed *b, int32_t expert, size_t n)
{
    for (size_t i = 0; n > 0; i++) {
        assert_true(i < ROWS_MAX * TOP_K);
        if (b->idx[i] < 0) {
            b->idx[i] = expert;
            n--;
        }
    }
}

static size_t divide(struct bed *b, bool is_pageable)
{
    memset(b->on_cpu, 0, sizeof b->on_cpu);
    return large_split_divide(&b->split, b->n_rows, TOP_K, b->idx, b->slot_of, is_pageable,
                              b->on_cpu, &b->n_streamed);
}

static size_t count(const struct bed *b)
{
    size_t n = 0;

    for (size_t e = 0; e < EXPERTS; e++) {
        n += b->on_cpu[e];
    }
    return n;
}

/* 40 experts of one row, 100 us each over the link, 50 us on the CPU and 30 us until it starts: with 27 and 13 both
 * end after 1.3 to 1.4 ms. */
static void both_end_together(void **state)
{
    struct bed b;

    (void)state;
    bed_make(&b, 1e5, 5e4, 1e4);
    for (int32_t e = 0; e < 40; e++) {
        choose(&b, e, 1);
    }
    assert_int_equal(divide(&b, false), 27);
    assert_int_equal(count(&b), 27);
    assert_int_equal(b.n_streamed, 13);
    large_split_release(&b.split);
}

/* Experts of one row before those of more, lower numbers first; what has a slot, and what nobody chose, is nobody's. */
static void fewest_rows_first(void **state)
{
    struct bed b;

    (void)state;
    bed_make(&b, 1e5, 5e4, 2e4);
    choose(&b, 9, 3);
    choose(&b, 7, 1);
    choose(&b, 8, 2);
    choose(&b, 30, 1);
    choose(&b, 31, 1);
    choose(&b, 32, 20);
    choose(&b, 33, 20);
    b.slot_of[31] = 5;
    assert_int_equal(divide(&b, false), 4); /* 30 + 50 + 50 + 70 + 90 us beside 200 us */
    assert_true(b.on_cpu[7] && b.on_cpu[30] && b.on_cpu[8] && b.on_cpu[9]);
    assert_int_equal(b.n_streamed, 2);
    assert_int_equal(b.split.by[0].expert, 7);
    assert_int_equal(b.split.by[1].expert, 30);
    assert_int_equal(b.split.by[2].expert, 8);
    assert_int_equal(b.split.by[3].expert, 9);
    large_split_release(&b.split);
}

static void nothing_to_divide(void **state)
{
    struct bed b;

    (void)state;
    bed_make(&b, 1e5, 5e4, 2e4);
    assert_int_equal(divide(&b, false), 0);
    assert_int_equal(b.n_streamed, 0);
    choose(&b, 3, 5);
    b.slot_of[3] = 0;
    assert_int_equal(divide(&b, false), 0);
    assert_int_equal(b.n_streamed, 0);
    b.idx[20] = EXPERTS; /* no expert */
    b.idx[21] = INT32_MAX;
    assert_int_equal(divide(&b, true), 0);
    large_split_release(&b.split);
}

/* An expert that a row chose twice is streamed, for the CPU would refuse it. */
static void twice_the_same(void **state)
{
    struct bed b;

    (void)state;
    bed_make(&b, 1e7, 1e3, 1e2);
    b.n_rows = 2;
    memcpy(b.idx, (int32_t[8]){5, 5, 6, 7, 5, 8, 6, -1}, 8 * sizeof *b.idx);
    assert_int_equal(divide(&b, false), 3);
    assert_false(b.on_cpu[5]);
    assert_true(b.on_cpu[6] && b.on_cpu[7] && b.on_cpu[8]);
    assert_int_equal(b.n_streamed, 1);
    large_split_release(&b.split);
}

/* Copies of pageable blocks do not overlap: each expert is where it costs less. */
static void pageable_layers(void **state)
{
    struct bed b;

    (void)state;
    bed_make(&b, 1e5, 5e4, 5e4);
    for (int32_t e = 0; e < 20; e++) {
        choose(&b, e, 1 + (size_t)(e % 4));
    }
    assert_int_equal(divide(&b, true), 20); /* a copy is taken for four times slower */
    for (size_t i = 0; i < 100; i++) {
        large_split_learn_copies(&b.split, 10, 10 * 1.2e5);
    }
    assert_true(fabs(b.split.pageable_link - 1.2e5) < 1e4);
    assert_int_equal(divide(&b, true), 10); /* those of one row and two: 50 and 100 us */
    for (size_t e = 0; e < 20; e++) {
        assert_int_equal(b.on_cpu[e], e % 4 < 2);
    }
    large_split_release(&b.split);
}

/* A CPU that takes three times as long as it should has less, and its old part again when it recovers. */
static void follows_the_cpu(void **state)
{
    size_t before, slow, after;
    struct bed b;

    (void)state;
    bed_make(&b, 1e5, 5e4, 1e4);
    for (int32_t e = 0; e < 40; e++) {
        choose(&b, e, 1);
    }
    before = divide(&b, false);
    for (size_t i = 0; i < 60; i++) {
        divide(&b, false);
        large_split_learn(&b.split, 3 * b.split.expected);
    }
    assert_true(fabs(b.split.scale - 3) < 0.1);
    slow = divide(&b, false);
    assert_in_range(slow, 15, 17); /* 16 * 150 us + 90 us beside 24 * 100 us */
    for (size_t i = 0; i < 60; i++) {
        divide(&b, false);
        large_split_learn(&b.split, b.split.expected);
    }
    after = divide(&b, false);
    assert_in_range(after, before - 1, before + 1);
    large_split_release(&b.split);
}

/* One time that is a thousand times too long moves it a little. */
static void outliers_are_cut(void **state)
{
    struct bed b;

    (void)state;
    bed_make(&b, 1e5, 5e4, 1e4);
    for (int32_t e = 0; e < 40; e++) {
        choose(&b, e, 1);
    }
    for (size_t i = 0; i < 50; i++) {
        divide(&b, false);
        large_split_learn(&b.split, b.split.expected);
    }
    large_split_learn(&b.split, 1000 * b.split.expected);
    assert_true(b.split.scale < 1.5);
    large_split_learn(&b.split, 0);
    assert_true(b.split.scale > 1.0 / 1.5);
    assert_in_range(divide(&b, false), 22, 28);
    large_split_release(&b.split);
}

/* A CPU that is too slow has no part, but is tried now and then, so that it can show that it is not. */
static void tried_again(void **state)
{
    size_t n_tried = 0;
    struct bed b;

    (void)state;
    bed_make(&b, 1e3, 5e6, 1e5);
    choose(&b, 1, 1);
    choose(&b, 2, 1);
    for (size_t i = 0; i < 1024; i++) {
        n_tried += divide(&b, false);
    }
    assert_int_equal(n_tried, 4);
    large_split_release(&b.split);
}

/* Without measured times the CPU has about half. */
static void unknown_times(void **state)
{
    struct bed b;

    (void)state;
    bed_make(&b, 0, 0, 0);
    for (int32_t e = 0; e < 40; e++) {
        choose(&b, e, 1);
    }
    assert_in_range(divide(&b, false), 18, 21);
    large_split_release(&b.split);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_end_together), cmocka_unit_test(fewest_rows_first),
        cmocka_unit_test(nothing_to_divide), cmocka_unit_test(twice_the_same),
        cmocka_unit_test(pageable_layers),   cmocka_unit_test(follows_the_cpu),
        cmocka_unit_test(outliers_are_cut),  cmocka_unit_test(tried_again),
        cmocka_unit_test(unknown_times),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
