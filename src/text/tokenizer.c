/* tokenizer.c - text runs to token ids. See tokenizer.h.
 *
 * The order is the reference's: added tokens that are looked for in the raw text cut it into segments;
 * each segment is normalised by itself; added tokens that are looked for in normalised text cut it
 * again; the rest is split into pieces, and each piece is merged.
 *
 * Trust is carried along as one byte for each byte of the text, and only when runs differ in it: it is
 * what decides where added tokens are looked for, and which pieces may become one. */
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file_map.h"
#include "base/size.h"
#include "text/nfc.h"
#include "text/tokenizer_internal.h"

/* ---- life ---- */

enum status tokenizer_load_memory(struct tokenizer **out, const char *text, size_t len,
                                  struct error *err)
{
    struct tokenizer *t;
    enum status rc;

    *out = NULL;
    if (len > TOKENIZER_FILE_BYTES_MAX) {
        return error_set(err, ERR_LIMIT, "a tokenizer file of %zu bytes, more than %d", len,
                         TOKENIZER_FILE_BYTES_MAX);
    }
    t = calloc(1, sizeof *t);
    if (!t) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a tokenizer");
    }
    rc = tokenizer_parse(t, (struct str){text ? text : "", len}, err);
    if (rc != OK) {
        tokenizer_free(t);
        return rc;
    }
    *out = t;
    return OK;
}

enum status tokenizer_load(struct tokenizer **out, const char *path, struct error *err)
{
    char *text = NULL;
    size_t len = 0;
    enum status rc;

    *out = NULL;
    rc = file_read(&text, &len, path, TOKENIZER_FILE_BYTES_MAX, err);
    if (rc != OK) {
        return rc;
    }
    rc = tokenizer_load_memory(out, text, len, err);
    if (rc != OK) {
        error_prefix(err, "tokenizer file '%s'", path);
    }
    free(text);
    return rc;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t) {
        return;
    }
    bpe_release(&t->bpe);
    added_set_release(&t->raw_set);
    added_set_release(&t->normalized_set);
    added_tokens_release(&t->added);
    split_free(t->split);
    free(t->flags);
    free(t);
}

/* ---- look-ups ---- */

size_t tokenizer_vocab_size(const struct tokenizer *t)
{
    return t->bpe.vocab.n_ids;
}

struct str tokenizer_bytes(const struct tokenizer *t, int32_t id)
{
    return vocab_bytes(&t->bpe.vocab, id);
}

static bool has_flag(const struct tokenizer *t, int32_t id, unsigned flag)
{
    return id >= 0 && (size_t)id < t->bpe.vocab.n_ids && (t->flags[id] & flag);
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return has_flag(t, id, TOKEN_SPECIAL);
}

bool tokenizer_is_added(const struct tokenizer *t, int32_t id)
{
    return has_flag(t, id, TOKEN_ADDED);
}

int32_t tokenizer_id_of(const struct tokenizer *t, struct str content)
{
    const struct added_token *added = added_tokens_by_content(&t->added, content);

    return added ? added->id : vocab_find(&t->bpe.vocab, content, false);
}

/* ---- id lists ---- */

void token_ids_release(struct token_ids *l)
{
    free(l->ids);
    *l = (struct token_ids){0};
}

bool token_ids_reserve(struct token_ids *l, size_t extra)
{
    size_t cap = l->cap ? l->cap : 64, needed;
    int32_t *ids;

    if (extra <= l->cap - l->n) {
        return true;
    }
    if (!size_add(&needed, l->n, extra) || needed > SIZE_MAX / 2 / sizeof *ids) {
        return false;
    }
    while (cap < needed) {
        cap *= 2;
    }
    ids = realloc(l->ids, cap * sizeof *ids);
    if (!ids) {
        return false;
    }
    l->ids = ids;
    l->cap = cap;
    return true;
}

bool token_ids_push(struct token_ids *l, int32_t id)
{
    if (!token_ids_reserve(l, 1)) {
        return false;
    }
    l->ids[l->n++] = id;
    return true;
}

/* ---- encoding ---- */

/* Text with the trust of each of its bytes; trust is NULL when all_trusted says it for all. */
struct marked {
    struct str text;
    const char *trust;
    bool all_trusted;
};

