/* params_test.c - every field of the table against missing, null, wrong types, bounds, huge values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file_map.h"
#include "server/params.h"

enum { VOCAB = 1000 };

static size_t n_unknown;
static char last_unknown[64];

static void note_unknown(void *ctx, const char *name)
{
    (void)ctx;
    n_unknown++;
    snprintf(last_unknown, sizeof last_unknown, "%s", name);
}

static struct params_context context = {.vocab_size = VOCAB, .unknown = note_unknown};

/* Parse a body; on success *out and *body are the caller's, see done(). */
static enum status try_body(struct params *out, struct json_object **body, enum api api,
                            const char *text, struct error *err)
{
    enum status rc;

    memset(err, 0, sizeof *err);
    *body = NULL;
    rc = json_parse(body, text, strlen(text), err);
    if (rc != OK) {
        return rc;
    }
    rc = params_parse(out, api, *body, &context, err);
    if (rc != OK) {
        json_object_put(*body);
    }
    return rc;
}

static void done(struct params *p, struct json_object *body)
{
    params_release(p);
    json_object_put(body);
}

/* The status of {"prompt":"x","<field>":<value>}; texts of errors are checked to name the field. */
static enum status try_value(enum api api, const char *field, const char *value)
{
    char text[4096];
    struct params p;
    struct json_object *body;
    struct error err;
    enum status rc;

    snprintf(text, sizeof text, "{\"prompt\":\"x\",%s\"%s\":%s}",
             strcmp(field, "top_logprobs") == 0 ? "\"logprobs\":true," : "", field, value);
    rc = try_body(&p, &body, api, text, &err);
    if (rc == OK) {
        done(&p, body);
    } else if (rc != ERR_FORMAT) {
        assert_true(rc == ERR_BAD_REQUEST || rc == ERR_UNSUPPORTED);
        assert_int_equal(err.code, rc);
        if (strncmp(err.param, field, strlen(field)) != 0) {
            fail_msg("'%s' = %s: the error names '%s'", field, value, err.param);
        }
        assert_non_null(strstr(err.text, field));
    }
    return rc;
}

static const enum api apis[] = {API_CHAT, API_COMPLETIONS};

/* Values of every JSON type, and numbers that are no numbers anywhere. */
static const char *const odd_values[] = {
    "null",
    "true",
    "false",
    "0",
    "-1",
    "1",
    "1.5",
    "-0.0",
    "1e999",
    "-1e999",
    "1e-320",
    "2147483648",
    "9223372036854775807",
    "18446744073709551615",
    "-9223372036854775808",
    "\"\"",
    "\"1\"",
    "\"x\"",
    "\"\\u0000\"",
    "[]",
    "[[]]",
    "[1]",
    "[1.5]",
    "[\"a\"]",
    "[null]",
    "[{}]",
    "{}",
    "{\"a\":1}",
    "{\"type\":\"x\"}",
    "{\"type\":1}",
    "{\"1\":1}",
};

static void every_field_takes_any_value_or_names_itself(void **state)
{
    size_t n, n_tried = 0;
    const struct field *fields = params_fields(&n);

    (void)state;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < sizeof odd_values / sizeof *odd_values; k++) {
            for (size_t a = 0; a < 2; a++) {
                if (fields[i].apis & apis[a]) {
                    (void)try_value(apis[a], fields[i].name, odd_values[k]);
                    n_tried++;
                }
            }
        }
        for (size_t a = 0; a < 2; a++) {
            if (fields[i].apis & apis[a]) { /* null is absent */
                bool is_needed = strcmp(fields[i].name, "prompt") == 0;
                assert_int_equal(try_value(apis[a], fields[i].name, "null"),
                                 is_needed ? ERR_BAD_REQUEST : OK);
            }
        }
    }
    assert_true(n_tried > 3000);
}

static void number_text(char *out, size_t n, double v)
{
    snprintf(out, n, "%.17g", v);
}

