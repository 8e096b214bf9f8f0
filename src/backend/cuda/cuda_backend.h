/* cuda_backend.h - the backend for NVIDIA cards.
 *
 * Place:  backend/cuda; made by cli/, used by everyone else through backend.h.
 * Driver: libcuda.so.1 is opened at run time, so the program runs without it. Kernels are in the binary,
 *         compiled for the cards of SPILLWAY_CUDA_ARCHS and as PTX for newer ones.
 * Memory: buffers, weights, states and scratch are the card's; operand pointers of a plan are device
 *         addresses. A step's logits and flags come back to the host. */
#ifndef BACKEND_CUDA_CUDA_BACKEND_H
#define BACKEND_CUDA_CUDA_BACKEND_H

#include <stdbool.h>
#include <stddef.h>

#include "backend/backend.h"
#include "base/status.h"

struct cuda_driver;

struct cuda_backend_options {
    int device;          /* ordinal among the visible cards */
    bool no_graphs;      /* run every step kernel by kernel; the same results */
    bool no_fusions;     /* every operation on its own; for comparisons */
    size_t memory_limit; /* bytes that the driver may show for this process; 0: the whole card */
    const struct cuda_driver *driver; /* NULL: libcuda.so.1. Tests give the emulator's */
};

/* What there is to say about the card, for print-outs and plans. */
struct cuda_card {
    char name[128];
    int sm; /* compute capability times ten: 75, 80, 90, 120 */
    int n_multiprocessors;
    int driver_version;      /* as the driver counts: 12080 is 12.8 */
    size_t shared_bytes_max; /* of one block */
    /* free_bytes: when the backend was made; before its context where NVIDIA's management library is
     * there to ask, else after. */
    size_t memory, free_bytes;
};

/* Whether a driver and a card are there; else why not, in one sentence. */
bool cuda_is_there(char *why, size_t n);

/* ERR_UNSUPPORTED: no driver, no card, one too old, no kernels built in; ERR_NO_MEMORY. */
enum status cuda_backend_new(struct backend **out, const struct cuda_backend_options *o,
                             struct error *err);
const struct cuda_card *cuda_backend_card(const struct backend *be);

/* Bytes in use by this process on the card as the driver counts, context included: free_bytes at the start
 * minus free now. */
size_t cuda_backend_used(struct backend *be);

/* What a plan needs on a card besides weights, states and operands. */
struct cuda_plan_bytes {
    size_t scratch, tables;
    size_t scratch_home; /* if all layers' experts have a home: at least as much */
};

/* For planning, without a card: by the rules of check() and prepare(), which op->kernel is set by. The ops'
 * addresses are never read. Errors as of check(). */
enum status cuda_plan_measure(struct cuda_plan_bytes *out, const struct cuda_card *card,
                              struct op *ops, size_t n_ops, size_t rows_max, size_t context_max,
                              struct error *err);

/* At most so much for the tables of experts that overflow: n_experts of each of n_layers. Besides their slots and
 * the staging. */
size_t cuda_home_tables_bytes(size_t n_layers, size_t n_experts);

#endif
