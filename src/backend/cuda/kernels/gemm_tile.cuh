/* gemm_tile.cuh - one tile of a matrix product on tensor cores: rows of 16-bit inputs by rows of weights.
 *
 * Place:  backend/cuda/kernels; linear_gemm_*.cu, and whoever has a tile of rows and one matrix.
 * Idea:   stages of GEMM_K inputs travel to shared memory by themselves while the one before is used.
 *         Weights stay in their stored form until they are in registers: 16-bit ones go into the matrix
 *         instruction as they are, integers of quantised rows become exact 16-bit values q - zero. The
 *         products of one group of inputs are summed by the matrix instructions, multiplied by the scale
 *         and added up in float32. So nothing is rounded but float32 sums.
 * Shared: a stage is ROWS rows of 128 bytes of inputs, then COLS rows of weights of 128, 64 or 32 bytes. The
 *         16-byte pieces of a row are exchanged by an exclusive or with the row's number, so that the
 *         eight rows that are read together lie in different banks.
 * Order:  sums run over inputs from first to last, for each term of the input; other tile shapes give the
 *         same bits. */
#ifndef BACKEND_CUDA_GEMM_TILE_CUH
#define BACKEND_CUDA_GEMM_TILE_CUH

#include "backend/cuda/kernels/linear_gemm_args.h"
#include "backend/cuda/kernels/mma.cuh"

/* F16_BY_BF16: float16 weights with bfloat16 inputs. A float16 value is the sum of two bfloat16 ones. */
enum gemm_kind { GEMM_BF16, GEMM_F16, GEMM_F16_BY_BF16, GEMM_INT4, GEMM_INT8 };

/* A block's tile and how its warps share it. */
template <int KIND_, bool IS_F16_, int ROWS_, int COLS_, int ROW_WARPS_, int STAGES_>
struct gemm_shape {
    static constexpr int KIND = KIND_, ROWS = ROWS_, COLS = COLS_, STAGES = STAGES_;
    static constexpr bool IS_F16 = IS_F16_; /* of the matrix instruction */
    static constexpr bool IS_QUANT = KIND == GEMM_INT4 || KIND == GEMM_INT8;
    static constexpr int WARPS = GEMM_THREADS / WARP, ROW_WARPS = ROW_WARPS_;
    static constexpr int WARP_ROWS = ROWS / ROW_WARPS, WARP_COLS = COLS * ROW_WARPS / WARPS;
    static constexpr int MT = WARP_ROWS / 16, NT = WARP_COLS / 8;   /* 16x8 tiles of a warp */
    static constexpr int W_BYTES = KIND == GEMM_INT4   ? GEMM_K / 2 /* of a row in a stage */
                                   : KIND == GEMM_INT8 ? GEMM_K
                                                       : GEMM_K * 2;
    static constexpr int X_BYTES = GEMM_K * 2;
    static constexpr int STAGE_BYTES = ROWS * X_BYTES + COLS * W_BYTES;
    /* Inputs are read one step ahead, unless registers are few and other warps many. */
    static constexpr bool READS_AHEAD = !(IS_QUANT && ROWS == 64);
    static_assert(MT >= 1 && NT >= 2 && NT % 2 == 0, "a warp reads weights in pairs of tiles");
};

/* What a tile reads. Pointers are at its first row and its first column (weight row). */
struct gemm_source {
    const uint16_t *x; /* [n_rows][n_planes][n_in], 16-byte aligned, in the kind's order */
    const uint8_t *w;  /* rows of n_in weights, 16-byte aligned */
    const void *scales;
    const uint8_t *zeros;
    int n_rows, n_cols; /* at most the tile's; the rest counts as zero */
    int n_in, n_planes;
    int stage0, stage1; /* the part of the sum, in stages of all planes */
    int group_blocks, n_groups;
    enum dtype scale_dtype;
    int n_buffers; /* stages in shared memory: S::STAGES, or 2 */
};

/* --- pairs of 16-bit values --- */

