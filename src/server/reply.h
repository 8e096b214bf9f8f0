/* reply.h - heads of HTTP answers, and error bodies.
 *
 * Place: server; writes into a buf, knows no connection. */
#ifndef SERVER_REPLY_H
#define SERVER_REPLY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/status.h"

enum reply_framing {
    REPLY_LENGTH,  /* Content-Length */
    REPLY_CHUNKED, /* chunks follow */
    REPLY_CLOSE    /* the end of the connection ends the body (HTTP/1.0) */
};

struct reply_head {
    int status;
    const char *content_type; /* NULL: none */
    enum reply_framing framing;
    size_t length;
    const char *request_id; /* x-request-id; NULL: none */
    const char *allow;      /* 405, OPTIONS; NULL: none */
    bool closes;            /* Connection: close */
};

/* 429 and 503 also carry Retry-After, 401 WWW-Authenticate, an event stream Cache-Control. */
void reply_write_head(struct buf *out, const struct reply_head *h);
const char *reply_reason(int status); /* "Not Found" */

/* What an error answer says. */
struct reply_error {
    int status;        /* HTTP */
    const char *code;  /* "context_length_exceeded" or NULL */
    const char *param; /* NULL or "": null */
    const char *message;
};

/* {"error":{"message","type","param","code"},"object":"error","message",...}: nested as OpenAI's
 * clients read it, and the same flat beside it, as SGLang's do; there `code` is the HTTP status. */
void reply_write_error(struct buf *out, const struct reply_error *e);

/* The HTTP status for a failure. */
int reply_status_of(enum status code);

/* Append one server-sent event: "data: <text>\n\n". text has no newline. */
void reply_write_event(struct buf *out, const char *text, size_t len);

#endif
