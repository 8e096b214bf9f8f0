/* offload.h - the spillway: routed experts that do not fit the device run from host memory.
 *
 * Place:  offload; made by model/ between loading the weights and building the op plan. Knows plain tables
 *         of blocks and two backends: the device, and the CPU for misses.
 * Owns:   the home (backend/expert_home.h), the mirror of the device's slots, the thread that answers its
 *         mail, and what is measured of both ways to serve a miss.
 * Thread: as the model; offload_read_stats from any thread. */
#ifndef OFFLOAD_OFFLOAD_H
#define OFFLOAD_OFFLOAD_H

#include "backend/expert_home.h"
#include "base/progress.h"
#include "base/status.h"

struct backend;
struct offload;

/* In small steps. In large ones misses stream past the device, and unless FETCH is asked for the CPU may compute some
 * of them where rows are few. */
enum expert_miss { EXPERT_MISS_AUTO, EXPERT_MISS_FETCH, EXPERT_MISS_CPU };
const char *expert_miss_name(enum expert_miss miss); /* "auto", as the flag says it */

enum { OFFLOAD_STAGING_DEFAULT = 32 }; /* blocks */

struct offload_shape {
    struct expert_block block;
    size_t n_layers, n_experts, top_k, hidden;
    const uint8_t *const
        *blocks; /* [n_layers], as expert_home has it; copied, what it points to is borrowed */
    const bool *is_pageable; /* [n_layers], as expert_home has it; NULL: none. Copied */
    enum dtype activations;  /* F32, F16, BF16: what the experts' inputs are rounded to */
};

struct offload_options {
    size_t n_slots, n_staging; /* n_staging 0: OFFLOAD_STAGING_DEFAULT */
    enum expert_miss miss;
    /* For measurements: nothing is fetched ahead; auto = all to the CPU, and none in large steps; large steps copy and
     * compute in turns. */
    bool no_prefetch, no_split, no_overlap;
};

/* device: has experts_open. cpu: where misses are computed; NULL with EXPERT_MISS_FETCH. Both are borrowed.
 * ERR_LIMIT, ERR_UNSUPPORTED, ERR_NO_MEMORY name what was too large. */
enum status offload_new(struct offload **out, const struct offload_shape *shape,
                        const struct offload_options *o, struct backend *device,
                        struct backend *cpu, struct error *err);
void offload_free(
    struct offload *o); /* stops the thread; accepts NULL; before the device is freed */

const struct expert_home *offload_home(const struct offload *o);

/* Fills the slots: experts spread evenly over layers. After the device's prepare(). progress may be NULL. */
enum status offload_fill(struct offload *o, struct progress *progress, struct error *err);

struct offload_stats {
    size_t n_layers, n_experts, n_slots, n_staging;
    size_t block_bytes;
    /* Since the start; distinct experts of a layer and step, summed */
    uint64_t n_steps, n_large_steps;
    size_t n_pageable;                 /* layers whose experts the device cannot read */
    uint64_t n_inserted;               /* brought in between steps */
    uint64_t n_hits, n_fetched, n_cpu; /* of small steps */
    uint64_t n_in_place;               /* of n_fetched: read over the link, but not kept */
    uint64_t n_next, n_next_used;      /* fetched ahead, and of those asked for in the same step */
    uint64_t n_streamed, n_large_cpu;  /* of large steps: over the link; computed by the CPU */
    uint64_t large_cpu_ns;             /* the latter */
    uint64_t cpu_ns, cpu_wait_ns;      /* computing; from a post to its answer */
    double both_ns, either_ns; /* of small steps, where there is a CPU: see offload_overlap */
    uint64_t n_failed;         /* layers for which the CPU could not answer */
    double fetch_bytes_per_s, cpu_bytes_per_s; /* as measured of late; 0: not yet */
    double fetch_share;                        /* of misses, as decided of late */
};
void offload_read_stats(const struct offload *o, struct offload_stats *out);

/* Of the time in which the CPU or the link served a layer's misses, the share in which both did, by measured times.
 * 0 where one does it alone. */
double offload_overlap(const struct offload_stats *s);

#endif
