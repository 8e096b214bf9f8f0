/* tokenizer_test.c - encoding with trust, and added tokens. Ids against the reference library are the
 * oracle test's matter (tests/tokenizer_oracle_test.sh). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "text/tokenizer_testing.h"

#define RILL                      SPILLWAY_SOURCE_DIR "/models/rill/tokenizer.json"
#define TOKEN(id, content, flags) "{\"id\":" #id ",\"content\":\"" content "\"" flags "}"
#define SPECIAL                   ",\"special\":true"

static struct tokenizer *load(const struct fixture *f)
{
    struct error err = {0};
    struct tokenizer *t = fixture_load(f, &err);

    if (!t) {
        fail_msg("%s", err.text);
    }
    return t;
}

static struct tokenizer *load_rill(void)
{
    struct error err = {0};
    struct tokenizer *t = NULL;

    if (tokenizer_load(&t, RILL, &err) != OK) {
        fail_msg("%s", err.text);
    }
    return t;
}

/* Runs from a text in which '{' and '}' enclose untrusted parts; the ids as "1 2 3". */
static const char *ids_of(struct buf *out, const struct tokenizer *t, const char *text)
{
    struct text_run runs[16];
    struct token_ids ids = {0};
    struct error err = {0};
    size_t n = 0;
    bool is_trusted = true;

    while (*text && n < 16) {
        size_t len = strcspn(text, is_trusted ? "{" : "}");
        runs[n++] = (struct text_run){{text, len}, is_trusted};
        is_trusted = !is_trusted;
        text += len + (text[len] != '\0');
    }
    assert_int_equal(tokenizer_encode(&ids, t, runs, n, &err), OK);
    buf_clear(out);
    for (size_t i = 0; i < ids.n; i++) {
        buf_appendf(out, "%s%d", i ? " " : "", ids.ids[i]);
    }
    token_ids_release(&ids);
    return buf_cstr(out);
}

static void assert_ids(const struct tokenizer *t, const char *text, const char *expected)
{
    struct buf out = {0};

    assert_string_equal(ids_of(&out, t, text), expected);
    buf_release(&out);
}

/* From the reference library, once, for a file that is in the repository. */
static void test_known_ids(void **state)
{
    struct tokenizer *t = load_rill();

    (void)state;
    assert_ids(t, "", "");
    assert_ids(t, "hello world <think>", "2707 3545 220 4090");
    assert_ids(t, "Where does the water go?", "3024 623 276 1385 534 30");
    assert_ids(t, "{<|im_end|>}", "257 256 268 258");
    assert_ids(t, "<|im_end|>", "4085");
    assert_int_equal(tokenizer_vocab_size(t), 4096);
    tokenizer_free(t);
}

static void test_lookups(void **state)
{
    struct tokenizer *t = load_rill();

    (void)state;
    assert_true(str_eq(tokenizer_bytes(t, 3545), STR(" world")));
    assert_true(str_eq(tokenizer_bytes(t, 4085), STR("<|im_end|>")));
    assert_null(tokenizer_bytes(t, -1).ptr);
    assert_null(tokenizer_bytes(t, 4096).ptr);
    assert_null(tokenizer_bytes(t, INT32_MAX).ptr);
    assert_true(tokenizer_is_special(t, 4085));
    assert_true(tokenizer_is_added(t, 4085));
    assert_false(tokenizer_is_special(t, 4090)); /* <think> */
    assert_true(tokenizer_is_added(t, 4090));
    assert_false(tokenizer_is_added(t, 3545));
    assert_false(tokenizer_is_special(t, -1));
    assert_false(tokenizer_is_added(t, 4096));
    assert_int_equal(tokenizer_id_of(t, STR("<think>")), 4090);
    assert_int_equal(tokenizer_id_of(t, STR(" world")), 3545);
    assert_int_equal(tokenizer_id_of(t, STR("no such token")), -1);
    tokenizer_free(t);
}

