/* conn.h - one client connection: bytes in, requests out, answers back.
 *
 * Place:  server; driven by loop.c, used by the handlers to answer.
 * States: READING a request (or waiting for one) -> ANSWERING it -> READING the next, or CLOSING:
 *         flush, shut our side, then LINGERING until the peer closes too, so that a reset does not
 *         destroy the answer on its way. While ANSWERING nothing is read, but the peer is watched:
 *         one that closes its sending side counts as gone, and its request is cancelled.
 * Output: appended to a queue and sent when the loop settles. A stream whose reader lets more than
 *         CONN_OUT_BYTES_MAX pile up is ended. */
#ifndef SERVER_CONN_H
#define SERVER_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "server/http.h"
#include "server/params.h"
#include "server/reply.h"

enum { CONN_OUT_BYTES_MAX = 256 << 10, READ_BYTES = 64 << 10 };

struct job;
struct server;

enum conn_state { CONN_READING, CONN_ANSWERING, CONN_CLOSING, CONN_LINGERING, CONN_DEAD };

struct conn {
    struct server *server;
    struct conn *next, *prev; /* in server->conns */
    struct conn *next_listed; /* in server->dirty, or server->dead */
    int fd;                   /* -1: none (tests) */
    uint32_t epoll_mask;      /* as registered */
    enum conn_state state;
    bool is_dirty;
    bool is_overrun; /* a stream's reader is too slow */
    struct http_parser http;
    struct buf in; /* bytes of later requests, not parsed yet */
    struct buf out;
    size_t out_sent;       /* bytes of out that are gone */
    uint64_t deadline_ms;  /* of the present state; 0: none */
    uint64_t started_ms;   /* first byte of the request; 0: idle */
    uint64_t progress_ms;  /* while blocked: last time bytes left */
    uint64_t written_ms;   /* last time a stream was written to */
    size_t lingered_bytes; /* thrown away while LINGERING */
    /* the present answer */
    bool closes; /* Connection: close */
    bool is_streaming, is_chunked;
    int status; /* for the log */
    struct job *job;
    char request_id[REQUEST_ID_BYTES_MAX + 1];
};

/* fd < 0 is allowed. NULL when out of memory. Linked into the server. */
struct conn *conn_new(struct server *s, int fd);
/* Close at once and cancel the running request; freed by the loop at the end of the round. */
void conn_drop(struct conn *c);
void conn_free(struct conn *c);

/* Bytes came from the peer. */
void conn_take(struct conn *c, const char *data, size_t n);
/* Send what can be sent, go on with bytes that wait, choose what to wait for. */
void conn_settle(struct conn *c);
/* Make the loop settle c. */
void conn_touch(struct conn *c);
/* Look at the deadlines. */
void conn_tick(struct conn *c);

/* --- answering; each ends the exchange, the request must not be looked at afterwards ------------ */

void conn_reply(struct conn *c, int status, const char *content_type, const char *body, size_t len);
void conn_reply_allow(struct conn *c, int status, const char *allow, const struct reply_error *e);
void conn_reply_error(struct conn *c, const struct reply_error *e);
void conn_reply_failure(struct conn *c, const struct error *err); /* status by err->code */

/* An event stream: begin, any number of writes of whole events, end. */
void conn_stream_begin(struct conn *c);
void conn_stream_write(struct conn *c, const char *data, size_t n);
void conn_stream_end(struct conn *c);

#endif
