/* json.h - reading and writing JSON, on json-c, with our limits.
 *
 * Place:  base; the only place that calls json-c's parser. Callers walk the values with json-c's own
 *         accessors (json_object_get_type, json_object_object_foreach, ...).
 * Accepts exactly RFC 8259: valid UTF-8, no NaN or Infinity, no raw control characters, nothing
 *         after the value, at most JSON_DEPTH_MAX levels. Integers beyond 64 bits are an error. A
 *         double keeps the text that it was written with (json_number_text). Duplicate keys: last wins.
 *         A lone surrogate escape becomes U+FFFD. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"

enum { JSON_DEPTH_MAX = 128 }; /* deeper documents are hostile, and recursion costs stack */

/* *out is the caller's: json_object_put(). JSON null gives OK with *out == NULL. ERR_FORMAT names the
 * byte offset. */
enum status json_parse(struct json_object **out, const char *text, size_t len, struct error *err);

/* Read and parse a file of at most bytes_max bytes. Errors name the path. */
enum status json_parse_file(struct json_object **out, const char *path, size_t bytes_max,
                            struct error *err);

/* The member `key` of object o, or NULL (also for o == NULL, o not an object, or a null member). */
struct json_object *json_get(struct json_object *o, const char *key);
bool json_has(struct json_object *o, const char *key); /* true also for a null member */

/* Typed members. Absent or null: *out unchanged, OK. Wrong type or range: code, with the key as
 * error.param and in the text. */
enum status json_get_size(size_t *out, struct json_object *o, const char *key, enum status code,
                          struct error *err);
enum status json_get_int(int64_t *out, struct json_object *o, const char *key, enum status code,
                         struct error *err);
enum status json_get_double(double *out, struct json_object *o, const char *key, enum status code,
                            struct error *err);
enum status json_get_bool(bool *out, struct json_object *o, const char *key, enum status code,
                          struct error *err);
enum status json_get_string(const char **out, struct json_object *o, const char *key,
                            enum status code, struct error *err); /* borrowed; NUL inside: error */

/* A string value as a slice (may hold NUL bytes). v must be a string. */
struct str json_str(struct json_object *v);

/* The text of a number as it stood in the document. */
const char *json_number_text(struct json_object *v);

/* Append text as a JSON string with its quotes: escapes only what JSON demands; the bytes must be
 * valid UTF-8 (bad parts become U+FFFD). */
void json_write_string(struct buf *b, const char *text, size_t len);

/* Python's repr() of a float: shortest digits that round-trip, "1.0", "1e+16", "1e-05". inf and nan
 * print as "Infinity", "NaN". out holds at least 32 bytes. */
void json_float_repr(char *out, double v);

/* Append v as Python's json.dumps prints it: ", " and ": " separators, key order kept (or sorted),
 * ensure_ascii as asked, indent < 0 for one line. Floats by json_float_repr. */
struct json_python_style {
    bool ensure_ascii;
    bool sort_keys;
    int indent; /* -1: one line */
};
void json_write_python(struct buf *b, struct json_object *v, const struct json_python_style *style);

/* Append v in the compact form for the wire ("," and ":"). */
void json_write(struct buf *b, struct json_object *v);

#endif