static void ranges_hold_at_their_ends(void **state)
{
    size_t n;
    const struct field *fields = params_fields(&n);

    (void)state;
    for (size_t i = 0; i < n; i++) {
        const struct field *f = &fields[i];
        bool is_integer = f->kind == FIELD_SIZE || f->kind == FIELD_INT32;
        double step = is_integer ? 1 : 0.001;
        enum api api = f->apis & API_COMPLETIONS ? API_COMPLETIONS : API_CHAT;
        enum status at_min = f->min_is_open ? ERR_BAD_REQUEST : OK;
        char text[64];

        if (!is_integer && f->kind != FIELD_FLOAT) {
            continue;
        }
        if (strcmp(f->name, "min_tokens") == 0 || strcmp(f->name, "n") == 0) {
            continue; /* tested together with what limits them */
        }
        number_text(text, sizeof text, f->min);
        assert_int_equal(try_value(api, f->name, text), at_min);
        number_text(text, sizeof text, f->min - step);
        assert_int_equal(try_value(api, f->name, text), ERR_BAD_REQUEST);
        number_text(text, sizeof text, f->min + step);
        assert_int_equal(try_value(api, f->name, text), OK);
        number_text(text, sizeof text, f->max);
        assert_int_equal(try_value(api, f->name, text), OK);
        number_text(text, sizeof text, f->max + step);
        assert_int_equal(try_value(api, f->name, text), ERR_BAD_REQUEST);
        assert_int_equal(try_value(api, f->name, "1e999"), ERR_BAD_REQUEST);
        assert_int_equal(try_value(api, f->name, "\"1\""), ERR_BAD_REQUEST);
        assert_int_equal(try_value(api, f->name, "true"), ERR_BAD_REQUEST);
        assert_int_equal(try_value(api, f->name, "[1]"), ERR_BAD_REQUEST);
        assert_int_equal(try_value(api, f->name, "1.0"), OK);
        if (is_integer) {
            assert_int_equal(try_value(api, f->name, "1.5"), ERR_BAD_REQUEST);
        }
    }
}

static void flags_are_booleans_only(void **state)
{
    size_t n;
    const struct field *fields = params_fields(&n);

    (void)state;
    for (size_t i = 0; i < n; i++) {
        enum api api = fields[i].apis & API_CHAT ? API_CHAT : API_COMPLETIONS;
        if (fields[i].kind == FIELD_BOOL) {
            assert_int_equal(try_value(api, fields[i].name, "true"), OK);
            assert_int_equal(try_value(api, fields[i].name, "1"), ERR_BAD_REQUEST);
            assert_int_equal(try_value(api, fields[i].name, "\"true\""), ERR_BAD_REQUEST);
        } else if (fields[i].kind == FIELD_REFUSED) {
            assert_int_equal(try_value(api, fields[i].name, "\"x\""), ERR_UNSUPPORTED);
            assert_int_equal(try_value(api, fields[i].name, "\"\""), OK);
            assert_int_equal(try_value(api, fields[i].name, "false"), OK);
        } else if (fields[i].kind == FIELD_IGNORED) {
            assert_int_equal(try_value(api, fields[i].name, "[{\"x\":1}]"), OK);
        }
    }
}

static void texts_say_range_and_field(void **state)
{
    struct params p;
    struct json_object *body;
    struct error err;

    (void)state;
    assert_int_equal(try_body(&p, &body, API_CHAT, "{\"top_p\":0}", &err), ERR_BAD_REQUEST);
    assert_string_equal(err.text, "'top_p' must be a number above 0 and at most 1");
    assert_string_equal(err.param, "top_p");
    assert_int_equal(try_body(&p, &body, API_CHAT, "{\"max_tokens\":0}", &err), ERR_BAD_REQUEST);
    assert_string_equal(err.text,
                        "'max_tokens' must be an integer of at least 1 and at most 2147483647");
    assert_int_equal(try_body(&p, &body, API_CHAT, "{\"stream\":1}", &err), ERR_BAD_REQUEST);
    assert_string_equal(err.text, "'stream' must be true or false");
    assert_int_equal(try_body(&p, &body, API_CHAT, "[]", &err), ERR_BAD_REQUEST);
    assert_int_equal(try_body(&p, &body, API_CHAT, "null", &err), ERR_BAD_REQUEST);
}

