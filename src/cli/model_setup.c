/* model_setup.c - opens checkpoint, backend, model, tokenizer and template, in that order.
 *
 * Place: cli. The cheap checks come first: what can be refused is refused before the weights are
 *        read. See model_setup.h. */
#include "cli/model_setup.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/numa.h"
#include "base/pool.h"
#include "base/size.h"
#include "cli/device_setup.h"
#include "cli/memory_check.h"
#include "cli/model_resolve.h"
#include "cli/placement.h"
#include "model/dense_quant.h"

/* ---- the checkpoint and what its JSON says -------------------------------------------------- */

static bool is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static enum status open_checkpoint(struct model_setup *s, const struct model_flags *f,
                                   const struct log *log, struct error *err)
{
    char name[PATH_MAX];
    const char *path = f->model_path;
    if (!path || !path[0]) {
        return error_set_param(err, ERR_USAGE, "model-path",
                               "no model: give --model-path FOLDER (models/rill is a small one)");
    }
    if (f->revision && !is_directory(path)) {
        int len = snprintf(name, sizeof name, "%s@%s", path, f->revision);
        if (len < 0 || (size_t)len >= sizeof name) {
            return error_set_param(err, ERR_USAGE, "model-path", "the model's name is too long");
        }
        path = name;
    }
    return checkpoint_open(&s->checkpoint, path, hub_cache_dirs(), log, err);
}

static enum status read_override(struct model_setup *s, const struct model_flags *f,
                                 struct error *err)
{
    const char *text = f->model_override_args;
    if (!text) {
        return OK;
    }
    enum status rc = json_parse(&s->override, text, strlen(text), err);
    if (rc == OK && !json_object_is_type(s->override, json_type_object)) {
        rc = error_set(err, ERR_USAGE, "not a JSON object");
    }
    if (rc != OK) {
        error_prefix(err, "--json-model-override-args");
        if (err) {
            err->code = ERR_USAGE;
        }
        return ERR_USAGE;
    }
    settings_add(&s->settings, "json-model-override-args", text, NULL, "%s", text);
    return OK;
}

static enum status check_quantization(struct model_setup *s, const struct model_flags *f,
                                      struct error *err)
{
    const char *stored = NULL;
    enum status rc = json_get_string(&stored, checkpoint_quantization(s->checkpoint),
                                     "quant_method", ERR_FORMAT, err);
    return rc == OK ? quantization_check(f->quantization, stored, &s->settings, err) : rc;
}

static enum status read_generation(struct model_setup *s, const struct model_config *c,
                                   struct error *err)
{
    enum status rc =
        generation_config_read(&s->generation, checkpoint_generation_config(s->checkpoint), err);
    if (rc != OK) {
        return rc;
    }
    bool own = s->generation.n_eos_ids > 0;
    s->n_eos_ids = own ? s->generation.n_eos_ids : c->n_eos_ids;
    memcpy(s->eos_ids, own ? s->generation.eos_ids : c->eos_ids, sizeof s->eos_ids);
    return OK;
}

/* ---- the model ------------------------------------------------------------------------------ */

static struct model_options options_of(const struct model_setup *s, const struct model_resolved *r,
                                       const struct model_setup_options *o)
{
    struct model_options mo = {
        .compute_dtype = r->compute,
        .kv_dtype = r->kv,
        .recurrent_dtype = r->recurrent,
        .rows_max = r->rows_max,
        .out_rows_max = r->max_running,
        /* One live slot more than running requests: the self-test and a request that is being
         * admitted never wait for one that is ending. */
        .budget = {.n_live = r->max_running + 1,
                   .n_snapshots = o->n_snapshots,
                   .n_tokens = r->max_total_tokens,
                   .context_max = r->context_length},
        .config_override = s->override,
        .gdn_chunk_min = o->gdn_chunk_min,
        .pool = s->cpu ? cpu_backend_pool(s->cpu) : NULL,
        .dense_quant = r->dense_quant,
    };
    if (o->out_rows_max) {
        mo.out_rows_max = size_min(o->out_rows_max, r->rows_max);
    }
    return mo;
}

