/* cuda_rows_test.c - the ops that treat each row by itself, and the convolution, on the CPU and on the card.
 *
 * Place: backend/cuda. What a case reads comes at awkward widths and in steps of several sequences; what
 *        it writes is NaN before. */
#include "backend/cuda/cuda_testing.h"

/* The last pass what a thread of norm keeps, and what one block of the others takes. */
static const size_t WIDTHS[] = {1, 7, 63, 64, 65, 127, 512, 2048, 4099, 4600};
static const size_t ROWS[] = {1, 3, 8, 65};
static const enum dtype ROUNDS[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
enum {
    N_WIDTHS = sizeof WIDTHS / sizeof WIDTHS[0],
    N_ROWS = sizeof ROWS / sizeof ROWS[0],
    N_ROUNDS = sizeof ROUNDS / sizeof ROUNDS[0],
    LAYER = 7
};
#define F32_TOLERANCE 3e-6

/* A case: n_rows rows of n columns, the output rounded to round. */
struct rows_case {
    struct cuda_pair *p;
    size_t n_rows, n;
    enum dtype round;
    uint64_t seed;
    char name[CUDA_PAIR_NAME];
    float *made[8];
    size_t n_made;
    struct test_step step; /* one sequence per row, or one of all */
};

typedef void rows_fn(struct rows_case *c);

static void case_name(struct rows_case *c)
{
    snprintf(c->name, sizeof c->name, "%zu rows of %zu, %s", c->n_rows, c->n, dtype_name(c->round));
}

/* A buffer of the case with a twin: random, or NaN for size 0. */
static float *buffer(struct rows_case *c, size_t n, float size)
{
    float *x = size > 0 ? test_floats(n, size, &c->seed) : test_poisoned(n);

    assert_true(c->n_made < sizeof c->made / sizeof c->made[0]);
    c->made[c->n_made++] = x;
    cuda_pair_mirror(c->p, x, n * sizeof *x);
    return x;
}

static void for_all_cases(rows_fn *fn)
{
    struct cuda_pair p;

    cuda_pair_open(&p);
    for (size_t i = 0; i < N_WIDTHS * N_ROWS * N_ROUNDS; i++) {
        size_t n_rows = ROWS[i / N_ROUNDS % N_ROWS], n = WIDTHS[i / N_ROUNDS / N_ROWS];
        size_t ones[65], zeros[65] = {0};
        struct rows_case c = {
            .p = &p, .n_rows = n_rows, .n = n, .round = ROUNDS[i % N_ROUNDS], .seed = 31 + i};

        if (p.is_emulated && n_rows * n > 100000) {
            continue;
        }
        for (size_t j = 0; j < 65; j++) {
            ones[j] = 1;
        }
        case_name(&c);
        if (n_rows == 65) {
            test_step_make(&c.step, 1, &n_rows, zeros, 9);
        } else {
            test_step_make(&c.step, n_rows, ones, zeros, 9);
        }
        fn(&c);
        cuda_pair_forget(&p);
        for (size_t j = 0; j < c.n_made; j++) {
            free(c.made[j]);
        }
        test_step_release(&c.step);
    }
    cuda_pair_close(&p);
}

static void case_run(struct rows_case *c, struct op *op)
{
    op->layer = LAYER;
    cuda_pair_run(c->p, op, &c->step.step, NULL);
}

static void case_expect(struct rows_case *c, const char *op, const float *out, size_t n,
                        double tolerance)
{
    char group[CUDA_PAIR_NAME];

    snprintf(group, sizeof group, "%s -> %s", op, dtype_name(c->round));
    cuda_pair_expect(c->p, group, c->name, DTYPE_F32, out, n, tolerance);
}

/* --- embedding --- */

static void embed_case(struct rows_case *c)
{
    float *out = buffer(c, c->n_rows * c->n, 0);

    for (int kind = TEST_F32; kind <= TEST_F16; kind++) {
        struct op op = {.kind = OP_EMBED, .name = "embed"};
        struct test_weight t;

        test_weight_make(&t, (enum test_kind)kind, 9, c->n, &c->seed);
        op.u.embed.table = t.w;
        op.u.embed.out = test_operand(out, c->n, c->round);
        test_poison(out, c->n_rows * c->n * sizeof *out);
        cuda_pair_mirror(c->p, out, c->n_rows * c->n * sizeof *out);
        case_run(c, &op);
        case_expect(c, op.kernel, out, c->n_rows * c->n, 0);
        test_weight_release(&t);
    }
}

static void embedding_takes_rows(void **state)
{
    (void)state;
    for_all_cases(embed_case);
}

/* --- norm --- */

static void norm_case(struct rows_case *c)
{
    float *x = buffer(c, c->n_rows * c->n, 5), *out = buffer(c, c->n_rows * c->n, 0);
    float *weight = buffer(c, c->n, 2);
    struct op op = {.kind = OP_NORM,
                    .name = "norm",
                    .rows = c->n_rows % 2 ? ROWS_ALL : ROWS_OUT,
                    .u.norm = {test_operand(x, c->n, DTYPE_F32), test_operand(out, c->n, c->round),
                               weight, 1e-6f}};

    case_run(c, &op);
    case_expect(c, op.kernel, out, c->n_rows * c->n, cuda_tolerance(c->round, F32_TOLERANCE));
    op.u.norm.out = test_operand(x, c->n, c->round); /* in place */
    case_run(c, &op);
    case_expect(c, op.kernel, x, c->n_rows * c->n, cuda_tolerance(c->round, F32_TOLERANCE));
}

static void norm_divides_by_the_root_mean_square(void **state)
{
    (void)state;
    for_all_cases(norm_case);
}

/* --- swiglu --- */

static void swiglu_case(struct rows_case *c)
{
    float *gate = buffer(c, c->n_rows * c->n, 30), *up = buffer(c, c->n_rows * c->n, 3);
    float *out = buffer(c, c->n_rows * c->n, 0);
    struct op op = {.kind = OP_SWIGLU,
                    .name = "swiglu",
                    .u.swiglu = {test_operand(gate, c->n, DTYPE_F32),
                                 test_operand(up, c->n, DTYPE_F32),
                                 test_operand(out, c->n, c->round)}};

    case_run(c, &op);
    case_expect(c, op.kernel, out, c->n_rows * c->n, cuda_tolerance(c->round, F32_TOLERANCE));
}

static void swiglu_is_silu_times_up(void **state)
{
    (void)state;
    for_all_cases(swiglu_case);
}

/* --- residual sums --- */

static void add_shared_case(struct rows_case *c)
{
    for (int form = 0; form < 3; form++) { /* routed | + shared | + gated shared */
        float *x, *routed, *shared, *gate;
        struct op op = {.kind = OP_ADD_SHARED, .name = "add experts"};

        c->n_made = 0;
        x = buffer(c, c->n_rows * c->n, 9);
        routed = buffer(c, c->n_rows * c->n, 1);
        shared = buffer(c, c->n_rows * c->n, 1);
        gate = buffer(c, c->n_rows, 6);
        op.u.add_shared.x = test_operand(x, c->n, DTYPE_F32);
        op.u.add_shared.routed = test_operand(routed, c->n, c->round);
        if (form >= 1) {
            op.u.add_shared.shared = test_operand(shared, c->n, c->round);
        }
        if (form == 2) {
            op.u.add_shared.gate = test_operand(gate, 1, DTYPE_F32);
        }
        case_run(c, &op);
        cuda_pair_expect(c->p, op.kernel, c->name, DTYPE_F32, x, c->n_rows * c->n, F32_TOLERANCE);
        cuda_pair_forget(c->p);
        free(x);
        free(routed);
        free(shared);
        free(gate);
        c->n_made = 0;
    }
}

static void the_shared_expert_is_weighed_by_its_gate(void **state)
{
    (void)state;
    for_all_cases(add_shared_case);
}

/* --- check --- */

static void check_case(struct rows_case *c)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    float *x = buffer(c, c->n_rows * c->n, 1), *later = buffer(c, c->n_rows * c->n, 1);
    struct op ops[2] = {
        {.kind = OP_CHECK, .name = "check", .layer = 2, .u.check.x = test_operand(x, c->n, 0)},
        {.kind = OP_CHECK, .name = "check", .layer = 5, .u.check.x = test_operand(later, c->n, 0)},
    };

    ops[0].u.check.x.round = ops[1].u.check.x.round = DTYPE_F32;
    ops[0].rows = ops[1].rows = c->n_rows % 2 ? ROWS_ALL : ROWS_OUT;
    for (size_t i = 0; i < c->n_rows; i++) { /* good | bad in both | only in the later */
        size_t at = (size_t)(test_next(&c->seed) >> 33) % c->n;

        if (i % 3 > 0) {
            later[i * c->n + at] = bad[i % 2];
        }
        if (i % 3 == 1) {
            x[i * c->n + at] = bad[1 + i % 2];
        }
    }
    for (size_t i = 0; i < c->n_rows; i++) { /* the op's row i is another row of the step */
        c->step.out_rows[i] = (int32_t)(c->n_rows - 1 - i);
    }
    cuda_pair_mirror(c->p, x, c->n_rows * c->n * sizeof *x);
    cuda_pair_mirror(c->p, later, c->n_rows * c->n * sizeof *later);
    cuda_pair_run_plan(c->p, ops, 2, &c->step.step, NULL); /* compares the layers */
    for (size_t i = 0; i < c->n_rows; i++) {
        size_t row = ops[0].rows == ROWS_ALL ? i : c->n_rows - 1 - i;

        assert_int_equal(c->p->bad_layer[row], i % 3 == 0 ? -1 : i % 3 == 1 ? 2 : 5);
    }
}

