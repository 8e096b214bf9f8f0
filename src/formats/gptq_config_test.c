/* gptq_config_test.c - tests of quantization_config and its `dynamic` rules.
 *
 * Configs are text with single quotes. */
#include "formats/test_dir.h"

#include "base/buf.h"
#include "formats/gptq.h"

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

static struct gptq_config *make(const char *text)
{
    struct json_object *o = parse(text);
    struct gptq_config *c;
    struct error err = {0};

    if (gptq_config_new(&c, o, &err) != OK) {
        fail_msg("%s", err.text);
    }
    json_object_put(o);
    assert_non_null(c);
    return c;
}

static struct gptq_settings settings_for(const struct gptq_config *c, const char *name)
{
    struct gptq_settings s;
    struct error err = {0};

    if (gptq_config_for(&s, c, name, &err) != OK) {
        fail_msg("%s", err.text);
    }
    return s;
}

static void test_defaults(void **state)
{
    struct gptq_config *c;
    const struct gptq_settings *s;
    struct error err = {0};

    (void)state;
    assert_int_equal(gptq_config_new(&c, NULL, &err), OK); /* not quantised */
    assert_null(c);
    gptq_config_free(NULL);

    c = make("{'bits':4}"); /* an old quantize_config.json */
    s = gptq_config_default(c);
    assert_int_equal(s->bits, 4);
    assert_int_equal(s->group_size, 128);
    assert_true(s->is_symmetric);
    assert_false(s->has_desc_act);
    assert_false(s->is_v2);
    assert_true(s->is_quantised);
    assert_true(settings_for(c, "any.module").is_quantised);
    gptq_config_free(c);

    c = make("{'quant_method':'gptq','bits':8,'group_size':-1,'sym':false,'desc_act':true,"
             "'checkpoint_format':'gptq_v2','pack_dtype':'int32','lm_head':true,'meta':{'x':[1]},"
             "'damp_percent':0.01}");
    s = gptq_config_default(c);
    assert_int_equal(s->bits, 8);
    assert_int_equal(s->group_size, -1);
    assert_false(s->is_symmetric);
    assert_true(s->has_desc_act);
    assert_true(s->is_v2);
    assert_true(settings_for(c, "lm_head").is_quantised);
    gptq_config_free(c);

    c = make("{'bits':4,'format':'gptq_v2'}"); /* the older name */
    assert_true(gptq_config_default(c)->is_v2);
    gptq_config_free(c);
    c = make("{'bits':4,'format':'gptq_v2','checkpoint_format':'gptq'}"); /* the newer wins */
    assert_false(gptq_config_default(c)->is_v2);
    gptq_config_free(c);
}

/* The rules of the official files. */
static void test_official_rules(void **state)
{
    static const struct {
        const char *name;
        bool is_quantised;
    } cases[] = {
        {"model.language_model.layers.0.mlp.experts.17.gate_proj", true},
        {"model.language_model.layers.3.mlp.experts.0.down_proj", true},
        {"model.language_model.layers.3.self_attn.q_proj", false},
        {"model.language_model.layers.0.linear_attn.in_proj_qkv", false}, /* "attn" is in it */
        {"model.language_model.layers.0.mlp.shared_expert.up_proj", false},
        {"model.language_model.layers.0.mlp.shared_expert_gate", false},
        {"mtp.layers.0.mlp.experts.0.up_proj", false},
        {"model.visual.blocks.0.mlp.linear_fc1", false},
        {"model.language_model.layers.0.mlp.gate", true}, /* no rule: the file's content decides */
        {"lm_head", false},
        {"model.language_model.embed_tokens", false},
    };
    struct gptq_config *c =
        make("{'quant_method':'gptq','bits':4,'group_size':128,'sym':true,'desc_act':false,"
             "'checkpoint_format':'gptq','lm_head':false,'dynamic':{'lm_head':{},"
             "'model.language_model.embed_tokens':{},'-:.*attn.*':{},'-:.*shared_expert.*':{},"
             "'-:.*mtp.*':{},'-:.*visual.*':{}}}");

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (settings_for(c, cases[i].name).is_quantised != cases[i].is_quantised) {
            fail_msg("%s", cases[i].name);
        }
    }
    gptq_config_free(c);
}

