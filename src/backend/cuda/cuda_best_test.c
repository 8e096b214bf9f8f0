/* cuda_best_test.c - the largest of each row on the CPU and on the card: widths around the pieces, equals,
 * values that are not finite. */
#include "backend/cuda/cuda_testing.h"

enum { ROWS = 5 };

static void run_width(struct cuda_pair *p, size_t cols, uint64_t *seed)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN};
    size_t n_rows[] = {ROWS}, positions[] = {0};
    float *x = test_floats(ROWS * cols, 4, seed);
    int32_t best[ROWS], got[ROWS];
    struct test_step step;
    struct op op = {.kind = OP_BEST,
                    .rows = ROWS_OUT,
                    .name = "best",
                    .u.best = {.in = test_operand(x, cols, DTYPE_F32),
                               .out = {.data = best, .dtype = DTYPE_I32, .cols = 1}}};

    test_poison(best, sizeof best);
    for (size_t i = 0; i < cols; i++) { /* many equals in one row, all equal in another */
        x[cols + i] = (float)((int)(x[cols + i] * 2));
        x[2 * cols + i] = -3;
    }
    x[3 * cols + (size_t)(test_next(seed) >> 33) % cols] = odd[cols % 3];
    cuda_pair_mirror(p, x, ROWS * cols * sizeof *x);
    cuda_pair_mirror(p, best, sizeof best);
    test_step_make(&step, 1, n_rows, positions, 16);
    cuda_pair_run(p, &op, &step.step, NULL);
    cuda_pair_fetch(p, best, got, sizeof got);
    for (size_t i = 0; i < ROWS; i++) {
        size_t want = 0;

        for (size_t j = 1; j < cols; j++) {
            want = x[i * cols + j] > x[i * cols + want] ? j : want;
        }
        assert_int_equal(best[i], i == 3 ? -1 : (int32_t)want);
        assert_int_equal(got[i], best[i]);
    }
    cuda_pair_forget(p);
    test_step_release(&step);
    free(x);
}

static void the_first_of_the_largest(void **state)
{
    static const size_t widths[] = {1, 7, 63, 64, 65, 127, 1000, 8191, 8192, 8193, 20001, 248320};
    struct cuda_pair p;
    uint64_t seed = 5;

    (void)state;
    cuda_pair_open(&p);
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        run_width(&p, widths[i], &seed);
    }
    cuda_pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_of_the_largest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
