/* offload.c - see offload.h.
 *
 * Between two steps nothing moves, so all decisions are taken there: step_begin says which slots may go and
 * how misses are split, step_end learns what happened. Within a step only the mail thread works here.
 *
 * In large steps of few rows the CPU has a part too (large_split.h): the thread that runs the step computes it. As
 * for what cannot be fetched within the budget, --expert-miss auto and cpu are the same there: a prompt whose every
 * missing expert were the CPU's would take seconds.
 *
 * Pageable layers never fetch within a step, so what they miss often is brought in between steps, as far as its
 * share of the time goes (hot_experts.h). Not where nothing else is fetched either: --expert-miss cpu.
 *
 * After a prompt slots hold what they held before, though its last rows tell what the answer will ask for.
 * Experts that several of them chose are remembered by `streamed`, and brought in before the next small
 * step: during the large one a slot must not change. */
#include "offload/offload.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/size.h"
#include "offload/expert_slots.h"
#include "offload/hot_experts.h"
#include "offload/large_split.h"
#include "offload/mail.h"
#include "offload/miss_split.h"
#include "offload/read_ahead.h"

enum {
    TAIL_ROWS = 16,         /* of a prompt that tell what is needed next */
    TAIL_CHOSEN_MIN = 3,    /* times: chance alone gives that to one expert in seventy (8 of 256) */
    WARM_LAYER_MAX = 4,     /* experts of a layer that are brought in after a prompt, */
    WARM_STEP_MAX = 128,    /* and in all: about 4 ms over a fast link, */
    WARM_PAGEABLE_MAX = 32, /* of pageable ones fewer, as the driver copies them twice */
    VICTIMS_FADE = 8,       /* a part of it is forgotten by step */
    TRIALS = 8,             /* of the CPU at the start */
    TRIAL_EXPERTS = 4,
};

struct warm { /* candidates of a layer */
    size_t n;
    int16_t expert[WARM_LAYER_MAX];
};

struct offload {
    struct expert_home home;
    struct backend *device, *cpu;
    const uint8_t **blocks;
    bool *pageable; /* [n_layers] */
    bool is_open;   /* on the device */
    struct expert_slots slots;
    struct miss_split split;
    struct mail *mail; /* or NULL */
    struct large_split large;
    bool shares_large;       /* the CPU may have a part of large steps */
    size_t n_divided;        /* experts of the layer that was divided last: the CPU's, */
    size_t n_divided_others; /* and those that stream */
    uint64_t divided_ns;     /* when */

    uint32_t ticket; /* of the step before, or of the one that is open */
    uint64_t step_start_ns;
    uint32_t now, window;                 /* small steps so far; see miss_split.h */
    uint32_t *used_at;                    /* [n_layers][n_experts] the small step, 0: never */
    struct miss_layer *layers;            /* [n_layers] of the last step */
    size_t n_victims_used;                /* of late, by a step */
    int32_t victims[EXPERT_HOME_VICTIMS]; /* the orders may lie in memory that is slow to read */
    uint8_t *tail_count;                  /* [n_experts] */
    struct warm *warm;                    /* [n_layers] */
    bool has_warm;
    struct hot_experts hot;
    bool brings_hot; /* missed experts of pageable layers come in between steps */
    size_t n_inserted;

    pthread_mutex_t lock;
    struct offload_stats stats; /* guarded by lock; written by the thread that runs steps */
};

const char *expert_miss_name(enum expert_miss miss)
{
    static const char *const names[] = {"auto", "fetch", "cpu"};

    return names[miss];
}

static bool is_expert(const struct offload *o, int32_t expert)
{
    return expert >= 0 && (size_t)expert < o->home.n_experts;
}

static bool insert(struct offload *o, size_t layer, size_t expert, size_t slot, struct error *err)
{
    const int32_t one = (int32_t)expert;

    read_ahead_experts(&o->home, layer, &one, 1);
    if (o->device->ops->expert_insert(o->device, layer, expert, slot, err) != OK) {
        return false;
    }
    expert_slots_put(&o->slots, slot, layer, expert);
    o->n_inserted++;
    return true;
}

/* --- after a prompt --- */

