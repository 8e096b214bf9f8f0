/* bench_report.c - the table and the JSON. See bench_report.h; the picture is bench_plot.c. */
#include "cli/bench_report.h"

#include <json-c/json.h>
#include <math.h>

#include "base/json.h"

void bench_row_label(char *out, size_t n, const struct bench_row *row)
{
    if (row->kind == BENCH_PREFILL) {
        snprintf(out, n, "prefill %zu", row->n_tokens);
    } else {
        snprintf(out, n, "decode %zu x, depth %zu", row->n_seqs, row->depth);
    }
}

const char *bench_bound_name(const struct bench_result *r, const struct bench_row *row)
{
    if (row->misses.overflows) {
        return row->overflow.by;
    }
    return !row->is_bound_by_memory ? "arithmetic" : r->is_cached ? "cache" : "memory";
}

/* ---- table ---- */

static void print_machine(FILE *out, const struct bench_report *r)
{
    const struct bench_result *result = r->result;

    for (size_t i = 0; i < result->n_bounds; i++) {
        const struct machine_bounds *m = &result->bounds[i].machine;

        fprintf(out, "bounds   ");
        if (!r->card) {
            fprintf(out, "%zu thread%s: ", result->bounds[i].n_threads,
                    result->bounds[i].n_threads == 1 ? "" : "s");
        }
        fprintf(out, "memory %.1f GB/s", m->memory_bytes_s * 1e-9);
        if (m->cached_bytes_s > 0) {
            fprintf(out, ", cache %.1f GB/s", m->cached_bytes_s * 1e-9);
        }
        if (m->f32_flop_s > 0) {
            fprintf(out, ", float32 %.0f GFLOP/s, int8 %.0f GOP/s", m->f32_flop_s * 1e-9,
                    m->int8_op_s * 1e-9);
        }
        fprintf(out, "\n");
    }
    if (result->is_probe_small) {
        fprintf(out, "         too little memory is free to measure it well behind the cache\n");
    }
    if (result->is_cached) {
        fprintf(out,
                "         the weights (%.1f MB) fit the last-level cache (%.0f MB): its speed is "
                "their bound\n",
                (double)result->working_bytes * 1e-6, (double)result->cache_bytes * 1e-6);
    }
}

static void print_row(FILE *out, const struct bench_report *r, const struct bench_row *row)
{
    char label[64];

    bench_row_label(label, sizeof label, row);
    fprintf(out, "%-24s %3zu %10.2f %10.2f %10.2f %9.3f %9.4f %10.2f %-10s %6.1f %%\n", label,
            row->n_threads, row->tok_s.median, row->tok_s.least, row->tok_s.most,
            op_cost_bytes(&row->cost) * 1e-6, row->cost.flop * 1e-9, row->bound_tok_s,
            bench_bound_name(r->result, row), 100 * row->tok_s.median / row->bound_tok_s);
}

static void print_classes(FILE *out, const struct bench_row *row)
{
    char label[64];

    bench_row_label(label, sizeof label, row);
    fprintf(out, "%-24s", label);
    for (int i = 0; i < COST_CLASS_COUNT; i++) {
        fprintf(out, " %14.3f", row->cost.bytes[i] * 1e-6);
    }
    fprintf(out, " %10.1f\n", row->n_touched);
}

/* Once per case: these numbers do not depend on the threads. */
static void print_bytes(FILE *out, const struct bench_result *result)
{
    fprintf(out, "\n%-24s", "MB per token");
    for (int i = 0; i < COST_CLASS_COUNT; i++) {
        fprintf(out, " %14s", cost_class_name((enum cost_class)i));
    }
    fprintf(out, " %10s\n", "experts");
    for (size_t i = 0; i < result->n_rows; i++) {
        if (result->rows[i].n_threads == result->rows[0].n_threads) {
            print_classes(out, &result->rows[i]);
        }
    }
}

static void print_misses(FILE *out, const struct bench_result *result)
{
    const struct offload_stats *o = &result->offload;

    fprintf(out, "\n%zu experts of %.2f MB have a slot, %.1f %% of all\n", o->n_slots,
            (double)o->block_bytes * 1e-6,
            100 * (double)o->n_slots / (double)(o->n_layers * o->n_experts));
    fprintf(out, "%-24s %10s %10s %10s %10s %10s %10s\n", "experts per token", "hits", "fetched",
            "CPU", "ahead", "streamed", "in turn");
    for (size_t i = 0; i < result->n_rows; i++) {
        const struct bench_row *row = &result->rows[i];
        const struct bench_misses *m = &row->misses;
        char label[64];

        bench_row_label(label, sizeof label, row);
        fprintf(out, "%-24s %10.2f %10.2f %10.2f %10.2f %10.2f %10.2f\n", label, m->hits,
                m->fetched, m->cpu, m->ahead, m->streamed, 1 / row->overflow.in_turn_s);
    }
}

