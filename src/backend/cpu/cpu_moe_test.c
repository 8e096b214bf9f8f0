/* cpu_moe_test.c - router and routed experts against double. */
#include "backend/cpu/cpu_test_util.h"

/* --- router --- */

struct routing {
    size_t E, k, H, n;
    float *x, *prob, *margin;
    int32_t *idx;
    struct test_weight router;
};

static void routing_new(struct routing *r, size_t E, size_t k, size_t H, size_t n, uint64_t *seed)
{
    *r = (struct routing){.E = E, .k = k, .H = H, .n = n};
    r->x = test_floats(n * H, 1, seed);
    r->prob = test_poisoned(n * k);
    r->idx = (int32_t *)(void *)test_poisoned(n * k);
    r->margin = test_poisoned(n);
    for (size_t i = 0; i < n; i++) {
        r->margin[i] = INFINITY;
    }
    test_weight_make(&r->router, TEST_BF16, E, H, seed);
}

static void routing_free(struct routing *r)
{
    free(r->x);
    free(r->prob);
    free(r->idx);
    free(r->margin);
    test_weight_release(&r->router);
}

static void route(struct backend *be, struct routing *r, bool renormalise)
{
    struct op op = {.kind = OP_ROUTE};
    struct step step = {.n_rows = r->n, .router_margin = r->margin};

    op.u.route = (struct op_route){
        .in = test_operand(r->x, r->H, DTYPE_F32),
        .router = r->router.w,
        .idx = {.data = r->idx, .dtype = DTYPE_I32, .cols = r->k},
        .prob = test_operand(r->prob, r->k, DTYPE_F32),
        .n_experts = r->E,
        .top_k = r->k,
        .renormalise = renormalise,
    };
    test_prepare(be, &op, r->n);
    test_run(be, &op, &step, NULL);
}

/* Row i of the router in double: the probabilities of all experts. */
static void naive_route(const struct routing *r, size_t i, double *p)
{
    double max = -INFINITY, sum = 0;
    float row[256];

    for (size_t e = 0; e < r->E; e++) {
        weight_row_f32(&r->router.w, e, row);
        p[e] = 0;
        for (size_t h = 0; h < r->H; h++) {
            p[e] += (double)row[h] * (double)r->x[i * r->H + h];
        }
        max = fmax(max, p[e]);
    }
    for (size_t e = 0; e < r->E; e++) {
        p[e] = exp(p[e] - max);
        sum += p[e];
    }
    for (size_t e = 0; e < r->E; e++) {
        p[e] /= sum;
    }
}

static void the_top_k_are_the_largest(void **state)
{
    static const size_t cases[][3] = {{16, 4, 64}, {256, 8, 65}, {7, 7, 33}, {33, 1, 200}};
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);
    uint64_t seed = 41;

    (void)state;
    for (size_t c = 0; c < n_isas * 8; c++) {
        struct backend *be = test_backend(isas[c / 8], 2);
        bool renormalise = c / 4 % 2;
        struct routing r;
        double p[256];

        routing_new(&r, cases[c % 4][0], cases[c % 4][1], cases[c % 4][2], 17, &seed);
        route(be, &r, renormalise);
        for (size_t i = 0; i < r.n; i++) {
            double sum = 0, left = 0, total = 0;

            naive_route(&r, i, p);
            for (size_t j = 0; j < r.k; j++) {
                sum += p[r.idx[i * r.k + j]];
            }
            for (size_t j = 0; j < r.k; j++) {
                double want = p[r.idx[i * r.k + j]] / (renormalise ? sum : 1);
                double got = (double)r.prob[i * r.k + j];

                assert_true(fabs(got - want) < 2e-6 * want + 1e-9);
                assert_true(j == 0 || r.prob[i * r.k + j] <= r.prob[i * r.k + j - 1]);
                total += got;
            }
            assert_true(!renormalise || fabs(total - 1) < 1e-6);
            sum = p[r.idx[i * r.k + r.k - 1]];
            for (size_t j = 0; j < r.k; j++) {
                p[r.idx[i * r.k + j]] = -1; /* also shows a repeated id: it would not fit below */
            }
            left = -1;
            for (size_t e = 0; e < r.E; e++) {
                left = fmax(left, p[e]);
            }
            if (r.k < r.E) {
                assert_true(left <= sum + 1e-7);
                assert_true(fabs((double)r.margin[i] - (sum - left)) < 1e-6);
            } else {
                assert_true(left == -1 && isinf(r.margin[i]));
            }
        }
        routing_free(&r);
        be->ops->free(be);
    }
}

