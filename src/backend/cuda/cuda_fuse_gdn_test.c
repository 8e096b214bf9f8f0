/* cuda_fuse_gdn_test.c - the convolution and the delta rule of decode steps as one kernel against the CPU's
 * two ops.
 *
 * Cases: value heads that share key heads and such that do not, all types of activations and states, spans
 *        that start from nothing and that go on, steps that are rounded up, steps that are too large or no
 *        decode steps and take the ops one by one. The pools are compared whole. That the kernel ran is
 *        seen by the convolution's output, which it does not write. */
#include "backend/cuda/cuda_testing.h"

enum { LARGE = 1, APART = 2 }; /* for a real card; the ops do not run as one */
enum { PROJECTED = 20, SPANS_MAX = 80, LAYERS = 2, LAYER = 1, TAPS = 4, STEPS = 3 };

/* As in cuda_delta_test.c: where an output nearly cancels, its norm would magnify its rounding without
 * bound. */
static const float EPS = 1e-3f;

struct gdn_case {
    const char *group;
    size_t nk, nv, dim, n_spans, first_rows;
    enum dtype round, conv_state, state;
    unsigned flags;
};

static const struct gdn_case CASES[] = {
    {"f32", 1, 2, 128, 1, 1, DTYPE_F32, DTYPE_F32, DTYPE_F32, 0},
    {"f32", 2, 2, 128, 3, 1, DTYPE_F32, DTYPE_F32, DTYPE_F32, 0},
    {"f32", 1, 3, 128, 5, 1, DTYPE_F32, DTYPE_F32, DTYPE_F32, 0},
    {"bf16", 2, 4, 128, 2, 1, DTYPE_BF16, DTYPE_BF16, DTYPE_F32, 0},
    {"bf16, state bf16", 1, 2, 128, 3, 1, DTYPE_BF16, DTYPE_F32, DTYPE_BF16, 0},
    {"f16", 1, 2, 128, 3, 1, DTYPE_F16, DTYPE_F16, DTYPE_F32, 0},
    {"apart: other heads", 2, 4, 32, 3, 1, DTYPE_F32, DTYPE_F32, DTYPE_F32, APART},
    {"apart: two rows", 1, 1, 128, 2, 2, DTYPE_F32, DTYPE_F32, DTYPE_F32, APART},
    {"apart: 65 rows", 1, 1, 128, 65, 1, DTYPE_F32, DTYPE_F32, DTYPE_F32, APART},
    {"real bf16", 16, 32, 128, 1, 1, DTYPE_BF16, DTYPE_BF16, DTYPE_F32, LARGE},
    {"real bf16", 16, 32, 128, 21, 1, DTYPE_BF16, DTYPE_BF16, DTYPE_F32, LARGE},
    {"real bf16", 16, 32, 128, 64, 1, DTYPE_BF16, DTYPE_F32, DTYPE_F32, LARGE},
    {"real f32", 16, 32, 128, 33, 1, DTYPE_F32, DTYPE_F32, DTYPE_F32, LARGE},
};
enum { N_CASES = sizeof CASES / sizeof CASES[0] };

struct gdn_data {
    size_t rows, channels, values, n_slots;
    float *in, *mixed, *z, *a, *b, *out;
    float *conv_weight, *neg_exp_a, *dt_bias, *norm;
    struct test_weight projection;
    float *projected;
    struct state_pools pools;
    struct test_step step;
    struct op ops[3]; /* the last is a projection, as in a layer */
};

static void fill(float *x, size_t n, double size, enum dtype t, uint64_t *seed)
{
    float *values = test_floats(n, (float)size, seed);

    for (size_t i = 0; i < n; i++) {
        x[i] = dtype_round(t, values[i]);
    }
    free(values);
}

/* [LAYERS][n_slots][elems]: NaN but for the slots of LAYER whose contents may be read. */
static uint8_t *pool_new(const struct gdn_data *d, size_t elems, enum dtype t, uint64_t *seed)
{
    uint8_t *pool = (uint8_t *)test_poisoned(LAYERS * d->n_slots * elems);

    for (size_t i = 0; i < d->step.step.n_spans; i++) {
        const struct span *span = &d->step.spans[i];
        size_t at = (LAYER * d->n_slots + (size_t)span->slot) * elems;

        if (!span->state_is_zero) {
            float *values = test_floats(elems, 1, seed);

            dtype_from_f32(t, pool + at * dtype_bytes(t), values, elems);
            free(values);
        }
    }
    return pool;
}

