/* engine.c - the engine thread: take what is new, drop what is cancelled, admit, run one step, deal.
 *
 * Place:  runtime. The queue's rules are in scheduler.c, one request's life in sequence.c, what other
 *         threads may touch in mailbox.c.
 * Ends:   whatever ends a sequence goes through end_sequence(), the one place that gives its state
 *         back and sends its last event; so no way out can forget a slot.
 * Faults: a step that is refused as a whole is run again part by part, so that only the part at fault
 *         ends; after any other failed step the states are unknown, and all its parts end. */
#include "runtime/engine.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/size.h"
#include "runtime/mailbox.h"
#include "runtime/sampler.h"
#include "runtime/scheduler.h"
#include "runtime/sequence.h"

struct engine {
    struct model *model;
    struct engine_options options;
    struct sequence_rules rules;
    int32_t *eos_ids; /* owned; rules points to it */
    struct mailbox *mailbox;
    pthread_t thread;
    bool is_started;

    /* engine thread only */
    struct scheduler scheduler;
    struct sampler *sampler;
    struct step_part *parts;  /* [max_running] */
    struct model_span *spans; /* [max_running] */
    struct engine_stats stats;
    uint64_t n_decode_steps, logged_ns, logged_tokens;
};

/* ---- making and ending ---- */

static enum status check_options(const struct engine *e, struct error *err)
{
    const struct engine_options *o = &e->options;
    const struct model_options *m = model_get_options(e->model);
    size_t chunk = o->chunk_tokens > 0 ? o->chunk_tokens : e->rules.context_length;
    size_t rows;

    if (o->max_running == 0 || o->max_running > STEP_SPANS_MAX ||
        o->max_running > m->out_rows_max || o->max_running > e->scheduler.max_running) {
        return error_set(err, ERR_USAGE,
                         "%zu running requests do not fit: the model has %zu live slots and %zu "
                         "logit rows, and the limit is %d",
                         o->max_running, e->scheduler.max_running, m->out_rows_max, STEP_SPANS_MAX);
    }
    if (o->max_queued > ENGINE_QUEUE_MAX) {
        return error_set(err, ERR_USAGE, "a queue of %zu requests is too long, the limit is %d",
                         o->max_queued, ENGINE_QUEUE_MAX);
    }
    if (!size_add(&rows, chunk, o->max_running) || rows > m->rows_max) {
        return error_set(
            err, ERR_USAGE,
            "a chunk of %zu tokens and %zu running requests do not fit the %zu rows of "
            "a step",
            chunk, o->max_running, m->rows_max);
    }
    if (e->rules.context_length < 2) {
        return error_set(err, ERR_USAGE, "a context of %zu tokens is too short",
                         e->rules.context_length);
    }
    return OK;
}

/* The longest sequence: what was asked for, but no more than the store can hold. */
static size_t effective_context(const struct engine_options *o, struct state_store *store)
{
    size_t context = size_min(o->context_length, state_store_budget(store)->context_max);
    size_t n_pages = state_store_counts(store).pages_total;

    /* No pages at all: a model without attention, which has no such bound. */
    return n_pages > 0 ? size_min(context, n_pages * KV_PAGE_TOKENS) : context;
}

static enum status allocate(struct engine *e, const int32_t *eos_ids, size_t n_eos_ids,
                            struct error *err)
{
    size_t n = e->options.max_running;
    enum status rc;

    e->eos_ids = calloc(n_eos_ids + 1, sizeof *e->eos_ids);
    e->parts = calloc(n, sizeof *e->parts);
    e->spans = calloc(n, sizeof *e->spans);
    if (!e->eos_ids || !e->parts || !e->spans) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the engine");
    }
    for (size_t i = 0; i < n_eos_ids; i++) {
        e->eos_ids[i] = eos_ids[i];
    }
    e->rules.eos_ids = e->eos_ids;
    e->rules.n_eos_ids = n_eos_ids;
    e->scheduler.max_running = n;
    rc = scheduler_init(&e->scheduler, err);
    if (rc == OK) {
        rc = sampler_new(&e->sampler, e->rules.n_choosable, err);
    }
    if (rc == OK) {
        rc = mailbox_new(&e->mailbox, n + e->options.max_queued, err);
    }
    return rc;
}

