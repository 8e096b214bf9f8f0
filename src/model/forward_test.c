/* forward_test.c - steps: what must not depend on company or cuts, and what must stay apart.
 *
 * Runs on the fixtures' checkpoints; the numbers themselves are the golden tests' matter. */
#include "model/model_testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

enum { VOCAB = 512 };

static void open_fixture(struct test_model *t, const char *name, const struct test_setup *setup)
{
    char dir[512];

    fixture_path(dir, name, "");
    test_model_open(t, dir, setup);
}

static void tokens_draw(int32_t *out, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        out[i] = (int32_t)((seed >> 8) % 400);
    }
}

/* ---- cuts ---- */

static void last_logits(float *out, struct test_model *t, const int32_t *tokens, size_t n,
                        size_t window)
{
    struct state_store *store = model_states(t->m);
    struct seq_state *seq;
    struct model_step_result result = {0};
    struct error err = {0};

    assert_int_equal(state_new(&seq, store, &err), OK);
    for (size_t done = 0; done < n;) {
        size_t piece = size_min(window, n - done);
        struct model_span span = {seq, tokens + done, piece, 1};

        assert_int_equal(state_reserve(store, seq, piece, &err), OK);
        if (model_step(t->m, &span, 1, NULL, &result, &err) != OK) {
            fail_msg("%s", err.text);
        }
        assert_int_equal(result.bad_layer[0], -1);
        done += piece;
    }
    memcpy(out, result.logits, VOCAB * sizeof *out);
    state_free(store, seq);
}

/* A long prompt gives the same answer however it is cut into windows. */
static void test_windows(void **state)
{
    enum { LONG = 3000 };
    static const size_t windows[] = {LONG, 1024, 100, 64, 7, 1};
    static int32_t tokens[LONG];
    static float whole[VOCAB], cut[VOCAB];
    struct test_setup setup = {.rows_max = LONG, .context_max = LONG};
    struct test_model t;

    (void)state;
    tokens_draw(tokens, LONG, 5);
    open_fixture(&t, "tiny-qwen3_5-moe", &setup);
    last_logits(whole, &t, tokens, LONG, LONG);
    for (size_t w = 1; w < sizeof windows / sizeof windows[0]; w++) {
        last_logits(cut, &t, tokens, LONG, windows[w]);
        print_message("%d tokens in windows of %zu: %.1e\n", LONG, windows[w],
                      relative_error(cut, whole, VOCAB));
        assert_true(relative_error(cut, whole, VOCAB) <= 1e-5);
    }
    test_model_close(&t);
}

/* ---- company ---- */

enum { N_SEQS = 4, STEPS = 5 };

struct
    script { /* what a sequence does in each step: how many tokens it brings, 0: it is not there */
    size_t n[STEPS];
};

static const struct script scripts[N_SEQS] = {
    {{5, 1, 1, 1, 1}}, {{0, 70, 1, 1, 9}}, {{33, 33, 1, 0, 1}}, {{1, 0, 0, 64, 1}}};

struct history {
    float logits[STEPS][VOCAB];
};

/* Runs the scripts of the sequences in `mask`, all in the same steps. */
static void run_scripts(struct history *out, struct test_model *t, unsigned mask)
{
    struct state_store *store = model_states(t->m);
    struct seq_state *seqs[N_SEQS] = {0};
    size_t done[N_SEQS] = {0};
    static int32_t tokens[N_SEQS][256];
    struct error err = {0};

    for (size_t i = 0; i < N_SEQS; i++) {
        tokens_draw(tokens[i], 256, (uint32_t)i + 11);
        if (mask >> i & 1) {
            assert_int_equal(state_new(&seqs[i], store, &err), OK);
        }
    }
    for (size_t step = 0; step < STEPS; step++) {
        struct model_span spans[N_SEQS];
        size_t who[N_SEQS], n_spans = 0;
        struct model_step_result result;

        for (size_t i = 0; i < N_SEQS; i++) {
            size_t n = scripts[i].n[step];
            if (seqs[i] && n > 0) {
                assert_int_equal(state_reserve(store, seqs[i], n, &err), OK);
                spans[n_spans] = (struct model_span){seqs[i], tokens[i] + done[i], n, 1};
                who[n_spans++] = i;
                done[i] += n;
            }
        }
        if (n_spans == 0) {
            continue;
        }
        if (model_step(t->m, spans, n_spans, NULL, &result, &err) != OK) {
            fail_msg("%s", err.text);
        }
        for (size_t i = 0; i < n_spans; i++) {
            assert_int_equal(result.bad_layer[i], -1);
            memcpy(out[who[i]].logits[step], result.logits + i * VOCAB, VOCAB * sizeof(float));
        }
    }
    for (size_t i = 0; i < N_SEQS; i++) {
        state_free(store, seqs[i]);
    }
}

