/* detok_test.c - pieces of text from token ids: held tails, bad bytes, special tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "text/detok.h"
#include "text/tokenizer_testing.h"

/* Ids 0..255 are single bytes; then two entries that end inside a character, a special token and an
 * added one. */
static const struct fixture fixture = {
    .merges = {{"\xc3\xa4", "\xc2\xb8"},  /* e4 b8 */
               {"\xc4\xac", "\xc3\xb0"}}, /* 8a f0 */
    .added = {"{\"id\":258,\"content\":\"<end>\",\"special\":true}",
              "{\"id\":259,\"content\":\"<think>\"}"}};

enum { TOKEN_E4_B8 = 256, TOKEN_8A_F0 = 257, TOKEN_END = 258, TOKEN_THINK = 259 };

static struct tokenizer *load(void)
{
    struct error err = {0};
    struct tokenizer *t = fixture_load(&fixture, &err);

    if (!t) {
        fail_msg("%s", err.text);
    }
    return t;
}

/* Every piece must be valid UTF-8 by itself; their joint text is in out. */
static void push_all(struct buf *out, const struct tokenizer *t, bool skip_special,
                     const int32_t *ids, size_t n)
{
    struct detok d;

    detok_init(&d, t, skip_special);
    for (size_t i = 0; i <= n; i++) {
        struct buf piece = {0};
        if (i < n) {
            detok_push(&d, ids[i], &piece);
        } else {
            detok_finish(&d, &piece);
        }
        assert_int_equal(piece.len ? utf8_valid_prefix(piece.data, piece.len) : 0, piece.len);
        buf_append(out, piece.data, piece.len);
        buf_release(&piece);
    }
    assert_int_equal(d.n_tail, 0);
}

/* The whole at once: all bytes, then one replacement for each maximal bad part. */
static void decode_whole(struct buf *out, const struct tokenizer *t, const int32_t *ids, size_t n)
{
    struct buf bytes = {0};

    for (size_t i = 0; i < n; i++) {
        struct str piece = tokenizer_bytes(t, ids[i]);
        buf_append(&bytes, piece.ptr, piece.len);
    }
    for (size_t i = 0; i < bytes.len;) {
        uint32_t cp;
        char text[4];
        i += utf8_decode(&cp, bytes.data + i, bytes.len - i);
        buf_append(out, text, utf8_encode(text, cp));
    }
    buf_release(&bytes);
}

static void test_bytes(void **state)
{
    static const struct {
        const char *bytes; /* one token each */
        const char *text;
    } cases[] = {
        {"abc", "abc"},
        {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},                                   /* emoji */
        {"\xf0\x9f\x87\xa9\xf0\x9f\x87\xaa!", "\xf0\x9f\x87\xa9\xf0\x9f\x87\xaa!"}, /* flag */
        {"\xe4\xb8\xad\xe6\x96\x87", "\xe4\xb8\xad\xe6\x96\x87"},
        {"\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd"},             /* lone continuations */
        {"\xf0\x9f\x98", "\xef\xbf\xbd"},                     /* cut at the end */
        {"\xf0\x9f\x98z", "\xef\xbf\xbdz"},                   /* cut by text */
        {"\xe4\xb8\xe4\xb8\xad", "\xef\xbf\xbd\xe4\xb8\xad"}, /* cut by a lead */
        {"\xf0\xf0\x9f\x98\x80", "\xef\xbf\xbd\xf0\x9f\x98\x80"},
        {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"}, /* overlong */
        {"\xe0\x80\xaf", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* surrogate */
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xff", "\xef\xbf\xbd"},
    };
    struct tokenizer *t = load();

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int32_t ids[16];
        size_t n = strlen(cases[i].bytes);
        struct buf out = {0};
        for (size_t k = 0; k < n; k++) {
            ids[k] = (unsigned char)cases[i].bytes[k];
        }
        push_all(&out, t, false, ids, n);
        assert_string_equal(buf_cstr(&out), cases[i].text);
        buf_release(&out);
    }
    tokenizer_free(t);
}

/* Nothing is given out before it is certain, and everything as soon as it is. */
static void test_pieces_as_they_come(void **state)
{
    static const struct {
        int32_t id;
        const char *piece;
    } steps[] = {
        {'a', "a"},
        {0xf0, ""},
        {0x9f, ""},
        {0x98, ""},
        {0x80, "\xf0\x9f\x98\x80"},
        {TOKEN_E4_B8, ""},
        {'b', "\xef\xbf\xbd"
              "b"},
        {TOKEN_E4_B8, ""},
        {0xad, "\xe4\xb8\xad"},
        {TOKEN_E4_B8, ""},
        {TOKEN_8A_F0, "\xe4\xb8\x8a"},
        {0xf0, "\xef\xbf\xbd"},
        {TOKEN_THINK, "\xef\xbf\xbd<think>"},
        {9999, ""},
        {-1, ""},
        {0xc3, ""},
    };
    struct tokenizer *t = load();
    struct detok d;
    struct buf out = {0};

    (void)state;
    detok_init(&d, t, true);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        buf_clear(&out);
        detok_push(&d, steps[i].id, &out);
        assert_string_equal(buf_cstr(&out), steps[i].piece);
    }
    buf_clear(&out);
    detok_finish(&d, &out);
    assert_string_equal(buf_cstr(&out), "\xef\xbf\xbd");
    detok_finish(&d, &out);
    assert_int_equal(out.len, 3); /* finished once */
    buf_release(&out);
    tokenizer_free(t);
}

static void test_special_tokens(void **state)
{
    const int32_t ids[] = {'a', TOKEN_END, TOKEN_THINK, 'b', TOKEN_E4_B8, TOKEN_END, 0xad};
    struct tokenizer *t = load();
    struct buf out = {0};

    (void)state;
    push_all(&out, t, false, ids, 7);
    assert_string_equal(buf_cstr(&out), "a<end><think>b\xef\xbf\xbd<end>\xef\xbf\xbd");
    buf_clear(&out);
    push_all(&out, t, true, ids, 7); /* a token left out does not part a character */
    assert_string_equal(buf_cstr(&out), "a<think>b\xe4\xb8\xad");
    buf_release(&out);
    tokenizer_free(t);
}

static void test_joined_pieces_equal_the_whole(void **state)
{
    static const int32_t likely[] = {'a',  0xe4,        0xb8,        0xad,     0xf0, 0x9f,
                                     0x98, 0x80,        0xc3,        0xa9,     0xed, 0xf4,
                                     0xff, TOKEN_E4_B8, TOKEN_8A_F0, TOKEN_END};
    struct tokenizer *t = load();
    uint32_t random = 1;

    (void)state;
    for (int i = 0; i < 20000; i++) {
        int32_t ids[24];
        struct buf pieces = {0}, whole = {0};
        size_t n = (size_t)i % 24;
        for (size_t k = 0; k < n; k++) {
            random = random * 1664525u + 1013904223u;
            ids[k] = likely[(random >> 16) % 16];
        }
        push_all(&pieces, t, false, ids, n);
        decode_whole(&whole, t, ids, n);
        assert_int_equal(pieces.len, whole.len);
        if (whole.len > 0) {
            assert_memory_equal(pieces.data, whole.data, whole.len);
        }
        buf_release(&pieces);
        buf_release(&whole);
    }
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_pieces_as_they_come),
        cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_joined_pieces_equal_the_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
