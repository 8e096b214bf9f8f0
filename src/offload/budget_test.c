/* budget_test.c - the planner at the sizes of Qwen3.5-35B-A3B (int4), and at its borders.
 *
 * Place: offload, cmocka. Sizes are those that shapes and types give: see model_shapes.c in cli/. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "offload/budget.h"

static const size_t MIB = (size_t)1 << 20, GIB = (size_t)1 << 30;

enum {
    N_LAYERS = 40,
    N_EXPERTS = 256,
    BLOCK_BYTES = 1622016,
    N_ALL = N_LAYERS * N_EXPERTS,
    HIDDEN = 2048,
    VOCAB = 248320
};

static size_t gib(double n)
{
    return (size_t)(n * (double)GIB);
}

/* float16 weights, fp8 KV of n_tokens, n_running sequences, on a card with `cap` GiB to use. */
static struct budget_input qwen(double cap, size_t n_tokens, size_t n_running)
{
    struct budget_input in = {
        .base_bytes = gib(cap),
        .base_bytes_max = gib(139),
        .n_layers = N_LAYERS,
        .n_layers_overflow = N_LAYERS,
        .n_experts = N_EXPERTS,
        .block_bytes = BLOCK_BYTES,
        .n_staging = 32,
        .host_bytes_max = SIZE_MAX,
        .kv_page_bytes = (size_t)64 * 10 * 2 * 2 * (256 + 4),
        .kv_page_tokens = 64,
        .n_kv_pages = n_tokens / 64,
        .state_bytes = (size_t)30 * (32 * 128 * 128 * 4 + 8192 * 3 * 2),
        .n_states = n_running + 1,
    };

    in.bytes[BUDGET_DRIVER] = 512 * MIB;
    in.bytes[BUDGET_DENSE] = (size_t)2858 * 1000 * 1000 + (size_t)HIDDEN * VOCAB * 2;
    in.bytes[BUDGET_EMBEDDING] = (size_t)HIDDEN * VOCAB * 2;
    in.bytes[BUDGET_KV] = in.kv_page_bytes * in.n_kv_pages;
    in.bytes[BUDGET_STATES] = in.state_bytes * in.n_states;
    in.bytes[BUDGET_ACTIVATIONS] = 240 * MIB;
    in.bytes[BUDGET_SCRATCH] = 160 * MIB;
    in.bytes[BUDGET_RESERVE] = 96 * MIB;
    in.overflowing[BUDGET_TABLES] = 4 * MIB;
    return in;
}

static void check_sums(const struct budget_plan *p, const struct budget_input *in)
{
    size_t total = 0, fixed = 0;

    for (int c = 0; c < BUDGET_CLASS_COUNT; c++) {
        total += p->bytes[c];
        fixed += budget_class_is_static((enum budget_class)c) ? p->bytes[c] : 0;
    }
    assert_int_equal(total, p->total_bytes);
    assert_int_equal(fixed, p->static_bytes);
    assert_true(p->total_bytes <= in->base_bytes);
    if (in->static_fraction > 0) {
        assert_true((double)p->static_bytes <= in->static_fraction * (double)in->base_bytes);
    }
    assert_int_equal(p->bytes[BUDGET_SLOTS], p->n_slots * in->block_bytes);
    if (p->overflows) {
        assert_int_equal(p->absent_bytes, (p->n_overflowing - p->n_slots) * in->block_bytes);
        assert_int_equal(p->host[BUDGET_EXPERTS],
                         p->in_file ? 0 : p->n_overflowing * in->block_bytes);
        assert_int_equal(p->host_bytes, p->host[BUDGET_EXPERTS] + in->spilled[BUDGET_EMBEDDING]);
        assert_int_equal(p->bytes[BUDGET_EMBEDDING],
                         in->bytes[BUDGET_EMBEDDING] - in->spilled[BUDGET_EMBEDDING]);
        assert_true(p->slots_least * in->n_layers_overflow <= p->n_slots &&
                    p->slots_most * in->n_layers_overflow >= p->n_slots);
    }
}

static struct budget_plan make(const struct budget_input *in)
{
    struct budget_plan p;
    struct error err = {0};

    if (budget_make(&p, in, &err) != OK) {
        fail_msg("%s", err.text);
    }
    check_sums(&p, in);
    return p;
}

