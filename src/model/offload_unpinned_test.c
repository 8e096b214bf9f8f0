/* offload_unpinned_test.c - a model of whose experts only some layers can be pinned answers as the resident one.
 *
 * The emulated card's driver refuses to pin more than a number of layers, as systems do that let a process lock a part
 * of the memory only. Prompts in large steps, then decode steps that ask for the same experts again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_backend.h"
#include "model/model_internal.h"
#include "model/model_testing.h"
#ifdef SPILLWAY_HAS_EMULATOR
#include "backend/cuda/cuda_driver.h"
#include "backend/cuda/emulator/emulator.h"
#endif

enum { LAYERS = 4, PROMPT = 19, STEPS = 12, OUTPUTS = 1 + STEPS, SLOTS = 12 };

#ifdef SPILLWAY_HAS_EMULATOR
static const double LIMIT = 2e-5; /* of the CPU's sums in float32 */

static struct {
    const struct cuda_driver *real;
    struct cuda_driver driver;
    size_t arena_bytes, embedding_bytes; /* 0: not known yet */
    size_t layers_left;                  /* that may be pinned */
    bool no_embedding;                   /* which may not */
} few;

/* Where it is or in memory of the driver's own: it is the same. */
static bool may_pin(size_t n_bytes)
{
    if (n_bytes == few.arena_bytes) {
        return few.layers_left > 0 && few.layers_left-- > 0;
    }
    return n_bytes != few.embedding_bytes || !few.no_embedding;
}

static CUresult register_few(void *p, size_t n_bytes, unsigned flags)
{
    return may_pin(n_bytes) ? few.real->mem_host_register(p, n_bytes, flags)
                            : CUDA_ERROR_OUT_OF_MEMORY_;
}

static CUresult alloc_few(void **out, size_t n_bytes, unsigned flags)
{
    return may_pin(n_bytes) ? few.real->mem_host_alloc(out, n_bytes, flags)
                            : CUDA_ERROR_OUT_OF_MEMORY_;
}

static const struct cuda_driver *driver_of(size_t n_layers)
{
    few.real = cuda_emulator_driver();
    few.driver = *few.real;
    few.driver.mem_host_register = register_few;
    few.driver.mem_host_alloc = alloc_few;
    few.layers_left = n_layers;
    return &few.driver;
}

static void step_run(struct test_model *t, struct seq_state *seq, const int32_t *tokens, size_t n,
                     float *out, size_t vocab)
{
    const struct model_span span = {seq, tokens, n, 1};
    struct model_step_result result;
    struct error err = {0};

    assert_int_equal(state_reserve(model_states(t->m), seq, n, &err), OK);
    if (model_step(t->m, &span, 1, NULL, &result, &err) != OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(result.bad_layer[0], -1);
    memcpy(out, result.logits, vocab * sizeof *out);
}

/* The logits [OUTPUTS][vocab], to be freed; o NULL: all experts on the card. */
static float *logits_of(const struct model_offload *o, size_t n_pageable, size_t *vocab)
{
    struct test_setup setup = {.compute = DTYPE_F32,
                               .device = TEST_CUDA,
                               .driver = driver_of(LAYERS - n_pageable),
                               .rows_max = 32,
                               .context_max = 128,
                               .offload = o};
    int32_t tokens[PROMPT + STEPS];
    struct seq_state *seq;
    struct offload_stats s;
    struct test_model t;
    struct error err = {0};
    char dir[512];
    float *out;

    fixture_path(dir, "tiny-qwen3_5-moe-gptq-int4", "");
    test_model_open(&t, dir, &setup);
    *vocab = model_get_config(t.m)->vocab_size;
    out = calloc(OUTPUTS * *vocab, sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < PROMPT + STEPS; i++) {
        tokens[i] = (int32_t)(i < PROMPT ? i * 37 % 400 : 11);
    }
    assert_int_equal(state_new(&seq, model_states(t.m), &err), OK);
    step_run(&t, seq, tokens, PROMPT, out, *vocab);
    for (size_t i = 0; i < STEPS; i++) {
        step_run(&t, seq, tokens + PROMPT + i, 1, out + (i + 1) * *vocab, *vocab);
    }
    state_free(model_states(t.m), seq);
    if (!o) {
        const struct expert_arena *a = &t.m->weights.arenas[0];

        few.arena_bytes = a->n_experts * a->block.n_bytes;
        few.embedding_bytes = weight_bytes(&t.m->weights.matrices[t.m->spec.embed]);
        assert_int_not_equal(few.arena_bytes, few.embedding_bytes);
    } else {
        assert_true(model_offload_stats(t.m, &s));
        assert_int_equal(s.n_pageable, n_pageable);
        assert_true(s.n_failed == 0 && (n_pageable == 0 || s.n_cpu > 0));
        assert_true(n_pageable < LAYERS || s.n_fetched + s.n_in_place + s.n_next == 0);
        print_message("%zu of %d layers are pageable: %llu hits, %llu fetched, %llu of the CPU's, "
                      "%llu brought in between steps\n",
                      n_pageable, LAYERS, (unsigned long long)s.n_hits,
                      (unsigned long long)s.n_fetched, (unsigned long long)s.n_cpu,
                      (unsigned long long)s.n_inserted);
    }
    test_model_close(&t);
    return out;
}

static void test_same_logits(void **state)
{
    static const enum expert_miss modes[] = {EXPERT_MISS_AUTO, EXPERT_MISS_CPU};
    struct cpu_backend_options options = {.n_threads = 2};
    struct backend *cpu;
    struct error err = {0};
    size_t vocab;
    float *want = logits_of(NULL, 0, &vocab);

    (void)state;
    assert_int_equal(cpu_backend_new(&cpu, &options, &err), OK);
    for (size_t i = 0; i < 6; i++) {
        const struct model_offload o = {
            .n_slots = i == 5 ? 0 : SLOTS, .n_staging = 3, .miss = modes[i % 2], .cpu = cpu};
        size_t n_pageable = i / 2 * 2;
        float *got = logits_of(&o, n_pageable, &vocab);
        double worst = 0;

        for (size_t k = 0; k < OUTPUTS; k++) {
            double e = relative_error(got + k * vocab, want + k * vocab, vocab);

            worst = e <= worst ? worst : e; /* NaN counts */
        }
        print_message("%-5s %2zu slots: %9.2e\n", expert_miss_name(o.miss), o.n_slots, worst);
        assert_true(worst <= LIMIT);
        free(got);
    }
    free(want);
    cpu->ops->free(cpu);
}

/* Without a CPU there is nobody for such layers; without a pinned embedding nothing works. */
static void test_refused(void **state)
{
    struct model_offload o = {.n_slots = SLOTS, .miss = EXPERT_MISS_FETCH};
    struct test_setup setup = {.compute = DTYPE_F32, .device = TEST_CUDA, .offload = &o};
    struct error err = {0};
    char dir[512];

    (void)state;
    fixture_path(dir, "tiny-qwen3_5-moe-gptq-int4", "");
    setup.driver = driver_of(2);
    assert_int_equal(test_model_refused(dir, &setup, &err), ERR_UNSUPPORTED);
    print_message("%s\n", err.text);
    assert_non_null(strstr(err.text, "--expert-miss fetch"));
    assert_non_null(strstr(err.text, "2 of 4 layers"));
    few.no_embedding = true;
    assert_int_equal(test_model_refused(dir, &setup, &err), ERR_NO_MEMORY);
    print_message("%s\n", err.text);
    assert_non_null(strstr(err.text, "the embedding's"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_logits),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
    fprintf(stderr, "skipped: built without the emulated card\n");
    return 77;
}
#endif
