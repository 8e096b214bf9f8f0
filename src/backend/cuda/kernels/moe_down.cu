/* moe_down.cu - the end of a layer: down of the routed experts and of the shared one, the residual sums, the
 * check.
 *
 * Place: backend/cuda/kernels; launched by cuda_fuse_moe.c after moe_gate.cu.
 * Early: as experts_decode.cuh says of the choices: they and the shared expert's product of gate and up were
 *        made by kernels before the one before. So the weights are asked for and the shared expert is
 *        computed while gate and up of the routed ones still run. */
#include "backend/cuda/kernels/experts_decode.cuh"
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

#define MOE_DOWN(name, type)                                                                       \
    KERNEL(name, moe_down_args, EXPERTS_DECODE_THREADS, 3)                                         \
    {                                                                                              \
        DYNAMIC_SHARED(uint4, dynamic);                                                            \
                                                                                                   \
        moe_down<type>(&a, dynamic);                                                               \
    }

MOE_DOWN(moe_down_bf16, DTYPE_BF16)
MOE_DOWN(moe_down_f16, DTYPE_F16)
