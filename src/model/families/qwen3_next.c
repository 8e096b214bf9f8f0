/* qwen3_next.c - Qwen3-Next: the inputs of the gated delta net come fused and interleaved.
 *
 * in_proj_qkvz holds one block of rows per key head, in_proj_ba likewise (r = value heads per key
 * head):
 *
 *     in_proj_qkvz, key head g     | q: dk | k: dk | v: r*dv | z: r*dv |
 *     in_proj_ba,   key head g     | b: r  | a: r  |
 *
 * The kernels want all q, then all k, then all v, with heads in order. So each wanted matrix gets a
 * map of rows, and the loader regroups them, quantised or not. */
#include "model/families/families.h"
#include "model/families/qwen_hybrid.h"

struct row_map {
    int32_t *rows;
    size_t n;
};

static void map_run(struct row_map *m, size_t first, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        m->rows[m->n++] = (int32_t)(first + i);
    }
}

static struct row_map map_new(struct model_spec *spec, size_t n)
{
    struct row_map m = {arena_array(&spec->arena, n, sizeof(int32_t)), 0};

    if (!m.rows) {
        spec->failed = true;
    }
    return m;
}

static void gdn_inputs(struct model_spec *spec, struct gdn_spec *g, size_t layer)
{
    size_t r = g->nv / g->nk;
    size_t values = r * g->dv; /* rows of v, and of z, in a block */
    size_t block = 2 * g->dk + 2 * values;
    size_t n_qkvz = g->nk * block, n_ba = 2 * g->nv;
    struct row_map qkv = map_new(spec, g->nk * (2 * g->dk + values));
    struct row_map z = map_new(spec, g->nk * values);
    struct row_map a = map_new(spec, g->nv), b = map_new(spec, g->nv);

    if (spec->failed) {
        return;
    }
    for (size_t head = 0; head < g->nk; head++) {
        map_run(&qkv, head * block, g->dk);
    }
    for (size_t head = 0; head < g->nk; head++) {
        map_run(&qkv, head * block + g->dk, g->dk);
    }
    for (size_t head = 0; head < g->nk; head++) {
        map_run(&qkv, head * block + 2 * g->dk, values);
        map_run(&z, head * block + 2 * g->dk + values, values);
        map_run(&b, head * 2 * r, r);
        map_run(&a, head * 2 * r + r, r);
    }
    g->qkv = qwen_gdn_matrix(spec, layer, "in_proj_qkvz", qkv.n, qkv.rows, n_qkvz);
    g->z = qwen_gdn_matrix(spec, layer, "in_proj_qkvz", z.n, z.rows, n_qkvz);
    g->a = qwen_gdn_matrix(spec, layer, "in_proj_ba", a.n, a.rows, n_ba);
    g->b = qwen_gdn_matrix(spec, layer, "in_proj_ba", b.n, b.rows, n_ba);
}

static enum status build(struct model_spec *spec, const struct model_config *c, struct error *err)
{
    return qwen_hybrid_build(spec, c, gdn_inputs, err);
}

const struct model_family_reader family_qwen3_next = {FAMILY_QWEN3_NEXT, "qwen3_next", build};
