/* engine_test.c - the engine's rules, over a fake model: who runs when, and what each request gets.
 *
 * Place: runtime, cmocka. What goes wrong and who leaves is in engine_faults_test.c. */
#include "runtime/engine_rig.h"

/* ---- the same text in any company ---- */

enum { N_MIX = 8, PROMPT_MAX = 64 };

static void make_mix(struct engine_request *requests, int32_t prompts[N_MIX][PROMPT_MAX])
{
    for (size_t i = 0; i < N_MIX; i++) {
        size_t n = 1 + (i * 23) % PROMPT_MAX;
        for (size_t t = 0; t < n; t++) {
            prompts[i][t] = (int32_t)(FAKE_FIRST + (i * 7 + t * 5) % 40);
        }
        requests[i] = request_of(prompts[i], n, 5 + i * 4);
        requests[i].ignore_eos = i % 4 == 1;
        if (i % 2) {
            requests[i].sampling.temperature = 1.0f;
            requests[i].sampling.has_seed = true;
            requests[i].sampling.seed = 1000 + i;
            requests[i].sampling.top_p = 0.9f;
            requests[i].sampling.frequency_penalty = 0.5f;
            requests[i].sampling.repetition_penalty = 1.2f;
        }
    }
}

static void test_same_text_in_any_company(void **state)
{
    static struct result solo[N_MIX];
    static int32_t prompts[N_MIX][PROMPT_MAX];
    struct engine_request requests[N_MIX];
    const size_t chunks[] = {0, 1, 7, 64};
    struct rig r;
    (void)state;

    make_mix(requests, prompts);
    rig_open(&r, &plain);
    rig_start(&r);
    for (size_t i = 0; i < N_MIX; i++) {
        run_one(&r, &requests[i], &solo[i]);
        assert_false(solo[i].is_error);
        assert_true(solo[i].n_tokens > 0);
    }
    rig_close(&r);
    for (size_t max_running = 1; max_running <= N_MIX; max_running += 3) {
        for (size_t c = 0; c < 4; c++) {
            struct setup s = plain;
            struct results rs;
            uint64_t ids[N_MIX];

            s.max_running = max_running;
            s.chunk_tokens = chunks[c];
            results_init(&rs);
            rig_open(&r, &s);
            for (size_t i = 0; i < N_MIX; i++) { /* another order each time */
                size_t which = (i * 3 + c + max_running) % N_MIX;
                ids[which] = submit(&r, &requests[which]);
                if (i == 2) {
                    rig_start(&r); /* some join while others run */
                }
            }
            collect(r.port, &rs, N_MIX);
            for (size_t i = 0; i < N_MIX; i++) {
                assert_same(result_of(&rs, ids[i]), &solo[i]);
            }
            rig_close(&r);
            results_release(&rs);
        }
    }
}

static void test_seeds(void **state)
{
    static struct result a, b, c, d;
    const int32_t prompt[] = {5, 9};
    struct engine_request q = request_of(prompt, 2, 30);
    struct rig r;
    (void)state;

    q.ignore_eos = true;
    q.sampling.temperature = 1.5f;
    q.sampling.has_seed = true;
    q.sampling.seed = 4;
    rig_open(&r, &plain);
    rig_start(&r);
    run_one(&r, &q, &a);
    run_one(&r, &q, &b);
    assert_same(&a, &b);
    q.sampling.seed = 5;
    run_one(&r, &q, &b);
    assert_memory_not_equal(a.tokens, b.tokens, 30 * sizeof a.tokens[0]);
    q.sampling.has_seed = false; /* drawn by the engine: another one each time */
    run_one(&r, &q, &c);
    run_one(&r, &q, &d);
    assert_memory_not_equal(c.tokens, d.tokens, 30 * sizeof c.tokens[0]);
    rig_close(&r);
}

/* ---- the schedule ---- */