/* a - b, exact here: both are whole numbers. */
template <bool IS_F16> DEVICE uint32_t sub_pair(uint32_t a, uint32_t b)
{
#if defined(__CUDACC__)
    uint32_t r = 0;

    if constexpr (IS_F16) {
        asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    } else {
#if __CUDA_ARCH__ >= 800
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(b), "r"(0xbf80bf80u), "r"(a));
#endif
    }
    return r;
#else
    uint16_t r[2];

    for (int i = 0; i < 2; i++) {
        uint16_t p = (uint16_t)(a >> 16 * i), q = (uint16_t)(b >> 16 * i);

        r[i] = IS_F16 ? f16_from_f32(f16_to_f32(p) - f16_to_f32(q))
                      : bf16_from_f32(bf16_to_f32(p) - bf16_to_f32(q));
    }
    return pack16(r[0], r[1]);
#endif
}

/* The upper halves of two float32 words: bfloat16 values, if the lower halves are zero. */
DEVICE uint32_t upper_pair(float low, float high)
{
    return __byte_perm(f32_bits(low), f32_bits(high), 0x7632);
}

DEVICE void split_f16_pair(uint32_t *high, uint32_t *low, uint32_t pair)
{
    float v0 = f16_to_f32((uint16_t)pair), v1 = f16_to_f32((uint16_t)(pair >> 16));
    uint32_t h = bf16_pair_from_f32(v0, v1);

    *high = h;
    *low = bf16_pair_from_f32(v0 - f32_from_bits(h << 16), v1 - f32_from_bits(h & 0xffff0000u));
}

/* --- stages --- */

/* Where piece c (16 bytes) of a row of BYTES bytes lies in the row. */
template <int BYTES> DEVICE int gemm_swizzle(int row, int c)
{
    constexpr int PIECES = BYTES / 16, ROWS_APART = 8 / PIECES;

    return (c ^ (row / ROWS_APART & (PIECES - 1))) * 16;
}

/* Start copying BYTES bytes of each of ROWS rows that are `stride` bytes apart; n_rows of them are there, and
 * n_bytes of each. */
template <int ROWS, int BYTES>
DEVICE void gemm_copy_rows(unsigned char *to, const uint8_t *from, size_t stride, int n_rows,
                           int n_bytes)
{
    constexpr int PIECES = BYTES / 16, STEP = GEMM_THREADS / PIECES;
    int c = (int)threadIdx.x % PIECES, row = (int)threadIdx.x / PIECES;

    UNROLL
    for (int i = 0; i < (ROWS + STEP - 1) / STEP; i++, row += STEP) {
        bool is_valid = row < n_rows && c * 16 < n_bytes;

        if (ROWS % STEP == 0 || row < ROWS) {
            copy16_async(to + row * BYTES + gemm_swizzle<BYTES>(row, c),
                         is_valid ? from + (size_t)row * stride + c * 16 : from, is_valid);
        }
    }
}

struct gemm_cursor { /* the next stage to copy */
    int plane, k;
    int buffer;
};

template <class S>
DEVICE void gemm_copy_weights(unsigned char *shared, const struct gemm_source *t, int buffer, int k)
{
    constexpr int PER_K = GEMM_K / S::W_BYTES > 1 ? GEMM_K / S::W_BYTES : 1; /* inputs per byte */
    constexpr int K_BYTES = S::W_BYTES / GEMM_K > 1 ? S::W_BYTES / GEMM_K : 1;
    size_t stride = (size_t)t->n_in * K_BYTES / PER_K;

    gemm_copy_rows<S::COLS, S::W_BYTES>(shared + buffer * S::STAGE_BYTES + S::ROWS * S::X_BYTES,
                                        t->w + (size_t)k * K_BYTES / PER_K, stride, t->n_cols,
                                        (t->n_in - k) * K_BYTES / PER_K);
}

template <class S>
DEVICE void gemm_copy_inputs(unsigned char *shared, const struct gemm_source *t, int buffer,
                             int plane, int k)
{
    const uint8_t *x = (const uint8_t *)(t->x + (size_t)plane * (size_t)t->n_in + k);

    gemm_copy_rows<S::ROWS, S::X_BYTES>(shared + buffer * S::STAGE_BYTES, x,
                                        (size_t)t->n_planes * (size_t)t->n_in * 2, t->n_rows,
                                        (t->n_in - k) * 2);
}

