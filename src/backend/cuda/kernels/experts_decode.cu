/* experts_decode.cu - the routed experts of a few rows: int4 weights, 16-bit activations, two launches.
 *
 * Place: backend/cuda/kernels; cuda_experts.c launches it for at most EXPERTS_DECODE_MAX rows.
 * Idea:  what counts is that all weights are asked for at once. First launch: a block has 16 columns of
 *        gate and up of one expert, its warps share out the inputs, so each thread has eight loads of 16
 *        bytes on their way and then is nearly done; partial sums meet in shared memory. Second launch: a
 *        block has 16 output columns of all experts, a warp takes whole experts; the sum over a row's
 *        choices is in the block, in the order of idx, so no further pass is needed.
 * Pairs: pairs of one expert are columns of the same matrix instructions, so that its weights are read
 *        once. Every warp finds them for itself: there are few, and a table would be one more launch.
 * Early: the first kernel lets the second begin only when it has itself waited for the router. So the second
 *        may read the choices, and ask for its weights, while the first still runs. */
#include "backend/cuda/kernels/experts_int4.cuh"

/* Pairs of one expert, up to eight, for one warp. */
struct pair_group {
    int expert; /* -1: `pair` is not the first of a group, or chose no expert */
    int n;
    int column; /* the pair that is this lane's row g = lane / 4 of x; below n */
};

DEVICE int row_count(const struct experts_args *a)
{
    return max(0, min(*a->n_rows - a->row0, a->rows_max));
}

/* Rows of x that a group has at the most: no more than rows, unless a row names an expert twice, which costs
 * it a group of its own. */
DEVICE int group_max(const struct experts_args *a)
{
    return min(a->rows_max, (int)EXPERTS_DECODE_MAX);
}

/* Groups are cut in the order of pairs: `pair` begins one if the number of pairs before it with the same
 * expert is a multiple of group_max. */
DEVICE struct pair_group group_of(const struct experts_args *a, int n_pairs, int pair)
{
    int lane = (int)threadIdx.x % WARP, g = lane / 4, seen = 0, before = 0;
    struct pair_group r = {a->idx[pair], 0, pair};

    if (r.expert < 0 || r.expert >= a->n_experts) {
        r.expert = -1;
        return r;
    }
    for (int base = 0; base < n_pairs; base += WARP) {
        uint32_t same = warp_ballot(base + lane < n_pairs && a->idx[base + lane] == r.expert);

        if (base <= pair) {
            uint32_t lower = base + WARP <= pair ? ~0u : (1u << (pair - base)) - 1u;

            before += __popc(same & lower);
        }
        while (same) {
            int at = base + __ffs((int)same) - 1;

            same &= same - 1;
            if (at >= pair && seen < group_max(a)) {
                r.column = seen == g ? at : r.column;
                seen++;
            }
        }
    }
    r.n = seen;
    if (before % group_max(a) != 0) {
        r.expert = -1;
    }
    return r;
}

/* --- gate and up --- */

enum {
    GATE_WARPS = EXPERTS_DECODE_THREADS / WARP,
    GATE_CHUNKS = 2, /* that a warp has on their way */
    SUM_STRIDE =
        2 * EXPERTS_DECODE_COLS + 4, /* of a row of x in the partial sums, apart in banks */
};

/* One chunk of the group's rows, in the order of perm, into shared memory. */
template <int TYPE>
DEVICE void stage_x(uint4 *units, const struct experts_args *a, const struct pair_group *group,
                    const int32_t *perm, int chunk)
{
    int lane = (int)threadIdx.x % WARP, k = 4 * lane;
    int4 from = make_int4(k, k + 1, k + 2, k + 3);

    if (perm) {
        from = *(const int4 *)(perm + chunk * EXPERTS_CHUNK + k);
    }
    for (int j = 0; j < group->n; j++) {
        int row = shuffle(group->column, 4 * j) / a->top_k;
        const float *x = a->x + (size_t)row * (size_t)a->hidden;
        float v[4];

        if (perm) {
            v[0] = x[from.x];
            v[1] = x[from.y];
            v[2] = x[from.z];
            v[3] = x[from.w];
        } else {
            float4 quad = *(const float4 *)(x + chunk * EXPERTS_CHUNK + k);

            v[0] = quad.x;
            v[1] = quad.y;
            v[2] = quad.z;
            v[3] = quad.w;
        }
        pack_quad<TYPE>(units + j * CHUNK_UNITS, k, v, unit_flip(j));
    }
}

