/* expert_slots.c - see expert_slots.h. */
#include "offload/expert_slots.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

enum status expert_slots_init(struct expert_slots *s, size_t n_layers, size_t n_experts,
                              size_t n_slots, struct error *err)
{
    size_t n;

    *s = (struct expert_slots){.newest = -1, .oldest = -1};
    if (n_layers > EXPERT_SLOTS_LAYERS_MAX || n_experts > EXPERT_SLOTS_EXPERTS_MAX ||
        n_slots > INT32_MAX || !size_mul(&n, n_layers, n_experts)) {
        return error_set(err, ERR_LIMIT, "%zu slots for %zu layers of %zu experts", n_slots,
                         n_layers, n_experts);
    }
    s->slot_of = malloc((n + 1) * sizeof *s->slot_of);
    s->slot = calloc(n_slots + 1, sizeof *s->slot);
    if (!s->slot_of || !s->slot) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a table of %zu experts", n);
    }
    s->n_layers = n_layers;
    s->n_experts = n_experts;
    s->n_slots = n_slots;
    memset(s->slot_of, 0xff, n * sizeof *s->slot_of);
    for (size_t i = 0; i < n_slots; i++) {
        s->slot[i] = (struct expert_slot){.layer = -1,
                                          .expert = -1,
                                          .newer = i + 1 < n_slots ? (int32_t)i + 1 : -1,
                                          .older = (int32_t)i - 1};
    }
    s->oldest = n_slots > 0 ? 0 : -1;
    s->newest = (int32_t)n_slots - 1;
    return OK;
}

void expert_slots_release(struct expert_slots *s)
{
    free(s->slot_of);
    free(s->slot);
    *s = (struct expert_slots){.newest = -1, .oldest = -1};
}

int32_t expert_slots_find(const struct expert_slots *s, size_t layer, size_t expert)
{
    assert(layer < s->n_layers && expert < s->n_experts);
    return s->slot_of[layer * s->n_experts + expert];
}

static void unlink_slot(struct expert_slots *s, int32_t i)
{
    const struct expert_slot *e = &s->slot[i];

    if (e->newer >= 0) {
        s->slot[e->newer].older = e->older;
    } else {
        s->newest = e->older;
    }
    if (e->older >= 0) {
        s->slot[e->older].newer = e->newer;
    } else {
        s->oldest = e->newer;
    }
}

static void to_front(struct expert_slots *s, int32_t i)
{
    if (s->newest == i) {
        return;
    }
    unlink_slot(s, i);
    s->slot[i].newer = -1;
    s->slot[i].older = s->newest;
    s->slot[s->newest].newer = i; /* there is another one, or i would be the newest */
    s->newest = i;
}

static void to_back(struct expert_slots *s, int32_t i)
{
    if (s->oldest == i) {
        return;
    }
    unlink_slot(s, i);
    s->slot[i].older = -1;
    s->slot[i].newer = s->oldest;
    s->slot[s->oldest].older = i;
    s->oldest = i;
}

/* What the slot holds has none any more. */
static void empty(struct expert_slots *s, int32_t i)
{
    struct expert_slot *e = &s->slot[i];

    if (e->layer >= 0) {
        s->slot_of[(size_t)e->layer * s->n_experts + (size_t)e->expert] = -1;
        e->layer = e->expert = -1;
        s->n_held--;
    }
}

void expert_slots_put(struct expert_slots *s, size_t slot, size_t layer, size_t expert)
{
    int32_t before = expert_slots_find(s, layer, expert), i = (int32_t)slot;

    assert(slot < s->n_slots);
    if (before != i) {
        if (before >= 0) {
            empty(s, before);
            to_back(s, before);
        }
        empty(s, i);
        s->slot[i].layer = (int16_t)layer;
        s->slot[i].expert = (int16_t)expert;
        s->slot_of[layer * s->n_experts + expert] = i;
        s->n_held++;
    }
    to_front(s, i);
}

void expert_slots_touch(struct expert_slots *s, size_t layer, size_t expert)
{
    int32_t i = expert_slots_find(s, layer, expert);

    if (i >= 0) {
        to_front(s, i);
    }
}

size_t expert_slots_victims(const struct expert_slots *s, int32_t *out, size_t n)
{
    size_t found = 0;

    for (int32_t i = s->oldest; i >= 0 && found < n; i = s->slot[i].newer) {
        out[found++] = i;
    }
    return found;
}