DEVICE void gemm_advance(struct gemm_cursor *c, const struct gemm_source *t)
{
    c->k += GEMM_K;
    if (c->k >= t->n_in) {
        c->k = 0;
        c->plane--;
    }
    c->buffer = c->buffer + 1 == t->n_buffers ? 0 : c->buffer + 1;
}

/* --- fragments --- */

/* Rows of inputs for step s (16 inputs) of a stage. */
template <class S>
DEVICE void gemm_load_x(uint32_t x[S::MT][4], const unsigned char *stage, int row0, int s)
{
    int lane = (int)threadIdx.x % WARP, row = row0 + lane % 16;
    const unsigned char *p =
        stage + row * S::X_BYTES + gemm_swizzle<S::X_BYTES>(row, 2 * s + lane / 16);

    UNROLL
    for (int m = 0; m < S::MT; m++) {
        load_matrix4(x[m], p + m * 16 * S::X_BYTES);
    }
}

/* 16-bit weights for step s: w[n] as the matrix instruction takes them. */
template <class S>
DEVICE void gemm_load_w(uint32_t w[S::NT][2], const unsigned char *weights, int col0, int s)
{
    int lane = (int)threadIdx.x % WARP, row = col0 + lane % 8 + lane / 16 * 8;
    const unsigned char *p =
        weights + row * S::W_BYTES + gemm_swizzle<S::W_BYTES>(row, 2 * s + lane / 8 % 2);

    UNROLL
    for (int n = 0; n < S::NT; n += 2) {
        uint32_t r[4];

        load_matrix4(r, p + n * 8 * S::W_BYTES);
        w[n][0] = r[0];
        w[n][1] = r[1];
        w[n + 1][0] = r[2];
        w[n + 1][1] = r[3];
    }
}

/* The bytes of quantised rows that a thread needs of a whole stage, in the natural order of rows: four
 * bytes of every 16. int4: raw[n][0..1], int8: raw[n][0..3]. */
template <class S>
DEVICE void gemm_load_raw(uint32_t raw[S::NT][4], const unsigned char *weights, int col0)
{
    int lane = (int)threadIdx.x % WARP;

    if constexpr (S::KIND == GEMM_INT4) {
        int row = col0 + lane % 8 + lane / 16 * 8;
        const unsigned char *p =
            weights + row * S::W_BYTES + gemm_swizzle<S::W_BYTES>(row, lane / 8 % 2);

        UNROLL
        for (int n = 0; n < S::NT; n += 2) {
            uint32_t r[4];

            load_matrix4(r, p + n * 8 * S::W_BYTES);
            raw[n][0] = r[0];
            raw[n][1] = r[1];
            raw[n + 1][0] = r[2];
            raw[n + 1][1] = r[3];
        }
    } else {
        int row = col0 + lane % 8;
        const unsigned char *p =
            weights + row * S::W_BYTES + gemm_swizzle<S::W_BYTES>(row, lane / 8);

        UNROLL
        for (int n = 0; n < S::NT; n++) {
            load_matrix4(raw[n], p + n * 8 * S::W_BYTES);
        }
    }
}

/* A zero point in the form that gemm_unpack subtracts: the number that a stored value q becomes when its
 * bits are put below those of a power of two, for q = zero. */
template <class S> DEVICE uint32_t gemm_zero(uint32_t zero)
{
    if constexpr (S::KIND == GEMM_INT8 && !S::IS_F16) {
        return 0x4b000000u + zero; /* float32 2^23 + zero */
    } else {
        return ((S::IS_F16 ? 0x6400u : 0x4300u) + zero) * 0x10001u; /* 1024 or 128 + zero, twice */
    }
}

