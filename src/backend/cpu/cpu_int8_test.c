/* cpu_int8_test.c - int8 activations: every instruction set gives the reference's bits; the error
 * against exact products is bounded; nothing that is not finite is lost. */
#include "backend/cpu/cpu_test_tables.h"

/* --- the kernels, bit for bit --- */

enum { N_OUT_MAX = 127, N_X_MAX = 145 };

static const struct {
    size_t n_in, group;
} SHAPES[] = {{32, 32},  {64, 64},   {64, 32},   {96, 32},    {96, 96},    {128, 128},
              {128, 64}, {512, 128}, {512, 256}, {512, 512},  {640, 320},  {2048, 128},
              {256, 32}, {192, 64},  {448, 224}, {1024, 256}, {2048, 2048}};
enum { N_SHAPES = sizeof SHAPES / sizeof SHAPES[0] };

enum fill { FILL_RANDOM, FILL_LARGEST, FILL_SMALLEST, FILLS };

struct int8_weight {
    struct weight w;
    uint8_t *data, *scales, *zeros;
};

static void int8_weight_make(struct int8_weight *t, enum weight_kind kind, bool has_zeros,
                             enum dtype scales, size_t shape, enum fill fill, uint64_t *seed)
{
    size_t n_bytes, n_scales;

    *t = (struct int8_weight){.w = {.kind = kind,
                                    .dtype = scales,
                                    .n_out = N_OUT_MAX,
                                    .n_in = SHAPES[shape].n_in,
                                    .group = SHAPES[shape].group}};
    n_bytes = t->w.n_out * weight_row_bytes(&t->w);
    n_scales = t->w.n_out * weight_n_groups(&t->w);
    t->data = aligned_new(n_bytes + 2);
    t->scales = aligned_new(n_scales * 4 + 2);
    t->zeros = aligned_new(n_scales);
    for (size_t i = 0; i < n_bytes; i++) {
        uint8_t random = (uint8_t)(test_next(seed) >> 40);

        t->data[2 + i] = fill == FILL_LARGEST ? 0xff : fill == FILL_SMALLEST ? 0 : random;
    }
    for (size_t i = 0; i < n_scales; i++) {
        uint8_t one[4];
        size_t each = dtype_bytes(scales);

        dtype_store(scales, one, 0, 0.01f * (1.5f + test_float(seed)));
        memcpy(t->scales + 2 + each * i, one, each);
        t->zeros[i] = (uint8_t)((test_next(seed) >> 40) % (kind == WEIGHT_INT4 ? 16 : 256));
    }
    t->w.data = t->data + 2;
    t->w.scales = t->scales + 2;
    t->w.zeros = has_zeros ? t->zeros : NULL;
}

static void int8_weight_release(struct int8_weight *t)
{
    free(t->data);
    free(t->scales);
    free(t->zeros);
}

/* Rows of all kinds: random, the largest of both signs, zeros, tiny, with one large value. */
static float *activations(size_t n_in, uint64_t *seed)
{
    float *x = test_floats(N_X_MAX * n_in, 3, seed);

    for (size_t k = 0; k < n_in; k++) {
        x[n_in + k] = 5;
        x[2 * n_in + k] = -5;
        x[3 * n_in + k] = k % 2 ? 5 : -5;
        x[4 * n_in + k] = 0;
        x[5 * n_in + k] *= 1e-38f;
        x[6 * n_in + k] *= 1e33f;
    }
    x[7 * n_in] = 1e6f;
    return x;
}

/* Records of all rows of x as the table wants them for w. */
static uint8_t *quantised(const struct cpu_kernels *kn, struct cpu_input *in,
                          const struct weight *w, const float *x)
{
    struct cpu_backend be = {.kernels = kn, .activations = CPU_ACTIVATIONS_INT8};
    uint8_t *rows;

    *in = cpu_input_of(&be, w);
    assert_int_equal(in->kind, INPUT_INT8);
    rows = aligned_new(N_X_MAX * in->form.row_bytes);
    assert_non_null(rows);
    for (size_t i = 0; i < N_X_MAX; i++) {
        kn->quantise(rows + i * in->form.row_bytes, &in->form, x + i * w->n_in);
    }
    return rows;
}