/* The experts of the last rows that were chosen often and have no slot, most often first. */
static void warm_choose(struct offload *o, struct warm *w, size_t layer, const int32_t *idx,
                        size_t n)
{
    memset(o->tail_count, 0, o->home.n_experts);
    for (size_t i = 0; i < n; i++) {
        if (is_expert(o, idx[i])) {
            expert_slots_use(&o->slots, layer, (size_t)idx[i]);
            o->tail_count[idx[i]]++;
        }
    }
    w->n = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t e = idx[i];
        size_t at = w->n;

        if (!is_expert(o, e) || o->tail_count[e] < TAIL_CHOSEN_MIN ||
            expert_slots_find(&o->slots, layer, (size_t)e) >= 0) {
            continue;
        }
        while (at > 0 && o->tail_count[w->expert[at - 1]] < o->tail_count[e]) {
            at--;
        }
        if (at < WARM_LAYER_MAX) {
            size_t kept = size_min(w->n, WARM_LAYER_MAX - 1);

            memmove(w->expert + at + 1, w->expert + at, (kept - at) * sizeof *w->expert);
            w->expert[at] = (int16_t)e;
            w->n = kept + 1;
        }
        o->tail_count[e] = 0; /* once */
    }
}

static void streamed(void *ctx, size_t layer, size_t n_rows, const int32_t *idx, size_t n_streamed)
{
    struct offload *o = ctx;

    if (layer >= o->home.n_layers) {
        return;
    }
    if (idx) {
        size_t n_tail = size_min(n_rows, TAIL_ROWS);

        warm_choose(o, &o->warm[layer], layer, idx + (n_rows - n_tail) * o->home.top_k,
                    n_tail * o->home.top_k);
        o->has_warm = o->has_warm || o->warm[layer].n > 0;
    }
    if (layer + 1 == o->home.n_layers && o->shares_large) {
        mail_rouse(o->mail, false);
    }
    pthread_mutex_lock(&o->lock);
    o->stats.n_streamed += n_streamed;
    o->stats.n_large_steps += layer == 0;
    pthread_mutex_unlock(&o->lock);
}

/* Brings in what the last prompt's end used, the most wanted of each layer first. An insertion that fails
 * shows in the step. */
static void warm_insert(struct offload *o)
{
    int32_t victim[WARM_STEP_MAX];
    size_t n_victims = expert_slots_victims(&o->slots, victim, WARM_STEP_MAX), used = 0;
    size_t n_pageable = 0;
    bool is_good = true;

    for (size_t i = 0; i < WARM_LAYER_MAX; i++) {
        for (size_t l = 0; l < o->home.n_layers && is_good && used < n_victims; l++) {
            const struct warm *w = &o->warm[l];
            bool is_pageable = expert_home_is_pageable(&o->home, l);

            if (is_pageable && n_pageable == WARM_PAGEABLE_MAX) {
                continue;
            }
            if (i < w->n && expert_slots_find(&o->slots, l, (size_t)w->expert[i]) < 0) {
                n_pageable += is_pageable;
                is_good = insert(o, l, (size_t)w->expert[i], (size_t)victim[used++], NULL);
            }
        }
    }
    memset(o->warm, 0, o->home.n_layers * sizeof *o->warm);
    o->has_warm = false;
}

/* --- small steps --- */

/* Brings in what the last step missed in pageable layers, where that is hotter than what goes. */
static void hot_insert(struct offload *o)
{
    int32_t victim[HOT_STEP_MAX];
    size_t n = hot_experts_allowed(&o->hot), n_done = 0;
    uint64_t start = clock_now_ns();
    bool is_good = true;

    n = n > 0 ? expert_slots_victims(&o->slots, victim, n) : 0;
    for (size_t i = 0; i < n && is_good; i++) {
        const struct hot_expert *e = &o->hot.item[i];
        size_t layer = (size_t)e->layer, expert = (size_t)e->expert, slot = (size_t)victim[n_done];

        if (expert_slots_find(&o->slots, layer, expert) < 0 &&
            hot_experts_replaces(e, expert_slots_slot_heat(&o->slots, slot))) {
            is_good = insert(o, layer, expert, slot, NULL);
            n_done++;
        }
    }
    hot_experts_inserted(&o->hot, n_done, (double)(clock_now_ns() - start));
}

