/* cpu_experts.c - the routed experts.
 *
 * Place: backend/cpu; cpu_moe.c chose the experts.
 * Idea:  the (row, choice) pairs of a step are sorted by expert, so that each expert's weights are read
 *        once however many rows chose it. Two regions: gate, up and swiglu; then down and the sum.
 * Load:  with one row all chosen experts cost the same, so the threads share out their rows of gate and
 *        up as one list: long stretches of memory, the same for each. With more rows the threads split
 *        the experts' width and each walks all experts, which is even however skewed the routing is. In
 *        the second region they split the output columns.
 * Order: a row's sum runs over its choices in the order of idx, whatever the sorting did.
 * Home:  an op with a home (expert_home.h) is the host's part of a device's step: a choice of -1 is served
 *        by the device and left out here. Without a home it is a fault, as any other wrong choice. */
#include <string.h>

#include "backend/cpu/cpu_internal.h"
#include "base/size.h"

static enum status expert_check(const struct op *op, size_t e, const struct expert_weights *w,
                                struct error *err)
{
    const struct op_experts *u = &op->u.experts;
    enum status rc = cpu_check_weight(op, "the gate projection", &w->gate, u->in.cols, err);

    if (rc == OK) {
        rc = cpu_check_weight(op, "the up projection", &w->up, u->in.cols, err);
    }
    if (rc == OK) {
        rc = cpu_check_weight(op, "the down projection", &w->down, u->width, err);
    }
    if (rc == OK &&
        (w->gate.n_out != u->width || w->up.n_out != u->width || w->down.n_out != u->out.cols)) {
        rc = cpu_refuse(err, op, "its matrices have %zu, %zu and %zu rows", w->gate.n_out,
                        w->up.n_out, w->down.n_out);
    }
    if (rc != OK) {
        error_prefix(err, "expert %zu", e);
    }
    return rc;
}

static enum status experts_check(struct cpu_backend *be, struct op *op, struct error *err)
{
    const struct op_experts *u = &op->u.experts;
    enum status rc = cpu_check_operand(op, "the input", &u->in, u->in.cols, err);
    const char *kernel = NULL;

    if (rc == OK) {
        rc = cpu_check_exact(op, "the output", &u->out, u->out.cols, err);
    }
    if (rc == OK) {
        rc = cpu_check_exact(op, "the probabilities", &u->prob, u->top_k, err);
    }
    if (rc == OK && (!u->idx.data || u->idx.dtype != DTYPE_I32 || u->idx.cols != u->top_k)) {
        rc = cpu_refuse(err, op, "the choices need an int32 buffer of %zu columns", u->top_k);
    }
    if (rc == OK && (u->n_experts == 0 || u->n_experts > EXPERTS_MAX || !u->experts)) {
        rc = cpu_refuse(err, op, "%zu experts (at most %d are built)", u->n_experts, EXPERTS_MAX);
    }
    for (size_t e = 0; rc == OK && e < u->n_experts; e++) {
        const struct expert_weights *w = &u->experts[e];
        const char *up, *down;

        rc = expert_check(op, e, w, err);
        up = cpu_kernel_name(be, "experts", rc == OK ? &w->up : NULL);
        down = cpu_kernel_name(be, "experts", rc == OK ? &w->down : NULL);
        kernel = up == down && (e == 0 || kernel == up) ? up : cpu_kernel_name(be, "experts", NULL);
    }
    op->kernel = rc == OK ? kernel : NULL;
    return rc;
}

/* Shared scratch of the op. A "slot" is one (row, choice) pair that is ours, numbered in the sorted
 * order. */
