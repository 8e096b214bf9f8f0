/* safetensors_stream_test.c - files written piece by piece, and what stays after a failure. */
#include "formats/test_dir.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>

#include "base/file_out.h"
#include "formats/safetensors.h"
#include "formats/safetensors_stream.h"

enum { N_VALUES = 1000 };

static size_t count_files(const struct test_dir *d)
{
    DIR *dir = opendir(d->path);
    struct dirent *e;
    size_t n = 0;

    assert_non_null(dir);
    while ((e = readdir(dir)) != NULL) {
        n += e->d_name[0] != '.';
    }
    closedir(dir);
    return n;
}

static void add(struct safetensors_stream *s, const char *name, enum dtype t, size_t n,
                const void *source)
{
    struct tensor shape = {NULL, t, 1, {n}};
    struct error err = {0};

    if (safetensors_stream_add(s, name, &shape, source, &err) != OK) {
        fail_msg("%s", err.text);
    }
}

/* Pieces of odd size, last first, across the borders of tensors: the file reads back the same. */
static void test_pieces(void **state)
{
    struct test_dir d;
    struct error err = {0};
    struct safetensors_stream *s;
    struct safetensors *file;
    uint16_t half[N_VALUES];
    float whole[N_VALUES];
    unsigned char all[sizeof half + sizeof whole];
    int tag = 0;

    (void)state;
    test_dir_open(&d);
    for (size_t i = 0; i < N_VALUES; i++) {
        half[i] = (uint16_t)(i * 7);
        whole[i] = (float)i * 0.5f;
    }
    memcpy(all, whole, sizeof whole);
    memcpy(all + sizeof whole, half, sizeof half);
    assert_int_equal(safetensors_stream_new(&s, &err), OK);
    add(s, "a.half", DTYPE_BF16, N_VALUES, &tag);
    add(s, "b.empty", DTYPE_F32, 0, NULL);
    add(s, "c.whole", DTYPE_F32, N_VALUES, NULL);
    assert_int_equal(safetensors_stream_open(s, test_path(&d, "x.safetensors"), &err), OK);
    assert_int_equal(safetensors_stream_bytes(s), sizeof all);
    assert_int_equal(safetensors_stream_count(s), 3);
    assert_string_equal(safetensors_stream_at(s, safetensors_stream_find(s, 0))->name, "c.whole");
    assert_string_equal(
        safetensors_stream_at(s, safetensors_stream_find(s, sizeof whole - 1))->name, "c.whole");
    assert_ptr_equal(safetensors_stream_at(s, safetensors_stream_find(s, sizeof whole))->source,
                     &tag);
    for (size_t end = sizeof all; end > 0;) {
        size_t n = end > 333 ? 333 : end;

        end -= n;
        assert_int_equal(safetensors_stream_write(s, end, all + end, n, &err), OK);
    }
    assert_int_equal(access(test_path(&d, "x.safetensors"), F_OK), -1);
    assert_int_equal(safetensors_stream_finish(s, false, &err), OK);
    safetensors_stream_free(s);
    assert_int_equal(count_files(&d), 1);
    assert_int_equal(safetensors_open(&file, test_path(&d, "x.safetensors"), &err), OK);
    assert_memory_equal(safetensors_find(file, "a.half")->tensor.data, half, sizeof half);
    assert_memory_equal(safetensors_find(file, "c.whole")->tensor.data, whole, sizeof whole);
    assert_int_equal(safetensors_find(file, "b.empty")->n_bytes, 0);
    safetensors_close(file);
    test_dir_close(&d);
}

static void test_abort_leaves_nothing(void **state)
{
    struct test_dir d;
    struct error err = {0};
    struct safetensors_stream *s;

    (void)state;
    test_dir_open(&d);
    assert_int_equal(safetensors_stream_new(&s, &err), OK);
    add(s, "a", DTYPE_F32, N_VALUES, NULL);
    assert_int_equal(safetensors_stream_open(s, test_path(&d, "x.safetensors"), &err), OK);
    assert_int_equal(count_files(&d), 1);
    safetensors_stream_abort(s);
    assert_int_equal(count_files(&d), 0);
    safetensors_stream_abort(s);
    assert_int_equal(safetensors_stream_open(s, test_path(&d, "x.safetensors"), &err), OK);
    safetensors_stream_free(s);
    assert_int_equal(count_files(&d), 0);
    safetensors_stream_free(NULL);
    test_dir_close(&d);
}

/* A limit on file sizes stands for a full disk: the same calls fail. */
static void test_full_disk(void **state)
{
    struct test_dir d;
    struct error err = {0};
    struct safetensors_stream *s;
    struct rlimit old, small = {.rlim_cur = 4096};
    struct file_out f;
    char block[8192] = {0};

    (void)state;
    test_dir_open(&d);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);

    assert_int_equal(safetensors_stream_new(&s, &err), OK);
    add(s, "a", DTYPE_F32, 1 << 20, NULL);
    assert_int_equal(safetensors_stream_open(s, test_path(&d, "x.safetensors"), &err), ERR_IO);
    test_error_has(&err, "x.safetensors");
    test_error_has(&err, "4194"); /* the bytes that were wanted */
    assert_int_equal(count_files(&d), 0);
    safetensors_stream_free(s);

    assert_int_equal(file_out_open(&f, test_path(&d, "y"), &err), OK);
    assert_int_equal(file_out_write(&f, 0, block, 4000, &err), OK);
    assert_int_equal(file_out_write(&f, 4000, block, sizeof block, &err), ERR_IO);
    test_error_has(&err, "8096 bytes at 4096 of");
    file_out_abort(&f);
    file_out_abort(&f);
    assert_int_equal(file_out_save(test_path(&d, "y"), block, sizeof block, true, &err), ERR_IO);
    assert_int_equal(count_files(&d), 0);

    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(file_out_save(test_path(&d, "y"), block, sizeof block, true, &err), OK);
    assert_int_equal(count_files(&d), 1);
    test_dir_close(&d);
}

static void test_no_folder(void **state)
{
    struct error err = {0};
    struct file_out f;

    (void)state;
    assert_int_equal(file_out_open(&f, "/no/such/folder/x", &err), ERR_IO);
    test_error_has(&err, "/no/such/folder/x");
    file_out_abort(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_abort_leaves_nothing),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_no_folder),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
