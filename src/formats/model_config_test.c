/* model_config_test.c - tests of config.json and generation_config.json.
 *
 * A good config is kept as text with single quotes; a case is an object that is laid over it member
 * by member before reading (JSON null removes the member). */
#include "formats/test_dir.h"

#include "base/file_map.h"
#include "formats/model_config.h"

/* The text fields of a small qwen3_5_moe, without rotary fields. */
static const char base_text[] =
    "{'model_type':'qwen3_5_moe_text','architectures':['Qwen3_5MoeForCausalLM'],"
    "'hidden_size':128,'num_hidden_layers':4,'vocab_size':512,'max_position_embeddings':4096,"
    "'rms_norm_eps':1e-06,'num_attention_heads':4,'num_key_value_heads':2,'head_dim':64,"
    "'linear_num_key_heads':2,'linear_num_value_heads':4,'linear_key_head_dim':32,"
    "'linear_value_head_dim':32,'linear_conv_kernel_dim':4,'num_experts':8,"
    "'num_experts_per_tok':2,'moe_intermediate_size':128,'shared_expert_intermediate_size':96,"
    "'eos_token_id':412,'dtype':'bfloat16'}";

static const char base_rope[] =
    "{'rope_parameters':{'rope_type':'default','rope_theta':10000000,'partial_rotary_factor':0.25,"
    "'mrope_section':[3,3,2],'mrope_interleaved':true}}";

/* Parse text in which ' stands for ". */
static struct json_object *parse(const char *text)
{
    struct json_object *o;
    struct error err = {0};
    char *copy = strdup(text);

    assert_non_null(copy);
    for (char *p = copy; *p; p++) {
        *p = *p == '\'' ? '"' : *p;
    }
    if (json_parse(&o, copy, strlen(copy), &err) != OK) {
        fail_msg("%s in %s", err.text, copy);
    }
    free(copy);
    return o;
}

/* Members of `text` replace those of o; null removes. */
static void lay_over(struct json_object *o, const char *text)
{
    struct json_object *changes = parse(text);

    json_object_object_foreach(changes, key, value)
    {
        if (value) {
            json_object_object_add(o, key, json_object_get(value));
        } else {
            json_object_object_del(o, key);
        }
    }
    json_object_put(changes);
}

static struct json_object *flat(const char *changes)
{
    struct json_object *o = parse(base_text);

    lay_over(o, base_rope);
    lay_over(o, changes);
    return o;
}

/* Read o (consumed) with an override or NULL. */
static enum status read_with(struct model_config *c, struct json_object *o, const char *override,
                             struct error *err)
{
    struct json_object *over = override ? parse(override) : NULL;
    enum status rc;

    memset(err, 0, sizeof *err);
    rc = model_config_read(c, o, over, err);
    assert_int_equal(err->code, rc);
    json_object_put(o);
    json_object_put(over);
    return rc;
}

static void test_flat(void **state)
{
    struct model_config c;
    struct error err;

    (void)state;
    assert_int_equal(read_with(&c, flat("{}"), NULL, &err), OK);
    assert_int_equal(c.family, FAMILY_QWEN3_5_MOE);
    assert_string_equal(model_family_name(c.family), "qwen3_5_moe");
    assert_string_equal(c.model_type, "qwen3_5_moe_text");
    assert_string_equal(c.architecture, "Qwen3_5MoeForCausalLM");
    assert_false(c.is_nested);
    assert_false(c.has_vision);
    assert_int_equal(c.dtype, DTYPE_BF16);
    assert_int_equal(c.ssm_dtype, DTYPE_NONE);
    assert_int_equal(c.hidden_size, 128);
    assert_int_equal(c.head_dim, 64);
    assert_true(c.attn_output_gate);
    assert_true(c.norm_topk_prob); /* absent in these files, and always done */
    assert_false(c.tie_embeddings);
    assert_int_equal(c.n_experts, 8);
    assert_int_equal(c.shared_intermediate_size, 96);
    assert_int_equal(c.intermediate_size, 0);
    assert_float_equal(c.rope.theta, 1e7, 0);
    assert_float_equal(c.rope.partial_factor, 0.25, 0);
    assert_int_equal(c.rope.n_dims, 16);
    assert_int_equal(c.rope.mrope_section[2], 2);
    assert_true(c.rope.mrope_interleaved);
    assert_false(c.rope.is_yarn);
    assert_int_equal(c.bos_id, -1);
    assert_int_equal(c.n_eos_ids, 1);
    assert_int_equal(c.eos_ids[0], 412);
    for (size_t i = 0; i < 4; i++) { /* every fourth layer, without a list */
        assert_int_equal(c.layer_is_full[i], i == 3);
    }
    model_config_release(&c);
    model_config_release(&c); /* a released one is zeroed */
}

