/* cuda_fuse_attention.c - OP_QKV and the OP_ATTENTION behind it as one kernel, in decode steps.
 *
 * Place:  backend/cuda; launches kernels/attention_step_*.cu. The normed queries stay in the kernel: q is left
 *         as it was.
 * Shapes: those of attention_split (16-bit activations, heads of 64, 128 or 256); others run one by one.
 * Join:   a step whose sequences are short enough for few splits is one launch; with more splits,
 *         attention_join follows. */
#include "backend/cuda/cuda_kv.h"
#include "backend/cuda/kernels/attention_step_args.h"
#include "base/size.h"

enum { STEP_ROWS_MAX = 64 }; /* of a step; with more, the launches are a small part of it */
enum { QKV, ATTENTION, STEP_OPS };
enum { STEP_BF16, STEP_F16 = STEP_BF16 + N_SPLIT, N_KERNELS = STEP_F16 + N_SPLIT };

static const char *const kernels[N_KERNELS] = {NAMES_SPLIT(STEP_BF16, "attention_step_bf16"),
                                               NAMES_SPLIT(STEP_F16, "attention_step_f16")};
static const struct cuda_family family = {.kernels = kernels, .n_kernels = N_KERNELS};

static size_t step_match(const struct cuda_backend *be, const struct op *ops, size_t n)
{
    const struct op_qkv *q = &ops[QKV].u.qkv;
    const struct op_attention *u = &ops[ATTENTION].u.attention;

    if (n < STEP_OPS || ops[QKV].kind != OP_QKV || ops[ATTENTION].kind != OP_ATTENTION) {
        return 0;
    }
    return q->q.data == u->q.data && q->q.cols == u->q.cols && q->q.round == u->q.round &&
                   q->nq == u->nq && q->nkv == u->nkv && q->hd == u->hd &&
                   q->is_gated == u->is_gated && q->attn_layer == u->attn_layer &&
                   u->out.data != q->k.data && u->out.data != q->v.data &&
                   (u->hd == 64 || u->hd == 128 || u->hd == 256) &&
                   cuda_has_mma(be, u->q.round, u->q.round)
               ? STEP_OPS
               : 0;
}

/* Tickets: for each span, KV head and tile of lanes. */
static enum status step_prepare(struct cuda_backend *be, const struct op *ops, void *const *op_data,
                                struct cuda_need *need, void **data, struct error *err)
{
    const struct op_attention *u = &ops[ATTENTION].u.attention;
    size_t tiles = (u->nq / u->nkv + SPLIT_LANES - 1) / SPLIT_LANES;
    size_t n = size_min(be->rows_max, STEP_ROWS_MAX) * tiles * u->nkv;

    (void)op_data;
    (void)need;
    *data = cuda_constant(be, NULL, n * sizeof(int32_t), err);
    return *data ? OK : ERR_NO_MEMORY;
}

static bool step_fits(const struct cuda_backend *be, const struct op *ops,
                      const struct cuda_shape *shape)
{
    (void)be;
    (void)ops;
    return shape->is_decode && shape->n_rows <= STEP_ROWS_MAX;
}

static enum status run_apart(struct cuda_backend *be, const struct op *ops, void *const *op_data,
                             const struct cuda_shape *shape, const struct state_pools *state,
                             struct error *err)
{
    enum status rc = cuda_qkv.run(be, &ops[QKV], op_data[QKV], shape, state, err);

    return rc != OK
               ? rc
               : cuda_attention.run(be, &ops[ATTENTION], op_data[ATTENTION], shape, state, err);
}

static enum status step_run(struct cuda_backend *be, const struct op *ops, void *data,
                            void *const *op_data, const struct cuda_shape *shape,
                            const struct state_pools *state, struct error *err)
{
    const struct op_attention *u = &ops[ATTENTION].u.attention;
    struct attention_step_args args = {.tickets = data};
    struct attention_args *a = &args.attention;
    enum status rc = cuda_attention_args(a, &ops[ATTENTION], shape, state, err);
    enum mma_kernel mma;
    size_t at_once;

    if (rc == OK) {
        rc = cuda_qkv_args(&args.qkv, &ops[QKV], shape, state, err);
    }
    if (rc != OK) {
        return rc;
    }
    mma = cuda_choose_mma(be, u, &a->cache);
    if (mma == NO_MMA || /* the cache is float32, for one */
        !cuda_is_aligned(args.qkv.q_norm) || !cuda_is_aligned(args.qkv.k_norm)) {
        return run_apart(be, ops, op_data, shape, state, err);
    }
    at_once = cuda_split_spans(be, u, 1, SPLIT_LANES, a);
    for (size_t i = 0; rc == OK && i < shape->n_spans; i += at_once) {
        size_t n = size_min(at_once, shape->n_spans - i);
        struct cuda_grid grid = cuda_split_grid(u, shape, n, a);

        a->span_first = (int32_t)i;
        grid.shared_bytes += STEP_MORE_ROWS * u->hd * sizeof(float);
        args.joins = grid.x <= STEP_JOIN_MAX;
        rc = cuda_launch(be, &family,
                         (u->q.round == DTYPE_BF16 ? STEP_BF16 : STEP_F16) + (size_t)mma, grid,
                         &args, err);
        if (rc == OK && !args.joins) {
            rc = cuda_split_join(be, u, n, a, err);
        }
    }
    return rc;
}

const struct cuda_fusion cuda_fuse_attention = {
    .family = &family,
    .match = step_match,
    .prepare = step_prepare,
    .fits = step_fits,
    .run = step_run,
};
