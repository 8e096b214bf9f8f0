/* cuda_stream_test.c - experts that stream past the card give the bits of experts that are all on it: several
 * layers and segments, a ring that is smaller than a layer, every kind of weight, experts in slots; with
 * streams that are late in every way (cuda_late_testing.h); with every call failing in turn; with copies and
 * launches that take turns. Where the CPU has a part (cuda_share.h), rows without it are the same bits, others
 * what the CPU's arithmetic gives.
 *
 * Without a card all of it is emulated; with one, the sizes of a real layer are run too. */
#include "backend/cpu/cpu_test_util.h"
#include "backend/cuda/cuda_late_testing.h"
#include "backend/cuda/cuda_private.h"
#include "backend/cuda/cuda_stream.h"
#include "backend/cuda/emulator/emulator.h"

enum { LAYERS_MAX = 4, CONTEXT = 16384 };

struct kind {
    const char *name;
    enum weight_kind kind;
    enum dtype scales;
    size_t group;
    bool has_zeros, has_perms;
    enum dtype round; /* of activations */
    const char *kernel;
};

static const struct kind KINDS[] = {
    {"int4 f16", WEIGHT_INT4, DTYPE_F16, 128, false, false, DTYPE_BF16, "experts int4 cuda"},
    {"int4 bf16 zeros", WEIGHT_INT4, DTYPE_BF16, 128, true, false, DTYPE_F16, "experts int4 cuda"},
    {"int4 f32 perm", WEIGHT_INT4, DTYPE_F32, 128, false, true, DTYPE_BF16,
     "experts int4 act-order cuda"},
    {"int4 f16 zeros perm", WEIGHT_INT4, DTYPE_F16, 128, true, true, DTYPE_F16,
     "experts int4 act-order cuda"},
    {"int4 f16 x f32", WEIGHT_INT4, DTYPE_F16, 128, true, true, DTYPE_F32, "experts plain cuda"},
    {"int4 g32", WEIGHT_INT4, DTYPE_BF16, 32, true, false, DTYPE_BF16, "experts plain cuda"},
    {"int8 zeros perm", WEIGHT_INT8, DTYPE_F16, 64, true, true, DTYPE_F16, "experts plain cuda"},
    {"int8 x f32", WEIGHT_INT8, DTYPE_F32, 32, false, false, DTYPE_F32, "experts plain cuda"},
};
enum { N_KINDS = sizeof KINDS / sizeof KINDS[0] };

struct sizes {
    size_t n_layers, n_experts, top_k, hidden, width, n_rows;
    size_t n_slots, n_staging;
    size_t segment_rows; /* that scratch shall just hold; 0: as usual */
    size_t crowd;        /* experts that are chosen, from the last down; 0: all */
    bool is_decode;      /* every row a sequence */
};

/* ---- weights ---- */

static void part_fill(const struct weight *w, uint64_t *seed)
{
    size_t n = w->n_out * weight_n_groups(w), n_bytes = w->n_out * weight_row_bytes(w);
    float size = (w->kind == WEIGHT_INT8 ? 2.5f / 128 : 2.5f / 8) / sqrtf((float)w->n_in);
    uint8_t *data = (uint8_t *)(uintptr_t)w->data, *zeros = (uint8_t *)(uintptr_t)w->zeros;
    int32_t *perm = (int32_t *)(uintptr_t)w->perm;

    for (size_t i = 0; i < n_bytes; i++) {
        data[i] = (uint8_t)(test_next(seed) >> 40);
    }
    for (size_t i = 0; i < n; i++) {
        dtype_store(w->dtype, (void *)(uintptr_t)w->scales, i, size * (1.5f + test_float(seed)));
        if (zeros) {
            zeros[i] = (uint8_t)((w->kind == WEIGHT_INT8 ? 110 : 5) + (test_next(seed) >> 40) % 7);
        }
    }
    for (size_t i = 0; perm && i < w->n_in; i++) {
        size_t j = (size_t)(test_next(seed) >> 33) % (i + 1);

        perm[i] = perm[j];
        perm[j] = (int32_t)i;
    }
}

/* ---- a bed: layers of experts, with and without a home ---- */

/* What the CPU has of the chosen experts without a slot, where choices are asked for. */
enum share { SHARE_NO_CPU, SHARE_NOTHING, SHARE_EVERY_SECOND, SHARE_ALL };

struct bed {
    const struct kind *kind;
    struct sizes is;
    enum share share;
    bool takes_turns;
    struct expert_block block;
    uint8_t *blocks[LAYERS_MAX]; /* on the host, as the device's host_new gives it */
    const uint8_t *const_blocks[LAYERS_MAX];
    float *x[LAYERS_MAX], *prob[LAYERS_MAX];
    int32_t *idx[LAYERS_MAX];
    size_t out_floats;
    uint64_t seed;
};

