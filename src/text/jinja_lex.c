/* jinja_lex.c - the template lexer. See jinja_lex.h.
 *
 * A tag ends at its closing mark only while no bracket is open, so "}}" may close two dicts. A line
 * that holds nothing but white space before a block or comment tag loses it (lstrip_blocks); the
 * line end right after one is dropped (trim_blocks). */
#include "text/jinja_lex.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_run.h"

static enum status lex_fail(struct jinja_lexer *l, const char *what)
{
    return error_set(l->err, ERR_FORMAT, "line %d: %s", l->line, what);
}

static enum status lex_full(struct jinja_lexer *l)
{
    return error_set(l->err, ERR_LIMIT, "line %d: the template needs too much memory", l->line);
}

struct jinja_string *jinja_lex_string(struct arena *arena, struct str text)
{
    struct jinja_string *s = arena_alloc(arena, sizeof *s);

    if (s) {
        s->ptr = text.len ? text.ptr : "";
        s->len = text.len;
        s->is_trusted = true;
        s->n_chars = 0;
        for (size_t i = 0; i < text.len; i++) { /* counted now: the template is shared by threads */
            s->n_chars += ((unsigned char)text.ptr[i] & 0xc0u) != 0x80u;
        }
    }
    return s;
}

enum status jinja_lex_normalise(struct str *out, struct arena *arena, struct str source,
                                struct error *err)
{
    char *copy = arena_copy(arena, source.ptr, source.len);
    size_t n = 0;

    if (!copy) {
        return error_set(err, ERR_LIMIT, "the template needs too much memory");
    }
    for (size_t i = 0; i < source.len; i++) {
        if (source.ptr[i] == '\r') {
            copy[n++] = '\n';
            i += i + 1 < source.len && source.ptr[i + 1] == '\n';
        } else {
            copy[n++] = source.ptr[i];
        }
    }
    if (n > 0 && copy[n - 1] == '\n') {
        n--;
    }
    copy[n] = '\0';
    *out = (struct str){copy, n};
    return OK;
}

void jinja_lex_init(struct jinja_lexer *l, struct arena *arena, struct str text, struct error *err)
{
    memset(l, 0, sizeof *l);
    l->arena = arena;
    l->text = text.ptr;
    l->len = text.len;
    l->line = 1;
    l->line_starting = true;
    l->err = err;
}

/* ---- characters ---- */

static bool at(const struct jinja_lexer *l, size_t pos, const char *what)
{
    size_t n = strlen(what);

    return l->len - pos >= n && memcmp(l->text + pos, what, n) == 0;
}

/* Bytes of white space at pos, 0 if none. */
static size_t space_at(const struct jinja_lexer *l, size_t pos)
{
    uint32_t cp;
    size_t n;

    if (pos >= l->len) {
        return 0;
    }
    n = utf8_decode(&cp, l->text + pos, l->len - pos);
    return jinja_is_space(cp) ? n : 0;
}

static size_t skip_space(const struct jinja_lexer *l, size_t pos)
{
    size_t n;

    while ((n = space_at(l, pos)) > 0) {
        pos += n;
    }
    return pos;
}

static void advance(struct jinja_lexer *l, size_t pos)
{
    for (; l->pos < pos; l->pos++) {
        l->line += l->text[l->pos] == '\n';
    }
}

/* The end of [begin, end) without trailing white space. */
static size_t strip_end(const struct jinja_lexer *l, size_t begin, size_t end)
{
    while (end > begin) {
        size_t prev = end - 1;
        while (prev > begin && ((unsigned char)l->text[prev] & 0xc0u) == 0x80u) {
            prev--;
        }
        if (space_at(l, prev) == 0) {
            break;
        }
        end = prev;
    }
    return end;
}

/* What is left of the text [begin, tag) before a tag with this sign ('-', '+' or anything). */
static size_t text_end(const struct jinja_lexer *l, size_t begin, size_t tag, char sign,
                       bool is_variable)
{
    size_t line = tag;

    if (sign == '-') {
        return strip_end(l, begin, tag);
    }
    if (sign == '+' || is_variable) {
        return tag;
    }
    while (line > begin && l->text[line - 1] != '\n') {
        line--;
    }
    if (line == begin && !l->line_starting) {
        return tag;
    }
    return strip_end(l, line, tag) == line ? line : tag;
}

/* ---- between tags ---- */

