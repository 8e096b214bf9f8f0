/* cmd_plan.c - `spillway plan`: what goes where, and how fast it can be at best, without loading anything.
 *
 * Place: cli. The same table as at the start of a server, from names, types and shapes alone. A card that is
 *        not here is described by --gpu-memory-gb; rates that cannot be measured are given or assumed, and
 *        the print-out says which. */
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "cli/command.h"
#include "cli/compat_flags.h"
#include "cli/device_setup.h"
#include "cli/memory_check.h"
#include "cli/model_resolve.h"
#include "cli/model_setup.h"
#include "cli/placement.h"
#include "cli/plan_bounds.h"

struct plan_flags {
    double gpu_bandwidth, link_bandwidth, host_bandwidth, gpu_tflops;
    size_t depth;
    bool as_json, no_measure;
};

#define AT(member) .offset = FLAG_OFFSET(struct plan_flags, member)

static const struct flag plan_flag_table[] = {
    {.name = "json", .kind = FLAG_BOOL, AT(as_json), .help = "print one JSON object"},
    {.name = "depth",
     .kind = FLAG_SIZE,
     AT(depth),
     .metavar = "TOKENS",
     .min = 0,
     .max = 1 << 28,
     .help = "tokens before the generated one, for the bound of generation; default 1024"},
    {.name = "gpu-bandwidth",
     .kind = FLAG_DOUBLE,
     AT(gpu_bandwidth),
     .metavar = "GB/S",
     .min = 1,
     .max = 1e6,
     .help = "of the card's memory; by default measured, or assumed where there is no card"},
    {.name = "link-bandwidth",
     .kind = FLAG_DOUBLE,
     AT(link_bandwidth),
     .metavar = "GB/S",
     .min = 0.1,
     .max = 1e6,
     .help = "of copies from host memory to the card"},
    {.name = "host-bandwidth",
     .kind = FLAG_DOUBLE,
     AT(host_bandwidth),
     .metavar = "GB/S",
     .min = 0.1,
     .max = 1e6,
     .help = "of the CPU's reads of host memory"},
    {.name = "gpu-tflops",
     .kind = FLAG_DOUBLE,
     AT(gpu_tflops),
     .metavar = "TFLOP/S",
     .min = 0.1,
     .max = 1e6,
     .help = "arithmetic of the card; by default it is left out of the bounds"},
    {.name = "no-measure",
     .kind = FLAG_BOOL,
     AT(no_measure),
     .help = "measure nothing on this machine: given and assumed rates only"},
};

struct planning {
    struct model_flags model;
    struct plan_flags flags;
    struct model_setup setup;
    struct placement_target target;
    struct plan_rates rates;
    struct plan_bounds bounds;
};

static bool is_named(const char *device, const char *name)
{
    return device && strcmp(device, name) == 0;
}

/* The card here; else one that the flags describe; else the CPU. */
static enum status find_target(struct planning *p, struct error *err)
{
    const struct model_flags *f = &p->model;
    struct model_flags ask = *f;
    struct backend *card = NULL;
    struct settings unseen = {0};
    enum status rc = OK;

    ask.device = is_named(f->device, "cpu") ? "cpu" : "auto";
    rc = device_open(&card, &ask, &unseen, err);
    if (rc != OK) {
        return rc;
    }
    if (card) {
        p->target = device_target(card, f);
        card->ops->free(card);
        return OK;
    }
    if (!is_named(f->device, "cpu") && f->gpu_memory_gb > 0) {
        p->target = placement_target_assumed((size_t)(f->gpu_memory_gb * 1073741824.0));
        p->target.static_fraction = f->mem_fraction_static;
        p->target.no_graphs = f->disable_cuda_graph;
        p->target.host_bytes_max = p->target.pin_bytes_max = SIZE_MAX; /* not of this machine */
        p->target.folder = f->offload_folder;
        p->target.folder_bytes_max = SIZE_MAX;
        return OK;
    }
    if (is_named(f->device, "cuda")) {
        return error_set_param(err, ERR_USAGE, "gpu-memory-gb",
                               "there is no card here: --gpu-memory-gb says how large one to plan "
                               "for");
    }
    placement_target_host(&p->target, NULL);
    p->target.is_host = true;
    p->target.base_bytes = p->target.host_bytes_max;
    return OK;
}

static enum status measure_host(struct planning *p, struct error *err)
{
    const struct cpu_backend_options o = {.n_threads = p->model.threads};
    struct machine_bounds bounds;
    struct machine_probe probe;
    struct backend *cpu = NULL;
    enum status rc = cpu_backend_new(&cpu, &o, err);

    if (rc != OK) {
        return rc;
    }
    rc = machine_probe_open(&probe, p->target.host_bytes_max / 2, cpu_backend_pool(cpu), err);
    if (rc == OK) {
        machine_bounds_measure(&bounds, &probe, cpu_backend_isa(cpu), 0, cpu_backend_pool(cpu));
        p->rates.card.link.cpu_bytes_s = bounds.memory_bytes_s;
        p->rates.host_from = "measured";
    }
    machine_probe_close(&probe);
    cpu->ops->free(cpu);
    return rc;
}

static enum status find_rates(struct planning *p, struct error *err)
{
    const struct plan_flags *f = &p->flags;
    struct bench_card measured;
    bool is_there = false;
    enum status rc = OK;

