/* inspect_report_test.c - tests of what `spillway inspect` says about the checkpoints of the
 * repository, and of a folder that cannot be run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/inspect_report.h"
#include "formats/safetensors.h"

#define GOLDEN SPILLWAY_SOURCE_DIR "/tests/golden/"

static void test_classes(void **state)
{
    static const struct {
        const char *name;
        enum tensor_class class;
    } cases[] = {
        {"model.language_model.embed_tokens.weight", CLASS_EMBEDDING},
        {"lm_head.weight", CLASS_HEAD},
        {"model.norm.weight", CLASS_NORM},
        {"model.layers.0.input_layernorm.weight", CLASS_NORM},
        {"model.layers.0.linear_attn.norm.weight", CLASS_LINEAR_ATTENTION},
        {"model.layers.0.linear_attn.A_log", CLASS_LINEAR_ATTENTION},
        {"model.layers.3.self_attn.q_norm.weight", CLASS_ATTENTION},
        {"model.layers.3.mlp.gate.weight", CLASS_ROUTER},
        {"model.layers.3.mlp.gate_proj.weight", CLASS_MLP},
        {"model.layers.3.mlp.experts.7.up_proj.qweight", CLASS_EXPERTS},
        {"model.layers.3.mlp.experts.gate_up_proj", CLASS_EXPERTS},
        {"model.layers.3.mlp.shared_expert_gate.weight", CLASS_SHARED_EXPERT},
        {"model.visual.blocks.0.norm1.weight", CLASS_VISION},
        {"mtp.layers.0.mlp.experts.0.up_proj.weight", CLASS_MTP},
        {"something.else", CLASS_OTHER},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_string_equal(tensor_class_name(tensor_class_of(cases[i].name)),
                            tensor_class_name(cases[i].class));
    }
    assert_true(tensor_class_is_skipped(CLASS_MTP));
    assert_false(tensor_class_is_skipped(CLASS_OTHER));
}

static const struct inspect_row *find_row(const struct inspect_report *r, enum tensor_class class,
                                          const char *form)
{
    for (size_t i = 0; i < r->n_rows; i++) {
        if (r->rows[i].class == class && strcmp(r->rows[i].form, form) == 0) {
            return &r->rows[i];
        }
    }
    return NULL;
}

static void test_quantised_model(void **state)
{
    struct checkpoint *c;
    struct inspect_report r;
    struct error err = {0};
    const struct inspect_row *row;
    size_t n = 0, n_bytes = 0;

    (void)state;
    assert_int_equal(checkpoint_open(&c, GOLDEN "tiny-qwen3_5-moe-gptq-int4", NULL, NULL, &err),
                     OK);
    assert_int_equal(inspect_gather(&r, c, NULL, true, &err), OK);
    assert_int_equal(r.config_error.code, OK);
    assert_int_equal(r.quant_error.code, OK);
    assert_int_equal(r.n_quantised, 4 * 8 * 3);
    assert_true(r.is_checked);
    for (size_t i = 0; i < GPTQ_NOTE_COUNT; i++) {
        assert_int_equal(r.notes[i], 0);
    }
    for (size_t i = 0; i < r.n_rows; i++) {
        n += r.rows[i].n_tensors;
        n_bytes += r.rows[i].n_bytes;
        assert_true(i == 0 || r.rows[i - 1].class <= r.rows[i].class);
    }
    assert_int_equal(n, checkpoint_count(c)); /* nothing is left out, nothing counted twice */
    assert_int_equal(n_bytes, checkpoint_bytes(c));
    assert_int_equal(r.bytes_used + r.bytes_skipped, n_bytes);
    row = find_row(&r, CLASS_EXPERTS, "gptq int4");
    assert_non_null(row);
    assert_int_equal(row->n_tensors, 96);
    assert_int_equal(row->n_bytes, 96 * 128 * 128 / 2);
    assert_non_null(find_row(&r, CLASS_EXPERTS, "gptq scales float16"));
    assert_non_null(find_row(&r, CLASS_VISION, "bfloat16"));
    assert_null(find_row(&r, CLASS_MTP, "gptq int4"));
    assert_string_equal(r.tokenizer, "tokenizer.json");
    assert_null(r.chat_template);
    /* one full layer, 2 key-value heads of 64; three linear ones */
    assert_int_equal(inspect_kv_values(&r.config), 2 * 2 * 64);
    assert_int_equal(inspect_state_bytes(&r.config), 3 * 4 * ((64 + 64 + 128) * 3 + 4 * 32 * 32));
    inspect_report_release(&r);
    checkpoint_close(c);
}

