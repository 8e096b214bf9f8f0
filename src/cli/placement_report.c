/* placement_report.c - a placement as rows of the settings, as a table and as JSON. See placement.h. */
#include "cli/placement.h"

#include <stdio.h>

enum { TEXT_BYTES = 64 };

static double gib(size_t n_bytes)
{
    return (double)n_bytes / (double)(1 << 30);
}

static double per_cent(size_t n, size_t of)
{
    return of > 0 ? 100 * (double)n / (double)of : 0;
}

/* ---- asked and done ---- */

static void settings_limit(struct settings *s, const struct placement *p,
                           const struct model_flags *f)
{
    const struct budget_plan *b = &p->plan;
    const char *asked = f->cpu_offload_gb ? f->cpu_offload_gb : "";

    if (!b->overflows) {
        settings_add(s, "cpu-offload-gb", asked, "everything fits the card", "0 GiB");
        return;
    }
    settings_add(s, "cpu-offload-gb", asked,
                 p->asked.offload == BUDGET_OFFLOAD_MAX ? "no more is needed" : NULL,
                 "%.2f GiB of experts without a slot", gib(b->absent_bytes));
}

static void settings_groups(struct settings *s, const struct placement *p,
                            const struct model_flags *f)
{
    char asked[TEXT_BYTES];

    if (f->offload_group_size <= 0) {
        return;
    }
    snprintf(asked, sizeof asked, "%lld", (long long)f->offload_group_size);
    if (p->asked.has_limit) {
        settings_add(s, "offload-group-size", asked, "--cpu-offload-gb decides", "no effect");
        return;
    }
    settings_add(s, "offload-group-size", asked, NULL, "experts of %zu of %zu layers may overflow",
                 p->in.n_layers_overflow, p->in.n_layers);
    snprintf(asked, sizeof asked, "%lld", (long long)f->offload_num_in_group);
    settings_add(s, "offload-num-in-group", asked, NULL, "%zu", p->asked.in_group);
}

/* Where in the host. */
static void settings_host(struct settings *s, const struct placement *p,
                          const struct model_flags *f)
{
    bool is_asked = p->asked.host != BUDGET_HOST_AUTO;

    if (!p->plan.overflows) {
        if (is_asked) {
            settings_add(s, "offload-host", f->offload_host, "no experts overflow", "none");
        }
        return;
    }
    settings_add(s, "offload-host", f->offload_host,
                 p->plan.in_file && !is_asked ? "memory is too small" : NULL, "%s",
                 p->plan.in_file ? "file" : "memory");
    if (p->plan.in_file) {
        settings_add(s, "offload-folder", f->offload_folder, NULL, "%.100s", p->target.folder);
    }
}

static void settings_ways(struct settings *s, const struct placement *p,
                          const struct model_flags *f)
{
    const char *idle = p->plan.overflows ? NULL : "no experts overflow";
    const char *miss = f->expert_miss ? f->expert_miss : "auto";
    char asked[TEXT_BYTES];

    settings_add(s, "expert-miss", f->expert_miss, idle, "%s", idle ? "none" : miss);
    if (f->offload_prefetch_step >= 0) {
        snprintf(asked, sizeof asked, "%lld", (long long)f->offload_prefetch_step);
        settings_add(s, "offload-prefetch-step", asked,
                     idle                           ? idle
                     : f->offload_prefetch_step > 1 ? "predictions reach one layer ahead"
                                                    : NULL,
                     "%s",
                     idle                   ? "none"
                     : p->asked.no_prefetch ? "nothing is fetched ahead"
                                            : "predicted experts of the next layer");
    }
    if (f->offload_mode) {
        settings_add(s, "offload-mode", f->offload_mode, "there is host memory only", "cpu");
    }
}

void placement_settings(struct settings *s, const struct placement *p, const struct model_flags *f)
{
    const struct budget_plan *b = &p->plan;
    char asked[TEXT_BYTES] = "";

    if (f->mem_fraction_static > 0) {
        snprintf(asked, sizeof asked, "%g", f->mem_fraction_static);
    }
    settings_add(s, "mem-fraction-static", asked, "weights, slots, KV, states", "%.3f",
                 (double)b->static_bytes / (double)p->target.base_bytes);
    settings_limit(s, p, f);
    if (b->overflows) {
        settings_add(s, "gpu-expert-slots", f->gpu_expert_slots,
                     f->gpu_expert_slots ? NULL : "what there is room for", "%zu of %zu (%.1f%%)",
                     b->n_slots, b->n_overflowing, per_cent(b->n_slots, b->n_overflowing));
    } else if (f->gpu_expert_slots) {
        settings_add(s, "gpu-expert-slots", f->gpu_expert_slots, "no experts can overflow",
                     "no effect");
    }
    settings_groups(s, p, f);
    settings_host(s, p, f);
    settings_ways(s, p, f);
}

