/* cuda_offload.c - experts that overflow, on a card. See cuda_offload.h.
 *
 * Place:  backend/cuda.
 * Layer:  of a small step that runs op by op: experts_resolve looks the choices up and says who computes
 *         what, experts_fetch copies experts into slots, then the experts' own kernels, then experts_join
 *         adds what the CPU computed. cuda_fuse_moe.c does the first and the last inside its own kernels, and of
 *         one row the copies too.
 * Log:    counts | choices [layers][rows][top_k] | insertions. */
#include "backend/cuda/cuda_offload.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_experts.h"
#include "backend/cuda/cuda_private.h"
#include "backend/cuda/cuda_stream.h"
#include "base/size.h"

enum {
    ALIGN = 256,
    LINE = 64,
    ID_MAX = INT16_MAX,
    FETCH_BYTES = OFFLOAD_FETCH_THREADS * OFFLOAD_FETCH_HELD * 16, /* of a block at a time */
};
/* Longer than any CPU computes a layer's experts of eight rows. */
#define WAIT_NS ((uint64_t)10 * 1000 * 1000 * 1000)

enum offload_kernel { RESOLVE, FETCH, INSERT, JOIN, OFFLOAD_KERNELS };

static const char *const offload_kernels[OFFLOAD_KERNELS] = {
    [RESOLVE] = "experts_resolve",
    [FETCH] = "experts_fetch",
    [INSERT] = "experts_insert",
    [JOIN] = "experts_join",
};

static const struct cuda_family offload_family = {.kernels = offload_kernels,
                                                  .n_kernels = OFFLOAD_KERNELS};

/* ---- beginning and end ---- */

void cuda_offload_close(struct cuda_backend *be)
{
    struct cuda_offload *o = &be->own->offload;

    if (o->home) {
        cuda_offload_ahead_close(be);
        cuda_stream_close(be);
        o->home->mail = NULL;
    }
    if (o->slots) {
        be->drv->mem_free(o->slots);
    }
    if (o->tables) {
        be->drv->mem_free(o->tables);
    }
    if (o->mail) {
        be->drv->mem_free_host(o->mail);
    }
    *o = (struct cuda_offload){0};
    be->own->expert_slots = NULL;
}

static enum status home_check(const struct expert_home *home, struct error *err)
{
    if (home->n_layers == 0 || home->n_layers > ID_MAX || home->n_experts == 0 ||
        home->n_experts > ID_MAX || home->n_slots > INT32_MAX || home->top_k == 0 ||
        home->top_k > EXPERT_HOME_TOP_K || home->hidden == 0 || home->hidden > INT32_MAX / 64) {
        return error_set(err, ERR_UNSUPPORTED,
                         "%zu layers of %zu experts, %zu of which are chosen, %zu columns and %zu "
                         "slots: at most %d, %d, %d, %d and %d are built",
                         home->n_layers, home->n_experts, home->top_k, home->hidden, home->n_slots,
                         ID_MAX, ID_MAX, EXPERT_HOME_TOP_K, INT32_MAX / 64, INT32_MAX);
    }
    for (size_t l = 0; !home->has_cpu && l < home->n_layers; l++) {
        if (expert_home_is_pageable(home, l)) {
            return error_set(err, ERR_UNSUPPORTED,
                             "experts of overflowing layer %zu are in pageable memory, and there "
                             "is no CPU to compute them",
                             l);
        }
    }
    return OK;
}

/* What the tables' memory is cut into. */
struct cut {
    size_t slot_of, owner, matrices, blocks, list, resolved, away, posted, asked, arrived,
        ahead_list, next, logits, n_bytes;
};

static bool cut_add(struct cut *c, size_t *at, size_t rows, size_t each)
{
    size_t n;

    *at = c->n_bytes;
    return size_mul(&n, rows, each) && size_align(&n, n, ALIGN) &&
           size_add(&c->n_bytes, c->n_bytes, n);
}

