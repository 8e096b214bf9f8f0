/* attention_split.cuh - attention of short spans (decode) with matrix instructions.
 *
 * Place:  backend/cuda/kernels; instantiated by attention_split_bf16.cu and _f16.cu, launched by
 *         cuda_attention.c; attention_join adds the splits up.
 * Idea:   decode reads the cache once and computes little, so keys and values go from memory straight
 *         into the registers of the instructions, 16 bytes a load, with the next 16 tokens' keys in
 *         flight while this strip's values are used. For that the products are turned round: keys and
 *         (transposed) values are the left operand of 16 rows, the 8 lanes the columns:
 *
 *             S' [16 tokens][8 lanes]  = K [16 tokens][hd] Q' [hd][8 lanes]
 *             O' [hd][8 lanes]        += V' [hd][16 tokens] P' [16 tokens][8 lanes]
 *
 *         A product does not mind in which order it sums, so a thread calls its 16 bytes of a key
 *         columns {2t, 2t+1, 2t+8, 2t+9} of two steps, and stores q in the same order. In the same way
 *         rows of O' are columns of the head in the order in which values were loaded.
 * Warps:  warp w has tokens [16w, 16w + 16) of each page and a softmax of its own; the four are added at
 *         the end. No barrier in the loop.
 * Exact:  products of the operands are exact. Probabilities are taken as a sum of two 16-bit values, which
 *         leaves 2^-17 (bfloat16) of each: as good as float32 for what comes out. */
#ifndef BACKEND_CUDA_ATTENTION_SPLIT_CUH
#define BACKEND_CUDA_ATTENTION_SPLIT_CUH

#include "backend/cuda/kernels/attention_pairs.cuh"
#include "backend/cuda/kernels/attention_tile.cuh"

template <enum dtype ACT, enum dtype KV, int HD>
struct split_shape {
    static constexpr bool IS_F8 = KV == DTYPE_F8_E4M3 || KV == DTYPE_F8_E5M2;
    static constexpr enum dtype WEIGH = weigh_type<ACT, IS_F8>::T;
    static constexpr int UNIT = IS_F8 ? 16 : 8; /* values in 16 bytes */
    static constexpr int ROW_BYTES = HD * 16 / UNIT;
    static constexpr int KEYS = HD / (4 * UNIT);   /* loads for a token's key: 4 threads, t */
    static constexpr int VALUES = HD / (8 * UNIT); /* for a token's value: 8 threads, g */
    static constexpr int WARPS = SPLIT_THREADS / WARP;
};

struct split_shared {
    uint4 *q;         /* [hd / 32][32 threads] as keys' threads want it */
    float *p;         /* [warps][SPLIT_LANES][SPLIT_P_STRIDE] */
    float *max, *sum; /* [warps][SPLIT_LANES] */
    float *acc;       /* [warps][SPLIT_LANES][hd] */
};

template <int HD> DEVICE struct split_shared split_shared_cut(unsigned char *base)
{
    enum { WARPS = SPLIT_THREADS / WARP };
    struct split_shared s;

    s.q = (uint4 *)base;
    s.p = (float *)(base + SPLIT_LANES * HD * 2);
    s.max = s.p + WARPS * SPLIT_LANES * SPLIT_P_STRIDE;
    s.sum = s.max + WARPS * SPLIT_LANES;
    s.acc = s.sum + WARPS * SPLIT_LANES;
    return s;
}

/* Eight columns of a query. */
template <enum dtype ACT> DEVICE uint4 split_pack(const float *from)
{
    const float4 *q = (const float4 *)from;
    float4 x = q[0], y = q[1];

    return make_uint4(pair_from_f32<ACT>(x.x, x.y), pair_from_f32<ACT>(x.z, x.w),
                      pair_from_f32<ACT>(y.x, y.y), pair_from_f32<ACT>(y.z, y.w));
}

/* Slot (c, h, thread (g, t)): columns 4 UNIT c + UNIT t + 8h ... of lane g. */
template <enum dtype ACT, enum dtype KV, int HD>
DEVICE void split_load_queries(const struct attention_args *a, const struct attention_tile *t,
                               const struct split_shared *s)
{
    using S = split_shape<ACT, KV, HD>;
    enum { HALVES = S::UNIT / 8 };

    for (int i = (int)threadIdx.x; i < SPLIT_LANES * HD / 8; i += SPLIT_THREADS) {
        int thread = i % WARP, h = i / WARP % HALVES, c = i / WARP / HALVES;
        int lane = t->lane + thread / 4;
        int d = c * 4 * S::UNIT + thread % 4 * S::UNIT + h * 8;

        s->q[i] = lane < t->lane_end ? split_pack<ACT>(attention_query(a, t, lane) + d)
                                     : make_uint4(0, 0, 0, 0);
    }
}

