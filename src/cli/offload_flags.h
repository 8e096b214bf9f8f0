/* offload_flags.h - the flags about experts that overflow, read into numbers.
 *
 * Place: cli; model_flags.c holds the table, placement.c acts on the numbers. */
#ifndef CLI_OFFLOAD_FLAGS_H
#define CLI_OFFLOAD_FLAGS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "cli/model_setup.h"
#include "cli/settings.h"
#include "offload/budget.h"
#include "offload/offload.h"

struct offload_request {
    bool has_limit; /* --cpu-offload-gb was given, be it auto: groups do not count then */
    enum budget_offload offload;
    size_t offload_bytes;
    enum budget_slots slots;
    double slots_asked;
    size_t group_size, in_group; /* 0: no groups */
    enum expert_miss miss;
    enum budget_host host;
    bool no_prefetch, no_overlap;
};

/* ERR_USAGE names the flag. */
enum status offload_flags_read(struct offload_request *out, const struct model_flags *f,
                               struct error *err);

/* "12", "0.5", "auto" */
enum status offload_limit_read(enum budget_offload *out, size_t *n_bytes, const char *text,
                               struct error *err);
/* "5000", "5K", "25%", "12.5%" */
enum status offload_slots_read(enum budget_slots *out, double *n, const char *text,
                               struct error *err);

/* A row for each of the flags given: this run has no use for it. */
void offload_flags_idle(struct settings *s, const struct model_flags *f, const char *why);

#endif
