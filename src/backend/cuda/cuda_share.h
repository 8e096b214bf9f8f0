/* cuda_share.h - the CPU's part of a large step whose experts do not all fit the card.
 *
 * Place:  backend/cuda; of cuda_stream.c. What is whose decides the home (expert_home.h: large_divide).
 * Idea:   where a layer's choices were read back, some experts without a slot may be the CPU's. They are not
 *         streamed, and the card computes with a copy of the choices that has -1 in their place. Rows and
 *         probabilities are read back behind the launches of the layer before and beside this layer's copies; when
 *         all of this layer's launches are made, the CPU computes on this thread. The kernel that sums up adds its
 *         result, which it reads where the CPU left it.
 * Order:  a row's sum is what the card's choices give, in their order, and then what the CPU's give. */
#ifndef BACKEND_CUDA_CUDA_SHARE_H
#define BACKEND_CUDA_CUDA_SHARE_H

#include "backend/cuda/cuda_internal.h"
#include "backend/expert_home.h"

struct cuda_share;

/* Pinned rows for EXPERT_HOME_LARGE_ROWS, choices on the card. *out is NULL where the home shares nothing; on an
 * error too. */
enum status cuda_share_open(struct cuda_share **out, struct cuda_backend *be,
                            const struct expert_home *home, struct error *err);
void cuda_share_close(struct cuda_backend *be, struct cuda_share *s); /* the card is idle */

/* Device memory that cuda_share_open() allocates. */
size_t cuda_share_bytes(const struct expert_home *home);

/* The layer's choices are idx [n_rows][top_k], and the stream is idle. Those experts that become the CPU's are not
 * wanted any more. */
enum status cuda_share_divide(struct cuda_backend *be, struct cuda_share *s, const struct op *op,
                              size_t n_rows, const int32_t *idx, bool *is_wanted,
                              struct error *err);

/* Of the layer that was divided last, from row0 on: the card's choices, on the card, and what the CPU adds, in memory
 * that the card reads. NULL: nothing is the CPU's. */
const int32_t *cuda_share_idx(const struct cuda_share *s, size_t row0);
const float *cuda_share_sum(const struct cuda_share *s, size_t row0);

/* The CPU computes. Once for each layer that was divided. */
enum status cuda_share_compute(struct cuda_backend *be, struct cuda_share *s, const struct op *op,
                               struct error *err);

#endif
