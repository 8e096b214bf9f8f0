/* engine_faults_test.c - faults, cancelled requests, receivers that leave or do not read, over a fake
 * model: every way out ends one request alone and gives everything back.
 *
 * Place: runtime, cmocka. */
#include <poll.h>
#include <pthread.h>

#include "runtime/engine_rig.h"

/* ---- faults ---- */

static void test_bad_requests_are_refused_while_others_run(void **state)
{
    static struct result solo;
    const int32_t prompt[] = {5, 9}, bad_prompt[] = {5, FAKE_VOCAB}, negative[] = {-1};
    const struct logit_bias bad_bias[] = {{FAKE_TOKENS, 1}, {3, 101}, {3, NAN}, {-1, 1}};
    struct engine_request good = request_of(prompt, 2, 40), bad;
    struct results rs;
    struct error err;
    struct rig r;
    uint64_t id;
    (void)state;

    good.ignore_eos = true;
    results_init(&rs);
    rig_open(&r, &plain);
    rig_start(&r);
    run_one(&r, &good, &solo);
    for (size_t i = 0; i < 3; i++) {
        submit(&r, &good);
    }
    for (size_t i = 0; i < 4; i++) {
        bad = good;
        bad.sampling.bias = &bad_bias[i];
        bad.sampling.n_bias = 1;
        assert_int_equal(engine_submit(r.engine, r.port, &bad, &id, &err), ERR_BAD_REQUEST);
        assert_string_equal(err.param, "logit_bias");
    }
    bad = good;
    bad.sampling.temperature = NAN;
    assert_int_equal(engine_submit(r.engine, r.port, &bad, &id, &err), ERR_BAD_REQUEST);
    assert_string_equal(err.param, "temperature");
    bad = request_of(bad_prompt, 2, 4);
    assert_int_equal(engine_submit(r.engine, r.port, &bad, &id, &err), ERR_BAD_REQUEST);
    assert_string_equal(err.param, "prompt");
    bad = good;
    bad.stop_ids = negative;
    bad.n_stop_ids = 1;
    assert_int_equal(engine_submit(r.engine, r.port, &bad, &id, &err), ERR_BAD_REQUEST);
    assert_string_equal(err.param, "stop_token_ids");
    bad.n_stop_ids = STOP_IDS_MAX + 1;
    assert_int_equal(engine_submit(r.engine, r.port, &bad, &id, &err), ERR_BAD_REQUEST);
    collect(r.port, &rs, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_same(&rs.of[i], &solo);
    }
    rig_close(&r);
    results_release(&rs);
}

/* As many stop ids as are allowed, and the longest prompt that leaves room for one token. */
static void test_requests_at_the_limits(void **state)
{
    int32_t ids[STOP_IDS_MAX + 1], prompt[200];
    struct result result;
    struct error err;
    uint64_t id;
    struct rig r;
    (void)state;

    for (size_t i = 0; i <= STOP_IDS_MAX; i++) {
        ids[i] = FAKE_TOKENS - 1; /* the model never chooses it */
    }
    for (size_t i = 0; i < 200; i++) {
        prompt[i] = 5;
    }
    rig_open(&r, &plain);
    rig_start(&r);
    struct engine_request q = request_of(prompt, plain.context_length - 1, 0);
    q.stop_ids = ids;
    q.n_stop_ids = STOP_IDS_MAX;
    q.ignore_eos = true;
    run_one(&r, &q, &result);
    assert_int_equal(result.last.reason, FINISH_LENGTH);
    assert_int_equal(result.last.n_output, 1);
    q.n_stop_ids = STOP_IDS_MAX + 1;
    assert_int_equal(engine_submit(r.engine, r.port, &q, &id, &err), ERR_BAD_REQUEST);
    assert_string_equal(err.param, "stop_token_ids");
    q.n_stop_ids = STOP_IDS_MAX;
    q.n_prompt = plain.context_length;
    assert_int_equal(engine_submit(r.engine, r.port, &q, &id, &err), ERR_BAD_REQUEST);
    assert_string_equal(err.param, "prompt");
    assert_non_null(strstr(err.text, "200"));
    rig_close(&r);
}

