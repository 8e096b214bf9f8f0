/* file_memory.c - see file_memory.h.
 *
 * The kernel would read 128 KiB around each page that is missing, and more where it sees a sequence: with pieces
 * of a megabyte at random much of that is never used, so the mapping is marked as random, and whole pieces are
 * asked for instead. */
#include "base/file_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "base/size.h"

enum {
    LOOK_PAGES = 512
}; /* that are asked about, and asked for, at once: 2 MiB, the kernel's piece */

static const double GIB = 1073741824.0;

/* ---- the folder ---- */

static size_t file_size_limit(void)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY
               ? (size_t)limit.rlim_cur
               : SIZE_MAX;
}

static size_t free_bytes(const struct statfs *fs)
{
    size_t n;

    return size_mul(&n, (size_t)fs->f_bavail, (size_t)fs->f_frsize) ? n : SIZE_MAX;
}

enum status file_memory_room(size_t *out, const char *folder, struct error *err)
{
    struct statfs fs;
    struct stat st;

    *out = 0;
    if (stat(folder, &st) != 0 || statfs(folder, &fs) != 0) {
        return error_set(err, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "cannot use '%s': %s",
                         folder, strerror(errno));
    }
    if (!S_ISDIR(st.st_mode)) {
        return error_set(err, ERR_IO, "'%s' is not a folder", folder);
    }
    if (access(folder, W_OK | X_OK) != 0) {
        return error_set(err, ERR_IO, "cannot write to '%s': %s", folder, strerror(errno));
    }
    if (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC) {
        return error_set(err, ERR_UNSUPPORTED, "'%s' is in memory itself (%s), not on a disk",
                         folder, fs.f_type == TMPFS_MAGIC ? "tmpfs" : "ramfs");
    }
    *out = size_min(free_bytes(&fs), file_size_limit());
    return OK;
}

/* ---- making and unmaking ---- */

/* A name that is taken away at once, for file systems that know no file without one. */
static int open_named(const char *folder)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/spillway-XXXXXX", folder), fd;

    if (n < 0 || (size_t)n >= sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) {
        unlink(path);
    }
    return fd;
}

static int open_nameless(const char *folder)
{
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    return fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)
               ? open_named(folder)
               : fd;
}

/* A disk that is too small is not filled to find that out. */
static enum status set_aside(int fd, const char *folder, size_t n_bytes, struct error *err)
{
    size_t limit = file_size_limit();
    struct statfs fs = {0};
    int failed = fstatfs(fd, &fs) != 0 ? errno : 0;

    if (n_bytes > limit) { /* to try would end the process with SIGXFSZ */
        return error_set(err, ERR_IO,
                         "a file of %.2f GiB in '%s': files may have %.2f GiB (ulimit -f)",
                         (double)n_bytes / GIB, folder, (double)limit / GIB);
    }
    if (failed == 0 && n_bytes > free_bytes(&fs)) {
        failed = ENOSPC;
    }
    if (failed == 0) {
        do {
            failed = posix_fallocate(fd, 0, (off_t)n_bytes);
        } while (failed == EINTR);
    }
    return failed == 0 ? OK
                       : error_set(err, ERR_IO,
                                   "cannot set aside %.2f GiB in '%s', where %.2f GiB are free: %s",
                                   (double)n_bytes / GIB, folder, (double)free_bytes(&fs) / GIB,
                                   strerror(failed));
}

enum status file_memory_open(struct file_memory *out, const char *folder, size_t n_bytes,
                             struct error *err)
{
    enum status rc;
    void *base;
    int fd;

    *out = (struct file_memory){0};
    if (n_bytes == 0 || n_bytes > PTRDIFF_MAX) {
        return error_set(err, ERR_LIMIT, "a file of %zu bytes is not possible", n_bytes);
    }
    fd = open_nameless(folder);
    if (fd < 0) {
        return error_set(err, ERR_IO, "cannot create a file of %.2f GiB in '%s': %s",
                         (double)n_bytes / GIB, folder, strerror(errno));
    }
    rc = set_aside(fd, folder, n_bytes, err);
    if (rc != OK) {
        close(fd);
        return rc;
    }
    base = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        rc = error_set(err, errno == ENOMEM ? ERR_NO_MEMORY : ERR_IO,
                       "cannot map a file of %.2f GiB in '%s': %s", (double)n_bytes / GIB, folder,
                       strerror(errno));
        close(fd);
        return rc;
    }
    madvise(base, n_bytes, MADV_RANDOM); /* a wish */
    *out = (struct file_memory){.base = base, .n_bytes = n_bytes, .fd = fd};
    return OK;
}

void file_memory_close(struct file_memory *m)
{
    if (m->base) {
        munmap(m->base, m->n_bytes);
        close(m->fd);
    }
    *m = (struct file_memory){0};
}

/* ---- writing and reading ---- */

/* msync(MS_ASYNC) would do nothing: the kernel knows already which pages are dirty, and waits with them. */
enum status file_memory_flush(const struct file_memory *m, const void *at, size_t n_bytes,
                              bool must_end, struct error *err)
{
    off64_t from = (const uint8_t *)at - m->base;
    unsigned how = SYNC_FILE_RANGE_WRITE;

    if (must_end) {
        how |= SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WAIT_AFTER;
    }
    if (sync_file_range(m->fd, from, (off64_t)n_bytes, how) != 0 && errno != ENOSYS) {
        return error_set(err, ERR_IO, "cannot write %zu bytes at %lld of a file of %zu: %s",
                         n_bytes, (long long)from, m->n_bytes, strerror(errno));
    }
    return OK;
}

void memory_will_need(const void *at, size_t n_bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = (uintptr_t)at / page * page;
    size_t n_pages = n_bytes > 0 ? ((uintptr_t)at + n_bytes - 1) / page - from / page + 1 : 0;

    while (n_pages > 0) {
        unsigned char is_there[LOOK_PAGES];
        size_t n = size_min(n_pages, LOOK_PAGES), i = 0;

        /* madvise would look every page up in the file's cache; this looks at the page tables first. */
        if (mincore((void *)from, n * page, is_there) == 0) {
            while (i < n && is_there[i] & 1) {
                i++;
            }
        }
        if (i < n) {
            madvise((void *)(from + i * page), (n - i) * page, MADV_WILLNEED);
        }
        from += n * page;
        n_pages -= n;
    }
}
