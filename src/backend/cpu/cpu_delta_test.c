/* cpu_delta_test.c - the gated delta rule against a naive recurrence in double. */
#include "backend/cpu/cpu_test_util.h"

struct shape {
    size_t nk, nv, dk, dv;
};
static const struct shape SHAPES[] = {
    {2, 2, 16, 24}, {2, 4, 8, 33}, {1, 3, 33, 7}, {2, 4, 64, 64}, {1, 1, 128, 40},
};
enum { N_SHAPES = sizeof SHAPES / sizeof SHAPES[0], N_SLOTS = 3, SLOT = 1, LAYERS = 2 };

/* Larger than a model's 1e-6: the output norm divides by the size of o, and where o nearly cancels it
 * would magnify its rounding error without bound. */
static const float EPS = 1e-3f;

/* Everything of one test sequence; the op's buffers are views of it. */
struct sequence {
    struct shape s;
    size_t T;
    float *qkv, *z, *a, *b, *neg_exp_a, *dt_bias, *norm;
};

static void sequence_new(struct sequence *q, struct shape s, size_t T, uint64_t *seed)
{
    size_t cols = 2 * s.nk * s.dk + s.nv * s.dv;

    q->s = s;
    q->T = T;
    q->qkv = test_floats(T * cols, 2, seed);
    q->z = test_floats(T * s.nv * s.dv, 3, seed);
    q->a = test_floats(T * s.nv, 4, seed);
    q->b = test_floats(T * s.nv, 3, seed);
    q->neg_exp_a = test_floats(s.nv, 1, seed);
    q->dt_bias = test_floats(s.nv, 1, seed);
    q->norm = test_floats(s.dv, 2, seed);
    for (size_t h = 0; h < s.nv; h++) {
        q->neg_exp_a[h] = -expf(2 * q->neg_exp_a[h] - 2);
    }
}

static void sequence_free(struct sequence *q)
{
    free(q->qkv);
    free(q->z);
    free(q->a);
    free(q->b);
    free(q->neg_exp_a);
    free(q->dt_bias);
    free(q->norm);
}

/* The definition, in double, straight from the formulas. S [nv][dk][dv] is in and out. */
static void naive(const struct sequence *q, double *S, float *out)
{
    size_t nk = q->s.nk, nv = q->s.nv, dk = q->s.dk, dv = q->s.dv;
    size_t cols = 2 * nk * dk + nv * dv;
    double *d = calloc(dv, sizeof *d), *o = calloc(dv, sizeof *o);

    for (size_t t = 0; t < q->T; t++) {
        for (size_t h = 0; h < nv; h++) {
            const float *query = q->qkv + t * cols + h / (nv / nk) * dk;
            const float *key = query + nk * dk, *v = q->qkv + t * cols + 2 * nk * dk + h * dv;
            double *state = S + h * dk * dv, qq = 1e-6, kk = 1e-6, oo = 0;
            double x = (double)q->a[t * nv + h] + (double)q->dt_bias[h];
            double decay = exp((double)q->neg_exp_a[h] * log1p(exp(x)));
            double beta = 1 / (1 + exp(-(double)q->b[t * nv + h]));

            for (size_t i = 0; i < dk; i++) {
                qq += (double)query[i] * (double)query[i];
                kk += (double)key[i] * (double)key[i];
            }
            for (size_t j = 0; j < dv; j++) {
                double sum = 0;

                for (size_t i = 0; i < dk; i++) {
                    state[i * dv + j] *= decay;
                    sum += state[i * dv + j] * (double)key[i] / sqrt(kk);
                }
                d[j] = beta * ((double)v[j] - sum);
                o[j] = 0;
                for (size_t i = 0; i < dk; i++) {
                    state[i * dv + j] += (double)key[i] / sqrt(kk) * d[j];
                    o[j] += state[i * dv + j] * (double)query[i] / sqrt(qq * (double)dk);
                }
                oo += o[j] * o[j];
            }
            for (size_t j = 0; j < dv; j++) {
                size_t at = (t * nv + h) * dv + j;
                double z = (double)q->z[at];

                out[at] = (float)(o[j] / sqrt(oo / (double)dv + (double)EPS) * (double)q->norm[j] *
                                  z / (1 + exp(-z)));
            }
        }
    }
    free(d);
    free(o);
}

/* The pools hold NaN everywhere, but for what a test writes to its slot. */
struct pools {
    struct state_pools p;
    size_t n;
};

