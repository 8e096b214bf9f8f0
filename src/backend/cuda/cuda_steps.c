/* cuda_steps.c - a step's tables: made on the host, brought to the card with one copy, and what comes
 * back after the step.
 *
 * Place:  backend/cuda.
 * Layout: one block, the same on the host (pinned) and on the card. Where a table begins depends only on
 *         the step's rounded sizes, so that a captured step finds its tables where it saw them first:
 *
 *             counts | bad_layer [rows] | router_margin [rows] | log and orders (cuda_offload.h) |
 *             tokens [rows] | row_span [rows] | row_position [rows] | out_rows [out rows] |
 *             spans [spans] | pages, as many as there are
 *
 * Sizes:  a decode step (every sequence one row) is rounded up, also when it is not captured: one set of
 *         launches, however it is run. Rows past the count hold harmless values. Other steps have their
 *         own sizes, for they are long enough to be launched kernel by kernel. */
#include <math.h>
#include <string.h>

#include "backend/cuda/cuda_private.h"
#include "base/size.h"

enum { CONTEXT_LEAST = 1024, TABLE_ALIGN = 64 };

size_t cuda_rows_bucket(size_t n, size_t max)
{
    size_t r = 1;

    if (n <= 16) {
        while (r < n) {
            r *= 2;
        }
    } else {
        size_t each = n <= 64 ? 16 : n <= 256 ? 32 : 128;

        r = (n + each - 1) / each * each;
    }
    return r > max ? size_max(n, max) : r;
}

size_t cuda_context_bucket(size_t n, size_t max)
{
    size_t r = CONTEXT_LEAST;

    while (r < n) {
        r *= 2;
    }
    return r > max ? size_max(n, max) : r;
}

/* ---- memory ---- */

/* Byte offsets of the tables. */
struct layout {
    size_t counts, bad, margin, offload, tokens, row_span, row_position, out_rows, spans, pages;
};

static size_t table_place(size_t *end, size_t n, size_t each)
{
    size_t at = *end;

    *end = (at + n * each + TABLE_ALIGN - 1) & ~(size_t)(TABLE_ALIGN - 1);
    return at;
}

static struct layout layout_of(const struct cuda_backend *be, size_t n_rows, size_t n_out_rows,
                               size_t n_spans)
{
    struct layout l;
    size_t end = 0;

    l.counts = table_place(&end, STEP_COUNTS, sizeof(int32_t));
    l.bad = table_place(&end, n_rows, sizeof(int32_t));
    l.margin = table_place(&end, n_rows, sizeof(float));
    l.offload = table_place(&end, cuda_offload_bytes(be, n_rows), 1);
    l.tokens = table_place(&end, n_rows, sizeof(int32_t));
    l.row_span = table_place(&end, n_rows, sizeof(int32_t));
    l.row_position = table_place(&end, n_rows, sizeof(int32_t));
    l.out_rows = table_place(&end, n_out_rows, sizeof(int32_t));
    l.spans = table_place(&end, n_spans, sizeof(struct step_span));
    l.pages = end;
    return l;
}

static size_t pages_of(size_t n_tokens)
{
    return n_tokens / KV_PAGE_TOKENS + (n_tokens % KV_PAGE_TOKENS != 0);
}

size_t cuda_tables_bytes(const struct cuda_backend *be, size_t *pages_max)
{
    size_t spans_max = size_min(be->rows_max, STEP_SPANS_MAX);
    size_t each = pages_of(be->context_max) + 1;

    /* At least one sequence of full length fits, however long that is; and one page number more is
     * there always, for tables that are read where no sequence is. */
    *pages_max = size_max(size_min(spans_max * each, CUDA_PAGES_MAX), each);
    return cuda_offload_bytes(be, size_min(be->rows_max, EXPERT_HOME_ROWS)) +
           layout_of(be, be->rows_max, be->rows_max, be->rows_max).pages +
           (*pages_max + 1) * sizeof(int32_t);
}

