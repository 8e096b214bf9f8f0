/* route.cu - the router: logits of all experts, softmax over them, the top k.
 *
 * Place:  backend/cuda/kernels; launched by cuda_route.c.
 * Sums:   all in float32 multiply-adds. A choice between two close experts hangs on the last digits, so
 *         matrix instructions, which round in their own ways, are not used, though half types would fit.
 * Few:    a warp reads one expert's row once and multiplies it with one row or four; the last block to
 *         finish a group of rows (it draws the last ticket) chooses for them. One launch instead of two;
 *         the weights are on their way before the input is ready.
 * Many:   a tiled product, 8 x 8 outputs a thread; slices of the inputs go to different blocks, to keep a
 *         card busy whose number of tiles is small, and are added in their order by route_select.
 * Choice: a warp per row keeps the probabilities in registers as integers of the same order and takes
 *         the largest k times. */
#include "backend/cuda/kernels/quad.cuh"
#include "backend/cuda/kernels/route_choose.cuh"

/* Value k of row n in the stored order: it multiplies input perm[k]. Any kind of matrix. */
DEVICE float weight_value(const struct route_args *a, int n, int k)
{
    size_t at = (size_t)n * a->n_in + k;
    int n_groups, zero, q;

    if (a->bits == 0) {
        return load_f32(a->dtype, a->data, at);
    }
    if (a->bits == 4) { /* blocks of 32 inputs: 16 low nibbles, then 16 high ones */
        int byte = ((const uint8_t *)a->data)[(at / 32) * 16 + at % 16];

        q = at % 32 < 16 ? byte & 15 : byte >> 4;
    } else {
        q = ((const uint8_t *)a->data)[at];
    }
    n_groups = (a->n_in + a->group - 1) / a->group;
    at = (size_t)n * n_groups + k / a->group;
    zero = a->zeros ? a->zeros[at] : 1 << (a->bits - 1);
    return load_f32(a->dtype, a->scales, at) * (float)(q - zero);
}

/* Values in 16 bytes of a row. */
#define PIECE_VALUES(M) ((M) == MATRIX_F32 ? 4 : 8)

template <enum route_matrix M> DEVICE void unpack(float v[PIECE_VALUES(M)], uint4 piece)
{
    uint32_t word[4] = {piece.x, piece.y, piece.z, piece.w};

    UNROLL
    for (int i = 0; i < 4; i++) {
        if constexpr (M == MATRIX_BF16) {
            v[2 * i] = f32_from_bits(word[i] << 16);
            v[2 * i + 1] = f32_from_bits(word[i] & 0xffff0000u);
        } else if constexpr (M == MATRIX_F16) {
            v[2 * i] = f16_to_f32((uint16_t)word[i]);
            v[2 * i + 1] = f16_to_f32((uint16_t)(word[i] >> 16));
        } else {
            v[i] = f32_from_bits(word[i]);
        }
    }
}

/* Piece that begins with input k of the row that starts at data + row_at values. */
template <enum route_matrix M> DEVICE uint4 load_piece(const void *data, size_t row_at, int k)
{
    return load16((const uint8_t *)data + (row_at + k) * (16 / PIECE_VALUES(M)));
}

/* --- choosing --- */

KERNEL(route_select, route_args, ROUTE_THREADS, 4)
{
    int i = (int)blockIdx.x * ROUTE_SELECT_ROWS + (int)threadIdx.x / WARP;

    depend_launch();
    depend_wait();
    if (i < a.view.counts[a.count]) {
        select_row(&a, i, a.n_slices);
    }
}

/* --- few rows --- */

enum { FEW_HELD = 8, FEW_SUMS = 4 };

/* acc[r][] += this lane's part of the products of a piece of weights with the inputs of ROWS rows. */
template <enum route_matrix M, int ROWS>
DEVICE void few_piece(float acc[ROWS][FEW_SUMS], uint4 piece, const float *const in[ROWS], int k)
{
    enum { N = PIECE_VALUES(M) };
    float w[N];

    unpack<M>(w, piece);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int i = 0; i < N; i += FEW_SUMS) {
            float x[FEW_SUMS];

            load_quad(x, in[r] + k + i, 0, FEW_SUMS, true);
            UNROLL
            for (int j = 0; j < FEW_SUMS; j++) {
                acc[r][j] += w[i + j] * x[j];
            }
        }
    }
}

