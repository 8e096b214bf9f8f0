/* machine_bounds.c - see machine_bounds.h. */
#include "cli/machine_bounds.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/pool.h"
#include "base/size.h"
#include "cli/peak_loops.h"

enum {
    THREADS_MAX = 1024,
    CACHE_FACTOR = 4, /* the buffer against the last-level cache */
    CACHE_FACTOR_MIN = 2,
    CACHE_BYTES_GUESS = 32 << 20,
    BUFFER_BYTES_LEAST = 1 << 20,
    BUFFER_BYTES_MIN = 256 << 20, /* where memory is not short */
    BUFFER_BYTES_MAX = 1 << 30,   /* twice the cache where that is more */
    PASSES = 3,                   /* of the best pattern */
    PEAK_PASSES = 25,             /* short ones: one of them is undisturbed */
    PEAK_ROUNDS = 400000,         /* some milliseconds */
    CACHED_BYTES_PER_PASS = 64 << 20
};

static const struct peak_loops loops[] = {
    {"scalar", peak_f32_scalar, peak_int8_scalar, peak_read_scalar},
#if defined(__x86_64__)
    {"avx2", peak_f32_avx2, peak_int8_avx2, peak_read_avx2},
    {"avxvnni", peak_f32_avx2, peak_int8_avxvnni, peak_read_avx2},
    {"avx512", peak_f32_avx512, peak_int8_avx512, peak_read_avx512},
    {"amx", peak_f32_avx512, peak_int8_amx, peak_read_avx512},
#endif
};

static const struct peak_loops *loops_for(const char *isa)
{
    for (size_t i = 0; i < sizeof loops / sizeof loops[0]; i++) {
        if (strcmp(loops[i].isa, isa) == 0) {
            return &loops[i];
        }
    }
    return &loops[0];
}

/* ---- the buffer ---- */

static size_t last_level_cache(void)
{
    long n = sysconf(_SC_LEVEL3_CACHE_SIZE);

    if (n <= 0) {
        n = sysconf(_SC_LEVEL2_CACHE_SIZE);
    }
    return n > 0 ? (size_t)n : CACHE_BYTES_GUESS;
}

static void touch(void *ctx, size_t begin, size_t end, size_t thread)
{
    unsigned char *data = ctx;

    (void)thread;
    memset(data + begin, 1, end - begin);
}

enum status machine_probe_open(struct machine_probe *p, size_t bytes_max, struct pool *pool,
                               struct error *err)
{
    size_t cache = last_level_cache(), n;
    void *data;

    *p = (struct machine_probe){.cache_bytes = cache};
    n = size_min(cache * CACHE_FACTOR, size_max(BUFFER_BYTES_MAX, cache * CACHE_FACTOR_MIN));
    n = size_max(n, BUFFER_BYTES_MIN);
    if (bytes_max > 0) {
        n = size_min(n, size_max(bytes_max, BUFFER_BYTES_LEAST));
    }
    n -= n % READ_UNIT_BYTES;
    p->is_small = n < cache * CACHE_FACTOR_MIN;
    data = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate %zu MiB to measure memory", n >> 20);
    }
    (void)madvise(data, n, MADV_HUGEPAGE); /* page walks are not what is measured */
    p->buffer = data;
    p->n_bytes = n;
    pool_run_even(pool, n, READ_UNIT_BYTES, touch, data);
    return OK;
}

void machine_probe_close(struct machine_probe *p)
{
    if (p->buffer) {
        munmap(p->buffer, p->n_bytes);
    }
    *p = (struct machine_probe){0};
}

/* ---- measuring ---- */

struct measure {
    const struct peak_loops *loops;
    const unsigned char *data;
    int pattern;
    size_t times;           /* each thread reads its part so often */
    double (*peak)(size_t); /* instead of reading */
    struct per_thread {
        uint64_t sum;
        double ops;
        char apart[64]; /* no two threads write one cache line */
    } threads[THREADS_MAX];
};

static void read_part(void *ctx, size_t begin, size_t end, size_t thread)
{
    struct measure *m = ctx;

    for (size_t i = 0; i < m->times; i++) {
        m->threads[thread].sum += m->loops->read(m->data + begin, end - begin, m->pattern);
    }
}

static void run_peak(void *ctx, size_t begin, size_t end, size_t thread)
{
    struct measure *m = ctx;

    (void)begin;
    (void)end;
    m->threads[thread].ops = m->peak(PEAK_ROUNDS);
}

static double read_once(struct measure *m, size_t n_bytes, struct pool *pool)
{
    uint64_t start = clock_now_ns();

    pool_run_even(pool, n_bytes, READ_UNIT_BYTES, read_part, m);
    return (double)n_bytes * (double)m->times / clock_seconds_since(start);
}

