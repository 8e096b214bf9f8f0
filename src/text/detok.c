/* detok.c - see detok.h. */
#include "text/detok.h"

#include <assert.h>
#include <string.h>

void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special)
{
    *d = (struct detok){.tokenizer = t, .skip_special = skip_special};
}

/* Append text with each maximal bad part replaced. */
static void append_repaired(struct buf *out, const char *text, size_t len)
{
    size_t i = 0;

    while (i < len) {
        size_t valid = utf8_valid_prefix(text + i, len - i);
        buf_append(out, text + i, valid);
        i += valid;
        if (i < len) {
            uint32_t cp;
            i += utf8_decode(&cp, text + i, len - i);
            buf_append_str(out, "\xef\xbf\xbd");
        }
    }
}

/* All of text but an incomplete character at its end, which is kept. d->tail is empty. */
static void push_bytes(struct detok *d, const char *text, size_t len, struct buf *out)
{
    size_t n_tail = utf8_incomplete_tail(text, len);

    append_repaired(out, text, len - n_tail);
    memcpy(d->tail, text + len - n_tail, n_tail);
    d->n_tail = n_tail;
}

void detok_push(struct detok *d, int32_t id, struct buf *out)
{
    struct str bytes = tokenizer_bytes(d->tokenizer, id);

    if (bytes.len == 0 || (d->skip_special && tokenizer_is_special(d->tokenizer, id))) {
        return;
    }
    /* Complete or refute the held character byte by byte; at most three bytes are looked at before
     * nothing is held or the held part is the tail of what was pushed last. */
    while (d->n_tail > 0 && bytes.len > 0) {
        char joined[sizeof d->tail];
        size_t n = d->n_tail + 1;
        assert(n <= sizeof joined);
        memcpy(joined, d->tail, d->n_tail);
        joined[d->n_tail] = bytes.ptr[0];
        bytes.ptr++;
        bytes.len--;
        d->n_tail = 0;
        push_bytes(d, joined, n, out);
    }
    if (bytes.len > 0) {
        push_bytes(d, bytes.ptr, bytes.len, out);
    }
}

void detok_finish(struct detok *d, struct buf *out)
{
    append_repaired(out, d->tail, d->n_tail);
    d->n_tail = 0;
}
