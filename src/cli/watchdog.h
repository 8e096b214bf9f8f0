/* watchdog.h - notices a step of the model that does not end.
 *
 * Place: cli; asked by the thread that waits in cmd_serve.c.
 * Idea:  a step that hangs cannot be called off: its thread is inside a kernel or a driver, and what it
 *        holds cannot be freed. Only a new process helps. So at half of the limit /health turns 503,
 *        and whoever balances load goes elsewhere; at the limit the requests get an error and the
 *        process ends with code 72, for its supervisor to start it again. */
#ifndef CLI_WATCHDOG_H
#define CLI_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>

struct engine_stats;

/* Has the step in flight run for limit_s or longer at now_ns (of clock_now_ns)? limit_s 0: never. */
bool watchdog_is_late(const struct engine_stats *stats, double limit_s, uint64_t now_ns);

/* How long to wait between two looks: a tenth of the limit, within a millisecond and a second. */
unsigned watchdog_interval_ms(double limit_s);

#endif