static void pools_new(struct pools *s, const struct shape *shape, enum dtype t)
{
    s->n = shape->nv * shape->dk * shape->dv;
    s->p = (struct state_pools){.conv_dtype = DTYPE_F32,
                                .recurrent_dtype = t,
                                .n_slots = N_SLOTS,
                                .n_gdn_layers = LAYERS,
                                .recurrent_elems = s->n};
    s->p.recurrent = (uint8_t *)test_poisoned(LAYERS * N_SLOTS * s->n);
}

static uint8_t *pools_slot(struct pools *s, size_t layer)
{
    return s->p.recurrent + (layer * N_SLOTS + SLOT) * s->n * dtype_bytes(s->p.recurrent_dtype);
}

/* Rows [t0, t0 + n) of q as a span of its own; out is the whole sequence's. */
static void run_part(struct backend *be, const struct sequence *q, size_t t0, size_t n,
                     bool is_zero, size_t chunk_min, struct pools *s, float *out)
{
    size_t cols = 2 * q->s.nk * q->s.dk + q->s.nv * q->s.dv, values = q->s.nv * q->s.dv;
    struct op op = {.kind = OP_DELTA};
    struct span span = {.n_rows = n, .position = t0, .slot = SLOT, .state_is_zero = is_zero};
    struct step step = {.n_rows = n, .spans = &span, .n_spans = 1};

    op.u.delta = (struct op_delta){
        .qkv = test_operand(q->qkv + t0 * cols, cols, DTYPE_F32),
        .z = test_operand(q->z + t0 * values, values, DTYPE_F32),
        .a = test_operand(q->a + t0 * q->s.nv, q->s.nv, DTYPE_F32),
        .b = test_operand(q->b + t0 * q->s.nv, q->s.nv, DTYPE_F32),
        .out = test_operand(out + t0 * values, values, DTYPE_F32),
        .neg_exp_a = q->neg_exp_a,
        .dt_bias = q->dt_bias,
        .norm = q->norm,
        .eps = EPS,
        .nk = q->s.nk,
        .nv = q->s.nv,
        .dk = q->s.dk,
        .dv = q->s.dv,
        .gdn_layer = 1,
        .chunk_min = chunk_min,
    };
    test_prepare(be, &op, n);
    test_run(be, &op, &step, &s->p);
}

static const size_t LENGTHS[] = {1, 2, 63, 64, 65, 127, 200};
enum { N_LENGTHS = sizeof LENGTHS / sizeof LENGTHS[0] };

/* Recurrent and chunked form, from zero and from a given state. */
static void both_forms_agree_with_the_definition(void **state)
{
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);
    uint64_t seed = 11;

    (void)state;
    printf("delta rule, largest error over lengths 1 to 200 and all shapes:\n");
    for (size_t a = 0; a < n_isas; a++) {
        struct backend *be = test_backend(isas[a], 2);
        double worst[2] = {0, 0};

        for (size_t c = 0; c < N_SHAPES * N_LENGTHS * 4; c++) {
            bool is_chunked = c % 2, from_zero = c / 2 % 2;
            struct shape shape = SHAPES[c / 4 % N_SHAPES];
            struct sequence q;
            struct pools s;
            double *S, error;
            float *want, *got, *S32;

            sequence_new(&q, shape, LENGTHS[c / 4 / N_SHAPES], &seed);
            pools_new(&s, &shape, DTYPE_F32);
            S = calloc(s.n, sizeof *S);
            S32 = test_floats(s.n, 1, &seed);
            want = test_poisoned(q.T * shape.nv * shape.dv);
            got = test_poisoned(q.T * shape.nv * shape.dv);
            for (size_t i = 0; i < s.n && !from_zero; i++) {
                S[i] = (double)S32[i];
            }
            if (!from_zero) {
                memcpy(pools_slot(&s, 1), S32, s.n * sizeof *S32);
            }
            naive(&q, S, want);
            run_part(be, &q, 0, q.T, from_zero, is_chunked ? 1 : SIZE_MAX, &s, got);
            for (size_t i = 0; i < s.n; i++) {
                S32[i] = (float)S[i];
            }
            error = fmax(test_error(got, want, q.T * shape.nv * shape.dv),
                         test_error((float *)(void *)pools_slot(&s, 1), S32, s.n));
            worst[is_chunked] = fmax(worst[is_chunked], error);
            free(s.p.recurrent);
            free(S);
            free(S32);
            free(want);
            free(got);
            sequence_free(&q);
        }
        printf("  %-6s recurrent %.1e  chunked %.1e\n", test_isa_name(isas[a]), worst[0], worst[1]);
        assert_true(worst[0] < 1e-5 && worst[1] < 1e-5);
        be->ops->free(be);
    }
}

