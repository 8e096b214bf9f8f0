/* sampling.h - the sampling parameters of one request, and what a token choice reports.
 *
 * Place: runtime; filled by server/params and cli/, read by the sampler. */
#ifndef RUNTIME_SAMPLING_H
#define RUNTIME_SAMPLING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { TOP_LOGPROBS_MAX = 20, LOGIT_BIAS_MAX = 1024 };

/* Below GREEDY the choice is the most likely token. Above MAX every distribution is flat to within
 * float32, so a larger value is a mistake. */
#define SAMPLING_TEMPERATURE_GREEDY 1e-6f
#define SAMPLING_TEMPERATURE_MAX    1e6f

struct logit_bias {
    int32_t id;
    float bias; /* [-100, 100] */
};

struct sampling {
    float temperature;        /* [0, SAMPLING_TEMPERATURE_MAX]; below 1e-6: greedy */
    float top_p;              /* (0, 1] */
    float min_p;              /* [0, 1] */
    int32_t top_k;            /* -1: off */
    float repetition_penalty; /* (0, 2], 1: off; over prompt and output */
    float presence_penalty, frequency_penalty; /* [-2, 2]; over the output only */
    const struct logit_bias *bias;
    size_t n_bias;
    bool has_seed;
    uint64_t seed; /* without a seed the engine draws one */
    bool want_logprobs;
    size_t n_top_logprobs; /* <= TOP_LOGPROBS_MAX */
};

/* temperature 1, everything else off. */
struct sampling sampling_default(void);

/* Every range above, and bias ids below n_vocab. ERR_BAD_REQUEST with the field as error.param. */
enum status sampling_check(const struct sampling *s, size_t n_vocab, struct error *err);

/* True when the choice depends on the tokens so far. */
bool sampling_has_penalties(const struct sampling *s);

#define LOGPROB_MIN (-9999.0f)

struct token_logprob {
    int32_t id;
    float logprob; /* natural log, of the model's distribution at temperature 1, before filters;
                      never below LOGPROB_MIN, so it can be printed as JSON */
};

#endif
