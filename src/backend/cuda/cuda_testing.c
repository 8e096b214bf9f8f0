/* cuda_testing.c - see cuda_testing.h. */
#include "backend/cuda/cuda_testing.h"

#include <math.h>

#include "backend/cuda/emulator/emulator.h"

enum {
    MIRROR_OFFSET = 64,   /* a twin's place in its allocation: aligned as promised and no better */
    RED_ZONE_BYTES = 256, /* behind twins on a real card; the emulator has its own */
    RED_ZONE = 0xa5,
    CONTEXT_LEAST = 4096, /* that plans are prepared for */
};

/* ---- beginning and end ---- */

static void pair_open(struct cuda_pair *p, const struct cuda_driver *emulator)
{
    struct cuda_backend_options o = {.driver = emulator};
    struct error err = {0};
    char why[256];

    memset(p, 0, sizeof *p);
    if (!emulator && !cuda_is_there(why, sizeof why)) {
        o.driver = cuda_emulator_driver();
    }
    p->is_emulated = o.driver != NULL;
    /* Large sizes on a card want a quick CPU beside it; both count in float32. */
    p->cpu = test_backend(p->is_emulated ? CPU_ISA_SCALAR : CPU_ISA_AUTO, p->is_emulated ? 1 : 0);
    if (cuda_backend_new(&p->gpu, &o, &err) != OK) {
        fail_msg("%s", err.text);
    }
    p->sm = cuda_backend_card(p->gpu)->sm;
}

void cuda_pair_open(struct cuda_pair *p)
{
    pair_open(p, NULL);
}

void cuda_pair_open_sm(struct cuda_pair *p, int sm)
{
    pair_open(p, cuda_emulator_driver_sm(sm));
}

static void red_zone_check(struct cuda_pair *p, const struct cuda_mirror *m)
{
    uint8_t zone[RED_ZONE_BYTES];

    if (p->is_emulated) {
        return;
    }
    p->gpu->ops->read(p->gpu, zone, m->data + m->n_bytes, sizeof zone);
    for (size_t i = 0; i < sizeof zone; i++) {
        if (zone[i] != RED_ZONE) {
            fail_msg("the card wrote past the %zu bytes of a buffer, at +%zu", m->n_bytes, i);
        }
    }
}

static void mirrors_release(struct cuda_pair *p, struct cuda_mirrors *list)
{
    for (size_t i = 0; i < list->n; i++) {
        red_zone_check(p, &list->all[i]);
        p->gpu->ops->buffer_free(p->gpu, list->all[i].allocation);
    }
    free(list->all);
    memset(list, 0, sizeof *list);
}

static void plan_release(struct cuda_pair *p)
{
    for (size_t i = 0; i < p->n_ops; i++) {
        free(p->experts[i]);
    }
    free(p->experts);
    free(p->ops);
    p->experts = NULL;
    p->ops = NULL;
    p->n_ops = 0;
    mirrors_release(p, &p->constants);
}

void cuda_pair_close(struct cuda_pair *p)
{
    plan_release(p);
    mirrors_release(p, &p->mirrors);
    free(p->bad_layer);
    free(p->router_margin);
    p->gpu->ops->free(p->gpu);
    p->cpu->ops->free(p->cpu);
    if (p->n_groups > 0) {
        print_message("%-28s %5s  %-9s %-9s %s (compute capability %d.%d%s)\n", "", "cases",
                      "worst", "allowed", "worst case", p->sm / 10, p->sm % 10,
                      p->is_emulated ? ", emulated" : "");
    }
    for (size_t i = 0; i < p->n_groups; i++) {
        print_message("%-28s %5zu  %-9.2g %-9.2g %s\n", p->group[i].name, p->group[i].n_cases,
                      p->group[i].worst, p->group[i].tolerance, p->group[i].worst_case);
    }
    memset(p, 0, sizeof *p);
}

void cuda_pair_forget(struct cuda_pair *p)
{
    plan_release(p);
    mirrors_release(p, &p->mirrors);
}

/* ---- twins ---- */

static struct cuda_mirror *find(const struct cuda_mirrors *list, const void *host)
{
    uintptr_t at = (uintptr_t)host;

