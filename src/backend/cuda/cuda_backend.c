/* cuda_backend.c - a card as a backend: its beginning and end, plans, and one operation of a step.
 *
 * Place: backend/cuda. Families do the operations (cuda_internal.h), cuda_steps.c a step's tables,
 *        cuda_graph.c whole steps, cuda_memory.c memory and copies, cuda_launch.c the rest of what is
 *        asked of the driver.
 * Calls: copy, read and write cannot fail by contract. When one does, the backend is lost and the next
 *        call that can say so does. */
#include "backend/cuda/cuda_backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_private.h"
#include "base/size.h"

enum { DRIVER_LEAST = 11080, SM_LEAST = 75 };

static struct cuda_backend *backend_of(struct backend *be)
{
    return (struct cuda_backend *)be;
}

size_t cuda_op_rows(const struct op *op, const struct cuda_shape *shape)
{
    return op->rows == ROWS_OUT ? shape->n_out_rows : shape->n_rows;
}

const struct cuda_card *cuda_backend_card(const struct backend *be)
{
    return &((const struct cuda_backend *)be)->card;
}

/* ---- plans ---- */

static enum status check(struct backend *base, struct op *op, struct error *err)
{
    struct cuda_backend *be = backend_of(base);
    const struct cuda_family *family = cuda_family_of(op->kind);
    enum status rc = cuda_enter(be, err);

    op->kernel = NULL;
    if (rc == OK && !family) {
        rc = cuda_refuse(err, op, "there are no kernels for this kind of operation");
    }
    if (rc == OK) {
        rc = family->check(be, op, err);
    }
    if (rc == OK) {
        rc = cuda_family_load(be, family, err);
    }
    return rc;
}

static void plan_free(struct cuda_backend *be)
{
    struct cuda_private *own = be->own;

    cuda_graphs_free(be);
    cuda_constants_free(be);
    cuda_tables_free(be);
    cuda_forced_free(be);
    if (be->scratch) {
        be->drv->mem_free((CUdeviceptr)(uintptr_t)be->scratch);
    }
    free(own->data);
    free(own->units);
    free(own->hook_buffer);
    own->data = NULL;
    own->units = NULL;
    own->hook_buffer = NULL;
    own->n_ops = 0;
    be->scratch = NULL;
    be->scratch_bytes = 0;
}

/* Room for one op's choices and probabilities of all rows. */
static enum status hook_buffer_new(struct cuda_backend *be, struct error *err)
{
    struct cuda_private *own = be->own;
    size_t top_k = 0, n;

    for (size_t i = 0; i < own->n_ops; i++) {
        if (own->ops[i].kind == OP_ROUTE) {
            top_k = size_max(top_k, own->ops[i].u.route.top_k);
        }
    }
    if (top_k == 0) {
        return OK;
    }
    own->hook_buffer =
        size_mul(&n, be->rows_max, 2 * top_k) ? calloc(n, sizeof *own->hook_buffer) : NULL;
    return own->hook_buffer ? OK
                            : error_set(err, ERR_NO_MEMORY,
                                        "cannot allocate the choices of %zu rows", be->rows_max);
}

/* Which neighbours run as one. */
static enum status units_prepare(struct cuda_backend *be, struct cuda_need *most, struct error *err)
{
    struct cuda_private *own = be->own;
    enum status rc = OK;

    for (size_t i = 0; rc == OK && !own->no_fusions && i < own->n_ops;) {
        struct cuda_unit *u = &own->units[i];
        const struct cuda_fusion *f;
        struct cuda_need need = {0};

        for (size_t j = 0; !u->fusion && (f = cuda_fusion_at(j)) != NULL; j++) {
            u->n_ops = f->match(be, &own->ops[i], own->n_ops - i);
            u->fusion = u->n_ops > 0 ? f : NULL;
        }
        if (u->fusion) {
            rc = cuda_family_load(be, u->fusion->family, err);
        }
        if (rc == OK && u->fusion && u->fusion->prepare) {
            rc = u->fusion->prepare(be, &own->ops[i], &own->data[i], &need, &u->data, err);
        }
        most->scratch_bytes = size_max(most->scratch_bytes, need.scratch_bytes);
        i += u->fusion ? u->n_ops : 1;
    }
    return rc;
}

