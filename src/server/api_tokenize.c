/* api_tokenize.c - POST /tokenize and /detokenize. Control tokens in a text are recognised here. */
#include "server/api.h"
#include "text/detok.h"

enum { TOKENIZE_TEXTS_MAX = 1024 };

static void write_ids(struct buf *out, const struct token_ids *ids)
{
    buf_append_char(out, '[');
    for (size_t i = 0; i < ids->n; i++) {
        buf_appendf(out, "%s%d", i > 0 ? "," : "", (int)ids->ids[i]);
    }
    buf_append_char(out, ']');
}

/* One text: its ids to out, its count to counts. */
static enum status add_text(struct buf *out, struct buf *counts, const struct server *s,
                            struct json_object *text, struct error *err)
{
    struct token_ids ids = {0};
    enum status rc;

    if (!json_object_is_type(text, json_type_string)) {
        return error_set_param(err, ERR_BAD_REQUEST, "prompt",
                               "'prompt' must be a text or a list of 1 to %d texts",
                               TOKENIZE_TEXTS_MAX);
    }
    rc = tokenizer_encode_text(&ids, s->model.tokenizer, json_str(text), err);
    if (rc == OK) {
        write_ids(out, &ids);
        buf_appendf(counts, "%zu", ids.n);
    }
    token_ids_release(&ids);
    return rc;
}

static enum status add_texts(struct buf *out, struct buf *counts, const struct server *s,
                             struct json_object *prompt, struct error *err)
{
    size_t n = json_object_is_type(prompt, json_type_array) ? json_object_array_length(prompt) : 0;
    enum status rc = OK;

    if (n == 0 || n > TOKENIZE_TEXTS_MAX) {
        return add_text(out, counts, s, n == 0 ? prompt : NULL, err);
    }
    buf_append_char(out, '[');
    buf_append_char(counts, '[');
    for (size_t i = 0; i < n && rc == OK; i++) {
        if (i > 0) {
            buf_append_char(out, ',');
            buf_append_char(counts, ',');
        }
        rc = add_text(out, counts, s, json_object_array_get_idx(prompt, i), err);
    }
    buf_append_char(out, ']');
    buf_append_char(counts, ']');
    return rc;
}

void api_tokenize(struct server *s, struct conn *c)
{
    struct json_object *body = api_read_body(c);
    struct buf tokens, counts;
    struct error err = {0};

    if (!body) {
        return;
    }
    buf_init(&tokens);
    buf_init(&counts);
    buf_append_str(&tokens, "{\"tokens\":");
    if (add_texts(&tokens, &counts, s, json_get(body, "prompt"), &err) == OK) {
        buf_appendf(&tokens, ",\"count\":%s,\"max_model_len\":%zu}", buf_cstr(&counts),
                    s->model.context_length);
        api_reply_json(c, &tokens);
    } else {
        conn_reply_failure(c, &err);
        buf_release(&tokens);
    }
    buf_release(&counts);
    json_object_put(body);
}

/* One list of ids: its text as JSON to out. */
static enum status add_ids(struct buf *out, const struct server *s, struct json_object *list,
                           bool skip_special, struct error *err)
{
    struct token_ids ids = {0};
    struct buf text;
    struct detok d;
    enum status rc =
        api_read_ids(&ids, list, tokenizer_vocab_size(s->model.tokenizer), "tokens", err);

    if (rc == OK) {
        buf_init(&text);
        detok_init(&d, s->model.tokenizer, skip_special);
        for (size_t i = 0; i < ids.n; i++) {
            detok_push(&d, ids.ids[i], &text);
        }
        detok_finish(&d, &text);
        json_write_string(out, buf_cstr(&text), text.len);
        out->failed = out->failed || !buf_ok(&text);
        buf_release(&text);
    }
    token_ids_release(&ids);
    return rc;
}

static enum status add_id_lists(struct buf *out, const struct server *s, struct json_object *body,
                                struct error *err)
{
    struct json_object *tokens = json_get(body, "tokens");
    size_t n = json_object_is_type(tokens, json_type_array) ? json_object_array_length(tokens) : 0;
    bool skip_special = true;
    enum status rc =
        json_get_bool(&skip_special, body, "skip_special_tokens", ERR_BAD_REQUEST, err);

    if (rc != OK) {
        return rc;
    }
    if (n == 0 || !json_object_is_type(json_object_array_get_idx(tokens, 0), json_type_array)) {
        return add_ids(out, s, tokens, skip_special, err);
    }
    buf_append_char(out, '[');
    for (size_t i = 0; i < n && rc == OK; i++) {
        if (i > 0) {
            buf_append_char(out, ',');
        }
        rc = add_ids(out, s, json_object_array_get_idx(tokens, i), skip_special, err);
    }
    buf_append_char(out, ']');
    return rc;
}

void api_detokenize(struct server *s, struct conn *c)
{
    struct json_object *body = api_read_body(c);
    struct error err = {0};
    struct buf b;

    if (!body) {
        return;
    }
    buf_init(&b);
    buf_append_str(&b, "{\"text\":");
    if (add_id_lists(&b, s, body, &err) == OK) {
        buf_append_char(&b, '}');
        api_reply_json(c, &b);
    } else {
        conn_reply_failure(c, &err);
        buf_release(&b);
    }
    json_object_put(body);
}
