/* memory_check.h - will it fit?, asked before anything large is read.
 *
 * Place: cli. Counts weights, states, KV pool and scratch, and compares with what the machine (or
 *        the container) has left. Weights are mapped, and their pages may be dropped under pressure; they are
 *        counted in full, since a model that is read from disk at every token is not what anyone wants. */
#ifndef CLI_MEMORY_CHECK_H
#define CLI_MEMORY_CHECK_H

#include <stddef.h>

#include "base/status.h"
#include "formats/model_config.h"
#include "model/model.h"

struct memory_plan {
    size_t weight_bytes, state_bytes, kv_bytes, scratch_bytes, total_bytes;
};

/* What a sequence carries, by the config. */
struct state_shape memory_state_shape(const struct model_config *c, enum dtype conv,
                                      enum dtype recurrent, enum dtype kv);

/* ERR_LIMIT when a size overflows. rows: of a step; out_rows: of logits. */
enum status memory_plan_make(struct memory_plan *out, const struct model_config *c,
                             size_t weight_bytes, const struct state_budget *budget,
                             enum dtype conv, enum dtype recurrent, enum dtype kv, size_t rows,
                             size_t out_rows, struct error *err);

/* Bytes available: MemAvailable of the file meminfo ("/proc/meminfo"), at most what the cgroup folder
 * (cgroup v2, "/sys/fs/cgroup") leaves. SIZE_MAX when neither says anything. */
size_t memory_available(const char *meminfo, const char *cgroup);

/* "weights 22.70 GiB + states 64.0 MiB + ... = 25.10 GiB" */
void memory_plan_text(char *out, size_t n, const struct memory_plan *plan);

/* ERR_NO_MEMORY with the numbers when the plan exceeds `available`. */
enum status memory_check(const struct memory_plan *plan, size_t available, struct error *err);

#endif