/* A thread's part of 16 tokens' keys, values and scales. */
template <enum dtype ACT, enum dtype KV, int HD>
struct split_keys {
    uint4 v[split_shape<ACT, KV, HD>::KEYS][2]; /* tokens g, g + 8 */
    float scale[2];
};
template <enum dtype ACT, enum dtype KV, int HD>
struct split_values {
    uint4 v[split_shape<ACT, KV, HD>::VALUES][4]; /* tokens 4t ... 4t + 3 */
    float scale[2];                               /* of tokens g, g + 8: where the scores are */
};

/* Zeros past the context's end: the page may hold anything there. */
DEVICE uint4 split_load(const uint8_t *p, bool is_there)
{
    return is_there ? *(const uint4 *)p : make_uint4(0, 0, 0, 0);
}

template <enum dtype ACT, enum dtype KV, int HD>
DEVICE void split_load_keys(const struct attention_args *a, const struct attention_tile *t,
                            int32_t page, int token, struct split_keys<ACT, KV, HD> *k)
{
    using S = split_shape<ACT, KV, HD>;
    int g = (int)threadIdx.x % WARP / 4, part = (int)threadIdx.x % 4;
    size_t first = kv_row(a, t, page, token);
    const uint8_t *rows = a->cache.k + (first + (size_t)g) * S::ROW_BYTES + part * 16;

    UNROLL
    for (int i = 0; i < 2; i++) {
        bool is_there = token + g + 8 * i < t->token_end;
        UNROLL
        for (int c = 0; c < S::KEYS; c++) {
            k->v[c][i] = split_load(rows + 8 * i * S::ROW_BYTES + c * 64, is_there);
        }
        if (S::IS_F8) {
            k->scale[i] = is_there ? a->cache.k_scale[first + (size_t)(g + 8 * i)] : 0.0f;
        }
    }
}

template <enum dtype ACT, enum dtype KV, int HD>
DEVICE void split_load_values(const struct attention_args *a, const struct attention_tile *t,
                              int32_t page, int token, struct split_values<ACT, KV, HD> *v)
{
    using S = split_shape<ACT, KV, HD>;
    int g = (int)threadIdx.x % WARP / 4, part = (int)threadIdx.x % 4;
    size_t first = kv_row(a, t, page, token);
    const uint8_t *rows = a->cache.v + (first + (size_t)(4 * part)) * S::ROW_BYTES + g * 16;

    UNROLL
    for (int i = 0; i < 4; i++) {
        bool is_there = token + 4 * part + i < t->token_end;
        UNROLL
        for (int c = 0; c < S::VALUES; c++) {
            v->v[c][i] = split_load(rows + i * S::ROW_BYTES + c * 128, is_there);
        }
    }
    if (S::IS_F8) {
        const float *scales = a->cache.v_scale + first;

        UNROLL
        for (int i = 0; i < 2; i++) {
            v->scale[i] = token + g + 8 * i < t->token_end ? scales[g + 8 * i] : 0.0f;
        }
    }
}

DEVICE uint32_t word_of(uint4 v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Pair i of 16 bytes of the cache, as T. */
template <enum dtype T, enum dtype KV> DEVICE uint32_t cache_pair(uint4 v, int i)
{
    if (KV == DTYPE_F8_E4M3 || KV == DTYPE_F8_E5M2) {
        return pair_from_f8<T, KV>(word_of(v, i / 2) >> 16 * (i % 2));
    }
    return word_of(v, i);
}

/* score[0], [1]: token g, lanes 2t, 2t + 1; [2], [3]: token g + 8. */
template <enum dtype ACT, enum dtype KV, int HD>
DEVICE void split_scores(const struct split_keys<ACT, KV, HD> *k, const uint4 *q, float score[4])
{
    using S = split_shape<ACT, KV, HD>;
    enum { HALVES = S::UNIT / 8 };
    float sums[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}}; /* two, to wait less for each other */

    UNROLL
    for (int c = 0; c < S::KEYS; c++) {
        UNROLL
        for (int h = 0; h < HALVES; h++) {
            uint4 x = q[(c * HALVES + h) * WARP + (int)threadIdx.x % WARP];

            UNROLL
            for (int step = 0; step < 2; step++) {
                uint32_t left[4], right[2] = {word_of(x, 2 * step), word_of(x, 2 * step + 1)};

                UNROLL
                for (int i = 0; i < 4; i++) {
                    left[i] = cache_pair<ACT, KV>(k->v[c][i % 2], 4 * h + 2 * step + i / 2);
                }
                mma_pairs<ACT>(sums[step], left, right);
            }
        }
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        score[i] = sums[0][i] + sums[1][i];
    }
}