/* All outputs of rows [0, n_x) or of the rows that x_rows names. */
static float *products(const struct cpu_kernels *kn, const struct cpu_input *in,
                       const uint8_t *rows, const struct weight *w, size_t n_out, size_t n_x,
                       const int32_t *x_rows)
{
    float *out = test_poisoned(n_x * N_OUT_MAX);
    float *tile = test_poisoned(int8_tile_floats(w->n_in, in->form.n_groups));
    struct linear_job job = {.out = out,
                             .out_stride = N_OUT_MAX,
                             .n_x = n_x,
                             .x_rows = x_rows,
                             .tile = tile,
                             .act = rows,
                             .form = &in->form};

    kn->linear_int8(&job, w, 0, n_out);
    free(tile);
    return out;
}

static void compare_cuts(const struct cpu_kernels *kn, const struct weight *w, const float *x,
                         const float *want)
{
    static const size_t n_outs[] = {1, 7, 64, 65, 127};
    static const size_t n_xs[] = {1, 2, 3, 4, 5, 8, 15, 17, 33, 64, 65, 128, 145};
    enum { N_OUTS = sizeof n_outs / sizeof n_outs[0], N_XS = sizeof n_xs / sizeof n_xs[0] };
    int32_t backwards[N_X_MAX];
    struct cpu_input in;
    uint8_t *rows = quantised(kn, &in, w, x);

    for (int32_t i = 0; i < N_X_MAX; i++) {
        backwards[i] = N_X_MAX - 1 - i;
    }
    for (size_t c = 0; c < N_OUTS * N_XS; c++) {
        size_t n_out = n_outs[c % N_OUTS], n_x = n_xs[c / N_OUTS];
        const int32_t *x_rows = c % 2 ? backwards : NULL;
        float *out = products(kn, &in, rows, w, n_out, n_x, x_rows);

        for (size_t i = 0; i < n_x; i++) {
            size_t row = x_rows ? (size_t)x_rows[i] : i;

            if (memcmp(out + i * N_OUT_MAX, want + row * N_OUT_MAX, n_out * sizeof *out) != 0) {
                fail_msg("%s: %s of %zu inputs, group %zu, %zu x %zu: row %zu differs", kn->isa,
                         weight_kind_name(w), w->n_in, w->group, n_out, n_x, i);
            }
        }
        free(out);
    }
    free(rows);
}

static void every_instruction_set_gives_the_same_bits(void **state)
{
    static const enum dtype scales[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32};
    const struct cpu_kernels *kn[TEST_ISAS];
    size_t n_tables = test_tables(kn);
    uint64_t seed = 7;

    (void)state;
    for (size_t s = 0; s < N_SHAPES; s++) {
        for (size_t c = 0; c < 4 * FILLS; c++) {
            enum fill fill = (enum fill)(c / 4);
            struct int8_weight t;
            struct cpu_input in;
            float *x, *want;
            uint8_t *rows;

            int8_weight_make(&t, c % 2 ? WEIGHT_INT8 : WEIGHT_INT4, c % 4 >= 2, scales[(c + s) % 3],
                             s, fill, &seed);
            x = activations(t.w.n_in, &seed);
            rows = quantised(&cpu_kernels_scalar, &in, &t.w, x);
            want = products(&cpu_kernels_scalar, &in, rows, &t.w, N_OUT_MAX, N_X_MAX, NULL);
            for (size_t a = 1; a < n_tables; a++) {
                compare_cuts(kn[a], &t.w, x, want);
            }
            free(want);
            free(rows);
            free(x);
            int8_weight_release(&t);
        }
    }
}

