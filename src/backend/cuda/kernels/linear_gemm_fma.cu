/* linear_gemm_fma.cu - the many-rows product in plain float32 arithmetic.
 *
 * Place: backend/cuda/kernels; for what the matrix instructions cannot do exactly (float32 weights), rows
 *        that do not begin at 16-byte borders, and old cards with bfloat16.
 * Idea:  tiles of ROWS x 64 outputs, 16 inputs at a time. A thread has ROWS / 16 x 4 outputs; what it needs
 *        of the next inputs is on its way to registers while it multiplies. */
#include "backend/cuda/kernels/linear_gemm.cuh"
#include "backend/cuda/kernels/linear_gemm_args.h"
#include "backend/weight.h"

enum { FMA_K = 16, FMA_COLS = 64, FMA_PAD = 4 };

/* Inputs k to k + 3 of a row of x, zero past its end. */
DEVICE void fma_load_x(float v[4], const struct gemm_fma_args &a, const float *row, int k)
{
    if (!a.perm && a.n_in % 4 == 0) {
        if (k < a.n_in) {
            float4 q = *(const float4 *)(row + k);

            v[0] = q.x;
            v[1] = q.y;
            v[2] = q.z;
            v[3] = q.w;
        }
        return;
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        if (k + i < a.n_in) {
            v[i] = row[a.perm ? a.perm[k + i] : k + i];
        }
    }
}

/* Values k to k + 3 of weight row n, zero past its end. Rows of quantised weights are whole blocks. */
DEVICE void fma_load_w(float v[4], const struct gemm_fma_args &a, int n, int k)
{
    size_t at = (size_t)n * (size_t)a.n_in + k;

    if (a.kind == WEIGHT_DENSE) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            if (k + i < a.n_in) {
                v[i] = load_f32((enum dtype)a.dtype, a.data, at + i);
            }
        }
    } else if (k < a.n_in) {
        size_t group = (size_t)n * (size_t)a.n_groups + k / a.group;
        float scale = load_f32((enum dtype)a.dtype, a.scales, group);
        bool is_int4 = a.kind == WEIGHT_INT4;
        int zero = a.zeros ? a.zeros[group] : is_int4 ? 8 : 128;
        const uint8_t *q = (const uint8_t *)a.data;

        q += is_int4 ? (at - k % WEIGHT_BLOCK) / 2 + k % 16 : at;
        UNROLL
        for (int i = 0; i < 4; i++) {
            int value = !is_int4 ? q[i] : k % WEIGHT_BLOCK < 16 ? q[i] & 15 : q[i] >> 4;

            v[i] = scale * (float)(value - zero);
        }
    }
}

/* What one thread brings of the 16 inputs from k on: a quad of one weight row, ROWS / 64 quads of x. */
template <int ROWS> struct fma_fetch {
    static constexpr int QUADS = (ROWS + 63) / 64;
    float x[QUADS][4], w[4];
};

template <int ROWS>
DEVICE void fma_fetch_load(struct fma_fetch<ROWS> *f, const struct gemm_fma_args &a, int row0,
                           int n_rows, int col0, int k)
{
    int line = (int)threadIdx.x / 4, quad = (int)threadIdx.x % 4 * 4;

    UNROLL
    for (int q = 0; q < f->QUADS; q++) {
        int row = row0 + q * 64 + line;

        UNROLL
        for (int i = 0; i < 4; i++) {
            f->x[q][i] = 0;
        }
        if (q * 64 + line < ROWS && row < n_rows) {
            fma_load_x(f->x[q], a, a.x + (size_t)(a.row0 + row) * (size_t)a.n_in, k + quad);
        }
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        f->w[i] = 0;
    }
    if (col0 + line < a.n_out) {
        fma_load_w(f->w, a, col0 + line, k + quad);
    }
}

template <int ROWS> DEVICE void fma_fetch_store(const struct fma_fetch<ROWS> *f, float *x, float *w)
{
    int line = (int)threadIdx.x / 4, quad = (int)threadIdx.x % 4 * 4;

    UNROLL
    for (int i = 0; i < 4; i++) {
        UNROLL
        for (int q = 0; q < f->QUADS; q++) {
            if (q * 64 + line < ROWS) {
                x[(quad + i) * (ROWS + FMA_PAD) + q * 64 + line] = f->x[q][i];
            }
        }
        w[(quad + i) * (FMA_COLS + FMA_PAD) + line] = f->w[i];
    }
}

/* x [FMA_K][ROWS + pad], w [FMA_K][FMA_COLS + pad]: a thread's rows and columns are neighbours. */
template <int ROWS>
DEVICE void fma_multiply(float sum[ROWS / 16][4], const float *x, const float *w)
{
    constexpr int MT = ROWS / 16;
    int row = (int)threadIdx.x / 16 * MT, col = (int)threadIdx.x % 16 * 4;

    UNROLL
    for (int k = 0; k < FMA_K; k++) {
        float4 v = *(const float4 *)(w + k * (FMA_COLS + FMA_PAD) + col);
        float u[MT];

        UNROLL
        for (int m = 0; m < MT; m += 2) {
            float2 pair = *(const float2 *)(x + k * (ROWS + FMA_PAD) + row + m);

            u[m] = pair.x;
            u[m + 1] = pair.y;
        }
        UNROLL
        for (int m = 0; m < MT; m++) {
            sum[m][0] += u[m] * v.x;
            sum[m][1] += u[m] * v.y;
            sum[m][2] += u[m] * v.z;
            sum[m][3] += u[m] * v.w;
        }
    }
}

template <int ROWS> DEVICE void linear_gemm_fma(const struct gemm_fma_args &a)
{
    constexpr int MT = ROWS / 16;
    SHARED float x[FMA_K * (ROWS + FMA_PAD)];
    SHARED float w[FMA_K * (FMA_COLS + FMA_PAD)];
    int row0 = (int)blockIdx.x * ROWS, col0 = (int)blockIdx.y * FMA_COLS, n_rows;
    struct fma_fetch<ROWS> f;
    float sum[MT][4] = {};

    depend_launch();
    depend_wait();
    n_rows = gemm_chunk_rows(a.n_rows, a.row0, a.rows_max);
    if (row0 >= n_rows) {
        return;
    }
    fma_fetch_load<ROWS>(&f, a, row0, n_rows, col0, 0);
    for (int k = 0; k < a.n_in; k += FMA_K) {
        fma_fetch_store<ROWS>(&f, x, w);
        block_sync();
        if (k + FMA_K < a.n_in) {
            fma_fetch_load<ROWS>(&f, a, row0, n_rows, col0, k + FMA_K);
        }
        fma_multiply<ROWS>(sum, x, w);
        block_sync();
    }
    UNROLL
    for (int m = 0; m < MT; m++) {
        int row = row0 + (int)threadIdx.x / 16 * MT + m;

        UNROLL
        for (int i = 0; i < 4; i++) {
            int col = col0 + (int)threadIdx.x % 16 * 4 + i;
            float *out = a.out + (size_t)(a.row0 + row) * (size_t)a.n_out + col;

            if (row < n_rows && col < a.n_out) {
                *out = round_f32((enum dtype)a.round, a.accumulates ? *out + sum[m][i] : sum[m][i]);
            }
        }
    }
}

KERNEL(linear_gemm_fma_32, gemm_fma_args, GEMM_THREADS, 2)
{
    linear_gemm_fma<32>(a);
}

KERNEL(linear_gemm_fma_128, gemm_fma_args, GEMM_THREADS, 2)
{
    linear_gemm_fma<128>(a);
}
