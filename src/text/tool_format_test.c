/* tool_format_test.c - tool calls over every cut of many scripts; hostile text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "text/tool_format.h"

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},"
    "\"n\":{\"type\":\"number\"},\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},"
    "\"a\":{\"type\":\"array\"},\"u\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]},"
    "\"t\":{\"type\":[\"string\",\"integer\"]},\"e\":{\"enum\":[\"x\",\"1\"]},"
    "\"r\":{\"$ref\":\"#/d\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"bare\"}}]";

/* What a run of the parser said: content, then each call as NAME(ARGUMENTS). */
struct record {
    struct buf text;
    size_t n_calls;
    bool in_call;
};

static void on_event(void *ctx, const struct tool_event *e)
{
    struct record *r = ctx;

    switch (e->kind) {
    case TOOL_EVENT_CONTENT:
        assert_false(r->in_call);
        assert_true(e->text.len > 0);
        buf_append(&r->text, e->text.ptr, e->text.len);
        break;
    case TOOL_EVENT_CALL:
        assert_false(r->in_call);
        assert_int_equal(e->index, r->n_calls);
        r->n_calls++;
        r->in_call = true;
        buf_append_char(&r->text, '[');
        buf_append(&r->text, e->text.ptr, e->text.len);
        buf_append_char(&r->text, ' ');
        break;
    case TOOL_EVENT_ARGUMENTS:
        assert_true(r->in_call);
        assert_true(e->text.len > 0);
        assert_int_equal(e->index, r->n_calls - 1);
        buf_append(&r->text, e->text.ptr, e->text.len);
        break;
    case TOOL_EVENT_CALL_END:
        assert_true(r->in_call);
        r->in_call = false;
        buf_append_char(&r->text, ']');
        break;
    }
}

#define CALL(body)     "<tool_call>\n<function=f>\n" body "</function>\n</tool_call>"
#define ARG(key, text) "<parameter=" key ">\n" text "\n</parameter>\n"