static void ties_go_to_the_lower_id(void **state)
{
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);
    uint64_t seed = 42;

    (void)state;
    for (size_t a = 0; a < n_isas; a++) {
        struct backend *be = test_backend(isas[a], 1);
        uint16_t rows[12] = {0};
        struct routing r;

        routing_new(&r, 12, 4, 1, 1, &seed);
        r.x[0] = 1;
        rows[9] = rows[3] = bf16_from_f32(2);
        rows[5] = rows[7] = rows[11] = bf16_from_f32(1);
        r.router.w.data = rows;
        route(be, &r, true);
        assert_int_equal(r.idx[0], 3);
        assert_int_equal(r.idx[1], 9);
        assert_int_equal(r.idx[2], 5);
        assert_int_equal(r.idx[3], 7);
        assert_true(r.margin[0] == 0); /* 7 against 11 */
        r.margin[0] = -1;              /* a smaller one of an earlier layer stays */
        route(be, &r, true);
        assert_true(r.margin[0] == -1);
        routing_free(&r);
        be->ops->free(be);
    }
}

static void broken_logits_still_choose_distinct_experts(void **state)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);
    uint64_t seed = 43;

    (void)state;
    for (size_t c = 0; c < 3 * n_isas; c++) {
        struct backend *be = test_backend(isas[c / 3], 1);
        struct routing r;

        routing_new(&r, 16, 4, 8, 2, &seed);
        r.x[3] = bad[c % 3];
        route(be, &r, true);
        for (size_t j = 0; j < 4; j++) {
            assert_true(r.idx[j] >= 0 && r.idx[j] < 16);
            for (size_t i = 0; i < j; i++) {
                assert_int_not_equal(r.idx[i], r.idx[j]);
            }
        }
        assert_true(isnan(r.prob[0]));
        assert_true(isfinite(r.prob[4])); /* the other row is well */
        routing_free(&r);
        be->ops->free(be);
    }
}

/* --- experts --- */

struct layer {
    size_t E, k, H, I;
    enum dtype round;
    struct test_weight *parts; /* [E][3]: gate, up, down */
    struct expert_weights *experts;
};

static void layer_new(struct layer *l, size_t E, size_t k, size_t H, size_t I,
                      const enum test_kind kinds[3], uint64_t *seed)
{
    *l = (struct layer){.E = E, .k = k, .H = H, .I = I, .round = DTYPE_F32};
    l->parts = calloc(3 * E, sizeof *l->parts);
    l->experts = calloc(E, sizeof *l->experts);
    for (size_t e = 0; e < E; e++) {
        test_weight_make(&l->parts[3 * e], kinds[0], I, H, seed);
        test_weight_make(&l->parts[3 * e + 1], kinds[1], I, H, seed);
        test_weight_make(&l->parts[3 * e + 2], kinds[2], H, I, seed);
        l->experts[e].gate = l->parts[3 * e].w;
        l->experts[e].up = l->parts[3 * e + 1].w;
        l->experts[e].down = l->parts[3 * e + 2].w;
    }
}

static void layer_free(struct layer *l)
{
    for (size_t i = 0; i < 3 * l->E; i++) {
        test_weight_release(&l->parts[i]);
    }
    free(l->parts);
    free(l->experts);
}

static void experts(struct backend *be, const struct layer *l, const float *x, const int32_t *idx,
                    const float *prob, size_t n, float *out)
{
    struct op op = {.kind = OP_EXPERTS};
    struct step step = {.n_rows = n};

    op.u.experts = (struct op_experts){
        .in = test_operand((float *)(uintptr_t)x, l->H, l->round),
        .idx = {.data = (void *)(uintptr_t)idx, .dtype = DTYPE_I32, .cols = l->k},
        .prob = test_operand((float *)(uintptr_t)prob, l->k, DTYPE_F32),
        .out = test_operand(out, l->H, DTYPE_F32),
        .experts = l->experts,
        .n_experts = l->E,
        .top_k = l->k,
        .width = l->I,
    };
    test_prepare(be, &op, n);
    test_run(be, &op, &step, NULL);
}

/* y += p * down(silu(gate x) * up x) in double; size gathers what was added up. */
static void naive_expert(const struct layer *l, size_t e, const float *x, double p, double *y,
                         double *size)
{
    float row[256];
    double h[256];

    for (size_t i = 0; i < l->I; i++) {
        double gate = 0, up = 0;

        weight_row_f32(&l->experts[e].gate, i, row);
        for (size_t k = 0; k < l->H; k++) {
            gate += (double)row[k] * (double)x[k];
        }
        weight_row_f32(&l->experts[e].up, i, row);
        for (size_t k = 0; k < l->H; k++) {
            up += (double)row[k] * (double)x[k];
        }
        h[i] = gate / (1 + exp(-gate)) * up;
    }
    for (size_t o = 0; o < l->H; o++) {
        weight_row_f32(&l->experts[e].down, o, row);
        for (size_t i = 0; i < l->I; i++) {
            y[o] += p * (double)row[i] * h[i];
            size[o] += fabs(p * (double)row[i] * h[i]);
        }
    }
}

