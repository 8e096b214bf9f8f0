/* delta_scan.cu - the chunked gated delta rule, part two: the state goes through the chunks of a span.
 *
 * Place:  backend/cuda/kernels; launched by cuda_delta.c after delta_prepare.cu. A block is 32 columns of
 *         one value head's state, of one span; chunk by chunk
 *             B_i = beta_i (v_i - exp(G_i) S'k_i)      R = T B
 *             o_i = exp(G_i) S'q_i + sum_{j<=i} P_ij R_j
 *             S   = exp(G_n) S + sum_t exp(G_n - G_t) k_t R_t'
 *         The last kernel, delta_norm, needs all columns of a head: it norms the outputs in place.
 * Units:  everything is turned round, so that columns of the state are rows of the matrix instruction:
 *         a warp has 16 columns, and S' (16 x 128) stays in its registers for the whole span. The layout
 *         in which the instruction leaves a result is the one in which it takes a left operand, so S', B'
 *         and R' go from one product to the next without being shuffled. Right operands are keys, queries,
 *         T and P of the chunk, in shared memory.
 * Exact:  a float32 value is the sum of three bfloat16 terms of 8 bits; products of terms that reach above
 *         2^-24 of the result are done (six of nine; three where the other factor is a bfloat16 value).
 *         The state is not the accumulator of many products, whose rounding is towards zero: each chunk's
 *         share is summed from zero and added with an ordinary, rounded, addition.
 *         Where a value of a chunk is not finite, all its rows may come out so: zeros of a triangle multiply
 *         it. Rows of other sequences never do.
 * Roles:  warps 0 and 1 carry the state, which is the critical path; warps 2 and 3 make the outputs from
 *         what those leave in shared memory, S' and R' already cut into terms.
 *         In three steps: S'K', R = T B, the new state; and one step behind, S'Q' and the rest of the
 *         outputs. What shared memory holds of a chunk comes by itself as soon as its place is free; keys
 *         are needed at once, so they have two places where the card has room for them. */
#include "backend/cuda/kernels/delta.cuh"
#include "backend/cuda/kernels/mma.cuh"

enum {
    TERMS_F32 = 3,
    D_STEPS = DELTA_DIM / 16,   /* of 16 along keys */
    T_STEPS = DELTA_CHUNK / 16, /* along a chunk's rows */
    T_TILES = DELTA_CHUNK / 8,  /* tiles of 8 rows */
    D_TILES = DELTA_DIM / 8,
    D_GROUP = 4,     /* tiles of the state that are updated together */
    FRAGMENT = WARP, /* uint4 of one left operand */
    PLANE = DELTA_CHUNK * DELTA_PLANE
};

struct scan_shared {
    uint16_t *keys, *queries; /* [terms][64][DELTA_PLANE] */
    float *square;            /* [64][DELTA_SQUARE] */
    float *factors;           /* [64][DELTA_FACTORS] */
    float *values;            /* [64][DELTA_VALUES], this warp's columns */
    uint4 *state, *r;         /* fragments of this warp's columns: [step][term][lane] */
};

/* Where a thread stands: g and t as in mma.cuh. */
struct scan_place {
    int h, column; /* of the value head, the warp's first */
    int g, t, lane;
};

/* a and b, each as the sum of three bfloat16 terms, in pairs. */
DEVICE void cut(uint32_t term[TERMS_F32], float a, float b)
{
    UNROLL
    for (int i = 0; i < TERMS_F32; i++) {
        term[i] = bf16_pair_from_f32(a, b);
        a -= f32_from_bits(term[i] << 16);
        b -= f32_from_bits(term[i] & 0xffff0000u);
    }
}

/* Two neighbouring tiles of a result as the left operand of a step of 16, with factors f of the columns:
 * f[0], f[1] of the first tile's, f[2], f[3] of the second's. */
DEVICE void cut_tiles(uint32_t out[TERMS_F32][4], const float first[4], const float second[4],
                      const float f[4])
{
    uint32_t term[TERMS_F32];

    UNROLL
    for (int i = 0; i < 4; i++) {
        const float *tile = i < 2 ? first : second;

        cut(term, tile[i % 2 * 2] * f[i / 2 * 2], tile[i % 2 * 2 + 1] * f[i / 2 * 2 + 1]);
        UNROLL
        for (int n = 0; n < TERMS_F32; n++) {
            out[n][i] = term[n];
        }
    }
}