DEVICE void load_part(struct weight_part *p, const struct experts_matrix *w, int32_t dtype,
                      int32_t group, int n_in, int row, int chunk)
{
    int lane = (int)threadIdx.x % WARP;
    size_t row_bytes = (size_t)n_in / 2;
    const uint8_t *data = w->data + (size_t)(row + lane / 4) * row_bytes +
                          (size_t)(chunk * CHUNK_BYTES + lane % 4 * 16);

    p->block[0] = stream16(data);
    p->block[1] = stream16(data + 8 * row_bytes);
    load_scales(p, w->scales, w->zeros, dtype, row + lane / 4, n_in / group,
                chunk * EXPERTS_CHUNK / group);
}

/* The warps' partial sums of gate and up, silu and the product: part is [warp][row of x][SUM_STRIDE]. */
DEVICE void finish_gate(const struct experts_args *a, const float *part, const int32_t *columns,
                        int n, int col0)
{
    enum dtype round = (enum dtype)a->round;
    int tid = (int)threadIdx.x, col = tid % EXPERTS_DECODE_COLS, j = tid / EXPERTS_DECODE_COLS;
    float gate = 0, up = 0;
    size_t at;

    if (j >= n) {
        return;
    }
    UNROLL
    for (int w = 0; w < GATE_WARPS; w++) {
        const float *sum = part + (w * EXPERTS_DECODE_MAX + j) * SUM_STRIDE + col;

        gate += sum[0];
        up += sum[EXPERTS_DECODE_COLS];
    }
    gate = round_f32(round, gate);
    up = round_f32(round, up);
    at = a->has_perm ? (size_t)(col0 + col) : packed_at(col0 + col);
    a->mid[(size_t)columns[j] * (size_t)a->width + at] = to_half_of(a->round, silu(gate) * up);
}

/* A block: 16 columns for the group that begins with its pair. Dynamic shared memory: for each warp two
 * chunks of the rows of x, once, or with has_perm for gate and for up. */
template <int TYPE>
DEVICE void gate_up(const struct experts_args *a, uint4 *staged, float *part, int32_t *columns)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int g = lane / 4, t = lane % 4, n_tiles = a->width / EXPERTS_DECODE_COLS;
    int pair = (int)blockIdx.x / n_tiles, col0 = (int)blockIdx.x % n_tiles * EXPERTS_DECODE_COLS;
    int n_chunks = a->hidden / EXPERTS_CHUNK, n_pairs, chunk_units, x_row;
    float acc[2][1][4] = {};
    const struct experts_matrix *w;
    struct pair_group group;

    depend_wait();
    depend_launch();
    n_pairs = row_count(a) * a->top_k;
    if (pair >= n_pairs) {
        return;
    }
    group = group_of(a, n_pairs, pair);
    if (group.expert < 0) {
        return;
    }
    w = a->experts + (size_t)group.expert * EXPERTS_MATRICES;
    chunk_units = group_max(a) * CHUNK_UNITS;
    staged += warp * (a->has_perm ? 2 : 1) * GATE_CHUNKS * chunk_units;
    x_row = g < group.n ? g : 0;
    for (int c0 = warp * GATE_CHUNKS; c0 < n_chunks; c0 += GATE_WARPS * GATE_CHUNKS) {
        int n = min(GATE_CHUNKS, n_chunks - c0);
        uint4 *second = staged + (a->has_perm ? GATE_CHUNKS * chunk_units : 0);
        struct weight_part p[GATE_CHUNKS][2];

        UNROLL
        for (int c = 0; c < GATE_CHUNKS; c++) {
            int chunk = c < n ? c0 + c : c0;

            load_part(&p[c][0], w + EXPERTS_GATE, a->dtype[EXPERTS_GATE], a->group[EXPERTS_GATE],
                      a->hidden, col0, chunk);
            load_part(&p[c][1], w + EXPERTS_UP, a->dtype[EXPERTS_UP], a->group[EXPERTS_UP],
                      a->hidden, col0, chunk);
        }
        warp_sync();
        for (int c = 0; c < n; c++) {
            stage_x<TYPE>(staged + c * chunk_units, a, &group, w[EXPERTS_GATE].perm, c0 + c);
            if (a->has_perm) {
                stage_x<TYPE>(second + c * chunk_units, a, &group, w[EXPERTS_UP].perm, c0 + c);
            }
        }
        warp_sync();
        UNROLL
        for (int c = 0; c < GATE_CHUNKS; c++) {
            int x_at = c * chunk_units + x_row * CHUNK_UNITS;

            if (c < n) {
                multiply_chunk<TYPE, 2, 1>(acc, p[c], a->dtype[EXPERTS_GATE], staged + x_at,
                                           second + x_at, unit_flip(x_row));
            }
        }
    }
    UNROLL
    for (int i = 0; i < 8; i++) {
        int j = 2 * t + i % 2, col = i / 4 * EXPERTS_DECODE_COLS + g + i / 2 % 2 * 8;

        part[(warp * EXPERTS_DECODE_MAX + j) * SUM_STRIDE + col] = acc[i / 4][0][i % 4];
    }
    if (warp == 0 && t == 0) {
        columns[g] = group.column;
    }
    block_sync();
    finish_gate(a, part, columns, group.n, col0);
}

