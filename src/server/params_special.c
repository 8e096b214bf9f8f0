/* params_special.c - fields with a shape of their own. See params_special.h. Tools and the variables
 * of chat templates are in params_tools.c. */
#include "server/params_special.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "runtime/engine.h"

static enum status bad(struct error *err, const char *param, const char *text)
{
    return error_set_param(err, ERR_BAD_REQUEST, param, "'%s' %s", param, text);
}

static enum status no_memory(struct error *err, const char *param)
{
    return error_set_param(err, ERR_NO_MEMORY, param, "out of memory for '%s'", param);
}

enum status params_messages(struct params *p, struct json_object *v,
                            const struct params_context *ctx, struct error *err)
{
    (void)ctx;
    (void)err;
    p->messages = v; /* chat_messages_normalise looks inside */
    return OK;
}

/* A list of ids, or one text. */
static bool is_one_prompt(struct json_object *v)
{
    size_t n;

    if (json_object_is_type(v, json_type_string)) {
        return true;
    }
    if (!json_object_is_type(v, json_type_array)) {
        return false;
    }
    n = json_object_array_length(v);
    for (size_t i = 0; i < n; i++) {
        if (!json_object_is_type(json_object_array_get_idx(v, i), json_type_int)) {
            return false;
        }
    }
    return n > 0;
}

enum status params_prompt(struct params *p, struct json_object *v, const struct params_context *ctx,
                          struct error *err)
{
    (void)ctx;
    if (!is_one_prompt(v)) {
        size_t n = json_object_is_type(v, json_type_array) ? json_object_array_length(v) : 0;
        if (n == 0 || n > CHOICES_MAX) {
            return error_set_param(err, ERR_BAD_REQUEST, "prompt",
                                   "'prompt' must be a text, a list of 1 to %d texts, a list of "
                                   "token ids, or a list of such lists",
                                   CHOICES_MAX);
        }
        for (size_t i = 0; i < n; i++) {
            if (!is_one_prompt(json_object_array_get_idx(v, i))) {
                return error_set_param(err, ERR_BAD_REQUEST, "prompt",
                                       "'prompt[%zu]' must be a text or a list of token ids", i);
            }
        }
    }
    p->prompt = v;
    return OK;
}

enum status params_model(struct params *p, struct json_object *v, const struct params_context *ctx,
                         struct error *err)
{
    (void)ctx;
    if (!json_object_is_type(v, json_type_string)) {
        return bad(err, "model", "must be a text");
    }
    p->model = json_object_get_string(v);
    return OK;
}

enum status params_rid(struct params *p, struct json_object *v, const struct params_context *ctx,
                       struct error *err)
{
    struct str s;

    (void)ctx;
    if (!json_object_is_type(v, json_type_string)) {
        return bad(err, "rid", "must be a text");
    }
    s = json_str(v);
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] <= ' ' || s.ptr[i] > '~' || s.len > REQUEST_ID_BYTES_MAX) {
            return error_set_param(err, ERR_BAD_REQUEST, "rid",
                                   "'rid' must be at most %d visible ASCII characters",
                                   REQUEST_ID_BYTES_MAX);
        }
    }
    p->rid = s.len > 0 ? s.ptr : NULL;
    return OK;
}

static enum status add_stop(struct params *p, struct json_object *v, struct error *err)
{
    struct str s;

    if (!json_object_is_type(v, json_type_string)) {
        return bad(err, "stop", "must be a text or a list of texts");
    }
    s = json_str(v);
    if (s.len > STOP_STRING_BYTES_MAX) {
        return error_set_param(err, ERR_BAD_REQUEST, "stop",
                               "'stop' has a text of %zu bytes, more than %d", s.len,
                               STOP_STRING_BYTES_MAX);
    }
    if (s.len > 0) { /* an empty one asks for nothing */
        p->stop[p->n_stop++] = s;
    }
    return OK;
}

enum status params_stop(struct params *p, struct json_object *v, const struct params_context *ctx,
                        struct error *err)
{
    bool is_list = json_object_is_type(v, json_type_array);
    size_t n = is_list ? json_object_array_length(v) : 1;
    enum status rc = OK;