struct home_log { /* what the home was told, per layer */
    size_t n_calls, n_rows, n_streamed;
    bool was_asked;
    bool is_resident[LAYERS_MAX][64];
    const struct bed *bed;
    int32_t slot_of[LAYERS_MAX][64];
    bool on_cpu[LAYERS_MAX][64];
    struct backend *cpu;
    struct op cpu_ops[LAYERS_MAX];
    size_t n_computed, fail_compute_at; /* calls, counted from 1; 0: none fails */
};

static int32_t slot_of(void *ctx, size_t layer, size_t expert)
{
    return ((struct home_log *)ctx)->slot_of[layer][expert];
}

static bool is_chosen(const struct bed *b, size_t layer, size_t e)
{
    for (size_t i = 0; i < b->is.n_rows * b->is.top_k; i++) {
        if (b->idx[layer][i] == (int32_t)e) {
            return true;
        }
    }
    return false;
}

static size_t large_divide(void *ctx, size_t layer, size_t n_rows, const int32_t *idx, bool *on_cpu)
{
    struct home_log *log = ctx;
    const struct bed *b = log->bed;
    size_t n = 0;

    assert_int_equal(n_rows, b->is.n_rows);
    assert_true(n_rows <= EXPERT_HOME_LARGE_ROWS);
    assert_memory_equal(idx, b->idx[layer], n_rows * b->is.top_k * sizeof *idx);
    for (size_t e = 0; e < b->is.n_experts; e++) {
        assert_false(on_cpu[e]);
        on_cpu[e] =
            log->slot_of[layer][e] < 0 && is_chosen(b, layer, e) &&
            (b->share == SHARE_ALL || (b->share == SHARE_EVERY_SECOND && (e + layer) % 2 == 0));
        log->on_cpu[layer][e] = on_cpu[e];
        n += on_cpu[e];
    }
    return n;
}

static enum status large_compute(void *ctx, size_t layer, size_t n_rows, const int32_t *idx,
                                 const float *prob, const float *x, float *y, struct error *err)
{
    struct home_log *log = ctx;
    const struct bed *b = log->bed;
    struct op op = log->cpu_ops[layer];
    struct step step = {.n_rows = n_rows};
    size_t n = n_rows * b->is.top_k;

    if (++log->n_computed == log->fail_compute_at) {
        return error_set(err, ERR_INTERNAL, "the CPU has no answer");
    }
    for (size_t i = 0; i < n; i++) {
        int32_t e = b->idx[layer][i];

        assert_int_equal(idx[i], e >= 0 && log->on_cpu[layer][e] ? e : -1);
    }
    assert_memory_equal(prob, b->prob[layer], n * sizeof *prob);
    assert_memory_equal(x, b->x[layer], n_rows * b->is.hidden * sizeof *x);
    op.u.experts.in.data = (void *)(uintptr_t)x;
    op.u.experts.idx.data = (void *)(uintptr_t)idx;
    op.u.experts.prob.data = (void *)(uintptr_t)prob;
    op.u.experts.out.data = y;
    return log->cpu->ops->run(log->cpu, &op, &step, NULL, err);
}

static void streamed(void *ctx, size_t layer, size_t n_rows, const int32_t *idx, size_t n_streamed)
{
    struct home_log *log = ctx;
    const struct bed *b = log->bed;
    bool is_asked = n_rows * b->is.top_k < 4 * b->is.n_experts;
    size_t n_segments =
        b->is.segment_rows ? (n_rows + b->is.segment_rows - 1) / b->is.segment_rows : 1;
    size_t n = 0;

    assert_int_equal(layer, log->n_calls % b->is.n_layers);
    assert_int_equal(n_rows, b->is.n_rows);
    assert_int_equal(idx != NULL, is_asked);
    if (idx) {
        assert_memory_equal(idx, b->idx[layer], n_rows * b->is.top_k * sizeof *idx);
    }
    for (size_t e = 0; e < b->is.n_experts; e++) {
        n += log->slot_of[layer][e] < 0 &&
             (!is_asked || (is_chosen(b, layer, e) && !log->on_cpu[layer][e]));
    }
    assert_int_equal(n_streamed, n * n_segments);
    log->n_calls++;
}

static const struct expert_home_ops home_ops = {.slot_of = slot_of,
                                                .large_divide = large_divide,
                                                .large_compute = large_compute,
                                                .streamed = streamed};

