/* fake_model.h - a stand-in for model, state store and detokeniser, for tests of the engine.
 *
 * Place: runtime, included by one test file, whose definitions the linker takes before those of the
 *        libraries. So every schedule, fault and full pool can be made on purpose and costs nothing.
 * Model: what a sequence has seen is one hash and its last token. By default the logits are noise made
 *        from the hash, so that any mix-up of tokens, order or sequences changes the text. With
 *        is_scripted token v is followed by v + 1, up to the end token.
 * Text:  tokens FAKE_FIRST.. are the letters a..z, A..; others have none. */
#ifndef RUNTIME_FAKE_MODEL_H
#define RUNTIME_FAKE_MODEL_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/model.h"
#include "text/detok.h"
#include "text/tokenizer.h"

enum {
    FAKE_FIRST = 3,
    FAKE_EOS = 50, /* the successor of FAKE_EOS - 1; itself followed by FAKE_FIRST */
    /* faults, when such a token is in a span */
    FAKE_BAD_LAYER = 60,  /* the span's values are not finite in layer 3 */
    FAKE_NAN_LOGITS = 61, /* its logits are NaN */
    FAKE_REFUSED = 62,    /* the whole step is refused before it begins */
    FAKE_DEVICE = 63,     /* the device fails */
    FAKE_TOKENS = 70,     /* the tokenizer's */
    FAKE_VOCAB = 72,      /* the model's rows; the last two have the largest logits of all */
    FAKE_LIVE_MAX = 64,
    FAKE_ROWS_MAX = 4096
};

struct seq_state {
    bool is_used;
    size_t n_tokens, n_reserved, n_pages;
    uint64_t hash;
    int32_t last;
};

struct state_store {
    struct state_budget budget;
    struct state_counts counts;
    struct seq_state seqs[FAKE_LIVE_MAX];
};

struct fake_span { /* a record of what a step was asked to do */
    size_t step, position, n_tokens;
    int32_t first; /* token */
    bool wants_logits;
};

struct model {
    struct state_store store;
    struct model_config config;
    struct model_options options;
    bool is_scripted, is_endless;
    float logits[FAKE_LIVE_MAX][FAKE_VOCAB];
    struct best_row top[FAKE_LIVE_MAX];
    size_t n_logits_asked, n_logits_fetched; /* steps: with logits, and whose logits came after */
    int16_t bad_layer[FAKE_LIVE_MAX];
    size_t n_steps;
    struct fake_span *log; /* or NULL: not recorded */
    size_t n_log, log_max;
    void (*on_step)(void *ctx, size_t step); /* at the start of each step, on the engine's thread */
    void *ctx;
};

static inline void fake_model_init(struct model *m, size_t n_live, size_t n_pages)
{
    memset(m, 0, sizeof *m);
    assert_true(n_live <= FAKE_LIVE_MAX);
    m->store.budget = (struct state_budget){
        .n_live = n_live, .n_tokens = n_pages * KV_PAGE_TOKENS, .context_max = 1 << 20};
    m->store.counts.pages_total = n_pages;
    m->config.vocab_size = FAKE_VOCAB;
    m->config.n_layers = 4;
    m->options.rows_max = FAKE_ROWS_MAX;
    m->options.out_rows_max = n_live;
}

/* ---- state.h ---- */

struct state_store *model_states(struct model *m)
{
    return &m->store;
}

const struct state_budget *state_store_budget(const struct state_store *s)
{
    return &s->budget;
}

struct state_counts state_store_counts(const struct state_store *s)
{
    return s->counts;
}

enum status state_new(struct seq_state **out, struct state_store *s, struct error *err)
{
    *out = NULL;
    for (size_t i = 0; i < s->budget.n_live; i++) {
        if (!s->seqs[i].is_used) {
            s->seqs[i] = (struct seq_state){.is_used = true, .hash = 1469598103934665603u};
            s->counts.live_used++;
            *out = &s->seqs[i];
            return OK;
        }
    }
    return error_set(err, ERR_BUSY, "no live slot is free");
}

void state_free(struct state_store *s, struct seq_state *q)
{
    if (q) {
        assert_true(q->is_used);
        q->is_used = false;
        s->counts.live_used--;
        s->counts.pages_used -= q->n_pages;
    }
}

enum status state_reserve(struct state_store *s, struct seq_state *q, size_t n_tokens,
                          struct error *err)
{
    size_t n = (q->n_tokens + n_tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;

    if (n > q->n_pages) {
        if (n - q->n_pages > s->counts.pages_total - s->counts.pages_used) {
            return error_set(err, ERR_BUSY, "the pool is short of pages");
        }
        s->counts.pages_used += n - q->n_pages;
        q->n_pages = n;
    }
    q->n_reserved = q->n_tokens + n_tokens;
    return OK;
}

/* ---- model.h ---- */

const struct model_config *model_get_config(const struct model *m)
{
    return &m->config;
}

const struct model_options *model_get_options(const struct model *m)
{
    return &m->options;
}

static inline uint64_t fake_mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 1099511628211u;
    return h ^ (h >> 29);
}

