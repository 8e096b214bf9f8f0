/* cpu_width_bench.c - matrix products at the widths of Qwen3.5-35B-A3B, against what memory can give.
 *
 * Usage: cpu_width_bench [max threads] [seconds a row] [instruction set].
 * Method: weights lie in more memory than the caches hold and every run takes the next ones, so a
 *        product of one row streams from memory. A plain read of the same memory is measured between the
 *        runs; best of many of both, since the machine may be shared. For the same reason arithmetic is
 *        also rated by processor time ("per core"), which a long run keeps when it is interrupted. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "backend/cpu/cpu_internal.h"
#include "backend/cpu/cpu_test_util.h"
#include "backend/expert_block.h"
#include "base/clock.h"
#include "base/pool.h"
#include "base/size.h"

enum {
    HIDDEN = 2048,
    WIDTH = 512,
    N_EXPERTS = 256,
    TOP_K = 8,
    N_LAYERS = 3,
    DENSE_OUT = 8192, /* the widest projection of a gated delta net */
    ROWS_MAX = 512,
    RUNS_MIN = 4
};

struct bench {
    struct expert_block block;
    uint8_t *experts;         /* [N_LAYERS * N_EXPERTS] blocks */
    struct expert_weights *w; /* views of them */
    size_t n_bytes;
    size_t next; /* where the next run reads */
    double seconds;
    float *x, *out, *prob;
    int32_t *idx;
    uint64_t seed;
    uint64_t sink;
};

/* --- plain reading --- */

struct reader {
    const uint64_t *data;
    uint64_t sum[64];
};

/* The fastest plain read that we know on the machines at hand: wide loads, lines fetched 2 KiB ahead. */
#if defined(__x86_64__)
__attribute__((target("avx2")))
#endif
static void
read_range(void *ctx, size_t begin, size_t end, size_t thread)
{
    typedef uint64_t vector __attribute__((vector_size(32), aligned(32)));
    struct reader *r = ctx;
    vector sum[4] = {{0}};

    for (size_t i = begin; i + 16 <= end; i += 16) {
        const vector *v = (const vector *)(const void *)(r->data + i);

        __builtin_prefetch(r->data + i + 256);
        __builtin_prefetch(r->data + i + 264);
        sum[0] ^= v[0];
        sum[1] ^= v[1];
        sum[2] ^= v[2];
        sum[3] ^= v[3];
    }
    sum[0] ^= sum[1] ^ sum[2] ^ sum[3];
    r->sum[thread % 64] += sum[0][0] ^ sum[0][1] ^ sum[0][2] ^ sum[0][3];
}

/* Seconds to read n_bytes, from where the last run ended. */
static double read_once(struct bench *b, struct pool *pool, size_t n_bytes)
{
    struct reader r = {.data = (const uint64_t *)(const void *)b->experts};
    uint64_t start;
    double seconds;

    if (b->next + n_bytes > b->n_bytes) {
        b->next = 0;
    }
    r.data += b->next / sizeof *r.data;
    start = clock_now_ns();
    pool_run_even(pool, n_bytes / sizeof *r.data, 4096, read_range, &r);
    seconds = clock_seconds_since(start);
    b->next += n_bytes;
    b->sink += r.sum[0];
    return seconds;
}

/* --- runs --- */

struct work {
    const char *name;
    void (*run)(struct bench *b, struct backend *be, struct op *op, size_t rows);
    struct op op;
    double bytes, macs; /* of one run */
};

static double processor_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void run_op(struct backend *be, struct op *op, size_t rows)
{
    struct step step = {.n_rows = rows};

    test_run(be, op, &step, NULL);
}

