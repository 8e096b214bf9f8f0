/* golden_fixtures_test.c - float32 against the recorded outputs of the reference implementation.
 *
 * Every fixture runs whole, with its prompt cut in two at several places, and token by token; each row
 * of the table is the worst relative error (norm of the difference over norm of the reference) of all
 * prompts. Greedy continuations must be identical; a difference counts as equal only where the
 * reference's two best logits lie within GREEDY_TIE, and is printed.
 *
 * A fault in two recordings: in the two GPTQ folders the continuations of `short` and `rand65` were
 * made while the reference model still held the position offset of an earlier run with a picture, so
 * every new token stands STALE_OFFSET positions too early. The recording is reproduced as it was made,
 * by moving the prompt's keys the other way before the continuation: then it must agree like all
 * others. (`rand200` was recorded by another program and needs no such care.) */
#include "backend/cpu/cpu_test_util.h"
#include "model/model_testing.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/spec.h"

static const double LIMIT = 1e-5; /* of the CPU; a card sums in other orders, in float32 too */
static const double LIMIT_CARD = 1e-4;
static const double GREEDY_TIE = 1e-3;

static const char *const prompts[] = {"one", "short", "mixed", "rand65", "rand200", "rand333"};
enum { STALE_OFFSET = 18, HEAD_DIM_MAX = 256 };
enum { N_PROMPTS = sizeof prompts / sizeof prompts[0] };

static enum test_device device; /* set by main() */

static const double NOT_RECORDED = -1; /* for none of a row's prompts */

struct table_row {
    double logits, hidden, conv, recurrent, keys, values, greedy;
    size_t greedy_same, greedy_of, ties;
};

struct variant {
    const char *name;
    size_t first, window; /* as eval_options */
};

static void worst(double *max, double x)
{
    if (!(x <= *max)) { /* NaN must win */
        *max = x;
    }
}

static void compare_hidden(struct table_row *row, struct safetensors *ref, const char *prompt,
                           const struct eval_result *r)
{
    size_t n = r->n_tokens * r->hidden_size;

    for (size_t layer = 0; layer <= r->n_layers; layer++) {
        const float *want = recorded_f32(ref, n, "%s.hidden.%zu", prompt, layer);
        if (want) {
            worst(&row->hidden, relative_error(r->hidden + layer * n, want, n));
        }
    }
}

/* The recorded convolution states hold one column more than an engine needs, the oldest. */
static double conv_error(const float *got, const float *want, const struct eval_result *r)
{
    double difference = 0, norm = 0;

    for (size_t c = 0; c < r->channels; c++) {
        for (size_t t = 0; t < r->columns; t++) {
            double w = want[c * (r->columns + 1) + t + 1], d = got[c * r->columns + t] - w;
            difference += d * d;
            norm += w * w;
        }
    }
    return sqrt(difference / norm);
}

static void compare_states(struct table_row *row, struct safetensors *ref, const char *prompt,
                           struct model *m, const struct eval_result *r)
{
    size_t n_state = r->nv * r->dk * r->dv, n_kv = r->nkv * r->n_tokens * r->hd;

    for (size_t i = 0; i < r->n_gdn; i++) {
        size_t layer = eval_gdn_layer(m, i);
        const float *conv =
            recorded_f32(ref, r->channels * (r->columns + 1), "%s.conv_states.%zu", prompt, layer);
        const float *state = recorded_f32(ref, n_state, "%s.recurrent_states.%zu", prompt, layer);
        if (conv) {
            worst(&row->conv, conv_error(r->conv + i * r->channels * r->columns, conv, r));
        }
        if (state) {
            worst(&row->recurrent, relative_error(r->recurrent + i * n_state, state, n_state));
        }
    }
    for (size_t i = 0; i < r->n_attn; i++) {
        size_t layer = eval_attn_layer(m, i);
        const float *k = recorded_f32(ref, n_kv, "%s.keys.%zu", prompt, layer);
        const float *v = recorded_f32(ref, n_kv, "%s.values.%zu", prompt, layer);
        if (k && v) {
            worst(&row->keys, relative_error(r->keys + i * n_kv, k, n_kv));
            worst(&row->values, relative_error(r->values + i * n_kv, v, n_kv));
        }
    }
}

static double top_two_gap(const float *logits, size_t n)
{
    size_t best = (size_t)eval_argmax(logits, n);
    double second = -INFINITY;

    for (size_t i = 0; i < n; i++) {
        if (i != best && logits[i] > second) {
            second = logits[i];
        }
    }
    return logits[best] - second;
}

/* The reference's logits that greedy token i was chosen from: the prompt's last row, then what was
 * recorded after feeding token i - 1. NULL when not recorded. */
