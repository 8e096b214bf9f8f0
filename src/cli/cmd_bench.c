/* cmd_bench.c - `spillway bench`: load time, prompt and generation speed on this machine.
 *
 * Place: cli. The table (or JSON) goes to standard output, progress and settings to standard error. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backend/cpu/cpu_backend.h"
#include "base/clock.h"
#include "base/pool.h"
#include "base/size.h"
#include "cli/bench_run.h"
#include "cli/command.h"
#include "cli/model_setup.h"

struct bench_flags {
    const char *prompt_tokens, *batch;
    size_t decode_tokens, repeat;
    bool json;
};

#define AT(member) .offset = FLAG_OFFSET(struct bench_flags, member)

static const struct flag bench_flag_table[] = {
    {.name = "prompt-tokens",
     .kind = FLAG_STRING,
     AT(prompt_tokens),
     .metavar = "N,...",
     .help = "prompt lengths to read; default 128,512"},
    {.name = "decode-tokens",
     .kind = FLAG_SIZE,
     AT(decode_tokens),
     .metavar = "N",
     .min = 1,
     .max = 1 << 20,
     .help = "tokens to generate in each sequence; default 64"},
    {.name = "batch",
     .kind = FLAG_STRING,
     AT(batch),
     .metavar = "N,...",
     .help = "sequences that generate at once; default 1,4"},
    {.name = "repeat",
     .kind = FLAG_SIZE,
     AT(repeat),
     .metavar = "N",
     .min = 1,
     .max = BENCH_REPEAT_MAX,
     .help = "timed runs of each case, after one untimed; default 5"},
    {.name = "json", .kind = FLAG_BOOL, AT(json), .help = "print one JSON object instead"},
};

/* "128,512" */
static enum status read_list(size_t *out, size_t *n, const char *text, const char *flag,
                             struct error *err)
{
    char one[32];

    *n = 0;
    for (const char *at = text;; at++) {
        size_t len = strcspn(at, ",");
        size_t value = 0;

        if (len >= sizeof one || *n == BENCH_CASES_MAX) {
            return error_set_param(err, ERR_USAGE, flag,
                                   "%s takes at most %d numbers, separated by commas", flag,
                                   BENCH_CASES_MAX);
        }
        memcpy(one, at, len);
        one[len] = '\0';
        enum status rc = flag_read_size(&value, one, flag, err);
        if (rc == OK && (value == 0 || value > CONFIG_VOCAB_MAX)) {
            rc = error_set_param(err, ERR_USAGE, flag, "%s: %s must be in 1 to %d", flag, one,
                                 CONFIG_VOCAB_MAX);
        }
        if (rc != OK) {
            return rc;
        }
        out[(*n)++] = value;
        at += len;
        if (*at == '\0') {
            return OK;
        }
    }
}

static enum status make_plan(struct bench_plan *plan, const struct bench_flags *f,
                             struct model_flags *model, struct error *err)
{
    size_t largest = 1;
    enum status rc =
        read_list(plan->prompt_tokens, &plan->n_prompts, f->prompt_tokens, "--prompt-tokens", err);

    if (rc == OK) {
        rc = read_list(plan->batches, &plan->n_batches, f->batch, "--batch", err);
    }
    if (rc != OK) {
        return rc;
    }
    for (size_t i = 0; i < plan->n_batches; i++) {
        largest = size_max(largest, plan->batches[i]);
    }
    if (model->max_running_requests == 0) {
        model->max_running_requests = largest;
    }
    plan->decode_tokens = f->decode_tokens;
    plan->repeat = f->repeat;
    return OK;
}

struct report {
    const struct bench_plan *plan;
    const struct bench_result *result;
    const char *model_path;
    double load_s;
    size_t weight_bytes, n_threads;
    const char *dtype;
    char cpu[128], features[128];
};

static void describe(struct report *r, struct model_setup *setup)
{
    struct cpu_features features = cpu_detect();

    r->weight_bytes = model_weight_bytes(setup->model);
    r->n_threads = pool_threads(cpu_backend_pool(setup->backend));
    r->dtype = dtype_name(model_get_options(setup->model)->compute_dtype);
    cpu_model_name(r->cpu, sizeof r->cpu);
    cpu_features_text(r->features, sizeof r->features, &features);
}

static void print_rate(const char *label, size_t size, const struct bench_rate *rate)
{
    printf("%-8s %8zu %12.1f %12.1f %12.1f\n", label, size, rate->median, rate->least, rate->most);
}