static inline bool fake_has(const struct model_span *span, int32_t token)
{
    for (size_t i = 0; i < span->n_tokens; i++) {
        if (span->tokens[i] == token) {
            return true;
        }
    }
    return false;
}

static inline void fake_logits(const struct model *m, const struct seq_state *q, float *out)
{
    for (int32_t v = 0; v < FAKE_VOCAB; v++) {
        out[v] = v >= FAKE_FIRST && v <= FAKE_EOS ? 0.0f : -INFINITY;
        if (v >= FAKE_TOKENS) {
            out[v] = 1e6f;
        } else if (v >= FAKE_FIRST && v <= FAKE_EOS && !m->is_scripted) {
            out[v] = (float)(fake_mix(q->hash, (uint64_t)v) % 1000) * 0.01f;
        }
        if (v == FAKE_EOS && m->is_endless) {
            out[v] = -INFINITY;
        }
    }
    if (m->is_scripted) {
        int32_t next = q->last >= FAKE_EOS ? FAKE_FIRST : q->last + 1;
        out[next == FAKE_EOS && m->is_endless ? FAKE_FIRST : next] = 20.0f;
    }
}

/* The largest, one after the other; nothing for a row with a NaN. */
static inline void fake_top(const float *x, struct best_row *out)
{
    bool is_taken[FAKE_VOCAB] = {false}, has_nan = false;

    for (size_t v = 0; v < FAKE_VOCAB; v++) {
        has_nan = has_nan || isnan(x[v]);
    }
    for (size_t k = 0; k < BEST_TOP; k++) {
        int32_t best = -1;

        for (int32_t v = 0; v < FAKE_VOCAB && !has_nan; v++) {
            best = !is_taken[v] && (best < 0 || x[v] > x[best]) ? v : best;
        }
        out->ids[k] = best;
        out->values[k] = best < 0 ? -INFINITY : x[best];
        if (best >= 0) {
            is_taken[best] = true;
        }
    }
}

static inline void fake_record(struct model *m, const struct model_span *span)
{
    if (m->log && m->n_log < m->log_max) {
        m->log[m->n_log++] = (struct fake_span){m->n_steps - 1, span->seq->n_tokens, span->n_tokens,
                                                span->tokens[0], span->n_logits > 0};
    }
}

enum status model_step(struct model *m, const struct model_span *spans, size_t n_spans,
                       const struct model_step_options *o, struct model_step_result *result,
                       struct error *err)
{
    size_t n_rows = 0, n_out = 0;
    bool has_logits = !o || !o->no_logits;

    if (m->on_step) {
        m->on_step(m->ctx, m->n_steps);
    }
    m->n_steps++;
    for (size_t i = 0; i < n_spans; i++) {
        if (fake_has(&spans[i], FAKE_REFUSED)) {
            return error_set(err, ERR_LIMIT, "a span is refused");
        }
    }
    for (size_t i = 0; i < n_spans; i++) {
        const struct model_span *span = &spans[i];
        struct seq_state *q = span->seq;

        if (fake_has(span, FAKE_DEVICE)) {
            return error_set(err, ERR_DEVICE, "the device is lost");
        }
        assert_true(q->is_used && span->n_tokens > 0);
        assert_true(q->n_tokens + span->n_tokens <= q->n_reserved);
        fake_record(m, span);
        for (size_t t = 0; t < span->n_tokens; t++) {
            q->hash = fake_mix(q->hash, (uint64_t)span->tokens[t]);
        }
        q->last = span->tokens[span->n_tokens - 1];
        q->n_tokens += span->n_tokens;
        n_rows += span->n_tokens;
        m->bad_layer[i] = fake_has(span, FAKE_BAD_LAYER) ? 3 : -1;
        if (span->n_logits > 0) {
            fake_logits(m, q, m->logits[n_out]);
            if (fake_has(span, FAKE_NAN_LOGITS)) {
                m->logits[n_out][7] = NAN;
            }
            fake_top(m->logits[n_out], &m->top[n_out]);
            n_out++;
        }
    }
    assert_true(n_rows <= m->options.rows_max && n_out <= m->options.out_rows_max);
    m->n_logits_asked += has_logits && n_out > 0;
    *result = (struct model_step_result){
        .logits = has_logits ? m->logits[0] : NULL, .top = m->top, .bad_layer = m->bad_layer};
    return OK;
}

const float *model_logits(struct model *m)
{
    m->n_logits_fetched++;
    return m->logits[0];
}

/* ---- tokenizer.h, detok.h ---- */

size_t tokenizer_vocab_size(const struct tokenizer *t)
{
    (void)t;
    return FAKE_TOKENS;
}

void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special)
{
    *d = (struct detok){.tokenizer = t, .skip_special = skip_special};
}

void detok_push(struct detok *d, int32_t id, struct buf *out)
{
    (void)d;
    if (id >= FAKE_FIRST && id < FAKE_FIRST + 26) {
        buf_append_char(out, (char)('a' + id - FAKE_FIRST));
    } else if (id >= FAKE_FIRST + 26 && id < FAKE_EOS) {
        buf_append_char(out, (char)('A' + id - FAKE_FIRST - 26));
    }
}

void detok_finish(struct detok *d, struct buf *out)
{
    (void)d;
    (void)out;
}

#endif
