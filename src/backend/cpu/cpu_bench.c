/* cpu_bench.c - speed of the CPU backend: matrix products by weight kind, and one decode step.
 *
 * Usage: cpu_bench [threads]. Prints the best of several runs; random weights. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/cpu/cpu_test_util.h"
#include "base/clock.h"

static void report_product(struct backend *be, enum test_kind kind, size_t n_out, size_t n_in,
                           size_t rows)
{
    uint64_t seed = 1;
    struct test_weight t;
    float *x = test_floats(rows * n_in, 1, &seed), *out = test_poisoned(rows * n_out);
    struct op op = {.kind = OP_LINEAR};
    struct step step = {.n_rows = rows};
    double best = 1e9, flop = 2.0 * (double)n_out * (double)n_in * (double)rows;

    test_weight_make(&t, kind, n_out, n_in, &seed);
    op.u.linear.in = test_operand(x, n_in, DTYPE_F32);
    op.u.linear.n_parts = 1;
    op.u.linear.part[0].w = t.w;
    op.u.linear.part[0].out = test_operand(out, n_out, DTYPE_F32);
    test_prepare(be, &op, rows);
    for (int run = 0; run < 20; run++) {
        uint64_t start = clock_now_ns();
        double seconds;

        test_run(be, &op, &step, NULL);
        seconds = clock_seconds_since(start);
        best = seconds < best ? seconds : best;
    }
    printf("  %-10s %5zu x %-5zu rows %-4zu %9.1f us %8.1f GFLOP/s %7.2f GB/s of weights\n",
           test_kind_name(kind), n_out, n_in, rows, best * 1e6, flop / best * 1e-9,
           (double)weight_bytes(&t.w) / best * 1e-9);
    test_weight_release(&t);
    free(out);
    free(x);
}

/* The shape of the demo model: hidden 256, 16 experts of 128, 4 a token, 8 layers. */
enum { HIDDEN = 256, N_EXPERTS = 16, TOP_K = 4, INNER = 128, N_LAYERS = 8, VOCAB = 4096 };
enum { NK = 2, NV = 4, DK = 64, DV = 64, CHANNELS = 512, NQ = 4, NKV = 2, HD = 64, OPS_MAX = 160 };
enum { ROWS_MAX = 512, N_PAGES = 64 };

struct plan {
    struct op ops[OPS_MAX];
    size_t n;
    uint64_t seed;
    float *x, *u, *wide[4], *idx, *prob, *logits, *ones;
};

static struct weight plan_weight(struct plan *p, enum test_kind kind, size_t n_out, size_t n_in)
{
    struct test_weight t; /* lives as long as the process */

    test_weight_make(&t, kind, n_out, n_in, &p->seed);
    return t.w;
}

static struct op *plan_add(struct plan *p, enum op_kind kind, int layer, const char *name)
{
    struct op *op = &p->ops[p->n++];

    *op = (struct op){.kind = kind, .layer = (int16_t)layer, .name = name};
    return op;
}

static void plan_norm(struct plan *p, int layer)
{
    struct op *op = plan_add(p, OP_NORM, layer, "norm");

    op->u.norm.in = test_operand(p->x, HIDDEN, DTYPE_F32);
    op->u.norm.out = test_operand(p->u, HIDDEN, DTYPE_F32);
    op->u.norm.weight = p->ones;
    op->u.norm.eps = 1e-6f;
}

static struct op *plan_linear(struct plan *p, int layer, const char *name, float *in, size_t n_in)
{
    struct op *op = plan_add(p, OP_LINEAR, layer, name);

    op->u.linear.in = test_operand(in, n_in, DTYPE_F32);
    return op;
}

static void plan_part(struct plan *p, struct op *op, float *out, size_t n_out, bool accumulates)
{
    size_t i = op->u.linear.n_parts++;

    op->u.linear.part[i].w = plan_weight(p, TEST_BF16, n_out, op->u.linear.in.cols);
    op->u.linear.part[i].out = test_operand(out, n_out, DTYPE_F32);
    op->u.linear.part[i].accumulates = accumulates;
}

