/* server_rig.h - a running server over a scripted engine, and a bare socket client, for tests.
 *
 * Place:  server, included by server_*_test.c. The engine's functions are defined here, so the linker
 *         takes them and not those of the library: a test decides what is generated and when.
 * Time:   nothing here waits for a time to pass; a client waits for what must come, WAIT_MS at most. */
#ifndef SERVER_SERVER_RIG_H
#define SERVER_SERVER_RIG_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "server/server.h"

enum { WAIT_MS = 30000, QUEUE_MAX = 8192, CONTEXT = 512 };

/* --- the scripted engine -------------------------------------------------------------------------- */

struct engine_port {
    pthread_mutex_t lock;
    int fd;
    struct engine_event queue[QUEUE_MAX]; /* guarded by lock */
    size_t n_pushed, n_popped;
};

struct engine {
    /* the script, set while no request runs */
    const char *const *pieces; /* NULL-terminated: one token each */
    const char *rest;          /* text of the last event, or NULL */
    enum finish_reason reason;
    bool holds;         /* only STARTED comes by itself; see rig_continue() */
    bool fails;         /* ends with an error after the pieces */
    size_t queue_slots; /* submits beyond are refused as busy */
    int32_t stop_id;
    int stop_string;
    /* what came, guarded by lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct engine_port *port;
    size_t n_submitted, n_cancelled;
    struct sampling sampling; /* of the last request, without bias */
    size_t max_tokens, n_prompt, n_stop;
    int32_t prompt[CONTEXT];
    uint64_t seeds[16];
    struct engine_stats stats;
};

enum status engine_port_new(struct engine_port **out, struct engine *e, struct error *err)
{
    struct engine_port *p = calloc(1, sizeof *p);

    (void)err;
    assert_non_null(p);
    pthread_mutex_init(&p->lock, NULL);
    p->fd = eventfd(0, EFD_NONBLOCK);
    assert_true(p->fd >= 0);
    pthread_mutex_lock(&e->lock);
    e->port = p;
    pthread_mutex_unlock(&e->lock);
    *out = p;
    return OK;
}

bool engine_port_pop(struct engine_port *p, struct engine_event *out)
{
    uint64_t n;
    bool found;

    pthread_mutex_lock(&p->lock);
    found = p->n_popped < p->n_pushed;
    if (found) {
        *out = p->queue[p->n_popped++ % QUEUE_MAX];
    } else {
        (void)!read(p->fd, &n, sizeof n);
    }
    pthread_mutex_unlock(&p->lock);
    return found;
}

void engine_event_release(struct engine_event *e)
{
    free(e->text);
    e->text = NULL;
}

void engine_port_free(struct engine_port *p)
{
    struct engine_event e;

    if (p) {
        while (engine_port_pop(p, &e)) {
            engine_event_release(&e);
        }
        close(p->fd);
        pthread_mutex_destroy(&p->lock);
        free(p);
    }
}

int engine_port_fd(const struct engine_port *p)
{
    return p->fd;
}

static inline void push_event(struct engine_port *p, const struct engine_event *e, const char *text)
{
    uint64_t one = 1;

    pthread_mutex_lock(&p->lock);
    if (p->n_pushed - p->n_popped >= QUEUE_MAX) {
        abort();
    }
    p->queue[p->n_pushed % QUEUE_MAX] = *e;
    p->queue[p->n_pushed % QUEUE_MAX].text = text ? strdup(text) : NULL;
    p->queue[p->n_pushed % QUEUE_MAX].text_len = text ? strlen(text) : 0;
    p->n_pushed++;
    pthread_mutex_unlock(&p->lock);
    (void)!write(p->fd, &one, sizeof one);
}

/* The tokens and the end of request id, as the script says. */
static inline void play(struct engine *e, uint64_t id)
{
    size_t n = 0;
    struct engine_event end = {.kind = ENGINE_EVENT_DONE,
                               .request = id,
                               .reason = e->reason,
                               .stop_id = e->stop_id,
                               .stop_string = e->stop_string,
                               .n_prompt = e->n_prompt};

    for (; e->pieces && e->pieces[n]; n++) {
        struct engine_event t = {.kind = ENGINE_EVENT_TOKEN,
                                 .request = id,
                                 .token = (int32_t)(100 + n),
                                 .logprob = -0.5f,
                                 .n_top = 1,
                                 .top = {{.id = (int32_t)(100 + n), .logprob = -0.5f}}};
        push_event(e->port, &t, e->pieces[n]);
    }
    end.n_output = n + (e->reason == FINISH_STOP ? 1 : 0);
    if (e->fails) {
        end.kind = ENGINE_EVENT_ERROR;
        error_set(&end.error, ERR_INTERNAL, "layer 3: values are not finite");
    }
    push_event(e->port, &end, e->fails ? NULL : e->rest ? e->rest : "");
}

