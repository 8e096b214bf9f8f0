/* jinja_format.c - Python's two ways to format: "%s" % x and "{}".format(x).
 *
 * Place: text, inside the Jinja engine. Both end in one struct spec and the same number printers.
 * Marks: the text of the format string keeps its own; a string argument keeps its own; digits, signs
 *        and padding get the mark of the directive that asked for them, so that an untrusted format
 *        string cannot make trusted text. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_run.h"

enum {
    PRECISION_MAX = 1000, /* digits; more is not text for a prompt */
    WIDTH_MAX = 1 << 20,
    DIGITS_MAX = PRECISION_MAX + 400 /* a double in %f: 309 digits and the fraction */
};

struct spec {
    uint32_t fill;
    char align;     /* '<' '>' '^' '=', 0: by type */
    char sign;      /* '-' (only minus), '+', ' ' */
    bool alternate; /* # */
    bool zero;
    char group; /* ',' '_' or 0 */
    int width;
    int precision; /* -1: none */
    char type;     /* 0: none */
    bool mark;     /* of what is made for it */
};

/* ---- numbers ---- */

struct number { /* sign, prefix and digits apart, so that padding can go between */
    char sign;
    char prefix[3];
    char digits[DIGITS_MAX + DIGITS_MAX / 3 + 8];
};

static void sign_of(struct number *n, bool is_negative, char wanted)
{
    n->sign = is_negative ? '-' : wanted == '-' ? '\0' : wanted;
}

static void int_digits(struct number *n, int64_t v, const struct spec *s)
{
    static const char lower[] = "0123456789abcdef", upper[] = "0123456789ABCDEF";
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    unsigned base = s->type == 'x' || s->type == 'X' ? 16
                    : s->type == 'o'                 ? 8
                    : s->type == 'b'                 ? 2
                                                     : 10;
    char reversed[72];
    size_t len = 0;

    do {
        reversed[len++] = (s->type == 'X' ? upper : lower)[u % base];
        u /= base;
    } while (u > 0);
    while ((int)len < s->precision && len < sizeof reversed - 1) { /* "%.3d" */
        reversed[len++] = '0';
    }
    for (size_t i = 0; i < len; i++) {
        n->digits[i] = reversed[len - 1 - i];
    }
    n->digits[len] = '\0';
    if (s->alternate && base != 10) {
        n->prefix[0] = '0';
        n->prefix[1] = s->type;
    }
    sign_of(n, v < 0, s->sign);
}

/* "1234567.5" with a separator each three digits before the point. */
static void group_digits(struct number *n, char separator)
{
    char copy[sizeof n->digits];
    size_t whole = strspn(n->digits, "0123456789"), out = 0, len = strlen(n->digits);

    memcpy(copy, n->digits, len + 1);
    for (size_t i = 0; i < len && out + 2 < sizeof n->digits; i++) {
        if (i > 0 && i < whole && (whole - i) % 3 == 0) {
            n->digits[out++] = separator;
        }
        n->digits[out++] = copy[i];
    }
    n->digits[out] = '\0';
}

/* Without a type: as repr() where no precision is given, else like 'g' with a ".0" at least. */
static void float_default(struct number *n, double v, const struct spec *s)
{
    char text[DIGITS_MAX], *e;
    int precision = s->precision > 0 ? s->precision : 1;

    if (s->precision < 0) {
        json_float_repr(n->digits, v);
        return;
    }
    snprintf(text, sizeof text, "%.*e", precision - 1, v);
    e = strchr(text, 'e');
    if (strtol(e + 1, NULL, 10) == precision - 1) { /* no room left for the ".0" */
        char *end = e;
        while (precision > 1 && end[-1] == '0') {
            end--;
        }
        end -= end[-1] == '.';
        snprintf(n->digits, sizeof n->digits, "%.*s%s", (int)(end - text), text, e);
        return;
    }
    snprintf(text, sizeof text, "%.*g", precision, v);
    snprintf(n->digits, sizeof n->digits, "%s%s", text, strpbrk(text, ".e") ? "" : ".0");
}

