/* offload_testing.c - see offload_testing.h. */
#include "offload/offload_testing.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu_backend.h"
#include "base/arena.h"
#include "base/clock.h"
#include "base/half.h"

static const uint64_t ANSWER_WAIT_NS = 20 * (uint64_t)1000000000;

uint32_t test_random(uint32_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 17;
    *seed ^= *seed << 5;
    return *seed;
}

void test_experts_make(struct test_experts *t, size_t n_layers, size_t n_experts, size_t hidden,
                       size_t width)
{
    const struct expert_shape shape = {.hidden = hidden,
                                       .width = width,
                                       .kind = WEIGHT_INT4,
                                       .scales = DTYPE_BF16,
                                       .group = hidden % 128 == 0 ? 128 : 32,
                                       .down_group = width % 128 == 0 ? 128 : 32};
    uint32_t seed = 77;
    size_t layer_bytes;

    if (!expert_block_init(&t->block, &shape)) {
        abort();
    }
    layer_bytes = n_experts * t->block.n_bytes;
    t->n_layers = n_layers;
    t->n_experts = n_experts;
    t->memory = huge_new(n_layers * layer_bytes);
    if (!t->memory) {
        abort();
    }
    for (size_t i = 0; i + 4 <= n_layers * layer_bytes; i += 4) {
        uint32_t word = test_random(&seed);

        memcpy(t->memory + i, &word, 4);
    }
    for (size_t i = 0; i < n_layers * n_experts; i++) { /* scales must be sane */
        uint8_t *block = t->memory + i * t->block.n_bytes;

        for (size_t at = t->block.part[EXPERT_GATE].scales; at + 2 <= t->block.n_bytes; at += 2) {
            dtype_store(DTYPE_BF16, block + at, 0,
                        0.005f + (float)(test_random(&seed) % 64) / 6400.0f);
        }
    }
    for (size_t l = 0; l < n_layers; l++) {
        t->blocks[l] = t->memory + l * layer_bytes;
    }
}

void test_experts_release(struct test_experts *t)
{
    free(t->memory);
}

struct offload_shape test_experts_shape(const struct test_experts *t, size_t top_k)
{
    return (struct offload_shape){.block = t->block,
                                  .n_layers = t->n_layers,
                                  .n_experts = t->n_experts,
                                  .top_k = top_k,
                                  .hidden = t->block.shape.hidden,
                                  .blocks = t->blocks,
                                  .activations = DTYPE_F32};
}

static struct operand floats(float *data, size_t cols)
{
    return (struct operand){.data = data, .dtype = DTYPE_F32, .round = DTYPE_F32, .cols = cols};
}

enum status test_experts_sum(const struct test_experts *t, struct backend *be, size_t layer,
                             size_t n_rows, size_t top_k, int32_t *idx, float *prob, float *x,
                             float *y)
{
    const struct expert_shape *shape = &t->block.shape;
    struct expert_weights experts[CARD_EXPERTS_MAX];
    struct op op = {.kind = OP_EXPERTS, .name = "reference"};
    struct step step = {.n_rows = n_rows};
    enum status rc;

    for (size_t e = 0; e < t->n_experts; e++) {
        experts[e] = expert_block_view(&t->block, t->blocks[layer] + e * t->block.n_bytes);
    }
    op.u.experts = (struct op_experts){.in = floats(x, shape->hidden),
                                       .idx = {.data = idx, .dtype = DTYPE_I32, .cols = top_k},
                                       .prob = floats(prob, top_k),
                                       .out = floats(y, shape->hidden),
                                       .experts = experts,
                                       .n_experts = t->n_experts,
                                       .top_k = top_k,
                                       .width = shape->width};
    rc = be->ops->check(be, &op, NULL);
    rc = rc == OK ? be->ops->prepare(be, &op, 1, n_rows, 1, NULL) : rc;
    return rc == OK ? be->ops->run(be, &op, &step, NULL, NULL) : rc;
}

