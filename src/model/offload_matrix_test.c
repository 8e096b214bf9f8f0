/* offload_matrix_test.c - models whose experts overflow against resident ones, over all that may be combined.
 *
 *     offload_matrix_test [cuda [FOLDER ...]]
 *
 * Place:  model. On a card ("cuda"): every cell, over the demo model and the folders given. Without: a few
 *         cells of the tiny fixture on the emulated card.
 * Cells:  share of experts with a slot x who serves a miss x activations, all of them; KV type, graphs and
 *         groups of layers are dealt out so that every pair of levels occurs, which is checked first.
 * Run:    four prompts, in steps of their own, one of them small enough to be a small step; then steps of
 *         one sequence, then of four. The tokens are those that the resident model of the same types
 *         chooses, so that every step can be compared.
 * Judged: where misses are fetched, or nothing can miss, the logits are the resident model's bit for bit.
 *         Where the CPU computes misses: in float32 within a relative error per row, and the same greedy
 *         tokens; in half types, where its activations are int8, by divergence and, for the trained model, by
 *         how often the most likely token is the same. */
#include "model/model_testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_backend.h"
#include "base/size.h"
#include "offload/budget.h"
#ifdef SPILLWAY_HAS_EMULATOR
#include "backend/cuda/emulator/emulator.h"
#endif

enum { PROMPTS_MAX = 4, LAYERS_MAX = 128, STAGING = 5 };

static const double F32_LIMIT = 1e-4, KL_LIMIT = 0.01, TOP1_LEAST = 0.97;

struct text_shape {
    size_t n_prompts, prompt[PROMPTS_MAX]; /* tokens */
    size_t alone, together;                /* steps */
};
static const struct text_shape card_shape = {4, {37, 5, 70, 12}, 16, 64},
                               emulated_shape = {2, {9, 3}, 2, 2};

static const struct text_shape *shape;
static const struct cuda_driver *emulator; /* NULL: a card is there */
static struct test_backends backends[2];   /* with graphs, and without */
static struct backend *cpus[2];            /* float32 and int8 activations */

/* ---- cells ---- */

enum factor { SLOTS, MISS, COMPUTE, KV, GRAPHS, GROUPS, FACTORS };
static const size_t n_levels[FACTORS] = {5, 3, 3, 2, 2, 3};
static const size_t slot_shares[] = {0, 10, 25, 50, 100}; /* % */
static const enum expert_miss misses[] = {EXPERT_MISS_FETCH, EXPERT_MISS_CPU, EXPERT_MISS_AUTO};
static const enum dtype computes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
static const enum dtype kvs[] = {DTYPE_NONE, DTYPE_F8_E4M3};
static const size_t group_sizes[] = {0, 1, 4};
enum { CELLS = 45 };

struct cell {
    size_t level[FACTORS];
};

static struct cell cell_at(size_t i)
{
    size_t s = i % 5, m = i / 5 % 3, d = i / 15;

    return (struct cell){{s, m, d, (s + m + d) % 2, (s + d) % 2, (s + m + 2 * d) % 3}};
}

static void test_every_pair_occurs(void **state)
{
    (void)state;
    for (size_t a = 0; a < FACTORS; a++) {
        for (size_t b = a + 1; b < FACTORS; b++) {
            for (size_t pair = 0; pair < n_levels[a] * n_levels[b]; pair++) {
                bool occurs = false;

                for (size_t i = 0; i < CELLS; i++) {
                    struct cell c = cell_at(i);
                    occurs = occurs ||
                             (c.level[a] == pair / n_levels[b] && c.level[b] == pair % n_levels[b]);
                }
                if (!occurs) {
                    fail_msg("factors %zu and %zu: no cell has levels %zu and %zu", a, b,
                             pair / n_levels[b], pair % n_levels[b]);
                }
            }
        }
    }
}

/* ---- a run ---- */

struct reference {                             /* of a resident model of some types */
    size_t vocab, n_rows, n_layers, n_experts; /* n_experts: of a layer */
    bool has_experts[LAYERS_MAX];
    float *logits;   /* [n_rows][vocab] in the order in which steps give them */
    int32_t *chosen; /* [n_rows] greedy */
};

struct score {
    size_t n_rows, n_equal, n_same; /* rows bit for bit; the same greedy token */
    double worst, kl;               /* relative error of a row; sum of divergences */
    struct offload_stats stats;
};

