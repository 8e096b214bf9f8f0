/* cuda_offload_testing.c - see cuda_offload_testing.h. */
#include "backend/cuda/cuda_offload_testing.h"

#include <sched.h>

#include "backend/cuda/cuda_private.h"
#include "backend/cuda/emulator/emulator.h"
#include "base/arena.h"

static const char *const kind_names[] = {"symmetric", "zeros", "act-order", "wide", "wide zeros"};

/* ---- weights ---- */

static void matrix_fill(struct world *w, uint8_t *base, enum expert_part part, size_t n_out,
                        size_t n_in)
{
    size_t groups = n_in / 128, n = n_out * groups;
    uint8_t *values = base + w->block.part[part].values;
    float size = 1 / (4 * sqrtf((float)n_in));

    for (size_t i = 0; i < n_out * n_in / 2; i++) {
        values[i] = (uint8_t)(test_next(&w->seed) >> 40);
    }
    for (size_t i = 0; i < n; i++) {
        dtype_store(w->block.shape.scales, base + w->block.part[part].scales, i,
                    size * (1.5f + test_float(&w->seed)));
    }
    for (size_t i = 0; i < n && w->block.shape.has_zeros; i++) {
        base[w->block.part[part].zeros + i] = (uint8_t)(5 + (test_next(&w->seed) >> 40) % 7);
    }
    if (w->block.shape.has_perms) {
        int32_t *perm = (int32_t *)(void *)(base + w->block.part[part].perm);

        for (size_t i = 0; i < n_in; i++) {
            size_t j = (size_t)(test_next(&w->seed) >> 33) % (i + 1);

            perm[i] = perm[j];
            perm[j] = (int32_t)i;
        }
    }
}

static size_t width_of(enum weights_kind kind)
{
    return kind == WIDE || kind == WIDE_ZEROS ? ONE_WIDTH : 128;
}

static void blocks_make(struct world *w)
{
    bool has_zeros = w->is.kind == ZEROS || w->is.kind == WIDE_ZEROS;
    struct expert_shape shape = {.hidden = HIDDEN,
                                 .width = width_of(w->is.kind),
                                 .kind = WEIGHT_INT4,
                                 .scales = has_zeros ? DTYPE_F16 : DTYPE_BF16,
                                 .group = 128,
                                 .down_group = 128,
                                 .has_zeros = has_zeros,
                                 .has_perms = w->is.kind == PERMS};

    assert_true(expert_block_init(&w->block, &shape));
    for (size_t l = 0; l < LAYERS; l++) {
        w->blocks[l] = w->pageable[l]
                           ? aligned_new(N_EXPERTS * w->block.n_bytes)
                           : w->small.be->ops->host_new(w->small.be, N_EXPERTS * w->block.n_bytes);
        assert_non_null(w->blocks[l]);
        for (size_t e = 0; e < N_EXPERTS; e++) {
            uint8_t *base = w->blocks[l] + e * w->block.n_bytes;

            matrix_fill(w, base, EXPERT_GATE, shape.width, HIDDEN);
            matrix_fill(w, base, EXPERT_UP, shape.width, HIDDEN);
            matrix_fill(w, base, EXPERT_DOWN, HIDDEN, shape.width);
            w->cpu_experts[l][e] = w->small.experts[l][e] = expert_block_view(&w->block, base);
        }
    }
}

static void *on_card(struct card *c, const void *host, size_t n_bytes)
{
    void *data = c->be->ops->buffer_new(c->be, n_bytes);

    assert_non_null(data);
    assert_true(c->n_buffers < BUFFERS_MAX);
    c->buffers[c->n_buffers++] = data;
    if (host) {
        c->be->ops->write(c->be, data, host, n_bytes);
    }
    return data;
}

/* Random floats on the card, the same for both as the seed is. */
static void *floats(struct card *c, size_t n, float size, float from, uint64_t *seed)
{
    float *host = test_floats(n, size, seed);
    void *data;

    for (size_t i = 0; i < n; i++) {
        host[i] += from;
    }
    data = on_card(c, host, n * sizeof *host);
    free(host);
    return data;
}

