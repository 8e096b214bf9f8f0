/* cuda_attention_test.c - OP_QKV and OP_ATTENTION on the card against the CPU.
 *
 * Idea: a case fills the cache with what came before, runs OP_QKV on both sides and compares queries and
 *       cache; then the card gets the CPU's queries and cache, so that attention is compared on equal
 *       operands whatever was rounded to the other side before. All of the cache that no token has
 *       written is NaN. Mostly the output is not rounded: then the error is the kernel's own. */
#include "backend/cuda/cuda_testing.h"

enum { LAYERS = 2, LAYER = 1, SPANS_MAX = 40 };
static const float EPS = 1e-6f;

struct shape {
    size_t nq, nkv, hd, rope;
    bool is_gated;
};

/* One step: sequences of n_rows[i] rows after position[i] tokens. */
struct spans {
    const char *name;
    size_t n, n_rows[SPANS_MAX], position[SPANS_MAX];
};
static const struct spans DECODE = {"decode", 6, {1, 1, 1, 1, 1, 1}, {0, 6, 63, 64, 130, 261}};
static const struct spans MIXED = {"mixed", 7, {1, 65, 3, 5, 1, 4, 17}, {70, 7, 62, 127, 0, 64, 0}};
static const struct spans TILES = {"tiles", 3, {63, 64, 127}, {1, 0, 64}};

struct types {
    enum dtype act, kv, out;
};

struct attention_case {
    struct shape s;
    struct types t;
    struct test_step step;
    struct state_pools pools;
    float *q, *k, *v, *q_norm, *k_norm, *inv_freq, *out;
    char name[96];
};

static bool is_fp8(enum dtype t)
{
    return t == DTYPE_F8_E4M3 || t == DTYPE_F8_E5M2;
}

static size_t q_cols(const struct shape *s)
{
    return s->nq * s->hd * (s->is_gated ? 2 : 1);
}

static float *rounded(size_t n, float size, enum dtype t, uint64_t *seed)
{
    float *x = test_floats(n, size, seed);

    for (size_t i = 0; i < n; i++) {
        x[i] = dtype_round(t, x[i]);
    }
    return x;
}

/* The cache's rows before a span, for one layer. */
static void fill_span(struct attention_case *c, const struct span *span, uint64_t *seed)
{
    struct state_pools *p = &c->pools;
    size_t hd = c->s.hd;

    for (size_t i = 0; i < span->position * c->s.nkv; i++) {
        size_t token = i / c->s.nkv, head = i % c->s.nkv;
        size_t page = LAYER * p->n_pages + (size_t)span->pages[token / KV_PAGE_TOKENS];
        size_t row = (page * c->s.nkv + head) * KV_PAGE_TOKENS + token % KV_PAGE_TOKENS;
        float size = is_fp8(p->kv_dtype) ? 400 : 3;

        for (size_t d = 0; d < hd; d++) {
            dtype_store(p->kv_dtype, p->k, row * hd + d, size * test_float(seed));
            dtype_store(p->kv_dtype, p->v, row * hd + d, size * test_float(seed));
        }
        if (is_fp8(p->kv_dtype)) {
            p->k_scale[row] = 0.003f * (1.5f + test_float(seed));
            p->v_scale[row] = 0.003f * (1.5f + test_float(seed));
        }
    }
}

static void pools_new(struct attention_case *c, uint64_t *seed)
{
    struct state_pools *p = &c->pools;
    size_t scales = c->s.nkv * KV_PAGE_TOKENS, elems = scales * c->s.hd;

    *p = (struct state_pools){.kv_dtype = c->t.kv,
                              .n_pages = c->step.n_pages,
                              .n_attn_layers = LAYERS,
                              .kv_elems = elems,
                              .kv_scales = is_fp8(c->t.kv) ? scales : 0};
    p->k = (uint8_t *)test_poisoned(LAYERS * p->n_pages * elems);
    p->v = (uint8_t *)test_poisoned(LAYERS * p->n_pages * elems);
    p->k_scale = p->kv_scales ? test_poisoned(LAYERS * p->n_pages * scales) : NULL;
    p->v_scale = p->kv_scales ? test_poisoned(LAYERS * p->n_pages * scales) : NULL;
    for (size_t i = 0; i < c->step.step.n_spans; i++) {
        fill_span(c, &c->step.spans[i], seed);
    }
}