    for (size_t i = 0; i < list->n; i++) {
        if (at >= list->all[i].host && at - list->all[i].host < list->all[i].n_bytes) {
            return &list->all[i];
        }
    }
    return NULL;
}

/* Ranges that overlap this one belong to host memory that has been freed. */
static void drop_overlaps(struct cuda_pair *p, struct cuda_mirrors *list, uintptr_t host,
                          size_t n_bytes)
{
    size_t kept = 0;

    for (size_t i = 0; i < list->n; i++) {
        struct cuda_mirror m = list->all[i];

        if (host < m.host + m.n_bytes && m.host < host + n_bytes) {
            red_zone_check(p, &m);
            p->gpu->ops->buffer_free(p->gpu, m.allocation);
        } else {
            list->all[kept++] = m;
        }
    }
    list->n = kept;
}

static struct cuda_mirror *mirror_new(struct cuda_pair *p, struct cuda_mirrors *list,
                                      const void *host, size_t n_bytes)
{
    size_t extra = p->is_emulated ? 0 : RED_ZONE_BYTES;
    uint8_t zone[RED_ZONE_BYTES];
    struct cuda_mirror *m;

    if (list->n == list->capacity) {
        list->capacity = list->capacity ? 2 * list->capacity : 64;
        list->all = realloc(list->all, list->capacity * sizeof *list->all);
        assert_non_null(list->all);
    }
    m = &list->all[list->n++];
    *m = (struct cuda_mirror){.host = (uintptr_t)host, .n_bytes = n_bytes};
    m->allocation = p->gpu->ops->buffer_new(p->gpu, MIRROR_OFFSET + n_bytes + extra);
    if (!m->allocation) {
        fail_msg("no device memory for %zu bytes", n_bytes);
    }
    m->data = m->allocation + MIRROR_OFFSET;
    if (extra) {
        memset(zone, RED_ZONE, sizeof zone);
        p->gpu->ops->write(p->gpu, m->data + n_bytes, zone, sizeof zone);
    }
    return m;
}

void cuda_pair_mirror(struct cuda_pair *p, const void *host, size_t n_bytes)
{
    struct cuda_mirror *m = find(&p->mirrors, host);

    if (!host || n_bytes == 0) {
        return;
    }
    if (!m || m->host != (uintptr_t)host || m->n_bytes != n_bytes) {
        drop_overlaps(p, &p->mirrors, (uintptr_t)host, n_bytes);
        m = mirror_new(p, &p->mirrors, host, n_bytes);
    }
    p->gpu->ops->write(p->gpu, m->data, host, n_bytes);
}

static uint8_t *twin(const struct cuda_mirrors *list, const void *host, size_t n_bytes)
{
    struct cuda_mirror *m = find(list, host);

    if (!m || n_bytes > m->n_bytes - ((uintptr_t)host - m->host)) {
        return NULL;
    }
    return m->data + ((uintptr_t)host - m->host);
}

void cuda_pair_fetch(struct cuda_pair *p, const void *host, void *out, size_t n_bytes)
{
    const uint8_t *data = twin(&p->mirrors, host, n_bytes);

    if (!data) {
        fail_msg("%zu bytes at %p have no twin on the card: cuda_pair_mirror() comes first",
                 n_bytes, host);
    }
    p->gpu->ops->read(p->gpu, out, data, n_bytes);
}

/* ---- ops as the card has them ---- */

static void turn_operand(struct cuda_pair *p, const struct op *op, struct operand *o)
{
    const struct cuda_mirror *m = o->data ? find(&p->mirrors, o->data) : NULL;

    if (!o->data) {
        return;
    }
    if (!m) {
        fail_msg("an operand of op '%s' has no twin on the card: cuda_pair_mirror() comes first",
                 op->name);
    }
    if (p->is_emulated) { /* in a real plan an earlier kernel fills it */
        cuda_emulator_mark_operand(m->data, m->n_bytes);
    }
    o->data = twin(&p->mirrors, o->data, 1);
}