static enum status ops_prepare(struct cuda_backend *be, struct error *err)
{
    struct cuda_private *own = be->own;
    struct cuda_need most = {0};
    CUdeviceptr scratch = 0;
    enum status rc = OK;

    for (size_t i = 0; rc == OK && i < own->n_ops; i++) {
        const struct cuda_family *family = cuda_family_of(own->ops[i].kind);
        struct cuda_need need = {0};

        if (family && family->prepare) {
            rc = family->prepare(be, &own->ops[i], &need, &own->data[i], err);
        }
        most.scratch_bytes = size_max(most.scratch_bytes, need.scratch_bytes);
    }
    if (rc == OK) {
        rc = units_prepare(be, &most, err);
    }
    if (rc == OK && most.scratch_bytes > 0) {
        rc = cuda_alloc(be, &scratch, most.scratch_bytes, "scratch", err);
    }
    be->scratch = (void *)(uintptr_t)scratch;
    be->scratch_bytes = rc == OK ? most.scratch_bytes : 0;
    return rc;
}

static enum status prepare(struct backend *base, const struct op *ops, size_t n_ops,
                           size_t rows_max, size_t context_max, struct error *err)
{
    struct cuda_backend *be = backend_of(base);
    struct cuda_private *own = be->own;
    enum status rc = cuda_enter(be, err);

    if (rc == OK) {
        rc = cuda_wait(be, err);
    }
    if (rc != OK) {
        return rc;
    }
    plan_free(be);
    be->rows_max = rows_max;
    be->context_max = context_max;
    own->data = calloc(n_ops + 1, sizeof(void *));
    own->units = calloc(n_ops + 1, sizeof *own->units);
    if (!own->data || !own->units) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a plan of %zu operations", n_ops);
    }
    own->ops = ops;
    own->n_ops = n_ops;
    rc = cuda_tables_new(be, err);
    if (rc == OK) {
        rc = hook_buffer_new(be, err);
    }
    if (rc == OK) {
        rc = ops_prepare(be, err);
    }
    if (rc == OK) {
        rc =
            cuda_wait(be, err); /* constants have arrived: a step's copies need not think of them */
    }
    if (rc != OK) {
        plan_free(be);
    }
    return rc;
}

/* ---- steps ---- */

enum status cuda_run_op(struct cuda_backend *be, const struct op *op,
                        const struct state_pools *state, struct error *err)
{
    const struct cuda_family *family = cuda_family_of(op->kind);
    struct cuda_private *own = be->own;
    bool is_planned = op >= own->ops && op < own->ops + own->n_ops;

    if (!op->kernel || !family) {
        return error_set(err, ERR_INTERNAL, "%s '%s' of layer %d: check() comes before run()",
                         op_kind_name(op->kind), op->name ? op->name : "?", op->layer);
    }
    if (!is_planned && family->prepare) {
        return error_set(err, ERR_INTERNAL, "%s '%s' of layer %d: is not of the prepared plan",
                         op_kind_name(op->kind), op->name ? op->name : "?", op->layer);
    }
    if (cuda_op_rows(op, &own->shape) == 0) {
        return OK;
    }
    return family->run(be, op, is_planned ? own->data[op - own->ops] : NULL, &own->shape, state,
                       err);
}

static enum status step_is_open(const struct cuda_backend *be, struct error *err)
{
    return be->own->step_is_open
               ? OK
               : error_set(err, ERR_INTERNAL, "begin() comes before a step's operations");
}

