/* conn.c - the life of a connection. See conn.h. */
#include "server/conn.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/generation.h"
#include "server/route.h"
#include "server/server_state.h"

enum {
    LINGER_MS = 2000,
    LINGER_BYTES_MAX = 1 << 20,
    OUT_KEPT_BYTES = 4 << 10 /* an empty queue keeps no more memory than this */
};

/* --- life ------------------------------------------------------------------------------------- */

struct conn *conn_new(struct server *s, int fd)
{
    struct conn *c = calloc(1, sizeof *c);

    if (!c) {
        return NULL;
    }
    c->server = s;
    c->fd = fd;
    c->state = CONN_READING;
    c->deadline_ms = s->now_ms + s->o.idle_timeout_ms;
    http_init(&c->http, s->o.body_bytes_max);
    c->next = s->conns;
    if (c->next) {
        c->next->prev = c;
    }
    s->conns = c;
    s->n_conns++;
    return c;
}

void conn_drop(struct conn *c)
{
    struct server *s = c->server;

    if (c->state == CONN_DEAD) {
        return;
    }
    c->state = CONN_DEAD;
    if (c->job) {
        job_cancel(c->job);
        c->job = NULL;
    }
    if (c->fd >= 0) {
        close(c->fd); /* leaves the epoll set by itself */
        c->fd = -1;
    }
    if (c->prev) {
        c->prev->next = c->next;
    } else {
        s->conns = c->next;
    }
    if (c->next) {
        c->next->prev = c->prev;
    }
    s->n_conns--;
    if (!c->is_dirty) { /* a dirty one moves over when the loop settles */
        c->next_listed = s->dead;
        s->dead = c;
    }
}

void conn_free(struct conn *c)
{
    assert(c->state == CONN_DEAD && !c->job);
    http_release(&c->http);
    buf_release(&c->in);
    buf_release(&c->out);
    free(c);
}

void conn_touch(struct conn *c)
{
    if (!c->is_dirty && c->state != CONN_DEAD) {
        c->is_dirty = true;
        c->next_listed = c->server->dirty;
        c->server->dirty = c;
    }
}

static size_t waiting_bytes(const struct conn *c)
{
    return c->out.len - c->out_sent;
}

/* Send what the socket takes. A queue that lost bytes stays failed. */
static void flush(struct conn *c)
{
    while (buf_ok(&c->out) && waiting_bytes(c) > 0) {
        ssize_t n = send(c->fd, c->out.data + c->out_sent, waiting_bytes(c), MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            break;
        }
        if (n < 0) {
            c->out.failed = true; /* dropped when it settles: its job may be at work now */
            break;
        }
        c->out_sent += (size_t)n;
        c->progress_ms = c->server->now_ms;
    }
    if (!buf_ok(&c->out)) {
        return;
    }
    if (waiting_bytes(c) == 0) {
        c->out_sent = 0;
        if (c->out.cap > OUT_KEPT_BYTES) {
            buf_release(&c->out);
            buf_init(&c->out);
        } else {
            buf_clear(&c->out);
        }
    } else if (c->out_sent > READ_BYTES) {
        buf_consume(&c->out, c->out_sent);
        c->out_sent = 0;
    }
}

/* --- answering -------------------------------------------------------------------------------- */

/* The answer is in the queue: get ready for the next request, or to close. */
static void finish_answer(struct conn *c)
{
    struct server *s = c->server;
    bool is_read = c->http.phase == PHASE_DONE; /* else bytes of the body are still to come */

    metrics_count_answer(&s->metrics, c->status);
    if (s->o.log_requests) {
        log_info(s->o.log, "request %s: %.*s %d", c->request_id,
                 (int)(c->http.request.path.len < 200 ? c->http.request.path.len : 200),
                 c->http.request.path.ptr ? c->http.request.path.ptr : "", c->status);
    }
    c->request_id[0] = '\0';
    c->job = NULL;
    c->is_streaming = false;
    c->started_ms = 0;
    if (c->closes || !is_read || s->is_draining) {
        c->state = CONN_CLOSING;
        c->deadline_ms = 0; /* the write deadline holds */
    } else {
        c->state = CONN_READING;
        c->deadline_ms = s->now_ms + s->o.idle_timeout_ms;
        http_reset(&c->http);
    }
    conn_touch(c);
}

static void write_head(struct conn *c, struct reply_head *h)
{
    bool is_read = c->http.phase == PHASE_DONE;

    c->closes = c->closes || !is_read || !c->http.request.keeps_alive || c->server->is_draining;
    h->request_id = c->request_id;
    h->closes = c->closes;
    c->status = h->status;
    reply_write_head(&c->out, h);
}