static void float_digits(struct number *n, double v, const struct spec *s)
{
    char fmt[8] = "%.*f";
    char type = s->type == '%' ? 'f' : s->type;
    int precision = s->precision < 0 ? 6 : s->precision;
    bool is_negative = signbit(v) && !isnan(v);

    v = fabs(s->type == '%' ? v * 100.0 : v);
    sign_of(n, is_negative, s->sign);
    if (!isfinite(v)) {
        bool is_upper = type == 'F' || type == 'E' || type == 'G';
        snprintf(n->digits, sizeof n->digits, "%s",
                 isnan(v) ? (is_upper ? "NAN" : "nan") : (is_upper ? "INF" : "inf"));
    } else if (type == 0) {
        float_default(n, v, s);
    } else {
        snprintf(fmt, sizeof fmt, s->alternate ? "%%#.*%c" : "%%.*%c", type);
        snprintf(n->digits, DIGITS_MAX, fmt, precision, v);
    }
    if (s->type == '%') {
        size_t len = strlen(n->digits);
        n->digits[len] = '%'; /* room is left by DIGITS_MAX */
        n->digits[len + 1] = '\0';
    }
}

static size_t fill_bytes(struct jinja_text *t, const struct spec *s, size_t n)
{
    for (size_t i = 0; i < n && !t->failed; i++) {
        jinja_text_put_char(t, s->fill, s->mark);
    }
    return n;
}

static bool put_number(struct jinja_text *t, const struct number *n, const struct spec *s)
{
    size_t len = (n->sign != '\0') + strlen(n->prefix) + strlen(n->digits);
    size_t pad = s->width > 0 && (size_t)s->width > len ? (size_t)s->width - len : 0;
    char align = s->align ? s->align : '>';

    if (align == '>') {
        (void)fill_bytes(t, s, pad);
    } else if (align == '^') {
        (void)fill_bytes(t, s, pad / 2);
    }
    if (n->sign) {
        jinja_text_put(t, &n->sign, 1, s->mark);
    }
    jinja_text_put_cstr(t, n->prefix, s->mark);
    if (align == '=') {
        (void)fill_bytes(t, s, pad);
    }
    jinja_text_put_cstr(t, n->digits, s->mark);
    if (align == '<') {
        (void)fill_bytes(t, s, pad);
    } else if (align == '^') {
        (void)fill_bytes(t, s, pad - pad / 2);
    }
    return !t->failed;
}

static bool put_text(struct jinja_text *t, struct jinja_string *s, const struct spec *spec)
{
    size_t n = jinja_string_chars(s);
    size_t take = spec->precision >= 0 && (size_t)spec->precision < n ? (size_t)spec->precision : n;
    size_t pad = spec->width > 0 && (size_t)spec->width > take ? (size_t)spec->width - take : 0;
    char align = spec->align ? spec->align : '<';

    (void)fill_bytes(t, spec, align == '>' ? pad : align == '^' ? pad / 2 : 0);
    jinja_text_put_slice(t, s, 0, take == n ? s->len : jinja_string_offset(s, take));
    (void)fill_bytes(t, spec, align == '<' ? pad : align == '^' ? pad - pad / 2 : 0);
    return !t->failed;
}

static bool put_character(struct jinja_text *t, struct jinja_value v, const struct spec *spec)
{
    struct jinja_value one;
    struct jinja_text made;

    if (v.kind == JINJA_STRING && jinja_string_chars(v.as.string) == 1) {
        return put_text(t, v.as.string, spec);
    }
    if (!jinja_is_integer(v)) {
        return jinja_fail(t->j, "%%c requires int or char");
    }
    if (jinja_integer(v) < 0 || jinja_integer(v) > 0x10ffff ||
        (jinja_integer(v) >= 0xd800 && jinja_integer(v) <= 0xdfff)) {
        return jinja_fail(t->j, "%%c: no such character");
    }
    jinja_text_init(&made, t->j);
    jinja_text_put_char(&made, (uint32_t)jinja_integer(v), false);
    return jinja_text_take(&made, &one) && put_text(t, one.as.string, spec);
}

static bool float_to_int(struct jinja_run *j, double d, int64_t *out)
{
    if (!(d > -9.2e18 && d < 9.2e18)) {
        return jinja_fail(j, "a float does not fit in 64 bits");
    }
    *out = (int64_t)d;
    return true;
}

static bool is_float_type(char type)
{
    return type && strchr("eEfFgG%", type);
}

