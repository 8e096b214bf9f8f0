/* weights_overflow.c - see weights_overflow.h.
 *
 * Idea: the loader has written the blocks on all threads, to huge pages where the kernel gives them; so
 *       they are pinned where they are, which copies nothing and touches no page for the first time.
 *       Memory that the driver allocates itself would be cleared by one thread. It is the way out where
 *       memory of others cannot be pinned. */
#include "model/weights_overflow.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "model/weights_experts.h"

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
    struct progress *progress;
    size_t done, total; /* bytes */
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

static enum status layer_pin(void *ctx, size_t layer, const struct moe_spec *moe, struct error *err)
{
    struct overflow *o = ctx;
    struct expert_arena *a = weights_arena_of(o->w, moe->expert0);
    const struct backend_ops *ops = o->be->ops;

    a->is_pinned = ops->host_pin && ops->host_pin(o->be, a->base, arena_bytes(a));
    if (!a->is_pinned && !copy_to_pinned(o, a)) {
        return error_set(err, ERR_NO_MEMORY,
                         "only %zu of %zu MiB of experts could be pinned in host memory, to layer "
                         "%zu: let the process lock more (ulimit -l), leave it more memory, or let "
                         "fewer layers overflow",
                         o->done >> 20, o->total >> 20, layer);
    }
    a->stays = true;
    a->home_layer = o->shape->n_layers++;
    o->w->overflowing[a->home_layer] = a->base;
    o->done += arena_bytes(a);
    progress_update(o->progress, o->done);
    return OK;
}

enum status weights_overflow(struct offload_shape *shape, struct model_weights *w,
                             const struct model_spec *spec, const bool *may_overflow,
                             struct backend *be, struct progress *progress, struct error *err)
{
    struct overflow o = {.shape = shape, .w = w, .be = be, .progress = progress};
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
    if (!w->overflowing) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the table of experts");
    }
    shape->blocks = w->overflowing;
    shape->n_layers = 0; /* counts again */
    progress_start(progress, "pin", PROGRESS_BYTES, o.total);
    rc = each_moe(spec, may_overflow, layer_pin, &o, err);
    progress_finish(progress);
    return rc;
}
