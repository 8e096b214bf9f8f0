/* safetensors_stream.c - see safetensors_stream.h. */
#include "formats/safetensors_stream.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file_out.h"
#include "base/json.h"
#include "base/size.h"
#include "formats/safetensors.h"
#include "formats/safetensors_header.h"

struct safetensors_stream {
    struct safetensors_slot *slots;
    size_t n, cap;
    size_t n_bytes;    /* of the data; set by open */
    size_t data_begin; /* in the file */
    struct file_out file;
};

enum status safetensors_stream_new(struct safetensors_stream **out, struct error *err)
{
    *out = calloc(1, sizeof **out);
    if (!*out) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a safetensors writer");
    }
    return OK;
}

void safetensors_stream_free(struct safetensors_stream *s)
{
    if (s) {
        safetensors_stream_abort(s);
        free(s->slots);
        free(s);
    }
}

static enum status shape_bytes(size_t *out, const struct tensor *t, struct error *err)
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
    *out = n;
    return OK;
}

enum status safetensors_stream_add(struct safetensors_stream *s, const char *name,
                                   const struct tensor *t, const void *source, struct error *err)
{
    size_t n_bytes = 0;
    enum status rc = safetensors_check_name(str_of(name), err);

    if (rc != OK) {
        return rc;
    }
    rc = shape_bytes(&n_bytes, t, err);
    if (rc != OK) {
        error_prefix(err, "tensor '%s'", name);
        return rc;
    }
    if (s->n == SAFETENSORS_TENSORS_MAX) {
        return error_set(err, ERR_LIMIT, "tensor '%s': more than %d tensors in one file", name,
                         SAFETENSORS_TENSORS_MAX);
    }
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 64;
        struct safetensors_slot *slots = reallocarray(s->slots, cap, sizeof *slots);

        if (!slots) {
            return error_set(err, ERR_NO_MEMORY, "cannot allocate a list of %zu tensors", cap);
        }
        s->slots = slots;
        s->cap = cap;
    }
    s->slots[s->n++] = (struct safetensors_slot){name, *t, n_bytes, 0, source};
    return OK;
}

static int compare_layout(const void *a, const void *b)
{
    const struct safetensors_slot *x = a, *y = b;
    size_t x_align = dtype_bytes(x->tensor.dtype), y_align = dtype_bytes(y->tensor.dtype);

    if (x_align != y_align) {
        return x_align > y_align ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

static int compare_name(const void *a, const void *b)
{
    const struct safetensors_slot *x = a, *y = b;

    return strcmp(x->name, y->name);
}

/* Sort, refuse names that are there twice, give each tensor its place. */
static enum status lay_out(struct safetensors_stream *s, struct error *err)
{
    if (s->n) {
        qsort(s->slots, s->n, sizeof s->slots[0], compare_name);
    }
    for (size_t i = 1; i < s->n; i++) {
        if (strcmp(s->slots[i - 1].name, s->slots[i].name) == 0) {
            return error_set(err, ERR_FORMAT, "tensor '%s' was added twice", s->slots[i].name);
        }
    }
    if (s->n) {
        qsort(s->slots, s->n, sizeof s->slots[0], compare_layout);
    }
    s->n_bytes = 0;
    for (size_t i = 0; i < s->n; i++) {
        s->slots[i].begin = s->n_bytes;
        if (!size_add(&s->n_bytes, s->n_bytes, s->slots[i].n_bytes)) {
            return error_set(err, ERR_LIMIT, "the tensors are larger than an address");
        }
    }
    return OK;
}

static void write_entry(struct buf *b, const struct safetensors_slot *slot)
{
    buf_append_char(b, ',');
    json_write_string(b, slot->name, strlen(slot->name));
    buf_appendf(b, ":{\"dtype\":\"%s\",\"shape\":[", safetensors_dtype_name(slot->tensor.dtype));
    for (size_t d = 0; d < slot->tensor.n_dims; d++) {
        buf_appendf(b, "%s%zu", d ? "," : "", slot->tensor.shape[d]);
    }
    buf_appendf(b, "],\"data_offsets\":[%zu,%zu]}", slot->begin, slot->begin + slot->n_bytes);
}

/* The length and the header, padded with spaces to a multiple of 8 bytes. */
static enum status build_header(struct buf *b, const struct safetensors_stream *s,
                                struct error *err)
{
    buf_append(b, "\0\0\0\0\0\0\0\0", 8);
    buf_append_str(b, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < s->n; i++) {
        write_entry(b, &s->slots[i]);
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

enum status safetensors_stream_open(struct safetensors_stream *s, const char *path,
                                    struct error *err)
{
    struct buf header;
    size_t file_bytes = 0;
    enum status rc = lay_out(s, err);

    buf_init(&header);
    if (rc == OK) {
        rc = build_header(&header, s, err);
    }
    if (rc == OK && !size_add(&file_bytes, header.len, s->n_bytes)) {
        rc = error_set(err, ERR_LIMIT, "the tensors are larger than an address");
    }
    if (rc == OK) {
        rc = file_out_open(&s->file, path, err);
    }
    if (rc == OK) {
        s->data_begin = header.len;
        rc = file_out_reserve(&s->file, file_bytes, err);
        if (rc == OK) {
            rc = file_out_write(&s->file, 0, header.data, header.len, err);
        }
        if (rc != OK) {
            file_out_abort(&s->file);
        }
    }
    buf_release(&header);
    return rc;
}

size_t safetensors_stream_count(const struct safetensors_stream *s)
{
    return s->n;
}

const struct safetensors_slot *safetensors_stream_at(const struct safetensors_stream *s, size_t i)
{
    return &s->slots[i];
}

size_t safetensors_stream_bytes(const struct safetensors_stream *s)
{
    return s->n_bytes;
}

size_t safetensors_stream_find(const struct safetensors_stream *s, size_t offset)
{
    size_t low = 0, high = s->n; /* slots below low end at or before offset, from high on after */

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (s->slots[middle].begin + s->slots[middle].n_bytes <= offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

enum status safetensors_stream_write(const struct safetensors_stream *s, size_t offset,
                                     const void *data, size_t n_bytes, struct error *err)
{
    return file_out_write(&s->file, s->data_begin + offset, data, n_bytes, err);
}

enum status safetensors_stream_finish(struct safetensors_stream *s, bool must_last,
                                      struct error *err)
{
    return file_out_commit(&s->file, must_last, err);
}

void safetensors_stream_abort(struct safetensors_stream *s)
{
    file_out_abort(&s->file);
}
