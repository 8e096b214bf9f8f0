/* sample_flags.h - sampling parameters as flags, for the commands that generate in this process.
 *
 * Place: cli. What is not given comes from generation_config.json, else from sampling_default(). */
#ifndef CLI_SAMPLE_FLAGS_H
#define CLI_SAMPLE_FLAGS_H

#include "cli/flags.h"
#include "formats/model_config.h"
#include "runtime/sampling.h"

struct sample_flags {
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k, seed;
    size_t max_tokens; /* 0: as much as the context leaves */
    bool no_thinking, show_thinking;
};

extern const struct flag sample_flag_table[];
extern const size_t sample_flag_count;

struct sampling sample_flags_resolve(const struct sample_flags *f, const struct flag_result *given,
                                     const struct generation_config *g);

#endif