/* q - zero for step s. In GEMM_ORDER_QUANT bytes 0 and 2 are neighbours, and 1 and 3. */
template <class S>
DEVICE void gemm_unpack(uint32_t w[2], const uint32_t raw[4], uint32_t zero, int s)
{
    constexpr uint32_t ONE = S::IS_F16 ? 0x64006400u : 0x43004300u;

    if constexpr (S::KIND == GEMM_INT4) {
        uint32_t v = raw[s / 2] >> 4 * (s % 2);

        w[0] = sub_pair<S::IS_F16>((v & 0x000f000fu) | ONE, zero);
        w[1] = sub_pair<S::IS_F16>((v >> 8 & 0x000f000fu) | ONE, zero);
    } else if constexpr (S::IS_F16) {
        w[0] = sub_pair<true>((raw[s] & 0x00ff00ffu) | ONE, zero);
        w[1] = sub_pair<true>((raw[s] >> 8 & 0x00ff00ffu) | ONE, zero);
    } else { /* bfloat16 has too few bits to hold 256 + q */
        float q[4], z = f32_from_bits(zero);

        UNROLL
        for (int i = 0; i < 4; i++) {
            q[i] = f32_from_bits(__byte_perm(raw[s], 0x4b000000u, 0x7650 + i)) - z;
        }
        w[0] = upper_pair(q[0], q[2]);
        w[1] = upper_pair(q[1], q[3]);
    }
}

template <bool IS_F16> DEVICE void gemm_mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    if constexpr (IS_F16) {
        mma_f16(d, a, b);
    } else {
        mma_bf16(d, a, b);
    }
}

template <class S>
DEVICE void gemm_multiply(float d[S::MT][S::NT][4], const uint32_t x[S::MT][4],
                          const uint32_t w[S::NT][2])
{
    UNROLL
    for (int n = 0; n < S::NT; n++) {
        if constexpr (S::KIND == GEMM_F16_BY_BF16) {
            uint32_t high[2], low[2];

            split_f16_pair(&high[0], &low[0], w[n][0]);
            split_f16_pair(&high[1], &low[1], w[n][1]);
            UNROLL
            for (int m = 0; m < S::MT; m++) {
                gemm_mma<false>(d[m][n], x[m], low);
            }
            UNROLL
            for (int m = 0; m < S::MT; m++) {
                gemm_mma<false>(d[m][n], x[m], high);
            }
        } else {
            UNROLL
            for (int m = 0; m < S::MT; m++) {
                gemm_mma<S::IS_F16>(d[m][n], x[m], w[n]);
            }
        }
    }
}

/* --- groups of quantised rows --- */

/* Scales and zeros are asked for one group before they are used. */
template <class S> struct gemm_group {
    int block, n_blocks; /* of 32 inputs, in the plane */
    int left;            /* blocks of the group to come */
    int group;
    uint32_t scale[S::NT][2], zero[S::NT], next_zero[S::NT];
};

DEVICE uint32_t gemm_scale_bits(enum dtype t, const void *p, int i)
{
    return t == DTYPE_F32 ? ((const uint32_t *)p)[i] : ((const uint16_t *)p)[i];
}

DEVICE float gemm_scale_value(enum dtype t, uint32_t bits)
{
    return t == DTYPE_BF16  ? bf16_to_f32((uint16_t)bits)
           : t == DTYPE_F16 ? f16_to_f32((uint16_t)bits)
                            : f32_from_bits(bits);
}

template <class S>
DEVICE void gemm_group_scales(struct gemm_group<S> *g, const struct gemm_source *t, int col0)
{
    int col = col0 + (int)threadIdx.x % 4 * 2, last = t->n_cols - 1;

    UNROLL
    for (int n = 0; n < S::NT; n++) {
        UNROLL
        for (int i = 0; i < 2; i++) {
            int c = col + n * 8 + i;

            g->scale[n][i] = gemm_scale_bits(t->scale_dtype, t->scales,
                                             (c < last ? c : last) * t->n_groups + g->group);
        }
    }
}

template <class S>
DEVICE void gemm_group_zeros(struct gemm_group<S> *g, const struct gemm_source *t, int col0,
                             int group)
{
    int col = col0 + (int)threadIdx.x % WARP / 4, last = t->n_cols - 1;

    UNROLL
    for (int n = 0; n < S::NT; n++) {
        int c = col + n * 8;

        g->next_zero[n] = t->zeros ? t->zeros[(c < last ? c : last) * t->n_groups + group]
                                   : (S::KIND == GEMM_INT4 ? 8u : 128u);
    }
}

