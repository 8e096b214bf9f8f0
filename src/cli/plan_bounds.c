/* plan_bounds.c - see plan_bounds.h. */
#include "cli/plan_bounds.h"

#include <math.h>
#include <stdio.h>

#include "base/size.h"

/* GB/s. A GeForce RTX 5070 Ti reads 896 GB/s by its data sheet, of which programs reach 85 %; PCIe 5.0 with
 * 16 lanes; two channels of DDR5. */
static const double GPU_ASSUMED = 762, LINK_ASSUMED = 50, HOST_ASSUMED = 60;

static const size_t prompts[] = {512, 2048, 8192};

/* ---- rates ---- */

/* Both ways read the host's memory, which gives no more to two than to one. */
static void share_host(struct link_bounds *l)
{
    double most = fmax(l->link_bytes_s, l->cpu_bytes_s), sum = l->link_bytes_s + l->cpu_bytes_s;

    l->link_shared_bytes_s = most * l->link_bytes_s / sum;
    l->cpu_shared_bytes_s = most * l->cpu_bytes_s / sum;
}

struct plan_rates plan_rates_assumed(void)
{
    struct plan_rates r = {
        .card = {.machine.memory_bytes_s = GPU_ASSUMED * 1e9,
                 .link = {.link_bytes_s = LINK_ASSUMED * 1e9, .cpu_bytes_s = HOST_ASSUMED * 1e9}},
        .gpu_from = "assumed",
        .link_from = "assumed",
        .host_from = "assumed",
    };

    share_host(&r.card.link);
    return r;
}

void plan_rates_give(struct plan_rates *r, double gpu, double link, double host, double tflops)
{
    if (gpu > 0) {
        r->card.machine.memory_bytes_s = gpu * 1e9;
        r->gpu_from = "given";
    }
    if (link > 0) {
        r->card.link.link_bytes_s = link * 1e9;
        r->link_from = "given";
    }
    if (host > 0) {
        r->card.link.cpu_bytes_s = host * 1e9;
        r->host_from = "given";
    }
    if (link > 0 || host > 0) {
        share_host(&r->card.link);
    }
    r->flop_s = tflops * 1e12;
}

/* ---- rows ---- */

/* Distinct experts of a step, over all layers, when n_touched of each layer are wanted and `hits` of those
 * that may overflow have a slot. */
static struct bench_misses misses_of(const struct placement *p, double n_touched, double hits)
{
    double all = n_touched * (double)p->in.n_layers;
    double away = p->plan.overflows ? n_touched * (double)p->in.n_layers_overflow * (1 - hits) : 0;

    return (struct bench_misses){.overflows = p->plan.overflows,
                                 .block_bytes = p->in.block_bytes,
                                 .hits = all - away,
                                 .streamed = away};
}

/* The misses of small steps go both ways, so that both end at the same time. */
static void split_ways(struct bench_misses *m, const struct placement *p,
                       const struct link_bounds *l)
{
    double away = m->streamed, by_link = 1;

    if (p->asked.miss == EXPERT_MISS_CPU || p->plan.in_file) {
        by_link = 0;
    } else if (p->asked.miss == EXPERT_MISS_AUTO) {
        by_link = l->link_shared_bytes_s / (l->link_shared_bytes_s + l->cpu_shared_bytes_s);
    }
    m->streamed = 0;
    m->fetched = away * by_link;
    m->cpu = away - m->fetched;
}

static struct op_cost cost_of(const struct placement *p, size_t n_rows, size_t depth,
                              double n_touched)
{
    const struct cost_step step = {
        .n_seqs = 1, .n_rows = n_rows, .depth = depth, .n_out_rows = 1, .n_touched = n_touched};

    return plan_cost(p->outline.plan.ops, p->outline.plan.n_ops, &step, &p->pools);
}

/* Where the CPU computes everything, its memory is all there is. */
static struct bench_overflow_bound bound_of(const struct placement *p, const struct plan_rates *r,
                                            const struct op_cost *cost,
                                            const struct bench_misses *m)
{
    struct bench_overflow_bound b;

    if (p->plan.overflows) {
        return bench_overflow_bound(&r->card, cost, m);
    }
    b = (struct bench_overflow_bound){.by = p->target.is_host ? "memory" : "card"};
    b.card_s = op_cost_bytes(cost) /
               (p->target.is_host ? r->card.link.cpu_bytes_s : r->card.machine.memory_bytes_s);
    b.bound_s = b.in_turn_s = b.card_s;
    return b;
}