/* Something that the op only reads: a twin for as long as the plan lasts. */
static const void *constant(struct cuda_pair *p, const void *host, size_t n_bytes)
{
    const uint8_t *data;
    struct cuda_mirror *m;

    if (!host || n_bytes == 0) {
        return NULL;
    }
    data = twin(&p->constants, host, n_bytes);
    if (data) {
        return data;
    }
    m = mirror_new(p, &p->constants, host, n_bytes);
    p->gpu->ops->write(p->gpu, m->data, host, n_bytes);
    return m->data;
}

static void turn_floats(struct cuda_pair *p, const float **vector, size_t n)
{
    *vector = constant(p, *vector, n * sizeof **vector);
}

static void turn_weight(struct cuda_pair *p, struct weight *w)
{
    if (w->kind == WEIGHT_NONE) {
        return;
    }
    w->data = constant(p, w->data, w->n_out * weight_row_bytes(w));
    if (w->kind != WEIGHT_DENSE) {
        size_t n = w->n_out * weight_n_groups(w);

        w->scales = constant(p, w->scales, n * dtype_bytes(w->dtype));
        w->zeros = constant(p, w->zeros, n);
        w->perm = constant(p, w->perm, w->n_in * sizeof *w->perm);
    }
}

static void turn_delta(struct cuda_pair *p, struct op *op)
{
    struct op_delta *u = &op->u.delta;

    turn_operand(p, op, &u->qkv);
    turn_operand(p, op, &u->z);
    turn_operand(p, op, &u->a);
    turn_operand(p, op, &u->b);
    turn_operand(p, op, &u->out);
    turn_floats(p, &u->neg_exp_a, u->nv);
    turn_floats(p, &u->dt_bias, u->nv);
    turn_floats(p, &u->norm, u->dv);
}

static void turn_qkv(struct cuda_pair *p, struct op *op)
{
    struct op_qkv *u = &op->u.qkv;

    turn_operand(p, op, &u->q);
    turn_operand(p, op, &u->k);
    turn_operand(p, op, &u->v);
    turn_floats(p, &u->q_norm, u->hd);
    turn_floats(p, &u->k_norm, u->hd);
    turn_floats(p, &u->inv_freq, u->rope_dims / 2);
}

/* The array of experts stays on the host; what its weights point to does not. */
static void turn_experts(struct cuda_pair *p, struct op *op, struct expert_weights **made)
{
    struct op_experts *u = &op->u.experts;
    struct expert_weights *e = calloc(u->n_experts, sizeof *e);

    assert_non_null(e);
    turn_operand(p, op, &u->in);
    turn_operand(p, op, &u->idx);
    turn_operand(p, op, &u->prob);
    turn_operand(p, op, &u->out);
    for (size_t i = 0; i < u->n_experts; i++) {
        e[i] = u->experts[i];
        turn_weight(p, &e[i].gate);
        turn_weight(p, &e[i].up);
        turn_weight(p, &e[i].down);
    }
    u->experts = *made = e;
}

