/* weights_upload.c - see weights_upload.h.
 *
 * Idea: loading leaves the weights in two large pieces (the rewritten block, the int8 block), in mapped
 *       files, and in arenas of experts; these and an embedding that stays are where they shall be. Each
 *       piece becomes one buffer of the device; a pointer into a piece becomes the same place in its
 *       buffer. Mapped matrices share one more buffer, each on a border of its own, since files align as
 *       they like. */
#include "model/weights_upload.h"

#include <stdlib.h>

#include "base/size.h"

enum {
    SLICE_BYTES = 64 << 20, /* between two looks at the progress line */
    MAPPED_ALIGN = 256
};

enum { PIECE_BLOCK, PIECE_INT8, PIECES };

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
    struct piece pieces[PIECES];
    size_t *mapped_at; /* [n_matrices] in the buffer of mapped matrices, or NOT_MAPPED */
    size_t mapped_bytes;
    uint8_t *mapped;
    size_t done, total;
};

static const struct piece *piece_of(const struct uploader *u, const void *at)
{
    for (size_t i = 0; i < PIECES; i++) {
        const struct piece *p = &u->pieces[i];

        if ((uintptr_t)at - (uintptr_t)p->host < p->n_bytes) {
            return p;
        }
    }
    return NULL;
}

/* The device's place of a host address; what is in no piece is where it shall be. */
static const void *translate(const struct uploader *u, const void *at)
{
    const struct piece *p = at ? piece_of(u, at) : NULL;

    return p ? p->device + ((const uint8_t *)at - p->host) : at;
}

/* ---- what is where ---- */

static void pieces_find(struct uploader *u)
{
    struct model_weights *w = u->w;

    u->pieces[PIECE_BLOCK] = (struct piece){w->block, NULL, w->block ? w->block_bytes : 0};
    u->pieces[PIECE_INT8] = (struct piece){w->int8_block, NULL, w->int8_block ? w->int8_bytes : 0};
    for (size_t i = 0; i < PIECES; i++) {
        u->total += u->pieces[i].n_bytes;
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
        if (m->kind == WEIGHT_DENSE && m->data && m->data != u->w->embedding &&
            !piece_of(u, m->data)) {
            u->mapped_at[i] = u->mapped_bytes;
            u->mapped_bytes += (matrix_bytes(m) + MAPPED_ALIGN - 1) / MAPPED_ALIGN * MAPPED_ALIGN;
            u->total += matrix_bytes(m);
        }
    }
}

/* ---- moves ---- */

static enum status buffer_make(struct uploader *u, uint8_t **out, size_t n_bytes, struct error *err)
{
    *out = weights_device_buffer(u->w, u->be, n_bytes);
    if (!*out) {
        return error_set(
            err, ERR_NO_MEMORY,
            "cannot allocate %zu MiB of device memory for weights, after %zu of %zu MiB",
            n_bytes >> 20, u->done >> 20, u->total >> 20);
    }
    return OK;
}

static void write_slices(struct uploader *u, uint8_t *device, const void *host, size_t n_bytes)
{
    const uint8_t *src = host;

    for (size_t at = 0; at < n_bytes; at += SLICE_BYTES) {
        size_t n = size_min(SLICE_BYTES, n_bytes - at);

        weights_device_write(u->be, device + at, src + at, n, u->pool);
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
    } else {
        u->w->int8_block = NULL;
    }
}

static enum status pieces_move(struct uploader *u, struct error *err)
{
    enum status rc = OK;

    for (size_t i = 0; rc == OK && i < PIECES; i++) {
        struct piece *p = &u->pieces[i];

        if (p->n_bytes == 0) {
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
    u.mapped_at = calloc(spec->n_matrices + 1, sizeof *u.mapped_at);
    if (!u.mapped_at) {
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
    free(u.mapped_at);
    return rc;
}
