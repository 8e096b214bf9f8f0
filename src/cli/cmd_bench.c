/* cmd_bench.c - `spillway bench`: speed on this machine, against what the machine allows.
 *
 * Place: cli. The measuring is bench_run.c, the print-outs bench_report.c and bench_plot.c; with
 *        --quality, bench_quality.c measures what the faster settings cost in answers instead. Results go
 *        to standard output, progress and settings to standard error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "base/clock.h"
#include "base/file_out.h"
#include "base/size.h"
#include "cli/bench_quality.h"
#include "cli/bench_report.h"
#include "cli/bench_run.h"
#include "cli/bench_sweep.h"
#include "cli/command.h"
#include "cli/memory_check.h"
#include "cli/model_setup.h"

enum { THREADS_MAX = 1024, TOKENS_MAX = 1 << 28, MODEL_FLAGS_MAX = 96, GPU_MEMORY_GB_MAX = 4096 };

struct bench_flags {
    const char *prefill, *depth, *batch, *threads, *routing, *json, *plot, *text, *rows;
    const char *gpu_memory_gb;
    size_t decode_tokens, repeat, quality_tokens, recovery;
    bool profile, quality, offload, ablation;
};

#define AT(member) .offset = FLAG_OFFSET(struct bench_flags, member)

static const struct flag bench_flag_table[] = {
    {.name = "prefill",
     .aliases = "prompt-tokens",
     .kind = FLAG_STRING,
     AT(prefill),
     .metavar = "N,...",
     .help = "prompt lengths to read; default 256,512,2048; none: no prompts"},
    {.name = "depth",
     .kind = FLAG_STRING,
     AT(depth),
     .metavar = "N,...",
     .help = "tokens that stand before the generated ones; default 0,1024"},
    {.name = "batch",
     .kind = FLAG_STRING,
     AT(batch),
     .metavar = "N,...",
     .help = "sequences that generate at once; default 1,4; none: no generation"},
    {.name = "decode-tokens",
     .kind = FLAG_SIZE,
     AT(decode_tokens),
     .metavar = "N",
     .min = 1,
     .max = 1 << 20,
     .help = "tokens to generate in each sequence; default 32"},
    {.name = "threads",
     .kind = FLAG_STRING,
     AT(threads),
     .metavar = "N,...",
     .help = "numbers of compute threads, all cases with each; default: one per physical core"},
    {.name = "repeat",
     .kind = FLAG_SIZE,
     AT(repeat),
     .metavar = "N",
     .min = 1,
     .max = BENCH_REPEAT_MAX,
     .help = "timed runs of each case, after one untimed; default 5"},
    {.name = "routing",
     .kind = FLAG_CHOICE,
     AT(routing),
     .choices = "model|uniform|local",
     .help =
         "who chooses the experts: the model, chance, or chance with the locality of real text"},
    {.name = "gpu-memory-gb",
     .kind = FLAG_STRING,
     AT(gpu_memory_gb),
     .metavar = "GIB,...",
     .help = "use at most so much of the card's memory, context included; several with --offload"},
    {.name = "offload",
     .kind = FLAG_BOOL,
     AT(offload),
     .help = "speed over --gpu-memory-gb (default 8,12,16,24; 0 is the whole card), with --routing "
             "uniform and local, dense matrices as they are and as int8, unless given"},
    {.name = "offload-ablation",
     .kind = FLAG_BOOL,
     AT(ablation),
     .help =
         "what each way to serve missing experts is worth: a cache alone, the CPU, both, experts "
         "fetched ahead, prompts without overlap; default at 16 GiB, dense matrices int8"},
    {.name = "recovery",
     .kind = FLAG_SIZE,
     AT(recovery),
     .metavar = "TOKENS",
     .min = 0,
     .max = TOKENS_MAX,
     .help = "with --offload: hits of each step after a prompt of so many tokens; default 0: none"},
    {.name = "profile",
     .kind = FLAG_BOOL,
     AT(profile),
     .help = "also show where the time of a generated token goes, by operation"},
    {.name = "json",
     .kind = FLAG_STRING,
     AT(json),
     .metavar = "FILE",
     .help = "write the results as JSON; - prints them instead of the table"},
    {.name = "plot",
     .kind = FLAG_STRING,
     AT(plot),
     .metavar = "FILE.svg",
     .help = "draw the results"},
    {.name = "quality",
     .kind = FLAG_BOOL,
     AT(quality),
     .help = "no speed: loss and divergence of the faster settings, compared with float32"},
    {.name = "text",
     .kind = FLAG_STRING,
     AT(text),
     .metavar = "FILE",
     .help = "text for --quality; by default the recorded rows of the model's golden.json"},
    {.name = "rows",
     .kind = FLAG_STRING,
     AT(rows),
     .metavar = "FILE",
     .help = "rows of token ids for --quality, a safetensors file"},
    {.name = "quality-tokens",
     .kind = FLAG_SIZE,
     AT(quality_tokens),
     .metavar = "N",
     .min = 2,
     .max = 1 << 24,
     .help = "tokens that --quality looks at; default 4096, fewer with a large vocabulary"},
};

/* "128,512"; "none" is the empty list. */
static enum status read_list(struct bench_list *out, const char *text, const char *flag, size_t min,
                             size_t max, struct error *err)
{
    char one[32];

    out->n = 0;
    if (strcmp(text, "none") == 0) {
        return OK;
    }
    for (const char *at = text;; at++) {
        size_t len = strcspn(at, ",");
        size_t value = 0;

        if (len >= sizeof one || out->n == BENCH_LIST_MAX) {
            return error_set_param(err, ERR_USAGE, flag,
                                   "--%s takes at most %d numbers, separated by commas", flag,
                                   BENCH_LIST_MAX);
        }
        memcpy(one, at, len);
        one[len] = '\0';
        enum status rc = flag_read_size(&value, one, flag, err);
        if (rc == OK && (value < min || value > max)) {
            rc = error_set_param(err, ERR_USAGE, flag, "--%s: %s must be in %zu to %zu", flag, one,
                                 min, max);
        }
        if (rc != OK) {
            return rc;
        }
        out->at[out->n++] = value;
        at += len;
        if (*at == '\0') {
            return OK;
        }
    }
}

