/* cuda_rows.c - the ops that treat each row by itself: embedding, norm, swiglu, residual sums, checks,
 * gather.
 *
 * Place: backend/cuda; the kernels are in kernels/rows.cu. Refuses what the CPU refuses. Any number of
 *        columns works; with rows at 16-byte borders (is_wide) a thread moves 16 bytes at a time. */
#include "backend/cuda/cuda_internal.h"
#include "backend/cuda/kernels/rows_args.h"
#include "base/size.h"

enum { WIDE_BYTES = 16, WIDE_COLS = 4, WARP_THREADS = 32 };

static enum step_count count_of(const struct op *op)
{
    return op->rows == ROWS_OUT ? STEP_OUT_ROWS : STEP_ROWS;
}

/* A thread per four columns of a row. */
static struct cuda_grid grid_of(const struct op *op, const struct cuda_shape *shape, size_t cols)
{
    size_t quads = (cols + WIDE_COLS - 1) / WIDE_COLS;
    size_t warps = (quads + WARP_THREADS - 1) / WARP_THREADS;
    size_t threads = size_min(warps * WARP_THREADS, ROWS_THREADS_MAX);

    return (struct cuda_grid){.x = (unsigned)cuda_op_rows(op, shape),
                              .y = (unsigned)((quads + threads - 1) / threads),
                              .threads = (unsigned)threads};
}

/* Kernels count columns in int32. */
static enum status check_cols(const struct op *op, size_t cols, struct error *err)
{
    return cols <= INT32_MAX / 2 ? OK : cuda_refuse(err, op, "%zu columns are too many", cols);
}

/* --- embedding --- */

static enum status embed_check(struct cuda_backend *be, struct op *op, struct error *err)
{
    const struct op_embed *u = &op->u.embed;
    enum status rc = OK;

    (void)be;
    if (op->rows != ROWS_ALL) {
        return cuda_refuse(err, op, "works on all rows of a step only");
    }
    rc = cuda_check_operand(op, "the output", &u->out, u->out.cols, err);
    if (rc == OK) {
        rc = cuda_check_weight(op, "the table", &u->table, u->out.cols, err);
    }
    if (rc == OK && u->table.kind != WEIGHT_DENSE) {
        rc = cuda_refuse(err, op, "the table is %s, not dense", weight_kind_name(&u->table));
    }
    if (rc == OK && u->table.n_out > INT32_MAX) {
        rc = cuda_refuse(err, op, "%zu tokens are too many", u->table.n_out);
    }
    if (rc == OK) {
        rc = check_cols(op, u->out.cols, err);
    }
    if (rc == OK) {
        op->kernel = u->table.dtype == DTYPE_F32    ? "embed f32 cuda"
                     : u->table.dtype == DTYPE_BF16 ? "embed bf16 cuda"
                                                    : "embed f16 cuda";
    }
    return rc;
}

static enum status embed_run(struct cuda_backend *be, const struct op *op, void *data,
                             const struct cuda_shape *shape, const struct state_pools *state,
                             struct error *err)
{
    const struct op_embed *u = &op->u.embed;
    struct embed_args args = {
        .view = shape->view,
        .table = u->table.data,
        .out = u->out.data,
        .n_tokens = (int32_t)u->table.n_out,
        .cols = (int32_t)u->out.cols,
        .dtype = u->table.dtype,
        .round = u->out.round,
        .is_wide = u->out.cols % WIDE_COLS == 0 && cuda_is_aligned(u->table.data) &&
                   cuda_is_aligned(u->out.data),
    };

    (void)data;
    (void)state;
    return cuda_launch(be, &cuda_embed, 0, grid_of(op, shape, u->out.cols), &args, err);
}

/* --- norm --- */

static enum status norm_check(struct cuda_backend *be, struct op *op, struct error *err)
{
    const struct op_norm *u = &op->u.norm;
    enum status rc = cuda_check_operand(op, "the input", &u->in, u->in.cols, err);

    (void)be;
    if (rc == OK) {
        rc = cuda_check_operand(op, "the output", &u->out, u->in.cols, err);
    }
    if (rc == OK && !u->weight) {
        rc = cuda_refuse(err, op, "it has no weight");
    }
    if (rc == OK) {
        rc = check_cols(op, u->in.cols, err);
    }
    op->kernel = rc == OK ? "norm cuda" : NULL;
    return rc;
}

