/* safetensors_header.h - the JSON header of a .safetensors file as a list of entries.
 *
 * Place: formats; used by safetensors.c (reading) and safetensors_write.c (type names).
 * Idea:  the header has one fixed shape, so a scanner that knows it needs no tree, no recursion and
 *        no hash table, sees duplicate fields that a general parser would swallow, and reads the
 *        120,000 tensors of a large quantised model in a few hundredths of a second. */
#ifndef FORMATS_SAFETENSORS_HEADER_H
#define FORMATS_SAFETENSORS_HEADER_H

#include <stddef.h>

#include "formats/safetensors.h"

struct safetensors_item {
    struct safetensors_entry entry; /* tensor.data is NULL, n_bytes = end - begin */
    size_t begin;                   /* offset from the start of the data */
};

struct safetensors_header {
    struct safetensors_item *items; /* in the order of the header */
    size_t n, cap;
    char *names; /* one block that all names lie in */
    size_t names_used;
    bool has_metadata;
};

/* Read text[0..len) (len > 0). Checks the grammar, UTF-8, field names, types and begin <= end; what
 * needs the file's size or the other tensors is the caller's. Errors name the tensor, or the byte of
 * the header. On failure *out is released. */
enum status safetensors_header_parse(struct safetensors_header *out, const char *text, size_t len,
                                     struct error *err);
void safetensors_header_release(struct safetensors_header *h); /* accepts a zeroed one */

/* "BF16" and so on; NULL for DTYPE_NONE. */
const char *safetensors_dtype_name(enum dtype t);

/* ERR_FORMAT unless name may stand in a file: 1..SAFETENSORS_NAME_BYTES_MAX bytes of valid UTF-8
 * without control characters (a name ends up in messages on terminals), not "__metadata__". */
enum status safetensors_check_name(struct str name, struct error *err);

#endif
