/* bench_stats.c - see bench_stats.h. */
#include "cli/bench_stats.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The value below which `share` of the sorted ones lie, between two of them if need be. */
static double quantile(const double *sorted, size_t n, double share)
{
    double at = share * (double)(n - 1);
    size_t i = (size_t)at;

    return i + 1 < n ? sorted[i] + (at - (double)i) * (sorted[i + 1] - sorted[i]) : sorted[n - 1];
}

struct bench_stats bench_stats_of(double *values, size_t n)
{
    qsort(values, n, sizeof *values, by_value);
    return (struct bench_stats){.least = values[0],
                                .low = quantile(values, n, 0.25),
                                .median = quantile(values, n, 0.5),
                                .high = quantile(values, n, 0.75),
                                .most = values[n - 1]};
}
