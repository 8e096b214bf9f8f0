/* qwen_hybrid.c - the layer shared by Qwen3-Next and Qwen3.5: names, shapes, order.
 *
 * Every layer is two branches:  x += mixer(norm(x));  x += ffn(norm(x)).  The mixer is a gated delta
 * net, or in the layers the configuration names gated attention; the FFN is dense or a mixture of
 * experts. All norms are zero-centred (1 + w) but the one inside the gated delta net. */
#include "model/families/qwen_hybrid.h"

#include <math.h>
#include <stdio.h>

static const char *const prefixes[] = {
    "model.language_model.", "language_model.model.", "language_model.", "model.", "", NULL};

static const struct spec_skip skip[] = {
    {"model.visual.*", "vision"},
    {"visual.*", "vision"},
    {"vision_tower.*", "vision"},
    {"model.vision_tower.*", "vision"},
    {"mtp.*", "draft head (mtp)"},
    {"model.mtp.*", "draft head (mtp)"},
    {"language_model.mtp.*", "draft head (mtp)"},
    {"*.rotary_emb.inv_freq", "rotary tables"},
    {NULL, NULL},
};

matrix_slot qwen_gdn_matrix(struct model_spec *spec, size_t layer, const char *module, size_t n_out,
                            const int32_t *rows, size_t n_file_rows)
{
    struct spec_matrix m = {.weight_class = CLASS_LINEAR_ATTENTION,
                            .n_out = n_out,
                            .n_in = spec->hidden,
                            .rows = rows,
                            .n_file_rows = n_file_rows};

    return spec_matrix_add(spec, &m, "layers.%zu.linear_attn.%s", layer, module);
}

static matrix_slot layer_matrix(struct model_spec *spec, size_t layer, enum weight_class class,
                                const char *module, size_t n_out, size_t n_in)
{
    struct spec_matrix m = {.weight_class = class, .n_out = n_out, .n_in = n_in};

    m.must_be_dense = class == CLASS_ROUTER;
    return spec_matrix_add(spec, &m, "layers.%zu.%s", layer, module);
}

static vector_slot layer_vector(struct model_spec *spec, size_t layer, enum vector_form form,
                                const char *name, size_t n)
{
    return spec_vector_add(spec, form, n, 0, "layers.%zu.%s", layer, name);
}

static struct block_spec gdn_block(struct model_spec *spec, const struct model_config *c,
                                   qwen_gdn_inputs_fn *inputs, size_t layer)
{
    struct block_spec block = {.kind = BLOCK_GDN};
    struct gdn_spec *g = &block.u.gdn;
    size_t channels;

    g->nk = c->linear_n_key_heads;
    g->nv = c->linear_n_value_heads;
    g->dk = c->linear_key_dim;
    g->dv = c->linear_value_dim;
    g->taps = c->linear_conv_taps;
    g->gdn_layer = spec->n_gdn_layers++;
    channels = 2 * g->nk * g->dk + g->nv * g->dv;
    inputs(spec, g, layer);
    g->out = layer_matrix(spec, layer, CLASS_LINEAR_ATTENTION, "linear_attn.out_proj", spec->hidden,
                          g->nv * g->dv);
    g->conv = spec_vector_add(spec, VECTOR_CONV, channels, g->taps,
                              "layers.%zu.linear_attn.conv1d.weight", layer);
    g->neg_exp_a = layer_vector(spec, layer, VECTOR_NEG_EXP, "linear_attn.A_log", g->nv);
    g->dt_bias = layer_vector(spec, layer, VECTOR_PLAIN, "linear_attn.dt_bias", g->nv);
    g->norm = layer_vector(spec, layer, VECTOR_PLAIN, "linear_attn.norm.weight", g->dv);
    return block;
}

