/* model_fill.h - the made-up content of tensors.
 *
 * Place: cli; used by model_shapes.c (which says what a tensor gets) and model_maker.c (which writes it).
 * Idea:  element i of a tensor is a function of (key, i) alone, where the key comes from the seed and
 *        the tensor's name. So any thread may make any piece, in any order, and the file is the same.
 *        A number is one of 1,024 quantiles of its distribution, looked up in a small table by ten
 *        random bits: no arithmetic per element, and the table stays in the first cache level.
 * Trade-off: 1,024 distinct values and a normal distribution cut at 3.3 deviations. No kernel
 *        notices; a study of weights would. */
#ifndef CLI_MODEL_FILL_H
#define CLI_MODEL_FILL_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/tensor.h"

enum { FILL_SPECS_MAX = 64, FILL_QUANTILES = 1024 };

enum fill_kind {
    FILL_NORMAL,     /* mean a, standard deviation b */
    FILL_UNIFORM,    /* in a..b */
    FILL_DECAY_RATE, /* its exponential is uniform in a..b: A_log */
    FILL_TIME_STEP,  /* its softplus is log-uniform in a..b: dt_bias */
    FILL_INT4,       /* eight packed weights of 4 bits, 1..15 with mean 8 */
    FILL_CONSTANT,   /* the 32 bits of `word`: zero points */
    FILL_GROUPS      /* index / word: the group of each input */
};

struct fill_spec {
    enum fill_kind kind;
    enum dtype dtype; /* numbers: F32, F16, BF16; the last three kinds: I32 */
    double a, b;
    uint32_t word;
};

struct fill {
    struct fill_spec spec;
    union {
        uint16_t half[FILL_QUANTILES];
        float whole[FILL_QUANTILES];
    } table;
};

void fill_init(struct fill *f, const struct fill_spec *spec);

uint64_t fill_key(uint64_t seed, const char *name);

/* Elements [first, first + n) of a tensor, at out (aligned to the element). */
void fill_range(void *out, const struct fill *f, uint64_t key, size_t first, size_t n);

#endif
