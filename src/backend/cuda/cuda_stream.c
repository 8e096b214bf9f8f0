/* cuda_stream.c - large steps whose experts do not all fit the card. See cuda_stream.h.
 *
 * Place: backend/cuda.
 * Ring:  staging is cut into parts; the copies of group b of a step (counted over all its passes) go to part
 *        b % n_parts. Two events for each part say when its experts have arrived, and when the launches
 *        that read them have ended; both streams only ever wait for each other, the host for neither.
 *        Here with four parts, in a step that is bound by the link:
 *
 *            copies   | b4 -> 0 | b5 -> 1 | b6 -> 2 | b7 -> 3 | b8 -> 0 | ...
 *            compute    b1 | b2 |  b3  |  b4  | next layer's mixer | b5 b6 b7 | ...
 *
 * Trade: a group is computed together, so with more parts each has fewer experts, and launches of few blocks
 *        leave the card idle at their ends; with fewer parts a copy waits longer for its place. The link is
 *        the limit in steps of few rows, so those have more parts (parts_of()).
 * Where: each pass has a table of where its experts are: in a slot, in a part, or, if nobody wants it, nowhere.
 *        Tables are made in pinned memory and go ahead of the pass's first copies.
 * Pageable blocks: the driver copies them to memory of its own before the call returns, so this thread waits for
 *        their place in the ring; nothing that place waits for is this thread's. */
#include "backend/cuda/cuda_stream.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_experts.h"
#include "backend/cuda/cuda_private.h"
#include "backend/cuda/cuda_share.h"
#include "base/size.h"

enum {
    PARTS_FEW = 2,
    PARTS_MANY = 4,
    PART_LEAST = 4, /* blocks, where there are many parts */
    ROWS_OF_FEW_PARTS =
        4096,       /* from here on a step is bound by arithmetic, so groups shall be large */
    ALL_WANTED = 4, /* choices per expert from which on nearly all experts are somebody's choice */
    TABLE_ALIGN = 256,
};

struct pass { /* planned, begun or ended */
    const struct op *op;
    size_t row0;
    size_t first_group;            /* its number in the step */
    size_t n_groups;               /* at least 1 */
    size_t n_resident, n_streamed; /* experts */
    bool is_asked;                 /* resident experts are all in the first group */
    int32_t *streamed;             /* [n_experts] */
    CUevent ended;
};

struct cuda_stream {
    const struct expert_home *home;
    CUstream copies;
    CUevent arrived[PARTS_MANY], is_free[PARTS_MANY];
    CUevent turn; /* where streams take turns: the launches before a group's copies */
    CUdeviceptr staging;
    size_t scratch_max;       /* 0: as usual */
    struct cuda_share *share; /* the CPU's part; NULL: it has none */

    /* Passes of a step take these in turn: one per layer, and as many as can be planned ahead. So the host
     * does not wait for one, but in steps of several segments. */
    size_t n_passes;
    struct pass *passes;   /* [n_passes] */
    int32_t *streamed_all; /* [n_passes][n_experts] */
    size_t table_bytes;
    uint8_t *host_tables;  /* [n_passes] pinned: matrices [n_experts][3], then groups [n_experts] */
    CUdeviceptr tables;    /* the same on the card */
    int32_t *asked;        /* choices of a step that is too small for ALL_WANTED */
    bool *is_wanted;       /* [n_experts] of the card */
    size_t layer_streamed; /* of the passes of the present layer */
    size_t layer_asked;    /* rows of `asked`; 0: it was not necessary */

    /* The step: passes and groups are counted from its beginning. */
    uint64_t step; /* which; 0: none yet */
    bool is_idle;  /* nothing that was asked for is open */
    size_t n_parts, part_blocks;
    size_t n_planned, n_begun, n_ended; /* passes */
    size_t n_copied, n_launched;        /* groups */
};

/* ---- beginning and end ---- */

static size_t table_bytes_of(const struct expert_home *home)
{
    size_t n = home->n_experts * (EXPERTS_MATRICES * sizeof(struct experts_matrix) +
                                  sizeof(int32_t)); /* of at most 65536 experts: small */

    return size_divide_up(n, TABLE_ALIGN) * TABLE_ALIGN;
}

static size_t passes_of(const struct expert_home *home)
{
    return home->n_layers + PARTS_MANY + 1;
}

