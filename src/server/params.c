/* params.c - reading the fields of a request by one table. See params.h. The fields that need more
 * than a range are in params_special.c. */
#include "server/params.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/params_special.h"

enum { BOTH = API_CHAT | API_COMPLETIONS };

#define MEMBER(m) offsetof(struct params, m)
#define BOOL(name, apis, m, standard)                                                              \
    {                                                                                              \
        name, apis, FIELD_BOOL, MEMBER(m), 0, 1, false, standard, NULL, NULL                       \
    }
#define NUMBER(name, kind, m, min, max, standard)                                                  \
    {                                                                                              \
        name, BOTH, kind, MEMBER(m), min, max, false, standard, NULL, NULL                         \
    }
#define SPECIAL(name, apis, fn)                                                                    \
    {                                                                                              \
        name, apis, FIELD_SPECIAL, 0, 0, 0, false, 0, fn, NULL                                     \
    }
#define IGNORED(name, note)                                                                        \
    {                                                                                              \
        name, BOTH, FIELD_IGNORED, 0, 0, 0, false, 0, NULL, note                                   \
    }
#define REFUSED(name, note)                                                                        \
    {                                                                                              \
        name, BOTH, FIELD_REFUSED, 0, 0, 0, false, 0, NULL, note                                   \
    }

static const char no_grammar[] = "constrained output is not built yet";
static const char no_adapter[] = "adapters are not built";
static const char no_tensors[] = "tensors in requests are not taken";

enum { TOKENS_MAX = INT32_MAX, TEMPERATURE_MAX = 1000 };

