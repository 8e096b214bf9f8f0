/* reasoning_test.c - the thinking splitter over every cut of many scripts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "text/reasoning.h"

struct script {
    const char *text;
    enum reasoning_state start;
    const char *reasoning, *content;
};

static const struct script scripts[] = {
    {"", REASONING_INSIDE, "", ""},
    {"HELLO", REASONING_CONTENT, "", "HELLO"},
    {"HELLO", REASONING_MAYBE_OPEN, "", "HELLO"},
    {"HELLO", REASONING_INSIDE, "HELLO", ""},
    {"I think.\n</think>\n\nYes.", REASONING_INSIDE, "I think.", "Yes."},
    {"I think.\n\n\n</think>Yes.\n", REASONING_INSIDE, "I think.", "Yes.\n"},
    {"</think>Yes", REASONING_INSIDE, "", "Yes"},
    {"\n</think>\n", REASONING_INSIDE, "", ""},
    {"a\n\nb\n</think>\n c", REASONING_INSIDE, "a\n\nb", " c"},
    {"a\n", REASONING_INSIDE, "a\n", ""},
    {"a</thin", REASONING_INSIDE, "a</thin", ""},
    {"a\n</thin", REASONING_INSIDE, "a\n</thin", ""},
    {"a</thin</think>b", REASONING_INSIDE, "a</thin", "b"},
    {"a<</think>b", REASONING_INSIDE, "a<", "b"},
    {"a</</think>b", REASONING_INSIDE, "a</", "b"},
    {"a</think\n</think>b", REASONING_INSIDE, "a</think", "b"},
    {"a</think>b</think>c", REASONING_INSIDE, "a", "b</think>c"},
    {"a<think>b</think>c", REASONING_INSIDE, "a<think>b", "c"},
    {"<think>\na\n</think>\n\nb", REASONING_MAYBE_OPEN, "\na", "b"},
    {" \n<think>a</think>b", REASONING_MAYBE_OPEN, "a", "b"},
    {" \n<thinking>a</think>b", REASONING_MAYBE_OPEN, "", " \n<thinking>a</think>b"},
    {" \n ", REASONING_MAYBE_OPEN, "", " \n "},
    {"<think", REASONING_MAYBE_OPEN, "", "<think"},
    {"<<think>a", REASONING_MAYBE_OPEN, "", "<<think>a"},
    {"x<think>a</think>b", REASONING_MAYBE_OPEN, "", "x<think>a</think>b"},
    {"<think>a</think>b", REASONING_CONTENT, "", "<think>a</think>b"},
    {"I will call.\n<tool_call>\n<function=f>", REASONING_INSIDE, "I will call.",
     "<tool_call>\n<function=f>"},
    {"a<tool_</think>b", REASONING_INSIDE, "a<tool_", "b"},
    {"a</t<tool_call>b", REASONING_INSIDE, "a</t", "<tool_call>b"},
    {"\xe6\xbc\xa2\n</think>\n\xe5\xad\x97", REASONING_INSIDE, "\xe6\xbc\xa2", "\xe5\xad\x97"},
};

/* Split text, pushed in pieces that end at the given offsets, and compare. */
static void check_pieces(const struct script *s, const size_t *ends, size_t n_ends)
{
    struct reasoning r;
    struct buf reasoning, content;
    size_t at = 0;

    buf_init(&reasoning);
    buf_init(&content);
    reasoning_init_state(&r, s->start);
    for (size_t i = 0; i < n_ends; i++) {
        reasoning_push(&r, (struct str){s->text + at, ends[i] - at}, &reasoning, &content);
        at = ends[i];
    }
    reasoning_finish(&r, &reasoning, &content);
    assert_true(buf_ok(&reasoning) && buf_ok(&content));
    assert_string_equal(buf_cstr(&reasoning), s->reasoning);
    assert_string_equal(buf_cstr(&content), s->content);
    reasoning_release(&r);
    buf_release(&reasoning);
    buf_release(&content);
}

