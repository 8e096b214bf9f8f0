/* safetensors.h - reading and writing .safetensors files.
 *
 * Place:  formats. Layout: u64 little-endian header length, JSON header, data.
 * Checks: as the reference library does and a little more: header at most
 *         SAFETENSORS_HEADER_BYTES_MAX, '{' first, data_offsets in range, sorted they are contiguous
 *         and cover the data exactly (no gap, no overlap), dtype x shape = bytes, at most
 *         TENSOR_DIMS_MAX dimensions, unique names of printable UTF-8. Errors name the file, the
 *         tensor, the numbers. */
#ifndef FORMATS_SAFETENSORS_H
#define FORMATS_SAFETENSORS_H

#include "base/status.h"
#include "base/str.h"
#include "base/tensor.h"

enum {
    SAFETENSORS_HEADER_BYTES_MAX = 100 * 1000 * 1000, /* the reference library's limit */
    SAFETENSORS_TENSORS_MAX =
        1 << 20,                     /* per file; the largest known models have half of it in all */
    SAFETENSORS_NAME_BYTES_MAX = 512 /* names go into messages */
};

struct safetensors;

struct safetensors_entry {
    const char *name;     /* owned by the file object, NUL-terminated */
    struct tensor tensor; /* data points into the mapping, read-only; may be unaligned */
    size_t n_bytes;
};

enum status safetensors_open(struct safetensors **out, const char *path, struct error *err);
/* The same from n_bytes at data, borrowed until close(); name stands for the path in messages. */
enum status safetensors_open_memory(struct safetensors **out, const void *data, size_t n_bytes,
                                    const char *name, struct error *err);
void safetensors_close(struct safetensors *st); /* accepts NULL */
size_t safetensors_count(const struct safetensors *st);
const struct safetensors_entry *safetensors_at(const struct safetensors *st,
                                               size_t i); /* by file offset */
/* NULL when there is none. */
const struct safetensors_entry *safetensors_find(const struct safetensors *st, const char *name);

/* Writing: add() copies *t, and borrows name and the data that t->data points to until finish() or
 * free(). finish() writes path atomically (temporary file beside it, rename). Tensors are laid out by
 * descending alignment, then by name. The data begins at a multiple of 8 bytes, so a written tensor
 * is aligned when the file is mapped. */
struct safetensors_writer;
enum status safetensors_writer_new(struct safetensors_writer **out, struct error *err);
enum status safetensors_writer_add(struct safetensors_writer *w, const char *name,
                                   const struct tensor *t, struct error *err);
enum status safetensors_writer_finish(struct safetensors_writer *w, const char *path,
                                      struct error *err);
void safetensors_writer_free(struct safetensors_writer *w); /* accepts NULL */

#endif
