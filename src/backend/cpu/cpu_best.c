/* cpu_best.c - each row's largest values and where they are: the last thing that is done with logits.
 *
 * Place: backend/cpu.
 * Idea:  one pass finds the largest of each block of a row, and whether all are finite; it is cut into
 *        pieces, so that one row of 248,320 keeps all threads busy. The n-th largest of these is not above
 *        the n-th largest of the row. So the second pass looks into the few blocks that reach it alone. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu_internal.h"
#include "base/floats.h"
#include "base/size.h"

enum {
    BLOCK_COLS = 512, /* at most */
    BLOCKS = 512,     /* of a row, about */
    PIECE_BLOCKS = 16,
    ROWS_AT_ONCE = 16, /* bounds the scratch */
    STRIDE = 16        /* values that are compared before anything is decided */
};

_Static_assert(sizeof(struct best_row) == 2 * BEST_TOP * sizeof(int32_t), "a row is words");

/* Small enough that far more blocks than BEST_TOP cut a row, and not smaller than one pass. */
static size_t block_cols_of(size_t cols)
{
    size_t n = 2 * STRIDE;

    while (n < BLOCK_COLS && cols > n * BLOCKS) {
        n *= 2;
    }
    return n;
}

static size_t blocks_of(size_t cols)
{
    size_t block_cols = block_cols_of(cols);

    return (cols + block_cols - 1) / block_cols;
}

static enum status best_check(struct cpu_backend *be, struct op *op, struct error *err)
{
    const struct op_best *u = &op->u.best;
    enum status rc = cpu_check_exact(op, "the input", &u->in, u->in.cols, err);

    (void)be;
    if (rc == OK && (u->in.cols == 0 || u->in.cols > INT32_MAX)) {
        rc = cpu_refuse(err, op, "rows of %zu values", u->in.cols);
    }
    if (rc == OK && (!u->out.data || u->out.dtype != DTYPE_I32 || u->out.cols != 2 * BEST_TOP)) {
        rc = cpu_refuse(err, op, "the result needs an int32 buffer of %d columns", 2 * BEST_TOP);
    }
    op->kernel = rc == OK ? "best" : NULL;
    return rc;
}

static void best_need(const struct cpu_backend *be, const struct op *op, size_t rows_max,
                      struct cpu_need *need)
{
    (void)be;
    need->shared = cpu_times(size_min(rows_max, ROWS_AT_ONCE), blocks_of(op->u.best.in.cols));
}

struct best_run {
    const float *in;                 /* [rows][cols] */
    struct best_row *out;            /* [rows] */
    float *largest;                  /* [rows][n_blocks]; NaN: one is not finite */
    size_t cols, n_blocks, n_pieces; /* of a row */
    size_t block_cols;
};

/* ---- first pass ---- */

static void blocks_range(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct best_run *r = ctx;

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        size_t row = i / r->n_pieces, first = i % r->n_pieces * PIECE_BLOCKS;
        size_t last = size_min(first + PIECE_BLOCKS, r->n_blocks);

        for (size_t b = first; b < last; b++) {
            size_t at = b * r->block_cols, n = size_min(r->block_cols, r->cols - at);
            const float *x = r->in + row * r->cols + at;

            r->largest[row * r->n_blocks + b] = floats_are_finite(x, n) ? floats_max(x, n) : NAN;
        }
    }
}

/* ---- second pass ---- */

/* Puts a value in its place among the n largest so far. Ids come in rising order, so a later one goes behind
 * its equals. */
static size_t top_note(struct best_row *top, size_t n, float value, int32_t id)
{
    size_t at = n;

    while (at > 0 && value > top->values[at - 1]) {
        at--;
    }
    if (at == BEST_TOP) {
        return n;
    }
    n = size_min(n + 1, BEST_TOP);
    memmove(top->values + at + 1, top->values + at, (n - 1 - at) * sizeof *top->values);
    memmove(top->ids + at + 1, top->ids + at, (n - 1 - at) * sizeof *top->ids);
    top->values[at] = value + 0.0f; /* no -0 */
    top->ids[at] = id;
    return n;
}

static bool any_reaches(const float *x, float least)
{
    int32_t n = 0;

    for (size_t i = 0; i < STRIDE; i++) {
        n += x[i] >= least;
    }
    return n > 0;
}

static size_t top_of_block(struct best_row *top, size_t n, const float *x, size_t n_cols,
                           int32_t first, float least)
{
    for (size_t at = 0; at < n_cols; at += STRIDE) {
        size_t end = size_min(at + STRIDE, n_cols);

        least = n == BEST_TOP ? fmaxf(least, top->values[BEST_TOP - 1]) : least;
        if (end == at + STRIDE && !any_reaches(x + at, least)) {
            continue;
        }
        for (size_t i = at; i < end; i++) {
            if (x[i] >= least) {
                n = top_note(top, n, x[i], first + (int32_t)i);
            }
        }
    }
    return n;
}

static void top_of_row(struct best_row *top, const float *x, const float *largest,
                       const struct best_run *r)
{
    float least = -INFINITY;
    bool is_finite = true;
    size_t n = 0;

    for (size_t b = 0; b < r->n_blocks; b++) {
        is_finite = is_finite && !isnan(largest[b]);
        n = is_finite ? top_note(top, n, largest[b], 0) : 0;
    }
    least = n == BEST_TOP ? top->values[BEST_TOP - 1] : least;
    n = 0;
    for (size_t b = 0; is_finite && b < r->n_blocks; b++) {
        size_t at = b * r->block_cols;

        if (largest[b] >= least) {
            n = top_of_block(top, n, x + at, size_min(r->block_cols, r->cols - at), (int32_t)at,
                             least);
        }
    }
    for (; n < BEST_TOP; n++) {
        top->ids[n] = -1;
        top->values[n] = -INFINITY;
    }
}

static void rows_range(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct best_run *r = ctx;

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        top_of_row(r->out + i, r->in + i * r->cols, r->largest + i * r->n_blocks, r);
    }
}

static enum status best_run(struct cpu_backend *be, const struct op *op, const struct step *step,
                            const struct state_pools *state, struct error *err)
{
    const struct op_best *u = &op->u.best;
    size_t n_rows = cpu_op_rows(op, step), cols = u->in.cols, n_blocks = blocks_of(cols);
    size_t n_pieces = (n_blocks + PIECE_BLOCKS - 1) / PIECE_BLOCKS;

    (void)state;
    (void)err;
    for (size_t at = 0; at < n_rows; at += ROWS_AT_ONCE) {
        size_t n = size_min(ROWS_AT_ONCE, n_rows - at);
        struct best_run r = {.in = (const float *)u->in.data + at * cols,
                             .out = (struct best_row *)u->out.data + at,
                             .largest = be->shared,
                             .cols = cols,
                             .block_cols = block_cols_of(cols),
                             .n_blocks = n_blocks,
                             .n_pieces = n_pieces};

        cpu_parallel(be, n * n_pieces, 1, n * cols, blocks_range, &r);
        cpu_parallel(be, n, 1, n > 1 ? n * cols / 4 : 1, rows_range, &r);
    }
    return OK;
}

const struct cpu_family cpu_best = {best_check, best_need, best_run};
