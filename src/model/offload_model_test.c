/* offload_model_test.c - whole models whose experts overflow give the same logits as resident ones.
 *
 * One prompt in a large step, decode steps of one row, and one of two sequences at once, on a card or else
 * on the emulated one; for every way to serve a miss and for no, few, half and all slots. Where experts are
 * fetched the arithmetic is the resident model's; the CPU's agrees within rounding of the sums. So it is where the CPU
 * has a part of a large step. */
#include "model/model_testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_backend.h"
#include "base/size.h"
#include "offload/offload.h"
#ifdef SPILLWAY_HAS_EMULATOR
#include "backend/cuda/emulator/emulator.h"
#endif

enum {
    PROMPT = 19,
    SHORT_PROMPT = 11, /* so few rows that what they chose is asked for */
    SINGLE = 4,        /* steps of one row */
    PAIRS = 3,         /* of two */
    OUTPUTS = 1 + SINGLE + 2 * PAIRS,
    MOST_TOKENS = 32,
};

static const struct cuda_driver *emulator; /* NULL: a card is there */
static bool all_cells;                     /* the emulator's time is for some of them */

static struct test_backends backends[2]; /* with and without graphs */

static void step_run(struct test_model *t, const struct model_span *spans, size_t n, float **out,
                     size_t vocab)
{
    struct model_step_result result;
    struct error err = {0};

    for (size_t i = 0; i < n; i++) {
        assert_int_equal(state_reserve(model_states(t->m), spans[i].seq, spans[i].n_tokens, &err),
                         OK);
    }
    if (model_step(t->m, spans, n, NULL, &result, &err) != OK) {
        fail_msg("%s", err.text);
    }
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(result.bad_layer[i], -1);
    }
    memcpy(*out, result.logits, n * vocab * sizeof **out);
    *out += n * vocab;
}

/* out [OUTPUTS][vocab]. The text goes on whatever the logits say, so that runs can be compared. */
static void model_run(float *out, struct test_model *t, size_t prompt)
{
    struct state_store *store = model_states(t->m);
    size_t vocab = model_get_config(t->m)->vocab_size;
    int32_t tokens[2][MOST_TOKENS];
    struct seq_state *seq[2];
    struct error err = {0};
    size_t at = prompt;
    uint32_t random = 1;

    for (size_t i = 0; i < sizeof tokens / sizeof(int32_t); i++) {
        random = random * 1664525u + 1013904223u;
        tokens[i / MOST_TOKENS][i % MOST_TOKENS] = (int32_t)((random >> 8) % 400);
    }
    assert_int_equal(state_new(&seq[0], store, &err), OK);
    assert_int_equal(state_new(&seq[1], store, &err), OK);
    step_run(t, &(struct model_span){seq[0], tokens[0], prompt, 1}, 1, &out, vocab);
    for (size_t i = 0; i < SINGLE; i++, at++) {
        step_run(t, &(struct model_span){seq[0], &tokens[0][at], 1, 1}, 1, &out, vocab);
    }
    for (size_t i = 0; i < PAIRS; i++, at++) {
        const struct model_span spans[2] = {{seq[0], &tokens[0][at], 1, 1},
                                            {seq[1], &tokens[1][i], 1, 1}};

        step_run(t, spans, 2, &out, vocab);
    }
    state_free(store, seq[0]);
    state_free(store, seq[1]);
}

/* ---- one cell ---- */

struct cell {
    const char *name; /* of the model */
    const char *dir;
    enum dtype compute;
    bool no_graphs;
    enum expert_miss miss;
    size_t quarters; /* of all experts that have a slot */
    bool few;        /* only a quarter */
    size_t prompt;
    bool no_overlap;
};

static void model_make(struct test_model *t, const struct cell *c, const struct model_offload *o)
{
    struct test_setup setup = {.compute = c->compute,
                               .device = c->no_graphs ? TEST_CUDA_NO_GRAPHS : TEST_CUDA,
                               .driver = emulator,
                               .rows_max = 32,
                               .n_live = 2,
                               .context_max = 128,
                               .shared = &backends[c->no_graphs],
                               .offload = o};

    test_model_open(t, c->dir, &setup);
}

static struct offload_stats stats_check(const struct cell *c, const struct test_model *t)
{
    struct offload_stats s;

