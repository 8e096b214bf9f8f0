/* delta_prepare.cu - the chunked gated delta rule, part one: what a chunk needs that no state enters.
 *
 * Place:  backend/cuda/kernels; launched by cuda_delta.c before delta_scan.cu, which has the formulas.
 *         All chunks of all spans at once; a block has one chunk and one key head with its value heads.
 * Makes:  per key head the products K K' and Q K' of the raw rows; per value head with them
 *             P_ij = (q_i.k_j) exp(G_i - G_j), j <= i       M_ij = beta_i (k_i.k_j) exp(G_i - G_j), j < i
 *             T = (I + M)^-1
 *         Both are triangles and share a square of 64 x 64: P_ij at [i][j], T_ij at [j][i] (so by columns;
 *         its diagonal is 1 and is not kept).
 *
 *                        column
 *                  +-----------------+
 *             row  | P00 T10 T20 T30 |
 *                  | P10 P11 T21 T31 |
 *                  | P20 P21 P22 T32 |
 *                  | P30 P31 P32 P33 |
 *                  +-----------------+
 *
 *         And the rows' factors, and queries and keys as sums of bfloat16 terms for the matrix units: of a
 *         bfloat16 value one term is the value, of float16 two are, of float32 three (24 bits).
 * Sums:   G is a sum of up to 64 gates, and differences of it go into exp(); float32 would lose the bits
 *         of a small difference of large sums, so G is a pair of floats. Every exponent is <= 0. */
#include "backend/cuda/kernels/delta.cuh"
#include "backend/cuda/kernels/mma.cuh"

enum {
    STRIPS = DELTA_CHUNK / 16, /* of 16 rows, a warp has one and half its columns */
    TILES = DELTA_CHUNK / 8 * STRIPS / (DELTA_THREADS / WARP), /* of 8 columns that a warp has */
    PLANE = DELTA_CHUNK * DELTA_PLANE,
    BLOCK = 16,
    N_BLOCKS = DELTA_CHUNK / BLOCK
};

struct prepare_shared {
    float high[DELTA_CHUNK], low[DELTA_CHUNK]; /* G */
    float beta[DELTA_CHUNK];
    float inverse_k[DELTA_CHUNK], inverse_q[DELTA_CHUNK]; /* with 1 / sqrt(dk) */
};

/* The first row >= row and < end where a chunk of a long span starts; end if there is none. n: its rows. */
DEVICE int chunk_find(const struct delta_args &a, int row, int end, int *n)
{
    while (row < end) {
        struct step_span span = a.view.spans[a.view.row_span[row]];
        int span_end = span.row + span.n_rows;
        int ahead = (span.row - row) % DELTA_CHUNK; /* <= 0 */

        if (ahead < 0) {
            ahead += DELTA_CHUNK;
        }
        if (span.n_rows >= a.chunk_min && row + ahead < span_end) {
            row += ahead;
            *n = min(DELTA_CHUNK, span_end - row);
            return min(row, end);
        }
        row = span_end;
    }
    return end;
}

/* Rows of queries and keys as terms, to shared memory (zeros after the n-th row) and to the scratch; and
 * their norms. A warp has a row at a time. */
