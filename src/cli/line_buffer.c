/* line_buffer.c - see line_buffer.h. */
#include "cli/line_buffer.h"

#include <string.h>
#include <utf8proc.h>

#include "base/size.h"

enum { VARIATION_EMOJI = 0xfe0f };

void line_buffer_init(struct line_buffer *b)
{
    buf_init_limited(&b->text, LINE_BYTES_MAX);
    buf_init_limited(&b->killed, LINE_BYTES_MAX);
    b->cursor = 0;
}

void line_buffer_release(struct line_buffer *b)
{
    buf_release(&b->text);
    buf_release(&b->killed);
}

size_t cluster_next(const char *text, size_t len, size_t *width)
{
    utf8proc_int32_t state = 0;
    uint32_t cp = 0, next = 0;
    size_t used = utf8_decode(&cp, text, len);
    int cells = utf8proc_charwidth((utf8proc_int32_t)cp);
    while (used < len) {
        size_t n = utf8_decode(&next, text + used, len - used);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)cp, (utf8proc_int32_t)next,
                                             &state)) {
            break;
        }
        int more = next == VARIATION_EMOJI ? 2 : utf8proc_charwidth((utf8proc_int32_t)next);
        cells = more > cells ? more : cells;
        cp = next;
        used += n;
    }
    *width = cells > 0 ? (size_t)cells : 0;
    return used;
}

/* ---- moving --------------------------------------------------------------------------------- */

static size_t line_start(const struct line_buffer *b, size_t at)
{
    while (at > 0 && b->text.data[at - 1] != '\n') {
        at--;
    }
    return at;
}

static size_t line_end(const struct line_buffer *b, size_t at)
{
    while (at < b->text.len && b->text.data[at] != '\n') {
        at++;
    }
    return at;
}

/* Clusters can only be found going forward, so start from the line's begin. */
static size_t cluster_before(const struct line_buffer *b, size_t at)
{
    size_t from = line_start(b, at), width;
    if (from == at) {
        return at - 1; /* the newline */
    }
    for (;;) {
        size_t next = from + cluster_next(b->text.data + from, b->text.len - from, &width);
        if (next >= at) {
            return from;
        }
        from = next;
    }
}

bool line_buffer_left(struct line_buffer *b)
{
    if (b->cursor == 0) {
        return false;
    }
    b->cursor = cluster_before(b, b->cursor);
    return true;
}

bool line_buffer_right(struct line_buffer *b)
{
    size_t width;
    if (b->cursor == b->text.len) {
        return false;
    }
    b->cursor += cluster_next(b->text.data + b->cursor, b->text.len - b->cursor, &width);
    return true;
}

void line_buffer_home(struct line_buffer *b)
{
    b->cursor = line_start(b, b->cursor);
}

void line_buffer_end(struct line_buffer *b)
{
    b->cursor = line_end(b, b->cursor);
}

/* The border at or before `want` cells into the line that begins at `start`. */
static size_t at_column(const struct line_buffer *b, size_t start, size_t want)
{
    size_t at = start, end = line_end(b, start), column = 0, width;
    while (at < end && column < want) {
        at += cluster_next(b->text.data + at, end - at, &width);
        column += width;
    }
    return at;
}

static size_t column_of(const struct line_buffer *b)
{
    size_t at = line_start(b, b->cursor), column = 0, width;
    while (at < b->cursor) {
        at += cluster_next(b->text.data + at, b->cursor - at, &width);
        column += width;
    }
    return column;
}

bool line_buffer_up(struct line_buffer *b)
{
    size_t start = line_start(b, b->cursor);
    if (start == 0) {
        return false;
    }
    b->cursor = at_column(b, line_start(b, start - 1), column_of(b));
    return true;
}

bool line_buffer_down(struct line_buffer *b)
{
    size_t end = line_end(b, b->cursor);
    if (end == b->text.len) {
        return false;
    }
    b->cursor = at_column(b, end + 1, column_of(b));
    return true;
}

/* Letters, digits and everything beyond ASCII make words. */
static bool is_word(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' ||
           ((unsigned char)c & 0x80);
}

void line_buffer_word_left(struct line_buffer *b)
{
    while (b->cursor > 0 && !is_word(b->text.data[b->cursor - 1])) {
        b->cursor--;
    }
    while (b->cursor > 0 && is_word(b->text.data[b->cursor - 1])) {
        b->cursor--;
    }
}

void line_buffer_word_right(struct line_buffer *b)
{
    while (b->cursor < b->text.len && !is_word(b->text.data[b->cursor])) {
        b->cursor++;
    }
    while (b->cursor < b->text.len && is_word(b->text.data[b->cursor])) {
        b->cursor++;
    }
}

/* ---- changing ------------------------------------------------------------------------------- */

void line_buffer_insert(struct line_buffer *b, struct str text)
{
    size_t room = LINE_BYTES_MAX - 1 - size_min(b->text.len, LINE_BYTES_MAX - 1);
    size_t valid = utf8_valid_prefix(text.ptr, size_min(text.len, room));
    if (valid == 0 || !buf_reserve(&b->text, valid)) {
        b->text.failed = false; /* out of memory: the text stays as it was */
        return;
    }
    size_t tail = b->text.len - b->cursor;
    buf_append(&b->text, text.ptr, valid); /* for the room; the bytes move below */
    char *at = b->text.data + b->cursor;
    memmove(at + valid, at, tail);
    memcpy(at, text.ptr, valid);
    b->cursor += valid;
}

void line_buffer_set(struct line_buffer *b, struct str text)
{
    buf_clear(&b->text);
    b->cursor = 0;
    line_buffer_insert(b, text);
}

static void delete_range(struct line_buffer *b, size_t from, size_t to)
{
    if (from == to) {
        return;
    }
    memmove(b->text.data + from, b->text.data + to, b->text.len - to);
    b->text.len -= to - from;
    b->text.data[b->text.len] = '\0';
    b->cursor = from;
}

static void kill_range(struct line_buffer *b, size_t from, size_t to)
{
    if (from < to) {
        buf_clear(&b->killed);
        buf_append(&b->killed, b->text.data + from, to - from);
        delete_range(b, from, to);
    }
}

void line_buffer_delete_back(struct line_buffer *b)
{
    size_t to = b->cursor;
    if (line_buffer_left(b)) {
        delete_range(b, b->cursor, to);
    }
}

void line_buffer_delete_forward(struct line_buffer *b)
{
    size_t from = b->cursor;
    if (line_buffer_right(b)) {
        delete_range(b, from, b->cursor);
    }
}

void line_buffer_kill_to_end(struct line_buffer *b)
{
    size_t end = line_end(b, b->cursor);
    kill_range(b, b->cursor, end == b->cursor && end < b->text.len ? end + 1 : end);
}

void line_buffer_kill_to_start(struct line_buffer *b)
{
    kill_range(b, line_start(b, b->cursor), b->cursor);
}

void line_buffer_kill_word_back(struct line_buffer *b)
{
    size_t to = b->cursor;
    line_buffer_word_left(b);
    kill_range(b, b->cursor, to);
}

void line_buffer_yank(struct line_buffer *b)
{
    if (b->killed.len) {
        line_buffer_insert(b, (struct str){b->killed.data, b->killed.len});
    }
}
