/* safetensors_write.c - writing .safetensors files from tensors in memory.
 *
 * Place: formats; used by tools that make checkpoints, and by tests.
 * Idea:  tensors are collected as borrowed pointers in a safetensors_stream, which knows the layout
 *        and the file; finish() hands it the data, tensor by tensor. */
#include <stdlib.h>

#include "formats/safetensors.h"
#include "formats/safetensors_header.h"
#include "formats/safetensors_stream.h"

struct safetensors_writer {
    struct safetensors_stream *stream; /* a slot's source is its data */
};

enum status safetensors_writer_new(struct safetensors_writer **out, struct error *err)
{
    enum status rc;

    *out = calloc(1, sizeof **out);
    if (!*out) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a safetensors writer");
    }
    rc = safetensors_stream_new(&(*out)->stream, err);
    if (rc != OK) {
        free(*out);
        *out = NULL;
    }
    return rc;
}

void safetensors_writer_free(struct safetensors_writer *w)
{
    if (w) {
        safetensors_stream_free(w->stream);
        free(w);
    }
}

static bool is_empty(const struct tensor *t)
{
    for (size_t d = 0; d < t->n_dims && d < TENSOR_DIMS_MAX; d++) {
        if (t->shape[d] == 0) {
            return true;
        }
    }
    return false;
}

enum status safetensors_writer_add(struct safetensors_writer *w, const char *name,
                                   const struct tensor *t, struct error *err)
{
    enum status rc = safetensors_check_name(str_of(name), err);

    if (rc == OK && !t->data && !is_empty(t)) {
        rc = error_set(err, ERR_FORMAT, "tensor '%s': has no data", name);
    }
    return rc == OK ? safetensors_stream_add(w->stream, name, t, t->data, err) : rc;
}

enum status safetensors_writer_finish(struct safetensors_writer *w, const char *path,
                                      struct error *err)
{
    struct safetensors_stream *s = w->stream;
    enum status rc = safetensors_stream_open(s, path, err);

    for (size_t i = 0; rc == OK && i < safetensors_stream_count(s); i++) {
        const struct safetensors_slot *slot = safetensors_stream_at(s, i);

        rc = safetensors_stream_write(s, slot->begin, slot->source, slot->n_bytes, err);
    }
    if (rc == OK) {
        return safetensors_stream_finish(s, true, err);
    }
    safetensors_stream_abort(s);
    return rc;
}
