/* sequence.h - one request inside the engine, from submit to its last event.
 *
 * Place:  runtime; made by engine_submit on the caller's thread, then owned by the engine thread.
 * Holds:  a copy of the request, its place in the model (state, tokens fed so far), what turns tokens
 *         into text (detokeniser, stop strings), and its way out (port, the last event's memory). */
#ifndef RUNTIME_SEQUENCE_H
#define RUNTIME_SEQUENCE_H

#include <stdatomic.h>

#include "model/state.h"
#include "runtime/engine.h"
#include "runtime/port.h"
#include "runtime/sampler.h"
#include "text/detok.h"

/* What all sequences of an engine have in common. */
struct sequence_rules {
    const struct tokenizer *tokenizer;
    size_t n_vocab;        /* rows of the model's embedding: bound of prompt ids */
    size_t n_choosable;    /* ids that can be generated: known to model and tokenizer */
    size_t context_length; /* prompt + output */
    const int32_t *eos_ids;
    size_t n_eos_ids;
};

struct sequence {
    uint64_t id;
    struct sequence *next;    /* in the inbox or the waiting queue */
    atomic_bool is_cancelled; /* set by any thread */
    struct engine_port *port; /* counted */
    struct port_event *last_event;

    /* the request */
    int32_t *prompt;
    size_t n_prompt;
    struct sampling sampling; /* bias owned */
    uint64_t seed;
    size_t max_tokens, min_tokens; /* max_tokens >= 1, fits the context */
    int32_t *end_ids;              /* tokens that end it */
    size_t n_end_ids;

    /* progress; engine thread only */
    struct seq_state *state; /* NULL while waiting */
    size_t n_fed;            /* prompt tokens in the state */
    size_t n_output;
    int32_t last_token; /* generated, not fed yet */
    struct token_history history;
    struct detok detok;
    struct stop stop;
    struct buf detok_text, out_text; /* scratch of one token */
    int32_t stop_id;
    uint64_t submitted_ns, admitted_ns, first_token_ns;
};

/* Checks and copies the request. On failure nothing is left. */
enum status sequence_new(struct sequence **out, const struct sequence_rules *rules,
                         struct engine_port *port, const struct engine_request *r,
                         struct error *err);
void sequence_free(struct sequence *q); /* state must have been given back; accepts NULL */

/* KV places that it needs at most: all tokens but the last, which is never fed. */
size_t sequence_tokens_max(const struct sequence *q);
static inline bool sequence_is_prefilling(const struct sequence *q)
{
    return q->n_fed < q->n_prompt;
}
bool sequence_is_cancelled(struct sequence *q); /* by request, or its receiver is gone */

/* Ids that may not be chosen for the next token. */
size_t sequence_banned(const struct sequence *q, const int32_t **ids);

/* Sends STARTED. FINISH_NONE means go on; FINISH_ABORT: the receiver does not take it; FINISH_ERROR: out
 * of memory. */
enum finish_reason sequence_start(struct sequence *q);
/* Takes a chosen token and sends its event. FINISH_NONE means go on; FINISH_ABORT and FINISH_ERROR as
 * above: whatever else the token would have ended, the text has a gap. */
enum finish_reason sequence_take(struct sequence *q, const struct sample *sample);
/* Sends DONE with the rest of the text, or ERROR when error is not NULL or there is no memory for
 * that text. Once per sequence. */
void sequence_end(struct sequence *q, enum finish_reason reason, const struct error *error);

#endif
