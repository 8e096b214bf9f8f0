/* forward.c - one step: rows of several sequences through the plan.
 *
 * Place: model; see model.h. A step fills lists that were allocated at load, runs the operations in
 *        order, and looks at what came out; it allocates nothing. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/size.h"
#include "model/model_internal.h"

/* ---- buffers ---- */

static bool rows_alloc(float **out, size_t rows, size_t cols)
{
    size_t n;

    if (!size_mul(&n, rows, cols)) {
        return false;
    }
    *out = calloc(n, sizeof **out);
    return *out != NULL;
}

/* n elements of `each` bytes, zeroed: where the device's copies arrive directly, if it has memory of its
 * own. */
static void *arrival_new(const struct model *m, size_t n, size_t each)
{
    const struct backend_ops *ops = m->be->ops;
    size_t n_bytes;

    if (!ops->host_new) {
        return calloc(n, each);
    }
    return size_mul(&n_bytes, n, each) ? ops->host_new(m->be, n_bytes) : NULL;
}

static void arrival_free(const struct model *m, void *data)
{
    if (m->be->ops->host_free) {
        m->be->ops->host_free(m->be, data);
    } else {
        free(data);
    }
}

enum status step_buffers_make(struct model *m, struct error *err)
{
    struct step_buffers *b = &m->step;
    size_t rows = m->options.rows_max, out_rows = m->options.out_rows_max;

    b->spans_max = size_min(rows, STEP_SPANS_MAX);
    b->tokens = calloc(rows, sizeof *b->tokens);
    b->spans = calloc(b->spans_max, sizeof *b->spans);
    b->out_rows = calloc(out_rows, sizeof *b->out_rows);
    b->row_bad = calloc(rows, sizeof *b->row_bad);
    b->span_bad = calloc(b->spans_max, sizeof *b->span_bad);
    b->router_margin = calloc(rows, sizeof *b->router_margin);
    b->logits = arrival_new(m, out_rows, m->spec.vocab * sizeof *b->logits);
    b->top = arrival_new(m, out_rows, sizeof *b->top);
    b->best = calloc(out_rows, sizeof *b->best);
    if (!b->tokens || !b->spans || !b->out_rows || !b->row_bad || !b->span_bad ||
        !b->router_margin || !b->logits || !b->top || !b->best ||
        !rows_alloc(&b->tap_rows, rows, m->spec.hidden)) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate buffers for %zu rows", rows);
    }
    return OK;
}

void step_buffers_release(struct model *m)
{
    struct step_buffers *b = &m->step;

    free(b->tokens);
    free(b->spans);
    free(b->out_rows);
    free(b->row_bad);
    free(b->span_bad);
    free(b->router_margin);
    free(b->tap_rows);
    arrival_free(m, b->logits);
    arrival_free(m, b->top);
    free(b->best);
    *b = (struct step_buffers){0};
}

/* ---- before the run ---- */

static enum status span_check(const struct model *m, const struct model_span *s, struct error *err)
{
    if (s->n_tokens == 0 || s->n_logits > s->n_tokens) {
        return error_set(err, ERR_INTERNAL, "a span of %zu tokens wants %zu logits", s->n_tokens,
                         s->n_logits);
    }
    if (!state_is_reserved(s->seq, s->n_tokens)) {
        return error_set(err, ERR_INTERNAL, "a span of %zu tokens was not reserved", s->n_tokens);
    }
    for (size_t i = 0; i < s->n_tokens; i++) {
        if (s->tokens[i] < 0 || (size_t)s->tokens[i] >= m->spec.vocab) {
            return error_set(err, ERR_BAD_REQUEST, "token id %d is outside the vocabulary of %zu",
                             s->tokens[i], m->spec.vocab);
        }
    }
    return OK;
}

