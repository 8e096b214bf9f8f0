/* split_test.c - the scanners against their own patterns in PCRE2, and what split_add() refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/buf.h"
#include "text/split.h"
#include "text/unicode_tables.h"

/* Pieces, joined with '|'. */
static enum status collect(void *ctx, struct str piece, struct error *err)
{
    struct buf *out = ctx;

    (void)err;
    assert_true(piece.len > 0);
    buf_append_str(out, out->len ? "|" : "");
    buf_append(out, piece.ptr, piece.len);
    return OK;
}

static void run(struct buf *out, const struct split *s, struct str text)
{
    struct split_scratch *scratch = split_scratch_new(s);
    struct error err;

    assert_non_null(scratch);
    assert_int_equal(split_run(s, scratch, text, collect, out, &err), OK);
    split_scratch_free(scratch);
}

static struct split *split_of(struct str pattern)
{
    struct split *s = split_new();
    struct error err = {0};

    assert_non_null(s);
    if (split_add(s, pattern, SPLIT_KEEP_GAPS, &err) != OK) {
        fail_msg("%s", err.text);
    }
    return s;
}

static void test_pieces(void **state)
{
    static const struct {
        enum split_kind kind;
        const char *text, *pieces;
    } cases[] = {
        {SPLIT_QWEN2, "Hello, world!", "Hello|,| world|!"},
        {SPLIT_QWEN2, "it's I'M we'Ll x'\xc5\xbf", "it|'s| I|'M| we|'Ll| x|'\xc5\xbf"},
        {SPLIT_QWEN2, "a->b  != c", "a|->|b| | !=| c"},
        {SPLIT_QWEN2, "2024", "2|0|2|4"},
        {SPLIT_LLAMA3, "2024 1234567", "202|4| |123|456|7"},
        {SPLIT_QWEN2, "a\n\n\nb \n c", "a|\n\n\n|b| \n| c"},
        {SPLIT_QWEN2, "x;\r\n\r\n  y", "x|;\r\n\r\n| | y"},
        {SPLIT_QWEN2, "end  ", "end|  "},
        {SPLIT_QWEN2, "\t\tx \t1", "\t|\tx| |\t|1"},
        /* ka + virama: a mark ends the word here, and stays in it there */
        {SPLIT_QWEN2, "\xe0\xa4\x95\xe0\xa5\x8d", "\xe0\xa4\x95|\xe0\xa5\x8d"},
        {SPLIT_QWEN3_5, "\xe0\xa4\x95\xe0\xa5\x8d", "\xe0\xa4\x95\xe0\xa5\x8d"},
        {SPLIT_QWEN2, "\xcc\x81z", "\xcc\x81z"},
        {SPLIT_QWEN3_5, "-\xcc\x81 \xcc\x81", "-\xcc\x81| \xcc\x81"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct split *s = split_of(split_known_pattern(cases[i].kind));
        struct buf out = {0};
        assert_int_equal(split_stage_kind(s, 0), cases[i].kind);
        run(&out, s, str_of(cases[i].text));
        assert_string_equal(buf_cstr(&out), cases[i].pieces);
        buf_release(&out);
        split_free(s);
    }
}

/* Characters of each class, old enough to be alike in all Unicode versions. */
static const uint32_t alphabet[] = {
    ' ',    ' ',    '\n',  '\r',   '\t',   '\'', 's',  'S',   't',    'r',    'e',     'L',  'l',
    'v',    'd',    'm',   'x',    '1',    '9',  '.',  '-',   '<',    '_',    0x17f,   0xe9, 0xb2,
    0x0301, 0x0488, 0x94d, 0x4e2d, 0x3000, 0x85, 0xa0, 0x661, 0x2028, 0x200b, 0x1f600, 0};

/* The same alternatives as a pattern that split_add() does not know, so that PCRE2 runs it. */
static void test_scanners_equal_their_patterns(void **state)
{
    uint32_t random = 2463534242u;

    (void)state;
    for (int kind = SPLIT_QWEN2; kind <= SPLIT_LLAMA3; kind++) {
        struct str pattern = split_known_pattern((enum split_kind)kind);
        struct buf wrapped = {0};
        struct split *scanner = split_of(pattern), *engine;
        buf_append_str(&wrapped, "(?:");
        buf_append(&wrapped, pattern.ptr, pattern.len);
        buf_append_char(&wrapped, ')');
        engine = split_of((struct str){buf_cstr(&wrapped), wrapped.len});
        assert_int_equal(split_stage_kind(engine, 0), SPLIT_PCRE);
        for (int i = 0; i < 20000; i++) {
            struct buf text = {0}, a = {0}, b = {0};
            size_t n;
            random ^= random << 13;
            random ^= random >> 17;
            random ^= random << 5;
            n = 1 + random % 12;
            for (uint32_t bits = random; n > 0; n--) {
                char bytes[4];
                bits = bits * 1664525u + 1013904223u;
                buf_append(
                    &text, bytes,
                    utf8_encode(bytes,
                                alphabet[(bits >> 16) % (sizeof alphabet / sizeof alphabet[0])]));
            }
            run(&a, scanner, (struct str){text.data, text.len});
            run(&b, engine, (struct str){text.data, text.len});
            assert_int_equal(a.len, b.len);
            assert_memory_equal(a.data, b.data, a.len);
            buf_release(&text);
            buf_release(&a);
            buf_release(&b);
        }
        buf_release(&wrapped);
        split_free(scanner);
        split_free(engine);
    }
}

static void test_other_patterns(void **state)
{
    static const struct {
        const char *pattern;
        enum split_gaps gaps;
        const char *text, *pieces;
    } cases[] = {
        {"[0-9]+", SPLIT_KEEP_GAPS, "ab12cd", "ab|12|cd"},
        {"[0-9]+", SPLIT_DROP_GAPS, "ab12cd3", "12|3"},
        {"x*", SPLIT_KEEP_GAPS, "axxb", "a|xx|b"},
        {"(?=b)", SPLIT_KEEP_GAPS, "abab", "a|ba|b"},
        {"\\s+", SPLIT_KEEP_GAPS,
         "a\xe1\xa0\x8e"
         "b c",
         "a\xe1\xa0\x8e"
         "b| |c"},
        {"[^\\s]+", SPLIT_DROP_GAPS, "a\xe3\x80\x80z", "a|z"},
        {"\\S", SPLIT_DROP_GAPS, "a\xc2\xa0z", "a|z"},
        {"\\p{L}++", SPLIT_KEEP_GAPS, "ab1", "ab|1"},
        {"^b", SPLIT_KEEP_GAPS, "a\nb", "a\n|b"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct split *s = split_new();
        struct buf out = {0};
        struct error err = {0};
        assert_int_equal(split_add(s, str_of(cases[i].pattern), cases[i].gaps, &err), OK);
        run(&out, s, str_of(cases[i].text));
        assert_string_equal(buf_cstr(&out), cases[i].pieces);
        buf_release(&out);
        split_free(s);
    }
}

static void test_stages(void **state)
{
    struct split *s = split_of(STR("[0-9]{1,3}"));
    struct buf out = {0};
    struct error err = {0};

    (void)state;
    assert_int_equal(split_add(s, STR("b"), SPLIT_KEEP_GAPS, &err), OK);
    assert_int_equal(split_add(s, split_known_pattern(SPLIT_QWEN2), SPLIT_KEEP_GAPS, &err), OK);
    assert_int_equal(split_n_stages(s), 3);
    run(&out, s, STR("1234abba cd"));
    assert_string_equal(buf_cstr(&out), "1|2|3|4|a|b|b|a| cd");
    buf_release(&out);
    while (split_n_stages(s) < SPLIT_STAGES_MAX) {
        assert_int_equal(split_add(s, STR("b"), SPLIT_KEEP_GAPS, &err), OK);
    }
    assert_int_equal(split_add(s, STR("b"), SPLIT_KEEP_GAPS, &err), ERR_LIMIT);
    split_free(s);

    s = split_new(); /* no stage: one piece */
    run(&out, s, STR("a b"));
    assert_string_equal(buf_cstr(&out), "a b");
    run(&out, s, STR(""));
    assert_string_equal(buf_cstr(&out), "a b");
    buf_release(&out);
    split_free(s);
}

static void test_refused_patterns(void **state)
{
    static const struct {
        const char *pattern;
        enum status code;
    } cases[] = {
        {"(", ERR_FORMAT},
        {"\\p{Nonsense}", ERR_FORMAT},
        {"[a", ERR_FORMAT},
        {"\\h+", ERR_UNSUPPORTED},
        {"a\\Kb", ERR_UNSUPPORTED},
        {"[a[b]]", ERR_UNSUPPORTED},
        {"[a&&b]", ERR_UNSUPPORTED},
        {"a{1,3}+", ERR_UNSUPPORTED},
        {"(*UTF)a", ERR_UNSUPPORTED},
        {"[]a]", ERR_UNSUPPORTED},
        {"\\", ERR_FORMAT},
        {"\\p{L", ERR_FORMAT},
    };
    struct split *s = split_new();
    char *large = calloc(1, SPLIT_PATTERN_BYTES_MAX + 1);

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error err = {0};
        assert_int_equal(split_add(s, str_of(cases[i].pattern), SPLIT_KEEP_GAPS, &err),
                         cases[i].code);
        assert_non_null(strstr(err.text, "split pattern"));
        assert_int_equal(split_n_stages(s), 0);
    }
    memset(large, 'a', SPLIT_PATTERN_BYTES_MAX + 1);
    assert_int_equal(
        split_add(s, (struct str){large, SPLIT_PATTERN_BYTES_MAX + 1}, SPLIT_KEEP_GAPS, NULL),
        ERR_LIMIT);
    free(large);
    split_free(s);
}

/* A pattern that backtracks without end is stopped. */
static void test_steps_are_limited(void **state)
{
    struct split *s = split_of(STR("(?:a+)+b"));
    struct split_scratch *scratch = split_scratch_new(s);
    struct buf out = {0};
    struct error err = {0};

    (void)state;
    assert_int_equal(split_run(s, scratch, STR("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac b"),
                               collect, &out, &err),
                     ERR_LIMIT);
    buf_release(&out);
    split_scratch_free(scratch);
    split_free(s);
}

static enum status refuse(void *ctx, struct str piece, struct error *err)
{
    (*(int *)ctx)++;
    (void)piece;
    return error_set(err, ERR_CANCELLED, "enough");
}

static void test_callback_stops(void **state)
{
    static const char *const patterns[] = {"b", NULL};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct split *s =
            split_of(patterns[i] ? str_of(patterns[i]) : split_known_pattern(SPLIT_QWEN2));
        struct split_scratch *scratch = split_scratch_new(s);
        struct error err;
        int calls = 0;
        assert_int_equal(split_run(s, scratch, STR("a b c"), refuse, &calls, &err), ERR_CANCELLED);
        assert_int_equal(calls, 1);
        split_scratch_free(scratch);
        split_free(s);
    }
}

static void test_tables(void **state)
{
    (void)state;
    assert_int_equal(unicode_class('a'), UNICODE_LETTER);
    assert_int_equal(unicode_class(0x301), UNICODE_MARK);
    assert_int_equal(unicode_class(0xb2), UNICODE_NUMBER);
    assert_int_equal(unicode_class(0x85), UNICODE_SPACE);
    assert_int_equal(unicode_class(0x180e), UNICODE_OTHER);
    assert_int_equal(unicode_class(0x16d40), UNICODE_LETTER); /* new in Unicode 16 */
    assert_int_equal(unicode_flags(0x10ffff), 0);
    assert_int_equal(unicode_flags(UINT32_MAX), 0);
    assert_true(unicode_flags('_') & UNICODE_WORD);
    assert_true(unicode_flags(0x301) & UNICODE_NFC_ACTIVE);
    assert_true(unicode_flags(0x11930) & UNICODE_NFC_FOREIGN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_scanners_equal_their_patterns),
        cmocka_unit_test(test_other_patterns),
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_refused_patterns),
        cmocka_unit_test(test_steps_are_limited),
        cmocka_unit_test(test_callback_stops),
        cmocka_unit_test(test_tables),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