struct run {
    struct test_model *t;
    struct reference *ref;
    struct score *score; /* NULL: the run makes the reference */
    bool want_kl;
    size_t row;
};

static double divergence(const float *want, const float *got, size_t n)
{
    double sum_want = 0, sum_got = 0, kl = 0, log_want, log_got;
    float most_want = want[0], most_got = got[0];

    for (size_t i = 1; i < n; i++) {
        most_want = fmaxf(most_want, want[i]);
        most_got = fmaxf(most_got, got[i]);
    }
    for (size_t i = 0; i < n; i++) {
        sum_want += exp((double)want[i] - (double)most_want);
        sum_got += exp((double)got[i] - (double)most_got);
    }
    log_want = log(sum_want) + (double)most_want;
    log_got = log(sum_got) + (double)most_got;
    for (size_t i = 0; i < n; i++) {
        double p = (double)want[i] - log_want;
        kl += exp(p) * (p - ((double)got[i] - log_got));
    }
    return kl;
}

static void row_note(struct run *r, const float *logits, int32_t best)
{
    struct reference *ref = r->ref;
    float *want = ref->logits + r->row * ref->vocab;
    size_t n_bytes = ref->vocab * sizeof *logits;

    assert_true(r->row < ref->n_rows && best >= 0);
    if (!r->score) {
        memcpy(want, logits, n_bytes);
        ref->chosen[r->row] = best;
    } else {
        bool is_equal = memcmp(want, logits, n_bytes) == 0;

        r->score->n_rows++;
        r->score->n_equal += is_equal;
        r->score->n_same += best == ref->chosen[r->row];
        if (!is_equal) {
            r->score->worst = fmax(r->score->worst, relative_error(logits, want, ref->vocab));
            r->score->kl += r->want_kl ? divergence(want, logits, ref->vocab) : 0;
        }
    }
    r->row++;
}

static void step_run(struct run *r, const struct model_span *spans, size_t n)
{
    struct model_step_result result;
    struct error err = {0};

    for (size_t i = 0; i < n; i++) {
        assert_int_equal(
            state_reserve(model_states(r->t->m), spans[i].seq, spans[i].n_tokens, &err), OK);
    }
    if (model_step(r->t->m, spans, n, NULL, &result, &err) != OK) {
        fail_msg("%s", err.text);
    }
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(result.bad_layer[i], -1);
        row_note(r, result.logits + i * r->ref->vocab, result.best[i]);
    }
}

static void prompt_fill(int32_t *tokens, size_t n, size_t vocab, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = (int32_t)((seed >> 33) % vocab);
    }
}

/* The reference's token after the last step of each sequence is what comes next. */
static void text_run(struct run *r)
{
    struct state_store *store = model_states(r->t->m);
    struct seq_state *seq[PROMPTS_MAX];
    int32_t next[PROMPTS_MAX], tokens[128];
    struct error err = {0};

    for (size_t i = 0; i < shape->n_prompts; i++) {
        prompt_fill(tokens, shape->prompt[i], r->ref->vocab, i + 1);
        assert_int_equal(state_new(&seq[i], store, &err), OK);
        step_run(r, &(struct model_span){seq[i], tokens, shape->prompt[i], 1}, 1);
        next[i] = r->ref->chosen[r->row - 1];
    }
    for (size_t t = 0; t < shape->alone; t++) {
        step_run(r, &(struct model_span){seq[0], &next[0], 1, 1}, 1);
        next[0] = r->ref->chosen[r->row - 1];
    }
    for (size_t t = 0; t < shape->together; t++) {
        struct model_span spans[PROMPTS_MAX];

        for (size_t i = 0; i < shape->n_prompts; i++) {
            spans[i] = (struct model_span){seq[i], &next[i], 1, 1};
        }
        step_run(r, spans, shape->n_prompts);
        for (size_t i = 0; i < shape->n_prompts; i++) {
            next[i] = r->ref->chosen[r->row - shape->n_prompts + i];
        }
    }
    for (size_t i = 0; i < shape->n_prompts; i++) {
        state_free(store, seq[i]);
    }
}

/* ---- models ---- */