template <int TERMS>
DEVICE void prepare_load(const struct delta_args &a, int row0, int n, int key_head,
                         uint16_t *planes, struct prepare_shared *s)
{
    size_t cols = (size_t)(2 * a.nk + a.nv) * DELTA_DIM;
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;

    for (int i = warp; i < 2 * DELTA_CHUNK; i += DELTA_THREADS / WARP) {
        int row = i % DELTA_CHUNK, part = i / DELTA_CHUNK;
        size_t at = (((size_t)(row0 + row) * 2 + part) * a.nk + key_head) * TERMS;
        float v[4] = {0, 0, 0, 0}, inverse;

        if (row < n) {
            load4(v, a.qkv + (row0 + row) * cols + (part * a.nk + key_head) * DELTA_DIM + 4 * lane);
        }
        inverse = v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3];
        inverse = rsqrt_f32(warp_sum(inverse) + DELTA_L2_EPS);
        if (lane == 0 && part == 0) {
            s->inverse_q[row] = inverse * rsqrt_f32(DELTA_DIM);
        } else if (lane == 0) {
            s->inverse_k[row] = inverse;
        }
        UNROLL
        for (int term = 0; term < TERMS; term++) {
            uint32_t w0 = bf16_pair_from_f32(v[0], v[1]), w1 = bf16_pair_from_f32(v[2], v[3]);

            *(uint2 *)(planes + (part * TERMS + term) * PLANE + row * DELTA_PLANE + 4 * lane) =
                make_uint2(w0, w1);
            if (row < n) {
                *(uint2 *)(a.planes + (at + term) * DELTA_DIM + 4 * lane) = make_uint2(w0, w1);
            }
            v[0] -= f32_from_bits(w0 << 16);
            v[1] -= f32_from_bits(w0 & 0xffff0000u);
            v[2] -= f32_from_bits(w1 << 16);
            v[3] -= f32_from_bits(w1 & 0xffff0000u);
        }
    }
}

/* A warp's share of the products: rows from i0, columns from j0, in the matrix instruction's layout. */
struct strip {
    int i0, j0;
    float kk[TILES][4], qk[TILES][4];
};

/* Tiles above the diagonal are left at zero. */
template <int TERMS> DEVICE void prepare_products(struct strip *t, const uint16_t *planes)
{
    int lane = (int)threadIdx.x % WARP;
    const uint16_t *keys = planes + TERMS * PLANE;
    int left = (t->i0 + lane % 16) * DELTA_PLANE + lane / 16 * 8;
    int right = (t->j0 + lane / 16 * 8 + lane % 8) * DELTA_PLANE + lane / 8 % 2 * 8;

    UNROLL
    for (int i = 0; i < TILES * 4; i++) {
        t->kk[i / 4][i % 4] = t->qk[i / 4][i % 4] = 0;
    }
    if (t->j0 > t->i0 + 15) {
        return;
    }
    UNROLL
    for (int d = 0; d < DELTA_DIM; d += 16) {
        uint32_t k[TERMS][4], q[TERMS][4];

        UNROLL
        for (int n = 0; n < TERMS; n++) {
            load_matrix4(k[n], keys + n * PLANE + left + d);
            load_matrix4(q[n], planes + n * PLANE + left + d);
        }
        UNROLL
        for (int tile = 0; tile < TILES; tile += 2) {
            if (t->j0 + 8 * tile <= t->i0 + 15) {
                UNROLL
                for (int x = 0; x < TERMS; x++) {
                    uint32_t b[4];

                    load_matrix4(b, keys + x * PLANE + right + tile * 8 * DELTA_PLANE + d);
                    UNROLL
                    for (int n = 0; n < TERMS && n + x < DELTA_TERMS_MAX; n++) {
                        mma_bf16(t->kk[tile], k[n], b);
                        mma_bf16(t->qk[tile], q[n], b);
                        mma_bf16(t->kk[tile + 1], k[n], b + 2);
                        mma_bf16(t->qk[tile + 1], q[n], b + 2);
                    }
                }
            }
        }
    }
}

/* (high, low) += (h, l): the sum of two pairs, |high| taking what fits. */
DEVICE void pair_add(float *high, float *low, float h, float l)
{
    float sum = *high + h, back = sum - *high;
    float error = (*high - (sum - back)) + (h - back) + (*low + l);

    *high = sum + error;
    *low = error - (*high - sum);
}

/* Gates of value head h and their running sums: warp 0, two rows a lane. */
DEVICE void prepare_gates(const struct delta_args &a, int row0, int n, int h,
                          struct prepare_shared *s)
{
    int lane = (int)threadIdx.x, row = 2 * lane;
    float beta[2] = {0, 0}, g[2] = {0, 0}, high, low = 0;

