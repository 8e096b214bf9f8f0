/* cuda_memory.c - device memory under a limit, constants, and copies to and from the card.
 *
 * Place: backend/cuda.
 * Limit: what counts is what the driver shows for the card, context and all; so before an allocation we
 *        look at what is used, and after it again, because the driver hands out whole blocks.
 * Copy:  the card reads and writes pinned memory only at full speed, and only from there beside the
 *        processor. So uploads are filled into two halves in turn, one being filled while the other
 *        travels; downloads come in pieces, one being copied out while the next arrive. One thread
 *        fills slower than the link takes: weights are filled in by a pool. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_private.h"
#include "base/pool.h"
#include "base/size.h"

enum {
    CHUNK_BYTES = 1 << 20, /* of constants; larger ones have a chunk of their own */
    WRITE_PIECE = 4 << 20, /* so that a large upload starts to travel early */
    FILL_GRAIN = 64 << 10, /* of a piece, for one thread */
    PAGE = 4096,
    READ_PIECE_LEAST = 64 << 10, /* below, a piece's own cost is more than what it hides */
};

static CUdeviceptr address_of(const void *p)
{
    return (CUdeviceptr)(uintptr_t)p;
}

size_t cuda_backend_used(struct backend *base)
{
    struct cuda_backend *be = (struct cuda_backend *)base;
    size_t now = 0, total = 0;

    if (cuda_enter(be, NULL) != OK ||
        cuda_result(be, be->drv->mem_get_info(&now, &total), NULL, "cuMemGetInfo") != OK) {
        return 0;
    }
    return be->card.free_bytes - size_min(now, be->card.free_bytes);
}

static enum status over_limit(const struct cuda_backend *be, const char *what, size_t n_bytes,
                              size_t used, struct error *err)
{
    return error_set(
        err, ERR_NO_MEMORY,
        "%s needs %zu MiB of the card's memory: %zu MiB are used, the limit is %zu MiB", what,
        (n_bytes + (1 << 20) - 1) >> 20, used >> 20, be->own->memory_limit >> 20);
}

enum status cuda_alloc(struct cuda_backend *be, CUdeviceptr *out, size_t n_bytes, const char *what,
                       struct error *err)
{
    size_t limit = be->own->memory_limit;
    size_t used = limit ? cuda_backend_used(&be->base) : 0;
    enum status rc;

    *out = 0;
    n_bytes = n_bytes ? n_bytes : 1;
    if (limit && (used > limit || n_bytes > limit - used)) {
        return over_limit(be, what, n_bytes, used, err);
    }
    rc = cuda_result(be, be->drv->mem_alloc(out, n_bytes), err, "cuMemAlloc of %zu MiB for %s",
                     (n_bytes + (1 << 20) - 1) >> 20, what);
    if (rc != OK) {
        *out = 0;
        return rc;
    }
    used = limit ? cuda_backend_used(&be->base) : 0;
    if (used > limit) {
        be->drv->mem_free(*out);
        *out = 0;
        return over_limit(be, what, n_bytes, cuda_backend_used(&be->base), err);
    }
    return OK;
}

/* ---- constants ---- */

static struct cuda_chunk *chunk_new(struct cuda_backend *be, size_t n_bytes, struct error *err)
{
    struct cuda_chunk *c = calloc(1, sizeof *c);

    if (!c) {
        error_set(err, ERR_NO_MEMORY, "cannot allocate a chunk of constants");
        return NULL;
    }
    c->size = size_max(n_bytes, CHUNK_BYTES);
    if (cuda_alloc(be, &c->data, c->size, "constants", err) != OK) {
        free(c);
        return NULL;
    }
    c->next = be->own->constants;
    be->own->constants = c;
    return c;
}

