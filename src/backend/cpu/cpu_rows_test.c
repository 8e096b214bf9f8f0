/* cpu_rows_test.c - embedding, norm, swiglu, residual sums, checks, gather, convolution. */
#include "backend/cpu/cpu_test_tables.h"

static const size_t SIZES[] = {1, 7, 31, 32, 33, 64, 65, 127, 128, 200};
static const size_t ROWS[] = {1, 2, 3, 5, 8, 17, 64, 65};
enum { N_SIZES = sizeof SIZES / sizeof SIZES[0], N_ROWS = sizeof ROWS / sizeof ROWS[0] };

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* fn runs once per instruction set and thread count (1 and 3). */
typedef void backend_fn(struct backend *be);

static void with_backends(backend_fn *fn)
{
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);

    for (size_t c = 0; c < 2 * n_isas; c++) {
        struct backend *be = test_backend(isas[c / 2], c % 2 ? 3 : 1);

        fn(be);
        be->ops->free(be);
    }
}

/* --- the elementary functions --- */

/* Distance in units of the last place of the float nearest to want. */
static double ulps(float got, double want)
{
    float near = (float)want;
    double unit = (double)nextafterf(fabsf(near), INFINITY) - (double)fabsf(near);

    return fabs((double)got - want) / unit;
}

static void exp_is_within_two_units(void **state)
{
    const struct cpu_kernels *tables[TEST_ISAS];
    size_t n_tables = test_tables(tables);

    (void)state;
    for (size_t t = 0; t < n_tables; t++) {
        double worst = 0;

        for (double x = -103; x < 88.7; x += 0.000737) {
            float v[3] = {(float)x, (float)x, (float)x}, x0 = v[0];

            tables[t]->exp_sum(v, 0, 3);
            worst = fmax(worst, ulps(v[0], exp((double)x0)));
            assert_true(v[0] == v[2]);
        }
        printf("exp %s: %.2f ulp\n", tables[t]->isa, worst);
        assert_true(worst <= 2);

        float edge[5] = {-INFINITY, INFINITY, NAN, 0, -200};

        tables[t]->exp_sum(edge, 0, 5);
        assert_true(edge[0] == 0 && isinf(edge[1]) && isnan(edge[2]) && edge[3] == 1 &&
                    edge[4] == 0);
    }
}

/* Every bit pattern class through every conversion: the tables agree with base/half.h. */
static void conversions_agree_with_base(void **state)
{
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16};
    static const float special[] = {0,        -0.0f, INFINITY, -INFINITY, 65504.0f,
                                    65520.0f, 1e-8f, 6e-8f,    3.4e38f,   1.00390625f};
    const struct cpu_kernels *tables[TEST_ISAS];
    size_t n_tables = test_tables(tables);
    uint64_t seed = 21;

    (void)state;
    for (size_t c = 0; c < 2 * n_tables; c++) {
        const struct cpu_kernels *kn = tables[c / 2];
        enum dtype t = types[c % 2];

        for (size_t n = 1; n <= 41; n++) {
            float x[41], r[41], back[41];
            uint16_t half[42];

            for (size_t i = 0; i < n; i++) {
                x[i] = i < 10 ? special[i] : f32_from_bits((uint32_t)(test_next(&seed) >> 32));
                x[i] = isnan(x[i]) ? 1.5f : x[i];
            }
            memcpy(r, x, sizeof r);
            half[n] = 0x1234;
            kn->round(t, r, n);
            kn->store(t, half, x, n);
            kn->load(back, t, half, n);
            assert_int_equal(half[n], 0x1234);
            for (size_t i = 0; i < n; i++) {
                assert_true(r[i] == dtype_round(t, x[i]));
                assert_true(back[i] == r[i]);
            }
        }
    }
}

/* All 256 bytes of both fp8 types, in rows of every length that meets a tail. */
static void fp8_bytes_agree_with_base(void **state)
{
    static const enum dtype types[] = {DTYPE_F8_E4M3, DTYPE_F8_E5M2};

    const struct cpu_kernels *tables[TEST_ISAS];
    size_t n_tables = test_tables(tables);

    (void)state;
    for (size_t c = 0; c < n_tables * 2 * 256; c++) {
        enum dtype t = types[c % 2];
        uint8_t bytes[17];
        float out[17], want;
        size_t n = 1 + c / 2 % 17;

        memset(bytes, (int)(c / 2 % 256), sizeof bytes);
        want = dtype_load(t, bytes, 0) * 0.37f;
        tables[c / 512]->load_fp8(out, t, bytes, n, 0.37f);
        for (size_t i = 0; i < n; i++) {
            assert_true(isnan(want) ? isnan(out[i]) : out[i] == want);
        }
    }
}

