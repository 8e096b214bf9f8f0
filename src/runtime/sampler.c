/* sampler.c - penalties, filters and the choice; see sampler.h for the order.
 *
 * Idea:      a row is read once for the maximum of each of its blocks. The k-th largest of these maxima
 *            is not above the k-th largest logit, so for top_k one more pass gathers a handful of
 *            candidates, and all further work is on these. Candidates are two arrays (id, value) in
 *            order of ids; each filter shortens them in place. The value is the adjusted logit up to
 *            top_k and the weight exp((logit - max) / T) after.
 * Cutting:   "keep the k largest" and "keep the largest until their weights reach p" are one problem:
 *            find the place in falling order at which a running amount reaches a target. keep_top()
 *            finds it digit by digit over the value's 32 bits (11 + 11 + 10): a histogram of amounts,
 *            the digit at which the target is reached, then the same inside that digit. No sorting, but
 *            for a few candidates, where that takes less time than clearing a histogram.
 * From few:  what follows top_k sees its candidates only. So the same k from a list of the row's largest logits
 *            give the same choice bit for bit. Penalties and bans lower logits: then the list decides for
 *            those that stay above its last, which bounds all that are not listed.
 * Trade-off: sums are double and in a fixed order, so the result is exact up to rounding at the very
 *            edge of top_p. */
#include "runtime/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/half.h"
#include "base/size.h"

enum { DIGIT_BITS = 11, DIGITS = 3, BINS = 1 << DIGIT_BITS, BLOCKS_MAX = 512, FEW = BEST_TOP };

#define SEEN_IN_PROMPT  0x80000000u
#define SEEN_COUNT_MASK 0x7fffffffu

struct sampler {
    size_t n_vocab;
    float *row; /* [n_vocab] the logits after penalties, bias and bans */
    size_t block_size, n_blocks;
    float block_max[BLOCKS_MAX]; /* of the present row */
    size_t n;                    /* candidates */
    int32_t *ids;
    float *values;
    double *amounts; /* [BINS] */
};

enum status sampler_new(struct sampler **out, size_t n_vocab, struct error *err)
{
    struct sampler *s = calloc(1, sizeof *s);

    *out = NULL;
    if (s) {
        s->n_vocab = n_vocab;
        s->block_size = n_vocab / BLOCKS_MAX + 1;
        s->row = calloc(n_vocab, sizeof *s->row);
        s->ids = calloc(n_vocab, sizeof *s->ids);
        s->values = calloc(n_vocab, sizeof *s->values);
        s->amounts = calloc(BINS, sizeof *s->amounts);
    }
    if (!s || !s->row || !s->ids || !s->values || !s->amounts) {
        sampler_free(s);
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a sampler for %zu tokens", n_vocab);
    }
    *out = s;
    return OK;
}

void sampler_free(struct sampler *s)
{
    if (s) {
        free(s->row);
        free(s->ids);
        free(s->values);
        free(s->amounts);
        free(s);
    }
}

bool token_history_init(struct token_history *h, size_t n_vocab)
{
    h->n_vocab = n_vocab;
    h->seen = calloc(n_vocab, sizeof *h->seen);
    return h->seen != NULL;
}

void token_history_release(struct token_history *h)
{
    free(h->seen);
    h->seen = NULL;
}

void token_history_add_prompt(struct token_history *h, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= 0 && (size_t)ids[i] < h->n_vocab) {
            h->seen[ids[i]] |= SEEN_IN_PROMPT;
        }
    }
}

void token_history_add_output(struct token_history *h, int32_t id)
{
    if (id >= 0 && (size_t)id < h->n_vocab && (h->seen[id] & SEEN_COUNT_MASK) < SEEN_COUNT_MASK) {
        h->seen[id]++;
    }
}

/* A bijection on 64 bits in which every input bit moves every output bit (David Stafford's variant 13
 * of the MurmurHash3 finaliser, as SplitMix64 uses it). */
static uint64_t mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double sampler_uniform(uint64_t seed, uint64_t index)
{
    /* Mixing the seed before the index is added keeps (seed, index) and (seed + 1, index - 1) apart. */
    uint64_t key = mix64(seed + 0x9e3779b97f4a7c15u);
    uint64_t bits = mix64(key + (index + 1) * 0x9e3779b97f4a7c15u);

    return (double)(bits >> 11) * 0x1p-53;
}

/* ---- the adjusted row ---- */