static void bed_make(struct bed *b, const struct kind *kind, const struct sizes *is, uint64_t seed)
{
    size_t n = is->n_rows, crowd = is->crowd ? is->crowd : is->n_experts;
    struct expert_shape shape = {.hidden = is->hidden,
                                 .width = is->width,
                                 .kind = kind->kind,
                                 .scales = kind->scales,
                                 .group = kind->group,
                                 .down_group = kind->group,
                                 .has_zeros = kind->has_zeros,
                                 .has_perms = kind->has_perms};

    *b = (struct bed){.kind = kind, .is = *is, .seed = seed};
    assert_true(expert_block_init(&b->block, &shape));
    b->out_floats = (n + 1) * is->hidden; /* a row more, which must stay as it is */
    for (size_t l = 0; l < is->n_layers; l++) {
        b->blocks[l] = aligned_alloc(64, is->n_experts * b->block.n_bytes);
        assert_non_null(b->blocks[l]);
        memset(b->blocks[l], 0, is->n_experts * b->block.n_bytes);
        for (size_t e = 0; e < is->n_experts; e++) {
            struct expert_weights w =
                expert_block_view(&b->block, b->blocks[l] + e * b->block.n_bytes);

            part_fill(&w.gate, &b->seed);
            part_fill(&w.up, &b->seed);
            part_fill(&w.down, &b->seed);
        }
        b->x[l] = test_floats(n * is->hidden, 1, &b->seed);
        b->prob[l] = test_floats(n * is->top_k, 1, &b->seed);
        b->idx[l] = calloc(n * is->top_k, sizeof *b->idx[l]);
        assert_non_null(b->idx[l]);
        for (size_t i = 0; i < n * is->hidden; i++) {
            b->x[l][i] = dtype_round(kind->round, b->x[l][i]);
        }
        for (size_t i = 0; i < n; i++) {
            size_t first = (size_t)(test_next(&b->seed) >> 33);

            for (size_t c = 0; c < is->top_k; c++) {
                b->idx[l][i * is->top_k + c] =
                    (int32_t)(is->n_experts - 1 - (first + c * 3) % crowd);
            }
        }
    }
}

static void bed_release(struct bed *b)
{
    for (size_t l = 0; l < b->is.n_layers; l++) {
        free(b->blocks[l]);
        free(b->x[l]);
        free(b->prob[l]);
        free(b->idx[l]);
    }
}

/* ---- a rig: the bed on one backend ---- */

struct rig {
    struct backend *be;
    struct expert_home home;
    struct home_log log;
    struct op ops[LAYERS_MAX];
    struct expert_weights *experts[LAYERS_MAX];
    uint8_t *host_blocks[LAYERS_MAX];
    void *buffers[LAYERS_MAX * 5];
    size_t n_buffers;
    struct step step;
    struct span *spans;
};

static void must(enum status rc, const struct error *err)
{
    if (rc != OK) {
        fail_msg("%s: %s", status_name(rc), err->text);
    }
}

static void *to_device(struct rig *r, const void *host, size_t n_bytes)
{
    uint8_t *data = r->be->ops->buffer_new(r->be, n_bytes);

    assert_non_null(data);
    if (host) {
        r->be->ops->write(r->be, data, host, n_bytes);
    } else {
        test_poison(data, 0);
    }
    r->buffers[r->n_buffers++] = data;
    return data;
}

static void out_poison(struct rig *r, const struct bed *b)
{
    float *nan = test_poisoned(b->out_floats);

    for (size_t l = 0; l < b->is.n_layers; l++) {
        r->be->ops->write(r->be, r->ops[l].u.experts.out.data, nan, b->out_floats * sizeof *nan);
    }
    free(nan);
}

static void op_make(struct rig *r, const struct bed *b, size_t l, bool has_home)
{
    size_t n = b->is.n_rows, k = b->is.top_k, n_bytes = b->is.n_experts * b->block.n_bytes;
    const uint8_t *blocks = has_home ? r->host_blocks[l] : to_device(r, b->blocks[l], n_bytes);

    r->experts[l] = calloc(b->is.n_experts, sizeof *r->experts[l]);
    assert_non_null(r->experts[l]);
    for (size_t e = 0; e < b->is.n_experts; e++) {
        r->experts[l][e] = expert_block_view(&b->block, blocks + e * b->block.n_bytes);
    }
    r->ops[l] = (struct op){.kind = OP_EXPERTS, .name = "experts", .layer = (int16_t)l};
    r->ops[l].u.experts = (struct op_experts){
        .in = test_operand(to_device(r, b->x[l], n * b->is.hidden * sizeof(float)), b->is.hidden,
                           b->kind->round),
        .idx = {.data = to_device(r, b->idx[l], n * k * sizeof(int32_t)),
                .dtype = DTYPE_I32,
                .cols = k},
        .prob = test_operand(to_device(r, b->prob[l], n * k * sizeof(float)), k, DTYPE_F32),
        .out = test_operand(to_device(r, NULL, b->out_floats * sizeof(float)), b->is.hidden,
                            DTYPE_F32),
        .experts = r->experts[l],
        .n_experts = b->is.n_experts,
        .top_k = k,
        .width = b->is.width,
        .home = has_home ? &r->home : NULL,
        .home_layer = l,
    };
}

