/* generation.c - jobs and their choices. See generation.h. */
#include "server/generation.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/* --- the table of running choices ---------------------------------------------------------------- */

static struct choice **bucket_of(struct server *s, uint64_t id)
{
    return &s->choices[id % JOB_BUCKETS];
}

static struct choice *find_choice(struct server *s, uint64_t id)
{
    struct choice *c = *bucket_of(s, id);

    while (c && c->id != id) {
        c = c->next;
    }
    return c;
}

static void table_add(struct choice *c)
{
    struct choice **bucket = bucket_of(c->job->server, c->id);

    c->next = *bucket;
    *bucket = c;
    c->is_running = true;
    c->job->n_running++;
}

static void table_remove(struct choice *c)
{
    struct choice **at = bucket_of(c->job->server, c->id);

    while (*at != c) {
        at = &(*at)->next;
    }
    *at = c->next;
    c->is_running = false;
    c->job->n_running--;
}

/* --- life ------------------------------------------------------------------------------------- */

static void choice_release(struct choice *c)
{
    buf_release(&c->open);
    reasoning_release(&c->split);
    tool_parser_free(c->tools);
    buf_release(&c->reasoning);
    buf_release(&c->content);
    buf_release(&c->calls);
    for (size_t i = 0; i < sizeof c->logprobs / sizeof *c->logprobs; i++) {
        buf_release(&c->logprobs[i]);
    }
}

/* Frees the job; running sequences are cancelled, and their events will find nobody. */
static void job_free(struct job *j)
{
    struct server *s = j->server;

    for (size_t i = 0; i < j->n_choices; i++) {
        if (j->choices[i].is_running) {
            table_remove(&j->choices[i]);
            engine_cancel(s->model.engine, j->choices[i].id);
        }
        choice_release(&j->choices[i]);
    }
    if (j->prev) {
        j->prev->next = j->next;
    } else if (s->jobs == j) {
        s->jobs = j->next;
    }
    if (j->next) {
        j->next->prev = j->prev;
    }
    params_release(&j->params);
    json_object_put(j->body);
    buf_release(&j->prefix);
    buf_release(&j->events);
    free(j->choices);
    free(j);
}

struct job *job_new(struct conn *c, const struct job_api *api, struct params *params,
                    struct json_object *body, size_t n_choices)
{
    struct server *s = c->server;
    struct job *j = calloc(1, sizeof *j);

    if (j) {
        j->choices = calloc(n_choices, sizeof *j->choices);
    }
    if (!j || !j->choices) {
        free(j);
        params_release(params);
        json_object_put(body);
        return NULL;
    }
    j->server = s;
    j->conn = c;
    j->api = api;
    j->params = *params;
    j->body = body;
    j->created = clock_wall_s();
    j->started_ns = clock_now_ns();
    j->n_choices = n_choices;
    for (size_t i = 0; i < n_choices; i++) {
        j->choices[i].job = j;
        j->choices[i].index = i;
        j->choices[i].stop_id = -1;
        j->choices[i].stop_string = -1;
    }
    if (params->rid) {
        memcpy(j->id, params->rid, strlen(params->rid) + 1);
    } else {
        server_random_hex(s, j->id, 32);
    }
    j->next = s->jobs;
    if (j->next) {
        j->next->prev = j;
    }
    s->jobs = j;
    c->job = j;
    return j;
}

void job_abandon(struct job *j)
{
    assert(!j->conn->is_streaming);
    j->conn->job = NULL;
    job_free(j);
}

void job_cancel(struct job *j)
{
    job_free(j);
}

void job_fail(struct job *j, const struct reply_error *e)
{
    struct conn *c = j->conn;

    log_warning(j->server->o.log, "request %s failed: %s", c->request_id, e->message);
    if (c->is_streaming) {
        struct buf event;
        buf_init(&event);
        reply_write_error(&event, e);
        reply_write_event(&j->events, buf_cstr(&event), event.len);
        reply_write_event(&j->events, "[DONE]", 6);
        buf_release(&event);
        job_send_events(j);
        c->closes = true;
        conn_stream_end(c);
    } else {
        conn_reply_error(c, e);
    }
    job_free(j);
}

/* --- submitting --------------------------------------------------------------------------------- */

enum status job_check_context(const struct server *s, const struct params *p, size_t n_prompt,
                              const char *param, struct error *err)
{
    size_t limit = s->model.context_length;

    if (n_prompt >= limit) {
        return error_set_param(err, ERR_BAD_REQUEST, param,
                               "the prompt has %zu tokens and leaves no room for output: the "
                               "context length is %zu",
                               n_prompt, limit);
    }
    if (p->max_tokens > limit - n_prompt) {
        return error_set_param(err, ERR_BAD_REQUEST, param,
                               "the prompt has %zu tokens and %zu tokens of output were asked for: "
                               "together more than the context length of %zu",
                               n_prompt, p->max_tokens, limit);
    }
    return OK;
}

enum status job_submit(struct job *j, size_t i, const struct token_ids *prompt, struct error *err)
{
    const struct params *p = &j->params;
    struct choice *c = &j->choices[i];
    struct engine_request r = {
        .prompt = prompt->ids,
        .n_prompt = prompt->n,
        .sampling = p->sampling,
        .max_tokens = p->max_tokens,
        .min_tokens = p->min_tokens,
        .stop = p->stop,
        .n_stop = p->n_stop,
        .stop_ids = p->stop_ids,
        .n_stop_ids = p->n_stop_ids,
        .ignore_eos = p->ignore_eos,
        .no_stop_trim = p->no_stop_trim,
        .skip_special = p->skip_special,
    };
    enum status rc;

