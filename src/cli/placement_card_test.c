/* placement_card_test.c - what a card (or the emulated one) really takes, against what was planned.
 *
 * Place: cli, cmocka. Small models, so the context and the driver's rounding are left out of the comparison:
 *        the rest must be what the planner counted, resident and with experts that overflow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/pool.h"
#include "cli/device_setup.h"
#include "cli/model_resolve.h"
#include "cli/placement.h"
#ifdef SPILLWAY_HAS_EMULATOR
#include "backend/cuda/emulator/emulator.h"
#endif

static const char RILL[] = SPILLWAY_SOURCE_DIR "/models/rill";
static const char NEXT[] = SPILLWAY_SOURCE_DIR "/tests/golden/tiny-qwen3_next";
static const char FIXTURE[] =
    SPILLWAY_SOURCE_DIR "/tests/golden/tiny-qwen3_5-moe-gptq-int4-actorder";

static const struct cuda_driver *driver; /* NULL: a card is there */

/* Tables of homes are rounded up; a card's driver takes whole pages. */
enum { SLACK_BYTES = 2 << 20, CARD_SLACK_BYTES = 96 << 20 };

struct run {
    const char *dir, *dtype, *kv, *slots;
    int64_t group_size;
    size_t rows; /* of a prompt's chunk */
    const char *quant;
    bool is_short; /* the host's memory, by a byte */
};

static void open_model(struct model_setup *s, const struct model_resolved *r)
{
    struct model_options mo = {
        .compute_dtype = r->compute,
        .kv_dtype = r->kv,
        .recurrent_dtype = r->recurrent,
        .rows_max = r->rows_max,
        .out_rows_max = r->max_running,
        .budget = {.n_live = r->max_running + 1,
                   .n_tokens = r->max_total_tokens,
                   .context_max = r->context_length},
        .pool = cpu_backend_pool(s->cpu),
        .dense_quant = r->dense_quant,
    };
    struct model_offload offload;
    struct error err = {0};

    if (placement_offload(&offload, s->placement, s->cpu)) {
        mo.offload = &offload;
    }
    if (model_open(&s->model, s->checkpoint, s->backend, &mo, NULL, NULL, &err) != OK) {
        fail_msg("%s", err.text);
    }
}

/* Layers of experts are counted as the driver hands out memory, which the emulator does not do. */
static size_t rounding(const struct placement *p)
{
    size_t n = p->plan.overflows ? p->in.n_layers - p->in.n_layers_overflow : p->in.n_layers;

    return n * (p->in.layer_bytes - p->in.n_experts * p->in.block_bytes);
}

static void compare(const struct run *run, const struct model_setup *s)
{
    const struct budget_plan *b = &s->placement->plan;
    size_t used = cuda_backend_used(s->backend) - b->bytes[BUDGET_DRIVER];
    size_t planned = b->total_bytes - b->bytes[BUDGET_DRIVER] - b->bytes[BUDGET_RESERVE] -
                     rounding(s->placement);
    size_t slack = driver ? SLACK_BYTES : CARD_SLACK_BYTES;

    print_message("%s, %s, slots %s: %zu KiB in use, %zu planned\n", strrchr(run->dir, '/') + 1,
                  run->dtype, run->slots ? run->slots : "-", used >> 10, planned >> 10);
    assert_int_equal(b->overflows, run->slots != NULL);
    assert_true(used <= planned + (driver ? 0 : slack));
    assert_true(planned <= used + slack);
}

static void decide(struct model_setup *s, struct model_resolved *r, const struct model_flags *f,
                   const struct model_config *c, const struct placement_target *target)
{
    const struct model_setup_options o = {.quiet = true, .max_running = 2};
    struct error err = {0};

    if (model_setup_decide(s, r, f, &o, c, target, &err) != OK) {
        fail_msg("%s", err.text);
    }
}

static void check(const struct run *run)
{
    const struct cuda_backend_options card = {.driver = driver};
    const struct cpu_backend_options cpu = {.n_threads = 2};
    struct model_flags f = {.model_path = run->dir};
    struct model_config config = {0};
    struct placement_target target;
    struct model_setup s = {0};
    struct model_resolved r;
    struct error err = {0};

    model_flags_defaults(&f);
    f.dtype = run->dtype;
    f.kv_cache_dtype = run->kv;
    f.gpu_expert_slots = run->slots;
    f.dense_quant = run->quant;
    f.offload_group_size = run->group_size;
    f.max_total_tokens = 512;
    f.chunked_prefill_size = (int64_t)run->rows;
    assert_int_equal(cpu_backend_new(&s.cpu, &cpu, &err), OK);
    assert_int_equal(cuda_backend_new(&s.backend, &card, &err), OK);
    assert_int_equal(model_setup_describe(&s, &config, &f, NULL, &err), OK);
    target = device_target(s.backend, &f);
    target.folder_fault[0] = '\0'; /* whatever disks there are */
    target.folder = "/tmp";
    target.folder_bytes_max = SIZE_MAX;
    decide(&s, &r, &f, &config, &target);
    if (run->is_short) {
        target.host_bytes_max = s.placement->plan.host_wanted - 1;
        s.settings.n = 0;
        decide(&s, &r, &f, &config, &target);
    }
    assert_int_equal(s.placement->plan.in_file, run->is_short);
    open_model(&s, &r);
    compare(run, &s);
    model_config_release(&config);
    model_setup_close(&s);
}

static void test_bytes(void **state)
{
    static const struct run runs[] = {
        {RILL, "bfloat16", "auto", NULL, -1, 256, "none", false},
        {RILL, "bfloat16", "auto", NULL, -1, 256, "int8", false},
        {RILL, "float16", "fp8_e4m3", "25%", -1, 256, "none", false},
        {RILL, "float32", "auto", "0", -1, 64, "none", false},
        {RILL, "bfloat16", "auto", "16", 4, 512, "int8", false},
        {NEXT, "bfloat16", "auto", NULL, -1, 128, "int8", false}, /* rewritten, then quantised */
        {FIXTURE, "bfloat16", "auto", NULL, -1, 128, "none", false},
        {FIXTURE, "float16", "auto", "50%", -1, 128, "none", false},
        {RILL, "bfloat16", "auto", "25%", -1, 256, "int8", true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        check(&runs[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bytes)};
    char why[256];
    bool is_there = cuda_is_there(why, sizeof why);

#ifdef SPILLWAY_HAS_EMULATOR
    driver = is_there ? NULL : cuda_emulator_driver();
#endif
    if (!is_there && !driver) {
        fprintf(stderr, "skipped: %s\n", why);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
