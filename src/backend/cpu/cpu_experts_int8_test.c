/* cpu_experts_int8_test.c - routed experts with int8 activations: rows keep their bits in any company,
 * errors are bounded, a broken row breaks no other, choices of another are left out. */
#include "backend/cpu/cpu_test_util.h"
#include "backend/expert_home.h"

enum { E = 8, TOP = 3, HIDDEN = 128, WIDTH = 192, ROWS_MAX = 33 };

struct layer {
    struct test_weight parts[E][3];
    struct expert_weights experts[E];
};

static const enum test_kind KINDS[][3] = {
    {TEST_INT4, TEST_INT4, TEST_INT4},
    {TEST_INT4_PERM, TEST_INT4_PERM, TEST_INT4_PERM}, /* each with an order of its own */
    {TEST_INT8, TEST_INT8_ZEROS, TEST_INT8},
    {TEST_INT4_ZEROS, TEST_BF16, TEST_INT4_ROW}, /* copies of several forms, and none */
};
enum { N_KINDS = sizeof KINDS / sizeof KINDS[0] };

static void layer_make(struct layer *l, const enum test_kind kinds[3], uint64_t *seed)
{
    for (size_t e = 0; e < E; e++) {
        test_weight_make(&l->parts[e][0], kinds[0], WIDTH, HIDDEN, seed);
        test_weight_make(&l->parts[e][1], kinds[1], WIDTH, HIDDEN, seed);
        test_weight_make(&l->parts[e][2], kinds[2], HIDDEN, WIDTH, seed);
        l->experts[e].gate = l->parts[e][0].w;
        l->experts[e].up = l->parts[e][1].w;
        l->experts[e].down = l->parts[e][2].w;
    }
}

static void layer_release(struct layer *l)
{
    for (size_t e = 0; e < E; e++) {
        for (size_t p = 0; p < 3; p++) {
            test_weight_release(&l->parts[e][p]);
        }
    }
}

struct inputs {
    float *x, *prob;
    int32_t *idx;
};

static struct inputs inputs_new(uint64_t *seed)
{
    struct inputs in = {.x = test_floats(ROWS_MAX * HIDDEN, 1, seed),
                        .prob = test_floats(ROWS_MAX * TOP, 1, seed),
                        .idx = (int32_t *)(void *)test_poisoned(ROWS_MAX * TOP)};

    for (size_t i = 0; i < ROWS_MAX; i++) {
        size_t first = (size_t)(test_next(seed) >> 40);

        for (size_t j = 0; j < TOP; j++) {
            in.idx[i * TOP + j] = (int32_t)((first + 3 * j) % E);
        }
    }
    return in;
}

static void inputs_free(struct inputs *in)
{
    free(in->x);
    free(in->prob);
    free(in->idx);
}

/* The op over rows [first, first + n) of the inputs. */
static struct op op_of(const struct layer *l, const struct inputs *in, size_t first, float *out)
{
    struct op op = {.kind = OP_EXPERTS};

    op.u.experts = (struct op_experts){
        .in = test_operand(in->x + first * HIDDEN, HIDDEN, DTYPE_F32),
        .idx = {.data = in->idx + first * TOP, .dtype = DTYPE_I32, .cols = TOP},
        .prob = test_operand(in->prob + first * TOP, TOP, DTYPE_F32),
        .out = test_operand(out, HIDDEN, DTYPE_F32),
        .experts = l->experts,
        .n_experts = E,
        .top_k = TOP,
        .width = WIDTH,
    };
    return op;
}

static float *run(struct backend *be, const struct layer *l, const struct inputs *in, size_t first,
                  size_t n)
{
    float *out = test_poisoned(n * HIDDEN);
    struct op op = op_of(l, in, first, out);
    struct step step = {.n_rows = n};

    test_prepare(be, &op, n);
    test_run(be, &op, &step, NULL);
    return out;
}

