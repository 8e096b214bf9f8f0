/* reply.c - heads, errors, events. See reply.h. */
#include "server/reply.h"

#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/json.h"

enum { RETRY_AFTER_S = 1 };

const char *reply_reason(int status)
{
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {
        {200, "OK"},
        {204, "No Content"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {413, "Content Too Large"},
        {417, "Expectation Failed"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {505, "HTTP Version Not Supported"},
    };

    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        if (reasons[i].status == status) {
            return reasons[i].reason;
        }
    }
    return "Unknown";
}

static void write_date(struct buf *out)
{
    time_t now = (time_t)clock_wall_s();
    struct tm tm;
    char text[64];

    if (gmtime_r(&now, &tm) && strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &tm) > 0) {
        buf_appendf(out, "Date: %s\r\n", text);
    }
}

void reply_write_head(struct buf *out, const struct reply_head *h)
{
    buf_appendf(out, "HTTP/1.1 %d %s\r\n", h->status, reply_reason(h->status));
    write_date(out);
    if (h->content_type) {
        buf_appendf(out, "Content-Type: %s\r\n", h->content_type);
        if (strcmp(h->content_type, "text/event-stream") == 0) {
            buf_append_str(out, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
        }
    }
    if (h->framing == REPLY_LENGTH && h->status != 204) {
        buf_appendf(out, "Content-Length: %zu\r\n", h->length);
    } else if (h->framing == REPLY_CHUNKED) {
        buf_append_str(out, "Transfer-Encoding: chunked\r\n");
    }
    if (h->request_id && h->request_id[0]) {
        buf_appendf(out, "x-request-id: %s\r\n", h->request_id);
    }
    if (h->allow) {
        buf_appendf(out, "Allow: %s\r\n", h->allow);
    }
    if (h->status == 429 || h->status == 503) {
        buf_appendf(out, "Retry-After: %d\r\n", RETRY_AFTER_S);
    } else if (h->status == 401) {
        buf_append_str(out, "WWW-Authenticate: Bearer\r\n");
    }
    buf_append_str(out, h->closes || h->framing == REPLY_CLOSE ? "Connection: close\r\n\r\n"
                                                               : "Connection: keep-alive\r\n\r\n");
}

static const char *type_of(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    default:
        return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

static void write_members(struct buf *out, const struct reply_error *e)
{
    buf_append_str(out, "\"message\":");
    json_write_string(out, e->message, strlen(e->message));
    buf_appendf(out, ",\"type\":\"%s\",\"param\":", type_of(e->status));
    if (e->param && e->param[0]) {
        json_write_string(out, e->param, strlen(e->param));
    } else {
        buf_append_str(out, "null");
    }
}

void reply_write_error(struct buf *out, const struct reply_error *e)
{
    buf_append_str(out, "{\"error\":{");
    write_members(out, e);
    if (e->code) {
        buf_appendf(out, ",\"code\":\"%s\"}", e->code);
    } else {
        buf_append_str(out, ",\"code\":null}");
    }
    buf_append_str(out, ",\"object\":\"error\",");
    write_members(out, e);
    buf_appendf(out, ",\"code\":%d}", e->status);
}

int reply_status_of(enum status code)
{
    switch (code) {
    case ERR_BAD_REQUEST:
    case ERR_FORMAT:
    case ERR_LIMIT:
    case ERR_UNSUPPORTED:
    case ERR_USAGE:
        return 400;
    case ERR_NOT_FOUND:
        return 404;
    case ERR_BUSY:
        return 429;
    case ERR_NO_MEMORY:
    case ERR_CANCELLED:
    case ERR_DEVICE:
        return 503;
    default:
        return 500;
    }
}

void reply_write_event(struct buf *out, const char *text, size_t len)
{
    buf_append_str(out, "data: ");
    buf_append(out, text, len);
    buf_append_str(out, "\n\n");
}