#define GATE_UP(name, type)                                                                        \
    KERNEL(name, experts_args, EXPERTS_DECODE_THREADS, 2)                                          \
    {                                                                                              \
        SHARED float part[GATE_WARPS * EXPERTS_DECODE_MAX * SUM_STRIDE];                           \
        SHARED int32_t columns[EXPERTS_DECODE_MAX];                                                \
        DYNAMIC_SHARED(uint4, staged);                                                             \
                                                                                                   \
        gate_up<type>(&a, staged, part, columns);                                                  \
    }

GATE_UP(experts_gate_up_decode_bf16, DTYPE_BF16)
GATE_UP(experts_gate_up_decode_f16, DTYPE_F16)

/* --- down and the sum --- */

enum {
    DOWN_CHUNKS = 4,                   /* that a warp has on their way */
    PART_STRIDE = EXPERTS_DECODE_COLS, /* of a pair in the results */
};

/* A warp's place in its work: chunks [chunk, chunk + DOWN_CHUNKS) of the group that begins with pair. */
struct down_step {
    int pair, chunk;
    struct pair_group group;
};

/* The first group at or after s->pair, in steps of the number of warps. */
DEVICE void find_group(struct down_step *s, const struct experts_args *a, int n_pairs, int n_warps)
{
    s->chunk = 0;
    s->group.expert = -1;
    while (s->pair < n_pairs) {
        s->group = group_of(a, n_pairs, s->pair);
        if (s->group.expert >= 0) {
            return;
        }
        s->pair += n_warps;
    }
}

DEVICE void load_step(struct weight_part p[DOWN_CHUNKS], const struct down_step *s,
                      const struct experts_args *a, int col0)
{
    const struct experts_matrix *w;
    int n_chunks = a->width / EXPERTS_CHUNK;

    if (s->group.expert < 0) {
        return;
    }
    w = a->experts + (size_t)s->group.expert * EXPERTS_MATRICES + EXPERTS_DOWN;
    UNROLL
    for (int c = 0; c < DOWN_CHUNKS; c++) {
        load_part(&p[c], w, a->dtype[EXPERTS_DOWN], a->group[EXPERTS_DOWN], a->width, col0,
                  min(s->chunk + c, n_chunks - 1));
    }
}

/* One chunk of the group's rows of mid into shared memory. */
DEVICE void stage_mid(uint4 *units, const struct experts_args *a, const struct pair_group *group,
                      int chunk)
{
    const int32_t *perm = a->experts[(size_t)group->expert * EXPERTS_MATRICES + EXPERTS_DOWN].perm;
    int lane = (int)threadIdx.x % WARP;

    for (int j = 0; j < group->n; j++) {
        const uint16_t *mid = a->mid + (size_t)shuffle(group->column, 4 * j) * (size_t)a->width;
        uint4 *to = units + j * CHUNK_UNITS;

        if (a->has_perm) {
            for (int i = lane; i < EXPERTS_CHUNK; i += WARP) {
                int k = chunk * EXPERTS_CHUNK + i;
                size_t at = packed_at(i);

                ((uint16_t *)(to + ((int)(at / 8) ^ unit_flip(j))))[at % 8] =
                    mid[perm ? perm[k] : k];
            }
        } else if (lane < CHUNK_UNITS) {
            to[lane ^ unit_flip(j)] = ((const uint4 *)mid)[chunk * CHUNK_UNITS + lane];
        }
    }
}

