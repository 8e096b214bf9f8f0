/* cpu_act.c - the inputs of matrix products in the form that a weight reads.
 *
 * Place: backend/cpu, under cpu_linear.c and cpu_moe.c.
 * Idea:  act-order wants its inputs gathered, int8 kernels want them quantised. Both are copies by row,
 *        made once per op for all weights that want the same, or, where every weight has its own
 *        order (experts with act-order), by cpu_product() block by block. */
#include <string.h>

#include "backend/cpu/cpu_internal.h"
#include "base/size.h"

enum { CACHE_LINE = 64, BIG_GROUP_PART = 128 };

static size_t whole_lines(size_t n_bytes)
{
    return (n_bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

/* Inputs per scale of the activations: the weight's group, or an even part of a large one. 0: groups do
 * not divide the row. */
static size_t act_group(const struct weight *w)
{
    if (w->n_in % w->group != 0 || w->group % WEIGHT_BLOCK != 0) {
        return 0;
    }
    if (w->group <= INT8_GROUP_MAX) {
        return w->group;
    }
    for (size_t part = BIG_GROUP_PART; part > WEIGHT_BLOCK; part /= 2) {
        if (w->group % part == 0) {
            return part;
        }
    }
    return WEIGHT_BLOCK;
}

struct cpu_input cpu_input_of(const struct cpu_backend *be, const struct weight *w)
{
    bool is_quantised = w->kind == WEIGHT_INT4 || w->kind == WEIGHT_INT8;
    struct cpu_input in = {.kind = INPUT_AS_IS, .perm = w->perm};
    struct act_form *f = &in.form;

    f->group = is_quantised && be->activations == CPU_ACTIVATIONS_INT8 ? act_group(w) : 0;
    if (f->group > 0) {
        in.kind = INPUT_INT8;
        f->n_in = w->n_in;
        f->n_groups = w->n_in / f->group;
        be->kernels->act_order(f, w->kind);
        f->scale_at = whole_lines(w->n_in * f->value_bytes);
        f->sum_at = f->scale_at + whole_lines(f->n_groups * sizeof(float));
        f->row_bytes = f->sum_at + whole_lines(f->n_groups * sizeof(int32_t));
        in.row_floats = f->row_bytes / sizeof(float);
    } else if (w->perm || (is_quantised && be->activations == CPU_ACTIVATIONS_BF16)) {
        in.kind = INPUT_FLOATS;
        in.row_floats = w->n_in;
    }
    return in;
}

bool cpu_input_equal(const struct cpu_input *a, const struct cpu_input *b)
{
    return a->kind == b->kind && a->perm == b->perm && a->form.group == b->form.group &&
           a->form.unit == b->form.unit && a->form.value_bytes == b->form.value_bytes;
}

static void gather(float *out, const float *x, const int32_t *perm, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        out[k] = x[perm[k]];
    }
}

void cpu_input_write(const struct cpu_backend *be, const struct cpu_input *in, float *copy,
                     size_t i, const float *x, float *gathered)
{
    float *row = copy + i * in->row_floats;

    if (in->kind == INPUT_INT8) {
        if (in->perm) {
            gather(gathered, x, in->perm, in->form.n_in);
        }
        be->kernels->quantise((uint8_t *)row, &in->form, in->perm ? gathered : x);
        return;
    }
    if (in->perm) {
        gather(row, x, in->perm, in->row_floats);
    } else {
        memcpy(row, x, in->row_floats * sizeof *row);
    }
    if (be->activations == CPU_ACTIVATIONS_BF16) {
        be->kernels->round(DTYPE_BF16, row, in->row_floats);
    }
}

void cpu_input_use(struct linear_job *job, const struct cpu_input *in, const float *copy)
{
    if (in->kind == INPUT_INT8) {
        job->act = (const uint8_t *)copy;
        job->form = &in->form;
    } else if (in->kind == INPUT_FLOATS) {
        job->x = copy;
        job->x_stride = in->row_floats;
    }
}

struct write_run {
    const struct cpu_backend *be;
    const struct cpu_input *in;
    float *copy;
    const float *x;
    size_t x_stride;
};

static void write_range(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct write_run *r = ctx;

    for (size_t i = begin; i < end; i++) {
        cpu_input_write(r->be, r->in, r->copy, i, r->x + i * r->x_stride,
                        cpu_scratch(r->be, thread));
    }
}

void cpu_input_write_all(struct cpu_backend *be, const struct cpu_input *in, float *copy,
                         const float *x, size_t x_stride, size_t n_rows)
{
    struct write_run r = {be, in, copy, x, x_stride};

    cpu_parallel(be, n_rows, 1, n_rows * x_stride, write_range, &r);
}
