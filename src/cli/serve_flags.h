/* serve_flags.h - the flags of `spillway serve` besides the model's, and what follows from them.
 *
 * Place: cli. */
#ifndef CLI_SERVE_FLAGS_H
#define CLI_SERVE_FLAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "cli/flags.h"
#include "cli/settings.h"
#include "server/server.h"

struct serve_flags { /* zero-initialise, then serve_flags_defaults() */
    const char *host;
    size_t port;
    const char *api_key, *api_key_file;
    const char *served_model_name;
    bool strict_model_name;
    const char *reasoning_parser, *tool_call_parser;
    const char *sampling_defaults;
    const char *chat_template_kwargs; /* JSON */
    bool enable_cache_report;
    size_t stream_interval;
    size_t body_bytes_max, max_connections;
    size_t max_queued_requests;
    double shutdown_timeout_s, watchdog_timeout_s;
    const char *log_level, *log_format;
    bool log_requests;
    size_t log_requests_level;
    size_t decode_log_interval;
    int64_t random_seed; /* -1: drawn at start */
};

extern const struct flag serve_flag_table[];
extern const size_t serve_flag_count;
void serve_flags_defaults(struct serve_flags *f);

/* Level and format of all later lines. */
void serve_flags_set_log(struct log *log, const struct serve_flags *f);

/* Fills *out. key_text receives the content of --api-key-file, when given (the caller frees it), and
 * out->default_template_kwargs is the caller's (json_object_put). log goes into *out. */
enum status serve_flags_resolve(struct server_options *out, char **key_text,
                                const struct serve_flags *f, const char *model_path,
                                struct settings *settings, const struct log *log,
                                struct error *err);

#endif
