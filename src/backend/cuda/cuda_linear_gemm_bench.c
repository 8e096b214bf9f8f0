/* cuda_linear_gemm_bench.c - speed of linear layers on a card, by weight kind, shape and number of rows.
 *
 * Usage: cuda_linear_gemm_bench. Each shape has enough copies of its weights that they do not stay in the
 * card's cache; the time is that of many launches in a row, which is what a step sees. */
#include <stdio.h>
#include <stdlib.h>

#include "backend/cuda/cuda_backend.h"
#include "base/clock.h"

enum { COPIES_MAX = 64, RUNS_MIN = 30, ROWS_MAX = 4096 };
enum { CACHE_BYTES = 200 * 1024 * 1024 };

static const struct kind {
    const char *name;
    enum weight_kind kind;
    enum dtype dtype, act;
} kinds[] = {
    {"bf16", WEIGHT_DENSE, DTYPE_BF16, DTYPE_BF16},
    {"f16 by bf16", WEIGHT_DENSE, DTYPE_F16, DTYPE_BF16},
    {"bf16 by f32", WEIGHT_DENSE, DTYPE_BF16, DTYPE_F32},
    {"f32 by f32", WEIGHT_DENSE, DTYPE_F32, DTYPE_F32},
    {"int4 g128", WEIGHT_INT4, DTYPE_F16, DTYPE_BF16},
    {"int8 g128", WEIGHT_INT8, DTYPE_F16, DTYPE_BF16},
};
static const size_t shapes[][2] = {{12288, 2048}, {2048, 4096}, {1024, 2048}, {2048, 512}};
static const size_t row_counts[] = {17, 32, 64, 128, 256, 512, 1024, 2048, 4096};

static void die(const char *what, const struct error *err)
{
    fprintf(stderr, "%s: %s\n", what, err ? err->text : "no memory");
    exit(1);
}

/* Random values below 1 of a float type, or bytes. like: copied, if there is one already. */
static void *device_random(struct backend *be, size_t n, enum dtype type, const void *like)
{
    size_t each = type == DTYPE_NONE ? 1 : dtype_bytes(type);
    uint8_t *host = malloc(n * each);
    void *p = be->ops->buffer_new(be, n * each);
    uint64_t seed = n | 1;

    if (!host || !p) {
        die("weights", NULL);
    }
    if (like) {
        be->ops->copy(be, p, like, n * each);
        free(host);
        return p;
    }
    for (size_t i = 0; i < n; i++) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        if (type == DTYPE_NONE) {
            host[i] = (uint8_t)(seed >> 40);
        } else {
            dtype_store(type, host, i, (float)(int32_t)(seed >> 32) / 2147483648.0f);
        }
    }
    be->ops->write(be, p, host, n * each);
    free(host);
    return p;
}

struct shape_ops {
    struct op ops[COPIES_MAX];
    size_t n;
    void *buffers[2 * COPIES_MAX + 2]; /* x, out, weights */
    size_t n_buffers;
};

static void ops_make(struct backend *be, struct shape_ops *s, const struct kind *k, size_t n_out,
                     size_t n_in)
{
    struct weight w = {
        .kind = k->kind, .dtype = k->dtype, .n_out = n_out, .n_in = n_in, .group = 128};
    size_t bytes = n_out * weight_row_bytes(&w);
    void *x = s->buffers[0] = device_random(be, ROWS_MAX * n_in, DTYPE_F32, NULL);
    void *out = s->buffers[1] = be->ops->buffer_new(be, ROWS_MAX * n_out * sizeof(float));
    s->n_buffers = 2;
    s->n = 1 + CACHE_BYTES / bytes;
    s->n = s->n < COPIES_MAX ? s->n : COPIES_MAX;
    for (size_t i = 0; i < s->n; i++) {
        struct op *op = &s->ops[i];

        *op = (struct op){.kind = OP_LINEAR, .rows = ROWS_ALL, .name = "bench"};
        op->u.linear.in =
            (struct operand){.data = x, .dtype = DTYPE_F32, .round = k->act, .cols = n_in};
        op->u.linear.n_parts = 1;
        w.data = device_random(be, k->kind == WEIGHT_DENSE ? n_out * n_in : bytes,
                               k->kind == WEIGHT_DENSE ? k->dtype : DTYPE_NONE, w.data);
        s->buffers[s->n_buffers++] = (void *)(uintptr_t)w.data;
        if (k->kind != WEIGHT_DENSE) {
            w.scales = device_random(be, n_out * weight_n_groups(&w), k->dtype, w.scales);
            s->buffers[s->n_buffers++] = (void *)(uintptr_t)w.scales;
        }
        op->u.linear.part[0].w = w;
        op->u.linear.part[0].out =
            (struct operand){.data = out, .dtype = DTYPE_F32, .round = k->act, .cols = n_out};
    }
}

