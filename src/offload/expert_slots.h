/* expert_slots.h - which expert each slot of the device holds, as the host knows it between steps.
 *
 * Place:  offload, under offload.c.
 * Idea:   slots form one list by last use, across all layers: the front was used last, the back goes first.
 *         Slots without an expert stand at the back. One layer that needs many experts at a time so
 *         takes room from others that need few.
 * Cost:   every call O(1), or O(result); no memory is asked for after init.
 * Thread: one at a time. */
#ifndef OFFLOAD_EXPERT_SLOTS_H
#define OFFLOAD_EXPERT_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { EXPERT_SLOTS_LAYERS_MAX = INT16_MAX, EXPERT_SLOTS_EXPERTS_MAX = INT16_MAX };

struct expert_slot {
    int16_t layer, expert; /* -1: none */
    int32_t newer, older;  /* slots, -1: none */
};

struct expert_slots {
    size_t n_layers, n_experts, n_slots;
    int32_t *slot_of;         /* [n_layers][n_experts], -1: none */
    struct expert_slot *slot; /* [n_slots] */
    int32_t newest, oldest;   /* -1: there are no slots */
    size_t n_held;            /* slots with an expert */
};

/* All slots empty, slot 0 the first to go. ERR_LIMIT, ERR_NO_MEMORY; release also after a failure. */
enum status expert_slots_init(struct expert_slots *s, size_t n_layers, size_t n_experts,
                              size_t n_slots, struct error *err);
void expert_slots_release(struct expert_slots *s);

/* The slot of an expert, or -1. */
int32_t expert_slots_find(const struct expert_slots *s, size_t layer, size_t expert);

/* The expert is now in `slot`, as the last one used; what was there has none. If it had another slot, that
 * one is empty now. */
void expert_slots_put(struct expert_slots *s, size_t slot, size_t layer, size_t expert);

/* The expert was used. Without a slot: nothing. */
void expert_slots_touch(struct expert_slots *s, size_t layer, size_t expert);

/* The first n slots to go, the first first; returns how many there are. */
size_t expert_slots_victims(const struct expert_slots *s, int32_t *out, size_t n);

#endif