static void step_begin(void *ctx, struct expert_orders *orders, size_t n_rows)
{
    struct offload *o = ctx;
    size_t n_victims;

    if (o->has_warm) {
        warm_insert(o);
    }
    if (o->hot.n > 0) {
        hot_insert(o);
    }
    o->step_start_ns = clock_now_ns();
    o->ticket += o->ticket == UINT32_MAX ? 2 : 1; /* never 0 */
    o->now++;
    expert_slots_step(&o->slots);
    orders->ticket = o->ticket;
    n_victims = miss_split_orders(&o->split, n_rows, orders);
    n_victims = size_min(n_victims, 2 * (o->n_victims_used + o->home.n_layers));
    n_victims = size_min(n_victims, EXPERT_HOME_VICTIMS);
    n_victims = expert_slots_victims(&o->slots, o->victims, n_victims);
    orders->n_victims = (int32_t)n_victims;
    memcpy(orders->victim, o->victims, n_victims * sizeof *o->victims);
    if (o->mail) {
        mail_open(o->mail, o->ticket);
    }
}

/* Choices of a step: distinct ones, and those of them that were made within the window before. Each warms its
 * expert; of those that pageable layers missed the hottest are remembered. */
static void count_choices(struct offload *o, const struct expert_report *r, struct miss_step *step)
{
    size_t n_pairs = r->n_rows * o->home.top_k;

    for (size_t l = 0; l < o->home.n_layers; l++) {
        uint32_t *used_at = o->used_at + l * o->home.n_experts;
        bool is_pageable = expert_home_is_pageable(&o->home, l);

        for (size_t i = 0; i < n_pairs; i++) {
            int32_t e = r->idx[l * n_pairs + i];

            if (!is_expert(o, e) || used_at[e] == o->now) {
                continue;
            }
            step->n_choices++;
            step->n_recent += used_at[e] > 0 && o->now - used_at[e] <= o->window;
            used_at[e] = o->now;
            expert_slots_use(&o->slots, l, (size_t)e);
            if (is_pageable && o->brings_hot && expert_slots_find(&o->slots, l, (size_t)e) < 0) {
                hot_experts_miss(&o->hot, l, (size_t)e, expert_slots_heat(&o->slots, l, (size_t)e));
            }
        }
    }
    o->window = (uint32_t)miss_split_window(&o->split, step->n_choices);
}

/* The mirror follows what came in. */
static void follow(struct offload *o, const struct expert_report *r)
{
    for (size_t i = 0; i < r->n_insertions; i++) {
        const struct expert_insertion *in = &r->insertions[i];

        if (in->slot >= 0 && (size_t)in->slot < o->slots.n_slots && in->layer >= 0 &&
            (size_t)in->layer < o->home.n_layers && is_expert(o, in->expert)) {
            expert_slots_put(&o->slots, (size_t)in->slot, (size_t)in->layer, (size_t)in->expert);
        }
    }
    o->n_victims_used =
        size_max(r->n_victims_used, o->n_victims_used - o->n_victims_used / VICTIMS_FADE);
}

struct seen { /* of a step's layers, summed; nanoseconds */
    uint64_t cpu_ns, wait_ns, n_failed;
    double both_ns, either_ns; /* in which both ways served a layer's misses, or one did */
};

/* Times and counts by layer, of the mail's log and the insertions. What the link took is not seen by layer: that is
 * what its experts take of late. */
static void see_layers(struct offload *o, const struct expert_report *r, struct seen *seen)
{
    const struct mail_answer *log = mail_log(o->mail);
    double fetch_ns = miss_split_fetch_ns(&o->split);
    size_t n = o->home.n_layers;

    memset(o->layers, 0, n * sizeof *o->layers);
    for (size_t i = 0; i < r->n_insertions; i++) {
        const struct expert_insertion *in = &r->insertions[i];

        if (in->layer < 0 || (size_t)in->layer >= n) {
            continue;
        }
        if (!in->is_ahead) {
            o->layers[in->layer].n_fetched++;
        } else if (in->layer > 0) { /* while the layer before was computed */
            o->layers[in->layer - 1].n_ahead++;
        }
    }
    for (size_t l = 0; l < n; l++) {
        struct miss_layer *y = &o->layers[l];
        double link_ns;

        if (l + 1 < n && log[l].posted_ns > 0 && log[l + 1].posted_ns > log[l].posted_ns) {
            y->ns = (double)(log[l + 1].posted_ns - log[l].posted_ns);
        }
        y->n_cpu = log[l].n_experts;
        y->cpu_ns = (double)log[l].compute_ns;
        seen->n_failed += log[l].has_failed;
        if (y->n_cpu > 0) {
            seen->cpu_ns += log[l].compute_ns;
            seen->wait_ns += log[l].answered_ns - log[l].posted_ns;
        }
        link_ns = (double)y->n_fetched * fetch_ns;
        seen->both_ns += fmin(y->cpu_ns, link_ns);
        seen->either_ns += fmax(y->cpu_ns, link_ns);
    }
}