static const float *greedy_source(struct safetensors *ref, const char *prompt, size_t n_greedy,
                                  const struct eval_result *r, size_t i)
{
    const float *prompt_logits = recorded_f32(ref, r->n_tokens * r->vocab, "%s.logits", prompt);
    const float *logits = recorded_f32(ref, n_greedy * r->vocab, "%s.greedy_logits", prompt);

    if (i == 0) {
        return prompt_logits + (r->n_tokens - 1) * r->vocab;
    }
    return logits ? logits + (i - 1) * r->vocab : NULL;
}

static void compare_greedy(struct table_row *row, struct safetensors *ref, const char *prompt,
                           const struct eval_result *r)
{
    size_t n;
    const int32_t *want = recorded_i32(ref, &n, "%s.greedy", prompt);

    row->greedy_of += n;
    for (size_t i = 0; i < n; i++) {
        const float *source = greedy_source(ref, prompt, n, r, i);
        const float *ours = r->greedy_logits + i * r->vocab;

        if (source) {
            worst(&row->greedy, relative_error(ours, source, r->vocab));
        }
        if (r->greedy[i] == want[i]) {
            row->greedy_same++;
            continue;
        }
        print_message("  %s token %zu is %d, the reference has %d; its two best lie %.1e apart\n",
                      prompt, i, r->greedy[i], want[i],
                      source ? top_two_gap(source, r->vocab) : NAN);
        if (source && top_two_gap(source, r->vocab) < GREEDY_TIE) {
            row->greedy_same += n - i; /* from here on the texts are different ones */
            row->ties++;
        }
        return;
    }
}

/* Turns the prompt's cached keys so that they seem to stand STALE_OFFSET positions later. */
static void make_offset_stale(void *ctx, struct model *m, struct seq_state *seq)
{
    struct backend *be = ctx;
    const struct model_config *c = model_get_config(m);
    const struct state_pools *p = state_store_pools(model_states(m));
    struct rope_spec rope = {.config = c->rope};
    float inv_freq[64], scale, k[HEAD_DIM_MAX], *keys = (float *)(void *)p->k;
    struct span span;
    size_t half;

    assert_in_range(c->head_dim, 1, HEAD_DIM_MAX);
    rope.dims = (size_t)((double)c->head_dim * c->rope.partial_factor);
    half = rope.dims / 2;
    assert_in_range(half, 1, 64);
    assert_int_equal(p->kv_dtype, DTYPE_F32);
    rope_frequencies(inv_freq, &scale, &rope);
    state_span(seq, &span);
    for (size_t layer = 0; layer < p->n_attn_layers; layer++) {
        for (size_t row = 0; row < c->n_kv_heads * span.position; row++) {
            size_t t = row % span.position, head = row / span.position;
            size_t page = layer * p->n_pages + (size_t)span.pages[t / KV_PAGE_TOKENS];
            float *place = keys + page * p->kv_elems +
                           (head * KV_PAGE_TOKENS + t % KV_PAGE_TOKENS) * c->head_dim;

            be->ops->read(be, k, place, c->head_dim * sizeof *k);
            for (size_t i = 0; i < half; i++) {
                double angle = STALE_OFFSET * (double)inv_freq[i], x = k[i], y = k[i + half];
                k[i] = (float)(x * cos(angle) - y * sin(angle));
                k[i + half] = (float)(y * cos(angle) + x * sin(angle));
            }
            be->ops->write(be, place, k, c->head_dim * sizeof *k);
        }
    }
}

static bool offset_was_stale(const char *fixture, const char *prompt)
{
    return strstr(fixture, "gptq") && strcmp(prompt, "rand200") != 0;
}

static void run_prompt(struct table_row *row, const char *fixture, struct test_model *t,
                       struct safetensors *ref, const char *prompt, const int32_t *tokens, size_t n,
                       const struct variant *v)
{
    struct eval_result r;
    size_t n_greedy;
    struct eval_options o = {.first = v->first,
                             .window = v->window,
                             .want_logits = true,
                             .want_hidden = true,
                             .want_states = true};
    struct error err = {0};
    const float *logits;

    recorded_i32(ref, &n_greedy, "%s.greedy", prompt);
    o.n_greedy = n_greedy;
    if (offset_was_stale(fixture, prompt)) {
        o.between = make_offset_stale;
        o.between_ctx = t->be;
    }
    if (eval_run(&r, t->m, tokens, n, &o, &err) != OK) {
        fail_msg("%s: %s", prompt, err.text);
    }
    assert_int_equal(r.bad_layer, -1);
    logits = recorded_f32(ref, n * r.vocab, "%s.logits", prompt);
    assert_non_null(logits);
    worst(&row->logits, relative_error(r.logits, logits, n * r.vocab));
    compare_hidden(row, ref, prompt, &r);
    compare_states(row, ref, prompt, t->m, &r);
    compare_greedy(row, ref, prompt, &r);
    eval_result_release(&r);
}

