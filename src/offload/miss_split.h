/* miss_split.h - how many of a layer's missing experts are fetched, and how many the CPU computes.
 *
 * Place:  offload, under offload.c; pure arithmetic on measured times, so that the same measurements give the
 *         same decisions.
 * Model:  all in time that a layer takes beyond one without misses. Fetching f experts takes F(f) = f * fetch,
 *         the CPU needs C(c) = trip + start + c * cpu for c > 0, and both run at the same time. Of m misses
 *         f are fetched such that
 *
 *             max(F(f), C(m - f)) - f * gain * (what one miss less would save)
 *
 *         is smallest. gain is how many later misses an expert brought in saves, more than the one that goes.
 * Gain:   seen in the choices alone, whatever is resident. R: the share of choices that were also made
 *         within the last W steps, W being how long a slot's content lives when every choice enters; so R
 *         is what an LRU cache of that size would hit. H0: the share of experts that have a slot. Keeping
 *         what is used then costs 1 - R insertions a choice and brings R - H0 hits. Choices without a
 *         memory (R = H0) gain nothing.
 * Times:  the post thread sees when each layer's box is posted; from one to the next is a layer's time.
 *         Layers without work for the CPU give a line over f: its slope is `fetch`. What the CPU takes is
 *         measured directly, a line over c. `trip` is what layers served by the CPU alone take longer
 *         than computing; negative when the device has other work meanwhile. Old measurements fade. A side
 *         that was not seen for long is tried for one step.
 * Ahead:  the link is idle while a layer is computed: in most of that time, `window`, experts that were predicted
 * for the next layer can be fetched for nothing. One that is late by part of a fetch still pays if it saves
 *         more than that part: n_next = window / fetch + what one saves / fetch, whole ones. What one saves is
 *         a fetch (or what both sides together take for a miss) times the share of predictions that came
 *         true. `window` is measured in steps and layers without such fetches, which every so often are
 *         left out for that.
 * Rows:   times depend on how many rows a step has, so each number has its own. */
#ifndef OFFLOAD_MISS_SPLIT_H
#define OFFLOAD_MISS_SPLIT_H

#include "backend/expert_home.h"
#include "offload/offload.h"

/* A line through points that fade: y = at0 + slope * x. */
struct fading_line {
    double weight, x, y, xx, xy; /* faded sums */
    double slope;                /* kept while the points do not say */
    double slope_min;
    bool is_known; /* the slope was measured, here or at the start */
};

struct miss_times {           /* of steps with one number of rows */
    struct fading_line layer; /* ns over fetched experts, layers without CPU */
    struct fading_line cpu;   /* ns over computed experts */
    double trip_ns;
    uint32_t since_fetch, since_cpu; /* steps since a side was measured */
    uint32_t since_still;            /* steps since one that fetched nothing ahead */
    bool is_started;
};

struct miss_split_options {
    enum expert_miss miss;
    bool no_split, no_prefetch;
    size_t n_layers, n_experts, n_slots, top_k;
    size_t n_pageable; /* of the layers: they fetch nothing in a step, whatever the orders say */
    double fetch_ns, cpu_ns; /* one expert, as measured at the start; 0: unknown */
};

struct miss_split {
    struct miss_split_options o;
    struct miss_times times[EXPERT_HOME_ROWS]; /* of n_rows - 1 */
    struct fading_line steps;                  /* ns over fetched experts: where there is no mail */
    size_t last_rows;
    double recent_share; /* R */
    double n_shares;
    double fetched_share; /* of misses */
    double true_share;    /* of what was fetched ahead: how much was then chosen */
};

void miss_split_init(struct miss_split *s, const struct miss_split_options *o);

/* Fills n_fetch and n_next. Returns how many victims the step may want. */
size_t miss_split_orders(struct miss_split *s, size_t n_rows, struct expert_orders *orders);

/* Steps that a slot's content lives if every choice enters: n_choices distinct ones a step. */
size_t miss_split_window(const struct miss_split *s, size_t n_choices);

struct miss_layer {   /* what was seen of a layer */
    double ns;        /* until the next layer's post; 0: not known */
    double cpu_ns;    /* computing */
    double n_fetched; /* misses */
    size_t n_cpu;
    size_t n_ahead; /* fetched meanwhile for the next layer */
};
struct miss_step {
    size_t n_rows;
    const struct miss_layer *layers; /* [n_layers], or NULL: no mail */
    double ns;                       /* of the whole step */
    size_t n_choices, n_recent;      /* distinct; of those made within the window before */
    size_t n_fetched, n_cpu;
    size_t n_next, n_next_used; /* as in struct expert_report */
};
void miss_split_learn(struct miss_split *s, const struct miss_step *step);

/* Nanoseconds for one expert more, as last measured; 0: not yet. */
double miss_split_fetch_ns(const struct miss_split *s);
double miss_split_cpu_ns(const struct miss_split *s);

#endif
