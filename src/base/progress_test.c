/* progress_test.c - what long work prints, into a pipe. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/progress.h"

struct output {
    int read_fd, write_fd;
    struct progress p;
    char text[4096];
};

static void output_open(struct output *o)
{
    int fds[2];

    assert_int_equal(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
    *o = (struct output){.read_fd = fds[0], .write_fd = fds[1]};
    progress_init(&o->p, o->write_fd);
    assert_false(o->p.is_tty);
}

/* What was printed since the last call; nothing in it may come from a division by zero. */
static const char *printed(struct output *o)
{
    ssize_t n = read(o->read_fd, o->text, sizeof o->text - 1);

    o->text[n > 0 ? n : 0] = '\0';
    assert_null(strstr(o->text, "nan"));
    assert_null(strstr(o->text, "inf"));
    return o->text;
}

static void output_close(struct output *o)
{
    close(o->read_fd);
    close(o->write_fd);
}

/* As if the work had begun `seconds` ago, and nothing had been shown since. */
static void pass(struct output *o, double seconds)
{
    o->p.start_ns -= (uint64_t)(seconds * 1e9);
    o->p.shown_ns = o->p.start_ns;
}

static void expect_begin(const char *text, const char *begin)
{
    if (strncmp(text, begin, strlen(begin)) != 0) {
        fail_msg("'%s' does not begin with '%s'", text, begin);
    }
}

static void expect_end(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);

    if (n < m || strcmp(text + n - m, end) != 0) {
        fail_msg("'%s' does not end with '%s'", text, end);
    }
}

static size_t count(const char *text, char c)
{
    size_t n = 0;

    for (; *text; text++) {
        n += *text == c;
    }
    return n;
}

/* A line at the start, nothing while it is quick, a line after five seconds, a line at the end. */
static void test_plain(void **state)
{
    struct output o;
    const char *text;

    (void)state;
    output_open(&o);
    progress_start(&o.p, "weights", PROGRESS_BYTES, UINT64_C(3) << 30);
    assert_string_equal(printed(&o), "weights 0.0 MiB / 3.00 GiB\n");
    progress_update(&o.p, 1 << 20);
    assert_string_equal(printed(&o), "");
    pass(&o, 6);
    progress_update(&o.p, UINT64_C(1) << 30);
    text = printed(&o);
    expect_begin(text, "weights 1.00 GiB / 3.00 GiB, ");
    expect_end(text, " s left\n");
    progress_update(&o.p, UINT64_C(2) << 30); /* just shown */
    assert_string_equal(printed(&o), "");
    progress_finish(&o.p);
    text = printed(&o);
    expect_begin(text, "weights 2.00 GiB / 3.00 GiB, ");
    expect_end(text, " s\n");
    assert_int_equal(count(text, '\n'), 1);
    assert_int_equal(count(text, '\r') + count(text, '\x1b'), 0);
    output_close(&o);
}

/* An unknown total, no work at all, more work than was announced, and a second use. */
static void test_edges(void **state)
{
    struct output o;
    const char *text;

    (void)state;
    output_open(&o);
    progress_start(&o.p, "steps", PROGRESS_STEPS, 0);
    assert_string_equal(printed(&o), "steps 0\n");
    pass(&o, 10);
    progress_update(&o.p, 0);
    assert_string_equal(printed(&o), "steps 0\n");
    progress_finish(&o.p);
    expect_begin(printed(&o), "steps 0, 0/s, ");

    progress_start(&o.p, "tokens", PROGRESS_TOKENS, 4);
    assert_string_equal(printed(&o), "tokens 0 tok / 4 tok\n");
    pass(&o, 10);
    progress_update(&o.p, UINT64_MAX);
    text = printed(&o);
    expect_begin(text, "tokens 18446744073709551616 tok / 4 tok, ");
    assert_null(strstr(text, "left"));
    progress_finish(&o.p);
    assert_int_equal(count(printed(&o), '\n'), 1);

    char label[200];
    memset(label, 'x', sizeof label - 1);
    label[sizeof label - 1] = '\0';
    progress_start(&o.p, label, PROGRESS_STEPS, 1);
    assert_int_equal(strspn(printed(&o), "x"), sizeof o.p.label - 1);

    progress_start(NULL, "silent", PROGRESS_STEPS, 1);
    progress_update(NULL, 1);
    progress_finish(NULL);
    assert_string_equal(printed(&o), "");
    output_close(&o);
}

/* On a terminal one line is rewritten, at most ten times a second, and ended once. */
static void test_terminal(void **state)
{
    static const char full[] = "[########################] ",
                      empty[] = "[........................] ",
                      half[] = "[############............] ";
    struct output o;
    const char *text;

    (void)state;
    output_open(&o);
    o.p.is_tty = true;
    progress_start(&o.p, "load", PROGRESS_STEPS, 10);
    text = printed(&o);
    expect_begin(text, "\rload ");
    assert_non_null(strstr(text, empty));
    pass(&o, 1);
    progress_update(&o.p, 5);
    assert_non_null(strstr(printed(&o), half));
    pass(&o, 1);
    progress_update(&o.p, UINT64_MAX);
    text = printed(&o);
    assert_non_null(strstr(text, full));
    assert_int_equal(count(text, '\n'), 0);
    progress_finish(&o.p);
    text = printed(&o);
    expect_begin(text, "\rload ");
    expect_end(text, "\x1b[K\n");
    output_close(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