    if (lane >= WARP) {
        return;
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        if (row + i < n) {
            delta_gates(a, row0 + row + i, h, &beta[i], &g[i]);
        }
        s->beta[row + i] = beta[i];
    }
    high = g[0];
    pair_add(&high, &low, g[1], 0);
    UNROLL
    for (int delta = 1; delta < WARP; delta *= 2) {
        float h0 = shuffle_up(high, delta), l0 = shuffle_up(low, delta);

        if (lane >= delta) {
            pair_add(&high, &low, h0, l0);
        }
    }
    s->high[row + 1] = high;
    s->low[row + 1] = low;
    high = shuffle_up(high, 1);
    low = shuffle_up(low, 1);
    if (lane == 0) {
        high = low = 0;
    }
    pair_add(&high, &low, g[0], 0);
    s->high[row] = high;
    s->low[row] = low;
}

/* exp(G_i - G_j), j <= i. */
DEVICE float chunk_fade(const struct prepare_shared *s, int i, int j)
{
    float sum = (s->high[i] - s->high[j]) + (s->low[i] - s->low[j]);

    return exp_f32(sum > 0 ? 0.0f : sum); /* NaN stays NaN */
}

/* P and M from the products to their triangles. */
DEVICE void prepare_triangles(float *square, const struct strip *t, const struct prepare_shared *s)
{
    int lane = (int)threadIdx.x % WARP;

    UNROLL
    for (int e = 0; e < TILES * 4; e++) {
        int i = t->i0 + lane / 4 + e % 4 / 2 * 8, j = t->j0 + e / 4 * 8 + lane % 4 * 2 + e % 2;

        if (j <= i) {
            float fade = chunk_fade(s, i, j) * s->inverse_k[j];

            square[i * DELTA_SQUARE + j] = s->inverse_q[i] * fade * t->qk[e / 4][e % 4];
            if (j < i) {
                square[j * DELTA_SQUARE + i] =
                    s->beta[i] * s->inverse_k[i] * fade * t->kk[e / 4][e % 4];
            }
        }
    }
}

/* M becomes T, in place, in blocks of 16 x 16. Those on the diagonal first: a thread solves one column.
 * Then row by row of blocks, T_ij = -T_ii (sum_{j<=k<i} M_ik T_kj). Element (i, j) lies at [j][i]. */
DEVICE void prepare_invert(float *square)
{
    int e = (int)threadIdx.x, a = e % BLOCK, c = e / BLOCK;

    if (e < DELTA_CHUNK) {
        float *m =
            square + (c * BLOCK) * (DELTA_SQUARE + 1); /* block c's; this thread's column is a */
        float x[BLOCK];

        UNROLL
        for (int i = 0; i < BLOCK; i++) {
            float sum = 0;

            UNROLL
            for (int k = 0; k < i; k++) {
                sum += m[k * DELTA_SQUARE + i] * x[k];
            }
            x[i] = i == a ? 1.0f : i < a ? 0.0f : -sum;
        }
        warp_sync(); /* a warp has two whole blocks */
        UNROLL
        for (int i = 1; i < BLOCK; i++) {
            if (i > a) {
                m[a * DELTA_SQUARE + i] = x[i];
            }
        }
    }
    block_sync();
    for (int i = 1; i < N_BLOCKS; i++) {
        float *m = square + i * BLOCK; /* m[k * DELTA_SQUARE + a] is element (16 i + a, k) */
        float x[N_BLOCKS - 1];

        UNROLL
        for (int j = 0; j < N_BLOCKS - 1; j++) {
            int column = j * BLOCK + c;

            if (j < i) {
                x[j] = m[column * DELTA_SQUARE + a]; /* times the 1 on T's diagonal */
                for (int k = j * BLOCK + 1; k < i * BLOCK; k++) {
                    if (k > column) {
                        x[j] += m[k * DELTA_SQUARE + a] * square[column * DELTA_SQUARE + k];
                    }
                }
            }
        }
        block_sync();
        UNROLL
        for (int j = 0; j < N_BLOCKS - 1; j++) {
            if (j < i) {
                m[(j * BLOCK + c) * DELTA_SQUARE + a] = x[j];
            }
        }
        block_sync();
        UNROLL
        for (int j = 0; j < N_BLOCKS - 1; j++) {
            if (j < i) {
                for (int k = 0; k < BLOCK - 1; k++) {
                    if (k < a) {
                        x[j] += m[(i * BLOCK + k) * DELTA_SQUARE + a] *
                                m[(j * BLOCK + c) * DELTA_SQUARE + k];
                    }
                }
            }
        }
        block_sync();
        UNROLL
        for (int j = 0; j < N_BLOCKS - 1; j++) {
            if (j < i) {
                m[(j * BLOCK + c) * DELTA_SQUARE + a] = -x[j];
            }
        }
        block_sync();
    }
}

