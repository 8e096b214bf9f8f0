/* sampler_top_test.c - the choice from a row's largest logits against the choice from the whole row.
 *
 * Place: runtime, cmocka. Where the former decides, both must agree to the last bit: the tokens kept, their
 *        weights, and the token chosen. Where it must decide, it does. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "runtime/sampler.h"

enum { VOCAB_MAX = 4000, PADDING_MAX = 80 };

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

/* What a device says of a row: the largest, one after the other. */
static void top_of(struct best_row *top, const float *x, size_t n)
{
    static bool is_taken[VOCAB_MAX + PADDING_MAX];
    bool is_finite = true;

    memset(is_taken, 0, sizeof is_taken);
    for (size_t i = 0; i < n; i++) {
        is_finite = is_finite && isfinite(x[i]);
    }
    for (size_t k = 0; k < BEST_TOP; k++) {
        int32_t best = -1;

        for (size_t i = 0; i < n && is_finite; i++) {
            best = !is_taken[i] && (best < 0 || x[i] > x[best]) ? (int32_t)i : best;
        }
        top->ids[k] = best;
        top->values[k] = best < 0 ? -INFINITY : x[best] + 0.0f;
        if (best >= 0) {
            is_taken[best] = true;
        }
    }
}

/* One request and one row. */
struct one {
    struct sampling sampling;
    struct logit_bias bias[4];
    int32_t banned[3];
    struct token_history history;
    struct sampler_input in;
    struct best_row top;
    float row[VOCAB_MAX + PADDING_MAX];
    size_t n_vocab, n_row;
};

static void fill_row(struct one *o, struct rng *rng)
{
    float width = (float)(1 + next(rng) % 20);
    bool has_ties = next(rng) % 3 == 0;

    for (size_t i = 0; i < o->n_row; i++) {
        o->row[i] = real(rng, -width, width);
        if (has_ties) {
            o->row[i] = roundf(o->row[i]);
        }
    }
    top_of(&o->top, o->row, o->n_row);
}

/* Only what lowers logits. */
static void fill_adjustments(struct one *o, struct rng *rng)
{
    struct sampling *p = &o->sampling;

    for (size_t i = 0; i < 200; i++) {
        token_history_add_output(&o->history, (int32_t)(next(rng) % o->n_vocab));
    }
    for (size_t i = 0; i < 10; i++) { /* what was likely before is so now */
        int32_t id = o->top.ids[next(rng) % 20];

        token_history_add_output(&o->history, id);
        token_history_add_prompt(&o->history, &id, 1);
    }
    o->in.history = &o->history;
    p->repetition_penalty = next(rng) % 2 ? 1.0f : real(rng, 1.0f, 2.0f);
    p->presence_penalty = next(rng) % 2 ? 0.0f : real(rng, 0.0f, 2.0f);
    p->frequency_penalty = next(rng) % 2 ? 0.0f : real(rng, 0.0f, 1.0f);
    if (next(rng) % 2) {
        for (size_t i = 0; i < 4; i++) {
            int32_t id = i % 2 ? o->top.ids[next(rng) % 5] : (int32_t)(next(rng) % o->n_vocab);

            o->bias[i] =
                (struct logit_bias){id >= 0 && (size_t)id < o->n_vocab ? id : 0, -real(rng, 0, 9)};
        }
        p->bias = o->bias;
        p->n_bias = 4;
    }
    if (next(rng) % 2) {
        o->banned[0] = o->top.ids[0];
        o->banned[1] = (int32_t)(next(rng) % o->n_vocab);
        o->banned[2] = (int32_t)o->n_vocab + 1;
        o->in.banned = o->banned;
        o->in.n_banned = 3;
    }
}

static void one_make(struct one *o, struct rng *rng)
{
    static const size_t sizes[] = {1, 2, 3, 60, 63, 64, 65, 66, 100, 300, 1000, VOCAB_MAX};
    static const size_t paddings[] = {0, 0, 1, 7, PADDING_MAX};

    memset(o, 0, sizeof *o);
    o->n_vocab = sizes[next(rng) % 12];
    o->n_row = o->n_vocab + paddings[next(rng) % 5];
    o->sampling = sampling_default();
    o->sampling.temperature = next(rng) % 4 ? real(rng, 0.05f, 3.0f) : 0.0f;
    if (next(rng) % 4) {
        o->sampling.top_k = 1 + (int32_t)(next(rng) % (BEST_TOP + 3));
    }
    if (next(rng) % 2) {
        o->sampling.top_p = real(rng, 0.01f, 0.999f);
    }
    if (next(rng) % 3 == 0) {
        o->sampling.min_p = real(rng, 0.001f, 0.9f);
    }
    fill_row(o, rng);
    o->in = (struct sampler_input){.sampling = &o->sampling};
    assert_true(token_history_init(&o->history, o->n_vocab));
    if (next(rng) % 2) {
        fill_adjustments(o, rng);
    }
}

