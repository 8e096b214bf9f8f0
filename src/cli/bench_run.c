/* bench_run.c - see bench_run.h. */
#include "cli/bench_run.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/size.h"

struct bench {
    struct model *model;
    const struct bench_plan *plan;
    struct progress *progress;
    size_t n_vocab, n_done;  /* tokens, for the progress line */
    struct seq_state **seqs; /* [n_seqs_max] */
    struct model_span *spans;
    int32_t *next; /* [n_seqs_max] token to feed */
    size_t n_seqs_max;
    int32_t *prompt; /* [longest prompt] */
    double *rates;   /* [repeat] */
};

/* ---- sequences ---- */

static void close_seqs(struct bench *b)
{
    for (size_t i = 0; i < b->n_seqs_max; i++) {
        state_free(model_states(b->model), b->seqs[i]);
        b->seqs[i] = NULL;
    }
}

static enum status open_seqs(struct bench *b, size_t n, size_t n_tokens, struct error *err)
{
    struct state_store *store = model_states(b->model);
    enum status rc = OK;

    for (size_t i = 0; i < n && rc == OK; i++) {
        rc = state_new(&b->seqs[i], store, err);
        if (rc == OK) {
            rc = state_reserve(store, b->seqs[i], n_tokens, err);
        }
    }
    if (rc != OK) {
        close_seqs(b);
        if (rc == ERR_BUSY) {
            rc = ERR_LIMIT;
        }
    }
    return rc;
}

static enum status step(struct bench *b, size_t n, struct model_step_result *result,
                        struct error *err)
{
    enum status rc = model_step(b->model, b->spans, n, NULL, result, err);

    for (size_t i = 0; i < n && rc == OK; i++) {
        if (result->bad_layer[i] >= 0) {
            rc = error_set(err, ERR_INTERNAL, "layer %d computed a value that is not finite",
                           result->bad_layer[i]);
        }
    }
    return rc;
}

static void note_progress(struct bench *b, size_t n_tokens)
{
    b->n_done += n_tokens;
    progress_update(b->progress, b->n_done);
}

static int32_t largest(const float *logits, size_t n)
{
    size_t best = 0;

    for (size_t v = 1; v < n; v++) {
        best = logits[v] > logits[best] ? v : best;
    }
    return (int32_t)best;
}

static void fill_prompt(struct bench *b, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        b->prompt[i] = (int32_t)((seed >> 33) % b->n_vocab);
    }
}

/* ---- one timed run of each kind ---- */

/* Feeds the prompt to sequence i in chunks; its first token goes to next[i]. */
static enum status feed_prompt(struct bench *b, size_t i, size_t n, struct error *err)
{
    size_t chunk = b->plan->chunk_tokens > 0 ? b->plan->chunk_tokens : n;
    struct model_step_result result = {0};

    for (size_t at = 0; at < n; at += chunk) {
        size_t len = size_min(chunk, n - at);

        b->spans[0] = (struct model_span){.seq = b->seqs[i],
                                          .tokens = b->prompt + at,
                                          .n_tokens = len,
                                          .n_logits = at + len == n ? 1 : 0};
        enum status rc = step(b, 1, &result, err);
        if (rc != OK) {
            return rc;
        }
        note_progress(b, len);
    }
    b->next[i] = largest(result.logits, b->n_vocab);
    return OK;
}

static enum status time_prefill(struct bench *b, size_t n, double *rate, struct error *err)
{
    enum status rc = open_seqs(b, 1, n, err);
    uint64_t start;

    if (rc != OK) {
        return rc;
    }
    fill_prompt(b, n, n);
    start = clock_now_ns();
    rc = feed_prompt(b, 0, n, err);
    *rate = (double)n / clock_seconds_since(start);
    close_seqs(b);
    return rc;
}

static enum status decode_steps(struct bench *b, size_t batch, struct error *err)
{
    struct model_step_result result;

    for (size_t t = 0; t < b->plan->decode_tokens; t++) {
        for (size_t i = 0; i < batch; i++) {
            b->spans[i] = (struct model_span){
                .seq = b->seqs[i], .tokens = &b->next[i], .n_tokens = 1, .n_logits = 1};
        }
        enum status rc = step(b, batch, &result, err);
        if (rc != OK) {
            return rc;
        }
        for (size_t i = 0; i < batch; i++) {
            b->next[i] = largest(result.logits + i * b->n_vocab, b->n_vocab);
        }
        note_progress(b, batch);
    }
    return OK;
}