/* Random choices, k distinct experts a row; expert 0 is never chosen. */
static void random_choices(const struct layer *l, size_t n, int32_t *idx, float *prob,
                           uint64_t *seed)
{
    for (size_t i = 0; i < n; i++) {
        size_t first = (size_t)(test_next(seed) >> 33);

        for (size_t j = 0; j < l->k; j++) {
            idx[i * l->k + j] = (int32_t)(1 + (first + j * 3) % (l->E - 1));
            prob[i * l->k + j] = 0.5f + 0.4f * test_float(seed);
        }
    }
}

static const enum test_kind KINDS[][3] = {
    {TEST_F32, TEST_F32, TEST_F32},
    {TEST_INT4, TEST_INT4, TEST_INT4},
    {TEST_INT4_PERM, TEST_INT4_PERM, TEST_INT4_PERM},
    {TEST_INT4_ZEROS, TEST_BF16, TEST_INT8},
};
static const size_t ROWS[] = {1, 2, 3, 5, 8, 17, 64, 65};

static void experts_agree_with_the_definition(void **state)
{
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);
    uint64_t seed = 44;

    (void)state;
    printf("experts, largest error / sum of sizes:\n");
    for (size_t c = 0; c < n_isas * 4; c++) {
        struct backend *be = test_backend(isas[c / 4], 2);
        struct layer l;
        double worst = 0;

        layer_new(&l, 8, 3, 64, 96, KINDS[c % 4], &seed);
        for (size_t r = 0; r < 8; r++) {
            size_t n = ROWS[r];
            float *x = test_floats(n * l.H, 1, &seed), *prob = test_poisoned(n * l.k);
            float *out = test_poisoned(n * l.H);
            int32_t *idx = (int32_t *)(void *)test_poisoned(n * l.k);

            random_choices(&l, n, idx, prob, &seed);
            experts(be, &l, x, idx, prob, n, out);
            for (size_t i = 0; i < n; i++) {
                double y[64] = {0}, size[64] = {0};

                for (size_t j = 0; j < l.k; j++) {
                    naive_expert(&l, (size_t)idx[i * l.k + j], x + i * l.H,
                                 (double)prob[i * l.k + j], y, size);
                }
                for (size_t o = 0; o < l.H; o++) {
                    double error = fabs((double)out[i * l.H + o] - y[o]) / (size[o] + 1e-9);

                    assert_true(isfinite(error));
                    worst = fmax(worst, error);
                }
            }
            free(idx);
            free(out);
            free(prob);
            free(x);
        }
        printf("  %-6s %-10s %.1e\n", test_isa_name(isas[c / 4]), test_kind_name(KINDS[c % 4][0]),
               worst);
        assert_true(worst < 5e-6);
        layer_free(&l);
        be->ops->free(be);
    }
}

/* A row's sum is the same bits alone, grouped with others by expert, and on any number of threads. */
static void rows_do_not_depend_on_company(void **state)
{
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas), n = 65;
    uint64_t seed = 45;

    (void)state;
    for (size_t c = 0; c < n_isas * 8; c++) {
        struct backend *by_threads[3];
        struct layer l;
        float *x, *prob, *whole, *part;
        int32_t *idx;

        for (size_t t = 0; t < 3; t++) {
            by_threads[t] = test_backend(isas[c / 8], t + 1);
        }
        layer_new(&l, 6, 3, 64, 32, KINDS[c % 4], &seed);
        l.round = c / 4 % 2 ? DTYPE_BF16 : DTYPE_F32;
        x = test_floats(n * l.H, 1, &seed);
        prob = test_poisoned(n * l.k);
        idx = (int32_t *)(void *)test_poisoned(n * l.k);
        whole = test_poisoned(n * l.H);
        random_choices(&l, n, idx, prob, &seed);
        experts(by_threads[0], &l, x, idx, prob, n, whole);
        for (size_t r = 0; r < 8; r++) {
            size_t first = n - ROWS[r];

            part = test_poisoned(ROWS[r] * l.H);
            experts(by_threads[r % 3], &l, x + first * l.H, idx + first * l.k, prob + first * l.k,
                    ROWS[r], part);
            assert_memory_equal(part, whole + first * l.H, ROWS[r] * l.H * sizeof *part);
            free(part);
        }
        for (size_t t = 0; t < 3; t++) {
            by_threads[t]->ops->free(by_threads[t]);
        }
        free(whole);
        free(idx);
        free(prob);
        free(x);
        layer_free(&l);
    }
}

