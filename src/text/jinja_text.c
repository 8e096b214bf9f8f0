/* jinja_text.c - characters and texts as Python's str treats them: classes, case, strip, replace.
 *
 * Place: text, inside the Jinja engine. Classes and simple case come from utf8proc, the few
 *        characters that become several from jinja_case_table.c. Every function keeps the marks of
 *        the characters it moves; what it makes of one character has that character's mark. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/jinja_case_table.h"
#include "text/jinja_run.h"

/* ---- classes ---- */

bool jinja_is_space(uint32_t cp)
{
    if (cp < 0x80) {
        return (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 32);
    }
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

bool jinja_is_printable(uint32_t cp)
{
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return cp == ' ';
    default:
        return true;
    }
}

bool jinja_is_alpha(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);

    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT ||
           c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_LO;
}

bool jinja_is_numeric(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);

    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

bool jinja_is_decimal(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_ND;
}

bool jinja_is_word(uint32_t cp)
{
    if (cp < 0x80) {
        return (cp >= '0' && cp <= '9') || (cp >= 'a' && cp <= 'z') || (cp >= 'A' && cp <= 'Z') ||
               cp == '_';
    }
    return jinja_is_alpha(cp) || jinja_is_numeric(cp);
}

static bool is_cased(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);

    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT ||
           utf8proc_isupper((utf8proc_int32_t)cp) || utf8proc_islower((utf8proc_int32_t)cp);
}

enum jinja_letter jinja_letter_case(uint32_t cp)
{
    if (!is_cased(cp)) {
        return JINJA_LETTER_NONE;
    }
    if (utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_LT) {
        return JINJA_LETTER_TITLE;
    }
    return utf8proc_isupper((utf8proc_int32_t)cp) ? JINJA_LETTER_UPPER : JINJA_LETTER_LOWER;
}

/* ---- case ---- */

static int compare_rows(const void *key, const void *row)
{
    uint32_t a = *(const uint32_t *)key, b = ((const struct jinja_case_row *)row)->from;

    return a < b ? -1 : a > b;
}

static void put_several(struct jinja_text *t, const uint32_t points[3], bool mark)
{
    for (int i = 0; i < 3 && points[i]; i++) {
        jinja_text_put_char(t, points[i], mark);
    }
}

static void put_folded(struct jinja_text *t, uint32_t cp, bool mark)
{
    utf8proc_int32_t points[8];
    int bound = 0;
    utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)cp, points, 8, UTF8PROC_CASEFOLD, &bound);

    for (utf8proc_ssize_t i = 0; i < n && i < 8; i++) {
        jinja_text_put_char(t, (uint32_t)points[i], mark);
    }
}

/* One character in upper, lower, title or folded case. */
static void put_cased(struct jinja_text *t, uint32_t cp, enum jinja_case how, bool mark)
{
    const struct jinja_case_row *row;
    utf8proc_int32_t c = (utf8proc_int32_t)cp;

    if (how == JINJA_FOLD) {
        put_folded(t, cp, mark);
        return;
    }
    if (how == JINJA_LOWER) {
        jinja_text_put_char(t, cp == 0x130 ? 'i' : (uint32_t)utf8proc_tolower(c), mark);
        if (cp == 0x130) {
            jinja_text_put_char(t, 0x307, mark);
        }
        return;
    }
    row = cp < 0x80 ? NULL
                    : bsearch(&cp, jinja_case_table, jinja_case_table_n, sizeof *jinja_case_table,
                              compare_rows);
    if (row) {
        put_several(t, how == JINJA_UPPER ? row->upper : row->title, mark);
    } else {
        c = how == JINJA_UPPER ? utf8proc_toupper(c) : utf8proc_totitle(c);
        jinja_text_put_char(t, (uint32_t)c, mark);
    }
}

static bool is_case_ignorable(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);

    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
           c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK || cp == '\'' || cp == '.' ||
           cp == ':' || cp == 0xb7 || cp == 0x2019;
}

/* Whether the capital sigma at byte i ends a word and so becomes the final form. */
static bool is_final_sigma(const struct jinja_string *s, size_t i)
{
    uint32_t cp = 0;
    size_t p = i;
    bool before = false;

    while (p > 0 && !before) {
        do {
            p--;
        } while (p > 0 && ((unsigned char)s->ptr[p] & 0xc0u) == 0x80u);
        (void)utf8_decode(&cp, s->ptr + p, s->len - p);
        if (!is_case_ignorable(cp)) {
            before = is_cased(cp);
            break;
        }
    }
    if (!before) {
        return false;
    }
    for (p = i + 2; p < s->len;) {
        p += utf8_decode(&cp, s->ptr + p, s->len - p);
        if (!is_case_ignorable(cp)) {
            return !is_cased(cp);
        }
    }
    return true;
}

static bool put_ascii_case(struct jinja_text *t, const struct jinja_string *s, size_t i,
                           enum jinja_case how)
{
    char c = s->ptr[i];