/* The step's part of W mid: acc is the group's so far. */
template <int TYPE>
DEVICE void multiply_step(float acc[1][1][4], const struct weight_part p[DOWN_CHUNKS],
                          const struct down_step *s, const struct experts_args *a, uint4 *staged)
{
    int g = (int)threadIdx.x % WARP / 4, x_row = g < s->group.n ? g : 0;
    int n = min(DOWN_CHUNKS, a->width / EXPERTS_CHUNK - s->chunk);
    int chunk_units = group_max(a) * CHUNK_UNITS;

    warp_sync(); /* the step before has been read */
    for (int c = 0; c < n; c++) {
        stage_mid(staged + c * chunk_units, a, &s->group, s->chunk + c);
    }
    warp_sync();
    UNROLL
    for (int c = 0; c < DOWN_CHUNKS; c++) {
        const uint4 *x = staged + c * chunk_units + x_row * CHUNK_UNITS;

        if (c < n) {
            multiply_chunk<TYPE, 1, 1>(acc, &p[c], a->dtype[EXPERTS_DOWN], x, x, unit_flip(x_row));
        }
    }
}

/* A block: 16 output columns. Dynamic shared memory: for each warp DOWN_CHUNKS chunks of the rows of mid;
 * then [pairs][PART_STRIDE] results, and the pairs' probabilities and choices. */
template <int TYPE> DEVICE void down(const struct experts_args *a, uint4 *staged)
{
    int tid = (int)threadIdx.x, lane = tid % WARP, warp = tid / WARP;
    int n_warps = (int)blockDim.x / WARP, g = lane / 4, t = lane % 4;
    int n_chunks = a->width / EXPERTS_CHUNK, col0 = (int)blockIdx.x * EXPERTS_DECODE_COLS;
    int n_rows = row_count(a), n_pairs = n_rows * a->top_k, pairs_max = a->rows_max * a->top_k;
    int warp_units = DOWN_CHUNKS * group_max(a) * CHUNK_UNITS;
    float *part = (float *)(staged + n_warps * warp_units), *prob = part + pairs_max * PART_STRIDE;
    float acc[1][1][4] = {};
    struct weight_part p[DOWN_CHUNKS] = {};
    struct down_step s;

    depend_launch();
    s.pair = warp;
    find_group(&s, a, n_pairs, n_warps);
    load_step(p, &s, a, col0);
    depend_wait();
    for (int i = tid; i < n_pairs; i += (int)blockDim.x) {
        int e = a->idx[i];

        prob[i] = a->prob[i];
        ((int32_t *)prob)[pairs_max + i] = e >= 0 && e < a->n_experts;
    }
    while (s.group.expert >= 0) {
        multiply_step<TYPE>(acc, p, &s, a, staged + warp * warp_units);
        s.chunk += DOWN_CHUNKS;
        if (s.chunk >= n_chunks) {
            UNROLL
            for (int i = 0; i < 4; i++) {
                int pair = shuffle(s.group.column, 4 * (2 * t + i % 2));

                if (2 * t + i % 2 < s.group.n) {
                    part[pair * PART_STRIDE + g + i / 2 * 8] = acc[0][0][i];
                }
                acc[0][0][i] = 0;
            }
            s.pair += n_warps;
            find_group(&s, a, n_pairs, n_warps);
        }
        load_step(p, &s, a, col0);
    }
    block_sync();
    for (int i = tid; i < n_rows * EXPERTS_DECODE_COLS; i += (int)blockDim.x) {
        int row = i / EXPERTS_DECODE_COLS, col = i % EXPERTS_DECODE_COLS;
        float sum = 0;

        for (int q = row * a->top_k; q < (row + 1) * a->top_k; q++) {
            if (((const int32_t *)prob)[pairs_max + q]) {
                sum += prob[q] * part[q * PART_STRIDE + col];
            }
        }
        a->out[(size_t)row * (size_t)a->n_out + (size_t)(col0 + col)] = sum;
    }
}

#define DOWN(name, type)                                                                           \
    KERNEL(name, experts_args, 2 * EXPERTS_DECODE_THREADS, 1)                                      \
    {                                                                                              \
        DYNAMIC_SHARED(uint4, staged);                                                             \
                                                                                                   \
        down<type>(&a, staged);                                                                    \
    }

DOWN(experts_down_decode_bf16, DTYPE_BF16)
DOWN(experts_down_decode_f16, DTYPE_F16)