static void plan_gdn(struct plan *p, int layer, size_t gdn_layer)
{
    float *a = p->wide[3], *b = p->wide[3] + ROWS_MAX * NV;
    float *out = p->wide[3] + 2 * (size_t)ROWS_MAX * NV;
    struct op *op = plan_linear(p, layer, "in_proj", p->u, HIDDEN);

    plan_part(p, op, p->wide[0], CHANNELS, false);
    plan_part(p, op, p->wide[2], NV * DV, false);
    plan_part(p, op, a, NV, false);
    plan_part(p, op, b, NV, false);
    op = plan_add(p, OP_CONV, layer, "conv");
    op->u.conv.in = test_operand(p->wide[0], CHANNELS, DTYPE_F32);
    op->u.conv.out = test_operand(p->wide[1], CHANNELS, DTYPE_F32);
    op->u.conv.weight = test_floats(4 * CHANNELS, 0.5f, &p->seed);
    op->u.conv.taps = 4;
    op->u.conv.channels = CHANNELS;
    op->u.conv.gdn_layer = gdn_layer;
    op = plan_add(p, OP_DELTA, layer, "delta");
    op->u.delta.qkv = test_operand(p->wide[1], CHANNELS, DTYPE_F32);
    op->u.delta.z = test_operand(p->wide[2], NV * DV, DTYPE_F32);
    op->u.delta.a = test_operand(a, NV, DTYPE_F32);
    op->u.delta.b = test_operand(b, NV, DTYPE_F32);
    op->u.delta.out = test_operand(out, NV * DV, DTYPE_F32);
    op->u.delta.neg_exp_a = test_floats(NV, -0.1f, &p->seed);
    op->u.delta.dt_bias = p->ones;
    op->u.delta.norm = p->ones;
    op->u.delta.eps = 1e-6f;
    op->u.delta.nk = NK;
    op->u.delta.nv = NV;
    op->u.delta.dk = DK;
    op->u.delta.dv = DV;
    op->u.delta.gdn_layer = gdn_layer;
    op->u.delta.chunk_min = 16;
    op = plan_linear(p, layer, "out_proj", out, NV * DV);
    plan_part(p, op, p->x, HIDDEN, true);
}

static void plan_attention(struct plan *p, int layer, size_t attn_layer)
{
    struct op *op = plan_linear(p, layer, "qkv_proj", p->u, HIDDEN);

    plan_part(p, op, p->wide[0], NQ * HD * 2, false);
    plan_part(p, op, p->wide[1], NKV * HD, false);
    plan_part(p, op, p->wide[2], NKV * HD, false);
    op = plan_add(p, OP_QKV, layer, "qkv");
    op->u.qkv.q = test_operand(p->wide[0], NQ * HD * 2, DTYPE_F32);
    op->u.qkv.k = test_operand(p->wide[1], NKV * HD, DTYPE_F32);
    op->u.qkv.v = test_operand(p->wide[2], NKV * HD, DTYPE_F32);
    op->u.qkv.q_norm = op->u.qkv.k_norm = op->u.qkv.inv_freq = p->ones;
    op->u.qkv.eps = 1e-6f;
    op->u.qkv.is_gated = true;
    op->u.qkv.nq = NQ;
    op->u.qkv.nkv = NKV;
    op->u.qkv.hd = HD;
    op->u.qkv.rope_dims = 16;
    op->u.qkv.rope_scale = 1;
    op->u.qkv.attn_layer = attn_layer;
    op = plan_add(p, OP_ATTENTION, layer, "attention");
    op->u.attention.q = test_operand(p->wide[0], NQ * HD * 2, DTYPE_F32);
    op->u.attention.out = test_operand(p->wide[3], NQ * HD, DTYPE_F32);
    op->u.attention.is_gated = true;
    op->u.attention.nq = NQ;
    op->u.attention.nkv = NKV;
    op->u.attention.hd = HD;
    op->u.attention.scale = 0.125f;
    op->u.attention.attn_layer = attn_layer;
    op = plan_linear(p, layer, "o_proj", p->wide[3], NQ * HD);
    plan_part(p, op, p->x, HIDDEN, true);
}

