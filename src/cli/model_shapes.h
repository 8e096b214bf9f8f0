/* model_shapes.h - the sizes of published models, as a table.
 *
 * Place: cli; what `spillway make-model` can write. The tensors that follow from the sizes are
 *        model_inventory.h.
 * Source: the models' config.json files and model cards. */
#ifndef CLI_MODEL_SHAPES_H
#define CLI_MODEL_SHAPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/tensor.h"
#include "formats/model_config.h"

/* What all models of the table share. */
enum {
    SHAPE_HEAD_DIM = 256,
    SHAPE_KEY_HEADS = 16, /* of linear attention */
    SHAPE_LINEAR_DIM = 128,
    SHAPE_CONV_TAPS = 4,
    SHAPE_FULL_INTERVAL = 4, /* every 4th layer has full attention */
    SHAPE_GROUP = 128,       /* inputs per scale of an int4 matrix */
    SHAPE_POSITIONS = 262144,
    SHAPE_PATCH = 16,
    SHAPE_PATCH_FRAMES = 2,
    SHAPE_COLOURS = 3,
    SHAPE_VISION_POSITIONS = 2304,
    SHAPE_MERGED_PATCHES = 4
};

struct vision_shape { /* depth 0: the model has no vision tower */
    size_t depth, hidden, intermediate, n_heads;
};

struct model_shape {
    const char *name; /* "qwen3.5-35b-a3b" */
    enum model_family family;
    size_t hidden, n_layers;
    size_t n_heads, n_kv_heads;
    size_t n_value_heads;                                   /* of linear attention */
    size_t intermediate;                                    /* dense MLP; 0: MoE */
    size_t n_experts, n_active, expert_width, shared_width; /* MoE; 0: dense */
    size_t vocab;                                           /* rows of the embedding */
    bool is_tied;                                           /* no lm_head */
    struct vision_shape vision;
};

extern const struct model_shape model_shapes[];
extern const size_t model_shapes_count;

/* ERR_USAGE with the nearest name. */
enum status model_shape_find(struct model_shape *out, const char *name, struct error *err);

enum { SHAPE_VOCAB_MIN = 1024 }; /* 256 bytes, the added tokens, and some words */

/* Other sizes for a shape: 0 keeps the model's own. Fewer experts than are used per token lower that
 * number too. ERR_USAGE names the flag and the range. */
struct shape_change {
    size_t n_layers, n_experts, vocab;
};
enum status model_shape_change(struct model_shape *s, const struct shape_change *c,
                               struct error *err);

struct model_variant {
    bool is_int4; /* routed experts and dense MLPs of the trunk: GPTQ int4; else bfloat16 */
    enum dtype scale_dtype; /* F16 or BF16 */
    bool with_mtp, with_vision;
};

struct model_variant model_variant_default(const struct model_shape *s);

/* ERR_USAGE when the shape has no such thing. */
enum status model_variant_check(const struct model_variant *v, const struct model_shape *s,
                                struct error *err);

#endif