/* v is a number; the type is known to fit. */
static bool put_by_type(struct jinja_text *t, struct jinja_value v, const struct spec *spec)
{
    struct number n = {0};

    if (is_float_type(spec->type) || (v.kind == JINJA_FLOAT && spec->type == 0)) {
        float_digits(&n, jinja_real(v), spec);
    } else {
        int64_t i = 0;
        if (v.kind == JINJA_FLOAT) {
            if (!float_to_int(t->j, v.as.real, &i)) {
                return false;
            }
        } else {
            i = jinja_integer(v);
        }
        int_digits(&n, i, spec);
    }
    if (spec->group) {
        group_digits(&n, spec->group);
    }
    return put_number(t, &n, spec);
}

/* ASCII form of repr(), for !a and %a. */
static bool ascii_of(struct jinja_run *j, struct jinja_value *out, struct jinja_value v)
{
    struct jinja_text t, a;
    const struct jinja_string *s;

    jinja_text_init(&t, j);
    if (!jinja_repr(&t, v) || !jinja_text_take(&t, &v)) {
        return false;
    }
    s = v.as.string;
    jinja_text_init(&a, j);
    for (size_t i = 0; i < s->len && !a.failed;) {
        uint32_t cp;
        size_t n = utf8_decode(&cp, s->ptr + i, s->len - i);
        if (cp < 0x80) {
            jinja_text_put_slice(&a, s, i, i + 1);
        } else {
            char text[16];
            snprintf(text, sizeof text,
                     cp < 0x100     ? "\\x%02" PRIx32
                     : cp < 0x10000 ? "\\u%04" PRIx32
                                    : "\\U%08" PRIx32,
                     cp);
            jinja_text_put_cstr(&a, text, jinja_string_mark(s, i));
        }
        i += n;
    }
    return jinja_text_take(&a, out);
}

static bool converted(struct jinja_run *j, struct jinja_value *out, struct jinja_value v, char how)
{
    struct jinja_text t;

    if (how == 'a') {
        return ascii_of(j, out, v);
    }
    if (how == 's') {
        return jinja_soft_string(j, out, v);
    }
    jinja_text_init(&t, j);
    return jinja_repr(&t, v) && jinja_text_take(&t, out);
}

/* ---- "%..." ---- */

struct percent {
    struct jinja_run *j;
    struct jinja_text *t;
    const struct jinja_string *fmt;
    size_t at;
    struct jinja_value args;
    size_t n_used; /* of a tuple, or 1 once the single value is used */
    bool by_name;
};

static bool next_argument(struct percent *p, struct jinja_value *out)
{
    if (p->args.kind == JINJA_TUPLE ? p->n_used >= p->args.as.list->n : p->n_used >= 1) {
        return jinja_fail(p->j, "not enough arguments for format string");
    }
    *out = p->args.kind == JINJA_TUPLE ? p->args.as.list->items[p->n_used] : p->args;
    p->n_used++;
    return true;
}

static char peek(const struct percent *p)
{
    return p->at < p->fmt->len ? p->fmt->ptr[p->at] : '\0';
}

/* "(name)" */
static bool named_argument(struct percent *p, struct jinja_value *out)
{
    size_t begin = ++p->at, depth = 1;
    struct jinja_value *found;

    for (; p->at < p->fmt->len; p->at++) {
        depth += peek(p) == '(';
        depth -= peek(p) == ')';
        if (depth == 0) {
            break;
        }
    }
    if (p->at >= p->fmt->len) {
        return jinja_fail(p->j, "incomplete format key");
    }
    if (p->args.kind != JINJA_DICT) {
        return jinja_fail(p->j, "format requires a mapping");
    }
    found = jinja_dict_get(p->args.as.dict, (struct str){p->fmt->ptr + begin, p->at - begin});
    if (!found) {
        return jinja_fail(p->j, "format key is missing from the mapping");
    }
    p->at++;
    p->by_name = true;
    *out = *found;
    return true;
}

