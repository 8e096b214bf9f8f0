/* cpu_moe.c - the router and the routed experts.
 *
 * Place:  backend/cpu.
 * Router: logits, softmax over all experts in float32, then the top k by probability, ties to the
 *         lower id.
 * Experts: the (row, choice) pairs of a step are sorted by expert, so that each expert's weights are
 *         read once however many rows chose it. Two regions: the threads split the experts' inner
 *         width (gate, up, swiglu), then the output columns (down, sum). Within a region a thread
 *         walks all experts, so the load is even however skewed the routing is.
 * Order:  a row's sum runs over its choices in the order of idx, whatever the sorting did. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu_internal.h"
#include "base/size.h"

enum { TOP_K_MAX = 64, EXPERTS_MAX = 65536 };

/* --- router --- */

static enum status route_check(struct cpu_backend *be, struct op *op, struct error *err)
{
    const struct op_route *u = &op->u.route;
    enum status rc = cpu_check_operand(op, "the input", &u->in, u->in.cols, err);

    if (rc == OK && (u->top_k == 0 || u->top_k > u->n_experts || u->top_k > TOP_K_MAX ||
                     u->n_experts > EXPERTS_MAX)) {
        rc = cpu_refuse(err, op, "%zu of %zu experts (at most %d of %d are built)", u->top_k,
                        u->n_experts, TOP_K_MAX, EXPERTS_MAX);
    }
    if (rc == OK) {
        rc = cpu_check_weight(op, "the router", &u->router, u->in.cols, err);
    }
    if (rc == OK && u->router.n_out != u->n_experts) {
        rc = cpu_refuse(err, op, "the router has %zu rows for %zu experts", u->router.n_out,
                        u->n_experts);
    }
    if (rc == OK) {
        rc = cpu_check_exact(op, "the probabilities", &u->prob, u->top_k, err);
    }
    if (rc == OK && (!u->idx.data || u->idx.dtype != DTYPE_I32 || u->idx.cols != u->top_k)) {
        rc = cpu_refuse(err, op, "the choices need an int32 buffer of %zu columns", u->top_k);
    }
    op->kernel = rc == OK ? cpu_kernel_name(be, "route", &u->router) : NULL;
    return rc;
}

static void route_need(const struct cpu_backend *be, const struct op *op, size_t rows_max,
                       struct cpu_need *need)
{
    (void)be;
    need->shared = cpu_times(rows_max, op->u.route.n_experts);
    need->per_thread = cpu_product_scratch(&op->u.route.router, rows_max);
}

struct route_run {
    const struct cpu_backend *be;
    const struct op *op;
    const struct step *step;
    size_t n_rows;
    float *logits; /* [n_rows][n_experts] */
};

static void route_logits(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct route_run *r = ctx;
    const struct op_route *u = &r->op->u.route;
    struct linear_job job = {
        .out = r->logits,
        .out_stride = u->n_experts,
        .x = u->in.data,
        .x_stride = u->in.cols,
        .n_x = r->n_rows,
    };

    cpu_product(r->be, &job, &u->router, begin, end, false, cpu_scratch(r->be, thread));
}

/* The n largest of p, by falling value, ties by rising id. A NaN counts as less than anything, so that
 * the ids are valid and distinct whatever the input. */
static void top_n(int32_t *ids, float *keys, size_t n, const float *p, size_t n_p)
{
    size_t used = 0;

    for (size_t e = 0; e < n_p; e++) {
        float key = p[e] >= 0 ? p[e] : -1.0f;
        size_t at = used;

        if (used == n && !(key > keys[n - 1])) {
            continue;
        }
        if (used == n) {
            at = n - 1;
        } else {
            used++;
        }
        while (at > 0 && key > keys[at - 1]) {
            keys[at] = keys[at - 1];
            ids[at] = ids[at - 1];
            at--;
        }
        keys[at] = key;
        ids[at] = (int32_t)e;
    }
}

static void note_margin(const struct route_run *r, size_t i, float margin)
{
    size_t row = r->op->rows == ROWS_OUT ? (size_t)r->step->out_rows[i] : i;
    float *smallest = &r->step->router_margin[row];

    if (margin < *smallest) {
        *smallest = margin;
    }
}