enum status engine_submit(struct engine *e, struct engine_port *p, const struct engine_request *r,
                          uint64_t *id, struct error *err)
{
    struct engine_event started = {.kind = ENGINE_EVENT_STARTED};

    pthread_mutex_lock(&e->lock);
    if (e->queue_slots > 0 && e->n_submitted >= e->queue_slots) {
        pthread_mutex_unlock(&e->lock);
        return error_set(err, ERR_BUSY, "the queue is full");
    }
    *id = ++e->n_submitted;
    e->sampling = r->sampling;
    e->sampling.bias = NULL;
    e->max_tokens = r->max_tokens;
    e->n_stop = r->n_stop;
    e->n_prompt = r->n_prompt;
    memcpy(e->prompt, r->prompt,
           (r->n_prompt < CONTEXT ? r->n_prompt : CONTEXT) * sizeof *r->prompt);
    if (*id <= 16) {
        e->seeds[*id - 1] = r->sampling.seed;
    }
    started.request = *id;
    push_event(p, &started, NULL);
    if (!e->holds) {
        play(e, *id);
    }
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    return OK;
}

void engine_cancel(struct engine *e, uint64_t id)
{
    (void)id;
    pthread_mutex_lock(&e->lock);
    e->n_cancelled++;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

void engine_get_stats(const struct engine *e, struct engine_stats *out)
{
    struct engine *mine = (struct engine *)(uintptr_t)e;

    pthread_mutex_lock(&mine->lock);
    *out = e->stats;
    pthread_mutex_unlock(&mine->lock);
}

/* Wait until a counter of the engine has reached n. */
static inline void wait_count(struct engine *e, const size_t *counter, size_t n)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_MS / 1000;
    pthread_mutex_lock(&e->lock);
    while (*counter < n) {
        if (pthread_cond_timedwait(&e->changed, &e->lock, &until) != 0) {
            fail_msg("the engine's counter stays at %zu, not %zu", *counter, n);
        }
    }
    pthread_mutex_unlock(&e->lock);
}

/* --- the server ----------------------------------------------------------------------------------- */

struct rig {
    struct server *server;
    struct engine engine;
    struct server_model model;
    struct model_config config;
    pthread_t thread;
    enum status result;
    struct error error;
};

static inline void *rig_thread(void *arg)
{
    struct rig *r = arg;

    r->result = server_run(r->server, &r->error);
    return NULL;
}

/* o: NULL for the standard options. The model is not given yet. */
static inline void rig_start(struct rig *r, const struct server_options *o)
{
    struct server_options options = o ? *o : (struct server_options){0};
    struct error err = {0};

    memset(r, 0, sizeof *r);
    pthread_mutex_init(&r->engine.lock, NULL);
    pthread_cond_init(&r->engine.changed, NULL);
    r->engine.reason = FINISH_STOP;
    r->engine.stop_id = r->engine.stop_string = -1;
    options.host = options.host ? options.host : "127.0.0.1";
    options.served_name = "org/puppet";
    if (server_new(&r->server, &options, &err) != OK) {
        fail_msg("server_new: %s", err.text);
    }
    assert_int_equal(pthread_create(&r->thread, NULL, rig_thread, r), 0);
}

static inline void rig_set_ready(struct rig *r)
{
    snprintf(r->config.model_type, sizeof r->config.model_type, "puppet");
    r->model.engine = &r->engine;
    r->model.config = &r->config;
    r->model.context_length = CONTEXT;
    r->model.max_running = 4;
    server_set_ready(r->server, &r->model);
}

/* The held request goes on to its end. */
static inline void rig_continue(struct rig *r, uint64_t id)
{
    pthread_mutex_lock(&r->engine.lock);
    play(&r->engine, id);
    pthread_mutex_unlock(&r->engine.lock);
}

static inline void rig_join(struct rig *r)
{
    assert_int_equal(pthread_join(r->thread, NULL), 0);
    assert_int_equal(r->result, OK);
    server_free(r->server);
    pthread_mutex_destroy(&r->engine.lock);
    pthread_cond_destroy(&r->engine.changed);
}

static inline void rig_stop(struct rig *r)
{
    server_request_stop(r->server, 2);
    rig_join(r);
}

/* --- the client ----------------------------------------------------------------------------------- */

struct client {
    int fd;
    struct buf in; /* bytes that came and were not consumed */
    bool is_at_end;
};

static inline struct sockaddr_in address_of(const struct rig *r)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(server_port(r->server))};

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return a;
}

/* receive_bytes: size of the socket's buffer, 0 for the standard one. */
static inline void client_open_sized(struct client *c, const struct rig *r, int receive_bytes)
{
    struct sockaddr_in a = address_of(r);

    memset(c, 0, sizeof *c);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(c->fd >= 0);
    if (receive_bytes > 0) {
        setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    }
    assert_int_equal(connect(c->fd, (struct sockaddr *)&a, sizeof a), 0);
}

static inline void client_open(struct client *c, const struct rig *r)
{
    client_open_sized(c, r, 0);
}

static inline void client_close(struct client *c)
{
    close(c->fd);
    buf_release(&c->in);
}