static void print_table(const struct report *r)
{
    const struct bench_plan *p = r->plan;

    printf("model    %s, %.1f MB of weights, %s activations\n", r->model_path,
           (double)r->weight_bytes * 1e-6, r->dtype);
    printf("machine  %s (%s), %zu threads\n", r->cpu, r->features, r->n_threads);
    printf("load     %.2f s\n\n", r->load_s);
    printf("%-8s %8s %12s %12s %12s\n", "prefill", "tokens", "tok/s", "least", "most");
    for (size_t i = 0; i < p->n_prompts; i++) {
        print_rate("", p->prompt_tokens[i], &r->result->prefill[i]);
    }
    printf("%-8s %8s %12s %12s %12s\n", "decode", "batch", "tok/s", "least", "most");
    for (size_t i = 0; i < p->n_batches; i++) {
        print_rate("", p->batches[i], &r->result->decode[i]);
    }
    printf(
        "\nmedian of %zu runs after one untimed; %zu tokens per sequence in decode; tok/s over all "
        "sequences\n",
        p->repeat, p->decode_tokens);
}

static void write_rates(struct buf *out, const char *key, const char *size_key, const size_t *sizes,
                        const struct bench_rate *rates, size_t n)
{
    buf_appendf(out, ",\"%s\":[", key);
    for (size_t i = 0; i < n; i++) {
        buf_appendf(out, "%s{\"%s\":%zu,\"tok_s\":%.3f,\"least\":%.3f,\"most\":%.3f}", i ? "," : "",
                    size_key, sizes[i], rates[i].median, rates[i].least, rates[i].most);
    }
    buf_append_char(out, ']');
}

static enum status print_json(const struct report *r, struct error *err)
{
    const struct bench_plan *p = r->plan;
    struct buf out;

    buf_init(&out);
    buf_append_str(&out, "{\"model\":");
    json_write_string(&out, r->model_path, strlen(r->model_path));
    buf_append_str(&out, ",\"version\":\"" SPILLWAY_VERSION "\",\"cpu\":");
    json_write_string(&out, r->cpu, strlen(r->cpu));
    buf_appendf(&out,
                ",\"features\":\"%s\",\"threads\":%zu,\"dtype\":\"%s\",\"weight_bytes\":%zu,"
                "\"load_s\":%.3f,\"repeat\":%zu,\"decode_tokens\":%zu",
                r->features, r->n_threads, r->dtype, r->weight_bytes, r->load_s, p->repeat,
                p->decode_tokens);
    write_rates(&out, "prefill", "tokens", p->prompt_tokens, r->result->prefill, p->n_prompts);
    write_rates(&out, "decode", "batch", p->batches, r->result->decode, p->n_batches);
    buf_append_str(&out, "}\n");
    enum status rc =
        buf_ok(&out) ? OK : error_set(err, ERR_NO_MEMORY, "cannot allocate the report");
    fwrite(buf_cstr(&out), 1, out.len, stdout);
    buf_release(&out);
    return rc;
}

static enum status bench(const struct bench_flags *f, struct model_flags *model, struct log *log,
                         struct error *err)
{
    struct bench_plan plan = {0};
    struct bench_result result = {0};
    struct report report = {.plan = &plan, .result = &result, .model_path = model->model_path};
    const struct model_setup_options options = {.quiet = true};
    struct model_setup setup;
    struct progress progress;
    enum status rc;

    if (!model->model_path) {
        return error_set(err, ERR_USAGE, "no model: give --model FOLDER");
    }
    rc = make_plan(&plan, f, model, err);
    if (rc != OK) {
        return rc;
    }
    uint64_t start = clock_now_ns();
    rc = model_setup_open(&setup, model, &options, log, err);
    if (rc != OK) {
        return rc;
    }
    report.load_s = clock_seconds_since(start);
    plan.chunk_tokens = setup.chunk_tokens;
    describe(&report, &setup);
    progress_init(&progress, STDERR_FILENO);
    rc = bench_run(&result, setup.model, &plan, &progress, err);
    model_setup_close(&setup);
    if (rc == OK && f->json) {
        return print_json(&report, err);
    }
    if (rc == OK) {
        print_table(&report);
    }
    return rc;
}

static int run(int argc, char **argv, struct log *log)
{
    struct bench_flags f = {
        .prompt_tokens = "128,512", .batch = "1,4", .decode_tokens = 64, .repeat = 5};
    struct model_flags model = {0};
    struct flag_result parsed = {0};
    struct error err = {0};

    model_flags_defaults(&model);
    const struct flag_group groups[] = {
        {"Benchmark", bench_flag_table, sizeof bench_flag_table / sizeof bench_flag_table[0], &f},
        {"Model", model_flag_table, model_flag_count, &model},
    };
    enum status rc = flags_parse(&parsed, &command_bench, groups, sizeof groups / sizeof groups[0],
                                 0, argc, argv, log, &err);
    if (rc == OK && !parsed.help) {
        rc = bench(&f, &model, log, &err);
    }
    flags_release(&parsed);
    return rc == OK ? EXIT_CODE_OK : command_fail(&err);
}

const struct command command_bench = {
    .name = "bench",
    .summary = "measure load time, prompt and generation speed",
    .examples =
        "spillway bench --model models/rill\n"
        "spillway bench --model models/rill --prompt-tokens 64,1024 --batch 1,2,8 --repeat 9\n"
        "spillway bench --model models/rill --json > bench.json\n",
    .run = run,
};
