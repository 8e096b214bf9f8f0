/* split_scan.c - the patterns of Qwen2/3, Qwen3.5 and Llama-3 as a scanner. See split_scan.h.
 *
 * All three are one ordered choice, with W a character of a word and D the digits taken at once:
 *
 *     (?i:'s|'t|'re|'ve|'m|'ll|'d)      1  contraction
 *     [^\r\n\p{L}\p{N}]?W+              2  word, with one leading other character
 *     \p{N}{1,D}                        3  number
 *      ?[^\s W \p{N}]+[\r\n]*           4  symbols, with one leading blank and trailing line ends
 *     \s*[\r\n]+                        5  white space up to its last line end
 *     \s+(?!\S)                         6  white space, without the last character if text follows
 *     \s+                               7  white space
 *
 * W is \p{L}, for Qwen3.5 [\p{L}\p{M}]; D is 1, for Llama-3 3. Every character is taken by one of them,
 * and each is decided by looking ahead over what it takes plus one character, so time is linear. */
#include "text/split_scan.h"

#include "text/unicode_tables.h"

struct scan {
    const unsigned char *end;
    unsigned mark_class; /* what marks count as: letters or symbols */
    int digits_max;
};

/* The class of the character at p (p < end) and its length. */
static inline unsigned class_at(const struct scan *s, const unsigned char *p, size_t *n)
{
    uint32_t cp = p[0];
    unsigned class;

    if (cp < 0x80) {
        *n = 1;
        return unicode_blocks[0][cp] & UNICODE_CLASS_MASK;
    }
    if (cp < 0xe0) {
        *n = 2;
        cp = (cp & 0x1f) << 6 | (p[1] & 0x3fu);
    } else if (cp < 0xf0) {
        *n = 3;
        cp = (cp & 0x0f) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    } else {
        *n = 4;
        cp = (cp & 0x07) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
    }
    class = unicode_class(cp);
    return class == UNICODE_MARK ? s->mark_class : class;
}

/* Past the run of characters of one class. */
static const unsigned char *run_end(const struct scan *s, const unsigned char *p, unsigned class)
{
    size_t n;

    while (p < s->end && class_at(s, p, &n) == class) {
        p += n;
    }
    return p;
}

static bool is_line_end(unsigned char c)
{
    return c == '\r' || c == '\n';
}

/* Length of a contraction at p, which points at an apostrophe; 0 if there is none. Ignoring case, the
 * long s (U+017F) is an s too. */
static size_t contraction(const struct scan *s, const unsigned char *p)
{
    size_t left = (size_t)(s->end - p);
    unsigned char a, b;

    if (left < 2) {
        return 0;
    }
    a = p[1] | 0x20;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') {
        return 2;
    }
    if (left < 3) {
        return 0;
    }
    b = p[2] | 0x20;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) {
        return 3;
    }
    return p[1] == 0xc5 && p[2] == 0xbf ? 3 : 0;
}

static const unsigned char *number_end(const struct scan *s, const unsigned char *p)
{
    size_t n;

    for (int i = 0; i < s->digits_max && p < s->end && class_at(s, p, &n) == UNICODE_NUMBER; i++) {
        p += n;
    }
    return p;
}

static const unsigned char *symbols_end(const struct scan *s, const unsigned char *p)
{
    p = run_end(s, p, UNICODE_OTHER);
    while (p < s->end && is_line_end(*p)) {
        p++;
    }
    return p;
}

/* Rules 5 to 7. */
static const unsigned char *space_end(const struct scan *s, const unsigned char *start)
{
    const unsigned char *p = start, *last = start, *after_line_end = NULL;
    size_t n;

    while (p < s->end && class_at(s, p, &n) == UNICODE_SPACE) {
        last = p;
        if (is_line_end(*p)) {
            after_line_end = p + 1;
        }
        p += n;
    }
    if (after_line_end) {
        return after_line_end;
    }
    return p == s->end || last == start ? p : last;
}

static const unsigned char *piece_end(const struct scan *s, const unsigned char *p)
{
    size_t n, n_next;
    unsigned class = class_at(s, p, &n), next = UNICODE_SPACE;

    if (*p == '\'') {
        size_t length = contraction(s, p);
        if (length > 0) {
            return p + length;
        }
    }
    if (class == UNICODE_LETTER) {
        return run_end(s, p + n, UNICODE_LETTER);
    }
    if (class == UNICODE_NUMBER) {
        return number_end(s, p);
    }
    if (p + n < s->end) {
        next = class_at(s, p + n, &n_next);
    }
    if (next == UNICODE_LETTER && !is_line_end(*p)) {
        return run_end(s, p + n, UNICODE_LETTER);
    }
    if (class == UNICODE_OTHER || (*p == ' ' && next == UNICODE_OTHER && p + n < s->end)) {
        return symbols_end(s, p + (class == UNICODE_OTHER ? 0 : n));
    }
    return space_end(s, p);
}

size_t split_scan(enum split_kind kind, struct str text)
{
    const unsigned char *p = (const unsigned char *)text.ptr;
    struct scan s = {.end = p + text.len,
                     .mark_class = kind == SPLIT_QWEN3_5 ? UNICODE_LETTER : UNICODE_OTHER,
                     .digits_max = kind == SPLIT_LLAMA3 ? 3 : 1};

    return (size_t)(piece_end(&s, p) - p);
}