    assert_true(model_offload_stats(t->m, &s));
    assert_int_equal(s.n_steps, SINGLE + PAIRS);
    assert_int_equal(s.n_large_steps, 1);
    if (c->quarters > 0) { /* else what is not the CPU's is read in place */
        assert_true(s.n_hits + s.n_fetched + s.n_cpu > 0);
    }
    if (c->miss == EXPERT_MISS_FETCH) {
        assert_int_equal(s.n_cpu + s.n_large_cpu, 0);
    }
    if (c->miss == EXPERT_MISS_CPU || c->quarters == 0) { /* nothing is kept */
        assert_int_equal(s.n_fetched, s.n_in_place);
    }
    if (c->quarters == 4) {
        assert_int_equal(s.n_fetched + s.n_cpu + s.n_streamed + s.n_large_cpu, 0);
    }
    return s;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* In float32 the worst row's error; in half types, where a row may choose other experts, that of the
 * row that three quarters are better than. */
static double error_of(const struct cell *c, const float *got, const float *want, size_t vocab)
{
    double e[OUTPUTS];

    for (size_t i = 0; i < OUTPUTS; i++) {
        e[i] = relative_error(got + i * vocab, want + i * vocab, vocab);
        if (!(e[i] >= 0)) {
            return e[i];
        }
    }
    qsort(e, OUTPUTS, sizeof *e, compare);
    return e[c->compute == DTYPE_F32 ? OUTPUTS - 1 : OUTPUTS * 3 / 4];
}

static double limit_of(const struct cell *c)
{
    return c->compute == DTYPE_F32 ? 2e-5 : c->compute == DTYPE_F16 ? 4e-3 : 3e-2;
}

/* Every bit is the same when all is computed by the card. */
static bool is_good(const struct cell *c, const float *got, const float *want, size_t vocab)
{
    return c->miss == EXPERT_MISS_FETCH ? memcmp(got, want, OUTPUTS * vocab * sizeof *got) == 0
                                        : error_of(c, got, want, vocab) <= limit_of(c);
}

/* Whether the cell's logits are the resident model's. n_beside: experts that the CPU computed in the large step. */
static bool cell_run(const struct cell *c, const float *want, size_t vocab, size_t n_experts,
                     struct backend *cpu, uint64_t *n_beside)
{
    struct model_offload o = {.n_slots = n_experts * c->quarters / 4,
                              .n_staging = 3,
                              .miss = c->miss,
                              .no_overlap = c->no_overlap,
                              .cpu = c->miss == EXPERT_MISS_FETCH ? NULL : cpu};
    float *got = calloc(OUTPUTS * vocab, sizeof *got);
    struct offload_stats s;
    struct test_model t;
    bool good;

