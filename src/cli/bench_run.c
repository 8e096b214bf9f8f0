/* bench_run.c - see bench_run.h. */
#include "cli/bench_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu_backend.h"
#include "base/clock.h"
#include "base/numa.h"
#include "base/pool.h"
#include "base/size.h"
#include "cli/bench_choices.h"

struct bench {
    struct model *model;
    struct backend *be;
    const struct bench_plan *plan;
    struct progress *progress;
    struct bench_result *result;
    struct machine_probe probe;
    struct numa_topology numa;
    struct routing_sim *sim;      /* or NULL: the model routes */
    struct bench_choices choices; /* of it, on a card */

    const struct op *ops;
    size_t n_ops, n_expert_layers, n_vocab;
    size_t n_done; /* tokens, for the progress line */

    size_t n_seqs_max;
    struct seq_state **seqs;       /* [n_seqs_max] */
    struct state_snapshot **start; /* [n_seqs_max] where generation starts; NULL: from nothing */
    struct model_span *spans;      /* [n_seqs_max] */
    size_t *streams;               /* [n_seqs_max] */
    int32_t *first, *next;         /* [n_seqs_max] tokens to feed */
    int32_t *prompt;               /* [longest prompt] */
    double *rates;                 /* [repeat] */

    /* of the run that goes on */
    struct cost_step *steps; /* [n_steps_max] what was done, for the accounting afterwards */
    size_t n_steps, n_steps_max;
    uint64_t *seen; /* a bit for each expert of a layer */
    size_t n_touched;
    struct op_profile *profile;
};

/* ---- sizes of a plan ---- */

static size_t list_max(const struct bench_list *l, size_t at_least)
{
    for (size_t i = 0; i < l->n; i++) {
        at_least = size_max(at_least, l->at[i]);
    }
    return at_least;
}

size_t bench_seqs_max(const struct bench_plan *plan)
{
    return list_max(&plan->batches, plan->recovery_tokens > 0 ? 2 : 1);
}

/* Of the sequence that generates before and after another's prompt. */
static size_t recovery_context(const struct bench_plan *plan)
{
    return plan->recovery_tokens > 0 ? 2 * plan->decode_tokens + 2 * RECOVERY_STEPS : 0;
}

size_t bench_context_tokens(const struct bench_plan *plan)
{
    size_t decode = plan->batches.n > 0 ? list_max(&plan->depths, 0) + plan->decode_tokens : 0;

    decode = size_max(decode, size_max(recovery_context(plan), plan->recovery_tokens));
    return size_max(decode, list_max(&plan->prompts, 1));
}

