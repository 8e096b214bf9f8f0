/* cuda_forced_test.c - choices made in place of the routers: in captured and other steps, few rows and many.
 *
 * Place: backend/cuda, cmocka. The plan is two routers over one input; what they leave must be the step's
 *        table, and the routers' own choices again in the next step without one. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_testing.h"

enum { ROUTES = 2, HIDDEN = 64, EXPERTS = 24, TOP_K = 3, ROWS_MAX = 150, CONTEXT = 256 };

struct rig {
    struct cuda_pair pair;
    struct backend *be;
    struct op ops[ROUTES];
    int32_t *idx[ROUTES];
    float *prob[ROUTES], *x, *w;
};

static float *device_floats(struct backend *be, size_t n, uint64_t *seed)
{
    float *host = test_floats(n, 1, seed), *data = be->ops->buffer_new(be, n * sizeof *data);

    assert_non_null(data);
    be->ops->write(be, data, host, n * sizeof *host);
    free(host);
    return data;
}

static void rig_open(struct rig *r)
{
    uint64_t seed = 11;
    struct error err = {0};

    cuda_pair_open(&r->pair);
    r->be = r->pair.gpu;
    r->x = device_floats(r->be, ROWS_MAX * HIDDEN, &seed);
    r->w = device_floats(r->be, EXPERTS * HIDDEN, &seed);
    for (size_t i = 0; i < ROUTES; i++) {
        r->idx[i] = r->be->ops->buffer_new(r->be, ROWS_MAX * TOP_K * sizeof *r->idx[i]);
        r->prob[i] = r->be->ops->buffer_new(r->be, ROWS_MAX * TOP_K * sizeof *r->prob[i]);
        r->ops[i] =
            (struct op){.kind = OP_ROUTE,
                        .name = "router",
                        .u.route = {.in = test_operand(r->x, HIDDEN, DTYPE_F32),
                                    .router = {.kind = WEIGHT_DENSE,
                                               .dtype = DTYPE_F32,
                                               .n_out = EXPERTS,
                                               .n_in = HIDDEN,
                                               .data = r->w},
                                    .idx = {.data = r->idx[i], .dtype = DTYPE_I32, .cols = TOP_K},
                                    .prob = test_operand(r->prob[i], TOP_K, DTYPE_F32),
                                    .n_experts = EXPERTS,
                                    .top_k = TOP_K,
                                    .renormalise = true}};
        assert_int_equal(r->be->ops->check(r->be, &r->ops[i], &err), OK);
    }
    if (r->be->ops->prepare(r->be, r->ops, ROUTES, ROWS_MAX, CONTEXT, &err) != OK) {
        fail_msg("%s", err.text);
    }
}

static void rig_close(struct rig *r)
{
    for (size_t i = 0; i < ROUTES; i++) {
        r->be->ops->buffer_free(r->be, r->idx[i]);
        r->be->ops->buffer_free(r->be, r->prob[i]);
    }
    r->be->ops->buffer_free(r->be, r->x);
    r->be->ops->buffer_free(r->be, r->w);
    cuda_pair_close(&r->pair);
}

static enum status run_step(struct rig *r, const struct step *step, struct error *err)
{
    const struct state_pools none = {0};
    enum status rc = r->be->ops->begin(r->be, step, err);

    if (rc == OK) {
        rc = r->be->ops->run_all(r->be, step, &none, err);
    }
    return rc == OK ? r->be->ops->end(r->be, step, err) : rc;
}

/* The routers' choices of n rows: [ROUTES][n][TOP_K]. */
static void fetch(struct rig *r, size_t n, int32_t *idx, float *prob)
{
    for (size_t i = 0; i < ROUTES; i++) {
        r->be->ops->read(r->be, idx + i * n * TOP_K, r->idx[i], n * TOP_K * sizeof *idx);
        r->be->ops->read(r->be, prob + i * n * TOP_K, r->prob[i], n * TOP_K * sizeof *prob);
    }
}

static void expect_forced(struct rig *r, struct step *step, const int32_t *plain, uint64_t *seed,
                          bool has_next)
{
    static int32_t forced[ROUTES * ROWS_MAX * TOP_K], seen[ROUTES * ROWS_MAX * TOP_K];
    static float prob[ROUTES * ROWS_MAX * TOP_K];
    size_t n = ROUTES * step->n_rows * TOP_K;
    struct error err = {0};

    for (size_t i = 0; i < n; i++) {
        forced[i] = (int32_t)((test_next(seed) >> 33) % EXPERTS);
    }
    step->forced_idx = forced;
    step->forced_next = has_next ? plain : NULL;
    assert_int_equal(run_step(r, step, &err), OK);
    fetch(r, step->n_rows, seen, prob);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(seen[i], forced[i]);
        assert_true(prob[i] == 1.0f / TOP_K);
    }
    step->forced_idx = step->forced_next = NULL;
    assert_int_equal(run_step(r, step, &err), OK);
    fetch(r, step->n_rows, seen, prob);
    assert_memory_equal(seen, plain, n * sizeof *seen);
}

static void test_forced(void **state)
{
    static const size_t sizes[] = {1,  3, 63,      64,
                                   65, 1, ROWS_MAX}; /* rows; of one token or of many */
    static int32_t plain[ROUTES * ROWS_MAX * TOP_K];
    static float prob[ROUTES * ROWS_MAX * TOP_K];
    uint64_t seed = 5;
    struct error err = {0};
    struct rig r = {0};

    (void)state;
    rig_open(&r);
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i / 2], n_rows[ROWS_MAX], position[ROWS_MAX] = {0};
        bool is_decode = i % 2 == 0;
        struct test_step t;

        for (size_t j = 0; j < n; j++) {
            n_rows[j] = is_decode ? 1 : n;
        }
        test_step_make(&t, is_decode ? n : 1, n_rows, position, EXPERTS);
        assert_int_equal(run_step(&r, &t.step, &err), OK);
        fetch(&r, n, plain, prob);
        for (int turn = 0; turn < 3; turn++) {
            expect_forced(&r, &t.step, plain, &seed, turn == 2);
        }
        test_step_release(&t);
    }
    rig_close(&r);
}

static void test_wrong_ids(void **state)
{
    static const size_t one[] = {1}, zero[] = {0};
    int32_t forced[ROUTES * TOP_K] = {0, 1, EXPERTS};
    struct error err = {0};
    struct test_step t;
    struct rig r = {0};

    (void)state;
    rig_open(&r);
    test_step_make(&t, 1, one, zero, EXPERTS);
    t.step.forced_idx = forced;
    assert_int_equal(run_step(&r, &t.step, &err), ERR_INTERNAL);
    assert_non_null(strstr(err.text, "expert 24 was chosen of 24"));
    forced[2] = 2;
    t.step.forced_next = (const int32_t[]){0, 1, 2, 3, -1, 4};
    assert_int_equal(run_step(&r, &t.step, &err), ERR_INTERNAL);
    t.step.forced_next = NULL;
    assert_int_equal(run_step(&r, &t.step, &err), OK);
    test_step_release(&t);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forced),
        cmocka_unit_test(test_wrong_ids),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