static void model_make(struct test_model *t, const char *dir, const struct cell *c,
                       const struct model_offload *o)
{
    bool no_graphs = o && c->level[GRAPHS] == 1;
    struct test_setup setup = {.compute = computes[c->level[COMPUTE]],
                               .kv = kvs[c->level[KV]],
                               .device = no_graphs ? TEST_CUDA_NO_GRAPHS : TEST_CUDA,
                               .driver = emulator,
                               .rows_max = 128,
                               .n_live = PROMPTS_MAX,
                               .context_max = 256,
                               .n_threads = emulator ? 2 : 8,
                               .shared = &backends[no_graphs],
                               .offload = o};

    test_model_open(t, dir, &setup);
}

static void reference_make(struct reference *ref, const char *dir, const struct cell *c)
{
    struct run r = {.ref = ref};
    struct test_model t;
    const struct op *ops;
    size_t n_ops;

    model_make(&t, dir, c, NULL);
    *ref = (struct reference){.vocab = model_get_config(t.m)->vocab_size,
                              .n_layers = model_get_config(t.m)->n_layers};
    ref->n_rows = shape->n_prompts + shape->alone + shape->together * shape->n_prompts;
    ref->logits = calloc(ref->n_rows * ref->vocab, sizeof *ref->logits);
    ref->chosen = calloc(ref->n_rows, sizeof *ref->chosen);
    assert_true(ref->logits && ref->chosen && ref->n_layers <= LAYERS_MAX);
    ops = model_plan(t.m, &n_ops);
    for (size_t i = 0; i < n_ops; i++) {
        if (ops[i].kind == OP_EXPERTS) {
            ref->has_experts[ops[i].layer] = true;
            ref->n_experts = ops[i].u.experts.n_experts;
        }
    }
    r.t = &t;
    text_run(&r);
    assert_int_equal(r.row, ref->n_rows);
    test_model_close(&t);
}

static void reference_free(struct reference *ref)
{
    free(ref->logits);
    free(ref->chosen);
}

/* ---- one cell ---- */

static bool can_miss(const struct cell *c)
{
    return slot_shares[c->level[SLOTS]] < 100;
}

/* What was counted must agree with what was allowed. */
static bool stats_are_right(const struct cell *c, const struct offload_stats *s, size_t n_slots)
{
    enum expert_miss miss = misses[c->level[MISS]];

    return s->n_slots == n_slots && s->n_steps > 0 &&
           (miss != EXPERT_MISS_FETCH || s->n_cpu + s->n_large_cpu == 0) &&
           (miss != EXPERT_MISS_CPU || s->n_fetched == 0) &&
           (can_miss(c) || s->n_fetched + s->n_cpu + s->n_streamed + s->n_large_cpu == 0);
}

static bool score_passes(const struct cell *c, const struct score *s, bool is_trained)
{
    double n = (double)s->n_rows;

    if (misses[c->level[MISS]] == EXPERT_MISS_FETCH || !can_miss(c)) {
        return s->n_equal == s->n_rows;
    }
    if (computes[c->level[COMPUTE]] == DTYPE_F32) {
        return s->worst <= F32_LIMIT && s->n_same == s->n_rows;
    }
    return s->kl / n <= KL_LIMIT && (!is_trained || (double)s->n_same / n >= TOP1_LEAST);
}

static void cell_print(const struct cell *c, const struct score *s, const char *verdict)
{
    const struct offload_stats *o = &s->stats;
    double asked = (double)(o->n_hits + o->n_fetched + o->n_cpu);

    print_message(
        "%5zu %% %-6s %-9s %-8s %-9s %5zu %6.1f %7llu %7llu %7llu %5zu/%zu %9.2e %6.2f %9.2e "
        "%s\n",
        slot_shares[c->level[SLOTS]], expert_miss_name(misses[c->level[MISS]]),
        dtype_name(computes[c->level[COMPUTE]]), c->level[KV] ? "fp8_e4m3" : "auto",
        c->level[GRAPHS] ? "no graphs" : "graphs", group_sizes[c->level[GROUPS]],
        asked > 0 ? 100 * (double)o->n_hits / asked : 0, (unsigned long long)o->n_fetched,
        (unsigned long long)o->n_cpu, (unsigned long long)o->n_streamed, s->n_equal, s->n_rows,
        s->worst, 100 * (double)s->n_same / (double)s->n_rows, s->kl / (double)s->n_rows, verdict);
}

