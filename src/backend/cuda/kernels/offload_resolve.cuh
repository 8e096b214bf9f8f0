/* offload_resolve.cuh - from a layer's choices to who computes what: slots looked up, misses fetched into
 * slots that may go or posted to the CPU.
 *
 * Place: backend/cuda/kernels; for moe_choose.cu and offload.cu. See backend/expert_home.h.
 * Who:   one block at a time, in the order of layers: everything that it changes is read by kernels that wait
 *        for it, and whatever may still have read it has ended before it began.
 * Exact: what happens depends on choices, orders and tables alone, not on the order of threads. */
#ifndef BACKEND_CUDA_OFFLOAD_RESOLVE_CUH
#define BACKEND_CUDA_OFFLOAD_RESOLVE_CUH

#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/offload_args.h"

enum { NOT_MISSING = -1 };

struct resolve_shared {
    int32_t expert[EXPERT_HOME_PAIRS]; /* -1: no expert */
    int32_t first[EXPERT_HOME_PAIRS];  /* the first pair of this expert */
    /* Of first pairs: which miss of the layer it is, or NOT_MISSING */
    int32_t miss[EXPERT_HOME_PAIRS];
    int32_t slot[EXPERT_HOME_PAIRS];  /* where it is, -1: nowhere */
    int32_t taken[EXPERT_HOME_PAIRS]; /* of a miss: the slot that it gets */
    int32_t n_hits, n_missing, n_taken, n_insertions, n_used;
};

/* The expert's matrices are at `block` from now on. NULL: where the card cannot read them, so their addresses are
 * NULL too, and who reads them all the same fails at once. */
DEVICE void expert_move(const struct offload_pool *p, int layer, int expert, const uint8_t *block)
{
    size_t at = (size_t)layer * (size_t)p->n_experts + (size_t)expert;
    struct experts_matrix *m = p->tables + at * EXPERTS_MATRICES;

    UNROLL
    for (int i = 0; i < EXPERTS_MATRICES; i++) {
        m[i].data = block ? block + p->values[i] : NULL;
        m[i].scales = block ? block + p->scales[i] : NULL;
        m[i].zeros = block && p->has_zeros ? block + p->zeros[i] : NULL;
        m[i].perm = block && p->has_perms ? (const int32_t *)(block + p->perm[i]) : NULL;
    }
}

/* NULL: in pageable memory. */
DEVICE const uint8_t *home_block(const struct offload_pool *p, int layer, int expert)
{
    const uint8_t *blocks = p->blocks[layer];

    return blocks ? blocks + (size_t)expert * p->block_bytes : NULL;
}

/* The slot belongs to this expert from now on, who had none; its owner has none then. */
DEVICE void slot_give(const struct offload_pool *p, int slot, int layer, int expert)
{
    struct offload_owner was = p->owner[slot];

    if (was.layer >= 0) {
        p->slot_of[was.layer * p->n_experts + was.expert] = -1;
        expert_move(p, was.layer, was.expert, home_block(p, was.layer, was.expert));
    }
    p->owner[slot].layer = (int16_t)layer;
    p->owner[slot].expert = (int16_t)expert;
    p->slot_of[layer * p->n_experts + expert] = slot;
    expert_move(p, layer, expert, p->slots + (size_t)slot * p->block_bytes);
}

/* A thread per pair: the expert, its first pair, its slot. Ends with a barrier. */
DEVICE void pairs_look_up(struct resolve_shared *s, const struct offload_args *a,
                          const int32_t *idx, int n_pairs)
{
    int tid = (int)threadIdx.x, expert = -1;

    if (tid < n_pairs) {
        expert = idx[tid];
        expert = expert < a->pool.n_experts ? expert : -1;
        s->expert[tid] = expert;
        s->slot[tid] = expert < 0 ? -1 : a->pool.slot_of[a->layer * a->pool.n_experts + expert];
    }
    block_sync();
    if (tid < n_pairs) {
        int first = tid;

        for (int i = tid - 1; i >= 0; i--) {
            first = s->expert[i] == expert ? i : first;
        }
        s->first[tid] = first;
    }
    block_sync();
}

