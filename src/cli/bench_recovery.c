/* bench_recovery.c - see bench_recovery.h. */
#include "cli/bench_recovery.h"

#include <math.h>

static double window_mean(const struct bench_recovery *r, size_t from)
{
    double sum = 0;

    for (size_t i = from; i < from + RECOVERY_WINDOW; i++) {
        sum += isnan(r->hits[i]) ? r->before : r->hits[i];
    }
    return sum / RECOVERY_WINDOW;
}

void bench_recovery_judge(struct bench_recovery *r)
{
    r->after_first = window_mean(r, 0);
    r->after_last = window_mean(r, RECOVERY_STEPS - RECOVERY_WINDOW);
    r->n_steps = RECOVERY_STEPS;
    for (size_t at = 0; at + RECOVERY_WINDOW <= RECOVERY_STEPS; at++) {
        if (window_mean(r, at) >= r->before - RECOVERY_LOSS) {
            r->n_steps = at;
            return;
        }
    }
}
