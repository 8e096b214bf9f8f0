/* engine_model_test.c - the engine over real models: the recorded answers of the demo model, the same
 * text in any company, faults of real weights, and the self-test.
 *
 * Place: runtime, cmocka. Equality is exact: tokens and, as float bits, their log probabilities. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend/cpu/cpu_backend.h"
#include "base/file_map.h"
#include "base/json.h"
#include "formats/safetensors.h"
#include "runtime/engine.h"
#include "runtime/selftest.h"

#define RILL_DIR SPILLWAY_SOURCE_DIR "/models/rill"
#define MOE_DIR  SPILLWAY_SOURCE_DIR "/tests/golden/tiny-qwen3_5-moe"

enum { WAIT_MS = 120000, TOKENS_MAX = 64, REQUESTS_MAX = 16, EOS_RILL = 4085 };
enum { RECORDED_MAX = 16, RECORDED_STRIDE = 3 }; /* tokens compared, of every third answer */

struct rig {
    struct checkpoint *checkpoint;
    struct backend *backend;
    struct model *model;
    struct tokenizer *tokenizer;
    struct engine *engine;
    struct engine_port *port;
};

#define MUST(call)                                                                                 \
    do {                                                                                           \
        struct error err = {0};                                                                    \
        if ((call) != OK) {                                                                        \
            fail_msg("%s: %s", #call, err.text);                                                   \
        }                                                                                          \
    } while (0)

static void open_model_with(struct rig *r, const char *dir, size_t n_live, size_t rows_max,
                            enum cpu_activations activations)
{
    struct cpu_backend_options cpu = {.n_threads = 2, .activations = activations};
    struct model_options o = {.rows_max = rows_max, .out_rows_max = n_live};

    *r = (struct rig){0};
    o.budget = (struct state_budget){.n_live = n_live, .n_tokens = 8192, .context_max = 2048};
    MUST(checkpoint_open(&r->checkpoint, dir, NULL, NULL, &err));
    MUST(cpu_backend_new(&r->backend, &cpu, &err));
    o.pool = cpu_backend_pool(r->backend);
    MUST(model_open(&r->model, r->checkpoint, r->backend, &o, NULL, NULL, &err));
}

static void open_model(struct rig *r, const char *dir, size_t n_live, size_t rows_max)
{
    open_model_with(r, dir, n_live, rows_max, CPU_ACTIVATIONS_F32);
}

static void start_engine(struct rig *r, const char *dir, size_t max_running, size_t chunk_tokens)
{
    const int32_t eos[] = {EOS_RILL};
    struct engine_options o = {.max_running = max_running,
                               .max_queued = REQUESTS_MAX,
                               .chunk_tokens = chunk_tokens,
                               .max_prefill_tokens = 2 * chunk_tokens,
                               .context_length = 2048};
    char path[512];

    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    if (!r->tokenizer) {
        MUST(tokenizer_load(&r->tokenizer, path, &err));
    }
    MUST(engine_new(&r->engine, r->model, r->tokenizer, eos, 1, &o, &err));
    MUST(engine_port_new(&r->port, r->engine, &err));
    MUST(engine_start(r->engine, &err));
}

static void stop_engine(struct rig *r)
{
    struct state_counts counts;

    engine_free(r->engine);
    engine_port_free(r->port);
    r->engine = NULL;
    r->port = NULL;
    counts = state_store_counts(model_states(r->model));
    assert_int_equal(counts.live_used, 0);
    assert_int_equal(counts.pages_used, 0);
}

static void close_model(struct rig *r)
{
    tokenizer_free(r->tokenizer);
    model_free(r->model);
    r->backend->ops->free(r->backend);
    checkpoint_close(r->checkpoint);
}

/* ---- requests ---- */

struct answer {
    int32_t tokens[TOKENS_MAX];
    float logprobs[TOKENS_MAX];
    size_t n_tokens;
    struct buf text;
    struct engine_event last;
    bool is_done;
};

struct batch {
    struct engine_request requests[REQUESTS_MAX];
    struct token_ids prompts[REQUESTS_MAX];
    struct answer answers[REQUESTS_MAX];
    size_t n;
};

static void batch_release_answers(struct batch *b)
{
    for (size_t i = 0; i < b->n; i++) {
        buf_release(&b->answers[i].text);
        b->answers[i] = (struct answer){0};
    }
}

static void batch_release(struct batch *b)
{
    batch_release_answers(b);
    for (size_t i = 0; i < b->n; i++) {
        token_ids_release(&b->prompts[i]);
    }
    free(b);
}

static void batch_add(struct batch *b, const struct rig *r, const char *prompt, size_t max_tokens)
{
    size_t i = b->n++;

    assert_true(i < REQUESTS_MAX && max_tokens < TOKENS_MAX);
    MUST(tokenizer_encode_text(&b->prompts[i], r->tokenizer, str_of(prompt), &err));
    b->requests[i] = (struct engine_request){.prompt = b->prompts[i].ids,
                                             .n_prompt = b->prompts[i].n,
                                             .sampling = sampling_default(),
                                             .max_tokens = max_tokens,
                                             .skip_special = true};
    b->requests[i].sampling.temperature = 0;
    b->requests[i].sampling.want_logprobs = true;
}

/* Submits requests [from, from + n) and collects their answers. */
static void run(struct rig *r, struct batch *b, size_t from, size_t n)
{
    uint64_t ids[REQUESTS_MAX];
    size_t n_done = 0;
    struct engine_event e;

    for (size_t i = from; i < from + n; i++) {
        MUST(engine_submit(r->engine, r->port, &b->requests[i], &ids[i], &err));
    }
    while (n_done < n) {
        if (!engine_port_pop(r->port, &e)) {
            assert_true(engine_port_wait(r->port, WAIT_MS));
            continue;
        }
        struct answer *a = NULL;
        for (size_t i = from; i < from + n; i++) {
            a = ids[i] == e.request ? &b->answers[i] : a;
        }
        assert_non_null(a);
        if (e.kind == ENGINE_EVENT_TOKEN) {
            a->logprobs[a->n_tokens] = e.logprob;
            a->tokens[a->n_tokens++] = e.token;
        }
        if (e.text_len > 0) {
            buf_append(&a->text, e.text, e.text_len);
        }
        if (e.kind == ENGINE_EVENT_DONE || e.kind == ENGINE_EVENT_ERROR) {
            a->is_done = true;
            a->last = e;
            n_done++;
        }
        engine_event_release(&e);
    }
}

/* ---- the demo model ---- */

static void test_recorded_answers_all_at_once(void **state)
{
    struct json_object *golden, *prompts;
    struct batch *b = calloc(1, sizeof *b);
    struct rig r;
    (void)state;

    assert_non_null(b);
    MUST(json_parse_file(&golden, RILL_DIR "/golden.json", 16 << 20, &err));
    prompts = json_get(golden, "prompts");
    assert_int_equal(json_object_get_type(prompts), json_type_array);
    open_model(&r, RILL_DIR, 4, 160);
    start_engine(&r, RILL_DIR, 4, 64);
    size_t n = json_object_array_length(prompts);
    assert_true(n > 0);
    for (size_t i = 0; i < n && b->n < REQUESTS_MAX; i += RECORDED_STRIDE) {
        struct json_object *one = json_object_array_get_idx(prompts, i);
        size_t n_tokens = json_object_array_length(json_get(one, "tokens"));
        batch_add(b, &r, json_object_get_string(json_get(one, "prompt")),
                  n_tokens < RECORDED_MAX ? n_tokens : RECORDED_MAX);
    }
    run(&r, b, 0, b->n);
    for (size_t i = 0; i < b->n; i++) {
        struct json_object *one = json_object_array_get_idx(prompts, i * RECORDED_STRIDE);
        struct json_object *tokens = json_get(one, "tokens");
        size_t n_recorded = json_object_array_length(tokens);
        assert_int_equal(b->answers[i].n_tokens, b->requests[i].max_tokens);
        for (size_t t = 0; t < b->answers[i].n_tokens; t++) {
            assert_int_equal(b->answers[i].tokens[t],
                             json_object_get_int(json_object_array_get_idx(tokens, t)));
        }
        if (n_recorded <= RECORDED_MAX) {
            assert_string_equal(buf_cstr(&b->answers[i].text),
                                json_object_get_string(json_get(one, "text")));
        }
    }
    stop_engine(&r);
    close_model(&r);
    batch_release(b);
    json_object_put(golden);
}

static const char *const topics[] = {
    "a rabbit", "the sea and a very old boat that nobody wanted",
    "tea",      "how a small town came to have two clocks, and why one of them was always late",
    "snow",     "a long letter from a friend who lives far away and has not written for many years",
    "",         "bread"};

static struct batch *make_mix(const struct rig *r)
{
    struct batch *b = calloc(1, sizeof *b);
    char prompt[512];

    assert_non_null(b);
    for (size_t i = 0; i < 8; i++) {
        snprintf(prompt, sizeof prompt,
                 "<|im_start|>user\nTell me a story about %s.<|im_end|>\n<|im_start|>assistant\n"
                 "<think>\n\n</think>\n\n",
                 topics[i]);
        batch_add(b, r, prompt, 4 + 2 * i);
        if (i % 2) {
            struct sampling *s = &b->requests[i].sampling;
            s->temperature = 1.2f;
            s->top_k = 40;
            s->top_p = 0.95f;
            s->repetition_penalty = 1.1f;
            s->presence_penalty = 0.3f;
            s->has_seed = true;
            s->seed = 17 + i;
        }
    }
    return b;
}

static void assert_same(const struct answer *a, const struct answer *b)
{
    assert_true(a->is_done && b->is_done);
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_memory_equal(a->tokens, b->tokens, a->n_tokens * sizeof a->tokens[0]);
    assert_memory_equal(a->logprobs, b->logprobs, a->n_tokens * sizeof a->logprobs[0]);
    assert_int_equal(a->last.reason, b->last.reason);
}

static void test_company_does_not_change_a_bit(void **state)
{
    const size_t chunks[] = {16, 64};
    struct answer *solo = calloc(8, sizeof *solo);
    struct rig r;
    (void)state;

    assert_non_null(solo);
    open_model(&r, RILL_DIR, 8, 160);
    for (size_t c = 0; c < 2; c++) {
        start_engine(&r, RILL_DIR, 8, chunks[c]);
        struct batch *b = make_mix(&r);
        for (size_t i = 0; i < 8; i++) {
            run(&r, b, i, 1);
        }
        memcpy(solo, b->answers, 8 * sizeof *solo);
        for (size_t i = 0; i < 8; i++) {
            buf_release(&b->answers[i].text);
            b->answers[i] = (struct answer){0};
        }
        run(&r, b, 0, 8);
        for (size_t i = 0; i < 8; i++) {
            assert_same(&b->answers[i], &solo[i]);
            assert_true(b->answers[i].n_tokens > 0);
        }
        stop_engine(&r);
        /* Fewer at once: the others join as places become free. */
        start_engine(&r, RILL_DIR, 3, chunks[c]);
        batch_release_answers(b);
        run(&r, b, 0, 8);
        for (size_t i = 0; i < 8; i++) {
            assert_same(&b->answers[i], &solo[i]);
        }
        stop_engine(&r);
        batch_release(b);
    }
    close_model(&r);
    free(solo);
}

static void test_cancel_gives_places_back(void **state)
{
    struct rig r;
    struct engine_event e;
    struct engine_stats stats;
    uint64_t id;
    (void)state;

    open_model(&r, RILL_DIR, 2, 34);
    start_engine(&r, RILL_DIR, 2, 16);
    struct batch *b = make_mix(&r);
    for (size_t round = 0; round < 6; round++) {
        struct engine_request q = b->requests[round];
        size_t n_events = 0;

        q.max_tokens = 0;
        q.ignore_eos = true; /* ends by cancelling only */
        MUST(engine_submit(r.engine, r.port, &q, &id, &err));
        for (;;) {
            if (n_events == round) { /* in the queue or prefill, at the start, after some tokens */
                engine_cancel(r.engine, id);
            }
            assert_true(engine_port_wait(r.port, WAIT_MS));
            assert_true(engine_port_pop(r.port, &e));
            n_events++;
            engine_event_release(&e);
            if (e.kind == ENGINE_EVENT_DONE) {
                break;
            }
        }
        assert_int_equal(e.reason, FINISH_ABORT);
        engine_get_stats(r.engine, &stats);
        assert_int_equal(stats.n_running, 0);
        assert_int_equal(stats.state.live_used, 0);
        assert_int_equal(stats.state.pages_used, 0);
    }
    stop_engine(&r);
    close_model(&r);
    batch_release(b);
}

/* ---- a checkpoint in which one embedding row is NaN ---- */

enum { BAD_TOKEN = 13 }; /* the self-test's first */

static void copy_with_bad_row(const char *dir)
{
    struct safetensors *st;
    struct safetensors_writer *w;
    uint16_t *rows = NULL;
    char path[512];
    char *config;
    size_t n_bytes;

    MUST(safetensors_open(&st, MOE_DIR "/model.safetensors", &err));
    MUST(safetensors_writer_new(&w, &err));
    struct tensor *changed = calloc(1, sizeof *changed);
    assert_non_null(changed);
    for (size_t i = 0; i < safetensors_count(st); i++) {
        const struct safetensors_entry *e = safetensors_at(st, i);
        const struct tensor *t = &e->tensor;

        if (strcmp(e->name, "model.language_model.embed_tokens.weight") == 0) {
            assert_int_equal(t->dtype, DTYPE_BF16);
            rows = malloc(e->n_bytes);
            assert_non_null(rows);
            memcpy(rows, t->data, e->n_bytes);
            rows[BAD_TOKEN * t->shape[1] + 5] = 0x7fc0;
            *changed = *t;
            changed->data = rows;
            t = changed;
        }
        MUST(safetensors_writer_add(w, e->name, t, &err));
    }
    assert_non_null(rows);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    MUST(safetensors_writer_finish(w, path, &err));
    safetensors_writer_free(w);
    safetensors_close(st);
    free(rows);
    free(changed);
    MUST(file_read(&config, &n_bytes, MOE_DIR "/config.json", 1 << 20, &err));
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(config, 1, n_bytes, f), n_bytes);
    assert_int_equal(fclose(f), 0);
    free(config);
}

