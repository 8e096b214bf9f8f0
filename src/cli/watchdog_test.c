/* watchdog_test.c - when a step counts as hanging. The clock is the test's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/watchdog.h"
#include "runtime/engine.h"

static void test_limit(void **state)
{
    const uint64_t begun = UINT64_C(5000000000), limit = UINT64_C(300000000000);
    struct engine_stats running = {.step_in_flight = true, .step_started_ns = begun};
    struct engine_stats idle = {.step_in_flight = false, .step_started_ns = begun};

    (void)state;
    assert_false(watchdog_is_late(&running, 300, begun));
    assert_false(watchdog_is_late(&running, 300, begun + limit - 1));
    assert_true(watchdog_is_late(&running, 300, begun + limit));
    assert_true(watchdog_is_late(&running, 300, begun + limit + 1));
    assert_false(watchdog_is_late(&running, 300, begun - 1)); /* it began after the look */
    assert_false(watchdog_is_late(&idle, 300, begun + 2 * limit));
    assert_false(watchdog_is_late(&running, 0, UINT64_MAX)); /* switched off */
}

static void test_interval(void **state)
{
    (void)state;
    assert_int_equal(watchdog_interval_ms(300), 1000);
    assert_int_equal(watchdog_interval_ms(10), 1000);
    assert_int_equal(watchdog_interval_ms(1), 100);
    assert_int_equal(watchdog_interval_ms(0.01), 1);
    assert_int_equal(watchdog_interval_ms(0.001), 1);
    assert_int_equal(watchdog_interval_ms(1e6), 1000);
    assert_int_equal(watchdog_interval_ms(0), 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_interval),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
