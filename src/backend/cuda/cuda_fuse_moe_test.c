/* cuda_fuse_moe_test.c - the tail of a layer in three launches against the CPU's ops one by one.
 *
 * Cases: all kinds of router and shared weights, both types of activations, one to eight rows, steps that
 *        are rounded up, sizes that fill no warp, values that are not finite, steps that are too large and
 *        layers that are no pattern. That it ran as one is seen by the shared expert's gate, which it does
 *        not write. */
#include "backend/cuda/cuda_testing.h"
#include "backend/cuda/kernels/moe_args.h"

enum { LARGE = 1, APART = 2, NO_SHARE = 4, BAD_ROW = 8 }; /* LARGE: for a real card */
/* NEXT stands for the next layer's first matrices, which the fused kernels ask for. */
enum { NORM, ROUTE, SHARED_IN, SWIGLU, SHARED_DOWN, EXPERTS, ADD, CHECK, NEXT, OPS };
enum { LAYER = 3, SPANS_MAX = 16 };

struct sizes {
    size_t hidden, n_experts, top_k, width, shared_width;
};

static const struct sizes SMALL = {256, 16, 4, 128, 64}, ODD = {384, 37, 3, 256, 136},
                          LONG = {2304, 9, 2, 640, 640}, REAL = {2048, 256, 8, 512, 512},
                          ONE = {768, 12, 8, 512, 256}, ONE_FEW = {2048, 5, 3, 512, 512};

struct moe_case {
    const char *name;
    const struct sizes *is;
    size_t n_rows;
    enum dtype round;
    enum test_kind router, shared;
    unsigned flags;
};

static const struct moe_case CASES[] = {
    {"bf16", &SMALL, 1, DTYPE_BF16, TEST_BF16, TEST_BF16, 0},
    {"bf16", &SMALL, 2, DTYPE_BF16, TEST_BF16, TEST_BF16, 0},
    {"bf16", &SMALL, 3, DTYPE_BF16, TEST_BF16, TEST_BF16, 0},
    {"bf16", &ODD, 8, DTYPE_BF16, TEST_BF16, TEST_BF16, 0},
    {"bf16", &LONG, 1, DTYPE_BF16, TEST_BF16, TEST_BF16, 0},
    {"f16", &SMALL, 1, DTYPE_F16, TEST_F16, TEST_F16, 0},
    {"f16", &ODD, 5, DTYPE_F16, TEST_F16, TEST_F16, 0},
    {"bf16, f32 weights", &ODD, 4, DTYPE_BF16, TEST_F32, TEST_F32, 0},
    {"f16, f32 weights", &LONG, 2, DTYPE_F16, TEST_F32, TEST_F32, 0},
    {"bf16, int8 shared", &SMALL, 1, DTYPE_BF16, TEST_BF16, TEST_INT8, 0},
    {"bf16, int8 shared", &LONG, 3, DTYPE_BF16, TEST_BF16, TEST_INT8_ZEROS, 0},
    {"f16, int8 shared", &SMALL, 8, DTYPE_F16, TEST_BF16, TEST_INT8_ZEROS, 0},
    {"one", &ONE, 1, DTYPE_BF16, TEST_BF16, TEST_BF16, 0},
    {"one f16, int8 shared", &ONE_FEW, 1, DTYPE_F16, TEST_F16, TEST_INT8_ZEROS, 0},
    {"one, no shared gate", &ONE_FEW, 1, DTYPE_BF16, TEST_BF16, TEST_INT8, NO_SHARE},
    {"as one, two rows", &ONE, 2, DTYPE_BF16, TEST_BF16, TEST_BF16, 0},
    {"no shared gate", &SMALL, 2, DTYPE_BF16, TEST_F16, TEST_BF16, NO_SHARE},
    {"a bad row", &SMALL, 3, DTYPE_BF16, TEST_BF16, TEST_BF16, BAD_ROW},
    {"apart: 9 rows", &SMALL, 9, DTYPE_BF16, TEST_BF16, TEST_BF16, APART},
    {"apart: f32", &SMALL, 2, DTYPE_F32, TEST_BF16, TEST_BF16, APART},
    {"apart: int4 shared", &SMALL, 2, DTYPE_F16, TEST_BF16, TEST_INT4, APART},
    {"real bf16", &REAL, 1, DTYPE_BF16, TEST_BF16, TEST_BF16, LARGE},
    {"real bf16", &REAL, 2, DTYPE_BF16, TEST_BF16, TEST_BF16, LARGE},
    {"real bf16", &REAL, 4, DTYPE_BF16, TEST_BF16, TEST_BF16, LARGE},
    {"real bf16", &REAL, 7, DTYPE_BF16, TEST_BF16, TEST_BF16, LARGE},
    {"real f16, int8 shared", &REAL, 1, DTYPE_F16, TEST_F16, TEST_INT8, LARGE},
    {"real f16, int8 shared", &REAL, 8, DTYPE_F16, TEST_F16, TEST_INT8, LARGE},
};
enum { N_CASES = sizeof CASES / sizeof CASES[0] };