static void every_cut_gives_the_whole(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof scripts / sizeof *scripts; k++) {
        const struct script *s = &scripts[k];
        size_t len = strlen(s->text), bytes[256];

        check_pieces(s, &len, 1);
        for (size_t i = 0; i < len; i++) {
            bytes[i] = i + 1;
        }
        check_pieces(s, bytes, len);
        for (size_t i = 0; i <= len; i++) {
            for (size_t j = i; j <= len; j++) {
                check_pieces(s, (size_t[]){i, j, len}, 3);
            }
        }
    }
}

static void a_tag_is_never_sent_in_parts(void **state)
{
    struct reasoning r;
    struct buf reasoning, content;

    (void)state;
    buf_init(&reasoning);
    buf_init(&content);
    reasoning_init(&r, true);
    reasoning_push(&r, STR("sure </thi"), &reasoning, &content);
    assert_string_equal(buf_cstr(&reasoning), "sure ");
    reasoning_push(&r, STR("nk>ok"), &reasoning, &content);
    assert_string_equal(buf_cstr(&reasoning), "sure ");
    assert_string_equal(buf_cstr(&content), "ok");
    assert_true(r.seen_reasoning);
    reasoning_release(&r);
    buf_release(&reasoning);
    buf_release(&content);
}

static void the_prompt_decides_the_start(void **state)
{
    (void)state;
    assert_true(reasoning_prompt_is_open(STR("assistant\n<think>\n")));
    assert_false(reasoning_prompt_is_open(STR("assistant\n<think>\n\n</think>\n\n")));
    assert_false(reasoning_prompt_is_open(STR("assistant\n")));
    assert_true(reasoning_prompt_is_open(STR("<think>a</think>b assistant\n<think>\nso")));
    assert_int_equal(reasoning_start_of_prompt(STR("assistant\n<think>\n")), REASONING_INSIDE);
    assert_int_equal(reasoning_start_of_prompt(STR("<think>\n\n</think>\n\n")), REASONING_CONTENT);
    assert_int_equal(reasoning_start_of_prompt(STR("<think></think>x assistant\n")),
                     REASONING_MAYBE_OPEN);
    assert_int_equal(reasoning_start_of_prompt(STR("assistant\n")), REASONING_MAYBE_OPEN);
    assert_int_equal(reasoning_start_of_prompt(STR("")), REASONING_MAYBE_OPEN);
}

/* Counts work by size: twice the input may cost a little more than twice, never four times. Held
 * text is what could become quadratic, so its size is what is checked. */
static void hostile_text_is_not_held_up(void **state)
{
    static const char *const units[] = {"<", "</", "</think", "<tool_call", "\n<"};
    enum { BYTES = 1 << 20 };

    (void)state;
    for (size_t k = 0; k < sizeof units / sizeof *units; k++) {
        struct reasoning r;
        struct buf reasoning, content;
        size_t n = strlen(units[k]), total = 0;

        buf_init(&reasoning);
        buf_init(&content);
        reasoning_init(&r, true);
        while (total < BYTES) {
            reasoning_push(&r, str_of(units[k]), &reasoning, &content);
            assert_true(r.held.len <= 16);
            total += n;
        }
        reasoning_finish(&r, &reasoning, &content);
        assert_int_equal(reasoning.len, total);
        assert_int_equal(content.len, 0);
        reasoning_release(&r);
        buf_release(&reasoning);
        buf_release(&content);
    }
}

static void leading_space_is_held_only_so_long(void **state)
{
    struct reasoning r;
    struct buf reasoning, content;

    (void)state;
    buf_init(&reasoning);
    buf_init(&content);
    reasoning_init(&r, false);
    for (size_t i = 0; i < REASONING_LEAD_BYTES_MAX; i++) {
        reasoning_push(&r, STR(" "), &reasoning, &content);
    }
    assert_int_equal(content.len, 0);
    reasoning_push(&r, STR(" "), &reasoning, &content);
    assert_int_equal(content.len, REASONING_LEAD_BYTES_MAX + 1);
    assert_int_equal(r.state, REASONING_CONTENT);
    reasoning_release(&r);
    buf_release(&reasoning);
    buf_release(&content);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_gives_the_whole),
        cmocka_unit_test(a_tag_is_never_sent_in_parts),
        cmocka_unit_test(the_prompt_decides_the_start),
        cmocka_unit_test(hostile_text_is_not_held_up),
        cmocka_unit_test(leading_space_is_held_only_so_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
