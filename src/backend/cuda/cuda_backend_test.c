/* cuda_backend_test.c - the backend around the operations: tables of steps, graphs, memory, copies, and
 * what it makes of a driver's errors.
 *
 * What needs kernels runs on a card where there is one, else on the emulator; errors are made by a copy of
 * the emulator's table in which one function or another fails. */
#include "backend/cpu/cpu_test_util.h"
#include "backend/cuda/cuda_private.h"
#include "backend/cuda/emulator/emulator.h"
#include "backend/cuda/emulator/emulator_test_args.h"

enum { HIDDEN = 64, VOCAB = 50, ROWS = 20, CONTEXT = 5000 };

static struct backend *backend_on(const struct cuda_driver *drv, bool no_graphs, size_t limit)
{
    struct cuda_backend_options o = {.driver = drv, .no_graphs = no_graphs, .memory_limit = limit};
    struct error err = {0};
    struct backend *be;

    if (cuda_backend_new(&be, &o, &err) != OK) {
        fail_msg("%s", err.text);
    }
    return be;
}

/* A card, or the emulator. */
static struct backend *backend_any(bool no_graphs)
{
    char why[256];

    return backend_on(cuda_is_there(why, sizeof why) ? NULL : cuda_emulator_driver(), no_graphs, 0);
}

static struct cuda_backend *inside(struct backend *be)
{
    return (struct cuda_backend *)be;
}

static void must(enum status rc, const struct error *err)
{
    if (rc != OK) {
        fail_msg("%s: %s", status_name(rc), err->text);
    }
}

static void has_text(const struct error *err, const char *part)
{
    if (!strstr(err->text, part)) {
        fail_msg("'%s' is not in '%s'", part, err->text);
    }
}

/* ---- a plan of the small operations ---- */

struct plan {
    struct op ops[5];
    float *table, *weight, *x, *u, *out; /* on the device */
};

static struct operand operand(float *data, size_t cols)
{
    return (struct operand){.data = data, .dtype = DTYPE_F32, .round = DTYPE_F32, .cols = cols};
}

static float *device_floats(struct backend *be, size_t n, uint64_t *seed)
{
    float *host = test_floats(n, 1.0f, seed);
    float *data = be->ops->buffer_new(be, n * sizeof *data);

    assert_non_null(data);
    be->ops->write(be, data, host, n * sizeof *data);
    free(host);
    return data;
}

static void plan_make(struct plan *p, struct backend *be)
{
    uint64_t seed = 77;
    struct error err = {0};

    p->table = device_floats(be, VOCAB * HIDDEN, &seed);
    p->weight = device_floats(be, HIDDEN, &seed);
    p->x = device_floats(be, ROWS * HIDDEN, &seed);
    p->u = device_floats(be, ROWS * HIDDEN, &seed);
    p->out = device_floats(be, ROWS * HIDDEN, &seed);
    p->ops[0] = (struct op){.kind = OP_EMBED,
                            .layer = -1,
                            .name = "embedding",
                            .u.embed = {.table = {.kind = WEIGHT_DENSE,
                                                  .dtype = DTYPE_F32,
                                                  .n_out = VOCAB,
                                                  .n_in = HIDDEN,
                                                  .data = p->table},
                                        .out = operand(p->x, HIDDEN)}};
    p->ops[1] = (struct op){.kind = OP_NORM,
                            .name = "norm",
                            .u.norm = {.in = operand(p->x, HIDDEN),
                                       .out = operand(p->u, HIDDEN),
                                       .weight = p->weight,
                                       .eps = 1e-6f}};
    p->ops[2] = (struct op){.kind = OP_SWIGLU,
                            .name = "swiglu",
                            .u.swiglu = {.gate = operand(p->x, HIDDEN),
                                         .up = operand(p->u, HIDDEN),
                                         .out = operand(p->u, HIDDEN)}};
    p->ops[3] = (struct op){
        .kind = OP_CHECK, .layer = 3, .name = "check", .u.check.x = operand(p->u, HIDDEN)};
    p->ops[4] =
        (struct op){.kind = OP_GATHER,
                    .rows = ROWS_OUT,
                    .layer = -1,
                    .name = "gather",
                    .u.gather = {.in = operand(p->u, HIDDEN), .out = operand(p->out, HIDDEN)}};
    for (size_t i = 0; i < 5; i++) {
        must(be->ops->check(be, &p->ops[i], &err), &err);
        assert_non_null(p->ops[i].kernel);
    }
    must(be->ops->prepare(be, p->ops, 5, ROWS, CONTEXT, &err), &err);
}

static void plan_release(struct plan *p, struct backend *be)
{
    be->ops->buffer_free(be, p->table);
    be->ops->buffer_free(be, p->weight);
    be->ops->buffer_free(be, p->x);
    be->ops->buffer_free(be, p->u);
    be->ops->buffer_free(be, p->out);
    be->ops->free(be);
}

/* A step of n sequences; sequence i has lengths[i] rows, begins at 100 i, and has its last row wanted. */
struct made_step {
    struct step step;
    int32_t tokens[ROWS], out_rows[ROWS], pages[ROWS][CONTEXT / KV_PAGE_TOKENS + 1];
    struct span spans[ROWS];
    int16_t bad[ROWS];
    float margin[ROWS];
};