/* "8,12.5,0" */
static enum status read_budgets(struct sweep_plan *plan, const char *text, struct error *err)
{
    char one[32];

    plan->n_budgets = 0;
    for (const char *at = text;; at++) {
        size_t len = strcspn(at, ",");
        double value = 0;
        enum status rc;

        if (len >= sizeof one || plan->n_budgets == SWEEP_BUDGETS_MAX) {
            return error_set_param(err, ERR_USAGE, "gpu-memory-gb",
                                   "--gpu-memory-gb takes at most %d numbers, separated by commas",
                                   SWEEP_BUDGETS_MAX);
        }
        memcpy(one, at, len);
        one[len] = '\0';
        rc = flag_read_double(&value, one, "gpu-memory-gb", err);
        if (rc == OK && !(value >= 0 && value <= GPU_MEMORY_GB_MAX)) {
            rc = error_set_param(err, ERR_USAGE, "gpu-memory-gb",
                                 "--gpu-memory-gb: %s must be in 0 to %d", one, GPU_MEMORY_GB_MAX);
        }
        if (rc != OK) {
            return rc;
        }
        plan->budgets[plan->n_budgets++] = value;
        at += len;
        if (*at == '\0') {
            return OK;
        }
    }
}

static enum status make_plan(struct bench_plan *plan, const struct bench_flags *f,
                             struct error *err)
{
    enum status rc = read_list(&plan->prompts, f->prefill, "prefill", 1, TOKENS_MAX, err);

    if (rc == OK) {
        rc = read_list(&plan->batches, f->batch, "batch", 1, THREADS_MAX, err);
    }
    if (rc == OK) {
        rc = read_list(&plan->depths, f->depth, "depth", 0, TOKENS_MAX, err);
    }
    if (rc == OK && f->threads) {
        rc = read_list(&plan->threads, f->threads, "threads", 0, THREADS_MAX, err);
    }
    if (rc == OK && plan->prompts.n == 0 && (plan->batches.n == 0 || plan->depths.n == 0)) {
        rc = error_set_param(err, ERR_USAGE, "prefill",
                             "nothing to measure: no --prefill and no "
                             "--batch with a --depth");
    }
    plan->routing = routing_named(f->routing);
    plan->decode_tokens = f->decode_tokens;
    plan->repeat = f->repeat;
    plan->recovery_tokens = f->recovery;
    return rc;
}

/* Room for the cases, where the user did not say otherwise. 0 threads mean one per core. */
static void size_model(struct model_flags *model, struct bench_plan *plan)
{
    if (model->max_running_requests == 0) {
        model->max_running_requests = bench_seqs_max(plan);
    }
    if (model->max_total_tokens == 0) {
        model->max_total_tokens = size_max(bench_pool_tokens(plan), bench_context_tokens(plan));
    }
    for (size_t i = 0; i < plan->threads.n; i++) {
        if (plan->threads.at[i] == 0) {
            plan->threads.at[i] = cpu_count_physical();
        }
        model->threads = size_max(model->threads, plan->threads.at[i]);
    }
}