DEVICE void store_fragments(uint4 *to, const uint32_t a[TERMS_F32][4])
{
    UNROLL
    for (int n = 0; n < TERMS_F32; n++) {
        to[n * FRAGMENT] = make_uint4(a[n][0], a[n][1], a[n][2], a[n][3]);
    }
}

DEVICE void load_fragments(uint32_t a[TERMS_F32][4], const uint4 *from)
{
    UNROLL
    for (int n = 0; n < TERMS_F32; n++) {
        uint4 v = from[n * FRAGMENT];

        a[n][0] = v.x;
        a[n][1] = v.y;
        a[n][2] = v.z;
        a[n][3] = v.w;
    }
}

DEVICE void clear_tiles(float (*acc)[4], int n)
{
    UNROLL
    for (int i = 0; i < n; i++) {
        acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
    }
}

/* acc [16 columns][64 rows] += a X', for step 16 of the sum over d and keys or queries X. */
template <int TERMS>
DEVICE void state_step(float (*acc)[4], const uint32_t a[TERMS_F32][4], const uint16_t *planes,
                       int step, int lane)
{
    const uint16_t *from = planes + (lane / 16 * 8 + lane % 8) * DELTA_PLANE + lane / 8 % 2 * 8;

    UNROLL
    for (int x = 0; x < TERMS; x++) {
        uint32_t b[T_TILES][2];

        UNROLL
        for (int tile = 0; tile < T_TILES; tile += 2) {
            uint32_t r[4];

            load_matrix4(r, from + x * PLANE + tile * 8 * DELTA_PLANE + step * 16);
            b[tile][0] = r[0];
            b[tile][1] = r[1];
            b[tile + 1][0] = r[2];
            b[tile + 1][1] = r[3];
        }
        UNROLL
        for (int n = 0; n + x < TERMS_F32; n++) {
            UNROLL
            for (int tile = 0; tile < T_TILES; tile++) {
                mma_bf16(acc[tile], a[n], b[tile]);
            }
        }
    }
}

/* acc = S'K'; the state's terms are left in shared memory on the way. */
template <int TERMS>
DEVICE void read_state(float (*acc)[4], const float (*S)[4], const struct scan_shared *s, int lane)
{
    static const float one[4] = {1, 1, 1, 1};

    clear_tiles(acc, T_TILES);
    UNROLL
    for (int step = 0; step < D_STEPS; step++) {
        uint32_t a[TERMS_F32][4];

        cut_tiles(a, S[2 * step], S[2 * step + 1], one);
        store_fragments(s->state + step * TERMS_F32 * FRAGMENT + lane, a);
        state_step<TERMS>(acc, a, s->keys, step, lane);
    }
}

/* acc = S'Q' */
template <int TERMS> DEVICE void ask_state(float (*acc)[4], const struct scan_shared *s, int lane)
{
    clear_tiles(acc, T_TILES);
    UNROLL
    for (int step = 0; step < D_STEPS; step++) {
        uint32_t a[TERMS_F32][4];

        load_fragments(a, s->state + step * TERMS_F32 * FRAGMENT + lane);
        state_step<TERMS>(acc, a, s->queries, step, lane);
    }
}

/* Two tiles += a b, all of three terms. */
DEVICE void product_f32(float (*acc)[4], const uint32_t a[TERMS_F32][4],
                        const uint32_t b[2][TERMS_F32][2])
{
    UNROLL
    for (int x = 0; x < TERMS_F32; x++) {
        UNROLL
        for (int n = 0; n + x < TERMS_F32; n++) {
            mma_bf16(acc[0], a[n], b[0][x]);
            mma_bf16(acc[1], a[n], b[1][x]);
        }
    }
}

DEVICE void join(uint32_t b[TERMS_F32][2], int half, const uint32_t term[TERMS_F32])
{
    UNROLL
    for (int n = 0; n < TERMS_F32; n++) {
        b[n][half] = term[n];
    }
}

