/* model_shapes.c - see model_shapes.h. */
#include "cli/model_shapes.h"

#include <string.h>

#include "base/size.h"
#include "base/str.h"

enum { VOCAB_QWEN3_5 = 248320, VOCAB_QWEN3_NEXT = 151936 };

#define VISION_NONE   0, 0, 0, 0
#define VISION_SMALL  12, 768, 3072, 12
#define VISION_MEDIUM 24, 1024, 4096, 16
#define VISION_LARGE  27, 1152, 4304, 16

#define DENSE(name_, hidden_, layers_, heads_, kv_heads_, value_heads_, intermediate_, tied_, ...) \
    {                                                                                              \
        .name = (name_), .family = FAMILY_QWEN3_5, .hidden = (hidden_), .n_layers = (layers_),     \
        .n_heads = (heads_), .n_kv_heads = (kv_heads_), .n_value_heads = (value_heads_),           \
        .intermediate = (intermediate_), .vocab = VOCAB_QWEN3_5, .is_tied = (tied_), .vision = {   \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define MOE(name_, family_, hidden_, layers_, heads_, value_heads_, experts_, active_, width_,     \
            vocab_, ...)                                                                           \
    {                                                                                              \
        .name = (name_), .family = (family_), .hidden = (hidden_), .n_layers = (layers_),          \
        .n_heads = (heads_), .n_kv_heads = 2, .n_value_heads = (value_heads_),                     \
        .n_experts = (experts_), .n_active = (active_), .expert_width = (width_),                  \
        .shared_width = (width_), .vocab = (vocab_), .vision = {                                   \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

/* clang-format off */
const struct model_shape model_shapes[] = {
    /*                    hidden layers heads kv values intermediate tied */
    DENSE("qwen3.5-0.8b",  1024,    24,    8,  2,   16,   3584,  true, VISION_SMALL),
    DENSE("qwen3.5-2b",    2048,    24,    8,  2,   16,   6144,  true, VISION_MEDIUM),
    DENSE("qwen3.5-4b",    2560,    32,   16,  4,   32,   9216,  true, VISION_MEDIUM),
    DENSE("qwen3.5-9b",    4096,    32,   16,  4,   32,  12288, false, VISION_LARGE),
    DENSE("qwen3.5-27b",   5120,    64,   24,  4,   48,  17408, false, VISION_LARGE),
    /*                                          hidden layers heads values experts active width */
    MOE("qwen3.5-35b-a3b",    FAMILY_QWEN3_5_MOE, 2048, 40, 16, 32, 256,  8,  512, VOCAB_QWEN3_5, VISION_LARGE),
    MOE("qwen3.5-122b-a10b",  FAMILY_QWEN3_5_MOE, 3072, 48, 32, 64, 256,  8, 1024, VOCAB_QWEN3_5, VISION_LARGE),
    MOE("qwen3.5-397b-a17b",  FAMILY_QWEN3_5_MOE, 4096, 60, 32, 64, 512, 10, 1024, VOCAB_QWEN3_5, VISION_LARGE),
    MOE("qwen3-next-80b-a3b", FAMILY_QWEN3_NEXT,  2048, 48, 16, 32, 512, 10,  512, VOCAB_QWEN3_NEXT, VISION_NONE),
};
/* clang-format on */
const size_t model_shapes_count = sizeof model_shapes / sizeof model_shapes[0];

/* What was probably meant: a name that begins so, else the one with the fewest other letters. */
static const char *nearest_name(const char *name)
{
    const char *nearest = model_shapes[0].name;

    for (size_t i = 0; i < model_shapes_count; i++) {
        const char *other = model_shapes[i].name;

        if (str_starts(str_of(other), str_of(name))) {
            return other;
        }
        if (str_distance(name, other) < str_distance(name, nearest)) {
            nearest = other;
        }
    }
    return nearest;
}

enum status model_shape_find(struct model_shape *out, const char *name, struct error *err)
{
    for (size_t i = 0; i < model_shapes_count; i++) {
        if (strcmp(model_shapes[i].name, name) == 0) {
            *out = model_shapes[i];
            return OK;
        }
    }
    return error_set_param(err, ERR_USAGE, "shape",
                           "there is no shape '%s'; did you mean '%s'? (--list shows them all)",
                           name, nearest_name(name));
}

static enum status change_one(size_t *value, const char *flag, size_t wanted, size_t min,
                              size_t max, struct error *err)
{
    if (wanted == 0) {
        return OK;
    }
    if (wanted < min || wanted > max) {
        return error_set_param(err, ERR_USAGE, flag, "--%s %zu is not in %zu..%zu", flag, wanted,
                               min, max);
    }
    *value = wanted;
    return OK;
}

enum status model_shape_change(struct model_shape *s, const struct shape_change *c,
                               struct error *err)
{
    enum status rc = change_one(&s->n_layers, "layers", c->n_layers, 1, CONFIG_LAYERS_MAX, err);

    if (rc == OK) {
        rc = change_one(&s->vocab, "vocab", c->vocab, SHAPE_VOCAB_MIN, CONFIG_VOCAB_MAX, err);
    }
    if (rc == OK && c->n_experts > 0 && s->n_experts == 0) {
        rc = error_set_param(err, ERR_USAGE, "experts",
                             "--experts %zu: the shape '%s' is dense, it has no experts",
                             c->n_experts, s->name);
    }
    if (rc == OK) {
        rc = change_one(&s->n_experts, "experts", c->n_experts, 1, CONFIG_EXPERTS_MAX, err);
    }
    s->n_active = size_min(s->n_active, s->n_experts);
    return rc;
}

struct model_variant model_variant_default(const struct model_shape *s)
{
    return (struct model_variant){.is_int4 = s->n_experts > 0, .scale_dtype = DTYPE_F16};
}

enum status model_variant_check(const struct model_variant *v, const struct model_shape *s,
                                struct error *err)
{
    if (v->with_vision && s->vision.depth == 0) {
        return error_set_param(err, ERR_USAGE, "vision",
                               "--vision: the shape '%s' has no vision tower", s->name);
    }
    return OK;
}