static struct block_spec attention_block(struct model_spec *spec, const struct model_config *c,
                                         size_t layer)
{
    struct block_spec block = {.kind = BLOCK_ATTENTION};
    struct attention_spec *a = &block.u.attention;
    size_t q_rows;

    a->nq = c->n_heads;
    a->nkv = c->n_kv_heads;
    a->hd = c->head_dim;
    a->is_gated = c->attn_output_gate;
    a->scale = (float)(1.0 / sqrt((double)a->hd));
    a->rope.config = c->rope;
    a->rope.dims = (size_t)((double)a->hd * c->rope.partial_factor);
    a->attn_layer = spec->n_attn_layers++;
    q_rows = a->nq * a->hd * (a->is_gated ? 2 : 1);
    a->q = layer_matrix(spec, layer, CLASS_ATTENTION, "self_attn.q_proj", q_rows, spec->hidden);
    a->k = layer_matrix(spec, layer, CLASS_ATTENTION, "self_attn.k_proj", a->nkv * a->hd,
                        spec->hidden);
    a->v = layer_matrix(spec, layer, CLASS_ATTENTION, "self_attn.v_proj", a->nkv * a->hd,
                        spec->hidden);
    a->out =
        layer_matrix(spec, layer, CLASS_ATTENTION, "self_attn.o_proj", spec->hidden, a->nq * a->hd);
    a->q_norm = layer_vector(spec, layer, VECTOR_ONE_PLUS, "self_attn.q_norm.weight", a->hd);
    a->k_norm = layer_vector(spec, layer, VECTOR_ONE_PLUS, "self_attn.k_norm.weight", a->hd);
    return block;
}

static struct dense_spec swiglu(struct model_spec *spec, size_t layer, enum weight_class class,
                                const char *module, size_t width)
{
    struct dense_spec d = {.width = width};
    char name[64];

    snprintf(name, sizeof name, "%s.gate_proj", module);
    d.gate = layer_matrix(spec, layer, class, name, width, spec->hidden);
    snprintf(name, sizeof name, "%s.up_proj", module);
    d.up = layer_matrix(spec, layer, class, name, width, spec->hidden);
    snprintf(name, sizeof name, "%s.down_proj", module);
    d.down = layer_matrix(spec, layer, class, name, spec->hidden, width);
    return d;
}

/* The three matrices of each expert: one by one, or as rows of two stacks for the whole layer, with
 * the gate's rows before the up rows. */
static void experts_add(struct model_spec *spec, struct moe_spec *moe, size_t layer)
{
    const char *gate_up = spec_name(spec, "layers.%zu.mlp.experts.gate_up_proj", layer);
    const char *down = spec_name(spec, "layers.%zu.mlp.experts.down_proj", layer);
    size_t width = moe->width;

    if (!gate_up || !down) {
        spec->failed = true;
        return;
    }
    moe->expert0 = (matrix_slot)spec->n_matrices;
    for (size_t e = 0; e < moe->n_experts; e++) {
        struct spec_matrix m = {.weight_class = CLASS_EXPERT,
                                .n_out = width,
                                .n_in = spec->hidden,
                                .stack = gate_up,
                                .stack_n = moe->n_experts,
                                .stack_rows = 2 * width,
                                .stack_idx = e};

        spec_matrix_add(spec, &m, "layers.%zu.mlp.experts.%zu.gate_proj", layer, e);
        m.stack_row0 = width;
        spec_matrix_add(spec, &m, "layers.%zu.mlp.experts.%zu.up_proj", layer, e);
        m.n_out = spec->hidden;
        m.n_in = width;
        m.stack = down;
        m.stack_rows = spec->hidden;
        m.stack_row0 = 0;
        spec_matrix_add(spec, &m, "layers.%zu.mlp.experts.%zu.down_proj", layer, e);
    }
}

static struct block_spec moe_block(struct model_spec *spec, const struct model_config *c,
                                   size_t layer)
{
    struct block_spec block = {.kind = BLOCK_MOE};
    struct moe_spec *moe = &block.u.moe;

    moe->n_experts = c->n_experts;
    moe->top_k = c->n_experts_per_token;
    moe->width = c->expert_intermediate_size;
    moe->renormalise = c->norm_topk_prob;
    moe->router = layer_matrix(spec, layer, CLASS_ROUTER, "mlp.gate", moe->n_experts, spec->hidden);
    experts_add(spec, moe, layer);
    moe->shared_gate = SLOT_NONE;
    if (c->shared_intermediate_size > 0) {
        moe->shared = swiglu(spec, layer, CLASS_SHARED_EXPERT, "mlp.shared_expert",
                             c->shared_intermediate_size);
        moe->shared_gate = layer_matrix(spec, layer, CLASS_SHARED_EXPERT, "mlp.shared_expert_gate",
                                        1, spec->hidden);
    }
    return block;
}

