/* weights_experts_test.c - which layers' experts become blocks, and that the plan reads those. */
#include "model/model_internal.h"
#include "model/model_testing.h"

static const struct expert_weights *experts_of(const struct model *m, size_t nth)
{
    for (size_t i = 0; i < m->plan.n_ops; i++) {
        if (m->plan.ops[i].kind == OP_EXPERTS && nth-- == 0) {
            return m->plan.ops[i].u.experts.experts;
        }
    }
    return NULL;
}

static void expect_blocks(const char *fixture, bool has_perms)
{
    struct test_setup setup = {.compute = DTYPE_F32};
    struct test_model t;
    char dir[512];

    fixture_path(dir, fixture, "");
    test_model_open(&t, dir, &setup);
    assert_int_equal(t.m->weights.n_arenas, t.m->spec.n_layers);
    for (size_t l = 0; l < t.m->weights.n_arenas; l++) {
        const struct expert_arena *a = &t.m->weights.arenas[l];
        const struct expert_weights *experts = experts_of(t.m, l);

        assert_true((uintptr_t)a->base % EXPERT_BLOCK_ALIGN == 0);
        assert_int_equal(a->block.shape.hidden, t.m->spec.hidden);
        assert_true(a->block.shape.has_perms == has_perms);
        for (size_t e = 0; e < a->n_experts; e++) {
            const uint8_t *base = a->base + e * a->block.n_bytes;
            struct expert_weights want = expert_block_view(&a->block, base);

            assert_ptr_equal(experts[e].gate.data, base);
            assert_memory_equal(&experts[e], &want, sizeof want);
        }
    }
    test_model_close(&t);
}

static void quantised_experts_are_blocks(void **state)
{
    (void)state;
    expect_blocks("tiny-qwen3_5-moe-gptq-int4", false);
    expect_blocks("tiny-qwen3_5-moe-gptq-int4-actorder", true);
}

static void plain_experts_stay_in_the_file(void **state)
{
    struct test_setup setup = {.compute = DTYPE_F32};
    struct test_model t;
    char dir[512];

    (void)state;
    fixture_path(dir, "tiny-qwen3_5-moe", "");
    test_model_open(&t, dir, &setup);
    assert_int_equal(t.m->weights.n_arenas, 0);
    assert_int_equal(experts_of(t.m, 0)->gate.kind, WEIGHT_DENSE);
    test_model_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantised_experts_are_blocks),
        cmocka_unit_test(plain_experts_stay_in_the_file),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
