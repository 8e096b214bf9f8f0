/* cuda_experts_test.c - the routed experts on the card against the CPU: every kind of weight, the three ways
 * that cuda_experts.c has, sizes that fill no tile, bad choices, refusals. */
#include "backend/cuda/cuda_testing.h"

/* What the three matrices of an expert are; group 0: one per row. */
struct kind {
    const char *name;
    enum weight_kind kind;
    enum dtype dtype;
    size_t group;
    bool has_zeros, has_perm;
};

static const struct kind INT4[] = {
    {"int4 f16", WEIGHT_INT4, DTYPE_F16, 128, false, false},
    {"int4 bf16 zeros", WEIGHT_INT4, DTYPE_BF16, 128, true, false},
    {"int4 f32 row", WEIGHT_INT4, DTYPE_F32, 0, false, false},
    {"int4 f16 perm", WEIGHT_INT4, DTYPE_F16, 128, false, true},
    {"int4 bf16 zeros perm", WEIGHT_INT4, DTYPE_BF16, 128, true, true},
};
static const struct kind OTHER[] = {
    {"int4 g32", WEIGHT_INT4, DTYPE_F16, 32, true, false},
    {"int4 g64 perm", WEIGHT_INT4, DTYPE_BF16, 64, false, true},
    {"int8", WEIGHT_INT8, DTYPE_F16, 64, false, false},
    {"int8 zeros perm", WEIGHT_INT8, DTYPE_F32, 32, true, true},
    {"dense f32", WEIGHT_DENSE, DTYPE_F32, 0, false, false},
    {"dense f16", WEIGHT_DENSE, DTYPE_F16, 0, false, false},
    {"dense bf16", WEIGHT_DENSE, DTYPE_BF16, 0, false, false},
};
enum { N_INT4 = sizeof INT4 / sizeof INT4[0], N_OTHER = sizeof OTHER / sizeof OTHER[0] };

/* gate, up and their product are rounded, and where the card's sum is the least bit off each may go the other
 * way: a whole step of its type, up to 2^-10 of the value in float16. An output then moves by that times
 * one weight and the expert's share, whatever it adds up to itself: among some thousand products with
 * a few such steps it is the row's size that this is small beside, not that of an output that cancels. So
 * errors are taken relative to rows (cuda_pair_expect_rows), two steps are allowed. */
static double tolerance(enum dtype round)
{
    return round == DTYPE_F32 ? 2e-5 : 2 * cuda_tolerance(round, 0);
}

static const char *type_name(enum dtype t)
{
    return t == DTYPE_F32 ? "f32" : t == DTYPE_F16 ? "f16" : "bf16";
}

/* --- weights --- */

static void *block_new(struct test_weight *t, size_t i, size_t n_bytes)
{
    t->blocks[i] = aligned_new(n_bytes + 1);
    assert_non_null(t->blocks[i]);
    return t->blocks[i];
}

static void make_dense(struct test_weight *t, uint64_t *seed)
{
    size_t n = t->w.n_out * t->w.n_in;
    void *data = block_new(t, 0, n * dtype_bytes(t->w.dtype));

    for (size_t i = 0; i < n; i++) {
        dtype_store(t->w.dtype, data, i, 4 * test_float(seed) / sqrtf((float)t->w.n_in));
    }
    t->w.data = data;
}

