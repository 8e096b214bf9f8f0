/* cpu_linear.c - linear layers: W x for up to four matrices that share an input.
 *
 * Place: backend/cpu. The outputs of all parts form one index range, which the threads split: one
 *        region per op, whatever the shapes. With act-order the inputs are first gathered, once per
 *        distinct order.
 * Cache: many input rows are worked through in blocks, so that a block stays in the second level
 *        cache while the weight rows pass over it. */
#include "backend/cpu/cpu_internal.h"
#include "base/size.h"

enum {
    BLOCK_FLOATS = 64 * 1024, /* 256 KiB of inputs */
    BLOCK_ROWS_MIN = 12,      /* a decoded weight row must serve some inputs */
};

static size_t block_rows(size_t n_in)
{
    size_t rows = size_max(BLOCK_FLOATS / n_in, BLOCK_ROWS_MIN);

    return rows - rows % BLOCK_ROWS_MIN; /* whole register tiles */
}

size_t cpu_product_scratch(const struct weight *w, size_t rows)
{
    size_t tile = cpu_times(LINEAR_TILE_ROWS, linear_tile_stride(w->n_in));

    return w->perm ? cpu_plus(tile, cpu_times(size_min(rows, block_rows(w->n_in)), w->n_in)) : tile;
}

static void gather(float *out, const float *x, const int32_t *perm, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        out[k] = x[perm[k]];
    }
}

void cpu_product(const struct cpu_backend *be, const struct linear_job *job, const struct weight *w,
                 size_t n0, size_t n1, bool x_permuted, float *scratch)
{
    size_t step = block_rows(w->n_in);
    float *gathered = scratch + LINEAR_TILE_ROWS * linear_tile_stride(w->n_in);

    for (size_t i = 0; i < job->n_x; i += step) {
        struct linear_job block = *job;

        block.tile = scratch;
        block.out += i * job->out_stride;
        block.n_x = size_min(step, job->n_x - i);
        if (w->perm && !x_permuted) {
            for (size_t r = 0; r < block.n_x; r++) {
                gather(gathered + r * w->n_in, linear_job_x(job, i + r), w->perm, w->n_in);
            }
            block.x = gathered;
            block.x_stride = w->n_in;
            block.x_rows = NULL;
        } else if (job->x_rows) {
            block.x_rows += i;
        } else {
            block.x += i * job->x_stride;
        }
        be->kernels->linear(&block, w, n0, n1);
    }
}

static enum status linear_check(struct cpu_backend *be, struct op *op, struct error *err)
{
    const struct op_linear *u = &op->u.linear;
    const char *kernel = NULL;
    enum status rc;

    if (u->n_parts == 0 || u->n_parts > LINEAR_PARTS_MAX) {
        return cpu_refuse(err, op, "%zu matrices", u->n_parts);
    }
    rc = cpu_check_operand(op, "the input", &u->in, u->in.cols, err);
    for (size_t p = 0; rc == OK && p < u->n_parts; p++) {
        const struct operand *out = &u->part[p].out;
        const char *name;

        rc = cpu_check_weight(op, "the matrix", &u->part[p].w, u->in.cols, err);
        if (rc != OK) {
            break;
        }
        rc = u->part[p].accumulates
                 ? cpu_check_exact(op, "the sum", out, u->part[p].w.n_out, err)
                 : cpu_check_operand(op, "the output", out, u->part[p].w.n_out, err);
        if (rc == OK && out->data == u->in.data) {
            rc = cpu_refuse(err, op, "the output overlaps the input");
        }
        name = cpu_kernel_name(be, "linear", &u->part[p].w);
        kernel = p == 0 || kernel == name ? name : cpu_kernel_name(be, "linear", NULL);
    }
    op->kernel = rc == OK ? kernel : NULL;
    return rc;
}

/* Which part's gathered input serves part p: the first with the same order. */
static size_t perm_owner(const struct op_linear *u, size_t p)
{
    size_t owner = 0;

    while (u->part[owner].w.perm != u->part[p].w.perm) {
        owner++;
    }
    return owner;
}

static void linear_need(const struct cpu_backend *be, const struct op *op, size_t rows_max,
                        struct cpu_need *need)
{
    const struct op_linear *u = &op->u.linear;

    (void)be;
    for (size_t p = 0; p < u->n_parts; p++) {
        const struct weight *w = &u->part[p].w;

        need->per_thread =
            size_max(need->per_thread, LINEAR_TILE_ROWS * linear_tile_stride(w->n_in));
        if (w->perm && perm_owner(u, p) == p) {
            need->shared = cpu_plus(need->shared, cpu_times(rows_max, u->in.cols));
        }
    }
}

struct linear_run {
    const struct cpu_backend *be;
    const struct op_linear *u;
    size_t n_rows;
    const float *x[LINEAR_PARTS_MAX]; /* per part, in its weight's order */
};

static void linear_part(const struct linear_run *r, size_t p, size_t n0, size_t n1, size_t thread)
{
    const struct weight *w = &r->u->part[p].w;
    const struct operand *out = &r->u->part[p].out;
    struct linear_job job = {
        .out = out->data,
        .out_stride = out->cols,
        .x = r->x[p],
        .x_stride = r->u->in.cols,
        .n_x = r->n_rows,
        .accumulates = r->u->part[p].accumulates,
    };

    cpu_product(r->be, &job, w, n0, n1, true, cpu_scratch(r->be, thread));
    if (out->round != DTYPE_F32) {
        for (size_t i = 0; i < r->n_rows; i++) {
            r->be->kernels->round(out->round, job.out + i * out->cols + n0, n1 - n0);
        }
    }
}

static void linear_range(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct linear_run *r = ctx;
    size_t base = 0;

    for (size_t p = 0; p < r->u->n_parts && base < end; p++) {
        size_t n_out = r->u->part[p].w.n_out;
        size_t n0 = size_max(begin, base), n1 = size_min(end, base + n_out);

        if (n0 < n1) {
            linear_part(r, p, n0 - base, n1 - base, thread);
        }
        base += n_out;
    }
}

struct gather_run {
    const float *x;
    float *out;
    const int32_t *perm;
    size_t n;
};

static void gather_range(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct gather_run *g = ctx;

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        gather(g->out + i * g->n, g->x + i * g->n, g->perm, g->n);
    }
}

static enum status linear_run(struct cpu_backend *be, const struct op *op, const struct step *step,
                              const struct state_pools *state, struct error *err)
{
    const struct op_linear *u = &op->u.linear;
    struct linear_run r = {.be = be, .u = u, .n_rows = cpu_op_rows(op, step)};
    float *free_space = be->shared;
    size_t n_out = 0;

    (void)state;
    (void)err;
    for (size_t p = 0; p < u->n_parts; p++) {
        size_t owner = perm_owner(u, p);

        n_out += u->part[p].w.n_out;
        r.x[p] = owner == p ? u->in.data : r.x[owner];
        if (u->part[p].w.perm && owner == p) {
            struct gather_run g = {u->in.data, free_space, u->part[p].w.perm, u->in.cols};

            cpu_parallel(be, r.n_rows, 1, r.n_rows * u->in.cols, gather_range, &g);
            r.x[p] = free_space;
            free_space += r.n_rows * u->in.cols;
        }
    }
    cpu_parallel(be, n_out, 2 * LINEAR_TILE_ROWS, n_out * u->in.cols * r.n_rows, linear_range, &r);
    return OK;
}

const struct cpu_family cpu_linear = {linear_check, linear_need, linear_run};