static float penalised(float x, uint32_t seen, const struct sampling *p)
{
    if (seen == 0) {
        return x;
    }
    if (p->repetition_penalty != 1.0f) {
        x = x > 0.0f ? x / p->repetition_penalty : x * p->repetition_penalty;
    }
    if (seen & SEEN_COUNT_MASK) {
        x -= p->presence_penalty + p->frequency_penalty * (float)(seen & SEEN_COUNT_MASK);
    }
    return x;
}

static bool has_penalties(const struct sampler_input *in)
{
    return in->history && in->history->seen && sampling_has_penalties(in->sampling);
}

/* Whether any logit may be changed before the filters. */
static bool has_adjustments(const struct sampler_input *in)
{
    return has_penalties(in) || in->sampling->n_bias > 0 || in->n_banned > 0;
}

/* The adjusted row: the logits themselves when nothing changes them, else a copy. */
static const float *adjust(struct sampler *s, const struct sampler_input *in)
{
    const struct sampling *p = in->sampling;

    if (!has_adjustments(in)) {
        return in->logits;
    }
    memcpy(s->row, in->logits, s->n_vocab * sizeof *s->row);
    if (has_penalties(in)) {
        size_t n = size_min(s->n_vocab, in->history->n_vocab);

        for (size_t i = 0; i < n; i++) {
            s->row[i] = penalised(s->row[i], in->history->seen[i], p);
        }
    }
    for (size_t i = 0; i < p->n_bias; i++) {
        s->row[p->bias[i].id] += p->bias[i].bias;
    }
    for (size_t i = 0; i < in->n_banned; i++) {
        if (in->banned[i] >= 0 && (size_t)in->banned[i] < s->n_vocab) {
            s->row[in->banned[i]] = -INFINITY;
        }
    }
    return s->row;
}

/* The maximum, NaN when there is one. Four running maxima, because one would wait for itself. */
static float max_of(const float *x, size_t n)
{
    float m[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    bool has_nan = false;
    size_t i = 0;

    for (; i + 4 <= n; i += 4) {
        for (size_t j = 0; j < 4; j++) {
            m[j] = x[i + j] > m[j] ? x[i + j] : m[j];
        }
        has_nan |= (x[i] != x[i]) | (x[i + 1] != x[i + 1]) | (x[i + 2] != x[i + 2]) |
                   (x[i + 3] != x[i + 3]);
    }
    for (; i < n; i++) {
        m[0] = x[i] > m[0] ? x[i] : m[0];
        has_nan |= x[i] != x[i];
    }
    return has_nan ? NAN : fmaxf(fmaxf(m[0], m[1]), fmaxf(m[2], m[3]));
}

/* Fills block_max; returns the maximum of the row, NaN when one is in it. */
static float scan(struct sampler *s, const float *x)
{
    float max = -INFINITY;

    s->n_blocks = 0;
    for (size_t at = 0; at < s->n_vocab; at += s->block_size) {
        float m = max_of(x + at, size_min(s->block_size, s->n_vocab - at));

        if (m != m) {
            return m;
        }
        s->block_max[s->n_blocks++] = m;
        max = m > max ? m : max;
    }
    return max;
}

/* The first token whose logit is the row's maximum. */
static int32_t find_max(const struct sampler *s, const float *x, float max)
{
    size_t block = 0;

    while (s->block_max[block] != max) {
        block++;
    }
    size_t i = block * s->block_size;
    while (x[i] != max) {
        i++;
    }
    return (int32_t)i;
}

/* Makes candidates of the tokens whose logit is at least `least`. */
static void gather(struct sampler *s, const float *x, float least)
{
    s->n = 0;
    for (size_t i = 0; i < s->n_vocab; i++) {
        s->ids[s->n] = (int32_t)i; /* overwritten by the next one when it is too small */
        s->values[s->n] = x[i];
        s->n += x[i] >= least;
    }
}

/* ---- filters ---- */

/* Maps floats to integers of the same order; -0 counts as 0. No NaN. */
static uint32_t order_key(float v)
{
    uint32_t u = f32_bits(v + 0.0f);

    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Copies candidate `from` to place `to`. Filters do this for every candidate and then count it or not:
 * whether it stays is hard to predict, and a copy is cheaper than a wrong guess. */
static inline void keep(struct sampler *s, size_t to, size_t from)
{
    s->ids[to] = s->ids[from];
    s->values[to] = s->values[from];
}

/* Drops the candidates whose key without its low `shift` bits is below least. */
static void drop_below(struct sampler *s, unsigned shift, uint32_t least)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n; i++) {
        bool stays = order_key(s->values[i]) >> shift >= least;

        keep(s, n, i);
        n += stays;
    }
    s->n = n;
}

