/* cpu_attention_test.c - query/key preparation, the paged KV cache and attention, against double. */
#include "backend/cpu/cpu_test_util.h"

struct shape {
    size_t nq, nkv, hd, rope;
    bool is_gated;
};
static const struct shape SHAPES[] = {
    {4, 2, 64, 16, true}, {3, 1, 33, 8, true},   {2, 2, 32, 32, false},
    {6, 2, 7, 6, true},   {1, 1, 128, 0, false}, {4, 4, 1, 0, true},
};
enum {
    N_SHAPES = sizeof SHAPES / sizeof SHAPES[0],
    N_PAGES = 7,
    LAYERS = 2,
    LAYER = 1,
    T_MAX = 330
};

/* Page numbers in no order, as the store may hand them out. */
static const int32_t PAGES[N_PAGES] = {5, 0, 6, 2, 4, 1, 3};
static const float EPS = 1e-6f;

struct sequence {
    struct shape s;
    size_t T;
    float *q, *k, *v, *q_norm, *k_norm, *inv_freq;
};

static size_t q_cols(const struct shape *s)
{
    return s->nq * s->hd * (s->is_gated ? 2 : 1);
}

static void sequence_new(struct sequence *q, struct shape s, size_t T, uint64_t *seed)
{
    q->s = s;
    q->T = T;
    q->q = test_floats(T * q_cols(&s), 3, seed);
    q->k = test_floats(T * s.nkv * s.hd, 3, seed);
    q->v = test_floats(T * s.nkv * s.hd, 3, seed);
    q->q_norm = test_floats(s.hd, 2, seed);
    q->k_norm = test_floats(s.hd, 2, seed);
    q->inv_freq = test_floats(s.rope / 2 + 1, 1, seed);
    for (size_t i = 0; i < s.rope / 2; i++) {
        q->inv_freq[i] = (float)pow(1e4, -2.0 * (double)i / (double)s.rope);
    }
}

static void sequence_free(struct sequence *q)
{
    free(q->q);
    free(q->k);
    free(q->v);
    free(q->q_norm);
    free(q->k_norm);
    free(q->inv_freq);
}

static void pools_new(struct state_pools *p, const struct shape *s, enum dtype t)
{
    bool is_fp8 = t == DTYPE_F8_E4M3 || t == DTYPE_F8_E5M2;
    size_t n_scales = s->nkv * KV_PAGE_TOKENS, n = n_scales * s->hd;

    *p = (struct state_pools){.kv_dtype = t,
                              .n_pages = N_PAGES,
                              .n_attn_layers = LAYERS,
                              .kv_elems = n,
                              .kv_scales = is_fp8 ? n_scales : 0};
    p->k = (uint8_t *)test_poisoned(LAYERS * N_PAGES * n);
    p->v = (uint8_t *)test_poisoned(LAYERS * N_PAGES * n);
    if (is_fp8) {
        p->k_scale = test_poisoned(LAYERS * N_PAGES * n_scales);
        p->v_scale = test_poisoned(LAYERS * N_PAGES * n_scales);
    }
}

static void pools_free(struct state_pools *p)
{
    free(p->k);
    free(p->v);
    free(p->k_scale);
    free(p->v_scale);
}

/* Both ops over spans whose rows are those of q from t0 on; out [rows][nq*hd]. The inputs are copied,
 * since OP_QKV works in place. */
static void run_spans(struct backend *be, const struct sequence *q, size_t t0,
                      const struct span *spans, size_t n_spans, enum dtype round,
                      struct state_pools *p, float *out)
{
    size_t n_rows = spans[n_spans - 1].row + spans[n_spans - 1].n_rows, cols = q_cols(&q->s);
    float *query = test_poisoned(n_rows * cols);
    struct op qkv = {.kind = OP_QKV}, attend = {.kind = OP_ATTENTION};
    struct step step = {.n_rows = n_rows, .spans = spans, .n_spans = n_spans};
    size_t kv_cols = q->s.nkv * q->s.hd;

