/* attention_flash.cuh - attention of longer spans (prefill) with matrix instructions.
 *
 * Place:  backend/cuda/kernels; instantiated by attention_flash_bf16.cu and _f16.cu, launched by
 *         cuda_attention.c.
 * Idea:   a block has 16 lanes for each of its warps and walks the context in tiles of tokens through
 *         shared memory. Lanes are rows times the heads of a group, so that a short chunk fills a block
 *         and the causal border cuts little. A warp keeps its lanes' sums in registers, and the scores
 *         become the left operand of the second product where they are.
 * Copies: of 16-bit caches the next tile is copied while this one is used, between two buffers. fp8 tiles
 *         are copied as they are and converted into one buffer of 16-bit values.
 * Banks:  rows are cut into 16-byte chunks; chunk c of row r is stored at place c ^ (r % 8), so the
 *         eight rows that an instruction reads lie in different banks.
 * Order:  the softmax is accumulated online as on the CPU, a tile at a time. Probabilities are rounded to
 *         the activations' type before the second product (relative 2^-9 each for bfloat16, as much as
 *         the output's own rounding), and their sum is taken of the rounded ones. */
#ifndef BACKEND_CUDA_ATTENTION_FLASH_CUH
#define BACKEND_CUDA_ATTENTION_FLASH_CUH

#include "backend/cuda/kernels/attention_pairs.cuh"
#include "backend/cuda/kernels/attention_tile.cuh"

/* KV: the activations' type or an fp8 type. */
template <enum dtype ACT_, enum dtype KV_, int HD_, int WARPS_, int TOKENS_>
struct flash_shape {
    static constexpr enum dtype ACT = ACT_, KV = KV_;
    static constexpr int HD = HD_, WARPS = WARPS_, TOKENS = TOKENS_;
    static constexpr bool IS_F8 = KV == DTYPE_F8_E4M3 || KV == DTYPE_F8_E5M2;
    static constexpr enum dtype WEIGH = weigh_type<ACT, IS_F8>::T;
    static constexpr int THREADS = WARPS * WARP, LANES = 16 * WARPS;
    static constexpr int TILE = TOKENS * HD; /* values */
    static constexpr int CHUNKS = HD / 8;    /* of 16 bytes in a row of 16-bit values */
};

struct flash_shared {
    uint16_t *q;              /* [LANES][HD] */
    uint16_t *k, *v;          /* [2][TOKENS][HD], the second one only of 16-bit caches */
    uint8_t *k_raw, *v_raw;   /* fp8: [TOKENS][HD] */
    float *scales_raw;        /* fp8: [2][TOKENS] of keys, of values, as copied */
    float *k_scale, *v_scale; /* fp8: [TOKENS], zeros past the context's end */
};

template <class S> DEVICE struct flash_shared flash_shared_cut(unsigned char *base)
{
    enum { BUFFERS = S::IS_F8 ? 1 : 2 };
    struct flash_shared s;

    s.q = (uint16_t *)base;
    s.k = s.q + S::LANES * S::HD;
    s.v = s.k + BUFFERS * S::TILE;
    s.k_raw = (uint8_t *)(s.v + BUFFERS * S::TILE);
    s.v_raw = s.k_raw + S::TILE;
    s.scales_raw = (float *)(s.v_raw + S::TILE);
    s.k_scale = s.scales_raw + 2 * S::TOKENS;
    s.v_scale = s.k_scale + S::TOKENS;
    return s;
}

/* Where chunk c of row r begins. */
template <int HD> DEVICE int flash_at(int r, int c)
{
    return r * HD + (c ^ (r & 7)) * 8;
}

template <class S>
DEVICE void flash_load_queries(const struct attention_args *a, const struct attention_tile *t,
                               uint16_t *shared)
{
    for (int i = (int)threadIdx.x; i < S::LANES * S::CHUNKS; i += S::THREADS) {
        int r = i / S::CHUNKS, c = i % S::CHUNKS;
        uint4 v = make_uint4(0, 0, 0, 0);

        if (t->lane + r < t->lane_end) {
            const float4 *q = (const float4 *)(attention_query(a, t, t->lane + r) + c * 8);
            float4 x = q[0], y = q[1];

            v.x = pair_from_f32<S::ACT>(x.x, x.y);
            v.y = pair_from_f32<S::ACT>(x.z, x.w);
            v.z = pair_from_f32<S::ACT>(y.x, y.y);
            v.w = pair_from_f32<S::ACT>(y.z, y.w);
        }
        *(uint4 *)(shared + flash_at<S::HD>(r, c)) = v;
    }
}

