/* buf.c - the growable byte buffer. See buf.h. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

enum { BUF_FIRST_BYTES = 64 };

void buf_init(struct buf *b)
{
    *b = (struct buf){0};
}

void buf_init_limited(struct buf *b, size_t bytes_max)
{
    *b = (struct buf){.bytes_max = bytes_max};
}

void buf_release(struct buf *b)
{
    free(b->data);
    *b = (struct buf){.bytes_max = b->bytes_max};
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data) {
        b->data[0] = '\0';
    }
}

bool buf_ok(const struct buf *b)
{
    return !b->failed;
}

bool buf_reserve(struct buf *b, size_t extra_bytes)
{
    size_t need, cap;
    char *data;

    if (b->failed || !size_add(&need, b->len, extra_bytes) ||
        (b->bytes_max && need > b->bytes_max) || !size_add(&need, need, 1)) {
        b->failed = true;
        return false;
    }
    if (need <= b->cap) {
        return true;
    }
    cap = b->cap ? b->cap : BUF_FIRST_BYTES;
    while (cap < need) {
        if (!size_mul(&cap, cap, 2)) {
            cap = need;
        }
    }
    data = realloc(b->data, cap);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->cap = cap;
    return true;
}

void buf_append(struct buf *b, const void *data, size_t n_bytes)
{
    if (!buf_reserve(b, n_bytes)) {
        return;
    }
    if (n_bytes > 0) {
        memcpy(b->data + b->len, data, n_bytes);
    }
    b->len += n_bytes;
    b->data[b->len] = '\0';
}

void buf_append_str(struct buf *b, const char *text)
{
    buf_append(b, text, strlen(text));
}

void buf_append_char(struct buf *b, char c)
{
    buf_append(b, &c, 1);
}

void buf_appendf(struct buf *b, const char *fmt, ...)
{
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0) {
        b->failed = true;
        return;
    }
    if (!buf_reserve(b, (size_t)n)) {
        return;
    }
    va_start(args, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, args);
    va_end(args);
    b->len += (size_t)n;
}

void buf_consume(struct buf *b, size_t n_bytes)
{
    if (n_bytes >= b->len) {
        b->len = 0;
    } else if (n_bytes > 0) {
        memmove(b->data, b->data + n_bytes, b->len - n_bytes);
        b->len -= n_bytes;
    }
    if (b->data) {
        b->data[b->len] = '\0';
    }
}

const char *buf_cstr(struct buf *b)
{
    return b->data && !b->failed ? b->data : "";
}

char *buf_take(struct buf *b)
{
    char *data;

    if (!b->failed && !b->data) {
        buf_reserve(b, 0);
        if (b->data) {
            b->data[0] = '\0';
        }
    }
    if (b->failed) {
        buf_release(b);
        return NULL;
    }
    data = b->data;
    *b = (struct buf){.bytes_max = b->bytes_max};
    return data;
}