enum status cuda_tables_new(struct cuda_backend *be, struct error *err)
{
    struct cuda_private *own = be->own;
    void *host = NULL;
    size_t bytes;
    enum status rc;

    if (be->rows_max > INT32_MAX / 64 || be->context_max > INT32_MAX) {
        return error_set(err, ERR_LIMIT,
                         "steps of %zu rows and contexts of %zu tokens are too long", be->rows_max,
                         be->context_max);
    }
    bytes = cuda_tables_bytes(be, &own->pages_max);
    rc = cuda_result(be, be->drv->mem_host_alloc(&host, bytes, 0), err,
                     "cuMemHostAlloc of %zu bytes for a step's tables", bytes);
    own->tables = rc == OK ? host : NULL;
    return rc == OK ? cuda_alloc(be, &own->device_tables, bytes, "a step's tables", err) : rc;
}

void cuda_tables_free(struct cuda_backend *be)
{
    struct cuda_private *own = be->own;

    if (own->tables) {
        be->drv->mem_free_host(own->tables);
    }
    if (own->device_tables) {
        be->drv->mem_free(own->device_tables);
    }
    own->tables = NULL;
    own->device_tables = 0;
    own->step_is_open = false;
}

/* ---- before ---- */

static enum status span_check(const struct cuda_backend *be, const struct step *step,
                              const struct span *s, struct error *err)
{
    if (s->row > step->n_rows || s->n_rows > step->n_rows - s->row) {
        return error_set(err, ERR_INTERNAL, "a sequence's rows %zu and %zu more, in a step of %zu",
                         s->row, s->n_rows, step->n_rows);
    }
    if (s->position > be->context_max || s->n_rows > be->context_max - s->position) {
        return error_set(err, ERR_INTERNAL,
                         "a sequence of %zu and %zu more tokens, prepared for %zu", s->position,
                         s->n_rows, be->context_max);
    }
    return OK;
}

static enum status step_check(const struct cuda_backend *be, const struct step *step,
                              struct error *err)
{
    size_t n_pages = 0;

    if (step->n_rows > be->rows_max || step->n_out_rows > be->rows_max ||
        step->n_spans > size_min(be->rows_max, STEP_SPANS_MAX)) {
        return error_set(err, ERR_INTERNAL,
                         "a step of %zu rows, %zu of them wanted, and %zu sequences, prepared for "
                         "%zu rows",
                         step->n_rows, step->n_out_rows, step->n_spans, be->rows_max);
    }
    for (size_t i = 0; i < step->n_spans; i++) {
        enum status rc = span_check(be, step, &step->spans[i], err);

        if (rc != OK) {
            return rc;
        }
        n_pages += pages_of(step->spans[i].position + step->spans[i].n_rows);
    }
    for (size_t i = 0; i < step->n_out_rows; i++) {
        if (step->out_rows[i] < 0 || (size_t)step->out_rows[i] >= step->n_rows) {
            return error_set(err, ERR_INTERNAL, "row %d is wanted of a step of %zu",
                             step->out_rows[i], step->n_rows);
        }
    }
    if (n_pages > be->own->pages_max) {
        return error_set(err, ERR_LIMIT,
                         "the sequences of a step have %zu pages of %d tokens: %zu are possible",
                         n_pages, KV_PAGE_TOKENS, be->own->pages_max);
    }
    return OK;
}

static struct cuda_shape shape_of(const struct cuda_backend *be, const struct step *step)
{
    struct cuda_shape s = {.n_rows = step->n_rows,
                           .n_out_rows = step->n_out_rows,
                           .n_spans = step->n_spans,
                           .is_decode = step->n_rows > 0 && step->n_spans == step->n_rows};