static bool read_size(struct percent *p, int *out, int max)
{
    int64_t n = 0;

    if (peek(p) == '*') {
        struct jinja_value v;
        p->at++;
        if (!next_argument(p, &v)) {
            return false;
        }
        if (!jinja_is_integer(v)) {
            return jinja_fail(p->j, "* wants int");
        }
        n = jinja_integer(v);
    } else {
        while (peek(p) >= '0' && peek(p) <= '9' && n <= max) {
            n = n * 10 + (peek(p) - '0');
            p->at++;
        }
    }
    if (n > max || n < -max) {
        return jinja_fail(p->j, "a format's width or precision is larger than %d", max);
    }
    *out = (int)n;
    return true;
}

static bool read_percent_spec(struct percent *p, struct spec *s, bool *left)
{
    for (;; p->at++) {
        char c = peek(p);
        if (c == '-') {
            *left = true;
        } else if (c == '+') {
            s->sign = '+';
        } else if (c == ' ') {
            s->sign = s->sign == '+' ? '+' : ' ';
        } else if (c == '#') {
            s->alternate = true;
        } else if (c == '0') {
            s->zero = true;
        } else {
            break;
        }
    }
    if (!read_size(p, &s->width, WIDTH_MAX)) {
        return false;
    }
    if (s->width < 0) {
        *left = true;
        s->width = -s->width;
    }
    if (peek(p) == '.') {
        p->at++;
        if (!read_size(p, &s->precision, PRECISION_MAX)) {
            return false;
        }
        s->precision = s->precision < 0 ? 0 : s->precision;
    }
    while (peek(p) == 'h' || peek(p) == 'l' || peek(p) == 'L') {
        p->at++;
    }
    s->type = peek(p);
    if (s->type == '\0') {
        return jinja_fail(p->j, "incomplete format");
    }
    p->at++;
    return true;
}

static bool put_percent_number(struct percent *p, struct jinja_value v, struct spec *s, bool left)
{
    if (v.kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(p->j, v);
    }
    if (!jinja_is_number(v) || (v.kind == JINJA_FLOAT && strchr("oxX", s->type))) {
        return jinja_fail(p->j, "%%%c format: a number is required, not %s", s->type,
                          jinja_type_name(v));
    }
    if (s->type == 'd' || s->type == 'i' || s->type == 'u') {
        s->type = 'd';
        s->precision = s->precision > 60 ? 60 : s->precision;
    }
    s->align = left ? '<' : s->zero ? '=' : '>';
    s->fill = s->align == '=' ? '0' : ' ';
    return put_by_type(p->t, v, s);
}

static bool put_percent_text(struct percent *p, struct jinja_value v, struct spec *s, bool left)
{
    struct jinja_value text;

    if (!converted(p->j, &text, v, s->type)) {
        return false;
    }
    if (p->fmt->is_markup && !jinja_escape_html(p->j, &text, text)) {
        return false;
    }
    s->align = left ? '<' : '>';
    return put_text(p->t, text.as.string, s);
}

/* One directive; p->at is after the '%'. */
static bool put_directive(struct percent *p)
{
    struct spec s = {
        .fill = ' ', .sign = '-', .precision = -1, .mark = jinja_string_mark(p->fmt, p->at - 1)};
    struct jinja_value v = {0};
    bool left = false;

    if (peek(p) == '(' && !named_argument(p, &v)) {
        return false;
    }
    if (!read_percent_spec(p, &s, &left)) {
        return false;
    }
    if (s.type == '%') {
        jinja_text_put(p->t, "%", 1, s.mark);
        return true;
    }
    if (!strchr("diuoxXeEfFgGcrsa", s.type)) {
        return jinja_fail(p->j, "unsupported format character");
    }
    if (v.kind == JINJA_MISSING && !next_argument(p, &v)) {
        return false;
    }
    if (s.type == 'c') {
        s.align = left ? '<' : '>';
        return put_character(p->t, v, &s);
    }
    return strchr("rsa", s.type) ? put_percent_text(p, v, &s, left)
                                 : put_percent_number(p, v, &s, left);
}

bool jinja_format_percent(struct jinja_run *j, struct jinja_value *out, struct jinja_string *fmt,
                          struct jinja_value args)
{
    struct jinja_text t;
    struct percent p = {.j = j, .t = &t, .fmt = fmt, .args = args};
    bool all_used;

