/* rows.cu - the ops that treat each row by itself: embedding, norm, swiglu, residual sums, checks, gather.
 *
 * Place: backend/cuda/kernels; launched by cuda_rows.c.
 * Speed: all of it is reading and writing memory, or in small steps waiting for the first word; so a
 *        thread has one quad and no loop (norm: up to four quads, kept in registers between the sum and
 *        the product). Step tables and constants are read before the wait for earlier kernels. */
#include "backend/cuda/kernels/quad.cuh"
#include "backend/cuda/kernels/rows_args.h"

DEVICE int thread_quad(void)
{
    return (int)(blockIdx.y * blockDim.x + threadIdx.x);
}

DEVICE bool quad_exists(int row, int n_rows, int quad, int cols)
{
    return row < n_rows && QUAD * quad < cols;
}

DEVICE float not_a_number(void)
{
    return f32_from_bits(0x7fc00000u);
}

/* --- embedding --- */

/* Four 16-bit floats, aligned to 8 bytes. */
DEVICE void load_halfs(float v[QUAD], enum dtype t, const void *p)
{
    uint2 w = *(const uint2 *)p;
    uint16_t half[QUAD] = {(uint16_t)w.x, (uint16_t)(w.x >> 16), (uint16_t)w.y,
                           (uint16_t)(w.y >> 16)};

    UNROLL
    for (int i = 0; i < QUAD; i++) {
        v[i] = t == DTYPE_BF16 ? bf16_to_f32(half[i]) : f16_to_f32(half[i]);
    }
}

DEVICE void load_embedding(float v[QUAD], const struct embed_args *a, int32_t token, int quad)
{
    size_t at = (size_t)token * (size_t)a->cols, c = QUAD * (size_t)quad;

    if (a->dtype == DTYPE_F32) {
        load_quad(v, (const float *)a->table + at, quad, a->cols, a->is_wide);
    } else if (a->is_wide) {
        load_halfs(v, a->dtype, (const uint16_t *)a->table + at + c);
    } else {
        UNROLL
        for (int i = 0; i < QUAD; i++) {
            v[i] = (int)c + i < a->cols ? load_f32(a->dtype, a->table, at + c + i) : 0.0f;
        }
    }
}

/* The table may be in host memory: neighbours read neighbouring words, so the link is asked for whole lines.
 * A token outside the table, which the host does not let pass, becomes NaN: the checks will tell. */
KERNEL(embed_rows, embed_args, ROWS_THREADS_MAX, 4)
{
    int row = (int)blockIdx.x, quad = thread_quad();
    bool exists;
    float v[QUAD];

    depend_launch();
    exists = quad_exists(row, a.view.counts[STEP_ROWS], quad, a.cols);
    if (exists) {
        int32_t token = a.view.tokens[row];

        if (token >= 0 && token < a.n_tokens) {
            load_embedding(v, &a, token, quad);
            round_quad(a.round, v);
        } else {
            v[0] = v[1] = v[2] = v[3] = not_a_number();
        }
    }
    depend_wait();
    if (exists) {
        store_quad(a.out + (size_t)row * a.cols, quad, a.cols, a.is_wide, v);
    }
}

/* --- norm --- */

enum { NORM_HELD = 4 }; /* quads that a thread keeps; longer rows are read again */

DEVICE float square_sum(const float v[QUAD])
{
    return v[0] * v[0] + v[1] * v[1] + (v[2] * v[2] + v[3] * v[3]);
}

DEVICE void norm_store(const struct norm_args *a, float *out, int quad, const float x[QUAD],
                       const float weight[QUAD], float inverse)
{
    float v[QUAD];

    UNROLL
    for (int i = 0; i < QUAD; i++) {
        v[i] = x[i] * inverse * weight[i];
    }
    round_quad(a->round, v);
    store_quad(out, quad, a->cols, a->is_wide, v);
}

KERNEL(norm_rows, norm_args, NORM_THREADS, 2)
{
    SHARED float part[NORM_THREADS / WARP];
    int row = (int)blockIdx.x, first = (int)threadIdx.x, n_quads = (a.cols + QUAD - 1) / QUAD;
    const float *in = a.in + (size_t)row * a.cols;
    float *out = a.out + (size_t)row * a.cols;
    float x[NORM_HELD][QUAD], weight[NORM_HELD][QUAD], sum = 0, inverse;

    depend_launch();
    UNROLL
    for (int j = 0; j < NORM_HELD; j++) {
        if (first + j * NORM_THREADS < n_quads) {
            load_quad(weight[j], a.weight, first + j * NORM_THREADS, a.cols, a.is_wide);
        }
    }
    depend_wait();
    if (row >= a.view.counts[a.count]) {
        return;
    }
    UNROLL
    for (int j = 0; j < NORM_HELD; j++) {
        if (first + j * NORM_THREADS < n_quads) {
            load_quad(x[j], in, first + j * NORM_THREADS, a.cols, a.is_wide);
        }
    }
    UNROLL
    for (int j = 0; j < NORM_HELD; j++) {
        if (first + j * NORM_THREADS < n_quads) {
            sum += square_sum(x[j]);
        }
    }
    for (int q = first + NORM_HELD * NORM_THREADS; q < n_quads; q += NORM_THREADS) {
        float more[QUAD];

        load_quad(more, in, q, a.cols, a.is_wide);
        sum += square_sum(more);
    }
    inverse = rsqrt_f32(block_sum(sum, part) / (float)a.cols + a.eps);
    UNROLL
    for (int j = 0; j < NORM_HELD; j++) {
        if (first + j * NORM_THREADS < n_quads) {
            norm_store(&a, out, first + j * NORM_THREADS, x[j], weight[j], inverse);
        }
    }
    for (int q = first + NORM_HELD * NORM_THREADS; q < n_quads; q += NORM_THREADS) {
        float more[QUAD], weight_more[QUAD];

        load_quad(more, in, q, a.cols, a.is_wide);
        load_quad(weight_more, a.weight, q, a.cols, a.is_wide);
        norm_store(&a, out, q, more, weight_more, inverse);
    }
}