/* Lays the spans out as rows. */
static enum status step_fill(struct model *m, struct step *step, const struct model_span *spans,
                             size_t n_spans, struct error *err)
{
    struct step_buffers *b = &m->step;

    if (n_spans == 0 || n_spans > b->spans_max) {
        return error_set(err, ERR_LIMIT, "a step of %zu sequences: 1 to %zu are possible", n_spans,
                         b->spans_max);
    }
    for (size_t i = 0; i < n_spans; i++) {
        const struct model_span *s = &spans[i];
        enum status rc = span_check(m, s, err);

        if (rc != OK) {
            return rc;
        }
        if (s->n_tokens > m->options.rows_max - step->n_rows ||
            s->n_logits > m->options.out_rows_max - step->n_out_rows) {
            return error_set(err, ERR_LIMIT,
                             "a step is too large: at most %zu rows, %zu with logits",
                             m->options.rows_max, m->options.out_rows_max);
        }
        b->spans[i].row = step->n_rows;
        b->spans[i].n_rows = s->n_tokens;
        state_span(s->seq, &b->spans[i]);
        memcpy(b->tokens + step->n_rows, s->tokens, s->n_tokens * sizeof *s->tokens);
        step->n_rows += s->n_tokens;
        for (size_t j = s->n_logits; j > 0; j--) {
            b->out_rows[step->n_out_rows++] = (int32_t)(step->n_rows - j);
        }
    }
    for (size_t i = 0; i < step->n_rows; i++) {
        b->row_bad[i] = -1;
        b->router_margin[i] = INFINITY; /* operations keep the minimum */
    }
    step->tokens = b->tokens;
    step->spans = b->spans;
    step->n_spans = n_spans;
    step->out_rows = b->out_rows;
    step->bad_layer = b->row_bad;
    return OK;
}

/* ---- the run ---- */

static void tap_rows(struct model *m, const struct step *step, const struct model_step_options *o,
                     size_t layer, const struct operand *rows)
{
    m->be->ops->read(m->be, m->step.tap_rows, rows->data,
                     step->n_rows * m->spec.hidden * sizeof(float));
    o->tap(o->tap_ctx, layer, m->step.tap_rows, step->n_rows);
}

/* Called after each operation when there is a tap: the embedding is layer 0, the check at the end of
 * layer i stands for its output, and the last one is seen through the final norm. */
static enum status tap_after(struct model *m, const struct op *op, const struct step *step,
                             const struct model_step_options *o, struct error *err)
{
    const struct state_pools *pools = state_store_pools(m->states);
    size_t layer = (size_t)(op->layer + 1);
    enum status rc;

    if (op->kind != OP_EMBED && op->kind != OP_CHECK) {
        return OK;
    }
    if (layer < m->spec.n_layers) {
        tap_rows(m, step, o, layer, &m->plan.x);
        return OK;
    }
    rc = m->be->ops->run(m->be, &m->plan.tap_norm, step, pools, err);
    if (rc == OK) {
        tap_rows(m, step, o, layer, &m->plan.tap);
    }
    return rc;
}

static enum status op_run(struct model *m, const struct op *op, const struct step *step,
                          const struct model_step_options *o, const struct state_pools *pools,
                          struct error *err)
{
    uint64_t start;
    enum status rc;

    if (!o->op_done) {
        return m->be->ops->run(m->be, op, step, pools, err);
    }
    start = clock_now_ns();
    rc = m->be->ops->run(m->be, op, step, pools, err);
    if (rc == OK && m->be->ops->wait) {
        rc = m->be->ops->wait(m->be, err);
    }
    o->op_done(o->op_ctx, op, clock_now_ns() - start);
    return rc;
}

static enum status ops_run(struct model *m, const struct step *step,
                           const struct model_step_options *o, struct error *err)
{
    const struct state_pools *pools = state_store_pools(m->states);

    if (m->be->ops->run_all && !o->tap && !o->op_done && !step->route_hook) {
        return m->be->ops->run_all(m->be, step, pools, err);
    }
    for (size_t i = 0; i < m->plan.n_ops; i++) {
        const struct op *op = &m->plan.ops[i];
        enum status rc;

        if (op->rows == ROWS_OUT && step->n_out_rows == 0) {
            continue;
        }
        rc = op_run(m, op, step, o, pools, err);
        if (rc == OK && o->tap) {
            rc = tap_after(m, op, step, o, err);
        }
        if (rc != OK) {
            error_prefix(err, "%s of layer %d", op->name, op->layer);
            return rc;
        }
    }
    return OK;
}

