/* experts_sort.cu - pairs sorted by expert, rows put in the order the products want, rows summed up.
 *
 * Place: backend/cuda/kernels; around the products of experts_tile.cu and experts_plain.cu.
 * Order: slots are by expert, then by pair; nothing depends on which thread came first. */
#include "backend/cuda/kernels/experts_find.cuh"
#include "backend/cuda/kernels/experts_int4.cuh"

enum { SORT_WARPS = EXPERTS_ROW_THREADS / WARP };

DEVICE int row_count(const struct experts_args *a)
{
    return max(0, min(*a->n_rows - a->row0, a->rows_max));
}

DEVICE int warp_total(int v)
{
    UNROLL
    for (int m = WARP / 2; m > 0; m /= 2) {
        v += shuffle_xor(v, m);
    }
    return v;
}

/* One row of x, packed. */
DEVICE void pack_row(const struct experts_args *a, int row)
{
    const float *x = a->x + (size_t)row * (size_t)a->hidden;
    uint4 *units = (uint4 *)(a->packed + (size_t)row * (size_t)a->hidden);

    for (int k = 4 * (int)threadIdx.x; k < a->hidden; k += 4 * (int)blockDim.x) {
        float4 q = *(const float4 *)(x + k);
        const float v[4] = {q.x, q.y, q.z, q.w};

        if (a->round == DTYPE_BF16) {
            pack_quad<DTYPE_BF16>(units, k, v, 0);
        } else {
            pack_quad<DTYPE_F16>(units, k, v, 0);
        }
    }
}

/* The slots of one expert. A block reads all choices: how many are of lower experts says where its slots
 * begin. Warps have consecutive pairs and know each other's counts, so each writes on its own. */
DEVICE void sort_expert(const struct experts_args *a, int expert, int32_t *counts)
{
    int tid = (int)threadIdx.x, lane = tid % WARP, warp = tid / WARP;
    int n_pairs = row_count(a) * a->top_k, each = (n_pairs + SORT_WARPS - 1) / SORT_WARPS;
    int begin = min(warp * each, n_pairs), end = min(begin + each, n_pairs);
    int lower = 0, equal = 0, slot = 0, total = 0;

    for (int i = begin + lane; i < end; i += WARP) {
        int e = a->idx[i];

        lower += e >= 0 && e < expert;
        equal += e == expert;
        if (expert == 0 && (e < 0 || e >= a->n_experts)) {
            a->pair_slot[i] = -1;
        }
    }
    lower = warp_total(lower);
    equal = warp_total(equal);
    if (lane == 0) {
        counts[warp] = equal;
        counts[SORT_WARPS + warp] = lower;
    }
    block_sync();
    for (int w = 0; w < SORT_WARPS; w++) {
        slot += counts[SORT_WARPS + w] + (w < warp ? counts[w] : 0);
        total += counts[w];
    }
    if (warp == 0 && lane == 0) {
        a->first[expert] = slot;
        if (expert == a->n_experts - 1) {
            a->first[expert + 1] = slot + total;
        }
    }
    if (equal == 0) {
        return;
    }
    for (int base = begin; base < end; base += WARP) {
        int i = base + lane;
        bool is_mine = i < end && a->idx[i] == expert;
        uint32_t mine = warp_ballot(is_mine);

        if (is_mine) {
            int at = slot + __popc(mine & ((1u << lane) - 1u));

            a->slot_pair[at] = i;
            a->pair_slot[i] = at;
        }
        slot += __popc(mine);
    }
}

/* A block per expert, and where x is packed by row one for each row. */
KERNEL(experts_sort, experts_args, EXPERTS_ROW_THREADS, 2)
{
    SHARED int32_t counts[2 * SORT_WARPS];
    int row = (int)blockIdx.x - a.n_experts;

    depend_launch();
    if (row < 0 &&
        threadIdx.x <= EXPERTS_MATRICES * sizeof *a.experts / 128) { /* for the products */
        prefetch_line((const uint8_t *)(a.experts + (size_t)blockIdx.x * EXPERTS_MATRICES) +
                      threadIdx.x * 128);
    }
    depend_wait();
    if (row < 0) {
        sort_expert(&a, (int)blockIdx.x, counts);
    } else if (row < row_count(&a)) {
        pack_row(&a, row);
    }
}

