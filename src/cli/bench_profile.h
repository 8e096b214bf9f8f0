/* bench_profile.h - where the time of a step goes, by operation.
 *
 * Place: cli; filled by the hook of model_step_options. Operations of one name are one row, over all
 *        layers. What a row must read at the least is known from op_cost.h, so that each row says how
 *        near to the memory's speed it is. */
#ifndef CLI_BENCH_PROFILE_H
#define CLI_BENCH_PROFILE_H

#include <stdio.h>

#include "backend/op_cost.h"

enum { PROFILE_ROWS_MAX = 64 };

struct profile_row {
    const char *name; /* of the operation: static */
    enum op_kind kind;
    size_t n_calls;
    uint64_t ns;
    double bytes, flop; /* at the least, over all calls */
};

struct op_profile {
    struct profile_row rows[PROFILE_ROWS_MAX];
    size_t n_rows;
    uint64_t step_ns; /* wall time of the steps, operations and the rest */
    size_t n_steps, n_tokens;
};

/* An op_done hook of model_step_options; ctx is an op_profile. Operations past PROFILE_ROWS_MAX names
 * count as time outside. */
void op_profile_note(void *ctx, const struct op *op, uint64_t ns);

/* After the steps: adds what one step of this shape costs, n_steps times. */
void op_profile_cost(struct op_profile *p, const struct op *ops, size_t n_ops,
                     const struct cost_step *step, const struct state_pools *pools);

/* Sorts the rows by falling time; returns the share of the wall time that they explain. */
double op_profile_sort(struct op_profile *p);

/* The table, after op_profile_sort. */
void op_profile_print(FILE *out, const struct op_profile *p);

#endif