/* Some experts of every layer get slots, spread without an order. */
static void slots_fill(struct rig *r, const struct bed *b)
{
    uint64_t seed = 5;
    struct error err = {0};

    memset(r->log.slot_of, 0xff, sizeof r->log.slot_of);
    for (size_t s = 0; s < b->is.n_slots;) {
        size_t l = (size_t)(test_next(&seed) >> 33) % b->is.n_layers;
        size_t e = (size_t)(test_next(&seed) >> 33) % b->is.n_experts;

        if (r->log.slot_of[l][e] < 0) {
            r->log.slot_of[l][e] = (int32_t)s;
            must(r->be->ops->expert_insert(r->be, l, e, s++, &err), &err);
        }
    }
}

static enum status home_make(struct rig *r, const struct bed *b, struct error *err)
{
    for (size_t l = 0; l < b->is.n_layers; l++) {
        size_t n_bytes = b->is.n_experts * b->block.n_bytes;

        r->host_blocks[l] = r->be->ops->host_new(r->be, n_bytes);
        assert_non_null(r->host_blocks[l]);
        memcpy(r->host_blocks[l], b->blocks[l], n_bytes);
    }
    r->log.bed = b;
    r->home = (struct expert_home){.block = b->block,
                                   .n_layers = b->is.n_layers,
                                   .n_experts = b->is.n_experts,
                                   .top_k = b->is.top_k,
                                   .hidden = b->is.hidden,
                                   .blocks = (const uint8_t *const *)r->host_blocks,
                                   .n_slots = b->is.n_slots,
                                   .n_staging = b->is.n_staging,
                                   .has_cpu = b->share != SHARE_NO_CPU,
                                   .takes_turns = b->takes_turns,
                                   .ops = &home_ops,
                                   .ctx = &r->log};
    return r->be->ops->experts_open(r->be, &r->home, err);
}

static struct cuda_backend *inside(const struct rig *r)
{
    return (struct cuda_backend *)r->be;
}

/* Who computes the CPU's part. */
static void cpu_make(struct rig *r, const struct bed *b)
{
    struct cpu_backend_options o = {.n_threads = 1, .activations = CPU_ACTIVATIONS_F32};
    struct home_log *log = &r->log;
    struct error err = {0};

    if (b->share == SHARE_NO_CPU) {
        return;
    }
    must(cpu_backend_new(&log->cpu, &o, &err), &err);
    for (size_t l = 0; l < b->is.n_layers; l++) {
        log->cpu_ops[l] = r->ops[l];
        must(log->cpu->ops->check(log->cpu, &log->cpu_ops[l], &err), &err);
    }
    must(
        log->cpu->ops->prepare(log->cpu, log->cpu_ops, b->is.n_layers, b->is.n_rows, CONTEXT, &err),
        &err);
}

static void step_make(struct rig *r, const struct bed *b)
{
    size_t n_spans = b->is.is_decode ? b->is.n_rows : 1;

    r->spans = calloc(n_spans, sizeof *r->spans);
    assert_non_null(r->spans);
    for (size_t i = 0; i < n_spans; i++) {
        r->spans[i] = (struct span){.row = i, .n_rows = b->is.is_decode ? 1 : b->is.n_rows};
    }
    r->step = (struct step){.n_rows = b->is.n_rows, .spans = r->spans, .n_spans = n_spans};
}

/* driver NULL: the real one. The bytes that a segment's scratch needs are found out by preparing a plan of so
 * many rows without a limit. */
static void rig_open(struct rig *r, const struct bed *b, const struct cuda_driver *driver,
                     bool has_home, bool no_graphs)
{
    struct cuda_backend_options o = {.driver = driver, .no_graphs = no_graphs};
    size_t n_layers = b->is.n_layers, segment = b->is.segment_rows;
    struct error err = {0};

    memset(r, 0, sizeof *r);
    must(cuda_backend_new(&r->be, &o, &err), &err);
    if (has_home) {
        must(home_make(r, b, &err), &err);
    }
    for (size_t l = 0; l < n_layers; l++) {
        op_make(r, b, l, has_home);
        must(r->be->ops->check(r->be, &r->ops[l], &err), &err);
        assert_string_equal(r->ops[l].kernel, b->kind->kernel);
    }
    if (has_home && segment) {
        must(r->be->ops->prepare(r->be, r->ops, n_layers, segment, CONTEXT, &err), &err);
        cuda_stream_limit(inside(r), inside(r)->scratch_bytes);
    }
    must(r->be->ops->prepare(r->be, r->ops, n_layers, b->is.n_rows, CONTEXT, &err), &err);
    if (has_home) {
        slots_fill(r, b);
        cpu_make(r, b);
    }
    step_make(r, b);
}

static void rig_close(struct rig *r)
{
    struct error err = {0};

    for (size_t i = 0; i < r->n_buffers; i++) {
        r->be->ops->buffer_free(r->be, r->buffers[i]);
    }
    must(r->be->ops->experts_open(r->be, NULL, &err), &err);
    assert_null(inside(r)->own->streaming);
    for (size_t l = 0; l < LAYERS_MAX; l++) {
        free(r->experts[l]);
        r->be->ops->host_free(r->be, r->host_blocks[l]);
    }
    free(r->spans);
    r->be->ops->free(r->be);
    if (r->log.cpu) {
        r->log.cpu->ops->free(r->log.cpu);
    }
}

