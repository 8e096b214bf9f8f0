/* bench_sweep_report.c - a sweep as a table and as JSON. See bench_sweep.h. */
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "cli/bench_report.h"
#include "cli/bench_sweep.h"

static const double GIB = 1073741824.0;

/* Of all experts, those with a slot. */
static double resident_share(const struct bench_result *r)
{
    const struct offload_stats *o = &r->offload;

    return r->overflows ? (double)o->n_slots / (double)(o->n_layers * o->n_experts) : 1;
}

/* Of the experts that small steps asked for; NaN: there were none. */
static double hit_rate(const struct bench_misses *m)
{
    return m->hits / (m->hits + m->fetched + m->cpu);
}

static double over_link(const struct bench_misses *m)
{
    return m->fetched + m->ahead + m->streamed;
}

/* ---- table ---- */

static void print_number(FILE *out, int width, int digits, double v)
{
    if (isfinite(v)) {
        fprintf(out, " %*.*f", width, digits, v);
    } else {
        fprintf(out, " %*s", width, "-");
    }
}

static void print_bound(FILE *out, double tok_s, double bound_tok_s)
{
    print_number(out, 9, 1, bound_tok_s);
    print_number(out, 7, 1, 100 * tok_s / bound_tok_s);
}

static void print_row(FILE *out, const struct bench_row *row)
{
    const struct bench_misses *m = &row->misses;
    double block_mb = (double)m->block_bytes * 1e-6;
    char label[64];

    bench_row_label(label, sizeof label, row);
    fprintf(out, " %-22s", label);
    print_number(out, 9, 1, row->tok_s.median);
    print_number(out, 6, 1, m->overflows ? 100 * hit_rate(m) : NAN);
    print_number(out, 7, 1, m->overflows ? m->fetched : NAN);
    print_number(out, 7, 1, m->overflows ? m->cpu : NAN);
    print_number(out, 7, 1, m->overflows ? m->ahead : NAN);
    print_number(out, 6, 1, m->ahead > 0 ? 100 * m->ahead_used / m->ahead : NAN);
    print_number(out, 8, 2, m->overflows ? over_link(m) * block_mb : NAN);
    print_number(out, 8, 2, m->overflows ? m->cpu * block_mb : NAN);
    print_bound(out, row->tok_s.median, row->bound_tok_s);
    print_bound(out, row->tok_s.median, m->overflows ? 1 / row->overflow.in_turn_s : NAN);
    fprintf(out, "\n");
}

static void print_recovery(FILE *out, const char *head, const struct bench_recovery *r)
{
    char steps[32];

    if (r->n_prompt == 0) {
        return;
    }
    snprintf(steps, sizeof steps, r->n_steps < RECOVERY_STEPS ? "%zu" : "more than %zu",
             r->n_steps);
    fprintf(out,
            "%s recovery: hits %.1f %% before a prompt of %zu, %.1f in the %d steps after it, %.1f "
            "at the end of %d; recovered after %s steps\n",
            head, 100 * r->before, r->n_prompt, 100 * r->after_first, RECOVERY_WINDOW,
            100 * r->after_last, RECOVERY_STEPS, steps);
}

static void print_point(FILE *out, const struct sweep_point *p)
{
    const struct bench_result *r = &p->result;
    char head[96];

    snprintf(head, sizeof head, "%-5s %6.1f %6.2f %-4s %-7s", p->way ? p->way->name : "",
             p->budget_gb, (double)p->used_bytes / GIB, p->dense, p->routing);
    if (p->refused[0]) {
        fprintf(out, "%-5s %6.1f %6s %-4s %-7s refused: %s\n", p->way ? p->way->name : "",
                p->budget_gb, "-", p->dense, p->routing, p->refused);
        return;
    }
    for (size_t i = 0; i < r->n_rows; i++) {
        fprintf(out, "%s", head);
        if (r->overflows) {
            fprintf(out, " %6zu", r->offload.n_slots);
        } else {
            fprintf(out, " %6s", "-");
        }
        fprintf(out, " %6.1f", 100 * resident_share(r));
        print_row(out, &r->rows[i]);
    }
    print_recovery(out, head, &r->recovery);
}

