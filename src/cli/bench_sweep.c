/* bench_sweep.c - budget by budget. See bench_sweep.h; the print-outs are bench_sweep_report.c and
 * bench_sweep_plot.c. */
#include "cli/bench_sweep.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_backend.h"
#include "base/clock.h"
#include "base/cpu.h"

const struct sweep_way sweep_ablation[] = {
    {.name = "cache", .expert_miss = "fetch", .no_prefetch = true},
    {.name = "cpu", .expert_miss = "cpu", .no_prefetch = true},
    {.name = "split", .expert_miss = "auto", .no_prefetch = true},
    {.name = "ahead", .expert_miss = "auto"},
    {.name = "turns", .expert_miss = "auto", .no_overlap = true},
};
const size_t sweep_ablation_count = sizeof sweep_ablation / sizeof sweep_ablation[0];

/* Of a model that cannot be opened with this budget; other errors end the sweep. */
static bool is_refusal(enum status rc)
{
    return rc == ERR_NO_MEMORY || rc == ERR_LIMIT || rc == ERR_USAGE;
}

static void refuse(struct sweep_point *p, const struct error *why)
{
    snprintf(p->refused, sizeof p->refused, "%s", why->text);
}

static enum status point_run(struct sweep *s, struct sweep_point *p, struct model_setup *setup,
                             struct progress *progress, struct error *err)
{
    struct bench_plan plan = *s->bench;
    enum status rc;

    plan.routing = routing_named(p->routing);
    plan.chunk_tokens = setup->chunk_tokens;
    plan.is_card = true;
    plan.card = &s->card;
    rc = bench_run(&p->result, setup->model, setup->backend, &plan, progress, err);
    p->used_bytes = cuda_backend_used(setup->backend);
    return rc;
}

/* All routings of one budget: the points [at, at + n_routings). */
static enum status budget_run(struct sweep *s, struct sweep_point *points, const struct log *log,
                              struct progress *progress, struct error *err)
{
    const struct model_setup_options options = {.quiet = true,
                                                .n_snapshots = bench_seqs_max(s->bench)};
    struct model_flags flags = *s->flags;
    struct model_setup setup;
    struct error why = {0};
    uint64_t start = clock_now_ns();
    double load_s;
    enum status rc;

    flags.gpu_memory_gb = points[0].budget_gb;
    flags.dense_quant = points[0].dense;
    flags.device = "cuda";
    if (points[0].way) {
        flags.expert_miss = points[0].way->expert_miss;
        flags.offload_prefetch_step = points[0].way->no_prefetch ? 0 : -1;
        flags.offload_no_overlap = points[0].way->no_overlap;
    }
    rc = model_setup_open(&setup, &flags, &options, log, &why);
    if (is_refusal(rc)) {
        for (size_t i = 0; i < s->plan->n_routings; i++) {
            refuse(&points[i], &why);
        }
        return OK;
    }
    if (rc != OK) {
        return error_set(err, rc, "%s", why.text);
    }
    load_s = clock_seconds_since(start);
    for (size_t i = 0; i < s->plan->n_routings && rc == OK; i++) {
        points[i].load_s = load_s;
        rc = point_run(s, &points[i], &setup, progress, err);
    }
    snprintf(s->card_name, sizeof s->card_name, "%s", cuda_backend_card(setup.backend)->name);
    model_setup_close(&setup);
    if (rc != OK) {
        error_prefix(err, "%g GiB, dense %s", points[0].budget_gb, points[0].dense);
    }
    return rc;
}

static enum status points_make(struct sweep *s, struct error *err)
{
    const struct sweep_plan *p = s->plan;
    size_t n_ways = p->n_ways > 0 ? p->n_ways : 1;

    s->points = calloc(p->n_dense * p->n_budgets * n_ways * p->n_routings + 1, sizeof *s->points);
    if (!s->points) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the sweep");
    }
    for (size_t d = 0; d < p->n_dense; d++) {
        for (size_t b = 0; b < p->n_budgets; b++) {
            for (size_t r = 0; r < n_ways * p->n_routings; r++) {
                s->points[s->n_points++] =
                    (struct sweep_point){.budget_gb = p->budgets[b],
                                         .way = p->n_ways > 0 ? &p->ways[r / p->n_routings] : NULL,
                                         .dense = p->dense[d],
                                         .routing = p->routings[r % p->n_routings]};
            }
        }
    }
    return OK;
}

enum status sweep_run(struct sweep *out, const struct sweep_plan *plan,
                      const struct bench_plan *bench, const struct model_flags *flags,
                      size_t bytes_max, const struct log *log, struct progress *progress,
                      struct error *err)
{
    bool is_there;
    enum status rc;

    *out = (struct sweep){.plan = plan, .bench = bench, .flags = flags};
    cpu_model_name(out->cpu_name, sizeof out->cpu_name);
    rc = bench_card_measure(&out->card, &is_there, flags, bytes_max, err);
    if (rc == OK && !is_there) {
        rc = error_set_param(err, ERR_DEVICE, "offload",
                             "--offload measures a card, and there is none");
    }
    if (rc == OK) {
        rc = points_make(out, err);
    }
    for (size_t i = 0; i < out->n_points && rc == OK; i += plan->n_routings) {
        rc = budget_run(out, &out->points[i], log, progress, err);
    }
    return rc;
}

void sweep_release(struct sweep *s)
{
    for (size_t i = 0; i < s->n_points; i++) {
        bench_result_release(&s->points[i].result);
    }
    free(s->points);
    *s = (struct sweep){0};
}
