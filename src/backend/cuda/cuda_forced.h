/* cuda_forced.h - choices of experts that a benchmark makes in place of the routers.
 *
 * Place: backend/cuda; for cuda_steps.c. */
#ifndef BACKEND_CUDA_CUDA_FORCED_H
#define BACKEND_CUDA_CUDA_FORCED_H

#include "backend/cuda/cuda_internal.h"

struct cuda_forced {
    int32_t *host; /* pinned: choices, then predictions, of host_ints each; or NULL */
    size_t host_ints;
    CUdeviceptr device; /* the same, of device_ints each; or 0 */
    size_t device_ints;
};

/* Fills shape->view.forced and forced_next for a step that has choices; in stream order before the step's
 * kernels. Their addresses stay the same for captured steps of one size, else the graphs are dropped. */
enum status cuda_forced_begin(struct cuda_backend *be, struct cuda_shape *shape,
                              const struct step *step, struct error *err);
void cuda_forced_free(struct cuda_backend *be);

#endif