static void test_first_match_wins(void **state)
{
    struct gptq_config *c =
        make("{'bits':4,'group_size':128,'dynamic':{"
             "'-:.*\\\\.0\\\\.mlp':{},"
             "'+:.*\\\\.[01]\\\\.mlp\\\\.(gate|up)_proj':{'bits':8,'group_size':32},"
             "'.*up_proj$':{'sym':false,'desc_act':true},"
             "'layers':{'bits':8}}}");
    struct gptq_settings s;

    (void)state;
    s = settings_for(c, "m.0.mlp.gate_proj"); /* a "-:" before a "+:" */
    assert_false(s.is_quantised);
    assert_int_equal(s.bits, 4);
    s = settings_for(c, "m.1.mlp.gate_proj"); /* one part of a pair that others fuse */
    assert_true(s.is_quantised);
    assert_int_equal(s.bits, 8);
    assert_int_equal(s.group_size, 32);
    assert_true(s.is_symmetric);            /* not overridden */
    s = settings_for(c, "m.1.mlp.up_proj"); /* both match: the first */
    assert_int_equal(s.bits, 8);
    assert_false(s.has_desc_act);
    s = settings_for(c, "m.2.mlp.up_proj");
    assert_int_equal(s.bits, 4);
    assert_false(s.is_symmetric);
    assert_true(s.has_desc_act);
    s = settings_for(c, "m.2.mlp.up_proj_x"); /* '$' is the end */
    assert_true(s.is_symmetric);
    s = settings_for(c, "m.layers.2"); /* matching begins at the start of the name ... */
    assert_int_equal(s.bits, 4);
    s = settings_for(c, "layers.2"); /* ... and need not reach its end */
    assert_int_equal(s.bits, 8);
    gptq_config_free(c);
}

/* An alternative must not escape the anchor: a|b at the start means both. */
static void test_python_patterns(void **state)
{
    struct gptq_config *c =
        make("{'bits':4,'dynamic':{'-:abc|.*def':{},'-:(?P<n>x+)y(?P=n)':{},'-:(?i)UP':{}}}");

    (void)state;
    assert_false(settings_for(c, "abcd").is_quantised);
    assert_false(settings_for(c, "xxdef").is_quantised);
    assert_true(settings_for(c, "xabc").is_quantised);
    assert_false(settings_for(c, "xxyxx").is_quantised);
    assert_true(settings_for(c, "xxyz").is_quantised);
    assert_false(settings_for(c, "up_proj").is_quantised);
    assert_true(settings_for(c, "").is_quantised);
    gptq_config_free(c);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *text;
        enum status rc;
        const char *says;
    } cases[] = {
        {"[]", ERR_FORMAT, "not an object"},
        {"{}", ERR_FORMAT, "'quant_method' is missing"},
        {"{'quant_method':'gptq'}", ERR_FORMAT, "'bits' is missing"},
        {"{'quant_method':'awq','bits':4}", ERR_UNSUPPORTED, "quantization 'awq'"},
        {"{'quant_method':'fp8'}", ERR_UNSUPPORTED, "quantization 'fp8'"},
        {"{'quant_method':7,'bits':4}", ERR_FORMAT, "quant_method"},
        {"{'bits':2}", ERR_UNSUPPORTED, "gptq with 2 bits"},
        {"{'bits':3}", ERR_UNSUPPORTED, "gptq with 3 bits"},
        {"{'bits':0}", ERR_FORMAT, "'bits' is 0"},
        {"{'bits':-4}", ERR_FORMAT, "bits"},
        {"{'bits':'4'}", ERR_FORMAT, "bits"},
        {"{'bits':4294967300}", ERR_FORMAT, "bits"},
        {"{'bits':4,'group_size':0}", ERR_FORMAT, "'group_size' is 0"},
        {"{'bits':4,'group_size':-2}", ERR_FORMAT, "'group_size' is -2"},
        {"{'bits':4,'group_size':1e308}", ERR_FORMAT, "group_size"},
        {"{'bits':4,'group_size':4611686018427387904}", ERR_FORMAT, "group_size"},
        {"{'bits':4,'sym':1}", ERR_FORMAT, "sym"},
        {"{'bits':4,'desc_act':'yes'}", ERR_FORMAT, "desc_act"},
        {"{'bits':4,'lm_head':0}", ERR_FORMAT, "lm_head"},
        {"{'bits':4,'checkpoint_format':'marlin'}", ERR_UNSUPPORTED, "checkpoint_format 'marlin'"},
        {"{'bits':4,'format':'bitblas'}", ERR_UNSUPPORTED, "checkpoint_format 'bitblas'"},
        {"{'bits':4,'is_marlin_format':true}", ERR_UNSUPPORTED, "checkpoint_format 'marlin'"},
        {"{'bits':4,'pack_dtype':'int8'}", ERR_UNSUPPORTED, "pack_dtype"},
        {"{'bits':4,'dynamic':[]}", ERR_FORMAT, "'dynamic' is not an object"},
        {"{'bits':4,'dynamic':{'a(':{}}}", ERR_FORMAT, "rule 'a(' of 'dynamic'"},
        {"{'bits':4,'dynamic':{'a\\\\Cb':{}}}", ERR_FORMAT, "not a valid pattern"},
        {"{'bits':4,'dynamic':{'a':1}}", ERR_FORMAT, "rule 'a' of 'dynamic': its value"},
        {"{'bits':4,'dynamic':{'a':{'bits':3}}}", ERR_UNSUPPORTED,
         "rule 'a' of 'dynamic': gptq with 3"},
        {"{'bits':4,'dynamic':{'a':{'group_size':0}}}", ERR_FORMAT, "rule 'a' of 'dynamic'"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct json_object *o = parse(cases[i].text);
        struct gptq_config *c;
        struct error err = {0};

        if (gptq_config_new(&c, o, &err) != cases[i].rc) {
            fail_msg("%s: %s", cases[i].text, err.text);
        }
        assert_null(c);
        test_error_has(&err, "quantization_config");
        test_error_has(&err, cases[i].says);
        json_object_put(o);
    }
}

