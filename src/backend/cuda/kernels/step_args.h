/* step_args.h - a step's tables on the device: what kernels know of rows, sequences and positions.
 *
 * Place: backend/cuda/kernels; C and device code. The tables are written by one copy before a step's
 *        kernels; a captured step is replayed with new contents at the same addresses, so kernels take
 *        counts from `counts`, and a row, span or output row at or past its count does nothing. */
#ifndef BACKEND_CUDA_STEP_ARGS_H
#define BACKEND_CUDA_STEP_ARGS_H

#include <stdint.h>

enum step_count { STEP_ROWS, STEP_OUT_ROWS, STEP_SPANS, STEP_COUNTS };

struct step_span {
    int32_t row, n_rows; /* rows [row, row + n_rows) of every buffer */
    int32_t position;    /* tokens of the sequence before */
    int32_t slot;
    int32_t state_is_zero; /* 1: the slot's content must not be read */
    int32_t pages_at;      /* its page numbers begin at step_view.pages + pages_at */
};

struct step_view {
    const int32_t *counts;         /* [STEP_COUNTS] */
    const int32_t *tokens;         /* [rows] */
    const int32_t *row_span;       /* [rows] which span a row belongs to */
    const int32_t *row_position;   /* [rows] the row's place in its sequence */
    const int32_t *out_rows;       /* [out rows] */
    const struct step_span *spans; /* [spans] */
    const int32_t *pages;
    int32_t *bad_layer;   /* [rows] first layer that was not finite; starts as CUDA_NO_BAD_LAYER */
    float *router_margin; /* [rows], starts as infinity; or NULL */
    /* [OP_ROUTEs of the plan][rows of the step][top_k], or NULL: choices in place of the routers', and what
     * a predictor said of them (backend.h). */
    const int32_t *forced, *forced_next;
};

enum { CUDA_NO_BAD_LAYER = 0x7fff };

#endif
