/* attention_any.cu - attention for all types and head sizes, in float32; and the join of partial results.
 *
 * Place:  backend/cuda/kernels; launched by cuda_attention.c wherever the matrix instructions do not
 *         fit: float32 activations, caches of another type than the activations, odd head sizes, old
 *         cards. The join serves attention_split.cuh too.
 * Idea:   a block has 16 lanes and walks its tokens 32 at a time, keys and values in turn through one
 *         tile of shared memory as float32. A warp has 4 lanes: thread i computes the scores of token i,
 *         then sums the values' columns i, i + 32, ...
 * Order:  the softmax is accumulated online as on the CPU (cpu_attention.c), 32 tokens a step. */
#include "backend/cuda/kernels/attention_tile.cuh"
#include "backend/cuda/kernels/kernel.cuh"

enum { WARP_LANES = ANY_LANES / (ANY_THREADS / WARP) };

struct any_shared {
    float *q;    /* [ANY_LANES][stride] */
    float *rows; /* [ANY_TOKENS][stride] keys or values */
    float *p;    /* [warps][ANY_TOKENS][WARP_LANES] */
    int stride;
};

DEVICE struct any_shared any_shared_cut(float *base, int hd)
{
    struct any_shared s;

    s.stride = (hd + 3) / 4 * 4 + ANY_PAD;
    s.q = base;
    s.rows = s.q + ANY_LANES * s.stride;
    s.p = s.rows + ANY_TOKENS * s.stride;
    return s;
}

/* All rows up to their padding, zeros where there is no lane. */
DEVICE void load_queries(const struct attention_args *a, const struct attention_tile *t,
                         const struct any_shared *s)
{
    for (int i = (int)threadIdx.x / WARP; i < ANY_LANES; i += ANY_THREADS / WARP) {
        bool is_there = t->lane + i < t->lane_end;
        const float *q = attention_query(a, t, is_there ? t->lane + i : t->lane);

        for (int d = (int)threadIdx.x % WARP; d < s->stride; d += WARP) {
            s->q[i * s->stride + d] = is_there && d < a->hd ? q[d] : 0.0f;
        }
    }
}

/* Tokens [token, token + n) of one page; zeros in the rows after them, whatever the page holds there. */
DEVICE void load_rows(const struct attention_args *a, const struct attention_tile *t,
                      const struct any_shared *s, const uint8_t *data, const float *scales,
                      int token, int n)
{
    size_t row = kv_row(a, t, kv_page(a, t, token), token), first = row * (size_t)a->hd;

    for (int i = (int)threadIdx.x / WARP; i < ANY_TOKENS; i += ANY_THREADS / WARP) {
        float scale = scales && i < n ? scales[row + (size_t)i] : 1.0f;

        for (int d = (int)threadIdx.x % WARP; d < s->stride; d += WARP) {
            float v = 0;

            if (i < n && d < a->hd) {
                v = load_f32(a->cache.dtype, data, first + (size_t)(i * a->hd + d)) * scale;
            }
            s->rows[i * s->stride + d] = v;
        }
    }
}

/* This thread's token against the warp's lanes. */
DEVICE void any_scores(const struct any_shared *s, float score[WARP_LANES])
{
    int warp = (int)threadIdx.x / WARP, me = (int)threadIdx.x % WARP;
    const float *key = s->rows + me * s->stride, *q = s->q + warp * WARP_LANES * s->stride;

    UNROLL
    for (int l = 0; l < WARP_LANES; l++) {
        score[l] = 0;
    }
    for (int d = 0; d < s->stride - ANY_PAD; d += 4) {
        float4 k = *(const float4 *)(key + d);

        UNROLL
        for (int l = 0; l < WARP_LANES; l++) {
            float4 x = *(const float4 *)(q + l * s->stride + d);

            score[l] += x.x * k.x;
            score[l] += x.y * k.y;
            score[l] += x.z * k.z;
            score[l] += x.w * k.w;
        }
    }
}

/* The running softmax of a warp's lanes; a thread has columns me + 32 c of their sums. */
template <int D> struct any_state {
    float max[WARP_LANES], sum[WARP_LANES];
    float acc[WARP_LANES][D / WARP];
};

