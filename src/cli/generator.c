/* generator.c - see generator.h. */
#include "cli/generator.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "text/reasoning.h"

enum { EVENT_WAIT_MS = 50 };

/* ---- opening and closing -------------------------------------------------------------------- */

static enum status start_engine(struct generator *g, const struct log *log, struct error *err)
{
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) {
        return error_set(err, ERR_IO, "cannot draw a random seed");
    }
    const struct engine_options o = {
        .max_running = g->setup.max_running,
        .max_queued = 1,
        .chunk_tokens = g->setup.chunk_tokens,
        .max_prefill_tokens = g->setup.max_prefill_tokens,
        .context_length = g->setup.context_length,
        .random_seed = seed,
        .log = log,
    };
    enum status rc = engine_new(&g->engine, g->setup.model, g->setup.tokenizer, g->setup.eos_ids,
                                g->setup.n_eos_ids, &o, err);
    if (rc == OK) {
        rc = engine_start(g->engine, err);
    }
    return rc == OK ? engine_port_new(&g->port, g->engine, err) : rc;
}

enum status generator_open(struct generator *g, const struct model_flags *f,
                           const struct generator_options *options, const struct log *log,
                           struct error *err)
{
    const struct model_setup_options o = {.want_tokenizer = true,
                                          .want_template = options->want_template,
                                          .max_running = 1,
                                          .quiet = !options->verbose};
    *g = (struct generator){0};
    enum status rc = model_setup_open(&g->setup, f, &o, log, err);
    if (rc == OK) {
        rc = start_engine(g, log, err);
    }
    if (rc != OK) {
        generator_close(g);
    }
    return rc;
}

void generator_close(struct generator *g)
{
    engine_port_free(g->port);
    engine_free(g->engine);
    model_setup_close(&g->setup);
    *g = (struct generator){0};
}

void generator_result_release(struct generator_result *r)
{
    buf_release(&r->thinking);
    buf_release(&r->content);
    *r = (struct generator_result){0};
}

/* ---- the prompt ----------------------------------------------------------------------------- */

static enum status make_prompt(struct token_ids *ids, bool *starts_inside,
                               const struct generator *g, const struct generator_request *r,
                               struct error *err)
{
    *starts_inside = false;
    if (!r->messages) {
        return tokenizer_encode_text(ids, g->setup.tokenizer, r->raw, err);
    }
    if (!g->setup.chat_template) {
        return error_set(err, ERR_UNSUPPORTED,
                         "the checkpoint has no chat template; --chat-template FILE gives one");
    }
    struct rendered text = {0};
    const struct render_options o = {.messages = r->messages,
                                     .kwargs = r->kwargs,
                                     .add_generation_prompt = true,
                                     .now_s = clock_wall_s()};
    enum status rc = chat_template_render(&text, g->setup.chat_template, &o, err);
    if (rc != OK) {
        return rc;
    }
    *starts_inside = reasoning_prompt_is_open((struct str){buf_cstr(&text.text), text.text.len});
    rc = tokenizer_encode(ids, g->setup.tokenizer, text.runs, text.n_runs, err);
    rendered_release(&text);
    return rc;
}

/* ---- the answer ----------------------------------------------------------------------------- */

struct answer {
    const struct generator_sink *sink;
    struct generator_result *out;
    bool split; /* thinking from content: not for raw prompts */
    struct reasoning reasoning;
};

/* Hands on what the two buffers got beyond the given lengths. */
static void hand_on(struct answer *a, size_t thinking_from, size_t content_from)
{
    const struct buf *t = &a->out->thinking, *c = &a->out->content;
    if (t->len > thinking_from) {
        a->sink->text(a->sink->ctx, (struct str){t->data + thinking_from, t->len - thinking_from},
                      true);
    }
    if (c->len > content_from) {
        a->sink->text(a->sink->ctx, (struct str){c->data + content_from, c->len - content_from},
                      false);
    }
}

static void take_text(struct answer *a, const struct engine_event *e)
{
    size_t thinking = a->out->thinking.len, content = a->out->content.len;
    struct str text = {e->text, e->text_len};
    bool is_last = e->kind == ENGINE_EVENT_DONE;
    if (!a->split) {
        buf_append(&a->out->content, text.ptr, text.len);
    } else {
        reasoning_push(&a->reasoning, text, &a->out->thinking, &a->out->content);
        if (is_last) {
            reasoning_finish(&a->reasoning, &a->out->thinking, &a->out->content);
        }
    }
    hand_on(a, thinking, content);
}

/* One event; true when the request is over. */
static bool take_event(struct answer *a, const struct engine_event *e, enum status *rc,
                       struct error *err)
{
    if (e->kind == ENGINE_EVENT_TOKEN || e->kind == ENGINE_EVENT_DONE) {
        take_text(a, e);
    }
    if (e->kind == ENGINE_EVENT_ERROR) {
        *rc = e->error.code ? e->error.code : ERR_INTERNAL;
        *err = e->error;
    }
    if (e->kind != ENGINE_EVENT_DONE && e->kind != ENGINE_EVENT_ERROR) {
        return false;
    }
    a->out->reason = e->reason;
    a->out->n_prompt = e->n_prompt;
    a->out->n_output = e->n_output;
    a->out->n_cached = e->n_cached;
    a->out->prefill_s = e->prefill_s;
    a->out->decode_s = e->decode_s;
    return true;
}

