/* delta_recurrent.cu - the gated delta rule row by row, for decoding and short spans.
 *
 * Place:  backend/cuda/kernels; launched by cuda_delta.c. A block is one value head of one span; it takes
 *         the span's rows in order with the state in registers (delta_step: heads of 128) or, some
 *         columns at a time, in shared memory (delta_any: heads of any size), so that the state is read
 *         once and written once.
 * Idea:   with S the state before the row,
 *             delta = beta (v - decay S'k)      out = decay S'q + (k.q) delta      S = decay S + k delta'
 *         so both sums over S run at once, on k and q as they come: their norms are factors of the sums.
 *         A warp has 16 rows of S, a lane four columns of them; the warps' partial sums meet in shared
 *         memory and every warp adds them up for itself. That is one barrier a row, and one warp, another
 *         one for each row, goes on to the output's norm while the others begin the next row. */
#include "backend/cuda/kernels/delta_step.cuh"

/* The span of this block; none when it has no rows. No kernel of a step writes its tables, so they may be
 * read before depend_wait(). */
DEVICE struct step_span recurrent_span(const struct delta_args &a)
{
    struct step_span span = {0, 0, 0, 0, 0, 0};

    if ((int)blockIdx.y < a.view.counts[STEP_SPANS]) {
        span = a.view.spans[blockIdx.y];
        if (span.n_rows >= a.chunk_min) {
            span.n_rows = 0;
        }
    }
    return span;
}

DEVICE void load_step_row(struct step_row *r, const struct delta_args &a, int row, int h)
{
    int lane = (int)threadIdx.x % WARP;
    int key_head = h / (a.nv / a.nk), n_keys = a.nk * DELTA_DIM;
    const float *x = a.qkv + (size_t)row * (2 * n_keys + a.nv * DELTA_DIM);
    const float *query = x + key_head * DELTA_DIM;
    float g;

    load4(r->v, x + 2 * n_keys + h * DELTA_DIM + 4 * lane);
    load4(r->z, a.z + ((size_t)row * a.nv + h) * DELTA_DIM + 4 * lane);
    delta_gates(a, row, h, &r->beta, &g);
    r->decay = exp_f32(g);
    step_row_keys(r, query + n_keys, query);
}

KERNEL(delta_step, delta_args, DELTA_THREADS, 2)
{
    SHARED float part[2][STEP_WARPS][2][DELTA_DIM];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int h = (int)blockIdx.x;
    struct step_span span;
    size_t state_at;
    float S[STEP_ROWS_OF_WARP][4];

    depend_launch();
    span = recurrent_span(a);
    state_at = ((size_t)span.slot * a.nv + h) * (DELTA_DIM * DELTA_DIM);
    state_at += (size_t)(warp * STEP_ROWS_OF_WARP) * DELTA_DIM + 4 * lane;
    if (span.n_rows > 0 && !span.state_is_zero) {
        /* The warp's rows, 64 or 32 lines, come closer while the convolution before this op ends. */
        const uint8_t *lines =
            (const uint8_t *)a.state + (state_at - 4 * lane) * (a.state_dtype == DTYPE_F32 ? 4 : 2);

        prefetch_line(lines + lane * 128);
        if (a.state_dtype == DTYPE_F32) {
            prefetch_line(lines + (WARP + lane) * 128);
        }
    }
    depend_wait(); /* also where there is nothing to do: the next kernel takes our end for theirs */
    if (span.n_rows == 0) {
        return;
    }

    if (!span.state_is_zero) {
        load_state(S, a.state_dtype, a.state, state_at);
    } else {
        UNROLL
        for (int i = 0; i < STEP_ROWS_OF_WARP; i++) {
            S[i][0] = S[i][1] = S[i][2] = S[i][3] = 0;
        }
    }
    for (int t = 0; t < span.n_rows; t++) {
        struct step_row r;
        float sum[4], delta[4], inverse_k;

        load_step_row(&r, a, span.row + t, h);
        step_partial(part[t % 2], &r, S);
        block_sync();
        inverse_k = rsqrt_f32(r.kk + DELTA_L2_EPS);
        step_sum(sum, part[t % 2], 0);
        step_delta(delta, &r, inverse_k, sum);
        if (warp == t % STEP_WARPS) {
            step_sum(sum, part[t % 2], 1);
            step_output(a, span.row + t, h, &r, inverse_k, delta, sum);
        }
        step_update(&r, inverse_k, delta, S);
    }
    store_state(a.state_dtype, a.state, state_at, S);
}

/* ---- heads of any size ---- */

