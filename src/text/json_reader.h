/* json_reader.h - reads a JSON text in order, without building a tree.
 *
 * Place:  text; for tokenizer.json only. json-c needs 0.45 s and 140 MB to build and free the tree of a
 *         vocabulary of 250,000 entries; here a string without escapes is a slice of the input.
 *         Everything else in the program reads JSON through base/json.h.
 * Accepts exactly RFC 8259, as base/json.h does, except that a lone surrogate escape is an error.
 * Errors stick: after the first one every function does nothing and returns false, 0 or an empty
 *         slice, so a caller checks json_reader_ok() once, at the end of a section. */
#ifndef TEXT_JSON_READER_H
#define TEXT_JSON_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"

enum { JSON_READER_DEPTH_MAX = 64 };

struct json_reader {
    const char *start, *at, *end;
    size_t depth;
    bool has_item[JSON_READER_DEPTH_MAX]; /* of the open containers: a comma must come next */
    enum status rc;
    struct error *err; /* may be NULL */
};

/* The text must be valid UTF-8 (checked here) and outlive the reader. */
void json_reader_init(struct json_reader *r, struct str text, struct error *err);
bool json_reader_ok(const struct json_reader *r);

/* A reader of one value that json_reader_skip() returned; its errors count bytes as r does. */
struct json_reader json_reader_section(const struct json_reader *r, struct str value);

/* Record an error of the caller's, with the current byte offset behind it. */
void json_reader_fail(struct json_reader *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* First character of the next value: { [ " t f n - or a digit; 0 at the end or after an error. */
char json_reader_peek(struct json_reader *r);

/* Containers: open, then take the keys or items until false, which closes. *key is valid as a string
 * value is, see json_reader_string. */
bool json_reader_object(struct json_reader *r);
bool json_reader_key(struct json_reader *r, struct buf *scratch, struct str *key);
bool json_reader_array(struct json_reader *r);
bool json_reader_item(struct json_reader *r);

/* A slice of the input, or of scratch (overwritten) when the string has escapes. */
struct str json_reader_string(struct json_reader *r, struct buf *scratch);
uint64_t json_reader_uint(struct json_reader *r, uint64_t max); /* integer in 0..max */
bool json_reader_bool(struct json_reader *r);
bool json_reader_null(struct json_reader *r); /* true: the value is null, and consumed */

/* Step over one value of any kind, checking its syntax; returns its text. */
struct str json_reader_skip(struct json_reader *r);

/* Only white space may be left. */
void json_reader_finish(struct json_reader *r);

#endif
