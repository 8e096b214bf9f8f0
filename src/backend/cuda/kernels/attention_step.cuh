/* attention_step.cuh - norms, rotation, KV write and attention of one token, as one kernel.
 *
 * Place:  backend/cuda/kernels; instantiated by attention_step_bf16.cu and _f16.cu, launched by
 *         cuda_fuse_attention.c for decode steps. The loop is that of attention_split.cuh.
 * Idea:   every block norms and rotates the queries that it needs, which is less than to wait for a kernel
 *         that does. The newest token's key and value are made by the blocks whose split ends with it, put
 *         into the registers of the strip's threads by way of shared memory, and written to the cache by
 *         one of them; nobody reads that row of the cache. So all that a block reads of the cache is
 *         older than the step, and its first strip is fetched before the kernels ahead have ended.
 * Join:   a split alone is the result. Else each block draws a ticket when its partial result is written,
 *         and who draws the last adds all up in their order, as attention_join does: which block that is
 *         does not show. Of many splits that would be long work for one block; attention_join follows
 *         then. */
#ifndef BACKEND_CUDA_ATTENTION_STEP_CUH
#define BACKEND_CUDA_ATTENTION_STEP_CUH

#include "backend/cuda/kernels/attention_split.cuh"
#include "backend/cuda/kernels/attention_step_args.h"
#include "backend/cuda/kernels/qkv.cuh"

enum { STEP_WARPS = SPLIT_THREADS / WARP, STEP_PAD = 4, KEY_WARP = 2, VALUE_WARP = 3 };

/* What is in shared memory before the warps' results take its place. Queries begin in different banks. */
struct step_shared {
    float *query; /* [SPLIT_LANES][HD + STEP_PAD] */
    float *turn;  /* this warp's angles */
    float *token; /* [HD] the key, in KEY_WARP, or value, in VALUE_WARP, of the newest token */
    uint8_t *k_row, *v_row; /* of the newest token, as the cache has them */
    float *scale;           /* theirs */
    float *gates;           /* [SPLIT_LANES][HD], behind the warps' results */
    float *norms;           /* [2][HD] weights of the queries' and the key's norm, there too */
};

template <int HD> DEVICE struct step_shared step_shared_cut(float *base, int warp)
{
    struct step_shared s;

    static_assert(SPLIT_LANES * STEP_PAD <= HD, "queries take at most nine heads' room");
    s.query = base;
    s.turn = base + (9 + warp) * HD;
    s.token = base + (warp == KEY_WARP ? 13 : 14) * HD;
    s.k_row = (uint8_t *)(base + 15 * HD);
    s.v_row = (uint8_t *)(base + 15 * HD + HD / 2);
    s.scale = base + 16 * HD;
    s.gates = base + STEP_WARPS * SPLIT_LANES * HD;
    s.norms = s.gates + SPLIT_LANES * HD;
    return s;
}

/* A head by a warp: column threadIdx % WARP + WARP * i is v[i]. */
template <int HD> struct step_head {
    float v[HD / WARP];
};

template <int HD> DEVICE void step_load(struct step_head<HD> *h, const float *from)
{
    UNROLL
    for (int i = 0; i < HD / WARP; i++) {
        h->v[i] = from[(int)threadIdx.x % WARP + WARP * i];
    }
}

template <int HD> DEVICE void step_put(float *x, const struct step_head<HD> *h)
{
    UNROLL
    for (int i = 0; i < HD / WARP; i++) {
        x[(int)threadIdx.x % WARP + WARP * i] = h->v[i];
    }
}

/* What does not depend on the kernels ahead; a group of copies. */
template <int HD>
DEVICE void step_norms_begin(const struct qkv_args *a, const struct step_shared *own)
{
    for (int i = 4 * (int)threadIdx.x; i < 2 * HD; i += 4 * SPLIT_THREADS) {
        copy16_async(own->norms + i, i < HD ? a->q_norm + i : a->k_norm + (i - HD), true);
    }
    copy_commit();
}

