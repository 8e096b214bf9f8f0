/* moe_weights.cuh - pieces of 16 bytes of a weight row, as floats.
 *
 * Place: backend/cuda/kernels; for moe_in.cu and moe_down.cu.
 * Idea:  which pieces a thread has does not depend on the kind of weights, so they are asked for before the
 *        kernel has looked at it; the kind is known when they are multiplied. */
#ifndef BACKEND_CUDA_MOE_WEIGHTS_CUH
#define BACKEND_CUDA_MOE_WEIGHTS_CUH

#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/moe_args.h"

/* Values in a piece. */
DEVICE constexpr int piece_values(enum moe_kind kind)
{
    return kind == MOE_F32 ? 4 : kind == MOE_INT8 ? 16 : 8;
}

/* Pieces of a row that a thread has on their way: N of floats, or half as many of int8, with their scales as
 * they are stored: converting them where they are loaded would be to wait. */
template <int N> struct moe_pieces {
    uint4 w[N];
    uint32_t scale[N / 2], zero[N / 2];
};

template <enum moe_kind KIND, int N> DEVICE constexpr int pieces_held(void)
{
    return KIND == MOE_INT8 ? N / 2 : N;
}

/* Pieces chunk0, chunk0 + step, ... of a row; what is past its end is left as it is. */
template <int N>
DEVICE void pieces_load(struct moe_pieces<N> *p, const struct moe_matrix *m, int row, int chunk0,
                        int step)
{
    bool is_int8 = m->kind == MOE_INT8;
    const uint8_t *data = m->data + ((size_t)row * (size_t)m->n_chunks + (size_t)chunk0) * 16;

    UNROLL
    for (int j = 0; j < N; j++) {
        if (chunk0 + j * step < m->n_chunks && (j < N / 2 || !is_int8)) {
            p->w[j] = stream16(data + (size_t)(j * step) * 16);
        }
    }
    UNROLL
    for (int j = 0; j < N / 2; j++) {
        if (is_int8 && chunk0 + j * step < m->n_chunks) {
            size_t at =
                (size_t)row * (size_t)m->n_groups + (size_t)((chunk0 + j * step) / m->group_chunks);

            p->scale[j] = m->scale_type == DTYPE_F32 ? ((const uint32_t *)m->scales)[at]
                                                     : (uint32_t)((const uint16_t *)m->scales)[at];
            p->zero[j] = m->zeros ? m->zeros[at] : 128u;
        }
    }
}

DEVICE float piece_scale(const struct moe_matrix *m, uint32_t raw)
{
    return m->scale_type == DTYPE_F32    ? f32_from_bits(raw)
           : m->scale_type == DTYPE_BF16 ? bf16_to_f32((uint16_t)raw)
                                         : f16_to_f32((uint16_t)raw);
}

/* The values of a piece; of int8 what is above the zero, to be scaled. A byte under the exponent of 2^23 is
 * that number plus the byte. */
template <enum moe_kind KIND> DEVICE void piece_unpack(float *v, uint4 piece, uint32_t zero)
{
    uint32_t word[4] = {piece.x, piece.y, piece.z, piece.w};
    float from = f32_from_bits(0x4b000000u | zero);

    UNROLL
    for (int i = 0; i < 4; i++) {
        if constexpr (KIND == MOE_BF16) {
            v[2 * i] = f32_from_bits(word[i] << 16);
            v[2 * i + 1] = f32_from_bits(word[i] & 0xffff0000u);
        } else if constexpr (KIND == MOE_F16) {
            v[2 * i] = f16_to_f32((uint16_t)word[i]);
            v[2 * i + 1] = f16_to_f32((uint16_t)(word[i] >> 16));
        } else if constexpr (KIND == MOE_F32) {
            v[i] = f32_from_bits(word[i]);
        } else {
            UNROLL
            for (int j = 0; j < 4; j++) {
                v[4 * i + j] =
                    f32_from_bits(__byte_perm(word[i], 0x4b000000u, 0x7540u + (uint32_t)j)) - from;
            }
        }
    }
}

#endif
