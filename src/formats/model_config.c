/* model_config.c - config.json as checked numbers.
 *
 * Place:  formats; the rotary fields are rope_config.c, range checks config_fields.c.
 * Idea:   first find out which object holds the text model's fields (text_config of a nested file, or
 *         the top), then read group by group. A number that later sizes an allocation or a loop is
 *         checked against a named limit here, and products that kernels form are checked too, so
 *         that no later code has to.
 * Source: field names and defaults as in the reference implementation's configuration classes
 *         qwen3_next, qwen3_5 and qwen3_5_moe. */
#include "formats/model_config.h"

#include <stdlib.h>
#include <string.h>

#include "formats/config_fields.h"
#include "formats/rope_config.h"

enum { FULL_ATTENTION_INTERVAL = 4 }; /* the families' default */

struct fields {
    struct json_object *text;  /* where the text model's fields are */
    struct json_object *outer; /* the top of a nested file, or NULL */
    struct error *err;
};

const char *model_family_name(enum model_family f)
{
    static const char *const names[] = {"qwen3_5_moe", "qwen3_5", "qwen3_next"};

    return (unsigned)f < sizeof names / sizeof names[0] ? names[f] : "unknown";
}

/* ---- which model ---- */

static const struct {
    const char *type;
    enum model_family family;
} types[] = {
    {"qwen3_5_moe", FAMILY_QWEN3_5_MOE}, {"qwen3_5_moe_text", FAMILY_QWEN3_5_MOE},
    {"qwen3_5", FAMILY_QWEN3_5},         {"qwen3_5_text", FAMILY_QWEN3_5},
    {"qwen3_next", FAMILY_QWEN3_NEXT},
};

static const struct {
    const char *architecture;
    enum model_family family;
} architectures[] = {
    {"Qwen3_5MoeForConditionalGeneration", FAMILY_QWEN3_5_MOE},
    {"Qwen3_5MoeForCausalLM", FAMILY_QWEN3_5_MOE},
    {"Qwen3_5ForConditionalGeneration", FAMILY_QWEN3_5},
    {"Qwen3_5ForCausalLM", FAMILY_QWEN3_5},
    {"Qwen3NextForCausalLM", FAMILY_QWEN3_NEXT},
};

static enum status refuse_type(const char *type, const char *key, struct error *err)
{
    if (strncmp(type, "qwen4_exp", 9) == 0 || strncmp(type, "Qwen4Exp", 8) == 0) {
        return error_set_param(err, ERR_UNSUPPORTED, key,
                               "%s '%s' is not supported: its parallel residual streams, sparse "
                               "attention and n-gram embeddings are not built",
                               key, type);
    }
    return error_set_param(err, ERR_UNSUPPORTED, key,
                           "%s '%s' is not supported (known: qwen3_5_moe, qwen3_5, qwen3_next)",
                           key, type);
}

static enum status family_of_type(enum model_family *out, const char *type, struct error *err)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(types[i].type, type) == 0) {
            *out = types[i].family;
            return OK;
        }
    }
    return refuse_type(type, "model_type", err);
}

static enum status copy_name(char out[CONFIG_NAME_BYTES], const char *text, const char *key,
                             struct error *err)
{
    size_t n = strlen(text);

    if (n >= CONFIG_NAME_BYTES) {
        return error_set_param(err, ERR_FORMAT, key, "field '%s' has %zu bytes, more than %d", key,
                               n, CONFIG_NAME_BYTES - 1);
    }
    memcpy(out, text, n + 1);
    return OK;
}

/* model_type at the top, and in text_config when nested: both must mean the same family. */
static enum status read_model_type(struct model_config *c, const struct fields *f)
{
    struct json_object *top = f->outer ? f->outer : f->text;
    const char *type = NULL, *inner = NULL;
    enum model_family family = c->family;
    enum status rc = json_get_string(&type, top, "model_type", ERR_FORMAT, f->err);

