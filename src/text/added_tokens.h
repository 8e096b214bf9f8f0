/* added_tokens.h - finding added tokens ("<|im_end|>") in text.
 *
 * Place:  text, under tokenizer.c.
 * Idea:   the reference looks for all of them at once, leftmost first and longest of those. Here the
 *         contents are sorted, so the candidates at a position are a range that shrinks byte by byte;
 *         a table of first bytes skips the positions where nothing can start. */
#ifndef TEXT_ADDED_TOKENS_H
#define TEXT_ADDED_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"

enum {
    ADDED_TOKENS_MAX = 1 << 17,
    ADDED_TOKEN_BYTES_MAX = 1024 /* bounds the time per position */
};

struct added_token {
    struct str content; /* as in the file */
    struct str pattern; /* what is looked for: the content, normalised if the flag says so */
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
};

/* Tokens in file order; the owner of everything. */
struct added_tokens {
    struct arena arena;
    struct added_token *tokens;
    size_t n, cap;
};

void added_tokens_init(struct added_tokens *a);
void added_tokens_release(struct added_tokens *a);
/* Copies t and its content; the pattern is set to the content. */
enum status added_tokens_push(struct added_tokens *a, const struct added_token *t,
                              struct error *err);

/* The tokens of one kind (normalized or not), ready for searching. */
struct added_set {
    const struct added_token **sorted; /* by pattern; of equal ones the first wins */
    size_t n;
    size_t first[257]; /* tokens that start with byte b: sorted[first[b]] to sorted[first[b + 1]] */
};

enum status added_set_init(struct added_set *s, const struct added_tokens *a, bool normalized,
                           struct error *err);
void added_set_release(struct added_set *s);

/* The leftmost-longest token that lies within text[from..to); *at is its place. NULL: none. */
const struct added_token *added_set_find(const struct added_set *s, const char *text, size_t from,
                                         size_t to, size_t *at);

/* The token with exactly this content, or NULL. Linear; for look-ups by name. */
const struct added_token *added_tokens_by_content(const struct added_tokens *a, struct str content);

/* Helpers for the flags; text is valid UTF-8. */
bool text_ends_in_word(const char *text, size_t len);
bool text_starts_with_word(const char *text, size_t len);
size_t text_trailing_space(const char *text, size_t len); /* bytes of white space at the end */
size_t text_leading_space(const char *text, size_t len);

#endif
