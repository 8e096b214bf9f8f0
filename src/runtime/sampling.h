/* sampling.h - the sampling parameters of one request, and what a token choice reports.
 *
 * Place: runtime; filled by server/params and cli/, read by the sampler. */
#ifndef RUNTIME_SAMPLING_H
#define RUNTIME_SAMPLING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TOP_LOGPROBS_MAX = 20, LOGIT_BIAS_MAX = 1024 };

struct logit_bias {
    int32_t id;
    float bias; /* [-100, 100] */
};

struct sampling {
    float temperature;        /* >= 0; below 1e-6: greedy */
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

struct token_logprob {
    int32_t id;
    float logprob; /* natural log, of the model's distribution at temperature 1, before filters */
};

#endif