    if (rc == OK && !type) {
        rc = config_missing("model_type", f->err);
    }
    if (rc == OK) {
        rc = family_of_type(&c->family, type, f->err);
    }
    if (rc == OK) {
        rc = copy_name(c->model_type, type, "model_type", f->err);
    }
    if (rc == OK && f->outer) {
        rc = json_get_string(&inner, f->text, "model_type", ERR_FORMAT, f->err);
    }
    if (rc != OK || !inner) {
        return rc;
    }
    rc = family_of_type(&family, inner, f->err);
    if (rc == OK && family != c->family) {
        rc = error_set_param(f->err, ERR_FORMAT, "model_type",
                             "field 'model_type' is '%s' at the top and '%s' in text_config", type,
                             inner);
    }
    return rc;
}

static enum status read_architecture(struct model_config *c, const struct fields *f)
{
    struct json_object *list = json_get(f->outer ? f->outer : f->text, "architectures"), *first;
    const char *name;
    enum status rc;

    if (!list) {
        return OK;
    }
    first = json_object_is_type(list, json_type_array) ? json_object_array_get_idx(list, 0) : NULL;
    if (json_object_is_type(list, json_type_array) && json_object_array_length(list) == 0) {
        return OK;
    }
    if (!json_object_is_type(first, json_type_string)) {
        return error_set_param(f->err, ERR_FORMAT, "architectures",
                               "field 'architectures' is not a list of names");
    }
    name = json_object_get_string(first);
    for (size_t i = 0; i < sizeof architectures / sizeof architectures[0]; i++) {
        if (strcmp(architectures[i].architecture, name) != 0) {
            continue;
        }
        rc = copy_name(c->architecture, name, "architectures", f->err);
        if (rc == OK && architectures[i].family != c->family) {
            rc = error_set_param(f->err, ERR_FORMAT, "architectures",
                                 "architecture '%s' does not belong to model_type '%s'", name,
                                 c->model_type);
        }
        return rc;
    }
    return refuse_type(name, "architectures", f->err);
}

/* ---- fields whose only accepted value is the one that the kernels compute ---- */

static enum status refuse_true(const struct fields *f, const char *key)
{
    bool v = false;
    enum status rc = json_get_bool(&v, f->text, key, ERR_FORMAT, f->err);

    if (rc == OK && v) {
        rc = error_set_param(f->err, ERR_UNSUPPORTED, key, "field '%s' true is not supported", key);
    }
    return rc;
}

static enum status require_silu(const struct fields *f, const char *key)
{
    const char *v = "silu";
    enum status rc = json_get_string(&v, f->text, key, ERR_FORMAT, f->err);

    if (rc == OK && strcmp(v, "silu") != 0 && strcmp(v, "swish") != 0) {
        rc = error_set_param(f->err, ERR_UNSUPPORTED, key, "field '%s': '%s' is not supported", key,
                             v);
    }
    return rc;
}

static enum status check_fixed_fields(const struct fields *f)
{
    enum status rc = refuse_true(f, "attention_bias");

    if (rc == OK) {
        rc = refuse_true(f, "use_sliding_window");
    }
    if (rc == OK) {
        rc = refuse_true(f, "mtp_use_dedicated_embeddings");
    }
    if (rc == OK) {
        rc = require_silu(f, "hidden_act");
    }
    if (rc == OK) {
        rc = require_silu(f, "output_gate_type"); /* of the gated norm, despite its name */
    }
    return rc;
}

/* ---- groups of numbers ---- */

/* A field of the text object, in min..max. */
static enum status read_size(size_t *out, const struct fields *f, const char *key, size_t min,
                             size_t max)
{
    return config_size(out, f->text, key, min, max, CONFIG_REQUIRED, f->err);
}

/* Nested files keep the type on either level. */
static enum status read_dtypes(struct model_config *c, const struct fields *f)
{
    struct json_object *levels[] = {f->text, f->outer};
    enum status rc = OK;