    (void)ctx;
    if (n > STOP_STRINGS_MAX) {
        return error_set_param(err, ERR_BAD_REQUEST, "stop", "'stop' has %zu texts, more than %d",
                               n, STOP_STRINGS_MAX);
    }
    p->stop = calloc(n + 1, sizeof *p->stop);
    if (!p->stop) {
        return no_memory(err, "stop");
    }
    for (size_t i = 0; i < n && rc == OK; i++) {
        rc = add_stop(p, is_list ? json_object_array_get_idx(v, i) : v, err);
    }
    return rc;
}

enum status params_stop_token_ids(struct params *p, struct json_object *v,
                                  const struct params_context *ctx, struct error *err)
{
    size_t n = json_object_is_type(v, json_type_array) ? json_object_array_length(v) : SIZE_MAX;

    if (n > STOP_IDS_MAX) {
        return error_set_param(err, ERR_BAD_REQUEST, "stop_token_ids",
                               "'stop_token_ids' must be a list of at most %d token ids",
                               STOP_IDS_MAX);
    }
    p->stop_ids = calloc(n + 1, sizeof *p->stop_ids);
    if (!p->stop_ids) {
        return no_memory(err, "stop_token_ids");
    }
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        if (!params_read_integer(json_object_array_get_idx(v, i), &id) || id < 0 ||
            (uint64_t)id >= ctx->vocab_size) {
            return error_set_param(err, ERR_BAD_REQUEST, "stop_token_ids",
                                   "'stop_token_ids[%zu]' is not a token id below %zu", i,
                                   ctx->vocab_size);
        }
        p->stop_ids[p->n_stop_ids++] = (int32_t)id;
    }
    return OK;
}

enum status params_top_k(struct params *p, struct json_object *v, const struct params_context *ctx,
                         struct error *err)
{
    int64_t k;

    (void)ctx;
    if (!params_read_integer(v, &k) || k < -1 || k > INT32_MAX) {
        return bad(err, "top_k", "must be -1 (off) or an integer of at least 1");
    }
    p->sampling.top_k = k == 0 ? -1 : (int32_t)k; /* 0 is off too for many clients */
    return OK;
}

static enum status add_bias(struct logit_bias *out, const char *key, struct json_object *v,
                            const struct params_context *ctx, struct error *err)
{
    char *end = NULL;
    unsigned long long id;
    double bias;

    if (key[0] < '0' || key[0] > '9') {
        return bad(err, "logit_bias", "must have token ids as keys");
    }
    id = strtoull(key, &end, 10); /* saturates, so a long number is beyond the vocabulary too */
    if (*end != '\0' || id >= ctx->vocab_size) {
        return error_set_param(err, ERR_BAD_REQUEST, "logit_bias",
                               "'logit_bias' has the key '%.32s', not a token id below %zu", key,
                               ctx->vocab_size);
    }
    if (!json_object_is_type(v, json_type_int) && !json_object_is_type(v, json_type_double)) {
        return bad(err, "logit_bias", "must have numbers as values");
    }
    bias = json_object_get_double(v);
    if (!(bias >= -100 && bias <= 100)) {
        return error_set_param(err, ERR_BAD_REQUEST, "logit_bias",
                               "'logit_bias' of token %llu is not in [-100, 100]", id);
    }
    *out = (struct logit_bias){.id = (int32_t)id, .bias = (float)bias};
    return OK;
}

enum status params_logit_bias(struct params *p, struct json_object *v,
                              const struct params_context *ctx, struct error *err)
{
    struct logit_bias *list;
    enum status rc = OK;

    if (!json_object_is_type(v, json_type_object)) {
        return bad(err, "logit_bias", "must be an object");
    }
    if (json_object_object_length(v) > LOGIT_BIAS_MAX) {
        return error_set_param(err, ERR_BAD_REQUEST, "logit_bias",
                               "'logit_bias' has %d entries, more than %d",
                               json_object_object_length(v), LOGIT_BIAS_MAX);
    }
    list = calloc((size_t)json_object_object_length(v) + 1, sizeof *list);
    if (!list) {
        return no_memory(err, "logit_bias");
    }
    p->sampling.bias = list;
    json_object_object_foreach(v, key, value)
    {
        rc = add_bias(&list[p->sampling.n_bias], key, value, ctx, err);
        if (rc != OK) {
            return rc;
        }
        p->sampling.n_bias++;
    }
    return OK;
}

