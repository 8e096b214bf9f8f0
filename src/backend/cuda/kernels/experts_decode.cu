/* experts_decode.cu - the kernels of experts_decode.cuh.
 *
 * Place: backend/cuda/kernels; cuda_experts.c launches them for at most EXPERTS_DECODE_MAX rows. */
#include "backend/cuda/kernels/experts_decode.cuh"

#define GATE_UP(name, type)                                                                        \
    KERNEL(name, experts_args, EXPERTS_DECODE_THREADS, 3)                                          \
    {                                                                                              \
        SHARED float part[GATE_WARPS * EXPERTS_DECODE_MAX * SUM_STRIDE];                           \
        SHARED int32_t columns[EXPERTS_DECODE_MAX];                                                \
        DYNAMIC_SHARED(uint4, dynamic);                                                            \
                                                                                                   \
        gate_up<type>(&a, dynamic, part, columns);                                                 \
    }

GATE_UP(experts_gate_up_decode_bf16, DTYPE_BF16)
GATE_UP(experts_gate_up_decode_f16, DTYPE_F16)

#define DOWN(name, type)                                                                           \
    KERNEL(name, experts_args, EXPERTS_DECODE_THREADS, 2)                                          \
    {                                                                                              \
        DYNAMIC_SHARED(uint4, dynamic);                                                            \
                                                                                                   \
        down<type>(&a, dynamic);                                                                   \
    }

DOWN(experts_down_decode_bf16, DTYPE_BF16)
DOWN(experts_down_decode_f16, DTYPE_F16)
