/* rows_args.h - what the kernels of rows.cu take: embedding, norm, swiglu, residual sums, checks, gather.
 *
 * Place:  backend/cuda/kernels; C and device code.
 * Grid:   blocks (row, piece of the row), a thread per quad; norm_rows one block per row.
 * Fields: count says whether rows or output rows are worked on; is_wide that cols is a multiple of 4 and
 *         every buffer is aligned to 16 bytes; round what the output is rounded to. */
#ifndef BACKEND_CUDA_ROWS_ARGS_H
#define BACKEND_CUDA_ROWS_ARGS_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cuda/kernels/step_args.h"
#include "base/tensor.h"

enum { ROWS_THREADS_MAX = 256, NORM_THREADS = 256 };

struct embed_args {
    struct step_view view;
    const void *table; /* [n_tokens][cols] of dtype */
    float *out;
    int32_t n_tokens, cols;
    enum dtype dtype, round;
    bool is_wide;
};

struct norm_args {
    struct step_view view;
    enum step_count count;
    const float *in, *weight; /* in may be out */
    float *out;
    int32_t cols;
    float eps;
    enum dtype round;
    bool is_wide;
};

struct swiglu_args {
    struct step_view view;
    enum step_count count;
    const float *gate, *up; /* may be out */
    float *out;
    int32_t cols;
    enum dtype round;
    bool is_wide;
};

struct add_shared_args {
    struct step_view view;
    enum step_count count;
    float *x;
    const float *routed;
    const float *shared; /* or NULL */
    const float *gate;   /* [rows] or NULL */
    int32_t cols;
    bool is_wide;
};

struct check_args {
    struct step_view view;
    enum step_count count;
    const float *x;
    int32_t cols, layer;
    bool is_wide;
};

struct gather_args {
    struct step_view view;
    const float *in;
    float *out;
    int32_t cols;
    enum dtype round;
    bool is_wide;
};

#endif
