/* safetensors_stream.h - writing a .safetensors file whose data is never in memory as a whole.
 *
 * Place: formats; under safetensors_writer (safetensors.h), and used where a checkpoint is larger than
 *        memory.
 * Use:   add() every tensor, open() lays the file out and writes its header, write() puts bytes
 *        anywhere into the data, finish() gives the file its name.
 * Layout: tensors by descending element size, then by name; the data begins at a multiple of 8
 *        bytes, so each tensor is aligned to its elements when the file is mapped.
 * Thread: write() may run in several threads; the rest may not. */
#ifndef FORMATS_SAFETENSORS_STREAM_H
#define FORMATS_SAFETENSORS_STREAM_H

#include "base/status.h"
#include "base/tensor.h"

struct safetensors_stream;

struct safetensors_slot {
    const char *name;     /* borrowed */
    struct tensor tensor; /* type and shape; data is not looked at */
    size_t n_bytes;
    size_t begin;       /* place in the data; set by open() */
    const void *source; /* the caller's own: where the content comes from */
};

enum status safetensors_stream_new(struct safetensors_stream **out, struct error *err);
void safetensors_stream_free(struct safetensors_stream *s); /* aborts; accepts NULL */

/* Borrows name and source until finish() or free(). Of t only type and shape count. ERR_FORMAT,
 * ERR_LIMIT: name or shape cannot stand in a file. */
enum status safetensors_stream_add(struct safetensors_stream *s, const char *name,
                                   const struct tensor *t, const void *source, struct error *err);

/* Fix the layout, make the temporary file, set the space aside, write the header. ERR_FORMAT: a name
 * was added twice. */
enum status safetensors_stream_open(struct safetensors_stream *s, const char *path,
                                    struct error *err);

/* After open(): the tensors in order of the file, and the size of the data. */
size_t safetensors_stream_count(const struct safetensors_stream *s);
const struct safetensors_slot *safetensors_stream_at(const struct safetensors_stream *s, size_t i);
size_t safetensors_stream_bytes(const struct safetensors_stream *s);

/* The slot that byte `offset` of the data (below safetensors_stream_bytes) lies in: its index. */
size_t safetensors_stream_find(const struct safetensors_stream *s, size_t offset);

/* n_bytes at `offset` of the data. What is never written is undefined. */
enum status safetensors_stream_write(const struct safetensors_stream *s, size_t offset,
                                     const void *data, size_t n_bytes, struct error *err);

/* must_last: wait for the disk, see file_out_commit(). */
enum status safetensors_stream_finish(struct safetensors_stream *s, bool must_last,
                                      struct error *err);

/* Remove the unfinished file, if there is one; the list of tensors stays. */
void safetensors_stream_abort(struct safetensors_stream *s);

#endif
