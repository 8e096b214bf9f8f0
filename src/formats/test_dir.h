/* test_dir.h - temporary folders, files and traps for the tests of this room.
 *
 * Place: formats, tests only. Everything fails the running test on the spot; nothing needs a check. */
#ifndef FORMATS_TEST_DIR_H
#define FORMATS_TEST_DIR_H

#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/status.h"

struct test_dir {
    char path[64];
    char log_path[96];
    struct log log; /* writes into log_path */
};

static inline void test_dir_open(struct test_dir *d)
{
    snprintf(d->path, sizeof d->path, "/tmp/formats_test_XXXXXX");
    assert_non_null(mkdtemp(d->path));
    snprintf(d->log_path, sizeof d->log_path, "%s.log", d->path);
    d->log.fd = open(d->log_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    d->log.level = LOG_DEBUG;
    d->log.is_json = false;
    assert_true(d->log.fd >= 0);
}

static inline int test_remove_one(const char *path, const struct stat *st, int kind,
                                  struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static inline void test_dir_close(struct test_dir *d)
{
    close(d->log.fd);
    unlink(d->log_path);
    assert_int_equal(nftw(d->path, test_remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

/* The path of a file in the folder; valid until the call after the next. */
static inline const char *test_path(const struct test_dir *d, const char *name)
{
    static char slots[2][1024];
    static unsigned turn;
    char *out = slots[turn++ % 2];

    snprintf(out, sizeof slots[0], "%s/%s", d->path, name);
    return out;
}

static inline void test_write(const struct test_dir *d, const char *name, const void *data,
                              size_t n)
{
    FILE *f = fopen(test_path(d, name), "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline void test_write_text(const struct test_dir *d, const char *name, const char *text)
{
    test_write(d, name, text, strlen(text));
}

static inline void test_mkdir(const struct test_dir *d, const char *name)
{
    assert_int_equal(mkdir(test_path(d, name), 0700), 0);
}

/* Whether some line of the log has this text. Clears the log. */
static inline int test_log_has(struct test_dir *d, const char *text)
{
    static char content[1 << 16];
    ssize_t n = pread(d->log.fd, content, sizeof content - 1, 0);

    assert_true(n >= 0);
    content[n] = '\0';
    assert_int_equal(ftruncate(d->log.fd, 0), 0);
    assert_int_equal(lseek(d->log.fd, 0, SEEK_SET), 0);
    return strstr(content, text) != NULL;
}

/* The text of an error must name what failed. */
static inline void test_error_has(const struct error *err, const char *text)
{
    if (!strstr(err->text, text)) {
        fail_msg("'%s' is not in the error text '%s'", text, err->text);
    }
}

/* n bytes that end at an unmapped page, so that reading past them traps. */
struct test_trap {
    unsigned char *data;
    void *map;
    size_t map_bytes;
};

static inline void test_trap_open(struct test_trap *t, const void *data, size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (n + page - 1) / page * page;

    t->map_bytes = body + page;
    t->map = mmap(NULL, t->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(t->map, MAP_FAILED);
    assert_int_equal(mprotect((char *)t->map + body, page, PROT_NONE), 0);
    t->data = (unsigned char *)t->map + body - n;
    if (n > 0) {
        memcpy(t->data, data, n);
    }
}

static inline void test_trap_close(struct test_trap *t)
{
    munmap(t->map, t->map_bytes);
}

/* A small deterministic generator (xorshift64*). */
static inline uint64_t test_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dULL;
}

#endif
