/* expert_slots_test.c - the mirror of slots against a naive model: dense tables, heat added up anew. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the four above */
#include <cmocka.h>

#include "offload/expert_slots.h"
#include "offload/offload_testing.h"

enum { LAYERS = 5, EXPERTS = 16, SLOTS_MAX = 80 };

struct naive {
    int layer[SLOTS_MAX], expert[SLOTS_MAX]; /* -1: empty */
    size_t n;
    double heat[LAYERS][EXPERTS]; /* of a use in this step: 1 */
};

static int naive_find(const struct naive *v, int layer, int expert)
{
    for (size_t i = 0; i < v->n; i++) {
        if (v->layer[i] == layer && v->expert[i] == expert) {
            return (int)i;
        }
    }
    return -1;
}

static void naive_put(struct naive *v, size_t slot, int layer, int expert)
{
    int before = naive_find(v, layer, expert);

    if (before >= 0) {
        v->layer[before] = v->expert[before] = -1;
    }
    v->layer[slot] = layer;
    v->expert[slot] = expert;
}

static void naive_step(struct naive *v)
{
    for (int l = 0; l < LAYERS; l++) {
        for (int e = 0; e < EXPERTS; e++) {
            v->heat[l][e] *= exp2(-1.0 / EXPERT_HEAT_STEPS);
        }
    }
}

static double naive_heat(const struct naive *v, int32_t slot)
{
    return v->layer[slot] < 0 ? -1 : v->heat[v->layer[slot]][v->expert[slot]];
}

static uint32_t next(uint32_t *seed)
{
    return test_random(seed) >> 4;
}

/* Victims rise in heat, none twice, and nobody who is left is colder; within the rounding of sums. */
static void check_victims(const struct expert_slots *s, const struct naive *v, size_t n)
{
    int32_t order[SLOTS_MAX + 1];
    bool is_victim[SLOTS_MAX] = {false};
    size_t found = expert_slots_victims(s, order, n);

    assert_int_equal(found, n < v->n ? n : v->n);
    for (size_t i = 0; i < found; i++) {
        assert_false(is_victim[order[i]]);
        is_victim[order[i]] = true;
        assert_true(i == 0 || naive_heat(v, order[i]) >= naive_heat(v, order[i - 1]) - 1e-9);
    }
    for (size_t i = 0; i < v->n && found > 0; i++) {
        assert_true(is_victim[i] ||
                    naive_heat(v, (int32_t)i) >= naive_heat(v, order[found - 1]) - 1e-9);
    }
}

static void compare(const struct expert_slots *s, const struct naive *v)
{
    size_t held = 0;

    for (int l = 0; l < LAYERS; l++) {
        for (int e = 0; e < EXPERTS; e++) {
            int32_t slot = expert_slots_find(s, (size_t)l, (size_t)e);

            assert_int_equal(slot, naive_find(v, l, e));
            held += slot >= 0;
        }
    }
    assert_int_equal(held, s->n_held);
    for (size_t n = 0; n <= v->n + 1; n += 1 + v->n / 5) {
        check_victims(s, v, n);
    }
}

static void random_steps_agree_with_the_naive_model(void **state)
{
    static const size_t sizes[] = {1, 2, 7, 40, SLOTS_MAX};

    (void)state;
    for (size_t c = 0; c < sizeof sizes / sizeof sizes[0]; c++) {
        struct expert_slots s;
        struct naive v = {.n = sizes[c]};
        uint32_t seed = 17 + (uint32_t)c;

        assert_int_equal(expert_slots_init(&s, LAYERS, EXPERTS, sizes[c], NULL), OK);
        memset(v.layer, 0xff, sizeof v.layer);
        memset(v.expert, 0xff, sizeof v.expert);
        compare(&s, &v);
        for (int i = 0; i < 5000; i++) {
            int layer = (int)(next(&seed) % LAYERS), expert = (int)(next(&seed) % EXPERTS);
            size_t slot = next(&seed) % v.n;

            if (next(&seed) % 2) {
                expert_slots_put(&s, slot, (size_t)layer, (size_t)expert);
                naive_put(&v, slot, layer, expert);
            } else {
                expert_slots_use(&s, (size_t)layer, (size_t)expert);
                v.heat[layer][expert] += 1;
            }
            if (next(&seed) % 3 == 0) { /* many times through the whole range of a use's heat */
                expert_slots_step(&s);
                naive_step(&v);
            }
            if (i % 7 == 0 || i < 100) {
                compare(&s, &v);
            }
        }
        expert_slots_release(&s);
    }
}

static void the_coldest_goes_first(void **state)
{
    struct expert_slots s;
    int32_t out[4];

    (void)state;
    assert_int_equal(expert_slots_init(&s, LAYERS, EXPERTS, 4, NULL), OK);
    expert_slots_put(&s, 0, 0, 5); /* often, but long ago */
    expert_slots_put(&s, 1, 1, 5); /* often, a while ago */
    expert_slots_put(&s, 2, 2, 5); /* once, just now */
    for (int i = 0; i < 200; i++) {
        if (i < 10) {
            expert_slots_use(&s, 0, 5);
        } else if (i >= 170 && i < 180) {
            expert_slots_use(&s, 1, 5);
        }
        expert_slots_step(&s);
    }
    expert_slots_use(&s, 2, 5);
    assert_int_equal(expert_slots_victims(&s, out, 9), 4);
    assert_int_equal(out[0], 3); /* empty */
    assert_int_equal(out[1], 0);
    assert_int_equal(out[2], 2);
    assert_int_equal(out[3], 1);
    expert_slots_release(&s);
}

static void there_may_be_no_slot(void **state)
{
    struct expert_slots s;
    int32_t out[4];

    (void)state;
    assert_int_equal(expert_slots_init(&s, LAYERS, EXPERTS, 0, NULL), OK);
    assert_int_equal(expert_slots_victims(&s, out, 4), 0);
    assert_int_equal(expert_slots_find(&s, 1, 2), -1);
    expert_slots_use(&s, 1, 2);
    expert_slots_step(&s);
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
        cmocka_unit_test(the_coldest_goes_first),
        cmocka_unit_test(there_may_be_no_slot),
        cmocka_unit_test(absurd_sizes_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
