/* experts_decode.cuh - the routed experts of a few rows: int4 weights, 16-bit activations, two kernels.
 *
 * Place: backend/cuda/kernels; for experts_decode.cu, and for moe_gate.cu and moe_down.cu, whose kernels do more.
 * Idea:  what counts is that all weights are asked for at once. First launch: a block has 16 columns of
 *        gate and up of one expert, its warps share out the inputs, so each thread has eight copies of 16
 *        bytes on their way and then is nearly done; partial sums meet in shared memory. Second launch: a
 *        block has 16 output columns of all experts, a warp takes whole experts; the sum over a row's
 *        choices is in the block, in the order of idx, so no further pass is needed.
 * Pairs: pairs of one expert are columns of the same matrix instructions, so that its weights are read
 *        once. Every warp finds them for itself: there are few, and a table would be one more launch.
 * Early: the first kernel lets the second begin only when it has itself waited for the router. So the second
 *        may read the choices, and ask for its weights, while the first still runs. For this both have to
 *        fit on a multiprocessor together: weights arrive in shared memory, not in registers. A thread
 *        copies just what it will read itself, so that takes no barrier. */
#ifndef BACKEND_CUDA_EXPERTS_DECODE_CUH
#define BACKEND_CUDA_EXPERTS_DECODE_CUH

#include "backend/cuda/kernels/experts_int4.cuh"

/* Pairs of one expert, up to group_max, for one warp. */
struct pair_group {
    int expert; /* -1: `pair` is not the first of a group, or chose no expert */
    int n;
    int column; /* the pair that is this lane's row g = lane / 4 of x; below n */
};

DEVICE int row_count(const struct experts_args *a)
{
    return max(0, min(*a->n_rows - a->row0, a->rows_max));
}

/* Groups are cut in the order of pairs: `pair` begins one if the number of pairs before it with the same
 * expert is a multiple of group_max. Choices past the step's rows may be read, but do not count. */
DEVICE struct pair_group group_of(const struct experts_args *a, int n_pairs, int pair)
{
    int lane = (int)threadIdx.x % WARP, g = lane / 4, seen = 0, before = 0;
    int pairs_max = a->rows_max * a->top_k;
    struct pair_group r = {a->idx[pair], 0, pair};

    for (int base = 0; base < n_pairs; base += WARP) {
        int other = base + lane < pairs_max ? a->idx[base + lane] : -1;
        uint32_t same = warp_ballot(base + lane < n_pairs && other == r.expert);

        if (base <= pair) {
            uint32_t lower = base + WARP <= pair ? ~0u : (1u << (pair - base)) - 1u;

            before += __popc(same & lower);
        }
        while (same) {
            int at = base + __ffs((int)same) - 1;

            same &= same - 1;
            if (at >= pair && seen < a->group_max) {
                r.column = seen == g ? at : r.column;
                seen++;
            }
        }
    }
    r.n = seen;
    if (r.expert < 0 || r.expert >= a->n_experts || before % a->group_max != 0) {
        r.expert = -1;
    }
    return r;
}

/* One chunk of 16 weight rows on its way to units [2][WARP] in shared memory. */
DEVICE void copy_part(uint4 *units, const struct experts_matrix *w, int n_in, int row, int chunk)
{
    int lane = (int)threadIdx.x % WARP;
    size_t row_bytes = (size_t)n_in / 2;
    const uint8_t *data = w->data + (size_t)(row + lane / 4) * row_bytes +
                          (size_t)(chunk * CHUNK_BYTES + lane % 4 * 16);

    copy16_async(units + lane, data, true);
    copy16_async(units + WARP + lane, data + 8 * row_bytes, true);
}

DEVICE void load_part(struct weight_part *p, const struct experts_matrix *w, int32_t dtype,
                      int32_t group, int n_in, int row, int chunk)
{
    load_scales(p, w->scales, w->zeros, dtype, row + (int)threadIdx.x % WARP / 4, n_in / group,
                chunk * EXPERTS_CHUNK / group);
}

DEVICE void fetch_part(struct weight_part *p, const uint4 *units)
{
    int lane = (int)threadIdx.x % WARP;

    p->block[0] = units[lane];
    p->block[1] = units[WARP + lane];
}

/* --- gate and up --- */