/* The device's thread spins while it waits for a step, and the CPU's threads spin while they wait for missing
 * experts: together they must not be more than there are cores, or each would wait for one that does not
 * run. Three quarters of the cores answer fastest, measured with 16 (bench/results). */
static enum status leave_cores(struct backend *cpu, size_t asked, struct error *err)
{
    size_t n = pool_threads(cpu_backend_pool(cpu)), cores = cpu_count_logical();
    size_t most = size_max(asked ? cores - 1 : cores - cores / 4, 1);

    return n > most ? cpu_backend_set_threads(cpu, most, err) : OK;
}

static enum status open_model(struct model_setup *s, const struct model_flags *f,
                              const struct model_resolved *r, const struct model_setup_options *o,
                              const struct log *log, struct error *err)
{
    struct model_options mo = options_of(s, r, o);
    struct model_offload offload;
    struct progress progress;

    if (s->placement && placement_offload(&offload, s->placement, s->cpu)) {
        mo.offload = &offload;
    }
    progress_init(&progress, STDERR_FILENO);
    bool show = !o->quiet || progress.is_tty;
    enum status rc =
        model_open(&s->model, s->checkpoint, s->backend, &mo, log, show ? &progress : NULL, err);
    return rc == OK && mo.offload && offload.cpu ? leave_cores(offload.cpu, f->threads, err) : rc;
}

/* What the kernels of a CPU will read. Dense matrices that become int8 count as such: their originals are read
 * once and may leave memory. Where the checkpoint itself quantises dense matrices, it is not known here
 * which ones stay; then the copies count besides. */
static enum status weights_planned(size_t *out, const struct model_setup *s,
                                   const struct model_config *c, const struct model_resolved *r,
                                   struct error *err)
{
    bool may_be_quantised = checkpoint_quantization(s->checkpoint) && c->n_experts == 0;
    struct model_spec spec;
    enum status rc = OK;

    *out = checkpoint_bytes(s->checkpoint);
    if (r->dense_quant == DENSE_QUANT_NONE) {
        return OK;
    }
    rc = model_spec_build(&spec, c, err);
    if (rc == OK) {
        size_t n = dense_quant_elems(&spec);
        size_t originals = spec.head == spec.embed
                               ? n - spec.matrices[spec.head].n_out * spec.matrices[spec.head].n_in
                               : n;

        originals = may_be_quantised ? 0 : size_min(originals * sizeof(uint16_t), *out);
        *out = *out - originals + dense_quant_bytes(n);
    }
    model_spec_release(&spec);
    return rc;
}

static enum status check_memory(const struct model_setup *s, const struct model_config *c,
                                const struct model_resolved *r, const struct model_setup_options *o,
                                const struct log *log, struct error *err)
{
    struct memory_plan plan;
    struct model_options mo = options_of(s, r, o);
    size_t weight_bytes = 0, available;
    enum status rc = weights_planned(&weight_bytes, s, c, r, err);
    if (rc == OK) {
        rc = memory_plan_make(&plan, c, weight_bytes, &mo.budget, r->compute, r->recurrent, r->kv,
                              r->rows_max, mo.out_rows_max, err);
    }
    if (rc != OK) {
        return rc;
    }
    available = memory_available("/proc/meminfo", "/sys/fs/cgroup");
    if (!o->quiet) {
        char text[256];
        memory_plan_text(text, sizeof text, &plan);
        log_info(log, "memory: %s; %.2f GiB are available", text,
                 (double)available / (double)(1 << 30));
    }
    return memory_check(&plan, available, err);
}

/* ---- what goes where ------------------------------------------------------------------------ */

