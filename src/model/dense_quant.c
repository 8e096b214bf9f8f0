/* dense_quant.c - see dense_quant.h. */
#include "model/dense_quant.h"

#include <stdlib.h>

#include "backend/weight_quantise.h"
#include "base/arena.h"
#include "base/size.h"

enum { GROUP_USUAL = 128 };

/* ---- which ---- */

typedef void slot_fn(void *ctx, matrix_slot slot);

static void each_of_dense(const struct dense_spec *d, slot_fn *fn, void *ctx)
{
    if (d->width > 0) {
        fn(ctx, d->gate);
        fn(ctx, d->up);
        fn(ctx, d->down);
    }
}

static void each_of_block(const struct block_spec *block, slot_fn *fn, void *ctx)
{
    switch (block->kind) {
    case BLOCK_GDN:
        fn(ctx, block->u.gdn.qkv);
        fn(ctx, block->u.gdn.z);
        fn(ctx, block->u.gdn.out);
        break;
    case BLOCK_ATTENTION:
        fn(ctx, block->u.attention.q);
        fn(ctx, block->u.attention.k);
        fn(ctx, block->u.attention.v);
        fn(ctx, block->u.attention.out);
        break;
    case BLOCK_DENSE:
        each_of_dense(&block->u.dense, fn, ctx);
        break;
    case BLOCK_MOE:
        each_of_dense(&block->u.moe.shared, fn, ctx);
        break;
    }
}

static void each_slot(const struct model_spec *spec, slot_fn *fn, void *ctx)
{
    for (size_t i = 0; i < spec->n_layers; i++) {
        for (size_t j = 0; j < spec->layers[i].n_branches; j++) {
            const struct branch_spec *branch = &spec->layers[i].branches[j];

            for (size_t k = 0; k < branch->n_blocks; k++) {
                each_of_block(&branch->blocks[k], fn, ctx);
            }
        }
    }
    fn(ctx, spec->head);
}

struct elems {
    const struct model_spec *spec;
    size_t n;
};

static void count_elems(void *ctx, matrix_slot slot)
{
    struct elems *e = ctx;

    e->n += e->spec->matrices[slot].n_out * e->spec->matrices[slot].n_in;
}

size_t dense_quant_elems(const struct model_spec *spec)
{
    struct elems e = {.spec = spec};

    each_slot(spec, count_elems, &e);
    return e.n;
}

size_t dense_quant_bytes(size_t n_elems)
{
    return n_elems + n_elems / GROUP_USUAL * sizeof(uint16_t);
}

/* ---- how ---- */

static size_t group_for(const struct weight *w)
{
    const size_t groups[] = {GROUP_USUAL, 64, 32, w->n_in};

    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        if (weight_int8_fits(w, groups[i])) {
            return groups[i];
        }
    }
    return 0;
}

struct quantiser {
    struct model_weights *w;
    const struct model_spec *spec;
    struct pool *pool;
    struct progress *progress;
    size_t used; /* bytes of the block; while it is NULL, only counted */
    bool overflow;
};

static void quantise_slot(void *ctx, matrix_slot slot)
{
    struct quantiser *q = ctx;
    struct weight *w = &q->w->matrices[slot], copy;
    size_t group = group_for(w), n_bytes = group > 0 ? weight_int8_bytes(w, group) : 0, end;

    if (group == 0) {
        return;
    }
    if (n_bytes == 0 || !size_add(&end, q->used, n_bytes)) {
        q->overflow = true;
        return;
    }
    if (q->w->int8_block) {
        weight_quantise_int8(&copy, q->w->int8_block + q->used, w, group, q->pool);
        if (slot == q->spec->head && slot == q->spec->embed) {
            q->w->tied_head = copy;
        } else {
            q->w->n_bytes -= weight_bytes(w);
            *w = copy;
        }
        q->w->n_bytes += weight_bytes(&copy);
        progress_update(q->progress, end);
    }
    q->used = end;
}

enum status dense_quantise(struct model_weights *w, const struct model_spec *spec,
                           struct pool *pool, struct progress *progress, struct error *err)
{
    struct quantiser q = {.w = w, .spec = spec, .pool = pool, .progress = progress};

    each_slot(spec, quantise_slot, &q);
    if (q.overflow) {
        return error_set(err, ERR_LIMIT, "the int8 matrices are too large to address");
    }
    if (q.used == 0) {
        return OK;
    }
    w->int8_block = huge_new(q.used);
    w->int8_bytes = q.used;
    if (!w->int8_block) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate %zu MiB for int8 matrices",
                         q.used >> 20);
    }
    progress_start(progress, "dense to int8", PROGRESS_BYTES, q.used);
    q.used = 0;
    each_slot(spec, quantise_slot, &q);
    progress_finish(progress);
    return OK;
}

/* ---- forms only ---- */

static void outline_slot(void *ctx, matrix_slot slot)
{
    struct quantiser *q = ctx;
    struct weight *w = &q->w->matrices[slot], copy = *w;
    size_t group = group_for(w);

    if (group == 0) {
        return;
    }
    copy.kind = WEIGHT_INT8;
    copy.dtype = DTYPE_BF16;
    copy.group = group;
    copy.scales = w->data;
    if (slot == q->spec->head && slot == q->spec->embed) {
        q->w->tied_head = copy;
    } else {
        *w = copy;
    }
}

void dense_quant_outline(struct model_weights *w, const struct model_spec *spec)
{
    struct quantiser q = {.w = w, .spec = spec};

    each_slot(spec, outline_slot, &q);
}