/* Bytes per second: each pattern once, then the best one again. */
static double read_rate(struct measure *m, size_t n_bytes, size_t times, struct pool *pool)
{
    double best = 0;
    int best_pattern = 0;

    m->times = times;
    for (m->pattern = 0; m->pattern < READ_PATTERNS; m->pattern++) {
        double rate = read_once(m, n_bytes, pool);

        if (rate > best) {
            best = rate;
            best_pattern = m->pattern;
        }
    }
    m->pattern = best_pattern;
    for (int pass = 0; pass < PASSES; pass++) {
        double rate = read_once(m, n_bytes, pool);
        best = rate > best ? rate : best;
    }
    return best;
}

static double peak_rate(struct measure *m, double (*peak)(size_t), struct pool *pool)
{
    size_t n = pool_threads(pool);
    double best = 0;

    m->peak = peak;
    for (int pass = 0; pass < PEAK_PASSES; pass++) {
        uint64_t start = clock_now_ns();
        double seconds, ops = 0;

        pool_run_even(pool, n, 1, run_peak, m);
        seconds = clock_seconds_since(start);
        for (size_t i = 0; i < n; i++) {
            ops += m->threads[i].ops;
        }
        best = ops / seconds > best ? ops / seconds : best;
    }
    return best;
}

void machine_bounds_measure(struct machine_bounds *out, const struct machine_probe *p,
                            const char *isa, size_t cached_bytes, struct pool *pool)
{
    static const size_t unit = READ_UNIT_BYTES;
    struct measure m = {.loops = loops_for(isa), .data = p->buffer};
    size_t n = size_min(cached_bytes / unit * unit, p->n_bytes);

    *out = (struct machine_bounds){.memory_bytes_s = read_rate(&m, p->n_bytes, 1, pool)};
    if (n > 0) {
        out->cached_bytes_s = read_rate(&m, n, CACHED_BYTES_PER_PASS / n + 1, pool);
    }
    out->f32_flop_s = peak_rate(&m, m.loops->f32, pool);
    out->int8_op_s = peak_rate(&m, m.loops->int8, pool);
}

/* ---- a card ---- */

enum {
    CARD_COPY_BYTES = 1 << 30,
    CARD_COPY_BYTES_LEAST = 1 << 24,
    CARD_COPIES = 8,
    CARD_PASSES = 3
};

static enum status card_copies(double *best, struct backend *be, uint8_t *data, size_t half,
                               struct error *err)
{
    enum status rc = OK;

    for (int pass = 0; pass < CARD_PASSES && rc == OK; pass++) {
        uint64_t start;
        double rate;

        be->ops->copy(be, data + half, data, half);
        rc = be->ops->wait(be, err);
        start = clock_now_ns();
        for (int i = 0; i < CARD_COPIES; i++) {
            be->ops->copy(be, data + half, data, half);
        }
        if (rc == OK) {
            rc = be->ops->wait(be, err);
        }
        rate = 2.0 * CARD_COPIES * (double)half / clock_seconds_since(start);
        *best = rate > *best ? rate : *best;
    }
    return rc;
}

enum status card_bounds_measure(struct machine_bounds *out, struct backend *be, struct error *err)
{
    size_t n = 2 * (size_t)CARD_COPY_BYTES;
    uint8_t *data = be->ops->buffer_new(be, n);
    enum status rc;

    *out = (struct machine_bounds){0};
    while (!data && n > CARD_COPY_BYTES_LEAST) {
        n /= 2;
        data = be->ops->buffer_new(be, n);
    }
    if (!data) {
        return error_set(err, ERR_NO_MEMORY, "no memory is left on the card to measure it");
    }
    rc = card_copies(&out->memory_bytes_s, be, data, n / 2, err);
    be->ops->buffer_free(be, data);
    return rc;
}

/* ---- the link ---- */

enum {
    LINK_PIECE = 4 << 20, /* of a copy: far more than its own cost, few enough for a queue */
    LINK_PIECES_LEAST = 256,
    LINK_PIECES_MAX = 900,   /* the driver's queue takes about a thousand */
    LINK_TARGET = 64 << 20,  /* on the card */
    LINK_SOURCE = 512 << 20, /* pinned: more than the card's reads find in the CPU's cache */
    LINK_SOURCE_LEAST = LINK_PIECE,
    LINK_PASSES = 3
};

static const double LINK_OUTLASTS = 2.2;

struct link {
    struct backend *be;
    uint8_t *source, *target;
    size_t source_bytes, target_bytes;
};

