/* chat_messages.c - checks and normalises a request's messages. See chat_messages.h.
 *
 * A new array is built; values that need no change are shared with the request by reference. */
#include "text/chat_messages.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"

struct place { /* where in the request: "messages[3]" */
    char path[ERROR_PARAM_BYTES];
    struct error *err;
};

/* "<path><what>: ..." with the path as error.param. */
static enum status refuse(const struct place *at, const char *suffix, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static enum status refuse(const struct place *at, const char *suffix, const char *fmt, ...)
{
    char param[ERROR_PARAM_BYTES], text[ERROR_TEXT_BYTES];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    (void)snprintf(param, sizeof param, "%.60s%.60s", at->path, suffix);
    return error_set_param(at->err, ERR_BAD_REQUEST, param, "%s %s", param, text);
}

static enum status no_memory(struct error *err)
{
    return error_set(err, ERR_NO_MEMORY, "cannot keep the request's messages");
}

/* Takes value in any case. */
static enum status put(struct json_object *o, const char *key, struct json_object *value,
                       struct error *err)
{
    if (json_object_object_add(o, key, value) != 0) {
        json_object_put(value);
        return no_memory(err);
    }
    return OK;
}

static bool is_text(struct json_object *v)
{
    return v && json_object_is_type(v, json_type_string);
}

/* ---- roles ---- */

static const struct {
    const char *name, *becomes;
} ROLES[] = {{"system", "system"},       {"developer", "system"}, {"user", "user"},
             {"assistant", "assistant"}, {"tool", "tool"},        {"function", "tool"}};

static enum status read_role(const char **out, struct json_object *message, const struct place *at)
{
    struct json_object *v = json_get(message, "role");

    if (!is_text(v)) {
        return refuse(at, ".role", v ? "must be a string" : "is missing");
    }
    for (size_t i = 0; i < sizeof ROLES / sizeof *ROLES; i++) {
        if (strlen(ROLES[i].name) == json_str(v).len &&
            strcasecmp(ROLES[i].name, json_object_get_string(v)) == 0) {
            *out = ROLES[i].becomes;
            return OK;
        }
    }
    return refuse(at, ".role", "is '%s': expected system, developer, user, assistant or tool",
                  json_object_get_string(v));
}

/* ---- content ---- */

static enum status append_part(struct buf *text, struct json_object *part, size_t idx,
                               const struct place *at)
{
    struct json_object *type, *v;
    char suffix[40];

    (void)snprintf(suffix, sizeof suffix, ".content[%zu]", idx);
    if (!json_object_is_type(part, json_type_object)) {
        return refuse(at, suffix, "must be an object with a type");
    }
    type = json_get(part, "type");
    if (!is_text(type)) {
        return refuse(at, suffix, "needs a string 'type'");
    }
    if (strcmp(json_object_get_string(type), "text") != 0) {
        return refuse(at, suffix, "has type '%s': this model reads text only",
                      json_object_get_string(type));
    }
    v = json_get(part, "text");
    if (!is_text(v)) {
        return refuse(at, suffix, "needs a string 'text'");
    }
    buf_append(text, json_str(v).ptr, json_str(v).len);
    return OK;
}

/* *out: a new reference to a string, or NULL for null. */
static enum status join_parts(struct json_object **out, struct json_object *parts,
                              const struct place *at)
{
    struct buf text;
    enum status rc = OK;
    size_t n = json_object_array_length(parts);

    buf_init(&text);
    for (size_t i = 0; i < n && rc == OK; i++) {
        rc = append_part(&text, json_object_array_get_idx(parts, i), i, at);
    }
    if (rc == OK && (!buf_ok(&text) || text.len > INT32_MAX)) {
        rc = no_memory(at->err);
    }
    if (rc == OK) {
        *out = json_object_new_string_len(buf_cstr(&text), (int)text.len);
        rc = *out ? OK : no_memory(at->err);
    }
    buf_release(&text);
    return rc;
}

static enum status put_content(struct json_object *to, struct json_object *message,
                               const char *role, bool has_calls, const struct place *at)
{
    struct json_object *v = json_get(message, "content"), *text = NULL;
    enum status rc = OK;

    if (!v && strcmp(role, "user") == 0) {
        return refuse(at, ".content", "is missing");
    }
    if (!v) { /* templates look for null beside tool calls */
        text = has_calls ? NULL : json_object_new_string("");
        rc = text || has_calls ? OK : no_memory(at->err);
    } else if (is_text(v)) {
        text = json_object_get(v);
    } else if (json_object_is_type(v, json_type_array)) {
        rc = join_parts(&text, v, at);
    } else {
        rc = refuse(at, ".content", "must be a string, null or a list of parts");
    }
    return rc == OK ? put(to, "content", text, at->err) : rc;
}

/* ---- tool calls ---- */

/* *out: a new reference to the object of arguments. */
static enum status read_arguments(struct json_object **out, struct json_object *v,
                                  const char *suffix, const struct place *at)
{
    struct error inner = {0};
    struct str text;

    if (!v || (is_text(v) && json_str(v).len == 0)) {
        *out = json_object_new_object();
        return *out ? OK : no_memory(at->err);
    }
    if (json_object_is_type(v, json_type_object)) {
        *out = json_object_get(v);
        return OK;
    }
    if (!is_text(v)) {
        return refuse(at, suffix, "must be a JSON object or its text");
    }
    text = json_str(v);
    if (json_parse(out, text.ptr, text.len, &inner) != OK) {
        return refuse(at, suffix, "is not JSON: %s", inner.text);
    }
    if (!json_object_is_type(*out, json_type_object)) {
        json_object_put(*out);
        *out = NULL;
        return refuse(at, suffix, "must spell a JSON object");
    }
    return OK;
}

/* A copy of `from` without `skip`, sharing the values. */
static struct json_object *shallow_copy(struct json_object *from, const char *skip)
{
    struct json_object *copy = json_object_new_object();

    if (copy && from) {
        json_object_object_foreach(from, key, value)
        {
            if (skip && strcmp(key, skip) == 0) {
                continue;
            }
            if (json_object_object_add(copy, key, json_object_get(value)) != 0) {
                json_object_put(value);
                json_object_put(copy);
                return NULL;
            }
        }
    }
    return copy;
}

/* {"name": ..., "arguments": {...}} from the same with arguments as text; *out is new. */
static enum status read_function(struct json_object **out, struct json_object *function,
                                 const char *suffix, const struct place *at)
{
    struct json_object *arguments = NULL;
    char inner[64];
    enum status rc;

    if (!json_object_is_type(function, json_type_object)) {
        return refuse(at, suffix, "must be an object with name and arguments");
    }
    if (!is_text(json_get(function, "name"))) {
        return refuse(at, suffix, "needs a string 'name'");
    }
    (void)snprintf(inner, sizeof inner, "%.40s.arguments", suffix);
    rc = read_arguments(&arguments, json_get(function, "arguments"), inner, at);
    if (rc != OK) {
        return rc;
    }
    *out = shallow_copy(function, "arguments");
    if (!*out) {
        json_object_put(arguments);
        return no_memory(at->err);
    }
    rc = put(*out, "arguments", arguments, at->err);
    if (rc != OK) {
        json_object_put(*out);
    }
    return rc;
}

static enum status add_call(struct json_object *calls, struct json_object *call, size_t idx,
                            const struct place *at)
{
    struct json_object *function = NULL, *copy;
    struct json_object *type, *id;
    char suffix[48];
    enum status rc;

    (void)snprintf(suffix, sizeof suffix, ".tool_calls[%zu]", idx);
    if (!json_object_is_type(call, json_type_object)) {
        return refuse(at, suffix, "must be an object");
    }
    type = json_get(call, "type");
    if (type && (!is_text(type) || strcmp(json_object_get_string(type), "function") != 0)) {
        return refuse(at, suffix, "must have the type 'function'");
    }
    id = json_get(call, "id");
    if (id && !is_text(id)) {
        return refuse(at, suffix, "must have a string as id");
    }
    (void)snprintf(suffix, sizeof suffix, ".tool_calls[%zu].function", idx);
    rc = read_function(&function, json_get(call, "function"), suffix, at);
    if (rc != OK) {
        return rc;
    }
    copy = shallow_copy(call, "function");
    if (!copy) {
        json_object_put(function);
        return no_memory(at->err);
    }
    rc = put(copy, "function", function, at->err);
    if (rc == OK && json_object_array_add(calls, copy) != 0) {
        rc = no_memory(at->err);
    }
    if (rc != OK) {
        json_object_put(copy);
    }
    return rc;
}

/* The older {"function_call": {...}}. */
static enum status add_old_call(struct json_object *calls, struct json_object *v,
                                const struct place *at)
{
    struct json_object *function = NULL, *call;
    enum status rc = read_function(&function, v, ".function_call", at);

    if (rc != OK) {
        return rc;
    }
    call = json_object_new_object();
    if (!call) {
        json_object_put(function);
        return no_memory(at->err);
    }
    rc = put(call, "type", json_object_new_string("function"), at->err);
    if (rc != OK) {
        json_object_put(function);
    } else {
        rc = put(call, "function", function, at->err);
    }
    if (rc == OK && json_object_array_add(calls, call) == 0) {
        return OK;
    }
    json_object_put(call);
    return rc == OK ? no_memory(at->err) : rc;
}

/* *out: a new array, or NULL when there are no calls. */
static enum status read_calls(struct json_object **out, struct json_object *message,
                              const char *role, const struct place *at)
{
    struct json_object *list = json_get(message, "tool_calls"), *calls;
    struct json_object *old = json_get(message, "function_call");
    enum status rc = OK;
    size_t n = 0;

    *out = NULL;
    if (list && !json_object_is_type(list, json_type_array)) {
        return refuse(at, ".tool_calls", "must be a list");
    }
    n = list ? json_object_array_length(list) : 0;
    if (n == 0 && !old) {
        return OK;
    }
    if (strcmp(role, "assistant") != 0) {
        return refuse(at, n ? ".tool_calls" : ".function_call", "belongs to assistant messages");
    }
    calls = json_object_new_array();
    if (!calls) {
        return no_memory(at->err);
    }
    for (size_t i = 0; i < n && rc == OK; i++) {
        rc = add_call(calls, json_object_array_get_idx(list, i), i, at);
    }
    if (n == 0) {
        rc = add_old_call(calls, old, at);
    }
    if (rc != OK) {
        json_object_put(calls);
        return rc;
    }
    *out = calls;
    return OK;
}

/* ---- messages ---- */

static enum status check_strings(struct json_object *message, const struct place *at)
{
    static const char *const keys[] = {"name", "tool_call_id", "reasoning_content"};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        struct json_object *v = json_get(message, keys[i]);
        if (v && !is_text(v)) {
            char suffix[40];
            (void)snprintf(suffix, sizeof suffix, ".%s", keys[i]);
            return refuse(at, suffix, "must be a string");
        }
    }
    return OK;
}

