/* weights_test.c - strict loading: what is found by rule, what is refused by name.
 *
 * Changed copies of the fixtures are written to a temporary folder and opened as a user would. */
#include "model/model_testing.h"

#include <stdlib.h>
#include <string.h>

#include "formats/gptq.h"

enum { VOCAB = 512, N_TOKENS = 20 };

static void logits_of(float *out, const char *dir)
{
    struct test_setup setup = {.compute = DTYPE_F32};
    struct eval_options o = {.want_logits = true};
    struct test_model t;
    struct eval_result r;
    int32_t tokens[N_TOKENS];
    struct error err = {0};

    for (int32_t i = 0; i < N_TOKENS; i++) {
        tokens[i] = (i * 53 + 7) % 400;
    }
    test_model_open(&t, dir, &setup);
    if (eval_run(&r, t.m, tokens, N_TOKENS, &o, &err) != OK) {
        fail_msg("%s", err.text);
    }
    memcpy(out, r.logits, sizeof *out * N_TOKENS * VOCAB);
    eval_result_release(&r);
    test_model_close(&t);
}

static void fixture_logits(float *out, const char *name)
{
    char dir[512];

    fixture_path(dir, name, "");
    logits_of(out, dir);
}

static void edit_fixture(struct checkpoint_edit *e, const char *name)
{
    char dir[512];

    fixture_path(dir, name, "");
    edit_open(e, dir);
}

static enum status refused(struct checkpoint_edit *e, struct error *err)
{
    struct test_setup setup = {0};
    struct test_dir dir;
    enum status rc;

    test_dir_open(&dir);
    edit_write(e, dir.path);
    rc = test_model_refused(dir.path, &setup, err);
    test_dir_close(&dir);
    return rc;
}

static void expect_text(const struct error *err, const char *part)
{
    if (!strstr(err->text, part)) {
        fail_msg("'%s' does not speak of '%s'", err->text, part);
    }
}

/* ---- prefixes and families that are not ours ---- */

static bool starts(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

/* Renames the text model's tensors from their present prefix; the other families stay or go. */
static void restyle(struct checkpoint_edit *e, const char *prefix, bool keep_others)
{
    static const char old[] = "model.language_model.";

    for (size_t i = 0; i < e->n;) {
        char name[300];
        const char *now = e->tensors[i].name;

        if (starts(now, old)) {
            snprintf(name, sizeof name, "%s%s", prefix, now + strlen(old));
            edit_rename(&e->tensors[i], name);
        } else if (!keep_others && (starts(now, "mtp.") || starts(now, "model.visual."))) {
            snprintf(name, sizeof name, "%s", now);
            edit_drop(e, name);
            continue; /* the last one stands here now */
        }
        i++;
    }
}

static void test_prefixes(void **state)
{
    static const char *const prefixes[] = {"model.language_model.", "language_model.model.",
                                           "language_model.", "model.", ""};
    static float want[N_TOKENS * VOCAB], got[N_TOKENS * VOCAB];

    (void)state;
    fixture_logits(want, "tiny-qwen3_5-moe");
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        for (int keep = 0; keep < 2; keep++) {
            struct checkpoint_edit e;
            struct test_dir dir;

            edit_fixture(&e, "tiny-qwen3_5-moe");
            restyle(&e, prefixes[i], keep);
            test_dir_open(&dir);
            edit_write(&e, dir.path);
            logits_of(got, dir.path);
            assert_memory_equal(got, want, sizeof got);
            test_dir_close(&dir);
            edit_close(&e);
        }
    }
}

static void test_unknown_prefixes(void **state)
{
    struct checkpoint_edit e;
    struct error err;

    (void)state;
    edit_fixture(&e, "tiny-qwen3_5-moe");
    restyle(&e, "transformer.", false); /* nothing matches */
    assert_int_equal(refused(&e, &err), ERR_FORMAT);
    expect_text(&err, "embed_tokens");
    edit_close(&e);

    edit_fixture(&e, "tiny-qwen3_5-moe"); /* two models in one file */
    {
        const size_t shape[] = {512, 128};
        edit_add(&e, "model.embed_tokens.weight", DTYPE_BF16, 2, shape);
    }
    assert_int_equal(refused(&e, &err), ERR_FORMAT);
    expect_text(&err, "'model.embed_tokens'");
    edit_close(&e);
}

