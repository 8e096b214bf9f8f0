/* offload_flags.c - see offload_flags.h. */
#include "cli/offload_flags.h"

#include <stdio.h>
#include <string.h>

#include "cli/flags.h"

static const double GIB = 1073741824.0, GIB_MAX = 65536;

enum { NUMBER_BYTES = 64 };

enum status offload_limit_read(enum budget_offload *out, size_t *n_bytes, const char *text,
                               struct error *err)
{
    double gib = 0;
    enum status rc;

    *out = BUDGET_OFFLOAD_AUTO;
    *n_bytes = 0;
    if (strcmp(text, "auto") == 0) {
        return OK;
    }
    rc = flag_read_double(&gib, text, "--cpu-offload-gb", err);
    if (rc != OK || gib < 0 || gib > GIB_MAX) {
        return error_set_param(
            err, ERR_USAGE, "cpu-offload-gb",
            "--cpu-offload-gb: '%s' is neither auto nor a number of GiB, 0 to %g", text, GIB_MAX);
    }
    *out = BUDGET_OFFLOAD_MAX;
    *n_bytes = (size_t)(gib * GIB);
    return OK;
}

enum status offload_slots_read(enum budget_slots *out, double *n, const char *text,
                               struct error *err)
{
    size_t len = strlen(text), count = 0;
    char number[NUMBER_BYTES];
    enum status rc = OK;

    *n = 0;
    *out = BUDGET_SLOTS_COUNT;
    if (len > 0 && len < sizeof number && text[len - 1] == '%') {
        memcpy(number, text, len - 1);
        number[len - 1] = '\0';
        *out = BUDGET_SLOTS_PERCENT;
        rc = flag_read_double(n, number, "--gpu-expert-slots", err);
        rc = rc == OK && (*n < 0 || *n > 100) ? ERR_USAGE : rc;
    } else {
        rc = flag_read_size(&count, text, "--gpu-expert-slots", err);
        *n = (double)count;
    }
    return rc == OK ? OK
                    : error_set_param(err, ERR_USAGE, "gpu-expert-slots",
                                      "--gpu-expert-slots: '%s' is neither a number of experts nor "
                                      "a share such as 25%%",
                                      text);
}

static enum expert_miss miss_named(const char *name)
{
    for (int m = EXPERT_MISS_AUTO; name && m <= EXPERT_MISS_CPU; m++) {
        static const char *const names[] = {"auto", "fetch", "cpu"};

        if (strcmp(name, names[m]) == 0) {
            return (enum expert_miss)m;
        }
    }
    return EXPERT_MISS_AUTO;
}

static enum budget_host host_named(const char *name)
{
    if (!name || strcmp(name, "auto") == 0) {
        return BUDGET_HOST_AUTO;
    }
    return strcmp(name, "file") == 0 ? BUDGET_HOST_FILE : BUDGET_HOST_MEMORY;
}

enum status offload_flags_read(struct offload_request *out, const struct model_flags *f,
                               struct error *err)
{
    enum status rc = OK;

    *out = (struct offload_request){.has_limit = f->cpu_offload_gb != NULL,
                                    .miss = miss_named(f->expert_miss),
                                    .host = host_named(f->offload_host),
                                    .no_prefetch = f->offload_prefetch_step == 0,
                                    .no_overlap = f->offload_no_overlap};
    if (f->cpu_offload_gb) {
        rc = offload_limit_read(&out->offload, &out->offload_bytes, f->cpu_offload_gb, err);
    }
    if (rc == OK && f->gpu_expert_slots) {
        rc = offload_slots_read(&out->slots, &out->slots_asked, f->gpu_expert_slots, err);
    }
    if (rc != OK || f->offload_group_size <= 0) {
        return rc;
    }
    if (f->offload_num_in_group > f->offload_group_size) {
        return error_set_param(err, ERR_USAGE, "offload-num-in-group",
                               "--offload-num-in-group %lld is more than --offload-group-size %lld",
                               (long long)f->offload_num_in_group,
                               (long long)f->offload_group_size);
    }
    out->group_size = out->has_limit ? 0 : (size_t)f->offload_group_size;
    out->in_group = out->has_limit ? 0 : (size_t)f->offload_num_in_group;
    return OK;
}

static void idle(struct settings *s, const char *name, const char *asked, const char *why)
{
    if (asked && asked[0]) {
        settings_add(s, name, asked, why, "no effect");
    }
}

static void idle_number(struct settings *s, const char *name, int64_t n, bool is_given,
                        const char *why)
{
    char text[NUMBER_BYTES];

    snprintf(text, sizeof text, "%lld", (long long)n);
    idle(s, name, is_given ? text : NULL, why);
}

void offload_flags_idle(struct settings *s, const struct model_flags *f, const char *why)
{
    bool is_usual = !f->expert_miss || strcmp(f->expert_miss, "auto") == 0;
    bool is_auto = host_named(f->offload_host) == BUDGET_HOST_AUTO;
    bool is_default = !f->offload_folder || strcmp(f->offload_folder, OFFLOAD_FOLDER_DEFAULT) == 0;

    idle(s, "cpu-offload-gb", f->cpu_offload_gb, why);
    idle(s, "gpu-expert-slots", f->gpu_expert_slots, why);
    idle(s, "expert-miss", is_usual ? NULL : f->expert_miss, why);
    idle_number(s, "offload-group-size", f->offload_group_size, f->offload_group_size > 0, why);
    idle_number(s, "offload-num-in-group", f->offload_num_in_group, f->offload_num_in_group != 1,
                why);
    idle_number(s, "offload-prefetch-step", f->offload_prefetch_step, f->offload_prefetch_step >= 0,
                why);
    idle(s, "offload-mode", f->offload_mode, why);
    idle(s, "offload-host", is_auto ? NULL : f->offload_host, why);
    idle(s, "offload-folder", is_default ? NULL : f->offload_folder, why);
}
