/* cpu_rows.c - the ops that treat each row by itself: embedding, norm, swiglu, residual sums, checks.
 *
 * Place: backend/cpu. Rows are split over the threads; a row never spans two of them, except in
 *        swiglu, whose elements are all independent. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu_internal.h"

struct rows_run {
    const struct cpu_backend *be;
    const struct op *op;
    const struct step *step;
};

static void run_rows(struct cpu_backend *be, const struct op *op, const struct step *step,
                     size_t work_per_row, pool_fn *fn)
{
    struct rows_run r = {be, op, step};
    size_t n = cpu_op_rows(op, step);

    cpu_parallel(be, n, 1, n * work_per_row, fn, &r);
}

/* --- embedding --- */

static enum status embed_check(struct cpu_backend *be, struct op *op, struct error *err)
{
    const struct op_embed *u = &op->u.embed;
    enum status rc = cpu_check_all_rows(op, err);

    if (rc == OK) {
        rc = cpu_check_operand(op, "the output", &u->out, u->out.cols, err);
    }
    if (rc == OK) {
        rc = cpu_check_weight(op, "the table", &u->table, u->out.cols, err);
    }
    if (rc == OK && u->table.kind != WEIGHT_DENSE) {
        rc = cpu_refuse(err, op, "the table is %s, not dense", weight_kind_name(&u->table));
    }
    op->kernel = rc == OK ? cpu_kernel_name(be, "embed", &u->table) : NULL;
    return rc;
}

static void embed_range(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct rows_run *r = ctx;
    const struct op_embed *u = &r->op->u.embed;
    size_t row_bytes = weight_row_bytes(&u->table);

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        const uint8_t *row =
            (const uint8_t *)u->table.data + (size_t)r->step->tokens[i] * row_bytes;
        float *out = (float *)u->out.data + i * u->out.cols;

        r->be->kernels->load(out, u->table.dtype, row, u->out.cols);
        r->be->kernels->round(u->out.round, out, u->out.cols);
    }
}

static enum status embed_run(struct cpu_backend *be, const struct op *op, const struct step *step,
                             const struct state_pools *state, struct error *err)
{
    const struct op_embed *u = &op->u.embed;

    (void)state;
    for (size_t i = 0; i < step->n_rows; i++) {
        if (step->tokens[i] < 0 || (size_t)step->tokens[i] >= u->table.n_out) {
            return cpu_broken(err, op, "a token is not in the table");
        }
    }
    run_rows(be, op, step, u->out.cols, embed_range);
    return OK;
}

/* --- norm --- */

static enum status norm_check(struct cpu_backend *be, struct op *op, struct error *err)
{
    const struct op_norm *u = &op->u.norm;
    enum status rc = cpu_check_operand(op, "the input", &u->in, u->in.cols, err);

    if (rc == OK) {
        rc = cpu_check_operand(op, "the output", &u->out, u->in.cols, err);
    }
    if (rc == OK && !u->weight) {
        rc = cpu_refuse(err, op, "it has no weight");
    }
    op->kernel = rc == OK ? cpu_isa_name(be, CPU_NAMES("norm")) : NULL;
    return rc;
}

static void norm_range(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct rows_run *r = ctx;
    const struct op_norm *u = &r->op->u.norm;
    size_t n = u->in.cols;

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        float *out = (float *)u->out.data + i * n;

        r->be->kernels->norm(out, (const float *)u->in.data + i * n, u->weight, n, u->eps);
        r->be->kernels->round(u->out.round, out, n);
    }
}

static enum status norm_run(struct cpu_backend *be, const struct op *op, const struct step *step,
                            const struct state_pools *state, struct error *err)
{
    (void)state;
    (void)err;
    run_rows(be, op, step, 2 * op->u.norm.in.cols, norm_range);
    return OK;
}

/* --- swiglu --- */

static enum status swiglu_check(struct cpu_backend *be, struct op *op, struct error *err)
{
    const struct op_swiglu *u = &op->u.swiglu;
    enum status rc = cpu_check_operand(op, "the gate", &u->gate, u->gate.cols, err);

    if (rc == OK) {
        rc = cpu_check_operand(op, "the up projection", &u->up, u->gate.cols, err);
    }
    if (rc == OK) {
        rc = cpu_check_operand(op, "the output", &u->out, u->gate.cols, err);
    }
    op->kernel = rc == OK ? cpu_isa_name(be, CPU_NAMES("swiglu")) : NULL;
    return rc;
}

static void swiglu_range(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct rows_run *r = ctx;
    const struct op_swiglu *u = &r->op->u.swiglu;
    float *out = (float *)u->out.data + begin;

    (void)thread;
    r->be->kernels->swiglu(out, (const float *)u->gate.data + begin,
                           (const float *)u->up.data + begin, end - begin);
    r->be->kernels->round(u->out.round, out, end - begin);
}

static enum status swiglu_run(struct cpu_backend *be, const struct op *op, const struct step *step,
                              const struct state_pools *state, struct error *err)
{
    struct rows_run r = {be, op, step};
    size_t n = cpu_op_rows(op, step) * op->u.swiglu.gate.cols;

    (void)state;
    (void)err;
    cpu_parallel(be, n, 64, 8 * n, swiglu_range, &r);
    return OK;
}

