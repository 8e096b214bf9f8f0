/* scheduler.c - see scheduler.h. */
#include "runtime/scheduler.h"

#include <assert.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/size.h"

enum status scheduler_init(struct scheduler *s, struct error *err)
{
    s->running = calloc(s->max_running, sizeof *s->running);
    if (!s->running) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a table of %zu running requests",
                         s->max_running);
    }
    return OK;
}

void scheduler_release(struct scheduler *s)
{
    assert(s->n_running == 0 && s->n_waiting == 0);
    free(s->running);
    s->running = NULL;
}

void scheduler_push(struct scheduler *s, struct sequence *q)
{
    q->next = NULL;
    if (s->waiting_last) {
        s->waiting_last->next = q;
    } else {
        s->waiting = q;
    }
    s->waiting_last = q;
    s->n_waiting++;
}

static void unlink_waiting(struct scheduler *s, struct sequence *q)
{
    struct sequence *before = NULL;

    for (struct sequence *at = s->waiting; at != q; at = at->next) {
        assert(at);
        before = at;
    }
    if (before) {
        before->next = q->next;
    } else {
        s->waiting = q->next;
    }
    if (s->waiting_last == q) {
        s->waiting_last = before;
    }
    q->next = NULL;
    s->n_waiting--;
}

static enum status take_state(struct scheduler *s, struct sequence *q, struct error *err)
{
    enum status rc = state_new(&q->state, s->store, err);

    if (rc == OK) {
        rc = state_reserve(s->store, q->state, sequence_tokens_max(q), err);
        if (rc != OK) {
            state_free(s->store, q->state);
            q->state = NULL;
        }
    }
    return rc;
}

enum status scheduler_admit(struct scheduler *s, struct sequence **out, struct error *err)
{
    struct sequence *q = s->waiting;

    *out = NULL;
    if (!q || s->n_running == s->max_running) {
        return OK;
    }
    enum status rc = take_state(s, q, err);
    if (rc == ERR_BUSY && s->n_running > 0) {
        return OK; /* a running sequence will give its pages back */
    }
    unlink_waiting(s, q);
    *out = q;
    if (rc != OK) { /* also ERR_BUSY with nothing running: waiting would never end */
        return rc;
    }
    q->admitted_ns = clock_now_ns();
    s->running[s->n_running++] = q;
    return OK;
}

static size_t next_chunk(const struct scheduler *s, const struct sequence *q)
{
    size_t left = q->n_prompt - q->n_fed;

    return s->chunk_tokens == 0 ? left
                                : size_min(left, s->chunk_tokens - q->n_fed % s->chunk_tokens);
}

size_t scheduler_plan(const struct scheduler *s, struct step_part *parts)
{
    size_t n = 0;
    size_t n_prefill = 0;
    bool is_full = false;

    for (size_t i = 0; i < s->n_running; i++) {
        struct sequence *q = s->running[i];

        if (!sequence_is_prefilling(q)) {
            parts[n++] = (struct step_part){q, &q->last_token, 1, true};
            continue;
        }
        size_t chunk = next_chunk(s, q);
        if (is_full || (n_prefill > 0 && n_prefill + chunk > s->prefill_tokens_max)) {
            is_full = true; /* younger prompts do not overtake */
            continue;
        }
        n_prefill += chunk;
        parts[n++] =
            (struct step_part){q, q->prompt + q->n_fed, chunk, q->n_fed + chunk == q->n_prompt};
    }
    return n;
}

void scheduler_remove(struct scheduler *s, struct sequence *q)
{
    size_t n = 0;
    bool was_running = false;

    for (size_t i = 0; i < s->n_running; i++) {
        if (s->running[i] == q) {
            was_running = true;
        } else {
            s->running[n++] = s->running[i];
        }
    }
    s->n_running = n;
    if (!was_running) {
        unlink_waiting(s, q);
    }
    state_free(s->store, q->state);
    q->state = NULL;
}
