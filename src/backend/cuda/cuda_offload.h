/* cuda_offload.h - experts that overflow: the card's slots, the tables that say what is where, the mail.
 *
 * Place:  backend/cuda; the card's side of backend/expert_home.h. For small steps; large ones are
 *         cuda_stream.c's, which reads slots and tables.
 * Memory: all is made in open and stays where it is, so captured steps may hold its addresses; what a step
 *         needs besides (orders, log) is part of its tables (cuda_steps.c). */
#ifndef BACKEND_CUDA_CUDA_OFFLOAD_H
#define BACKEND_CUDA_CUDA_OFFLOAD_H

#include "backend/cuda/cuda_internal.h"
#include "backend/cuda/kernels/offload_args.h"
#include "backend/expert_home.h"

struct cuda_offload {
    struct expert_home *home; /* or NULL: the rest is nothing then */
    CUdeviceptr slots, tables;
    struct offload_pool pool;
    /* In `tables`, which each layer in turn uses: */
    struct offload_list *list;
    int32_t *resolved, *posted;
    int64_t *away;             /* [EXPERT_HOME_PAIRS] see struct offload_args */
    uint32_t *asked, *arrived; /* [n_layers] see struct offload_join */
    /* On the host: mail, x [n_layers][EXPERT_HOME_ROWS][hidden], y likewise. */
    struct expert_mail *mail;
    uint64_t wait_ns; /* for the CPU's answer */
    /* Of cuda_offload_ahead.c; branch NULL: nothing is fetched ahead. The first three are in `tables`. */
    struct offload_list *ahead_list;
    struct offload_next *next;
    float *logits; /* [2][EXPERT_HOME_ROWS][n_experts] of a layer's next router, layers in turn */
    CUstream branch;
    CUevent forked, joined;
    bool is_forked; /* the stream has not waited for the branch yet */
    /* Of the open step: where its log and orders are in the tables; whether it is small and was announced. */
    size_t at;
    bool is_announced;
};

/* ---- for cuda_backend.c ---- */

enum status cuda_offload_open(struct cuda_backend *be, struct expert_home *home, struct error *err);
void cuda_offload_close(struct cuda_backend *be);
enum status cuda_offload_insert(struct cuda_backend *be, size_t layer, size_t expert, size_t slot,
                                struct error *err);

/* ---- for cuda_steps.c ---- */

/* Bytes of log and orders among the tables of a step of so many rows (rounded up), 0 for large ones or
 * without a home; how many of them, from the beginning, come back after the step. */
size_t cuda_offload_bytes(const struct cuda_backend *be, size_t n_rows);
size_t cuda_offload_log_bytes(const struct cuda_backend *be, size_t n_rows);

/* Fills them at `at` of the tables on the host; asks the home for orders. */
void cuda_offload_begin(struct cuda_backend *be, size_t at);

/* The log is back on the host: tells the home. ERR_DEVICE when the CPU did not answer. */
enum status cuda_offload_end(struct cuda_backend *be, struct error *err);

/* What is fetched ahead has arrived before whatever follows in the stream. Nothing to do: OK. */
enum status cuda_offload_join_ahead(struct cuda_backend *be, struct error *err);

/* ---- for cuda_offload.c (cuda_offload_ahead.c) ---- */

enum status cuda_offload_ahead_open(struct cuda_backend *be, struct error *err);
void cuda_offload_ahead_close(struct cuda_backend *be);

/* After the layer's own fetches: the next layer's. */
enum status cuda_offload_fork_ahead(struct cuda_backend *be, const struct op *op,
                                    const struct cuda_shape *shape, struct error *err);

/* ---- for families ---- */

/* Whether a step of this size takes the way of small ones. */
bool cuda_offload_is_small(const struct cuda_shape *shape);

/* An OP_EXPERTS with a home: refuses what does not fit it. */
enum status cuda_offload_check(struct cuda_backend *be, const struct op *op, struct error *err);

/* Its table of matrices on the card, right between steps and after the layer was resolved: experts are in
 * slots, or where they are on the host. */
void *cuda_offload_table(const struct cuda_backend *be, const struct op *op);

/* The choices of a small step that are left to the card: [rows][top_k], -1 where it has none. */
const int32_t *cuda_offload_resolved(const struct cuda_backend *be);

/* For kernels that fetch for themselves: [rows][top_k], see struct offload_args. */
int64_t *cuda_offload_away(const struct cuda_backend *be);

/* The next layer's router, where its logits for this layer's input are wanted, and where they go
 * ([rows][n_experts]); NULL: not wanted. Who computes them calls cuda_offload_join_ahead() instead of before(). */
const struct weight *cuda_offload_next_router(const struct cuda_backend *be, const struct op *op,
                                              const struct cuda_shape *shape, float **logits);

/* For the launches around an op's kernels in a small step: before() comes before what resolves, which
 * is cuda_offload_resolve() unless a kernel of others does so. fetch() also asks for what the next layer is
 * predicted to need; whose kernels fetch for themselves (struct offload_args) call fork_ahead() after them. */
enum status cuda_offload_before(struct cuda_backend *be, const struct op *op,
                                const struct cuda_shape *shape, struct error *err);
struct offload_args cuda_offload_args(const struct cuda_backend *be, const struct op *op,
                                      const struct cuda_shape *shape);
struct offload_join cuda_offload_join(const struct cuda_backend *be, const struct op *op);
enum status cuda_offload_resolve(struct cuda_backend *be, const struct op *op,
                                 const struct cuda_shape *shape, struct error *err);
enum status cuda_offload_fetch(struct cuda_backend *be, const struct op *op,
                               const struct cuda_shape *shape, struct error *err);
enum status cuda_offload_add(struct cuda_backend *be, const struct op *op,
                             const struct cuda_shape *shape, struct error *err);

#endif
