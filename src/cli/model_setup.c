/* model_setup.c - opens checkpoint, backend, model, tokenizer and template, in that order.
 *
 * Place: cli. The cheap checks come first: what can be refused is refused before the weights are
 *        read. See model_setup.h. */
#include "cli/model_setup.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/numa.h"
#include "base/pool.h"
#include "base/size.h"
#include "cli/device_setup.h"
#include "cli/memory_check.h"
#include "cli/model_resolve.h"
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

static enum status open_model(struct model_setup *s, const struct model_resolved *r,
                              const struct model_setup_options *o, const struct log *log,
                              struct error *err)
{
    struct progress progress;
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
        .pool = cpu_backend_pool(s->cpu),
        .dense_quant = r->dense_quant,
    };
    if (o->out_rows_max) {
        mo.out_rows_max = o->out_rows_max == SIZE_MAX ? r->rows_max : o->out_rows_max;
    }
    progress_init(&progress, STDERR_FILENO);
    bool show = !o->quiet || progress.is_tty;
    return model_open(&s->model, s->checkpoint, s->backend, &mo, log, show ? &progress : NULL, err);
}

/* What the kernels will read. Dense matrices that become int8 count as such: their originals are read
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

static enum status check_memory(const struct model_setup *s, const struct model_flags *f,
                                const struct model_config *c, const struct model_resolved *r,
                                const struct model_setup_options *o, const struct log *log,
                                struct error *err)
{
    struct memory_plan plan;
    struct state_budget budget = {.n_live = r->max_running + 1,
                                  .n_snapshots = o->n_snapshots,
                                  .n_tokens = r->max_total_tokens,
                                  .context_max = r->context_length};
    size_t out_rows = o->out_rows_max ? size_min(o->out_rows_max, r->rows_max) : r->max_running;
    size_t weight_bytes = 0;
    enum status rc = weights_planned(&weight_bytes, s, c, r, err);
    if (rc == OK) {
        rc = memory_plan_make(&plan, c, weight_bytes, &budget, r->compute, r->recurrent, r->kv,
                              r->rows_max, out_rows, err);
    }
    if (rc != OK) {
        return rc;
    }
    bool on_card = s->backend != s->cpu;
    size_t available = on_card ? device_memory_left(s->backend, f)
                               : memory_available("/proc/meminfo", "/sys/fs/cgroup");
    if (!o->quiet) {
        char text[256];
        memory_plan_text(text, sizeof text, &plan);
        log_info(log, "memory%s: %s; %.2f GiB are available", on_card ? " of the card" : "", text,
                 (double)available / (double)(1 << 30));
    }
    return memory_check(&plan, available, err);
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
    for (const char *p = buf_cstr(&text); *p;) {
        size_t len = strcspn(p, "\n");
        log_info(log, "  %.*s", (int)len, p);
        p += len + (p[len] == '\n');
    }
    buf_release(&text);
}

static enum status load(struct model_setup *s, const struct model_flags *f,
                        const struct model_setup_options *o, const struct model_config *c,
                        const struct log *log, struct error *err)
{
    struct model_resolved r;
    size_t max_running = o->max_running ? o->max_running : MAX_RUNNING_DEFAULT;
    struct backend *card = NULL;
    enum status rc = device_open(&card, f, &s->settings, err);
    if (rc == OK) {
        s->backend = card; /* or NULL, until the CPU's is there */
        rc = model_resolve(&r, f, c, max_running, card ? device_memory_base(card, f) : 0,
                           &s->settings, err);
    }
    if (rc != OK) {
        return rc;
    }
    r.rows_max = o->rows_max ? o->rows_max : r.rows_max;
    s->chunk_tokens = r.chunk_tokens;
    s->context_length = r.context_length;
    s->max_running = r.max_running;
    s->max_prefill_tokens = r.max_prefill_tokens;
    s->activations = r.activations;
    rc = cpu_open(&s->cpu, f, r.activations, !card, &s->settings, err);
    if (rc == OK) {
        s->backend = card ? card : s->cpu;
        settings_print(&s->settings, log, o->quiet);
        rc = check_memory(s, f, c, &r, o, log, err);
    }
    if (rc == OK) {
        rc = open_model(s, &r, o, log, err);
    }
    return rc;
}

static enum status open_all(struct model_setup *s, const struct model_flags *f,
                            const struct model_setup_options *o, const struct log *log,
                            struct error *err)
{
    struct model_config config = {0};
    enum status rc = open_checkpoint(s, f, log, err);
    if (rc == OK) {
        settings_add(&s->settings, "model-path", f->model_path, NULL, "%s",
                     checkpoint_dir(s->checkpoint));
        rc = read_override(s, f, err);
    }
    if (rc == OK) {
        rc = check_quantization(s, f, err);
    }
    if (rc != OK) {
        return rc;
    }
    rc = model_config_read(&config, checkpoint_config(s->checkpoint), s->override, err);
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
    checkpoint_close(s->checkpoint);
    json_object_put(s->override);
    *s = (struct model_setup){0};
}
