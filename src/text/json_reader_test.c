/* json_reader_test.c - the streaming JSON reader: values, errors and where they are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "text/json_reader.h"

static struct json_reader reader_of(const char *text, struct error *err)
{
    struct json_reader r;

    json_reader_init(&r, str_of(text), err);
    return r;
}

static void test_values(void **state)
{
    struct error err;
    struct buf scratch = {0};
    struct str key, value;
    struct json_reader r = reader_of(" {\"a\\n\":[1 , 20,\ttrue,null,false],\"\":\"x\"}\n", &err);

    (void)state;
    assert_true(json_reader_object(&r));
    assert_true(json_reader_key(&r, &scratch, &key));
    assert_true(str_eq(key, STR("a\n")));
    assert_true(json_reader_array(&r));
    assert_true(json_reader_item(&r));
    assert_int_equal(json_reader_uint(&r, 1), 1);
    assert_true(json_reader_item(&r));
    assert_int_equal(json_reader_uint(&r, UINT64_MAX), 20);
    assert_true(json_reader_item(&r));
    assert_true(json_reader_bool(&r));
    assert_true(json_reader_item(&r));
    assert_true(json_reader_null(&r));
    assert_true(json_reader_item(&r));
    assert_false(json_reader_null(&r));
    assert_false(json_reader_bool(&r));
    assert_false(json_reader_item(&r));
    assert_true(json_reader_key(&r, &scratch, &key));
    assert_int_equal(key.len, 0);
    value = json_reader_string(&r, &scratch);
    assert_true(str_eq(value, STR("x")));
    assert_false(json_reader_key(&r, &scratch, &key));
    json_reader_finish(&r);
    assert_true(json_reader_ok(&r));
    buf_release(&scratch);
}

static void test_strings(void **state)
{
    static const struct {
        const char *json;
        struct str value;
    } cases[] = {
        {"\"\"", {"", 0}},
        {"\"plain \xc4\xa0\"", {"plain \xc4\xa0", 8}},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", {"\"\\/\b\f\n\r\t", 8}},
        {"\"\\u0120x\\u0000\"", {"\xc4\xa0x\0", 4}},
        {"\"\\ud83d\\uDE00\"", {"\xf0\x9f\x98\x80", 4}},
        {"\"\\uffff\"", {"\xef\xbf\xbf", 3}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error err;
        struct buf scratch = {0};
        struct json_reader r = reader_of(cases[i].json, &err);
        struct str value = json_reader_string(&r, &scratch);
        json_reader_finish(&r);
        assert_true(json_reader_ok(&r));
        assert_true(str_eq(value, cases[i].value));
        buf_release(&scratch);
    }
}

static void test_refused(void **state)
{
    static const struct {
        const char *json, *text;
    } cases[] = {
        {"", "expected a value at byte 0"},
        {"[1,]", "expected a value at byte 3"},
        {"[,1]", "expected a value at byte 1"},
        {"[1 2]", "expected ',' at byte 3"},
        {"[1", "expected ',' at byte 2"},
        {"[", "expected a value at byte 1"},
        {"{\"a\"}", "expected ':' at byte 4"},
        {"{\"a\":1,}", "expected '\"' at byte 7"},
        {"{1:2}", "expected '\"' at byte 1"},
        {"[1]]", "unexpected text after the value at byte 3"},
        {"[1}", "expected ',' at byte 2"},
        {"01", "unexpected text after the value at byte 1"},
        {"-", "bad number at byte 1"},
        {"1.", "bad number at byte 2"},
        {"1e", "bad number at byte 2"},
        {"nul", "expected a value at byte 0"},
        {"NaN", "expected a value at byte 0"},
        {"\"a", "unclosed string at byte 2"},
        {"\"a\nb\"", "control character in a string at byte 2"},
        {"\"\\x\"", "bad escape at byte 3"},
        {"\"\\", "bad escape at byte 2"},
        {"\"\\u12\"", "cut \\u escape at byte 3"},
        {"\"\\u12g4\"", "bad \\u escape at byte 5"},
        {"\"\\ud800\"", "lone surrogate at byte 7"},
        {"\"\\udc00\"", "lone surrogate at byte 7"},
        {"\"\\ud800\\u0041\"", "lone surrogate at byte 13"},
        {"\"\xff\"", "invalid UTF-8 at byte 1"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error err = {0};
        struct json_reader r = reader_of(cases[i].json, &err);
        json_reader_skip(&r);
        json_reader_finish(&r);
        assert_int_equal(r.rc, ERR_FORMAT);
        assert_string_equal(err.text, cases[i].text);
    }
}

static void test_numbers(void **state)
{
    static const struct {
        const char *json;
        uint64_t max;
        bool is_ok;
    } cases[] = {
        {"0", 0, true},
        {"5", 4, false},
        {"18446744073709551615", UINT64_MAX, true},
        {"18446744073709551616", UINT64_MAX, false},
        {"-1", 9, false},
        {"1.0", 9, false},
        {"1e1", 99, false},
        {"01", 9, false},
        {"\"1\"", 9, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct json_reader r = reader_of(cases[i].json, NULL);
        json_reader_uint(&r, cases[i].max);
        json_reader_finish(&r);
        assert_int_equal(json_reader_ok(&r), cases[i].is_ok);
    }
}

/* A skipped value is the same text, and can be read again in its place. */
static void test_sections(void **state)
{
    struct error err = {0};
    struct buf scratch = {0};
    struct str key, section;
    struct json_reader inner;
    struct json_reader r =
        reader_of("{\"a\": {\"b\":[[],{},[{\"c\":-1.5e+3}]]} , \"d\":[1,x]}", &err);

    (void)state;
    assert_true(json_reader_object(&r));
    assert_true(json_reader_key(&r, &scratch, &key));
    section = json_reader_skip(&r);
    assert_true(str_eq(section, STR("{\"b\":[[],{},[{\"c\":-1.5e+3}]]}")));
    inner = json_reader_section(&r, section);
    assert_true(json_reader_object(&inner));
    assert_true(json_reader_key(&inner, &scratch, &key));
    assert_true(str_eq(key, STR("b")));
    json_reader_uint(&inner, 1); /* an array is there */
    assert_string_equal(err.text, "expected a whole number at byte 11");
    assert_true(json_reader_ok(&r));
    assert_true(json_reader_key(&r, &scratch, &key));
    json_reader_skip(&r);
    assert_false(json_reader_ok(&r));
    assert_string_equal(err.text, "expected a value at byte 45");
    buf_release(&scratch);
}