/* Scores become weights in s->p. */
template <int D>
DEVICE void any_softmax(const struct attention_args *a, const struct attention_tile *t,
                        const struct any_shared *s, struct any_state<D> *st,
                        float score[WARP_LANES], int token)
{
    int warp = (int)threadIdx.x / WARP, me = (int)threadIdx.x % WARP;
    float *p = s->p + (warp * ANY_TOKENS + me) * WARP_LANES;

    UNROLL
    for (int l = 0; l < WARP_LANES; l++) {
        int end = smaller(attention_visible(a, t, t->lane + warp * WARP_LANES + l), t->token_end);
        float x = token + me < end ? score[l] * a->scale : -INFINITY;
        float max = fmaxf(st->max[l], warp_max(x)), base = softmax_base(max);
        float keep = exp_f32(st->max[l] - base);

        x = exp_f32(x - base);
        p[l] = x;
        st->max[l] = max;
        st->sum[l] = st->sum[l] * keep + warp_sum(x);
        UNROLL
        for (int c = 0; c < D / WARP; c++) {
            st->acc[l][c] *= keep;
        }
    }
}

template <int D>
DEVICE void any_weigh(const struct attention_args *a, const struct any_shared *s,
                      struct any_state<D> *st, int n)
{
    int warp = (int)threadIdx.x / WARP, me = (int)threadIdx.x % WARP;

    for (int j = 0; j < n; j++) {
        const float *p = s->p + (warp * ANY_TOKENS + j) * WARP_LANES;

        UNROLL
        for (int c = 0; c < D / WARP; c++) {
            float v = me + c * WARP < a->hd ? s->rows[j * s->stride + me + c * WARP] : 0.0f;

            UNROLL
            for (int l = 0; l < WARP_LANES; l++) {
                st->acc[l][c] += p[l] * v;
            }
        }
    }
}

template <int D>
DEVICE void any_attend(const struct attention_args *a, const struct attention_tile *t,
                       const struct any_shared *s, struct any_state<D> *st)
{
    UNROLL
    for (int l = 0; l < WARP_LANES; l++) {
        st->max[l] = -INFINITY;
        st->sum[l] = 0;
        UNROLL
        for (int c = 0; c < D / WARP; c++) {
            st->acc[l][c] = 0;
        }
    }
    load_queries(a, t, s);
    for (int token = t->token; token < t->token_end; token += ANY_TOKENS) {
        int n = smaller(ANY_TOKENS, t->token_end - token);
        float score[WARP_LANES];

        load_rows(a, t, s, a->cache.k, a->cache.k_scale, token, n);
        block_sync();
        any_scores(s, score);
        any_softmax<D>(a, t, s, st, score, token);
        block_sync();
        load_rows(a, t, s, a->cache.v, a->cache.v_scale, token, n);
        block_sync();
        any_weigh<D>(a, s, st, n);
        block_sync();
    }
}

template <int D> DEVICE void any_short(const struct attention_args *a, float *shared)
{
    struct any_shared s = any_shared_cut(shared, a->hd);
    int split = (int)blockIdx.x, warp = (int)threadIdx.x / WARP, me = (int)threadIdx.x % WARP;
    int span = (int)blockIdx.z / ceil_div(a->rows_each * a->group, ANY_LANES);
    struct attention_tile t;
    struct any_state<D> st;

    if (!attention_short_tile(a, ANY_LANES, split, (int)blockIdx.y, (int)blockIdx.z, &t)) {
        return;
    }
    any_attend<D>(a, &t, &s, &st);
    UNROLL
    for (int l = 0; l < WARP_LANES; l++) {
        int lane = t.lane + warp * WARP_LANES + l;

        if (lane >= t.lane_end) {
            continue;
        }
        size_t place = attention_place(a, &t, span, lane, split);

        UNROLL
        for (int c = 0; c < D / WARP; c++) {
            if (me + c * WARP < a->hd) {
                a->partial[place * (size_t)a->hd + (size_t)(me + c * WARP)] = st.acc[l][c];
            }
        }
        if (me == 0) {
            a->partial_max[place] = st.max[l];
            a->partial_sum[place] = st.sum[l];
        }
    }
}

