/* kernel.cuh - the device language as our kernels use it, on a card and under the emulator.
 *
 * Place:  backend/cuda/kernels; the first include of every .cu file.
 * Idea:   a kernel takes one struct by value, declared in a header that the C launcher includes too, so
 *         that both sides agree by type. Everything that is not plain C goes through the names below:
 *         nvcc compiles them to instructions, the emulator (emulator/device.h, a C++ compiler, one
 *         fiber per thread) to functions, so that the same source is tested where there is no card.
 *         Matrix instructions and asynchronous copies are in mma.cuh.
 * Rules:  - KERNEL(name, args, threads, blocks) { ... } with `a` of type `const struct args`.
 *         - The first statement is depend_launch(). Before it reads or writes anything that an earlier
 *           kernel may have written or still reads, a kernel calls depend_wait(); weights and
 *           constants may be fetched before that.
 *         - Every path through a kernel passes depend_wait(), that of a block with nothing to do too: the
 *           next kernel waits for this one alone, and a grid that ended without having waited would
 *           let it overtake the kernel before.
 *         - Rows, spans and positions come from the step's tables (step_args.h), never from the grid
 *           alone: a grid may be larger than the step.
 *         - No library calls, no malloc, no printf, no recursion; float arithmetic in float32.
 *         - Barriers and warp functions are reached by all threads of the block or warp. */
#ifndef BACKEND_CUDA_KERNEL_CUH
#define BACKEND_CUDA_KERNEL_CUH

#include <stddef.h>
#include <stdint.h>

#include "base/tensor.h"

#if defined(__CUDACC__)

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#define KERNEL(name, args, threads, blocks)                                                        \
    extern "C" __global__ void __launch_bounds__(threads, blocks)                                  \
        name(const __grid_constant__ struct args a)
#define DEVICE static __device__ __forceinline__
#define SHARED __shared__ __align__(16)
/* The block's dynamic shared memory, as an array of `type` called `name`, 128-byte aligned. */
#define DYNAMIC_SHARED(type, name)                                                                 \
    extern __shared__ __align__(128) unsigned char dynamic_shared[];                               \
    type *name = (type *)dynamic_shared
#define UNROLL _Pragma("unroll")

/* The next kernel may start its independent part; wait until the ones before have ended. */
DEVICE void depend_launch(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

DEVICE void depend_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

DEVICE void block_sync(void)
{
    __syncthreads();
}
DEVICE void warp_sync(void)
{
    __syncwarp();
}
template <typename T> DEVICE T shuffle(T v, int lane)
{
    return __shfl_sync(0xffffffffu, v, lane);
}
template <typename T> DEVICE T shuffle_xor(T v, int mask)
{
    return __shfl_xor_sync(0xffffffffu, v, mask);
}
template <typename T> DEVICE T shuffle_up(T v, int delta) /* lanes below delta keep theirs */
{
    return __shfl_up_sync(0xffffffffu, v, (unsigned)delta);
}
DEVICE uint32_t warp_ballot(bool p)
{
    return __ballot_sync(0xffffffffu, p);
}
DEVICE int32_t atomic_add(int32_t *p, int32_t v)
{
    return atomicAdd(p, v);
}
/* One of n that draw: whether it is the last. The ticket is 0 before the first and after the last. */
DEVICE bool atomic_is_last(int32_t *ticket, int32_t n)
{
    return (int32_t)atomicInc((unsigned *)ticket, (unsigned)n - 1) == n - 1;
}
DEVICE int32_t atomic_min(int32_t *p, int32_t v)
{
    return atomicMin(p, v);
}
DEVICE uint32_t atomic_max_u32(uint32_t *p, uint32_t v)
{
    return atomicMax(p, v);
}
DEVICE uint32_t atomic_exchange(uint32_t *p, uint32_t v)
{
    return atomicExch(p, v);
}
DEVICE void
memory_fence(void) /* what this thread wrote is visible to the whole card before what follows */
{
    __threadfence();
}

/* Memory that a thread of the host reads and writes meanwhile. system_fence: what this thread wrote is
 * visible there before what follows. system_load sees what the host wrote, and what it wrote before
 * that is seen by what follows: system_value, which itself orders nothing. system_store2: two words at
 * once, the first at an 8-byte border. */
DEVICE void system_fence(void)
{
    __threadfence_system();
}
DEVICE uint32_t system_load(const uint32_t *p)
{
    uint32_t v;

    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
DEVICE float system_value(const float *p)
{
    float v;

    asm volatile("ld.relaxed.sys.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
    return v;
}
DEVICE void system_store(uint32_t *p,
                         uint32_t v) /* what this thread has seen is seen by who sees it */
{
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
DEVICE void system_store2(uint32_t *p, uint32_t first, uint32_t second)
{
    asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(p), "l"((uint64_t)second << 32 | first)
                 : "memory");
}
DEVICE uint64_t system_ns(void)
{
    uint64_t v;

    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(v));
    return v;
}
DEVICE void system_pause(void) /* between two looks at the same word */
{
    __nanosleep(100);
}

DEVICE float bf16_to_f32(uint16_t h)
{
    return __uint_as_float((uint32_t)h << 16);
}
DEVICE uint16_t bf16_from_f32(float f)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(f));
}
DEVICE float f16_to_f32(uint16_t h)
{
    return __half2float(__ushort_as_half(h));
}
DEVICE uint16_t f16_from_f32(float f)
{
    return __half_as_ushort(__float2half_rn(f));
}
DEVICE float f8e4m3_to_f32(uint8_t v)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(v, __NV_E4M3)));
}
DEVICE uint8_t f8e4m3_from_f32(float f)
{
    return (uint8_t)__nv_cvt_float_to_fp8(f, __NV_SATFINITE, __NV_E4M3);
}
DEVICE float f8e5m2_to_f32(uint8_t v)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(v, __NV_E5M2)));
}
DEVICE uint8_t f8e5m2_from_f32(float f)
{
    return (uint8_t)__nv_cvt_float_to_fp8(f, __NV_SATFINITE, __NV_E5M2);
}
/* Pairs, the first in the low half (or byte). */
DEVICE uint32_t bf16_pair_from_f32(float low, float high)
{
    __nv_bfloat162 h = __floats2bfloat162_rn(low, high);

    return (uint32_t)__bfloat16_as_ushort(h.x) | (uint32_t)__bfloat16_as_ushort(h.y) << 16;
}
DEVICE uint32_t f16_pair_from_f32(float low, float high)
{
    __half2 h = __floats2half2_rn(low, high);

    return (uint32_t)__half_as_ushort(h.x) | (uint32_t)__half_as_ushort(h.y) << 16;
}
DEVICE uint32_t f8e4m3_pair_to_f16(uint32_t two)
{
    __half2_raw h = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)two, __NV_E4M3);

    return (uint32_t)h.x | (uint32_t)h.y << 16;
}
DEVICE uint32_t f8e5m2_pair_to_f16(uint32_t two)
{
    return (two & 0xff) << 8 | (two & 0xff00) << 16;
}
DEVICE uint32_t f32_bits(float f)
{
    return __float_as_uint(f);
}
DEVICE float f32_from_bits(uint32_t u)
{
    return __uint_as_float(u);
}