static size_t pages_for(size_t n_tokens)
{
    return (n_tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
}

size_t bench_pool_tokens(const struct bench_plan *plan)
{
    size_t pages = size_max(pages_for(list_max(&plan->prompts, 1)),
                            pages_for(recovery_context(plan)) + pages_for(plan->recovery_tokens));

    for (size_t i = 0; i < plan->depths.n; i++) {
        size_t depth = plan->depths.at[i];
        /* A page that is begun when the snapshot is taken is copied by the first token after it. */
        size_t each = pages_for(depth + plan->decode_tokens) + (depth % KV_PAGE_TOKENS != 0);

        pages = size_max(pages, bench_seqs_max(plan) * each);
    }
    return pages * KV_PAGE_TOKENS;
}

static uint64_t count_tokens(const struct bench_plan *p)
{
    uint64_t n = 0;

    for (size_t i = 0; i < p->prompts.n; i++) {
        n += p->prompts.at[i] * (p->repeat + 1);
    }
    for (size_t i = 0; i < p->batches.n; i++) {
        for (size_t j = 0; j < p->depths.n; j++) {
            n += p->batches.at[i] * (p->depths.at[j] + p->decode_tokens * (p->repeat + 1));
        }
    }
    n *= size_max(p->threads.n, 1);
    n += recovery_context(p) + p->recovery_tokens;
    if (p->profile && p->batches.n > 0) {
        n += p->batches.at[0] * p->decode_tokens;
    }
    return n;
}

/* ---- sequences ---- */

static void close_seqs(struct bench *b)
{
    struct state_store *store = model_states(b->model);

    for (size_t i = 0; i < b->n_seqs_max; i++) {
        state_snapshot_free(store, b->start[i]);
        state_free(store, b->seqs[i]);
        b->start[i] = NULL;
        b->seqs[i] = NULL;
    }
}

static enum status open_seqs(struct bench *b, size_t n, struct error *err)
{
    enum status rc = OK;

    for (size_t i = 0; i < n && rc == OK; i++) {
        rc = state_new(&b->seqs[i], model_states(b->model), err);
    }
    return rc;
}

/* ---- one step ---- */

/* Counts the distinct experts, and chooses them if the routing is made up. */
static bool see_routes(void *ctx, const struct op *op, const struct step *step, size_t n_rows,
                       int32_t *idx)
{
    struct bench *b = ctx;
    const struct op_route *u = &op->u.route;
    bool is_made_up = b->sim && routing_sim_hook(b->sim, op, step, n_rows, idx);

    memset(b->seen, 0, (u->n_experts + 63) / 64 * sizeof *b->seen);
    for (size_t i = 0; i < n_rows * u->top_k; i++) {
        uint64_t *word = &b->seen[(size_t)idx[i] / 64], bit = UINT64_C(1) << idx[i] % 64;

        b->n_touched += (*word & bit) == 0;
        *word |= bit;
    }
    return is_made_up;
}

/* Nobody sees the choices of a card's routers: distinct experts if every row chose by chance. */
static double expected_touched(const struct bench_result *r, size_t n_rows)
{
    double miss = 1 - (double)r->top_k / (double)r->n_experts;

    return (double)r->n_experts * (1 - pow(miss, (double)n_rows));
}

static bool has_choices(const struct bench *b)
{
    return b->sim && b->plan->is_card;
}

static size_t step_rows(const struct bench *b, size_t n)
{
    size_t n_rows = 0;

    for (size_t i = 0; i < n; i++) {
        n_rows += b->spans[i].n_tokens;
    }
    return n_rows;
}

static enum status step(struct bench *b, size_t n, struct model_step_result *result,
                        struct error *err)
{
    struct model_step_options o = {.route_hook = b->plan->is_card ? NULL : see_routes,
                                   .route_ctx = b,
                                   .no_logits = true,
                                   .op_done = b->profile ? op_profile_note : NULL,
                                   .op_ctx = b->profile};
    struct cost_step *done = &b->steps[b->n_steps];
    struct bench_choice choice = {0};
    uint64_t start = clock_now_ns();
    enum status rc;

    *done = (struct cost_step){.n_seqs = n, .depth = state_tokens(b->spans[0].seq)};
    b->n_touched = 0;
    if (has_choices(b)) {
        choice = bench_choices_take(&b->choices, step_rows(b, n));
        o.forced_idx = choice.idx;
        o.forced_next = choice.next;
    }
    rc = model_step(b->model, b->spans, n, &o, result, err);
    if (b->profile) {
        b->profile->step_ns += clock_now_ns() - start;
        b->profile->n_steps++;
    }
    for (size_t i = 0; i < n && rc == OK; i++) {
        done->n_rows += b->spans[i].n_tokens;
        done->n_out_rows += b->spans[i].n_logits;
        if (result->bad_layer[i] >= 0) {
            rc = error_set(err, ERR_INTERNAL, "layer %d computed a value that is not finite",
                           result->bad_layer[i]);
        }
    }
    if (b->n_expert_layers > 0) {
        done->n_touched = o.forced_idx       ? choice.n_touched
                          : b->plan->is_card ? expected_touched(b->result, done->n_rows)
                                             : (double)b->n_touched / (double)b->n_expert_layers;
    }
    b->n_steps = size_min(b->n_steps + 1, b->n_steps_max - 1);
    b->n_done += done->n_rows;
    return rc;
}

static void fill_prompt(struct bench *b, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        b->prompt[i] = (int32_t)((seed >> 33) % b->n_vocab);
    }
}

/* ---- choices made before the clock starts ---- */

