/* route_choose.cuh - from a row's logits to its experts: softmax, the top k by probability, ties to the lower id.
 *
 * Place: backend/cuda/kernels; for route.cu and the moe_*.cu.
 * Idea:  a warp per row keeps the probabilities in registers as integers of the same order and takes the
 *        largest k times. */
#ifndef BACKEND_CUDA_ROUTE_CHOOSE_CUH
#define BACKEND_CUDA_ROUTE_CHOOSE_CUH

#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/route_args.h"

/* Probabilities as integers of the same order: 0 not there, 1 not a number, then by size. */
enum { KEY_NONE = 0, KEY_NAN = 1, KEY_ZERO = 2 };

DEVICE uint32_t key_of(float p)
{
    return p >= 0 ? f32_bits(p) + KEY_ZERO : KEY_NAN;
}

DEVICE float key_value(uint32_t key)
{
    return f32_from_bits(key >= KEY_ZERO ? key - KEY_ZERO : 0x7fc00000u);
}

/* As a term of the margin; like on the CPU, what is not a number counts as -1. */
DEVICE float key_size(uint32_t key)
{
    return key >= KEY_ZERO ? key_value(key) : -1.0f;
}

DEVICE float logit(const struct route_args *a, int i, int expert, int n_slices)
{
    const float *p = a->logits + (size_t)i * a->n_experts + expert;
    float sum = p[0];

    for (int s = 1; s < n_slices; s++) {
        sum += p[s * a->slice_stride];
    }
    return sum;
}

/* The keys of row i's probabilities: lane l has the experts l, l + 32, ... */
template <int HELD>
DEVICE void softmax_keys(uint32_t key[HELD], const struct route_args *a, int i, int n_slices,
                         int lane)
{
    float p[HELD], max = f32_from_bits(0xff800000u), sum = 0, scale;

    UNROLL
    for (int j = 0; j < HELD; j++) {
        int expert = lane + j * WARP;

        p[j] = expert < a->n_experts ? logit(a, i, expert, n_slices) : f32_from_bits(0xff800000u);
        max = fmaxf(max, p[j]);
    }
    max = warp_max(max);
    UNROLL
    for (int j = 0; j < HELD; j++) {
        if (lane + j * WARP < a->n_experts) {
            p[j] = exp_f32(p[j] - max);
            sum += p[j];
        }
    }
    scale = 1.0f / warp_sum(sum);
    UNROLL
    for (int j = 0; j < HELD; j++) {
        key[j] = lane + j * WARP < a->n_experts ? key_of(p[j] * scale) : KEY_NONE;
    }
}

/* The largest key, of those the one with the lowest id; it is taken out. */
template <int HELD> DEVICE uint32_t take_largest(uint32_t key[HELD], int lane, int *id)
{
    uint32_t best[HELD], largest;
    int at[HELD];

    UNROLL
    for (int j = 0; j < HELD; j++) {
        best[j] = key[j];
        at[j] = j;
    }
    UNROLL
    for (int d = 1; d < HELD; d *= 2) { /* neighbours first: a short chain; of equals the lower */
        UNROLL
        for (int j = 0; j + d < HELD; j += 2 * d) {
            at[j] = best[j + d] > best[j] ? at[j + d] : at[j];
            best[j] = best[j + d] > best[j] ? best[j + d] : best[j];
        }
    }
    largest = warp_max_u32(best[0]);
    *id = (int)~warp_max_u32(best[0] == largest ? ~(uint32_t)(lane + at[0] * WARP) : 0);
    UNROLL
    for (int j = 0; j < HELD; j++) {
        key[j] = lane + j * WARP == *id ? KEY_NONE : key[j];
    }
    return largest;
}

DEVICE void note_margin(const struct route_args *a, int i, float margin)
{
    int row = a->count == STEP_OUT_ROWS ? a->view.out_rows[i] : i;

    if (row >= 0 && row < a->view.counts[STEP_ROWS] && margin < a->view.router_margin[row]) {
        a->view.router_margin[row] = margin;
    }
}

/* Row i's choice that was made elsewhere. */
DEVICE void choose_forced(int32_t *idx, float *prob, const struct route_args *a, int i)
{
    size_t row = (size_t)a->route_layer * (size_t)a->view.counts[STEP_ROWS] + (size_t)i;

    for (int j = (int)threadIdx.x % WARP; j < a->top_k; j += WARP) {
        idx[j] = a->view.forced[row * (size_t)a->top_k + (size_t)j];
        prob[j] = 1.0f / (float)a->top_k;
    }
}

/* Row i's choice, by one warp, to idx and prob; the logits are the sum of n_slices. */
template <int HELD>
DEVICE void choose_row(int32_t *idx, float *prob, const struct route_args *a, int i, int n_slices,
                       bool has_margin)
{
    uint32_t key[HELD], largest = KEY_NONE, mine[ROUTE_TOP_K_MAX / WARP] = {KEY_NONE, KEY_NONE};
    int lane = (int)threadIdx.x % WARP, id;
    float sum = 0, norm = 1.0f;

    if (a->view.forced) {
        choose_forced(idx, prob, a, i);
        return;
    }
    softmax_keys<HELD>(key, a, i, n_slices, lane);
    for (int j = 0; j < a->top_k; j++) {
        largest = take_largest<HELD>(key, lane, &id);
        sum += key_value(largest);
        if (j % WARP == lane) {
            idx[j] = id;
            mine[0] = j < WARP ? largest : mine[0];
            mine[1] = j < WARP ? mine[1] : largest;
        }
    }
    if (a->renormalise) {
        norm = 1.0f / sum;
    }
    UNROLL
    for (int h = 0; h < ROUTE_TOP_K_MAX / WARP; h++) {
        if (lane + h * WARP < a->top_k) {
            prob[lane + h * WARP] = key_value(mine[h]) * norm;
        }
    }
    if (has_margin && a->top_k < a->n_experts) {
        uint32_t next = take_largest<HELD>(key, lane, &id);

        if (lane == 0) {
            note_margin(a, i, key_size(largest) - key_size(next));
        }
    }
}

/* The same with as many registers as the number of experts takes, and the margin if it is wanted. */
DEVICE void choose_any(int32_t *idx, float *prob, const struct route_args *a, int i, int n_slices)
{
    bool has_margin = a->view.router_margin != NULL;

    if (a->n_experts <= 8 * WARP) {
        choose_row<8>(idx, prob, a, i, n_slices, has_margin);
    } else {
        choose_row<ROUTE_EXPERTS_MAX / WARP>(idx, prob, a, i, n_slices, has_margin);
    }
}

/* The same to where the op's choices are. */
DEVICE void select_row(const struct route_args *a, int i, int n_slices)
{
    choose_any(a->idx + (size_t)i * a->top_k, a->prob + (size_t)i * a->top_k, a, i, n_slices);
}

#endif
