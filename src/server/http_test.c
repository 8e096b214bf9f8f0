/* http_test.c - good and bad requests through the parser, whole and in every cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/http.h"

enum { BODY_MAX = 64 };

struct outcome {
    enum http_event event;
    int status;
    char path[64];
    char body[BODY_MAX + 1];
    size_t left; /* bytes after the request */
    bool keeps_alive, expects_continue;
};

/* Push text in pieces of `step` bytes. */
static struct outcome push_all(const char *text, size_t len, size_t step)
{
    struct http_parser p;
    struct outcome o = {.event = HTTP_MORE};
    size_t at = 0;

    http_init(&p, BODY_MAX);
    while (o.event == HTTP_MORE || o.event == HTTP_HEAD_READY) {
        size_t n = len - at < step ? len - at : step, used;
        if (n == 0 && o.event == HTTP_MORE) {
            break;
        }
        o.event = http_push(&p, text + at, n, &used);
        at += used;
    }
    o.status = o.event == HTTP_FAILED ? p.status : 0;
    if (o.event == HTTP_FAILED) {
        assert_non_null(p.reason);
    }
    if (o.event == HTTP_COMPLETE) {
        memcpy(o.path, p.request.path.ptr, p.request.path.len);
        if (p.request.body.len > 0) {
            memcpy(o.body, p.request.body.data, p.request.body.len);
        }
        o.left = len - at;
        o.keeps_alive = p.request.keeps_alive;
        o.expects_continue = p.request.expects_continue;
    }
    http_release(&p);
    return o;
}

#define GET(headers)        "GET /x HTTP/1.1\r\nHost: a\r\n" headers "\r\n"
#define POST(headers, body) "POST /x HTTP/1.1\r\nHost: a\r\n" headers "\r\n" body
#define CHUNKED(body)       POST("Transfer-Encoding: chunked\r\n", body)

