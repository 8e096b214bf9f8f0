/* jinja_str_methods.c - the methods of Python's str.
 *
 * Place: text, inside the Jinja engine. Pieces share the memory and the marks of the string they
 *        come from. On a Markup string results are Markup, and text that is put in is escaped. */
#include <string.h>

#include "text/jinja_run.h"

#define METHOD(name)                                                                               \
    static bool name(struct jinja_run *j, const struct jinja_builtin *b, struct jinja_value self,  \
                     const struct jinja_value *arg, const struct jinja_call *call,                 \
                     struct jinja_value *out)

/* ---- arguments ---- */

static bool want_string(struct jinja_run *j, struct jinja_value v)
{
    if (v.kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, v);
    }
    return v.kind == JINJA_STRING || jinja_fail(j, "must be str, not %s", jinja_type_name(v));
}

static bool want_int(struct jinja_run *j, struct jinja_value v, int64_t absent, int64_t *out)
{
    if (v.kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, v);
    }
    if (v.kind == JINJA_MISSING) {
        *out = absent;
        return true;
    }
    if (!jinja_is_integer(v)) {
        return jinja_fail(j, "'%s' object cannot be interpreted as an integer", jinja_type_name(v));
    }
    *out = jinja_integer(v);
    return true;
}

/* The byte range of [start:stop] arguments; *outside when start lies behind the end. */
static bool want_range(struct jinja_run *j, struct jinja_string *s, struct jinja_value start,
                       struct jinja_value stop, size_t *begin, size_t *end, bool *outside)
{
    int64_t n = (int64_t)jinja_string_chars(s), from, to;

    start = start.kind == JINJA_NONE ? (struct jinja_value){0} : start;
    stop = stop.kind == JINJA_NONE ? (struct jinja_value){0} : stop;
    if (!want_int(j, start, 0, &from) || !want_int(j, stop, n, &to)) {
        return false;
    }
    from = from < 0 ? (from < -n ? 0 : from + n) : from;
    to = to < 0 ? (to < -n ? 0 : to + n) : to > n ? n : to;
    *outside = from > n || from > to;
    *begin = *outside ? s->len : jinja_string_offset(s, (size_t)from);
    *end = *outside ? s->len : jinja_string_offset(s, (size_t)to);
    return (size_t)n == s->len || jinja_charge(j, s->len / 64); /* not ASCII: was walked */
}

/* ---- split and join ---- */

static bool push_slice(struct jinja_run *j, struct jinja_value *list, struct jinja_string *s,
                       size_t begin, size_t end)
{
    struct jinja_value part;

    return jinja_charge(j, 1) && jinja_string_slice(j, &part, s, begin, end) &&
           jinja_list_push(j, list->as.list, part);
}

static size_t skip_class(const struct jinja_string *s, size_t at, bool space)
{
    while (at < s->len) {
        uint32_t cp;
        size_t n = utf8_decode(&cp, s->ptr + at, s->len - at);
        if (jinja_is_space(cp) != space) {
            break;
        }
        at += n;
    }
    return at;
}

static size_t skip_class_back(const struct jinja_string *s, size_t end, bool space)
{
    while (end > 0) {
        uint32_t cp;
        size_t p = end - 1;
        while (p > 0 && ((unsigned char)s->ptr[p] & 0xc0u) == 0x80u) {
            p--;
        }
        (void)utf8_decode(&cp, s->ptr + p, end - p);
        if (jinja_is_space(cp) != space) {
            break;
        }
        end = p;
    }
    return end;
}

static bool split_space(struct jinja_run *j, struct jinja_value *out, struct jinja_string *s,
                        int64_t max)
{
    size_t at = skip_class(s, 0, true);

    for (int64_t n = 0; at < s->len; n++) {
        size_t end;
        if (max >= 0 && n >= max) {
            return push_slice(j, out, s, at, s->len); /* the rest as it is */
        }
        end = skip_class(s, at, false);
        if (!push_slice(j, out, s, at, end)) {
            return false;
        }
        at = skip_class(s, end, true);
    }
    return true;
}