/* Whether the list is certain to decide: nothing is lowered, and it has enough tokens. */
static bool must_decide(const struct one *o)
{
    const struct sampling *p = &o->sampling;
    size_t n_tokens = 0;

    for (size_t i = 0; i < BEST_TOP; i++) {
        n_tokens += o->top.ids[i] >= 0 && (size_t)o->top.ids[i] < o->n_vocab;
    }
    if (o->in.history || n_tokens == 0) {
        return false;
    }
    return p->temperature == 0 || (p->top_k > 0 && (size_t)p->top_k <= n_tokens);
}

static bool compare(const struct one *o, struct sampler *few, struct sampler *all, double u)
{
    struct sampler_input whole = o->in;
    struct sample a, b;
    struct error err;
    const int32_t *ids_a, *ids_b;
    const float *weights_a, *weights_b;
    size_t n_a, n_b;

    if (!sampler_choose_top(few, &o->in, &o->top, u, &a)) {
        assert_false(must_decide(o));
        return false;
    }
    whole.logits = o->row;
    assert_int_equal(sampler_choose(all, &whole, u, &b, &err), OK);
    assert_int_equal(a.id, b.id);
    n_a = sampler_kept(few, &ids_a, &weights_a);
    n_b = sampler_kept(all, &ids_b, &weights_b);
    assert_int_equal(n_a, n_b);
    assert_memory_equal(ids_a, ids_b, n_a * sizeof *ids_a);
    assert_memory_equal(weights_a, weights_b, n_a * sizeof *weights_a);
    return true;
}

static void test_few_are_like_all(void **state)
{
    static struct one o;
    struct rng rng = {4711};
    size_t n_asked = 0, n_decided = 0, n_lowered = 0;

    (void)state;
    for (size_t round = 0; round < 6000; round++) {
        struct sampler *few, *all;

        one_make(&o, &rng);
        assert_int_equal(sampler_new(&few, o.n_vocab, NULL), OK);
        assert_int_equal(sampler_new(&all, o.n_vocab, NULL), OK);
        for (uint64_t index = 0; index < 5; index++) {
            bool decides = compare(&o, few, all, sampler_uniform(round, index));

            n_asked += sampler_may_use_top(&o.sampling);
            n_decided += decides;
            n_lowered += decides && o.in.history != NULL;
        }
        sampler_free(few);
        sampler_free(all);
        token_history_release(&o.history);
    }
    print_message("%zu of %zu choices decided by the largest, %zu of them with lowered logits\n",
                  n_decided, n_asked, n_lowered);
    assert_true(n_decided > n_asked / 2 && n_lowered > n_decided / 5);
}

static void test_what_needs_the_whole_row(void **state)
{
    const struct logit_bias up = {3, 0.5f}, down = {3, -0.5f};
    struct sampling p = sampling_default();

    (void)state;
    assert_false(sampler_may_use_top(&p)); /* everything may be chosen */
    p.top_p = 0.5f;
    assert_false(sampler_may_use_top(&p)); /* of a sum that is not known */
    p.min_p = 0.1f;
    assert_false(sampler_may_use_top(&p));
    p.top_p = 1.0f;
    assert_true(sampler_may_use_top(&p));
    p.min_p = 0.0f;
    p.top_k = BEST_TOP + 1;
    assert_false(sampler_may_use_top(&p));
    p.top_k = BEST_TOP;
    assert_true(sampler_may_use_top(&p));
    p.want_logprobs = true;
    assert_false(sampler_may_use_top(&p));
    p.want_logprobs = false;
    p.presence_penalty = -0.1f;
    assert_false(sampler_may_use_top(&p));
    p.presence_penalty = 1.5f;
    p.frequency_penalty = -0.1f;
    assert_false(sampler_may_use_top(&p));
    p.frequency_penalty = 0.0f;
    p.repetition_penalty = 0.9f;
    assert_false(sampler_may_use_top(&p));
    p.repetition_penalty = 1.1f;
    assert_true(sampler_may_use_top(&p));
    p.bias = &down;
    p.n_bias = 1;
    assert_true(sampler_may_use_top(&p));
    p.bias = &up;
    assert_false(sampler_may_use_top(&p));
}

/* A row that is not finite has no list, and tokens that are no tokens fill one: both are left to the whole
 * row, which says what is wrong. */
static void test_lists_without_tokens(void **state)
{
    struct best_row none, padding;
    struct sampling p = sampling_default();
    struct sampler_input in = {.sampling = &p};
    struct sampler *s;
    struct sample out;

    (void)state;
    for (int32_t i = 0; i < BEST_TOP; i++) {
        none.ids[i] = -1;
        none.values[i] = -INFINITY;
        padding.ids[i] = 10 + i;
        padding.values[i] = 5;
    }
    assert_int_equal(sampler_new(&s, 10, NULL), OK);
    for (int greedy = 0; greedy < 2; greedy++) {
        p.temperature = greedy ? 0.0f : 1.0f;
        p.top_k = 5;
        assert_false(sampler_choose_top(s, &in, &none, 0.5, &out));
        assert_false(sampler_choose_top(s, &in, &padding, 0.5, &out));
    }
    sampler_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_are_like_all),
        cmocka_unit_test(test_what_needs_the_whole_row),
        cmocka_unit_test(test_lists_without_tokens),
    };
    return cmocka_run_group_tests_name("sampler_top", tests, NULL, NULL);
}
