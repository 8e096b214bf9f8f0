/* split_scan.h - the hand-written scanners of split.c.
 *
 * Place: text; private to split.c and its tests. */
#ifndef TEXT_SPLIT_SCAN_H
#define TEXT_SPLIT_SCAN_H

#include "text/split.h"

/* Length of the piece at the start of text (valid UTF-8, not empty). kind is not SPLIT_PCRE. */
size_t split_scan(enum split_kind kind, struct str text);

#endif