static double bytes_per_s(const struct offload *o, double expert_ns)
{
    return expert_ns > 0 ? (double)o->home.block.n_bytes * 1e9 / expert_ns : 0;
}

static void step_end(void *ctx, const struct expert_report *r)
{
    struct offload *o = ctx;
    struct miss_step step = {.n_rows = r->n_rows,
                             .ns = (double)(clock_now_ns() - o->step_start_ns),
                             .n_fetched = r->n_fetched + r->n_in_place,
                             .n_cpu = r->n_cpu,
                             .n_next = r->n_next,
                             .n_next_used = r->n_next_used};
    struct seen seen = {0};

    if (o->mail) {
        mail_close(o->mail);
        see_layers(o, r, &seen);
        step.layers = o->layers;
    }
    if (r->n_rows == 0 || r->n_rows > EXPERT_HOME_ROWS) {
        return;
    }
    hot_experts_step(&o->hot, step.ns);
    count_choices(o, r, &step);
    follow(o, r);
    miss_split_learn(&o->split, &step);

    pthread_mutex_lock(&o->lock);
    o->stats.n_steps++;
    o->stats.n_inserted = o->n_inserted;
    o->stats.n_hits += r->n_hits;
    o->stats.n_fetched += r->n_fetched + r->n_in_place;
    o->stats.n_in_place += r->n_in_place;
    o->stats.n_cpu += r->n_cpu;
    o->stats.n_next += r->n_next;
    o->stats.n_next_used += r->n_next_used;
    o->stats.n_failed += seen.n_failed;
    o->stats.cpu_ns += seen.cpu_ns;
    o->stats.cpu_wait_ns += seen.wait_ns;
    o->stats.both_ns += seen.both_ns;
    o->stats.either_ns += seen.either_ns;
    o->stats.fetch_bytes_per_s = bytes_per_s(o, miss_split_fetch_ns(&o->split));
    o->stats.cpu_bytes_per_s = o->mail ? bytes_per_s(o, miss_split_cpu_ns(&o->split)) : 0;
    o->stats.fetch_share = o->split.fetched_share;
    pthread_mutex_unlock(&o->lock);
}

/* --- large steps --- */

static int32_t slot_of(void *ctx, size_t layer, size_t expert)
{
    const struct offload *o = ctx;

    return expert_slots_find(&o->slots, layer, expert);
}

static size_t large_divide(void *ctx, size_t layer, size_t n_rows, const int32_t *idx, bool *on_cpu)
{
    struct offload *o = ctx;
    const struct expert_home *h = &o->home;

    if (!o->shares_large || layer >= h->n_layers || n_rows > EXPERT_HOME_LARGE_ROWS) {
        return 0;
    }
    o->n_divided = large_split_divide(
        &o->large, n_rows, h->top_k, idx, o->slots.slot_of + layer * h->n_experts,
        expert_home_is_pageable(h, layer), on_cpu, &o->n_divided_others);
    if (o->n_divided > 0) { /* while the device launches */
        for (size_t i = 0; i < o->n_divided; i++) {
            read_ahead_experts(h, layer, &o->large.by[i].expert, 1);
        }
        mail_rouse(o->mail, true);
    }
    o->divided_ns = clock_now_ns();
    return o->n_divided;
}

static enum status large_compute(void *ctx, size_t layer, size_t n_rows, const int32_t *idx,
                                 const float *prob, const float *x, float *y, struct error *err)
{
    struct offload *o = ctx;
    uint64_t start = clock_now_ns(), ns;
    enum status rc = mail_compute(o->mail, layer, n_rows, idx, prob, x, y, err);

    if (rc != OK) {
        mail_rouse(o->mail, false);
        return rc;
    }
    ns = clock_now_ns() - start;
    large_split_learn(&o->large, (double)ns);
    if (expert_home_is_pageable(&o->home, layer) && o->n_divided_others > 0) {
        /* such copies were made before the device came here */
        large_split_learn_copies(&o->large, o->n_divided_others, (double)(start - o->divided_ns));
    }
    pthread_mutex_lock(&o->lock);
    o->stats.n_large_cpu += o->n_divided;
    o->stats.large_cpu_ns += ns;
    pthread_mutex_unlock(&o->lock);
    return OK;
}