static bool tables_cut(struct cut *c, const struct expert_home *home)
{
    size_t n = home->n_layers * home->n_experts; /* both are small */

    *c = (struct cut){0};
    return cut_add(c, &c->slot_of, n, sizeof(int32_t)) &&
           cut_add(c, &c->owner, home->n_slots, sizeof(struct offload_owner)) &&
           cut_add(c, &c->matrices, n * EXPERTS_MATRICES, sizeof(struct experts_matrix)) &&
           cut_add(c, &c->blocks, home->n_layers, sizeof(uint8_t *)) &&
           cut_add(c, &c->list, 1, sizeof(struct offload_list)) &&
           cut_add(c, &c->resolved, EXPERT_HOME_PAIRS, sizeof(int32_t)) &&
           cut_add(c, &c->away, EXPERT_HOME_PAIRS, sizeof(int64_t)) &&
           cut_add(c, &c->posted, 1, sizeof(int32_t)) &&
           cut_add(c, &c->asked, home->n_layers, sizeof(uint32_t)) &&
           cut_add(c, &c->arrived, home->n_layers, sizeof(uint32_t)) &&
           cut_add(c, &c->ahead_list, 1, sizeof(struct offload_list)) &&
           cut_add(c, &c->next, 1, sizeof(struct offload_next)) &&
           cut_add(c, &c->logits, 2 * EXPERT_HOME_ROWS * home->n_experts, sizeof(float));
}

static void pool_fill(struct cuda_offload *o, const struct cut *c)
{
    const struct expert_block *b = &o->home->block;
    uint8_t *tables = (uint8_t *)(uintptr_t)o->tables;

    o->pool = (struct offload_pool){
        .slot_of = (int32_t *)(void *)(tables + c->slot_of),
        .owner = (struct offload_owner *)(void *)(tables + c->owner),
        .tables = (struct experts_matrix *)(void *)(tables + c->matrices),
        .blocks = (const uint8_t *const *)(const void *)(tables + c->blocks),
        .slots = (uint8_t *)(uintptr_t)o->slots,
        .block_bytes = b->n_bytes,
        .has_zeros = b->shape.has_zeros,
        .has_perms = b->shape.has_perms,
        .n_layers = (int32_t)o->home->n_layers,
        .n_experts = (int32_t)o->home->n_experts,
        .n_slots = (int32_t)o->home->n_slots,
    };
    for (size_t i = 0; i < EXPERTS_MATRICES; i++) {
        o->pool.values[i] = b->part[i].values;
        o->pool.scales[i] = b->part[i].scales;
        o->pool.zeros[i] = b->part[i].zeros;
        o->pool.perm[i] = b->part[i].perm;
    }
    o->list = (struct offload_list *)(void *)(tables + c->list);
    o->resolved = (int32_t *)(void *)(tables + c->resolved);
    o->away = (int64_t *)(void *)(tables + c->away);
    o->posted = (int32_t *)(void *)(tables + c->posted);
    o->asked = (uint32_t *)(void *)(tables + c->asked);
    o->arrived = (uint32_t *)(void *)(tables + c->arrived);
    o->ahead_list = (struct offload_list *)(void *)(tables + c->ahead_list);
    o->next = (struct offload_next *)(void *)(tables + c->next);
    o->logits = (float *)(void *)(tables + c->logits);
}

/* No address that a kernel could read. */
static void matrix_hide(struct experts_matrix *m)
{
    m->data = m->scales = NULL;
    m->zeros = NULL;
    m->perm = NULL;
}

/* All experts are on the host. */
static void matrices_fill(struct experts_matrix *m, const struct expert_home *home)
{
    for (size_t l = 0; l < home->n_layers; l++) {
        for (size_t e = 0; e < home->n_experts; e++) {
            struct expert_weights w =
                expert_block_view(&home->block, home->blocks[l] + e * home->block.n_bytes);

            m[EXPERTS_GATE] = cuda_experts_matrix(&w.gate);
            m[EXPERTS_UP] = cuda_experts_matrix(&w.up);
            m[EXPERTS_DOWN] = cuda_experts_matrix(&w.down);
            for (size_t i = 0; i < EXPERTS_MATRICES && expert_home_is_pageable(home, l); i++) {
                matrix_hide(&m[i]);
            }
            m += EXPERTS_MATRICES;
        }
    }
}

