/* loop.c - see loop.h.
 *
 * One round: wait, take what came (connections, bytes, engine events, wishes of other threads), look
 * at deadlines if it is time, then settle the connections that were touched: what many engine events
 * wrote for one connection leaves in one send. Closed connections are freed last, since events of
 * the same round may still point to them.
 *
 * Drain: the listener is closed, new requests are refused, running ones may go on for a while, then
 * get an error; when none is left (or the output of the last does not leave in time) the loop ends. */
#include "server/loop.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/generation.h"
#include "server/server_state.h"

enum {
    EVENTS_PER_ROUND = 256,
    ACCEPTS_PER_ROUND = 64,
    ENGINE_EVENTS_PER_ROUND = 256, /* then what they wrote is sent, and others get their turn */
    USER_TIMEOUT_MS = 30000,       /* a vanished peer: no acknowledgement for so long */
    NOTSENT_BYTES = 128 << 10,     /* the kernel queues no more than this ahead of the network */
    FLUSH_MS = 500,                /* after the drain time: for the last bytes */
    KEEPALIVE_IDLE_S = 15,
    KEEPALIVE_STEP_S = 5,
    KEEPALIVE_PROBES = 3
};

/* --- epoll ------------------------------------------------------------------------------------- */

static enum status watch_fd(struct server *s, int fd, void *tag, struct error *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = tag};

    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        return error_set(err, ERR_IO, "cannot watch a descriptor: %s", strerror(errno));
    }
    return OK;
}

enum status loop_open(struct server *s, struct error *err)
{
    enum status rc;

    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->epoll_fd < 0 || s->wake_fd < 0) {
        return error_set(err, ERR_IO, "cannot make the event loop: %s", strerror(errno));
    }
    rc = watch_fd(s, s->wake_fd, &s->wake_fd, err);
    if (rc == OK) {
        rc = watch_fd(s, s->listen_fd, &s->listen_fd, err);
        s->is_accepting = rc == OK;
    }
    return rc;
}

/* --- the listener ------------------------------------------------------------------------------- */

static void set_option(int fd, int level, int name, int value)
{
    (void)setsockopt(fd, level, name, &value, sizeof value); /* works without, only less well */
}

static void set_up_socket(int fd)
{
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_STEP_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, USER_TIMEOUT_MS);
    set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, NOTSENT_BYTES);
}

/* Leave waiting connections in the backlog. A listener that stays readable would make the loop spin,
 * so it leaves the set until a connection closes or the next tick. */
static void pause_accepting(struct server *s)
{
    if (s->is_accepting) {
        (void)epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, s->listen_fd, NULL);
        s->is_accepting = false;
    }
}

static void resume_accepting(struct server *s)
{
    if (!s->is_accepting && s->listen_fd >= 0 && s->n_conns < s->o.max_connections) {
        s->is_accepting = watch_fd(s, s->listen_fd, &s->listen_fd, NULL) == OK;
    }
}

static void accept_some(struct server *s)
{
    for (int i = 0; i < ACCEPTS_PER_ROUND; i++) {
        struct conn *c;
        int fd;

        if (s->n_conns >= s->o.max_connections) {
            pause_accepting(s);
            return;
        }
        fd = accept4(s->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                log_warning(s->o.log, "cannot take a connection: %s", strerror(errno));
                pause_accepting(s);
            }
            return; /* none waits, or it went away again */
        }
        set_up_socket(fd);
        c = conn_new(s, fd);
        if (!c) {
            close(fd);
            return;
        }
        conn_touch(c); /* settling starts to watch it */
    }
}

/* --- drain ------------------------------------------------------------------------------------- */

static void start_drain(struct server *s, double seconds)
{
    if (s->listen_fd >= 0) {
        pause_accepting(s);
        close(s->listen_fd);
        s->listen_fd = -1;
    }
    if (!s->is_draining) {
        s->is_draining = true;
        log_info(s->o.log, "shutting down: no new requests, running ones have %.0f s", seconds);
    }
    s->drain_until_ms = s->now_ms + (uint64_t)(seconds * 1000.0);
}

static bool has_output(const struct server *s)
{
    for (const struct conn *c = s->conns; c; c = c->next) {
        if (c->out.len > c->out_sent) {
            return true;
        }
    }
    return false;
}

/* The drain time is over: what still runs ends with an error. */
static void end_late_jobs(struct server *s)
{
    if (s->jobs && s->now_ms >= s->drain_until_ms) {
        generation_fail_all(s, &(struct reply_error){.status = 503,
                                                     .code = "shutting_down",
                                                     .message = "the server is shutting down"});
    }
}

static bool is_drained(struct server *s)
{
    if (s->jobs) {
        return false;
    }
    if (s->flush_until_ms == 0) {
        s->flush_until_ms = s->now_ms + FLUSH_MS;
    }
    return !has_output(s) || s->now_ms >= s->flush_until_ms;
}

/* --- wishes of other threads --------------------------------------------------------------------- */