static struct weight dense(struct card *c, size_t n_out, size_t n_in, float size, uint64_t *seed)
{
    return (struct weight){.kind = WEIGHT_DENSE,
                           .dtype = DTYPE_F32,
                           .n_out = n_out,
                           .n_in = n_in,
                           .data = floats(c, n_out * n_in, size / sqrtf((float)n_in), 0, seed)};
}

/* ---- plan ---- */

static struct operand buffer(struct card *c, size_t cols, enum dtype round)
{
    return test_operand(on_card(c, NULL, ROWS_MAX * cols * sizeof(float)), cols, round);
}

static void tail_make(struct card *c, struct world *w, size_t l, struct operand x,
                      struct operand prob, uint64_t *seed)
{
    enum dtype round = w->is.round;
    size_t width = width_of(w->is.kind);
    struct operand u = buffer(c, HIDDEN, round), gate = buffer(c, width, round);
    struct operand up = buffer(c, width, round), mid = buffer(c, width, round);
    struct operand shared = buffer(c, HIDDEN, DTYPE_F32), share = buffer(c, 1, DTYPE_F32);
    struct operand routed = buffer(c, HIDDEN, DTYPE_F32);
    struct operand idx = {.dtype = DTYPE_I32, .round = DTYPE_I32, .cols = TOP_K};
    struct op *ops = &c->ops[l * TAIL];

    c->u[l] = u.data;
    c->idx[l] = idx.data = on_card(c, NULL, ROWS_MAX * TOP_K * sizeof(int32_t));
    ops[NORM] =
        (struct op){.kind = OP_NORM, .u.norm = {x, u, floats(c, HIDDEN, 0.5f, 1, seed), 1e-6f}};
    ops[ROUTE] = (struct op){
        .kind = OP_ROUTE,
        .u.route = {u, dense(c, N_EXPERTS, HIDDEN, 4, seed), idx, prob, N_EXPERTS, TOP_K, true}};
    ops[SHARED_IN] = (struct op){.kind = OP_LINEAR,
                                 .u.linear = {.in = u,
                                              .n_parts = 3,
                                              .part = {{dense(c, width, HIDDEN, 2, seed), gate, 0},
                                                       {dense(c, width, HIDDEN, 2, seed), up, 0},
                                                       {dense(c, 1, HIDDEN, 2, seed), share, 0}}}};
    ops[SWIGLU] = (struct op){.kind = OP_SWIGLU, .u.swiglu = {gate, up, mid}};
    ops[SHARED_DOWN] = (struct op){
        .kind = OP_LINEAR,
        .u.linear = {
            .in = mid, .n_parts = 1, .part = {{dense(c, HIDDEN, width, 2, seed), shared, 0}}}};
    ops[EXPERTS] = (struct op){.kind = OP_EXPERTS,
                               .u.experts = {.in = u,
                                             .idx = idx,
                                             .prob = prob,
                                             .out = routed,
                                             .experts = c->experts[l],
                                             .n_experts = N_EXPERTS,
                                             .top_k = TOP_K,
                                             .width = width,
                                             .home = c == &w->small ? &w->home : NULL,
                                             .home_layer = l}};
    ops[ADD] = (struct op){.kind = OP_ADD_SHARED, .u.add_shared = {x, routed, shared, share}};
    ops[CHECK] = (struct op){.kind = OP_CHECK, .u.check = {x}};
    for (size_t i = 0; i < TAIL; i++) {
        ops[i].layer = (int16_t)l;
        ops[i].name = "tail";
    }
}

static void plan_make(struct card *c, struct world *w)
{
    struct operand x = buffer(c, HIDDEN, DTYPE_F32), prob = buffer(c, TOP_K, DTYPE_F32);
    uint64_t seed = 77; /* both cards have the same weights */
    struct error err;

    c->x = x.data;
    c->prob = prob.data;
    for (size_t l = 0; l < LAYERS; l++) {
        tail_make(c, w, l, x, prob, &seed);
    }
    for (size_t i = 0; i < LAYERS * TAIL; i++) {
        if (c->be->ops->check(c->be, &c->ops[i], &err) != OK) {
            fail_msg("%s", err.text);
        }
    }
    if (c->be->ops->prepare(c->be, c->ops, LAYERS * TAIL, ROWS_MAX, 1024, &err) != OK) {
        fail_msg("%s", err.text);
    }
}