static void rows_do_not_depend_on_company(void **state)
{
    static const size_t cuts[][2] = {{0, 1}, {32, 1}, {5, 2}, {7, 17}, {1, 32}};
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);

    (void)state;
    for (size_t c = 0; c < n_isas * N_KINDS; c++) {
        uint64_t seed = 21 + c;
        enum cpu_isa isa = isas[c / N_KINDS];
        struct backend *one = test_backend_with(isa, 1, CPU_ACTIVATIONS_INT8);
        struct backend *three = test_backend_with(isa, 3, CPU_ACTIVATIONS_INT8);
        struct layer l;
        struct inputs in;
        float *whole;

        layer_make(&l, KINDS[c % N_KINDS], &seed);
        in = inputs_new(&seed);
        whole = run(one, &l, &in, 0, ROWS_MAX);
        for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
            size_t first = cuts[i][0], n = cuts[i][1];
            float *part = run(i % 2 ? one : three, &l, &in, first, n);

            assert_memory_equal(part, whole + first * HIDDEN, n * HIDDEN * sizeof *part);
            free(part);
        }
        free(whole);
        inputs_free(&in);
        layer_release(&l);
        one->ops->free(one);
        three->ops->free(three);
    }
}

/* A single row's experts are shared out among threads that wait for each other: also when there are more of
 * them than cores, than experts, and than pieces of some lists. */
static void a_row_does_not_depend_on_threads(void **state)
{
    static const size_t threads[] = {2, 5, 13};

    (void)state;
    for (size_t c = 0; c < N_KINDS * 2; c++) {
        enum cpu_activations activations = c % 2 ? CPU_ACTIVATIONS_INT8 : CPU_ACTIVATIONS_F32;
        struct backend *one = test_backend_with(CPU_ISA_AUTO, 1, activations);
        uint64_t seed = 81 + c;
        struct layer l;
        struct inputs in;
        float *want;

        layer_make(&l, KINDS[c / 2], &seed);
        in = inputs_new(&seed);
        want = run(one, &l, &in, 0, 1);
        for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
            struct backend *be = test_backend_with(CPU_ISA_AUTO, threads[t], activations);

            for (size_t i = 0; i < 20; i++) {
                float *got = run(be, &l, &in, 0, 1);

                assert_memory_equal(got, want, HIDDEN * sizeof *got);
                free(got);
            }
            be->ops->free(be);
        }
        free(want);
        inputs_free(&in);
        layer_release(&l);
        one->ops->free(one);
    }
}

/* Against float32 activations: two quantisations follow each other, of the input and of the hidden row. */
static void the_error_is_bounded(void **state)
{
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);

    (void)state;
    printf("experts, root mean square error / root mean square output:\n");
    for (size_t c = 0; c < n_isas * N_KINDS; c++) {
        uint64_t seed = 41 + c;
        enum cpu_isa isa = isas[c / N_KINDS];
        double error[2] = {0}, size = 0;
        struct backend *be[3] = {test_backend_with(isa, 2, CPU_ACTIVATIONS_INT8),
                                 test_backend_with(isa, 2, CPU_ACTIVATIONS_BF16),
                                 test_backend(isa, 2)};
        float *out[3];
        struct layer l;
        struct inputs in;

        layer_make(&l, KINDS[c % N_KINDS], &seed);
        in = inputs_new(&seed);
        for (size_t b = 0; b < 3; b++) {
            out[b] = run(be[b], &l, &in, 0, ROWS_MAX);
        }
        for (size_t i = 0; i < ROWS_MAX * HIDDEN; i++) {
            error[0] += pow((double)(out[0][i] - out[2][i]), 2);
            error[1] += pow((double)(out[1][i] - out[2][i]), 2);
            size += pow((double)out[2][i], 2);
        }
        printf("  %-7s %-10s int8 %.5f bf16 %.5f\n", test_isa_name(isa),
               test_kind_name(KINDS[c % N_KINDS][0]), sqrt(error[0] / size), sqrt(error[1] / size));
        assert_true(error[0] > 0 && sqrt(error[0] / size) < 0.02);
        assert_true(error[1] > 0 && sqrt(error[1] / size) < 0.006);
        for (size_t b = 0; b < 3; b++) {
            free(out[b]);
            be[b]->ops->free(be[b]);
        }
        inputs_free(&in);
        layer_release(&l);
    }
}