void *cuda_constant(struct cuda_backend *be, const void *host, size_t n_bytes, struct error *err)
{
    struct cuda_chunk *c = be->own->constants;
    enum status rc;
    size_t whole;
    void *data;

    if (!size_align(&whole, n_bytes ? n_bytes : 1, CUDA_ALIGN)) {
        error_set(err, ERR_NO_MEMORY, "a constant of %zu bytes", n_bytes);
        return NULL;
    }
    if (be->own->is_measuring) {
        be->own->measured_bytes += whole;
        return be->own; /* an address; nobody reads it */
    }
    if (!c || whole > c->size - c->used) {
        c = chunk_new(be, whole, err);
        if (!c) {
            return NULL;
        }
    }
    data = (void *)(uintptr_t)(c->data + c->used);
    rc = host ? cuda_write(be, data, host, n_bytes, err) : cuda_zero(be, data, n_bytes, err);
    if (rc != OK) {
        return NULL;
    }
    c->used += whole;
    return data;
}

void cuda_constants_free(struct cuda_backend *be)
{
    struct cuda_chunk *c = be->own->constants;

    while (c) {
        struct cuda_chunk *next = c->next;

        be->drv->mem_free(c->data);
        free(c);
        c = next;
    }
    be->own->constants = NULL;
}

/* ---- copies ---- */

static enum status pinned_new(struct cuda_backend *be, uint8_t **out, size_t n_bytes,
                              struct error *err)
{
    void *p = NULL;
    enum status rc = cuda_result(be, be->drv->mem_host_alloc(&p, n_bytes, 0), err,
                                 "cuMemHostAlloc of %zu MiB for copies", n_bytes >> 20);

    *out = rc == OK ? p : NULL;
    return rc;
}

static enum status event_new(struct cuda_backend *be, CUevent *out, struct error *err)
{
    return cuda_result(be, be->drv->event_create(out, CUDA_EVENT_NO_TIMING), err, "cuEventCreate");
}

enum status cuda_staging_new(struct cuda_backend *be, struct error *err)
{
    struct cuda_private *own = be->own;
    enum status rc =
        pinned_new(be, &own->read_pieces, (size_t)CUDA_READ_PIECES * CUDA_READ_PIECE, err);

    for (size_t i = 0; rc == OK && i < 2; i++) {
        rc = pinned_new(be, &own->write_half[i], CUDA_WRITE_HALF, err);
        if (rc == OK) {
            rc = event_new(be, &own->write_done[i], err);
        }
    }
    for (size_t i = 0; rc == OK && i < CUDA_READ_PIECES; i++) {
        rc = event_new(be, &own->read_done[i], err);
    }
    return rc;
}

void cuda_staging_free(struct cuda_backend *be)
{
    struct cuda_private *own = be->own;

    for (size_t i = 0; i < 2; i++) {
        if (own->write_done[i]) {
            be->drv->event_destroy(own->write_done[i]);
        }
        if (own->write_half[i]) {
            be->drv->mem_free_host(own->write_half[i]);
        }
    }
    for (size_t i = 0; i < CUDA_READ_PIECES; i++) {
        if (own->read_done[i]) {
            be->drv->event_destroy(own->read_done[i]);
        }
    }
    if (own->read_pieces) {
        be->drv->mem_free_host(own->read_pieces);
    }
}

/* The half being filled is full: let it go, and wait until the other one has arrived. */
static enum status next_half(struct cuda_backend *be, struct error *err)
{
    struct cuda_private *own = be->own;
    enum status rc =
        cuda_result(be, be->drv->event_record(own->write_done[own->write_at], be->stream), err,
                    "cuEventRecord after an upload");

    if (rc != OK) {
        return rc;
    }
    own->write_is_pending[own->write_at] = true;
    own->write_at ^= 1;
    own->write_used = 0;
    if (own->write_is_pending[own->write_at]) {
        rc = cuda_result(be, be->drv->event_synchronize(own->write_done[own->write_at]), err,
                         "cuEventSynchronize of an upload");
        own->write_is_pending[own->write_at] = rc != OK;
    }
    return rc;
}

struct fill {
    uint8_t *piece;
    const uint8_t *host;
};

static void fill_run(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct fill *f = ctx;

    (void)thread;
    memcpy(f->piece + begin, f->host + begin, end - begin);
}

enum status cuda_upload(struct cuda_backend *be, void *dst, const void *host, size_t n_bytes,
                        struct pool *pool, struct error *err)
{
    struct cuda_private *own = be->own;
    enum status rc = OK;

