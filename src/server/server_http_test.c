/* server_http_test.c - the HTTP rules on real sockets: routes, keys, connections, time, drain. */
#include <sys/resource.h>

#include "server/server_rig.h"

#define GET(path, headers) "GET " path " HTTP/1.1\r\nHost: localhost\r\n" headers "\r\n"

static const char short_chat[] = "{\"prompt\":[1,2,3],\"max_tokens\":5}";
static const char short_stream[] = "{\"prompt\":[1,2,3],\"max_tokens\":5,\"stream\":true}";

/* A tokenizer that is just big enough for prompts of ids. */
static struct tokenizer *tokenizer;

static int load_tokenizer(void **state)
{
    struct error err = {0};

    (void)state;
    if (tokenizer_load(&tokenizer, "models/rill/tokenizer.json", &err) != OK) {
        fail_msg("%s", err.text);
    }
    return 0;
}

static int free_tokenizer(void **state)
{
    (void)state;
    tokenizer_free(tokenizer);
    return 0;
}

static void start_ready(struct rig *r, const struct server_options *o)
{
    static const char *const pieces[] = {"He", "llo", NULL};

    rig_start(r, o);
    r->engine.pieces = pieces;
    r->model.tokenizer = tokenizer;
    rig_set_ready(r);
    while (ask_status(r, GET("/ready", "")) != 200) {
    }
}

static void health_is_red_until_the_model_is_there(void **state)
{
    struct rig r;
    struct response a;

    (void)state;
    rig_start(&r, NULL);
    assert_int_equal(ask(&r, GET("/health", ""), &a), 503);
    assert_string_equal(header_of(&a, "Retry-After"), "1");
    assert_int_equal(a.body.len, 0);
    response_release(&a);
    assert_int_equal(ask(&r, GET("/ready", ""), &a), 503);
    assert_string_equal(buf_cstr(&a.body), "{\"status\":\"loading\"}");
    response_release(&a);
    assert_int_equal(ask_status(&r, GET("/ping", "")), 200);
    assert_int_equal(ask_status(&r, GET("/metrics", "")), 200);
    assert_int_equal(ask_status(&r, GET("/v1/models", "")), 503);
    rig_set_ready(&r);
    while (ask_status(&r, GET("/ready", "")) != 200) { /* the wish is on its way */
    }
    assert_int_equal(ask_status(&r, GET("/health", "")), 200);
    assert_int_equal(ask_status(&r, GET("/health_generate", "")), 200);
    assert_int_equal(ask_status(&r, GET("/v1/models", "")), 200);
    rig_stop(&r);
}

static void a_stalled_step_turns_health_red(void **state)
{
    struct rig r;
    struct response a;

    (void)state;
    start_ready(&r, &(struct server_options){.watchdog_s = 0.001});
    pthread_mutex_lock(&r.engine.lock);
    r.engine.stats.step_in_flight = true;
    r.engine.stats.step_started_ns = clock_now_ns() - 1000000000u;
    pthread_mutex_unlock(&r.engine.lock);
    assert_int_equal(ask(&r, GET("/ready", ""), &a), 503);
    assert_string_equal(buf_cstr(&a.body), "{\"status\":\"stalled\"}");
    response_release(&a);
    assert_int_equal(ask_status(&r, GET("/health_generate", "")), 503);
    rig_stop(&r);
}