static const struct {
    const char *text, *expected;
} scripts[] = {
    {"", ""},
    {"Hello <b> there </b> \n", "Hello <b> there </b> \n"},
    {CALL(""), "[f {}]"},
    {"Let me look.\n\n" CALL(ARG("s", "Paris")), "Let me look.[f {\"s\":\"Paris\"}]"},
    {CALL(ARG("s", "a") ARG("i", "5") ARG("b", "true")), "[f {\"s\":\"a\",\"i\":5,\"b\":true}]"},
    {CALL(ARG("s", "a")) "\n" CALL(ARG("i", "-1")) "\n", "[f {\"s\":\"a\"}][f {\"i\":-1}]"},
    {CALL("") "\nafter <x>", "[f {}]after <x>"},
    /* types */
    {CALL(ARG("i", "x5")), "[f {\"i\":\"x5\"}]"},
    {CALL(ARG("i", "5.5")), "[f {\"i\":\"5.5\"}]"},
    {CALL(ARG("i", "99999999999999999999")), "[f {\"i\":\"99999999999999999999\"}]"},
    {CALL(ARG("n", "5") ARG("n", "1e3")), "[f {\"n\":5,\"n\":1e3}]"},
    {CALL(ARG("n", "NaN")), "[f {\"n\":\"NaN\"}]"},
    {CALL(ARG("b", "True") ARG("b", "False") ARG("b", "yes")),
     "[f {\"b\":true,\"b\":false,\"b\":\"yes\"}]"},
    {CALL(ARG("o", "{\"k\": [1, 2]}")), "[f {\"o\":{\"k\":[1,2]}}]"},
    {CALL(ARG("o", "[1]") ARG("o", "{'k': 1}")), "[f {\"o\":\"[1]\",\"o\":\"{'k': 1}\"}]"},
    {CALL(ARG("a", " [1,\n2] ")), "[f {\"a\":[1,2]}]"},
    {CALL(ARG("s", "null") ARG("i", "null") ARG("s", "nullx") ARG("s", "nul")),
     "[f {\"s\":null,\"i\":null,\"s\":\"nullx\",\"s\":\"nul\"}]"},
    {CALL(ARG("s", "5") ARG("t", "5") ARG("e", "1") ARG("unknown", "5")),
     "[f {\"s\":\"5\",\"t\":\"5\",\"e\":\"1\",\"unknown\":\"5\"}]"},
    {CALL(ARG("u", "7") ARG("u", "seven")), "[f {\"u\":7,\"u\":\"seven\"}]"},
    {CALL(ARG("r", "{\"x\":1}") ARG("r", "plain")), "[f {\"r\":{\"x\":1},\"r\":\"plain\"}]"},
    {"<tool_call>\n<function=nobody>\n" ARG("i", "5") "</function>\n</tool_call>",
     "[nobody {\"i\":\"5\"}]"},
    {"<tool_call><function=bare><parameter=x>1</parameter></function></tool_call>",
     "[bare {\"x\":\"1\"}]"},
    /* newlines of values */
    {CALL("<parameter=s></parameter>"), "[f {\"s\":\"\"}]"},
    {CALL("<parameter=s>\n</parameter>"), "[f {\"s\":\"\"}]"},
    {CALL("<parameter=s>\n\n</parameter>"), "[f {\"s\":\"\"}]"},
    {CALL("<parameter=s>\n\n\na\n\n</parameter>"), "[f {\"s\":\"\\n\\na\\n\"}]"},
    {CALL("<parameter=s>a b</parameter>"), "[f {\"s\":\"a b\"}]"},
    /* what a program in a value may hold */
    {CALL(ARG("s", "if (a < b && c</x) { \"q\" \\ '\\u0000' }")),
     "[f {\"s\":\"if (a < b && c</x) { \\\"q\\\" \\\\ '\\\\u0000' }\"}]"},
    {CALL(ARG("s", "</param <parameter </function ")),
     "[f {\"s\":\"</param <parameter </function \"}]"},
    {CALL(ARG("s", "<<</p<")), "[f {\"s\":\"<<</p<\"}]"},
    {CALL(ARG("s", "<tool_call>")), "[f {\"s\":\"<tool_call>\"}]"},
    {CALL(ARG("s", "\xf0\x9f\x98\x80 \xe6\xbc\xa2")),
     "[f {\"s\":\"\xf0\x9f\x98\x80 \xe6\xbc\xa2\"}]"},
    {CALL(ARG("k\"y", "v")), "[f {\"k\\\"y\":\"v\"}]"},
    /* missing ends */
    {"<tool_call>\n<function=f>\n<parameter=s>\na\n<parameter=i>\n5\n</function>\n</tool_call>",
     "[f {\"s\":\"a\",\"i\":5}]"},
    {"<tool_call>\n<function=f>\n<parameter=s>\na\n</tool_call>x", "[f {\"s\":\"a\"}]x"},
    {"<tool_call>\n<function=f>\n<parameter=s>\na", "[f {\"s\":\"a\"}]"},
    {"<tool_call>\n<function=f>\n<parameter=i>\n5\n</param", "[f {\"i\":\"5\\n</param\"}]"},
    {"<tool_call>\n<function=f>\n<parameter=i", "[f {}]"},
    {"<tool_call>\n<function=f>", "[f {}]"},
    {"<tool_call>\n<function=f>\n</function>\n<tool_call>\n<function=f>", "[f {}][f {}]"},
    {"<tool_call>\n<function=f>\n<tool_call>\n<function=g>", "[f {}][g {}]"},
    {"<tool_call>\n<function=f>\n<function=g>\n</function></tool_call>", "[f {}][g {}]"},
    {"<tool_call>\n<function=f>\n</function> text", "[f {}]text"},
    {"<tool_call><function=f></function><tool", "[f {}]<tool"},
    /* no calls after all */
    {"a <tool_call", "a <tool_call"},
    {"a <tool_call> b", "a <tool_call> b"},
    {"<tool_call>\n<fun b", "<tool_call>\n<fun b"},
    {"<tool_call>\n<f<function=f>", "<tool_call>\n<f<function=f>"},
    {"<tool_call>\n<function=>", "<tool_call>\n<function=>"},
    {"<tool_call>\n<function=a\nb>", "<tool_call>\n<function=a\nb>"},
    {"<tool_call>\n<function=a", "<tool_call>\n<function=a"},
    {"<tool_call>{\"name\":\"f\"}</tool_call>", "<tool_call>{\"name\":\"f\"}</tool_call>"},
    {"<tool_call> <tool_call><function=f></function></tool_call>", "<tool_call> [f {}]"},
    {"<tool_call><function=<tool_call><function=f></function></tool_call>",
     "<tool_call><function=[f {}]"},
    {"<<tool_call><function=f></function></tool_call>", "<[f {}]"},
    {CALL("junk " ARG("s", "a") "junk <x> <parameter=> <parameter=\n"), "[f {\"s\":\"a\"}]"},
};

static struct json_object *tools;

static void check_pieces(const char *text, const char *expected, const size_t *ends, size_t n_ends)
{
    struct record r = {0};
    struct tool_parser *p = tool_parser_new(tools, on_event, &r);
    size_t at = 0;

    assert_non_null(p);
    for (size_t i = 0; i < n_ends; i++) {
        assert_true(tool_parser_push(p, (struct str){text + at, ends[i] - at}));
        at = ends[i];
    }
    assert_true(tool_parser_finish(p));
    assert_false(r.in_call);
    assert_int_equal(tool_parser_n_calls(p), r.n_calls);
    assert_string_equal(buf_cstr(&r.text), expected);
    tool_parser_free(p);
    buf_release(&r.text);
}

