/* moe_in.cu - a layer's second norm, the router's logits, and the shared expert up to its product of gate and up.
 *
 * Place: backend/cuda/kernels; launched by cuda_fuse_moe.c for decode steps of up to MOE_ROWS_MAX rows.
 * Idea:  a warp has one row of a matrix, and all of it is on its way before the residual is ready: the whole
 *        launch is then as long as it takes to norm a row, which every block does for itself, and to multiply
 *        what has arrived. The shared expert's blocks run beside the router's.
 * Ahead: where experts overflow, further blocks have the next layer's router (offload_ahead.cu).
 * Sums:  in float32 multiply-adds, as in route.cu. Normed rows are kept in the 16 bits that they are
 *        rounded to. */
#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/moe_weights.cuh"
#include "backend/cuda/kernels/quad.cuh"

enum { PIECES = 8 }; /* that a lane has on their way */

/* What a warp works on: a row of a matrix. */
struct moe_row {
    const struct moe_matrix *m;
    int row;
    bool exists; /* else it computes row 0, for nobody */
};

DEVICE struct moe_row row_of_warp(const struct moe_in_args *a)
{
    int warp = (int)threadIdx.x / WARP, block = (int)blockIdx.x;
    struct moe_row r;

    if (block < a->route_blocks) {
        r.m = &a->router;
        r.row = block * MOE_WARPS + warp;
        r.exists = r.row < a->route.n_experts;
    } else if (block < a->route_blocks + a->mid_blocks) {
        r.m = warp < MOE_MID_COLS ? &a->gate : &a->up;
        r.row = (block - a->route_blocks) * MOE_MID_COLS + warp % MOE_MID_COLS;
        r.exists = r.row < a->width;
    } else if (block < a->route_blocks + a->mid_blocks + a->share_blocks) {
        r.m = &a->share;
        r.row = 0;
        r.exists = warp == 0;
    } else {
        r.m = &a->next;
        r.row = (block - a->route_blocks - a->mid_blocks - a->share_blocks) * MOE_WARPS + warp;
        r.exists = r.row < a->route.n_experts;
    }
    r.row = r.exists ? r.row : 0;
    return r;
}

/* --- norm --- */

template <int TYPE> DEVICE uint32_t pair_of(float low, float high)
{
    return TYPE == DTYPE_BF16 ? bf16_pair_from_f32(low, high) : f16_pair_from_f32(low, high);
}

template <int TYPE> DEVICE void pair_values(float v[2], uint32_t pair)
{
    if constexpr (TYPE == DTYPE_BF16) {
        v[0] = f32_from_bits(pair << 16);
        v[1] = f32_from_bits(pair & 0xffff0000u);
    } else {
        v[0] = f16_to_f32((uint16_t)pair);
        v[1] = f16_to_f32((uint16_t)(pair >> 16));
    }
}

DEVICE void norm_quad(float v[QUAD], const float *weight, int quad, float inverse)
{
    float w[QUAD];

    load_quad(w, weight, quad, 0, true);
    UNROLL
    for (int i = 0; i < QUAD; i++) {
        v[i] = v[i] * inverse * w[i];
    }
}

/* A normed quad to shared memory, and by one block to where the experts find it. */
template <int TYPE>
DEVICE void quad_put(uint2 *u, const struct moe_in_args *a, int r, int quad, const float v[QUAD])
{
    uint2 w = make_uint2(pair_of<TYPE>(v[0], v[1]), pair_of<TYPE>(v[2], v[3]));

    u[(size_t)r * (size_t)(a->route.n_in / QUAD) + (size_t)quad] = w;
    if (blockIdx.x == gridDim.x - 1) {
        float rounded[QUAD];

        pair_values<TYPE>(rounded, w.x);
        pair_values<TYPE>(rounded + 2, w.y);
        store_quad(a->u + (size_t)r * (size_t)a->route.n_in, quad, 0, true, rounded);
    }
}

/* Rows share out the warps. weight: in shared memory, on its way; part: a float per warp. Ends with a
 * barrier. */