/* Key and query of a row into shared memory; their scale factors. All threads call. */
DEVICE void any_inputs(const struct delta_args &a, int row, int h, float *k, float *q, float *part,
                       float *inverse_k, float *inverse_q)
{
    int key_head = h / (a.nv / a.nk), n_keys = a.nk * a.dk;
    const float *query = a.qkv + (size_t)row * (2 * n_keys + a.nv * a.dv) + key_head * a.dk;
    float kk = 0, qq = 0;

    block_sync(); /* the row before is done with them */
    for (int d = (int)threadIdx.x; d < a.dk; d += DELTA_ANY_THREADS) {
        q[d] = query[d];
        k[d] = query[n_keys + d];
        qq += q[d] * q[d];
        kk += k[d] * k[d];
    }
    *inverse_k = rsqrt_f32(block_sum(kk, part) + DELTA_L2_EPS);
    *inverse_q = rsqrt_f32(block_sum(qq, part + DELTA_ANY_THREADS / WARP) + DELTA_L2_EPS) *
                 rsqrt_f32((float)a.dk);
}

/* One row for the column whose state is S[d * columns], d < dk. */
DEVICE float any_column(float *S, int columns, const float *k, const float *q, int dk, float v,
                        float beta, float decay, float inverse_k, float inverse_q)
{
    float sum = 0, out = 0, delta;

    for (int d = 0; d < dk; d++) {
        sum += k[d] * S[d * columns];
    }
    delta = beta * (v - decay * inverse_k * sum) * inverse_k;
    for (int d = 0; d < dk; d++) {
        float s = decay * S[d * columns] + k[d] * delta;

        S[d * columns] = s;
        out += q[d] * s;
    }
    return out * inverse_q;
}

DEVICE void any_norm(const struct delta_args &a, int row, int h, float *part)
{
    size_t at = ((size_t)row * a.nv + h) * a.dv;
    float sum = 0, inverse;

    block_sync(); /* the row before is done with part, and the columns are written */
    for (int j = (int)threadIdx.x; j < a.dv; j += DELTA_ANY_THREADS) {
        sum += a.out[at + j] * a.out[at + j];
    }
    inverse = rsqrt_f32(block_sum(sum, part) / (float)a.dv + a.eps);
    for (int j = (int)threadIdx.x; j < a.dv; j += DELTA_ANY_THREADS) {
        float o = a.out[at + j] * inverse * a.norm[j] * silu(a.z[at + j]);

        a.out[at + j] = round_f32(a.round, o);
    }
}

/* Columns of a state need nothing of each other, so a block takes a.columns of them at a time through all
 * rows and leaves the raw outputs in `out`, where the norm finds them. */
KERNEL(delta_any, delta_args, DELTA_ANY_THREADS, 1)
{
    DYNAMIC_SHARED(float, S); /* [dk][columns], then k and q [dk] */
    SHARED float part[2 * DELTA_ANY_THREADS / WARP];
    int h = (int)blockIdx.x, column = (int)threadIdx.x;
    int values_at = 2 * a.nk * a.dk + h * a.dv, cols = 2 * a.nk * a.dk + a.nv * a.dv;
    float *k = S + a.dk * a.columns, *q = k + a.dk;
    size_t state_at;
    struct step_span span;

    depend_launch();
    depend_wait();
    span = recurrent_span(a);
    if (span.n_rows == 0) {
        return;
    }
    state_at = ((size_t)span.slot * a.nv + h) * ((size_t)a.dk * a.dv);
    for (int first = 0; first < a.dv; first += a.columns) {
        int j = first + column;
        bool is_mine = column < a.columns && j < a.dv;

        for (int d = 0; d < a.dk && is_mine; d++) {
            S[d * a.columns + column] =
                span.state_is_zero
                    ? 0.0f
                    : load_f32(a.state_dtype, a.state, state_at + (size_t)d * a.dv + j);
        }
        for (int row = span.row; row < span.row + span.n_rows; row++) {
            float inverse_k, inverse_q, beta, g;

            any_inputs(a, row, h, k, q, part, &inverse_k, &inverse_q);
            delta_gates(a, row, h, &beta, &g);
            if (is_mine) {
                a.out[((size_t)row * a.nv + h) * a.dv + j] = any_column(
                    S + column, a.columns, k, q, a.dk, a.qkv[(size_t)row * cols + values_at + j],
                    beta, exp_f32(g), inverse_k, inverse_q);
            }
        }
        for (int d = 0; d < a.dk && is_mine; d++) {
            store_f32(a.state_dtype, a.state, state_at + (size_t)d * a.dv + j,
                      S[d * a.columns + column]);
        }
    }
    for (int row = span.row; row < span.row + span.n_rows; row++) {
        any_norm(a, row, h, part);
    }
}
