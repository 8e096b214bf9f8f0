/* bench_run_test.c - statistics, bounds, and short runs over the demo model.
 *
 * Place: cli, cmocka. Speeds are not judged, only that the numbers belong together: what was counted must
 *        follow from the model's sizes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/pool.h"
#include "cli/bench_run.h"
#include "cli/model_setup.h"

enum { PROBE_BYTES = 4 << 20 }; /* the machine's speed is not what is tested */
enum { EXPERTS = 16, TOP_K = 4, LAYERS = 8, HIDDEN = 256, VOCAB = 4096 }; /* of the demo model */

static void test_stats(void **state)
{
    double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 2}, one[] = {5}, five[] = {50, 10, 40, 20, 30};
    (void)state;

    struct bench_stats s = bench_stats_of(odd, 3);
    assert_true(s.median == 2 && s.least == 1 && s.most == 3);
    assert_true(s.low == 1.5 && s.high == 2.5);
    s = bench_stats_of(even, 4);
    assert_true(s.median == 2.5 && s.least == 1 && s.most == 4);
    assert_true(s.low == 1.75 && s.high == 3.25);
    s = bench_stats_of(one, 1);
    assert_true(s.median == 5 && s.least == 5 && s.low == 5 && s.high == 5 && s.most == 5);
    s = bench_stats_of(five, 5);
    assert_true(s.median == 30 && s.low == 20 && s.high == 40);
}

static void test_bound(void **state)
{
    const struct machine_bounds m = {
        .memory_bytes_s = 100, .cached_bytes_s = 1000, .f32_flop_s = 10, .int8_op_s = 40};
    struct op_cost c = {.bytes = {50, 30, 15, 5}, .flop = 8, .flop_quantised = 4};
    bool is_memory;
    (void)state;

    assert_true(bench_bound_s(&is_memory, &c, &m, false, false) == 1.0);
    assert_true(is_memory);
    assert_true(fabs(bench_bound_s(&is_memory, &c, &m, true, false) - 0.8) < 1e-12);
    assert_false(is_memory);
    assert_true(fabs(bench_bound_s(&is_memory, &c, &m, true, true) - 0.5) < 1e-12);
    assert_false(is_memory);
}

static void open_rill(struct model_setup *setup)
{
    const struct model_setup_options options = {.quiet = true, .n_snapshots = 3};
    struct model_flags flags = {0};
    struct error err = {0};

    model_flags_defaults(&flags);
    flags.model_path = SPILLWAY_SOURCE_DIR "/models/rill";
    flags.max_running_requests = 3;
    flags.max_total_tokens = 1024;
    flags.context_length = 256;
    flags.chunked_prefill_size = 64;
    flags.threads = 2;
    if (model_setup_open(setup, &flags, &options, NULL, &err) != OK) {
        fail_msg("%s", err.text);
    }
}

static void check_row(const struct bench_row *row)
{
    const struct bench_stats *s = &row->tok_s;

    assert_true(s->least > 0);
    assert_true(s->least <= s->low && s->low <= s->median);
    assert_true(s->median <= s->high && s->high <= s->most && isfinite(s->most));
    assert_true(isfinite(row->bound_tok_s) && row->bound_tok_s > 0);
    assert_true(row->cost.flop > row->cost.flop_quantised && row->cost.flop_quantised > 0);
    for (int i = 0; i < COST_CLASS_COUNT; i++) {
        assert_true(row->cost.bytes[i] > 0);
    }
}

static void check_machine(const struct machine_bounds *m)
{
    assert_true(m->memory_bytes_s > 0 && isfinite(m->memory_bytes_s));
    assert_true(m->f32_flop_s > 0 && isfinite(m->f32_flop_s));
    assert_true(m->int8_op_s > 0 && isfinite(m->int8_op_s));
}

static void run(struct bench_result *result, const struct bench_plan *plan)
{
    struct bench_plan small = *plan;
    struct model_setup setup;
    struct error err = {0};
    struct state_counts counts;

    small.probe_bytes_max = PROBE_BYTES;
    open_rill(&setup);
    if (bench_run(result, setup.model, setup.backend, &small, NULL, &err) != OK) {
        fail_msg("%s", err.text);
    }
    counts = state_store_counts(model_states(setup.model));
    assert_int_equal(counts.live_used, 0);
    assert_int_equal(counts.snapshots_used, 0);
    assert_int_equal(counts.pages_used, 0);
    model_setup_close(&setup);
}

