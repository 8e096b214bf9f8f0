/* split.c - the stages of pre-tokenisation; scanners for known patterns, PCRE2 for others. See
 * split.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/split.h"

#include <assert.h>
#include <pcre2.h>
#include <stdlib.h>

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

/* The reference's expressions are Oniguruma's (Ruby syntax). What it shares with PCRE2 is enough for
 * every published tokenizer; constructs that mean something else there must not pass silently. */
static const char *foreign_construct(struct str pattern)
{
    size_t class_depth = 0;

    for (size_t i = 0; i < pattern.len; i++) {
        char c = pattern.ptr[i], next = i + 1 < pattern.len ? pattern.ptr[i + 1] : 0;
        if (c == '\\') {
            if (next && strchr("hHRXKGQEyYOzZ", next)) {
                return "an escape that engines read differently";
            }
            i++;
        } else if (c == '[') {
            if (class_depth > 0) {
                return "a class inside a class";
            }
            class_depth++;
            if (next == ']' || (next == '^' && i + 2 < pattern.len && pattern.ptr[i + 2] == ']')) {
                return "a class that starts with ']'";
            }
        } else if (c == ']' && class_depth > 0) {
            class_depth--;
        } else if (c == '&' && next == '&' && class_depth > 0) {
            return "an intersection of classes";
        } else if (c == '}' && next == '+' && class_depth == 0) {
            return "'+' after a counted repetition";
        } else if (c == '(' && next == '*' && class_depth == 0) {
            return "a control verb";
        }
    }
    return NULL;
}

static enum status compile(struct stage *stage, struct str pattern, struct error *err)
{
    const char *foreign = foreign_construct(pattern);
    int code;
    PCRE2_SIZE at;
    char text[160];

    if (foreign) {
        return error_set(err, ERR_UNSUPPORTED, "split pattern with %s is not supported", foreign);
    }
    stage->code = pcre2_compile((PCRE2_SPTR)pattern.ptr, pattern.len,
                                PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_MULTILINE,
                                &code, &at, NULL);
    if (!stage->code) {
        pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
        return error_set(err, ERR_FORMAT, "bad split pattern: %s at byte %zu", text, (size_t)at);
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