    memcpy(query, q->q + t0 * cols, n_rows * cols * sizeof *query);
    qkv.u.qkv = (struct op_qkv){
        .q = test_operand(query, cols, round),
        .k = test_operand(q->k + t0 * kv_cols, kv_cols, round),
        .v = test_operand(q->v + t0 * kv_cols, kv_cols, round),
        .q_norm = q->q_norm,
        .k_norm = q->k_norm,
        .eps = EPS,
        .is_gated = q->s.is_gated,
        .nq = q->s.nq,
        .nkv = q->s.nkv,
        .hd = q->s.hd,
        .rope_dims = q->s.rope,
        .inv_freq = q->inv_freq,
        .rope_scale = 1,
        .attn_layer = LAYER,
    };
    attend.u.attention = (struct op_attention){
        .q = qkv.u.qkv.q,
        .out = test_operand(out, q->s.nq * q->s.hd, round),
        .is_gated = q->s.is_gated,
        .nq = q->s.nq,
        .nkv = q->s.nkv,
        .hd = q->s.hd,
        .scale = 1.0f / sqrtf((float)q->s.hd),
        .attn_layer = LAYER,
    };
    test_prepare(be, &qkv, n_rows);
    test_run(be, &qkv, &step, p);
    test_prepare(be, &attend, n_rows);
    test_run(be, &attend, &step, p);
    free(query);
}

static void run_part(struct backend *be, const struct sequence *q, size_t t0, size_t n,
                     enum dtype round, struct state_pools *p, float *out)
{
    struct span span = {.n_rows = n, .position = t0, .pages = PAGES, .state_is_zero = t0 == 0};

    run_spans(be, q, t0, &span, 1, round, p, out + t0 * q->s.nq * q->s.hd);
}

/* Norm and rotation of one head at a position, in double. */
static void naive_head(double *y, const float *x, const float *norm, size_t position,
                       const struct sequence *q)
{
    size_t hd = q->s.hd, half = q->s.rope / 2;
    double sum = 0;

    for (size_t i = 0; i < hd; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    for (size_t i = 0; i < hd; i++) {
        y[i] = (double)x[i] / sqrt(sum / (double)hd + (double)EPS) * (double)norm[i];
    }
    for (size_t i = 0; i < half; i++) {
        double angle = (double)((float)position * q->inv_freq[i]), a = y[i], b = y[i + half];

        y[i] = a * cos(angle) - b * sin(angle);
        y[i + half] = b * cos(angle) + a * sin(angle);
    }
}

static void naive(const struct sequence *q, float *out)
{
    const struct shape *s = &q->s;
    double *keys = calloc(q->T * s->hd, sizeof *keys), *p = calloc(q->T, sizeof *p);
    double query[128];

    for (size_t h = 0; h < s->nq; h++) {
        size_t kv = h / (s->nq / s->nkv), stride = s->hd * (s->is_gated ? 2 : 1);

        for (size_t t = 0; t < q->T; t++) {
            naive_head(keys + t * s->hd, q->k + (t * s->nkv + kv) * s->hd, q->k_norm, t, q);
        }
        for (size_t t = 0; t < q->T; t++) {
            const float *x = q->q + t * q_cols(s) + h * stride;
            double max = -INFINITY, sum = 0;

            naive_head(query, x, q->q_norm, t, q);
            for (size_t j = 0; j <= t; j++) {
                p[j] = 0;
                for (size_t i = 0; i < s->hd; i++) {
                    p[j] += query[i] * keys[j * s->hd + i];
                }
                p[j] /= sqrt((double)s->hd);
                max = fmax(max, p[j]);
            }
            for (size_t j = 0; j <= t; j++) {
                p[j] = exp(p[j] - max);
                sum += p[j];
            }
            for (size_t i = 0; i < s->hd; i++) {
                double acc = 0;

                for (size_t j = 0; j <= t; j++) {
                    acc += p[j] / sum * (double)q->v[(j * s->nkv + kv) * s->hd + i];
                }
                if (s->is_gated) {
                    acc /= 1 + exp(-(double)x[s->hd + i]);
                }
                out[(t * s->nq + h) * s->hd + i] = (float)acc;
            }
        }
    }
    free(keys);
    free(p);
}

static void attention_agrees_with_the_definition(void **state)
{
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);
    uint64_t seed = 31;

    (void)state;
    for (size_t a = 0; a < n_isas; a++) {
        struct backend *be = test_backend(isas[a], 2);

        printf("attention %-6s largest error by shape:", test_isa_name(isas[a]));
        for (size_t i = 0; i < N_SHAPES; i++) {
            static const size_t lengths[] = {1, 2, 63, 64, 65, 200};
            double worst = 0;

            for (size_t l = 0; l < 6; l++) {
                struct sequence q;
                struct state_pools p;
                float *want, *got;

                sequence_new(&q, SHAPES[i], lengths[l], &seed);
                pools_new(&p, &q.s, DTYPE_F32);
                want = test_poisoned(q.T * q.s.nq * q.s.hd);
                got = test_poisoned(q.T * q.s.nq * q.s.hd);
                naive(&q, want);
                run_part(be, &q, 0, q.T, DTYPE_F32, &p, got);
                worst = fmax(worst, test_error(got, want, q.T * q.s.nq * q.s.hd));
                free(want);
                free(got);
                pools_free(&p);
                sequence_free(&q);
            }
            printf(" %.1e", worst);
            assert_true(worst < 5e-6);
        }
        printf("\n");
        be->ops->free(be);
    }
}