static void make_quantised(struct test_weight *t, const struct kind *k, uint64_t *seed)
{
    bool is_int8 = k->kind == WEIGHT_INT8;
    float size = (is_int8 ? 2.5f / 128 : 2.5f / 8) / sqrtf((float)t->w.n_in);
    size_t n_in = t->w.n_in, n_bytes = t->w.n_out * weight_row_bytes(&t->w), n;
    uint8_t *data = block_new(t, 0, n_bytes), *zeros;
    void *scales;
    int32_t *perm;

    t->w.group = k->group && n_in % k->group == 0 ? k->group : n_in;
    n = t->w.n_out * weight_n_groups(&t->w);
    scales = block_new(t, 1, n * dtype_bytes(k->dtype));
    for (size_t i = 0; i < n_bytes; i++) {
        data[i] = (uint8_t)(test_next(seed) >> 40);
    }
    for (size_t i = 0; i < n; i++) {
        dtype_store(k->dtype, scales, i, size * (1.5f + test_float(seed)));
    }
    t->w.data = data;
    t->w.scales = scales;
    if (k->has_zeros) {
        zeros = block_new(t, 2, n);
        for (size_t i = 0; i < n; i++) {
            zeros[i] = (uint8_t)(i % 31 == 0 ? (is_int8 ? 255 : 16)
                                 : is_int8   ? 96 + (test_next(seed) >> 40) % 64
                                             : 5 + (test_next(seed) >> 40) % 7);
        }
        t->w.zeros = zeros;
    }
    if (k->has_perm) {
        perm = block_new(t, 3, n_in * sizeof *perm);
        for (size_t i = 0; i < n_in; i++) {
            size_t j = (size_t)(test_next(seed) >> 33) % (i + 1);

            perm[i] = perm[j];
            perm[j] = (int32_t)i;
        }
        t->w.perm = perm;
    }
}

static void weight_make(struct test_weight *t, const struct kind *k, size_t n_out, size_t n_in,
                        uint64_t *seed)
{
    memset(t, 0, sizeof *t);
    t->w = (struct weight){.kind = k->kind, .dtype = k->dtype, .n_out = n_out, .n_in = n_in};
    if (k->kind == WEIGHT_DENSE) {
        make_dense(t, seed);
    } else {
        make_quantised(t, k, seed);
    }
}

/* --- a layer and a step --- */

struct sizes {
    size_t n_experts, top_k, hidden, width, n_out;
};

struct layer {
    struct sizes is;
    struct test_weight *parts; /* [n_experts][3] */
    struct expert_weights *experts;
};

/* The matrices take the kinds in turn: with one kind all are alike. */
static void layer_make(struct layer *l, struct sizes is, const struct kind *kinds, size_t n_kinds,
                       uint64_t *seed)
{
    l->is = is;
    l->parts = calloc(3 * is.n_experts, sizeof *l->parts);
    l->experts = calloc(is.n_experts, sizeof *l->experts);
    assert_non_null(l->parts);
    assert_non_null(l->experts);
    for (size_t e = 0; e < is.n_experts; e++) {
        struct test_weight *t = l->parts + 3 * e;

        for (size_t m = 0; m < 3; m++) {
            weight_make(&t[m], &kinds[(3 * e + m) % n_kinds], m < 2 ? is.width : is.n_out,
                        m < 2 ? is.hidden : is.width, seed);
        }
        l->experts[e] = (struct expert_weights){t[0].w, t[1].w, t[2].w};
    }
}

static void layer_release(struct layer *l)
{
    for (size_t i = 0; i < 3 * l->is.n_experts; i++) {
        test_weight_release(&l->parts[i]);
    }
    free(l->parts);
    free(l->experts);
}

/* Rows in spans of these lengths. crowd: how many experts the rows choose from, from the last down; few make
 * full tiles. */
struct job {
    const char *name;
    size_t n_spans;
    size_t n_rows[8];
    size_t crowd;
};

struct run {
    struct op op;
    struct test_step t;
    float *x, *prob, *out;
    int32_t *idx;
    size_t n_rows, n_out;
};

static void run_make(struct run *r, struct cuda_pair *p, const struct layer *l, const struct job *j,
                     enum dtype round, uint64_t *seed)
{
    static const size_t position[8] = {0};
    struct sizes is = l->is;
    size_t crowd = j->crowd && j->crowd < is.n_experts ? j->crowd : is.n_experts, n;

