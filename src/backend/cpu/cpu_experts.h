/* cpu_experts.h - what the two ways to run the routed experts share.
 *
 * Place: backend/cpu; cpu_experts.c runs any number of rows in regions of the pool, cpu_experts_row.c a
 *        single one in a single region. */
#ifndef BACKEND_CPU_CPU_EXPERTS_H
#define BACKEND_CPU_CPU_EXPERTS_H

#include "backend/cpu/cpu_internal.h"

/* Shared scratch of the op. A "slot" is one (row, choice) pair that is ours, numbered in the sorted
 * order. */
struct experts_run {
    const struct cpu_backend *be;
    const struct op_experts *u;
    size_t n_rows, n_slots, n_active;
    /* The forms that the first expert reads, made once for all that want the same. */
    struct cpu_input in_form, hidden_form;
    bool in_by_slot;
    float *in;           /* [n_rows] copies, or [slots], unless the form is the input as it is */
    float *hidden_in;    /* [slots] copies of hidden, likewise */
    float *hidden;       /* [slots][width] gate, then the swiglu product */
    float *up;           /* [slots][width] */
    float *down;         /* [slots][out.cols] */
    int32_t *first_slot; /* [n_experts + 1] */
    int32_t *active;     /* [n_active] experts that a row chose */
    int32_t *row_of;     /* [slots] */
    int32_t *slot_of;    /* [n_rows][top_k], -1: not ours */
};

/* Columns [begin, end) of expert e's hidden rows. `in`: the copies, r->in or the thread's own. Weight rows
 * from fetch_end on are another thread's (linear_job.fetch_end); or SIZE_MAX. */
void experts_inner(const struct experts_run *r, size_t e, const float *in, size_t begin, size_t end,
                   size_t fetch_end, size_t thread);

/* Columns [begin, end) of what expert e's down projection gives, to r->down. */
void experts_outer(const struct experts_run *r, size_t e, size_t begin, size_t end,
                   size_t fetch_end, size_t thread);

/* The same columns of the op's output. */
void experts_sum(const struct experts_run *r, size_t begin, size_t end);

/* A thread's own copy of the input, behind all else in its scratch. */
static inline size_t experts_copy_floats(const struct cpu_input *form)
{
    return form->kind == INPUT_AS_IS ? 0 : (form->row_floats + 15) / 16 * 16;
}

/* One row in one region. False: it has more experts than that is built for, and nothing was done. */
bool experts_run_row(struct cpu_backend *be, const struct experts_run *r);

#endif