/* A warp's running softmax: lanes 2t, 2t + 1. acc[c][i]: columns 8 UNIT c + UNIT g + 2i, + 1 of both. */
template <enum dtype ACT, enum dtype KV, int HD>
struct split_state {
    float max[2], sum[2]; /* sum: of this thread's tokens */
    int visible[2];       /* tokens before the lane's end and the split's */
    float acc[split_shape<ACT, KV, HD>::VALUES][split_shape<ACT, KV, HD>::UNIT / 2][4];
};

/* Scores of 16 tokens become weights, in shared memory: [lane][token]. */
template <enum dtype ACT, enum dtype KV, int HD>
DEVICE void split_softmax(const struct attention_args *a, struct split_state<ACT, KV, HD> *st,
                          float score[4], int token, const float *k_scale, const float *v_scale,
                          float *p)
{
    using S = split_shape<ACT, KV, HD>;
    int g = (int)threadIdx.x % WARP / 4, part = (int)threadIdx.x % 4;

    UNROLL
    for (int j = 0; j < 2; j++) {
        float x[2], max = st->max[j], base, keep;

        UNROLL
        for (int i = 0; i < 2; i++) {
            float scale = S::IS_F8 ? a->scale * k_scale[i] : a->scale;

            x[i] = token + g + 8 * i < st->visible[j] ? score[2 * i + j] * scale : -INFINITY;
            max = fmaxf(max, x[i]);
        }
        max = fmaxf(max, shuffle_xor(max, 4));
        max = fmaxf(max, shuffle_xor(max, 8));
        max = fmaxf(max, shuffle_xor(max, 16));
        base = softmax_base(max);
        keep = exp_f32(st->max[j] - base);
        st->max[j] = max;
        st->sum[j] *= keep;
        UNROLL
        for (int i = 0; i < 2; i++) {
            x[i] = exp_f32(x[i] - base);
            st->sum[j] += x[i];
            p[(2 * part + j) * SPLIT_P_STRIDE + g + 8 * i] = S::IS_F8 ? x[i] * v_scale[i] : x[i];
        }
        UNROLL
        for (int c = 0; c < S::VALUES; c++) {
            UNROLL
            for (int i = 0; i < S::UNIT / 2; i++) {
                st->acc[c][i][j] *= keep;
                st->acc[c][i][2 + j] *= keep;
            }
        }
    }
}

template <enum dtype ACT, enum dtype KV, int HD>
DEVICE void split_weigh(struct split_state<ACT, KV, HD> *st,
                        const struct split_values<ACT, KV, HD> *v, const float *p)
{
    using S = split_shape<ACT, KV, HD>;
    int g = (int)threadIdx.x % WARP / 4, part = (int)threadIdx.x % 4;
    float4 x = *(const float4 *)(p + g * SPLIT_P_STRIDE + 4 * part);
    uint32_t high[2], low[2];

    high[0] = pair_from_f32<S::WEIGH>(x.x, x.y);
    high[1] = pair_from_f32<S::WEIGH>(x.z, x.w);
    low[0] = pair_from_f32<S::WEIGH>(x.x - pair_low<S::WEIGH>(high[0]),
                                     x.y - pair_high<S::WEIGH>(high[0]));
    low[1] = pair_from_f32<S::WEIGH>(x.z - pair_low<S::WEIGH>(high[1]),
                                     x.w - pair_high<S::WEIGH>(high[1]));
    UNROLL
    for (int c = 0; c < S::VALUES; c++) {
        UNROLL
        for (int i = 0; i < S::UNIT / 2; i++) {
            uint32_t w[4], left[4];

            UNROLL
            for (int j = 0; j < 4; j++) {
                w[j] = cache_pair<S::WEIGH, KV>(v->v[c][j], i);
            }
            /* row g of the instruction is the pair's first column, row g + 8 its second */
            left[0] = __byte_perm(w[0], w[1], 0x5410);
            left[1] = __byte_perm(w[0], w[1], 0x7632);
            left[2] = __byte_perm(w[2], w[3], 0x5410);
            left[3] = __byte_perm(w[2], w[3], 0x7632);
            mma_pairs<S::WEIGH>(st->acc[c][i], left, high);
            mma_pairs<S::WEIGH>(st->acc[c][i], left, low);
        }
    }
}

