/* spec.c - the parts of a model spec that all families share: slots, names, rotary frequencies.
 *
 * Place: model. Everything lives in the spec's arena, so a spec is released in one call. Failures
 *        while slots are added are remembered by the arena (used up) or by SLOT_NONE, and reported
 *        once: readers stay free of error plumbing. */
#include "model/spec.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "model/families/families.h"

const char *weight_class_name(enum weight_class c)
{
    static const char *const names[CLASS_COUNT] = {
        [CLASS_EMBEDDING] = "embedding",
        [CLASS_HEAD] = "lm_head",
        [CLASS_LINEAR_ATTENTION] = "linear attention",
        [CLASS_ATTENTION] = "attention",
        [CLASS_DENSE] = "dense FFN",
        [CLASS_ROUTER] = "router",
        [CLASS_EXPERT] = "routed experts",
        [CLASS_SHARED_EXPERT] = "shared expert",
    };
    assert((unsigned)c < CLASS_COUNT);
    return names[c];
}

static const char *name_formatted(struct model_spec *spec, const char *fmt, va_list args)
{
    char text[SPEC_NAME_BYTES];
    int n = vsnprintf(text, sizeof text, fmt, args);

    if (n < 0 || (size_t)n >= sizeof text) {
        return NULL;
    }
    return arena_copy(&spec->arena, text, (size_t)n);
}

const char *spec_name(struct model_spec *spec, const char *fmt, ...)
{
    va_list args;
    const char *name;

    va_start(args, fmt);
    name = name_formatted(spec, fmt, args);
    va_end(args);
    return name;
}

matrix_slot spec_matrix_add(struct model_spec *spec, const struct spec_matrix *m, const char *fmt,
                            ...)
{
    va_list args;
    struct spec_matrix *slot;

    if (spec->n_matrices == spec->matrices_max) {
        spec->failed = true;
        return SLOT_NONE;
    }
    slot = &spec->matrices[spec->n_matrices];
    *slot = *m;
    va_start(args, fmt);
    slot->name = name_formatted(spec, fmt, args);
    va_end(args);
    if (!slot->name) {
        spec->failed = true;
        return SLOT_NONE;
    }
    if (!slot->rows) {
        slot->n_file_rows = slot->n_out;
    }
    return (matrix_slot)spec->n_matrices++;
}

vector_slot spec_vector_add(struct model_spec *spec, enum vector_form form, size_t n, size_t taps,
                            const char *fmt, ...)
{
    va_list args;
    struct spec_vector *slot;

    if (spec->n_vectors == spec->vectors_max) {
        spec->failed = true;
        return SLOT_NONE;
    }
    slot = &spec->vectors[spec->n_vectors];
    *slot = (struct spec_vector){.form = form, .n = n, .taps = taps};
    va_start(args, fmt);
    slot->name = name_formatted(spec, fmt, args);
    va_end(args);
    if (!slot->name) {
        spec->failed = true;
        return SLOT_NONE;
    }
    return (vector_slot)spec->n_vectors++;
}

/* Room for the slot tables. A layer of the known blocks has at most 16 matrices beside its experts
 * and 8 vectors; embedding, head and final norm come on top. */
static bool tables_make(struct model_spec *spec, const struct model_config *c)
{
    enum { LAYER_MATRICES_MAX = 16, LAYER_VECTORS_MAX = 8, OUTSIDE_MAX = 8 };
    size_t per_layer = LAYER_MATRICES_MAX + 3 * c->n_experts;

    if (!size_mul(&spec->matrices_max, per_layer, c->n_layers) ||
        !size_add(&spec->matrices_max, spec->matrices_max, OUTSIDE_MAX) ||
        spec->matrices_max > SPEC_SLOTS_MAX) {
        return false;
    }
    spec->vectors_max = LAYER_VECTORS_MAX * c->n_layers + OUTSIDE_MAX;
    spec->matrices = arena_array(&spec->arena, spec->matrices_max, sizeof *spec->matrices);
    spec->vectors = arena_array(&spec->arena, spec->vectors_max, sizeof *spec->vectors);
    spec->layers = arena_array(&spec->arena, c->n_layers, sizeof *spec->layers);
    return spec->matrices && spec->vectors && spec->layers;
}

enum status model_spec_build(struct model_spec *out, const struct model_config *c,
                             struct error *err)
{
    enum status rc;

    *out = (struct model_spec){.hidden = c->hidden_size,
                               .vocab = c->vocab_size,
                               .n_layers = c->n_layers,
                               .eps = (float)c->rms_norm_eps};
    arena_init(&out->arena, SPEC_BYTES_MAX);
    for (size_t i = 0; i < model_families_count; i++) {
        const struct model_family_reader *reader = model_families[i];
        if (reader->family != c->family) {
            continue;
        }
        if (!tables_make(out, c)) {
            return error_set(err, out->arena.is_starved ? ERR_NO_MEMORY : ERR_LIMIT,
                             "the model is too large to describe: %zu layers of %zu experts",
                             c->n_layers, c->n_experts);
        }
        out->family = reader->name;
        rc = reader->build(out, c, err);
        if (rc == OK && out->failed) {
            rc = error_set(err, ERR_NO_MEMORY,
                           "the description of a '%s' model does not fit in memory", reader->name);
        }
        return rc;
    }
    return error_set(err, ERR_UNSUPPORTED, "model type '%s' has no reader", c->model_type);
}

void model_spec_release(struct model_spec *spec)
{
    arena_release(&spec->arena);
    memset(spec, 0, sizeof *spec);
}

/* The dimension at which a full turn takes original_positions / turns tokens (YaRN, Peng et al.,
 * arXiv 2309.00071, section 3.2). */
static double yarn_dimension(const struct rope_spec *rope, double turns)
{
    double pi = 3.14159265358979323846;
    double positions = (double)rope->config.original_positions;

    return (double)rope->dims * log(positions / (turns * 2.0 * pi)) /
           (2.0 * log(rope->config.theta));
}

void rope_frequencies(float *inv_freq, float *scale, const struct rope_spec *rope)
{
    const struct rope_config *c = &rope->config;
    double low = 0, high = 0;

    *scale = 1.0f;
    if (c->is_yarn) {
        double dims = (double)rope->dims;
        double factor = c->attention_factor != 0 ? c->attention_factor : 0.1 * log(c->factor) + 1.0;

        *scale = (float)factor;
        low = fmax(floor(yarn_dimension(rope, c->beta_fast)), 0);
        high = fmin(ceil(yarn_dimension(rope, c->beta_slow)), dims - 1);
        if (high <= low) {
            high = low + 0.001; /* a step instead of a ramp */
        }
    }
    for (size_t i = 0; i < rope->dims / 2; i++) {
        double inv = pow(c->theta, -(double)(2 * i) / (double)rope->dims);
        if (c->is_yarn) { /* slow dimensions are stretched by factor, fast ones stay */
            double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
            inv = inv / c->factor * ramp + inv * (1.0 - ramp);
        }
        inv_freq[i] = (float)inv;
    }
}
