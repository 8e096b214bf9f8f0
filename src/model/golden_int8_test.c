/* golden_int8_test.c - what int8 activations cost in quality: loss and divergence on real text.
 *
 * The demo model's experts are int4; its text is read once with float32 activations and once with int8
 * ones. The loss may move by LOSS_LIMIT; the Kullback-Leibler divergence of the two answers is reported
 * and bounded, because a loss can stay while the answers change. */
#include "model/model_testing.h"

#include <math.h>
#include <stdlib.h>

#include "base/json.h"

enum { LOSS_ROWS = 4, VOCAB = 4096 };
static const double LOSS_LIMIT = 0.005, KL_LIMIT = 0.01;

struct text {
    int32_t *tokens;
    size_t row_tokens;
};

static struct text text_open(void)
{
    struct text text = {0};
    struct json_object *o, *list;
    struct error err;

    assert_int_equal(json_parse_file(&o, RILL_DIR "/golden.json", 64 << 20, &err), OK);
    list = json_get(o, "loss_text_tokens");
    assert_int_equal(json_get_size(&text.row_tokens, o, "loss_row_tokens", ERR_FORMAT, &err), OK);
    assert_true(json_object_array_length(list) >= LOSS_ROWS * text.row_tokens);
    text.tokens = calloc(LOSS_ROWS * text.row_tokens, sizeof *text.tokens);
    assert_non_null(text.tokens);
    for (size_t i = 0; i < LOSS_ROWS * text.row_tokens; i++) {
        text.tokens[i] = json_object_get_int(json_object_array_get_idx(list, i));
    }
    json_object_put(o);
    return text;
}

static void open_rill(struct test_model *t, enum cpu_activations activations)
{
    struct test_setup setup = {
        .compute = DTYPE_F32, .activations = activations, .context_max = 1088};

    test_model_open(t, RILL_DIR, &setup);
}

/* log of the sum of exp. */
static double log_sum(const float *logits)
{
    double max = (double)logits[eval_argmax(logits, VOCAB)], sum = 0;

    for (size_t i = 0; i < VOCAB; i++) {
        sum += exp((double)logits[i] - max);
    }
    return log(sum) + max;
}

struct score {
    double loss, other_loss, kl; /* sums */
    size_t n, n_same_best;
};

static void compare_position(struct score *s, const float *plain, const float *other, int32_t next)
{
    double plain_sum = log_sum(plain), other_sum = log_sum(other);

    for (size_t i = 0; i < VOCAB; i++) {
        double log_p = (double)plain[i] - plain_sum;

        s->kl += exp(log_p) * (log_p - ((double)other[i] - other_sum));
    }
    s->loss += plain_sum - (double)plain[next];
    s->other_loss += other_sum - (double)other[next];
    s->n_same_best += eval_argmax(plain, VOCAB) == eval_argmax(other, VOCAB);
    s->n++;
}

static void int8_activations_keep_the_loss(void **state)
{
    struct text text = text_open();
    struct test_model plain, int8;
    struct eval_options o = {.want_logits = true};
    struct score s = {0};
    struct error err;

    (void)state;
    open_rill(&plain, CPU_ACTIVATIONS_F32);
    open_rill(&int8, CPU_ACTIVATIONS_INT8);
    for (size_t row = 0; row < LOSS_ROWS; row++) {
        const int32_t *tokens = text.tokens + row * text.row_tokens;
        size_t n = text.row_tokens - 1;
        struct eval_result a, b;

        assert_int_equal(eval_run(&a, plain.m, tokens, n, &o, &err), OK);
        assert_int_equal(eval_run(&b, int8.m, tokens, n, &o, &err), OK);
        assert_int_equal(a.vocab, VOCAB);
        for (size_t i = 0; i < n; i++) {
            compare_position(&s, a.logits + i * VOCAB, b.logits + i * VOCAB, tokens[i + 1]);
        }
        eval_result_release(&a);
        eval_result_release(&b);
    }
    print_message("rill, %zu tokens: loss %.5f float32, %.5f int8 activations (%+.5f); KL %.6f; "
                  "same best token %.4f\n",
                  s.n, s.loss / (double)s.n, s.other_loss / (double)s.n,
                  (s.other_loss - s.loss) / (double)s.n, s.kl / (double)s.n,
                  (double)s.n_same_best / (double)s.n);
    assert_true(fabs(s.other_loss - s.loss) / (double)s.n < LOSS_LIMIT);
    assert_true(s.kl > 0 && s.kl / (double)s.n < KL_LIMIT);
    test_model_close(&plain);
    test_model_close(&int8);
    free(text.tokens);
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Median over the tokens of the error of their logits. In a small random model a router's choice may
 * flip, which is no error of a kernel; those few tokens do not move the median. */
static double median_error(const struct eval_result *a, const struct eval_result *b)
{
    double errors[256];

    assert_in_range(a->n_tokens, 1, 256);
    for (size_t i = 0; i < a->n_tokens; i++) {
        errors[i] = relative_error(a->logits + i * a->vocab, b->logits + i * b->vocab, a->vocab);
        assert_true(isfinite(errors[i]));
    }
    qsort(errors, a->n_tokens, sizeof *errors, compare_double);
    return errors[a->n_tokens / 2];
}

/* The quantised fixtures, act-order included. */
static void fixtures_stay_close(void **state)
{
    static const char *const names[] = {"tiny-qwen3_5-moe-gptq-int4",
                                        "tiny-qwen3_5-moe-gptq-int4-actorder"};
    enum { N_TOKENS = 60 };
    int32_t tokens[N_TOKENS];

    (void)state;
    for (int32_t i = 0; i < N_TOKENS; i++) {
        tokens[i] = (i * 53 + 7) % 400;
    }
    for (size_t f = 0; f < 2; f++) {
        struct eval_result r[2];
        struct eval_options o = {.want_logits = true};
        double error;

        for (size_t a = 0; a < 2; a++) {
            struct test_setup setup = {.compute = DTYPE_F32,
                                       .activations =
                                           a ? CPU_ACTIVATIONS_INT8 : CPU_ACTIVATIONS_F32};
            struct test_model t;
            char dir[512];
            struct error err;

            fixture_path(dir, names[f], "");
            test_model_open(&t, dir, &setup);
            assert_int_equal(eval_run(&r[a], t.m, tokens, N_TOKENS, &o, &err), OK);
            test_model_close(&t);
        }
        error = median_error(&r[1], &r[0]);
        print_message("%-36s median relative error of the logits %.5f\n", names[f], error);
        assert_true(error > 0 && error < 0.03);
        eval_result_release(&r[0]);
        eval_result_release(&r[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixtures_stay_close),
        cmocka_unit_test(int8_activations_keep_the_loss),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
