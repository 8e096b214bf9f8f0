/* shape_cost_test.c - bytes and arithmetic per token of a published model, from its op plan.
 *
 * Place:  cli, cmocka; beside the table of shapes, for op_cost.h and op_plan.h together.
 * Idea:   the plan of Qwen3.5-35B-A3B with GPTQ int4 experts is built from its configuration with
 *         matrices that have sizes and no content, over a backend that accepts everything. What the
 *         accounting then says must be what one computes from the sizes by hand.
 * Source: the hand-made sums: 2,946,429,568 parameters read per token, of which 1,006,632,960 are
 *         routed experts of 4.125 bits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/op_cost.h"
#include "base/json.h"
#include "cli/model_shapes.h"
#include "cli/model_texts.h"
#include "model/op_plan.h"

static enum status accept_check(struct backend *be, struct op *op, struct error *err)
{
    (void)be;
    (void)op;
    (void)err;
    return OK;
}

static enum status accept_prepare(struct backend *be, const struct op *ops, size_t n_ops,
                                  size_t rows_max, size_t context_max, struct error *err)
{
    (void)be;
    (void)ops;
    (void)n_ops;
    (void)rows_max;
    (void)context_max;
    (void)err;
    return OK;
}

static void *plain_new(struct backend *be, size_t n_bytes)
{
    (void)be;
    return malloc(n_bytes);
}

static void plain_free(struct backend *be, void *data)
{
    (void)be;
    free(data);
}

static void plain_write(struct backend *be, void *dst, const void *host, size_t n_bytes)
{
    (void)be;
    memcpy(dst, host, n_bytes);
}

struct rig {
    struct backend_ops ops;
    struct backend be;
    struct model_config config;
    struct model_spec spec;
    struct model_weights weights;
    struct op_plan plan;
    struct state_pools pools;
};

static void read_config(struct rig *r, const char *shape_name)
{
    struct model_shape shape;
    struct error err = {0};
    struct json_object *json = NULL;
    struct buf text;

    assert_int_equal(model_shape_find(&shape, shape_name, &err), OK);
    struct model_variant variant = model_variant_default(&shape);
    struct model_text_input in = {.shape = &shape, .variant = &variant};

    buf_init(&text);
    for (size_t i = 0; i < model_texts_count; i++) {
        if (strcmp(model_texts[i].name, "config.json") == 0) {
            model_texts[i].write(&text, &in);
        }
    }
    assert_true(buf_ok(&text) && text.len > 0);
    assert_int_equal(json_parse(&json, text.data, text.len, &err), OK);
    if (model_config_read(&r->config, json, NULL, &err) != OK) {
        fail_msg("%s", err.text);
    }
    json_object_put(json);
    buf_release(&text);
}

static void make_weights(struct rig *r)
{
    static const uint8_t content[1];

    r->weights.matrices = calloc(r->spec.n_matrices, sizeof *r->weights.matrices);
    r->weights.vectors = calloc(r->spec.n_vectors, sizeof *r->weights.vectors);
    assert_true(r->weights.matrices && r->weights.vectors);
    for (size_t i = 0; i < r->spec.n_matrices; i++) {
        const struct spec_matrix *m = &r->spec.matrices[i];
        bool is_expert = m->weight_class == CLASS_EXPERT;

        r->weights.matrices[i] = (struct weight){.kind = is_expert ? WEIGHT_INT4 : WEIGHT_DENSE,
                                                 .dtype = is_expert ? DTYPE_F16 : DTYPE_BF16,
                                                 .n_out = m->n_out,
                                                 .n_in = m->n_in,
                                                 .data = content,
                                                 .scales = content,
                                                 .group = is_expert ? 128 : 0};
    }
}

static int setup(void **state)
{
    struct rig *r = calloc(1, sizeof *r);
    const struct dtype_table dtypes = {DTYPE_BF16, DTYPE_BF16, DTYPE_F32, DTYPE_BF16};
    const struct op_plan_options o = {
        .rows_max = 1, .out_rows_max = 1, .context_max = 4096, .gdn_chunk_min = 16};
    struct error err = {0};

    assert_non_null(r);
    r->ops = (struct backend_ops){.check = accept_check,
                                  .prepare = accept_prepare,
                                  .buffer_new = plain_new,
                                  .buffer_free = plain_free,
                                  .write = plain_write};
    r->be.ops = &r->ops;
    read_config(r, "qwen3.5-35b-a3b");
    assert_int_equal(model_spec_build(&r->spec, &r->config, &err), OK);
    make_weights(r);
    if (op_plan_build(&r->plan, &r->be, &r->spec, &r->weights, &dtypes, &o, &err) != OK) {
        fail_msg("%s", err.text);
    }
    r->pools = (struct state_pools){.conv_dtype = DTYPE_BF16,
                                    .recurrent_dtype = DTYPE_F32,
                                    .kv_dtype = DTYPE_BF16,
                                    .conv_elems = 3 * 8192,
                                    .recurrent_elems = 32 * 128 * 128,
                                    .kv_elems = 2 * KV_PAGE_TOKENS * 256};
    *state = r;
    return 0;
}

static int teardown(void **state)
{
    struct rig *r = *state;

    op_plan_release(&r->plan);
    weights_release(&r->weights);
    model_spec_release(&r->spec);
    model_config_release(&r->config);
    free(r);
    return 0;
}

static void assert_near(double got, double want, double relative)
{
    if (!(fabs(got - want) <= relative * want)) {
        fail_msg("%.0f is not %.0f", got, want);
    }
}

static void test_one_token(void **state)
{
    struct rig *r = *state;
    const double depth = 1000;
    struct cost_step step = {
        .n_seqs = 1, .n_rows = 1, .depth = (size_t)depth, .n_out_rows = 1, .n_touched = 8};
    struct op_cost c = plan_cost(r->plan.ops, r->plan.n_ops, &step, &r->pools);

    assert_true(c.bytes[COST_EXPERT] == 519045120);
    assert_true(c.bytes[COST_STATE] == 125829120 + 2949120);
    assert_true(c.bytes[COST_KV] == 20480 * (depth + 1) + 20480); /* read, and the new token */
    /* all weights 4,398,638,336 less the experts; vectors are held as float32 here */
    assert_near(c.bytes[COST_DENSE], 4398638336.0 - 519045120.0, 1e-3);
    assert_true(c.bytes[COST_DENSE] >= 4398638336.0 - 519045120.0);
    assert_near(c.flop, 2 * 2946429568.0 + 7.0 * 128 * 128 * 32 * 30 + 163840 * (depth + 1), 1e-3);
    assert_near(c.flop_quantised, 2 * 1006632960.0, 1e-9);
}