static const struct {
    const char *text;
    int status; /* 0: complete; -1: wants more */
    const char *body;
} requests[] = {
    {GET(""), 0, ""},
    {"\r\n\r\n" GET(""), 0, ""},
    {"GET /x HTTP/1.0\r\n\r\n", 0, ""},
    {"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 0, ""},
    {"PATCH /x HTTP/1.1\r\nHost: a\r\n\r\n", 0, ""},
    {POST("Content-Length: 5\r\n", "hello"), 0, "hello"},
    {POST("content-length:   5  \r\n", "hello"), 0, "hello"},
    {POST("Content-Length: 5\r\n", "hell"), -1, ""},
    {POST("Content-Length: 0\r\n", ""), 0, ""},
    {CHUNKED("5\r\nhello\r\n0\r\n\r\n"), 0, "hello"},
    {CHUNKED("2\r\nhe\r\n003;x=y\r\nllo\r\n0\r\nTrailer: 1\r\n\r\n"), 0, "hello"},
    {CHUNKED("5\r\nhello\r\n0\r\n"), -1, ""},
    {GET("Connection: Upgrade\r\nUpgrade: h2c\r\n"), 0, ""},
    /* heads that llhttp would let pass */
    {"GET /x HTTP/1.1\r\n\r\n", 400, NULL},
    {"GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, NULL},
    {"GET /x HTTP/1.1\r\nHost : a\r\n\r\n", 400, NULL},
    {"GET /x HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400, NULL},
    {"GET /x HTTP/1.1\r\nHost: a\r\n\tfolded\r\n\r\n", 400, NULL},
    {"GET /x HTTP/1.1\nHost: a\n\n", 400, NULL},
    {"GET /x HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", 400, NULL},
    {"GET /x HTTP/1.1\r\nHost: a\rX: y\r\n\r\n", 400, NULL},
    {"GET /x HTTP/1.1\r\nAuthorization: a\r\nHost: x\r\nAuthorization: b\r\n\r\n", 400, NULL},
    /* lengths */
    {POST("Content-Length: 5\r\nContent-Length: 6\r\n", "hello"), 400, NULL},
    {POST("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"), 400, NULL},
    {POST("Content-Length: +5\r\n", "hello"), 400, NULL},
    {POST("Content-Length: -5\r\n", "hello"), 400, NULL},
    {POST("Content-Length: 5x\r\n", "hello"), 400, NULL},
    {POST("Content-Length: 0x5\r\n", "hello"), 400, NULL},
    {POST("Content-Length:\r\n", "hello"), 400, NULL},
    {POST("Content-Length: 18446744073709551616\r\n", "hello"), 400, NULL},
    {POST("Content-Length: 18446744073709551615\r\n", "hello"), 413, NULL},
    {POST("Content-Length: 65\r\n", ""), 413, NULL},
    {POST("Content-Length: 64\r\n", ""), -1, ""},
    {POST("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 400, NULL},
    {POST("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n"), 400, NULL},
    {POST("Transfer-Encoding: gzip\r\n", "hello"), 400, NULL},
    {POST("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"), 400, NULL},
    {POST("Transfer-Encoding: chunked, gzip\r\n", "0\r\n\r\n"), 400, NULL},
    /* chunks */
    {CHUNKED("0x3\r\nabc\r\n0\r\n\r\n"), 400, NULL},
    {CHUNKED("-1\r\nabc\r\n"), 400, NULL},
    {CHUNKED("x\r\nabc\r\n"), 400, NULL},
    {CHUNKED("3\nabc\n0\n\n"), 400, NULL},
    {CHUNKED("3\r\nabcd\r\n0\r\n\r\n"), 400, NULL},
    {CHUNKED("41\r\n"), 413, NULL},
    {CHUNKED("40\r\n"), -1, ""},
    {CHUNKED("20\r\n01234567890123456789012345678901\r\n21\r\n"), 413, NULL},
    {CHUNKED("8000000000000000\r\n"), 413, NULL},
    {CHUNKED("11111111111111111\r\n"), 400, NULL},
    /* request lines */
    {"GET /x HTTP/2.0\r\nHost: a\r\n\r\n", 505, NULL},
    {"GET /x HTTP/0.9\r\n\r\n", 505, NULL},
    {"GET /x\r\n\r\n", 505, NULL},
    {"GET  HTTP/1.1\r\n\r\n", 400, NULL},
    {"get /x HTTP/1.1\r\nHost: a\r\n\r\n", 400, NULL},
    {"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 400, NULL},
    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, NULL},
    {" GET /x HTTP/1.1\r\nHost: a\r\n\r\n", 400, NULL},
    {"\x16\x03\x01\x02", -1, NULL}, /* the start of TLS: a line that never ends */
    {GET("Expect: something\r\n"), 417, NULL},
    {"GET /x HTTP/1.1\r\nHost: a\r\nNo colon\r\n\r\n", 400, NULL},
};

static void requests_have_one_outcome_however_they_are_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        size_t len = strlen(requests[i].text);
        for (size_t step = 1; step <= len; step++) {
            struct outcome o = push_all(requests[i].text, len, step);
            int status = o.event == HTTP_MORE ? -1 : o.status;
            if (status != requests[i].status) {
                fail_msg("%s (pieces of %zu): %d instead of %d", requests[i].text, step, status,
                         requests[i].status);
            }
            if (status == 0) {
                assert_string_equal(o.body, requests[i].body);
            }
        }
    }
}

static void a_nul_in_the_head_is_refused(void **state)
{
    static const char text[] = "GET /x HTTP/1.1\r\nHost: a\0b\r\n\r\n";

    (void)state;
    assert_int_equal(push_all(text, sizeof text - 1, sizeof text).status, 400);
}

static void what_follows_is_left_alone(void **state)
{
    static const char text[] = POST("Content-Length: 2\r\n", "ok") "GET /next";
    static const char chunks[] = CHUNKED("2\r\nok\r\n0\r\n\r\n") "GET /next";

    (void)state;
    assert_int_equal(push_all(text, sizeof text - 1, sizeof text).left, 9);
    assert_int_equal(push_all(chunks, sizeof chunks - 1, sizeof chunks).left, 9);
    assert_string_equal(push_all(text, sizeof text - 1, sizeof text).body, "ok");
}

static void paths_and_connections(void **state)
{
    static const struct {
        const char *text, *path;
        bool keeps_alive, expects_continue;
    } cases[] = {
        {GET(""), "/x", true, false},
        {GET("Connection: close\r\n"), "/x", false, false},
        {"GET /x?a=b#c HTTP/1.0\r\n\r\n", "/x", false, false},
        {"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "/x", true, false},
        {"GET http://a:1/y?q HTTP/1.1\r\nHost: a\r\n\r\n", "/y", true, false},
        {POST("Content-Length: 2\r\nExpect: 100-Continue\r\n", "ok"), "/x", true, true},
        {POST("Content-Length: 0\r\nExpect: 100-continue\r\n", ""), "/x", true, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct outcome o = push_all(cases[i].text, strlen(cases[i].text), 1000);
        assert_int_equal(o.event, HTTP_COMPLETE);
        assert_string_equal(o.path, cases[i].path);
        assert_int_equal(o.keeps_alive, cases[i].keeps_alive);
        assert_int_equal(o.expects_continue, cases[i].expects_continue);
    }
}

/* n bytes of one header, or n header lines: at, below and above the limit. */
static int big_head(size_t n_lines, size_t head_bytes)
{
    struct buf b;
    int status;
    struct outcome o;

    buf_init(&b);
    buf_append_str(&b, "GET /x HTTP/1.1\r\nHost: a\r\n");
    for (size_t i = 1; i < n_lines; i++) {
        buf_append_str(&b, "X: y\r\n");
    }
    if (head_bytes > 0) {
        buf_append_str(&b, "Y: ");
        while (b.len < head_bytes - 4) {
            buf_append_char(&b, 'y');
        }
        buf_append_str(&b, "\r\n");
    }
    buf_append_str(&b, "\r\n");
    assert_true(buf_ok(&b));
    o = push_all(b.data, b.len, 4096);
    status = o.event == HTTP_COMPLETE ? 200 : o.status;
    buf_release(&b);
    return status;
}

static void heads_have_limits(void **state)
{
    (void)state;
    assert_int_equal(big_head(HTTP_HEADERS_MAX - 1, 0), 200);
    assert_int_equal(big_head(HTTP_HEADERS_MAX, 0), 200);
    assert_int_equal(big_head(HTTP_HEADERS_MAX + 1, 0), 431);
    assert_int_equal(big_head(1, HTTP_HEAD_BYTES_MAX - 1), 200);
    assert_int_equal(big_head(1, HTTP_HEAD_BYTES_MAX), 200);
    assert_int_equal(big_head(1, HTTP_HEAD_BYTES_MAX + 1), 431);
}

/* Framing may cost only so much: tiny chunks, long extensions, endless trailers and empty lines. */
static int endless(const char *start, const char *unit)
{
    struct http_parser p;
    enum http_event e = HTTP_MORE;
    size_t used, total = 0;

    http_init(&p, 64 << 20);
    for (const char *at = start; e != HTTP_FAILED && *at;) {
        e = http_push(&p, at, strlen(at), &used);
        at += used;
        if (e == HTTP_COMPLETE) {
            break;
        }
    }
    while (e != HTTP_FAILED && total < (8u << 20)) {
        e = http_push(&p, unit, strlen(unit), &used);
        total += strlen(unit);
    }
    http_release(&p);
    return e == HTTP_FAILED ? p.status : 0;
}

static void framing_has_a_limit(void **state)
{
    (void)state;
    assert_int_equal(endless(CHUNKED(""), "1\r\nx\r\n"), 413);
    assert_int_equal(endless(CHUNKED("1;"), "extension"), 413);
    assert_int_equal(endless(CHUNKED("0\r\n"), "T: x\r\n"), 413);
    assert_int_equal(endless("\r\n", "\r\n\r\n"), 400);
}

static void reset_starts_anew(void **state)
{
    static const char one[] = POST("Content-Length: 2\r\nX-Request-Id: 7\r\n", "ok");
    static const char two[] = GET("");
    struct http_parser p;
    size_t used;

    (void)state;
    http_init(&p, BODY_MAX);
    assert_true(http_is_idle(&p));
    assert_int_equal(http_push(&p, one, sizeof one - 1, &used), HTTP_HEAD_READY);
    assert_false(http_is_idle(&p));
    assert_int_equal(http_push(&p, one + used, sizeof one - 1 - used, &used), HTTP_COMPLETE);
    assert_true(str_eq(p.request.headers[HEADER_X_REQUEST_ID], STR("7")));
    http_reset(&p);
    assert_true(http_is_idle(&p));
    assert_int_equal(http_push(&p, two, sizeof two - 1, &used), HTTP_HEAD_READY);
    assert_int_equal(http_push(&p, two, 0, &used), HTTP_COMPLETE);
    assert_null(p.request.headers[HEADER_X_REQUEST_ID].ptr);
    assert_int_equal(p.request.body.len, 0);
    http_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_have_one_outcome_however_they_are_cut),
        cmocka_unit_test(a_nul_in_the_head_is_refused),
        cmocka_unit_test(what_follows_is_left_alone),
        cmocka_unit_test(paths_and_connections),
        cmocka_unit_test(heads_have_limits),
        cmocka_unit_test(framing_has_a_limit),
        cmocka_unit_test(reset_starts_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
