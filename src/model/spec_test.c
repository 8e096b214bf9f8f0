/* spec_test.c - descriptions and type tables: what family readers write, what is refused. */
#include "model/model_testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/dtype_table.h"
#include "model/op_plan.h"
#include "model/spec.h"

static void read_fixture_config(struct model_config *c, const char *name)
{
    struct json_object *o;
    char path[512];
    struct error err = {0};

    fixture_path(path, name, "config.json");
    assert_int_equal(json_parse_file(&o, path, 1 << 20, &err), OK);
    assert_int_equal(model_config_read(c, o, NULL, &err), OK);
    json_object_put(o);
}

static const struct spec_matrix *matrix_named(const struct model_spec *spec, matrix_slot slot,
                                              const char *name)
{
    assert_in_range(slot, 0, spec->n_matrices - 1);
    assert_string_equal(spec->matrices[slot].name, name);
    return &spec->matrices[slot];
}

static void test_moe_layers(void **state)
{
    struct model_config c;
    struct model_spec spec;
    const struct branch_spec *mixer, *ffn;
    const struct spec_matrix *m;
    struct error err;

    (void)state;
    read_fixture_config(&c, "tiny-qwen3_5-moe");
    assert_int_equal(model_spec_build(&spec, &c, &err), OK);
    assert_int_equal(spec.n_layers, 4);
    assert_int_equal(spec.n_gdn_layers, 3);
    assert_int_equal(spec.n_attn_layers, 1);
    assert_int_not_equal(spec.head, spec.embed);
    mixer = &spec.layers[2].branches[0];
    assert_int_equal(mixer->blocks[0].kind, BLOCK_GDN);
    assert_int_equal(mixer->blocks[0].u.gdn.gdn_layer, 2);
    m = matrix_named(&spec, mixer->blocks[0].u.gdn.qkv, "layers.2.linear_attn.in_proj_qkv");
    assert_int_equal(m->n_out, 256);
    assert_null(m->rows);
    mixer = &spec.layers[3].branches[0];
    assert_int_equal(mixer->blocks[0].kind, BLOCK_ATTENTION);
    assert_int_equal(mixer->blocks[0].u.attention.rope.dims, 16);
    m = matrix_named(&spec, mixer->blocks[0].u.attention.q, "layers.3.self_attn.q_proj");
    assert_int_equal(m->n_out, 4 * 64 * 2); /* query and gate */
    ffn = &spec.layers[1].branches[1];
    assert_int_equal(ffn->blocks[0].kind, BLOCK_MOE);
    assert_true(ffn->blocks[0].u.moe.renormalise);
    m = matrix_named(&spec, ffn->blocks[0].u.moe.expert0 + 3 * 5 + 1,
                     "layers.1.mlp.experts.5.up_proj");
    assert_int_equal(m->stack_idx, 5);
    assert_int_equal(m->stack_row0, 128); /* after the gate's rows */
    model_spec_release(&spec);
    model_config_release(&c);
}

/* The rows of the fused projections against the formulas of their layout. */
static void test_qwen3_next_rows(void **state)
{
    enum { NK = 2, R = 2, DK = 32, DV = 32, BLOCK = 2 * DK + 2 * R * DV };
    struct model_config c;
    struct model_spec spec;
    const struct gdn_spec *g;
    const int32_t *qkv, *z, *a, *b;
    struct error err;

    (void)state;
    read_fixture_config(&c, "tiny-qwen3_next");
    assert_int_equal(model_spec_build(&spec, &c, &err), OK);
    g = &spec.layers[1].branches[0].blocks[0].u.gdn;
    qkv = matrix_named(&spec, g->qkv, "layers.1.linear_attn.in_proj_qkvz")->rows;
    z = matrix_named(&spec, g->z, "layers.1.linear_attn.in_proj_qkvz")->rows;
    a = matrix_named(&spec, g->a, "layers.1.linear_attn.in_proj_ba")->rows;
    b = matrix_named(&spec, g->b, "layers.1.linear_attn.in_proj_ba")->rows;
    assert_int_equal(spec.matrices[g->qkv].n_file_rows, NK * BLOCK);
    for (int head = 0; head < NK; head++) {
        for (int j = 0; j < DK; j++) {
            assert_int_equal(qkv[head * DK + j], head * BLOCK + j);
            assert_int_equal(qkv[NK * DK + head * DK + j], head * BLOCK + DK + j);
        }
    }
    for (int head = 0; head < NK * R; head++) {
        int block = head / R * BLOCK + 2 * DK;
        for (int j = 0; j < DV; j++) {
            assert_int_equal(qkv[2 * NK * DK + head * DV + j], block + head % R * DV + j);
            assert_int_equal(z[head * DV + j], block + R * DV + head % R * DV + j);
        }
        assert_int_equal(b[head], head / R * 2 * R + head % R);
        assert_int_equal(a[head], head / R * 2 * R + R + head % R);
    }
    model_spec_release(&spec);
    model_config_release(&c);
}