/* How a step's ops are run. */
enum way { AS_PLAN, OP_BY_OP, WAYS };

static enum status rig_run(struct rig *r, const struct bed *b, enum way way, struct error *err)
{
    const struct backend_ops *ops = r->be->ops;
    struct state_pools none = {0};
    enum status rc;

    out_poison(r, b);
    rc = ops->begin(r->be, &r->step, err);
    if (rc == OK && way == AS_PLAN) {
        rc = ops->run_all(r->be, &r->step, &none, err);
    }
    for (size_t l = 0; rc == OK && way == OP_BY_OP && l < b->is.n_layers; l++) {
        rc = ops->run(r->be, &r->ops[l], &r->step, &none, err);
    }
    return rc == OK ? ops->end(r->be, &r->step, err) : rc;
}

/* The outputs of all layers. */
static float *rig_read(struct rig *r, const struct bed *b)
{
    float *out = calloc(b->is.n_layers * b->out_floats, sizeof *out);

    assert_non_null(out);
    for (size_t l = 0; l < b->is.n_layers; l++) {
        r->be->ops->read(r->be, out + l * b->out_floats, r->ops[l].u.experts.out.data,
                         b->out_floats * sizeof *out);
    }
    return out;
}

static void same(const char *what, const struct bed *b, const float *want, const float *got)
{
    for (size_t i = 0; i < b->is.n_layers * b->out_floats; i++) {
        if (memcmp(&want[i], &got[i], sizeof *got) != 0) {
            fail_msg("%s, %s, %zu rows, %zu experts, %zu slots, %zu staged: layer %zu, row %zu, "
                     "column %zu is %.9g, not %.9g",
                     what, b->kind->name, b->is.n_rows, b->is.n_experts, b->is.n_slots,
                     b->is.n_staging, i / b->out_floats, i % b->out_floats / b->is.hidden,
                     i % b->is.hidden, (double)got[i], (double)want[i]);
        }
    }
}

static bool has_cpu_part(const struct rig *r, const struct bed *b, size_t layer, size_t row)
{
    const int32_t *idx = b->idx[layer] + row * b->is.top_k;

    for (size_t j = 0; row < b->is.n_rows && j < b->is.top_k; j++) {
        if (idx[j] >= 0 && r->log.on_cpu[layer][idx[j]]) {
            return true;
        }
    }
    return false;
}

/* Rows with a part of the CPU's may differ by what types and orders of sums make; they are replaced by what is wanted.
 * Returns the worst, beside the layer's largest value. */
static double shared_rows(const struct rig *r, const struct bed *b, const float *want, float *got)
{
    size_t hidden = b->is.hidden;
    double worst = 0;

    for (size_t l = 0; l < b->is.n_layers; l++) {
        double largest = 0;

        for (size_t i = 0; i < b->is.n_rows * hidden; i++) {
            largest = fmax(largest, fabs((double)want[l * b->out_floats + i]));
        }
        for (size_t row = 0; row < b->is.n_rows; row++) {
            size_t at = l * b->out_floats + row * hidden;

            for (size_t i = at; has_cpu_part(r, b, l, row) && i < at + hidden; i++) {
                double d = fabs((double)got[i] - (double)want[i]) / largest;

                worst = d <= worst ? worst : d; /* a NaN is the worst of all */
                got[i] = want[i];
            }
        }
    }
    return worst;
}

static double share_tolerance(const struct bed *b)
{
    enum dtype round = b->kind->round;

    return round == DTYPE_F32 ? 5e-5 : round == DTYPE_BF16 ? 1.0 / 256 : 1.0 / 1024;
}

static bool has_card(void)
{
    char why[256];

    return cuda_is_there(why, sizeof why);
}

/* What a backend without a home gives. */
static float *resident(const struct bed *b, const struct cuda_driver *driver)
{
    struct error err = {0};
    struct rig r;
    float *out;

    rig_open(&r, b, driver, false, false);
    must(rig_run(&r, b, AS_PLAN, &err), &err);
    out = rig_read(&r, b);
    rig_close(&r);
    return out;
}

/* Whether the CPU had a part, which is of all layers then. */
static bool has_share(const struct rig *r, const struct bed *b)
{
    size_t n = 0;

    for (size_t l = 0; l < b->is.n_layers; l++) {
        size_t row = 0;

        while (row < b->is.n_rows && !has_cpu_part(r, b, l, row)) {
            row++;
        }
        n += row < b->is.n_rows;
    }
    assert_true(n == 0 || n == b->is.n_layers);
    return n > 0;
}

