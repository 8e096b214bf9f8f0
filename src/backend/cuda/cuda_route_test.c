/* cuda_route_test.c - the router on the CPU and on the card.
 *
 * Place: backend/cuda. Both sides round their sums in different orders, so where two probabilities are as
 *        good as equal they may choose differently: such choices are compared by their size. */
#include "backend/cuda/cuda_testing.h"

/* What counts as a tie, and how far probabilities may differ. */
#define NEAR 1e-6

struct routing {
    struct cuda_pair *p;
    size_t E, k, H, n;
    enum test_kind kind;
    bool renormalise, is_of_out_rows;
    float *x, *prob, *margin;
    int32_t *idx;
    struct test_weight router;
    struct test_step step;
    struct op op;
    char name[CUDA_PAIR_NAME];
};

/* Sizes of inputs that give logits of about 1. */
static void routing_new(struct routing *r, uint64_t *seed)
{
    size_t zero = 0;

    test_step_make(&r->step, 1, &r->n, &zero, 9);
    test_weight_make(&r->router, r->kind, r->E, r->H, seed);
    r->x = test_floats(r->n * r->H, 4.0f / sqrtf((float)r->H), seed);
    r->prob = test_poisoned(r->n * r->k);
    r->idx = (int32_t *)(void *)test_poisoned(r->n * r->k);
    r->margin = test_poisoned(r->n);
    for (size_t i = 0; i < r->n; i++) {
        r->margin[i] = INFINITY;
        r->step.out_rows[i] = (int32_t)(r->n - 1 - i);
    }
    r->step.step.router_margin = r->margin;
    snprintf(r->name, sizeof r->name, "%zu of %zu, %zu inputs, %zu rows", r->k, r->E, r->H, r->n);
}

static void routing_run(struct routing *r)
{
    size_t n = r->n * r->k;

    r->op = (struct op){.kind = OP_ROUTE,
                        .name = "router",
                        .rows = r->is_of_out_rows ? ROWS_OUT : ROWS_ALL,
                        .u.route = {.in = test_operand(r->x, r->H, DTYPE_F32),
                                    .router = r->router.w,
                                    .idx = {.data = r->idx, .dtype = DTYPE_I32, .cols = r->k},
                                    .prob = test_operand(r->prob, r->k, DTYPE_F32),
                                    .n_experts = r->E,
                                    .top_k = r->k,
                                    .renormalise = r->renormalise}};
    cuda_pair_mirror(r->p, r->x, r->n * r->H * sizeof *r->x);
    cuda_pair_mirror(r->p, r->idx, n * sizeof *r->idx);
    cuda_pair_mirror(r->p, r->prob, n * sizeof *r->prob);
    cuda_pair_run(r->p, &r->op, &r->step.step, NULL);
}

static void routing_free(struct routing *r)
{
    cuda_pair_forget(r->p);
    free(r->x);
    free(r->prob);
    free(r->idx);
    free(r->margin);
    test_weight_release(&r->router);
    test_step_release(&r->step);
}

