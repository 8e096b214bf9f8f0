/* line_editor.h - reading a message from a terminal: editing, history, paste, several lines.
 *
 * Place: cli; used by cmd_chat. Keys as in readline: arrows, Home, End, Ctrl-A/E/B/F, Ctrl-K/U/W/Y,
 *        Ctrl-L, Alt-B/F; Enter sends, Alt-Enter or Ctrl-J makes a new line, a pasted text keeps its lines.
 *        Up and down move within the text first, then through the history.
 * Raw:   the terminal is in raw mode from open to close, also while an answer is being printed: so
 *        that Ctrl-C is a key, and what is typed ahead is kept for the next message. Output
 *        processing stays on, "\n" works as ever. A signal that ends the program puts the terminal
 *        back first (terminal_mode.h).
 * Thread: one. */
#ifndef CLI_LINE_EDITOR_H
#define CLI_LINE_EDITOR_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/status.h"

struct line_editor;

enum line_outcome {
    LINE_ACCEPTED,
    LINE_INTERRUPTED, /* Ctrl-C on an empty line; on a text it only clears the text */
    LINE_ENDED        /* Ctrl-D on an empty line, or the terminal is gone */
};

struct line_editor_options {
    int in_fd, out_fd;          /* terminals */
    const char *history_path;   /* or NULL; borrowed */
    const char *prompt, *more;  /* "> " and ". "; borrowed */
    const char *style, *normal; /* escape sequences around them, or "" */
};

/* ERR_IO when in_fd is no terminal. */
enum status line_editor_open(struct line_editor **out, const struct line_editor_options *o,
                             struct error *err);
void line_editor_close(struct line_editor *e); /* restores the terminal; accepts NULL */

/* Replaces *out by the text (valid UTF-8, may hold newlines). */
enum line_outcome line_editor_read(struct line_editor *e, struct buf *out);

/* While something else is printed: true when Ctrl-C was typed since the last call. Does not wait. */
bool line_editor_interrupted(struct line_editor *e);

#endif
