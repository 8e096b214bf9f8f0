/* moe_args.h - what the kernels take that do the tail of a layer in small decode steps.
 *
 * Place: backend/cuda/kernels; C and device code. Filled by cuda_fuse_moe.c.
 * Order: moe_in_*    norm, the router's logits; beside them the shared expert up to its product
 *        moe_choose  the choice; with a home (expert_home.h) experts_fetch follows, but for one row
 *        moe_gate_*  gate and up of the chosen experts
 *        moe_down_*  the experts' down, the shared expert's, the sums, the check
 * One:   moe_gate_one_* and moe_down_one_* are for one row, see cuda_fuse_moe.c */
#ifndef BACKEND_CUDA_MOE_ARGS_H
#define BACKEND_CUDA_MOE_ARGS_H

#include "backend/cuda/kernels/experts_args.h"
#include "backend/cuda/kernels/offload_args.h"
#include "backend/cuda/kernels/route_args.h"

enum {
    MOE_THREADS = 256,
    MOE_WARPS = MOE_THREADS / 32,
    MOE_MID_COLS = MOE_WARPS / 2, /* of a block: a warp for gate, one for up */
    /* Steps of more rows run op by op. Measured with 4 on an H200: 1,217 us fused, 1,244 not (8 layers). */
    MOE_ROWS_MAX = 8,
};

enum moe_kind { MOE_BF16, MOE_F16, MOE_F32, MOE_INT8 };

/* Rows in whole pieces of 16 bytes, at 16-byte borders. */
struct moe_matrix {
    const uint8_t *data;
    const void *scales;
    const uint8_t *zeros;
    int32_t kind, scale_type; /* enum moe_kind, enum dtype */
    int32_t n_chunks;         /* pieces of a row */
    int32_t group_chunks;     /* pieces of a scale */
    int32_t n_groups;
};

/* Blocks: first route_blocks of MOE_WARPS experts, then mid_blocks of MOE_MID_COLS columns, then one for the
 * shared gate if there is one, then again route_blocks for the next layer's router if it is wanted. Dynamic shared memory: the norm's weight, then `rows` rows of 16-bit inputs. */
struct moe_in_args {
    struct route_args route; /* .in: the residual */
    const float *norm;       /* [n_in] */
    float eps;
    float *u; /* [rows][n_in] the normed rows */
    struct moe_matrix router, gate, up, share;
    struct moe_matrix next; /* the next layer's router, for what is fetched ahead */
    int32_t route_blocks, mid_blocks, share_blocks;
    int32_t width, gate_round, up_round, mid_round;
    float *mid;         /* [rows][width] */
    float *share_out;   /* [rows] before the sigmoid */
    float *next_logits; /* [rows][n_experts] */
};

/* One block; a warp per row. */
struct moe_choose_args {
    struct route_args route;
    int32_t has_home; /* whether these experts overflow: then also */
    struct offload_args home;
};

/* As experts_gate_up_decode_*; moe_gate_one_*: blocks of (EXPERTS_DECODE_COLS columns, choices). */
struct moe_gate_args {
    struct experts_args experts;
    const int64_t *away; /* of kernels for one row: see offload_args.h; NULL: nothing is fetched */
};

/* Blocks of EXPERTS_DECODE_COLS columns. */
struct moe_down_args {
    struct experts_args experts; /* .out: the residual, += */
    const int64_t *away;         /* as above */
    struct moe_matrix down;
    struct offload_join join;
    const float *mid;   /* [rows][shared_width] */
    const float *share; /* [rows] before the sigmoid, or NULL */
    int32_t shared_width;
    int32_t layer;
    int32_t *bad_layer; /* [rows] */
};

#endif
