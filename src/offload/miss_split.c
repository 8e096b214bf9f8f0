/* miss_split.c - see miss_split.h. */
#include "offload/miss_split.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/size.h"

static const double FADE = 0.9;       /* of a measurement's weight, by step */
static const double WEIGHT_MIN = 0.5; /* what is left of old points where no new ones come */
static const double RIDGE = 2;        /* weight of the slope that was known before */
static const double CPU_START_PART =
    0.5;                            /* of an answer, at most, is not for the experts themselves */
static const double TRIP_NS = 5000; /* until it is measured */
static const double TRIP_MAX_NS = 1e5; /* either way: beyond that something else was measured */
static const double TRIP_PART = 0.1;   /* of a step in the mean of trips */
static const double SHARE_PART = 0.05; /* of a step in the mean share of recent choices */
static const double GAIN_MAX = 8;
static const double WINDOW_PART = 0.75; /* of a layer's time is after its choices */
static const double TRUE_SHARE = 0.8;   /* of predictions, until it is measured */
static const double TRUE_MIN = 0.1;     /* below that slots are worth more */
static const double TRUE_PART = 0.05;   /* of a step in its mean */
static const double TRUE_FADE = 1e-4;   /* of it is forgotten in a step without */
static const double EXPERT_NS_MIN = 100, EXPERT_NS_MAX = 1e8, EXPERT_NS_UNKNOWN = 3e4;
static const double OUTLIER_TIMES = 2, OUTLIER_NS = 5e4; /* more than that over the line is cut */
static const double FASTER_MAX =
    2; /* than at the start: then nothing else wanted the link or the CPU */

enum {
    PROBE_AFTER = 64, /* steps that a side may go unmeasured: a step may cost three times as much */
    PROBE_FIRST = 2,  /* after so many steps the first time */
    STILL_EACH = 32,  /* steps: one without fetches ahead, in which layers can be measured */
    INSERT_PART = 4, /* of the slots may change in a step, so that one step cannot flush them all */
};

/* --- lines --- */

/* Before there are points; slope 0: not known. */
static void line_start(struct fading_line *l, double slope)
{
    *l = (struct fading_line){
        .slope = slope > 0 ? slope : EXPERT_NS_UNKNOWN,
        .slope_min = fmax(slope / FASTER_MAX, EXPERT_NS_MIN),
        .is_known = slope > 0,
    };
}

/* A line with the slope of another, and no points. */
static void line_follow(struct fading_line *l, const struct fading_line *other)
{
    *l = (struct fading_line){
        .slope = other->slope, .slope_min = other->slope_min, .is_known = other->is_known};
}

static void line_fade(struct fading_line *l)
{
    if (l->weight < WEIGHT_MIN) {
        return;
    }
    l->weight *= FADE;
    l->x *= FADE;
    l->y *= FADE;
    l->xx *= FADE;
    l->xy *= FADE;
}

static double line_at0(const struct fading_line *l)
{
    return l->weight > 0 ? (l->y - l->slope * l->x) / l->weight : 0;
}

/* at0: what y is at 0 while there are no points; negative: not known. */
static void line_add(struct fading_line *l, double x, double y, double at0)
{
    double expected =
        l->weight >= 1 ? fmax(line_at0(l) + l->slope * x, l->y / l->weight) : at0 + l->slope * x;

    if (l->weight >= 1 || (l->is_known && at0 >= 0)) {
        /* a thread that was put aside for milliseconds says nothing of the machine */
        y = fmin(y, OUTLIER_TIMES * expected + OUTLIER_NS);
    }
    l->weight += 1;
    l->x += x;
    l->y += y;
    l->xx += x * x;
    l->xy += x * y;
}

/* The slope that fits best; what was known before counts as a few points, so that it stays where x hardly
 * varies. y at 0 is not below 0, and at most `start_part` of what y is on average. */
static void line_fit(struct fading_line *l, double start_part)
{
    double cov, var;

    if (l->weight <= 0) {
        return;
    }
    cov = l->xy - l->x * l->y / l->weight;
    var = fmax(l->xx - l->x * l->x / l->weight, 0);
    l->slope = (cov + RIDGE * l->slope) / (var + RIDGE);
    l->is_known = l->is_known || var > RIDGE;
    if (l->x > 0) {
        l->slope = fmin(fmax(l->slope, (1 - start_part) * l->y / l->x), l->y / l->x);
    }
    l->slope = fmin(fmax(l->slope, l->slope_min), EXPERT_NS_MAX);
}

/* --- orders --- */