size_t cuda_stream_bytes(const struct expert_home *home)
{
    return home->n_staging * home->block.n_bytes + passes_of(home) * table_bytes_of(home) +
           cuda_share_bytes(home);
}

size_t cuda_stream_scratch(const struct cuda_backend *be, size_t usual)
{
    const struct cuda_stream *st = be->own->streaming;

    return st && st->scratch_max ? st->scratch_max : usual;
}

void cuda_stream_limit(struct cuda_backend *be, size_t scratch_bytes)
{
    be->own->streaming->scratch_max = scratch_bytes;
}

static enum status event_new(struct cuda_backend *be, CUevent *out, struct error *err)
{
    return cuda_result(be, be->drv->event_create(out, CUDA_EVENT_NO_TIMING), err, "cuEventCreate");
}

static void event_free(struct cuda_backend *be, CUevent event)
{
    if (event) {
        be->drv->event_destroy(event);
    }
}

static enum status host_memory_new(struct cuda_stream *st, struct error *err)
{
    size_t n_experts = st->home->n_experts;

    st->passes = calloc(st->n_passes, sizeof *st->passes);
    st->streamed_all = calloc(st->n_passes * n_experts, sizeof *st->streamed_all);
    st->asked = calloc(ALL_WANTED * n_experts, sizeof *st->asked);
    st->is_wanted = calloc(n_experts, sizeof *st->is_wanted);
    if (!st->passes || !st->streamed_all || !st->asked || !st->is_wanted) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate %zu lists of %zu experts",
                         st->n_passes, n_experts);
    }
    for (size_t i = 0; i < st->n_passes; i++) {
        st->passes[i].streamed = st->streamed_all + i * n_experts;
    }
    return OK;
}

static enum status device_new(struct cuda_backend *be, struct cuda_stream *st, struct error *err)
{
    size_t tables = st->n_passes * st->table_bytes;
    void *host = NULL;
    enum status rc = cuda_result(be, be->drv->stream_create(&st->copies, CUDA_STREAM_NON_BLOCKING),
                                 err, "cuStreamCreate");

    for (size_t i = 0; rc == OK && i < PARTS_MANY; i++) {
        rc = event_new(be, &st->arrived[i], err);
        rc = rc == OK ? event_new(be, &st->is_free[i], err) : rc;
    }
    rc = rc == OK ? event_new(be, &st->turn, err) : rc;
    for (size_t i = 0; rc == OK && i < st->n_passes; i++) {
        rc = event_new(be, &st->passes[i].ended, err);
    }
    if (rc == OK) {
        rc = cuda_result(be, be->drv->mem_host_alloc(&host, tables, 0), err,
                         "cuMemHostAlloc of %zu bytes for tables of experts", tables);
        st->host_tables = rc == OK ? host : NULL;
    }
    if (rc == OK) {
        rc = cuda_alloc(be, &st->tables, tables, "tables of experts", err);
    }
    return rc == OK ? cuda_alloc(be, &st->staging, st->home->n_staging * st->home->block.n_bytes,
                                 "experts on their way", err)
                    : rc;
}

enum status cuda_stream_open(struct cuda_backend *be, const struct expert_home *home,
                             struct error *err)
{
    struct cuda_stream *st;
    enum status rc;

    if (home->n_staging < PARTS_FEW || home->n_experts == 0) {
        return error_set(err, ERR_INTERNAL, "a home of %zu experts with %zu blocks of staging",
                         home->n_experts, home->n_staging);
    }
    cuda_stream_close(be);
    st = calloc(1, sizeof *st);
    if (!st) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a stream of experts");
    }
    st->home = home;
    st->n_passes = passes_of(home);
    st->table_bytes = table_bytes_of(home);
    st->is_idle = true;
    be->own->streaming = st;
    rc = host_memory_new(st, err);
    rc = rc == OK ? device_new(be, st, err) : rc;
    rc = rc == OK ? cuda_share_open(&st->share, be, home, err) : rc;
    if (rc != OK) {
        cuda_stream_close(be);
    }
    return rc;
}