static void any_split_gives_the_whole(void **state)
{
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas), T = 130;
    uint64_t seed = 12;
    struct sequence q;

    (void)state;
    sequence_new(&q, SHAPES[1], T, &seed);
    for (size_t a = 0; a < n_isas; a++) {
        struct backend *be = test_backend(isas[a], 2);
        size_t n = T * q.s.nv * q.s.dv;
        float *whole = test_poisoned(n), *parts = test_poisoned(n);
        struct pools one, two;

        pools_new(&one, &q.s, DTYPE_F32);
        pools_new(&two, &q.s, DTYPE_F32);
        run_part(be, &q, 0, T, true, 8, &one, whole);
        for (size_t cut = 1; cut < T; cut++) {
            test_poison(parts, n * sizeof *parts);
            run_part(be, &q, 0, cut, true, 8, &two, parts);
            run_part(be, &q, cut, T - cut, false, 8, &two, parts);
            assert_true(test_error(parts, whole, n) < 1e-5);
            assert_true(test_error((float *)(void *)pools_slot(&two, 1),
                                   (float *)(void *)pools_slot(&one, 1), one.n) < 1e-5);
        }
        /* The recurrent form is the same arithmetic in prefill and decode, so the same bits. */
        run_part(be, &q, 0, T, true, SIZE_MAX, &one, whole);
        for (size_t t = 0; t < T; t++) {
            run_part(be, &q, t, 1, t == 0, SIZE_MAX, &two, parts);
        }
        assert_memory_equal(parts, whole, n * sizeof *parts);
        free(one.p.recurrent);
        free(two.p.recurrent);
        free(whole);
        free(parts);
        be->ops->free(be);
    }
    sequence_free(&q);
}

/* A span is computed alike alone and beside others, whatever the thread count; other slots, layers and
 * rows are left alone. */
static void spans_do_not_meet(void **state)
{
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas), T = 70 + 1 + 5;
    uint64_t seed = 13;
    struct sequence q;

    (void)state;
    sequence_new(&q, SHAPES[3], T, &seed);
    for (size_t c = 0; c < 3 * n_isas; c++) {
        struct backend *be = test_backend(isas[c / 3], 1 + c % 3);
        size_t values = q.s.nv * q.s.dv, n = T * values, cols = 2 * q.s.nk * q.s.dk + values;
        float *together = test_poisoned(n), *alone = test_poisoned(n), *first;
        struct span spans[] = {
            {.row = 0, .n_rows = 70, .slot = 2, .state_is_zero = true},
            {.row = 70, .n_rows = 1, .slot = SLOT, .state_is_zero = true},
            {.row = 71, .n_rows = 5, .slot = 0, .state_is_zero = true},
        };
        struct step step = {.n_rows = T, .spans = spans, .n_spans = 3};
        struct op op = {.kind = OP_DELTA};
        struct pools s, lone;

        pools_new(&s, &q.s, DTYPE_F32);
        op.u.delta = (struct op_delta){
            .qkv = test_operand(q.qkv, cols, DTYPE_F32),
            .z = test_operand(q.z, values, DTYPE_F32),
            .a = test_operand(q.a, q.s.nv, DTYPE_F32),
            .b = test_operand(q.b, q.s.nv, DTYPE_F32),
            .out = test_operand(together, values, DTYPE_F32),
            .neg_exp_a = q.neg_exp_a,
            .dt_bias = q.dt_bias,
            .norm = q.norm,
            .eps = EPS,
            .nk = q.s.nk,
            .nv = q.s.nv,
            .dk = q.s.dk,
            .dv = q.s.dv,
            .gdn_layer = 1,
            .chunk_min = 32,
        };
        test_prepare(be, &op, T);
        test_run(be, &op, &step, &s.p);
        for (size_t i = 0; i < 3; i++) {
            pools_new(&lone, &q.s, DTYPE_F32);
            run_part(be, &q, spans[i].row, spans[i].n_rows, true, 32, &lone, alone);
            assert_memory_equal(s.p.recurrent +
                                    (N_SLOTS + (size_t)spans[i].slot) * s.n * sizeof(float),
                                pools_slot(&lone, 1), s.n * sizeof(float));
            free(lone.p.recurrent);
        }
        assert_memory_equal(together, alone, n * sizeof *alone);
        first = (float *)(void *)s.p.recurrent;
        for (size_t i = 0; i < N_SLOTS * s.n; i++) {
            assert_true(isnan(first[i])); /* layer 0 */
        }
        free(s.p.recurrent);
        free(together);
        free(alone);
        be->ops->free(be);
    }
    sequence_free(&q);
}

