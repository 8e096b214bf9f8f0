/* model_resolve.h - every `auto` and default of the model flags, as one decided set of numbers.
 *
 * Place: cli; a pure function of flags and config, so that it can be tested without a model. */
#ifndef CLI_MODEL_RESOLVE_H
#define CLI_MODEL_RESOLVE_H

#include <stddef.h>

#include "base/status.h"
#include "base/tensor.h"
#include "cli/model_setup.h"
#include "cli/settings.h"
#include "formats/model_config.h"

enum {
    MAX_RUNNING_DEFAULT = 32,
    MAX_RUNNING_OVERFLOW = 4, /* where experts overflow: each sequence has its own, and its state's
                                 memory is worth some forty slots */
    MAX_TOTAL_TOKENS_DEFAULT = 65536, /* KV pool on a CPU and on small cards */
    MAX_TOTAL_TOKENS_LARGE = 262144,  /* from LARGE_CARD_GIB on */
    CHUNK_TOKENS_DEFAULT = 2048,
    CHUNK_TOKENS_LARGE = 8192,
    CHUNK_TOKENS_LEAST = 256, /* of those that are halved because a card is small */
    CHUNK_PART = 10, /* until operands, scratch and staging of a step are at most this part of it */
    LARGE_CARD_GIB = 32,
    CHUNK_TOKENS_UNIT = 64 /* pages and the chunked delta rule both work on 64 tokens */
};

struct model_resolved {
    enum dtype compute, kv, recurrent;
    enum cpu_activations activations;
    enum dense_quant dense_quant;
    size_t context_length, max_total_tokens, max_running;
    size_t chunk_tokens; /* 0: never cut */
    size_t max_prefill_tokens;
    size_t rows_max;
    bool is_large_card;
};

struct resolve_place {
    size_t card_bytes;   /* memory of the card that the model may use; 0: it runs on the CPU */
    size_t max_running;  /* when the flag is not given */
    size_t chunk_tokens; /* the same; 0: by the size of the card */
    bool overflows;      /* the CPU may compute experts besides a card */
};

/* Adds one row to `settings` for each decision. ERR_USAGE names the flag. */
enum status model_resolve(struct model_resolved *out, const struct model_flags *f,
                          const struct model_config *c, const struct resolve_place *place,
                          struct settings *settings, struct error *err);

/* --quantization against the checkpoint's quant_method (NULL: not quantised). */
enum status quantization_check(const char *asked, const char *stored, struct settings *settings,
                               struct error *err);

#endif