static void blocks_fill(const uint8_t **blocks, const struct expert_home *home)
{
    for (size_t l = 0; l < home->n_layers; l++) {
        blocks[l] = expert_home_is_pageable(home, l) ? NULL : home->blocks[l];
    }
}

static enum status tables_new(struct cuda_backend *be, struct error *err)
{
    struct cuda_offload *o = &be->own->offload;
    const struct expert_home *home = o->home;
    enum status rc;
    uint8_t *host;
    struct cut c;

    if (!tables_cut(&c, home)) {
        return error_set(err, ERR_LIMIT, "tables of %zu layers and %zu slots are too large",
                         home->n_layers, home->n_slots);
    }
    rc = cuda_alloc(be, &o->tables, c.n_bytes, "tables of experts", err);
    if (rc != OK) {
        return rc;
    }
    host = calloc(1, c.n_bytes);
    if (!host) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate tables of %zu layers' experts",
                         home->n_layers);
    }
    memset(host + c.slot_of, 0xff, c.matrices - c.slot_of); /* nobody is anywhere */
    matrices_fill((struct experts_matrix *)(void *)(host + c.matrices), home);
    blocks_fill((const uint8_t **)(void *)(host + c.blocks), home);
    rc = cuda_write(be, (void *)(uintptr_t)o->tables, host, c.n_bytes, err);
    free(host);
    pool_fill(o, &c);
    return rc;
}

static enum status mail_new(struct cuda_backend *be, struct error *err)
{
    struct cuda_offload *o = &be->own->offload;
    size_t n = o->home->n_layers, each = EXPERT_HOME_ROWS * o->home->hidden, boxes, rows, bytes;
    enum status rc = OK;
    void *p = NULL;
    float *x;

    _Static_assert(sizeof(struct expert_mail) % EXPERT_MAIL_LINE == 0, "boxes begin at lines");
    if (!size_align(&each, each, LINE / sizeof(float)) ||
        !size_mul(&boxes, n, sizeof(struct expert_mail)) || !size_mul(&rows, n, each) ||
        !size_mul(&rows, rows, 2 * sizeof(float)) || !size_add(&bytes, boxes, rows)) {
        return error_set(err, ERR_LIMIT, "the mail of %zu layers is too large", n);
    }
    rc = cuda_result(be, be->drv->mem_host_alloc(&p, bytes, 0), err,
                     "cuMemHostAlloc of %zu bytes for the mail between card and CPU", bytes);
    if (rc != OK) {
        return rc;
    }
    memset(p, 0, bytes);
    o->mail = p;
    x = (float *)(void *)((uint8_t *)p + boxes);
    for (size_t l = 0; l < n; l++) {
        o->mail[l].x = x + 2 * l * each;
        o->mail[l].y = o->mail[l].x + each;
    }
    o->home->mail = o->mail;
    return OK;
}

enum status cuda_offload_open(struct cuda_backend *be, struct expert_home *home, struct error *err)
{
    struct cuda_offload *o = &be->own->offload;
    size_t n_bytes = 0;
    enum status rc = cuda_wait(be, err);

