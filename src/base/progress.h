/* progress.h - shows how far long work is.
 *
 * Place: base. On a terminal one line is rewritten at most ten times a second: bar, done / total,
 *        rate, time left. Elsewhere a plain line at the start, every five seconds and at the end.
 *        Everything goes to fd. A NULL progress is silent. One thread. */
#ifndef BASE_PROGRESS_H
#define BASE_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum progress_unit { PROGRESS_BYTES, PROGRESS_TOKENS, PROGRESS_STEPS };

struct progress {
    int fd;
    bool is_tty;
    enum progress_unit unit;
    char label[64];
    uint64_t total, done; /* in units; total 0: unknown */
    uint64_t start_ns, shown_ns;
};

void progress_init(struct progress *p, int fd); /* looks whether fd is a terminal */
void progress_start(struct progress *p, const char *label, enum progress_unit unit, uint64_t total);
void progress_update(struct progress *p, uint64_t done);
void progress_finish(struct progress *p); /* prints the final line with the mean rate */

#endif
