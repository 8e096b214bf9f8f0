/* linear_gemm.cuh - the many-rows product around its tile: which rows, columns and inputs, and where to.
 *
 * Place: backend/cuda/kernels; the body of every linear_gemm_* kernel on tensor cores.
 * Grid:  x rows of tiles, fastest, so that blocks that run together share weights; y column tiles of all
 *        parts; z pieces of the sum. */
#ifndef BACKEND_CUDA_LINEAR_GEMM_CUH
#define BACKEND_CUDA_LINEAR_GEMM_CUH

#include "backend/cuda/kernels/gemm_tile.cuh"

/* The part that a column tile belongs to. */
DEVICE int gemm_part_of(const struct linear_gemm_args &a, int tile)
{
    int p = 0;

    while (p + 1 < a.n_parts && tile >= a.part[p + 1].tile0) {
        p++;
    }
    return p;
}

/* Rows of the chunk that the step has. */
DEVICE int gemm_chunk_rows(const int32_t *n_rows, int row0, int rows_max)
{
    int n = *n_rows - row0;

    return n < rows_max ? n : rows_max;
}

/* v0, v1 to columns col, col + 1 of a row. */
DEVICE void gemm_store(const struct gemm_part *p, size_t row, int col, float v0, float v1)
{
    float *out = p->out + row * (size_t)p->n_out + col;

    if (col + 1 < p->n_out && p->n_out % 2 == 0) {
        float2 *pair = (float2 *)out;

        if (p->accumulates) {
            float2 old = *pair;

            v0 += old.x;
            v1 += old.y;
        }
        *pair =
            make_float2(round_f32((enum dtype)p->round, v0), round_f32((enum dtype)p->round, v1));
        return;
    }
    if (col < p->n_out) {
        out[0] = round_f32((enum dtype)p->round, p->accumulates ? out[0] + v0 : v0);
    }
    if (col + 1 < p->n_out) {
        out[1] = round_f32((enum dtype)p->round, p->accumulates ? out[1] + v1 : v1);
    }
}

template <class S>
DEVICE void gemm_write(const struct linear_gemm_args &a, const struct gemm_part *p, int row0,
                       int n_rows, int tile_col, const float sum[S::MT][S::NT][4])
{
    int lane = (int)threadIdx.x % WARP;
    int row = row0 + gemm_warp_row<S>() + lane / 4, col = gemm_warp_col<S>() + lane % 4 * 2;
    size_t piece = (size_t)blockIdx.z * (size_t)a.rows_max;

    UNROLL
    for (int m = 0; m < S::MT; m++) {
        UNROLL
        for (int i = 0; i < 2; i++) {
            int r = row + m * 16 + i * 8;

            if (r >= n_rows) {
                continue;
            }
            UNROLL
            for (int n = 0; n < S::NT; n++) {
                const float *v = sum[m][n] + 2 * i;
                int c = tile_col + col + n * 8;

                if (a.n_splits > 1) {
                    float *to = a.partial + (piece + (size_t)r) * (size_t)a.partial_cols;

                    *(float2 *)(to + p->tile0 * S::COLS + c) = make_float2(v[0], v[1]);
                } else {
                    gemm_store(p, (size_t)(a.row0 + r), c, v[0], v[1]);
                }
            }
        }
    }
}

template <class S> DEVICE void linear_gemm(const struct linear_gemm_args &a)
{
    DYNAMIC_SHARED(unsigned char, shared);
    int tile = (int)blockIdx.y, row0 = (int)blockIdx.x * S::ROWS;
    struct gemm_part p = a.part[gemm_part_of(a, tile)];
    int n_rows;
    int col0 = (tile - p.tile0) * S::COLS, stages = (a.n_in + GEMM_K - 1) / GEMM_K * a.n_planes;
    int stage0 = (int)blockIdx.z * a.split_stages, stage1 = stage0 + a.split_stages;
    struct gemm_source t;
    float sum[S::MT][S::NT][4];

    depend_launch();
    n_rows = gemm_chunk_rows(a.n_rows, a.row0, a.rows_max); /* no kernel writes the step's tables */
    if (row0 >= n_rows) {
        depend_wait();
        return;
    }
    t.n_rows = n_rows - row0;
    t.n_cols = p.n_out - col0;
    t.n_in = a.n_in;
    t.n_planes = a.n_planes;
    t.stage0 = stage0;
    t.stage1 = stage1 < stages ? stage1 : stages;
    t.x = p.x + (size_t)row0 * (size_t)a.n_planes * (size_t)a.n_in;
    t.w = (const uint8_t *)p.data + (size_t)col0 * (size_t)a.n_in * (S::W_BYTES * 2 / GEMM_K) / 2;
    t.scale_dtype = (enum dtype)p.scale_dtype;
    t.scales = (const uint8_t *)p.scales +
               (size_t)col0 * (size_t)p.n_groups * (t.scale_dtype == DTYPE_F32 ? 4 : 2);
    t.zeros = p.zeros ? p.zeros + (size_t)col0 * (size_t)p.n_groups : NULL;
    t.group_blocks = p.group_blocks;
    t.n_groups = p.n_groups;
    t.n_buffers = a.n_buffers;
    gemm_tile<S>(sum, shared, &t);
    gemm_write<S>(a, &p, row0, n_rows, col0, sum);
}

#define LINEAR_GEMM(name, blocks, kind, is_f16, rows, cols, row_warps, stages)                     \
    KERNEL(name, linear_gemm_args, GEMM_THREADS, blocks)                                           \
    {                                                                                              \
        linear_gemm<gemm_shape<kind, is_f16, rows, cols, row_warps, stages>>(a);                   \
    }

#endif