    if (rc != OK) {
        return rc;
    }
    cuda_graphs_free(be); /* they hold addresses */
    cuda_offload_close(be);
    if (!home) {
        return OK;
    }
    rc = home_check(home, err);
    if (rc == OK && !size_mul(&n_bytes, home->n_slots, home->block.n_bytes)) {
        rc = error_set(err, ERR_LIMIT, "%zu slots of %zu bytes are too many", home->n_slots,
                       home->block.n_bytes);
    }
    if (rc == OK) {
        rc = cuda_family_load(be, &offload_family, err);
    }
    if (rc != OK) {
        return rc;
    }
    o->home = home;
    o->wait_ns = WAIT_NS;
    if (n_bytes > 0) {
        rc = cuda_alloc(be, &o->slots, n_bytes, "slots for experts", err);
        be->own->expert_slots = (uint8_t *)(uintptr_t)o->slots;
    }
    rc = rc == OK ? tables_new(be, err) : rc;
    rc = rc == OK ? mail_new(be, err) : rc;
    rc = rc == OK ? cuda_stream_open(be, home, err) : rc;
    rc = rc == OK ? cuda_offload_ahead_open(be, err) : rc;
    rc = rc == OK ? cuda_wait(be, err) : rc;
    if (rc != OK) {
        cuda_offload_close(be);
    }
    return rc;
}

enum status cuda_offload_insert(struct cuda_backend *be, size_t layer, size_t expert, size_t slot,
                                struct error *err)
{
    struct cuda_offload *o = &be->own->offload;
    const struct expert_home *home = o->home;
    struct cuda_grid grid = {.x = 1, .threads = 32};
    struct offload_insert_args args = {
        .pool = o->pool, .layer = (int32_t)layer, .expert = (int32_t)expert, .slot = (int32_t)slot};
    size_t n;
    enum status rc;

    if (!home || layer >= home->n_layers || expert >= home->n_experts || slot >= home->n_slots) {
        return error_set(err, ERR_INTERNAL, "expert %zu of layer %zu for slot %zu of %zu", expert,
                         layer, slot, home ? home->n_slots : 0);
    }
    n = home->block.n_bytes;
    rc = cuda_result(be,
                     be->drv->memcpy_htod_async(o->slots + slot * n,
                                                home->blocks[layer] + expert * n, n, be->stream),
                     err, "cuMemcpyHtoDAsync of expert %zu of layer %zu", expert, layer);
    return rc == OK ? cuda_launch(be, &offload_family, INSERT, grid, &args, err) : rc;
}

/* ---- steps ---- */

bool cuda_offload_is_small(const struct cuda_shape *shape)
{
    return shape->n_rows <= EXPERT_HOME_ROWS;
}

static size_t lines(size_t n_bytes)
{
    return (n_bytes + LINE - 1) & ~(size_t)(LINE - 1);
}

static size_t choices_bytes(const struct expert_home *home, size_t n_rows)
{
    return lines(home->n_layers * n_rows * home->top_k * sizeof(int32_t));
}

size_t cuda_offload_log_bytes(const struct cuda_backend *be, size_t n_rows)
{
    const struct expert_home *home = be->own->offload.home;

    return home && n_rows > 0 && n_rows <= EXPERT_HOME_ROWS
               ? sizeof(struct offload_counts) + choices_bytes(home, n_rows) +
                     EXPERT_HOME_VICTIMS * sizeof(struct expert_insertion)
               : 0;
}

size_t cuda_offload_bytes(const struct cuda_backend *be, size_t n_rows)
{
    size_t log = cuda_offload_log_bytes(be, n_rows);

    return log ? log + lines(sizeof(struct expert_orders)) : 0;
}

/* The parts of a step's log and orders, which begin at `base`. */
struct parts {
    struct offload_counts *counts;
    int32_t *choices;
    struct expert_insertion *insertions;
    struct expert_orders *orders;
};

static struct parts parts_of(const struct expert_home *home, uint8_t *base, size_t n_rows)
{
    uint8_t *choices = base + sizeof(struct offload_counts);
    uint8_t *insertions = choices + choices_bytes(home, n_rows);
    uint8_t *orders = insertions + EXPERT_HOME_VICTIMS * sizeof(struct expert_insertion);

    return (struct parts){.counts = (struct offload_counts *)(void *)base,
                          .choices = (int32_t *)(void *)choices,
                          .insertions = (struct expert_insertion *)(void *)insertions,
                          .orders = (struct expert_orders *)(void *)orders};
}