static void test_prompts_are_cut_at_multiples(void **state)
{
    const size_t chunks[] = {0, 1, 7, 64};
    static int32_t prompt[150];
    (void)state;

    for (size_t c = 0; c < 4; c++) {
        struct setup s = scripted;
        struct results rs;
        struct rig r;

        s.chunk_tokens = chunks[c];
        s.max_prefill_tokens = 100;
        results_init(&rs);
        rig_open(&r, &s);
        record_spans(&r);
        for (size_t i = 0; i < 4; i++) { /* the first token says whose span it is */
            for (size_t t = 0; t < 150; t++) {
                prompt[t] = (int32_t)(FAKE_FIRST + i);
            }
            struct engine_request q = request_of(prompt, 30 + i * 40, 3);
            submit(&r, &q);
        }
        rig_start(&r);
        collect(r.port, &rs, 4);
        for (size_t i = 0; i < r.model->n_log; i++) {
            const struct fake_span *span = &r.model->log[i];
            size_t owner = (size_t)(span->first - FAKE_FIRST), n_prompt = 30 + owner * 40;

            if (span->position == 0 || span->n_tokens > 1) {
                size_t end = span->position + span->n_tokens;
                assert_true(end == n_prompt || (chunks[c] > 0 && end % chunks[c] == 0));
                assert_true(chunks[c] == 0 || span->n_tokens <= chunks[c]);
                assert_int_equal(span->wants_logits, end == n_prompt);
            }
        }
        rig_close(&r);
        results_release(&rs);
    }
}

static void test_prefill_budget_and_decode_share_steps(void **state)
{
    static int32_t prompt[100];
    struct setup s = scripted;
    struct results rs;
    struct rig r;
    size_t step = 0, n_prefill = 0, n_decode = 0, n_mixed = 0;
    (void)state;

    s.chunk_tokens = 10;
    s.max_prefill_tokens = 25;
    results_init(&rs);
    rig_open(&r, &s);
    record_spans(&r);
    for (size_t i = 0; i < 4; i++) {
        for (size_t t = 0; t < 100; t++) {
            prompt[t] = (int32_t)(FAKE_FIRST + i);
        }
        struct engine_request q = request_of(prompt, i == 0 ? 5 : 95, 20);
        submit(&r, &q);
    }
    rig_start(&r);
    collect(r.port, &rs, 4);
    for (size_t i = 0; i <= r.model->n_log; i++) {
        const struct fake_span *span = &r.model->log[i];
        if (i == r.model->n_log || span->step != step) {
            assert_true(n_prefill <= 25);
            n_mixed += n_prefill > 0 && n_decode > 0;
            n_prefill = n_decode = 0;
            step = span->step;
        }
        if (i < r.model->n_log && span->n_tokens > 1) {
            n_prefill += span->n_tokens;
        } else {
            n_decode++;
        }
    }
    assert_true(n_mixed > 3); /* a decoding sequence goes on while others prefill */
    rig_close(&r);
    results_release(&rs);
}

static void test_first_in_first_out_without_overtaking(void **state)
{
    const int32_t prompt[] = {5, 6, 7};
    /* 4 pages: the second does not fit beside the first, the third would. */
    const size_t max_tokens[] = {40, 200, 3};
    struct setup s = {4, 16, 8, 64, 256, 4, true, true};
    struct results rs;
    struct rig r;
    uint64_t ids[3];
    (void)state;

    results_init(&rs);
    rig_open(&r, &s);
    for (size_t i = 0; i < 3; i++) {
        struct engine_request q = request_of(prompt, 3, max_tokens[i]);
        ids[i] = submit(&r, &q);
    }
    rig_start(&r);
    collect(r.port, &rs, 3);
    assert_int_equal(rs.of[0].request, ids[0]);
    assert_int_equal(rs.of[1].request, ids[1]);
    assert_int_equal(rs.of[2].request, ids[2]);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(rs.of[i].last.reason, FINISH_LENGTH);
        assert_int_equal(rs.of[i].last.n_output, max_tokens[i]);
    }
    rig_close(&r);
    results_release(&rs);
}