static void case_new(struct attention_case *c, struct shape s, struct types t,
                     const struct spans *spans, uint64_t *seed)
{
    size_t n;

    memset(c, 0, sizeof *c);
    c->s = s;
    c->t = t;
    snprintf(c->name, sizeof c->name, "%zu/%zu heads of %zu%s, %s %s %s, %s", s.nq, s.nkv, s.hd,
             s.is_gated ? " gated" : "", dtype_name(t.act), dtype_name(t.kv), dtype_name(t.out),
             spans->name);
    test_step_make(&c->step, spans->n, spans->n_rows, spans->position, 100);
    n = c->step.step.n_rows;
    c->q = rounded(n * q_cols(&s), 3, t.act, seed);
    c->k = rounded(n * s.nkv * s.hd, 3, t.act, seed);
    c->v = rounded(n * s.nkv * s.hd, 3, t.act, seed);
    c->q_norm = test_floats(s.hd, 2, seed);
    c->k_norm = test_floats(s.hd, 2, seed);
    c->inv_freq = test_floats(s.rope / 2 + 1, 1, seed);
    for (size_t i = 0; i < s.rope / 2; i++) {
        c->inv_freq[i] = (float)pow(1e7, -2.0 * (double)i / (double)s.rope);
    }
    c->out = test_poisoned(n * s.nq * s.hd);
    pools_new(c, seed);
}

static void case_free(struct cuda_pair *p, struct attention_case *c)
{
    float *all[] = {c->q, c->k, c->v, c->q_norm, c->k_norm, c->inv_freq, c->out};

    cuda_pair_forget(p);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i]);
    }
    free(c->pools.k);
    free(c->pools.v);
    free(c->pools.k_scale);
    free(c->pools.v_scale);
    test_step_release(&c->step);
}

static struct op qkv_op(const struct attention_case *c)
{
    const struct shape *s = &c->s;

    return (struct op){.kind = OP_QKV,
                       .u.qkv = {
                           .q = test_operand(c->q, q_cols(s), c->t.act),
                           .k = test_operand(c->k, s->nkv * s->hd, c->t.act),
                           .v = test_operand(c->v, s->nkv * s->hd, c->t.act),
                           .q_norm = c->q_norm,
                           .k_norm = c->k_norm,
                           .eps = EPS,
                           .is_gated = s->is_gated,
                           .nq = s->nq,
                           .nkv = s->nkv,
                           .hd = s->hd,
                           .rope_dims = s->rope,
                           .inv_freq = c->inv_freq,
                           .rope_scale = 1.25f,
                           .attn_layer = LAYER,
                       }};
}

static struct op attention_op(const struct attention_case *c)
{
    const struct shape *s = &c->s;

    return (struct op){.kind = OP_ATTENTION,
                       .u.attention = {
                           .q = test_operand(c->q, q_cols(s), c->t.act),
                           .out = test_operand(c->out, s->nq * s->hd, c->t.out),
                           .is_gated = s->is_gated,
                           .nq = s->nq,
                           .nkv = s->nkv,
                           .hd = s->hd,
                           .scale = 1.0f / sqrtf((float)s->hd),
                           .attn_layer = LAYER,
                       }};
}

