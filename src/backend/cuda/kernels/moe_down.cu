/* moe_down.cu - the end of a layer: down of the routed experts and of the shared one, the residual sums, the
 * check.
 *
 * Place: backend/cuda/kernels; launched by cuda_fuse_moe.c after moe_gate.cu.
 * Early: as experts_decode.cuh says of the choices: they and the shared expert's product of gate and up were
 *        made by kernels before the one before. So the weights are asked for and the shared expert is
 *        computed while gate and up of the routed ones still run. */
#include "backend/cuda/kernels/experts_decode.cuh"
#include "backend/cuda/kernels/experts_one.cuh"
#include "backend/cuda/kernels/moe_weights.cuh"
#include "backend/cuda/kernels/offload_join.cuh"

enum {
    COL_THREADS = EXPERTS_DECODE_THREADS / EXPERTS_DECODE_COLS, /* of an output column */
    DOWN_PIECES = 4,
};

/* The block's weight rows, which lie one after the other, come nearer while it does other things. */
DEVICE void prefetch_columns(const struct moe_matrix *m)
{
    enum { LINE = 128 };
    size_t n = (size_t)EXPERTS_DECODE_COLS * (size_t)m->n_chunks * 16;

    for (size_t at = (size_t)threadIdx.x * LINE; at < n; at += EXPERTS_DECODE_THREADS * LINE) {
        prefetch_line(m->data + blockIdx.x * n + at);
    }
}

/* Piece j times its inputs of one row. */
template <enum moe_kind KIND>
DEVICE float down_piece(const struct moe_matrix *m, const struct moe_pieces<DOWN_PIECES> *p, int j,
                        const float *x)
{
    enum { N = piece_values(KIND), AT = DOWN_PIECES / 2 - 1 };
    float w[N], dot = 0;

    piece_unpack<KIND>(w, p->w[j], KIND == MOE_INT8 ? p->zero[j & AT] : 0);
    UNROLL
    for (int i = 0; i < N; i += 4) {
        float4 v = *(const float4 *)(x + i);

        dot += w[i] * v.x;
        dot += w[i + 1] * v.y;
        dot += w[i + 2] * v.z;
        dot += w[i + 3] * v.w;
    }
    return KIND == MOE_INT8 ? piece_scale(m, p->scale[j & AT]) * dot : dot;
}

/* The shared expert's columns of all rows: shared [row][EXPERTS_DECODE_COLS]. */
template <enum moe_kind KIND>
DEVICE void shared_down(float *shared, const struct moe_down_args *a, int n_rows)
{
    enum { HELD = pieces_held<KIND, DOWN_PIECES>() };
    int tid = (int)threadIdx.x, at = tid % COL_THREADS, col = tid / COL_THREADS;

    for (int chunk0 = 0; chunk0 < a->down.n_chunks; chunk0 += HELD * COL_THREADS) {
        struct moe_pieces<DOWN_PIECES> p;

        pieces_load<DOWN_PIECES>(&p, &a->down, (int)blockIdx.x * EXPERTS_DECODE_COLS + col,
                                 chunk0 + at, COL_THREADS);
        for (int r = 0; r < n_rows; r++) {
            const float *x = a->mid + (size_t)r * (size_t)a->shared_width;
            float *to = shared + r * EXPERTS_DECODE_COLS + col, sum = 0;

            UNROLL
            for (int j = 0; j < HELD; j++) {
                int chunk = chunk0 + j * COL_THREADS + at;

                if (chunk < a->down.n_chunks) {
                    sum += down_piece<KIND>(&a->down, &p, j, x + chunk * piece_values(KIND));
                }
            }
            UNROLL
            for (int m = COL_THREADS / 2; m > 0; m /= 2) {
                sum += shuffle_xor(sum, m);
            }
            if (at == 0) {
                *to = chunk0 > 0 ? *to + sum : sum;
            }
        }
    }
}

DEVICE void shared_down_any(float *shared, const struct moe_down_args *a, int n_rows)
{
    switch (a->down.kind) {
    case MOE_BF16:
        shared_down<MOE_BF16>(shared, a, n_rows);
        break;
    case MOE_F16:
        shared_down<MOE_F16>(shared, a, n_rows);
        break;
    case MOE_F32:
        shared_down<MOE_F32>(shared, a, n_rows);
        break;
    default:
        shared_down<MOE_INT8>(shared, a, n_rows);
        break;
    }
}