enum { N_COLUMNS = 7 };

static void judge(const struct table_row *row, const char *fixture, const char *variant)
{
    const double columns[N_COLUMNS] = {row->logits, row->hidden, row->conv,  row->recurrent,
                                       row->keys,   row->values, row->greedy};

    print_message("%-36s %-14s", fixture, variant);
    for (size_t i = 0; i < N_COLUMNS; i++) {
        if (columns[i] == NOT_RECORDED) {
            print_message(" %8s", "-");
        } else {
            print_message(" %8.1e", columns[i]);
        }
    }
    print_message("  %zu of %zu%s\n", row->greedy_same, row->greedy_of, row->ties ? " (ties)" : "");
    for (size_t i = 0; i < N_COLUMNS; i++) {
        assert_true(columns[i] <= (device == TEST_CPU ? LIMIT : LIMIT_CARD));
    }
    assert_true(row->logits != NOT_RECORDED);
    assert_int_equal(row->greedy_same, row->greedy_of);
    assert_true(row->greedy_of > 0);
}

/* All recorded prompts longer than v->first tokens. */
static void run_variant(const char *fixture, struct test_model *t, struct safetensors *ref,
                        const struct variant *v)
{
    struct table_row row = {NOT_RECORDED,
                            NOT_RECORDED,
                            NOT_RECORDED,
                            NOT_RECORDED,
                            NOT_RECORDED,
                            NOT_RECORDED,
                            NOT_RECORDED,
                            0,
                            0,
                            0};

    for (size_t i = 0; i < N_PROMPTS; i++) {
        size_t n;
        const int32_t *tokens = recorded_i32(ref, &n, "%s.input_ids", prompts[i]);

        if (tokens && v->first < n) {
            run_prompt(&row, fixture, t, ref, prompts[i], tokens, n, v);
        }
    }
    judge(&row, fixture, v->name);
}

static void run_fixture(const char *fixture, enum cpu_isa isa, const struct variant *variants,
                        size_t n_variants)
{
    struct test_setup setup = {.compute = DTYPE_F32, .isa = isa, .device = device};
    struct test_model t;
    struct safetensors *ref;
    char dir[512], path[512];
    struct error err;

    fixture_path(dir, fixture, "");
    fixture_path(path, fixture, "reference.safetensors");
    test_model_open(&t, dir, &setup);
    assert_int_equal(safetensors_open(&ref, path, &err), OK);
    for (size_t i = 0; i < n_variants; i++) {
        run_variant(fixture, &t, ref, &variants[i]);
    }
    safetensors_close(ref);
    test_model_close(&t);
}

static void header(const char *title)
{
    print_message("\n%s\n%-36s %-14s %8s %8s %8s %8s %8s %8s %8s  %s\n", title, "fixture",
                  "prompt run", "logits", "hidden", "conv", "recur.", "keys", "values", "greedy",
                  "greedy tokens equal");
}

static void test_fixtures(void **state)
{
    static const struct variant variants[] = {
        {"whole", 0, 0},      {"cut at 1", 1, 0},   {"cut at 2", 2, 0},     {"cut at 63", 63, 0},
        {"cut at 64", 64, 0}, {"cut at 65", 65, 0}, {"cut at 127", 127, 0}, {"one by one", 0, 1},
    };

    (void)state;
    header(device == TEST_CPU    ? "float32, best kernels of this machine"
           : device == TEST_CUDA ? "float32, card"
                                 : "float32, card, without graphs");
    for (size_t i = 0; i < N_FIXTURES; i++) {
        run_fixture(fixture_names[i], CPU_ISA_AUTO, variants, sizeof variants / sizeof variants[0]);
    }
}

static void test_fixtures_every_isa(void **state)
{
    static const struct variant variants[] = {
        {"whole", 0, 0}, {"cut at 64", 64, 0}, {"one by one", 0, 1}};
    enum cpu_isa isas[TEST_ISAS];
    size_t n_isas = test_isas(isas);

    (void)state;
    for (size_t a = 0; a < n_isas; a++) {
        char title[64];

        snprintf(title, sizeof title, "float32, %s kernels", test_isa_name(isas[a]));
        header(title);
        for (size_t i = 0; i < N_FIXTURES; i++) {
            run_fixture(fixture_names[i], isas[a], variants, sizeof variants / sizeof variants[0]);
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_fixtures_every_isa),
    };
    const struct CMUnitTest card_tests[] = {
        cmocka_unit_test(test_fixtures),
    };

    device = test_device_named(argc, argv);
    return device == TEST_CPU ? cmocka_run_group_tests(tests, NULL, NULL)
                              : cmocka_run_group_tests(card_tests, NULL, NULL);
}
