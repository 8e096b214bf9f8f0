/* offload_ahead.cu - which experts the next layer will probably choose, and which of them are fetched ahead.
 *
 * Place: backend/cuda/kernels; launched by cuda_offload_ahead.c. See backend/expert_home.h.
 * Idea:  a layer changes the residual little, so the next router given this layer's input chooses mostly what
 *        it will choose later. A wrong guess costs a transfer while the link would be idle, and a slot.
 * Order: experts_ahead changes slots and tables beside the running layer's kernels, but between two layers'
 *        resolve() and alone; and nothing of what that layer's choices need. */
#include "backend/cuda/kernels/offload_resolve.cuh"
#include "backend/cuda/kernels/quad.cuh"
#include "backend/cuda/kernels/route_choose.cuh"

enum { PIECE = 4, ROWS = EXPERT_HOME_ROWS };

/* --- logits --- */

/* Four values from i on. */
DEVICE void router_quad(float w[PIECE], const struct offload_predict_args *a, size_t i)
{
    if (a->dtype == DTYPE_F32) {
        load_quad(w, (const float *)a->router + i, 0, 0, true);
        return;
    }
    uint2 two = *(const uint2 *)((const uint16_t *)a->router + i);
    uint32_t words[2] = {two.x, two.y};

    UNROLL
    for (int j = 0; j < 2; j++) {
        if (a->dtype == DTYPE_BF16) {
            w[2 * j] = f32_from_bits(words[j] << 16);
            w[2 * j + 1] = f32_from_bits(words[j] & 0xffff0000u);
        } else {
            w[2 * j] = f16_to_f32((uint16_t)words[j]);
            w[2 * j + 1] = f16_to_f32((uint16_t)(words[j] >> 16));
        }
    }
}

/* sum[r] += this lane's products of an expert's row with the inputs. */
DEVICE void predict_products(float sum[ROWS], const struct offload_predict_args *a, int expert,
                             int n_rows)
{
    size_t n = (size_t)a->n_in, at = (size_t)expert * n;
    int lane = (int)threadIdx.x % WARP;

    if (!a->in_pieces) {
        for (int i = lane; i < a->n_in; i += WARP) {
            float w = load_f32((enum dtype)a->dtype, a->router, at + (size_t)i);

            UNROLL
            for (int r = 0; r < ROWS; r++) {
                sum[r] += r < n_rows ? w * a->x[(size_t)r * n + (size_t)i] : 0.0f;
            }
        }
        return;
    }
#pragma unroll 4
    for (int i = lane * PIECE; i < a->n_in; i += WARP * PIECE) {
        float w[PIECE], x[PIECE];

        router_quad(w, a, at + (size_t)i);
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            if (r < n_rows) {
                load_quad(x, a->x + (size_t)r * n + (size_t)i, 0, 0, true);
                sum[r] += w[0] * x[0] + w[1] * x[1] + (w[2] * x[2] + w[3] * x[3]);
            }
        }
    }
}

KERNEL(experts_predict, offload_predict_args, OFFLOAD_PREDICT_THREADS, 2)
{
    int expert = (int)(blockIdx.x * (OFFLOAD_PREDICT_THREADS / WARP) + threadIdx.x / WARP);
    int n_rows = 0;
    float sum[ROWS] = {};

    depend_launch();
    depend_wait();
    if (a.orders->n_next <= 0 || expert >= a.n_experts) { /* the same for a warp */
        return;
    }
    n_rows = max(0, min(*a.n_rows, (int)ROWS));
    predict_products(sum, &a, expert, n_rows);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        float all = warp_sum(sum[r]);

        if ((int)threadIdx.x % WARP == r && r < n_rows) {
            a.logits[(size_t)r * (size_t)a.n_experts + (size_t)expert] = all;
        }
    }
}

/* --- what is fetched --- */

/* The rows' predictions to where resolve's functions want them: all rows' first choices, then all second
 * ones, as those are the surest. Ends with a barrier. */
DEVICE void predictions_sort(int32_t *sorted, const int32_t *idx, int top_k, int n_rows)
{
    int tid = (int)threadIdx.x;

    block_sync();
    if (tid < n_rows * top_k) {
        sorted[tid % top_k * n_rows + tid / top_k] = idx[tid];
    }
    block_sync();
}

/* By one thread. */
DEVICE void ahead_note(const struct resolve_shared *s, const struct offload_args *a, int n_pairs)
{
    struct offload_next *next = a->next;
    int n = s->n_taken;

    for (int i = 0; i < n_pairs; i++) {
        if (s->miss[i] != NOT_MISSING && s->miss[i] < n) {
            next->expert[s->miss[i]] = s->expert[i];
        }
    }
    next->ticket = a->orders->ticket;
    next->layer = a->layer;
    next->n = n;
    a->counts->n_next += n;
    a->list->n = n;
}

KERNEL(experts_ahead, offload_ahead_args, OFFLOAD_THREADS, 1)
{
    SHARED int32_t idx[EXPERT_HOME_PAIRS], sorted[EXPERT_HOME_PAIRS];
    SHARED float prob[EXPERT_HOME_PAIRS];
    SHARED struct resolve_shared s;
    const struct offload_args *h = &a.home;
    int tid = (int)threadIdx.x, row = tid / WARP, n_rows, n_pairs, n_next;

    depend_launch();
    depend_wait();
    n_next = min(h->orders->n_next, (int32_t)EXPERT_HOME_NEXT);
    if (n_next <= 0) { /* the same for all threads */
        if (tid == 0) {
            h->list->n = 0;
        }
        return;
    }
    n_rows = max(0, min(*h->n_rows, (int)ROWS));
    n_pairs = n_rows * h->top_k;
    if (row < n_rows) {
        choose_any(idx + row * h->top_k, prob + row * h->top_k, &a.route, row, 1);
    }
    predictions_sort(sorted, idx, h->top_k, n_rows);
    pairs_look_up(&s, h, sorted, n_pairs);
    if (tid < WARP) {
        misses_number(&s, h, n_pairs);
        warp_sync();
        victims_take<true>(&s, h, min(n_next, s.n_missing), n_pairs);
        warp_sync();
        if (tid == 0) {
            ahead_note(&s, h, n_pairs);
        }
    }
    block_sync();
    if (tid < n_pairs && s.miss[tid] != NOT_MISSING && s.miss[tid] < s.n_taken) {
        miss_fetch<true>(&s, h, tid);
    }
}
