/* plan_bounds.h - what a placement allows at best: bytes and arithmetic over the machine's rates.
 *
 * Place:  cli; for `plan`. The bytes are those that `bench` counts (backend/op_cost.h), the bound of overflowing
 *         experts is its too (bench_card.h); here they come from an outline instead of a run.
 * Hits:   of choices at random the share of experts that have a slot; with the locality of real text what was
 *         published for a model of this kind (budget_hits_local). Prompts stream what has no slot. */
#ifndef CLI_PLAN_BOUNDS_H
#define CLI_PLAN_BOUNDS_H

#include "base/buf.h"
#include "base/json.h"
#include "cli/bench_card.h"
#include "cli/placement.h"

struct plan_rates {
    struct bench_card card;                       /* bytes per second */
    double flop_s;                                /* of the card; 0: arithmetic is left out */
    const char *gpu_from, *link_from, *host_from; /* "measured", "given", "assumed" */
};

/* What is not given is assumed: a card and a host as they are sold in 2025. */
struct plan_rates plan_rates_assumed(void);
/* GB/s and TFLOP/s; 0: leave as it is. */
void plan_rates_give(struct plan_rates *r, double gpu, double link, double host, double tflops);

enum { PLAN_ROWS_MAX = 8 };

struct plan_row {
    bool is_decode, is_local; /* prompts: routing does not matter */
    size_t n_tokens;          /* of a prompt */
    double hits;              /* share of the choices, or of the experts that a chunk touches */
    double card_bytes, miss_bytes;     /* of a generated token, or of the whole prompt */
    double bound_tok_s, in_turn_tok_s; /* in_turn: if nothing overlapped */
    const char *by;                    /* "card", "misses", "arithmetic" */
};

struct plan_bounds {
    struct plan_row rows[PLAN_ROWS_MAX];
    size_t n_rows;
    size_t depth;
};

/* depth: tokens before the generated one. */
void plan_bounds_make(struct plan_bounds *out, const struct placement *p,
                      const struct plan_rates *r, size_t depth);

void plan_bounds_print(struct buf *out, const struct plan_bounds *b, const struct placement *p,
                       const struct plan_rates *r);
struct json_object *plan_bounds_json(const struct plan_bounds *b, const struct plan_rates *r);

#endif