    for (size_t i = 0; i < 2 && rc == OK && c->dtype == DTYPE_NONE; i++) {
        rc = config_dtype(&c->dtype, levels[i], "torch_dtype", f->err);
        if (rc == OK) {
            rc = config_dtype(&c->dtype, levels[i], "dtype", f->err); /* the newer name wins */
        }
    }
    if (rc == OK) {
        rc = config_dtype(&c->ssm_dtype, f->text, "mamba_ssm_dtype", f->err);
    }
    return rc;
}

static enum status read_trunk(struct model_config *c, const struct fields *f)
{
    bool tie = false;
    enum status rc = read_size(&c->hidden_size, f, "hidden_size", 1, CONFIG_DIM_MAX);

    if (rc == OK) {
        rc = read_size(&c->n_layers, f, "num_hidden_layers", 1, CONFIG_LAYERS_MAX);
    }
    if (rc == OK) {
        rc = read_size(&c->vocab_size, f, "vocab_size", 1, CONFIG_VOCAB_MAX);
    }
    if (rc == OK) {
        rc = read_size(&c->max_positions, f, "max_position_embeddings", 1, CONFIG_POSITIONS_MAX);
    }
    if (rc == OK) {
        rc = config_double(&c->rms_norm_eps, f->text, "rms_norm_eps", 1e-12, 1e-1, CONFIG_REQUIRED,
                           f->err);
    }
    if (rc == OK) {
        rc = config_size(&c->mtp_layers, f->text, "mtp_num_hidden_layers", 0, CONFIG_MTP_LAYERS_MAX,
                         CONFIG_OPTIONAL, f->err);
    }
    if (rc == OK) {
        rc = json_get_bool(&tie, f->text, "tie_word_embeddings", ERR_FORMAT, f->err);
    }
    if (rc == OK) { /* the outer one wins, as in the reference implementation */
        rc = json_get_bool(&tie, f->outer, "tie_word_embeddings", ERR_FORMAT, f->err);
    }
    c->tie_embeddings = tie;
    return rc;
}

static enum status check_product(size_t a, const char *a_key, size_t b, const char *b_key,
                                 struct error *err)
{
    if (a * b > CONFIG_DIM_MAX) { /* both are below 2^21 */
        return error_set_param(err, ERR_FORMAT, a_key, "fields '%s' (%zu) x '%s' (%zu) pass %d",
                               a_key, a, b_key, b, CONFIG_DIM_MAX);
    }
    return OK;
}

static enum status check_multiple(size_t a, const char *a_key, size_t b, const char *b_key,
                                  struct error *err)
{
    if (a % b != 0) {
        return error_set_param(err, ERR_FORMAT, a_key,
                               "field '%s' (%zu) is not a multiple of '%s' (%zu)", a_key, a, b_key,
                               b);
    }
    return OK;
}

static enum status read_attention(struct model_config *c, const struct fields *f)
{
    enum status rc = read_size(&c->n_heads, f, "num_attention_heads", 1, CONFIG_DIM_MAX);

    if (rc == OK) {
        rc = read_size(&c->n_kv_heads, f, "num_key_value_heads", 1, CONFIG_DIM_MAX);
    }
    if (rc == OK) {
        rc = check_multiple(c->n_heads, "num_attention_heads", c->n_kv_heads, "num_key_value_heads",
                            f->err);
    }
    if (rc == OK) {
        rc = read_size(&c->head_dim, f, "head_dim", 2, CONFIG_HEAD_DIM_MAX);
    }
    if (rc == OK) {
        rc = check_product(c->n_heads, "num_attention_heads", c->head_dim, "head_dim", f->err);
    }
    c->attn_output_gate = true;
    if (rc == OK) {
        rc = json_get_bool(&c->attn_output_gate, f->text, "attn_output_gate", ERR_FORMAT, f->err);
    }
    return rc;
}

