/* outline_test.c - an outline says what loading then makes: bytes, operations, experts' blocks.
 *
 * Place: model, cmocka. */
#include "backend/op_cost.h"
#include "model/model_internal.h"
#include "model/model_testing.h"
#include "model/outline.h"

static void check_blocks(const struct model_outline *o, const struct model *m)
{
    assert_int_equal(o->has_blocks, m->weights.n_arenas > 0);
    for (size_t i = 0; i < m->weights.n_arenas; i++) {
        assert_int_equal(o->block.n_bytes, m->weights.arenas[i].block.n_bytes);
        assert_int_equal(o->n_experts, m->weights.arenas[i].n_experts);
    }
}

static void check_ops(const struct model_outline *o, const struct model *m)
{
    const struct cost_step step = {
        .n_seqs = 1, .n_rows = 3, .depth = 77, .n_out_rows = 1, .n_touched = 5};
    const struct state_pools *pools = state_store_pools(m->states);
    struct op_cost planned = plan_cost(o->plan.ops, o->plan.n_ops, &step, pools);
    struct op_cost made = plan_cost(m->plan.ops, m->plan.n_ops, &step, pools);

    assert_int_equal(o->plan.n_ops, m->plan.n_ops);
    assert_int_equal(o->plan.buffer_bytes, m->plan.buffer_bytes);
    for (int c = 0; c < COST_CLASS_COUNT; c++) {
        assert_true(planned.bytes[c] == made.bytes[c]);
    }
    assert_true(planned.flop == made.flop && planned.flop_quantised == made.flop_quantised);
}

/* Copies begin at borders, of which the outline knows nothing. */
static void check_rewritten(const struct model_outline *o, const struct model *m)
{
    enum { BORDER = 64, PIECES = 4 };
    size_t made = m->weights.block_bytes + m->weights.int8_bytes;
    size_t most = BORDER * PIECES * (m->spec.n_matrices + m->spec.n_vectors + 1);

    print_message("copies while loading: %zu, planned %zu\n", made, o->rewritten_bytes);
    assert_true(o->rewritten_bytes <= made && made - o->rewritten_bytes <= most);
}

static void check(const char *dir, enum dense_quant quant)
{
    const struct test_setup s = {.dense_quant = quant};
    struct model_outline o;
    struct test_model t;
    struct error err = {0};
    size_t sum;

    test_model_open(&t, dir, &s);
    if (model_outline_make(&o, t.ck, model_get_config(t.m), model_get_options(t.m), &err) != OK) {
        fail_msg("%s: %s", dir, err.text);
    }
    sum = o.vector_bytes;
    for (int c = 0; c < CLASS_COUNT; c++) {
        sum += o.class_bytes[c];
    }
    print_message("%s, %s: %zu bytes, %zu of activations\n", dir, dense_quant_name(quant), sum,
                  o.plan.buffer_bytes);
    assert_int_equal(sum, model_weight_bytes(t.m));
    check_ops(&o, t.m);
    check_blocks(&o, t.m);
    check_rewritten(&o, t.m);
    model_outline_release(&o);
    test_model_close(&t);
}

static void test_outlines(void **state)
{
    char dir[512];

    (void)state;
    for (size_t i = 0; i < N_FIXTURES; i++) {
        fixture_path(dir, fixture_names[i], "");
        check(dir, DENSE_QUANT_NONE);
        check(dir, DENSE_QUANT_INT8);
    }
    check(RILL_DIR, DENSE_QUANT_NONE);
    check(RILL_DIR, DENSE_QUANT_INT8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_outlines)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