/* A test_weight begins 2 bytes past a border; the loader's begin at one. size: of a product with inputs of
 * about 1. */
static void weight_new(struct test_weight *t, enum test_kind kind, size_t n_out, size_t n_in,
                       uint64_t *seed)
{
    float size = 2 / sqrtf((float)n_in);
    size_t n_bytes;
    uint8_t *data;

    test_weight_make(t, kind, n_out, n_in, seed);
    n_bytes = n_out * weight_row_bytes(&t->w);
    data = aligned_new(n_bytes + 1);
    assert_non_null(data);
    memcpy(data, t->w.data, n_bytes);
    free(t->blocks[0]);
    t->blocks[0] = data;
    t->w.data = data;
    for (size_t i = 0; i < n_out * n_in && t->w.kind == WEIGHT_DENSE; i++) {
        dtype_store(t->w.dtype, data, i, size * dtype_load(t->w.dtype, data, i));
    }
    if (t->w.kind != WEIGHT_DENSE) {
        size_t n = n_out * weight_n_groups(&t->w);
        void *scales = aligned_new(n * dtype_bytes(t->w.dtype) + 1);

        assert_non_null(scales);
        for (size_t i = 0; i < n; i++) {
            dtype_store(t->w.dtype, scales, i, size * dtype_load(t->w.dtype, t->w.scales, i));
        }
        free(t->blocks[1]);
        t->blocks[1] = scales;
        t->w.scales = scales;
    }
}

/* int4 with groups of 128, which the fast kernels take. */
static void expert_new(struct test_weight *t, size_t n_out, size_t n_in, uint64_t *seed)
{
    size_t n = n_out * (n_in / 128);
    uint16_t *scales = aligned_new(n * sizeof *scales + 1);

    assert_non_null(scales);
    weight_new(t, TEST_INT4, n_out, n_in, seed);
    t->w.group = 128;
    t->w.dtype = DTYPE_BF16;
    for (size_t i = 0; i < n; i++) {
        dtype_store(DTYPE_BF16, scales, i, (1.5f + test_float(seed)) / (4 * sqrtf((float)n_in)));
    }
    free(t->blocks[1]);
    t->blocks[1] = scales;
    t->w.scales = scales;
}

struct moe_data {
    struct sizes is;
    size_t rows; /* of the buffers: a row more than the step has */
    float *x, *u, *gate, *up, *mid, *shared, *share, *prob, *routed, *norm;
    int32_t *idx;
    struct test_weight router, part[4];
    struct test_weight *expert_parts;
    struct expert_weights *experts;
    struct test_step step;
    float *margin;
    struct op ops[OPS];
};

static void weights_make(struct moe_data *d, const struct moe_case *c, uint64_t *seed)
{
    const struct sizes *is = &d->is;

    weight_new(&d->router, c->router, is->n_experts, is->hidden, seed);
    weight_new(&d->part[0], c->shared, is->shared_width, is->hidden, seed);
    weight_new(&d->part[1], c->shared, is->shared_width, is->hidden, seed);
    weight_new(&d->part[2], c->router, 1, is->hidden, seed);
    weight_new(&d->part[3], c->shared, is->hidden, is->shared_width, seed);
    d->expert_parts = calloc(3 * is->n_experts, sizeof *d->expert_parts);
    d->experts = calloc(is->n_experts, sizeof *d->experts);
    assert_true(d->expert_parts && d->experts);
    for (size_t e = 0; e < is->n_experts; e++) {
        struct test_weight *t = d->expert_parts + 3 * e;

        expert_new(&t[0], is->width, is->hidden, seed);
        expert_new(&t[1], is->width, is->hidden, seed);
        expert_new(&t[2], is->hidden, is->width, seed);
        d->experts[e] = (struct expert_weights){t[0].w, t[1].w, t[2].w};
    }
}

