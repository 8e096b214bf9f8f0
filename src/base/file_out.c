/* file_out.c - see file_out.h. */
#include "base/file_out.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"

static void forget(struct file_out *f)
{
    free(f->path);
    free(f->temporary);
    *f = (struct file_out){.fd = -1};
}

enum status file_out_open(struct file_out *f, const char *path, struct error *err)
{
    struct buf name;
    enum status rc;

    *f = (struct file_out){.fd = -1};
    buf_init(&name);
    buf_appendf(&name, "%s.tmp-%ld", path, (long)getpid());
    f->temporary = buf_take(&name);
    buf_release(&name);
    f->path = strdup(path);
    if (!f->temporary || !f->path) {
        forget(f);
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the name of '%s'", path);
    }
    f->fd = open(f->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f->fd < 0) {
        rc = error_set(err, ERR_IO, "cannot create '%s': %s", f->temporary, strerror(errno));
        forget(f);
        return rc;
    }
    return OK;
}

enum status file_out_reserve(struct file_out *f, size_t n_bytes, struct error *err)
{
    int rc;

    do {
        rc = n_bytes > 0 ? fallocate(f->fd, 0, 0, (off_t)n_bytes) : 0;
    } while (rc != 0 && errno == EINTR);
    if (rc != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
        return error_set(err, ERR_IO, "cannot set aside %zu bytes for '%s': %s", n_bytes, f->path,
                         strerror(errno));
    }
    return OK;
}

enum status file_out_write(const struct file_out *f, size_t offset, const void *data,
                           size_t n_bytes, struct error *err)
{
    const char *p = data;
    size_t done = 0;

    while (done < n_bytes) {
        ssize_t n = pwrite(f->fd, p + done, n_bytes - done, (off_t)(offset + done));

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return error_set(err, ERR_IO, "cannot write %zu bytes at %zu of '%s': %s",
                             n_bytes - done, offset + done, f->path,
                             n < 0 ? strerror(errno) : "nothing was written");
        }
        done += (size_t)n;
    }
    return OK;
}

enum status file_out_commit(struct file_out *f, bool must_last, struct error *err)
{
    enum status rc = OK;

    if (must_last && fsync(f->fd) != 0) {
        rc = error_set(err, ERR_IO, "cannot flush '%s': %s", f->path, strerror(errno));
    }
    if (close(f->fd) != 0 && rc == OK) {
        rc = error_set(err, ERR_IO, "cannot close '%s': %s", f->path, strerror(errno));
    }
    f->fd = -1;
    if (rc == OK && rename(f->temporary, f->path) != 0) {
        rc = error_set(err, ERR_IO, "cannot rename '%s' to '%s': %s", f->temporary, f->path,
                       strerror(errno));
    }
    if (rc != OK) {
        unlink(f->temporary);
    }
    forget(f);
    return rc;
}

void file_out_abort(struct file_out *f)
{
    if (f->path) {
        close(f->fd);
        unlink(f->temporary);
        forget(f);
    }
}

enum status file_out_save(const char *path, const void *data, size_t n_bytes, bool must_last,
                          struct error *err)
{
    struct file_out f;
    enum status rc = file_out_open(&f, path, err);

    if (rc == OK) {
        rc = file_out_write(&f, 0, data, n_bytes, err);
    }
    if (rc == OK) {
        rc = file_out_commit(&f, must_last, err);
    } else {
        file_out_abort(&f);
    }
    return rc;
}
