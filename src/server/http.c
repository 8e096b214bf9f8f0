/* http.c - requests from bytes. See http.h. */
#include "server/http.h"

#include <assert.h>
#include <string.h>
#include <strings.h>

static const char *const header_names[HEADER_COUNT] = {
    [HEADER_HOST] = "host",
    [HEADER_ORIGIN] = "origin",
    [HEADER_CONTENT_TYPE] = "content-type",
    [HEADER_AUTHORIZATION] = "authorization",
    [HEADER_X_API_KEY] = "x-api-key",
    [HEADER_X_REQUEST_ID] = "x-request-id",
    [HEADER_EXPECT] = "expect",
};

static enum http_event fail(struct http_parser *p, int status, const char *reason)
{
    if (p->phase != PHASE_FAILED) { /* the first fault is the cause */
        p->phase = PHASE_FAILED;
        p->status = status;
        p->reason = reason;
    }
    return HTTP_FAILED;
}

/* --- llhttp's callbacks: 0 goes on, -1 stops with an error -------------------------------------- */

static int on_url(llhttp_t *l, const char *at, size_t n)
{
    struct http_parser *p = l->data;
    size_t end;

    p->request.target = (struct str){at, n};
    if (n > 7 && strncasecmp(at, "http://", 7) == 0) { /* absolute form: RFC 9112, 3.2.2 */
        const char *slash = memchr(at + 7, '/', n - 7);
        size_t skip = slash ? (size_t)(slash - at) : n;
        at += skip;
        n -= skip;
    }
    end = 0;
    while (end < n && at[end] != '?' && at[end] != '#') {
        end++;
    }
    p->request.path = (struct str){at, end};
    return 0;
}

static int on_header_field(llhttp_t *l, const char *at, size_t n)
{
    struct http_parser *p = l->data;

    p->header = -1;
    if (p->phase != PHASE_HEAD) { /* a trailer: counted as framing, otherwise ignored */
        return 0;
    }
    if (n == 0 || at[n - 1] == ' ' || at[n - 1] == '\t') {
        fail(p, 400, "white space before the colon of a header");
        return -1;
    }
    for (int i = 0; i < HEADER_COUNT; i++) {
        if (strlen(header_names[i]) == n && strncasecmp(at, header_names[i], n) == 0) {
            p->header = i;
        }
    }
    return 0;
}

static int on_header_value(llhttp_t *l, const char *at, size_t n)
{
    struct http_parser *p = l->data;

    if (p->phase != PHASE_HEAD || p->header < 0) {
        return 0;
    }
    if (p->request.headers[p->header].ptr) {
        fail(p, 400, "a header that may come once came twice");
        return -1;
    }
    while (n > 0 && (at[n - 1] == ' ' || at[n - 1] == '\t')) {
        n--;
    }
    p->request.headers[p->header] = (struct str){at, n};
    return 0;
}

static enum request_method method_of(unsigned method)
{
    switch (method) {
    case HTTP_GET:
        return METHOD_GET;
    case 2 /* HTTP_HEAD_READY, a name that our events use */:
        return METHOD_HEAD;
    case HTTP_POST:
        return METHOD_POST;
    case HTTP_OPTIONS:
        return METHOD_OPTIONS;
    default:
        return METHOD_OTHER;
    }
}