/* The right operand for rows 8 tile.. of T below its diagonal, and 16 columns of it from 16 step. */
DEVICE void t_fragment(uint32_t b[TERMS_F32][2], const float *square, int tile, int step,
                       const struct scan_place *p)
{
    int i = 8 * tile + p->g;

    UNROLL
    for (int half = 0; half < 2; half++) {
        int j = 16 * step + 8 * half + 2 * p->t;
        uint32_t term[TERMS_F32];

        cut(term, j < i ? square[j * DELTA_SQUARE + i] : 0.0f,
            j + 1 < i ? square[(j + 1) * DELTA_SQUARE + i] : 0.0f);
        join(b, half, term);
    }
}

/* The same of P, with its diagonal. */
DEVICE void p_fragment(uint32_t b[TERMS_F32][2], const float *square, int tile, int step,
                       const struct scan_place *p)
{
    int i = 8 * tile + p->g;

    UNROLL
    for (int half = 0; half < 2; half++) {
        int j = 16 * step + 8 * half + 2 * p->t;
        float2 v = *(const float2 *)(square + i * DELTA_SQUARE + j);
        uint32_t term[TERMS_F32];

        cut(term, j <= i ? v.x : 0.0f, j + 1 <= i ? v.y : 0.0f);
        join(b, half, term);
    }
}

/* A factor of each of the rows that the columns 2t, 2t+1 of two neighbouring tiles are. */
DEVICE void row_factors(float f[4], const float *factors, enum delta_factor which, int tile, int t)
{
    UNROLL
    for (int i = 0; i < 4; i++) {
        f[i] = factors[(8 * (tile + i / 2) + 2 * t + i % 2) * DELTA_FACTORS + which];
    }
}

/* R' = B' + (T - I) B', in place; its terms to shared memory. On entry acc is S'K'. */
DEVICE void solve(float (*acc)[4], const struct scan_shared *s, const struct scan_place *p)
{
    static const float one[4] = {1, 1, 1, 1};
    float B[T_TILES][4];

    UNROLL
    for (int tile = 0; tile < T_TILES; tile += 2) {
        float beta[4], read[4];

        row_factors(beta, s->factors, DELTA_BETA, tile, p->t);
        row_factors(read, s->factors, DELTA_READ, tile, p->t);
        UNROLL
        for (int i = 0; i < 8; i++) {
            int k = tile + i / 4, f = i / 4 * 2 + i % 2, row = 8 * k + 2 * p->t + i % 2;
            float v = s->values[row * DELTA_VALUES + i % 4 / 2 * 8 + p->g];

            B[k][i % 4] = acc[k][i % 4] = beta[f] * v - read[f] * acc[k][i % 4];
        }
    }
    UNROLL
    for (int step = 0; step < T_STEPS; step++) {
        uint32_t a[TERMS_F32][4];

        cut_tiles(a, B[2 * step], B[2 * step + 1], one);
        UNROLL
        for (int tile = 2 * step; tile < T_TILES; tile += 2) {
            uint32_t b[2][TERMS_F32][2];

            t_fragment(b[0], s->square, tile, step, p);
            t_fragment(b[1], s->square, tile + 1, step, p);
            product_f32(acc + tile, a, b);
        }
    }
    UNROLL
    for (int step = 0; step < T_STEPS; step++) {
        uint32_t a[TERMS_F32][4];

        cut_tiles(a, acc[2 * step], acc[2 * step + 1], one);
        store_fragments(s->r + step * TERMS_F32 * FRAGMENT + p->lane, a);
    }
}