/* A step each way. Returns how far the rows are off of which the CPU has a part. */
static double expect_streamed(const struct bed *b, const float *want,
                              const struct cuda_driver *driver, const char *what)
{
    struct error err = {0};
    double worst = 0;
    struct rig r;

    rig_open(&r, b, driver, true, driver != NULL && driver != cuda_emulator_driver());
    for (size_t i = 0; i < WAYS; i++) {
        float *got;

        must(rig_run(&r, b, (enum way)i, &err), &err);
        got = rig_read(&r, b);
        worst = fmax(worst, shared_rows(&r, b, want, got));
        assert_true(worst <= share_tolerance(b));
        same(what, b, want, got);
        free(got);
        assert_int_equal(r.log.n_calls, (i + 1) * b->is.n_layers);
    }
    assert_int_equal(r.log.n_computed, has_share(&r, b) ? WAYS * b->is.n_layers : 0);
    rig_close(&r);
    return worst;
}

static void compare(const struct kind *kind, const struct sizes *is)
{
    const struct cuda_driver *driver = has_card() ? NULL : cuda_emulator_driver();
    struct bed b;
    float *want;

    bed_make(&b, kind, is, 21);
    want = resident(&b, driver);
    expect_streamed(&b, want, driver, "streamed");
    free(want);
    bed_release(&b);
}

/* ---- tests ---- */

static void streamed_as_resident(void **state)
{
    static const struct sizes all[] = {
        /* asked: a single part after the other; resident ones; more staging than experts */
        {2, 8, 2, 128, 128, 9, 0, 2, 0, 0, false},
        {3, 12, 3, 128, 128, 13, 14, 5, 0, 0, false},
        {2, 8, 2, 128, 128, 11, 7, 40, 0, 3, true},
        /* ahead: ring smaller than a layer, with two parts and four; all in slots; nothing in slots */
        {3, 8, 2, 128, 128, 17, 5, 3, 0, 0, false},
        {2, 12, 3, 128, 128, 33, 9, 16, 0, 0, false},
        {2, 8, 2, 128, 128, 16, 16, 4, 0, 0, true},
        {4, 8, 3, 128, 128, 12, 0, 2, 0, 0, false},
        /* all rows choose the same: one group has all tiles */
        {2, 24, 2, 128, 128, 70, 12, 2, 0, 2, false},
    };

    (void)state;
    for (size_t k = 0; k < N_KINDS; k++) {
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
            if (has_card() || k == 0 || i % 4 == k % 4) {
                compare(&KINDS[k], &all[i]);
            }
        }
    }
}

/* Every segment brings all experts over; the number of segments changes nothing. */
static void several_segments(void **state)
{
    static const struct sizes all[] = {
        {2, 8, 2, 128, 128, 40, 5, 3, 16, 0, false},
        {3, 8, 2, 128, 128, 33, 0, 16, 16, 0, false},
    };
    static const struct sizes asked = {2, 16, 1, 128, 128, 39, 11, 4, 16, 0, false};

    (void)state;
    for (size_t k = 0; k < N_KINDS; k += 2) {
        compare(&KINDS[k], &all[k / 2 % 2]);
    }
    compare(&KINDS[0], &asked);
    compare(&KINDS[3], &all[1]);
}

/* On a card streams are what they are. */
static void late_streams(void **state)
{
    static const enum late_policy policies[] = {LATE_ALL, LATE_FIRST, LATE_OTHERS, LATE_DICE,
                                                LATE_DICE};
    static const struct sizes all[] = {
        {4, 8, 2, 128, 128, 17, 7, 3, 0, 0, false},
        {3, 12, 3, 128, 128, 13, 10, 4, 0, 0, false},
        {3, 20, 2, 128, 128, 41, 12, 16, 0, 0, false},
        {3, 8, 2, 128, 128, 40, 5, 2, 16, 0, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct bed b;
        float *want;

        bed_make(&b, &KINDS[i % 3], &all[i], 31 + i);
        want = resident(&b, cuda_emulator_driver());
        for (size_t p = 0; p < sizeof policies / sizeof policies[0]; p++) {
            b.share = i == 1 ? SHARE_EVERY_SECOND : SHARE_NO_CPU;
            expect_streamed(&b, want, late_driver(policies[p], 100 + p), "with late streams");
        }
        free(want);
        bed_release(&b);
    }
}

/* What of a step's choices no row made. */
static void idx_pad(struct bed *b)
{
    for (size_t l = 0; l < b->is.n_layers; l++) {
        for (size_t i = 0; i < b->is.n_rows * b->is.top_k; i += 5 + l) {
            b->idx[l][i] = -1;
        }
    }
}

static void cpu_has_a_part(void **state)
{
    static const enum share shares[] = {SHARE_NOTHING, SHARE_EVERY_SECOND, SHARE_ALL};
    static const struct sizes all[] = {
        {2, 12, 3, 128, 128, 9, 9, 4, 0, 0, false},
        {3, 24, 3, 128, 128, 17, 14, 16, 0, 0, true},
        {2, 32, 1, 128, 128, 127, 20, 5, 0, 0, false}, /* as many as are asked for */
        {2, 16, 1, 128, 128, 39, 11, 4, 16, 0, false}, /* in segments */
    };
    const struct cuda_driver *driver = has_card() ? NULL : cuda_emulator_driver();

    (void)state;
    for (size_t k = 0; k < N_KINDS; k++) {
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
            struct bed b;
            float *want;

            if (!has_card() && i % 4 != k % 4 && k > 0) {
                continue;
            }
            bed_make(&b, &KINDS[k], &all[i], 71 + i);
            if (i % 2 == 1) {
                idx_pad(&b);
            }
            want = resident(&b, driver);
            for (size_t s = k > 0 && !has_card(); s < sizeof shares / sizeof shares[0]; s++) {
                double worst;

                b.share = shares[s];
                b.takes_turns = s == 2 && k % 2 == 1;
                worst = expect_streamed(&b, want, driver, "beside the CPU");
                print_message("%-20s %3zu rows, share %d: %.2e\n", b.kind->name, b.is.n_rows,
                              (int)b.share, worst);
                assert_true(b.share != SHARE_NOTHING || worst == 0);
            }
            free(want);
            bed_release(&b);
        }
    }
}