    jinja_text_init(&t, j);
    while (p.at < fmt->len) {
        const char *hit = memchr(fmt->ptr + p.at, '%', fmt->len - p.at);
        size_t end = hit ? (size_t)(hit - fmt->ptr) : fmt->len;
        jinja_text_put_slice(&t, fmt, p.at, end);
        p.at = end + 1;
        if (hit && (!jinja_charge(j, 1) || !put_directive(&p))) {
            return false;
        }
    }
    all_used = args.kind == JINJA_TUPLE ? p.n_used >= args.as.list->n
                                        : p.n_used > 0 || p.by_name || args.kind == JINJA_DICT ||
                                              args.kind == JINJA_LIST;
    if (!all_used) {
        return jinja_fail(j, "not all arguments converted during string formatting");
    }
    if (!jinja_text_take(&t, out)) {
        return false;
    }
    out->as.string->is_markup = fmt->is_markup;
    return true;
}

/* ---- "{...}" ---- */

struct braces {
    struct jinja_run *j;
    const struct jinja_call *call;
    bool is_markup;
    int64_t n_auto; /* fields numbered so far; -1: numbers are given by hand */
};

static bool field_argument(struct braces *b, struct str name, struct jinja_value *out)
{
    int64_t i = 0;
    bool is_number = name.len > 0;

    for (size_t k = 0; k < name.len; k++) {
        is_number &= name.ptr[k] >= '0' && name.ptr[k] <= '9';
    }
    if (name.len == 0) {
        if (b->n_auto < 0) {
            return jinja_fail(b->j, "cannot switch from manual to automatic field numbering");
        }
        i = b->n_auto++;
    } else if (is_number) {
        if (b->n_auto > 0) {
            return jinja_fail(b->j, "cannot switch from automatic to manual field numbering");
        }
        b->n_auto = -1;
        if (!jinja_parse_int(name, 10, &i)) {
            i = INT64_MAX;
        }
    } else {
        for (size_t k = 0; k < b->call->n_named; k++) {
            if (str_eq(jinja_slice_of(b->call->names[k]), name)) {
                *out = b->call->named[k];
                return true;
            }
        }
        return jinja_fail(b->j, "format: no argument '%.*s'", (int)name.len, name.ptr);
    }
    if ((uint64_t)i >= b->call->n_args) {
        return jinja_fail(b->j, "format: argument index out of range");
    }
    *out = b->call->args[i];
    return true;
}

/* ".name" or "[key]" steps of a field name. */
static bool field_step(struct braces *b, const struct jinja_string *fmt, size_t *at, size_t end,
                       struct jinja_value *v)
{
    bool is_item = fmt->ptr[*at] == '[';
    size_t begin = ++*at;
    struct jinja_value key;
    int64_t i;

    while (*at < end && (is_item ? fmt->ptr[*at] != ']' : !strchr(".[", fmt->ptr[*at]))) {
        ++*at;
    }
    if (*at == begin || (is_item && *at >= end)) {
        return jinja_fail(b->j, "empty attribute in format string");
    }
    if (!jinja_string_slice(b->j, &key, fmt, begin, *at)) {
        return false;
    }
    *at += is_item;
    if (!is_item) {
        return jinja_get_attribute(b->j, v, *v, key.as.string);
    }
    if (strspn(key.as.string->ptr, "0123456789") >= key.as.string->len &&
        jinja_parse_int(jinja_slice_of(key.as.string), 10, &i)) {
        key = jinja_int(i);
    }
    return jinja_get_item(b->j, v, *v, key);
}

static bool field_value(struct braces *b, const struct jinja_string *fmt, size_t begin, size_t end,
                        struct jinja_value *out)
{
    size_t at = begin;

    while (at < end && fmt->ptr[at] != '.' && fmt->ptr[at] != '[') {
        at++;
    }
    if (!field_argument(b, (struct str){fmt->ptr + begin, at - begin}, out)) {
        return false;
    }
    while (at < end) {
        if (fmt->ptr[at] != '.' && fmt->ptr[at] != '[') {
            return jinja_fail(b->j, "only '.' or '[' may follow ']' in format field specifier");
        }
        if (!field_step(b, fmt, &at, end, out)) {
            return false;
        }
    }
    return true;
}

static bool is_align(char c)
{
    return c == '<' || c == '>' || c == '^' || c == '=';
}