static void test_a_fault_ends_its_own_request_only(void **state)
{
    static const struct {
        int32_t token;
        const char *text;
    } faults[] = {
        {FAKE_BAD_LAYER, "layer 3"}, {FAKE_NAN_LOGITS, "not a number"}, {FAKE_REFUSED, "refused"}};
    static struct result solo;
    const int32_t prompt[] = {5, 9};
    struct engine_request good = request_of(prompt, 2, 30);
    struct results rs;
    struct rig r;
    (void)state;

    good.ignore_eos = true;
    for (size_t f = 0; f < 3; f++) {
        const int32_t bad_prompt[] = {5, 9, faults[f].token};
        struct engine_request bad = request_of(bad_prompt, 3, 30);
        uint64_t id;

        results_init(&rs);
        rig_open(&r, &plain);
        rig_start(&r);
        run_one(&r, &good, &solo);
        submit(&r, &good);
        id = submit(&r, &bad);
        submit(&r, &good);
        submit(&r, &good);
        collect(r.port, &rs, 4);
        for (size_t i = 0; i < 4; i++) {
            if (rs.of[i].request == id) {
                assert_true(rs.of[i].is_error);
                assert_int_equal(rs.of[i].last.reason, FINISH_ERROR);
                assert_non_null(strstr(rs.of[i].last.error.text, faults[f].text));
            } else {
                assert_same(&rs.of[i], &solo);
            }
        }
        struct engine_stats stats;
        engine_get_stats(r.engine, &stats);
        assert_int_equal(stats.n_failed, 1);
        assert_int_equal(stats.n_finished, 4);
        assert_false(stats.device_failed);
        rig_close(&r);
        results_release(&rs);
    }
}

static void test_a_device_error_ends_the_step_and_not_the_engine(void **state)
{
    static struct result out;
    const int32_t prompt[] = {5}, bad_prompt[] = {5, FAKE_DEVICE};
    struct engine_request good = request_of(prompt, 1, 3), bad = request_of(bad_prompt, 2, 3);
    struct engine_stats stats;
    struct results rs;
    struct rig r;
    (void)state;

    results_init(&rs);
    rig_open(&r, &scripted);
    submit(&r, &good);
    submit(&r, &bad);
    rig_start(&r);
    collect(r.port, &rs, 2);
    assert_true(rs.of[0].is_error && rs.of[1].is_error);
    assert_int_equal(rs.of[0].last.error.code, ERR_DEVICE);
    engine_get_stats(r.engine, &stats);
    assert_true(stats.device_failed);
    run_one(&r, &good, &out);
    assert_string_equal(out.text, "def");
    rig_close(&r);
    results_release(&rs);
}

static void test_options_that_do_not_fit(void **state)
{
    const int32_t eos[] = {FAKE_EOS};
    struct model *m = calloc(1, sizeof *m);
    struct engine_options good = {.max_running = 2,
                                  .max_queued = 2,
                                  .chunk_tokens = 8,
                                  .max_prefill_tokens = 8,
                                  .context_length = 100};
    struct engine *e;
    struct error err;
    (void)state;

    assert_non_null(m);
    fake_model_init(m, 2, 8);
    for (int i = 0; i < 7; i++) {
        struct engine_options o = good;
        o.max_running = i == 1 ? 3 : i == 2 ? 0 : o.max_running;
        o.max_queued = i == 3 ? ENGINE_QUEUE_MAX + 1 : o.max_queued;
        o.chunk_tokens = i == 4 ? FAKE_ROWS_MAX : o.chunk_tokens;
        o.context_length = i == 5 ? 1 : o.context_length;
        o.max_queued = i == 6 ? ENGINE_QUEUE_MAX : o.max_queued;
        bool fits = i == 0 || i == 6;
        assert_int_equal(engine_new(&e, m, NULL, eos, 1, &o, &err), fits ? OK : ERR_USAGE);
        engine_free(fits ? e : NULL);
    }
    engine_free(NULL);
    free(m);
}

/* ---- cancelling ---- */

struct cancel_plan {
    struct rig *rig;
    size_t at_step;
    uint64_t id;
    bool frees_port;
    struct engine_port *port;
};

static void cancel_at_step(void *ctx, size_t step)
{
    struct cancel_plan *plan = ctx;

    if (step == plan->at_step) {
        if (plan->frees_port) {
            engine_port_free(plan->port);
        } else {
            engine_cancel(plan->rig->engine, plan->id);
        }
    }
}

static size_t last_step_with(const struct model *m, int32_t first_token)
{
    size_t last = 0;

    for (size_t i = 0; i < m->n_log; i++) {
        if (m->log[i].position == 0 && m->log[i].first == first_token) {
            last = m->log[i].step;
        }
        if (m->log[i].n_tokens > 1 && m->log[i].first == first_token) {
            last = m->log[i].step;
        }
    }
    return last;
}

