/* dtype_table.h - the one place that decides in which type everything is stored and computed.
 *
 * Place:  model; decided once by model_open, before anything is allocated, and printed. Everything
 *         else takes its types from here or, for weights, from the file's own header.
 * Why:    a buffer whose type came from a second source is how fp16 bits get read as bf16. The
 *         convolution state, for one, is derived from the activations that enter it. */
#ifndef MODEL_DTYPE_TABLE_H
#define MODEL_DTYPE_TABLE_H

#include "base/buf.h"
#include "base/status.h"
#include "formats/model_config.h"
#include "model/model.h"

struct dtype_table {
    enum dtype compute;   /* what activations are rounded to: F32, F16, BF16 */
    enum dtype conv;      /* == compute: the state holds raw inputs of the convolution */
    enum dtype recurrent; /* F32 or BF16; arithmetic on it is float32 always */
    enum dtype kv;        /* F32, F16, BF16, F8_E4M3, F8_E5M2 (with a scale per head and token) */
};

/* ERR_UNSUPPORTED with error.param = the flag that asks for what is not built. */
enum status dtype_table_decide(struct dtype_table *out, const struct model_options *o,
                               const struct model_config *c, struct error *err);

void dtype_table_print(const struct dtype_table *t, struct buf *out);

#endif