static void test_skipped_are_counted(void **state)
{
    struct test_setup setup = {0};
    struct test_model t;
    struct buf text;
    char dir[512];

    (void)state;
    buf_init(&text);
    fixture_path(dir, "tiny-qwen3_5-moe", "");
    test_model_open(&t, dir, &setup);
    model_print_skipped(t.m, &text);
    assert_non_null(strstr(buf_cstr(&text), "vision: 33 tensors"));
    assert_non_null(strstr(buf_cstr(&text), "draft head (mtp): 19 tensors"));
    buf_release(&text);
    test_model_close(&t);
}

/* ---- missing, extra, wrong ---- */

static void test_missing(void **state)
{
    static const char *const names[] = {
        "model.language_model.layers.2.linear_attn.dt_bias",
        "model.language_model.layers.3.self_attn.q_norm.weight",
        "model.language_model.layers.0.mlp.experts.down_proj",
        "model.language_model.layers.1.linear_attn.in_proj_z.weight",
        "model.language_model.norm.weight",
        "lm_head.weight"};
    struct checkpoint_edit e;
    struct error err;

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        edit_fixture(&e, "tiny-qwen3_5-moe");
        edit_drop(&e, names[i]);
        assert_int_equal(refused(&e, &err), ERR_FORMAT);
        if (strstr(names[i], "experts")) { /* a stack stands for the experts one by one */
            expect_text(&err, "8 tensors are missing");
            expect_text(&err, "layers.0.mlp.experts.0.down_proj.weight");
        } else {
            expect_text(&err, "1 tensors are missing");
            expect_text(&err, names[i]);
        }
        edit_close(&e);
    }
}

static void test_extra(void **state)
{
    const size_t shape[] = {4};
    struct checkpoint_edit e;
    struct error err;

    (void)state;
    edit_fixture(&e, "tiny-qwen3_5-dense");
    for (int i = 0; i < 10; i++) { /* ten strangers: eight are named, all are counted */
        char name[64];
        snprintf(name, sizeof name, "model.layers.0.strange.%d", i);
        edit_add(&e, name, DTYPE_F32, 1, shape);
    }
    assert_int_equal(refused(&e, &err), ERR_FORMAT);
    expect_text(&err, "10 tensors");
    expect_text(&err, "model.layers.0.strange.7");
    assert_null(strstr(err.text, "strange.8"));
    edit_close(&e);

    edit_fixture(&e, "tiny-qwen3_5-dense"); /* one layer more than the config says */
    json_object_object_add(e.config, "num_hidden_layers", json_object_new_int(3));
    json_object_object_del(e.config, "layer_types");
    assert_int_equal(refused(&e, &err), ERR_FORMAT);
    expect_text(&err, "model.layers.3.");
    edit_close(&e);
}

static void test_wrong_shape_or_type(void **state)
{
    struct checkpoint_edit e;
    struct tensor *t;
    struct error err;

    (void)state;
    edit_fixture(&e, "tiny-qwen3_5-dense");
    t = &edit_find(&e, "model.layers.1.mlp.up_proj.weight")->tensor;
    t->shape[0] = 128;
    t->shape[1] = 256;
    assert_int_equal(refused(&e, &err), ERR_FORMAT);
    expect_text(&err, "'model.layers.1.mlp.up_proj.weight' has shape [128, 256], [256, 128]");
    edit_close(&e);

    edit_fixture(&e, "tiny-qwen3_5-dense");
    t = &edit_find(&e, "model.layers.0.linear_attn.conv1d.weight")->tensor;
    t->n_dims = 2;
    t->shape[1] = 4;
    assert_int_equal(refused(&e, &err), ERR_FORMAT);
    expect_text(&err, "[256, 4], [256, 1, 4]");
    edit_close(&e);

    edit_fixture(&e, "tiny-qwen3_5-dense");
    edit_find(&e, "model.layers.0.linear_attn.A_log")->tensor.dtype = DTYPE_I16;
    assert_int_equal(refused(&e, &err), ERR_FORMAT);
    expect_text(&err, "A_log' is stored as int16");
    edit_close(&e);

    edit_fixture(&e, "tiny-qwen3_5-dense");
    t = &edit_find(&e, "model.layers.0.mlp.up_proj.weight")->tensor;
    t->dtype = DTYPE_F8_E4M3; /* half of the bytes: any will do */
    assert_int_equal(refused(&e, &err), ERR_UNSUPPORTED);
    expect_text(&err, "up_proj.weight' is stored as fp8_e4m3");
    edit_close(&e);
}