static double seconds_of(struct backend *be, const struct shape_ops *s, size_t n_rows)
{
    static int32_t tokens[ROWS_MAX], page[ROWS_MAX / KV_PAGE_TOKENS + 1];
    static int16_t bad[ROWS_MAX];
    struct span span = {.n_rows = n_rows, .pages = page, .state_is_zero = true};
    struct step step = {
        .n_rows = n_rows, .tokens = tokens, .spans = &span, .n_spans = 1, .bad_layer = bad};
    size_t n_runs = s->n > RUNS_MIN ? s->n : RUNS_MIN;
    double best = 1e9;
    struct error err;

    if (be->ops->begin(be, &step, &err) != OK) {
        die("begin", &err);
    }
    for (int turn = 0; turn < 4; turn++) {
        uint64_t start;
        double seconds;

        if (be->ops->wait(be, &err) != OK) {
            die("wait", &err);
        }
        start = clock_now_ns();
        for (size_t i = 0; i < n_runs; i++) {
            if (be->ops->run(be, &s->ops[i % s->n], &step, NULL, &err) != OK) {
                die("run", &err);
            }
        }
        if (be->ops->wait(be, &err) != OK) {
            die("wait", &err);
        }
        seconds = clock_seconds_since(start) / (double)n_runs;
        best = seconds < best ? seconds : best;
    }
    if (be->ops->end(be, &step, &err) != OK) {
        die("end", &err);
    }
    return best;
}

static void bench_shape(struct backend *be, const struct kind *k, size_t n_out, size_t n_in)
{
    static struct shape_ops s;
    struct error err;

    ops_make(be, &s, k, n_out, n_in);
    for (size_t i = 0; i < s.n; i++) {
        if (be->ops->check(be, &s.ops[i], &err) != OK) {
            die("check", &err);
        }
    }
    if (be->ops->prepare(be, s.ops, s.n, ROWS_MAX, ROWS_MAX, &err) != OK) {
        die("prepare", &err);
    }
    for (size_t r = 0; r < sizeof row_counts / sizeof *row_counts; r++) {
        size_t n_rows = row_counts[r];
        double t = seconds_of(be, &s, n_rows);
        double flop = 2.0 * (double)n_out * (double)n_in * (double)n_rows;
        double bytes = (double)weight_bytes(&s.ops[0].u.linear.part[0].w);

        printf("%-12s %5zu x %-5zu rows %-5zu %9.1f us %7.1f TFLOP/s %8.0f GB/s of weights\n",
               k->name, n_out, n_in, n_rows, t * 1e6, flop / t * 1e-12, bytes / t * 1e-9);
        fflush(stdout);
    }
    for (size_t i = 0; i < s.n_buffers; i++) {
        be->ops->buffer_free(be, s.buffers[i]);
    }
}

int main(void)
{
    struct cuda_backend_options o = {0};
    struct backend *be;
    struct error err;

    if (cuda_backend_new(&be, &o, &err) != OK) {
        die("no card", &err);
    }
    printf("%s\n", cuda_backend_card(be)->name);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            bench_shape(be, &kinds[k], shapes[s][0], shapes[s][1]);
        }
    }
    be->ops->free(be);
    return 0;
}
