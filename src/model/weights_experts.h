/* weights_experts.h - places for the routed experts, and their end. Private to model/weights*.c. */
#ifndef MODEL_WEIGHTS_EXPERTS_H
#define MODEL_WEIGHTS_EXPERTS_H

#include "model/weights.h"
#include "model/weights_bind.h"

/* For each layer whose experts are quantised alike: one arena of blocks, and w's matrices become views
 * of it, to be filled. Those that pass to a device share w->passing: the caller fills one after the
 * other, and sends each before the next. is_placed[slot] is set for those in arenas; experts of other
 * layers are left to the caller. ERR_NO_MEMORY names the size; what was made is w's in any case. */
enum status weights_place_experts(struct model_weights *w, bool *is_placed,
                                  const struct model_spec *spec, const struct binding *bound,
                                  const struct weights_target *to, struct error *err);
void weights_release_experts(struct model_weights *w);
void weights_release_embedding(struct model_weights *w); /* of weights_overflow.c */

/* Lets the matrices of the arena's experts be views of its blocks where these are now. */
void weights_view_experts(struct model_weights *w, const struct expert_arena *a);

#endif
