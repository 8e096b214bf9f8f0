/* cuda_delta_test.c - the gated delta rule on the card against the CPU's.
 *
 * Cases: heads of 128 in the recurrent and the chunked form, of 1 to 200 rows, several spans in a step; heads
 *        of odd sizes; all types of activations and states; spans that start from nothing and that go on. The
 *        pools and outputs are compared whole, so what must be left alone is seen too. */
#include "backend/cuda/cuda_testing.h"

enum {
    LARGE = 1,   /* for a real card */
    ONE_KEY = 2, /* for all rows, and nearly no decay: M is full */
    WIDE = 4     /* the output is not rounded, so its error shows */
};
enum { SPANS_MAX = 5, LAYERS = 2, LAYER = 1, NEVER = 1 << 30 };

/* As in the CPU's test: where an output nearly cancels, its norm would magnify its rounding without bound. */
static const float EPS = 1e-3f;

struct delta_case {
    const char *group;
    size_t nk, nv, dk, dv;
    size_t n_rows[SPANS_MAX]; /* up to the first 0 */
    size_t chunk_min;
    enum dtype round, state;
    unsigned flags;
};

static const struct delta_case CASES[] = {
    {"step f32", 1, 2, 128, 128, {1, 1, 1}, 16, DTYPE_F32, DTYPE_F32, 0},
    {"step f32", 2, 2, 128, 128, {5, 1, 9}, 16, DTYPE_F32, DTYPE_F32, 0},
    {"step f32", 1, 1, 128, 128, {17}, NEVER, DTYPE_F32, DTYPE_F32, 0},
    {"step bf16", 1, 2, 128, 128, {1, 3}, 16, DTYPE_BF16, DTYPE_F32, 0},
    {"step f16, state bf16", 1, 1, 128, 128, {1, 4}, 16, DTYPE_F16, DTYPE_BF16, 0},
    {"any f32", 1, 1, 1, 1, {1, 3}, 16, DTYPE_F32, DTYPE_F32, 0},
    {"any f32", 2, 4, 32, 32, {1, 70, 1}, 16, DTYPE_F32, DTYPE_F32, 0},
    {"any f32", 1, 3, 33, 7, {63, 2}, 16, DTYPE_F32, DTYPE_F32, 0},
    {"any f32", 1, 1, 300, 65, {3}, 16, DTYPE_F32, DTYPE_F32, 0},
    {"any f32", 1, 1, 16, 130, {3}, 16, DTYPE_F32, DTYPE_F32, 0},
    {"any bf16, state bf16", 2, 2, 24, 40, {9, 1}, 16, DTYPE_BF16, DTYPE_BF16, 0},
    {"chunk f32", 1, 1, 128, 128, {1, 2}, 1, DTYPE_F32, DTYPE_F32, 0},
    {"chunk f32", 1, 1, 128, 128, {63}, 16, DTYPE_F32, DTYPE_F32, 0},
    {"chunk f32", 1, 1, 128, 128, {64}, 16, DTYPE_F32, DTYPE_F32, 0},
    {"chunk f32", 1, 1, 128, 128, {65}, 16, DTYPE_F32, DTYPE_F32, 0},
    {"chunk f32", 1, 2, 128, 128, {127}, 16, DTYPE_F32, DTYPE_F32, 0},
    {"chunk bf16", 1, 2, 128, 128, {1, 70, 3, 16, 17}, 16, DTYPE_BF16, DTYPE_F32, 0},
    {"chunk bf16, f32 out", 1, 2, 128, 128, {130}, 16, DTYPE_BF16, DTYPE_F32, WIDE},
    {"chunk bf16, keys alike", 1, 1, 128, 128, {64}, 16, DTYPE_BF16, DTYPE_F32, ONE_KEY | WIDE},
    {"chunk bf16, state bf16", 1, 1, 128, 128, {66}, 16, DTYPE_BF16, DTYPE_BF16, 0},
    {"chunk f16", 1, 1, 128, 128, {80}, 16, DTYPE_F16, DTYPE_F32, 0},
    {"real step bf16", 16, 32, 128, 128, {1, 1, 1, 1, 1}, 16, DTYPE_BF16, DTYPE_F32, LARGE},
    {"real chunk bf16, f32 out", 16, 32, 128, 128, {2048}, 16, DTYPE_BF16, DTYPE_F32, LARGE | WIDE},
    {"real chunk bf16", 16, 32, 128, 128, {500, 1, 1, 64, 1000}, 16, DTYPE_BF16, DTYPE_F32, LARGE},
    {"real chunk f32", 16, 32, 128, 128, {700}, 16, DTYPE_F32, DTYPE_F32, LARGE},
    {"real chunk f16", 16, 32, 128, 128, {300, 15, 200}, 16, DTYPE_F16, DTYPE_F32, LARGE},
    {"real any f32", 16, 32, 96, 80, {100, 3}, 16, DTYPE_F32, DTYPE_F32, LARGE},
};
enum { N_CASES = sizeof CASES / sizeof CASES[0] };

