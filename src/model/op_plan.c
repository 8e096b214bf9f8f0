/* op_plan.c - walks a spec's blocks and writes the operations that compute them.
 *
 * Place: model; see op_plan.h.
 * Idea:  the walk runs twice. The first time it only counts operations and bytes, the second time,
 *        with the memory there, the same code writes them: so the two can never disagree. */
#include "model/op_plan.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

enum { OPERAND_ALIGN = 64 };

struct builder {
    struct op_plan *plan;
    const struct model_spec *spec;
    const struct model_weights *w;
    const struct dtype_table *dtypes;
    const struct op_plan_options *o;
    bool is_counting;
    bool overflow;
    size_t n_ops, n_experts, n_freqs;
    float *freqs;          /* what becomes plan->inv_freq */
    size_t used, used_max; /* bytes of the buffer */
    int16_t layer;
    struct operand x, u;
};

/* ---- pieces ---- */

static struct operand operand_new(struct builder *b, size_t rows, size_t cols, enum dtype dtype,
                                  enum dtype round)
{
    struct operand o = {.dtype = dtype, .round = round, .cols = cols};
    size_t bytes, end;

    if (!size_mul(&bytes, rows, cols) || !size_mul(&bytes, bytes, dtype_bytes(dtype)) ||
        !size_add(&end, b->used, bytes) || !size_align(&end, end, OPERAND_ALIGN)) {
        b->overflow = true;
        return o;
    }
    if (!b->is_counting) {
        o.data = b->plan->buffer + b->used;
    }
    b->used = end;
    b->used_max = size_max(b->used_max, end);
    return o;
}

/* An activation: float32 words holding values of the compute type. */
static struct operand act(struct builder *b, size_t cols)
{
    return operand_new(b, b->o->rows_max, cols, DTYPE_F32, b->dtypes->compute);
}

/* A value that stays float32 whatever the compute type is. */
static struct operand exact(struct builder *b, size_t cols)
{
    return operand_new(b, b->o->rows_max, cols, DTYPE_F32, DTYPE_F32);
}

static void emit(struct builder *b, const struct op *op)
{
    if (!b->is_counting) {
        b->plan->ops[b->n_ops] = *op;
        b->plan->ops[b->n_ops].layer = b->layer;
    }
    b->n_ops++;
}

static const struct weight *matrix(const struct builder *b, matrix_slot slot)
{
    assert(slot >= 0 && (size_t)slot < b->spec->n_matrices);
    return &b->w->matrices[slot];
}

static const float *vector(const struct builder *b, vector_slot slot)
{
    assert(slot >= 0 && (size_t)slot < b->spec->n_vectors);
    return b->w->vectors[slot];
}

static void part_add_weight(struct op *op, const struct weight *w, struct operand out,
                            bool accumulates)
{
    struct op_linear *l = &op->u.linear;

    assert(l->n_parts < LINEAR_PARTS_MAX);
    l->part[l->n_parts].w = *w;
    l->part[l->n_parts].out = out;
    l->part[l->n_parts].accumulates = accumulates;
    l->n_parts++;
}

static void part_add(struct builder *b, struct op *op, matrix_slot slot, struct operand out,
                     bool accumulates)
{
    part_add_weight(op, matrix(b, slot), out, accumulates);
}

static struct op linear_op(const char *name, struct operand in)
{
    return (struct op){.kind = OP_LINEAR, .name = name, .u.linear.in = in};
}

/* x += W in */
static void emit_into_residual(struct builder *b, const char *name, matrix_slot slot,
                               struct operand in)
{
    struct op op = linear_op(name, in);

    part_add(b, &op, slot, b->x, true);
    emit(b, &op);
}

static struct op norm_op(const struct builder *b, const char *name, struct operand in,
                         struct operand out, vector_slot slot)
{
    return (struct op){
        .kind = OP_NORM,
        .name = name,
        .layer = b->layer,
        .u.norm = {.in = in, .out = out, .weight = vector(b, slot), .eps = b->spec->eps}};
}

/* ---- blocks: each reads u and adds to x ---- */