static void expect_company_harmless(const char *fixture, const struct test_setup *setup)
{
    static const unsigned masks[] = {0x3, 0x6, 0x9, 0xd, 0xf};
    static struct history alone[N_SEQS], together[N_SEQS];
    struct test_model t;

    open_fixture(&t, fixture, setup);
    memset(alone, 0, sizeof alone);
    for (unsigned i = 0; i < N_SEQS; i++) {
        run_scripts(alone, &t, 1u << i);
    }
    for (size_t m = 0; m < sizeof masks / sizeof masks[0]; m++) {
        memset(together, 0, sizeof together);
        run_scripts(together, &t, masks[m]);
        for (unsigned i = 0; i < N_SEQS; i++) {
            if (masks[m] >> i & 1) {
                assert_memory_equal(&together[i], &alone[i], sizeof alone[i]);
            }
        }
    }
    assert_int_equal(state_store_counts(model_states(t.m)).pages_used, 0);
    test_model_close(&t);
}

/* Every sequence gives bit for bit the same logits alone and in any company: all fixtures in float32,
 * the one with most kinds of weights in other types and with other kernels too. */
static void test_company(void **state)
{
    static const struct test_setup plain = {.n_live = N_SEQS};
    static const struct test_setup others[] = {
        {.n_live = N_SEQS, .isa = CPU_ISA_SCALAR},
        {.n_live = N_SEQS, .n_threads = 1},
        {.n_live = N_SEQS, .compute = DTYPE_F16},
        {.n_live = N_SEQS, .compute = DTYPE_BF16, .kv = DTYPE_F8_E4M3, .recurrent = DTYPE_BF16},
    };

    (void)state;
    for (size_t f = 0; f < N_FIXTURES; f++) {
        expect_company_harmless(fixture_names[f], &plain);
    }
    for (size_t s = 0; s < sizeof others / sizeof others[0]; s++) {
        expect_company_harmless("tiny-qwen3_5-moe-gptq-int4-actorder", &others[s]);
    }
}

enum { MANY_LOGITS = 9 };

/* The logits of the last n_logits of n tokens, computed alone. */
static void solo_logits(float *out, struct test_model *t, const int32_t *tokens, size_t n,
                        size_t n_logits)
{
    struct state_store *store = model_states(t->m);
    struct model_span span = {.tokens = tokens, .n_tokens = n, .n_logits = n_logits};
    struct model_step_result result;
    struct error err = {0};

    assert_int_equal(state_new(&span.seq, store, &err), OK);
    assert_int_equal(state_reserve(store, span.seq, n, &err), OK);
    assert_int_equal(model_step(t->m, &span, 1, NULL, &result, &err), OK);
    memcpy(out, result.logits, n_logits * VOCAB * sizeof *out);
    state_free(store, span.seq);
}

/* Spans that want different numbers of logits get their own, in any order: what stands in the result
 * is found by counting the logits of the spans before. */