static void step_make(struct made_step *m, const size_t *lengths, size_t n, uint64_t seed)
{
    *m = (struct made_step){0};
    for (size_t i = 0; i < n; i++) {
        m->spans[i] = (struct span){.row = m->step.n_rows,
                                    .n_rows = lengths[i],
                                    .position = 100 * i,
                                    .slot = (int32_t)(i + 1),
                                    .pages = m->pages[i],
                                    .state_is_zero = i == 0};
        for (size_t j = 0; j < CONTEXT / KV_PAGE_TOKENS + 1; j++) {
            m->pages[i][j] = (int32_t)(100 * i + j);
        }
        m->step.n_rows += lengths[i];
        m->out_rows[i] = (int32_t)m->step.n_rows - 1;
    }
    for (size_t i = 0; i < ROWS; i++) {
        m->tokens[i] = (int32_t)(test_next(&seed) % VOCAB);
        m->bad[i] = -1;
        m->margin[i] = INFINITY;
    }
    m->step.tokens = m->tokens;
    m->step.spans = m->spans;
    m->step.n_spans = n;
    m->step.out_rows = m->out_rows;
    m->step.n_out_rows = n;
    m->step.bad_layer = m->bad;
}

static const size_t ones[ROWS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

/* ---- sizes ---- */

static void test_buckets(void **state)
{
    size_t n_sizes = 0, last = 0;

    (void)state;
    for (size_t max = 1; max < 600; max += 37) {
        for (size_t n = 1; n <= max; n++) {
            size_t b = cuda_rows_bucket(n, max);

            assert_true(b >= n && b <= max && b >= cuda_rows_bucket(n - 1, max));
        }
    }
    for (size_t n = 1; n <= 256; n++) {
        n_sizes += cuda_rows_bucket(n, 4096) != last;
        last = cuda_rows_bucket(n, 4096);
        assert_true(last < 2 * n);
    }
    assert_int_equal(n_sizes, 14); /* 1 2 4 8 16 32 48 64 96 ... 256 */
    assert_int_equal(cuda_context_bucket(1, 1 << 18), 1024);
    assert_int_equal(cuda_context_bucket(1024, 1 << 18), 1024);
    assert_int_equal(cuda_context_bucket(1025, 1 << 18), 2048);
    assert_int_equal(cuda_context_bucket(4097, 5000), 5000);
    assert_int_equal(cuda_context_bucket(10, 100), 100);
}

/* ---- tables ---- */

static void fetch(struct backend *be, void *host, const void *table, size_t n_bytes)
{
    be->ops->read(be, host, table, n_bytes);
}

static void expect_tables(struct backend *be, const struct made_step *m)
{
    const struct cuda_shape *shape = &inside(be)->own->shape;
    const struct step_view *v = &shape->view;
    int32_t counts[STEP_COUNTS], rows[ROWS];
    struct step_span spans[ROWS];

    fetch(be, counts, v->counts, sizeof counts);
    assert_int_equal(counts[STEP_ROWS], m->step.n_rows);
    assert_int_equal(counts[STEP_OUT_ROWS], m->step.n_out_rows);
    assert_int_equal(counts[STEP_SPANS], m->step.n_spans);
    fetch(be, rows, v->tokens, shape->n_rows * sizeof *rows);
    assert_memory_equal(rows, m->tokens, m->step.n_rows * sizeof *rows);
    fetch(be, rows, v->out_rows, shape->n_out_rows * sizeof *rows);
    assert_memory_equal(rows, m->out_rows, m->step.n_out_rows * sizeof *rows);
    fetch(be, rows, v->bad_layer, shape->n_rows * sizeof *rows);
    for (size_t i = 0; i < shape->n_rows; i++) {
        assert_int_equal(rows[i], CUDA_NO_BAD_LAYER);
    }
    fetch(be, spans, v->spans, shape->n_spans * sizeof *spans);
    for (size_t i = 0; i < m->step.n_spans; i++) {
        const struct span *s = &m->spans[i];
        int32_t pages[CONTEXT / KV_PAGE_TOKENS + 1];
        size_t n_pages = (s->position + s->n_rows + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;

        assert_int_equal(spans[i].row, s->row);
        assert_int_equal(spans[i].n_rows, s->n_rows);
        assert_int_equal(spans[i].position, s->position);
        assert_int_equal(spans[i].slot, s->slot);
        assert_int_equal(spans[i].state_is_zero, s->state_is_zero);
        fetch(be, pages, v->pages + spans[i].pages_at, n_pages * sizeof *pages);
        assert_memory_equal(pages, s->pages, n_pages * sizeof *pages);
        for (size_t j = 0; j < s->n_rows; j++) {
            fetch(be, rows, v->row_span + s->row + j, sizeof *rows);
            assert_int_equal(rows[0], i);
            fetch(be, rows, v->row_position + s->row + j, sizeof *rows);
            assert_int_equal(rows[0], s->position + j);
        }
    }
    for (size_t i = m->step.n_spans; i < shape->n_spans; i++) {
        assert_int_equal(spans[i].n_rows, 0);
        assert_int_equal(spans[i].pages_at, 0);
        assert_int_equal(spans[i].state_is_zero, 1);
    }
}

static void test_tables(void **state)
{
    static const size_t mixed[] = {1, 9, 1, 4};
    struct backend *be = backend_any(false);
    struct cuda_shape first;
    struct error err = {0};
    struct made_step m;
    struct plan p;

    (void)state;
    plan_make(&p, be);
    step_make(&m, ones, 3, 1);
    must(be->ops->begin(be, &m.step, &err), &err);
    first = inside(be)->own->shape;
    assert_true(first.is_decode);
    assert_int_equal(first.n_rows, 4);
    assert_int_equal(first.n_spans, 4);
    assert_int_equal(first.n_out_rows, 4);
    assert_int_equal(first.span_rows_max, 1);
    assert_int_equal(first.context_max, 1024);
    assert_null(first.view.router_margin);
    expect_tables(be, &m);
    must(be->ops->end(be, &m.step, &err), &err);

    /* Another step of these sizes has its tables at the same places. */
    step_make(&m, ones, 4, 2);
    must(be->ops->begin(be, &m.step, &err), &err);
    assert_memory_equal(&first, &inside(be)->own->shape, sizeof first);
    expect_tables(be, &m);
    must(be->ops->end(be, &m.step, &err), &err);

    step_make(&m, mixed, 4, 3);
    m.step.router_margin = m.margin;
    must(be->ops->begin(be, &m.step, &err), &err);
    assert_false(inside(be)->own->shape.is_decode);
    assert_int_equal(inside(be)->own->shape.n_rows, 15);
    assert_int_equal(inside(be)->own->shape.span_rows_max, 9);
    assert_int_equal(inside(be)->own->shape.context_max, 304);
    assert_non_null(inside(be)->own->shape.view.router_margin);
    expect_tables(be, &m);
    must(be->ops->end(be, &m.step, &err), &err);
    for (size_t i = 0; i < ROWS; i++) {
        assert_int_equal(m.bad[i], -1);
        assert_true(isinf(m.margin[i]));
    }
    plan_release(&p, be);
}

static void expect_begin(struct backend *be, const struct step *step, enum status code,
                         const char *part)
{
    struct error err = {0};

    assert_int_equal(be->ops->begin(be, step, &err), code);
    has_text(&err, part);
}

static void test_steps_refused(void **state)
{
    struct backend *be = backend_any(false);
    struct error err = {0};
    struct made_step m;
    struct plan p;
    int32_t pages[(1 << 18) / KV_PAGE_TOKENS + 1] = {0};
    static struct span spans[100];
    static int32_t none[100];

    (void)state;
    step_make(&m, ones, 2, 1);
    expect_begin(be, &m.step, ERR_INTERNAL, "prepare() comes before");
    plan_make(&p, be);
    assert_int_equal(be->ops->run(be, &p.ops[0], &m.step, NULL, &err), ERR_INTERNAL);
    has_text(&err, "begin() comes before");
    assert_int_equal(be->ops->end(be, &m.step, &err), ERR_INTERNAL);
    m.step.n_rows = ROWS + 1;
    expect_begin(be, &m.step, ERR_INTERNAL, "21 rows");
    step_make(&m, ones, 2, 1);
    m.spans[1].position = CONTEXT;
    expect_begin(be, &m.step, ERR_INTERNAL, "5000 and 1 more");
    step_make(&m, ones, 2, 1);
    m.out_rows[1] = 2;
    expect_begin(be, &m.step, ERR_INTERNAL, "row 2 is wanted");
    step_make(&m, ones, 2, 1);
    m.spans[1].row = 2;
    expect_begin(be, &m.step, ERR_INTERNAL, "rows 2 and 1");

    /* More pages than the tables hold is the caller's to split. */
    must(be->ops->prepare(be, p.ops, 5, 100, 1 << 18, &err), &err);
    for (size_t i = 0; i < 100; i++) {
        spans[i] = (struct span){.row = i, .n_rows = 1, .position = (1 << 18) - 1, .pages = pages};
    }
    m.step = (struct step){.n_rows = 100, .tokens = none, .spans = spans, .n_spans = 100};
    expect_begin(be, &m.step, ERR_LIMIT, "pages of 64 tokens");
    m.step.n_rows = m.step.n_spans = 60;
    must(be->ops->begin(be, &m.step, &err), &err);
    must(be->ops->end(be, &m.step, &err), &err);
    plan_release(&p, be);
}

/* ---- steps ---- */

enum how { OP_BY_OP, ALL_AT_ONCE };

static void run_step(struct backend *be, struct plan *p, struct made_step *m, enum how how,
                     float *out)
{
    static const struct state_pools pools;
    struct error err = {0};

    must(be->ops->begin(be, &m->step, &err), &err);
    if (how == ALL_AT_ONCE) {
        must(be->ops->run_all(be, &m->step, &pools, &err), &err);
    } else {
        for (size_t i = 0; i < 5; i++) {
            must(be->ops->run(be, &p->ops[i], &m->step, &pools, &err), &err);
            must(be->ops->wait(be, &err), &err);
        }
    }
    be->ops->read(be, out, p->out, m->step.n_out_rows * HIDDEN * sizeof *out);
    must(be->ops->end(be, &m->step, &err), &err);
}

/* Op by op, as graphs, and as launches: the same bits, also when a graph is used again, and for steps
 * that are no decode steps. */
static void test_graphs(void **state)
{
    static const size_t mixed[] = {1, 9, 1, 4};
    struct backend *graphs = backend_any(false), *plain = backend_any(true);
    static float a[ROWS * HIDDEN], b[ROWS * HIDDEN], c[ROWS * HIDDEN];
    struct plan p, q;

    (void)state;
    plan_make(&p, graphs);
    plan_make(&q, plain);
    for (size_t turn = 0; turn < 3; turn++) {
        for (size_t n = 1; n <= ROWS; n += 1 + n / 3) {
            struct made_step m;

            step_make(&m, ones, n, 10 * turn + n);
            run_step(graphs, &p, &m, OP_BY_OP, a);
            run_step(graphs, &p, &m, ALL_AT_ONCE, b);
            run_step(plain, &q, &m, ALL_AT_ONCE, c);
            assert_memory_equal(a, b, n * HIDDEN * sizeof *a);
            assert_memory_equal(a, c, n * HIDDEN * sizeof *a);
        }
    }
    /* Rows 1, 2, 4, 8, 16 with contexts to 1024, 16 and 20 with 2048. */
    assert_int_equal(inside(graphs)->own->n_graphs, 7);
    assert_int_equal(inside(plain)->own->n_graphs, 0);
    for (size_t turn = 0; turn < 2; turn++) {
        struct made_step m;

        step_make(&m, mixed, 4, turn);
        run_step(graphs, &p, &m, ALL_AT_ONCE, a);
        run_step(plain, &q, &m, OP_BY_OP, b);
        assert_memory_equal(a, b, 4 * HIDDEN * sizeof *a);
        m.step.n_out_rows = 0; /* nothing is wanted: rows of output are left out */
        run_step(graphs, &p, &m, ALL_AT_ONCE, a);
    }
    plan_release(&p, graphs);
    plan_release(&q, plain);
}

static void test_bad_layer(void **state)
{
    struct backend *be = backend_any(false);
    static float out[ROWS * HIDDEN];
    float nan = NAN;
    struct made_step m;
    struct plan p;

    (void)state;
    plan_make(&p, be);
    step_make(&m, ones, 3, 5);
    m.tokens[0] = 7;
    m.tokens[1] = 8;
    m.tokens[2] = 7;
    be->ops->write(be, p.table + 8 * HIDDEN + 5, &nan, sizeof nan);
    for (int turn = 0; turn < 2; turn++) {
        run_step(be, &p, &m, ALL_AT_ONCE, out);
        assert_int_equal(m.bad[0], -1);
        assert_int_equal(m.bad[1], 3);
        assert_int_equal(m.bad[2], -1);
        m.bad[1] = -1;
    }
    plan_release(&p, be);
}

/* More kinds of steps than are kept. */
static void test_graphs_go(void **state)
{
    struct backend *be = backend_on(cuda_emulator_driver(), false, 0);
    static float a[ROWS * HIDDEN], b[ROWS * HIDDEN];
    struct error err = {0};
    struct made_step m;
    struct plan p;

    (void)state;
    plan_make(&p, be);
    for (size_t n = 1; n <= ROWS; n++) {
        for (size_t n_out = 0; n_out <= n; n_out++) {
            step_make(&m, ones, n, n);
            m.step.n_out_rows = n_out;
            m.step.router_margin = n_out % 3 == 0 ? m.margin : NULL;
            run_step(be, &p, &m, ALL_AT_ONCE, a);
            run_step(be, &p, &m, OP_BY_OP, b);
            assert_memory_equal(a, b, n_out * HIDDEN * sizeof *a);
            assert_true(inside(be)->own->n_graphs <= CUDA_GRAPHS_MAX);
        }
    }
    must(be->ops->prepare(be, p.ops, 5, ROWS, CONTEXT, &err), &err);
    assert_int_equal(inside(be)->own->n_graphs, 0);
    run_step(be, &p, &m, ALL_AT_ONCE, a);
    assert_memory_equal(a, b, ROWS * HIDDEN * sizeof *a);
    plan_release(&p, be);
}

/* ---- the hook of benchmarks ---- */

enum { EXPERTS = 9, TOP_K = 3 };

static bool hook_rotates(void *ctx, const struct op *op, const struct step *step, size_t n_rows,
                         int32_t *idx)
{
    (void)step;
    assert_int_equal(op->kind, OP_ROUTE);
    *(size_t *)ctx += n_rows;
    for (size_t i = 0; i < n_rows * TOP_K; i++) {
        assert_in_range(idx[i], 0, EXPERTS - 1);
        idx[i] = (idx[i] + 1) % EXPERTS;
    }
    return n_rows != 2;
}

static void test_hook(void **state)
{
    struct backend *be = backend_any(false);
    uint64_t seed = 4;
    int32_t *idx = be->ops->buffer_new(be, ROWS * TOP_K * sizeof *idx);
    float *prob = be->ops->buffer_new(be, ROWS * TOP_K * sizeof *prob);
    float *x = device_floats(be, ROWS * HIDDEN, &seed);
    float *w = device_floats(be, EXPERTS * HIDDEN, &seed);
    struct op op = {.kind = OP_ROUTE,
                    .name = "router",
                    .u.route = {.in = operand(x, HIDDEN),
                                .router = {.kind = WEIGHT_DENSE,
                                           .dtype = DTYPE_F32,
                                           .n_out = EXPERTS,
                                           .n_in = HIDDEN,
                                           .data = w},
                                .idx = {.data = idx, .dtype = DTYPE_I32, .cols = TOP_K},
                                .prob = operand(prob, TOP_K),
                                .n_experts = EXPERTS,
                                .top_k = TOP_K,
                                .renormalise = true}};
    int32_t plain[3 * TOP_K], seen[3 * TOP_K];
    float probs[3 * TOP_K], weighed[3 * TOP_K];
    struct error err = {0};
    struct made_step m;
    size_t n_seen = 0;

    (void)state;
    must(be->ops->check(be, &op, &err), &err);
    must(be->ops->prepare(be, &op, 1, ROWS, CONTEXT, &err), &err);
    for (size_t turn = 0; turn < 3; turn++) {
        size_t n = turn == 2 ? 2 : 3; /* of two rows the hook looks only */

        step_make(&m, ones, n, 1);
        m.step.route_hook = turn ? hook_rotates : NULL;
        m.step.route_ctx = &n_seen;
        must(be->ops->begin(be, &m.step, &err), &err);
        if (turn) {
            assert_int_equal(be->ops->run_all(be, &m.step, NULL, &err), ERR_INTERNAL);
        }
        must(be->ops->run(be, &op, &m.step, NULL, &err), &err);
        must(be->ops->end(be, &m.step, &err), &err);
        be->ops->read(be, seen, idx, n * TOP_K * sizeof *seen);
        be->ops->read(be, probs, prob, n * TOP_K * sizeof *probs);
        if (turn == 0) {
            memcpy(plain, seen, sizeof plain);
            memcpy(weighed, probs, sizeof weighed);
        }
        for (size_t i = 0; i < n * TOP_K; i++) {
            assert_int_equal(seen[i], turn == 1 ? (plain[i] + 1) % EXPERTS : plain[i]);
            assert_true(probs[i] == (turn == 1 ? 1.0f / TOP_K : weighed[i]));
        }
    }
    assert_int_equal(n_seen, 5);
    be->ops->buffer_free(be, idx);
    be->ops->buffer_free(be, prob);
    be->ops->buffer_free(be, x);
    be->ops->buffer_free(be, w);
    be->ops->free(be);
}

/* ---- memory and copies ---- */

static void test_copies(void **state)
{
    static const size_t sizes[] = {0, 1, 255, 65536, (1 << 20) + 3, (9 << 20) + 1, (70 << 20) + 5};
    struct backend *be = backend_any(false);
    uint64_t seed = 9;

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t n = sizes[i];
        uint8_t *host = malloc(n + 9), *back = malloc(n + 9);
        uint8_t *a = be->ops->buffer_new(be, n + 8), *b = be->ops->buffer_new(be, n + 8);

        assert_true(host && back && a && b && (uintptr_t)a % 64 == 0);
        memset(back, 1, n + 8);
        be->ops->read(be, back, a, n + 8);
        for (size_t j = 0; j < n + 8; j++) {
            assert_int_equal(back[j], 0);
        }
        for (size_t j = 0; j < n; j++) {
            host[j] = (uint8_t)(test_next(&seed) >> 40);
        }
        be->ops->write(be, a + 3, host, n);
        be->ops->copy(be, b + 5, a + 3, n);
        memset(host + n, 0, 8);
        back[n] = 77;
        be->ops->read(be, back, b + 5, n);
        assert_memory_equal(back, host, n);
        assert_int_equal(back[n], 77);
        be->ops->read(be, back, b, 5);
        assert_int_equal(back[0] | back[1] | back[2] | back[3] | back[4], 0);
        be->ops->buffer_free(be, a);
        be->ops->buffer_free(be, b);
        free(host);
        free(back);
    }
    be->ops->buffer_free(be, NULL);
    be->ops->free(be);
}

static void test_memory_limit(void **state)
{
    struct backend *be = backend_on(cuda_emulator_driver(), false, 64 << 20);
    size_t before = cuda_backend_used(be);
    struct error err = {0};
    CUdeviceptr data;
    void *a, *b;

    (void)state;
    assert_null(be->ops->buffer_new(be, 65 << 20));
    a = be->ops->buffer_new(be, 40 << 20);
    assert_non_null(a);
    assert_true(cuda_backend_used(be) - before >= 40 << 20);
    assert_null(be->ops->buffer_new(be, 30 << 20));
    assert_int_equal(cuda_alloc(inside(be), &data, 30 << 20, "a test", &err), ERR_NO_MEMORY);
    has_text(&err,
             "a test needs 30 MiB of the card's memory: 40 MiB are used, the limit is 64 MiB");
    be->ops->buffer_free(be, a);
    b = be->ops->buffer_new(be, 60 << 20);
    assert_non_null(b);
    be->ops->buffer_free(be, b);
    assert_int_equal(cuda_backend_used(be), before);
    be->ops->free(be);

    be = backend_on(cuda_emulator_driver(), false, 0);
    assert_null(be->ops->buffer_new(be, (size_t)1 << 45));
    assert_int_equal(cuda_alloc(inside(be), &data, (size_t)1 << 45, "a test", &err), ERR_NO_MEMORY);
    has_text(&err, "for a test: CUDA_ERROR_OUT_OF_MEMORY");
    a = be->ops->buffer_new(be, 100); /* it goes on after that */
    assert_non_null(a);
    be->ops->buffer_free(be, a);
    be->ops->free(be);
}

static void test_constants(void **state)
{
    struct backend *be = backend_any(false);
    struct error err = {0};
    static uint8_t host[3 << 20], back[3 << 20];
    void *last = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof host; i++) {
        host[i] = (uint8_t)(i * 7 + i / 256);
    }
    for (size_t n = 1; n < sizeof host; n = 3 * n + 1) {
        void *c = cuda_constant(inside(be), host, n, &err);
        void *zero = cuda_constant(inside(be), NULL, n, &err);

        assert_true(c && zero && c != last && (uintptr_t)c % CUDA_ALIGN == 0);
        be->ops->read(be, back, c, n);
        assert_memory_equal(back, host, n);
        be->ops->read(be, back, zero, n);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(back[i], 0);
        }
        last = c;
    }
    be->ops->free(be);
}