/* With one choice of probability 1 the op is gate, up, swiglu and down, each rounded as there. */
static void one_expert_is_an_mlp(void **state)
{
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);
    uint64_t seed = 46;

    (void)state;
    for (size_t a = 0; a < n_isas; a++) {
        struct backend *be = test_backend(isas[a], 1);
        struct layer l;
        float *x = test_floats(64, 1, &seed), gate[96], up[96], want[64], got[64], one = 1;
        int32_t choice = 2;
        struct op op = {.kind = OP_LINEAR};
        struct step step = {.n_rows = 1};

        layer_new(&l, 4, 1, 64, 96, KINDS[1], &seed);
        l.round = DTYPE_F16;
        experts(be, &l, x, &choice, &one, 1, got);
        op.u.linear.in = test_operand(x, 64, DTYPE_F16);
        op.u.linear.n_parts = 2;
        op.u.linear.part[0].w = l.experts[2].gate;
        op.u.linear.part[0].out = test_operand(gate, 96, DTYPE_F16);
        op.u.linear.part[1].w = l.experts[2].up;
        op.u.linear.part[1].out = test_operand(up, 96, DTYPE_F16);
        test_prepare(be, &op, 1);
        test_run(be, &op, &step, NULL);
        op = (struct op){.kind = OP_SWIGLU};
        op.u.swiglu.gate = test_operand(gate, 96, DTYPE_F16);
        op.u.swiglu.up = test_operand(up, 96, DTYPE_F16);
        op.u.swiglu.out = test_operand(gate, 96, DTYPE_F16);
        test_prepare(be, &op, 1);
        test_run(be, &op, &step, NULL);
        op = (struct op){.kind = OP_LINEAR};
        op.u.linear.in = test_operand(gate, 96, DTYPE_F16);
        op.u.linear.n_parts = 1;
        op.u.linear.part[0].w = l.experts[2].down;
        op.u.linear.part[0].out = test_operand(want, 64, DTYPE_F32);
        test_prepare(be, &op, 1);
        test_run(be, &op, &step, NULL);
        assert_memory_equal(got, want, sizeof got);
        layer_free(&l);
        free(x);
        be->ops->free(be);
    }
}

static void wrong_experts_are_refused(void **state)
{
    struct backend *be = test_backend(CPU_ISA_AUTO, 1);
    struct layer l;
    uint64_t seed = 47;
    float x[64] = {0}, out[64], prob[2] = {1, 1};
    int32_t idx[2] = {4, 4};
    struct op good = {.kind = OP_EXPERTS}, op;
    struct step step = {.n_rows = 1};
    struct error err;

    (void)state;
    layer_new(&l, 4, 1, 64, 96, KINDS[1], &seed);
    good.u.experts = (struct op_experts){
        .in = test_operand(x, 64, DTYPE_F32),
        .idx = {.data = idx, .dtype = DTYPE_I32, .cols = 1},
        .prob = test_operand(prob, 1, DTYPE_F32),
        .out = test_operand(out, 64, DTYPE_F32),
        .experts = l.experts,
        .n_experts = 4,
        .top_k = 1,
        .width = 96,
    };
    op = good;
    test_prepare(be, &op, 1);
    assert_int_equal(be->ops->run(be, &op, &step, NULL, &err), ERR_INTERNAL); /* there is no 4 */
    op = good;
    idx[0] = idx[1] = 3;
    op.u.experts.top_k = op.u.experts.idx.cols = op.u.experts.prob.cols = 2;
    test_prepare(be, &op, 1);
    assert_int_equal(be->ops->run(be, &op, &step, NULL, &err), ERR_INTERNAL); /* twice the same */
    op = good;
    op.u.experts.width = 95;
    test_refused(be, &op, "expert 0: ");
    op = good;
    op.u.experts.idx.dtype = DTYPE_F32;
    test_refused(be, &op, "int32");
    op = good;
    op.u.experts.out.round = DTYPE_F16;
    test_refused(be, &op, "the output must be float32");
    op = good;
    l.experts[3].down.kind = WEIGHT_NONE;
    test_refused(be, &op, "expert 3: ");
    layer_free(&l);
    be->ops->free(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_top_k_are_the_largest),
        cmocka_unit_test(ties_go_to_the_lower_id),
        cmocka_unit_test(broken_logits_still_choose_distinct_experts),
        cmocka_unit_test(experts_agree_with_the_definition),
        cmocka_unit_test(rows_do_not_depend_on_company),
        cmocka_unit_test(one_expert_is_an_mlp),
        cmocka_unit_test(wrong_experts_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
