/* weights_overflow.c - see weights_overflow.h.
 *
 * Idea: the loader has written the blocks on all threads, to huge pages where the kernel gives them; so
 *       they are pinned where they are, which copies nothing and touches no page for the first time.
 *       Memory that the driver allocates itself would be cleared by one thread. It is the way out where
 *       memory of others cannot be pinned.
 *       The embedding is in a mapped file, whose pages not every system pins: it is copied first.
 * Order: the embedding, which the device cannot do without; then layer after layer, as far as memory can be
 *       pinned (some systems allow half of it). The others stay where the loader put them, for the CPU to
 *       read. Once a layer could be neither pinned nor copied no other is tried: they are all as large, and a
 *       copy has both in memory at a time. */
#include "model/weights_overflow.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/pool.h"
#include "model/weights_experts.h"

enum { COPY_GRAIN = 2 << 20 }; /* a huge page, which who writes first also clears */

typedef enum status moe_fn(void *ctx, size_t layer, const struct moe_spec *moe, struct error *err);

/* fn for the experts of every layer that may overflow, in the model's order; ends with what is not OK. */
static enum status each_moe(const struct model_spec *spec, const bool *may_overflow, moe_fn *fn,
                            void *ctx, struct error *err)
{
    enum status rc = OK;

    for (size_t l = 0; l < spec->n_layers; l++) {
        for (size_t b = 0; b < spec->layers[l].n_branches; b++) {
            const struct branch_spec *branch = &spec->layers[l].branches[b];

            for (size_t i = 0; rc == OK && i < branch->n_blocks; i++) {
                if (branch->blocks[i].kind == BLOCK_MOE && (!may_overflow || may_overflow[l])) {
                    rc = fn(ctx, l, &branch->blocks[i].u.moe, err);
                }
            }
        }
    }
    return rc;
}

struct overflow {
    struct offload_shape *shape;
    struct model_weights *w;
    struct backend *be;
    struct pool *pool;
    struct progress *progress;
    size_t done, total; /* bytes */
    /* Of experts that are not in a file: */
    size_t pinned, to_pin;      /* bytes */
    size_t n_refused, n_to_pin; /* layers */
};

static size_t arena_bytes(const struct expert_arena *a)
{
    return a->block.n_bytes * a->n_experts;
}

/* Whether the layer's experts can share slots with those of the layers before; if so, it counts. */
static enum status layer_check(void *ctx, size_t layer, const struct moe_spec *moe,
                               struct error *err)
{
    struct overflow *o = ctx;
    struct offload_shape *s = o->shape;
    const struct expert_arena *a = weights_arena_of(o->w, moe->expert0);

    assert(!a || !a->passes);
    if (!a) {
        return error_set(err, ERR_UNSUPPORTED,
                         "layer %zu: its experts are not quantised, or not alike: such experts "
                         "cannot stay in host memory",
                         layer);
    }
    if (s->n_layers == 0) {
        s->block = a->block;
        s->n_experts = moe->n_experts;
        s->top_k = moe->top_k;
        s->hidden = a->block.shape.hidden;
    } else if (moe->n_experts != s->n_experts || moe->top_k != s->top_k ||
               !expert_shape_equal(&a->block.shape, &s->block.shape)) {
        return error_set(err, ERR_UNSUPPORTED,
                         "layer %zu: its experts have another shape than those of layers before: "
                         "they cannot share the device's slots",
                         layer);
    }
    s->n_layers++;
    o->total += arena_bytes(a);
    return OK;
}

/* The way out: a copy in memory that the device's driver allocates. */
static bool copy_to_pinned(struct overflow *o, struct expert_arena *a)
{
    uint8_t *copy = o->be->ops->host_new(o->be, arena_bytes(a));

    if (!copy) {
        return false;
    }
    memcpy(copy, a->base, arena_bytes(a));
    free(a->base);
    a->base = copy;
    weights_view_experts(o->w, a);
    return true;
}

/* Whether the device reaches the arena now. */
static bool arena_pin(struct overflow *o, struct expert_arena *a)
{
    const struct backend_ops *ops = o->be->ops;

    if (a->in_file || o->n_refused > 0) {
        return false;
    }
    a->is_pinned = ops->host_pin && ops->host_pin(o->be, a->base, arena_bytes(a));
    return a->is_pinned || copy_to_pinned(o, a);
}

static enum status layer_pin(void *ctx, size_t layer, const struct moe_spec *moe, struct error *err)
{
    struct overflow *o = ctx;
    struct expert_arena *a = weights_arena_of(o->w, moe->expert0);

