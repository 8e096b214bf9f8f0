/* offload_file_test.c - a model whose experts are in a file answers as the one that has them in memory.
 *
 * One prompt in a large step, then decode steps, on a card or else on the emulated one; before each step the
 * file's pages are thrown out of memory, so that all of it comes from the disk again and again. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/cuda/cuda_backend.h"
#include "model/model_internal.h"
#include "model/model_testing.h"
#ifdef SPILLWAY_HAS_EMULATOR
#include "backend/cuda/emulator/emulator.h"
#endif

enum { PROMPT = 19, STEPS = 6, OUTPUTS = 1 + STEPS, SLOTS = 12 };

static const double LIMIT = 2e-5; /* of the CPU's sums in float32 */

static const struct cuda_driver *emulator; /* NULL: a card is there */

static void forget(const struct file_memory *file)
{
    assert_non_null(file->base);
    assert_int_equal(madvise(file->base, file->n_bytes, MADV_DONTNEED), 0);
    assert_int_equal(posix_fadvise(file->fd, 0, 0, POSIX_FADV_DONTNEED), 0);
}

static void step_run(struct test_model *t, struct seq_state *seq, const int32_t *tokens, size_t n,
                     float *out, size_t vocab)
{
    const struct model_span span = {seq, tokens, n, 1};
    struct model_step_result result;
    struct error err = {0};

    if (t->m->weights.file.base) {
        forget(&t->m->weights.file);
    }
    assert_int_equal(state_reserve(model_states(t->m), seq, n, &err), OK);
    if (model_step(t->m, &span, 1, NULL, &result, &err) != OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(result.bad_layer[0], -1);
    memcpy(out, result.logits, vocab * sizeof *out);
}

/* out [OUTPUTS][vocab] */
static void model_run(float *out, struct test_model *t, size_t vocab)
{
    int32_t tokens[PROMPT + STEPS];
    struct seq_state *seq;
    struct error err = {0};

    for (size_t i = 0; i < PROMPT + STEPS; i++) {
        tokens[i] = (int32_t)(i * 37 % 400);
    }
    assert_int_equal(state_new(&seq, model_states(t->m), &err), OK);
    step_run(t, seq, tokens, PROMPT, out, vocab);
    for (size_t i = 0; i < STEPS; i++) {
        step_run(t, seq, tokens + PROMPT + i, 1, out + (i + 1) * vocab, vocab);
    }
    state_free(model_states(t->m), seq);
}

/* The logits, to be freed; o NULL: all experts on the card. */
static float *logits_of(const struct model_offload *o, size_t *vocab)
{
    struct test_setup setup = {.compute = DTYPE_F32,
                               .device = TEST_CUDA,
                               .driver = emulator,
                               .rows_max = 32,
                               .context_max = 128,
                               .offload = o};
    struct test_model t;
    char dir[512];
    float *out;

    fixture_path(dir, "tiny-qwen3_5-moe-gptq-int4", "");
    test_model_open(&t, dir, &setup);
    *vocab = model_get_config(t.m)->vocab_size;
    out = calloc(OUTPUTS * *vocab, sizeof *out);
    assert_non_null(out);
    model_run(out, &t, *vocab);
    if (o && o->folder) { /* the card has fetched nothing of it */
        struct offload_stats s;

        assert_true(model_offload_stats(t.m, &s));
        assert_int_equal(s.n_fetched + s.n_in_place + s.n_next, 0);
        assert_true(s.n_cpu > 0 && s.n_streamed + s.n_large_cpu > 0 && s.n_failed == 0);
    }
    test_model_close(&t);
    return out;
}

static void file_case(const float *want, enum expert_miss miss, const bool *may, size_t n_slots,
                      struct backend *cpu)
{
    const struct model_offload o = {.n_slots = n_slots,
                                    .n_staging = 3,
                                    .miss = miss,
                                    .may_overflow = may,
                                    .folder = "/tmp",
                                    .cpu = cpu};
    size_t vocab;
    float *got = logits_of(&o, &vocab);
    double worst = 0;

    for (size_t i = 0; i < OUTPUTS; i++) {
        double e = relative_error(got + i * vocab, want + i * vocab, vocab);

        worst = e <= worst ? worst : e; /* NaN counts */
    }
    print_message("%-5s %2zu slots, %s: %9.2e\n", expert_miss_name(miss), n_slots,
                  may ? "some layers" : "all layers", worst);
    assert_true(worst <= LIMIT);
    free(got);
}

static void test_same_logits(void **state)
{
    const bool some[] = {false, true, false, true};
    struct cpu_backend_options options = {.n_threads = 2};
    struct backend *cpu;
    struct error err = {0};
    size_t vocab;
    float *want = logits_of(NULL, &vocab);

    (void)state;
    assert_int_equal(cpu_backend_new(&cpu, &options, &err), OK);
    file_case(want, EXPERT_MISS_AUTO, NULL, SLOTS, cpu);
    file_case(want, EXPERT_MISS_CPU, NULL, 0, cpu);
    file_case(want, EXPERT_MISS_AUTO, some, SLOTS, cpu);
    free(want);
    cpu->ops->free(cpu);
}

/* What cannot be served, or not be written, is refused before anything is computed. */
static void test_refused(void **state)
{
    struct model_offload o = {.n_slots = SLOTS, .miss = EXPERT_MISS_FETCH, .folder = "/tmp"};
    struct test_setup setup = {
        .compute = DTYPE_F32, .device = TEST_CUDA, .driver = emulator, .offload = &o};
    struct error err = {0};
    char dir[512];

    (void)state;
    fixture_path(dir, "tiny-qwen3_5-moe-gptq-int4", "");
    assert_int_not_equal(test_model_refused(dir, &setup, &err), OK);
    print_message("%s\n", err.text);
    assert_non_null(strstr(err.text, "--expert-miss fetch"));
    o.folder = "/no such folder";
    assert_int_equal(test_model_refused(dir, &setup, &err), ERR_IO);
    print_message("%s\n", err.text);
    assert_non_null(strstr(err.text, "'/no such folder': No such file or directory"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_logits),
        cmocka_unit_test(test_refused),
    };
    char why[256];
    bool is_card = cuda_is_there(why, sizeof why);

#ifdef SPILLWAY_HAS_EMULATOR
    emulator = is_card ? NULL : cuda_emulator_driver();
#endif
    if (!is_card && !emulator) {
        fprintf(stderr, "skipped: %s\n", why);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