static void rows_that_are_not_finite_are_noted(void **state)
{
    (void)state;
    for_all_cases(check_case);
}

/* --- gather --- */

static void gather_case(struct rows_case *c)
{
    float *x = buffer(c, c->n_rows * c->n, 9), *out = buffer(c, c->n_rows * c->n, 0);
    struct op op = {
        .kind = OP_GATHER,
        .name = "last rows",
        .rows = ROWS_OUT,
        .u.gather = {test_operand(x, c->n, DTYPE_F32), test_operand(out, c->n, c->round)}};

    for (size_t i = 0; i < c->n_rows; i++) {
        c->step.out_rows[i] = (int32_t)((i * 37 + 1) % c->n_rows);
    }
    c->step.step.n_out_rows = (c->n_rows + 1) / 2; /* the rest of out stays NaN */
    case_run(c, &op);
    case_expect(c, op.kernel, out, c->n_rows * c->n, 0);
}

static void gather_picks_the_logit_rows(void **state)
{
    (void)state;
    for_all_cases(gather_case);
}

/* --- convolution --- */

struct conv_case {
    size_t taps, channels, n_spans;
    size_t n_rows[8];
    bool is_for_cards; /* too long for the emulator */
};

static const struct conv_case CONV_CASES[] = {
    {4, 64, 1, {1}, false},
    {4, 64, 7, {1, 1, 1, 1, 1, 1, 1}, false},
    {4, 68, 8, {1, 2, 3, 4, 64, 65, 1, 5}, false},
    {4, 516, 3, {63, 127, 1}, false},
    {4, 8192, 2, {1, 1}, false},
    {4, 8192, 8, {1, 190, 2, 2, 1, 3, 1, 240}, false}, /* runs of several rows, cut in many ways */
    {4, 8192, 5, {700, 3, 1, 900, 400}, true},
    {4, 8192, 8, {1, 1, 1, 1, 1, 1, 2, 3}, false},
    {4, 7, 4, {1, 2, 66, 3}, false},
    {1, 33, 3, {1, 65, 2}, false},
    {2, 64, 4, {1, 7, 1, 2}, false},
    {3, 127, 4, {1, 7, 2, 3}, false},
    {5, 64, 4, {3, 4, 5, 64}, false},
    {8, 65, 5, {1, 6, 7, 8, 65}, false},
    {8, 1000, 8, {1, 6, 7, 8, 300, 5, 2, 9}, false},
};

