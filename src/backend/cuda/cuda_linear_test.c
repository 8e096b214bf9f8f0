/* cuda_linear_test.c - linear layers of few rows on the CPU and on the card.
 *
 * Place: backend/cuda. Every kind of weight with every type of activations, at sizes around what a lane, a
 *        warp and a tile take. Inputs shrink with their number, so that results are about 1 and an error
 *        is relative to what was added up. Many rows: cuda_linear_gemm_test.c. */
#include "backend/cuda/cuda_linear_gemm.h"
#include "backend/cuda/cuda_testing.h"

#define F32_TOLERANCE 4e-6
enum { LAYER = 3, PARTS_MAX = LINEAR_PARTS_MAX, ROWS_MAX = 16 };

struct form {
    const char *name;
    enum weight_kind kind;
    enum dtype dtype; /* of the elements or scales */
    size_t group;     /* 0: one for the row */
    bool has_zeros, has_perm;
};

static const struct form forms[] = {
    {"f32", WEIGHT_DENSE, DTYPE_F32, 0, false, false},
    {"f16", WEIGHT_DENSE, DTYPE_F16, 0, false, false},
    {"bf16", WEIGHT_DENSE, DTYPE_BF16, 0, false, false},
    {"int8 g32", WEIGHT_INT8, DTYPE_F16, 32, false, false},
    {"int8 g128", WEIGHT_INT8, DTYPE_BF16, 128, false, false},
    {"int8 g64 zero perm", WEIGHT_INT8, DTYPE_F32, 64, true, true},
    {"int8 row zero", WEIGHT_INT8, DTYPE_F16, 0, true, false},
    {"int4 g32 zero", WEIGHT_INT4, DTYPE_BF16, 32, true, false},
    {"int4 g128", WEIGHT_INT4, DTYPE_F16, 128, false, false},
    {"int4 g128 zero perm", WEIGHT_INT4, DTYPE_BF16, 128, true, true},
    {"int4 g96", WEIGHT_INT4, DTYPE_F32, 96, false, false},
    {"int4 row", WEIGHT_INT4, DTYPE_F32, 0, false, false},
};
enum { N_FORMS = sizeof forms / sizeof forms[0] };
enum { FORM_F32 = 0, FORM_F16, FORM_BF16, FORM_INT8_G128 = 4, FORM_INT4_G128 = 8, FORM_PERM };

