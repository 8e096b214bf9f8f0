/* cpu_linear_test.c - linear layers of every weight kind, against sums in double. */
#include "backend/cpu/cpu_test_util.h"

/* The last two are real widths; under a sanitizer they would take minutes and show nothing new. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const size_t SIZES[] = {1, 7, 31, 32, 33, 64, 65, 127, 128, 200};
#else
static const size_t SIZES[] = {1, 7, 31, 32, 33, 64, 65, 127, 128, 200, 512, 2048};
#endif
static const size_t ROWS[] = {1, 2, 3, 5, 8, 17, 64, 65};
enum { N_SIZES = sizeof SIZES / sizeof SIZES[0], N_ROWS = sizeof ROWS / sizeof ROWS[0] };

/* One matrix on x [n_rows][n_in]; returns a new [n_rows][n_out]. old: what is added to, or NULL. */
static float *multiply(struct backend *be, const struct weight *w, const float *x, size_t n_rows,
                       const float *old, enum dtype round)
{
    size_t n = n_rows * w->n_out;
    float *out = test_poisoned(n);
    struct op op = {.kind = OP_LINEAR, .rows = ROWS_ALL};
    struct step step = {.n_rows = n_rows};

    if (old) {
        memcpy(out, old, n * sizeof *out);
    }
    op.u.linear.in = test_operand((float *)(uintptr_t)x, w->n_in, DTYPE_F32);
    op.u.linear.n_parts = 1;
    op.u.linear.part[0].w = *w;
    op.u.linear.part[0].out = test_operand(out, w->n_out, round);
    op.u.linear.part[0].accumulates = old != NULL;
    test_prepare(be, &op, n_rows);
    test_run(be, &op, &step, NULL);
    return out;
}

/* Relative to sum |w x|, the size of what was added. */
static double error_of(const struct weight *w, const float *x, size_t n_rows, const float *old,
                       const float *got)
{
    float *row = test_poisoned(w->n_in);
    double worst = 0;

    for (size_t n = 0; n < w->n_out; n++) {
        weight_row_f32(w, n, row);
        for (size_t i = 0; i < n_rows; i++) {
            double sum = old ? (double)old[i * w->n_out + n] : 0, size = fabs(sum) + 1e-9, error;

            for (size_t k = 0; k < w->n_in; k++) {
                double term = (double)row[k] * (double)x[i * w->n_in + k];

                sum += term;
                size += fabs(term);
            }
            error = fabs((double)got[i * w->n_out + n] - sum) / size;
            assert_true(isfinite(error));
            worst = error > worst ? error : worst;
        }
    }
    free(row);
    return worst;
}

static void every_kind_and_size_agrees_with_double(void **state)
{
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);
    uint64_t seed = 1;

    (void)state;
    for (size_t a = 0; a < n_isas; a++) {
        struct backend *be = test_backend(isas[a], 2);

        printf("%-6s          ", test_isa_name(isas[a]));
        for (size_t s = 0; s < N_SIZES; s++) {
            printf("%8zu", SIZES[s]);
        }
        printf("  inputs: largest error / sum |w x|\n");
        for (int kind = 0; kind < TEST_KINDS; kind++) {
            printf("  %-14s", test_kind_name((enum test_kind)kind));
            for (size_t s = 0; s < N_SIZES; s++) {
                double worst = 0;

                if (!test_kind_fits((enum test_kind)kind, SIZES[s])) {
                    printf("       -");
                    continue;
                }
                for (size_t r = 0; r < N_ROWS; r++) {
                    size_t n_out = SIZES[(s + r) % N_SIZES];
                    struct test_weight t;
                    float *x = test_floats(ROWS[r] * SIZES[s], 1, &seed);
                    float *old = r % 2 ? test_floats(ROWS[r] * n_out, 1, &seed) : NULL;
                    float *out;
                    double error;

                    test_weight_make(&t, (enum test_kind)kind, n_out, SIZES[s], &seed);
                    out = multiply(be, &t.w, x, ROWS[r], old, DTYPE_F32);
                    error = error_of(&t.w, x, ROWS[r], old, out);
                    worst = error > worst ? error : worst;
                    free(out);
                    free(old);
                    free(x);
                    test_weight_release(&t);
                }
                printf(" %7.1e", worst);
                assert_true(worst < 2e-6);
            }
            printf("\n");
        }
        be->ops->free(be);
    }
}

