/* model_inventory.c - see model_inventory.h.
 *
 * The content is chosen so that a run of the model behaves: every matrix keeps the size of its input
 * (standard deviation gain / sqrt(n_in)), so the residual stream grows with the square root of the
 * depth; states decay; logits have a deviation of about 3, neither flat nor one peak; the router's
 * choices are spread over the experts. */
#include "cli/model_inventory.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 128, PACKED_PER_WORD = 8 };

static const uint32_t ZERO_POINTS = 0x77777777; /* 8 less one: the symmetric zero of format v1 */
static const double HEAD_GAIN = 3;              /* deviation of the logits */
static const double NORM_SPREAD = 0.1, BIAS_SPREAD = 0.02, CONV_SPREAD = 0.5;
/* Root mean square of FILL_INT4's values less the zero point: -7 to 7, 0 twice. */
static const double INT4_RMS = 4.183;
static const double SCALE_SPREAD = 0.25; /* scales differ from the mean by up to this share */

struct maker {
    struct model_inventory *inv;
    const struct model_shape *shape;
    const struct model_variant *variant;
    const char *prefix; /* of the text model's tensors */
    /* Where the names of the layer at work begin, and how its MLP is stored. */
    char layer[NAME_BYTES];
    bool is_int4;
    bool experts_are_fused;
};

/* ---- adding ---- */

static size_t fill_index(struct model_inventory *inv, const struct fill_spec *spec)
{
    for (size_t i = 0; i < inv->n_fills; i++) {
        const struct fill_spec *f = &inv->fills[i];

        if (f->kind == spec->kind && f->dtype == spec->dtype && f->word == spec->word &&
            fabs(f->a - spec->a) < 1e-12 && fabs(f->b - spec->b) < 1e-12) {
            return i;
        }
    }
    assert(inv->n_fills < FILL_SPECS_MAX); /* three times what the largest variant needs */
    inv->fills[inv->n_fills] = *spec;
    return inv->n_fills++;
}

static bool grow(struct model_inventory *inv)
{
    size_t cap = inv->cap ? inv->cap * 2 : 1024;
    struct made_tensor *tensors = reallocarray(inv->tensors, cap, sizeof *tensors);

    if (!tensors) {
        return false;
    }
    inv->tensors = tensors;
    inv->cap = cap;
    return true;
}

/* The sizes come from a checked shape, so products fit. */
static void add(struct maker *m, const struct tensor *t, const struct fill_spec *fill,
                const char *fmt, ...) __attribute__((format(printf, 4, 5)));

static void add(struct maker *m, const struct tensor *t, const struct fill_spec *fill,
                const char *fmt, ...)
{
    struct model_inventory *inv = m->inv;
    struct made_tensor made = {.tensor = *t};
    char name[NAME_BYTES * 2];
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof name || inv->failed || (inv->n == inv->cap && !grow(inv))) {
        inv->failed = true;
        return;
    }
    made.name = arena_copy(&inv->arena, name, (size_t)n);
    made.tensor.dtype = fill->dtype;
    made.n_bytes = tensor_count(t) * dtype_bytes(fill->dtype);
    made.fill_idx = fill_index(inv, fill);
    if (!made.name) {
        inv->failed = true;
        return;
    }
    inv->n_bytes += made.n_bytes;
    inv->tensors[inv->n++] = made;
}

static struct fill_spec normal(double mean, double deviation)
{
    return (struct fill_spec){FILL_NORMAL, DTYPE_BF16, mean, deviation, 0};
}

static void count(struct maker *m, size_t parameters)
{
    m->inv->parameters += parameters;
}

/* PREFIX.MODULE.weight, [n_out, n_in]. */
static void add_matrix(struct maker *m, const char *module, size_t n_out, size_t n_in, double gain)
{
    struct tensor t = {.n_dims = 2, .shape = {n_out, n_in}};
    struct fill_spec fill = normal(0, gain / sqrt((double)n_in));

    add(m, &t, &fill, "%s%s.weight", m->layer, module);
    count(m, n_out * n_in);
}

static void add_vector(struct maker *m, const char *name, size_t n, const struct fill_spec *fill)
{
    struct tensor t = {.n_dims = 1, .shape = {n}};

    add(m, &t, fill, "%s%s", m->layer, name);
    count(m, n);
}

/* A norm whose scale is 1 + w. */
static void add_norm(struct maker *m, const char *name, size_t n)
{
    struct fill_spec fill = normal(0, NORM_SPREAD);

    add_vector(m, name, n, &fill);
}

