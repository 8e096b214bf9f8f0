/* api_completions.c - POST /v1/completions: raw prompts, one or more, as text or token ids.
 *
 * Place: server. Control tokens in a raw prompt are recognised: whoever writes it writes the whole
 *        format. Choice i belongs to prompt i / n. */
#include <stdlib.h>
#include <string.h>

#include "server/api.h"
#include "server/generation.h"
#include "server/logprobs.h"
#include "text/detok.h"

/* --- output ------------------------------------------------------------------------------------- */

static void write_head(struct buf *out, const struct job *j)
{
    buf_append_str(out, "{\"id\":");
    json_write_string(out, j->id, strlen(j->id));
    buf_appendf(
        out, ",\"object\":\"text_completion\",\"created\":%lld,\"model\":", (long long)j->created);
    json_write_string(out, j->server->o.served_name, strlen(j->server->o.served_name));
    buf_append_str(out, ",\"choices\":[");
}

static void write_choice(struct buf *out, struct choice *c, const char *finish)
{
    buf_appendf(out, "{\"index\":%zu,\"text\":", c->index);
    json_write_string(out, buf_cstr(&c->content), c->content.len);
    logprobs_write_completion(out, c);
    if (finish) {
        buf_appendf(out, ",\"finish_reason\":\"%s\",\"matched_stop\":", finish);
        choice_write_matched_stop(out, c);
        buf_append_char(out, '}');
    } else {
        buf_append_str(out, ",\"finish_reason\":null}");
    }
    c->content.len = 0;
}

static void write_event(struct choice *c, const char *finish)
{
    struct job *j = c->job;

    buf_append(&j->events, j->prefix.data, j->prefix.len);
    write_choice(&j->events, c, finish);
    buf_append_char(&j->events, ']');
    if (j->params.continuous_usage) {
        buf_append_str(&j->events, ",\"usage\":");
        job_write_usage(&j->events, j);
    } else if (j->params.include_usage) {
        buf_append_str(&j->events, ",\"usage\":null");
    }
    buf_append_str(&j->events, "}\n\n");
    job_send_events(j);
}

static void on_started(struct choice *c)
{
    (void)c;
}

static void on_token(struct choice *c, const struct engine_event *e)
{
    const struct params *p = &c->job->params;

    if (p->sampling.want_logprobs) {
        logprobs_add_completion(c, e);
    }
    buf_append(&c->content, e->text, e->text_len);
    if (p->stream && job_token_is_due(c) && (c->content.len > 0 || p->continuous_usage)) {
        write_event(c, NULL);
    }
}

static void on_done(struct choice *c, const struct engine_event *e)
{
    buf_append(&c->content, e->text, e->text_len);
    if (c->job->params.stream) {
        write_event(c, choice_reason(c));
    }
}