/* Both forms of one matrix: it is not clear which one counts. */
static void test_plain_and_quantised(void **state)
{
    const size_t shape[] = {128, 128};
    struct checkpoint_edit e;
    struct error err;

    (void)state;
    edit_fixture(&e, "tiny-qwen3_5-moe-gptq-int4");
    edit_add(&e, "model.language_model.layers.0.mlp.experts.0.up_proj.weight", DTYPE_BF16, 2,
             shape);
    assert_int_equal(refused(&e, &err), ERR_FORMAT);
    expect_text(&err, "experts.0.up_proj.weight");
    edit_close(&e);

    edit_fixture(&e, "tiny-qwen3_5-moe-gptq-int4");
    edit_drop(&e, "model.language_model.layers.0.mlp.experts.0.up_proj.scales");
    assert_int_equal(refused(&e, &err), ERR_FORMAT);
    expect_text(&err, "experts.0.up_proj.scales");
    edit_close(&e);

    edit_fixture(&e, "tiny-qwen3_5-moe-gptq-int4");
    json_object_object_del(e.config, "quantization_config");
    assert_int_equal(refused(&e, &err), ERR_FORMAT);
    expect_text(&err, "no quantization_config");
    edit_close(&e);
}

/* ---- forms of the same weights ---- */

/* Replaces the quantised module `base` by its dequantised float32 weights. */
static void dequantise(struct checkpoint_edit *e, struct gptq_config *config, const char *base)
{
    static const char *const parts[] = {"qweight", "scales", "qzeros", "g_idx"};
    struct gptq_settings settings;
    struct gptq_tensors tensors;
    struct gptq_matrix m;
    struct tensor *places[] = {&tensors.qweight, &tensors.scales, &tensors.qzeros, &tensors.g_idx};
    struct error err = {0};
    char name[300];
    size_t shape[2];

    assert_int_equal(gptq_config_for(&settings, config, base, &err), OK);
    for (size_t i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "%s.%s", base, parts[i]);
        *places[i] = edit_find(e, name)->tensor;
    }
    assert_int_equal(gptq_matrix_init(&m, base, &settings, &tensors, NULL, &err), OK);
    for (size_t i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "%s.%s", base, parts[i]);
        edit_drop(e, name);
    }
    shape[0] = m.n_out;
    shape[1] = m.n_in;
    snprintf(name, sizeof name, "%s.weight", base);
    gptq_dequantise(&m, 0, m.n_out, edit_add(e, name, DTYPE_F32, 2, shape));
    gptq_matrix_release(&m);
}

static void compare_close(const float *got, const char *name, double limit)
{
    static float want[N_TOKENS * VOCAB];

    fixture_logits(want, name);
    assert_true(relative_error(got, want, N_TOKENS * VOCAB) <= limit);
}

/* Content decides: some modules plain, their neighbours quantised, with and without act-order; the
 * rules say otherwise and are only warned of. */
static void test_mixed_content(void **state)
{
    static const char *const bases[] = {
        "layers.0.linear_attn.in_proj_qkv", "layers.1.mlp.experts.3.gate_proj",
        "layers.1.mlp.experts.4.down_proj", "layers.3.self_attn.v_proj",
        "layers.2.mlp.shared_expert.up_proj"};
    static float got[N_TOKENS * VOCAB];
    struct checkpoint_edit e;
    struct gptq_config *config;
    struct test_dir dir;
    struct error err;

    (void)state;
    edit_fixture(&e, "tiny-qwen3_5-moe-gptq-int4-actorder");
    assert_int_equal(gptq_config_new(&config, checkpoint_quantization(e.ck), &err), OK);
    for (size_t i = 0; i < sizeof bases / sizeof bases[0]; i++) {
        char base[256];
        snprintf(base, sizeof base, "model.language_model.%s", bases[i]);
        dequantise(&e, config, base);
    }
    gptq_config_free(config);
    test_dir_open(&dir);
    edit_write(&e, dir.path);
    logits_of(got, dir.path);
    compare_close(got, "tiny-qwen3_5-moe-gptq-int4-actorder", 1e-5);
    test_dir_close(&dir);
    edit_close(&e);
}

