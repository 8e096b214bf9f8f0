/* linear_gemv_rows.cuh - W x for 1 to 8 rows of x in float32 arithmetic or as exact: the loop and its sums.
 *
 * Place:  backend/cuda/kernels; for linear_gemv.cu and linear_gemv_int8.cu.
 * Tile:   T outputs of one part. A warp reads 512 bytes of each of its T weight rows in a step, and every
 *         input that it reads from shared memory serves the T rows.
 *         Quantised weights: linear_gemv_dot.cuh.
 * Inputs: in shared memory as float32, in the order in which the lanes of a warp read them, so that quads
 *         of neighbouring lanes lie side by side: [step][quad of the lane's chunk][lane][4].
 * Sums:   per lane over its inputs in order, then over lanes, then over slices: in an order that the
 *         matrix's shape and the kernel decide. */
#ifndef BACKEND_CUDA_LINEAR_GEMV_ROWS_CUH
#define BACKEND_CUDA_LINEAR_GEMV_ROWS_CUH

#include "backend/cuda/kernels/linear_gemv_dot.cuh"

/* Weights 4j to 4j + 3 of a chunk as floats. */
template <enum gemv_kind KIND> DEVICE void decode(float v[4], uint4 chunk, int j)
{
    uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};

    if (KIND == GEMV_F32) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            v[i] = f32_from_bits(words[i]);
        }
    } else {
        UNROLL
        for (int i = 0; i < 2; i++) {
            uint32_t pair = words[2 * j + i];

            v[2 * i] = KIND == GEMV_BF16 ? f32_from_bits(pair << 16) : f16_to_f32((uint16_t)pair);
            v[2 * i + 1] = KIND == GEMV_BF16 ? f32_from_bits(pair & 0xffff0000u)
                                             : f16_to_f32((uint16_t)(pair >> 16));
        }
    }
}

/* sums += the piece's weights times its inputs. x: the lane's first quad of the step. */
template <enum gemv_kind KIND, int T, int R>
DEVICE void multiply(float sums[T][R], const struct piece<KIND, T> *f, const float *x, int x_stride)
{
    UNROLL
    for (int j = 0; j < chunk_inputs(KIND) / 4; j++) {
        float v[T][4];

        UNROLL
        for (int t = 0; t < T; t++) {
            decode<KIND>(v[t], f->w[t], j);
        }
        UNROLL
        for (int r = 0; r < R; r++) {
            float4 in = *(const float4 *)(x + r * x_stride + j * (4 * WARP));

            UNROLL
            for (int t = 0; t < T; t++) {
                sums[t][r] += v[t][0] * in.x;
                sums[t][r] += v[t][1] * in.y;
                sums[t][r] += v[t][2] * in.z;
                sums[t][r] += v[t][3] * in.w;
            }
        }
    }
}

/* Sums over the warp of N values; lanes [i * 32 / N, ...) get the sum of value i. Each stage halves the
 * values that a lane still adds up, so that all take little more than one sum does. */
template <int N> DEVICE float warp_sums(float v[N])
{
    int lane = (int)threadIdx.x % WARP, n = N;

    UNROLL
    for (int m = WARP / 2; m > 0; m /= 2) {
        if (n > 1) {
            bool is_upper = (lane & m) != 0;

            n /= 2;
            UNROLL
            for (int i = 0; i < N / 2; i++) {
                if (i < n) {
                    float keep = is_upper ? v[i + n] : v[i], give = is_upper ? v[i] : v[i + n];

                    v[i] = keep + shuffle_xor(give, m);
                }
            }
        } else {
            v[0] += shuffle_xor(v[0], m);
        }
    }
    return v[0];
}

template <enum gemv_kind KIND, int R, int WARPS>
DEVICE void stage_inputs(float *shared, const struct linear_args *a, const float *norm,
                         const float *x, int n_rows)
{
    enum { QUADS = chunk_inputs(KIND) / 4, THREADS = WARP * WARPS };
    enum { ROWS_AT_ONCE = R == 4 ? 4 : R == 1 ? 1 : 2, AT_ONCE = R > 2 ? 1 : R == 2 ? 2 : 4 };

    ROLLED
    for (int q0 = (int)threadIdx.x; q0 < a->x_stride / 4; q0 += AT_ONCE * THREADS) {
        ROLLED
        for (int r = 0; r < R; r += ROWS_AT_ONCE) {
            float4 v[AT_ONCE][ROWS_AT_ONCE];

            UNROLL
            for (int s = 0; s < AT_ONCE; s++) {
                ready_quads<ROWS_AT_ONCE, R == 1>(v[s], a, norm, x, r, n_rows,
                                                  4 * (q0 + s * THREADS));
            }
            UNROLL
            for (int s = 0; s < AT_ONCE; s++) {
                int q = q0 + s * THREADS, lane = q / QUADS % WARP;
                int at = (q / (QUADS * WARP) * QUADS + q % QUADS) * WARP + lane;

                UNROLL
                for (int i = 0; i < ROWS_AT_ONCE; i++) {
                    if (q < a->x_stride / 4) {
                        *(float4 *)(shared + (r + i) * a->x_stride + 4 * at) = v[s][i];
                    }
                }
            }
        }
    }
}