/* A row's outputs are the same bits alone, in any company and with any number of threads. */
static void rows_do_not_depend_on_company(void **state)
{
    static const size_t shapes[][2] = {{13, 200}, {70, 65}, {33, 128}, {129, 192}};
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas), n_all = 65;
    uint64_t seed = 2;

    (void)state;
    for (size_t a = 0; a < n_isas; a++) {
        struct backend *by_threads[3] = {test_backend(isas[a], 1), test_backend(isas[a], 2),
                                         test_backend(isas[a], 3)};

        for (int kind = 0; kind < TEST_KINDS; kind++) {
            for (size_t s = 0; s < 4; s++) {
                size_t n_out = shapes[s][0], n_in = shapes[s][1];
                struct test_weight t;
                float *x, *whole;

                if (!test_kind_fits((enum test_kind)kind, n_in)) {
                    continue;
                }
                test_weight_make(&t, (enum test_kind)kind, n_out, n_in, &seed);
                x = test_floats(n_all * n_in, 1, &seed);
                whole = multiply(by_threads[0], &t.w, x, n_all, NULL, DTYPE_F32);
                for (size_t r = 0; r < N_ROWS; r++) {
                    size_t first = n_all - ROWS[r];
                    float *part = multiply(by_threads[r % 3], &t.w, x + first * n_in, ROWS[r], NULL,
                                           DTYPE_F32);

                    assert_memory_equal(part, whole + first * n_out,
                                        ROWS[r] * n_out * sizeof *part);
                    free(part);
                }
                free(whole);
                free(x);
                test_weight_release(&t);
            }
        }
        for (size_t i = 0; i < 3; i++) {
            by_threads[i]->ops->free(by_threads[i]);
        }
    }
}

/* Four matrices of different kinds and orders in one op; two of them share an order. */
static void parts_share_an_input(void **state)
{
    enum { N_IN = 64, N_ROWS_HERE = 5 };
    static const enum test_kind kinds[4] = {TEST_INT4_PERM, TEST_BF16, TEST_INT4_PERM,
                                            TEST_INT4_PERM};
    static const size_t n_out[4] = {33, 7, 16, 70};
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);
    uint64_t seed = 3;

    (void)state;
    for (size_t a = 0; a < n_isas; a++) {
        struct backend *be = test_backend(isas[a], 2);
        struct op op = {.kind = OP_LINEAR};
        struct step step = {.n_rows = N_ROWS_HERE};
        struct test_weight t[4];
        float *x = test_floats(N_ROWS_HERE * N_IN, 1, &seed), *out[4];

        op.u.linear.in = test_operand(x, N_IN, DTYPE_F32);
        op.u.linear.n_parts = 4;
        for (size_t p = 0; p < 4; p++) {
            test_weight_make(&t[p], kinds[p], n_out[p], N_IN, &seed);
            out[p] = test_poisoned(N_ROWS_HERE * n_out[p]);
        }
        t[2].w.perm = t[0].w.perm;
        for (size_t p = 0; p < 4; p++) {
            op.u.linear.part[p].w = t[p].w;
            op.u.linear.part[p].out = test_operand(out[p], n_out[p], DTYPE_F32);
        }
        test_prepare(be, &op, N_ROWS_HERE);
        assert_non_null(strstr(op.kernel, "linear mixed"));
        test_run(be, &op, &step, NULL);
        for (size_t p = 0; p < 4; p++) {
            assert_true(error_of(&t[p].w, x, N_ROWS_HERE, NULL, out[p]) < 2e-6);
        }
        for (size_t p = 0; p < 4; p++) {
            free(out[p]);
            test_weight_release(&t[p]);
        }
        free(x);
        be->ops->free(be);
    }
}

/* Outputs are rounded once to the operand's type; float16 overflows to infinity without a trap. */
static void outputs_are_rounded(void **state)
{
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);
    uint64_t seed = 4;

    (void)state;
    for (size_t a = 0; a < n_isas; a++) {
        struct backend *be = test_backend(isas[a], 2);
        struct test_weight t;
        float *x = test_floats(3 * 65, 1, &seed), *exact, *half, *brain, *big;

        test_weight_make(&t, TEST_F32, 37, 65, &seed);
        exact = multiply(be, &t.w, x, 3, NULL, DTYPE_F32);
        half = multiply(be, &t.w, x, 3, NULL, DTYPE_F16);
        brain = multiply(be, &t.w, x, 3, NULL, DTYPE_BF16);
        for (size_t i = 0; i < 3 * 37; i++) {
            assert_true(half[i] == f16_to_f32(f16_from_f32(exact[i])));
            assert_true(brain[i] == bf16_to_f32(bf16_from_f32(exact[i])));
        }
        for (size_t k = 0; k < 65; k++) {
            x[k] = 1e6f;
        }
        big = multiply(be, &t.w, x, 1, NULL, DTYPE_F16);
        for (size_t i = 0; i < 37; i++) {
            assert_true(isinf(big[i]) || fabsf(big[i]) <= 65504.0f);
        }
        free(big);
        free(brain);
        free(half);
        free(exact);
        free(x);
        test_weight_release(&t);
        be->ops->free(be);
    }
}

