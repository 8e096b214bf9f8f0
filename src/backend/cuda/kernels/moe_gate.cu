/* moe_gate.cu - gate and up of the chosen experts.
 *
 * Place: backend/cuda/kernels; launched by cuda_fuse_moe.c between moe_choose.cu and moe_down.cu. */
#include "backend/cuda/kernels/experts_decode.cuh"
#include "backend/cuda/kernels/moe_args.h"

#define MOE_GATE(name, type)                                                                       \
    KERNEL(name, moe_gate_args, EXPERTS_DECODE_THREADS, 3)                                         \
    {                                                                                              \
        SHARED float part[GATE_WARPS * EXPERTS_DECODE_MAX * SUM_STRIDE];                           \
        SHARED int32_t columns[EXPERTS_DECODE_MAX];                                                \
        DYNAMIC_SHARED(uint4, dynamic);                                                            \
                                                                                                   \
        gate_up<type>(&a.experts, dynamic, part, columns);                                         \
    }

MOE_GATE(moe_gate_bf16, DTYPE_BF16)
MOE_GATE(moe_gate_f16, DTYPE_F16)