/* Few values may fall to the other side when they are rounded, and those to the next one. */
static void expect_cache(struct cuda_pair *p, const struct attention_case *c, const uint8_t *pool,
                         const char *what)
{
    const struct state_pools *s = &c->pools;
    size_t each = dtype_bytes(s->kv_dtype), n = LAYERS * s->n_pages * s->kv_elems, n_other = 0;
    size_t n_written = 1 + c->step.step.n_rows * c->s.nkv * c->s.hd;
    uint8_t *card = malloc(n * each);
    double step = s->kv_dtype == DTYPE_F8_E5M2   ? 0.25
                  : s->kv_dtype == DTYPE_F8_E4M3 ? 0.125
                                                 : cuda_tolerance(s->kv_dtype, 1e-5);
    char group[64];

    assert_non_null(card);
    cuda_pair_fetch(p, pool, card, n * each);
    for (size_t i = 0; i < n; i++) {
        n_other += memcmp(card + i * each, pool + i * each, each) != 0;
    }
    if (s->kv_dtype != DTYPE_F32 && n_other > 2 + n_written / 50) {
        fail_msg("qkv, %s: %zu of %zu values of the %s differ", c->name, n_other, n_written, what);
    }
    free(card);
    snprintf(group, sizeof group, "cache %s", dtype_name(s->kv_dtype));
    cuda_pair_expect(p, group, c->name, s->kv_dtype, pool, n, cuda_tolerance(c->t.act, step));
}

static void run_qkv(struct cuda_pair *p, struct attention_case *c)
{
    struct op op = qkv_op(c);
    size_t n = c->step.step.n_rows, scales = LAYERS * c->pools.n_pages * c->pools.kv_scales;
    char group[64];

    cuda_pair_mirror(p, c->q, n * q_cols(&c->s) * sizeof *c->q);
    cuda_pair_mirror(p, c->k, n * c->s.nkv * c->s.hd * sizeof *c->k);
    cuda_pair_mirror(p, c->v, n * c->s.nkv * c->s.hd * sizeof *c->v);
    cuda_pair_run(p, &op, &c->step.step, &c->pools);
    snprintf(group, sizeof group, "qkv %s", dtype_name(c->t.act));
    cuda_pair_expect(p, group, c->name, DTYPE_F32, c->q, n * q_cols(&c->s),
                     cuda_tolerance(c->t.act, 1e-5));
    expect_cache(p, c, c->pools.k, "keys");
    expect_cache(p, c, c->pools.v, "values");
    if (scales) {
        cuda_pair_expect(p, "cache scales", c->name, DTYPE_F32, c->pools.k_scale, scales,
                         cuda_tolerance(c->t.act, 1e-5));
        cuda_pair_expect(p, "cache scales", c->name, DTYPE_F32, c->pools.v_scale, scales, 1e-6);
    }
}

static void run_case(struct cuda_pair *p, const char *group, struct shape s, struct types t,
                     const struct spans *spans, double tolerance)
{
    struct attention_case c;
    uint64_t seed = 99 + s.hd;
    size_t n;
    struct op op;

    case_new(&c, s, t, spans, &seed);
    run_qkv(p, &c);
    n = c.step.step.n_rows;
    op = attention_op(&c);
    cuda_pair_mirror(p, c.q, n * q_cols(&s) * sizeof *c.q);
    cuda_pair_mirror(p, c.out, n * s.nq * s.hd * sizeof *c.out);
    cuda_pair_pools(p, &c.pools);
    cuda_pair_run(p, &op, &c.step.step, &c.pools);
    cuda_pair_expect(p, group, c.name, DTYPE_F32, c.out, n * s.nq * s.hd, tolerance);
    case_free(p, &c);
}

/* attention_any: every type of activations and cache, awkward sizes. */
static void test_float32(void **state)
{
    static const struct shape shapes[] = {
        {4, 2, 64, 16, true}, {3, 1, 33, 8, true},   {2, 2, 32, 32, false}, {6, 2, 7, 6, true},
        {4, 4, 1, 0, true},   {1, 1, 128, 0, false}, {40, 2, 16, 8, true},
    };
    static const struct types types[] = {
        {DTYPE_F32, DTYPE_F32, DTYPE_F32},     {DTYPE_F32, DTYPE_F16, DTYPE_F32},
        {DTYPE_F32, DTYPE_BF16, DTYPE_F32},    {DTYPE_F32, DTYPE_F8_E4M3, DTYPE_F32},
        {DTYPE_F32, DTYPE_F8_E5M2, DTYPE_F32}, {DTYPE_BF16, DTYPE_F16, DTYPE_BF16},
        {DTYPE_F16, DTYPE_F32, DTYPE_F16},
    };
    struct cuda_pair p;

    (void)state;
    cuda_pair_open(&p);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct types t = types[i % (sizeof types / sizeof types[0])];

        run_case(&p, "any float32", shapes[i], types[0], &DECODE, 1e-5);
        run_case(&p, "any float32", shapes[i], types[0], &MIXED, 1e-5);
        run_case(&p, "any, other types", shapes[i], t, i % 2 ? &DECODE : &MIXED,
                 cuda_tolerance(t.out, 1e-5));
    }
    run_case(&p, "any float32", (struct shape){4, 1, 256, 64, true}, types[0], &DECODE, 1e-5);
    cuda_pair_close(&p);
}

