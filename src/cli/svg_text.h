/* svg_text.h - a picture's page, and text in it, whatever a name may hold.
 *
 * Place: cli; for bench_plot.c and bench_sweep_plot.c. */
#ifndef CLI_SVG_TEXT_H
#define CLI_SVG_TEXT_H

#include "base/buf.h"

/* XML text: what markup would read is escaped, what XML 1.0 forbids becomes '?'. */
void svg_escaped(struct buf *out, const char *text);

/* anchor: "start", "middle" or "end". */
void svg_text(struct buf *out, int x, int y, int size, const char *anchor, const char *colour,
              const char *text);

/* The whole file: a white page of that size with body on it. */
void svg_page(struct buf *out, int width, int height, struct buf *body);

#endif