/* x += routed + share * shared, and whether that is finite: a half warp has a row's columns. is_joined: some
 * of the routed ones are the CPU's. */
DEVICE void residual_add(const struct moe_down_args *a, const struct down_block *b,
                         const float *shared, bool is_joined)
{
    const struct experts_args *e = &a->experts;
    int tid = (int)threadIdx.x, row = tid / EXPERTS_DECODE_COLS, col = tid % EXPERTS_DECODE_COLS;
    bool is_bad = false;
    uint32_t bad;

    if (row < b->n_rows) {
        size_t at = (size_t)row * (size_t)e->n_out + (size_t)(b->col0 + col);
        float *x = e->out + at, share = a->share ? sigmoid(a->share[row]) : 1.0f;
        float routed = routed_sum(b, e, row, col), v;

        if (is_joined) {
            routed += join_value(&a->join, at);
        }
        v = *x + routed;
        v += share * shared[tid];
        *x = v;
        is_bad = (f32_bits(v) & 0x7f800000u) == 0x7f800000u;
    }
    bad = warp_ballot(is_bad) >> (tid & EXPERTS_DECODE_COLS);
    if (col == 0 && (bad & 0xffffu) != 0) {
        atomic_min(&a->bad_layer[row], a->layer);
    }
}

template <int TYPE> DEVICE void moe_down(const struct moe_down_args *a, uint4 *dynamic)
{
    struct down_block b;
    bool is_joined;
    float *shared;

    depend_launch();
    prefetch_columns(&a->down);
    shared = down_start(&b, &a->experts, dynamic);
    shared_down_any(shared, a, b.n_rows);
    down_scales(&b, &a->experts);
    depend_wait();
    down_products<TYPE, false>(&b, &a->experts);
    is_joined = join_is_due(&a->join); /* known before, but then in a register too many */
    if (is_joined) {
        if (threadIdx.x == 0) {
            join_wait(&a->join);
        }
        block_sync();
    }
    residual_add(a, &b, shared, is_joined);
}

/* Three blocks fit where kernels begin before the one ahead has ended; with their registers alone, older cards
 * would spill. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
enum { DOWN_PER_CARD = 2 };
#else
enum { DOWN_PER_CARD = 3 };
#endif

#define MOE_DOWN(name, type)                                                                       \
    KERNEL(name, moe_down_args, EXPERTS_DECODE_THREADS, DOWN_PER_CARD)                             \
    {                                                                                              \
        DYNAMIC_SHARED(uint4, dynamic);                                                            \
                                                                                                   \
        moe_down<type>(&a, dynamic);                                                               \
    }

MOE_DOWN(moe_down_bf16, DTYPE_BF16)
MOE_DOWN(moe_down_f16, DTYPE_F16)

/* --- one row --- */

enum {
    ONE_CHUNKS = ONE_WIDTH / EXPERTS_CHUNK,
    ROW_PIECES = ONE_CHUNKS * CHUNK_BYTES / 16,
    ONE_PIECES = EXPERTS_DECODE_COLS * ROW_PIECES, /* of a block's weight rows of an expert */
};

struct one_shared {
    uint4 block[ONE_WARPS][ONE_CHUNKS][PART_UNITS]; /* what a warp has of its pair's expert */
    uint4 mid[ONE_WARPS][ONE_CHUNKS * CHUNK_UNITS];
    float part[ONE_WARPS][EXPERTS_DECODE_COLS]; /* what each pair gave */
    float prob[ONE_WARPS];
    float x[EXPERTS_DECODE_COLS], shared[EXPERTS_DECODE_COLS], share;
    int32_t is_joined;
};

DEVICE int one_expert(const struct experts_args *a, int pair)
{
    int expert = pair < a->top_k ? a->idx[pair] : -1;

    return expert < a->n_experts ? expert : -1;
}

/* The weight row of a matrix whose scales this thread has; another is 8 below. */
DEVICE int one_down_row(void)
{
    return (int)blockIdx.x * EXPERTS_DECODE_COLS + (int)threadIdx.x % WARP / 4;
}

