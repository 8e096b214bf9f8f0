/* device.h - the device language of kernel.cuh and mma.cuh for a C++ compiler.
 *
 * Place: backend/cuda/emulator; included by kernels/kernel.cuh when nvcc does not compile it. What each
 *        function means is said there; what waits for other threads is in emulator_run.c. Beside those
 *        names stand the few of CUDA's own that kernels may use directly. */
#ifndef BACKEND_CUDA_EMULATOR_DEVICE_H
#define BACKEND_CUDA_EMULATOR_DEVICE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

extern "C" {
#include "backend/cuda/emulator/emulator_run.h"
#include "base/half.h"
}

#define KERNEL(name, args, threads, blocks) KERNEL_OF(name, args, threads)
#define KERNEL_OF(name, args, threads)                                                             \
    static void name(const struct args &a);                                                        \
    static void name##_call(const void *p)                                                         \
    {                                                                                              \
        name(*(const struct args *)p);                                                             \
    }                                                                                              \
    __attribute__((constructor)) static void name##_register(void)                                 \
    {                                                                                              \
        static struct emulator_kernel k = {#name, sizeof(struct args), threads, name##_call,       \
                                           NULL};                                                  \
        emulator_register(&k);                                                                     \
    }                                                                                              \
    static void name(const struct args &a)
#define DEVICE static inline
/* All in one section, which is filled with NaN before each block. */
#define SHARED                     __attribute__((section("emulator_shared"), aligned(16))) static
#define DYNAMIC_SHARED(type, name) type *name = (type *)emulator_dynamic_shared
#define UNROLL

#define __device__
#define __forceinline__ inline
#define __align__(n)    __attribute__((aligned(n)))
#define __expf(x)       expf(x) /* the C library has a name like it */

struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
DEVICE struct int2 make_int2(int x, int y)
{
    return {x, y};
}
DEVICE struct int4 make_int4(int x, int y, int z, int w)
{
    return {x, y, z, w};
}
DEVICE struct uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
DEVICE struct uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}
DEVICE struct float2 make_float2(float x, float y)
{
    return {x, y};
}
DEVICE struct float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}

#define MIN_MAX_OF(type)                                                                           \
    DEVICE type min(type a, type b)                                                                \
    {                                                                                              \
        return b < a ? b : a;                                                                      \
    }                                                                                              \
    DEVICE type max(type a, type b)                                                                \
    {                                                                                              \
        return a < b ? b : a;                                                                      \
    }
MIN_MAX_OF(int)
MIN_MAX_OF(unsigned)
MIN_MAX_OF(long)
MIN_MAX_OF(unsigned long)
MIN_MAX_OF(long long)
MIN_MAX_OF(unsigned long long)
#undef MIN_MAX_OF
DEVICE float min(float a, float b)
{
    return fminf(a, b);
}
DEVICE float max(float a, float b)
{
    return fmaxf(a, b);
}

DEVICE unsigned __float_as_uint(float f)
{
    return f32_bits(f);
}
DEVICE float __uint_as_float(unsigned u)
{
    return f32_from_bits(u);
}
DEVICE int __float_as_int(float f)
{
    return (int)f32_bits(f);
}
DEVICE float __int_as_float(int i)
{
    return f32_from_bits((uint32_t)i);
}
DEVICE int __popc(unsigned v)
{
    return __builtin_popcount(v);
}
DEVICE int __clz(int v)
{
    return v ? __builtin_clz((unsigned)v) : 32;
}
DEVICE int __ffs(int v)
{
    return __builtin_ffs(v);
}
/* Bytes of y:x chosen by the four nibbles of s; a nibble's high bit asks for the byte's sign instead. */
DEVICE unsigned __byte_perm(unsigned x, unsigned y, unsigned s)
{
    uint64_t all = (uint64_t)y << 32 | x;
    unsigned r = 0;

    for (int i = 0; i < 4; i++) {
        unsigned which = s >> 4 * i & 15, byte = (unsigned)(all >> 8 * (which & 7)) & 0xff;

        r |= (which & 8 ? (byte & 0x80 ? 0xffu : 0u) : byte) << 8 * i;
    }
    return r;
}
DEVICE int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 4; i++) {
        c += (int8_t)((unsigned)a >> 8 * i) * (int8_t)((unsigned)b >> 8 * i);
    }
    return c;
}
template <typename T> DEVICE T __ldg(const T *p)
{
    return *p;
}
DEVICE float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
DEVICE float __fdividef(float a, float b)
{
    return a / b;
}
DEVICE float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}