/* ---- launches ---- */

static void expect_launch(struct backend *be, const struct cuda_family *family,
                          struct cuda_grid grid, enum status code, const char *part)
{
    struct emulator_test_args args = {0};
    struct error err = {0};
    enum status rc = cuda_launch(inside(be), family, 0, grid, &args, &err);

    assert_int_equal(rc, code);
    has_text(&err, part);
}

static void test_launches(void **state)
{
    static const char *const names[] = {"emulator_test_sum"}, *const unknown[] = {"no_such_kernel"};
    static const struct cuda_family family = {.kernels = names, .n_kernels = 1},
                                    strange = {.kernels = unknown, .n_kernels = 1};
    struct backend *be = backend_on(cuda_emulator_driver(), false, 0);
    float *in = be->ops->buffer_new(be, 256 * sizeof *in), *out = be->ops->buffer_new(be, 64);
    struct emulator_test_args args = {.in = in, .out = out, .n = 256};
    float ones_[256], sum = 0;
    struct error err = {0};

    (void)state;
    assert_int_equal(cuda_family_load(inside(be), &strange, &err), ERR_UNSUPPORTED);
    has_text(&err, "no kernel 'no_such_kernel'");
    expect_launch(be, &family, (struct cuda_grid){.threads = 256}, ERR_INTERNAL, "was not loaded");
    must(cuda_family_load(inside(be), &family, &err), &err);
    expect_launch(be, &family, (struct cuda_grid){.y = 65536, .threads = 256}, ERR_LIMIT,
                  "'emulator_test_sum' would need a grid of 1 x 65536 x 1 blocks");
    expect_launch(be, &family, (struct cuda_grid){.threads = 2048}, ERR_INTERNAL, "2048 threads");
    expect_launch(be, &family, (struct cuda_grid){.threads = 256, .shared_bytes = 300 << 10},
                  ERR_INTERNAL, "307200 bytes of shared memory");
    expect_launch(be, &family, (struct cuda_grid){.threads = 512}, ERR_INTERNAL,
                  "cuLaunchKernelEx of 'emulator_test_sum' with 1 x 1 x 1 blocks of 512 threads");
    for (size_t i = 0; i < 256; i++) {
        ones_[i] = (float)i;
    }
    be->ops->write(be, in, ones_, sizeof ones_);
    for (size_t kib = 1; kib <= 201; kib += 50) { /* past 48 KiB the function is asked for more */
        must(cuda_launch(inside(be), &family, 0,
                         (struct cuda_grid){.threads = 256, .shared_bytes = kib << 10}, &args,
                         &err),
             &err);
        be->ops->read(be, &sum, out, sizeof sum);
        assert_true(sum == 255 * 128);
    }
    be->ops->buffer_free(be, in);
    be->ops->buffer_free(be, out);
    be->ops->free(be);
}

