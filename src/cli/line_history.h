/* line_history.h - earlier inputs, in memory and optionally in a file.
 *
 * Place: cli; part of the line editor. The file has one entry per line, with newlines as \n and
 *        backslashes as \\; it is readable by its owner only. Entries with other control characters are
 *        skipped when it is read. Failures to write are ignored: a history is a convenience. */
#ifndef CLI_LINE_HISTORY_H
#define CLI_LINE_HISTORY_H

#include <stddef.h>

#include "base/str.h"

enum { HISTORY_ENTRIES_MAX = 1000, HISTORY_FILE_BYTES_MAX = 4 << 20 };

struct line_history {
    char *entries[HISTORY_ENTRIES_MAX]; /* oldest first */
    size_t n;
    const char *path; /* borrowed, or NULL */
};

void line_history_init(struct line_history *h,
                       const char *path); /* reads the file, if there is one */
void line_history_release(struct line_history *h);

/* Remembers text (copied), unless it is empty or equals the last one; appends it to the file. */
void line_history_add(struct line_history *h, struct str text);

#endif