/* Buffers of one op. */
struct delta_data {
    size_t rows, cols, values, n_slots, state_elems;
    float *qkv, *z, *a, *b, *out, *neg_exp_a, *dt_bias, *norm;
    struct state_pools pools;
    struct test_step step;
    struct op op;
};

static float *rounded(size_t n, double size, enum dtype t, uint64_t *seed)
{
    float *x = test_floats(n, (float)size, seed);

    for (size_t i = 0; i < n; i++) {
        x[i] = dtype_round(t, x[i]);
    }
    return x;
}

/* Slots and layers that no span has hold NaN, and so does the slot of a span that starts from nothing. */
static void make_pools(struct delta_data *d, const struct delta_case *c, uint64_t *seed)
{
    size_t n = LAYERS * d->n_slots * d->state_elems;
    float *values = test_floats(d->state_elems, 1, seed);

    d->pools = (struct state_pools){.recurrent_dtype = c->state,
                                    .conv_dtype = DTYPE_F32,
                                    .n_slots = d->n_slots,
                                    .n_gdn_layers = LAYERS,
                                    .recurrent_elems = d->state_elems};
    d->pools.recurrent = (uint8_t *)test_poisoned(n);
    for (size_t i = 0; i < d->step.step.n_spans; i++) {
        struct span *span = &d->step.spans[i];
        size_t at = (LAYER * d->n_slots + (size_t)span->slot) * d->state_elems;

        if (!span->state_is_zero) {
            dtype_from_f32(c->state, d->pools.recurrent + at * dtype_bytes(c->state), values,
                           d->state_elems);
        }
    }
    free(values);
}

static void data_make(struct delta_data *d, const struct delta_case *c, uint64_t *seed)
{
    size_t position[SPANS_MAX], n_spans = 0;

    memset(d, 0, sizeof *d);
    for (; n_spans < SPANS_MAX && c->n_rows[n_spans] > 0; n_spans++) {
        d->rows += c->n_rows[n_spans];
        position[n_spans] = n_spans % 2 ? 0 : 100;
    }
    test_step_make(&d->step, n_spans, c->n_rows, position, 100);
    for (size_t i = 0; i < n_spans; i++) {
        d->step.spans[i].state_is_zero = position[i] == 0;
    }
    d->n_slots = n_spans + 1;
    d->state_elems = c->nv * c->dk * c->dv;
    d->values = c->nv * c->dv;
    d->cols = 2 * c->nk * c->dk + d->values;
    d->qkv = rounded(d->rows * d->cols, 2, c->round, seed);
    d->z = rounded(d->rows * d->values, 3, c->round, seed);
    d->a = rounded(d->rows * c->nv, 4, c->round, seed);
    d->b = rounded(d->rows * c->nv, 3, c->round, seed);
    d->out = test_poisoned((d->rows + 1) * d->values);
    d->neg_exp_a = test_floats(c->nv, 1, seed);
    d->dt_bias = test_floats(c->nv, 1, seed);
    d->norm = test_floats(c->dv, 2, seed);
    for (size_t h = 0; h < c->nv; h++) {
        d->neg_exp_a[h] = -expf(3 * d->neg_exp_a[h] - 3);
    }
    if (c->flags & ONE_KEY) {
        for (size_t i = d->cols; i < d->rows * d->cols; i++) {
            size_t at = i % d->cols, n = c->nk * c->dk;

            d->qkv[i] = at >= n && at < 2 * n ? d->qkv[at] : d->qkv[i];
        }
        d->neg_exp_a[0] = -1e-4f;
    }
    make_pools(d, c, seed);
    d->op = (struct op){.kind = OP_DELTA, .name = "delta"};
    d->op.u.delta = (struct op_delta){
        .qkv = test_operand(d->qkv, d->cols, c->round),
        .z = test_operand(d->z, d->values, c->round),
        .a = test_operand(d->a, c->nv, c->round),
        .b = test_operand(d->b, c->nv, c->round),
        .out = test_operand(d->out, d->values, c->flags & WIDE ? DTYPE_F32 : c->round),
        .neg_exp_a = d->neg_exp_a,
        .dt_bias = d->dt_bias,
        .norm = d->norm,
        .eps = EPS,
        .nk = c->nk,
        .nv = c->nv,
        .dk = c->dk,
        .dv = c->dv,
        .gdn_layer = LAYER,
        .chunk_min = c->chunk_min};
}