/* The lists of largest logits agree with the rows. */
static void check_top(const struct model_step_result *result, const float *logits, size_t n_rows)
{
    for (size_t i = 0; i < n_rows; i++) {
        const float *x = logits + i * VOCAB;

        assert_int_equal(result->best[i], eval_argmax(x, VOCAB));
        assert_int_equal(result->top[i].ids[0], result->best[i]);
        for (size_t k = 0; k < BEST_TOP && k < VOCAB; k++) {
            assert_true(result->top[i].values[k] == x[result->top[i].ids[k]]);
            assert_true(k == 0 || result->top[i].values[k] <= result->top[i].values[k - 1]);
        }
    }
}

static void test_logit_counts(void **state)
{
    static const size_t n_tokens[] = {MANY_LOGITS, 6, 4}, n_logits[] = {MANY_LOGITS, 1, 0};
    static const size_t orders[][3] = {{0, 1, 2}, {1, 0, 2}, {2, 0, 1}, {1, 2, 0}, {0, 2, 1}};
    static float alone[3][MANY_LOGITS * VOCAB];
    static int32_t tokens[3][MANY_LOGITS];
    struct test_setup setup = {.n_live = 3};
    struct test_model t;

    (void)state;
    open_fixture(&t, "tiny-qwen3_5-moe", &setup);
    for (size_t i = 0; i < 3; i++) {
        tokens_draw(tokens[i], MANY_LOGITS, (uint32_t)i + 40);
        solo_logits(alone[i], &t, tokens[i], n_tokens[i], n_logits[i]);
    }
    for (size_t o = 0; o < sizeof orders / sizeof orders[0]; o++) {
        struct state_store *store = model_states(t.m);
        struct model_span spans[3];
        const struct model_step_options options = {.no_logits = o % 2 == 1};
        struct model_step_result result;
        struct error err = {0};
        const float *logits;

        for (size_t i = 0; i < 3; i++) {
            size_t who = orders[o][i];
            spans[i] = (struct model_span){
                .tokens = tokens[who], .n_tokens = n_tokens[who], .n_logits = n_logits[who]};
            assert_int_equal(state_new(&spans[i].seq, store, &err), OK);
            assert_int_equal(state_reserve(store, spans[i].seq, n_tokens[who], &err), OK);
        }
        assert_int_equal(model_step(t.m, spans, 3, &options, &result, &err), OK);
        assert_true((result.logits == NULL) == options.no_logits);
        logits = options.no_logits ? model_logits(t.m) : result.logits;
        check_top(&result, logits, MANY_LOGITS + 1);
        for (size_t i = 0; i < 3; i++) {
            size_t n = spans[i].n_logits * VOCAB;
            assert_int_equal(result.bad_layer[i], -1);
            assert_memory_equal(logits, alone[orders[o][i]], n * sizeof *logits);
            logits += n;
            state_free(store, spans[i].seq);
        }
    }
    test_model_close(&t);
}

/* The thread count changes nothing either. */
static void test_threads(void **state)
{
    static int32_t tokens[200];
    static float one[VOCAB], three[VOCAB];

    (void)state;
    tokens_draw(tokens, 200, 3);
    for (size_t f = 0; f < N_FIXTURES; f++) {
        struct test_setup setup = {.n_threads = 1};
        struct test_model t;

        open_fixture(&t, fixture_names[f], &setup);
        last_logits(one, &t, tokens, 200, 100);
        test_model_close(&t);
        setup.n_threads = 3;
        open_fixture(&t, fixture_names[f], &setup);
        last_logits(three, &t, tokens, 200, 100);
        test_model_close(&t);
        assert_memory_equal(one, three, sizeof one);
    }
}