/* Begin group g->group. */
template <class S>
DEVICE void gemm_group_begin(struct gemm_group<S> *g, const struct gemm_source *t, int col0)
{
    gemm_group_scales<S>(g, t, col0);
    UNROLL
    for (int n = 0; n < S::NT; n++) {
        g->zero[n] = gemm_zero<S>(g->next_zero[n]);
    }
    if (t->zeros) {
        gemm_group_zeros<S>(g, t, col0, g->group + 1 < t->n_groups ? g->group + 1 : 0);
    }
}

template <class S>
DEVICE void gemm_group_init(struct gemm_group<S> *g, const struct gemm_source *t, int col0, int k)
{
    g->n_blocks = t->n_in / 32;
    g->block = k / 32;
    g->group = g->block / t->group_blocks;
    g->left = t->group_blocks - g->block % t->group_blocks;
    gemm_group_zeros<S>(g, t, col0, g->group);
    gemm_group_begin<S>(g, t, col0);
}

template <class S>
DEVICE void gemm_group_add(float sum[S::MT][S::NT][4], float d[S::MT][S::NT][4],
                           const struct gemm_group<S> *g, const struct gemm_source *t)
{
    UNROLL
    for (int n = 0; n < S::NT; n++) {
        float scale[2] = {gemm_scale_value(t->scale_dtype, g->scale[n][0]),
                          gemm_scale_value(t->scale_dtype, g->scale[n][1])};

        UNROLL
        for (int m = 0; m < S::MT; m++) {
            UNROLL
            for (int i = 0; i < 4; i++) {
                sum[m][n][i] += d[m][n][i] * scale[i % 2];
                d[m][n][i] = 0;
            }
        }
    }
}

/* After a block of 32 inputs. A last half stage past the row's end has added zeros and is not counted. */
template <class S>
DEVICE void gemm_group_step(float sum[S::MT][S::NT][4], float d[S::MT][S::NT][4],
                            struct gemm_group<S> *g, const struct gemm_source *t, int col0)
{
    if (g->block == g->n_blocks) {
        return;
    }
    g->block++;
    g->left--;
    if (g->left == 0 || g->block == g->n_blocks) {
        gemm_group_add<S>(sum, d, g, t);
        g->group = g->block == g->n_blocks ? 0 : g->group + 1;
        g->left = t->group_blocks;
        gemm_group_begin<S>(g, t, col0);
    }
}

/* --- the tile --- */

/* sum[m][n] is the warp's 16x8 tile m, n as the matrix instruction leaves it; the warp's rows begin at
 * gemm_warp_row, its columns at gemm_warp_col. */
template <class S> DEVICE int gemm_warp_row(void)
{
    return (int)threadIdx.x / WARP % S::ROW_WARPS * S::WARP_ROWS;
}
template <class S> DEVICE int gemm_warp_col(void)
{
    return (int)threadIdx.x / WARP / S::ROW_WARPS * S::WARP_COLS;
}

/* Until the next stage is there, for all threads. Two buffers are for cards whose copies do not run by
 * themselves. */
template <class S> DEVICE void gemm_wait(const struct gemm_source *t)
{
    if (t->n_buffers == 2) {
        copy_wait<0>();
    } else {
        copy_wait<S::STAGES - 2>();
    }
    block_sync();
}

/* Weights of the first stages are fetched before depend_wait(), inputs after it. shared: t->n_buffers *
 * S::STAGE_BYTES. All threads of the block call; stage0 < stage1. */
