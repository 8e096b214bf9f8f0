/* weights_experts.c - places for the routed experts: a layer's blocks in one arena.
 *
 * Place: model; weights.c fills the places.
 * Idea:  what the sources say decides the shape before anything is allocated. A layer in which one expert
 *        differs (kept plain, another group, another order) gets no arena: a block's address must
 *        follow from the expert's number.
 * Pages: arenas are gigabytes that are read at random by expert, so they ask for huge pages.
 * File:  arenas that stay may lie in one file instead, of which the kernel keeps in memory what is in use. All
 *        its space is set aside before anything is read. */
#include "model/weights_experts.h"

#include <stdlib.h>

#include "base/arena.h"
#include "base/size.h"

/* A matrix as its source says, without memory: zeros and perm only say that there are any. */
static struct weight source_form(const struct spec_matrix *m, const struct matrix_source *s)
{
    struct weight w = {.n_out = m->n_out, .n_in = m->n_in};

    if (s->kind == SOURCE_QUANTISED) {
        w.kind = s->gptq.bits == 4 ? WEIGHT_INT4 : WEIGHT_INT8;
        w.dtype = s->gptq.scales.dtype;
        w.group = s->gptq.group_size;
        w.zeros = (const void *)s->gptq.qzeros;
        w.perm = s->gptq.perm;
    }
    return w;
}

static bool expert_form(struct expert_shape *shape, const struct model_spec *spec,
                        const struct binding *bound, size_t slot)
{
    const struct spec_matrix *m = &spec->matrices[slot];
    const struct matrix_source *s = &bound->matrices[slot];
    struct expert_weights form = {source_form(&m[0], &s[0]), source_form(&m[1], &s[1]),
                                  source_form(&m[2], &s[2])};

    return expert_shape_of(shape, &form);
}

static bool layer_shape(struct expert_shape *shape, const struct moe_spec *moe,
                        const struct model_spec *spec, const struct binding *bound)
{
    size_t first = (size_t)moe->expert0;

    if (!expert_form(shape, spec, bound, first)) {
        return false;
    }
    for (size_t e = 1; e < moe->n_experts; e++) {
        struct expert_shape other;

        if (!expert_form(&other, spec, bound, first + 3 * e) ||
            !expert_shape_equal(shape, &other)) {
            return false;
        }
    }
    return true;
}

void weights_view_experts(struct model_weights *w, const struct expert_arena *a)
{
    struct weight *m = &w->matrices[a->expert0];

    for (size_t e = 0; e < a->n_experts; e++, m += 3) {
        struct expert_weights view = expert_block_view(&a->block, a->base + e * a->block.n_bytes);

        m[0] = view.gate;
        m[1] = view.up;
        m[2] = view.down;
    }
}

static size_t arena_bytes(const struct expert_arena *a)
{
    return a->block.n_bytes * a->n_experts; /* was checked when it was made */
}

static enum status no_memory(size_t n_bytes, struct error *err)
{
    return error_set(err, ERR_NO_MEMORY, "cannot allocate %zu MiB for the experts of a layer",
                     n_bytes >> 20);
}

enum arena_place { ARENA_OWN, ARENA_PASSES, ARENA_IN_FILE };

static enum status arena_make(struct model_weights *w, const struct moe_spec *moe,
                              const struct expert_shape *shape, enum arena_place place,
                              struct error *err)
{
    struct expert_arena *a = &w->arenas[w->n_arenas];
    size_t n_bytes;

    *a = (struct expert_arena){.n_experts = moe->n_experts,
                               .expert0 = moe->expert0,
                               .passes = place == ARENA_PASSES,
                               .in_file = place == ARENA_IN_FILE};
    if (!expert_block_init(&a->block, shape) ||
        !size_mul(&n_bytes, a->block.n_bytes, moe->n_experts)) {
        return error_set(err, ERR_LIMIT, "the experts of a layer are too large to address");
    }
    a->base = place == ARENA_OWN ? huge_new(n_bytes) : NULL;
    if (place == ARENA_OWN && !a->base) {
        return no_memory(n_bytes, err);
    }
    w->n_arenas++;
    return OK;
}

/* One piece of memory for all that pass. */
static enum status passing_make(struct model_weights *w, struct error *err)
{
    size_t most = 0;

    for (size_t i = 0; i < w->n_arenas; i++) {
        most = w->arenas[i].passes ? size_max(most, arena_bytes(&w->arenas[i])) : most;
    }
    if (most == 0) {
        return OK;
    }
    w->passing = huge_new(most);
    if (!w->passing) {
        return no_memory(most, err);
    }
    for (size_t i = 0; i < w->n_arenas; i++) {
        w->arenas[i].base = w->arenas[i].passes ? w->passing : w->arenas[i].base;
    }
    return OK;
}