/* What keep_top() does, for at most FEW candidates. */
static void keep_top_few(struct sampler *s, bool by_value, double target)
{
    uint8_t order[FEW]; /* candidates by falling value, equal ones by rising id */
    bool stays[FEW] = {false};
    double above = 0;
    size_t n = 0;

    for (size_t i = 0; i < s->n; i++) {
        size_t at = i;

        for (; at > 0 && s->values[order[at - 1]] < s->values[i]; at--) {
            order[at] = order[at - 1];
        }
        order[at] = (uint8_t)i;
    }
    for (size_t i = 0; i < s->n && above < target; i++) {
        stays[order[i]] = true;
        above += by_value ? (double)s->values[order[i]] : 1.0;
    }
    for (size_t i = 0; i < s->n; i++) {
        keep(s, n, i);
        n += stays[i];
    }
    s->n = n;
}

/* Keeps the candidates in falling order of value, up to and including the one at which the running
 * amount (1 each, or the value itself when by_value) reaches target; equal values come in order of
 * ids. Keeps all when the target is never reached. */
static void keep_top(struct sampler *s, bool by_value, double target)
{
    uint32_t prefix = 0; /* of the key where the target is reached; digits found so far */
    double above = 0;    /* amount of all candidates above the prefix */
    unsigned shift = 32;

    if (s->n <= FEW) {
        keep_top_few(s, by_value, target);
        return;
    }
    for (unsigned digit = 0; digit < DIGITS; digit++) {
        unsigned bits = digit + 1 < DIGITS ? DIGIT_BITS : 32 - (DIGITS - 1) * DIGIT_BITS;
        uint32_t bin = (1u << bits) - 1;

        shift -= bits;
        memset(s->amounts, 0, BINS * sizeof *s->amounts);
        for (size_t i = 0; i < s->n; i++) {
            uint32_t key = order_key(s->values[i]) >> shift;
            if (key >> bits == prefix) {
                s->amounts[key & ((1u << bits) - 1)] += by_value ? (double)s->values[i] : 1.0;
            }
        }
        while (bin > 0 && above + s->amounts[bin] < target) {
            above += s->amounts[bin--];
        }
        prefix = prefix << bits | bin;
        drop_below(s, shift, prefix);
    }
    /* Above the key everything stays; of the candidates with exactly this key, as many as needed. */
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        bool is_tie = order_key(s->values[i]) == prefix;

        if (is_tie && above >= target) {
            continue;
        }
        if (is_tie) {
            above += by_value ? (double)s->values[i] : 1.0;
        }
        keep(s, n++, i);
    }
    s->n = n;
}

/* Logits become weights relative to the largest: its weight is exactly 1, so no temperature can
 * overflow, and a tiny one only drives the others to 0. */
static void weigh(struct sampler *s, float max, float temperature)
{
    for (size_t i = 0; i < s->n; i++) {
        float below = s->values[i] - max;

        if (max == INFINITY) { /* inf - inf: the infinite ones share everything */
            below = s->values[i] == INFINITY ? 0.0f : -INFINITY;
        }
        s->values[i] = expf(below / temperature);
    }
}

static double total_weight(const struct sampler *s)
{
    double sum = 0;

    for (size_t i = 0; i < s->n; i++) {
        sum += (double)s->values[i];
    }
    return sum;
}

static void keep_at_least(struct sampler *s, float least)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n; i++) {
        bool stays = s->values[i] >= least;

        keep(s, n, i);
        n += stays;
    }
    s->n = n;
}

/* Candidates: the k tokens with the largest logits. */
static void take_top_k(struct sampler *s, const float *x, size_t k)
{
    float least = -INFINITY;

    if (k < s->n_blocks) { /* the k-th largest block maximum, by the same means */
        memcpy(s->values, s->block_max, s->n_blocks * sizeof *s->values);
        s->n = s->n_blocks;
        keep_top(s, false, (double)k);
        least = s->values[0];
        for (size_t i = 1; i < s->n; i++) {
            least = s->values[i] < least ? s->values[i] : least;
        }
    }
    gather(s, x, least);
    if (k < s->n) {
        keep_top(s, false, (double)k);
    }
}