/* A snapshot restored gives the same continuation, bit for bit, as never having left. */
static void test_snapshot(void **state)
{
    struct test_setup setup = {.n_live = 2, .n_snapshots = 1};
    struct test_model t;
    struct state_store *store;
    struct seq_state *a, *b;
    struct state_snapshot *snap;
    struct model_step_result result;
    static int32_t tokens[120];
    static float first[VOCAB];
    struct error err = {0};

    (void)state;
    tokens_draw(tokens, 120, 8);
    open_fixture(&t, "tiny-qwen3_5-moe", &setup);
    store = model_states(t.m);
    assert_int_equal(state_new(&a, store, &err), OK);
    assert_int_equal(state_new(&b, store, &err), OK);
    for (int round = 0; round < 2; round++) {
        struct seq_state *q = round == 0 ? a : b;
        struct model_span span = {q, tokens, 70, 0};

        if (round == 0) {
            assert_int_equal(state_reserve(store, q, 70, &err), OK);
            assert_int_equal(model_step(t.m, &span, 1, NULL, &result, &err), OK);
            assert_int_equal(state_snapshot_new(&snap, store, q, &err), OK);
        } else {
            assert_int_equal(state_restore(store, q, snap, &err), OK);
        }
        span = (struct model_span){q, tokens + 70, 50, 1};
        assert_int_equal(state_reserve(store, q, 50, &err), OK);
        assert_int_equal(model_step(t.m, &span, 1, NULL, &result, &err), OK);
        if (round == 0) {
            memcpy(first, result.logits, sizeof first);
        } else {
            assert_memory_equal(first, result.logits, sizeof first);
        }
    }
    state_snapshot_free(store, snap);
    state_free(store, a);
    state_free(store, b);
    assert_int_equal(state_store_counts(store).pages_used, 0);
    test_model_close(&t);
}

/* ---- values that leave the range ---- */

enum { LOUD_TOKEN = 77, QUIET_TOKEN = 78 };

/* A copy of the dense fixture in which row `row` of the first layer's in_proj_qkv points along what the layer
 * sees for LOUD_TOKEN, so long that the activation there is about twice float16's largest number, and
 * well below it for other tokens. */
static void write_loud_checkpoint(const char *dir, size_t row)
{
    struct checkpoint_edit e;
    char from[512];
    const uint16_t *embedding, *norm;
    uint16_t *matrix;
    struct tensor *t;
    float u[128], mean = 0, norm_u = 0;
    const size_t hidden = 128;

    fixture_path(from, "tiny-qwen3_5-dense", "");
    edit_open(&e, from);
    t = &edit_find(&e, "model.embed_tokens.weight")->tensor;
    assert_int_equal(t->dtype, DTYPE_BF16);
    embedding = (const uint16_t *)t->data + LOUD_TOKEN * hidden;
    norm = edit_find(&e, "model.layers.0.input_layernorm.weight")->tensor.data;
    for (size_t i = 0; i < hidden; i++) {
        u[i] = dtype_load(DTYPE_BF16, embedding, i);
        mean += u[i] * u[i] / (float)hidden;
    }
    for (size_t i = 0; i < hidden; i++) {
        u[i] = u[i] / sqrtf(mean) * (1 + dtype_load(DTYPE_BF16, norm, i));
        norm_u += u[i] * u[i];
    }
    matrix = edit_own(edit_find(&e, "model.layers.0.linear_attn.in_proj_qkv.weight"));
    for (size_t i = 0; i < hidden; i++) { /* row . u = 2 x 65504 */
        dtype_store(DTYPE_BF16, matrix, row * hidden + i, u[i] / norm_u * 131008.0f);
    }
    edit_write(&e, dir);
    edit_close(&e);
}

/* In float16 the loud span is marked with the layer's number and the quiet one does not feel it; in
 * float32 and bfloat16 both are fine. */
