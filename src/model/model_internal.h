/* model_internal.h - the inside of struct model, shared by model.c (loading) and forward.c (steps). */
#ifndef MODEL_INTERNAL_H
#define MODEL_INTERNAL_H

#include "model/dtype_table.h"
#include "model/model.h"
#include "model/op_plan.h"
#include "model/spec.h"
#include "model/weights.h"

struct model {
    struct backend *be;
    struct model_options options; /* with auto resolved */
    struct model_config config;
    struct model_spec spec;
    struct model_weights weights;
    struct dtype_table dtypes;
    struct state_store *states;
    struct offload *offload; /* or NULL; its blocks are those of weights */
    struct op_plan plan;
    /* one step's lists, allocated at load */
    struct step_buffers {
        int32_t *tokens;      /* [rows_max] */
        struct span *spans;   /* [spans_max] */
        int32_t *out_rows;    /* [out_rows_max] */
        int16_t *row_bad;     /* [rows_max] */
        int16_t *span_bad;    /* [spans_max] */
        float *router_margin; /* [rows_max] */
        float *tap_rows;      /* [rows_max][hidden] */
        float *logits;        /* [out_rows_max][vocab] */
        struct best_row *top; /* [out_rows_max] */
        int32_t *best;        /* [out_rows_max] the first of each */
        size_t spans_max;
        size_t n_out_rows; /* of the last step */
    } step;
};

enum status step_buffers_make(struct model *m, struct error *err);
void step_buffers_release(struct model *m);

#endif
