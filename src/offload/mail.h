/* mail.h - the thread that answers a device's mail: missing experts that the CPU computes.
 *
 * Place:  offload, under offload.c; the boxes are those of backend/expert_home.h.
 * Idea:   a decode step visits the layers in order and waits in each for what it posted, so an answer is
 *         worth microseconds: while a step is open the thread polls the box of the layer that comes
 *         next, and the CPU backend's workers stay awake. Between steps it goes on for a moment, since
 *         the next token follows at once, and then sleeps on a condition variable.
 * Cost:   one core, beside the workers, while tokens are made. The CPU backend should have one thread
 *         less than there are cores: its caller, this thread, computes too.
 * Large:  between small steps the thread has nothing to compute, so the thread that runs steps may use the CPU
 *         itself: mail_compute() ends what is left of a small step first.
 * Faults: if a computation fails, the answer is NaN: the device's check ends the requests of the step.
 * Thread: open, close, measure, compute, rouse and the log: the thread that runs steps. */
#ifndef OFFLOAD_MAIL_H
#define OFFLOAD_MAIL_H

#include "backend/expert_home.h"
#include "base/status.h"
#include "base/tensor.h"

struct backend;
struct mail;

/* What became of a layer's box in the last step. */
struct mail_answer {
    uint64_t posted_ns, answered_ns; /* clock_now_ns(): seen, answered; 0: nothing was posted */
    uint64_t compute_ns;
    uint32_t n_experts; /* distinct ones that were computed; 0: nothing to do */
    bool has_failed;
};

/* home, its boxes and cpu are borrowed; cpu is this thread's alone from now on. ERR_LIMIT, ERR_NO_MEMORY,
 * ERR_UNSUPPORTED (the CPU does not compute such experts), ERR_IO. */
enum status mail_new(struct mail **out, const struct expert_home *home, enum dtype activations,
                     struct backend *cpu, struct error *err);
void mail_free(struct mail *m); /* ends the thread, whatever it waits for; accepts NULL */

/* Boxes posted with this ticket are answered from now on. Not the ticket of the step before. */
void mail_open(struct mail *m, uint32_t ticket);

/* The step is over: what was posted is answered when this returns, and the log may be read until the next
 * mail_open. Without an open step: nothing. */
void mail_close(struct mail *m);
const struct mail_answer *mail_log(const struct mail *m); /* [home->n_layers] */

enum { MAIL_MEASURE_ROWS = 8 };

/* Computes n experts (at most top_k) of a layer for so many made-up rows, all of which chose them, and throws the result
 * away; nanoseconds. Not while a step is open. */
enum status mail_measure(struct mail *m, size_t layer, size_t first_expert, size_t n, size_t n_rows,
                         uint64_t *out_ns, struct error *err);

/* The CPU's part of a layer of a large step, as large_compute in expert_home.h; x is rounded to the activations' type.
 * ERR_LIMIT: too many rows. */
enum status mail_compute(struct mail *m, size_t layer, size_t n_rows, const int32_t *idx,
                         const float *prob, const float *x, float *y, struct error *err);

/* Whether the CPU's workers shall stay awake for the next mail_compute(). */
void mail_rouse(struct mail *m, bool is_awake);

#endif