static void turn_op(struct cuda_pair *p, struct op *op, struct expert_weights **experts)
{
    switch (op->kind) {
    case OP_EMBED:
        turn_weight(p, &op->u.embed.table);
        turn_operand(p, op, &op->u.embed.out);
        break;
    case OP_NORM:
        turn_floats(p, &op->u.norm.weight, op->u.norm.in.cols);
        turn_operand(p, op, &op->u.norm.in);
        turn_operand(p, op, &op->u.norm.out);
        break;
    case OP_LINEAR:
        turn_operand(p, op, &op->u.linear.in);
        for (size_t i = 0; i < op->u.linear.n_parts; i++) {
            turn_weight(p, &op->u.linear.part[i].w);
            turn_operand(p, op, &op->u.linear.part[i].out);
        }
        break;
    case OP_CONV:
        turn_operand(p, op, &op->u.conv.in);
        turn_operand(p, op, &op->u.conv.out);
        turn_floats(p, &op->u.conv.weight, op->u.conv.taps * op->u.conv.channels);
        break;
    case OP_DELTA:
        turn_delta(p, op);
        break;
    case OP_QKV:
        turn_qkv(p, op);
        break;
    case OP_ATTENTION:
        turn_operand(p, op, &op->u.attention.q);
        turn_operand(p, op, &op->u.attention.out);
        break;
    case OP_ROUTE:
        turn_operand(p, op, &op->u.route.in);
        turn_operand(p, op, &op->u.route.idx);
        turn_operand(p, op, &op->u.route.prob);
        turn_weight(p, &op->u.route.router);
        break;
    case OP_EXPERTS:
        turn_experts(p, op, experts);
        break;
    case OP_SWIGLU:
        turn_operand(p, op, &op->u.swiglu.gate);
        turn_operand(p, op, &op->u.swiglu.up);
        turn_operand(p, op, &op->u.swiglu.out);
        break;
    case OP_ADD_SHARED:
        turn_operand(p, op, &op->u.add_shared.x);
        turn_operand(p, op, &op->u.add_shared.routed);
        turn_operand(p, op, &op->u.add_shared.shared);
        turn_operand(p, op, &op->u.add_shared.gate);
        break;
    case OP_CHECK:
        turn_operand(p, op, &op->u.check.x);
        break;
    case OP_GATHER:
        turn_operand(p, op, &op->u.gather.in);
        turn_operand(p, op, &op->u.gather.out);
        break;
    case OP_BEST:
        turn_operand(p, op, &op->u.best.in);
        turn_operand(p, op, &op->u.best.out);
        break;
    default:
        fail_msg("op '%s' has a kind that these tests do not know: %d", op->name, (int)op->kind);
    }
}

/* The card's version of a plan, in p->ops. */
static void plan_make(struct cuda_pair *p, const struct op *ops, size_t n_ops)
{
    plan_release(p);
    p->ops = calloc(n_ops, sizeof *p->ops);
    p->experts = calloc(n_ops, sizeof *p->experts);
    assert_non_null(p->ops);
    assert_non_null(p->experts);
    p->n_ops = n_ops;
    for (size_t i = 0; i < n_ops; i++) {
        p->ops[i] = ops[i];
        p->ops[i].kernel = NULL;
        turn_op(p, &p->ops[i], &p->experts[i]);
    }
}

struct op cuda_pair_op(struct cuda_pair *p, const struct op *op)
{
    plan_make(p, op, 1);
    return p->ops[0];
}

static void pool_mirror(struct cuda_pair *p, const void *host, size_t n_bytes, bool is_forced)
{
    if (is_forced || !twin(&p->mirrors, host, n_bytes)) {
        cuda_pair_mirror(p, host, n_bytes);
    }
}

static struct state_pools pools(struct cuda_pair *p, const struct state_pools *host, bool is_forced)
{
    struct state_pools s = *host;
    size_t conv = s.n_gdn_layers * s.n_slots * s.conv_elems * dtype_bytes(s.conv_dtype);
    size_t recurrent =
        s.n_gdn_layers * s.n_slots * s.recurrent_elems * dtype_bytes(s.recurrent_dtype);
    size_t kv = s.n_attn_layers * s.n_pages * s.kv_elems * dtype_bytes(s.kv_dtype);
    size_t scales = s.n_attn_layers * s.n_pages * s.kv_scales * sizeof(float);

    pool_mirror(p, s.conv, conv, is_forced);
    pool_mirror(p, s.recurrent, recurrent, is_forced);
    pool_mirror(p, s.k, kv, is_forced);
    pool_mirror(p, s.v, kv, is_forced);
    pool_mirror(p, s.k_scale, scales, is_forced);
    pool_mirror(p, s.v_scale, scales, is_forced);
    s.conv = twin(&p->mirrors, s.conv, conv);
    s.recurrent = twin(&p->mirrors, s.recurrent, recurrent);
    s.k = twin(&p->mirrors, s.k, kv);
    s.v = twin(&p->mirrors, s.v, kv);
    s.k_scale = (void *)twin(&p->mirrors, s.k_scale, scales);
    s.v_scale = (void *)twin(&p->mirrors, s.v_scale, scales);
    return s;
}

struct state_pools cuda_pair_pools(struct cuda_pair *p, const struct state_pools *host)
{
    return pools(p, host, true);
}

/* ---- runs ---- */

