/* cuda_families.c - which family of functions does which kind of operation.
 *
 * Place: backend/cuda. */
#include "backend/cuda/cuda_private.h"

const struct cuda_family *cuda_family_of(enum op_kind kind)
{
    static const struct cuda_family *const families[OP_KIND_COUNT] = {
        [OP_EMBED] = &cuda_embed,           [OP_NORM] = &cuda_norm,
        [OP_LINEAR] = &cuda_linear,         [OP_CONV] = &cuda_conv,
        [OP_DELTA] = &cuda_delta,           [OP_QKV] = &cuda_qkv,
        [OP_ATTENTION] = &cuda_attention,   [OP_ROUTE] = &cuda_route,
        [OP_EXPERTS] = &cuda_experts,       [OP_SWIGLU] = &cuda_swiglu,
        [OP_ADD_SHARED] = &cuda_add_shared, [OP_CHECK] = &cuda_rows_check,
        [OP_GATHER] = &cuda_gather,         [OP_BEST] = &cuda_best,
    };

    return (unsigned)kind < OP_KIND_COUNT ? families[kind] : NULL;
}

size_t cuda_route_layer(const struct cuda_backend *be, const struct op *op)
{
    const struct cuda_private *own = be->own;
    size_t n = 0;

    if (op < own->ops || op >= own->ops + own->n_ops) {
        return 0;
    }
    for (const struct op *o = own->ops; o < op; o++) {
        n += o->kind == OP_ROUTE;
    }
    return n;
}

const struct cuda_fusion *cuda_fusion_at(size_t i)
{
    static const struct cuda_fusion *const all[] = {&cuda_fuse_moe, &cuda_fuse_gdn,
                                                    &cuda_fuse_attention, &cuda_fuse_linear};

    return i < sizeof all / sizeof *all ? all[i] : NULL;
}