static void a_row_that_is_not_finite_stays_so(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);
    uint64_t seed = 61;

    (void)state;
    for (size_t c = 0; c < n_isas * 3; c++) {
        struct backend *be = test_backend_with(isas[c / 3], 2, CPU_ACTIVATIONS_INT8);
        struct layer l;
        struct inputs in;
        float *good, *got;

        layer_make(&l, KINDS[c % 2], &seed);
        in = inputs_new(&seed);
        good = run(be, &l, &in, 0, 9);
        in.x[4 * HIDDEN + 77] = bad[c % 3];
        got = run(be, &l, &in, 0, 9);
        for (size_t i = 0; i < 9 * HIDDEN; i++) {
            bool stays = i / HIDDEN == 4 ? !isfinite(got[i]) : got[i] == good[i];

            assert_true(stays);
        }
        free(good);
        free(got);
        inputs_free(&in);
        layer_release(&l);
        be->ops->free(be);
    }
}

/* With a home a choice of -1 adds nothing, bit for bit as one of weight 0; without one
 * it is a fault. */
static void choices_of_the_device_are_left_out(void **state)
{
    static const size_t rows[] = {1, 2, 8};
    static const struct expert_home home;
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);
    uint64_t seed = 71;

    (void)state;
    for (size_t c = 0; c < n_isas * N_KINDS * 3; c++) {
        size_t n = rows[c % 3];
        enum cpu_activations activations = c % 2 ? CPU_ACTIVATIONS_INT8 : CPU_ACTIVATIONS_F32;
        struct backend *be = test_backend_with(isas[c / (3 * N_KINDS)], 2, activations);
        struct step step = {.n_rows = n};
        struct layer l;
        struct inputs in;
        float *want, *out = test_poisoned(n * HIDDEN);
        struct op op;
        struct error err;

        layer_make(&l, KINDS[c / 3 % N_KINDS], &seed);
        in = inputs_new(&seed);
        for (size_t i = 0; i < n * TOP; i++) { /* the last row keeps none if there are several */
            bool is_gone = i % 2 || (n > 1 && i / TOP == n - 1);

            in.prob[i] = is_gone ? 0 : in.prob[i];
        }
        want = run(be, &l, &in, 0, n);
        for (size_t i = 0; i < n * TOP; i++) {
            in.idx[i] = in.prob[i] == 0 ? -1 : in.idx[i];
            in.prob[i] = in.prob[i] == 0 ? NAN : in.prob[i];
        }
        op = op_of(&l, &in, 0, out);
        test_prepare(be, &op, n);
        assert_int_equal(be->ops->run(be, &op, &step, NULL, &err), ERR_INTERNAL);
        op.u.experts.home = &home;
        test_run(be, &op, &step, NULL);
        for (size_t i = 0; i < n * HIDDEN; i++) {
            assert_true(out[i] == want[i]);
        }
        in.idx[0] = -2;
        assert_int_equal(be->ops->run(be, &op, &step, NULL, &err), ERR_INTERNAL);
        in.idx[0] = E;
        assert_int_equal(be->ops->run(be, &op, &step, NULL, &err), ERR_INTERNAL);
        free(out);
        free(want);
        inputs_free(&in);
        layer_release(&l);
        be->ops->free(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_do_not_depend_on_company),
        cmocka_unit_test(a_row_does_not_depend_on_threads),
        cmocka_unit_test(the_error_is_bounded),
        cmocka_unit_test(a_row_that_is_not_finite_stays_so),
        cmocka_unit_test(choices_of_the_device_are_left_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
