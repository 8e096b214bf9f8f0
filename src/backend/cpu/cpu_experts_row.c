/* cpu_experts_row.c - the routed experts of a single row, as fast as memory can be read.
 *
 * Place: backend/cpu; called by cpu_experts.c. A decode step on the CPU runs this once a layer, and so
 *        does every answer to a device that misses experts, which waits for it: microseconds count.
 * Idea:  one region of the pool. Between gate/up and down no thread waits for all others and back again:
 *
 *            thread   own copy of x | gate, up, swiglu of its rows | fetches its part of down | down, sum
 *                                                   |                        ^
 *            expert       rows left, counted down --+- 0: form of hidden -> ready
 *
 *        Who finishes an expert's last row makes the form of its hidden row that down reads. Who waits
 *        for that brings what it will read next into its second level cache, so that memory never rests.
 * Load:  most of a list of rows is cut evenly beforehand: long stretches of memory that nobody disturbs. The
 *        tail is taken piece by piece by whoever is done, since some threads share a core with another.
 * Fetch: the kernels fetch ahead along a stretch. Where one begins, its first lines are asked for here, just
 *        before the last rows of the one before.
 * Bits:  each output is computed as cpu_experts.c does. */
#include <sched.h>
#include <stdatomic.h>

#include "backend/cpu/cpu_experts.h"
#include "base/size.h"

enum {
    ROW_EXPERTS_MAX = 16,
    INNER_GRAIN = LINEAR_TILE_ROWS,
    OUTER_GRAIN = 16, /* floats of one cache line */
    TAIL_PART = 4,    /* of a list: two threads on a core have three quarters of its speed each */
    PIECES_A_THREAD = 2, /* of the tail */
    LINE_BYTES = 64,
    FETCH_BEGIN = 8192, /* of a stretch: as far ahead as the kernels do */
    FETCH_DOWN = 512 * 1024,
    POLLS_PER_YIELD = 1024, /* for machines with fewer cores than threads */
    WORK_MIN = 24 * 1024,   /* multiply-adds; less is done by one thread alone */
};

struct range {
    size_t begin, end;
};

/* Rows [0, n): n_fixed for each thread in turn, then pieces. */
struct list {
    size_t n, grain, n_fixed, piece;
    _Alignas(LINE_BYTES) _Atomic size_t taken;
};

struct row_run {
    const struct experts_run *r;
    struct list inner, outer; /* of the active experts' hidden columns; of output columns */
    struct {
        _Alignas(LINE_BYTES) _Atomic size_t left; /* hidden columns */
        _Alignas(LINE_BYTES) _Atomic bool is_ready;
    } expert[ROW_EXPERTS_MAX];
};

/* --- lists --- */

static void list_init(struct list *l, size_t n, size_t grain, size_t n_threads)
{
    size_t n_units = (n + grain - 1) / grain;
    size_t fixed = (n_units - n_units / TAIL_PART) / n_threads, tail = n_units - fixed * n_threads;

    l->n = n;
    l->grain = grain;
    l->n_fixed = n_threads > 1 ? fixed * grain : n;
    l->piece = size_max(tail / (PIECES_A_THREAD * n_threads), 1) * grain;
    atomic_init(&l->taken, l->n_fixed * n_threads);
}

static struct range list_take(struct list *l)
{
    size_t begin = atomic_fetch_add_explicit(&l->taken, l->piece, memory_order_relaxed);

    return (struct range){size_min(begin, l->n), size_min(begin + l->piece, l->n)};
}

static struct range list_first(struct list *l, size_t thread)
{
    size_t begin = size_min(thread * l->n_fixed, l->n);
    struct range own = {begin, size_min(begin + l->n_fixed, l->n)};

    return own.begin < own.end ? own : list_take(l);
}

/* --- memory --- */

static void fetch(const void *data, size_t begin, size_t end)
{
    for (size_t i = begin & ~(size_t)(LINE_BYTES - 1); i < end; i += LINE_BYTES) {
        __builtin_prefetch((const char *)data + i, 0, 2);
    }
}

/* The first lines of rows [begin, end). */
static void fetch_rows(const struct weight *w, size_t begin, size_t end)
{
    size_t row_bytes = weight_row_bytes(w), scale_bytes;

    end = size_min(end, begin + (FETCH_BEGIN + row_bytes - 1) / row_bytes);
    if (begin >= end) {
        return;
    }
    fetch(w->data, begin * row_bytes, end * row_bytes);
    if (w->scales) {
        scale_bytes = weight_n_groups(w) * dtype_bytes(w->dtype);
        fetch(w->scales, begin * scale_bytes, end * scale_bytes);
    }
}

static const struct expert_weights *weights_of(const struct experts_run *r, size_t i)
{
    return &r->u->experts[r->active[i]];
}

/* What the list's range begins with: columns of its first expert. */
static void fetch_inner(const struct experts_run *r, struct range at)
{
    size_t width = r->u->width, i = at.begin / width, first = at.begin % width;
    size_t last = size_min(width, first + at.end - at.begin);

    if (at.begin < at.end) {
        fetch_rows(&weights_of(r, i)->gate, first, last);
        fetch_rows(&weights_of(r, i)->up, first, last);
    }
}

static void fetch_outer(const struct experts_run *r, struct range at)
{
    for (size_t i = 0; i < r->n_active; i++) {
        fetch_rows(&weights_of(r, i)->down, at.begin, at.end);
    }
}

static void relax(unsigned i)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    if (i % POLLS_PER_YIELD == POLLS_PER_YIELD - 1) {
        sched_yield();
    }
}