/* Whether the member is copied as it is; the others are handled one by one. */
static bool is_kept(const char *key, struct json_object *value)
{
    static const char *const handled[] = {"role", "content", "tool_calls", "function_call"};

    for (size_t i = 0; i < sizeof handled / sizeof *handled; i++) {
        if (strcmp(key, handled[i]) == 0) {
            return false;
        }
    }
    return value || (strcmp(key, "reasoning_content") != 0 && strcmp(key, "name") != 0 &&
                     strcmp(key, "tool_call_id") != 0);
}

static enum status fill_message(struct json_object *to, struct json_object *message,
                                const struct place *at)
{
    struct json_object *calls = NULL, *reasoning = json_get(message, "reasoning");
    const char *role = NULL;
    enum status rc = read_role(&role, message, at);

    if (rc == OK) {
        rc = check_strings(message, at);
    }
    if (rc == OK) {
        rc = put(to, "role", json_object_new_string(role), at->err);
    }
    if (rc == OK) {
        rc = read_calls(&calls, message, role, at);
    }
    if (rc == OK) {
        rc = put_content(to, message, role, calls != NULL, at);
    }
    if (rc != OK) {
        json_object_put(calls);
        return rc;
    }
    if (calls && (rc = put(to, "tool_calls", calls, at->err)) != OK) {
        return rc;
    }
    json_object_object_foreach(message, key, value)
    {
        if (is_kept(key, value) && (rc = put(to, key, json_object_get(value), at->err)) != OK) {
            return rc;
        }
    }
    if (is_text(reasoning) && !json_has(to, "reasoning_content")) {
        rc = put(to, "reasoning_content", json_object_get(reasoning), at->err);
    }
    return rc;
}