static struct operand buffer(struct cuda_pair *p, const struct moe_data *d, float **data,
                             size_t cols, enum dtype round)
{
    *data = test_poisoned(d->rows * cols);
    cuda_pair_mirror(p, *data, d->rows * cols * sizeof **data);
    return test_operand(*data, cols, round);
}

static void ops_make(struct moe_data *d, struct cuda_pair *p, const struct moe_case *c)
{
    const struct sizes *is = &d->is;
    size_t h = is->hidden, w = is->shared_width;
    struct operand x = test_operand(d->x, h, DTYPE_F32), u = buffer(p, d, &d->u, h, c->round);
    struct operand gate = buffer(p, d, &d->gate, w, c->round);
    struct operand up = buffer(p, d, &d->up, w, c->round);
    struct operand mid = buffer(p, d, &d->mid, w, c->round);
    struct operand shared = buffer(p, d, &d->shared, h, DTYPE_F32);
    struct operand share = buffer(p, d, &d->share, 1, DTYPE_F32);
    struct operand prob = buffer(p, d, &d->prob, is->top_k, DTYPE_F32);
    struct operand routed = buffer(p, d, &d->routed, h, DTYPE_F32);
    struct operand idx;

    d->idx = (int32_t *)(void *)test_poisoned(d->rows * is->top_k);
    cuda_pair_mirror(p, d->idx, d->rows * is->top_k * sizeof *d->idx);
    idx =
        (struct operand){.data = d->idx, .dtype = DTYPE_I32, .round = DTYPE_I32, .cols = is->top_k};
    d->ops[NORM] = (struct op){.kind = OP_NORM, .u.norm = {x, u, d->norm, 1e-6f}};
    d->ops[ROUTE] = (struct op){
        .kind = OP_ROUTE, .u.route = {u, d->router.w, idx, prob, is->n_experts, is->top_k, true}};
    d->ops[SHARED_IN] = (struct op){.kind = OP_LINEAR,
                                    .u.linear = {.in = u,
                                                 .n_parts = c->flags & NO_SHARE ? 2 : 3,
                                                 .part = {{d->part[0].w, gate, false},
                                                          {d->part[1].w, up, false},
                                                          {d->part[2].w, share, false}}}};
    d->ops[SWIGLU] = (struct op){.kind = OP_SWIGLU, .u.swiglu = {gate, up, mid}};
    d->ops[SHARED_DOWN] =
        (struct op){.kind = OP_LINEAR,
                    .u.linear = {.in = mid, .n_parts = 1, .part = {{d->part[3].w, shared, false}}}};
    d->ops[EXPERTS] = (struct op){.kind = OP_EXPERTS,
                                  .u.experts = {u, idx, prob, routed, d->experts, is->n_experts,
                                                is->top_k, is->width, NULL, 0}};
    d->ops[ADD] = (struct op){.kind = OP_ADD_SHARED, .u.add_shared = {x, routed, shared, share}};
    if (c->flags & NO_SHARE) {
        d->ops[ADD].u.add_shared.gate = (struct operand){0};
    }
    d->ops[CHECK] = (struct op){.kind = OP_CHECK, .u.check = {x}};
    d->ops[NEXT] =
        (struct op){.kind = OP_LINEAR,
                    .u.linear = {.in = x, .n_parts = 1, .part = {{d->part[2].w, share, false}}}};
    for (size_t i = 0; i < OPS; i++) {
        d->ops[i].layer = LAYER;
    }
}

static void data_make(struct moe_data *d, struct cuda_pair *p, const struct moe_case *c,
                      uint64_t *seed)
{
    size_t ones[SPANS_MAX], position[SPANS_MAX];

    memset(d, 0, sizeof *d);
    d->is = *c->is;
    d->rows = c->n_rows + 1;
    for (size_t i = 0; i < c->n_rows; i++) {
        ones[i] = 1;
        position[i] = 3 * i;
    }
    test_step_make(&d->step, c->n_rows, ones, position, 10);
    d->margin = test_floats(c->n_rows, 1, seed);
    for (size_t i = 0; i < c->n_rows; i++) {
        d->margin[i] = INFINITY;
    }
    d->step.step.router_margin = d->margin;
    weights_make(d, c, seed);
    d->norm = test_floats(d->is.hidden, 0.5f, seed);
    for (size_t i = 0; i < d->is.hidden; i++) {
        d->norm[i] += 1;
    }
    d->x = test_floats(d->rows * d->is.hidden, 2, seed);
    if (c->flags & BAD_ROW) {
        d->x[d->is.hidden + 77] = NAN;
    }
    cuda_pair_mirror(p, d->x, d->rows * d->is.hidden * sizeof *d->x);
    ops_make(d, p, c);
}

