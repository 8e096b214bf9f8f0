/* cuda_conv.c - causal depthwise convolution over time, then silu, with the state carried.
 *
 * Place: backend/cuda; the kernels are in kernels/conv.cu. Four taps and channels in fours, the shape of
 *        the models we know, take 16 bytes at a time; other shapes one channel per thread. */
#include "backend/cuda/cuda_gdn.h"
#include "base/size.h"

enum conv_kernel { CONV4_QUADS, CONV_ANY, CONV_KERNELS };

static const char *const conv_kernels[CONV_KERNELS] = {
    [CONV4_QUADS] = "conv4_quads",
    [CONV_ANY] = "conv_any",
};

/* Blocks below which runs are made shorter, and rows above which they are not made longer: a run reads
 * taps - 1 rows more than it has. */
enum { CONV_BLOCKS_WANTED = 1024, CONV_ROWS_MAX = 32 };

bool cuda_conv_fits_quads(const struct op_conv *u)
{
    return u->taps == CONV_QUAD_TAPS && u->channels % CONV_QUAD == 0 &&
           cuda_is_aligned(u->in.data) && cuda_is_aligned(u->out.data) &&
           cuda_is_aligned(u->weight);
}

static enum status conv_check(struct cuda_backend *be, struct op *op, struct error *err)
{
    const struct op_conv *u = &op->u.conv;
    enum status rc = OK;

    (void)be;
    if (op->rows != ROWS_ALL) {
        return cuda_refuse(err, op, "works on all rows of a step only");
    }
    rc = cuda_check_operand(op, "the input", &u->in, u->channels, err);
    if (rc == OK) {
        rc = cuda_check_operand(op, "the output", &u->out, u->channels, err);
    }
    if (rc == OK && u->in.data == u->out.data) {
        rc = cuda_refuse(err, op, "the output overlaps the input");
    }
    if (rc == OK && (u->taps < 1 || u->taps > CONV_ANY_TAPS)) {
        rc = cuda_refuse(err, op, "%zu taps, 1 to %d are built", u->taps, CONV_ANY_TAPS);
    }
    if (rc == OK && !u->weight) {
        rc = cuda_refuse(err, op, "it has no weight");
    }
    if (rc == OK && u->channels > INT32_MAX / 2) {
        rc = cuda_refuse(err, op, "%zu channels are too many", u->channels);
    }
    if (rc == OK) {
        op->kernel = cuda_conv_fits_quads(u) ? "conv4 cuda" : "conv cuda";
    }
    return rc;
}

static enum status conv_broken(struct error *err, const struct op *op, const char *what)
{
    return error_set(err, ERR_INTERNAL, "op '%s' of layer %d: %s", op->name ? op->name : "conv",
                     op->layer, what);
}

enum status cuda_conv_args(struct conv_args *args, const struct op *op,
                           const struct cuda_shape *shape, const struct state_pools *state,
                           struct error *err)
{
    const struct op_conv *u = &op->u.conv;
    size_t each = dtype_bytes(state->conv_dtype);

    if (u->gdn_layer >= state->n_gdn_layers || state->conv_elems != (u->taps - 1) * u->channels ||
        state->n_slots > INT32_MAX) {
        return conv_broken(err, op, "the conv state has another shape");
    }
    /* A state of lower precision than its inputs would make decode differ from prefill. */
    if (state->conv_dtype != DTYPE_F32 && state->conv_dtype != u->in.round) {
        return conv_broken(err, op, "the conv state has another type than the conv's input");
    }
    *args = (struct conv_args){
        .view = shape->view,
        .in = u->in.data,
        .weight = u->weight,
        .out = u->out.data,
        .state = state->conv + u->gdn_layer * state->n_slots * state->conv_elems * each,
        .n_slots = (int32_t)state->n_slots,
        .taps = (int32_t)u->taps,
        .channels = (int32_t)u->channels,
        .rows_per_block = 1,
        .state_dtype = state->conv_dtype,
        .round = u->out.round,
    };
    return OK;
}

static enum status conv_run(struct cuda_backend *be, const struct op *op, void *data,
                            const struct cuda_shape *shape, const struct state_pools *state,
                            struct error *err)
{
    const struct op_conv *u = &op->u.conv;
    bool is_quads = cuda_conv_fits_quads(u) && cuda_is_aligned(state->conv);
    size_t threads = u->channels / (is_quads ? CONV_QUAD : 1), pieces, run;
    struct conv_args args;
    enum status rc = cuda_conv_args(&args, op, shape, state, err);

    (void)data;
    if (rc != OK) {
        return rc;
    }
    pieces = (threads + CONV_THREADS - 1) / CONV_THREADS;
    run = size_max(1, size_min(shape->n_rows * pieces / CONV_BLOCKS_WANTED, CONV_ROWS_MAX));
    args.rows_per_block = (int32_t)run;
    return cuda_launch(be, &cuda_conv, is_quads ? CONV4_QUADS : CONV_ANY,
                       (struct cuda_grid){.x = (unsigned)pieces,
                                          .y = (unsigned)((shape->n_rows + run - 1) / run),
                                          .threads = CONV_THREADS},
                       &args, err);
}

const struct cuda_family cuda_conv = {
    .kernels = conv_kernels, .n_kernels = CONV_KERNELS, .check = conv_check, .run = conv_run};
