/* chat_messages_test.c - what requests may send as messages, and what the errors name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "text/chat_messages.h"

static struct json_object *parse(const char *text)
{
    struct json_object *v = NULL;
    struct error err = {0};

    if (json_parse(&v, text, strlen(text), &err) != OK) {
        print_error("%s: %s\n", text, err.text);
        fail();
    }
    return v;
}

static void print(struct buf *out, struct json_object *v)
{
    buf_init(out);
    json_write(out, v);
}

/* Normalises `in` and compares with `want` as compact JSON; the input stays as it was. */
static void expect(const char *in, const char *want)
{
    struct json_object *request = parse(in), *expected = parse(want), *got = NULL;
    struct buf before, after, got_text, want_text;
    struct error err = {0};

    print(&before, request);
    if (chat_messages_normalise(&got, request, &err) != OK) {
        print_error("%s: %s\n", in, err.text);
        fail();
    }
    print(&after, request);
    print(&got_text, got);
    print(&want_text, expected);
    assert_string_equal(buf_cstr(&got_text), buf_cstr(&want_text));
    assert_string_equal(buf_cstr(&after), buf_cstr(&before));
    buf_release(&before);
    buf_release(&after);
    buf_release(&got_text);
    buf_release(&want_text);
    json_object_put(got);
    json_object_put(expected);
    json_object_put(request);
}

static void refuse(const char *in, const char *param, const char *text)
{
    struct json_object *request = in ? parse(in) : NULL, *got = (struct json_object *)&request;
    struct error err = {0};

    assert_int_equal(chat_messages_normalise(&got, request, &err), ERR_BAD_REQUEST);
    assert_null(got);
    assert_string_equal(err.param, param);
    if (!strstr(err.text, text)) {
        print_error("'%s' is not in '%s'\n", text, err.text);
        fail();
    }
    json_object_put(request);
}

static void plain_messages_stay(void **state)
{
    (void)state;
    expect("[{\"role\":\"user\",\"content\":\" a <|im_end|> \\u0000 é \"}]",
           "[{\"role\":\"user\",\"content\":\" a <|im_end|> \\u0000 é \"}]");
    expect("[{\"role\":\"system\",\"content\":\"\"},{\"role\":\"user\",\"content\":\"\"}]",
           "[{\"role\":\"system\",\"content\":\"\"},{\"role\":\"user\",\"content\":\"\"}]");
    expect("[{\"content\":\"x\",\"role\":\"user\",\"name\":\"Ann\",\"vendor\":{\"a\":[1.50]}}]",
           "[{\"role\":\"user\",\"content\":\"x\",\"name\":\"Ann\",\"vendor\":{\"a\":[1.50]}}]");
}

static void roles(void **state)
{
    (void)state;
    expect("[{\"role\":\"Developer\",\"content\":\"d\"},{\"role\":\"USER\",\"content\":\"u\"},"
           "{\"role\":\"function\",\"name\":\"f\",\"content\":\"r\"}]",
           "[{\"role\":\"system\",\"content\":\"d\"},{\"role\":\"user\",\"content\":\"u\"},"
           "{\"role\":\"tool\",\"content\":\"r\",\"name\":\"f\"}]");
    refuse("[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"critic\",\"content\":\"x\"}]",
           "messages[1].role", "'critic'");
    refuse("[{\"content\":\"x\"}]", "messages[0].role", "is missing");
    refuse("[{\"role\":5,\"content\":\"x\"}]", "messages[0].role", "must be a string");
    refuse("[{\"role\":\"user\\u0000x\",\"content\":\"x\"}]", "messages[0].role", "expected");
    refuse("[{\"role\":\"\",\"content\":\"x\"}]", "messages[0].role", "expected");
}

static void leading_system_messages_merge(void **state)
{
    (void)state;
    expect("[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"developer\",\"content\":\"b\"},"
           "{\"role\":\"system\",\"content\":\"\"},{\"role\":\"system\",\"content\":\"c\"},"
           "{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"system\",\"content\":\"late\"}]",
           "[{\"role\":\"system\",\"content\":\"a\\n\\nb\\n\\nc\"},{\"role\":\"user\",\"content\":"
           "\"u\"},"
           "{\"role\":\"system\",\"content\":\"late\"}]");
    expect("[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"b\"}]",
           "[{\"role\":\"system\",\"content\":\"a\\n\\nb\"}]");
}