static void test_cases_and_threads(void **state)
{
    const struct bench_plan plan = {.threads = {{1, 2}, 2},
                                    .prompts = {{1, 70}, 2},
                                    .depths = {{0, 70}, 2},
                                    .batches = {{1, 3}, 2},
                                    .decode_tokens = 2,
                                    .repeat = 2,
                                    .chunk_tokens = 64};
    struct bench_result r;
    (void)state;

    run(&r, &plan);
    assert_int_equal(r.n_rows, 2 * (2 + 4));
    assert_int_equal(r.n_bounds, 2);
    assert_int_equal(r.n_experts, EXPERTS);
    for (size_t i = 0; i < r.n_bounds; i++) {
        assert_int_equal(r.bounds[i].n_threads, i + 1);
        check_machine(&r.bounds[i].machine);
    }
    for (size_t i = 0; i < r.n_rows; i++) {
        check_row(&r.rows[i]);
        assert_int_equal(r.rows[i].n_threads, i / 6 + 1);
        assert_int_equal(r.rows[i].kind, i % 6 < 2 ? BENCH_PREFILL : BENCH_DECODE);
    }
    const struct bench_row *one = &r.rows[2], *deep = &r.rows[3], *three = &r.rows[4];
    assert_true(one->n_seqs == 1 && one->depth == 0);
    assert_true(deep->n_seqs == 1 && deep->depth == 70);
    assert_true(three->n_seqs == 3 && three->depth == 0);
    /* A token alone touches its own experts; three tokens share some weights. */
    assert_true(one->n_touched == TOP_K);
    assert_true(three->n_touched >= TOP_K && three->n_touched <= 3 * TOP_K);
    assert_true(three->cost.bytes[COST_DENSE] < one->cost.bytes[COST_DENSE] / 2);
    assert_true(three->cost.bytes[COST_STATE] == one->cost.bytes[COST_STATE]);
    /* 70 tokens more of 2 layers, 2 heads of 64, keys and values, float32 */
    assert_true(fabs(deep->cost.bytes[COST_KV] - one->cost.bytes[COST_KV] -
                     70.0 * 2 * 2 * 64 * 2 * sizeof(float)) < 1e-6);
    bench_result_release(&r);
}

static void test_made_up_routing(void **state)
{
    static const enum routing_kind kinds[] = {ROUTING_UNIFORM, ROUTING_LOCAL};
    (void)state;

    for (size_t i = 0; i < 2; i++) {
        const struct bench_plan plan = {.prompts = {{128}, 1},
                                        .depths = {{0}, 1},
                                        .batches = {{1}, 1},
                                        .decode_tokens = 4,
                                        .repeat = 1,
                                        .chunk_tokens = 64,
                                        .routing = kinds[i]};
        struct bench_result r;

        run(&r, &plan);
        assert_int_equal(r.n_rows, 2);
        /* 64 tokens reach nearly every expert; one token exactly its own. */
        assert_true(r.rows[0].n_touched > EXPERTS - 2 && r.rows[0].n_touched <= EXPERTS);
        assert_true(r.rows[1].n_touched == TOP_K);
        bench_result_release(&r);
    }
}

static void test_profile(void **state)
{
    struct op_profile profile = {0};
    const struct bench_plan plan = {.depths = {{0}, 1},
                                    .batches = {{2}, 1},
                                    .decode_tokens = 3,
                                    .repeat = 1,
                                    .profile = &profile};
    struct bench_result r;
    size_t n_head = 0, n_experts = 0;
    double share, bytes = 0;
    (void)state;

    run(&r, &plan);
    share = op_profile_sort(&profile);
    assert_true(share > 0 && share <= 1);
    assert_int_equal(profile.n_steps, 3);
    assert_int_equal(profile.n_tokens, 6);
    for (size_t i = 0; i < profile.n_rows; i++) {
        const struct profile_row *row = &profile.rows[i];

        assert_true(i == 0 || row->ns <= profile.rows[i - 1].ns);
        n_head += strcmp(row->name, "lm_head") == 0 ? row->n_calls : 0;
        n_experts += row->kind == OP_EXPERTS ? row->n_calls : 0;
        bytes += row->bytes;
    }
    assert_int_equal(n_head, 3);
    assert_int_equal(n_experts, 3 * LAYERS);
    /* the same accounting as the case's own, up to the choice of the step that stands for all */
    assert_true(fabs(bytes / 6 / op_cost_bytes(&r.rows[0].cost) - 1) < 0.1);
    bench_result_release(&r);
}