static void emit_gdn(struct builder *b, const struct gdn_spec *g)
{
    size_t channels = 2 * g->nk * g->dk + g->nv * g->dv, values = g->nv * g->dv;
    struct operand qkv = act(b, channels), mixed = act(b, channels);
    struct operand z = act(b, values), out = act(b, values);
    struct operand a = exact(b, g->nv), beta = exact(b, g->nv);
    struct op op = linear_op("gdn in_proj", b->u);

    part_add(b, &op, g->qkv, qkv, false);
    part_add(b, &op, g->z, z, false);
    part_add(b, &op, g->a, a, false);
    part_add(b, &op, g->b, beta, false);
    emit(b, &op);
    op = (struct op){.kind = OP_CONV,
                     .name = "conv1d",
                     .u.conv = {.in = qkv,
                                .out = mixed,
                                .weight = vector(b, g->conv),
                                .taps = g->taps,
                                .channels = channels,
                                .gdn_layer = g->gdn_layer}};
    emit(b, &op);
    op = (struct op){.kind = OP_DELTA,
                     .name = "delta rule",
                     .u.delta = {.qkv = mixed,
                                 .z = z,
                                 .a = a,
                                 .b = beta,
                                 .out = out,
                                 .neg_exp_a = vector(b, g->neg_exp_a),
                                 .dt_bias = vector(b, g->dt_bias),
                                 .norm = vector(b, g->norm),
                                 .eps = b->spec->eps,
                                 .nk = g->nk,
                                 .nv = g->nv,
                                 .dk = g->dk,
                                 .dv = g->dv,
                                 .gdn_layer = g->gdn_layer,
                                 .chunk_min = b->o->gdn_chunk_min}};
    emit(b, &op);
    emit_into_residual(b, "gdn out_proj", g->out, out);
}

static void emit_attention(struct builder *b, const struct attention_spec *a)
{
    size_t q_cols = a->nq * a->hd * (a->is_gated ? 2 : 1);
    struct operand q = act(b, q_cols), k = act(b, a->nkv * a->hd), v = act(b, a->nkv * a->hd);
    struct operand out = act(b, a->nq * a->hd);
    struct op op = linear_op("qkv_proj", b->u);
    const float *inv_freq = NULL;
    float rope_scale = 1;

    part_add(b, &op, a->q, q, false);
    part_add(b, &op, a->k, k, false);
    part_add(b, &op, a->v, v, false);
    emit(b, &op);
    if (!b->is_counting) {
        rope_frequencies(b->freqs + b->n_freqs, &rope_scale, &a->rope);
        inv_freq = b->plan->inv_freq + b->n_freqs;
    }
    b->n_freqs += a->rope.dims / 2;
    op = (struct op){.kind = OP_QKV,
                     .name = "qk norm, rope",
                     .u.qkv = {.q = q,
                               .k = k,
                               .v = v,
                               .q_norm = vector(b, a->q_norm),
                               .k_norm = vector(b, a->k_norm),
                               .eps = b->spec->eps,
                               .is_gated = a->is_gated,
                               .nq = a->nq,
                               .nkv = a->nkv,
                               .hd = a->hd,
                               .rope_dims = a->rope.dims,
                               .inv_freq = inv_freq,
                               .rope_scale = rope_scale,
                               .attn_layer = a->attn_layer}};
    emit(b, &op);
    op = (struct op){.kind = OP_ATTENTION,
                     .name = "attention",
                     .u.attention = {.q = q,
                                     .out = out,
                                     .is_gated = a->is_gated,
                                     .nq = a->nq,
                                     .nkv = a->nkv,
                                     .hd = a->hd,
                                     .scale = a->scale,
                                     .attn_layer = a->attn_layer}};
    emit(b, &op);
    emit_into_residual(b, "o_proj", a->out, out);
}

static void emit_swiglu(struct builder *b, struct operand gate, struct operand up,
                        struct operand out)
{
    struct op op = {
        .kind = OP_SWIGLU, .name = "swiglu", .u.swiglu = {.gate = gate, .up = up, .out = out}};

    emit(b, &op);
}

static void emit_dense(struct builder *b, const struct dense_spec *d)
{
    struct operand gate = act(b, d->width), up = act(b, d->width), mid = act(b, d->width);
    struct op op = linear_op("gate_up_proj", b->u);

    part_add(b, &op, d->gate, gate, false);
    part_add(b, &op, d->up, up, false);
    emit(b, &op);
    emit_swiglu(b, gate, up, mid);
    emit_into_residual(b, "down_proj", d->down, mid);
}

/* Fills *shared with the shared expert's output and *gate with its gate, before the sigmoid. */
static void emit_shared(struct builder *b, const struct moe_spec *moe, struct operand *shared,
                        struct operand *gate)
{
    size_t width = moe->shared.width;
    struct operand g = act(b, width), up = act(b, width), mid = act(b, width);
    struct op op = linear_op("shared in", b->u);

    *shared = exact(b, b->spec->hidden);
    part_add(b, &op, moe->shared.gate, g, false);
    part_add(b, &op, moe->shared.up, up, false);
    if (moe->shared_gate != SLOT_NONE) {
        *gate = exact(b, 1);
        part_add(b, &op, moe->shared_gate, *gate, false);
    }
    emit(b, &op);
    emit_swiglu(b, g, up, mid);
    op = linear_op("shared down", mid);
    part_add(b, &op, moe->shared.down, *shared, false);
    emit(b, &op);
}