static bool split_text(struct jinja_run *j, struct jinja_value *out, struct jinja_string *s,
                       struct jinja_string *sep, int64_t max)
{
    size_t at = 0;

    for (int64_t n = 0; max < 0 || n < max; n++) {
        size_t hit = str_find((struct str){s->ptr + at, s->len - at}, jinja_slice_of(sep));
        if (hit == SIZE_MAX) {
            break;
        }
        if (!push_slice(j, out, s, at, at + hit)) {
            return false;
        }
        at += hit + sep->len;
    }
    return push_slice(j, out, s, at, s->len);
}

/* From the end; comparing costs up to the needle's length at each place, so it is charged. */
static bool find_last(struct jinja_run *j, size_t *hit, struct str s, struct str needle)
{
    size_t n_places = s.len < needle.len ? 0 : s.len - needle.len + 1, at = n_places;

    while (at > 0 && needle.len > 0 && memcmp(s.ptr + at - 1, needle.ptr, needle.len) != 0) {
        at--;
    }
    *hit = at > 0 ? at - 1 : SIZE_MAX;
    return jinja_charge(j, ((n_places - at) / 64 + 1) * (needle.len / 64 + 1));
}

static void reverse_list(struct jinja_list *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct jinja_value v = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = v;
    }
}

static bool rsplit_text(struct jinja_run *j, struct jinja_value *out, struct jinja_string *s,
                        struct jinja_string *sep, int64_t max)
{
    size_t end = s->len;

    for (int64_t n = 0; max < 0 || n < max; n++) {
        size_t hit;
        if (!find_last(j, &hit, (struct str){s->ptr, end}, jinja_slice_of(sep))) {
            return false;
        }
        if (hit == SIZE_MAX) {
            break;
        }
        if (!push_slice(j, out, s, hit + sep->len, end)) {
            return false;
        }
        end = hit;
    }
    if (!push_slice(j, out, s, 0, end)) {
        return false;
    }
    reverse_list(out->as.list);
    return true;
}

static bool rsplit_space(struct jinja_run *j, struct jinja_value *out, struct jinja_string *s,
                         int64_t max)
{
    size_t end = skip_class_back(s, s->len, true);

    for (int64_t n = 0; end > 0; n++) {
        size_t begin;
        if (max >= 0 && n >= max) {
            if (!push_slice(j, out, s, 0, end)) {
                return false;
            }
            break;
        }
        begin = skip_class_back(s, end, false);
        if (!push_slice(j, out, s, begin, end)) {
            return false;
        }
        end = skip_class_back(s, begin, true);
    }
    reverse_list(out->as.list);
    return true;
}

/* split and rsplit (b->detail 1) */
METHOD(str_split)
{
    struct jinja_string *s = self.as.string;
    int64_t max;
    bool by_space = arg[0].kind == JINJA_MISSING || arg[0].kind == JINJA_NONE;

    (void)call;
    if (!want_int(j, arg[1], -1, &max) || !jinja_list_new(j, out, JINJA_LIST, 0) ||
        !jinja_charge(j, s->len / 64)) {
        return false;
    }
    if (by_space) {
        return b->detail ? rsplit_space(j, out, s, max) : split_space(j, out, s, max);
    }
    if (!want_string(j, arg[0])) {
        return false;
    }
    if (arg[0].as.string->len == 0) {
        return jinja_fail(j, "empty separator");
    }
    return b->detail ? rsplit_text(j, out, s, arg[0].as.string, max)
                     : split_text(j, out, s, arg[0].as.string, max);
}

