/* json_reader.c - a pull reader for JSON. See json_reader.h. */
#include "text/json_reader.h"

#include <stdarg.h>
#include <stdio.h>

void json_reader_init(struct json_reader *r, struct str text, struct error *err)
{
    size_t valid = utf8_valid_prefix(text.ptr, text.len);

    *r = (struct json_reader){.start = text.ptr, .at = text.ptr, .end = text.ptr, .err = err};
    r->end += text.len;
    if (valid != text.len) {
        r->at += valid;
        json_reader_fail(r, "invalid UTF-8");
    }
}

bool json_reader_ok(const struct json_reader *r)
{
    return r->rc == OK;
}

struct json_reader json_reader_section(const struct json_reader *r, struct str value)
{
    return (struct json_reader){
        .start = r->start, .at = value.ptr, .end = value.ptr + value.len, .err = r->err};
}

void json_reader_fail(struct json_reader *r, const char *fmt, ...)
{
    char text[ERROR_TEXT_BYTES / 2];
    va_list args;

    if (r->rc != OK) {
        return;
    }
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    r->rc = error_set(r->err, ERR_FORMAT, "%s at byte %zu", text, (size_t)(r->at - r->start));
    r->end = r->at; /* so that nothing more is read */
}

static void skip_space(struct json_reader *r)
{
    while (r->at < r->end &&
           (*r->at == ' ' || *r->at == '\n' || *r->at == '\r' || *r->at == '\t')) {
        r->at++;
    }
}

char json_reader_peek(struct json_reader *r)
{
    skip_space(r);
    return r->at < r->end ? *r->at : 0;
}

/* Take one punctuation character or fail. */
static bool expect(struct json_reader *r, char c)
{
    if (json_reader_peek(r) != c) {
        json_reader_fail(r, "expected '%c'", c);
        return false;
    }
    r->at++;
    return true;
}

static bool open_container(struct json_reader *r, char bracket)
{
    if (r->depth == JSON_READER_DEPTH_MAX) {
        json_reader_fail(r, "more than %d levels", JSON_READER_DEPTH_MAX);
    }
    if (!expect(r, bracket)) {
        return false;
    }
    r->has_item[r->depth++] = false;
    return true;
}

/* True when another element follows (its comma is taken), false after the closing bracket. */
static bool next_element(struct json_reader *r, char bracket)
{
    bool *has_item;

    if (r->rc != OK || r->depth == 0) {
        return false;
    }
    has_item = &r->has_item[r->depth - 1];
    if (json_reader_peek(r) == bracket) {
        r->at++;
        r->depth--;
        return false;
    }
    if (*has_item && !expect(r, ',')) {
        return false;
    }
    *has_item = true;
    return r->rc == OK;
}

bool json_reader_object(struct json_reader *r)
{
    return open_container(r, '{');
}

bool json_reader_array(struct json_reader *r)
{
    return open_container(r, '[');
}

bool json_reader_item(struct json_reader *r)
{
    return next_element(r, ']');
}

bool json_reader_key(struct json_reader *r, struct buf *scratch, struct str *key)
{
    if (!next_element(r, '}')) {
        return false;
    }
    *key = json_reader_string(r, scratch);
    return expect(r, ':');
}

/* The four digits of a \u escape, or UINT32_MAX. */
static uint32_t hex4(struct json_reader *r)
{
    uint32_t v = 0;

    if (r->end - r->at < 4) {
        json_reader_fail(r, "cut \\u escape");
        return UINT32_MAX;
    }
    for (int i = 0; i < 4; i++) {
        char c = *r->at;
        uint32_t digit;
        if (c >= '0' && c <= '9') {
            digit = (uint32_t)(c - '0');
        } else if ((c | 32) >= 'a' && (c | 32) <= 'f') {
            digit = (uint32_t)((c | 32) - 'a') + 10;
        } else {
            json_reader_fail(r, "bad \\u escape");
            return UINT32_MAX;
        }
        v = v << 4 | digit;
        r->at++;
    }
    return v;
}

static void unicode_escape(struct json_reader *r, struct buf *out)
{
    uint32_t cp = hex4(r);
    char bytes[4];

    if (cp >= 0xd800 && cp <= 0xdbff && r->end - r->at >= 2 && r->at[0] == '\\' &&
        r->at[1] == 'u') {
        uint32_t low;
        r->at += 2;
        low = hex4(r);
        if (low >= 0xdc00 && low <= 0xdfff) {
            cp = 0x10000 + ((cp - 0xd800) << 10 | (low - 0xdc00));
        }
    }
    if (r->rc == OK && cp >= 0xd800 && cp <= 0xdfff) {
        json_reader_fail(r, "lone surrogate");
    }
    if (r->rc == OK) {
        buf_append(out, bytes, utf8_encode(bytes, cp));
    }
}

static void escape(struct json_reader *r, struct buf *out)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char c = r->at < r->end ? *r->at++ : 0;
    const char *hit = c ? strchr(names, c) : NULL;

    if (c == 'u') {
        unicode_escape(r, out);
    } else if (hit) {
        buf_append_char(out, values[hit - names]);
    } else {
        json_reader_fail(r, "bad escape");
    }
}

/* From r->at to the next quote or backslash. */
static struct str plain_part(struct json_reader *r)
{
    const char *from = r->at;

