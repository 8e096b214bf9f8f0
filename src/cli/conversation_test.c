/* conversation_test.c - the messages of a chat. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/conversation.h"

static const char *field(const struct conversation *c, size_t i, const char *key)
{
    struct json_object *v = json_get(json_object_array_get_idx(c->messages, i), key);
    return v ? json_object_get_string(v) : NULL;
}

static void test_turns(void **state)
{
    (void)state;
    struct conversation c;
    assert_true(conversation_init(&c));
    assert_int_equal(conversation_turns(&c), 0);
    conversation_drop_last(&c); /* nothing to drop */
    assert_true(conversation_add_user(&c, STR("a")));
    assert_true(conversation_add_answer(&c, STR("hm"), STR("b")));
    assert_true(conversation_add_user(&c, STR("c")));
    assert_int_equal(conversation_turns(&c), 3);
    assert_string_equal(field(&c, 0, "role"), "user");
    assert_string_equal(field(&c, 1, "role"), "assistant");
    assert_string_equal(field(&c, 1, "reasoning_content"), "hm");
    conversation_drop_last(&c);
    assert_int_equal(conversation_turns(&c), 2);
    assert_true(conversation_add_answer(&c, STR(""), STR("d")));
    assert_null(field(&c, 2, "reasoning_content"));

    assert_true(conversation_set_system(&c, STR("short"))); /* starts anew */
    assert_int_equal(conversation_turns(&c), 0);
    assert_string_equal(field(&c, 0, "role"), "system");
    conversation_drop_last(&c); /* the system message stays */
    assert_true(c.has_system && json_object_array_length(c.messages) == 1);
    assert_true(conversation_add_user(&c, STR("e")));
    assert_true(conversation_clear(&c));
    assert_true(conversation_clear(&c));
    assert_int_equal(json_object_array_length(c.messages), 1);
    assert_string_equal(field(&c, 0, "content"), "short");
    assert_true(conversation_set_system(&c, STR("")));
    assert_int_equal(json_object_array_length(c.messages), 0);
    conversation_release(&c);
}

static void test_save(void **state)
{
    (void)state;
    struct conversation c;
    struct error err = {0};
    struct json_object *o = NULL;
    char path[] = "/tmp/spillway-chat-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_true(conversation_init(&c));
    assert_true(conversation_add_user(&c, STR("Gr\xc3\xbc\xc3\x9f\n\"x\"")));
    assert_int_equal(conversation_save(&c, path, &err), OK);
    assert_int_equal(json_parse_file(&o, path, 4096, &err), OK);
    struct json_object *m = json_object_array_get_idx(json_get(o, "messages"), 0);
    assert_string_equal(json_object_get_string(json_get(m, "content")),
                        "Gr\xc3\xbc\xc3\x9f\n\"x\"");
    json_object_put(o);
    unlink(path);
    assert_int_equal(conversation_save(&c, "/nonexistent/x", &err), ERR_IO);
    assert_non_null(strstr(err.text, "/nonexistent/x"));
    assert_int_equal(conversation_save(&c, "/dev/full", &err), ERR_IO);
    conversation_release(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_save),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
