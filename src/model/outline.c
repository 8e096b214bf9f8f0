/* outline.c - see outline.h. */
#include "model/outline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "formats/gptq.h"
#include "model/dense_quant.h"

enum { NAME_BYTES = 512, GDN_CHUNK_MIN = 16 };

/* Where data would be: aligned as loading aligns it, and read by nobody. */
static void *const NOWHERE = (void *)((uintptr_t)1 << 40);

struct outliner {
    struct model_outline *m;
    const struct checkpoint *ck;
    struct gptq_config *gptq; /* NULL: not quantised */
    const char *prefix;
    bool *is_rewritten; /* [n_matrices] loading makes a copy of it */
};

/* ---- names ---- */

static const struct checkpoint_tensor *find(const struct outliner *b, const char *prefix,
                                            const char *name, const char *suffix)
{
    char text[NAME_BYTES];
    int n = snprintf(text, sizeof text, "%s%s%s", prefix, name, suffix);

    return n > 0 && (size_t)n < sizeof text ? checkpoint_find(b->ck, text) : NULL;
}

static enum status find_prefix(struct outliner *b, struct error *err)
{
    const struct model_spec *spec = &b->m->spec;

    for (const char *const *p = spec->prefixes; *p; p++) {
        if (find(b, *p, spec->anchor, ".weight") || find(b, *p, spec->anchor, ".qweight")) {
            b->prefix = *p;
            return OK;
        }
    }
    return error_set(err, ERR_FORMAT, "no tensor is a '%s' under a known prefix", spec->anchor);
}

/* Under which prefix a matrix's tensors are. */
static const char *prefix_of(const struct outliner *b, const struct spec_matrix *m)
{
    if (!m->at_root) {
        return b->prefix;
    }
    for (const char *const *p = b->m->spec.prefixes; *p; p++) {
        if (find(b, *p, m->name, ".weight") || find(b, *p, m->name, ".qweight")) {
            return *p;
        }
    }
    return "";
}

/* ---- forms ---- */

static enum status quantised_form(struct outliner *b, struct weight *w, const struct spec_matrix *m,
                                  const char *prefix, struct error *err)
{
    const struct checkpoint_tensor *scales = find(b, prefix, m->name, ".scales");
    struct gptq_settings s;
    char name[NAME_BYTES];
    enum status rc;

    if (!b->gptq || !scales) {
        return error_set(err, ERR_FORMAT, "tensor '%s%s.qweight' is quantised, but %s", prefix,
                         m->name, b->gptq ? "has no scales" : "no quantization_config says how");
    }
    snprintf(name, sizeof name, "%s%s", prefix, m->name); /* find() has checked that it fits */
    rc = gptq_config_for(&s, b->gptq, name, err);
    if (rc != OK) {
        return rc;
    }
    w->group = s.group_size > 0 ? size_min((size_t)s.group_size, m->n_in) : m->n_in;
    if (m->must_be_dense || !weight_int4_fits(m->n_in, w->group)) {
        w->dtype = DTYPE_F32;
        w->group = 0;
        return OK;
    }
    w->kind = s.bits == 4 ? WEIGHT_INT4 : WEIGHT_INT8;
    w->dtype = scales->tensor.dtype;
    w->scales = NOWHERE;
    w->zeros = s.is_symmetric ? NULL : NOWHERE;
    w->perm = s.has_desc_act ? NOWHERE : NULL;
    return OK;
}

static enum status form(struct outliner *b, size_t slot, struct error *err)
{
    const struct spec_matrix *m = &b->m->spec.matrices[slot];
    struct weight *w = &b->m->weights.matrices[slot];
    const char *prefix = prefix_of(b, m);
    const struct checkpoint_tensor *t;

    *w = (struct weight){.kind = WEIGHT_DENSE, .n_out = m->n_out, .n_in = m->n_in, .data = NOWHERE};
    b->is_rewritten[slot] = true;
    if (find(b, prefix, m->name, ".qweight")) {
        return quantised_form(b, w, m, prefix, err);
    }
    t = find(b, prefix, m->name, ".weight");
    if (!t && m->stack) {
        t = find(b, b->prefix, m->stack, "");
    }
    if (!t) {
        return error_set(err, ERR_FORMAT, "tensor '%s%s.weight' is missing", prefix, m->name);
    }
    w->dtype = t->tensor.dtype == DTYPE_F64 ? DTYPE_F32 : t->tensor.dtype;
    if (w->dtype != DTYPE_F32 && w->dtype != DTYPE_F16 && w->dtype != DTYPE_BF16) {
        return error_set(err, ERR_UNSUPPORTED, "tensor '%s' is stored as %s", t->name,
                         dtype_name(w->dtype));
    }
    b->is_rewritten[slot] = m->rows || t->tensor.dtype == DTYPE_F64 ||
                            (uintptr_t)t->tensor.data % dtype_bytes(w->dtype) != 0;
    return OK;
}