static void describe(struct bench_report *r, const struct bench_flags *f,
                     const struct model_flags *model, struct model_setup *setup)
{
    struct cpu_features features = cpu_detect();

    r->model_path = model->model_path;
    r->checkpoint_bytes = checkpoint_bytes(setup->checkpoint);
    r->weight_bytes = model_weight_bytes(setup->model);
    r->dtype = dtype_name(model_get_options(setup->model)->compute_dtype);
    r->activations = cpu_activations_name(setup->activations);
    r->dense_quant = dense_quant_name(model_get_options(setup->model)->dense_quant);
    r->routing = f->routing;
    r->isa = cpu_backend_isa(setup->cpu);
    r->card = setup->backend == setup->cpu ? NULL : cuda_backend_card(setup->backend)->name;
    cpu_model_name(r->cpu, sizeof r->cpu);
    cpu_features_text(r->features, sizeof r->features, &features);
}

/* "-" is standard output. */
static enum status write_out(struct buf *text, const char *path, struct error *err)
{
    if (strcmp(path, "-") == 0) {
        fwrite(buf_cstr(text), 1, text->len, stdout);
        return OK;
    }
    return file_out_save(path, buf_cstr(text), text->len, false, err);
}

typedef enum status report_fn(struct buf *out, const struct bench_report *r, struct error *err);

static enum status save(const struct bench_report *r, const char *path, report_fn *fn,
                        struct error *err)
{
    struct buf text;
    enum status rc;

    buf_init(&text);
    rc = fn(&text, r, err);
    if (rc == OK) {
        rc = write_out(&text, path, err);
    }
    buf_release(&text);
    return rc;
}

static enum status show(const struct bench_report *r, const struct bench_flags *f,
                        struct error *err)
{
    enum status rc = OK;

    if (!f->json || strcmp(f->json, "-") != 0) {
        bench_report_table(stdout, r);
        if (r->plan->profile) {
            printf("\nprofile of a generated token, %zu at once\n",
                   r->plan->profile->n_tokens / r->plan->profile->n_steps);
            op_profile_print(stdout, r->plan->profile);
        }
    }
    if (f->json) {
        rc = save(r, f->json, bench_report_json, err);
    }
    if (rc == OK && f->plot) {
        rc = save(r, f->plot, bench_report_svg, err);
    }
    return rc;
}

static enum status speed(const struct bench_flags *f, struct model_flags *model, struct log *log,
                         struct error *err)
{
    struct op_profile profile = {0};
    struct bench_plan plan = {0};
    struct bench_result result = {0};
    struct bench_report report = {.plan = &plan, .result = &result, .load_average = -1};
    struct model_setup_options options = {.quiet = true};
    struct model_setup setup;
    struct bench_card card;
    struct progress progress;
    bool has_card;
    enum status rc = make_plan(&plan, f, err);

    plan.probe_bytes_max = memory_available("/proc/meminfo", "/sys/fs/cgroup") / 2;
    if (rc == OK) {
        rc = bench_card_measure(&card, &has_card, model, plan.probe_bytes_max, err);
    }
    if (rc != OK) {
        return rc;
    }
    if (getloadavg(&report.load_average, 1) != 1) {
        report.load_average = -1;
    }
    size_model(model, &plan);
    options.n_snapshots = bench_seqs_max(&plan);
    plan.profile = f->profile && plan.batches.n > 0 && plan.depths.n > 0 ? &profile : NULL;
    uint64_t start = clock_now_ns();
    rc = model_setup_open(&setup, model, &options, log, err);
    if (rc != OK) {
        return rc;
    }
    report.load_s = clock_seconds_since(start);
    plan.chunk_tokens = setup.chunk_tokens;
    plan.is_card = setup.backend != setup.cpu;
    plan.card = has_card ? &card : NULL;
    plan.is_int8 = setup.activations == CPU_ACTIVATIONS_INT8 && !plan.is_card;
    describe(&report, f, model, &setup);
    progress_init(&progress, STDERR_FILENO);
    rc = bench_run(&result, setup.model, setup.backend, &plan, &progress, err);
    op_profile_sort(&profile);
    if (rc == OK) {
        rc = show(&report, f, err);
    }
    bench_result_release(&result);
    model_setup_close(&setup);
    return rc;
}

/* ---- speed over memory ---- */

enum { SWEEP_DECODE_TOKENS = 256, SWEEP_REPEAT = 3 };