/* 16 bytes, aligned so. load16: as other threads may read them too; stream16: read once, passes the
 * first-level cache by. The memory is not written while the kernel runs. */
DEVICE uint4 load16(const void *p)
{
    return __ldg((const uint4 *)p);
}
DEVICE uint4 stream16(const void *p)
{
    uint4 v;

    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

DEVICE float exp_f32(float x)
{
    return expf(x);
}
DEVICE float log1p_f32(float x)
{
    return log1pf(x);
}
DEVICE float rsqrt_f32(float x) /* correctly enough rounded: 1 / sqrt */
{
    return 1.0f / sqrtf(x);
}
DEVICE void sincos_f32(float x, float *s, float *c) /* any size of x */
{
    sincosf(x, s, c);
}

#else
#include "backend/cuda/emulator/device.h"
#endif

enum { WARP = 32 };

/* Asks for the 128 bytes at p to be brought into the second-level cache. Nothing is read, so it may come
 * before depend_wait(). */
DEVICE void prefetch_line(const void *p)
{
#if defined(__CUDACC__)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#else
    (void)p;
#endif
}

DEVICE float warp_sum(float v)
{
    UNROLL
    for (int m = WARP / 2; m > 0; m /= 2) {
        v += shuffle_xor(v, m);
    }
    return v;
}

DEVICE float warp_max(float v)
{
    UNROLL
    for (int m = WARP / 2; m > 0; m /= 2) {
        v = fmaxf(v, shuffle_xor(v, m));
    }
    return v;
}

DEVICE uint32_t warp_max_u32(uint32_t v)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xffffffffu, v);
#else
    UNROLL
    for (int m = WARP / 2; m > 0; m /= 2) {
        uint32_t other = shuffle_xor(v, m);

        v = other > v ? other : v;
    }
    return v;
#endif
}

/* Sum over the block, the same in every thread. part holds a float per warp and is free again after the
 * next barrier. */
DEVICE float block_sum(float v, float *part)
{
    int warp = (int)threadIdx.x / WARP, n_warps = (int)blockDim.x / WARP;
    float sum = 0;

    v = warp_sum(v);
    if (threadIdx.x % WARP == 0) {
        part[warp] = v;
    }
    block_sync();
    for (int i = 0; i < n_warps; i++) {
        sum += part[i];
    }
    return sum;
}

/* v rounded to an activation type and back. */
DEVICE float round_f32(enum dtype t, float v)
{
    return t == DTYPE_BF16  ? bf16_to_f32(bf16_from_f32(v))
           : t == DTYPE_F16 ? f16_to_f32(f16_from_f32(v))
                            : v;
}

/* Element i of a float array of type t: F32, F16, BF16, and the fp8 types. */
DEVICE float load_f32(enum dtype t, const void *p, size_t i)
{
    switch (t) {
    case DTYPE_F16:
        return f16_to_f32(((const uint16_t *)p)[i]);
    case DTYPE_BF16:
        return bf16_to_f32(((const uint16_t *)p)[i]);
    case DTYPE_F8_E4M3:
        return f8e4m3_to_f32(((const uint8_t *)p)[i]);
    case DTYPE_F8_E5M2:
        return f8e5m2_to_f32(((const uint8_t *)p)[i]);
    default:
        return ((const float *)p)[i];
    }
}

DEVICE void store_f32(enum dtype t, void *p, size_t i, float v)
{
    switch (t) {
    case DTYPE_F16:
        ((uint16_t *)p)[i] = f16_from_f32(v);
        break;
    case DTYPE_BF16:
        ((uint16_t *)p)[i] = bf16_from_f32(v);
        break;
    case DTYPE_F8_E4M3:
        ((uint8_t *)p)[i] = f8e4m3_from_f32(v);
        break;
    case DTYPE_F8_E5M2:
        ((uint8_t *)p)[i] = f8e5m2_from_f32(v);
        break;
    default:
        ((float *)p)[i] = v;
    }
}

DEVICE float sigmoid(float x)
{
    return 1.0f / (1.0f + exp_f32(-x));
}

DEVICE float silu(float x)
{
    return x * sigmoid(x);
}

#endif