static void route_choose(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct route_run *r = ctx;
    const struct op_route *u = &r->op->u.route;
    const struct cpu_kernels *kn = r->be->kernels;
    size_t n_wanted = size_min(u->top_k + 1, u->n_experts); /* one more, for the margin */
    int32_t ids[TOP_K_MAX + 1];
    float keys[TOP_K_MAX + 1];

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        float *p = r->logits + i * u->n_experts;
        float *prob = (float *)u->prob.data + i * u->top_k;
        float sum = 0, norm = 1.0f;

        kn->scale(p, 1.0f / kn->exp_sum(p, kn->max(p, u->n_experts), u->n_experts), u->n_experts);
        top_n(ids, keys, n_wanted, p, u->n_experts);
        if (r->step->router_margin && n_wanted > u->top_k) {
            note_margin(r, i, keys[u->top_k - 1] - keys[u->top_k]);
        }
        for (size_t j = 0; j < u->top_k; j++) {
            sum += p[ids[j]];
        }
        if (u->renormalise) {
            norm = 1.0f / sum;
        }
        for (size_t j = 0; j < u->top_k; j++) {
            prob[j] = p[ids[j]] * norm;
        }
        memcpy((int32_t *)u->idx.data + i * u->top_k, ids, u->top_k * sizeof *ids);
    }
}

/* The choices as a benchmark wants them; the router's own work was done all the same. */
static void route_override(const struct op *op, const struct step *step, size_t n_rows)
{
    const struct op_route *u = &op->u.route;
    float *prob = u->prob.data;

    if (step->route_hook(step->route_ctx, op, step, n_rows, u->idx.data)) {
        for (size_t i = 0; i < n_rows * u->top_k; i++) {
            prob[i] = 1.0f / (float)u->top_k;
        }
    }
}

static enum status route_run(struct cpu_backend *be, const struct op *op, const struct step *step,
                             const struct state_pools *state, struct error *err)
{
    const struct op_route *u = &op->u.route;
    struct route_run r = {be, op, step, cpu_op_rows(op, step), be->shared};

    (void)state;
    (void)err;
    cpu_parallel(be, u->n_experts, LINEAR_TILE_ROWS, r.n_rows * u->n_experts * u->in.cols,
                 route_logits, &r);
    cpu_parallel(be, r.n_rows, 1, r.n_rows * u->n_experts * 8, route_choose, &r);
    if (step->route_hook) {
        route_override(op, step, r.n_rows);
    }
    return OK;
}

/* --- experts --- */

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

/* Shared scratch of the op. A "slot" is one (row, choice) pair, numbered in the sorted order. */
struct experts_run {
    const struct cpu_backend *be;
    const struct op_experts *u;
    size_t n_rows;
    float *hidden;       /* [slots][width] gate, then the swiglu product */
    float *up;           /* [slots][width] */
    float *down;         /* [slots][out.cols] */
    int32_t *first_slot; /* [n_experts + 1] */
    int32_t *row_of;     /* [slots] */
    int32_t *slot_of;    /* [n_rows][top_k] */
};

static size_t experts_cut(struct experts_run *r, float *base, const struct op_experts *u,
                          size_t n_rows)
{
    size_t slots = cpu_times(n_rows, u->top_k), wide = cpu_times(slots, u->width);
    size_t sizes[] = {wide, wide, cpu_times(slots, u->out.cols), u->n_experts + 1, slots, slots};
    size_t at[sizeof sizes / sizeof sizes[0]], end = 0;

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        at[i] = end;
        end = cpu_plus(end, cpu_plus(sizes[i], 15) & ~(size_t)15);
    }
    if (base) {
        r->hidden = base + at[0];
        r->up = base + at[1];
        r->down = base + at[2];
        r->first_slot = (int32_t *)(void *)(base + at[3]);
        r->row_of = (int32_t *)(void *)(base + at[4]);
        r->slot_of = (int32_t *)(void *)(base + at[5]);
    }
    return end;
}

static void experts_need(const struct cpu_backend *be, const struct op *op, size_t rows_max,
                         struct cpu_need *need)
{
    const struct op_experts *u = &op->u.experts;

    (void)be;
    need->shared = experts_cut(NULL, NULL, u, rows_max);
    for (size_t e = 0; e < u->n_experts; e++) {
        const struct expert_weights *w = &u->experts[e];

        need->per_thread = size_max(need->per_thread, cpu_product_scratch(&w->gate, rows_max));
        need->per_thread = size_max(need->per_thread, cpu_product_scratch(&w->up, rows_max));
        need->per_thread = size_max(need->per_thread, cpu_product_scratch(&w->down, rows_max));
    }
}