/* More rows than the CPU may share are not divided, and those whose choices are not asked for. */
static void cpu_has_no_part(void **state)
{
    static const struct sizes all[] = {
        {2, 40, 1, 128, 128, EXPERT_HOME_LARGE_ROWS + 1, 20, 5, 0, 0, false},
        {2, 8, 2, 128, 128, 16, 7, 4, 0, 0, false}};

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct bed b;
        float *want;

        bed_make(&b, &KINDS[0], &all[i], 81);
        b.share = SHARE_ALL;
        want = resident(&b, cuda_emulator_driver());
        assert_true(expect_streamed(&b, want, cuda_emulator_driver(), "without the CPU") == 0);
        free(want);
        bed_release(&b);
    }
}

/* As streams without turns, however late; with and without choices that are asked for. */
static void taking_turns(void **state)
{
    static const enum late_policy policies[] = {LATE_ALL, LATE_FIRST, LATE_OTHERS, LATE_DICE};
    static const struct sizes all[] = {
        {3, 12, 3, 128, 128, 13, 10, 4, 0, 0, false},
        {3, 20, 2, 128, 128, 41, 12, 16, 0, 0, false},
        {2, 8, 2, 128, 128, 40, 5, 2, 16, 0, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct bed b;
        float *want;

        bed_make(&b, &KINDS[i], &all[i], 91 + i);
        b.takes_turns = true;
        want = resident(&b, cuda_emulator_driver());
        for (size_t p = 0; p < sizeof policies / sizeof policies[0]; p++) {
            expect_streamed(&b, want, late_driver(policies[p], 7 + p), "in turns");
        }
        free(want);
        bed_release(&b);
    }
}

/* The CPU's error is the step's; the next step is right. */
static void cpu_fails(void **state)
{
    static const struct sizes is = {3, 12, 3, 128, 128, 13, 10, 4, 0, 0, false};
    struct error err = {0};
    struct bed b;
    struct rig r;
    float *want, *got;

    (void)state;
    bed_make(&b, &KINDS[0], &is, 95);
    b.share = SHARE_EVERY_SECOND;
    want = resident(&b, cuda_emulator_driver());
    rig_open(&r, &b, late_driver(LATE_ALL, 0), true, true);
    for (size_t l = 1; l <= is.n_layers; l++) {
        r.log.n_calls = r.log.n_computed = 0;
        r.log.fail_compute_at = l;
        assert_int_equal(rig_run(&r, &b, AS_PLAN, &err), ERR_INTERNAL);
        assert_non_null(strstr(err.text, "the CPU has no answer"));
        assert_non_null(strstr(err.text, "'experts' of layer"));
        r.log.n_calls = r.log.fail_compute_at = 0;
        must(rig_run(&r, &b, AS_PLAN, &err), &err);
        got = rig_read(&r, &b);
        assert_true(shared_rows(&r, &b, want, got) <= share_tolerance(&b));
        same("after the CPU's error", &b, want, got);
        free(got);
    }
    free(want);
    rig_close(&r);
    bed_release(&b);
}

/* A step in which a call fails is an error and nothing else; the next one is right again. */
static void calls_fail(void **state)
{
    static const struct sizes all[] = {{3, 4, 2, 128, 128, 9, 5, 2, 0, 0, false},
                                       {2, 6, 2, 128, 128, 10, 4, 2, 0, 0, false},
                                       {2, 6, 2, 128, 128, 10, 4, 2, 0, 0, false}};

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct error err = {0};
        size_t n_failed = 0;
        struct bed b;
        struct rig r;
        float *want, *got;

        bed_make(&b, &KINDS[0], &all[i], 41);
        b.share = i == 2 ? SHARE_EVERY_SECOND : SHARE_NO_CPU;
        b.takes_turns = i == 1;
        want = resident(&b, cuda_emulator_driver());
        rig_open(&r, &b, late_driver(LATE_ALL, 0), true, true);
        for (bool has_failed = true; has_failed;) {
            out_poison(&r, &b);
            r.log.n_calls = 0;
            late_fail(b.is.n_layers + ++n_failed); /* not what poisons the outputs */
            has_failed = rig_run(&r, &b, AS_PLAN, &err) != OK;
            late_fail(0);
            r.log.n_calls = 0;
            if (has_failed) {
                assert_true(err.text[0] != 0);
                must(rig_run(&r, &b, (enum way)(n_failed % WAYS), &err), &err);
            }
            got = rig_read(&r, &b);
            assert_true(shared_rows(&r, &b, want, got) <= share_tolerance(&b));
            same("after an error", &b, want, got);
            free(got);
        }
        assert_true(n_failed > 40);
        free(want);
        rig_close(&r);
        bed_release(&b);
    }
}