/* Factors and square of a value head to the scratch. */
DEVICE void prepare_store(const struct delta_args &a, int row0, int n, int h, const float *square,
                          const struct prepare_shared *s)
{
    enum { QUADS = DELTA_CHUNK / 4 };
    int row = (int)threadIdx.x;

    for (int e = (int)threadIdx.x; e < n * QUADS; e += DELTA_THREADS) {
        float v[4];

        load4(v, square + e / QUADS * DELTA_SQUARE + e % QUADS * 4);
        store4(a.square + ((size_t)(row0 + e / QUADS) * a.nv + h) * DELTA_CHUNK + e % QUADS * 4, v);
    }
    if (row < n) {
        size_t at = (size_t)(row0 + row) * a.nv + h;
        float fade = exp_f32(s->high[row] + s->low[row]), v[DELTA_FACTORS];

        v[DELTA_BETA] = s->beta[row];
        v[DELTA_READ] = s->beta[row] * fade * s->inverse_k[row];
        v[DELTA_ASK] = fade * s->inverse_q[row];
        v[DELTA_LAST] = chunk_fade(s, n - 1, row) * s->inverse_k[row];
        store4(a.factors + at * DELTA_FACTORS, v);
        a.fade[at] = fade;
    }
}

template <int TERMS> DEVICE void prepare(const struct delta_args &a)
{
    DYNAMIC_SHARED(uint16_t, planes); /* queries, keys [terms][64][DELTA_PLANE], then the square */
    SHARED struct prepare_shared s;
    float *square = (float *)(planes + 2 * TERMS * PLANE);
    int warp = (int)threadIdx.x / WARP, key_head = (int)blockIdx.x, ratio = a.nv / a.nk, n = 0;
    int row0 = (int)blockIdx.y * DELTA_CHUNK, end;
    struct strip t;

    t.i0 = warp % STRIPS * 16;
    t.j0 = warp / STRIPS * TILES * 8;
    depend_launch();
    depend_wait();
    end = min(row0 + DELTA_CHUNK, a.view.counts[STEP_ROWS]);
    /* The chunks that start in these 64 rows: one, unless several short spans meet here. */
    while ((row0 = chunk_find(a, row0, end, &n)) < end) {
        prepare_load<TERMS>(a, row0, n, key_head, planes, &s);
        block_sync();
        prepare_products<TERMS>(&t, planes);
        for (int h = key_head * ratio; h < (key_head + 1) * ratio; h++) {
            prepare_gates(a, row0, n, h, &s);
            block_sync();
            prepare_triangles(square, &t, &s);
            block_sync();
            prepare_invert(square);
            prepare_store(a, row0, n, h, square, &s);
            block_sync();
        }
        row0 += n;
    }
}

KERNEL(delta_prepare_1, delta_args, DELTA_THREADS, 2)
{
    prepare<1>(a);
}

KERNEL(delta_prepare_2, delta_args, DELTA_THREADS, 2)
{
    prepare<2>(a);
}

KERNEL(delta_prepare_3, delta_args, DELTA_THREADS, 2)
{
    prepare<3>(a);
}
