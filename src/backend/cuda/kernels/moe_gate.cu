/* moe_gate.cu - the router's choice, then gate and up of the chosen experts.
 *
 * Place: backend/cuda/kernels; launched by cuda_fuse_moe.c between moe_in.cu and moe_down.cu. The first
 *        block also writes the choices to where the op's are, for who reads them later. */
#include "backend/cuda/kernels/experts_decode.cuh"
#include "backend/cuda/kernels/moe_choose.cuh"

template <int TYPE>
DEVICE void moe_gate(const struct moe_gate_args *a, uint4 *dynamic, float *part, int32_t *columns,
                     struct moe_choices *choices)
{
    struct experts_args experts = a->experts;
    int n, i = (int)threadIdx.x;

    prefetch_table(&experts);
    depend_wait();
    depend_launch();
    choose_all(choices, &a->route, blockIdx.x == 0);
    n = row_count(&experts) * experts.top_k;
    if (blockIdx.x == 0 && i < n) {
        a->route.idx[i] = choices->idx[i];
        a->route.prob[i] = choices->prob[i];
    }
    experts.idx = choices->idx;
    gate_up_tile<TYPE>(&experts, dynamic, part, columns);
}

#define MOE_GATE(name, type)                                                                       \
    KERNEL(name, moe_gate_args, EXPERTS_DECODE_THREADS, 3)                                         \
    {                                                                                              \
        SHARED float part[GATE_WARPS * EXPERTS_DECODE_MAX * SUM_STRIDE];                           \
        SHARED int32_t columns[EXPERTS_DECODE_MAX];                                                \
        SHARED struct moe_choices choices;                                                         \
        DYNAMIC_SHARED(uint4, dynamic);                                                            \
                                                                                                   \
        moe_gate<type>(&a, dynamic, part, columns, &choices);                                      \
    }

MOE_GATE(moe_gate_bf16, DTYPE_BF16)
MOE_GATE(moe_gate_f16, DTYPE_F16)