static void defaults(void **state)
{
    const struct generation_config g = {.has_temperature = true,
                                        .temperature = 0.6,
                                        .has_top_k = true,
                                        .top_k = 20,
                                        .has_top_p = true,
                                        .top_p = 0.95};
    struct params p;
    struct json_object *body;
    struct error err;

    (void)state;
    assert_int_equal(try_body(&p, &body, API_CHAT, "{}", &err), OK);
    assert_true(p.sampling.temperature == 1.0f && p.sampling.top_p == 1.0f);
    assert_int_equal(p.sampling.top_k, -1);
    assert_int_equal(p.max_tokens, 0);
    assert_int_equal(p.n, 1);
    assert_true(p.skip_special && p.separate_reasoning && p.stream_reasoning && !p.stream);
    assert_false(p.sampling.has_seed || p.sampling.want_logprobs);
    done(&p, body);

    assert_int_equal(try_body(&p, &body, API_COMPLETIONS, "{\"prompt\":\"x\"}", &err), OK);
    assert_int_equal(p.max_tokens, 16);
    done(&p, body);

    context.generation = &g;
    assert_int_equal(try_body(&p, &body, API_CHAT, "{\"top_k\":7}", &err), OK);
    assert_true(p.sampling.temperature == 0.6f && p.sampling.top_p == 0.95f);
    assert_int_equal(p.sampling.top_k, 7);
    done(&p, body);
    context.generation = NULL;
}

static void the_newer_name_of_the_limit_wins(void **state)
{
    struct params p;
    struct json_object *body;
    struct error err;

    (void)state;
    assert_int_equal(
        try_body(&p, &body, API_CHAT, "{\"max_completion_tokens\":5,\"max_tokens\":9}", &err), OK);
    assert_int_equal(p.max_tokens, 5);
    done(&p, body);
    assert_int_equal(
        try_body(&p, &body, API_CHAT, "{\"max_tokens\":9,\"max_completion_tokens\":null}", &err),
        OK);
    assert_int_equal(p.max_tokens, 9);
    done(&p, body);
    assert_int_equal(try_value(API_CHAT, "max_completion_tokens", "0"), ERR_BAD_REQUEST);
    assert_int_equal(try_value(API_CHAT, "max_completion_tokens", "-3"), ERR_BAD_REQUEST);
}

static void fields_that_go_together(void **state)
{
    static const struct {
        enum api api;
        const char *body;
        enum status rc;
        const char *param;
    } cases[] = {
        {API_CHAT, "{\"stream_options\":{\"include_usage\":true}}", ERR_BAD_REQUEST,
         "stream_options"},
        {API_CHAT, "{\"stream\":false,\"stream_options\":{}}", ERR_BAD_REQUEST, "stream_options"},
        {API_CHAT, "{\"stream\":true,\"stream_options\":{\"include_usage\":1}}", ERR_BAD_REQUEST,
         "stream_options.include_usage"},
        {API_CHAT, "{\"top_logprobs\":2}", ERR_BAD_REQUEST, "top_logprobs"},
        {API_CHAT, "{\"top_logprobs\":0}", OK, NULL},
        {API_CHAT, "{\"max_tokens\":5,\"min_tokens\":6}", ERR_BAD_REQUEST, "min_tokens"},
        {API_CHAT, "{\"max_tokens\":5,\"min_tokens\":5}", OK, NULL},
        {API_CHAT, "{\"n\":129}", ERR_BAD_REQUEST, "n"},
        {API_CHAT, "{\"n\":128}", OK, NULL},
        {API_COMPLETIONS, "{}", ERR_BAD_REQUEST, "prompt"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"best_of\":2}", ERR_UNSUPPORTED, "best_of"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"n\":2,\"best_of\":1}", ERR_BAD_REQUEST, "best_of"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"n\":2,\"best_of\":2}", OK, NULL},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"echo\":true,\"logprobs\":1}", ERR_UNSUPPORTED,
         "echo"},
        {API_COMPLETIONS, "{\"prompt\":[]}", ERR_BAD_REQUEST, "prompt"},
        {API_COMPLETIONS, "{\"prompt\":[\"a\",1]}", ERR_BAD_REQUEST, "prompt"},
        {API_COMPLETIONS, "{\"prompt\":[\"a\",[1,2]]}", OK, NULL},
        {API_COMPLETIONS, "{\"prompt\":[[]]}", ERR_BAD_REQUEST, "prompt"},
        {API_COMPLETIONS, "{\"prompt\":{\"a\":1}}", ERR_BAD_REQUEST, "prompt"},
        {API_CHAT, "{\"response_format\":{\"type\":\"text\"}}", OK, NULL},
        {API_CHAT, "{\"response_format\":{\"type\":\"json_object\"}}", ERR_UNSUPPORTED,
         "response_format"},
        {API_CHAT, "{\"response_format\":{\"type\":\"json_schema\"}}", ERR_UNSUPPORTED,
         "response_format"},
        {API_CHAT, "{\"response_format\":{}}", ERR_BAD_REQUEST, "response_format"},
        {API_CHAT, "{\"modalities\":[\"text\"]}", OK, NULL},
        {API_CHAT, "{\"modalities\":[\"text\",\"audio\"]}", ERR_UNSUPPORTED, "modalities"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct params p;
        struct json_object *body;
        struct error err;
        enum status rc = try_body(&p, &body, cases[i].api, cases[i].body, &err);
        if (rc != cases[i].rc) {
            fail_msg("%s: status %d, '%s'", cases[i].body, (int)rc, err.text);
        }
        if (rc == OK) {
            done(&p, body);
        } else {
            assert_string_equal(err.param, cases[i].param);
        }
    }
}