static void print_lines(struct buf *text, const char *indent, const struct log *log)
{
    for (const char *p = buf_cstr(text); *p;) {
        size_t len = strcspn(p, "\n");
        log_info(log, "%s%.*s", indent, (int)len, p);
        p += len + (p[len] == '\n');
    }
}

/* quiet: only what the user must know. */
static void print_placement(const struct placement *p, bool quiet, const struct log *log)
{
    struct buf text;
    bool is_warning;

    buf_init(&text);
    if (!quiet) {
        placement_print(&text, p);
        log_info(log, "placement:");
        print_lines(&text, "", log);
        buf_clear(&text);
    }
    is_warning = placement_file_note(&text, p);
    if (text.len > 0 && (is_warning || !quiet)) {
        log_line(log, is_warning ? LOG_WARNING : LOG_INFO, "%s", buf_cstr(&text));
    }
    buf_release(&text);
}

/* One attempt: types and sizes, then the plan that follows from them. */
static enum status decide_once(struct model_setup *s, struct model_resolved *r,
                               const struct model_flags *f, const struct model_setup_options *o,
                               const struct model_config *c, const struct placement_target *target,
                               const struct resolve_place *place, struct error *err)
{
    struct offload_request asked;
    struct model_options mo;
    enum status rc = offload_flags_read(&asked, f, err);
    if (rc == OK) {
        rc = model_resolve(r, f, c, place, &s->settings, err);
    }
    if (rc != OK) {
        return rc;
    }
    r->rows_max = o->rows_max ? o->rows_max : r->rows_max;
    if (!target) {
        return OK;
    }
    if (!s->placement) {
        s->placement = calloc(1, sizeof *s->placement);
    } else {
        placement_release(s->placement);
    }
    if (!s->placement) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the placement");
    }
    mo = options_of(s, r, o);
    rc = placement_make(s->placement, target, &asked, s->checkpoint, c, &mo, err);
    s->placement->chunk_tokens = r->chunk_tokens;
    return rc;
}

/* Whether what a step needs is too much of a small card, and nobody asked for it. */
static bool chunk_is_large(const struct model_setup *s, const struct model_resolved *r,
                           const struct model_flags *f, const struct model_setup_options *o,
                           size_t card_bytes)
{
    const size_t *n = s->placement ? s->placement->plan.bytes : NULL;

    return n && f->chunked_prefill_size == 0 && f->max_prefill_tokens == 0 && o->rows_max == 0 &&
           r->chunk_tokens / 2 >= CHUNK_TOKENS_LEAST &&
           r->chunk_tokens / 2 % CHUNK_TOKENS_UNIT == 0 &&
           n[BUDGET_ACTIVATIONS] + n[BUDGET_SCRATCH] + n[BUDGET_STAGING] > card_bytes / CHUNK_PART;
}

/* With the number of running requests that is usual where everything fits; where experts overflow, or nothing
 * fits, with fewer, and with smaller chunks of prompts if they matter. */
enum status model_setup_decide(struct model_setup *s, struct model_resolved *r,
                               const struct model_flags *f, const struct model_setup_options *o,
                               const struct model_config *c, const struct placement_target *target,
                               struct error *err)
{
    struct resolve_place place = {.card_bytes = target && !target->is_host ? target->base_bytes : 0,
                                  .max_running =
                                      o->max_running ? o->max_running : MAX_RUNNING_DEFAULT};
    const struct settings before = s->settings;
    enum status rc = decide_once(s, r, f, o, c, target, &place, err);
    if (place.card_bytes > 0 &&
        (rc == ERR_NO_MEMORY || (rc == OK && s->placement->plan.overflows))) {
        place.overflows = true;
        place.max_running = o->max_running ? o->max_running : MAX_RUNNING_OVERFLOW;
        do {
            s->settings = before;
            rc = decide_once(s, r, f, o, c, target, &place, err);
            place.chunk_tokens = r->chunk_tokens / 2; /* of another attempt */
        } while ((rc == OK || rc == ERR_NO_MEMORY) && chunk_is_large(s, r, f, o, place.card_bytes));
    }
    if (rc == OK && place.card_bytes > 0) {
        placement_settings(&s->settings, s->placement, f);
    }
    return rc;
}

