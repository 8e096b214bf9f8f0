/* cuda_emulator_test.c - the emulated card itself: what other tests of this room rest on. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants these above */
#include <cmocka.h>

#include "backend/cuda/emulator/emulator.h"
#include "backend/cuda/emulator/emulator_test_args.h"
#include "base/half.h"

static const struct cuda_driver *drv;
static CUstream stream;

static CUresult launch(const char *name, unsigned blocks, unsigned threads, unsigned shared_bytes,
                       struct emulator_test_args args)
{
    struct cuda_launch_attribute overlap = {.id = CUDA_LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION,
                                            .value.programmatic_serialization = 1};
    struct cuda_launch_config c = {.grid_x = blocks,
                                   .grid_y = 1,
                                   .grid_z = 1,
                                   .block_x = threads,
                                   .block_y = 1,
                                   .block_z = 1,
                                   .shared_bytes = shared_bytes,
                                   .stream = stream,
                                   .attributes = &overlap,
                                   .n_attributes = 1};
    void *params[] = {&args};
    CUfunction f;

    assert_int_equal(drv->module_get_function(&f, NULL, name), CUDA_SUCCESS_);
    return drv->launch_kernel_ex(&c, f, params, NULL);
}

static void *device(size_t n_bytes)
{
    CUdeviceptr p;

    assert_int_equal(drv->mem_alloc(&p, n_bytes), CUDA_SUCCESS_);
    assert_int_equal(p % 256, 0);
    return (void *)(uintptr_t)p;
}

static void device_free(void *p)
{
    assert_int_equal(drv->mem_free((CUdeviceptr)(uintptr_t)p), CUDA_SUCCESS_);
}

static void test_blocks(void **state)
{
    float *in = device(1000 * sizeof *in), *out = device(1000 * sizeof *out);
    struct emulator_test_args args = {.in = in, .out = out, .n = 999};

    (void)state;
    assert_true(isnan(out[3])); /* new memory */
    for (int i = 0; i < 999; i++) {
        in[i] = (float)i;
    }
    for (int turn = 0; turn < 3; turn++) { /* in each order */
        memset(out, 0xff, 1000 * sizeof *out);
        assert_int_equal(launch("emulator_test_add", 20, 64, 0, args), CUDA_SUCCESS_);
        for (int i = 0; i < 999; i++) {
            assert_true(out[i] == (float)(i + 1));
        }
        assert_true(isnan(out[999]));
    }
    device_free(in);
    device_free(out);
}

static void test_barriers(void **state)
{
    float *in = device(256 * sizeof *in), *out = device(4 * sizeof *out);
    struct emulator_test_args args = {.in = in, .out = out, .n = 200};
    int n_seen = 0;

    (void)state;
    for (int i = 0; i < 256; i++) {
        in[i] = (float)i;
    }
    for (int turn = 0; turn < 3; turn++) {
        assert_int_equal(launch("emulator_test_sum", 4, 256, 1024, args), CUDA_SUCCESS_);
        for (int i = 0; i < 4; i++) {
            assert_true(out[i] == 199 * 200 / 2);
        }
    }
    args.mode = 1; /* the missing barrier shows as NaN, whichever order it is */
    for (int turn = 0; turn < 3; turn++) {
        out[0] = NAN;
        assert_int_equal(launch("emulator_test_sum", 1, 256, 1024, args) == CUDA_SUCCESS_,
                         !cuda_emulator_sees_races());
        n_seen += !(out[0] == 199 * 200 / 2);
    }
    assert_int_equal(n_seen, 3);
    device_free(in);
    device_free(out);
}

static void test_lanes(void **state)
{
    uint32_t *out = device(5 * 64 * sizeof *out), ballot = 0;
    struct emulator_test_args args = {.out = out, .n = 7};

    (void)state;
    for (unsigned i = 0; i < 32; i += 3) {
        ballot |= 1u << i;
    }
    for (int turn = 0; turn < 3; turn++) {
        assert_int_equal(launch("emulator_test_lanes", 1, 64, 0, args), CUDA_SUCCESS_);
        for (unsigned t = 0; t < 64; t++) {
            assert_int_equal(out[5 * t], t / 32 * 32 + 7);
            assert_int_equal(out[5 * t + 1], t ^ 5);
            assert_int_equal(out[5 * t + 2], t % 32 < 3 ? t : t - 3);
            assert_int_equal(out[5 * t + 3], ballot);
            assert_int_equal(out[5 * t + 4], t ^ 1);
        }
    }
    device_free(out);
}