static void test_cancel_in_each_phase(void **state)
{
    static int32_t long_prompt[60];
    const int32_t prompt[] = {7};
    struct setup s = {1, 8, 10, 10, 200, 64, true, true};
    (void)state;

    for (size_t i = 0; i < 60; i++) {
        long_prompt[i] = 20;
    }
    /* Prefill takes steps 0..5, decode goes on from 6; the second request waits all the time. */
    const struct {
        size_t at_step;
        bool is_second;
        size_t n_output; /* of the cancelled one */
    } cases[] = {{2, false, 0}, {5, false, 1}, {8, false, 4}, {3, true, 0}};
    for (size_t i = 0; i < 4; i++) {
        struct cancel_plan plan = {.at_step = cases[i].at_step};
        struct engine_request first = request_of(long_prompt, 60, 20),
                              second = request_of(prompt, 1, 5);
        struct results rs;
        struct rig r;
        uint64_t ids[2];

        results_init(&rs);
        rig_open(&r, &s);
        record_spans(&r);
        ids[0] = submit(&r, &first);
        ids[1] = submit(&r, &second);
        plan.rig = &r;
        plan.id = ids[cases[i].is_second];
        r.model->on_step = cancel_at_step;
        r.model->ctx = &plan;
        rig_start(&r);
        collect(r.port, &rs, 2);
        const struct result *cancelled = result_of(&rs, plan.id);
        const struct result *other = result_of(&rs, ids[!cases[i].is_second]);
        assert_int_equal(cancelled->last.reason, FINISH_ABORT);
        assert_int_equal(cancelled->last.n_output, cases[i].n_output);
        assert_int_equal(other->last.reason, FINISH_LENGTH);
        if (cases[i].is_second) {
            for (size_t l = 0; l < r.model->n_log; l++) { /* dropped without work */
                assert_false(r.model->log[l].position == 0 && r.model->log[l].first == 7);
            }
            assert_int_equal(rs.of[0].request, ids[1]); /* and at once */
        } else if (cases[i].at_step < 5) {
            assert_int_equal(last_step_with(r.model, 20), cases[i].at_step);
        }
        struct engine_stats stats;
        engine_get_stats(r.engine, &stats);
        assert_int_equal(stats.n_aborted, 1);
        assert_int_equal(stats.state.live_used, 0);
        assert_int_equal(stats.state.pages_used, 0);
        engine_cancel(r.engine, plan.id); /* finished, and unknown: ignored */
        engine_cancel(r.engine, 123456);
        rig_close(&r);
        results_release(&rs);
    }
}

static void test_freeing_a_port_cancels_its_requests(void **state)
{
    static struct result solo;
    const int32_t prompt[] = {7};
    struct engine_request q = request_of(prompt, 1, 60);
    struct setup s = scripted;
    struct cancel_plan plan = {.at_step = 70, .frees_port = true};
    struct results rs;
    struct rig r;
    uint64_t id;
    (void)state;

    s.is_endless = true;
    results_init(&rs);
    rig_open(&r, &s);
    rig_start(&r);
    run_one(&r, &q, &solo); /* steps 0..59 */
    assert_int_equal(engine_port_new(&plan.port, r.engine, NULL), OK);
    r.model->on_step = cancel_at_step;
    r.model->ctx = &plan;
    assert_int_equal(engine_submit(r.engine, plan.port, &q, &id, NULL), OK);
    submit(&r, &q);
    collect(r.port, &rs, 1);
    assert_same(&rs.of[0], &solo);
    struct engine_stats stats;
    engine_get_stats(r.engine, &stats);
    assert_int_equal(stats.n_aborted, 1);
    assert_int_equal(stats.n_finished, 2);
    rig_close(&r);
    results_release(&rs);
}

static void test_a_receiver_that_does_not_drain(void **state)
{
    const int32_t prompt[] = {7};
    struct setup s = {2, 8, 8, 64, 20000, 1000, true, true};
    struct engine_request greedy_one = request_of(prompt, 1, 19000),
                          small = request_of(prompt, 1, 50);
    struct engine_port *lazy;
    struct engine_event e;
    static struct result out;
    struct engine_stats stats;
    struct error err;
    struct rig r;
    size_t n_events = 0;
    uint64_t id;
    (void)state;

    rig_open(&r, &s);
    rig_start(&r);
    assert_int_equal(engine_port_new(&lazy, r.engine, NULL), OK);
    assert_int_equal(engine_submit(r.engine, lazy, &greedy_one, &id, NULL), OK);
    do { /* others go on meanwhile */
        run_one(&r, &small, &out);
        assert_int_equal(out.last.reason, FINISH_LENGTH);
        engine_get_stats(r.engine, &stats);
    } while (stats.n_aborted == 0);
    assert_int_equal(engine_submit(r.engine, lazy, &small, &id, &err), ERR_BUSY);
    while (engine_port_pop(lazy, &e)) {
        n_events++;
        engine_event_release(&e);
    }
    assert_int_equal(n_events, PORT_EVENTS_MAX + 1);
    assert_int_equal(e.kind, ENGINE_EVENT_DONE);
    assert_int_equal(e.reason, FINISH_ABORT);
    engine_port_free(lazy);
    rig_close(&r);
}