static char sign_at(const struct jinja_lexer *l, size_t pos)
{
    return pos < l->len && (l->text[pos] == '-' || l->text[pos] == '+') ? l->text[pos] : '\0';
}

/* If "{% word %}" stands at pos, where it ends; else 0. is_end: as raw's closing tag, which trims. */
static size_t match_raw_tag(const struct jinja_lexer *l, size_t pos, const char *word, bool is_end)
{
    size_t p = pos + 2;

    p += sign_at(l, p) != '\0';
    p = skip_space(l, p);
    if (!at(l, p, word)) {
        return 0;
    }
    p = skip_space(l, p + strlen(word));
    if (at(l, p, "-%}")) {
        return skip_space(l, p + 3);
    }
    if (is_end && at(l, p, "+%}")) {
        return p + 3;
    }
    if (!at(l, p, "%}")) {
        return 0;
    }
    p += 2;
    return p + (is_end && p < l->len && l->text[p] == '\n');
}

/* Finish a piece of text: the next token starts at `next`. */
static void give_data(struct jinja_lexer *l, struct jinja_token *out, size_t end)
{
    *out = (struct jinja_token){
        .kind = TOKEN_DATA, .line = l->line, .text = {l->text + l->pos, end - l->pos}};
}

static void pass(struct jinja_lexer *l, size_t next)
{
    advance(l, next);
    l->line_starting = next > 0 && l->text[next - 1] == '\n';
}

static enum status skip_comment(struct jinja_lexer *l)
{
    size_t p = l->pos + 2;

    p += sign_at(l, p) != '\0';
    for (; p < l->len; p++) {
        const char *hit = memchr(l->text + p, '#', l->len - p);
        if (!hit) {
            break;
        }
        p = (size_t)(hit - l->text);
        if (at(l, p, "#}")) {
            char sign = p > l->pos + 2 ? l->text[p - 1] : '\0';
            bool sign_is_begin = p == l->pos + 3; /* "{#-#}": the sign belongs to the start */
            p += 2;
            if (sign == '-' && !sign_is_begin) {
                p = skip_space(l, p);
            } else if ((sign != '+' || sign_is_begin) && p < l->len && l->text[p] == '\n') {
                p++;
            }
            pass(l, p);
            return OK;
        }
    }
    return lex_fail(l, "missing end of comment tag");
}

static enum status lex_raw(struct jinja_lexer *l, struct jinja_token *out)
{
    for (size_t p = l->pos; p < l->len; p++) {
        const char *hit = memchr(l->text + p, '{', l->len - p);
        size_t next;
        if (!hit) {
            break;
        }
        p = (size_t)(hit - l->text);
        if (at(l, p, "{%") && (next = match_raw_tag(l, p, "endraw", true)) > 0) {
            give_data(l, out, text_end(l, l->pos, p, sign_at(l, p + 2), false));
            pass(l, next);
            return OK;
        }
    }
    return lex_fail(l, "missing end of raw directive");
}

/* The position of the next "{{", "{%" or "{#", or len. */
static size_t find_tag(const struct jinja_lexer *l)
{
    size_t p = l->pos;

    while (p < l->len) {
        const char *hit = memchr(l->text + p, '{', l->len - p);
        if (!hit) {
            return l->len;
        }
        p = (size_t)(hit - l->text);
        if (p + 1 < l->len && strchr("{%#", l->text[p + 1]) && l->text[p + 1] != '\0') {
            return p;
        }
        p++;
    }
    return l->len;
}

static enum status lex_root(struct jinja_lexer *l, struct jinja_token *out)
{
    size_t tag = find_tag(l);
    bool is_variable = tag < l->len && l->text[tag + 1] == '{';
    char sign = tag < l->len ? sign_at(l, tag + 2) : '\0';
    size_t raw_end;

    if (tag > l->pos) { /* text first; the tag comes with the next call */
        size_t end = tag < l->len ? text_end(l, l->pos, tag, sign, is_variable) : tag;
        give_data(l, out, end);
        advance(l, tag);
        l->line_starting = false;
        return OK;
    }
    if (tag >= l->len) {
        *out = (struct jinja_token){.kind = TOKEN_EOF, .line = l->line, .text = STR("end")};
        return OK;
    }
    if (l->text[tag + 1] == '#') {
        enum status rc = skip_comment(l);
        *out = (struct jinja_token){.kind = TOKEN_DATA, .line = l->line, .text = STR("")};
        return rc;
    }
    if (!is_variable && (raw_end = match_raw_tag(l, tag, "raw", false)) > 0) {
        pass(l, raw_end);
        return lex_raw(l, out);
    }
    *out = (struct jinja_token){.kind = is_variable ? TOKEN_VARIABLE_BEGIN : TOKEN_BLOCK_BEGIN,
                                .line = l->line,
                                .text = {l->text + tag, 2}};
    advance(l, tag + 2 + (sign != '\0'));
    l->state = is_variable ? LEX_VARIABLE : LEX_BLOCK;
    l->n_open = 0;
    return OK;
}