/* Rows of a and columns of b, 32 bytes each: 16 halves or 32 int8. */
static void test_products(void **state)
{
    uint8_t *a = device(16 * 32), *b = device(8 * 32);
    int32_t *out = device(16 * 8 * sizeof *out);
    uint32_t seed = 1;

    (void)state;
    for (int mode = 0; mode < 3; mode++) {
        for (int i = 0; i < 24 * 32; i++) {
            uint8_t *to = i < 16 * 32 ? a + i : b + i - 16 * 32;

            seed = seed * 1664525u + 1013904223u;
            *to = (uint8_t)(seed >> 24);
            if (mode < 2 && i % 2) { /* small integers in either type */
                float v = (float)(int)(seed >> 28) - 8.0f;
                uint16_t h = mode == 0 ? bf16_from_f32(v) : f16_from_f32(v);

                memcpy(to - 1, &h, 2);
            }
        }
        assert_int_equal(
            launch("emulator_test_mma", 1, 32, 0,
                   (struct emulator_test_args){.in = a, .in2 = b, .out = out, .mode = mode}),
            CUDA_SUCCESS_);
        for (int i = 0; i < 16 * 8; i++) {
            float sum = 0, got;

            for (int k = 0; k < (mode == 2 ? 32 : 16); k++) {
                const uint8_t *pa = a + i / 8 * 32, *pb = b + i % 8 * 32;
                uint16_t ha, hb;

                memcpy(&ha, pa + 2 * (k % 16), 2);
                memcpy(&hb, pb + 2 * (k % 16), 2);
                sum += mode == 0   ? bf16_to_f32(ha) * bf16_to_f32(hb)
                       : mode == 1 ? f16_to_f32(ha) * f16_to_f32(hb)
                                   : (float)((int8_t)pa[k] * (int8_t)pb[k]);
            }
            memcpy(&got, &out[i], sizeof got);
            assert_true((mode == 2 ? (float)out[i] : got) == 2 * sum);
        }
    }
    device_free(a);
    device_free(b);
    device_free(out);
}

static void test_matrices(void **state)
{
    uint16_t *in = device(4 * 64 * sizeof *in);
    uint32_t *out = device(4 * 32 * sizeof *out);

    (void)state;
    for (int i = 0; i < 4 * 64; i++) {
        in[i] = (uint16_t)i;
    }
    for (int mode = 0; mode < 3; mode++) {
        assert_int_equal(
            launch("emulator_test_matrix", 1, 32, 0,
                   (struct emulator_test_args){.in = in, .out = out, .n = 31, .mode = mode}),
            CUDA_SUCCESS_);
        for (int i = 0; i < 4 * 32 * 2; i++) {
            int m = i / 64, row = i % 64 / 8, col = i % 8, source = mode == 1 ? col : row;
            unsigned want = (unsigned)(64 * m + (mode == 1 ? 8 * col + row : 8 * row + col));

            if (8 * m + source == 31) {
                want = 0; /* the copy that was not valid */
            }
            if (mode == 2) {
                want = 0xffff; /* copies are still in flight */
            }
            assert_int_equal(out[i / 2] >> 16 * (i % 2) & 0xffff, want);
        }
    }
    device_free(in);
    device_free(out);
}

static void test_faults(void **state)
{
    static const char *const texts[] = {
        "wait at block_sync",      "some lanes of the warp have returned",
        "others of the warp wait", "not aligned",
        "past its 256 bytes",      "past the end of a device allocation"};
    float *data = device(64 * sizeof *data);
    int n_modes = 6;

    (void)state;
#if defined(__SANITIZE_ADDRESS__)
    n_modes = 4; /* it ends the program at the other two */
#endif
    for (int mode = 0; mode < n_modes; mode++) {
        struct emulator_test_args args = {.in = data, .out = data, .n = 64, .mode = mode};
        const char *text = NULL;

        for (int turn = 0; turn < 3; turn++) {
            CUresult r = launch("emulator_test_faults", 2, 64, 256, args);

            assert_int_not_equal(r, CUDA_SUCCESS_);
            drv->get_error_string(r, &text);
            assert_ptr_equal(text, cuda_emulator_failure());
            if (!strstr(text, texts[mode]) && !(mode == 1 && strstr(text, "returns while"))) {
                fail_msg("'%s' is not in '%s'", texts[mode], text);
            }
        }
        if (mode == 5) {
            memset(data + 64, 0xa5, sizeof *data);
        }
        /* and the card goes on */
        assert_int_equal(launch("emulator_test_add", 1, 64, 0, args), CUDA_SUCCESS_);
    }
    device_free(data);
}