/* Far more inputs than a kernel works through at a time, and one that does not fill its last tile. */
static void every_instruction_set_takes_many_inputs(void **state)
{
    enum { N_IN = 128, N_HERE = 57 * 16 - 15, N_OUT = 33 };
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);
    uint64_t seed = 15;
    float *x = test_floats(N_HERE * N_IN, 2, &seed), *want = NULL;
    struct test_weight t;

    (void)state;
    test_weight_make(&t, TEST_INT4, N_OUT, N_IN, &seed);
    for (size_t a = 0; a < n_isas; a++) {
        struct backend *be = test_backend_with(isas[a], 1, CPU_ACTIVATIONS_INT8);
        struct cpu_backend *cpu = (struct cpu_backend *)be;
        struct cpu_input in = cpu_input_of(cpu, &t.w);
        float *out = test_poisoned(N_HERE * N_OUT);
        float *tile = test_poisoned(int8_tile_floats(N_IN, in.form.n_groups));
        uint8_t *rows = aligned_new(N_HERE * in.form.row_bytes);
        struct linear_job job = {.out = out,
                                 .out_stride = N_OUT,
                                 .n_x = N_HERE,
                                 .tile = tile,
                                 .act = rows,
                                 .form = &in.form};

        assert_non_null(rows);
        for (size_t i = 0; i < N_HERE; i++) {
            cpu->kernels->quantise(rows + i * in.form.row_bytes, &in.form, x + i * N_IN);
        }
        cpu->kernels->linear_int8(&job, &t.w, 0, N_OUT);
        if (want) {
            assert_memory_equal(out, want, N_HERE * N_OUT * sizeof *out);
            free(out);
        } else {
            want = out;
        }
        free(rows);
        free(tile);
        be->ops->free(be);
    }
    test_weight_release(&t);
    free(want);
    free(x);
}

/* The reference itself: integers by hand in 64 bits, floats in double. */
static void the_reference_is_the_definition(void **state)
{
    uint64_t seed = 8;

    (void)state;
    for (size_t s = 0; s < N_SHAPES; s++) {
        for (size_t c = 0; c < 4; c++) {
            struct int8_weight t;
            struct cpu_input in;
            float *x, *out, *row;
            uint8_t *rows;

            int8_weight_make(&t, c % 2 ? WEIGHT_INT8 : WEIGHT_INT4, c >= 2, DTYPE_F32, s,
                             FILL_RANDOM, &seed);
            x = activations(t.w.n_in, &seed);
            row = test_poisoned(t.w.n_in);
            rows = quantised(&cpu_kernels_scalar, &in, &t.w, x);
            out = products(&cpu_kernels_scalar, &in, rows, &t.w, 3, N_X_MAX, NULL);
            for (size_t i = 0; i < N_X_MAX; i++) {
                const uint8_t *act = rows + i * in.form.row_bytes;

                for (size_t n = 0; n < 3; n++) {
                    double sum = 0, size = 1e-30;

                    weight_row_f32(&t.w, n, row);
                    for (size_t k = 0; k < t.w.n_in; k++) {
                        double scale = (double)act_scales(&in.form, act)[k / in.form.group];
                        double term = (double)row[k] * scale * (double)(int8_t)act[k];

                        sum += term;
                        size += fabs(term);
                    }
                    assert_true(fabs((double)out[i * N_OUT_MAX + n] - sum) < 1e-6 * size);
                }
            }
            free(out);
            free(rows);
            free(row);
            free(x);
            int8_weight_release(&t);
        }
    }
}

/* --- quantisation --- */

static int value_at(const struct act_form *f, const uint8_t *row, size_t at)
{
    int16_t wide;

    if (f->value_bytes == 1) {
        return (int8_t)row[at];
    }
    memcpy(&wide, row + 2 * at, sizeof wide);
    return wide;
}

