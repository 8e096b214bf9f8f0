/* qkv.cu - query and key norm, partial rotary embedding, and the write into the KV cache.
 *
 * Place:  backend/cuda/kernels; launched by cuda_qkv.c.
 * Idea:   a warp has one head of one row: the query heads first, then keys, then values. The head lies in
 *         shared memory between norm and rotation, since the pairs (i, i + half) are in different threads
 *         for some sizes. Rounding: to the activations' type after the rotation, then to the cache's. */
#include "backend/cuda/kernels/qkv.cuh"

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