static void test_refusals(void **state)
{
    struct emulator_test_args args = {0};
    CUfunction f;
    CUdeviceptr p;
    float *data = device(64);

    (void)state;
    assert_int_equal(drv->module_get_function(&f, NULL, "no_such_kernel"), CUDA_ERROR_NOT_FOUND_);
    assert_int_not_equal(launch("emulator_test_add", 1, 96, 0, args), CUDA_SUCCESS_);
    assert_int_not_equal(launch("emulator_test_add", 0, 64, 0, args), CUDA_SUCCESS_);
    assert_int_not_equal(launch("emulator_test_add", 1, 64, 49 << 10, args), CUDA_SUCCESS_);
    assert_int_equal(drv->module_get_function(&f, NULL, "emulator_test_add"), CUDA_SUCCESS_);
    assert_int_not_equal(drv->func_set_attribute(f, CUDA_FUNC_DYNAMIC_SHARED_MAX, 228 << 10),
                         CUDA_SUCCESS_);
    assert_int_equal(drv->func_set_attribute(f, CUDA_FUNC_DYNAMIC_SHARED_MAX, 227 << 10),
                     CUDA_SUCCESS_);
    assert_int_equal(launch("emulator_test_add", 1, 64, 227 << 10, args), CUDA_SUCCESS_);
    assert_int_equal(drv->mem_alloc(&p, (size_t)1 << 40), CUDA_ERROR_OUT_OF_MEMORY_);
    assert_int_not_equal(drv->memcpy_htod_async((CUdeviceptr)(uintptr_t)data, &args, 65, stream),
                         CUDA_SUCCESS_);
    device_free(data);
}

static void test_graph(void **state)
{
    float *data = device(256), *host = calloc(64, sizeof *host);
    struct emulator_test_args args = {.in = data, .out = data, .n = 64};
    CUgraphExec exec;
    CUgraph graph;

    (void)state;
    assert_non_null(host);
    assert_int_equal(drv->stream_begin_capture(stream, CUDA_CAPTURE_RELAXED), CUDA_SUCCESS_);
    drv->memcpy_htod_async((CUdeviceptr)(uintptr_t)data, host, 256, stream);
    assert_int_equal(launch("emulator_test_add", 1, 64, 0, args), CUDA_SUCCESS_);
    assert_int_equal(launch("emulator_test_add", 1, 64, 0, args), CUDA_SUCCESS_);
    assert_int_not_equal(drv->stream_synchronize(stream), CUDA_SUCCESS_);
    assert_true(isnan(data[0])); /* nothing has run */
    assert_int_equal(drv->stream_end_capture(stream, &graph), CUDA_SUCCESS_);
    assert_int_equal(drv->graph_instantiate(&exec, graph, 0), CUDA_SUCCESS_);
    assert_int_equal(drv->graph_destroy(graph), CUDA_SUCCESS_);
    for (int i = 0; i < 3; i++) {
        host[5] = (float)i;
        assert_int_equal(drv->graph_launch(exec, stream), CUDA_SUCCESS_);
        assert_true(data[5] == (float)(i + 2));
    }
    assert_int_equal(drv->graph_exec_destroy(exec), CUDA_SUCCESS_);
    free(host);
    device_free(data);
}