static struct block_spec dense_block(struct model_spec *spec, const struct model_config *c,
                                     size_t layer)
{
    struct block_spec block = {.kind = BLOCK_DENSE};

    block.u.dense = swiglu(spec, layer, CLASS_DENSE, "mlp", c->intermediate_size);
    return block;
}

static void outside_add(struct model_spec *spec, const struct model_config *c)
{
    struct spec_matrix m = {.weight_class = CLASS_EMBEDDING,
                            .n_out = spec->vocab,
                            .n_in = spec->hidden,
                            .must_be_dense = true};

    spec->embed = spec_matrix_add(spec, &m, "embed_tokens");
    spec->head = spec->embed;
    if (!c->tie_embeddings) {
        m.weight_class = CLASS_HEAD;
        m.must_be_dense = false;
        m.at_root = true;
        spec->head = spec_matrix_add(spec, &m, "lm_head");
    }
    spec->final_norm = spec_vector_add(spec, VECTOR_ONE_PLUS, spec->hidden, 0, "norm.weight");
}

/* Relations between the sizes that the blocks rely on. */
static enum status sizes_check(const struct model_config *c, struct error *err)
{
    size_t rope_dims = (size_t)((double)c->head_dim * c->rope.partial_factor);

    if (c->linear_n_key_heads == 0 || c->linear_n_value_heads % c->linear_n_key_heads != 0) {
        return error_set(err, ERR_FORMAT,
                         "linear_num_value_heads %zu is not a multiple of linear_num_key_heads %zu",
                         c->linear_n_value_heads, c->linear_n_key_heads);
    }
    if (c->n_kv_heads == 0 || c->n_heads % c->n_kv_heads != 0) {
        return error_set(err, ERR_FORMAT,
                         "num_attention_heads %zu is not a multiple of num_key_value_heads %zu",
                         c->n_heads, c->n_kv_heads);
    }
    if (rope_dims == 0 || rope_dims % 2 != 0 || rope_dims > c->head_dim) {
        return error_set(
            err, ERR_FORMAT,
            "partial_rotary_factor turns %zu of %zu dimensions: an even number above 0 "
            "is needed",
            rope_dims, c->head_dim);
    }
    if (c->n_experts > 0 &&
        (c->n_experts_per_token == 0 || c->n_experts_per_token > c->n_experts)) {
        return error_set(err, ERR_FORMAT, "num_experts_per_tok %zu is not in 1..num_experts %zu",
                         c->n_experts_per_token, c->n_experts);
    }
    return OK;
}

enum status qwen_hybrid_build(struct model_spec *spec, const struct model_config *c,
                              qwen_gdn_inputs_fn *gdn_inputs, struct error *err)
{
    enum status rc = sizes_check(c, err);

    if (rc != OK) {
        return rc;
    }
    spec->anchor = "embed_tokens";
    spec->prefixes = prefixes;
    spec->skip = skip;
    outside_add(spec, c);
    for (size_t i = 0; i < c->n_layers; i++) {
        struct layer_spec *layer = &spec->layers[i];
        struct branch_spec *mixer = &layer->branches[0], *ffn = &layer->branches[1];

        layer->n_branches = 2;
        mixer->n_blocks = 1;
        mixer->norm =
            layer_vector(spec, i, VECTOR_ONE_PLUS, "input_layernorm.weight", spec->hidden);
        mixer->blocks[0] =
            c->layer_is_full[i] ? attention_block(spec, c, i) : gdn_block(spec, c, gdn_inputs, i);
        ffn->n_blocks = 1;
        ffn->norm =
            layer_vector(spec, i, VECTOR_ONE_PLUS, "post_attention_layernorm.weight", spec->hidden);
        ffn->blocks[0] = c->n_experts > 0 ? moe_block(spec, c, i) : dense_block(spec, c, i);
    }
    return OK;
}
