/* json_write.c - JSON output: the wire's compact form and Python's. See json.h.
 *
 * Chat templates print tool schemas with tojson, and models were trained on what Python prints; so
 * floats, separators and escapes follow json.dumps to the letter. */
#include "base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void write_escape(struct buf *b, unsigned char c)
{
    switch (c) {
    case '"':
        buf_append_str(b, "\\\"");
        break;
    case '\\':
        buf_append_str(b, "\\\\");
        break;
    case '\b':
        buf_append_str(b, "\\b");
        break;
    case '\f':
        buf_append_str(b, "\\f");
        break;
    case '\n':
        buf_append_str(b, "\\n");
        break;
    case '\r':
        buf_append_str(b, "\\r");
        break;
    case '\t':
        buf_append_str(b, "\\t");
        break;
    default:
        buf_appendf(b, "\\u%04x", c);
        break;
    }
}

static void write_utf16_escape(struct buf *b, uint32_t cp)
{
    if (cp >= 0x10000) {
        cp -= 0x10000;
        buf_appendf(b, "\\u%04x\\u%04x", (unsigned)(0xd800 + (cp >> 10)),
                    (unsigned)(0xdc00 + (cp & 0x3ff)));
    } else {
        buf_appendf(b, "\\u%04x", (unsigned)cp);
    }
}

static void write_string(struct buf *b, const char *text, size_t len, bool ensure_ascii)
{
    size_t i = 0, plain = 0; /* text[plain .. i) waits to be copied as it is */

    buf_append_char(b, '"');
    while (i < len) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') {
            i++;
        } else if (c == 0x7f) { /* neither JSON nor Python escapes DEL */
            i++;
        } else if (c < 0x80) {
            buf_append(b, text + plain, i - plain);
            write_escape(b, c);
            plain = ++i;
        } else {
            uint32_t cp;
            size_t used = utf8_decode(&cp, text + i, len - i);
            bool is_bad = cp == 0xfffd && !(used == 3 && memcmp(text + i, "\xef\xbf\xbd", 3) == 0);
            if (!ensure_ascii && !is_bad) {
                i += used;
                continue;
            }
            buf_append(b, text + plain, i - plain);
            if (ensure_ascii) {
                write_utf16_escape(b, cp);
            } else {
                buf_append_str(b, "\xef\xbf\xbd");
            }
            i += used;
            plain = i;
        }
    }
    buf_append(b, text + plain, len - plain);
    buf_append_char(b, '"');
}

void json_write_string(struct buf *b, const char *text, size_t len)
{
    write_string(b, text, len, false);
}

/* Digits of the shortest %.{p}e that reads back as v, laid out as Python does: fixed notation for
 * exponents -4 .. 15, else scientific with at least two exponent digits. */
void json_float_repr(char *out, double v)
{
    enum { REPR_BYTES = 32 };
    char digits[REPR_BYTES], *mantissa = digits;
    int exponent, n_digits;
    char all[24];

    if (isnan(v) || isinf(v)) {
        snprintf(out, REPR_BYTES, "%s", isnan(v) ? "NaN" : v < 0 ? "-Infinity" : "Infinity");
        return;
    }
    for (int p = 0; p < 17; p++) {
        snprintf(digits, sizeof digits, "%.*e", p, v);
        if (strtod(digits, NULL) == v) {
            break;
        }
    }
    exponent = (int)strtol(strchr(digits, 'e') + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16) {
        char *e = strchr(digits, 'e');
        char number[64];
        *e = '\0';
        snprintf(number, sizeof number, "%se%c%02d", digits, exponent < 0 ? '-' : '+',
                 abs(exponent));
        snprintf(out, REPR_BYTES, "%.31s", number);
        return;
    }
    n_digits = 0;
    if (*mantissa == '-') {
        mantissa++;
    }
    for (char *p = mantissa; *p != 'e'; p++) {
        if (*p != '.') {
            all[n_digits++] = *p;
        }
    }
    while (n_digits > 1 && all[n_digits - 1] == '0') {
        n_digits--;
    }
    if (*digits == '-') {
        *out++ = '-';
    }
    if (exponent < 0) {
        snprintf(out, REPR_BYTES - 1, "0.%.*s%.*s", -exponent - 1, "000", n_digits, all);
    } else if (n_digits <= exponent + 1) {
        snprintf(out, REPR_BYTES - 1, "%.*s%.*s.0", n_digits, all, exponent + 1 - n_digits,
                 "0000000000000000");
    } else {
        snprintf(out, REPR_BYTES - 1, "%.*s.%.*s", exponent + 1, all, n_digits - exponent - 1,
                 all + exponent + 1);
    }
}