    if ((unsigned char)c >= 0x80) {
        return false;
    }
    if (how == JINJA_UPPER || how == JINJA_TITLE) {
        c = c >= 'a' && c <= 'z' ? (char)(c - 32) : c;
    } else {
        c = c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
    }
    jinja_text_put(t, &c, 1, jinja_string_mark(s, i));
    return true;
}

void jinja_put_case(struct jinja_text *t, const struct jinja_string *s, size_t begin, size_t end,
                    enum jinja_case how)
{
    bool in_word = false;

    for (size_t i = begin; i < end && !t->failed;) {
        enum jinja_case one = how;
        uint32_t cp;
        size_t n = utf8_decode(&cp, s->ptr + i, s->len - i);
        if (how == JINJA_TITLE) {
            one = in_word ? JINJA_LOWER : JINJA_TITLE;
            in_word = is_cased(cp);
        } else if (how == JINJA_CAPITALIZE) {
            one = i == begin ? JINJA_TITLE : JINJA_LOWER;
        } else if (how == JINJA_SWAPCASE) {
            one = jinja_letter_case(cp) == JINJA_LETTER_UPPER ? JINJA_LOWER : JINJA_UPPER;
        }
        if (!put_ascii_case(t, s, i, one)) {
            bool mark = jinja_string_mark(s, i);
            if (one == JINJA_LOWER && cp == 0x3a3 && is_final_sigma(s, i)) {
                jinja_text_put_char(t, 0x3c2, mark);
            } else if (how == JINJA_SWAPCASE && jinja_letter_case(cp) == JINJA_LETTER_NONE) {
                jinja_text_put_char(t, cp, mark);
            } else {
                put_cased(t, cp, one, mark);
            }
        }
        i += n;
    }
}

bool jinja_change_case(struct jinja_run *j, struct jinja_value *out, struct jinja_string *s,
                       enum jinja_case how)
{
    struct jinja_text t;
    bool markup = s->is_markup;

    jinja_text_init(&t, j);
    jinja_put_case(&t, s, 0, s->len, how);
    if (!jinja_charge(j, s->len / 16) || !jinja_text_take(&t, out)) {
        return false;
    }
    out->as.string->is_markup = markup;
    return true;
}

/* ---- strip, replace, escape, lines ---- */

static bool has_char(const struct jinja_string *set, uint32_t cp)
{
    char bytes[4];
    size_t n;

    if (!set) {
        return jinja_is_space(cp);
    }
    n = utf8_encode(bytes, cp);
    return set->len >= n && memmem(set->ptr, set->len, bytes, n) != NULL;
}

bool jinja_strip(struct jinja_run *j, struct jinja_value *out, struct jinja_string *s,
                 const struct jinja_string *chars, int which)
{
    size_t begin = 0, end = s->len, cost = chars ? chars->len / 64 + 1 : 0;
    uint32_t cp;

    while ((which & JINJA_STRIP_LEFT) && begin < end) {
        size_t n = utf8_decode(&cp, s->ptr + begin, end - begin);
        if (!has_char(chars, cp)) {
            break;
        }
        if (!jinja_charge(j, cost)) {
            return false;
        }
        begin += n;
    }
    while ((which & JINJA_STRIP_RIGHT) && end > begin) {
        size_t p = end - 1;
        while (p > begin && ((unsigned char)s->ptr[p] & 0xc0u) == 0x80u) {
            p--;
        }
        (void)utf8_decode(&cp, s->ptr + p, end - p);
        if (!has_char(chars, cp)) {
            break;
        }
        if (!jinja_charge(j, cost)) {
            return false;
        }
        end = p;
    }
    return jinja_charge(j, (s->len - (end - begin)) / 64) &&
           jinja_string_slice(j, out, s, begin, end);
}

/* "" is found before each character and at the end. */
static bool replace_empty(struct jinja_text *t, const struct jinja_string *s,
                          const struct jinja_string *to, int64_t count_max)
{
    size_t at = 0;

    for (int64_t n = 0; count_max < 0 || n < count_max; n++) {
        uint32_t cp;
        size_t len;
        jinja_text_put_string(t, to);
        if (at >= s->len || t->failed || !jinja_charge(t->j, 1)) {
            break;
        }
        len = utf8_decode(&cp, s->ptr + at, s->len - at);
        jinja_text_put_slice(t, s, at, at + len);
        at += len;
    }
    jinja_text_put_slice(t, s, at, s->len);
    return !t->failed && !t->j->failed;
}

bool jinja_replace(struct jinja_run *j, struct jinja_value *out, struct jinja_string *s,
                   struct jinja_string *from, struct jinja_string *to, int64_t count_max)
{
    struct jinja_text t;
    size_t at = 0;

    jinja_text_init(&t, j);
    if (from->len == 0) {
        return replace_empty(&t, s, to, count_max) && jinja_text_take(&t, out);
    }
    for (int64_t n = 0; (count_max < 0 || n < count_max) && !t.failed; n++) {
        size_t hit = str_find((struct str){s->ptr + at, s->len - at}, jinja_slice_of(from));
        if (hit == SIZE_MAX) {
            break;
        }
        if (!jinja_charge(j, 1)) {
            return false;
        }
        jinja_text_put_slice(&t, s, at, at + hit);
        jinja_text_put_string(&t, to);
        at += hit + from->len;
    }
    if (at == 0) { /* nothing found */
        return jinja_charge(j, s->len / 64) && jinja_string_slice(j, out, s, 0, s->len);
    }
    jinja_text_put_slice(&t, s, at, s->len);
    return jinja_text_take(&t, out);
}