/* The stream of a sequence is its place in the state store. */
static size_t stream_of(const struct bench *b, size_t i)
{
    struct span span = {0};

    state_span(b->seqs[i], &span);
    return (size_t)span.slot;
}

static void choose_prompt(struct bench *b, size_t i, size_t n)
{
    size_t chunk = b->plan->chunk_tokens > 0 ? b->plan->chunk_tokens : n;

    if (has_choices(b)) {
        bench_choices_begin(&b->choices);
        for (size_t at = 0; at < n; at += chunk) {
            bench_choices_add_chunk(&b->choices, stream_of(b, i), size_min(chunk, n - at));
        }
    }
}

static void choose_tokens(struct bench *b, size_t batch, size_t n)
{
    if (has_choices(b)) {
        bench_choices_begin(&b->choices);
        for (size_t i = 0; i < batch; i++) {
            b->streams[i] = stream_of(b, i);
        }
        for (size_t t = 0; t < n; t++) {
            bench_choices_add_tokens(&b->choices, b->streams, batch);
        }
    }
}

/* Feeds the prompt to sequence i in chunks; the token after it goes to first[i]. */
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
        progress_update(b->progress, b->n_done);
    }
    b->first[i] = result.best[0];
    return OK;
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
            b->next[i] = result.best[i];
        }
    }
    return OK;
}

/* ---- a case: prepared once, run again and again ---- */

static enum status prepare_decode(struct bench *b, const struct bench_row *row, struct error *err)
{
    struct state_store *store = model_states(b->model);
    enum status rc = OK;

    for (size_t i = 0; i < row->n_seqs && rc == OK; i++) {
        fill_prompt(b, row->depth > 0 ? row->depth : 1, i + 1);
        b->first[i] = b->prompt[0];
        b->n_steps = 0;
        if (row->depth == 0) {
            continue;
        }
        rc = state_reserve(store, b->seqs[i], row->depth, err);
        if (rc == OK) {
            choose_prompt(b, i, row->depth);
            rc = feed_prompt(b, i, row->depth, err);
        }
        if (rc == OK) {
            rc = state_snapshot_new(&b->start[i], store, b->seqs[i], err);
        }
    }
    return rc;
}

/* Back to where the case starts, with room for its tokens: all of this is outside the measured time. */
static enum status rewind_seqs(struct bench *b, const struct bench_row *row, struct error *err)
{
    struct state_store *store = model_states(b->model);
    enum status rc = OK;

    for (size_t i = 0; i < row->n_seqs && rc == OK; i++) {
        rc = b->start[i] ? state_restore(store, b->seqs[i], b->start[i], err)
                         : state_truncate(store, b->seqs[i], 0, NULL, err);
        if (rc == OK) {
            rc = state_reserve(store, b->seqs[i], row->n_tokens, err);
        }
        b->next[i] = b->first[i];
    }
    b->n_steps = 0;
    return rc;
}

static enum status run_once(struct bench *b, const struct bench_row *row, double *tok_s,
                            struct error *err)
{
    enum status rc = rewind_seqs(b, row, err);
    uint64_t start;

    if (rc == OK && row->kind == BENCH_PREFILL) {
        choose_prompt(b, 0, row->n_tokens);
    } else if (rc == OK) {
        choose_tokens(b, row->n_seqs, b->plan->decode_tokens);
    }
    start = clock_now_ns();
    if (rc == OK) {
        rc = row->kind == BENCH_PREFILL ? feed_prompt(b, 0, row->n_tokens, err)
                                        : decode_steps(b, row->n_seqs, err);
    }
    *tok_s = (double)(row->n_seqs * row->n_tokens) / clock_seconds_since(start);
    progress_update(b->progress, b->n_done);
    return rc;
}

/* What the last run cost, per token. */
static void account(struct bench *b, struct bench_row *row)
{
    const struct state_pools *pools = state_store_pools(model_states(b->model));
    double n = (double)(row->n_seqs * row->n_tokens);

    row->cost = (struct op_cost){0};
    row->n_touched = 0;
    for (size_t i = 0; i < b->n_steps; i++) {
        struct op_cost c = plan_cost(b->ops, b->n_ops, &b->steps[i], pools);

        op_cost_add(&row->cost, &c);
        row->n_touched += b->steps[i].n_touched / (double)b->n_steps;
    }
    for (int i = 0; i < COST_CLASS_COUNT; i++) {
        row->cost.bytes[i] /= n;
    }
    row->cost.flop /= n;
    row->cost.flop_quantised /= n;
}

