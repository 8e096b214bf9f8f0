/* sampler_test.c - the sampler against a naive double-precision one, and its edge values.
 *
 * Place: runtime, cmocka. The reference sorts and sums in the plainest way; it is compared on the set of
 *        tokens kept, on their probabilities, and on the token chosen for a given uniform number. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/sampler.h"

enum { VOCAB_MAX = 5000 };

struct rng {
    uint64_t state;
};

static uint64_t next(struct rng *r)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return r->state >> 33;
}

static float real(struct rng *r, float low, float high)
{
    return low + (high - low) * (float)next(r) * 0x1p-31f;
}

/* ---- the reference ---- */

struct item {
    int32_t id;
    double logit, weight;
};

static int by_logit(const void *a, const void *b)
{
    const struct item *x = a, *y = b;

    if (x->logit != y->logit) {
        return x->logit < y->logit ? 1 : -1;
    }
    return x->id < y->id ? -1 : 1;
}

static int by_id(const void *a, const void *b)
{
    return ((const struct item *)a)->id - ((const struct item *)b)->id;
}

struct reference {
    struct item items[VOCAB_MAX]; /* the kept ones, by id; weights sum to 1 */
    size_t n;
    double edge; /* how far the top_p cut is from a neighbouring cut */
};

static void reference_adjust(struct reference *r, const struct sampler_input *in, size_t n)
{
    const struct sampling *p = in->sampling;

    for (size_t i = 0; i < n; i++) {
        double x = (double)in->logits[i];
        uint32_t seen = in->history ? in->history->seen[i] : 0;
        double count = (double)(seen & 0x7fffffffu);

        if (seen) {
            x = x > 0 ? x / (double)p->repetition_penalty : x * (double)p->repetition_penalty;
        }
        if (count > 0) {
            x -= (double)p->presence_penalty + (double)p->frequency_penalty * count;
        }
        for (size_t b = 0; b < p->n_bias; b++) {
            if (p->bias[b].id == (int32_t)i) {
                x += (double)p->bias[b].bias;
            }
        }
        for (size_t b = 0; b < in->n_banned; b++) {
            if (in->banned[b] == (int32_t)i) {
                x = -INFINITY;
            }
        }
        r->items[i] = (struct item){(int32_t)i, x, 0};
    }
    r->n = n;
}

static void normalise(struct reference *r)
{
    double sum = 0;

    for (size_t i = 0; i < r->n; i++) {
        sum += r->items[i].weight;
    }
    for (size_t i = 0; i < r->n; i++) {
        r->items[i].weight /= sum;
    }
}

static void reference_run(struct reference *r, const struct sampler_input *in, size_t n)
{
    const struct sampling *p = in->sampling;
    double max, sum = 0, target = (double)p->top_p;

    reference_adjust(r, in, n);
    qsort(r->items, r->n, sizeof r->items[0], by_logit);
    if (p->top_k > 0 && (size_t)p->top_k < r->n) {
        r->n = (size_t)p->top_k;
    }
    max = r->items[0].logit;
    for (size_t i = 0; i < r->n; i++) {
        r->items[i].weight = exp((r->items[i].logit - max) / (double)p->temperature);
    }
    normalise(r);
    r->edge = 1;
    if (p->top_p < 1.0f) {
        size_t keep = 0;
        while (keep < r->n && sum < target) {
            sum += r->items[keep++].weight;
        }
        r->edge = fmin(fabs(sum - target), fabs(sum - r->items[keep - 1].weight - target));
        r->n = keep;
    }
    if (p->min_p > 0.0f) {
        double least = (double)p->min_p * r->items[0].weight;
        size_t keep = 0;
        while (keep < r->n && r->items[keep].weight >= least) {
            keep++;
        }
        if (keep < r->n) {
            r->edge = fmin(r->edge, fabs(r->items[keep].weight - least));
        }
        r->edge = fmin(r->edge, fabs(r->items[keep - 1].weight - least));
        r->n = keep;
    }
    normalise(r);
    qsort(r->items, r->n, sizeof r->items[0], by_id);
}

/* The reference's choice for u, or -1 when u is too near a border to tell. */
static int32_t reference_choose(const struct reference *r, double u)
{
    double sum = 0;

    for (size_t i = 0; i < r->n; i++) {
        sum += r->items[i].weight;
        if (fabs(sum - u) < 1e-5) {
            return -1;
        }
        if (sum > u) {
            return r->items[i].id;
        }
    }
    return -1;
}

/* ---- comparing ---- */

