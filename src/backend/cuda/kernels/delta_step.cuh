/* delta_step.cuh - one row of the gated delta rule with heads of 128: the state in a block's registers.
 *
 * Place:  backend/cuda/kernels; shared by delta_recurrent.cu and gdn_step.cu. delta_recurrent.cu says how
 *         the sums are arranged. A warp has as many rows of the state as the others (of eight: 16), a lane four
 *         columns of them. STEP_THREADS may be defined before. */
#ifndef BACKEND_CUDA_DELTA_STEP_CUH
#define BACKEND_CUDA_DELTA_STEP_CUH

#include "backend/cuda/kernels/delta.cuh"

#if !defined(STEP_THREADS)
#define STEP_THREADS DELTA_THREADS
#endif

enum { STEP_WARPS = STEP_THREADS / WARP, STEP_ROWS_OF_WARP = DELTA_DIM / STEP_WARPS };

/* A thread's part of the state, its first value being at `at`. The type is asked for once and not for each
 * row, so that all loads are on their way before the first is used. */
DEVICE void load_state(float (*S)[4], enum dtype t, const void *state, size_t at)
{
    if (t == DTYPE_F32) {
        UNROLL
        for (int i = 0; i < STEP_ROWS_OF_WARP; i++) {
            load4(S[i], (const float *)state + at + i * DELTA_DIM);
        }
    } else {
        uint2 w[STEP_ROWS_OF_WARP];

        UNROLL
        for (int i = 0; i < STEP_ROWS_OF_WARP; i++) {
            w[i] = *(const uint2 *)((const uint16_t *)state + at + i * DELTA_DIM);
        }
        UNROLL
        for (int i = 0; i < STEP_ROWS_OF_WARP; i++) {
            S[i][0] = f32_from_bits(w[i].x << 16);
            S[i][1] = f32_from_bits(w[i].x & 0xffff0000u);
            S[i][2] = f32_from_bits(w[i].y << 16);
            S[i][3] = f32_from_bits(w[i].y & 0xffff0000u);
        }
    }
}

DEVICE void store_state(enum dtype t, void *state, size_t at, const float (*S)[4])
{
    if (t == DTYPE_F32) {
        UNROLL
        for (int i = 0; i < STEP_ROWS_OF_WARP; i++) {
            store4((float *)state + at + i * DELTA_DIM, S[i]);
        }
    } else {
        UNROLL
        for (int i = 0; i < STEP_ROWS_OF_WARP; i++) {
            *(uint2 *)((uint16_t *)state + at + i * DELTA_DIM) = make_uint2(
                bf16_pair_from_f32(S[i][0], S[i][1]), bf16_pair_from_f32(S[i][2], S[i][3]));
        }
    }
}

/* What a thread needs of one row: where its warp's values of key and query lie (they are read once
 * more for the update, from the first-level cache, which saves registers), and its four columns' share. */
struct step_row {
    const float *key, *query;
    float kk, qq, kq; /* over the whole head, eps not yet in */
    float v[4], z[4];
    float beta, decay;
};

/* Key and query of a head, anywhere in memory; v, z and the gates are the caller's. */
DEVICE void step_row_keys(struct step_row *r, const float *key, const float *query)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    float k[4], q[4];

    load4(k, key + 4 * lane);
    load4(q, query + 4 * lane);
    r->key = key + warp * STEP_ROWS_OF_WARP;
    r->query = query + warp * STEP_ROWS_OF_WARP;
    r->kk = r->qq = r->kq = 0;
    UNROLL
    for (int i = 0; i < 4; i++) {
        r->kk += k[i] * k[i];
        r->qq += q[i] * q[i];
        r->kq += k[i] * q[i];
    }
    r->kk = warp_sum(r->kk);
    r->qq = warp_sum(r->qq);
    r->kq = warp_sum(r->kq);
}

/* This warp's share of S'k and S'q to its place in `part`, [warp][k, q][128]. */
DEVICE void step_partial(float (*part)[2][DELTA_DIM], const struct step_row *r, const float (*S)[4])
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    float sk[4] = {0, 0, 0, 0}, sq[4] = {0, 0, 0, 0};

    UNROLL
    for (int i = 0; i < STEP_ROWS_OF_WARP; i += 4) {
        float k[4], q[4];

        load4(k, r->key + i);
        load4(q, r->query + i);
        UNROLL
        for (int n = 0; n < 4; n++) {
            UNROLL
            for (int j = 0; j < 4; j++) {
                sk[j] += k[n] * S[i + n][j];
                sq[j] += q[n] * S[i + n][j];
            }
        }
    }
    store4(&part[warp][0][4 * lane], sk);
    store4(&part[warp][1][4 * lane], sq);
}

DEVICE void step_update(const struct step_row *r, float inverse_k, const float delta[4],
                        float (*S)[4])
{
    UNROLL
    for (int i = 0; i < STEP_ROWS_OF_WARP; i += 4) {
        float k[4];

        load4(k, r->key + i);
        UNROLL
        for (int n = 0; n < 4; n++) {
            float factor = inverse_k * k[n];

            UNROLL
            for (int j = 0; j < 4; j++) {
                S[i + n][j] = r->decay * S[i + n][j] + factor * delta[j];
            }
        }
    }
}

/* S'k or S'q of the thread's columns, once the warps' shares are in `part`. */
DEVICE void step_sum(float sum[4], float (*part)[2][DELTA_DIM], int which)
{
    int lane = (int)threadIdx.x % WARP;

    UNROLL
    for (int j = 0; j < 4; j++) {
        sum[j] = 0;
    }
    UNROLL
    for (int w = 0; w < STEP_WARPS; w++) {
        float v[4];

        load4(v, &part[w][which][4 * lane]);
        UNROLL
        for (int j = 0; j < 4; j++) {
            sum[j] += v[j];
        }
    }
}

/* What the row changes in the thread's four columns, whose S'k is `sum`. */
DEVICE void step_delta(float delta[4], const struct step_row *r, float inverse_k,
                       const float sum[4])
{
    UNROLL
    for (int j = 0; j < 4; j++) {
        delta[j] = r->beta * (r->v[j] - r->decay * inverse_k * sum[j]);
    }
}

/* The row's output, by one warp; sum: S'q of the lane's columns. */
DEVICE void step_output(const struct delta_args &a, int row, int h, const struct step_row *r,
                        float inverse_k, const float delta[4], const float sum[4])
{
    float o[4], inverse_q = rsqrt_f32(r->qq + DELTA_L2_EPS) * rsqrt_f32(DELTA_DIM);

    UNROLL
    for (int j = 0; j < 4; j++) {
        o[j] = inverse_q * (r->decay * sum[j] + inverse_k * r->kq * delta[j]);
    }
    delta_output4(a, row, h, o, r->z);
}

#endif
