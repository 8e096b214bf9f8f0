/* safetensors_header.c - scanner for the header of a .safetensors file.
 *
 * Place: formats; see safetensors_header.h.
 * Idea:  {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ...} and an optional
 *        "__metadata__" with strings. One pass, one cursor, each construct in its own function; the
 *        depth is fixed by the grammar, so nesting costs nothing however deep a hostile file goes.
 * Trade-off: fields that the format does not know are refused, where the reference library skips
 *        them: nothing writes them, and skipping needs a general JSON parser. */
#include "formats/safetensors_header.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "base/str.h"

enum { DTYPE_NAME_BYTES = 16, FIELD_NAME_BYTES = 16, ITEMS_FIRST = 64 };

struct scan {
    const char *start, *p, *end;
    struct error *err;
};

static const struct {
    const char *name;
    enum dtype dtype;
} dtype_names[] = {
    {"F64", DTYPE_F64},   {"F32", DTYPE_F32},         {"F16", DTYPE_F16},
    {"BF16", DTYPE_BF16}, {"F8_E4M3", DTYPE_F8_E4M3}, {"F8_E5M2", DTYPE_F8_E5M2},
    {"I64", DTYPE_I64},   {"I32", DTYPE_I32},         {"I16", DTYPE_I16},
    {"I8", DTYPE_I8},     {"U64", DTYPE_U64},         {"U32", DTYPE_U32},
    {"U16", DTYPE_U16},   {"U8", DTYPE_U8},           {"BOOL", DTYPE_BOOL},
};

const char *safetensors_dtype_name(enum dtype t)
{
    for (size_t i = 0; i < sizeof dtype_names / sizeof dtype_names[0]; i++) {
        if (dtype_names[i].dtype == t) {
            return dtype_names[i].name;
        }
    }
    return NULL;
}

static enum dtype dtype_of(const char *name)
{
    for (size_t i = 0; i < sizeof dtype_names / sizeof dtype_names[0]; i++) {
        if (strcmp(dtype_names[i].name, name) == 0) {
            return dtype_names[i].dtype;
        }
    }
    return DTYPE_NONE;
}

enum status safetensors_check_name(struct str name, struct error *err)
{
    if (name.len == 0) {
        return error_set(err, ERR_FORMAT, "a tensor has an empty name");
    }
    if (name.len > SAFETENSORS_NAME_BYTES_MAX) {
        return error_set(err, ERR_FORMAT, "tensor name '%.40s...' is longer than %d bytes",
                         name.ptr, SAFETENSORS_NAME_BYTES_MAX);
    }
    if (utf8_valid_prefix(name.ptr, name.len) != name.len) {
        return error_set(err, ERR_FORMAT, "a tensor name is not valid UTF-8");
    }
    for (size_t i = 0; i < name.len; i++) {
        unsigned char c = (unsigned char)name.ptr[i];

        if (c < 0x20 || c == 0x7f) {
            return error_set(err, ERR_FORMAT, "a tensor name holds the control character 0x%02x",
                             c);
        }
    }
    if (str_eq(name, STR("__metadata__"))) {
        return error_set(err, ERR_FORMAT, "a tensor is named '__metadata__'");
    }
    return OK;
}

static enum status syntax_error(struct scan *s, const char *what)
{
    return error_set(s->err, ERR_FORMAT, "header byte %zu: %s", (size_t)(s->p - s->start), what);
}

static void skip_space(struct scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\r' || *s->p == '\t')) {
        s->p++;
    }
}

/* The next character that is not space, without taking it; 0 at the end. */
static char peek(struct scan *s)
{
    skip_space(s);
    return s->p < s->end ? *s->p : '\0';
}

static enum status expect(struct scan *s, char c, const char *what)
{
    if (peek(s) != c || s->p == s->end) {
        return syntax_error(s, what);
    }
    s->p++;
    return OK;
}

/* After an element of a list: takes ',' or the closing character. */
static enum status list_next(struct scan *s, char close, bool *more)
{
    char c = peek(s);

    if (c != ',' && c != close) {
        return syntax_error(s, close == '}' ? "expected ',' or '}'" : "expected ',' or ']'");
    }
    s->p++;
    *more = c == ',';
    return OK;
}