/* Weights once per step, states and KV once per sequence, arithmetic once per row. */
static void test_batch_and_prompt(void **state)
{
    struct rig *r = *state;
    struct cost_step one = {.n_seqs = 1, .n_rows = 1, .depth = 64, .n_out_rows = 1, .n_touched = 8},
                     batch = {.n_seqs = 8,
                              .n_rows = 8,
                              .depth = 64,
                              .n_out_rows = 8,
                              .n_touched = 57},
                     prompt = {.n_seqs = 1, .n_rows = 512, .n_out_rows = 1, .n_touched = 256};
    struct op_cost c1 = plan_cost(r->plan.ops, r->plan.n_ops, &one, &r->pools);
    struct op_cost c8 = plan_cost(r->plan.ops, r->plan.n_ops, &batch, &r->pools);
    struct op_cost cp = plan_cost(r->plan.ops, r->plan.n_ops, &prompt, &r->pools);

    assert_true(c8.bytes[COST_STATE] == 8 * c1.bytes[COST_STATE]);
    assert_true(c8.bytes[COST_KV] == 8 * c1.bytes[COST_KV]);
    assert_near(c8.bytes[COST_EXPERT], c1.bytes[COST_EXPERT] * 57 / 8, 1e-12);
    assert_near(c8.bytes[COST_DENSE], c1.bytes[COST_DENSE] + 7 * 2048 * 2, 1e-12); /* embeddings */
    assert_near(c8.flop, 8 * c1.flop, 1e-12);

    assert_true(cp.bytes[COST_STATE] == c1.bytes[COST_STATE]);
    assert_true(cp.bytes[COST_KV] == 20480.0 * (512 + 512));
    assert_near(cp.bytes[COST_EXPERT], 40 * 256 * 1622016.0, 1e-12);
    /* the head reads one row only; attention is half of a square */
    assert_near(cp.flop,
                512 * (2 * (2946429568.0 - 508559360) + 7.0 * 128 * 128 * 32 * 30) +
                    2 * 508559360.0 + 163840.0 * 512 * 513 / 2,
                1e-3);
}

/* A step without logits leaves the head alone. */
static void test_no_logits(void **state)
{
    struct rig *r = *state;
    struct cost_step with = {.n_seqs = 1, .n_rows = 64, .n_out_rows = 1, .n_touched = 256},
                     without = with;
    struct op_cost a, b;

    without.n_out_rows = 0;
    a = plan_cost(r->plan.ops, r->plan.n_ops, &with, &r->pools);
    b = plan_cost(r->plan.ops, r->plan.n_ops, &without, &r->pools);
    assert_near(a.bytes[COST_DENSE] - b.bytes[COST_DENSE], 1017118720 + 2048 * 4, 1e-9);
    assert_near(a.flop - b.flop, 2 * 508559360.0, 1e-9);
}

static void test_uniform_touched(void **state)
{
    (void)state;
    assert_true(fabs(cost_uniform_touched(256, 8, 1) - 8) < 1e-9);
    assert_true(fabs(cost_uniform_touched(256, 8, 8) - 57) < 1);
    assert_true(fabs(cost_uniform_touched(256, 8, 32) - 163) < 1);
    assert_true(cost_uniform_touched(256, 8, 4096) <= 256);
    assert_true(cost_uniform_touched(0, 0, 1) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_token),
        cmocka_unit_test(test_batch_and_prompt),
        cmocka_unit_test(test_no_logits),
        cmocka_unit_test(test_uniform_touched),
    };
    return cmocka_run_group_tests_name("shape_cost", tests, setup, teardown);
}