/* Lets the step's hook see and replace what an OP_ROUTE has chosen. */
static enum status route_override(struct cuda_backend *be, const struct op *op,
                                  const struct step *step, struct error *err)
{
    const struct op_route *u = &op->u.route;
    size_t n_rows = op->rows == ROWS_OUT ? be->own->step_out_rows : be->own->step_rows;
    size_t n = n_rows * u->top_k;
    int32_t *idx = (int32_t *)be->own->hook_buffer;
    float *prob = be->own->hook_buffer + n;
    enum status rc;

    if (n_rows == 0) {
        return OK;
    }
    rc = cuda_read(be, idx, u->idx.data, n * sizeof *idx, err);
    if (rc != OK || !step->route_hook(step->route_ctx, op, step, n_rows, idx)) {
        return rc;
    }
    for (size_t i = 0; i < n; i++) {
        prob[i] = 1.0f / (float)u->top_k;
    }
    rc = cuda_write(be, u->idx.data, idx, n * sizeof *idx, err);
    return rc != OK ? rc : cuda_write(be, u->prob.data, prob, n * sizeof *prob, err);
}

static enum status run(struct backend *base, const struct op *op, const struct step *step,
                       const struct state_pools *state, struct error *err)
{
    struct cuda_backend *be = backend_of(base);
    enum status rc = cuda_enter(be, err);

    if (rc == OK) {
        rc = step_is_open(be, err);
    }
    if (rc == OK) {
        rc = cuda_run_op(be, op, state, err);
    }
    if (rc == OK && op->kind == OP_ROUTE && step->route_hook) {
        rc = route_override(be, op, step, err);
    }
    return rc;
}

static enum status run_all(struct backend *base, const struct step *step,
                           const struct state_pools *state, struct error *err)
{
    struct cuda_backend *be = backend_of(base);
    enum status rc = cuda_enter(be, err);

    if (rc == OK) {
        rc = step_is_open(be, err);
    }
    if (rc == OK && step->route_hook) {
        rc = error_set(err, ERR_INTERNAL, "a step with a route hook runs op by op");
    }
    return rc == OK ? cuda_run_step(be, state, err) : rc;
}

static enum status begin(struct backend *base, const struct step *step, struct error *err)
{
    struct cuda_backend *be = backend_of(base);
    enum status rc = cuda_enter(be, err);

    return rc == OK ? cuda_step_begin(be, step, err) : rc;
}

static enum status end(struct backend *base, const struct step *step, struct error *err)
{
    struct cuda_backend *be = backend_of(base);
    enum status rc = cuda_enter(be, err);

    return rc == OK ? cuda_step_end(be, step, err) : rc;
}

static enum status wait_all(struct backend *base, struct error *err)
{
    struct cuda_backend *be = backend_of(base);
    enum status rc = cuda_enter(be, err);

    return rc == OK ? cuda_wait(be, err) : rc;
}

/* ---- buffers ---- */

static void *buffer_new(struct backend *base, size_t n_bytes)
{
    struct cuda_backend *be = backend_of(base);
    CUdeviceptr data = 0;

    if (cuda_enter(be, NULL) != OK || cuda_alloc(be, &data, n_bytes, "a buffer", NULL) != OK) {
        return NULL;
    }
    if (cuda_zero(be, (void *)(uintptr_t)data, n_bytes, NULL) != OK) {
        be->drv->mem_free(data);
        return NULL;
    }
    return (void *)(uintptr_t)data;
}

static void buffer_free(struct backend *base, void *data)
{
    struct cuda_backend *be = backend_of(base);

    if (data && be->drv->ctx_set_current(be->context) == CUDA_SUCCESS_) {
        be->drv->mem_free((CUdeviceptr)(uintptr_t)data);
    }
}

/* A copy went wrong that nobody was told of: whatever the error was, the data are not what they should
 * be. */
static void copy_failed(struct cuda_backend *be, const struct error *err)
{
    if (!be->own->is_lost) {
        be->own->is_lost = true;
        be->own->lost = *err;
    }
}

static void copy(struct backend *base, void *dst, const void *src, size_t n_bytes)
{
    struct cuda_backend *be = backend_of(base);
    struct error err;
    enum status rc = cuda_enter(be, &err);

    if (rc == OK && n_bytes > 0) {
        rc = cuda_result(be,
                         be->drv->memcpy_dtod_async((CUdeviceptr)(uintptr_t)dst,
                                                    (CUdeviceptr)(uintptr_t)src, n_bytes,
                                                    be->stream),
                         &err, "cuMemcpyDtoDAsync of %zu bytes", n_bytes);
    }
    if (rc != OK) {
        copy_failed(be, &err);
    }
}