static void plan_moe(struct plan *p, int layer)
{
    struct expert_weights *experts = calloc(N_EXPERTS, sizeof *experts);
    struct operand idx = {.data = p->idx, .dtype = DTYPE_I32, .cols = TOP_K};
    struct op *op = plan_add(p, OP_ROUTE, layer, "router");

    for (size_t e = 0; e < N_EXPERTS; e++) {
        experts[e].gate = plan_weight(p, TEST_INT4, INNER, HIDDEN);
        experts[e].up = plan_weight(p, TEST_INT4, INNER, HIDDEN);
        experts[e].down = plan_weight(p, TEST_INT4, HIDDEN, INNER);
    }
    op->u.route.in = test_operand(p->u, HIDDEN, DTYPE_F32);
    op->u.route.router = plan_weight(p, TEST_BF16, N_EXPERTS, HIDDEN);
    op->u.route.idx = idx;
    op->u.route.prob = test_operand(p->prob, TOP_K, DTYPE_F32);
    op->u.route.n_experts = N_EXPERTS;
    op->u.route.top_k = TOP_K;
    op->u.route.renormalise = true;
    op = plan_add(p, OP_EXPERTS, layer, "experts");
    op->u.experts.in = test_operand(p->u, HIDDEN, DTYPE_F32);
    op->u.experts.idx = idx;
    op->u.experts.prob = test_operand(p->prob, TOP_K, DTYPE_F32);
    op->u.experts.out = test_operand(p->wide[0], HIDDEN, DTYPE_F32);
    op->u.experts.experts = experts;
    op->u.experts.n_experts = N_EXPERTS;
    op->u.experts.top_k = TOP_K;
    op->u.experts.width = INNER;
    op = plan_linear(p, layer, "shared_gate_up", p->u, HIDDEN);
    plan_part(p, op, p->wide[1], INNER, false);
    plan_part(p, op, p->wide[2], INNER, false);
    plan_part(p, op, p->prob, 1, false);
    op = plan_add(p, OP_SWIGLU, layer, "swiglu");
    op->u.swiglu.gate = test_operand(p->wide[1], INNER, DTYPE_F32);
    op->u.swiglu.up = test_operand(p->wide[2], INNER, DTYPE_F32);
    op->u.swiglu.out = test_operand(p->wide[1], INNER, DTYPE_F32);
    op = plan_linear(p, layer, "shared_down", p->wide[1], INNER);
    plan_part(p, op, p->wide[3], HIDDEN, false);
    op = plan_add(p, OP_ADD_SHARED, layer, "add_shared");
    op->u.add_shared.x = test_operand(p->x, HIDDEN, DTYPE_F32);
    op->u.add_shared.routed = test_operand(p->wide[0], HIDDEN, DTYPE_F32);
    op->u.add_shared.shared = test_operand(p->wide[3], HIDDEN, DTYPE_F32);
    op->u.add_shared.gate = test_operand(p->prob, 1, DTYPE_F32);
    op = plan_add(p, OP_CHECK, layer, "check");
    op->u.check.x = test_operand(p->x, HIDDEN, DTYPE_F32);
}

static void plan_build(struct plan *p)
{
    struct op *op;
    size_t gdn = 0, attn = 0;

    p->seed = 3;
    p->x = test_poisoned(ROWS_MAX * HIDDEN);
    p->u = test_poisoned(ROWS_MAX * HIDDEN);
    for (size_t i = 0; i < 4; i++) {
        p->wide[i] = test_poisoned(ROWS_MAX * (CHANNELS + 64));
    }
    p->idx = test_poisoned(ROWS_MAX * TOP_K);
    p->prob = test_poisoned(ROWS_MAX * TOP_K);
    p->logits = test_poisoned((size_t)ROWS_MAX * VOCAB);
    p->ones = test_poisoned(HIDDEN);
    for (size_t i = 0; i < HIDDEN; i++) {
        p->ones[i] = 1;
    }
    op = plan_add(p, OP_EMBED, -1, "embed");
    op->u.embed.table = plan_weight(p, TEST_BF16, VOCAB, HIDDEN);
    op->u.embed.out = test_operand(p->x, HIDDEN, DTYPE_F32);
    for (int layer = 0; layer < N_LAYERS; layer++) {
        plan_norm(p, layer);
        if (layer % 4 == 3) {
            plan_attention(p, layer, attn++);
        } else {
            plan_gdn(p, layer, gdn++);
        }
        plan_norm(p, layer);
        plan_moe(p, layer);
    }
    op = plan_add(p, OP_GATHER, -1, "gather");
    op->rows = ROWS_OUT;
    op->u.gather.in = test_operand(p->x, HIDDEN, DTYPE_F32);
    op->u.gather.out = test_operand(p->u, HIDDEN, DTYPE_F32);
    op = plan_linear(p, -1, "lm_head", p->u, HIDDEN);
    op->rows = ROWS_OUT;
    plan_part(p, op, p->logits, VOCAB, false);
}

static void plan_run(struct backend *be, struct plan *p, const struct step *step,
                     const struct state_pools *state, double *by_kind)
{
    for (size_t i = 0; i < p->n; i++) {
        uint64_t start = by_kind ? clock_now_ns() : 0;

        test_run(be, &p->ops[i], step, state);
        if (by_kind) {
            by_kind[p->ops[i].kind] += clock_seconds_since(start);
        }
    }
}

