/* expert_home.h - routed experts that do not all fit a device: where they are, and who serves a miss.
 *
 * Place:  backend; the contract between offload/ (host: what is kept, what is brought in, what the CPU
 *         computes) and a device's backend (slots, tables, kernels).
 * Words:  layer   of the home: 0-based among the layers whose experts may overflow, in the model's order
 *         slot    room for one expert's block on the device; one pool of them for all layers
 *         miss    a chosen expert without a slot. It is fetched into one, or the CPU computes it.
 * Small:  a step of at most EXPERT_HOME_ROWS rows. The device decides alone, from orders that it got before
 *         the step: it looks choices up in its slot table, fetches the first misses of a layer into
 *         slots that it was told may go, and posts the others to the host through the layer's mail.
 * Ahead:  while a layer's experts are computed the link is idle. The next layer's router, given this layer's
 *         input, says who will probably be chosen there; up to n_next of those that miss are fetched until the
 *         next layer makes its choices. They are insertions like others, in the order in which they were
 *         decided, and take their slots from the same victims.
 * Large:  any other step. Experts without a slot stream past the device; slots do not change. Where the device
 *         had to ask what was chosen, the CPU may compute some of those that few rows chose meanwhile.
 * Pageable: blocks of a layer that the device cannot read where they lie, for their memory could not be pinned or
 *         is a mapped file. They reach it by insert() and by the copies of large steps only; in small steps
 *         all misses of such a layer are the CPU's.
 * Mirror: what slots hold changes in small steps, which report it, and in insert(); so between steps offload/
 *         knows exactly what is where.
 * Thread: callbacks come on the thread that runs steps; the mail is served by a thread of offload/. */
#ifndef BACKEND_EXPERT_HOME_H
#define BACKEND_EXPERT_HOME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/expert_block.h"
#include "base/status.h"

enum {
    EXPERT_HOME_ROWS = 8,
    EXPERT_HOME_TOP_K = 16,
    EXPERT_HOME_PAIRS =
        EXPERT_HOME_ROWS * EXPERT_HOME_TOP_K, /* also: misses of a layer at the most */
    EXPERT_HOME_VICTIMS = 1024,               /* slots that one step may refill */
    EXPERT_HOME_NEXT = 8,                     /* predicted experts that a layer may fetch ahead */
    EXPERT_HOME_LARGE_ROWS =
        128, /* rows of a large step that the CPU may share: scratch is for so many */
    EXPERT_MAIL_LINE = 64,
};

/* A layer's post box, in host memory that the device reads and writes. Ticket: the number of the step, never
 * 0. The device fills a box and writes `posted` last, in every small step and layer; n_rows is 0 when there
 * is nothing to compute. The host writes y and then `answered`. */
struct expert_mail {
    uint32_t posted;
    int32_t n_rows;
    int32_t idx[EXPERT_HOME_PAIRS]; /* [n_rows][top_k], -1: not for the CPU */
    float prob[EXPERT_HOME_PAIRS];
    uint32_t pad[14];
    uint32_t answered; /* at a border of EXPERT_MAIL_LINE bytes */
    uint32_t pad_answered[15];
    float *x; /* [EXPERT_HOME_ROWS][hidden] what the experts are given, float32 */
    float *y; /* [EXPERT_HOME_ROWS][hidden] sum over the row's pairs with idx >= 0, float32 */
    uint32_t pad_end[12]; /* so that every box of an array begins at such a border */
};

/* What a small step may do. The device's copy is part of the step's tables. */
struct expert_orders {
    uint32_t ticket;
    int32_t n_victims; /* of victim[]: slots to be refilled, in this order; none twice */
    int32_t n_next; /* predicted experts that a layer may fetch for the next one; 0: no prefetch */
    uint8_t
        n_fetch[EXPERT_HOME_PAIRS + 1]; /* of m missing experts of a layer so many are fetched */
    int32_t victim[EXPERT_HOME_VICTIMS];
};

struct expert_insertion {
    int16_t layer, expert;
    int32_t slot;
    int32_t is_ahead; /* 1: the layer before fetched it, for it was predicted; 0: a miss */
};

/* What a small step did. Fetches for which no victim was left were computed by the CPU, or, where there is
 * no CPU to ask, read in place. */
struct expert_report {
    uint32_t ticket;
    size_t n_rows;
    const int32_t *idx;                        /* [layers][n_rows][top_k] the choices */
    const struct expert_insertion *insertions; /* in order: the last word on a slot counts */
    size_t n_insertions;
    size_t n_hits, n_fetched, n_cpu; /* distinct experts of a layer, summed */
    size_t n_next, n_next_used;      /* fetched ahead; and those of them that were hits */
    size_t n_in_place;               /* the same kind of count: read over the link, and not kept */
    size_t n_victims_used;           /* victims [0, n_victims_used) were taken or passed over */
};

struct expert_home_ops {
    /* May call expert_insert before it returns. */
    void (*step_begin)(void *ctx, struct expert_orders *orders, size_t n_rows);
    void (*step_end)(void *ctx, const struct expert_report *report);
    /* For large steps: the slot that holds an expert, or -1. */
    int32_t (*slot_of)(void *ctx, size_t layer, size_t expert);
    /* For large steps of at most EXPERT_HOME_LARGE_ROWS rows whose choices the device had to ask for: marks experts
     * without a slot that the CPU shall compute (on_cpu [n_experts], all false before). How many; 0: none. NULL, or
     * without has_cpu: never any. */
    size_t (*large_divide)(void *ctx, size_t layer, size_t n_rows, const int32_t *idx,
                           bool *on_cpu);
    /* Computes them, on the calling thread and the CPU's own: for idx [n_rows][top_k] (-1: not the CPU's), prob the
     * same, x and y [n_rows][hidden] float32, as in a mail. The device's launches go on meanwhile. No small step is
     * open. An error ends the step. */
    enum status (*large_compute)(void *ctx, size_t layer, size_t n_rows, const int32_t *idx,
                                 const float *prob, const float *x, float *y, struct error *err);
    /* These experts [n] of a layer will be copied next, in this order: their blocks may be brought to memory. In large
     * steps, on the thread that copies. May be NULL. */
    void (*will_stream)(void *ctx, size_t layer, const int32_t *experts, size_t n);
    /* After a layer of a large step was launched: idx [n_rows][top_k] if the device had to ask (else NULL), and
     * how many experts were streamed. */
    void (*streamed)(void *ctx, size_t layer, size_t n_rows, const int32_t *idx, size_t n_streamed);
};

/* Owned by offload/; outlives the plan. */
struct expert_home {
    struct expert_block block; /* of every layer */
    size_t n_layers, n_experts, top_k, hidden;
    /* [n_layers] -> [n_experts] blocks of block.n_bytes, host memory that the device reads where it lies
     * (backend_ops.host_new, host_pin), unless the layer is pageable. */
    const uint8_t *const *blocks;
    size_t n_slots;
    size_t n_staging;        /* blocks of staging for large steps; at least 2 */
    const bool *is_pageable; /* [n_layers]; NULL: none. Without has_cpu none may be */
    bool has_cpu;            /* misses may be posted */
    bool takes_turns; /* for measurements: copies of large steps and launches do not overlap */
    bool looks_ahead; /* orders may ask for predicted experts (n_next) */
    const struct expert_home_ops *ops;
    void *ctx;
    struct expert_mail *mail; /* [n_layers], made by the backend in experts_open */
};

static inline bool expert_home_is_pageable(const struct expert_home *home, size_t layer)
{
    return home->is_pageable && home->is_pageable[layer];
}

#endif