/* Values in plain order, for any form. */
static void plain_values(int *q, const struct act_form *f, const uint8_t *row)
{
    size_t half = f->unit / 2, blocks = f->unit / WEIGHT_BLOCK;

    for (size_t at = 0; at < f->n_in; at++) {
        size_t unit = at / f->unit, i = at % half, is_high = at % f->unit / half;

        q[(unit * blocks + i / 16) * WEIGHT_BLOCK + is_high * 16 + i % 16] = value_at(f, row, at);
    }
}

static void quantisation_is_exact_and_alike(void **state)
{
    const struct cpu_kernels *kn[TEST_ISAS];
    size_t n_tables = test_tables(kn);
    uint64_t seed = 9;

    (void)state;
    for (size_t c = 0; c < 2 * N_SHAPES; c++) {
        struct weight w = {.kind = c % 2 ? WEIGHT_INT8 : WEIGHT_INT4,
                           .n_in = SHAPES[c / 2].n_in,
                           .group = SHAPES[c / 2].group};
        float *x = activations(w.n_in, &seed);
        int *want = calloc(w.n_in, sizeof *want), *got = calloc(w.n_in, sizeof *got);

        assert_non_null(want);
        assert_non_null(got);
        for (size_t a = 0; a < n_tables; a++) {
            struct cpu_input in;
            uint8_t *rows = quantised(kn[a], &in, &w, x);
            const struct act_form *f = &in.form;

            for (size_t i = 0; i < N_X_MAX; i++) {
                const uint8_t *row = rows + i * f->row_bytes;

                plain_values(got, f, row);
                for (size_t k = 0; k < w.n_in; k++) {
                    float scale = act_scales(f, row)[k / f->group], v = x[i * w.n_in + k];

                    assert_in_range(got[k] + 127, 0, 254);
                    assert_true(fabsf(scale * (float)got[k] - v) <= 0.5001f * scale + 1e-36f);
                }
                for (size_t g = 0; g < f->n_groups; g++) {
                    int sum = 0, most = 0;

                    for (size_t k = g * f->group; k < (g + 1) * f->group; k++) {
                        sum += got[k];
                        most = abs(got[k]) > most ? abs(got[k]) : most;
                    }
                    assert_int_equal(sum, act_sums(f, row)[g]);
                    assert_true(most == 127 || act_scales(f, row)[g] == 0);
                }
            }
            free(rows);
        }
        free(want);
        free(got);
        free(x);
    }
}

/* --- through the backend --- */

static struct op linear_op(const struct weight *w, float *x, float *out)
{
    struct op op = {.kind = OP_LINEAR};

    op.u.linear.in = test_operand(x, w->n_in, DTYPE_F32);
    op.u.linear.n_parts = 1;
    op.u.linear.part[0].w = *w;
    op.u.linear.part[0].out = test_operand(out, w->n_out, DTYPE_F32);
    return op;
}

static float *multiply(struct backend *be, const struct weight *w, float *x, size_t n_rows)
{
    float *out = test_poisoned(n_rows * w->n_out);
    struct op op = linear_op(w, x, out);
    struct step step = {.n_rows = n_rows};

    test_prepare(be, &op, n_rows);
    test_run(be, &op, &step, NULL);
    return out;
}

/* One bad value: outputs of its row are not finite, those of the others do not change. */
static void a_row_that_is_not_finite_stays_so(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);
    uint64_t seed = 10;

    (void)state;
    for (size_t a = 0; a < n_isas; a++) {
        struct backend *be = test_backend_with(isas[a], 2, CPU_ACTIVATIONS_INT8);

        for (size_t c = 0; c < 3 * 4; c++) {
            static const enum test_kind kinds[] = {TEST_INT4, TEST_INT4_PERM, TEST_INT8,
                                                   TEST_INT8_ZEROS};
            struct test_weight t;
            float *x = test_floats(5 * 192, 1, &seed), *good, *got;

            test_weight_make(&t, kinds[c % 4], 33, 192, &seed);
            good = multiply(be, &t.w, x, 5);
            x[2 * 192 + 100 + c] = bad[c / 4];
            got = multiply(be, &t.w, x, 5);
            for (size_t i = 0; i < 5 * 33; i++) {
                if (i / 33 == 2) {
                    assert_true(!isfinite(got[i]));
                } else {
                    assert_true(got[i] == good[i]);
                }
            }
            free(good);
            free(got);
            free(x);
            test_weight_release(&t);
        }
        be->ops->free(be);
    }
}

