/* model_inventory.h - every tensor of a checkpoint: name, type, shape, and what to fill it with.
 *
 * Place: cli; from a shape of model_shapes.h to the list that model_maker.c writes.
 * Source: names, shapes and the quantised set as in the published checkpoints of the families.
 *         model_inventory_test.c compares counts, parameters and bytes with their totals. */
#ifndef CLI_MODEL_INVENTORY_H
#define CLI_MODEL_INVENTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/tensor.h"
#include "cli/model_fill.h"
#include "cli/model_shapes.h"

struct made_tensor {
    const char *name; /* in the inventory's arena */
    struct tensor tensor;
    size_t n_bytes;
    size_t fill_idx; /* into fills */
};

struct model_inventory {
    struct arena arena;
    struct made_tensor *tensors; /* in the order of the layers; malloc'd */
    size_t n, cap;
    struct fill_spec fills[FILL_SPECS_MAX]; /* what the tensors are filled with, without repeats */
    size_t n_fills;
    size_t n_bytes;      /* of all tensors */
    uint64_t parameters; /* weights in the model: a packed matrix counts n_in x n_out */
    bool failed;         /* out of memory; reported by model_inventory_new */
};

/* Every tensor of the checkpoint. Release with model_inventory_release() also after a failure. */
enum status model_inventory_new(struct model_inventory *out, const struct model_shape *s,
                                const struct model_variant *v, struct error *err);
void model_inventory_release(struct model_inventory *inv); /* accepts a zeroed one */

#endif