/* Counting sort of the choices by expert; rows keep their order within an expert. */
static void sort_choices(struct experts_run *r)
{
    const struct op_experts *u = r->u;
    const int32_t *idx = u->idx.data;
    size_t n = r->n_rows * u->top_k;

    memset(r->first_slot, 0, (u->n_experts + 1) * sizeof *r->first_slot);
    for (size_t i = 0; i < n; i++) {
        r->first_slot[idx[i] + 1]++;
    }
    for (size_t e = 0; e < u->n_experts; e++) {
        r->first_slot[e + 1] += r->first_slot[e];
    }
    for (size_t i = 0; i < n; i++) {
        int32_t slot = r->first_slot[idx[i]]++;

        r->row_of[slot] = (int32_t)(i / u->top_k);
        r->slot_of[i] = slot;
    }
    for (size_t e = u->n_experts; e > 0; e--) { /* each start has moved to its end */
        r->first_slot[e] = r->first_slot[e - 1];
    }
    r->first_slot[0] = 0;
}

static void experts_inner(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct experts_run *r = ctx;
    const struct op_experts *u = r->u;
    const struct cpu_kernels *kn = r->be->kernels;
    float *scratch = cpu_scratch(r->be, thread);

    for (size_t e = 0; e < u->n_experts; e++) {
        size_t first = (size_t)r->first_slot[e], n = (size_t)r->first_slot[e + 1] - first;
        struct linear_job job = {
            .out = r->hidden + first * u->width,
            .out_stride = u->width,
            .x = u->in.data,
            .x_stride = u->in.cols,
            .x_rows = r->row_of + first,
            .n_x = n,
        };

        if (n == 0) {
            continue;
        }
        cpu_product(r->be, &job, &u->experts[e].gate, begin, end, false, scratch);
        job.out = r->up + first * u->width;
        cpu_product(r->be, &job, &u->experts[e].up, begin, end, false, scratch);
        for (size_t slot = first; slot < first + n; slot++) {
            float *gate = r->hidden + slot * u->width + begin;
            float *up = r->up + slot * u->width + begin;

            kn->round(u->in.round, gate, end - begin);
            kn->round(u->in.round, up, end - begin);
            kn->swiglu(gate, gate, up, end - begin);
            kn->round(u->in.round, gate, end - begin);
        }
    }
}

static void experts_outer(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct experts_run *r = ctx;
    const struct op_experts *u = r->u;
    size_t cols = u->out.cols;

    for (size_t e = 0; e < u->n_experts; e++) {
        size_t first = (size_t)r->first_slot[e];
        struct linear_job job = {
            .out = r->down + first * cols,
            .out_stride = cols,
            .x = r->hidden + first * u->width,
            .x_stride = u->width,
            .n_x = (size_t)r->first_slot[e + 1] - first,
        };

        if (job.n_x > 0) {
            cpu_product(r->be, &job, &u->experts[e].down, begin, end, false,
                        cpu_scratch(r->be, thread));
        }
    }
    for (size_t i = 0; i < r->n_rows; i++) {
        float *out = (float *)u->out.data + i * cols + begin;
        const float *prob = (const float *)u->prob.data + i * u->top_k;

        memset(out, 0, (end - begin) * sizeof *out);
        for (size_t j = 0; j < u->top_k; j++) {
            size_t slot = (size_t)r->slot_of[i * u->top_k + j];

            r->be->kernels->axpy(out, prob[j], r->down + slot * cols + begin, end - begin);
        }
    }
}

static enum status experts_run(struct cpu_backend *be, const struct op *op, const struct step *step,
                               const struct state_pools *state, struct error *err)
{
    const struct op_experts *u = &op->u.experts;
    struct experts_run r = {.be = be, .u = u, .n_rows = cpu_op_rows(op, step)};
    const int32_t *idx = u->idx.data;
    size_t n = r.n_rows * u->top_k;

    (void)state;
    for (size_t i = 0; i < n; i++) {
        if (idx[i] < 0 || (size_t)idx[i] >= u->n_experts) {
            return cpu_broken(err, op, "a choice is not an expert");
        }
    }
    experts_cut(&r, be->shared, u, r.n_rows);
    sort_choices(&r);
    cpu_parallel(be, u->width, 2 * LINEAR_TILE_ROWS, 2 * n * u->width * u->in.cols, experts_inner,
                 &r);
    cpu_parallel(be, u->out.cols, 2 * LINEAR_TILE_ROWS, n * u->width * u->out.cols, experts_outer,
                 &r);
    return OK;
}

const struct cpu_family cpu_route = {route_check, route_need, route_run};
const struct cpu_family cpu_experts = {experts_check, experts_need, experts_run};