static void biases_are_checked(void **state)
{
    static const char *const bad[] = {"{\"1000\":1}",
                                      "{\"-1\":1}",
                                      "{\"1x\":1}",
                                      "{\"\":1}",
                                      "{\"x\":1}",
                                      "{\" 1\":1}",
                                      "{\"1\":101}",
                                      "{\"1\":-100.5}",
                                      "{\"1\":null}",
                                      "{\"1\":\"5\"}",
                                      "{\"1\":1e999}",
                                      "{\"1\":true}",
                                      "{\"99999999999999999999999\":1}",
                                      "[1]",
                                      "5"};
    struct params p;
    struct json_object *body;
    struct error err;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(try_value(API_CHAT, "logit_bias", bad[i]), ERR_BAD_REQUEST);
    }
    assert_int_equal(
        try_body(&p, &body, API_CHAT, "{\"logit_bias\":{\"0\":-100,\"999\":100.0}}", &err), OK);
    assert_int_equal(p.sampling.n_bias, 2);
    assert_int_equal(p.sampling.bias[0].id, 0);
    assert_true(p.sampling.bias[0].bias == -100.0f);
    assert_int_equal(p.sampling.bias[1].id, 999);
    done(&p, body);
}

static void stops(void **state)
{
    struct params p;
    struct json_object *body;
    struct error err;
    struct buf text;

    (void)state;
    assert_int_equal(try_body(&p, &body, API_CHAT, "{\"stop\":\"END\"}", &err), OK);
    assert_int_equal(p.n_stop, 1);
    assert_true(str_eq(p.stop[0], STR("END")));
    done(&p, body);
    assert_int_equal(try_body(&p, &body, API_CHAT, "{\"stop\":[\"a\",\"\",\"b\\u0000c\"]}", &err),
                     OK);
    assert_int_equal(p.n_stop, 2);
    assert_int_equal(p.stop[1].len, 3);
    done(&p, body);
    assert_int_equal(try_value(API_CHAT, "stop", "[1]"), ERR_BAD_REQUEST);
    assert_int_equal(try_value(API_CHAT, "stop", "{}"), ERR_BAD_REQUEST);
    assert_int_equal(try_value(API_CHAT, "stop_token_ids", "[0,999]"), OK);
    assert_int_equal(try_value(API_CHAT, "stop_token_ids", "[1000]"), ERR_BAD_REQUEST);
    assert_int_equal(try_value(API_CHAT, "stop_token_ids", "[-1]"), ERR_BAD_REQUEST);

    for (int n = 64; n <= 65; n++) { /* limits: texts, and bytes of one */
        buf_init(&text);
        buf_append_str(&text, "[\"x\"");
        for (int i = 1; i < n; i++) {
            buf_append_str(&text, ",\"x\"");
        }
        buf_append_char(&text, ']');
        assert_int_equal(try_value(API_CHAT, "stop", buf_cstr(&text)),
                         n <= 64 ? OK : ERR_BAD_REQUEST);
        buf_release(&text);
    }
    for (int n = 1024; n <= 1025; n++) {
        buf_init(&text);
        buf_appendf(&text, "\"%0*d\"", n, 0);
        assert_int_equal(try_value(API_CHAT, "stop", buf_cstr(&text)),
                         n <= 1024 ? OK : ERR_BAD_REQUEST);
        buf_release(&text);
    }
}