/* ---- a driver that fails ---- */

static struct {
    const struct cuda_driver *real;
    int version, sm, n_cards;
    int until_sync_fails; /* 1: the next one */
    CUresult capture, instantiate;
    size_t n_graph_launches;
    size_t until_no_memory; /* 1: the next allocation of any kind fails; 0: none */
} faulty;

static bool memory_ends(void)
{
    return faulty.until_no_memory > 0 && --faulty.until_no_memory == 0;
}

static CUresult faulty_alloc(CUdeviceptr *out, size_t n_bytes)
{
    return memory_ends() ? CUDA_ERROR_OUT_OF_MEMORY_ : faulty.real->mem_alloc(out, n_bytes);
}

static CUresult faulty_host_alloc(void **out, size_t n_bytes, unsigned flags)
{
    return memory_ends() ? CUDA_ERROR_OUT_OF_MEMORY_
                         : faulty.real->mem_host_alloc(out, n_bytes, flags);
}

static CUresult faulty_retain(CUcontext *context, CUdevice device)
{
    return memory_ends() ? CUDA_ERROR_OUT_OF_MEMORY_
                         : faulty.real->device_primary_ctx_retain(context, device);
}

static CUresult faulty_stream(CUstream *out, unsigned flags)
{
    return memory_ends() ? CUDA_ERROR_OUT_OF_MEMORY_ : faulty.real->stream_create(out, flags);
}

