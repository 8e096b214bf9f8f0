/* arena.h - memory that is released all at once.
 *
 * Place: base; used by parsers for their trees. Blocks grow as needed up to bytes_max. Not
 *        thread-safe. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#include "base/str.h"

struct arena_block;

struct arena {
    struct arena_block *blocks;
    size_t used_bytes; /* handed out so far */
    size_t bytes_max;  /* 0: no limit */
    bool is_starved;   /* an allocation failed for want of memory, not because of bytes_max */
};

void arena_init(struct arena *a, size_t bytes_max);
void arena_release(struct arena *a);
/* Zeroed, 16-byte aligned. NULL: bytes_max would be passed, or (is_starved) there is no memory. */
void *arena_alloc(struct arena *a, size_t n_bytes);
void *arena_array(struct arena *a, size_t n, size_t each);     /* checked product */
char *arena_copy(struct arena *a, const char *text, size_t n); /* NUL-terminated copy */

/* n_bytes of zeroed memory on a 64-byte border (free() releases it); NULL on failure. */
void *aligned_new(size_t n_bytes);

/* n_bytes for large tables: on huge pages where the kernel gives them, so that reading them costs few
 * page walks. 64-byte aligned, not zeroed (the thread that writes first takes the page); free()
 * releases it; NULL on failure. */
void *huge_new(size_t n_bytes);

#endif