static enum status scan_hex4(struct scan *s, uint32_t *out)
{
    uint32_t v = 0;

    if (s->end - s->p < 4) {
        return syntax_error(s, "unfinished \\u escape");
    }
    for (int i = 0; i < 4; i++) {
        char c = s->p[i];
        uint32_t digit;

        if (c >= '0' && c <= '9') {
            digit = (uint32_t)(c - '0');
        } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
            digit = (uint32_t)((c | 0x20) - 'a' + 10);
        } else {
            return syntax_error(s, "bad \\u escape");
        }
        v = v << 4 | digit;
    }
    s->p += 4;
    *out = v;
    return OK;
}

/* s->p stands behind "\u". */
static enum status scan_unicode_escape(struct scan *s, char out[4], size_t *n)
{
    uint32_t cp, low;
    enum status rc = scan_hex4(s, &cp);

    if (rc != OK) {
        return rc;
    }
    if (cp >= 0xd800 && cp <= 0xdfff) {
        if (cp > 0xdbff || s->end - s->p < 2 || s->p[0] != '\\' || s->p[1] != 'u') {
            return syntax_error(s, "lone surrogate escape");
        }
        s->p += 2;
        rc = scan_hex4(s, &low);
        if (rc != OK) {
            return rc;
        }
        if (low < 0xdc00 || low > 0xdfff) {
            return syntax_error(s, "lone surrogate escape");
        }
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
    }
    *n = utf8_encode(out, cp);
    return OK;
}

/* s->p stands behind the backslash. */
static enum status scan_escape(struct scan *s, char out[4], size_t *n)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *at;

    if (s->p == s->end || *s->p == '\0') {
        return syntax_error(s, "unfinished escape");
    }
    if (*s->p == 'u') {
        s->p++;
        return scan_unicode_escape(s, out, n);
    }
    at = strchr(from, *s->p);
    if (!at) {
        return syntax_error(s, "unknown escape");
    }
    s->p++;
    out[0] = to[at - from];
    *n = 1;
    return OK;
}

/* A JSON string, unescaped into dst (cap bytes, not terminated); dst NULL: only checked. */
static enum status scan_string(struct scan *s, char *dst, size_t cap, size_t *len)
{
    size_t n = 0;
    enum status rc = expect(s, '"', "expected a string");

    if (rc != OK) {
        return rc;
    }
    for (;;) {
        char one[4];
        size_t n_one = 1;

        if (s->p == s->end) {
            return syntax_error(s, "unfinished string");
        }
        one[0] = *s->p++;
        if (one[0] == '"') {
            *len = n;
            return OK;
        }
        if ((unsigned char)one[0] < 0x20) {
            s->p--;
            return syntax_error(s, "control character in a string");
        }
        if (one[0] == '\\') {
            rc = scan_escape(s, one, &n_one);
            if (rc != OK) {
                return rc;
            }
        }
        if (dst) {
            if (n_one > cap - n) {
                return syntax_error(s, "string is too long");
            }
            memcpy(dst + n, one, n_one);
        }
        n += n_one;
    }
}

/* A short string that is one of a few words; out holds cap bytes and is terminated. */
static enum status scan_word(struct scan *s, char *out, size_t cap)
{
    size_t n;
    enum status rc = scan_string(s, out, cap - 1, &n);

    if (rc != OK) {
        return rc;
    }
    out[n] = '\0';
    if (strlen(out) != n) {
        return syntax_error(s, "NUL in a string");
    }
    return OK;
}

/* A plain non-negative integer: no sign, fraction, exponent or leading zero. */
static enum status scan_size(struct scan *s, size_t *out)
{
    const char *first;
    size_t v = 0;

    (void)peek(s);
    first = s->p;
    while (s->p < s->end && *s->p >= '0' && *s->p <= '9') {
        if (!size_mul(&v, v, 10) || !size_add(&v, v, (size_t)(*s->p - '0'))) {
            return syntax_error(s, "number does not fit 64 bits");
        }
        s->p++;
    }
    if (s->p == first) {
        return syntax_error(s, "expected a non-negative integer");
    }
    if (*first == '0' && s->p - first > 1) {
        return syntax_error(s, "number with a leading zero");
    }
    if (s->p < s->end && (*s->p == '.' || *s->p == 'e' || *s->p == 'E')) {
        return syntax_error(s, "expected a non-negative integer");
    }
    *out = v;
    return OK;
}

