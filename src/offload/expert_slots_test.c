/* expert_slots_test.c - the mirror of slots against a naive model: a time of last use for each slot. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the three above */
#include <cmocka.h>

#include "offload/expert_slots.h"

enum { LAYERS = 5, EXPERTS = 16, SLOTS_MAX = 80 };

/* One line per slot; used 0: empty. */
struct naive {
    int layer[SLOTS_MAX], expert[SLOTS_MAX];
    long used[SLOTS_MAX];
    size_t n;
    long now;
    long emptied; /* negative times: what was emptied last goes first */
};

static int naive_find(const struct naive *v, int layer, int expert)
{
    for (size_t i = 0; i < v->n; i++) {
        if (v->used[i] > 0 && v->layer[i] == layer && v->expert[i] == expert) {
            return (int)i;
        }
    }
    return -1;
}

static void naive_put(struct naive *v, size_t slot, int layer, int expert)
{
    int before = naive_find(v, layer, expert);

    if (before >= 0 && (size_t)before != slot) {
        v->used[before] = --v->emptied;
    }
    v->layer[slot] = layer;
    v->expert[slot] = expert;
    v->used[slot] = ++v->now;
}

static uint32_t next(uint32_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 17;
    *seed ^= *seed << 5;
    return *seed >> 4;
}

static void compare(const struct expert_slots *s, const struct naive *v)
{
    int32_t order[SLOTS_MAX];
    size_t n = expert_slots_victims(s, order, SLOTS_MAX), held = 0;

    assert_int_equal(n, v->n);
    for (size_t i = 0; i + 1 < n; i++) {
        assert_true(v->used[order[i]] < v->used[order[i + 1]]);
    }
    for (int l = 0; l < LAYERS; l++) {
        for (int e = 0; e < EXPERTS; e++) {
            int32_t slot = expert_slots_find(s, (size_t)l, (size_t)e);

            assert_int_equal(slot, naive_find(v, l, e));
            held += slot >= 0;
        }
    }
    assert_int_equal(held, s->n_held);
}

static void random_steps_agree_with_the_naive_model(void **state)
{
    static const size_t sizes[] = {1, 2, 7, 40, SLOTS_MAX};

    (void)state;
    for (size_t c = 0; c < sizeof sizes / sizeof sizes[0]; c++) {
        struct expert_slots s;
        struct naive v = {.n = sizes[c], .emptied = -SLOTS_MAX};
        uint32_t seed = 17 + (uint32_t)c;

        assert_int_equal(expert_slots_init(&s, LAYERS, EXPERTS, sizes[c], NULL), OK);
        for (size_t i = 0; i < v.n; i++) { /* at first slot 0 goes first */
            v.used[i] = (long)i - SLOTS_MAX;
        }
        compare(&s, &v);
        for (int step = 0; step < 3000; step++) {
            int layer = (int)(next(&seed) % LAYERS), expert = (int)(next(&seed) % EXPERTS);
            size_t slot = next(&seed) % v.n;

            if (next(&seed) % 2) {
                expert_slots_put(&s, slot, (size_t)layer, (size_t)expert);
                naive_put(&v, slot, layer, expert);
            } else {
                int held = naive_find(&v, layer, expert);

                expert_slots_touch(&s, (size_t)layer, (size_t)expert);
                if (held >= 0) {
                    v.used[held] = ++v.now;
                }
            }
            if (step % 7 == 0 || step < 100) {
                compare(&s, &v);
            }
        }
        expert_slots_release(&s);
    }
}

static void there_may_be_no_slot(void **state)
{
    struct expert_slots s;
    int32_t out[4];

    (void)state;
    assert_int_equal(expert_slots_init(&s, LAYERS, EXPERTS, 0, NULL), OK);
    assert_int_equal(expert_slots_victims(&s, out, 4), 0);
    assert_int_equal(expert_slots_find(&s, 1, 2), -1);
    expert_slots_touch(&s, 1, 2);
    expert_slots_release(&s);
}

static void absurd_sizes_are_refused(void **state)
{
    struct expert_slots s;

    (void)state;
    assert_int_equal(expert_slots_init(&s, 40000, 4, 8, NULL), ERR_LIMIT);
    expert_slots_release(&s);
    assert_int_equal(expert_slots_init(&s, 4, 40000, 8, NULL), ERR_LIMIT);
    expert_slots_release(&s);
    assert_int_equal(expert_slots_init(&s, 4, 4, SIZE_MAX, NULL), ERR_LIMIT);
    expert_slots_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_steps_agree_with_the_naive_model),
        cmocka_unit_test(there_may_be_no_slot),
        cmocka_unit_test(absurd_sizes_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