/* Everything that ops may write, one twin after the other. */
static uint8_t *contents(struct cuda_pair *p)
{
    size_t n_bytes = 1, at = 0;
    uint8_t *all;

    for (size_t i = 0; i < p->mirrors.n; i++) {
        n_bytes += p->mirrors.all[i].n_bytes;
    }
    all = malloc(n_bytes);
    assert_non_null(all);
    for (size_t i = 0; i < p->mirrors.n; i++) {
        const struct cuda_mirror *m = &p->mirrors.all[i];

        p->gpu->ops->read(p->gpu, all + at, m->data, m->n_bytes);
        at += m->n_bytes;
    }
    return all;
}

static void contents_restore(struct cuda_pair *p, const uint8_t *all)
{
    for (size_t i = 0; i < p->mirrors.n; i++) {
        const struct cuda_mirror *m = &p->mirrors.all[i];

        p->gpu->ops->write(p->gpu, m->data, all, m->n_bytes);
        all += m->n_bytes;
    }
}

static void contents_compare(struct cuda_pair *p, const uint8_t *first, const uint8_t *second)
{
    for (size_t i = 0; i < p->mirrors.n; i++) {
        const struct cuda_mirror *m = &p->mirrors.all[i];

        for (size_t j = 0; j < m->n_bytes; j++) {
            if (first[j] != second[j]) {
                fail_msg("op '%s' (%s) gives other bits when it runs again: byte %zu of the buffer "
                         "of %zu bytes at %p",
                         p->ops[0].name, p->ops[0].kernel, j, m->n_bytes, (void *)m->host);
            }
        }
        first += m->n_bytes;
        second += m->n_bytes;
    }
}

static void gpu_step(struct cuda_pair *p, const struct step *host, const struct state_pools *state,
                     bool as_plan)
{
    const struct backend_ops *ops = p->gpu->ops;
    struct step step = *host;
    struct error err = {0};
    enum status rc;

    free(p->bad_layer);
    free(p->router_margin);
    p->bad_layer = NULL;
    p->router_margin = NULL;
    if (step.bad_layer) {
        step.bad_layer = p->bad_layer = malloc(step.n_rows * sizeof *p->bad_layer + 1);
        assert_non_null(p->bad_layer);
        memset(p->bad_layer, 0xff, step.n_rows * sizeof *p->bad_layer);
    }
    if (step.router_margin) {
        step.router_margin = p->router_margin = malloc(step.n_rows * sizeof *p->router_margin + 1);
        assert_non_null(p->router_margin);
        for (size_t i = 0; i < step.n_rows; i++) {
            p->router_margin[i] = INFINITY;
        }
    }
    rc = ops->begin(p->gpu, &step, &err);
    if (rc == OK && as_plan) {
        rc = ops->run_all(p->gpu, &step, state, &err);
    }
    for (size_t i = 0; i < p->n_ops && rc == OK && !as_plan; i++) {
        rc = ops->run(p->gpu, &p->ops[i], &step, state, &err);
    }
    if (rc == OK) {
        rc = ops->end(p->gpu, &step, &err);
    }
    if (rc != OK) {
        fail_msg("op '%s' (%s) on the card: %s", p->ops[0].name, p->ops[0].kernel, err.text);
    }
}

static void gpu_run(struct cuda_pair *p, const struct step *step, const struct state_pools *state)
{
    uint8_t *before, *first, *second;

    if (p->runs_once || step->route_hook) {
        gpu_step(p, step, state, false);
        return;
    }
    before = contents(p);
    gpu_step(p, step, state, true);
    first = contents(p);
    contents_restore(p, before);
    gpu_step(p, step, state, p->is_fused);
    second = contents(p);
    contents_compare(p, first, second);
    free(before);
    free(first);
    free(second);
}

static void plan_prepare(struct backend *be, struct op *ops, size_t n_ops, const struct step *step)
{
    size_t rows = step->n_rows > step->n_out_rows ? step->n_rows : step->n_out_rows;
    size_t context = CONTEXT_LEAST;
    struct error err = {0};

    for (size_t i = 0; i < step->n_spans; i++) {
        size_t end = step->spans[i].position + step->spans[i].n_rows;

        context = end > context ? end : context;
    }
    for (size_t i = 0; i < n_ops; i++) {
        if (be->ops->check(be, &ops[i], &err) != OK) {
            fail_msg("%s refuses: %s", be->ops->name, err.text);
        }
        assert_non_null(ops[i].kernel);
    }
    if (be->ops->prepare(be, ops, n_ops, rows ? rows : 1, context, &err) != OK) {
        fail_msg("%s does not prepare: %s", be->ops->name, err.text);
    }
}