/* Against exact products: an activation is off by at most half a step of its group, and the errors of
 * many inputs partly cancel. */
static void the_error_is_bounded(void **state)
{
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);

    (void)state;
    printf("int8 activations, root mean square error / root mean square output:\n");
    for (size_t a = 0; a < n_isas; a++) {
        struct backend *int8 = test_backend_with(isas[a], 2, CPU_ACTIVATIONS_INT8);
        struct backend *bf16 = test_backend_with(isas[a], 2, CPU_ACTIVATIONS_BF16);
        struct backend *f32 = test_backend(isas[a], 2);

        for (int kind = TEST_INT4; kind < TEST_KINDS; kind++) {
            uint64_t seed = 11;
            struct test_weight t;
            float *x = test_floats(9 * 512, 1, &seed), *want, *got, *half;
            double error = 0, half_error = 0, size = 0;

            test_weight_make(&t, (enum test_kind)kind, 65, 512, &seed);
            want = multiply(f32, &t.w, x, 9);
            got = multiply(int8, &t.w, x, 9);
            half = multiply(bf16, &t.w, x, 9);
            for (size_t i = 0; i < 9 * 65; i++) {
                error += pow((double)(got[i] - want[i]), 2);
                half_error += pow((double)(half[i] - want[i]), 2);
                size += pow((double)want[i], 2);
            }
            printf("  %-7s %-10s int8 %.5f bf16 %.5f\n", test_isa_name(isas[a]),
                   test_kind_name((enum test_kind)kind), sqrt(error / size),
                   sqrt(half_error / size));
            assert_true(sqrt(error / size) < 0.008);
            assert_true(error > 0 && half_error > 0);
            assert_true(sqrt(half_error / size) < 0.004);
            free(want);
            free(got);
            free(half);
            free(x);
            test_weight_release(&t);
        }
        int8->ops->free(int8);
        bf16->ops->free(bf16);
        f32->ops->free(f32);
    }
}

/* The same bits in any company, with any number of threads, in any instruction set. */
static void rows_do_not_depend_on_company(void **state)
{
    static const size_t shapes[][2] = {{13, 224}, {70, 512}, {129, 192}};
    static const size_t n_rows[] = {1, 2, 3, 5, 8, 17, 64, 65};
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas), n_all = 65;

    (void)state;
    for (int kind = TEST_INT4; kind < TEST_KINDS; kind++) {
        for (size_t s = 0; s < 3; s++) {
            uint64_t seed = 12 + (uint64_t)kind;
            size_t n_out = shapes[s][0], n_in = shapes[s][1];
            struct backend *scalar = test_backend_with(CPU_ISA_SCALAR, 1, CPU_ACTIVATIONS_INT8);
            struct test_weight t;
            float *x = test_floats(n_all * n_in, 1, &seed), *whole;

            test_weight_make(&t, (enum test_kind)kind, n_out, n_in, &seed);
            whole = multiply(scalar, &t.w, x, n_all);
            for (size_t c = 0; c < n_isas * 8; c++) {
                size_t n = n_rows[c % 8], first = n_all - n;
                struct backend *be =
                    test_backend_with(isas[c / 8], 1 + c % 3, CPU_ACTIVATIONS_INT8);
                float *part = multiply(be, &t.w, x + first * n_in, n);

                assert_memory_equal(part, whole + first * n_out, n * n_out * sizeof *part);
                free(part);
                be->ops->free(be);
            }
            free(whole);
            free(x);
            test_weight_release(&t);
            scalar->ops->free(scalar);
        }
    }
}

