/* api_common.c - what several endpoints do alike. See api.h. */
#include <stdio.h>
#include <string.h>

#include "server/api.h"

struct json_object *api_read_body(struct conn *c)
{
    const struct buf *body = &c->http.request.body;
    struct json_object *v = NULL;
    struct error err = {0};

    if (json_parse(&v, body->len > 0 ? body->data : "", body->len, &err) != OK) {
        conn_reply_error(
            c, &(struct reply_error){.status = reply_status_of(err.code), .message = err.text});
        return NULL;
    }
    if (!json_object_is_type(v, json_type_object)) {
        json_object_put(v);
        conn_reply_error(
            c, &(struct reply_error){.status = 400, .message = "the body must be a JSON object"});
        return NULL;
    }
    return v;
}

enum status api_read_params(struct params *out, struct server *s, enum api api,
                            struct json_object *body, struct error *err)
{
    const struct params_context ctx = {
        .vocab_size = tokenizer_vocab_size(s->model.tokenizer),
        .generation = s->o.sampling_defaults_openai ? NULL : &s->model.generation,
        .default_template_kwargs = s->o.default_template_kwargs,
        .unknown = server_note_unknown_field,
        .unknown_ctx = s,
    };

    return params_parse(out, api, body, &ctx, err);
}

bool api_check_model(struct server *s, struct conn *c, const char *model)
{
    char text[ERROR_TEXT_BYTES];

    if (!s->o.strict_model_name || !model || strcmp(model, s->o.served_name) == 0 ||
        strcmp(model, "default") == 0) {
        return true;
    }
    snprintf(
        text, sizeof text,
        "the model '%.64s' does not exist here; this server has '%.200s', also known as 'default'",
        model, s->o.served_name);
    conn_reply_error(
        c, &(struct reply_error){
               .status = 404, .code = "model_not_found", .param = "model", .message = text});
    return false;
}

void api_reply_json(struct conn *c, struct buf *b)
{
    if (buf_ok(b)) {
        conn_reply(c, 200, "application/json", buf_cstr(b), b->len);
    } else {
        conn_reply_error(
            c, &(struct reply_error){.status = 503, .message = "out of memory for the answer"});
    }
    buf_release(b);
}

enum status api_read_ids(struct token_ids *out, struct json_object *ids, size_t vocab_size,
                         const char *param, struct error *err)
{
    size_t n = json_object_is_type(ids, json_type_array) ? json_object_array_length(ids) : 0;

    if (!json_object_is_type(ids, json_type_array)) {
        return error_set_param(err, ERR_BAD_REQUEST, param, "'%s' must be a list of token ids",
                               param);
    }
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        if (!params_read_integer(json_object_array_get_idx(ids, i), &id) || id < 0 ||
            (uint64_t)id >= vocab_size) {
            return error_set_param(err, ERR_BAD_REQUEST, param,
                                   "'%s' has an entry at %zu that is not a token id below %zu",
                                   param, i, vocab_size);
        }
        if (!token_ids_push(out, (int32_t)id)) {
            return error_set(err, ERR_NO_MEMORY, "out of memory for '%s'", param);
        }
    }
    return OK;
}
