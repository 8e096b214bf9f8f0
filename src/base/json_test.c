/* json_test.c - what json_parse accepts and refuses, typed members, Python's printing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"

static void check_accepts(const char *text, size_t len, const char *compact)
{
    struct json_object *o;
    struct error err = {0};
    struct buf b;

    if (json_parse(&o, text, len, &err) != OK) {
        fail_msg("refused %s: %s", text, err.text);
    }
    buf_init(&b);
    json_write(&b, o);
    assert_string_equal(buf_cstr(&b), compact);
    buf_release(&b);
    json_object_put(o);
}

static void check_refuses(const char *text, size_t len, const char *reason)
{
    struct json_object *o;
    struct error err = {0};

    if (json_parse(&o, text, len, &err) != ERR_FORMAT) {
        fail_msg("accepted %s", text);
    }
    assert_null(o);
    if (!strstr(err.text, reason)) {
        fail_msg("'%s' does not name '%s'", err.text, reason);
    }
}

static void test_accepts(void **state)
{
    static const char *const table[][2] = {
        {"{}", "{}"},
        {" [1, 2.5 ,true,null] ", "[1,2.5,true,null]"},
        {"7", "7"},
        {"-0", "0"},
        {"null", "null"},
        {"\"x\"", "\"x\""},
        {"{\"a\":1,\"a\":2}", "{\"a\":2}"},
        {"18446744073709551615", "18446744073709551615"},
        {"-9223372036854775808", "-9223372036854775808"},
        {"9007199254740993", "9007199254740993"},
        {"[1e2,0.1,1.0,1E400]", "[100.0,0.1,1.0,Infinity]"},
        {"\"\\u00e9\\n\\\"\"", "\"\xc3\xa9\\n\\\"\""},
        {"\"\\ud83d\\ude00\"", "\"\xf0\x9f\x98\x80\""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        check_accepts(table[i][0], strlen(table[i][0]), table[i][1]);
    }
}

static void test_refuses(void **state)
{
    static const char *const table[][2] = {
        {"", "end"},
        {"   ", "end"},
        {"{", "end"},
        {"[1,]", "byte"},
        {"{\"a\":1,}", "byte"},
        {"[1 2]", "byte"},
        {"{\"a\" 1}", "byte"},
        {"1 2", "byte"},
        {"[1]]", "byte"},
        {"[01]", "number"},
        {"[1.]", "number"},
        {"[.5]", "unexpected"},
        {"[+1]", "unexpected"},
        {"[-]", "number"},
        {"[1e]", "number"},
        {"[NaN]", "unexpected"},
        {"[Infinity]", "unexpected"},
        {"[-Infinity]", "number"},
        {"{'a':1}", "unexpected"},
        {"[True]", "unexpected"},
        {"/* c */ 1", "unexpected"},
        {"\"a\tb\"", "control"},
        {"\"a\\x\"", "escape"},
        {"\"abc", "without an end"},
        {"[18446744073709551616]", "64 bits"},
        {"[-9223372036854775809]", "64 bits"},
        {"[123456789012345678901234567890]", "64 bits"},
        {"\"\xff\"", "UTF-8"},
        {"\"\xed\xa0\x80\"", "UTF-8"},
        {"\xef\xbb\xbf{}", "unexpected"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        check_refuses(table[i][0], strlen(table[i][0]), table[i][1]);
    }
    check_refuses("{}\0", 3, "byte");
    check_refuses("\"a\0b\"", 5, "control");
}

static void test_depth(void **state)
{
    enum { DEEP = 1000000 };
    char *text = malloc(DEEP + 1);

    (void)state;
    memset(text, '[', DEEP);
    text[DEEP] = '\0';
    check_refuses(text, DEEP, "nested");
    memset(text + JSON_DEPTH_MAX, ']', JSON_DEPTH_MAX);
    {
        struct json_object *o;
        struct error err;
        assert_int_equal(json_parse(&o, text, 2 * JSON_DEPTH_MAX, &err), OK);
        json_object_put(o);
    }
    free(text);
}