    for (size_t at = 0; rc == OK && at < n_bytes;) {
        size_t room = CUDA_WRITE_HALF - own->write_used;
        size_t n = size_min(size_min(n_bytes - at, room), WRITE_PIECE);
        struct fill fill;

        if (room == 0) {
            rc = next_half(be, err);
            continue;
        }
        fill = (struct fill){own->write_half[own->write_at] + own->write_used,
                             (const uint8_t *)host + at};
        pool_run(pool, n, FILL_GRAIN, fill_run, &fill);
        rc = cuda_result(
            be, be->drv->memcpy_htod_async(address_of(dst) + at, fill.piece, n, be->stream), err,
            "cuMemcpyHtoDAsync of %zu bytes", n);
        /* The next piece begins on a line of its own. */
        own->write_used = size_min((own->write_used + n + 63) & ~(size_t)63, CUDA_WRITE_HALF);
        at += n;
    }
    return rc;
}

enum status cuda_write(struct cuda_backend *be, void *dst, const void *host, size_t n_bytes,
                       struct error *err)
{
    return cuda_upload(be, dst, host, n_bytes, NULL, err);
}

bool cuda_pin(struct cuda_backend *be, void *data, size_t n_bytes)
{
    int at_own_address = 0;

    return be->drv->mem_host_register && be->drv->mem_host_unregister &&
           (uintptr_t)data % PAGE == 0 &&
           be->drv->device_get_attribute(&at_own_address, CUDA_ATTRIBUTE_REGISTERED_AT_HOST_ADDRESS,
                                         be->device) == CUDA_SUCCESS_ &&
           at_own_address &&
           be->drv->mem_host_register(data, n_bytes,
                                      CUDA_HOST_REGISTER_PORTABLE | CUDA_HOST_REGISTER_MAPPED) ==
               CUDA_SUCCESS_;
}

struct download {
    uint8_t *host;
    CUdeviceptr src;
    size_t n_bytes, piece;
};

static enum status piece_ask(struct cuda_backend *be, const struct download *d, size_t i,
                             struct error *err)
{
    size_t slot = i % CUDA_READ_PIECES, at = i * d->piece;
    size_t n = size_min(d->piece, d->n_bytes - at);
    enum status rc =
        cuda_result(be,
                    be->drv->memcpy_dtoh_async(be->own->read_pieces + slot * CUDA_READ_PIECE,
                                               d->src + at, n, be->stream),
                    err, "cuMemcpyDtoHAsync of %zu bytes", n);

    return rc != OK ? rc
                    : cuda_result(be, be->drv->event_record(be->own->read_done[slot], be->stream),
                                  err, "cuEventRecord after a download");
}

static enum status piece_take(struct cuda_backend *be, const struct download *d, size_t i,
                              struct error *err)
{
    size_t slot = i % CUDA_READ_PIECES, at = i * d->piece;
    enum status rc = cuda_result(be, be->drv->event_synchronize(be->own->read_done[slot]), err,
                                 "waiting for the card (the error may be an earlier kernel's)");

    if (rc == OK) {
        memcpy(d->host + at, be->own->read_pieces + slot * CUDA_READ_PIECE,
               size_min(d->piece, d->n_bytes - at));
    }
    return rc;
}

enum status cuda_read(struct cuda_backend *be, void *host, const void *src, size_t n_bytes,
                      struct error *err)
{
    size_t piece = size_min(size_max(n_bytes / 4, READ_PIECE_LEAST), CUDA_READ_PIECE);
    struct download d = {host, address_of(src), n_bytes, piece};
    size_t n_pieces = n_bytes / piece + (n_bytes % piece != 0);
    enum status rc = OK;

    for (size_t asked = 0, taken = 0; rc == OK && taken < n_pieces;) {
        if (asked < n_pieces && asked - taken < CUDA_READ_PIECES) {
            rc = piece_ask(be, &d, asked++, err);
        } else {
            rc = piece_take(be, &d, taken++, err);
        }
    }
    return rc;
}
