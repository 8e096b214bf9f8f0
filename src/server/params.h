/* params.h - the body of a chat or completion request as checked numbers.
 *
 * Place:  server; between the JSON body and the engine's request. One table (params_fields) names
 *         every field that we know with type, range and default; texts of errors are made from it.
 * Rules:  null is absent. A field that we do not know is ignored and reported by name. A field that
 *         would change the result and is not built is refused by name, unless it says "off". Numbers
 *         are compared as "not (min <= x <= max)", so NaN and infinity never pass. */
#ifndef SERVER_PARAMS_H
#define SERVER_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/status.h"
#include "base/str.h"
#include "formats/model_config.h"
#include "runtime/sampling.h"

enum {
    CHOICES_MAX = 128,     /* n times prompts: each is a sequence with buffers of its own */
    BODY_FIELDS_MAX = 256, /* top-level members of a body */
    TOOLS_MAX = 1024,
    REQUEST_ID_BYTES_MAX = 128
};

enum api { API_CHAT = 1, API_COMPLETIONS = 2 };

enum tool_choice { TOOL_CHOICE_AUTO, TOOL_CHOICE_NONE };

struct params {
    enum api api;
    /* what the answer is made from; borrowed from the body */
    struct json_object *messages; /* chat: as sent, NULL when absent */
    struct json_object *prompt;   /* completions: never NULL */
    struct json_object *tools;    /* NULL when there are none */
    enum tool_choice tool_choice;
    struct json_object *template_kwargs; /* owned; NULL when there are none */
    const char *model;                   /* NULL when absent */
    const char *rid;                     /* NULL when absent */
    /* how */
    struct sampling sampling; /* bias owned */
    size_t n;
    size_t max_tokens; /* 0: as much as the context leaves */
    size_t min_tokens;
    struct str *stop; /* owned array of borrowed texts, empty ones dropped */
    size_t n_stop;
    int32_t *stop_ids; /* owned */
    size_t n_stop_ids;
    bool ignore_eos, no_stop_trim, skip_special;
    bool continue_final_message;
    /* the form of the answer */
    bool stream, include_usage, continuous_usage;
    bool separate_reasoning, stream_reasoning;
    bool echo;
};

struct params_context {
    size_t vocab_size;
    const struct generation_config *generation;  /* NULL: OpenAI's defaults */
    struct json_object *default_template_kwargs; /* or NULL */
    /* Called for each member that the table does not know; may be NULL. */
    void (*unknown)(void *ctx, const char *name);
    void *unknown_ctx;
};

/* body: an object, must outlive *out. On failure nothing is to be released. ERR_BAD_REQUEST, or
 * ERR_UNSUPPORTED for what is understood but not built; both with error.param. */
enum status params_parse(struct params *out, enum api api, struct json_object *body,
                         const struct params_context *ctx, struct error *err);
void params_release(struct params *p);

/* --- the table ------------------------------------------------------------------------------- */

enum field_kind {
    FIELD_BOOL,
    FIELD_SIZE,    /* size_t: an integer >= 0 */
    FIELD_INT32,   /* int32_t */
    FIELD_FLOAT,   /* float */
    FIELD_SPECIAL, /* its own function */
    FIELD_IGNORED, /* known, changes nothing here */
    FIELD_REFUSED  /* known, would change the result, not built */
};

struct field {
    const char *name;
    unsigned apis; /* enum api, or-ed */
    enum field_kind kind;
    size_t offset;    /* of the value in struct params; plain kinds only */
    double min, max;  /* numbers only */
    bool min_is_open; /* min itself is not allowed */
    double standard;  /* default of plain kinds */
    enum status (*parse)(struct params *p, struct json_object *v, const struct params_context *ctx,
                         struct error *err); /* FIELD_SPECIAL; v is never null */
    const char *note;                        /* REFUSED, IGNORED: why */
};

const struct field *params_fields(size_t *n);

/* An integer, or a double without a fraction. Saturates at the ends of int64_t. */
bool params_read_integer(struct json_object *v, int64_t *out);

#endif