/* Begins to copy a tile's keys and values; zeros past the context's end, whatever the page holds there. */
template <class S>
DEVICE void flash_copy(const struct attention_args *a, const struct attention_tile *t,
                       const struct flash_shared *s, int32_t page, int token, int buffer)
{
    enum { ROW = S::HD * (S::IS_F8 ? 1 : 2), ROW_CHUNKS = ROW / 16 };
    size_t row = kv_row(a, t, page, token), first = row * ROW;
    int me = (int)threadIdx.x;

    UNROLL
    for (int i = (int)threadIdx.x; i < S::TOKENS * ROW_CHUNKS; i += S::THREADS) {
        int r = i / ROW_CHUNKS, c = i % ROW_CHUNKS;
        bool is_there = token + r < t->token_end;
        size_t from = is_there ? first + (size_t)i * 16 : first;

        if (S::IS_F8) {
            copy16_async(s->k_raw + i * 16, a->cache.k + from, is_there);
            copy16_async(s->v_raw + i * 16, a->cache.v + from, is_there);
        } else {
            int at = buffer * S::TILE + flash_at<S::HD>(r, c);

            copy16_async(s->k + at, a->cache.k + from, is_there);
            copy16_async(s->v + at, a->cache.v + from, is_there);
        }
    }
    if (S::IS_F8 && me < S::TOKENS / 2) {
        int i = me % (S::TOKENS / 4) * 4;
        const float *scales = me < S::TOKENS / 4 ? a->cache.k_scale : a->cache.v_scale;

        copy16_async(s->scales_raw + me * 4, scales + row + (size_t)i, token + i < t->token_end);
    }
}

template <enum dtype T, enum dtype F8> DEVICE uint4 flash_convert8(uint32_t low, uint32_t high)
{
    return make_uint4(pair_from_f8<T, F8>(low), pair_from_f8<T, F8>(low >> 16),
                      pair_from_f8<T, F8>(high), pair_from_f8<T, F8>(high >> 16));
}

/* fp8: the copied tile becomes 16-bit values. */
template <class S>
DEVICE void flash_convert(const struct attention_tile *t, const struct flash_shared *s, int token)
{
    for (int i = (int)threadIdx.x; i < S::TILE / 16; i += S::THREADS) {
        int r = i / (S::HD / 16), c = i % (S::HD / 16) * 2;
        uint4 k = ((const uint4 *)s->k_raw)[i], v = ((const uint4 *)s->v_raw)[i];

        *(uint4 *)(s->k + flash_at<S::HD>(r, c)) = flash_convert8<S::ACT, S::KV>(k.x, k.y);
        *(uint4 *)(s->k + flash_at<S::HD>(r, c + 1)) = flash_convert8<S::ACT, S::KV>(k.z, k.w);
        *(uint4 *)(s->v + flash_at<S::HD>(r, c)) = flash_convert8<S::WEIGH, S::KV>(v.x, v.y);
        *(uint4 *)(s->v + flash_at<S::HD>(r, c + 1)) = flash_convert8<S::WEIGH, S::KV>(v.z, v.w);
    }
    for (int i = (int)threadIdx.x; i < S::TOKENS; i += S::THREADS) {
        bool is_there = token + i < t->token_end;

        s->k_scale[i] = is_there ? s->scales_raw[i] : 0.0f;
        s->v_scale[i] = is_there ? s->scales_raw[S::TOKENS + i] : 0.0f;
    }
}

/* A warp's 16 lanes; with g = thread / 4 and t = thread % 4 of the warp, a thread has lanes g and g + 8,
 * of every 8 columns 2t and 2t + 1. */
template <class S> struct flash_state {
    float max[2], sum[2]; /* sum: of this thread's tokens */
    int visible[2];
    float acc[S::HD / 8][4]; /* [0], [1]: lane g; [2], [3]: lane g + 8 */
};

template <class S>
DEVICE void flash_scores(const uint16_t *q, const uint16_t *k, float score[S::TOKENS / 8][4])
{
    int me = (int)threadIdx.x % WARP, row = (int)threadIdx.x / WARP * 16 + me % 16;

    UNROLL
    for (int n = 0; n < S::TOKENS / 8; n++) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            score[n][i] = 0;
        }
    }
    UNROLL
    for (int step = 0; step < S::HD / 16; step++) {
        uint32_t left[4];

        load_matrix4(left, q + flash_at<S::HD>(row, 2 * step + me / 16));
        UNROLL
        for (int n = 0; n < S::TOKENS / 16; n++) {
            uint32_t right[4];

            load_matrix4(right,
                         k + flash_at<S::HD>(n * 16 + me / 16 * 8 + me % 8, 2 * step + me / 8 % 2));
            mma_pairs<S::ACT>(score[2 * n], left, right);
            mma_pairs<S::ACT>(score[2 * n + 1], left, right + 2);
        }
    }
}