static struct plan_row decode_row(const struct placement *p, const struct plan_rates *r,
                                  size_t depth, bool is_local)
{
    double share =
        p->plan.n_overflowing > 0 ? (double)p->plan.n_slots / (double)p->plan.n_overflowing : 1;
    double hits = is_local ? budget_hits_local(share) : budget_hits_uniform(share);
    struct op_cost cost = cost_of(p, 1, depth, (double)p->outline.top_k);
    struct bench_misses m = misses_of(p, (double)p->outline.top_k, hits);
    struct bench_overflow_bound b;
    struct plan_row row = {.is_decode = true, .is_local = is_local, .hits = hits};

    row.miss_bytes = m.streamed * (double)m.block_bytes;
    row.card_bytes = op_cost_bytes(&cost) - row.miss_bytes;
    split_ways(&m, p, &r->card.link);
    b = bound_of(p, r, &cost, &m);
    row.bound_tok_s = 1 / b.bound_s;
    row.in_turn_tok_s = 1 / b.in_turn_s;
    row.by = b.by;
    return row;
}

static struct plan_row prompt_row(const struct placement *p, const struct plan_rates *r,
                                  size_t n_tokens)
{
    double share =
        p->plan.n_overflowing > 0 ? (double)p->plan.n_slots / (double)p->plan.n_overflowing : 1;
    size_t chunk = p->chunk_tokens ? p->chunk_tokens : n_tokens;
    struct plan_row row = {.n_tokens = n_tokens, .hits = share};
    double bound_s = 0, in_turn_s = 0, longest = 0;

    for (size_t at = 0; at < n_tokens; at += chunk) {
        size_t n = size_min(chunk, n_tokens - at);
        double touched = cost_uniform_touched(p->outline.n_experts, p->outline.top_k, n);
        struct op_cost cost = cost_of(p, n, at, touched);
        struct bench_misses m = misses_of(p, touched, share);
        struct bench_overflow_bound b = bound_of(p, r, &cost, &m);
        double compute_s = r->flop_s > 0 && !p->target.is_host ? cost.flop / r->flop_s : 0;

        row.miss_bytes += m.streamed * (double)m.block_bytes;
        row.card_bytes += op_cost_bytes(&cost) - m.streamed * (double)m.block_bytes;
        bound_s += fmax(b.bound_s, compute_s);
        in_turn_s += fmax(b.card_s, compute_s) + b.miss_s;
        if (fmax(b.bound_s, compute_s) > longest) {
            longest = fmax(b.bound_s, compute_s);
            row.by = compute_s > b.bound_s ? "arithmetic" : b.by;
        }
    }
    row.bound_tok_s = (double)n_tokens / bound_s;
    row.in_turn_tok_s = (double)n_tokens / in_turn_s;
    return row;
}

void plan_bounds_make(struct plan_bounds *out, const struct placement *p,
                      const struct plan_rates *r, size_t depth)
{
    *out = (struct plan_bounds){.depth = depth};
    out->rows[out->n_rows++] = decode_row(p, r, depth, false);
    if (p->plan.overflows) {
        out->rows[out->n_rows++] = decode_row(p, r, depth, true);
    }
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++) {
        if (prompts[i] <= p->context_length) {
            out->rows[out->n_rows++] = prompt_row(p, r, prompts[i]);
        }
    }
}

/* ---- print-outs ---- */

static void row_name(char out[64], const struct plan_row *row, const struct plan_bounds *b)
{
    if (row->is_decode) {
        snprintf(out, 64, "decode at %zu, %s", b->depth, row->is_local ? "local" : "uniform");
    } else {
        snprintf(out, 64, "prompt of %zu", row->n_tokens);
    }
}