static void compare(struct sampler *s, const struct sampler_input *in, size_t n, struct rng *rng,
                    size_t *n_compared)
{
    static struct reference ref;
    struct sample sample;
    struct error err;
    const int32_t *ids;
    const float *weights;
    double total = 0;

    reference_run(&ref, in, n);
    if (ref.edge < 1e-6) {
        return; /* float32 and double may cut differently here */
    }
    double u = (double)next(rng) * 0x1p-31;
    assert_int_equal(sampler_choose(s, in, u, &sample, &err), OK);
    size_t kept = sampler_kept(s, &ids, &weights);
    /* Weights that vanish in float32 may be kept or not: they can never be chosen. */
    size_t at = 0;
    for (size_t i = 0; i < kept; i++) {
        total += (double)weights[i];
    }
    for (size_t i = 0; i < ref.n; i++) {
        while (at < kept && ids[at] < ref.items[i].id) {
            assert_true((double)weights[at] / total < 1e-30);
            at++;
        }
        if (at < kept && ids[at] == ref.items[i].id) {
            double p = (double)weights[at] / total;
            assert_true(fabs(p - ref.items[i].weight) <= 1e-4 * ref.items[i].weight + 1e-12);
            at++;
        } else {
            assert_true(ref.items[i].weight < 1e-30);
        }
    }
    assert_true(at == kept);
    int32_t expected = reference_choose(&ref, u);
    if (expected >= 0) {
        assert_int_equal(sample.id, expected);
    }
    ++*n_compared;
}

static void fill_row(float *x, size_t n, struct rng *rng)
{
    float width = (float)(1 + next(rng) % 20);
    bool has_ties = next(rng) % 3 == 0;
    bool has_holes = next(rng) % 4 == 0;

    for (size_t i = 0; i < n; i++) {
        x[i] = real(rng, -width, width);
        if (has_ties) {
            x[i] = roundf(x[i]);
        }
        if (has_holes && i > 0 && next(rng) % 3 == 0) {
            x[i] = -INFINITY;
        }
    }
}

static void test_against_reference(void **state)
{
    static const size_t sizes[] = {1, 2, 3, 17, 100, 1000, 4097};
    static float logits[VOCAB_MAX];
    struct rng rng = {12345};
    size_t n_compared = 0;
    (void)state;

    for (size_t round = 0; round < 1500; round++) {
        size_t n = sizes[next(&rng) % (round % 50 == 0 ? 7 : 5)];
        struct sampling p = sampling_default();
        struct logit_bias bias[3];
        int32_t banned[2];
        struct sampler_input in = {.logits = logits, .sampling = &p};
        struct token_history history;
        struct sampler *s;

        assert_int_equal(sampler_new(&s, n, NULL), OK);
        assert_true(token_history_init(&history, n));
        fill_row(logits, n, &rng);
        p.temperature = real(&rng, 0.05f, 3.0f);
        if (next(&rng) % 2) {
            p.top_k = 1 + (int32_t)(next(&rng) % (n + 3));
        }
        if (next(&rng) % 2) {
            p.top_p = real(&rng, 0.01f, 0.999f);
        }
        if (next(&rng) % 3 == 0) {
            p.min_p = real(&rng, 0.001f, 0.9f);
        }
        if (next(&rng) % 2) {
            int32_t seen[] = {0, (int32_t)(next(&rng) % n), (int32_t)(next(&rng) % n)};
            p.repetition_penalty = real(&rng, 0.5f, 2.0f);
            p.presence_penalty = real(&rng, -2.0f, 2.0f);
            p.frequency_penalty = real(&rng, -2.0f, 2.0f);
            token_history_add_prompt(&history, seen, 3);
            for (size_t i = 0; i < 5; i++) {
                token_history_add_output(&history, (int32_t)(next(&rng) % n));
            }
            in.history = &history;
        }
        if (next(&rng) % 2) {
            for (size_t i = 0; i < 3; i++) {
                bias[i] = (struct logit_bias){(int32_t)(next(&rng) % n), real(&rng, -5.0f, 5.0f)};
            }
            p.bias = bias;
            p.n_bias = 3;
        }
        if (n > 3 && next(&rng) % 2) {
            banned[0] = 1;
            banned[1] = (int32_t)(2 + next(&rng) % (n - 2));
            in.banned = banned;
            in.n_banned = 2;
        }
        compare(s, &in, n, &rng, &n_compared);
        token_history_release(&history);
        sampler_free(s);
    }
    assert_true(n_compared > 1300); /* few are skipped for lying on an edge */
}