void cuda_stream_close(struct cuda_backend *be)
{
    struct cuda_stream *st = be->own->streaming;

    if (!st) {
        return;
    }
    if (st->copies) {
        be->drv->stream_synchronize(st->copies);
        be->drv->stream_destroy(st->copies);
    }
    for (size_t i = 0; i < PARTS_MANY; i++) {
        event_free(be, st->arrived[i]);
        event_free(be, st->is_free[i]);
    }
    event_free(be, st->turn);
    for (size_t i = 0; st->passes && i < st->n_passes; i++) {
        event_free(be, st->passes[i].ended);
    }
    if (st->host_tables) {
        be->drv->mem_free_host(st->host_tables);
    }
    if (st->tables) {
        be->drv->mem_free(st->tables);
    }
    if (st->staging) {
        be->drv->mem_free(st->staging);
    }
    cuda_share_close(be, st->share);
    free(st->passes);
    free(st->streamed_all);
    free(st->asked);
    free(st->is_wanted);
    free(st);
    be->own->streaming = NULL;
}

/* ---- groups of a pass ---- */

static struct pass *pass_at(struct cuda_stream *st, size_t i)
{
    return &st->passes[i % st->n_passes];
}

/* Of n things dealt out evenly, in order, to n_groups: the first that group g has. */
static size_t share_begin(size_t n, size_t n_groups, size_t g)
{
    return n * g / n_groups;
}

static size_t share_group(size_t n, size_t n_groups, size_t i)
{
    size_t g = i * n_groups / n;

    while (share_begin(n, n_groups, g + 1) <= i) {
        g++;
    }
    return g;
}

/* Where a streamed expert of the pass will be. */
static CUdeviceptr staged_at(const struct cuda_stream *st, const struct pass *p, size_t i, size_t g)
{
    size_t part = (p->first_group + g) % st->n_parts;
    size_t place = part * st->part_blocks + i - share_begin(p->n_streamed, p->n_groups, g);

    return st->staging + place * st->home->block.n_bytes;
}

/* ---- plans ---- */

/* Whether nearly all experts will be wanted by a step of so many rows. */
static bool wants_all(const struct cuda_stream *st, size_t n_rows)
{
    return n_rows * st->home->top_k >= ALL_WANTED * st->home->n_experts;
}

/* Reads the layer's choices back, which waits for the card, and lets the CPU have its part of them. */
static enum status ask(struct cuda_backend *be, struct cuda_stream *st, const struct op *op,
                       struct error *err)
{
    const struct op_experts *u = &op->u.experts;
    size_t n_rows = op->rows == ROWS_OUT ? be->own->step_out_rows : be->own->step_rows;
    size_t n = n_rows * u->top_k;
    enum status rc = cuda_read(be, st->asked, u->idx.data, n * sizeof *st->asked, err);

    memset(st->is_wanted, 0, u->n_experts * sizeof *st->is_wanted);
    for (size_t i = 0; rc == OK && i < n; i++) {
        if (st->asked[i] >= 0 && (size_t)st->asked[i] < u->n_experts) {
            st->is_wanted[st->asked[i]] = true;
        }
    }
    st->layer_asked = rc == OK ? n_rows : 0;
    return rc == OK && st->share
               ? cuda_share_divide(be, st->share, op, n_rows, st->asked, st->is_wanted, err)
               : rc;
}

static void place_set(struct experts_matrix *m, const struct expert_home *home, const void *block)
{
    struct expert_weights w = expert_block_view(&home->block, block);

    m[EXPERTS_GATE] = cuda_experts_matrix(&w.gate);
    m[EXPERTS_UP] = cuda_experts_matrix(&w.up);
    m[EXPERTS_DOWN] = cuda_experts_matrix(&w.down);
}

/* Which experts the pass streams, and how many are in slots. A slot number stands for its expert in the
 * table of groups until groups are known; -1: elsewhere. */
static void experts_divide(struct cuda_stream *st, struct pass *p, int32_t *slot)
{
    const struct expert_home *home = st->home;
    size_t layer = p->op->u.experts.home_layer;

    p->n_streamed = p->n_resident = 0;
    for (size_t e = 0; e < home->n_experts; e++) {
        slot[e] = home->ops->slot_of(home->ctx, layer, e);
        if (slot[e] >= 0) {
            p->n_resident++;
        } else if (!p->is_asked || st->is_wanted[e]) {
            p->streamed[p->n_streamed++] = (int32_t)e;
        }
    }
}