/* Prefill in any chunks and decode give the same bits, in every cache type, and leave the same cache. */
static void any_split_gives_the_same_bits(void **state)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F8_E4M3,
                                       DTYPE_F8_E5M2};
    static const size_t steps[] = {1, 2, 17, 64, 65, 150};
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);
    uint64_t seed = 32;

    (void)state;
    for (size_t c = 0; c < n_isas * 5; c++) {
        enum dtype t = types[c % 5];
        struct backend *one = test_backend(isas[c / 5], 1), *three = test_backend(isas[c / 5], 3);
        struct sequence q;
        struct state_pools whole, parts;
        float *want, *got;
        size_t n;

        sequence_new(&q, SHAPES[c % 2], T_MAX, &seed);
        n = q.T * q.s.nq * q.s.hd;
        pools_new(&whole, &q.s, t);
        want = test_poisoned(n);
        got = test_poisoned(n);
        run_part(one, &q, 0, q.T, DTYPE_BF16, &whole, want);
        for (size_t s = 0; s < 6; s++) {
            size_t bytes;

            pools_new(&parts, &q.s, t);
            bytes = LAYERS * N_PAGES * whole.kv_elems * dtype_bytes(t);
            test_poison(got, n * sizeof *got);
            for (size_t t0 = 0; t0 < q.T; t0 += steps[s]) {
                size_t rows = t0 + steps[s] < q.T ? steps[s] : q.T - t0;

                run_part(s % 2 ? one : three, &q, t0, rows, DTYPE_BF16, &parts, got);
            }
            assert_memory_equal(got, want, n * sizeof *got);
            assert_memory_equal(parts.k, whole.k, bytes);
            assert_memory_equal(parts.v, whole.v, bytes);
            pools_free(&parts);
        }
        free(want);
        free(got);
        pools_free(&whole);
        sequence_free(&q);
        one->ops->free(one);
        three->ops->free(three);
    }
}