/* ---- the table ---- */

static void print_size(struct buf *out, size_t n_bytes)
{
    char text[TEXT_BYTES] = "-";

    if (n_bytes > 0) {
        snprintf(text, sizeof text, "%.3f GiB", gib(n_bytes));
    }
    buf_appendf(out, " %14s", text);
}

/* file: NULL where there is no such place. */
static void print_row(struct buf *out, const char *name, size_t here, size_t host,
                      const size_t *file)
{
    buf_appendf(out, "  %-20s", name);
    print_size(out, here);
    print_size(out, host);
    if (file) {
        print_size(out, *file);
    }
    buf_append_char(out, '\n');
}

static void print_rows(struct buf *out, const struct placement *p)
{
    const struct budget_plan *b = &p->plan;
    bool is_host = p->target.is_host;
    const size_t none = 0, *total = b->in_file ? &b->file_bytes : NULL;

    buf_appendf(out, "  %-20s %14s %14s", "", is_host ? "" : "card", "host");
    if (total) {
        buf_appendf(out, " %14s", "file");
    }
    buf_append_char(out, '\n');
    for (int c = 0; c < BUDGET_CLASS_COUNT; c++) {
        const size_t *file = total && c != BUDGET_EXPERTS ? &none : total;

        if (b->bytes[c] > 0 || b->host[c] > 0 || (file && *file > 0)) {
            print_row(out, budget_class_name((enum budget_class)c), is_host ? 0 : b->bytes[c],
                      is_host ? b->bytes[c] : b->host[c], file);
        }
    }
    print_row(out, "total", is_host ? 0 : b->total_bytes, is_host ? b->total_bytes : b->host_bytes,
              total);
}

bool placement_file_note(struct buf *out, const struct placement *p)
{
    const struct budget_plan *b = &p->plan;

    if (!b->in_file) {
        return false;
    }
    if (p->asked.host != BUDGET_HOST_FILE) {
        buf_appendf(out, "host memory: %.2f GiB would be needed, %.2f GiB are available; ",
                    gib(b->host_wanted), gib(p->target.host_bytes_max));
    }
    buf_appendf(out,
                "%.2f GiB of experts are in a file in '%s': the CPU computes those without a slot, "
                "and each of them that is not in memory is %.2f MB to be read from the disk",
                gib(b->file_bytes), p->target.folder, (double)p->in.block_bytes * 1e-6);
    return p->asked.host != BUDGET_HOST_FILE;
}

/* A file's line, as a part of the table. */
static void print_file(struct buf *out, const struct placement *p)
{
    const struct budget_plan *b = &p->plan;

    if (!b->in_file) {
        return;
    }
    buf_appendf(out, "  file in %s: %.2f GiB for experts", p->target.folder, gib(b->file_bytes));
    if (p->target.folder_bytes_max != SIZE_MAX) {
        buf_appendf(out, ", %.2f GiB are free", gib(p->target.folder_bytes_max));
    }
    buf_append_char(out, '\n');
}

static void print_experts(struct buf *out, const struct placement *p)
{
    const struct budget_plan *b = &p->plan;
    char each[TEXT_BYTES];

    snprintf(each, sizeof each, b->slots_least == b->slots_most ? "%zu" : "%zu or %zu",
             b->slots_least, b->slots_most);
    buf_appendf(out, "  experts: %zu of %zu have a slot (%.1f%%), %s of %zu in each of %zu layers",
                b->n_slots, b->n_overflowing, per_cent(b->n_slots, b->n_overflowing), each,
                p->in.n_experts, p->in.n_layers_overflow);
    if (p->in.n_layers > p->in.n_layers_overflow) {
        buf_appendf(out, "; %zu layers keep all theirs", p->in.n_layers - p->in.n_layers_overflow);
    }
    buf_appendf(out, "; %.2f GiB without; %zu blocks of %.2f MB of staging\n", gib(b->absent_bytes),
                b->n_staging, (double)p->in.block_bytes * 1e-6);
    buf_appendf(out, "  host memory: %.2f GiB for experts", gib(b->host[BUDGET_EXPERTS]));
    if (b->host[BUDGET_EMBEDDING] > 0) {
        buf_appendf(out, ", %.2f GiB for the embedding, whose rows are read over the link",
                    gib(b->host[BUDGET_EMBEDDING]));
    }
    buf_appendf(out, ", %.2f GiB while loading", gib(p->in.host_loading));
    if (p->target.host_bytes_max != SIZE_MAX) {
        buf_appendf(out, ", %.2f GiB are available", gib(p->target.host_bytes_max));
    }
    if (p->target.pin_bytes_max == SIZE_MAX) {
        buf_append_str(out, "; pinning is not limited\n");
    } else {
        buf_appendf(out,
                    "; pinning is limited to %.3f GiB%s (ulimit -l), which not all drivers "
                    "heed\n",
                    gib(p->target.pin_bytes_max),
                    p->target.pin_bytes_max < b->host_bytes ? ", less than that" : "");
    }
    print_file(out, p);
}