static void remove_copy(const char *dir)
{
    char path[512];

    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    rmdir(dir);
}

static void test_nan_ends_only_the_request_that_meets_it(void **state)
{
    char dir[] = "/tmp/spillway-engine-XXXXXX";
    static int32_t good_ids[70], bad_ids[70];
    struct batch *b = calloc(1, sizeof *b);
    struct answer solo;
    struct rig r;
    (void)state;

    assert_non_null(b);
    assert_non_null(mkdtemp(dir));
    copy_with_bad_row(dir);
    open_model(&r, dir, 4, 160);
    start_engine(&r, MOE_DIR, 4, 32);
    for (size_t i = 0; i < 70; i++) {
        good_ids[i] = (int32_t)(100 + i * 37 % 90);
        bad_ids[i] = i == 40 ? BAD_TOKEN : good_ids[i];
    }
    for (size_t i = 0; i < 4; i++) {
        batch_add(b, &r, "x", 12);
        b->requests[i].prompt = i == 1 ? bad_ids : good_ids;
        b->requests[i].n_prompt = 70;
    }
    run(&r, b, 0, 1);
    solo = b->answers[0];
    buf_release(&b->answers[0].text);
    b->answers[0] = (struct answer){0};
    run(&r, b, 0, 4);
    for (size_t i = 0; i < 4; i++) {
        if (i == 1) {
            assert_int_equal(b->answers[i].last.kind, ENGINE_EVENT_ERROR);
            assert_int_equal(b->answers[i].n_tokens, 0);
            assert_non_null(strstr(b->answers[i].last.error.text, "layer 0"));
        } else {
            assert_same(&b->answers[i], &solo);
        }
    }
    stop_engine(&r);
    close_model(&r);
    batch_release(b);
    remove_copy(dir);
}

