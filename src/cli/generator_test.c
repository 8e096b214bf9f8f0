/* generator_test.c - what run and chat print. (The generation itself is tested with the whole program.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "cli/generator.h"

/* A model's text must not move the cursor, set the title, or answer for the user. */
static void test_terminal_text(void **state)
{
    (void)state;
    struct buf out;
    buf_init(&out);
    terminal_text(&out, STR("a\tb\n\x1b[2Jc\x07\x7f\r\xc2\x9b\xc3\xa9\xf0\x9f\x98\x80"));
    assert_string_equal(buf_cstr(&out), "a\tb\n\xef\xbf\xbd[2Jc\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
                                        "\xef\xbf\xbd\xc3\xa9\xf0\x9f\x98\x80");
    buf_release(&out);
}

static void test_stats(void **state)
{
    (void)state;
    char text[128];
    struct generator_result r = {
        .reason = FINISH_STOP, .n_prompt = 10, .n_output = 21, .prefill_s = 0.5, .decode_s = 2};
    generator_stats_text(text, sizeof text, &r);
    assert_string_equal(text, "[21 tokens, 10.0 tok/s; prompt 10 tokens in 0.50 s]");
    r.n_output = 1;
    r.reason = FINISH_LENGTH;
    generator_stats_text(text, sizeof text, &r);
    assert_string_equal(text, "[1 token; prompt 10 tokens in 0.50 s; cut by the length limit]");
    r.reason = FINISH_ABORT;
    generator_stats_text(text, 12, &r); /* never past the end */
    assert_int_equal(strlen(text), 11);
}

static void test_demo_model(void **state)
{
    (void)state;
    char folder[4096], tiny[4];
    assert_true(demo_model_find(folder, sizeof folder)); /* in the sources, at least */
    assert_non_null(strstr(folder, "/models/rill"));
    assert_int_equal(folder[0], '/');
    assert_false(demo_model_find(tiny, sizeof tiny));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_terminal_text),
        cmocka_unit_test(test_stats),
        cmocka_unit_test(test_demo_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