/* Message `idx`, normalised; *out is new. */
static enum status read_message(struct json_object **out, struct json_object *message, size_t idx,
                                struct error *err)
{
    struct place at = {.err = err};
    enum status rc;

    (void)snprintf(at.path, sizeof at.path, "messages[%zu]", idx);
    if (!json_object_is_type(message, json_type_object)) {
        return refuse(&at, "", "must be an object");
    }
    *out = json_object_new_object();
    if (!*out) {
        return no_memory(err);
    }
    rc = fill_message(*out, message, &at);
    if (rc != OK) {
        json_object_put(*out);
        *out = NULL;
    }
    return rc;
}

static bool is_system(struct json_object *message)
{
    return strcmp(json_object_get_string(json_get(message, "role")), "system") == 0;
}

/* Put the text of a further leading system message behind the first one's. */
static enum status merge_system(struct json_object *first, struct json_object *more,
                                struct error *err)
{
    struct str a = json_str(json_get(first, "content")), b = json_str(json_get(more, "content"));
    struct buf text;
    enum status rc;

    buf_init(&text);
    buf_append(&text, a.ptr, a.len);
    if (a.len > 0 && b.len > 0) {
        buf_append_str(&text, "\n\n");
    }
    buf_append(&text, b.ptr, b.len);
    rc =
        buf_ok(&text) && text.len <= INT32_MAX
            ? put(first, "content", json_object_new_string_len(buf_cstr(&text), (int)text.len), err)
            : no_memory(err);
    buf_release(&text);
    return rc;
}