static void test_print_outs(void **state)
{
    static const char *const lines[] = {
        "Qwen3_5MoeForCausalLM (qwen3_5_moe_text)",
        "8: 6 linear attention, 2 full attention",
        "16 experts of width 128, 4 per token",
        "gptq, 4 bits, groups of 128, symmetric, v1 zero points; 384 matrices",
        "chat_template.jinja",
        "1726 tensors in 2 files",
        "(skipped)",
        "lm_head.weight  bfloat16 [4096, 256]  2097152 bytes  model-0000",
    };
    struct checkpoint *c;
    struct inspect_report r;
    struct error err = {0};
    struct json_object *o;
    struct buf out;

    (void)state;
    assert_int_equal(checkpoint_open(&c, SPILLWAY_SOURCE_DIR "/models/rill", NULL, NULL, &err), OK);
    assert_int_equal(inspect_gather(&r, c, NULL, false, &err), OK);
    buf_init(&out);
    inspect_print_text(&out, &r, true);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        if (!strstr(buf_cstr(&out), lines[i])) {
            fail_msg("'%s' is not in the text:\n%s", lines[i], buf_cstr(&out));
        }
    }
    buf_clear(&out);
    assert_int_equal(inspect_print_json(&out, &r, true, &err), OK);
    assert_int_equal(json_parse(&o, buf_cstr(&out), out.len, &err), OK);
    assert_int_equal(json_object_array_length(json_get(o, "tensors")), 1726);
    assert_int_equal(json_object_get_int(json_get(json_get(o, "config"), "num_experts")), 16);
    assert_int_equal(json_object_get_int(json_get(json_get(o, "quantization"), "matrices")), 384);
    assert_int_equal(json_object_get_int64(json_get(o, "tensor_bytes")),
                     (int64_t)checkpoint_bytes(c));
    json_object_put(o);
    buf_release(&out);
    inspect_report_release(&r);
    checkpoint_close(c);
}

static void write_text(const char *dir, const char *name, const char *text)
{
    char path[256];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* A model of another kind is described all the same, with the reason why it cannot be run. */
static void test_foreign_model(void **state)
{
    char dir[] = "/tmp/inspect_test_XXXXXX", path[256];
    float one = 1.0f;
    struct tensor t = {&one, DTYPE_F32, 1, {1}};
    struct safetensors_writer *w;
    struct checkpoint *c;
    struct inspect_report r;
    struct error err = {0};
    struct buf out;

    (void)state;
    assert_non_null(mkdtemp(dir));
    write_text(dir, "config.json",
               "{\"model_type\":\"mamba9\",\"quantization_config\":{\"quant_method\":\"awq\"}}");
    write_text(dir, "tokenizer_config.json", "{\"chat_template\":\"x\"}");
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(safetensors_writer_new(&w, &err), OK);
    assert_int_equal(safetensors_writer_add(w, "a.qweight", &t, &err), OK);
    assert_int_equal(safetensors_writer_finish(w, path, &err), OK);
    safetensors_writer_free(w);

    assert_int_equal(checkpoint_open(&c, dir, NULL, NULL, &err), OK);
    assert_int_equal(inspect_gather(&r, c, NULL, true, &err), OK);
    assert_int_equal(r.config_error.code, ERR_UNSUPPORTED);
    assert_int_equal(r.quant_error.code, ERR_UNSUPPORTED);
    assert_null(r.tokenizer);
    assert_string_equal(r.chat_template, "tokenizer_config.json");
    buf_init(&out);
    inspect_print_text(&out, &r, false);
    assert_non_null(strstr(buf_cstr(&out), "quantization 'awq' is not supported"));
    buf_clear(&out);
    assert_int_equal(inspect_print_json(&out, &r, false, &err), OK);
    assert_non_null(strstr(buf_cstr(&out), "'mamba9' is not supported"));
    buf_release(&out);
    inspect_report_release(&r);
    checkpoint_close(c);
    unlink(path);
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    unlink(path);
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_quantised_model),
        cmocka_unit_test(test_print_outs),
        cmocka_unit_test(test_foreign_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
