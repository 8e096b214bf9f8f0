/* split.c - the stages of pre-tokenisation; scanners for known patterns, PCRE2 for others. See
 * split.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/split.h"

#include <assert.h>
#include <pcre2.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/size.h"
#include "text/split_scan.h"

enum { JIT_STACK_BYTES_START = 32 << 10, MATCH_HEAP_KIB_MAX = 64 << 10 };

struct stage {
    enum split_kind kind;
    enum split_gaps gaps;
    pcre2_code *code; /* SPLIT_PCRE only */
};

struct split {
    struct stage stages[SPLIT_STAGES_MAX];
    size_t n;
};

struct split_scratch {
    pcre2_match_data *matches[SPLIT_STAGES_MAX];
    pcre2_match_context *context;
    pcre2_jit_stack *jit_stack;
};

struct str split_known_pattern(enum split_kind kind)
{
    switch (kind) {
    case SPLIT_QWEN2:
        return STR("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                   " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+");
    case SPLIT_QWEN3_5:
        return STR("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
                   " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+");
    case SPLIT_LLAMA3:
        return STR("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                   " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+");
    case SPLIT_PCRE:
        break;
    }
    return STR("");
}

struct str split_gpt2_pattern(void)
{
    return STR(
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+");
}

struct split *split_new(void)
{
    return calloc(1, sizeof(struct split));
}

void split_free(struct split *s)
{
    if (!s) {
        return;
    }
    for (size_t i = 0; i < s->n; i++) {
        pcre2_code_free(s->stages[i].code);
    }
    free(s);
}

size_t split_n_stages(const struct split *s)
{
    return s->n;
}

enum split_kind split_stage_kind(const struct split *s, size_t i)
{
    assert(i < s->n);
    return s->stages[i].kind;
}

/* The last character of the escape at i: "\\s", "\\p{L}". */
static size_t escape_end(struct str pattern, size_t i)
{
    const char *close;

    if (i + 2 >= pattern.len || pattern.ptr[i + 2] != '{' || !strchr("pPx", pattern.ptr[i + 1])) {
        return i + 1;
    }
    close = memchr(pattern.ptr + i, '}', pattern.len - i);
    return close ? (size_t)(close - pattern.ptr) : i + 1;
}

/* White space of the reference, as members of a class: PCRE2's own \s has U+180E as well. */
#define SPACE_MEMBERS                                                                              \
    "\\t-\\r\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"   \
    "\\x{3000}"

/* Translate one escape, pattern[i..end], into out. Returns what is wrong with it, or NULL. */
static const char *translate_escape(struct buf *out, struct str pattern, size_t i, size_t end,
                                    bool in_class)
{
    char c = i + 1 < pattern.len ? pattern.ptr[i + 1] : 0;

    if (c && strchr("hHRXKGQEyYOzZ", c)) {
        return "an escape that engines read differently";
    }
    if (c == 's' || (c == 'S' && !in_class)) {
        buf_append_str(out, in_class ? "" : c == 's' ? "[" : "[^");
        buf_append_str(out, SPACE_MEMBERS);
        buf_append_str(out, in_class ? "" : "]");
    } else {
        buf_append(out, pattern.ptr + i, size_min(end + 1, pattern.len) - i);
    }
    return NULL;
}

/* The reference's expressions are Oniguruma's (Ruby syntax). What it shares with PCRE2 is enough for
 * every published tokenizer; constructs that mean something else there must not pass silently. Returns
 * the name of such a construct, or NULL with the pattern for PCRE2 in out. */
static const char *translate(struct buf *out, struct str pattern)
{
    bool in_class = false;

    for (size_t i = 0; i < pattern.len; i++) {
        char c = pattern.ptr[i], next = i + 1 < pattern.len ? pattern.ptr[i + 1] : 0;
        if (c == '\\') {
            size_t end = escape_end(pattern, i);
            const char *foreign = translate_escape(out, pattern, i, end, in_class);
            if (foreign) {
                return foreign;
            }
            i = end;
            continue;
        }
        if (c == '[' && in_class) {
            return "a class inside a class";
        }
        if (c == '[' &&
            (next == ']' || (next == '^' && i + 2 < pattern.len && pattern.ptr[i + 2] == ']'))) {
            return "a class that starts with ']'";
        }
        if (c == '&' && next == '&' && in_class) {
            return "an intersection of classes";
        }
        if (c == '}' && next == '+' && !in_class) {
            return "'+' after a counted repetition";
        }
        if (c == '(' && next == '*' && !in_class) {
            return "a control verb";
        }
        in_class = c == '[' || (in_class && c != ']');
        buf_append_char(out, c);
    }
    return NULL;
}

static enum status compile(struct stage *stage, struct str pattern, struct error *err)
{
    struct buf translated = {0};
    const char *foreign = translate(&translated, pattern);
    int code = 0;
    PCRE2_SIZE at = 0;
    char text[160];

    if (foreign || !buf_ok(&translated)) {
        buf_release(&translated);
        return foreign ? error_set(err, ERR_UNSUPPORTED, "a split pattern with %s is not supported",
                                   foreign)
                       : error_set(err, ERR_NO_MEMORY, "cannot allocate a split pattern");
    }
    stage->code = pcre2_compile((PCRE2_SPTR)buf_cstr(&translated), translated.len,
                                PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_MULTILINE,
                                &code, &at, NULL);
    buf_release(&translated);
    if (!stage->code) {
        pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
        return error_set(err, ERR_FORMAT, "bad split pattern: %s (near byte %zu)", text,
                         (size_t)at);
    }
    /* Without JIT (a hardened kernel, an odd machine) matching is slower, not different. */
    pcre2_jit_compile(stage->code, PCRE2_JIT_COMPLETE);
    return OK;
}

enum status split_add(struct split *s, struct str pattern, enum split_gaps gaps, struct error *err)
{
    struct stage *stage = &s->stages[s->n];
    enum status rc = OK;

    if (s->n == SPLIT_STAGES_MAX) {
        return error_set(err, ERR_LIMIT, "more than %d split patterns", SPLIT_STAGES_MAX);
    }
    if (pattern.len > SPLIT_PATTERN_BYTES_MAX) {
        return error_set(err, ERR_LIMIT, "split pattern of %zu bytes, more than %d", pattern.len,
                         SPLIT_PATTERN_BYTES_MAX);
    }
    *stage = (struct stage){.kind = SPLIT_PCRE, .gaps = gaps};
    for (int kind = SPLIT_QWEN2; kind <= SPLIT_LLAMA3; kind++) {
        if (str_eq(pattern, split_known_pattern((enum split_kind)kind))) {
            stage->kind = (enum split_kind)kind; /* they take every character: no gaps */
        }
    }
    if (stage->kind == SPLIT_PCRE) {
        rc = compile(stage, pattern, err);
    }
    s->n += rc == OK;
    return rc;
}

struct split_scratch *split_scratch_new(const struct split *s)
{
    struct split_scratch *scratch = calloc(1, sizeof *scratch);
    bool is_ok = scratch != NULL;

    for (size_t i = 0; i < s->n && is_ok; i++) {
        if (s->stages[i].kind != SPLIT_PCRE) {
            continue;
        }
        if (!scratch->context) {
            scratch->context = pcre2_match_context_create(NULL);
            scratch->jit_stack =
                pcre2_jit_stack_create(JIT_STACK_BYTES_START, SPLIT_JIT_STACK_BYTES_MAX, NULL);
        }
        scratch->matches[i] = pcre2_match_data_create(1, NULL);
        is_ok = scratch->context && scratch->jit_stack && scratch->matches[i];
    }
    if (!is_ok) {
        split_scratch_free(scratch);
        return NULL;
    }
    if (scratch->context) {
        pcre2_jit_stack_assign(scratch->context, NULL, scratch->jit_stack);
        pcre2_set_match_limit(scratch->context, SPLIT_MATCH_STEPS_MAX);
        pcre2_set_heap_limit(scratch->context, MATCH_HEAP_KIB_MAX);
    }
    return scratch;
}

void split_scratch_free(struct split_scratch *scratch)
{
    if (!scratch) {
        return;
    }
    for (size_t i = 0; i < SPLIT_STAGES_MAX; i++) {
        pcre2_match_data_free(scratch->matches[i]);
    }
    pcre2_match_context_free(scratch->context);
    pcre2_jit_stack_free(scratch->jit_stack);
    free(scratch);
}

struct run {
    const struct split *split;
    struct split_scratch *scratch;
    split_fn *fn;
    void *ctx;
    struct error *err;
};

static enum status run_stage(const struct run *r, size_t i, struct str text);

static enum status run_scanner(const struct run *r, size_t i, struct str text)
{
    enum split_kind kind = r->split->stages[i].kind;
    bool is_last = i + 1 == r->split->n;
    enum status rc = OK;

    while (text.len > 0 && rc == OK) {
        struct str piece = {text.ptr, split_scan(kind, text)};
        rc = is_last ? r->fn(r->ctx, piece, r->err) : run_stage(r, i + 1, piece);
        text.ptr += piece.len;
        text.len -= piece.len;
    }
    return rc;
}

static enum status emit(const struct run *r, size_t i, struct str text, size_t from, size_t to)
{
    return from < to ? run_stage(r, i + 1, (struct str){text.ptr + from, to - from}) : OK;
}

/* The next match at or after `from`: true and its place. An empty match right behind the previous
 * one does not count. */
static enum status next_match(bool *found, size_t *start, size_t *end, const struct run *r,
                              size_t i, struct str text, size_t from)
{
    pcre2_match_data *data = r->scratch->matches[i];
    int count = pcre2_match(r->split->stages[i].code, (PCRE2_SPTR)text.ptr, text.len, from,
                            PCRE2_NO_UTF_CHECK, data, r->scratch->context);

    *found = count >= 0;
    if (count == PCRE2_ERROR_NOMATCH) {
        return OK;
    }
    if (count < 0) {
        return error_set(r->err, count == PCRE2_ERROR_NOMEMORY ? ERR_NO_MEMORY : ERR_LIMIT,
                         "the split pattern takes too many steps on this text (code %d)", count);
    }
    *start = pcre2_get_ovector_pointer(data)[0];
    *end = pcre2_get_ovector_pointer(data)[1];
    return OK;
}

static size_t char_bytes(struct str text, size_t at)
{
    uint32_t cp;

    return at < text.len ? utf8_decode(&cp, text.ptr + at, text.len - at) : 1;
}

static enum status run_pcre(const struct run *r, size_t i, struct str text)
{
    bool keeps_gaps = r->split->stages[i].gaps == SPLIT_KEEP_GAPS;
    size_t done = 0, from = 0, start = 0, end = 0;
    bool found;
    enum status rc;

    while (from <= text.len) {
        rc = next_match(&found, &start, &end, r, i, text, from);
        if (rc != OK || !found) {
            break;
        }
        if (start >= end) { /* an empty match only cuts (\K, which could turn them, is refused) */
            from = start + char_bytes(text, start);
            if (keeps_gaps && start > done) {
                rc = emit(r, i, text, done, start);
                done = start;
            }
        } else {
            rc = keeps_gaps ? emit(r, i, text, done, start) : OK;
            if (rc == OK) {
                rc = emit(r, i, text, start, end);
            }
            done = from = end;
        }
        if (rc != OK) {
            return rc;
        }
    }
    return rc == OK && keeps_gaps ? emit(r, i, text, done, text.len) : rc;
}

/* Depth at most SPLIT_STAGES_MAX. */
static enum status run_stage(const struct run *r, size_t i, struct str text)
{
    if (i == r->split->n) {
        return r->fn(r->ctx, text, r->err);
    }
    return r->split->stages[i].kind == SPLIT_PCRE ? run_pcre(r, i, text) : run_scanner(r, i, text);
}

enum status split_run(const struct split *s, struct split_scratch *scratch, struct str text,
                      split_fn *fn, void *ctx, struct error *err)
{
    struct run r = {.split = s, .scratch = scratch, .fn = fn, .ctx = ctx, .err = err};

    return text.len > 0 ? run_stage(&r, 0, text) : OK;
}