void miss_split_init(struct miss_split *s, const struct miss_split_options *o)
{
    struct miss_times *t = &s->times[0];

    *s = (struct miss_split){.o = *o, .last_rows = 1, .true_share = TRUE_SHARE};
    line_start(&t->layer, o->fetch_ns);
    line_start(&t->cpu, o->cpu_ns);
    t->trip_ns = TRIP_NS;
    t->since_fetch = t->since_cpu = PROBE_AFTER - PROBE_FIRST;
    t->is_started = true;
    line_start(&s->steps, o->fetch_ns);
}

/* The times for n_rows; at first those of the number of rows that was seen last. */
static struct miss_times *times_of(struct miss_split *s, size_t n_rows)
{
    struct miss_times *t;

    assert(n_rows >= 1 && n_rows <= EXPERT_HOME_ROWS);
    t = &s->times[n_rows - 1];
    if (!t->is_started) {
        const struct miss_times *last = &s->times[s->last_rows - 1];

        line_follow(&t->layer, &last->layer);
        line_follow(&t->cpu, &last->cpu);
        t->trip_ns = last->trip_ns;
        t->since_fetch = t->since_cpu = PROBE_AFTER - PROBE_FIRST;
        t->is_started = true;
    }
    return t;
}

static double resident_share(const struct miss_split *s)
{
    return (double)s->o.n_slots / fmax((double)(s->o.n_layers * s->o.n_experts), 1);
}

static double gain_of(const struct miss_split *s)
{
    double more = s->recent_share - resident_share(s), miss = 1 - s->recent_share;

    if (more <= 0) {
        return 0;
    }
    return more < GAIN_MAX * miss ? more / miss : GAIN_MAX;
}

static double cpu_time(const struct miss_times *t, size_t n)
{
    double start = fmax(line_at0(&t->cpu), 0);

    return n == 0 ? 0 : fmax(t->trip_ns + start + t->cpu.slope * (double)n, 0);
}

/* Of m misses; at most `most` are fetched. */
static size_t best_split(const struct miss_times *t, double bonus, size_t m, size_t most)
{
    size_t best = 0;
    double best_cost = INFINITY;

    for (size_t f = 0; f <= size_min(m, most); f++) {
        double cost = fmax(t->layer.slope * (double)f, cpu_time(t, m - f)) - bonus * (double)f;

        if (cost < best_cost) {
            best = f;
            best_cost = cost;
        }
    }
    return best;
}

static size_t insertions_max(const struct miss_split *s)
{
    return size_max(s->o.n_slots / INSERT_PART, s->o.n_layers);
}

/* Layers that can fetch. */
static size_t n_fetching(const struct miss_split *s)
{
    return s->o.n_layers - size_min(s->o.n_pageable, s->o.n_layers);
}

/* The same for each layer that can fetch, or the last ones would never get a slot. */
static size_t fetch_max(const struct miss_split *s)
{
    if (s->o.n_slots == 0 || n_fetching(s) == 0 || s->o.miss == EXPERT_MISS_CPU ||
        (s->o.miss == EXPERT_MISS_AUTO && s->o.no_split)) {
        return 0;
    }
    return size_min(insertions_max(s) / n_fetching(s), EXPERT_HOME_PAIRS);
}

static size_t prefetch_of(const struct miss_split *s, struct miss_times *t)
{
    bool has_mail = s->o.miss != EXPERT_MISS_FETCH;
    const struct fading_line *l = has_mail ? &t->layer : &s->steps;
    double window = WINDOW_PART * fmax(line_at0(l), 0) / (has_mail ? 1 : (double)s->o.n_layers);
    double saves = has_mail ? 1 / (1 / l->slope + 1 / t->cpu.slope) : l->slope, n;

    if (s->o.no_prefetch || fetch_max(s) == 0 || l->weight <= 0 || s->true_share < TRUE_MIN) {
        return 0;
    }
    n = floor((window + s->true_share * saves) / l->slope);
    if (n >= 1 && ++t->since_still > STILL_EACH) {
        n = t->since_still = 0;
    }
    return n < EXPERT_HOME_NEXT ? (size_t)n : EXPERT_HOME_NEXT;
}