static void a_maximum_notices_nan(void **state)
{
    const struct cpu_kernels *tables[TEST_ISAS];
    size_t n_tables = test_tables(tables);

    (void)state;
    for (size_t n = 1; n <= 40; n++) {
        for (size_t at = 0; at < n; at++) {
            float x[40];

            for (size_t i = 0; i < n; i++) {
                x[i] = -5.0f - (float)i;
            }
            for (size_t t = 0; t < n_tables; t++) {
                x[at] = -1;
                assert_true(tables[t]->max(x, n) == -1);
                x[at] = NAN;
                assert_true(isnan(tables[t]->max(x, n)));
            }
        }
    }
}

/* --- embedding --- */

static void embed_on(struct backend *be)
{
    uint64_t seed = 22;

    for (int kind = TEST_F32; kind <= TEST_F16; kind++) {
        for (size_t s = 0; s < N_SIZES; s++) {
            int32_t tokens[] = {4, 0, 8, 4, 1};
            float *out = test_poisoned(5 * SIZES[s]), row[200];
            struct op op = {.kind = OP_EMBED};
            struct step step = {.n_rows = 5, .tokens = tokens};
            struct test_weight t;
            struct error err;

            test_weight_make(&t, (enum test_kind)kind, 9, SIZES[s], &seed);
            op.u.embed.table = t.w;
            op.u.embed.out = test_operand(out, SIZES[s], DTYPE_F32);
            test_prepare(be, &op, 5);
            test_run(be, &op, &step, NULL);
            for (size_t i = 0; i < 5; i++) {
                weight_row_f32(&t.w, (size_t)tokens[i], row);
                assert_memory_equal(out + i * SIZES[s], row, SIZES[s] * sizeof *row);
            }
            tokens[3] = 9;
            assert_int_equal(be->ops->run(be, &op, &step, NULL, &err), ERR_INTERNAL);
            tokens[3] = -1;
            assert_int_equal(be->ops->run(be, &op, &step, NULL, &err), ERR_INTERNAL);
            free(out);
            test_weight_release(&t);
        }
    }
}

static void embed_takes_rows(void **state)
{
    (void)state;
    with_backends(embed_on);
}

/* --- norm --- */

static void norm_on(struct backend *be)
{
    uint64_t seed = 23;

    for (size_t s = 0; s < N_SIZES; s++) {
        for (size_t r = 0; r < N_ROWS; r++) {
            size_t n = SIZES[s], rows = ROWS[r];
            float *x = test_floats(rows * n, 5, &seed), *w = test_floats(n, 2, &seed);
            float *out = test_poisoned(rows * n);
            struct op op = {.kind = OP_NORM, .rows = r % 2 ? ROWS_ALL : ROWS_OUT};
            struct step step = {.n_rows = rows, .n_out_rows = rows};

            op.u.norm.in = test_operand(x, n, DTYPE_F32);
            op.u.norm.out = test_operand(out, n, DTYPE_F32);
            op.u.norm.weight = w;
            op.u.norm.eps = 1e-5f;
            test_prepare(be, &op, rows);
            test_run(be, &op, &step, NULL);
            for (size_t i = 0; i < rows; i++) {
                double sum = 0, inverse;

                for (size_t k = 0; k < n; k++) {
                    sum += (double)x[i * n + k] * (double)x[i * n + k];
                }
                inverse = 1 / sqrt(sum / (double)n + (double)op.u.norm.eps);
                for (size_t k = 0; k < n; k++) {
                    double want = (double)x[i * n + k] * inverse * (double)w[k];

                    assert_true(fabs((double)out[i * n + k] - want) <= 1e-6 * (fabs(want) + 1e-6));
                }
            }
            op.u.norm.out.round = DTYPE_BF16;
            float *rounded = test_poisoned(rows * n);

            op.u.norm.out.data = rounded;
            test_prepare(be, &op, rows);
            test_run(be, &op, &step, NULL);
            for (size_t i = 0; i < rows * n; i++) {
                assert_true(rounded[i] == dtype_round(DTYPE_BF16, out[i]));
            }
            free(rounded);
            free(out);
            free(w);
            free(x);
        }
    }
}

