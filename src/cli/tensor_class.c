/* tensor_class.c - see tensor_class.h. */
#include "cli/tensor_class.h"

static bool contains(struct str s, const char *part)
{
    return str_find(s, str_of(part)) != SIZE_MAX;
}

enum tensor_class tensor_class_of(const char *name)
{
    /* First match wins, so the towers that hold layers of their own come first. */
    static const struct {
        const char *part;
        enum tensor_class class;
    } rules[] = {
        {"visual.", CLASS_VISION},
        {"vision_tower.", CLASS_VISION},
        {".linear_attn.", CLASS_LINEAR_ATTENTION},
        {".self_attn.", CLASS_ATTENTION},
        {".mlp.experts.", CLASS_EXPERTS},
        {".mlp.shared_expert", CLASS_SHARED_EXPERT},
        {".mlp.gate.", CLASS_ROUTER},
        {".mlp.", CLASS_MLP},
        {"embed_tokens", CLASS_EMBEDDING},
        {"lm_head", CLASS_HEAD},
        {"norm.weight", CLASS_NORM},
    };
    struct str s = str_of(name);

    if (str_starts(s, STR("mtp.")) || contains(s, ".mtp.")) {
        return CLASS_MTP;
    }
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (contains(s, rules[i].part)) {
            return rules[i].class;
        }
    }
    return CLASS_OTHER;
}

const char *tensor_class_name(enum tensor_class c)
{
    static const char *const names[CLASS_COUNT] = {
        "embedding",      "output head",   "norms", "attention", "linear attention", "router",
        "routed experts", "shared expert", "mlp",   "vision",    "draft head (mtp)", "other"};

    return (unsigned)c < CLASS_COUNT ? names[c] : "unknown";
}

bool tensor_class_is_skipped(enum tensor_class c)
{
    return c == CLASS_VISION || c == CLASS_MTP;
}
