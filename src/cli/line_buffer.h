/* line_buffer.h - the text being edited and the cursor in it: no terminal, no keys.
 *
 * Place: cli; part of the line editor. Text is UTF-8 (callers insert whole characters; bad bytes are
 *        dropped), may hold newlines, and the cursor stands between grapheme clusters, so that an accent or
 *        an emoji sequence moves and goes as one. */
#ifndef CLI_LINE_BUFFER_H
#define CLI_LINE_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/str.h"

enum { LINE_BYTES_MAX = 1 << 20 };

struct line_buffer {
    struct buf text;
    size_t cursor;     /* byte offset, at a cluster's border */
    struct buf killed; /* for yank */
};

void line_buffer_init(struct line_buffer *b);
void line_buffer_release(struct line_buffer *b);
void line_buffer_set(struct line_buffer *b, struct str text); /* the cursor goes to the end */

/* Text past LINE_BYTES_MAX is dropped. */
void line_buffer_insert(struct line_buffer *b, struct str text);

/* Moves return false when the cursor was at the end already. */
bool line_buffer_left(struct line_buffer *b);
bool line_buffer_right(struct line_buffer *b);
bool line_buffer_up(struct line_buffer *b); /* to the line above, same column of bytes or its end */
bool line_buffer_down(struct line_buffer *b);
void line_buffer_home(struct line_buffer *b); /* of the present line */
void line_buffer_end(struct line_buffer *b);
void line_buffer_word_left(struct line_buffer *b);
void line_buffer_word_right(struct line_buffer *b);

void line_buffer_delete_back(struct line_buffer *b);
void line_buffer_delete_forward(struct line_buffer *b);
void line_buffer_kill_to_end(
    struct line_buffer *b); /* of the present line, or the newline itself */
void line_buffer_kill_to_start(struct line_buffer *b); /* of the present line */
void line_buffer_kill_word_back(struct line_buffer *b);
void line_buffer_yank(struct line_buffer *b);

/* The cluster at text: its bytes (>= 1 for len >= 1) and its width in terminal cells. */
size_t cluster_next(const char *text, size_t len, size_t *width);

#endif