static void routes_and_methods(void **state)
{
    static const struct {
        const char *request;
        int status;
        const char *allow;
    } cases[] = {
        {GET("/", ""), 404, ""},
        {GET("/v1", ""), 404, ""},
        {GET("//health", ""), 404, ""},
        {GET("/health/", ""), 404, ""},
        {GET("/v1/models/", ""), 404, ""},
        {GET("/v1/models/other", ""), 404, ""},
        {GET("/v1/models/org/puppet", ""), 200, ""},
        {GET("/v1/models/org%2Fpuppet", ""), 200, ""},
        {GET("/v1/models/org%2fpuppet?x", ""), 200, ""},
        {GET("/v1/models/org%2", ""), 404, ""},
        {GET("/health?x=y", ""), 200, ""},
        {GET("http://localhost/health", ""), 200, ""},
        {GET("/server_info", ""), 200, ""},
        {GET("/get_server_info", ""), 200, ""},
        {GET("/model_info", ""), 200, ""},
        {GET("/v1/chat/completions", ""), 405, "POST, OPTIONS"},
        {"POST /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", 405,
         "GET, HEAD, OPTIONS"},
        {"DELETE /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "GET, HEAD, OPTIONS"},
        {"HEAD /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, ""},
        {"HEAD /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, ""},
        {"OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", 204, "POST, OPTIONS"},
        {"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 204, "GET, HEAD, OPTIONS"},
        {"GET /health HTTP/1.0\r\n\r\n", 200, ""},
    };
    struct rig r;

    (void)state;
    start_ready(&r, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct response a;
        int status = ask(&r, cases[i].request, &a);
        if (status != cases[i].status) {
            fail_msg("%s -> %d", cases[i].request, status);
        }
        assert_string_equal(header_of(&a, "Allow"), cases[i].allow);
        if (status >= 400 && strncmp(cases[i].request, "HEAD", 4) != 0) {
            struct json_object *v = NULL;
            assert_int_equal(json_parse(&v, a.body.data, a.body.len, NULL), OK);
            assert_non_null(json_get(json_get(v, "error"), "message"));
            assert_int_equal(json_object_get_int(json_get(v, "code")), status);
            json_object_put(v);
        }
        assert_string_equal(header_of(&a, "Access-Control-Allow-Origin"), "");
        response_release(&a);
    }
    rig_stop(&r);
}

static void keys_guard_all_but_health(void **state)
{
    static const struct {
        const char *request;
        int status;
    } cases[] = {
        {GET("/health", ""), 200},
        {GET("/health_generate", ""), 200},
        {GET("/ready", ""), 200},
        {GET("/ping", ""), 401},
        {GET("/metrics", ""), 401},
        {GET("/v1/models", ""), 401},
        {GET("/nothing", ""), 401},
        {GET("//health", ""), 401},
        {GET("/health/..", ""), 401},
        {GET("/HEALTH", ""), 401},
        {GET("/health%2f..%2fmetrics", ""), 401},
        {GET("/health;x", ""), 401},
        {GET("http://localhost/metrics", ""), 401},
        {"DELETE /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 401},
        {"HEAD /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 401},
        {"OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 204},
        {GET("/v1/models", "Authorization: Bearer secret\r\n"), 200},
        {GET("/v1/models", "Authorization: bearer secret\r\n"), 200},
        {GET("/v1/models", "x-api-key: secret\r\n"), 200},
        {GET("/v1/models", "Authorization: Bearer secre\r\n"), 401},
        {GET("/v1/models", "Authorization: Bearer secrets\r\n"), 401},
        {GET("/v1/models", "Authorization: Bearer secretsecret\r\n"), 401},
        {GET("/v1/models", "Authorization: Bearer Secret\r\n"), 401},
        {GET("/v1/models", "Authorization: Bearer \r\n"), 401},
        {GET("/v1/models", "Authorization: Bearer\r\n"), 401},
        {GET("/v1/models", "Authorization: secret\r\n"), 401},
        {GET("/v1/models", "Authorization: Basic secret\r\n"), 401},
        {GET("/v1/models", "x-api-key: \r\n"), 401},
        {GET("/nothing", "x-api-key: secret\r\n"), 404},
    };
    struct rig r;

    (void)state;
    start_ready(&r, &(struct server_options){.api_key = "secret"});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct response a;
        int status = ask(&r, cases[i].request, &a);
        if (status != cases[i].status) {
            fail_msg("%s -> %d", cases[i].request, status);
        }
        assert_string_equal(header_of(&a, "WWW-Authenticate"), status == 401 ? "Bearer" : "");
        response_release(&a);
    }
    rig_stop(&r);
}

static void a_body_without_a_key_is_not_read(void **state)
{
    struct rig r;
    struct response a;

    (void)state;
    start_ready(&r, &(struct server_options){.api_key = "secret"});
    assert_int_equal(ask(&r,
                         "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                         "Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{",
                         &a),
                     401);
    assert_string_equal(header_of(&a, "Connection"), "close");
    response_release(&a);
    rig_stop(&r);
}

static void foreign_hosts_and_origins_are_refused(void **state)
{
    static const struct {
        const char *headers;
        int status;
    } cases[] = {
        {"Host: localhost", 200},
        {"Host: LocalHost:30000", 200},
        {"Host: 127.0.0.1:30000", 200},
        {"Host: [::1]:30000", 200},
        {"Host: x.localhost", 200},
        {"Host: evil.example", 403},
        {"Host: localhost.evil.example", 403},
        {"Host: 127.0.0.1.evil.example", 403},
        {"Host: localhost:30000\r\nOrigin: http://localhost:30000", 200},
        {"Host: localhost:30000\r\nOrigin: http://evil.example", 403},
        {"Host: localhost:30000\r\nOrigin: null", 403},
        {"Host: localhost:30000\r\nOrigin: http://localhost:3000", 403},
    };
    struct rig r;

    (void)state;
    start_ready(&r, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        int status;
        snprintf(text, sizeof text, "GET /v1/models HTTP/1.1\r\n%s\r\n\r\n", cases[i].headers);
        status = ask_status(&r, text);
        if (status != cases[i].status) {
            fail_msg("%s -> %d", cases[i].headers, status);
        }
    }
    rig_stop(&r);
}

static void bad_requests_are_answered_and_closed(void **state)
{
    static const struct {
        const char *request;
        int status;
    } cases[] = {
        {"GET /health HTTP/1.1\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nHost : a\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", 400},
        {"GET /health HTTP/3.0\r\nHost: a\r\n\r\n", 505},
        {"hello\r\n\r\n", 400},
        {"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: "
         "2\r\n\r\n",
         400},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999999\r\n\r\n",
         413},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
         "Content-Length: 2\r\n\r\n",
         400},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n", 400},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
         "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
         400},
    };
    struct rig r;

    (void)state;
    start_ready(&r, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct client c;
        struct response a;
        client_open(&c, &r);
        client_send(&c, cases[i].request);
        client_read(&c, &a);
        if (a.status != cases[i].status) {
            fail_msg("%s -> %d", cases[i].request, a.status);
        }
        assert_string_equal(header_of(&a, "Connection"), "close");
        assert_non_null(strstr(buf_cstr(&a.body), "\"error\":{\"message\":\""));
        client_expect_end(&c);
        response_release(&a);
        client_close(&c);
    }
    rig_stop(&r);
}

static void requests_may_be_pipelined(void **state)
{
    enum { N = 2000 };
    struct rig r;
    struct client c;
    struct buf all;

    (void)state;
    start_ready(&r, NULL);
    buf_init(&all);
    for (int i = 0; i < N; i++) {
        buf_appendf(&all, "GET /ping HTTP/1.1\r\nHost: localhost\r\nx-request-id: r%d\r\n\r\n", i);
    }
    client_open(&c, &r);
    client_send_bytes(&c, all.data, all.len);
    for (int i = 0; i < N; i++) {
        struct response a;
        char id[16];
        snprintf(id, sizeof id, "r%d", i);
        client_read(&c, &a);
        assert_int_equal(a.status, 200);
        assert_string_equal(header_of(&a, "x-request-id"), id);
        response_release(&a);
    }
    /* a request that is generated, and one behind it in the same bytes */
    client_send(&c, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                    "Content-Type: application/json; charset=utf-8\r\nContent-Length: 16\r\n\r\n"
                    "{\"prompt\":[1,2]}" GET("/ping", "x-request-id: after\r\n"));
    for (int i = 0; i < 2; i++) {
        struct response a;
        client_read(&c, &a);
        assert_int_equal(a.status, 200);
        assert_true(i == 0 ? strstr(buf_cstr(&a.body), "\"text\":\"Hello\"") != NULL
                           : strcmp(header_of(&a, "x-request-id"), "after") == 0);
        response_release(&a);
    }
    client_close(&c);
    buf_release(&all);
    rig_stop(&r);
}

static void a_connection_serves_streams_and_errors_in_turn(void **state)
{
    struct rig r;
    struct client c;
    struct response a;

    (void)state;
    start_ready(&r, NULL);
    client_open(&c, &r);
    for (int i = 0; i < 3; i++) {
        client_post(&c, &a, "/v1/completions", short_stream);
        assert_int_equal(a.status, 200);
        assert_string_equal(header_of(&a, "Content-Type"), "text/event-stream");
        assert_true(a.body.len > 14);
        assert_string_equal(a.body.data + a.body.len - 14, "data: [DONE]\n\n");
        response_release(&a);
        client_post(&c, &a, "/v1/completions", "{\"prompt\":5}");
        assert_int_equal(a.status, 400);
        response_release(&a);
        client_post(&c, &a, "/v1/completions", "{\"prompt\":");
        assert_int_equal(a.status, 400);
        assert_non_null(strstr(buf_cstr(&a.body), "invalid JSON at byte 10"));
        response_release(&a);
        client_post(&c, &a, "/v1/completions", short_chat);
        assert_int_equal(a.status, 200);
        response_release(&a);
    }
    client_close(&c);
    rig_stop(&r);
}

static void http_1_0_streams_end_with_the_connection(void **state)
{
    struct rig r;
    struct client c;
    struct response a;

    (void)state;
    start_ready(&r, NULL);
    client_open(&c, &r);
    client_send(&c, "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
                    "Connection: keep-alive\r\nContent-Length: 30\r\n\r\n"
                    "{\"prompt\":[1,2],\"stream\":true}");
    client_read(&c, &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(header_of(&a, "Transfer-Encoding"), "");
    assert_string_equal(header_of(&a, "Connection"), "close");
    assert_memory_equal(a.body.data, "data: {", 7);
    response_release(&a);
    client_close(&c);
    rig_stop(&r);
}

static void a_body_is_asked_for_when_the_client_waits(void **state)
{
    struct rig r;
    struct client c;
    struct response a;

    (void)state;
    start_ready(&r, NULL);
    client_open(&c, &r);
    client_send(&c, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                    "Content-Type: application/json\r\nContent-Length: 16\r\n\r\n");
    client_read(&c, &a);
    assert_int_equal(a.status, 100);
    response_release(&a);
    client_send(&c, "{\"prompt\":[1,2]}");
    client_read(&c, &a);
    assert_int_equal(a.status, 200);
    response_release(&a);
    client_send(&c, "POST /nothing HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                    "Content-Type: application/json\r\nContent-Length: 16\r\n\r\n");
    client_read(&c, &a);
    assert_int_equal(a.status, 404);
    response_release(&a);
    client_expect_end(&c);
    client_close(&c);
    rig_stop(&r);
}

static void request_ids_come_back(void **state)
{
    static const struct {
        const char *sent;
        bool is_kept;
    } cases[] = {{"abc-1", true}, {"a b", false}, {"\xc3\xa4", false}, {"", false}};
    struct rig r;

    (void)state;
    start_ready(&r, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        struct response a;
        snprintf(text, sizeof text,
                 "GET /ping HTTP/1.1\r\nHost: localhost\r\nx-request-id: %s\r\n\r\n",
                 cases[i].sent);
        assert_int_equal(ask(&r, text, &a), 200);
        if (cases[i].is_kept) {
            assert_string_equal(header_of(&a, "x-request-id"), cases[i].sent);
        } else {
            assert_int_equal(strspn(header_of(&a, "x-request-id"), "0123456789abcdef"), 32);
        }
        response_release(&a);
    }
    rig_stop(&r);
}

/* --- peers that go, stall or wait ------------------------------------------------------------------ */

/* how: 0 closes, 1 closes only the sending side */
static void leave_during(const char *body, int how)
{
    struct rig r;
    struct client c;

    start_ready(&r, NULL);
    r.engine.holds = true;
    client_open(&c, &r);
    client_send_post(&c, "/v1/completions", body);
    wait_count(&r.engine, &r.engine.n_submitted, 1);
    if (how == 0) {
        close(c.fd);
    } else {
        shutdown(c.fd, SHUT_WR);
    }
    wait_count(&r.engine, &r.engine.n_cancelled, 1);
    rig_continue(&r, 1); /* its events come too late and find nobody */
    r.engine.holds = false;
    if (how == 0) {
        buf_release(&c.in);
    } else {
        client_expect_end(&c);
        client_close(&c);
    }
    client_open(&c, &r);
    client_send_post(&c, "/v1/completions", short_chat);
    client_wait_for(&c, "\"text\":\"Hello\"");
    client_close(&c);
    rig_stop(&r);
}

static void a_peer_that_leaves_is_cancelled(void **state)
{
    (void)state;
    leave_during(short_chat, 0);
    leave_during(short_stream, 0);
    leave_during("{\"prompt\":[1],\"n\":1,\"max_tokens\":5}", 1);
    leave_during(short_stream, 1);
}

static void all_choices_are_cancelled(void **state)
{
    struct rig r;
    struct client c;

    (void)state;
    start_ready(&r, NULL);
    r.engine.holds = true;
    client_open(&c, &r);
    client_send_post(&c, "/v1/completions", "{\"prompt\":[[1],[2]],\"n\":3}");
    wait_count(&r.engine, &r.engine.n_submitted, 6);
    client_close(&c);
    wait_count(&r.engine, &r.engine.n_cancelled, 6);
    rig_stop(&r);
}

static void a_peer_may_leave_at_any_byte(void **state)
{
    static const char request[] = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                                  "Content-Type: application/json\r\nContent-Length: 30\r\n\r\n"
                                  "{\"prompt\":[1,2],\"stream\":true}";
    struct rig r;
    struct client c;

    (void)state;
    start_ready(&r, NULL);
    for (size_t n = 0; n < sizeof request; n++) {
        client_open(&c, &r);
        client_send_bytes(&c, request, n);
        client_close(&c);
    }
    for (size_t n = 1; n < 700; n += 13) { /* and in the middle of the answer */
        client_open(&c, &r);
        client_send(&c, request);
        while (c.in.len < n && client_fill(&c)) {
            if (strstr(buf_cstr(&c.in), "[DONE]")) {
                break;
            }
        }
        client_close(&c);
    }
    client_open(&c, &r);
    client_send(&c, request);
    client_wait_for(&c, "data: [DONE]\n\n");
    client_close(&c);
    rig_stop(&r);
}

static void a_reader_that_stops_is_cut(void **state)
{
    enum { PIECE = 4096, PIECES = 1500 };
    static char piece[PIECE + 1];
    static const char *pieces[PIECES + 1];
    struct rig r;
    struct client c;

    (void)state;
    memset(piece, 'x', PIECE);
    for (size_t i = 0; i < PIECES; i++) {
        pieces[i] = piece;
    }
    start_ready(&r, NULL);
    r.engine.pieces = pieces;
    r.engine.holds = true;
    client_open_sized(&c, &r, 4096);
    client_send_post(&c, "/v1/completions",
                     "{\"prompt\":[1],\"stream\":true,\"max_tokens\":500,\"n\":2}");
    wait_count(&r.engine, &r.engine.n_submitted, 2);
    rig_continue(&r, 1); /* 6 MB, and nobody reads; the other choice still runs */
    wait_count(&r.engine, &r.engine.n_cancelled, 1);
    client_close(&c);
    rig_stop(&r);
}

static void a_whole_answer_may_be_long(void **state)
{
    enum { PIECE = 4096, PIECES = 500 };
    static char piece[PIECE + 1];
    static const char *pieces[PIECES + 1];
    struct rig r;
    struct client c;
    struct response a;

    (void)state;
    memset(piece, 'x', PIECE);
    for (size_t i = 0; i < PIECES; i++) {
        pieces[i] = piece;
    }
    start_ready(&r, NULL);
    r.engine.pieces = pieces;
    client_open_sized(&c, &r, 4096);
    client_post(&c, &a, "/v1/completions", short_chat);
    assert_int_equal(a.status, 200);
    assert_true(a.body.len > (size_t)PIECE * PIECES);
    response_release(&a);
    client_close(&c);
    rig_stop(&r);
}

static void slow_requests_end(void **state)
{
    struct rig r;
    struct client c;
    struct response a;

    (void)state;
    start_ready(&r, &(struct server_options){.head_timeout_ms = 60, .body_timeout_ms = 60});
    client_open(&c, &r);
    client_send(&c, "GET /health HT");
    client_read(&c, &a);
    assert_int_equal(a.status, 408);
    response_release(&a);
    client_expect_end(&c);
    client_close(&c);

    client_open(&c, &r);
    client_send(&c, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                    "Content-Type: application/json\r\nContent-Length: 16\r\n\r\n{");
    client_read(&c, &a);
    assert_int_equal(a.status, 408);
    response_release(&a);
    client_expect_end(&c);
    client_close(&c);
    rig_stop(&r);
}

static void idle_connections_end(void **state)
{
    struct rig r;
    struct client c;

    (void)state;
    start_ready(&r, &(struct server_options){.idle_timeout_ms = 60});
    client_open(&c, &r);
    client_expect_end(&c);
    assert_int_equal(c.in.len, 0);
    client_close(&c);
    rig_stop(&r);
}

static void a_silent_stream_is_kept_alive(void **state)
{
    struct rig r;
    struct client c;

    (void)state;
    start_ready(&r, &(struct server_options){.ping_ms = 40});
    r.engine.holds = true;
    client_open(&c, &r);
    client_send_post(&c, "/v1/completions", short_stream);
    client_wait_for(&c, ": ping\n\n");
    rig_continue(&r, 1);
    client_wait_for(&c, "data: [DONE]\n\n");
    client_close(&c);
    rig_stop(&r);
}

static void connections_beyond_the_limit_wait(void **state)
{
    struct rig r;
    struct client a, b, c;

    (void)state;
    rig_start(&r, &(struct server_options){.max_connections = 2});
    client_open(&a, &r);
    client_send(&a, GET("/ping", ""));
    client_wait_for(&a, "200 OK");
    client_open(&b, &r);
    client_send(&b, GET("/ping", ""));
    client_wait_for(&b, "200 OK");
    client_open(&c, &r); /* the kernel takes it, the server does not yet */
    client_send(&c, GET("/ping", ""));
    assert_int_equal(poll(&(struct pollfd){.fd = c.fd, .events = POLLIN}, 1, 50), 0);
    client_close(&a);
    client_wait_for(&c, "200 OK");
    client_close(&b);
    client_close(&c);
    rig_stop(&r);
}

static void running_out_of_descriptors_passes(void **state)
{
    enum { CLIENTS = 3, SPARE_MAX = 4096 };
    struct rig r;
    struct client c[CLIENTS];
    struct rlimit old, small;
    static int spare[SPARE_MAX];
    size_t n = 0;

    (void)state;
    rig_start(&r, &(struct server_options){.head_timeout_ms = 400}); /* a tick of 100 ms */
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    small = old;
    small.rlim_cur = 256;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &small), 0);
    while (n < SPARE_MAX && (spare[n] = dup(0)) >= 0) {
        n++;
    }
    assert_true(n > CLIENTS);
    for (size_t i = 0; i < CLIENTS; i++) { /* room for the clients, none for the server */
        close(spare[--n]);
        client_open(&c[i], &r);
        client_send(&c[i], GET("/ping", "Connection: close\r\n"));
    }
    assert_int_equal(poll(&(struct pollfd){.fd = c[0].fd, .events = POLLIN}, 1, 50), 0);
    while (n > 0) {
        close(spare[--n]);
    }
    for (size_t i = 0; i < CLIENTS; i++) {
        client_wait_for(&c[i], "200 OK");
        client_close(&c[i]);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    rig_stop(&r);
}

/* --- start and end --------------------------------------------------------------------------------- */

static void addresses_in_use_and_open_ones_are_refused(void **state)
{
    struct rig r;
    struct server *second = NULL;
    struct error err = {0};
    char expected[64];

    (void)state;
    rig_start(&r, NULL);
    snprintf(expected, sizeof expected, "cannot listen on 127.0.0.1:%u", server_port(r.server));
    assert_int_equal(
        server_new(&second,
                   &(struct server_options){.host = "127.0.0.1", .port = server_port(r.server)},
                   &err),
        ERR_IO);
    assert_null(second);
    assert_non_null(strstr(err.text, expected));
    assert_int_equal(server_new(&second, &(struct server_options){.host = "0.0.0.0"}, &err),
                     ERR_USAGE);
    assert_string_equal(err.param, "api-key");
    assert_int_equal(server_new(&second, &(struct server_options){.host = "not a host"}, &err),
                     ERR_USAGE);
    assert_int_equal(
        server_new(&second, &(struct server_options){.host = "0.0.0.0", .api_key = "k"}, &err), OK);
    server_free(second);
    rig_stop(&r);
}

static void a_port_is_free_again_at_once(void **state)
{
    struct server_options o = {0};

    (void)state;
    for (int i = 0; i < 20; i++) {
        struct rig r;
        struct client c;
        rig_start(&r, &o);
        o.port = server_port(r.server);
        client_open(&c, &r);
        client_send(&c, GET("/ping", ""));
        client_wait_for(&c, "200 OK");
        rig_stop(&r); /* closes first: our side keeps the address in TIME_WAIT */
        client_close(&c);
    }
}

static void a_drain_lets_streams_finish(void **state)
{
    struct rig r;
    struct client idle, stream, late;
    struct sockaddr_in address;
    struct response a;

    (void)state;
    start_ready(&r, &(struct server_options){.shutdown_timeout_s = 3600});
    r.engine.holds = true;
    address = address_of(&r);
    client_open(&idle, &r);
    client_send(&idle, GET("/ping", ""));
    client_wait_for(&idle, "200 OK");
    buf_clear(&idle.in);
    client_open(&stream, &r);
    client_send_post(&stream, "/v1/completions", short_stream);
    wait_count(&r.engine, &r.engine.n_submitted, 1);
    server_request_stop(r.server, 1);
    do { /* a request on a kept connection is refused, and the connection closed */
        client_send(&idle, GET("/v1/models", ""));
        client_read(&idle, &a);
        if (a.status == 200) {
            response_release(&a); /* the wish to stop is still on its way */
            continue;
        }
        break;
    } while (true);
    assert_int_equal(a.status, 503);
    assert_string_equal(header_of(&a, "Connection"), "close");
    response_release(&a);
    client_expect_end(&idle);
    client_close(&idle);
    late.fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_not_equal(connect(late.fd, (struct sockaddr *)&address, sizeof address), 0);
    close(late.fd);
    rig_continue(&r, 1);
    client_wait_for(&stream, "data: [DONE]\n\n");
    assert_null(strstr(buf_cstr(&stream.in), "\"error\""));
    rig_join(&r);
    client_expect_end(&stream);
    client_close(&stream);
}

/* how: as for server_request_stop; timeout: of the drain */
static void stop_with_running(int how, double timeout)
{
    struct rig r;
    struct client stream, whole;
    struct response a;

    start_ready(&r, &(struct server_options){.shutdown_timeout_s = timeout});
    r.engine.holds = true;
    client_open(&stream, &r);
    client_send_post(&stream, "/v1/completions", short_stream);
    client_open(&whole, &r);
    client_send_post(&whole, "/v1/completions", short_chat);
    wait_count(&r.engine, &r.engine.n_submitted, 2);
    client_wait_for(&stream, "\r\n\r\n");
    server_request_stop(r.server, how);
    client_read(&stream, &a);
    assert_non_null(strstr(buf_cstr(&a.body),
                           "data: {\"error\":{\"message\":\"the server is shutting "
                           "down\""));
    assert_string_equal(a.body.data + a.body.len - 14, "data: [DONE]\n\n");
    response_release(&a);
    client_read(&whole, &a);
    assert_int_equal(a.status, 503);
    assert_string_equal(header_of(&a, "Connection"), "close");
    response_release(&a);
    rig_join(&r);
    client_close(&stream);
    client_close(&whole);
}

static void late_streams_get_an_error_and_an_end(void **state)
{
    (void)state;
    stop_with_running(1, 0);
    stop_with_running(1, 0.05);
    stop_with_running(2, 3600);
}

static void a_second_signal_ends_a_drain(void **state)
{
    struct rig r;
    struct client c;

    (void)state;
    start_ready(&r, &(struct server_options){.shutdown_timeout_s = 3600});
    r.engine.holds = true;
    client_open(&c, &r);
    client_send_post(&c, "/v1/completions", short_stream);
    wait_count(&r.engine, &r.engine.n_submitted, 1);
    server_request_stop(r.server, 1);
    server_request_stop(r.server, 2);
    rig_join(&r);
    client_wait_for(&c, "data: [DONE]\n\n");
    client_close(&c);
}

static void a_client_that_does_not_read_cannot_hold_up_the_end(void **state)
{
    enum { PIECE = 4096, PIECES = 600 };
    static char piece[PIECE + 1];
    static const char *pieces[PIECES + 1];
    struct rig r;
    struct client c;

    (void)state;
    memset(piece, 'x', PIECE);
    for (size_t i = 0; i < PIECES; i++) {
        pieces[i] = piece;
    }
    start_ready(&r, NULL);
    r.engine.pieces = pieces;
    client_open_sized(&c, &r, 4096);
    client_send_post(&c, "/v1/completions", short_chat); /* one long answer, which is never read */
    wait_count(&r.engine, &r.engine.n_submitted, 1);
    client_wait_for(&c, "HTTP/1.1 200");
    server_request_stop(r.server, 1);
    rig_join(&r);
    client_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(health_is_red_until_the_model_is_there),
        cmocka_unit_test(a_stalled_step_turns_health_red),
        cmocka_unit_test(routes_and_methods),
        cmocka_unit_test(keys_guard_all_but_health),
        cmocka_unit_test(a_body_without_a_key_is_not_read),
        cmocka_unit_test(foreign_hosts_and_origins_are_refused),
        cmocka_unit_test(bad_requests_are_answered_and_closed),
        cmocka_unit_test(requests_may_be_pipelined),
        cmocka_unit_test(a_connection_serves_streams_and_errors_in_turn),
        cmocka_unit_test(http_1_0_streams_end_with_the_connection),
        cmocka_unit_test(a_body_is_asked_for_when_the_client_waits),
        cmocka_unit_test(request_ids_come_back),
        cmocka_unit_test(a_peer_that_leaves_is_cancelled),
        cmocka_unit_test(all_choices_are_cancelled),
        cmocka_unit_test(a_peer_may_leave_at_any_byte),
        cmocka_unit_test(a_reader_that_stops_is_cut),
        cmocka_unit_test(a_whole_answer_may_be_long),
        cmocka_unit_test(slow_requests_end),
        cmocka_unit_test(idle_connections_end),
        cmocka_unit_test(a_silent_stream_is_kept_alive),
        cmocka_unit_test(connections_beyond_the_limit_wait),
        cmocka_unit_test(running_out_of_descriptors_passes),
        cmocka_unit_test(addresses_in_use_and_open_ones_are_refused),
        cmocka_unit_test(a_port_is_free_again_at_once),
        cmocka_unit_test(a_drain_lets_streams_finish),
        cmocka_unit_test(late_streams_get_an_error_and_an_end),
        cmocka_unit_test(a_second_signal_ends_a_drain),
        cmocka_unit_test(a_client_that_does_not_read_cannot_hold_up_the_end),
    };
    return cmocka_run_group_tests(tests, load_tokenizer, free_tokenizer);
}
