/* bench_run_test.c - the summary, and one short run over the demo model.
 *
 * Place: cli, cmocka. Speeds are not judged, only that the numbers belong together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/bench_run.h"
#include "cli/model_setup.h"

static void test_summary(void **state)
{
    double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 2}, one[] = {5};
    (void)state;

    struct bench_rate r = bench_summarise(odd, 3);
    assert_true(r.median == 2 && r.least == 1 && r.most == 3);
    r = bench_summarise(even, 4);
    assert_true(r.median == 2.5 && r.least == 1 && r.most == 4);
    r = bench_summarise(one, 1);
    assert_true(r.median == 5 && r.least == 5 && r.most == 5);
}

static void check_rate(const struct bench_rate *r)
{
    assert_true(r->least > 0);
    assert_true(r->least <= r->median && r->median <= r->most);
}

static void open_rill(struct model_setup *setup)
{
    const struct model_setup_options options = {.quiet = true};
    struct model_flags flags = {0};
    struct error err = {0};

    model_flags_defaults(&flags);
    flags.model_path = SPILLWAY_SOURCE_DIR "/models/rill";
    flags.max_running_requests = 3;
    flags.context_length = 128;
    flags.chunked_prefill_size = 64;
    if (model_setup_open(setup, &flags, &options, NULL, &err) != OK) {
        fail_msg("%s", err.text);
    }
}

static void test_short_run(void **state)
{
    const struct bench_plan plan = {.prompt_tokens = {1, 70},
                                    .n_prompts = 2,
                                    .batches = {1, 3},
                                    .n_batches = 2,
                                    .decode_tokens = 2,
                                    .repeat = 2,
                                    .chunk_tokens = 64};
    struct bench_result result;
    struct model_setup setup;
    struct error err = {0};
    (void)state;

    open_rill(&setup);
    assert_int_equal(bench_run(&result, setup.model, &plan, NULL, &err), OK);
    for (size_t i = 0; i < 2; i++) {
        check_rate(&result.prefill[i]);
        check_rate(&result.decode[i]);
    }
    assert_int_equal(state_store_counts(model_states(setup.model)).live_used, 0);
    model_setup_close(&setup);
}

static void test_cases_that_do_not_fit(void **state)
{
    struct bench_plan too_long = {.prompt_tokens = {129}, .n_prompts = 1, .repeat = 1},
                      too_many = {.batches = {4}, .n_batches = 1, .decode_tokens = 1, .repeat = 1};
    struct bench_result result;
    struct model_setup setup;
    struct error err = {0};
    (void)state;

    open_rill(&setup);
    assert_int_equal(bench_run(&result, setup.model, &too_long, NULL, &err), ERR_LIMIT);
    assert_non_null(strstr(err.text, "129 tokens"));
    err = (struct error){0};
    assert_int_equal(bench_run(&result, setup.model, &too_many, NULL, &err), ERR_LIMIT);
    assert_non_null(strstr(err.text, "4 sequences"));
    assert_int_equal(state_store_counts(model_states(setup.model)).live_used, 0);
    model_setup_close(&setup);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_summary),
        cmocka_unit_test(test_short_run),
        cmocka_unit_test(test_cases_that_do_not_fit),
    };
    return cmocka_run_group_tests_name("bench_run", tests, NULL, NULL);
}