static CUresult faulty_event(CUevent *out, unsigned flags)
{
    return memory_ends() ? CUDA_ERROR_OUT_OF_MEMORY_ : faulty.real->event_create(out, flags);
}

static CUresult faulty_module(CUmodule *out, const void *image)
{
    return memory_ends() ? CUDA_ERROR_OUT_OF_MEMORY_ : faulty.real->module_load_data(out, image);
}

static CUresult faulty_version(int *version)
{
    *version = faulty.version;
    return 0;
}

static CUresult faulty_count(int *n)
{
    *n = faulty.n_cards;
    return 0;
}

static CUresult faulty_attribute(int *value, int attribute, CUdevice device)
{
    if (attribute == CUDA_ATTRIBUTE_CAPABILITY_MAJOR ||
        attribute == CUDA_ATTRIBUTE_CAPABILITY_MINOR) {
        *value = attribute == CUDA_ATTRIBUTE_CAPABILITY_MAJOR ? faulty.sm / 10 : faulty.sm % 10;
        return 0;
    }
    return faulty.real->device_get_attribute(value, attribute, device);
}

static CUresult faulty_synchronize(CUstream stream)
{
    if (faulty.until_sync_fails > 0 && --faulty.until_sync_fails == 0) {
        return CUDA_ERROR_ILLEGAL_ADDRESS_;
    }
    return faulty.real->stream_synchronize(stream);
}