static void seeds_have_64_bits(void **state)
{
    static const struct {
        const char *text;
        uint64_t seed;
    } cases[] = {{"0", 0},
                 {"-1", UINT64_MAX},
                 {"9007199254740993", 9007199254740993u},
                 {"18446744073709551615", UINT64_MAX},
                 {"9223372036854775808", 9223372036854775808u},
                 {"5.0", 5}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64];
        struct params p;
        struct json_object *body;
        struct error err;
        snprintf(text, sizeof text, "{\"seed\":%s}", cases[i].text);
        assert_int_equal(try_body(&p, &body, API_CHAT, text, &err), OK);
        assert_true(p.sampling.has_seed);
        assert_true(p.sampling.seed == cases[i].seed);
        done(&p, body);
    }
    assert_int_equal(try_value(API_CHAT, "seed", "1.5"), ERR_BAD_REQUEST);
    assert_int_equal(try_value(API_CHAT, "seed", "\"1\""), ERR_BAD_REQUEST);
}

static bool kwarg_is(const struct params *p, const char *name, const char *expected)
{
    struct buf b;
    bool same;

    buf_init(&b);
    json_write(&b, json_get(p->template_kwargs, name));
    same = strcmp(buf_cstr(&b), expected) == 0;
    buf_release(&b);
    return same;
}

static void template_variables(void **state)
{
    static const struct {
        const char *body, *thinking, *effort;
    } cases[] = {
        {"{}", "null", "null"},
        {"{\"chat_template_kwargs\":{\"enable_thinking\":false}}", "false", "null"},
        {"{\"reasoning_effort\":\"none\"}", "false", "null"},
        {"{\"reasoning_effort\":\"high\"}", "null", "\"high\""},
        {"{\"reasoning_effort\":0.5}", "null", "0.5"},
        {"{\"reasoning\":{\"enabled\":false}}", "false", "null"},
        {"{\"reasoning\":{\"effort\":\"low\",\"enabled\":true}}", "true", "\"low\""},
        {"{\"chat_template_kwargs\":{\"enable_thinking\":true},\"reasoning_effort\":\"none\"}",
         "true", "null"},
    };
    static const char *const bad[] = {"{\"chat_template\":\"x\"}",
                                      "{\"tokenize\":true}",
                                      "{\"enable_thinking\":\"false\"}",
                                      "{\"enable_thinking\":1}",
                                      "{\"messages\":[]}",
                                      "{\"reasoning_effort\":\"huge\"}",
                                      "5",
                                      "[]"};
    struct params p;
    struct json_object *body;
    struct error err;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(try_body(&p, &body, API_CHAT, cases[i].body, &err), OK);
        if (!kwarg_is(&p, "enable_thinking", cases[i].thinking) ||
            !kwarg_is(&p, "reasoning_effort", cases[i].effort)) {
            fail_msg("%s", cases[i].body);
        }
        done(&p, body);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(try_value(API_CHAT, "chat_template_kwargs", bad[i]), ERR_BAD_REQUEST);
    }
    assert_int_equal(try_value(API_CHAT, "reasoning_effort", "1"), ERR_BAD_REQUEST);
    assert_int_equal(try_value(API_CHAT, "reasoning_effort", "\"loud\""), ERR_BAD_REQUEST);
    assert_int_equal(try_value(API_CHAT, "chat_template", "\"{{ x }}\""), ERR_UNSUPPORTED);
}

static void the_servers_variables_come_last(void **state)
{
    struct params p;
    struct json_object *body, *standard = NULL;
    struct error err;
    static const char text[] = "{\"enable_thinking\":false,\"preserve_thinking\":true}";

    (void)state;
    assert_int_equal(json_parse(&standard, text, sizeof text - 1, &err), OK);
    context.default_template_kwargs = standard;
    assert_int_equal(try_body(&p, &body, API_CHAT,
                              "{\"chat_template_kwargs\":{\"enable_thinking\":true}}", &err),
                     OK);
    assert_true(kwarg_is(&p, "enable_thinking", "true"));
    assert_true(kwarg_is(&p, "preserve_thinking", "true"));
    done(&p, body);
    context.default_template_kwargs = NULL;
    json_object_put(standard);
}