/* The next layer's experts, chosen at random. */
static void run_experts(struct bench *b, struct backend *be, struct op *op, size_t rows)
{
    size_t layer = b->next / ((size_t)N_EXPERTS * b->block.n_bytes) % N_LAYERS;

    for (size_t i = 0; i < rows; i++) {
        size_t first = (size_t)(test_next(&b->seed) >> 40);

        for (size_t j = 0; j < TOP_K; j++) {
            b->idx[i * TOP_K + j] = (int32_t)((first + j * 37) % N_EXPERTS);
        }
    }
    op->u.experts.experts = b->w + layer * N_EXPERTS;
    run_op(be, op, rows);
}

/* A dense matrix out of the same memory. */
static void run_dense(struct bench *b, struct backend *be, struct op *op, size_t rows)
{
    struct weight *w = &op->u.linear.part[0].w;
    size_t n_bytes = w->n_out * weight_row_bytes(w);

    w->data = b->experts + b->next % (b->n_bytes - n_bytes) / 64 * 64;
    run_op(be, op, rows);
}

static void measure(struct bench *b, struct backend *be, struct work *work, size_t rows,
                    double limit)
{
    struct pool *pool = cpu_backend_pool(be);
    size_t step = size_max((size_t)work->bytes, 8 << 20) / 4096 * 4096, n_runs = 0;
    double best = 1e9, best_cpu = 1e9, read = 1e9;
    uint64_t start = clock_now_ns();

    test_prepare(be, &work->op, rows);
    while (n_runs < RUNS_MIN || clock_seconds_since(start) < limit) {
        double seconds = read_once(b, pool, step) * work->bytes / (double)step;
        double cpu;
        uint64_t t;

        read = seconds < read ? seconds : read;
        if (b->next + step > b->n_bytes) {
            b->next = 0;
        }
        cpu = processor_seconds();
        t = clock_now_ns();
        work->run(b, be, &work->op, rows);
        seconds = clock_seconds_since(t);
        cpu = processor_seconds() - cpu;
        best_cpu = cpu < best_cpu ? cpu : best_cpu;
        b->next += step;
        best = seconds < best ? seconds : best;
        n_runs++;
    }
    printf("  %-8s %-34s %4zu %10.0f %7.2f %7.2f %6.0f %% %9.1f %9.1f\n", work->name,
           work->op.kernel, rows, best * 1e6, work->bytes / best * 1e-9, work->bytes / read * 1e-9,
           100 * read / best, work->macs / best * 1e-9, work->macs / best_cpu * 1e-9);
    fflush(stdout);
}

static double distinct_experts(size_t rows)
{
    return rows == 1 ? TOP_K : N_EXPERTS * (1 - pow(1 - (double)TOP_K / N_EXPERTS, (double)rows));
}

static void bench_experts(struct bench *b, struct backend *be, size_t rows)
{
    struct work work = {.name = "experts", .run = run_experts, .op = {.kind = OP_EXPERTS}};
    struct op_experts *u = &work.op.u.experts;

    u->in = test_operand(b->x, HIDDEN, DTYPE_F32);
    u->idx = (struct operand){.data = b->idx, .dtype = DTYPE_I32, .cols = TOP_K};
    u->prob = test_operand(b->prob, TOP_K, DTYPE_F32);
    u->out = test_operand(b->out, HIDDEN, DTYPE_F32);
    u->experts = b->w;
    u->n_experts = N_EXPERTS;
    u->top_k = TOP_K;
    u->width = WIDTH;
    work.bytes = distinct_experts(rows) * (double)b->block.n_bytes;
    work.macs = (double)(rows * TOP_K) * 3.0 * HIDDEN * WIDTH;
    measure(b, be, &work, rows, b->seconds);
}

