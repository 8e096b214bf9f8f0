/* chat_output.c - chunks and objects of chat answers. See chat_output.h.
 *
 * Chunks are written as text around escaped strings; a tree for each token would cost ten times as
 * much. The first chunk of a choice has only the role, since an empty content before tool calls makes
 * some clients end the stream. */
#include "server/chat_output.h"

#include <string.h>

#include "server/api.h"
#include "server/logprobs.h"

static bool is_stream(const struct choice *c)
{
    return c->job->params.stream;
}

/* --- events ------------------------------------------------------------------------------------- */

static void write_prefix(struct job *j)
{
    buf_append_str(&j->prefix, "data: {\"id\":");
    json_write_string(&j->prefix, j->id, strlen(j->id));
    buf_appendf(&j->prefix, ",\"object\":\"chat.completion.chunk\",\"created\":%lld,\"model\":",
                (long long)j->created);
    json_write_string(&j->prefix, j->server->o.served_name, strlen(j->server->o.served_name));
    buf_append_str(&j->prefix, ",\"choices\":[");
}

/* One event up to its delta: the caller appends members and the closing brace. */
static struct buf *begin_event(struct choice *c)
{
    struct buf *out = &c->job->events;

    buf_append(out, c->job->prefix.data, c->job->prefix.len);
    buf_appendf(out, "{\"index\":%zu,\"delta\":{", c->index);
    return out;
}

static void end_choices(struct buf *out, const struct job *j)
{
    buf_append_char(out, ']');
    if (j->params.continuous_usage) {
        buf_append_str(out, ",\"usage\":");
        job_write_usage(out, j);
    } else if (j->params.include_usage) {
        buf_append_str(out, ",\"usage\":null");
    }
    buf_append_str(out, "}\n\n");
}

static void end_event(struct choice *c, const char *finish)
{
    struct buf *out = &c->job->events;

    buf_append_char(out, '}');
    logprobs_write_chat(out, c);
    if (finish) {
        buf_appendf(out, ",\"finish_reason\":\"%s\",\"matched_stop\":", finish);
        choice_write_matched_stop(out, c);
        buf_append_char(out, '}');
    } else {
        buf_append_str(out, ",\"finish_reason\":null}");
    }
    end_choices(out, c->job);
}

static void begin_choice(struct choice *c)
{
    if (!c->has_begun) {
        c->has_begun = true;
        buf_append_str(begin_event(c), "\"role\":\"assistant\"");
        end_event(c, NULL);
    }
}

/* The open piece as an event. */
static void flush_piece(struct choice *c)
{
    struct buf *out;

    if (c->open_kind == PIECE_NONE || c->open.len == 0) {
        return;
    }
    out = begin_event(c);
    switch (c->open_kind) {
    case PIECE_REASONING:
        buf_append_str(out, "\"reasoning_content\":");
        json_write_string(out, c->open.data, c->open.len);
        break;
    case PIECE_ARGUMENTS:
        buf_appendf(out,
                    "\"tool_calls\":[{\"index\":%zu,\"function\":{\"arguments\":", c->call_idx);
        json_write_string(out, c->open.data, c->open.len);
        buf_append_str(out, "}}]");
        break;
    default:
        buf_append_str(out, "\"content\":");
        json_write_string(out, c->open.data, c->open.len);
        break;
    }
    end_event(c, NULL);
    c->open.len = 0;
}

/* --- pieces ------------------------------------------------------------------------------------- */

static void add_piece(struct choice *c, enum piece_kind kind, struct str text)
{
    if (text.len == 0) {
        return;
    }
    if (is_stream(c)) {
        if (c->open_kind != kind) {
            flush_piece(c);
            c->open_kind = kind;
        }
        buf_append(&c->open, text.ptr, text.len);
    } else if (kind == PIECE_REASONING) {
        buf_append(&c->reasoning, text.ptr, text.len);
    } else if (kind == PIECE_ARGUMENTS) {
        buf_append(&c->open, text.ptr, text.len); /* until the call ends */
    } else {
        buf_append(&c->content, text.ptr, text.len);
    }
}