static void test_overflow(void **state)
{
    static const enum dtype computes[] = {DTYPE_F16, DTYPE_F32, DTYPE_BF16};
    static const int32_t loud[] = {3, 9, LOUD_TOKEN, 4}, quiet[] = {3, QUIET_TOKEN, 9};
    struct test_dir dir;
    static float alone[VOCAB];

    (void)state;
    test_dir_open(&dir);
    write_loud_checkpoint(dir.path, 2 * 2 * 32 + 5); /* a value row */
    for (size_t c = 0; c < 3; c++) {
        struct test_setup setup = {.compute = computes[c], .n_live = 2};
        struct test_model t;
        struct state_store *store;
        struct model_span spans[2] = {{.tokens = quiet, .n_tokens = 3, .n_logits = 1},
                                      {.tokens = loud, .n_tokens = 4, .n_logits = 1}};
        struct model_step_result result;
        struct error err = {0};

        test_model_open(&t, dir.path, &setup);
        last_logits(alone, &t, quiet, 3, 3);
        store = model_states(t.m);
        for (size_t i = 0; i < 2; i++) {
            assert_int_equal(state_new(&spans[i].seq, store, &err), OK);
            assert_int_equal(state_reserve(store, spans[i].seq, spans[i].n_tokens, &err), OK);
        }
        assert_int_equal(model_step(t.m, spans, 2, NULL, &result, &err), OK);
        assert_int_equal(result.bad_layer[0], -1);
        assert_int_equal(result.bad_layer[1], computes[c] == DTYPE_F16 ? 0 : -1);
        assert_memory_equal(result.logits, alone, sizeof alone);
        for (size_t i = 0; i < 2; i++) {
            state_free(store, spans[i].seq);
        }
        last_logits(alone, &t, quiet, 3,
                    3); /* the poisoned slot and pages are reused: still clean */
        assert_memory_equal(result.logits, alone, sizeof alone);
        test_model_close(&t);
    }
    test_dir_close(&dir);
}

/* A head that is not a number: the span that asked for logits is marked with the number of layers, the
 * one that did not is fine. */
static void test_bad_head(void **state)
{
    static const int32_t tokens[] = {5, 6, 7};
    struct test_setup setup = {.n_live = 2};
    struct checkpoint_edit e;
    struct test_dir dir;
    struct test_model t;
    struct model_span spans[2] = {{.tokens = tokens, .n_tokens = 2, .n_logits = 0},
                                  {.tokens = tokens, .n_tokens = 3, .n_logits = 2}};
    struct model_step_result result;
    struct error err = {0};
    char from[512];

    (void)state;
    fixture_path(from, "tiny-qwen3_5-moe", "");
    edit_open(&e, from);
    dtype_store(DTYPE_BF16, edit_own(edit_find(&e, "lm_head.weight")), VOCAB * 128 - 1, NAN);
    test_dir_open(&dir);
    edit_write(&e, dir.path);
    test_model_open(&t, dir.path, &setup);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(state_new(&spans[i].seq, model_states(t.m), &err), OK);
        assert_int_equal(state_reserve(model_states(t.m), spans[i].seq, 3, &err), OK);
    }
    assert_int_equal(model_step(t.m, spans, 2, NULL, &result, &err), OK);
    assert_int_equal(result.bad_layer[0], -1);
    assert_int_equal(result.bad_layer[1], 4);
    state_free(model_states(t.m), spans[0].seq);
    state_free(model_states(t.m), spans[1].seq);
    test_model_close(&t);
    test_dir_close(&dir);
    edit_close(&e);
}

/* A backend that says of single rows, at the check of a layer or at the head, what a faulty kernel would
 * make true. */
struct planted {
    int32_t layer; /* of the check; N_LAYERS: the row's logits become NaN */
    size_t row;    /* of the step, or of the logits */
};

enum { N_LAYERS = 4 };

static const struct backend_ops *planted_real;
static struct backend_ops planted_ops;
static const struct planted *planted_faults; /* ends with row SIZE_MAX */

static enum status run_planted(struct backend *be, const struct op *op, const struct step *step,
                               const struct state_pools *pools, struct error *err)
{
    enum status rc;

    for (const struct planted *f = planted_faults; op->kind == OP_BEST && f->row != SIZE_MAX; f++) {
        if (f->layer == N_LAYERS) {
            ((float *)op->u.best.in.data)[f->row * VOCAB + 3] = INFINITY;
        }
    }
    rc = planted_real->run(be, op, step, pools, err);

    for (const struct planted *f = planted_faults; op->kind == OP_CHECK && f->row != SIZE_MAX;
         f++) {
        if (f->layer == op->layer && step->bad_layer[f->row] < 0) {
            step->bad_layer[f->row] = (int16_t)op->layer;
        }
    }
    return rc;
}