static bool cell_run(const char *dir, const struct cell *c, struct reference *ref, bool is_trained)
{
    bool is_f32 = computes[c->level[COMPUTE]] == DTYPE_F32, passed, counted;
    bool may[LAYERS_MAX] = {false};
    struct model_offload o = {.n_staging = STAGING,
                              .miss = misses[c->level[MISS]],
                              .may_overflow = c->level[GROUPS] ? may : NULL,
                              .cpu = c->level[MISS] == 0 ? NULL : cpus[is_f32 ? 0 : 1]};
    struct score score = {0};
    struct test_model t;
    struct run r = {.t = &t, .ref = ref, .score = &score, .want_kl = !is_f32};
    size_t n_experts = 0;

    for (size_t i = 0; i < ref->n_layers; i++) {
        may[i] = budget_group_selects(i, group_sizes[c->level[GROUPS]], 1);
        n_experts += may[i] && ref->has_experts[i] ? ref->n_experts : 0;
    }
    o.n_slots = (n_experts * slot_shares[c->level[SLOTS]] + 99) / 100;
    model_make(&t, dir, c, &o);
    text_run(&r);
    assert_true(model_offload_stats(t.m, &score.stats));
    test_model_close(&t);
    counted = stats_are_right(c, &score.stats, o.n_slots);
    passed = score_passes(c, &score, is_trained);
    cell_print(c, &score, !counted ? "FAILED: counts" : passed ? "" : "FAILED");
    return counted && passed;
}

/* ---- all cells of a model ---- */

static size_t model_run(const char *dir, bool is_trained, size_t every)
{
    size_t n_failed = 0, n_types = n_levels[COMPUTE] * n_levels[KV];

    print_message("%s\n%7s %-6s %-9s %-8s %-9s %5s %6s %7s %7s %7s %9s %9s %6s %9s\n", dir, "slots",
                  "miss", "compute", "KV", "", "group", "hit %", "fetched", "cpu", "stream",
                  "equal", "worst", "top-1", "KL");
    for (size_t type = 0; type < n_types; type++) {
        struct reference ref = {0};

        for (size_t i = 0; i < CELLS; i++) {
            struct cell c = cell_at(i);

            if (c.level[COMPUTE] * n_levels[KV] + c.level[KV] != type || i % every != 0) {
                continue;
            }
            if (!ref.logits) {
                reference_make(&ref, dir, &c);
            }
            n_failed += !cell_run(dir, &c, &ref, is_trained);
        }
        reference_free(&ref);
    }
    return n_failed;
}

static char **folders; /* of more models */
static int n_folders;

static void test_cells(void **state)
{
    char fixture[512];
    size_t n_failed = 0;

    (void)state;
    if (emulator) {
        fixture_path(fixture, "tiny-qwen3_5-moe-gptq-int4", "");
        n_failed = model_run(fixture, false, 7);
    } else {
        n_failed = model_run(RILL_DIR, true, 1);
    }
    for (int i = 0; i < n_folders; i++) {
        n_failed += model_run(folders[i], false, 1);
    }
    assert_int_equal(n_failed, 0);
}

static int backends_make(void **state)
{
    static const enum cpu_activations activations[] = {CPU_ACTIVATIONS_F32, CPU_ACTIVATIONS_INT8};
    struct error err;

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const struct cpu_backend_options o = {.n_threads = emulator ? 2 : 8,
                                              .activations = activations[i]};
        if (cpu_backend_new(&cpus[i], &o, &err) != OK) {
            return -1;
        }
    }
    return 0;
}

static int backends_free(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        test_backends_close(&backends[i]);
        if (cpus[i]) {
            cpus[i]->ops->free(cpus[i]);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pair_occurs),
        cmocka_unit_test(test_cells),
    };
    char why[256] = "no card was asked for, and there is no emulated one";

    if (argc > 1 && strcmp(argv[1], "cuda") == 0) {
        if (!cuda_is_there(why, sizeof why)) {
            fprintf(stderr, "skipped: %s\n", why);
            return 77;
        }
        folders = argv + 2;
        n_folders = argc - 2;
        shape = &card_shape;
    } else {
#ifdef SPILLWAY_HAS_EMULATOR
        emulator = cuda_emulator_driver();
#endif
        shape = &emulated_shape;
        if (!emulator) {
            fprintf(stderr, "skipped: %s\n", why);
            return 77;
        }
    }
    return cmocka_run_group_tests(tests, backends_make, backends_free);
}
