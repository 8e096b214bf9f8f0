/* backend.c - names and descriptions of operations, for print-outs and error texts. */
#include "backend/backend.h"

#include <stdio.h>

const char *op_kind_name(enum op_kind kind)
{
    static const char *const names[OP_KIND_COUNT] = {
        [OP_EMBED] = "embed",           [OP_NORM] = "norm",
        [OP_LINEAR] = "linear",         [OP_CONV] = "conv",
        [OP_DELTA] = "delta",           [OP_QKV] = "qkv",
        [OP_ATTENTION] = "attention",   [OP_ROUTE] = "route",
        [OP_EXPERTS] = "experts",       [OP_SWIGLU] = "swiglu",
        [OP_ADD_SHARED] = "add_shared", [OP_CHECK] = "check",
        [OP_GATHER] = "gather",         [OP_BEST] = "best",
    };

    return (unsigned)kind < OP_KIND_COUNT ? names[kind] : "unknown";
}

/* The operands through which a row enters and leaves the op. */
static void op_ends(const struct op *op, const struct operand **in, const struct operand **out)
{
    *in = NULL;
    *out = NULL;
    switch (op->kind) {
    case OP_EMBED:
        *out = &op->u.embed.out;
        break;
    case OP_NORM:
        *in = &op->u.norm.in;
        *out = &op->u.norm.out;
        break;
    case OP_LINEAR:
        *in = &op->u.linear.in;
        *out = &op->u.linear.part[0].out;
        break;
    case OP_CONV:
        *in = &op->u.conv.in;
        *out = &op->u.conv.out;
        break;
    case OP_DELTA:
        *in = &op->u.delta.qkv;
        *out = &op->u.delta.out;
        break;
    case OP_QKV:
        *in = &op->u.qkv.q;
        break;
    case OP_ATTENTION:
        *in = &op->u.attention.q;
        *out = &op->u.attention.out;
        break;
    case OP_ROUTE:
        *in = &op->u.route.in;
        *out = &op->u.route.prob;
        break;
    case OP_EXPERTS:
        *in = &op->u.experts.in;
        *out = &op->u.experts.out;
        break;
    case OP_SWIGLU:
        *in = &op->u.swiglu.gate;
        *out = &op->u.swiglu.out;
        break;
    case OP_ADD_SHARED:
        *in = &op->u.add_shared.routed;
        *out = &op->u.add_shared.x;
        break;
    case OP_CHECK:
        *in = &op->u.check.x;
        break;
    case OP_GATHER:
        *in = &op->u.gather.in;
        *out = &op->u.gather.out;
        break;
    case OP_BEST:
        *in = &op->u.best.in;
        *out = &op->u.best.out;
        break;
    case OP_KIND_COUNT:
        break;
    }
}

void op_describe(char *out, size_t n, const struct op *op)
{
    const struct operand *from, *to;
    char layer[16] = "  -", ends[80] = "";
    int used = 0;

    if (n == 0) {
        return;
    }
    op_ends(op, &from, &to);
    if (op->layer >= 0) {
        snprintf(layer, sizeof layer, "%3d", op->layer);
    }
    if (from) {
        used = snprintf(ends, sizeof ends, "%s[%zu]", dtype_name(from->round), from->cols);
    }
    if (to && used >= 0 && (size_t)used < sizeof ends) {
        snprintf(ends + used, sizeof ends - (size_t)used, " -> %s[%zu]", dtype_name(to->round),
                 to->cols);
    }
    snprintf(out, n, "%s  %-12s %-26s %s%s", layer, op->name ? op->name : op_kind_name(op->kind),
             op->kernel ? op->kernel : "(not checked)", ends,
             op->rows == ROWS_OUT ? " (logit rows)" : "");
}