/* ---- self-test ---- */

static void test_selftest_passes(void **state)
{
    static const char *const dirs[] = {
        RILL_DIR,
        MOE_DIR,
        SPILLWAY_SOURCE_DIR "/tests/golden/tiny-qwen3_5-dense",
        SPILLWAY_SOURCE_DIR "/tests/golden/tiny-qwen3_5-moe-gptq-int4",
        SPILLWAY_SOURCE_DIR "/tests/golden/tiny-qwen3_5-moe-gptq-int4-actorder",
        SPILLWAY_SOURCE_DIR "/tests/golden/tiny-qwen3_next",
    };
    (void)state;

    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++) {
        const size_t rows[] = {128, 12}; /* 12: shorter than its favourite prompt */
        for (size_t k = 0; k < 2; k++) {
            struct selftest_report report;
            struct rig r;

            open_model(&r, dirs[i], 1, rows[k]);
            MUST(selftest_run(r.model, false, &report, &err));
            assert_true(report.max_rel_error < 1e-4);
            assert_int_equal(report.n_tokens, k == 0 ? 77 : 19);
            assert_int_equal(state_store_counts(model_states(r.model)).live_used, 0);
            assert_int_equal(state_store_counts(model_states(r.model)).pages_used, 0);
            close_model(&r);
        }
    }
}