static enum status scan_size_list(struct scan *s, size_t *out, size_t cap, size_t *n,
                                  const char *too_many)
{
    bool more;
    enum status rc = expect(s, '[', "expected '['");

    *n = 0;
    if (rc != OK) {
        return rc;
    }
    if (peek(s) == ']') {
        s->p++;
        return OK;
    }
    do {
        if (*n == cap) {
            return syntax_error(s, too_many);
        }
        rc = scan_size(s, &out[*n]);
        if (rc == OK) {
            (*n)++;
            rc = list_next(s, ']', &more);
        }
        if (rc != OK) {
            return rc;
        }
    } while (more);
    return OK;
}

/* {"key": "value", ...}: checked, not kept. */
static enum status scan_metadata(struct scan *s)
{
    bool more;
    size_t n;
    enum status rc = expect(s, '{', "__metadata__ is not an object");

    if (rc != OK) {
        return rc;
    }
    if (peek(s) == '}') {
        s->p++;
        return OK;
    }
    do {
        rc = scan_string(s, NULL, 0, &n);
        if (rc == OK) {
            rc = expect(s, ':', "expected ':'");
        }
        if (rc == OK && peek(s) != '"') {
            rc = syntax_error(s, "a value of __metadata__ is not a string");
        }
        if (rc == OK) {
            rc = scan_string(s, NULL, 0, &n);
        }
        if (rc == OK) {
            rc = list_next(s, '}', &more);
        }
        if (rc != OK) {
            return rc;
        }
    } while (more);
    return OK;
}

enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4, HAS_ALL = 7 };

static enum status scan_dtype(struct scan *s, struct tensor *t)
{
    char word[DTYPE_NAME_BYTES];
    enum status rc = scan_word(s, word, sizeof word);

    if (rc != OK) {
        return rc;
    }
    t->dtype = dtype_of(word);
    if (t->dtype == DTYPE_NONE) {
        return error_set(s->err, ERR_UNSUPPORTED, "dtype '%s' is not known", word);
    }
    return OK;
}

static enum status scan_offsets(struct scan *s, struct safetensors_item *item)
{
    size_t offsets[2], n;
    enum status rc = scan_size_list(s, offsets, 2, &n, "data_offsets has more than 2 numbers");

    if (rc != OK) {
        return rc;
    }
    if (n != 2) {
        return syntax_error(s, "data_offsets has fewer than 2 numbers");
    }
    if (offsets[0] > offsets[1]) {
        return error_set(s->err, ERR_FORMAT, "data_offsets [%zu, %zu] run backwards", offsets[0],
                         offsets[1]);
    }
    item->begin = offsets[0];
    item->entry.n_bytes = offsets[1] - offsets[0];
    return OK;
}

/* One of the three fields of a tensor; seen collects HAS_ bits. */
static enum status scan_field(struct scan *s, struct safetensors_item *item, unsigned *seen)
{
    char word[FIELD_NAME_BYTES];
    struct tensor *t = &item->entry.tensor;
    unsigned bit;
    enum status rc = scan_word(s, word, sizeof word);

    if (rc != OK) {
        return rc;
    }
    if (strcmp(word, "dtype") == 0) {
        bit = HAS_DTYPE;
    } else if (strcmp(word, "shape") == 0) {
        bit = HAS_SHAPE;
    } else if (strcmp(word, "data_offsets") == 0) {
        bit = HAS_OFFSETS;
    } else {
        return error_set(s->err, ERR_FORMAT, "unknown field '%s'", word);
    }
    if (*seen & bit) {
        return error_set(s->err, ERR_FORMAT, "field '%s' stands twice", word);
    }
    *seen |= bit;
    rc = expect(s, ':', "expected ':'");
    if (rc != OK) {
        return rc;
    }
    switch (bit) {
    case HAS_DTYPE:
        return scan_dtype(s, t);
    case HAS_SHAPE:
        return scan_size_list(s, t->shape, TENSOR_DIMS_MAX, &t->n_dims, "too many dimensions");
    default:
        return scan_offsets(s, item);
    }
}