static void no_memory(void **state)
{
    static const struct sizes is = {2, 8, 2, 128, 128, 17, 7, 4, 0, 0, false};
    const struct cuda_driver *drv = late_driver(LATE_NOBODY, 0);
    struct cuda_backend_options o = {.driver = drv};
    struct rig r = {0};
    struct error err = {0};
    size_t n = 0, before, after, total;
    enum status rc = ERR_NO_MEMORY;
    struct bed b;

    (void)state;
    bed_make(&b, &KINDS[0], &is, 51);
    b.share = SHARE_ALL;
    must(cuda_backend_new(&r.be, &o, &err), &err);
    drv->mem_get_info(&before, &total);
    while (rc != OK) {
        for (size_t l = 0; l < LAYERS_MAX; l++) {
            r.be->ops->host_free(r.be, r.host_blocks[l]);
            r.host_blocks[l] = NULL;
        }
        late_fail_memory(b.is.n_layers + ++n);
        rc = home_make(&r, &b, &err);
        late_fail_memory(0);
        if (rc != OK) {
            assert_int_equal(rc, ERR_NO_MEMORY);
            assert_null(inside(&r)->own->streaming);
            drv->mem_get_info(&after, &total);
            assert_int_equal(before, after);
        }
    }
    assert_true(n >= 5);
    drv->mem_get_info(&after, &total);
    assert_true(before - after >= b.is.n_slots * b.block.n_bytes + cuda_stream_bytes(&r.home));
    rig_close(&r);
    bed_release(&b);
}

/* Other plans and broken promises. */
static void other_orders(void **state)
{
    static const struct sizes is = {4, 8, 2, 128, 128, 17, 7, 3, 0, 0, false};
    static const size_t orders[][5] = {
        {0, 2, 1, 3, 0}, {3, 2, 1, 0, 0}, {1, 1, 1, 2, 0}, {0, 1, 2, 3, 3}};
    struct state_pools none = {0};
    struct error err = {0};
    struct bed b;
    struct rig r;
    float *want, *got;

    (void)state;
    bed_make(&b, &KINDS[0], &is, 61);
    b.is.n_layers = 4;
    want = resident(&b, cuda_emulator_driver());
    rig_open(&r, &b, late_driver(LATE_ALL, 0), true, true);
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        out_poison(&r, &b);
        must(r.be->ops->begin(r.be, &r.step, &err), &err);
        for (size_t j = 0; j < 5; j++) {
            r.log.n_calls = orders[i][j];
            must(r.be->ops->run(r.be, &r.ops[orders[i][j]], &r.step, &none, &err), &err);
        }
        must(r.be->ops->end(r.be, &r.step, &err), &err);
        got = rig_read(&r, &b);
        for (size_t j = 0; j < 5; j++) {
            size_t at = orders[i][j] * b.out_floats;

            assert_memory_equal(want + at, got + at, b.out_floats * sizeof *got);
        }
        free(got);
    }
    free(want);
    rig_close(&r);
    bed_release(&b);
}

/* A 35B-A3B layer's sizes with a quarter of the experts; only on a card. */
static void real_sizes(void **state)
{
    static const struct sizes all[] = {{4, 64, 8, 2048, 512, 20, 100, 16, 0, 0, false},
                                       {4, 64, 8, 2048, 512, 300, 100, 16, 0, 0, false},
                                       {4, 64, 8, 2048, 512, 4100, 40, 8, 1024, 0, false}};

    (void)state;
    for (size_t i = 0; has_card() && i < sizeof all / sizeof all[0]; i++) {
        compare(&KINDS[0], &all[i]);
        compare(&KINDS[3], &all[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streamed_as_resident),
        cmocka_unit_test(several_segments),
        cmocka_unit_test(late_streams),
        cmocka_unit_test(cpu_has_a_part),
        cmocka_unit_test(cpu_has_no_part),
        cmocka_unit_test(taking_turns),
        cmocka_unit_test(cpu_fails),
        cmocka_unit_test(calls_fail),
        cmocka_unit_test(no_memory),
        cmocka_unit_test(other_orders),
        cmocka_unit_test(real_sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