/* Whether the layer before fetched this expert of the layer ahead. */
DEVICE bool came_ahead(const struct offload_args *a, int expert)
{
    const struct offload_next *next = a->next;
    int n = next->ticket == a->orders->ticket && next->layer == a->layer ? next->n : 0;
    bool is_there = false;

    for (int i = 0; i < n; i++) {
        is_there = is_there || next->expert[i] == expert;
    }
    return is_there;
}

/* By one warp: hits and misses counted; misses numbered in the order of pairs. */
DEVICE void misses_number(struct resolve_shared *s, const struct offload_args *a, int n_pairs)
{
    int lane = (int)threadIdx.x % WARP, n_hits = 0, n_missing = 0, n_used = 0;

    for (int base = 0; base < n_pairs; base += WARP) {
        int i = base + lane;
        bool counts = i < n_pairs && s->expert[i] >= 0 && s->first[i] == i;
        uint32_t hits = warp_ballot(counts && s->slot[i] >= 0);
        uint32_t missing = warp_ballot(counts && s->slot[i] < 0);
        uint32_t used = warp_ballot(counts && s->slot[i] >= 0 && came_ahead(a, s->expert[i]));

        if (i < n_pairs) {
            s->miss[i] = missing >> lane & 1 ? n_missing + __popc(missing & ((1u << lane) - 1u))
                                             : NOT_MISSING;
        }
        n_hits += __popc(hits);
        n_missing += __popc(missing);
        n_used += __popc(used);
    }
    if (lane == 0) {
        s->n_used = n_used;
        s->n_hits = n_hits;
        s->n_missing = n_missing;
    }
}

/* May the slot's content go? Not while this layer wants it. Ahead: nor while the layer before, which is being
 * computed, does. */
template <bool AHEAD>
DEVICE bool may_take(const struct resolve_shared *s, const struct offload_args *a, int slot,
                     int n_pairs)
{
    const int32_t *running = a->log_idx + (size_t)(a->layer - AHEAD) * (size_t)n_pairs;
    struct offload_owner owner;
    bool is_wanted = false;

    if (slot < 0 || slot >= a->pool.n_slots) {
        return false;
    }
    owner = a->pool.owner[slot];
    for (int i = 0; owner.layer == a->layer && i < n_pairs; i++) {
        is_wanted = is_wanted || s->expert[i] == owner.expert;
    }
    for (int i = 0; AHEAD && owner.layer == a->layer - 1 && i < n_pairs; i++) {
        is_wanted = is_wanted || running[i] == owner.expert;
    }
    return !is_wanted;
}

/* By one warp: slots for up to n_wanted misses, from the step's victims in their order. */
template <bool AHEAD>
DEVICE void victims_take(struct resolve_shared *s, const struct offload_args *a, int n_wanted,
                         int n_pairs)
{
    int lane = (int)threadIdx.x % WARP, used = a->counts->n_victims_used, n_taken = 0;
    int n_victims = min(a->orders->n_victims, (int)EXPERT_HOME_VICTIMS);

    while (n_taken < n_wanted && used < n_victims) {
        int i = used + lane, slot = i < n_victims ? a->orders->victim[i] : -1;
        uint32_t good = warp_ballot(i < n_victims && may_take<AHEAD>(s, a, slot, n_pairs));
        uint32_t lower = good & ((1u << lane) - 1u);
        int rank = n_taken + __popc(lower);
        bool takes = (good >> lane & 1) != 0 && rank < n_wanted;
        uint32_t last = warp_ballot(takes && rank == n_wanted - 1);

        if (takes) {
            s->taken[rank] = slot;
        }
        n_taken = min(n_taken + __popc(good), n_wanted);
        used = last ? used + __ffs((int)last) : min(used + WARP, n_victims);
    }
    warp_sync();
    if (lane == 0) {
        s->n_taken = n_taken;
        s->n_insertions = a->counts->n_insertions;
        a->counts->n_victims_used = used;
        a->counts->n_insertions = s->n_insertions + n_taken;
    }
}

/* Lane 0 of the warp that did the above: the rest of what is counted. */
DEVICE void misses_count(const struct resolve_shared *s, const struct offload_args *a)
{
    int rest = s->n_missing - s->n_taken;

    a->counts->n_hits += s->n_hits;
    a->counts->n_next_used += s->n_used;
    a->counts->n_fetched += s->n_taken;
    *(a->has_cpu ? &a->counts->n_cpu : &a->counts->n_in_place) += rest;
    a->list->n = s->n_taken;
}