static void wrong_operands_are_refused(void **state)
{
    struct backend *be = test_backend(CPU_ISA_AUTO, 1);
    struct op good = {.kind = OP_LINEAR, .layer = 3}, op;
    float x[64] = {0}, out[64] = {0};
    uint64_t seed = 5;
    struct test_weight t;

    (void)state;
    test_weight_make(&t, TEST_INT4, 8, 64, &seed);
    good.u.linear.in = test_operand(x, 64, DTYPE_F32);
    good.u.linear.n_parts = 1;
    good.u.linear.part[0].w = t.w;
    good.u.linear.part[0].out = test_operand(out, 8, DTYPE_F32);
    op = good;
    test_prepare(be, &op, 1);
    assert_non_null(strstr(op.kernel, "linear int4 row "));

    op = good;
    op.u.linear.n_parts = 5;
    test_refused(be, &op, "5 matrices");
    op = good;
    op.u.linear.in.dtype = DTYPE_BF16;
    test_refused(be, &op, "linear 'test' of layer 3: the input is stored as bfloat16");
    op = good;
    op.u.linear.part[0].out.round = DTYPE_F8_E4M3;
    test_refused(be, &op, "cannot be rounded to fp8_e4m3");
    op = good;
    op.u.linear.part[0].out.cols = 9;
    test_refused(be, &op, "the output has 9 columns, 8 expected");
    op = good;
    op.u.linear.part[0].w.n_in = 32;
    test_refused(be, &op, "the matrix has 32 inputs, its operand 64 columns");
    op = good;
    op.u.linear.part[0].w.group = 48;
    test_refused(be, &op, "groups of 48");
    op = good;
    op.u.linear.part[0].w.scales = NULL;
    test_refused(be, &op, "no scales");
    op = good;
    op.u.linear.part[0].w.kind = WEIGHT_NONE;
    test_refused(be, &op, "no kind");
    op = good;
    op.u.linear.part[0].accumulates = true;
    op.u.linear.part[0].out.round = DTYPE_BF16;
    test_refused(be, &op, "the sum must be float32");
    op = good;
    op.u.linear.part[0].out.data = x;
    test_refused(be, &op, "overlaps");
    op = good;
    int32_t perm[64] = {[5] = 64};
    op.u.linear.part[0].w.perm = perm;
    test_refused(be, &op, "input 5 is taken from column 64");
    test_weight_release(&t);
    be->ops->free(be);
}

static void a_step_beyond_the_prepared_rows_is_an_error(void **state)
{
    struct backend *be = test_backend(CPU_ISA_AUTO, 1);
    struct op op = {.kind = OP_LINEAR};
    struct step step = {.n_rows = 3};
    float x[3 * 7] = {0}, out[3 * 2];
    uint64_t seed = 6;
    struct test_weight t;
    struct error err;

    (void)state;
    test_weight_make(&t, TEST_F32, 2, 7, &seed);
    op.u.linear.in = test_operand(x, 7, DTYPE_F32);
    op.u.linear.n_parts = 1;
    op.u.linear.part[0].w = t.w;
    op.u.linear.part[0].out = test_operand(out, 2, DTYPE_F32);
    test_prepare(be, &op, 2);
    assert_int_equal(be->ops->run(be, &op, &step, NULL, &err), ERR_INTERNAL);
    assert_int_equal(be->ops->prepare(be, &op, 1, SIZE_MAX / 8, 1, &err),
                     OK); /* no scratch by row */
    t.w.perm = (const int32_t[7]){0};
    op.u.linear.part[0].w.perm = t.w.perm;
    assert_int_equal(be->ops->prepare(be, &op, 1, SIZE_MAX / 8, 1, &err), ERR_NO_MEMORY);
    test_weight_release(&t);
    be->ops->free(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_and_size_agrees_with_double),
        cmocka_unit_test(rows_do_not_depend_on_company),
        cmocka_unit_test(parts_share_an_input),
        cmocka_unit_test(outputs_are_rounded),
        cmocka_unit_test(wrong_operands_are_refused),
        cmocka_unit_test(a_step_beyond_the_prepared_rows_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
