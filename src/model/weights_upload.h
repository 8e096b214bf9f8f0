/* weights_upload.h - weights that were prepared in host memory, moved to a device with its own.
 *
 * Place: model; between loading (and dense_quant.h) and building the op plan. */
#ifndef MODEL_WEIGHTS_UPLOAD_H
#define MODEL_WEIGHTS_UPLOAD_H

#include "backend/backend.h"
#include "base/progress.h"
#include "base/status.h"
#include "model/weights.h"

/* Copies every matrix and vector that is not in an arena to be's memory, lets w's pointers be the
 * device's, and gives the host's copies back piece by piece; what is mapped from files stays mapped.
 * Arenas are on the device already, or they stay, as the embedding may (weights_overflow.h). Nothing
 * happens when be computes in host memory. w keeps what it holds on the device until weights_release.
 * ERR_NO_MEMORY names the size that did not fit; w can only be released then. pool and progress may be
 * NULL. */
enum status weights_upload(struct model_weights *w, const struct model_spec *spec,
                           struct backend *be, struct pool *pool, struct progress *progress,
                           struct error *err);

#endif
