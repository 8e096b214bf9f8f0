/* sequence.c - see sequence.h. Everything a request can be refused for is in sequence_new. */
#include "runtime/sequence.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/size.h"

/* ---- checking and copying a request ---- */

static enum status check_prompt(const struct sequence_rules *rules, const struct engine_request *r,
                                struct error *err)
{
    if (r->n_prompt == 0) {
        return error_set_param(err, ERR_BAD_REQUEST, "prompt", "the prompt is empty");
    }
    if (r->n_prompt >= rules->context_length) {
        return error_set_param(
            err, ERR_BAD_REQUEST, "prompt",
            "the prompt has %zu tokens, but the context of %zu tokens leaves room "
            "for at most %zu and one generated token",
            r->n_prompt, rules->context_length, rules->context_length - 1);
    }
    for (size_t i = 0; i < r->n_prompt; i++) {
        if (r->prompt[i] < 0 || (size_t)r->prompt[i] >= rules->n_vocab) {
            return error_set_param(err, ERR_BAD_REQUEST, "prompt",
                                   "token %d at place %zu of the prompt is outside the vocabulary "
                                   "of %zu",
                                   r->prompt[i], i, rules->n_vocab);
        }
    }
    return OK;
}

static enum status check_request(const struct sequence_rules *rules, const struct engine_request *r,
                                 struct error *err)
{
    enum status rc = check_prompt(rules, r, err);

    if (rc == OK) {
        rc = sampling_check(&r->sampling, rules->n_choosable, err);
    }
    if (rc != OK) {
        return rc;
    }
    if (r->max_tokens > 0 && r->min_tokens > r->max_tokens) {
        return error_set_param(err, ERR_BAD_REQUEST, "min_tokens",
                               "min_tokens (%zu) is larger than max_tokens (%zu)", r->min_tokens,
                               r->max_tokens);
    }
    if (r->n_stop_ids > STOP_IDS_MAX) {
        return error_set_param(err, ERR_BAD_REQUEST, "stop_token_ids",
                               "stop_token_ids has %zu ids, at most %d are allowed", r->n_stop_ids,
                               STOP_IDS_MAX);
    }
    for (size_t i = 0; i < r->n_stop_ids; i++) {
        if (r->stop_ids[i] < 0 || (size_t)r->stop_ids[i] >= rules->n_vocab) {
            return error_set_param(err, ERR_BAD_REQUEST, "stop_token_ids",
                                   "stop token %d is outside the vocabulary of %zu", r->stop_ids[i],
                                   rules->n_vocab);
        }
    }
    return OK;
}

static void *copy_array(const void *src, size_t n, size_t each)
{
    size_t n_bytes;
    void *out;

    if (!size_mul(&n_bytes, n, each)) {
        return NULL;
    }
    out = malloc(n_bytes + 1); /* never a NULL for zero bytes */
    if (out && n_bytes > 0) {
        memcpy(out, src, n_bytes);
    }
    return out;
}

static bool copy_end_ids(struct sequence *q, const struct sequence_rules *rules,
                         const struct engine_request *r)
{
    size_t n_eos = r->ignore_eos ? 0 : rules->n_eos_ids;

    q->end_ids = malloc((n_eos + r->n_stop_ids + 1) * sizeof *q->end_ids);
    if (!q->end_ids) {
        return false;
    }
    for (size_t i = 0; i < n_eos; i++) {
        q->end_ids[q->n_end_ids++] = rules->eos_ids[i];
    }
    for (size_t i = 0; i < r->n_stop_ids; i++) {
        q->end_ids[q->n_end_ids++] = r->stop_ids[i];
    }
    return true;
}

static bool copy_request(struct sequence *q, const struct sequence_rules *rules,
                         const struct engine_request *r)
{
    size_t room = rules->context_length - r->n_prompt;
    struct logit_bias *bias = copy_array(r->sampling.bias, r->sampling.n_bias, sizeof *bias);

    q->prompt = copy_array(r->prompt, r->n_prompt, sizeof *q->prompt);
    q->n_prompt = r->n_prompt;
    q->sampling = r->sampling;
    q->sampling.bias = bias;
    q->max_tokens = r->max_tokens > 0 ? size_min(r->max_tokens, room) : room;
    q->min_tokens = size_min(r->min_tokens, q->max_tokens);
    q->last_event = calloc(1, sizeof *q->last_event);
    return q->prompt && bias && q->last_event && copy_end_ids(q, rules, r);
}

enum status sequence_new(struct sequence **out, const struct sequence_rules *rules,
                         struct engine_port *port, const struct engine_request *r,
                         struct error *err)
{
    enum status rc = check_request(rules, r, err);
    struct sequence *q;

    *out = NULL;
    if (rc != OK) {
        return rc;
    }
    q = calloc(1, sizeof *q);
    if (!q) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a request");
    }
    atomic_init(&q->is_cancelled, false);
    q->stop_id = -1;
    detok_init(&q->detok, rules->tokenizer, r->skip_special);
    buf_init(&q->detok_text);
    buf_init(&q->out_text);
    rc = stop_init(&q->stop, r->stop, r->n_stop, r->no_stop_trim, err);
    if (rc == OK && !copy_request(q, rules, r)) {
        rc = error_set(err, ERR_NO_MEMORY, "cannot allocate a request of %zu tokens", r->n_prompt);
    }
    if (rc != OK) {
        sequence_free(q);
        return rc;
    }
    q->port = port_ref(port);
    q->submitted_ns = clock_now_ns();
    *out = q;
    return OK;
}