/* Two sequences in one step compute what they compute alone. */
static void spans_do_not_meet(void **state)
{
    static const int32_t first_pages[] = {6, 1}, second_pages[] = {3, 0};
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);
    uint64_t seed = 33;
    struct sequence q;

    (void)state;
    sequence_new(&q, SHAPES[0], 180, &seed);
    for (size_t c = 0; c < 3 * n_isas; c++) {
        struct backend *be = test_backend(isas[c / 3], 1 + c % 3);
        size_t n = q.T * q.s.nq * q.s.hd, cut = 90;
        struct span both[] = {{.row = 0, .n_rows = cut, .pages = first_pages},
                              {.row = cut, .n_rows = q.T - cut, .pages = second_pages}};
        struct span second = {.row = 0, .n_rows = q.T - cut, .pages = PAGES};
        float *together = test_poisoned(n), *alone = test_poisoned(n);
        struct state_pools p;

        pools_new(&p, &q.s, DTYPE_BF16);
        run_spans(be, &q, 0, both, 2, DTYPE_F32, &p, together);
        run_spans(be, &q, 0, both, 1, DTYPE_F32, &p, alone);
        run_spans(be, &q, cut, &second, 1, DTYPE_F32, &p, alone + cut * q.s.nq * q.s.hd);
        assert_memory_equal(together, alone, n * sizeof *alone);
        pools_free(&p);
        free(together);
        free(alone);
        be->ops->free(be);
    }
    sequence_free(&q);
}

/* value = stored * scale, one scale per head and token, the largest element at the type's limit. */
static void fp8_rows_have_scales_of_their_own(void **state)
{
    static const enum dtype types[] = {DTYPE_F8_E4M3, DTYPE_F8_E5M2};
    static const float limits[] = {448.0f, 57344.0f}, worst[] = {1.0f / 16, 1.0f / 8};
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);
    uint64_t seed = 34;

    (void)state;
    for (size_t c = 0; c < 2 * n_isas; c++) {
        struct backend *be = test_backend(isas[c / 2], 1);
        enum dtype t = types[c % 2];
        struct sequence q;
        struct state_pools p;
        float *out, tiny = 1e-42f;
        size_t hd = 64;

        sequence_new(&q, SHAPES[0], 70, &seed);
        for (size_t i = 0; i < hd; i++) {
            q.v[i] = 0;                 /* token 0, head 0: all zero */
            q.v[hd + i] = i ? 0 : tiny; /* token 0, head 1: no scale can hold it */
            q.v[2 * hd + i] *= 1e30f;   /* token 1, head 0 */
            q.v[3 * hd + i] *= 1e-30f;  /* token 1, head 1 */
        }
        pools_new(&p, &q.s, t);
        out = test_poisoned(q.T * q.s.nq * hd);
        run_part(be, &q, 0, q.T, DTYPE_F32, &p, out);
        for (size_t token = 0; token < q.T; token++) {
            for (size_t h = 0; h < 2; h++) {
                size_t page = LAYER * N_PAGES + (size_t)PAGES[token / KV_PAGE_TOKENS];
                size_t at = (page * 2 + h) * KV_PAGE_TOKENS + token % KV_PAGE_TOKENS;
                const float *v = q.v + (token * 2 + h) * hd;
                float amax = 0, scale = p.v_scale[at];

                for (size_t i = 0; i < hd; i++) {
                    amax = fmaxf(amax, fabsf(v[i]));
                }
                assert_true(token == 0 ? scale == 1.0f : scale == amax / limits[c % 2]);
                for (size_t i = 0; i < hd; i++) {
                    float got = dtype_load(t, p.v, at * hd + i) * scale;

                    assert_true(fabsf(got - v[i]) <=
                                worst[c % 2] * fabsf(v[i]) + amax / limits[c % 2] + 1e-40f);
                }
            }
        }
        assert_true(out[0] == 0 && isfinite(out[q.s.nq * hd]));
        free(out);
        pools_free(&p);
        sequence_free(&q);
        be->ops->free(be);
    }
}