    assert_non_null(got);
    model_make(&t, c, &o);
    model_run(got, &t, c->prompt);
    s = stats_check(c, &t);
    *n_beside = s.n_large_cpu;
    test_model_close(&t);
    good = is_good(c, got, want, vocab);
    print_message("%-10s %-9s %-9s %-6s %3zu slots %3llu streamed %3llu beside them %9.2e %s\n",
                  c->name, dtype_name(c->compute), c->no_graphs ? "no graphs" : "graphs",
                  expert_miss_name(c->miss), o.n_slots, (unsigned long long)s.n_streamed,
                  (unsigned long long)s.n_large_cpu, error_of(c, got, want, vocab),
                  good ? "" : "FAILED");
    free(got);
    return good;
}

/* ---- one model and type ---- */

/* *want is the card's resident model; it agrees with the CPU's. */
static void resident_run(float **want, size_t *vocab, size_t *n_experts, const struct cell *c)
{
    struct test_setup setup;
    struct test_model t;
    const struct op *ops;
    size_t n_ops;
    float *on_cpu;
    double error;

    model_make(&t, c, NULL);
    *vocab = model_get_config(t.m)->vocab_size;
    *want = calloc(OUTPUTS * *vocab, sizeof **want);
    on_cpu = calloc(OUTPUTS * *vocab, sizeof *on_cpu);
    assert_non_null(*want);
    assert_non_null(on_cpu);
    model_run(*want, &t, c->prompt);
    *n_experts = 0;
    ops = model_plan(t.m, &n_ops);
    for (size_t i = 0; i < n_ops; i++) {
        *n_experts += ops[i].kind == OP_EXPERTS ? ops[i].u.experts.n_experts : 0;
    }
    test_model_close(&t);

    setup =
        (struct test_setup){.compute = c->compute, .rows_max = 32, .n_live = 2, .context_max = 128};
    test_model_open(&t, c->dir, &setup);
    model_run(on_cpu, &t, c->prompt);
    test_model_close(&t);
    error = error_of(c, *want, on_cpu, *vocab);
    print_message("%-10s %-9s %-9s resident, against the CPU %9.2e\n", c->name,
                  dtype_name(c->compute), c->no_graphs ? "no graphs" : "graphs", error);
    assert_true(error <= limit_of(c));
    free(on_cpu);
}

static size_t cells_run(struct cell c)
{
    static const enum expert_miss misses[] = {EXPERT_MISS_FETCH, EXPERT_MISS_CPU, EXPERT_MISS_AUTO};
    struct cpu_backend_options options = {.n_threads = 2};
    struct error err = {0};
    struct backend *cpu;
    size_t n_failed = 0, vocab, n_experts;
    uint64_t n_beside;
    float *want;

    assert_int_equal(cpu_backend_new(&cpu, &options, &err), OK);
    resident_run(&want, &vocab, &n_experts, &c);
    for (size_t m = 0; m < sizeof misses / sizeof *misses; m++) {
        for (size_t quarters = 0; quarters <= 4; quarters += quarters == 2 ? 2 : 1) {
            if (c.few && quarters != 1) {
                continue;
            }
            c.miss = misses[m];
            c.quarters = quarters;
            n_failed += !cell_run(&c, want, vocab, n_experts, cpu, &n_beside);
        }
    }
    free(want);
    cpu->ops->free(cpu);
    return n_failed;
}

static void test_same_logits(void **state)
{
    static const enum dtype computes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    char fixture[512], ordered[512];
    size_t n_failed = 0;

    (void)state;
    fixture_path(fixture, "tiny-qwen3_5-moe-gptq-int4", "");
    fixture_path(ordered, "tiny-qwen3_5-moe-gptq-int4-actorder", "");
    for (size_t i = 0; i < sizeof computes / sizeof *computes; i++) {
        for (int no_graphs = 0; no_graphs < 2; no_graphs++) {
            bool is_first = i == 0 && no_graphs == 0;

            if (all_cells || is_first || (i == 2 && no_graphs)) {
                n_failed += cells_run((struct cell){.name = "fixture",
                                                    .dir = fixture,
                                                    .compute = computes[i],
                                                    .no_graphs = no_graphs != 0,
                                                    .few = !all_cells && !is_first,
                                                    .prompt = PROMPT});
            }
            if (all_cells || is_first) {
                n_failed += cells_run((struct cell){.name = "act-order",
                                                    .dir = ordered,
                                                    .compute = computes[i],
                                                    .no_graphs = no_graphs != 0,
                                                    .few = !all_cells,
                                                    .prompt = PROMPT});
            }
            if (all_cells) {
                n_failed += cells_run((struct cell){.name = "rill",
                                                    .dir = RILL_DIR,
                                                    .compute = computes[i],
                                                    .no_graphs = no_graphs != 0,
                                                    .prompt = PROMPT});
            }
        }
    }
    assert_int_equal(n_failed, 0);
}

/* ---- large steps of few rows, and without overlap ---- */

/* Without slots nothing measured the link, which is taken for slow: the CPU has a part of every layer. */
static void test_short_prompt(void **state)
{
    static const struct cell all[] = {
        {.miss = EXPERT_MISS_AUTO},
        {.miss = EXPERT_MISS_CPU, .no_overlap = true},
        {.miss = EXPERT_MISS_FETCH},
        {.miss = EXPERT_MISS_FETCH, .no_overlap = true, .quarters = 1, .prompt = PROMPT},
    };
    struct cpu_backend_options options = {.n_threads = 2};
    size_t vocab[2], n_experts;
    struct error err = {0};
    struct backend *cpu;
    struct cell c = {.name = "fixture", .compute = DTYPE_F32};
    float *want[2];
    char dir[512];

    (void)state;
    fixture_path(dir, "tiny-qwen3_5-moe-gptq-int4", "");
    c.dir = dir;
    assert_int_equal(cpu_backend_new(&cpu, &options, &err), OK);
    for (size_t i = 0; i < 2; i++) {
        c.prompt = i ? PROMPT : SHORT_PROMPT;
        resident_run(&want[i], &vocab[i], &n_experts, &c);
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        bool is_short = all[i].prompt == 0;
        uint64_t n_beside;

        c = all[i];
        c.name = is_short ? "short" : "turns";
        c.dir = dir;
        c.compute = DTYPE_F32;
        c.prompt = is_short ? SHORT_PROMPT : PROMPT;
        assert_true(cell_run(&c, want[!is_short], vocab[0], n_experts, cpu, &n_beside));
        assert_true((n_beside > 0) == (c.miss != EXPERT_MISS_FETCH));
    }
    free(want[0]);
    free(want[1]);
    cpu->ops->free(cpu);
}

/* ---- refusals ---- */

static void test_refused(void **state)
{
    struct model_offload o = {.n_slots = 8, .miss = EXPERT_MISS_FETCH};
    struct test_setup setup = {.compute = DTYPE_F32, .offload = &o};
    struct error err;
    char dir[512];

    (void)state;
    fixture_path(dir, "tiny-qwen3_5-moe-gptq-int4", "");
    assert_int_equal(test_model_refused(dir, &setup, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "the cpu backend has no way for it"));

    setup.device = TEST_CUDA;
    setup.driver = emulator;
    fixture_path(dir, "tiny-qwen3_5-moe", "");
    assert_int_equal(test_model_refused(dir, &setup, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "layer 0: its experts are not quantised"));
}

/* Layers that may not overflow are on the card as ever; none that may: nothing overflows. */
static void test_some_layers(void **state)
{
    enum { LAYERS = 4 };
    bool may[LAYERS] = {false, true, false, true};
    struct model_offload o = {
        .n_slots = 4, .n_staging = 2, .miss = EXPERT_MISS_FETCH, .may_overflow = may};
    struct cell c = {.name = "fixture", .compute = DTYPE_F32, .prompt = PROMPT};
    struct offload_stats s;
    struct test_model t;
    const struct op *ops;
    size_t n_ops, vocab, n_experts, n_home = 0;
    float *want, *got;
    char dir[512];

    (void)state;
    fixture_path(dir, "tiny-qwen3_5-moe-gptq-int4", "");
    c.dir = dir;
    resident_run(&want, &vocab, &n_experts, &c);
    got = calloc(OUTPUTS * vocab, sizeof *got);
    assert_non_null(got);
    model_make(&t, &c, &o);
    model_run(got, &t, c.prompt);
    assert_true(model_offload_stats(t.m, &s));
    assert_int_equal(s.n_layers, 2);
    ops = model_plan(t.m, &n_ops);
    for (size_t i = 0; i < n_ops; i++) {
        const struct op_experts *u = &ops[i].u.experts;

        if (ops[i].kind == OP_EXPERTS) {
            assert_int_equal(u->home != NULL, may[ops[i].layer]);
            if (u->home) {
                assert_int_equal(u->home_layer, n_home);
                assert_ptr_equal(u->experts[0].gate.data, u->home->blocks[n_home]);
                n_home++;
            }
        }
    }
    assert_int_equal(n_home, 2);
    test_model_close(&t);
    assert_true(is_good(&c, got, want, vocab));

    may[1] = may[3] = false;
    model_make(&t, &c, &o);
    assert_false(model_offload_stats(t.m, &s));
    test_model_close(&t);
    free(want);
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_some_layers),
        cmocka_unit_test(test_same_logits),
        cmocka_unit_test(test_short_prompt),
    };
    char why[256];
    int rc;

    all_cells = cuda_is_there(why, sizeof why);
#ifdef SPILLWAY_HAS_EMULATOR
    emulator = all_cells ? NULL : cuda_emulator_driver();
#endif
    if (!all_cells && !emulator) {
        fprintf(stderr, "skipped: %s\n", why);
        return 77;
    }
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    test_backends_close(&backends[0]);
    test_backends_close(&backends[1]);
    return rc;
}
