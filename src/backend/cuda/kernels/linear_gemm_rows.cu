/* linear_gemm_rows.cu - what surrounds the many-rows product: its inputs in 16 bits, the sum of its pieces.
 *
 * Place: backend/cuda/kernels; see linear_gemm_args.h for both layouts. */
#include "backend/cuda/kernels/linear_gemm.cuh"

/* x: quads of inputs of a row; y: rows. n_in is a multiple of 4, with GEMM_ORDER_QUANT of 16. */
KERNEL(linear_gemm_convert, gemm_convert_args, GEMM_THREADS, 4)
{
    int quad = (int)(blockIdx.x * GEMM_THREADS + threadIdx.x), row = (int)blockIdx.y;
    uint16_t *out = a.out + (size_t)row * (size_t)a.n_planes * (size_t)a.n_in;
    float v[4];

    depend_launch();
    depend_wait();
    if (quad >= a.n_in / 4 || row >= gemm_chunk_rows(a.n_rows, a.row0, a.rows_max)) {
        return;
    }
    {
        const float *x = a.x + (size_t)(a.row0 + row) * (size_t)a.n_in;

        if (a.perm) {
            UNROLL
            for (int i = 0; i < 4; i++) {
                v[i] = x[a.perm[4 * quad + i]];
            }
        } else {
            float4 q = *(const float4 *)(x + 4 * quad);

            v[0] = q.x;
            v[1] = q.y;
            v[2] = q.z;
            v[3] = q.w;
        }
    }
    for (int plane = 0; plane < a.n_planes; plane++, out += a.n_in) {
        uint16_t h[4];

        UNROLL
        for (int i = 0; i < 4; i++) {
            float term;

            h[i] = a.is_f16 ? f16_from_f32(v[i]) : bf16_from_f32(v[i]);
            term = a.is_f16 ? f16_to_f32(h[i]) : bf16_to_f32(h[i]);
            v[i] = v[i] - term;
            v[i] = v[i] == v[i] ? v[i] : 0.0f; /* nothing is left of an infinity */
        }
        if (a.order == GEMM_ORDER_QUANT) {
            uint32_t *to = (uint32_t *)(out + quad / 4 * 16) + quad % 4;

            to[0] = pack16(h[0], h[2]);
            to[4] = pack16(h[1], h[3]);
        } else {
            *(uint2 *)(out + 4 * quad) = make_uint2(pack16(h[0], h[1]), pack16(h[2], h[3]));
        }
    }
}

/* x: pairs of columns of all tiles; y: rows. The pieces are added in order. */
KERNEL(linear_gemm_reduce, linear_gemm_args, GEMM_THREADS, 4)
{
    int col = (int)(blockIdx.x * GEMM_THREADS + threadIdx.x) * 2, row = (int)blockIdx.y;
    size_t piece = (size_t)a.rows_max * (size_t)a.partial_cols;
    const float *from = a.partial + (size_t)row * (size_t)a.partial_cols + col;
    float sum[2] = {0, 0};

    depend_launch();
    depend_wait();
    if (col >= a.partial_cols || row >= gemm_chunk_rows(a.n_rows, a.row0, a.rows_max)) {
        return;
    }
    for (int i = 0; i < a.n_splits; i++) {
        float2 v = *(const float2 *)(from + (size_t)i * piece);

        sum[0] += v.x;
        sum[1] += v.y;
    }
    {
        struct gemm_part p = a.part[gemm_part_of(a, col / a.tile_cols)];

        gemm_store(&p, (size_t)(a.row0 + row), col - p.tile0 * a.tile_cols, sum[0], sum[1]);
    }
}