template <int TYPE, int R>
DEVICE void norm_rows(uint2 *u, const float *weight, float *part, const struct moe_in_args *a,
                      int n_rows)
{
    enum { SHARE = MOE_THREADS / R, HELD = R > 4 ? 8 : 2 * R };
    int r = (int)threadIdx.x / SHARE, first = (int)threadIdx.x % SHARE;
    int n_quads = r < n_rows ? a->route.n_in / QUAD : 0;
    const float *x = a->route.in + (size_t)r * (size_t)a->route.n_in;
    float v[HELD][QUAD], more[QUAD], sum = 0, inverse;

    UNROLL
    for (int j = 0; j < HELD; j++) {
        if (first + j * SHARE < n_quads) {
            load_quad(v[j], x, first + j * SHARE, 0, true);
        }
    }
    UNROLL
    for (int j = 0; j < HELD; j++) {
        if (first + j * SHARE < n_quads) {
            sum += v[j][0] * v[j][0] + v[j][1] * v[j][1] + (v[j][2] * v[j][2] + v[j][3] * v[j][3]);
        }
    }
    for (int q = first + HELD * SHARE; q < n_quads; q += SHARE) {
        load_quad(more, x, q, 0, true);
        sum += more[0] * more[0] + more[1] * more[1] + (more[2] * more[2] + more[3] * more[3]);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) {
        part[threadIdx.x / WARP] = sum;
    }
    copy_wait<0>();
    block_sync();
    sum = 0;
    UNROLL
    for (int w = 0; w < SHARE / WARP; w++) {
        sum += part[r * (SHARE / WARP) + w];
    }
    inverse = rsqrt_f32(sum / (float)a->route.n_in + a->eps);
    UNROLL
    for (int j = 0; j < HELD; j++) {
        if (first + j * SHARE < n_quads) {
            norm_quad(v[j], weight, first + j * SHARE, inverse);
            quad_put<TYPE>(u, a, r, first + j * SHARE, v[j]);
        }
    }
    for (int q = first + HELD * SHARE; q < n_quads; q += SHARE) {
        load_quad(more, x, q, 0, true);
        norm_quad(more, weight, q, inverse);
        quad_put<TYPE>(u, a, r, q, more);
    }
    block_sync();
}

/* --- products --- */

template <int TYPE, int N> DEVICE void add_products(float acc[2], const float *w, const uint32_t *x)
{
    UNROLL
    for (int i = 0; i < N; i += 2) {
        float v[2];

        pair_values<TYPE>(v, x[i / 2]);
        acc[0] += w[i] * v[0];
        acc[1] += w[i + 1] * v[1];
    }
}

/* acc[r] += piece j times its inputs of n_rows rows; u: [rows][n_in / 8]. The 16 inputs of an int8 piece are
 * two units of 16 bytes: half of the lanes take the second first, so that a quarter warp meets all
 * banks. */
template <enum moe_kind KIND, int TYPE, int R>
DEVICE void multiply_piece(float acc[R][2], const struct moe_matrix *m,
                           const struct moe_pieces<PIECES> *p, int j, const uint4 *u, int row_units,
                           int chunk, int n_rows)
{
    enum { N = piece_values(KIND), AT = PIECES / 2 - 1 };
    int lane = (int)threadIdx.x % WARP, flip = (lane ^ lane >> 2) & 1;
    uint4 piece = p->w[j];
    float w[N], scale = 1.0f;

    if constexpr (KIND == MOE_INT8) {
        scale = piece_scale(m, p->scale[j]);
        if (flip) {
            piece = make_uint4(piece.z, piece.w, piece.x, piece.y);
        }
    }
    piece_unpack<KIND>(w, piece, KIND == MOE_INT8 ? p->zero[j & AT] : 0);
    UNROLL
    for (int r = 0; r < R; r++) {
        const uint4 *x = u + r * row_units;

        if (r >= n_rows) {
            break;
        }
        if constexpr (KIND == MOE_F32) {
            uint2 half = ((const uint2 *)x)[chunk];
            uint32_t words[2] = {half.x, half.y};

            add_products<TYPE, 4>(acc[r], w, words);
        } else if constexpr (KIND == MOE_INT8) {
            uint4 one = x[2 * chunk + flip], two = x[2 * chunk + (flip ^ 1)];
            uint32_t words[8] = {one.x, one.y, one.z, one.w, two.x, two.y, two.z, two.w};
            float dot[2] = {0, 0};

            add_products<TYPE, 16>(dot, w, words);
            acc[r][0] += scale * dot[0];
            acc[r][1] += scale * dot[1];
        } else {
            uint4 one = x[chunk];
            uint32_t words[4] = {one.x, one.y, one.z, one.w};

            add_products<TYPE, 8>(acc[r], w, words);
        }
    }
}

/* The warp's row times all inputs; p has its first pieces. */
template <enum moe_kind KIND, int TYPE, int R>
DEVICE void multiply_row(float acc[R][2], const struct moe_row *row, struct moe_pieces<PIECES> *p,
                         const uint4 *u, int row_units, int n_rows)
{
    enum { HELD = pieces_held<KIND, PIECES>() };

    for (int chunk = (int)threadIdx.x % WARP; chunk < row->m->n_chunks;) {
        UNROLL
        for (int j = 0; j < HELD; j++) {
            if (chunk + j * WARP < row->m->n_chunks) {
                multiply_piece<KIND, TYPE, R>(acc, row->m, p, j, u, row_units, chunk + j * WARP,
                                              n_rows);
            }
        }
        chunk += HELD * WARP;
        pieces_load<PIECES>(p, row->m, row->row, chunk, WARP);
    }
}

