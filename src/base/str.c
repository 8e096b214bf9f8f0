/* str.c - slices and UTF-8. See str.h. The decoder follows table 3-7 of the Unicode standard. */
#include "base/str.h"

bool str_starts(struct str s, struct str prefix)
{
    return s.len >= prefix.len && (prefix.len == 0 || memcmp(s.ptr, prefix.ptr, prefix.len) == 0);
}

bool str_ends(struct str s, struct str suffix)
{
    return s.len >= suffix.len &&
           (suffix.len == 0 || memcmp(s.ptr + s.len - suffix.len, suffix.ptr, suffix.len) == 0);
}

size_t str_find(struct str s, struct str needle)
{
    const char *hit;

    if (needle.len == 0) {
        return 0;
    }
    if (s.len < needle.len) {
        return SIZE_MAX;
    }
    hit = memmem(s.ptr, s.len, needle.ptr, needle.len);
    return hit ? (size_t)(hit - s.ptr) : SIZE_MAX;
}

/* What a lead byte announces: the length, and the range of the second byte (only there do overlong
 * forms, surrogates and too large values show). Length 0: not a lead byte. */
struct lead {
    unsigned length;
    unsigned char second_min, second_max;
};

static struct lead lead_of(unsigned char c)
{
    if (c < 0x80) {
        return (struct lead){1, 0, 0};
    }
    if (c >= 0xc2 && c <= 0xdf) {
        return (struct lead){2, 0x80, 0xbf};
    }
    if (c >= 0xe0 && c <= 0xef) {
        return (struct lead){3, c == 0xe0 ? 0xa0 : 0x80, c == 0xed ? 0x9f : 0xbf};
    }
    if (c >= 0xf0 && c <= 0xf4) {
        return (struct lead){4, c == 0xf0 ? 0x90 : 0x80, c == 0xf4 ? 0x8f : 0xbf};
    }
    return (struct lead){0, 0, 0};
}

/* Bytes of text that are a well-formed beginning of one character (1..4); *length is its full
 * length, or 0 when text[0] cannot start one (then the result is 1). */
static size_t well_formed_part(unsigned *length, const unsigned char *text, size_t len)
{
    struct lead lead = lead_of(text[0]);
    size_t i;

    *length = lead.length;
    if (lead.length < 2) {
        return 1;
    }
    for (i = 1; i < lead.length && i < len; i++) {
        unsigned char low = i == 1 ? lead.second_min : 0x80;
        unsigned char high = i == 1 ? lead.second_max : 0xbf;
        if (text[i] < low || text[i] > high) {
            break;
        }
    }
    return i;
}

size_t utf8_valid_prefix(const char *text, size_t len)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t i = 0;

    while (i < len) {
        unsigned length;
        size_t part;
        uint64_t eight;

        if (len - i >= sizeof eight) { /* skip ASCII eight bytes at a time */
            memcpy(&eight, bytes + i, sizeof eight);
            if ((eight & UINT64_C(0x8080808080808080)) == 0) {
                i += sizeof eight;
                continue;
            }
        }
        part = well_formed_part(&length, bytes + i, len - i);
        if (length == 0 || part != length) {
            return i;
        }
        i += part;
    }
    return len;
}

size_t utf8_decode(uint32_t *cp, const char *text, size_t len)
{
    const unsigned char *b = (const unsigned char *)text;
    unsigned length;
    size_t part = well_formed_part(&length, b, len);

    if (length == 0 || part != length) {
        *cp = 0xfffd;
        return part;
    }
    switch (length) {
    case 1:
        *cp = b[0];
        break;
    case 2:
        *cp = (uint32_t)(b[0] & 0x1f) << 6 | (uint32_t)(b[1] & 0x3f);
        break;
    case 3:
        *cp =
            (uint32_t)(b[0] & 0x0f) << 12 | (uint32_t)(b[1] & 0x3f) << 6 | (uint32_t)(b[2] & 0x3f);
        break;
    default:
        *cp = (uint32_t)(b[0] & 0x07) << 18 | (uint32_t)(b[1] & 0x3f) << 12 |
              (uint32_t)(b[2] & 0x3f) << 6 | (uint32_t)(b[3] & 0x3f);
        break;
    }
    return part;
}

size_t utf8_encode(char out[4], uint32_t cp)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

size_t utf8_incomplete_tail(const char *text, size_t len)
{
    size_t back;

    for (back = 1; back <= 3 && back <= len; back++) {
        const unsigned char *b = (const unsigned char *)text + len - back;
        unsigned length;
        if ((b[0] & 0xc0) == 0x80) {
            continue;
        }
        return well_formed_part(&length, b, back) == back && length > back ? back : 0;
    }
    return 0;
}

enum { DISTANCE_LENGTH_MAX = 64 };

size_t str_distance(const char *a, const char *b)
{
    size_t row[DISTANCE_LENGTH_MAX + 1];
    size_t na = strlen(a), nb = strlen(b);

    if (na > DISTANCE_LENGTH_MAX || nb > DISTANCE_LENGTH_MAX) {
        return na > nb ? na : nb;
    }
    for (size_t j = 0; j <= nb; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) {
                best = row[j] + 1;
            }
            if (row[j - 1] + 1 < best) {
                best = row[j - 1] + 1;
            }
            row[j] = best;
        }
    }
    return row[nb];
}