/* Dense rows at 16-byte borders. Contains the wait: what comes before it reads weights only. */
template <enum route_matrix M, int ROWS>
DEVICE void few_products(float acc[ROWS][FEW_SUMS], const struct route_args *a, int expert,
                         const float *const in[ROWS])
{
    enum { N = PIECE_VALUES(M), STEP = WARP * N };
    size_t row_at = (size_t)expert * a->n_in;
    int first = (int)threadIdx.x % WARP * N;
    uint4 piece[FEW_HELD];

    for (int k = first; k == first || k < a->n_in; k += FEW_HELD * STEP) {
        UNROLL
        for (int j = 0; j < FEW_HELD; j++) {
            if (k + j * STEP < a->n_in) {
                piece[j] = load_piece<M>(a->data, row_at, k + j * STEP);
            }
        }
        if (k == first) {
            depend_wait();
        }
        UNROLL
        for (int j = 0; j < FEW_HELD; j++) {
            if (k + j * STEP < a->n_in) {
                few_piece<M, ROWS>(acc, piece[j], in, k + j * STEP);
            }
        }
    }
}

/* The same for every kind of matrix, value by value. */
template <int ROWS>
DEVICE void few_products_any(float acc[ROWS][FEW_SUMS], const struct route_args *a, int expert,
                             const float *const in[ROWS])
{
    depend_wait();
    for (int k = (int)threadIdx.x % WARP; k < a->n_in; k += WARP) {
        float w = weight_value(a, expert, k);
        int from = a->perm ? a->perm[k] : k;

        UNROLL
        for (int r = 0; r < ROWS; r++) {
            acc[r][0] += w * in[r][from];
        }
    }
}

/* is_last: a word of shared memory. */
template <enum route_matrix M, int ROWS>
DEVICE void few_rows(const struct route_args *a, int *is_last)
{
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int first = (int)blockIdx.y * ROWS, n_rows = a->view.counts[a->count];
    int expert = (int)blockIdx.x * ROUTE_FEW_EXPERTS + warp;
    bool exists = expert < a->n_experts;
    float acc[ROWS][FEW_SUMS];
    const float *in[ROWS];

    if (first >= n_rows) {
        depend_wait();
        return;
    }
    UNROLL
    for (int r = 0; r < ROWS; r++) { /* what has no row or expert of its own computes another's */
        in[r] = a->in + (size_t)(first + r < n_rows ? first + r : n_rows - 1) * a->n_in;
        acc[r][0] = acc[r][1] = acc[r][2] = acc[r][3] = 0;
    }
    if constexpr (M == MATRIX_ANY) {
        few_products_any<ROWS>(acc, a, exists ? expert : 0, in);
    } else {
        few_products<M, ROWS>(acc, a, exists ? expert : 0, in);
    }
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        float sum = warp_sum(acc[r][0] + acc[r][1] + (acc[r][2] + acc[r][3]));

        if (exists && lane == r && first + r < n_rows) {
            a->logits[(size_t)(first + r) * a->n_experts + expert] = sum;
        }
    }
    block_sync();
    if (threadIdx.x ==
        0) { /* fences: this block's logits before its ticket, the others' after it */
        memory_fence();
        *is_last = atomic_is_last(&a->tickets[blockIdx.y], (int)gridDim.x);
        memory_fence();
    }
    block_sync();
    if (*is_last && warp < ROWS && first + warp < n_rows) {
        select_row(a, first + warp, 1);
    }
}

#define FEW_KERNEL(name, matrix, rows)                                                             \
    KERNEL(name, route_args, ROUTE_THREADS, 2)                                                     \
    {                                                                                              \
        SHARED int is_last;                                                                        \
                                                                                                   \
        depend_launch();                                                                           \
        few_rows<matrix, rows>(&a, &is_last);                                                      \
    }