/* Expert e's probability for row i, from logits that `rows` holds as float32 weights. */
static void naive_probabilities(const struct routing *r, const float *rows, size_t i, double *p)
{
    double max = -INFINITY, sum = 0;

    for (size_t e = 0; e < r->E; e++) {
        p[e] = 0;
        for (size_t h = 0; h < r->H; h++) {
            p[e] += (double)rows[e * r->H + h] * (double)r->x[i * r->H + h];
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

/* The card's choices: distinct, and where they are not the CPU's, as large. Returns how many differ. */
static size_t compare_choices(const struct routing *r)
{
    int32_t *idx = malloc(r->n * r->k * sizeof *idx);
    float *rows = NULL;
    double *p = malloc(r->E * sizeof *p);
    size_t n_other = 0;

    assert_true(idx && p);
    cuda_pair_fetch(r->p, r->idx, idx, r->n * r->k * sizeof *idx);
    for (size_t i = 0; i < r->n; i++) {
        const int32_t *its = idx + i * r->k, *cpu = r->idx + i * r->k;

        for (size_t j = 0; j < r->k; j++) {
            if (its[j] < 0 || (size_t)its[j] >= r->E) {
                fail_msg("route, %s: row %zu choice %zu is %d", r->name, i, j, its[j]);
            }
            for (size_t l = 0; l < j; l++) {
                assert_int_not_equal(its[l], its[j]);
            }
        }
        if (!memcmp(its, cpu, r->k * sizeof *its)) {
            continue;
        }
        if (!rows) {
            rows = malloc(r->E * r->H * sizeof *rows);
            assert_non_null(rows);
            for (size_t e = 0; e < r->E; e++) {
                weight_row_f32(&r->router.w, e, rows + e * r->H);
            }
        }
        naive_probabilities(r, rows, i, p);
        for (size_t j = 0; j < r->k; j++) {
            double d = fabs(p[its[j]] - p[cpu[j]]);

            n_other += its[j] != cpu[j];
            if (d > NEAR) {
                fail_msg("route, %s: row %zu choice %zu is %d on the card, %d on the CPU, which "
                         "differ by %.3g",
                         r->name, i, j, its[j], cpu[j], d);
            }
        }
    }
    free(rows);
    free(p);
    free(idx);
    return n_other;
}

static void compare(const struct routing *r, const char *group)
{
    size_t n_other = compare_choices(r);

    cuda_pair_expect(r->p, group, r->name, DTYPE_F32, r->prob, r->n * r->k, 3 * NEAR);
    for (size_t i = 0; i < r->n; i++) {
        double got = (double)r->p->router_margin[i], want = (double)r->margin[i];

        if (got != want && !(fabs(got - want) <= NEAR)) {
            fail_msg("route, %s: row %zu has the margin %.9g on the card, %.9g on the CPU", r->name,
                     i, got, want);
        }
    }
    if (n_other > 0) {
        print_message("%s, %s: %zu choices between equals differ\n", group, r->name, n_other);
    }
}

/* --- sizes and kinds --- */

static const size_t CASES[][4] = {
    /* experts, chosen, inputs, rows */
    {256, 8, 2048, 1}, {256, 8, 128, 5},   {16, 4, 64, 64},   {16, 4, 64, 70},   {33, 1, 200, 3},
    {33, 1, 200, 66},  {7, 7, 33, 2},      {7, 7, 33, 127},   {1, 1, 7, 4},      {300, 64, 520, 1},
    {300, 64, 520, 4}, {300, 64, 520, 65}, {40, 33, 96, 9},   {1024, 32, 64, 6}, {1024, 32, 64, 68},
    {63, 8, 2056, 2},  {63, 8, 4160, 1},   {63, 8, 2080, 80}, {24, 6, 1056, 66},
};

static const size_t CARD_CASES[][4] = {
    {256, 8, 2048, 2},  {256, 8, 2048, 8},   {256, 8, 2048, 33},   {256, 8, 2048, 64},
    {256, 8, 2048, 65}, {256, 8, 2048, 512}, {256, 8, 2048, 4096}, {512, 10, 2048, 1000},
};

static void route_case(struct cuda_pair *p, const size_t c[4], enum test_kind kind, uint64_t *seed)
{
    struct routing r = {.p = p, .E = c[0], .k = c[1], .H = c[2], .n = c[3], .kind = kind};
    char group[CUDA_PAIR_NAME];

    r.renormalise = (c[2] + c[3] + (size_t)kind) % 2;
    r.is_of_out_rows = c[3] % 5 == 0;
    routing_new(&r, seed);
    routing_run(&r);
    snprintf(group, sizeof group, "%s (%s)", r.op.kernel, test_kind_name(kind));
    compare(&r, group);
    routing_free(&r);
}

static void the_same_experts_are_chosen(void **state)
{
    struct cuda_pair p;
    uint64_t seed = 51;

    (void)state;
    cuda_pair_open(&p);
    for (int kind = 0; kind < TEST_KINDS; kind++) {
        for (size_t c = 0; c < sizeof CASES / sizeof CASES[0]; c++) {
            const size_t *its = CASES[c];

            p.runs_once = p.is_emulated && its[0] * its[2] * its[3] > 2000000;
            if (test_kind_fits((enum test_kind)kind, its[2]) && !(p.runs_once && kind > TEST_F16)) {
                route_case(&p, its, (enum test_kind)kind, &seed);
            }
        }
        for (size_t c = 0; !p.is_emulated && c < sizeof CARD_CASES / sizeof CARD_CASES[0]; c++) {
            route_case(&p, CARD_CASES[c], (enum test_kind)kind, &seed);
        }
    }
    cuda_pair_close(&p);
}

static void older_cards_choose_alike(void **state)
{
    struct cuda_pair p;
    uint64_t seed = 52;

    (void)state;
    cuda_pair_open_sm(&p, 75);
    route_case(&p, (const size_t[]){64, 8, 64, 5}, TEST_BF16, &seed);
    route_case(&p, (const size_t[]){64, 8, 64, 70}, TEST_F16, &seed);
    cuda_pair_close(&p);
}

/* --- ties and faults, by few rows and by many --- */

static void ties_go_to_the_lower_id(void **state)
{
    static const size_t rows[] = {1, 3, 66};
    struct cuda_pair p;
    uint64_t seed = 53;

    (void)state;
    cuda_pair_open(&p);
    for (size_t c = 0; c < 6; c++) {
        struct routing r = {.p = &p, .E = 300, .k = 5, .H = 8, .n = rows[c / 2], .kind = TEST_F32};
        size_t n_equal = 0;

        r.renormalise = c % 2;
        routing_new(&r, &seed);
        for (size_t i = 0; i < r.n * r.H; i++) {
            r.x[i] = i % r.H == 0;
        }
        for (size_t e = 0; e < r.E; e++) { /* 9 = 3 < 5 = 7 = 11 = 295 < the rest */
            float w = e == 9 || e == 3 ? 2 : e == 5 || e == 7 || e == 11 || e == 295 ? 1 : 0;

            dtype_store(DTYPE_F32, (uint8_t *)(uintptr_t)r.router.w.data, e * r.H, w);
        }
        routing_run(&r);
        n_equal = compare_choices(&r);
        assert_int_equal(n_equal, 0);
        for (size_t i = 0; i < r.n; i++) {
            static const int32_t want[] = {3, 9, 5, 7, 11};

            assert_memory_equal(r.idx + i * 5, want, sizeof want);
            assert_true(p.router_margin[i] == 0); /* 11 against 295 */
        }
        cuda_pair_expect(&p, r.op.kernel, r.name, DTYPE_F32, r.prob, r.n * r.k, NEAR);
        routing_free(&r);
    }
    cuda_pair_close(&p);
}

static void broken_rows_choose_distinct_experts(void **state)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    static const size_t rows[] = {1, 5, 67};
    struct cuda_pair p;
    uint64_t seed = 54;

    (void)state;
    cuda_pair_open(&p);
    for (size_t c = 0; c < 9; c++) {
        struct routing r = {.p = &p, .E = 70, .k = 6, .H = 16, .n = rows[c / 3], .kind = TEST_BF16};
        float prob[67 * 6];

        routing_new(&r, &seed);
        for (size_t i = 0; i < r.n; i += 2) {
            r.x[i * r.H + i % r.H] = bad[c % 3];
        }
        routing_run(&r);
        assert_int_equal(compare_choices(&r), 0);
        cuda_pair_fetch(&p, r.prob, prob, r.n * r.k * sizeof *prob);
        for (size_t i = 0; i < r.n; i++) {
            assert_true(i % 2 == 0 ? isnan(prob[i * r.k]) : isfinite(prob[i * r.k]));
            assert_true((p.router_margin[i] == 0) == (r.margin[i] == 0));
        }
        routing_free(&r);
    }
    cuda_pair_close(&p);
}

/* Layers follow each other: margins are their least, and no layer leaves the next a ticket. */
static void layers_share_a_margin(void **state)
{
    struct cuda_pair p;
    uint64_t seed = 55;

    (void)state;
    cuda_pair_open(&p);
    for (size_t n = 1; n <= 70; n += 23) {
        struct routing r = {.p = &p, .E = 64, .k = 4, .H = 64, .n = n, .kind = TEST_BF16};
        struct test_weight other;
        struct op ops[3];

        routing_new(&r, &seed);
        test_weight_make(&other, TEST_F32, r.E, r.H, &seed);
        routing_run(&r); /* makes the op */
        ops[0] = ops[1] = ops[2] = r.op;
        ops[1].u.route.router = other.w;
        for (size_t i = 0; i < n; i++) {
            r.margin[i] = INFINITY;
        }
        cuda_pair_run_plan(&p, ops, 3, &r.step.step, NULL);
        compare(&r, "three layers");
        test_weight_release(&other);
        routing_free(&r);
    }
    cuda_pair_close(&p);
}

static void odd_routers_are_refused(void **state)
{
    struct cuda_pair p;
    struct routing r = {.p = &p, .E = 16, .k = 4, .H = 8, .n = 1, .kind = TEST_BF16};
    uint64_t seed = 56;
    struct op op;

    (void)state;
    cuda_pair_open(&p);
    routing_new(&r, &seed);
    routing_run(&r);
    op = r.op;
    op.kernel = NULL;
    op.u.route.n_experts = 15;
    cuda_pair_refused(&p, &op, "16 rows for 15 experts");
    op.u.route.n_experts = 1025;
    cuda_pair_refused(&p, &op, "4 of 1025 experts");
    op.u.route.n_experts = 3;
    cuda_pair_refused(&p, &op, "4 of 3 experts");
    op.u.route.n_experts = 16;
    op.u.route.idx.dtype = DTYPE_F32;
    cuda_pair_refused(&p, &op, "int32 buffer of 4");
    routing_free(&r);
    cuda_pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_experts_are_chosen),
        cmocka_unit_test(older_cards_choose_alike),
        cmocka_unit_test(ties_go_to_the_lower_id),
        cmocka_unit_test(broken_rows_choose_distinct_experts),
        cmocka_unit_test(layers_share_a_margin),
        cmocka_unit_test(odd_routers_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
