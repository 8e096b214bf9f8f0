/* cuda_offload_testing.h - a small model whose experts overflow on one card and are resident on another, for the tests
 * of cuda_offload.c: a home of a few slots, a thread that answers the mail as offload/ does, and a plain model of what
 * the card should do with its orders, which every step is compared with.
 *
 * Place:  backend/cuda, tests only.
 * Layers: a few tails of a layer (norm to check), which a card runs fused where it can. */
#ifndef BACKEND_CUDA_CUDA_OFFLOAD_TESTING_H
#define BACKEND_CUDA_CUDA_OFFLOAD_TESTING_H

#include <pthread.h>

#include "backend/cuda/cuda_late_testing.h"
#include "backend/cuda/cuda_testing.h"
#include "backend/expert_block.h"
#include "backend/expert_home.h"

enum { NORM, ROUTE, SHARED_IN, SWIGLU, SHARED_DOWN, EXPERTS, ADD, CHECK, TAIL };
enum {
    LAYERS = 3,
    N_EXPERTS = 16,
    TOP_K = 4,
    HIDDEN = 256,
    ROWS_MAX = 16,
    SLOTS_MAX = LAYERS * N_EXPERTS,
    STAGING = 4,
    BUFFERS_MAX = 128,
};

/* The last two are of the width that the kernels for one row are built for. */
enum weights_kind { SYMMETRIC, ZEROS, PERMS, WIDE, WIDE_ZEROS };

struct setup {
    enum dtype round;
    enum weights_kind kind;
    bool no_graphs, no_fusions;
    size_t n_slots;
    bool has_cpu;
    /* Of m misses fetch m * fetch_of / 4; victims of a step at the most. */
    size_t fetch_of, victims_max;
    size_t n_next;  /* predicted experts that a layer fetches ahead */
    bool is_forced; /* choices and predictions are the test's */
    enum late_policy late;
};

/* What a step should do, or did. */
struct account {
    size_t n_insertions, n_hits, n_fetched, n_cpu, n_in_place, n_victims_used, n_next, n_next_used;
    struct expert_insertion insertions[EXPERT_HOME_VICTIMS];
};

struct card { /* a backend with the plan; experts are resident or have a home */
    struct backend *be;
    void *buffers[BUFFERS_MAX];
    size_t n_buffers;
    float *x, *prob;
    int32_t *idx[LAYERS];
    float *u[LAYERS]; /* the experts' inputs */
    struct expert_weights experts[LAYERS][N_EXPERTS];
    struct op ops[LAYERS * TAIL];
};

struct world {
    struct setup is;
    uint64_t seed;
    struct card resident, small;
    struct expert_block block;
    uint8_t *blocks[LAYERS]; /* pinned by `small`, or pageable */
    bool pageable[LAYERS];
    struct expert_home home;

    /* The model of the slots. */
    int32_t slot_of[LAYERS][N_EXPERTS];
    struct expert_insertion owner[SLOTS_MAX]; /* slot: when it was used last */
    int32_t clock;
    struct expert_orders orders; /* as given */
    uint32_t ticket;
    size_t n_reports, n_streamed, n_next, n_next_used;
    int32_t forced[2][LAYERS * EXPERT_HOME_PAIRS]; /* choices, predictions */
    struct account did;
    int32_t chosen[LAYERS * EXPERT_HOME_PAIRS]; /* as reported */
    size_t chosen_rows;
    size_t n_asked; /* of the CPU, since the start */

    /* The thread that answers. */
    struct backend *cpu;
    struct op cpu_ops[LAYERS];
    struct expert_weights cpu_experts[LAYERS][N_EXPERTS];
    pthread_t thread;
    bool has_thread;
    uint32_t open_ticket; /* atomic: 0: none */
    int stop;             /* atomic */
};

/* is_answered: a thread computes what the cards post. */
void world_open(struct world *w, const struct setup *is, bool is_answered);
/* Experts of some layers are in memory that the card cannot read. */
void world_open_pageable(struct world *w, const struct setup *is, bool is_answered,
                         const bool pageable[LAYERS]);
void world_close(struct world *w);

/* Starts that thread. */
void world_answer(struct world *w);

enum status card_step(struct card *c, const float *x, struct test_step *t, bool as_plan,
                      struct error *err);
void must(enum status rc, const struct error *err);

/* The step on both; returns the worst difference of the residual, 0 for the same bits. */
double both_step(struct world *w, size_t n_rows, bool is_decode, bool as_plan);
/* Steps of all sorts; returns the worst difference. */
double steps_run(struct world *w);
void print_line(const struct setup *s, const struct world *w, double worst);

#endif
