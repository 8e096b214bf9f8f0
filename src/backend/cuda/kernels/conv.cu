/* conv.cu - causal depthwise convolution over the rows of a span, then silu; the state is carried.
 *
 * Place: backend/cuda/kernels; launched by cuda_conv.c.
 * Idea:  a thread walks down a run of rows with the last taps - 1 inputs of its channels, the window, in
 *        registers, so that an input is read once (and once more where a run starts). A run may have
 *        rows of several spans: where one starts, the inputs before it come from the slot's state.
 * State: one thread has the old state of a span's channels in its window, uses it, and writes the new
 *        one at once, although that is made of the span's last rows: those are inputs, which nobody
 *        writes. For this a span's first taps - 1 rows, which reach back to the state, stay together:
 *        a border between two runs that would part them moves down behind them. So nothing races and
 *        there is no second kernel. */
#include "backend/cuda/kernels/conv_args.h"
#include "backend/cuda/kernels/kernel.cuh"

enum { CONV_AHEAD = 4 }; /* rows that are asked for before the first is used */

/* N channels, N = 4 at 16-byte borders, or 1. */
template <int N> DEVICE void load_channels(float v[N], const float *p)
{
    if constexpr (N == CONV_QUAD) {
        float4 w = *(const float4 *)p;

        v[0] = w.x;
        v[1] = w.y;
        v[2] = w.z;
        v[3] = w.w;
    } else {
        v[0] = p[0];
    }
}

template <int N> DEVICE void store_channels(float *p, const float v[N])
{
    if constexpr (N == CONV_QUAD) {
        *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]);
    } else {
        p[0] = v[0];
    }
}

template <int N> DEVICE void load_state(float v[N], enum dtype t, const void *state, size_t at)
{
    if constexpr (N == CONV_QUAD) {
        if (t == DTYPE_F32) {
            load_channels<N>(v, (const float *)state + at);
        } else {
            uint2 w = *(const uint2 *)((const uint16_t *)state + at);
            uint16_t half[N] = {(uint16_t)w.x, (uint16_t)(w.x >> 16), (uint16_t)w.y,
                                (uint16_t)(w.y >> 16)};

            UNROLL
            for (int i = 0; i < N; i++) {
                v[i] = t == DTYPE_BF16 ? bf16_to_f32(half[i]) : f16_to_f32(half[i]);
            }
        }
    } else {
        v[0] = load_f32(t, state, at);
    }
}

template <int N> DEVICE void store_state(enum dtype t, void *state, size_t at, const float v[N])
{
    if constexpr (N == CONV_QUAD) {
        if (t == DTYPE_F32) {
            store_channels<N>((float *)state + at, v);
        } else {
            uint32_t half[N];

            UNROLL
            for (int i = 0; i < N; i++) {
                half[i] = t == DTYPE_BF16 ? bf16_from_f32(v[i]) : f16_from_f32(v[i]);
            }
            *(uint2 *)((uint16_t *)state + at) =
                make_uint2(half[0] | half[1] << 16, half[2] | half[3] << 16);
        }
    } else {
        store_f32(t, state, at, v[0]);
    }
}

/* v[j]: the input TAPS - 1 - j rows before the next one. */
template <int TAPS, int N> struct conv_window {
    float v[TAPS - 1][N];
};

/* With fewer taps than TAPS, the first places of windows and weights are not used. */
template <int TAPS, int N> DEVICE int conv_pad(const struct conv_args *a)
{
    return N == CONV_QUAD ? 0 : TAPS - a->taps;
}

template <int TAPS, int N> DEVICE void window_push(struct conv_window<TAPS, N> *w, const float x[N])
{
    UNROLL
    for (int i = 0; i < N; i++) {
        UNROLL
        for (int j = 0; j + 1 < TAPS - 1; j++) {
            w->v[j][i] = w->v[j + 1][i];
        }
        w->v[TAPS - 2][i] = x[i];
    }
}

DEVICE const float *conv_row(const struct conv_args *a, int row, int channel)
{
    return a->in + (size_t)row * a->channels + channel;
}

/* Before a row of which the span has taps - 1 others before it. */
template <int TAPS, int N>
DEVICE void window_from_rows(struct conv_window<TAPS, N> *w, const struct conv_args *a, int row,
                             int channel)
{
    UNROLL
    for (int j = 0; j < TAPS - 1; j++) {
        if (j >= conv_pad<TAPS, N>(a)) {
            load_channels<N>(w->v[j], conv_row(a, row - (TAPS - 1 - j), channel));
        }
    }
}