/* ---- edge values ---- */

static int32_t choose(const float *logits, size_t n, const struct sampling *p, double u)
{
    struct sampler *s;
    struct sampler_input in = {.logits = logits, .sampling = p};
    struct sample out = {.id = -1};
    struct error err;

    assert_int_equal(sampler_new(&s, n, NULL), OK);
    enum status rc = sampler_choose(s, &in, u, &out, &err);
    sampler_free(s);
    return rc == OK ? out.id : -(int32_t)rc;
}

static void test_extreme_rows_and_temperatures(void **state)
{
    const float inf = INFINITY;
    const struct {
        float x[4];
        int32_t greedy; /* and with any tiny temperature, for u = 0 */
    } rows[] = {
        {{-1e4f, 1e4f, 0, 5}, 1},
        {{1e4f, -1e4f, -inf, -inf}, 0},
        {{3.4e38f, -3.4e38f, 0, 1}, 0},
        {{-inf, -inf, -3.4e38f, -inf}, 2},
        {{0, inf, 1e4f, 2}, 1},
        {{1, inf, -inf, inf}, 1},
        {{2, 2, 2, 2}, 0},
        {{-0.0f, 0.0f, -1, -1}, 0},
        {{0, 1e-40f, 0, 0}, 1},
    };
    const float temperatures[] = {0.0f, 1e-45f, 1e-30f, 1e-6f, 1e-4f, 1e-3f, 1.0f, 1e6f};
    const double us[] = {0.0, 0.5, 0.9999999999999999};
    (void)state;

    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        for (size_t t = 0; t < sizeof temperatures / sizeof temperatures[0]; t++) {
            for (int filters = 0; filters < 8; filters++) {
                struct sampling p = sampling_default();
                p.temperature = temperatures[t];
                p.top_k = filters & 1 ? 2 : -1;
                p.top_p = filters & 2 ? 0.5f : 1.0f;
                p.min_p = filters & 4 ? 0.5f : 0.0f;
                for (size_t i = 0; i < 3; i++) {
                    int32_t id = choose(rows[r].x, 4, &p, us[i]);

                    assert_in_range(id, 0, 3);
                    assert_true(rows[r].x[id] > -inf);
                    if (rows[r].x[rows[r].greedy] == inf) {
                        assert_true(rows[r].x[id] == inf);
                    }
                    if (temperatures[t] < 1e-6f) {
                        assert_int_equal(id, rows[r].greedy);
                    }
                }
            }
        }
    }
}

static void test_small_temperature_is_greedy_without_ties(void **state)
{
    const float x[] = {1.0f, 1.5f, -2.0f, 1.25f};
    struct sampling p = sampling_default();
    (void)state;

    for (float t = 1e-3f; t > 1e-7f; t *= 0.5f) {
        p.temperature = t;
        assert_int_equal(choose(x, 4, &p, 0.0), 1);
        assert_int_equal(choose(x, 4, &p, 0.999999), 1);
    }
}

static void test_bad_rows_are_errors(void **state)
{
    const float nan_row[] = {0, NAN, 1}, empty_row[] = {-INFINITY, -INFINITY, -INFINITY};
    const int32_t all[] = {0, 1, 2};
    const float x[] = {1, 2, 3};
    struct sampling p = sampling_default();
    struct sampler_input in = {.logits = x, .sampling = &p, .banned = all, .n_banned = 3};
    struct sampler *s;
    struct sample out;
    struct error err;
    (void)state;

    assert_int_equal(choose(nan_row, 3, &p, 0.5), -ERR_INTERNAL);
    assert_int_equal(choose(empty_row, 3, &p, 0.5), -ERR_INTERNAL);
    p.temperature = 0;
    assert_int_equal(choose(nan_row, 3, &p, 0.5), -ERR_INTERNAL);
    assert_int_equal(choose(empty_row, 3, &p, 0.5), -ERR_INTERNAL);
    assert_int_equal(sampler_new(&s, 3, NULL), OK);
    assert_int_equal(sampler_choose(s, &in, 0.5, &out, &err), ERR_INTERNAL);
    in.n_banned = 2;
    assert_int_equal(sampler_choose(s, &in, 0.5, &out, &err), OK);
    assert_int_equal(out.id, 2);
    sampler_free(s);
}

static void test_padding_rows_are_never_chosen(void **state)
{
    const float x[] = {1, 2, 3, 1e30f, NAN, INFINITY}; /* the vocabulary is 3 */
    struct sampling p = sampling_default();
    (void)state;

    for (double u = 0; u < 1; u += 0.01) {
        assert_in_range(choose(x, 3, &p, u), 0, 2);
    }
    p.temperature = 0;
    assert_int_equal(choose(x, 3, &p, 0), 2);
}

