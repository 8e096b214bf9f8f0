/* server_state.h - what the parts of the server share: struct server.
 *
 * Place:  server, private to it. Only the loop thread touches it, except the two atomics. */
#ifndef SERVER_SERVER_STATE_H
#define SERVER_SERVER_STATE_H

#include <stdatomic.h>

#include "server/conn.h"
#include "server/metrics.h"
#include "server/server.h"

enum {
    JOB_BUCKETS = 256,        /* choices by engine id */
    UNKNOWN_FIELDS_MAX = 256, /* names logged once; a client cannot fill the log with new ones */
    UNKNOWN_NAME_BYTES = 64
};

struct choice;
struct job;

struct server {
    struct server_options o;
    bool is_loopback; /* bound to this machine only */
    uint16_t port;
    int64_t started_s;
    int listen_fd, epoll_fd, wake_fd; /* -1: closed */
    /* from other threads */
    atomic_int stop;            /* 0, or the `how` of server_request_stop */
    atomic_bool is_model_given; /* model is filled in */
    struct server_model model;
    /* the loop's own */
    bool is_ready; /* model taken over, port open */
    struct engine_port *engine_port;
    uint64_t now_ms, tick_ms, next_tick_ms;
    struct conn *conns; /* all that are open */
    size_t n_conns;
    struct conn *dirty; /* to be looked at before the loop sleeps */
    struct conn *dead;  /* closed, to be freed at the end of the round */
    bool is_accepting;
    struct job *jobs;
    struct choice *choices[JOB_BUCKETS];
    bool is_draining, is_done;
    uint64_t drain_until_ms; /* then running requests are ended */
    uint64_t flush_until_ms; /* then connections are cut; 0: not yet */
    uint64_t random;         /* state of the generator of ids */
    struct metrics metrics;
    char unknown_fields[UNKNOWN_FIELDS_MAX][UNKNOWN_NAME_BYTES];
    size_t n_unknown_fields;
    char *read_buffer; /* READ_BYTES */
};

/* n random lower-case hex digits and a NUL. For ids of answers, not for secrets. */
void server_random_hex(struct server *s, char *out, size_t n);
/* Logs a request field that nothing knows, once per name. ctx is the server. */
void server_note_unknown_field(void *ctx, const char *name);
/* NULL when healthy, else one word: "loading", "draining", "stalled". */
const char *server_trouble(const struct server *s);

#endif
