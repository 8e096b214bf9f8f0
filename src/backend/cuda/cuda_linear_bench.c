/* cuda_linear_bench.c - speed of linear layers of few rows on a card.
 *
 * Usage: cuda_linear_bench. A plan of many ops of one shape, each with weights of its own, is replayed as a
 *        decoding step is; weights lie in more memory than the card's cache holds. The bytes are those of
 *        the weights. Many rows: cuda_linear_gemm_bench.c. */
#include <stdio.h>
#include <stdlib.h>

#include "backend/cuda/cuda_backend.h"
#include "base/clock.h"

#define POOL_BYTES  ((size_t)1280 << 20)
#define BLOCK_BYTES ((size_t)32 << 20)
enum { OPS_MAX = 128, ROWS_MAX = 16, OUTS_MAX = 248320, INS_MAX = 8192, REPEATS = 5 };

static const struct kind {
    const char *name;
    enum weight_kind kind;
    enum dtype dtype, act;
    size_t group;
} kinds[] = {
    {"bf16", WEIGHT_DENSE, DTYPE_BF16, DTYPE_BF16, 0},
    {"int8 g128", WEIGHT_INT8, DTYPE_F16, DTYPE_BF16, 128},
    {"int8 row", WEIGHT_INT8, DTYPE_F32, DTYPE_BF16, 0},
    {"int4 g128", WEIGHT_INT4, DTYPE_F16, DTYPE_BF16, 128},
    {"bf16 by f32", WEIGHT_DENSE, DTYPE_BF16, DTYPE_F32, 0},
    {"int8 by f32", WEIGHT_INT8, DTYPE_F16, DTYPE_F32, 128},
};
static const struct shape {
    const char *name;
    size_t n_in, n_out[LINEAR_PARTS_MAX];
} shapes[] = {
    {"lm_head 248320 x 2048", 2048, {248320}},
    {"gdn in 8192+4096+32+32 x 2048", 2048, {8192, 4096, 32, 32}},
    {"attention in 8192+512+512 x 2048", 2048, {8192, 512, 512}},
    {"out 2048 x 4096", 4096, {2048}},
    {"out 2048 x 8192", 8192, {2048}},
    {"shared in 512+512 x 2048", 2048, {512, 512}},
    {"shared out 2048 x 512", 512, {2048}},
    {"gate 1 x 2048", 2048, {1}},
};
static const size_t row_counts[] = {1, 2, 4, 8, 16};

struct bench {
    struct backend *be;
    uint8_t *pool;
    float *x, *out;
};

static void die(const char *what, const struct error *err)
{
    fprintf(stderr, "%s: %s\n", what, err ? err->text : "no memory");
    exit(1);
}

static void *device_new(struct bench *b, size_t n_bytes)
{
    void *p = b->be->ops->buffer_new(b->be, n_bytes);

    if (!p) {
        die("memory of the card", NULL);
    }
    return p;
}

/* Floats below 1, or bits of which each float type makes finite numbers. */
static void fill_random(struct bench *b)
{
    uint32_t *host = malloc(BLOCK_BYTES);
    uint64_t seed = 1;

    if (!host) {
        die("memory", NULL);
    }
    for (size_t i = 0; i < BLOCK_BYTES / sizeof *host; i++) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        host[i] = (uint32_t)(seed >> 32) & 0xbbffbbffu;
    }
    for (size_t at = 0; at < POOL_BYTES; at += BLOCK_BYTES) {
        b->be->ops->write(b->be, b->pool + at, host, BLOCK_BYTES);
    }
    for (size_t i = 0; i < ROWS_MAX * INS_MAX; i++) {
        ((float *)host)[i] = (float)(i % 255) / 256.0f - 0.5f;
    }
    b->be->ops->write(b->be, b->x, host, ROWS_MAX * INS_MAX * sizeof(float));
    free(host);
}

/* A matrix at *used of the pool; false: it does not fit any more. */
static bool take(struct bench *b, const struct kind *k, size_t n_out, size_t n_in, size_t *used,
                 struct weight *w)
{
    size_t values, scales;

    *w = (struct weight){.kind = k->kind, .dtype = k->dtype, .n_out = n_out, .n_in = n_in};
    if (k->kind != WEIGHT_DENSE) {
        w->group = k->group ? k->group : n_in;
    }
    values = (n_out * weight_row_bytes(w) + 255) / 256 * 256;
    scales = (n_out * weight_n_groups(w) * dtype_bytes(k->dtype) + 255) / 256 * 256;
    if (*used + values + scales > POOL_BYTES) {
        return false;
    }
    w->data = b->pool + *used;
    w->scales = k->kind == WEIGHT_DENSE ? NULL : b->pool + *used + values;
    *used += values + scales;
    return true;
}