/* S' = fade S' + (R' with the rows' factors) K */
template <int TERMS>
DEVICE void update(float (*S)[4], const float (*acc)[4], float fade, const struct scan_shared *s,
                   const struct scan_place *p)
{
    const uint16_t *from =
        s->keys + (p->lane / 8 % 2 * 8 + p->lane % 8) * DELTA_PLANE + p->lane / 16 * 8;
    uint32_t a[T_STEPS][TERMS_F32][4];

    UNROLL
    for (int step = 0; step < T_STEPS; step++) {
        float f[4];

        row_factors(f, s->factors, DELTA_LAST, 2 * step, p->t);
        cut_tiles(a[step], acc[2 * step], acc[2 * step + 1], f);
    }
    UNROLL
    for (int tile = 0; tile < D_TILES; tile += D_GROUP) {
        float sum[D_GROUP][4];

        clear_tiles(sum, D_GROUP);
        UNROLL
        for (int step = 0; step < T_STEPS; step++) {
            UNROLL
            for (int x = 0; x < TERMS; x++) {
                uint32_t b[D_GROUP][2];

                UNROLL
                for (int i = 0; i < D_GROUP; i += 2) {
                    uint32_t r[4];

                    load_matrix4_trans(r,
                                       from + x * PLANE + step * 16 * DELTA_PLANE + (tile + i) * 8);
                    b[i][0] = r[0];
                    b[i][1] = r[1];
                    b[i + 1][0] = r[2];
                    b[i + 1][1] = r[3];
                }
                UNROLL
                for (int n = 0; n + x < TERMS_F32; n++) {
                    UNROLL
                    for (int i = 0; i < D_GROUP; i++) {
                        mma_bf16(sum[i], a[step][n], b[i]);
                    }
                }
            }
        }
        UNROLL
        for (int i = 0; i < D_GROUP * 4; i++) {
            float *at = &S[tile + i / 4][i % 4];

            *at = fade * *at + sum[i / 4][i % 4];
        }
    }
}

/* acc = o', from S'Q'. */
DEVICE void attend(float (*acc)[4], const struct scan_shared *s, const struct scan_place *p)
{
    UNROLL
    for (int tile = 0; tile < T_TILES; tile += 2) {
        float ask[4];

        row_factors(ask, s->factors, DELTA_ASK, tile, p->t);
        UNROLL
        for (int i = 0; i < 8; i++) {
            acc[tile + i / 4][i % 4] *= ask[i / 4 * 2 + i % 2];
        }
    }
    UNROLL
    for (int step = 0; step < T_STEPS; step++) {
        uint32_t a[TERMS_F32][4];

        load_fragments(a, s->r + step * TERMS_F32 * FRAGMENT + p->lane);
        UNROLL
        for (int tile = 2 * step; tile < T_TILES; tile += 2) {
            uint32_t b[2][TERMS_F32][2];

            p_fragment(b[0], s->square, tile, step, p);
            p_fragment(b[1], s->square, tile + 1, step, p);
            product_f32(acc + tile, a, b);
        }
    }
}

/* Outputs before the norm. */
DEVICE void store_raw(const float (*acc)[4], const struct delta_args &a, int row0, int n,
                      const struct scan_place *p)
{
    size_t cols = (size_t)a.nv * DELTA_DIM;
    float *to = a.out + row0 * cols + p->h * DELTA_DIM + p->column + p->g;

    UNROLL
    for (int tile = 0; tile < T_TILES; tile++) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            int row = 8 * tile + 2 * p->t + i % 2;

            if (row < n) {
                to[row * cols + i / 2 * 8] = acc[tile][i];
            }
        }
    }
}

/* ---- copies into shared memory, zeros after the n-th row; all threads call ---- */

/* part: 0 queries, 1 keys */
template <int TERMS>
DEVICE void copy_planes(uint16_t *to, const struct delta_args &a, int part, int row0, int n, int h)
{
    enum { PIECES = DELTA_DIM / 8 };
    int key_head = h / (a.nv / a.nk);

    for (int e = (int)threadIdx.x; e < TERMS * DELTA_CHUNK * PIECES; e += DELTA_SCAN_THREADS) {
        int c = e % PIECES * 8, row = e / PIECES % DELTA_CHUNK, term = e / PIECES / DELTA_CHUNK;
        bool is_there = row < n;
        size_t at = (((size_t)(row0 + (is_there ? row : 0)) * 2 + part) * a.nk + key_head) * TERMS;

        copy16_async(to + term * PLANE + row * DELTA_PLANE + c,
                     a.planes + (at + term) * DELTA_DIM + c, is_there);
    }
}

DEVICE void copy_values(float *to, const struct delta_args &a, int row0, int n, int column)
{
    enum { PIECES = DELTA_SLICE / 4 };
    size_t cols = (size_t)(2 * a.nk + a.nv) * DELTA_DIM;

    for (int e = (int)threadIdx.x; e < DELTA_CHUNK * PIECES; e += DELTA_SCAN_THREADS) {
        int c = e % PIECES * 4, row = e / PIECES;

        copy16_async(to + row * DELTA_VALUES + c,
                     a.qkv + (row0 + (row < n ? row : 0)) * cols + column + c, row < n);
    }
}