DEVICE void depend_launch(void)
{
    emulator_depend_launch();
}
DEVICE void depend_wait(void)
{
    emulator_depend_wait();
}
DEVICE void block_sync(void)
{
    emulator_block_sync();
}
DEVICE void warp_sync(void)
{
    emulator_warp_sync();
}
DEVICE int emulator_other_lane(int lane) /* lanes that are not there give a thread its own value */
{
    return lane < 0 || lane >= EMULATOR_WARP ? emulator_lane() : lane;
}
template <typename T> DEVICE T shuffle(T v, int lane)
{
    T out;

    emulator_exchange(&out, &v, sizeof v, lane & (EMULATOR_WARP - 1));
    return out;
}
template <typename T> DEVICE T shuffle_xor(T v, int mask)
{
    T out;

    emulator_exchange(&out, &v, sizeof v, emulator_other_lane(emulator_lane() ^ mask));
    return out;
}
template <typename T> DEVICE T shuffle_up(T v, int delta)
{
    T out;

    emulator_exchange(&out, &v, sizeof v, emulator_other_lane(emulator_lane() - delta));
    return out;
}
DEVICE uint32_t warp_ballot(bool p)
{
    return emulator_ballot(p);
}
DEVICE int32_t atomic_add(int32_t *p, int32_t v)
{
    return emulator_atomic_add(p, v);
}
DEVICE bool atomic_is_last(int32_t *ticket, int32_t n)
{
    return emulator_atomic_is_last(ticket, n);
}
DEVICE int32_t atomic_min(int32_t *p, int32_t v)
{
    return emulator_atomic_min(p, v);
}
DEVICE uint32_t atomic_max_u32(uint32_t *p, uint32_t v)
{
    return emulator_atomic_max_u32(p, v);
}
DEVICE void memory_fence(void)
{
    __asm__ volatile("" ::: "memory");
}

DEVICE uint32_t atomic_exchange(uint32_t *p, uint32_t v)
{
    return emulator_atomic_exchange(p, v);
}

DEVICE void system_fence(void)
{
    emulator_system_fence();
}
DEVICE uint32_t system_load(const uint32_t *p)
{
    return emulator_system_load(p);
}
DEVICE float system_value(const float *p)
{
    return *p;
}
DEVICE void system_store(uint32_t *p, uint32_t v)
{
    emulator_system_store(p, v);
}
DEVICE void system_store2(uint32_t *p, uint32_t first, uint32_t second)
{
    emulator_system_store2(p, first, second);
}
DEVICE uint64_t system_ns(void)
{
    return emulator_system_ns();
}
DEVICE void system_pause(void)
{
    emulator_system_pause();
}

DEVICE uint32_t bf16_pair_from_f32(float low, float high)
{
    return (uint32_t)bf16_from_f32(low) | (uint32_t)bf16_from_f32(high) << 16;
}
DEVICE uint32_t f16_pair_from_f32(float low, float high)
{
    return (uint32_t)f16_from_f32(low) | (uint32_t)f16_from_f32(high) << 16;
}
DEVICE uint32_t f8e4m3_pair_to_f16(uint32_t two)
{
    return f16_pair_from_f32(f8e4m3_to_f32((uint8_t)two), f8e4m3_to_f32((uint8_t)(two >> 8)));
}
DEVICE uint32_t f8e5m2_pair_to_f16(uint32_t two)
{
    return f16_pair_from_f32(f8e5m2_to_f32((uint8_t)two), f8e5m2_to_f32((uint8_t)(two >> 8)));
}

DEVICE uint4 load16(const void *p)
{
    if ((uintptr_t)p % 16) {
        emulator_fail("load of 16 bytes from %p, which is not aligned so", p);
    }
    return *(const uint4 *)p;
}
DEVICE uint4 stream16(const void *p)
{
    return load16(p);
}

DEVICE float exp_f32(float x)
{
    return expf(x);
}
DEVICE float log1p_f32(float x)
{
    return log1pf(x);
}
DEVICE float rsqrt_f32(float x)
{
    return 1.0f / sqrtf(x);
}
DEVICE void sincos_f32(float x, float *s, float *c)
{
    *s = sinf(x);
    *c = cosf(x);
}

/* ---- mma.cuh ---- */

DEVICE void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    emulator_mma(EMULATOR_MMA_BF16, d, a, b);
}
DEVICE void mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    emulator_mma(EMULATOR_MMA_F16, d, a, b);
}
DEVICE void mma_s8(int32_t d[4], const uint32_t a[4], const uint32_t b[2])
{
    emulator_mma(EMULATOR_MMA_S8, d, a, b);
}
DEVICE void load_matrix4(uint32_t r[4], const void *row)
{
    emulator_load_matrix(EMULATOR_LOAD_MATRIX, r, row);
}
DEVICE void load_matrix4_trans(uint32_t r[4], const void *row)
{
    emulator_load_matrix(EMULATOR_LOAD_MATRIX_TRANS, r, row);
}
DEVICE void copy16_async(void *shared, const void *global, bool is_valid)
{
    emulator_copy16_async(shared, global, is_valid);
}
DEVICE void copy_commit(void)
{
    emulator_copy_commit();
}
template <int N> DEVICE void copy_wait(void)
{
    emulator_copy_wait(N);
}

#endif