static void read_back(struct backend *base, void *host, const void *src, size_t n_bytes)
{
    struct cuda_backend *be = backend_of(base);
    struct error err;
    enum status rc = cuda_enter(be, &err);

    if (rc == OK) {
        rc = cuda_read(be, host, src, n_bytes, &err);
    }
    if (rc != OK) {
        memset(host, 0xff, n_bytes); /* NaN, whatever the float type: never mistaken for a result */
        copy_failed(be, &err);
    }
}

static void write_to(struct backend *base, void *dst, const void *host, size_t n_bytes)
{
    struct cuda_backend *be = backend_of(base);
    struct error err;
    enum status rc = cuda_enter(be, &err);

    if (rc == OK) {
        rc = cuda_write(be, dst, host, n_bytes, &err);
    }
    if (rc != OK) {
        copy_failed(be, &err);
    }
}

static void upload(struct backend *base, void *dst, const void *host, size_t n_bytes,
                   struct pool *pool)
{
    struct cuda_backend *be = backend_of(base);
    struct error err;
    enum status rc = cuda_enter(be, &err);

    if (rc == OK) {
        rc = cuda_upload(be, dst, host, n_bytes, pool, &err);
    }
    if (rc != OK) {
        copy_failed(be, &err);
    }
}

static bool host_pin(struct backend *base, void *data, size_t n_bytes)
{
    struct cuda_backend *be = backend_of(base);

    return cuda_enter(be, NULL) == OK && cuda_pin(be, data, n_bytes);
}

static void host_unpin(struct backend *base, void *data)
{
    struct cuda_backend *be = backend_of(base);

    if (data && cuda_enter(be, NULL) == OK && be->drv->mem_host_unregister) {
        be->drv->mem_host_unregister(data);
    }
}

/* ---- beginning and end ---- */

static void backend_free(struct backend *base)
{
    struct cuda_backend *be = backend_of(base);
    struct cuda_driver *opened;

    if (!be) {
        return;
    }
    opened = be->own->opened;
    if (be->context) {
        be->drv->ctx_set_current(be->context);
        if (be->stream) {
            be->drv->stream_synchronize(be->stream);
        }
        plan_free(be);
        cuda_offload_close(be);
        cuda_modules_free(be);
        cuda_staging_free(be);
        if (be->stream) {
            be->drv->stream_destroy(be->stream);
        }
        be->drv->ctx_set_current(NULL);
        be->drv->device_primary_ctx_release(be->device);
    }
    cuda_driver_close(opened);
    free(be->own);
    free(be);
}

static void *host_new(struct backend *base, size_t n_bytes)
{
    struct cuda_backend *be = backend_of(base);
    void *p = NULL;

    if (cuda_enter(be, NULL) != OK || be->drv->mem_host_alloc(&p, n_bytes, 0) != CUDA_SUCCESS_) {
        return NULL;
    }
    memset(p, 0, n_bytes);
    return p;
}

static void host_free(struct backend *base, void *data)
{
    struct cuda_backend *be = backend_of(base);

    if (data && cuda_enter(be, NULL) == OK) {
        be->drv->mem_free_host(data);
    }
}

/* After a failure the backend is lost, and end() says so. */
static void read_later(struct backend *base, void *host, const void *src, size_t n_bytes)
{
    struct cuda_backend *be = backend_of(base);
    struct error err;
    enum status rc = cuda_enter(be, &err);

    if (rc == OK) {
        rc = cuda_result(
            be, be->drv->memcpy_dtoh_async(host, (CUdeviceptr)(uintptr_t)src, n_bytes, be->stream),
            &err, "cuMemcpyDtoHAsync of %zu bytes", n_bytes);
    }
    if (rc != OK) {
        copy_failed(be, &err);
    }
}

