/* read_ahead.c - see read_ahead.h. */
#include "offload/read_ahead.h"

#include "base/file_memory.h"

static bool is_pageable(const struct expert_home *home, size_t layer)
{
    return layer < home->n_layers && expert_home_is_pageable(home, layer);
}

static void ask(const struct expert_home *home, size_t layer, int32_t expert)
{
    if (expert >= 0 && (size_t)expert < home->n_experts) {
        memory_will_need(home->blocks[layer] + (size_t)expert * home->block.n_bytes,
                         home->block.n_bytes);
    }
}

void read_ahead_experts(const struct expert_home *home, size_t layer, const int32_t *idx, size_t n)
{
    for (size_t i = 0; is_pageable(home, layer) && i < n; i++) {
        size_t before = 0;

        while (before < i && idx[before] != idx[i]) {
            before++;
        }
        if (before == i) {
            ask(home, layer, idx[i]);
        }
    }
}

static bool has_slot(const struct expert_home *home, size_t layer, size_t expert)
{
    return home->ops->slot_of(home->ctx, layer, expert) >= 0;
}

static size_t count_absent(const struct expert_home *home, size_t layer)
{
    size_t n = 0;

    for (size_t e = 0; e < home->n_experts; e++) {
        n += !has_slot(home, layer, e);
    }
    return n;
}

void read_ahead_stream(const struct expert_home *home, size_t layer, const int32_t *experts,
                       size_t n)
{
    size_t next = layer + 1, n_next = 0;

    for (size_t i = 0; is_pageable(home, layer) && i < n; i++) {
        ask(home, layer, experts[i]);
    }
    if (!is_pageable(home, next) || n < count_absent(home, layer)) {
        return;
    }
    for (size_t e = 0; e < home->n_experts && n_next < READ_AHEAD_NEXT; e++) {
        if (!has_slot(home, next, e)) {
            ask(home, next, (int32_t)e);
            n_next++;
        }
    }
}