static void data_release(struct delta_data *d)
{
    test_step_release(&d->step);
    free(d->qkv);
    free(d->z);
    free(d->a);
    free(d->b);
    free(d->out);
    free(d->neg_exp_a);
    free(d->dt_bias);
    free(d->norm);
    free(d->pools.recurrent);
}

static void data_mirror(struct cuda_pair *p, const struct delta_data *d, const struct delta_case *c)
{
    cuda_pair_mirror(p, d->qkv, d->rows * d->cols * sizeof(float));
    cuda_pair_mirror(p, d->z, d->rows * d->values * sizeof(float));
    cuda_pair_mirror(p, d->a, d->rows * c->nv * sizeof(float));
    cuda_pair_mirror(p, d->b, d->rows * c->nv * sizeof(float));
    cuda_pair_mirror(p, d->out, (d->rows + 1) * d->values * sizeof(float));
}

static void run_case(struct cuda_pair *p, const struct delta_case *c, const char *kernel)
{
    uint64_t seed = 21 + c->n_rows[0];
    /* A real card's matrix instructions cut off what they add up, the emulator rounds. */
    double f32 = p->is_emulated ? 1e-5 : 2e-5;
    struct delta_data d;
    char name[CUDA_PAIR_NAME], group[CUDA_PAIR_NAME];

    data_make(&d, c, &seed);
    snprintf(name, sizeof name, "%zu %zu heads %zux%zu rows %zu %zu %zu", c->nk, c->nv, c->dk,
             c->dv, c->n_rows[0], c->n_rows[1], c->n_rows[2]);
    data_mirror(p, &d, c);
    cuda_pair_run(p, &d.op, &d.step.step, &d.pools);
    if (kernel) {
        assert_string_equal(d.op.kernel, kernel);
    }
    cuda_pair_expect(p, c->group, name, DTYPE_F32, d.out, (d.rows + 1) * d.values,
                     cuda_tolerance(c->flags & WIDE ? DTYPE_F32 : c->round, f32));
    snprintf(group, sizeof group, "%s: state", c->group);
    cuda_pair_expect(p, group, name, c->state, d.pools.recurrent,
                     LAYERS * d.n_slots * d.state_elems, cuda_tolerance(c->state, f32));
    cuda_pair_forget(p);
    data_release(&d);
}

static void test_against_cpu(void **state)
{
    struct cuda_pair p;

    (void)state;
    cuda_pair_open(&p);
    for (size_t i = 0; i < N_CASES; i++) {
        if (!(CASES[i].flags & LARGE) || !p.is_emulated) {
            run_case(&p, &CASES[i],
                     p.sm != 90           ? NULL
                     : CASES[i].dk == 128 ? "delta chunked cuda"
                                          : "delta any cuda");
        }
    }
    cuda_pair_close(&p);
}

/* A card without bfloat16 matrix units takes long spans row by row, one with little shared memory has one
 * place for a chunk's keys, or none for float16 in chunks. */
