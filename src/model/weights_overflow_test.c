/* weights_overflow_test.c - what stays in host memory and what is uploaded: every matrix is the same after
 * it, wherever it is.
 *
 * The device is a stand-in whose memory is the host's, so that what arrived can be read. */
#include "model/weights_overflow.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/dense_quant.h"
#include "model/model_internal.h"
#include "model/model_testing.h"
#include "model/weights_upload.h"

enum { LAYERS = 4 };

static struct {
    size_t n_buffers, n_pinned, n_host;        /* held */
    size_t buffers_left, pins_left, host_left; /* until they fail */
} device;

static void *device_buffer_new(struct backend *be, size_t n_bytes)
{
    (void)be;
    if (device.buffers_left == 0) {
        return NULL;
    }
    device.buffers_left--;
    device.n_buffers++;
    return calloc(1, n_bytes);
}

static void device_buffer_free(struct backend *be, void *data)
{
    (void)be;
    device.n_buffers--;
    free(data);
}

static void device_upload(struct backend *be, void *dst, const void *host, size_t n_bytes,
                          struct pool *pool)
{
    (void)be;
    (void)pool;
    memcpy(dst, host, n_bytes);
}

static void device_write(struct backend *be, void *dst, const void *host, size_t n_bytes)
{
    (void)be;
    memcpy(dst, host, n_bytes);
}

static void *device_host_new(struct backend *be, size_t n_bytes)
{
    (void)be;
    if (device.host_left == 0) {
        return NULL;
    }
    device.host_left--;
    device.n_host++;
    return calloc(1, n_bytes);
}

static void device_host_free(struct backend *be, void *data)
{
    (void)be;
    device.n_host--;
    free(data);
}

static bool device_pin(struct backend *be, void *data, size_t n_bytes)
{
    (void)be;
    assert_non_null(data);
    assert_true(n_bytes > 0);
    if (device.pins_left == 0) {
        return false;
    }
    device.pins_left--;
    device.n_pinned++;
    return true;
}

static void device_unpin(struct backend *be, void *data)
{
    (void)be;
    assert_non_null(data);
    device.n_pinned--;
}

static enum status device_begin(struct backend *be, const struct step *step, struct error *err)
{
    (void)be;
    (void)step;
    return error_set(err, ERR_INTERNAL, "no step is expected");
}

static enum status device_experts_open(struct backend *be, struct expert_home *home,
                                       struct error *err)
{
    (void)be;
    (void)home;
    return error_set(err, ERR_INTERNAL, "no home is expected");
}

static const struct backend_ops ops = {.name = "stand-in",
                                       .buffer_new = device_buffer_new,
                                       .buffer_free = device_buffer_free,
                                       .write = device_write,
                                       .begin = device_begin,
                                       .host_new = device_host_new,
                                       .host_free = device_host_free,
                                       .experts_open = device_experts_open,
                                       .upload = device_upload,
                                       .host_pin = device_pin,
                                       .host_unpin = device_unpin};
static struct backend stand_in = {.ops = &ops};

static void open_fixture(struct test_model *t, const char *name, enum dense_quant quant)
{
    struct test_setup setup = {.compute = DTYPE_F32, .dense_quant = quant};
    char dir[512];

    fixture_path(dir, name, "");
    test_model_open(t, dir, &setup);
    memset(&device, 0, sizeof device);
    device.buffers_left = device.pins_left = device.host_left = SIZE_MAX;
}

static void same_matrix(const struct weight *got, const struct weight *want)
{
    float *a = calloc(want->n_in, sizeof *a), *b = calloc(want->n_in, sizeof *b);

    assert_non_null(a);
    assert_non_null(b);
    assert_int_equal(got->kind, want->kind);
    for (size_t row = 0; row < want->n_out; row++) {
        weight_row_f32(got, row, a);
        weight_row_f32(want, row, b);
        assert_memory_equal(a, b, want->n_in * sizeof *a);
    }
    free(a);
    free(b);
}

static void same_weights(const struct model_weights *got, const struct model *want)
{
    const struct model_spec *spec = &want->spec;

    for (size_t i = 0; i < spec->n_matrices; i++) {
        same_matrix(&got->matrices[i], &want->weights.matrices[i]);
    }
    for (size_t i = 0; i < spec->n_vectors; i++) {
        const struct spec_vector *v = &spec->vectors[i];
        size_t n = v->form == VECTOR_CONV ? v->n * v->taps : v->n;

        assert_memory_equal(got->vectors[i], want->weights.vectors[i], n * sizeof(float));
    }
}