/* A matrix as GPTQ stores it: n_in x n_out, packed along the inputs. */
static void add_int4(struct maker *m, const char *module, size_t n_out, size_t n_in)
{
    size_t n_groups = n_in / SHAPE_GROUP;
    double scale = 1 / (INT4_RMS * sqrt((double)n_in));
    struct tensor qweight = {.n_dims = 2, .shape = {n_in / PACKED_PER_WORD, n_out}};
    struct tensor qzeros = {.n_dims = 2, .shape = {n_groups, n_out / PACKED_PER_WORD}};
    struct tensor scales = {.n_dims = 2, .shape = {n_groups, n_out}};
    struct tensor g_idx = {.n_dims = 1, .shape = {n_in}};
    struct fill_spec words = {.kind = FILL_INT4, .dtype = DTYPE_I32};
    struct fill_spec zeros = {.kind = FILL_CONSTANT, .dtype = DTYPE_I32, .word = ZERO_POINTS};
    struct fill_spec groups = {.kind = FILL_GROUPS, .dtype = DTYPE_I32, .word = SHAPE_GROUP};
    struct fill_spec factors = {FILL_UNIFORM, m->variant->scale_dtype, scale * (1 - SCALE_SPREAD),
                                scale * (1 + SCALE_SPREAD), 0};

    add(m, &qweight, &words, "%s%s.qweight", m->layer, module);
    add(m, &qzeros, &zeros, "%s%s.qzeros", m->layer, module);
    add(m, &scales, &factors, "%s%s.scales", m->layer, module);
    add(m, &g_idx, &groups, "%s%s.g_idx", m->layer, module);
    count(m, n_out * n_in);
}

static void add_mlp_matrix(struct maker *m, const char *module, size_t n_out, size_t n_in)
{
    if (m->is_int4) {
        add_int4(m, module, n_out, n_in);
    } else {
        add_matrix(m, module, n_out, n_in, 1);
    }
}

/* ---- blocks ---- */

/* The type of A_log and of the gated norm: Qwen3.5 keeps them in float32. */
static enum dtype state_dtype(const struct model_shape *s)
{
    return s->family == FAMILY_QWEN3_NEXT ? DTYPE_BF16 : DTYPE_F32;
}

static void add_linear_inputs(struct maker *m, size_t keys, size_t values)
{
    size_t hidden = m->shape->hidden, nv = m->shape->n_value_heads;

    if (m->shape->family == FAMILY_QWEN3_NEXT) {
        add_matrix(m, "linear_attn.in_proj_qkvz", 2 * keys + 2 * values, hidden, 1);
        add_matrix(m, "linear_attn.in_proj_ba", 2 * nv, hidden, 1);
        return;
    }
    add_matrix(m, "linear_attn.in_proj_qkv", 2 * keys + values, hidden, 1);
    add_matrix(m, "linear_attn.in_proj_z", values, hidden, 1);
    add_matrix(m, "linear_attn.in_proj_a", nv, hidden, 1);
    add_matrix(m, "linear_attn.in_proj_b", nv, hidden, 1);
}

static void add_linear_attention(struct maker *m)
{
    const struct model_shape *s = m->shape;
    size_t keys = (size_t)SHAPE_KEY_HEADS * SHAPE_LINEAR_DIM;
    size_t values = s->n_value_heads * SHAPE_LINEAR_DIM, channels = 2 * keys + values;
    struct tensor conv = {.n_dims = 3, .shape = {channels, 1, SHAPE_CONV_TAPS}};
    struct fill_spec taps = normal(0, CONV_SPREAD);
    /* As state space models are initialised: steps of 0.001 to 0.1, so a state forgets over some
     * ten to some thousand tokens. */
    struct fill_spec rate = {FILL_DECAY_RATE, state_dtype(s), 1, 16, 0};
    struct fill_spec step = {FILL_TIME_STEP, DTYPE_BF16, 0.001, 0.1, 0};
    struct fill_spec norm = {FILL_NORMAL, state_dtype(s), 1, NORM_SPREAD, 0};

    add_linear_inputs(m, keys, values);
    add(m, &conv, &taps, "%slinear_attn.conv1d.weight", m->layer);
    count(m, tensor_count(&conv));
    add_vector(m, "linear_attn.A_log", s->n_value_heads, &rate);
    add_vector(m, "linear_attn.dt_bias", s->n_value_heads, &step);
    add_vector(m, "linear_attn.norm.weight", SHAPE_LINEAR_DIM, &norm);
    add_matrix(m, "linear_attn.out_proj", s->hidden, values, 1);
}