    crowd = crowd < is.top_k ? is.top_k : crowd;
    test_step_make(&r->t, j->n_spans, j->n_rows, position, 10);
    r->n_rows = n = r->t.step.n_rows;
    r->n_out = (n + 1) * is.n_out; /* a row more, which must stay as it is */
    r->x = test_floats(n * is.hidden, 1, seed);
    r->prob = test_floats(n * is.top_k, 1, seed);
    r->out = test_poisoned(r->n_out);
    r->idx = (int32_t *)(void *)test_poisoned(n * is.top_k);
    for (size_t i = 0; i < n * is.hidden; i++) {
        r->x[i] = dtype_round(round, r->x[i]);
    }
    for (size_t i = 0; i < n; i++) {
        size_t first = (size_t)(test_next(seed) >> 33);

        for (size_t c = 0; c < is.top_k; c++) {
            r->idx[i * is.top_k + c] = (int32_t)(is.n_experts - 1 - (first + c) % crowd);
        }
    }
    cuda_pair_mirror(p, r->x, n * is.hidden * sizeof *r->x);
    cuda_pair_mirror(p, r->prob, n * is.top_k * sizeof *r->prob);
    cuda_pair_mirror(p, r->idx, n * is.top_k * sizeof *r->idx);
    cuda_pair_mirror(p, r->out, r->n_out * sizeof *r->out);
    r->op = (struct op){.kind = OP_EXPERTS, .name = "experts"};
    r->op.u.experts = (struct op_experts){
        .in = test_operand(r->x, is.hidden, round),
        .idx = {.data = r->idx, .dtype = DTYPE_I32, .cols = is.top_k},
        .prob = test_operand(r->prob, is.top_k, DTYPE_F32),
        .out = test_operand(r->out, is.n_out, DTYPE_F32),
        .experts = l->experts,
        .n_experts = is.n_experts,
        .top_k = is.top_k,
        .width = is.width,
    };
}

static void run_release(struct run *r, struct cuda_pair *p)
{
    cuda_pair_forget(p);
    test_step_release(&r->t);
    free(r->x);
    free(r->prob);
    free(r->out);
    free(r->idx);
}

static void compare(struct cuda_pair *p, const struct layer *l, const struct job *j,
                    enum dtype round, const char *kind, const char *kernel, uint64_t *seed)
{
    char group[CUDA_PAIR_NAME], name[CUDA_PAIR_NAME];
    struct run r;

    run_make(&r, p, l, j, round, seed);
    cuda_pair_run(p, &r.op, &r.t.step, NULL);
    assert_string_equal(r.op.kernel, kernel);
    snprintf(group, sizeof group, "%s x %s", kind, type_name(round));
    snprintf(name, sizeof name, "%s, %zu of %zu, %zu x %zu", j->name, l->is.top_k, l->is.n_experts,
             l->is.hidden, l->is.width);
    cuda_pair_expect_rows(p, group, name, DTYPE_F32, r.out, r.n_out, l->is.n_out, tolerance(round));
    run_release(&r, p);
}

/* --- tests --- */

static const enum dtype HALVES[] = {DTYPE_BF16, DTYPE_F16};

static const char *int4_kernel(const struct kind *k)
{
    return k->has_perm ? "experts int4 act-order cuda" : "experts int4 cuda";
}

/* Decode and tiles, all in their smallest sizes. */
static void int4_as_the_cpu_has_it(void **state)
{
    static const struct job jobs[] = {
        {"one row", 1, {1}, 0},
        {"3 sequences", 3, {1, 1, 1}, 4},
        {"8 sequences", 8, {1, 1, 1, 1, 1, 1, 1, 1}, 3},
        {"9 rows", 2, {1, 8}, 0},
        {"21 rows", 3, {1, 19, 1}, 3},
    };
    static const struct sizes is = {5, 3, 256, 128, 160};
    uint64_t seed = 11;
    struct cuda_pair p;

    (void)state;
    cuda_pair_open(&p);
    for (size_t c = 0; c < N_INT4 * 2; c++) {
        const struct kind *k = &INT4[c / 2];
        struct layer l;

        layer_make(&l, is, k, 1, &seed);
        for (size_t j = 0; j < sizeof jobs / sizeof jobs[0]; j++) {
            compare(&p, &l, &jobs[j], HALVES[c % 2], k->name, int4_kernel(k), &seed);
        }
        layer_release(&l);
    }
    cuda_pair_close(&p);
}

