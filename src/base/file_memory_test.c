/* file_memory_test.c - memory in a file keeps what is written, and each way to refuse it says why. */
#include "base/file_memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 3 << 20, PIECES = 5 };

static char folder[] = "/var/tmp/spillway-file-memory-XXXXXX";

static void opened(struct file_memory *m, size_t n_bytes)
{
    struct error err = {0};

    if (file_memory_open(m, folder, n_bytes, &err) != OK) {
        fail_msg("%s", err.text);
    }
}

static size_t files_in_folder(void)
{
    DIR *d = opendir(folder);
    size_t n = 0;

    assert_non_null(d);
    for (const struct dirent *e = readdir(d); e; e = readdir(d)) {
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    }
    closedir(d);
    return n;
}

static uint32_t pattern(size_t i)
{
    return (uint32_t)i * 2654435761u;
}

/* Written piece by piece as a loader does it, thrown out of memory, asked for and read. */
static void test_round_trip(void **state)
{
    struct file_memory m;
    struct error err = {0};
    uint32_t *words;

    (void)state;
    opened(&m, (size_t)PIECES * PIECE);
    assert_int_equal((uintptr_t)m.base % 4096, 0);
    assert_int_equal(files_in_folder(), 0);
    words = (uint32_t *)(void *)m.base;
    for (size_t p = 0; p < PIECES; p++) {
        for (size_t i = p * PIECE / 4; i < (p + 1) * PIECE / 4; i++) {
            assert_int_equal(words[i], 0);
            words[i] = pattern(i);
        }
        assert_int_equal(file_memory_flush(&m, m.base + p * PIECE, PIECE, false, &err), OK);
        if (p > 0) {
            assert_int_equal(file_memory_flush(&m, m.base + (p - 1) * PIECE, PIECE, true, &err),
                             OK);
        }
    }
    assert_int_equal(file_memory_flush(&m, m.base, m.n_bytes, true, &err), OK);
    assert_int_equal(madvise(m.base, m.n_bytes, MADV_DONTNEED), 0);
    assert_int_equal(posix_fadvise(m.fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    for (size_t p = PIECES; p-- > 0;) {
        memory_will_need(m.base + p * PIECE + 5, PIECE - 10);
        for (size_t i = p * PIECE / 4; i < (p + 1) * PIECE / 4; i++) {
            assert_int_equal(words[i], pattern(i));
        }
    }
    file_memory_close(&m);
    assert_null(m.base);
    file_memory_close(&m);
}

/* Any memory may be asked for, also none and pieces that end within a page. */
static void test_will_need(void **state)
{
    enum { BYTES = 5 << 20 };
    uint8_t *own = calloc(1, BYTES);

    (void)state;
    assert_non_null(own);
    memory_will_need(own, 0);
    memory_will_need(own, 1);
    memory_will_need(own + 4095, 2);
    memory_will_need(own + 1, BYTES - 1);
    free(own);
}

static void refused(const char *where, size_t n_bytes, const char *part, const char *another)
{
    struct file_memory m;
    struct error err = {0};

    assert_int_not_equal(file_memory_open(&m, where, n_bytes, &err), OK);
    assert_null(m.base);
    if (!strstr(err.text, part) || !strstr(err.text, another)) {
        fail_msg("'%s' or '%s' is not in '%s'", part, another, err.text);
    }
    print_message("%s\n", err.text);
    file_memory_close(&m);
}

static void test_full(void **state)
{
    struct rlimit before, small;
    size_t room, less;
    enum status rc;

    (void)state;
    rc = file_memory_room(&room, folder, NULL);
    if (rc == ERR_UNSUPPORTED) { /* a machine without a disk */
        skip();
    }
    assert_int_equal(rc, OK);
    assert_true(room > 0);
    refused(folder, (size_t)1 << 50, "1048576.00 GiB", "No space left");
    refused(folder, 0, "0 bytes", "not possible");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 1 << 20;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(file_memory_room(&less, folder, NULL), OK);
    assert_int_equal(less, 1 << 20);
    refused(folder, PIECE, "(ulimit -f)", folder);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(files_in_folder(), 0);
}

static void no_room(const char *where, enum status code, const char *part)
{
    struct error err = {0};
    size_t room = 1;

    assert_int_equal(file_memory_room(&room, where, &err), code);
    assert_int_equal(room, 0);
    if (!strstr(err.text, part) || !strstr(err.text, where)) {
        fail_msg("'%s' or '%s' is not in '%s'", part, where, err.text);
    }
    print_message("%s\n", err.text);
}

static void test_folders(void **state)
{
    char missing[64], file[64];
    struct stat st;
    int fd;

    (void)state;
    snprintf(missing, sizeof missing, "%s/missing", folder);
    snprintf(file, sizeof file, "%s/file", folder);
    fd = open(file, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    close(fd);
    no_room(missing, ERR_NOT_FOUND, "No such file");
    no_room(file, ERR_IO, "is not a folder");
    unlink(file);
    refused(missing, PIECE, "cannot create a file of", missing);
    if (geteuid() != 0) { /* who may write everywhere is not refused */
        assert_int_equal(chmod(folder, 0500), 0);
        no_room(folder, ERR_IO, "cannot write to");
        refused(folder, PIECE, "Permission denied", folder);
        assert_int_equal(chmod(folder, 0700), 0);
    }
    if (stat("/dev/shm", &st) == 0 && access("/dev/shm", W_OK) == 0) {
        no_room("/dev/shm", ERR_UNSUPPORTED, "is in memory itself (tmpfs)");
    }
}

static int make(void **state)
{
    (void)state;
    if (mkdtemp(folder)) {
        return 0;
    }
    snprintf(folder, sizeof folder, "/tmp/spillway-file-memory-XXXXXX"); /* there is no /var/tmp */
    return mkdtemp(folder) ? 0 : -1;
}

static int unmake(void **state)
{
    (void)state;
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_will_need),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_folders),
    };

    return cmocka_run_group_tests(tests, make, unmake);
}