enum {
    GATE_WARPS = EXPERTS_DECODE_THREADS / WARP,
    SUM_STRIDE =
        2 * EXPERTS_DECODE_COLS + 4, /* of a row of x in the partial sums, apart in banks */
    PART_UNITS = 2 * WARP,           /* of a chunk of 16 weight rows */
};

DEVICE void load_x(float v[4], const float *x, const int32_t *perm, int k)
{
    if (perm) {
        int4 from = *(const int4 *)(perm + k);

        v[0] = x[from.x];
        v[1] = x[from.y];
        v[2] = x[from.z];
        v[3] = x[from.w];
    } else {
        float4 quad = *(const float4 *)(x + k);

        v[0] = quad.x;
        v[1] = quad.y;
        v[2] = quad.z;
        v[3] = quad.w;
    }
}

/* A warp's chunks of the group's rows, in the order of perm, into shared memory. Chunks past the last are the
 * last again. */
template <int TYPE>
DEVICE void stage_x(uint4 *units, const struct experts_args *a, const struct pair_group *group,
                    const int32_t *perm, int chunk)
{
    int lane = (int)threadIdx.x % WARP, last = a->hidden / EXPERTS_CHUNK - 1;

    for (int j = 0; j < group->n; j++) {
        int row = shuffle(group->column, 4 * j) / a->top_k;
        const float *x = a->x + (size_t)row * (size_t)a->hidden;
        float v[EXPERTS_GATE_CHUNKS][4];

        UNROLL
        for (int c = 0; c < EXPERTS_GATE_CHUNKS; c++) {
            load_x(v[c], x, perm, min(chunk + c, last) * EXPERTS_CHUNK + 4 * lane);
        }
        UNROLL
        for (int c = 0; c < EXPERTS_GATE_CHUNKS; c++) {
            pack_quad<TYPE>(units + (c * a->group_max + j) * CHUNK_UNITS, 4 * lane, v[c],
                            unit_flip(j));
        }
    }
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

/* The table of experts is read as soon as the choices are known; until then it comes nearer. */
DEVICE void prefetch_table(const struct experts_args *a)
{
    size_t n = (size_t)a->n_experts * EXPERTS_MATRICES * sizeof *a->experts;
    size_t at = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 128;

    if (at < n) {
        prefetch_line((const uint8_t *)a->experts + at);
    }
}

/* Two chunks of gate and up, from chunk c0: acc is the warp's so far. weights: the warp's, [chunk][gate, up]
 * [PART_UNITS]; x: [gate, up if has_perm][chunk][group_max][CHUNK_UNITS]. */
template <int TYPE>
DEVICE void gate_up_step(float acc[2][1][1][4], const struct experts_args *a,
                         const struct pair_group *group, int col0, int c0, uint4 *weights, uint4 *x)
{
    const struct experts_matrix *w = a->experts + (size_t)group->expert * EXPERTS_MATRICES;
    int g = (int)threadIdx.x % WARP / 4, x_row = g < group->n ? g : 0;
    int n_chunks = a->hidden / EXPERTS_CHUNK;
    uint4 *x_up = x + (a->has_perm ? EXPERTS_GATE_CHUNKS * a->group_max * CHUNK_UNITS : 0);
    struct weight_part p[EXPERTS_GATE_CHUNKS * 2];

    UNROLL
    for (int i = 0; i < EXPERTS_GATE_CHUNKS * 2; i++) {
        int m = i % 2 ? EXPERTS_UP : EXPERTS_GATE;

        copy_part(weights + i * PART_UNITS, w + m, a->hidden, col0, min(c0 + i / 2, n_chunks - 1));
    }
    copy_commit();
    UNROLL
    for (int i = 0; i < EXPERTS_GATE_CHUNKS * 2; i++) {
        int m = i % 2 ? EXPERTS_UP : EXPERTS_GATE;

        load_part(&p[i], w + m, a->dtype[m], a->group[m], a->hidden, col0,
                  min(c0 + i / 2, n_chunks - 1));
    }
    warp_sync(); /* the step before has been read */
    stage_x<TYPE>(x, a, group, w[EXPERTS_GATE].perm, c0);
    if (a->has_perm) {
        stage_x<TYPE>(x_up, a, group, w[EXPERTS_UP].perm, c0);
    }
    warp_sync();
    copy_wait<0>();
    UNROLL
    for (int i = 0; i < EXPERTS_GATE_CHUNKS * 2; i++) {
        const uint4 *row = (i % 2 ? x_up : x) + (i / 2 * a->group_max + x_row) * CHUNK_UNITS;

        if (c0 + i / 2 < n_chunks) {
            fetch_part(&p[i], weights + i * PART_UNITS);
            multiply_chunk<TYPE, 1, 1>(acc[i % 2], &p[i], a->dtype[EXPERTS_GATE], row, row,
                                       unit_flip(x_row));
        }
    }
}

/* A block: 16 columns for the group that begins with its pair. */
template <int TYPE>
DEVICE void gate_up_tile(const struct experts_args *a, uint4 *dynamic, float *part,
                         int32_t *columns)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int g = lane / 4, t = lane % 4, n_tiles = a->width / EXPERTS_DECODE_COLS;
    int pair = (int)blockIdx.x / n_tiles, col0 = (int)blockIdx.x % n_tiles * EXPERTS_DECODE_COLS;
    int warp_units = EXPERTS_GATE_CHUNKS * 2 * PART_UNITS;
    int x_units = EXPERTS_GATE_CHUNKS * a->group_max * CHUNK_UNITS * (a->has_perm ? 2 : 1);
    uint4 *weights = dynamic + warp * warp_units;
    uint4 *x = dynamic + GATE_WARPS * warp_units + warp * x_units;
    float acc[2][1][1][4] = {};
    struct pair_group group;
    int n_pairs = row_count(a) * a->top_k;

    group = group_of(a, n_pairs, pair);
    if (pair >= n_pairs || group.expert < 0) {
        return;
    }
    for (int c = warp * EXPERTS_GATE_CHUNKS; c < a->hidden / EXPERTS_CHUNK;
         c += GATE_WARPS * EXPERTS_GATE_CHUNKS) {
        gate_up_step<TYPE>(acc, a, &group, col0, c, weights, x);
    }
    UNROLL
    for (int i = 0; i < 8; i++) {
        int j = 2 * t + i % 2, col = i / 4 * EXPERTS_DECODE_COLS + g + i / 2 % 2 * 8;

        part[(warp * EXPERTS_DECODE_MAX + j) * SUM_STRIDE + col] = acc[i / 4][0][0][i % 4];
    }
    if (warp == 0 && t == 0) {
        columns[g] = group.column;
    }
    block_sync();
    finish_gate(a, part, columns, group.n, col0);
}