static void link_close(struct link *l)
{
    if (l->source) {
        l->be->ops->host_free(l->be, l->source);
    }
    if (l->target) {
        l->be->ops->buffer_free(l->be, l->target);
    }
}

static enum status link_open(struct link *l, struct backend *be, size_t bytes_max,
                             struct error *err)
{
    *l = (struct link){.be = be, .source_bytes = LINK_SOURCE, .target_bytes = LINK_TARGET};
    while (bytes_max > 0 && l->source_bytes > bytes_max && l->source_bytes > LINK_SOURCE_LEAST) {
        l->source_bytes /= 2;
    }
    l->source = be->ops->host_new(be, l->source_bytes);
    while (!l->source && l->source_bytes > LINK_SOURCE_LEAST) {
        l->source_bytes /= 2;
        l->source = be->ops->host_new(be, l->source_bytes);
    }
    l->target = be->ops->buffer_new(be, l->target_bytes);
    while (!l->target && l->target_bytes > LINK_PIECE) {
        l->target_bytes /= 2;
        l->target = be->ops->buffer_new(be, l->target_bytes);
    }
    if (l->source && l->target) {
        return OK;
    }
    return error_set(err, ERR_NO_MEMORY, "no memory %s to measure the link to the card",
                     l->source ? "is left on the card" : "can be pinned");
}

static void link_copy(const struct link *l, size_t n_pieces)
{
    for (size_t i = 0; i < n_pieces; i++) {
        l->be->ops->write_later(l->be, l->target + i * LINK_PIECE % l->target_bytes,
                                l->source + i * LINK_PIECE % l->source_bytes, LINK_PIECE);
    }
}

static enum status link_alone(double *rate, const struct link *l, size_t n_pieces,
                              struct error *err)
{
    uint64_t start = clock_now_ns();
    enum status rc;

    link_copy(l, n_pieces);
    rc = l->be->ops->wait(l->be, err);
    *rate = (double)n_pieces * LINK_PIECE / clock_seconds_since(start);
    return rc;
}

/* So many pieces that they outlast the reads, even where these are slowed down. */
static size_t link_pieces(const struct link_bounds *b, const struct measure *m, size_t n_bytes)
{
    double read_s = (double)n_bytes * (double)m->times / b->cpu_bytes_s;
    double pieces = LINK_OUTLASTS * read_s * b->link_bytes_s / LINK_PIECE;

    return pieces > LINK_PIECES_MAX ? LINK_PIECES_MAX : size_max((size_t)pieces, LINK_PIECES_LEAST);
}

/* The copies outlast the reads, and what travels before and after the reads does so at the rate that
 * copies have alone; so no second clock is needed. */
static enum status link_shared(struct link_bounds *b, const struct link *l, struct measure *m,
                               size_t n_bytes, struct pool *pool, struct error *err)
{
    size_t n_pieces = link_pieces(b, m, n_bytes);
    uint64_t start = clock_now_ns();
    double cpu, link, read_s, alone_s;
    enum status rc;

    link_copy(l, n_pieces);
    cpu = read_once(m, n_bytes, pool);
    read_s = (double)n_bytes * (double)m->times / cpu;
    rc = l->be->ops->wait(l->be, err);
    alone_s = clock_seconds_since(start) - read_s;
    link = ((double)n_pieces * LINK_PIECE - b->link_bytes_s * alone_s) / read_s;
    link = fmax(fmin(link, b->link_bytes_s), 0);
    if (rc == OK && cpu + link > b->cpu_shared_bytes_s + b->link_shared_bytes_s) {
        b->cpu_shared_bytes_s = cpu;
        b->link_shared_bytes_s = link;
    }
    return rc;
}

enum status link_bounds_measure(struct link_bounds *out, struct backend *be,
                                const struct machine_probe *p, const char *isa,
                                size_t pinned_bytes_max, struct pool *pool, struct error *err)
{
    struct measure m = {.loops = loops_for(isa), .data = p->buffer};
    struct link l;
    enum status rc = link_open(&l, be, pinned_bytes_max, err);

    *out = (struct link_bounds){0};
    for (int pass = 0; pass < LINK_PASSES && rc == OK; pass++) {
        double rate;

        rc = link_alone(&rate, &l, LINK_PIECES_LEAST, err);
        out->link_bytes_s = fmax(rate, out->link_bytes_s);
    }
    out->cpu_bytes_s = read_rate(&m, p->n_bytes, 1, pool); /* leaves the best pattern in m */
    for (int pass = 0; pass < LINK_PASSES && rc == OK; pass++) {
        rc = link_shared(out, &l, &m, p->n_bytes, pool, err);
    }
    link_close(&l);
    return rc;
}
