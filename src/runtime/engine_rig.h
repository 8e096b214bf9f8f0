/* engine_rig.h - an engine over the fake model, and what its requests gave: for the engine's tests.
 *
 * Place: runtime, included by engine_test.c and engine_faults_test.c. Nothing waits for a time: what must
 *        happen "during" a step is done by the fake model's hook on the engine's own thread. */
#ifndef RUNTIME_ENGINE_RIG_H
#define RUNTIME_ENGINE_RIG_H

#include <stdio.h>

#include "runtime/engine.h"
#include "runtime/fake_model.h"

enum { TEXT_MAX = 4096, RESULTS_MAX = 128, WAIT_MS = 60000 };

struct rig {
    struct model *model;
    struct engine *engine;
    struct engine_port *port;
};

struct setup {
    size_t max_running, max_queued, chunk_tokens, max_prefill_tokens, context_length, n_pages;
    bool is_scripted, is_endless;
};

static const struct setup plain __attribute__((unused)) = {4, 16, 8, 64, 200, 64, false, false};
static const struct setup scripted __attribute__((unused)) = {4, 16, 8, 64, 200, 64, true, false};

static inline void rig_open(struct rig *r, const struct setup *s)
{
    const int32_t eos[] = {FAKE_EOS};
    struct engine_options o = {.max_running = s->max_running,
                               .max_queued = s->max_queued,
                               .chunk_tokens = s->chunk_tokens,
                               .max_prefill_tokens = s->max_prefill_tokens,
                               .context_length = s->context_length,
                               .random_seed = 77};
    struct error err;

    r->model = calloc(1, sizeof *r->model);
    assert_non_null(r->model);
    fake_model_init(r->model, s->max_running, s->n_pages);
    r->model->is_scripted = s->is_scripted;
    r->model->is_endless = s->is_endless;
    assert_int_equal(engine_new(&r->engine, r->model, NULL, eos, 1, &o, &err), OK);
    assert_int_equal(engine_port_new(&r->port, r->engine, &err), OK);
}

static inline void rig_start(struct rig *r)
{
    assert_int_equal(engine_start(r->engine, NULL), OK);
}

static inline void check_all_given_back(const struct rig *r)
{
    assert_int_equal(r->model->store.counts.live_used, 0);
    assert_int_equal(r->model->store.counts.pages_used, 0);
}

static inline void rig_close(struct rig *r)
{
    engine_free(r->engine);
    engine_port_free(r->port);
    check_all_given_back(r);
    free(r->model->log);
    free(r->model);
}

static inline void record_spans(struct rig *r)
{
    r->model->log_max = 100000;
    r->model->log = calloc(r->model->log_max, sizeof *r->model->log);
    assert_non_null(r->model->log);
}

/* ---- requests and results ---- */

static inline struct engine_request request_of(const int32_t *prompt, size_t n, size_t max_tokens)
{
    struct engine_request r = {.prompt = prompt,
                               .n_prompt = n,
                               .sampling = sampling_default(),
                               .max_tokens = max_tokens,
                               .skip_special = true};
    r.sampling.temperature = 0;
    return r;
}

static inline uint64_t submit(struct rig *r, const struct engine_request *q)
{
    uint64_t id = 0;
    struct error err = {0};
    enum status rc = engine_submit(r->engine, r->port, q, &id, &err);

    if (rc != OK) {
        fail_msg("submit: %s", err.text);
    }
    return id;
}

struct result {
    uint64_t request;
    bool is_started, is_done, is_error;
    char text[TEXT_MAX];
    size_t text_len;
    int32_t tokens[TEXT_MAX];
    size_t n_tokens;
    struct engine_event last; /* without its text */
};

struct results {
    struct result *of; /* [RESULTS_MAX] in the order in which requests ended */
    size_t n_done;
    struct result *open; /* [RESULTS_MAX] */
    size_t n_open;
};

static inline void results_init(struct results *rs)
{
    *rs = (struct results){.of = calloc(RESULTS_MAX, sizeof *rs->of),
                           .open = calloc(RESULTS_MAX, sizeof *rs->open)};
    assert_non_null(rs->of);
    assert_non_null(rs->open);
}

static inline void results_release(struct results *rs)
{
    free(rs->of);
    free(rs->open);
}

static inline struct result *find_open(struct results *rs, uint64_t request)
{
    for (size_t i = 0; i < rs->n_open; i++) {
        if (rs->open[i].request == request) {
            return &rs->open[i];
        }
    }
    assert_true(rs->n_open < RESULTS_MAX);
    rs->open[rs->n_open] = (struct result){.request = request};
    return &rs->open[rs->n_open++];
}

static inline void note_event(struct results *rs, struct engine_event *e)
{
    struct result *r = find_open(rs, e->request);

    if (e->text_len > 0) {
        assert_true(r->text_len + e->text_len < TEXT_MAX);
        memcpy(r->text + r->text_len, e->text, e->text_len);
        r->text_len += e->text_len;
    }
    switch (e->kind) {
    case ENGINE_EVENT_STARTED:
        assert_false(r->is_started);
        r->is_started = true;
        break;
    case ENGINE_EVENT_TOKEN:
        assert_true(r->is_started);
        assert_non_null(e->text);
        assert_int_equal(strlen(e->text), e->text_len);
        r->tokens[r->n_tokens++] = e->token;
        break;
    case ENGINE_EVENT_DONE:
    case ENGINE_EVENT_ERROR:
        r->is_done = true;
        r->is_error = e->kind == ENGINE_EVENT_ERROR;
        r->last = *e;
        r->last.text = NULL;
        assert_true(rs->n_done < RESULTS_MAX);
        rs->of[rs->n_done++] = *r;
        *r = rs->open[--rs->n_open];
        break;
    }
    engine_event_release(e);
}

static inline void collect(struct engine_port *port, struct results *rs, size_t n_done)
{
    struct engine_event e;

    while (rs->n_done < n_done) {
        if (!engine_port_pop(port, &e)) {
            assert_true(engine_port_wait(port, WAIT_MS));
            continue;
        }
        note_event(rs, &e);
    }
}

static const struct result *result_of(const struct results *rs, uint64_t request)
{
    for (size_t i = 0; i < rs->n_done; i++) {
        if (rs->of[i].request == request) {
            return &rs->of[i];
        }
    }
    fail_msg("request %llu has no result", (unsigned long long)request);
    return NULL;
}

/* Runs one request alone on a started rig. */
static inline void run_one(struct rig *r, const struct engine_request *q, struct result *out)
{
    struct results rs;

    results_init(&rs);
    submit(r, q);
    collect(r->port, &rs, 1);
    *out = rs.of[0];
    results_release(&rs);
}

static inline void assert_same(const struct result *a, const struct result *b)
{
    assert_string_equal(a->text, b->text);
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_memory_equal(a->tokens, b->tokens, a->n_tokens * sizeof a->tokens[0]);
    assert_int_equal(a->last.reason, b->last.reason);
    assert_int_equal(a->last.n_output, b->last.n_output);
}

#endif