template <int TYPE>
DEVICE void gate_up(const struct experts_args *a, uint4 *dynamic, float *part, int32_t *columns)
{
    prefetch_table(a);
    depend_wait();
    depend_launch();
    gate_up_tile<TYPE>(a, dynamic, part, columns);
}

/* --- down and the sum --- */

enum { DOWN_WARPS = EXPERTS_DECODE_THREADS / WARP };

/* A warp's place in its work: chunks [chunk, chunk + EXPERTS_DOWN_CHUNKS) of the group that begins with
 * pair. */
struct down_step {
    int pair, chunk;
    struct pair_group group;
};

DEVICE const struct experts_matrix *down_of(const struct experts_args *a, int expert)
{
    return a->experts + (size_t)expert * EXPERTS_MATRICES + EXPERTS_DOWN;
}

/* The first group at or after s->pair, in steps of the number of warps. */
DEVICE void find_group(struct down_step *s, const struct experts_args *a, int n_pairs)
{
    s->chunk = 0;
    s->group.expert = -1;
    while (s->pair < n_pairs) {
        s->group = group_of(a, n_pairs, s->pair);
        if (s->group.expert >= 0) {
            return;
        }
        s->pair += DOWN_WARPS;
    }
}

/* To the step after, if there is one. */
DEVICE void step_on(struct down_step *s, const struct experts_args *a, int n_pairs)
{
    s->chunk += EXPERTS_DOWN_CHUNKS;
    if (s->chunk >= a->width / EXPERTS_CHUNK) {
        s->pair += DOWN_WARPS;
        find_group(s, a, n_pairs);
    }
}

/* Weights on their way: [chunk][PART_UNITS]. Chunks past the last are the last again. */
DEVICE void copy_step(uint4 *weights, const struct down_step *s, const struct experts_args *a,
                      int col0)
{
    int n_chunks = a->width / EXPERTS_CHUNK;

    if (s->group.expert >= 0) {
        UNROLL
        for (int c = 0; c < EXPERTS_DOWN_CHUNKS; c++) {
            copy_part(weights + c * PART_UNITS, down_of(a, s->group.expert), a->width, col0,
                      min(s->chunk + c, n_chunks - 1));
        }
    }
    copy_commit();
}

