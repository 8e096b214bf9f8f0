/* cpu_linear.c - linear layers: W x for up to four matrices that share an input.
 *
 * Place: backend/cpu. The outputs of all parts form one index range, which the threads split: one
 *        region per op, whatever the shapes. Inputs that a weight wants in another form (act-order,
 *        int8) are written first, once per distinct form.
 * Cache: many input rows are worked through in blocks, so that a block stays in the second level
 *        cache while the weight rows pass over it. */
#include "backend/cpu/cpu_internal.h"
#include "base/size.h"

enum {
    BLOCK_BYTES = 256 * 1024, /* of float inputs */
    BLOCK_ROWS_MIN = 12,      /* a decoded weight row must serve some inputs */
    GRAIN_FEW = 2 * LINEAR_TILE_ROWS,
    GRAIN_MANY = 2 * INT8_TILE_ROWS, /* whole panels of every kernel */
    INPUTS_MANY = 8,
};

size_t cpu_rows_grain(size_t n_x)
{
    return n_x < INPUTS_MANY ? GRAIN_FEW : GRAIN_MANY;
}

/* Rows of a block at the most: whole register tiles. */
static size_t block_rows(const struct cpu_backend *be, const struct cpu_input *in,
                         const struct weight *w)
{
    bool is_int8 = in->kind == INPUT_INT8;
    size_t tile = is_int8 ? be->kernels->int8_block_rows : BLOCK_ROWS_MIN;
    size_t rows = is_int8 ? be->kernels->int8_block_bytes / in->form.row_bytes
                          : BLOCK_BYTES / (w->n_in * sizeof(float));

    return size_max(rows - rows % tile, tile);
}

/* Blocks of about the same size, no more of them than needed. */
static size_t even_block(size_t n, size_t rows_max, size_t tile)
{
    size_t n_blocks = (n + rows_max - 1) / rows_max, rows;

    if (n_blocks <= 1) {
        return rows_max;
    }
    rows = (n + n_blocks - 1) / n_blocks;
    return (rows + tile - 1) / tile * tile;
}

static size_t tile_floats(const struct cpu_input *in, const struct weight *w)
{
    size_t n = in->kind == INPUT_INT8 ? int8_tile_floats(w->n_in, in->form.n_groups)
                                      : linear_tile_floats(w->n_in);

    return (n + 15) / 16 * 16;
}

size_t cpu_product_scratch(const struct cpu_backend *be, const struct weight *w, size_t rows,
                           bool is_ready)
{
    struct cpu_input in = cpu_input_of(be, w);
    size_t tile = tile_floats(&in, w);

    if (is_ready || in.kind == INPUT_AS_IS) {
        return tile;
    }
    rows = size_min(rows, block_rows(be, &in, w));
    return cpu_plus(cpu_plus(tile, linear_tile_stride(w->n_in)), cpu_times(rows, in.row_floats));
}

void cpu_product(const struct cpu_backend *be, const struct linear_job *job, const struct weight *w,
                 size_t n0, size_t n1, bool is_ready, float *scratch)
{
    struct cpu_input in = cpu_input_of(be, w);
    size_t tile = in.kind == INPUT_INT8 ? be->kernels->int8_block_rows : BLOCK_ROWS_MIN;
    size_t step = even_block(job->n_x, block_rows(be, &in, w), tile);
    float *gathered = scratch + tile_floats(&in, w);
    float *copy = gathered + linear_tile_stride(w->n_in);

    for (size_t i = 0; i < job->n_x; i += step) {
        struct linear_job block = *job;

        block.tile = scratch;
        block.out += i * job->out_stride;
        block.n_x = size_min(step, job->n_x - i);
        if (!is_ready && in.kind != INPUT_AS_IS) {
            for (size_t r = 0; r < block.n_x; r++) {
                cpu_input_write(be, &in, copy, r, linear_job_x(job, i + r), gathered);
            }
            block.x_rows = NULL;
            cpu_input_use(&block, &in, copy);
        } else if (job->x_rows) {
            block.x_rows += i;
        } else if (in.kind == INPUT_INT8) {
            block.act += i * in.form.row_bytes;
        } else {
            block.x += i * job->x_stride;
        }
        if (in.kind == INPUT_INT8) {
            block.form = &in.form;
            be->kernels->linear_int8(&block, w, n0, n1);
        } else {
            be->kernels->linear(&block, w, n0, n1);
        }
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

/* Which part's copy of the input serves part p: the first of the same form. */
static size_t input_owner(const struct cpu_input *in, size_t p)
{
    size_t owner = 0;

    while (!cpu_input_equal(&in[owner], &in[p])) {
        owner++;
    }
    return owner;
}

static void linear_need(const struct cpu_backend *be, const struct op *op, size_t rows_max,
                        struct cpu_need *need)
{
    const struct op_linear *u = &op->u.linear;
    struct cpu_input in[LINEAR_PARTS_MAX];

    for (size_t p = 0; p < u->n_parts; p++) {
        in[p] = cpu_input_of(be, &u->part[p].w);
        need->per_thread =
            size_max(need->per_thread, cpu_product_scratch(be, &u->part[p].w, rows_max, true));
        if (in[p].kind != INPUT_AS_IS && input_owner(in, p) == p) {
            need->shared = cpu_plus(need->shared, cpu_times(rows_max, in[p].row_floats));
        }
    }
    need->per_thread = size_max(need->per_thread, u->in.cols); /* to gather a row */
}

struct linear_run {
    const struct cpu_backend *be;
    const struct op_linear *u;
    size_t n_rows;
    struct cpu_input in[LINEAR_PARTS_MAX];
    const float *copy[LINEAR_PARTS_MAX]; /* of the input, in the part's form */
};

static void linear_part(const struct linear_run *r, size_t p, size_t n0, size_t n1, size_t thread)
{
    const struct weight *w = &r->u->part[p].w;
    const struct operand *out = &r->u->part[p].out;
    struct linear_job job = {
        .out = out->data,
        .out_stride = out->cols,
        .x = r->u->in.data,
        .x_stride = r->u->in.cols,
        .n_x = r->n_rows,
        .accumulates = r->u->part[p].accumulates,
    };

    cpu_input_use(&job, &r->in[p], r->copy[p]);
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
        size_t owner;

        n_out += u->part[p].w.n_out;
        r.in[p] = cpu_input_of(be, &u->part[p].w);
        owner = input_owner(r.in, p);
        if (r.in[p].kind == INPUT_AS_IS) {
            continue;
        }
        if (owner == p) {
            cpu_input_write_all(be, &r.in[p], free_space, u->in.data, u->in.cols, r.n_rows);
            r.copy[p] = free_space;
            free_space += r.n_rows * r.in[p].row_floats;
        }
        r.copy[p] = r.copy[owner];
    }
    cpu_parallel(be, n_out, cpu_rows_grain(r.n_rows), n_out * u->in.cols * r.n_rows, linear_range,
                 &r);
    return OK;
}

const struct cpu_family cpu_linear = {linear_check, linear_need, linear_run};