/* Scores become weights, as pairs: those of 8 tokens, lane g's and lane g + 8's. */
template <class S>
DEVICE void flash_softmax(const struct attention_args *a, const struct flash_shared *s,
                          struct flash_state<S> *st, float score[S::TOKENS / 8][4], int token,
                          uint32_t p[S::TOKENS / 8][2])
{
    int part = (int)threadIdx.x % 4;
    float keep[2];

    UNROLL
    for (int j = 0; j < 2; j++) {
        float max = st->max[j], base, sum = 0;
        bool is_cut = token + S::TOKENS > st->visible[j];

        UNROLL
        for (int n = 0; n < S::TOKENS / 8; n++) {
            UNROLL
            for (int i = 0; i < 2; i++) {
                int at = n * 8 + 2 * part + i;
                float x = score[n][2 * j + i] * a->scale;

                if (S::IS_F8) {
                    x *= s->k_scale[at];
                }
                if (is_cut && token + at >= st->visible[j]) {
                    x = -INFINITY;
                }
                score[n][2 * j + i] = x;
                max = fmaxf(max, x);
            }
        }
        max = fmaxf(max, shuffle_xor(max, 1));
        max = fmaxf(max, shuffle_xor(max, 2));
        base = softmax_base(max);
        keep[j] = exp_f32(st->max[j] - base);
        st->max[j] = max;
        UNROLL
        for (int n = 0; n < S::TOKENS / 8; n++) {
            float x = exp_f32(score[n][2 * j] - base), y = exp_f32(score[n][2 * j + 1] - base);

            if (S::IS_F8) {
                int at = n * 8 + 2 * part;

                sum += x + y;
                p[n][j] = pair_from_f32<S::WEIGH>(x * s->v_scale[at], y * s->v_scale[at + 1]);
            } else {
                p[n][j] = pair_from_f32<S::WEIGH>(x, y);
                sum += pair_low<S::WEIGH>(p[n][j]) + pair_high<S::WEIGH>(p[n][j]);
            }
        }
        st->sum[j] = st->sum[j] * keep[j] + sum;
    }
    if (warp_ballot(keep[0] != 1.0f || keep[1] != 1.0f)) { /* the maxima settle soon */
        UNROLL
        for (int n = 0; n < S::HD / 8; n++) {
            st->acc[n][0] *= keep[0];
            st->acc[n][1] *= keep[0];
            st->acc[n][2] *= keep[1];
            st->acc[n][3] *= keep[1];
        }
    }
}

template <class S>
DEVICE void flash_weigh(struct flash_state<S> *st, const uint16_t *v,
                        const uint32_t p[S::TOKENS / 8][2])
{
    int me = (int)threadIdx.x % WARP;

    UNROLL
    for (int k = 0; k < S::TOKENS / 16; k++) {
        uint32_t left[4] = {p[2 * k][0], p[2 * k][1], p[2 * k + 1][0], p[2 * k + 1][1]};

        UNROLL
        for (int n = 0; n < S::HD / 16; n++) {
            uint32_t right[4];

            load_matrix4_trans(right, v + flash_at<S::HD>(k * 16 + me % 16, 2 * n + me / 16));
            mma_pairs<S::WEIGH>(st->acc[2 * n], left, right);
            mma_pairs<S::WEIGH>(st->acc[2 * n + 1], left, right + 2);
        }
    }
}

template <class S>
DEVICE void flash_store(const struct attention_args *a, const struct attention_tile *t,
                        struct flash_state<S> *st)
{
    int me = (int)threadIdx.x % WARP, part = me % 4;
    int lane = t->lane + (int)threadIdx.x / WARP * 16 + me / 4;

    UNROLL
    for (int j = 0; j < 2; j++, lane += 8) {
        float sum = st->sum[j];

        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        if (lane >= t->lane_end) {
            continue;
        }
        const float *gate = attention_query(a, t, lane) + S::HD;
        float *out = attention_out(a, t, lane), inverse = 1.0f / sum;

        UNROLL
        for (int n = 0; n < S::HD / 8; n++) {
            int d = n * 8 + 2 * part;
            float x = st->acc[n][2 * j] * inverse, y = st->acc[n][2 * j + 1] * inverse;

            if (a->is_gated) {
                float2 z = *(const float2 *)(gate + d);

                x *= sigmoid(z.x);
                y *= sigmoid(z.y);
            }
            *(float2 *)(out + d) = make_float2(round_f32(a->round, x), round_f32(a->round, y));
        }
    }
}