DEVICE void load_step(struct weight_part p[EXPERTS_DOWN_CHUNKS], const struct down_step *s,
                      const struct experts_args *a, int col0)
{
    int n_chunks = a->width / EXPERTS_CHUNK;

    if (s->group.expert >= 0) {
        UNROLL
        for (int c = 0; c < EXPERTS_DOWN_CHUNKS; c++) {
            load_part(&p[c], down_of(a, s->group.expert), a->dtype[EXPERTS_DOWN],
                      a->group[EXPERTS_DOWN], a->width, col0, min(s->chunk + c, n_chunks - 1));
        }
    }
}

/* The group's rows of mid on their way: [chunk][group_max][CHUNK_UNITS]. In the order of perm they have to be
 * gathered, which waits. MAY_GATHER: else has_perm is 0, which saves registers. */
template <bool MAY_GATHER>
DEVICE void stage_mid(uint4 *units, const struct experts_args *a, const struct down_step *s)
{
    const int32_t *perm = down_of(a, s->group.expert)->perm;
    int lane = (int)threadIdx.x % WARP;
    int n = min(EXPERTS_DOWN_CHUNKS, a->width / EXPERTS_CHUNK - s->chunk);

    for (int j = 0; j < s->group.n; j++) {
        const uint16_t *mid = a->mid + (size_t)shuffle(s->group.column, 4 * j) * (size_t)a->width;

        if (!MAY_GATHER || !a->has_perm) {
            for (int i = lane; i < n * CHUNK_UNITS; i += WARP) {
                uint4 *to = units + (i / CHUNK_UNITS * a->group_max + j) * CHUNK_UNITS;

                copy16_async(to + (i % CHUNK_UNITS ^ unit_flip(j)),
                             (const uint4 *)mid + s->chunk * CHUNK_UNITS + i, true);
            }
            continue;
        }
        for (int i = 4 * lane; i < n * EXPERTS_CHUNK; i += 4 * WARP) {
            int k = s->chunk * EXPERTS_CHUNK + i;
            int4 from = perm ? *(const int4 *)(perm + k) : make_int4(k, k + 1, k + 2, k + 3);

            pack_quad16(units + (i / EXPERTS_CHUNK * a->group_max + j) * CHUNK_UNITS,
                        i % EXPERTS_CHUNK, mid[from.x], mid[from.y], mid[from.z], mid[from.w],
                        unit_flip(j));
        }
    }
    copy_commit();
}

/* The step's part of W mid: acc is the group's so far. */
template <int TYPE>
DEVICE void multiply_step(float acc[1][1][4], struct weight_part p[EXPERTS_DOWN_CHUNKS],
                          const struct down_step *s, const struct experts_args *a,
                          const uint4 *weights, const uint4 *mid)
{
    int g = (int)threadIdx.x % WARP / 4, x_row = g < s->group.n ? g : 0;
    int n = a->width / EXPERTS_CHUNK - s->chunk;

    UNROLL
    for (int c = 0; c < EXPERTS_DOWN_CHUNKS; c++) {
        const uint4 *x = mid + (c * a->group_max + x_row) * CHUNK_UNITS;

        if (c < n) {
            fetch_part(&p[c], weights + c * PART_UNITS);
            multiply_chunk<TYPE, 1, 1>(acc, &p[c], a->dtype[EXPERTS_DOWN], x, x, unit_flip(x_row));
        }
    }
}

/* A finished group's columns to its pairs' places. */
DEVICE void keep_result(float *part, float acc[1][1][4], const struct pair_group *group)
{
    int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;

    UNROLL
    for (int i = 0; i < 4; i++) {
        int pair = shuffle(group->column, 4 * (2 * t + i % 2));

        if (2 * t + i % 2 < group->n) {
            part[pair * EXPERTS_DECODE_COLS + g + i / 2 * 8] = acc[0][0][i];
        }
        acc[0][0][i] = 0;
    }
}

/* A block's work: 16 output columns from col0 on. */
struct down_block {
    int n_rows, n_pairs, col0;
    uint4 *weights, *mid; /* the warp's */
    float *part;          /* [rows_max * top_k][EXPERTS_DECODE_COLS] what each pair gave */
    float *prob;          /* of each pair */
    int32_t *is_expert;
    struct down_step s;
    struct weight_part p[EXPERTS_DOWN_CHUNKS];
};

