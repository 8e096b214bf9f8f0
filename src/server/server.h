/* server.h - the HTTP server: one epoll loop over llhttp, OpenAI-compatible routes.
 *
 * Place:  server; started by cli/. Binds first; /health is 503 until server_set_ready and while
 *         draining. The loop thread is the one that calls server_run.
 * Order:  server_new, server_run (or in a thread), server_set_ready when the model is there; at the
 *         end server_run returns, then server_free, then engine_free. server_run gives back what it
 *         holds of the engine before it returns. */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "formats/model_config.h"
#include "offload/offload.h"
#include "runtime/engine.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

enum { SERVER_PORT_DEFAULT = 30000 };

enum parser_choice { PARSER_AUTO, PARSER_NONE, PARSER_QWEN };

struct server_options {
    const char *host;        /* "127.0.0.1" */
    uint16_t port;           /* 0: any free one (tests); see server_port */
    const char *api_key;     /* NULL: open */
    const char *served_name; /* echoed in answers and /v1/models */
    bool strict_model_name;
    const char *model_path;
    enum parser_choice reasoning_parser, tool_parser;
    bool sampling_defaults_openai; /* ignore generation_config.json */
    bool enable_cache_report;
    size_t stream_interval; /* tokens per SSE event; 1 */
    size_t body_bytes_max;  /* 64 MiB */
    size_t max_connections;
    double shutdown_timeout_s;                   /* drain */
    double watchdog_s;                           /* a step longer than this makes /health 503 */
    int log_requests;                            /* 0 off, 1 one line each */
    struct json_object *default_template_kwargs; /* or NULL */
    const struct log *log;
    /* Times in ms; 0: the standard one. Tests make them short. */
    unsigned idle_timeout_ms;    /* a kept-alive connection without a request; 120 s */
    unsigned head_timeout_ms;    /* first byte of a request to the end of its head; 10 s */
    unsigned body_timeout_ms;    /* between two pieces of a body; 30 s */
    unsigned request_timeout_ms; /* first byte of a request to its last; 300 s */
    unsigned write_timeout_ms;   /* bytes wait and the peer takes none; 30 s */
    unsigned ping_ms;            /* a silent stream gets a comment line; 15 s */
};

struct server_model { /* what exists once the model is loaded; borrowed */
    struct engine *engine;
    const struct tokenizer *tokenizer;
    const struct chat_template *chat_template; /* NULL: chat answers 400 */
    struct generation_config generation;
    const struct model_config *config;
    size_t context_length, max_running;
    struct json_object *info; /* for /server_info: effective settings; borrowed */
    /* Experts that overflow: false when there are none. Any thread; NULL: there are none. */
    bool (*read_offload)(void *ctx, struct offload_stats *out);
    void *offload_ctx;
};

struct server;

/* Binds and listens. The options' strings are borrowed until server_free. ERR_IO names an address that
 * is in use; ERR_USAGE: an address that others can reach needs an API key. */
enum status server_new(struct server **out, const struct server_options *o, struct error *err);
void server_free(struct server *s);
uint16_t server_port(const struct server *s);
/* Any thread: the model is ready; routes open. */
void server_set_ready(struct server *s, const struct server_model *m);
/* Async-signal-safe: 1 = drain (finish running streams up to shutdown_timeout_s), 2 = at once. */
void server_request_stop(struct server *s, int how);
/* Serves until stopped. OK after a drain or stop. */
enum status server_run(struct server *s, struct error *err);

#endif
