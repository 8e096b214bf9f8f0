/* hot_experts.h - which missed experts of pageable layers are brought in between steps.
 *
 * Place:  offload, under offload.c; plain arithmetic on what it is told.
 * Why:    a device fetches nothing of such layers within a step (backend/expert_home.h), so without this their
 *         slots would never follow what is used.
 * Which:  of the experts that the last step missed the hottest, each for a slot whose expert is clearly colder.
 * Cost:   an insertion is a copy that the step after waits for. All of them together may take HOT_TIME_SHARE of
 *         the time that steps take: what is not used is kept for the next steps, but never more than
 *         HOT_STEP_MAX insertions cost.
 * Thread: one at a time. */
#ifndef OFFLOAD_HOT_EXPERTS_H
#define OFFLOAD_HOT_EXPERTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HOT_STEP_MAX = 8 }; /* insertions before a step */
#define HOT_TIME_SHARE 0.1
/* Uses. By so much a victim must be colder, or two would change places for ever. */
#define HOT_MARGIN 0.5

struct hot_expert {
    int16_t layer, expert;
    double heat; /* uses of late, as expert_slots_heat() has them */
};

struct hot_experts { /* all zero at first */
    size_t n;
    struct hot_expert item[HOT_STEP_MAX]; /* missed in the last step, the hottest first */
    double insert_ns;                     /* what one insertion takes; 0: not known yet */
    double left_ns;                       /* time that may be spent; below 0: was overdrawn */
};

/* The last step missed this expert. Once for each. */
void hot_experts_miss(struct hot_experts *h, size_t layer, size_t expert, double heat);

/* How many of item[] may be brought in now. */
size_t hot_experts_allowed(const struct hot_experts *h);

/* Whether a missed expert is worth the slot of one with this heat. */
bool hot_experts_replaces(const struct hot_expert *missed, double victim_heat);

/* So many were, which took ns in all. item[] is empty then. */
void hot_experts_inserted(struct hot_experts *h, size_t n, double ns);

/* A step took ns. */
void hot_experts_step(struct hot_experts *h, double ns);

#endif
