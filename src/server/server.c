/* server.c - the life of a server: bind, serve, stop. See server.h. */
#include "server/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/loop.h"
#include "server/server_state.h"

enum {
    BACKLOG = 4096,
    BODY_BYTES_STANDARD = 64 << 20,
    CONNECTIONS_STANDARD = 16384,
    TICK_MS_MAX = 1000,
    TICK_MS_MIN = 10
};

/* --- the address --------------------------------------------------------------------------------- */

static bool is_loopback_address(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)a;
        return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
    }
    if (a->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)a;
        return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
    }
    return false;
}

/* SO_REUSEADDR only lets a restart take an address that has connections in TIME_WAIT; two listeners
 * on one port stay impossible. */
static int listen_on(const struct addrinfo *a)
{
    int one = 1, fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        return -1;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0) {
        int cause = errno;
        close(fd);
        errno = cause;
        return -1;
    }
    return fd;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;

    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0) {
        return 0;
    }
    return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&a)->sin6_port
                                         : ((struct sockaddr_in *)(void *)&a)->sin_port);
}

static enum status open_listener(struct server *s, struct error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    char port[8];
    int failed;

    snprintf(port, sizeof port, "%u", (unsigned)s->o.port);
    failed = getaddrinfo(s->o.host, port, &hints, &list);
    if (failed != 0) {
        return error_set_param(err, ERR_USAGE, "host", "cannot listen on '%s': %s", s->o.host,
                               gai_strerror(failed));
    }
    s->is_loopback = is_loopback_address(list->ai_addr);
    if (!s->is_loopback && !s->o.api_key) {
        freeaddrinfo(list);
        return error_set_param(err, ERR_USAGE, "api-key",
                               "others can reach this server on '%s': give it an API key, or "
                               "listen on 127.0.0.1",
                               s->o.host);
    }
    s->listen_fd = listen_on(list);
    failed = errno;
    freeaddrinfo(list);
    if (s->listen_fd < 0) {
        return error_set(err, ERR_IO, "cannot listen on %s:%u: %s", s->o.host, (unsigned)s->o.port,
                         strerror(failed));
    }
    s->port = port_of(s->listen_fd);
    return OK;
}

/* --- life ------------------------------------------------------------------------------------- */

static void set_standard(unsigned *ms, unsigned standard)
{
    if (*ms == 0) {
        *ms = standard;
    }
}

static void fill_options(struct server *s)
{
    struct server_options *o = &s->o;
    unsigned least;

    o->host = o->host ? o->host : "127.0.0.1";
    o->served_name = o->served_name ? o->served_name : "default";
    o->stream_interval = o->stream_interval ? o->stream_interval : 1;
    o->body_bytes_max = o->body_bytes_max ? o->body_bytes_max : BODY_BYTES_STANDARD;
    o->max_connections = o->max_connections ? o->max_connections : CONNECTIONS_STANDARD;
    set_standard(&o->idle_timeout_ms, 120000);
    set_standard(&o->head_timeout_ms, 10000);
    set_standard(&o->body_timeout_ms, 30000);
    set_standard(&o->request_timeout_ms, 300000);
    set_standard(&o->write_timeout_ms, 30000);
    set_standard(&o->ping_ms, 15000);
    least = o->head_timeout_ms < o->ping_ms ? o->head_timeout_ms : o->ping_ms;
    least = o->idle_timeout_ms < least ? o->idle_timeout_ms : least;
    least = o->write_timeout_ms < least ? o->write_timeout_ms : least;
    s->tick_ms = least / 4 < TICK_MS_MIN ? TICK_MS_MIN : least / 4;
    s->tick_ms = s->tick_ms > TICK_MS_MAX ? TICK_MS_MAX : s->tick_ms;
}

enum status server_new(struct server **out, const struct server_options *o, struct error *err)
{
    struct server *s = calloc(1, sizeof *s);
    enum status rc;

    *out = NULL;
    if (!s) {
        return error_set(err, ERR_NO_MEMORY, "out of memory for the server");
    }
    s->o = *o;
    s->listen_fd = s->epoll_fd = s->wake_fd = -1;
    s->now_ms = clock_now_ms();
    s->started_s = clock_wall_s();
    fill_options(s);
    s->read_buffer = malloc(READ_BYTES);
    if (!s->read_buffer) {
        rc = error_set(err, ERR_NO_MEMORY, "out of memory for the server");
        goto fail;
    }
    if (getrandom(&s->random, sizeof s->random, 0) != (ssize_t)sizeof s->random) {
        rc = error_set(err, ERR_IO, "cannot get random bytes: %s", strerror(errno));
        goto fail;
    }
    rc = open_listener(s, err);
    if (rc == OK) {
        rc = loop_open(s, err);
    }
    if (rc != OK) {
        goto fail;
    }
    *out = s;
    return OK;

fail:
    server_free(s);
    return rc;
}

void server_free(struct server *s)
{
    if (!s) {
        return;
    }
    loop_close(s);
    if (s->wake_fd >= 0) {
        close(s->wake_fd);
    }
    free(s->read_buffer);
    free(s);
}

uint16_t server_port(const struct server *s)
{
    return s->port;
}

static void wake(struct server *s)
{
    uint64_t one = 1;

    (void)!write(s->wake_fd, &one, sizeof one); /* full means that it will wake anyway */
}

void server_set_ready(struct server *s, const struct server_model *m)
{
    s->model = *m;
    atomic_store(&s->is_model_given, true);
    wake(s);
}

void server_request_stop(struct server *s, int how)
{
    int cause = errno; /* may be called in a signal handler */

    atomic_store(&s->stop, how);
    wake(s);
    errno = cause;
}

enum status server_run(struct server *s, struct error *err)
{
    enum status rc = loop_run(s, err);

    loop_close(s);
    return rc;
}

/* --- small services ------------------------------------------------------------------------------ */

/* splitmix64 (Steele, Lea, Flood 2014) */
static uint64_t next_random(struct server *s)
{
    uint64_t z = (s->random += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void server_random_hex(struct server *s, char *out, size_t n)
{
    uint64_t bits = 0;

    for (size_t i = 0; i < n; i++) {
        if (i % 16 == 0) {
            bits = next_random(s);
        }
        out[i] = "0123456789abcdef"[bits & 15];
        bits >>= 4;
    }
    out[n] = '\0';
}

void server_note_unknown_field(void *ctx, const char *name)
{
    struct server *s = ctx;
    char shown[UNKNOWN_NAME_BYTES];

    snprintf(shown, sizeof shown, "%s", name);
    for (size_t i = 0; i < s->n_unknown_fields; i++) {
        if (strcmp(s->unknown_fields[i], shown) == 0) {
            return;
        }
    }
    if (s->n_unknown_fields < UNKNOWN_FIELDS_MAX) {
        memcpy(s->unknown_fields[s->n_unknown_fields++], shown, sizeof shown);
        log_info(s->o.log, "ignoring the unknown request field '%s'", shown);
    }
}

const char *server_trouble(const struct server *s)
{
    struct engine_stats stats = {0};

    if (s->is_draining) {
        return "draining";
    }
    if (!s->is_ready) {
        return "loading";
    }
    engine_get_stats(s->model.engine, &stats);
    if (s->o.watchdog_s > 0 && stats.step_in_flight &&
        clock_seconds_since(stats.step_started_ns) > s->o.watchdog_s) {
        return "stalled";
    }
    return NULL;
}