DEVICE void copy_square(const struct scan_shared *s, const struct delta_args &a, int row0, int n,
                        int h)
{
    enum { PIECES = DELTA_CHUNK / 4 };

    for (int e = (int)threadIdx.x; e < DELTA_CHUNK * PIECES; e += DELTA_SCAN_THREADS) {
        int c = e % PIECES * 4, row = e / PIECES;
        size_t at = (size_t)(row0 + (row < n ? row : 0)) * a.nv + h;

        copy16_async(s->square + row * DELTA_SQUARE + c, a.square + at * DELTA_CHUNK + c, row < n);
        if (c == 0) {
            copy16_async(s->factors + row * DELTA_FACTORS, a.factors + at * DELTA_FACTORS, row < n);
        }
    }
}

/* ---- the state, [128][128] of the pool and S' of the warp's columns ---- */

/* Where value i of a thread lies, from its first. */
DEVICE int state_offset(int i)
{
    return (i / 4 * 8 + i % 2) * DELTA_DIM + i % 4 / 2 * 8;
}

DEVICE void load_state(float (*S)[4], const struct delta_args &a, size_t at,
                       const struct scan_place *p)
{
    bool is_f32 = a.state_dtype == DTYPE_F32;

    at += (size_t)(2 * p->t * DELTA_DIM + p->column + p->g);
    if (is_f32) { /* one question and not one for each value, so that all loads are on their way */
        UNROLL
        for (int i = 0; i < D_TILES * 4; i++) {
            S[i / 4][i % 4] = ((const float *)a.state)[at + state_offset(i)];
        }
    } else {
        UNROLL
        for (int i = 0; i < D_TILES * 4; i++) {
            S[i / 4][i % 4] = bf16_to_f32(((const uint16_t *)a.state)[at + state_offset(i)]);
        }
    }
}

DEVICE void store_state(const float (*S)[4], const struct delta_args &a, size_t at,
                        const struct scan_place *p)
{
    bool is_f32 = a.state_dtype == DTYPE_F32;

    at += (size_t)(2 * p->t * DELTA_DIM + p->column + p->g);
    UNROLL
    for (int i = 0; i < D_TILES * 4; i++) {
        if (is_f32) {
            ((float *)a.state)[at + state_offset(i)] = S[i / 4][i % 4];
        } else {
            ((uint16_t *)a.state)[at + state_offset(i)] = bf16_from_f32(S[i / 4][i % 4]);
        }
    }
}

