/* added_tokens.c - the list of added tokens and the search for them. See added_tokens.h. */
#include "text/added_tokens.h"

#include <stdlib.h>

#include "text/unicode_tables.h"

enum { TOKENS_MIN = 64 };

void added_tokens_init(struct added_tokens *a)
{
    *a = (struct added_tokens){0};
    arena_init(&a->arena, 0);
}

void added_tokens_release(struct added_tokens *a)
{
    arena_release(&a->arena);
    free(a->tokens);
    *a = (struct added_tokens){0};
}

enum status added_tokens_push(struct added_tokens *a, const struct added_token *t,
                              struct error *err)
{
    struct added_token copy = *t;

    if (a->n == ADDED_TOKENS_MAX) {
        return error_set(err, ERR_LIMIT, "more than %d added tokens", ADDED_TOKENS_MAX);
    }
    if (a->n == a->cap) {
        size_t cap = a->cap ? a->cap * 2 : TOKENS_MIN;
        struct added_token *tokens = realloc(a->tokens, cap * sizeof *tokens);
        if (!tokens) {
            return error_set(err, ERR_NO_MEMORY, "cannot allocate the added tokens");
        }
        a->tokens = tokens;
        a->cap = cap;
    }
    copy.content.ptr = arena_copy(&a->arena, t->content.ptr, t->content.len);
    if (!copy.content.ptr) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate an added token");
    }
    copy.pattern = copy.content;
    a->tokens[a->n++] = copy;
    return OK;
}

static int compare_patterns(const void *a, const void *b)
{
    const struct added_token *x = *(const struct added_token *const *)a;
    const struct added_token *y = *(const struct added_token *const *)b;
    size_t n = x->pattern.len < y->pattern.len ? x->pattern.len : y->pattern.len;
    int order = memcmp(x->pattern.ptr, y->pattern.ptr, n);

    if (order != 0) {
        return order;
    }
    if (x->pattern.len != y->pattern.len) {
        return x->pattern.len < y->pattern.len ? -1 : 1;
    }
    /* The reference tries special tokens before others, each in file order. */
    if (x->special != y->special) {
        return x->special ? -1 : 1;
    }
    return x < y ? -1 : x > y;
}

enum status added_set_init(struct added_set *s, const struct added_tokens *a, bool normalized,
                           struct error *err)
{
    size_t n = 0;

    *s = (struct added_set){0};
    if (a->n == 0) {
        return OK;
    }
    s->sorted = calloc(a->n, sizeof *s->sorted);
    if (!s->sorted) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the set of added tokens");
    }
    for (size_t i = 0; i < a->n; i++) {
        if (a->tokens[i].normalized == normalized && a->tokens[i].pattern.len > 0) {
            s->sorted[n++] = &a->tokens[i];
        }
    }
    qsort(s->sorted, n, sizeof *s->sorted, compare_patterns);
    for (size_t i = 0; i < n; i++) {
        if (s->n == 0 || !str_eq(s->sorted[i]->pattern, s->sorted[s->n - 1]->pattern)) {
            s->sorted[s->n++] = s->sorted[i];
        }
    }
    for (size_t i = 0, byte = 0; byte <= 256; byte++) {
        while (i < s->n && (unsigned char)s->sorted[i]->pattern.ptr[0] < byte) {
            i++;
        }
        s->first[byte] = i;
    }
    return OK;
}

void added_set_release(struct added_set *s)
{
    free(s->sorted);
    *s = (struct added_set){0};
}

/* The first index in [low, high) whose pattern's byte `depth` is at least c (or above c). All have
 * more than depth bytes. */
static size_t bound(const struct added_set *s, size_t low, size_t high, size_t depth, unsigned c)
{
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((unsigned char)s->sorted[middle]->pattern.ptr[depth] < c) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static const struct added_token *longest_at(const struct added_set *s, const char *text, size_t len)
{
    unsigned char c = (unsigned char)text[0];
    size_t low = s->first[c], high = s->first[c + 1];
    const struct added_token *best = NULL;

    for (size_t depth = 1; low < high; depth++) {
        if (s->sorted[low]->pattern.len == depth) { /* shorter ones come first */
            best = s->sorted[low++];
        }
        if (depth == len) {
            break;
        }
        c = (unsigned char)text[depth];
        low = bound(s, low, high, depth, c);
        high = bound(s, low, high, depth, c + 1u);
    }
    return best;
}

const struct added_token *added_set_find(const struct added_set *s, const char *text, size_t from,
                                         size_t to, size_t *at)
{
    if (s->n == 0) {
        return NULL;
    }
    for (size_t i = from; i < to; i++) {
        unsigned char c = (unsigned char)text[i];
        const struct added_token *t;
        if (s->first[c] == s->first[c + 1]) {
            continue;
        }
        t = longest_at(s, text + i, to - i);
        if (t) {
            *at = i;
            return t;
        }
    }
    return NULL;
}

const struct added_token *added_tokens_by_content(const struct added_tokens *a, struct str content)
{
    for (size_t i = 0; i < a->n; i++) {
        if (str_eq(a->tokens[i].content, content)) {
            return &a->tokens[i];
        }
    }
    return NULL;
}

/* The last character's flags, and its length in *n. len > 0. */
static unsigned last_flags(const char *text, size_t len, size_t *n)
{
    size_t start = len - 1;
    uint32_t cp;

    while (start > 0 && ((unsigned char)text[start] & 0xc0) == 0x80) {
        start--;
    }
    *n = len - start;
    utf8_decode(&cp, text + start, *n);
    return unicode_flags(cp);
}

static unsigned first_flags(const char *text, size_t len, size_t *n)
{
    uint32_t cp;

    *n = utf8_decode(&cp, text, len);
    return unicode_flags(cp);
}

bool text_ends_in_word(const char *text, size_t len)
{
    size_t n;

    return len > 0 && (last_flags(text, len, &n) & UNICODE_WORD);
}

bool text_starts_with_word(const char *text, size_t len)
{
    size_t n;

    return len > 0 && (first_flags(text, len, &n) & UNICODE_WORD);
}

size_t text_trailing_space(const char *text, size_t len)
{
    size_t n, left = len;

    while (left > 0 && (last_flags(text, left, &n) & UNICODE_CLASS_MASK) == UNICODE_SPACE) {
        left -= n;
    }
    return len - left;
}

size_t text_leading_space(const char *text, size_t len)
{
    size_t n, done = 0;

    while (done < len &&
           (first_flags(text + done, len - done, &n) & UNICODE_CLASS_MASK) == UNICODE_SPACE) {
        done += n;
    }
    return done;
}