static void norm_divides_by_the_root_mean_square(void **state)
{
    (void)state;
    with_backends(norm_on);
}

/* --- swiglu --- */

static void swiglu_on(struct backend *be)
{
    uint64_t seed = 24;

    for (size_t s = 0; s < N_SIZES; s++) {
        for (size_t r = 0; r < N_ROWS; r++) {
            size_t n = SIZES[s] * ROWS[r];
            float *gate = test_floats(n, 20, &seed), *up = test_floats(n, 3, &seed);
            float *out = test_poisoned(n);
            struct op op = {.kind = OP_SWIGLU};
            struct step step = {.n_rows = ROWS[r]};

            op.u.swiglu.gate = test_operand(gate, SIZES[s], DTYPE_F32);
            op.u.swiglu.up = test_operand(up, SIZES[s], DTYPE_F32);
            op.u.swiglu.out = test_operand(out, SIZES[s], DTYPE_F32);
            test_prepare(be, &op, ROWS[r]);
            test_run(be, &op, &step, NULL);
            for (size_t i = 0; i < n; i++) {
                double want = (double)gate[i] * sigmoid((double)gate[i]) * (double)up[i];

                assert_true(fabs((double)out[i] - want) <= 1e-6 * fabs(want) + 1e-12);
            }
            free(out);
            free(up);
            free(gate);
        }
    }
}

static void swiglu_is_silu_times_up(void **state)
{
    (void)state;
    with_backends(swiglu_on);
}

/* --- residual sums --- */

static void add_shared_on(struct backend *be)
{
    uint64_t seed = 25;

    for (int form = 0; form < 3; form++) { /* routed | + shared | + gated shared */
        for (size_t s = 0; s < N_SIZES; s++) {
            size_t n = SIZES[s], rows = 5;
            float *x = test_floats(rows * n, 9, &seed), *routed = test_floats(rows * n, 1, &seed);
            float *shared = test_floats(rows * n, 1, &seed), *gate = test_floats(rows, 6, &seed);
            float *old = test_poisoned(rows * n);
            struct op op = {.kind = OP_ADD_SHARED};
            struct step step = {.n_rows = rows};

            memcpy(old, x, rows * n * sizeof *x);
            op.u.add_shared.x = test_operand(x, n, DTYPE_F32);
            op.u.add_shared.routed = test_operand(routed, n, DTYPE_F32);
            op.u.add_shared.shared = test_operand(shared, form ? n : 0, DTYPE_BF16);
            op.u.add_shared.gate = test_operand(gate, form == 2, DTYPE_BF16);
            test_prepare(be, &op, rows);
            test_run(be, &op, &step, NULL);
            for (size_t i = 0; i < rows * n; i++) {
                double share = form == 2 ? sigmoid((double)gate[i / n]) : form;
                double want = (double)old[i] + (double)routed[i] + share * (double)shared[i];

                assert_true(fabs((double)x[i] - want) <= 2e-6);
            }
            free(old);
            free(gate);
            free(shared);
            free(routed);
            free(x);
        }
    }
}

static void the_shared_expert_is_weighed_by_its_gate(void **state)
{
    (void)state;
    with_backends(add_shared_on);
}

/* --- check and gather --- */

static void finite_on(struct backend *be)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    uint64_t seed = 26;

    for (size_t s = 0; s < N_SIZES; s++) {
        for (size_t at = 0; at < SIZES[s]; at++) {
            size_t n = SIZES[s], rows = 4;
            float *x = test_floats(rows * n, 1, &seed);
            int16_t layer[] = {-1, -1, 2, -1};
            struct op op = {.kind = OP_CHECK, .layer = 7};
            struct step step = {.n_rows = rows, .bad_layer = layer};

            x[1 * n + at] = bad[at % 3];
            x[2 * n + at] = bad[at % 3];
            op.u.check.x = test_operand(x, n, DTYPE_F32);
            test_prepare(be, &op, rows);
            test_run(be, &op, &step, NULL);
            assert_int_equal(layer[0], -1);
            assert_int_equal(layer[1], 7);
            assert_int_equal(layer[2], 2); /* the first layer stays */
            assert_int_equal(layer[3], -1);
            free(x);
        }
    }
}

