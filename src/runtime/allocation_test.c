/* allocation_test.c - each allocation of loading a model, of tokenizing, of rendering and of a request
 * fails once: a clean error each time, and the next try works.
 *
 * Place: runtime, the lowest room that sees all of these. */
#include "runtime/failing_heap.h"

#include <stdio.h>

#include "backend/cpu/cpu_backend.h"
#include "base/json.h"
#include "formats/checkpoint.h"
#include "model/model.h"
#include "runtime/engine.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#define FIXTURES SPILLWAY_SOURCE_DIR "/tests/golden/"
#define RILL     SPILLWAY_SOURCE_DIR "/models/rill"

enum { N_PROMPT = 5, VOCAB = 512 };
static const int32_t prompt[N_PROMPT] = {3, 1, 4, 15, 92};

/* ---- a model ---- */

struct loaded {
    struct checkpoint *ck;
    struct backend *be;
    struct model *m;
};

static void loaded_close(struct loaded *l)
{
    model_free(l->m);
    if (l->be) {
        l->be->ops->free(l->be);
    }
    checkpoint_close(l->ck);
    *l = (struct loaded){0};
}

static enum status loaded_open(struct loaded *l, const char *dir, struct error *err)
{
    struct cpu_backend_options cpu = {.n_threads = 1};
    struct model_options o = {.rows_max = 16,
                              .out_rows_max = 2,
                              .budget = {.n_live = 2, .n_tokens = 128, .context_max = 64}};
    enum status rc;

    *l = (struct loaded){0};
    rc = checkpoint_open(&l->ck, dir, NULL, NULL, err);
    if (rc == OK) {
        rc = cpu_backend_new(&l->be, &cpu, err);
    }
    if (rc == OK) {
        o.pool = cpu_backend_pool(l->be);
        rc = model_open(&l->m, l->ck, l->be, &o, NULL, NULL, err);
    }
    return rc;
}

struct load_scenario {
    const char *dir;
    bool has_logits;
    float logits[VOCAB]; /* of the first run; all others must give the same */
};

static enum status one_step(struct load_scenario *s, struct model *m, struct error *err)
{
    struct state_store *store = model_states(m);
    struct model_span span = {.tokens = prompt, .n_tokens = N_PROMPT, .n_logits = 1};
    struct model_step_result result;
    enum status rc = state_new(&span.seq, store, err);

    if (rc == OK) {
        rc = state_reserve(store, span.seq, N_PROMPT, err);
    }
    if (rc == OK) {
        rc = model_step(m, &span, 1, NULL, &result, err);
    }
    if (rc == OK && !s->has_logits) {
        memcpy(s->logits, result.logits, sizeof s->logits);
        s->has_logits = true;
    } else if (rc == OK) {
        assert_memory_equal(result.logits, s->logits, sizeof s->logits);
    }
    state_free(store, span.seq);
    return rc;
}

static enum status load_and_step(void *ctx, struct error *err)
{
    struct load_scenario *s = ctx;
    struct loaded l;
    enum status rc = loaded_open(&l, s->dir, err);

    if (rc == OK) {
        rc = one_step(s, l.m, err);
    }
    loaded_close(&l);
    return rc;
}

static void test_load_dense(void **state)
{
    static struct load_scenario s = {.dir = FIXTURES "tiny-qwen3_5-dense"};

    (void)state;
    assert_true(fail_each(load_and_step, &s, 128, 24) > 50);
}

static void test_load_gptq(void **state)
{
    static struct load_scenario s = {.dir = FIXTURES "tiny-qwen3_5-moe-gptq-int4-actorder"};

    (void)state;
    assert_true(fail_each(load_and_step, &s, 512, 24) > 200);
}

/* ---- text ---- */

static enum status load_and_encode(void *ctx, struct error *err)
{
    struct tokenizer *t = NULL;
    struct token_ids ids = {0};
    enum status rc = tokenizer_load(&t, RILL "/tokenizer.json", err);

    (void)ctx;
    if (rc == OK) {
        rc = tokenizer_encode_text(&ids, t, STR("Water flows over the spillway, cafe\xcc\x81."),
                                   err);
    }
    if (rc == OK) {
        assert_true(ids.n > 5);
    }
    token_ids_release(&ids);
    tokenizer_free(t);
    return rc;
}

static void test_tokenizer(void **state)
{
    (void)state;
    fail_each(load_and_encode, NULL, 64, 24);
}

static enum status compile_and_render(void *ctx, struct error *err)
{
    struct json_object *messages = ctx;
    struct chat_template *t = NULL;
    struct rendered r = {0};
    enum status rc = chat_template_load(&t, RILL, NULL, err);