/* A bfloat16 state: rounded once, at the end of the span. */
static void a_bf16_state_is_rounded_at_the_end(void **state)
{
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas), T = 9;
    uint64_t seed = 14;
    struct sequence q;

    (void)state;
    sequence_new(&q, SHAPES[1], 2 * T, &seed);
    for (size_t a = 0; a < n_isas; a++) {
        struct backend *be = test_backend(isas[a], 1);
        size_t n = 2 * T * q.s.nv * q.s.dv;
        float *wide = test_poisoned(n), *narrow = test_poisoned(n), *S;
        struct pools f32, bf16;

        pools_new(&f32, &q.s, DTYPE_F32);
        pools_new(&bf16, &q.s, DTYPE_BF16);
        S = (float *)(void *)pools_slot(&f32, 1);
        for (size_t part = 0; part < 2; part++) {
            const uint8_t *stored = pools_slot(&bf16, 1);

            run_part(be, &q, part * T, T, part == 0, SIZE_MAX, &f32, wide);
            run_part(be, &q, part * T, T, part == 0, SIZE_MAX, &bf16, narrow);
            for (size_t i = 0; i < f32.n; i++) {
                S[i] = dtype_round(DTYPE_BF16, S[i]);
                assert_true(dtype_load(DTYPE_BF16, stored, i) == S[i]);
            }
        }
        assert_memory_equal(wide, narrow, n * sizeof *wide);
        free(f32.p.recurrent);
        free(bf16.p.recurrent);
        free(wide);
        free(narrow);
        be->ops->free(be);
    }
    sequence_free(&q);
}

/* Infinite and NaN inputs give outputs that are not finite, and nothing worse. */
static void broken_inputs_do_not_crash(void **state)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);
    uint64_t seed = 15;

    (void)state;
    for (size_t c = 0; c < n_isas * 6; c++) {
        struct backend *be = test_backend(isas[c / 6], 1);
        struct sequence q;
        struct pools s;
        float *out;

        sequence_new(&q, SHAPES[0], 40, &seed);
        pools_new(&s, &q.s, DTYPE_F32);
        out = test_poisoned(q.T * q.s.nv * q.s.dv);
        q.qkv[5] = bad[c % 3];
        q.a[3] = bad[c % 3];
        q.b[7] = bad[c % 3];
        run_part(be, &q, 0, q.T, true, c % 6 < 3 ? 1 : SIZE_MAX, &s, out);
        assert_false(isfinite(out[0]) && isfinite(out[1]));
        free(s.p.recurrent);
        free(out);
        sequence_free(&q);
        be->ops->free(be);
    }
}

static void states_of_another_shape_are_errors(void **state)
{
    struct backend *be = test_backend(CPU_ISA_AUTO, 1);
    uint64_t seed = 16;
    struct sequence q;
    struct pools s;
    struct op op = {.kind = OP_DELTA};
    struct span span = {.n_rows = 1, .state_is_zero = true};
    struct step step = {.n_rows = 1, .spans = &span, .n_spans = 1};
    float out[2 * 24];
    struct error err;

    (void)state;
    sequence_new(&q, SHAPES[0], 1, &seed);
    pools_new(&s, &q.s, DTYPE_F32);
    op.u.delta = (struct op_delta){
        .qkv = test_operand(q.qkv, 2 * 2 * 16 + 2 * 24, DTYPE_F32),
        .z = test_operand(q.z, 48, DTYPE_F32),
        .a = test_operand(q.a, 2, DTYPE_F32),
        .b = test_operand(q.b, 2, DTYPE_F32),
        .out = test_operand(out, 48, DTYPE_F32),
        .neg_exp_a = q.neg_exp_a,
        .dt_bias = q.dt_bias,
        .norm = q.norm,
        .nk = 2,
        .nv = 2,
        .dk = 16,
        .dv = 24,
    };
    test_prepare(be, &op, 1);
    s.p.recurrent_dtype = DTYPE_F16;
    assert_int_equal(be->ops->run(be, &op, &step, &s.p, &err), ERR_INTERNAL);
    s.p.recurrent_dtype = DTYPE_F32;
    op.u.delta.gdn_layer = LAYERS;
    assert_int_equal(be->ops->run(be, &op, &step, &s.p, &err), ERR_INTERNAL);
    op.u.delta.nv = 3;
    test_refused(be, &op, "2 key heads of 16 and 3 value heads of 24");
    free(s.p.recurrent);
    sequence_free(&q);
    be->ops->free(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_forms_agree_with_the_definition),
        cmocka_unit_test(any_split_gives_the_whole),
        cmocka_unit_test(spans_do_not_meet),
        cmocka_unit_test(a_bf16_state_is_rounded_at_the_end),
        cmocka_unit_test(broken_inputs_do_not_crash),
        cmocka_unit_test(states_of_another_shape_are_errors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
