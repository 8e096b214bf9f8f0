/* bench_sweep.h - `bench --offload`: speed against the memory that the card may use.
 *
 * Place:  cli; used by cmd_bench.c. For each way to quantise dense matrices and each budget the model is
 *         opened anew in one process (its files stay in the page cache), and all cases run with each routing.
 *         A budget that the model does not fit is a line of the table, not the end.
 * Ways:   with --offload-ablation the model is also opened without each of the mechanisms that serve misses, so
 *         that what each is worth is measured in one process.
 * Warm:   what slots hold goes on from case to case, and sequences' made-up routing goes on from run to run;
 *         with runs as long as the default, slots hold after the untimed run what they hold in the long run. */
#ifndef CLI_BENCH_SWEEP_H
#define CLI_BENCH_SWEEP_H

#include <stdio.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/status.h"
#include "cli/bench_card.h"
#include "cli/bench_run.h"
#include "cli/model_setup.h"

enum { SWEEP_BUDGETS_MAX = 16, SWEEP_DENSE = 2, SWEEP_ROUTINGS = 3 };

struct sweep_way {
    const char *name;        /* static */
    const char *expert_miss; /* as the flag says it */
    bool no_prefetch, no_overlap;
};
extern const struct sweep_way
    sweep_ablation[]; /* from a cache alone to everything, then in turns */
extern const size_t sweep_ablation_count;

struct sweep_plan {
    double budgets[SWEEP_BUDGETS_MAX]; /* GiB; 0: the whole card */
    size_t n_budgets;
    const char *dense[SWEEP_DENSE]; /* as --dense-quant says it */
    size_t n_dense;
    const char *routings[SWEEP_ROUTINGS]; /* as --routing says it */
    size_t n_routings;
    const struct sweep_way *ways; /* borrowed */
    size_t n_ways;                /* 0: one, as the flags say */
};

struct sweep_point {
    double budget_gb;
    const struct sweep_way *way; /* NULL: as the flags say */
    const char *dense, *routing;
    char refused[ERROR_TEXT_BYTES]; /* why this budget cannot be; "" else */
    double load_s;
    size_t used_bytes; /* of the card, after all cases */
    struct bench_result result;
};

struct sweep {
    const struct sweep_plan *plan;
    const struct bench_plan *bench; /* the cases */
    const struct model_flags *flags;
    struct bench_card card;
    char card_name[128], cpu_name[128];
    struct sweep_point *points; /* [n_points] */
    size_t n_points;
};

/* bench: the cases; routing, card and chunk are filled for each point. flags: its dense_quant and
 * gpu_memory_gb are replaced. ERR_DEVICE: there is no card. *out is released also after a failure. */
enum status sweep_run(struct sweep *out, const struct sweep_plan *plan,
                      const struct bench_plan *bench, const struct model_flags *flags,
                      size_t bytes_max, const struct log *log, struct progress *progress,
                      struct error *err);
void sweep_release(struct sweep *s);

void sweep_table(FILE *out, const struct sweep *s);
enum status sweep_json(struct buf *out, const struct sweep *s,
                       struct error *err); /* ERR_NO_MEMORY */
/* An SVG file's content: a panel for each case, a line for each routing and way to quantise. ERR_NO_MEMORY. */
enum status sweep_svg(struct buf *out, const struct sweep *s, struct error *err);

#endif