void bench_report_table(FILE *out, const struct bench_report *r)
{
    const struct bench_plan *p = r->plan;

    fprintf(out, "model    %s, %.1f MB of weights\n", r->model_path,
            (double)r->weight_bytes * 1e-6);
    fprintf(out, "types    %s activations, quantised matrices read %s, dense quantisation %s\n",
            r->dtype, r->activations, r->dense_quant);
    if (r->card) {
        fprintf(out, "card     %s\n", r->card);
    } else {
        fprintf(out, "machine  %s (%s), kernels %s\n", r->cpu, r->features, r->isa);
    }
    fprintf(out, "load     %.2f s (%.2f GB/s of files)\n", r->load_s,
            (double)r->checkpoint_bytes / r->load_s * 1e-9);
    if (r->load_average >= 0) {
        fprintf(out, "before   load average %.2f%s\n", r->load_average,
                r->load_average > 0.5 ? ": other work disturbs the numbers" : "");
    }
    print_machine(out, r);
    fprintf(out, "\n%-24s %3s %10s %10s %10s %9s %9s %10s %-10s %8s\n", "", "thr", "tok/s", "least",
            "most", "MB/tok", "GFLOP/tok", "bound", "by", "reached");
    for (size_t i = 0; i < r->result->n_rows; i++) {
        print_row(out, r, &r->result->rows[i]);
    }
    print_bytes(out, r->result);
    if (r->result->overflows) {
        print_misses(out, r->result);
    }
    fprintf(out,
            "\nmedian of %zu runs after one untimed; routing: %s; %zu tokens per sequence in "
            "decode; tok/s over all sequences\nMB: the least that must move; experts: distinct "
            "ones touched per layer and step\n",
            p->repeat, r->routing, p->decode_tokens);
}

/* ---- JSON ---- */

/* Out of memory shows as a NULL object, which json-c adds as null; so it is remembered. */
struct json_out {
    bool failed;
};

static void put(struct json_out *j, struct json_object *o, const char *key, struct json_object *v)
{
    if (!o || !v || json_object_object_add(o, key, v) != 0) {
        json_object_put(v);
        j->failed = true;
    }
}

static void put_number(struct json_out *j, struct json_object *o, const char *key, double v)
{
    if (isfinite(v)) {
        put(j, o, key, json_object_new_double(v));
    } else if (json_object_object_add(o, key, NULL) != 0) {
        j->failed = true;
    }
}

static void put_size(struct json_out *j, struct json_object *o, const char *key, size_t v)
{
    put(j, o, key, json_object_new_int64((int64_t)v));
}

static void put_text(struct json_out *j, struct json_object *o, const char *key, const char *v)
{
    put(j, o, key, json_object_new_string(v));
}

static void put_bounds(struct json_out *j, struct json_object *root, const struct bench_result *r)
{
    struct json_object *list = json_object_new_array();

    for (size_t i = 0; i < r->n_bounds && list; i++) {
        const struct machine_bounds *m = &r->bounds[i].machine;
        struct json_object *o = json_object_new_object();

        put_size(j, o, "threads", r->bounds[i].n_threads);
        put_number(j, o, "memory_gb_s", m->memory_bytes_s * 1e-9);
        put_number(j, o, "cache_gb_s", m->cached_bytes_s > 0 ? m->cached_bytes_s * 1e-9 : NAN);
        put_number(j, o, "f32_gflop_s", m->f32_flop_s * 1e-9);
        put_number(j, o, "int8_gop_s", m->int8_op_s * 1e-9);
        if (json_object_array_add(list, o) != 0) {
            json_object_put(o);
            j->failed = true;
        }
    }
    put(j, root, "bounds", list);
}