void cuda_pair_run_plan(struct cuda_pair *p, struct op *ops, size_t n_ops, const struct step *step,
                        const struct state_pools *state)
{
    struct state_pools on_card = {0};

    for (size_t i = 0; i < n_ops; i++) {
        ops[i].name = ops[i].name ? ops[i].name : "test";
    }
    if (state) {
        on_card = pools(p, state, false);
    }
    plan_make(p, ops, n_ops);
    plan_prepare(p->gpu, p->ops, n_ops, step);
    gpu_run(p, step, &on_card);
    plan_prepare(p->cpu, ops, n_ops, step);
    for (size_t i = 0; i < n_ops; i++) {
        test_run(p->cpu, &ops[i], step, state);
    }
    for (size_t i = 0; step->bad_layer && i < step->n_rows; i++) {
        if (step->bad_layer[i] != p->bad_layer[i]) {
            fail_msg("row %zu is bad in layer %d on the card, in layer %d on the CPU", i,
                     p->bad_layer[i], step->bad_layer[i]);
        }
    }
    for (size_t i = 0; i < n_ops; i++) {
        ops[i].kernel = p->ops[i].kernel;
    }
}

void cuda_pair_run(struct cuda_pair *p, struct op *op, const struct step *step,
                   const struct state_pools *state)
{
    cuda_pair_run_plan(p, op, 1, step, state);
}

void cuda_pair_refused(struct cuda_pair *p, const struct op *op, const char *part)
{
    plan_make(p, op, 1);
    test_refused(p->gpu, &p->ops[0], part);
}

/* ---- results ---- */

double cuda_tolerance(enum dtype round, double f32)
{
    return round == DTYPE_BF16 ? f32 + 1.0 / 128 : round == DTYPE_F16 ? f32 + 1.0 / 1024 : f32;
}

static double element(enum dtype type, const void *data, size_t i)
{
    return type == DTYPE_I32 ? ((const int32_t *)data)[i] : (double)dtype_load(type, data, i);
}

/* How far the card's element is from the CPU's, where values are about as large as `size`. */
static double distance(enum dtype type, const void *card, const void *cpu, size_t i, double size)
{
    size_t each = dtype_bytes(type);
    double a, b;

    if (!memcmp((const char *)card + i * each, (const char *)cpu + i * each, each)) {
        return 0;
    }
    a = element(type, card, i);
    b = element(type, cpu, i);
    if (!isfinite(a) || !isfinite(b) || type == DTYPE_I32) {
        return INFINITY;
    }
    return fabs(a - b) / (1.0 + fmax(fabs(b), size));
}

/* Root of the mean square of a row of the CPU's, 0 if it is not finite. */
static double row_size(enum dtype type, const void *cpu, size_t at, size_t cols)
{
    double sum = 0;

    for (size_t i = 0; i < cols; i++) {
        double v = element(type, cpu, at + i);

        sum += v * v;
    }
    return isfinite(sum) ? sqrt(sum / (double)cols) : 0;
}

static void note(struct cuda_pair *p, const char *group, const char *name, double worst,
                 double tolerance)
{
    size_t i = 0;

    while (i < p->n_groups && strncmp(p->group[i].name, group, CUDA_PAIR_NAME - 1) != 0) {
        i++;
    }
    if (i == CUDA_PAIR_GROUPS_MAX) {
        return;
    }
    if (i == p->n_groups) {
        p->n_groups++;
        snprintf(p->group[i].name, CUDA_PAIR_NAME, "%s", group);
    }
    p->group[i].n_cases++;
    if (p->group[i].n_cases == 1 || worst > p->group[i].worst) {
        p->group[i].worst = worst;
        snprintf(p->group[i].worst_case, CUDA_PAIR_NAME, "%s", name);
    }
    p->group[i].tolerance = tolerance > p->group[i].tolerance ? tolerance : p->group[i].tolerance;
}

