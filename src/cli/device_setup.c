/* device_setup.c - see device_setup.h. */
#include "cli/device_setup.h"

#include <stdio.h>
#include <string.h>

#include "backend/cuda/cuda_backend.h"
#include "base/cpu.h"
#include "base/pool.h"
#include "base/size.h"
#include "cli/offload_flags.h"

static const double GIB = 1073741824.0;

#define NO_CARD "this run computes on a CPU"

/* ---- the card ---- */

static void flag_idle(struct settings *s, const char *name, const char *asked, bool is_given)
{
    if (is_given) {
        settings_add(s, name, asked, NO_CARD, "no effect");
    }
}

static void number_idle(struct settings *s, const char *name, double asked)
{
    char text[32];

    snprintf(text, sizeof text, "%g", asked);
    flag_idle(s, name, text, asked > 0);
}

static void flags_idle(struct settings *s, const struct model_flags *f)
{
    number_idle(s, "gpu-memory-gb", f->gpu_memory_gb);
    number_idle(s, "mem-fraction-static", f->mem_fraction_static);
    number_idle(s, "base-gpu-id", (double)f->base_gpu_id);
    flag_idle(s, "disable-cuda-graph", "true", f->disable_cuda_graph);
    offload_flags_idle(s, f, NO_CARD);
}

static void describe_card(struct settings *s, const struct model_flags *f, struct backend *be)
{
    const struct cuda_card *c = cuda_backend_card(be);

    settings_add(s, "device", f->device, NULL, "cuda: %.60s, sm_%d, %.1f GiB", c->name, c->sm,
                 (double)c->memory / GIB);
    if (f->gpu_memory_gb > 0) {
        char asked[32];

        snprintf(asked, sizeof asked, "%g", f->gpu_memory_gb);
        settings_add(s, "gpu-memory-gb", asked, NULL, "%.2f GiB",
                     (double)device_memory_base(be, f) / GIB);
    }
    settings_add(s, "disable-cuda-graph", f->disable_cuda_graph ? "true" : "", NULL, "%s",
                 f->disable_cuda_graph ? "true" : "false");
}

enum status device_open(struct backend **out, const struct model_flags *f, struct settings *s,
                        struct error *err)
{
    const struct cuda_backend_options o = {.device = (int)f->base_gpu_id,
                                           .no_graphs = f->disable_cuda_graph,
                                           .memory_limit = (size_t)(f->gpu_memory_gb * GIB)};
    bool must = f->device && strcmp(f->device, "cuda") == 0;
    struct error why = {0};
    enum status rc = OK;

    *out = NULL;
    if (f->device && strcmp(f->device, "cpu") == 0) {
        flags_idle(s, f);
        return OK;
    }
    if (!cuda_is_there(why.text, sizeof why.text)) {
        rc = ERR_DEVICE;
    } else {
        rc = cuda_backend_new(out, &o, &why);
    }
    if (rc == OK) {
        describe_card(s, f, *out);
        return OK;
    }
    if (must) {
        return error_set_param(err, ERR_DEVICE, "device", "--device cuda: %s", why.text);
    }
    settings_add(s, "device", f->device, NULL, "cpu: %s", why.text);
    flags_idle(s, f);
    return OK;
}

size_t device_memory_base(const struct backend *card, const struct model_flags *f)
{
    size_t free_bytes = cuda_backend_card(card)->free_bytes;

    return f->gpu_memory_gb > 0 ? size_min(free_bytes, (size_t)(f->gpu_memory_gb * GIB))
                                : free_bytes;
}

struct placement_target device_target(struct backend *card, const struct model_flags *f)
{
    struct placement_target t = {.card = *cuda_backend_card(card),
                                 .base_bytes = device_memory_base(card, f),
                                 .driver_bytes = cuda_backend_used(card),
                                 .static_fraction = f->mem_fraction_static,
                                 .no_graphs = f->disable_cuda_graph};

    placement_target_host(&t, f->offload_folder);
    return t;
}

/* ---- the CPU ---- */

static enum cpu_isa isa_named(const char *name)
{
    static const struct {
        const char *name;
        enum cpu_isa isa;
    } names[] = {{"scalar", CPU_ISA_SCALAR},
                 {"avx2", CPU_ISA_AVX2},
                 {"avxvnni", CPU_ISA_AVX_VNNI},
                 {"avx512", CPU_ISA_AVX512},
                 {"amx", CPU_ISA_AMX}};

    for (size_t i = 0; name && i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i].name, name) == 0) {
            return names[i].isa;
        }
    }
    return CPU_ISA_AUTO;
}

enum status cpu_open(struct backend **out, const struct model_flags *f,
                     enum cpu_activations activations, bool is_used, struct settings *s,
                     struct error *err)
{
    const struct cpu_backend_options o = {
        .n_threads = f->threads, .isa = isa_named(f->cpu_isa), .activations = activations};
    enum status rc = cpu_backend_new(out, &o, err);
    char features[128], cpu[128];
    struct cpu_features found = cpu_detect();

    if (rc != OK) {
        return rc;
    }
    cpu_features_text(features, sizeof features, &found);
    cpu_model_name(cpu, sizeof cpu);
    settings_add(s, "cpu", "", is_used ? NULL : "loads the weights", "%.60s, %.50s", cpu, features);
    settings_add_size(s, "threads", f->threads, NULL, pool_threads(cpu_backend_pool(*out)));
    if (is_used) {
        settings_add(s, "cpu-isa", f->cpu_isa, NULL, "%s", cpu_backend_isa(*out));
    }
    return OK;
}
