/* file_map.h - a whole file, mapped read-only.
 *
 * Place: base. The mapping is private and read-only; a file that is cut while mapped raises SIGBUS,
 *        which cli/ turns into exit code 70. */
#ifndef BASE_FILE_MAP_H
#define BASE_FILE_MAP_H

#include <stddef.h>

#include "base/status.h"

struct file_map {
    const unsigned char *data; /* NULL when the file is empty */
    size_t n_bytes;
};

enum status file_map_open(struct file_map *map, const char *path, struct error *err);
void file_map_close(struct file_map *map); /* accepts a zeroed map; zeroes it */

/* Read a whole file into malloc'd memory with a terminating NUL; at most bytes_max bytes. */
enum status file_read(char **out, size_t *n_bytes, const char *path, size_t bytes_max,
                      struct error *err);

#endif