static CUresult faulty_capture(CUstream stream, int mode)
{
    return faulty.capture ? faulty.capture : faulty.real->stream_begin_capture(stream, mode);
}

static CUresult faulty_instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    return faulty.instantiate ? faulty.instantiate
                              : faulty.real->graph_instantiate(out, graph, flags);
}

static CUresult faulty_graph_launch(CUgraphExec exec, CUstream stream)
{
    faulty.n_graph_launches++;
    return faulty.real->graph_launch(exec, stream);
}

static struct cuda_driver faulty_driver(void)
{
    struct cuda_driver drv = *cuda_emulator_driver();

    faulty.real = cuda_emulator_driver();
    faulty.version = 12080;
    faulty.sm = 90;
    faulty.n_cards = 1;
    faulty.until_sync_fails = 0;
    faulty.capture = faulty.instantiate = 0;
    faulty.n_graph_launches = faulty.until_no_memory = 0;
    drv.mem_alloc = faulty_alloc;
    drv.mem_host_alloc = faulty_host_alloc;
    drv.device_primary_ctx_retain = faulty_retain;
    drv.stream_create = faulty_stream;
    drv.event_create = faulty_event;
    drv.module_load_data = faulty_module;
    drv.driver_get_version = faulty_version;
    drv.device_get_count = faulty_count;
    drv.device_get_attribute = faulty_attribute;
    drv.stream_synchronize = faulty_synchronize;
    drv.stream_begin_capture = faulty_capture;
    drv.graph_instantiate = faulty_instantiate;
    drv.graph_launch = faulty_graph_launch;
    return drv;
}

