/* delta.cuh - what the recurrent and the chunked kernels of the gated delta rule share.
 *
 * Place: backend/cuda/kernels. */
#ifndef BACKEND_CUDA_DELTA_CUH
#define BACKEND_CUDA_DELTA_CUH

#include "backend/cuda/kernels/delta_args.h"
#include "backend/cuda/kernels/kernel.cuh"

#define DELTA_L2_EPS          1e-6f /* inside the sum of squares, fixed by the architecture */
#define DELTA_SOFTPLUS_LINEAR 20.0f

/* Row `row`, head h: write strength and logarithm of the decay. */
DEVICE void delta_gates(const struct delta_args &a, int row, int h, float *beta, float *g)
{
    size_t at = (size_t)row * a.nv + h;
    float x = a.a[at] + a.dt_bias[h];
    float softplus = x > DELTA_SOFTPLUS_LINEAR ? x : log1p_f32(exp_f32(x));

    *beta = sigmoid(a.b[at]);
    *g = a.neg_exp_a[h] * softplus;
}

/* Ordinary loads and not load16(): an earlier kernel may still write when this one starts. */
DEVICE void load4(float v[4], const float *p)
{
    float4 w = *(const float4 *)p;

    v[0] = w.x;
    v[1] = w.y;
    v[2] = w.z;
    v[3] = w.w;
}

DEVICE void store4(float *p, const float v[4])
{
    *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]);
}

/* The gated norm of one row of a head by one warp, four columns a lane; row and head say where it goes. */
DEVICE void delta_output4(const struct delta_args &a, int row, int h, const float o[4],
                          const float z[4])
{
    int c = (int)threadIdx.x % WARP * 4;
    size_t at = ((size_t)row * a.nv + h) * DELTA_DIM + c;
    float w[4], v[4], sum = 0, inverse;

    load4(w, a.norm + c);
    UNROLL
    for (int i = 0; i < 4; i++) {
        sum += o[i] * o[i];
    }
    inverse = rsqrt_f32(warp_sum(sum) / DELTA_DIM + a.eps);
    UNROLL
    for (int i = 0; i < 4; i++) {
        v[i] = round_f32(a.round, o[i] * inverse * w[i] * silu(z[i]));
    }
    store4(a.out + at, v);
}

#endif
