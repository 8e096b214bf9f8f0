/* model.c - opens a model: config, types, description, weights, states, plan, in that order.
 *
 * Place: model; see model.h. The order puts what can be refused cheaply first: a wrong flag costs
 *        milliseconds, too little memory for states is known before weights are read. Experts that stay in
 *        host memory get their slots before the plan is checked, and are brought there after it was prepared. */
#include <stdlib.h>

#include "base/size.h"
#include "model/dense_quant.h"
#include "model/model_internal.h"
#include "model/weights_overflow.h"
#include "model/weights_upload.h"

enum {
    GDN_CHUNK_MIN =
        16, /* rows: below, one recurrent step per row is cheaper than a chunk's matrices */
    ROWS_MAX_LIMIT = 1 << 20
};

/* What one sequence carries, from the blocks that carry it. */
static enum status state_shape_of(struct state_shape *out, const struct model_spec *spec,
                                  const struct dtype_table *dtypes, struct error *err)
{
    *out = (struct state_shape){.n_gdn_layers = spec->n_gdn_layers,
                                .n_attn_layers = spec->n_attn_layers,
                                .conv_dtype = dtypes->conv,
                                .recurrent_dtype = dtypes->recurrent,
                                .kv_dtype = dtypes->kv};
    for (size_t i = 0; i < spec->n_layers; i++) {
        for (size_t j = 0; j < spec->layers[i].n_branches; j++) {
            const struct branch_spec *branch = &spec->layers[i].branches[j];
            for (size_t k = 0; k < branch->n_blocks; k++) {
                const struct block_spec *block = &branch->blocks[k];
                struct state_shape before = *out;

                if (block->kind == BLOCK_GDN) {
                    const struct gdn_spec *g = &block->u.gdn;
                    out->conv_elems = (g->taps - 1) * (2 * g->nk * g->dk + g->nv * g->dv);
                    out->recurrent_elems = g->nv * g->dk * g->dv;
                    if (g->gdn_layer > 0 && (out->conv_elems != before.conv_elems ||
                                             out->recurrent_elems != before.recurrent_elems)) {
                        return error_set(err, ERR_UNSUPPORTED,
                                         "layer %zu: gated delta nets of different sizes", i);
                    }
                } else if (block->kind == BLOCK_ATTENTION) {
                    const struct attention_spec *a = &block->u.attention;
                    out->n_kv_heads = a->nkv;
                    out->head_dim = a->hd;
                    if (a->attn_layer > 0 && (out->n_kv_heads != before.n_kv_heads ||
                                              out->head_dim != before.head_dim)) {
                        return error_set(err, ERR_UNSUPPORTED,
                                         "layer %zu: attention layers of different sizes", i);
                    }
                }
            }
        }
    }
    return OK;
}

static enum status options_resolve(struct model *m, struct error *err)
{
    struct model_options *o = &m->options;

    if (o->budget.context_max == 0) {
        o->budget.context_max = m->config.max_positions;
    }
    if (o->budget.n_tokens == 0) {
        o->budget.n_tokens = o->budget.context_max;
    }
    if (o->gdn_chunk_min == 0) {
        o->gdn_chunk_min = GDN_CHUNK_MIN;
    }
    if (o->rows_max == 0 || o->rows_max > ROWS_MAX_LIMIT || o->out_rows_max == 0 ||
        o->out_rows_max > o->rows_max || o->budget.n_live == 0) {
        return error_set(
            err, ERR_USAGE,
            "steps of %zu rows (%zu with logits) and %zu sequences are not possible: at "
            "least one of each, at most %d rows",
            o->rows_max, o->out_rows_max, o->budget.n_live, ROWS_MAX_LIMIT);
    }
    o->compute_dtype = m->dtypes.compute;
    o->kv_dtype = m->dtypes.kv;
    o->recurrent_dtype = m->dtypes.recurrent;
    return OK;
}

static enum status model_describe(struct model *m, const struct checkpoint *ck, struct error *err)
{
    enum status rc =
        model_config_read(&m->config, checkpoint_config(ck), m->options.config_override, err);

    if (rc == OK) {
        rc = dtype_table_decide(&m->dtypes, &m->options, &m->config, err);
    }
    if (rc == OK) {
        rc = options_resolve(m, err);
    }
    if (rc == OK) {
        rc = model_spec_build(&m->spec, &m->config, err);
    }
    return rc;
}

/* Weights to where the device computes; those of experts that overflow to where it can reach them. */
static enum status weights_bring(struct model *m, const struct log *log, struct progress *progress,
                                 struct error *err)
{
    const struct model_offload *o = m->options.offload;
    struct offload_shape shape = {0};
    enum status rc = OK;