    r.sampling.seed += i % p->n; /* choices of one prompt differ, and do so again next time */
    rc = engine_submit(j->server->model.engine, j->server->engine_port, &r, &c->id, err);
    if (rc == OK) {
        table_add(c);
    }
    return rc;
}

/* --- writing ------------------------------------------------------------------------------------ */

void job_send_events(struct job *j)
{
    if (!buf_ok(&j->events)) {
        j->conn->out.failed = true; /* the connection is dropped when it settles */
    }
    conn_stream_write(j->conn, j->events.data, j->events.len);
    buf_clear(&j->events);
}

bool job_token_is_due(struct choice *c)
{
    size_t interval = c->job->server->o.stream_interval;

    c->n_since_event++;
    if (c->n_output > 1 && c->n_since_event < interval) {
        return false;
    }
    c->n_since_event = 0;
    return true;
}

void job_write_usage(struct buf *out, const struct job *j)
{
    size_t n_output = 0, n_cached = 0, n_reasoning = 0;

    for (size_t i = 0; i < j->n_choices; i++) {
        n_output += j->choices[i].n_output;
        n_reasoning += j->choices[i].n_reasoning;
        n_cached += i % j->params.n == 0 ? j->choices[i].n_cached : 0;
    }
    buf_appendf(out, "{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"total_tokens\":%zu",
                j->n_prompt, n_output, j->n_prompt + n_output);
    if (j->server->o.enable_cache_report && n_cached > 0) {
        buf_appendf(out, ",\"prompt_tokens_details\":{\"cached_tokens\":%zu}", n_cached);
    }
    buf_appendf(
        out, ",\"reasoning_tokens\":%zu,\"completion_tokens_details\":{\"reasoning_tokens\":%zu}}",
        n_reasoning, n_reasoning);
}

const char *choice_reason(const struct choice *c)
{
    switch (c->reason) {
    case FINISH_LENGTH:
        return "length";
    case FINISH_ABORT:
        return "abort";
    default:
        return "stop";
    }
}

void choice_write_matched_stop(struct buf *out, const struct choice *c)
{
    const struct params *p = &c->job->params;

    if (c->stop_string >= 0 && (size_t)c->stop_string < p->n_stop) {
        const struct str *s = &p->stop[c->stop_string];
        json_write_string(out, s->ptr, s->len);
    } else if (c->stop_id >= 0) {
        buf_appendf(out, "%d", (int)c->stop_id);
    } else {
        buf_append_str(out, "null");
    }
}

/* --- events ------------------------------------------------------------------------------------- */

static void on_token(struct choice *c, const struct engine_event *e)
{
    struct job *j = c->job;

    if (!j->has_token) {
        j->has_token = true;
        histogram_add(&j->server->metrics.first_token, clock_seconds_since(j->started_ns));
    }
    c->n_output++;
    j->api->token(c, e);
}

static void on_done(struct choice *c, const struct engine_event *e)
{
    struct job *j = c->job;
    struct conn *conn = j->conn;

    metrics_count_choice(&j->server->metrics, e);
    table_remove(c);
    c->n_output = e->n_output;
    c->n_cached = e->n_cached;
    c->reason = e->reason;
    c->stop_id = e->stop_id;
    c->stop_string = e->stop_string;
    j->api->done(c, e);
    if (j->n_running > 0) {
        return;
    }
    histogram_add(&j->server->metrics.whole, clock_seconds_since(j->started_ns));
    if (j->server->o.log_requests) {
        log_info(j->server->o.log, "request %s: %zu prompt and %zu output tokens, %.3f s",
                 conn->request_id, e->n_prompt, e->n_output, clock_seconds_since(j->started_ns));
    }
    j->api->finish(j);
    job_free(j);
}

static void on_error(struct choice *c, const struct engine_event *e)
{
    struct job *j = c->job;

    metrics_count_choice(&j->server->metrics, e);
    table_remove(c);
    job_fail(j, &(struct reply_error){.status = reply_status_of(e->error.code),
                                      .param = e->error.param,
                                      .message = e->error.text});
}

void generation_on_event(struct server *s, struct engine_event *e)
{
    struct choice *c = find_choice(s, e->request);

    if (c) { /* else it was cancelled */
        switch (e->kind) {
        case ENGINE_EVENT_STARTED:
            c->job->api->started(c);
            break;
        case ENGINE_EVENT_TOKEN:
            on_token(c, e);
            break;
        case ENGINE_EVENT_DONE:
            on_done(c, e);
            break;
        case ENGINE_EVENT_ERROR:
            on_error(c, e);
            break;
        }
    }
    engine_event_release(e);
}

void generation_fail_all(struct server *s, const struct reply_error *e)
{
    while (s->jobs) {
        job_fail(s->jobs, e);
    }
}

void job_end_stream(struct job *j)
{
    if (j->params.include_usage) {
        buf_append(&j->events, j->prefix.data, j->prefix.len);
        buf_append_str(&j->events, "],\"usage\":");
        job_write_usage(&j->events, j);
        buf_append_str(&j->events, "}\n\n");
    }
    reply_write_event(&j->events, "[DONE]", 6);
    job_send_events(j);
    conn_stream_end(j->conn);
}