static void will_stream(void *ctx, size_t layer, const int32_t *experts, size_t n)
{
    const struct offload *o = ctx;

    read_ahead_stream(&o->home, layer, experts, n);
}

/* --- making and unmaking --- */

static const struct expert_home_ops home_ops = {.step_begin = step_begin,
                                                .step_end = step_end,
                                                .slot_of = slot_of,
                                                .will_stream = will_stream,
                                                .large_divide = large_divide,
                                                .large_compute = large_compute,
                                                .streamed = streamed};

static size_t count_pageable(const struct offload_shape *s)
{
    size_t n = 0;

    for (size_t l = 0; s->is_pageable && l < s->n_layers; l++) {
        n += s->is_pageable[l];
    }
    return n;
}

static enum status check_shape(const struct offload_shape *s, const struct offload_options *opt,
                               const struct backend *device, const struct backend *cpu,
                               struct error *err)
{
    if (!device->ops->experts_open || !device->ops->expert_insert) {
        return error_set(err, ERR_UNSUPPORTED, "the device '%s' has no way to do without experts",
                         device->ops->name);
    }
    if (!cpu && opt->miss != EXPERT_MISS_FETCH) {
        return error_set(err, ERR_UNSUPPORTED, "there is no CPU for missing experts");
    }
    if (count_pageable(s) > 0 && opt->miss == EXPERT_MISS_FETCH) {
        return error_set(err, ERR_UNSUPPORTED,
                         "--expert-miss fetch: the device cannot read the experts of %zu of %zu "
                         "layers, which are in a file or could not be pinned; auto and cpu let the "
                         "CPU compute them",
                         count_pageable(s), s->n_layers);
    }
    if (s->n_layers == 0 || s->n_experts == 0 || s->top_k == 0 || s->top_k > s->n_experts ||
        s->top_k > EXPERT_HOME_TOP_K || s->hidden != s->block.shape.hidden) {
        return error_set(err, ERR_LIMIT,
                         "%zu of %zu experts in each of %zu layers (at most %d at once)", s->top_k,
                         s->n_experts, s->n_layers, EXPERT_HOME_TOP_K);
    }
    return OK;
}

static enum status tables_new(struct offload *o, const struct offload_shape *s, struct error *err)
{
    enum status rc = expert_slots_init(&o->slots, s->n_layers, s->n_experts, o->home.n_slots, err);

    if (rc != OK) {
        return rc;
    }
    o->blocks = calloc(s->n_layers, sizeof *o->blocks);
    o->pageable = calloc(s->n_layers, sizeof *o->pageable);
    rc = large_split_init(&o->large, s->n_experts, err);
    if (rc != OK) {
        return rc;
    }
    o->used_at = calloc(s->n_layers * s->n_experts, sizeof *o->used_at);
    o->layers = calloc(s->n_layers, sizeof *o->layers);
    o->tail_count = calloc(s->n_experts, sizeof *o->tail_count);
    o->warm = calloc(s->n_layers, sizeof *o->warm);
    if (!o->blocks || !o->pageable || !o->used_at || !o->layers || !o->tail_count || !o->warm) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate tables of %zu experts",
                         s->n_layers * s->n_experts);
    }
    memcpy(o->blocks, s->blocks, s->n_layers * sizeof *o->blocks);
    if (s->is_pageable) {
        memcpy(o->pageable, s->is_pageable, s->n_layers * sizeof *o->pageable);
    }
    return OK;
}