/* The kernels with matrix instructions. Decode keeps float32's accuracy; prefill rounds probabilities by
 * half a step of their type, and values are below 3. */
static void test_matrix(void **state)
{
    static const enum dtype acts[] = {DTYPE_BF16, DTYPE_F16};
    static const enum dtype caches[] = {DTYPE_NONE, DTYPE_F8_E4M3, DTYPE_F8_E5M2};
    static const struct shape shapes[] = {
        {8, 1, 256, 64, true}, {16, 2, 128, 32, true}, {3, 1, 64, 64, false}};
    struct cuda_pair p;

    (void)state;
    cuda_pair_open(&p);
    for (size_t a = 0; a < 2; a++) {
        for (size_t k = 0; k < 3; k++) {
            for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
                struct types t = {acts[a], k == 0 ? acts[a] : caches[k], DTYPE_F32};
                bool rounds_bf16 = k > 0 || acts[a] == DTYPE_BF16;
                char group[64];

                snprintf(group, sizeof group, "split %s %s", dtype_name(t.act), dtype_name(t.kv));
                run_case(&p, group, shapes[i], t, &DECODE, 2e-5);
                snprintf(group, sizeof group, "flash %s %s", dtype_name(t.act), dtype_name(t.kv));
                run_case(&p, group, shapes[i], t, &MIXED, rounds_bf16 ? 3.0 / 512 : 3.0 / 4096);
            }
        }
        struct types t = {acts[a], acts[a], acts[a]};

        run_case(&p, "rounded output", shapes[2], t, &TILES, 2 * cuda_tolerance(acts[a], 0));
    }
    cuda_pair_close(&p);
}

/* What the card left of a step: outputs and cache. */
struct result {
    float *out;
    uint8_t *k, *v;
};

static struct result result_fetch(struct cuda_pair *p, const struct attention_case *c)
{
    size_t n = c->step.step.n_rows * c->s.nq * c->s.hd;
    size_t kv = LAYERS * c->pools.n_pages * c->pools.kv_elems * dtype_bytes(c->t.kv);
    struct result r = {malloc(n * sizeof *r.out), malloc(kv), malloc(kv)};

    assert_true(r.out && r.k && r.v);
    cuda_pair_fetch(p, c->out, r.out, n * sizeof *r.out);
    cuda_pair_fetch(p, c->pools.k, r.k, kv);
    cuda_pair_fetch(p, c->pools.v, r.v, kv);
    return r;
}

static void result_free(struct result *r)
{
    free(r->out);
    free(r->k);
    free(r->v);
}

/* Both ops as one plan against the CPU's two. The queries that they leave alone say that they ran as one. */
static struct result run_fused(struct cuda_pair *p, struct attention_case *c, double tolerance)
{
    size_t n = c->step.step.n_rows, n_q = n * q_cols(&c->s);
    struct op ops[2] = {qkv_op(c), attention_op(c)};
    float *before = malloc(n_q * sizeof *before), *after = malloc(n_q * sizeof *after);
    char group[64];