static void card_open(struct card *c, const struct setup *is, enum late_policy late)
{
    struct cuda_backend_options o = {.no_graphs = is->no_graphs, .no_fusions = is->no_fusions};
    struct error err;
    char why[256];

    o.driver = cuda_is_there(why, sizeof why) ? NULL
               : late == LATE_NOBODY          ? cuda_emulator_driver()
                                              : late_driver(late, 3);
    if (cuda_backend_new(&c->be, &o, &err) != OK) {
        fail_msg("%s", err.text);
    }
}

static void card_close(struct card *c)
{
    for (size_t i = 0; i < c->n_buffers; i++) {
        c->be->ops->buffer_free(c->be, c->buffers[i]);
    }
    c->be->ops->free(c->be);
}

/* ---- the model of what the card does ---- */

static bool is_chosen(const int32_t *idx, size_t n, int32_t expert)
{
    for (size_t i = 0; i < n; i++) {
        if (idx[i] == expert) {
            return true;
        }
    }
    return false;
}

/* The slots that were used least lately come first. */
static void step_begin(void *ctx, struct expert_orders *orders, size_t n_rows)
{
    struct world *w = ctx;
    bool taken[SLOTS_MAX] = {false};

    (void)n_rows;
    orders->ticket = ++w->ticket;
    orders->n_next = (int32_t)w->is.n_next;
    for (size_t m = 0; m <= EXPERT_HOME_PAIRS; m++) {
        orders->n_fetch[m] = (uint8_t)(m * w->is.fetch_of / 4);
    }
    while ((size_t)orders->n_victims < w->is.victims_max &&
           (size_t)orders->n_victims < w->is.n_slots) {
        size_t best = SLOTS_MAX;

        for (size_t s = 0; s < w->is.n_slots; s++) {
            if (!taken[s] && (best == SLOTS_MAX || w->owner[s].slot < w->owner[best].slot)) {
                best = s;
            }
        }
        taken[best] = true;
        orders->victim[orders->n_victims++] = (int32_t)best;
    }
    w->orders = *orders;
    __atomic_store_n(&w->open_ticket, orders->ticket, __ATOMIC_RELEASE);
}

/* The next victim for an expert of layer l: not one that is wanted there, or by the other list in the layer
 * before. -1: there is none left. */
static int32_t take_victim(const struct world *w, struct account *a, size_t l,
                           const int32_t *wanted, const int32_t *before, size_t n)
{
    while (a->n_victims_used < (size_t)w->orders.n_victims) {
        int32_t slot = w->orders.victim[a->n_victims_used++];
        const struct expert_insertion *o = &w->owner[slot];

        if (!(o->layer == (int16_t)l && is_chosen(wanted, n, o->expert)) &&
            !(before && o->layer == (int16_t)l - 1 && is_chosen(before, n, o->expert))) {
            return slot;
        }
    }
    return -1;
}

static void expect_insertion(struct world *w, struct account *a, size_t l, int32_t expert,
                             int32_t slot, bool is_ahead)
{
    struct expert_insertion *o = &w->owner[slot];

    if (o->layer >= 0) {
        w->slot_of[o->layer][o->expert] = -1;
    }
    *o = (struct expert_insertion){(int16_t)l, (int16_t)expert, w->clock, is_ahead};
    w->slot_of[l][expert] = slot;
    a->insertions[a->n_insertions++] =
        (struct expert_insertion){(int16_t)l, (int16_t)expert, slot, is_ahead};
}