template <int D> DEVICE void any_long(const struct attention_args *a, float *shared)
{
    struct any_shared s = any_shared_cut(shared, a->hd);
    int warp = (int)threadIdx.x / WARP, me = (int)threadIdx.x % WARP;
    struct attention_tile t;
    struct any_state<D> st;

    if (!attention_long_tile(a, ANY_LANES, (int)blockIdx.x, (int)blockIdx.y, &t)) {
        return;
    }
    any_attend<D>(a, &t, &s, &st);
    UNROLL
    for (int l = 0; l < WARP_LANES; l++) {
        int lane = t.lane + warp * WARP_LANES + l;

        if (lane >= t.lane_end) {
            continue;
        }
        const float *gate = attention_query(a, &t, lane) + a->hd;
        float *out = attention_out(a, &t, lane), inverse = 1.0f / st.sum[l];

        UNROLL
        for (int c = 0; c < D / WARP; c++) {
            int d = me + c * WARP;

            if (d < a->hd) {
                float v = st.acc[l][c] * inverse;

                out[d] = round_f32(a->round, a->is_gated ? v * sigmoid(gate[d]) : v);
            }
        }
    }
}

#define ANY_KERNELS(D)                                                                             \
    KERNEL(attention_any_short_##D, attention_args, ANY_THREADS, 1)                                \
    {                                                                                              \
        DYNAMIC_SHARED(float, shared);                                                             \
        depend_launch();                                                                           \
        depend_wait();                                                                             \
        any_short<D>(&a, shared);                                                                  \
    }                                                                                              \
    KERNEL(attention_any_long_##D, attention_args, ANY_THREADS, 1)                                 \
    {                                                                                              \
        DYNAMIC_SHARED(float, shared);                                                             \
        depend_launch();                                                                           \
        depend_wait();                                                                             \
        any_long<D>(&a, shared);                                                                   \
    }

ANY_KERNELS(32)
ANY_KERNELS(64)
ANY_KERNELS(128)
ANY_KERNELS(256)

/* Block (lane, KV head, span): a short span's splits become one result. A thread has a column; the splits
 * are added in order. */
KERNEL(attention_join, attention_args, JOIN_THREADS, 1)
{
    SHARED float weight[ATTENTION_SPLITS_MAX];
    SHARED float part[2][JOIN_THREADS / WARP];
    int me = (int)threadIdx.x, lane = (int)blockIdx.x, span = (int)blockIdx.z;

    depend_launch();
    depend_wait();
    if (a.span_first + span >= a.view.counts[STEP_SPANS]) {
        return;
    }
    struct attention_tile t = {a.view.spans[a.span_first + span], (int)blockIdx.y, 0, 0, 0, 0};

    if (t.span.n_rows > a.rows_each || lane >= t.span.n_rows * a.group) {
        return;
    }
    int n_splits = attention_splits(&a, &t.span);
    size_t place = attention_place(&a, &t, span, lane, 0);
    float max = me < n_splits ? a.partial_max[place + (size_t)me] : -INFINITY, sum = 0;

    float best = warp_max(max);
    if (me % WARP == 0) {
        part[0][me / WARP] = best;
    }
    block_sync();
    best = part[0][0];
    UNROLL
    for (int i = 1; i < JOIN_THREADS / WARP; i++) {
        best = fmaxf(best, part[0][i]);
    }
    if (me < n_splits) {
        float w = exp_f32(max - softmax_base(best));

        weight[me] = w;
        sum = a.partial_sum[place + (size_t)me] * w;
    }
    sum = block_sum(sum, part[1]); /* its barrier also shows the weights */
    if (me < a.hd) {
        const float *v = a.partial + place * (size_t)a.hd + (size_t)me;
        float acc = 0;

        for (int i = 0; i < n_splits; i += 8) {
            float part_of[8];

            UNROLL
            for (int j = 0; j < 8; j++) {
                part_of[j] = i + j < n_splits ? v[(size_t)(i + j) * (size_t)a.hd] : 0.0f;
            }
            UNROLL
            for (int j = 0; j < 8; j++) {
                acc += i + j < n_splits ? weight[i + j] * part_of[j] : 0.0f;
            }
        }
        acc /= sum;
        if (a.is_gated) {
            acc *= sigmoid(attention_query(&a, &t, lane)[a.hd + me]);
        }
        attention_out(&a, &t, lane)[me] = round_f32(a.round, acc);
    }
}
