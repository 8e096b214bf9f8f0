/* cuda_offload_ahead.c - the next layer's experts are fetched while this layer's are computed.
 *
 * Place:  backend/cuda; a part of cuda_offload.c. See backend/expert_home.h.
 * Branch: a second stream leaves the first after a layer's own fetches, so that it never delays one, and comes
 *         back before the next layer's choices are resolved, which find their slots filled:
 *
 *             stream   .. predict | resolve | fetch | experts | next mixer | predict | resolve | ..
 *             branch                             \ ahead | fetch .......... .......... /
 *
 *         Kernels for one row fetch for themselves and predict in moe_in.cu: there the branch leaves after gate and
 *         up, and takes turns on the link with what down still brings in.
 *         Captured steps hold both. Tables change in one order, whichever way a step runs: resolve and
 *         experts_ahead never run at the same time. Logits are made on the first stream, as nobody promises
 *         that a layer's input outlives the layer; two layers' in turn, as the branch reads them later. */
#include "backend/cuda/cuda_offload.h"
#include "backend/cuda/cuda_private.h"
#include "base/size.h"

enum offload_ahead_kernel { PREDICT, AHEAD, FETCH, AHEAD_KERNELS };

static const char *const ahead_kernels[AHEAD_KERNELS] = {
    [PREDICT] = "experts_predict", [AHEAD] = "experts_ahead", [FETCH] = "experts_fetch"};

static const struct cuda_family ahead_family = {.kernels = ahead_kernels,
                                                .n_kernels = AHEAD_KERNELS};

/* ---- beginning and end ---- */

enum status cuda_offload_ahead_open(struct cuda_backend *be, struct error *err)
{
    struct cuda_offload *o = &be->own->offload;
    const struct cuda_driver *drv = be->drv;
    enum status rc;

    if (!o->home->looks_ahead || o->home->n_slots == 0) {
        return OK;
    }
    rc = cuda_family_load(be, &ahead_family, err);
    if (rc == OK) {
        rc = cuda_result(be, drv->stream_create(&o->branch, CUDA_STREAM_NON_BLOCKING), err,
                         "cuStreamCreate");
    }
    if (rc == OK) {
        rc = cuda_result(be, drv->event_create(&o->forked, CUDA_EVENT_NO_TIMING), err,
                         "cuEventCreate");
    }
    return rc == OK ? cuda_result(be, drv->event_create(&o->joined, CUDA_EVENT_NO_TIMING), err,
                                  "cuEventCreate")
                    : rc;
}

void cuda_offload_ahead_close(struct cuda_backend *be)
{
    struct cuda_offload *o = &be->own->offload;

    if (o->branch) {
        be->drv->stream_synchronize(o->branch);
        be->drv->stream_destroy(o->branch);
    }
    if (o->forked) {
        be->drv->event_destroy(o->forked);
    }
    if (o->joined) {
        be->drv->event_destroy(o->joined);
    }
    o->branch = NULL;
    o->forked = o->joined = NULL;
    o->is_forked = false;
}

/* ---- who is next ---- */

struct next_layer {
    const struct op *route, *experts; /* experts NULL: there is none, or nothing is known of it */
    bool is_predicted;                /* by its router, not by the step's forced_next */
};

static bool can_predict(const struct expert_home *home, const struct op_route *u)
{
    const struct weight *w = &u->router;

    return w->kind == WEIGHT_DENSE && !w->perm && w->n_in == home->hidden &&
           (w->dtype == DTYPE_F32 || w->dtype == DTYPE_BF16 || w->dtype == DTYPE_F16);
}

static struct next_layer next_of(const struct cuda_backend *be, const struct op *op,
                                 const struct cuda_shape *shape)
{
    const struct cuda_private *own = be->own;
    const struct expert_home *home = own->offload.home;
    struct next_layer next = {.is_predicted = !shape->view.forced_next};
    const struct op *end = own->ops + own->n_ops, *o = op;

    if (!own->offload.branch || op < own->ops || op >= end) {
        return next;
    }
    while (++o < end && o->kind != OP_EXPERTS) {
        next.route = o->kind == OP_ROUTE ? o : next.route;
    }
    if (o < end && next.route && o->rows == ROWS_ALL && next.route->rows == ROWS_ALL &&
        o->u.experts.home == home && o->u.experts.home_layer == op->u.experts.home_layer + 1 &&
        !expert_home_is_pageable(home, o->u.experts.home_layer) &&
        next.route->u.route.idx.data == o->u.experts.idx.data &&
        next.route->u.route.n_experts == home->n_experts &&
        next.route->u.route.top_k == home->top_k &&
        (!next.is_predicted || can_predict(home, &next.route->u.route))) {
        next.experts = o;
    }
    return next;
}

static float *logits_of(const struct cuda_backend *be, const struct op *op)
{
    const struct cuda_offload *o = &be->own->offload;

    return o->logits + op->u.experts.home_layer % 2 * EXPERT_HOME_ROWS * o->home->n_experts;
}

