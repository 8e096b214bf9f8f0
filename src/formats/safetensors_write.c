/* safetensors_write.c - writing .safetensors files.
 *
 * Place: formats; used by tools that make checkpoints, and by tests.
 * Idea:  tensors are collected as borrowed pointers; finish() lays them out (widest elements first, so
 *        that each is aligned to its own size), writes a temporary file beside the target and renames
 *        it, so that a reader never sees half a file. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/size.h"
#include "formats/safetensors.h"
#include "formats/safetensors_header.h"

struct pending {
    const char *name;
    struct tensor tensor;
    size_t n_bytes;
};

struct safetensors_writer {
    struct pending *items;
    size_t n, cap;
};

enum status safetensors_writer_new(struct safetensors_writer **out, struct error *err)
{
    *out = calloc(1, sizeof **out);
    if (!*out) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a safetensors writer");
    }
    return OK;
}

void safetensors_writer_free(struct safetensors_writer *w)
{
    if (w) {
        free(w->items);
        free(w);
    }
}

static enum status tensor_bytes(size_t *out, const struct tensor *t, struct error *err)
{
    size_t n = dtype_bytes(t->dtype);

    if (!safetensors_dtype_name(t->dtype)) {
        return error_set(err, ERR_FORMAT, "has no dtype");
    }
    if (t->n_dims > TENSOR_DIMS_MAX) {
        return error_set(err, ERR_LIMIT, "has %zu dimensions", t->n_dims);
    }
    for (size_t d = 0; d < t->n_dims; d++) {
        if (!size_mul(&n, n, t->shape[d])) {
            return error_set(err, ERR_FORMAT, "its shape overflows");
        }
    }
    if (n > 0 && !t->data) {
        return error_set(err, ERR_FORMAT, "has no data");
    }
    *out = n;
    return OK;
}

enum status safetensors_writer_add(struct safetensors_writer *w, const char *name,
                                   const struct tensor *t, struct error *err)
{
    size_t n_bytes = 0;
    enum status rc = safetensors_check_name(str_of(name), err);

    if (rc != OK) {
        return rc;
    }
    rc = tensor_bytes(&n_bytes, t, err);
    if (rc != OK) {
        error_prefix(err, "tensor '%s'", name);
        return rc;
    }
    if (w->n == SAFETENSORS_TENSORS_MAX) {
        return error_set(err, ERR_LIMIT, "tensor '%s': more than %d tensors in one file", name,
                         SAFETENSORS_TENSORS_MAX);
    }
    if (w->n == w->cap) {
        size_t cap = w->cap ? w->cap * 2 : 64;
        struct pending *items = reallocarray(w->items, cap, sizeof *items);

        if (!items) {
            return error_set(err, ERR_NO_MEMORY, "cannot allocate a list of %zu tensors", cap);
        }
        w->items = items;
        w->cap = cap;
    }
    w->items[w->n++] = (struct pending){name, *t, n_bytes};
    return OK;
}

static int compare_layout(const void *a, const void *b)
{
    const struct pending *x = a, *y = b;
    size_t x_align = dtype_bytes(x->tensor.dtype), y_align = dtype_bytes(y->tensor.dtype);

    if (x_align != y_align) {
        return x_align > y_align ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

static int compare_pending_name(const void *a, const void *b)
{
    return strcmp(((const struct pending *)a)->name, ((const struct pending *)b)->name);
}

static void write_entry(struct buf *b, const struct pending *p, size_t begin)
{
    buf_append_char(b, ',');
    json_write_string(b, p->name, strlen(p->name));
    buf_appendf(b, ":{\"dtype\":\"%s\",\"shape\":[", safetensors_dtype_name(p->tensor.dtype));
    for (size_t d = 0; d < p->tensor.n_dims; d++) {
        buf_appendf(b, "%s%zu", d ? "," : "", p->tensor.shape[d]);
    }
    buf_appendf(b, "],\"data_offsets\":[%zu,%zu]}", begin, begin + p->n_bytes);
}

/* The length and the header, padded with spaces to a multiple of 8 bytes. */
static enum status build_header(struct buf *b, struct safetensors_writer *w, struct error *err)
{
    size_t at = 0;

