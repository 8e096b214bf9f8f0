/* best_args.h - what the kernels that find a row's largest values take.
 *
 * Place: backend/cuda/kernels; C and device code. */
#ifndef BACKEND_CUDA_BEST_ARGS_H
#define BACKEND_CUDA_BEST_ARGS_H

#include <stdint.h>

#include "backend/cuda/kernels/step_args.h"

enum {
    BEST_THREADS = 256,
    BEST_PIECES = 64,       /* blocks of a row */
    BEST_CLASSES = 4,       /* of a block's columns; a thread looks at the largest of each */
    BEST_LINE = 32,         /* columns that follow each other in a block: 128 bytes */
    BEST_KEPT = 64,         /* of a row */
    BEST_LIST = 2048,       /* that are worth a second look */
    BEST_ROWS = 64,         /* of one launch */
    BEST_COLS_MAX = 1 << 30 /* of a row, so that places in it are ints */
};

/* What the blocks of a row tell each other. Values are integers of the same order, 0 where there is none; an
 * order is such a value with its place below it. */
struct best_scratch {
    uint32_t largest[BEST_PIECES * BEST_CLASSES];
    int32_t n_listed, n_done;
    uint64_t list[BEST_LIST];
};

struct best_args {
    struct step_view view;
    const float *in;
    struct best_scratch *scratch; /* [rows of the launch] */
    int32_t *out;                 /* [rows][ids and values, BEST_KEPT each] */
    int32_t cols, n_lines;
    int32_t row;     /* the launch's first */
    int32_t is_wide; /* rows begin where 16 bytes can be loaded, and end so */
    enum step_count count;
};

#endif