double cuda_pair_expect_rows(struct cuda_pair *p, const char *group, const char *name,
                             enum dtype type, const void *host, size_t n, size_t cols,
                             double tolerance)
{
    size_t each = dtype_bytes(type), worst_at = 0, n_over = 0, first_over = 0;
    uint8_t *card = malloc(n * each + 1);
    double worst = 0, size = 0, got, want;

    assert_non_null(card);
    cuda_pair_fetch(p, host, card, n * each);
    for (size_t i = 0; i < n; i++) {
        double d;

        if (cols > 0 && i % cols == 0) {
            size = row_size(type, host, i, n - i < cols ? n - i : cols);
        }
        d = distance(type, card, host, i, size);
        if (d > worst) {
            worst = d;
            worst_at = i;
        }
        if (d > tolerance) {
            first_over = n_over++ ? first_over : i;
        }
    }
    note(p, group, name, worst, tolerance);
    got = n ? element(type, card, worst_at) : 0;
    want = n ? element(type, host, worst_at) : 0;
    free(card);
    if (n_over > 0) {
        fail_msg("%s, %s: error %.3g passes %.3g in %zu of %zu elements, the first %zu, the worst "
                 "%zu: %.9g on the card, %.9g on the CPU",
                 group, name, worst, tolerance, n_over, n, first_over, worst_at, got, want);
    }
    return worst;
}

double cuda_pair_expect(struct cuda_pair *p, const char *group, const char *name, enum dtype type,
                        const void *host, size_t n, double tolerance)
{
    return cuda_pair_expect_rows(p, group, name, type, host, n, 0, tolerance);
}

/* ---- steps ---- */

void test_step_make(struct test_step *t, size_t n_spans, const size_t *n_rows,
                    const size_t *position, size_t n_vocab)
{
    size_t n = 0, n_pages = 0, at = 0;
    int32_t *of_spans;

    memset(t, 0, sizeof *t);
    for (size_t i = 0; i < n_spans; i++) {
        n += n_rows[i];
        n_pages += (position[i] + n_rows[i] + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    }
    t->spans = calloc(n_spans + 1, sizeof *t->spans);
    t->pages = of_spans = calloc(n_pages + 1, sizeof *t->pages);
    t->tokens = calloc(n + 1, sizeof *t->tokens);
    t->out_rows = calloc(n + 1, sizeof *t->out_rows);
    t->bad_layer = malloc((n + 1) * sizeof *t->bad_layer);
    assert_true(t->spans && t->pages && t->tokens && t->out_rows && t->bad_layer);
    t->n_pages = n_pages + 2; /* page 0 and the last belong to nobody */
    for (size_t i = 0; i < n_spans; i++) {
        size_t its = (position[i] + n_rows[i] + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;

        t->spans[i] = (struct span){.row = at,
                                    .n_rows = n_rows[i],
                                    .position = position[i],
                                    .slot = (int32_t)i,
                                    .pages = of_spans,
                                    .state_is_zero = position[i] == 0};
        at += n_rows[i];
        of_spans += its;
    }
    for (size_t i = 0; i < n_pages; i++) { /* from both ends in turn */
        t->pages[i] = (int32_t)(1 + (i % 2 ? n_pages - 1 - i / 2 : i / 2));
    }
    for (size_t i = 0; i < n; i++) {
        t->tokens[i] = n_vocab ? (int32_t)((i * 7919 + 13) % n_vocab) : 0;
        t->out_rows[i] = (int32_t)i;
        t->bad_layer[i] = -1;
    }
    t->step = (struct step){.n_rows = n,
                            .tokens = t->tokens,
                            .spans = t->spans,
                            .n_spans = n_spans,
                            .out_rows = t->out_rows,
                            .n_out_rows = n,
                            .bad_layer = t->bad_layer};
}

void test_step_release(struct test_step *t)
{
    free(t->spans);
    free(t->pages);
    free(t->tokens);
    free(t->out_rows);
    free(t->bad_layer);
    memset(t, 0, sizeof *t);
}
