/* weights_overflow_test.c - what stays in host memory and what is uploaded: every matrix is the same after
 * it, wherever it is.
 *
 * The device is a stand-in whose memory is the host's, so that what arrived can be read. */
#include "model/weights_overflow.h"

#include <stdlib.h>
#include <string.h>

#include "model/model_internal.h"
#include "model/model_testing.h"
#include "model/weights_upload.h"

enum { LAYERS = 4 };

static struct {
    size_t n_buffers, n_pinned, n_host; /* held */
    size_t pins_left, host_left;        /* until they fail */
    size_t uploaded;                    /* bytes */
} device;

static void *device_buffer_new(struct backend *be, size_t n_bytes)
{
    (void)be;
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
    assert_non_null(pool);
    device.uploaded += n_bytes;
    memcpy(dst, host, n_bytes);
}

static void device_write(struct backend *be, void *dst, const void *host, size_t n_bytes)
{
    (void)be;
    device.uploaded += n_bytes;
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
    device.pins_left = device.host_left = SIZE_MAX;
}

static void close_and_check(struct test_model *t)
{
    test_model_close(t);
    assert_int_equal(device.n_buffers, 0);
    assert_int_equal(device.n_pinned, 0);
    assert_int_equal(device.n_host, 0);
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

static void same_weights(const struct model *got, const struct model *want)
{
    const struct model_spec *spec = &want->spec;

    for (size_t i = 0; i < spec->n_matrices; i++) {
        same_matrix(&got->weights.matrices[i], &want->weights.matrices[i]);
    }
    for (size_t i = 0; i < spec->n_vectors; i++) {
        const struct spec_vector *v = &spec->vectors[i];
        size_t n = v->form == VECTOR_CONV ? v->n * v->taps : v->n;

        assert_memory_equal(got->weights.vectors[i], want->weights.vectors[i], n * sizeof(float));
    }
}

static enum status upload(struct test_model *t, struct error *err)
{
    return weights_upload(&t->m->weights, &t->m->spec, &stand_in, cpu_backend_pool(t->cpu), NULL,
                          err);
}

/* Repacked, regrouped, mapped and int8 matrices; a head that is its embedding. */
static void everything_moves(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * N_FIXTURES; i++) {
        enum dense_quant quant = i % 2 ? DENSE_QUANT_INT8 : DENSE_QUANT_NONE;
        struct test_model want, got;
        struct error err = {0};

        open_fixture(&want, fixture_names[i / 2], quant);
        open_fixture(&got, fixture_names[i / 2], quant);
        assert_int_equal(upload(&got, &err), OK);
        same_weights(got.m, want.m);
        assert_null(got.m->weights.block);
        assert_null(got.m->weights.int8_block);
        for (size_t a = 0; a < got.m->weights.n_arenas; a++) {
            assert_null(got.m->weights.arenas[a].base);
        }
        close_and_check(&got);
        test_model_close(&want);
    }
}

/* Layers 1 and 3 overflow; `pins` of them can be pinned where they are, the others become copies. */
static void overflow_case(size_t pins)
{
    const bool may[LAYERS] = {false, true, false, true};
    struct test_model want, got;
    struct offload_shape shape;
    struct error err = {0};
    const struct model_weights *w;

    open_fixture(&want, "tiny-qwen3_5-moe-gptq-int4", DENSE_QUANT_NONE);
    open_fixture(&got, "tiny-qwen3_5-moe-gptq-int4", DENSE_QUANT_NONE);
    device.pins_left = pins;
    w = &got.m->weights;
    assert_int_equal(
        weights_overflow(&shape, &got.m->weights, &got.m->spec, may, &stand_in, NULL, &err), OK);
    assert_int_equal(device.n_pinned, pins);
    assert_int_equal(device.n_host, 2 - pins);
    assert_int_equal(shape.n_layers, 2);
    assert_int_equal(shape.n_experts, w->arenas[1].n_experts);
    assert_int_equal(shape.hidden, got.m->spec.hidden);
    assert_int_equal(shape.block.n_bytes, w->arenas[1].block.n_bytes);
    assert_int_equal(upload(&got, &err), OK);
    same_weights(got.m, want.m);
    for (size_t l = 0; l < LAYERS; l++) {
        const struct expert_arena *a = &w->arenas[l];

        assert_true(a->stays == may[l]);
        assert_true((a->base != NULL) == may[l]);
        if (may[l]) {
            assert_int_equal(a->home_layer, l / 2);
            assert_ptr_equal(shape.blocks[l / 2], a->base);
            assert_ptr_equal(w->matrices[a->expert0].data, a->base);
        }
    }
    close_and_check(&got);
    test_model_close(&want);
}

static void some_layers_stay(void **state)
{
    (void)state;
    overflow_case(2);
    overflow_case(1);
    overflow_case(0);
}

static void expect_refusal(struct test_model *t, struct backend *be, enum status code,
                           const char *part)
{
    struct offload_shape shape;
    struct error err = {0};

    assert_int_equal(weights_overflow(&shape, &t->m->weights, &t->m->spec, NULL, be, NULL, &err),
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
    assert_int_equal(
        weights_overflow(&shape, &t.m->weights, &t.m->spec, none, &stand_in, NULL, &err), OK);
    assert_int_equal(shape.n_layers, 0);
    expect_refusal(&t, t.cpu, ERR_UNSUPPORTED, "the cpu backend has no way for it");
    t.m->weights.arenas[2].block.shape.group /= 2;
    expect_refusal(&t, &stand_in, ERR_UNSUPPORTED,
                   "layer 2: its experts have another shape than those of layers before");
    t.m->weights.arenas[2].block.shape.group *= 2;
    device.pins_left = 1;
    device.host_left = 2;
    expect_refusal(&t, &stand_in, ERR_NO_MEMORY, "could be pinned in host memory, to layer 3");
    close_and_check(&t);

    open_fixture(&t, "tiny-qwen3_5-moe", DENSE_QUANT_NONE);
    expect_refusal(&t, &stand_in, ERR_UNSUPPORTED, "layer 0: its experts are not quantised");
    close_and_check(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_moves),
        cmocka_unit_test(some_layers_stay),
        cmocka_unit_test(refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
