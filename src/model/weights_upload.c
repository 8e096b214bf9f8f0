/* weights_upload.c - see weights_upload.h.
 *
 * Idea: loading leaves the weights in a few large pieces (the rewritten block, the int8 block, an arena
 *       per layer of experts) and in mapped files. Each piece becomes one buffer of the device; a pointer
 *       into a piece becomes the same place in its buffer. Mapped matrices share one more buffer, each
 *       on a border of its own, since files align as they like. An arena that stays is a piece that is
 *       where it was. */
#include "model/weights_upload.h"

#include <stdlib.h>

#include "base/size.h"

enum {
    SLICE_BYTES = 64 << 20, /* between two looks at the progress line */
    MAPPED_ALIGN = 256,
    /* Places in the list of pieces; arenas follow. */
    PIECE_BLOCK = 0,
    PIECE_INT8,
    PIECE_ARENAS
};

static const size_t NOT_MAPPED = SIZE_MAX;

struct piece {
    uint8_t *host, *device;
    size_t n_bytes; /* 0: there is none */
};

struct uploader {
    struct model_weights *w;
    const struct model_spec *spec;
    struct backend *be;
    struct pool *pool;
    struct progress *progress;
    struct piece *pieces;
    size_t n_pieces;
    size_t *mapped_at; /* [n_matrices] in the buffer of mapped matrices, or NOT_MAPPED */
    size_t mapped_bytes;
    uint8_t *mapped;
    size_t done, total;
};

static const struct piece *piece_of(const struct uploader *u, const void *at)
{
    for (size_t i = 0; i < u->n_pieces; i++) {
        const struct piece *p = &u->pieces[i];

        if ((uintptr_t)at - (uintptr_t)p->host < p->n_bytes) {
            return p;
        }
    }
    return NULL;
}

/* The device's place of a host address; NULL of NULL. */
static void *translate(const struct uploader *u, const void *at)
{
    const struct piece *p = at ? piece_of(u, at) : NULL;

    return p ? p->device + ((const uint8_t *)at - p->host) : NULL;
}

/* ---- what is where ---- */

static void pieces_find(struct uploader *u)
{
    struct model_weights *w = u->w;

    u->n_pieces = PIECE_ARENAS + w->n_arenas;
    u->pieces[PIECE_BLOCK] = (struct piece){w->block, NULL, w->block ? w->block_bytes : 0};
    u->pieces[PIECE_INT8] = (struct piece){w->int8_block, NULL, w->int8_block ? w->int8_bytes : 0};
    for (size_t i = 0; i < w->n_arenas; i++) {
        const struct expert_arena *a = &w->arenas[i];

        u->pieces[PIECE_ARENAS + i] =
            (struct piece){a->base, a->stays ? a->base : NULL, a->block.n_bytes * a->n_experts};
    }
    for (size_t i = 0; i < u->n_pieces; i++) {
        u->total += u->pieces[i].device ? 0 : u->pieces[i].n_bytes;
    }
}

static size_t matrix_bytes(const struct weight *m)
{
    return weight_row_bytes(m) * m->n_out; /* it is in memory, so it can be counted */
}

static void mapped_find(struct uploader *u)
{
    for (size_t i = 0; i < u->spec->n_matrices; i++) {
        const struct weight *m = &u->w->matrices[i];

        u->mapped_at[i] = NOT_MAPPED;
        if (m->kind == WEIGHT_DENSE && m->data && !piece_of(u, m->data)) {
            u->mapped_at[i] = u->mapped_bytes;
            u->mapped_bytes += (matrix_bytes(m) + MAPPED_ALIGN - 1) / MAPPED_ALIGN * MAPPED_ALIGN;
            u->total += matrix_bytes(m);
        }
    }
}