/* Column of shared memory where a warp leaves column d of a lane: turned about so that the lanes of
 * threads that write together are in different banks. */
DEVICE int split_column(int lane, int d)
{
    return d ^ (lane / 2 << 1);
}

/* The warps' results side by side in shared memory, each weighed by the largest score of all. */
template <enum dtype ACT, enum dtype KV, int HD>
DEVICE void split_meet(struct split_state<ACT, KV, HD> *st, const struct split_shared *s)
{
    using S = split_shape<ACT, KV, HD>;
    int warp = (int)threadIdx.x / WARP, g = (int)threadIdx.x % WARP / 4,
        part = (int)threadIdx.x % 4;

    UNROLL
    for (int j = 0; j < 2; j++) {
        st->sum[j] += shuffle_xor(st->sum[j], 4);
        st->sum[j] += shuffle_xor(st->sum[j], 8);
        st->sum[j] += shuffle_xor(st->sum[j], 16);
        if (g == 0) {
            s->max[warp * SPLIT_LANES + 2 * part + j] = st->max[j];
            s->sum[warp * SPLIT_LANES + 2 * part + j] = st->sum[j];
        }
    }
    block_sync();
    UNROLL
    for (int j = 0; j < 2; j++) {
        int lane = 2 * part + j;
        float *acc = s->acc + (warp * SPLIT_LANES + lane) * HD, max = s->max[lane], keep;

        UNROLL
        for (int w = 1; w < S::WARPS; w++) {
            max = fmaxf(max, s->max[w * SPLIT_LANES + lane]);
        }
        keep = exp_f32(st->max[j] - softmax_base(max));
        UNROLL
        for (int c = 0; c < S::VALUES; c++) {
            UNROLL
            for (int i = 0; i < S::UNIT / 2; i++) {
                int d = c * 8 * S::UNIT + g * S::UNIT + 2 * i;

                *(float2 *)(acc + split_column(lane, d)) =
                    make_float2(st->acc[c][i][j] * keep, st->acc[c][i][2 + j] * keep);
            }
        }
    }
    block_sync();
}

/* Column d of a lane, of all warps. */
template <int HD> DEVICE float split_total(const struct split_shared *s, int lane, int d)
{
    float sum = 0;

    UNROLL
    for (int w = 0; w < SPLIT_THREADS / WARP; w++) {
        sum += s->acc[(w * SPLIT_LANES + lane) * HD + split_column(lane, d)];
    }
    return sum;
}

/* Columns d and d + 1, d being even. */
template <int HD> DEVICE float2 split_total2(const struct split_shared *s, int lane, int d)
{
    float2 sum = make_float2(0, 0);

    UNROLL
    for (int w = 0; w < SPLIT_THREADS / WARP; w++) {
        float2 v =
            *(const float2 *)(s->acc + (w * SPLIT_LANES + lane) * HD + split_column(lane, d));

        sum.x += v.x;
        sum.y += v.y;
    }
    return sum;
}

/* A lane's largest score and the sum of its weights, of all warps. */
DEVICE float split_weights(const struct split_shared *s, int lane, float *max)
{
    float sum = 0;

    *max = -INFINITY;
    for (int w = 0; w < SPLIT_THREADS / WARP; w++) {
        *max = fmaxf(*max, s->max[w * SPLIT_LANES + lane]);
    }
    for (int w = 0; w < SPLIT_THREADS / WARP; w++) {
        sum += s->sum[w * SPLIT_LANES + lane] *
               exp_f32(s->max[w * SPLIT_LANES + lane] - softmax_base(*max));
    }
    return sum;
}