static void write_call_head(struct buf *out, struct choice *c, struct str name)
{
    char hex[CALL_ID_BYTES];

    server_random_hex(c->job->server, hex, 24);
    buf_appendf(out, "\"id\":\"call_%s\",\"type\":\"function\",\"function\":{\"name\":", hex);
    json_write_string(out, name.ptr, name.len);
    buf_append_str(out, ",\"arguments\":");
}

static void begin_call(struct choice *c, const struct tool_event *e)
{
    if (is_stream(c)) {
        struct buf *out;
        flush_piece(c);
        c->open_kind = PIECE_NONE;
        out = begin_event(c);
        buf_appendf(out, "\"tool_calls\":[{\"index\":%zu,", e->index);
        write_call_head(out, c, e->text);
        buf_append_str(out, "\"\"}}]");
        end_event(c, NULL);
    } else {
        buf_appendf(&c->calls, "%s{\"index\":%zu,", e->index > 0 ? "," : "", e->index);
        write_call_head(&c->calls, c, e->text);
    }
    c->call_idx = e->index;
}

static void end_call(struct choice *c)
{
    if (is_stream(c)) {
        flush_piece(c);
    } else {
        json_write_string(&c->calls, buf_cstr(&c->open), c->open.len);
        buf_append_str(&c->calls, "}}");
        c->open.len = 0;
    }
}

static void on_tool_event(void *ctx, const struct tool_event *e)
{
    struct choice *c = ctx;

    switch (e->kind) {
    case TOOL_EVENT_CONTENT:
        add_piece(c, PIECE_CONTENT, e->text);
        break;
    case TOOL_EVENT_CALL:
        begin_call(c, e);
        break;
    case TOOL_EVENT_ARGUMENTS:
        add_piece(c, PIECE_ARGUMENTS, e->text);
        break;
    case TOOL_EVENT_CALL_END:
        end_call(c);
        break;
    }
}

/* Content, after the splitter. */
static void push_content(struct choice *c, struct str text, bool is_last)
{
    if (!c->tools) {
        add_piece(c, PIECE_CONTENT, text);
        return;
    }
    if (!tool_parser_push(c->tools, text) || (is_last && !tool_parser_finish(c->tools))) {
        c->job->conn->out.failed = true; /* out of memory: the connection is dropped */
    }
}

static void push_text(struct choice *c, struct str text, bool is_last)
{
    struct buf reasoning, content;

    if (!c->splits_reasoning) {
        push_content(c, text, is_last);
        return;
    }
    buf_init(&reasoning);
    buf_init(&content);
    reasoning_push(&c->split, text, &reasoning, &content);
    if (is_last) {
        reasoning_finish(&c->split, &reasoning, &content);
    }
    add_piece(c, PIECE_REASONING, (struct str){buf_cstr(&reasoning), reasoning.len});
    push_content(c, (struct str){buf_cstr(&content), content.len}, is_last);
    if (!buf_ok(&reasoning) || !buf_ok(&content)) {
        c->job->conn->out.failed = true;
    }
    buf_release(&reasoning);
    buf_release(&content);
}

/* stream_reasoning false: the thought comes in one piece when it is complete. */
static bool holds_reasoning(const struct choice *c)
{
    return !c->job->params.stream_reasoning && c->open_kind == PIECE_REASONING &&
           c->split.state == REASONING_INSIDE;
}

/* --- the job ------------------------------------------------------------------------------------ */

static void on_started(struct choice *c)
{
    if (is_stream(c)) {
        begin_choice(c);
        job_send_events(c->job);
    }
}

static void on_token(struct choice *c, const struct engine_event *e)
{
    if (c->splits_reasoning && c->split.state == REASONING_INSIDE) {
        c->n_reasoning++;
    }
    if (c->job->params.sampling.want_logprobs) {
        logprobs_add_chat(c, e);
    }
    if (is_stream(c)) {
        begin_choice(c);
    }
    push_text(c, (struct str){e->text, e->text_len}, false);
    if (is_stream(c) && job_token_is_due(c)) {
        if (!holds_reasoning(c)) {
            flush_piece(c);
        }
        job_send_events(c->job);
    }
}