/* The weights of t's checkpoint for the stand-in. */
static void load(struct model_weights *w, const struct test_model *t, const bool *stays)
{
    const struct weights_target to = {.be = &stand_in, .stays = stays};
    struct error err = {0};

    if (weights_load(w, &t->m->spec, t->ck, &to, cpu_backend_pool(t->cpu), NULL, NULL, &err) !=
        OK) {
        fail_msg("%s", err.text);
    }
    assert_null(w->passing);
}

static void upload(struct model_weights *w, const struct test_model *t)
{
    struct error err = {0};

    assert_int_equal(
        weights_upload(w, &t->m->spec, &stand_in, cpu_backend_pool(t->cpu), NULL, &err), OK);
    same_weights(w, t->m);
    assert_null(w->block);
    assert_null(w->int8_block);
}

static void nothing_is_held(void)
{
    assert_int_equal(device.n_buffers, 0);
    assert_int_equal(device.n_pinned, 0);
    assert_int_equal(device.n_host, 0);
}

/* Repacked, regrouped, mapped and int8 matrices; a head that is its embedding. */
static void everything_moves(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * N_FIXTURES; i++) {
        enum dense_quant quant = i % 2 ? DENSE_QUANT_INT8 : DENSE_QUANT_NONE;
        struct model_weights got;
        struct test_model want;
        struct error err = {0};

        open_fixture(&want, fixture_names[i / 2], quant);
        load(&got, &want, NULL);
        assert_int_equal(device.n_buffers, got.n_arenas);
        if (quant == DENSE_QUANT_INT8) {
            assert_int_equal(
                dense_quantise(&got, &want.m->spec, cpu_backend_pool(want.cpu), NULL, &err), OK);
        }
        upload(&got, &want);
        for (size_t a = 0; a < got.n_arenas; a++) {
            assert_null(got.arenas[a].base);
        }
        weights_release(&got);
        test_model_close(&want);
        nothing_is_held();
    }
}

/* Layers 1 and 3 overflow; of the embedding and then these layers `pins` can be pinned where they are, `copies` become
 * copies, and the rest is pageable. */
static void overflow_case(size_t pins, size_t copies)
{
    const bool may[LAYERS] = {false, true, false, true};
    struct offload_shape shape;
    struct model_weights w;
    struct test_model want;
    struct error err = {0};
    size_t n_pageable = 3 - pins - copies;
    struct log log = {.level = LOG_WARNING};
    char said[1024] = "";
    int pipes[2];

    assert_int_equal(pipe(pipes), 0);
    log.fd = pipes[1];
    open_fixture(&want, "tiny-qwen3_5-moe-gptq-int4", DENSE_QUANT_NONE);
    device.pins_left = pins;
    device.host_left = copies;
    load(&w, &want, may);
    assert_int_equal(weights_overflow(&shape, &w, &want.m->spec, may, &stand_in,
                                      cpu_backend_pool(want.cpu), &log, NULL, &err),
                     OK);
    close(pipes[1]);
    assert_true(read(pipes[0], said, sizeof said - 1) >= 0);
    close(pipes[0]);
    assert_int_equal(device.n_pinned, pins);
    assert_int_equal(device.n_host, copies);
    assert_int_equal(w.embedding_is_pinned, pins > 0);
    assert_int_equal(shape.n_layers, 2);
    assert_true((shape.is_pageable != NULL) == (n_pageable > 0));
    assert_true((strstr(said, "could be pinned in host memory") != NULL) == (n_pageable > 0));
    assert_true(n_pageable != 1 || strstr(said, "what 1 of 2 layers miss"));
    assert_true(n_pageable != 2 || strstr(said, "only 0 of "));
    assert_int_equal(shape.n_experts, w.arenas[1].n_experts);
    assert_int_equal(shape.hidden, want.m->spec.hidden);
    assert_int_equal(shape.block.n_bytes, w.arenas[1].block.n_bytes);
    upload(&w, &want);
    assert_non_null(w.embedding);
    assert_ptr_equal(w.matrices[want.m->spec.embed].data, w.embedding);
    for (size_t l = 0; l < LAYERS; l++) {
        const struct expert_arena *a = &w.arenas[l];

        assert_true(a->stays == may[l]);
        assert_true((a->base != NULL) == may[l]);
        if (may[l]) {
            assert_int_equal(a->home_layer, l / 2);
            assert_true(a->is_pageable == (l / 2 + n_pageable >= 2));
            assert_true(n_pageable == 0 || shape.is_pageable[l / 2] == a->is_pageable);
            assert_ptr_equal(shape.blocks[l / 2], a->base);
            assert_ptr_equal(w.matrices[a->expert0].data, a->base);
        }
    }
    weights_release(&w);
    test_model_close(&want);
    nothing_is_held();
}