static void read_log(char *out, size_t n, const struct test_dir *dir)
{
    FILE *f = fopen(dir->log_path, "r");
    size_t len;

    assert_non_null(f);
    len = fread(out, 1, n - 1, f);
    out[len] = 0;
    fclose(f);
}

/* A rule that excludes what the file quantises: the file wins, with a word. */
static void test_rule_against_content(void **state)
{
    static float got[N_TOKENS * VOCAB];
    char text[8192];
    struct checkpoint_edit e;
    struct json_object *quantization, *dynamic;
    struct test_setup setup = {0};
    struct test_model t;
    struct test_dir dir;

    (void)state;
    edit_fixture(&e, "tiny-qwen3_5-moe-gptq-int4");
    assert_true(json_object_object_get_ex(e.config, "quantization_config", &quantization));
    assert_true(json_object_object_get_ex(quantization, "dynamic", &dynamic));
    json_object_object_add(dynamic, "-:.*experts\\.5\\..*", json_object_new_object());
    test_dir_open(&dir);
    edit_write(&e, dir.path);
    setup.log = &dir.log;
    test_model_open(&t, dir.path, &setup);
    test_model_close(&t);
    read_log(text, sizeof text, &dir);
    assert_non_null(strstr(text, "12 matrices are quantised though the rules exclude them"));
    assert_null(strstr(text, "read as quantised")); /* one line for all of them is enough */
    logits_of(got, dir.path);
    compare_close(got, "tiny-qwen3_5-moe-gptq-int4", 0);
    test_dir_close(&dir);
    edit_close(&e);
}

/* Groups of 16 inputs do not fit the kernels' blocks: kept as float32, with one log line. The same
 * weights, written with each group's scale and zero twice. */
static void test_groups_without_kernel(void **state)
{
    static const char base[] = "model.language_model.layers.0.mlp.experts.2.up_proj";
    static float got[N_TOKENS * VOCAB];
    struct checkpoint_edit e;
    struct json_object *quantization, *dynamic, *rule;
    struct test_setup setup = {0};
    struct test_model t;
    struct test_dir dir;
    char name[300], text[8192];
    const uint16_t *scales;
    uint16_t *scales16;
    const int32_t *zeros;
    int32_t *zeros16, *g_idx;
    const size_t scale_shape[] = {8, 128}, zero_shape[] = {8, 16};

    (void)state;
    edit_fixture(&e, "tiny-qwen3_5-moe-gptq-int4"); /* one group of 128 */
    snprintf(name, sizeof name, "%s.scales", base);
    scales = edit_find(&e, name)->tensor.data;
    edit_drop(&e, name);
    scales16 = edit_add(&e, name, DTYPE_F16, 2, scale_shape);
    snprintf(name, sizeof name, "%s.qzeros", base);
    zeros = edit_find(&e, name)->tensor.data;
    edit_drop(&e, name);
    zeros16 = edit_add(&e, name, DTYPE_I32, 2, zero_shape);
    for (size_t group = 0; group < 8; group++) {
        memcpy(scales16 + group * 128, scales, 128 * sizeof *scales);
        memcpy(zeros16 + group * 16, zeros, 16 * sizeof *zeros);
    }
    snprintf(name, sizeof name, "%s.g_idx", base);
    g_idx = edit_own(edit_find(&e, name));
    for (int32_t i = 0; i < 128; i++) {
        g_idx[i] = i / 16;
    }
    assert_true(json_object_object_get_ex(e.config, "quantization_config", &quantization));
    assert_true(json_object_object_get_ex(quantization, "dynamic", &dynamic));
    rule = json_object_new_object();
    json_object_object_add(rule, "group_size", json_object_new_int(16));
    json_object_object_add(dynamic, "+:.*layers\\.0\\.mlp\\.experts\\.2\\.up_proj", rule);
    test_dir_open(&dir);
    edit_write(&e, dir.path);
    setup.log = &dir.log;
    test_model_open(&t, dir.path, &setup);
    test_model_close(&t);
    read_log(text, sizeof text, &dir);
    assert_non_null(strstr(text, "1 quantised matrices in a form without a kernel"));
    logits_of(got, dir.path);
    compare_close(got, "tiny-qwen3_5-moe-gptq-int4", 1e-5);
    test_dir_close(&dir);
    edit_close(&e);
}

/* ---- quantising plain matrices, to see fused and outer ones quantised ---- */

