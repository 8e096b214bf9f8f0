/* stop.h - finds stop strings in text that arrives in pieces.
 *
 * Place:  runtime; between the detokeniser and the event that carries text.
 * Rule:   generation stops at the first byte that completes a stop string; of several that end there
 *         the longest, which is the one that began first, counts. So the result depends on the text
 *         alone and not on how it was cut into pieces. Of what may still begin a stop string nothing
 *         is let out; everything else is let out at once.
 * Cost:   linear in text times number of stop strings (one automaton each). Memory is allocated by
 *         stop_init only. */
#ifndef RUNTIME_STOP_H
#define RUNTIME_STOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"

enum { STOP_STRINGS_MAX = 64, STOP_STRING_BYTES_MAX = 1024 };

struct stop_string {
    char *text;
    uint16_t len;
    uint16_t *border; /* [len + 1] longest proper border of the first i bytes */
    uint16_t state;   /* bytes of text that the input so far ends with */
};

struct stop { /* zeroed: no stop strings, everything passes */
    struct stop_string *strings;
    size_t n_strings;
    bool keeps_match; /* the matched string stays in the text */
    int matched;      /* its index, -1: none yet */
    size_t n_held;
    char held[STOP_STRING_BYTES_MAX]; /* the end of the input that is not let out */
};

/* Copies the strings. ERR_BAD_REQUEST (param "stop"): too many, too long, empty, not UTF-8. */
enum status stop_init(struct stop *s, const struct str *strings, size_t n, bool keeps_match,
                      struct error *err);
void stop_release(struct stop *s); /* accepts a zeroed struct */

/* Appends to out what became certain; true when a stop string is complete (now or before), and then
 * nothing after it is let out. */
bool stop_push(struct stop *s, struct str text, struct buf *out);
/* The text has ended: lets out what was held back. */
void stop_finish(struct stop *s, struct buf *out);

#endif