METHOD(str_splitlines)
{
    struct jinja_string *s = self.as.string;
    bool keep = jinja_truth(arg[0]);

    (void)b, (void)call;
    if (!jinja_list_new(j, out, JINJA_LIST, 0) || !jinja_charge(j, s->len / 64)) {
        return false;
    }
    for (size_t at = 0; at < s->len;) {
        size_t next, end = jinja_line_end(s, at, &next);
        if (!push_slice(j, out, s, at, keep ? next : end)) {
            return false;
        }
        at = next;
    }
    return true;
}

/* partition and rpartition (b->detail 1) */
METHOD(str_partition)
{
    struct jinja_string *s = self.as.string, *sep;
    size_t hit;

    (void)call;
    if (!want_string(j, arg[0]) || !jinja_list_new(j, out, JINJA_TUPLE, 3)) {
        return false;
    }
    sep = arg[0].as.string;
    if (sep->len == 0) {
        return jinja_fail(j, "empty separator");
    }
    hit = str_find(jinja_slice_of(s), jinja_slice_of(sep));
    if (b->detail && !find_last(j, &hit, jinja_slice_of(s), jinja_slice_of(sep))) {
        return false;
    }
    if (hit == SIZE_MAX) {
        size_t whole = b->detail ? 0 : s->len;
        return push_slice(j, out, s, 0, whole) && push_slice(j, out, s, 0, 0) &&
               push_slice(j, out, s, b->detail ? 0 : s->len, s->len);
    }
    return push_slice(j, out, s, 0, hit) && push_slice(j, out, s, hit, hit + sep->len) &&
           push_slice(j, out, s, hit + sep->len, s->len);
}

METHOD(str_join)
{
    struct jinja_string *s = self.as.string;
    struct jinja_iter *it;
    struct jinja_value item;
    struct jinja_text t;
    enum jinja_next next;
    size_t n = 0;

    (void)b, (void)call;
    if (!jinja_iter_new(j, &it, arg[0])) {
        return false;
    }
    jinja_text_init(&t, j);
    for (; (next = jinja_iter_next(j, it, &item)) == JINJA_NEXT_ITEM; n++) {
        if (s->is_markup ? !jinja_escape_html(j, &item, item) : item.kind != JINJA_STRING) {
            return jinja_fail(j, "sequence item %zu: expected str instance, %s found", n,
                              jinja_type_name(item));
        }
        if (n > 0) {
            jinja_text_put_string(&t, s);
        }
        jinja_text_put_string(&t, item.as.string);
    }
    if (next == JINJA_NEXT_FAILED || !jinja_text_take(&t, out)) {
        return false;
    }
    out->as.string->is_markup = s->is_markup;
    return true;
}

/* ---- strip, case, replace ---- */

/* strip, lstrip, rstrip: b->detail says where. */
METHOD(str_strip)
{
    const struct jinja_string *chars = NULL;

    (void)call;
    if (arg[0].kind != JINJA_MISSING && arg[0].kind != JINJA_NONE) {
        if (!want_string(j, arg[0])) {
            return false;
        }
        chars = arg[0].as.string;
    }
    return jinja_strip(j, out, self.as.string, chars, b->detail);
}

METHOD(str_case)
{
    (void)arg, (void)call;
    return jinja_change_case(j, out, self.as.string, (enum jinja_case)b->detail);
}

METHOD(str_replace)
{
    struct jinja_value from = arg[0], to = arg[1];
    int64_t max;
    bool markup = self.as.string->is_markup;

    (void)b, (void)call;
    if (!want_string(j, from) || !want_string(j, to) || !want_int(j, arg[2], -1, &max)) {
        return false;
    }
    if (markup && (!jinja_escape_html(j, &from, from) || !jinja_escape_html(j, &to, to))) {
        return false;
    }
    if (!jinja_replace(j, out, self.as.string, from.as.string, to.as.string, max)) {
        return false;
    }
    out->as.string->is_markup = markup;
    return true;
}

