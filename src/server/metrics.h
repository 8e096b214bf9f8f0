/* metrics.h - what the server counts, and Prometheus' text form of it.
 *
 * Place: server; the loop thread only. Numbers of the engine are read from engine_get_stats when the
 *        text is made. Names begin with spillway_; times are seconds. */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "offload/offload.h"
#include "runtime/engine.h"

enum { HISTOGRAM_BUCKETS = 16, METRICS_STATUSES = 24 };

struct histogram {
    uint64_t counts[HISTOGRAM_BUCKETS + 1]; /* the last one: above all bounds */
    double sum;
};

struct metrics {
    struct {
        int status;
        uint64_t n;
    } answers[METRICS_STATUSES];         /* HTTP answers by status, in order of appearance */
    uint64_t finished[FINISH_ERROR + 1]; /* choices by finish reason */
    uint64_t prompt_tokens, output_tokens, cached_tokens; /* of finished choices */
    struct histogram first_token, whole, queue, prefill, decode;
};

void metrics_count_answer(struct metrics *m, int status);
void metrics_count_choice(struct metrics *m, const struct engine_event *done);
void histogram_add(struct histogram *h, double seconds);

struct metrics_gauges { /* what others know */
    const char *model_name;
    size_t n_connections;
    size_t max_running;
    const struct engine_stats *engine;   /* NULL: not loaded */
    const struct offload_stats *offload; /* NULL: no experts overflow */
};
void metrics_write(struct buf *out, const struct metrics *m, const struct metrics_gauges *g);

#endif