/* clang-format off */
static const struct field fields[] = {
    /* what to answer */
    SPECIAL("messages", API_CHAT, params_messages),
    SPECIAL("prompt", API_COMPLETIONS, params_prompt),
    SPECIAL("model", BOTH, params_model),
    SPECIAL("rid", BOTH, params_rid),
    SPECIAL("tools", API_CHAT, params_tools),
    SPECIAL("tool_choice", API_CHAT, params_tool_choice),
    SPECIAL("chat_template_kwargs", API_CHAT, params_template_kwargs),
    SPECIAL("reasoning_effort", API_CHAT, params_reasoning_effort),
    SPECIAL("reasoning", API_CHAT, params_reasoning),
    BOOL("continue_final_message", API_CHAT, continue_final_message, 0),
    /* how long */
    NUMBER("max_tokens", FIELD_SIZE, max_tokens, 1, TOKENS_MAX, 0),
    NUMBER("max_completion_tokens", FIELD_SIZE, max_tokens, 1, TOKENS_MAX, 0), /* wins: it comes later */
    NUMBER("min_tokens", FIELD_SIZE, min_tokens, 0, TOKENS_MAX, 0),
    SPECIAL("stop", BOTH, params_stop),
    SPECIAL("stop_token_ids", BOTH, params_stop_token_ids),
    BOOL("ignore_eos", BOTH, ignore_eos, 0),
    BOOL("no_stop_trim", BOTH, no_stop_trim, 0),
    BOOL("skip_special_tokens", BOTH, skip_special, 1),
    /* sampling */
    NUMBER("temperature", FIELD_FLOAT, sampling.temperature, 0, TEMPERATURE_MAX, 1),
    {"top_p", BOTH, FIELD_FLOAT, MEMBER(sampling.top_p), 0, 1, true, 1, NULL, NULL},
    NUMBER("min_p", FIELD_FLOAT, sampling.min_p, 0, 1, 0),
    SPECIAL("top_k", BOTH, params_top_k),
    {"repetition_penalty", BOTH, FIELD_FLOAT, MEMBER(sampling.repetition_penalty), 0, 2, true, 1, NULL, NULL},
    NUMBER("presence_penalty", FIELD_FLOAT, sampling.presence_penalty, -2, 2, 0),
    NUMBER("frequency_penalty", FIELD_FLOAT, sampling.frequency_penalty, -2, 2, 0),
    SPECIAL("logit_bias", BOTH, params_logit_bias),
    SPECIAL("seed", BOTH, params_seed),
    NUMBER("n", FIELD_SIZE, n, 1, CHOICES_MAX, 1),
    SPECIAL("best_of", BOTH, params_best_of), /* after n */
    /* the form of the answer */
    BOOL("stream", BOTH, stream, 0),
    SPECIAL("stream_options", BOTH, params_stream_options), /* after stream */
    {"logprobs", API_CHAT, FIELD_BOOL, MEMBER(sampling.want_logprobs), 0, 1, false, 0, NULL, NULL},
    SPECIAL("logprobs", API_COMPLETIONS, params_logprobs_count),
    {"top_logprobs", API_CHAT, FIELD_SIZE, MEMBER(sampling.n_top_logprobs), 0, TOP_LOGPROBS_MAX, false, 0, NULL, NULL},
    BOOL("separate_reasoning", API_CHAT, separate_reasoning, 1),
    BOOL("stream_reasoning", API_CHAT, stream_reasoning, 1),
    BOOL("echo", API_COMPLETIONS, echo, 0),
    SPECIAL("response_format", BOTH, params_response_format),
    SPECIAL("modalities", API_CHAT, params_modalities),
    /* understood, and would change the result, but not built */
    REFUSED("regex", no_grammar),
    REFUSED("ebnf", no_grammar),
    REFUSED("grammar", no_grammar),
    REFUSED("json_schema", no_grammar),
    REFUSED("structural_tag", no_grammar),
    REFUSED("structured_outputs", no_grammar),
    REFUSED("guided_json", no_grammar),
    REFUSED("guided_regex", no_grammar),
    REFUSED("guided_choice", no_grammar),
    REFUSED("guided_grammar", no_grammar),
    REFUSED("stop_regex", "stop patterns are not built; 'stop' takes texts"),
    REFUSED("suffix", "text cannot be filled into a gap by this model"),
    REFUSED("chat_template", "a template is part of the model, not of a request"),
    REFUSED("functions", "use 'tools'"),
    REFUSED("function_call", "use 'tool_choice'"),
    REFUSED("lora_path", no_adapter),
    REFUSED("session_params", "sessions are not built"),
    REFUSED("custom_logit_processor", "programs in requests are not run"),
    REFUSED("custom_params", "programs in requests are not run"),
    REFUSED("return_hidden_states", "hidden states are not given out"),
    REFUSED("prompt_logprobs", "log-probabilities of the prompt are not built"),
    REFUSED("input_ids", "send token ids as 'prompt' to /v1/completions"),
    REFUSED("input_embeds", no_tensors),
    REFUSED("prompt_embeds", no_tensors),
    REFUSED("image_data", "this model reads text only"),
    REFUSED("audio", "this model reads and writes text only"),
    /* known to change nothing here; listed so that they are not logged as unknown */
    IGNORED("user", "who asks does not change the answer"),
    IGNORED("metadata", "belongs to the caller"),
    IGNORED("store", "nothing is stored"),
    IGNORED("service_tier", "there is one"),
    IGNORED("parallel_tool_calls", "the model decides how many calls it makes"),
    IGNORED("prediction", "a hint for speed"),
    IGNORED("priority", "first in, first out"),
    IGNORED("extra_key", "a hint for caches"),
    IGNORED("cache_salt", "a hint for caches"),
    IGNORED("prompt_cache_key", "a hint for caches"),
    IGNORED("safety_identifier", "who asks does not change the answer"),
    IGNORED("session_id", "belongs to the caller"),
    IGNORED("verbosity", "a hint for other models"),
    IGNORED("return_meta_info", "the answer has one form"),
    IGNORED("return_prompt_token_ids", "the answer has one form"),
};
/* clang-format on */

const struct field *params_fields(size_t *n)
{
    *n = sizeof fields / sizeof *fields;
    return fields;
}

static const struct field *find_field(const char *name, enum api api)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if ((fields[i].apis & api) && strcmp(fields[i].name, name) == 0) {
            return &fields[i];
        }
    }
    return NULL;
}

/* --- plain kinds ------------------------------------------------------------------------------ */

