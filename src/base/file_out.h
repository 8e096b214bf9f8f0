/* file_out.h - a new file that appears whole or not at all.
 *
 * Place: base. Bytes go to a temporary file beside the target ("PATH.tmp-PID"); commit renames it over
 *        the target, abort removes it, so a reader never sees half a file and a failed write leaves
 *        nothing behind.
 * Thread: file_out_write() on one file may run in several threads; the rest may not. */
#ifndef BASE_FILE_OUT_H
#define BASE_FILE_OUT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct file_out {
    char *path, *temporary; /* owned; NULL when nothing is open */
    int fd;
};

/* On failure *f holds nothing. ERR_IO names the temporary file. */
enum status file_out_open(struct file_out *f, const char *path, struct error *err);

/* Set n_bytes of disk space aside, so that a full disk is noticed before the writing starts. A file
 * system that cannot do that is no error. */
enum status file_out_reserve(struct file_out *f, size_t n_bytes, struct error *err);

/* n_bytes at offset. ERR_IO names the file, the place and the reason. */
enum status file_out_write(const struct file_out *f, size_t offset, const void *data,
                           size_t n_bytes, struct error *err);

/* Rename to the target. must_last: first wait until the bytes are on the disk, so that they survive
 * a power cut. *f holds nothing afterwards; on failure the temporary file is gone. */
enum status file_out_commit(struct file_out *f, bool must_last, struct error *err);

void file_out_abort(struct file_out *f); /* accepts a zeroed or committed one */

/* All of it in one call. */
enum status file_out_save(const char *path, const void *data, size_t n_bytes, bool must_last,
                          struct error *err);

#endif