static enum status norm_run(struct cuda_backend *be, const struct op *op, void *data,
                            const struct cuda_shape *shape, const struct state_pools *state,
                            struct error *err)
{
    const struct op_norm *u = &op->u.norm;
    struct cuda_grid grid = {.x = (unsigned)cuda_op_rows(op, shape), .threads = NORM_THREADS};
    struct norm_args args = {
        .view = shape->view,
        .count = count_of(op),
        .in = u->in.data,
        .weight = u->weight,
        .out = u->out.data,
        .cols = (int32_t)u->in.cols,
        .eps = u->eps,
        .round = u->out.round,
        .is_wide = u->in.cols % WIDE_COLS == 0 && cuda_is_aligned(u->in.data) &&
                   cuda_is_aligned(u->weight) && cuda_is_aligned(u->out.data),
    };

    (void)data;
    (void)state;
    return cuda_launch(be, &cuda_norm, 0, grid, &args, err);
}

/* --- swiglu --- */

static enum status swiglu_check(struct cuda_backend *be, struct op *op, struct error *err)
{
    const struct op_swiglu *u = &op->u.swiglu;
    enum status rc = cuda_check_operand(op, "the gate", &u->gate, u->gate.cols, err);

    (void)be;
    if (rc == OK) {
        rc = cuda_check_operand(op, "the up projection", &u->up, u->gate.cols, err);
    }
    if (rc == OK) {
        rc = cuda_check_operand(op, "the output", &u->out, u->gate.cols, err);
    }
    if (rc == OK) {
        rc = check_cols(op, u->gate.cols, err);
    }
    op->kernel = rc == OK ? "swiglu cuda" : NULL;
    return rc;
}

static enum status swiglu_run(struct cuda_backend *be, const struct op *op, void *data,
                              const struct cuda_shape *shape, const struct state_pools *state,
                              struct error *err)
{
    const struct op_swiglu *u = &op->u.swiglu;
    struct swiglu_args args = {
        .view = shape->view,
        .count = count_of(op),
        .gate = u->gate.data,
        .up = u->up.data,
        .out = u->out.data,
        .cols = (int32_t)u->gate.cols,
        .round = u->out.round,
        .is_wide = u->gate.cols % WIDE_COLS == 0 && cuda_is_aligned(u->gate.data) &&
                   cuda_is_aligned(u->up.data) && cuda_is_aligned(u->out.data),
    };

    (void)data;
    (void)state;
    return cuda_launch(be, &cuda_swiglu, 0, grid_of(op, shape, u->gate.cols), &args, err);
}

/* --- residual sums --- */

static enum status add_shared_check(struct cuda_backend *be, struct op *op, struct error *err)
{
    const struct op_add_shared *u = &op->u.add_shared;
    enum status rc = cuda_check_exact(op, "the residual", &u->x, u->x.cols, err);

    (void)be;
    if (rc == OK) {
        rc = cuda_check_operand(op, "the routed sum", &u->routed, u->x.cols, err);
    }
    if (rc == OK && u->shared.cols) {
        rc = cuda_check_operand(op, "the shared expert", &u->shared, u->x.cols, err);
    }
    if (rc == OK && u->gate.cols) {
        rc = cuda_check_operand(op, "the shared gate", &u->gate, 1, err);
    }
    if (rc == OK && u->gate.cols && !u->shared.cols) {
        rc = cuda_refuse(err, op, "a gate without a shared expert");
    }
    if (rc == OK) {
        rc = check_cols(op, u->x.cols, err);
    }
    op->kernel = rc == OK ? "add_shared cuda" : NULL;
    return rc;
}

static enum status add_shared_run(struct cuda_backend *be, const struct op *op, void *data,
                                  const struct cuda_shape *shape, const struct state_pools *state,
                                  struct error *err)
{
    const struct op_add_shared *u = &op->u.add_shared;
    struct add_shared_args args = {
        .view = shape->view,
        .count = count_of(op),
        .x = u->x.data,
        .routed = u->routed.data,
        .shared = u->shared.cols ? u->shared.data : NULL,
        .gate = u->gate.cols ? u->gate.data : NULL,
        .cols = (int32_t)u->x.cols,
    };