/* One split's part, for attention_join. */
template <class S>
DEVICE void flash_store_partial(const struct attention_args *a, const struct attention_tile *t,
                                struct flash_state<S> *st)
{
    int me = (int)threadIdx.x % WARP, part = me % 4;
    int lane = t->lane + (int)threadIdx.x / WARP * 16 + me / 4;

    UNROLL
    for (int j = 0; j < 2; j++, lane += 8) {
        float sum = st->sum[j];

        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        if (lane >= t->lane_end) {
            continue;
        }
        size_t place = attention_place(a, t, 0, lane, (int)blockIdx.x);
        float *out = a->partial + place * S::HD;

        UNROLL
        for (int n = 0; n < S::HD / 8; n++) {
            *(float2 *)(out + n * 8 + 2 * part) =
                make_float2(st->acc[n][2 * j], st->acc[n][2 * j + 1]);
        }
        if (part == 0) {
            a->partial_max[place] = st->max[j];
            a->partial_sum[place] = sum;
        }
    }
}

template <class S>
DEVICE void flash_init(const struct attention_args *a, const struct attention_tile *t,
                       struct flash_state<S> *st)
{
    int lane = t->lane + (int)threadIdx.x / WARP * 16 + (int)threadIdx.x % WARP / 4;

    UNROLL
    for (int j = 0; j < 2; j++) {
        st->max[j] = -INFINITY;
        st->sum[j] = 0;
        st->visible[j] = smaller(attention_visible(a, t, lane + 8 * j), t->token_end);
    }
    UNROLL
    for (int n = 0; n < S::HD / 8; n++) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            st->acc[n][i] = 0;
        }
    }
}

template <class S> DEVICE void flash_attend(const struct attention_args *a, unsigned char *shared)
{
    struct flash_shared s = flash_shared_cut<S>(shared);
    struct attention_tile t;
    struct flash_state<S> st;
    int buffer = 0, lane, warp_end;
    int32_t page; /* of the next tile */

    if (a->splits_max > 0
            ? !attention_short_tile(a, S::LANES, (int)blockIdx.x, (int)blockIdx.y, (int)blockIdx.z,
                                    &t)
            : !attention_long_tile(a, S::LANES, (int)blockIdx.x, (int)blockIdx.y, &t)) {
        return;
    }
    flash_copy<S>(a, &t, &s, kv_page(a, &t, t.token), t.token, 0);
    copy_commit();
    flash_load_queries<S>(a, &t, s.q);
    flash_init<S>(a, &t, &st);
    lane = t.lane + (int)threadIdx.x / WARP * 16;
    warp_end = smaller(attention_visible(a, &t, lane + 15), t.token_end);
    if (lane >= t.lane_end) {
        warp_end = 0; /* only keeps the barriers company */
    }
    page = kv_page(a, &t, t.token + S::TOKENS);
    for (int token = t.token; token < t.token_end; token += S::TOKENS) {
        float score[S::TOKENS / 8][4];
        uint32_t p[S::TOKENS / 8][2];

        copy_wait<0>();
        block_sync(); /* the tile is there, and all have left the one before */
        if (S::IS_F8) {
            flash_convert<S>(&t, &s, token);
            block_sync();
        }
        if (token + S::TOKENS < t.token_end) {
            flash_copy<S>(a, &t, &s, page, token + S::TOKENS, buffer ^ 1);
            copy_commit();
            page = kv_page(a, &t, token + 2 * S::TOKENS);
        }
        if (token < warp_end) {
            flash_scores<S>(s.q, s.k + buffer * S::TILE, score);
            flash_softmax<S>(a, &s, &st, score, token, p);
            flash_weigh<S>(&st, s.v + buffer * S::TILE, p);
        }
        buffer = S::IS_F8 ? 0 : buffer ^ 1;
    }
    if (a->splits_max > 0) {
        flash_store_partial<S>(a, &t, &st);
    } else {
        flash_store<S>(a, &t, &st);
    }
}

#define FLASH_KERNEL(name, ACT, KV, HD, WARPS, TOKENS)                                             \
    KERNEL(name, attention_args, WARPS *WARP, 1)                                                   \
    {                                                                                              \
        DYNAMIC_SHARED(unsigned char, shared);                                                     \
        depend_launch();                                                                           \
        depend_wait();                                                                             \
        flash_attend<struct flash_shape<ACT, KV, HD, WARPS, TOKENS>>(&a, shared);                  \
    }

#endif