/* What offload/ counted between two moments, per token. */
static struct bench_misses misses_between(const struct offload_stats *from,
                                          const struct offload_stats *to, double n_tokens)
{
    return (struct bench_misses){
        .overflows = true,
        .block_bytes = to->block_bytes,
        .hits = (double)(to->n_hits - from->n_hits) / n_tokens,
        .fetched = (double)(to->n_fetched - from->n_fetched) / n_tokens,
        .cpu = (double)(to->n_cpu - from->n_cpu) / n_tokens,
        .ahead = (double)(to->n_next - from->n_next) / n_tokens,
        .ahead_used = (double)(to->n_next_used - from->n_next_used) / n_tokens,
        .streamed = (double)(to->n_streamed - from->n_streamed) / n_tokens,
        .cpu_s = (double)(to->cpu_ns - from->cpu_ns) * 1e-9 / n_tokens,
        .cpu_wait_s = (double)(to->cpu_wait_ns - from->cpu_wait_ns) * 1e-9 / n_tokens,
    };
}

static enum status profile_run(struct bench *b, const struct bench_row *row, struct error *err)
{
    double ignored;
    enum status rc;

    b->profile = b->plan->profile;
    rc = run_once(b, row, &ignored, err);
    if (rc == OK) {
        b->profile->n_tokens = row->n_tokens * row->n_seqs;
        /* The middle step stands for all: what it reads grows evenly. */
        op_profile_cost(b->profile, b->ops, b->n_ops, &b->steps[b->n_steps / 2],
                        state_store_pools(model_states(b->model)));
    }
    b->profile = NULL;
    return rc;
}

static enum status run_case(struct bench *b, struct bench_row *row, bool with_profile,
                            struct error *err)
{
    struct offload_stats before = {0}, after = {0};
    double warm_up;
    enum status rc = open_seqs(b, row->n_seqs, err);

    if (row->kind == BENCH_PREFILL) {
        fill_prompt(b, row->n_tokens, row->n_tokens);
    } else if (rc == OK) {
        rc = prepare_decode(b, row, err);
    }
    if (rc == OK) {
        rc = run_once(b, row, &warm_up, err);
    }
    model_offload_stats(b->model, &before);
    for (size_t i = 0; i < b->plan->repeat && rc == OK; i++) {
        rc = run_once(b, row, &b->rates[i], err);
    }
    if (rc == OK) {
        row->tok_s = bench_stats_of(b->rates, b->plan->repeat);
        account(b, row);
    }
    if (rc == OK && model_offload_stats(b->model, &after)) {
        row->misses = misses_between(&before, &after,
                                     (double)(b->plan->repeat * row->n_seqs * row->n_tokens));
    }
    if (rc == OK && with_profile) {
        rc = profile_run(b, row, err);
    }
    close_seqs(b);
    if (rc != OK && row->kind == BENCH_PREFILL) {
        error_prefix(err, "a prompt of %zu tokens", row->n_tokens);
    } else if (rc != OK) {
        error_prefix(err, "%zu sequences of %zu + %zu tokens", row->n_seqs, row->depth,
                     row->n_tokens);
    }
    return rc == ERR_BUSY ? ERR_LIMIT : rc;
}

/* ---- all cases ---- */

double bench_bound_s(bool *is_memory, const struct op_cost *c, const struct machine_bounds *m,
                     bool is_cached, bool is_int8)
{
    double int8 = is_int8 ? c->flop_quantised : 0;
    double bandwidth = is_cached && m->cached_bytes_s > 0 ? m->cached_bytes_s : m->memory_bytes_s;
    double read_s = op_cost_bytes(c) / bandwidth;
    double compute_s = 0;

    if (m->f32_flop_s > 0) { /* known */
        compute_s = (c->flop - int8) / m->f32_flop_s + int8 / m->int8_op_s;
    }

    *is_memory = read_s >= compute_s;
    return *is_memory ? read_s : compute_s;
}