struct backend *test_cpu_new(size_t n_threads)
{
    struct cpu_backend_options o = {.n_threads = n_threads, .activations = CPU_ACTIVATIONS_F32};
    struct backend *be;

    if (cpu_backend_new(&be, &o, NULL) != OK) {
        abort();
    }
    return be;
}

/* --- the device --- */

static void close_home(struct card *c)
{
    for (size_t l = 0; c->home && l < c->home->n_layers; l++) {
        free(c->mail[l].x);
        free(c->mail[l].y);
    }
    memset(c->mail, 0, sizeof c->mail);
    c->home = NULL;
}

static enum status experts_open(struct backend *be, struct expert_home *home, struct error *err)
{
    struct card *c = (struct card *)be;

    close_home(c);
    if (!home) {
        return OK;
    }
    if (c->refuses_open) {
        return error_set(err, ERR_NO_MEMORY, "no room for slots");
    }
    if (home->n_layers > CARD_LAYERS_MAX || home->n_slots > CARD_SLOTS_MAX) {
        return error_set(err, ERR_LIMIT, "too large for a stand-in");
    }
    c->home = home;
    for (size_t l = 0; l < home->n_layers; l++) {
        c->mail[l].x = aligned_new(EXPERT_HOME_ROWS * home->hidden * sizeof(float));
        c->mail[l].y = aligned_new(EXPERT_HOME_ROWS * home->hidden * sizeof(float));
    }
    home->mail = c->mail;
    for (size_t i = 0; i < home->n_slots; i++) {
        c->slots[i] = (struct card_slot){-1, -1, NULL};
    }
    return OK;
}

int card_find(const struct card *c, size_t layer, size_t expert)
{
    for (size_t i = 0; i < c->home->n_slots; i++) {
        if (c->slots[i].layer == (int)layer && c->slots[i].expert == (int)expert) {
            return (int)i;
        }
    }
    return -1;
}

static void set_slot(struct card *c, size_t slot, size_t layer, size_t expert)
{
    c->slots[slot] = (struct card_slot){(int)layer, (int)expert,
                                        c->home->blocks[layer] + expert * c->home->block.n_bytes};
}

static enum status expert_insert(struct backend *be, size_t layer, size_t expert, size_t slot,
                                 struct error *err)
{
    struct card *c = (struct card *)be;

    if (++c->n_inserted == c->fail_insert_at) {
        return error_set(err, ERR_DEVICE, "a copy failed");
    }
    set_slot(c, slot, layer, expert);
    return OK;
}

static const struct backend_ops card_ops = {
    .name = "stand-in", .experts_open = experts_open, .expert_insert = expert_insert};

void card_init(struct card *c)
{
    memset(c, 0, sizeof *c);
    c->base.ops = &card_ops;
}

void card_release(struct card *c)
{
    close_home(c);
}

/* --- a step --- */

static void busy_us(double us)
{
    uint64_t start = clock_now_ns();

    while (us > 0 && (double)(clock_now_ns() - start) < us * 1e3) {
    }
}

static bool is_chosen(const int32_t *idx, size_t n, int layer_expert)
{
    for (size_t i = 0; i < n; i++) {
        if (idx[i] == layer_expert) {
            return true;
        }
    }
    return false;
}

/* The next victim that the layer does not want itself, or -1. */
static int32_t take_victim(struct card *c, struct card_step *s, size_t layer, const int32_t *idx,
                           size_t n_pairs)
{
    while (s->report.n_victims_used < (size_t)c->orders.n_victims) {
        int32_t slot = c->orders.victim[s->report.n_victims_used++];

        if (c->slots[slot].layer != (int)layer || !is_chosen(idx, n_pairs, c->slots[slot].expert)) {
            return slot;
        }
    }
    return -1;
}

