/* hot_experts.c - see hot_experts.h. */
#include "offload/hot_experts.h"

#include <math.h>
#include <string.h>

#include "base/size.h"

static const double INSERT_PART = 0.1;   /* of an insertion in the mean of their times */
static const double OUTLIER_TIMES = 4;   /* the mean: more was spent on something else */
static const double OVERDRAWN_TIMES = 4; /* an insertion, at most */

void hot_experts_miss(struct hot_experts *h, size_t layer, size_t expert, double heat)
{
    size_t at = h->n, kept = size_min(h->n, HOT_STEP_MAX - 1);

    while (at > 0 && h->item[at - 1].heat < heat) {
        at--;
    }
    if (at == HOT_STEP_MAX) {
        return;
    }
    memmove(h->item + at + 1, h->item + at, (kept - at) * sizeof *h->item);
    h->item[at] = (struct hot_expert){(int16_t)layer, (int16_t)expert, heat};
    h->n = kept + 1;
}

size_t hot_experts_allowed(const struct hot_experts *h)
{
    if (!(h->insert_ns > 0)) {
        return size_min(h->n, 1); /* which measures it */
    }
    return h->left_ns < h->insert_ns ? 0 : size_min(h->n, (size_t)(h->left_ns / h->insert_ns));
}

bool hot_experts_replaces(const struct hot_expert *missed, double victim_heat)
{
    return missed->heat > fmax(victim_heat, 0) + HOT_MARGIN;
}

void hot_experts_inserted(struct hot_experts *h, size_t n, double ns)
{
    double each;

    h->n = 0;
    if (n == 0) {
        return;
    }
    each = fmax(ns / (double)n, 1);
    if (h->insert_ns > 0) {
        each = fmin(each, OUTLIER_TIMES * h->insert_ns);
        h->insert_ns += INSERT_PART * (each - h->insert_ns);
    } else {
        h->insert_ns = each;
    }
    h->left_ns = fmax(h->left_ns - ns, -OVERDRAWN_TIMES * h->insert_ns);
}

void hot_experts_step(struct hot_experts *h, double ns)
{
    h->left_ns += HOT_TIME_SHARE * ns;
    if (h->insert_ns > 0) {
        h->left_ns = fmin(h->left_ns, HOT_STEP_MAX * h->insert_ns);
    }
}