/* Names tell which activations a kernel reads; groups that do not divide the row keep float32. */
static void kernels_say_what_they_read(void **state)
{
    struct backend *be = test_backend_with(CPU_ISA_SCALAR, 1, CPU_ACTIVATIONS_INT8);
    struct test_weight t;
    uint64_t seed = 13;
    float *x = test_floats(192, 1, &seed), *out = test_poisoned(8);
    struct op op;

    (void)state;
    test_weight_make(&t, TEST_INT4, 8, 192, &seed);
    op = linear_op(&t.w, x, out);
    test_prepare(be, &op, 1);
    assert_string_equal(op.kernel, "linear int4 g64 x int8 scalar");
    t.w.group = 128; /* one and a half groups */
    op = linear_op(&t.w, x, out);
    test_prepare(be, &op, 1);
    assert_string_equal(op.kernel, "linear int4 g128 scalar");
    test_run(be, &op, &(struct step){.n_rows = 1}, NULL);
    test_weight_release(&t);
    test_weight_make(&t, TEST_BF16, 8, 192, &seed);
    op = linear_op(&t.w, x, out);
    test_prepare(be, &op, 1);
    assert_string_equal(op.kernel, "linear bfloat16 scalar");
    test_weight_release(&t);
    free(x);
    free(out);
    be->ops->free(be);
}

/* Four matrices with one input: two forms and two orders of it. */
static void parts_share_copies_of_the_input(void **state)
{
    enum { N_IN = 192, N_ROWS_HERE = 5 };
    static const enum test_kind kinds[4] = {TEST_INT4_PERM, TEST_BF16, TEST_INT8, TEST_INT4_PERM};
    static const size_t n_out[4] = {33, 7, 16, 70};
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);
    uint64_t seed = 14;

    (void)state;
    for (size_t a = 0; a < n_isas; a++) {
        struct backend *be = test_backend_with(isas[a], 2, CPU_ACTIVATIONS_INT8);
        struct op op = {.kind = OP_LINEAR};
        struct step step = {.n_rows = N_ROWS_HERE};
        struct test_weight t[4];
        float *x = test_floats(N_ROWS_HERE * N_IN, 1, &seed), *out[4];

        op.u.linear.in = test_operand(x, N_IN, DTYPE_F32);
        op.u.linear.n_parts = 4;
        for (size_t p = 0; p < 4; p++) {
            test_weight_make(&t[p], kinds[p], n_out[p], N_IN, &seed);
            out[p] = test_poisoned(N_ROWS_HERE * n_out[p]);
        }
        t[3].w.perm = t[0].w.perm;
        for (size_t p = 0; p < 4; p++) {
            op.u.linear.part[p].w = t[p].w;
            op.u.linear.part[p].out = test_operand(out[p], n_out[p], DTYPE_F32);
        }
        test_prepare(be, &op, N_ROWS_HERE);
        test_run(be, &op, &step, NULL);
        for (size_t p = 0; p < 4; p++) {
            float *alone = multiply(be, &t[p].w, x, N_ROWS_HERE);

            assert_memory_equal(alone, out[p], N_ROWS_HERE * n_out[p] * sizeof *alone);
            free(alone);
        }
        for (size_t p = 0; p < 4; p++) {
            free(out[p]);
            test_weight_release(&t[p]);
        }
        free(x);
        be->ops->free(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(every_instruction_set_takes_many_inputs),
        cmocka_unit_test(the_reference_is_the_definition),
        cmocka_unit_test(quantisation_is_exact_and_alike),
        cmocka_unit_test(a_row_that_is_not_finite_stays_so),
        cmocka_unit_test(the_error_is_bounded),
        cmocka_unit_test(rows_do_not_depend_on_company),
        cmocka_unit_test(kernels_say_what_they_read),
        cmocka_unit_test(parts_share_copies_of_the_input),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