    if (o) {
        rc = weights_overflow(&shape, &m->weights, &m->spec, o->may_overflow, m->be,
                              m->options.pool, log, progress, err);
    }
    if (rc == OK) {
        rc = weights_upload(&m->weights, &m->spec, m->be, m->options.pool, progress, err);
    }
    if (rc == OK && shape.n_layers > 0) {
        struct offload_options how = {.n_slots = o->n_slots,
                                      .n_staging = o->n_staging,
                                      .miss = o->miss,
                                      .no_prefetch = o->no_prefetch,
                                      .no_split = o->no_split,
                                      .no_overlap = o->no_overlap};

        shape.activations = m->dtypes.compute;
        rc = offload_new(&m->offload, &shape, &how, m->be, o->cpu, err);
    }
    return rc;
}

static enum status model_fill(struct model *m, const struct checkpoint *ck, const struct log *log,
                              struct progress *progress, struct error *err)
{
    struct op_plan_options plan = {.rows_max = m->options.rows_max,
                                   .out_rows_max = m->options.out_rows_max,
                                   .context_max = m->options.budget.context_max,
                                   .gdn_chunk_min = m->options.gdn_chunk_min};
    const struct model_offload *offload = m->options.offload;
    struct weights_target target = {.be = m->be,
                                    .all_stay = offload && !offload->may_overflow,
                                    .stays = offload ? offload->may_overflow : NULL,
                                    .folder = offload ? offload->folder : NULL};
    struct state_shape shape;
    enum status rc = state_shape_of(&shape, &m->spec, &m->dtypes, err);

    if (rc == OK) {
        rc = state_store_new(&m->states, m->be, &shape, &m->options.budget, err);
    }
    if (rc == OK) {
        rc = weights_load(&m->weights, &m->spec, ck, &target, m->options.pool, log, progress, err);
    }
    if (rc == OK && m->options.dense_quant == DENSE_QUANT_INT8) {
        rc = dense_quantise(&m->weights, &m->spec, m->options.pool, progress, err);
    }
    if (rc == OK) {
        rc = weights_bring(m, log, progress, err);
    }
    if (rc == OK) {
        plan.home = m->offload ? offload_home(m->offload) : NULL;
        rc = op_plan_build(&m->plan, m->be, &m->spec, &m->weights, &m->dtypes, &plan, err);
    }
    if (rc == OK && m->offload) {
        rc = offload_fill(m->offload, progress, err);
    }
    return rc == OK ? step_buffers_make(m, err) : rc;
}

enum status model_open(struct model **out, const struct checkpoint *ck, struct backend *be,
                       const struct model_options *o, const struct log *log,
                       struct progress *progress, struct error *err)
{
    struct model *m = calloc(1, sizeof *m);
    enum status rc;

    *out = NULL;
    if (!m) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a model");
    }
    m->be = be;
    m->options = *o;
    rc = model_describe(m, ck, err);
    if (rc == OK) {
        rc = model_fill(m, ck, log, progress, err);
    }
    if (rc != OK) {
        error_prefix(err, "cannot load '%s'", checkpoint_dir(ck));
        model_free(m);
        return rc;
    }
    m->options.config_override = NULL; /* borrowed for the call only */
    m->options.pool = NULL;
    m->options.offload = NULL;
    *out = m;
    return OK;
}

void model_free(struct model *m)
{
    if (!m) {
        return;
    }
    offload_free(m->offload);
    step_buffers_release(m);
    op_plan_release(&m->plan);
    weights_release(&m->weights);
    state_store_free(m->states);
    model_spec_release(&m->spec);
    model_config_release(&m->config);
    free(m);
}

const struct model_config *model_get_config(const struct model *m)
{
    return &m->config;
}

struct state_store *model_states(struct model *m)
{
    return m->states;
}

const struct model_options *model_get_options(const struct model *m)
{
    return &m->options;
}

size_t model_weight_bytes(const struct model *m)
{
    return m->weights.n_bytes;
}

bool model_offload_stats(const struct model *m, struct offload_stats *out)
{
    if (m->offload) {
        offload_read_stats(m->offload, out);
    }
    return m->offload != NULL;
}

const char *dense_quant_name(enum dense_quant q)
{
    return q == DENSE_QUANT_INT8 ? "int8" : "none";
}

const struct op *model_plan(const struct model *m, size_t *n_ops)
{
    *n_ops = m->plan.n_ops;
    return m->plan.ops;
}

void model_print_dtypes(const struct model *m, struct buf *out)
{
    dtype_table_print(&m->dtypes, out);
    weights_print_classes(&m->weights, &m->spec, out);
}

void model_print_plan(const struct model *m, struct buf *out)
{
    op_plan_print(&m->plan, out);
}

void model_print_skipped(const struct model *m, struct buf *out)
{
    weights_print_skipped(&m->weights, out);
}