static void expect_no_backend(const struct cuda_driver *drv, int device, const char *part)
{
    struct cuda_backend_options o = {.driver = drv, .device = device};
    struct error err = {0};
    struct backend *be;

    assert_int_equal(cuda_backend_new(&be, &o, &err), ERR_UNSUPPORTED);
    assert_null(be);
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    has_text(&err, part);
}

static void test_no_backend(void **state)
{
    struct cuda_driver drv = faulty_driver();
    struct error err = {0};

    (void)state;
    assert_null(cuda_driver_open_from("libthere-is-none.so.1", &err));
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    has_text(&err, "there is no NVIDIA driver here");
    assert_null(cuda_driver_open_from("libm.so.6", &err));
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    has_text(&err, "the NVIDIA driver is too old: libm.so.6 has no function 'cuInit'");
    cuda_driver_close(NULL);

    faulty.version = 11040;
    expect_no_backend(&drv, 0, "the NVIDIA driver is for CUDA 11.4, at least 11.8 is needed");
    faulty.version = 11080;
    faulty.sm = 70;
    expect_no_backend(&drv, 0, "has compute capability 7.0, at least 7.5 is needed");
    faulty.sm = 75;
    expect_no_backend(&drv, 1, "there is no NVIDIA card 1 here: 1 in all");
    faulty.n_cards = 0;
    expect_no_backend(&drv, 0, "there is no NVIDIA card 0 here: 0 in all");
}