/* ---- inside tags ---- */

static bool lex_tag_end(struct jinja_lexer *l, struct jinja_token *out)
{
    size_t p = l->pos;
    const char *close = l->state == LEX_VARIABLE ? "}}" : "%}";
    char sign = sign_at(l, p);

    if (l->n_open > 0 || (sign == '+' && l->state == LEX_VARIABLE)) {
        return false;
    }
    p += sign != '\0';
    if (!at(l, p, close)) {
        return false;
    }
    *out = (struct jinja_token){.kind =
                                    l->state == LEX_VARIABLE ? TOKEN_VARIABLE_END : TOKEN_BLOCK_END,
                                .line = l->line,
                                .text = {l->text + p, 2}};
    p += 2;
    if (sign == '-') {
        p = skip_space(l, p);
    } else if (sign == '\0' && l->state == LEX_BLOCK && p < l->len && l->text[p] == '\n') {
        p++;
    }
    pass(l, p);
    l->state = LEX_ROOT;
    return true;
}

static bool is_digit(const struct jinja_lexer *l, size_t pos)
{
    return pos < l->len && l->text[pos] >= '0' && l->text[pos] <= '9';
}

/* Digits of the base from pos, single underscores between them allowed; returns where they end. */
static size_t skip_digits(const struct jinja_lexer *l, size_t pos, int base, bool may_begin_low)
{
    size_t p = pos;

    for (;;) {
        size_t q = p;
        char c;
        q += q < l->len && l->text[q] == '_' && (p > pos || may_begin_low);
        c = q < l->len ? l->text[q] : '\0';
        if ((c >= '0' && c < '0' + (base < 10 ? base : 10)) ||
            (base == 16 && ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')))) {
            p = q + 1;
        } else {
            return p;
        }
    }
}

/* Where the float at pos ends, or pos when there is none. */
static size_t match_float(const struct jinja_lexer *l, size_t pos)
{
    size_t p, e;
    bool has_fraction = false;

    if (pos > 0 && l->text[pos - 1] == '.') {
        return pos;
    }
    p = skip_digits(l, pos, 10, false);
    if (p < l->len && l->text[p] == '.' && is_digit(l, p + 1)) {
        p = skip_digits(l, p + 1, 10, false);
        has_fraction = true;
    }
    if (p < l->len && (l->text[p] == 'e' || l->text[p] == 'E')) {
        e = p + 1;
        e += sign_at(l, e) != '\0';
        if (is_digit(l, e)) {
            return skip_digits(l, e, 10, false);
        }
    }
    return has_fraction ? p : pos;
}

static size_t match_int(const struct jinja_lexer *l, size_t pos, int *base)
{
    static const struct {
        const char *prefix[2];
        int base;
    } forms[] = {{{"0b", "0B"}, 2}, {{"0o", "0O"}, 8}, {{"0x", "0X"}, 16}};
    size_t p;

    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (at(l, pos, forms[i].prefix[0]) || at(l, pos, forms[i].prefix[1])) {
            p = skip_digits(l, pos + 2, forms[i].base, true);
            if (p > pos + 2) {
                *base = forms[i].base;
                return p;
            }
        }
    }
    *base = 10;
    if (l->text[pos] == '0') {
        p = pos + 1;
        while (at(l, p, "0") || at(l, p, "_0")) {
            p += l->text[p] == '_' ? 2 : 1;
        }
        return p;
    }
    return skip_digits(l, pos, 10, false);
}

/* The characters of a number without underscores, NUL-terminated. */
static char *number_text(struct jinja_lexer *l, size_t begin, size_t end)
{
    char *copy = arena_copy(l->arena, l->text + begin, end - begin);
    size_t n = 0;

    if (copy) {
        for (size_t i = begin; i < end; i++) {
            if (l->text[i] != '_') {
                copy[n++] = l->text[i];
            }
        }
        copy[n] = '\0';
    }
    return copy;
}