static const struct expert_weights *experts_fill(struct builder *b, const struct moe_spec *moe)
{
    struct expert_weights *e = NULL;

    if (!b->is_counting) {
        e = b->plan->experts + b->n_experts;
        for (size_t i = 0; i < moe->n_experts; i++) {
            matrix_slot first = moe->expert0 + (matrix_slot)(3 * i);
            e[i] = (struct expert_weights){*matrix(b, first), *matrix(b, first + 1),
                                           *matrix(b, first + 2)};
        }
    }
    b->n_experts += moe->n_experts;
    return e;
}

static void emit_moe(struct builder *b, const struct moe_spec *moe)
{
    struct operand idx = operand_new(b, b->o->rows_max, moe->top_k, DTYPE_I32, DTYPE_I32);
    const struct expert_arena *arena = weights_arena_of(b->w, moe->expert0);
    struct operand prob = exact(b, moe->top_k), routed = exact(b, b->spec->hidden);
    struct operand shared = {0}, gate = {0};
    struct op op = {.kind = OP_ROUTE,
                    .name = "router",
                    .u.route = {.in = b->u,
                                .router = *matrix(b, moe->router),
                                .idx = idx,
                                .prob = prob,
                                .n_experts = moe->n_experts,
                                .top_k = moe->top_k,
                                .renormalise = moe->renormalise}};

    emit(b, &op);
    if (moe->shared.width > 0) {
        emit_shared(b, moe, &shared, &gate);
    }
    op = (struct op){.kind = OP_EXPERTS,
                     .name = "experts",
                     .u.experts = {.in = b->u,
                                   .idx = idx,
                                   .prob = prob,
                                   .out = routed,
                                   .experts = experts_fill(b, moe),
                                   .n_experts = moe->n_experts,
                                   .top_k = moe->top_k,
                                   .width = moe->width,
                                   .home = arena && arena->stays ? b->o->home : NULL,
                                   .home_layer = arena ? arena->home_layer : 0}};
    emit(b, &op);
    op = (struct op){.kind = OP_ADD_SHARED,
                     .name = "add experts",
                     .u.add_shared = {.x = b->x, .routed = routed, .shared = shared, .gate = gate}};
    emit(b, &op);
}

/* ---- the whole ---- */

static void emit_block(struct builder *b, const struct block_spec *block)
{
    size_t start = b->used;

    switch (block->kind) {
    case BLOCK_GDN:
        emit_gdn(b, &block->u.gdn);
        break;
    case BLOCK_ATTENTION:
        emit_attention(b, &block->u.attention);
        break;
    case BLOCK_DENSE:
        emit_dense(b, &block->u.dense);
        break;
    case BLOCK_MOE:
        emit_moe(b, &block->u.moe);
        break;
    }
    b->used = start; /* the next block's intermediates take the same place */
}

static void emit_layer(struct builder *b, const struct layer_spec *layer)
{
    struct op op;

    for (size_t i = 0; i < layer->n_branches; i++) {
        const struct branch_spec *branch = &layer->branches[i];
        op = norm_op(b, i == 0 ? "norm 1" : "norm 2", b->x, b->u, branch->norm);
        emit(b, &op);
        for (size_t j = 0; j < branch->n_blocks; j++) {
            emit_block(b, &branch->blocks[j]);
        }
    }
    op = (struct op){.kind = OP_CHECK, .name = "check", .u.check.x = b->x};
    emit(b, &op);
}

static void emit_head(struct builder *b)
{
    const struct model_spec *spec = b->spec;
    size_t rows = b->o->out_rows_max;
    struct operand last = operand_new(b, rows, spec->hidden, DTYPE_F32, DTYPE_F32);
    struct operand normed = operand_new(b, rows, spec->hidden, DTYPE_F32, b->dtypes->compute);
    struct op op = {.kind = OP_GATHER,
                    .rows = ROWS_OUT,
                    .name = "last rows",
                    .u.gather = {.in = b->x, .out = last}};

    b->plan->logits = operand_new(b, rows, spec->vocab, DTYPE_F32, DTYPE_F32);
    b->plan->best = operand_new(b, rows, 2 * BEST_TOP, DTYPE_I32, DTYPE_I32);
    emit(b, &op);
    op = norm_op(b, "final norm", last, normed, spec->final_norm);
    op.rows = ROWS_OUT;
    emit(b, &op);
    op = linear_op("lm_head", normed);
    op.rows = ROWS_OUT;
    part_add_weight(&op,
                    b->w->tied_head.kind != WEIGHT_NONE ? &b->w->tied_head : matrix(b, spec->head),
                    b->plan->logits, false);
    emit(b, &op);
    op = (struct op){.kind = OP_BEST,
                     .rows = ROWS_OUT,
                     .name = "best tokens",
                     .u.best = {.in = b->plan->logits, .out = b->plan->best}};
    emit(b, &op);
}