struct encoder {
    const struct tokenizer *t;
    struct token_ids *out;
    struct bpe_scratch *bpe;
    struct split_scratch *split;
    struct buf normal, normal_trust; /* the current segment after NFC */
    struct error *err;
    const struct marked *segment; /* that is being split */
};

static struct marked slice(const struct marked *m, size_t from, size_t to)
{
    return (struct marked){.text = {m->text.ptr + from, to - from},
                           .trust = m->trust ? m->trust + from : NULL,
                           .all_trusted = m->all_trusted};
}

/* Where the zone of equal trust around `at` begins or ends. */
static size_t zone_end(const struct marked *m, size_t at)
{
    const char *end;

    if (!m->trust) {
        return m->text.len;
    }
    end = memchr(m->trust + at, !m->trust[at], m->text.len - at);
    return end ? (size_t)(end - m->trust) : m->text.len;
}

static bool is_trusted_at(const struct marked *m, size_t at)
{
    return m->trust ? m->trust[at] : m->all_trusted;
}

static enum status out_of_memory(struct encoder *e)
{
    return error_set(e->err, ERR_NO_MEMORY, "cannot allocate the tokens of a text");
}

static enum status encode_piece(void *ctx, struct str piece, struct error *err)
{
    struct encoder *e = ctx;
    const struct marked *m = e->segment;
    bool is_trusted = m->all_trusted;

    (void)err;
    if (m->trust) {
        size_t at = (size_t)(piece.ptr - m->text.ptr);
        is_trusted = memchr(m->trust + at, 0, piece.len) == NULL;
    }
    return bpe_encode(&e->t->bpe, e->bpe, piece, is_trusted, e->out) ? OK : out_of_memory(e);
}

static enum status encode_plain(struct encoder *e, const struct marked *m)
{
    e->segment = m;
    return split_run(e->t->split, e->split, m->text, encode_piece, e, e->err);
}

typedef enum status encode_rest(struct encoder *e, const struct marked *m);

/* What a token takes of the text around its match: white space, if its flags say so, but only within
 * the trusted zone, so that nothing of the user's text is lost. */
static void widen(const struct marked *m, const struct added_token *token, size_t zone_start,
                  size_t zone_stop, size_t *start, size_t *stop)
{
    if (token->lstrip) {
        *start -= text_trailing_space(m->text.ptr + zone_start, *start - zone_start);
    }
    if (token->rstrip) {
        *stop += text_leading_space(m->text.ptr + *stop, zone_stop - *stop);
    }
}

static bool touches_word(const struct marked *m, size_t start, size_t stop)
{
    return text_ends_in_word(m->text.ptr, start) ||
           text_starts_with_word(m->text.ptr + stop, m->text.len - stop);
}

/* Emit the added tokens of one set that stand in m, and hand the text between them to `rest`. */
static enum status encode_around(struct encoder *e, const struct marked *m,
                                 const struct added_set *set, encode_rest *rest)
{
    size_t done = 0, at = 0, zone_start = 0, zone_stop = 0;
    enum status rc = OK;

    while (at < m->text.len && rc == OK) {
        const struct added_token *token;
        size_t start, stop;
        if (at >= zone_stop) {
            zone_start = zone_stop;
            zone_stop = zone_end(m, zone_stop);
        }
        token = is_trusted_at(m, zone_start)
                    ? added_set_find(set, m->text.ptr, at, zone_stop, &start)
                    : NULL;
        if (!token) {
            at = zone_stop;
            continue;
        }
        at = stop = start + token->pattern.len;
        if (token->single_word && touches_word(m, start, stop)) {
            continue;
        }
        widen(m, token, zone_start, zone_stop, &start, &stop);
        if (done < start) {
            struct marked part = slice(m, done, start);
            rc = rest(e, &part);
        }
        if (rc == OK && !token_ids_push(e->out, token->id)) {
            rc = out_of_memory(e);
        }
        done = stop;
    }
    if (rc == OK && done < m->text.len) {
        struct marked part = slice(m, done, m->text.len);
        rc = rest(e, &part);
    }
    return rc;
}

static enum status encode_segment(struct encoder *e, const struct marked *m)
{
    struct marked normal = *m;