template <int TERMS> DEVICE void scan(const struct delta_args &a)
{
    DYNAMIC_SHARED(uint16_t, planes);
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    bool has_state = warp < 2;
    struct scan_place p = {(int)blockIdx.x / (DELTA_DIM / DELTA_SLICE),
                           (int)blockIdx.x % (DELTA_DIM / DELTA_SLICE) * DELTA_SLICE +
                               warp % 2 * 16,
                           lane / 4, lane % 4, lane};
    struct step_span span = {0, 0, 0, 0, 0, 0};
    struct scan_shared s;
    uint16_t *keys = planes + TERMS * PLANE;
    uint4 *fragments = (uint4 *)(keys + a.key_buffers * TERMS * PLANE);
    int value_column = (2 * a.nk + p.h) * DELTA_DIM + p.column - warp % 2 * 16;
    float *values;
    size_t state_at;
    float S[D_TILES][4], acc[T_TILES][4];

    s.queries = planes;
    s.keys = keys;
    s.state = fragments + warp % 2 * D_STEPS * TERMS_F32 * FRAGMENT;
    s.r = fragments + (2 * D_STEPS + warp % 2 * T_STEPS) * TERMS_F32 * FRAGMENT;
    s.square = (float *)(fragments + 2 * (D_STEPS + T_STEPS) * TERMS_F32 * FRAGMENT);
    s.factors = s.square + DELTA_CHUNK * DELTA_SQUARE;
    values = s.factors + DELTA_CHUNK * DELTA_FACTORS;
    s.values = values + warp % 2 * 16;

    depend_launch();
    depend_wait();
    if ((int)blockIdx.y < a.view.counts[STEP_SPANS]) {
        span = a.view.spans[blockIdx.y];
    }
    if (span.n_rows == 0 || span.n_rows < a.chunk_min) {
        return;
    }
    state_at = ((size_t)span.slot * a.nv + p.h) * (DELTA_DIM * DELTA_DIM);
    copy_planes<TERMS>(s.queries, a, 0, span.row, min(DELTA_CHUNK, span.n_rows), p.h);
    copy_planes<TERMS>(s.keys, a, 1, span.row, min(DELTA_CHUNK, span.n_rows), p.h);
    copy_values(values, a, span.row, min(DELTA_CHUNK, span.n_rows), value_column);
    copy_commit();
    clear_tiles(S, D_TILES);
    if (has_state && !span.state_is_zero) {
        load_state(S, a, state_at, &p);
    }
    copy_wait<0>();
    block_sync();
    for (int at = 0; at < span.n_rows; at += DELTA_CHUNK) {
        int row0 = span.row + at, n = min(DELTA_CHUNK, span.n_rows - at);
        int next = row0 + DELTA_CHUNK, n_next = min(DELTA_CHUNK, span.n_rows - at - DELTA_CHUNK);
        float fade = 0;

        if (a.key_buffers == 1 && at > 0) {
            copy_planes<TERMS>(s.keys, a, 1, row0, n, p.h);
        }
        copy_commit();
        copy_square(&s, a, row0, n, p.h);
        copy_commit();
        if (a.key_buffers == 1) {
            copy_wait<1>(); /* all but the square */
            block_sync();
        } else {
            s.keys = keys + at / DELTA_CHUNK % 2 * TERMS * PLANE;
            if (n_next > 0) {
                copy_planes<TERMS>(keys + (at / DELTA_CHUNK + 1) % 2 * TERMS * PLANE, a, 1, next,
                                   n_next, p.h);
            }
        }
        copy_commit();
        if (has_state) {
            fade = a.fade[(size_t)(row0 + n - 1) * a.nv + p.h];
            read_state<TERMS>(acc, S, &s, lane);
        }
        copy_wait<1>(); /* all but the next keys */
        block_sync();   /* the state's terms, queries, square and factors are there */
        if (has_state) {
            solve(acc, &s, &p);
        } else {
            ask_state<TERMS>(acc, &s, lane);
        }
        copy_wait<0>();
        block_sync(); /* R and the next keys are there, queries and values are done with */
        if (n_next > 0) {
            copy_planes<TERMS>(s.queries, a, 0, next, n_next, p.h);
            copy_values(values, a, next, n_next, value_column);
        }
        copy_commit();
        if (has_state) {
            update<TERMS>(S, acc, fade, &s, &p);
        } else {
            attend(acc, &s, &p);
            store_raw(acc, a, row0, n, &p);
        }
        block_sync(); /* the rest may be written again */
    }
    if (has_state) {
        store_state(S, a, state_at, &p);
    }
}

KERNEL(delta_scan_1, delta_args, DELTA_SCAN_THREADS, 1)
{
    scan<1>(a);
}

KERNEL(delta_scan_2, delta_args, DELTA_SCAN_THREADS, 1)
{
    scan<2>(a);
}

KERNEL(delta_scan_3, delta_args, DELTA_SCAN_THREADS, 1)
{
    scan<3>(a);
}

/* The gated norm of the rows of long spans, in place; a warp has one head of a row. */
KERNEL(delta_norm, delta_args, DELTA_THREADS, 1)
{
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int h = (int)blockIdx.y * DELTA_NORM_HEADS + warp, row = (int)blockIdx.x;
    float o[4], z[4];
    size_t at;

    depend_launch();
    depend_wait();
    if (row >= a.view.counts[STEP_ROWS] || h >= a.nv ||
        a.view.spans[a.view.row_span[row]].n_rows < a.chunk_min) {
        return;
    }
    at = ((size_t)row * a.nv + h) * DELTA_DIM + 4 * lane;
    load4(o, a.out + at);
    load4(z, a.z + at);
    delta_output4(a, row, h, o, z);
}