static void data_release(struct moe_data *d, struct cuda_pair *p)
{
    cuda_pair_forget(p);
    test_step_release(&d->step);
    test_weight_release(&d->router);
    for (size_t i = 0; i < 4; i++) {
        test_weight_release(&d->part[i]);
    }
    for (size_t i = 0; i < 3 * d->is.n_experts; i++) {
        test_weight_release(&d->expert_parts[i]);
    }
    free(d->expert_parts);
    free(d->experts);
    free(d->x);
    free(d->u);
    free(d->gate);
    free(d->up);
    free(d->mid);
    free(d->shared);
    free(d->share);
    free(d->prob);
    free(d->routed);
    free(d->norm);
    free(d->idx);
    free(d->margin);
}

/* Two kinds of rounding that may go the other way stand between x and x: u's and mid's. */
static double tolerance(enum dtype round)
{
    return round == DTYPE_F32 ? 1e-4 : 4 * cuda_tolerance(round, 0);
}

static bool is_written(struct cuda_pair *p, const float *data)
{
    uint32_t word;

    cuda_pair_fetch(p, data, &word, sizeof word);
    return word != UINT32_MAX;
}

static void run_case(struct cuda_pair *p, const struct moe_case *c, uint64_t *seed)
{
    char name[CUDA_PAIR_NAME];
    size_t bad = c->flags & BAD_ROW ? 1 : SIZE_MAX, n = c->n_rows;
    struct moe_data d;

    data_make(&d, p, c, seed);
    snprintf(name, sizeof name, "%zu rows of %zu, %zu of %zu", n, d.is.hidden, d.is.top_k,
             d.is.n_experts);
    cuda_pair_run_plan(p, d.ops, OPS, &d.step.step, NULL);
    assert_int_equal(is_written(p, d.gate), (c->flags & APART) != 0 || n > MOE_ROWS_MAX);
    for (size_t i = 0; i < n; i++) {
        const size_t h = d.is.hidden, k = d.is.top_k, w = d.is.shared_width;

        if (i == bad) {
            continue;
        }
        cuda_pair_expect(p, "choices", name, DTYPE_I32, d.idx + i * k, k, 0);
        cuda_pair_expect(p, "probabilities", name, DTYPE_F32, d.prob + i * k, k,
                         tolerance(c->round));
        cuda_pair_expect(p, "u", name, DTYPE_F32, d.u + i * h, h, cuda_tolerance(c->round, 1e-5));
        cuda_pair_expect(p, "mid", name, DTYPE_F32, d.mid + i * w, w, tolerance(c->round));
        cuda_pair_expect_rows(p, c->name, name, DTYPE_F32, d.x + i * h, h, h, tolerance(c->round));
        if (fabsf(p->router_margin[i] - d.margin[i]) > tolerance(c->round)) {
            fail_msg("margin %g on the card, %g on the CPU", p->router_margin[i], d.margin[i]);
        }
    }
    cuda_pair_expect(p, "past the last row", name, DTYPE_F32, d.x + n * d.is.hidden, d.is.hidden,
                     0);
    data_release(&d, p);
}

static void as_the_cpu_has_it(void **state)
{
    uint64_t seed = 21;
    struct cuda_pair p;

    (void)state;
    cuda_pair_open(&p);
    p.is_fused = true;
    for (size_t i = 0; i < N_CASES; i++) {
        if (!p.is_emulated || !(CASES[i].flags & LARGE)) {
            run_case(&p, &CASES[i], &seed);
        }
    }
    cuda_pair_close(&p);
}

/* Less shared memory, and no bfloat16 in matrix instructions. */
static void older_cards(void **state)
{
    static const struct moe_case cases[] = {
        {"7.5", &SMALL, 1, DTYPE_F16, TEST_BF16, TEST_F16, 0},
        {"7.5", &LONG, 8, DTYPE_F16, TEST_F16, TEST_INT8, 0},
        {"7.5, apart", &SMALL, 2, DTYPE_BF16, TEST_BF16, TEST_BF16, APART},
    };
    uint64_t seed = 22;
    struct cuda_pair p;

    (void)state;
    cuda_pair_open_sm(&p, 75);
    p.is_fused = true;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        run_case(&p, &cases[i], &seed);
    }
    cuda_pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_the_cpu_has_it),
        cmocka_unit_test(older_cards),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
