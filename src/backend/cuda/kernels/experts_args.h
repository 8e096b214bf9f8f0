/* experts_args.h - what the kernels of the routed experts are given.
 *
 * Place: backend/cuda/kernels; C and device code.
 * Words: a pair is a row and one of its choices, numbered row * top_k + choice. A slot is a pair's place
 *        when pairs are sorted by expert, then by number. Pairs whose choice is no expert have none.
 * Order: "packed" rows hold 16-bit values in the order in which the matrix instruction wants them beside
 *        int4 weights (experts_int4.cuh). */
#ifndef BACKEND_CUDA_EXPERTS_ARGS_H
#define BACKEND_CUDA_EXPERTS_ARGS_H

#include <stdint.h>

enum { EXPERTS_GATE, EXPERTS_UP, EXPERTS_DOWN, EXPERTS_MATRICES };

enum {
    EXPERTS_CHUNK = 128, /* inputs that share a scale at least, in the matrix kernels */
    EXPERTS_DECODE_MAX =
        8, /* rows that the decode kernels take: columns of one matrix instruction */
    EXPERTS_CHOICES_MAX = 64,
    EXPERTS_TILE_MAX = 64,  /* slots of a tile of the matrix kernels */
    EXPERTS_PLAIN_TILE = 8, /* of the plain kernels */
    EXPERTS_GATE_CHUNKS =
        2, /* of a weight row that a warp of the decode kernels has on their way */
    EXPERTS_DOWN_CHUNKS = 4,
};

/* What the kernels for one row are built for (experts_one.cuh): groups of EXPERTS_CHUNK, 16-bit scales. */
enum {
    ONE_WIDTH = 512,
    ONE_CHOICES_MAX = 8,   /* a warp each in moe_down_one_* */
    ONE_HIDDEN_MAX = 2048, /* a warp has two chunks in moe_gate_one_* */
};

/* Threads of a block. */
enum {
    EXPERTS_DECODE_THREADS = 256,
    EXPERTS_TILE_THREADS = 128,
    EXPERTS_PLAIN_THREADS = 256,
    EXPERTS_ROW_THREADS = 256, /* sort, gather, sum */
};

/* Output columns of a block. */
enum {
    EXPERTS_DECODE_COLS = 16,
    EXPERTS_GATE_COLS = 64,
    EXPERTS_DOWN_COLS = 128,
    EXPERTS_PLAIN_COLS = 32,
};

/* One matrix of one expert: struct weight as the device sees it. The addresses may be changed between steps
 * by whoever moves experts. */
struct experts_matrix {
    const uint8_t *data;
    const void *scales;
    const uint8_t *zeros;
    const int32_t *perm;
    int32_t kind, dtype; /* enum weight_kind, enum dtype */
    int32_t group, n_groups;
};

/* Where rows and slots are: all pointers are of row 0 of this launch, which may be in the middle of a step. */
struct experts_args {
    const int32_t *n_rows;  /* of the step */
    int32_t row0, rows_max; /* this launch works on rows [row0, row0 + rows_max) that are there */
    const float *x;         /* [rows][hidden] */
    const int32_t *idx;     /* [rows][top_k] */
    const float *prob;      /* [rows][top_k] */
    float *out;             /* [rows][n_out] */
    const struct experts_matrix *experts; /* [n_experts][EXPERTS_MATRICES] */
    int32_t n_experts, top_k, hidden, width, n_out;
    int32_t round;            /* enum dtype: of x, gate, up and their product */
    int32_t has_perm;         /* some expert's inputs are sorted: `mid` is in plain order */
    int32_t group_max;        /* decode: pairs of an expert that are taken together */
    int32_t tile_max, stages; /* slots of a tile, depth of the ring of weights */
    /* A launch of the products can be for one group of the experts; sort and sum are for all of them. What
     * is computed does not depend on how experts are grouped. */
    const int32_t *group_of; /* [n_experts], or NULL: all are one group */
    int32_t group_now;
    int32_t tiles_max; /* no launch has more tiles; with fewer blocks each takes several */
    /* Of all matrices in the same place, for the matrix kernels */
    int32_t dtype[EXPERTS_MATRICES], group[EXPERTS_MATRICES];
    /* scratch */
    int32_t *first;     /* [n_experts + 1] first slot of an expert; the last: number of slots */
    int32_t *slot_pair; /* [slots] */
    int32_t *pair_slot; /* [pairs] -1: none */
    uint16_t *
        packed; /* x, packed: [rows][hidden]; with has_perm [2][pairs][hidden], by slot, for gate and
                           for up */
    uint16_t *mid; /* silu(gate) * up: [pairs][width], decode by pair, else by slot; plain kernels
                           keep float32 here */
    uint16_t *mid_packed; /* [slots][width]; the same as mid without has_perm */
    float *y;             /* [slots][n_out] what down gave */
    const float *more;    /* [rows][n_out] added to each row's sum; NULL: nothing */
};

#endif