static inline void client_send_bytes(struct client *c, const char *data, size_t n)
{
    while (n > 0) {
        ssize_t sent = send(c->fd, data, n, MSG_NOSIGNAL);
        if (sent <= 0) {
            return; /* the server closed: what it said is what counts */
        }
        data += sent;
        n -= (size_t)sent;
    }
}

static inline void client_send(struct client *c, const char *text)
{
    client_send_bytes(c, text, strlen(text));
}

/* Wait for more bytes; false at the end of the connection. */
static inline bool client_fill(struct client *c)
{
    char data[16384];
    struct pollfd p = {.fd = c->fd, .events = POLLIN};
    ssize_t n;

    if (poll(&p, 1, WAIT_MS) != 1) {
        fail_msg("nothing came; so far: %s", buf_cstr(&c->in));
    }
    n = recv(c->fd, data, sizeof data, 0);
    if (n <= 0) {
        c->is_at_end = true;
        return false;
    }
    buf_append(&c->in, data, (size_t)n);
    return true;
}

static inline void client_wait_for(struct client *c, const char *text)
{
    while (!strstr(buf_cstr(&c->in), text)) {
        if (!client_fill(c)) {
            fail_msg("the end came before '%s': %s", text, buf_cstr(&c->in));
        }
    }
}

static inline void client_expect_end(struct client *c)
{
    while (client_fill(c)) {
    }
}

struct response {
    int status;
    struct buf head, body; /* chunks joined */
};

static inline void response_release(struct response *r)
{
    buf_release(&r->head);
    buf_release(&r->body);
}

/* The value of a header, "" when absent. Valid until the next call. */
static inline const char *header_of(struct response *r, const char *name)
{
    static char value[256];
    char key[64];
    const char *at;

    snprintf(key, sizeof key, "\r\n%s: ", name);
    at = strcasestr(buf_cstr(&r->head), key);
    value[0] = '\0';
    if (at) {
        snprintf(value, sizeof value, "%.*s", (int)strcspn(at + strlen(key), "\r"),
                 at + strlen(key));
    }
    return value;
}

static inline void need(struct client *c, size_t n)
{
    while (c->in.len < n) {
        if (!client_fill(c)) {
            fail_msg("the end came too early: %s", buf_cstr(&c->in));
        }
    }
}

static inline void read_chunks(struct client *c, struct buf *body)
{
    for (;;) {
        size_t n, line;
        client_wait_for(c, "\r\n");
        line = (size_t)(strstr(buf_cstr(&c->in), "\r\n") - c->in.data) + 2;
        n = strtoull(c->in.data, NULL, 16);
        need(c, line + n + 2);
        buf_append(body, c->in.data + line, n);
        assert_memory_equal(c->in.data + line + n, "\r\n", 2);
        buf_consume(&c->in, line + n + 2);
        if (n == 0) {
            return;
        }
    }
}

/* Read one answer. is_head: to a HEAD request. */
static inline void client_read_as(struct client *c, struct response *r, bool is_head)
{
    size_t n;

    memset(r, 0, sizeof *r);
    client_wait_for(c, "\r\n\r\n");
    n = (size_t)(strstr(buf_cstr(&c->in), "\r\n\r\n") - c->in.data) + 4;
    buf_append(&r->head, c->in.data, n);
    buf_consume(&c->in, n);
    assert_memory_equal(r->head.data, "HTTP/1.1 ", 9);
    r->status = atoi(r->head.data + 9);
    if (is_head || r->status == 204 || r->status == 100) {
        return;
    }
    if (strcmp(header_of(r, "Transfer-Encoding"), "chunked") == 0) {
        read_chunks(c, &r->body);
    } else if (header_of(r, "Content-Length")[0]) {
        n = strtoull(header_of(r, "Content-Length"), NULL, 10);
        need(c, n);
        buf_append(&r->body, c->in.data, n);
        buf_consume(&c->in, n);
    } else {
        client_expect_end(c);
        buf_append(&r->body, c->in.data, c->in.len);
        buf_clear(&c->in);
    }
}

static inline void client_read(struct client *c, struct response *r)
{
    client_read_as(c, r, false);
}

/* POST a JSON body and read the answer, on an open connection. */
static inline void client_send_post(struct client *c, const char *path, const char *body)
{
    struct buf b;

    buf_init(&b);
    buf_appendf(&b,
                "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                "Content-Length: %zu\r\n\r\n%s",
                path, strlen(body), body);
    client_send_bytes(c, b.data, b.len);
    buf_release(&b);
}

static inline void client_post(struct client *c, struct response *r, const char *path,
                               const char *body)
{
    client_send_post(c, path, body);
    client_read(c, r);
}

/* One request on a connection of its own. */
static inline int ask(const struct rig *r, const char *request, struct response *out)
{
    struct client c;

    client_open(&c, r);
    client_send(&c, request);
    client_read_as(&c, out, strncmp(request, "HEAD ", 5) == 0);
    client_close(&c);
    return out->status;
}

static inline int ask_status(const struct rig *r, const char *request)
{
    struct response response;
    int status = ask(r, request, &response);

    response_release(&response);
    return status;
}

#endif