static const enum dtype acts[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

static bool form_fits(const struct form *f, size_t n_in)
{
    return f->kind == WEIGHT_DENSE || (n_in % WEIGHT_BLOCK == 0 && f->group <= n_in);
}

/* A matrix in host memory, with the pieces that are to be freed. */
struct made {
    struct weight w;
    void *piece[4];
};

static void *bytes_new(size_t n)
{
    void *p = aligned_new(n + 1);

    assert_non_null(p);
    return p;
}

static void fill_dense(struct made *m, uint64_t *seed)
{
    m->piece[0] = bytes_new(weight_bytes(&m->w));
    for (size_t i = 0; i < m->w.n_out * m->w.n_in; i++) {
        dtype_store(m->w.dtype, m->piece[0], i, test_float(seed));
    }
}

static void fill_quantised(struct made *m, const struct form *f, uint64_t *seed)
{
    bool is_int8 = f->kind == WEIGHT_INT8;
    size_t n_bytes = m->w.n_out * weight_row_bytes(&m->w);
    size_t n_scales = m->w.n_out * weight_n_groups(&m->w);
    uint8_t *values = m->piece[0] = bytes_new(n_bytes);
    uint8_t *scales = m->piece[1] = bytes_new(n_scales * dtype_bytes(f->dtype));

    for (size_t i = 0; i < n_bytes; i++) {
        values[i] = (uint8_t)(test_next(seed) >> 40);
    }
    for (size_t i = 0; i < n_scales; i++) {
        dtype_store(f->dtype, scales, i, (1.5f + test_float(seed)) / (is_int8 ? 128.0f : 8.0f));
    }
    if (f->has_zeros) { /* 16 happens to int4: files hold zero - 1 */
        uint8_t *zeros = m->piece[2] = bytes_new(n_scales);

        for (size_t i = 0; i < n_scales; i++) {
            zeros[i] = (uint8_t)((test_next(seed) >> 40) % (is_int8 ? 256 : 17));
        }
    }
    if (f->has_perm) {
        int32_t *perm = m->piece[3] = bytes_new(m->w.n_in * sizeof *perm);

        for (size_t i = 0; i < m->w.n_in; i++) {
            size_t j = (size_t)(test_next(seed) >> 33) % (i + 1);

            perm[i] = perm[j];
            perm[j] = (int32_t)i;
        }
    }
}

static struct made matrix_new(const struct form *f, size_t n_out, size_t n_in, uint64_t *seed)
{
    struct made m = {.w = {.kind = f->kind, .dtype = f->dtype, .n_out = n_out, .n_in = n_in}};

    if (f->kind == WEIGHT_DENSE) {
        fill_dense(&m, seed);
    } else {
        m.w.group = f->group ? f->group : n_in;
        fill_quantised(&m, f, seed);
    }
    m.w.data = m.piece[0];
    m.w.scales = m.piece[1];
    m.w.zeros = m.piece[2];
    m.w.perm = m.piece[3];
    return m;
}

static void matrix_free(struct made *m)
{
    for (size_t i = 0; i < 4; i++) {
        free(m->piece[i]);
    }
}

/* One op of n_parts matrices on n_rows rows, of which the op works on n_out_rows. */
struct job {
    size_t n_rows, n_out_rows, n_in, n_parts;
    enum op_rows rows;
    enum dtype act, round;
    const struct form *form[PARTS_MAX];
    size_t n_out[PARTS_MAX];
    bool accumulates[PARTS_MAX];
    bool shares_perm; /* part 1 has the order of part 0 */
};

static void job_step(struct test_step *t, const struct job *j)
{
    size_t lengths[ROWS_MAX], zeros[ROWS_MAX] = {0}, n_spans = j->n_rows;

    for (size_t i = 0; i < ROWS_MAX; i++) {
        lengths[i] = 1;
    }
    if (j->n_rows > 8) { /* two sequences */
        lengths[0] = j->n_rows - 1;
        n_spans = 2;
    }
    test_step_make(t, n_spans, lengths, zeros, 5);
    t->step.n_out_rows = j->n_out_rows;
}

static void job_run(struct cuda_pair *p, const struct job *j, uint64_t *seed)
{
    float *x = test_floats(j->n_rows * j->n_in, 3.0f / sqrtf((float)j->n_in), seed);
    struct op op = {.kind = OP_LINEAR, .rows = j->rows, .name = "test", .layer = LAYER};
    struct op_linear *u = &op.u.linear;
    float *out[PARTS_MAX];
    struct made m[PARTS_MAX];
    struct test_step step;

    for (size_t i = 0; i < j->n_rows * j->n_in; i++) {
        x[i] = dtype_round(j->act, x[i]);
    }
    cuda_pair_mirror(p, x, j->n_rows * j->n_in * sizeof *x);
    u->in = test_operand(x, j->n_in, j->act);
    u->n_parts = j->n_parts;
    for (size_t i = 0; i < j->n_parts; i++) {
        size_t n = j->n_rows * j->n_out[i];

        m[i] = matrix_new(j->form[i], j->n_out[i], j->n_in, seed);
        out[i] = j->accumulates[i] ? test_floats(n, 1, seed) : test_poisoned(n);
        cuda_pair_mirror(p, out[i], n * sizeof *out[i]);
        u->part[i].w = m[i].w;
        u->part[i].accumulates = j->accumulates[i];
        u->part[i].out =
            test_operand(out[i], j->n_out[i], j->accumulates[i] ? DTYPE_F32 : j->round);
    }
    if (j->shares_perm) {
        u->part[1].w.perm = u->part[0].w.perm;
    }
    job_step(&step, j);
    cuda_pair_run(p, &op, &step.step, NULL);
    for (size_t i = 0; i < j->n_parts; i++) {
        enum dtype round = u->part[i].out.round;
        char group[CUDA_PAIR_NAME], name[CUDA_PAIR_NAME];

        snprintf(group, sizeof group, "%s, %s", j->form[i]->name, dtype_name(j->act));
        snprintf(name, sizeof name, "%zu rows, %zu x %zu%s%s", j->n_rows, j->n_out[i], j->n_in,
                 j->accumulates[i] ? ", adds" : "", j->n_parts > 1 ? ", a part" : "");
        cuda_pair_expect(p, group, name, DTYPE_F32, out[i], j->n_rows * j->n_out[i],
                         cuda_tolerance(round, F32_TOLERANCE));
    }
    cuda_pair_forget(p);
    for (size_t i = 0; i < j->n_parts; i++) {
        matrix_free(&m[i]);
        free(out[i]);
    }
    free(x);
    test_step_release(&step);
}

static struct job one_part(const struct form *f, enum dtype act, size_t n_rows, size_t n_out,
                           size_t n_in)
{
    return (struct job){.n_rows = n_rows,
                        .n_out_rows = n_rows,
                        .n_in = n_in,
                        .n_parts = 1,
                        .act = act,
                        .round = DTYPE_F32,
                        .form = {f},
                        .n_out = {n_out}};
}

/* Rows and outputs go round, so that every size meets several of each. */
static void every_kind_and_size_agrees(void **state)
{
    static const size_t sizes[] = {1, 7, 32, 63, 64, 65, 96, 127, 128, 160, 200, 384, 520, 1056};
    static const size_t rows[] = {1, 2, 3, 5, 8, 9, 16};
    static const size_t outs[] = {33, 1, 16, 7, 17, 70, 15, 2};
    enum { N_SIZES = sizeof sizes / sizeof sizes[0], N_ROWS = 7, N_OUTS = 8 };
    struct cuda_pair p;
    uint64_t seed = 11;
    size_t turn = 0;

    (void)state;
    cuda_pair_open(&p);
    for (size_t f = 0; f < N_FORMS; f++) {
        for (size_t i = 0; i < 3 * N_SIZES; i++) {
            struct job j = one_part(&forms[f], acts[i % 3], 0, 0, sizes[i / 3]);

            if (!form_fits(&forms[f], j.n_in)) {
                continue;
            }
            for (size_t again = 0; again < (p.is_emulated ? 3 : N_ROWS); again++, turn++) {
                j.n_rows = j.n_out_rows = rows[turn % N_ROWS];
                j.n_out[0] = outs[(turn + turn / N_OUTS) % N_OUTS];
                j.accumulates[0] = turn % 3 == 1;
                j.round = turn % 2 ? DTYPE_F32 : j.act;
                job_run(&p, &j, &seed);
            }
        }
    }
    cuda_pair_close(&p);
}

/* More tiles than the card's warps have at once, few tiles that many warps share, and (on the emulated card)
 * blocks with several rounds of shared tiles. */
static void tiles_are_shared_out(void **state)
{
    static const size_t shapes[][2] = {{3, 2048},   {40, 1024},  {260, 256},
                                       {1440, 256}, {1700, 256}, {13000, 32}};
    static const size_t rows[] = {1, 2, 6, 12};
    static const int kinds[] = {FORM_BF16, FORM_INT8_G128, FORM_INT4_G128, FORM_F32};
    struct cuda_pair p;
    uint64_t seed = 12;

    (void)state;
    cuda_pair_open(&p);
    p.runs_once = p.is_emulated;
    for (size_t i = 0; i < 6 * 4 * 4; i++) {
        const struct form *f = &forms[kinds[i % 4]];
        struct job j =
            one_part(f, DTYPE_BF16, rows[i / 4 % 4], shapes[i / 16][0], shapes[i / 16][1]);

        if (form_fits(f, j.n_in) && (!p.is_emulated || i / 16 < 5 || j.n_rows < 3)) {
            job_run(&p, &j, &seed);
        }
    }
    cuda_pair_close(&p);
}

/* Four parts of three kinds and orders; then four of one kind; each with sums and a part smaller than a
 * tile. */
static void parts_share_an_input(void **state)
{
    struct cuda_pair p;
    uint64_t seed = 13;

    (void)state;
    cuda_pair_open(&p);
    for (size_t i = 0; i < 9; i++) {
        struct job mixed = {
            .n_rows = (size_t[]){1, 2, 11}[i / 3],
            .n_out_rows = 1,
            .n_in = 256,
            .n_parts = 4,
            .act = acts[i % 3],
            .round = acts[i % 3],
            .form = {&forms[FORM_PERM], &forms[FORM_PERM], &forms[FORM_BF16], &forms[FORM_PERM]},
            .n_out = {33, 20, 7, 1},
            .accumulates = {false, true, false, true},
            .shares_perm = true};
        struct job alike = mixed;

        job_run(&p, &mixed, &seed);
        alike.shares_perm = false;
        for (size_t k = 0; k < 4; k++) {
            alike.form[k] = &forms[i / 3 ? FORM_BF16 : FORM_INT8_G128];
        }
        job_run(&p, &alike, &seed);
    }
    cuda_pair_close(&p);
}

/* An op on the rows with logits writes no others: they keep the NaN that they have on both sides. */
static void output_rows_are_counted(void **state)
{
    struct cuda_pair p;
    uint64_t seed = 14;

    (void)state;
    cuda_pair_open(&p);
    for (size_t i = 0; i < 8; i++) {
        struct job j = one_part(&forms[i % 2 ? FORM_F32 : FORM_BF16], acts[i % 3], 7, 35, 128);

        j.rows = ROWS_OUT;
        j.n_out_rows = 1 + i % 4;
        job_run(&p, &j, &seed);
    }
    cuda_pair_close(&p);
}

/* Inputs that do not fit shared memory with all rows, or not at all. */
static void long_inputs_are_read_in_pieces(void **state)
{
    static const int cards[] = {75, 86, 120};
    struct cuda_pair p;
    uint64_t seed = 15;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        cuda_pair_open_sm(&p, cards[i]);
        p.runs_once = true;
        for (size_t k = 0; k < 3; k++) {
            struct job j = one_part(&forms[FORM_F16 + (int)k % 2], acts[k], 8, 2, 8192);

            job_run(&p, &j, &seed);
            j = one_part(&forms[k ? FORM_INT8_G128 : FORM_INT4_G128], acts[k], 9, 1, 8192);
            job_run(&p, &j, &seed);
        }
        cuda_pair_close(&p);
    }
    cuda_pair_open(&p);
    p.runs_once = true;
    for (size_t k = 0; k < 3; k++) {
        const int kinds[] = {FORM_BF16, FORM_INT4_G128, FORM_INT8_G128};
        struct job j = one_part(&forms[kinds[k]], acts[k], 2, 2, 131072);

        job_run(&p, &j, &seed);
    }
    cuda_pair_close(&p);
}