static void take_top_p(struct sampler *s, double p)
{
    double total = total_weight(s);

    /* All weights below this together have less than 1 - p of the total, so the cut is above it. */
    keep_at_least(s, (float)(0.999 * (1.0 - p) * total / (double)s->n));
    keep_top(s, true, p * total);
}

/* ---- choice ---- */

static int32_t draw(const struct sampler *s, double u)
{
    double target = u * total_weight(s);
    double sum = 0;
    int32_t last = s->ids[0];

    for (size_t i = 0; i < s->n; i++) {
        if (s->values[i] > 0.0f) {
            last = s->ids[i];
            sum += (double)s->values[i];
            if (sum > target) {
                break;
            }
        }
    }
    return last; /* the last candidate also when rounding kept the sum below the target */
}

/* Puts (id, logit) in its place among the best n seen so far. Ids come in rising order, so a later
 * one goes behind its equals. */
static void note_top(struct sample *out, size_t n_max, int32_t id, float logit)
{
    size_t at = out->n_top;

    while (at > 0 && out->top[at - 1].logprob < logit) {
        at--;
    }
    if (at == n_max) {
        return;
    }
    if (out->n_top < n_max) {
        out->n_top++;
    }
    memmove(&out->top[at + 1], &out->top[at], (out->n_top - 1 - at) * sizeof out->top[0]);
    out->top[at] = (struct token_logprob){id, logit};
}

static float to_logprob(float logit, float max, double log_sum)
{
    double below =
        max == INFINITY ? (logit == INFINITY ? 0.0 : -INFINITY) : (double)logit - (double)max;

    return fmaxf((float)(below - log_sum), LOGPROB_MIN);
}

/* Log-softmax of the raw row, over the tokenizer's vocabulary. */
static void add_logprobs(const struct sampler *s, const struct sampler_input *in,
                         struct sample *out)
{
    const float *x = in->logits;
    float max = max_of(x, s->n_vocab);
    double sum = 0;

    for (size_t i = 0; i < s->n_vocab; i++) {
        float below = max == INFINITY ? (x[i] == INFINITY ? 0.0f : -INFINITY) : x[i] - max;

        sum += (double)expf(below);
        note_top(out, in->sampling->n_top_logprobs, (int32_t)i, x[i]);
    }
    double log_sum = log(sum);
    out->logprob = to_logprob(x[out->id], max, log_sum);
    for (size_t i = 0; i < out->n_top; i++) {
        out->top[i].logprob = to_logprob(out->top[i].logprob, max, log_sum);
    }
}

static void choose_greedy(struct sampler *s, const float *x, float max)
{
    s->ids[0] = find_max(s, x, max);
    s->values[0] = 1.0f;
    s->n = 1;
}

/* What remains to be done with the candidates that top_k left. */
static void weigh_and_cut(struct sampler *s, float max, const struct sampling *p)
{
    weigh(s, max, p->temperature);
    if (p->top_p < 1.0f) {
        take_top_p(s, (double)p->top_p);
    }
    if (p->min_p > 0.0f) {
        keep_at_least(s, p->min_p);
    }
}

/* How many candidates top_k leaves; n_vocab: it is off. */
static size_t top_k_of(const struct sampler *s, const struct sampling *p)
{
    return p->top_k > 0 ? size_min((size_t)p->top_k, s->n_vocab) : s->n_vocab;
}

static bool is_greedy(const struct sampling *p)
{
    return p->temperature < SAMPLING_TEMPERATURE_GREEDY;
}

static void apply_filters(struct sampler *s, const float *x, float max, const struct sampling *p)
{
    size_t k = top_k_of(s, p);

    if (k < s->n_vocab) {
        take_top_k(s, x, k);
    } else {
        gather(s, x, -INFINITY);
    }
    weigh_and_cut(s, max, p);
}

enum status sampler_choose(struct sampler *s, const struct sampler_input *in, double u,
                           struct sample *out, struct error *err)
{
    const float *x = adjust(s, in);
    float max = scan(s, x);

    *out = (struct sample){.id = -1};
    if (max != max) {
        return error_set(err, ERR_INTERNAL, "a logit is not a number");
    }
    if (max == -INFINITY) {
        return error_set(err, ERR_INTERNAL, "no token can be chosen: every logit is -inf");
    }
    if (is_greedy(in->sampling)) {
        choose_greedy(s, x, max);
    } else {
        apply_filters(s, x, max, in->sampling);
    }
    out->id = draw(s, u);
    if (in->sampling->want_logprobs) {
        add_logprobs(s, in, out);
    }
    return OK;
}