static void reply(struct conn *c, struct reply_head *h, const char *body, size_t len)
{
    assert(c->state != CONN_DEAD && !c->is_streaming);
    h->framing = REPLY_LENGTH;
    h->length = len;
    write_head(c, h);
    if (c->http.request.method != METHOD_HEAD && len > 0) {
        buf_append(&c->out, body, len);
    }
    finish_answer(c);
}

void conn_reply(struct conn *c, int status, const char *content_type, const char *body, size_t len)
{
    reply(c, &(struct reply_head){.status = status, .content_type = content_type}, body, len);
}

void conn_reply_allow(struct conn *c, int status, const char *allow, const struct reply_error *e)
{
    struct buf body;

    buf_init(&body);
    if (e) {
        reply_write_error(&body, e);
    }
    reply(c,
          &(struct reply_head){
              .status = status, .content_type = e ? "application/json" : NULL, .allow = allow},
          buf_cstr(&body), body.len);
    buf_release(&body);
}

void conn_reply_error(struct conn *c, const struct reply_error *e)
{
    conn_reply_allow(c, e->status, NULL, e);
}

void conn_reply_failure(struct conn *c, const struct error *err)
{
    conn_reply_error(c, &(struct reply_error){.status = reply_status_of(err->code),
                                              .param = err->param,
                                              .message = err->text});
}

void conn_stream_begin(struct conn *c)
{
    assert(c->state == CONN_ANSWERING && !c->is_streaming);
    c->is_streaming = true;
    c->is_chunked = !c->http.request.is_http10;
    c->closes = c->closes || !c->is_chunked;
    c->written_ms = c->server->now_ms;
    write_head(c, &(struct reply_head){.status = 200,
                                       .content_type = "text/event-stream",
                                       .framing = c->is_chunked ? REPLY_CHUNKED : REPLY_CLOSE});
    conn_touch(c);
}

void conn_stream_write(struct conn *c, const char *data, size_t n)
{
    assert(c->is_streaming);
    if (n == 0) { /* an empty chunk would end the body */
        return;
    }
    c->written_ms = c->server->now_ms;
    if (c->is_chunked) {
        buf_appendf(&c->out, "%zx\r\n", n);
    }
    buf_append(&c->out, data, n);
    if (c->is_chunked) {
        buf_append_str(&c->out, "\r\n");
    }
    if (waiting_bytes(c) > CONN_OUT_BYTES_MAX && c->fd >= 0) {
        flush(c); /* a burst is no fault of the reader: what counts is what the socket refuses */
    }
    c->is_overrun = c->is_overrun || waiting_bytes(c) > CONN_OUT_BYTES_MAX;
    conn_touch(c);
}

void conn_stream_end(struct conn *c)
{
    assert(c->is_streaming);
    if (c->is_chunked) {
        buf_append_str(&c->out, "0\r\n\r\n");
    }
    finish_answer(c);
}

/* --- reading ---------------------------------------------------------------------------------- */

/* The client's own id if it is one that can stand in a header and a log, else a new one. */
static void choose_request_id(struct conn *c)
{
    struct str given = c->http.request.headers[HEADER_X_REQUEST_ID];
    bool is_usable = given.len > 0 && given.len <= REQUEST_ID_BYTES_MAX;

    for (size_t i = 0; i < given.len && is_usable; i++) {
        is_usable = given.ptr[i] > ' ' && given.ptr[i] <= '~';
    }
    if (is_usable) {
        memcpy(c->request_id, given.ptr, given.len);
        c->request_id[given.len] = '\0';
    } else {
        server_random_hex(c->server, c->request_id, 32);
    }
}

