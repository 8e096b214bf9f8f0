/* http.h - one HTTP/1.x request from bytes: llhttp with our limits and our strictness.
 *
 * Place:  server; fed by the connections, knows no socket.
 * Idea:   the head is collected first and checked line by line for what llhttp 8 lets pass (bare
 *         LF, folded lines, a space before the colon, missing or repeated Host), then llhttp parses it
 *         in one piece, so every span is whole and headers are slices of the head. The body follows.
 * Limits: head bytes and lines, body bytes, and the bytes that chunked framing may cost besides. */
#ifndef SERVER_HTTP_H
#define SERVER_HTTP_H

#include <llhttp.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/str.h"

enum {
    HTTP_HEAD_BYTES_MAX = 64 << 10,
    HTTP_HEADERS_MAX = 100,
    HTTP_FRAMING_BYTES_MAX =
        1 << 20 /* chunk sizes, extensions, trailers: 1 % of the largest body */
};

enum request_method { METHOD_GET, METHOD_HEAD, METHOD_POST, METHOD_OPTIONS, METHOD_OTHER };

/* The headers that we read. */
enum request_header {
    HEADER_HOST,
    HEADER_ORIGIN,
    HEADER_CONTENT_TYPE,
    HEADER_AUTHORIZATION,
    HEADER_X_API_KEY,
    HEADER_X_REQUEST_ID,
    HEADER_EXPECT,
    HEADER_COUNT
};

struct http_request { /* valid from HTTP_HEAD_READY until http_reset */
    enum request_method method;
    struct str target;                /* as sent */
    struct str path;                  /* the target up to '?' or '#' */
    struct str headers[HEADER_COUNT]; /* {NULL, 0} when absent */
    bool is_http10;
    bool keeps_alive;
    bool expects_continue;
    struct buf body;
};

enum http_event {
    HTTP_MORE,       /* everything was used, the request is not complete */
    HTTP_HEAD_READY, /* the head is complete (reported once); push again for the rest */
    HTTP_COMPLETE,   /* the request is complete; push no more before http_reset */
    HTTP_FAILED      /* answer `status` with `reason` and close */
};

struct http_parser {
    llhttp_t llhttp;
    struct http_request request;
    size_t body_bytes_max;
    int status; /* of the answer when HTTP_FAILED */
    const char *reason;
    /* private */
    enum http_phase { PHASE_HEAD, PHASE_BODY, PHASE_DONE, PHASE_FAILED } phase;
    struct buf head;
    size_t n_lines;   /* complete lines of the head, the request line included */
    bool has_started; /* a byte of the request line came */
    char last;        /* byte before the present one */
    int header;       /* enum request_header of the value that comes, or -1 */
    size_t framing_bytes;
};

void http_init(struct http_parser *p, size_t body_bytes_max);
void http_release(struct http_parser *p);
/* Ready for the next request; big buffers are given back. */
void http_reset(struct http_parser *p);

/* Feed n bytes; *used says how many were taken. */
enum http_event http_push(struct http_parser *p, const char *data, size_t n, size_t *used);

/* True when no byte of a request was seen since the last reset. */
bool http_is_idle(const struct http_parser *p);

#endif