/* The warps' results, added, become the split's. */
template <int HD>
DEVICE void split_store(const struct attention_args *a, const struct attention_tile *t, int span,
                        const struct split_shared *s)
{
    int split = (int)blockIdx.x, n_lanes = t->lane_end - t->lane;

    for (int i = (int)threadIdx.x; i < n_lanes * HD; i += SPLIT_THREADS) {
        int lane = i / HD, d = i % HD;
        size_t place = attention_place(a, t, span, t->lane + lane, split);

        a->partial[place * HD + (size_t)d] = split_total<HD>(s, lane, d);
    }
    if ((int)threadIdx.x < n_lanes) {
        int lane = (int)threadIdx.x;
        size_t place = attention_place(a, t, span, t->lane + lane, split);

        float max, sum = split_weights(s, lane, &max);

        a->partial_max[place] = max;
        a->partial_sum[place] = sum;
    }
}

template <enum dtype ACT, enum dtype KV, int HD>
DEVICE void split_init(const struct attention_args *a, const struct attention_tile *t,
                       struct split_state<ACT, KV, HD> *st)
{
    using S = split_shape<ACT, KV, HD>;

    UNROLL
    for (int j = 0; j < 2; j++) {
        int lane = t->lane + (int)threadIdx.x % 4 * 2 + j;

        st->max[j] = -INFINITY;
        st->sum[j] = 0;
        st->visible[j] = smaller(attention_visible(a, t, lane), t->token_end);
    }
    UNROLL
    for (int c = 0; c < S::VALUES; c++) {
        UNROLL
        for (int i = 0; i < S::UNIT / 2; i++) {
            UNROLL
            for (int j = 0; j < 4; j++) {
                st->acc[c][i][j] = 0;
            }
        }
    }
}

/* The tables and what tokens before this step left in the cache are older than every kernel that may
 * still run, so the first strip is fetched before depend_wait() unless it has rows of this step. */
template <enum dtype ACT, enum dtype KV, int HD>
DEVICE void split_attend(const struct attention_args *a, unsigned char *shared)
{
    int warp = (int)threadIdx.x / WARP, token;
    int32_t page; /* of the next strip */
    int span = (int)blockIdx.z / ceil_div(a->rows_each * a->group, SPLIT_LANES);
    struct split_shared s = split_shared_cut<HD>(shared);
    struct attention_tile t;
    struct split_keys<ACT, KV, HD> k;
    struct split_values<ACT, KV, HD> v;
    struct split_state<ACT, KV, HD> st;
    float *p = s.p + warp * SPLIT_LANES * SPLIT_P_STRIDE;

    if (!attention_short_tile(a, SPLIT_LANES, (int)blockIdx.x, (int)blockIdx.y, (int)blockIdx.z,
                              &t)) {
        depend_wait(); /* who waits for this kernel relies on the ones before it too */
        return;
    }
    token = t.token + 16 * warp;
    if (token + 16 > t.span.position) {
        depend_wait();
    }
    page = kv_page(a, &t, token);
    if (token < t.token_end) {
        split_load_keys<ACT, KV, HD>(a, &t, page, token, &k);
        split_load_values<ACT, KV, HD>(a, &t, page, token, &v);
    }
    page = kv_page(a, &t, token + ATTENTION_PAGE);
    split_init<ACT, KV, HD>(a, &t, &st);
    depend_wait();
    split_load_queries<ACT, KV, HD>(a, &t, &s);
    block_sync();
    for (; token < t.token_end; token += ATTENTION_PAGE) {
        int next = token + ATTENTION_PAGE;
        float score[4], k_scale[2] = {k.scale[0], k.scale[1]};

        split_scores<ACT, KV, HD>(&k, s.q, score);
        if (next < t.token_end) {
            split_load_keys<ACT, KV, HD>(a, &t, page, next, &k);
        }
        split_softmax<ACT, KV, HD>(a, &st, score, token, k_scale, v.scale, p);
        warp_sync();
        split_weigh<ACT, KV, HD>(&st, &v, p);
        warp_sync();
        if (next < t.token_end) {
            split_load_values<ACT, KV, HD>(a, &t, page, next, &v);
            page = kv_page(a, &t, next + ATTENTION_PAGE);
        }
    }
    split_meet<ACT, KV, HD>(&st, &s);
    split_store<HD>(a, &t, span, &s);
}

#define SPLIT_KERNEL(name, ACT, KV, HD)                                                            \
    KERNEL(name, attention_args, SPLIT_THREADS, 2)                                                 \
    {                                                                                              \
        DYNAMIC_SHARED(unsigned char, shared);                                                     \
        depend_launch();                                                                           \
        split_attend<ACT, KV, HD>(&a, shared);                                                     \
    }

#endif