static void state_fill(struct state_pools *s, uint64_t *seed)
{
    size_t n = s->n_gdn_layers * s->n_slots * s->conv_elems;

    for (size_t i = 0; i < n; i++) {
        dtype_store(s->conv_dtype, s->conv, i, 2 * test_float(seed));
    }
}

/* Two steps, the second going on from the state that the first has left. Odd sequences begin; what their
 * slot holds is NaN. */
static void conv_run_case(struct cuda_pair *p, const struct conv_case *c, enum dtype kept,
                          enum dtype round)
{
    size_t positions[8], elems = (c->taps - 1) * c->channels, n_state, n;
    struct state_pools s = {
        .conv_dtype = kept, .n_slots = 9, .n_gdn_layers = 2, .conv_elems = elems};
    struct test_step step;
    uint64_t seed = 77;
    float *in, *out, *weight = test_floats(c->taps * c->channels, 1, &seed);
    char name[CUDA_PAIR_NAME], group[CUDA_PAIR_NAME];

    for (size_t i = 0; i < c->n_spans; i++) {
        positions[i] = i % 2 ? 0 : 100;
    }
    test_step_make(&step, c->n_spans, c->n_rows, positions, 9);
    n = step.step.n_rows * c->channels;
    n_state = 2 * 9 * elems * dtype_bytes(kept);
    s.conv = aligned_new(n_state + 1);
    state_fill(&s, &seed);
    for (size_t i = 1; i < c->n_spans; i += 2) {
        memset(s.conv + (9 + i) * elems * dtype_bytes(kept), 0xff, elems * dtype_bytes(kept));
    }
    in = test_floats(n, 2, &seed);
    out = test_poisoned(n);
    for (size_t i = 0; i < n; i++) {
        in[i] = dtype_round(kept, in[i]);
    }
    cuda_pair_pools(p, &s);
    for (int turn = 0; turn < 2; turn++) {
        struct op op = {.kind = OP_CONV,
                        .name = "conv1d",
                        .u.conv = {test_operand(in, c->channels, kept),
                                   test_operand(out, c->channels, round), weight, c->taps,
                                   c->channels, 1}};

        test_poison(out, n * sizeof *out);
        cuda_pair_mirror(p, in, n * sizeof *in);
        cuda_pair_mirror(p, out, n * sizeof *out);
        cuda_pair_run(p, &op, &step.step, &s);
        snprintf(name, sizeof name, "%zu taps, %zu channels, %zu spans, %zu rows, %s", c->taps,
                 c->channels, c->n_spans, step.step.n_rows, turn ? "going on" : "first");
        snprintf(group, sizeof group, "%s -> %s", op.kernel, dtype_name(round));
        cuda_pair_expect(p, group, name, DTYPE_F32, out, n, cuda_tolerance(round, F32_TOLERANCE));
        if (elems > 0) {
            snprintf(group, sizeof group, "%s state %s", op.kernel, dtype_name(kept));
            cuda_pair_expect(p, group, name, kept, s.conv, 2 * 9 * elems, 0);
        }
        for (size_t i = 0; i < c->n_spans; i++) {
            step.spans[i].state_is_zero = false;
        }
        for (size_t i = 0; i < n; i++) {
            in[i] = dtype_round(kept, 2 * test_float(&seed));
        }
    }
    cuda_pair_forget(p);
    free(in);
    free(out);
    free(weight);
    free(s.conv);
    test_step_release(&step);
}