static void expect_layer(struct world *w, struct account *a, size_t l, const int32_t *idx, size_t n)
{
    size_t n_missing = 0, n_wanted, n_got = 0;
    int32_t missing[EXPERT_HOME_PAIRS];

    w->clock++;
    for (size_t i = 0; i < n; i++) {
        int32_t slot = w->slot_of[l][idx[i]];

        if (is_chosen(idx, i, idx[i])) {
            continue;
        }
        a->n_hits += slot >= 0;
        if (slot >= 0) {
            a->n_next_used += w->owner[slot].is_ahead && w->owner[slot].slot == w->clock - 1;
            w->owner[slot].slot = w->clock;
        } else {
            missing[n_missing++] = idx[i];
        }
    }
    n_wanted = w->pageable[l] ? 0 : w->orders.n_fetch[n_missing];
    while (n_got < n_wanted) {
        int32_t slot = take_victim(w, a, l, idx, NULL, n);

        if (slot < 0) {
            break;
        }
        expect_insertion(w, a, l, missing[n_got++], slot, false);
    }
    a->n_fetched += n_got;
    *(w->is.has_cpu ? &a->n_cpu : &a->n_in_place) += n_missing - n_got;
}

/* The TOP_K largest logits of layer l's router for a row, in order. */
static void choose(struct world *w, size_t l, const float *u, int32_t *idx)
{
    static float router[N_EXPERTS * HIDDEN];
    const struct op_route *r = &w->resident.ops[l * TAIL + ROUTE].u.route;
    double logit[N_EXPERTS] = {0};

    w->resident.be->ops->read(w->resident.be, router, r->router.data, sizeof router);
    for (size_t i = 0; i < N_EXPERTS * HIDDEN; i++) {
        logit[i / HIDDEN] += (double)router[i] * (double)u[i % HIDDEN];
    }
    for (size_t k = 0; k < TOP_K; k++) {
        size_t best = 0;

        for (size_t e = 1; e < N_EXPERTS; e++) {
            best = logit[e] > logit[best] ? e : best;
        }
        idx[k] = (int32_t)best;
        logit[best] = (double)-INFINITY;
    }
}

/* What is fetched for layer l before it is asked. idx: the choices of the layer before. */
static void expect_ahead(struct world *w, struct account *a, size_t l, const int32_t *idx,
                         size_t n_rows)
{
    static float u[EXPERT_HOME_ROWS * HIDDEN];
    size_t n = n_rows * TOP_K, n_got = 0;
    int32_t by_row[EXPERT_HOME_PAIRS], predicted[EXPERT_HOME_PAIRS];

    if (w->is.is_forced) {
        memcpy(by_row, w->forced[1] + l * n, n * sizeof *by_row);
    } else {
        w->resident.be->ops->read(w->resident.be, u, w->resident.u[l - 1],
                                  n_rows * HIDDEN * sizeof *u);
        for (size_t r = 0; r < n_rows; r++) {
            choose(w, l, u + r * HIDDEN, by_row + r * TOP_K);
        }
    }
    for (size_t i = 0; i < n; i++) {
        predicted[i] = by_row[i % n_rows * TOP_K + i / n_rows];
    }
    for (size_t i = 0; i < n && n_got < w->is.n_next; i++) {
        int32_t slot;

        if (w->slot_of[l][predicted[i]] >= 0) {
            continue;
        }
        slot = take_victim(w, a, l, predicted, idx, n);
        if (slot < 0) {
            break;
        }
        expect_insertion(w, a, l, predicted[i], slot, true);
        n_got++;
    }
    a->n_next += n_got;
}

static void step_end(void *ctx, const struct expert_report *r)
{
    struct world *w = ctx;
    struct account want = {0};
    size_t n = r->n_rows * TOP_K;

    assert_int_equal(r->ticket, w->ticket);
    __atomic_store_n(&w->open_ticket, 0, __ATOMIC_RELEASE);
    w->chosen_rows = r->n_rows;
    memcpy(w->chosen, r->idx, LAYERS * n * sizeof *r->idx);
    for (size_t l = 0; l < LAYERS; l++) {
        expect_layer(w, &want, l, r->idx + l * n, n);
        if (w->is.n_next > 0 && l + 1 < LAYERS && !w->pageable[l + 1]) {
            expect_ahead(w, &want, l + 1, r->idx + l * n, r->n_rows);
        }
    }
    assert_int_equal(r->n_next, want.n_next);
    assert_int_equal(r->n_next_used, want.n_next_used);
    assert_int_equal(r->n_hits, want.n_hits);
    assert_int_equal(r->n_fetched, want.n_fetched);
    assert_int_equal(r->n_cpu, want.n_cpu);
    assert_int_equal(r->n_in_place, want.n_in_place);
    assert_int_equal(r->n_victims_used, want.n_victims_used);
    assert_int_equal(r->n_insertions, want.n_insertions);
    assert_memory_equal(r->insertions, want.insertions,
                        want.n_insertions * sizeof *want.insertions);
    w->did = want;
    w->n_next += want.n_next;
    w->n_next_used += want.n_next_used;
    w->n_asked += want.n_cpu;
    w->n_reports++;
}