enum status engine_new(struct engine **out, struct model *m, const struct tokenizer *t,
                       const int32_t *eos_ids, size_t n_eos_ids, const struct engine_options *o,
                       struct error *err)
{
    struct engine *e = calloc(1, sizeof *e);
    enum status rc;

    *out = NULL;
    if (!e) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the engine");
    }
    e->model = m;
    e->options = *o;
    e->scheduler.store = model_states(m);
    e->scheduler.max_running = state_store_budget(e->scheduler.store)->n_live;
    e->rules.tokenizer = t;
    e->rules.n_vocab = model_get_config(m)->vocab_size;
    e->rules.n_choosable = size_min(e->rules.n_vocab, tokenizer_vocab_size(t));
    e->rules.context_length = effective_context(o, e->scheduler.store);
    rc = check_options(e, err);
    if (rc == OK) {
        rc = allocate(e, eos_ids, n_eos_ids, err);
    }
    if (rc != OK) {
        engine_free(e);
        return rc;
    }
    e->scheduler.chunk_tokens = o->chunk_tokens;
    e->scheduler.prefill_tokens_max =
        size_min(o->max_prefill_tokens, model_get_options(m)->rows_max - o->max_running);
    *out = e;
    return OK;
}

static void *engine_main(void *arg);
static void end_all(struct engine *e);

enum status engine_start(struct engine *e, struct error *err)
{
    int rc = pthread_create(&e->thread, NULL, engine_main, e);

    if (rc != 0) {
        return error_set(err, ERR_IO, "cannot start the engine thread: %s", strerror(rc));
    }
    e->is_started = true;
    return OK;
}

void engine_free(struct engine *e)
{
    if (!e) {
        return;
    }
    if (e->mailbox) { /* else it is half built */
        mailbox_stop(e->mailbox);
        if (e->is_started) {
            pthread_join(e->thread, NULL);
        } else {
            end_all(e);
        }
        scheduler_release(&e->scheduler);
    } else {
        free(e->scheduler.running);
    }
    mailbox_free(e->mailbox);
    sampler_free(e->sampler);
    free(e->eos_ids);
    free(e->parts);
    free(e->spans);
    free(e);
}

/* ---- other threads ---- */

enum status engine_submit(struct engine *e, struct engine_port *p, const struct engine_request *r,
                          uint64_t *id, struct error *err)
{
    struct sequence *q;
    enum status rc;

    if (port_is_full(p)) {
        return error_set(err, ERR_BUSY, "%d events wait to be read from this port",
                         PORT_EVENTS_MAX);
    }
    rc = sequence_new(&q, &e->rules, p, r, err);
    if (rc != OK) {
        return rc;
    }
    rc = mailbox_submit(e->mailbox, q, e->options.random_seed, id, err);
    if (rc != OK) {
        sequence_free(q);
    }
    return rc;
}

void engine_cancel(struct engine *e, uint64_t id)
{
    mailbox_cancel(e->mailbox, id);
}

void engine_get_stats(const struct engine *e, struct engine_stats *out)
{
    mailbox_get_stats(e->mailbox, out);
}

/* ---- the engine thread ---- */

static void publish_stats(struct engine *e)
{
    e->stats.n_running = e->scheduler.n_running;
    e->stats.n_queued = e->scheduler.n_waiting;
    e->stats.state = state_store_counts(e->scheduler.store);
    mailbox_set_stats(e->mailbox, &e->stats);
}

/* The last of q, which the scheduler no longer holds: figures first, so that whoever reads the last
 * event finds them up to date. */
static void send_last(struct engine *e, struct sequence *q, enum finish_reason reason,
                      const struct error *error)
{
    if (error) {
        e->stats.n_failed++;
        log_warning(e->options.log, "request %llu failed: %s", (unsigned long long)q->id,
                    error->text);
    } else if (reason == FINISH_ABORT) {
        e->stats.n_aborted++;
    } else {
        e->stats.n_finished++;
    }
    publish_stats(e);
    sequence_end(q, reason, error);
    mailbox_retire(e->mailbox, q);
}

static void end_sequence(struct engine *e, struct sequence *q, enum finish_reason reason,
                         const struct error *error)
{
    scheduler_remove(&e->scheduler, q);
    send_last(e, q, reason, error);
}

static void push_all(struct engine *e, struct sequence *list)
{
    while (list) {
        struct sequence *next = list->next;

        scheduler_push(&e->scheduler, list);
        list = next;
    }
}