/* Replaces name.weight [n][k] BF16 by 4-bit groups of 32 (sym) and puts the rounded values into
 * `same`, where they stay plain: the two checkpoints hold the same numbers. */
static void quantise(struct checkpoint_edit *e, struct checkpoint_edit *same, const char *base)
{
    enum { GROUP = 32 };
    char name[300];
    const struct tensor *t;
    size_t n, k, n_groups;
    int32_t *qweight, *qzeros;
    uint16_t *scales;
    float *plain;

    snprintf(name, sizeof name, "%s.weight", base);
    t = &edit_find(e, name)->tensor;
    n = t->shape[0];
    k = t->shape[1];
    n_groups = k / GROUP;
    edit_drop(same, name);
    plain = edit_add(same, name, DTYPE_F32, 2, (const size_t[]){n, k});
    dtype_to_f32(plain, t->dtype, t->data, n * k);
    edit_drop(e, name);
    snprintf(name, sizeof name, "%s.qweight", base);
    qweight = edit_add(e, name, DTYPE_I32, 2, (const size_t[]){k / 8, n});
    snprintf(name, sizeof name, "%s.qzeros", base);
    qzeros = edit_add(e, name, DTYPE_I32, 2, (const size_t[]){n_groups, n / 8});
    snprintf(name, sizeof name, "%s.scales", base);
    scales = edit_add(e, name, DTYPE_F16, 2, (const size_t[]){n_groups, n});
    memset(qzeros, 0x77, n_groups * (n / 8) * sizeof *qzeros);
    for (size_t row = 0; row < n; row++) {
        for (size_t group = 0; group < n_groups; group++) {
            float *w = plain + row * k + group * GROUP, largest = 0, scale;
            for (size_t i = 0; i < GROUP; i++) {
                float a = w[i] < 0 ? -w[i] : w[i];
                largest = a > largest ? a : largest;
            }
            scale = dtype_round(DTYPE_F16, largest / 7);
            dtype_store(DTYPE_F16, scales, group * n + row, scale);
            for (size_t i = 0; i < GROUP; i++) {
                size_t at = group * GROUP + i;
                int q = scale > 0 ? (int)(w[i] / scale + (w[i] < 0 ? -0.5f : 0.5f)) + 8 : 8;
                q = q < 0 ? 0 : q > 15 ? 15 : q;
                w[i] = scale * (float)(q - 8);
                qweight[at / 8 * n + row] =
                    (int32_t)((uint32_t)qweight[at / 8 * n + row] | (uint32_t)q << (at % 8 * 4));
            }
        }
    }
}

static void set_gptq(struct checkpoint_edit *e)
{
    struct json_object *q = json_object_new_object();

    json_object_object_add(q, "quant_method", json_object_new_string("gptq"));
    json_object_object_add(q, "bits", json_object_new_int(4));
    json_object_object_add(q, "group_size", json_object_new_int(32));
    json_object_object_add(q, "sym", json_object_new_boolean(1));
    json_object_object_add(q, "desc_act", json_object_new_boolean(0));
    json_object_object_add(q, "lm_head", json_object_new_boolean(1));
    json_object_object_add(e->config, "quantization_config", q);
}

/* Quantised: the fused projections of qwen3_next (whose rows are regrouped), the router (which no kernel
 * reads quantised), lm_head, and the embedding. */
static void test_quantised_anywhere(void **state)
{
    static const char *const bases[] = {"model.layers.0.linear_attn.in_proj_qkvz",
                                        "model.layers.1.linear_attn.in_proj_ba",
                                        "model.layers.0.mlp.gate", "lm_head", "model.embed_tokens"};
    static float got[N_TOKENS * VOCAB], want[N_TOKENS * VOCAB];

    (void)state;
    for (size_t i = 0; i < sizeof bases / sizeof bases[0]; i++) {
        struct checkpoint_edit quantised, plain;
        struct test_dir dir, plain_dir;

        edit_fixture(&quantised, "tiny-qwen3_next");
        edit_fixture(&plain, "tiny-qwen3_next");
        quantise(&quantised, &plain, bases[i]);
        set_gptq(&quantised);
        test_dir_open(&dir);
        test_dir_open(&plain_dir);
        edit_write(&quantised, dir.path);
        edit_write(&plain, plain_dir.path);
        logits_of(got, dir.path);
        logits_of(want, plain_dir.path);
        assert_true(relative_error(got, want, N_TOKENS * VOCAB) <= 1e-5);
        test_dir_close(&dir);
        test_dir_close(&plain_dir);
        edit_close(&quantised);
        edit_close(&plain);
    }
}