static int32_t slot_of(void *ctx, size_t layer, size_t expert)
{
    return ((struct world *)ctx)->slot_of[layer][expert];
}

static void streamed(void *ctx, size_t layer, size_t n_rows, const int32_t *idx, size_t n)
{
    (void)layer;
    (void)n_rows;
    (void)idx;
    ((struct world *)ctx)->n_streamed += n;
}

static const struct expert_home_ops home_ops = {
    .step_begin = step_begin, .step_end = step_end, .slot_of = slot_of, .streamed = streamed};

/* ---- the thread that answers the mail ---- */

static void answer(struct world *w, size_t l, uint32_t ticket)
{
    struct expert_mail *m = &w->home.mail[l];
    struct op *op = &w->cpu_ops[l];
    size_t n = (size_t)m->n_rows;

    if (n > 0) {
        struct step step = {.n_rows = n};

        op->u.experts.in.data = m->x;
        op->u.experts.idx.data = m->idx;
        op->u.experts.prob.data = m->prob;
        op->u.experts.out.data = m->y;
        test_run(w->cpu, op, &step, NULL);
    }
    __atomic_store_n(&m->answered, ticket, __ATOMIC_RELEASE);
}

static void *serve(void *ctx)
{
    struct world *w = ctx;
    uint32_t done = 0;

    while (!__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE)) {
        uint32_t ticket = __atomic_load_n(&w->open_ticket, __ATOMIC_ACQUIRE);

        for (size_t l = 0; ticket != 0 && ticket != done && l < LAYERS; l++) {
            while (__atomic_load_n(&w->home.mail[l].posted, __ATOMIC_ACQUIRE) != ticket) {
                if (__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE)) {
                    return NULL;
                }
                sched_yield();
            }
            answer(w, l, ticket);
            done = l == LAYERS - 1 ? ticket : done;
        }
        sched_yield();
    }
    return NULL;
}

static void cpu_open(struct world *w)
{
    struct error err;

    w->cpu = test_backend(CPU_ISA_SCALAR, 0);
    for (size_t l = 0; l < LAYERS; l++) {
        struct expert_mail *m = &w->home.mail[l];

        w->cpu_ops[l] = w->small.ops[l * TAIL + EXPERTS];
        w->cpu_ops[l].u.experts.experts = w->cpu_experts[l];
        w->cpu_ops[l].u.experts.in = test_operand(m->x, HIDDEN, w->is.round);
        w->cpu_ops[l].u.experts.idx.data = m->idx;
        w->cpu_ops[l].u.experts.prob.data = m->prob;
        w->cpu_ops[l].u.experts.out.data = m->y;
        if (w->cpu->ops->check(w->cpu, &w->cpu_ops[l], &err) != OK) {
            fail_msg("%s", err.text);
        }
    }
    if (w->cpu->ops->prepare(w->cpu, w->cpu_ops, LAYERS, EXPERT_HOME_ROWS, 1024, &err) != OK) {
        fail_msg("%s", err.text);
    }
}

/* ---- beginning and end ---- */

/* Every third expert, layer after layer, as far as there are slots. */
static void slots_fill(struct world *w)
{
    size_t slot = 0;
    struct error err;

    for (size_t i = 0; i < LAYERS * N_EXPERTS && slot < w->is.n_slots; i += 3, slot++) {
        size_t l = i / N_EXPERTS, e = i % N_EXPERTS;

        if (w->small.be->ops->expert_insert(w->small.be, l, e, slot, &err) != OK) {
            fail_msg("%s", err.text);
        }
        w->slot_of[l][e] = (int32_t)slot;
        w->owner[slot] = (struct expert_insertion){(int16_t)l, (int16_t)e, 0, 0};
    }
}

