/* file_map.c - mapping and reading whole files. See file_map.h. */
#include "base/file_map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"

/* Opens a regular file; *n_bytes is its size. On failure nothing stays open. */
static enum status open_regular(int *out_fd, size_t *n_bytes, const char *path, struct error *err)
{
    enum status rc;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        return error_set(err, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "cannot open '%s': %s",
                         path, strerror(errno));
    }
    if (fstat(fd, &st) != 0) {
        rc = error_set(err, ERR_IO, "cannot stat '%s': %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        rc = error_set(err, ERR_IO, "'%s' is not a regular file", path);
    } else {
        *n_bytes = (size_t)st.st_size;
        *out_fd = fd;
        return OK;
    }
    close(fd);
    return rc;
}

enum status file_map_open(struct file_map *map, const char *path, struct error *err)
{
    enum status rc;
    size_t n_bytes = 0;
    int fd = -1;

    *map = (struct file_map){0};
    rc = open_regular(&fd, &n_bytes, path, err);
    if (rc != OK) {
        return rc;
    }
    if (n_bytes > 0) {
        void *p = mmap(NULL, n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            rc = error_set(err, errno == ENOMEM ? ERR_NO_MEMORY : ERR_IO,
                           "cannot map '%s' (%zu bytes): %s", path, n_bytes, strerror(errno));
        } else {
            map->data = p;
            map->n_bytes = n_bytes;
        }
    }
    close(fd);
    return rc;
}

void file_map_close(struct file_map *map)
{
    if (map->data) {
        munmap((void *)(uintptr_t)map->data, map->n_bytes);
    }
    *map = (struct file_map){0};
}

enum status file_read(char **out, size_t *n_bytes, const char *path, size_t bytes_max,
                      struct error *err)
{
    enum { CHUNK_BYTES = 1 << 16 };
    struct buf content;
    enum status rc;
    size_t size = 0;
    int fd = -1;

    *out = NULL;
    *n_bytes = 0;
    rc = open_regular(&fd, &size, path, err);
    if (rc != OK) {
        return rc;
    }
    buf_init(&content);
    if (size > bytes_max) {
        rc = error_set(err, ERR_LIMIT, "'%s' has %zu bytes, more than the limit of %zu", path, size,
                       bytes_max);
    }
    while (rc == OK) { /* a file may grow while it is read: the limit holds all the same */
        ssize_t got;
        if (!buf_reserve(&content, CHUNK_BYTES)) {
            rc = error_set(err, ERR_NO_MEMORY, "cannot hold '%s' (%zu bytes)", path, size);
            break;
        }
        got = read(fd, content.data + content.len, CHUNK_BYTES);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            rc = error_set(err, ERR_IO, "cannot read '%s': %s", path, strerror(errno));
        } else if (got == 0) {
            break;
        } else {
            content.len += (size_t)got;
            if (content.len > bytes_max) {
                rc = error_set(err, ERR_LIMIT, "'%s' passes the limit of %zu bytes", path,
                               bytes_max);
            }
        }
    }
    close(fd);
    if (rc == OK) {
        *n_bytes = content.len;
        content.data[content.len] = '\0';
        *out = buf_take(&content);
    }
    buf_release(&content);
    return rc;
}