/* What --offload measures where the user did not say otherwise. Runs are long, so that the slots' content is
 * that of the long run after the first. */
static void sweep_defaults(struct bench_flags *f, const struct flag_result *given)
{
    f->prefill = flags_given(given, "prefill") ? f->prefill
                 : f->ablation                 ? "2048,8192"
                                               : "512,2048,8192";
    f->depth = flags_given(given, "depth") ? f->depth : "0";
    f->batch = flags_given(given, "batch") ? f->batch : "1";
    f->repeat = flags_given(given, "repeat") ? f->repeat : SWEEP_REPEAT;
    f->decode_tokens = flags_given(given, "decode-tokens") ? f->decode_tokens : SWEEP_DECODE_TOKENS;
    f->gpu_memory_gb = f->gpu_memory_gb ? f->gpu_memory_gb : f->ablation ? "16" : "8,12,16,24";
}

static enum status sweep_plan_make(struct sweep_plan *plan, const struct bench_flags *f,
                                   const struct model_flags *model, const struct flag_result *given,
                                   struct error *err)
{
    *plan = (struct sweep_plan){
        .dense = {"int8", "none"}, .n_dense = 2, .routings = {"uniform", "local"}, .n_routings = 2};
    if (flags_given(given, "dense-quant")) {
        plan->dense[0] = model->dense_quant;
        plan->n_dense = 1;
    }
    if (f->ablation) {
        plan->ways = sweep_ablation;
        plan->n_ways = sweep_ablation_count;
        plan->n_dense = 1;
    }
    if (flags_given(given, "routing")) {
        plan->routings[0] = f->routing;
        plan->n_routings = 1;
    }
    return read_budgets(plan, f->gpu_memory_gb, err);
}

typedef enum status sweep_text_fn(struct buf *out, const struct sweep *s, struct error *err);

static enum status sweep_save(const struct sweep *s, const char *path, sweep_text_fn *fn,
                              struct error *err)
{
    struct buf text;
    enum status rc;

    buf_init(&text);
    rc = fn(&text, s, err);
    if (rc == OK) {
        rc = write_out(&text, path, err);
    }
    buf_release(&text);
    return rc;
}

static enum status sweep_show(const struct sweep *s, const struct bench_flags *f, struct error *err)
{
    enum status rc = OK;

    if (!f->json || strcmp(f->json, "-") != 0) {
        sweep_table(stdout, s);
    }
    if (f->json) {
        rc = sweep_save(s, f->json, sweep_json, err);
    }
    return rc == OK && f->plot ? sweep_save(s, f->plot, sweep_svg, err) : rc;
}

static enum status offload(struct bench_flags *f, struct model_flags *model,
                           const struct flag_result *given, struct log *log, struct error *err)
{
    size_t bytes_max = memory_available("/proc/meminfo", "/sys/fs/cgroup") / 2;
    struct bench_plan plan = {0};
    struct sweep_plan points;
    struct progress progress;
    struct sweep s = {0};
    enum status rc;

    sweep_defaults(f, given);
    rc = make_plan(&plan, f, err);
    if (rc == OK) {
        rc = sweep_plan_make(&points, f, model, given, err);
    }
    if (rc != OK) {
        return rc;
    }
    size_model(model, &plan);
    progress_init(&progress, STDERR_FILENO);
    rc = sweep_run(&s, &points, &plan, model, bytes_max, log, &progress, err);
    if (rc == OK) {
        rc = sweep_show(&s, f, err);
    }
    sweep_release(&s);
    return rc;
}

static enum status quality(const struct bench_flags *f, const struct model_flags *model,
                           struct log *log, struct error *err)
{
    const struct quality_source source = {
        .text = f->text, .rows = f->rows, .n_tokens_max = f->quality_tokens};
    struct quality_report report = {0};
    struct progress progress;
    enum status rc;

    progress_init(&progress, STDERR_FILENO);
    rc = quality_measure(&report, model, &source, log, &progress, err);
    if (rc == OK && (!f->json || strcmp(f->json, "-") != 0)) {
        quality_print(stdout, &report);
    }
    if (rc == OK && f->json) {
        struct buf text;

        buf_init(&text);
        quality_json(&text, &report);
        if (!buf_ok(&text)) {
            rc = error_set(err, ERR_NO_MEMORY, "cannot allocate the report");
        } else if (strcmp(f->json, "-") == 0) {
            fputs(buf_cstr(&text), stdout);
        } else {
            rc = file_out_save(f->json, buf_cstr(&text), text.len, false, err);
        }
        buf_release(&text);
    }
    return rc;
}

