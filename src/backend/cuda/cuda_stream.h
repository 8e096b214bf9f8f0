/* cuda_stream.h - large steps whose experts do not all fit the card: those without a slot stream past it.
 *
 * Place:  backend/cuda; used by cuda_experts.c. cuda_offload.c opens and closes it with the home.
 * Words:  pass   one segment of one layer's experts in a large step
 *         group  some experts of a pass that are computed together: a few that are staged, and a share of
 *                those that have slots
 *         part   of the staging memory, a ring; a group's staged experts are in one part
 * Idea:   a stream of its own copies the experts of the coming groups into the parts that are free, while the
 *         card computes. Where a step is so large that nearly every expert is wanted, what to copy is known
 *         without asking, so the copies run ahead over the borders of layers. For smaller steps the choices
 *         are read back first, which waits for the card once per layer.
 * Use:    passes in the order of the plan:
 *
 *             cuda_stream_begin()
 *             for each group: cuda_stream_wait(), the launches, cuda_stream_done()
 *             cuda_stream_share(), if the CPU has a part (cuda_share.h)
 *             cuda_stream_end()
 *
 * Turns:  home->takes_turns: a group's copies begin when what was launched before has ended, and its launches when
 *         they have; nothing is copied ahead. Same results, to measure what overlapping brings.
 * Errors: the step fails; the next one begins anew. */
#ifndef BACKEND_CUDA_CUDA_STREAM_H
#define BACKEND_CUDA_CUDA_STREAM_H

#include "backend/cuda/cuda_internal.h"
#include "backend/cuda/kernels/experts_args.h"
#include "backend/expert_home.h"

/* Stream, events, staging of home->n_staging blocks and tables. be->own->expert_slots is read while steps
 * run. An error leaves nothing behind. */
enum status cuda_stream_open(struct cuda_backend *be, const struct expert_home *home,
                             struct error *err);
/* Waits for its copies. Nothing when none is open. */
void cuda_stream_close(struct cuda_backend *be);

/* Bytes of device memory that cuda_stream_open() allocates: staging, tables, choices. */
size_t cuda_stream_bytes(const struct expert_home *home);

/* Bytes that the scratch of a segment may have: `usual`, unless a test has set a limit, before prepare(). */
size_t cuda_stream_scratch(const struct cuda_backend *be, size_t usual);
void cuda_stream_limit(struct cuda_backend *be, size_t scratch_bytes);

struct cuda_pass {
    const struct experts_matrix *experts; /* as experts_args has them, on the card */
    const int32_t *group_of;
    size_t n_groups;
    size_t first_experts,
        other_experts;  /* how many are in the first group, in each other at most */
    const int32_t *idx; /* the card's choices, if some are the CPU's; NULL: the op's own */
    const float
        *more; /* what cuda_stream_share() computes, to be added to the rows' sums; or NULL */
};

/* The segment of the op that begins at row0; to be launched on be->stream after this. */
enum status cuda_stream_begin(struct cuda_backend *be, const struct op *op,
                              const struct cuda_shape *shape, size_t row0, struct cuda_pass *pass,
                              struct error *err);
/* Launches from here on find the group's experts. Groups in order. */
enum status cuda_stream_wait(struct cuda_backend *be, struct error *err);
/* The group's launches were made. */
enum status cuda_stream_done(struct cuda_backend *be, struct error *err);
/* Where `more` is there: the products of all groups were launched. It may be read by launches from here on. */
enum status cuda_stream_share(struct cuda_backend *be, struct error *err);
/* The pass's last launch was made. */
enum status cuda_stream_end(struct cuda_backend *be, struct error *err);

#endif