static bool is_ready(struct row_run *w, size_t i)
{
    return atomic_load_explicit(&w->expert[i].is_ready, memory_order_acquire);
}

static void wait_ready(struct row_run *w, size_t i)
{
    for (unsigned n = 0; !is_ready(w, i); n++) {
        relax(n);
    }
}

/* While hidden rows are missing: a thread's part of down, as much of it as the cache surely keeps. */
static void fetch_while_waiting(struct row_run *w, struct range own)
{
    const struct experts_run *r = w->r;
    size_t n_bytes = 0;

    for (size_t i = 0; i < r->n_active && own.begin < own.end; i++) {
        const struct weight *down = &weights_of(r, i)->down;
        size_t row_bytes = weight_row_bytes(down), at = own.begin * row_bytes;

        fetch_rows(down, own.begin, own.end); /* for its scales */
        while (at < own.end * row_bytes && n_bytes < FETCH_DOWN) {
            size_t end = size_min(own.end * row_bytes, at + 16 * (size_t)LINE_BYTES);

            if (is_ready(w, r->n_active - 1) && is_ready(w, 0)) {
                return;
            }
            fetch(down->data, at, end);
            n_bytes += end - at;
            at = end;
        }
    }
}

/* --- gate and up --- */

static const float *copy_input(const struct experts_run *r, size_t thread)
{
    size_t n = experts_copy_floats(&r->in_form);
    float *scratch = cpu_scratch(r->be, thread), *copy = scratch + r->be->scratch_floats - n;

    if (n > 0) {
        cpu_input_write(r->be, &r->in_form, copy, 0, r->u->in.data, scratch);
    }
    return copy;
}

/* n more of expert i's hidden columns are there. */
static void count_down(struct row_run *w, size_t i, size_t n, size_t thread)
{
    const struct experts_run *r = w->r;
    size_t e = (size_t)r->active[i], width = r->u->width;

    if (atomic_fetch_sub_explicit(&w->expert[i].left, n, memory_order_acq_rel) > n) {
        return;
    }
    if (r->hidden_form.kind != INPUT_AS_IS) {
        for (size_t slot = (size_t)r->first_slot[e]; slot < (size_t)r->first_slot[e + 1]; slot++) {
            cpu_input_write(r->be, &r->hidden_form, r->hidden_in, slot, r->hidden + slot * width,
                            cpu_scratch(r->be, thread));
        }
    }
    atomic_store_explicit(&w->expert[i].is_ready, true, memory_order_release);
}

/* The range's part that is of one expert. What comes after it is asked for before its last rows. */
static struct range inner_stretch(struct row_run *w, struct range at, const float *in,
                                  size_t thread)
{
    const struct experts_run *r = w->r;
    size_t width = r->u->width, i = at.begin / width, e = (size_t)r->active[i];
    size_t begin = at.begin % width, end = size_min(width, begin + at.end - at.begin);
    size_t mid = end - size_min(end - begin, w->inner.grain);
    struct range next = {at.begin + (end - begin), at.end};

    if (begin < mid) {
        experts_inner(r, e, in, begin, mid, end, thread);
    }
    if (next.begin >= next.end) {
        next = list_take(&w->inner);
    }
    fetch_inner(r, next);
    experts_inner(r, e, in, mid, end, end, thread);
    count_down(w, i, end - begin, thread);
    return next;
}

/* --- down --- */

static struct range outer_stretch(struct row_run *w, struct range at, size_t thread)
{
    const struct experts_run *r = w->r;
    size_t mid = at.end - size_min(at.end - at.begin, w->outer.grain);
    struct range next;

    for (size_t i = 0; i < r->n_active && at.begin < mid; i++) {
        wait_ready(w, i);
        if (i + 1 < r->n_active) {
            fetch_rows(&weights_of(r, i + 1)->down, at.begin, at.end);
        }
        experts_outer(r, (size_t)r->active[i], at.begin, mid, at.end, thread);
    }
    next = list_take(&w->outer);
    fetch_outer(r, next);
    for (size_t i = 0; i < r->n_active; i++) {
        wait_ready(w, i);
        experts_outer(r, (size_t)r->active[i], mid, at.end, at.end, thread);
    }
    experts_sum(r, at.begin, at.end);
    return next;
}

/* --- the region --- */

static void row_thread(void *ctx, size_t begin, size_t end, size_t thread)
{
    struct row_run *w = ctx;
    struct range inner = list_first(&w->inner, thread), outer;

    (void)begin; /* one for each thread */
    (void)end;
    if (inner.begin < inner.end) {
        const float *in;

        fetch_inner(w->r, inner);
        in = copy_input(w->r, thread);
        while (inner.begin < inner.end) {
            inner = inner_stretch(w, inner, in, thread);
        }
    }
    outer = list_first(&w->outer, thread);
    fetch_while_waiting(w, outer);
    while (outer.begin < outer.end) {
        outer = outer_stretch(w, outer, thread);
    }
}

bool experts_run_row(struct cpu_backend *be, const struct experts_run *r)
{
    size_t width = r->u->width, n_threads = be->n_threads;
    struct row_run w = {.r = r};

    if (r->n_active > ROW_EXPERTS_MAX || r->n_active * width * r->u->in.cols < WORK_MIN) {
        return false;
    }
    list_init(&w.inner, r->n_active * width, INNER_GRAIN, n_threads);
    list_init(&w.outer, r->u->out.cols, OUTER_GRAIN, n_threads);
    for (size_t i = 0; i < r->n_active; i++) {
        atomic_init(&w.expert[i].left, width);
        atomic_init(&w.expert[i].is_ready, false);
    }
    pool_run_even(be->pool, n_threads, 1, row_thread, &w);
    return true;
}