/* Every allocation of the driver fails once, at the beginning and in a plan. */
static void test_no_memory(void **state)
{
    struct cuda_driver drv = faulty_driver();
    struct cuda_backend_options o = {.driver = &drv};
    enum status rc = ERR_NO_MEMORY;
    struct error err = {0};
    struct backend *be;
    struct plan p;
    size_t n;

    (void)state;
    for (n = 1; rc != OK; n++) {
        faulty.until_no_memory = n;
        rc = cuda_backend_new(&be, &o, &err);
        assert_true(rc == OK || (rc == ERR_NO_MEMORY && !be));
    }
    assert_true(n > 15);
    faulty.until_no_memory = 0;
    plan_make(&p, be);
    rc = ERR_NO_MEMORY;
    for (n = 1; rc != OK; n++) {
        faulty.until_no_memory = n;
        rc = be->ops->prepare(be, p.ops, 5, ROWS, CONTEXT, &err);
        assert_true(rc == OK || rc == ERR_NO_MEMORY);
    }
    assert_true(n > 3);
    faulty.until_no_memory = 0;
    plan_release(&p, be);
}

/* A graph that cannot be made is no error. */
static void test_capture_fails(void **state)
{
    static float a[ROWS * HIDDEN], b[ROWS * HIDDEN];

    (void)state;
    for (int which = 0; which < 3; which++) {
        struct cuda_driver drv = faulty_driver();
        struct backend *be = backend_on(&drv, false, 0);
        struct made_step m;
        struct plan p;

        plan_make(&p, be);
        step_make(&m, ones, 5, 1);
        run_step(be, &p, &m, OP_BY_OP, a);
        faulty.capture = which == 1 ? 900 : 0;
        faulty.instantiate = which == 2 ? CUDA_ERROR_OUT_OF_MEMORY_ : 0;
        for (int turn = 0; turn < 2; turn++) {
            test_poison(b, sizeof b);
            run_step(be, &p, &m, ALL_AT_ONCE, b);
            assert_memory_equal(a, b, 5 * HIDDEN * sizeof *a);
        }
        assert_int_equal(faulty.n_graph_launches, which == 0 ? 2 : 0);
        assert_int_equal(inside(be)->own->n_graphs, which == 0 ? 1 : 0);
        plan_release(&p, be);
    }
}

/* After an error of a kernel nothing works any more, and everything says why. */
static void test_lost(void **state)
{
    struct cuda_driver drv = faulty_driver();
    struct backend *be = backend_on(&drv, false, 0);
    static float out[ROWS * HIDDEN];
    struct error err = {0}, later = {0};
    struct made_step m;
    struct plan p;

    (void)state;
    plan_make(&p, be);
    step_make(&m, ones, 3, 1);
    run_step(be, &p, &m, ALL_AT_ONCE, out);
    must(be->ops->begin(be, &m.step, &err), &err);
    faulty.until_sync_fails = 1;
    assert_int_equal(be->ops->end(be, &m.step, &err), ERR_DEVICE);
    has_text(&err, "waiting for the card");
    assert_int_equal(be->ops->begin(be, &m.step, &later), ERR_DEVICE);
    assert_string_equal(err.text, later.text);
    assert_int_equal(be->ops->run(be, &p.ops[0], &m.step, NULL, &later), ERR_DEVICE);
    assert_int_equal(be->ops->run_all(be, &m.step, NULL, &later), ERR_DEVICE);
    assert_int_equal(be->ops->wait(be, &later), ERR_DEVICE);
    assert_int_equal(be->ops->check(be, &p.ops[0], &later), ERR_DEVICE);
    assert_int_equal(be->ops->prepare(be, p.ops, 5, ROWS, CONTEXT, &later), ERR_DEVICE);
    assert_string_equal(err.text, later.text);
    assert_null(be->ops->buffer_new(be, 100));
    be->ops->copy(be, p.x, p.u, 64);
    be->ops->write(be, p.x, out, 64);
    out[0] = 1;
    be->ops->read(be, out, p.x, 64); /* what nobody computed is not a number */
    assert_true(isnan(out[0]));
    plan_release(&p, be);
}

/* A step that was given up on the way does not disturb the next one. */
static void test_step_given_up(void **state)
{
    struct backend *be = backend_any(false);
    static float a[ROWS * HIDDEN], b[ROWS * HIDDEN];
    struct error err = {0};
    struct made_step m, other;
    struct plan p;

    (void)state;
    plan_make(&p, be);
    step_make(&m, ones, 6, 1);
    step_make(&other, ones, 2, 2);
    run_step(be, &p, &m, ALL_AT_ONCE, a);
    must(be->ops->begin(be, &other.step, &err), &err);
    run_step(be, &p, &m, ALL_AT_ONCE, b);
    assert_memory_equal(a, b, 6 * HIDDEN * sizeof *a);
    plan_release(&p, be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buckets),       cmocka_unit_test(test_tables),
        cmocka_unit_test(test_steps_refused), cmocka_unit_test(test_graphs),
        cmocka_unit_test(test_graphs_go),     cmocka_unit_test(test_bad_layer),
        cmocka_unit_test(test_copies),        cmocka_unit_test(test_memory_limit),
        cmocka_unit_test(test_constants),     cmocka_unit_test(test_launches),
        cmocka_unit_test(test_no_backend),    cmocka_unit_test(test_capture_fails),
        cmocka_unit_test(test_lost),          cmocka_unit_test(test_step_given_up),
        cmocka_unit_test(test_hook),          cmocka_unit_test(test_no_memory),
    };

    return cmocka_run_group_tests_name("cuda_backend", tests, NULL, NULL);
}