/* Each kind and row count once on cards that lack instructions or memory. */
static void older_and_newer_cards_agree(void **state)
{
    static const int cards[] = {75, 80, 120};
    uint64_t seed = 16;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct cuda_pair p;

        cuda_pair_open_sm(&p, cards[i]);
        p.runs_once = true;
        for (size_t f = 0; f < N_FORMS; f++) {
            for (size_t a = 0; a < 3; a++) {
                struct job j = one_part(&forms[f], acts[a], 1 + (f + a) % 4 * 4, 19, 384);

                job_run(&p, &j, &seed);
            }
        }
        cuda_pair_close(&p);
    }
}

/* Inputs of very different sizes side by side, and some that are not finite: what becomes of one row is seen in
 * all its outputs. */
static void odd_inputs_are_kept(void **state)
{
    static const float sizes[] = {1, 1e4f, 1e-6f, 1e30f, 1e-29f};
    static const int kinds[] = {FORM_INT8_G128, FORM_INT4_G128, FORM_BF16};
    const size_t n_in = 256;
    enum { N_OUT = 40, ROWS = 2, N = ROWS * N_OUT };
    struct cuda_pair p;
    uint64_t seed = 19;

    (void)state;
    cuda_pair_open(&p);
    for (size_t i = 0; i < 3 * 7; i++) {
        struct op op = {.kind = OP_LINEAR, .name = "test", .layer = LAYER};
        struct made m = matrix_new(&forms[kinds[i % 3]], N_OUT, n_in, &seed);
        float *x = test_floats(ROWS * n_in, 1, &seed), *out = test_poisoned(N);
        struct job j = {.n_rows = ROWS, .n_out_rows = ROWS};
        struct test_step step;
        float got[N];

        for (size_t k = 0; k < ROWS * n_in; k++) {
            float size = sizes[i / 3 % 5];

            x[k] *= k % 7 == 3 ? size : size > 1e10f || size < 1e-10f ? size / 3 : 1.0f;
            x[k] = dtype_round(DTYPE_BF16, x[k]);
        }
        if (i / 3 > 4) {
            x[n_in + 77] = i / 3 == 5 ? INFINITY : NAN;
        }
        cuda_pair_mirror(&p, x, ROWS * n_in * sizeof *x);
        cuda_pair_mirror(&p, out, N * sizeof *out);
        op.u.linear.in = test_operand(x, n_in, DTYPE_BF16);
        op.u.linear.n_parts = 1;
        op.u.linear.part[0].w = m.w;
        op.u.linear.part[0].out = test_operand(out, N_OUT, DTYPE_F32);
        job_step(&step, &j);
        cuda_pair_run(&p, &op, &step.step, NULL);
        cuda_pair_fetch(&p, out, got, sizeof got);
        for (size_t k = 0; k < N; k++) {
            bool is_finite = isfinite(got[k]);
            float most = 0;

            for (size_t c = 0; c < n_in; c++) {
                most = fmaxf(most, fabsf(x[k / N_OUT * n_in + c]));
            }
            if (k >= N_OUT && i / 3 > 4) {
                assert_false(is_finite);
            } else if (!(fabsf(got[k] - out[k]) <= 4e-6f * (most + fabsf(out[k])))) {
                fail_msg("%s: output %zu is %g, on the CPU %g", forms[kinds[i % 3]].name, k,
                         (double)got[k], (double)out[k]);
            }
        }
        cuda_pair_forget(&p);
        matrix_free(&m);
        free(x);
        free(out);
        test_step_release(&step);
    }
    cuda_pair_close(&p);
}