/* A span is marked with the least of its rows' bad layers, wherever that row stands, and logits that
 * are not finite mark the span that they belong to. */
static void test_bad_layer(void **state)
{
    enum { END = -1 };
    static const struct {
        struct planted faults[4];
        int16_t want[3];
    } cases[] = {
        {{{2, 0}, {1, 2}, {END, SIZE_MAX}}, {1, -1, -1}},
        {{{1, 0}, {2, 2}, {END, SIZE_MAX}}, {1, -1, -1}},
        {{{3, 4}, {0, 5}, {2, 6}, {END, SIZE_MAX}}, {-1, 0, 2}},
        {{{N_LAYERS, 0}, {END, SIZE_MAX}}, {N_LAYERS, -1, -1}}, /* logits: 2 + 1 + 3 rows */
        {{{N_LAYERS, 1}, {END, SIZE_MAX}}, {N_LAYERS, -1, -1}},
        {{{N_LAYERS, 2}, {END, SIZE_MAX}}, {-1, N_LAYERS, -1}},
        {{{N_LAYERS, 3}, {END, SIZE_MAX}}, {-1, -1, N_LAYERS}},
        {{{N_LAYERS, 5}, {1, 4}, {END, SIZE_MAX}}, {-1, 1, N_LAYERS}},
    };
    static const int32_t tokens[] = {5, 6, 7};
    static const size_t n_tokens[] = {3, 3, 3}, n_logits[] = {2, 1, 3};
    struct test_setup setup = {.n_live = 3};
    struct test_model t;

    (void)state;
    open_fixture(&t, "tiny-qwen3_5-moe", &setup);
    planted_real = t.be->ops;
    planted_ops = *t.be->ops;
    planted_ops.run = run_planted;
    t.be->ops = &planted_ops;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct model_span spans[3];
        struct model_step_result result;
        struct error err = {0};

        planted_faults = cases[c].faults;
        for (size_t i = 0; i < 3; i++) {
            spans[i] = (struct model_span){
                .tokens = tokens, .n_tokens = n_tokens[i], .n_logits = n_logits[i]};
            assert_int_equal(state_new(&spans[i].seq, model_states(t.m), &err), OK);
            assert_int_equal(
                state_reserve(model_states(t.m), spans[i].seq, spans[i].n_tokens, &err), OK);
        }
        assert_int_equal(model_step(t.m, spans, 3, NULL, &result, &err), OK);
        for (size_t i = 0; i < 3; i++) {
            assert_int_equal(result.bad_layer[i], cases[c].want[i]);
            state_free(model_states(t.m), spans[i].seq);
        }
    }
    t.be->ops = planted_real;
    test_model_close(&t);
}

/* ---- refusals ---- */