/* The pass's table, of groups last, for they take the place of slots. */
static void table_fill(const struct cuda_backend *be, struct cuda_stream *st, struct pass *p,
                       uint8_t *table)
{
    const struct expert_home *home = st->home;
    struct experts_matrix *m = (struct experts_matrix *)(void *)table;
    int32_t *group = (int32_t *)(void *)(m + home->n_experts * EXPERTS_MATRICES);
    size_t n_bytes = home->block.n_bytes, n_resident = 0, n_streamed = 0;

    experts_divide(st, p, group);
    p->n_groups = size_max(size_divide_up(p->n_streamed, st->part_blocks), 1);
    for (size_t e = 0; e < home->n_experts; e++, m += EXPERTS_MATRICES) {
        if (group[e] >= 0) {
            place_set(m, home, be->own->expert_slots + (size_t)group[e] * n_bytes);
            group[e] =
                p->is_asked ? 0 : (int32_t)share_group(p->n_resident, p->n_groups, n_resident++);
        } else if (n_streamed < p->n_streamed && (size_t)p->streamed[n_streamed] == e) {
            size_t g = share_group(p->n_streamed, p->n_groups, n_streamed);

            place_set(m, home, (const void *)(uintptr_t)staged_at(st, p, n_streamed++, g));
            group[e] = (int32_t)g;
        } else { /* nowhere: who reads it all the same fails at once */
            memset(m, 0, EXPERTS_MATRICES * sizeof *m);
            group[e] = 0;
        }
    }
}

/* The next pass, of these rows; its choices were asked for if they must be. Its table is on its way before
 * its copies, after what was in this place is not read any more. */
static enum status pass_plan(struct cuda_backend *be, struct cuda_stream *st, const struct op *op,
                             size_t row0, bool is_asked, struct error *err)
{
    size_t i = st->n_planned % st->n_passes;
    uint8_t *table = st->host_tables + i * st->table_bytes;
    struct pass *p = &st->passes[i];
    enum status rc = OK;

    if (st->n_planned >= st->n_passes) {
        rc = cuda_result(be, be->drv->event_synchronize(p->ended), err,
                         "waiting for the card (the error may be an earlier kernel's)");
    }
    if (rc != OK) {
        return rc;
    }
    p->op = op;
    p->row0 = row0;
    p->first_group = st->n_copied;
    p->is_asked = is_asked;
    table_fill(be, st, p, table);
    if (st->home->ops->will_stream) {
        st->home->ops->will_stream(st->home->ctx, op->u.experts.home_layer, p->streamed,
                                   p->n_streamed);
    }
    rc = cuda_result(be,
                     be->drv->memcpy_htod_async(st->tables + i * st->table_bytes, table,
                                                st->table_bytes, st->copies),
                     err, "cuMemcpyHtoDAsync of a table of %zu experts", st->home->n_experts);
    st->n_planned += rc == OK;
    return rc;
}

/* The op after this one that has our home; NULL: none. */
static const struct op *next_op(const struct cuda_backend *be, const struct cuda_stream *st,
                                const struct op *op)
{
    const struct op *end = be->own->ops + be->own->n_ops;

    for (op++; op < end; op++) {
        if (op->kind == OP_EXPERTS && op->u.experts.home == st->home) {
            return op;
        }
    }
    return NULL;
}

/* Plans the pass after the last planned one, if nothing need be asked for it. */
static enum status plan_ahead(struct cuda_backend *be, struct cuda_stream *st, bool *is_planned,
                              struct error *err)
{
    const struct pass *last = pass_at(st, st->n_planned - 1);
    const struct op *op = last->op;
    size_t n_rows = cuda_op_rows(op, &be->own->shape);
    size_t row0 = last->row0 + cuda_experts_segment(be, op, n_rows);

    *is_planned = false;
    if (row0 >= n_rows) {
        op = next_op(be, st, op);
        row0 = 0;
        n_rows = op ? cuda_op_rows(op, &be->own->shape) : 0;
    }
    if (!op || !wants_all(st, n_rows)) {
        return OK;
    }
    *is_planned = true;
    return pass_plan(be, st, op, row0, false, err);
}

/* ---- copies ---- */

static enum status run_copy(struct cuda_backend *be, struct cuda_stream *st, const struct pass *p,
                            size_t i, size_t n, size_t g, struct error *err)
{
    size_t n_bytes = st->home->block.n_bytes;
    const uint8_t *from =
        st->home->blocks[p->op->u.experts.home_layer] + (size_t)p->streamed[i] * n_bytes;

    return cuda_result(
        be, be->drv->memcpy_htod_async(staged_at(st, p, i, g), from, n * n_bytes, st->copies), err,
        "cuMemcpyHtoDAsync of %zu experts of layer %d", n, p->op->layer);
}