FEW_KERNEL(route_one_bf16, MATRIX_BF16, 1)
FEW_KERNEL(route_one_f16, MATRIX_F16, 1)
FEW_KERNEL(route_one_f32, MATRIX_F32, 1)
FEW_KERNEL(route_four_bf16, MATRIX_BF16, ROUTE_FEW_ROWS)
FEW_KERNEL(route_four_f16, MATRIX_F16, ROUTE_FEW_ROWS)
FEW_KERNEL(route_four_f32, MATRIX_F32, ROUTE_FEW_ROWS)
FEW_KERNEL(route_four_any, MATRIX_ANY, ROUTE_FEW_ROWS)

/* --- many rows --- */

enum { TILE_K = 16, TILE_SIDE = 8, TILE_X = TILE_K * ROUTE_TILE_ROWS / ROUTE_THREADS };

/* Inputs k to k + 15 of a tile's rows and experts, k first, so that a thread's four neighbours are one
 * load. */
struct route_tile {
    float x[TILE_K][ROUTE_TILE_ROWS];
    float w[TILE_K][ROUTE_TILE_EXPERTS];
};

/* A thread's share of the next tile, on its way: the 16 inputs of one expert, 8 of one row. */
template <enum route_matrix M> struct tile_share {
    uint4 piece[TILE_K / PIECE_VALUES(M)]; /* MATRIX_ANY: not used, as it decodes in tile_store() */
    float x[TILE_X];
};

template <enum route_matrix M>
DEVICE void tile_load_weights(struct tile_share<M> *s, const struct route_args *a, int expert,
                              int k)
{
    enum { N = PIECE_VALUES(M) };

    if constexpr (M != MATRIX_ANY) {
        UNROLL
        for (int j = 0; j < TILE_K / N; j++) {
            s->piece[j] = make_uint4(0, 0, 0, 0);
            if (expert < a->n_experts && k + j * N < a->n_in) {
                s->piece[j] = load_piece<M>(a->data, (size_t)expert * a->n_in, k + j * N);
            }
        }
    }
}

template <enum route_matrix M>
DEVICE void tile_load_rows(struct tile_share<M> *s, const struct route_args *a, int row, int n_rows,
                           int k)
{
    const float *in = a->in + (size_t)row * a->n_in;

    UNROLL
    for (int j = 0; j < TILE_X; j++) {
        s->x[j] = 0;
    }
    if (row >= n_rows) {
        return;
    }
    if constexpr (M == MATRIX_ANY) {
        for (int j = 0; j < TILE_X; j++) {
            if (k + j < a->n_in) {
                s->x[j] = in[a->perm ? a->perm[k + j] : k + j];
            }
        }
    } else {
        UNROLL
        for (int j = 0; j < TILE_X; j += QUAD) {
            if (k + j < a->n_in) {
                load_quad(&s->x[j], in + k + j, 0, QUAD, true);
            }
        }
    }
}

template <enum route_matrix M>
DEVICE void tile_store(struct route_tile *t, const struct tile_share<M> *s,
                       const struct route_args *a, int expert, int k)
{
    enum { N = PIECE_VALUES(M) };
    int thread = (int)threadIdx.x;

    if constexpr (M == MATRIX_ANY) {
        for (int j = 0; j < TILE_K; j++) {
            t->w[j][thread] =
                expert < a->n_experts && k + j < a->n_in ? weight_value(a, expert, k + j) : 0.0f;
        }
    } else {
        UNROLL
        for (int j = 0; j < TILE_K / N; j++) {
            float w[N];

            unpack<M>(w, s->piece[j]);
            UNROLL
            for (int i = 0; i < N; i++) {
                t->w[j * N + i][thread] = w[i];
            }
        }
    }
    UNROLL
    for (int j = 0; j < TILE_X; j++) {
        t->x[thread / ROUTE_TILE_ROWS * TILE_X + j][thread % ROUTE_TILE_ROWS] = s->x[j];
    }
}

/* Warps cut the tile in 2 x 2, a warp's lanes its part in 4 (rows) x 8 (experts); a thread has two times
 * four neighbours both ways. */
DEVICE int tile_row(int i)
{
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;

    return warp / 2 * 32 + i / 4 * 16 + lane / 8 * 4 + i % 4;
}