static void test_refused_steps(void **state)
{
    struct test_setup setup = {.rows_max = 8, .context_max = 64};
    struct test_model t;
    struct state_store *store;
    struct seq_state *seq;
    struct model_step_result result;
    static const int32_t good[16] = {1, 2, 3}, bad[2] = {1, VOCAB}, negative[1] = {-1};
    struct error err = {0};

    (void)state;
    open_fixture(&t, "tiny-qwen3_5-dense", &setup);
    store = model_states(t.m);
    assert_int_equal(state_new(&seq, store, &err), OK);
    struct model_span span = {seq, good, 3, 1};
    assert_int_equal(model_step(t.m, &span, 1, NULL, &result, &err),
                     ERR_INTERNAL); /* not reserved */
    assert_int_equal(state_reserve(store, seq, 9, &err), OK);
    assert_int_equal(model_step(t.m, &span, 0, NULL, &result, &err), ERR_LIMIT);
    span.n_logits = 4;
    assert_int_equal(model_step(t.m, &span, 1, NULL, &result, &err), ERR_INTERNAL);
    span = (struct model_span){seq, good, 9, 1};
    assert_int_equal(model_step(t.m, &span, 1, NULL, &result, &err), ERR_LIMIT);
    span = (struct model_span){seq, bad, 2, 1};
    assert_int_equal(model_step(t.m, &span, 1, NULL, &result, &err), ERR_BAD_REQUEST);
    assert_non_null(strstr(err.text, "512"));
    span = (struct model_span){seq, negative, 1, 1};
    assert_int_equal(model_step(t.m, &span, 1, NULL, &result, &err), ERR_BAD_REQUEST);
    assert_int_equal(state_tokens(seq), 0); /* nothing of all that moved the sequence */
    span = (struct model_span){seq, good, 3, 0};
    assert_int_equal(model_step(t.m, &span, 1, NULL, &result, &err), OK);
    assert_int_equal(state_tokens(seq), 3);
    assert_int_equal(state_reserve(store, seq, 8, &err), OK);
    span = (struct model_span){seq, good, 8, 8}; /* as many rows and logits as a step can hold */
    assert_int_equal(model_step(t.m, &span, 1, NULL, &result, &err), OK);
    assert_int_equal(state_tokens(seq), 11);
    assert_int_equal(state_reserve(store, seq, 64 - 11 + 1, &err), ERR_LIMIT);
    assert_int_equal(state_reserve(store, seq, 64 - 11, &err), OK);
    state_free(store, seq);
    test_model_close(&t);
}

/* ---- memory that runs out while loading ---- */

static struct backend_ops failing_ops;
static const struct backend_ops *real_ops;
static size_t n_buffers_left;

static void *buffer_new_failing(struct backend *be, size_t n_bytes)
{
    if (n_buffers_left == 0) {
        return NULL;
    }
    n_buffers_left--;
    return real_ops->buffer_new(be, n_bytes);
}

/* Each of the backend's buffers is refused in turn: a clean error, nothing leaks. */
static void test_no_memory(void **state)
{
    struct cpu_backend_options cpu = {.n_threads = 1};
    struct model_options o = {.kv_dtype = DTYPE_F8_E4M3,
                              .rows_max = 4,
                              .out_rows_max = 1,
                              .budget = {.n_live = 1, .n_tokens = 64, .context_max = 64}};
    struct checkpoint *ck;
    struct backend *be;
    struct model *m = NULL;
    struct error err = {0};
    char dir[512];
    size_t n = 0;

    (void)state;
    fixture_path(dir, "tiny-qwen3_5-dense", "");
    assert_int_equal(checkpoint_open(&ck, dir, NULL, NULL, &err), OK);
    assert_int_equal(cpu_backend_new(&be, &cpu, &err), OK);
    real_ops = be->ops;
    failing_ops = *be->ops;
    failing_ops.buffer_new = buffer_new_failing;
    be->ops = &failing_ops;
    for (; !m; n++) {
        enum status rc;

        n_buffers_left = n;
        rc = model_open(&m, ck, be, &o, NULL, NULL, &err);
        assert_int_equal(rc, m ? OK : ERR_NO_MEMORY);
        assert_in_range(n, 0, 20);
    }
    assert_in_range(n, 8,
                    20); /* two states, two caches with scales, activations: all were refused */
    model_free(m);
    be->ops = real_ops;
    be->ops->free(be);
    checkpoint_close(ck);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows),   cmocka_unit_test(test_company),
        cmocka_unit_test(test_threads),   cmocka_unit_test(test_snapshot),
        cmocka_unit_test(test_overflow),  cmocka_unit_test(test_refused_steps),
        cmocka_unit_test(test_no_memory), cmocka_unit_test(test_bad_head),
        cmocka_unit_test(test_bad_layer), cmocka_unit_test(test_logit_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