static enum status offload_init(struct offload *o, const struct offload_shape *s,
                                const struct offload_options *opt, struct error *err)
{
    enum status rc = check_shape(s, opt, o->device, o->cpu, err);
    size_t n_all;

    if (rc != OK) {
        return rc;
    }
    if (!size_mul(&n_all, s->n_layers, s->n_experts)) {
        n_all = SIZE_MAX; /* refused below */
    }
    o->home = (struct expert_home){
        .block = s->block,
        .n_layers = s->n_layers,
        .n_experts = s->n_experts,
        .top_k = s->top_k,
        .hidden = s->hidden,
        .n_slots = size_min(opt->n_slots, n_all),
        .n_staging = opt->n_staging > 0 ? size_max(opt->n_staging, 2) : OFFLOAD_STAGING_DEFAULT,
        .has_cpu = opt->miss != EXPERT_MISS_FETCH,
        .takes_turns = opt->no_overlap,
        .looks_ahead = !opt->no_prefetch && opt->miss != EXPERT_MISS_CPU &&
                       !(opt->miss == EXPERT_MISS_AUTO && opt->no_split) &&
                       count_pageable(s) < s->n_layers,
        .ops = &home_ops,
        .ctx = o,
    };
    rc = tables_new(o, s, err);
    if (rc != OK) {
        return rc;
    }
    o->home.blocks = o->blocks;
    o->home.is_pageable = s->is_pageable ? o->pageable : NULL;
    rc = o->device->ops->experts_open(o->device, &o->home, err);
    if (rc != OK) {
        return rc;
    }
    o->is_open = true;
    return o->home.has_cpu ? mail_new(&o->mail, &o->home, s->activations, o->cpu, err) : OK;
}

static void split_start(struct offload *o, const struct offload_options *opt, double fetch_ns,
                        double cpu_ns)
{
    const struct miss_split_options so = {
        .miss = opt->miss,
        .no_split = opt->no_split,
        .no_prefetch = opt->no_prefetch,
        .n_layers = o->home.n_layers,
        .n_experts = o->home.n_experts,
        .n_slots = o->home.n_slots,
        .n_pageable = o->stats.n_pageable,
        .top_k = o->home.top_k,
        .fetch_ns = fetch_ns,
        .cpu_ns = cpu_ns,
    };

    miss_split_init(&o->split, &so);
    o->window = 1;
}

enum status offload_new(struct offload **out, const struct offload_shape *shape,
                        const struct offload_options *opt, struct backend *device,
                        struct backend *cpu, struct error *err)
{
    struct offload *o = calloc(1, sizeof *o);
    enum status rc;

    *out = NULL;
    if (!o) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the table of overflowing experts");
    }
    pthread_mutex_init(&o->lock, NULL);
    o->device = device;
    o->cpu = cpu;
    rc = offload_init(o, shape, opt, err);
    if (rc != OK) {
        error_prefix(err, "experts that do not fit the device");
        offload_free(o);
        return rc;
    }
    o->stats.n_pageable = count_pageable(shape);
    o->brings_hot = o->stats.n_pageable > 0 && o->home.n_slots > 0 &&
                    opt->miss == EXPERT_MISS_AUTO && !opt->no_split;
    split_start(o, opt, 0, 0);
    o->shares_large = o->mail && !opt->no_split;
    o->stats.n_layers = o->home.n_layers;
    o->stats.n_experts = o->home.n_experts;
    o->stats.n_slots = o->home.n_slots;
    o->stats.n_staging = o->home.n_staging;
    o->stats.block_bytes = o->home.block.n_bytes;
    *out = o;
    return OK;
}

void offload_free(struct offload *o)
{
    if (!o) {
        return;
    }
    mail_free(o->mail);
    if (o->is_open) {
        o->device->ops->experts_open(o->device, NULL, NULL);
    }
    expert_slots_release(&o->slots);
    pthread_mutex_destroy(&o->lock);
    free(o->blocks);
    free(o->pageable);
    large_split_release(&o->large);
    free(o->used_at);
    free(o->layers);
    free(o->tail_count);
    free(o->warm);
    free(o);
}

const struct expert_home *offload_home(const struct offload *o)
{
    return &o->home;
}

/* --- the first filling --- */

/* What several experts of one row take the CPU longer than one, or several of many rows longer than of few: for each
 * expert more, or for each row more of an expert. The best of some trials, each with experts that no cache
 * holds. 0: not known. */
static double cpu_trial_ns(struct offload *o, bool of_rows)
{
    static const size_t rows[2] = {2, MAIL_MEASURE_ROWS};
    size_t many = size_min(o->home.top_k, TRIAL_EXPERTS);
    double times = of_rows ? (double)(many * (rows[1] - rows[0])) : (double)many - 1;
    uint64_t best[2] = {UINT64_MAX, UINT64_MAX};

    for (size_t i = 0; o->mail && i < 2 * TRIALS; i++) {
        size_t n_experts = of_rows || i % 2 ? many : 1, n_rows = of_rows ? rows[i % 2] : 1;
        uint64_t ns;

        if (mail_measure(o->mail, (i * 7) % o->home.n_layers, i * many, n_experts, n_rows, &ns,
                         NULL) != OK) {
            return 0;
        }
        best[i % 2] = ns < best[i % 2] ? ns : best[i % 2];
    }
    return o->mail && times > 0 && best[1] > best[0] ? (double)(best[1] - best[0]) / times : 0;
}