static enum status run_row(struct bench *b, const struct bench_row *wanted, struct error *err)
{
    struct bench_result *r = b->result;
    const struct bench_bounds *bounds = &r->bounds[r->n_bounds - 1];
    struct bench_row *row = &r->rows[r->n_rows];
    bool with_profile =
        b->plan->profile && b->plan->profile->n_steps == 0 && wanted->kind == BENCH_DECODE;
    enum status rc;

    *row = *wanted;
    row->n_threads = bounds->n_threads;
    rc = run_case(b, row, with_profile, err);
    if (rc == OK) {
        row->bound_tok_s = 1 / bench_bound_s(&row->is_bound_by_memory, &row->cost, &bounds->machine,
                                             r->is_cached, b->plan->is_int8);
        if (row->misses.overflows && b->plan->card) {
            row->overflow = bench_overflow_bound(b->plan->card, &row->cost, &row->misses);
            row->bound_tok_s = 1 / row->overflow.bound_s;
        }
        r->n_rows++;
    }
    return rc;
}

static enum status measure_bounds(struct bench *b, struct bench_bounds *out, struct error *err)
{
    const struct bench_result *r = b->result;
    struct pool *pool;

    if (b->plan->is_card && b->plan->card) {
        out->machine = b->plan->card->machine;
        return OK;
    }
    if (b->plan->is_card) {
        return card_bounds_measure(&out->machine, b->be, err);
    }
    pool = cpu_backend_pool(b->be);
    out->n_threads = pool_threads(pool);
    machine_bounds_measure(&out->machine, &b->probe, cpu_backend_isa(b->be),
                           r->is_cached ? r->working_bytes : 0, pool);
    return OK;
}

static enum status run_cases(struct bench *b, struct error *err)
{
    const struct bench_plan *p = b->plan;
    struct bench_result *r = b->result;
    enum status rc = measure_bounds(b, &r->bounds[r->n_bounds++], err);

    for (size_t i = 0; i < p->prompts.n && rc == OK; i++) {
        rc = run_row(
            b,
            &(struct bench_row){.kind = BENCH_PREFILL, .n_seqs = 1, .n_tokens = p->prompts.at[i]},
            err);
    }
    for (size_t i = 0; i < p->batches.n * p->depths.n && rc == OK; i++) {
        rc = run_row(b,
                     &(struct bench_row){.kind = BENCH_DECODE,
                                         .n_seqs = p->batches.at[i / p->depths.n],
                                         .depth = p->depths.at[i % p->depths.n],
                                         .n_tokens = p->decode_tokens},
                     err);
    }
    return rc;
}

static enum status sweep(struct bench *b, struct error *err)
{
    const struct bench_list *threads = &b->plan->threads;
    bool is_once = threads->n == 0 || b->plan->is_card;
    enum status rc = is_once ? run_cases(b, err) : OK;

    for (size_t i = 0; !is_once && i < threads->n && rc == OK; i++) {
        rc = cpu_backend_set_threads(b->be, threads->at[i], err);
        if (rc == OK) {
            numa_bind_pool(&b->numa, cpu_backend_pool(b->be)); /* these threads are new */
            rc = run_cases(b, err);
        }
    }
    return rc;
}

/* ---- hits after another sequence's prompt ---- */

/* n tokens of sequence 0; hits: [n], or NULL. */
static enum status recovery_decode(struct bench *b, size_t n, double *hits, struct error *err)
{
    struct model_step_result result;
    struct offload_stats from = {0}, to = {0};
    enum status rc = OK;

    b->n_steps = 0;
    choose_tokens(b, 1, n);
    for (size_t t = 0; t < n && rc == OK; t++) {
        model_offload_stats(b->model, &from);
        b->spans[0] = (struct model_span){
            .seq = b->seqs[0], .tokens = &b->next[0], .n_tokens = 1, .n_logits = 1};
        rc = step(b, 1, &result, err);
        b->next[0] = rc == OK ? result.best[0] : 0;
        if (hits && rc == OK && model_offload_stats(b->model, &to)) {
            double n_hits = (double)(to.n_hits - from.n_hits);

            hits[t] = n_hits / (n_hits + (double)(to.n_fetched - from.n_fetched) +
                                (double)(to.n_cpu - from.n_cpu));
        }
    }
    progress_update(b->progress, b->n_done);
    return rc;
}

