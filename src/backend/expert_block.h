/* expert_block.h - one routed expert as one piece of memory.
 *
 * Place:  backend; filled by model/weights, read by the kernels through views, moved by offload/ as one
 *         copy.
 * Layout: the three matrices in the layouts of weight.h; each part begins at a 64-byte border, and so
 *         does the next block. Values come first because they are most of it: 1.5 MiB and 48 KiB of
 *         scales for an expert of Qwen3.5-35B-A3B.
 *
 *      0                                                                                    n_bytes
 *      +------+------+------+-------------+-------------+--------------------+--------------------+
 *      | gate |  up  | down | gate scales |  up scales  |     down scales    | zeros x3 | perms x3|
 *      |          values    |                                                |   if there are any |
 *      +------+------+------+-------------+-------------+--------------------+--------------------+
 *
 * All experts of a layer have one shape, so expert e of a layer begins at e * n_bytes. */
#ifndef BACKEND_EXPERT_BLOCK_H
#define BACKEND_EXPERT_BLOCK_H

#include "backend/backend.h"

enum { EXPERT_BLOCK_ALIGN = 64 };

struct expert_shape {
    size_t hidden, width;      /* gate and up [width][hidden], down [hidden][width] */
    enum weight_kind kind;     /* INT4 or INT8 */
    enum dtype scales;         /* F16, BF16 or F32 */
    size_t group, down_group;  /* inputs per scale */
    bool has_zeros, has_perms; /* all three matrices or none */
};

enum expert_part { EXPERT_GATE, EXPERT_UP, EXPERT_DOWN, EXPERT_PARTS };

struct expert_block {
    struct expert_shape shape;
    struct {
        size_t values, scales, zeros, perm; /* offsets; zeros and perm only if there are any */
    } part[EXPERT_PARTS];
    size_t n_bytes; /* a multiple of EXPERT_BLOCK_ALIGN */
};

/* Whether the three matrices have one shape that fits a block; fills *shape. */
bool expert_shape_of(struct expert_shape *shape, const struct expert_weights *w);
bool expert_shape_equal(const struct expert_shape *a, const struct expert_shape *b);

/* False: a size does not fit a size_t. */
bool expert_block_init(struct expert_block *b, const struct expert_shape *shape);

/* The matrices of the expert at `base`. */
struct expert_weights expert_block_view(const struct expert_block *b, const void *base);

#endif