    assert_true(before && after);
    memcpy(before, c->q, n_q * sizeof *before);
    cuda_pair_mirror(p, c->q, n_q * sizeof *c->q);
    cuda_pair_mirror(p, c->k, n * c->s.nkv * c->s.hd * sizeof *c->k);
    cuda_pair_mirror(p, c->v, n * c->s.nkv * c->s.hd * sizeof *c->v);
    cuda_pair_mirror(p, c->out, n * c->s.nq * c->s.hd * sizeof *c->out);
    p->is_fused = true;
    cuda_pair_run_plan(p, ops, 2, &c->step.step, &c->pools);
    p->is_fused = false;
    cuda_pair_fetch(p, c->q, after, n_q * sizeof *after);
    assert_memory_equal(before, after, n_q * sizeof *after);
    free(before);
    free(after);
    snprintf(group, sizeof group, "fused %s %s", dtype_name(c->t.act), dtype_name(c->t.kv));
    cuda_pair_expect(p, group, c->name, DTYPE_F32, c->out, n * c->s.nq * c->s.hd, tolerance);
    expect_cache(p, c, c->pools.k, "keys");
    expect_cache(p, c, c->pools.v, "values");
    return result_fetch(p, c);
}

static struct result run_apart(struct cuda_pair *p, struct attention_case *c)
{
    struct op op = attention_op(c);

    run_qkv(p, c);
    cuda_pair_mirror(p, c->out, c->step.step.n_rows * c->s.nq * c->s.hd * sizeof *c->out);
    cuda_pair_run(p, &op, &c->step.step, &c->pools);
    return result_fetch(p, c);
}

/* A query's or key's value that is rounded the other way is seen in the outputs, so against the CPU they are
 * compared loosely; against the card's own two ops, which round alike, closely. */
static void fused_case(struct cuda_pair *p, struct shape s, struct types t,
                       const struct spans *spans)
{
    double loose = is_fp8(t.kv) ? 0.15 : t.act == DTYPE_BF16 ? 0.05 : 0.01;
    struct attention_case one, two;
    struct result fused, apart;
    uint64_t seed = 5 + s.hd, same = seed;
    size_t n, kv;

    case_new(&one, s, t, spans, &seed);
    fused = run_fused(p, &one, loose);
    n = one.step.step.n_rows * s.nq * s.hd;
    kv = LAYERS * one.pools.n_pages * one.pools.kv_elems * dtype_bytes(t.kv);
    case_free(p, &one);
    case_new(&two, s, t, spans, &same);
    apart = run_apart(p, &two);
    for (size_t i = 0; i < n; i++) {
        double error = fabs((double)fused.out[i] - (double)apart.out[i]);

        if (!(error <= (p->is_emulated ? 1e-5 : loose))) {
            fail_msg("%s: output %zu is %g as one, %g apart", two.name, i, (double)fused.out[i],
                     (double)apart.out[i]);
        }
    }
    if (p->is_emulated) {
        assert_memory_equal(fused.k, apart.k, kv);
    }
    assert_memory_equal(fused.v, apart.v, kv);
    result_free(&fused);
    result_free(&apart);
    case_free(p, &two);
}

static void test_fused(void **state)
{
    static const enum dtype acts[] = {DTYPE_BF16, DTYPE_F16};
    static const enum dtype caches[] = {DTYPE_NONE, DTYPE_F8_E4M3, DTYPE_F8_E5M2};
    static const struct shape shapes[] = {
        {8, 1, 256, 64, true}, {6, 2, 128, 32, true}, {20, 1, 64, 64, false}, {3, 1, 64, 0, true}};
    static const struct spans joined = {"joined", 2, {1, 1}, {1023, 700}};
    static const struct spans many = {"many splits", 3, {1, 1, 1}, {1100, 5, 80}};
    struct cuda_pair p;

    (void)state;
    cuda_pair_open(&p);
    for (size_t a = 0; a < 2; a++) {
        for (size_t k = 0; k < 3; k++) {
            for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
                struct types t = {acts[a], k == 0 ? acts[a] : caches[k], DTYPE_F32};

                if (k == 0 || shapes[i].hd > 64) {
                    fused_case(&p, shapes[i], t, &DECODE);
                }
            }
        }
        struct types t = {acts[a], acts[a], DTYPE_F32};

        fused_case(&p, shapes[3], t, &joined);
        fused_case(&p, shapes[3], t, &many);
    }
    if (!p.is_emulated) {
        static const struct spans real = {"real", 5, {1, 1, 1, 1, 1}, {8000, 0, 4095, 1024, 63}};
        static const struct shape s = {16, 2, 256, 64, true};

        fused_case(&p, s, (struct types){DTYPE_BF16, DTYPE_BF16, DTYPE_F32}, &real);
        fused_case(&p, s, (struct types){DTYPE_BF16, DTYPE_F8_E4M3, DTYPE_F32}, &real);
        fused_case(&p, s, (struct types){DTYPE_F16, DTYPE_F16, DTYPE_F32}, &joined);
    }
    cuda_pair_close(&p);
}