void cuda_offload_begin(struct cuda_backend *be, size_t at)
{
    struct cuda_private *own = be->own;
    struct cuda_offload *o = &own->offload;
    struct parts p;

    o->is_announced = false;
    if (cuda_offload_bytes(be, own->shape.n_rows) == 0) {
        return;
    }
    p = parts_of(o->home, own->tables + at, own->shape.n_rows);
    *p.counts = (struct offload_counts){.late_layer = OFFLOAD_NOT_LATE};
    memset(p.orders, 0, sizeof *p.orders);
    o->home->ops->step_begin(o->home->ctx, p.orders, own->step_rows);
    o->at = at;
    o->is_announced = true;
}

enum status cuda_offload_end(struct cuda_backend *be, struct error *err)
{
    const struct cuda_private *own = be->own;
    struct cuda_offload *o = &be->own->offload;
    struct expert_report report;
    struct parts p;

    if (!o->is_announced) {
        return OK;
    }
    o->is_announced = false;
    p = parts_of(o->home, own->tables + o->at, own->shape.n_rows);
    report = (struct expert_report){
        .ticket = p.orders->ticket,
        .n_rows = own->step_rows,
        .idx = p.choices,
        .insertions = p.insertions,
        .n_insertions = (size_t)p.counts->n_insertions,
        .n_hits = (size_t)p.counts->n_hits,
        .n_fetched = (size_t)p.counts->n_fetched,
        .n_cpu = (size_t)p.counts->n_cpu,
        .n_next = (size_t)p.counts->n_next,
        .n_next_used = (size_t)p.counts->n_next_used,
        .n_in_place = (size_t)p.counts->n_in_place,
        .n_victims_used = (size_t)p.counts->n_victims_used,
    };
    o->home->ops->step_end(o->home->ctx, &report);
    if (p.counts->late_layer != OFFLOAD_NOT_LATE) {
        return error_set(
            err, ERR_DEVICE,
            "the CPU did not compute the experts of overflowing layer %d within %.3g s",
            p.counts->late_layer, (double)o->wait_ns * 1e-9);
    }
    return OK;
}

/* ---- operations ---- */

enum status cuda_offload_check(struct cuda_backend *be, const struct op *op, struct error *err)
{
    const struct op_experts *u = &op->u.experts;
    const struct expert_home *home = be->own->offload.home;
    struct expert_shape shape;

    if (!home || u->home != home) {
        return cuda_refuse(err, op,
                           "experts that overflow, and experts_open() did not come before");
    }
    if (u->home_layer >= home->n_layers || u->n_experts != home->n_experts ||
        u->top_k != home->top_k || u->in.cols != home->hidden || u->out.cols != home->hidden ||
        op->rows != ROWS_ALL) {
        return cuda_refuse(err, op,
                           "layer %zu of those that overflow has %zu experts, %zu of them chosen, "
                           "of %zu columns: not like the other layers",
                           u->home_layer, u->n_experts, u->top_k, u->in.cols);
    }
    if (!expert_shape_of(&shape, &u->experts[0]) ||
        !expert_shape_equal(&shape, &home->block.shape)) {
        return cuda_refuse(err, op, "its experts are not like those of other layers");
    }
    return OK;
}

void *cuda_offload_table(const struct cuda_backend *be, const struct op *op)
{
    const struct cuda_offload *o = &be->own->offload;

    return o->pool.tables + op->u.experts.home_layer * o->home->n_experts * EXPERTS_MATRICES;
}

const int32_t *cuda_offload_resolved(const struct cuda_backend *be)
{
    return be->own->offload.resolved;
}

int64_t *cuda_offload_away(const struct cuda_backend *be)
{
    return be->own->offload.away;
}

static struct parts device_parts(const struct cuda_backend *be)
{
    const struct cuda_private *own = be->own;

    return parts_of(own->offload.home, (uint8_t *)(uintptr_t)own->device_tables + own->offload.at,
                    own->shape.n_rows);
}