template <int TYPE, int R>
DEVICE void multiply_any(float acc[R][2], const struct moe_row *row, struct moe_pieces<PIECES> *p,
                         const uint4 *u, int row_units, int n_rows)
{
    switch (row->m->kind) {
    case MOE_BF16:
        multiply_row<MOE_BF16, TYPE, R>(acc, row, p, u, row_units, n_rows);
        break;
    case MOE_F16:
        multiply_row<MOE_F16, TYPE, R>(acc, row, p, u, row_units, n_rows);
        break;
    case MOE_F32:
        multiply_row<MOE_F32, TYPE, R>(acc, row, p, u, row_units, n_rows);
        break;
    default:
        multiply_row<MOE_INT8, TYPE, R>(acc, row, p, u, row_units, n_rows);
        break;
    }
}

/* --- results --- */

/* sum[r] to column `at` of row r of out. */
template <int R>
DEVICE void sums_put(float *out, size_t stride, int at, const float sum[R], int n_rows)
{
    UNROLL
    for (int r = 0; r < R; r++) {
        if ((int)threadIdx.x % WARP == r && r < n_rows) {
            out[(size_t)r * stride + (size_t)at] = sum[r];
        }
    }
}

/* sums: [MOE_WARPS][R] in shared memory. */
template <int R>
DEVICE void mid_finish(const struct moe_in_args *a, const float sum[R], float *sums, int n_rows)
{
    int tid = (int)threadIdx.x, warp = tid / WARP, lane = tid % WARP;
    int c = tid % MOE_MID_COLS, r = tid / MOE_MID_COLS;
    int col = ((int)blockIdx.x - a->route_blocks) * MOE_MID_COLS + c;

    UNROLL
    for (int i = 0; i < R; i++) {
        if (lane == i) {
            sums[warp * R + i] = sum[i];
        }
    }
    block_sync();
    if (r < n_rows && col < a->width) {
        float gate = round_f32((enum dtype)a->gate_round, sums[c * R + r]);
        float up = round_f32((enum dtype)a->up_round, sums[(c + MOE_MID_COLS) * R + r]);

        a->mid[(size_t)r * (size_t)a->width + (size_t)col] =
            round_f32((enum dtype)a->mid_round, up * silu(gate));
    }
}

/* dynamic: as struct moe_in_args says; sums: [MOE_WARPS][R]. */
template <int TYPE, int R>
DEVICE void moe_in(const struct moe_in_args *a, uint4 *dynamic, float *sums)
{
    int tid = (int)threadIdx.x, lane = tid % WARP, n_in = a->route.n_in;
    int n_rows = min(a->route.view.counts[STEP_ROWS], R);
    float *weight = (float *)dynamic;
    uint4 *u = dynamic + n_in / QUAD;
    struct moe_row row = row_of_warp(a);
    struct moe_pieces<PIECES> p;
    float acc[R][2] = {}, sum[R];

    pieces_load<PIECES>(&p, row.m, row.row, lane, WARP);
    for (int q = tid; q < n_in / QUAD; q += MOE_THREADS) {
        copy16_async(dynamic + q, a->norm + QUAD * q, true);
    }
    copy_commit();
    depend_wait();
    norm_rows<TYPE, R>((uint2 *)u, weight, sums, a, n_rows);
    multiply_any<TYPE, R>(acc, &row, &p, u, n_in / 8, n_rows);
    UNROLL
    for (int r = 0; r < R; r++) {
        sum[r] = warp_sum(acc[r][0] + acc[r][1]);
    }
    if (row.m == &a->share) {
        if (row.exists) {
            sums_put<R>(a->share_out, 1, 0, sum, n_rows);
        }
    } else if (row.m == &a->gate || row.m == &a->up) {
        mid_finish<R>(a, sum, sums, n_rows);
    } else if (row.exists) {
        sums_put<R>(row.m == &a->router ? a->route.logits : a->next_logits,
                    (size_t)a->route.n_experts, row.row, sum, n_rows);
    }
}

#define MOE_IN(name, type, rows)                                                                   \
    KERNEL(name, moe_in_args, MOE_THREADS, 2)                                                      \
    {                                                                                              \
        SHARED float sums[MOE_WARPS * rows];                                                       \
        DYNAMIC_SHARED(uint4, dynamic);                                                            \
                                                                                                   \
        depend_launch();                                                                           \
        moe_in<type, rows>(&a, dynamic, sums);                                                     \
    }

MOE_IN(moe_in_bf16_1, DTYPE_BF16, 1)
MOE_IN(moe_in_bf16_2, DTYPE_BF16, 2)
MOE_IN(moe_in_bf16_4, DTYPE_BF16, 4)
MOE_IN(moe_in_bf16_8, DTYPE_BF16, 8)
MOE_IN(moe_in_f16_1, DTYPE_F16, 1)
MOE_IN(moe_in_f16_2, DTYPE_F16, 2)
MOE_IN(moe_in_f16_4, DTYPE_F16, 4)
MOE_IN(moe_in_f16_8, DTYPE_F16, 8)