static void add_attention(struct maker *m)
{
    const struct model_shape *s = m->shape;
    size_t rows = s->n_heads * SHAPE_HEAD_DIM, kv_rows = s->n_kv_heads * SHAPE_HEAD_DIM;

    add_matrix(m, "self_attn.q_proj", 2 * rows, s->hidden, 1); /* queries and gates */
    add_matrix(m, "self_attn.k_proj", kv_rows, s->hidden, 1);
    add_matrix(m, "self_attn.v_proj", kv_rows, s->hidden, 1);
    add_matrix(m, "self_attn.o_proj", s->hidden, rows, 1);
    add_norm(m, "self_attn.q_norm.weight", SHAPE_HEAD_DIM);
    add_norm(m, "self_attn.k_norm.weight", SHAPE_HEAD_DIM);
}

static void add_fused_experts(struct maker *m)
{
    const struct model_shape *s = m->shape;
    struct tensor gate_up = {.n_dims = 3, .shape = {s->n_experts, 2 * s->expert_width, s->hidden}};
    struct tensor down = {.n_dims = 3, .shape = {s->n_experts, s->hidden, s->expert_width}};
    struct fill_spec in = normal(0, 1 / sqrt((double)s->hidden));
    struct fill_spec out = normal(0, 1 / sqrt((double)s->expert_width));

    add(m, &gate_up, &in, "%smlp.experts.gate_up_proj", m->layer);
    add(m, &down, &out, "%smlp.experts.down_proj", m->layer);
    count(m, tensor_count(&gate_up) + tensor_count(&down));
}

static void add_experts(struct maker *m)
{
    const struct model_shape *s = m->shape;
    char module[NAME_BYTES];

    for (size_t e = 0; e < s->n_experts; e++) {
        snprintf(module, sizeof module, "mlp.experts.%zu.gate_proj", e);
        add_mlp_matrix(m, module, s->expert_width, s->hidden);
        snprintf(module, sizeof module, "mlp.experts.%zu.up_proj", e);
        add_mlp_matrix(m, module, s->expert_width, s->hidden);
        snprintf(module, sizeof module, "mlp.experts.%zu.down_proj", e);
        add_mlp_matrix(m, module, s->hidden, s->expert_width);
    }
}

static void add_mlp(struct maker *m)
{
    const struct model_shape *s = m->shape;

    if (s->n_experts == 0) {
        add_mlp_matrix(m, "mlp.gate_proj", s->intermediate, s->hidden);
        add_mlp_matrix(m, "mlp.up_proj", s->intermediate, s->hidden);
        add_mlp_matrix(m, "mlp.down_proj", s->hidden, s->intermediate);
        return;
    }
    add_matrix(m, "mlp.gate", s->n_experts, s->hidden, 1);
    if (m->experts_are_fused) {
        add_fused_experts(m);
    } else {
        add_experts(m);
    }
    add_matrix(m, "mlp.shared_expert.gate_proj", s->shared_width, s->hidden, 1);
    add_matrix(m, "mlp.shared_expert.up_proj", s->shared_width, s->hidden, 1);
    add_matrix(m, "mlp.shared_expert.down_proj", s->hidden, s->shared_width, 1);
    add_matrix(m, "mlp.shared_expert_gate", 1, s->hidden, 1);
}

static void add_layer(struct maker *m, bool is_full)
{
    add_norm(m, "input_layernorm.weight", m->shape->hidden);
    if (is_full) {
        add_attention(m);
    } else {
        add_linear_attention(m);
    }
    add_norm(m, "post_attention_layernorm.weight", m->shape->hidden);
    add_mlp(m);
}

/* ---- the whole ---- */

static void add_text(struct maker *m)
{
    const struct model_shape *s = m->shape;
    struct tensor embedding = {.n_dims = 2, .shape = {s->vocab, s->hidden}};
    /* A tied embedding is the head too, and must not make a peak of every logit. */
    struct fill_spec rows = normal(0, s->is_tied ? HEAD_GAIN / sqrt((double)s->hidden) : 1);

    add(m, &embedding, &rows, "%sembed_tokens.weight", m->prefix);
    count(m, tensor_count(&embedding));
    for (size_t i = 0; i < s->n_layers; i++) {
        snprintf(m->layer, sizeof m->layer, "%slayers.%zu.", m->prefix, i);
        add_layer(m, (i + 1) % SHAPE_FULL_INTERVAL == 0);
    }
    snprintf(m->layer, sizeof m->layer, "%s", m->prefix);
    add_norm(m, "norm.weight", s->hidden);
    m->layer[0] = '\0';
    if (!s->is_tied) {
        add_matrix(m, "lm_head", s->vocab, s->hidden, HEAD_GAIN);
    }
}