static void bench_dense(struct bench *b, struct backend *be, enum weight_kind kind, size_t rows)
{
    struct work work = {.name = "dense", .run = run_dense, .op = {.kind = OP_LINEAR}};
    struct weight w = {.kind = kind,
                       .dtype = DTYPE_BF16,
                       .n_out = DENSE_OUT,
                       .n_in = HIDDEN,
                       .group = 128,
                       .data = b->experts,
                       .scales = b->x /* any numbers */};

    if (kind == WEIGHT_DENSE) {
        w.group = 0;
        w.scales = NULL;
    }
    work.op.u.linear.in = test_operand(b->x, HIDDEN, DTYPE_F32);
    work.op.u.linear.n_parts = 1;
    work.op.u.linear.part[0].w = w;
    work.op.u.linear.part[0].out = test_operand(b->out, DENSE_OUT, DTYPE_F32);
    work.bytes = (double)weight_bytes(&w);
    work.macs = (double)rows * DENSE_OUT * HIDDEN;
    measure(b, be, &work, rows, b->seconds);
}

/* --- the whole --- */

static void bench_init(struct bench *b)
{
    struct expert_shape shape = {.hidden = HIDDEN,
                                 .width = WIDTH,
                                 .kind = WEIGHT_INT4,
                                 .scales = DTYPE_F16,
                                 .group = 128,
                                 .down_group = 128};
    size_t n = (size_t)N_LAYERS * N_EXPERTS;

    assert_true(expert_block_init(&b->block, &shape));
    b->seed = 1;
    b->n_bytes = n * b->block.n_bytes;
    b->experts = huge_new(b->n_bytes);
    b->w = calloc(n, sizeof *b->w);
    assert_non_null(b->experts);
    assert_non_null(b->w);
    /* Random bytes that are numbers around 0.005 as bfloat16 and around 1 as float16: no denormals. */
    for (size_t i = 0; i < b->n_bytes / 8; i++) {
        ((uint64_t *)(void *)b->experts)[i] =
            (test_next(&b->seed) & 0x80ff80ff80ff80ffu) | 0x3b003b003b003b00u;
    }
    for (size_t e = 0; e < n; e++) {
        b->w[e] = expert_block_view(&b->block, b->experts + e * b->block.n_bytes);
    }
    b->x = test_floats((size_t)ROWS_MAX * HIDDEN, 1, &b->seed);
    b->prob = test_floats((size_t)ROWS_MAX * TOP_K, 1, &b->seed);
    b->out = test_poisoned((size_t)ROWS_MAX * DENSE_OUT);
    b->idx = (int32_t *)(void *)test_poisoned((size_t)ROWS_MAX * TOP_K);
    memset(b->idx, 0, (size_t)ROWS_MAX * TOP_K * sizeof *b->idx);
}

int main(int argc, char **argv)
{
    static const size_t rows[] = {1, 8, 64, 512};
    static struct bench b;
    size_t threads_max = argc > 1 ? (size_t)atoi(argv[1]) : 1;
    const char *only = argc > 3 ? argv[3] : ""; /* one instruction set */
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);

    b.seconds = argc > 2 ? atof(argv[2]) : 0.5;
    bench_init(&b);
    for (size_t threads = 1; threads <= threads_max; threads *= 2) {
        printf("%zu threads\n  %-8s %-34s %4s %10s %7s %7s %8s %9s %9s\n", threads, "op", "kernel",
               "rows", "us", "GB/s", "read", "of read", "GMAC/s", "per core");
        for (size_t a = 1; a < n_isas; a++) {
            if (only[0] && strcmp(only, test_isa_name(isas[a])) != 0) {
                continue;
            }

            struct backend *f32 = test_backend(isas[a], threads);
            struct backend *int8 = test_backend_with(isas[a], threads, CPU_ACTIVATIONS_INT8);

            for (size_t r = 0; r < 4; r++) {
                bench_experts(&b, int8, rows[r]);
                bench_dense(&b, int8, WEIGHT_INT8, rows[r]);
                bench_experts(&b, f32, rows[r]);
                bench_dense(&b, f32, WEIGHT_DENSE, rows[r]);
            }
            f32->ops->free(f32);
            int8->ops->free(int8);
        }
    }
    return 0;
}
