/* nfc.c - see nfc.h. */
#include "text/nfc.h"

#include <stdlib.h>
#include <utf8proc.h>

#include "base/size.h"
#include "text/unicode_tables.h"

enum {
    FIRST_ACTIVE_LEAD = 0xcc, /* U+0300 is the first active code point, and its UTF-8 starts so */
    DECOMPOSED_MAX = 4,       /* code points in the longest canonical decomposition */
    SORT_BY_INSERTION_MAX = 32
};

/* Offset of the first active character at or after `from`, or text.len. */
static size_t next_active(struct str text, size_t from)
{
    size_t i = from;

    while (i < text.len) {
        uint32_t cp;
        size_t n = 1;
        if ((unsigned char)text.ptr[i] >= FIRST_ACTIVE_LEAD) {
            n = utf8_decode(&cp, text.ptr + i, text.len - i);
            if (unicode_flags(cp) & UNICODE_NFC_ACTIVE) {
                return i;
            }
        }
        i += n;
    }
    return text.len;
}

bool nfc_needed(struct str text)
{
    return next_active(text, 0) < text.len;
}

/* Where the stretch around the active character at `active` begins: with the character before it,
 * to which it may be joined, unless newer Unicode data would reorder that one. */
static size_t stretch_start(struct str text, size_t low, size_t active)
{
    size_t start = active;
    uint32_t cp;

    if (start == low) {
        return start;
    }
    do {
        start--;
    } while (start > low && ((unsigned char)text.ptr[start] & 0xc0) == 0x80);
    utf8_decode(&cp, text.ptr + start, active - start);
    return unicode_flags(cp) & UNICODE_NFC_FOREIGN ? active : start;
}

static size_t stretch_end(struct str text, size_t active)
{
    size_t end = active;

    while (end < text.len) {
        uint32_t cp;
        size_t n = utf8_decode(&cp, text.ptr + end, text.len - end);
        if (!(unicode_flags(cp) & UNICODE_NFC_ACTIVE)) {
            break;
        }
        end += n;
    }
    return end;
}

static unsigned combining_class(int32_t cp)
{
    return (unsigned)utf8proc_get_property(cp)->combining_class & 0xff;
}

/* A stable sort of n marks by combining class; spare has room for n. */
static void sort_marks(int32_t *marks, size_t n, int32_t *spare)
{
    size_t start[257] = {0};

    if (n <= SORT_BY_INSERTION_MAX) {
        for (size_t i = 1; i < n; i++) {
            int32_t mark = marks[i];
            size_t j = i;
            while (j > 0 && combining_class(marks[j - 1]) > combining_class(mark)) {
                marks[j] = marks[j - 1];
                j--;
            }
            marks[j] = mark;
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        start[combining_class(marks[i]) + 1]++;
    }
    for (size_t c = 1; c < 257; c++) {
        start[c] += start[c - 1];
    }
    for (size_t i = 0; i < n; i++) {
        spare[start[combining_class(marks[i])]++] = marks[i];
    }
    memcpy(marks, spare, n * sizeof *marks);
}

static void sort_runs_of_marks(int32_t *cps, size_t n, int32_t *spare)
{
    size_t i = 0;

    while (i < n) {
        size_t end = i;
        while (end < n && combining_class(cps[end]) != 0) {
            end++;
        }
        if (end - i > 1) {
            sort_marks(cps + i, end - i, spare);
        }
        i = end > i ? end : i + 1;
    }
}

/* Decompose, order, compose. */
static enum status append_stretch(struct buf *out, struct str text, struct error *err)
{
    size_t n = 0, n_bytes, cap;
    int32_t *cps;
    utf8proc_ssize_t composed;

    if (!size_mul(&cap, text.len, DECOMPOSED_MAX) || !size_mul(&n_bytes, cap, 2 * sizeof *cps)) {
        return error_set(err, ERR_LIMIT, "a run of %zu bytes of combining marks", text.len);
    }
    cps = malloc(n_bytes); /* the second half is for sorting */
    if (!cps) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate %zu bytes to normalise text",
                         n_bytes);
    }
    for (size_t i = 0; i < text.len;) {
        uint32_t cp;
        int last_boundclass = 0;
        i += utf8_decode(&cp, text.ptr + i, text.len - i);
        n +=
            (size_t)utf8proc_decompose_char((int32_t)cp, cps + n, (utf8proc_ssize_t)(cap - n),
                                            UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &last_boundclass);
    }
    sort_runs_of_marks(cps, n, cps + cap);
    composed =
        utf8proc_normalize_utf32(cps, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (utf8proc_ssize_t i = 0; i < composed; i++) {
        char bytes[4];
        buf_append(out, bytes, utf8_encode(bytes, (uint32_t)cps[i]));
    }
    free(cps);
    return OK;
}

static void append_bytes(struct buf *b, char byte, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        buf_append_char(b, byte);
    }
}

enum status nfc_append(struct buf *out, struct buf *trust_out, struct str text, const char *trust,
                       struct error *err)
{
    size_t done = 0;

    while (done < text.len) {
        size_t active = next_active(text, done), start, end, before;
        enum status rc;
        start = active < text.len ? stretch_start(text, done, active) : active;
        end = stretch_end(text, active);
        buf_append(out, text.ptr + done, start - done);
        if (trust) {
            buf_append(trust_out, trust + done, start - done);
        }
        before = out->len;
        if (start < end) {
            rc = append_stretch(out, (struct str){text.ptr + start, end - start}, err);
            if (rc != OK) {
                return rc;
            }
        }
        if (trust && start < end) {
            append_bytes(trust_out, memchr(trust + start, 0, end - start) ? 0 : 1,
                         out->len - before);
        }
        done = end;
    }
    if (!buf_ok(out) || (trust && !buf_ok(trust_out))) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the normalised text");
    }
    return OK;
}