static void test_depth(void **state)
{
    char text[2 * JSON_READER_DEPTH_MAX + 3] = {0};
    struct json_reader r;

    (void)state;
    memset(text, '[', JSON_READER_DEPTH_MAX);
    memset(text + JSON_READER_DEPTH_MAX, ']', JSON_READER_DEPTH_MAX);
    r = reader_of(text, NULL);
    json_reader_skip(&r);
    json_reader_finish(&r);
    assert_true(json_reader_ok(&r));

    memset(text, '[', JSON_READER_DEPTH_MAX + 1);
    memset(text + JSON_READER_DEPTH_MAX + 1, ']', JSON_READER_DEPTH_MAX + 1);
    r = reader_of(text, NULL);
    json_reader_skip(&r);
    assert_false(json_reader_ok(&r));
}

/* After an error nothing moves and nothing loops. */
static void test_errors_stick(void **state)
{
    struct error err = {0};
    struct buf scratch = {0};
    struct str key;
    struct json_reader r = reader_of("[1,2]", &err);

    (void)state;
    assert_false(json_reader_object(&r));
    assert_string_equal(err.text, "expected '{' at byte 0");
    assert_false(json_reader_key(&r, &scratch, &key));
    assert_false(json_reader_array(&r));
    assert_false(json_reader_item(&r));
    assert_int_equal(json_reader_uint(&r, 9), 0);
    assert_false(json_reader_bool(&r));
    assert_false(json_reader_null(&r));
    assert_int_equal(json_reader_string(&r, &scratch).len, 0);
    assert_int_equal(json_reader_skip(&r).len, 0);
    json_reader_finish(&r);
    assert_string_equal(err.text, "expected '{' at byte 0");
    buf_release(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),       cmocka_unit_test(test_strings),
        cmocka_unit_test(test_refused),      cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_sections),     cmocka_unit_test(test_depth),
        cmocka_unit_test(test_errors_stick),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