/* As many ops as the pool has weights for. */
static size_t ops_make(struct bench *b, const struct kind *k, const struct shape *s, struct op *ops,
                       size_t *bytes)
{
    size_t n = 0, used = 0;

    *bytes = 0;
    for (; n < OPS_MAX; n++) {
        struct op_linear *u = &ops[n].u.linear;
        float *out = b->out;

        ops[n] = (struct op){.kind = OP_LINEAR, .rows = ROWS_ALL, .name = "bench"};
        u->in = (struct operand){b->x, DTYPE_F32, k->act, s->n_in};
        for (; u->n_parts < LINEAR_PARTS_MAX && s->n_out[u->n_parts] > 0; u->n_parts++) {
            size_t n_out = s->n_out[u->n_parts];

            if (!take(b, k, n_out, s->n_in, &used, &u->part[u->n_parts].w)) {
                return n;
            }
            u->part[u->n_parts].out = (struct operand){out, DTYPE_F32, k->act, n_out};
            out += ROWS_MAX * n_out;
            *bytes += n == 0 ? weight_bytes(&u->part[u->n_parts].w) : 0;
        }
    }
    return n;
}

/* Of one op, the best of some replays. */
static double seconds_of(struct bench *b, size_t n_ops, size_t n_rows)
{
    static int32_t tokens[ROWS_MAX], pages[ROWS_MAX], out_rows[1];
    static int16_t bad[ROWS_MAX];
    struct span spans[ROWS_MAX];
    struct step step = {.n_rows = n_rows,
                        .tokens = tokens,
                        .spans = spans,
                        .n_spans = n_rows,
                        .out_rows = out_rows,
                        .bad_layer = bad};
    const struct backend_ops *ops = b->be->ops;
    double best = 1e9;
    struct error err;

    for (size_t i = 0; i < n_rows; i++) {
        spans[i] = (struct span){
            .row = i, .n_rows = 1, .slot = (int32_t)i, .pages = &pages[i], .state_is_zero = true};
    }
    for (int turn = 0; turn < REPEATS; turn++) { /* the first captures */
        uint64_t start;
        double seconds;

        if (ops->begin(b->be, &step, &err) != OK || ops->wait(b->be, &err) != OK) {
            die("begin", &err);
        }
        start = clock_now_ns();
        if (ops->run_all(b->be, &step, &(struct state_pools){0}, &err) != OK ||
            ops->wait(b->be, &err) != OK) {
            die("run", &err);
        }
        seconds = clock_seconds_since(start) / (double)n_ops;
        best = seconds < best ? seconds : best;
        if (ops->end(b->be, &step, &err) != OK) {
            die("end", &err);
        }
    }
    return best;
}

static void bench_shape(struct bench *b, const struct kind *k, const struct shape *s)
{
    static struct op ops[OPS_MAX];
    size_t bytes, n = ops_make(b, k, s, ops, &bytes);
    struct error err;

    for (size_t i = 0; i < n; i++) {
        if (b->be->ops->check(b->be, &ops[i], &err) != OK) {
            die("check", &err);
        }
    }
    if (b->be->ops->prepare(b->be, ops, n, ROWS_MAX, KV_PAGE_TOKENS, &err) != OK) {
        die("prepare", &err);
    }
    printf("%-12s %-34s", k->name, s->name);
    for (size_t r = 0; r < sizeof row_counts / sizeof *row_counts; r++) {
        double t = seconds_of(b, n, row_counts[r]);

        printf(" %8.2f us %5.0f GB/s", t * 1e6, (double)bytes / t * 1e-9);
    }
    printf("\n");
    fflush(stdout);
}

int main(void)
{
    struct cuda_backend_options o = {0};
    struct bench b;
    struct error err;

    if (cuda_backend_new(&b.be, &o, &err) != OK) {
        die("no card", &err);
    }
    b.pool = device_new(&b, POOL_BYTES);
    b.x = device_new(&b, ROWS_MAX * INS_MAX * sizeof(float));
    b.out = device_new(&b, (size_t)ROWS_MAX * OUTS_MAX * sizeof(float));
    fill_random(&b);
    printf("%s; rows:", cuda_backend_card(b.be)->name);
    for (size_t r = 0; r < sizeof row_counts / sizeof *row_counts; r++) {
        printf(" %zu", row_counts[r]);
    }
    printf("\n");
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            bench_shape(&b, &kinds[k], &shapes[s]);
        }
    }
    b.be->ops->buffer_free(b.be, b.pool);
    b.be->ops->buffer_free(b.be, b.x);
    b.be->ops->buffer_free(b.be, b.out);
    b.be->ops->free(b.be);
    return 0;
}
