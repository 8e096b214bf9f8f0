/* read_ahead_test.c - which blocks are asked for, and in which order.
 *
 * memory_will_need() is this file's: what it would ask for is written down. (The real one is tested in base; the
 * library's object is not linked, since nothing else here needs it.) */
#include "offload/read_ahead.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/file_memory.h"

enum { LAYERS = 4, EXPERTS = 100, BLOCK = 16 };

static uint8_t memory[LAYERS][EXPERTS][BLOCK];

static struct {
    size_t layer, expert;
} asked[LAYERS * EXPERTS];
static size_t n_asked;

void memory_will_need(const void *at, size_t n_bytes)
{
    size_t block = (size_t)((const uint8_t *)at - memory[0][0]) / BLOCK;

    assert_int_equal(n_bytes, BLOCK);
    assert_ptr_equal(at, memory[0][0] + block * BLOCK);
    assert_true(block < (size_t)LAYERS * EXPERTS && n_asked < (size_t)LAYERS * EXPERTS);
    asked[n_asked].layer = block / EXPERTS;
    asked[n_asked++].expert = block % EXPERTS;
}

/* Experts below 20 have slots. */
static int32_t slot_of(void *ctx, size_t layer, size_t expert)
{
    (void)ctx;
    return expert < 20 ? (int32_t)(layer * 20 + expert) : -1;
}

static const struct expert_home_ops ops = {.slot_of = slot_of};
static const uint8_t *const blocks[LAYERS] = {memory[0][0], memory[1][0], memory[2][0],
                                              memory[3][0]};
static const bool pageable[LAYERS] = {true, true, false, true};

static struct expert_home home_of(const bool *is_pageable)
{
    return (struct expert_home){.block.n_bytes = BLOCK,
                                .n_layers = LAYERS,
                                .n_experts = EXPERTS,
                                .blocks = blocks,
                                .is_pageable = is_pageable,
                                .ops = &ops};
}

static void expect(size_t i, size_t layer, size_t expert)
{
    assert_true(i < n_asked);
    assert_int_equal(asked[i].layer, layer);
    assert_int_equal(asked[i].expert, expert);
}

static void test_choices(void **state)
{
    static const int32_t idx[] = {7, -1, 99, 7, 0, 100, 99, -5, 1};
    struct expert_home home = home_of(pageable), none = home_of(NULL);

    (void)state;
    n_asked = 0;
    read_ahead_experts(&home, 1, idx, sizeof idx / sizeof *idx);
    assert_int_equal(n_asked, 4); /* each once; what is no expert, not at all */
    expect(0, 1, 7);
    expect(1, 1, 99);
    expect(2, 1, 0);
    expect(3, 1, 1);
    n_asked = 0;
    read_ahead_experts(&home, 2, idx, 9);
    read_ahead_experts(&home, LAYERS, idx, 9);
    read_ahead_experts(&none, 1, idx, 9);
    read_ahead_experts(&home, 1, idx, 0);
    assert_int_equal(n_asked, 0);
}

static void test_stream(void **state)
{
    struct expert_home home = home_of(pageable);
    int32_t all[EXPERTS - 20];
    size_t n = sizeof all / sizeof *all;

    (void)state;
    for (size_t i = 0; i < n; i++) {
        all[i] = (int32_t)(20 + i);
    }
    n_asked = 0;
    read_ahead_stream(&home, 0, all + 3, 5); /* some: the next layer's choices are not known */
    assert_int_equal(n_asked, 5);
    expect(0, 0, 23);
    expect(4, 0, 27);
    n_asked = 0;
    read_ahead_stream(&home, 0, all, n);
    assert_int_equal(n_asked, n + READ_AHEAD_NEXT);
    expect(n - 1, 0, EXPERTS - 1);
    expect(n, 1, 20); /* not those that have slots */
    expect(n_asked - 1, 1, 20 + READ_AHEAD_NEXT - 1);
    n_asked = 0;
    read_ahead_stream(&home, 1, all, n); /* the layer after is pinned */
    assert_int_equal(n_asked, n);
    n_asked = 0;
    read_ahead_stream(&home, 2, all, n); /* as this one is */
    assert_int_equal(n_asked, READ_AHEAD_NEXT);
    expect(0, 3, 20);
    n_asked = 0;
    read_ahead_stream(&home, LAYERS - 1, all, n);
    assert_int_equal(n_asked, n);
    n_asked = 0;
    read_ahead_stream(&home, 1, all, 0);
    assert_int_equal(n_asked, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_stream),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
