/* line_view.c - see line_view.h. */
#include "cli/line_view.h"

#include <stdbool.h>
#include <string.h>

#include "base/size.h"
#include "cli/line_buffer.h"

enum { COLUMNS_MIN = 8, TAB_CELLS = 4 };

/* Walks the text cluster by cluster, row by row. */
struct walk {
    const struct line_view *view;
    struct str text;
    size_t at;          /* next byte */
    size_t row, column; /* where it will stand */
    size_t cells;       /* its width */
    size_t len;         /* its bytes; 0 at the end */
    bool new_row;       /* the row began with it */
};

static size_t text_width(const char *text)
{
    size_t total = 0, width, len = strlen(text);
    for (size_t at = 0; at < len; total += width) {
        at += cluster_next(text + at, len - at, &width);
    }
    return total;
}

static size_t columns_of(const struct line_view *v)
{
    return v->columns < COLUMNS_MIN ? COLUMNS_MIN : v->columns;
}

static void measure(struct walk *w)
{
    w->len = 0;
    if (w->at >= w->text.len) {
        return;
    }
    char c = w->text.ptr[w->at];
    w->len = 1;
    if (c == '\n') {
        w->cells = 0;
    } else if (c == '\t') {
        w->cells = TAB_CELLS;
    } else {
        w->len = cluster_next(w->text.ptr + w->at, w->text.len - w->at, &w->cells);
    }
    if (w->column + w->cells > columns_of(w->view)) {
        w->row++;
        w->column = 0;
        w->new_row = true;
    }
}

static struct walk walk_start(const struct line_view *v, struct str text)
{
    struct walk w = {.view = v, .text = text, .column = text_width(v->prompt)};
    measure(&w);
    return w;
}

static void walk_next(struct walk *w)
{
    bool is_newline = w->text.ptr[w->at] == '\n';
    w->at += w->len;
    w->column += w->cells;
    w->new_row = false;
    if (is_newline) {
        w->row++;
        w->column = text_width(w->view->more);
        w->new_row = true;
    } else if (w->column >= columns_of(w->view)) {
        w->row++; /* a full row: the cursor belongs to the next one */
        w->column = 0;
        w->new_row = true;
    }
    measure(w);
}

struct place {
    size_t row, column;
};

static struct place place_of(const struct line_view *v, struct str text, size_t offset)
{
    struct walk w = walk_start(v, text);
    while (w.len && w.at < offset) {
        walk_next(&w);
    }
    return (struct place){w.row, w.column};
}

static void append_prompt(struct buf *out, const struct line_view *v, const char *prompt)
{
    buf_append_str(out, v->style);
    buf_append_str(out, prompt);
    buf_append_str(out, v->normal);
}

static void append_cluster(struct buf *out, const struct walk *w)
{
    char c = w->text.ptr[w->at];
    if (c == '\t') {
        buf_append_str(out, "    ");
    } else if (c != '\n') {
        buf_append(out, w->text.ptr + w->at, w->len);
    }
}

/* Rows [first, last]; the cursor ends behind the last cluster shown. */
static void append_rows(struct buf *out, const struct line_view *v, struct str text, size_t first,
                        size_t last)
{
    bool after_newline = false;
    struct walk w = walk_start(v, text);
    if (first == 0) {
        append_prompt(out, v, v->prompt);
    }
    for (;;) {
        if (w.new_row && w.row >= first && w.row <= last) {
            if (w.row > first) {
                buf_append_str(out, "\r\n");
            }
            if (after_newline) {
                append_prompt(out, v, v->more);
            }
        }
        if (!w.len || w.row > last) {
            return;
        }
        after_newline = w.text.ptr[w.at] == '\n';
        if (w.row >= first) {
            append_cluster(out, &w);
        }
        walk_next(&w);
    }
}

static size_t window_first(const struct line_view *v, size_t row)
{
    size_t height = v->rows > 1 ? v->rows - 1 : 1;
    return row >= height ? row - height + 1 : 0;
}

void line_view_draw(struct line_view *v, struct buf *out, struct str text, size_t cursor)
{
    struct place end = place_of(v, text, text.len), at = place_of(v, text, cursor);
    size_t height = v->rows > 1 ? v->rows - 1 : 1;
    size_t first = window_first(v, at.row);
    size_t last = size_min(end.row, first + height - 1);

    if (v->cursor_row) {
        buf_appendf(out, "\x1b[%zuA", v->cursor_row);
    }
    buf_append_str(out, "\r\x1b[J");
    append_rows(out, v, text, first, last);
    if (last > at.row) {
        buf_appendf(out, "\x1b[%zuA", last - at.row);
    }
    buf_append_char(out, '\r');
    if (at.column) {
        buf_appendf(out, "\x1b[%zuC", at.column);
    }
    v->cursor_row = at.row - first;
}

void line_view_leave(struct line_view *v, struct buf *out, struct str text)
{
    line_view_draw(v, out, text, text.len);
    buf_append_str(out, "\r\n");
    v->cursor_row = 0;
}