static enum status take_model(struct server *s, struct error *err)
{
    enum status rc = engine_port_new(&s->engine_port, s->model.engine, err);

    if (rc == OK) {
        rc = watch_fd(s, engine_port_fd(s->engine_port), &s->engine_port, err);
    }
    s->is_ready = rc == OK;
    return rc;
}

static enum status on_wake(struct server *s, struct error *err)
{
    uint64_t n;
    int stop = atomic_load(&s->stop);

    (void)!read(s->wake_fd, &n, sizeof n);
    if (!s->is_ready && atomic_load(&s->is_model_given)) {
        enum status rc = take_model(s, err);
        if (rc != OK) {
            return rc;
        }
    }
    if (stop >= 2) {
        start_drain(s, 0);
    } else if (stop == 1 && !s->is_draining) {
        start_drain(s, s->o.shutdown_timeout_s);
    }
    return OK;
}

/* --- the round ---------------------------------------------------------------------------------- */

static void on_conn_event(struct server *s, struct conn *c, uint32_t events)
{
    if (c->state == CONN_DEAD) {
        return;
    }
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
        conn_drop(c); /* a peer that closes its sending side counts as gone */
        return;
    }
    if (events & EPOLLIN) {
        ssize_t n = recv(c->fd, s->read_buffer, READ_BYTES, 0);
        if (n > 0) {
            conn_take(c, s->read_buffer, (size_t)n);
        } else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
            conn_drop(c);
            return;
        }
    }
    conn_touch(c);
}

static void take_engine_events(struct server *s)
{
    struct engine_event e;

    for (int i = 0; i < ENGINE_EVENTS_PER_ROUND && engine_port_pop(s->engine_port, &e); i++) {
        generation_on_event(s, &e);
    }
}

static void tick(struct server *s)
{
    struct conn *next;

    if (s->now_ms < s->next_tick_ms) {
        return;
    }
    s->next_tick_ms = s->now_ms + s->tick_ms;
    for (struct conn *c = s->conns; c; c = next) {
        next = c->next;
        conn_tick(c);
    }
    resume_accepting(s);
}

static void settle(struct server *s)
{
    while (s->dirty) {
        struct conn *c = s->dirty;
        s->dirty = c->next_listed;
        c->is_dirty = false;
        if (c->state == CONN_DEAD) { /* dropped while on this list */
            c->next_listed = s->dead;
            s->dead = c;
        } else {
            conn_settle(c);
        }
    }
    if (s->dead) {
        resume_accepting(s);
    }
    while (s->dead) {
        struct conn *c = s->dead;
        s->dead = c->next_listed;
        conn_free(c);
    }
}

static int wait_ms(const struct server *s)
{
    uint64_t until = s->next_tick_ms;

    if (!s->conns && s->is_accepting && !s->is_draining) {
        return -1;
    }
    if (s->is_draining) {
        uint64_t end = s->flush_until_ms ? s->flush_until_ms : s->drain_until_ms;
        until = end < until ? end : until;
    }
    return until > s->now_ms ? (int)(until - s->now_ms) : 0;
}

static enum status one_round(struct server *s, struct error *err)
{
    struct epoll_event events[EVENTS_PER_ROUND];
    enum status rc = OK;
    int n = epoll_wait(s->epoll_fd, events, EVENTS_PER_ROUND, wait_ms(s));

    if (n < 0 && errno != EINTR) {
        return error_set(err, ERR_IO, "the event loop failed: %s", strerror(errno));
    }
    s->now_ms = clock_now_ms();
    for (int i = 0; i < n && rc == OK; i++) {
        void *tag = events[i].data.ptr;
        if (tag == &s->wake_fd) {
            rc = on_wake(s, err);
        } else if (tag == &s->listen_fd) {
            if (s->listen_fd >= 0) {
                accept_some(s);
            }
        } else if (tag == &s->engine_port) {
            take_engine_events(s);
        } else {
            on_conn_event(s, tag, events[i].events);
        }
    }
    tick(s);
    if (s->is_draining) {
        end_late_jobs(s);
    }
    settle(s);
    s->is_done = s->is_draining && is_drained(s);
    return rc;
}

enum status loop_run(struct server *s, struct error *err)
{
    enum status rc = OK;

    s->now_ms = clock_now_ms();
    s->next_tick_ms = s->now_ms + s->tick_ms;
    while (rc == OK && !s->is_done) {
        rc = one_round(s, err);
    }
    return rc;
}

void loop_close(struct server *s)
{
    while (s->conns) {
        conn_drop(s->conns);
    }
    settle(s);
    assert(!s->jobs);
    engine_port_free(s->engine_port);
    s->engine_port = NULL;
    s->is_ready = false;
    if (s->listen_fd >= 0) {
        close(s->listen_fd);
        s->listen_fd = -1;
    }
    if (s->epoll_fd >= 0) {
        close(s->epoll_fd);
        s->epoll_fd = -1;
    }
}
