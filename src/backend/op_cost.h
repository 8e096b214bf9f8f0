/* op_cost.h - what an operation must read, write and compute at the least.
 *
 * Place:  backend; for accounting only (bounds of `bench`, plans): no kernel looks at it.
 * Idea:   the bytes that any implementation moves between memory and processor, and the arithmetic of the
 *         formulas as they stand. Activations are left out, since they stay in the caches; so are
 *         element-wise functions. Real kernels do more; achieved over bound says how much.
 *           weights   once per step, however many rows it has; of the experts only those touched
 *           KV        every token that a sequence has, once per step; the new ones are written
 *           states    read and written once per step and sequence
 * Counts are doubles: sums over a long prompt pass 2^53 only where nobody looks at the last digit. */
#ifndef BACKEND_OP_COST_H
#define BACKEND_OP_COST_H

#include "backend/backend.h"

/* Sequences that are alike: each has `depth` tokens and gets n_rows / n_seqs more. */
struct cost_step {
    size_t n_seqs, n_rows; /* n_rows is a multiple of n_seqs */
    size_t depth;
    size_t n_out_rows; /* rows with logits */
    double n_touched;  /* distinct experts in an expert layer, the mean over layers will do */
};

enum cost_class {
    COST_DENSE,  /* matrices and vectors that every token reads */
    COST_EXPERT, /* routed experts */
    COST_KV,
    COST_STATE,
    COST_CLASS_COUNT
};
const char *cost_class_name(enum cost_class c); /* "dense weights" */

struct op_cost {
    double bytes[COST_CLASS_COUNT];
    double flop;           /* all: a multiplication and an addition are two */
    double flop_quantised; /* those of them with int4 or int8 weights */
};

struct op_cost op_cost(const struct op *op, const struct cost_step *step,
                       const struct state_pools *pools);
double op_cost_bytes(const struct op_cost *c); /* over all classes */
void op_cost_add(struct op_cost *sum, const struct op_cost *c);

/* The cost of a step. */
struct op_cost plan_cost(const struct op *ops, size_t n_ops, const struct cost_step *step,
                         const struct state_pools *pools);

/* How many distinct of n experts n_rows rows touch on average, if each takes top_k at random. */
double cost_uniform_touched(size_t n_experts, size_t top_k, size_t n_rows);

#endif
