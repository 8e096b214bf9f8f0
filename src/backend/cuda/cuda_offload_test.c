/* cuda_offload_test.c - small steps of experts that overflow, against the same steps with all experts on the
 * card. Fetched or read in place, experts give the same bits as resident ones; what the CPU computes is within
 * rounding. */
#include "backend/cuda/cuda_offload_testing.h"
#include "backend/cuda/cuda_private.h"
#include "backend/cuda/emulator/emulator.h"

/* ---- tests ---- */

/* No CPU: the same bits, however few slots there are. */
static void fetched_as_resident(void **state)
{
    static const struct setup setups[] = {
        {DTYPE_BF16, SYMMETRIC, false, false, 12, false, 4, 1024, 0, false, LATE_NOBODY},
        {DTYPE_F16, ZEROS, false, false, 5, false, 4, 1024, 0, false, LATE_NOBODY},
        {DTYPE_F16, SYMMETRIC, true, true, 12, false, 4, 1024, 0, false, LATE_NOBODY},
        {DTYPE_BF16, PERMS, false, false, 12, false, 4, 1024, 0, false, LATE_NOBODY},
        {DTYPE_F32, ZEROS, false, false, 12, false, 4, 1024, 0, false, LATE_NOBODY},
        {DTYPE_BF16, ZEROS, true, false, 30, false, 2, 3, 0, false, LATE_NOBODY},
        {DTYPE_BF16, SYMMETRIC, false, false, 0, false, 4, 1024, 0, false, LATE_NOBODY},
        {DTYPE_F16, ZEROS, false, false, 32, false, 4, 1024, 0, false, LATE_NOBODY},
        {DTYPE_BF16, WIDE, false, false, 12, false, 4, 1024, 0, false, LATE_NOBODY},
        {DTYPE_F16, WIDE_ZEROS, true, false, 7, false, 3, 5, 0, false, LATE_NOBODY},
    };

    (void)state;
    for (size_t i = 0; i < sizeof setups / sizeof setups[0]; i++) {
        struct world w;
        double worst;

        world_open(&w, &setups[i], false);
        worst = steps_run(&w);
        print_line(&setups[i], &w, worst);
        assert_true(worst == 0);
        world_close(&w);
    }
}

/* The next layer's experts are fetched ahead: the same bits, and what is moved is as the model says,
 * whichever stream is late. */
static void fetched_ahead(void **state)
{
    static const struct setup setups[] = {
        {DTYPE_F16, ZEROS, false, false, 9, false, 4, 1024, 8, true, LATE_NOBODY},
        {DTYPE_BF16, SYMMETRIC, true, false, 30, false, 4, 1024, 1, true, LATE_OTHERS},
        {DTYPE_F16, SYMMETRIC, true, true, 16, false, 4, 1024, 3, false, LATE_DICE},
        {DTYPE_BF16, ZEROS, true, false, 24, false, 2, 5, 4, false, LATE_FIRST},
        {DTYPE_BF16, WIDE_ZEROS, false, false, 14, false, 4, 1024, 3, false, LATE_NOBODY},
        {DTYPE_F16, WIDE, true, false, 20, false, 4, 1024, 4, true, LATE_DICE},
        {DTYPE_F32, SYMMETRIC, false, false, 20, true, 1, 1024, 2, true, LATE_NOBODY},
    };

    (void)state;
    for (size_t i = 0; i < sizeof setups / sizeof setups[0]; i++) {
        const struct setup *s = &setups[i];
        struct world w;
        double worst;

        world_open(&w, s, s->has_cpu);
        worst = steps_run(&w);
        print_line(s, &w, worst);
        print_message("      %zu fetched ahead, %zu of them used\n", w.n_next, w.n_next_used);
        assert_true(worst <= (s->has_cpu ? 5e-5 : 0));
        assert_true(w.n_next > 0 && w.n_next_used > 0);
        assert_true(w.n_next_used <= w.n_next);
        assert_false(((struct cuda_backend *)w.small.be)->own->offload.is_forked);
        if (!s->no_graphs) { /* the branch is in the captured steps */
            assert_false(((struct cuda_backend *)w.small.be)->own->no_graphs);
            assert_true(((struct cuda_backend *)w.small.be)->own->n_graphs > 0);
        }
        world_close(&w);
    }
}

/* With a CPU that gets all, some or no misses. */
static void shared_with_the_cpu(void **state)
{
    static const struct setup setups[] = {
        {DTYPE_BF16, SYMMETRIC, false, false, 12, true, 0, 1024, 0, false, LATE_NOBODY},
        {DTYPE_F16, ZEROS, false, false, 12, true, 2, 1024, 0, false, LATE_NOBODY},
        {DTYPE_F32, SYMMETRIC, false, false, 12, true, 2, 1024, 0, false, LATE_NOBODY},
        {DTYPE_F32, PERMS, true, false, 0, true, 4, 1024, 0, false, LATE_NOBODY},
        {DTYPE_F16, PERMS, true, true, 12, true, 4, 2, 0, false, LATE_NOBODY},
        {DTYPE_BF16, SYMMETRIC, false, false, 20, true, 4, 1, 0, false, LATE_NOBODY},
        {DTYPE_F16, WIDE, false, false, 12, true, 2, 1024, 0, false, LATE_NOBODY},
    };

    (void)state;
    for (size_t i = 0; i < sizeof setups / sizeof setups[0]; i++) {
        const struct setup *s = &setups[i];
        double worst, allowed = s->round == DTYPE_F32 ? 5e-5 : 4 * cuda_tolerance(s->round, 0);
        struct world w;

        world_open(&w, s, true);
        worst = steps_run(&w);
        print_line(s, &w, worst);
        assert_true(worst <= allowed);
        assert_true(w.n_asked > 0);
        world_close(&w);
    }
}