/* n rows of o to the host; they are there after end(). */
static void arrive(struct model *m, void *host, const struct operand *o, size_t n)
{
    const struct backend_ops *ops = m->be->ops;

    (ops->read_later ? ops->read_later : ops->read)(m->be, host, o->data,
                                                    n * o->cols * dtype_bytes(o->dtype));
}

static enum status step_run(struct model *m, const struct step *step,
                            const struct model_step_options *o, struct error *err)
{
    const struct backend_ops *ops = m->be->ops;
    enum status rc = ops->begin ? ops->begin(m->be, step, err) : OK;

    if (rc == OK) {
        rc = ops_run(m, step, o, err);
    }
    if (rc == OK && step->n_out_rows > 0) {
        if (!o->no_logits) {
            arrive(m, m->step.logits, &m->plan.logits, step->n_out_rows);
        }
        arrive(m, m->step.top, &m->plan.best, step->n_out_rows);
    }
    return rc == OK && ops->end ? ops->end(m->be, step, err) : rc;
}

/* ---- after the run ---- */

/* The first bad layer of each span; logits that are not finite count as the layer after the last. */
static void spans_judge(struct model *m, const struct model_span *spans, size_t n_spans)
{
    const struct step_buffers *b = &m->step;
    const int32_t *best = b->best;

    for (size_t i = 0; i < n_spans; i++) {
        int16_t bad = -1;

        for (size_t row = b->spans[i].row; row < b->spans[i].row + b->spans[i].n_rows; row++) {
            if (b->row_bad[row] >= 0 && (bad < 0 || b->row_bad[row] < bad)) {
                bad = b->row_bad[row];
            }
        }
        for (size_t j = 0; j < spans[i].n_logits; j++) {
            bad = bad < 0 && best[j] < 0 ? (int16_t)m->spec.n_layers : bad;
        }
        best += spans[i].n_logits;
        b->span_bad[i] = bad;
    }
}

enum status model_step(struct model *m, const struct model_span *spans, size_t n_spans,
                       const struct model_step_options *o, struct model_step_result *result,
                       struct error *err)
{
    static const struct model_step_options none;
    struct step step = {0};
    enum status rc = step_fill(m, &step, spans, n_spans, err);

    if (rc != OK) {
        return rc;
    }
    if (!o) {
        o = &none;
    }
    if (o->want_margins) {
        step.router_margin = m->step.router_margin;
    }
    step.route_hook = o->route_hook;
    step.route_ctx = o->route_ctx;
    step.forced_idx = o->forced_idx;
    step.forced_next = o->forced_next;
    if (o->forced_idx && !m->be->ops->run_all) {
        return error_set(err, ERR_UNSUPPORTED, "on the %s nothing but a hook replaces choices",
                         m->be->ops->name);
    }
    rc = step_run(m, &step, o, err);
    if (rc != OK) {
        return rc;
    }
    m->step.n_out_rows = step.n_out_rows;
    for (size_t i = 0; i < step.n_out_rows; i++) {
        m->step.best[i] = m->step.top[i].ids[0];
    }
    spans_judge(m, spans, n_spans);
    for (size_t i = 0; i < n_spans; i++) {
        state_advance(spans[i].seq, spans[i].n_tokens);
    }
    *result =
        (struct model_step_result){.logits = o->no_logits ? NULL : m->step.logits,
                                   .top = m->step.top,
                                   .best = m->step.best,
                                   .bad_layer = m->step.span_bad,
                                   .router_margin = o->want_margins ? m->step.router_margin : NULL};
    return OK;
}

const float *model_logits(struct model *m)
{
    if (m->step.n_out_rows > 0) {
        m->be->ops->read(m->be, m->step.logits, m->plan.logits.data,
                         m->step.n_out_rows * m->spec.vocab * sizeof *m->step.logits);
    }
    return m->step.logits;
}
