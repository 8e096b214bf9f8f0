/* tool_value.h - what type a tool's parameter has, and a value of that type as JSON.
 *
 * Place: text; used by tool_format. Models write parameter values as bare text, so the tool's schema
 *        decides what the text means. */
#ifndef TEXT_TOOL_VALUE_H
#define TEXT_TOOL_VALUE_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/str.h"

enum tool_value_kind {
    TOOL_VALUE_STRING, /* also when the schema says nothing */
    TOOL_VALUE_INTEGER,
    TOOL_VALUE_NUMBER,
    TOOL_VALUE_BOOLEAN,
    TOOL_VALUE_OBJECT,
    TOOL_VALUE_ARRAY,
    TOOL_VALUE_NULL,
    TOOL_VALUE_ANY /* the schema needs more than one look ($ref, mixed unions): JSON if it parses */
};

/* The "properties" of function `name` in the request's tools array (may be NULL); borrowed, or NULL. */
struct json_object *tool_properties_of(struct json_object *tools, struct str name);

/* The kind of parameter `key` by those properties (may be NULL). */
enum tool_value_kind tool_value_kind_of(struct json_object *properties, const char *key);

/* Append text as a JSON value of that kind; what does not parse is appended as a string. */
void tool_value_write(struct buf *out, enum tool_value_kind kind, struct str text);

#endif
