/* cpu_backend_test.c - the backend as an object: options, buffers, plans of several ops, zero rows. */
#include "backend/cpu/cpu_internal.h"
#include "backend/cpu/cpu_test_util.h"

static void options_are_taken(void **state)
{
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);

    (void)state;
    for (size_t a = 0; a < n_isas; a++) {
        struct backend *be = test_backend(isas[a], 3);

        assert_string_equal(be->ops->name, "cpu");
        assert_int_equal(pool_threads(cpu_backend_pool(be)), 3);
        assert_string_equal(((struct cpu_backend *)be)->kernels->isa, test_isa_name(isas[a]));
        be->ops->free(be);
    }
    struct backend *best = test_backend(CPU_ISA_AUTO, 1);
    void (*free_null)(struct backend *) = best->ops->free;

    assert_string_equal(((struct cpu_backend *)best)->kernels->isa,
                        test_isa_name(isas[n_isas - 1]));
    best->ops->free(best);
    free_null(NULL);
}

static void asking_for_too_much_is_refused(void **state)
{
    struct cpu_backend_options o = {.n_threads = 1, .isa = CPU_ISA_AVX2};
    struct backend *be = (struct backend *)&o;
    struct error err = {0};

    (void)state;
    if (cpu_detect().avx2) {
        o = (struct cpu_backend_options){.n_threads = SIZE_MAX};
    }
    assert_int_not_equal(cpu_backend_new(&be, &o, &err), OK);
    assert_null(be);
    assert_non_null(strstr(err.text, "cannot start the CPU backend: "));
}

static void buffers_are_zeroed_aligned_and_copied(void **state)
{
    struct backend *be = test_backend(CPU_ISA_AUTO, 1);
    static const char text[] = "spillway";
    char back[16] = {0};

    (void)state;
    for (size_t n = 1; n < 300; n += 37) {
        uint8_t *data = be->ops->buffer_new(be, n);

        assert_non_null(data);
        assert_int_equal((uintptr_t)data % 64, 0);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(data[i], 0);
        }
        be->ops->buffer_free(be, data);
    }
    assert_null(be->ops->buffer_new(be, SIZE_MAX));
    uint8_t *a = be->ops->buffer_new(be, 16), *b = be->ops->buffer_new(be, 16);

    be->ops->write(be, a, text, sizeof text);
    be->ops->copy(be, b, a, sizeof text);
    be->ops->read(be, back, b, sizeof text);
    assert_string_equal(back, text);
    be->ops->buffer_free(be, a);
    be->ops->buffer_free(be, b);
    be->ops->free(be);
}

static void unknown_ops_are_refused(void **state)
{
    struct backend *be = test_backend(CPU_ISA_AUTO, 1);
    struct op op = {.kind = OP_KIND_COUNT};
    struct error err = {0};

    (void)state;
    assert_int_equal(be->ops->check(be, &op, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "no operation of kind"));
    be->ops->free(be);
}

/* A zeroed op of any kind is refused, with the kind in the text, and never runs into a null pointer. */
static void empty_ops_are_refused(void **state)
{
    struct backend *be = test_backend(CPU_ISA_AUTO, 1);

    (void)state;
    for (int kind = 0; kind < OP_KIND_COUNT; kind++) {
        struct op op = {.kind = (enum op_kind)kind};

        test_refused(be, &op, op_kind_name(op.kind));
    }
    be->ops->free(be);
}

/* prepare() may be called again, for a larger plan; steps without rows do nothing. */
static void a_plan_can_be_prepared_again(void **state)
{
    struct backend *be = test_backend(CPU_ISA_AUTO, 2);
    float x[4 * 7] = {0}, out[4 * 7], ones[7] = {1, 1, 1, 1, 1, 1, 1};
    struct op op = {.kind = OP_NORM};
    struct step step = {.n_rows = 0};
    struct error err = {0};

    (void)state;
    x[0] = 3;
    op.u.norm.in = test_operand(x, 7, DTYPE_F32);
    op.u.norm.out = test_operand(out, 7, DTYPE_F32);
    op.u.norm.weight = ones;
    test_poison(out, sizeof out);
    test_prepare(be, &op, 1);
    test_run(be, &op, &step, NULL);
    assert_true(isnan(out[0]));
    step.n_rows = 4;
    assert_int_equal(be->ops->run(be, &op, &step, NULL, &err), ERR_INTERNAL);
    test_prepare(be, &op, 4);
    step.n_rows = 1;
    test_run(be, &op, &step, NULL);
    assert_true(fabsf(out[0] - sqrtf(7)) < 1e-6f && out[1] == 0 && isnan(out[7]));
    be->ops->free(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_are_taken),
        cmocka_unit_test(asking_for_too_much_is_refused),
        cmocka_unit_test(buffers_are_zeroed_aligned_and_copied),
        cmocka_unit_test(unknown_ops_are_refused),
        cmocka_unit_test(empty_ops_are_refused),
        cmocka_unit_test(a_plan_can_be_prepared_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
