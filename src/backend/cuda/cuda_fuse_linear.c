/* cuda_fuse_linear.c - a norm, or a short swiglu, and the linear layer after it as one kernel.
 *
 * Place: backend/cuda. Each block of the product computes its input for itself while its first weights are on
 *        their way (kernels/linear_gemv.cuh). The input is written nowhere, so nothing else may read it
 *        before something else is written to its place. */
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

/* Does op write anew what it finds there? Only kinds that matter are named. */
static bool op_writes(const struct op *op, const void *data)
{
    switch (op->kind) {
    case OP_NORM:
        return op->u.norm.out.data == data;
    case OP_LINEAR:
        return linear_writes(op, data);
    case OP_CONV:
        return op->u.conv.out.data == data;
    case OP_SWIGLU:
        return op->u.swiglu.out.data == data;
    case OP_ROUTE:
        return op->u.route.idx.data == data || op->u.route.prob.data == data;
    default:
        return false;
    }
}

/* Is what the op `from` leaves at `data` of no use to the ops after the next? */
static bool is_dead(const struct op *from, size_t n, const void *data)
{
    for (size_t i = 2; i < n; i++) {
        if (op_reads(&from[i], data)) {
            return false;
        }
        if (from[i].rows == from->rows && op_writes(&from[i], data)) {
            return true;
        }
    }
    return true;
}

/* The buffer that the first op hands to the second; NULL if it is not such an op. */
static const struct operand *handed(const struct op *op)
{
    return op->kind == OP_NORM ? &op->u.norm.out : op->kind == OP_SWIGLU ? &op->u.swiglu.out : NULL;
}

static size_t match(const struct cuda_backend *be, const struct op *ops, size_t n)
{
    const struct operand *between = handed(&ops[0]), *in;

    if (!between || n < 2 || ops[1].kind != OP_LINEAR || ops[0].rows != ops[1].rows) {
        return 0;
    }
    in = &ops[1].u.linear.in;
    if (between->data != in->data || between->round != in->round || between->cols != in->cols ||
        op_reads(&ops[0], in->data) || linear_writes(&ops[1], in->data)) {
        return 0;
    }
    for (size_t p = 0; p < ops[1].u.linear.n_parts; p++) {
        if (op_reads(&ops[0], ops[1].u.linear.part[p].out.data)) { /* other blocks still read it */
            return 0;
        }
    }
    return is_dead(ops, n, in->data) && cuda_linear_takes(be, &ops[1], &ops[0]) ? 2 : 0;
}

static bool fits(const struct cuda_backend *be, const struct op *ops,
                 const struct cuda_shape *shape)
{
    (void)be;
    return cuda_op_rows(&ops[0], shape) <= (ops[0].kind == OP_NORM ? LINEAR_NORM_ROWS : 1);
}

static enum status run(struct cuda_backend *be, const struct op *ops, void *data,
                       void *const *op_data, const struct cuda_shape *shape,
                       const struct state_pools *state, struct error *err)
{
    (void)data;
    (void)op_data;
    (void)state;
    return cuda_linear_run_after(be, &ops[1], &ops[0], shape, err);
}

const struct cuda_fusion cuda_fuse_linear = {
    .family = &cuda_linear,
    .match = match,
    .fits = fits,
    .run = run,
};