void world_open(struct world *w, const struct setup *is, bool is_answered)
{
    const bool pageable[LAYERS] = {false};

    world_open_pageable(w, is, is_answered, pageable);
}

void world_open_pageable(struct world *w, const struct setup *is, bool is_answered,
                         const bool pageable[LAYERS])
{
    struct error err;

    memset(w, 0, sizeof *w);
    w->is = *is;
    memcpy(w->pageable, pageable, sizeof w->pageable);
    w->seed = 5;
    card_open(&w->resident, is, LATE_NOBODY);
    card_open(&w->small, is, is->late);
    blocks_make(w);
    for (size_t l = 0; l < LAYERS; l++) {
        uint8_t *copy = on_card(&w->resident, w->blocks[l], N_EXPERTS * w->block.n_bytes);

        for (size_t e = 0; e < N_EXPERTS; e++) {
            w->resident.experts[l][e] = expert_block_view(&w->block, copy + e * w->block.n_bytes);
            w->slot_of[l][e] = -1;
        }
    }
    for (size_t s = 0; s < SLOTS_MAX; s++) {
        w->owner[s] = (struct expert_insertion){-1, -1, -1, 0};
    }
    w->home = (struct expert_home){.block = w->block,
                                   .n_layers = LAYERS,
                                   .n_experts = N_EXPERTS,
                                   .top_k = TOP_K,
                                   .hidden = HIDDEN,
                                   .blocks = (const uint8_t *const *)w->blocks,
                                   .is_pageable = w->pageable,
                                   .n_slots = is->n_slots,
                                   .n_staging = STAGING,
                                   .has_cpu = is->has_cpu,
                                   .looks_ahead = is->n_next > 0,
                                   .ops = &home_ops,
                                   .ctx = w};
    if (w->small.be->ops->experts_open(w->small.be, &w->home, &err) != OK) {
        fail_msg("%s", err.text);
    }
    plan_make(&w->resident, w);
    plan_make(&w->small, w);
    slots_fill(w);
    cpu_open(w);
    if (is_answered) {
        world_answer(w);
    }
}

void world_answer(struct world *w)
{
    w->has_thread = pthread_create(&w->thread, NULL, serve, w) == 0;
    assert_true(w->has_thread);
}

void world_close(struct world *w)
{
    __atomic_store_n(&w->stop, 1, __ATOMIC_RELEASE);
    if (w->has_thread) {
        pthread_join(w->thread, NULL);
    }
    w->cpu->ops->free(w->cpu);
    for (size_t l = 0; l < LAYERS; l++) {
        if (w->pageable[l]) {
            free(w->blocks[l]);
        } else {
            w->small.be->ops->host_free(w->small.be, w->blocks[l]);
        }
    }
    card_close(&w->small);
    card_close(&w->resident);
}

/* ---- steps ---- */

enum status card_step(struct card *c, const float *x, struct test_step *t, bool as_plan,
                      struct error *err)
{
    const struct backend_ops *ops = c->be->ops;
    struct state_pools none = {0};
    enum status rc;

    ops->write(c->be, c->x, x, t->step.n_rows * HIDDEN * sizeof *x);
    rc = ops->begin(c->be, &t->step, err);
    if (rc == OK && as_plan) {
        rc = ops->run_all(c->be, &t->step, &none, err);
    }
    for (size_t i = 0; rc == OK && !as_plan && i < LAYERS * TAIL; i++) {
        rc = ops->run(c->be, &c->ops[i], &t->step, &none, err);
    }
    return rc == OK ? ops->end(c->be, &t->step, err) : rc;
}

void must(enum status rc, const struct error *err)
{
    if (rc != OK) {
        fail_msg("%s", err->text);
    }
}

/* Largest difference beside the size of its row; an element that nearly cancels has its neighbours' error. */
static double error_of(const float *got, const float *want, size_t n_rows)
{
    double worst = 0;

    for (size_t r = 0; r < n_rows; r++) {
        double sum = 0, most = 0;

        for (size_t i = r * HIDDEN; i < (r + 1) * HIDDEN; i++) {
            sum += (double)want[i] * (double)want[i];
            most = fmax(most, fabs((double)got[i] - (double)want[i]));
            most = isfinite(got[i]) ? most : INFINITY;
        }
        worst = fmax(worst, most / (1 + sqrt(sum / HIDDEN)));
    }
    return worst;
}

