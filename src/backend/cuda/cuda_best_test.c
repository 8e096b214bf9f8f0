/* cuda_best_test.c - the largest values of each row on the CPU and on the card, against plain sorting: widths
 * around the parts that rows are cut into, equals, clusters, values that are not finite. */
#include "backend/cuda/cuda_testing.h"

#include <math.h>

enum {
    PLAIN,     /* different values */
    EQUALS,    /* many of them */
    SAME,      /* all are, also -0 and 0 */
    CLUSTER,   /* the largest are neighbours */
    STRIPES,   /* and in few of the card's blocks */
    INFINITE,  /* one is */
    NOT_THERE, /* one is -infinity */
    NOT_ONE,   /* one is NaN */
    ROWS
};

static void fill(float *x, size_t cols, int kind, uint64_t *seed)
{
    size_t place = (size_t)(test_next(seed) >> 33) % cols;

    for (size_t i = 0; i < cols; i++) {
        switch (kind) {
        case EQUALS:
            x[i] = (float)(int)(x[i] * 2);
            break;
        case SAME:
            x[i] = i % 3 == 0 ? -0.0f : 0.0f;
            break;
        case CLUSTER:
            x[i] += i >= place && i < place + 700 ? 20 : 0;
            break;
        case STRIPES:
            x[i] += i / 32 % 64 == place % 64 ? 20 : 0;
            break;
        default:
            break;
        }
    }
    if (kind >= INFINITE) {
        static const float odd[] = {INFINITY, -INFINITY, NAN};

        x[place] = odd[kind - INFINITE];
    }
}

/* The plain way: the largest that has not been taken, again and again. */
static void expect_row(const struct best_row *row, const float *x, size_t cols)
{
    bool is_finite = true;
    float last = INFINITY;
    int32_t last_id = -1;

    for (size_t i = 0; i < cols; i++) {
        is_finite = is_finite && isfinite(x[i]);
    }
    for (size_t k = 0; k < BEST_TOP; k++) {
        int32_t id = -1;

        for (size_t i = 0; is_finite && i < cols; i++) {
            bool is_left = x[i] < last || (x[i] == last && (int32_t)i > last_id);

            if (is_left && (id < 0 || x[i] > x[id])) {
                id = (int32_t)i;
            }
        }
        assert_int_equal(row->ids[k], id);
        assert_true(row->values[k] == (id < 0 ? -INFINITY : x[id]));
        last = id < 0 ? -INFINITY : x[id];
        last_id = id;
        is_finite = is_finite && id >= 0;
    }
}

static void run_width(struct cuda_pair *p, size_t cols, size_t n_rows, uint64_t *seed)
{
    size_t counts[] = {n_rows}, positions[] = {0};
    float *x = test_floats(n_rows * cols, 4, seed);
    struct best_row *best = calloc(n_rows, sizeof *best), *got = calloc(n_rows, sizeof *got);
    struct test_step step;
    struct op op = {
        .kind = OP_BEST,
        .rows = ROWS_OUT,
        .name = "best",
        .u.best = {.in = test_operand(x, cols, DTYPE_F32),
                   .out = {.data = best, .dtype = DTYPE_I32, .cols = 2 * (size_t)BEST_TOP}}};

    assert_non_null(best);
    assert_non_null(got);
    test_poison(best, n_rows * sizeof *best);
    for (size_t i = 0; i < n_rows; i++) {
        fill(x + i * cols, cols, (int)(i % ROWS), seed);
    }
    cuda_pair_mirror(p, x, n_rows * cols * sizeof *x);
    cuda_pair_mirror(p, best, n_rows * sizeof *best);
    test_step_make(&step, 1, counts, positions, 16);
    cuda_pair_run(p, &op, &step.step, NULL);
    cuda_pair_fetch(p, best, got, n_rows * sizeof *got);
    for (size_t i = 0; i < n_rows; i++) {
        expect_row(best + i, x + i * cols, cols);
        assert_memory_equal(best + i, got + i, sizeof *got);
    }
    cuda_pair_forget(p);
    test_step_release(&step);
    free(best);
    free(got);
    free(x);
}

static void the_largest(void **state)
{
    static const size_t widths[] = {1,   7,    31,   32,   33,   63,   64,   65,   127,  511,  512,
                                    513, 1000, 2047, 2048, 2049, 8191, 8192, 8193, 8194, 20001};
    struct cuda_pair p;
    uint64_t seed = 5;

    (void)state;
    cuda_pair_open(&p);
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        run_width(&p, widths[i], ROWS, &seed);
    }
    run_width(&p, 100, 131, &seed); /* more rows than a launch has */
    run_width(&p, 248320, p.is_emulated ? CLUSTER + 1 : ROWS, &seed);
    run_width(&p, 262144 + 60, p.is_emulated ? 1 : ROWS, &seed); /* more than one round */
    cuda_pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