static void refused(const struct budget_input *in, enum status code, const char *const *says)
{
    struct budget_plan p;
    struct error err = {0};

    assert_int_equal(budget_make(&p, in, &err), code);
    print_message("  %s\n", err.text);
    for (; *says; says++) {
        if (!strstr(err.text, *says)) {
            fail_msg("'%s' does not say '%s'", err.text, *says);
        }
    }
}
#define REFUSED(in, code, ...) refused(in, code, (const char *const[]){__VA_ARGS__, NULL})

/* What can be resident is: no slots, nothing in host memory. */
static void test_fits(void **state)
{
    struct budget_input in = qwen(32, 65536, 32);
    struct budget_plan p = make(&in);

    (void)state;
    assert_false(p.overflows);
    assert_int_equal(p.n_slots, 0);
    assert_int_equal(p.n_staging, 0);
    assert_int_equal(p.host_bytes, 0);
    assert_int_equal(p.bytes[BUDGET_EXPERTS], (size_t)N_ALL * BLOCK_BYTES);
    in.offload = BUDGET_OFFLOAD_MAX; /* allowed, not needed */
    in.offload_bytes = gib(12);
    p = make(&in);
    assert_false(p.overflows);
}

/* --cpu-offload-gb 10, 12, 14 with caps of 12 and 16 GiB, with and without --mem-fraction-static 0.80. */
static void test_seeds(void **state)
{
    static const double caps[] = {12, 16}, allowed[] = {10, 12, 14}, fractions[] = {0, 0.80};
    size_t slots[2][2];

    (void)state;
    for (size_t c = 0; c < 2; c++) {
        for (size_t f = 0; f < 2; f++) {
            for (size_t a = 0; a < 3; a++) {
                struct budget_input in = qwen(caps[c], 65536, 4);
                struct budget_plan p;
                struct error err = {0};
                enum status rc;

                in.static_fraction = fractions[f];
                in.offload = BUDGET_OFFLOAD_MAX;
                in.offload_bytes = gib(allowed[a]);
                rc = budget_make(&p, &in, &err);
                print_message(
                    "cap %g, fraction %g, offload %g: %s%zu slots (%.1f %%), %.2f GiB "
                    "absent, total %.2f, static %.2f GiB\n",
                    caps[c], fractions[f], allowed[a], rc == OK ? "" : err.text, p.n_slots,
                    100.0 * (double)p.n_slots / N_ALL, (double)p.absent_bytes / (double)GIB,
                    (double)p.total_bytes / (double)GIB, (double)p.static_bytes / (double)GIB);
                if (caps[c] > 12 || (fractions[f] == 0 && allowed[a] > 10)) {
                    assert_int_equal(rc, OK);
                }
                if (rc == OK) {
                    check_sums(&p, &in);
                    assert_true(p.overflows);
                    assert_true(p.absent_bytes <= gib(allowed[a]));
                    slots[c][f] = p.n_slots; /* an upper bound changes nothing that it allows */
                } else {
                    assert_int_equal(rc, ERR_NO_MEMORY);
                    assert_non_null(strstr(err.text, "--cpu-offload-gb"));
                }
            }
        }
    }
    assert_true(slots[1][0] > slots[1][1] && slots[1][1] > slots[0][1]);
    assert_in_range(slots[1][0], N_ALL * 6 / 10, N_ALL * 7 / 10); /* 16 GiB hold about two thirds */
}

/* One block more of memory is one slot more. */
static void test_exact(void **state)
{
    struct budget_input in = qwen(16, 65536, 4);
    struct budget_plan p = make(&in);
    size_t n = p.n_slots;

    (void)state;
    assert_true(in.base_bytes - p.total_bytes < BLOCK_BYTES);
    in.base_bytes = p.total_bytes;
    assert_int_equal(make(&in).n_slots, n);
    in.base_bytes--;
    assert_int_equal(make(&in).n_slots, n - 1);
    in.base_bytes += BLOCK_BYTES;
    assert_int_equal(make(&in).n_slots, n);
    in = qwen(16, 65536, 4);
    in.static_fraction = 0.5;
    p = make(&in);
    assert_true(in.base_bytes / 2 - p.static_bytes < BLOCK_BYTES);
}

