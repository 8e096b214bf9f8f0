/* serve_flags.c - see serve_flags.h. */
#include "cli/serve_flags.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"

enum { API_KEY_BYTES_MAX = 4096, BODY_BYTES_DEFAULT = 64 << 20, QUEUE_DEFAULT = 1024 };

#define AT(member) .offset = FLAG_OFFSET(struct serve_flags, member)

const struct flag serve_flag_table[] = {
    {.name = "host",
     .kind = FLAG_STRING,
     AT(host),
     .metavar = "ADDRESS",
     .help = "address to listen on; one that others can reach, as 0.0.0.0, needs --api-key"},
    {.name = "port",
     .kind = FLAG_SIZE,
     AT(port),
     .metavar = "PORT",
     .min = 0,
     .max = 65535,
     .help = "TCP port; 0 is any free one, which the log then names"},
    {.name = "api-key",
     .kind = FLAG_STRING,
     AT(api_key),
     .metavar = "KEY",
     .help = "requests must carry it (Authorization: Bearer KEY); shows up in the process list"},
    {.name = "api-key-file",
     .kind = FLAG_STRING,
     AT(api_key_file),
     .metavar = "FILE",
     .help = "the same, read from the first line of a file"},
    {.name = "served-model-name",
     .kind = FLAG_STRING,
     AT(served_model_name),
     .metavar = "NAME",
     .help = "the model's name in answers and /v1/models; by default its path as given"},
    {.name = "strict-model-name",
     .kind = FLAG_BOOL,
     AT(strict_model_name),
     .help = "answer 404 to requests that name another model"},
    {.name = "reasoning-parser",
     .kind = FLAG_CHOICE,
     AT(reasoning_parser),
     .choices = "auto|none|qwen3|qwen3-thinking|deepseek-r1",
     .help =
         "split thinking from the answer; auto looks at the chat template, none gives raw text"},
    {.name = "tool-call-parser",
     .kind = FLAG_CHOICE,
     AT(tool_call_parser),
     .choices = "auto|none|qwen3_coder",
     .help = "turn calls in the text into tool_calls; auto looks at the chat template"},
    {.name = "chat-template-kwargs",
     .aliases = "default-chat-template-kwargs",
     .kind = FLAG_STRING,
     AT(chat_template_kwargs),
     .metavar = "JSON",
     .help = "template variables that requests may override, as {\"enable_thinking\": false}"},
    {.name = "sampling-defaults",
     .kind = FLAG_CHOICE,
     AT(sampling_defaults),
     .choices = "model|openai",
     .help = "what a request leaves out: generation_config.json's value, or OpenAI's"},
    {.name = "random-seed",
     .kind = FLAG_INT,
     AT(random_seed),
     .metavar = "N",
     .min = -1,
     .max = 9007199254740992.0,
     .help = "base of the seeds of requests without one; -1 draws it at start"},
    {.name = "stream-interval",
     .kind = FLAG_SIZE,
     AT(stream_interval),
     .metavar = "TOKENS",
     .min = 1,
     .max = 1024,
     .help = "tokens per streamed event"},
    {.name = "enable-cache-report",
     .kind = FLAG_BOOL,
     AT(enable_cache_report),
     .help = "report cached prompt tokens in usage"},
    {.name = "max-queued-requests",
     .kind = FLAG_SIZE,
     AT(max_queued_requests),
     .metavar = "N",
     .min = 1,
     .max = 1 << 20,
     .help = "requests that may wait; beyond, 429 with Retry-After"},
    {.name = "max-connections",
     .kind = FLAG_SIZE,
     AT(max_connections),
     .metavar = "N",
     .min = 1,
     .max = 65536,
     .help = "open connections; beyond, new ones wait"},
    {.name = "max-body-bytes",
     .kind = FLAG_SIZE,
     AT(body_bytes_max),
     .metavar = "BYTES",
     .min = 1024,
     .max = 1 << 30,
     .help = "longest request body; beyond, 413"},
    {.name = "shutdown-timeout",
     .kind = FLAG_DOUBLE,
     AT(shutdown_timeout_s),
     .metavar = "SECONDS",
     .min = 0,
     .max = 86400,
     .help = "how long running requests may finish after SIGTERM or SIGINT"},
    {.name = "watchdog-timeout",
     .kind = FLAG_DOUBLE,
     AT(watchdog_timeout_s),
     .metavar = "SECONDS",
     .min = 0,
     .max = 1e6,
     .help = "a step of the model that takes longer ends the program with code 72, so that a "
             "supervisor starts it again; /health is 503 from half of it on; 0 never"},
    {.name = "log-level",
     .kind = FLAG_CHOICE,
     AT(log_level),
     .choices = "debug|info|warning|error",
     .help = "lines below it are dropped"},
    {.name = "log-format",
     .kind = FLAG_CHOICE,
     AT(log_format),
     .choices = "text|json",
     .help = "form of the lines on standard error"},
    {.name = "log-requests",
     .kind = FLAG_BOOL,
     AT(log_requests),
     .help = "one line per request (never its text)"},
    {.name = "log-requests-level",
     .kind = FLAG_SIZE,
     AT(log_requests_level),
     .metavar = "N",
     .min = 0,
     .max = 3,
     .help = "0 is none; 1 to 3 are one line: texts are never logged"},
    {.name = "decode-log-interval",
     .kind = FLAG_SIZE,
     AT(decode_log_interval),
     .metavar = "STEPS",
     .help = "decode steps per status line; 0 is never"},
};

const size_t serve_flag_count = sizeof serve_flag_table / sizeof serve_flag_table[0];