const struct weight *cuda_offload_next_router(const struct cuda_backend *be, const struct op *op,
                                              const struct cuda_shape *shape, float **logits)
{
    struct next_layer next = next_of(be, op, shape);

    *logits = logits_of(be, op);
    return next.experts && next.is_predicted ? &next.route->u.route.router : NULL;
}

/* ---- a layer ---- */

static enum status predict(struct cuda_backend *be, const struct op *op,
                           const struct next_layer *next, const struct cuda_shape *shape,
                           struct error *err)
{
    const struct op_experts *u = &op->u.experts;
    const struct weight *router = &next->route->u.route.router;
    struct offload_args home = cuda_offload_args(be, op, shape);
    struct offload_predict_args args = {
        .n_rows = home.n_rows,
        .orders = home.orders,
        .x = u->in.data,
        .router = router->data,
        .dtype = (int32_t)router->dtype,
        .n_in = (int32_t)u->in.cols,
        .n_experts = (int32_t)u->n_experts,
        .in_pieces =
            cuda_is_aligned(router->data) && cuda_is_aligned(u->in.data) && u->in.cols % 8 == 0,
        .logits = logits_of(be, op),
    };
    size_t each = OFFLOAD_PREDICT_THREADS / 32;
    struct cuda_grid grid = {.x = (unsigned)((u->n_experts + each - 1) / each),
                             .threads = OFFLOAD_PREDICT_THREADS};

    return cuda_launch(be, &ahead_family, PREDICT, grid, &args, err);
}

enum status cuda_offload_join_ahead(struct cuda_backend *be, struct error *err)
{
    struct cuda_offload *o = &be->own->offload;

    if (!o->is_forked) {
        return OK;
    }
    o->is_forked = false;
    be->own->has_joined = true;
    return cuda_result(be, be->drv->stream_wait_event(be->stream, o->joined, 0), err,
                       "cuStreamWaitEvent");
}

enum status cuda_offload_before(struct cuda_backend *be, const struct op *op,
                                const struct cuda_shape *shape, struct error *err)
{
    struct next_layer next = next_of(be, op, shape);
    enum status rc = next.experts && next.is_predicted ? predict(be, op, &next, shape, err) : OK;

    return rc == OK ? cuda_offload_join_ahead(be, err) : rc;
}

static enum status launch_ahead(struct cuda_backend *be, const struct next_layer *next,
                                const float *logits, const struct cuda_shape *shape,
                                struct error *err)
{
    const struct op_route *u = &next->route->u.route;
    struct cuda_offload *o = &be->own->offload;
    struct offload_ahead_args args = {
        .home = cuda_offload_args(be, next->experts, shape),
        .route = {.view = shape->view,
                  .count = STEP_ROWS,
                  .logits = (float *)(uintptr_t)logits,
                  .n_experts = (int32_t)u->n_experts,
                  .top_k = (int32_t)u->top_k,
                  .n_slices = 1,
                  .route_layer = (int32_t)cuda_route_layer(be, next->route),
                  .renormalise = u->renormalise},
    };
    struct offload_fetch_args fetch = {.list = o->ahead_list, .block_bytes = o->pool.block_bytes};
    struct cuda_grid one = {.x = 1, .threads = OFFLOAD_THREADS};
    struct cuda_grid few = {.x = OFFLOAD_NEXT_BLOCKS, .threads = OFFLOAD_FETCH_THREADS};
    enum status rc;

    args.home.list = o->ahead_list;
    args.route.view.forced = shape->view.forced_next;
    args.route.view.router_margin = NULL; /* it is a guess */
    rc = cuda_launch_on(be, o->branch, &ahead_family, AHEAD, one, &args, err);
    return rc == OK ? cuda_launch_on(be, o->branch, &ahead_family, FETCH, few, &fetch, err) : rc;
}

enum status cuda_offload_fork_ahead(struct cuda_backend *be, const struct op *op,
                                    const struct cuda_shape *shape, struct error *err)
{
    struct next_layer next = next_of(be, op, shape);
    struct cuda_offload *o = &be->own->offload;
    const struct cuda_driver *drv = be->drv;
    enum status rc, end;

    if (!next.experts) {
        return OK;
    }
    rc = cuda_result(be, drv->event_record(o->forked, be->stream), err, "cuEventRecord");
    if (rc == OK) {
        rc = cuda_result(be, drv->stream_wait_event(o->branch, o->forked, 0), err,
                         "cuStreamWaitEvent");
    }
    if (rc != OK) {
        return rc;
    }
    rc = launch_ahead(be, &next, logits_of(be, op), shape, err);
    end = cuda_result(be, drv->event_record(o->joined, o->branch), rc == OK ? err : NULL,
                      "cuEventRecord"); /* a capture cannot end with the branch away */
    o->is_forked = end == OK;
    return rc == OK ? end : rc;
}
