/* mma.cuh - matrix instructions of a warp, and copies into shared memory that run by themselves.
 *
 * Place:  backend/cuda/kernels. All threads of a warp call together. Fragments as in the PTX manual:
 *         with g = lane / 4 and t = lane % 4,
 *
 *             16x8x16, two 16-bit values a register (low half first):
 *               a[0] rows g    cols 2t, 2t+1       a[2] rows g    cols 2t+8, 2t+9
 *               a[1] rows g+8  cols 2t, 2t+1       a[3] rows g+8  cols 2t+8, 2t+9
 *               b[0] k 2t, 2t+1 of column g        b[1] k 2t+8, 2t+9 of column g
 *               d[0], d[1]  row g    columns 2t, 2t+1       d[2], d[3]  row g+8
 *             16x8x32, four int8 a register: as above with cols 4t..4t+3 and 4t+16..4t+19
 *
 * Cards:  bfloat16 and int8 at this size need compute capability 8.0; below, launchers choose kernels
 *         without them (mma_bf16 traps). */
#ifndef BACKEND_CUDA_MMA_CUH
#define BACKEND_CUDA_MMA_CUH

#include "backend/cuda/kernels/kernel.cuh"

#if defined(__CUDACC__)

DEVICE uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* d += a b */
DEVICE void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    __trap();
#endif
}

DEVICE void mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[2]), "r"(a[3]), "r"(b[1]));
#endif
}

DEVICE void mma_s8(int32_t d[4], const uint32_t a[4], const uint32_t b[2])
{
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    __trap();
#endif
}

/* Four 8x8 matrices of 16-bit values; lane l gives the address of row l % 8 of matrix l / 8 (16 bytes,
 * aligned so). r[i]: of matrix i, row lane / 4, columns 2t, 2t+1; _trans: the transposed matrix's. */
DEVICE void load_matrix4(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

DEVICE void load_matrix4_trans(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* 16 bytes from global to shared memory, both aligned so; zeros when !is_valid (global is not read). */
DEVICE void copy16_async(void *shared, const void *global, bool is_valid)
{
#if __CUDA_ARCH__ >= 800
    int n = is_valid ? 16 : 0;

    /* Rows are read from left to right: the second-level cache takes the rest of the line along. */
    asm volatile(
        "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
        "l"(global), "r"(n)
        : "memory");
#else
    *(uint4 *)shared = is_valid ? *(const uint4 *)global : make_uint4(0, 0, 0, 0);
#endif
}

DEVICE void copy_commit(void) /* ends a group of copies */
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Until at most N of this thread's groups run; a barrier makes them visible to others. */
template <int N> DEVICE void copy_wait(void)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

#endif /* the emulator's are in device.h */

DEVICE uint32_t pack16(uint16_t low, uint16_t high)
{
    return (uint32_t)low | (uint32_t)high << 16;
}

#endif