/* Before depend_wait(): asks for the first weights, but for their scales, which down_scales() does. Choices
 * are the router's: see "Early" above. Returns the shared memory that is left. */
DEVICE float *down_start(struct down_block *b, const struct experts_args *a, uint4 *dynamic)
{
    int warp = (int)threadIdx.x / WARP, pairs_max = a->rows_max * a->top_k;
    int weight_units = EXPERTS_DOWN_CHUNKS * PART_UNITS;
    int mid_units = EXPERTS_DOWN_CHUNKS * a->group_max * CHUNK_UNITS;
    int warp_units = a->stages * weight_units + mid_units;

    b->n_rows = row_count(a);
    b->n_pairs = b->n_rows * a->top_k;
    b->col0 = (int)blockIdx.x * EXPERTS_DECODE_COLS;
    b->weights = dynamic + warp * warp_units;
    b->mid = b->weights + a->stages * weight_units;
    b->part = (float *)(dynamic + DOWN_WARPS * warp_units);
    b->prob = b->part + pairs_max * EXPERTS_DECODE_COLS;
    b->is_expert = (int32_t *)(b->prob + pairs_max);
    b->s.pair = warp;
    find_group(&b->s, a, b->n_pairs);
    copy_step(b->weights, &b->s, a, b->col0);
    return (float *)(b->is_expert + pairs_max);
}

/* Before depend_wait() too, if it can be. */
DEVICE void down_scales(struct down_block *b, const struct experts_args *a)
{
    load_step(b->p, &b->s, a, b->col0);
    for (int i = (int)threadIdx.x; i < b->n_pairs; i += EXPERTS_DECODE_THREADS) {
        b->prob[i] = a->prob[i];
        b->is_expert[i] = a->idx[i] >= 0 && a->idx[i] < a->n_experts;
    }
}

/* After depend_wait(): all pairs' results; ends with a barrier. With two stages the weights of a warp's next
 * step are on their way while it multiplies. */
template <int TYPE, bool MAY_GATHER>
DEVICE void down_products(struct down_block *b, const struct experts_args *a)
{
    int weight_units = EXPERTS_DOWN_CHUNKS * PART_UNITS, stage = 0;
    float acc[1][1][4] = {};

    while (b->s.group.expert >= 0) {
        struct down_step next;

        warp_sync(); /* the step before has been read */
        stage_mid<MAY_GATHER>(b->mid, a, &b->s);
        next = b->s;
        step_on(&next, a, b->n_pairs);
        if (a->stages > 1) {
            copy_step(b->weights + (stage ^ 1) * weight_units, &next, a, b->col0);
            copy_wait<1>();
        } else {
            copy_wait<0>();
        }
        warp_sync();
        multiply_step<TYPE>(acc, b->p, &b->s, a, b->weights + stage * weight_units, b->mid);
        if (next.chunk == 0) {
            keep_result(b->part, acc, &b->s.group);
        }
        if (a->stages > 1) {
            stage ^= 1;
        } else {
            copy_step(b->weights, &next, a, b->col0);
        }
        load_step(b->p, &next, a, b->col0);
        b->s = next;
    }
    block_sync();
}

/* One column of a row: its pairs in the order of its choices. prob of a choice that is no expert does not
 * count. */
DEVICE float routed_sum(const struct down_block *b, const struct experts_args *a, int row, int col)
{
    float sum = 0;

    for (int q = row * a->top_k; q < (row + 1) * a->top_k; q++) {
        if (b->is_expert[q]) {
            sum += b->prob[q] * b->part[q * EXPERTS_DECODE_COLS + col];
        }
    }
    return sum;
}

template <int TYPE> DEVICE void down(const struct experts_args *a, uint4 *dynamic)
{
    struct down_block b;

    depend_launch();
    down_start(&b, a, dynamic);
    down_scales(&b, a);
    depend_wait();
    down_products<TYPE, true>(&b, a);
    for (int i = (int)threadIdx.x; i < b.n_rows * EXPERTS_DECODE_COLS;
         i += EXPERTS_DECODE_THREADS) {
        int row = i / EXPERTS_DECODE_COLS, col = i % EXPERTS_DECODE_COLS;

        a->out[(size_t)row * (size_t)a->n_out + (size_t)(b.col0 + col)] =
            routed_sum(&b, a, row, col);
    }
}

#endif