struct offload_args cuda_offload_args(const struct cuda_backend *be, const struct op *op,
                                      const struct cuda_shape *shape)
{
    const struct op_experts *u = &op->u.experts;
    const struct cuda_offload *o = &be->own->offload;
    struct parts p = device_parts(be);

    return (struct offload_args){
        .pool = o->pool,
        .n_rows = shape->view.counts + STEP_ROWS,
        .layer = (int32_t)u->home_layer,
        .top_k = (int32_t)u->top_k,
        .hidden = (int32_t)u->in.cols,
        .has_cpu = o->home->has_cpu,
        .is_pageable = expert_home_is_pageable(o->home, u->home_layer),
        .orders = p.orders,
        .counts = p.counts,
        .log_idx = p.choices,
        .insertions = p.insertions,
        .list = o->list,
        .next = o->next,
        .idx = u->idx.data,
        .prob = u->prob.data,
        .resolved = o->resolved,
        .posted = o->posted,
        .x = u->in.data,
        .mail = &o->mail[u->home_layer],
        .mail_x = o->mail[u->home_layer].x,
    };
}

struct offload_join cuda_offload_join(const struct cuda_backend *be, const struct op *op)
{
    const struct cuda_offload *o = &be->own->offload;
    size_t layer = op->u.experts.home_layer;
    struct parts p = device_parts(be);

    return (struct offload_join){
        .posted = o->home->has_cpu ? o->posted : NULL,
        .ticket = &p.orders->ticket,
        .answered = &o->mail[layer].answered,
        .asked = &o->asked[layer],
        .arrived = &o->arrived[layer],
        .y = o->mail[layer].y,
        .late_layer = &p.counts->late_layer,
        .layer = (int32_t)layer,
        .wait_ns = o->wait_ns,
    };
}

enum status cuda_offload_resolve(struct cuda_backend *be, const struct op *op,
                                 const struct cuda_shape *shape, struct error *err)
{
    struct offload_args args = cuda_offload_args(be, op, shape);
    struct cuda_grid grid = {.x = 1, .threads = OFFLOAD_THREADS};
    enum status rc = cuda_offload_before(be, op, shape, err);

    return rc == OK ? cuda_launch(be, &offload_family, RESOLVE, grid, &args, err) : rc;
}

enum status cuda_offload_fetch(struct cuda_backend *be, const struct op *op,
                               const struct cuda_shape *shape, struct error *err)
{
    const struct cuda_offload *o = &be->own->offload;
    struct offload_fetch_args args = {.list = o->list, .block_bytes = o->pool.block_bytes};
    struct cuda_grid grid = {
        .x = (unsigned)size_min(OFFLOAD_FETCH_BLOCKS,
                                (o->pool.block_bytes + FETCH_BYTES - 1) / FETCH_BYTES),
        .threads = OFFLOAD_FETCH_THREADS,
    };
    enum status rc = OK;

    if (o->home->n_slots == 0) {
        return OK;
    }
    if (!expert_home_is_pageable(o->home, op->u.experts.home_layer)) {
        rc = cuda_launch(be, &offload_family, FETCH, grid, &args, err);
    }
    return rc == OK ? cuda_offload_fork_ahead(be, op, shape, err) : rc;
}

enum status cuda_offload_add(struct cuda_backend *be, const struct op *op,
                             const struct cuda_shape *shape, struct error *err)
{
    const struct op_experts *u = &op->u.experts;
    struct offload_join_args args = {
        .join = cuda_offload_join(be, op),
        .n_rows = shape->view.counts + STEP_ROWS,
        .out = u->out.data,
        .hidden = (int32_t)u->out.cols,
    };
    struct cuda_grid grid = {
        .x = (unsigned)((u->out.cols + OFFLOAD_JOIN_THREADS - 1) / OFFLOAD_JOIN_THREADS),
        .y = (unsigned)shape->n_rows,
        .threads = OFFLOAD_JOIN_THREADS,
    };

    return args.join.posted ? cuda_launch(be, &offload_family, JOIN, grid, &args, err) : OK;
}