bool jinja_escape_html(struct jinja_run *j, struct jinja_value *out, struct jinja_value v)
{
    static const char special[] = "&<>'\"";
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    struct jinja_text t;
    const struct jinja_string *s;
    size_t begin = 0;

    if (!jinja_soft_string(j, &v, v)) {
        return false;
    }
    s = v.as.string;
    if (s->is_markup) {
        *out = v;
        return true;
    }
    jinja_text_init(&t, j);
    for (size_t i = 0; i < s->len; i++) {
        const char *hit = s->ptr[i] ? strchr(special, s->ptr[i]) : NULL;
        if (hit) {
            jinja_text_put_slice(&t, s, begin, i);
            jinja_text_put_cstr(&t, entities[hit - special], jinja_string_mark(s, i));
            begin = i + 1;
        }
    }
    jinja_text_put_slice(&t, s, begin, s->len);
    if (!jinja_text_take(&t, out)) {
        return false;
    }
    out->as.string->is_markup = true;
    return true;
}

static bool is_line_break(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 28 && cp <= 30) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

size_t jinja_line_end(const struct jinja_string *s, size_t begin, size_t *next)
{
    size_t at = begin;

    while (at < s->len) {
        uint32_t cp;
        size_t n = utf8_decode(&cp, s->ptr + at, s->len - at);
        if (is_line_break(cp)) {
            bool is_pair = cp == '\r' && at + 1 < s->len && s->ptr[at + 1] == '\n';
            *next = at + n + is_pair;
            return at;
        }
        at += n;
    }
    *next = s->len;
    return s->len;
}

/* ---- numbers in text ---- */

static struct str trim_space(struct str s)
{
    uint32_t cp;
    size_t n;

    while (s.len > 0 && (n = utf8_decode(&cp, s.ptr, s.len)) > 0 && jinja_is_space(cp)) {
        s.ptr += n;
        s.len -= n;
    }
    while (s.len > 0) {
        size_t p = s.len - 1;
        while (p > 0 && ((unsigned char)s.ptr[p] & 0xc0u) == 0x80u) {
            p--;
        }
        (void)utf8_decode(&cp, s.ptr + p, s.len - p);
        if (!jinja_is_space(cp)) {
            break;
        }
        s.len = p;
    }
    return s;
}

static int digit_value(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'z' ? c - 'a' + 10
           : c >= 'A' && c <= 'Z' ? c - 'A' + 10
                                  : 99;
}

/* Skips "0x" and the like when it fits the base; base 0 takes the base from it. */
static void skip_prefix(struct str *s, int *base)
{
    int found = 0;

    if (s->len > 1 && s->ptr[0] == '0') {
        char c = (char)(s->ptr[1] | 0x20);
        found = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
    }
    if (found && (*base == found || *base == 0)) {
        s->ptr += 2;
        s->len -= 2;
        *base = found;
        if (s->len > 0 && s->ptr[0] == '_') {
            s->ptr++;
            s->len--;
        }
    } else if (*base == 0) {
        *base = 10;
    }
}

bool jinja_parse_int(struct str s, int base, int64_t *out)
{
    bool is_negative, after_digit = false;
    int64_t v = 0;

    s = trim_space(s);
    is_negative = s.len > 0 && s.ptr[0] == '-';
    if (s.len > 0 && (s.ptr[0] == '-' || s.ptr[0] == '+')) {
        s.ptr++;
        s.len--;
    }
    skip_prefix(&s, &base);
    if (s.len == 0) {
        return false;
    }
    for (size_t i = 0; i < s.len; i++) {
        int d = digit_value(s.ptr[i]);
        if (s.ptr[i] == '_' && after_digit && i + 1 < s.len) {
            after_digit = false;
            continue;
        }
        if (d >= base || __builtin_mul_overflow(v, base, &v) ||
            __builtin_add_overflow(v, is_negative ? -d : d, &v)) {
            return false;
        }
        after_digit = true;
    }
    *out = v;
    return true;
}

bool jinja_parse_float(struct str s, double *out)
{
    char text[512], *end;
    size_t n = 0;

    s = trim_space(s);
    if (s.len == 0 || s.len >= sizeof text) {
        return false;
    }
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        bool digits_around = i > 0 && i + 1 < s.len && digit_value(s.ptr[i - 1]) < 10 &&
                             digit_value(s.ptr[i + 1]) < 10;
        if (c == '_' && digits_around) {
            continue;
        }
        if (c == 'x' || c == 'X' || c == '(' || c == '\0' || c == '_') {
            return false; /* strtod knows hexadecimal and nan(...) */
        }
        text[n++] = c;
    }
    text[n] = '\0';
    if (jinja_is_space((unsigned char)text[0])) {
        return false;
    }
    *out = strtod(text, &end);
    return end == text + n && n > 0;
}