void placement_print(struct buf *out, const struct placement *p)
{
    const struct placement_target *t = &p->target;
    const struct budget_plan *b = &p->plan;

    if (!t->is_host) {
        buf_appendf(out, "  %s, %.2f GiB%s; %.2f GiB may be used\n", t->card.name,
                    gib(t->card.memory), t->is_assumed ? " assumed" : "", gib(t->base_bytes));
    }
    print_rows(out, p);
    if (!t->is_host) {
        buf_appendf(out, "  weights, slots, KV and states: %.3f GiB, %.3f of what may be used%s\n",
                    gib(b->static_bytes), (double)b->static_bytes / (double)t->base_bytes,
                    t->static_fraction > 0 ? " (--mem-fraction-static)" : "");
    }
    buf_appendf(out, "  %zu running requests, KV pool of %zu tokens", p->max_running,
                p->max_total_tokens);
    if (p->chunk_tokens > 0) {
        buf_appendf(out, ", prompts in chunks of %zu", p->chunk_tokens);
    }
    buf_append_char(out, '\n');
    if (b->overflows) {
        print_experts(out, p);
    }
}

/* ---- JSON ---- */

static bool put(struct json_object *o, const char *key, struct json_object *value)
{
    if (!value || json_object_object_add(o, key, value) != 0) {
        json_object_put(value);
        return false;
    }
    return true;
}

static bool put_size(struct json_object *o, const char *key, size_t n)
{
    return put(o, key, json_object_new_uint64(n));
}

/* "dense weights" -> "dense_weights" */
static void key_of(char out[TEXT_BYTES], const char *name)
{
    snprintf(out, TEXT_BYTES, "%s", name);
    for (char *c = out; *c; c++) {
        *c = *c == ' ' ? '_' : *c;
    }
}

static struct json_object *classes_json(const size_t n_bytes[BUDGET_CLASS_COUNT])
{
    struct json_object *o = json_object_new_object();
    char key[TEXT_BYTES];
    bool ok = o != NULL;

    for (int c = 0; ok && c < BUDGET_CLASS_COUNT; c++) {
        key_of(key, budget_class_name((enum budget_class)c));
        ok = put_size(o, key, n_bytes[c]);
    }
    if (!ok) {
        json_object_put(o);
        return NULL;
    }
    return o;
}

static struct json_object *experts_json(const struct placement *p)
{
    const struct budget_plan *b = &p->plan;
    struct json_object *o = json_object_new_object();

    if (o && put_size(o, "block_bytes", p->in.block_bytes) &&
        put_size(o, "layers", p->in.n_layers) && put_size(o, "per_layer", p->in.n_experts) &&
        put_size(o, "layers_overflowing", b->overflows ? p->in.n_layers_overflow : 0) &&
        put_size(o, "overflowing", b->n_overflowing) && put_size(o, "slots", b->n_slots) &&
        put_size(o, "staging_blocks", b->n_staging) &&
        put_size(o, "absent_bytes", b->absent_bytes) &&
        put_size(o, "host_bytes", b->host[BUDGET_EXPERTS])) {
        return o;
    }
    json_object_put(o);
    return NULL;
}

struct json_object *placement_json(const struct placement *p)
{
    const struct placement_target *t = &p->target;
    struct json_object *o = json_object_new_object();

    if (o && put(o, "device", json_object_new_string(t->is_host ? "cpu" : "cuda")) &&
        put(o, "card",
            t->is_host ? json_object_new_string("") : json_object_new_string(t->card.name)) &&
        put(o, "assumed", json_object_new_boolean(t->is_assumed)) &&
        put_size(o, "memory_bytes", t->base_bytes) &&
        put_size(o, "planned_bytes", p->plan.total_bytes) &&
        put_size(o, "static_bytes", p->plan.static_bytes) &&
        put_size(o, "max_running_requests", p->max_running) &&
        put_size(o, "max_total_tokens", p->max_total_tokens) &&
        put(o, "bytes", classes_json(p->plan.bytes)) &&
        put(o, "host_bytes", classes_json(p->plan.host)) &&
        put_size(o, "host_loading_bytes", p->plan.overflows ? p->in.host_loading : 0) &&
        put_size(o, "file_bytes", p->plan.file_bytes) &&
        put(o, "file_folder", json_object_new_string(p->plan.in_file ? p->target.folder : "")) &&
        put(o, "experts", experts_json(p))) {
        return o;
    }
    json_object_put(o);
    return NULL;
}