void serve_flags_defaults(struct serve_flags *f)
{
    f->host = "127.0.0.1";
    f->port = SERVER_PORT_DEFAULT;
    f->reasoning_parser = f->tool_call_parser = "auto";
    f->sampling_defaults = "model";
    f->stream_interval = 1;
    f->body_bytes_max = BODY_BYTES_DEFAULT;
    f->max_connections = 1024;
    f->max_queued_requests = QUEUE_DEFAULT;
    f->shutdown_timeout_s = 10;
    f->watchdog_timeout_s = 300;
    f->log_level = "info";
    f->log_format = "text";
    f->log_requests_level = 1;
    f->decode_log_interval = 40;
    f->random_seed = -1;
}

void serve_flags_set_log(struct log *log, const struct serve_flags *f)
{
    static const char *const names[] = {"debug", "info", "warning", "error"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(f->log_level, names[i]) == 0) {
            log->level = (enum log_level)i;
        }
    }
    log->is_json = strcmp(f->log_format, "json") == 0;
}
_Static_assert(LOG_DEBUG == 0 && LOG_ERROR == 3, "levels in the order of their names");

static enum parser_choice parser_of(const char *name)
{
    return strcmp(name, "auto") == 0   ? PARSER_AUTO
           : strcmp(name, "none") == 0 ? PARSER_NONE
                                       : PARSER_QWEN;
}

/* The first line of the file, without its end. */
static enum status read_key(char **out, const char *path, struct error *err)
{
    size_t len = 0;
    enum status rc = file_read(out, &len, path, API_KEY_BYTES_MAX, err);
    if (rc == OK) {
        (*out)[strcspn(*out, "\r\n")] = '\0';
        if ((*out)[0] == '\0') {
            free(*out);
            *out = NULL;
            rc = error_set(err, ERR_USAGE, "the first line of '%s' is empty", path);
        }
    }
    if (rc != OK) {
        error_prefix(err, "--api-key-file");
        if (err) {
            err->code = ERR_USAGE;
        }
        return ERR_USAGE;
    }
    return OK;
}

static enum status read_kwargs(struct json_object **out, const char *text, struct error *err)
{
    enum status rc = json_parse(out, text, strlen(text), err);
    if (rc == OK && !json_object_is_type(*out, json_type_object)) {
        rc = error_set(err, ERR_USAGE, "not a JSON object");
        json_object_put(*out);
        *out = NULL;
    }
    if (rc != OK) {
        error_prefix(err, "--chat-template-kwargs");
        if (err) {
            err->code = ERR_USAGE;
        }
        return ERR_USAGE;
    }
    return OK;
}

static void add_settings(struct settings *s, const struct serve_flags *f,
                         const struct server_options *o)
{
    settings_add(s, "host", f->host, NULL, "%s", o->host);
    settings_add(s, "api-key", f->api_key || f->api_key_file ? "given" : "", NULL, "%s",
                 o->api_key ? "required" : "none");
    settings_add(s, "served-model-name", f->served_model_name, NULL, "%s", o->served_name);
    settings_add(s, "reasoning-parser", f->reasoning_parser,
                 o->reasoning_parser == PARSER_AUTO ? "from the chat template" : NULL, "%s",
                 f->reasoning_parser);
    settings_add(s, "tool-call-parser", f->tool_call_parser,
                 o->tool_parser == PARSER_AUTO ? "from the chat template" : NULL, "%s",
                 f->tool_call_parser);
    settings_add(s, "sampling-defaults", f->sampling_defaults, NULL, "%s", f->sampling_defaults);
    settings_add_size(s, "max-queued-requests", f->max_queued_requests, NULL,
                      f->max_queued_requests);
}

enum status serve_flags_resolve(struct server_options *out, char **key_text,
                                const struct serve_flags *f, const char *model_path,
                                struct settings *settings, const struct log *log, struct error *err)
{
    enum status rc = OK;
    *key_text = NULL;
    *out = (struct server_options){
        .host = f->host,
        .port = (uint16_t)f->port,
        .api_key = f->api_key,
        .served_name = f->served_model_name ? f->served_model_name : model_path,
        .strict_model_name = f->strict_model_name,
        .model_path = model_path,
        .reasoning_parser = parser_of(f->reasoning_parser),
        .tool_parser = parser_of(f->tool_call_parser),
        .sampling_defaults_openai = strcmp(f->sampling_defaults, "openai") == 0,
        .enable_cache_report = f->enable_cache_report,
        .stream_interval = f->stream_interval,
        .body_bytes_max = f->body_bytes_max,
        .max_connections = f->max_connections,
        .shutdown_timeout_s = f->shutdown_timeout_s,
        .watchdog_s = f->watchdog_timeout_s / 2, /* health is red before the program ends */
        .log_requests = f->log_requests && f->log_requests_level > 0 ? 1 : 0,
        .log = log,
    };
    if (f->api_key && f->api_key_file) {
        return error_set_param(err, ERR_USAGE, "api-key-file",
                               "--api-key and --api-key-file exclude each other");
    }
    if (f->api_key && f->api_key[0] == '\0') {
        return error_set_param(err, ERR_USAGE, "api-key", "--api-key is empty");
    }
    if (f->api_key_file) {
        rc = read_key(key_text, f->api_key_file, err);
        out->api_key = *key_text;
    }
    if (rc == OK && f->chat_template_kwargs) {
        rc = read_kwargs(&out->default_template_kwargs, f->chat_template_kwargs, err);
    }
    if (rc != OK) {
        return rc;
    }
    add_settings(settings, f, out);
    return OK;
}
