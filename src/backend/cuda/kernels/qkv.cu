/* qkv.cu - query and key norm, partial rotary embedding, and the write into the KV cache.
 *
 * Place:  backend/cuda/kernels; launched by cuda_qkv.c.
 * Idea:   a warp has one head of one row: the query heads first, then keys, then values. The head lies in
 *         shared memory between norm and rotation, since the pairs (i, i + half) are in different threads
 *         for some sizes. Rounding: to the activations' type after the rotation, then to the cache's.
 * fp8:    a row's scale is its largest magnitude / the largest fp8 value, 1 where that is no normal
 *         number; values are divided by it, not multiplied by its inverse: the bits are the CPU's. */
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
    warp_sync();
    for (int i = me; i < a->half; i += WARP) {
        float low = x[i], high = x[i + a->half], c = turn[i], s = turn[a->half + i];

        x[i] = low * c - high * s;
        x[i + a->half] = high * c + low * s;
    }
    warp_sync();
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

KERNEL(qkv, qkv_args, QKV_THREADS, 1)
{
    DYNAMIC_SHARED(float, shared); /* [warps][hd + 2 half]: the head and its angles */
    int warp = (int)threadIdx.x / WARP, me = (int)threadIdx.x % WARP;
    int heads = a.nq + 2 * a.nkv;
    long long item = (long long)blockIdx.x * (QKV_THREADS / WARP) + warp;
    int row = (int)(item / heads), head = (int)(item % heads);
    float *x = shared + warp * (a.hd + 2 * a.half), *turn = x + a.hd;
    bool is_there = row < a.view.counts[STEP_ROWS], is_key = head < a.nq + a.nkv;
    int position = 0;

    depend_launch();
    if (is_there) { /* the step's tables are older than any kernel before */
        position = a.view.row_position[row];
        if (is_key) {
            qkv_angles(&a, turn, position);
        }
    }
    depend_wait();
    if (!is_there) {
        return;
    }
    if (head < a.nq) {
        float *q = a.q + ((size_t)row * (size_t)a.nq + (size_t)head) * (size_t)a.q_stride;

        norm_and_rotate(&a, x, q, a.q_norm, turn);
        for (int i = me; i < a.hd; i += WARP) {
            q[i] = round_f32(a.q_round, x[i]);
        }
        return;
    }
    int kv_head = is_key ? head - a.nq : head - a.nq - a.nkv;
    size_t from = ((size_t)row * (size_t)a.nkv + (size_t)kv_head) * (size_t)a.hd;
    const struct step_span *span = a.view.spans + a.view.row_span[row];
    int32_t page = a.view.pages[span->pages_at + position / ATTENTION_PAGE];
    size_t at = ((size_t)page * (size_t)a.nkv + (size_t)kv_head) * ATTENTION_PAGE +
                (size_t)(position % ATTENTION_PAGE);

    if (is_key) {
        norm_and_rotate(&a, x, a.k + from, a.k_norm, turn);
        store_row(&a, a.cache.k, a.cache.k_scale, at, x, a.k_round);
    } else {
        store_row(&a, a.cache.v, a.cache.v_scale, at, a.v + from, DTYPE_F32);
    }
}