template <class S>
DEVICE void gemm_tile(float sum[S::MT][S::NT][4], unsigned char *shared,
                      const struct gemm_source *t)
{
    constexpr int STEPS = GEMM_K / 16;
    int plane_stages = (t->n_in + GEMM_K - 1) / GEMM_K;
    int row0 = gemm_warp_row<S>(), col0 = gemm_warp_col<S>();
    struct gemm_cursor next = {t->n_planes - 1 - t->stage0 / plane_stages,
                               t->stage0 % plane_stages * GEMM_K, 0};
    int n_stages = t->stage1 - t->stage0, n_first = t->n_buffers - 1;
    uint32_t x[2][S::MT][4], w[2][S::NT][2], raw[S::NT][4];
    float part[S::MT][S::NT][4];
    float(*d)[S::NT][4] = S::IS_QUANT ? part : sum;
    struct gemm_group<S> group;
    int buffer = 0;

    UNROLL
    for (int m = 0; m < S::MT; m++) {
        UNROLL
        for (int n = 0; n < S::NT; n++) {
            UNROLL
            for (int i = 0; i < 4; i++) {
                sum[m][n][i] = 0;
                part[m][n][i] = 0;
            }
        }
    }
    if constexpr (S::IS_QUANT) {
        gemm_group_init<S>(&group, t, col0, next.k);
    }
    {
        struct gemm_cursor c = next;

        for (int i = 0; i < n_first && i < n_stages; i++) {
            gemm_copy_weights<S>(shared, t, c.buffer, c.k);
            gemm_advance(&c, t);
        }
    }
    depend_wait();
    for (int i = 0; i < n_first; i++) {
        if (i < n_stages) {
            gemm_copy_inputs<S>(shared, t, next.buffer, next.plane, next.k);
            gemm_advance(&next, t);
        }
        copy_commit();
    }
    gemm_wait<S>(t);
    if constexpr (S::READS_AHEAD) {
        gemm_load_x<S>(x[0], shared, row0, 0);
    }
    if constexpr (S::IS_QUANT) {
        gemm_load_raw<S>(raw, shared + S::ROWS * S::X_BYTES, col0);
    } else {
        gemm_load_w<S>(w[0], shared + S::ROWS * S::X_BYTES, col0, 0);
    }
    for (int i = 0; i < n_stages; i++) {
        bool is_last = i + 1 == n_stages;

        UNROLL
        for (int s = 0; s < STEPS; s++) {
            if constexpr (!S::READS_AHEAD) {
                gemm_load_x<S>(x[s % 2], shared + buffer * S::STAGE_BYTES, row0, s);
            }
            if constexpr (S::IS_QUANT) {
                UNROLL
                for (int n = 0; n < S::NT; n++) {
                    gemm_unpack<S>(w[0][n], raw[n], group.zero[n], s);
                }
            }
            /* Into the buffer that all warps left before the last barrier, in two portions. */
            if (s == 0 && i + n_first < n_stages) {
                gemm_copy_weights<S>(shared, t, next.buffer, next.k);
            }
            if (s == 1) {
                if (i + n_first < n_stages) {
                    gemm_copy_inputs<S>(shared, t, next.buffer, next.plane, next.k);
                    gemm_advance(&next, t);
                }
                copy_commit();
            }
            if (s == STEPS - 1 && !is_last) {
                buffer = buffer + 1 == t->n_buffers ? 0 : buffer + 1;
                gemm_wait<S>(t);
            }
            if (s < STEPS - 1 || !is_last) {
                const unsigned char *stage = shared + buffer * S::STAGE_BYTES;

                if constexpr (S::READS_AHEAD) {
                    gemm_load_x<S>(x[(s + 1) % 2], stage, row0, (s + 1) % STEPS);
                }
                if constexpr (!S::IS_QUANT) {
                    gemm_load_w<S>(w[(s + 1) % 2], stage + S::ROWS * S::X_BYTES, col0,
                                   (s + 1) % STEPS);
                } else if (s == STEPS - 1) {
                    gemm_load_raw<S>(raw, stage + S::ROWS * S::X_BYTES, col0);
                }
            }
            gemm_multiply<S>(d, x[s % 2], w[S::IS_QUANT ? 0 : s % 2]);
            if constexpr (S::IS_QUANT) {
                if (s % 2 == 1) {
                    gemm_group_step<S>(sum, part, &group, t, col0);
                }
            }
        }
        if constexpr (S::IS_QUANT) {
            if (group.block == group.n_blocks) {
                group.block = 0;
            }
        }
    }
    if constexpr (S::IS_QUANT) {
        gemm_group_add<S>(sum, part, &group, t); /* what the cut of the sum left; else zeros */
    }
}

#endif