    (void)layer;
    (void)err;
    a->is_pageable = !arena_pin(o, a);
    if (!a->in_file) {
        o->to_pin += arena_bytes(a);
        o->pinned += a->is_pageable ? 0 : arena_bytes(a);
        o->n_to_pin++;
        o->n_refused += a->is_pageable;
    }
    a->stays = true;
    a->home_layer = o->shape->n_layers++;
    o->w->overflowing[a->home_layer] = a->base;
    if (a->is_pageable) {
        o->w->pageable[a->home_layer] = true;
        o->shape->is_pageable = o->w->pageable;
    }
    o->done += arena_bytes(a);
    progress_update(o->progress, o->done);
    return OK;
}

/* ---- the embedding ---- */

bool weights_embedding_may_stay(const struct model_weights *w, const struct model_spec *spec)
{
    const struct weight *m = &w->matrices[spec->embed];

    return spec->head != spec->embed && m->kind == WEIGHT_DENSE &&
           (uintptr_t)m->data - (uintptr_t)w->block >= w->block_bytes;
}

struct copying {
    uint8_t *to;
    const uint8_t *from;
};

static void copy_range(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct copying *c = ctx;

    (void)thread;
    memcpy(c->to + begin, c->from + begin, end - begin);
}

static void copy(struct overflow *o, uint8_t *to, const void *from, size_t n_bytes)
{
    struct copying c = {to, from};

    pool_run(o->pool, n_bytes, COPY_GRAIN, copy_range, &c);
}

static enum status embedding_keep(struct overflow *o, struct weight *m, struct error *err)
{
    const struct backend_ops *ops = o->be->ops;
    size_t n_bytes = weight_bytes(m);
    uint8_t *own = huge_new(n_bytes);

    if (own) {
        copy(o, own, m->data, n_bytes);
        o->w->embedding_is_pinned = ops->host_pin && ops->host_pin(o->be, own, n_bytes);
    }
    if (own && !o->w->embedding_is_pinned) {
        free(own);
        own = NULL;
    }
    if (!own) {
        own = ops->host_new(o->be, n_bytes);
        if (!own) {
            return error_set(err, ERR_NO_MEMORY,
                             "the embedding's %zu MiB could not be pinned in host memory: let the "
                             "process lock more (ulimit -l), or leave it more memory",
                             n_bytes >> 20);
        }
        copy(o, own, m->data, n_bytes);
    }
    o->w->embedding = own;
    m->data = own;
    o->done += n_bytes;
    progress_update(o->progress, o->done);
    return OK;
}

void weights_release_embedding(struct model_weights *w)
{
    if (w->embedding && !w->embedding_is_pinned) {
        w->be->ops->host_free(w->be, w->embedding);
    } else if (w->embedding) {
        w->be->ops->host_unpin(w->be, w->embedding);
        free(w->embedding);
    }
    w->embedding = NULL;
}

/* ---- all of it ---- */

static void warn(const struct overflow *o, const struct log *log)
{
    if (o->n_refused > 0) {
        log_warning(
            log,
            "only %zu of %zu MiB of experts could be pinned in host memory: what %zu of %zu "
            "layers miss on the device is left to the CPU, and their prompts are copied "
            "more slowly; to change that let the process lock more (ulimit -l unlimited; "
            "--ulimit memlock=-1 for a container; more memory in .wslconfig under WSL2, "
            "which pins half of it), or give the device more memory",
            o->pinned >> 20, o->to_pin >> 20, o->n_refused, o->n_to_pin);
    }
}

enum status weights_overflow(struct offload_shape *shape, struct model_weights *w,
                             const struct model_spec *spec, const bool *may_overflow,
                             struct backend *be, struct pool *pool, const struct log *log,
                             struct progress *progress, struct error *err)
{
    struct overflow o = {.shape = shape, .w = w, .be = be, .pool = pool, .progress = progress};
    struct weight *embedding =
        weights_embedding_may_stay(w, spec) ? &w->matrices[spec->embed] : NULL;
    enum status rc;

    *shape = (struct offload_shape){0};
    if (!be->ops->experts_open || !be->ops->host_new) {
        return error_set(err, ERR_UNSUPPORTED,
                         "experts cannot stay in host memory: the %s backend has no way for it",
                         be->ops->name);
    }
    rc = each_moe(spec, may_overflow, layer_check, &o, err);
    if (rc != OK || shape->n_layers == 0) {
        return rc;
    }
    w->be = be;
    w->overflowing = calloc(shape->n_layers, sizeof *w->overflowing);
    w->pageable = calloc(shape->n_layers, sizeof *w->pageable);
    if (!w->overflowing || !w->pageable) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the table of experts");
    }
    shape->blocks = w->overflowing;
    shape->n_layers = 0; /* counts again */
    o.total += embedding ? weight_bytes(embedding) : 0;
    progress_start(progress, "pin", PROGRESS_BYTES, o.total);
    rc = embedding ? embedding_keep(&o, embedding, err) : OK;
    rc = rc == OK ? each_moe(spec, may_overflow, layer_pin, &o, err) : rc;
    progress_finish(progress);
    if (rc == OK) {
        warn(&o, log);
    }
    return rc;
}
