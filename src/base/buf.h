/* buf.h - a growable byte buffer.
 *
 * Place: base. A failed allocation or a passed limit is remembered: later appends do nothing, and
 *        the writer checks once at the end with buf_ok(). One owner, one thread. */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

struct buf {
    char *data; /* NUL-terminated when len > 0 or after buf_cstr(); NULL when nothing was stored */
    size_t len; /* bytes in use, without the terminator */
    size_t cap; /* bytes allocated */
    size_t bytes_max; /* 0: no limit; else appends that would pass it fail */
    bool failed;      /* an append failed; content is what fitted before */
};

void buf_init(struct buf *b); /* no allocation */
void buf_init_limited(struct buf *b, size_t bytes_max);
void buf_release(struct buf *b); /* accepts a zeroed buf */
void buf_clear(struct buf *b);   /* len = 0, failed = false, keeps the memory */
bool buf_ok(const struct buf *b);
bool buf_reserve(struct buf *b, size_t extra_bytes);
void buf_append(struct buf *b, const void *data, size_t n_bytes);
void buf_append_str(struct buf *b, const char *text); /* a C string */
void buf_append_char(struct buf *b, char c);
void buf_appendf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_consume(struct buf *b, size_t n_bytes); /* drop from the front */
const char *buf_cstr(struct buf *b);             /* never NULL: "" when empty or failed */
char *buf_take(struct buf *b); /* hand over the memory (malloc'd, NUL-terminated); NULL if failed */

#endif