/* ---- moves ---- */

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
    const struct backend_ops *ops = u->be->ops;
    const uint8_t *src = host;

    for (size_t at = 0; at < n_bytes; at += SLICE_BYTES) {
        size_t n = size_min(SLICE_BYTES, n_bytes - at);

        if (ops->upload) {
            ops->upload(u->be, device + at, src + at, n, u->pool);
        } else {
            ops->write(u->be, device + at, src + at, n);
        }
        u->done += n;
        progress_update(u->progress, u->done);
    }
}

/* The host's copy of a piece goes. */
static void piece_forget(struct uploader *u, size_t i)
{
    free(u->pieces[i].host);
    if (i == PIECE_BLOCK) {
        u->w->block = NULL;
    } else if (i == PIECE_INT8) {
        u->w->int8_block = NULL;
    } else {
        u->w->arenas[i - PIECE_ARENAS].base = NULL; /* its blocks are found through the matrices */
    }
}

static enum status pieces_move(struct uploader *u, struct error *err)
{
    enum status rc = OK;

    for (size_t i = 0; rc == OK && i < u->n_pieces; i++) {
        struct piece *p = &u->pieces[i];

        if (p->n_bytes == 0 || p->device) {
            continue;
        }
        rc = buffer_make(u, &p->device, p->n_bytes, err);
        if (rc == OK) {
            write_slices(u, p->device, p->host, p->n_bytes);
            piece_forget(u, i);
        }
    }
    return rc;
}

static enum status mapped_move(struct uploader *u, struct error *err)
{
    enum status rc = u->mapped_bytes > 0 ? buffer_make(u, &u->mapped, u->mapped_bytes, err) : OK;

    for (size_t i = 0; rc == OK && i < u->spec->n_matrices; i++) {
        const struct weight *m = &u->w->matrices[i];

        if (u->mapped_at[i] != NOT_MAPPED) {
            write_slices(u, u->mapped + u->mapped_at[i], m->data, matrix_bytes(m));
        }
    }
    return rc;
}

static void matrix_turn(const struct uploader *u, struct weight *m)
{
    m->data = translate(u, m->data);
    m->scales = translate(u, m->scales);
    m->zeros = translate(u, m->zeros);
    m->perm = translate(u, m->perm);
}

static void pointers_turn(struct uploader *u)
{
    struct model_weights *w = u->w;

    for (size_t i = 0; i < u->spec->n_matrices; i++) {
        if (u->mapped_at[i] != NOT_MAPPED) {
            w->matrices[i].data = u->mapped + u->mapped_at[i];
        } else {
            matrix_turn(u, &w->matrices[i]);
        }
    }
    matrix_turn(u, &w->tied_head);
    for (size_t i = 0; i < u->spec->n_vectors; i++) {
        w->vectors[i] = translate(u, w->vectors[i]);
    }
}

enum status weights_upload(struct model_weights *w, const struct model_spec *spec,
                           struct backend *be, struct pool *pool, struct progress *progress,
                           struct error *err)
{
    struct uploader u = {.w = w, .spec = spec, .be = be, .pool = pool, .progress = progress};
    enum status rc = OK;

    if (!be->ops->begin) {
        return OK; /* it reads host memory */
    }
    w->be = be;
    w->device_buffers = calloc(PIECE_ARENAS + w->n_arenas + 1, sizeof *w->device_buffers);
    u.pieces = calloc(PIECE_ARENAS + w->n_arenas, sizeof *u.pieces);
    u.mapped_at = calloc(spec->n_matrices + 1, sizeof *u.mapped_at);
    if (!w->device_buffers || !u.pieces || !u.mapped_at) {
        rc = error_set(err, ERR_NO_MEMORY, "cannot allocate the table of uploads");
    }
    if (rc == OK) {
        pieces_find(&u);
        mapped_find(&u);
        progress_start(progress, "upload", PROGRESS_BYTES, u.total);
        rc = pieces_move(&u, err);
        rc = rc == OK ? mapped_move(&u, err) : rc;
        progress_finish(progress);
    }
    if (rc == OK) {
        pointers_turn(&u);
    }
    free(u.pieces);
    free(u.mapped_at);
    return rc;
}
