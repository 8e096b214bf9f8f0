/* logprobs.c - log-probabilities as JSON. See logprobs.h. */
#include "server/logprobs.h"

#include <math.h>

/* JSON has no infinity; OpenAI uses this for "as good as impossible". */
static const double logprob_floor = -9999.0;

static void write_logprob(struct buf *out, float logprob)
{
    double v =
        isfinite(logprob) && logprob > (float)logprob_floor ? (double)logprob : logprob_floor;
    buf_appendf(out, "%.7g", v);
}

static struct str token_text(const struct choice *c, int32_t id)
{
    struct str s = tokenizer_bytes(c->job->server->model.tokenizer, id);

    return s.ptr ? s : STR("");
}

static void comma(struct buf *out)
{
    if (out->len > 0) {
        buf_append_char(out, ',');
    }
}

static void write_token(struct buf *out, const struct choice *c, int32_t id, float logprob)
{
    struct str text = token_text(c, id);

    buf_append_str(out, "{\"token\":");
    json_write_string(out, text.ptr, text.len);
    buf_append_str(out, ",\"logprob\":");
    write_logprob(out, logprob);
    buf_append_str(out, ",\"bytes\":[");
    for (size_t i = 0; i < text.len; i++) {
        buf_appendf(out, "%s%u", i > 0 ? "," : "", (unsigned char)text.ptr[i]);
    }
    buf_append_char(out, ']');
}

void logprobs_add_chat(struct choice *c, const struct engine_event *e)
{
    struct buf *out = &c->logprobs[0];

    comma(out);
    write_token(out, c, e->token, e->logprob);
    buf_append_str(out, ",\"top_logprobs\":[");
    for (size_t i = 0; i < e->n_top; i++) {
        if (i > 0) {
            buf_append_char(out, ',');
        }
        write_token(out, c, e->top[i].id, e->top[i].logprob);
        buf_append_char(out, '}');
    }
    buf_append_str(out, "]}");
}

void logprobs_write_chat(struct buf *out, struct choice *c)
{
    if (!c->job->params.sampling.want_logprobs) {
        buf_append_str(out, ",\"logprobs\":null");
        return;
    }
    buf_append_str(out, ",\"logprobs\":{\"content\":[");
    buf_append(out, c->logprobs[0].data, c->logprobs[0].len);
    buf_append_str(out, "]}");
    c->logprobs[0].len = 0;
}

static size_t count_characters(struct str text)
{
    size_t n = 0;

    for (size_t i = 0; i < text.len; i++) {
        n += ((unsigned char)text.ptr[i] & 0xc0) != 0x80;
    }
    return n;
}

void logprobs_add_completion(struct choice *c, const struct engine_event *e)
{
    struct str text = token_text(c, e->token);

    for (size_t i = 0; i < 4; i++) {
        comma(&c->logprobs[i]);
    }
    json_write_string(&c->logprobs[0], text.ptr, text.len);
    write_logprob(&c->logprobs[1], e->logprob);
    buf_append_char(&c->logprobs[2], '{');
    for (size_t i = 0; i < e->n_top; i++) {
        struct str top = token_text(c, e->top[i].id);
        if (i > 0) {
            buf_append_char(&c->logprobs[2], ',');
        }
        json_write_string(&c->logprobs[2], top.ptr, top.len);
        buf_append_char(&c->logprobs[2], ':');
        write_logprob(&c->logprobs[2], e->top[i].logprob);
    }
    buf_append_char(&c->logprobs[2], '}');
    buf_appendf(&c->logprobs[3], "%zu", c->n_characters);
    c->n_characters += count_characters(text);
}

void logprobs_write_completion(struct buf *out, struct choice *c)
{
    static const char *const names[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};

    if (!c->job->params.sampling.want_logprobs) {
        buf_append_str(out, ",\"logprobs\":null");
        return;
    }
    for (size_t i = 0; i < 4; i++) {
        buf_appendf(out, "%s\"%s\":[", i == 0 ? ",\"logprobs\":{" : ",", names[i]);
        buf_append(out, c->logprobs[i].data, c->logprobs[i].len);
        buf_append_char(out, ']');
        c->logprobs[i].len = 0;
    }
    buf_append_char(out, '}');
}