static void rows_that_are_not_finite_are_noted(void **state)
{
    struct backend *be = test_backend(CPU_ISA_AUTO, 1);
    struct op op = {.kind = OP_CHECK, .layer = -1};
    float x[1] = {0};

    (void)state;
    with_backends(finite_on);
    op.u.check.x = test_operand(x, 1, DTYPE_F32);
    test_refused(be, &op, "a layer is needed");
    be->ops->free(be);
}

static void gather_on(struct backend *be)
{
    int32_t rows[] = {3, 0, 3};
    float x[4 * 7], out[3 * 7];
    struct op op = {.kind = OP_GATHER, .rows = ROWS_OUT};
    struct step step = {.n_rows = 4, .out_rows = rows, .n_out_rows = 3};
    struct error err;

    for (size_t i = 0; i < 28; i++) {
        x[i] = (float)i;
    }
    op.u.gather.in = test_operand(x, 7, DTYPE_F32);
    op.u.gather.out = test_operand(out, 7, DTYPE_F32);
    test_prepare(be, &op, 4);
    test_run(be, &op, &step, NULL);
    for (size_t i = 0; i < 21; i++) {
        assert_true(out[i] == (float)(rows[i / 7] * 7) + (float)(i % 7));
    }
    rows[1] = 4;
    assert_int_equal(be->ops->run(be, &op, &step, NULL, &err), ERR_INTERNAL);
    op.rows = ROWS_ALL;
    test_refused(be, &op, "logit rows");
}

static void gather_picks_the_logit_rows(void **state)
{
    (void)state;
    with_backends(gather_on);
}

/* --- convolution --- */

enum { SLOTS = 3, SLOT = 2 };

struct conv_case {
    size_t taps, channels, T;
    float *in, *weight, *history; /* history [taps-1][channels]: what came before */
};

static void conv_case_new(struct conv_case *c, size_t taps, size_t channels, size_t T, enum dtype t,
                          uint64_t *seed)
{
    *c = (struct conv_case){.taps = taps, .channels = channels, .T = T};
    c->in = test_floats(T * channels, 2, seed);
    c->weight = test_floats(taps * channels, 1, seed);
    c->history = test_floats((taps - 1) * channels, 2, seed);
    for (size_t i = 0; i < T * channels; i++) {
        c->in[i] = dtype_round(t, c->in[i]);
    }
    for (size_t i = 0; i < (taps - 1) * channels; i++) {
        c->history[i] = dtype_round(t, c->history[i]);
    }
}

static void conv_case_free(struct conv_case *c)
{
    free(c->in);
    free(c->weight);
    free(c->history);
}

static float conv_input(const struct conv_case *c, ptrdiff_t t, size_t ch, bool is_zero)
{
    if (t >= 0) {
        return c->in[(size_t)t * c->channels + ch];
    }
    return is_zero ? 0 : c->history[(size_t)(t + (ptrdiff_t)c->taps - 1) * c->channels + ch];
}

static void conv_part(struct backend *be, const struct conv_case *c, size_t t0, size_t n,
                      bool is_zero, struct state_pools *s, float *out)
{
    struct op op = {.kind = OP_CONV};
    struct span span = {.n_rows = n, .position = t0, .slot = SLOT, .state_is_zero = is_zero};
    struct step step = {.n_rows = n, .spans = &span, .n_spans = 1};

    op.u.conv.in = test_operand(c->in + t0 * c->channels, c->channels, s->conv_dtype);
    op.u.conv.out = test_operand(out + t0 * c->channels, c->channels, DTYPE_F32);
    op.u.conv.weight = c->weight;
    op.u.conv.taps = c->taps;
    op.u.conv.channels = c->channels;
    op.u.conv.gdn_layer = 1;
    test_prepare(be, &op, n);
    test_run(be, &op, &step, s);
}