static double mean(const double *v, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        sum += v[i];
    }
    return sum / (double)n;
}

static enum status recovery_run(struct bench *b, struct bench_recovery *r, struct error *err)
{
    struct state_store *store = model_states(b->model);
    size_t n = b->plan->recovery_tokens;
    enum status rc = state_reserve(store, b->seqs[0], recovery_context(b->plan), err);

    if (rc == OK) {
        rc = state_reserve(store, b->seqs[1], n, err);
    }
    fill_prompt(b, n, n);
    b->next[0] = b->prompt[0];
    for (size_t i = 0; i < 2 && rc == OK; i++) {
        rc = recovery_decode(b, b->plan->decode_tokens, NULL, err);
    }
    if (rc == OK) {
        rc = recovery_decode(b, RECOVERY_STEPS, r->hits, err);
    }
    if (rc == OK) {
        r->before = mean(r->hits, RECOVERY_STEPS);
        b->n_steps = 0;
        choose_prompt(b, 1, n);
        rc = feed_prompt(b, 1, n, err);
    }
    if (rc == OK) {
        rc = recovery_decode(b, RECOVERY_STEPS, r->hits, err);
    }
    if (rc == OK) {
        r->n_prompt = n;
        bench_recovery_judge(r);
    }
    return rc;
}

static enum status measure_recovery(struct bench *b, struct error *err)
{
    struct offload_stats ignored;
    enum status rc = OK;

    if (!model_offload_stats(b->model, &ignored)) {
        return OK; /* all experts are resident */
    }
    rc = open_seqs(b, 2, err);
    if (rc == OK) {
        rc = recovery_run(b, &b->result->recovery, err);
    }
    close_seqs(b);
    if (rc != OK) {
        error_prefix(err, "hits after a prompt of %zu tokens", b->plan->recovery_tokens);
    }
    return rc == ERR_BUSY ? ERR_LIMIT : rc;
}

/* ---- around it ---- */

/* What the plan says about experts and about how much a long run reads again and again. */
static void look_at_plan(struct bench *b)
{
    struct bench_result *r = b->result;

    b->ops = model_plan(b->model, &b->n_ops);
    for (size_t i = 0; i < b->n_ops; i++) {
        if (b->ops[i].kind == OP_ROUTE) {
            r->n_experts = size_max(r->n_experts, b->ops[i].u.route.n_experts);
            r->top_k = b->ops[i].u.route.top_k;
            b->n_expert_layers++;
        }
    }
    r->working_bytes = model_weight_bytes(b->model);
    r->cache_bytes = b->probe.cache_bytes;
    r->is_probe_small = b->probe.is_small;
    r->is_cached = r->working_bytes < r->cache_bytes && !b->plan->is_card;
}

static enum status sim_make(struct bench *b, struct error *err)
{
    const struct routing_shape shape = {.n_streams =
                                            state_store_pools(model_states(b->model))->n_slots,
                                        .n_layers = model_get_config(b->model)->n_layers,
                                        .n_experts = b->result->n_experts,
                                        .top_k = b->result->top_k};

    if (b->plan->routing == ROUTING_MODEL) {
        return OK;
    }
    if (b->n_expert_layers == 0) {
        return error_set_param(err, ERR_USAGE, "routing",
                               "the model has no experts, so there is no routing to make up");
    }
    return routing_sim_new(&b->sim, b->plan->routing, &shape, 1, err);
}

static enum status buffers_make(struct bench *b, struct error *err)
{
    const struct bench_plan *p = b->plan;
    size_t n = bench_seqs_max(p), longest = bench_context_tokens(p);
    size_t chunk = p->chunk_tokens > 0 ? p->chunk_tokens : longest;

