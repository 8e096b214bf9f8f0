/* cuda_fuse_gdn.c - OP_CONV and the OP_DELTA behind it as one kernel, in decode steps.
 *
 * Place:  backend/cuda; launches kernels/gdn_step.cu. What passes between the two ops stays in the kernel:
 *         the convolution's output is not written.
 * Shapes: those of the fast forms of both ops (four taps, heads of 128); others run one by one. */
#include "backend/cuda/cuda_gdn.h"
#include "backend/cuda/kernels/gdn_args.h"
#include "base/size.h"

enum { GDN_ROWS_MAX = 64 }; /* of a step; with more, two launches are a small part of it */
enum { CONV, DELTA, GDN_OPS };

static const char *const kernels[] = {"gdn_step"};
static const struct cuda_family family = {.kernels = kernels, .n_kernels = 1};

static size_t gdn_match(const struct cuda_backend *be, const struct op *ops, size_t n)
{
    const struct op_conv *c = &ops[CONV].u.conv;
    const struct op_delta *d = &ops[DELTA].u.delta;

    (void)be;
    if (n < GDN_OPS || ops[CONV].kind != OP_CONV || ops[DELTA].kind != OP_DELTA) {
        return 0;
    }
    return c->out.data == d->qkv.data && c->channels == d->qkv.cols &&
                   c->gdn_layer == d->gdn_layer && c->in.data != d->out.data && d->chunk_min > 1 &&
                   cuda_conv_fits_quads(c) && cuda_delta_has_fast_heads(d)
               ? GDN_OPS
               : 0;
}

/* The tickets of a step's spans. */
static enum status gdn_prepare(struct cuda_backend *be, const struct op *ops, void *const *op_data,
                               struct cuda_need *need, void **data, struct error *err)
{
    size_t rows = size_min(be->rows_max, GDN_ROWS_MAX);

    (void)op_data;
    (void)need;
    *data = cuda_constant(be, NULL, rows * ops[DELTA].u.delta.nk * sizeof(int32_t), err);
    return *data ? OK : ERR_NO_MEMORY;
}

static bool gdn_fits(const struct cuda_backend *be, const struct op *ops,
                     const struct cuda_shape *shape)
{
    (void)be;
    (void)ops;
    return shape->is_decode && shape->n_rows <= GDN_ROWS_MAX;
}

static enum status gdn_run(struct cuda_backend *be, const struct op *ops, void *data,
                           void *const *op_data, const struct cuda_shape *shape,
                           const struct state_pools *state, struct error *err)
{
    struct gdn_args args = {.tickets = data};
    enum status rc;

    if ((uintptr_t)state->conv % (2 * sizeof(float)) != 0) { /* two channels are one access */
        rc = cuda_conv.run(be, &ops[CONV], op_data[CONV], shape, state, err);
        return rc != OK ? rc : cuda_delta.run(be, &ops[DELTA], op_data[DELTA], shape, state, err);
    }
    rc = cuda_conv_args(&args.conv, &ops[CONV], shape, state, err);
    if (rc == OK) {
        rc = cuda_delta_args(&args.delta, be, &ops[DELTA], shape, state, err);
    }
    return rc != OK ? rc
                    : cuda_launch(be, &family, 0,
                                  (struct cuda_grid){.x = (unsigned)ops[DELTA].u.delta.nv,
                                                     .y = (unsigned)shape->n_spans,
                                                     .threads = GDN_THREADS},
                                  &args, err);
}

const struct cuda_fusion cuda_fuse_gdn = {
    .family = &family,
    .match = gdn_match,
    .prepare = gdn_prepare,
    .fits = gdn_fits,
    .run = gdn_run,
};
