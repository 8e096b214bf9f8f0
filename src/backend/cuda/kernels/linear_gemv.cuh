/* linear_gemv.cuh - what the few-row products share: tiles, the stream of weights, results.
 *
 * Place: backend/cuda/kernels; for linear_gemv.cu and linear_gemv_mma.cu.
 * Idea:  a product of few rows is as fast as its weights arrive. Each thread keeps several loads of 16
 *        bytes on their way and asks for the next as soon as it has used one, across the borders of tiles;
 *        the first ones leave before the kernels ahead have ended. */
#ifndef BACKEND_CUDA_LINEAR_GEMV_CUH
#define BACKEND_CUDA_LINEAR_GEMV_CUH

#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/linear_args.h"
#include "backend/cuda/kernels/mma.cuh"

/* Keep a loop as it is written. The inputs are staged while the first weights are in registers; unrolled,
 * that loop would push them out. */
#if defined(__CUDACC__)
#define ROLLED _Pragma("unroll 1")
#else
#define ROLLED
#endif

/* v, of which the compiler shall know nothing: else it keeps an address for each load of a loop. */
DEVICE int opaque(int v)
{
    asm volatile("" : "+r"(v));
    return v;
}

enum gemv_kind { GEMV_F32, GEMV_F16, GEMV_BF16, GEMV_INT8, GEMV_INT4 };

/* Weights in 16 bytes. */
DEVICE constexpr int chunk_inputs(enum gemv_kind kind)
{
    return kind == GEMV_F32 ? 4 : kind == GEMV_INT8 ? 16 : kind == GEMV_INT4 ? 32 : 8;
}

DEVICE constexpr bool is_quantised(enum gemv_kind kind)
{
    return kind == GEMV_INT8 || kind == GEMV_INT4;
}

/* The T weight rows of a tile that one thread reads. */
template <int T> struct tile_rows {
    int p, n0; /* part (-1: there is no such tile), and first output of the tile in it */
    const uint8_t *data[T]; /* the thread's place in step 0 */
    uint32_t group_at[T];   /* of the rows' first group in scales and zeros */
};

/* What a thread reads in one step. Scales stay as they are stored until they are used: converting them
 * here would wait for them. */
template <enum gemv_kind KIND, int T> struct piece {
    uint4 w[T];
    uint32_t scale[is_quantised(KIND) ? T : 1], zero[is_quantised(KIND) ? T : 1];
};

/* Rows past the last are the last one again: they cost a load that the cache answers, and no result. */
template <int T>
DEVICE void tile_open(struct tile_rows<T> *r, const struct linear_args *a, int tile,
                      int tile_outputs, int lane_row, int row_step, int lane_chunk)
{
    const struct linear_part *part;
    int p = 0;

    if (tile >= a->n_tiles) {
        r->p = -1;
        r->n0 = 0;
        return;
    }
    while (p + 1 < a->n_parts && tile >= a->part[p + 1].first_tile) {
        p++;
    }
    part = &a->part[p];
    r->p = p;
    r->n0 = (tile - part->first_tile) * tile_outputs;
    UNROLL
    for (int t = 0; t < T; t++) {
        int row = min(r->n0 + lane_row + t * row_step, part->n_out - 1);

        r->data[t] =
            (const uint8_t *)part->data + ((size_t)row * (size_t)a->n_chunks + lane_chunk) * 16;
        r->group_at[t] = (uint32_t)row * (uint32_t)part->n_groups;
    }
}

/* Which group block `b` of 32 inputs is in: b / group_blocks, for all sizes within LINEAR_INPUTS_MAX. */
DEVICE uint32_t group_of(const struct linear_part *part, uint32_t b)
{
    return (uint32_t)(((uint64_t)b * part->group_inverse) >> LINEAR_INVERSE_BITS);
}

DEVICE uint32_t scale_bits(const struct linear_part *part, uint32_t i)
{
    return part->dtype == DTYPE_F32 ? ((const uint32_t *)part->scales)[i]
                                    : ((const uint16_t *)part->scales)[i];
}

DEVICE float scale_value(int dtype, uint32_t bits)
{
    return dtype == DTYPE_F32   ? f32_from_bits(bits)
           : dtype == DTYPE_F16 ? f16_to_f32((uint16_t)bits)
                                : bf16_to_f32((uint16_t)bits);
}

/* Ask for a step's weights; all zero where the row has no inputs. */
template <enum gemv_kind KIND, int T, int LANES>
DEVICE void fetch(struct piece<KIND, T> *f, const struct linear_args *a,
                  const struct tile_rows<T> *r, int step, int lane_chunk)
{
    int chunk = step * LANES + lane_chunk;
    bool exists = r->p >= 0 && chunk < a->n_chunks;

    UNROLL
    for (int t = 0; t < T; t++) {
        f->w[t] =
            exists ? stream16(r->data[t] + (size_t)step * (LANES * 16)) : make_uint4(0, 0, 0, 0);
    }
    if (is_quantised(KIND)) {
        /* Lanes without weights in a row's last step want its scale all the same: the sums of a matrix
         * instruction lie elsewhere than its operands. */
        const struct linear_part *part = &a->part[max(r->p, 0)];
        int last = min(chunk, a->n_chunks - 1);
        uint32_t group = group_of(part, (uint32_t)(KIND == GEMV_INT8 ? last / 2 : last));

        exists = r->p >= 0;
        UNROLL
        for (int t = 0; t < T; t++) {
            f->scale[t] = exists ? scale_bits(part, r->group_at[t] + group) : 0;
            f->zero[t] = !exists             ? 0
                         : part->zeros       ? part->zeros[r->group_at[t] + group]
                         : KIND == GEMV_INT8 ? 128
                                             : 8;
        }
    }
}

