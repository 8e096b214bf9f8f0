/* safetensors.c - opening and checking .safetensors files.
 *
 * Place:  formats; the grammar of the header is safetensors_header.c.
 * Layout: [u64 n][header, n bytes of JSON][data]; tensors cover the data without gap or overlap.
 * Idea:   the file is mapped and everything is checked once, here; later code trusts the shapes.
 *         Entries are kept by offset (the order in which a loader should read) beside a small index
 *         by name. */
#include "formats/safetensors.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"
#include "base/size.h"
#include "formats/safetensors_header.h"

enum { LENGTH_BYTES = 8 };

struct safetensors {
    struct file_map map; /* zero when the bytes are the caller's */
    struct safetensors_header header;
    uint32_t *by_name; /* [header.n] indices into header.items */
};

static uint64_t load_u64_le(const unsigned char *p)
{
    uint64_t v = 0;

    for (int i = 7; i >= 0; i--) {
        v = v << 8 | p[i];
    }
    return v;
}

/* dtype x shape must give exactly the bytes between the offsets. */
static enum status check_size(const struct safetensors_entry *e, struct error *err)
{
    size_t n = dtype_bytes(e->tensor.dtype);

    for (size_t d = 0; d < e->tensor.n_dims; d++) {
        /* A zero anywhere makes the product zero, but only after the others fitted. */
        if (!size_mul(&n, n, e->tensor.shape[d])) {
            return error_set(err, ERR_FORMAT, "tensor '%s': its shape overflows", e->name);
        }
    }
    if (n != e->n_bytes) {
        return error_set(err, ERR_FORMAT,
                         "tensor '%s': shape and dtype make %zu bytes, data_offsets %zu", e->name,
                         n, e->n_bytes);
    }
    return OK;
}

static int compare_offset(const void *a, const void *b)
{
    const struct safetensors_item *x = a, *y = b;

    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    if (x->entry.n_bytes != y->entry.n_bytes) {
        return x->entry.n_bytes < y->entry.n_bytes ? -1 : 1;
    }
    return 0;
}

/* Sort by offset, check that the tensors tile the data, and set their pointers. */
static enum status place_tensors(struct safetensors *st, const unsigned char *data, size_t n_bytes,
                                 struct error *err)
{
    size_t at = 0;

    for (size_t i = 0; i < st->header.n; i++) {
        const struct safetensors_item *item = &st->header.items[i];
        size_t end = item->begin + item->entry.n_bytes; /* fits: it was read as one number */
        enum status rc = check_size(&item->entry, err);

        if (rc != OK) {
            return rc;
        }
        if (end > n_bytes) {
            return error_set(err, ERR_FORMAT,
                             "tensor '%s': end %zu is past the file's %zu data bytes",
                             item->entry.name, end, n_bytes);
        }
    }
    if (st->header.n > 0) {
        qsort(st->header.items, st->header.n, sizeof st->header.items[0], compare_offset);
    }
    for (size_t i = 0; i < st->header.n; i++) {
        struct safetensors_item *item = &st->header.items[i];

        if (item->begin != at) {
            return error_set(err, ERR_FORMAT, "tensor '%s': begins at %zu, %s %zu",
                             item->entry.name, item->begin,
                             item->begin < at ? "inside the tensor that ends at"
                                              : "after a gap that begins at",
                             at);
        }
        item->entry.tensor.data = (void *)(uintptr_t)(data + at);
        at += item->entry.n_bytes;
    }
    if (at != n_bytes) {
        return error_set(err, ERR_FORMAT, "the tensors end at %zu, the file's data at %zu", at,
                         n_bytes);
    }
    return OK;
}

static int compare_name(const void *a, const void *b, void *ctx)
{
    const struct safetensors_item *items = ctx;

    return strcmp(items[*(const uint32_t *)a].entry.name, items[*(const uint32_t *)b].entry.name);
}

static enum status index_names(struct safetensors *st, struct error *err)
{
    const struct safetensors_item *items = st->header.items;
    size_t n = st->header.n;