    if (e->t->has_nfc && nfc_needed(m->text)) {
        enum status rc;
        buf_clear(&e->normal);
        buf_clear(&e->normal_trust);
        rc = nfc_append(&e->normal, &e->normal_trust, m->text, m->trust, e->err);
        if (rc != OK) {
            return rc;
        }
        normal.text = (struct str){buf_cstr(&e->normal), e->normal.len};
        normal.trust = m->trust ? buf_cstr(&e->normal_trust) : NULL;
    }
    return e->t->normalized_set.n > 0
               ? encode_around(e, &normal, &e->t->normalized_set, encode_plain)
               : encode_plain(e, &normal);
}

static enum status encode_marked(struct token_ids *out, const struct tokenizer *t,
                                 const struct marked *m, struct error *err)
{
    struct encoder e = {.t = t, .out = out, .err = err};
    enum status rc;

    e.bpe = bpe_scratch_new(m->text.len);
    e.split = split_scratch_new(t->split);
    rc = e.bpe && e.split ? encode_around(&e, m, &t->raw_set, encode_segment) : out_of_memory(&e);
    bpe_scratch_free(e.bpe);
    split_scratch_free(e.split);
    buf_release(&e.normal);
    buf_release(&e.normal_trust);
    return rc;
}

/* All runs as one text; trust only if they differ. The two buffers hold it when there is more than
 * one run. */
static enum status join_runs(struct marked *m, struct buf *text, struct buf *trust,
                             const struct text_run *runs, size_t n_runs, struct error *err)
{
    bool is_mixed = false;

    *m = (struct marked){.text = runs[0].text, .all_trusted = runs[0].is_trusted};
    if (n_runs == 1) {
        return OK;
    }
    for (size_t i = 1; i < n_runs; i++) {
        is_mixed = is_mixed || runs[i].is_trusted != runs[0].is_trusted;
    }
    for (size_t i = 0; i < n_runs; i++) {
        buf_append(text, runs[i].text.ptr, runs[i].text.len);
        if (is_mixed && buf_reserve(trust, runs[i].text.len)) {
            memset(trust->data + trust->len, runs[i].is_trusted, runs[i].text.len);
            trust->len += runs[i].text.len;
        }
    }
    if (!buf_ok(text) || !buf_ok(trust)) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the joined text");
    }
    m->text = (struct str){buf_cstr(text), text->len};
    m->trust = is_mixed ? buf_cstr(trust) : NULL;
    return OK;
}

static enum status check_runs(const struct text_run *runs, size_t n_runs, struct error *err)
{
    size_t total = 0;

    for (size_t i = 0; i < n_runs; i++) {
        struct str text = runs[i].text;
        size_t valid = text.len ? utf8_valid_prefix(text.ptr, text.len) : 0;
        if (valid != text.len) {
            return error_set(err, ERR_BAD_REQUEST, "the text is not valid UTF-8 at byte %zu",
                             total + valid);
        }
        if (text.len > TOKENIZER_TEXT_BYTES_MAX - total) {
            return error_set(err, ERR_LIMIT, "the text has more than %d bytes",
                             TOKENIZER_TEXT_BYTES_MAX);
        }
        total += text.len;
    }
    return OK;
}

enum status tokenizer_encode(struct token_ids *out, const struct tokenizer *t,
                             const struct text_run *runs, size_t n_runs, struct error *err)
{
    struct buf text = {0}, trust = {0};
    struct marked m;
    size_t n_before = out->n;
    enum status rc = check_runs(runs, n_runs, err);

    if (rc != OK || n_runs == 0) {
        return rc;
    }
    rc = join_runs(&m, &text, &trust, runs, n_runs, err);
    if (rc == OK && m.text.len > 0) {
        rc = encode_marked(out, t, &m, err);
    }
    if (rc != OK) {
        out->n = n_before;
    }
    buf_release(&text);
    buf_release(&trust);
    return rc;
}

enum status tokenizer_encode_text(struct token_ids *out, const struct tokenizer *t, struct str text,
                                  struct error *err)
{
    const struct text_run run = {.text = text, .is_trusted = true};

    return tokenizer_encode(out, t, &run, 1, err);
}
