/* cuda_linear_gemm_test.c - linear layers over many rows, on the card and on the CPU.
 *
 * Place: backend/cuda. Weights of every kind, group, scale type and order, with every activation type, in
 *        sizes that fill no tile; on a real card also the sizes of models. The card's number of
 *        multiprocessors decides about tiles and pieces of sums, so some tests pretend another. */
#include "backend/cuda/cuda_internal.h"
#include "backend/cuda/cuda_testing.h"

struct form {
    const char *name;
    enum weight_kind kind;
    enum dtype dtype;
    size_t group; /* 0: one for the row */
    bool has_zeros, has_perm;
};

static const struct form forms[] = {
    {"f32", WEIGHT_DENSE, DTYPE_F32, 0, false, false},
    {"bf16", WEIGHT_DENSE, DTYPE_BF16, 0, false, false},
    {"f16", WEIGHT_DENSE, DTYPE_F16, 0, false, false},
    {"int4 g32 f16", WEIGHT_INT4, DTYPE_F16, 32, false, false},
    {"int4 g64 zero", WEIGHT_INT4, DTYPE_BF16, 64, true, false},
    {"int4 g96 f32", WEIGHT_INT4, DTYPE_F32, 96, true, false},
    {"int4 g128 perm", WEIGHT_INT4, DTYPE_F16, 128, true, true},
    {"int4 row", WEIGHT_INT4, DTYPE_BF16, 0, false, false},
    {"int8 g32 zero", WEIGHT_INT8, DTYPE_F16, 32, true, false},
    {"int8 g128 perm", WEIGHT_INT8, DTYPE_BF16, 128, false, true},
    {"int8 row zero", WEIGHT_INT8, DTYPE_F32, 0, true, false},
};
enum { N_FORMS = sizeof forms / sizeof forms[0], PARTS_MAX = LINEAR_PARTS_MAX };

