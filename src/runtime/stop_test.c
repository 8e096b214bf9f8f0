/* stop_test.c - stop strings for every way of cutting the text, against a naive search.
 *
 * Place: runtime, cmocka. The naive search looks at the whole text so far after every piece: what must be
 *        out by now, what must still be held. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/stop.h"

struct example {
    const char *text;
    const char *stops[4]; /* NULL-terminated */
};

static size_t count(const struct example *e)
{
    size_t n = 0;

    while (n < 4 && e->stops[n]) {
        n++;
    }
    return n;
}

struct expected {
    size_t n_out; /* bytes of the text let out */
    int matched;
};

/* What is right once the first n bytes have arrived. */
static struct expected naive(const struct example *e, size_t n, bool keeps_match)
{
    size_t n_stops = count(e), held = 0;

    for (size_t end = 1; end <= n; end++) {
        int best = -1;
        size_t best_len = 0;
        for (size_t i = 0; i < n_stops; i++) {
            size_t len = strlen(e->stops[i]);
            if (len <= end && len > best_len &&
                memcmp(e->text + end - len, e->stops[i], len) == 0) {
                best = (int)i;
                best_len = len;
            }
        }
        if (best >= 0) {
            return (struct expected){keeps_match ? end : end - best_len, best};
        }
    }
    for (size_t i = 0; i < n_stops; i++) {
        for (size_t len = strlen(e->stops[i]) - 1; len > held; len--) {
            if (len <= n && memcmp(e->text + n - len, e->stops[i], len) == 0) {
                held = len;
            }
        }
    }
    return (struct expected){n - held, -1};
}

static void init(struct stop *s, const struct example *e, bool keeps_match)
{
    struct str strings[4];

    for (size_t i = 0; i < count(e); i++) {
        strings[i] = str_of(e->stops[i]);
    }
    assert_int_equal(stop_init(s, strings, count(e), keeps_match, NULL), OK);
}

static void check_out(const struct buf *out, const struct example *e, size_t n_out)
{
    assert_int_equal(out->len, n_out);
    if (n_out > 0) {
        assert_memory_equal(out->data, e->text, n_out);
    }
}

/* Bit i of cuts: there is a cut after byte i + 1. */
static void run_cut(const struct example *e, uint32_t cuts, bool keeps_match)
{
    size_t len = strlen(e->text), from = 0;
    struct expected want = {0, -1};
    struct stop s;
    struct buf out;

    init(&s, e, keeps_match);
    buf_init(&out);
    for (size_t at = 1; at <= len; at++) {
        if (at < len && !(cuts >> (at - 1) & 1)) {
            continue;
        }
        want = naive(e, at, keeps_match);
        bool is_stopped = stop_push(&s, (struct str){e->text + from, at - from}, &out);
        assert_int_equal(is_stopped, want.matched >= 0);
        assert_int_equal(s.matched, want.matched);
        check_out(&out, e, want.n_out);
        from = at;
    }
    stop_finish(&s, &out);
    check_out(&out, e, want.matched >= 0 ? want.n_out : len);
    buf_release(&out);
    stop_release(&s);
}

static const struct example examples[] = {
    {"ABCDEFGHIJKL", {"DEFGHIJ"}},
    {"xaabx", {"aab", "ab"}},
    {"xaabx", {"ab", "aab"}},
    {"aaaaaaaab", {"aaaab"}},
    {"ababababac", {"ababac"}},
    {"abcabcabd", {"abcabd", "cabx"}},
    {"xabcdx", {"abcd", "bc"}},
    {"aaaa", {"a"}},
    {"stop", {"stop"}},
    {"sto", {"stop"}},
    {"ststststo", {"stop", "tstx"}},
    {"grü\xc3\x9f"
     "e",
     {"\xc3\x9f"}},
    {"\xe4\xbd\xa0\xe5\xa5\xbd!", {"\xe5\xa5\xbd!", "\xe5\xa5\xbe"}},
    {"no match here", {"zzz"}},
    {"\n\nUser:", {"\n\nUser", "\n\n\n", "User:"}},
    {"abababab", {"babb", "aba", "abab"}},
    {"x", {NULL}},
};

