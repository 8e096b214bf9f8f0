/* bench_card.h - what a card, its link and the CPU allow, measured before a model takes the card's memory.
 *
 * Place: cli; for `bench`. A model under a memory limit leaves no room to measure in, so this opens the card
 *        once without a limit and gives it back.
 * Bound: where experts overflow, a step takes at least as long as the card needs for what it reads, and as
 *        long as the misses need on the engines that serve them, all of these at once: the bound. A miss is
 *        known only after its layer's router, though; if nothing was foreseen, the two come one after the
 *        other: `in turn`. Real steps are between what foresight and none allow. */
#ifndef CLI_BENCH_CARD_H
#define CLI_BENCH_CARD_H

#include <stdbool.h>
#include <stddef.h>

#include "backend/op_cost.h"
#include "base/status.h"
#include "cli/machine_bounds.h"
#include "cli/model_setup.h"

struct bench_card {
    struct machine_bounds machine; /* the card's memory */
    struct link_bounds link;
};

/* *is_there: the flags let the model run on a card, and there is one. Else nothing is measured. ERR_NO_MEMORY;
 * ERR_DEVICE: the card cannot be used. bytes_max: of host memory, half of it pinned. */
enum status bench_card_measure(struct bench_card *out, bool *is_there, const struct model_flags *f,
                               size_t bytes_max, struct error *err);

/* Distinct experts of a layer and step, per token. */
struct bench_misses {
    bool overflows; /* else all is zero */
    size_t block_bytes;
    double hits, fetched, cpu; /* of small steps */
    double ahead, ahead_used;  /* fetched before they were chosen; of those, chosen */
    double streamed;           /* of large steps */
    double cpu_s, cpu_wait_s;  /* the CPU's time, and from a post to its answer */
};

struct bench_overflow_bound { /* seconds per token */
    double card_s, miss_s;
    double bound_s, in_turn_s;
    const char *by; /* "card" or "misses": static */
};

/* cost: per token, as if all experts were on the card. */
struct bench_overflow_bound bench_overflow_bound(const struct bench_card *card,
                                                 const struct op_cost *cost,
                                                 const struct bench_misses *m);

#endif
