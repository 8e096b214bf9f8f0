/* route_args.h - what the kernels of route.cu take.
 *
 * Place: backend/cuda/kernels; C and device code.
 * Few rows:   route_one_*, route_four_*: blocks (ROUTE_FEW_EXPERTS experts, rows in ones or fours)
 * Many rows:  route_tile_*: blocks (ROUTE_TILE_ROWS rows, ROUTE_TILE_EXPERTS experts, slice of the inputs),
 *             then route_select: blocks of ROUTE_SELECT_ROWS rows */
#ifndef BACKEND_CUDA_ROUTE_ARGS_H
#define BACKEND_CUDA_ROUTE_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cuda/kernels/step_args.h"
#include "base/tensor.h"

enum {
    ROUTE_THREADS = 128,
    ROUTE_FEW_EXPERTS = 4, /* a warp each */
    ROUTE_FEW_ROWS = 4,
    ROUTE_TILE_ROWS = 64,
    ROUTE_TILE_EXPERTS = 128,
    ROUTE_SLICE = 512, /* inputs whose products one block of route_tile_* adds up */
    ROUTE_SELECT_ROWS = 4,
    ROUTE_EXPERTS_MAX = 1024,
    ROUTE_TOP_K_MAX = 64
};

/* How the router's rows are read: dense ones that begin at 16-byte borders; or value by value. */
enum route_matrix { MATRIX_BF16, MATRIX_F16, MATRIX_F32, MATRIX_ANY };

struct route_args {
    struct step_view view;
    enum step_count count;
    const float *in; /* [rows][n_in] */
    /* The router as in backend/weight.h. bits: 4, 8, or 0 for dense rows of dtype. */
    const void *data, *scales;
    const uint8_t *zeros;
    const int32_t *perm;
    enum dtype dtype;
    int32_t bits, group;
    float *logits; /* [n_slices][slice_stride], a slice [rows][n_experts]; the slices add up */
    size_t slice_stride; /* in floats */
    int32_t *tickets;    /* [groups of few rows], zero between launches */
    int32_t *idx;        /* [rows][top_k] */
    float *prob;         /* [rows][top_k] */
    int32_t n_in, n_experts, top_k, n_slices;
    int32_t route_layer; /* which of the plan's OP_ROUTEs it is */
    bool renormalise;
};

#endif
