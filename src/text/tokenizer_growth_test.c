/* tokenizer_growth_test.c - encoding time is about linear in the text, whatever the text.
 *
 * The one test that looks at a clock, as growth has no other witness: CPU time of this process, the
 * best of three, for a text and one eight times as long. Linear is 8, n log n about 9, quadratic 64;
 * the bound allows 2.5 for each doubling. A busy machine can double the time of milliseconds, so what
 * stays under a quarter of a second is not looked at: quadratic work on 256 KB takes several. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <time.h>

#include "text/tokenizer_testing.h"

#define RILL SPILLWAY_SOURCE_DIR "/models/rill/tokenizer.json"

enum { SHORT_BYTES = 32 << 10, FACTOR = 8, RUNS = 3 };
static const double GROWTH_MAX = 2.5 * 2.5 * 2.5, NOISE_SECONDS = 0.25;

static double cpu_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double seconds_for(const struct tokenizer *t, const char *unit, size_t n_bytes,
                          bool is_trusted)
{
    struct buf text = {0};
    double best = 1e9;

    while (text.len < n_bytes) {
        buf_append_str(&text, unit);
    }
    for (int i = 0; i < RUNS; i++) {
        /* Two runs, so that trust is carried along as well. */
        const struct text_run runs[] = {{{text.data, text.len}, is_trusted}, {STR("?"), true}};
        struct token_ids ids = {0};
        double start = cpu_seconds(), seconds;
        assert_int_equal(tokenizer_encode(&ids, t, runs, 2, NULL), OK);
        seconds = cpu_seconds() - start;
        best = seconds < best ? seconds : best;
        assert_true(ids.n > 0);
        token_ids_release(&ids);
    }
    buf_release(&text);
    return best;
}

static void check(const struct tokenizer *t)
{
    static const char *const units[] = {
        "a",     /* one piece, heap */
        "abaab", /* the same with uneven merges */
        " ",     /* white space */
        "\n",
        " \n",              /* the rule that looks back to the last line end */
        "7",                /* one piece a character */
        "-=",               /* symbols */
        "\xcc\x81\xcc\xa3", /* marks that normalisation reorders */
        "e\xcc\x81",        /* and composes */
        "\xe4\xb8\xad\xe6\x96\x87",
        "<|im_start", /* nearly a control token */
        "<|im_end|>", /* one after the other */
        "'s",
    };

    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        for (int is_trusted = 0; is_trusted < 2; is_trusted++) {
            double one = seconds_for(t, units[i], SHORT_BYTES, is_trusted);
            double many = seconds_for(t, units[i], (size_t)SHORT_BYTES * FACTOR, is_trusted);
            if (many > one * GROWTH_MAX && many > NOISE_SECONDS) {
                fail_msg("%s: %g s for %d bytes, %g s for %d times as many", units[i], one,
                         SHORT_BYTES, many, FACTOR);
            }
        }
    }
}

static void test_rill(void **state)
{
    struct tokenizer *t;

    (void)state;
    assert_int_equal(tokenizer_load(&t, RILL, NULL), OK);
    check(t);
    tokenizer_free(t);
}

/* White space around added tokens, and tokens that are looked for after normalisation. */
static void test_flags(void **state)
{
    const struct fixture f = {
        .merges = {{"a", "b"}, {"ab", "a"}, {"a", "a"}},
        .added = {
            "{\"id\":259,\"content\":\"<|im_end|>\",\"lstrip\":true,\"rstrip\":true}",
            "{\"id\":260,\"content\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab\",\"normalized\":true}",
            "{\"id\":261,\"content\":\"<|im_start|>\",\"single_word\":true}"}};
    struct error err;
    struct tokenizer *t = fixture_load(&f, &err);

    (void)state;
    assert_non_null(t);
    check(t);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rill), cmocka_unit_test(test_flags)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
