/* sampler.h - from a row of logits to a token.
 *
 * Place:   runtime; the engine thread calls it once per generated token.
 * Order:   repetition penalty, presence and frequency penalty, bias, bans; temperature; top_k; top_p
 *          (of what top_k left, renormalised); min_p (relative to the most likely token); the choice.
 *          Among equal logits the lower id comes first, in greedy choice, top_k and top_p alike.
 * Random:  the number for token `index` of a request is a function of (seed, index) alone. So a seed
 *          gives the same text in any company and after a restart.
 * Cost:    a few passes over the row, no sorting, no allocation: top_k and top_p are cut by a radix
 *          search over the bits of the logit or weight. Most requests need the row's largest logits
 *          only, which a device finds by itself: then a microsecond or two.
 * Threads: one sampler per thread; the history belongs to its sequence. */
#ifndef RUNTIME_SAMPLER_H
#define RUNTIME_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "runtime/sampling.h"

struct sampler;
struct best_row;

/* n_vocab: ids at and above it (padding rows of the model) are never chosen; a row of logits may be
 * longer than that. Scratch is allocated here and nowhere else. */
enum status sampler_new(struct sampler **out, size_t n_vocab, struct error *err);
void sampler_free(struct sampler *s); /* accepts NULL */

/* Which tokens a sequence has seen: [n_vocab] words, the top bit set when the token is in the prompt,
 * the rest counts it in the output. NULL `seen` is fine when the parameters have no penalties. */
struct token_history {
    uint32_t *seen;
    size_t n_vocab;
};
bool token_history_init(struct token_history *h, size_t n_vocab); /* false: out of memory */
void token_history_release(struct token_history *h);
void token_history_add_prompt(struct token_history *h, const int32_t *ids, size_t n);
void token_history_add_output(struct token_history *h, int32_t id);

struct sampler_input {
    const float *logits;             /* [>= n_vocab] */
    const struct sampling *sampling; /* passed sampling_check() */
    const struct token_history *history;
    const int32_t *banned; /* ids that may not be chosen now (end tokens before min_tokens) */
    size_t n_banned;
};

struct sample {
    int32_t id;
    float logprob; /* with want_logprobs, else 0 */
    size_t n_top;
    struct token_logprob top[TOP_LOGPROBS_MAX]; /* by falling logprob, ties to the lower id */
};

/* The number in [0, 1) that belongs to token `index` of a request with this seed. */
double sampler_uniform(uint64_t seed, uint64_t index);

/* The choice for uniform u in [0, 1): the first kept token, in order of ids, at which the running sum
 * of probabilities passes u. ERR_INTERNAL when a logit is NaN or no token is left; +inf wins over every
 * finite logit, -inf is never chosen. */
enum status sampler_choose(struct sampler *s, const struct sampler_input *in, double u,
                           struct sample *out, struct error *err);

/* False: the choice will need the whole row, whatever is in it. */
bool sampler_may_use_top(const struct sampling *p);

/* The same choice from the row's largest logits alone; in->logits is not read. False: they do not decide it,
 * or there is an error to be told, and sampler_choose() has to see the whole row. */
bool sampler_choose_top(struct sampler *s, const struct sampler_input *in,
                        const struct best_row *top, double u, struct sample *out);

/* What the last sampler_choose or sampler_choose_top kept, for tests: ids in rising order, weights not normalised. Greedy
 * choices keep one. Returns the number; the arrays are borrowed until the next choice. */
size_t sampler_kept(const struct sampler *s, const int32_t **ids, const float **weights);

#endif