static enum status read_linear_attention(struct model_config *c, const struct fields *f)
{
    size_t *nk = &c->linear_n_key_heads, *nv = &c->linear_n_value_heads;
    enum status rc = read_size(nk, f, "linear_num_key_heads", 1, CONFIG_DIM_MAX);

    if (rc == OK) {
        rc = read_size(nv, f, "linear_num_value_heads", 1, CONFIG_DIM_MAX);
    }
    if (rc == OK) {
        rc = check_multiple(*nv, "linear_num_value_heads", *nk, "linear_num_key_heads", f->err);
    }
    if (rc == OK) {
        rc = read_size(&c->linear_key_dim, f, "linear_key_head_dim", 1, CONFIG_HEAD_DIM_MAX);
    }
    if (rc == OK) {
        rc = read_size(&c->linear_value_dim, f, "linear_value_head_dim", 1, CONFIG_HEAD_DIM_MAX);
    }
    if (rc == OK) {
        rc = read_size(&c->linear_conv_taps, f, "linear_conv_kernel_dim", 2, CONFIG_CONV_TAPS_MAX);
    }
    if (rc == OK) {
        rc = check_product(*nk, "linear_num_key_heads", c->linear_key_dim, "linear_key_head_dim",
                           f->err);
    }
    if (rc == OK) {
        rc = check_product(*nv, "linear_num_value_heads", c->linear_value_dim,
                           "linear_value_head_dim", f->err);
    }
    return rc;
}

/* layer_types wins over full_attention_interval. */
static enum status read_layer_kinds(struct model_config *c, const struct fields *f)
{
    struct json_object *list = json_get(f->text, "layer_types");
    size_t interval = FULL_ATTENTION_INTERVAL;
    enum status rc = OK;

    if (!list) {
        rc = config_size(&interval, f->text, "full_attention_interval", 1, CONFIG_LAYERS_MAX,
                         CONFIG_OPTIONAL, f->err);
    } else if (!json_object_is_type(list, json_type_array) ||
               json_object_array_length(list) != c->n_layers) {
        rc = error_set_param(f->err, ERR_FORMAT, "layer_types",
                             "field 'layer_types' is not a list of num_hidden_layers (%zu) names",
                             c->n_layers);
    }
    if (rc != OK) {
        return rc;
    }
    c->layer_is_full = calloc(c->n_layers, sizeof *c->layer_is_full);
    if (!c->layer_is_full) {
        return error_set(f->err, ERR_NO_MEMORY, "cannot allocate the list of %zu layers",
                         c->n_layers);
    }
    for (size_t i = 0; i < c->n_layers; i++) {
        struct json_object *v = list ? json_object_array_get_idx(list, i) : NULL;
        const char *kind =
            json_object_is_type(v, json_type_string) ? json_object_get_string(v) : "";

        if (list && strcmp(kind, "full_attention") != 0 && strcmp(kind, "linear_attention") != 0) {
            return error_set_param(f->err, ERR_UNSUPPORTED, "layer_types",
                                   "field 'layer_types': layer %zu is of the unknown kind '%s'", i,
                                   kind);
        }
        c->layer_is_full[i] = list ? kind[0] == 'f' : (i + 1) % interval == 0;
    }
    return OK;
}

/* Models with MoE in every layer only: the fields that say otherwise must be neutral. */
static enum status check_all_layers_are_moe(const struct fields *f)
{
    struct json_object *only = json_get(f->text, "mlp_only_layers");
    size_t step = 1;
    enum status rc = config_size(&step, f->text, "decoder_sparse_step", 0, CONFIG_LAYERS_MAX,
                                 CONFIG_OPTIONAL, f->err);