static void walk(struct builder *b)
{
    struct op op;

    b->n_ops = b->n_experts = b->n_freqs = 0;
    b->used = b->used_max = 0;
    b->layer = -1;
    b->x = exact(b, b->spec->hidden);
    b->u = act(b, b->spec->hidden);
    op = (struct op){.kind = OP_EMBED,
                     .name = "embedding",
                     .u.embed = {.table = *matrix(b, b->spec->embed), .out = b->x}};
    emit(b, &op);
    for (size_t i = 0; i < b->spec->n_layers; i++) {
        b->layer = (int16_t)i;
        emit_layer(b, &b->spec->layers[i]);
    }
    b->layer = -1;
    emit_head(b);
    b->plan->x = b->x;
    b->plan->tap = b->u;
    b->plan->tap_norm = norm_op(b, "final norm", b->x, b->u, b->spec->final_norm);
}

static enum status tables_make(struct builder *b, struct error *err)
{
    struct op_plan *p = b->plan;

    if (b->overflow) {
        return error_set(err, ERR_LIMIT, "activations of %zu rows are too large", b->o->rows_max);
    }
    p->buffer_bytes = b->used_max;
    p->ops = calloc(b->n_ops, sizeof *p->ops);
    p->experts = calloc(b->n_experts + 1, sizeof *p->experts);
    b->freqs = calloc(b->n_freqs + 1, sizeof *b->freqs);
    return p->ops && p->experts && b->freqs
               ? OK
               : error_set(err, ERR_NO_MEMORY, "cannot allocate a plan of %zu operations",
                           b->n_ops);
}

static enum status memory_make(struct builder *b, struct error *err)
{
    struct op_plan *p = b->plan;
    enum status rc = tables_make(b, err);

    if (rc != OK) {
        return rc;
    }
    p->buffer = p->be->ops->buffer_new(p->be, b->used_max);
    p->inv_freq = p->be->ops->buffer_new(p->be, (b->n_freqs + 1) * sizeof *p->inv_freq);
    if (!p->buffer || !p->inv_freq) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate %zu MiB for activations of %zu rows",
                         b->used_max >> 20, b->o->rows_max);
    }
    return OK;
}

enum status op_plan_build(struct op_plan *out, struct backend *be, const struct model_spec *spec,
                          const struct model_weights *weights, const struct dtype_table *dtypes,
                          const struct op_plan_options *o, struct error *err)
{
    struct builder b = {
        .plan = out, .spec = spec, .w = weights, .dtypes = dtypes, .o = o, .is_counting = true};
    enum status rc;

    *out = (struct op_plan){.be = be};
    walk(&b);
    rc = memory_make(&b, err);
    if (rc != OK) {
        free(b.freqs);
        return rc;
    }
    b.is_counting = false;
    walk(&b);
    be->ops->write(be, out->inv_freq, b.freqs, b.n_freqs * sizeof *b.freqs);
    free(b.freqs);
    out->n_ops = b.n_ops;
    rc = be->ops->check(be, &out->tap_norm, err);
    for (size_t i = 0; rc == OK && i < out->n_ops; i++) {
        rc = be->ops->check(be, &out->ops[i], err);
    }
    if (rc == OK) {
        rc = be->ops->prepare(be, out->ops, out->n_ops, o->rows_max, o->context_max, err);
    }
    return rc;
}

enum status op_plan_outline(struct op_plan *out, const struct model_spec *spec,
                            const struct model_weights *weights, const struct dtype_table *dtypes,
                            const struct op_plan_options *o, void *nowhere, struct error *err)
{
    struct builder b = {
        .plan = out, .spec = spec, .w = weights, .dtypes = dtypes, .o = o, .is_counting = true};
    enum status rc;

    *out = (struct op_plan){0};
    walk(&b);
    rc = tables_make(&b, err);
    if (rc == OK) {
        out->buffer = nowhere;
        out->inv_freq = nowhere;
        b.is_counting = false;
        walk(&b);
        out->n_ops = b.n_ops;
    }
    free(b.freqs);
    return rc;
}

void op_plan_release(struct op_plan *p)
{
    if (p->be && p->buffer) {
        p->be->ops->buffer_free(p->be, p->buffer);
    }
    if (p->be && p->inv_freq) {
        p->be->ops->buffer_free(p->be, p->inv_freq);
    }
    free(p->ops);
    free(p->experts);
    *p = (struct op_plan){0};
}

void op_plan_print(const struct op_plan *p, struct buf *out)
{
    char line[256];

    for (size_t i = 0; i < p->n_ops; i++) {
        op_describe(line, sizeof line, &p->ops[i]);
        buf_append_str(out, line);
        buf_append_char(out, '\n');
    }
}