static void some_layers_stay(void **state)
{
    (void)state;
    for (size_t pins = 0; pins <= 3; pins++) {
        for (size_t copies = pins == 0; pins + copies <= 3; copies++) {
            overflow_case(pins, copies);
        }
    }
}

/* What goes to the device anyway, or is read whole there. */
static void embeddings_that_go(void **state)
{
    const bool may[LAYERS] = {false, true, false, true};
    struct offload_shape shape;
    struct model_weights w;
    struct test_model t;
    struct error err = {0};
    matrix_slot head;
    void *block;

    (void)state;
    open_fixture(&t, "tiny-qwen3_5-moe-gptq-int4", DENSE_QUANT_NONE);
    head = t.m->spec.head;
    for (size_t is_tied = 0; is_tied < 2; is_tied++) {
        load(&w, &t, may);
        t.m->spec.head = is_tied ? t.m->spec.embed : head;
        block = w.block;
        if (!is_tied) { /* as if the table were in it */
            w.block = (void *)(uintptr_t)w.matrices[t.m->spec.embed].data;
        }
        assert_false(weights_embedding_may_stay(&w, &t.m->spec));
        assert_int_equal(
            weights_overflow(&shape, &w, &t.m->spec, may, &stand_in, NULL, NULL, NULL, &err), OK);
        assert_null(w.embedding);
        w.block = block;
        t.m->spec.head = head;
        upload(&w, &t);
        weights_release(&w);
    }
    test_model_close(&t);
    nothing_is_held();
}

/* The device's memory ends with each allocation in turn. */
static void no_device_memory(void **state)
{
    const struct weights_target to = {.be = &stand_in};
    struct test_model t;
    size_t n_failed = 0;

    (void)state;
    open_fixture(&t, "tiny-qwen3_5-moe-gptq-int4", DENSE_QUANT_NONE);
    for (enum status rc = ERR_NO_MEMORY; rc != OK; n_failed++) {
        struct error err = {0};
        struct model_weights w;

        device.buffers_left = n_failed;
        rc = weights_load(&w, &t.m->spec, t.ck, &to, NULL, NULL, NULL, &err);
        if (rc == OK) {
            rc = weights_upload(&w, &t.m->spec, &stand_in, NULL, NULL, &err);
        }
        assert_true(rc == OK || (rc == ERR_NO_MEMORY && strstr(err.text, "device memory")));
        weights_release(&w);
        nothing_is_held();
    }
    assert_int_equal(n_failed, LAYERS + 2 + 1); /* arenas, the block, what is mapped; none */
    test_model_close(&t);
}

static void expect_refusal(struct test_model *t, struct backend *be, enum status code,
                           const char *part)
{
    struct offload_shape shape;
    struct error err = {0};

    assert_int_equal(
        weights_overflow(&shape, &t->m->weights, &t->m->spec, NULL, be, NULL, NULL, NULL, &err),
        code);
    if (!strstr(err.text, part)) {
        fail_msg("'%s' is not in '%s'", part, err.text);
    }
}

static void refusals(void **state)
{
    const bool none[LAYERS] = {false};
    struct offload_shape shape;
    struct test_model t;
    struct error err;

    (void)state;
    open_fixture(&t, "tiny-qwen3_5-moe-gptq-int4", DENSE_QUANT_NONE);
    assert_int_equal(weights_overflow(&shape, &t.m->weights, &t.m->spec, none, &stand_in, NULL,
                                      NULL, NULL, &err),
                     OK);
    assert_int_equal(shape.n_layers, 0);
    expect_refusal(&t, t.cpu, ERR_UNSUPPORTED, "the cpu backend has no way for it");
    t.m->weights.arenas[2].block.shape.group /= 2;
    expect_refusal(&t, &stand_in, ERR_UNSUPPORTED,
                   "layer 2: its experts have another shape than those of layers before");
    t.m->weights.arenas[2].block.shape.group *= 2;
    device.pins_left = device.host_left = 0;
    expect_refusal(&t, &stand_in, ERR_NO_MEMORY, "the embedding's 0 MiB could not be pinned");
    test_model_close(&t);
    nothing_is_held();

    open_fixture(&t, "tiny-qwen3_5-moe", DENSE_QUANT_NONE);
    expect_refusal(&t, &stand_in, ERR_UNSUPPORTED, "layer 0: its experts are not quantised");
    test_model_close(&t);
    nothing_is_held();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_moves),   cmocka_unit_test(some_layers_stay),
        cmocka_unit_test(embeddings_that_go), cmocka_unit_test(no_device_memory),
        cmocka_unit_test(refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