static int check_head(struct http_parser *p, llhttp_t *l)
{
    struct str expect = p->request.headers[HEADER_EXPECT];

    if (l->http_major != 1 || l->http_minor > 1) {
        fail(p, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
        return -1;
    }
    if ((l->flags & F_CONTENT_LENGTH) && (l->flags & F_TRANSFER_ENCODING)) {
        fail(p, 400, "both Content-Length and Transfer-Encoding");
        return -1;
    }
    if (l->method == HTTP_CONNECT || l->method == HTTP_PRI) {
        fail(p, 400, "this method is not for a server like this one");
        return -1;
    }
    if (!p->request.is_http10 && !p->request.headers[HEADER_HOST].ptr) {
        fail(p, 400, "the Host header is missing");
        return -1;
    }
    if ((l->flags & F_CONTENT_LENGTH) && l->content_length > p->body_bytes_max) {
        fail(p, 413, "the body is larger than this server takes");
        return -1;
    }
    if (expect.ptr && !p->request.is_http10) {
        if (expect.len != 12 || strncasecmp(expect.ptr, "100-continue", 12) != 0) {
            fail(p, 417, "only 'Expect: 100-continue' is known");
            return -1;
        }
        p->request.expects_continue =
            (l->flags & F_CHUNKED) || ((l->flags & F_CONTENT_LENGTH) && l->content_length > 0);
    }
    return 0;
}

static int on_headers_complete(llhttp_t *l)
{
    struct http_parser *p = l->data;

    p->request.method = method_of(l->method);
    p->request.is_http10 = l->http_minor == 0;
    p->request.keeps_alive = llhttp_should_keep_alive(l) != 0;
    l->upgrade = 0; /* an offered upgrade is declined by not mentioning it */
    if (check_head(p, l) != 0) {
        return -1;
    }
    p->phase = PHASE_BODY;
    return 0;
}

static int on_chunk_header(llhttp_t *l)
{
    struct http_parser *p = l->data;

    if (l->content_length > p->body_bytes_max - p->request.body.len) {
        fail(p, 413, "the body is larger than this server takes");
        return -1;
    }
    return 0;
}

static int on_body(llhttp_t *l, const char *at, size_t n)
{
    struct http_parser *p = l->data;

    assert(n <= p->body_bytes_max - p->request.body.len);
    buf_append(&p->request.body, at, n);
    if (!buf_ok(&p->request.body)) {
        fail(p, 503, "out of memory for the body");
        return -1;
    }
    return 0;
}

static int on_message_complete(llhttp_t *l)
{
    struct http_parser *p = l->data;

    p->phase = PHASE_DONE;
    return HPE_PAUSED; /* what follows belongs to the next request */
}

static const llhttp_settings_t settings = {
    .on_url = on_url,
    .on_header_field = on_header_field,
    .on_header_value = on_header_value,
    .on_headers_complete = on_headers_complete,
    .on_chunk_header = on_chunk_header,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

/* --- life ------------------------------------------------------------------------------------- */

static void start(struct http_parser *p)
{
    memset(&p->request.headers, 0, sizeof p->request.headers);
    p->request.target = p->request.path = (struct str){NULL, 0};
    p->request.expects_continue = false;
    p->request.keeps_alive = false;
    llhttp_init(&p->llhttp, HTTP_REQUEST, &settings);
    p->llhttp.data = p;
    p->phase = PHASE_HEAD;
    p->n_lines = 0;
    p->has_started = false;
    p->last = '\0';
    p->header = -1;
    p->framing_bytes = 0;
}

void http_init(struct http_parser *p, size_t body_bytes_max)
{
    memset(p, 0, sizeof *p);
    p->body_bytes_max = body_bytes_max;
    start(p);
}

void http_release(struct http_parser *p)
{
    buf_release(&p->head);
    buf_release(&p->request.body);
}

void http_reset(struct http_parser *p)
{
    buf_release(&p->head);
    buf_release(&p->request.body);
    start(p);
}

bool http_is_idle(const struct http_parser *p)
{
    return p->phase == PHASE_HEAD && !p->has_started;
}

/* --- the head ---------------------------------------------------------------------------------- */

/* Look at the next byte of the head. True when it ends the head. */
static bool head_byte(struct http_parser *p, char c)
{
    bool at_line_start = p->last == '\n' || p->head.len == 0;

    if (c == '\n' && p->last != '\r') {
        fail(p, 400, "a line of the head ends without a carriage return");
        return false;
    }
    if ((c != '\n' && p->last == '\r') || c == '\0') {
        fail(p, 400, "a control character in the head");
        return false;
    }
    if (at_line_start && p->n_lines > 0 && (c == ' ' || c == '\t')) {
        fail(p, 400, "a folded header line");
        return false;
    }
    if (c == '\n') { /* the line is empty when the carriage return was its first byte */
        bool is_empty = p->head.len < 2 || p->head.data[p->head.len - 2] == '\n';
        if (is_empty) {
            return true;
        }
        if (++p->n_lines > HTTP_HEADERS_MAX + 1) {
            fail(p, 431, "too many header lines");
        }
    }
    return false;
}

static enum http_event parse_head(struct http_parser *p)
{
    enum llhttp_errno rc = llhttp_execute(&p->llhttp, p->head.data, p->head.len);

    if (p->phase == PHASE_FAILED) {
        return HTTP_FAILED;
    }
    if (p->phase == PHASE_HEAD || (rc != HPE_OK && rc != HPE_PAUSED)) {
        const char *reason = llhttp_get_error_reason(&p->llhttp);
        return fail(p, rc == HPE_INVALID_VERSION ? 505 : 400, reason ? reason : "malformed head");
    }
    return HTTP_HEAD_READY;
}

static enum http_event push_head(struct http_parser *p, const char *data, size_t n, size_t *used)
{
    for (size_t i = 0; i < n; i++) {
        char c = data[i];

        /* Empty lines before a request are allowed (RFC 9112, 2.2) and skipped here. */
        if (!p->has_started && (c == '\r' || c == '\n')) {
            if (++p->framing_bytes > HTTP_HEAD_BYTES_MAX) {
                return fail(p, 400, "nothing but empty lines");
            }
            continue;
        }
        p->has_started = true;
        if (p->head.len >= HTTP_HEAD_BYTES_MAX) {
            return fail(p, 431, "the head is larger than this server takes");
        }
        bool is_end = head_byte(p, c);
        buf_append_char(&p->head, c);
        p->last = c;
        if (p->phase == PHASE_FAILED) {
            return HTTP_FAILED;
        }
        if (!buf_ok(&p->head)) {
            return fail(p, 503, "out of memory for the head");
        }
        if (is_end) {
            *used = i + 1;
            p->framing_bytes = 0;
            return parse_head(p);
        }
    }
    *used = n;
    return HTTP_MORE;
}

/* --- the body ---------------------------------------------------------------------------------- */

static enum http_event push_body(struct http_parser *p, const char *data, size_t n, size_t *used)
{
    size_t body_before = p->request.body.len;
    enum llhttp_errno rc = llhttp_execute(&p->llhttp, data, n);

    if (p->phase == PHASE_FAILED) {
        return HTTP_FAILED;
    }
    if (rc != HPE_OK && rc != HPE_PAUSED) {
        const char *reason = llhttp_get_error_reason(&p->llhttp);
        return fail(p, 400, reason ? reason : "malformed body");
    }
    *used = rc == HPE_PAUSED ? (size_t)(llhttp_get_error_pos(&p->llhttp) - data) : n;
    p->framing_bytes += *used - (p->request.body.len - body_before);
    if (p->framing_bytes > HTTP_FRAMING_BYTES_MAX) {
        return fail(p, 413, "the body comes in too many chunks");
    }
    return p->phase == PHASE_DONE ? HTTP_COMPLETE : HTTP_MORE;
}

enum http_event http_push(struct http_parser *p, const char *data, size_t n, size_t *used)
{
    *used = 0;
    switch (p->phase) {
    case PHASE_HEAD:
        return push_head(p, data, n, used);
    case PHASE_BODY:
        return push_body(p, data, n, used);
    case PHASE_DONE:
        return HTTP_COMPLETE;
    case PHASE_FAILED:
        break;
    }
    return HTTP_FAILED;
}