/* One case: the whole against the sum in double, then the same cut in two. */
static void conv_check_case(struct backend *be, const struct conv_case *c, enum dtype t,
                            bool is_zero)
{
    size_t elems = (c->taps - 1) * c->channels, place = (SLOTS + SLOT) * elems,
           n = c->T * c->channels;
    struct state_pools s = {.conv_dtype = t,
                            .n_slots = SLOTS,
                            .n_gdn_layers = 2,
                            .conv_elems = elems,
                            .conv = (uint8_t *)test_poisoned(2 * SLOTS * elems)};
    uint8_t *kept = s.conv + place * dtype_bytes(t);
    float *out = test_poisoned(n), *cut = test_poisoned(n);

    dtype_from_f32(t, kept, c->history, is_zero ? 0 : elems);
    conv_part(be, c, 0, c->T, is_zero, &s, out);
    for (size_t i = 0; i < n; i++) {
        size_t ch = i % c->channels;
        double sum = 0;

        for (size_t j = 0; j < c->taps; j++) {
            ptrdiff_t at = (ptrdiff_t)(i / c->channels + j) - (ptrdiff_t)(c->taps - 1);

            sum += (double)c->weight[j * c->channels + ch] * (double)conv_input(c, at, ch, is_zero);
        }
        assert_true(fabs((double)out[i] - sum * sigmoid(sum)) < 2e-6);
    }
    for (size_t i = 0; i < elems; i++) {
        ptrdiff_t at = (ptrdiff_t)(c->T + i / c->channels) - (ptrdiff_t)(c->taps - 1);

        assert_true(dtype_load(t, kept, i) == conv_input(c, at, i % c->channels, is_zero));
    }
    for (size_t first = 1; first < c->T; first += 1 + c->T / 8) {
        dtype_from_f32(t, kept, c->history, is_zero ? 0 : elems);
        test_poison(cut, n * sizeof *cut);
        conv_part(be, c, 0, first, is_zero, &s, cut);
        conv_part(be, c, first, c->T - first, false, &s, cut);
        assert_memory_equal(cut, out, n * sizeof *out);
    }
    free(s.conv);
    free(out);
    free(cut);
}

static void conv_on(struct backend *be)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    uint64_t seed = 27;

    for (size_t taps = 1; taps <= 5; taps++) {
        for (size_t s = 0; s < N_SIZES; s++) {
            for (size_t r = 0; r < N_ROWS; r++) {
                struct conv_case c;
                enum dtype t = types[(s + r) % 3];

                conv_case_new(&c, taps, SIZES[s], ROWS[r], t, &seed);
                conv_check_case(be, &c, t, (s + taps) % 2 == 0);
                conv_case_free(&c);
            }
        }
    }
}

static void conv_reaches_back_through_its_state(void **state)
{
    (void)state;
    with_backends(conv_on);
}

static void a_conv_state_of_lower_precision_is_an_error(void **state)
{
    struct backend *be = test_backend(CPU_ISA_AUTO, 1);
    float in[4] = {0}, out[4], weight[16] = {0};
    uint8_t memory[64];
    struct op op = {.kind = OP_CONV, .layer = 2};
    struct span span = {.n_rows = 1};
    struct step step = {.n_rows = 1, .spans = &span, .n_spans = 1};
    struct state_pools s = {.conv_dtype = DTYPE_BF16,
                            .n_slots = 1,
                            .n_gdn_layers = 1,
                            .conv_elems = 12,
                            .conv = memory};
    struct error err;

    (void)state;
    op.u.conv.in = test_operand(in, 4, DTYPE_F16);
    op.u.conv.out = test_operand(out, 4, DTYPE_F16);
    op.u.conv.weight = weight;
    op.u.conv.taps = 4;
    op.u.conv.channels = 4;
    test_prepare(be, &op, 1);
    assert_int_equal(be->ops->run(be, &op, &step, &s, &err), ERR_INTERNAL);
    assert_non_null(strstr(err.text, "layer 2: the conv state has another type"));
    op.u.conv.taps = 9;
    test_refused(be, &op, "9 taps");
    be->ops->free(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_two_units),
        cmocka_unit_test(conversions_agree_with_base),
        cmocka_unit_test(fp8_bytes_agree_with_base),
        cmocka_unit_test(a_maximum_notices_nan),
        cmocka_unit_test(embed_takes_rows),
        cmocka_unit_test(norm_divides_by_the_root_mean_square),
        cmocka_unit_test(swiglu_is_silu_times_up),
        cmocka_unit_test(the_shared_expert_is_weighed_by_its_gate),
        cmocka_unit_test(rows_that_are_not_finite_are_noted),
        cmocka_unit_test(gather_picks_the_logit_rows),
        cmocka_unit_test(conv_reaches_back_through_its_state),
        cmocka_unit_test(a_conv_state_of_lower_precision_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