/* What the driver shows against what was planned; graphs and kernels that are loaded when they are first used
 * are still to come out of the reserve. */
static enum status check_used(const struct model_setup *s, const struct log *log, struct error *err)
{
    static const double mib = 1 << 20;
    const struct budget_plan *b = &s->placement->plan;
    size_t used = cuda_backend_used(s->backend), base = s->placement->target.base_bytes;
    double planned = (double)(b->total_bytes - b->bytes[BUDGET_RESERVE]) / mib;

    if (used > base) {
        return error_set_param(err, ERR_NO_MEMORY, "gpu-memory-gb",
                               "the card's memory: the driver shows %.0f MiB in use, %.0f MiB may "
                               "be used and %.0f were planned; give --gpu-expert-slots fewer than "
                               "%zu, or lower --max-total-tokens",
                               (double)used / mib, (double)base / mib, planned, b->n_slots);
    }
    log_line(log, used > b->total_bytes ? LOG_WARNING : LOG_INFO,
             "memory of the card: the driver shows %.0f MiB in use, %.0f planned so far, %.0f with "
             "the reserve%s",
             (double)used / mib, planned, (double)b->total_bytes / mib,
             used > b->total_bytes ? ": more than planned" : "");
    return OK;
}

/* ---- text ----------------------------------------------------------------------------------- */

static enum status open_tokenizer(struct model_setup *s, const struct model_flags *f,
                                  const struct log *log, struct error *err)
{
    char folder[PATH_MAX], file[PATH_MAX + 32];
    const char *path = checkpoint_dir(s->checkpoint);
    enum status rc = OK;
    if (f->tokenizer_path) {
        struct stat st;
        bool is_file = stat(f->tokenizer_path, &st) == 0 && S_ISREG(st.st_mode);
        if (is_file) {
            return tokenizer_load(&s->tokenizer, f->tokenizer_path, err);
        }
        rc = checkpoint_locate(folder, sizeof folder, f->tokenizer_path, hub_cache_dirs(), err);
        path = folder;
    }
    if (rc != OK) {
        return rc;
    }
    int len = snprintf(file, sizeof file, "%s/tokenizer.json", path);
    if (len < 0 || (size_t)len >= sizeof file) {
        return error_set(err, ERR_LIMIT, "the path of the tokenizer is too long");
    }
    rc = tokenizer_load(&s->tokenizer, file, err);
    size_t rows = model_get_config(s->model)->vocab_size;
    if (rc == OK && tokenizer_vocab_size(s->tokenizer) > rows) {
        log_warning(log, "the tokenizer knows %zu ids, the model only %zu: some texts are refused",
                    tokenizer_vocab_size(s->tokenizer), rows);
    }
    return rc;
}

static enum status open_template(struct model_setup *s, const struct model_flags *f,
                                 const struct log *log, struct error *err)
{
    enum status rc =
        chat_template_load(&s->chat_template, checkpoint_dir(s->checkpoint), f->chat_template, err);
    if (rc == ERR_NOT_FOUND && !f->chat_template) {
        log_warning(log, "the checkpoint has no chat template: chat requests are refused "
                         "(--chat-template FILE gives one)");
        return OK;
    }
    return rc;
}

/* ---- all together --------------------------------------------------------------------------- */

static void print_dtypes(const struct model *m, const struct log *log)
{
    struct buf text;
    buf_init(&text);
    model_print_dtypes(m, &text);
    model_print_skipped(m, &text);
    print_lines(&text, "  ", log);
    buf_release(&text);
}

