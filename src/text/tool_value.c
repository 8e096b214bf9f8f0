/* tool_value.c - types of tool parameters. See tool_value.h. */
#include "text/tool_value.h"

#include <strings.h>

static enum tool_value_kind kind_by_name(const char *type)
{
    static const struct {
        const char *name;
        enum tool_value_kind kind;
    } names[] = {
        {"string", TOOL_VALUE_STRING}, {"integer", TOOL_VALUE_INTEGER},
        {"number", TOOL_VALUE_NUMBER}, {"boolean", TOOL_VALUE_BOOLEAN},
        {"object", TOOL_VALUE_OBJECT}, {"array", TOOL_VALUE_ARRAY},
        {"null", TOOL_VALUE_NULL},     {"int", TOOL_VALUE_INTEGER},
        {"float", TOOL_VALUE_NUMBER},  {"bool", TOOL_VALUE_BOOLEAN},
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(type, names[i].name) == 0) {
            return names[i].kind;
        }
    }
    return TOOL_VALUE_STRING;
}

static enum tool_value_kind kind_of_json(struct json_object *v)
{
    switch (json_object_get_type(v)) {
    case json_type_null:
        return TOOL_VALUE_NULL;
    case json_type_boolean:
        return TOOL_VALUE_BOOLEAN;
    case json_type_int:
        return TOOL_VALUE_INTEGER;
    case json_type_double:
        return TOOL_VALUE_NUMBER;
    case json_type_object:
        return TOOL_VALUE_OBJECT;
    case json_type_array:
        return TOOL_VALUE_ARRAY;
    case json_type_string:
        break;
    }
    return TOOL_VALUE_STRING;
}

/* The union of two kinds. null beside another kind adds nothing: the text "null" is null anyway. A
 * string beside another kind makes it a string: then the text as it stands is always right. */
static enum tool_value_kind join(enum tool_value_kind a, enum tool_value_kind b)
{
    if (a == b || b == TOOL_VALUE_NULL) {
        return a;
    }
    if (a == TOOL_VALUE_NULL) {
        return b;
    }
    if (a == TOOL_VALUE_STRING || b == TOOL_VALUE_STRING) {
        return TOOL_VALUE_STRING;
    }
    return TOOL_VALUE_ANY;
}

static enum tool_value_kind kind_of_schema(struct json_object *schema, int depth);

/* over an array of type names, schemas or constants */
static enum tool_value_kind join_all(struct json_object *list,
                                     enum tool_value_kind (*kind_of)(struct json_object *, int),
                                     int depth)
{
    enum tool_value_kind kind = TOOL_VALUE_NULL;
    size_t n = json_object_array_length(list);

    for (size_t i = 0; i < n; i++) {
        kind = join(kind, kind_of(json_object_array_get_idx(list, i), depth));
    }
    return n > 0 ? kind : TOOL_VALUE_STRING;
}

static enum tool_value_kind kind_of_type_item(struct json_object *v, int depth)
{
    (void)depth;
    return json_object_is_type(v, json_type_string) ? kind_by_name(json_object_get_string(v))
                                                    : TOOL_VALUE_STRING;
}

static enum tool_value_kind kind_of_constant(struct json_object *v, int depth)
{
    (void)depth;
    return kind_of_json(v);
}

static enum tool_value_kind kind_of_schema(struct json_object *schema, int depth)
{
    enum { UNION_DEPTH_MAX = 8 };
    static const char *const unions[] = {"anyOf", "oneOf", "allOf"};
    struct json_object *v = json_get(schema, "type");

    if (!json_object_is_type(schema, json_type_object) || depth > UNION_DEPTH_MAX) {
        return TOOL_VALUE_ANY;
    }
    if (json_object_is_type(v, json_type_string)) {
        return kind_by_name(json_object_get_string(v));
    }
    if (json_object_is_type(v, json_type_array)) {
        return join_all(v, kind_of_type_item, depth);
    }
    for (size_t i = 0; i < sizeof unions / sizeof *unions; i++) {
        v = json_get(schema, unions[i]);
        if (json_object_is_type(v, json_type_array)) {
            return join_all(v, kind_of_schema, depth + 1);
        }
    }
    v = json_get(schema, "enum");
    if (json_object_is_type(v, json_type_array)) {
        return join_all(v, kind_of_constant, depth);
    }
    if (json_has(schema, "const")) {
        return kind_of_json(json_get(schema, "const"));
    }
    if (json_has(schema, "properties")) {
        return TOOL_VALUE_OBJECT;
    }
    if (json_has(schema, "items")) {
        return TOOL_VALUE_ARRAY;
    }
    return json_has(schema, "$ref") ? TOOL_VALUE_ANY : TOOL_VALUE_STRING;
}

struct json_object *tool_properties_of(struct json_object *tools, struct str name)
{
    size_t n = json_object_is_type(tools, json_type_array) ? json_object_array_length(tools) : 0;

    for (size_t i = 0; i < n; i++) {
        struct json_object *tool = json_object_array_get_idx(tools, i);
        struct json_object *f = json_get(tool, "function");
        struct json_object *v = json_get(f ? f : tool, "name");
        if (json_object_is_type(v, json_type_string) && str_eq(json_str(v), name)) {
            v = json_get(json_get(f ? f : tool, "parameters"), "properties");
            return json_object_is_type(v, json_type_object) ? v : NULL;
        }
    }
    return NULL;
}

enum tool_value_kind tool_value_kind_of(struct json_object *properties, const char *key)
{
    return json_has(properties, key) ? kind_of_schema(json_get(properties, key), 0)
                                     : TOOL_VALUE_STRING;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static struct str trim(struct str s)
{
    while (s.len > 0 && is_space(s.ptr[0])) {
        s.ptr++;
        s.len--;
    }
    while (s.len > 0 && is_space(s.ptr[s.len - 1])) {
        s.len--;
    }
    return s;
}

/* Does text, parsed as JSON, have the wanted kind? Integers count as numbers. */
static bool write_as_json(struct buf *out, enum tool_value_kind kind, struct str text)
{
    struct json_object *v = NULL;
    enum tool_value_kind found;
    bool fits;

    if (json_parse(&v, text.ptr, text.len, NULL) != OK) {
        return false;
    }
    found = kind_of_json(v);
    fits = kind == TOOL_VALUE_ANY || found == kind ||
           (kind == TOOL_VALUE_NUMBER && found == TOOL_VALUE_INTEGER);
    if (fits) {
        if (found == TOOL_VALUE_NUMBER || found == TOOL_VALUE_INTEGER) {
            buf_append(out, text.ptr, text.len); /* the digits as the model wrote them */
        } else {
            json_write(out, v);
        }
    }
    json_object_put(v);
    return fits;
}

void tool_value_write(struct buf *out, enum tool_value_kind kind, struct str text)
{
    struct str word = kind == TOOL_VALUE_STRING ? text : trim(text);

    if (str_eq(word, STR("null"))) {
        buf_append_str(out, "null");
        return;
    }
    if (kind == TOOL_VALUE_BOOLEAN && word.len == 4 && strncasecmp(word.ptr, "true", 4) == 0) {
        buf_append_str(out, "true"); /* templates show Python's True as well */
        return;
    }
    if (kind == TOOL_VALUE_BOOLEAN && word.len == 5 && strncasecmp(word.ptr, "false", 5) == 0) {
        buf_append_str(out, "false");
        return;
    }
    if (kind != TOOL_VALUE_STRING && kind != TOOL_VALUE_NULL && word.len > 0 &&
        write_as_json(out, kind, word)) {
        return;
    }
    json_write_string(out, text.ptr, text.len);
}
