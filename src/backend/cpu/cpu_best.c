/* cpu_best.c - where each row's largest value is: the last thing that is done with logits.
 *
 * Place: backend/cpu. Rows are cut into pieces, so that one row of 248,320 keeps all threads busy; then
 *        the pieces of a row are compared, in order. */
#include <math.h>

#include "backend/cpu/cpu_internal.h"
#include "base/floats.h"
#include "base/size.h"

enum { PIECE_COLS = 8192 };

struct piece {     /* in the shared scratch */
    float value;   /* the largest; NaN: one is not finite */
    int32_t place; /* its column */
};

static size_t pieces_of(size_t cols)
{
    return (cols + PIECE_COLS - 1) / PIECE_COLS;
}

static enum status best_check(struct cpu_backend *be, struct op *op, struct error *err)
{
    const struct op_best *u = &op->u.best;
    enum status rc = cpu_check_exact(op, "the input", &u->in, u->in.cols, err);

    (void)be;
    if (rc == OK && (u->in.cols == 0 || u->in.cols > INT32_MAX)) {
        rc = cpu_refuse(err, op, "rows of %zu values", u->in.cols);
    }
    if (rc == OK && (!u->out.data || u->out.dtype != DTYPE_I32 || u->out.cols != 1)) {
        rc = cpu_refuse(err, op, "the result needs an int32 buffer of one column");
    }
    op->kernel = rc == OK ? "best" : NULL;
    return rc;
}

static void best_need(const struct cpu_backend *be, const struct op *op, size_t rows_max,
                      struct cpu_need *need)
{
    (void)be;
    need->shared = cpu_times(cpu_times(rows_max, pieces_of(op->u.best.in.cols)),
                             sizeof(struct piece) / sizeof(float));
}

struct best_run {
    const struct op_best *u;
    struct piece *pieces; /* [rows][n_pieces] */
    size_t n_pieces;
};

static void best_range(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct best_run *r = ctx;
    size_t cols = r->u->in.cols;

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        size_t first = i % r->n_pieces * PIECE_COLS, n = size_min(PIECE_COLS, cols - first);
        const float *x = (const float *)r->u->in.data + i / r->n_pieces * cols + first;
        size_t at = floats_argmax(x, n);

        r->pieces[i].place = (int32_t)(first + at);
        r->pieces[i].value = floats_are_finite(x, n) ? x[at] : NAN;
    }
}

static enum status best_run(struct cpu_backend *be, const struct op *op, const struct step *step,
                            const struct state_pools *state, struct error *err)
{
    const struct op_best *u = &op->u.best;
    size_t n_rows = cpu_op_rows(op, step), n_pieces = pieces_of(u->in.cols);
    struct best_run r = {u, (struct piece *)(void *)be->shared, n_pieces};

    (void)state;
    (void)err;
    cpu_parallel(be, n_rows * n_pieces, 1, n_rows * u->in.cols, best_range, &r);
    for (size_t i = 0; i < n_rows; i++) {
        const struct piece *p = r.pieces + i * n_pieces;
        size_t best = 0;
        bool is_finite = true;

        for (size_t j = 0; j < n_pieces; j++) {
            is_finite = is_finite && !isnan(p[j].value);
            best = p[j].value > p[best].value ? j : best;
        }
        ((int32_t *)u->out.data)[i] = is_finite ? p[best].place : -1;
    }
    return OK;
}

const struct cpu_family cpu_best = {best_check, best_need, best_run};
