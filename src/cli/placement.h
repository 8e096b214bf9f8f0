/* placement.h - what goes where: a model's bytes, a card's memory and the flags, brought together.
 *
 * Place:  cli; made at every start on a card and by `spillway plan`, before weights are read. The arithmetic
 *         is offload/budget.h, the model's sizes are model/outline.h.
 * Counts: everything that the driver will show. Known exactly are weights, pools, operands, scratch and
 *         tables; the context is measured when the card was opened; graphs, kernels loaded when they are first
 *         used and the driver's rounding are a reserve. */
#ifndef CLI_PLACEMENT_H
#define CLI_PLACEMENT_H

#include "backend/cuda/cuda_backend.h"
#include "base/buf.h"
#include "base/json.h"
#include "cli/offload_flags.h"
#include "cli/settings.h"
#include "formats/checkpoint.h"
#include "model/model.h"
#include "model/outline.h"
#include "offload/budget.h"

enum { PLACEMENT_FAULT_BYTES = 256 };

/* Where the model shall run. */
struct placement_target {
    bool is_host;    /* the CPU computes: all is in host memory, nothing overflows */
    bool is_assumed; /* there is no such card here */
    struct cuda_card card;
    size_t base_bytes;   /* of the card (or the host) that may be used */
    size_t driver_bytes; /* in use before anything was loaded; included in base_bytes */
    double static_fraction;
    bool no_graphs;
    size_t host_bytes_max; /* that host memory can give; SIZE_MAX: not known */
    size_t pin_bytes_max;  /* RLIMIT_MEMLOCK; SIZE_MAX: none */
    /* For a file of experts; see base/file_memory.h. */
    const char *folder;                       /* borrowed; NULL: there can be no file */
    size_t folder_bytes_max;                  /* room in it; SIZE_MAX: not known */
    char folder_fault[PLACEMENT_FAULT_BYTES]; /* why none can be in it; "": it can */
};

struct placement {
    struct placement_target target;
    struct offload_request asked;
    struct model_outline outline;
    struct state_pools pools; /* geometry */
    struct budget_input in;
    struct budget_plan plan;
    bool *may_overflow;                                   /* [outline.spec.n_layers] */
    size_t max_running, max_total_tokens, context_length; /* for print-outs */
    size_t chunk_tokens; /* of a prompt; 0: not cut. Set by who makes it */
};

/* A card as a plan for one that is not here assumes it. */
struct placement_target placement_target_assumed(size_t memory_bytes);
/* Fills what is known of the host, and of the folder of --offload-folder. */
void placement_target_host(struct placement_target *t, const char *folder);

/* mo: as the model will be opened with, types resolved. ERR_NO_MEMORY says what would fit; *out is released in
 * any case, and holds the outline after that error too. */
enum status placement_make(struct placement *out, const struct placement_target *target,
                           const struct offload_request *asked, const struct checkpoint *ck,
                           const struct model_config *c, const struct model_options *mo,
                           struct error *err);
void placement_release(struct placement *p);

/* The options for model_open, which borrow p and what its target borrows; false: no experts overflow. cpu
 * computes misses. */
bool placement_offload(struct model_offload *out, const struct placement *p, struct backend *cpu);

/* Rows of what was asked by the flags about overflow and the memory's fraction, and done. */
void placement_settings(struct settings *s, const struct placement *p, const struct model_flags *f);

void placement_print(struct buf *out, const struct placement *p);
/* One line about what a file costs; nothing where experts are in none. True: the user should be warned, for
 * it was not asked for. */
bool placement_file_note(struct buf *out, const struct placement *p);
/* NULL: out of memory. */
struct json_object *placement_json(const struct placement *p);

#endif