/* More inputs than a decode warp asks for at once, tiles of all sizes. */
static void int4_in_long_rows(void **state)
{
    static const struct job jobs[] = {
        {"one row", 1, {1}, 0},
        {"2 sequences", 2, {1, 1}, 2},
        {"65 rows", 1, {65}, 2},
    };
    static const struct job tiles[] = {
        {"23 rows", 1, {23}, 2},
        {"50 rows", 2, {49, 1}, 3},
        {"71 rows", 2, {1, 70}, 3},
        {"130 rows", 1, {130}, 0},
    };
    static const struct sizes is = {3, 2, 640, 768, 64}, wide = {2, 1, 2304, 128, 96};
    uint64_t seed = 12;
    struct cuda_pair p;

    (void)state;
    cuda_pair_open(&p);
    for (size_t k = 0; k < N_INT4; k += 3) { /* plain, act-order */
        struct layer l;

        layer_make(&l, is, &INT4[k], 1, &seed);
        for (size_t j = 0; j < 3; j++) {
            if (!p.is_emulated || j < 2 || k == 0) {
                compare(&p, &l, &jobs[j], DTYPE_BF16, INT4[k].name, int4_kernel(&INT4[k]), &seed);
            }
        }
        layer_release(&l);
        layer_make(&l, wide, &INT4[k], 1, &seed);
        compare(&p, &l, &jobs[0], DTYPE_F16, INT4[k].name, int4_kernel(&INT4[k]), &seed);
        layer_release(&l);
    }
    for (size_t k = 0; k < N_INT4; k += 3) {
        static const struct sizes narrow = {3, 2, 128, 128, 96};
        struct layer l;

        layer_make(&l, narrow, &INT4[k], 1, &seed);
        for (size_t j = 0; j < sizeof tiles / sizeof tiles[0]; j++) {
            compare(&p, &l, &tiles[j], DTYPE_BF16, INT4[k].name, int4_kernel(&INT4[k]), &seed);
        }
        layer_release(&l);
    }
    cuda_pair_close(&p);
}