static enum status forms_make(struct outliner *b, struct error *err)
{
    struct model_outline *m = b->m;
    enum status rc = find_prefix(b, err);

    for (size_t i = 0; rc == OK && i < m->spec.n_matrices; i++) {
        rc = form(b, i, err);
    }
    for (size_t i = 0; i < m->spec.n_vectors; i++) {
        const struct spec_vector *v = &m->spec.vectors[i];

        m->weights.vectors[i] = NOWHERE;
        m->vector_bytes += (v->form == VECTOR_CONV ? v->n * v->taps : v->n) * sizeof(float);
    }
    return rc;
}

/* ---- sums ---- */

/* Bytes of rewritten matrices that are dense. */
static size_t rewritten_bytes(const struct outliner *b)
{
    size_t sum = 0;

    for (size_t i = 0; i < b->m->spec.n_matrices; i++) {
        const struct weight *w = &b->m->weights.matrices[i];

        sum += b->is_rewritten[i] && w->kind == WEIGHT_DENSE ? weight_bytes(w) : 0;
    }
    return sum;
}

/* Bytes of copies that loading makes of what goes to a device with the block. */
static size_t copied_bytes(const struct outliner *b)
{
    const struct model_spec *spec = &b->m->spec;
    size_t sum = 0;

    for (size_t i = 0; i < spec->n_matrices; i++) {
        bool is_block = b->m->has_blocks && spec->matrices[i].weight_class == CLASS_EXPERT;

        sum += b->is_rewritten[i] && !is_block ? weight_bytes(&b->m->weights.matrices[i]) : 0;
    }
    return sum;
}

static size_t int8_bytes(const struct model_weights *w, const struct model_spec *spec)
{
    size_t sum = w->tied_head.kind == WEIGHT_INT8 ? weight_bytes(&w->tied_head) : 0;

    for (size_t i = 0; i < spec->n_matrices; i++) {
        sum += w->matrices[i].kind == WEIGHT_INT8 ? weight_bytes(&w->matrices[i]) : 0;
    }
    return sum;
}

static size_t all_bytes(const struct model_weights *w, const struct model_spec *spec)
{
    size_t sum = w->tied_head.kind != WEIGHT_NONE ? weight_bytes(&w->tied_head) : 0;

    for (size_t i = 0; i < spec->n_matrices; i++) {
        sum += weight_bytes(&w->matrices[i]);
    }
    return sum;
}

/* For advice: without memory for the comparison there is none. Rewritten matrices, which are loaded besides,
 * save nothing. */
static size_t int8_would_save(const struct outliner *b)
{
    const struct model_spec *spec = &b->m->spec;
    struct model_weights w = b->m->weights;
    size_t n = spec->n_matrices, before = all_bytes(&w, spec), after = before;

    w.matrices = calloc(n + 1, sizeof *w.matrices);
    if (w.matrices) {
        memcpy(w.matrices, b->m->weights.matrices, n * sizeof *w.matrices);
        dense_quant_outline(&w, spec);
        after = all_bytes(&w, spec);
        for (size_t i = 0; i < n; i++) {
            const struct weight *was = &b->m->weights.matrices[i];

            after += b->is_rewritten[i] && w.matrices[i].kind != was->kind ? weight_bytes(was) : 0;
        }
    }
    free(w.matrices);
    return before - size_min(after, before);
}

static void sums_make(struct outliner *b, bool to_int8)
{
    struct model_outline *m = b->m;
    const struct model_spec *spec = &m->spec;

    m->rewritten_bytes = m->vector_bytes + copied_bytes(b);
    if (to_int8) {
        size_t before = int8_bytes(&m->weights, spec);

        m->original_bytes = rewritten_bytes(b);
        dense_quant_outline(&m->weights, spec);
        m->original_bytes -= rewritten_bytes(b);
        m->rewritten_bytes += int8_bytes(&m->weights, spec) - before;
    } else {
        m->int8_saves = int8_would_save(b);
    }
    for (size_t i = 0; i < spec->n_matrices; i++) {
        m->class_bytes[spec->matrices[i].weight_class] += weight_bytes(&m->weights.matrices[i]);
    }
    /* As weights_embedding_may_stay(). */
    if (spec->head != spec->embed && m->weights.matrices[spec->embed].kind == WEIGHT_DENSE &&
        !b->is_rewritten[spec->embed]) {
        m->embedding_may_stay_bytes = weight_bytes(&m->weights.matrices[spec->embed]);
    }
    if (m->weights.tied_head.kind != WEIGHT_NONE) {
        m->class_bytes[CLASS_HEAD] += weight_bytes(&m->weights.tied_head);
    }
}