static void write_later(struct backend *base, void *dst, const void *host, size_t n_bytes)
{
    struct cuda_backend *be = backend_of(base);
    struct error err;
    enum status rc = cuda_enter(be, &err);

    if (rc == OK) {
        rc = cuda_result(
            be, be->drv->memcpy_htod_async((CUdeviceptr)(uintptr_t)dst, host, n_bytes, be->stream),
            &err, "cuMemcpyHtoDAsync of %zu bytes", n_bytes);
    }
    if (rc != OK) {
        copy_failed(be, &err);
    }
}

static enum status experts_open(struct backend *base, struct expert_home *home, struct error *err)
{
    struct cuda_backend *be = backend_of(base);
    enum status rc = cuda_enter(be, err);

    return rc == OK ? cuda_offload_open(be, home, err) : rc;
}

static enum status expert_insert(struct backend *base, size_t layer, size_t expert, size_t slot,
                                 struct error *err)
{
    struct cuda_backend *be = backend_of(base);
    enum status rc = cuda_enter(be, err);

    return rc == OK ? cuda_offload_insert(be, layer, expert, slot, err) : rc;
}

static const struct backend_ops cuda_ops = {
    .name = "cuda",
    .check = check,
    .prepare = prepare,
    .run = run,
    .buffer_new = buffer_new,
    .buffer_free = buffer_free,
    .copy = copy,
    .read = read_back,
    .write = write_to,
    .free = backend_free,
    .begin = begin,
    .end = end,
    .wait = wait_all,
    .host_new = host_new,
    .host_free = host_free,
    .read_later = read_later,
    .write_later = write_later,
    .run_all = run_all,
    .experts_open = experts_open,
    .expert_insert = expert_insert,
    .upload = upload,
    .host_pin = host_pin,
    .host_unpin = host_unpin,
};

/* init and the driver's version. */
static enum status driver_start(struct cuda_backend *be, struct error *err)
{
    enum status rc = cuda_result(be, be->drv->init(0), err, "starting the NVIDIA driver");
    int version = 0;

    if (rc == OK) {
        rc = cuda_result(be, be->drv->driver_get_version(&version), err, "cuDriverGetVersion");
    }
    if (rc == OK && version < DRIVER_LEAST) {
        rc = error_set(
            err, ERR_UNSUPPORTED, "the NVIDIA driver is for CUDA %d.%d, at least %d.%d is needed",
            version / 1000, version % 1000 / 10, DRIVER_LEAST / 1000, DRIVER_LEAST % 1000 / 10);
    }
    be->card.driver_version = version;
    return rc;
}

static enum status attribute(struct cuda_backend *be, int *out, int which, struct error *err)
{
    return cuda_result(be, be->drv->device_get_attribute(out, which, be->device), err,
                       "cuDeviceGetAttribute %d", which);
}

/* Finds the card and says what it is; needs no context. */
static enum status card_find(struct cuda_backend *be, int ordinal, struct error *err)
{
    int n = 0, major = 0, minor = 0, n_multiprocessors = 0, shared = 0;
    enum status rc = cuda_result(be, be->drv->device_get_count(&n), err, "cuDeviceGetCount");

    if (rc == OK && (ordinal < 0 || ordinal >= n)) {
        rc = error_set(err, ERR_UNSUPPORTED, "there is no NVIDIA card %d here: %d in all", ordinal,
                       n);
    }
    if (rc == OK) {
        rc = cuda_result(be, be->drv->device_get(&be->device, ordinal), err, "cuDeviceGet of %d",
                         ordinal);
    }
    if (rc == OK) {
        rc = cuda_result(
            be, be->drv->device_get_name(be->card.name, (int)sizeof be->card.name, be->device), err,
            "cuDeviceGetName");
    }
    rc = rc == OK ? attribute(be, &major, CUDA_ATTRIBUTE_CAPABILITY_MAJOR, err) : rc;
    rc = rc == OK ? attribute(be, &minor, CUDA_ATTRIBUTE_CAPABILITY_MINOR, err) : rc;
    rc = rc == OK ? attribute(be, &n_multiprocessors, CUDA_ATTRIBUTE_MULTIPROCESSORS, err) : rc;
    rc = rc == OK ? attribute(be, &shared, CUDA_ATTRIBUTE_SHARED_OPTIN, err) : rc;
    be->card.sm = major * 10 + minor;
    be->card.n_multiprocessors = n_multiprocessors;
    be->card.shared_bytes_max = (size_t)shared;
    if (rc == OK && be->card.sm < SM_LEAST) {
        rc = error_set(err, ERR_UNSUPPORTED,
                       "'%s' has compute capability %d.%d, at least %d.%d is needed", be->card.name,
                       major, minor, SM_LEAST / 10, SM_LEAST % 10);
    }
    return rc;
}

