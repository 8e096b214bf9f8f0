/* weights_bind.h - where each slot's bytes are: the first half of loading. Private to model/weights*.c.
 *
 * Binding looks only at names, shapes and types; nothing is copied. Its result tells the second half
 * (weights.c) what to write into the block. */
#ifndef MODEL_WEIGHTS_BIND_H
#define MODEL_WEIGHTS_BIND_H

#include "formats/gptq.h"
#include "model/weights.h"

enum source_kind {
    SOURCE_MAPPED,     /* used in place */
    SOURCE_COPY,       /* rows regrouped, or only moved to an aligned place */
    SOURCE_CONVERT,    /* as COPY, and converted to float32 */
    SOURCE_QUANTISED,  /* repacked into blocks */
    SOURCE_DEQUANTISED /* quantised in a form that no kernel reads: dense float32 */
};

struct matrix_source {
    enum source_kind kind;
    struct tensor tensor;    /* plain: the file's tensor */
    const uint8_t *rows;     /* plain: first row of the matrix in it */
    struct gptq_matrix gptq; /* quantised */
};

struct binding {
    struct matrix_source *matrices; /* [spec->n_matrices] */
    struct tensor *vectors;         /* [spec->n_vectors] */
};

/* *out is released with binding_release, also after a failure. Fills w->skipped. */
enum status weights_bind(struct binding *out, struct model_weights *w,
                         const struct model_spec *spec, const struct checkpoint *ck,
                         const struct log *log, struct error *err);
void binding_release(struct binding *b, const struct model_spec *spec);

#endif
