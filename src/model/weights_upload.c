/* weights_upload.c - see weights_upload.h.
 *
 * Idea: loading leaves the weights in a few large pieces (the rewritten block, the int8 block, an arena
 *       per layer of experts) and in mapped files. Each piece becomes one buffer of the device; a pointer
 *       into a piece becomes the same place in its buffer. Mapped matrices share one more buffer, each
 *       on a border of its own, since files align as they like. */
#include "model/weights_upload.h"

#include <assert.h>
#include <stdlib.h>

#include "base/size.h"

enum {
    SLICE_BYTES = 64 << 20, /* between two looks at the progress line */
    MAPPED_ALIGN = 256
};

struct piece {
    uintptr_t host;
    size_t n_bytes;
    uint8_t *device;
};

struct uploader {
    struct model_weights *w;
    const struct model_spec *spec;
    struct backend *be;
    struct progress *progress;
    struct piece *pieces;
    size_t n_pieces;
    size_t done, total;
};

static bool piece_holds(const struct piece *p, const void *at)
{
    return (uintptr_t)at >= p->host && (uintptr_t)at - p->host < p->n_bytes;
}

/* The device's place of a host address; NULL when no piece holds it. */
static void *translate(const struct uploader *u, const void *at)
{
    for (size_t i = 0; i < u->n_pieces; i++) {
        if (piece_holds(&u->pieces[i], at)) {
            return u->pieces[i].device + ((uintptr_t)at - u->pieces[i].host);
        }
    }
    return NULL;
}

static enum status buffer_make(struct uploader *u, uint8_t **out, size_t n_bytes, struct error *err)
{
    *out = u->be->ops->buffer_new(u->be, n_bytes);
    if (!*out) {
        return error_set(
            err, ERR_NO_MEMORY,
            "cannot allocate %zu MiB of device memory for weights, after %zu of %zu MiB",
            n_bytes >> 20, u->done >> 20, u->total >> 20);
    }
    u->w->device_buffers[u->w->n_device_buffers++] = *out;
    return OK;
}

static void write_slices(struct uploader *u, uint8_t *device, const void *host, size_t n_bytes)
{
    const uint8_t *src = host;

    for (size_t at = 0; at < n_bytes; at += SLICE_BYTES) {
        size_t n = size_min(SLICE_BYTES, n_bytes - at);

        u->be->ops->write(u->be, device + at, src + at, n);
        u->done += n;
        progress_update(u->progress, u->done);
    }
}

/* The piece at *host moves; its memory is given back and *host becomes the device's address. */
static enum status piece_move(struct uploader *u, void **host, size_t n_bytes, struct error *err)
{
    uint8_t *device;
    enum status rc;

    if (!*host || n_bytes == 0) {
        return OK;
    }
    rc = buffer_make(u, &device, n_bytes, err);
    if (rc == OK) {
        write_slices(u, device, *host, n_bytes);
        u->pieces[u->n_pieces++] = (struct piece){(uintptr_t)*host, n_bytes, device};
        free(*host);
        *host = NULL;
    }
    return rc;
}

static bool is_mapped(const struct uploader *u, const struct weight *m)
{
    return m->kind == WEIGHT_DENSE && m->data && !translate(u, m->data);
}

static size_t mapped_step(const struct weight *m)
{
    size_t n = weight_row_bytes(m) * m->n_out; /* it is in memory, so it can be counted */

    return (n + MAPPED_ALIGN - 1) / MAPPED_ALIGN * MAPPED_ALIGN;
}

static enum status mapped_move(struct uploader *u, struct error *err)
{
    size_t n_bytes = 0, used = 0;
    uint8_t *device;
    enum status rc;

    for (size_t i = 0; i < u->spec->n_matrices; i++) {
        n_bytes += is_mapped(u, &u->w->matrices[i]) ? mapped_step(&u->w->matrices[i]) : 0;
    }
    if (n_bytes == 0) {
        return OK;
    }
    rc = buffer_make(u, &device, n_bytes, err);
    for (size_t i = 0; rc == OK && i < u->spec->n_matrices; i++) {
        struct weight *m = &u->w->matrices[i];

        if (is_mapped(u, m)) {
            write_slices(u, device + used, m->data, weight_row_bytes(m) * m->n_out);
            used += mapped_step(m);
        }
    }
    return rc;
}

/* Mapped matrices in the order in which mapped_move laid them out; all others through their piece. */
static void pointers_turn(struct uploader *u)
{
    struct model_weights *w = u->w;
    uint8_t *mapped =
        u->w->n_device_buffers > u->n_pieces ? w->device_buffers[w->n_device_buffers - 1] : NULL;

    for (size_t i = 0; i <= u->spec->n_matrices; i++) {
        struct weight *m = i < u->spec->n_matrices ? &w->matrices[i] : &w->tied_head;

        if (m->kind == WEIGHT_NONE) {
            continue;
        }
        if (is_mapped(u, m)) {
            size_t step = mapped_step(m);

            assert(mapped);
            m->data = mapped;
            mapped += step;
            continue;
        }
        m->data = translate(u, m->data);
        m->scales = m->scales ? translate(u, m->scales) : NULL;
        m->zeros = m->zeros ? translate(u, m->zeros) : NULL;
        m->perm = m->perm ? translate(u, m->perm) : NULL;
    }
    for (size_t i = 0; i < u->spec->n_vectors; i++) {
        w->vectors[i] = translate(u, w->vectors[i]);
    }
    for (size_t i = 0; i < w->n_arenas; i++) {
        w->arenas[i].base = NULL; /* its blocks are found through the matrices */
    }
}

static enum status pieces_move(struct uploader *u, struct error *err)
{
    struct model_weights *w = u->w;
    void *host = w->int8_block;
    enum status rc = piece_move(u, &w->block, w->block_bytes, err);

    if (rc == OK) {
        rc = piece_move(u, &host, w->int8_bytes, err);
        w->int8_block = host;
    }
    for (size_t i = 0; rc == OK && i < w->n_arenas; i++) {
        struct expert_arena *a = &w->arenas[i];

        host = a->base;
        rc = piece_move(u, &host, a->block.n_bytes * a->n_experts, err);
        a->base = host;
    }
    return rc == OK ? mapped_move(u, err) : rc;
}

enum status weights_upload(struct model_weights *w, const struct model_spec *spec,
                           struct backend *be, struct progress *progress, struct error *err)
{
    struct uploader u = {.w = w, .spec = spec, .be = be, .progress = progress};
    enum status rc;

    if (!be->ops->begin) {
        return OK; /* it reads host memory */
    }
    w->be = be;
    w->device_buffers = calloc(w->n_arenas + 3, sizeof *w->device_buffers);
    u.pieces = calloc(w->n_arenas + 3, sizeof *u.pieces);
    if (!w->device_buffers || !u.pieces) {
        free(u.pieces);
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the table of uploads");
    }
    u.total = w->n_bytes;
    progress_start(progress, "upload", PROGRESS_BYTES, u.total);
    rc = pieces_move(&u, err);
    progress_finish(progress);
    if (rc == OK) {
        pointers_turn(&u);
    }
    free(u.pieces);
    return rc;
}