/* --- residual sums --- */

static enum status add_shared_check(struct cpu_backend *be, struct op *op, struct error *err)
{
    const struct op_add_shared *u = &op->u.add_shared;
    enum status rc = cpu_check_exact(op, "the residual", &u->x, u->x.cols, err);

    if (rc == OK) {
        rc = cpu_check_operand(op, "the routed sum", &u->routed, u->x.cols, err);
    }
    if (rc == OK && u->shared.cols) {
        rc = cpu_check_operand(op, "the shared expert", &u->shared, u->x.cols, err);
    }
    if (rc == OK && u->gate.cols) {
        rc = cpu_check_operand(op, "the shared gate", &u->gate, 1, err);
    }
    if (rc == OK && u->gate.cols && !u->shared.cols) {
        rc = cpu_refuse(err, op, "a gate without a shared expert");
    }
    op->kernel = rc == OK ? cpu_isa_name(be, CPU_NAMES("add_shared")) : NULL;
    return rc;
}

static void add_shared_range(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct rows_run *r = ctx;
    const struct op_add_shared *u = &r->op->u.add_shared;
    size_t n = u->x.cols;

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        float *x = (float *)u->x.data + i * n;

        r->be->kernels->axpy(x, 1.0f, (const float *)u->routed.data + i * n, n);
        if (u->shared.cols) {
            float share = 1.0f;

            if (u->gate.cols) {
                share = 1.0f / (1.0f + expf(-((const float *)u->gate.data)[i]));
            }
            r->be->kernels->axpy(x, share, (const float *)u->shared.data + i * n, n);
        }
    }
}

static enum status add_shared_run(struct cpu_backend *be, const struct op *op,
                                  const struct step *step, const struct state_pools *state,
                                  struct error *err)
{
    (void)state;
    (void)err;
    run_rows(be, op, step, 2 * op->u.add_shared.x.cols, add_shared_range);
    return OK;
}

/* --- check --- */

static enum status finite_check(struct cpu_backend *be, struct op *op, struct error *err)
{
    enum status rc = cpu_check_operand(op, "the input", &op->u.check.x, op->u.check.x.cols, err);

    if (rc == OK && op->layer < 0) {
        rc = cpu_refuse(err, op, "a layer is needed to report");
    }
    op->kernel = rc == OK ? cpu_isa_name(be, CPU_NAMES("check")) : NULL;
    return rc;
}

static void finite_range(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct rows_run *r = ctx;
    const struct operand *x = &r->op->u.check.x;

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        size_t row = r->op->rows == ROWS_OUT ? (size_t)r->step->out_rows[i] : i;

        if (r->step->bad_layer[row] < 0 &&
            !r->be->kernels->all_finite((const float *)x->data + i * x->cols, x->cols)) {
            r->step->bad_layer[row] = r->op->layer;
        }
    }
}

static enum status finite_run(struct cpu_backend *be, const struct op *op, const struct step *step,
                              const struct state_pools *state, struct error *err)
{
    (void)state;
    (void)err;
    run_rows(be, op, step, op->u.check.x.cols, finite_range);
    return OK;
}

/* --- gather --- */

static enum status gather_check(struct cpu_backend *be, struct op *op, struct error *err)
{
    const struct op_gather *u = &op->u.gather;
    enum status rc = OK;

    (void)be;
    if (op->rows != ROWS_OUT) {
        return cpu_refuse(err, op, "it makes the logit rows, so it works on those");
    }
    rc = cpu_check_operand(op, "the input", &u->in, u->in.cols, err);
    if (rc == OK) {
        rc = cpu_check_operand(op, "the output", &u->out, u->in.cols, err);
    }
    if (rc == OK && u->in.data == u->out.data) {
        rc = cpu_refuse(err, op, "the output overlaps the input");
    }
    op->kernel = rc == OK ? "gather" : NULL;
    return rc;
}

static enum status gather_run(struct cpu_backend *be, const struct op *op, const struct step *step,
                              const struct state_pools *state, struct error *err)
{
    const struct op_gather *u = &op->u.gather;
    size_t n = u->in.cols;

    (void)state;
    for (size_t i = 0; i < step->n_out_rows; i++) {
        float *out = (float *)u->out.data + i * n;

        if (step->out_rows[i] < 0 || (size_t)step->out_rows[i] >= step->n_rows) {
            return cpu_broken(err, op, "a logit row is not in the step");
        }
        memcpy(out, (const float *)u->in.data + (size_t)step->out_rows[i] * n, n * sizeof *out);
        be->kernels->round(u->out.round, out, n);
    }
    return OK;
}

const struct cpu_family cpu_embed = {embed_check, NULL, embed_run};
const struct cpu_family cpu_norm = {norm_check, NULL, norm_run};
const struct cpu_family cpu_swiglu = {swiglu_check, NULL, swiglu_run};
const struct cpu_family cpu_add_shared = {add_shared_check, NULL, add_shared_run};
const struct cpu_family cpu_rows_check = {finite_check, NULL, finite_run};
const struct cpu_family cpu_gather = {gather_check, NULL, gather_run};