static void write_int(struct buf *b, struct json_object *v)
{
    int64_t i = json_object_get_int64(v);
    if (i == INT64_MAX) { /* json-c keeps larger values as unsigned */
        buf_appendf(b, "%" PRIu64, json_object_get_uint64(v));
    } else {
        buf_appendf(b, "%" PRId64, i);
    }
}

struct writer {
    struct buf *b;
    struct json_python_style style;
    const char *item_separator, *key_separator;
    size_t depth;
};

static void newline(struct writer *w)
{
    if (w->style.indent >= 0) {
        buf_append_char(w->b, '\n');
        for (size_t i = 0; i < w->depth * (size_t)w->style.indent; i++) {
            buf_append_char(w->b, ' ');
        }
    }
}

static void write_value(struct writer *w, struct json_object *v);

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void write_member(struct writer *w, const char *key, struct json_object *v, bool is_first)
{
    if (!is_first) {
        buf_append_str(w->b, w->item_separator);
    }
    newline(w);
    write_string(w->b, key, strlen(key), w->style.ensure_ascii);
    buf_append_str(w->b, w->key_separator);
    write_value(w, v);
}

static void write_object(struct writer *w, struct json_object *v)
{
    size_t n = (size_t)json_object_object_length(v), i = 0;
    const char **keys;

    if (n == 0) {
        buf_append_str(w->b, "{}");
        return;
    }
    keys = malloc(n * sizeof *keys);
    if (!keys) {
        w->b->failed = true;
        return;
    }
    json_object_object_foreach(v, key, member)
    {
        (void)member;
        keys[i++] = key;
    }
    if (w->style.sort_keys) {
        qsort(keys, n, sizeof *keys, compare_keys);
    }
    buf_append_char(w->b, '{');
    w->depth++;
    for (i = 0; i < n; i++) {
        write_member(w, keys[i], json_object_object_get(v, keys[i]), i == 0);
    }
    w->depth--;
    newline(w);
    buf_append_char(w->b, '}');
    free(keys);
}

static void write_array(struct writer *w, struct json_object *v)
{
    size_t n = json_object_array_length(v);

    if (n == 0) {
        buf_append_str(w->b, "[]");
        return;
    }
    buf_append_char(w->b, '[');
    w->depth++;
    for (size_t i = 0; i < n; i++) {
        if (i > 0) {
            buf_append_str(w->b, w->item_separator);
        }
        newline(w);
        write_value(w, json_object_array_get_idx(v, i));
    }
    w->depth--;
    newline(w);
    buf_append_char(w->b, ']');
}

static void write_value(struct writer *w, struct json_object *v)
{
    char number[32];

    switch (json_object_get_type(v)) {
    case json_type_null:
        buf_append_str(w->b, "null");
        break;
    case json_type_boolean:
        buf_append_str(w->b, json_object_get_boolean(v) ? "true" : "false");
        break;
    case json_type_int:
        write_int(w->b, v);
        break;
    case json_type_double:
        json_float_repr(number, json_object_get_double(v));
        buf_append_str(w->b, number);
        break;
    case json_type_string:
        write_string(w->b, json_object_get_string(v), (size_t)json_object_get_string_len(v),
                     w->style.ensure_ascii);
        break;
    case json_type_array:
        write_array(w, v);
        break;
    case json_type_object:
        write_object(w, v);
        break;
    }
}

void json_write_python(struct buf *b, struct json_object *v, const struct json_python_style *style)
{
    struct writer w = {b, *style, style->indent >= 0 ? "," : ", ", ": ", 0};
    write_value(&w, v);
}

void json_write(struct buf *b, struct json_object *v)
{
    struct writer w = {b, {.ensure_ascii = false, .indent = -1}, ",", ":", 0};
    write_value(&w, v);
}