static void every_cut_gives_the_whole(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof scripts / sizeof *scripts; k++) {
        const char *text = scripts[k].text, *expected = scripts[k].expected;
        size_t len = strlen(text), bytes[512];

        check_pieces(text, expected, &len, 1);
        for (size_t i = 0; i < len; i++) {
            bytes[i] = i + 1;
        }
        check_pieces(text, expected, bytes, len);
        for (size_t i = 0; i <= len; i++) {
            check_pieces(text, expected, (size_t[]){i, len}, 2);
            check_pieces(text, expected, (size_t[]){i, i + (len - i) / 2, len}, 3);
        }
    }
}

/* Random mixtures of the tags: whatever comes, the arguments are JSON and cuts do not matter. */
static void collect(void *ctx, const struct tool_event *e)
{
    struct record *r = ctx;

    if (e->kind == TOOL_EVENT_ARGUMENTS) {
        buf_append(&r->text, e->text.ptr, e->text.len);
    } else if (e->kind == TOOL_EVENT_CALL_END) {
        struct json_object *v = NULL;
        assert_int_equal(json_parse(&v, r->text.data, r->text.len, NULL), OK);
        assert_int_equal(json_object_get_type(v), json_type_object);
        json_object_put(v);
        buf_clear(&r->text);
        r->n_calls++;
    }
}

static void arguments_are_json_whatever_comes(void **state)
{
    static const char *const parts[] = {
        "<tool_call>",
        "</tool_call>",
        "<function=",
        "<function=f>",
        "</function>",
        "<parameter=s>",
        "<parameter=i>",
        "</parameter>",
        "<parameter=",
        "null",
        "\n",
        "<",
        ">",
        "{\"a\":",
        "\"",
        "\\",
        "5",
        "\x01",
        "\xe6\xbc",
        "\xff",
        "</",
        " x ",
    };
    uint32_t seed = 1;

    (void)state;
    for (size_t round = 0; round < 3000; round++) {
        struct record r = {0};
        struct tool_parser *p = tool_parser_new(tools, collect, &r);

        assert_non_null(p);
        assert_true(tool_parser_push(p, STR("<tool_call><function=f>")));
        for (size_t i = 0; i < 24; i++) {
            seed = seed * 1664525u + 1013904223u;
            assert_true(
                tool_parser_push(p, str_of(parts[(seed >> 16) % (sizeof parts / sizeof *parts)])));
        }
        assert_true(tool_parser_finish(p));
        assert_true(r.n_calls >= 1);
        assert_int_equal(r.n_calls, tool_parser_n_calls(p));
        tool_parser_free(p);
        buf_release(&r.text);
    }
}

static void count_bytes(void *ctx, const struct tool_event *e)
{
    size_t *n = ctx;

    if (e->kind == TOOL_EVENT_CONTENT) {
        *n += e->text.len;
    }
}

static void hostile_text_passes_whole(void **state)
{
    static const char *const units[] = {"<", "<tool_call>", "<tool_call><function=", "</tool_call",
                                        "<tool_call>\n<function=a\n"};
    enum { BYTES = 1 << 20 };

    (void)state;
    for (size_t k = 0; k < sizeof units / sizeof *units; k++) {
        size_t n_content = 0, total = 0, n = strlen(units[k]);
        struct tool_parser *p = tool_parser_new(NULL, count_bytes, &n_content);

        assert_non_null(p);
        for (; total < BYTES; total += n) {
            assert_true(tool_parser_push(p, (struct str){units[k], n}));
        }
        assert_true(tool_parser_finish(p));
        assert_int_equal(tool_parser_n_calls(p), 0);
        assert_int_equal(n_content, total);
        tool_parser_free(p);
    }
}

static void a_long_value_is_passed_on_as_it_comes(void **state)
{
    struct record r = {0};
    struct tool_parser *p = tool_parser_new(tools, on_event, &r);

    (void)state;
    assert_non_null(p);
    assert_true(tool_parser_push(p, STR("<tool_call><function=f><parameter=s>nul")));
    assert_string_equal(buf_cstr(&r.text), "[f {\"s\":");
    assert_true(tool_parser_push(p, STR("l and more")));
    assert_string_equal(buf_cstr(&r.text), "[f {\"s\":\"null and more");
    assert_true(tool_parser_push(p, STR("\n</para")));
    assert_string_equal(buf_cstr(&r.text), "[f {\"s\":\"null and more");
    assert_true(tool_parser_finish(p));
    assert_string_equal(buf_cstr(&r.text), "[f {\"s\":\"null and more\\n</para\"}]");
    tool_parser_free(p);
    buf_release(&r.text);
}

static int load_tools(void **state)
{
    (void)state;
    return json_parse(&tools, tools_text, sizeof tools_text - 1, NULL) == OK ? 0 : -1;
}

static int free_tools(void **state)
{
    (void)state;
    json_object_put(tools);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_gives_the_whole),
        cmocka_unit_test(arguments_are_json_whatever_comes),
        cmocka_unit_test(hostile_text_passes_whole),
        cmocka_unit_test(a_long_value_is_passed_on_as_it_comes),
    };
    return cmocka_run_group_tests(tests, load_tools, free_tools);
}