static enum status lex_number(struct jinja_lexer *l, struct jinja_token *out)
{
    int base = 10;
    size_t begin = l->pos;
    size_t end = match_float(l, begin);
    bool is_float = end > begin;
    char *text;

    if (!is_float) {
        end = match_int(l, begin, &base);
    }
    text = number_text(l, begin, end);
    if (!text) {
        return lex_full(l);
    }
    *out = (struct jinja_token){
        .kind = TOKEN_NUMBER, .line = l->line, .text = {l->text + begin, end - begin}};
    if (is_float) {
        out->value = jinja_float(strtod(text, NULL));
    } else {
        errno = 0;
        out->value = jinja_int((int64_t)strtoll(base == 10 ? text : text + 2, NULL, base));
        if (errno == ERANGE && base != 10) {
            return lex_fail(l, "an integer does not fit in 64 bits");
        }
        if (errno == ERANGE) {
            out->value.kind = JINJA_BIGINT;
            out->value.as.string = jinja_lex_string(l->arena, str_of(text));
            if (!out->value.as.string) {
                return lex_full(l);
            }
        }
    }
    advance(l, end);
    return OK;
}

/* Hex digits of an escape; UINT32_MAX when they are not all there. */
static uint32_t hex_value(const char *p, size_t left, size_t n)
{
    uint32_t v = 0;

    if (left < n) {
        return UINT32_MAX;
    }
    for (size_t i = 0; i < n; i++) {
        char c = p[i];
        uint32_t d = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                     : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                     : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                            : 16;
        if (d == 16) {
            return UINT32_MAX;
        }
        v = v * 16 + d;
    }
    return v;
}

static char simple_escape(char c)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *hit = c ? strchr(from, c) : NULL;

    return hit ? to[hit - from] : '\0';
}

/* Python encodes to ASCII with backslashes first, so a backslash before another script's character
 * stands before that character's escape: "\é" reads \xe9 without its backslash. */
static size_t escaped_character(char *out, const char *p, size_t left, size_t *n_out)
{
    static const char hex[] = "0123456789abcdef";
    uint32_t cp;
    size_t n = utf8_decode(&cp, p, left);
    size_t digits = cp < 0x100 ? 2 : cp < 0x10000 ? 4 : 8;

    out[0] = '\\';
    out[1] = digits == 2 ? 'x' : digits == 4 ? 'u' : 'U';
    for (size_t i = 0; i < digits; i++) {
        out[2 + i] = hex[cp >> (4 * (digits - 1 - i)) & 15u];
    }
    *n_out = 2 + digits;
    return n;
}

/* One escape at p (after the backslash) to out; returns the bytes used, 0 for an error. */
static size_t unescape_one(char *out, const char *p, size_t left, size_t *n_out)
{
    size_t digits = p[0] == 'x' ? 2 : p[0] == 'u' ? 4 : p[0] == 'U' ? 8 : 0;
    uint32_t cp = 0;
    size_t used = 0;

    *n_out = 0;
    if (p[0] == '\n') {
        return 1;
    }
    if (simple_escape(p[0])) {
        out[(*n_out)++] = simple_escape(p[0]);
        return 1;
    }
    if (digits > 0) {
        cp = hex_value(p + 1, left - 1, digits);
        used = digits + 1;
    } else if (p[0] >= '0' && p[0] <= '7') {
        while (used < 3 && used < left && p[used] >= '0' && p[used] <= '7') {
            cp = cp * 8 + (uint32_t)(p[used++] - '0');
        }
    } else if (p[0] == 'N') {
        return 0; /* \N{name}: would need the table of names */
    } else if ((unsigned char)p[0] >= 0x80) {
        return escaped_character(out, p, left, n_out);
    } else {
        out[(*n_out)++] = '\\';
        out[(*n_out)++] = p[0];
        return 1;
    }
    if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff)) {
        return 0;
    }
    *n_out = utf8_encode(out, cp);
    return used;
}

static enum status lex_string(struct jinja_lexer *l, struct jinja_token *out)
{
    char quote = l->text[l->pos];
    size_t end = l->pos + 1, n = 0;
    bool has_escape = false;
    struct str inner;