    b->n_seqs_max = n;
    b->n_steps_max = size_max(size_max(p->decode_tokens, RECOVERY_STEPS), longest / chunk + 1) + 2;
    b->seqs = calloc(n, sizeof(struct seq_state *));
    b->start = calloc(n, sizeof(struct state_snapshot *));
    b->spans = calloc(n, sizeof *b->spans);
    b->streams = calloc(n, sizeof *b->streams);
    b->first = calloc(n, sizeof *b->first);
    b->next = calloc(n, sizeof *b->next);
    b->prompt = calloc(longest + 1, sizeof *b->prompt);
    b->rates = calloc(p->repeat, sizeof *b->rates);
    b->steps = calloc(b->n_steps_max, sizeof *b->steps);
    b->seen = calloc(b->result->n_experts / 64 + 1, sizeof *b->seen);
    b->result->rows =
        calloc(size_max(p->threads.n, 1) * (p->prompts.n + p->batches.n * p->depths.n + 1),
               sizeof *b->result->rows);
    if (!b->seqs || !b->start || !b->spans || !b->streams || !b->first || !b->next || !b->prompt ||
        !b->rates || !b->steps || !b->seen || !b->result->rows) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the benchmark");
    }
    if (has_choices(b)) {
        return bench_choices_open(
            &b->choices, b->sim, b->ops, b->n_ops, size_max(longest, n * p->decode_tokens),
            size_max(n * p->decode_tokens, RECOVERY_STEPS), b->n_steps_max, err);
    }
    return OK;
}

/* Refuses before minutes are spent on the cases that do fit. */
static enum status check_fits(const struct bench *b, struct error *err)
{
    const struct state_budget *budget = state_store_budget(model_states(b->model));
    size_t context = bench_context_tokens(b->plan), n_seqs = bench_seqs_max(b->plan);

    if (context > budget->context_max) {
        return error_set(err, ERR_LIMIT, "sequences of %zu tokens: the model takes %zu", context,
                         budget->context_max);
    }
    if (n_seqs > budget->n_live) {
        return error_set(err, ERR_LIMIT, "%zu sequences at once: there is room for %zu", n_seqs,
                         budget->n_live);
    }
    if (bench_pool_tokens(b->plan) > budget->n_tokens) {
        return error_set(err, ERR_LIMIT, "%zu sequences of up to %zu tokens: the KV pool has %zu",
                         n_seqs, context, budget->n_tokens);
    }
    return OK;
}

enum status bench_run(struct bench_result *out, struct model *m, struct backend *be,
                      const struct bench_plan *plan, struct progress *progress, struct error *err)
{
    struct bench b = {.model = m, .be = be, .plan = plan, .progress = progress, .result = out};
    enum status rc;

    *out = (struct bench_result){0};
    b.n_vocab = model_get_config(m)->vocab_size;
    numa_detect(&b.numa, NUMA_SYSFS);
    rc = check_fits(&b, err);
    if (rc == OK && !plan->is_card) {
        rc = machine_probe_open(&b.probe, plan->probe_bytes_max, cpu_backend_pool(be), err);
    }
    if (rc == OK) {
        look_at_plan(&b);
        rc = sim_make(&b, err);
    }
    if (rc == OK) {
        rc = buffers_make(&b, err);
    }
    if (rc == OK) {
        progress_start(progress, "bench", PROGRESS_TOKENS, count_tokens(plan));
        rc = sweep(&b, err);
        if (rc == OK && plan->recovery_tokens > 0) {
            rc = measure_recovery(&b, err);
        }
        out->overflows = model_offload_stats(m, &out->offload);
        progress_finish(progress); /* also after a failure: the line must end */
    }
    machine_probe_close(&b.probe);
    routing_sim_free(b.sim);
    bench_choices_close(&b.choices);
    free(b.seqs);
    free(b.start);
    free(b.spans);
    free(b.streams);
    free(b.first);
    free(b.next);
    free(b.prompt);
    free(b.rates);
    free(b.steps);
    free(b.seen);
    return rc;
}

void bench_result_release(struct bench_result *r)
{
    free(r->rows);
    *r = (struct bench_result){0};
}
