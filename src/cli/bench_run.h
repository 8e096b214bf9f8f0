/* bench_run.h - how fast a loaded model reads prompts and generates, measured on its steps.
 *
 * Place:  cli; used by cmd_bench.c. Works on the model directly: no HTTP, queue or text.
 * Method: every case is run once untimed, then `repeat` times; median, least and most are kept. A prompt
 *         is cut into chunks as the engine cuts it. Generation is greedy, one token per sequence and
 *         step; finding the largest logit is part of the time. Prompts are pseudo-random token ids, so
 *         that the router spreads over the experts. */
#ifndef CLI_BENCH_RUN_H
#define CLI_BENCH_RUN_H

#include <stddef.h>

#include "base/progress.h"
#include "base/status.h"
#include "model/model.h"

enum {
    BENCH_CASES_MAX = 32, /* prompt lengths, and batch sizes */
    BENCH_REPEAT_MAX = 1000,
    BENCH_DECODE_PROMPT = 16 /* tokens in front of a measured generation */
};

struct bench_plan {
    size_t prompt_tokens[BENCH_CASES_MAX], n_prompts;
    size_t batches[BENCH_CASES_MAX], n_batches;
    size_t decode_tokens; /* per sequence */
    size_t repeat;
    size_t chunk_tokens; /* 0: prompts are not cut */
};

struct bench_rate { /* tokens per second over all sequences */
    double median, least, most;
};

struct bench_result {
    struct bench_rate prefill[BENCH_CASES_MAX], decode[BENCH_CASES_MAX]; /* in order of the plan */
};

/* ERR_LIMIT names the case that does not fit the model's context, pool or slots. */
enum status bench_run(struct bench_result *out, struct model *m, const struct bench_plan *plan,
                      struct progress *progress, struct error *err);

/* Of n >= 1 values; sorts them. */
struct bench_rate bench_summarise(double *values, size_t n);

#endif
