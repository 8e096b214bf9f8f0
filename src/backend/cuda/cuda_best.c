/* cuda_best.c - each row's largest values and where they are: two launches for up to 64 rows.
 *
 * Place: backend/cuda; kernels/best.cu. */
#include "backend/cuda/cuda_internal.h"
#include "backend/cuda/kernels/best_args.h"
#include "base/size.h"

enum { KERNEL_CLASSES, KERNEL_ROWS, KERNELS };

_Static_assert((int)BEST_KEPT == (int)BEST_TOP && BEST_PIECES * BEST_CLASSES == BEST_THREADS,
               "of a row; a thread for each class");

static const char *const kernels[KERNELS] = {"best_classes", "best_rows"};

static enum status best_check(struct cuda_backend *be, struct op *op, struct error *err)
{
    const struct op_best *u = &op->u.best;
    enum status rc = cuda_check_exact(op, "the input", &u->in, u->in.cols, err);

    (void)be;
    if (rc == OK && (u->in.cols == 0 || u->in.cols > BEST_COLS_MAX)) {
        rc = cuda_refuse(err, op, "rows of %zu values", u->in.cols);
    }
    if (rc == OK && (!u->out.data || u->out.dtype != DTYPE_I32 || u->out.cols != 2 * BEST_TOP)) {
        rc = cuda_refuse(err, op, "the result needs an int32 buffer of %d columns", 2 * BEST_TOP);
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
    need->scratch_bytes = size_min(be->rows_max, BEST_ROWS) * sizeof(struct best_scratch);
    return OK;
}

static enum status best_run(struct cuda_backend *be, const struct op *op, void *data,
                            const struct cuda_shape *shape, const struct state_pools *state,
                            struct error *err)
{
    const struct op_best *u = &op->u.best;
    size_t n_rows = cuda_op_rows(op, shape);
    struct best_args args = {
        .view = shape->view,
        .in = u->in.data,
        .scratch = be->scratch,
        .out = u->out.data,
        .cols = (int32_t)u->in.cols,
        .n_lines = (int32_t)((u->in.cols + BEST_LINE - 1) / BEST_LINE),
        .is_wide = cuda_is_aligned(u->in.data) && u->in.cols % 4 == 0,
        .count = op->rows == ROWS_OUT ? STEP_OUT_ROWS : STEP_ROWS,
    };
    enum status rc = OK;

    (void)data;
    (void)state;
    for (size_t at = 0; rc == OK && at < n_rows; at += BEST_ROWS) {
        struct cuda_grid grid = {.x = BEST_PIECES,
                                 .y = (unsigned)size_min(BEST_ROWS, n_rows - at),
                                 .threads = BEST_THREADS};

        args.row = (int32_t)at;
        rc = cuda_launch(be, &cuda_best, KERNEL_CLASSES, grid, &args, err);
        if (rc == OK) {
            rc = cuda_launch(be, &cuda_best, KERNEL_ROWS, grid, &args, err);
        }
    }
    return rc;
}

const struct cuda_family cuda_best = {.kernels = kernels,
                                      .n_kernels = KERNELS,
                                      .check = best_check,
                                      .prepare = best_prepare,
                                      .run = best_run};