/* The lanes' gates, for the end; a group of copies. */
template <int HD>
DEVICE void step_gates_begin(const struct attention_args *a, const struct attention_tile *t,
                             const struct step_shared *own)
{
    int n = a->is_gated ? (t->lane_end - t->lane) * HD : 0;

    for (int i = 4 * (int)threadIdx.x; i < n; i += 4 * SPLIT_THREADS) {
        copy16_async(own->gates + i, attention_query(a, t, t->lane + i / HD) + HD + i % HD, true);
    }
    copy_commit();
}

/* The first n of N heads normed and rotated, each in its x; the last is a key. */
template <int HD, int N>
DEVICE void step_norm(const struct qkv_args *a, float *const x[N], struct step_head<HD> h[N],
                      const float *norms, const float *turn, int n)
{
    int me = (int)threadIdx.x % WARP;
    float sum[N] = {};

    UNROLL
    for (int j = 0; j < N; j++) {
        UNROLL
        for (int i = 0; i < HD / WARP; i++) {
            sum[j] += h[j].v[i] * h[j].v[i];
        }
    }
    UNROLL
    for (int m = WARP / 2; m > 0; m /= 2) {
        UNROLL
        for (int j = 0; j < N; j++) {
            sum[j] += shuffle_xor(sum[j], m);
        }
    }
    UNROLL
    for (int j = 0; j < N; j++) {
        if (j < n) {
            const float *weight = norms + (j == N - 1 ? HD : 0);
            float inverse = rsqrt_f32(sum[j] / (float)HD + a->eps);

            UNROLL
            for (int i = 0; i < HD / WARP; i++) {
                h[j].v[i] = h[j].v[i] * inverse * weight[me + WARP * i];
            }
            step_put<HD>(x[j], &h[j]);
        }
    }
    warp_sync();
    for (int i = me; i < a->half; i += WARP) {
        float c = turn[i], s = turn[a->half + i];

        UNROLL
        for (int j = 0; j < N; j++) {
            if (j < n) {
                float low = x[j][i], high = x[j][i + a->half];

                x[j][i] = low * c - high * s;
                x[j][i + a->half] = high * c + low * s;
            }
        }
    }
    warp_sync();
}

/* Queries of the block's lanes into s->q, and the newest token's rows where the block has it. */
template <enum dtype ACT, enum dtype KV, int HD>
DEVICE void step_begin(const struct attention_step_args &a, const struct attention_tile *t,
                       const struct split_shared *s, const struct step_shared *own, bool has_newest)
{
    using S = split_shape<ACT, KV, HD>;
    enum { HALVES = S::UNIT / 8, EACH = SPLIT_LANES / STEP_WARPS };
    int warp = (int)threadIdx.x / WARP;
    bool has_token = has_newest && warp >= KEY_WARP;
    bool has_key = has_token && warp == KEY_WARP;
    struct step_head<HD> head[EACH + 1] = {}; /* queries, then the key or value */
    float *x[EACH + 1];

    UNROLL
    for (int i = 0; i < EACH; i++) {
        int lane = t->lane + warp + i * STEP_WARPS;

        x[i] = own->query + (warp + i * STEP_WARPS) * (HD + STEP_PAD);
        if (lane < t->lane_end) {
            step_load<HD>(&head[i], attention_query(&a.attention, t, lane));
        }
    }
    x[EACH] = own->token;
    if (has_token) {
        const float *from = warp == KEY_WARP ? a.qkv.k : a.qkv.v;

        step_load<HD>(&head[EACH],
                      from + ((size_t)t->span.row * (size_t)a.attention.nkv + (size_t)t->kv_head) *
                                 HD);
    }
    step_gates_begin<HD>(&a.attention, t, own);
    copy_wait<1>(); /* the norms' weights */
    block_sync();
    step_norm<HD, EACH + 1>(&a.qkv, x, head, own->norms, own->turn, EACH + has_key);
    if (has_key) {
        store_row(&a.qkv, own->k_row, own->scale, 0, own->token, a.qkv.k_round);
    }
    if (has_token && warp == VALUE_WARP) {
        step_put<HD>(own->token, &head[EACH]);
        warp_sync();
        store_row(&a.qkv, own->v_row, own->scale + 1, 0, own->token, DTYPE_F32);
    }
    block_sync();
    for (int i = (int)threadIdx.x; i < SPLIT_LANES * HD / 8; i += SPLIT_THREADS) {
        int thread = i % WARP, h = i / WARP % HALVES, c = i / WARP / HALVES, lane = thread / 4;
        int d = c * 4 * S::UNIT + thread % 4 * S::UNIT + h * 8;

        s->q[i] = t->lane + lane < t->lane_end
                      ? split_pack<ACT>(own->query + lane * (HD + STEP_PAD) + d)
                      : make_uint4(0, 0, 0, 0);
    }
    block_sync();
}