static void end_all(struct engine *e)
{
    struct sequence *list;

    mailbox_take(e->mailbox, false, &list);
    push_all(e, list);
    while (e->scheduler.n_running > 0) {
        end_sequence(e, e->scheduler.running[0], FINISH_ABORT, NULL);
    }
    while (e->scheduler.waiting) {
        end_sequence(e, e->scheduler.waiting, FINISH_ABORT, NULL);
    }
}

static void drop_cancelled(struct engine *e)
{
    for (size_t i = e->scheduler.n_running; i-- > 0;) {
        if (sequence_is_cancelled(e->scheduler.running[i])) {
            end_sequence(e, e->scheduler.running[i], FINISH_ABORT, NULL);
        }
    }
    for (struct sequence *q = e->scheduler.waiting, *next; q; q = next) {
        next = q->next;
        if (sequence_is_cancelled(q)) {
            end_sequence(e, q, FINISH_ABORT, NULL);
        }
    }
}

static enum status start_history(struct engine *e, struct sequence *q, struct error *err)
{
    if (!sampling_has_penalties(&q->sampling)) {
        return OK;
    }
    if (!token_history_init(&q->history, e->rules.n_choosable)) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the token counts for penalties");
    }
    token_history_add_prompt(&q->history, q->prompt, q->n_prompt);
    return OK;
}

static void admit(struct engine *e)
{
    for (;;) {
        struct error err = {0};
        struct sequence *q;
        enum status rc = scheduler_admit(&e->scheduler, &q, &err);

        if (!q) {
            return;
        }
        if (rc != OK) {
            send_last(e, q, FINISH_ERROR, &err);
            continue;
        }
        e->stats.prompt_tokens += q->n_prompt;
        if (start_history(e, q, &err) != OK) {
            end_sequence(e, q, FINISH_ERROR, &err);
        }
    }
}

/* The end of a sequence that says of itself why it ends; an error can only be a lack of memory. */
static void end_by_itself(struct engine *e, struct sequence *q, enum finish_reason reason)
{
    struct error err;

    if (reason == FINISH_ERROR) {
        error_set(&err, ERR_NO_MEMORY, "cannot allocate a token of an answer");
    }
    end_sequence(e, q, reason, reason == FINISH_ERROR ? &err : NULL);
}

/* The choice from what the step gave of logits row `row`; rows that it did not give are fetched, if they turn
 * out to be needed. */
static enum status sample_row(struct engine *e, struct sampler_input *in, double u,
                              struct model_step_result *step, size_t row, struct sample *out,
                              struct error *err)
{
    if (sampler_choose_top(e->sampler, in, &step->top[row], u, out)) {
        return OK;
    }
    if (!step->logits) {
        step->logits = model_logits(e->model);
    }
    in->logits = step->logits + row * e->rules.n_vocab;
    return sampler_choose(e->sampler, in, u, out, err);
}

/* Chooses the next token of q from the step's logits row. */
static void choose(struct engine *e, struct sequence *q, struct model_step_result *step, size_t row)
{
    struct sampler_input in = {.sampling = &q->sampling, .history = &q->history};
    struct sample sample;
    struct error err = {0};
    enum finish_reason reason = q->n_output == 0 ? sequence_start(q) : FINISH_NONE;

    if (reason != FINISH_NONE) {
        end_by_itself(e, q, reason);
        return;
    }
    in.n_banned = sequence_banned(q, &in.banned);
    double u = sampler_uniform(q->seed, q->n_output);
    if (sample_row(e, &in, u, step, row, &sample, &err) != OK) {
        end_sequence(e, q, FINISH_ERROR, &err);
        return;
    }
    e->stats.output_tokens++;
    reason = sequence_take(q, &sample);
    if (reason != FINISH_NONE) {
        end_by_itself(e, q, reason);
    }
}

/* What a step did for one part. */
static void deal(struct engine *e, const struct step_part *part, int bad_layer,
                 struct model_step_result *step, size_t row)
{
    struct sequence *q = part->sequence;

