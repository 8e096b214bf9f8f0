/* weight_quantise_test.c - int8 from dense matrices: how far off, what of extreme values. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the four above */
#include <cmocka.h>

#include "backend/weight_quantise.h"
#include "base/arena.h"
#include "base/half.h"
#include "base/pool.h"

enum { N_OUT = 37, N_IN = 256 };

static float noise(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*seed >> 32) / 2147483648.0f;
}

/* Random rows of very different size; data begins at an odd element. */
static uint8_t *dense(struct weight *w, enum dtype type)
{
    size_t each = dtype_bytes(type);
    uint8_t *data = aligned_new((N_OUT * N_IN + 1) * each);
    uint64_t seed = 5;

    assert_non_null(data);
    for (size_t n = 0; n < N_OUT; n++) {
        for (size_t k = 0; k < N_IN; k++) {
            dtype_store(type, data + each, n * N_IN + k, ldexpf(noise(&seed), (int)(n % 16) - 12));
        }
    }
    *w = (struct weight){
        .kind = WEIGHT_DENSE, .dtype = type, .n_out = N_OUT, .n_in = N_IN, .data = data + each};
    return data;
}

static void values_are_within_half_a_step(void **state)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    static const size_t groups[] = {32, 64, 128, N_IN};
    struct pool *pool;

    (void)state;
    assert_int_equal(pool_new(&pool, 2, NULL), OK);
    for (size_t c = 0; c < 12; c++) {
        size_t group = groups[c / 3];
        struct weight src, w;
        uint8_t *data = dense(&src, types[c % 3]);
        void *block = aligned_new(weight_int8_bytes(&src, group));
        float want[N_IN], got[N_IN];

        assert_true(weight_int8_fits(&src, group));
        weight_quantise_int8(&w, block, &src, group, c % 2 ? pool : NULL);
        assert_int_equal(w.kind, WEIGHT_INT8);
        assert_null(w.zeros);
        for (size_t n = 0; n < N_OUT; n++) {
            weight_row_f32(&src, n, want);
            weight_row_f32(&w, n, got);
            for (size_t g = 0; g < N_IN; g += group) {
                float most = 0;

                for (size_t k = g; k < g + group; k++) {
                    most = fmaxf(most, fabsf(want[k]));
                }
                for (size_t k = g; k < g + group; k++) {
                    /* half a step of most / 127, rounded up to 8 bits */
                    assert_true(fabsf(got[k] - want[k]) <= most / 254 * (1 + 1.0f / 128));
                }
            }
        }
        for (size_t i = 0; i < (size_t)N_OUT * N_IN; i++) {
            assert_int_not_equal(((const uint8_t *)w.data)[i], 0); /* -128 */
        }
        free(block);
        free(data);
    }
    pool_free(pool);
}

static void extreme_groups_stay_true(void **state)
{
    float rows[5][32] = {0};
    struct weight w,
        src = {.kind = WEIGHT_DENSE, .dtype = DTYPE_F32, .n_out = 5, .n_in = 32, .data = rows};
    void *block = aligned_new(weight_int8_bytes(&src, 32));
    float got[32];

    (void)state;
    rows[1][3] = INFINITY;
    rows[2][4] = NAN;
    rows[3][5] = 3e38f;
    rows[3][6] = -3e38f;
    rows[4][7] = 1e-44f;
    weight_quantise_int8(&w, block, &src, 32, NULL);
    weight_row_f32(&w, 0, got);
    for (size_t k = 0; k < 32; k++) {
        assert_true(got[k] == 0);
    }
    weight_row_f32(&w, 1, got);
    assert_true(isnan(got[0]));
    weight_row_f32(&w, 2, got);
    assert_true(isnan(got[31]));
    weight_row_f32(&w, 3, got);
    assert_true(fabsf(got[5] / 3e38f - 1) < 0.01f && fabsf(got[6] / 3e38f + 1) < 0.01f);
    assert_true(got[0] == 0);
    weight_row_f32(&w, 4, got);
    assert_true(fabsf(got[7]) < 1e-38f);
    free(block);
}

static void shapes_that_do_not_fit_are_told(void **state)
{
    struct weight w = {.kind = WEIGHT_DENSE, .dtype = DTYPE_BF16, .n_out = 4, .n_in = 96};

    (void)state;
    assert_true(weight_int8_fits(&w, 32));
    assert_true(weight_int8_fits(&w, 96));
    assert_false(weight_int8_fits(&w, 64));
    assert_false(weight_int8_fits(&w, 48));
    assert_false(weight_int8_fits(&w, 0));
    assert_int_equal(weight_int8_bytes(&w, 96), 4 * 96 + 64);
    w.n_in = 100;
    assert_false(weight_int8_fits(&w, 100));
    w.n_in = 96;
    w.kind = WEIGHT_INT8;
    assert_false(weight_int8_fits(&w, 32));
    w.n_out = SIZE_MAX / 64;
    assert_int_equal(weight_int8_bytes(&w, 32), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_within_half_a_step),
        cmocka_unit_test(extreme_groups_stay_true),
        cmocka_unit_test(shapes_that_do_not_fit_are_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