struct experts_run {
    const struct cpu_backend *be;
    const struct op_experts *u;
    size_t n_rows, n_slots, n_active;
    /* The forms that the first expert reads, made once for all that want the same. */
    struct cpu_input in_form, hidden_form;
    bool in_by_slot;
    float *in;           /* [n_rows] copies, or [slots], unless the form is the input as it is */
    float *hidden_in;    /* [slots] copies of hidden, likewise */
    float *hidden;       /* [slots][width] gate, then the swiglu product */
    float *up;           /* [slots][width] */
    float *down;         /* [slots][out.cols] */
    int32_t *first_slot; /* [n_experts + 1] */
    int32_t *active;     /* [n_active] experts that a row chose */
    int32_t *row_of;     /* [slots] */
    int32_t *slot_of;    /* [n_rows][top_k], -1: not ours */
};

static size_t experts_cut(struct experts_run *r, float *base, const struct cpu_backend *be,
                          const struct op_experts *u, size_t n_rows)
{
    size_t slots = cpu_times(n_rows, u->top_k), wide = cpu_times(slots, u->width);
    size_t in, hidden_in;

    r->in_form = cpu_input_of(be, &u->experts[0].gate);
    r->hidden_form = cpu_input_of(be, &u->experts[0].down);
    r->in_by_slot = r->in_form.kind == INPUT_INT8 && n_rows > 1;
    in = r->in_form.kind == INPUT_AS_IS
             ? 0
             : cpu_times(r->in_by_slot ? slots : n_rows, r->in_form.row_floats);
    hidden_in =
        r->hidden_form.kind == INPUT_AS_IS ? 0 : cpu_times(slots, r->hidden_form.row_floats);

    size_t sizes[] = {in,    hidden_in, wide, wide, cpu_times(slots, u->out.cols), u->n_experts + 1,
                      slots, slots,     slots};
    size_t at[sizeof sizes / sizeof sizes[0]], end = 0;

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        at[i] = end;
        end = cpu_plus(end, cpu_plus(sizes[i], 15) & ~(size_t)15);
    }
    if (base) {
        r->in = base + at[0];
        r->hidden_in = base + at[1];
        r->hidden = base + at[2];
        r->up = base + at[3];
        r->down = base + at[4];
        r->first_slot = (int32_t *)(void *)(base + at[5]);
        r->active = (int32_t *)(void *)(base + at[6]);
        r->row_of = (int32_t *)(void *)(base + at[7]);
        r->slot_of = (int32_t *)(void *)(base + at[8]);
    }
    return end;
}

/* Whether w reads the copy that was made of `made` (or the operand itself). */
static bool reads(const struct cpu_backend *be, const struct weight *w,
                  const struct cpu_input *made)
{
    struct cpu_input in = cpu_input_of(be, w);

    return cpu_input_equal(&in, made);
}

static void experts_need(const struct cpu_backend *be, const struct op *op, size_t rows_max,
                         struct cpu_need *need)
{
    const struct op_experts *u = &op->u.experts;
    struct experts_run r;

    need->shared = experts_cut(&r, NULL, be, u, rows_max);
    need->per_thread = size_max(u->in.cols, u->width); /* to gather a row */
    for (size_t e = 0; e < u->n_experts; e++) {
        const struct weight *w[] = {&u->experts[e].gate, &u->experts[e].up, &u->experts[e].down};

        for (size_t i = 0; i < 3; i++) {
            bool is_ready = reads(be, w[i], i < 2 ? &r.in_form : &r.hidden_form);

            need->per_thread =
                size_max(need->per_thread, cpu_product_scratch(be, w[i], rows_max, is_ready));
        }
    }
}

/* Counting sort of the choices by expert; rows keep their order within an expert. False: some expert was
 * chosen more often than there are rows, for which no scratch is meant. */