static void test_members(void **state)
{
    const char *text = "{\"i\":-3,\"f\":2.5,\"w\":4.0,\"s\":\"x\",\"z\":\"a\\u0000b\",\"b\":true,"
                       "\"n\":null,\"big\":18446744073709551615}";
    struct json_object *o;
    struct error err;
    size_t size = 9;
    int64_t i = 9;
    double d = 9;
    bool b = false;
    const char *s = "none";

    (void)state;
    assert_int_equal(json_parse(&o, text, strlen(text), &err), OK);
    assert_int_equal(json_get_int(&i, o, "i", ERR_FORMAT, &err), OK);
    assert_int_equal(i, -3);
    assert_int_equal(json_get_int(&i, o, "w", ERR_FORMAT, &err), OK);
    assert_int_equal(i, 4);
    assert_int_equal(json_get_int(&i, o, "f", ERR_FORMAT, &err), ERR_FORMAT);
    assert_int_equal(json_get_int(&i, o, "big", ERR_FORMAT, &err), ERR_FORMAT);
    assert_int_equal(json_get_size(&size, o, "i", ERR_BAD_REQUEST, &err), ERR_BAD_REQUEST);
    assert_string_equal(err.param, "i");
    assert_int_equal(json_get_size(&size, o, "absent", ERR_FORMAT, &err), OK);
    assert_int_equal(json_get_size(&size, o, "n", ERR_FORMAT, &err), OK);
    assert_int_equal(size, 9);
    assert_int_equal(json_get_double(&d, o, "f", ERR_FORMAT, &err), OK);
    assert_true(d == 2.5);
    assert_int_equal(json_get_double(&d, o, "s", ERR_FORMAT, &err), ERR_FORMAT);
    assert_int_equal(json_get_bool(&b, o, "b", ERR_FORMAT, &err), OK);
    assert_true(b);
    assert_int_equal(json_get_bool(&b, o, "i", ERR_FORMAT, &err), ERR_FORMAT);
    assert_int_equal(json_get_string(&s, o, "s", ERR_FORMAT, &err), OK);
    assert_string_equal(s, "x");
    assert_int_equal(json_get_string(&s, o, "z", ERR_FORMAT, &err), ERR_FORMAT);
    assert_true(json_has(o, "n"));
    assert_false(json_has(o, "absent"));
    assert_null(json_get(NULL, "x"));
    json_object_put(o);
}

static void test_float_repr(void **state)
{
    static const struct {
        double v;
        const char *text;
    } table[] = {
        {0.0, "0.0"},
        {-0.0, "-0.0"},
        {1.0, "1.0"},
        {0.1, "0.1"},
        {100.0, "100.0"},
        {1e15, "1000000000000000.0"},
        {1e16, "1e+16"},
        {1.5e16, "1.5e+16"},
        {1e-4, "0.0001"},
        {1e-5, "1e-05"},
        {1.25e-7, "1.25e-07"},
        {123456.789, "123456.789"},
        {-2.5, "-2.5"},
        {1e300, "1e+300"},
        {5e-324, "5e-324"},
        {0.30000000000000004, "0.30000000000000004"},
        {9007199254740993.0, "9007199254740992.0"},
        {1.0 / 3, "0.3333333333333333"},
    };
    char out[32];

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        json_float_repr(out, table[i].v);
        assert_string_equal(out, table[i].text);
    }
}

static void test_python(void **state)
{
    const char *text =
        "{\"b\":[1,{\"x\":1e2}],\"a\":\"\xc3\xa9\xf0\x9f\x98\x80/\\u0001\",\"e\":[],\"o\":{}}";
    struct json_python_style style = {.ensure_ascii = false, .sort_keys = false, .indent = -1};
    struct json_object *o;
    struct error err;
    struct buf b;

    (void)state;
    assert_int_equal(json_parse(&o, text, strlen(text), &err), OK);
    buf_init(&b);
    json_write_python(&b, o, &style);
    assert_string_equal(buf_cstr(&b),
                        "{\"b\": [1, {\"x\": 100.0}], \"a\": \"\xc3\xa9\xf0\x9f\x98\x80/\\u0001\", "
                        "\"e\": [], \"o\": {}}");
    buf_clear(&b);
    style = (struct json_python_style){.ensure_ascii = true, .sort_keys = true, .indent = 2};
    json_write_python(&b, o, &style);
    assert_string_equal(buf_cstr(&b),
                        "{\n  \"a\": \"\\u00e9\\ud83d\\ude00/\\u0001\",\n  \"b\": [\n    1,\n    "
                        "{\n      \"x\": 100.0\n    }\n  ],\n  \"e\": [],\n  \"o\": {}\n}");
    buf_clear(&b);
    json_write_string(&b, "a\xff\x7f", 3);
    assert_string_equal(buf_cstr(&b), "\"a\xef\xbf\xbd\x7f\"");
    buf_release(&b);
    json_object_put(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),    cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_depth),      cmocka_unit_test(test_members),
        cmocka_unit_test(test_float_repr), cmocka_unit_test(test_python),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