    if (rc == OK) {
        const struct render_options o = {.messages = messages, .add_generation_prompt = true};
        rc = chat_template_render(&r, t, &o, err);
    }
    if (rc == OK) {
        assert_non_null(strstr(r.text.data, "How deep?"));
        assert_true(r.n_runs > 2);
        rendered_release(&r);
    }
    chat_template_free(t);
    /* A template's memory is limited; the text room does not tell that limit from the machine's, and
     * calls the template bad. The text is right. */
    return rc != OK && strstr(err->text, "too much memory") ? ERR_NO_MEMORY : rc;
}

static void test_template(void **state)
{
    static const char text[] = "[{\"role\":\"system\",\"content\":\"Be short.\"},"
                               "{\"role\":\"user\",\"content\":\"How deep?\"}]";
    struct json_object *messages = NULL;

    (void)state;
    assert_int_equal(json_parse(&messages, text, sizeof text - 1, NULL), OK);
    assert_true(fail_each(compile_and_render, messages, 128, 24) > 10);
    json_object_put(messages);
}

/* ---- a request ---- */

struct request_scenario {
    struct loaded l;
    struct tokenizer *tokenizer;
    char text[256]; /* of the first run */
    bool has_text;
};

enum { WAIT_MS = 60000, N_OUTPUT = 8 };

/* Reads events to the last one of the request. */
static enum status collect(struct engine_port *port, char *text, size_t n, struct error *err)
{
    struct engine_event e;
    size_t len = 0;

    for (;;) {
        if (!engine_port_pop(port, &e)) {
            assert_true(engine_port_wait(port, WAIT_MS)); /* a request that never ends */
            continue;
        }
        if (e.text) {
            assert_true(len + e.text_len < n);
            memcpy(text + len, e.text, e.text_len);
            len += e.text_len;
        }
        text[len] = '\0';
        engine_event_release(&e);
        if (e.kind == ENGINE_EVENT_ERROR) {
            *err = e.error;
            return e.error.code;
        }
        if (e.kind == ENGINE_EVENT_DONE) {
            assert_int_equal(e.reason, FINISH_LENGTH); /* nothing short of it counts as success */
            assert_int_equal(e.n_output, N_OUTPUT);
            return OK;
        }
    }
}

static enum status ask(struct request_scenario *s, struct engine *e, struct engine_port *port,
                       struct error *err)
{
    struct str stop[] = {STR("\x01never\x01")};
    struct engine_request r = {.prompt = prompt,
                               .n_prompt = N_PROMPT,
                               .sampling = sampling_default(),
                               .max_tokens = N_OUTPUT,
                               .stop = stop,
                               .n_stop = 1,
                               .ignore_eos = true};
    char text[sizeof s->text];
    uint64_t id;

    r.sampling.temperature = 0;
    r.sampling.repetition_penalty = 1.1f; /* with a history */
    enum status rc = engine_submit(e, port, &r, &id, err);
    if (rc == OK) {
        rc = collect(port, text, sizeof text, err);
    }
    if (rc == OK && !s->has_text) {
        memcpy(s->text, text, sizeof text);
        s->has_text = true;
    } else if (rc == OK) {
        assert_string_equal(text, s->text);
    }
    return rc;
}

static enum status serve_one(void *ctx, struct error *err)
{
    struct request_scenario *s = ctx;
    const struct engine_options o = {.max_running = 2,
                                     .max_queued = 2,
                                     .chunk_tokens = 4,
                                     .max_prefill_tokens = 8,
                                     .context_length = 64,
                                     .random_seed = 1};
    struct engine *e = NULL;
    struct engine_port *port = NULL;
    enum status rc = engine_new(&e, s->l.m, s->tokenizer, NULL, 0, &o, err);

    if (rc == OK) {
        rc = engine_start(e, err);
    }
    if (rc == OK) {
        rc = engine_port_new(&port, e, err);
    }
    if (rc == OK) {
        rc = ask(s, e, port, err);
    }
    engine_free(e);
    engine_port_free(port);
    struct state_counts counts = state_store_counts(model_states(s->l.m));
    assert_int_equal(counts.live_used, 0);
    assert_int_equal(counts.pages_used, 0);
    return rc;
}

static void test_request(void **state)
{
    static struct request_scenario s;
    struct error err = {0};

    (void)state;
    assert_int_equal(loaded_open(&s.l, FIXTURES "tiny-qwen3_5-dense", &err), OK);
    assert_int_equal(tokenizer_load(&s.tokenizer, RILL "/tokenizer.json", &err), OK);
    assert_true(fail_each(serve_one, &s, 200, 50) > 30);
    tokenizer_free(s.tokenizer);
    loaded_close(&s.l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load_dense), cmocka_unit_test(test_load_gptq),
        cmocka_unit_test(test_tokenizer),  cmocka_unit_test(test_template),
        cmocka_unit_test(test_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