static void test_real_files(void **state)
{
    static const struct {
        const char *path;
        enum model_family family;
        bool nested, tied;
        size_t n_layers, n_experts, theta;
    } cases[] = {
        {"tests/golden/tiny-qwen3_5-moe", FAMILY_QWEN3_5_MOE, true, false, 4, 8, 10000000},
        {"tests/golden/tiny-qwen3_5-moe-gptq-int4", FAMILY_QWEN3_5_MOE, true, false, 4, 8,
         10000000},
        {"tests/golden/tiny-qwen3_5-moe-gptq-int4-actorder", FAMILY_QWEN3_5_MOE, true, false, 4, 8,
         10000000},
        {"tests/golden/tiny-qwen3_5-dense", FAMILY_QWEN3_5, false, true, 4, 0, 10000000},
        {"tests/golden/tiny-qwen3_next", FAMILY_QWEN3_NEXT, false, false, 4, 8, 10000000},
        {"models/rill", FAMILY_QWEN3_5_MOE, false, false, 8, 16, 1000000},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[512];
        struct json_object *o;
        struct model_config c;
        struct error err = {0};

        snprintf(path, sizeof path, SPILLWAY_SOURCE_DIR "/%s/config.json", cases[i].path);
        assert_int_equal(json_parse_file(&o, path, 1 << 20, &err), OK);
        assert_int_equal(read_with(&c, o, NULL, &err), OK);
        assert_int_equal(c.family, cases[i].family);
        assert_int_equal(c.is_nested, cases[i].nested);
        assert_int_equal(c.has_vision, cases[i].nested);
        assert_int_equal(c.tie_embeddings, cases[i].tied);
        assert_int_equal(c.n_layers, cases[i].n_layers);
        assert_int_equal(c.n_experts, cases[i].n_experts);
        assert_float_equal(c.rope.theta, (double)cases[i].theta, 0);
        assert_int_equal(c.rope.n_dims, 16);
        assert_true(c.layer_is_full[3]);
        model_config_release(&c);
    }
}

/* The same rotary numbers wherever the file keeps them. */
static const char *const spellings[] = {
    /* new place */
    "{'rope_parameters':{'rope_theta':10000000,'partial_rotary_factor':0.25}}",
    /* old place */
    "{'rope_theta':10000000,'partial_rotary_factor':0.25}",
    /* half moved */
    "{'rope_parameters':{'rope_type':'default','rope_theta':1e7},'partial_rotary_factor':0.25}",
    /* both, equal, one as a float */
    "{'rope_parameters':{'rope_theta':10000000.0,'partial_rotary_factor':0.25},"
    "'rope_theta':10000000,'partial_rotary_factor':0.25}",
    /* rope_scaling with the old type name */
    "{'rope_scaling':{'type':'default','mrope_section':[3,3,2]},'rope_theta':10000000,"
    "'partial_rotary_factor':0.25}",
    /* rope_scaling holds all */
    "{'rope_scaling':{'rope_type':'default','rope_theta':1e7,'partial_rotary_factor':0.25}}",
    /* one set for each kind of layer */
    "{'rope_parameters':{'full_attention':{'rope_theta':10000000,'partial_rotary_factor':0.25}}}",
    /* a null in the old place is no value */
    "{'rope_parameters':{'rope_theta':10000000,'partial_rotary_factor':0.25},'rope_theta':null,"
    "'rope_scaling':null}",
};

static void expect_rope(struct json_object *o)
{
    struct model_config c;
    struct error err;

    if (read_with(&c, o, NULL, &err) != OK) {
        fail_msg("%s", err.text);
    }
    assert_float_equal(c.rope.theta, 1e7, 0);
    assert_float_equal(c.rope.partial_factor, 0.25, 0);
    assert_int_equal(c.rope.n_dims, 16);
    assert_false(c.rope.is_yarn);
    model_config_release(&c);
}