/* removeprefix, removesuffix (b->detail 1) */
METHOD(str_remove)
{
    struct jinja_string *s = self.as.string, *part;

    (void)call;
    if (!want_string(j, arg[0])) {
        return false;
    }
    part = arg[0].as.string;
    if (b->detail && part->len > 0 && str_ends(jinja_slice_of(s), jinja_slice_of(part))) {
        return jinja_string_slice(j, out, s, 0, s->len - part->len);
    }
    if (!b->detail && str_starts(jinja_slice_of(s), jinja_slice_of(part))) {
        return jinja_string_slice(j, out, s, part->len, s->len);
    }
    return jinja_string_slice(j, out, s, 0, s->len);
}

/* ---- looking for text ---- */

static bool affix_matches(const struct jinja_builtin *b, struct str s,
                          const struct jinja_string *affix)
{
    return b->detail ? str_ends(s, jinja_slice_of(affix)) : str_starts(s, jinja_slice_of(affix));
}

/* startswith, endswith (b->detail 1): a string or a tuple of them. */
METHOD(str_affix)
{
    struct jinja_string *s = self.as.string;
    size_t begin, end;
    bool outside, found = false;
    struct str range;

    (void)call;
    if (!want_range(j, s, arg[1], arg[2], &begin, &end, &outside)) {
        return false;
    }
    range = (struct str){s->ptr + begin, end - begin};
    if (arg[0].kind == JINJA_TUPLE) {
        for (size_t i = 0; i < arg[0].as.list->n; i++) {
            struct jinja_value v = arg[0].as.list->items[i];
            if (!jinja_charge(j, 1) || !want_string(j, v)) {
                return false;
            }
            found |= affix_matches(b, range, v.as.string);
            if (!jinja_charge(j, v.as.string->len / 256)) {
                return false;
            }
        }
    } else {
        if (!want_string(j, arg[0])) {
            return false;
        }
        found = affix_matches(b, range, arg[0].as.string);
        if (!jinja_charge(j, arg[0].as.string->len / 256)) {
            return false;
        }
    }
    *out = jinja_bool(found && !outside);
    return true;
}

enum { FIND_LAST = 1, FIND_OR_FAIL = 2 };

/* find, rfind, index, rindex */
METHOD(str_find_text)
{
    struct jinja_string *s = self.as.string;
    struct str range;
    size_t begin, end, hit;
    bool outside;

    (void)call;
    if (!want_string(j, arg[0]) || !want_range(j, s, arg[1], arg[2], &begin, &end, &outside) ||
        !jinja_charge(j, s->len / 64)) {
        return false;
    }
    range = (struct str){s->ptr + begin, end - begin};
    hit = str_find(range, jinja_slice_of(arg[0].as.string));
    if ((b->detail & FIND_LAST) && !find_last(j, &hit, range, jinja_slice_of(arg[0].as.string))) {
        return false;
    }
    hit = outside ? SIZE_MAX : hit;
    if (hit == SIZE_MAX) {
        *out = jinja_int(-1);
        return !(b->detail & FIND_OR_FAIL) || jinja_fail(j, "substring not found");
    }
    hit += begin;
    if (jinja_string_chars(s) != s->len) { /* bytes to characters */
        size_t chars = 0;
        for (size_t i = 0; i < hit; i++) {
            chars += ((unsigned char)s->ptr[i] & 0xc0u) != 0x80u;
        }
        hit = chars;
    }
    *out = jinja_int((int64_t)hit);
    return true;
}

METHOD(str_count)
{
    struct jinja_string *s = self.as.string;
    size_t begin, end, n = 0, hit;
    bool outside;
    struct str needle;

    (void)b, (void)call;
    if (!want_string(j, arg[0]) || !want_range(j, s, arg[1], arg[2], &begin, &end, &outside)) {
        return false;
    }
    needle = jinja_slice_of(arg[0].as.string);
    if (needle.len == 0) {
        for (size_t i = begin; i < end; i++) {
            n += ((unsigned char)s->ptr[i] & 0xc0u) != 0x80u;
        }
        *out = jinja_int(outside ? 0 : (int64_t)n + 1);
        return jinja_charge(j, s->len / 64);
    }
    while (!outside &&
           (hit = str_find((struct str){s->ptr + begin, end - begin}, needle)) != SIZE_MAX) {
        n++;
        begin += hit + needle.len;
    }
    *out = jinja_int((int64_t)n);
    return jinja_charge(j, s->len / 64 + n);
}