static void test_queue_is_bounded(void **state)
{
    const int32_t prompt[] = {5};
    struct engine_request q = request_of(prompt, 1, 2);
    struct setup s = {1, 8, 8, 64, 200, 64, true, false};
    struct results rs;
    struct rig r;
    uint64_t ids[9], id;
    struct error err;
    (void)state;

    results_init(&rs);
    rig_open(&r, &s);
    for (size_t i = 0; i < 50; i++) { /* 1 + 8 are taken */
        enum status rc = engine_submit(r.engine, r.port, &q, &id, &err);
        assert_int_equal(rc, i < 9 ? OK : ERR_BUSY);
        if (i < 9) {
            ids[i] = id;
        }
    }
    struct engine_stats stats;
    engine_get_stats(r.engine, &stats);
    assert_int_equal(stats.n_queued, 9);
    assert_int_equal(stats.n_requests, 9);
    rig_start(&r);
    collect(r.port, &rs, 9);
    for (size_t i = 0; i < 9; i++) {
        assert_int_equal(rs.of[i].request, ids[i]);
    }
    submit(&r, &q); /* and there is room again */
    collect(r.port, &rs, 10);
    rig_close(&r);
    results_release(&rs);
}

/* ---- lengths ---- */

static void test_prompt_limits(void **state)
{
    static int32_t prompt[2000];
    static struct result out;
    struct error err;
    struct rig r;
    uint64_t id;
    (void)state;

    for (size_t i = 0; i < 2000; i++) {
        prompt[i] = FAKE_FIRST;
    }
    rig_open(&r, &scripted); /* context 200 */
    rig_start(&r);
    const struct {
        size_t n, n_output; /* 0: refused */
    } cases[] = {{198, 2}, {199, 1}, {200, 0}, {201, 0}, {2000, 0}, {0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct engine_request q = request_of(prompt, cases[i].n, 500);
        size_t n_steps = r.model->n_steps;
        if (cases[i].n_output > 0) {
            run_one(&r, &q, &out);
            assert_int_equal(out.last.reason, FINISH_LENGTH);
            assert_int_equal(out.last.n_output, cases[i].n_output);
            assert_int_equal(out.last.n_prompt, cases[i].n);
            continue;
        }
        assert_int_equal(engine_submit(r.engine, r.port, &q, &id, &err), ERR_BAD_REQUEST);
        assert_string_equal(err.param, "prompt");
        if (cases[i].n >= 200) {
            char number[24];
            snprintf(number, sizeof number, "%zu", cases[i].n);
            assert_non_null(strstr(err.text, number));
            assert_non_null(strstr(err.text, "199"));
        }
        assert_int_equal(r.model->n_steps, n_steps); /* nothing was computed for it */
    }
    rig_close(&r);
}

static void test_context_end_is_a_length_finish(void **state)
{
    static struct result out;
    static int32_t prompt[200];
    struct setup s = {1, 4, 8, 64, 256, 64, true, true};
    struct rig r;
    (void)state;

    for (size_t i = 0; i < 200; i++) {
        prompt[i] = FAKE_FIRST;
    }
    rig_open(&r, &s);
    rig_start(&r);
    const size_t caps[] = {500, 0}; /* 0: as much as the context leaves */
    for (size_t i = 0; i < 2; i++) {
        struct engine_request q = request_of(prompt, 200, caps[i]);
        run_one(&r, &q, &out);
        assert_int_equal(out.last.reason, FINISH_LENGTH);
        assert_int_equal(out.last.n_output, 56);
        q = request_of(prompt, 3, 4); /* the next chat is normal */
        run_one(&r, &q, &out);
        assert_string_equal(out.text, "bcde");
    }
    rig_close(&r);
}

static void test_pool_smaller_than_the_context(void **state)
{
    static struct result out;
    const int32_t prompt[] = {5};
    struct engine_request q = request_of(prompt, 1, 0);
    struct setup s = {2, 4, 8, 64, 100000, 2, true, true};
    struct rig r;
    (void)state;

    rig_open(&r, &s);
    rig_start(&r);
    run_one(&r, &q, &out); /* ends at what two pages hold */
    assert_int_equal(out.last.reason, FINISH_LENGTH);
    assert_int_equal(out.last.n_output, 2 * KV_PAGE_TOKENS - 1);
    rig_close(&r);
}

static void test_max_tokens_is_exact(void **state)
{
    static struct result out;
    const int32_t prompt[] = {5};
    const size_t caps[] = {1, 2, 7};
    struct rig r;
    (void)state;

    rig_open(&r, &scripted);
    rig_start(&r);
    for (size_t i = 0; i < 3; i++) {
        struct engine_request q = request_of(prompt, 1, caps[i]);
        run_one(&r, &q, &out);
        assert_int_equal(out.last.reason, FINISH_LENGTH);
        assert_int_equal(out.last.n_output, caps[i]);
        assert_int_equal(out.n_tokens, caps[i]);
        assert_int_equal(out.last.stop_id, -1);
        assert_int_equal(out.last.stop_string, -1);
        assert_memory_equal(out.text, "defghij", caps[i]);
        assert_int_equal(out.text_len, caps[i]);
    }
    rig_close(&r);
}

/* ---- ends ---- */

static void test_end_tokens(void **state)
{
    static struct result out;
    const int32_t prompt[] = {FAKE_EOS - 4};
    const int32_t stop_ids[] = {FAKE_FIRST + 1, FAKE_EOS - 2};
    struct engine_request q = request_of(prompt, 1, 10);
    struct rig r;
    (void)state;

    rig_open(&r, &scripted);
    rig_start(&r);
    run_one(&r, &q, &out); /* S T U <eos> */
    assert_string_equal(out.text, "STU");
    assert_int_equal(out.last.reason, FINISH_STOP);
    assert_int_equal(out.last.stop_id, FAKE_EOS);
    assert_int_equal(out.last.n_output, 4); /* the end token counts */
    assert_int_equal(out.n_tokens, 3);      /* but is no TOKEN event */

    q.max_tokens = 4; /* the last token allowed is the end token: a stop, not a cut */
    run_one(&r, &q, &out);
    assert_int_equal(out.last.reason, FINISH_STOP);
    q.max_tokens = 3;
    run_one(&r, &q, &out);
    assert_int_equal(out.last.reason, FINISH_LENGTH);

    q.max_tokens = 10;
    q.stop_ids = stop_ids;
    q.n_stop_ids = 2;
    run_one(&r, &q, &out);
    assert_string_equal(out.text, "S");
    assert_int_equal(out.last.stop_id, FAKE_EOS - 2);

    q.n_stop_ids = 1;
    q.ignore_eos = true; /* passes the end token, then meets the stop id */
    run_one(&r, &q, &out);
    assert_string_equal(out.text, "STUa");
    assert_int_equal(out.last.stop_id, FAKE_FIRST + 1);
    assert_int_equal(out.last.n_output, 6);
    rig_close(&r);
}

static void test_min_tokens(void **state)
{
    static struct result out;
    const int32_t prompt[] = {FAKE_EOS - 2};
    struct engine_request q = request_of(prompt, 1, 10);
    struct error err;
    struct rig r;
    uint64_t id;
    (void)state;

    rig_open(&r, &scripted);
    rig_start(&r);
    run_one(&r, &q, &out);
    assert_int_equal(out.last.n_output, 2); /* U <eos> */
    for (size_t min = 0; min <= 10; min++) {
        q.min_tokens = min;
        run_one(&r, &q, &out);
        assert_true(out.last.n_output >= min);
        for (size_t i = 0; i < out.n_tokens; i++) {
            assert_int_not_equal(out.tokens[i], FAKE_EOS);
        }
    }
    q.min_tokens = 11;
    assert_int_equal(engine_submit(r.engine, r.port, &q, &id, &err), ERR_BAD_REQUEST);
    assert_string_equal(err.param, "min_tokens");
    rig_close(&r);
}

static void test_stop_strings(void **state)
{
    static struct result out;
    const int32_t prompt[] = {5}; /* answered by defghijkl... */
    const struct str stops[] = {STR("zzz"), STR("hij"), STR("ghx")};
    struct engine_request q = request_of(prompt, 1, 20);
    struct rig r;
    (void)state;

    q.stop = stops;
    q.n_stop = 3;
    rig_open(&r, &scripted);
    rig_start(&r);
    run_one(&r, &q, &out);
    assert_string_equal(out.text, "defg");
    assert_int_equal(out.last.reason, FINISH_STOP);
    assert_int_equal(out.last.stop_string, 1);
    assert_int_equal(out.last.stop_id, -1);
    assert_int_equal(out.last.n_output, 7);
    assert_int_equal(out.n_tokens, 7);
    q.no_stop_trim = true;
    run_one(&r, &q, &out);
    assert_string_equal(out.text, "defghij");
    q.no_stop_trim = false;
    q.max_tokens = 6; /* ends while "hi" is held back: it was text after all */
    run_one(&r, &q, &out);
    assert_string_equal(out.text, "defghi");
    assert_int_equal(out.last.reason, FINISH_LENGTH);
    assert_int_equal(out.last.stop_string, -1);
    rig_close(&r);
}

static void test_logprobs_in_events(void **state)
{
    const int32_t prompt[] = {5};
    struct engine_request q = request_of(prompt, 1, 1);
    struct engine_event e;
    struct rig r;
    (void)state;

    q.sampling.want_logprobs = true;
    q.sampling.n_top_logprobs = 2;
    rig_open(&r, &scripted);
    rig_start(&r);
    submit(&r, &q);
    do {
        while (!engine_port_pop(r.port, &e)) {
            assert_true(engine_port_wait(r.port, WAIT_MS));
        }
        if (e.kind == ENGINE_EVENT_TOKEN) {
            assert_int_equal(e.n_top, 2);
            assert_int_equal(e.top[0].id, 6);
            assert_int_equal(e.top[1].id, FAKE_FIRST);
            assert_float_equal(e.logprob, e.top[0].logprob, 0);
            assert_true(e.logprob > -1e-3f && e.top[1].logprob < -19.9f);
        }
        engine_event_release(&e);
    } while (e.kind != ENGINE_EVENT_DONE);
    rig_close(&r);
}

/* Rows of logits are asked for when a request of the step cannot do without; those that turn out to be needed
 * come after. */
static void test_logits_are_asked_for_when_needed(void **state)
{
    static struct result out;
    const int32_t prompt[] = {5}, bad[] = {FAKE_NAN_LOGITS};
    struct engine_request q = request_of(prompt, 1, 10);
    struct rig r;
    (void)state;

    q.ignore_eos = true;
    rig_open(&r, &plain);
    rig_start(&r);
    run_one(&r, &q, &out); /* greedy */
    q.sampling.temperature = 1.0f;
    q.sampling.top_k = 20;
    q.sampling.top_p = 0.8f;
    run_one(&r, &q, &out);
    q.sampling.presence_penalty =
        1.5f; /* of 48 possible letters few remain unseen: all are in the list */
    run_one(&r, &q, &out);
    assert_int_equal(out.n_tokens, 10);
    assert_int_equal(r.model->n_logits_asked, 0);
    assert_int_equal(r.model->n_logits_fetched, 0);
    q.sampling.want_logprobs = true;
    run_one(&r, &q, &out);
    assert_int_equal(r.model->n_logits_asked, 10);
    q.sampling.want_logprobs = false;
    q.sampling.top_k = -1;
    run_one(&r, &q, &out);
    assert_int_equal(r.model->n_logits_asked, 20);
    assert_int_equal(r.model->n_logits_fetched, 0);
    q = request_of(bad, 1, 10); /* no list for a row with a NaN */
    run_one(&r, &q, &out);
    assert_true(out.is_error);
    assert_int_equal(r.model->n_logits_asked, 20);
    assert_int_equal(r.model->n_logits_fetched, 1);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_text_in_any_company),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_prompts_are_cut_at_multiples),
        cmocka_unit_test(test_prefill_budget_and_decode_share_steps),
        cmocka_unit_test(test_first_in_first_out_without_overtaking),
        cmocka_unit_test(test_queue_is_bounded),
        cmocka_unit_test(test_prompt_limits),
        cmocka_unit_test(test_context_end_is_a_length_finish),
        cmocka_unit_test(test_pool_smaller_than_the_context),
        cmocka_unit_test(test_max_tokens_is_exact),
        cmocka_unit_test(test_end_tokens),
        cmocka_unit_test(test_min_tokens),
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_logprobs_in_events),
        cmocka_unit_test(test_logits_are_asked_for_when_needed),
    };
    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