static enum status time_decode(struct bench *b, size_t batch, double *rate, struct error *err)
{
    size_t n_decode = b->plan->decode_tokens;
    enum status rc = open_seqs(b, batch, BENCH_DECODE_PROMPT + n_decode, err);

    if (rc != OK) {
        return rc;
    }
    for (size_t i = 0; i < batch && rc == OK; i++) {
        fill_prompt(b, BENCH_DECODE_PROMPT, i + 1);
        rc = feed_prompt(b, i, BENCH_DECODE_PROMPT, err);
    }
    if (rc == OK) {
        uint64_t start = clock_now_ns();

        rc = decode_steps(b, batch, err);
        *rate = (double)(batch * n_decode) / clock_seconds_since(start);
    }
    close_seqs(b);
    return rc;
}

/* ---- all of it ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

struct bench_rate bench_summarise(double *values, size_t n)
{
    qsort(values, n, sizeof *values, by_value);
    return (struct bench_rate){.median = (values[(n - 1) / 2] + values[n / 2]) / 2,
                               .least = values[0],
                               .most = values[n - 1]};
}

typedef enum status timed_fn(struct bench *b, size_t size, double *rate, struct error *err);

static enum status repeat(struct bench *b, timed_fn *fn, size_t size, struct bench_rate *out,
                          struct error *err)
{
    double warm_up;
    enum status rc = fn(b, size, &warm_up, err);

    for (size_t i = 0; i < b->plan->repeat && rc == OK; i++) {
        rc = fn(b, size, &b->rates[i], err);
    }
    if (rc == OK) {
        *out = bench_summarise(b->rates, b->plan->repeat);
    }
    return rc;
}

static size_t longest(const size_t *values, size_t n, size_t at_least)
{
    for (size_t i = 0; i < n; i++) {
        at_least = size_max(at_least, values[i]);
    }
    return at_least;
}

static uint64_t count_tokens(const struct bench_plan *p)
{
    uint64_t n = 0;

    for (size_t i = 0; i < p->n_prompts; i++) {
        n += p->prompt_tokens[i];
    }
    for (size_t i = 0; i < p->n_batches; i++) {
        n += p->batches[i] * (BENCH_DECODE_PROMPT + p->decode_tokens);
    }
    return n * (p->repeat + 1);
}

enum status bench_run(struct bench_result *out, struct model *m, const struct bench_plan *plan,
                      struct progress *progress, struct error *err)
{
    struct bench b = {.model = m, .plan = plan, .progress = progress};
    enum status rc = OK;

    b.n_vocab = model_get_config(m)->vocab_size;
    b.n_seqs_max = longest(plan->batches, plan->n_batches, 1);
    b.seqs = calloc(b.n_seqs_max, sizeof(struct seq_state *));
    b.spans = calloc(b.n_seqs_max, sizeof *b.spans);
    b.next = calloc(b.n_seqs_max, sizeof *b.next);
    b.prompt = calloc(longest(plan->prompt_tokens, plan->n_prompts, BENCH_DECODE_PROMPT),
                      sizeof *b.prompt);
    b.rates = calloc(plan->repeat, sizeof *b.rates);
    if (!b.seqs || !b.spans || !b.next || !b.prompt || !b.rates) {
        rc = error_set(err, ERR_NO_MEMORY, "cannot allocate the benchmark");
    }
    progress_start(progress, "bench", PROGRESS_TOKENS, count_tokens(plan));
    for (size_t i = 0; i < plan->n_prompts && rc == OK; i++) {
        rc = repeat(&b, time_prefill, plan->prompt_tokens[i], &out->prefill[i], err);
        if (rc != OK) {
            error_prefix(err, "a prompt of %zu tokens", plan->prompt_tokens[i]);
        }
    }
    for (size_t i = 0; i < plan->n_batches && rc == OK; i++) {
        rc = repeat(&b, time_decode, plan->batches[i], &out->decode[i], err);
        if (rc != OK) {
            error_prefix(err, "%zu sequences of %zu tokens", plan->batches[i],
                         BENCH_DECODE_PROMPT + plan->decode_tokens);
        }
    }
    progress_finish(progress); /* also after a failure: the line must end */
    free(b.seqs);
    free(b.spans);
    free(b.next);
    free(b.prompt);
    free(b.rates);
    return rc;
}
