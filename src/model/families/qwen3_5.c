/* qwen3_5.c - Qwen3.5 and 3.6, dense and mixture of experts.
 *
 * The gated delta net's inputs are four plain matrices: in_proj_qkv with its rows in the order that the
 * convolution wants (all q, all k, all v), in_proj_z, in_proj_a, in_proj_b. */
#include "model/families/families.h"
#include "model/families/qwen_hybrid.h"

static void gdn_inputs(struct model_spec *spec, struct gdn_spec *g, size_t layer)
{
    size_t values = g->nv * g->dv;

    g->qkv = qwen_gdn_matrix(spec, layer, "in_proj_qkv", 2 * g->nk * g->dk + values, NULL, 0);
    g->z = qwen_gdn_matrix(spec, layer, "in_proj_z", values, NULL, 0);
    g->a = qwen_gdn_matrix(spec, layer, "in_proj_a", g->nv, NULL, 0);
    g->b = qwen_gdn_matrix(spec, layer, "in_proj_b", g->nv, NULL, 0);
}

static enum status build(struct model_spec *spec, const struct model_config *c, struct error *err)
{
    return qwen_hybrid_build(spec, c, gdn_inputs, err);
}

const struct model_family_reader family_qwen3_5 = {FAMILY_QWEN3_5, "qwen3_5", build};
const struct model_family_reader family_qwen3_5_moe = {FAMILY_QWEN3_5_MOE, "qwen3_5_moe", build};