void plan_bounds_print(struct buf *out, const struct plan_bounds *b, const struct placement *p,
                       const struct plan_rates *r)
{
    const struct link_bounds *l = &r->card.link;
    bool overflows = p->plan.overflows;

    if (p->target.is_host) {
        buf_appendf(out, "bounds, from host memory at %.1f GB/s (%s)\n", l->cpu_bytes_s * 1e-9,
                    r->host_from);
    } else {
        buf_appendf(out, "bounds, from memory of the card at %.0f GB/s (%s)",
                    r->card.machine.memory_bytes_s * 1e-9, r->gpu_from);
    }
    if (overflows) {
        buf_appendf(out,
                    ", link %.1f (%s), CPU %.1f (%s), at the same time %.1f + %.1f", //
                    l->link_bytes_s * 1e-9, r->link_from, l->cpu_bytes_s * 1e-9, r->host_from,
                    l->link_shared_bytes_s * 1e-9, l->cpu_shared_bytes_s * 1e-9);
    }
    if (!p->target.is_host && r->flop_s > 0) {
        buf_appendf(out, ", %.0f TFLOP/s (given)", r->flop_s * 1e-12);
    }
    buf_appendf(out, "%s  %-24s %8s %12s %12s %14s %14s\n", p->target.is_host ? "" : "\n", "",
                overflows ? "hits" : "", p->target.is_host ? "host" : "card",
                overflows ? "elsewhere" : "", "at best", overflows ? "in turn" : "");
    for (size_t i = 0; i < b->n_rows; i++) {
        const struct plan_row *row = &b->rows[i];
        char name[64];

        row_name(name, row, b);
        buf_appendf(out, "  %-24s ", name);
        if (overflows) {
            buf_appendf(out, "%7.1f%% %9.2f GB %9.2f GB %8.0f tok/s %8.0f tok/s  by %s\n",
                        100 * row->hits, row->card_bytes * 1e-9, row->miss_bytes * 1e-9,
                        row->bound_tok_s, row->in_turn_tok_s, row->by);
        } else {
            buf_appendf(out, "%8s %9.2f GB %12s %8.0f tok/s  by %s\n", "", row->card_bytes * 1e-9,
                        "", row->bound_tok_s, row->by);
        }
    }
    if (p->plan.in_file) {
        buf_append_str(out, "  the disk is not counted: experts of the file are taken as cached in "
                            "memory\n");
    }
    if (r->flop_s <= 0) {
        buf_append_str(out, "  arithmetic is not counted");
        buf_append_str(out, p->target.is_host ? "\n" : " (--gpu-tflops gives a rate)\n");
    }
}

static bool put(struct json_object *o, const char *key, struct json_object *value)
{
    if (!value || json_object_object_add(o, key, value) != 0) {
        json_object_put(value);
        return false;
    }
    return true;
}

static bool put_number(struct json_object *o, const char *key, double x)
{
    return put(o, key, json_object_new_double(x));
}

static struct json_object *rates_json(const struct plan_rates *r)
{
    struct json_object *o = json_object_new_object();
    const struct link_bounds *l = &r->card.link;

    if (o && put_number(o, "gpu_memory_bytes_s", r->card.machine.memory_bytes_s) &&
        put(o, "gpu_memory_from", json_object_new_string(r->gpu_from)) &&
        put_number(o, "link_bytes_s", l->link_bytes_s) &&
        put(o, "link_from", json_object_new_string(r->link_from)) &&
        put_number(o, "cpu_bytes_s", l->cpu_bytes_s) &&
        put(o, "cpu_from", json_object_new_string(r->host_from)) &&
        put_number(o, "link_shared_bytes_s", l->link_shared_bytes_s) &&
        put_number(o, "cpu_shared_bytes_s", l->cpu_shared_bytes_s) &&
        put_number(o, "flop_s", r->flop_s)) {
        return o;
    }
    json_object_put(o);
    return NULL;
}

static struct json_object *row_json(const struct plan_row *row, const struct plan_bounds *b)
{
    struct json_object *o = json_object_new_object();

    if (o && put(o, "kind", json_object_new_string(row->is_decode ? "decode" : "prefill")) &&
        put(o, "routing", json_object_new_string(row->is_local ? "local" : "uniform")) &&
        put(o, "tokens", json_object_new_uint64(row->is_decode ? 1 : row->n_tokens)) &&
        put(o, "depth", json_object_new_uint64(row->is_decode ? b->depth : 0)) &&
        put_number(o, "hits", row->hits) && put_number(o, "card_bytes", row->card_bytes) &&
        put_number(o, "miss_bytes", row->miss_bytes) &&
        put_number(o, "bound_tok_s", row->bound_tok_s) &&
        put_number(o, "in_turn_tok_s", row->in_turn_tok_s) &&
        put(o, "by", json_object_new_string(row->by))) {
        return o;
    }
    json_object_put(o);
    return NULL;
}

struct json_object *plan_bounds_json(const struct plan_bounds *b, const struct plan_rates *r)
{
    struct json_object *o = json_object_new_object(), *rows = json_object_new_array();
    bool ok = o && rows && put(o, "rates", rates_json(r));

    for (size_t i = 0; ok && i < b->n_rows; i++) {
        struct json_object *row = row_json(&b->rows[i], b);

        ok = row && json_object_array_add(rows, row) == 0;
    }
    if (ok && json_object_object_add(o, "rows", rows) == 0) {
        return o;
    }
    json_object_put(rows);
    json_object_put(o);
    return NULL;
}
