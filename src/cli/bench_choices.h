/* bench_choices.h - made-up choices of experts for the steps of a run, ready before its clock starts.
 *
 * Place: cli; used by bench_run.c on a card, where choices are part of a step (model_step_options.forced_idx)
 *        instead of a hook's: so steps run as they do without, captured and unasked.
 * Use:   begin, then add the run's steps in their order; during the run take them in the same order. */
#ifndef CLI_BENCH_CHOICES_H
#define CLI_BENCH_CHOICES_H

#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "base/status.h"
#include "cli/routing_sim.h"

struct bench_choices {
    struct routing_sim *sim; /* borrowed */
    int16_t *layers;         /* [n_routes] the model's layers with a router */
    size_t n_routes, n_experts, top_k;
    int32_t *idx, *next; /* [rows_max][n_routes][top_k]; next: [next_rows_max] of small steps */
    uint64_t *seen;      /* a bit for each expert of a layer */
    double *touched;     /* [steps_max] distinct experts of a step's layer, on average */
    size_t rows_max, next_rows_max, steps_max;
    size_t n_rows, n_next, n_steps;  /* added */
    size_t at_row, at_next, at_step; /* taken */
};

struct bench_choice { /* of one step; pointers as model_step_options takes them */
    const int32_t *idx, *next;
    double n_touched;
};

/* rows_max: of all steps of a run together. next_rows_max: of its steps of one token per sequence. */
enum status bench_choices_open(struct bench_choices *c, struct routing_sim *sim,
                               const struct op *ops, size_t n_ops, size_t rows_max,
                               size_t next_rows_max, size_t steps_max, struct error *err);
void bench_choices_close(struct bench_choices *c); /* also of a zeroed one */

void bench_choices_begin(struct bench_choices *c);
/* n_tokens of one sequence. */
void bench_choices_add_chunk(struct bench_choices *c, size_t stream, size_t n_tokens);
/* A token of each sequence, with predictions. */
void bench_choices_add_tokens(struct bench_choices *c, const size_t *streams, size_t n_streams);

/* Of the next step, which has n_rows rows. */
struct bench_choice bench_choices_take(struct bench_choices *c, size_t n_rows);

#endif