/* The newest token's rows to their place in the cache. */
template <enum dtype ACT, enum dtype KV, int HD>
DEVICE void step_write(const struct attention_step_args &a, const struct attention_tile *t,
                       const struct step_shared *own)
{
    using S = split_shape<ACT, KV, HD>;
    enum { UNITS = S::ROW_BYTES / 16 };
    int i = (int)threadIdx.x, position = t->span.position;
    int32_t page = a.attention.view.pages[t->span.pages_at + position / ATTENTION_PAGE];
    size_t row = kv_row(&a.attention, t, page, position);

    static_assert(2 * UNITS <= SPLIT_THREADS, "a thread has one unit");
    if (i < UNITS) {
        *(uint4 *)(a.qkv.cache.k + row * S::ROW_BYTES + i * 16) =
            *(const uint4 *)(own->k_row + i * 16);
    } else if (i < 2 * UNITS) {
        *(uint4 *)(a.qkv.cache.v + row * S::ROW_BYTES + (i - UNITS) * 16) =
            *(const uint4 *)(own->v_row + (i - UNITS) * 16);
    }
    if (S::IS_F8 && i < 2) {
        (i == 0 ? a.qkv.cache.k_scale : a.qkv.cache.v_scale)[row] = own->scale[i];
    }
}

/* The strip from `token` on has the newest token: its rows take their places in the registers. */
template <enum dtype ACT, enum dtype KV, int HD>
DEVICE void step_patch(const struct step_shared *own, int token, int newest,
                       struct split_keys<ACT, KV, HD> *k, struct split_values<ACT, KV, HD> *v)
{
    using S = split_shape<ACT, KV, HD>;
    int g = (int)threadIdx.x % WARP / 4, part = (int)threadIdx.x % 4;

    UNROLL
    for (int i = 0; i < 2; i++) {
        if (token + g + 8 * i == newest) {
            UNROLL
            for (int c = 0; c < S::KEYS; c++) {
                k->v[c][i] = *(const uint4 *)(own->k_row + part * 16 + c * 64);
            }
            if (S::IS_F8) {
                k->scale[i] = own->scale[0];
                v->scale[i] = own->scale[1];
            }
        }
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        if (token + 4 * part + i == newest) {
            UNROLL
            for (int c = 0; c < S::VALUES; c++) {
                v->v[c][i] = *(const uint4 *)(own->v_row + g * 16 + c * 128);
            }
        }
    }
}

/* Columns d and d + 1 of a lane, times sigmoid(gate). */
template <int HD>
DEVICE void step_out(const struct attention_args *a, const struct attention_tile *t,
                     const float *gates, int lane, int d, float2 v)
{
    if (a->is_gated) {
        float2 gate = *(const float2 *)(gates + lane * HD + d);

        v.x *= sigmoid(gate.x);
        v.y *= sigmoid(gate.y);
    }
    *(float2 *)(attention_out(a, t, t->lane + lane) + d) =
        make_float2(round_f32(a->round, v.x), round_f32(a->round, v.y));
}