    while (end < l->len && l->text[end] != quote) {
        has_escape |= l->text[end] == '\\';
        end += l->text[end] == '\\' ? 2 : 1;
    }
    if (end >= l->len) {
        return lex_fail(l, "a string is not closed");
    }
    inner = (struct str){l->text + l->pos + 1, end - l->pos - 1};
    if (has_escape) { /* a backslash and a 4-byte character can grow to 10: room for three each */
        char *text = arena_array(l->arena, inner.len, 3);
        if (!text) {
            return lex_full(l);
        }
        for (size_t i = 0; i < inner.len;) {
            size_t used, got;
            if (inner.ptr[i] != '\\') {
                text[n++] = inner.ptr[i++];
                continue;
            }
            used = unescape_one(text + n, inner.ptr + i + 1, inner.len - i - 1, &got);
            if (used == 0) {
                return lex_fail(l, "a string holds an escape that stands for no character");
            }
            n += got;
            i += 1 + used;
        }
        inner = (struct str){text, n};
    }
    *out = (struct jinja_token){.kind = TOKEN_STRING, .line = l->line, .text = STR("string")};
    out->value = jinja_of_string(jinja_lex_string(l->arena, inner));
    if (!out->value.as.string) {
        return lex_full(l);
    }
    advance(l, end + 1);
    return OK;
}

static enum status lex_bracket(struct jinja_lexer *l, char c)
{
    static const char opening[] = "([{", closing[] = ")]}";
    const char *hit = strchr(opening, c);

    if (hit) {
        if (l->n_open >= sizeof l->open) {
            return error_set(l->err, ERR_FORMAT,
                             "line %d: more than %zu brackets inside each other", l->line,
                             sizeof l->open);
        }
        l->open[l->n_open++] = closing[hit - opening];
        return OK;
    }
    if (!strchr(closing, c)) {
        return OK;
    }
    if (l->n_open == 0 || l->open[l->n_open - 1] != c) {
        return error_set(l->err, ERR_FORMAT, "line %d: unexpected '%c'", l->line, c);
    }
    l->n_open--;
    return OK;
}

static enum status lex_operator(struct jinja_lexer *l, struct jinja_token *out)
{
    static const struct {
        const char *text;
        int op;
    } pairs[] = {{"==", TOKEN_EQ}, {"!=", TOKEN_NE},  {"<=", TOKEN_LE},
                 {">=", TOKEN_GE}, {"**", TOKEN_POW}, {"//", TOKEN_FLOORDIV}};
    char c = l->text[l->pos];
    enum status rc;

    *out = (struct jinja_token){
        .kind = TOKEN_OPERATOR, .line = l->line, .op = c, .text = {l->text + l->pos, 1}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (at(l, l->pos, pairs[i].text)) {
            out->op = pairs[i].op;
            out->text.len = 2;
            advance(l, l->pos + 2);
            return OK;
        }
    }
    if (c == '\0' || !strchr("+-/*%~[](){}=<>.:|,;", c)) {
        uint32_t cp;
        int n = (int)utf8_decode(&cp, l->text + l->pos, l->len - l->pos);
        return error_set(l->err, ERR_FORMAT, "line %d: unexpected character '%.*s'", l->line, n,
                         l->text + l->pos);
    }
    rc = lex_bracket(l, c);
    advance(l, l->pos + 1);
    return rc;
}

static enum status lex_tag(struct jinja_lexer *l, struct jinja_token *out)
{
    size_t end;
    uint32_t cp;

    advance(l, skip_space(l, l->pos)); /* before the test for the end: " -%}" ends a tag too */
    if (l->pos >= l->len) {
        *out = (struct jinja_token){.kind = TOKEN_EOF, .line = l->line, .text = STR("end")};
        return OK;
    }
    if (lex_tag_end(l, out)) {
        return OK;
    }
    if (is_digit(l, l->pos)) {
        return lex_number(l, out);
    }
    if (l->text[l->pos] == '\'' || l->text[l->pos] == '"') {
        return lex_string(l, out);
    }
    end = l->pos;
    while (end < l->len) {
        size_t n = utf8_decode(&cp, l->text + end, l->len - end);
        if (!jinja_is_word(cp)) {
            break;
        }
        end += n;
    }
    if (end == l->pos) {
        return lex_operator(l, out);
    }
    *out = (struct jinja_token){
        .kind = TOKEN_NAME, .line = l->line, .text = {l->text + l->pos, end - l->pos}};
    advance(l, end);
    return OK;
}

enum status jinja_lex_next(struct jinja_lexer *l, struct jinja_token *out)
{
    return l->state == LEX_ROOT ? lex_root(l, out) : lex_tag(l, out);
}