static void test_a_lost_token_is_never_a_finish(void **state)
{
    const int32_t prompt[] = {7};
    struct setup s = {1, 8, 8, 64, 20000, 1000, true, true};
    (void)state;

    for (size_t over = 0; over < 2; over++) { /* STARTED and the tokens just fit, or one does not */
        size_t n_tokens = PORT_EVENTS_MAX - 1 + over;
        struct engine_request q = request_of(prompt, 1, n_tokens);
        struct engine_event e;
        struct engine_stats stats;
        struct rig r;

        rig_open(&r, &s);
        rig_start(&r);
        submit(&r, &q);
        do {
            engine_get_stats(r.engine, &stats);
        } while (stats.n_finished + stats.n_aborted == 0);
        engine_free(r.engine); /* after it the last event is there */
        while (engine_port_pop(r.port, &e)) {
            engine_event_release(&e);
        }
        assert_int_equal(e.kind, ENGINE_EVENT_DONE);
        assert_int_equal(e.reason, over ? FINISH_ABORT : FINISH_LENGTH);
        assert_int_equal(e.n_output, n_tokens);
        engine_port_free(r.port);
        check_all_given_back(&r);
        free(r.model);
    }
}

static void test_freeing_the_engine_ends_everything(void **state)
{
    const int32_t prompt[] = {7};
    struct engine_request q = request_of(prompt, 1, 0);
    struct setup s = {2, 8, 8, 64, 100000, 5000, true, true};
    (void)state;

    for (int is_started = 0; is_started < 2; is_started++) {
        struct results rs;
        struct rig r;

        results_init(&rs);
        rig_open(&r, &s);
        for (size_t i = 0; i < 5; i++) {
            submit(&r, &q);
        }
        if (is_started) {
            struct engine_event e;
            rig_start(&r);
            assert_true(engine_port_wait(r.port, WAIT_MS)); /* something runs */
            assert_true(engine_port_pop(r.port, &e));
            engine_event_release(&e);
        }
        engine_free(r.engine);
        check_all_given_back(&r);
        struct engine_event e;
        size_t n_last = 0;
        while (engine_port_pop(r.port, &e)) {
            if (e.kind == ENGINE_EVENT_DONE) {
                assert_int_equal(e.reason, FINISH_ABORT);
                n_last++;
            }
            engine_event_release(&e);
        }
        assert_int_equal(n_last, 5);
        engine_port_free(r.port);
        free(r.model);
        results_release(&rs);
    }
}

static bool is_readable(const struct engine_port *p)
{
    struct pollfd pfd = {.fd = engine_port_fd(p), .events = POLLIN};

    return poll(&pfd, 1, 0) == 1;
}

static void test_fd_is_readable_while_events_wait(void **state)
{
    const int32_t prompt[] = {5};
    struct engine_request q = request_of(prompt, 1, 3);
    struct engine_event e;
    struct rig r;
    size_t n = 0;
    (void)state;

    rig_open(&r, &scripted);
    assert_false(is_readable(r.port));
    assert_false(engine_port_wait(r.port, 0));
    assert_false(engine_port_pop(r.port, &e));
    submit(&r, &q);
    engine_free(r.engine); /* never started: exactly one event */
    assert_true(is_readable(r.port));
    assert_true(engine_port_wait(r.port, -1));
    while (engine_port_pop(r.port, &e)) {
        engine_event_release(&e);
        n++;
    }
    assert_int_equal(n, 1);
    assert_false(is_readable(r.port));
    engine_port_free(r.port);
    free(r.model);
}

/* ---- a storm ---- */

enum { STORM_THREADS = 4, STORM_REQUESTS = 2500 };

struct storm {
    struct rig *rig;
    uint64_t seed;
    size_t n_submitted, n_refused, n_last;
    bool is_wrong;
};

