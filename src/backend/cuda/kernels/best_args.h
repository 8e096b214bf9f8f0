/* best_args.h - what the kernels that find a row's largest value take.
 *
 * Place: backend/cuda/kernels; C and device code. */
#ifndef BACKEND_CUDA_BEST_ARGS_H
#define BACKEND_CUDA_BEST_ARGS_H

#include <stdint.h>

#include "backend/cuda/kernels/step_args.h"

enum { BEST_PIECES = 64, BEST_THREADS = 256 }; /* pieces of a row, a block each */

struct best_piece {
    float value; /* the largest; NaN: one is not finite */
    int32_t place;
};

struct best_args {
    struct step_view view;
    const float *in;
    struct best_piece *pieces; /* [rows][BEST_PIECES] */
    int32_t *out;
    int32_t cols, piece_cols;
    enum step_count count;
};

#endif