/* A slot's row packed in the order of perm (NULL: plain). `at` gives input k. */
template <typename T>
DEVICE void gather_row(uint16_t *packed, const T *row, const int32_t *perm, int n, int32_t round)
{
    for (int unit = (int)threadIdx.x; unit < n / 8; unit += (int)blockDim.x) {
        int in_chunk = unit % CHUNK_UNITS;
        int k = unit / CHUNK_UNITS * EXPERTS_CHUNK + in_chunk % 4 * 32 + in_chunk / 4 * 4;
        uint16_t v[8];
        uint4 out;

        UNROLL
        for (int i = 0; i < 8; i++) { /* inputs k, k+1, k+2, k+3, k+16, ... */
            int at = k + i % 4 + i / 4 * 16;

            at = perm ? perm[at] : at;
            if (sizeof(T) == 2) {
                v[i] = (uint16_t)row[at];
            } else {
                v[i] = to_half_of(round, (float)row[at]);
            }
        }
        out.x = pack16(v[0], v[2]);
        out.y = pack16(v[4], v[6]);
        out.z = pack16(v[1], v[3]);
        out.w = pack16(v[5], v[7]);
        ((uint4 *)packed)[unit] = out;
    }
}

/* x for gate and for up: a block per slot and matrix. Here, too, a launch may be for a group of experts: perm
 * is where their weights are. */
KERNEL(experts_gather_x, experts_args, EXPERTS_ROW_THREADS, 2)
{
    int slot = (int)blockIdx.x / 2, m = (int)blockIdx.x % 2 ? EXPERTS_UP : EXPERTS_GATE;
    size_t to = (size_t)slot;

    depend_launch();
    depend_wait();
    if (slot < a.first[a.n_experts]) {
        int pair = a.slot_pair[slot], expert = a.idx[pair];
        const struct experts_matrix *w = a.experts + (size_t)expert * EXPERTS_MATRICES + (size_t)m;

        if (!is_of_group(&a, expert)) {
            return;
        }
        if (m == EXPERTS_UP) {
            to += (size_t)a.rows_max * (size_t)a.top_k;
        }
        gather_row(a.packed + to * (size_t)a.hidden,
                   a.x + (size_t)(pair / a.top_k) * (size_t)a.hidden, w->perm, a.hidden, a.round);
    }
}

/* mid for down: a block per slot. */
KERNEL(experts_gather_mid, experts_args, EXPERTS_ROW_THREADS, 2)
{
    int slot = (int)blockIdx.x;
    size_t at = (size_t)slot * (size_t)a.width;

    depend_launch();
    depend_wait();
    if (slot < a.first[a.n_experts]) {
        int expert = a.idx[a.slot_pair[slot]];
        const struct experts_matrix *w =
            a.experts + (size_t)expert * EXPERTS_MATRICES + EXPERTS_DOWN;

        if (is_of_group(&a, expert)) {
            gather_row(a.mid_packed + at, a.mid + at, w->perm, a.width, a.round);
        }
    }
}

/* out: a row's slots in the order of its choices, then what others computed of it, which may be in the host's memory. A
 * block per row. */
KERNEL(experts_sum, experts_args, EXPERTS_ROW_THREADS, 4)
{
    SHARED float prob[EXPERTS_CHOICES_MAX];
    SHARED int32_t slots[EXPERTS_CHOICES_MAX];
    int row = (int)blockIdx.x, tid = (int)threadIdx.x;
    float *out = a.out + (size_t)row * (size_t)a.n_out;
    const float *more = a.more ? a.more + (size_t)row * (size_t)a.n_out : NULL;
    bool is_wide = a.n_out % 4 == 0;

    depend_launch();
    depend_wait();
    if (row >= row_count(&a)) {
        return;
    }
    if (tid < a.top_k) {
        prob[tid] = a.prob[(size_t)row * (size_t)a.top_k + (size_t)tid];
        slots[tid] = a.pair_slot[(size_t)row * (size_t)a.top_k + (size_t)tid];
    }
    block_sync();
    for (int c = 4 * tid; is_wide && c < a.n_out; c += 4 * EXPERTS_ROW_THREADS) {
        float4 sum = make_float4(0, 0, 0, 0);

        for (int j = 0; j < a.top_k; j++) {
            if (slots[j] >= 0) {
                float4 y = *(const float4 *)(a.y + (size_t)slots[j] * (size_t)a.n_out + (size_t)c);

                sum.x += prob[j] * y.x;
                sum.y += prob[j] * y.y;
                sum.z += prob[j] * y.z;
                sum.w += prob[j] * y.w;
            }
        }
        if (more) {
            float4 y = *(const float4 *)(more + c);

            sum.x += y.x;
            sum.y += y.y;
            sum.z += y.z;
            sum.w += y.w;
        }
        *(float4 *)(out + c) = sum;
    }
    for (int c = tid; !is_wide && c < a.n_out; c += EXPERTS_ROW_THREADS) {
        float sum = 0;

        for (int j = 0; j < a.top_k; j++) {
            if (slots[j] >= 0) {
                sum += prob[j] * a.y[(size_t)slots[j] * (size_t)a.n_out + (size_t)c];
            }
        }
        out[c] = more ? sum + more[c] : sum;
    }
}
