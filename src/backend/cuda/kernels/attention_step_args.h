/* attention_step_args.h - what the kernels of attention_step.cuh take: OP_QKV and OP_ATTENTION of one token.
 *
 * Place: backend/cuda/kernels; C and device code.
 * Grid:  that of attention_split; spans have one row each. */
#ifndef BACKEND_CUDA_ATTENTION_STEP_ARGS_H
#define BACKEND_CUDA_ATTENTION_STEP_ARGS_H

#include "backend/cuda/kernels/attention_args.h"

enum {
    STEP_JOIN_MAX = 16, /* splits that the last block of a span joins, at the most */
    STEP_MORE_ROWS =
        SPLIT_LANES + 2 /* of head_dim floats in shared memory, beyond attention_split's */
};

struct attention_step_args {
    struct attention_args attention; /* its q are the raw queries, of which only gates are read */
    struct qkv_args qkv;
    int32_t joins;    /* the last block of a span joins its splits; else attention_join does */
    int32_t *tickets; /* [z of the grid][nkv], zeros before and after */
};

#endif