/* From the slot of the pair's expert to where it is fetched from; 0: it is there, or there is none. */
DEVICE int64_t one_away(const struct moe_down_args *a, int pair)
{
    return a->away && pair < a->experts.top_k ? a->away[pair] : 0;
}

/* The block's weight rows of an expert: they lie one after the other. */
DEVICE const uint8_t *one_down_rows(const struct experts_args *a, int expert)
{
    return down_of(a, expert)->data + (size_t)blockIdx.x * (ONE_PIECES * 16);
}

/* Weights come into shared memory: registers are the shared expert's until it is done. */
DEVICE void one_down_load(uint4 block[ONE_CHUNKS][PART_UNITS], const struct experts_args *a,
                          int expert)
{
    int col0 = (int)blockIdx.x * EXPERTS_DECODE_COLS;

    UNROLL
    for (int c = 0; c < ONE_CHUNKS; c++) {
        copy_part(block[c], down_of(a, expert), ONE_WIDTH, col0, c);
    }
    copy_commit();
}

/* Where piece i of the warp's weight rows, in the order in which they lie in memory, is in `block`. */
DEVICE uint4 *one_place(uint4 block[ONE_CHUNKS][PART_UNITS], int i)
{
    return &block[i % ROW_PIECES / 4][i / ROW_PIECES * 4 + i % 4];
}

/* The same from the host, in the order that a link likes. */
DEVICE void one_down_fetch(uint4 block[ONE_CHUNKS][PART_UNITS], const uint8_t *from)
{
    UNROLL
    for (int i = (int)threadIdx.x % WARP; i < ONE_PIECES; i += WARP) {
        copy16_async(one_place(block, i), from + 16 * i, true);
    }
    copy_commit();
}

/* What was fetched stays in the slot. Not before other kernels' turn is over: depend_wait(). */
DEVICE void one_down_keep(uint8_t *to, uint4 block[ONE_CHUNKS][PART_UNITS],
                          const struct one_scales scales[ONE_CHUNKS / 2],
                          const struct experts_matrix *m)
{
    int lane = (int)threadIdx.x % WARP;

    UNROLL
    for (int i = lane; i < ONE_PIECES; i += WARP) {
        *(uint4 *)(to + 16 * i) = *one_place(block, i);
    }
    if (lane % 4 == 0) {
        UNROLL
        for (int i = 0; i < ONE_CHUNKS / 2; i++) {
            one_scales_store(&scales[i], m->scales, m->zeros, one_down_row() * ONE_CHUNKS + 2 * i,
                             ONE_CHUNKS);
        }
    }
}

DEVICE void one_down_scales(struct one_scales scales[ONE_CHUNKS / 2],
                            const struct experts_matrix *m, int64_t away)
{
    const uint8_t *zeros = m->zeros ? m->zeros + away : NULL;

    UNROLL
    for (int i = 0; i < ONE_CHUNKS / 2; i++) {
        one_scales_load(&scales[i], (const uint8_t *)m->scales + away, zeros,
                        one_down_row() * ONE_CHUNKS + 2 * i, ONE_CHUNKS);
    }
}

/* The warp's pair, if it has an expert, else 0. */
template <int TYPE>
DEVICE void one_down_product(struct one_shared *s, const struct one_scales scales[ONE_CHUNKS / 2],
                             const struct experts_args *a, int expert)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    uint4 *mid = s->mid[warp];
    const uint4 *from = (const uint4 *)(a->mid + warp * ONE_WIDTH);
    float acc[2] = {};

    if (expert >= 0) {
        UNROLL
        for (int i = 0; i < ONE_CHUNKS * CHUNK_UNITS; i += WARP) {
            copy16_async(mid + i + lane, from + i + lane, true);
        }
        copy_commit();
        copy_wait<0>();
        warp_sync();
        UNROLL
        for (int i = 0; i < ONE_CHUNKS; i += 2) {
            const uint4 *unit = s->block[warp][i] + lane;
            const uint4 block[2][2] = {{unit[0], unit[WARP]},
                                       {unit[PART_UNITS], unit[PART_UNITS + WARP]}};
            float sum[2];

            one_sums<TYPE, 2>(sum, mid + i * CHUNK_UNITS);
            one_add<TYPE>(acc, block, &scales[i / 2], a->dtype[EXPERTS_DOWN], mid + i * CHUNK_UNITS,
                          sum);
        }
    }
    if (lane % 4 == 0) {
        s->part[warp][lane / 4] = acc[0];
        s->part[warp][lane / 4 + 8] = acc[1];
    }
}