/* ---- questions about all characters ---- */

enum question {
    IS_ALPHA,
    IS_ALNUM,
    IS_DECIMAL,
    IS_NUMERIC,
    IS_SPACE,
    IS_PRINTABLE,
    IS_ASCII,
    IS_IDENTIFIER
};

static bool char_is(enum question q, uint32_t cp, bool first)
{
    switch (q) {
    case IS_ALPHA:
        return jinja_is_alpha(cp);
    case IS_ALNUM:
        return jinja_is_alpha(cp) || jinja_is_numeric(cp);
    case IS_DECIMAL:
        return jinja_is_decimal(cp);
    case IS_NUMERIC:
        return jinja_is_numeric(cp);
    case IS_SPACE:
        return jinja_is_space(cp);
    case IS_PRINTABLE:
        return jinja_is_printable(cp);
    case IS_ASCII:
        return cp < 0x80;
    case IS_IDENTIFIER:
    default:
        return cp == '_' || jinja_is_alpha(cp) || (!first && jinja_is_decimal(cp));
    }
}

/* isdigit also holds for the digits among the superscripts and their like. */
static bool is_digit_like(uint32_t cp)
{
    return cp == 0xb2 || cp == 0xb3 || cp == 0xb9 || cp == 0x2070 ||
           (cp >= 0x2074 && cp <= 0x2079) || (cp >= 0x2080 && cp <= 0x2089) ||
           (cp >= 0x2460 && cp <= 0x2468) || (cp >= 0x2474 && cp <= 0x247c) ||
           (cp >= 0x2488 && cp <= 0x2490);
}

METHOD(str_is)
{
    const struct jinja_string *s = self.as.string;
    enum question q = (enum question)(b->detail & 0xff);
    bool digits = b->detail & 0x100;
    bool holds = s->len > 0 || q == IS_PRINTABLE || q == IS_ASCII;

    (void)arg, (void)call;
    for (size_t i = 0; holds && i < s->len;) {
        uint32_t cp;
        size_t n = utf8_decode(&cp, s->ptr + i, s->len - i);
        holds = char_is(q, cp, i == 0) || (digits && is_digit_like(cp));
        i += n;
    }
    *out = jinja_bool(holds);
    return jinja_charge(j, s->len / 64);
}

/* isupper, islower: no letter of the other case, and at least one letter. */
METHOD(str_is_case)
{
    const struct jinja_string *s = self.as.string;
    bool seen = false, other = false;

    (void)arg, (void)call;
    for (size_t i = 0; !other && i < s->len;) {
        uint32_t cp;
        size_t n = utf8_decode(&cp, s->ptr + i, s->len - i);
        enum jinja_letter letter = jinja_letter_case(cp);
        seen |= letter == (enum jinja_letter)b->detail;
        other = letter != JINJA_LETTER_NONE && letter != (enum jinja_letter)b->detail;
        i += n;
    }
    *out = jinja_bool(seen && !other);
    return jinja_charge(j, s->len / 64);
}

METHOD(str_istitle)
{
    const struct jinja_string *s = self.as.string;
    bool seen = false, in_word = false, holds = true;

    (void)b, (void)arg, (void)call;
    for (size_t i = 0; holds && i < s->len;) {
        uint32_t cp;
        size_t n = utf8_decode(&cp, s->ptr + i, s->len - i);
        enum jinja_letter letter = jinja_letter_case(cp);
        if (letter == JINJA_LETTER_NONE) {
            in_word = false;
        } else {
            holds = in_word == (letter == JINJA_LETTER_LOWER);
            in_word = seen = true;
        }
        i += n;
    }
    *out = jinja_bool(holds && seen);
    return jinja_charge(j, s->len / 64);
}

