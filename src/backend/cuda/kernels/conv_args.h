/* conv_args.h - what the kernels of conv.cu take.
 *
 * Place: backend/cuda/kernels; C and device code.
 * Grid:  blocks (piece of the channels, run of rows). A thread has CONV_QUAD channels in conv4_quads, one
 *        in conv_any, and rows_per_block rows, which may belong to several spans. */
#ifndef BACKEND_CUDA_CONV_ARGS_H
#define BACKEND_CUDA_CONV_ARGS_H

#include <stdint.h>

#include "backend/cuda/kernels/step_args.h"
#include "base/tensor.h"

enum { CONV_THREADS = 128, CONV_QUAD = 4, CONV_QUAD_TAPS = 4, CONV_ANY_TAPS = 8 };

struct conv_args {
    struct step_view view;
    const float *in, *weight; /* [rows][channels], [taps][channels] */
    float *out;               /* not in */
    void *state;              /* [n_slots][taps - 1][channels] of state_dtype, of one layer */
    int32_t n_slots, taps, channels;
    int32_t rows_per_block;
    enum dtype state_dtype, round;
};

#endif