    if (rc == OK && step != 1) {
        rc = error_set_param(f->err, ERR_UNSUPPORTED, "decoder_sparse_step",
                             "field 'decoder_sparse_step' %zu is not supported", step);
    }
    if (rc != OK || !only) {
        return rc;
    }
    if (!json_object_is_type(only, json_type_array)) {
        return error_set_param(f->err, ERR_FORMAT, "mlp_only_layers",
                               "field 'mlp_only_layers' is not a list");
    }
    if (json_object_array_length(only) > 0) {
        return error_set_param(f->err, ERR_UNSUPPORTED, "mlp_only_layers",
                               "field 'mlp_only_layers' with layers in it is not supported");
    }
    return OK;
}

static enum status read_mlp(struct model_config *c, const struct fields *f)
{
    bool is_moe = c->family != FAMILY_QWEN3_5;
    enum status rc =
        config_size(&c->intermediate_size, f->text, "intermediate_size", 1, CONFIG_DIM_MAX,
                    is_moe ? CONFIG_OPTIONAL : CONFIG_REQUIRED, f->err);

    if (rc != OK || !is_moe) {
        return rc;
    }
    rc = check_all_layers_are_moe(f);
    if (rc == OK) {
        rc = read_size(&c->n_experts, f, "num_experts", 1, CONFIG_EXPERTS_MAX);
    }
    if (rc == OK) {
        rc = read_size(&c->n_experts_per_token, f, "num_experts_per_tok", 1, c->n_experts);
    }
    if (rc == OK) {
        rc = read_size(&c->expert_intermediate_size, f, "moe_intermediate_size", 1, CONFIG_DIM_MAX);
    }
    if (rc == OK) {
        rc = read_size(&c->shared_intermediate_size, f, "shared_expert_intermediate_size", 1,
                       CONFIG_DIM_MAX);
    }
    /* qwen3_5_moe always renormalises, and its files leave the field out; so do newer qwen3_next. */
    c->norm_topk_prob = true;
    if (rc == OK) {
        rc = json_get_bool(&c->norm_topk_prob, f->text, "norm_topk_prob", ERR_FORMAT, f->err);
    }
    if (rc == OK && !c->norm_topk_prob && c->family == FAMILY_QWEN3_5_MOE) {
        rc = error_set_param(f->err, ERR_UNSUPPORTED, "norm_topk_prob",
                             "field 'norm_topk_prob' false is not supported by qwen3_5_moe");
    }
    return rc;
}

static enum status read_token_ids(struct model_config *c, const struct fields *f)
{
    size_t n_bos = 0;
    enum status rc =
        config_token_ids(&c->bos_id, &n_bos, 1, f->outer, "bos_token_id", c->vocab_size, f->err);

    if (rc == OK) {
        rc =
            config_token_ids(&c->bos_id, &n_bos, 1, f->text, "bos_token_id", c->vocab_size, f->err);
    }
    if (n_bos == 0) {
        c->bos_id = -1;
    }
    if (rc == OK) {
        rc = config_token_ids(c->eos_ids, &c->n_eos_ids, CONFIG_EOS_MAX, f->outer, "eos_token_id",
                              c->vocab_size, f->err);
    }
    if (rc == OK) { /* the text model's own list wins */
        rc = config_token_ids(c->eos_ids, &c->n_eos_ids, CONFIG_EOS_MAX, f->text, "eos_token_id",
                              c->vocab_size, f->err);
    }
    return rc;
}

static enum status read_fields(struct model_config *c, const struct fields *f)
{
    static enum status (*const groups[])(struct model_config *, const struct fields *) = {
        read_model_type,  read_architecture,     read_dtypes, read_trunk,     read_attention,
        read_layer_kinds, read_linear_attention, read_mlp,    read_token_ids,
    };

    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        enum status rc = groups[i](c, f);

        if (rc == OK && i == 1) { /* only once the model is known do its fields mean anything */
            rc = check_fixed_fields(f);
        }
        if (rc != OK) {
            return rc;
        }
    }
    return rope_config_read(c, f->text, f->outer, f->err);
}