/* The only split's result is the whole. */
template <int HD>
DEVICE void step_finish(const struct attention_args *a, const struct attention_tile *t,
                        const struct split_shared *s, const float *gates)
{
    enum { PAIRS = HD / 2 };
    SHARED float inverse[SPLIT_LANES];
    int n_lanes = t->lane_end - t->lane;

    if ((int)threadIdx.x < n_lanes) {
        float max;

        inverse[threadIdx.x] = 1.0f / split_weights(s, (int)threadIdx.x, &max);
    }
    block_sync();
    UNROLL
    for (int i = 0; i < SPLIT_LANES * PAIRS / SPLIT_THREADS; i++) {
        int at = (int)threadIdx.x + i * SPLIT_THREADS, lane = at / PAIRS, d = at % PAIRS * 2;

        if (lane < n_lanes) {
            float2 v = split_total2<HD>(s, lane, d);

            v.x *= inverse[lane];
            v.y *= inverse[lane];
            step_out<HD>(a, t, gates, lane, d, v);
        }
    }
}

/* This block's partial result is written; whether all of its span, KV head and lanes are. */
DEVICE bool step_is_last(const struct attention_step_args &a, int n_splits)
{
    SHARED int32_t is_last;
    int32_t *ticket = &a.tickets[(int)blockIdx.z * a.attention.nkv + (int)blockIdx.y];

    memory_fence();
    block_sync();
    if (threadIdx.x == 0) {
        memory_fence();
        is_last = atomic_is_last(ticket, n_splits);
        memory_fence();
    }
    block_sync();
    return is_last;
}

/* All splits of the block's lanes, in the order of splits. */
template <int HD>
DEVICE void step_join(const struct attention_args *a, const struct attention_tile *t,
                      const float *gates, int span, int n_splits)
{
    enum { QUADS = HD / 4, EACH = SPLIT_LANES * QUADS / SPLIT_THREADS, AT_ONCE = 4 };
    SHARED float weight[SPLIT_LANES][STEP_JOIN_MAX];
    SHARED float sums[SPLIT_LANES];
    int me = (int)threadIdx.x % WARP, n_lanes = t->lane_end - t->lane;
    float4 acc[EACH];

    for (int lane = (int)threadIdx.x / WARP; lane < n_lanes; lane += STEP_WARPS) {
        size_t place = attention_place(a, t, span, t->lane + lane, me);
        float max = me < n_splits ? a->partial_max[place] : -INFINITY, best = warp_max(max), w = 0;

        if (me < n_splits) {
            w = exp_f32(max - softmax_base(best));
            weight[lane][me] = w;
            w *= a->partial_sum[place];
        }
        w = warp_sum(w);
        if (me == 0) {
            sums[lane] = w;
        }
    }
    block_sync();
    UNROLL
    for (int e = 0; e < EACH; e++) {
        acc[e] = make_float4(0, 0, 0, 0);
    }
    for (int i = 0; i < n_splits; i += AT_ONCE) {
        float4 v[AT_ONCE][EACH];

        UNROLL
        for (int j = 0; j < AT_ONCE; j++) {
            UNROLL
            for (int e = 0; e < EACH; e++) {
                int at = (int)threadIdx.x + e * SPLIT_THREADS, lane = at / QUADS;

                v[j][e] = make_float4(0, 0, 0, 0);
                if (i + j < n_splits && lane < n_lanes) {
                    size_t place = attention_place(a, t, span, t->lane + lane, i + j);

                    v[j][e] = *(const float4 *)(a->partial + place * HD + (size_t)(at % QUADS * 4));
                }
            }
        }
        UNROLL
        for (int j = 0; j < AT_ONCE; j++) {
            UNROLL
            for (int e = 0; e < EACH; e++) {
                int lane = ((int)threadIdx.x + e * SPLIT_THREADS) / QUADS;
                float w = i + j < n_splits && lane < n_lanes ? weight[lane][i + j] : 0.0f;

                acc[e].x += w * v[j][e].x;
                acc[e].y += w * v[j][e].y;
                acc[e].z += w * v[j][e].z;
                acc[e].w += w * v[j][e].w;
            }
        }
    }
    UNROLL
    for (int e = 0; e < EACH; e++) {
        int at = (int)threadIdx.x + e * SPLIT_THREADS, lane = at / QUADS, d = at % QUADS * 4;

        if (lane < n_lanes) {
            float inverse = 1.0f / sums[lane];

            step_out<HD>(a, t, gates, lane, d, make_float2(acc[e].x * inverse, acc[e].y * inverse));
            step_out<HD>(a, t, gates, lane, d + 2,
                         make_float2(acc[e].z * inverse, acc[e].w * inverse));
        }
    }
}