/* The embedding's memory becomes slots, and nothing else changes. */
static void test_spilled(void **state)
{
    struct budget_input in = qwen(16, 65536, 4);
    struct budget_plan p = make(&in), q;
    size_t n_bytes = in.bytes[BUDGET_EMBEDDING];

    (void)state;
    in.spilled[BUDGET_EMBEDDING] = n_bytes;
    q = make(&in);
    assert_in_range(q.n_slots, p.n_slots + n_bytes / BLOCK_BYTES,
                    p.n_slots + n_bytes / BLOCK_BYTES + 1);
    assert_int_equal(q.host_bytes, p.host_bytes + n_bytes);
    in.base_bytes = gib(32); /* fits: it stays on the card */
    p = make(&in);
    assert_false(p.overflows);
    assert_int_equal(p.bytes[BUDGET_EMBEDDING], n_bytes);
    assert_int_equal(p.host_bytes, 0);
    in.base_bytes = p.total_bytes - n_bytes; /* all experts fit, if the embedding goes */
    in.overflowing[BUDGET_TABLES] = 0;
    in.n_staging = 2;
    p = make(&in);
    assert_true(p.overflows && p.n_slots >= N_ALL - 2);
    in.host_bytes_max = p.host_bytes - 1;
    REFUSED(&in, ERR_NO_MEMORY, "the host's memory is too small");
}

static void test_slots_asked(void **state)
{
    struct budget_input in = qwen(16, 65536, 4);

    (void)state;
    in.slots = BUDGET_SLOTS_COUNT;
    in.slots_asked = 1000;
    assert_int_equal(make(&in).n_slots, 1000);
    in.slots_asked = 0;
    assert_int_equal(make(&in).n_slots, 0);
    in.slots = BUDGET_SLOTS_PERCENT;
    in.slots_asked = 25;
    assert_int_equal(make(&in).n_slots, N_ALL / 4);
    in.slots_asked = 100;
    REFUSED(&in, ERR_NO_MEMORY, "10240 slots do not fit", "--gpu-memory-gb");
    in.slots_asked = 100.5;
    REFUSED(&in, ERR_USAGE, "--gpu-expert-slots");

    in = qwen(80, 65536, 32); /* where all fit too, who asks gets slots */
    in.slots = BUDGET_SLOTS_PERCENT;
    in.slots_asked = 100;
    assert_true(make(&in).overflows);
    assert_int_equal(make(&in).n_slots, N_ALL);
    assert_int_equal(make(&in).absent_bytes, 0);
    in.slots = BUDGET_SLOTS_COUNT;
    in.slots_asked = 1e9; /* more than there are: all */
    assert_int_equal(make(&in).n_slots, N_ALL);
    in.slots_asked = 5000;
    in.offload = BUDGET_OFFLOAD_MAX;
    in.offload_bytes = gib(5);
    REFUSED(&in, ERR_USAGE, "without a slot", "--cpu-offload-gb allows 5.00");
    in.offload_bytes = 0;
    REFUSED(&in, ERR_USAGE, "--cpu-offload-gb allows 0.00");
    in.slots_asked = N_ALL;
    assert_int_equal(make(&in).n_slots, N_ALL);
}

/* Which numbers would do is said, and they do. */
static void test_advice(void **state)
{
    struct budget_input in = qwen(4, 65536, 4);
    struct budget_plan p;
    struct error err = {0};
    const char *at;
    double cap = 0;
    size_t n = 0;

    (void)state;
    REFUSED(&in, ERR_NO_MEMORY, "even without expert slots", "--gpu-memory-gb");
    assert_int_equal(budget_make(&p, &in, &err), ERR_NO_MEMORY);
    at = strstr(err.text, "--gpu-memory-gb ");
    assert_int_equal(sscanf(at, "--gpu-memory-gb %lf", &cap), 1);
    in.base_bytes = gib(cap);
    make(&in);

    in = qwen(7, 262144, 4);
    assert_int_equal(budget_make(&p, &in, &err), ERR_NO_MEMORY);
    print_message("  %s\n", err.text);
    at = strstr(err.text, "--max-total-tokens ");
    assert_int_equal(sscanf(at, "--max-total-tokens %zu", &n), 1);
    in = qwen(7, n, 4);
    make(&in);

    in = qwen(7, 65536, 64);
    assert_int_equal(budget_make(&p, &in, &err), ERR_NO_MEMORY);
    print_message("  %s\n", err.text);
    at = strstr(err.text, "--max-running-requests ");
    assert_int_equal(sscanf(at, "--max-running-requests %zu", &n), 1);
    in = qwen(7, 65536, n);
    make(&in);

    in = qwen(16, 65536, 4);
    in.static_fraction = 0.2;
    REFUSED(&in, ERR_NO_MEMORY, "--mem-fraction-static 0.3", "--gpu-memory-gb");
    in.base_bytes_max = in.base_bytes; /* the card has no more */
    assert_int_equal(budget_make(&p, &in, &err), ERR_NO_MEMORY);
    assert_null(strstr(err.text, "--gpu-memory-gb"));
}

