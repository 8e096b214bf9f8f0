/* large_split.c - see large_split.h. */
#include "offload/large_split.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

static const double LINK_UNKNOWN = 5e4, EXPERT_UNKNOWN = 5e4; /* ns; some megabytes on slow ways */
static const double ROW_PART = 0.25;    /* of an expert's first row, until it is measured */
static const double PAGEABLE_TIMES = 4; /* slower than pinned memory, until it is measured */
static const double START_NS = 3e4;     /* workers that wake up, rows read back and added */
static const double LEARN_PART = 0.1;   /* of a time in the mean of late */
static const double OUTLIER_TIMES = 4;  /* either way; beyond that something else was measured */
static const double SCALE_MIN = 0.1, SCALE_MAX = 100;
static const double NS_MIN = 100, NS_MAX = 1e8;

enum { PROBE_AFTER = 256 }; /* layers without a part for the CPU */

enum status large_split_init(struct large_split *s, size_t n_experts, struct error *err)
{
    const struct large_times unknown = {0};

    *s = (struct large_split){.n_experts = n_experts};
    s->by = calloc(n_experts + 1, sizeof *s->by);
    s->n_rows = calloc(n_experts + 1, sizeof *s->n_rows);
    if (!s->by || !s->n_rows) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate lists of %zu experts", n_experts);
    }
    large_split_times(s, &unknown);
    return OK;
}

void large_split_release(struct large_split *s)
{
    free(s->by);
    free(s->n_rows);
    *s = (struct large_split){0};
}

static double bounded(double ns, double unknown)
{
    return ns > 0 ? fmin(fmax(ns, NS_MIN), NS_MAX) : unknown;
}

void large_split_times(struct large_split *s, const struct large_times *times)
{
    s->times.link = bounded(times->link, LINK_UNKNOWN);
    s->times.expert = bounded(times->expert, EXPERT_UNKNOWN);
    s->times.row = bounded(times->row, ROW_PART * s->times.expert);
    s->scale = 1;
    s->pageable_link = PAGEABLE_TIMES * s->times.link;
    s->n_learned = s->n_pageable = 0;
    s->since_cpu = 0;
}

/* ---- a layer ---- */

static int by_rows(const void *a, const void *b)
{
    const struct large_expert *x = a, *y = b;

    if (x->n_rows != y->n_rows) {
        return x->n_rows < y->n_rows ? -1 : 1;
    }
    return x->expert < y->expert ? -1 : 1;
}

/* Wanted experts without a slot, in by[]. How many of them the CPU may have: the first ones; one that a row chose
 * twice is not for it. */
static size_t candidates(struct large_split *s, size_t n_rows, size_t top_k, const int32_t *idx,
                         const int32_t *slot_of, size_t *n_all)
{
    size_t n = 0, n_allowed = 0;

    memset(s->n_rows, 0, s->n_experts * sizeof *s->n_rows);
    for (size_t i = 0; i < n_rows * top_k; i++) {
        if (idx[i] >= 0 && (size_t)idx[i] < s->n_experts) {
            s->n_rows[idx[i]]++;
        }
    }
    for (size_t e = 0; e < s->n_experts; e++) {
        if (s->n_rows[e] > 0 && slot_of[e] < 0) {
            s->by[n++] = (struct large_expert){(int32_t)e, s->n_rows[e]};
            n_allowed += s->n_rows[e] <= n_rows;
        }
    }
    qsort(s->by, n, sizeof *s->by, by_rows);
    *n_all = n;
    return n_allowed;
}

static double part_ns(const struct large_split *s, const struct large_expert *e)
{
    return s->times.expert + (e->n_rows - 1) * s->times.row;
}

static size_t best_part(const struct large_split *s, size_t n_allowed, size_t n_all,
                        bool is_pageable)
{
    double link = is_pageable ? s->pageable_link : s->times.link;
    double sum = START_NS, least = link * (double)n_all;
    size_t best = 0;

    for (size_t k = 1; k <= n_allowed; k++) {
        double left = link * (double)(n_all - k), both;

        sum += part_ns(s, &s->by[k - 1]);
        both = is_pageable ? s->scale * sum + left : fmax(s->scale * sum, left);
        if (both < least) {
            least = both;
            best = k;
        }
    }
    return best;
}

size_t large_split_divide(struct large_split *s, size_t n_rows, size_t top_k, const int32_t *idx,
                          const int32_t *slot_of, bool is_pageable, bool *on_cpu,
                          size_t *n_streamed)
{
    size_t n_all, n_allowed = candidates(s, n_rows, top_k, idx, slot_of, &n_all);
    size_t k = best_part(s, n_allowed, n_all, is_pageable);

    if (k == 0 && n_allowed > 0 && ++s->since_cpu >= PROBE_AFTER) {
        k = 1;
    }
    s->since_cpu = k > 0 ? 0 : s->since_cpu;
    s->expected = START_NS;
    for (size_t i = 0; i < k; i++) {
        s->expected += part_ns(s, &s->by[i]);
        on_cpu[s->by[i].expert] = true;
    }
    *n_streamed = n_all - k;
    return k;
}

/* ---- learning ---- */

/* The plain mean at first, then one in which old times fade. */
static void mean_add(double *mean, double *n, double value)
{
    value = fmin(fmax(value, *mean / OUTLIER_TIMES), *mean * OUTLIER_TIMES);
    *n += 1;
    *mean += fmax(LEARN_PART, 1 / (*n + 1)) * (value - *mean); /* what was known before is one */
}

void large_split_learn(struct large_split *s, double cpu_ns)
{
    mean_add(&s->scale, &s->n_learned, cpu_ns / s->expected);
    s->scale = fmin(fmax(s->scale, SCALE_MIN), SCALE_MAX);
}

void large_split_learn_copies(struct large_split *s, size_t n, double ns)
{
    mean_add(&s->pageable_link, &s->n_pageable, ns / (double)n);
    s->pageable_link = fmin(fmax(s->pageable_link, NS_MIN), NS_MAX);
}