static void test_tied_and_dense(void **state)
{
    struct model_config c;
    struct model_spec spec;
    struct error err;

    (void)state;
    read_fixture_config(&c, "tiny-qwen3_5-dense");
    assert_int_equal(model_spec_build(&spec, &c, &err), OK);
    assert_int_equal(spec.head, spec.embed);
    assert_int_equal(spec.layers[0].branches[1].blocks[0].kind, BLOCK_DENSE);
    assert_int_equal(spec.layers[0].branches[1].blocks[0].u.dense.width, 256);
    model_spec_release(&spec);
    model_config_release(&c);
}

static void test_bad_sizes(void **state)
{
    struct model_config c;
    struct model_spec spec;
    struct error err;

    (void)state;
    read_fixture_config(&c, "tiny-qwen3_5-moe");
    c.linear_n_value_heads = 3; /* of 2 key heads */
    assert_int_equal(model_spec_build(&spec, &c, &err), ERR_FORMAT);
    assert_non_null(strstr(err.text, "linear_num_value_heads"));
    model_spec_release(&spec);
    c.linear_n_value_heads = 4;
    c.n_experts_per_token = 9; /* of 8 */
    assert_int_equal(model_spec_build(&spec, &c, &err), ERR_FORMAT);
    assert_non_null(strstr(err.text, "num_experts_per_tok"));
    model_spec_release(&spec);
    c.n_experts_per_token = 2;
    c.rope.partial_factor = 0.01;
    assert_int_equal(model_spec_build(&spec, &c, &err), ERR_FORMAT);
    assert_non_null(strstr(err.text, "partial_rotary_factor"));
    model_spec_release(&spec);
    c.rope.partial_factor = 0.25;
    c.n_experts = CONFIG_EXPERTS_MAX; /* believed, but more than there is room for */
    c.n_layers = CONFIG_LAYERS_MAX;
    assert_int_equal(model_spec_build(&spec, &c, &err), ERR_LIMIT);
    model_spec_release(&spec);
    model_config_release(&c);
}

static void test_rope(void **state)
{
    struct rope_spec rope = {.dims = 64, .config = {.theta = 1e7}};
    float inv[32], scale;

    (void)state;
    rope_frequencies(inv, &scale, &rope);
    assert_true(scale == 1.0f && inv[0] == 1.0f);
    for (int i = 0; i < 32; i++) {
        assert_true(fabs(inv[i] / pow(1e7, -i / 32.0) - 1) < 1e-6);
    }

    /* YaRN with factor 4 over 262,144 positions: below dimension 14 nothing changes, from 22 on all
     * is stretched by 4, in between a straight ramp. Values worked out by hand. */
    rope.config.is_yarn = true;
    rope.config.factor = 4;
    rope.config.beta_fast = 32;
    rope.config.beta_slow = 1;
    rope.config.original_positions = 262144;
    rope_frequencies(inv, &scale, &rope);
    assert_true(fabsf(scale - 1.1386294f) < 1e-6f);
    assert_true(fabs(inv[0] - 1) < 1e-7);
    assert_true(fabs(inv[14] / pow(1e7, -14 / 32.0) - 1) < 1e-6);
    assert_true(fabs(inv[18] / (pow(1e7, -18 / 32.0) * (1 - 0.5 * 0.75)) - 1) < 1e-6);
    assert_true(fabs(inv[22] / (pow(1e7, -22 / 32.0) / 4) - 1) < 1e-6);
    assert_true(fabs(inv[31] / (pow(1e7, -31 / 32.0) / 4) - 1) < 1e-6);
    rope.config.attention_factor = 1.25;
    rope_frequencies(inv, &scale, &rope);
    assert_true(scale == 1.25f);
}

