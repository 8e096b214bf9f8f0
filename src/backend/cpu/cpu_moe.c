/* cpu_moe.c - the router: logits, softmax over all experts in float32, then the top k by probability,
 * ties to the lower id.
 *
 * Place: backend/cpu; cpu_experts.c runs what was chosen. */
#include <string.h>

#include "backend/cpu/cpu_internal.h"
#include "base/size.h"

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
    need->shared = cpu_times(rows_max, op->u.route.n_experts);
    need->per_thread = cpu_product_scratch(be, &op->u.route.router, rows_max, false);
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

const struct cpu_family cpu_route = {route_check, route_need, route_run};