/* ---- padding ---- */

static void pad(struct jinja_text *t, const struct jinja_string *fill, const struct jinja_string *s,
                int64_t n)
{
    for (int64_t i = 0; i < n && !t->failed; i++) {
        if (fill) {
            jinja_text_put_string(t, fill);
        } else {
            jinja_text_put(t, " ", 1, jinja_string_all_trusted(s));
        }
    }
}

/* ljust, rjust, center */
METHOD(str_just)
{
    struct jinja_string *s = self.as.string;
    const struct jinja_string *fill = NULL;
    struct jinja_text t;
    int64_t width, n, left;

    (void)call;
    if (!want_int(j, arg[0], 0, &width)) {
        return false;
    }
    if (arg[1].kind != JINJA_MISSING) {
        if (!want_string(j, arg[1])) {
            return false;
        }
        fill = arg[1].as.string;
        if (jinja_string_chars(arg[1].as.string) != 1) {
            return jinja_fail(j, "the fill character must be exactly one character long");
        }
    }
    n = width - (int64_t)jinja_string_chars(s);
    n = n < 0 ? 0 : n;
    left = b->detail == '<' ? 0 : b->detail == '>' ? n : n / 2 + (n & width & 1);
    jinja_text_init(&t, j);
    pad(&t, fill, s, left);
    jinja_text_put_string(&t, s);
    pad(&t, fill, s, n - left);
    if (!jinja_text_take(&t, out)) {
        return false;
    }
    out->as.string->is_markup = s->is_markup;
    return true;
}

METHOD(str_zfill)
{
    struct jinja_string *s = self.as.string;
    struct jinja_text t;
    int64_t width;
    size_t sign;

    (void)b, (void)call;
    if (!want_int(j, arg[0], 0, &width)) {
        return false;
    }
    sign = s->len > 0 && (s->ptr[0] == '-' || s->ptr[0] == '+');
    jinja_text_init(&t, j);
    jinja_text_put_slice(&t, s, 0, sign);
    for (int64_t i = (int64_t)jinja_string_chars(s); i < width && !t.failed; i++) {
        jinja_text_put(&t, "0", 1, jinja_string_all_trusted(s));
    }
    jinja_text_put_slice(&t, s, sign, s->len);
    return jinja_text_take(&t, out);
}

METHOD(str_expandtabs)
{
    struct jinja_string *s = self.as.string;
    struct jinja_text t;
    int64_t size, column = 0;

    (void)b, (void)call;
    if (!want_int(j, arg[0], 8, &size)) {
        return false;
    }
    jinja_text_init(&t, j);
    for (size_t i = 0; i < s->len && !t.failed; i++) {
        if (s->ptr[i] == '\t') {
            int64_t n = size > 0 ? size - column % size : 0;
            for (int64_t k = 0; k < n && !t.failed; k++) {
                jinja_text_put(&t, " ", 1, jinja_string_mark(s, i));
            }
            column += n;
            continue;
        }
        jinja_text_put_slice(&t, s, i, i + 1);
        if (s->ptr[i] == '\n' || s->ptr[i] == '\r') {
            column = 0;
        } else if (((unsigned char)s->ptr[i] & 0xc0u) != 0x80u) {
            column++;
        }
    }
    return jinja_text_take(&t, out);
}

/* ---- format ---- */

METHOD(str_format)
{
    (void)b, (void)arg;
    return jinja_format_braces(j, out, self.as.string, call);
}