static bool sort_choices(struct experts_run *r)
{
    const struct op_experts *u = r->u;
    const int32_t *idx = u->idx.data;
    size_t n = r->n_rows * u->top_k;

    memset(r->first_slot, 0, (u->n_experts + 1) * sizeof *r->first_slot);
    for (size_t i = 0; i < n; i++) {
        if (idx[i] >= 0) {
            r->first_slot[idx[i] + 1]++;
        }
    }
    r->n_active = 0;
    for (size_t e = 0; e < u->n_experts; e++) {
        if (r->first_slot[e + 1] > (int32_t)r->n_rows) {
            return false;
        }
        if (r->first_slot[e + 1] > 0) {
            r->active[r->n_active++] = (int32_t)e;
        }
        r->first_slot[e + 1] += r->first_slot[e];
    }
    r->n_slots = (size_t)r->first_slot[u->n_experts];
    for (size_t i = 0; i < n; i++) {
        r->slot_of[i] = idx[i] < 0 ? -1 : r->first_slot[idx[i]]++;
        if (r->slot_of[i] >= 0) {
            r->row_of[r->slot_of[i]] = (int32_t)(i / u->top_k);
        }
    }
    for (size_t e = u->n_experts; e > 0; e--) { /* each start has moved to its end */
        r->first_slot[e] = r->first_slot[e - 1];
    }
    r->first_slot[0] = 0;
    return true;
}

static void product(const struct experts_run *r, struct linear_job *job, const struct weight *w,
                    const struct cpu_input *made, const float *copy, size_t begin, size_t end,
                    size_t thread)
{
    bool is_ready = reads(r->be, w, made);

    job->act = NULL;
    if (is_ready) {
        cpu_input_use(job, made, copy);
    }
    cpu_product(r->be, job, w, begin, end, is_ready, cpu_scratch(r->be, thread));
}

/* The same of the op's input: with a copy per slot an expert's rows are neighbours. */
static void input_product(const struct experts_run *r, struct linear_job *job,
                          const struct weight *w, size_t first, size_t begin, size_t end,
                          size_t thread)
{
    const float *copy = r->in;

    if (r->in_by_slot && reads(r->be, w, &r->in_form)) {
        copy += first * r->in_form.row_floats;
        job->x_rows = NULL;
    }
    product(r, job, w, &r->in_form, copy, begin, end, thread);
}

/* Columns [begin, end) of expert e's hidden rows. */
static void inner_part(const struct experts_run *r, size_t e, size_t begin, size_t end,
                       size_t thread)
{
    const struct op_experts *u = r->u;
    const struct cpu_kernels *kn = r->be->kernels;
    size_t first = (size_t)r->first_slot[e], n = (size_t)r->first_slot[e + 1] - first;
    const struct linear_job input = {
        .out_stride = u->width,
        .x = u->in.data,
        .x_stride = u->in.cols,
        .x_rows = r->row_of + first,
        .n_x = n,
    };
    struct linear_job job = input;

    job.out = r->hidden + first * u->width;
    input_product(r, &job, &u->experts[e].gate, first, begin, end, thread);
    job = input;
    job.out = r->up + first * u->width;
    input_product(r, &job, &u->experts[e].up, first, begin, end, thread);
    for (size_t slot = first; slot < first + n; slot++) {
        float *gate = r->hidden + slot * u->width + begin;
        float *up = r->up + slot * u->width + begin;

        kn->round(u->in.round, gate, end - begin);
        kn->round(u->in.round, up, end - begin);
        kn->swiglu(gate, gate, up, end - begin);
        kn->round(u->in.round, gate, end - begin);
    }
}

static void inner_columns(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct experts_run *r = ctx;

    for (size_t i = 0; i < r->n_active; i++) {
        inner_part(r, (size_t)r->active[i], begin, end, thread);
    }
}

/* [begin, end) of the active experts' columns, one expert after the other. */
static void inner_list(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct experts_run *r = ctx;
    size_t width = r->u->width;

    while (begin < end) {
        size_t i = begin / width, first = begin % width;
        size_t last = size_min(width, first + end - begin);

        inner_part(r, (size_t)r->active[i], first, last, thread);
        begin += last - first;
    }
}