size_t miss_split_orders(struct miss_split *s, size_t n_rows, struct expert_orders *orders)
{
    struct miss_times *t = times_of(s, n_rows);
    size_t pairs = size_min(n_rows * s->o.top_k, EXPERT_HOME_PAIRS), most = fetch_max(s);
    double bonus = gain_of(s) / (1 / t->layer.slope + 1 / t->cpu.slope);
    bool is_auto = s->o.miss == EXPERT_MISS_AUTO && most > 0;
    bool tries_fetch = is_auto && t->since_fetch >= PROBE_AFTER;
    bool tries_cpu = is_auto && !tries_fetch && t->since_cpu >= PROBE_AFTER;
    size_t n = 0;

    for (size_t m = 0; m <= EXPERT_HOME_PAIRS; m++) {
        if (!is_auto || tries_fetch) {
            n = size_min(m, most);
        } else if (!tries_cpu && m <= pairs) { /* more than that are never asked */
            n = best_split(t, bonus, m, most);
        }
        orders->n_fetch[m] = (uint8_t)n;
    }
    if (tries_fetch) { /* whether it could be measured or not, the next time is far */
        t->since_fetch = 0;
    }
    if (tries_cpu) {
        t->since_cpu = 0;
    }
    orders->n_next = (int32_t)prefetch_of(s, t);
    if (most == 0) {
        return 0;
    }
    return insertions_max(s) + n_fetching(s) * (size_t)orders->n_next;
}

size_t miss_split_window(const struct miss_split *s, size_t n_choices)
{
    return size_max((s->o.n_slots + n_choices / 2) / size_max(n_choices, 1), 1);
}

/* --- learning --- */

/* What layers served by the CPU alone took longer than one without misses and the computing itself. */
static void learn_trip(struct miss_times *t, const struct miss_step *step, size_t n_layers)
{
    double sum = 0, base = line_at0(&t->layer);
    size_t n = 0;

    for (size_t l = 0; l < n_layers; l++) {
        const struct miss_layer *y = &step->layers[l];

        if (y->ns > 0 && y->n_cpu > 0 && !(y->n_fetched > 0) && y->n_ahead == 0) {
            sum += fmin(fmax(y->ns - base - y->cpu_ns, -TRIP_MAX_NS), TRIP_MAX_NS);
            n++;
        }
    }
    if (n > 0 && base > 0) {
        t->trip_ns += TRIP_PART * (sum / (double)n - t->trip_ns);
    }
}

static void learn_layers(struct miss_times *t, const struct miss_step *step, size_t n_layers)
{
    size_t n_fetched = 0, n_cpu = 0;

    line_fade(&t->layer);
    line_fade(&t->cpu);
    for (size_t l = 0; l < n_layers; l++) {
        const struct miss_layer *y = &step->layers[l];

        if (y->n_cpu > 0) {
            n_cpu++;
            line_add(&t->cpu, (double)y->n_cpu, y->cpu_ns, 0);
        } else if (y->ns > 0) {
            n_fetched += y->n_fetched > 0;
            if (y->n_ahead == 0) { /* else the next layer may have waited for that */
                line_add(&t->layer, y->n_fetched, y->ns, -1);
            }
        }
    }
    line_fit(&t->layer, 1);
    line_fit(&t->cpu, CPU_START_PART);
    t->since_fetch = n_fetched > 0 ? 0 : t->since_fetch + 1;
    t->since_cpu = n_cpu > 0 ? 0 : t->since_cpu + 1;
    learn_trip(t, step, n_layers);
}

void miss_split_learn(struct miss_split *s, const struct miss_step *step)
{
    struct miss_times *t = times_of(s, step->n_rows);
    size_t n_missed = step->n_fetched + step->n_cpu;

    s->last_rows = step->n_rows;
    if (step->layers) {
        learn_layers(t, step, s->o.n_layers);
    } else if (step->ns > 0 && step->n_next == 0) {
        line_fade(&s->steps);
        line_add(&s->steps, (double)step->n_fetched, step->ns, -1);
        line_fit(&s->steps, 1);
    }
    if (step->n_choices > 0) {
        double share = (double)step->n_recent / (double)step->n_choices;

        s->n_shares++; /* the plain mean at first */
        s->recent_share += fmax(SHARE_PART, 1.0 / s->n_shares) * (share - s->recent_share);
    }
    if (step->n_next > 0) {
        double share = (double)step->n_next_used / (double)step->n_next;

        s->true_share += TRUE_PART * (share - s->true_share);
    } else { /* so that it is tried again */
        s->true_share += TRUE_FADE * (TRUE_SHARE - s->true_share);
    }
    if (n_missed > 0) {
        double share = (double)step->n_fetched / (double)n_missed;

        s->fetched_share += SHARE_PART * (share - s->fetched_share);
    }
}

double miss_split_fetch_ns(const struct miss_split *s)
{
    const struct fading_line *l =
        s->o.miss == EXPERT_MISS_FETCH ? &s->steps : &s->times[s->last_rows - 1].layer;

    return l->is_known ? l->slope : 0;
}

double miss_split_cpu_ns(const struct miss_split *s)
{
    const struct fading_line *l = &s->times[s->last_rows - 1].cpu;

    return l->is_known ? l->slope : 0;
}
