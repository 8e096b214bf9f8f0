/* model_inventory_test.c - counts, parameters and bytes against the published totals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/str.h"
#include "cli/model_inventory.h"

static void make(struct model_inventory *inv, const char *shape, const struct model_variant *v)
{
    struct model_shape s;
    struct error err = {0};

    assert_int_equal(model_shape_find(&s, shape, &err), OK);
    assert_int_equal(model_inventory_new(inv, &s, v, &err), OK);
}

static size_t count_prefix(const struct model_inventory *inv, const char *prefix)
{
    size_t n = 0;

    for (size_t i = 0; i < inv->n; i++) {
        n += str_starts(str_of(inv->tensors[i].name), str_of(prefix));
    }
    return n;
}

static size_t count_suffix(const struct model_inventory *inv, const char *suffix)
{
    size_t n = 0;

    for (size_t i = 0; i < inv->n; i++) {
        n += str_ends(str_of(inv->tensors[i].name), str_of(suffix));
    }
    return n;
}

static const struct made_tensor *find(const struct model_inventory *inv, const char *name)
{
    for (size_t i = 0; i < inv->n; i++) {
        if (strcmp(inv->tensors[i].name, name) == 0) {
            return &inv->tensors[i];
        }
    }
    fail_msg("no tensor '%s'", name);
    return NULL;
}

/* The model cards' exact totals, with draft head and vision tower where there are any. */
static void test_parameters(void **state)
{
    static const struct {
        const char *shape;
        bool has_vision;
        uint64_t parameters;
    } published[] = {
        {"qwen3.5-0.8b", true, 873438784},
        {"qwen3.5-2b", true, 2274069824},
        {"qwen3.5-4b", true, 4659865088},
        {"qwen3.5-9b", true, 9653104368},
        {"qwen3.5-27b", true, 27781427952},
        {"qwen3.5-35b-a3b", true, 35951822704},
        {"qwen3.5-122b-a10b", true, 125086497008},
        {"qwen3.5-397b-a17b", true, 403397928944},
        {"qwen3-next-80b-a3b", false, 79674391296 + 1650471424},
    };

    (void)state;
    assert_int_equal(model_shapes_count, sizeof published / sizeof published[0]);
    for (size_t i = 0; i < sizeof published / sizeof published[0]; i++) {
        struct model_variant v = {
            .scale_dtype = DTYPE_F16, .with_mtp = true, .with_vision = published[i].has_vision};

        for (int is_int4 = 0; is_int4 < 2; is_int4++) {
            struct model_inventory inv;

            v.is_int4 = is_int4;
            make(&inv, published[i].shape, &v);
            assert_int_equal(inv.parameters, published[i].parameters);
            model_inventory_release(&inv);
        }
    }
}

/* Qwen3.5-35B-A3B-GPTQ-Int4: 124,611 tensors, 24,403,162,208 bytes. */
static void test_35b_int4(void **state)
{
    struct model_variant v = {
        .is_int4 = true, .scale_dtype = DTYPE_F16, .with_mtp = true, .with_vision = true};
    struct model_inventory inv;
    size_t packed = 40 * 256 * 3 * 4, bytes = 0;

    (void)state;
    make(&inv, "qwen3.5-35b-a3b", &v);
    assert_int_equal(inv.n, 124611);
    assert_int_equal(inv.n_bytes, 24403162208);
    assert_int_equal(count_prefix(&inv, "mtp."), 17 + 768);
    assert_int_equal(count_prefix(&inv, "model.visual."), 333);
    assert_int_equal(count_suffix(&inv, ".qweight"), packed / 4);
    assert_int_equal(count_suffix(&inv, ".g_idx"), packed / 4);
    for (size_t i = 0; i < inv.n; i++) {
        if (!str_ends(str_of(inv.tensors[i].name), STR(".weight")) &&
            strstr(inv.tensors[i].name, ".mlp.experts.")) {
            bytes += inv.tensors[i].n_bytes;
        }
    }
    assert_int_equal(bytes, 16924016640);
    model_inventory_release(&inv);

    v.with_mtp = v.with_vision = false;
    make(&inv, "qwen3.5-35b-a3b", &v);
    assert_int_equal(inv.n, 613 + packed);
    /* less 2 bytes for each parameter of draft head and tower */
    assert_int_equal(inv.n_bytes, 24403162208 - 2 * (844640768 + UINT64_C(446571248)));
    model_inventory_release(&inv);
}

/* The bfloat16 files: 693 text, 333 vision, 19 draft head; two bytes per parameter, and two more for
 * each of the 160 numbers per linear layer that are float32. */
static void test_35b_bf16(void **state)
{
    struct model_variant v = {.scale_dtype = DTYPE_F16, .with_mtp = true, .with_vision = true};
    struct model_inventory inv;

    (void)state;
    make(&inv, "qwen3.5-35b-a3b", &v);
    assert_int_equal(inv.n, 693 + 333 + 19);
    assert_int_equal(inv.n_bytes, 71903645408 + 9600);
    model_inventory_release(&inv);
}

static void assert_shape(const struct model_inventory *inv, const char *name, enum dtype t,
                         size_t a, size_t b)
{
    const struct made_tensor *m = find(inv, name);

    assert_int_equal(m->tensor.dtype, t);
    assert_int_equal(m->tensor.shape[0], a);
    assert_int_equal(m->tensor.n_dims, b ? 2 : 1);
    assert_int_equal(m->tensor.shape[1], b);
}