static void test_cases_that_do_not_fit(void **state)
{
    const struct bench_plan
        too_long = {.prompts = {{257}, 1}, .repeat = 1},
        too_many = {.depths = {{0}, 1}, .batches = {{5}, 1}, .decode_tokens = 1, .repeat = 1},
        too_deep = {.depths = {{250}, 1}, .batches = {{4}, 1}, .decode_tokens = 6, .repeat = 1};
    struct bench_result result;
    struct model_setup setup;
    struct error err = {0};
    (void)state;

    open_rill(&setup);
    assert_int_equal(bench_run(&result, setup.model, setup.backend, &too_long, NULL, &err),
                     ERR_LIMIT);
    assert_non_null(strstr(err.text, "257 tokens"));
    assert_int_equal(bench_run(&result, setup.model, setup.backend, &too_many, NULL, &err),
                     ERR_LIMIT);
    assert_non_null(strstr(err.text, "5 sequences"));
    assert_int_equal(bench_run(&result, setup.model, setup.backend, &too_deep, NULL, &err),
                     ERR_LIMIT);
    assert_non_null(strstr(err.text, "KV pool"));
    assert_int_equal(state_store_counts(model_states(setup.model)).live_used, 0);
    model_setup_close(&setup);
}

static void test_little_memory(void **state)
{
    struct machine_probe p;
    struct machine_bounds m;
    struct error err;
    (void)state;

    assert_int_equal(machine_probe_open(&p, 1, NULL, &err), OK);
    assert_true(p.is_small && p.n_bytes > 0);
    machine_bounds_measure(&m, &p, "scalar", 8192, NULL);
    check_machine(&m);
    assert_true(m.cached_bytes_s > 0);
    machine_bounds_measure(&m, &p, "no such set", 0, NULL);
    check_machine(&m);
    assert_true(m.cached_bytes_s == 0);
    machine_probe_close(&p);
}

/* ---- the link, to a stand-in of a card ---- */

static bool stand_in_is_full;

static void *stand_in_new(struct backend *be, size_t n_bytes)
{
    (void)be;
    return stand_in_is_full ? NULL : calloc(n_bytes, 1);
}

static void stand_in_free(struct backend *be, void *data)
{
    (void)be;
    free(data);
}

/* A tenth of it: the test need not last. */
static void stand_in_write(struct backend *be, void *dst, const void *host, size_t n_bytes)
{
    (void)be;
    memcpy(dst, host, n_bytes / 10);
}

static enum status stand_in_wait(struct backend *be, struct error *err)
{
    (void)be;
    (void)err;
    return OK;
}

static void test_link(void **state)
{
    const struct backend_ops ops = {.buffer_new = stand_in_new,
                                    .buffer_free = stand_in_free,
                                    .host_new = stand_in_new,
                                    .host_free = stand_in_free,
                                    .write_later = stand_in_write,
                                    .wait = stand_in_wait};
    struct backend be = {.ops = &ops};
    struct machine_probe p;
    struct link_bounds b;
    struct error err = {0};

    (void)state;
    assert_int_equal(machine_probe_open(&p, PROBE_BYTES, NULL, &err), OK);
    assert_int_equal(link_bounds_measure(&b, &be, &p, "scalar", PROBE_BYTES, NULL, &err), OK);
    assert_true(b.link_bytes_s > 0 && b.cpu_bytes_s > 0 && b.cpu_shared_bytes_s > 0);
    assert_true(b.link_shared_bytes_s >= 0 && b.link_shared_bytes_s <= b.link_bytes_s);
    stand_in_is_full = true;
    assert_int_equal(link_bounds_measure(&b, &be, &p, "scalar", PROBE_BYTES, NULL, &err),
                     ERR_NO_MEMORY);
    machine_probe_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stats),
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_cases_and_threads),
        cmocka_unit_test(test_made_up_routing),
        cmocka_unit_test(test_profile),
        cmocka_unit_test(test_cases_that_do_not_fit),
        cmocka_unit_test(test_little_memory),
        cmocka_unit_test(test_link),
    };
    return cmocka_run_group_tests_name("bench_run", tests, NULL, NULL);
}
