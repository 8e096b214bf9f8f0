/* ahead_args.h - memory that later kernels will read, asked for by kernels that leave memory idle.
 *
 * Place: backend/cuda/kernels; C and device code. Filled by cuda_ahead.c, used by ahead.cuh. */
#ifndef BACKEND_CUDA_AHEAD_ARGS_H
#define BACKEND_CUDA_AHEAD_ARGS_H

#include <stdint.h>

enum {
    AHEAD_RANGES = 8,
    AHEAD_UNIT = 16 /* bytes: where ranges begin and end */
};

struct ahead_range {
    const void *data;
    uint32_t n_bytes;
};

/* In the order in which they will be read. */
struct ahead_args {
    int32_t n_ranges;     /* 0: nothing */
    uint32_t piece_bytes; /* that a block asks for at once */
    struct ahead_range range[AHEAD_RANGES];
};

#endif