    (void)data;
    (void)state;
    args.is_wide = u->x.cols % WIDE_COLS == 0 && cuda_is_aligned(args.x) &&
                   cuda_is_aligned(args.routed) && cuda_is_aligned(args.shared);
    return cuda_launch(be, &cuda_add_shared, 0, grid_of(op, shape, u->x.cols), &args, err);
}

/* --- check --- */

static enum status finite_check(struct cuda_backend *be, struct op *op, struct error *err)
{
    const struct operand *x = &op->u.check.x;
    enum status rc = cuda_check_operand(op, "the input", x, x->cols, err);

    (void)be;
    if (rc == OK && op->layer < 0) {
        rc = cuda_refuse(err, op, "a layer is needed to report");
    }
    if (rc == OK) {
        rc = check_cols(op, x->cols, err);
    }
    op->kernel = rc == OK ? "check cuda" : NULL;
    return rc;
}

static enum status finite_run(struct cuda_backend *be, const struct op *op, void *data,
                              const struct cuda_shape *shape, const struct state_pools *state,
                              struct error *err)
{
    const struct operand *x = &op->u.check.x;
    struct check_args args = {
        .view = shape->view,
        .count = count_of(op),
        .x = x->data,
        .cols = (int32_t)x->cols,
        .layer = op->layer,
        .is_wide = x->cols % WIDE_COLS == 0 && cuda_is_aligned(x->data),
    };

    (void)data;
    (void)state;
    return cuda_launch(be, &cuda_rows_check, 0, grid_of(op, shape, x->cols), &args, err);
}

/* --- gather --- */

static enum status gather_check(struct cuda_backend *be, struct op *op, struct error *err)
{
    const struct op_gather *u = &op->u.gather;
    enum status rc = OK;

    (void)be;
    if (op->rows != ROWS_OUT) {
        return cuda_refuse(err, op, "it makes the logit rows, so it works on those");
    }
    rc = cuda_check_operand(op, "the input", &u->in, u->in.cols, err);
    if (rc == OK) {
        rc = cuda_check_operand(op, "the output", &u->out, u->in.cols, err);
    }
    if (rc == OK && u->in.data == u->out.data) {
        rc = cuda_refuse(err, op, "the output overlaps the input");
    }
    if (rc == OK) {
        rc = check_cols(op, u->in.cols, err);
    }
    op->kernel = rc == OK ? "gather cuda" : NULL;
    return rc;
}

static enum status gather_run(struct cuda_backend *be, const struct op *op, void *data,
                              const struct cuda_shape *shape, const struct state_pools *state,
                              struct error *err)
{
    const struct op_gather *u = &op->u.gather;
    struct gather_args args = {
        .view = shape->view,
        .in = u->in.data,
        .out = u->out.data,
        .cols = (int32_t)u->in.cols,
        .round = u->out.round,
        .is_wide = u->in.cols % WIDE_COLS == 0 && cuda_is_aligned(u->in.data) &&
                   cuda_is_aligned(u->out.data),
    };

    (void)data;
    (void)state;
    return cuda_launch(be, &cuda_gather, 0, grid_of(op, shape, u->in.cols), &args, err);
}

/* A family of one kernel. */
#define ROWS_FAMILY(family, kernel, check_fn, run_fn)                                              \
    static const char *const kernel##_names[] = {#kernel};                                         \
    const struct cuda_family family = {                                                            \
        .kernels = kernel##_names, .n_kernels = 1, .check = check_fn, .run = run_fn}

ROWS_FAMILY(cuda_embed, embed_rows, embed_check, embed_run);
ROWS_FAMILY(cuda_norm, norm_rows, norm_check, norm_run);
ROWS_FAMILY(cuda_swiglu, swiglu_rows, swiglu_check, swiglu_run);
ROWS_FAMILY(cuda_add_shared, add_shared_rows, add_shared_check, add_shared_run);
ROWS_FAMILY(cuda_rows_check, check_rows, finite_check, finite_run);
ROWS_FAMILY(cuda_gather, gather_rows, gather_check, gather_run);
