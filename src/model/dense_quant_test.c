/* dense_quant_test.c - which matrices become int8, what that changes, and a tied head.
 *
 * Place: model, cmocka. */
#include <string.h>

#include "backend/op_cost.h"
#include "model/dense_quant.h"
#include "model/model_testing.h"

enum { N_TOKENS = 24 };

static const int32_t TOKENS[N_TOKENS] = {5,  17, 42, 99, 3,  64, 81, 7, 12, 33, 60, 2,
                                         71, 28, 90, 14, 55, 38, 21, 9, 47, 66, 83, 1};

/* The only part of an operation's linear layer that has this many outputs, or part `p`. */
static const struct weight *part(const struct op *op, size_t p)
{
    assert_true(op->kind == OP_LINEAR && p < op->u.linear.n_parts);
    return &op->u.linear.part[p].w;
}

static void check_op(const struct op *op)
{
    if (op->kind == OP_EMBED) {
        assert_int_equal(op->u.embed.table.kind, WEIGHT_DENSE);
    } else if (op->kind == OP_ROUTE) {
        assert_int_equal(op->u.route.router.kind, WEIGHT_DENSE);
    } else if (op->kind == OP_LINEAR && strcmp(op->name, "gdn in_proj") == 0) {
        assert_int_equal(part(op, 0)->kind, WEIGHT_INT8);
        assert_int_equal(part(op, 1)->kind, WEIGHT_INT8);
        assert_int_equal(part(op, 2)->kind, WEIGHT_DENSE); /* a and b */
        assert_int_equal(part(op, 3)->kind, WEIGHT_DENSE);
    } else if (op->kind == OP_LINEAR && strcmp(op->name, "shared in") == 0) {
        assert_int_equal(part(op, 0)->kind, WEIGHT_INT8);
        assert_int_equal(part(op, 1)->kind, WEIGHT_INT8);
        assert_int_equal(part(op, 2)->kind, WEIGHT_DENSE); /* the gate of one row */
    } else if (op->kind == OP_LINEAR) {
        for (size_t p = 0; p < op->u.linear.n_parts; p++) {
            assert_int_equal(part(op, p)->kind, WEIGHT_INT8);
        }
    } else if (op->kind == OP_EXPERTS) {
        assert_int_equal(op->u.experts.experts[0].gate.kind, WEIGHT_INT4); /* as stored */
    }
}

static void run(struct eval_result *r, const char *dir, enum dense_quant quant, size_t *n_bytes,
                bool check_ops)
{
    const struct test_setup s = {.dense_quant = quant};
    const struct eval_options o = {.want_logits = true};
    struct test_model t;
    struct error err;
    size_t n_ops;
    const struct op *ops;

    test_model_open(&t, dir, &s);
    *n_bytes = model_weight_bytes(t.m);
    ops = model_plan(t.m, &n_ops);
    for (size_t i = 0; check_ops && i < n_ops; i++) {
        check_op(&ops[i]);
    }
    assert_int_equal(eval_run(r, t.m, TOKENS, N_TOKENS, &o, &err), OK);
    test_model_close(&t);
}

/* int8 has steps of 1/127 of a group's largest value: about half a percent of noise per matrix. These
 * tokens are no text, so some routers of the demo model are undecided and turn noise into another
 * expert; what it means for text is measured by bench_quality_test. */
static void compare(const char *dir, bool check_ops, bool is_smaller)
{
    struct eval_result dense, int8;
    size_t dense_bytes, int8_bytes;
    double error;

    run(&dense, dir, DENSE_QUANT_NONE, &dense_bytes, false);
    run(&int8, dir, DENSE_QUANT_INT8, &int8_bytes, check_ops);
    error = relative_error(int8.logits, dense.logits, N_TOKENS * dense.vocab);
    print_message("%s: %zu to %zu bytes, error of the logits %.4f\n", dir, dense_bytes, int8_bytes,
                  error);
    assert_true(error > 0 && error < 0.08);
    assert_true(is_smaller == (int8_bytes < dense_bytes));
    eval_result_release(&dense);
    eval_result_release(&int8);
}

static void test_demo_model(void **state)
{
    (void)state;
    compare(RILL_DIR, true, true);
}

/* The dense fixture has tied embeddings: the table stays and the head gets a copy. */
static void test_tied(void **state)
{
    const struct test_setup s = {.dense_quant = DENSE_QUANT_INT8};
    struct test_model t;
    const struct op *ops;
    struct buf text;
    char path[512];
    size_t n_ops;

    (void)state;
    fixture_path(path, "tiny-qwen3_5-dense", "");
    test_model_open(&t, path, &s);
    ops = model_plan(t.m, &n_ops);
    assert_int_equal(ops[0].kind, OP_EMBED);
    assert_int_equal(ops[0].u.embed.table.kind, WEIGHT_DENSE);
    assert_string_equal(ops[n_ops - 2].name, "lm_head");
    assert_int_equal(part(&ops[n_ops - 2], 0)->kind, WEIGHT_INT8);
    assert_int_equal(part(&ops[n_ops - 2], 0)->n_out, ops[0].u.embed.table.n_out);
    buf_init(&text);
    model_print_dtypes(t.m, &text);
    assert_non_null(strstr(buf_cstr(&text), "int8 g"));
    buf_release(&text);
    test_model_close(&t);
    compare(path, false, true);
}

/* All fixtures load and compute, the quantised ones too. */
static void test_all_fixtures(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FIXTURES; i++) {
        struct eval_result r;
        char path[512];
        size_t n_bytes;

        fixture_path(path, fixture_names[i], "");
        run(&r, path, DENSE_QUANT_INT8, &n_bytes, false);
        assert_int_equal(r.bad_layer, -1);
        eval_result_release(&r);
    }
}

static void test_planned_bytes(void **state)
{
    (void)state;
    assert_int_equal(dense_quant_bytes(1280), 1280 + 10 * 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_demo_model),
        cmocka_unit_test(test_tied),
        cmocka_unit_test(test_all_fixtures),
        cmocka_unit_test(test_planned_bytes),
    };
    return cmocka_run_group_tests_name("dense_quant", tests, NULL, NULL);
}