    if (bad_layer >= 0) {
        struct error err;
        size_t n_layers = model_get_config(e->model)->n_layers;

        if ((size_t)bad_layer < n_layers) {
            error_set(&err, ERR_INTERNAL, "layer %d of %zu computed a value that is not finite",
                      bad_layer, n_layers);
        } else {
            error_set(&err, ERR_INTERNAL, "the output head computed a value that is not finite");
        }
        end_sequence(e, q, FINISH_ERROR, &err);
        return;
    }
    if (sequence_is_prefilling(q)) {
        q->n_fed += part->n_tokens;
    }
    if (part->wants_logits) {
        choose(e, q, step, row);
    }
}

static enum status run_parts(struct engine *e, const struct step_part *parts, size_t n,
                             struct error *err)
{
    struct model_step_options o = {.no_logits = true};
    struct model_step_result result = {0};
    enum status rc;

    for (size_t i = 0; i < n; i++) {
        e->spans[i] = (struct model_span){.seq = parts[i].sequence->state,
                                          .tokens = parts[i].tokens,
                                          .n_tokens = parts[i].n_tokens,
                                          .n_logits = parts[i].wants_logits ? 1 : 0};
        o.no_logits = o.no_logits &&
                      (!parts[i].wants_logits || sampler_may_use_top(&parts[i].sequence->sampling));
    }
    rc = model_step(e->model, e->spans, n, &o, &result, err);
    if (rc != OK) {
        return rc;
    }
    for (size_t i = 0, row = 0; i < n; i++) {
        deal(e, &parts[i], result.bad_layer[i], &result, row);
        row += parts[i].wants_logits;
    }
    return OK;
}

/* Was the step refused before anything was computed? */
static bool is_refusal(enum status rc)
{
    return rc == ERR_BAD_REQUEST || rc == ERR_LIMIT || rc == ERR_BUSY;
}

static void run_or_end(struct engine *e, const struct step_part *parts, size_t n)
{
    struct error err = {0};
    enum status rc = run_parts(e, parts, n, &err);

    if (rc == OK) {
        return;
    }
    if (n > 1 && is_refusal(rc)) {
        for (size_t i = 0; i < n; i++) {
            run_or_end(e, &parts[i], 1);
        }
        return;
    }
    e->stats.device_failed |= rc == ERR_DEVICE;
    for (size_t i = 0; i < n; i++) {
        end_sequence(e, parts[i].sequence, FINISH_ERROR, &err);
    }
}

static void log_progress(struct engine *e)
{
    uint64_t now = clock_now_ns();
    uint64_t tokens = e->stats.output_tokens;
    double seconds = (double)(now - e->logged_ns) * 1e-9;
    struct state_counts c = state_store_counts(e->scheduler.store);

    log_info(e->options.log,
             "decode: %zu running, %zu waiting, %.1f tok/s, kv pages %zu of %zu, slots %zu",
             e->scheduler.n_running, e->scheduler.n_waiting,
             seconds > 0 ? (double)(tokens - e->logged_tokens) / seconds : 0.0, c.pages_used,
             c.pages_total, c.live_used);
    e->logged_ns = now;
    e->logged_tokens = tokens;
}

static bool has_prefill(const struct step_part *parts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (sequence_is_prefilling(parts[i].sequence)) {
            return true;
        }
    }
    return false;
}

static void run_step(struct engine *e)
{
    size_t n = scheduler_plan(&e->scheduler, e->parts);
    size_t interval = e->options.decode_log_interval;

    if (n == 0) {
        return;
    }
    bool is_prefill = has_prefill(e->parts, n);
    e->stats.step_in_flight = true;
    e->stats.step_started_ns = clock_now_ns();
    publish_stats(e);

    run_or_end(e, e->parts, n);

    e->stats.step_in_flight = false;
    e->stats.last_step_ns = clock_now_ns();
    e->stats.steps++;
    *(is_prefill ? &e->stats.prefill_s : &e->stats.decode_s) +=
        (double)(e->stats.last_step_ns - e->stats.step_started_ns) * 1e-9;
    publish_stats(e);
    if (!is_prefill && interval > 0 && ++e->n_decode_steps % interval == 0) {
        log_progress(e);
    }
}

static void *engine_main(void *arg)
{
    struct engine *e = arg;
    struct sequence *list;

    e->logged_ns = clock_now_ns();
    while (mailbox_take(e->mailbox, e->scheduler.n_running + e->scheduler.n_waiting == 0, &list)) {
        push_all(e, list);
        drop_cancelled(e);
        admit(e);
        run_step(e);
    }
    push_all(e, list); /* what came with the wish to stop */
    end_all(e);
    return NULL;
}