/* Fetches the first misses; box idx keeps what is the CPU's. Returns how many were fetched. */
static size_t resolve(struct card *c, struct card_step *s, size_t layer, const int32_t *idx,
                      size_t n_pairs)
{
    struct expert_report *r = &s->report;
    struct expert_mail *box = &c->mail[layer];
    int32_t missing[EXPERT_HOME_PAIRS];
    size_t n_missing = 0, n_fetched = 0, n_cpu = 0, n_wanted;

    for (size_t i = 0; i < n_pairs; i++) {
        if (is_chosen(idx, i, idx[i])) {
            continue;
        }
        if (card_find(c, layer, (size_t)idx[i]) >= 0) {
            r->n_hits++;
        } else {
            missing[n_missing++] = idx[i];
        }
    }
    n_wanted = expert_home_is_pageable(c->home, layer) ? 0 : c->orders.n_fetch[n_missing];
    for (size_t i = 0; i < n_missing; i++) {
        int32_t slot = i < n_wanted ? take_victim(c, s, layer, idx, n_pairs) : -1;

        if (slot >= 0) {
            set_slot(c, (size_t)slot, layer, (size_t)missing[i]);
            s->insertions[r->n_insertions++] =
                (struct expert_insertion){(int16_t)layer, (int16_t)missing[i], slot, 0};
            n_fetched++;
        } else {
            missing[n_cpu++] = missing[i];
        }
    }
    if (expert_home_is_pageable(c->home, layer) && n_cpu > 0 && !c->home->has_cpu) {
        abort(); /* a device cannot read them in place */
    }
    for (size_t i = 0; i < n_pairs; i++) {
        box->idx[i] = is_chosen(missing, n_cpu, idx[i]) && c->home->has_cpu ? idx[i] : -1;
    }
    r->n_fetched += n_fetched;
    *(c->home->has_cpu ? &r->n_cpu : &r->n_in_place) += n_cpu;
    box->n_rows = n_cpu > 0 && c->home->has_cpu ? (int32_t)(n_pairs / c->home->top_k) : 0;
    return n_fetched;
}

static bool wait_answer(const struct expert_mail *box, uint32_t ticket)
{
    uint64_t start = clock_now_ns();

    while (__atomic_load_n(&box->answered, __ATOMIC_ACQUIRE) != ticket) {
        if (clock_now_ns() - start > ANSWER_WAIT_NS) {
            return false;
        }
        sched_yield();
    }
    return true;
}

static bool run_layer(struct card *c, struct card_step *s, size_t layer, size_t n_rows)
{
    const struct expert_home *h = c->home;
    struct expert_mail *box = &c->mail[layer];
    size_t n_pairs = n_rows * h->top_k, n_x = n_rows * h->hidden, n_fetched;

    n_fetched = resolve(c, s, layer, s->idx + layer * n_pairs, n_pairs);
    memset(s->y + layer * n_x, 0, n_x * sizeof *s->y);
    if (!h->has_cpu) {
        busy_us(c->fetch_us * (double)n_fetched);
        return true;
    }
    memcpy(box->prob, s->prob + layer * n_pairs, n_pairs * sizeof *box->prob);
    memcpy(box->x, s->x + layer * n_x, n_x * sizeof *box->x);
    __atomic_store_n(&box->posted, c->orders.ticket, __ATOMIC_RELEASE);
    busy_us(c->fetch_us * (double)n_fetched); /* while the CPU computes */
    if (box->n_rows == 0) {
        return true;
    }
    if (!wait_answer(box, c->orders.ticket)) {
        return false;
    }
    memcpy(s->y + layer * n_x, box->y, n_x * sizeof *s->y);
    return true;
}

bool card_run(struct card *c, struct card_step *s, size_t n_rows)
{
    const struct expert_home *h = c->home;
    bool is_good = true;

    s->report =
        (struct expert_report){.n_rows = n_rows, .idx = s->idx, .insertions = s->insertions};
    memset(&c->orders, 0xff, sizeof c->orders); /* what is not filled in shows */
    h->ops->step_begin(h->ctx, &c->orders, n_rows);
    s->report.ticket = c->orders.ticket;
    for (size_t l = 0; is_good && l < h->n_layers; l++) {
        busy_us(c->layer_us);
        is_good = run_layer(c, s, l, n_rows);
    }
    h->ops->step_end(h->ctx, &s->report);
    return is_good;
}