/* --- swiglu --- */

KERNEL(swiglu_rows, swiglu_args, ROWS_THREADS_MAX, 4)
{
    int row = (int)blockIdx.x, quad = thread_quad();
    size_t at = (size_t)row * a.cols;
    float gate[QUAD], up[QUAD];

    depend_launch();
    depend_wait();
    if (!quad_exists(row, a.view.counts[a.count], quad, a.cols)) {
        return;
    }
    load_quad(gate, a.gate + at, quad, a.cols, a.is_wide);
    load_quad(up, a.up + at, quad, a.cols, a.is_wide);
    UNROLL
    for (int i = 0; i < QUAD; i++) {
        up[i] *= silu(gate[i]);
    }
    round_quad(a.round, up);
    store_quad(a.out + at, quad, a.cols, a.is_wide, up);
}

/* --- residual sums --- */

KERNEL(add_shared_rows, add_shared_args, ROWS_THREADS_MAX, 4)
{
    int row = (int)blockIdx.x, quad = thread_quad();
    size_t at = (size_t)row * a.cols;
    float x[QUAD], routed[QUAD], shared[QUAD] = {0, 0, 0, 0}, share = 1.0f;

    depend_launch();
    depend_wait();
    if (!quad_exists(row, a.view.counts[a.count], quad, a.cols)) {
        return;
    }
    load_quad(x, a.x + at, quad, a.cols, a.is_wide);
    load_quad(routed, a.routed + at, quad, a.cols, a.is_wide);
    if (a.shared) {
        load_quad(shared, a.shared + at, quad, a.cols, a.is_wide);
        share = a.gate ? sigmoid(a.gate[row]) : 1.0f;
    }
    UNROLL
    for (int i = 0; i < QUAD; i++) {
        x[i] += routed[i];
        if (a.shared) {
            x[i] += share * shared[i];
        }
    }
    store_quad(a.x + at, quad, a.cols, a.is_wide, x);
}

/* --- check --- */

DEVICE bool is_finite(float v)
{
    return (f32_bits(v) & 0x7f800000u) != 0x7f800000u;
}

/* Row of the step that row i of the op is; -1: none. */
DEVICE int step_row(const struct step_view *view, enum step_count count, int i)
{
    int row = count == STEP_OUT_ROWS ? view->out_rows[i] : i;

    return row >= 0 && row < view->counts[STEP_ROWS] ? row : -1;
}

KERNEL(check_rows, check_args, ROWS_THREADS_MAX, 4)
{
    int i = (int)blockIdx.x, quad = thread_quad();
    bool is_bad = false;

    depend_launch();
    depend_wait();
    if (quad_exists(i, a.view.counts[a.count], quad, a.cols)) {
        float v[QUAD];

        load_quad(v, a.x + (size_t)i * a.cols, quad, a.cols, a.is_wide);
        is_bad = !(is_finite(v[0]) && is_finite(v[1]) && is_finite(v[2]) && is_finite(v[3]));
    }
    if (warp_ballot(is_bad) != 0 && threadIdx.x % WARP == 0) {
        int row = step_row(&a.view, a.count, i);

        if (row >= 0) {
            atomic_min(&a.view.bad_layer[row], a.layer);
        }
    }
}

/* --- gather --- */

KERNEL(gather_rows, gather_args, ROWS_THREADS_MAX, 4)
{
    int i = (int)blockIdx.x, quad = thread_quad(), row = -1;
    bool exists;
    float v[QUAD];

    depend_launch();
    exists = quad_exists(i, a.view.counts[STEP_OUT_ROWS], quad, a.cols);
    if (exists) {
        row = step_row(&a.view, STEP_OUT_ROWS, i);
        v[0] = v[1] = v[2] = v[3] = not_a_number();
    }
    depend_wait();
    if (!exists) {
        return;
    }
    if (row >= 0) {
        load_quad(v, a.in + (size_t)row * a.cols, quad, a.cols, a.is_wide);
        round_quad(a.round, v);
    }
    store_quad(a.out + (size_t)i * a.cols, quad, a.cols, a.is_wide, v);
}