static void ops_make(struct gdn_data *d, const struct gdn_case *c)
{
    d->ops[0] = (struct op){
        .kind = OP_CONV,
        .name = "conv1d",
        .u.conv = {.in = test_operand(d->in, d->channels, c->round),
                   .out = test_operand(d->mixed, d->channels, c->round),
                   .weight = d->conv_weight,
                   .taps = TAPS,
                   .channels = d->channels,
                   .gdn_layer = LAYER},
    };
    d->ops[1] = (struct op){
        .kind = OP_DELTA,
        .name = "delta rule",
        .u.delta = {.qkv = test_operand(d->mixed, d->channels, c->round),
                    .z = test_operand(d->z, d->values, c->round),
                    .a = test_operand(d->a, c->nv, DTYPE_F32),
                    .b = test_operand(d->b, c->nv, DTYPE_F32),
                    .out = test_operand(d->out, d->values, c->round),
                    .neg_exp_a = d->neg_exp_a,
                    .dt_bias = d->dt_bias,
                    .norm = d->norm,
                    .eps = EPS,
                    .nk = c->nk,
                    .nv = c->nv,
                    .dk = c->dim,
                    .dv = c->dim,
                    .gdn_layer = LAYER,
                    .chunk_min = 16},
    };
    d->ops[2] = (struct op){.kind = OP_LINEAR, .name = "projection"};
    d->ops[2].u.linear.in = test_operand(d->out, d->values, c->round);
    d->ops[2].u.linear.n_parts = 1;
    d->ops[2].u.linear.part[0].w = d->projection.w;
    d->ops[2].u.linear.part[0].out = test_operand(d->projected, PROJECTED, DTYPE_F32);
}

static void data_make(struct gdn_data *d, const struct gdn_case *c, uint64_t *seed)
{
    size_t n_rows[SPANS_MAX], position[SPANS_MAX];

    memset(d, 0, sizeof *d);
    for (size_t i = 0; i < c->n_spans; i++) {
        n_rows[i] = i == 0 ? c->first_rows : 1;
        position[i] = i % 3 == 1 ? 0 : 100;
        d->rows += n_rows[i];
    }
    test_step_make(&d->step, c->n_spans, n_rows, position, 100);
    d->values = c->nv * c->dim;
    d->channels = 2 * c->nk * c->dim + d->values;
    d->n_slots = c->n_spans + 1;
    d->in = test_poisoned(d->rows * d->channels);
    d->mixed = test_poisoned(d->rows * d->channels);
    d->z = test_poisoned(d->rows * d->values);
    d->a = test_poisoned(d->rows * c->nv);
    d->b = test_poisoned(d->rows * c->nv);
    d->out = test_poisoned((d->rows + 1) * d->values);
    d->conv_weight = test_floats(TAPS * d->channels, 2, seed);
    d->neg_exp_a = test_floats(c->nv, 1, seed);
    d->dt_bias = test_floats(c->nv, 1, seed);
    d->norm = test_floats(c->dim, 2, seed);
    for (size_t h = 0; h < c->nv; h++) {
        d->neg_exp_a[h] = -expf(3 * d->neg_exp_a[h] - 3);
    }
    d->pools = (struct state_pools){.conv_dtype = c->conv_state,
                                    .recurrent_dtype = c->state,
                                    .n_slots = d->n_slots,
                                    .n_gdn_layers = LAYERS,
                                    .conv_elems = (TAPS - 1) * d->channels,
                                    .recurrent_elems = d->values * c->dim};
    d->pools.conv = pool_new(d, d->pools.conv_elems, c->conv_state, seed);
    d->pools.recurrent = pool_new(d, d->pools.recurrent_elems, c->state, seed);
    test_weight_make(&d->projection, TEST_BF16, PROJECTED, d->values, seed);
    d->projected = test_poisoned(d->rows * PROJECTED);
    ops_make(d, c);
}