/* What a result is added to, if it is. */
DEVICE float result_before(const struct linear_part *part, int row, int n)
{
    return part->accumulates ? part->out[(size_t)row * (size_t)part->n_out + n] : 0.0f;
}

DEVICE void put_result(const struct linear_part *part, int row, int n, float before, float v)
{
    part->out[(size_t)row * (size_t)part->n_out + n] =
        part->accumulates ? before + v : round_f32((enum dtype)part->round, v);
}

/* Inputs k to k + 3 in the order of the weights. Ordinary loads: an earlier kernel may have written them
 * after this one began. A perm from a broken file must not reach past the row. */
DEVICE float4 input_quad(const struct linear_args *a, const float *x, int k)
{
    float v[4];
    int4 from;

    if (!a->perm) {
        return *(const float4 *)(x + k);
    }
    from = *(const int4 *)(a->perm + k);
    v[0] = (uint32_t)from.x < (uint32_t)a->n_in ? x[from.x] : 0.0f;
    v[1] = (uint32_t)from.y < (uint32_t)a->n_in ? x[from.y] : 0.0f;
    v[2] = (uint32_t)from.z < (uint32_t)a->n_in ? x[from.z] : 0.0f;
    v[3] = (uint32_t)from.w < (uint32_t)a->n_in ? x[from.w] : 0.0f;
    return make_float4(v[0], v[1], v[2], v[3]);
}

/* Inputs k to k + 3 of n rows from row r0 on (at most N); zero where there are none. All loads leave before
 * the first is used. */
template <int N>
DEVICE void input_quads(float4 v[N], const struct linear_args *a, const float *x, int r0, int n,
                        int k)
{
    UNROLL
    for (int i = 0; i < N; i++) {
        v[i] = r0 + i < n && k < a->n_in ? input_quad(a, x + (size_t)(r0 + i) * (size_t)a->n_in, k)
                                         : make_float4(0, 0, 0, 0);
    }
}

/* --- the norm ahead ---
 * Every block computes it for itself: cheaper than a kernel that all others wait for. `norm` is its part of
 * shared memory: [LINEAR_NORM_ROWS] factors, sums of warps, weights [n_in]. */

/* Before depend_wait(): the weights set out. */
DEVICE void norm_begin(float *norm, const struct linear_args *a)
{
    if (a->norm) {
        ROLLED
        for (int k = 4 * (int)threadIdx.x; k < a->n_in; k += 4 * (int)blockDim.x) {
            copy16_async(norm + LINEAR_NORM_HEAD + k, a->norm + k, true);
        }
        copy_commit();
    }
}

/* The factors of n rows (at most R). All threads of the block call; R is at most LINEAR_NORM_ROWS, and the
 * number of warps. */
template <int R>
DEVICE void norm_factors(float *norm, const struct linear_args *a, const float *x, int n)
{
    enum { AT_ONCE = R < 4 ? R : 4 };
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int n_warps = (int)blockDim.x / WARP;
    float *parts = norm + LINEAR_NORM_ROWS;

    ROLLED
    for (int r = 0; r < R; r += AT_ONCE) {
        float sums[AT_ONCE] = {};

        ROLLED
        for (int k = 4 * (int)threadIdx.x; k < a->n_in; k += 4 * (int)blockDim.x) {
            float4 v[AT_ONCE];

            input_quads<AT_ONCE>(v, a, x, r, n, k);
            UNROLL
            for (int i = 0; i < AT_ONCE; i++) {
                sums[i] += v[i].x * v[i].x + v[i].y * v[i].y + (v[i].z * v[i].z + v[i].w * v[i].w);
            }
        }
        UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            float sum = warp_sum(sums[i]);

            if (lane == 0) {
                parts[(r + i) * LINEAR_WARPS + warp] = sum;
            }
        }
    }
    copy_wait<0>();
    block_sync();
    if (warp < R) {
        float sum = warp_sum(lane < n_warps ? parts[warp * LINEAR_WARPS + lane] : 0.0f);

        if (lane == 0) {
            norm[warp] = rsqrt_f32(sum / (float)a->n_in + a->norm_eps);
        }
    }
    block_sync();
}

DEVICE float norm_value(const struct linear_args *a, float v, float factor, float weight)
{
    return round_f32((enum dtype)a->ahead_round, v * factor * weight);
}

DEVICE float swiglu_value(const struct linear_args *a, float up, float gate)
{
    return round_f32((enum dtype)a->ahead_round, up * silu(gate));
}

/* input_quads() of what the product is of. MAY_GATE: in kernels of one row. */
template <int N, bool MAY_GATE>
DEVICE void ready_quads(float4 v[N], const struct linear_args *a, const float *norm, const float *x,
                        int r0, int n, int k)
{
    input_quads<N>(v, a, x, r0, n, k);
    if (a->norm && k < a->n_in) {
        float4 w = *(const float4 *)(norm + LINEAR_NORM_HEAD + k);

        UNROLL
        for (int i = 0; i < N; i++) {
            float factor = norm[r0 + i];

            v[i] =
                make_float4(norm_value(a, v[i].x, factor, w.x), norm_value(a, v[i].y, factor, w.y),
                            norm_value(a, v[i].z, factor, w.z), norm_value(a, v[i].w, factor, w.w));
        }
    } else if (MAY_GATE && a->gate && k < a->n_in) {
        float4 gate = *(const float4 *)(a->gate + (x - a->x) + k);

        v[0] = make_float4(swiglu_value(a, v[0].x, gate.x), swiglu_value(a, v[0].y, gate.y),
                           swiglu_value(a, v[0].z, gate.z), swiglu_value(a, v[0].w, gate.w));
    }
}

#endif