METHOD(str_format_map)
{
    struct jinja_call named = {0};
    const struct jinja_dict *d = arg[0].as.dict;

    (void)b, (void)call;
    if (arg[0].kind != JINJA_DICT) {
        return jinja_fail(j, "format_map() wants a mapping");
    }
    named.names = jinja_alloc(j, d->n, sizeof(struct jinja_string *));
    named.named = jinja_alloc(j, d->n, sizeof *named.named);
    if (!named.names || !named.named) {
        return false;
    }
    for (size_t i = 0; i < d->n; i++) {
        if (d->entries[i].key.kind == JINJA_STRING) {
            named.names[named.n_named] = d->entries[i].key.as.string;
            named.named[named.n_named++] = d->entries[i].value;
        }
    }
    return jinja_format_braces(j, out, self.as.string, &named);
}

const struct jinja_builtin jinja_str_methods[] = {
    {"capitalize", "/", 0, str_case, JINJA_CAPITALIZE},
    {"casefold", "/", 0, str_case, JINJA_FOLD},
    {"center", "/width,fillchar", 1, str_just, '^'},
    {"count", "/sub,start,end", 1, str_count, 0},
    {"encode", "encoding,errors", 0, NULL, 0},
    {"endswith", "/suffix,start,end", 1, str_affix, 1},
    {"expandtabs", "tabsize", 0, str_expandtabs, 0},
    {"find", "/sub,start,end", 1, str_find_text, 0},
    {"format", "*", 0, str_format, 0},
    {"format_map", "/mapping", 1, str_format_map, 0},
    {"index", "/sub,start,end", 1, str_find_text, FIND_OR_FAIL},
    {"isalnum", "/", 0, str_is, IS_ALNUM},
    {"isalpha", "/", 0, str_is, IS_ALPHA},
    {"isascii", "/", 0, str_is, IS_ASCII},
    {"isdecimal", "/", 0, str_is, IS_DECIMAL},
    {"isdigit", "/", 0, str_is, IS_DECIMAL | 0x100},
    {"isidentifier", "/", 0, str_is, IS_IDENTIFIER},
    {"islower", "/", 0, str_is_case, JINJA_LETTER_LOWER},
    {"isnumeric", "/", 0, str_is, IS_NUMERIC},
    {"isprintable", "/", 0, str_is, IS_PRINTABLE},
    {"isspace", "/", 0, str_is, IS_SPACE},
    {"istitle", "/", 0, str_istitle, 0},
    {"isupper", "/", 0, str_is_case, JINJA_LETTER_UPPER},
    {"join", "/iterable", 1, str_join, 0},
    {"ljust", "/width,fillchar", 1, str_just, '<'},
    {"lower", "/", 0, str_case, JINJA_LOWER},
    {"lstrip", "/chars", 0, str_strip, JINJA_STRIP_LEFT},
    {"maketrans", "/x,y,z", 1, NULL, 0},
    {"partition", "/sep", 1, str_partition, 0},
    {"removeprefix", "/prefix", 1, str_remove, 0},
    {"removesuffix", "/suffix", 1, str_remove, 1},
    {"replace", "/old,new,count", 2, str_replace, 0},
    {"rfind", "/sub,start,end", 1, str_find_text, FIND_LAST},
    {"rindex", "/sub,start,end", 1, str_find_text, FIND_LAST | FIND_OR_FAIL},
    {"rjust", "/width,fillchar", 1, str_just, '>'},
    {"rpartition", "/sep", 1, str_partition, 1},
    {"rsplit", "sep,maxsplit", 0, str_split, 1},
    {"rstrip", "/chars", 0, str_strip, JINJA_STRIP_RIGHT},
    {"split", "sep,maxsplit", 0, str_split, 0},
    {"splitlines", "keepends", 0, str_splitlines, 0},
    {"startswith", "/prefix,start,end", 1, str_affix, 0},
    {"strip", "/chars", 0, str_strip, JINJA_STRIP_BOTH},
    {"swapcase", "/", 0, str_case, JINJA_SWAPCASE},
    {"title", "/", 0, str_case, JINJA_TITLE},
    {"translate", "/table", 1, NULL, 0},
    {"upper", "/", 0, str_case, JINJA_UPPER},
    {"zfill", "/width", 1, str_zfill, 0},
    {0}};