static enum status context_open(struct cuda_backend *be, struct error *err)
{
    size_t before = 0, after = 0;
    bool is_known = cuda_driver_free_bytes(be->drv, be->device, &before);
    enum status rc = cuda_result(be, be->drv->device_primary_ctx_retain(&be->context, be->device),
                                 err, "opening '%s'", be->card.name);

    if (rc == OK) {
        rc = cuda_enter(be, err);
    }
    if (rc == OK) {
        rc = cuda_result(be, be->drv->mem_get_info(&after, &be->card.memory), err, "cuMemGetInfo");
    }
    /* Where only the driver can be asked, the context's own share stays unknown. */
    be->card.free_bytes = is_known ? size_max(before, after) : after;
    if (rc == OK) {
        rc = cuda_result(be, be->drv->stream_create(&be->stream, CUDA_STREAM_NON_BLOCKING), err,
                         "cuStreamCreate");
    }
    return rc;
}

enum status cuda_backend_new(struct backend **out, const struct cuda_backend_options *o,
                             struct error *err)
{
    struct cuda_backend *be = calloc(1, sizeof *be);
    struct cuda_private *own = calloc(1, sizeof *own);
    enum status rc = OK;

    *out = NULL;
    if (!be || !own) {
        free(be);
        free(own);
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the CUDA backend");
    }
    be->base.ops = &cuda_ops;
    be->own = own;
    own->memory_limit = o->memory_limit;
    own->no_graphs = o->no_graphs;
    own->no_fusions = o->no_fusions;
    be->drv = o->driver;
    if (!be->drv) {
        struct error why;

        own->opened = cuda_driver_open(&why);
        be->drv = own->opened;
        rc = be->drv ? OK : error_set(err, why.code, "%s", why.text);
    }
    rc = rc == OK ? driver_start(be, err) : rc;
    rc = rc == OK ? card_find(be, o->device, err) : rc;
    rc = rc == OK ? context_open(be, err) : rc;
    rc = rc == OK ? cuda_modules_load(be, err) : rc;
    rc = rc == OK ? cuda_staging_new(be, err) : rc;
    if (rc != OK) {
        error_prefix(err, "cannot start the CUDA backend");
        /* What the driver calls its errors does not matter to who asked for a card. */
        rc = rc == ERR_NO_MEMORY ? rc : ERR_UNSUPPORTED;
        if (err) {
            err->code = rc;
        }
        backend_free(&be->base);
        return rc;
    }
    *out = &be->base;
    return OK;
}

bool cuda_is_there(char *why, size_t n)
{
    struct error err = {0};
    struct cuda_driver *drv = cuda_driver_open(&err);
    int n_cards = 0;
    CUresult r;

    if (!drv) {
        snprintf(why, n, "%s", err.text);
        return false;
    }
    r = drv->init(0);
    if (r == CUDA_SUCCESS_) {
        r = drv->device_get_count(&n_cards);
    }
    if (r != CUDA_SUCCESS_ || n_cards == 0) {
        const char *text = NULL;

        if (r == CUDA_SUCCESS_ || drv->get_error_string(r, &text) != CUDA_SUCCESS_ || !text) {
            text = "no card";
        }
        snprintf(why, n, "the NVIDIA driver shows no card: %s", text);
    }
    cuda_driver_close(drv);
    return r == CUDA_SUCCESS_ && n_cards > 0;
}