static void times_set(struct offload *o, double fetch_ns)
{
    struct miss_split_options so = o->split.o;
    struct large_times large = {.link = fetch_ns, .row = cpu_trial_ns(o, true)};

    so.fetch_ns = fetch_ns;
    so.cpu_ns = large.expert = cpu_trial_ns(o, false);
    miss_split_init(&o->split, &so);
    large_split_times(&o->large, &large);
}

/* What slot `slot` is filled with: a first expert of each layer, a second... */
static void fill_of(const struct offload *o, size_t slot, size_t *layer, int32_t *expert)
{
    *layer = slot % o->home.n_layers;
    *expert = (int32_t)(slot / o->home.n_layers);
}

static void fill_ahead(const struct offload *o, size_t slot)
{
    size_t layer;
    int32_t expert;

    if (slot < o->home.n_slots) {
        fill_of(o, slot, &layer, &expert);
        read_ahead_experts(&o->home, layer, &expert, 1);
    }
}

/* The slots of pageable layers, or of the others; nanoseconds of one, 0 where there are none. */
static enum status fill_slots(struct offload *o, bool pageable, size_t *n_done, double *ns,
                              struct progress *progress, struct error *err)
{
    const struct expert_home *h = &o->home;
    uint64_t start = clock_now_ns();
    size_t n_before = *n_done;
    enum status rc = OK;

    for (size_t slot = 0; pageable && slot < READ_AHEAD_FILL; slot++) {
        fill_ahead(o, slot);
    }
    for (size_t slot = 0; slot < h->n_slots; slot++) {
        size_t layer;
        int32_t expert;

        fill_of(o, slot, &layer, &expert);
        if (pageable) {
            fill_ahead(o, slot + READ_AHEAD_FILL);
        }
        if (expert_home_is_pageable(h, layer) != pageable) {
            continue;
        }
        rc = o->device->ops->expert_insert(o->device, layer, (size_t)expert, slot, err);
        if (rc != OK) {
            break;
        }
        expert_slots_put(&o->slots, slot, layer, (size_t)expert);
        ++*n_done;
        if (progress) {
            progress_update(progress, *n_done * h->block.n_bytes);
        }
    }
    if (rc == OK && o->device->ops->wait) {
        rc = o->device->ops->wait(o->device, err);
    }
    *ns = *n_done > n_before ? (double)(clock_now_ns() - start) / (double)(*n_done - n_before) : 0;
    return rc;
}

/* What can be pinned and what cannot take different times, and one of them would wait for the other: one after the
 * other. */
enum status offload_fill(struct offload *o, struct progress *progress, struct error *err)
{
    double pinned_ns, pageable_ns = 0;
    size_t n_done = 0;
    enum status rc;

    if (progress) {
        progress_start(progress, "experts to the device", PROGRESS_BYTES,
                       o->home.n_slots * o->home.block.n_bytes);
    }
    rc = fill_slots(o, false, &n_done, &pinned_ns, progress, err);
    if (rc == OK && o->home.is_pageable) {
        rc = fill_slots(o, true, &n_done, &pageable_ns, progress, err);
    }
    if (progress) {
        progress_finish(progress);
    }
    if (rc != OK) {
        error_prefix(err, "experts to the device");
        return rc;
    }
    o->hot.insert_ns = pageable_ns;
    times_set(o, pinned_ns > 0 ? pinned_ns : pageable_ns);
    return OK;
}

void offload_read_stats(const struct offload *o, struct offload_stats *out)
{
    struct offload *open = (struct offload *)(uintptr_t)o; /* the lock is no part of what is read */

    pthread_mutex_lock(&open->lock);
    *out = o->stats;
    pthread_mutex_unlock(&open->lock);
}

double offload_overlap(const struct offload_stats *s)
{
    return s->either_ns > 0 ? s->both_ns / s->either_ns : 0;
}