    st->by_name = calloc(n + 1, sizeof *st->by_name);
    if (!st->by_name) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate an index of %zu tensors", n);
    }
    for (size_t i = 0; i < n; i++) {
        st->by_name[i] = (uint32_t)i;
    }
    if (n > 1) {
        qsort_r(st->by_name, n, sizeof *st->by_name, compare_name, st->header.items);
    }
    for (size_t i = 1; i < n; i++) {
        const char *name = items[st->by_name[i]].entry.name;

        if (strcmp(items[st->by_name[i - 1]].entry.name, name) == 0) {
            return error_set(err, ERR_FORMAT, "tensor '%s' stands twice in the header", name);
        }
    }
    return OK;
}

static enum status read_all(struct safetensors *st, const unsigned char *bytes, size_t n_bytes,
                            struct error *err)
{
    uint64_t header_bytes;
    enum status rc;

    if (n_bytes < LENGTH_BYTES) {
        return error_set(err, ERR_FORMAT, "%zu bytes are too few for a safetensors file", n_bytes);
    }
    header_bytes = load_u64_le(bytes);
    if (header_bytes == 0 || header_bytes > SAFETENSORS_HEADER_BYTES_MAX) {
        return error_set(err, ERR_FORMAT,
                         "header length %llu is not in 1..%d: not a safetensors file, or damaged",
                         (unsigned long long)header_bytes, SAFETENSORS_HEADER_BYTES_MAX);
    }
    if (header_bytes > n_bytes - LENGTH_BYTES) {
        return error_set(err, ERR_FORMAT,
                         "header of %llu bytes, but the file has %zu: it is cut off",
                         (unsigned long long)header_bytes, n_bytes);
    }
    rc = safetensors_header_parse(&st->header, (const char *)bytes + LENGTH_BYTES,
                                  (size_t)header_bytes, err);
    if (rc != OK) {
        return rc;
    }
    rc = place_tensors(st, bytes + LENGTH_BYTES + header_bytes,
                       n_bytes - LENGTH_BYTES - (size_t)header_bytes, err);
    if (rc != OK) {
        return rc;
    }
    return index_names(st, err);
}

/* data NULL: map the file `path`. */
static enum status open_any(struct safetensors **out, const void *data, size_t n_bytes,
                            const char *path, struct error *err)
{
    struct safetensors *st = calloc(1, sizeof *st);
    enum status rc = OK;

    *out = NULL;
    if (!st) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a reader for '%s'", path);
    }
    if (!data) {
        rc = file_map_open(&st->map, path, err);
        data = st->map.data;
        n_bytes = st->map.n_bytes;
    }
    if (rc == OK) {
        rc = read_all(st, data, n_bytes, err);
        if (rc != OK) {
            error_prefix(err, "cannot read '%s'", path);
        }
    }
    if (rc != OK) {
        safetensors_close(st);
        return rc;
    }
    *out = st;
    return OK;
}

enum status safetensors_open(struct safetensors **out, const char *path, struct error *err)
{
    return open_any(out, NULL, 0, path, err);
}

enum status safetensors_open_memory(struct safetensors **out, const void *data, size_t n_bytes,
                                    const char *name, struct error *err)
{
    return open_any(out, data ? data : "", data ? n_bytes : 0, name, err);
}

void safetensors_close(struct safetensors *st)
{
    if (!st) {
        return;
    }
    safetensors_header_release(&st->header);
    free(st->by_name);
    file_map_close(&st->map);
    free(st);
}

size_t safetensors_count(const struct safetensors *st)
{
    return st->header.n;
}

const struct safetensors_entry *safetensors_at(const struct safetensors *st, size_t i)
{
    return i < st->header.n ? &st->header.items[i].entry : NULL;
}

const struct safetensors_entry *safetensors_find(const struct safetensors *st, const char *name)
{
    size_t low = 0, high = st->header.n;

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct safetensors_entry *e = &st->header.items[st->by_name[mid]].entry;
        int order = strcmp(name, e->name);

        if (order == 0) {
            return e;
        }
        if (order < 0) {
            high = mid;
        } else {
            low = mid + 1;
        }
    }
    return NULL;
}
