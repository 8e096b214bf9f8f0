/* offload_args.h - what the kernels of overflowing experts take: the card's side of backend/expert_home.h.
 *
 * Place: backend/cuda/kernels; C and device code. Filled by cuda_offload.c.
 * Order: of a small step's layer: choices, resolve (offload_resolve.cuh), experts_fetch, the experts' kernels
 *        over the resolved choices, and the CPU's part is added (offload_join.cuh).
 * Away:  kernels for one row have no experts_fetch before them: what such a block reads of an expert that is to
 *        be fetched, it reads from the host and leaves in the slot. All bytes of a matrix are read by just one
 *        block; so the link is busy while resident experts are computed.
 * Ahead: where experts are fetched ahead, experts_predict before the layer is resolved; and after its
 *        experts_fetch, beside all that follows up to the next layer's choices, experts_ahead and an
 *        experts_fetch of its own (offload_ahead.cu). */
#ifndef BACKEND_CUDA_OFFLOAD_ARGS_H
#define BACKEND_CUDA_OFFLOAD_ARGS_H

#include <stdint.h>

#include "backend/cuda/kernels/experts_args.h"
#include "backend/cuda/kernels/route_args.h"
#include "backend/expert_home.h"

enum {
    OFFLOAD_THREADS = 256,     /* of a block that resolves */
    OFFLOAD_FETCH_BLOCKS = 64, /* what a card may have more in flight than its link can carry */
    OFFLOAD_FETCH_THREADS = 256,
    OFFLOAD_FETCH_HELD = 4, /* loads of 16 bytes that a thread has on their way */
    OFFLOAD_JOIN_THREADS = 256,
    OFFLOAD_NEXT_BLOCKS =
        16, /* that fetch ahead: enough for a link, and other kernels run beside them */
    OFFLOAD_PREDICT_THREADS = 256,
    OFFLOAD_NOT_LATE = 0x7fffffff,
};

struct offload_owner {
    int16_t layer, expert; /* -1: nobody */
};

/* The pool of slots and the tables that say what is where. All but the blocks is device memory. */
struct offload_pool {
    int32_t *slot_of;              /* [n_layers][n_experts], -1: none */
    struct offload_owner *owner;   /* [n_slots] */
    struct experts_matrix *tables; /* [n_layers][n_experts][EXPERTS_MATRICES] */
    const uint8_t *const
        *blocks;    /* [n_layers] -> the experts' blocks on the host; NULL: pageable */
    uint8_t *slots; /* [n_slots] blocks */
    uint64_t block_bytes;
    uint64_t values[EXPERTS_MATRICES], scales[EXPERTS_MATRICES]; /* places in a block */
    uint64_t zeros[EXPERTS_MATRICES], perm[EXPERTS_MATRICES];
    int32_t has_zeros, has_perms;
    int32_t n_layers, n_experts, n_slots;
};

/* What a step did, counted on the way; the beginning of its log. */
struct offload_counts {
    int32_t late_layer; /* the first that the CPU did not answer in time; OFFLOAD_NOT_LATE */
    int32_t n_victims_used, n_insertions;
    int32_t n_hits, n_fetched, n_cpu, n_next, n_next_used, n_in_place;
    int32_t pad[7];
};

/* Copies that experts_fetch makes. */
struct offload_list {
    int32_t n;
    struct {
        const uint8_t *from;
        uint8_t *to;
    } item[EXPERT_HOME_PAIRS];
};

/* What the layer before fetched ahead. */
struct offload_next {
    uint32_t ticket; /* of the step */
    int32_t layer;   /* that it was fetched for */
    int32_t n;
    int32_t expert[EXPERT_HOME_NEXT];
};

/* One block. */
struct offload_args {
    struct offload_pool pool;
    const int32_t *n_rows; /* of the step */
    int32_t layer;         /* of the home */
    int32_t top_k, hidden, has_cpu;
    int32_t is_pageable; /* the layer is: all its misses are the CPU's, whatever the orders say */
    const struct expert_orders *orders;
    struct offload_counts *counts;
    int32_t *log_idx;                    /* [n_layers][rows of the step][top_k] */
    struct expert_insertion *insertions; /* [EXPERT_HOME_VICTIMS] */
    struct offload_list *list;
    struct offload_next *next;
    const int32_t *idx; /* [rows][top_k] the choices */
    const float *prob;
    int32_t *resolved; /* [rows][top_k] the choices that the card computes; others are -1 */
    int64_t *
        away; /* [rows][top_k] from slot to host, of misses that get a slot; else 0. NULL: experts_fetch follows */
    int32_t *posted;          /* how many pairs the CPU has */
    const float *x;           /* [rows][hidden] */
    struct expert_mail *mail; /* the layer's, and its x */
    float *mail_x;
};

/* Up to OFFLOAD_FETCH_BLOCKS blocks. */
struct offload_fetch_args {
    const struct offload_list *list;
    uint64_t block_bytes;
};

/* Logits of the next layer's router for this layer's input: a warp per expert. */
struct offload_predict_args {
    const int32_t *n_rows;
    const struct expert_orders *orders;
    const float *x;     /* [rows][n_in] */
    const void *router; /* [n_experts][n_in] of dtype */
    int32_t dtype, n_in, n_experts;
    int32_t in_pieces; /* rows are whole pieces of 16 bytes, at such borders */
    float *logits;     /* [rows][n_experts] */
};

/* One block of OFFLOAD_THREADS: who is probably chosen next, and which of them are fetched. */
struct offload_ahead_args {
    struct offload_args home; /* of the next layer, but list: what is fetched ahead */
    struct route_args
        route; /* of the next layer; view.forced: what was predicted elsewhere, or NULL */
};

/* One thread. */
struct offload_insert_args {
    struct offload_pool pool;
    int32_t layer, expert, slot;
};

/* Who adds the CPU's part. posted NULL: there is none. */
struct offload_join {
    const int32_t *posted;
    const uint32_t *ticket;   /* of the step */
    const uint32_t *answered; /* in the mail */
    uint32_t *asked,
        *arrived;   /* on the card: tickets that a block asks for, and that were answered */
    const float *y; /* in the mail: [rows][hidden] */
    int32_t *late_layer;
    int32_t layer; /* of the home */
    uint64_t wait_ns;
};

/* A block per row and OFFLOAD_JOIN_THREADS columns: out += y. */
struct offload_join_args {
    struct offload_join join;
    const int32_t *n_rows;
    float *out; /* [rows][hidden] */
    int32_t hidden;
};

#endif