static void test_every_cut(void **state)
{
    (void)state;

    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++) {
        size_t len = strlen(examples[i].text);
        for (uint32_t cuts = 0; cuts < 1u << (len - 1); cuts++) {
            run_cut(&examples[i], cuts, false);
            run_cut(&examples[i], cuts, true);
        }
    }
}

static void test_random_texts(void **state)
{
    uint64_t seed = 7;
    (void)state;

    for (size_t round = 0; round < 20000; round++) {
        char text[25], stops[3][7];
        struct example e = {text, {stops[0], stops[1], stops[2], NULL}};

        for (size_t part = 0; part < 4; part++) {
            char *to = part < 3 ? stops[part] : text;
            size_t len = part < 3 ? 1 + seed % 6 : 24;
            for (size_t i = 0; i < len; i++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                to[i] = (char)('a' + (seed >> 40) % 2);
            }
            to[len] = '\0';
            seed ^= seed >> 17;
        }
        run_cut(&e, (uint32_t)(seed >> 20), round % 2 == 0);
    }
}

static void test_long_near_misses_are_let_out(void **state)
{
    enum { N = 1 << 20 };
    char *text = malloc(N), *needle = malloc(STOP_STRING_BYTES_MAX);
    struct str one = {needle, STOP_STRING_BYTES_MAX};
    struct stop s;
    struct buf out;
    (void)state;

    assert_non_null(text);
    assert_non_null(needle);
    memset(text, 'a', N);
    memset(needle, 'a', STOP_STRING_BYTES_MAX);
    needle[STOP_STRING_BYTES_MAX - 1] = 'b';
    assert_int_equal(stop_init(&s, &one, 1, false, NULL), OK);
    buf_init(&out);
    for (size_t at = 0; at < N; at += 7) {
        size_t n = N - at < 7 ? N - at : 7;
        assert_false(stop_push(&s, (struct str){text + at, n}, &out));
        size_t held = at + n < STOP_STRING_BYTES_MAX - 1 ? at + n : STOP_STRING_BYTES_MAX - 1;
        assert_int_equal(out.len, at + n - held);
    }
    assert_true(stop_push(&s, STR("b and more"), &out));
    assert_int_equal(out.len, N - STOP_STRING_BYTES_MAX + 1);
    stop_finish(&s, &out);
    assert_int_equal(out.len, N - STOP_STRING_BYTES_MAX + 1);
    buf_release(&out);
    stop_release(&s);
    free(text);
    free(needle);
}

static void test_limits(void **state)
{
    static char text[STOP_STRING_BYTES_MAX + 1];
    struct str strings[STOP_STRINGS_MAX + 1];
    struct stop s;
    struct error err;
    (void)state;

    memset(text, 'x', sizeof text);
    for (size_t i = 0; i <= STOP_STRINGS_MAX; i++) {
        strings[i] = (struct str){text, 1 + i};
    }
    assert_int_equal(stop_init(&s, strings, STOP_STRINGS_MAX, false, &err), OK);
    stop_release(&s);
    assert_int_equal(stop_init(&s, strings, STOP_STRINGS_MAX + 1, false, &err), ERR_BAD_REQUEST);
    assert_string_equal(err.param, "stop");
    strings[0].len = STOP_STRING_BYTES_MAX;
    assert_int_equal(stop_init(&s, strings, 1, false, &err), OK);
    stop_release(&s);
    strings[0].len = STOP_STRING_BYTES_MAX + 1;
    assert_int_equal(stop_init(&s, strings, 1, false, &err), ERR_BAD_REQUEST);
    strings[0].len = 0;
    assert_int_equal(stop_init(&s, strings, 1, false, &err), ERR_BAD_REQUEST);
    strings[0] = STR("\xc3");
    assert_int_equal(stop_init(&s, strings, 1, false, &err), ERR_BAD_REQUEST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_random_texts),
        cmocka_unit_test(test_long_near_misses_are_let_out),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests_name("stop", tests, NULL, NULL);
}