static size_t drain(struct engine_port *port, bool *is_wrong)
{
    struct engine_event e;
    size_t n_last = 0;

    while (engine_port_pop(port, &e)) {
        n_last += e.kind == ENGINE_EVENT_DONE || e.kind == ENGINE_EVENT_ERROR;
        *is_wrong |= e.kind == ENGINE_EVENT_ERROR;
        engine_event_release(&e);
    }
    return n_last;
}

static void *storm_main(void *arg)
{
    struct storm *s = arg;
    int32_t prompt[40];
    struct engine_port *port;
    uint64_t recent[8] = {0}; /* cancelled at random, some long finished */
    size_t n_here = 0;        /* submitted on the present port, without last event */

    if (engine_port_new(&port, s->rig->engine, NULL) != OK) {
        s->is_wrong = true;
        return NULL;
    }
    for (size_t i = 0; i < STORM_REQUESTS; i++) {
        s->seed = s->seed * 6364136223846793005u + 1442695040888963407u;
        uint64_t dice = s->seed >> 33;
        size_t n = 1 + dice % 40;
        for (size_t t = 0; t < n; t++) {
            prompt[t] = (int32_t)(FAKE_FIRST + t % 30);
        }
        struct engine_request q = request_of(prompt, n, 1 + dice % 37);
        enum status rc = engine_submit(s->rig->engine, port, &q, &recent[i % 8], NULL);
        s->n_submitted += rc == OK;
        s->n_refused += rc == ERR_BUSY;
        n_here += rc == OK;
        s->is_wrong |= rc != OK && rc != ERR_BUSY;
        if (dice % 3 == 0) {
            engine_cancel(s->rig->engine, recent[dice / 3 % 8]);
        }
        if (dice % 97 == 0) { /* a client that leaves with everything open */
            s->n_last += n_here;
            engine_port_free(port);
            n_here = 0;
            if (engine_port_new(&port, s->rig->engine, NULL) != OK) {
                s->is_wrong = true;
                return NULL;
            }
        } else if (rc == ERR_BUSY || dice % 5 == 0) {
            if (n_here > 0) {
                engine_port_wait(port, WAIT_MS);
            }
            size_t n_last = drain(port, &s->is_wrong);
            n_here -= n_last;
            s->n_last += n_last;
        }
    }
    while (n_here > 0 && engine_port_wait(port, WAIT_MS)) {
        size_t n_last = drain(port, &s->is_wrong);
        n_here -= n_last;
        s->n_last += n_last;
    }
    engine_port_free(port);
    return NULL;
}

static void test_storm_of_submits_and_cancels(void **state)
{
    struct setup s = {4, 40, 8, 32, 100, 6, false, false};
    struct storm storms[STORM_THREADS];
    pthread_t threads[STORM_THREADS];
    size_t n_submitted = 0;
    struct engine_stats stats;
    struct rig r;
    (void)state;

    rig_open(&r, &s);
    rig_start(&r);
    for (size_t i = 0; i < STORM_THREADS; i++) {
        storms[i] = (struct storm){.rig = &r, .seed = i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, storm_main, &storms[i]), 0);
    }
    for (size_t i = 0; i < STORM_THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_false(storms[i].is_wrong);
        assert_int_equal(storms[i].n_submitted + storms[i].n_refused, STORM_REQUESTS);
        assert_int_equal(storms[i].n_last, storms[i].n_submitted); /* one end each */
        n_submitted += storms[i].n_submitted;
    }
    engine_get_stats(r.engine, &stats);
    assert_int_equal(stats.n_requests, n_submitted);
    assert_int_equal(stats.n_failed, 0);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_requests_are_refused_while_others_run),
        cmocka_unit_test(test_requests_at_the_limits),
        cmocka_unit_test(test_a_fault_ends_its_own_request_only),
        cmocka_unit_test(test_a_device_error_ends_the_step_and_not_the_engine),
        cmocka_unit_test(test_options_that_do_not_fit),
        cmocka_unit_test(test_cancel_in_each_phase),
        cmocka_unit_test(test_freeing_a_port_cancels_its_requests),
        cmocka_unit_test(test_a_receiver_that_does_not_drain),
        cmocka_unit_test(test_a_lost_token_is_never_a_finish),
        cmocka_unit_test(test_freeing_the_engine_ends_everything),
        cmocka_unit_test(test_fd_is_readable_while_events_wait),
        cmocka_unit_test(test_storm_of_submits_and_cancels),
    };
    return cmocka_run_group_tests_name("engine_faults", tests, NULL, NULL);
}