static void test_none_may_overflow(void **state)
{
    struct budget_input in = qwen(16, 65536, 4);

    (void)state;
    in.offload = BUDGET_OFFLOAD_MAX;
    REFUSED(&in, ERR_NO_MEMORY, "--cpu-offload-gb 0 lets nothing overflow", "--gpu-memory-gb 2");
    in = qwen(16, 65536, 4);
    in.n_layers_overflow = 0;
    REFUSED(&in, ERR_NO_MEMORY, "no layer's experts may overflow");
    in = qwen(16, 65536, 4);
    in.block_bytes = 0; /* no blocks: they count as dense */
    in.bytes[BUDGET_DENSE] = gib(17);
    REFUSED(&in, ERR_NO_MEMORY, "the model does not fit");
    in.n_layers = in.n_layers_overflow = in.n_experts = 0;
    REFUSED(&in, ERR_NO_MEMORY, "the model does not fit:");
    in = qwen(16, 65536, 4);
    in.offload = BUDGET_OFFLOAD_MAX;
    in.offload_bytes = gib(2);
    REFUSED(&in, ERR_NO_MEMORY, "--cpu-offload-gb 2 is too little", "--gpu-memory-gb");
    in = qwen(16, 65536, 4);
    in.host_bytes_max = gib(8);
    REFUSED(&in, ERR_NO_MEMORY, "the host's memory is too small", "8.00 GiB are available");
}

/* Experts go to a file when memory is short by a byte, or when that was asked for; the rest must fit. */
static void test_host(void **state)
{
    struct budget_input in = qwen(16, 65536, 4);
    struct budget_plan memory, p;

    (void)state;
    in.spilled[BUDGET_EMBEDDING] = in.bytes[BUDGET_EMBEDDING];
    in.host_loading = gib(2);
    in.folder = "/large";
    in.file_bytes = (size_t)N_ALL * BLOCK_BYTES + MIB;
    in.file_bytes_max = in.file_bytes;
    memory = make(&in);
    assert_false(memory.in_file);
    assert_int_equal(memory.file_bytes, 0);
    assert_int_equal(memory.host_wanted, memory.host_bytes + gib(2));
    in.host_bytes_max = memory.host_wanted;
    assert_false(make(&in).in_file);
    in.host_bytes_max--;
    p = make(&in);
    assert_true(p.in_file);
    assert_int_equal(p.file_bytes, in.file_bytes);
    assert_int_equal(p.host[BUDGET_EXPERTS], 0);
    assert_int_equal(p.host_bytes, in.bytes[BUDGET_EMBEDDING]);
    assert_int_equal(p.host_wanted, memory.host_wanted);
    assert_int_equal(p.n_slots, memory.n_slots);
    assert_int_equal(p.total_bytes, memory.total_bytes);

    in.host = BUDGET_HOST_MEMORY;
    REFUSED(&in, ERR_NO_MEMORY, "the host's memory is too small: 16.42 GiB for what overflows",
            "2.00 while loading", "--offload-host auto puts 15.47 GiB of experts in a file");
    in.host = BUDGET_HOST_AUTO;
    in.file_bytes_max = gib(3);
    REFUSED(&in, ERR_NO_MEMORY, "a file of 15.47 GiB for experts does not fit '/large'",
            "3.00 GiB are free", "--offload-folder");
    in.no_file = "they are elsewhere";
    REFUSED(&in, ERR_NO_MEMORY, "the host's memory is too small", "they are elsewhere");
    in.host = BUDGET_HOST_FILE;
    REFUSED(&in, ERR_USAGE, "--offload-host file: they are elsewhere");
    in.no_file = NULL;
    REFUSED(&in, ERR_NO_MEMORY, "--offload-host file: 15.47 GiB of experts do not fit '/large'");
    in.file_bytes_max = SIZE_MAX;
    in.host_bytes_max = SIZE_MAX;
    assert_true(make(&in).in_file);
    in.host_bytes_max = in.bytes[BUDGET_EMBEDDING] + gib(2) - 1;
    REFUSED(&in, ERR_NO_MEMORY, "even with experts in a file", "2.00 while loading");
    in.base_bytes = gib(32); /* everything fits the card */
    assert_false(make(&in).in_file);
}

