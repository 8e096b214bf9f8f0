/* line_view.h - where the edited text stands on the screen, and how to draw it.
 *
 * Place: cli; part of the line editor. The text is cut into rows by us, never by the terminal, whose
 *        behaviour at the right margin differs. Each row knows its bytes; a text that is taller than
 *        the screen is shown through a window around the cursor. */
#ifndef CLI_LINE_VIEW_H
#define CLI_LINE_VIEW_H

#include <stddef.h>

#include "base/buf.h"
#include "base/str.h"

struct line_view {
    size_t columns, rows;       /* of the terminal */
    const char *prompt, *more;  /* before the first and before every other line of the text */
    const char *style, *normal; /* escape sequences around the prompts, or "" */
    size_t cursor_row;          /* of the last drawing, 0 is its first row */
};

/* Appends what redraws `text` over the last drawing and leaves the cursor at byte `cursor`. */
void line_view_draw(struct line_view *v, struct buf *out, struct str text, size_t cursor);

/* Appends what moves below the last drawing of `text`. */
void line_view_leave(struct line_view *v, struct buf *out, struct str text);

#endif