    p->rates = plan_rates_assumed();
    if (!f->no_measure && p->target.is_host) {
        rc = measure_host(p, err);
    } else if (!f->no_measure && !p->target.is_assumed) {
        rc = bench_card_measure(&measured, &is_there, &p->model, p->target.host_bytes_max / 2, err);
    }
    if (rc == OK && is_there) {
        p->rates.card = measured;
        p->rates.gpu_from = p->rates.link_from = p->rates.host_from = "measured";
    }
    plan_rates_give(&p->rates, f->gpu_bandwidth, f->link_bandwidth, f->host_bandwidth,
                    f->gpu_tflops);
    return rc;
}

static enum status print_json(struct planning *p, struct buf *out, struct error *err)
{
    struct json_object *o = placement_json(p->setup.placement);
    struct json_object *bounds = plan_bounds_json(&p->bounds, &p->rates);
    struct json_object *settings = settings_json(&p->setup.settings);
    enum status rc = OK;

    if (!o || !bounds || !settings || json_object_object_add(o, "bounds", bounds) != 0) {
        json_object_put(bounds);
        json_object_put(settings);
        json_object_put(o);
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the report");
    }
    if (json_object_object_add(o, "settings", settings) != 0) {
        json_object_put(settings);
        rc = error_set(err, ERR_NO_MEMORY, "cannot allocate the report");
    }
    buf_append_str(out, json_object_to_json_string_ext(o, JSON_C_TO_STRING_PRETTY));
    buf_append_char(out, '\n');
    json_object_put(o);
    return rc;
}

/* of_nothing: the placement does not fit; the table shows what is too much. */
static enum status print_report(struct planning *p, bool of_nothing, struct error *err)
{
    struct buf out;
    enum status rc = OK;

    buf_init(&out);
    if (p->flags.as_json) {
        rc = print_json(p, &out, err);
    } else {
        buf_append_str(&out, of_nothing ? "does not fit\n" : "placement\n");
        placement_print(&out, p->setup.placement);
    }
    if (!p->flags.as_json && !of_nothing) {
        plan_bounds_print(&out, &p->bounds, p->setup.placement, &p->rates);
    }
    if (rc == OK && !buf_ok(&out)) {
        rc = error_set(err, ERR_NO_MEMORY, "cannot allocate the report");
    }
    if (rc == OK && (fwrite(out.data, 1, out.len, stdout) != out.len || fflush(stdout) != 0)) {
        rc = error_set(err, ERR_IO, "cannot write the report");
    }
    buf_release(&out);
    return rc;
}

static void print_note(const struct placement *p, const struct log *log)
{
    struct buf text;
    bool is_warning;

    buf_init(&text);
    is_warning = placement_file_note(&text, p);
    if (text.len > 0) {
        log_line(log, is_warning ? LOG_WARNING : LOG_INFO, "%s", buf_cstr(&text));
    }
    buf_release(&text);
}

static enum status plan(struct planning *p, const struct log *log, struct error *err)
{
    const struct model_setup_options o = {.quiet = false};
    struct model_config config = {0};
    struct model_resolved r;
    enum status rc = model_setup_describe(&p->setup, &config, &p->model, log, err);

    if (rc == OK) {
        rc = find_target(p, err);
    }
    if (rc == OK) {
        rc = model_setup_decide(&p->setup, &r, &p->model, &o, &config, &p->target, err);
    }
    if (rc == OK) {
        settings_print(&p->setup.settings, log, false);
        print_note(p->setup.placement, log);
        rc = find_rates(p, err);
    }
    if (rc == OK) {
        plan_bounds_make(&p->bounds, p->setup.placement, &p->rates, p->flags.depth);
        rc = print_report(p, false, err);
    } else if (rc == ERR_NO_MEMORY && !p->flags.as_json && p->setup.placement &&
               p->setup.placement->plan.total_bytes > 0) {
        (void)print_report(p, true, NULL);
    }
    model_config_release(&config);
    return rc;
}

static int run(int argc, char **argv, struct log *log)
{
    struct planning p = {.flags = {.depth = 1024}};
    struct flag_result parsed = {0};
    struct error err = {0};
    const struct flag_group groups[] = {
        {"Plan", plan_flag_table, sizeof plan_flag_table / sizeof plan_flag_table[0], &p.flags},
        {"Model", model_flag_table, model_flag_count, &p.model},
        compat_groups[0],
        compat_groups[1],
    };
    enum status rc;

    model_flags_defaults(&p.model);
    rc = flags_parse(&parsed, &command_plan, groups, sizeof groups / sizeof groups[0], 1, argc,
                     argv, NULL, &err);
    if (rc == OK && !parsed.help) {
        if (parsed.n_positional > 0) {
            p.model.model_path = parsed.positional[0];
        }
        rc = compat_check(&parsed, &err);
    }
    if (rc == OK && !parsed.help) {
        rc = plan(&p, log, &err);
        model_setup_close(&p.setup);
    }
    flags_release(&parsed);
    return rc == OK ? EXIT_CODE_OK : command_fail(&err);
}

const struct command command_plan = {
    .name = "plan",
    .summary = "what of a model goes where, and how fast it can be at best, without loading it",
    .examples =
        "spillway plan models/rill\n"
        "spillway plan Qwen/Qwen3.5-35B-A3B-GPTQ-Int4 --gpu-memory-gb 16\n"
        "spillway plan DIR --gpu-memory-gb 12 --kv-cache-dtype fp8_e4m3 --dense-quant int8\n"
        "spillway plan DIR --gpu-memory-gb 16 --gpu-bandwidth 896 --link-bandwidth 25 --json\n",
    .run = run,
    .arguments = "MODEL",
};
