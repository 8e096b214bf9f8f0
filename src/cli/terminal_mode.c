/* terminal_mode.c - see terminal_mode.h. */
#include "cli/terminal_mode.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define PASTE_ON  "\x1b[?2004h"
#define PASTE_OFF "\x1b[?2004l"

static const int ends[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGABRT, SIGBUS};
enum { N_ENDS = sizeof ends / sizeof ends[0] };

static struct {
    volatile sig_atomic_t is_armed; /* the rest may change only while it is 0 */
    int in_fd, out_fd;
    struct termios saved;
    struct sigaction before[N_ENDS];
} rescue;

/* Only calls that POSIX allows in a handler. */
static void on_end(int signo)
{
    int cause = errno;
    if (rescue.is_armed) {
        struct pollfd out = {.fd = rescue.out_fd, .events = POLLOUT};
        rescue.is_armed = 0;
        tcsetattr(rescue.in_fd, TCSANOW, &rescue.saved);
        if (poll(&out, 1, 0) > 0) { /* a screen that takes nothing must not hold up the end */
            (void)!write(rescue.out_fd, PASTE_OFF, sizeof PASTE_OFF - 1);
        }
    }
    for (size_t i = 0; i < N_ENDS; i++) {
        if (ends[i] == signo) {
            sigaction(signo, &rescue.before[i], NULL);
        }
    }
    raise(signo); /* held back until this handler returns */
    errno = cause;
}

static void arm(const struct terminal_mode *m)
{
    struct sigaction action = {.sa_handler = on_end};
    rescue.in_fd = m->in_fd;
    rescue.out_fd = m->out_fd;
    rescue.saved = m->saved;
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGTTOU); /* else tcsetattr() stops a job in the background */
    for (size_t i = 0; i < N_ENDS; i++) {
        sigaddset(&action.sa_mask, ends[i]);
        sigaction(ends[i], NULL, &rescue.before[i]);
    }
    rescue.is_armed = 1;
    for (size_t i = 0; i < N_ENDS; i++) {
        if (rescue.before[i].sa_handler != SIG_IGN) {
            sigaction(ends[i], &action, NULL);
        }
    }
}

static void disarm(void)
{
    for (size_t i = 0; i < N_ENDS && rescue.is_armed; i++) {
        sigaction(ends[i], &rescue.before[i], NULL);
    }
    rescue.is_armed = 0;
}

enum status terminal_mode_init(struct terminal_mode *m, int in_fd, int out_fd, struct error *err)
{
    *m = (struct terminal_mode){.in_fd = in_fd, .out_fd = out_fd};
    if (tcgetattr(in_fd, &m->saved) != 0) {
        return error_set(err, ERR_IO, "standard input is no terminal: %s", strerror(errno));
    }
    m->raw = m->saved;
    m->raw.c_lflag &= (tcflag_t) ~(ICANON | ECHO | ISIG | IEXTEN);
    m->raw.c_iflag &= (tcflag_t) ~(ICRNL | INLCR | IXON | ISTRIP);
    m->raw.c_cc[VMIN] = 1;
    m->raw.c_cc[VTIME] = 0;
    return OK;
}

void terminal_mode_enter(const struct terminal_mode *m)
{
    arm(m); /* first: putting back a terminal that is not raw yet does no harm */
    tcsetattr(m->in_fd, TCSADRAIN, &m->raw);
    terminal_write(m->out_fd, PASTE_ON, sizeof PASTE_ON - 1);
}

void terminal_mode_leave(const struct terminal_mode *m)
{
    terminal_write(m->out_fd, PASTE_OFF, sizeof PASTE_OFF - 1);
    tcsetattr(m->in_fd, TCSADRAIN, &m->saved);
    disarm();
}

void terminal_write(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno != EINTR) {
            return;
        }
        if (n > 0) {
            data += n;
            len -= (size_t)n;
        }
    }
}
