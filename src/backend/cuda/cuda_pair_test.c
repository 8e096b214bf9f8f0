/* cuda_pair_test.c - the comparison itself (cuda_testing.h): that it finds equal what is, and sees what is not. */
#include "backend/cuda/cuda_testing.h"

enum { ROWS = 7, COLS = 96 };

static struct op norm_op(float *x, float *out, const float *weight)
{
    return (struct op){.kind = OP_NORM,
                       .name = "norm",
                       .u.norm = {.in = test_operand(x, COLS, DTYPE_F32),
                                  .out = test_operand(out, COLS, DTYPE_BF16),
                                  .weight = weight,
                                  .eps = 1e-6f}};
}

static void test_equal(void **state)
{
    static const size_t n_rows[] = {1, 1, 1, 1, 1, 1, 1}, position[] = {0, 5, 64, 100, 7, 1, 9};
    uint64_t seed = 7;
    float *x = test_floats(ROWS * COLS, 1, &seed), *weight = test_floats(COLS, 1, &seed);
    float *out = test_poisoned((ROWS + 1) * COLS);
    struct op op = norm_op(x, out, weight);
    struct cuda_pair p;
    struct test_step t;

    (void)state;
    cuda_pair_open(&p);
    test_step_make(&t, ROWS, n_rows, position, 100);
    for (int i = 0; i < 2; i++) { /* twins are known again, and take new contents */
        cuda_pair_mirror(&p, x, ROWS * COLS * sizeof *x);
        cuda_pair_mirror(&p, out, (ROWS + 1) * COLS * sizeof *out);
        cuda_pair_run(&p, &op, &t.step, NULL);
        cuda_pair_expect(&p, "norm bf16", "7 rows of 96, decode", DTYPE_F32, out, (ROWS + 1) * COLS,
                         cuda_tolerance(DTYPE_BF16, 1e-6));
        x[5] = 17;
    }
    assert_int_equal(p.mirrors.n, 2);
    cuda_pair_close(&p);
    test_step_release(&t);
    free(x);
    free(weight);
    free(out);
}

static void test_different(void **state)
{
    float host[4] = {1, 2, 3, NAN}, back[4];
    struct cuda_pair p;

    (void)state;
    cuda_pair_open(&p);
    cuda_pair_mirror(&p, host, sizeof host);
    assert_true(cuda_pair_expect(&p, "own", "same", DTYPE_F32, host, 4, 0) == 0);
    host[1] = 2.5f;
    assert_true(fabs(cuda_pair_expect(&p, "own", "other", DTYPE_F32, host, 4, 1) - 0.5 / 3.5) <
                1e-6);
    cuda_pair_fetch(&p, host + 1, back, 2 * sizeof *back);
    assert_true(back[0] == 2 && back[1] == 3);
    host[3] = 4;
    assert_true(isinf(cuda_pair_expect(&p, "own", "one is NaN", DTYPE_F32, host, 4, INFINITY)));
    cuda_pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equal),
                                       cmocka_unit_test(test_different)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
