/* logprobs.h - log-probabilities of tokens in the two forms of OpenAI's answers.
 *
 * Place: server. Each function appends one item to lists of JSON items with commas between. */
#ifndef SERVER_LOGPROBS_H
#define SERVER_LOGPROBS_H

#include "server/generation.h"

/* Chat: {"token","logprob","bytes","top_logprobs":[...]} to c->logprobs[0]. */
void logprobs_add_chat(struct choice *c, const struct engine_event *e);
/* ,"logprobs":{"content":[...]} or ,"logprobs":null; clears the list. */
void logprobs_write_chat(struct buf *out, struct choice *c);

/* Completions: to the four lists of c. */
void logprobs_add_completion(struct choice *c, const struct engine_event *e);
void logprobs_write_completion(struct buf *out, struct choice *c);

#endif