/* The miss gets its slot, and is put on the list of copies. */
template <bool AHEAD>
DEVICE void miss_fetch(const struct resolve_shared *s, const struct offload_args *a, int pair)
{
    int miss = s->miss[pair], slot = s->taken[miss], at = s->n_insertions + miss;
    int expert = s->expert[pair];

    a->list->item[miss].from = home_block(&a->pool, a->layer, expert);
    a->list->item[miss].to = a->pool.slots + (size_t)slot * a->pool.block_bytes;
    slot_give(&a->pool, slot, a->layer, expert);
    a->insertions[at].layer = (int16_t)a->layer;
    a->insertions[at].expert = (int16_t)expert;
    a->insertions[at].slot = slot;
    a->insertions[at].is_ahead = AHEAD;
}

/* From the slot that the miss gets to its block on the host. */
DEVICE int64_t miss_away(const struct resolve_shared *s, const struct offload_args *a, int miss,
                         int expert)
{
    const uint8_t *to = a->pool.slots + (size_t)s->taken[miss] * a->pool.block_bytes;

    return (int64_t)((uintptr_t)home_block(&a->pool, a->layer, expert) - (uintptr_t)to);
}

/* The box is filled and sent; n_rows is 0 when the CPU has nothing to do. `posted` and n_rows lie side by
 * side and are written as one. */
DEVICE void mail_post(const struct offload_args *a, int n_rows)
{
    int tid = (int)threadIdx.x, n = n_rows * a->hidden;

    if (n_rows > 0) { /* the same for all threads */
        if (a->hidden % 4 == 0) {
            for (int i = 4 * tid; i < n; i += 4 * OFFLOAD_THREADS) {
                *(float4 *)(a->mail_x + i) = *(const float4 *)(a->x + i);
            }
        } else {
            for (int i = tid; i < n; i += OFFLOAD_THREADS) {
                a->mail_x[i] = a->x[i];
            }
        }
        system_fence();
        block_sync();
    }
    if (tid == 0) {
        system_store2(&a->mail->posted, a->orders->ticket, (uint32_t)n_rows);
    }
}

/* All threads of a block of OFFLOAD_THREADS; idx and prob: the choices, in any memory, which a barrier
 * has made visible. */
DEVICE void resolve(struct resolve_shared *s, const struct offload_args *a, const int32_t *idx,
                    const float *prob)
{
    int tid = (int)threadIdx.x, n_rows = max(0, min(*a->n_rows, (int)EXPERT_HOME_ROWS));
    int n_pairs = n_rows * a->top_k, n_wanted, n_cpu;
    int64_t away = 0;

    if (tid < n_pairs) {
        a->log_idx[(size_t)a->layer * (size_t)n_pairs + (size_t)tid] = idx[tid];
    }
    pairs_look_up(s, a, idx, n_pairs);
    if (tid < WARP) {
        misses_number(s, a, n_pairs);
        warp_sync();
        n_wanted = a->is_pageable ? 0 : (int)a->orders->n_fetch[s->n_missing];
        victims_take<false>(s, a, min(n_wanted, s->n_missing), n_pairs);
        warp_sync();
        if (tid == 0) {
            misses_count(s, a);
        }
    }
    block_sync();
    n_cpu = a->has_cpu ? s->n_missing - s->n_taken : 0;
    if (tid < n_pairs) {
        int expert = s->expert[tid], miss = expert < 0 ? NOT_MISSING : s->miss[s->first[tid]];
        bool is_cpu = a->has_cpu && miss >= s->n_taken;

        a->resolved[tid] = is_cpu ? -1 : expert;
        if (miss != NOT_MISSING && miss < s->n_taken) {
            away = miss_away(s, a, miss, expert);
        }
        if (n_cpu > 0) {
            a->mail->idx[tid] = is_cpu ? expert : -1;
            a->mail->prob[tid] = prob[tid];
        }
        if (s->miss[tid] != NOT_MISSING && s->miss[tid] < s->n_taken) {
            miss_fetch<false>(s, a, tid);
        }
    }
    if (a->away && tid < EXPERT_HOME_PAIRS) { /* also of rows that are not there */
        a->away[tid] = away;
    }
    if (tid == 0) {
        *a->posted = n_cpu;
    }
    if (a->has_cpu) {
        mail_post(a, n_cpu > 0 ? n_rows : 0);
    }
}

#endif