void sweep_table(FILE *out, const struct sweep *s)
{
    const struct link_bounds *l = &s->card.link;

    fprintf(out, "model    %s\n", s->flags->model_path);
    fprintf(out, "machine  %s; %s\n", s->card_name, s->cpu_name);
    fprintf(out,
            "bounds   card memory %.0f GB/s; link %.1f GB/s alone, %.1f while the CPU reads; CPU "
            "%.1f GB/s alone, %.1f during copies\n\n",
            s->card.machine.memory_bytes_s * 1e-9, l->link_bytes_s * 1e-9,
            l->link_shared_bytes_s * 1e-9, l->cpu_bytes_s * 1e-9, l->cpu_shared_bytes_s * 1e-9);
    fprintf(
        out,
        "%-5s %6s %6s %-4s %-7s %6s %6s %-22s %9s %6s %7s %7s %7s %6s %8s %8s %9s %7s %9s %7s\n",
        s->plan->n_ways > 0 ? "way" : "", "GiB", "used", "", "routing", "slots", "res. %", "",
        "tok/s", "hit %", "fetched", "cpu", "ahead", "used %", "link MB", "CPU MB", "bound", "%",
        "in turn", "%");
    for (size_t i = 0; i < s->n_points; i++) {
        print_point(out, &s->points[i]);
    }
    fprintf(out,
            "\nmedian of %zu runs after one untimed; experts and MB per token; ahead: fetched "
            "before they were chosen, and how many of them were chosen\nbound: the card and the "
            "engines that serve misses, all at the same time; in turn: the misses while the card "
            "waits (none was foreseen)\n",
            s->bench->repeat);
    if (s->plan->n_ways > 0) {
        fprintf(out, "ways: cache: all misses fetched; cpu: all computed by the CPU; split: as "
                     "measured times say; ahead: and the next layer's fetched ahead; turns: as "
                     "ahead, but large steps copy and compute in turns\n");
    }
}

/* ---- JSON ---- */

static void put_key(struct buf *out, const char *key)
{
    if (out->len > 0 && out->data[out->len - 1] != '{') {
        buf_append_char(out, ',');
    }
    json_write_string(out, key, strlen(key));
    buf_append_char(out, ':');
}

static void put_text(struct buf *out, const char *key, const char *v)
{
    put_key(out, key);
    json_write_string(out, v, strlen(v));
}

static void put_number(struct buf *out, const char *key, double v)
{
    put_key(out, key);
    if (isfinite(v)) {
        buf_appendf(out, "%.9g", v);
    } else {
        buf_append_str(out, "null");
    }
}

static void put_row(struct buf *out, const struct bench_row *row)
{
    const struct bench_misses *m = &row->misses;

    buf_append_char(out, '{');
    put_text(out, "kind", row->kind == BENCH_PREFILL ? "prefill" : "decode");
    put_number(out, "tokens", (double)row->n_tokens);
    put_number(out, "batch", (double)row->n_seqs);
    put_number(out, "depth", (double)row->depth);
    put_number(out, "tok_s", row->tok_s.median);
    put_number(out, "least", row->tok_s.least);
    put_number(out, "most", row->tok_s.most);
    put_number(out, "bound_tok_s", row->bound_tok_s);
    put_number(out, "reached", row->tok_s.median / row->bound_tok_s);
    if (m->overflows) {
        put_text(out, "bound_by", row->overflow.by);
        put_number(out, "in_turn_tok_s", 1 / row->overflow.in_turn_s);
        put_number(out, "hit_rate", hit_rate(m));
        put_number(out, "hits_per_token", m->hits);
        put_number(out, "fetched_per_token", m->fetched);
        put_number(out, "cpu_per_token", m->cpu);
        put_number(out, "ahead_per_token", m->ahead);
        put_number(out, "ahead_used_per_token", m->ahead_used);
        put_number(out, "streamed_per_token", m->streamed);
        put_number(out, "link_bytes_per_token", over_link(m) * (double)m->block_bytes);
        put_number(out, "cpu_bytes_per_token", m->cpu * (double)m->block_bytes);
        put_number(out, "cpu_s_per_token", m->cpu_s);
        put_number(out, "cpu_wait_s_per_token", m->cpu_wait_s);
    }
    put_number(out, "bytes_per_token", op_cost_bytes(&row->cost));
    buf_append_char(out, '}');
}