static void conv_reaches_back_through_its_state(void **state)
{
    struct cuda_pair p;

    (void)state;
    cuda_pair_open(&p);
    for (size_t i = 0; i < sizeof CONV_CASES / sizeof CONV_CASES[0]; i++) {
        const struct conv_case *c = &CONV_CASES[i];
        size_t n_rows = 0;

        for (size_t j = 0; j < c->n_spans; j++) {
            n_rows += c->n_rows[j];
        }
        for (size_t j = 0; j < N_ROUNDS; j++) {
            bool is_long = n_rows * c->channels > 1000000;

            if (p.is_emulated && (c->is_for_cards || (is_long && j > 0))) {
                continue;
            }
            p.runs_once = p.is_emulated && is_long;
            conv_run_case(&p, c, ROUNDS[j], ROUNDS[(i + j) % N_ROUNDS]);
        }
    }
    cuda_pair_close(&p);
}

/* --- what is refused --- */

static void odd_operations_are_refused(void **state)
{
    struct cuda_pair p;
    float x[64] = {0}, out[64] = {0};
    struct op op = {.kind = OP_CHECK, .name = "check", .layer = -1};

    (void)state;
    cuda_pair_open(&p);
    cuda_pair_mirror(&p, x, sizeof x);
    cuda_pair_mirror(&p, out, sizeof out);
    op.u.check.x = test_operand(x, 64, DTYPE_F32);
    cuda_pair_refused(&p, &op, "a layer is needed");
    op = (struct op){.kind = OP_GATHER, .name = "gather"};
    op.u.gather.in = test_operand(x, 64, DTYPE_F32);
    op.u.gather.out = test_operand(out, 64, DTYPE_F32);
    cuda_pair_refused(&p, &op, "logit rows");
    op = (struct op){.kind = OP_NORM, .name = "norm"};
    op.u.norm.in = test_operand(x, 64, DTYPE_F32);
    op.u.norm.out = test_operand(out, 64, DTYPE_F32);
    cuda_pair_refused(&p, &op, "no weight");
    op = (struct op){.kind = OP_CONV, .name = "conv"};
    op.u.conv.in = test_operand(x, 7, DTYPE_F32);
    op.u.conv.out = test_operand(out, 7, DTYPE_F32);
    op.u.conv.weight = x;
    op.u.conv.taps = 9;
    op.u.conv.channels = 7;
    cuda_pair_refused(&p, &op, "9 taps");
    op.u.conv.taps = 4;
    op.rows = ROWS_OUT;
    cuda_pair_refused(&p, &op, "all rows");
    cuda_pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_takes_rows),
        cmocka_unit_test(norm_divides_by_the_root_mean_square),
        cmocka_unit_test(swiglu_is_silu_times_up),
        cmocka_unit_test(the_shared_expert_is_weighed_by_its_gate),
        cmocka_unit_test(rows_that_are_not_finite_are_noted),
        cmocka_unit_test(gather_picks_the_logit_rows),
        cmocka_unit_test(conv_reaches_back_through_its_state),
        cmocka_unit_test(odd_operations_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