/* The next group of the last planned pass, when its part is free. Experts that are neighbours on the host are
 * one copy. */
static enum status group_copy(struct cuda_backend *be, struct cuda_stream *st, struct error *err)
{
    const struct pass *p = pass_at(st, st->n_planned - 1);
    size_t part = st->n_copied % st->n_parts, g = st->n_copied - p->first_group;
    size_t i = share_begin(p->n_streamed, p->n_groups, g);
    size_t end = share_begin(p->n_streamed, p->n_groups, g + 1);
    enum status rc = OK;

    if (st->n_copied >= st->n_parts) {
        rc = cuda_result(be, be->drv->stream_wait_event(st->copies, st->is_free[part], 0), err,
                         "cuStreamWaitEvent of copies");
    }
    for (size_t n; rc == OK && i < end; i += n) {
        for (n = 1; i + n < end && p->streamed[i + n] == p->streamed[i] + (int32_t)n; n++) {
        }
        rc = run_copy(be, st, p, i, n, g, err);
    }
    if (rc == OK) {
        rc = cuda_result(be, be->drv->event_record(st->arrived[part], st->copies), err,
                         "cuEventRecord after copies");
    }
    st->n_copied += rc == OK;
    return rc;
}

/* Asks for copies into all parts that are free or will be after what was launched. */
static enum status copies_go_on(struct cuda_backend *be, struct cuda_stream *st, struct error *err)
{
    enum status rc = OK;

    while (rc == OK && !st->home->takes_turns && st->n_copied - st->n_launched < st->n_parts) {
        const struct pass *last = pass_at(st, st->n_planned - 1);
        bool is_planned = true;

        if (st->n_copied == last->first_group + last->n_groups) {
            rc = plan_ahead(be, st, &is_planned, err);
        }
        if (!is_planned) {
            break;
        }
        rc = rc == OK ? group_copy(be, st, err) : rc;
    }
    return rc;
}

/* The present group's, after all that was launched: nothing was copied ahead of it. */
static enum status copies_take_turn(struct cuda_backend *be, struct cuda_stream *st,
                                    struct error *err)
{
    enum status rc = cuda_result(be, be->drv->event_record(st->turn, be->stream), err,
                                 "cuEventRecord before copies");

    rc = rc == OK ? cuda_result(be, be->drv->stream_wait_event(st->copies, st->turn, 0), err,
                                "cuStreamWaitEvent of copies")
                  : rc;
    return rc == OK ? group_copy(be, st, err) : rc;
}

/* ---- a step ---- */

static size_t parts_of(const struct cuda_stream *st, size_t n_rows)
{
    return n_rows < ROWS_OF_FEW_PARTS && st->home->n_staging >= PARTS_MANY * PART_LEAST ? PARTS_MANY
                                                                                        : PARTS_FEW;
}

/* Everything begins anew. After an error, or when a step was not run to its end, copies may still be on their
 * way, and launches that read them. */
static enum status start(struct cuda_backend *be, struct cuda_stream *st, struct error *err)
{
    enum status rc = OK;

    if (!st->is_idle) {
        rc = cuda_wait(be, err);
        rc = rc == OK ? cuda_result(be, be->drv->stream_synchronize(st->copies), err,
                                    "waiting for copies of experts")
                      : rc;
    }
    if (rc == OK) {
        st->step = be->own->n_steps;
        st->is_idle = false;
        st->n_parts = parts_of(st, be->own->shape.n_rows);
        st->part_blocks = st->home->n_staging / st->n_parts;
        st->n_planned = st->n_begun = st->n_ended = st->n_copied = st->n_launched = 0;
    }
    return rc;
}

/* The present pass is planned: ahead, or now. */
static enum status pass_open(struct cuda_backend *be, struct cuda_stream *st, const struct op *op,
                             const struct cuda_shape *shape, size_t row0, struct error *err)
{
    bool is_asked = !wants_all(st, cuda_op_rows(op, shape));
    enum status rc = OK;

    if (row0 == 0) {
        st->layer_streamed = st->layer_asked = 0;
        rc = is_asked ? ask(be, st, op, err) : OK;
    }
    if (rc == OK && st->n_begun == st->n_planned) {
        rc = pass_plan(be, st, op, row0, is_asked, err);
    }
    return rc;
}