/* Write a tile's results, summed over the warps of its slices. slice_sums [warps][T * R] is free
 * again after the next call with another one. All threads of the block call. */
template <int T, int R>
DEVICE void finish(const struct linear_args *a, float sums[T][R], float *slice_sums, int p, int n0)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int i = lane / (WARP / (T * R)), n = n0 + i / R, r = i % R;
    bool is_mine = lane % (WARP / (T * R)) == 0;
    int row = (int)blockIdx.y * R + r;
    bool is_written = is_mine && (warp & (a->n_slices - 1)) == 0 && p >= 0 &&
                      n < a->part[max(p, 0)].n_out && row < *a->n_rows;
    /* What is there already comes while the sums are made. */
    float sum, before = is_written ? result_before(&a->part[p], row, n) : 0.0f;

    sum = warp_sums<T * R>(&sums[0][0]);
    if (a->n_slices > 1) {
        if (is_mine) {
            slice_sums[warp * (T * R) + i] = sum;
        }
        block_sync();
        for (int s = 1; is_written && s < a->n_slices; s++) {
            sum += slice_sums[(warp + s) * (T * R) + i];
        }
    }
    if (is_written) {
        put_result(&a->part[p], row, n, before, sum);
    }
}

/* T outputs a tile, U steps on their way, R rows, WARPS of a block, which is number `block` of n_blocks. */
template <enum gemv_kind KIND, int T, int U, int R, int WARPS>
DEVICE void gemv(const struct linear_args *a, float *shared, int block, int n_blocks)
{
    enum { SLICE_SUMS = WARPS * T * R, STEP = WARP * chunk_inputs(KIND) };
    float *x = shared + 2 * SLICE_SUMS;
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int n_slices = a->n_slices, slice = warp & (n_slices - 1),
        at_once = opaque(WARPS >> a->slices_log2);
    int first = block * at_once, row0 = (int)blockIdx.y * R;
    int tile = first + (warp >> a->slices_log2), n_rows;
    const float *in = a->x + (size_t)row0 * (size_t)a->n_in;
    float *norm = x + R * a->x_stride;
    struct tile_rows<T> next;
    struct piece<KIND, T> f[U];

    n_rows = *a->n_rows - row0; /* the step's tables were there before its first kernel */
    tile_open(&next, a, tile, T, 0, 1, lane);
    UNROLL
    for (int u = 0; u < U; u++) {
        fetch<KIND, T, WARP>(&f[u], a, &next, slice + u * n_slices, lane);
    }
    norm_begin(norm, a);
    depend_wait();
    if (n_rows <= 0) {
        copy_wait<0>();
        return;
    }
    if (a->norm) {
        norm_factors<R>(norm, a, in, n_rows);
    }
    if (is_quantised(KIND)) {
        dot_stage<KIND, R, WARPS>((uint32_t *)x, a, norm, in, n_rows);
    } else {
        stage_inputs<KIND, R, WARPS>(x, a, norm, in, n_rows);
    }
    block_sync();
    for (int turn = 0; first < a->n_tiles; turn++) {
        float sums[T][R] = {};
        int p = next.p, n0 = next.n0, step = slice;
        bool is_last;

        first += n_blocks * at_once;
        tile += n_blocks * at_once;
        do {
            int after = step + U * n_slices;

            is_last = after >= a->n_steps;
            if (is_last) {
                tile_open(&next, a, tile, T, 0, 1, lane);
                after = slice;
            }
            UNROLL
            for (int u = 0; u < U; u++) {
                int s = opaque(step + u * n_slices);

                if (s < a->n_steps && is_quantised(KIND)) {
                    dot_multiply<KIND, T, R>(sums, &f[u], a->part[max(p, 0)].dtype,
                                             (const uint32_t *)x + s * STEP + 4 * lane,
                                             a->x_stride);
                } else if (s < a->n_steps) {
                    multiply<KIND, T, R>(sums, &f[u], x + s * STEP + 4 * lane, a->x_stride);
                }
                fetch<KIND, T, WARP>(&f[u], a, &next, opaque(after + u * n_slices), lane);
            }
            step = after;
        } while (!is_last);
        finish<T, R>(a, sums, shared + turn % 2 * SLICE_SUMS, p, n0);
    }
}

#endif