static void plain_as_the_cpu_has_it(void **state)
{
    static const struct job jobs[] = {
        {"one row", 1, {1}, 0},
        {"7 rows", 2, {1, 6}, 0},
        {"19 rows", 3, {9, 1, 9}, 2},
    };
    static const struct sizes quantised = {4, 2, 192, 96, 65}, dense = {3, 2, 63, 33, 70},
                              dense_wide = {3, 2, 68, 36, 70};
    static const enum dtype rounds[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    uint64_t seed = 13;
    struct cuda_pair p;

    (void)state;
    cuda_pair_open(&p);
    for (size_t c = 0; c < (N_INT4 + N_OTHER) * 3; c++) {
        const struct kind *k = c / 3 < N_INT4 ? &INT4[c / 3] : &OTHER[c / 3 - N_INT4];
        struct layer l;

        layer_make(&l,
                   k->kind != WEIGHT_DENSE ? quantised
                   : c % 2                 ? dense_wide
                                           : dense,
                   k, 1, &seed);
        for (size_t j = 0; j < 3; j++) {
            compare(&p, &l, &jobs[j], rounds[c % 3], k->name, "experts plain cuda", &seed);
        }
        layer_release(&l);
    }
    cuda_pair_close(&p);
}

/* Experts of different kinds; rows longer than a stage, steps longer than a segment. */
static void plain_when_kinds_are_mixed(void **state)
{
    static const struct job job = {"11 rows", 2, {1, 10}, 0};
    static const struct job segments = {"2051 rows", 1, {2051}, 0};
    static const struct sizes is = {5, 3, 64, 32, 64}, wide = {1, 1, 1088, 32, 8};
    static const struct sizes small = {2, 1, 32, 32, 8};
    struct kind mixed[4] = {INT4[0], OTHER[2], OTHER[4], OTHER[1]};
    uint64_t seed = 14;
    struct cuda_pair p;
    struct layer l;

    (void)state;
    cuda_pair_open(&p);
    layer_make(&l, is, mixed, 4, &seed);
    compare(&p, &l, &job, DTYPE_F32, "mixed", "experts plain cuda", &seed);
    layer_release(&l);
    layer_make(&l, wide, OTHER, 1, &seed);
    compare(&p, &l, &job, DTYPE_F32, OTHER[0].name, "experts plain cuda", &seed);
    layer_release(&l);
    layer_make(&l, small, OTHER, 1, &seed);
    compare(&p, &l, &segments, DTYPE_F32, OTHER[0].name, "experts plain cuda", &seed);
    layer_release(&l);
    cuda_pair_close(&p);
}

static void gpu_only(struct cuda_pair *p, const struct run *r)
{
    const struct backend_ops *ops = p->gpu->ops;
    struct op op = cuda_pair_op(p, &r->op);
    struct step step = r->t.step;
    struct state_pools none = {0};
    struct error err = {0};

    step.bad_layer = NULL;
    if (ops->check(p->gpu, &op, &err) || ops->prepare(p->gpu, &op, 1, r->n_rows, 4096, &err) ||
        ops->begin(p->gpu, &step, &err) || ops->run(p->gpu, &op, &step, &none, &err) ||
        ops->end(p->gpu, &step, &err)) {
        fail_msg("%s", err.text);
    }
}

static void choices_mirror(struct cuda_pair *p, const struct run *r, size_t top_k)
{
    cuda_pair_mirror(p, r->idx, r->n_rows * top_k * sizeof *r->idx);
    cuda_pair_mirror(p, r->prob, r->n_rows * top_k * sizeof *r->prob);
}

/* The router gives no such choices; what it gives for rows that are not finite must at least be harmless. A
 * choice that is no expert counts as none; one that a row makes twice counts twice. */
static void bad_choices_do_nothing(void **state)
{
    static const struct job jobs[] = {{"one row", 1, {1}, 0},
                                      {"8 rows", 8, {1, 1, 1, 1, 1, 1, 1, 1}, 0},
                                      {"20 rows", 1, {20}, 0}};
    static const int32_t bad[] = {-1, 4, INT32_MAX, INT32_MIN};
    static const struct sizes is = {4, 4, 128, 128, 32};
    uint64_t seed = 15;
    struct cuda_pair p;

    (void)state;
    cuda_pair_open(&p);
    for (size_t c = 0; c < 9; c++) {
        const struct kind *k = &INT4[c / 3 == 1 ? 3 : 0];
        enum dtype round = c / 3 == 2 ? DTYPE_F32 : DTYPE_BF16;
        struct layer l;
        struct run r;

        layer_make(&l, is, k, 1, &seed);
        run_make(&r, &p, &l, &jobs[c % 3], round, &seed);
        for (size_t i = 0; i < r.n_rows; i++) {
            r.prob[i * is.top_k + i % 3] = 0;
            r.prob[i * is.top_k + 3] *= (float)(i % 2);
        }
        choices_mirror(&p, &r, is.top_k);
        cuda_pair_run(&p, &r.op, &r.t.step, NULL);
        for (size_t i = 0; i < r.n_rows; i++) {
            size_t first = i * is.top_k, other = first + (i + 1) % 3;

            r.idx[first + i % 3] = bad[i % 4];
            r.prob[first + i % 3] = NAN; /* belongs to no expert, so to nobody */
            if (i % 2 == 0) {
                r.idx[first + 3] = r.idx[other];
                r.prob[first + 3] = r.prob[other] /= 2;
            }
        }
        choices_mirror(&p, &r, is.top_k);
        gpu_only(&p, &r);
        cuda_pair_expect(&p, "bad choices", jobs[c % 3].name, DTYPE_F32, r.out, r.n_out,
                         tolerance(round));
        run_release(&r, &p);
        layer_release(&l);
    }
    cuda_pair_close(&p);
}

/* Older cards: what has no instructions there is computed in float32. */
static void older_cards(void **state)
{
    static const struct job jobs[] = {
        {"one row", 1, {1}, 0}, {"6 sequences", 6, {1, 1, 1, 1, 1, 1}, 2}, {"12 rows", 1, {12}, 2}};
    static const struct sizes is = {3, 2, 128, 128, 32};
    uint64_t seed = 16;
    struct cuda_pair p;
    struct layer l;

    (void)state;
    cuda_pair_open_sm(&p, 75);
    layer_make(&l, is, &INT4[0], 1, &seed);
    for (size_t j = 0; j < 3; j++) {
        compare(&p, &l, &jobs[j], DTYPE_BF16, "7.5", "experts plain cuda", &seed);
        compare(&p, &l, &jobs[j], DTYPE_F16, "7.5", "experts int4 cuda", &seed);
    }
    layer_release(&l);
    cuda_pair_close(&p);
}

/* The sizes of a 35B-A3B layer, with fewer experts; only on a card. */
static void real_sizes(void **state)
{
    static const struct job jobs[] = {
        {"one row", 1, {1}, 0},      {"8 sequences", 8, {1, 1, 1, 1, 1, 1, 1, 1}, 0},
        {"64 rows", 1, {64}, 0},     {"300 rows", 2, {299, 1}, 0},
        {"2100 rows", 1, {2100}, 0},
    };
    static const struct sizes is = {24, 8, 2048, 512, 2048};
    uint64_t seed = 17;
    struct cuda_pair p;

    (void)state;
    cuda_pair_open(&p);
    for (size_t k = 0; !p.is_emulated && k < N_INT4; k++) {
        struct layer l;

        layer_make(&l, is, &INT4[k], 1, &seed);
        for (size_t j = 0; j < sizeof jobs / sizeof jobs[0]; j++) {
            char name[CUDA_PAIR_NAME];

            snprintf(name, sizeof name, "real %s", INT4[k].name);
            compare(&p, &l, &jobs[j], HALVES[k % 2], name, int4_kernel(&INT4[k]), &seed);
        }
        compare(&p, &l, &jobs[2], DTYPE_F32, "real f32", "experts plain cuda", &seed);
        layer_release(&l);
    }
    cuda_pair_close(&p);
}

static void refusals(void **state)
{
    static const struct job job = {"one row", 1, {1}, 0};
    static const struct sizes is = {2, 1, 64, 32, 64};
    uint64_t seed = 18;
    struct cuda_pair p;
    struct layer l;
    struct run r;

    (void)state;
    cuda_pair_open(&p);
    layer_make(&l, is, OTHER, 1, &seed);
    run_make(&r, &p, &l, &job, DTYPE_F32, &seed);
    l.experts[1].up.n_out = 31;
    cuda_pair_refused(&p, &r.op, "expert 1");
    l.experts[1].up.n_out = 32;
    l.experts[0].down.n_in = 16;
    cuda_pair_refused(&p, &r.op, "the down projection");
    l.experts[0].down.n_in = 32;
    r.op.u.experts.out.round = DTYPE_F16;
    cuda_pair_refused(&p, &r.op, "the output must be float32");
    r.op.u.experts.out.round = DTYPE_F32;
    r.op.u.experts.idx.dtype = DTYPE_F32;
    cuda_pair_refused(&p, &r.op, "int32 buffer");
    run_release(&r, &p);
    layer_release(&l);
    cuda_pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(int4_as_the_cpu_has_it),
        cmocka_unit_test(int4_in_long_rows),
        cmocka_unit_test(plain_as_the_cpu_has_it),
        cmocka_unit_test(plain_when_kinds_are_mixed),
        cmocka_unit_test(bad_choices_do_nothing),
        cmocka_unit_test(older_cards),
        cmocka_unit_test(real_sizes),
        cmocka_unit_test(refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
