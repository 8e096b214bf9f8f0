/* golden_matrix_test.c - every combination of types: activations x KV cache x recurrent state.
 *
 * The prompt rand200 runs as a prefill of 64 tokens and then one by one, so that rounded states and
 * rounded keys and values are really read back. How a cell is judged:
 *
 *   error     median over the tokens of |logits - reference| / |reference|; at most 2 x the yardstick
 *             (the reference implementation's own error in that type) + 1.5 x the effect
 *   top-1     share of tokens with the reference's most likely token; at least the yardstick's
 *             - 0.03 - 1.5 x the effect's loss
 *   effect    what rounding K, V or the state costs by itself: a float32 run in which the test rounds the
 *             pools after every step, against the plain run. Nothing of the rounding code under test
 *             takes part in it.
 *
 * The scales of the quantised fixtures are float16 in one and bfloat16 in the other (act-order), so each
 * activation type meets both.
 *
 * Tokens at which some layer's router margin (k-th minus next probability, in the float32 run) is
 * below MARGIN_MIN are reported apart: there a tiny difference picks another expert, which is not an
 * error of the arithmetic. */
#include "model/model_testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/size.h"

enum { PREFILL = 64, LOSS_ROWS = 1, N_KV = 4, N_SSM = 2 };

static enum test_device device; /* of the cells, set by main(); effects are measured on the CPU */
static struct test_backends backends;

static const double MARGIN_MIN = 0.01;
static const double FLOAT32_YARDSTICK = 5e-6; /* twice that is the limit of the float32 fixtures */
static const double LOSS_LIMIT = 0.02;

static const enum dtype computes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
static const enum dtype kvs[N_KV] = {DTYPE_NONE, DTYPE_BF16, DTYPE_F8_E4M3, DTYPE_F8_E5M2};
static const enum dtype ssms[N_SSM] = {DTYPE_F32, DTYPE_BF16};
enum { N_COMPUTE = sizeof computes / sizeof computes[0] };

struct score {
    double error; /* median over clear tokens */
    double top1;
    double unclear_error; /* median over the others; NaN when there are none */
    size_t n_clear;
};

struct reference {
    const int32_t *tokens;
    const float *logits;
    size_t n, vocab;
    float *margins; /* of the plain float32 run */
};

