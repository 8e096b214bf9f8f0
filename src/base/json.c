/* json.c - json-c's parser with our limits, typed members. See json.h.
 *
 * json-c's strict mode lets some things pass that RFC 8259 forbids (NaN, Infinity, raw control
 * characters in strings, integers that it clamps to 64 bits) and cannot see invalid UTF-8 in older
 * versions. So the text goes through a small scan first, which also checks the depth: it walks the
 * bytes once, knows whether it is inside a string, and looks at each word outside of strings. */
#include "base/json.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"

struct scan {
    const char *text;
    size_t len, at;
    size_t depth;
    size_t value_end; /* behind the first whole value, 0: none yet */
};

static enum status fault(struct error *err, size_t at, const char *what)
{
    return error_set(err, ERR_FORMAT, "invalid JSON at byte %zu: %s", at, what);
}

static enum status scan_string(struct scan *s, struct error *err)
{
    size_t start = s->at++;

    for (; s->at < s->len; s->at++) {
        unsigned char c = (unsigned char)s->text[s->at];
        if (c == '"') {
            s->at++;
            return OK;
        }
        if (c < 0x20) {
            return fault(err, s->at, "control character in a string");
        }
        if (c == '\\') {
            s->at++;
            if (s->at >= s->len || !strchr("\"\\/bfnrtu", s->text[s->at]) ||
                s->text[s->at] == '\0') {
                return fault(err, s->at, "unknown escape");
            }
        }
    }
    return fault(err, start, "string without an end");
}

/* A number by the grammar: -? int frac? exp?; an integer must fit into 64 bits. */
static enum status scan_number(struct scan *s, struct error *err)
{
    size_t start = s->at, digits;
    bool is_integer = true;
    const char *t = s->text;

#define AT_DIGIT() (s->at < s->len && t[s->at] >= '0' && t[s->at] <= '9')
    if (t[s->at] == '-') {
        s->at++;
    }
    digits = s->at;
    while (AT_DIGIT()) {
        s->at++;
    }
    if (s->at == digits || (t[digits] == '0' && s->at > digits + 1)) {
        return fault(err, start, "malformed number");
    }
    if (s->at < s->len && t[s->at] == '.') {
        is_integer = false;
        digits = ++s->at;
        while (AT_DIGIT()) {
            s->at++;
        }
        if (s->at == digits) {
            return fault(err, start, "malformed number");
        }
    }
    if (s->at < s->len && (t[s->at] == 'e' || t[s->at] == 'E')) {
        is_integer = false;
        s->at++;
        if (s->at < s->len && (t[s->at] == '+' || t[s->at] == '-')) {
            s->at++;
        }
        digits = s->at;
        while (AT_DIGIT()) {
            s->at++;
        }
        if (s->at == digits) {
            return fault(err, start, "malformed number");
        }
    }
#undef AT_DIGIT
    if (is_integer) {
        char number[24];
        size_t n = s->at - start;
        if (n >= sizeof number) {
            return fault(err, start, "integer beyond 64 bits");
        }
        memcpy(number, t + start, n);
        number[n] = '\0';
        errno = 0;
        if (number[0] == '-') {
            (void)strtoll(number, NULL, 10);
        } else {
            (void)strtoull(number, NULL, 10);
        }
        if (errno == ERANGE) {
            return fault(err, start, "integer beyond 64 bits");
        }
    }
    return OK;
}

static bool take_word(struct scan *s, const char *word)
{
    size_t n = strlen(word);
    if (s->len - s->at >= n && memcmp(s->text + s->at, word, n) == 0) {
        s->at += n;
        return true;
    }
    return false;
}

static enum status scan_all(struct scan *s, struct error *err)
{
    while (s->at < s->len) {
        enum status rc = OK;
        char c = s->text[s->at];
        switch (c) {
        case ' ':
        case '\t':
        case '\n':
        case '\r':
        case ',':
        case ':':
            s->at++;
            break;
        case '{':
        case '[':
            s->at++;
            if (++s->depth > JSON_DEPTH_MAX) {
                rc = error_set(err, ERR_FORMAT, "invalid JSON at byte %zu: nested deeper than %d",
                               s->at - 1, JSON_DEPTH_MAX);
            }
            break;
        case '}':
        case ']':
            s->at++;
            s->depth -= s->depth > 0;
            break;
        case '"':
            rc = scan_string(s, err);
            break;
        default:
            if (c == '-' || (c >= '0' && c <= '9')) {
                rc = scan_number(s, err);
            } else if (!take_word(s, "true") && !take_word(s, "false") && !take_word(s, "null")) {
                rc = fault(err, s->at, "unexpected character");
            }
            break;
        }
        if (rc != OK) {
            return rc;
        }
        if (s->depth == 0 && s->value_end == 0 && !strchr(" \t\r\n,:", c)) {
            s->value_end = s->at;
        }
    }
    return OK;
}

enum status json_parse(struct json_object **out, const char *text, size_t len, struct error *err)
{
    struct scan scan = {text, len, 0, 0, 0};
    struct json_tokener *tokener;
    enum json_tokener_error code;
    enum status rc;
    size_t valid = utf8_valid_prefix(text, len);
    size_t end;

