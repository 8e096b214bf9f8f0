/* bench_report.h - a benchmark's result as a table, as JSON and as a picture.
 *
 * Place: cli. All three say under which conditions the numbers were made: model, program, machine, threads,
 *        kernels, routing. What is not finite (a bound of nothing) is null in JSON, "-" in the table and
 *        left out of the picture. */
#ifndef CLI_BENCH_REPORT_H
#define CLI_BENCH_REPORT_H

#include <stdio.h>

#include "base/buf.h"
#include "base/status.h"
#include "cli/bench_run.h"

struct bench_report {
    const struct bench_plan *plan;
    const struct bench_result *result;
    const char *model_path;
    double load_s;
    size_t checkpoint_bytes, weight_bytes; /* in the files; as the kernels read them */
    const char *dtype, *activations, *dense_quant, *routing, *isa;
    const char *card; /* NULL: the CPU computes */
    char cpu[128], features[128];
    double load_average; /* of the machine over the minute before; negative: unknown */
};

void bench_report_table(FILE *out, const struct bench_report *r);

/* One object and a line end, appended. ERR_NO_MEMORY. */
enum status bench_report_json(struct buf *out, const struct bench_report *r, struct error *err);

/* An SVG file's content, appended: one bar per case, achieved within bound. ERR_NO_MEMORY. */
enum status bench_report_svg(struct buf *out, const struct bench_report *r, struct error *err);

/* "prefill 512" or "decode 4 x, depth 1024": what the case is, without the threads. */
void bench_row_label(char *out, size_t n, const struct bench_row *row);

/* "memory", "cache" or "arithmetic"; where experts overflow "card" or "misses". */
const char *bench_bound_name(const struct bench_result *r, const struct bench_row *row);

#endif
