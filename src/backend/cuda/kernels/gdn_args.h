/* gdn_args.h - what the kernel of gdn_step.cu takes: a convolution and the delta rule that it feeds.
 *
 * Place: backend/cuda/kernels; C and device code.
 * Grid:  blocks (value head, span) of GDN_THREADS; a span is one row. */
#ifndef BACKEND_CUDA_GDN_ARGS_H
#define BACKEND_CUDA_GDN_ARGS_H

#include "backend/cuda/kernels/conv_args.h"
#include "backend/cuda/kernels/delta_args.h"

enum {
    GDN_THREADS = 256,
    GDN_PER_CARD = 2 /* blocks of a multiprocessor, at the least */
};

struct gdn_args {
    struct conv_args conv;
    struct delta_args delta; /* its qkv, which is conv's out, is neither written nor read */
    int32_t *tickets;        /* [spans of the grid][nk], zeros before and after */
};

#endif