static void test_other_cards(void **state)
{
    static const struct {
        int sm;
        const char *kernel;
        struct delta_case c;
    } cards[] = {
        {75,
         "delta recurrent cuda",
         {"sm_75", 1, 2, 128, 128, {20, 1}, 16, DTYPE_F16, DTYPE_F32, 0}},
        {86,
         "delta chunked cuda",
         {"sm_86", 1, 1, 128, 128, {130, 1}, 16, DTYPE_BF16, DTYPE_F32, 0}},
        {86,
         "delta recurrent cuda",
         {"sm_86 f16", 1, 1, 128, 128, {20, 1}, 16, DTYPE_F16, DTYPE_F32, 0}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cards / sizeof cards[0]; i++) {
        struct cuda_pair p;

        cuda_pair_open_sm(&p, cards[i].sm);
        run_case(&p, &cards[i].c, cards[i].kernel);
        cuda_pair_close(&p);
    }
}

/* A span cut at a multiple of 64 gives the same bits as the whole. */
static void test_cuts(void **state)
{
    static const struct delta_case c = {"cut", 1, 1, 128, 128, {100}, 16, DTYPE_BF16, DTYPE_F32, 0};
    uint64_t seed = 6;
    struct delta_data d;
    struct cuda_pair p;
    float *whole, *part;
    size_t n, n_state;

    (void)state;
    cuda_pair_open(&p);
    data_make(&d, &c, &seed);
    n = d.rows * d.values;
    n_state = LAYERS * d.n_slots * d.state_elems;
    whole = test_floats(n + n_state, 0, &seed);
    part = test_floats(n + n_state, 0, &seed);
    for (int cut = 0; cut < 2; cut++) {
        struct span *span = d.step.spans;
        float *got = cut ? part : whole;

        data_mirror(&p, &d, &c);
        free(d.pools.recurrent);
        seed = 7;
        make_pools(&d, &c, &seed);
        cuda_pair_pools(&p, &d.pools);
        span->row = 0;
        span->n_rows = d.step.step.n_rows = d.step.step.n_out_rows = cut ? 64 : 100;
        cuda_pair_run(&p, &d.op, &d.step.step, &d.pools);
        if (cut) {
            struct op rest = d.op;

            rest.u.delta.qkv.data = d.qkv + 64 * d.cols;
            rest.u.delta.z.data = d.z + 64 * d.values;
            rest.u.delta.a.data = d.a + 64;
            rest.u.delta.b.data = d.b + 64;
            rest.u.delta.out.data = d.out + 64 * d.values;
            span->n_rows = d.step.step.n_rows = d.step.step.n_out_rows = 36;
            span->position += 64;
            cuda_pair_run(&p, &rest, &d.step.step, &d.pools);
        }
        cuda_pair_fetch(&p, d.out, got, n * sizeof *got);
        cuda_pair_fetch(&p, d.pools.recurrent, got + n, n_state * sizeof *got);
    }
    assert_memory_equal(part, whole, (n + n_state) * sizeof *part);
    cuda_pair_close(&p);
    data_release(&d);
    free(whole);
    free(part);
}

static bool is_number(float x)
{
    return isfinite(x) != 0;
}

/* Infinite and NaN inputs give outputs that are not finite, and nothing worse. */
static void test_broken_inputs(void **state)
{
    static const struct delta_case forms[] = {
        {"", 1, 1, 128, 128, {3}, 16, DTYPE_BF16, DTYPE_F32, 0},
        {"", 1, 1, 128, 128, {20}, 16, DTYPE_BF16, DTYPE_F32, 0},
        {"", 1, 1, 20, 20, {20}, 16, DTYPE_F32, DTYPE_F32, 0},
    };
    static const float bad[] = {INFINITY, NAN};
    struct cuda_pair p;

    (void)state;
    cuda_pair_open(&p);
    p.runs_once = true;
    for (size_t i = 0; i < 6; i++) {
        const struct delta_case *c = &forms[i / 2];
        uint64_t seed = 8;
        struct delta_data d;
        float *out;

        data_make(&d, c, &seed);
        d.qkv[d.cols + 5] = bad[i % 2];
        d.qkv[2 * d.cols - 1] = bad[i % 2];
        data_mirror(&p, &d, c);
        cuda_pair_run(&p, &d.op, &d.step.step, &d.pools);
        out = test_poisoned(d.rows * d.values);
        cuda_pair_fetch(&p, d.out, out, d.rows * d.values * sizeof *out);
        assert_true(is_number(out[0]) || i / 2 == 1); /* the row before; chunks mix theirs */
        assert_false(is_number(out[2 * d.values - 1]));
        assert_false(is_number(out[(d.rows - 1) * d.values]));
        cuda_pair_forget(&p);
        free(out);
        data_release(&d);
    }
    cuda_pair_close(&p);
}

static void test_refusals(void **state)
{
    static const struct delta_case c = {"", 2, 2, 8, 8, {1}, 16, DTYPE_F32, DTYPE_F32, 0};
    uint64_t seed = 9;
    struct delta_data d;
    struct cuda_pair p;

    (void)state;
    cuda_pair_open(&p);
    data_make(&d, &c, &seed);
    data_mirror(&p, &d, &c);
    d.op.u.delta.nv = 3;
    cuda_pair_refused(&p, &d.op, "2 key heads of 8 and 3 value heads of 8");
    d.op.u.delta.nv = 2;
    d.op.u.delta.z.cols = 15;
    cuda_pair_refused(&p, &d.op, "z");
    d.op.u.delta.z.cols = 16;
    d.op.u.delta.dk = 4096;
    cuda_pair_refused(&p, &d.op, "too large");
    d.op.u.delta.dk = 8;
    d.op.u.delta.out.data = d.op.u.delta.z.data;
    cuda_pair_refused(&p, &d.op, "overlaps");
    cuda_pair_close(&p);
    data_release(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_cpu), cmocka_unit_test(test_other_cards),
        cmocka_unit_test(test_cuts),        cmocka_unit_test(test_broken_inputs),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