static enum status scan_tensor(struct scan *s, struct safetensors_item *item)
{
    unsigned seen = 0;
    bool more = true;
    enum status rc = expect(s, '{', "not an object");

    while (rc == OK && more) {
        rc = scan_field(s, item, &seen);
        if (rc == OK) {
            rc = list_next(s, '}', &more);
        }
    }
    if (rc == OK && seen != HAS_ALL) {
        rc = error_set(s->err, ERR_FORMAT, "field '%s' is missing",
                       !(seen & HAS_DTYPE)   ? "dtype"
                       : !(seen & HAS_SHAPE) ? "shape"
                                             : "data_offsets");
    }
    return rc;
}

static enum status header_grow(struct safetensors_header *h, struct error *err)
{
    size_t cap = h->cap ? h->cap * 2 : ITEMS_FIRST;
    struct safetensors_item *items;

    if (h->n == SAFETENSORS_TENSORS_MAX) {
        return error_set(err, ERR_LIMIT, "more than %d tensors in one file",
                         SAFETENSORS_TENSORS_MAX);
    }
    items = reallocarray(h->items, cap, sizeof *items);
    if (!items) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a list of %zu tensors", cap);
    }
    h->items = items;
    h->cap = cap;
    return OK;
}

/* "name": {...}, with the name stored behind those before it. The block of names has a byte for
 * each byte of the header, and an unescaped name with its NUL is shorter than the quoted one. */
static enum status scan_member(struct scan *s, struct safetensors_header *h, size_t names_bytes)
{
    struct safetensors_item *item;
    char *name = h->names + h->names_used;
    size_t len;
    enum status rc = scan_string(s, name, names_bytes - h->names_used - 1, &len);

    if (rc == OK) {
        rc = expect(s, ':', "expected ':'");
    }
    if (rc != OK) {
        return rc;
    }
    if (str_eq((struct str){name, len}, STR("__metadata__"))) {
        if (h->has_metadata) {
            return error_set(s->err, ERR_FORMAT, "__metadata__ stands twice");
        }
        h->has_metadata = true;
        return scan_metadata(s);
    }
    name[len] = '\0';
    rc = safetensors_check_name((struct str){name, len}, s->err);
    if (rc == OK && h->n == h->cap) {
        rc = header_grow(h, s->err);
    }
    if (rc != OK) {
        return rc;
    }
    item = &h->items[h->n];
    memset(item, 0, sizeof *item);
    item->entry.name = name;
    rc = scan_tensor(s, item);
    if (rc != OK) {
        error_prefix(s->err, "tensor '%s'", name);
        return rc;
    }
    h->names_used += len + 1;
    h->n++;
    return OK;
}

static enum status scan_header(struct scan *s, struct safetensors_header *h, size_t names_bytes)
{
    bool more = true;
    size_t valid = utf8_valid_prefix(s->p, names_bytes);

    if (valid != names_bytes) {
        return error_set(s->err, ERR_FORMAT, "header byte %zu: not valid UTF-8", valid);
    }
    if (*s->p != '{') {
        return syntax_error(s, "the header does not begin with '{'");
    }
    s->p++;
    if (peek(s) == '}') {
        s->p++;
        more = false;
    }
    while (more) {
        enum status rc = scan_member(s, h, names_bytes);

        if (rc == OK) {
            rc = list_next(s, '}', &more);
        }
        if (rc != OK) {
            return rc;
        }
    }
    skip_space(s);
    return s->p == s->end ? OK : syntax_error(s, "text after the header's object");
}

enum status safetensors_header_parse(struct safetensors_header *out, const char *text, size_t len,
                                     struct error *err)
{
    struct scan s = {text, text, text + len, err};
    enum status rc;

    assert(len > 0 && len <= SAFETENSORS_HEADER_BYTES_MAX);
    memset(out, 0, sizeof *out);
    out->names = malloc(len);
    if (!out->names) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate %zu bytes for tensor names", len);
    }
    rc = scan_header(&s, out, len);
    if (rc != OK) {
        safetensors_header_release(out);
    }
    return rc;
}

void safetensors_header_release(struct safetensors_header *h)
{
    free(h->items);
    free(h->names);
    memset(h, 0, sizeof *h);
}