static void test_limits(void **state)
{
    (void)state;
    for (int more = 0; more < 2; more++) {
        struct buf b;
        struct json_object *o;
        struct gptq_config *c;
        struct error err = {0};

        buf_init(&b);
        buf_append_str(&b, "{'bits':4,'dynamic':{");
        for (int i = 0; i < GPTQ_RULES_MAX + more; i++) {
            buf_appendf(&b, "%s'r%d':{}", i ? "," : "", i);
        }
        buf_append_str(&b, "}}");
        o = parse(buf_cstr(&b));
        assert_int_equal(gptq_config_new(&c, o, &err), more ? ERR_LIMIT : OK);
        gptq_config_free(c);
        json_object_put(o);

        buf_clear(&b);
        buf_append_str(&b, "{'bits':4,'dynamic':{'");
        for (int i = 0; i < GPTQ_PATTERN_BYTES_MAX + more; i++) {
            buf_append_char(&b, 'a');
        }
        buf_append_str(&b, "':{}}}");
        o = parse(buf_cstr(&b));
        assert_int_equal(gptq_config_new(&c, o, &err), more ? ERR_LIMIT : OK);
        gptq_config_free(c);
        json_object_put(o);
        buf_release(&b);
    }
}

/* A pattern that backtracks without end is stopped, and named. */
static void test_hostile_pattern(void **state)
{
    struct gptq_config *c = make("{'bits':4,'dynamic':{'-:(a|aa)+[bd]':{}}}");
    struct gptq_settings s;
    struct error err = {0};

    (void)state;
    assert_int_equal(gptq_config_for(&s, c, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac", &err),
                     ERR_FORMAT);
    test_error_has(&err, "rule '-:(a|aa)+[bd]' of 'dynamic' gives up");
    assert_false(settings_for(c, "aab").is_quantised);
    gptq_config_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),         cmocka_unit_test(test_official_rules),
        cmocka_unit_test(test_first_match_wins), cmocka_unit_test(test_python_patterns),
        cmocka_unit_test(test_refusals),         cmocka_unit_test(test_limits),
        cmocka_unit_test(test_hostile_pattern),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
