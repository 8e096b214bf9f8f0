/* cuda_best.c - where each row's largest value is: two launches, pieces of rows and then rows.
 *
 * Place: backend/cuda; kernels/best.cu. */
#include "backend/cuda/cuda_internal.h"
#include "backend/cuda/kernels/best_args.h"
#include "base/size.h"

enum { KERNEL_PIECES, KERNEL_ROWS, KERNELS };

static const char *const kernels[KERNELS] = {"best_pieces", "best_rows"};

static enum status best_check(struct cuda_backend *be, struct op *op, struct error *err)
{
    const struct op_best *u = &op->u.best;
    enum status rc = cuda_check_exact(op, "the input", &u->in, u->in.cols, err);

    (void)be;
    if (rc == OK && (u->in.cols == 0 || u->in.cols > INT32_MAX)) {
        rc = cuda_refuse(err, op, "rows of %zu values", u->in.cols);
    }
    if (rc == OK && (!u->out.data || u->out.dtype != DTYPE_I32 || u->out.cols != 1)) {
        rc = cuda_refuse(err, op, "the result needs an int32 buffer of one column");
    }
    op->kernel = rc == OK ? "best cuda" : NULL;
    return rc;
}

static enum status best_prepare(struct cuda_backend *be, const struct op *op,
                                struct cuda_need *need, void **data, struct error *err)
{
    (void)op;
    (void)data;
    (void)err;
    need->scratch_bytes = be->rows_max * BEST_PIECES * sizeof(struct best_piece);
    return OK;
}

static enum status best_run(struct cuda_backend *be, const struct op *op, void *data,
                            const struct cuda_shape *shape, const struct state_pools *state,
                            struct error *err)
{
    const struct op_best *u = &op->u.best;
    size_t n_rows = cuda_op_rows(op, shape), piece = (u->in.cols + BEST_PIECES - 1) / BEST_PIECES;
    struct best_args args = {
        .view = shape->view,
        .in = u->in.data,
        .pieces = be->scratch,
        .out = u->out.data,
        .cols = (int32_t)u->in.cols,
        .piece_cols = (int32_t)piece,
        .count = op->rows == ROWS_OUT ? STEP_OUT_ROWS : STEP_ROWS,
    };
    enum status rc = OK;

    (void)data;
    (void)state;
    rc = cuda_launch(
        be, &cuda_best, KERNEL_PIECES,
        (struct cuda_grid){.x = BEST_PIECES, .y = (unsigned)n_rows, .threads = BEST_THREADS}, &args,
        err);
    return rc != OK
               ? rc
               : cuda_launch(be, &cuda_best, KERNEL_ROWS,
                             (struct cuda_grid){.x = (unsigned)n_rows, .threads = 32}, &args, err);
}

const struct cuda_family cuda_best = {.kernels = kernels,
                                      .n_kernels = KERNELS,
                                      .check = best_check,
                                      .prepare = best_prepare,
                                      .run = best_run};
