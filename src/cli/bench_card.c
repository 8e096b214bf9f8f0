/* bench_card.c - see bench_card.h. */
#include "cli/bench_card.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"

static enum status measure(struct bench_card *out, struct backend *card, struct backend *cpu,
                           size_t bytes_max, struct error *err)
{
    struct pool *pool = cpu_backend_pool(cpu);
    struct machine_probe probe;
    enum status rc = machine_probe_open(&probe, bytes_max / 2, pool, err);

    if (rc == OK) {
        rc = card_bounds_measure(&out->machine, card, err);
    }
    if (rc == OK) {
        rc = link_bounds_measure(&out->link, card, &probe, cpu_backend_isa(cpu), bytes_max / 2,
                                 pool, err);
    }
    machine_probe_close(&probe);
    return rc;
}

enum status bench_card_measure(struct bench_card *out, bool *is_there, const struct model_flags *f,
                               size_t bytes_max, struct error *err)
{
    const struct cuda_backend_options card_options = {.device = (int)f->base_gpu_id};
    const struct cpu_backend_options cpu_options = {.n_threads = f->threads};
    struct backend *card = NULL, *cpu = NULL;
    char why[256];
    enum status rc;

    *out = (struct bench_card){0};
    *is_there = strcmp(f->device, "cpu") != 0 && cuda_is_there(why, sizeof why);
    if (!*is_there) {
        return OK;
    }
    rc = cuda_backend_new(&card, &card_options, err);
    if (rc != OK) { /* what opens the model says it, or goes on with the CPU */
        *is_there = false;
        return OK;
    }
    rc = cpu_backend_new(&cpu, &cpu_options, err);
    if (rc == OK) {
        rc = measure(out, card, cpu, bytes_max, err);
    }
    if (cpu) {
        cpu->ops->free(cpu);
    }
    card->ops->free(card);
    return rc;
}

/* Bytes per second of the engines that served the misses, all of them together. */
static double miss_rate(const struct link_bounds *l, double over_link, double by_cpu)
{
    if (over_link > 0 && by_cpu > 0) {
        return l->link_shared_bytes_s + l->cpu_shared_bytes_s;
    }
    return over_link > 0 ? l->link_bytes_s : l->cpu_bytes_s;
}

struct bench_overflow_bound bench_overflow_bound(const struct bench_card *card,
                                                 const struct op_cost *cost,
                                                 const struct bench_misses *m)
{
    double block = (double)m->block_bytes, over_link = m->fetched + m->ahead + m->streamed;
    double other = op_cost_bytes(cost) - cost->bytes[COST_EXPERT];
    /* What crosses the link is written on the card and read again. */
    double on_card = m->hits + 2 * (m->fetched + m->streamed) + m->ahead;
    struct bench_overflow_bound b = {
        .card_s = (other + block * on_card) / card->machine.memory_bytes_s,
        .by = "card",
    };

    if (over_link + m->cpu > 0) {
        b.miss_s = block * (over_link + m->cpu) / miss_rate(&card->link, over_link, m->cpu);
    }
    b.bound_s = fmax(b.card_s, b.miss_s);
    b.in_turn_s = b.card_s + b.miss_s;
    if (b.miss_s > b.card_s) {
        b.by = "misses";
    }
    return b;
}
