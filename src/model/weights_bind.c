/* weights_bind.c - finds every slot of a spec in a checkpoint, and a reason for everything else.
 *
 * Place: model; see weights_bind.h.
 * Rules: the prefix of all names is decided once, by the one tensor that every model has. For each
 *        matrix content decides: name.qweight means quantised, name.weight plain, else the layer's
 *        stack. Missing slots and left-over tensors are collected, so that one run shows them all;
 *        a wrong shape ends the search at once, since it tells of a wrong config. */
#include "model/weights_bind.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

enum { NAME_BYTES = 512, SHAPE_TEXT_BYTES = 256 };

struct name_list { /* up to WEIGHTS_NAMES_SHOWN names and the count of all */
    struct buf text;
    size_t n;
};

struct binder {
    const struct model_spec *spec;
    const struct checkpoint *ck;
    const struct log *log;
    struct gptq_config *gptq; /* NULL: not a quantised model */
    const char *prefix;
    bool *is_used; /* [checkpoint_count] */
    struct name_list missing;
    /* where file and `dynamic` rules disagree: counted, reported once */
    struct name_list plain_against_rule, quantised_against_rule;
    struct name_list dequantised;
};

/* ---- names and lists ---- */

static void list_add_suffixed(struct name_list *l, const char *name, const char *suffix)
{
    if (l->n++ < WEIGHTS_NAMES_SHOWN) {
        buf_appendf(&l->text, "%s'%s%s'", l->n > 1 ? ", " : "", name, suffix);
    }
}

static void list_add(struct name_list *l, const char *name)
{
    list_add_suffixed(l, name, "");
}

static const char *list_text(struct name_list *l)
{
    if (l->n > WEIGHTS_NAMES_SHOWN) {
        buf_append_str(&l->text, ", ...");
    }
    return buf_cstr(&l->text);
}

static enum status join(char *out, const char *a, const char *b, const char *c, struct error *err)
{
    int n = snprintf(out, NAME_BYTES, "%s%s%s", a, b, c);

    if (n < 0 || n >= NAME_BYTES) {
        return error_set(err, ERR_LIMIT, "tensor name '%s%s%s' is too long", a, b, c);
    }
    return OK;
}