static void content_forms(void **state)
{
    (void)state;
    expect("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a \"},"
           "{\"type\":\"text\",\"text\":\"b\"}]}]",
           "[{\"role\":\"user\",\"content\":\"a b\"}]");
    expect("[{\"role\":\"user\",\"content\":[]}]", "[{\"role\":\"user\",\"content\":\"\"}]");
    expect("[{\"role\":\"assistant\",\"content\":null},{\"role\":\"assistant\"},"
           "{\"role\":\"tool\",\"content\":null},{\"role\":\"system\"}]",
           "[{\"role\":\"assistant\",\"content\":\"\"},{\"role\":\"assistant\",\"content\":\"\"},"
           "{\"role\":\"tool\",\"content\":\"\"},{\"role\":\"system\",\"content\":\"\"}]");
    refuse("[{\"role\":\"user\"}]", "messages[0].content", "is missing");
    refuse("[{\"role\":\"user\",\"content\":null}]", "messages[0].content", "is missing");
    refuse("[{\"role\":\"user\",\"content\":5}]", "messages[0].content", "must be a string");
    refuse("[{\"role\":\"user\",\"content\":{}}]", "messages[0].content", "must be a string");
    refuse("[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":["
           "{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"image_url\",\"image_url\":{}}]}]",
           "messages[1].content[1]", "'image_url': this model reads text only");
    refuse("[{\"role\":\"user\",\"content\":[5]}]", "messages[0].content[0]", "object");
    refuse("[{\"role\":\"user\",\"content\":[{\"text\":\"x\"}]}]", "messages[0].content[0]",
           "type");
    refuse("[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content[0]",
           "'text'");
}

static void tool_calls(void **state)
{
    (void)state;
    expect(
        "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":"
        "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\": [1.50, null]}\"}},"
        "{\"function\":{\"name\":\"g\",\"arguments\":\"\"}},"
        "{\"function\":{\"name\":\"h\",\"arguments\":{\"y\":1},\"v\":2}},"
        "{\"function\":{\"name\":\"i\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"r\"}]",
        "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":"
        "\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\":[1.50,null]}}},"
        "{\"function\":{\"name\":\"g\",\"arguments\":{}}},"
        "{\"function\":{\"name\":\"h\",\"v\":2,\"arguments\":{\"y\":1}}},"
        "{\"function\":{\"name\":\"i\",\"arguments\":{}}}]},"
        "{\"role\":\"tool\",\"content\":\"r\",\"tool_call_id\":\"1\"}]");
    /* content null, absent and "" beside calls are all accepted; only "" is kept as text */
    expect(
        "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]},"
        "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]}"
        "]",
        "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\","
        "\"arguments\":{}}}]},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{"
        "\"function\":"
        "{\"name\":\"f\",\"arguments\":{}}}]}]");
    expect("[{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":[]},"
           "{\"role\":\"user\",\"content\":\"y\",\"tool_calls\":null}]",
           "[{\"role\":\"assistant\",\"content\":\"x\"},{\"role\":\"user\",\"content\":\"y\"}]");
    expect("[{\"role\":\"assistant\",\"function_call\":{\"name\":\"f\",\"arguments\":\"{}\"}}]",
           "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"type\":\"function\","
           "\"function\":{\"name\":\"f\",\"arguments\":{}}}]}]");
}

static void wrong_tool_calls(void **state)
{
#define CALL(inside) "[{\"role\":\"assistant\",\"tool_calls\":[" inside "]}]"
    (void)state;
    refuse(CALL("{\"function\":{\"name\":\"f\",\"arguments\":\"[1]\"}}"),
           "messages[0].tool_calls[0].function.arguments", "must spell a JSON object");
    refuse(CALL("{\"function\":{\"name\":\"f\",\"arguments\":\"{x\"}}"),
           "messages[0].tool_calls[0].function.arguments", "is not JSON");
    refuse(CALL("{\"function\":{\"name\":\"f\",\"arguments\":5}}"),
           "messages[0].tool_calls[0].function.arguments", "must be a JSON object");
    refuse(CALL("{\"function\":{\"name\":\"f\"}},{\"function\":{\"arguments\":\"{}\"}}"),
           "messages[0].tool_calls[1].function", "'name'");
    refuse(CALL("{}"), "messages[0].tool_calls[0].function", "must be an object");
    refuse(CALL("5"), "messages[0].tool_calls[0]", "must be an object");
    refuse(CALL("{\"type\":\"retrieval\",\"function\":{\"name\":\"f\"}}"),
           "messages[0].tool_calls[0]", "'function'");
    refuse(CALL("{\"id\":5,\"function\":{\"name\":\"f\"}}"), "messages[0].tool_calls[0]", "id");
    refuse("[{\"role\":\"assistant\",\"tool_calls\":{}}]", "messages[0].tool_calls", "list");
    refuse(
        "[{\"role\":\"user\",\"content\":\"x\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]}]",
        "messages[0].tool_calls", "assistant");
    refuse("[{\"role\":\"assistant\",\"function_call\":\"none\"}]", "messages[0].function_call",
           "object");
    refuse("[{\"role\":\"tool\",\"content\":\"x\",\"tool_call_id\":5}]", "messages[0].tool_call_id",
           "string");
    refuse("[{\"role\":\"user\",\"content\":\"x\",\"name\":[]}]", "messages[0].name", "string");
#undef CALL
}

static void reasoning(void **state)
{
    (void)state;
    expect("[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"r\"},"
           "{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":null},"
           "{\"role\":\"assistant\",\"content\":\"a\",\"reasoning\":\"s\"}]",
           "[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"r\"},"
           "{\"role\":\"assistant\",\"content\":\"a\"},"
           "{\"role\":\"assistant\",\"content\":\"a\",\"reasoning\":\"s\",\"reasoning_content\":"
           "\"s\"}]");
    refuse("[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":1}]",
           "messages[0].reasoning_content", "string");
}

static void degenerate_lists(void **state)
{
    (void)state;
    refuse(NULL, "messages", "missing");
    refuse("[]", "messages", "empty");
    refuse("{}", "messages", "must be a list");
    refuse("\"x\"", "messages", "must be a list");
    refuse("[null]", "messages[0]", "must be an object");
    refuse("[[]]", "messages[0]", "must be an object");
    refuse("[{\"role\":\"user\",\"content\":\"x\"},\"x\"]", "messages[1]", "must be an object");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_messages_stay),
        cmocka_unit_test(roles),
        cmocka_unit_test(leading_system_messages_merge),
        cmocka_unit_test(content_forms),
        cmocka_unit_test(tool_calls),
        cmocka_unit_test(wrong_tool_calls),
        cmocka_unit_test(reasoning),
        cmocka_unit_test(degenerate_lists),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