/* The head's rule counts for a quantised head even where the config denies that there is one: the file
 * wins, and nothing else describes it. */
static void test_head_rule_against_switch(void **state)
{
    static float got[N_TOKENS * VOCAB], want[N_TOKENS * VOCAB];
    struct checkpoint_edit quantised, plain;
    struct json_object *q, *dynamic = json_object_new_object(), *rule = json_object_new_object();
    struct test_dir dir, plain_dir;

    (void)state;
    edit_fixture(&quantised, "tiny-qwen3_next");
    edit_fixture(&plain, "tiny-qwen3_next");
    quantise(&quantised, &plain, "lm_head"); /* in groups of 32 */
    set_gptq(&quantised);
    assert_true(json_object_object_get_ex(quantised.config, "quantization_config", &q));
    json_object_object_add(q, "lm_head", json_object_new_boolean(0));
    json_object_object_add(q, "group_size", json_object_new_int(64));
    json_object_object_add(rule, "group_size", json_object_new_int(32));
    json_object_object_add(dynamic, "lm_head", rule);
    json_object_object_add(q, "dynamic", dynamic);
    test_dir_open(&dir);
    test_dir_open(&plain_dir);
    edit_write(&quantised, dir.path);
    edit_write(&plain, plain_dir.path);
    logits_of(got, dir.path);
    logits_of(want, plain_dir.path);
    assert_true(relative_error(got, want, N_TOKENS * VOCAB) <= 1e-5);
    test_dir_close(&dir);
    test_dir_close(&plain_dir);
    edit_close(&quantised);
    edit_close(&plain);
}

/* Plain matrices of other float types give the same numbers. */
static void test_stored_types(void **state)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F64};
    static float got[N_TOKENS * VOCAB];

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct checkpoint_edit e;
        struct test_dir dir;

        edit_fixture(&e, "tiny-qwen3_next");
        for (size_t j = 0; j < e.n; j++) {
            struct edit_tensor *t = &e.tensors[j];
            size_t n = tensor_count(&t->tensor);
            float *wide = calloc(n, sizeof *wide);
            void *data = calloc(n, sizeof(double));

            assert_non_null(wide);
            assert_non_null(data);
            dtype_to_f32(wide, t->tensor.dtype, t->tensor.data, n);
            dtype_from_f32(types[i], data, wide, n);
            free(wide);
            t->owned = t->tensor.data = data;
            t->tensor.dtype = types[i];
        }
        test_dir_open(&dir);
        edit_write(&e, dir.path);
        logits_of(got, dir.path);
        compare_close(got, "tiny-qwen3_next", 1e-6);
        test_dir_close(&dir);
        edit_close(&e);
    }
}

/* An untied copy of a tied model, and a tied model that brings a head nobody needs. */
static void test_tied(void **state)
{
    static float got[N_TOKENS * VOCAB];
    struct checkpoint_edit e;
    struct test_dir dir;
    struct edit_tensor *embed;
    const size_t shape[] = {512, 128};

    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        edit_fixture(&e, "tiny-qwen3_5-dense");
        embed = edit_find(&e, "model.embed_tokens.weight");
        memcpy(edit_add(&e, "lm_head.weight", DTYPE_BF16, 2, shape), embed->tensor.data,
               512 * 128 * 2);
        json_object_object_add(e.config, "tie_word_embeddings", json_object_new_boolean(tied));
        test_dir_open(&dir);
        edit_write(&e, dir.path);
        logits_of(got, dir.path);
        compare_close(got, "tiny-qwen3_5-dense", 0);
        test_dir_close(&dir);
        edit_close(&e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_unknown_prefixes),
        cmocka_unit_test(test_skipped_are_counted),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_extra),
        cmocka_unit_test(test_wrong_shape_or_type),
        cmocka_unit_test(test_plain_and_quantised),
        cmocka_unit_test(test_mixed_content),
        cmocka_unit_test(test_rule_against_content),
        cmocka_unit_test(test_groups_without_kernel),
        cmocka_unit_test(test_quantised_anywhere),
        cmocka_unit_test(test_head_rule_against_switch),
        cmocka_unit_test(test_stored_types),
        cmocka_unit_test(test_tied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