/* Index of a name in the checkpoint, whose tensors are sorted; SIZE_MAX when absent. */
static size_t find_idx(const struct checkpoint *ck, const char *name)
{
    size_t low = 0, high = checkpoint_count(ck);

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = strcmp(checkpoint_at(ck, mid)->name, name);
        if (order == 0) {
            return mid;
        }
        if (order < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return SIZE_MAX;
}

/* The tensor base+suffix, marked as used; NULL when absent. */
static const struct checkpoint_tensor *use(struct binder *b, const char *base, const char *suffix)
{
    char name[NAME_BYTES];
    size_t i;

    if (join(name, base, suffix, "", NULL) != OK) {
        return NULL;
    }
    i = find_idx(b->ck, name);
    if (i == SIZE_MAX) {
        return NULL;
    }
    b->is_used[i] = true;
    return checkpoint_at(b->ck, i);
}

static bool has(const struct binder *b, const char *base, const char *suffix)
{
    char name[NAME_BYTES];

    return join(name, base, suffix, "", NULL) == OK && find_idx(b->ck, name) != SIZE_MAX;
}

/* ---- shapes ---- */

static void shape_text(char *out, const size_t *shape, size_t n_dims)
{
    size_t used = 0;

    out[0] = 0;
    for (size_t i = 0; i < n_dims && used < SHAPE_TEXT_BYTES; i++) {
        int n = snprintf(out + used, SHAPE_TEXT_BYTES - used, "%s%zu", i > 0 ? ", " : "", shape[i]);
        used += n > 0 ? (size_t)n : 0;
    }
}

static enum status shape_check(const struct checkpoint_tensor *t, const size_t *shape,
                               size_t n_dims, struct error *err)
{
    char found[SHAPE_TEXT_BYTES], expected[SHAPE_TEXT_BYTES];

    if (t->tensor.n_dims == n_dims && memcmp(t->tensor.shape, shape, n_dims * sizeof *shape) == 0) {
        return OK;
    }
    shape_text(found, t->tensor.shape, t->tensor.n_dims);
    shape_text(expected, shape, n_dims);
    return error_set(err, ERR_FORMAT, "tensor '%s' has shape [%s], [%s] expected", t->name, found,
                     expected);
}

/* ---- plain matrices ---- */

static bool is_aligned(const void *data, enum dtype t)
{
    return (uintptr_t)data % dtype_bytes(t) == 0;
}

static enum status source_plain(struct matrix_source *s, const struct spec_matrix *m,
                                const struct checkpoint_tensor *t, size_t row0, struct error *err)
{
    size_t row_bytes = m->n_in * dtype_bytes(t->tensor.dtype);

    s->tensor = t->tensor;
    s->rows = (const uint8_t *)t->tensor.data + row0 * row_bytes;
    switch (t->tensor.dtype) {
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
        s->kind = m->rows || !is_aligned(s->rows, t->tensor.dtype) ? SOURCE_COPY : SOURCE_MAPPED;
        return OK;
    case DTYPE_F64:
        s->kind = SOURCE_CONVERT;
        return OK;
    default:
        return error_set(
            err, ERR_UNSUPPORTED,
            "tensor '%s' is stored as %s: weights are float32, float16, bfloat16 or GPTQ", t->name,
            dtype_name(t->tensor.dtype));
    }
}

static enum status bind_weight(struct matrix_source *s, const struct spec_matrix *m,
                               const struct checkpoint_tensor *t, struct error *err)
{
    size_t shape[2] = {m->n_file_rows, m->n_in};
    enum status rc = shape_check(t, shape, 2, err);

    return rc == OK ? source_plain(s, m, t, 0, err) : rc;
}

static enum status bind_stack(struct matrix_source *s, const struct spec_matrix *m,
                              const struct checkpoint_tensor *t, struct error *err)
{
    size_t shape[3] = {m->stack_n, m->stack_rows, m->n_in};
    enum status rc = shape_check(t, shape, 3, err);

    return rc == OK ? source_plain(s, m, t, m->stack_idx * m->stack_rows + m->stack_row0, err) : rc;
}

/* ---- quantised matrices ---- */

static bool kernel_reads(const struct spec_matrix *m, const struct gptq_matrix *g)
{
    return !m->must_be_dense && !g->irregular_g_idx && weight_int4_fits(g->n_in, g->group_size);
}

static enum status bind_quantised(struct binder *b, struct matrix_source *s,
                                  const struct spec_matrix *m, const char *name, struct error *err)
{
    struct gptq_settings settings;
    struct gptq_tensors tensors = {0};
    const struct checkpoint_tensor *t;
    enum status rc;

    if (!b->gptq) {
        return error_set(err, ERR_FORMAT,
                         "tensor '%s.qweight' is quantised, but no quantization_config says how",
                         name);
    }
    rc = gptq_config_for(&settings, b->gptq, name, err);
    if (rc != OK) {
        return rc;
    }
    if (!settings.is_quantised) { /* the file wins; the other settings describe it all the same */
        list_add(&b->quantised_against_rule, name);
        settings.is_quantised = true;
    }
    tensors.qweight = use(b, name, ".qweight")->tensor;
    t = use(b, name, ".scales");
    if (!t) {
        list_add_suffixed(&b->missing, name, ".scales");
        return OK;
    }
    tensors.scales = t->tensor;
    t = use(b, name, ".qzeros");
    if (t) {
        tensors.qzeros = t->tensor;
    }
    t = use(b, name, ".g_idx");
    if (t) {
        tensors.g_idx = t->tensor;
    }
    rc = gptq_matrix_init(&s->gptq, name, &settings, &tensors, b->log, err);
    if (rc != OK) {
        return rc;
    }
    if (s->gptq.n_out != m->n_file_rows || s->gptq.n_in != m->n_in) {
        return error_set(
            err, ERR_FORMAT,
            "quantised matrix '%s' has %zu outputs and %zu inputs, %zu and %zu expected", name,
            s->gptq.n_out, s->gptq.n_in, m->n_file_rows, m->n_in);
    }
    s->kind = kernel_reads(m, &s->gptq) ? SOURCE_QUANTISED : SOURCE_DEQUANTISED;
    if (s->kind == SOURCE_DEQUANTISED) {
        list_add(&b->dequantised, name);
    }
    return OK;
}

/* ---- matrices and vectors ---- */

/* Whether the rules expected name to be quantised. Quantisers leave routers and the outside of the
 * layers alone without a rule, so only other classes are worth a word. */
static enum status note_plain(struct binder *b, const struct spec_matrix *m, const char *name,
                              struct error *err)
{
    struct gptq_settings settings;
    enum status rc;

    if (!b->gptq || m->weight_class == CLASS_ROUTER || m->weight_class == CLASS_EMBEDDING ||
        m->weight_class == CLASS_HEAD || m->n_out < WEIGHT_BLOCK) {
        return OK;
    }
    rc = gptq_config_for(&settings, b->gptq, name, err);
    if (rc == OK && settings.is_quantised) {
        list_add(&b->plain_against_rule, name);
    }
    return rc;
}

/* The head's name stands before the prefix, but some exporters prefix it too: the form that is in
 * the file is taken. */
static enum status root_name(char *out, struct binder *b, const char *name, struct error *err)
{
    for (const char *const *p = b->spec->prefixes; *p; p++) {
        enum status rc = join(out, *p, name, "", err);
        if (rc != OK) {
            return rc;
        }
        if (has(b, out, ".weight") || has(b, out, ".qweight")) {
            return OK;
        }
    }
    return join(out, "", name, "", err);
}

static enum status bind_matrix(struct binder *b, struct matrix_source *s,
                               const struct spec_matrix *m, struct error *err)
{
    char name[NAME_BYTES], stack[NAME_BYTES];
    const struct checkpoint_tensor *t;
    enum status rc =
        m->at_root ? root_name(name, b, m->name, err) : join(name, b->prefix, m->name, "", err);

    if (rc != OK) {
        return rc;
    }
    if (has(b, name, ".qweight")) {
        return bind_quantised(b, s, m, name, err);
    }
    t = use(b, name, ".weight");
    if (t) {
        rc = bind_weight(s, m, t, err);
    } else if (m->stack) {
        rc = join(stack, b->prefix, m->stack, "", err);
        t = rc == OK ? use(b, stack, "") : NULL;
        if (t) {
            rc = bind_stack(s, m, t, err);
        }
    }
    if (rc != OK) {
        return rc;
    }
    if (!t) {
        list_add_suffixed(&b->missing, name, ".weight");
        return OK;
    }
    return note_plain(b, m, name, err);
}

static enum status bind_vector(struct binder *b, struct tensor *out, const struct spec_vector *v,
                               struct error *err)
{
    char name[NAME_BYTES];
    size_t shape[3] = {v->n, 1, v->taps};
    const struct checkpoint_tensor *t;
    enum status rc = join(name, b->prefix, v->name, "", err);

    if (rc != OK) {
        return rc;
    }
    t = use(b, name, "");
    if (!t) {
        list_add(&b->missing, name);
        return OK;
    }
    rc = shape_check(t, shape, v->form == VECTOR_CONV ? 3 : 1, err);
    if (rc != OK) {
        return rc;
    }
    if (!dtype_is_float(t->tensor.dtype)) {
        return error_set(err, ERR_FORMAT, "tensor '%s' is stored as %s, a float type expected",
                         name, dtype_name(t->tensor.dtype));
    }
    *out = t->tensor;
    return OK;
}

/* ---- the whole ---- */

static enum status find_prefix(struct binder *b, struct error *err)
{
    char name[NAME_BYTES];

    for (const char *const *p = b->spec->prefixes; *p; p++) {
        enum status rc = join(name, *p, b->spec->anchor, "", err);
        if (rc != OK) {
            return rc;
        }
        if (!has(b, name, ".weight") && !has(b, name, ".qweight")) {
            continue;
        }
        if (b->prefix) {
            return error_set(err, ERR_FORMAT, "tensors '%s%s' and '%s%s': which model is it",
                             b->prefix, b->spec->anchor, *p, b->spec->anchor);
        }
        b->prefix = *p;
    }
    if (!b->prefix) {
        return error_set(
            err, ERR_FORMAT,
            "no tensor of the %zu is a '%s' under a known prefix, such as '%s%s.weight'",
            checkpoint_count(b->ck), b->spec->anchor, b->spec->prefixes[0], b->spec->anchor);
    }
    return OK;
}

static bool pattern_fits(const char *pattern, struct str name)
{
    struct str p = str_of(pattern);

    if (p.len > 0 && p.ptr[0] == '*') {
        return str_ends(name, (struct str){p.ptr + 1, p.len - 1});
    }
    if (p.len > 0 && p.ptr[p.len - 1] == '*') {
        return str_starts(name, (struct str){p.ptr, p.len - 1});
    }
    return str_eq(name, p);
}

static bool all_zero(const struct checkpoint_tensor *t)
{
    const uint8_t *p = t->tensor.data;

    for (size_t i = 0; i < t->n_bytes; i++) {
        if (p[i] != 0) {
            return false;
        }
    }
    return true;
}

/* Why a left-over tensor may be left over; NULL: it may not. */
static const char *skip_label(const struct binder *b, const struct checkpoint_tensor *t)
{
    struct str name = str_of(t->name);

    for (const struct spec_skip *s = b->spec->skip; s->pattern; s++) {
        if (pattern_fits(s->pattern, name)) {
            return s->label;
        }
    }
    if (b->spec->head == b->spec->embed && str_ends(name, STR("lm_head.weight"))) {
        return "lm_head of a tied model";
    }
    if (b->gptq && str_ends(name, STR("_proj.bias")) && all_zero(t)) {
        return "zero biases written by the quantiser";
    }
    return NULL;
}

static void skip_count(struct model_weights *w, const char *label, size_t n_bytes)
{
    size_t i = 0;

    while (i < w->n_skipped && strcmp(w->skipped[i].label, label) != 0) {
        i++;
    }
    if (i == w->n_skipped && w->n_skipped < WEIGHTS_SKIP_LABELS_MAX) {
        w->skipped[w->n_skipped++].label = label;
    }
    if (i < w->n_skipped) {
        w->skipped[i].n_tensors++;
        w->skipped[i].n_bytes += n_bytes;
    }
}

static enum status leftovers_check(struct binder *b, struct model_weights *w, struct error *err)
{
    struct name_list extra = {0};
    enum status rc = OK;

    for (size_t i = 0; i < checkpoint_count(b->ck); i++) {
        const struct checkpoint_tensor *t = checkpoint_at(b->ck, i);
        const char *label = b->is_used[i] ? NULL : skip_label(b, t);

        if (label) {
            skip_count(w, label, t->n_bytes);
        } else if (!b->is_used[i]) {
            list_add(&extra, t->name);
        }
    }
    if (extra.n > 0) {
        rc = error_set(err, ERR_FORMAT, "%zu tensors have no place in a '%s' model: %s", extra.n,
                       b->spec->family, list_text(&extra));
    }
    buf_release(&extra.text);
    return rc;
}

static void report(struct binder *b)
{
    if (b->quantised_against_rule.n > 0) {
        log_warning(b->log,
                    "%zu matrices are quantised though the rules exclude them (%s): the file wins",
                    b->quantised_against_rule.n, list_text(&b->quantised_against_rule));
    }
    if (b->plain_against_rule.n > 0) {
        log_warning(b->log,
                    "%zu matrices are plain though the rules quantise them (%s): the file wins",
                    b->plain_against_rule.n, list_text(&b->plain_against_rule));
    }
    if (b->dequantised.n > 0) {
        log_info(b->log,
                 "%zu quantised matrices in a form without a kernel are kept as float32: %s",
                 b->dequantised.n, list_text(&b->dequantised));
    }
}

static enum status bind_all(struct binder *b, struct binding *out, struct error *err)
{
    enum status rc = find_prefix(b, err);

    for (size_t i = 0; rc == OK && i < b->spec->n_matrices; i++) {
        rc = bind_matrix(b, &out->matrices[i], &b->spec->matrices[i], err);
    }
    for (size_t i = 0; rc == OK && i < b->spec->n_vectors; i++) {
        rc = bind_vector(b, &out->vectors[i], &b->spec->vectors[i], err);
    }
    if (rc == OK && b->missing.n > 0) {
        rc = error_set(err, ERR_FORMAT, "%zu tensors are missing: %s", b->missing.n,
                       list_text(&b->missing));
    }
    return rc;
}

enum status weights_bind(struct binding *out, struct model_weights *w,
                         const struct model_spec *spec, const struct checkpoint *ck,
                         const struct log *log, struct error *err)
{
    struct binder b = {.spec = spec, .ck = ck, .log = log};
    enum status rc;

    out->matrices = calloc(spec->n_matrices + 1, sizeof *out->matrices);
    out->vectors = calloc(spec->n_vectors + 1, sizeof *out->vectors);
    b.is_used = calloc(checkpoint_count(ck) + 1, sizeof *b.is_used);
    if (!out->matrices || !out->vectors || !b.is_used) {
        rc = error_set(err, ERR_NO_MEMORY, "cannot allocate the tensor table");
    } else {
        rc = gptq_config_new(&b.gptq, checkpoint_quantization(ck), err);
    }
    if (rc == OK) {
        rc = bind_all(&b, out, err);
    }
    if (rc == OK) {
        rc = leftovers_check(&b, w, err);
    }
    if (rc == OK) {
        report(&b);
    }
    gptq_config_free(b.gptq);
    free(b.is_used);
    buf_release(&b.missing.text);
    buf_release(&b.plain_against_rule.text);
    buf_release(&b.quantised_against_rule.text);
    buf_release(&b.dequantised.text);
    return rc;
}

void binding_release(struct binding *b, const struct model_spec *spec)
{
    for (size_t i = 0; b->matrices && i < spec->n_matrices; i++) {
        gptq_matrix_release(&b->matrices[i].gptq);
    }
    free(b->matrices);
    free(b->vectors);
    *b = (struct binding){0};
}
