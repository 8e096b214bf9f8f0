/* clock.c - see clock.h. */
#include "base/clock.h"

#include <time.h>

uint64_t clock_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}

uint64_t clock_now_ms(void)
{
    return clock_now_ns() / UINT64_C(1000000);
}

int64_t clock_wall_s(void)
{
    return (int64_t)time(NULL);
}

double clock_seconds_since(uint64_t start_ns)
{
    return (double)(clock_now_ns() - start_ns) * 1e-9;
}
