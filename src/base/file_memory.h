/* file_memory.h - memory that lies in a file: tables that need not all fit the machine's memory.
 *
 * Place: base. A file without a name in a folder of the caller's choice, mapped; it is gone when it is closed,
 *        or when the process ends, however that happens.
 * Cost:  what is not in the page cache is read from the disk when it is touched, page by page, so whoever knows
 *        what comes says so (memory_will_need). What was written must reach the disk before its pages can be
 *        given to others: see file_memory_flush.
 * Disk:  all of its space is set aside when it is made, so that a full disk is an error then. A disk that fails
 *        later raises SIGBUS, as with any mapped file (file_map.h). */
#ifndef BASE_FILE_MEMORY_H
#define BASE_FILE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { FILE_MEMORY_ALIGN = 64 << 10 }; /* for pieces of one: whole pages everywhere */

struct file_memory {
    uint8_t *base; /* NULL: none */
    size_t n_bytes;
    int fd;
};

/* Bytes that a file in the folder may have: free space, and the limit of file sizes (ulimit -f). ERR_NOT_FOUND,
 * ERR_IO (no folder, or it cannot be written to), ERR_UNSUPPORTED: it is in memory itself (tmpfs). */
enum status file_memory_room(size_t *out, const char *folder, struct error *err);

/* n_bytes of zeros. ERR_IO names the folder, what was wanted and what is free. On failure *out holds nothing.
 * That the folder is on a disk is for file_memory_room() to find out. */
enum status file_memory_open(struct file_memory *out, const char *folder, size_t n_bytes,
                             struct error *err);
void file_memory_close(struct file_memory *m); /* accepts a zeroed one; zeroes it */

/* [at, at + n_bytes) was written and is on its way to the disk; must_end: it has arrived, and its pages may go.
 * ERR_IO: the disk refused. */
enum status file_memory_flush(const struct file_memory *m, const void *at, size_t n_bytes,
                              bool must_end, struct error *err);

/* Will be read soon: what of it is in no memory is asked for, without waiting. For any mapping; where all is
 * there it costs about as much as reading a few lines of it. */
void memory_will_need(const void *at, size_t n_bytes);

#endif