static enum status collect(struct generator *g, struct answer *a, uint64_t id, struct error *err)
{
    enum status rc = OK;
    bool is_over = false, is_cancelled = false;
    while (!is_over) {
        struct engine_event e;
        engine_port_wait(g->port, EVENT_WAIT_MS);
        while (!is_over && engine_port_pop(g->port, &e)) {
            is_over = e.request == id && take_event(a, &e, &rc, err);
            engine_event_release(&e);
        }
        if (!is_cancelled && a->sink->is_interrupted && a->sink->is_interrupted(a->sink->ctx)) {
            engine_cancel(g->engine, id);
            is_cancelled = true;
        }
    }
    return rc;
}

enum status generator_run(struct generator *g, const struct generator_request *r,
                          const struct generator_sink *sink, struct generator_result *out,
                          struct error *err)
{
    struct answer a = {.sink = sink, .out = out, .split = r->messages != NULL};
    struct token_ids ids = {0};
    bool starts_inside = false;
    uint64_t id = 0;
    struct error local = {0};

    err = err ? err : &local;
    *out = (struct generator_result){0};
    buf_init(&out->thinking);
    buf_init(&out->content);
    enum status rc = make_prompt(&ids, &starts_inside, g, r, err);
    if (rc == OK && ids.n == 0) {
        rc = error_set(err, ERR_BAD_REQUEST, "the prompt is empty");
    }
    reasoning_init(&a.reasoning, starts_inside);
    if (rc == OK) {
        const struct engine_request request = {.prompt = ids.ids,
                                               .n_prompt = ids.n,
                                               .sampling = r->sampling,
                                               .max_tokens = r->max_tokens,
                                               .skip_special = r->messages != NULL};
        rc = engine_submit(g->engine, g->port, &request, &id, err);
    }
    if (rc == OK) {
        rc = collect(g, &a, id, err);
    }
    reasoning_release(&a.reasoning);
    token_ids_release(&ids);
    return rc;
}

/* ---- print-outs ----------------------------------------------------------------------------- */

void generator_stats_text(char *out, size_t n, const struct generator_result *r)
{
    /* The first token comes out of the prefill; the others are decode steps. */
    double rate = r->n_output > 1 && r->decode_s > 0 ? (double)(r->n_output - 1) / r->decode_s : 0;
    int at = snprintf(out, n, "[%zu token%s", r->n_output, r->n_output == 1 ? "" : "s");
    if (rate > 0 && at > 0 && (size_t)at < n) {
        at += snprintf(out + at, n - (size_t)at, ", %.1f tok/s", rate);
    }
    if (at > 0 && (size_t)at < n) {
        snprintf(out + at, n - (size_t)at, "; prompt %zu tokens in %.2f s%s]", r->n_prompt,
                 r->prefill_s,
                 r->reason == FINISH_LENGTH  ? "; cut by the length limit"
                 : r->reason == FINISH_ABORT ? "; stopped"
                                             : "");
    }
}

void terminal_text(struct buf *out, struct str text)
{
    for (size_t i = 0; i < text.len;) {
        uint32_t cp;
        size_t n = utf8_decode(&cp, text.ptr + i, text.len - i);
        bool is_control = (cp < 0x20 && cp != '\n' && cp != '\t') || (cp >= 0x7f && cp < 0xa0);
        if (is_control) {
            buf_append_str(out, "\xef\xbf\xbd");
        } else {
            buf_append(out, text.ptr + i, n);
        }
        i += n;
    }
}

bool demo_model_find(char *out, size_t n)
{
    char exe[PATH_MAX] = "", path[PATH_MAX + 64];
    ssize_t len = readlink("/proc/self/exe", exe, sizeof exe - 1);
    char *slash = len > 0 ? strrchr(exe, '/') : NULL;
    if (slash) {
        *slash = '\0';
    }
    const struct {
        const char *root, *below;
    } places[] = {
        {exe, "/../models/rill"},
        {exe, "/../share/spillway/models/rill"},
        {SPILLWAY_SOURCE_DIR, "/models/rill"},
        {".", "/models/rill"},
    };
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(path, sizeof path, "%s%s/config.json", places[i].root, places[i].below);
        if (access(path, R_OK) == 0) {
            char *real = realpath(path, NULL);
            char *end = real ? strrchr(real, '/') : NULL;
            bool fits = end && (size_t)(end - real) < n;
            if (fits) {
                snprintf(out, n, "%.*s", (int)(end - real), real);
            }
            free(real);
            if (fits) {
                return true;
            }
        }
    }
    return false;
}
