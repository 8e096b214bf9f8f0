/* qkv.cuh - a head's norm and rotation, and a row of the KV cache, by one warp.
 *
 * Place: backend/cuda/kernels; shared by qkv.cu and attention_step.cuh.
 * fp8:   a row's scale is its largest magnitude / the largest fp8 value, 1 where that is no normal
 *        number; values are divided by it, not multiplied by its inverse: the bits are the CPU's. */
#ifndef BACKEND_CUDA_QKV_CUH
#define BACKEND_CUDA_QKV_CUH

#include "backend/cuda/kernels/attention_args.h"
#include "backend/cuda/kernels/kernel.cuh"

static constexpr float E4M3_MAX = 448.0f, E5M2_MAX = 57344.0f, NORMAL_MIN = 0x1p-126f;

/* turn [2 half]: cosines and sines of a position. */
DEVICE void qkv_angles(const struct qkv_args *a, float *turn, int position)
{
    for (int i = (int)threadIdx.x % WARP; i < a->half; i += WARP) {
        float s, c;

        sincos_f32((float)position * a->inv_freq[i], &s, &c);
        turn[i] = c * a->rope_scale;
        turn[a->half + i] = s * a->rope_scale;
    }
}

/* The pairs (i, i + half) of a head; all threads of the warp, before and after which it is in order. */
DEVICE void rotate_head(const struct qkv_args *a, float *x, const float *turn)
{
    int me = (int)threadIdx.x % WARP;

    warp_sync();
    for (int i = me; i < a->half; i += WARP) {
        float low = x[i], high = x[i + a->half], c = turn[i], s = turn[a->half + i];

        x[i] = low * c - high * s;
        x[i + a->half] = high * c + low * s;
    }
    warp_sync();
}

/* x [hd] = in * rsqrt(mean(in^2) + eps) * weight, rotated; all threads of the warp. */
DEVICE void norm_and_rotate(const struct qkv_args *a, float *x, const float *in,
                            const float *weight, const float *turn)
{
    int me = (int)threadIdx.x % WARP;
    float sum = 0, inverse;

    for (int i = me; i < a->hd; i += WARP) {
        float v = in[i];

        x[i] = v;
        sum += v * v;
    }
    inverse = rsqrt_f32(warp_sum(sum) / (float)a->hd + a->eps);
    for (int i = me; i < a->hd; i += WARP) {
        x[i] = x[i] * inverse * weight[i];
    }
    rotate_head(a, x, turn);
}

/* Row `at` (in rows of the layer's cache) takes x [hd], each value rounded first; x may be in global
 * memory. */
DEVICE void store_row(const struct qkv_args *a, uint8_t *rows, float *scales, size_t at,
                      const float *x, enum dtype round)
{
    int me = (int)threadIdx.x % WARP;
    enum dtype t = a->cache.dtype;
    size_t first = at * (size_t)a->hd;

    if (t != DTYPE_F8_E4M3 && t != DTYPE_F8_E5M2) {
        for (int i = me; i < a->hd; i += WARP) {
            store_f32(t, rows, first + (size_t)i, round_f32(round, x[i]));
        }
        return;
    }
    float amax = 0, scale;

    for (int i = me; i < a->hd; i += WARP) {
        amax = fmaxf(amax, fabsf(round_f32(round, x[i])));
    }
    scale = warp_max(amax) / (t == DTYPE_F8_E4M3 ? E4M3_MAX : E5M2_MAX);
    scale = scale < NORMAL_MIN ? 1.0f : scale;
    for (int i = me; i < a->hd; i += WARP) {
        store_f32(t, rows, first + (size_t)i, round_f32(round, x[i]) / scale);
    }
    if (me == 0) {
        scales[at] = scale;
    }
}

#endif