/* The draft head: one full-attention layer. Never quantised. */
static void add_mtp(struct maker *m)
{
    size_t hidden = m->shape->hidden;

    m->is_int4 = false;
    snprintf(m->layer, sizeof m->layer, "mtp.");
    add_matrix(m, "fc", hidden, 2 * hidden, 1);
    add_norm(m, "pre_fc_norm_embedding.weight", hidden);
    add_norm(m, "pre_fc_norm_hidden.weight", hidden);
    add_norm(m, "norm.weight", hidden);
    snprintf(m->layer, sizeof m->layer, "mtp.layers.0.");
    add_layer(m, true);
}

/* MODULE.weight and MODULE.bias; n_in 0: a layer norm over n_out. */
static void add_vision_module(struct maker *m, const char *module, size_t n_out, size_t n_in)
{
    struct fill_spec bias = normal(0, BIAS_SPREAD), scale = normal(1, NORM_SPREAD);
    char name[NAME_BYTES];

    if (n_in > 0) {
        add_matrix(m, module, n_out, n_in, 1);
    } else {
        snprintf(name, sizeof name, "%s.weight", module);
        add_vector(m, name, n_out, &scale);
    }
    snprintf(name, sizeof name, "%s.bias", module);
    add_vector(m, name, n_out, &bias);
}

static void add_vision(struct maker *m)
{
    const struct vision_shape *v = &m->shape->vision;
    size_t merged = SHAPE_MERGED_PATCHES * v->hidden;
    struct tensor patch = {
        .n_dims = 5,
        .shape = {v->hidden, SHAPE_COLOURS, SHAPE_PATCH_FRAMES, SHAPE_PATCH, SHAPE_PATCH}};
    struct tensor positions = {.n_dims = 2, .shape = {SHAPE_VISION_POSITIONS, v->hidden}};
    size_t patch_values = tensor_count(&patch) / v->hidden;
    struct fill_spec pixels = normal(0, 1 / sqrt((double)patch_values));
    struct fill_spec bias = normal(0, BIAS_SPREAD);

    snprintf(m->layer, sizeof m->layer, "model.visual.");
    add(m, &patch, &pixels, "%spatch_embed.proj.weight", m->layer);
    count(m, tensor_count(&patch));
    add_vector(m, "patch_embed.proj.bias", v->hidden, &bias);
    add(m, &positions, &bias, "%spos_embed.weight", m->layer);
    count(m, tensor_count(&positions));
    for (size_t i = 0; i < v->depth; i++) {
        snprintf(m->layer, sizeof m->layer, "model.visual.blocks.%zu.", i);
        add_vision_module(m, "norm1", v->hidden, 0);
        add_vision_module(m, "attn.qkv", 3 * v->hidden, v->hidden);
        add_vision_module(m, "attn.proj", v->hidden, v->hidden);
        add_vision_module(m, "norm2", v->hidden, 0);
        add_vision_module(m, "mlp.linear_fc1", v->intermediate, v->hidden);
        add_vision_module(m, "mlp.linear_fc2", v->hidden, v->intermediate);
    }
    snprintf(m->layer, sizeof m->layer, "model.visual.merger.");
    add_vision_module(m, "norm", v->hidden, 0);
    add_vision_module(m, "linear_fc1", merged, merged);
    add_vision_module(m, "linear_fc2", m->shape->hidden, merged);
}

enum status model_inventory_new(struct model_inventory *out, const struct model_shape *s,
                                const struct model_variant *v, struct error *err)
{
    bool is_nested = s->family != FAMILY_QWEN3_NEXT;
    struct maker m = {.inv = out,
                      .shape = s,
                      .variant = v,
                      .prefix = is_nested ? "model.language_model." : "model.",
                      .is_int4 = v->is_int4,
                      .experts_are_fused = is_nested && !v->is_int4};

    *out = (struct model_inventory){0};
    arena_init(&out->arena, 0);
    add_text(&m);
    if (v->with_mtp) {
        add_mtp(&m);
    }
    if (v->with_vision) {
        add_vision(&m);
    }
    if (out->failed) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the list of tensors of '%s'",
                         s->name);
    }
    return OK;
}

void model_inventory_release(struct model_inventory *inv)
{
    free(inv->tensors);
    arena_release(&inv->arena);
    *inv = (struct model_inventory){0};
}
