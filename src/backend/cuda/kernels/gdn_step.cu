/* gdn_step.cu - the convolution and the delta rule of one token, as one kernel.
 *
 * Place:  backend/cuda/kernels; launched by cuda_fuse_gdn.c for decode steps.
 * Idea:   a block is one value head of one span. Its 128 channels each of query, key and value go through
 *         the convolution into shared memory, two channels a thread, and from there on it is delta_step. All
 *         that was there before the step (both states, the weights) is in registers before the kernels
 *         ahead have ended, and tickets are drawn, so what is left to wait for are the row's inputs.
 * State:  value heads that share a key head all need the old state of its channels, and none may write the
 *         new one before all have read. Each draws a ticket when it has; who draws the last writes. The
 *         values are the same in every block, so the order of blocks does not show. The channels of values
 *         belong to one block. */
#include "backend/cuda/kernels/gdn_args.h"

#define STEP_THREADS GDN_THREADS
#include "backend/cuda/kernels/delta_step.cuh"

enum {
    GDN_TAPS = CONV_QUAD_TAPS,
    PAIRS = DELTA_DIM / 2,             /* threads for a head's channels, two each */
    CONV_STEP_THREADS = 3 * PAIRS,     /* query, key, value */
    TICKET_THREAD = CONV_STEP_THREADS, /* these two have no channels */
    OUTPUT_WARP = STEP_WARPS - 1
};

/* A thread's two channels. */
struct gdn_pair {
    float2 weight, old[GDN_TAPS - 1]; /* weight of the step's row */
    size_t state_at;                  /* of its oldest column */
    int channel;
};

DEVICE float2 pair_load(enum dtype t, const void *p, size_t at)
{
    if (t == DTYPE_F32) {
        return *(const float2 *)((const float *)p + at);
    }
    uint32_t w = *(const uint32_t *)((const uint16_t *)p + at);
    uint16_t low = (uint16_t)w, high = (uint16_t)(w >> 16);

    return t == DTYPE_BF16 ? make_float2(bf16_to_f32(low), bf16_to_f32(high))
                           : make_float2(f16_to_f32(low), f16_to_f32(high));
}

DEVICE void pair_store(enum dtype t, void *p, size_t at, float2 v)
{
    if (t == DTYPE_F32) {
        *(float2 *)((float *)p + at) = v;
    } else {
        *(uint32_t *)((uint16_t *)p + at) =
            t == DTYPE_BF16 ? bf16_pair_from_f32(v.x, v.y) : f16_pair_from_f32(v.x, v.y);
    }
}

/* What is older than the step. */
DEVICE void pair_begin(struct gdn_pair *p, float2 weight[GDN_TAPS], const struct conv_args &a,
                       int channel, int slot, bool has_state)
{
    p->channel = channel;
    p->state_at = (size_t)slot * (GDN_TAPS - 1) * (size_t)a.channels + (size_t)channel;
    UNROLL
    for (int j = 0; j < GDN_TAPS; j++) {
        weight[j] = *(const float2 *)(a.weight + (size_t)j * a.channels + channel);
    }
    UNROLL
    for (int j = 0; j < GDN_TAPS - 1; j++) {
        p->old[j] = make_float2(0, 0);
        if (has_state) {
            p->old[j] =
                pair_load(a.state_dtype, a.state, p->state_at + (size_t)j * (size_t)a.channels);
        }
    }
}

/* The sum over what is older. To shared memory: then the old state has been read for certain when the block
 * meets. */
DEVICE void pair_sum(float2 *to, struct gdn_pair *p, const float2 weight[GDN_TAPS])
{
    float2 sum = make_float2(0, 0);

    UNROLL
    for (int j = 0; j < GDN_TAPS - 1; j++) {
        sum.x += weight[j].x * p->old[j].x;
        sum.y += weight[j].y * p->old[j].y;
    }
    p->weight = weight[GDN_TAPS - 1];
    *to = sum;
}

/* silu(sum over taps, oldest first), rounded. */
DEVICE float2 pair_conv(const struct gdn_pair *p, const struct conv_args &a, float2 sum, float2 x)
{
    sum.x += p->weight.x * x.x;
    sum.y += p->weight.y * x.y;
    return make_float2(round_f32(a.round, silu(sum.x)), round_f32(a.round, silu(sum.y)));
}

/* The state that the row leaves. */
DEVICE void pair_end(const struct gdn_pair *p, const struct conv_args &a, float2 x)
{
    UNROLL
    for (int j = 0; j < GDN_TAPS - 1; j++) {
        pair_store(a.state_dtype, a.state, p->state_at + (size_t)j * (size_t)a.channels,
                   j + 1 < GDN_TAPS - 1 ? p->old[j + 1] : x);
    }
}

/* This block has read the state of its key head's channels. One thread; whether all others have. */
DEVICE bool ticket_is_last(const struct gdn_args &a, int key_head)
{
    bool is_last;

    memory_fence();
    is_last = atomic_is_last(&a.tickets[(int)blockIdx.y * a.delta.nk + key_head],
                             a.delta.nv / a.delta.nk);
    memory_fence();
    return is_last;
}