static void report_model(struct backend *be)
{
    enum { STEPS = 1000, PREFILLS = 4 };
    static struct plan p;
    static int32_t pages[N_PAGES], tokens[ROWS_MAX];
    static int16_t bad[ROWS_MAX];
    int32_t last = 0;
    double by_kind[OP_KIND_COUNT] = {0}, best = 1e9;
    struct error err = {0};
    struct state_pools s = {.conv_dtype = DTYPE_F32,
                            .recurrent_dtype = DTYPE_F32,
                            .kv_dtype = DTYPE_F32,
                            .n_slots = 1,
                            .n_pages = N_PAGES,
                            .n_gdn_layers = 6,
                            .n_attn_layers = 2,
                            .conv_elems = 3 * CHANNELS,
                            .recurrent_elems = NV * DK * DV,
                            .kv_elems = NKV * KV_PAGE_TOKENS * HD};
    struct span span = {.n_rows = 1, .pages = pages, .state_is_zero = true};
    struct step step = {.n_rows = 1,
                        .tokens = tokens,
                        .spans = &span,
                        .n_spans = 1,
                        .out_rows = &last,
                        .n_out_rows = 1,
                        .bad_layer = bad};

    plan_build(&p);
    s.conv = (uint8_t *)test_poisoned(6 * s.conv_elems);
    s.recurrent = (uint8_t *)test_poisoned(6 * s.recurrent_elems);
    s.k = (uint8_t *)test_poisoned(2 * N_PAGES * s.kv_elems);
    s.v = (uint8_t *)test_poisoned(2 * N_PAGES * s.kv_elems);
    for (int32_t i = 0; i < N_PAGES; i++) {
        pages[i] = i;
    }
    for (size_t i = 0; i < p.n; i++) {
        if (be->ops->check(be, &p.ops[i], &err) != OK) {
            fail_msg("%s", err.text);
        }
    }
    if (be->ops->prepare(be, p.ops, p.n, ROWS_MAX, N_PAGES * KV_PAGE_TOKENS, &err) != OK) {
        fail_msg("%s", err.text);
    }
    for (size_t i = 0; i < STEPS; i++) {
        uint64_t start = clock_now_ns();
        double seconds;

        span.position = i;
        span.state_is_zero = i == 0;
        plan_run(be, &p, &step, &s, NULL);
        seconds = clock_seconds_since(start);
        best = seconds < best ? seconds : best;
    }
    for (size_t i = 0; i < STEPS; i++) {
        span.position = STEPS + i;
        plan_run(be, &p, &step, &s, by_kind);
    }
    printf("demo model shape: best decode step %.0f us (%.0f tok/s); by operation, us a step:\n",
           best * 1e6, 1 / best);
    for (int kind = 0; kind < OP_KIND_COUNT; kind++) {
        printf("  %-10s %7.1f\n", op_kind_name((enum op_kind)kind), by_kind[kind] / STEPS * 1e6);
    }
    memset(by_kind, 0, sizeof by_kind);
    step.n_rows = span.n_rows = ROWS_MAX;
    last = ROWS_MAX - 1;
    for (size_t i = 0; i < PREFILLS; i++) {
        span.position = i * ROWS_MAX;
        span.state_is_zero = i == 0;
        plan_run(be, &p, &step, &s, by_kind);
    }
    printf("prefill of %d x %d tokens, ms by operation:\n", PREFILLS, ROWS_MAX);
    double total = 0;
    for (int kind = 0; kind < OP_KIND_COUNT; kind++) {
        printf("  %-10s %7.2f\n", op_kind_name((enum op_kind)kind), by_kind[kind] * 1e3);
        total += by_kind[kind];
    }
    printf("  total      %7.2f (%.0f tok/s)\n", total * 1e3, PREFILLS * ROWS_MAX / total);
}

int main(int argc, char **argv)
{
    struct backend *be = test_backend(CPU_ISA_AUTO, argc > 1 ? (size_t)atoi(argv[1]) : 0);
    static const enum test_kind kinds[] = {TEST_F32, TEST_BF16, TEST_F16, TEST_INT4, TEST_INT8};
    static const size_t rows[] = {1, 2, 4, 16, 256};

    for (size_t k = 0; k < 5; k++) {
        for (size_t r = 0; r < 5; r++) {
            report_product(be, kinds[k], 2048, 2048, rows[r]);
        }
    }
    report_model(be);
    be->ops->free(be);
    return 0;
}