static void test_any_row_gives_an_index_or_an_error(void **state)
{
    static const float specials[] = {INFINITY, -INFINITY, 0.0f, -0.0f, 3.4e38f, -3.4e38f, 1e-45f};
    struct rng rng = {99};
    float x[33];
    (void)state;

    for (size_t round = 0; round < 100000; round++) {
        size_t n = 1 + next(&rng) % 33;
        struct sampling p = sampling_default();
        bool has_nan = false, has_finite = false;

        p.temperature = next(&rng) % 2 ? 0.7f : 1e-6f;
        p.top_k = next(&rng) % 2 ? 3 : -1;
        p.top_p = next(&rng) % 2 ? 0.9f : 1.0f;
        for (size_t i = 0; i < n; i++) {
            uint64_t kind = next(&rng) % 40;
            x[i] = kind < 7 ? specials[kind] : kind == 8 ? NAN : real(&rng, -30, 30);
            has_nan |= x[i] != x[i];
            has_finite |= x[i] > -INFINITY;
        }
        int32_t id = choose(x, n, &p, (double)next(&rng) * 0x1p-31);
        if (has_nan || !has_finite) {
            assert_int_equal(id, -ERR_INTERNAL);
        } else {
            assert_in_range(id, 0, n - 1);
        }
    }
}

/* ---- log probabilities ---- */

static void test_logprobs(void **state)
{
    const float x[] = {1, 3, 3, -INFINITY, 2, -1e5f, 77}; /* the last is padding */
    struct sampling p = sampling_default();
    struct logit_bias bias = {4, 100};
    struct sampler_input in = {.logits = x, .sampling = &p};
    struct sampler *s;
    struct sample out;
    double sum = exp(1 - 3.0) + 2 + exp(2 - 3.0);
    (void)state;

    assert_int_equal(sampler_new(&s, 6, NULL), OK);
    p.temperature = 0;
    p.bias = &bias; /* moves the choice, not the reported probability */
    p.n_bias = 1;
    p.want_logprobs = true;
    p.n_top_logprobs = 5;
    assert_int_equal(sampler_choose(s, &in, 0, &out, NULL), OK);
    assert_int_equal(out.id, 4);
    assert_float_equal(out.logprob, (float)(2 - 3.0 - log(sum)), 1e-6f);
    assert_int_equal(out.n_top, 5);
    const int32_t order[] = {1, 2, 4, 0, 5};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(out.top[i].id, order[i]);
        double expected = (double)x[order[i]] - 3.0 - log(sum);
        assert_float_equal(out.top[i].logprob, (float)fmax(expected, (double)LOGPROB_MIN), 1e-5f);
    }
    p.n_top_logprobs = TOP_LOGPROBS_MAX; /* more than there are */
    assert_int_equal(sampler_choose(s, &in, 0, &out, NULL), OK);
    assert_int_equal(out.n_top, 6);
    assert_int_equal(out.top[5].id, 3);
    assert_float_equal(out.top[5].logprob, LOGPROB_MIN, 0);
    sampler_free(s);
}

static void test_logprobs_of_infinite_logits(void **state)
{
    const float x[] = {1, INFINITY, 2, INFINITY};
    struct sampling p = sampling_default();
    struct sampler_input in = {.logits = x, .sampling = &p};
    struct sampler *s;
    struct sample out;
    (void)state;

    assert_int_equal(sampler_new(&s, 4, NULL), OK);
    p.want_logprobs = true;
    p.n_top_logprobs = 3;
    assert_int_equal(sampler_choose(s, &in, 0.9, &out, NULL), OK);
    assert_int_equal(out.id, 3);
    assert_float_equal(out.logprob, logf(0.5f), 1e-6f);
    assert_int_equal(out.top[0].id, 1);
    assert_float_equal(out.top[2].logprob, LOGPROB_MIN, 0);
    sampler_free(s);
}

/* ---- random numbers ---- */

