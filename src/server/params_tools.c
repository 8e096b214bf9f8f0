/* params_tools.c - tools, and the variables that a request may hand to the chat template.
 *
 * Place: server. Tool schemas are checked for shape only (they are shown to the model, and types of
 *        parameters are read from them): what a JSON Schema may hold besides is let pass. Template
 *        variables are a short list, since a template's other variables are the model's business. */
#include "server/params_special.h"

#include <stdio.h>
#include <string.h>

enum { TOOL_NAME_MAX = 256 };

static enum status bad_tool(struct error *err, size_t i, const char *where, const char *text)
{
    return error_set_param(err, ERR_BAD_REQUEST, "tools", "'tools[%zu]%s' %s", i, where, text);
}

static bool is_known_type(struct json_object *v)
{
    static const char *const names[] = {"string", "number", "integer", "boolean",
                                        "object", "array",  "null"};

    if (!json_object_is_type(v, json_type_string)) {
        return false;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(json_object_get_string(v), names[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Recursion is bounded by JSON_DEPTH_MAX. */
static bool is_schema(struct json_object *v)
{
    struct json_object *type = json_get(v, "type"), *properties = json_get(v, "properties");

    if (json_object_is_type(v, json_type_boolean)) {
        return true;
    }
    if (!json_object_is_type(v, json_type_object)) {
        return false;
    }
    if (json_object_is_type(type, json_type_array)) {
        size_t n = json_object_array_length(type);
        for (size_t i = 0; i < n; i++) {
            if (!is_known_type(json_object_array_get_idx(type, i))) {
                return false;
            }
        }
    } else if (type && !is_known_type(type)) {
        return false;
    }
    if (properties) {
        if (!json_object_is_type(properties, json_type_object)) {
            return false;
        }
        json_object_object_foreach(properties, name, property)
        {
            (void)name;
            if (!is_schema(property)) {
                return false;
            }
        }
    }
    return !json_get(v, "items") || json_object_is_type(json_get(v, "items"), json_type_array) ||
           is_schema(json_get(v, "items"));
}

static bool is_tool_name(struct str s)
{
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        if (c <= ' ' || c == '<' || c == '>' || c == 0x7f) {
            return false; /* it would break the form in which the model writes a call */
        }
    }
    return s.len > 0 && s.len <= TOOL_NAME_MAX;
}

static enum status check_tool(struct json_object *tool, size_t i, struct error *err)
{
    struct json_object *type = json_get(tool, "type"), *f = json_get(tool, "function");
    struct json_object *name = json_get(f, "name"), *parameters = json_get(f, "parameters");

    if (!json_object_is_type(tool, json_type_object)) {
        return bad_tool(err, i, "", "must be an object");
    }
    if (type && (!json_object_is_type(type, json_type_string) ||
                 strcmp(json_object_get_string(type), "function") != 0)) {
        return bad_tool(err, i, ".type", "must be \"function\"");
    }
    if (!json_object_is_type(f, json_type_object)) {
        return bad_tool(err, i, ".function", "must be an object");
    }
    if (!json_object_is_type(name, json_type_string) || !is_tool_name(json_str(name))) {
        return bad_tool(err, i, ".function.name", "must be a name without spaces");
    }
    if (parameters &&
        (!json_object_is_type(parameters, json_type_object) || !is_schema(parameters))) {
        return bad_tool(err, i, ".function.parameters", "must be a JSON Schema object");
    }
    return OK;
}

enum status params_tools(struct params *p, struct json_object *v, const struct params_context *ctx,
                         struct error *err)
{
    enum status rc = OK;
    size_t n;

    (void)ctx;
    if (!json_object_is_type(v, json_type_array)) {
        return error_set_param(err, ERR_BAD_REQUEST, "tools", "'tools' must be a list");
    }
    n = json_object_array_length(v);
    if (n > TOOLS_MAX) {
        return error_set_param(err, ERR_BAD_REQUEST, "tools",
                               "'tools' has %zu entries, more than %d", n, TOOLS_MAX);
    }
    for (size_t i = 0; i < n && rc == OK; i++) {
        rc = check_tool(json_object_array_get_idx(v, i), i, err);
    }
    p->tools = n > 0 ? v : NULL;
    return rc;
}

enum status params_tool_choice(struct params *p, struct json_object *v,
                               const struct params_context *ctx, struct error *err)
{
    const char *word = json_object_is_type(v, json_type_string) ? json_object_get_string(v) : NULL;

    (void)ctx;
    if (word && strcmp(word, "auto") == 0) {
        p->tool_choice = TOOL_CHOICE_AUTO;
        return OK;
    }
    if (word && strcmp(word, "none") == 0) {
        p->tool_choice = TOOL_CHOICE_NONE;
        return OK;
    }
    if ((word && strcmp(word, "required") == 0) || json_object_is_type(v, json_type_object)) {
        return error_set_param(err, ERR_UNSUPPORTED, "tool_choice",
                               "'tool_choice' can only be \"auto\" or \"none\": a call cannot be "
                               "forced, constrained output is not built yet");
    }
    return error_set_param(err, ERR_BAD_REQUEST, "tool_choice",
                           "'tool_choice' must be \"auto\" or \"none\"");
}

/* --- variables of the template ------------------------------------------------------------------ */

enum kwarg_kind { KWARG_BOOL, KWARG_EFFORT };

static const struct {
    const char *name;
    enum kwarg_kind kind;
} kwargs[] = {
    {"enable_thinking", KWARG_BOOL},    {"preserve_thinking", KWARG_BOOL},
    {"add_vision_id", KWARG_BOOL},      {"thinking", KWARG_BOOL},
    {"reasoning_effort", KWARG_EFFORT},
};

/* One of the known words, or a number in [0, 0.99]. */
static bool is_effort(struct json_object *v)
{
    static const char *const words[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};

    if (json_object_is_type(v, json_type_string)) {
        for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
            if (strcmp(json_object_get_string(v), words[i]) == 0) {
                return true;
            }
        }
        return false;
    }
    if (json_object_is_type(v, json_type_int) || json_object_is_type(v, json_type_double)) {
        double d = json_object_get_double(v);
        return d >= 0 && d <= 0.99;
    }
    return false;
}

static enum status set_kwarg(struct params *p, const char *name, struct json_object *v,
                             struct error *err)
{
    if (!p->template_kwargs) {
        p->template_kwargs = json_object_new_object();
    }
    if (p->template_kwargs &&
        json_object_object_add(p->template_kwargs, name, json_object_get(v)) == 0) {
        return OK;
    }
    if (p->template_kwargs) {
        json_object_put(v);
    }
    return error_set(err, ERR_NO_MEMORY, "out of memory for '%s'", name);
}

enum status params_template_kwargs(struct params *p, struct json_object *v,
                                   const struct params_context *ctx, struct error *err)
{
    enum status rc = OK;

    (void)ctx;
    if (!json_object_is_type(v, json_type_object)) {
        return error_set_param(err, ERR_BAD_REQUEST, "chat_template_kwargs",
                               "'chat_template_kwargs' must be an object");
    }
    json_object_object_foreach(v, name, value)
    {
        char param[ERROR_PARAM_BYTES];
        size_t i = 0, n = sizeof kwargs / sizeof *kwargs;

        snprintf(param, sizeof param, "chat_template_kwargs.%.64s", name);
        while (i < n && strcmp(kwargs[i].name, name) != 0) {
            i++;
        }
        if (i == n) {
            return error_set_param(err, ERR_BAD_REQUEST, param,
                                   "'%s' is not a variable that a request may set", param);
        }
        if (!value) {
            continue; /* null is absent */
        }
        if (kwargs[i].kind == KWARG_BOOL ? !json_object_is_type(value, json_type_boolean)
                                         : !is_effort(value)) {
            return error_set_param(err, ERR_BAD_REQUEST, param, "'%s' must be %s", param,
                                   kwargs[i].kind == KWARG_BOOL ? "true or false"
                                                                : "a known effort");
        }
        rc = set_kwarg(p, name, value, err);
        if (rc != OK) {
            return rc;
        }
    }
    return OK;
}

/* What chat_template_kwargs says wins over these shorter ways to say it. */
static enum status set_weak_kwarg(struct params *p, const char *name, struct json_object *v,
                                  struct error *err)
{
    return json_has(p->template_kwargs, name) ? OK : set_kwarg(p, name, v, err);
}

static enum status set_thinking(struct params *p, bool on, struct error *err)
{
    struct json_object *v = json_object_new_boolean(on);
    enum status rc = set_weak_kwarg(p, "enable_thinking", v, err);

    json_object_put(v); /* set_kwarg took its own reference */
    return rc;
}

static enum status set_effort(struct params *p, struct json_object *v, const char *param,
                              struct error *err)
{
    if (!is_effort(v)) {
        return error_set_param(err, ERR_BAD_REQUEST, param,
                               "'%s' must be one of none, minimal, low, medium, high, xhigh, max, "
                               "or a number in [0, 0.99]",
                               param);
    }
    if (json_object_is_type(v, json_type_string) &&
        strcmp(json_object_get_string(v), "none") == 0) {
        return set_thinking(p, false, err);
    }
    return set_weak_kwarg(p, "reasoning_effort", v, err);
}

enum status params_reasoning_effort(struct params *p, struct json_object *v,
                                    const struct params_context *ctx, struct error *err)
{
    (void)ctx;
    return set_effort(p, v, "reasoning_effort", err);
}

enum status params_reasoning(struct params *p, struct json_object *v,
                             const struct params_context *ctx, struct error *err)
{
    struct json_object *enabled = json_get(v, "enabled"), *effort = json_get(v, "effort");
    enum status rc = OK;

    (void)ctx;
    if (!json_object_is_type(v, json_type_object)) {
        return error_set_param(err, ERR_BAD_REQUEST, "reasoning", "'reasoning' must be an object");
    }
    if (enabled && !json_object_is_type(enabled, json_type_boolean)) {
        return error_set_param(err, ERR_BAD_REQUEST, "reasoning.enabled",
                               "'reasoning.enabled' must be true or false");
    }
    if (enabled) {
        rc = set_thinking(p, json_object_get_boolean(enabled), err);
    }
    if (rc == OK && effort) {
        rc = set_effort(p, effort, "reasoning.effort", err);
    }
    return rc;
}

enum status params_finish_kwargs(struct params *p, const struct params_context *ctx,
                                 struct error *err)
{
    struct json_object *defaults = ctx->default_template_kwargs;
    enum status rc = OK;

    if (!json_object_is_type(defaults, json_type_object)) {
        return OK;
    }
    json_object_object_foreach(defaults, name, value)
    {
        if (rc == OK && value) {
            rc = set_weak_kwarg(p, name, value, err);
        }
    }
    return rc;
}