/* The matrices of a 35B model, on a card only. */
static void real_sizes_agree(void **state)
{
    static const size_t shapes[][2] = {{12288, 2048}, {8192, 2048}, {2048, 4096}, {2048, 8192},
                                       {1024, 2048},  {512, 2048},  {32, 2048},   {1, 2048}};
    static const int kinds[] = {FORM_BF16, FORM_INT8_G128, FORM_INT4_G128};
    struct cuda_pair p;
    uint64_t seed = 17;

    (void)state;
    cuda_pair_open(&p);
    for (size_t i = 0; !p.is_emulated && i < 8 * 3; i++) {
        for (size_t n_rows = 1; n_rows <= ROWS_MAX; n_rows *= 4) {
            struct job j = one_part(&forms[kinds[i % 3]], n_rows == 4 ? DTYPE_F32 : DTYPE_BF16,
                                    n_rows, shapes[i / 3][0], shapes[i / 3][1]);

            job_run(&p, &j, &seed);
        }
    }
    cuda_pair_close(&p);
}

static void bad_ops_are_refused(void **state)
{
    static float x[64], out[64];
    struct cuda_pair p;
    struct op op = {.kind = OP_LINEAR, .name = "test", .layer = LAYER};
    struct op_linear *u = &op.u.linear;
    uint64_t seed = 18;
    struct made m = matrix_new(&forms[FORM_BF16], 64, 64, &seed);

    (void)state;
    cuda_pair_open(&p);
    cuda_pair_mirror(&p, x, sizeof x);
    cuda_pair_mirror(&p, out, sizeof out);
    u->in = test_operand(x, 64, DTYPE_BF16);
    cuda_pair_refused(&p, &op, "0 matrices");
    u->n_parts = 1;
    u->part[0].w = m.w;
    u->part[0].out = test_operand(out, 63, DTYPE_BF16);
    cuda_pair_refused(&p, &op, "63 columns, 64 expected");
    u->part[0].out = test_operand(x, 64, DTYPE_BF16);
    cuda_pair_refused(&p, &op, "overlaps");
    u->part[0].out = test_operand(out, 64, DTYPE_BF16);
    u->part[0].accumulates = true;
    cuda_pair_refused(&p, &op, "must be float32");
    u->part[0].accumulates = false;
    u->part[0].w.n_in = 60;
    cuda_pair_refused(&p, &op, "60 inputs");
    cuda_pair_close(&p);
    matrix_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_and_size_agrees),
        cmocka_unit_test(tiles_are_shared_out),
        cmocka_unit_test(parts_share_an_input),
        cmocka_unit_test(output_rows_are_counted),
        cmocka_unit_test(long_inputs_are_read_in_pieces),
        cmocka_unit_test(older_and_newer_cards_agree),
        cmocka_unit_test(real_sizes_agree),
        cmocka_unit_test(odd_inputs_are_kept),
        cmocka_unit_test(bad_ops_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
