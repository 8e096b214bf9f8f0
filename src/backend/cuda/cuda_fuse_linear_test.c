/* cuda_fuse_linear_test.c - a norm or a swiglu and its linear layer as one kernel: against the CPU and the ops one by one.
 *
 * Place: backend/cuda. Whether they ran as one shows in what passes between them: then it is not written. */
#include "backend/cuda/cuda_testing.h"

enum { PARTS_MAX = 3, ROWS_MAX = 9, OPS_MAX = 4 };

/* What follows the two ops. */
enum tail {
    NOTHING,
    READER,      /* another layer reads the norm's output: not as one */
    LATE_READER, /* the same after another norm: these two run as one as well */
    NORM_OUT     /* as NOTHING, and the ops work on output rows */
};

struct fuse_case {
    enum dtype act;
    enum test_kind kind[PARTS_MAX];
    size_t n_in, n_out[PARTS_MAX], n_rows;
    enum tail tail;
    bool is_apart;  /* the kernels do not take it */
    bool is_swiglu; /* in place of the norm */
};

static const struct fuse_case cases[] = {
    {DTYPE_BF16, {TEST_BF16}, 64, {40}, 1, NOTHING, false, false},
    {DTYPE_BF16, {TEST_BF16, TEST_BF16, TEST_BF16}, 384, {70, 3, 33}, 1, LATE_READER, false, false},
    {DTYPE_BF16, {TEST_BF16}, 384, {70}, 2, NOTHING, false, false},
    {DTYPE_BF16, {TEST_BF16}, 384, {70}, 3, NOTHING, false, false},
    {DTYPE_BF16, {TEST_BF16}, 1056, {70}, 8, NOTHING, false, false},
    {DTYPE_BF16, {TEST_BF16}, 384, {70}, 9, NOTHING, true, false},
    {DTYPE_F16, {TEST_F16, TEST_F16}, 384, {70, 1}, 1, NOTHING, false, false},
    {DTYPE_F16, {TEST_F16}, 128, {17}, 5, NORM_OUT, false, false},
    {DTYPE_F32, {TEST_BF16}, 520, {50}, 1, NORM_OUT, false, false},
    {DTYPE_F32, {TEST_F32, TEST_BF16}, 200, {50, 7}, 2, NOTHING, false, false},
    {DTYPE_F32, {TEST_F16}, 384, {50}, 4, NOTHING, false, false},
    {DTYPE_F32, {TEST_BF16}, 384, {50}, 7, NOTHING, false, false},
    {DTYPE_BF16, {TEST_INT8, TEST_INT8, TEST_BF16}, 384, {70, 20, 5}, 1, NOTHING, false, false},
    {DTYPE_F16, {TEST_INT8_ZEROS}, 2048, {20}, 1, NORM_OUT, false, false},
    {DTYPE_F32, {TEST_INT8}, 576, {70}, 2, NOTHING, false, false},
    {DTYPE_F32, {TEST_INT8_ZEROS}, 384, {40}, 4, NOTHING, false, false},
    {DTYPE_F32, {TEST_INT8}, 384, {40}, 8, NOTHING, false, false},
    {DTYPE_F16, {TEST_INT8}, 384, {40}, 4, NOTHING, false, false},
    {DTYPE_BF16, {TEST_INT4}, 384, {70}, 1, NOTHING, false, false},
    {DTYPE_F32, {TEST_INT4_ZEROS}, 576, {70}, 2, NOTHING, false, false},
    {DTYPE_F32, {TEST_INT4_ROW}, 2048, {20}, 3, NOTHING, false, false},
    {DTYPE_F16, {TEST_INT4_ZEROS}, 640, {33}, 6, NOTHING, false, false},
    {DTYPE_F32, {TEST_INT4}, 640, {33}, 8, NOTHING, false, false},
    {DTYPE_BF16, {TEST_BF16}, 128, {40}, 2, READER, true, false},
    {DTYPE_BF16, {TEST_INT4_PERM}, 128, {40}, 2, NOTHING, true, false},
    {DTYPE_BF16, {TEST_BF16}, 63, {40}, 2, NOTHING, true, false},
    {DTYPE_BF16, {TEST_BF16}, 1056, {40}, 1, NOTHING, false, true},
    {DTYPE_F16, {TEST_F16}, 384, {40}, 1, LATE_READER, false, true},
    {DTYPE_F32, {TEST_BF16}, 72, {40}, 1, NOTHING, false, true},
    {DTYPE_BF16, {TEST_INT8_ZEROS}, 640, {40}, 1, NOTHING, false, true},
    {DTYPE_F32, {TEST_INT4}, 640, {40}, 1, NORM_OUT, false, true},
    {DTYPE_BF16, {TEST_BF16}, 384, {40}, 2, NOTHING, true, true},
    {DTYPE_BF16, {TEST_BF16}, 4104, {4}, 1, NOTHING, true, true},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

struct data {
    struct test_step step;
    struct test_weight w[PARTS_MAX], after;
    size_t n_ops, n_parts, rows;
    struct op ops[OPS_MAX];
    float *x, *gate, *u, *weight, *out[PARTS_MAX], *last;
};

static void layer_make(struct op *op, const struct fuse_case *c, struct data *d,
                       const struct weight *w, float *out)
{
    *op = (struct op){.kind = OP_LINEAR, .rows = d->ops[0].rows, .name = "layer"};
    op->u.linear.in = test_operand(d->u, c->n_in, c->act);
    op->u.linear.n_parts = 1;
    op->u.linear.part[0].w = *w;
    op->u.linear.part[0].out = test_operand(out, w->n_out, DTYPE_F32);
}

static void ops_make(struct data *d, const struct fuse_case *c)
{
    struct op *norm = &d->ops[0];

    *norm = (struct op){.kind = OP_NORM, .name = "norm"};
    norm->rows = c->tail == NORM_OUT ? ROWS_OUT : ROWS_ALL;
    norm->u.norm = (struct op_norm){.in = test_operand(d->x, c->n_in, DTYPE_F32),
                                    .out = test_operand(d->u, c->n_in, c->act),
                                    .weight = d->weight,
                                    .eps = 1e-6f};
    if (c->is_swiglu) {
        norm->kind = OP_SWIGLU;
        norm->u.swiglu = (struct op_swiglu){.gate = test_operand(d->gate, c->n_in, c->act),
                                            .up = test_operand(d->x, c->n_in, c->act),
                                            .out = test_operand(d->u, c->n_in, c->act)};
    }
    layer_make(&d->ops[1], c, d, &d->w[0].w, d->out[0]);
    for (size_t i = 1; i < d->n_parts; i++) {
        struct op_linear *l = &d->ops[1].u.linear;

        l->n_parts++;
        l->part[i].w = d->w[i].w;
        l->part[i].accumulates = i == 1;
        l->part[i].out = test_operand(d->out[i], c->n_out[i], i == 1 ? DTYPE_F32 : c->act);
    }
    d->n_ops = 2;
    if (c->tail == LATE_READER) {
        d->ops[d->n_ops++] = *norm;
    }
    if (c->tail == LATE_READER || c->tail == READER) {
        layer_make(&d->ops[d->n_ops++], c, d, &d->after.w, d->last);
    }
}

static void data_make(struct data *d, const struct fuse_case *c, uint64_t *seed)
{
    static const size_t lengths[ROWS_MAX] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, zeros[ROWS_MAX];

    memset(d, 0, sizeof *d);
    d->rows = c->n_rows;
    test_step_make(&d->step, c->n_rows, lengths, zeros, 5);
    d->x = test_floats(d->rows * c->n_in, 3, seed);
    d->gate = test_floats(d->rows * c->n_in, 3.0f / sqrtf((float)c->n_in), seed);
    for (size_t i = 0; c->is_swiglu && i < d->rows * c->n_in; i++) {
        d->x[i] = dtype_round(c->act, d->x[i]);
        d->gate[i] = dtype_round(c->act, d->gate[i]);
    }
    d->weight = test_floats(c->n_in, 3.0f / sqrtf((float)c->n_in), seed);
    d->u = test_poisoned(d->rows * c->n_in);
    for (; d->n_parts < PARTS_MAX && c->n_out[d->n_parts]; d->n_parts++) {
        size_t i = d->n_parts;

        test_weight_make(&d->w[i], c->kind[i], c->n_out[i], c->n_in, seed);
        d->out[i] = test_floats(d->rows * c->n_out[i], 1, seed);
    }
    test_weight_make(&d->after, TEST_BF16, 3, c->n_in, seed);
    d->last = test_poisoned(d->rows * 3);
    ops_make(d, c);
}

static void data_mirror(struct cuda_pair *p, const struct data *d, const struct fuse_case *c)
{
    cuda_pair_mirror(p, d->x, d->rows * c->n_in * sizeof *d->x);
    cuda_pair_mirror(p, d->gate, d->rows * c->n_in * sizeof *d->gate);
    cuda_pair_mirror(p, d->u, d->rows * c->n_in * sizeof *d->u);
    cuda_pair_mirror(p, d->last, d->rows * 3 * sizeof *d->last);
    for (size_t i = 0; i < d->n_parts; i++) {
        cuda_pair_mirror(p, d->out[i], d->rows * c->n_out[i] * sizeof **d->out);
    }
}

static void data_release(struct data *d)
{
    for (size_t i = 0; i < d->n_parts; i++) {
        test_weight_release(&d->w[i]);
        free(d->out[i]);
    }
    test_weight_release(&d->after);
    free(d->last);
    free(d->x);
    free(d->gate);
    free(d->u);
    free(d->weight);
    test_step_release(&d->step);
}

static bool was_apart(struct cuda_pair *p, const struct data *d)
{
    float first;

    cuda_pair_fetch(p, d->u, &first, sizeof first);
    return !isnan(first);
}

/* A factor that differs in its last bit rounds some inputs of 16 bits the other way. */
static double allowed(const struct fuse_case *c)
{
    return cuda_tolerance(c->act, 4e-6);
}

static void run_case(struct cuda_pair *p, const struct fuse_case *c)
{
    struct data d;
    float *fused[PARTS_MAX], *start[PARTS_MAX];
    uint64_t seed = 21 + c->n_in;
    char name[CUDA_PAIR_NAME], group[CUDA_PAIR_NAME];

    data_make(&d, c, &seed);
    data_mirror(p, &d, c);
    snprintf(group, sizeof group, "%s, %s", test_kind_name(c->kind[0]), dtype_name(c->act));
    snprintf(name, sizeof name, "%zu rows, %zu x %zu", d.rows, c->n_out[0], c->n_in);
    for (size_t i = 0; i < d.n_parts; i++) {
        size_t n = d.rows * c->n_out[i];

        start[i] = test_poisoned(n);
        fused[i] = test_poisoned(n);
        memcpy(start[i], d.out[i], n * sizeof **fused);
    }
    p->is_fused = true;
    cuda_pair_run_plan(p, d.ops, d.n_ops, &d.step.step, NULL);
    p->is_fused = false;
    assert_int_equal(was_apart(p, &d), c->is_apart);
    cuda_pair_expect(p, group, name, DTYPE_F32, d.last, d.rows * 3, allowed(c));
    for (size_t i = 0; i < d.n_parts; i++) {
        size_t n = d.rows * c->n_out[i];

        cuda_pair_expect(p, group, name, DTYPE_F32, d.out[i], n, allowed(c));
        cuda_pair_fetch(p, d.out[i], fused[i], n * sizeof **fused);
        memcpy(d.out[i], start[i], n * sizeof **fused);
    }
    /* The card's ops one by one, which the CPU's results are near to as well. */
    data_mirror(p, &d, c);
    p->runs_once = true;
    cuda_pair_run_plan(p, d.ops, d.n_ops, &d.step.step, NULL);
    p->runs_once = false;
    for (size_t i = 0; i < d.n_parts; i++) {
        size_t n = d.rows * c->n_out[i];

        cuda_pair_fetch(p, d.out[i], start[i], n * sizeof **fused);
        for (size_t k = 0; k < n; k++) {
            if (!(fabsf(fused[i][k] - start[i][k]) <= allowed(c) * (1 + fabsf(start[i][k])))) {
                fail_msg("%s, %s: output %zu is %g as one, %g apart", group, name, k,
                         (double)fused[i][k], (double)start[i][k]);
            }
        }
        free(start[i]);
        free(fused[i]);
    }
    cuda_pair_forget(p);
    data_release(&d);
}

static void one_goes_along(void **state)
{
    struct cuda_pair p;

    (void)state;
    cuda_pair_open(&p);
    for (size_t i = 0; i < N_CASES; i++) {
        run_case(&p, &cases[i]);
    }
    cuda_pair_close(&p);
}

static void older_card_agrees(void **state)
{
    struct cuda_pair p;

    (void)state;
    cuda_pair_open_sm(&p, 75);
    for (size_t i = 0; i < N_CASES; i += 2) {
        run_case(&p, &cases[i]);
    }
    cuda_pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_goes_along),
                                       cmocka_unit_test(older_card_agrees)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