static struct json_object *row_json(struct json_out *j, const struct bench_result *r,
                                    const struct bench_row *row)
{
    static const char *const class_keys[COST_CLASS_COUNT] = {"dense", "experts", "kv", "states"};
    struct json_object *o = json_object_new_object(), *bytes = json_object_new_object();

    put_text(j, o, "kind", row->kind == BENCH_PREFILL ? "prefill" : "decode");
    put_size(j, o, "threads", row->n_threads);
    put_size(j, o, "tokens", row->n_tokens);
    put_size(j, o, "batch", row->n_seqs);
    put_size(j, o, "depth", row->depth);
    put_number(j, o, "tok_s", row->tok_s.median);
    put_number(j, o, "least", row->tok_s.least);
    put_number(j, o, "low_quartile", row->tok_s.low);
    put_number(j, o, "high_quartile", row->tok_s.high);
    put_number(j, o, "most", row->tok_s.most);
    put_number(j, o, "bytes_per_token", op_cost_bytes(&row->cost));
    for (int i = 0; i < COST_CLASS_COUNT; i++) {
        put_number(j, bytes, class_keys[i], row->cost.bytes[i]);
    }
    put(j, o, "bytes_by_class", bytes);
    put_number(j, o, "flop_per_token", row->cost.flop);
    put_number(j, o, "flop_quantised_per_token", row->cost.flop_quantised);
    put_number(j, o, "experts_touched", row->n_touched);
    if (row->misses.overflows) {
        put_number(j, o, "hits_per_token", row->misses.hits);
        put_number(j, o, "fetched_per_token", row->misses.fetched);
        put_number(j, o, "cpu_per_token", row->misses.cpu);
        put_number(j, o, "ahead_per_token", row->misses.ahead);
        put_number(j, o, "ahead_used_per_token", row->misses.ahead_used);
        put_number(j, o, "streamed_per_token", row->misses.streamed);
        put_number(j, o, "in_turn_tok_s", 1 / row->overflow.in_turn_s);
    }
    put_number(j, o, "bound_tok_s", row->bound_tok_s);
    put_text(j, o, "bound_by", bench_bound_name(r, row));
    put_number(j, o, "reached", row->tok_s.median / row->bound_tok_s);
    return o;
}

static void put_rows(struct json_out *j, struct json_object *root, const struct bench_result *r)
{
    struct json_object *list = json_object_new_array();

    for (size_t i = 0; i < r->n_rows && list; i++) {
        struct json_object *o = row_json(j, r, &r->rows[i]);

        if (json_object_array_add(list, o) != 0) {
            json_object_put(o);
            j->failed = true;
        }
    }
    put(j, root, "cases", list);
}

static void put_profile(struct json_out *j, struct json_object *root, const struct op_profile *p)
{
    struct json_object *list = json_object_new_array();

    for (size_t i = 0; i < p->n_rows && list; i++) {
        struct json_object *o = json_object_new_object();

        put_text(j, o, "operation", p->rows[i].name);
        put_text(j, o, "kind", op_kind_name(p->rows[i].kind));
        put_number(j, o, "us_per_step",
                   (double)p->rows[i].ns * 1e-3 / (double)(p->n_steps ? p->n_steps : 1));
        put_number(j, o, "share", (double)p->rows[i].ns / (double)p->step_ns);
        put_number(j, o, "gb_s", p->rows[i].bytes / (double)p->rows[i].ns);
        if (json_object_array_add(list, o) != 0) {
            json_object_put(o);
            j->failed = true;
        }
    }
    put(j, root, "profile", list);
}

enum status bench_report_json(struct buf *out, const struct bench_report *r, struct error *err)
{
    struct json_object *root = json_object_new_object();
    struct json_out j = {0};

    put_text(&j, root, "version", SPILLWAY_VERSION);
    put_text(&j, root, "model", r->model_path);
    put_text(&j, root, "cpu", r->cpu);
    put_text(&j, root, "features", r->features);
    put_text(&j, root, "isa", r->isa);
    if (r->card) {
        put_text(&j, root, "card", r->card);
    }
    put_text(&j, root, "dtype", r->dtype);
    put_text(&j, root, "cpu_activations", r->activations);
    put_text(&j, root, "dense_quant", r->dense_quant);
    put_text(&j, root, "routing", r->routing);
    put_size(&j, root, "weight_bytes", r->weight_bytes);
    put_size(&j, root, "checkpoint_bytes", r->checkpoint_bytes);
    put_size(&j, root, "cache_bytes", r->result->cache_bytes);
    put_number(&j, root, "load_s", r->load_s);
    put_number(&j, root, "load_gb_s", (double)r->checkpoint_bytes / r->load_s * 1e-9);
    put_number(&j, root, "load_average_before", r->load_average >= 0 ? r->load_average : NAN);
    put_size(&j, root, "repeat", r->plan->repeat);
    put_size(&j, root, "chunk_tokens", r->plan->chunk_tokens);
    put_bounds(&j, root, r->result);
    put_rows(&j, root, r->result);
    if (r->plan->profile) {
        put_profile(&j, root, r->plan->profile);
    }
    if (!j.failed) {
        json_write(out, root);
        buf_append_char(out, '\n');
    }
    json_object_put(root);
    return !j.failed && buf_ok(out) ? OK
                                    : error_set(err, ERR_NO_MEMORY, "cannot allocate the report");
}
