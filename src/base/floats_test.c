/* floats_test.c - against plain loops, at every length around the blocks, with the odd values anywhere. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/floats.h"

enum { N_MAX = 2600 };

static float *numbers(size_t n, unsigned seed)
{
    float *x = calloc(n + 1, sizeof *x);

    assert_non_null(x);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 20) - 2048.0f;
    }
    return x;
}

static void test_max(void **state)
{
    (void)state;
    for (size_t n = 0; n < N_MAX; n += n < 140 ? 1 : 97) {
        float *x = numbers(n, (unsigned)n + 1), max = -INFINITY;
        size_t where = 0;

        for (size_t i = 0; i < n; i++) {
            if (x[i] > max) {
                max = x[i];
                where = i;
            }
        }
        assert_true(floats_max(x, n) == max);
        assert_int_equal(floats_argmax(x, n), where);
        free(x);
    }
}

static void test_odd_values(void **state)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN, -NAN};
    float *x = numbers(N_MAX, 7);

    (void)state;
    assert_true(floats_are_finite(x, N_MAX));
    assert_true(floats_are_finite(x, 0));
    for (size_t i = 0; i < N_MAX; i += 13) {
        for (size_t o = 0; o < sizeof odd / sizeof *odd; o++) {
            float kept = x[i];

            x[i] = odd[o];
            assert_false(floats_are_finite(x, N_MAX));
            assert_false(floats_are_finite(x + i, 1));
            assert_true(floats_are_finite(x, i));
            x[i] = kept;
        }
    }
    x[5] = NAN;
    x[6] = 5000;
    assert_true(floats_max(x, N_MAX) == 5000);
    assert_int_equal(floats_argmax(x, N_MAX), 6);
    x[6] = NAN;
    assert_int_equal(floats_argmax(x + 5, 2), 0);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_max),
        cmocka_unit_test(test_odd_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