template <enum dtype ACT, enum dtype KV, int HD>
DEVICE void step_attend(const struct attention_step_args &a, unsigned char *shared)
{
    int warp = (int)threadIdx.x / WARP, token, newest, n_splits;
    int32_t page; /* of the next strip */
    int span = (int)blockIdx.z / ceil_div(a.attention.group, SPLIT_LANES);
    struct split_shared s = split_shared_cut<HD>(shared);
    struct step_shared own = step_shared_cut<HD>(s.acc, warp);
    struct attention_tile t, old; /* old: without the newest token */
    struct split_keys<ACT, KV, HD> k;
    struct split_values<ACT, KV, HD> v;
    struct split_state<ACT, KV, HD> st;
    float *p = s.p + warp * SPLIT_LANES * SPLIT_P_STRIDE;
    bool has_newest;

    if (!attention_short_tile(&a.attention, SPLIT_LANES, (int)blockIdx.x, (int)blockIdx.y,
                              (int)blockIdx.z, &t)) {
        depend_wait(); /* who waits for this kernel relies on the ones before it too */
        return;
    }
    n_splits = attention_splits(&a.attention, &t.span);
    newest = t.span.position;
    has_newest = newest < t.token_end; /* it is the context's last */
    old = t;
    old.token_end = smaller(t.token_end, newest);
    token = t.token + 16 * warp;
    page = kv_page(&a.attention, &old, token);
    if (token < t.token_end) {
        split_load_keys<ACT, KV, HD>(&a.attention, &old, page, token, &k);
        split_load_values<ACT, KV, HD>(&a.attention, &old, page, token, &v);
    }
    page = kv_page(&a.attention, &old, token + ATTENTION_PAGE);
    step_norms_begin<HD>(&a.qkv, &own);
    qkv_angles(&a.qkv, own.turn, newest);
    depend_wait();
    step_begin<ACT, KV, HD>(a, &t, &s, &own, has_newest);
    split_init<ACT, KV, HD>(&a.attention, &t, &st);
    if (has_newest && t.lane == 0) {
        step_write<ACT, KV, HD>(a, &t, &own);
    }
    for (; token < t.token_end; token += ATTENTION_PAGE) {
        int next = token + ATTENTION_PAGE;
        float score[4], k_scale[2];

        if (token <= newest && newest < token + 16) {
            step_patch<ACT, KV, HD>(&own, token, newest, &k, &v);
        }
        k_scale[0] = k.scale[0];
        k_scale[1] = k.scale[1];
        split_scores<ACT, KV, HD>(&k, s.q, score);
        if (next < t.token_end) {
            split_load_keys<ACT, KV, HD>(&a.attention, &old, page, next, &k);
        }
        split_softmax<ACT, KV, HD>(&a.attention, &st, score, token, k_scale, v.scale, p);
        warp_sync();
        split_weigh<ACT, KV, HD>(&st, &v, p);
        warp_sync();
        if (next < t.token_end) {
            split_load_values<ACT, KV, HD>(&a.attention, &old, page, next, &v);
            page = kv_page(&a.attention, &old, next + ATTENTION_PAGE);
        }
    }
    copy_wait<0>(); /* the gates, for whom barriers follow */
    split_meet<ACT, KV, HD>(&st, &s);
    if (a.joins && n_splits == 1) {
        step_finish<HD>(&a.attention, &t, &s, own.gates);
        return;
    }
    split_store<HD>(&a.attention, &t, span, &s);
    if (a.joins && step_is_last(a, n_splits)) {
        step_join<HD>(&a.attention, &t, own.gates, span, n_splits);
    }
}

#define STEP_KERNEL(name, ACT, KV, HD)                                                             \
    KERNEL(name, attention_step_args, SPLIT_THREADS, 2)                                            \
    {                                                                                              \
        DYNAMIC_SHARED(unsigned char, shared);                                                     \
        depend_launch();                                                                           \
        step_attend<ACT, KV, HD>(a, shared);                                                       \
    }

#endif