void sequence_free(struct sequence *q)
{
    if (!q) {
        return;
    }
    assert(!q->state);
    token_history_release(&q->history);
    stop_release(&q->stop);
    buf_release(&q->detok_text);
    buf_release(&q->out_text);
    free(q->prompt);
    free((void *)q->sampling.bias);
    free(q->end_ids);
    free(q->last_event);
    port_unref(q->port);
    free(q);
}

size_t sequence_tokens_max(const struct sequence *q)
{
    return q->n_prompt + q->max_tokens - 1;
}

bool sequence_is_cancelled(struct sequence *q)
{
    return atomic_load(&q->is_cancelled) || port_is_closed(q->port);
}

size_t sequence_banned(const struct sequence *q, const int32_t **ids)
{
    *ids = q->end_ids;
    return q->n_output < q->min_tokens ? q->n_end_ids : 0;
}

/* ---- events ---- */

static enum finish_reason send(struct sequence *q, struct engine_event *event)
{
    enum status rc = port_push(q->port, event);

    return rc == OK ? FINISH_NONE : rc == ERR_NO_MEMORY ? FINISH_ERROR : FINISH_ABORT;
}

enum finish_reason sequence_start(struct sequence *q)
{
    struct engine_event event = {
        .kind = ENGINE_EVENT_STARTED, .request = q->id, .n_prompt = q->n_prompt};

    return send(q, &event);
}

static bool ends_with(const struct sequence *q, int32_t id)
{
    for (size_t i = 0; i < q->n_end_ids; i++) {
        if (q->end_ids[i] == id) {
            return true;
        }
    }
    return false;
}

enum finish_reason sequence_take(struct sequence *q, const struct sample *sample)
{
    q->n_output++;
    q->last_token = sample->id;
    if (q->n_output == 1) {
        q->first_token_ns = clock_now_ns();
    }
    if (ends_with(q, sample->id)) {
        q->stop_id = sample->id;
        return FINISH_STOP;
    }
    if (q->history.seen) {
        token_history_add_output(&q->history, sample->id);
    }
    buf_clear(&q->detok_text);
    detok_push(&q->detok, sample->id, &q->detok_text);
    bool is_stopped =
        stop_push(&q->stop, (struct str){q->detok_text.data, q->detok_text.len}, &q->out_text);

    struct engine_event event = {.kind = ENGINE_EVENT_TOKEN,
                                 .request = q->id,
                                 .token = sample->id,
                                 .logprob = sample->logprob,
                                 .n_top = sample->n_top,
                                 .text_len = q->out_text.len};
    memcpy(event.top, sample->top, sample->n_top * sizeof event.top[0]);
    event.text = buf_take(&q->out_text);
    if (!event.text || !buf_ok(&q->detok_text)) { /* out of memory: better no answer than a gap */
        engine_event_release(&event);
        return FINISH_ERROR;
    }
    enum finish_reason unsent = send(q, &event);
    if (unsent != FINISH_NONE) {
        return unsent;
    }
    if (is_stopped) {
        return FINISH_STOP;
    }
    return q->n_output >= q->max_tokens ? FINISH_LENGTH : FINISH_NONE;
}

/* The text that was held back. False: there is no memory for it. */
static bool take_rest(struct sequence *q, struct engine_event *event)
{
    buf_clear(&q->detok_text);
    detok_finish(&q->detok, &q->detok_text);
    stop_push(&q->stop, (struct str){q->detok_text.data, q->detok_text.len}, &q->out_text);
    stop_finish(&q->stop, &q->out_text);
    bool is_whole = buf_ok(&q->detok_text);
    event->text_len = q->out_text.len;
    event->text = buf_take(&q->out_text);
    if (!is_whole || !event->text) {
        engine_event_release(event);
        return false;
    }
    return true;
}

static double seconds_between(uint64_t from_ns, uint64_t to_ns)
{
    return from_ns != 0 && to_ns > from_ns ? (double)(to_ns - from_ns) * 1e-9 : 0.0;
}

void sequence_end(struct sequence *q, enum finish_reason reason, const struct error *error)
{
    struct port_event *node = q->last_event;
    struct engine_event *event = &node->event;
    uint64_t now = clock_now_ns();

    assert(node);
    q->last_event = NULL;
    event->request = q->id;
    event->stop_id = q->stop_id;
    event->stop_string = q->stop.n_strings > 0 ? q->stop.matched : -1;
    event->n_prompt = q->n_prompt;
    event->n_output = q->n_output;
    event->queue_s = seconds_between(q->submitted_ns, q->admitted_ns ? q->admitted_ns : now);
    event->prefill_s = seconds_between(q->admitted_ns, q->first_token_ns ? q->first_token_ns : now);
    event->decode_s = seconds_between(q->first_token_ns, now);
    event->kind = ENGINE_EVENT_DONE;
    event->reason = reason;
    if (error) {
        event->error = *error;
    } else if (!take_rest(q, event)) {
        error_set(&event->error, ERR_NO_MEMORY, "cannot allocate the end of an answer");
        error = &event->error;
    }
    if (error) {
        event->kind = ENGINE_EVENT_ERROR;
        event->reason = FINISH_ERROR;
    }
    port_push_last(q->port, node);
}