static void test_uniform_is_a_function_of_seed_and_index(void **state)
{
    double sum = 0;
    size_t low = 0;
    (void)state;

    /* These values are a promise: a seed gives the same text in every release. */
    assert_true(sampler_uniform(0, 0) == 0x1.4e0dba5e9a32fp-1);
    assert_true(sampler_uniform(42, 7) == 0x1.782d47a99890cp-1);
    assert_true(sampler_uniform(UINT64_MAX, UINT64_MAX) == 0x1.1140638c16042p-2);
    assert_true(sampler_uniform(1, 0) != sampler_uniform(0, 1));
    for (uint64_t i = 0; i < 20000; i++) {
        double u = i % 2 ? sampler_uniform(5, i) : sampler_uniform(i, 5);
        assert_true(u >= 0.0 && u < 1.0);
        sum += u;
        low += u < 0.1;
    }
    assert_true(fabs(sum / 20000 - 0.5) < 0.01);
    assert_true(low > 1850 && low < 2150);
}

/* ---- parameters ---- */

static void test_ranges(void **state)
{
    const float bad_unit[] = {-0.1f, 1.1f, NAN, INFINITY, -INFINITY};
    struct error err;
    (void)state;

    struct sampling ok = sampling_default();
    assert_int_equal(sampling_check(&ok, 10, &err), OK);
    for (size_t i = 0; i < 5; i++) {
        struct sampling p = ok;
        p.top_p = bad_unit[i];
        assert_int_equal(sampling_check(&p, 10, &err), ERR_BAD_REQUEST);
        assert_string_equal(err.param, "top_p");
        p = ok;
        p.min_p = bad_unit[i];
        assert_int_equal(sampling_check(&p, 10, &err), ERR_BAD_REQUEST);
        assert_string_equal(err.param, "min_p");
        p = ok;
        p.presence_penalty = 2.5f * bad_unit[i] + (bad_unit[i] < 0 ? -2 : 0);
        assert_int_equal(sampling_check(&p, 10, &err), ERR_BAD_REQUEST);
        assert_string_equal(err.param, "presence_penalty");
    }
    struct sampling p = ok;
    p.top_p = 0;
    assert_int_equal(sampling_check(&p, 10, &err), ERR_BAD_REQUEST);
    p = ok;
    p.repetition_penalty = 0;
    assert_int_equal(sampling_check(&p, 10, &err), ERR_BAD_REQUEST);
    assert_string_equal(err.param, "repetition_penalty");
    p.repetition_penalty = 2.0f;
    assert_int_equal(sampling_check(&p, 10, &err), OK);
    p = ok;
    p.temperature = -1e-9f;
    assert_int_equal(sampling_check(&p, 10, &err), ERR_BAD_REQUEST);
    p = ok;
    p.top_k = 0;
    assert_int_equal(sampling_check(&p, 10, &err), ERR_BAD_REQUEST);
    assert_string_equal(err.param, "top_k");
    p = ok;
    p.n_top_logprobs = TOP_LOGPROBS_MAX;
    assert_int_equal(sampling_check(&p, 10, &err), OK);
    p.n_top_logprobs = TOP_LOGPROBS_MAX + 1;
    assert_int_equal(sampling_check(&p, 10, &err), ERR_BAD_REQUEST);
    assert_string_equal(err.param, "top_logprobs");
}

static void test_bias_ranges(void **state)
{
    const struct logit_bias bad[] = {{10, 1}, {-1, 1}, {3, 100.5f}, {3, -101}, {3, NAN}};
    const struct logit_bias good[] = {{9, 100}, {0, -100}};
    struct sampling p = sampling_default();
    struct error err;
    (void)state;

    p.bias = good;
    p.n_bias = 2;
    assert_int_equal(sampling_check(&p, 10, &err), OK);
    p.n_bias = 1;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        p.bias = &bad[i];
        assert_int_equal(sampling_check(&p, 10, &err), ERR_BAD_REQUEST);
        assert_string_equal(err.param, "logit_bias");
    }
    static const struct logit_bias most[LOGIT_BIAS_MAX]; /* all of token 0 */
    p.bias = most;
    p.n_bias = LOGIT_BIAS_MAX;
    assert_int_equal(sampling_check(&p, 10, &err), OK);
    p.n_bias = LOGIT_BIAS_MAX + 1; /* refused before any entry is read */
    assert_int_equal(sampling_check(&p, 10, &err), ERR_BAD_REQUEST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_reference),
        cmocka_unit_test(test_extreme_rows_and_temperatures),
        cmocka_unit_test(test_small_temperature_is_greedy_without_ties),
        cmocka_unit_test(test_bad_rows_are_errors),
        cmocka_unit_test(test_padding_rows_are_never_chosen),
        cmocka_unit_test(test_any_row_gives_an_index_or_an_error),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_logprobs_of_infinite_logits),
        cmocka_unit_test(test_uniform_is_a_function_of_seed_and_index),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_bias_ranges),
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