enum status cuda_stream_begin(struct cuda_backend *be, const struct op *op,
                              const struct cuda_shape *shape, size_t row0, struct cuda_pass *pass,
                              struct error *err)
{
    const struct op_experts *u = &op->u.experts;
    struct cuda_stream *st = be->own->streaming;
    const struct pass *p;
    enum status rc = OK;
    uint8_t *table;

    if (!st || st->home != u->home || u->home_layer >= st->home->n_layers ||
        u->n_experts != st->home->n_experts || u->top_k != st->home->top_k) {
        return error_set(err, ERR_INTERNAL, "experts '%s' of layer %d: their home is not open",
                         op->name, op->layer);
    }
    /* A step, or ops in another order than the plan's: what was planned ahead is of no use. */
    p = pass_at(st, st->n_begun);
    if (st->step != be->own->n_steps || st->n_ended != st->n_begun ||
        (st->n_begun < st->n_planned && (p->op != op || p->row0 != row0))) {
        rc = start(be, st, err);
    }
    rc = rc == OK ? pass_open(be, st, op, shape, row0, err) : rc;
    p = pass_at(st, st->n_begun);
    st->n_begun += rc == OK;
    rc = rc == OK ? copies_go_on(be, st, err) : rc;
    if (rc != OK) {
        return rc;
    }
    table = (uint8_t *)(uintptr_t)st->tables + (size_t)(p - st->passes) * st->table_bytes;
    *pass = (struct cuda_pass){
        .experts = (const struct experts_matrix *)(void *)table,
        .group_of = (const int32_t *)(void *)(table + st->home->n_experts * EXPERTS_MATRICES *
                                                          sizeof(struct experts_matrix)),
        .n_groups = p->n_groups,
        .first_experts = size_divide_up(p->n_streamed, p->n_groups) +
                         size_divide_up(p->n_resident, p->is_asked ? 1 : p->n_groups),
        .other_experts = size_divide_up(p->n_streamed, p->n_groups) +
                         (p->is_asked ? 0 : size_divide_up(p->n_resident, p->n_groups)),
        .idx = p->is_asked ? cuda_share_idx(st->share, row0) : NULL,
        .more = p->is_asked ? cuda_share_sum(st->share, row0) : NULL,
    };
    return OK;
}

enum status cuda_stream_wait(struct cuda_backend *be, struct error *err)
{
    struct cuda_stream *st = be->own->streaming;
    size_t part = st->n_launched % st->n_parts;
    enum status rc = st->home->takes_turns ? copies_take_turn(be, st, err) : OK;

    return rc == OK ? cuda_result(be, be->drv->stream_wait_event(be->stream, st->arrived[part], 0),
                                  err, "cuStreamWaitEvent of launches")
                    : rc;
}

enum status cuda_stream_done(struct cuda_backend *be, struct error *err)
{
    struct cuda_stream *st = be->own->streaming;
    size_t part = st->n_launched % st->n_parts;
    enum status rc = cuda_result(be, be->drv->event_record(st->is_free[part], be->stream), err,
                                 "cuEventRecord after launches");

    st->n_launched += rc == OK;
    return rc == OK ? copies_go_on(be, st, err) : rc;
}

enum status cuda_stream_share(struct cuda_backend *be, struct error *err)
{
    struct cuda_stream *st = be->own->streaming;
    const struct pass *p = pass_at(st, st->n_begun - 1);

    /* once for all segments */
    return p->row0 == 0 ? cuda_share_compute(be, st->share, p->op, err) : OK;
}

enum status cuda_stream_end(struct cuda_backend *be, struct error *err)
{
    struct cuda_stream *st = be->own->streaming;
    const struct expert_home *home = st->home;
    const struct pass *p = pass_at(st, st->n_begun - 1);
    const struct op *op = p->op;
    size_t n_rows = cuda_op_rows(op, &be->own->shape);
    enum status rc =
        cuda_result(be, be->drv->event_record(p->ended, be->stream), err, "cuEventRecord");

    if (rc != OK) {
        return rc;
    }
    st->n_ended++;
    st->is_idle = st->n_planned == st->n_ended;
    st->layer_streamed += p->n_streamed;
    if (p->row0 + cuda_experts_segment(be, op, n_rows) >= n_rows) {
        n_rows = op->rows == ROWS_OUT ? be->own->step_out_rows : be->own->step_rows;
        home->ops->streamed(home->ctx, op->u.experts.home_layer, n_rows,
                            st->layer_asked ? st->asked : NULL, st->layer_streamed);
    }
    return OK;
}