static void test_single_tensors(void **state)
{
    struct model_variant v = {.is_int4 = true, .scale_dtype = DTYPE_BF16, .with_mtp = true};
    struct model_inventory inv;

    (void)state;
    make(&inv, "qwen3.5-35b-a3b", &v);
#define TRUNK "model.language_model.layers."
    assert_shape(&inv, TRUNK "0.linear_attn.in_proj_qkv.weight", DTYPE_BF16, 8192, 2048);
    assert_shape(&inv, TRUNK "0.linear_attn.A_log", DTYPE_F32, 32, 0);
    assert_shape(&inv, TRUNK "0.linear_attn.dt_bias", DTYPE_BF16, 32, 0);
    assert_shape(&inv, TRUNK "3.self_attn.q_proj.weight", DTYPE_BF16, 8192, 2048);
    assert_shape(&inv, TRUNK "3.self_attn.k_norm.weight", DTYPE_BF16, 256, 0);
    assert_shape(&inv, TRUNK "9.mlp.experts.255.gate_proj.qweight", DTYPE_I32, 256, 512);
    assert_shape(&inv, TRUNK "9.mlp.experts.255.gate_proj.qzeros", DTYPE_I32, 16, 64);
    assert_shape(&inv, TRUNK "9.mlp.experts.255.down_proj.scales", DTYPE_BF16, 4, 2048);
    assert_shape(&inv, TRUNK "9.mlp.experts.255.down_proj.g_idx", DTYPE_I32, 512, 0);
    assert_shape(&inv, TRUNK "9.mlp.shared_expert_gate.weight", DTYPE_BF16, 1, 2048);
    assert_shape(&inv, "mtp.fc.weight", DTYPE_BF16, 2048, 4096);
    assert_shape(&inv, "mtp.layers.0.mlp.experts.7.up_proj.weight", DTYPE_BF16, 512, 2048);
    assert_shape(&inv, "lm_head.weight", DTYPE_BF16, 248320, 2048);
    model_inventory_release(&inv);

    make(&inv, "qwen3-next-80b-a3b", &v);
    assert_shape(&inv, "model.layers.0.linear_attn.in_proj_qkvz.weight", DTYPE_BF16, 12288, 2048);
    assert_shape(&inv, "model.layers.0.linear_attn.in_proj_ba.weight", DTYPE_BF16, 64, 2048);
    assert_shape(&inv, "model.layers.0.linear_attn.A_log", DTYPE_BF16, 32, 0);
    model_inventory_release(&inv);

    /* 192 matrices of the dense model are quantised. */
    make(&inv, "qwen3.5-27b", &v);
    assert_int_equal(count_suffix(&inv, ".qweight"), 192);
    assert_shape(&inv, TRUNK "0.mlp.down_proj.qweight", DTYPE_I32, 17408 / 8, 5120);
    model_inventory_release(&inv);

    v.is_int4 = false;
    make(&inv, "qwen3.5-2b", &v);
    assert_int_equal(count_prefix(&inv, "lm_head"), 0);
    model_inventory_release(&inv);
}

static void test_changes(void **state)
{
    struct model_shape s;
    struct error err = {0};
    struct shape_change c = {.n_layers = 4, .n_experts = 4, .vocab = 2048};

    (void)state;
    assert_int_equal(model_shape_find(&s, "qwen3.5-35b-a3b", &err), OK);
    assert_int_equal(model_shape_change(&s, &c, &err), OK);
    assert_int_equal(s.n_layers, 4);
    assert_int_equal(s.n_experts, 4);
    assert_int_equal(s.n_active, 4); /* of the model's 8 */
    assert_int_equal(s.vocab, 2048);
    c = (struct shape_change){0};
    assert_int_equal(model_shape_change(&s, &c, &err), OK);
    assert_int_equal(s.n_layers, 4);
    c = (struct shape_change){.vocab = SHAPE_VOCAB_MIN - 1};
    assert_int_equal(model_shape_change(&s, &c, &err), ERR_USAGE);
    assert_string_equal(err.param, "vocab");
    c = (struct shape_change){.n_layers = CONFIG_LAYERS_MAX + 1};
    assert_int_equal(model_shape_change(&s, &c, &err), ERR_USAGE);
    assert_string_equal(err.param, "layers");

    assert_int_equal(model_shape_find(&s, "qwen3.5-4b", &err), OK);
    c = (struct shape_change){.n_experts = 8};
    assert_int_equal(model_shape_change(&s, &c, &err), ERR_USAGE);
    assert_string_equal(err.param, "experts");
    assert_int_equal(model_shape_find(&s, "qwen3.5-35b", &err), ERR_USAGE);
    assert_non_null(strstr(err.text, "'qwen3.5-35b-a3b'"));
}

static void test_variants(void **state)
{
    struct model_shape s;
    struct model_variant v;
    struct error err = {0};

    (void)state;
    assert_int_equal(model_shape_find(&s, "qwen3-next-80b-a3b", &err), OK);
    v = model_variant_default(&s);
    assert_true(v.is_int4);
    assert_int_equal(model_variant_check(&v, &s, &err), OK);
    v.with_vision = true;
    assert_int_equal(model_variant_check(&v, &s, &err), ERR_USAGE);
    assert_string_equal(err.param, "vision");
    assert_int_equal(model_shape_find(&s, "qwen3.5-27b", &err), OK);
    assert_false(model_variant_default(&s).is_int4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameters), cmocka_unit_test(test_35b_int4),
        cmocka_unit_test(test_35b_bf16),   cmocka_unit_test(test_single_tensors),
        cmocka_unit_test(test_changes),    cmocka_unit_test(test_variants),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
