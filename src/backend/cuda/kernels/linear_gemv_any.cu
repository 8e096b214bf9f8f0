/* linear_gemv_any.cu - W x for every shape and alignment, without haste.
 *
 * Place: backend/cuda/kernels; launched by cuda_linear.c for what the other kernels do not take: dense rows
 *        that are not a multiple of 16 bytes, and inputs too long for shared memory.
 * Idea:  a warp has one output and up to LINEAR_ANY_ROWS rows of x, which it reads where they are; lanes
 *        take every 32nd input. */
#include "backend/cuda/kernels/linear_gemv.cuh"

DEVICE float weight_at(const struct linear_args *a, const struct linear_part *part, size_t n,
                       uint32_t k)
{
    const uint8_t *data = (const uint8_t *)part->data;
    size_t n_in = (size_t)a->n_in, i;
    uint32_t q, zero;

    if (part->kind == LINEAR_DENSE) {
        return load_f32((enum dtype)part->dtype, data, n * n_in + k);
    }
    if (part->kind == LINEAR_INT8) {
        q = data[n * n_in + k];
        zero = 128;
    } else {
        uint32_t byte = data[n * (n_in / 2) + k / 32 * 16 + k % 16];

        q = k % 32 < 16 ? byte & 15 : byte >> 4;
        zero = 8;
    }
    i = n * (size_t)part->n_groups + k / 32 / (uint32_t)part->group_blocks;
    if (part->zeros) {
        zero = part->zeros[i];
    }
    return load_f32((enum dtype)part->dtype, part->scales, i) * (float)((int)q - (int)zero);
}

/* A block has a warp per output; blocks of a part follow each other. */
KERNEL(linear_gemv_any, linear_args, WARP *LINEAR_WARPS_FEW, 2)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int row0 = (int)blockIdx.y * LINEAR_ANY_ROWS, n_rows, p = 0, n;
    const struct linear_part *part;
    const float *x = a.x + (size_t)row0 * (size_t)a.n_in;
    float sums[LINEAR_ANY_ROWS] = {};

    depend_launch();
    depend_wait();
    n_rows = *a.n_rows - row0;
    while (p + 1 < a.n_parts && (int)blockIdx.x >= a.part[p + 1].first_tile) {
        p++;
    }
    part = &a.part[p];
    n = ((int)blockIdx.x - part->first_tile) * LINEAR_WARPS_FEW + warp;
    if (n_rows <= 0 || n >= part->n_out) {
        return;
    }
    for (uint32_t k = (uint32_t)lane; k < (uint32_t)a.n_in; k += WARP) {
        float w = weight_at(&a, part, (size_t)n, k);
        uint32_t from = part->perm ? (uint32_t)part->perm[k] : k;

        UNROLL
        for (int r = 0; r < LINEAR_ANY_ROWS; r++) {
            if (r < n_rows && from < (uint32_t)a.n_in) {
                sums[r] += w * x[(size_t)r * (size_t)a.n_in + from];
            }
        }
    }
    UNROLL
    for (int r = 0; r < LINEAR_ANY_ROWS; r++) {
        float sum = warp_sum(sums[r]);

        if (lane == 0 && r < n_rows) {
            put_result(part, row0 + r, n, result_before(part, row0 + r, n), sum);
        }
    }
}