static struct json_object *nested(const char *text_changes, const char *outer_changes)
{
    struct json_object *text = parse(base_text),
                       *o = parse("{'model_type':'qwen3_5_moe',"
                                  "'architectures':['Qwen3_5MoeForConditionalGeneration'],"
                                  "'vision_config':{'rope_theta':7}}");

    lay_over(text, text_changes);
    json_object_object_del(text, "architectures");
    json_object_object_add(o, "text_config", text);
    lay_over(o, outer_changes);
    return o;
}

static void test_rope_spellings(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++) {
        struct json_object *o = parse(base_text);

        lay_over(o, spellings[i]);
        expect_rope(o);
        expect_rope(nested(spellings[i], "{}"));
        expect_rope(nested("{}", spellings[i]));
        expect_rope(nested(spellings[i], spellings[0]));
    }
}

static void expect_refusal(struct json_object *o, const char *override, enum status rc,
                           const char *says)
{
    struct model_config c;
    struct error err;

    if (read_with(&c, o, override, &err) == OK) {
        fail_msg("accepted, though '%s' was expected", says);
    }
    assert_int_equal(err.code, rc);
    assert_null(c.layer_is_full);
    test_error_has(&err, "config.json");
    test_error_has(&err, says);
}

static void test_rope_refusals(void **state)
{
    static const struct {
        const char *changes, *says;
    } cases[] = {
        {"{}", "'rope_theta' is missing"},
        {"{'rope_parameters':{}}", "'rope_theta' is missing"},
        {"{'rope_theta':null}", "'rope_theta' is missing"},
        {"{'partial_rotary_factor':0.25}", "'rope_theta' is missing"},
        {"{'rope_theta':1e7}", "'partial_rotary_factor' is missing"},
        {"{'rope_parameters':[],'rope_theta':1e7}", "'rope_parameters' is not an object"},
        {"{'rope_parameters':{'rope_theta':1e7,'partial_rotary_factor':0.25},'rope_theta':1e6}",
         "'rope_theta' has two different values"},
        {"{'rope_parameters':{'rope_theta':1e7,'partial_rotary_factor':0.25},"
         "'partial_rotary_factor':0.5}",
         "'partial_rotary_factor' has two different values"},
        {"{'rope_parameters':{'rope_theta':1e7,'partial_rotary_factor':0.25},"
         "'rope_scaling':{'rope_theta':2e7}}",
         "'rope_theta' has two different values"},
        {"{'rope_parameters':{'rope_theta':1e7,'partial_rotary_factor':0.25,'rope_type':'default'},"
         "'rope_scaling':{'rope_type':'yarn','factor':4}}",
         "'rope_type' has two different values"},
        {"{'rope_parameters':{'rope_theta':1e7,'partial_rotary_factor':0.25,'rope_type':'default',"
         "'type':'yarn'}}",
         "differ"},
        {"{'rope_theta':1e7,'partial_rotary_factor':0}", "partial_rotary_factor"},
        {"{'rope_theta':1e7,'partial_rotary_factor':1.5}", "partial_rotary_factor"},
        {"{'rope_theta':1e7,'partial_rotary_factor':0.3}", "even number"},
        {"{'rope_theta':1e7,'partial_rotary_factor':0.046875}", "even number"}, /* 3 dimensions */
        {"{'rope_theta':0,'partial_rotary_factor':0.25}", "'rope_theta' is 0"},
        {"{'rope_theta':-1e7,'partial_rotary_factor':0.25}", "'rope_theta' is"},
        {"{'rope_theta':'1e7','partial_rotary_factor':0.25}", "rope_theta"},
        {"{'rope_parameters':{'rope_theta':1e7,'partial_rotary_factor':0.25,"
         "'mrope_section':[3,3,3]}}",
         "'mrope_section' sums to 9"},
        {"{'rope_parameters':{'rope_theta':1e7,'partial_rotary_factor':0.25,'mrope_section':[8]}}",
         "mrope_section"},
        {"{'rope_parameters':{'rope_theta':1e7,'partial_rotary_factor':0.25,"
         "'mrope_section':[-1,9,0]}}",
         "mrope_section"},
        {"{'rope_parameters':{'rope_theta':1e7,'partial_rotary_factor':0.25,'rope_type':'yarn'}}",
         "'factor' is missing"},
        {"{'rope_parameters':{'rope_theta':1e7,'partial_rotary_factor':0.25,'rope_type':'yarn',"
         "'factor':4}}",
         "'original_max_position_embeddings' is missing"},
        {"{'rope_parameters':{'rope_theta':1e7,'partial_rotary_factor':0.25,'rope_type':'yarn',"
         "'factor':0.5,'original_max_position_embeddings':4096}}",
         "'factor' is 0.5"},
        {"{'rope_parameters':{'rope_theta':1e7,'partial_rotary_factor':0.25,'rope_type':'yarn',"
         "'factor':4000,'original_max_position_embeddings':67108864}}",
         "stretches the context"},
        {"{'rope_parameters':{'rope_theta':1e7,'partial_rotary_factor':0.25,'rope_type':'yarn',"
         "'factor':4,'original_max_position_embeddings':4096,'beta_fast':1,'beta_slow':32}}",
         "'beta_fast'"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct json_object *o = parse(base_text);

        lay_over(o, cases[i].changes);
        expect_refusal(o, NULL, ERR_FORMAT, cases[i].says);
        expect_refusal(nested(cases[i].changes, "{}"), NULL, ERR_FORMAT, cases[i].says);
    }
    /* one value in each level of a nested file */
    expect_refusal(
        nested(spellings[0], "{'rope_theta':5}"), NULL, ERR_FORMAT,
        "'rope_theta' has two different values: 10000000 in rope_parameters and 5 in (top)");
}

static void test_yarn(void **state)
{
    struct model_config c;
    struct error err;

    (void)state;
    assert_int_equal(
        read_with(&c,
                  flat("{'rope_parameters':{'rope_type':'yarn','rope_theta':1e7,'factor':4.0,"
                       "'partial_rotary_factor':0.25,'original_max_position_embeddings':4096}}"),
                  NULL, &err),
        OK);
    assert_true(c.rope.is_yarn);
    assert_float_equal(c.rope.factor, 4.0, 0);
    assert_float_equal(c.rope.attention_factor, 0.0, 0); /* to be worked out from the factor */
    assert_float_equal(c.rope.beta_fast, 32.0, 0);
    assert_float_equal(c.rope.beta_slow, 1.0, 0);
    assert_int_equal(c.rope.original_positions, 4096);
    assert_int_equal(c.max_positions, 16384);
    model_config_release(&c);
    /* the same by an override, which merges into the file's object */
    assert_int_equal(read_with(&c, nested(base_rope, "{}"),
                               "{'rope_parameters':{'rope_type':'yarn','factor':2,'beta_fast':40,"
                               "'attention_factor':1.5,'original_max_position_embeddings':4096}}",
                               &err),
                     OK);
    assert_true(c.rope.is_yarn);
    assert_float_equal(c.rope.theta, 1e7, 0);
    assert_float_equal(c.rope.attention_factor, 1.5, 0);
    assert_float_equal(c.rope.beta_fast, 40.0, 0);
    assert_int_equal(c.max_positions, 8192);
    assert_int_equal(c.rope.mrope_section[0], 3);
    model_config_release(&c);
}

static void test_mrope_default(void **state)
{
    struct model_config c;
    struct error err;

    (void)state;
    /* head_dim 256 x 0.25: the reference code's own sections */
    assert_int_equal(read_with(&c,
                               flat("{'head_dim':256,'rope_parameters':{'rope_theta':1e7,"
                                    "'partial_rotary_factor':0.25}}"),
                               NULL, &err),
                     OK);
    assert_int_equal(c.rope.mrope_section[0], 11);
    assert_int_equal(c.rope.mrope_section[2], 10);
    model_config_release(&c);
    assert_int_equal(read_with(&c,
                               flat("{'model_type':'qwen3_next','architectures':[],'head_dim':256,"
                                    "'rope_parameters':null,'rope_theta':1e7,"
                                    "'partial_rotary_factor':0.25}"),
                               NULL, &err),
                     OK);
    assert_int_equal(c.rope.mrope_section[0], 0);
    assert_false(c.rope.mrope_interleaved);
    model_config_release(&c);
}

/* ---- one thing wrong ---- */

static void test_unsupported(void **state)
{
    static const struct {
        const char *changes, *says;
    } cases[] = {
        {"{'model_type':'llama'}", "model_type 'llama' is not supported"},
        {"{'model_type':'qwen4_exp'}", "parallel residual streams"},
        {"{'architectures':['Qwen4ExpForConditionalGeneration']}", "parallel residual streams"},
        {"{'architectures':['LlamaForCausalLM']}", "'LlamaForCausalLM'"},
        {"{'attention_bias':true}", "'attention_bias' true"},
        {"{'use_sliding_window':true}", "'use_sliding_window' true"},
        {"{'hidden_act':'gelu'}", "'hidden_act': 'gelu'"},
        {"{'output_gate_type':'sigmoid'}", "'output_gate_type': 'sigmoid'"},
        {"{'dtype':'int3'}", "'dtype': type 'int3'"},
        {"{'dtype':null,'torch_dtype':'float8'}", "'torch_dtype': type 'float8'"},
        {"{'mamba_ssm_dtype':'x'}", "mamba_ssm_dtype"},
        {"{'layer_types':['full_attention','sliding_attention','linear_attention',"
         "'linear_attention']}",
         "layer 1 is of the unknown kind 'sliding_attention'"},
        {"{'layer_types':[1,2,3,4]}", "layer 0"},
        {"{'decoder_sparse_step':2}", "decoder_sparse_step"},
        {"{'mlp_only_layers':[1]}", "mlp_only_layers"},
        {"{'norm_topk_prob':false}", "norm_topk_prob"},
        {"{'rope_parameters':{'rope_theta':1e7,'partial_rotary_factor':0.25,'rope_type':'llama3'}}",
         "rope_type 'llama3'"},
        {"{'rope_parameters':{'rope_theta':1e7,'partial_rotary_factor':0.25,'rope_type':'yarn',"
         "'factor':4,'original_max_position_embeddings':4096,'mscale':0.7}}",
         "'mscale'"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expect_refusal(flat(cases[i].changes), NULL, ERR_UNSUPPORTED, cases[i].says);
    }
}

static void test_contradictions(void **state)
{
    static const struct {
        const char *changes, *says;
    } cases[] = {
        {"{'model_type':null}", "'model_type' is missing"},
        {"{'model_type':'qwen3_5'}", "does not belong to model_type 'qwen3_5'"},
        {"{'architectures':'x'}", "not a list of names"},
        {"{'architectures':[1]}", "not a list of names"},
        {"{'num_key_value_heads':3}", "'num_attention_heads' (4) is not a multiple"},
        {"{'linear_num_key_heads':3}", "'linear_num_value_heads' (4) is not a multiple"},
        {"{'num_experts_per_tok':9}", "'num_experts_per_tok' is 9, not in 1..8"},
        {"{'num_attention_heads':16384,'head_dim':1024}", "pass 1048576"},
        {"{'linear_num_value_heads':65536}", "pass 1048576"},
        {"{'layer_types':['full_attention']}", "not a list of num_hidden_layers (4)"},
        {"{'layer_types':'full_attention'}", "not a list of num_hidden_layers (4)"},
        {"{'eos_token_id':512}", "token id 512 is not below 512"},
        {"{'eos_token_id':[1,'2']}", "eos_token_id"},
        {"{'bos_token_id':-1}", "bos_token_id"},
        {"{'mlp_only_layers':3}", "mlp_only_layers"},
        {"{'tie_word_embeddings':1}", "tie_word_embeddings"},
        {"{'head_dim':63}", "even number"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expect_refusal(flat(cases[i].changes), NULL, ERR_FORMAT, cases[i].says);
    }
    expect_refusal(flat("{'eos_token_id':[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}"), NULL,
                   ERR_LIMIT, "17 token ids");
    expect_refusal(nested("{'model_type':'qwen3_5_text'}", base_rope), NULL, ERR_FORMAT,
                   "'qwen3_5_moe' at the top and 'qwen3_5_text' in text_config");
    expect_refusal(parse("[]"), NULL, ERR_FORMAT, "not a JSON object");
    expect_refusal(NULL, NULL, ERR_FORMAT, "not a JSON object");
    expect_refusal(flat("{}"), "[1]", ERR_USAGE, "override");
}

/* Each number of the file becomes 0, -1, huge, a string, an array, nothing: refused, naming the
 * field, or (0 and nothing, for some) accepted. */
static void test_every_number_hostile(void **state)
{
    static const char *const values[] = {
        "0",    "-1",  "1e308", "4611686018427387904", "'8'", "null", "[]", "[[[1]]]", "{}",
        "true", "1.5", "-0",    "1000000000"};
    struct json_object *o = parse(base_text);
    size_t n_cases = 0, n_accepted = 0;

    (void)state;
    json_object_object_foreach(o, key, value)
    {
        if (!json_object_is_type(value, json_type_int) &&
            !json_object_is_type(value, json_type_double)) {
            continue;
        }
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
            char change[128];
            struct model_config c;
            struct error err;

            snprintf(change, sizeof change, "{'%s':%s}", key, values[i]);
            n_cases++;
            if (read_with(&c, flat(change), NULL, &err) == OK) {
                n_accepted++;
                model_config_release(&c);
            } else {
                test_error_has(&err, key);
            }
        }
    }
    json_object_put(o);
    assert_true(n_cases >= 200);
    /* eos_token_id: 0, -0, null, []; nothing else has a value that may go */
    assert_int_equal(n_accepted, 4);
}

static void test_limits(void **state)
{
    static const struct {
        const char *key;
        size_t max;
    } cases[] = {
        {"hidden_size", CONFIG_DIM_MAX},
        {"num_hidden_layers", CONFIG_LAYERS_MAX},
        {"vocab_size", CONFIG_VOCAB_MAX},
        {"max_position_embeddings", CONFIG_POSITIONS_MAX},
        {"num_experts", CONFIG_EXPERTS_MAX},
        {"moe_intermediate_size", CONFIG_DIM_MAX},
        {"linear_conv_kernel_dim", CONFIG_CONV_TAPS_MAX},
        {"linear_key_head_dim", CONFIG_HEAD_DIM_MAX},
        {"mtp_num_hidden_layers", CONFIG_MTP_LAYERS_MAX},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int more = -1; more <= 1; more++) {
            char change[128];
            struct model_config c;
            struct error err;

            snprintf(change, sizeof change, "{'%s':%zu}", cases[i].key,
                     cases[i].max + (size_t)more);
            assert_int_equal(read_with(&c, flat(change), NULL, &err), more > 0 ? ERR_FORMAT : OK);
            model_config_release(&c);
        }
    }
}

/* ---- which level and which name wins ---- */

static void test_precedence(void **state)
{
    struct model_config c;
    struct error err;

    (void)state;
    /* layer_types wins over the interval; tie of the outer level wins */
    assert_int_equal(
        read_with(&c,
                  nested("{'layer_types':['full_attention','linear_attention','linear_attention',"
                         "'linear_attention'],'full_attention_interval':2,"
                         "'tie_word_embeddings':false,'eos_token_id':[3,5],'dtype':null}",
                         "{'rope_parameters':{'rope_theta':1e7,'partial_rotary_factor':0.25},"
                         "'tie_word_embeddings':true,'eos_token_id':7,'bos_token_id':9,"
                         "'torch_dtype':'torch.float16'}"),
                  NULL, &err),
        OK);
    assert_true(c.is_nested);
    assert_true(c.has_vision);
    assert_true(c.layer_is_full[0]);
    assert_false(c.layer_is_full[1]);
    assert_false(c.layer_is_full[3]);
    assert_true(c.tie_embeddings);
    assert_int_equal(c.n_eos_ids, 2);
    assert_int_equal(c.eos_ids[1], 5);
    assert_int_equal(c.bos_id, 9);
    assert_int_equal(c.dtype, DTYPE_F16);
    model_config_release(&c);

    assert_int_equal(read_with(&c,
                               flat("{'full_attention_interval':2,'dtype':'float32',"
                                    "'torch_dtype':'bfloat16','mamba_ssm_dtype':'float32',"
                                    "'mtp_num_hidden_layers':1,'attn_output_gate':false,"
                                    "'hidden_act':'swish','architectures':null}"),
                               NULL, &err),
                     OK);
    assert_true(c.layer_is_full[1]);
    assert_int_equal(c.dtype, DTYPE_F32);
    assert_int_equal(c.ssm_dtype, DTYPE_F32);
    assert_int_equal(c.mtp_layers, 1);
    assert_false(c.attn_output_gate);
    assert_string_equal(c.architecture, "");
    model_config_release(&c);
}

static void test_families(void **state)
{
    struct model_config c;
    struct error err;

    (void)state;
    assert_int_equal(read_with(&c,
                               flat("{'model_type':'qwen3_next','norm_topk_prob':false,"
                                    "'architectures':['Qwen3NextForCausalLM'],"
                                    "'decoder_sparse_step':1,'mlp_only_layers':[]}"),
                               NULL, &err),
                     OK);
    assert_int_equal(c.family, FAMILY_QWEN3_NEXT);
    assert_false(c.norm_topk_prob);
    model_config_release(&c);
    assert_int_equal(read_with(&c,
                               flat("{'model_type':'qwen3_5_text','architectures':[],"
                                    "'intermediate_size':256,'num_experts':null}"),
                               NULL, &err),
                     OK);
    assert_int_equal(c.family, FAMILY_QWEN3_5);
    assert_int_equal(c.n_experts, 0);
    assert_int_equal(c.intermediate_size, 256);
    model_config_release(&c);
    expect_refusal(flat("{'model_type':'qwen3_5','architectures':[]}"), NULL, ERR_FORMAT,
                   "'intermediate_size' is missing");
}

static void test_overrides(void **state)
{
    struct model_config c;
    struct error err;
    struct json_object *o = nested(base_rope, "{'tie_word_embeddings':false}");

    (void)state;
    assert_int_equal(read_with(&c, json_object_get(o),
                               "{'num_experts_per_tok':4,'tie_word_embeddings':true,"
                               "'text_config':{'rms_norm_eps':1e-5}}",
                               &err),
                     OK);
    assert_int_equal(c.n_experts_per_token, 4);
    assert_true(c.tie_embeddings);
    assert_float_equal(c.rms_norm_eps, 1e-5, 0);
    model_config_release(&c);
    /* the file's own object was not changed */
    assert_int_equal(read_with(&c, json_object_get(o), "{}", &err), OK);
    assert_int_equal(c.n_experts_per_token, 2);
    assert_false(c.tie_embeddings);
    model_config_release(&c);
    /* text_config itself replaced by something else, then a text field: no stale object is used */
    expect_refusal(json_object_get(o), "{'text_config':null,'num_experts':4}", ERR_FORMAT,
                   "'hidden_size' is missing");
    expect_refusal(o, "{'text_config':3,'num_experts':4}", ERR_FORMAT, "'hidden_size' is missing");
}

/* ---- generation_config.json ---- */

static void test_generation_config(void **state)
{
    struct generation_config g;
    struct error err = {0};
    struct json_object *o = parse("{'eos_token_id':[5,3],'temperature':0.6,'top_p':0.95,'top_k':20,"
                                  "'min_p':0,'do_sample':true}");

    (void)state;
    assert_int_equal(generation_config_read(&g, NULL, &err), OK);
    assert_false(g.has_temperature || g.has_top_p || g.has_top_k || g.has_min_p);
    assert_float_equal(g.temperature, 1.0, 0);
    assert_float_equal(g.top_p, 1.0, 0);
    assert_float_equal(g.repetition_penalty, 1.0, 0);
    assert_int_equal(g.n_eos_ids, 0);
    assert_int_equal(generation_config_read(&g, o, &err), OK);
    json_object_put(o);
    assert_true(g.has_temperature && g.has_top_p && g.has_top_k && g.has_min_p);
    assert_false(g.has_repetition_penalty);
    assert_float_equal(g.temperature, 0.6, 0);
    assert_int_equal(g.top_k, 20);
    assert_int_equal(g.n_eos_ids, 2);
    assert_int_equal(g.eos_ids[0], 5);
}

static void test_generation_config_refusals(void **state)
{
    static const char *const bad[] = {
        "{'temperature':-1}",
        "{'temperature':'1'}",
        "{'temperature':1e300}",
        "{'top_p':1.01}",
        "{'top_p':-0.1}",
        "{'top_k':-2}",
        "{'top_k':1.5}",
        "{'top_k':99999999999}",
        "{'min_p':2}",
        "{'eos_token_id':-1}",
        "{'eos_token_id':{}}",
        "{'eos_token_id':[1.5]}",
        "{'repetition_penalty':0}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct generation_config g;
        struct error err = {0};
        struct json_object *o = parse(bad[i]);

        assert_int_equal(generation_config_read(&g, o, &err), ERR_FORMAT);
        test_error_has(&err, "generation_config.json");
        assert_string_not_equal(err.param, "");
        json_object_put(o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flat),
        cmocka_unit_test(test_real_files),
        cmocka_unit_test(test_rope_spellings),
        cmocka_unit_test(test_rope_refusals),
        cmocka_unit_test(test_yarn),
        cmocka_unit_test(test_mrope_default),
        cmocka_unit_test(test_unsupported),
        cmocka_unit_test(test_contradictions),
        cmocka_unit_test(test_every_number_hostile),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_precedence),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_generation_config),
        cmocka_unit_test(test_generation_config_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