static void test_old_cards(void **state)
{
    static const struct {
        int sm;
        struct shape s;
        struct types t;
    } cases[] = {
        {75, {4, 1, 128, 32, true}, {DTYPE_F16, DTYPE_F16, DTYPE_F32}},
        {75, {2, 1, 256, 64, true}, {DTYPE_F16, DTYPE_F16, DTYPE_F32}},
        {75, {2, 1, 64, 64, true}, {DTYPE_BF16, DTYPE_BF16, DTYPE_F32}},
        {86, {2, 1, 256, 64, true}, {DTYPE_BF16, DTYPE_BF16, DTYPE_F32}},
        {86, {2, 1, 256, 64, true}, {DTYPE_F16, DTYPE_F8_E4M3, DTYPE_F32}},
    };
    static const struct spans few = {"few", 3, {1, 9, 33}, {70, 60, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cuda_pair p;

        cuda_pair_open_sm(&p, cases[i].sm);
        run_case(&p, "old cards", cases[i].s, cases[i].t, &few, 3.0 / 512);
        cuda_pair_close(&p);
    }
}

/* Rotation far from the beginning: angles of 262,143 and all below. */
static void test_far_positions(void **state)
{
    static const struct spans far = {"far", 3, {1, 3, 1}, {262143, 131071, 99999}};
    struct shape s = {2, 1, 8, 8, false};
    struct types t = {DTYPE_F32, DTYPE_F16, DTYPE_F32};
    struct attention_case c;
    uint64_t seed = 5;
    struct cuda_pair p;

    (void)state;
    cuda_pair_open(&p);
    p.runs_once = true;
    case_new(&c, s, t, &far, &seed);
    run_qkv(&p, &c);
    case_free(&p, &c);
    cuda_pair_close(&p);
}

/* One sequence whose splits have several pages, and spans alone, which are cut both ways. */
static void test_long(void **state)
{
    static const struct spans deep = {"deep", 2, {1, 2}, {9000, 4500}};
    static const struct spans alone[] = {{"5 rows alone", 1, {5}, {700}},
                                         {"33 rows alone", 1, {33}, {390}},
                                         {"alone", 1, {70}, {0}}};
    struct shape s = {8, 2, 64, 32, true};
    struct types t = {DTYPE_BF16, DTYPE_BF16, DTYPE_F32};
    struct cuda_pair p;

    (void)state;
    cuda_pair_open(&p);
    run_case(&p, "long, split", s, t, &deep, 2e-5);
    for (size_t i = 0; i < 3; i++) {
        run_case(&p, "alone, flash", s, t, &alone[i], 3.0 / 512);
    }
    t.kv = DTYPE_F8_E4M3;
    s.hd = 128;
    run_case(&p, "alone, flash", s, t, &alone[1], 3.0 / 512);
    t.act = t.kv = DTYPE_F32;
    s.hd = 32;
    run_case(&p, "long, any", s, t, &deep, 2e-5);
    for (size_t i = 0; i < 3; i++) {
        run_case(&p, "alone, any", s, t, &alone[i], 1e-5);
    }
    cuda_pair_close(&p);
}

/* More sequences than the scratch holds at once. */
static void test_many(void **state)
{
    struct spans many = {"many", 36, {0}, {0}}, mixed;
    struct shape s = {16, 1, 256, 64, true};
    struct types t = {DTYPE_BF16, DTYPE_BF16, DTYPE_F32};
    struct cuda_pair p;

    (void)state;
    for (size_t i = 0; i < many.n; i++) {
        many.n_rows[i] = 1;
        many.position[i] = 5 * i;
    }
    cuda_pair_open(&p);
    run_case(&p, "many", s, t, &many, 2e-5);
    mixed = many;
    mixed.name = "many, mixed";
    mixed.n = 11;
    mixed.n_rows[3] = 6;
    mixed.n_rows[10] = 4;
    run_case(&p, "many", s, t, &mixed, 3.0 / 512);
    cuda_pair_close(&p);
}

/* The sizes of real models, on a real card only. */
static void test_real_sizes(void **state)
{
    static const struct types types[] = {{DTYPE_BF16, DTYPE_BF16, DTYPE_F32},
                                         {DTYPE_F16, DTYPE_F16, DTYPE_F32},
                                         {DTYPE_BF16, DTYPE_F8_E4M3, DTYPE_F32},
                                         {DTYPE_F32, DTYPE_F32, DTYPE_F32}};
    static const struct spans decode = {
        "decode", 8, {1, 1, 1, 1, 1, 1, 1, 1}, {16383, 1, 100, 4096, 777, 2048, 20000, 8191}};
    static const struct spans prefill = {"prefill", 1, {1500}, {548}};
    static const struct spans added = {"added", 1, {40}, {12000}};
    static const struct spans mixed = {
        "mixed", 6, {1, 900, 300, 4, 1, 33}, {5000, 64, 1000, 3000, 0, 2000}};
    static const struct spans *const steps[] = {&decode, &prefill, &added, &mixed};
    struct shape s = {16, 2, 256, 64, true};
    struct cuda_pair p;

    (void)state;
    cuda_pair_open(&p);
    for (size_t i = 0; !p.is_emulated && i < sizeof types / sizeof types[0]; i++) {
        for (size_t j = 0; j < sizeof steps / sizeof steps[0]; j++) {
            bool is_float32 = types[i].act == DTYPE_F32;

            run_case(&p, steps[j]->name, s, types[i], steps[j],
                     is_float32 || j == 0 ? 2e-5 : 3.0 / 512);
        }
    }
    cuda_pair_close(&p);
}

static void test_refusals(void **state)
{
    struct attention_case c;
    struct cuda_pair p;
    uint64_t seed = 1;
    struct op op;

    (void)state;
    cuda_pair_open(&p);
    case_new(&c, (struct shape){4, 2, 16, 8, true}, (struct types){DTYPE_F32, DTYPE_F32, DTYPE_F32},
             &DECODE, &seed);
    cuda_pair_mirror(&p, c.q, 6 * q_cols(&c.s) * sizeof *c.q);
    cuda_pair_mirror(&p, c.k, 6 * 32 * sizeof *c.k);
    cuda_pair_mirror(&p, c.v, 6 * 32 * sizeof *c.v);
    cuda_pair_mirror(&p, c.out, 6 * 64 * sizeof *c.out);
    op = qkv_op(&c);
    op.u.qkv.nkv = 3;
    cuda_pair_refused(&p, &op, "4 query and 3 KV heads");
    op = qkv_op(&c);
    op.u.qkv.rope_dims = 7;
    cuda_pair_refused(&p, &op, "7 rotary dims");
    op = qkv_op(&c);
    op.u.qkv.k.cols = 31;
    cuda_pair_refused(&p, &op, "k has 31 columns");
    op = qkv_op(&c);
    op.rows = ROWS_OUT;
    cuda_pair_refused(&p, &op, "all rows");
    op = attention_op(&c);
    op.u.attention.hd = 512;
    cuda_pair_refused(&p, &op, "heads of 512");
    op = attention_op(&c);
    op.u.attention.out = op.u.attention.q;
    op.u.attention.is_gated = false;
    op.u.attention.q.cols = op.u.attention.out.cols = 64;
    cuda_pair_refused(&p, &op, "overlaps");
    case_free(&p, &c);
    cuda_pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),   cmocka_unit_test(test_float32),
        cmocka_unit_test(test_matrix),     cmocka_unit_test(test_fused),
        cmocka_unit_test(test_old_cards),  cmocka_unit_test(test_far_positions),
        cmocka_unit_test(test_many),       cmocka_unit_test(test_long),
        cmocka_unit_test(test_real_sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