/* ---- the override ---- */

/* Lay src over dst, object by object. The depth is bounded by the parser's. */
static enum status overlay(struct json_object *dst, struct json_object *src, struct error *err)
{
    json_object_object_foreach(src, key, value)
    {
        struct json_object *old = json_get(dst, key), *copy = NULL;

        if (json_object_is_type(old, json_type_object) &&
            json_object_is_type(value, json_type_object)) {
            enum status rc = overlay(old, value, err);

            if (rc != OK) {
                return rc;
            }
            continue;
        }
        if ((value && json_object_deep_copy(value, &copy, NULL) != 0) ||
            json_object_object_add(dst, key, copy) != 0) {
            json_object_put(copy);
            return error_set(err, ERR_NO_MEMORY, "cannot apply the override of '%s'", key);
        }
    }
    return OK;
}

/* One member of the override as an object of its own, laid over dst. */
static enum status overlay_member(struct json_object *dst, const char *key,
                                  struct json_object *value, struct error *err)
{
    struct json_object *one = json_object_new_object();
    enum status rc;

    if (!one || json_object_object_add(one, key, json_object_get(value)) != 0) {
        json_object_put(one);
        return error_set(err, ERR_NO_MEMORY, "cannot apply the override of '%s'", key);
    }
    rc = overlay(dst, one, err);
    json_object_put(one);
    return rc;
}

/* *out: a changed copy of o, the caller's. */
static enum status apply_override(struct json_object **out, struct json_object *o,
                                  struct json_object *override, struct error *err)
{
    struct json_object *copy = NULL;
    enum status rc = OK;

    *out = NULL;
    if (!json_object_is_type(override, json_type_object)) {
        return error_set(err, ERR_USAGE, "the override of config.json is not a JSON object");
    }
    if (json_object_deep_copy(o, &copy, NULL) != 0) {
        return error_set(err, ERR_NO_MEMORY, "cannot copy config.json");
    }
    json_object_object_foreach(override, key, value)
    {
        /* looked up each time, as an override may replace it */
        struct json_object *text = json_get(copy, "text_config");
        bool in_text = json_object_is_type(text, json_type_object);
        bool at_top = !in_text || json_has(copy, key);

        in_text = in_text && (json_has(text, key) || !at_top);
        if (rc == OK && at_top) {
            rc = overlay_member(copy, key, value, err);
        }
        if (rc == OK && in_text) {
            rc = overlay_member(text, key, value, err);
        }
    }
    if (rc != OK) {
        json_object_put(copy);
        return rc;
    }
    *out = copy;
    return OK;
}

/* ---- entry points ---- */

static enum status read_top(struct model_config *c, struct json_object *o, struct error *err)
{
    struct json_object *text = json_get(o, "text_config");
    struct fields f = {o, NULL, err};

    if (!json_object_is_type(o, json_type_object)) {
        return error_set(err, ERR_FORMAT, "it is not a JSON object");
    }
    if (json_object_is_type(text, json_type_object)) {
        c->is_nested = true;
        f.text = text;
        f.outer = o;
    }
    c->has_vision = json_object_is_type(json_get(o, "vision_config"), json_type_object);
    return read_fields(c, &f);
}

enum status model_config_read(struct model_config *out, struct json_object *o,
                              struct json_object *override, struct error *err)
{
    struct json_object *merged = NULL;
    enum status rc = OK;

    memset(out, 0, sizeof *out);
    out->bos_id = -1;
    if (override) {
        rc = apply_override(&merged, o, override, err);
    }
    if (rc == OK) {
        rc = read_top(out, merged ? merged : o, err);
    }
    json_object_put(merged);
    if (rc != OK) {
        error_prefix(err, "config.json");
        model_config_release(out);
    }
    return rc;
}

void model_config_release(struct model_config *c)
{
    free(c->layer_is_full);
    memset(c, 0, sizeof *c);
}
