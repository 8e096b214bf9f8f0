/* terminal_mode_test.c - a program that is ended by a signal leaves the terminal as it was.
 *
 * A child enters raw mode on a pseudo-terminal and waits; the parent looks at the terminal from the
 * other side. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/terminal_mode.h"

enum { FLAGS = ICANON | ECHO | ISIG };

struct scene {
    int master, slave;
    pid_t child;
    int to_child, from_child; /* pipes */
};

static void child_main(int slave, int in, int out, int ignored)
{
    struct terminal_mode m;
    char c = 'r';
    const struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    for (int signo = 1; signo < 32; signo++) { /* whatever the test's parent or a sanitizer did */
        signal(signo, SIG_DFL);
    }
    if (ignored) {
        signal(ignored, SIG_IGN);
    }
    if (terminal_mode_init(&m, slave, slave, NULL) != OK) {
        _exit(90);
    }
    terminal_mode_enter(&m);
    if (write(out, &c, 1) != 1) {
        _exit(91);
    }
    while (read(in, &c, 1) < 0 && errno == EINTR) {
    }
    if (c == 'a') {
        abort();
    }
    terminal_mode_leave(&m);
    if (c == 'k') { /* afterwards a signal meets nothing of ours */
        raise(SIGTERM);
    }
    _exit(0);
}

static void scene_open(struct scene *s, int ignored)
{
    int down[2], up[2];
    char c;
    assert_int_equal(openpty(&s->master, &s->slave, NULL, NULL, NULL), 0);
    assert_int_equal(pipe2(down, O_CLOEXEC), 0);
    assert_int_equal(pipe2(up, O_CLOEXEC), 0);
    s->child = fork();
    assert_true(s->child >= 0);
    if (s->child == 0) {
        close(down[1]);
        close(up[0]);
        child_main(s->slave, down[0], up[1], ignored);
    }
    close(down[0]);
    close(up[1]);
    s->to_child = down[1];
    s->from_child = up[0];
    assert_int_equal(read(s->from_child, &c, 1), 1);
}

static unsigned mode_of(const struct scene *s)
{
    struct termios t;
    assert_int_equal(tcgetattr(s->slave, &t), 0);
    return t.c_lflag & FLAGS;
}

/* Everything that was written to the terminal. */
static void read_screen(const struct scene *s, char *out, size_t n)
{
    struct pollfd p = {.fd = s->master, .events = POLLIN};
    size_t len = 0;
    while (len < n - 1 && poll(&p, 1, 0) > 0 && (p.revents & POLLIN)) {
        ssize_t got = read(s->master, out + len, n - 1 - len);
        if (got <= 0) {
            break;
        }
        len += (size_t)got;
    }
    out[len] = '\0';
}

static int scene_close(struct scene *s)
{
    int status;
    assert_int_equal(waitpid(s->child, &status, 0), s->child);
    close(s->to_child);
    close(s->from_child);
    return status;
}

static void expect_restored(struct scene *s)
{
    char screen[256];
    assert_int_equal(mode_of(s), FLAGS);
    read_screen(s, screen, sizeof screen);
    assert_non_null(strstr(screen, "\x1b[?2004h"));
    assert_non_null(strstr(screen, "\x1b[?2004l"));
    close(s->master);
    close(s->slave);
}

static void test_signals(void **state)
{
    static const int signals[] = {SIGTERM, SIGHUP, SIGINT, SIGQUIT};
    (void)state;
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        struct scene s;
        scene_open(&s, 0);
        assert_int_equal(mode_of(&s), 0);
        assert_int_equal(kill(s.child, signals[i]), 0);
        int status = scene_close(&s);
        assert_true(WIFSIGNALED(status)); /* the shell sees what ended it */
        assert_int_equal(WTERMSIG(status), signals[i]);
        expect_restored(&s);
    }
}

static void test_abort(void **state)
{
    struct scene s;
    (void)state;
    scene_open(&s, 0);
    assert_int_equal(write(s.to_child, "a", 1), 1);
    int status = scene_close(&s);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    expect_restored(&s);
}

/* Under nohup SIGHUP means nothing, and goes on meaning nothing. */
static void test_ignored(void **state)
{
    struct scene s;
    (void)state;
    scene_open(&s, SIGHUP);
    assert_int_equal(kill(s.child, SIGHUP), 0);
    assert_int_equal(mode_of(&s), 0);
    assert_int_equal(write(s.to_child, "x", 1), 1);
    int status = scene_close(&s);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    expect_restored(&s);
}

/* After leaving, signals do what they did before. */
static void test_left(void **state)
{
    struct scene s;
    (void)state;
    scene_open(&s, 0);
    assert_int_equal(write(s.to_child, "k", 1), 1);
    int status = scene_close(&s);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGTERM);
    expect_restored(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signals),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_ignored),
        cmocka_unit_test(test_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
