/* bench_stats.h - a few numbers that stand for many measurements.
 *
 * Place: cli. The median, since one disturbed run must not count; quartiles and extremes, since a reader
 *        must see how much to believe. */
#ifndef CLI_BENCH_STATS_H
#define CLI_BENCH_STATS_H

#include <stddef.h>

struct bench_stats {
    double least, low, median, high, most; /* low and high: quartiles, interpolated */
};

/* Of n >= 1 values; sorts them. */
struct bench_stats bench_stats_of(double *values, size_t n);

#endif