static enum status load(struct model_setup *s, const struct model_flags *f,
                        const struct model_setup_options *o, const struct model_config *c,
                        const struct log *log, struct error *err)
{
    struct model_resolved r;
    struct placement_target target;
    struct backend *card = NULL;
    enum status rc = device_open(&card, f, &s->settings, err);
    if (rc == OK) {
        s->backend = card; /* or NULL, until the CPU's is there */
        if (card) {
            target = device_target(card, f);
        }
        rc = model_setup_decide(s, &r, f, o, c, card ? &target : NULL, err);
    }
    if (rc != OK) {
        return rc;
    }
    s->chunk_tokens = r.chunk_tokens;
    s->context_length = r.context_length;
    s->max_running = r.max_running;
    s->max_prefill_tokens = r.max_prefill_tokens;
    s->activations = r.activations;
    rc = cpu_open(&s->cpu, f, r.activations, !card, &s->settings, err);
    if (rc != OK) {
        return rc;
    }
    s->backend = card ? card : s->cpu;
    settings_print(&s->settings, log, o->quiet);
    if (card) {
        print_placement(s->placement, o->quiet, log);
    }
    rc = card ? OK : check_memory(s, c, &r, o, log, err);
    if (rc == OK) {
        rc = open_model(s, f, &r, o, log, err);
    }
    return rc == OK && card ? check_used(s, log, err) : rc;
}

enum status model_setup_describe(struct model_setup *s, struct model_config *config,
                                 const struct model_flags *f, const struct log *log,
                                 struct error *err)
{
    enum status rc = open_checkpoint(s, f, log, err);
    if (rc == OK) {
        settings_add(&s->settings, "model-path", f->model_path, NULL, "%s",
                     checkpoint_dir(s->checkpoint));
        rc = read_override(s, f, err);
    }
    if (rc == OK) {
        rc = check_quantization(s, f, err);
    }
    return rc == OK ? model_config_read(config, checkpoint_config(s->checkpoint), s->override, err)
                    : rc;
}

static enum status open_all(struct model_setup *s, const struct model_flags *f,
                            const struct model_setup_options *o, const struct log *log,
                            struct error *err)
{
    struct model_config config = {0};
    enum status rc = model_setup_describe(s, &config, f, log, err);
    if (rc == OK) {
        rc = read_generation(s, &config, err);
    }
    if (rc == OK) {
        rc = load(s, f, o, &config, log, err);
    }
    if (rc == OK && o->want_tokenizer) {
        rc = open_tokenizer(s, f, log, err);
    }
    if (rc == OK && o->want_template) {
        rc = open_template(s, f, log, err);
    }
    model_config_release(&config);
    return rc;
}

enum status model_setup_open(struct model_setup *out, const struct model_flags *f,
                             const struct model_setup_options *o, const struct log *log,
                             struct error *err)
{
    uint64_t start = clock_now_ns();
    struct numa_topology numa;
    *out = (struct model_setup){0};
    /* Weights and pools over all nodes; the worker threads, started meanwhile, keep dealing. */
    numa_detect(&numa, NUMA_SYSFS);
    numa_interleave(&numa, true);
    enum status rc = open_all(out, f, o, log, err);
    numa_interleave(&numa, false);
    if (rc != OK) {
        model_setup_close(out);
        return rc;
    }
    numa_bind_pool(&numa, cpu_backend_pool(out->cpu));
    if (!o->quiet) {
        print_dtypes(out->model, log);
        log_info(log, "loaded in %.2f s", clock_seconds_since(start));
    }
    return OK;
}

void model_setup_close(struct model_setup *s)
{
    chat_template_free(s->chat_template);
    tokenizer_free(s->tokenizer);
    model_free(s->model);
    if (s->backend && s->backend != s->cpu) {
        s->backend->ops->free(s->backend);
    }
    if (s->cpu) {
        s->cpu->ops->free(s->cpu);
    }
    if (s->placement) {
        placement_release(s->placement);
        free(s->placement);
    }
    checkpoint_close(s->checkpoint);
    json_object_put(s->override);
    *s = (struct model_setup){0};
}
