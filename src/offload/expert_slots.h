/* expert_slots.h - which expert each slot of the device holds, as the host knows it between steps, and which go
 * first.
 *
 * Place:  offload, under offload.c.
 * Idea:   every expert has a heat, with or without a slot: 1 for each step that used it, halved every
 *         EXPERT_HEAT_STEPS steps. The coldest go first, of whatever layer. So what is asked for often stays
 *         although other things were asked for since, what was asked for once leaves again, and what is
 *         needed no more is forgotten. Against plain "least recently used" that saves a fifth of the
 *         misses of choices as trained models make them (`bench --routing local`): with slots for 10,
 *         26, 37 % of the experts 66, 86, 91 % hit instead of 57, 83.5, 90. Choices without a memory
 *         hit the slots' share either way.
 * Cost:   use and put O(1), victims O(slots log n); no memory is asked for after init.
 * Thread: one at a time. */
#ifndef OFFLOAD_EXPERT_SLOTS_H
#define OFFLOAD_EXPERT_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    EXPERT_SLOTS_LAYERS_MAX = INT16_MAX,
    EXPERT_SLOTS_EXPERTS_MAX = INT16_MAX,
    EXPERT_HEAT_STEPS =
        24, /* half-life: 16 to 64 hit alike; the longer, the later a new subject is seen */
};

struct expert_slot {
    int16_t layer, expert; /* -1: none */
};

struct expert_slots {
    size_t n_layers, n_experts, n_slots;
    int32_t *slot_of;         /* [n_layers][n_experts], -1: none */
    double *heat;             /* [n_layers][n_experts] times what the step's use counts */
    struct expert_slot *slot; /* [n_slots] */
    size_t n_held;            /* slots with an expert */
    double use;               /* heat of a use in this step: grows, instead of all else shrinking */
    unsigned step;            /* since `use` was 1 */
};

/* All slots empty. ERR_LIMIT, ERR_NO_MEMORY; release also after a failure. */
enum status expert_slots_init(struct expert_slots *s, size_t n_layers, size_t n_experts,
                              size_t n_slots, struct error *err);
void expert_slots_release(struct expert_slots *s);

/* The slot of an expert, or -1. */
int32_t expert_slots_find(const struct expert_slots *s, size_t layer, size_t expert);

/* The expert is now in `slot`; what was there has none. If it had another slot, that one is empty now. */
void expert_slots_put(struct expert_slots *s, size_t slot, size_t layer, size_t expert);

/* The next step begins. */
void expert_slots_step(struct expert_slots *s);

/* The step used the expert, in a slot or not: once a step, or more often if it counts more. */
void expert_slots_use(struct expert_slots *s, size_t layer, size_t expert);

/* Uses of late, one of the present step counting 1. Of a slot: its expert's; below 0 when it is empty. */
double expert_slots_heat(const struct expert_slots *s, size_t layer, size_t expert);
double expert_slots_slot_heat(const struct expert_slots *s, size_t slot);

/* The n slots to go first, the first first; empty ones before all, the lower slot of equals. Returns how
 * many there are. */
size_t expert_slots_victims(const struct expert_slots *s, int32_t *out, size_t n);

#endif