static enum status check_flags(const struct bench_flags *f, const struct model_flags *model,
                               const struct flag_result *given, struct error *err)
{
    if (!model->model_path) {
        return error_set_param(err, ERR_USAGE, "model-path", "no model: give --model FOLDER");
    }
    if (!f->quality && (f->text || f->rows)) {
        return error_set_param(err, ERR_USAGE, f->text ? "text" : "rows",
                               "--%s goes with --quality", f->text ? "text" : "rows");
    }
    if (f->ablation && (f->plot || flags_given(given, "expert-miss") ||
                        flags_given(given, "offload-prefetch-step"))) {
        return error_set_param(err, ERR_USAGE, "offload-ablation",
                               "--offload-ablation goes without --plot, --expert-miss and "
                               "--offload-prefetch-step");
    }
    if ((f->offload || f->ablation) && (f->quality || f->profile || f->threads)) {
        return error_set_param(err, ERR_USAGE, "offload",
                               "--%s goes without --quality, --profile and --threads",
                               f->ablation ? "offload-ablation" : "offload");
    }
    if (f->recovery > 0 && !f->offload && !f->ablation) {
        return error_set_param(err, ERR_USAGE, "recovery", "--recovery goes with --offload");
    }
    if (f->text && f->rows) {
        return error_set_param(err, ERR_USAGE, "rows", "--text and --rows exclude each other");
    }
    return OK;
}

static enum status one_budget(struct model_flags *model, const struct bench_flags *f,
                              struct error *err)
{
    struct sweep_plan budgets;
    enum status rc = f->gpu_memory_gb ? read_budgets(&budgets, f->gpu_memory_gb, err) : OK;

    if (rc == OK && f->gpu_memory_gb && budgets.n_budgets > 1) {
        rc = error_set_param(err, ERR_USAGE, "gpu-memory-gb",
                             "several numbers of --gpu-memory-gb go with --offload");
    }
    if (rc == OK && f->gpu_memory_gb) {
        model->gpu_memory_gb = budgets.budgets[0];
    }
    return rc;
}

static int run(int argc, char **argv, struct log *log)
{
    struct bench_flags f = {.prefill = "256,512,2048",
                            .depth = "0,1024",
                            .batch = "1,4",
                            .routing = "model",
                            .decode_tokens = 32,
                            .repeat = 5};
    struct flag model_table[MODEL_FLAGS_MAX];
    size_t n_model = 0;
    struct model_flags model = {0};
    struct flag_result parsed = {0};
    struct error err = {0};

    model_flags_defaults(&model);
    /* These are lists here. */
    for (size_t i = 0; i < model_flag_count && n_model < MODEL_FLAGS_MAX; i++) {
        const char *name = model_flag_table[i].name;

        if (strcmp(name, "threads") != 0 && strcmp(name, "gpu-memory-gb") != 0) {
            model_table[n_model++] = model_flag_table[i];
        }
    }
    const struct flag_group groups[] = {
        {"Benchmark", bench_flag_table, sizeof bench_flag_table / sizeof bench_flag_table[0], &f},
        {"Model", model_table, n_model, &model},
    };
    enum status rc = flags_parse(&parsed, &command_bench, groups, sizeof groups / sizeof groups[0],
                                 0, argc, argv, log, &err);
    if (rc == OK && !parsed.help) {
        rc = check_flags(&f, &model, &parsed, &err);
        if (rc == OK && (f.offload || f.ablation)) {
            rc = offload(&f, &model, &parsed, log, &err);
        } else if (rc == OK) {
            rc = one_budget(&model, &f, &err);
            if (rc == OK) {
                rc = f.quality ? quality(&f, &model, log, &err) : speed(&f, &model, log, &err);
            }
        }
    }
    flags_release(&parsed);
    return rc == OK ? EXIT_CODE_OK : command_fail(&err);
}

const struct command command_bench = {
    .name = "bench",
    .summary = "speed of a model against the bounds of this machine; quality of fast settings",
    .examples =
        "spillway bench --model models/rill\n"
        "spillway bench --model DIR --prefill 512,2048 --depth 0,8192 --batch 1,4,8 --repeat 9\n"
        "spillway bench --model DIR --threads 1,2,4,8 --routing local --plot bench.svg\n"
        "spillway bench --model DIR --offload --gpu-memory-gb 12,16,0 --plot memory.svg\n"
        "spillway bench --model DIR --offload-ablation\n"
        "spillway bench --model models/rill --profile --json - > bench.json\n"
        "spillway bench --model models/rill --quality\n",
    .run = run,
};
