/* sample_flags.c - see sample_flags.h. */
#include "cli/sample_flags.h"

#define AT(member) .offset = FLAG_OFFSET(struct sample_flags, member)

const struct flag sample_flag_table[] = {
    {.name = "max-tokens",
     .kind = FLAG_SIZE,
     AT(max_tokens),
     .metavar = "N",
     .min = 1,
     .max = 1 << 28,
     .help = "longest answer, thinking included; by default what the context leaves"},
    {.name = "temperature",
     .kind = FLAG_DOUBLE,
     AT(temperature),
     .metavar = "T",
     .min = 0,
     .max = 100,
     .help = "0 always takes the likeliest token; by default the model's own"},
    {.name = "top-p",
     .kind = FLAG_DOUBLE,
     AT(top_p),
     .metavar = "P",
     .min = 1e-6,
     .max = 1,
     .help = "draw from the likeliest tokens that make up this share"},
    {.name = "top-k",
     .kind = FLAG_INT,
     AT(top_k),
     .metavar = "K",
     .min = -1,
     .max = 1 << 24,
     .help = "draw from the K likeliest tokens; -1 is all"},
    {.name = "min-p",
     .kind = FLAG_DOUBLE,
     AT(min_p),
     .metavar = "P",
     .min = 0,
     .max = 1,
     .help = "leave out tokens less likely than P times the likeliest"},
    {.name = "repetition-penalty",
     .kind = FLAG_DOUBLE,
     AT(repetition_penalty),
     .metavar = "R",
     .min = 0.01,
     .max = 2,
     .help = "divide the score of tokens that occurred; 1 is off"},
    {.name = "seed",
     .aliases = "random-seed",
     .kind = FLAG_INT,
     AT(seed),
     .metavar = "N",
     .min = 0,
     .max = 9007199254740992.0,
     .help = "the same seed gives the same answer; by default drawn"},
    {.name = "no-thinking",
     .kind = FLAG_BOOL,
     AT(no_thinking),
     .help = "ask the template for an answer without thinking"},
    {.name = "show-thinking",
     .kind = FLAG_BOOL,
     AT(show_thinking),
     .help = "print the thinking too, where it is left out by default"},
};

const size_t sample_flag_count = sizeof sample_flag_table / sizeof sample_flag_table[0];

struct sampling sample_flags_resolve(const struct sample_flags *f, const struct flag_result *given,
                                     const struct generation_config *g)
{
    struct sampling s = sampling_default();
    if (flags_given(given, "temperature") || g->has_temperature) {
        s.temperature =
            (float)(flags_given(given, "temperature") ? f->temperature : g->temperature);
    }
    if (flags_given(given, "top-p") || g->has_top_p) {
        s.top_p = (float)(flags_given(given, "top-p") ? f->top_p : g->top_p);
    }
    if (flags_given(given, "min-p") || g->has_min_p) {
        s.min_p = (float)(flags_given(given, "min-p") ? f->min_p : g->min_p);
    }
    if (flags_given(given, "repetition-penalty") || g->has_repetition_penalty) {
        s.repetition_penalty =
            (float)(flags_given(given, "repetition-penalty") ? f->repetition_penalty
                                                             : g->repetition_penalty);
    }
    if (flags_given(given, "top-k") || g->has_top_k) {
        int64_t k = flags_given(given, "top-k") ? f->top_k : g->top_k;
        s.top_k = k <= 0 ? -1 : k > INT32_MAX ? INT32_MAX : (int32_t)k;
    }
    if (flags_given(given, "seed")) {
        s.has_seed = true;
        s.seed = (uint64_t)f->seed;
    }
    return s;
}
