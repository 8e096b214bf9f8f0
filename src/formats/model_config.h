/* model_config.h - config.json and generation_config.json as checked numbers.
 *
 * Place:  formats. Reads nested (text_config) and flat forms, old and new places of the rope fields;
 *         both present and different is an error; rope_theta must be there. What a family needs and
 *         does not find is ERR_FORMAT naming the field. Unknown fields are ignored. */
#ifndef FORMATS_MODEL_CONFIG_H
#define FORMATS_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/status.h"
#include "base/tensor.h"

enum {
    CONFIG_LAYERS_MAX = 1024,
    CONFIG_DIM_MAX = 1 << 20, /* hidden, intermediate, heads x head size */
    CONFIG_VOCAB_MAX = 1 << 22,
    CONFIG_EXPERTS_MAX = 8192,
    CONFIG_HEAD_DIM_MAX = 1024, /* kernels keep a head's row on the stack */
    CONFIG_CONV_TAPS_MAX = 16,
    CONFIG_POSITIONS_MAX = 1 << 26, /* positions must stay exact in float32 angles' inputs */
    CONFIG_MTP_LAYERS_MAX = 8,
    CONFIG_EOS_MAX = 16,
    CONFIG_NAME_BYTES = 64
};

enum model_family { FAMILY_QWEN3_5_MOE, FAMILY_QWEN3_5, FAMILY_QWEN3_NEXT };

struct rope_config {
    double theta;
    double partial_factor; /* share of head_dim that rotates */
    bool is_yarn;
    double factor, attention_factor; /* yarn; attention_factor 0: 0.1 ln(factor) + 1 */
    double beta_fast, beta_slow;     /* yarn; defaults 32, 1 */
    size_t original_positions;
    size_t mrope_section[3]; /* all zero: plain rope */
    bool mrope_interleaved;
    size_t n_dims; /* rotating dimensions of a head: head_dim x partial_factor, even */
};

struct model_config {
    enum model_family family;
    char model_type[CONFIG_NAME_BYTES];   /* as in the file */
    char architecture[CONFIG_NAME_BYTES]; /* architectures[0], "" if absent */
    bool is_nested, has_vision;
    enum dtype dtype;     /* dtype / torch_dtype; DTYPE_NONE when absent */
    enum dtype ssm_dtype; /* mamba_ssm_dtype; DTYPE_NONE when absent */
    size_t hidden_size, n_layers, vocab_size, intermediate_size;
    size_t max_positions;
    double rms_norm_eps;
    bool tie_embeddings;
    /* full attention */
    size_t n_heads, n_kv_heads, head_dim;
    bool attn_output_gate;
    struct rope_config rope;
    /* linear attention (gated delta net) */
    size_t linear_n_key_heads, linear_n_value_heads, linear_key_dim, linear_value_dim,
        linear_conv_taps;
    bool *layer_is_full; /* [n_layers], owned */
    /* MoE; n_experts 0: dense */
    size_t n_experts, n_experts_per_token, expert_intermediate_size, shared_intermediate_size;
    bool norm_topk_prob;
    size_t mtp_layers;
    int32_t bos_id; /* -1: none */
    int32_t eos_ids[CONFIG_EOS_MAX];
    size_t n_eos_ids;
};

/* o: config.json parsed; override: an object laid over it (--json-model-override-args), or NULL.
 * Objects are merged member by member, anything else replaces. In a nested file a member of the
 * override goes to each level that has it, and to text_config when neither has.
 * ERR_UNSUPPORTED: understood but not built (another architecture, another activation, ...);
 * ERR_FORMAT: missing, of the wrong type, out of range or contradictory. Texts name the field. On
 * failure *out needs no release. */
enum status model_config_read(struct model_config *out, struct json_object *o,
                              struct json_object *override, struct error *err);
void model_config_release(struct model_config *c); /* accepts a zeroed one */

/* "qwen3_5_moe", "qwen3_5", "qwen3_next". */
const char *model_family_name(enum model_family f);

struct generation_config { /* absent fields hold the defaults */
    bool has_temperature, has_top_p, has_top_k, has_min_p, has_repetition_penalty;
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k;
    int32_t eos_ids[CONFIG_EOS_MAX];
    size_t n_eos_ids;
};

/* o NULL (no file) gives the defaults. */
enum status generation_config_read(struct generation_config *out, struct json_object *o,
                                   struct error *err);

#endif