/* A column's end. */
DEVICE void one_residual(const struct one_shared *s, const struct moe_down_args *a)
{
    int col = (int)threadIdx.x;
    size_t at = (size_t)blockIdx.x * EXPERTS_DECODE_COLS + (size_t)col;
    float routed = 0, x;

    UNROLL
    for (int q = 0; q < ONE_WARPS; q++) {
        routed += s->prob[q] * s->part[q][col];
    }
    if (s->is_joined) {
        routed += join_value(&a->join, at);
    }
    x = s->x[col] + routed;
    x += s->share * s->shared[col];
    a->experts.out[at] = x;
    if ((f32_bits(x) & 0x7f800000u) == 0x7f800000u) {
        atomic_min(&a->bad_layer[0], a->layer);
    }
}

/* What is not from the kernel before comes first, of that what depends on nothing. The residual too: nobody
 * else writes it meanwhile. */
DEVICE int one_down_start(struct one_shared *s, struct one_scales scales[ONE_CHUNKS / 2],
                          const struct moe_down_args *a)
{
    const struct experts_args *e = &a->experts;
    int tid = (int)threadIdx.x, expert;
    int64_t away;

    prefetch_columns(&a->down);
    expert = one_expert(e, tid / WARP);
    away = one_away(a, tid / WARP);
    if (away != 0) {
        one_down_fetch(s->block[tid / WARP], one_down_rows(e, expert) + away);
    } else if (expert >= 0) {
        one_down_load(s->block[tid / WARP], e, expert);
    }
    if (tid < EXPERTS_DECODE_COLS) {
        s->x[tid] = e->out[blockIdx.x * EXPERTS_DECODE_COLS + threadIdx.x];
    }
    if (tid < ONE_WARPS) {
        s->prob[tid] = one_expert(e, tid) >= 0 ? e->prob[tid] : 0.0f;
    }
    if (tid == 0) {
        s->share = a->share ? sigmoid(a->share[0]) : 1.0f;
        s->is_joined = join_is_due(&a->join);
    }
    shared_down_any(s->shared, a, 1);
    if (expert >= 0) {
        one_down_scales(scales, down_of(e, expert), away);
    }
    return expert;
}

template <int TYPE> DEVICE void down_one(const struct moe_down_args *a, struct one_shared *s)
{
    bool has_row = row_count(&a->experts) > 0;
    struct one_scales scales[ONE_CHUNKS / 2];
    int expert = one_down_start(s, scales, a);

    depend_wait();
    if (!has_row) {
        return;
    }
    one_down_product<TYPE>(s, scales, &a->experts, expert);
    if (one_away(a, (int)threadIdx.x / WARP) != 0) {
        one_down_keep((uint8_t *)(uintptr_t)one_down_rows(&a->experts, expert),
                      s->block[threadIdx.x / WARP], scales, down_of(&a->experts, expert));
    }
    block_sync();
    if (s->is_joined) {
        if (threadIdx.x == 0) {
            join_wait(&a->join);
        }
        block_sync();
    }
    if (threadIdx.x < EXPERTS_DECODE_COLS) {
        one_residual(s, a);
    }
}

/* Up to 96 registers: beside two blocks of moe_gate_one_* with 80 that fills a multiprocessor, and there are
 * no more blocks than multiprocessors on the card that this was made for. */
#define MOE_DOWN_ONE(name, type)                                                                   \
    KERNEL(name, moe_down_args, EXPERTS_DECODE_THREADS, 2)                                         \
    {                                                                                              \
        SHARED struct one_shared shared;                                                           \
                                                                                                   \
        depend_launch();                                                                           \
        down_one<type>(&a, &shared);                                                               \
    }

MOE_DOWN_ONE(moe_down_one_bf16, DTYPE_BF16)
MOE_DOWN_ONE(moe_down_one_f16, DTYPE_F16)