static void data_release(struct gdn_data *d)
{
    test_step_release(&d->step);
    free(d->in);
    free(d->mixed);
    free(d->z);
    free(d->a);
    free(d->b);
    free(d->out);
    free(d->conv_weight);
    free(d->neg_exp_a);
    free(d->dt_bias);
    free(d->norm);
    test_weight_release(&d->projection);
    free(d->projected);
    free(d->pools.conv);
    free(d->pools.recurrent);
}

/* New inputs, and outputs of which nothing is known. */
static void inputs_make(struct cuda_pair *p, struct gdn_data *d, const struct gdn_case *c,
                        uint64_t *seed)
{
    size_t n_mixed = d->rows * d->channels;

    fill(d->in, n_mixed, 2, c->round, seed);
    fill(d->z, d->rows * d->values, 3, c->round, seed);
    fill(d->a, d->rows * c->nv, 4, DTYPE_F32, seed);
    fill(d->b, d->rows * c->nv, 3, DTYPE_F32, seed);
    memset(d->mixed, 0xff, n_mixed * sizeof *d->mixed);
    cuda_pair_mirror(p, d->in, n_mixed * sizeof *d->in);
    cuda_pair_mirror(p, d->mixed, n_mixed * sizeof *d->mixed);
    cuda_pair_mirror(p, d->z, d->rows * d->values * sizeof *d->z);
    cuda_pair_mirror(p, d->a, d->rows * c->nv * sizeof *d->a);
    cuda_pair_mirror(p, d->b, d->rows * c->nv * sizeof *d->b);
    cuda_pair_mirror(p, d->projected, d->rows * PROJECTED * sizeof *d->projected);
    cuda_pair_mirror(p, d->out, (d->rows + 1) * d->values * sizeof *d->out);
}

static bool is_fused(struct cuda_pair *p, const struct gdn_data *d)
{
    float first;

    cuda_pair_fetch(p, d->mixed, &first, sizeof first);
    return isnan(first);
}

/* Some steps one after the other, each side going on from its own states. */
static void run_case(struct cuda_pair *p, const struct gdn_case *c)
{
    double f32 = p->is_emulated ? 1e-5 : 2e-5;
    /* What passes between the ops is rounded; a value that goes the other way shows in all that follows. */
    double allowed = c->round == DTYPE_F32 ? f32 : 2 * cuda_tolerance(c->round, f32);
    uint64_t seed = 31 + c->nv;
    struct gdn_data d;
    char name[CUDA_PAIR_NAME], group[CUDA_PAIR_NAME];

    data_make(&d, c, &seed);
    p->is_fused = !(c->flags & APART);
    for (int i = 0; i < (c->flags & APART ? 1 : STEPS); i++) {
        snprintf(name, sizeof name, "%zu %zu heads of %zu, %zu rows, step %d", c->nk, c->nv, c->dim,
                 d.rows, i);
        inputs_make(p, &d, c, &seed);
        cuda_pair_run_plan(p, d.ops, 3, &d.step.step, &d.pools);
        assert_int_equal(is_fused(p, &d), p->is_fused);
        cuda_pair_expect(p, c->group, name, DTYPE_F32, d.out, (d.rows + 1) * d.values, allowed);
        snprintf(group, sizeof group, "%s: conv state", c->group);
        cuda_pair_expect(p, group, name, c->conv_state, d.pools.conv,
                         LAYERS * d.n_slots * d.pools.conv_elems, 0);
        snprintf(group, sizeof group, "%s: state", c->group);
        cuda_pair_expect(p, group, name, c->state, d.pools.recurrent,
                         LAYERS * d.n_slots * d.pools.recurrent_elems,
                         cuda_tolerance(c->state, allowed));
        for (size_t s = 0; s < d.step.step.n_spans; s++) {
            d.step.spans[s].state_is_zero = false;
        }
    }
    p->is_fused = false;
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
            run_case(&p, &CASES[i]);
        }
    }
    cuda_pair_close(&p);
}

static void test_old_card(void **state)
{
    static const struct gdn_case c = {"sm_75", 1, 2, 128, 3, 1, DTYPE_F16, DTYPE_F16, DTYPE_F32, 0};
    struct cuda_pair p;

    (void)state;
    cuda_pair_open_sm(&p, 75);
    run_case(&p, &c);
    cuda_pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_cpu),
        cmocka_unit_test(test_old_card),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