bool params_read_integer(struct json_object *v, int64_t *out)
{
    if (json_object_is_type(v, json_type_int)) {
        *out = json_object_get_int64(v);
        return true;
    }
    if (json_object_is_type(v, json_type_double)) {
        const double exact_max = 9007199254740992.0; /* 2^53 */
        double d = json_object_get_double(v);
        if (d >= -exact_max && d <= exact_max && d == floor(d)) {
            *out = (int64_t)d;
            return true;
        }
    }
    return false;
}

static enum status fault(const struct field *f, struct error *err)
{
    const char *what = f->kind == FIELD_FLOAT ? "a number" : "an integer";

    if (f->kind == FIELD_BOOL) {
        return error_set_param(err, ERR_BAD_REQUEST, f->name, "'%s' must be true or false",
                               f->name);
    }
    return error_set_param(err, ERR_BAD_REQUEST, f->name,
                           "'%s' must be %s %s %.10g and at most %.10g", f->name, what,
                           f->min_is_open ? "above" : "of at least", f->min, f->max);
}

static bool in_range(const struct field *f, double v)
{
    return v <= f->max && (f->min_is_open ? v > f->min : v >= f->min);
}

static void store(struct params *p, const struct field *f, double v)
{
    char *at = (char *)p + f->offset;

    switch (f->kind) {
    case FIELD_BOOL:
        *(bool *)at = v != 0;
        break;
    case FIELD_SIZE:
        *(size_t *)(void *)at = (size_t)v;
        break;
    case FIELD_INT32:
        *(int32_t *)(void *)at = (int32_t)v;
        break;
    case FIELD_FLOAT:
        *(float *)(void *)at = (float)v;
        break;
    default:
        break;
    }
}

static enum status read_plain(struct params *p, const struct field *f, struct json_object *v,
                              struct error *err)
{
    int64_t integer;
    double number;

    switch (f->kind) {
    case FIELD_BOOL:
        if (!json_object_is_type(v, json_type_boolean)) {
            return fault(f, err);
        }
        number = json_object_get_boolean(v) ? 1 : 0;
        break;
    case FIELD_FLOAT:
        if (!json_object_is_type(v, json_type_int) && !json_object_is_type(v, json_type_double)) {
            return fault(f, err);
        }
        number = json_object_get_double(v);
        break;
    default:
        if (!params_read_integer(v, &integer)) {
            return fault(f, err);
        }
        number = (double)integer; /* exact in every range of the table */
        break;
    }
    if (!in_range(f, number)) {
        return fault(f, err);
    }
    store(p, f, number);
    return OK;
}

/* null, false, "", [], {} and 0 ask for nothing. */
static bool is_off(struct json_object *v)
{
    switch (json_object_get_type(v)) {
    case json_type_null:
        return true;
    case json_type_boolean:
        return !json_object_get_boolean(v);
    case json_type_int:
        return json_object_get_int64(v) == 0;
    case json_type_double:
        return json_object_get_double(v) == 0;
    case json_type_string:
        return json_object_get_string_len(v) == 0;
    case json_type_array:
        return json_object_array_length(v) == 0;
    case json_type_object:
        return json_object_object_length(v) == 0;
    }
    return false;
}

static enum status read_field(struct params *p, const struct field *f, struct json_object *v,
                              const struct params_context *ctx, struct error *err)
{
    switch (f->kind) {
    case FIELD_SPECIAL:
        return f->parse(p, v, ctx, err);
    case FIELD_IGNORED:
        return OK;
    case FIELD_REFUSED:
        return is_off(v) ? OK
                         : error_set_param(err, ERR_UNSUPPORTED, f->name,
                                           "'%s' is not supported: %s", f->name, f->note);
    default:
        return read_plain(p, f, v, err);
    }
}

/* --- the whole --------------------------------------------------------------------------------- */

