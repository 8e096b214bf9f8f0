/* cuda_ahead.c - see cuda_ahead.h.
 *
 * Place: backend/cuda.
 * Who:   a mixer (delta rule or attention) asks for the projection after it, the router and the shared expert.
 *        The tail of a layer asks for the beginning of the next layer's first matrices, or of the head.
 * Much:  what is asked for must outlast, in the second-level cache, all that is read until it is wanted; and a
 *        kernel must not wait for its own data behind it for longer than it saves. */
#include "backend/cuda/cuda_ahead.h"

#include <stdlib.h>

#include "backend/cuda/cuda_private.h"
#include "base/size.h"

/* Shares are of the second-level cache. Not yet measured against each other. */
static const struct {
    double mixer_share; /* of the cache, for a mixer */
    double tail_share;  /* of the cache, for a layer's tail */
    double tail_from;   /* where in the first matrix of the next layer it begins: the product's
                         own first loads leave early too */
    double tail_until[CUDA_AHEAD_TAIL]; /* what each kernel of a tail and those before it ask for */
    size_t piece_bytes;                 /* asked for at once; multiples of AHEAD_UNIT */
    double blocks_per_multiprocessor;   /* that ask, at the least */
} tuning = {
    .mixer_share = 0.5,
    .tail_share = 0.4,
    .tail_from = 0.0,
    .tail_until = {0.5, 1.0}, /* moe_in, moe_gate */
    .piece_bytes = 8 << 10,
    .blocks_per_multiprocessor = 1.0,
};

#if defined(SPILLWAY_NO_AHEAD)
enum { AHEAD_IS_BUILT = 0 };
#else
enum { AHEAD_IS_BUILT = 1 };
#endif

/* ---- ranges ---- */

/* Adds the bytes of [data, data + n_bytes) from `skip` on, cut to whole units inside and to *left. */
static void add_range(struct ahead_args *a, size_t *left, const void *data, size_t n_bytes,
                      size_t skip)
{
    uintptr_t from = (uintptr_t)data + size_min(skip, n_bytes), to = (uintptr_t)data + n_bytes;

    from = (from + AHEAD_UNIT - 1) / AHEAD_UNIT * AHEAD_UNIT;
    to = to / AHEAD_UNIT * AHEAD_UNIT;
    if (!data || to <= from || a->n_ranges == AHEAD_RANGES) {
        return;
    }
    n_bytes = size_min(to - from, *left / AHEAD_UNIT * AHEAD_UNIT);
    if (n_bytes == 0) {
        return;
    }
    *left -= n_bytes;
    a->range[a->n_ranges++] =
        (struct ahead_range){.data = (const void *)from, .n_bytes = (uint32_t)n_bytes};
}

/* Scales and zeros are small and wanted as soon as the first values are. */
static void add_weight(struct ahead_args *a, size_t *left, const struct weight *w, double from)
{
    size_t values = w->n_out * weight_row_bytes(w), groups = w->n_out * weight_n_groups(w);

    if (w->kind != WEIGHT_DENSE) {
        size_t scales = groups * dtype_bytes(w->dtype);

        add_range(a, left, w->scales, scales, (size_t)(from * (double)scales));
        add_range(a, left, w->zeros, groups, (size_t)(from * (double)groups));
    }
    add_range(a, left, w->data, values, (size_t)(from * (double)values));
}

static void add_linear(struct ahead_args *a, size_t *left, const struct op_linear *u, double from)
{
    for (size_t p = 0; p < u->n_parts; p++) {
        add_weight(a, left, &u->part[p].w, p == 0 ? from : 0);
    }
}

/* ---- who asks for what ---- */

/* All dense weights of the ops from `at` on, up to the routed experts or the next mixer. */
static void ahead_of_mixer(struct ahead_args *a, const struct cuda_private *own, size_t at,
                           size_t left)
{
    for (; at < own->n_ops; at++) {
        const struct op *op = &own->ops[at];

        if (op->kind == OP_LINEAR) {
            add_linear(a, &left, &op->u.linear, 0);
        } else if (op->kind == OP_ROUTE) {
            add_weight(a, &left, &op->u.route.router, 0);
        } else if (op->kind == OP_EXPERTS || op->kind == OP_CHECK) {
            return;
        }
    }
}

/* The first matrices of the ops from `at` on. */
static void ahead_of_tail(struct ahead_args *a, const struct cuda_private *own, size_t at,
                          size_t left)
{
    for (; at < own->n_ops; at++) {
        if (own->ops[at].kind == OP_LINEAR) {
            add_linear(a, &left, &own->ops[at].u.linear, tuning.tail_from);
            return;
        }
    }
}

void cuda_ahead_prepare(struct cuda_backend *be)
{
    struct cuda_private *own = be->own;
    double cache = (double)be->card.cache_bytes;

    if (own->no_ahead || !AHEAD_IS_BUILT) {
        return;
    }
    own->ahead = calloc(own->n_ops + 1, sizeof *own->ahead);
    for (size_t i = 0; own->ahead && i < own->n_ops; i++) {
        const struct cuda_unit *u = &own->units[i];
        struct ahead_args *a = &own->ahead[i];

        if (u->fusion == &cuda_fuse_gdn || u->fusion == &cuda_fuse_attention) {
            ahead_of_mixer(a, own, i + u->n_ops, (size_t)(tuning.mixer_share * cache));
        } else if (u->fusion == &cuda_fuse_moe) {
            ahead_of_tail(a, own, i + u->n_ops, (size_t)(tuning.tail_share * cache));
        }
        a->piece_bytes = (uint32_t)tuning.piece_bytes;
    }
}

void cuda_ahead_free(struct cuda_backend *be)
{
    free(be->own->ahead);
    be->own->ahead = NULL;
}

/* ---- for the fusions ---- */

struct ahead_args cuda_ahead_of(const struct cuda_backend *be, const struct op *op)
{
    const struct cuda_private *own = be->own;
    bool is_planned = op >= own->ops && op < own->ops + own->n_ops;

    return own->ahead && is_planned ? own->ahead[op - own->ops] : (struct ahead_args){0};
}

static size_t bytes_of(const struct ahead_args *a)
{
    size_t n = 0;

    for (int32_t i = 0; i < a->n_ranges; i++) {
        n += a->range[i].n_bytes;
    }
    return n;
}

struct ahead_args cuda_ahead_of_tail(const struct cuda_backend *be, const struct op *op,
                                     enum cuda_ahead_tail kernel)
{
    struct ahead_args all = cuda_ahead_of(be, op), part = {.piece_bytes = all.piece_bytes};
    double n = (double)bytes_of(&all);
    size_t until = (size_t)(n * tuning.tail_until[kernel]);
    size_t skip = kernel == 0 ? 0 : (size_t)(n * tuning.tail_until[kernel - 1]);
    size_t left = until - skip;

    for (int32_t i = 0; i < all.n_ranges && left > 0; i++) {
        size_t bytes = all.range[i].n_bytes, here = size_min(skip, bytes);

        add_range(&part, &left, all.range[i].data, bytes, here);
        skip -= here;
    }
    return part;
}

size_t cuda_ahead_blocks(const struct cuda_backend *be, const struct ahead_args *a, size_t n_blocks)
{
    double wanted = tuning.blocks_per_multiprocessor * (double)be->card.n_multiprocessors;

    return a->n_ranges > 0 && (double)n_blocks < wanted ? (size_t)wanted - n_blocks : 0;
}