static bool spec_number(struct jinja_run *j, const struct jinja_string *s, size_t *at, int *out,
                        int max)
{
    int n = 0;

    while (*at < s->len && s->ptr[*at] >= '0' && s->ptr[*at] <= '9') {
        n = n * 10 + (s->ptr[(*at)++] - '0');
        if (n > max) {
            return jinja_fail(j, "a format's width or precision is larger than %d", max);
        }
    }
    *out = n;
    return true;
}

static bool read_spec(struct jinja_run *j, const struct jinja_string *s, struct spec *out)
{
    size_t at = 0, n = 0;
    uint32_t cp = 0;

    *out = (struct spec){
        .fill = ' ', .sign = '-', .precision = -1, .mark = jinja_string_all_trusted(s)};
    if (s->len > 0) {
        n = utf8_decode(&cp, s->ptr, s->len);
    }
    if (n > 0 && n < s->len && is_align(s->ptr[n])) {
        out->fill = cp;
        out->align = s->ptr[n];
        at = n + 1;
    } else if (s->len > 0 && is_align(s->ptr[0])) {
        out->align = s->ptr[at++];
    }
    if (at < s->len && strchr("+- ", s->ptr[at])) {
        out->sign = s->ptr[at++];
    }
    if (at < s->len && s->ptr[at] == '#') {
        out->alternate = true;
        at++;
    }
    if (at < s->len && s->ptr[at] == '0') {
        out->zero = true;
        if (!out->align) {
            out->fill = '0';
            out->align = '=';
        }
        at++;
    }
    if (!spec_number(j, s, &at, &out->width, WIDTH_MAX)) {
        return false;
    }
    if (at < s->len && (s->ptr[at] == ',' || s->ptr[at] == '_')) {
        out->group = s->ptr[at++];
    }
    if (at < s->len && s->ptr[at] == '.') {
        size_t begin = ++at;
        if (!spec_number(j, s, &at, &out->precision, PRECISION_MAX)) {
            return false;
        }
        if (at == begin) {
            return jinja_fail(j, "format specifier missing precision");
        }
    }
    if (at < s->len) {
        out->type = s->ptr[at++];
    }
    return at == s->len || jinja_fail(j, "invalid format specifier");
}

/* Without a spec: str(), which an untrusted format string does not get trusted. */
static bool put_plain(struct jinja_text *t, struct jinja_value v, bool mark)
{
    struct jinja_value text;

    if (mark || v.kind == JINJA_STRING) {
        return jinja_print(t, v);
    }
    if (!jinja_to_string(t->j, &text, v)) {
        return false;
    }
    jinja_text_put(t, text.as.string->ptr, text.as.string->len, false);
    return !t->failed;
}

static bool put_formatted(struct jinja_text *t, struct jinja_value v,
                          struct jinja_string *spec_text, bool mark)
{
    struct jinja_run *j = t->j;
    struct spec s;

    if (spec_text->len == 0) {
        return put_plain(t, v, mark);
    }
    if (!read_spec(j, spec_text, &s)) {
        return false;
    }
    if (v.kind == JINJA_STRING) {
        if ((s.type && s.type != 's') || s.sign != '-' || s.group || s.alternate ||
            (s.align == '=' && !s.zero)) {
            return jinja_fail(j, "invalid format specifier for a string");
        }
        s.align = s.align == '=' ? '<' : s.align;
        return put_text(t, v.as.string, &s);
    }
    if (!jinja_is_number(v)) {
        return jinja_fail(j, "unsupported format string passed to %s.__format__",
                          jinja_type_name(v));
    }
    if (s.type == 'c') {
        return s.precision < 0 ? put_character(t, v, &s)
                               : jinja_fail(j, "precision not allowed with 'c'");
    }
    if (s.type == 'n') {
        s.type = v.kind == JINJA_FLOAT ? 'g' : 'd';
    }
    if (!is_float_type(s.type) &&
        (v.kind == JINJA_FLOAT ? s.type != 0 : (s.type && !strchr("bdoxX", s.type)))) {
        return jinja_fail(j, "unknown format code for object of type '%s'", jinja_type_name(v));
    }
    if (!is_float_type(s.type) && v.kind != JINJA_FLOAT && s.precision >= 0) {
        return jinja_fail(j, "precision not allowed in integer format specifier");
    }
    if (s.group && (s.align == '=' || (s.type && strchr("boxX", s.type)))) {
        return jinja_fail(j, "this combination of grouping and padding is not supported");
    }
    return put_by_type(t, v, &s);
}

