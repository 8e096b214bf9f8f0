/* scheduler.h - which sequences run, and which tokens of theirs make the next step.
 *
 * Place:  runtime; engine thread only. Knows the state store and sequences, not the model.
 * Queue:  first in, first out, without overtaking. The head is admitted when a live slot is free and
 *         the KV pool holds all it can ever need; the pages are taken then, so a running sequence never
 *         meets an empty pool.
 * Step:   one token of every decoding sequence, and prompt chunks of the others, oldest first, within
 *         prefill_tokens_max. A chunk ends at a multiple of chunk_tokens from the prompt's start or at
 *         its end, whatever else runs; a sequence has at most one chunk in a step. */
#ifndef RUNTIME_SCHEDULER_H
#define RUNTIME_SCHEDULER_H

#include "model/state.h"
#include "runtime/sequence.h"

struct scheduler {
    struct state_store *store;
    size_t max_running;
    size_t chunk_tokens;       /* 0: never cut */
    size_t prefill_tokens_max; /* per step; the first chunk always fits */
    struct sequence *waiting, *waiting_last;
    size_t n_waiting;
    struct sequence **running; /* [max_running], in order of admission */
    size_t n_running;
};

enum status scheduler_init(struct scheduler *s, struct error *err); /* allocates running */
void scheduler_release(struct scheduler *s);                        /* must hold no sequence */

void scheduler_push(struct scheduler *s, struct sequence *q);

/* Admits the head if it can be. *out is that sequence, or NULL when there is none or it must wait.
 * An error concerns *out alone, which left the queue and does not run. */
enum status scheduler_admit(struct scheduler *s, struct sequence **out, struct error *err);

struct step_part {
    struct sequence *sequence;
    const int32_t *tokens;
    size_t n_tokens;
    bool wants_logits;
};
/* parts holds max_running. Returns the number of parts; 0 only when nothing runs. */
size_t scheduler_plan(const struct scheduler *s, struct step_part *parts);

/* Takes q out, running or waiting, and gives its state back. */
void scheduler_remove(struct scheduler *s, struct sequence *q);

#endif
