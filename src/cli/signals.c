/* signals.c - see signals.h. */
#include "cli/signals.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/command.h"
#include "cli/sd_notify.h"
#include "server/server.h"

/* After the drain time, or after the second signal, the process ends within this, come what may. */
enum { STOP_GRACE_MS = 800 };

/* Wakes the watching thread for signal_watch_free(). */
#define SIGNAL_DONE SIGUSR1

struct signal_watch {
    pthread_mutex_t lock;
    struct server *server; /* guarded by lock; NULL after signal_watch_detach */
    const struct log *log;
    double drain_timeout_s;
    pthread_t thread;
    atomic_bool is_serving, is_done;
};

static sigset_t watched_set(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGNAL_DONE);
    return set;
}

/* BUS_ADRERR is an access beyond the end of a mapped file. Anything else is a fault of ours and
 * takes the default way, with a core file. */
static void on_bus(int signo, siginfo_t *info, void *context)
{
    static const char text[] = "spillway: error: a mapped file was cut or cannot be read any more: "
                               "a model file, or that of --offload-folder (SIGBUS)\n";
    (void)context;
    if (info->si_code == BUS_ADRERR) {
        ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
        (void)n;
        _exit(EXIT_CODE_FILE_LOST);
    }
    signal(signo, SIG_DFL);
    raise(signo);
}

void signals_block(void)
{
    sigset_t set = watched_set();
    struct sigaction bus = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    sigemptyset(&bus.sa_mask);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    sigaction(SIGBUS, &bus, NULL);
    signal(SIGPIPE, SIG_IGN); /* a client that left is an error of write() */
    signal(SIGHUP,
           SIG_IGN); /* there are no log files to reopen, and a closed terminal is no reason */
}

/* The next stop signal; 0 when the watch is being freed, -1 after timeout_ms (negative: never). */
static int next_signal(struct signal_watch *w, double timeout_ms)
{
    sigset_t set = watched_set();
    const uint64_t start = clock_now_ns();
    for (;;) {
        double left = timeout_ms < 0 ? 3600e3 : timeout_ms - clock_seconds_since(start) * 1e3;
        left = left < 0 ? 0 : left;
        struct timespec ts = {.tv_sec = (time_t)(left / 1e3)};
        ts.tv_nsec = (long)((left - (double)ts.tv_sec * 1e3) * 1e6);
        int signo = sigtimedwait(&set, NULL, &ts);
        if (atomic_load(&w->is_done)) {
            return 0;
        }
        if (signo == SIGTERM || signo == SIGINT) {
            return signo;
        }
        if (signo < 0 && errno == EAGAIN && timeout_ms >= 0) {
            return -1;
        }
    }
}

static void request_stop(struct signal_watch *w, int how)
{
    pthread_mutex_lock(&w->lock);
    if (w->server) {
        server_request_stop(w->server, how);
    }
    pthread_mutex_unlock(&w->lock);
}

static void *watch(void *arg)
{
    struct signal_watch *w = arg;
    int signo = next_signal(w, -1);
    if (signo == 0) {
        return NULL;
    }
    sd_notify_send("STOPPING=1");
    if (!atomic_load(&w->is_serving)) {
        log_info(w->log, "%s while loading: stopped", signo == SIGINT ? "SIGINT" : "SIGTERM");
        _exit(EXIT_CODE_OK);
    }
    log_info(w->log, "%s: running requests may finish for %.3g s; once more stops at once",
             signo == SIGINT ? "SIGINT" : "SIGTERM", w->drain_timeout_s);
    request_stop(w, 1);
    signo = next_signal(w, w->drain_timeout_s * 1e3 + STOP_GRACE_MS);
    if (signo > 0) {
        log_info(w->log, "second signal: stopping at once");
        request_stop(w, 2);
        signo = next_signal(w, STOP_GRACE_MS);
    }
    if (signo != 0) { /* too late, or a third signal */
        log_warning(w->log, "a step of the model did not end in time: left it");
        _exit(EXIT_CODE_OK);
    }
    return NULL;
}

enum status signal_watch_new(struct signal_watch **out, struct server *server,
                             double drain_timeout_s, const struct log *log, struct error *err)
{
    struct signal_watch *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the signal thread");
    }
    pthread_mutex_init(&w->lock, NULL);
    w->server = server;
    w->log = log;
    w->drain_timeout_s = drain_timeout_s;
    int rc = pthread_create(&w->thread, NULL, watch, w);
    if (rc != 0) {
        pthread_mutex_destroy(&w->lock);
        free(w);
        return error_set(err, ERR_NO_MEMORY, "cannot start the signal thread: %s", strerror(rc));
    }
    *out = w;
    return OK;
}

void signal_watch_serving(struct signal_watch *w)
{
    atomic_store(&w->is_serving, true);
}

void signal_watch_detach(struct signal_watch *w)
{
    if (w) {
        pthread_mutex_lock(&w->lock);
        w->server = NULL;
        pthread_mutex_unlock(&w->lock);
    }
}

void signal_watch_free(struct signal_watch *w)
{
    if (!w) {
        return;
    }
    atomic_store(&w->is_done, true);
    pthread_kill(w->thread, SIGNAL_DONE);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
