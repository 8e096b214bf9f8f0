/* cuda_fuse_linear.c - a norm and the linear layer after it as one kernel.
 *
 * Place: backend/cuda. Each block of the product computes the norm for itself while its first weights are on
 *        their way (kernels/linear_gemv.cuh). Its output is written nowhere, so nothing else may read it
 *        before another norm has written it again. */
#include "backend/cuda/cuda_linear.h"
#include "backend/cuda/kernels/linear_args.h"

static bool linear_writes(const struct op *op, const void *data)
{
    for (size_t p = 0; p < op->u.linear.n_parts; p++) {
        if (op->u.linear.part[p].out.data == data) {
            return true;
        }
    }
    return false;
}

/* May op read this buffer? All kinds that can are named. */
static bool op_reads(const struct op *op, const void *data)
{
    switch (op->kind) {
    case OP_EMBED:
        return false;
    case OP_NORM:
        return op->u.norm.in.data == data;
    case OP_LINEAR: /* sums are read too */
        return op->u.linear.in.data == data || linear_writes(op, data);
    case OP_CONV:
        return op->u.conv.in.data == data;
    case OP_DELTA:
        return op->u.delta.qkv.data == data || op->u.delta.z.data == data ||
               op->u.delta.a.data == data || op->u.delta.b.data == data;
    case OP_QKV:
        return op->u.qkv.q.data == data || op->u.qkv.k.data == data || op->u.qkv.v.data == data;
    case OP_ATTENTION:
        return op->u.attention.q.data == data;
    case OP_ROUTE:
        return op->u.route.in.data == data;
    case OP_EXPERTS:
        return op->u.experts.in.data == data;
    case OP_SWIGLU:
        return op->u.swiglu.gate.data == data || op->u.swiglu.up.data == data;
    case OP_ADD_SHARED:
        return op->u.add_shared.x.data == data || op->u.add_shared.routed.data == data ||
               op->u.add_shared.shared.data == data || op->u.add_shared.gate.data == data;
    case OP_CHECK:
        return op->u.check.x.data == data;
    case OP_GATHER:
        return op->u.gather.in.data == data;
    case OP_BEST:
        return op->u.best.in.data == data;
    default:
        return true;
    }
}

/* Is what `data` holds of no use to the ops? */
static bool is_dead(const struct op *ops, size_t n, const void *data)
{
    for (size_t i = 0; i < n; i++) {
        if (op_reads(&ops[i], data)) {
            return false;
        }
        if (ops[i].kind == OP_NORM && ops[i].rows == ROWS_ALL && ops[i].u.norm.out.data == data) {
            return true;
        }
    }
    return true;
}

static size_t match(const struct cuda_backend *be, const struct op *ops, size_t n)
{
    const struct op_norm *norm = &ops[0].u.norm;

    if (n < 2 || ops[0].kind != OP_NORM || ops[1].kind != OP_LINEAR || ops[0].rows != ops[1].rows ||
        norm->out.data != ops[1].u.linear.in.data || norm->in.data == norm->out.data ||
        norm->in.cols != ops[1].u.linear.in.cols || norm->out.round != ops[1].u.linear.in.round ||
        linear_writes(&ops[1], norm->in.data) || linear_writes(&ops[1], norm->out.data) ||
        !is_dead(ops + 2, n - 2, norm->out.data) || !cuda_linear_takes_norm(be, &ops[1], norm)) {
        return 0;
    }
    return 2;
}

static bool fits(const struct cuda_backend *be, const struct op *ops,
                 const struct cuda_shape *shape)
{
    (void)be;
    return cuda_op_rows(&ops[0], shape) <= LINEAR_NORM_ROWS;
}

static enum status run(struct cuda_backend *be, const struct op *ops, void *data,
                       void *const *op_data, const struct cuda_shape *shape,
                       const struct state_pools *state, struct error *err)
{
    (void)data;
    (void)op_data;
    (void)state;
    return cuda_linear_run_normed(be, &ops[1], &ops[0].u.norm, shape, err);
}

const struct cuda_fusion cuda_fuse_linear = {
    .family = &cuda_linear,
    .match = match,
    .fits = fits,
    .run = run,
};
