/* emulator_test_kernels.cu - small kernels, some of them wrong, that test the emulator.
 *
 * Place: backend/cuda/emulator; never compiled for a card. */
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/mma.cuh"

#include "backend/cuda/emulator/emulator_test_args.h"

/* out[i] = in[i] + 1, a block per 64 elements; a grid may be too large. */
KERNEL(emulator_test_add, emulator_test_args, 64, 1)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);

    depend_launch();
    depend_wait();
    if (i < a.n) {
        ((float *)a.out)[i] = ((const float *)a.in)[i] + 1.0f;
    }
}

/* One sum per block over n floats, through static and dynamic shared memory. mode 1 leaves the barrier
 * out. */
KERNEL(emulator_test_sum, emulator_test_args, 256, 1)
{
    SHARED float part[8];
    DYNAMIC_SHARED(float, all);
    float sum = 0;

    depend_launch();
    depend_wait();
    all[threadIdx.x] = (int)threadIdx.x < a.n ? ((const float *)a.in)[threadIdx.x] : 0.0f;
    if (a.mode != 1) {
        block_sync();
    }
    sum = block_sum(all[blockDim.x - 1 - threadIdx.x], part);
    if (threadIdx.x == blockDim.x / 2) {
        ((float *)a.out)[blockIdx.x] = sum;
    }
}

/* What warp functions give each lane: five words. */
KERNEL(emulator_test_lanes, emulator_test_args, 64, 1)
{
    uint32_t *out = (uint32_t *)a.out + 5 * threadIdx.x;
    int lane = (int)(threadIdx.x % WARP);

    depend_launch();
    depend_wait();
    out[0] = shuffle(threadIdx.x, a.n);
    out[1] = shuffle_xor(threadIdx.x, 5);
    out[2] = shuffle_up(threadIdx.x, 3);
    out[3] = warp_ballot(lane % 3 == 0);
    for (int i = 0; i < lane; i++) { /* lanes come to the next meeting at different times */
        out[4] = (uint32_t)i;
    }
    out[4] = (uint32_t)shuffle_xor(1ull << 40 | threadIdx.x, 1);
    warp_sync();
}

/* d [16][8] = a [16][16 or 32] b [n][k] as mma takes them; mode: 0 bf16, 1 f16, 2 int8. */
KERNEL(emulator_test_mma, emulator_test_args, 32, 1)
{
    const uint8_t *in = (const uint8_t *)a.in, *in2 = (const uint8_t *)a.in2;
    int g = (int)threadIdx.x / 4, t = (int)threadIdx.x % 4;
    uint32_t fa[4], fb[2];
    union {
        float f[4];
        int32_t i[4];
    } d = {{0, 0, 0, 0}};

    depend_launch();
    depend_wait();
    for (int i = 0; i < 4; i++) {
        fa[i] = *(const uint32_t *)(in + 32 * (g + i % 2 * 8) + 4 * t + i / 2 * 16);
    }
    for (int i = 0; i < 2; i++) {
        fb[i] = *(const uint32_t *)(in2 + 32 * g + 4 * t + i * 16);
    }
    if (a.mode == 0) {
        mma_bf16(d.f, fa, fb);
        mma_bf16(d.f, fa, fb);
    } else if (a.mode == 1) {
        mma_f16(d.f, fa, fb);
        mma_f16(d.f, fa, fb);
    } else {
        mma_s8(d.i, fa, fb);
        mma_s8(d.i, fa, fb);
    }
    for (int i = 0; i < 4; i++) {
        ((int32_t *)a.out)[8 * (g + i / 2 * 8) + 2 * t + i % 2] = d.i[i];
    }
}

/* Four 8x8 matrices of 16-bit values through asynchronous copies and load_matrix4. mode 1: transposed;
 * 2: without the wait. */
KERNEL(emulator_test_matrix, emulator_test_args, 32, 1)
{
    SHARED uint16_t tile[4 * 64];
    uint32_t r[4];

    depend_launch();
    depend_wait();
    copy16_async(tile + 8 * threadIdx.x, (const uint16_t *)a.in + 8 * threadIdx.x,
                 (int)threadIdx.x < a.n);
    copy_commit();
    copy_commit(); /* an empty group */
    if (a.mode == 2) {
        copy_wait<2>();
    } else {
        copy_wait<1>();
    }
    warp_sync();
    if (a.mode == 1) {
        load_matrix4_trans(r, tile + 8 * threadIdx.x);
    } else {
        load_matrix4(r, tile + 8 * threadIdx.x);
    }
    for (int i = 0; i < 4; i++) {
        ((uint32_t *)a.out)[32 * i + (int)threadIdx.x] = r[i];
    }
}

/* Faults, by mode. */
KERNEL(emulator_test_faults, emulator_test_args, 64, 1)
{
    DYNAMIC_SHARED(float, shared);

    depend_launch();
    depend_wait();
    switch (a.mode) {
    case 0: /* half a warp waits for the block, half for the warp */
        if (threadIdx.x % 2) {
            block_sync();
        } else {
            warp_sync();
        }
        break;
    case 1: /* some have gone */
        if (threadIdx.x < 5) {
            return;
        }
        warp_sum(1.0f);
        break;
    case 2: /* different functions */
        if (threadIdx.x % 2) {
            warp_sync();
        } else {
            warp_ballot(true);
        }
        break;
    case 3:
        ((uint32_t *)a.out)[0] = load16((const char *)a.in + 4).x;
        break;
    case 4:
        shared[64] = 1;
        break;
    case 5:
        ((float *)a.out)[a.n] = 1;
        break;
    default:
        break;
    }
}

/* Threads that meet in shared memory, modes 1 to 3 without the barrier that they need; and what is done
 * before depend_wait(): mode 6 reads constants, 7 what kernels write, 8 writes. */
KERNEL(emulator_test_races, emulator_test_args, 64, 1)
{
    DYNAMIC_SHARED(uint32_t, shared);
    SHARED int32_t count;
    uint32_t t = threadIdx.x, sum = 0;

    depend_launch();
    if (a.mode == 6 || a.mode == 7) {
        sum = ((const uint32_t *)a.in)[t];
    } else if (a.mode == 8) {
        ((uint32_t *)a.out)[t] = t;
    }
    depend_wait();
    switch (a.mode) {
    case 0: /* the warp's own words, in order */
        shared[t] = t;
        warp_sync();
        sum = shared[t ^ 1];
        warp_sync();
        shared[t ^ 2] = sum;
        break;
    case 1: /* written before the other lane has read */
        shared[t] = t;
        warp_sync();
        sum = shared[t ^ 1];
        shared[t ^ 2] = sum;
        break;
    case 2: /* a shuffle orders no memory */
        shared[t] = t;
        sum = shuffle(t, 0);
        sum += shared[t ^ 1];
        break;
    case 3: /* the other warp */
        shared[t] = t;
        block_sync();
        sum = shared[0] + shared[63];
        warp_sync();
        if (t == 0) {
            shared[63] = sum;
        }
        break;
    case 4:
        shared[t] = t;
        block_sync();
        sum = shared[63 - t];
        block_sync();
        shared[t] = sum;
        break;
    case 5: /* atomics are in order */
        if (t == 0) {
            count = 0;
        }
        block_sync();
        atomic_add(&count, 1);
        block_sync();
        sum = (uint32_t)count;
        break;
    default:
        break;
    }
    ((uint32_t *)a.out)[t] = sum;
}