static void test_dtypes(void **state)
{
    struct model_options o = {0};
    struct model_config c = {0};
    struct dtype_table t;
    struct error err;

    (void)state;
    assert_int_equal(dtype_table_decide(&t, &o, &c, &err), OK);
    assert_int_equal(t.compute, DTYPE_F32);
    assert_int_equal(t.conv, DTYPE_F32);
    assert_int_equal(t.kv, DTYPE_F32);
    assert_int_equal(t.recurrent, DTYPE_F32);

    /* The convolution state follows the activations, whatever else the config says. */
    c.dtype = DTYPE_BF16;
    c.ssm_dtype = DTYPE_BF16;
    o.compute_dtype = DTYPE_F16;
    assert_int_equal(dtype_table_decide(&t, &o, &c, &err), OK);
    assert_int_equal(t.conv, DTYPE_F16);
    assert_int_equal(t.kv, DTYPE_F16);
    assert_int_equal(t.recurrent, DTYPE_BF16);
    o.recurrent_dtype = DTYPE_F32;
    o.kv_dtype = DTYPE_F8_E5M2;
    assert_int_equal(dtype_table_decide(&t, &o, &c, &err), OK);
    assert_int_equal(t.recurrent, DTYPE_F32);
    assert_int_equal(t.kv, DTYPE_F8_E5M2);

    o.compute_dtype = DTYPE_F8_E4M3;
    assert_int_equal(dtype_table_decide(&t, &o, &c, &err), ERR_UNSUPPORTED);
    assert_string_equal(err.param, "--dtype");
    o.compute_dtype = DTYPE_BF16;
    o.kv_dtype = DTYPE_I8;
    assert_int_equal(dtype_table_decide(&t, &o, &c, &err), ERR_UNSUPPORTED);
    assert_string_equal(err.param, "--kv-cache-dtype");
    o.kv_dtype = DTYPE_NONE;
    o.recurrent_dtype = DTYPE_F16;
    assert_int_equal(dtype_table_decide(&t, &o, &c, &err), ERR_UNSUPPORTED);
    assert_string_equal(err.param, "--mamba-ssm-dtype");
}

static size_t count_lines(const char *text)
{
    size_t n = 0;

    for (; *text; text++) {
        n += *text == '\n';
    }
    return n;
}

static void test_prints(void **state)
{
    struct test_setup setup = {.compute = DTYPE_BF16, .kv = DTYPE_F8_E4M3};
    struct test_model t;
    struct buf text;
    char dir[512];

    (void)state;
    buf_init(&text);
    fixture_path(dir, "tiny-qwen3_5-moe-gptq-int4", "");
    test_model_open(&t, dir, &setup);
    model_print_dtypes(t.m, &text);
    assert_non_null(strstr(buf_cstr(&text), "fp8_e4m3"));
    assert_non_null(strstr(buf_cstr(&text), "96 matrices")); /* 4 layers, 8 experts, 3 each */
    buf_clear(&text);
    model_print_plan(t.m, &text);
    /* embedding, 3 gated delta nets of 5, one attention of 5, 4 FFNs of 7 and a check each, 4 at the end;
     * "norm" is the first of each branch */
    assert_int_equal(count_lines(buf_cstr(&text)), 1 + 3 * 5 + 5 + 4 * 7 + 4 + 4);
    buf_release(&text);
    test_model_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moe_layers),     cmocka_unit_test(test_qwen3_next_rows),
        cmocka_unit_test(test_tied_and_dense), cmocka_unit_test(test_bad_sizes),
        cmocka_unit_test(test_rope),           cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_prints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