    if (w->n) {
        qsort(w->items, w->n, sizeof w->items[0], compare_pending_name);
    }
    for (size_t i = 1; i < w->n; i++) {
        if (strcmp(w->items[i - 1].name, w->items[i].name) == 0) {
            return error_set(err, ERR_FORMAT, "tensor '%s' was added twice", w->items[i].name);
        }
    }
    if (w->n) {
        qsort(w->items, w->n, sizeof w->items[0], compare_layout);
    }
    buf_append(b, "\0\0\0\0\0\0\0\0", 8);
    buf_append_str(b, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < w->n; i++) {
        write_entry(b, &w->items[i], at);
        if (!size_add(&at, at, w->items[i].n_bytes)) {
            return error_set(err, ERR_LIMIT, "the tensors are larger than an address");
        }
    }
    buf_append_char(b, '}');
    while (buf_ok(b) && b->len % 8 != 0) {
        buf_append_char(b, ' ');
    }
    if (!buf_ok(b)) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the header");
    }
    if (b->len - 8 > SAFETENSORS_HEADER_BYTES_MAX) {
        return error_set(err, ERR_LIMIT, "the header takes %zu bytes", b->len - 8);
    }
    for (size_t i = 0; i < 8; i++) {
        b->data[i] = (char)((b->len - 8) >> (8 * i) & 0xff);
    }
    return OK;
}

static enum status write_fully(int fd, const void *data, size_t n_bytes, const char *path,
                               struct error *err)
{
    const char *p = data;

    while (n_bytes > 0) {
        ssize_t done = write(fd, p, n_bytes);

        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            return error_set(err, ERR_IO, "cannot write '%s': %s", path,
                             done < 0 ? strerror(errno) : "nothing was written");
        }
        p += done;
        n_bytes -= (size_t)done;
    }
    return OK;
}

static enum status write_file(const struct safetensors_writer *w, const struct buf *header,
                              const char *path, struct error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    enum status rc;

    if (fd < 0) {
        return error_set(err, ERR_IO, "cannot create '%s': %s", path, strerror(errno));
    }
    rc = write_fully(fd, header->data, header->len, path, err);
    for (size_t i = 0; i < w->n && rc == OK; i++) {
        rc = write_fully(fd, w->items[i].tensor.data, w->items[i].n_bytes, path, err);
    }
    if (rc == OK && fsync(fd) != 0) {
        rc = error_set(err, ERR_IO, "cannot flush '%s': %s", path, strerror(errno));
    }
    if (close(fd) != 0 && rc == OK) {
        rc = error_set(err, ERR_IO, "cannot close '%s': %s", path, strerror(errno));
    }
    if (rc != OK) {
        unlink(path);
    }
    return rc;
}

enum status safetensors_writer_finish(struct safetensors_writer *w, const char *path,
                                      struct error *err)
{
    struct buf header, temporary;
    enum status rc;

    buf_init(&header);
    buf_init(&temporary);
    buf_appendf(&temporary, "%s.tmp-%ld", path, (long)getpid());
    rc = build_header(&header, w, err);
    if (rc == OK && !buf_ok(&temporary)) {
        rc = error_set(err, ERR_NO_MEMORY, "cannot allocate a file name");
    }
    if (rc == OK) {
        rc = write_file(w, &header, buf_cstr(&temporary), err);
    }
    if (rc == OK && rename(buf_cstr(&temporary), path) != 0) {
        rc = error_set(err, ERR_IO, "cannot rename '%s' to '%s': %s", buf_cstr(&temporary), path,
                       strerror(errno));
        unlink(buf_cstr(&temporary));
    }
    buf_release(&header);
    buf_release(&temporary);
    return rc;
}
