/* mail_bench.c - how long the CPU takes to answer for missing experts, at the size of Qwen3.5-35B-A3B: 1, 2 and
 * 4 experts of 1.62 MB for one row, cold, by number of threads.
 *
 * Usage: mail_bench [threads_max] [GiB of experts]. Each answer is for other experts, so that with enough of
 * them no cache holds any. "answer" is from the post to the answer as a polling device sees it, "compute"
 * what of it is the CPU backend's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "base/arena.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/half.h"
#include "offload/mail.h"

enum { HIDDEN = 2048, WIDTH = 512, GROUP = 128, TOP_K = 8, EXPERTS = 256, LAYERS_MAX = 64 };
enum { STEPS = 12, GAP_NS = 60 * 1000 }; /* between layers: the device's own work */

struct bench {
    struct expert_home home;
    uint8_t *memory;
    const uint8_t *blocks[LAYERS_MAX];
    struct expert_mail *boxes; /* [n_layers] */
};

static uint64_t random_next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static void die(const char *what)
{
    fprintf(stderr, "mail_bench: %s\n", what);
    exit(1);
}

static void bench_make(struct bench *b, size_t n_bytes)
{
    const struct expert_shape shape = {.hidden = HIDDEN,
                                       .width = WIDTH,
                                       .kind = WEIGHT_INT4,
                                       .scales = DTYPE_BF16,
                                       .group = GROUP,
                                       .down_group = GROUP};
    struct expert_home *h = &b->home;
    uint64_t seed = 7;

    memset(b, 0, sizeof *b);
    if (!expert_block_init(&h->block, &shape)) {
        die("no block");
    }
    h->n_layers = n_bytes / (EXPERTS * h->block.n_bytes);
    h->n_layers = h->n_layers < 1 ? 1 : h->n_layers > LAYERS_MAX ? LAYERS_MAX : h->n_layers;
    h->n_experts = EXPERTS;
    h->top_k = TOP_K;
    h->hidden = HIDDEN;
    h->blocks = b->blocks;
    h->has_cpu = true;
    b->memory = huge_new(h->n_layers * EXPERTS * h->block.n_bytes);
    b->boxes = aligned_new(h->n_layers * sizeof *b->boxes);
    h->mail = b->boxes;
    if (!b->memory || !b->boxes) {
        die("no memory");
    }
    for (size_t i = 0; i < h->n_layers * EXPERTS; i++) {
        uint8_t *block = b->memory + i * h->block.n_bytes;
        size_t scales_at = h->block.part[EXPERT_GATE].scales;

        for (size_t at = 0; at < scales_at; at += 8) {
            uint64_t word = random_next(&seed);

            memcpy(block + at, &word, 8);
        }
        for (size_t at = scales_at; at < h->block.n_bytes; at += 2) {
            dtype_store(DTYPE_BF16, block + at, 0, 0.01f);
        }
    }
    for (size_t l = 0; l < h->n_layers; l++) {
        b->blocks[l] = b->memory + l * EXPERTS * h->block.n_bytes;
        b->boxes[l].x = aligned_new(EXPERT_HOME_ROWS * HIDDEN * sizeof(float));
        b->boxes[l].y = aligned_new(EXPERT_HOME_ROWS * HIDDEN * sizeof(float));
        if (!b->boxes[l].x || !b->boxes[l].y) {
            die("no memory");
        }
        for (size_t i = 0; i < HIDDEN; i++) {
            b->boxes[l].x[i] = (float)(random_next(&seed) >> 40) / 8388608.0f - 1.0f;
        }
    }
}

static void bench_release(struct bench *b)
{
    for (size_t l = 0; l < b->home.n_layers; l++) {
        free(b->boxes[l].x);
        free(b->boxes[l].y);
    }
    free(b->boxes);
    free(b->memory);
}

/* The device's side of one layer; nanoseconds until it sees the answer. */
static uint64_t ask(struct expert_mail *box, uint32_t ticket)
{
    uint64_t start;

    start = clock_now_ns();
    while (clock_now_ns() - start < GAP_NS) {
    }
    start = clock_now_ns();
    __atomic_store_n(&box->posted, ticket, __ATOMIC_RELEASE);
    while (__atomic_load_n(&box->answered, __ATOMIC_ACQUIRE) != ticket) {
    }
    return clock_now_ns() - start;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void report(struct bench *b, struct mail *m, size_t n_threads, size_t n, uint32_t *ticket,
                   size_t *next_expert)
{
    static uint64_t answer[STEPS * LAYERS_MAX], compute[STEPS * LAYERS_MAX];
    size_t n_layers = b->home.n_layers, n_all = 0;
    double median;

    for (size_t i = 0; i < STEPS; i++) {
        mail_open(m, ++*ticket);
        for (size_t l = 0; l < n_layers; l++) {
            struct expert_mail *box = &b->boxes[l];

            box->n_rows = 1;
            for (size_t j = 0; j < TOP_K; j++) {
                box->idx[j] = j < n ? (int32_t)((*next_expert + j) % EXPERTS) : -1;
                box->prob[j] = 1.0f / TOP_K;
            }
            answer[n_all + l] = ask(box, *ticket);
        }
        *next_expert += n;
        mail_close(m);
        for (size_t l = 0; l < n_layers; l++) {
            compute[n_all + l] = mail_log(m)[l].compute_ns;
        }
        n_all += n_layers;
    }
    qsort(answer, n_all, sizeof *answer, compare);
    qsort(compute, n_all, sizeof *compute, compare);
    median = (double)answer[n_all / 2];
    printf("  %7zu %7zu %9.1f us %9.1f us %9.1f us %9.1f us %7.1f GB/s\n", n_threads, n,
           (double)answer[n_all / 10] / 1e3, median / 1e3, (double)answer[n_all * 9 / 10] / 1e3,
           (double)compute[n_all / 2] / 1e3, (double)(n * b->home.block.n_bytes) / median);
}

int main(int argc, char **argv)
{
    static const size_t counts[] = {1, 2, 4, 8};
    size_t threads_max = argc > 1 ? strtoul(argv[1], NULL, 10) : cpu_count_physical();
    size_t gib = argc > 2 ? strtoul(argv[2], NULL, 10) : 2, next_expert = 0;
    struct bench b;

    bench_make(&b, gib << 30);
    printf("%zu layers of %d experts of %zu bytes, int8 activations; best tenth, median, worst "
           "tenth\n",
           b.home.n_layers, EXPERTS, b.home.block.n_bytes);
    printf("  threads experts       answer       answer       answer      compute     of median\n");
    for (size_t threads = 1; threads <= threads_max; threads += threads < 4 ? threads : 4) {
        struct cpu_backend_options o = {.n_threads = threads, .activations = CPU_ACTIVATIONS_INT8};
        struct backend *cpu;
        struct mail *m;
        struct error err;
        uint32_t ticket = 0;

        for (size_t l = 0; l < b.home.n_layers; l++) {
            b.boxes[l].posted = b.boxes[l].answered = 0;
        }
        if (cpu_backend_new(&cpu, &o, &err) != OK ||
            mail_new(&m, &b.home, DTYPE_F32, cpu, &err) != OK) {
            die(err.text);
        }
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            report(&b, m, threads, counts[i], &ticket, &next_expert);
        }
        mail_free(m);
        cpu->ops->free(cpu);
    }
    bench_release(&b);
    return 0;
}