/* Before a span's first row; and the state that the span will leave takes the old one's place. */
template <int TAPS, int N>
DEVICE void window_from_state(struct conv_window<TAPS, N> *w, const struct conv_args *a,
                              const struct step_span *span, int channel)
{
    int pad = conv_pad<TAPS, N>(a);
    bool has_state = span->slot >= 0 && span->slot < a->n_slots;
    size_t at = ((size_t)span->slot * (a->taps - 1)) * a->channels + channel;
    float next[TAPS - 1][N];

    UNROLL
    for (int j = 0; j < TAPS - 1; j++) {
        if (j >= pad && has_state && !span->state_is_zero) {
            load_state<N>(w->v[j], a->state_dtype, a->state, at + (size_t)(j - pad) * a->channels);
        } else {
            UNROLL
            for (int i = 0; i < N; i++) {
                w->v[j][i] = 0;
            }
        }
    }
    UNROLL
    for (int j = 0; j < TAPS - 1; j++) {
        int t = span->n_rows + j - (TAPS - 1);

        if (t >= 0) {
            load_channels<N>(next[j], conv_row(a, span->row + t, channel));
        } else { /* a short span keeps some of the old state; no register is indexed by a variable */
            UNROLL
            for (int k = 0; k < TAPS - 1; k++) {
                UNROLL
                for (int i = 0; i < N; i++) {
                    next[j][i] = k == j + span->n_rows ? w->v[k][i] : next[j][i];
                }
            }
        }
    }
    UNROLL
    for (int j = 0; j < TAPS - 1; j++) {
        if (j >= pad && has_state) {
            store_state<N>(a->state_dtype, a->state, at + (size_t)(j - pad) * a->channels, next[j]);
        }
    }
}

/* out = silu(sum over taps, oldest first); then x joins the window. */
template <int TAPS, int N>
DEVICE void conv_one(const struct conv_args *a, const float weight[TAPS][N],
                     struct conv_window<TAPS, N> *w, const float x[N], float *out)
{
    float y[N];

    UNROLL
    for (int i = 0; i < N; i++) {
        float sum = 0;

        UNROLL
        for (int j = 0; j < TAPS - 1; j++) {
            if (j >= conv_pad<TAPS, N>(a)) {
                sum += weight[j][i] * w->v[j][i];
            }
        }
        y[i] = round_f32(a->round, silu(sum + weight[TAPS - 1][i] * x[i]));
    }
    store_channels<N>(out, y);
    window_push<TAPS, N>(w, x);
}

/* Rows [row, end) of one span, the window being right for the first. */
template <int TAPS, int N>
DEVICE void conv_walk(const struct conv_args *a, const float weight[TAPS][N],
                      struct conv_window<TAPS, N> *w, int row, int end, int channel)
{
    for (; row < end; row += CONV_AHEAD) {
        float x[CONV_AHEAD][N];

        UNROLL
        for (int j = 0; j < CONV_AHEAD; j++) {
            if (row + j < end) {
                load_channels<N>(x[j], conv_row(a, row + j, channel));
            }
        }
        UNROLL
        for (int j = 0; j < CONV_AHEAD; j++) {
            if (row + j < end) {
                conv_one<TAPS, N>(a, weight, w, x[j],
                                  a->out + (size_t)(row + j) * a->channels + channel);
            }
        }
    }
}

/* Where a border between runs at `row` really lies. */
DEVICE int run_border(const struct conv_args *a, int row, int n_rows)
{
    const struct step_span *span;
    int head_end;

    if (row >= n_rows) {
        return n_rows;
    }
    span = &a->view.spans[a->view.row_span[row]];
    head_end = span->row + (span->n_rows < a->taps - 1 ? span->n_rows : a->taps - 1);
    return row > span->row && row < head_end ? head_end : row;
}

template <int TAPS, int N> DEVICE void conv_run(const struct conv_args *a)
{
    int channel = ((int)blockIdx.x * CONV_THREADS + (int)threadIdx.x) * N;
    int n_rows = a->view.counts[STEP_ROWS], first = (int)blockIdx.y * a->rows_per_block;
    int row = run_border(a, first, n_rows), end = run_border(a, first + a->rows_per_block, n_rows);
    bool exists = channel < a->channels;
    float weight[TAPS][N];

    UNROLL
    for (int j = 0; j < TAPS; j++) {
        int tap = j - conv_pad<TAPS, N>(a);

        if (exists && tap >= 0) {
            load_channels<N>(weight[j], a->weight + (size_t)tap * a->channels + channel);
        }
    }
    depend_wait();
    while (exists && row < end) {
        struct step_span span = a->view.spans[a->view.row_span[row]];
        int span_end = span.row + span.n_rows, stop = span_end < end ? span_end : end;
        struct conv_window<TAPS, N> w;

        if (row == span.row) {
            window_from_state<TAPS, N>(&w, a, &span, channel);
        } else {
            window_from_rows<TAPS, N>(&w, a, row, channel);
        }
        conv_walk<TAPS, N>(a, weight, &w, row, stop, channel);
        row = stop > row ? stop : row + 1; /* it is; no table keeps a thread here for ever */
    }
}

/* Four taps, channels in fours at 16-byte borders. */
KERNEL(conv4_quads, conv_args, CONV_THREADS, 4)
{
    depend_launch();
    conv_run<CONV_QUAD_TAPS, CONV_QUAD>(&a);
}

/* Up to CONV_ANY_TAPS taps, any channels. */
KERNEL(conv_any, conv_args, CONV_THREADS, 4)
{
    depend_launch();
    conv_run<CONV_ANY_TAPS, 1>(&a);
}
