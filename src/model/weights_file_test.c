/* weights_file_test.c - experts that stay may lie in a file: the same blocks as in memory.
 *
 * The device is a stand-in whose memory is the host's, so that arenas which pass to it can be read. */
#include <stdlib.h>
#include <string.h>

#include "model/model_internal.h"
#include "model/model_testing.h"

enum { LAYERS = 4 };

static size_t n_buffers;

static void *device_buffer_new(struct backend *be, size_t n_bytes)
{
    (void)be;
    n_buffers++;
    return calloc(1, n_bytes);
}

static void device_buffer_free(struct backend *be, void *data)
{
    (void)be;
    n_buffers--;
    free(data);
}

static void device_write(struct backend *be, void *dst, const void *host, size_t n_bytes)
{
    (void)be;
    memcpy(dst, host, n_bytes);
}

static enum status device_begin(struct backend *be, const struct step *step, struct error *err)
{
    (void)be;
    (void)step;
    return error_set(err, ERR_INTERNAL, "no step is expected");
}

static const struct backend_ops ops = {.name = "stand-in",
                                       .buffer_new = device_buffer_new,
                                       .buffer_free = device_buffer_free,
                                       .write = device_write,
                                       .begin = device_begin};
static struct backend stand_in = {.ops = &ops};

static void open_fixture(struct test_model *t, const char *name)
{
    struct test_setup setup = {.compute = DTYPE_F32};
    char dir[512];

    fixture_path(dir, name, "");
    test_model_open(t, dir, &setup);
}

static enum status load(struct model_weights *w, const struct test_model *t,
                        const struct weights_target *to, struct error *err)
{
    return weights_load(w, &t->m->spec, t->ck, to, cpu_backend_pool(t->cpu), NULL, NULL, err);
}

/* Layers of in_file are in the file, on borders of their own; the others passed. The blocks are those of a model
 * in memory. */
static void expect_file(const char *fixture, const bool *in_file)
{
    const struct weights_target to = {
        .be = &stand_in, .stays = in_file, .all_stay = !in_file, .folder = "/tmp"};
    struct model_weights w;
    struct test_model t;
    struct error err = {0};
    size_t n_in_file = 0;

    open_fixture(&t, fixture);
    if (load(&w, &t, &to, &err) != OK) {
        fail_msg("%s", err.text);
    }
    for (size_t l = 0; l < LAYERS; l++) {
        const struct expert_arena *a = &w.arenas[l], *want = &t.m->weights.arenas[l];
        size_t n_bytes = a->block.n_bytes * a->n_experts;
        const void *got = w.matrices[a->expert0].data;

        assert_true(a->in_file == (!in_file || in_file[l]));
        assert_true(a->passes == !a->in_file);
        assert_memory_equal(got, want->base, n_bytes);
        if (a->in_file) {
            assert_ptr_equal(got, a->base);
            assert_ptr_equal(a->base, w.file.base + n_in_file * weights_file_bytes(1, n_bytes));
            n_in_file++;
        }
    }
    assert_int_equal(w.file.n_bytes, weights_file_bytes(n_in_file, w.arenas[0].block.n_bytes *
                                                                       w.arenas[0].n_experts));
    assert_int_equal(n_buffers, LAYERS - n_in_file);
    weights_release(&w);
    assert_null(w.file.base);
    test_model_close(&t);
}

static void experts_are_in_the_file(void **state)
{
    const bool some[LAYERS] = {false, true, false, true};

    (void)state;
    expect_file("tiny-qwen3_5-moe-gptq-int4", NULL);
    expect_file("tiny-qwen3_5-moe-gptq-int4-actorder", NULL);
    expect_file("tiny-qwen3_5-moe-gptq-int4", some);
}

/* Where none stay, or there is nothing to be packed, no file is made. */
static void nothing_for_a_file(void **state)
{
    static const char *const names[] = {"tiny-qwen3_5-moe-gptq-int4", "tiny-qwen3_5-moe"};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const struct weights_target to = {
            .be = &stand_in, .all_stay = i == 1, .folder = "/no such folder"};
        struct model_weights w;
        struct test_model t;

        open_fixture(&t, names[i]);
        assert_int_equal(load(&w, &t, &to, NULL), OK);
        assert_null(w.file.base);
        weights_release(&w);
        test_model_close(&t);
    }
    assert_int_equal(n_buffers, 0);
}

static void no_folder(void **state)
{
    const struct weights_target to = {
        .be = &stand_in, .all_stay = true, .folder = "/no such folder"};
    struct model_weights w;
    struct test_model t;
    struct error err = {0};

    (void)state;
    open_fixture(&t, "tiny-qwen3_5-moe-gptq-int4");
    assert_int_equal(load(&w, &t, &to, &err), ERR_IO);
    assert_non_null(strstr(err.text, "experts that overflow: cannot create a file of"));
    assert_non_null(strstr(err.text, "'/no such folder': No such file or directory"));
    weights_release(&w);
    test_model_close(&t);
}

static void sizes(void **state)
{
    (void)state;
    assert_int_equal(weights_file_bytes(0, 1), 0);
    assert_int_equal(weights_file_bytes(3, 1), 3 * FILE_MEMORY_ALIGN);
    assert_int_equal(weights_file_bytes(2, FILE_MEMORY_ALIGN), 2 * FILE_MEMORY_ALIGN);
    assert_int_equal(weights_file_bytes(SIZE_MAX, FILE_MEMORY_ALIGN), SIZE_MAX);
    assert_int_equal(weights_file_bytes(1, SIZE_MAX), SIZE_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_are_in_the_file),
        cmocka_unit_test(nothing_for_a_file),
        cmocka_unit_test(no_folder),
        cmocka_unit_test(sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
