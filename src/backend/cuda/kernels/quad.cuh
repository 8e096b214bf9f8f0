/* quad.cuh - rows of float32 words, four columns at a time.
 *
 * Place: backend/cuda/kernels, for the ops that do little but read and write rows.
 * Idea:  a thread has quad q of a row, its columns 4q to 4q + 3. Where rows begin at 16-byte borders
 *        (is_wide) that is one access of 16 bytes, else four small ones; what is past the row's end
 *        reads as zero and is not written. So one kernel serves every number of columns. */
#ifndef BACKEND_CUDA_QUAD_CUH
#define BACKEND_CUDA_QUAD_CUH

#include "backend/cuda/kernels/kernel.cuh"

enum { QUAD = 4 };

/* Ordinary loads and not load16(): an earlier kernel may still write the row when this one starts. */
DEVICE void load_quad(float v[QUAD], const float *row, int q, int n, bool is_wide)
{
    int c = QUAD * q;

    if (is_wide) {
        float4 w = *(const float4 *)(row + c);

        v[0] = w.x;
        v[1] = w.y;
        v[2] = w.z;
        v[3] = w.w;
        return;
    }
    UNROLL
    for (int i = 0; i < QUAD; i++) {
        v[i] = c + i < n ? row[c + i] : 0.0f;
    }
}

DEVICE void store_quad(float *row, int q, int n, bool is_wide, const float v[QUAD])
{
    int c = QUAD * q;

    if (is_wide) {
        *(float4 *)(row + c) = make_float4(v[0], v[1], v[2], v[3]);
        return;
    }
    UNROLL
    for (int i = 0; i < QUAD; i++) {
        if (c + i < n) {
            row[c + i] = v[i];
        }
    }
}

DEVICE void round_quad(enum dtype t, float v[QUAD])
{
    UNROLL
    for (int i = 0; i < QUAD; i++) {
        v[i] = round_f32(t, v[i]);
    }
}

#endif