static enum status add_message(struct json_object *list, struct json_object *message, size_t idx,
                               struct error *err)
{
    struct json_object *first =
        json_object_array_length(list) == 1 ? json_object_array_get_idx(list, 0) : NULL;
    enum status rc = OK;

    if (idx > 0 && first && is_system(first) && is_system(message)) {
        rc = merge_system(first, message, err);
        json_object_put(message);
        return rc;
    }
    if (json_object_array_add(list, message) != 0) {
        json_object_put(message);
        rc = no_memory(err);
    }
    return rc;
}

enum status chat_messages_normalise(struct json_object **out, struct json_object *in,
                                    struct error *err)
{
    struct json_object *list;
    enum status rc = OK;
    size_t n;

    *out = NULL;
    if (!in) {
        return error_set_param(err, ERR_BAD_REQUEST, "messages", "messages is missing");
    }
    if (!json_object_is_type(in, json_type_array)) {
        return error_set_param(err, ERR_BAD_REQUEST, "messages", "messages must be a list");
    }
    n = json_object_array_length(in);
    if (n == 0) {
        return error_set_param(err, ERR_BAD_REQUEST, "messages", "messages is empty");
    }
    list = json_object_new_array();
    if (!list) {
        return no_memory(err);
    }
    for (size_t i = 0; i < n && rc == OK; i++) {
        struct json_object *message = NULL;
        rc = read_message(&message, json_object_array_get_idx(in, i), i, err);
        if (rc == OK) {
            rc = add_message(list, message, i, err);
        }
    }
    if (rc != OK) {
        json_object_put(list);
        return rc;
    }
    *out = list;
    return OK;
}
