/* cuda_forced.c - choices of experts that a benchmark makes in place of the routers, brought to where the
 * kernels of a step look for them. See cuda_forced.h.
 *
 * Place: backend/cuda. Nothing of this exists until a step has such choices: who serves pays nothing.
 * Few rows:  a table on the card, as a captured step must not wait for the link in every layer.
 * Many rows: the kernels read the choices in host memory; what that takes is nothing beside the rest of
 *            the step, and a long prompt's choices would be some 10 MB of the card. */
#include "backend/cuda/cuda_forced.h"

#include <string.h>

#include "backend/cuda/cuda_private.h"
#include "base/size.h"

enum { FEW_ROWS = 64 };

struct routes { /* of the prepared plan */
    size_t n, n_experts, top_k;
};

static enum status routes_of(struct routes *r, const struct cuda_backend *be, struct error *err)
{
    *r = (struct routes){0};
    for (size_t i = 0; i < be->own->n_ops; i++) {
        const struct op *op = &be->own->ops[i];
        const struct op_route *u = &op->u.route;

        if (op->kind != OP_ROUTE) {
            continue;
        }
        if (op->rows != ROWS_ALL ||
            (r->n > 0 && (u->n_experts != r->n_experts || u->top_k != r->top_k))) {
            return error_set(err, ERR_UNSUPPORTED,
                             "layer %d: a router of its own sort; choices cannot be made for it",
                             op->layer);
        }
        r->n_experts = u->n_experts;
        r->top_k = u->top_k;
        r->n++;
    }
    return r->n > 0 ? OK
                    : error_set(err, ERR_UNSUPPORTED, "the model has no experts to choose from");
}

void cuda_forced_free(struct cuda_backend *be)
{
    struct cuda_forced *f = &be->own->forced;

    if (f->host) {
        be->drv->mem_free_host(f->host);
    }
    if (f->device) {
        be->drv->mem_free(f->device);
    }
    *f = (struct cuda_forced){0};
}

static enum status host_grow(struct cuda_backend *be, size_t n, struct error *err)
{
    struct cuda_forced *f = &be->own->forced;
    void *host = NULL;
    enum status rc;

    if (n <= f->host_ints) {
        return OK;
    }
    cuda_graphs_free(be); /* the one of many rows may hold the old address */
    if (f->host) {
        be->drv->mem_free_host(f->host);
        f->host = NULL;
        f->host_ints = 0;
    }
    rc = cuda_result(be, be->drv->mem_host_alloc(&host, 2 * n * sizeof(int32_t), 0), err,
                     "cuMemHostAlloc of %zu choices", n);
    if (rc == OK) {
        f->host = host;
        f->host_ints = n;
    }
    return rc;
}

/* Ids come from outside and index tables on the card. */
static enum status ids_copy(int32_t *out, const int32_t *ids, size_t n, size_t n_experts,
                            struct error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (size_t)ids[i] >= n_experts) {
            return error_set(err, ERR_INTERNAL, "expert %d was chosen of %zu", ids[i], n_experts);
        }
        out[i] = ids[i];
    }
    return OK;
}

static enum status upload(struct cuda_backend *be, size_t at, const int32_t *from, size_t n,
                          struct error *err)
{
    CUdeviceptr to = be->own->forced.device + at * sizeof(int32_t);

    return cuda_result(be, be->drv->memcpy_htod_async(to, from, n * sizeof(int32_t), be->stream),
                       err, "cuMemcpyHtoDAsync of %zu choices", n);
}

/* The first n choices, and predictions if there are any, from host to device memory. */
static enum status few_rows(struct cuda_backend *be, const struct routes *r, size_t n,
                            bool has_next, struct error *err)
{
    struct cuda_forced *f = &be->own->forced;
    enum status rc = OK;

    if (!f->device) {
        f->device_ints = r->n * FEW_ROWS * r->top_k;
        rc = cuda_alloc(be, &f->device, 2 * f->device_ints * sizeof(int32_t), "choices", err);
    }
    if (rc == OK) {
        rc = upload(be, 0, f->host, n, err);
    }
    if (rc == OK && has_next) {
        rc = upload(be, f->device_ints, f->host + f->host_ints, n, err);
    }
    return rc;
}

enum status cuda_forced_begin(struct cuda_backend *be, struct cuda_shape *shape,
                              const struct step *step, struct error *err)
{
    struct cuda_forced *f = &be->own->forced;
    bool has_next = step->forced_next != NULL;
    struct routes r;
    enum status rc;
    size_t n;

    if (!step->forced_idx) {
        return OK;
    }
    rc = routes_of(&r, be, err);
    if (rc != OK) {
        return rc;
    }
    if (!size_mul(&n, step->n_rows, r.n * r.top_k) || n > INT32_MAX) {
        return error_set(err, ERR_LIMIT, "choices for %zu rows", step->n_rows);
    }
    rc = host_grow(be, size_max(n, r.n * FEW_ROWS * r.top_k), err);
    if (rc == OK) {
        rc = ids_copy(f->host, step->forced_idx, n, r.n_experts, err);
    }
    if (rc == OK && has_next) {
        rc = ids_copy(f->host + f->host_ints, step->forced_next, n, r.n_experts, err);
    }
    if (rc != OK) {
        return rc;
    }
    shape->view.forced = f->host;
    shape->view.forced_next = has_next ? f->host + f->host_ints : NULL;
    if (shape->n_rows <= FEW_ROWS) {
        const int32_t *device;

        rc = few_rows(be, &r, n, has_next, err);
        device = (const int32_t *)(uintptr_t)f->device;
        shape->view.forced = device;
        shape->view.forced_next = has_next ? device + f->device_ints : NULL;
    }
    return rc;
}
