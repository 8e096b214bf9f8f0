/* model_maker.h - writes a whole checkpoint of random weights.
 *
 * Place:  cli; behind `spillway make-model`. For measuring speed at true size without the true files.
 * Idea:   the tensors are dealt out to shards in the order of the layers. The data of a shard is cut
 *         into blocks; each worker takes the next block, fills it in its own buffer and writes it, so
 *         memory is a few blocks however large the model is. config.json comes last: until then the
 *         folder is no model.
 * Same options, same bytes: the thread count does not matter. */
#ifndef CLI_MODEL_MAKER_H
#define CLI_MODEL_MAKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"
#include "base/progress.h"
#include "base/status.h"
#include "cli/model_shapes.h"

struct make_options {
    const char *dir; /* made when it is not there; its parent must be */
    struct model_shape shape;
    struct model_variant variant;
    uint64_t seed;
    size_t shard_bytes; /* a shard is at most so large, unless one tensor is larger */
    bool replace;       /* remove the model that the folder holds; else that is ERR_USAGE */
    bool (*should_stop)(void *ctx); /* asked between blocks; may be NULL */
    void *stop_ctx;
};

struct make_result {
    size_t n_tensors, n_shards;
    uint64_t tensor_bytes, file_bytes;
};

/* ERR_IO: the disk is full (the text has the numbers) or refuses; ERR_CANCELLED: should_stop said so. On
 * failure every file that was written is removed again, and so is the folder if it was made here. pool
 * and progress may be NULL. */
enum status model_make(struct make_result *out, const struct make_options *o, struct pool *pool,
                       struct progress *progress, struct error *err);

#endif