    while (r->at < r->end && *r->at != '"' && *r->at != '\\' && (unsigned char)*r->at >= 0x20) {
        r->at++;
    }
    return (struct str){from, (size_t)(r->at - from)};
}

struct str json_reader_string(struct json_reader *r, struct buf *scratch)
{
    struct str part;

    if (!expect(r, '"')) {
        return STR("");
    }
    part = plain_part(r);
    if (r->at < r->end && *r->at == '"') { /* nearly all: no copy */
        r->at++;
        return part;
    }
    buf_clear(scratch);
    buf_append(scratch, part.ptr, part.len);
    while (r->at < r->end && *r->at != '"' && r->rc == OK) {
        if (*r->at != '\\') {
            json_reader_fail(r, "control character in a string");
            break;
        }
        r->at++;
        escape(r, scratch);
        part = plain_part(r);
        buf_append(scratch, part.ptr, part.len);
    }
    if (r->rc == OK && !buf_ok(scratch)) {
        r->rc =
            error_set(r->err, ERR_NO_MEMORY, "cannot allocate a string of %zu bytes", scratch->len);
        r->end = r->at;
    }
    if (r->rc == OK && r->at == r->end) {
        json_reader_fail(r, "unclosed string");
    }
    if (r->rc != OK) {
        return STR("");
    }
    r->at++;
    return (struct str){buf_cstr(scratch), scratch->len};
}

static bool is_digit(const struct json_reader *r)
{
    return r->at < r->end && *r->at >= '0' && *r->at <= '9';
}

static void skip_digits(struct json_reader *r)
{
    if (!is_digit(r)) {
        json_reader_fail(r, "bad number");
    }
    while (is_digit(r)) {
        r->at++;
    }
}

static void skip_number(struct json_reader *r)
{
    if (r->at < r->end && *r->at == '-') {
        r->at++;
    }
    if (r->at < r->end && *r->at == '0') {
        r->at++;
    } else {
        skip_digits(r);
    }
    if (r->at < r->end && *r->at == '.') {
        r->at++;
        skip_digits(r);
    }
    if (r->at < r->end && (*r->at | 32) == 'e') {
        r->at++;
        if (r->at < r->end && (*r->at == '+' || *r->at == '-')) {
            r->at++;
        }
        skip_digits(r);
    }
}

uint64_t json_reader_uint(struct json_reader *r, uint64_t max)
{
    uint64_t v = 0;
    const char *from;

    json_reader_peek(r);
    from = r->at;
    while (is_digit(r)) {
        uint64_t digit = (uint64_t)(*r->at - '0');
        if (digit > max || v > (max - digit) / 10) {
            json_reader_fail(r, "number over %llu", (unsigned long long)max);
            return 0;
        }
        v = v * 10 + digit;
        r->at++;
    }
    if (r->at == from || (*from == '0' && r->at - from > 1) ||
        (r->at < r->end && (*r->at == '.' || (*r->at | 32) == 'e'))) {
        json_reader_fail(r, "expected a whole number");
        return 0;
    }
    return v;
}

/* Take a literal word if it is what follows. */
static bool take_word(struct json_reader *r, struct str word)
{
    json_reader_peek(r);
    if (!str_starts((struct str){r->at, (size_t)(r->end - r->at)}, word)) {
        return false;
    }
    r->at += word.len;
    return true;
}

bool json_reader_bool(struct json_reader *r)
{
    if (take_word(r, STR("true"))) {
        return true;
    }
    if (!take_word(r, STR("false"))) {
        json_reader_fail(r, "expected true or false");
    }
    return false;
}

bool json_reader_null(struct json_reader *r)
{
    return take_word(r, STR("null"));
}

/* A string whose value nobody wants: only its escapes are checked. */
static void skip_string(struct json_reader *r)
{
    struct buf scratch;

    buf_init(&scratch);
    json_reader_string(r, &scratch);
    buf_release(&scratch);
}

static void skip_scalar(struct json_reader *r, char c)
{
    if (c == '"') {
        skip_string(r);
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        skip_number(r);
    } else if (c == 't' || c == 'f') {
        json_reader_bool(r);
    } else if (!json_reader_null(r)) {
        json_reader_fail(r, "expected a value");
    }
}

/* Not recursive: the closing brackets of the containers that the value opened are kept in a row. */
struct str json_reader_skip(struct json_reader *r)
{
    char closers[JSON_READER_DEPTH_MAX];
    size_t base = r->depth;
    const char *from;

    json_reader_peek(r);
    from = r->at;
    do {
        char c = json_reader_peek(r);
        if (c == '{' || c == '[') {
            if (!open_container(r, c)) {
                break;
            }
            closers[r->depth - 1] = c == '{' ? '}' : ']';
        } else {
            skip_scalar(r, c);
        }
        while (r->rc == OK && r->depth > base && !next_element(r, closers[r->depth - 1])) {
            /* next_element() has closed a container */
        }
        if (r->rc == OK && r->depth > base && closers[r->depth - 1] == '}') {
            skip_string(r);
            expect(r, ':');
        }
    } while (r->rc == OK && r->depth > base);
    return r->rc == OK ? (struct str){from, (size_t)(r->at - from)} : STR("");
}

void json_reader_finish(struct json_reader *r)
{
    json_reader_peek(r);
    if (r->rc == OK && r->at != r->end) {
        json_reader_fail(r, "unexpected text after the value");
    }
}