    for (size_t i = 0; i < step->n_spans; i++) {
        const struct span *span = &step->spans[i];

        s.span_rows_max = size_max(s.span_rows_max, span->n_rows);
        s.context_max = size_max(s.context_max, span->position + span->n_rows);
        s.is_decode = s.is_decode && span->row == i && span->n_rows == 1;
    }
    if (s.is_decode) {
        s.n_rows = s.n_spans =
            cuda_rows_bucket(step->n_rows, size_min(be->rows_max, STEP_SPANS_MAX));
        s.n_out_rows = step->n_out_rows ? cuda_rows_bucket(step->n_out_rows, be->rows_max) : 0;
        s.context_max = cuda_context_bucket(s.context_max, be->context_max);
    }
    return s;
}

static void rows_fill(uint8_t *t, const struct layout *l, const struct cuda_shape *shape,
                      const struct step *step)
{
    int32_t *bad = (int32_t *)(t + l->bad), *tokens = (int32_t *)(t + l->tokens);
    int32_t *out_rows = (int32_t *)(t + l->out_rows);
    float *margin = (float *)(t + l->margin);

    for (size_t i = 0; i < shape->n_rows; i++) {
        bad[i] = CUDA_NO_BAD_LAYER;
        margin[i] = INFINITY;
        tokens[i] = i < step->n_rows && step->tokens ? step->tokens[i] : 0;
    }
    for (size_t i = 0; i < shape->n_out_rows; i++) {
        out_rows[i] = i < step->n_out_rows ? step->out_rows[i] : 0;
    }
    /* Rows of no sequence, which only tests of single operations have, and rows past the count. */
    memset(t + l->row_span, 0, shape->n_rows * sizeof(int32_t));
    memset(t + l->row_position, 0, shape->n_rows * sizeof(int32_t));
}

/* Fills spans and what rows know of them; returns how many page numbers there are. */
static size_t spans_fill(uint8_t *t, const struct layout *l, const struct cuda_shape *shape,
                         const struct step *step)
{
    struct step_span *spans = (struct step_span *)(t + l->spans);
    int32_t *row_span = (int32_t *)(t + l->row_span);
    int32_t *row_position = (int32_t *)(t + l->row_position);
    int32_t *pages = (int32_t *)(t + l->pages);
    size_t n_pages = 0;

    for (size_t i = 0; i < step->n_spans; i++) {
        const struct span *s = &step->spans[i];
        size_t n = s->pages ? pages_of(s->position + s->n_rows) : 0;

        spans[i] = (struct step_span){.row = (int32_t)s->row,
                                      .n_rows = (int32_t)s->n_rows,
                                      .position = (int32_t)s->position,
                                      .slot = s->slot,
                                      .state_is_zero = s->state_is_zero,
                                      .pages_at = (int32_t)n_pages};
        for (size_t j = 0; j < s->n_rows; j++) {
            row_span[s->row + j] = (int32_t)i;
            row_position[s->row + j] = (int32_t)(s->position + j);
        }
        if (n > 0) {
            memcpy(pages + n_pages, s->pages, n * sizeof *pages);
        }
        n_pages += n;
    }
    for (size_t i = step->n_spans; i < shape->n_spans; i++) {
        spans[i] = (struct step_span){.row = (int32_t)i, .state_is_zero = 1};
    }
    pages[n_pages++] = 0;
    return n_pages;
}

static struct step_view view_of(const struct cuda_backend *be, const struct layout *l,
                                bool has_margin)
{
    const uint8_t *d = (const uint8_t *)(uintptr_t)be->own->device_tables;

    return (struct step_view){.counts = (const int32_t *)(d + l->counts),
                              .tokens = (const int32_t *)(d + l->tokens),
                              .row_span = (const int32_t *)(d + l->row_span),
                              .row_position = (const int32_t *)(d + l->row_position),
                              .out_rows = (const int32_t *)(d + l->out_rows),
                              .spans = (const struct step_span *)(d + l->spans),
                              .pages = (const int32_t *)(d + l->pages),
                              .bad_layer = (int32_t *)(uintptr_t)(d + l->bad),
                              .router_margin =
                                  has_margin ? (float *)(uintptr_t)(d + l->margin) : NULL};
}

/* What the kernels wrote into the tables, to the host. */
static enum status results_fetch(struct cuda_backend *be, struct error *err)
{
    struct cuda_private *own = be->own;
    enum status rc = cuda_offload_join_ahead(be, err);