enum status params_seed(struct params *p, struct json_object *v, const struct params_context *ctx,
                        struct error *err)
{
    int64_t seed;

    (void)ctx;
    if (!params_read_integer(v, &seed)) {
        return bad(err, "seed", "must be an integer");
    }
    p->sampling.has_seed = true;
    p->sampling.seed = (uint64_t)seed;
    if (json_object_is_type(v, json_type_int) && seed == INT64_MAX) {
        p->sampling.seed = json_object_get_uint64(v); /* the upper half of 64 bits */
    }
    return OK;
}

enum status params_best_of(struct params *p, struct json_object *v,
                           const struct params_context *ctx, struct error *err)
{
    int64_t best_of;

    (void)ctx;
    if (!params_read_integer(v, &best_of) || best_of < 1 || best_of > CHOICES_MAX) {
        return error_set_param(err, ERR_BAD_REQUEST, "best_of",
                               "'best_of' must be an integer of at least 1 and at most %d",
                               CHOICES_MAX);
    }
    if ((size_t)best_of < p->n) {
        return bad(err, "best_of", "must not be below 'n'");
    }
    if ((size_t)best_of > p->n) {
        return error_set_param(err, ERR_UNSUPPORTED, "best_of",
                               "'best_of' above 'n' is not supported: choices are not ranked");
    }
    return OK;
}

static enum status read_bool(bool *out, struct json_object *v, const char *param, struct error *err)
{
    if (v && !json_object_is_type(v, json_type_boolean)) {
        return bad(err, param, "must be true or false");
    }
    *out = v && json_object_get_boolean(v);
    return OK;
}

enum status params_stream_options(struct params *p, struct json_object *v,
                                  const struct params_context *ctx, struct error *err)
{
    enum status rc;

    (void)ctx;
    if (!json_object_is_type(v, json_type_object)) {
        return bad(err, "stream_options", "must be an object");
    }
    rc = read_bool(&p->include_usage, json_get(v, "include_usage"), "stream_options.include_usage",
                   err);
    if (rc != OK) {
        return rc;
    }
    return read_bool(&p->continuous_usage, json_get(v, "continuous_usage_stats"),
                     "stream_options.continuous_usage_stats", err);
}

enum status params_logprobs_count(struct params *p, struct json_object *v,
                                  const struct params_context *ctx, struct error *err)
{
    int64_t n;

    (void)ctx;
    if (!params_read_integer(v, &n) || n < 0 || n > TOP_LOGPROBS_MAX) {
        return error_set_param(err, ERR_BAD_REQUEST, "logprobs",
                               "'logprobs' must be an integer of at least 0 and at most %d",
                               TOP_LOGPROBS_MAX);
    }
    p->sampling.want_logprobs = true;
    p->sampling.n_top_logprobs = (size_t)n;
    return OK;
}

enum status params_response_format(struct params *p, struct json_object *v,
                                   const struct params_context *ctx, struct error *err)
{
    struct json_object *type = json_get(v, "type");

    (void)p;
    (void)ctx;
    if (!json_object_is_type(type, json_type_string)) {
        return bad(err, "response_format", "must be an object with a 'type'");
    }
    if (strcmp(json_object_get_string(type), "text") != 0) {
        return error_set_param(err, ERR_UNSUPPORTED, "response_format",
                               "'response_format' of type '%.32s' is not supported: constrained "
                               "output is not built yet",
                               json_object_get_string(type));
    }
    return OK;
}

enum status params_modalities(struct params *p, struct json_object *v,
                              const struct params_context *ctx, struct error *err)
{
    size_t n;

    (void)p;
    (void)ctx;
    if (!json_object_is_type(v, json_type_array)) {
        return bad(err, "modalities", "must be a list");
    }
    n = json_object_array_length(v);
    for (size_t i = 0; i < n; i++) {
        struct json_object *item = json_object_array_get_idx(v, i);
        if (!json_object_is_type(item, json_type_string) ||
            strcmp(json_object_get_string(item), "text") != 0) {
            return error_set_param(err, ERR_UNSUPPORTED, "modalities",
                                   "'modalities' other than text are not supported");
        }
    }
    return OK;
}