static void tools_are_checked(void **state)
{
    static const char good[] =
        "[{\"type\":\"function\",\"strict\":true,\"function\":{\"name\":\"f\",\"parameters\":"
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":[\"string\",\"null\"]},\"b\":true,"
        "\"c\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}}}}}]";
    static const char *const bad[] = {
        "{}",
        "[1]",
        "[{\"type\":\"function\"}]",
        "[{\"type\":\"retrieval\",\"function\":{\"name\":\"f\"}}]",
        "[{\"function\":{\"name\":\"\"}}]",
        "[{\"function\":{\"name\":\"a b\"}}]",
        "[{\"function\":{\"name\":\"a<b\"}}]",
        "[{\"function\":{\"name\":5}}]",
        "[{\"function\":{\"name\":\"f\",\"parameters\":[]}}]",
        "[{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"thing\"}}}]",
        "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":5}}}}]",
        "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":[]}}}]",
    };
    struct params p;
    struct json_object *body;
    struct error err;

    (void)state;
    assert_int_equal(try_value(API_CHAT, "tools", good), OK);
    assert_int_equal(try_value(API_CHAT, "tools", "[{\"function\":{\"name\":\"f\"}}]"), OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(try_value(API_CHAT, "tools", bad[i]), ERR_BAD_REQUEST);
    }
    assert_int_equal(try_body(&p, &body, API_CHAT, "{\"tools\":[],\"tool_choice\":\"auto\"}", &err),
                     OK);
    assert_null(p.tools);
    done(&p, body);
    assert_int_equal(try_value(API_CHAT, "tool_choice", "\"none\""), OK);
    assert_int_equal(try_value(API_CHAT, "tool_choice", "\"required\""), ERR_UNSUPPORTED);
    assert_int_equal(try_value(API_CHAT, "tool_choice", "{\"type\":\"function\"}"),
                     ERR_UNSUPPORTED);
    assert_int_equal(try_value(API_CHAT, "tool_choice", "\"any\""), ERR_BAD_REQUEST);
}

static void unknown_fields_are_named_and_ignored(void **state)
{
    struct params p;
    struct json_object *body;
    struct error err;
    struct buf text;

    (void)state;
    n_unknown = 0;
    assert_int_equal(try_body(&p, &body, API_CHAT,
                              "{\"vendor\":{\"x\":1},\"user\":\"u\",\"temperature\":0}", &err),
                     OK);
    assert_int_equal(n_unknown, 1);
    assert_string_equal(last_unknown, "vendor");
    done(&p, body);

    for (int n = 256; n <= 257; n++) {
        buf_init(&text);
        buf_append_str(&text, "{\"n\":1");
        for (int i = 1; i < n; i++) {
            buf_appendf(&text, ",\"x%d\":1", i);
        }
        buf_append_char(&text, '}');
        if (n == 256) {
            assert_int_equal(try_body(&p, &body, API_CHAT, buf_cstr(&text), &err), OK);
            done(&p, body);
        } else {
            assert_int_equal(try_body(&p, &body, API_CHAT, buf_cstr(&text), &err), ERR_BAD_REQUEST);
        }
        buf_release(&text);
    }
}

static void every_field_is_documented(void **state)
{
    size_t n, len;
    const struct field *fields = params_fields(&n);
    char *doc = NULL;
    struct error err;

    (void)state;
    assert_int_equal(file_read(&doc, &len, SPILLWAY_SOURCE_DIR "/docs/HTTP-API.md", 1 << 20, &err),
                     OK);
    for (size_t i = 0; i < n; i++) {
        char quoted[96];
        snprintf(quoted, sizeof quoted, "`%s`", fields[i].name);
        if (!strstr(doc, quoted)) {
            fail_msg("docs/HTTP-API.md does not name %s", quoted);
        }
    }
    free(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_takes_any_value_or_names_itself),
        cmocka_unit_test(ranges_hold_at_their_ends),
        cmocka_unit_test(flags_are_booleans_only),
        cmocka_unit_test(texts_say_range_and_field),
        cmocka_unit_test(defaults),
        cmocka_unit_test(the_newer_name_of_the_limit_wins),
        cmocka_unit_test(fields_that_go_together),
        cmocka_unit_test(biases_are_checked),
        cmocka_unit_test(stops),
        cmocka_unit_test(seeds_have_64_bits),
        cmocka_unit_test(template_variables),
        cmocka_unit_test(the_servers_variables_come_last),
        cmocka_unit_test(tools_are_checked),
        cmocka_unit_test(unknown_fields_are_named_and_ignored),
        cmocka_unit_test(every_field_is_documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