static void put_recovery(struct buf *out, const struct bench_recovery *r)
{
    put_key(out, "recovery");
    buf_append_char(out, '{');
    put_number(out, "prompt", (double)r->n_prompt);
    put_number(out, "hit_rate_before", r->before);
    put_number(out, "steps", r->n_steps < RECOVERY_STEPS ? (double)r->n_steps : NAN);
    put_key(out, "hit_rates");
    for (size_t i = 0; i < RECOVERY_STEPS; i++) {
        buf_appendf(out, "%s%.4f", i ? "," : "[", isnan(r->hits[i]) ? r->before : r->hits[i]);
    }
    buf_append_str(out, "]}");
}

static void put_point(struct buf *out, const struct sweep_point *p)
{
    const struct bench_result *r = &p->result;

    buf_append_char(out, '{');
    put_number(out, "budget_gb", p->budget_gb);
    if (p->way) {
        put_text(out, "way", p->way->name);
    }
    put_text(out, "dense_quant", p->dense);
    put_text(out, "routing", p->routing);
    if (p->refused[0]) {
        put_text(out, "refused", p->refused);
    } else {
        put_number(out, "load_s", p->load_s);
        put_number(out, "used_bytes", (double)p->used_bytes);
        put_number(out, "slots", r->overflows ? (double)r->offload.n_slots : NAN);
        put_number(out, "staging", r->overflows ? (double)r->offload.n_staging : NAN);
        put_number(out, "block_bytes", r->overflows ? (double)r->offload.block_bytes : NAN);
        put_number(out, "resident", resident_share(r));
    }
    if (r->recovery.n_prompt > 0) {
        put_recovery(out, &r->recovery);
    }
    put_key(out, "cases");
    buf_append_char(out, '[');
    for (size_t i = 0; i < r->n_rows; i++) {
        buf_append_str(out, i ? "," : "");
        put_row(out, &r->rows[i]);
    }
    buf_append_str(out, "]}");
}

enum status sweep_json(struct buf *out, const struct sweep *s, struct error *err)
{
    const struct link_bounds *l = &s->card.link;

    buf_append_char(out, '{');
    put_text(out, "version", SPILLWAY_VERSION);
    put_text(out, "model", s->flags->model_path);
    put_text(out, "card", s->card_name);
    put_text(out, "cpu", s->cpu_name);
    put_text(out, "expert_miss", s->flags->expert_miss);
    put_number(out, "repeat", (double)s->bench->repeat);
    put_number(out, "decode_tokens", (double)s->bench->decode_tokens);
    put_number(out, "card_bytes_s", s->card.machine.memory_bytes_s);
    put_number(out, "link_bytes_s", l->link_bytes_s);
    put_number(out, "cpu_bytes_s", l->cpu_bytes_s);
    put_number(out, "link_shared_bytes_s", l->link_shared_bytes_s);
    put_number(out, "cpu_shared_bytes_s", l->cpu_shared_bytes_s);
    put_key(out, "points");
    buf_append_char(out, '[');
    for (size_t i = 0; i < s->n_points; i++) {
        buf_append_str(out, i ? ",\n" : "\n");
        put_point(out, &s->points[i]);
    }
    buf_append_str(out, "]}\n");
    return buf_ok(out) ? OK : error_set(err, ERR_NO_MEMORY, "cannot allocate the report");
}