/* ---- scores ---- */

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, size_t n)
{
    if (n == 0) {
        return NAN;
    }
    qsort(x, n, sizeof *x, compare_double);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

static struct score score_of(const float *logits, const float *base, const struct reference *ref)
{
    double *clear = calloc(ref->n, sizeof *clear), *unclear = calloc(ref->n, sizeof *unclear);
    size_t n_clear = 0, n_unclear = 0, same = 0;
    struct score s;

    assert_non_null(clear);
    assert_non_null(unclear);
    for (size_t i = 0; i < ref->n; i++) {
        const float *got = logits + i * ref->vocab, *want = base + i * ref->vocab;
        double e = relative_error(got, want, ref->vocab);

        assert_true(isfinite(e));
        if (ref->margins[i] < MARGIN_MIN) {
            unclear[n_unclear++] = e;
        } else {
            clear[n_clear++] = e;
            same += eval_argmax(got, ref->vocab) == eval_argmax(want, ref->vocab);
        }
    }
    s.n_clear = n_clear;
    s.top1 = n_clear ? (double)same / (double)n_clear : 1;
    s.error = median(clear, n_clear);
    s.unclear_error = median(unclear, n_unclear);
    free(clear);
    free(unclear);
    return s;
}

/* ---- runs ---- */

static void run_logits(struct eval_result *r, struct test_model *t, const struct reference *ref,
                       size_t first, size_t window)
{
    struct eval_options o = {.first = first, .window = window, .want_logits = true};
    struct error err = {0};

    if (eval_run(r, t->m, ref->tokens, ref->n, &o, &err) != OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(r->bad_layer, -1);
}

/* One row [n] of keys or values as the cache would give it back. */
static void round_row(float *row, size_t n, enum dtype t)
{
    float largest = 0, scale = 1;

    if (t == DTYPE_F8_E4M3 || t == DTYPE_F8_E5M2) {
        for (size_t i = 0; i < n; i++) {
            largest = fmaxf(largest, fabsf(row[i]));
        }
        scale = largest > 0 ? largest / (t == DTYPE_F8_E4M3 ? 448.0f : 57344.0f) : 1;
    }
    for (size_t i = 0; i < n; i++) {
        row[i] = dtype_round(t, row[i] / scale) * scale;
    }
}

/* Rounds what the last step of n tokens wrote into a float32 model's pools. */
static void round_pools(struct test_model *t, const struct seq_state *seq, size_t n, enum dtype kv,
                        enum dtype ssm)
{
    const struct state_pools *p = state_store_pools(model_states(t->m));
    const struct model_config *c = model_get_config(t->m);
    struct span span = {0};

    state_span(seq, &span);
    for (size_t layer = 0; kv != DTYPE_NONE && layer < p->n_attn_layers; layer++) {
        for (size_t token = span.position - n; token < span.position; token++) {
            size_t page = layer * p->n_pages + (size_t)span.pages[token / KV_PAGE_TOKENS];
            for (size_t head = 0; head < c->n_kv_heads; head++) {
                size_t at = page * p->kv_elems +
                            (head * KV_PAGE_TOKENS + token % KV_PAGE_TOKENS) * c->head_dim;
                round_row((float *)(void *)p->k + at, c->head_dim, kv);
                round_row((float *)(void *)p->v + at, c->head_dim, kv);
            }
        }
    }
    for (size_t layer = 0; ssm != DTYPE_F32 && layer < p->n_gdn_layers; layer++) {
        float *s = (float *)(void *)p->recurrent +
                   (layer * p->n_slots + (size_t)span.slot) * p->recurrent_elems;
        for (size_t i = 0; i < p->recurrent_elems; i++) {
            s[i] = dtype_round(ssm, s[i]);
        }
    }
}

/* The float32 run with pools rounded by hand. out [n][vocab]. */
static void run_rounded(float *out, struct test_model *t, const struct reference *ref,
                        enum dtype kv, enum dtype ssm)
{
    struct state_store *store = model_states(t->m);
    struct seq_state *seq;
    struct error err;

    assert_int_equal(state_new(&seq, store, &err), OK);
    for (size_t done = 0; done < ref->n;) {
        size_t n = done == 0 ? size_min(PREFILL, ref->n) : 1;
        struct model_span span = {seq, ref->tokens + done, n, n};
        struct model_step_result result;

        assert_int_equal(state_reserve(store, seq, n, &err), OK);
        assert_int_equal(model_step(t->m, &span, 1, NULL, &result, &err), OK);
        memcpy(out + done * ref->vocab, result.logits, n * ref->vocab * sizeof *out);
        round_pools(t, seq, n, kv, ssm);
        done += n;
    }
    state_free(store, seq);
}

/* ---- the yardstick ---- */

struct yardstick {
    double rel, top1;
};

static struct yardstick yardstick_of(const char *fixture, enum dtype compute)
{
    struct yardstick y = {FLOAT32_YARDSTICK, 1};
    struct json_object *o, *entry;
    char path[512];
    struct error err;

    if (compute == DTYPE_F32) {
        return y;
    }
    fixture_path(path, fixture, "yardstick.json");
    assert_int_equal(json_parse_file(&o, path, 1 << 16, &err), OK);
    entry = json_get(o, compute == DTYPE_F16 ? "torch.float16" : "torch.bfloat16");
    assert_non_null(entry);
    assert_int_equal(json_get_double(&y.rel, entry, "rel", ERR_FORMAT, &err), OK);
    assert_int_equal(json_get_double(&y.top1, entry, "top1", ERR_FORMAT, &err), OK);
    json_object_put(o);
    return y;
}

/* ---- one fixture ---- */

static const char *kv_name(enum dtype t)
{
    return t == DTYPE_NONE ? "auto" : dtype_name(t);
}

static bool judge_cell(const char *fixture, enum dtype compute, enum dtype kv, enum dtype ssm,
                       const struct score *s, const struct score *effect)
{
    struct yardstick y = yardstick_of(fixture, compute);
    double limit = 2 * y.rel + 1.5 * effect->error;
    double top1_min = y.top1 - 0.03 - 1.5 * (1 - effect->top1);
    bool passed = s->error <= limit && s->top1 >= top1_min;

    print_message("%-36s %-9s %-9s %-9s %9.2e %9.2e %9.2e %6.3f %6.3f %4zu %9.2e %s\n", fixture,
                  dtype_name(compute), kv_name(kv), dtype_name(ssm), s->error, limit, effect->error,
                  s->top1, top1_min, s->n_clear, s->unclear_error, passed ? "" : "FAILED");
    return passed;
}

static size_t run_fixture(const char *fixture)
{
    struct score effects[N_KV][N_SSM];
    struct reference ref;
    struct safetensors *file;
    struct test_setup setup = {.compute = DTYPE_F32, .shared = &backends};
    struct test_model t;
    struct eval_result plain;
    char dir[512], path[512];
    size_t n_failed = 0;
    float *rounded;
    struct error err;

    fixture_path(dir, fixture, "");
    fixture_path(path, fixture, "reference.safetensors");
    assert_int_equal(safetensors_open(&file, path, &err), OK);
    ref.tokens = recorded_i32(file, &ref.n, "rand200.input_ids");
    assert_non_null(ref.tokens);
    test_model_open(&t, dir, &setup);
    run_logits(&plain, &t, &ref, PREFILL, 1);
    ref.vocab = plain.vocab;
    ref.margins = plain.margins;
    ref.logits = recorded_f32(file, ref.n * ref.vocab, "rand200.logits");
    assert_non_null(ref.logits);
    rounded = calloc(ref.n * ref.vocab, sizeof *rounded);
    assert_non_null(rounded);
    for (size_t kv = 0; kv < N_KV; kv++) {
        for (size_t ssm = 0; ssm < N_SSM; ssm++) {
            run_rounded(rounded, &t, &ref, kvs[kv], ssms[ssm]);
            effects[kv][ssm] = score_of(rounded, plain.logits, &ref);
        }
    }
    test_model_close(&t);

    for (size_t c = 0; c < N_COMPUTE; c++) {
        for (size_t kv = 0; kv < N_KV; kv++) {
            for (size_t ssm = 0; ssm < N_SSM; ssm++) {
                struct eval_result r;
                struct score s;

                setup = (struct test_setup){.compute = computes[c],
                                            .kv = kvs[kv],
                                            .recurrent = ssms[ssm],
                                            .device = device,
                                            .shared = &backends};
                test_model_open(&t, dir, &setup);
                run_logits(&r, &t, &ref, PREFILL, 1);
                s = score_of(r.logits, ref.logits, &ref);
                n_failed +=
                    !judge_cell(fixture, computes[c], kvs[kv], ssms[ssm], &s, &effects[kv][ssm]);
                eval_result_release(&r);
                test_model_close(&t);
            }
        }
    }
    eval_result_release(&plain);
    free(rounded);
    safetensors_close(file);
    return n_failed;
}

static void test_fixtures(void **state)
{
    size_t n_failed = 0;

    (void)state;
    print_message("%-36s %-9s %-9s %-9s %9s %9s %9s %6s %6s %4s %9s\n", "fixture", "compute", "KV",
                  "state", "error", "limit", "effect", "top-1", "min", "n", "unclear");
    for (size_t i = 0; i < N_FIXTURES; i++) {
        n_failed += run_fixture(fixture_names[i]);
    }
    assert_int_equal(n_failed, 0);
}

/* ---- Rill ---- */

static double rill_loss(enum dtype compute, enum dtype kv, enum dtype ssm, const int32_t *tokens,
                        size_t row_tokens)
{
    struct test_setup setup = {.compute = compute,
                               .kv = kv,
                               .recurrent = ssm,
                               .rows_max = PREFILL,
                               .context_max = 1088,
                               .device = device,
                               .shared = &backends};
    struct test_model t;
    struct error err = {0};
    double sum = 0;

    test_model_open(&t, RILL_DIR, &setup);
    for (size_t i = 0; i < LOSS_ROWS; i++) {
        double part;
        if (eval_loss(&part, t.m, tokens + i * row_tokens, row_tokens, &err) != OK) {
            fail_msg("%s", err.text);
        }
        sum += part;
    }
    test_model_close(&t);
    return sum / (double)(LOSS_ROWS * (row_tokens - 1));
}

/* The text in chunks of PREFILL tokens; the state is rounded at the end of each. */
static void test_rill(void **state)
{
    struct json_object *o, *list;
    size_t row_tokens = 0, n_failed = 0;
    int32_t *tokens;
    double plain;
    struct error err;

    (void)state;
    assert_int_equal(json_parse_file(&o, RILL_DIR "/golden.json", 64 << 20, &err), OK);
    list = json_get(o, "loss_text_tokens");
    assert_int_equal(json_get_size(&row_tokens, o, "loss_row_tokens", ERR_FORMAT, &err), OK);
    assert_true(json_object_array_length(list) >= LOSS_ROWS * row_tokens);
    tokens = calloc(LOSS_ROWS * row_tokens, sizeof *tokens);
    assert_non_null(tokens);
    for (size_t i = 0; i < LOSS_ROWS * row_tokens; i++) {
        tokens[i] = json_object_get_int(json_object_array_get_idx(list, i));
    }
    json_object_put(o);

    plain = rill_loss(DTYPE_F32, DTYPE_NONE, DTYPE_F32, tokens, row_tokens);
    print_message("rill, loss of %d x %zu tokens, float32: %.5f\n", LOSS_ROWS, row_tokens - 1,
                  plain);
    for (size_t c = 0; c < N_COMPUTE; c++) {
        for (size_t kv = 0; kv < N_KV; kv++) {
            for (size_t ssm = 0; ssm < N_SSM; ssm++) {
                double loss = rill_loss(computes[c], kvs[kv], ssms[ssm], tokens, row_tokens);
                bool passed = fabs(loss - plain) <= LOSS_LIMIT;

                print_message("%-9s %-9s %-9s %.6f %+.6f %s\n", dtype_name(computes[c]),
                              kv_name(kvs[kv]), dtype_name(ssms[ssm]), loss, loss - plain,
                              passed ? "" : "FAILED");
                n_failed += !passed;
            }
        }
    }
    free(tokens);
    assert_int_equal(n_failed, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_rill),
    };
    int rc;

    device = test_device_named(argc, argv);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    test_backends_close(&backends);
    return rc;
}
