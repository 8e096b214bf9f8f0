/* routing_sim.h - made-up choices of experts with a known locality, for measuring.
 *
 * Place:  cli; overrides the router through the hook of model_step_options. Random weights route almost
 *         uniformly and trained ones do not, and what a cache of experts gains depends on nothing
 *         else; so the two extremes are defined instead of hoped for:
 *           uniform   top_k distinct experts at random: the worst case
 *           local     each place of the previous token's choice stays with probability 0.2; the others
 *                     are drawn by popularity, (rank + E/16)^-2.2 over a random order of the experts
 * Calibration of `local` (256 experts, 8 of them, 40 layers; 256 tokens): a global LRU over 26 % of
 *         all experts hits 83.5 %, over 37 % it hits 89 %, both within 3 points and whether it starts
 *         empty or not; about 35 % of a layer's choices were also the previous token's.
 * Streams: every sequence has choices of its own; its stream goes on from step to step. What a stream
 *         chooses does not depend on how its tokens are cut into steps, nor on other streams. */
#ifndef CLI_ROUTING_SIM_H
#define CLI_ROUTING_SIM_H

#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "base/status.h"

enum routing_kind { ROUTING_MODEL, ROUTING_UNIFORM, ROUTING_LOCAL };

enum routing_kind routing_named(const char *name); /* "uniform", "local", else the model's */

struct routing_sim;

struct routing_shape {
    size_t n_streams; /* sequences at once: places in the state store */
    size_t n_layers;  /* model layers; those without experts are never asked */
    size_t n_experts, top_k;
};

/* kind is UNIFORM or LOCAL. ERR_LIMIT: sizes that no backend would run. */
enum status routing_sim_new(struct routing_sim **out, enum routing_kind kind,
                            const struct routing_shape *shape, uint64_t seed, struct error *err);
void routing_sim_free(struct routing_sim *r); /* accepts NULL */

/* The choices of the stream's next n_tokens tokens in one layer, [n_tokens][top_k], distinct within a
 * token. stream < n_streams, layer < n_layers. */
void routing_sim_choose(struct routing_sim *r, size_t stream, size_t layer, size_t n_tokens,
                        int32_t *idx);

/* What a predictor would say before: for each token a guess at the choice that routing_sim_choose
 * will give next, [n_tokens][top_k] distinct experts. 80.7 % of them are right. */
void routing_sim_predict(const struct routing_sim *r, size_t stream, size_t layer, size_t n_tokens,
                         int32_t *idx);

/* A route_hook_fn; ctx is a routing_sim. The stream of a sequence is its slot. */
route_hook_fn routing_sim_hook;

#endif