/* Random choices; three in four predictions are right. */
static void choices_force(struct world *w, size_t n_rows)
{
    for (size_t i = 0; i < LAYERS * n_rows * TOP_K; i += TOP_K) {
        for (size_t k = 0; k < TOP_K; k++) {
            int32_t e;

            do {
                e = (int32_t)(test_next(&w->seed) >> 40) % N_EXPERTS;
            } while (is_chosen(w->forced[0] + i, k, e));
            w->forced[0][i + k] = w->forced[1][i + k] = e;
        }
        do {
            w->forced[1][i] = (int32_t)(test_next(&w->seed) >> 40) % N_EXPERTS;
        } while (is_chosen(w->forced[0] + i, TOP_K, w->forced[1][i]));
    }
}

double both_step(struct world *w, size_t n_rows, bool is_decode, bool as_plan)
{
    size_t ones[ROWS_MAX], position[ROWS_MAX] = {0}, whole = n_rows, n = n_rows * HIDDEN;
    float *x = test_floats(n, 2, &w->seed), *a = test_poisoned(n), *b = test_poisoned(n);
    int32_t idx[EXPERT_HOME_PAIRS];
    struct test_step t;
    struct error err;
    double worst;

    for (size_t i = 0; i < n_rows; i++) {
        ones[i] = 1;
    }
    test_step_make(&t, is_decode ? n_rows : 1, is_decode ? ones : &whole, position, 10);
    if (w->is.is_forced && n_rows <= EXPERT_HOME_ROWS) {
        choices_force(w, n_rows);
        t.step.forced_idx = w->forced[0];
        t.step.forced_next = w->forced[1];
    }
    must(card_step(&w->resident, x, &t, as_plan, &err), &err);
    must(card_step(&w->small, x, &t, as_plan, &err), &err);
    w->resident.be->ops->read(w->resident.be, a, w->resident.x, n * sizeof *a);
    w->small.be->ops->read(w->small.be, b, w->small.x, n * sizeof *b);
    worst = memcmp(a, b, n * sizeof *a) ? error_of(b, a, n_rows) : 0;
    if (n_rows <= EXPERT_HOME_ROWS && worst == 0) {
        for (size_t l = 0; l < LAYERS; l++) {
            w->resident.be->ops->read(w->resident.be, idx, w->resident.idx[l],
                                      n_rows * TOP_K * sizeof *idx);
            assert_memory_equal(idx, w->chosen + l * n_rows * TOP_K, n_rows * TOP_K * sizeof *idx);
        }
    }
    test_step_release(&t);
    free(x);
    free(a);
    free(b);
    return worst;
}

double steps_run(struct world *w)
{
    static const size_t rows[] = {1, 1, 2, 8, 3, 1};
    double worst = 0;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        worst = fmax(worst, both_step(w, rows[i], true, true));
    }
    worst = fmax(worst, both_step(w, 1, true, false));
    worst = fmax(worst, both_step(w, 5, false, true));
    if (w->is.kind == SYMMETRIC && !w->is.no_graphs) {
        worst = fmax(worst, both_step(w, 12, false, true)); /* large: makes no report */
    }
    worst = fmax(worst, both_step(w, 1, true, true));
    assert_int_equal(w->n_reports, 9);
    return worst;
}

static const char *type_name(enum dtype t)
{
    return t == DTYPE_F32 ? "f32" : t == DTYPE_F16 ? "f16" : "bf16";
}

void print_line(const struct setup *s, const struct world *w, double worst)
{
    print_message("%-5s %-10s %-8s %-8s %2zu slots, %zu/4 of misses, %2zu victims, %-6s: worst "
                  "%.2g, %zu of the CPU's\n",
                  type_name(s->round), kind_names[s->kind], s->no_graphs ? "" : "graphs",
                  s->no_fusions ? "" : "fusions", s->n_slots, s->fetch_of, s->victims_max,
                  s->has_cpu ? "CPU" : "no CPU", worst, w->n_asked);
}