static const char *finish_of(const struct choice *c)
{
    bool has_calls = c->tools && tool_parser_n_calls(c->tools) > 0;

    return has_calls && c->reason == FINISH_STOP ? "tool_calls" : choice_reason(c);
}

static void on_done(struct choice *c, const struct engine_event *e)
{
    if (is_stream(c)) {
        begin_choice(c);
    }
    push_text(c, (struct str){e->text, e->text_len}, true);
    if (is_stream(c)) {
        flush_piece(c);
        begin_event(c);
        end_event(c, finish_of(c));
        job_send_events(c->job);
    }
}

static void write_choice(struct buf *out, struct choice *c)
{
    bool has_calls = c->calls.len > 0;

    buf_appendf(out, "{\"index\":%zu,\"message\":{\"role\":\"assistant\",\"content\":", c->index);
    if (has_calls && c->content.len == 0) {
        buf_append_str(out, "null");
    } else {
        json_write_string(out, buf_cstr(&c->content), c->content.len);
    }
    if (c->reasoning.len > 0) {
        buf_append_str(out, ",\"reasoning_content\":");
        json_write_string(out, c->reasoning.data, c->reasoning.len);
    }
    if (has_calls) {
        buf_append_str(out, ",\"tool_calls\":[");
        buf_append(out, c->calls.data, c->calls.len);
        buf_append_char(out, ']');
    }
    buf_append_char(out, '}');
    logprobs_write_chat(out, c);
    buf_appendf(out, ",\"finish_reason\":\"%s\",\"matched_stop\":", finish_of(c));
    choice_write_matched_stop(out, c);
    buf_append_char(out, '}');
}

static bool choice_is_ok(const struct choice *c)
{
    return buf_ok(&c->open) && buf_ok(&c->reasoning) && buf_ok(&c->content) && buf_ok(&c->calls) &&
           buf_ok(&c->logprobs[0]);
}

static void reply_whole(struct job *j)
{
    struct buf out;

    buf_init(&out);
    buf_append_str(&out, "{\"id\":");
    json_write_string(&out, j->id, strlen(j->id));
    buf_appendf(
        &out, ",\"object\":\"chat.completion\",\"created\":%lld,\"model\":", (long long)j->created);
    json_write_string(&out, j->server->o.served_name, strlen(j->server->o.served_name));
    buf_append_str(&out, ",\"choices\":[");
    for (size_t i = 0; i < j->n_choices; i++) {
        if (i > 0) {
            buf_append_char(&out, ',');
        }
        write_choice(&out, &j->choices[i]);
        out.failed = out.failed || !choice_is_ok(&j->choices[i]);
    }
    buf_append_str(&out, "],\"usage\":");
    job_write_usage(&out, j);
    buf_append_char(&out, '}');
    api_reply_json(j->conn, &out);
}

static void finish(struct job *j)
{
    if (j->params.stream) {
        job_end_stream(j);
    } else {
        reply_whole(j);
    }
}

const struct job_api chat_job_api = {
    .started = on_started,
    .token = on_token,
    .done = on_done,
    .finish = finish,
};

enum status chat_output_init(struct job *j, const struct chat_output_options *o, struct error *err)
{
    if (j->params.stream) {
        write_prefix(j);
    }
    for (size_t i = 0; i < j->n_choices; i++) {
        struct choice *c = &j->choices[i];
        c->splits_reasoning = o->splits_reasoning;
        reasoning_init_state(&c->split, o->start);
        if (o->parses_tools) {
            c->tools = tool_parser_new(j->params.tools, on_tool_event, c);
            if (!c->tools) {
                return error_set(err, ERR_NO_MEMORY, "out of memory for the tool parser");
            }
        }
    }
    return OK;
}
