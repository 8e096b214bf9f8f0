/* engine.h - the thread that owns sequences: continuous batching over one model.
 *
 * Place:   runtime; used by server/ and cli/. One engine thread alone touches sequences, state and
 *          backend. Others talk to it through a bounded submit queue, and get events back through an
 *          engine_port (a bounded queue and an eventfd of their own). Nothing else is shared.
 * Step:    one step is a batch of (sequence, token span): one token of every running sequence, and
 *          whole prefill chunks of admitted ones within max_prefill_tokens. A prompt is always cut at
 *          multiples of chunk_tokens from its own start, whatever else runs: so the same request
 *          gives the same text in any company.
 * Order:   first in, first out. A sequence is admitted when a live slot is free and the KV pool can
 *          hold its prompt and max_tokens; so a running request never meets an exhausted pool.
 * Faults:  what goes wrong inside one request ends that request with ENGINE_EVENT_ERROR; a NaN names
 *          the layer. */
#ifndef RUNTIME_ENGINE_H
#define RUNTIME_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "model/model.h"
#include "runtime/sampling.h"
#include "runtime/stop.h" /* limits of stop strings */
#include "text/tokenizer.h"

enum {
    STOP_IDS_MAX = 128,
    ENGINE_QUEUE_MAX = 1 << 16, /* of max_queued: the table of requests is allocated at start */
    PORT_EVENTS_MAX = 8192      /* waiting in one port; at the limit its requests are cancelled */
};

struct engine;
struct engine_port;

struct engine_options {
    size_t max_running;        /* sequences at once; the store has as many live slots */
    size_t max_queued;         /* waiting requests besides the running ones: with max_running +
                                   max_queued requests unfinished, the next is ERR_BUSY */
    size_t chunk_tokens;       /* prefill chunk; 0: prompts are never cut */
    size_t max_prefill_tokens; /* prefill tokens per step over all sequences, at least one chunk */
    size_t context_length;     /* prompt + output; the engine also keeps to what the store holds */
    uint64_t random_seed;      /* base for requests without a seed */
    const struct log *log;
    size_t decode_log_interval; /* decode steps per status line; 0: never */
};

enum finish_reason { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_ABORT, FINISH_ERROR };

struct engine_request { /* everything is copied by engine_submit */
    const int32_t *prompt;
    size_t n_prompt; /* >= 1; at least one place of the context must be left */
    struct sampling sampling;
    size_t max_tokens; /* >= 1; cut to what the context leaves. 0: as much as the context leaves */
    size_t
        min_tokens; /* until then end tokens and stop ids are not chosen; stop strings still end */
    const struct str *stop; /* stop strings */
    size_t n_stop;
    const int32_t *stop_ids; /* besides the model's own end tokens */
    size_t n_stop_ids;
    bool ignore_eos;   /* the model's end tokens are ordinary; stop_ids still end */
    bool no_stop_trim; /* keep the matched stop string in the text */
    bool skip_special; /* special tokens leave no text (default true) */
};

/* Of one request: STARTED, then TOKENs, then one DONE or ERROR; a request that ends early may lack the
 * first two. The token that ends a request by its id has no TOKEN event: DONE names it. */
enum engine_event_kind {
    ENGINE_EVENT_STARTED, /* prefill is done, the first token is about to be chosen */
    ENGINE_EVENT_TOKEN,
    ENGINE_EVENT_DONE,
    ENGINE_EVENT_ERROR
};

struct engine_event {
    enum engine_event_kind kind;
    uint64_t request; /* id from engine_submit */
    int32_t token;    /* TOKEN */
    float logprob;
    size_t n_top;
    struct token_logprob top[TOP_LOGPROBS_MAX];
    char *text; /* TOKEN: text that became certain (stop strings held back), may be ""; DONE: the
                       rest. Whole UTF-8 characters, NUL-terminated; NULL with STARTED and ERROR.
                       malloc'd, the receiver frees with engine_event_release */
    size_t text_len;
    enum finish_reason reason; /* DONE */
    int32_t stop_id;           /* DONE by an end token or stop id: that id; else -1 */
    int stop_string;           /* DONE by a stop string: its index; else -1 */
    size_t n_prompt, n_output; /* DONE, ERROR: usage; output counts the end token as OpenAI does */
    size_t n_cached;           /* prompt tokens taken from a cache */
    double prefill_s, decode_s, queue_s;
    struct error error; /* ERROR */
};

/* Borrows m, t and o->log; they must outlive the engine. ERR_USAGE when the options do not fit the
 * model's rows_max, out_rows_max or live slots. */
enum status engine_new(struct engine **out, struct model *m, const struct tokenizer *t,
                       const int32_t *eos_ids, size_t n_eos_ids, const struct engine_options *o,
                       struct error *err);
/* Starts the thread. */
enum status engine_start(struct engine *e, struct error *err);
/* Ends all requests with FINISH_ABORT, stops the thread, frees. Ports stay valid: their waiting events
 * can still be popped. Accepts NULL. */
void engine_free(struct engine *e);

/* A receiver of events. fd is readable while events wait (poll it, never read it). Freeing a port
 * cancels its requests; it may be freed before or after the engine. One thread pops and waits. A port
 * with PORT_EVENTS_MAX waiting events takes no more tokens: the requests that need it are cancelled,
 * and their DONE or ERROR still arrives. */
enum status engine_port_new(struct engine_port **out, struct engine *e, struct error *err);
void engine_port_free(struct engine_port *p);
int engine_port_fd(const struct engine_port *p);
bool engine_port_pop(struct engine_port *p, struct engine_event *out); /* false: none waiting */
bool engine_port_wait(struct engine_port *p, int timeout_ms); /* for simple clients; -1: for ever */
void engine_event_release(struct engine_event *e);

/* Any thread. ERR_BUSY: queue full, or the port has PORT_EVENTS_MAX waiting events. ERR_BAD_REQUEST (with param): prompt too long for the context (the
 * text names limit and length), token ids outside the vocabulary, bad parameters. */
enum status engine_submit(struct engine *e, struct engine_port *p, const struct engine_request *r,
                          uint64_t *id, struct error *err);
/* Any thread; within one step (or prefill chunk) the request ends with FINISH_ABORT. Unknown or
 * finished ids are ignored. */
void engine_cancel(struct engine *e, uint64_t id);

struct engine_stats {
    size_t n_running, n_queued;
    uint64_t n_requests, n_finished, n_aborted, n_failed;
    uint64_t prompt_tokens, output_tokens, steps;
    double prefill_s, decode_s; /* time spent in steps with prompt tokens, and without */
    uint64_t last_step_ns;      /* monotonic end of the last step, for a heartbeat */
    bool step_in_flight;
    uint64_t step_started_ns;
    struct state_counts state;
    bool device_failed; /* a step reported ERR_DEVICE */
};
void engine_get_stats(const struct engine *e, struct engine_stats *out); /* any thread */

#endif