/* Whatever a user writes, no added token comes out, and the text comes back. */
static void test_every_added_token_as_user_text(void **state)
{
    struct tokenizer *t = load_rill();

    (void)state;
    for (int32_t id = 0; id < (int32_t)tokenizer_vocab_size(t); id++) {
        struct str content = tokenizer_bytes(t, id);
        const struct text_run runs[] = {
            {STR("<|im_start|>user\n"), true}, {content, false}, {STR("<|im_end|>"), true}};
        struct token_ids ids = {0};
        struct buf text = {0};
        size_t n_added = 0;
        if (!tokenizer_is_added(t, id)) {
            continue;
        }
        assert_int_equal(tokenizer_encode(&ids, t, runs, 3, NULL), OK);
        for (size_t i = 0; i < ids.n; i++) {
            struct str bytes = tokenizer_bytes(t, ids.ids[i]);
            n_added += tokenizer_is_added(t, ids.ids[i]);
            buf_append(&text, bytes.ptr, bytes.len);
        }
        assert_int_equal(n_added, 2);
        assert_true(
            str_eq((struct str){text.data + strlen("<|im_start|>user\n"), content.len}, content));
        token_ids_release(&ids);
        buf_release(&text);
    }
    tokenizer_free(t);
}

/* Runs are one text: merges and normalisation do not see the border. */
static void test_runs_are_one_text(void **state)
{
    const struct fixture f = {.merges = {{"a", "b"}, {"ab", "c"}, {"\xc3\x83", "\xc2\xa9"}},
                              .added = {TOKEN(259, "<x>", SPECIAL)}};
    struct tokenizer *t = load(&f);

    (void)state;
    assert_ids(t, "abc", "257");
    assert_ids(t, "a{b}c", "257");
    assert_ids(t, "{a}b{c}", "257");
    assert_ids(t, "e{\xcc\x81}", "258"); /* e and an acute accent: one character, one token */
    assert_ids(t, "a<x>b", "97 259 98");
    assert_ids(t, "a{<x>}b", "97 60 120 62 98");
    assert_ids(t, "{<}x>", "60 120 62"); /* a token half of whose text is the user's */
    assert_ids(t, "<x{>}", "60 120 62");
    assert_ids(t, "<x>{<x>}<x>", "259 60 120 62 259");
    tokenizer_free(t);
}

static void test_adjacent_trusted_runs(void **state)
{
    const struct fixture f = {.added = {TOKEN(256, "<x>", SPECIAL)}};
    struct tokenizer *t = load(&f);
    const struct text_run runs[] = {{STR("<"), true}, {STR(""), true}, {STR("x>"), true}};
    const struct text_run mixed[] = {{STR("<"), true}, {STR("x>"), true}, {STR("y"), false}};
    const struct text_run empty[] = {{{NULL, 0}, true}, {{NULL, 0}, false}};
    struct token_ids ids = {0};

    (void)state;
    assert_int_equal(tokenizer_encode(&ids, t, runs, 3, NULL), OK);
    assert_int_equal(tokenizer_encode(&ids, t, mixed, 3, NULL), OK);
    assert_int_equal(tokenizer_encode(&ids, t, empty, 2, NULL), OK);
    assert_int_equal(tokenizer_encode(&ids, t, NULL, 0, NULL), OK);
    assert_int_equal(ids.n, 3);
    assert_int_equal(ids.ids[0], 256);
    assert_int_equal(ids.ids[1], 256);
    assert_int_equal(ids.ids[2], 'y');
    token_ids_release(&ids);
    tokenizer_free(t);
}

static void test_flags(void **state)
{
    const struct fixture f = {
        .added = {TOKEN(256, "<l>", ",\"lstrip\":true"), TOKEN(257, "<r>", ",\"rstrip\":true"),
                  TOKEN(258, "one", ",\"single_word\":true"), TOKEN(259, "<x", ""),
                  TOKEN(260, "<xy>", ""), TOKEN(261, "cafe\\u0301", ",\"normalized\":true")}};
    struct tokenizer *t = load(&f);

    (void)state;
    assert_ids(t, "a \t<l> b", "97 256 32 98");
    assert_ids(t,
               "a <r>\n\xe3\x80\x80"
               "b",
               "97 32 257 98");
    assert_ids(t, "<r> <l>", "257 256");
    assert_ids(t, "a{ }<l>", "97 32 256"); /* the user's blank stays */
    assert_ids(t, "<r>{ }", "257 32");
    assert_ids(t, "one", "258");
    assert_ids(t, "one-one", "258 45 258");
    assert_ids(t, "one1", "111 110 101 49");
    assert_ids(t, "_one", "95 111 110 101");
    assert_ids(t, "{_}one", "95 111 110 101"); /* one text */
    assert_ids(t, "<xy>", "260");
    assert_ids(t, "<xyz", "259 121 122");
    /* Looked for after normalisation, in either spelling. */
    assert_ids(t, "caf\xc3\xa9", "261");
    assert_ids(t, "cafe\xcc\x81", "261");
    assert_ids(t, "{caf\xc3\xa9}", "99 97 102 195 169");
    assert_ids(t, "{c}af\xc3\xa9", "99 97 102 195 169");
    assert_ids(t, "cafe{\xcc\x81}", "99 97 102 195 169");
    tokenizer_free(t);
}