    *out = NULL;
    if (valid != len) {
        return fault(err, valid, "invalid UTF-8");
    }
    if (len > INT_MAX) {
        return error_set(err, ERR_FORMAT, "invalid JSON: %zu bytes are too many", len);
    }
    rc = scan_all(&scan, err);
    if (rc != OK) {
        return rc;
    }
    tokener = json_tokener_new_ex(JSON_DEPTH_MAX + 1);
    if (!tokener) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a JSON parser");
    }
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT);
    *out = json_tokener_parse_ex(tokener, text, (int)len);
    code = json_tokener_get_error(tokener);
    end = json_tokener_get_parse_end(tokener);
    if (code == json_tokener_continue && !*out) {
        /* A bare number or word at the top ends only at the end of the text. */
        *out = json_tokener_parse_ex(tokener, "", 1);
        code = json_tokener_get_error(tokener);
    }
    if (code != json_tokener_success) {
        rc = code == json_tokener_continue ? fault(err, len, "unexpected end")
                                           : fault(err, end, json_tokener_error_desc(code));
    } else if (end < scan.value_end) {
        /* json-c calls it a success when it cannot allocate, and gives what it has so far. */
        rc = error_set(err, ERR_NO_MEMORY, "cannot allocate a JSON value");
    } else {
        while (end < len && strchr(" \t\r\n", text[end])) {
            end++;
        }
        if (end < len) {
            rc = fault(err, end, "text after the value");
        }
    }
    if (rc != OK) {
        json_object_put(*out);
        *out = NULL;
    }
    json_tokener_free(tokener);
    return rc;
}

enum status json_parse_file(struct json_object **out, const char *path, size_t bytes_max,
                            struct error *err)
{
    char *text;
    size_t len;
    enum status rc;

    *out = NULL;
    rc = file_read(&text, &len, path, bytes_max, err);
    if (rc != OK) {
        return rc;
    }
    rc = json_parse(out, text, len, err);
    if (rc != OK) {
        error_prefix(err, "'%s'", path);
    }
    free(text);
    return rc;
}

struct json_object *json_get(struct json_object *o, const char *key)
{
    struct json_object *v = NULL;
    if (o && json_object_is_type(o, json_type_object)) {
        json_object_object_get_ex(o, key, &v);
    }
    return v;
}

bool json_has(struct json_object *o, const char *key)
{
    return o && json_object_is_type(o, json_type_object) && json_object_object_get_ex(o, key, NULL);
}

static enum status member_fault(struct error *err, enum status code, const char *key,
                                const char *wanted)
{
    return error_set_param(err, code, key, "'%s' must be %s", key, wanted);
}

enum status json_get_int(int64_t *out, struct json_object *o, const char *key, enum status code,
                         struct error *err)
{
    struct json_object *v = json_get(o, key);

    if (!v) {
        return OK;
    }
    if (json_object_is_type(v, json_type_double)) { /* 3.0 is an integer to many clients */
        double d = json_object_get_double(v);
        if (d >= -0x1p53 && d <= 0x1p53 && d == floor(d)) {
            *out = (int64_t)d;
            return OK;
        }
    }
    if (!json_object_is_type(v, json_type_int) || json_object_get_uint64(v) > INT64_MAX) {
        return member_fault(err, code, key, "an integer");
    }
    *out = json_object_get_int64(v);
    return OK;
}

enum status json_get_size(size_t *out, struct json_object *o, const char *key, enum status code,
                          struct error *err)
{
    int64_t v = -1;
    enum status rc;

    if (!json_get(o, key)) {
        return OK;
    }
    rc = json_get_int(&v, o, key, code, err);
    if (rc != OK) {
        return rc;
    }
    if (v < 0) {
        return member_fault(err, code, key, "an integer >= 0");
    }
    *out = (size_t)v;
    return OK;
}

enum status json_get_double(double *out, struct json_object *o, const char *key, enum status code,
                            struct error *err)
{
    struct json_object *v = json_get(o, key);

    if (!v) {
        return OK;
    }
    if (!json_object_is_type(v, json_type_double) && !json_object_is_type(v, json_type_int)) {
        return member_fault(err, code, key, "a number");
    }
    *out = json_object_get_double(v);
    return OK;
}

enum status json_get_bool(bool *out, struct json_object *o, const char *key, enum status code,
                          struct error *err)
{
    struct json_object *v = json_get(o, key);

    if (!v) {
        return OK;
    }
    if (!json_object_is_type(v, json_type_boolean)) {
        return member_fault(err, code, key, "true or false");
    }
    *out = json_object_get_boolean(v);
    return OK;
}

enum status json_get_string(const char **out, struct json_object *o, const char *key,
                            enum status code, struct error *err)
{
    struct json_object *v = json_get(o, key);

    if (!v) {
        return OK;
    }
    if (!json_object_is_type(v, json_type_string)) {
        return member_fault(err, code, key, "a string");
    }
    if (strlen(json_object_get_string(v)) != (size_t)json_object_get_string_len(v)) {
        return member_fault(err, code, key, "a string without NUL characters");
    }
    *out = json_object_get_string(v);
    return OK;
}

struct str json_str(struct json_object *v)
{
    return (struct str){json_object_get_string(v), (size_t)json_object_get_string_len(v)};
}

const char *json_number_text(struct json_object *v)
{
    return json_object_to_json_string_ext(v, JSON_C_TO_STRING_PLAIN);
}
