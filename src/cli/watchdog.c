/* watchdog.c - see watchdog.h. */
#include "cli/watchdog.h"

#include "runtime/engine.h"

enum { INTERVAL_MS_MIN = 1, INTERVAL_MS_MAX = 1000 };

bool watchdog_is_late(const struct engine_stats *stats, double limit_s, uint64_t now_ns)
{
    /* The step may have begun after the caller read the clock. */
    if (limit_s <= 0 || !stats->step_in_flight || now_ns < stats->step_started_ns) {
        return false;
    }
    return (double)(now_ns - stats->step_started_ns) >= limit_s * 1e9;
}

unsigned watchdog_interval_ms(double limit_s)
{
    double ms = limit_s * 100;

    if (!(ms > INTERVAL_MS_MIN)) {
        return limit_s > 0 ? INTERVAL_MS_MIN : INTERVAL_MS_MAX;
    }
    return ms < INTERVAL_MS_MAX ? (unsigned)ms : INTERVAL_MS_MAX;
}
