/* expert_slots.c - see expert_slots.h. */
#include "offload/expert_slots.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

enum status expert_slots_init(struct expert_slots *s, size_t n_layers, size_t n_experts,
                              size_t n_slots, struct error *err)
{
    size_t n;

    *s = (struct expert_slots){0};
    if (n_layers > EXPERT_SLOTS_LAYERS_MAX || n_experts > EXPERT_SLOTS_EXPERTS_MAX ||
        n_slots > INT32_MAX || !size_mul(&n, n_layers, n_experts)) {
        return error_set(err, ERR_LIMIT, "%zu slots for %zu layers of %zu experts", n_slots,
                         n_layers, n_experts);
    }
    s->slot_of = malloc((n + 1) * sizeof *s->slot_of);
    s->heat = calloc(n + 1, sizeof *s->heat);
    s->slot = malloc((n_slots + 1) * sizeof *s->slot);
    if (!s->slot_of || !s->heat || !s->slot) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a table of %zu experts", n);
    }
    s->n_layers = n_layers;
    s->n_experts = n_experts;
    s->n_slots = n_slots;
    s->use = 1;
    memset(s->slot_of, 0xff, n * sizeof *s->slot_of);
    memset(s->slot, 0xff, n_slots * sizeof *s->slot);
    return OK;
}

void expert_slots_release(struct expert_slots *s)
{
    free(s->slot_of);
    free(s->heat);
    free(s->slot);
    *s = (struct expert_slots){0};
}

int32_t expert_slots_find(const struct expert_slots *s, size_t layer, size_t expert)
{
    assert(layer < s->n_layers && expert < s->n_experts);
    return s->slot_of[layer * s->n_experts + expert];
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
    if (before == i) {
        return;
    }
    if (before >= 0) {
        empty(s, before);
    }
    empty(s, i);
    s->slot[i].layer = (int16_t)layer;
    s->slot[i].expert = (int16_t)expert;
    s->slot_of[layer * s->n_experts + expert] = i;
    s->n_held++;
}

/* --- heat --- */

void expert_slots_step(struct expert_slots *s)
{
    enum { HALVES_MAX = 32 };

    s->use = exp2((double)++s->step / EXPERT_HEAT_STEPS);
    if (s->step == HALVES_MAX * EXPERT_HEAT_STEPS) { /* all again in small numbers; exact */
        for (size_t i = 0; i < s->n_layers * s->n_experts; i++) {
            s->heat[i] = ldexp(s->heat[i], -HALVES_MAX);
        }
        s->step = 0;
        s->use = 1;
    }
}

void expert_slots_use(struct expert_slots *s, size_t layer, size_t expert)
{
    assert(layer < s->n_layers && expert < s->n_experts);
    s->heat[layer * s->n_experts + expert] += s->use;
}

static double heat_of(const struct expert_slots *s, int32_t i)
{
    const struct expert_slot *e = &s->slot[i];

    return e->layer < 0 ? -1 : s->heat[(size_t)e->layer * s->n_experts + (size_t)e->expert];
}

double expert_slots_heat(const struct expert_slots *s, size_t layer, size_t expert)
{
    assert(layer < s->n_layers && expert < s->n_experts);
    return s->heat[layer * s->n_experts + expert] / s->use;
}

double expert_slots_slot_heat(const struct expert_slots *s, size_t slot)
{
    assert(slot < s->n_slots);
    return heat_of(s, (int32_t)slot) / s->use;
}

/* Slot a stays longer than slot b. */
static bool stays_longer(const struct expert_slots *s, int32_t a, int32_t b)
{
    double x = heat_of(s, a), y = heat_of(s, b);

    return x > y || (!(x < y) && a > b);
}

/* Moves the entry at i down to where it belongs in a heap of n, which has the slot that stays longest on top. */
static void sift(const struct expert_slots *s, int32_t *heap, size_t n, size_t i)
{
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        int32_t moved = heap[i];

        if (child + 1 < n && stays_longer(s, heap[child + 1], heap[child])) {
            child++;
        }
        if (!stays_longer(s, heap[child], moved)) {
            return;
        }
        heap[i] = heap[child];
        heap[child] = moved;
    }
}

size_t expert_slots_victims(const struct expert_slots *s, int32_t *out, size_t n)
{
    n = size_min(n, s->n_slots);
    if (n == 0) {
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        out[i] = (int32_t)i;
    }
    for (size_t i = n / 2; i > 0; i--) {
        sift(s, out, n, i - 1);
    }
    for (size_t i = n; i < s->n_slots; i++) { /* the heap keeps the n that go first */
        if (stays_longer(s, out[0], (int32_t)i)) {
            out[0] = (int32_t)i;
            sift(s, out, n, 0);
        }
    }
    for (size_t end = n; end > 1; end--) {
        int32_t last = out[0];

        out[0] = out[end - 1];
        out[end - 1] = last;
        sift(s, out, end - 1, 0);
    }
    return n;
}