static void outer_columns(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct experts_run *r = ctx;
    const struct op_experts *u = r->u;
    size_t cols = u->out.cols;

    for (size_t i = 0; i < r->n_active; i++) {
        size_t e = (size_t)r->active[i], first = (size_t)r->first_slot[e];
        struct linear_job job = {
            .out = r->down + first * cols,
            .out_stride = cols,
            .x = r->hidden + first * u->width,
            .x_stride = u->width,
            .n_x = (size_t)r->first_slot[e + 1] - first,
        };

        product(r, &job, &u->experts[e].down, &r->hidden_form,
                r->hidden_in + first * r->hidden_form.row_floats, begin, end, thread);
    }
    for (size_t i = 0; i < r->n_rows; i++) {
        float *out = (float *)u->out.data + i * cols + begin;
        const float *prob = (const float *)u->prob.data + i * u->top_k;

        memset(out, 0, (end - begin) * sizeof *out);
        for (size_t j = 0; j < u->top_k; j++) {
            int32_t slot = r->slot_of[i * u->top_k + j];

            if (slot >= 0) {
                r->be->kernels->axpy(out, prob[j], r->down + (size_t)slot * cols + begin,
                                     end - begin);
            }
        }
    }
}

/* Row i of the input to all its slots. */
static void write_slots(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct experts_run *r = ctx;
    const struct op_experts *u = r->u;
    size_t row_floats = r->in_form.row_floats;

    for (size_t i = begin; i < end; i++) {
        const int32_t *slot = r->slot_of + i * u->top_k;
        const float *made = NULL;

        for (size_t j = 0; j < u->top_k; j++) {
            if (slot[j] < 0) {
                continue;
            }
            if (made) {
                memcpy(r->in + (size_t)slot[j] * row_floats, made, row_floats * sizeof *made);
            } else {
                cpu_input_write(r->be, &r->in_form, r->in, (size_t)slot[j],
                                (const float *)u->in.data + i * u->in.cols,
                                cpu_scratch(r->be, thread));
                made = r->in + (size_t)slot[j] * row_floats;
            }
        }
    }
}

static void run_regions(struct cpu_backend *be, struct experts_run *r)
{
    const struct op_experts *u = r->u;
    size_t inner_work = 2 * r->n_slots * u->width * u->in.cols;
    size_t grain = cpu_rows_grain(r->n_rows);

    if (r->in_by_slot) {
        cpu_parallel(be, r->n_rows, 1, r->n_rows * u->in.cols, write_slots, r);
    } else if (r->in_form.kind != INPUT_AS_IS) {
        cpu_input_write_all(be, &r->in_form, r->in, u->in.data, u->in.cols, r->n_rows);
    }
    if (r->n_rows == 1) {
        cpu_parallel(be, r->n_active * u->width, grain, inner_work, inner_list, r);
    } else {
        cpu_parallel(be, u->width, grain, inner_work, inner_columns, r);
    }
    if (r->hidden_form.kind != INPUT_AS_IS) {
        cpu_input_write_all(be, &r->hidden_form, r->hidden_in, r->hidden, u->width, r->n_slots);
    }
    cpu_parallel(be, u->out.cols, grain, r->n_slots * u->width * u->out.cols, outer_columns, r);
}

static enum status experts_run(struct cpu_backend *be, const struct op *op, const struct step *step,
                               const struct state_pools *state, struct error *err)
{
    const struct op_experts *u = &op->u.experts;
    struct experts_run r = {.be = be, .u = u, .n_rows = cpu_op_rows(op, step)};
    const int32_t *idx = u->idx.data;
    int32_t least = u->home ? -1 : 0;

    (void)state;
    for (size_t i = 0; i < r.n_rows * u->top_k; i++) {
        if (idx[i] < least || idx[i] >= (int32_t)u->n_experts) {
            return cpu_broken(err, op, "a choice is not an expert");
        }
    }
    experts_cut(&r, be->shared, be, u, r.n_rows);
    if (!sort_choices(&r)) {
        return cpu_broken(err, op, "a row chose an expert twice");
    }
    run_regions(be, &r);
    return OK;
}

const struct cpu_family cpu_experts = {experts_check, experts_need, experts_run};