static void set_defaults(struct params *p, enum api api, const struct params_context *ctx)
{
    const struct generation_config *g = ctx->generation;

    memset(p, 0, sizeof *p);
    p->api = api;
    p->sampling = sampling_default();
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (fields[i].apis & api) {
            store(p, &fields[i], fields[i].standard);
        }
    }
    if (api == API_COMPLETIONS) {
        enum { COMPLETION_TOKENS_DEFAULT = 16 }; /* OpenAI's */
        p->max_tokens = COMPLETION_TOKENS_DEFAULT;
    }
    if (!g) {
        return;
    }
    if (g->has_temperature) {
        p->sampling.temperature = (float)g->temperature;
    }
    if (g->has_top_p) {
        p->sampling.top_p = (float)g->top_p;
    }
    if (g->has_min_p) {
        p->sampling.min_p = (float)g->min_p;
    }
    if (g->has_top_k) {
        p->sampling.top_k = g->top_k > 0 && g->top_k <= INT32_MAX ? (int32_t)g->top_k : -1;
    }
    if (g->has_repetition_penalty) {
        p->sampling.repetition_penalty = (float)g->repetition_penalty;
    }
}

static enum status check_together(const struct params *p, struct json_object *body,
                                  struct error *err)
{
    if (p->api == API_COMPLETIONS && !p->prompt) {
        return error_set_param(err, ERR_BAD_REQUEST, "prompt", "'prompt' is missing");
    }
    if (json_get(body, "stream_options") && !p->stream) {
        return error_set_param(err, ERR_BAD_REQUEST, "stream_options",
                               "'stream_options' needs 'stream' to be true");
    }
    if (p->sampling.n_top_logprobs > 0 && !p->sampling.want_logprobs) {
        return error_set_param(err, ERR_BAD_REQUEST, "top_logprobs",
                               "'top_logprobs' needs 'logprobs' to be true");
    }
    if (p->max_tokens > 0 && p->min_tokens > p->max_tokens) {
        return error_set_param(err, ERR_BAD_REQUEST, "min_tokens",
                               "'min_tokens' is %zu, above the limit of %zu tokens", p->min_tokens,
                               p->max_tokens);
    }
    if (p->echo && p->sampling.want_logprobs) {
        return error_set_param(err, ERR_UNSUPPORTED, "echo",
                               "'echo' with 'logprobs' is not supported: log-probabilities of the "
                               "prompt are not built");
    }
    return OK;
}

static void report_unknown(struct json_object *body, enum api api, const struct params_context *ctx)
{
    if (!ctx->unknown) {
        return;
    }
    json_object_object_foreach(body, name, v)
    {
        (void)v;
        if (!find_field(name, api)) {
            ctx->unknown(ctx->unknown_ctx, name);
        }
    }
}

enum status params_parse(struct params *out, enum api api, struct json_object *body,
                         const struct params_context *ctx, struct error *err)
{
    enum status rc = OK;

    set_defaults(out, api, ctx);
    if (!json_object_is_type(body, json_type_object)) {
        return error_set(err, ERR_BAD_REQUEST, "the body must be a JSON object");
    }
    if (json_object_object_length(body) > BODY_FIELDS_MAX) {
        return error_set(err, ERR_BAD_REQUEST, "the body has %d fields, more than %d",
                         json_object_object_length(body), BODY_FIELDS_MAX);
    }
    for (size_t i = 0; i < sizeof fields / sizeof *fields && rc == OK; i++) {
        struct json_object *v =
            (fields[i].apis & api) ? json_get(body, fields[i].name) : NULL; /* null: absent */
        if (v) {
            rc = read_field(out, &fields[i], v, ctx, err);
        }
    }
    if (rc == OK) {
        rc = check_together(out, body, err);
    }
    if (rc == OK && api == API_CHAT) {
        rc = params_finish_kwargs(out, ctx, err);
    }
    if (rc != OK) {
        params_release(out);
        return rc;
    }
    report_unknown(body, api, ctx);
    return OK;
}

void params_release(struct params *p)
{
    free(p->stop);
    free(p->stop_ids);
    free((void *)(uintptr_t)p->sampling.bias);
    json_object_put(p->template_kwargs);
    p->stop = NULL;
    p->stop_ids = NULL;
    p->sampling.bias = NULL;
    p->template_kwargs = NULL;
}