static void reply_whole(struct job *j)
{
    struct buf out;

    buf_init(&out);
    write_head(&out, j);
    for (size_t i = 0; i < j->n_choices; i++) {
        struct choice *c = &j->choices[i];
        if (i > 0) {
            buf_append_char(&out, ',');
        }
        out.failed = out.failed || !buf_ok(&c->content) || !buf_ok(&c->logprobs[2]);
        write_choice(&out, c, choice_reason(c));
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

static const struct job_api completion_job_api = {
    .started = on_started,
    .token = on_token,
    .done = on_done,
    .finish = finish,
};

/* --- prompts ------------------------------------------------------------------------------------ */

struct prompts {
    struct token_ids *lists;
    size_t n;
};

static void prompts_release(struct prompts *p)
{
    for (size_t i = 0; i < p->n; i++) {
        token_ids_release(&p->lists[i]);
    }
    free(p->lists);
}

/* A list of prompts, or one prompt (a text, or a list of ids)? params.c checked the shape. */
static bool is_many(struct json_object *prompt)
{
    return json_object_is_type(prompt, json_type_array) &&
           !json_object_is_type(json_object_array_get_idx(prompt, 0), json_type_int);
}

static enum status read_prompt(struct token_ids *out, const struct server *s,
                               struct json_object *prompt, struct error *err)
{
    enum status rc;

    if (json_object_is_type(prompt, json_type_string)) {
        rc = tokenizer_encode_text(out, s->model.tokenizer, json_str(prompt), err);
    } else {
        rc = api_read_ids(out, prompt, tokenizer_vocab_size(s->model.tokenizer), "prompt", err);
    }
    if (rc == OK && out->n == 0) {
        rc = error_set_param(err, ERR_BAD_REQUEST, "prompt", "'prompt' is empty");
    }
    return rc;
}

static enum status read_prompts(struct prompts *out, const struct server *s, const struct params *p,
                                const char **code, struct error *err)
{
    bool many = is_many(p->prompt);
    size_t n = many ? json_object_array_length(p->prompt) : 1;

    if (n * p->n > CHOICES_MAX) { /* both are at most CHOICES_MAX */
        return error_set_param(err, ERR_BAD_REQUEST, "n",
                               "%zu prompts with 'n' %zu are more than %d choices", n, p->n,
                               CHOICES_MAX);
    }
    out->lists = calloc(n, sizeof *out->lists);
    if (!out->lists) {
        return error_set(err, ERR_NO_MEMORY, "out of memory for the prompts");
    }
    out->n = n;
    for (size_t i = 0; i < n; i++) {
        struct json_object *prompt = many ? json_object_array_get_idx(p->prompt, i) : p->prompt;
        enum status rc = read_prompt(&out->lists[i], s, prompt, err);
        if (rc == OK) {
            rc = job_check_context(s, p, out->lists[i].n, "prompt", err);
            *code = rc == OK ? NULL : "context_length_exceeded";
        }
        if (rc != OK) {
            return rc;
        }
    }
    return OK;
}

/* --- the request --------------------------------------------------------------------------------- */

/* echo: the answer's text starts with the prompt as the tokens spell it. */
static void echo_prompt(struct choice *c, const struct token_ids *prompt)
{
    struct detok d;

    detok_init(&d, c->job->server->model.tokenizer, c->job->params.skip_special);
    for (size_t i = 0; i < prompt->n; i++) {
        detok_push(&d, prompt->ids[i], &c->content);
    }
    detok_finish(&d, &c->content);
}

static enum status submit(struct job *j, const struct prompts *prompts, struct error *err)
{
    enum status rc = OK;

    if (j->params.stream) {
        buf_append_str(&j->prefix, "data: ");
        write_head(&j->prefix, j);
    }
    for (size_t i = 0; i < prompts->n; i++) {
        j->n_prompt += prompts->lists[i].n;
    }
    for (size_t i = 0; i < j->n_choices && rc == OK; i++) {
        const struct token_ids *prompt = &prompts->lists[i / j->params.n];
        if (j->params.echo) {
            echo_prompt(&j->choices[i], prompt);
        }
        rc = job_submit(j, i, prompt, err);
    }
    return rc;
}

static void start_job(struct conn *c, struct params *p, struct json_object *body,
                      const struct prompts *prompts)
{
    struct error err = {0};
    struct job *j = job_new(c, &completion_job_api, p, body, prompts->n * p->n);

    if (!j) {
        conn_reply_error(c, &(struct reply_error){.status = 503, .message = "out of memory"});
        return;
    }
    if (submit(j, prompts, &err) != OK) {
        job_abandon(j);
        conn_reply_failure(c, &err);
        return;
    }
    if (j->params.stream) {
        conn_stream_begin(c);
    }
}

void api_completions(struct server *s, struct conn *c)
{
    struct json_object *body = api_read_body(c);
    struct prompts prompts = {0};
    struct params p;
    struct error err = {0};
    const char *code = NULL;

    if (!body) {
        return;
    }
    if (api_read_params(&p, s, API_COMPLETIONS, body, &err) != OK) {
        json_object_put(body);
        conn_reply_failure(c, &err);
        return;
    }
    if (api_check_model(s, c, p.model)) {
        if (read_prompts(&prompts, s, &p, &code, &err) == OK) {
            start_job(c, &p, body, &prompts);
            prompts_release(&prompts);
            return;
        }
        conn_reply_error(c, &(struct reply_error){.status = reply_status_of(err.code),
                                                  .code = code,
                                                  .param = err.param,
                                                  .message = err.text});
    }
    prompts_release(&prompts);
    params_release(&p);
    json_object_put(body);
}