DEVICE void state_zero(float (*S)[4])
{
    UNROLL
    for (int i = 0; i < STEP_ROWS_OF_WARP; i++) {
        S[i][0] = S[i][1] = S[i][2] = S[i][3] = 0;
    }
}

/* The warps' shares of S'k and S'q added up, a column by one thread, so that they are read once. */
DEVICE void gdn_totals(float (*total)[DELTA_DIM], float (*part)[2][DELTA_DIM])
{
    int which = (int)threadIdx.x / DELTA_DIM, c = (int)threadIdx.x % DELTA_DIM;
    float sum = 0;

    if (which < 2) {
        UNROLL
        for (int w = 0; w < STEP_WARPS; w++) {
            sum += part[w][which][c];
        }
        total[which][c] = sum;
    }
}

KERNEL(gdn_step, gdn_args, GDN_THREADS, GDN_PER_CARD)
{
    SHARED float mixed[3][DELTA_DIM]; /* query, key, value: sums, then after the convolution */
    SHARED float part[STEP_WARPS][2][DELTA_DIM];
    SHARED float total[2][DELTA_DIM], norm[DELTA_DIM];
    SHARED int32_t writes_keys;
    int me = (int)threadIdx.x, lane = me % WARP, warp = me / WARP;
    int h = (int)blockIdx.x, key_head = h / (a.delta.nv / a.delta.nk);
    int which = me / PAIRS, column = me % PAIRS * 2;
    bool has_channels = me < CONV_STEP_THREADS, has_slot;
    float2 *mine = (float2 *)&mixed[has_channels ? which : 0][column];
    struct step_span span = {0, 0, 0, 0, 0, 0};
    struct delta_args delta_args = a.delta;
    struct gdn_pair pair;
    struct step_row r;
    size_t state_at;
    float S[STEP_ROWS_OF_WARP][4], sum[4], delta[4], inverse_k, g;
    float2 x = make_float2(0, 0), weight[GDN_TAPS];

    depend_launch();
    if ((int)blockIdx.y < a.conv.view.counts[STEP_SPANS]) {
        span = a.conv.view.spans[blockIdx.y];
    }
    if (span.n_rows != 1) {
        depend_wait(); /* the next kernel takes our end for theirs */
        return;
    }
    /* The states were left by a step before this one: nobody writes them now. */
    has_slot = span.slot >= 0 && span.slot < a.conv.n_slots;
    state_at = ((size_t)span.slot * a.delta.nv + h) * (DELTA_DIM * DELTA_DIM);
    state_at += (size_t)(warp * STEP_ROWS_OF_WARP) * DELTA_DIM + 4 * lane;
    if (has_channels) {
        int head = which == 0 ? key_head : which == 1 ? a.delta.nk + key_head : 2 * a.delta.nk + h;

        pair_begin(&pair, weight, a.conv, head * DELTA_DIM + column, span.slot,
                   has_slot && !span.state_is_zero);
    }
    if (has_slot && !span.state_is_zero) {
        load_state(S, a.delta.state_dtype, a.delta.state, state_at);
    } else {
        state_zero(S);
    }
    delta_args.norm = norm;
    if (me < DELTA_DIM) {
        norm[me] = a.delta.norm[me];
    }
    if (has_channels) {
        pair_sum(mine, &pair, weight);
    }
    block_sync();
    if (me == TICKET_THREAD) { /* the others need not wait for its answer yet */
        writes_keys = ticket_is_last(a, key_head);
    }
    depend_wait();

    if (has_channels) {
        x = *(const float2 *)(a.conv.in + (size_t)span.row * a.conv.channels + pair.channel);
    }
    if (warp == OUTPUT_WARP) {
        load4(r.z, a.delta.z + ((size_t)span.row * a.delta.nv + h) * DELTA_DIM + 4 * lane);
    }
    delta_gates(a.delta, span.row, h, &r.beta, &g);
    r.decay = exp_f32(g);
    if (has_channels) {
        *mine = pair_conv(&pair, a.conv, *mine, x);
    }
    block_sync();
    if (has_slot && has_channels && (which == 2 || writes_keys)) {
        pair_end(&pair, a.conv, x);
    }
    load4(r.v, &mixed[2][4 * lane]);
    step_row_keys(&r, mixed[1], mixed[0]);
    step_partial(part, &r, S);
    block_sync();
    gdn_totals(total, part);
    inverse_k = rsqrt_f32(r.kk + DELTA_L2_EPS);
    block_sync();
    load4(sum, &total[0][4 * lane]);
    step_delta(delta, &r, inverse_k, sum);
    if (warp == OUTPUT_WARP) {
        load4(sum, &total[1][4 * lane]);
        step_output(delta_args, span.row, h, &r, inverse_k, delta, sum);
    }
    step_update(&r, inverse_k, delta, S);
    if (has_slot) {
        store_state(a.delta.state_dtype, a.delta.state, state_at, S);
    }
}