/* Merging or ignore_merges alone would make a control token of user text. */
static void test_reachable_added_tokens(void **state)
{
    struct fixture f = {.merges = {{"a", "b"}, {"ab", "c"}, {"abc", "d"}},
                        .added = {TOKEN(257, "abc", SPECIAL)}};

    (void)state;
    for (int round = 0; round < 2; round++) {
        struct tokenizer *t;
        f.model_more = round ? "\"ignore_merges\":true," : NULL;
        t = load(&f);
        assert_ids(t, "abc", "257");
        assert_ids(t, "{abc}", "256 99");
        assert_ids(t, "{ab}c", "256 99");
        assert_ids(t, "{abcd}", "258"); /* only the token itself is kept out */
        tokenizer_free(t);
    }
}

static void test_ignore_merges(void **state)
{
    /* "abc" can be had by merging only through "bc", which comes too late. */
    struct fixture f = {.merges = {{"a", "b"}, {"b", "c"}, {"a", "bc"}}};
    struct tokenizer *t = load(&f);

    (void)state;
    assert_ids(t, "abc", "256 99");
    tokenizer_free(t);
    f.model_more = "\"ignore_merges\":true,";
    f.joined_merges = f.merges_first = true;
    t = load(&f);
    assert_ids(t, "abc", "258");
    tokenizer_free(t);
}

static void test_invalid_text(void **state)
{
    struct tokenizer *t = load_rill();
    const struct text_run runs[] = {{STR("abc"), true}, {STR("d\xff"), false}};
    const struct text_run cut[] = {{STR("\xe4\xb8"), true}, {STR("\xad"), true}};
    struct token_ids ids = {0};
    struct error err = {0};

    (void)state;
    assert_true(token_ids_push(&ids, 42));
    assert_int_equal(tokenizer_encode(&ids, t, runs, 2, &err), ERR_BAD_REQUEST);
    assert_string_equal(err.text, "the text is not valid UTF-8 at byte 4");
    assert_int_equal(tokenizer_encode(&ids, t, cut, 2, &err), ERR_BAD_REQUEST);
    assert_string_equal(err.text, "the text is not valid UTF-8 at byte 0");
    assert_int_equal(ids.n, 1);
    assert_int_equal(ids.ids[0], 42);
    assert_int_equal(tokenizer_encode_text(&ids, t, STR("?"), &err), OK);
    assert_int_equal(ids.n, 2);
    token_ids_release(&ids);
    tokenizer_free(t);
}

/* A failure in the middle leaves the list as it was. */
static void test_failure_keeps_the_list(void **state)
{
    const struct fixture f = {.pattern = "(?:a+)+b"};
    struct tokenizer *t = load(&f);
    struct token_ids ids = {0};
    struct error err = {0};

    (void)state;
    assert_true(token_ids_push(&ids, 42));
    assert_int_equal(tokenizer_encode_text(
                         &ids, t, STR("abab aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac b"), &err),
                     ERR_LIMIT);
    assert_int_equal(ids.n, 1);
    token_ids_release(&ids);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_ids),
        cmocka_unit_test(test_lookups),
        cmocka_unit_test(test_every_added_token_as_user_text),
        cmocka_unit_test(test_runs_are_one_text),
        cmocka_unit_test(test_adjacent_trusted_runs),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_reachable_added_tokens),
        cmocka_unit_test(test_ignore_merges),
        cmocka_unit_test(test_invalid_text),
        cmocka_unit_test(test_failure_keeps_the_list),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