/* Nobody answers: an error after the time, no hang, and the next step is as good as new. */
static void an_absent_cpu(void **state)
{
    static const struct setup setup = {DTYPE_BF16, SYMMETRIC, false, false, 12,         true,
                                       0,          0,         0,     false, LATE_NOBODY};
    static float x[HIDDEN] = {1, 2, 3};
    const size_t one[1] = {1}, position[1] = {0};
    struct error err = {0};
    struct test_step t;
    struct world w;

    (void)state;
    for (size_t fused = 0; fused < 2; fused++) {
        struct setup s = setup;

        s.no_fusions = !fused;
        world_open(&w, &s, false);
        ((struct cuda_backend *)w.small.be)->own->offload.wait_ns = 20 * 1000 * 1000;
        test_step_make(&t, 1, one, position, 10);
        assert_int_equal(card_step(&w.small, x, &t, true, &err), ERR_DEVICE);
        assert_non_null(strstr(err.text, "the CPU did not compute"));
        assert_non_null(strstr(err.text, "layer 0"));
        assert_int_equal(w.n_reports, 1);
        world_answer(&w);
        ((struct cuda_backend *)w.small.be)->own->offload.wait_ns = (uint64_t)20 << 30;
        assert_true(both_step(&w, 1, true, false) < 0.1);
        test_step_release(&t);
        world_close(&w);
    }
}

/* An expert that is inserted again changes its slot, and gives the old one back. */
static void inserted_again(void **state)
{
    static const struct setup setup = {DTYPE_BF16, SYMMETRIC, false, false, 16,         false,
                                       4,          1024,      0,     false, LATE_NOBODY};
    struct error err;
    struct world w;

    (void)state;
    world_open(&w, &setup, false);
    for (size_t i = 0; i < 4; i++) {
        int32_t old = w.slot_of[1][2 + 3 * i], to = old == 15 ? 3 : 15 - (int32_t)i;
        struct expert_insertion was = w.owner[to];

        must(w.small.be->ops->expert_insert(w.small.be, 1, 2 + 3 * i, (size_t)to, &err), &err);
        if (was.layer >= 0) {
            w.slot_of[was.layer][was.expert] = -1;
        }
        if (old >= 0 && old != to) {
            w.owner[old] = (struct expert_insertion){-1, -1, -1, 0};
        }
        w.owner[to] = (struct expert_insertion){1, (int16_t)(2 + 3 * i), 0, 0};
        w.slot_of[1][2 + 3 * i] = to;
        assert_true(both_step(&w, 1 + i, true, true) == 0);
    }
    assert_int_equal(w.small.be->ops->expert_insert(w.small.be, 0, 0, 16, &err), ERR_INTERNAL);
    world_close(&w);
}

/* A step that fails on the way is reported before the next one begins. */
static void an_abandoned_step(void **state)
{
    static const struct setup setup = {DTYPE_BF16, SYMMETRIC, true, true,  12,         false,
                                       4,          1024,      0,    false, LATE_NOBODY};
    const size_t one[1] = {1}, position[1] = {0};
    float x[HIDDEN] = {1, -1, 2};
    struct state_pools none = {0};
    struct test_step t;
    struct error err;
    struct world w;

    (void)state;
    world_open(&w, &setup, false);
    test_step_make(&t, 1, one, position, 10);
    w.small.be->ops->write(w.small.be, w.small.x, x, sizeof x);
    must(w.small.be->ops->begin(w.small.be, &t.step, &err), &err);
    for (size_t i = 0; i < LAYERS * TAIL; i++) {
        must(w.small.be->ops->run(w.small.be, &w.small.ops[i], &t.step, &none, &err), &err);
    }
    assert_int_equal(w.n_reports, 0);
    assert_true(both_step(&w, 2, true, true) == 0);
    assert_int_equal(w.n_reports, 2);
    test_step_release(&t);
    world_close(&w);
}

static void others_are_refused(void **state)
{
    static const struct setup setup = {DTYPE_BF16, SYMMETRIC, false, false, 4,          false,
                                       4,          1024,      0,     false, LATE_NOBODY};
    struct expert_home other;
    struct error err;
    struct world w;
    struct op op;

    (void)state;
    world_open(&w, &setup, false);
    other = w.home;
    op = w.small.ops[EXPERTS];
    op.u.experts.home = &other;
    test_refused(w.small.be, &op, "experts_open() did not come before");
    op = w.small.ops[EXPERTS];
    op.u.experts.home_layer = LAYERS;
    test_refused(w.small.be, &op, "not like the other layers");
    other.top_k = EXPERT_HOME_TOP_K + 1;
    assert_int_equal(w.small.be->ops->experts_open(w.small.be, &other, &err), ERR_UNSUPPORTED);
    assert_int_equal(w.small.be->ops->experts_open(w.small.be, NULL, &err), OK);
    assert_null(w.home.mail);
    test_refused(w.small.be, &w.small.ops[EXPERTS], "experts_open() did not come before");
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fetched_as_resident), cmocka_unit_test(fetched_ahead),
        cmocka_unit_test(shared_with_the_cpu), cmocka_unit_test(an_absent_cpu),
        cmocka_unit_test(inserted_again),      cmocka_unit_test(an_abandoned_step),
        cmocka_unit_test(others_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
