/* str.h - text slices and UTF-8.
 *
 * Place: base. A slice borrows its bytes; nothing here allocates. */
#ifndef BASE_STR_H
#define BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct str {
    const char *ptr;
    size_t len;
};

#define STR(literal) ((struct str){(literal), sizeof(literal) - 1})

static inline struct str str_of(const char *text)
{
    return (struct str){text, text ? strlen(text) : 0};
}

static inline bool str_eq(struct str a, struct str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

bool str_starts(struct str s, struct str prefix);
bool str_ends(struct str s, struct str suffix);
size_t str_find(struct str s, struct str needle); /* byte offset, or SIZE_MAX */

/* Length in bytes of the longest valid UTF-8 prefix (Unicode 3.9, table 3-7: no surrogates, no
 * overlong forms, nothing above U+10FFFF). Equal to len when all of it is valid. */
size_t utf8_valid_prefix(const char *text, size_t len);

/* Decode one code point at text (len >= 1 bytes there). Returns the bytes used; for an invalid
 * sequence *cp = U+FFFD and the length of the maximal bad part (>= 1), as the Unicode standard
 * recommends. */
size_t utf8_decode(uint32_t *cp, const char *text, size_t len);

/* Encode cp (a valid scalar value) into out; returns 1..4. */
size_t utf8_encode(char out[4], uint32_t cp);

/* Bytes at the end of text that begin a character which is not complete yet (0..3). */
size_t utf8_incomplete_tail(const char *text, size_t len);

/* Levenshtein distance, for "did you mean"; inputs over 64 bytes count as far away. */
size_t str_distance(const char *a, const char *b);

#endif