/* Layers that must stay are resident, the others share the slots. */
static void test_groups(void **state)
{
    struct budget_input in = qwen(16, 65536, 4);
    struct budget_plan p;
    size_t n = 0;

    (void)state;
    for (size_t l = 0; l < N_LAYERS; l++) {
        n += budget_group_selects(l, 4, 2) ? 1 : 0;
        assert_int_equal(budget_group_selects(l, 4, 2), l % 4 >= 2);
        assert_true(budget_group_selects(l, 1, 1));
        assert_true(budget_group_selects(l, 0, 0));
        assert_true(budget_group_selects(l, 4, 9));
        assert_false(budget_group_selects(l, 4, 0));
    }
    assert_int_equal(n, 20);
    in.n_layers_overflow = n;
    p = make(&in);
    assert_int_equal(p.n_overflowing, 20 * N_EXPERTS);
    assert_int_equal(p.bytes[BUDGET_EXPERTS], (size_t)20 * N_EXPERTS * BLOCK_BYTES);
    assert_int_equal(p.host_bytes, (size_t)20 * N_EXPERTS * BLOCK_BYTES);
    in.n_layers_overflow = 4; /* then the rest is too large */
    REFUSED(&in, ERR_NO_MEMORY, "even without expert slots");
}

static void test_staging(void **state)
{
    struct budget_input in = qwen(16, 65536, 4);
    struct budget_plan p = make(&in);

    (void)state;
    assert_int_equal(p.n_staging, 32);
    in.base_bytes = p.total_bytes - p.bytes[BUDGET_SLOTS];
    p = make(&in);
    assert_int_equal(p.n_staging, 32);
    assert_int_equal(p.n_slots, 0);
    in.base_bytes -= BLOCK_BYTES; /* less staging, and the rest are slots */
    p = make(&in);
    assert_int_equal(p.n_staging, 2);
    assert_int_equal(p.n_slots, 29);
    in = qwen(16, 65536, 4);
    in.n_layers = in.n_layers_overflow = 1;
    in.n_experts = 4;
    in.slots = BUDGET_SLOTS_COUNT;
    in.slots_asked = 1;
    assert_int_equal(make(&in).n_staging, 4);
    in.n_experts = 1;
    assert_int_equal(make(&in).n_staging, 2);
}

static void test_overflow_of_sizes(void **state)
{
    struct budget_input in = qwen(16, 65536, 4);

    (void)state;
    in.bytes[BUDGET_KV] = SIZE_MAX - 5;
    REFUSED(&in, ERR_NO_MEMORY, "address space");
    in = qwen(16, 65536, 4);
    in.n_experts = SIZE_MAX / 8;
    REFUSED(&in, ERR_NO_MEMORY, "address space");
    in = qwen(16, 65536, 4);
    in.overflowing[BUDGET_SCRATCH] = SIZE_MAX;
    REFUSED(&in, ERR_NO_MEMORY, "address space");
}

static void test_hits(void **state)
{
    double last = -1;

    (void)state;
    assert_true(budget_hits_uniform(0.37) == 0.37 && budget_hits_uniform(7) == 1);
    assert_true(budget_hits_local(0.26) > 0.834 && budget_hits_local(0.26) < 0.836);
    assert_true(budget_hits_local(0) == 0 && budget_hits_local(1) == 1);
    for (double share = 0; share <= 1; share += 0.01) {
        assert_true(budget_hits_local(share) > last);
        last = budget_hits_local(share);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fits),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_spilled),
        cmocka_unit_test(test_slots_asked),
        cmocka_unit_test(test_advice),
        cmocka_unit_test(test_none_may_overflow),
        cmocka_unit_test(test_host),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_staging),
        cmocka_unit_test(test_overflow_of_sizes),
        cmocka_unit_test(test_hits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