/* ---- experts ---- */

static bool layer_shape(struct expert_shape *shape, const struct model_outline *m,
                        const struct moe_spec *moe)
{
    for (size_t e = 0; e < moe->n_experts; e++) {
        const struct weight *w = &m->weights.matrices[(size_t)moe->expert0 + 3 * e];
        struct expert_weights views = {w[0], w[1], w[2]};
        struct expert_shape one;

        if (!expert_shape_of(&one, &views) || (e > 0 && !expert_shape_equal(shape, &one))) {
            return false;
        }
        *shape = one;
    }
    return moe->n_experts > 0;
}

static void moe_note(struct model_outline *m, size_t layer, const struct moe_spec *moe)
{
    struct expert_shape shape;
    bool is_first = m->n_moe_layers == 0;
    bool fits =
        layer_shape(&shape, m, moe) &&
        (is_first || (m->has_blocks && moe->n_experts == m->n_experts && moe->top_k == m->top_k &&
                      expert_shape_equal(&shape, &m->block.shape)));

    m->has_blocks = fits && (!is_first || expert_block_init(&m->block, &shape));
    m->n_experts = moe->n_experts;
    m->top_k = moe->top_k;
    m->n_moe_layers++;
    m->layer_has_experts[layer] = true;
}

static void experts_note(struct model_outline *m)
{
    for (size_t l = 0; l < m->spec.n_layers; l++) {
        for (size_t i = 0; i < m->spec.layers[l].n_branches; i++) {
            const struct branch_spec *branch = &m->spec.layers[l].branches[i];

            for (size_t k = 0; k < branch->n_blocks; k++) {
                if (branch->blocks[k].kind == BLOCK_MOE) {
                    moe_note(m, l, &branch->blocks[k].u.moe);
                }
            }
        }
    }
}

/* ---- the whole ---- */

static enum status tables_make(struct outliner *b, struct error *err)
{
    struct model_outline *m = b->m;

    m->weights.matrices = calloc(m->spec.n_matrices + 1, sizeof *m->weights.matrices);
    m->weights.vectors = calloc(m->spec.n_vectors + 1, sizeof *m->weights.vectors);
    m->layer_has_experts = calloc(m->spec.n_layers + 1, sizeof *m->layer_has_experts);
    b->is_rewritten = calloc(m->spec.n_matrices + 1, sizeof *b->is_rewritten);
    return m->weights.matrices && m->weights.vectors && m->layer_has_experts && b->is_rewritten
               ? OK
               : error_set(err, ERR_NO_MEMORY, "cannot allocate a model's outline");
}

enum status model_outline_make(struct model_outline *out, const struct checkpoint *ck,
                               const struct model_config *c, const struct model_options *o,
                               struct error *err)
{
    struct outliner b = {.m = out, .ck = ck};
    struct op_plan_options plan = {.rows_max = o->rows_max,
                                   .out_rows_max = o->out_rows_max,
                                   .context_max = o->budget.context_max,
                                   .gdn_chunk_min =
                                       o->gdn_chunk_min ? o->gdn_chunk_min : GDN_CHUNK_MIN};
    enum status rc;

    *out = (struct model_outline){0};
    rc = dtype_table_decide(&out->dtypes, o, c, err);
    if (rc == OK) {
        rc = model_spec_build(&out->spec, c, err);
    }
    if (rc == OK) {
        rc = tables_make(&b, err);
    }
    if (rc == OK) {
        rc = gptq_config_new(&b.gptq, checkpoint_quantization(ck), err);
    }
    if (rc == OK) {
        rc = forms_make(&b, err);
    }
    if (rc == OK) {
        experts_note(out);
        sums_make(&b, o->dense_quant == DENSE_QUANT_INT8);
        rc = op_plan_outline(&out->plan, &out->spec, &out->weights, &out->dtypes, &plan, NOWHERE,
                             err);
    }
    gptq_config_free(b.gptq);
    free(b.is_rewritten);
    return rc;
}

void model_outline_release(struct model_outline *m)
{
    op_plan_release(&m->plan);
    free(m->weights.matrices);
    free(m->weights.vectors);
    free(m->layer_has_experts);
    model_spec_release(&m->spec);
    *m = (struct model_outline){0};
}