/* A capture reaches another stream through an event, and ends only when what is there was waited for. */
static void test_branches(void **state)
{
    float *data = device(256), *host = calloc(64, sizeof *host);
    CUstream branch;
    CUevent forked, joined;

    (void)state;
    assert_non_null(host);
    assert_int_equal(drv->stream_create(&branch, CUDA_STREAM_NON_BLOCKING), CUDA_SUCCESS_);
    assert_int_equal(drv->event_create(&forked, CUDA_EVENT_NO_TIMING), CUDA_SUCCESS_);
    assert_int_equal(drv->event_create(&joined, CUDA_EVENT_NO_TIMING), CUDA_SUCCESS_);
    for (int joins = 0; joins < 2; joins++) {
        CUgraph graph = NULL;
        CUgraphExec exec;

        assert_int_equal(drv->stream_begin_capture(stream, CUDA_CAPTURE_RELAXED), CUDA_SUCCESS_);
        assert_int_equal(drv->event_record(forked, stream), CUDA_SUCCESS_);
        assert_int_equal(drv->stream_wait_event(branch, forked, 0), CUDA_SUCCESS_);
        drv->memcpy_htod_async((CUdeviceptr)(uintptr_t)data, host, 256, branch);
        assert_true(isnan(data[0]));
        assert_int_equal(drv->event_record(joined, branch), CUDA_SUCCESS_);
        if (!joins) {
            assert_int_not_equal(drv->stream_end_capture(stream, &graph), CUDA_SUCCESS_);
            assert_null(graph);
            continue;
        }
        assert_int_equal(drv->stream_wait_event(stream, joined, 0), CUDA_SUCCESS_);
        assert_int_equal(drv->stream_end_capture(stream, &graph), CUDA_SUCCESS_);
        assert_int_equal(drv->graph_instantiate(&exec, graph, 0), CUDA_SUCCESS_);
        assert_int_equal(drv->graph_destroy(graph), CUDA_SUCCESS_);
        assert_int_equal(drv->graph_launch(exec, stream), CUDA_SUCCESS_);
        assert_true(data[0] == 0);
        assert_int_equal(drv->graph_exec_destroy(exec), CUDA_SUCCESS_);
    }
    assert_int_equal(drv->event_destroy(forked), CUDA_SUCCESS_);
    assert_int_equal(drv->event_destroy(joined), CUDA_SUCCESS_);
    assert_int_equal(drv->stream_destroy(branch), CUDA_SUCCESS_);
    free(host);
    device_free(data);
}

/* Accesses without a barrier between, and others that are in order. */
static void test_races(void **state)
{
    static const bool is_race[] = {false, true, true, true, false, false, false, true, true};
    uint32_t *data = device(256), *constants = device(256);

    (void)state;
    memset(constants, 0, 256);
    if (!cuda_emulator_sees_races()) {
        device_free(data);
        device_free(constants);
        skip();
    }
    for (int mode = 0; mode < 9; mode++) {
        for (int turn = 0; turn < 3; turn++) {
            struct emulator_test_args args = {
                .in = mode == 6 ? constants : data, .out = data, .mode = mode};
            struct emulator_test_args before = {.in = data, .out = data, .mode = 4};
            CUresult r = launch("emulator_test_races", 1, 64, 256, before);

            assert_int_equal(r, CUDA_SUCCESS_);
            r = launch("emulator_test_races", 1, 64, 256, args);
            assert_int_equal(r == CUDA_SUCCESS_, !is_race[mode]);
            if (is_race[mode] &&
                !strstr(cuda_emulator_failure(),
                        mode < 6 ? "no barrier is between" : "before depend_wait")) {
                fail_msg("%s", cuda_emulator_failure());
            }
        }
    }
    device_free(data);
    device_free(constants);
}

static void test_old_card(void **state)
{
    uint8_t *data = device(1024);
    struct emulator_test_args args = {.in = data, .in2 = data, .out = data + 512};

    (void)state;
    memset(data, 0, 1024);
    cuda_emulator_driver_sm(75);
    assert_int_not_equal(launch("emulator_test_mma", 1, 32, 0, args), CUDA_SUCCESS_);
    args.mode = 1;
    assert_int_equal(launch("emulator_test_mma", 1, 32, 0, args), CUDA_SUCCESS_);
    cuda_emulator_driver();
    device_free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),   cmocka_unit_test(test_barriers),
        cmocka_unit_test(test_lanes),    cmocka_unit_test(test_products),
        cmocka_unit_test(test_matrices), cmocka_unit_test(test_faults),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_graph),
        cmocka_unit_test(test_branches), cmocka_unit_test(test_races),
        cmocka_unit_test(test_old_card),
    };
    int n_failed;

    drv = cuda_emulator_driver();
    drv->stream_create(&stream, 0);
    n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    drv->stream_destroy(stream);
    return n_failed;
}