/* Rounded activations part the two ways by more than a fault in float32 may. */
static void test_selftest_allows_for_rounding(void **state)
{
    static const enum cpu_activations kinds[] = {CPU_ACTIVATIONS_BF16, CPU_ACTIVATIONS_INT8};
    (void)state;

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct selftest_report report;
        struct rig r;

        open_model_with(&r, RILL_DIR, 1, 128, kinds[i]);
        MUST(selftest_run(r.model, true, &report, &err));
        assert_true(report.max_rel_error > 0 && report.max_rel_error < 0.05);
        close_model(&r);
    }
}

static void test_selftest_names_the_layer(void **state)
{
    char dir[] = "/tmp/spillway-engine-XXXXXX";
    struct selftest_report report;
    struct error err;
    struct rig r;
    (void)state;

    assert_non_null(mkdtemp(dir));
    copy_with_bad_row(dir);
    open_model(&r, dir, 1, 128);
    assert_int_equal(selftest_run(r.model, false, &report, &err), ERR_INTERNAL);
    assert_non_null(strstr(err.text, "self-test"));
    assert_non_null(strstr(err.text, "not finite"));
    assert_int_equal(state_store_counts(model_states(r.model)).live_used, 0);
    close_model(&r);
    remove_copy(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded_answers_all_at_once),
        cmocka_unit_test(test_company_does_not_change_a_bit),
        cmocka_unit_test(test_cancel_gives_places_back),
        cmocka_unit_test(test_nan_ends_only_the_request_that_meets_it),
        cmocka_unit_test(test_selftest_passes),
        cmocka_unit_test(test_selftest_allows_for_rounding),
        cmocka_unit_test(test_selftest_names_the_layer),
    };
    return cmocka_run_group_tests_name("engine_model", tests, NULL, NULL);
}
