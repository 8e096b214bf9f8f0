/* bench_run.h - how fast a loaded model reads prompts and generates, against what the machine could do.
 *
 * Place:  cli; used by cmd_bench.c. Works on the model directly: no HTTP, queue or text.
 * Method: every case is run once untimed, then `repeat` times. A prompt is cut into chunks as the engine
 *         cuts it. Generation is greedy, one token per sequence and step, and starts behind `depth`
 *         tokens: these are read once, and every run begins from a snapshot. Finding the largest
 *         logit is part of the time. Prompts are pseudo-random token ids, so that the router spreads
 *         over the experts; or the routing is made up (routing_sim.h).
 * Bound:  the bytes that the timed steps had to move and the arithmetic that they had to do (op_cost.h,
 *         with the experts that were really touched), divided by what the same threads of this machine
 *         reach (machine_bounds.h). The slower of the two is the bound. */
#ifndef CLI_BENCH_RUN_H
#define CLI_BENCH_RUN_H

#include <stdbool.h>
#include <stddef.h>

#include "backend/op_cost.h"
#include "base/progress.h"
#include "base/status.h"
#include "cli/bench_card.h"
#include "cli/bench_profile.h"
#include "cli/bench_recovery.h"
#include "cli/bench_stats.h"
#include "cli/machine_bounds.h"
#include "cli/routing_sim.h"
#include "model/model.h"

enum {
    BENCH_LIST_MAX = 32, /* prompt lengths, depths, batch sizes, thread counts: of each */
    BENCH_ROWS_MAX = 4096,
    BENCH_REPEAT_MAX = 1000
};

struct bench_list {
    size_t at[BENCH_LIST_MAX], n;
};

struct bench_plan {
    struct bench_list threads;         /* empty: as the backend is */
    struct bench_list prompts;         /* lengths; one sequence */
    struct bench_list depths, batches; /* of generation: every pair is a case */
    size_t decode_tokens;              /* per sequence */
    size_t repeat;
    size_t recovery_tokens; /* of a prompt, after which hits recover; 0: not measured */
    size_t chunk_tokens;    /* 0: prompts are not cut */
    enum routing_kind routing;
    bool is_int8;                  /* quantised matrices multiply int8 activations */
    bool is_card;                  /* the backend is a card's: no threads */
    const struct bench_card *card; /* of a card: measured before the model was opened */
    size_t probe_bytes_max;        /* memory for measuring the machine; 0: no limit */
    struct op_profile *profile; /* or NULL: filled with one more run of the first generation case */
};

enum bench_kind { BENCH_PREFILL, BENCH_DECODE };

struct bench_row {
    enum bench_kind kind;
    size_t n_threads;
    size_t n_tokens; /* of the prompt, or generated per sequence */
    size_t n_seqs, depth;
    struct bench_stats tok_s; /* over all sequences */
    struct op_cost cost;      /* per token */
    double n_touched;         /* distinct experts per expert layer and step; 0: no experts */
    double bound_tok_s;
    bool is_bound_by_memory; /* else by arithmetic */
    struct bench_misses
        misses; /* of the timed runs; where there are any, the bound is theirs too */
    struct bench_overflow_bound overflow;
};

struct bench_bounds {
    size_t n_threads;
    struct machine_bounds machine;
};

struct bench_result {
    struct bench_row *rows; /* malloc'd: thread count by thread count, prompts before generation */
    size_t n_rows;
    struct bench_bounds bounds[BENCH_LIST_MAX]; /* one per thread count */
    size_t n_bounds;
    size_t cache_bytes;      /* last-level cache */
    bool is_probe_small;     /* too little memory was free to measure well behind the cache */
    bool is_cached;          /* the weights fit it: then the bound is the cache's speed */
    size_t working_bytes;    /* weights that steps read again and again */
    size_t n_experts, top_k; /* of a layer; 0: no experts */
    bool overflows;
    struct offload_stats offload; /* where experts overflow: at the end */
    struct bench_recovery recovery;
};

/* Tokens that the longest sequence and that all sequences together need, for sizing the model. */
size_t bench_context_tokens(const struct bench_plan *plan);
size_t bench_pool_tokens(const struct bench_plan *plan);
size_t bench_seqs_max(const struct bench_plan *plan);

/* be is the model's backend. The model needs bench_seqs_max() live slots and, with depths, as
 * many snapshots. ERR_LIMIT names the case that does not fit the model's context, pool or slots.
 * Afterwards the backend has the last thread count. *out is released also after a failure. */
enum status bench_run(struct bench_result *out, struct model *m, struct backend *be,
                      const struct bench_plan *plan, struct progress *progress, struct error *err);
void bench_result_release(struct bench_result *r);

/* Seconds that a step of this cost takes at best; *is_memory: bytes are what takes them. */
double bench_bound_s(bool *is_memory, const struct op_cost *c, const struct machine_bounds *m,
                     bool is_cached, bool is_int8);

#endif