static bool format_range(struct braces *b, struct jinja_text *t, const struct jinja_string *fmt,
                         size_t begin, size_t end, unsigned depth);

/* The field in [begin, end), braces excluded: name, !conversion, :spec. */
static bool put_field(struct braces *b, struct jinja_text *t, const struct jinja_string *fmt,
                      size_t begin, size_t end, unsigned depth)
{
    size_t name_end = begin, spec = end;
    struct jinja_text spec_text;
    struct jinja_value v, spec_value;
    char conversion = '\0';
    bool in_item = false;
    bool mark = jinja_string_mark(fmt, begin - 1); /* of the brace */

    while (name_end < end &&
           (in_item || (fmt->ptr[name_end] != '!' && fmt->ptr[name_end] != ':'))) {
        in_item = fmt->ptr[name_end] == '[' || (in_item && fmt->ptr[name_end] != ']');
        name_end++;
    }
    spec = name_end;
    if (name_end < end && fmt->ptr[name_end] == '!') {
        conversion = name_end + 1 < end ? fmt->ptr[name_end + 1] : '?';
        spec = name_end + 2;
        if (!strchr("rsa", conversion) || (spec < end && fmt->ptr[spec] != ':')) {
            return jinja_fail(b->j, "unknown conversion specifier");
        }
    }
    if (!field_value(b, fmt, begin, name_end, &v) ||
        (conversion && !converted(b->j, &v, v, conversion))) {
        return false;
    }
    jinja_text_init(&spec_text, b->j);
    if (spec < end && !format_range(b, &spec_text, fmt, spec + 1, end, depth + 1)) {
        return false;
    }
    if (!jinja_text_take(&spec_text, &spec_value)) {
        return false;
    }
    if (b->is_markup && depth == 0) {
        struct jinja_text body;
        struct jinja_value text;
        bool safe = v.kind == JINJA_STRING && v.as.string->is_markup;
        jinja_text_init(&body, b->j);
        if (!put_formatted(&body, v, spec_value.as.string, mark) ||
            !jinja_text_take(&body, &text)) {
            return false;
        }
        if (!safe && !jinja_escape_html(b->j, &text, text)) {
            return false;
        }
        jinja_text_put_string(t, text.as.string);
        return true;
    }
    return put_formatted(t, v, spec_value.as.string, mark);
}

static bool format_range(struct braces *b, struct jinja_text *t, const struct jinja_string *fmt,
                         size_t begin, size_t end, unsigned depth)
{
    if (depth > 1) {
        return jinja_fail(b->j, "max string recursion exceeded");
    }
    for (size_t at = begin; at < end;) {
        char c = fmt->ptr[at];
        size_t close = at + 1, open = 1;
        if (c != '{' && c != '}') {
            size_t run = at;
            while (run < end && fmt->ptr[run] != '{' && fmt->ptr[run] != '}') {
                run++;
            }
            jinja_text_put_slice(t, fmt, at, run);
            at = run;
            continue;
        }
        if (at + 1 < end && fmt->ptr[at + 1] == c) {
            jinja_text_put_slice(t, fmt, at, at + 1);
            at += 2;
            continue;
        }
        if (c == '}') {
            return jinja_fail(b->j, "single '}' encountered in format string");
        }
        while (close < end && open > 0) {
            open += fmt->ptr[close] == '{';
            open -= fmt->ptr[close] == '}';
            close++;
        }
        if (open > 0) {
            return jinja_fail(b->j, "expected '}' before end of string");
        }
        if (!jinja_charge(b->j, 1) || !put_field(b, t, fmt, at + 1, close - 1, depth)) {
            return false;
        }
        at = close;
    }
    return !t->failed;
}

bool jinja_format_braces(struct jinja_run *j, struct jinja_value *out, struct jinja_string *fmt,
                         const struct jinja_call *call)
{
    struct braces b = {.j = j, .call = call, .is_markup = fmt->is_markup};
    struct jinja_text t;

    jinja_text_init(&t, j);
    if (!format_range(&b, &t, fmt, 0, fmt->len, 0) || !jinja_text_take(&t, out)) {
        return false;
    }
    out->as.string->is_markup = fmt->is_markup;
    return true;
}