DEVICE int tile_expert(int j)
{
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;

    return warp % 2 * 64 + j / 4 * 32 + lane % 8 * 4 + j % 4;
}

DEVICE void tile_multiply(float acc[TILE_SIDE][TILE_SIDE], const struct route_tile *t)
{
    UNROLL
    for (int k = 0; k < TILE_K; k++) {
        float x[TILE_SIDE], w[TILE_SIDE];

        UNROLL
        for (int i = 0; i < TILE_SIDE; i += QUAD) {
            load_quad(&x[i], &t->x[k][tile_row(i)], 0, QUAD, true);
            load_quad(&w[i], &t->w[k][tile_expert(i)], 0, QUAD, true);
        }
        UNROLL
        for (int i = 0; i < TILE_SIDE; i++) {
            UNROLL
            for (int j = 0; j < TILE_SIDE; j++) {
                acc[i][j] += x[i] * w[j];
            }
        }
    }
}

DEVICE void tile_write(const struct route_args *a, float acc[TILE_SIDE][TILE_SIDE], int row0,
                       int n_rows, int expert0)
{
    float *logits = a->logits + blockIdx.z * a->slice_stride;

    UNROLL
    for (int i = 0; i < TILE_SIDE; i++) {
        int row = row0 + tile_row(i);

        UNROLL
        for (int j = 0; j < TILE_SIDE; j += QUAD) {
            int quad = (expert0 + tile_expert(j)) / QUAD;

            if (row < n_rows && QUAD * quad < a->n_experts) {
                store_quad(logits + (size_t)row * a->n_experts, quad, a->n_experts,
                           a->n_experts % QUAD == 0, &acc[i][j]);
            }
        }
    }
}

/* tile: two of them, in shared memory; one is multiplied while the other is filled. */
template <enum route_matrix M>
DEVICE void tile_rows(const struct route_args *a, struct route_tile *tile)
{
    int thread = (int)threadIdx.x, n_rows, use = 0;
    int row0 = (int)blockIdx.x * ROUTE_TILE_ROWS, expert0 = (int)blockIdx.y * ROUTE_TILE_EXPERTS;
    int row = row0 + thread % ROUTE_TILE_ROWS, expert = expert0 + thread;
    int ahead = thread / ROUTE_TILE_ROWS * TILE_X; /* which half of the row's inputs it loads */
    int begin = (int)blockIdx.z * ROUTE_SLICE;
    int end = begin + ROUTE_SLICE < a->n_in ? begin + ROUTE_SLICE : a->n_in;
    struct tile_share<M> share;
    float acc[TILE_SIDE][TILE_SIDE] = {};

    tile_load_weights<M>(&share, a, expert, begin);
    depend_wait();
    n_rows = a->view.counts[a->count];
    if (row0 >= n_rows) {
        return;
    }
    tile_load_rows<M>(&share, a, row, n_rows, begin + ahead);
    tile_store<M>(&tile[0], &share, a, expert, begin);
    block_sync();
    for (int k = begin; k < end; k += TILE_K, use ^= 1) {
        if (k + TILE_K < end) {
            tile_load_weights<M>(&share, a, expert, k + TILE_K);
            tile_load_rows<M>(&share, a, row, n_rows, k + TILE_K + ahead);
        }
        tile_multiply(acc, &tile[use]);
        if (k + TILE_K < end) {
            tile_store<M>(&tile[use ^ 1], &share, a, expert, k + TILE_K);
        }
        block_sync();
    }
    tile_write(a, acc, row0, n_rows, expert0);
}

#define TILE_KERNEL(name, matrix)                                                                  \
    KERNEL(name, route_args, ROUTE_THREADS, 4)                                                     \
    {                                                                                              \
        SHARED struct route_tile tile[2];                                                          \
                                                                                                   \
        depend_launch();                                                                           \
        tile_rows<matrix>(&a, tile);                                                               \
    }

TILE_KERNEL(route_tile_bf16, MATRIX_BF16)
TILE_KERNEL(route_tile_f16, MATRIX_F16)
TILE_KERNEL(route_tile_f32, MATRIX_F32)
TILE_KERNEL(route_tile_any, MATRIX_ANY)