static const enum dtype acts[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

static bool form_fits(const struct form *f, size_t n_in)
{
    return f->kind == WEIGHT_DENSE || (n_in % WEIGHT_BLOCK == 0 && f->group <= n_in);
}

/* In host memory; w_free. */
static struct weight w_new(const struct form *f, size_t n_out, size_t n_in, uint64_t *seed)
{
    struct weight w = {.kind = f->kind, .dtype = f->dtype, .n_out = n_out, .n_in = n_in};
    bool is_dense = f->kind == WEIGHT_DENSE;
    size_t n_values, n_scales;
    uint8_t *data;

    w.group = is_dense ? 0 : f->group ? f->group : n_in;
    n_values = is_dense ? n_out * n_in : n_out * weight_row_bytes(&w);
    data = aligned_new(n_out * weight_row_bytes(&w));
    for (size_t i = 0; i < n_values; i++) {
        if (is_dense) {
            dtype_store(f->dtype, data, i, test_float(seed));
        } else {
            data[i] = (uint8_t)(test_next(seed) >> 40);
        }
    }
    w.data = data;
    if (is_dense) {
        return w;
    }
    n_scales = n_out * weight_n_groups(&w);
    data = aligned_new(n_scales * dtype_bytes(f->dtype));
    for (size_t i = 0; i < n_scales; i++) {
        float size = f->kind == WEIGHT_INT8 ? 256.0f : 16.0f;

        dtype_store(f->dtype, data, i, (1.5f + test_float(seed)) / size);
    }
    w.scales = data;
    if (f->has_zeros) {
        data = aligned_new(n_scales);
        for (size_t i = 0; i < n_scales; i++) {
            data[i] = (uint8_t)((test_next(seed) >> 40) % (f->kind == WEIGHT_INT8 ? 256 : 17));
        }
        w.zeros = data;
    }
    if (f->has_perm) {
        int32_t *perm = aligned_new(n_in * sizeof *perm);

        for (size_t i = 0; i < n_in; i++) {
            size_t j = (size_t)(test_next(seed) >> 33) % (i + 1);

            perm[i] = perm[j];
            perm[j] = (int32_t)i;
        }
        w.perm = perm;
    }
    return w;
}

static void w_free(struct weight *w)
{
    free((void *)(uintptr_t)w->data);
    free((void *)(uintptr_t)w->scales);
    free((void *)(uintptr_t)w->zeros);
    free((void *)(uintptr_t)w->perm);
}

/* One op: parts share x [n_rows][n_in]. Values are small enough for sums of about 1. */
struct job {
    size_t n_parts, n_rows, n_in;
    enum dtype act, round;
    bool is_output; /* ROWS_OUT */
    bool accumulates[PARTS_MAX];
    struct weight w[PARTS_MAX];
    float *x, *out[PARTS_MAX];
    struct op op;
    struct test_step step;
};

static void job_init(struct job *j, const struct form *const *f, const size_t *n_out,
                     uint64_t *seed)
{
    size_t position = 0;

    j->x = test_floats(j->n_rows * j->n_in, 1.0f / sqrtf((float)j->n_in), seed);
    for (size_t i = 0; i < j->n_rows * j->n_in; i++) {
        uint8_t one[4];

        dtype_store(j->act, one, 0, j->x[i]);
        j->x[i] = dtype_load(j->act, one, 0);
    }
    j->op = (struct op){
        .kind = OP_LINEAR, .rows = j->is_output ? ROWS_OUT : ROWS_ALL, .name = "linear"};
    j->op.u.linear.in = test_operand(j->x, j->n_in, j->act);
    j->op.u.linear.n_parts = j->n_parts;
    for (size_t p = 0; p < j->n_parts; p++) {
        size_t n = j->n_rows * n_out[p];

        j->w[p] = w_new(f[p], n_out[p], j->n_in, seed);
        j->out[p] = j->accumulates[p] ? test_floats(n, 1, seed) : test_poisoned(n);
        j->op.u.linear.part[p].w = j->w[p];
        j->op.u.linear.part[p].accumulates = j->accumulates[p];
        j->op.u.linear.part[p].out =
            test_operand(j->out[p], n_out[p], j->accumulates[p] ? DTYPE_F32 : j->round);
    }
    test_step_make(&j->step, 1, &j->n_rows, &position, 10);
}

static void job_release(struct job *j)
{
    for (size_t p = 0; p < j->n_parts; p++) {
        w_free(&j->w[p]);
        free(j->out[p]);
    }
    free(j->x);
    test_step_release(&j->step);
}

static void job_run(struct cuda_pair *p, struct job *j)
{
    cuda_pair_mirror(p, j->x, j->n_rows * j->n_in * sizeof *j->x);
    for (size_t i = 0; i < j->n_parts; i++) {
        cuda_pair_mirror(p, j->out[i], j->n_rows * j->w[i].n_out * sizeof(float));
    }
    cuda_pair_run(p, &j->op, &j->step.step, NULL);
}

static void job_expect(struct cuda_pair *p, struct job *j, const char *what)
{
    /* Matrix instructions of real cards cut off what the sum's last bit does not hold. */
    double tolerance = p->is_emulated ? 2e-6 : 2e-5;
    char name[CUDA_PAIR_NAME];

    for (size_t i = 0; i < j->n_parts; i++) {
        enum dtype round = j->op.u.linear.part[i].out.round;
        char group[CUDA_PAIR_NAME];

        snprintf(group, sizeof group, "%s, %s, to %s", what, dtype_name(j->act),
                 round == DTYPE_F32 ? "float32" : "half");
        snprintf(name, sizeof name, "part %zu: %zu rows, %zu outputs, %zu inputs", i, j->n_rows,
                 j->w[i].n_out, j->n_in);
        cuda_pair_expect(p, group, name, DTYPE_F32, j->out[i], j->n_rows * j->w[i].n_out,
                         cuda_tolerance(round, tolerance));
    }
    cuda_pair_forget(p);
}

static void one_part(struct cuda_pair *p, const struct form *f, enum dtype act, size_t n_rows,
                     size_t n_out, size_t n_in, uint64_t *seed)
{
    struct job j = {.n_parts = 1, .n_rows = n_rows, .n_in = n_in, .act = act};

    j.round = n_out % 2 ? act : DTYPE_F32;
    j.accumulates[0] = n_rows % 2;
    j.is_output = n_rows % 3 == 0;
    job_init(&j, &f, &n_out, seed);
    job_run(p, &j);
    job_expect(p, &j, f->name);
    job_release(&j);
}

static void every_kind_and_size_agrees(void **state)
{
    /* rows, outputs, inputs */
    static const size_t small[][3] = {{17, 7, 64},   {31, 130, 96},  {64, 127, 128}, {65, 65, 65},
                                      {40, 3, 1088}, {130, 33, 288}, {33, 64, 72},   {18, 129, 7}};
    static const size_t large[][3] = {{17, 8192, 2048},  {33, 2048, 4096},  {64, 512, 2048},
                                      {65, 2048, 4096},  {128, 4096, 2048}, {200, 2047, 4096},
                                      {512, 4096, 2048}, {2048, 2048, 512}, {4100, 513, 1056},
                                      {777, 333, 1111}};
    struct cuda_pair p;
    uint64_t seed = 1;

    (void)state;
    cuda_pair_open(&p);
    for (size_t a = 0; a < 3; a++) {
        for (size_t f = 0; f < N_FORMS; f++) {
            size_t n =
                sizeof small / sizeof *small + (p.is_emulated ? 0 : sizeof large / sizeof *large);

            for (size_t s = 0; s < n; s++) {
                const size_t *size = s < sizeof small / sizeof *small
                                         ? small[s]
                                         : large[s - sizeof small / sizeof *small];

                if (form_fits(&forms[f], size[2])) {
                    one_part(&p, &forms[f], acts[a], size[0], size[1], size[2], &seed);
                }
            }
        }
    }
    cuda_pair_close(&p);
}

/* Four matrices of different kinds and orders in one op, some of a kind. */
static void parts_share_an_input(void **state)
{
    static const size_t mixes[][PARTS_MAX] = {{3, 1, 6, 3}, {1, 1, 2, 1}, {6, 6, 8, 0}};
    static const size_t n_out[PARTS_MAX] = {33, 7, 130, 256};
    struct cuda_pair p;
    uint64_t seed = 2;

    (void)state;
    cuda_pair_open(&p);
    for (size_t m = 0; m < sizeof mixes / sizeof *mixes; m++) {
        for (size_t a = 0; a < 3; a++) {
            struct job j = {
                .n_parts = PARTS_MAX, .n_rows = 37, .n_in = 128, .act = acts[a], .round = acts[a]};
            const struct form *f[PARTS_MAX];

            j.accumulates[1] = true;
            for (size_t i = 0; i < PARTS_MAX; i++) {
                f[i] = &forms[mixes[m][i]];
            }
            job_init(&j, f, n_out, &seed);
            job_run(&p, &j);
            job_expect(&p, &j, "four parts");
            job_release(&j);
        }
    }
    cuda_pair_close(&p);
}

static void pretend_multiprocessors(struct cuda_pair *p, int n)
{
    ((struct cuda_backend *)p->gpu)->card.n_multiprocessors = n;
}

/* Wide tiles on a small card; many pieces of a sum on a large one; more rows than one chunk. */
static void other_tilings(void **state)
{
    struct cuda_pair p;
    uint64_t seed = 3;

    (void)state;
    cuda_pair_open(&p);
    for (size_t f = 1; f < N_FORMS; f++) {
        enum dtype act = f % 2 ? DTYPE_BF16 : DTYPE_F16;

        pretend_multiprocessors(&p, 2);
        one_part(&p, &forms[f], act, 150, 500, 128, &seed);
        pretend_multiprocessors(&p, 1000);
        one_part(&p, &forms[f], act, 20, 70, 64 * 35 + 32, &seed);
        pretend_multiprocessors(&p, 8);
        one_part(&p, &forms[f], act, 100, 40, 64 * 50, &seed);
    }
    one_part(&p, &forms[1], DTYPE_BF16, 4097, 3, 64, &seed);
    one_part(&p, &forms[4], DTYPE_F32, 4112, 4, 64, &seed);
    cuda_pair_close(&p);
}

/* No bfloat16 instructions, little shared memory, no copies that run by themselves. */
static void an_old_card(void **state)
{
    struct cuda_pair p;
    uint64_t seed = 4;

    (void)state;
    cuda_pair_open_sm(&p, 75);
    for (size_t a = 0; a < 3; a++) {
        for (size_t f = 0; f < N_FORMS; f++) {
            one_part(&p, &forms[f], acts[a], 33, 140, 128, &seed);
        }
        one_part(&p, &forms[2], acts[a], 130, 140, 192, &seed);
        one_part(&p, &forms[6], acts[a], 130, 140, 256, &seed);
        one_part(&p, &forms[8], acts[a], 130, 140, 192, &seed);
    }
    cuda_pair_close(&p);
}

/* Bits do not change with other rows' values, nor with their number inside a power of two. */
static void bits_are_the_rows_own(void **state)
{
    enum { ROW = 35 };
    struct cuda_pair p;
    uint64_t seed = 5;
    size_t n_in, n_out;

    (void)state;
    cuda_pair_open(&p);
    n_in = p.is_emulated ? 1088 : 4096;
    n_out = p.is_emulated ? 40 : 2048;
    for (size_t f = 1; f < N_FORMS; f += 2) {
        struct job j = {
            .n_parts = 1, .n_rows = 60, .n_in = n_in, .act = DTYPE_BF16, .round = DTYPE_F32};
        const struct form *form = &forms[f];
        float *first = test_poisoned(n_out), *second = test_poisoned(n_out);
        size_t n_rows = 40, position = 0;

        if (form_fits(form, n_in)) {
            job_init(&j, &form, &n_out, &seed);
            job_run(&p, &j);
            cuda_pair_fetch(&p, j.out[0] + ROW * n_out, first, n_out * sizeof *first);
            for (size_t i = 0; i < j.n_rows * n_in; i++) {
                j.x[i] = i / n_in == ROW ? j.x[i] : i / n_in == ROW - 1 ? NAN : -j.x[i];
            }
            test_step_release(&j.step);
            test_step_make(&j.step, 1, &n_rows, &position, 10);
            job_run(&p, &j);
            cuda_pair_fetch(&p, j.out[0] + ROW * n_out, second, n_out * sizeof *second);
            assert_memory_equal(first, second, n_out * sizeof *first);
            cuda_pair_forget(&p);
            job_release(&j);
        }
        free(first);
        free(second);
    }
    cuda_pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_and_size_agrees),
        cmocka_unit_test(parts_share_an_input),
        cmocka_unit_test(other_tilings),
        cmocka_unit_test(an_old_card),
        cmocka_unit_test(bits_are_the_rows_own),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