    if (rc == OK) {
        rc = cuda_result(be,
                         be->drv->memcpy_dtoh_async(own->tables + own->bad_at,
                                                    own->device_tables + own->bad_at,
                                                    own->results_bytes, be->stream),
                         err, "cuMemcpyDtoHAsync of a step's flags");
    }
    return rc == OK ? cuda_wait(be, err) : rc; /* the one place where a step waits for the card */
}

/* The step before failed on the way. Kernels may still read its tables, and experts may have moved. */
static enum status step_abandon(struct cuda_backend *be, struct error *err)
{
    enum status rc = results_fetch(be, err);

    be->own->step_is_open = false;
    if (rc == OK) {
        cuda_offload_end(be, NULL);
    }
    return rc;
}

enum status cuda_step_begin(struct cuda_backend *be, const struct step *step, struct error *err)
{
    struct cuda_private *own = be->own;
    struct layout l;
    size_t n_pages, bytes;
    int32_t *counts;
    enum status rc;

    if (!own->tables) {
        return error_set(err, ERR_INTERNAL, "prepare() comes before a step");
    }
    rc = step_check(be, step, err);
    if (rc == OK && own->step_is_open) {
        rc = step_abandon(be, err);
    }
    if (rc != OK) {
        return rc;
    }
    own->shape = shape_of(be, step);
    own->n_steps++;
    own->step_rows = step->n_rows;
    own->step_out_rows = step->n_out_rows;
    l = layout_of(be, own->shape.n_rows, own->shape.n_out_rows, own->shape.n_spans);
    own->bad_at = l.bad;
    own->margin_at = l.margin;
    own->results_bytes = cuda_offload_log_bytes(be, own->shape.n_rows);
    own->results_bytes += (own->results_bytes    ? l.offload
                           : step->router_margin ? l.margin + step->n_rows * sizeof(float)
                                                 : l.bad + step->n_rows * sizeof(int32_t)) -
                          l.bad;
    own->shape.view = view_of(be, &l, step->router_margin != NULL);
    counts = (int32_t *)(own->tables + l.counts);
    counts[STEP_ROWS] = (int32_t)step->n_rows;
    counts[STEP_OUT_ROWS] = (int32_t)step->n_out_rows;
    counts[STEP_SPANS] = (int32_t)step->n_spans;
    rows_fill(own->tables, &l, &own->shape, step);
    n_pages = spans_fill(own->tables, &l, &own->shape, step);
    cuda_offload_begin(be, l.offload);
    bytes = l.pages + n_pages * sizeof(int32_t);
    rc = cuda_result(be,
                     be->drv->memcpy_htod_async(own->device_tables, own->tables, bytes, be->stream),
                     err, "cuMemcpyHtoDAsync of a step's tables, %zu bytes", bytes);
    if (rc == OK) {
        rc = cuda_forced_begin(be, &own->shape, step, err);
    }
    own->step_is_open = rc == OK;
    return rc;
}

/* ---- after ---- */

enum status cuda_step_end(struct cuda_backend *be, const struct step *step, struct error *err)
{
    struct cuda_private *own = be->own;
    const int32_t *bad = (const int32_t *)(own->tables + own->bad_at);
    enum status rc;

    if (!own->step_is_open) {
        return error_set(err, ERR_INTERNAL, "a step ends that has not begun");
    }
    rc = results_fetch(be, err);
    own->step_is_open = false;
    if (rc == OK) {
        rc = cuda_offload_end(be, err);
    }
    for (size_t i = 0; rc == OK && step->bad_layer && i < step->n_rows; i++) {
        if (bad[i] != CUDA_NO_BAD_LAYER) {
            step->bad_layer[i] = (int16_t)bad[i];
        }
    }
    if (rc == OK && step->router_margin) {
        memcpy(step->router_margin, own->tables + own->margin_at, step->n_rows * sizeof(float));
    }
    return rc;
}
