/* generation.h - a request that is being generated: one job of one or more choices.
 *
 * Place:  server; between the endpoints (api_chat, api_completions) and the engine. A job belongs to
 *         its connection until the answer is complete, fails, or the peer goes; then it is freed here.
 *         Each choice is one sequence of the engine, found again by the engine's id.
 * Ends:   all choices done: api->finish wrote the end of the answer. One choice failed: the others
 *         are cancelled; a stream gets an error event and the end mark, otherwise the answer is an
 *         error. Peer gone: the sequences are cancelled, later events of theirs are dropped. */
#ifndef SERVER_GENERATION_H
#define SERVER_GENERATION_H

#include "base/buf.h"
#include "base/json.h"
#include "runtime/engine.h"
#include "server/conn.h"
#include "server/params.h"
#include "server/server_state.h"
#include "text/reasoning.h"
#include "text/tool_format.h"

/* What a piece of text is; pieces of one kind that follow each other become one event. */
enum piece_kind { PIECE_NONE, PIECE_REASONING, PIECE_CONTENT, PIECE_ARGUMENTS };

enum { CALL_ID_BYTES = 5 + 24 + 1 }; /* "call_" and 24 hex digits */

struct choice {
    struct job *job;
    size_t index;
    uint64_t id;         /* the engine's */
    struct choice *next; /* in server->choices */
    bool is_running;     /* in that table */
    bool has_begun;      /* streams: the first chunk was written */
    /* usage and end */
    size_t n_output, n_cached, n_reasoning;
    enum finish_reason reason;
    int32_t stop_id;
    int stop_string;
    /* text on its way: the piece that is open, and tokens since an event was written */
    enum piece_kind open_kind;
    struct buf open;
    size_t n_since_event;
    /* chat: parsers */
    bool splits_reasoning;
    struct reasoning split;
    struct tool_parser *tools; /* NULL: calls stay text */
    size_t call_idx;           /* of the call that PIECE_ARGUMENTS belongs to */
    /* whole answers */
    struct buf reasoning, content;
    struct buf calls; /* JSON objects with commas between */
    /* log-probabilities not written yet, as JSON items with commas between. Chat: all in [0];
     * completions: tokens, their log-probabilities, alternatives, offsets. */
    struct buf logprobs[4];
    size_t n_characters; /* completions: of the text so far */
};

struct job_api {
    void (*started)(struct choice *c);
    void (*token)(struct choice *c, const struct engine_event *e);
    void (*done)(struct choice *c, const struct engine_event *e); /* usage and end are set */
    void (*finish)(struct job *j); /* answers; the job is freed after */
};

struct job {
    struct server *server;
    struct conn *conn;
    struct job *next, *prev; /* in server->jobs */
    const struct job_api *api;
    struct params params;     /* owned, borrows from body */
    struct json_object *body; /* owned */
    char id[REQUEST_ID_BYTES_MAX + 1];
    int64_t created;
    uint64_t started_ns;
    bool has_token;
    size_t n_prompt; /* tokens of all prompts, each counted once */
    struct choice *choices;
    size_t n_choices, n_running;
    struct buf prefix; /* streams: "data: {...,"choices":[{"index":" */
    struct buf events; /* streams: events of this round */
};

/* Takes over params and body. On failure (out of memory) they are released. Attached to c. */
struct job *job_new(struct conn *c, const struct job_api *api, struct params *params,
                    struct json_object *body, size_t n_choices);
/* Before anything was sent: cancel, detach, free. The caller answers. */
void job_abandon(struct job *j);
/* The peer is gone. */
void job_cancel(struct job *j);
/* Answer with the error and free. */
void job_fail(struct job *j, const struct reply_error *e);

/* Hand choice i to the engine with this prompt. */
enum status job_submit(struct job *j, size_t i, const struct token_ids *prompt, struct error *err);
/* ERR_BAD_REQUEST with both numbers when prompt and output do not fit. */
enum status job_check_context(const struct server *s, const struct params *p, size_t n_prompt,
                              const char *param, struct error *err);

/* Send the events that wait in j->events. */
void job_send_events(struct job *j);
/* The end of a stream: the usage event when it was asked for, then the end mark. */
void job_end_stream(struct job *j);
/* Count a token; true when it is time for an event (every stream_interval tokens, and the first). */
bool job_token_is_due(struct choice *c);

/* {"prompt_tokens":...}: of what was generated so far. */
void job_write_usage(struct buf *out, const struct job *j);
/* "stop", "length", "abort" and the token id or text that ended it (or null). */
const char *choice_reason(const struct choice *c);
void choice_write_matched_stop(struct buf *out, const struct choice *c);

/* An event of the engine; releases it. */
void generation_on_event(struct server *s, struct engine_event *e);
/* End all jobs with this error. */
void generation_fail_all(struct server *s, const struct reply_error *e);

#endif