/* ---- the choice from a row's largest logits ---- */

bool sampler_may_use_top(const struct sampling *p)
{
    bool only_lowers = p->repetition_penalty >= 1.0f && p->presence_penalty >= 0.0f &&
                       p->frequency_penalty >= 0.0f;
    bool is_cut = is_greedy(p) || (p->top_k > 0 && p->top_k <= BEST_TOP) ||
                  (p->min_p > 0.0f && p->top_p >= 1.0f);

    for (size_t i = 0; i < p->n_bias; i++) {
        only_lowers = only_lowers && p->bias[i].bias <= 0.0f;
    }
    return only_lowers && is_cut && !p->want_logprobs;
}

/* Makes candidates of at most n listed logits, in order of ids. Returns a bound of all that are not among
 * them, listed or not; -INFINITY when there are none. */
static float take_listed(struct sampler *s, const struct best_row *top, size_t n)
{
    float rest = -INFINITY;

    s->n = 0;
    for (size_t i = 0; i < BEST_TOP && top->ids[i] >= 0; i++) {
        int32_t id = top->ids[i];
        size_t at = s->n;

        rest = top->values[i];
        if ((size_t)id >= s->n_vocab) {
            continue; /* no token */
        }
        if (s->n == n) {
            return rest;
        }
        for (; at > 0 && s->ids[at - 1] > id; at--) {
            s->ids[at] = s->ids[at - 1];
            s->values[at] = s->values[at - 1];
        }
        s->ids[at] = id;
        s->values[at] = top->values[i];
        s->n++;
    }
    return top->ids[BEST_TOP - 1] < 0 ? -INFINITY : rest;
}

static void adjust_listed(struct sampler *s, const struct sampler_input *in)
{
    const struct sampling *p = in->sampling;

    for (size_t i = 0; i < s->n; i++) {
        int32_t id = s->ids[i];
        float *x = &s->values[i];

        if (has_penalties(in) && (size_t)id < in->history->n_vocab) {
            *x = penalised(*x, in->history->seen[id], p);
        }
        for (size_t b = 0; b < p->n_bias; b++) {
            *x += p->bias[b].id == id ? p->bias[b].bias : 0.0f;
        }
        for (size_t b = 0; b < in->n_banned; b++) {
            *x = in->banned[b] == id ? -INFINITY : *x;
        }
    }
}

static float largest_value(const struct sampler *s)
{
    float max = -INFINITY;

    for (size_t i = 0; i < s->n; i++) {
        max = s->values[i] > max ? s->values[i] : max;
    }
    return max;
}

/* Leaves the k first of all tokens, or as many as matter. False: these are not known. */
static bool cut_listed(struct sampler *s, const struct sampler_input *in,
                       const struct best_row *top, size_t k)
{
    const struct sampling *p = in->sampling;
    bool is_changed = has_adjustments(in);
    float rest = take_listed(s, top, is_changed ? BEST_TOP : k);
    bool has_all = rest == -INFINITY;

    if (is_changed) {
        adjust_listed(s, in);
    }
    if (is_changed && !has_all) { /* only these are above all others for certain */
        keep_at_least(s, nextafterf(rest, INFINITY));
    }
    if (s->n >= k || has_all) {
        if (s->n > k) {
            keep_top(s, false, (double)k);
        }
        return s->n > 0;
    }
    /* Those that are not known fall to min_p, with room for rounding. */
    return s->n > 0 && p->min_p > 0.0f && p->top_p >= 1.0f && !is_greedy(p) &&
           expf((rest - largest_value(s)) / p->temperature) < 0.999f * p->min_p;
}

bool sampler_choose_top(struct sampler *s, const struct sampler_input *in,
                        const struct best_row *top, double u, struct sample *out)
{
    const struct sampling *p = in->sampling;
    float max;

    *out = (struct sample){.id = -1};
    if (!sampler_may_use_top(p) || !cut_listed(s, in, top, is_greedy(p) ? 1 : top_k_of(s, p))) {
        return false;
    }
    max = largest_value(s);
    if (max == -INFINITY) {
        return false;
    }
    if (is_greedy(p)) {
        s->values[0] = 1.0f;
    } else {
        weigh_and_cut(s, max, p);
    }
    out->id = draw(s, u);
    return true;
}

size_t sampler_kept(const struct sampler *s, const int32_t **ids, const float **weights)
{
    *ids = s->ids;
    *weights = s->values;
    return s->n;
}