/* The gate of a head acts on that head, and query and gate are not interchangeable. */
static void a_gate_belongs_to_its_head(void **state)
{
    struct backend *be = test_backend(CPU_ISA_AUTO, 1);
    uint64_t seed = 35;
    struct sequence q;
    struct state_pools p;
    float before[4 * 64], after[4 * 64];

    (void)state;
    sequence_new(&q, SHAPES[0], 1, &seed);
    pools_new(&p, &q.s, DTYPE_F32);
    run_part(be, &q, 0, 1, DTYPE_F32, &p, before);
    q.q[2 * 128 + 64 + 5] += 1; /* head 2, gate 5 */
    run_part(be, &q, 0, 1, DTYPE_F32, &p, after);
    for (size_t i = 0; i < 4 * 64; i++) {
        assert_true((before[i] == after[i]) == (i != 2 * 64 + 5));
    }
    pools_free(&p);
    sequence_free(&q);
    be->ops->free(be);
}

static void broken_inputs_do_not_crash(void **state)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_F8_E4M3, DTYPE_F8_E5M2};
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);
    uint64_t seed = 36;

    (void)state;
    for (size_t c = 0; c < n_isas * 12; c++) {
        struct backend *be = test_backend(isas[c / 12], 1);
        struct sequence q;
        struct state_pools p;
        float *out;

        sequence_new(&q, SHAPES[1], 70, &seed);
        pools_new(&p, &q.s, types[c / 3 % 4]);
        out = test_poisoned(q.T * q.s.nq * q.s.hd);
        q.v[3] = bad[c % 3];
        q.k[40] = bad[c % 3];
        q.q[2 * q_cols(&q.s)] = bad[c % 3];
        run_part(be, &q, 0, q.T, DTYPE_F16, &p, out);
        assert_true(!isfinite(out[3]));
        free(out);
        pools_free(&p);
        sequence_free(&q);
        be->ops->free(be);
    }
}

static void wrong_shapes_and_pools_are_errors(void **state)
{
    struct backend *be = test_backend(CPU_ISA_AUTO, 1);
    uint64_t seed = 37;
    struct sequence q;
    struct state_pools p;
    float out[4 * 64];
    struct op op = {.kind = OP_ATTENTION}, bad;
    struct span span = {.n_rows = 1, .pages = PAGES};
    struct step step = {.n_rows = 1, .spans = &span, .n_spans = 1};
    struct error err;

    (void)state;
    sequence_new(&q, SHAPES[0], 1, &seed);
    pools_new(&p, &q.s, DTYPE_F32);
    op.u.attention = (struct op_attention){.q = test_operand(q.q, 512, DTYPE_F32),
                                           .out = test_operand(out, 256, DTYPE_F32),
                                           .is_gated = true,
                                           .nq = 4,
                                           .nkv = 2,
                                           .hd = 64,
                                           .attn_layer = LAYER};
    test_prepare(be, &op, 1);
    p.kv_dtype = DTYPE_F8_E4M3; /* without scales */
    assert_int_equal(be->ops->run(be, &op, &step, &p, &err), ERR_INTERNAL);
    p.kv_dtype = DTYPE_I8;
    assert_int_equal(be->ops->run(be, &op, &step, &p, &err), ERR_INTERNAL);
    p.kv_dtype = DTYPE_F32;
    p.kv_elems--;
    assert_int_equal(be->ops->run(be, &op, &step, &p, &err), ERR_INTERNAL);
    bad = op;
    bad.u.attention.nkv = 3;
    test_refused(be, &bad, "4 query and 3 KV heads of 64");
    bad = op;
    bad.u.attention.is_gated = false;
    test_refused(be, &bad, "q has 512 columns, 256 expected");
    bad = op;
    bad.rows = ROWS_OUT;
    test_refused(be, &bad, "all rows");
    pools_free(&p);
    sequence_free(&q);
    be->ops->free(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_agrees_with_the_definition),
        cmocka_unit_test(any_split_gives_the_same_bits),
        cmocka_unit_test(spans_do_not_meet),
        cmocka_unit_test(fp8_rows_have_scales_of_their_own),
        cmocka_unit_test(a_gate_belongs_to_its_head),
        cmocka_unit_test(broken_inputs_do_not_crash),
        cmocka_unit_test(wrong_shapes_and_pools_are_errors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