static void on_event(struct conn *c, enum http_event event)
{
    switch (event) {
    case HTTP_MORE:
        break;
    case HTTP_HEAD_READY:
        choose_request_id(c);
        if (route_admit(c->server, c) && c->http.request.expects_continue) {
            buf_append_str(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
            conn_touch(c);
        }
        break;
    case HTTP_COMPLETE:
        c->state = CONN_ANSWERING;
        c->deadline_ms = 0;
        route_dispatch(c->server, c);
        assert(c->state != CONN_ANSWERING || c->job);
        break;
    case HTTP_FAILED:
        c->closes = true;
        if (c->request_id[0] == '\0') {
            server_random_hex(c->server, c->request_id, 32);
        }
        conn_reply_error(
            c, &(struct reply_error){.status = c->http.status, .message = c->http.reason});
        break;
    }
}

/* The deadline while a request comes in: for its head, then for its body. */
static void set_read_deadline(struct conn *c)
{
    const struct server_options *o = &c->server->o;
    uint64_t now = c->server->now_ms;

    if (http_is_idle(&c->http)) {
        c->started_ms = 0;
        return; /* the idle deadline stands */
    }
    if (c->started_ms == 0) {
        c->started_ms = now;
    }
    if (c->http.phase == PHASE_HEAD) {
        c->deadline_ms = c->started_ms + o->head_timeout_ms;
    } else {
        uint64_t whole = c->started_ms + o->request_timeout_ms, step = now + o->body_timeout_ms;
        c->deadline_ms = whole < step ? whole : step;
    }
}

/* Parse while there are bytes and nothing is being answered. */
static void parse(struct conn *c, const char *data, size_t n)
{
    bool goes_on = true;

    while (goes_on && c->state == CONN_READING && waiting_bytes(c) <= CONN_OUT_BYTES_MAX) {
        size_t used;
        enum http_event event = http_push(&c->http, data, n, &used);
        data += used;
        n -= used;
        on_event(c, event);
        goes_on = event != HTTP_MORE && (n > 0 || event == HTTP_HEAD_READY);
    }
    if (c->state == CONN_READING) {
        set_read_deadline(c);
    }
    if (n > 0 && (c->state == CONN_READING || c->state == CONN_ANSWERING)) {
        buf_append(&c->in, data, n);
        if (!buf_ok(&c->in)) {
            conn_drop(c);
        }
    }
}

void conn_take(struct conn *c, const char *data, size_t n)
{
    if (c->state == CONN_LINGERING || c->state == CONN_CLOSING) {
        c->lingered_bytes += n;
        if (c->lingered_bytes > LINGER_BYTES_MAX) {
            conn_drop(c);
        }
        return;
    }
    if (c->in.len > 0) {
        buf_append(&c->in, data, n);
        conn_touch(c);
        return;
    }
    parse(c, data, n);
}

static bool has_next_request(const struct conn *c)
{
    return c->state == CONN_READING && c->in.len > 0 && waiting_bytes(c) <= CONN_OUT_BYTES_MAX;
}

static void parse_waiting(struct conn *c)
{
    struct buf waiting = c->in;

    buf_init(&c->in);
    parse(c, waiting.data, waiting.len);
    buf_release(&waiting);
}

/* --- writing ---------------------------------------------------------------------------------- */

static void watch(struct conn *c)
{
    struct epoll_event event = {.events = EPOLLRDHUP, .data.ptr = c};
    bool reads = c->state == CONN_LINGERING || c->state == CONN_CLOSING ||
                 (c->state == CONN_READING && waiting_bytes(c) <= CONN_OUT_BYTES_MAX);

    if (reads) {
        event.events |= EPOLLIN;
    }
    if (waiting_bytes(c) > 0) {
        event.events |= EPOLLOUT;
        if (!(c->epoll_mask & EPOLLOUT)) {
            c->progress_ms = c->server->now_ms; /* it begins to block */
        }
    }
    if (event.events != c->epoll_mask) {
        if (epoll_ctl(c->server->epoll_fd, c->epoll_mask ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd,
                      &event) != 0) {
            conn_drop(c);
            return;
        }
        c->epoll_mask = event.events;
    }
}

static bool has_failed(const struct conn *c)
{
    return !buf_ok(&c->out) || c->is_overrun;
}

void conn_settle(struct conn *c)
{
    if (c->fd < 0) { /* dead, or a test without a socket */
        return;
    }
    if (!has_failed(c)) {
        flush(c);
    }
    while (!has_failed(c) && has_next_request(c)) {
        parse_waiting(c);
        if (c->state != CONN_DEAD) {
            flush(c);
        }
    }
    if (c->state == CONN_DEAD) {
        return;
    }
    if (has_failed(c)) {
        conn_drop(c);
        return;
    }
    if (c->state == CONN_CLOSING && waiting_bytes(c) == 0) {
        shutdown(c->fd, SHUT_WR);
        c->state = CONN_LINGERING;
        c->deadline_ms = c->server->now_ms + LINGER_MS;
    }
    watch(c);
}

/* --- time ------------------------------------------------------------------------------------- */

void conn_tick(struct conn *c)
{
    struct server *s = c->server;

    if ((c->epoll_mask & EPOLLOUT) && s->now_ms >= c->progress_ms + s->o.write_timeout_ms) {
        conn_drop(c); /* it does not read */
        return;
    }
    if (c->is_streaming && s->now_ms >= c->written_ms + s->o.ping_ms) {
        static const char ping[] = ": ping\n\n";
        conn_stream_write(c, ping, sizeof ping - 1);
    }
    if (c->deadline_ms == 0 || s->now_ms < c->deadline_ms) {
        return;
    }
    if (c->state == CONN_READING && c->started_ms != 0) {
        c->closes = true;
        if (c->request_id[0] == '\0') {
            server_random_hex(s, c->request_id, 32);
        }
        conn_reply_error(
            c, &(struct reply_error){.status = 408, .message = "the request came too slowly"});
    } else {
        conn_drop(c);
    }
}