size_t weights_file_bytes(size_t n_layers, size_t layer_bytes)
{
    size_t each, n_bytes;

    return size_align(&each, layer_bytes, FILE_MEMORY_ALIGN) && size_mul(&n_bytes, each, n_layers)
               ? n_bytes
               : SIZE_MAX; /* which no disk has */
}

/* One file for all that are in one. */
static enum status file_make(struct model_weights *w, const char *folder, struct error *err)
{
    size_t used = 0, total = 0;
    enum status rc;

    for (size_t i = 0; i < w->n_arenas; i++) {
        if (w->arenas[i].in_file &&
            !size_add(&total, total, weights_file_bytes(1, arena_bytes(&w->arenas[i])))) {
            return error_set(err, ERR_LIMIT, "the experts are too large to address");
        }
    }
    if (total == 0) {
        return OK;
    }
    rc = file_memory_open(&w->file, folder, total, err);
    if (rc != OK) {
        error_prefix(err, "experts that overflow");
        return rc;
    }
    for (size_t i = 0; i < w->n_arenas; i++) {
        struct expert_arena *a = &w->arenas[i];

        if (a->in_file) {
            a->base = w->file.base + used;
            used += weights_file_bytes(1, arena_bytes(a));
        }
    }
    return OK;
}

static enum status place_block(struct model_weights *w, const struct block_spec *block,
                               const struct model_spec *spec, const struct binding *bound,
                               enum arena_place place, struct error *err)
{
    struct expert_shape shape;

    if (block->kind != BLOCK_MOE || !layer_shape(&shape, &block->u.moe, spec, bound)) {
        return OK;
    }
    return arena_make(w, &block->u.moe, &shape, place, err);
}

static enum arena_place layer_place(const struct weights_target *to, size_t layer)
{
    if (!to->be->ops->begin) { /* it computes where they are */
        return ARENA_OWN;
    }
    if (!to->all_stay && !(to->stays && to->stays[layer])) {
        return ARENA_PASSES;
    }
    return to->folder ? ARENA_IN_FILE : ARENA_OWN;
}

enum status weights_place_experts(struct model_weights *w, bool *is_placed,
                                  const struct model_spec *spec, const struct binding *bound,
                                  const struct weights_target *to, struct error *err)
{
    size_t most = spec->n_layers * SPEC_BRANCHES_MAX * SPEC_BLOCKS_MAX;
    enum status rc = OK;

    w->arenas = calloc(most + 1, sizeof *w->arenas);
    if (!w->arenas) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the table of experts");
    }
    for (size_t l = 0; l < spec->n_layers; l++) {
        for (size_t b = 0; b < spec->layers[l].n_branches; b++) {
            const struct branch_spec *branch = &spec->layers[l].branches[b];

            for (size_t i = 0; rc == OK && i < branch->n_blocks; i++) {
                rc = place_block(w, &branch->blocks[i], spec, bound, layer_place(to, l), err);
            }
        }
    }
    rc = rc == OK ? passing_make(w, err) : rc;
    rc = rc == OK ? file_make(w, to->folder, err) : rc;
    for (size_t i = 0; rc == OK && i < w->n_arenas; i++) {
        const struct expert_arena *a = &w->arenas[i];

        weights_view_experts(w, a);
        for (size_t j = 0; j < 3 * a->n_experts; j++) {
            is_placed[(size_t)a->expert0 + j] = true;
        }
    }
    return rc;
}

void weights_release_experts(struct model_weights *w)
{
    for (size_t i = 0; i < w->n_arenas; i++) {
        struct expert_arena *a = &w->arenas[i];

        if (a->passes || a->in_file) {
            continue;
        }
        if (a->stays && !a->is_pinned && !a->is_pageable) {
            w->be->ops->host_free(w->be, a->base);
            continue;
        }
        if (a->is_pinned) {
            w->be->ops->host_unpin(w->be, a->base);
        }
        free(a->base);
    }
    file_memory_close(&w->file);
    free(w->arenas);
    free(w->overflowing);
    free(w->pageable);
    w->arenas = NULL;
    w->overflowing = NULL;
    w->pageable = NULL;
    w->n_arenas = 0;
}

struct expert_arena *weights_arena_of(const struct model_weights *w, matrix_slot expert0)
{
    for (size_t i = 0; i < w->n_arenas; i++) {
        if (w->arenas[i].expert0 == expert0) {
            return &w->arenas[i];
        }
    }
    return NULL;
}
