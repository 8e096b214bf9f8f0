/* budget.h - which bytes go where on a device of limited memory, and which routed experts overflow.
 *
 * Place:  offload; pure arithmetic over tables, no device is asked. cli/ fills the input from a model's outline,
 *         the flags and the card.
 * Rules:  all that the driver shows for the process stays within base_bytes. Weights, slots, KV and states
 *         stay within static_fraction of it, if one is given. What fits is resident: experts overflow only
 *         when they must, or when slots were asked for by number. If any overflow, the host holds all
 *         experts of the layers that may, and the device as many slots as there is room for.
 * Host:   in memory, if that has room for them; else in a file, of which memory caches what is in use. All layers
 *         that overflow are in the same place: experts that have slots are not read in the host, so a
 *         file's cache is filled with the others only, which pinned memory would leave less room. */
#ifndef OFFLOAD_BUDGET_H
#define OFFLOAD_BUDGET_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum budget_class {
    BUDGET_DRIVER,    /* context and kernels */
    BUDGET_DENSE,     /* matrices and vectors that every token reads */
    BUDGET_EMBEDDING, /* rows of the input embedding */
    BUDGET_EXPERTS,   /* routed experts with a place of their own */
    BUDGET_SLOTS,     /* room for routed experts that come and go */
    BUDGET_KV,
    BUDGET_STATES,
    BUDGET_ACTIVATIONS, /* operands of a step, logits included */
    BUDGET_SCRATCH,     /* of single operations */
    BUDGET_STAGING,     /* experts on their way through, in large steps */
    BUDGET_TABLES,
    BUDGET_RESERVE, /* graphs, kernels loaded when first used, the driver's rounding */
    BUDGET_CLASS_COUNT
};
const char *budget_class_name(enum budget_class c); /* "dense weights" */
bool budget_class_is_static(enum budget_class c);   /* counts for static_fraction */

enum budget_offload {
    BUDGET_OFFLOAD_AUTO, /* as much as must */
    BUDGET_OFFLOAD_MAX   /* at most offload_bytes of experts without a slot; 0: none may overflow */
};
enum budget_slots { BUDGET_SLOTS_AUTO, BUDGET_SLOTS_COUNT, BUDGET_SLOTS_PERCENT };

enum budget_host { BUDGET_HOST_AUTO, BUDGET_HOST_MEMORY, BUDGET_HOST_FILE };

enum { BUDGET_STAGING_LEAST = 2 };

struct budget_input {
    size_t base_bytes;      /* of the device that may be used */
    size_t base_bytes_max;  /* what --gpu-memory-gb could raise it to; SIZE_MAX: not known */
    double static_fraction; /* (0, 1]; 0: none */

    /* All classes but experts, slots and staging, KV and states included. When experts overflow,
     * `overflowing` is added: larger scratch, more tables. */
    size_t bytes[BUDGET_CLASS_COUNT];
    size_t overflowing[BUDGET_CLASS_COUNT];
    size_t
        spilled[BUDGET_CLASS_COUNT]; /* of `bytes`: in host memory instead when experts overflow */

    /* Routed experts of one size; other experts count as dense. */
    size_t n_layers;          /* that have such experts */
    size_t n_layers_overflow; /* of those that may overflow */
    size_t n_experts;         /* of a layer */
    size_t block_bytes;       /* of an expert */
    size_t layer_bytes;       /* of a layer's experts with a place of their own; 0: as the blocks */
    size_t n_staging;         /* blocks wanted, at least BUDGET_STAGING_LEAST */

    enum budget_offload offload;
    size_t offload_bytes;
    enum budget_slots slots;
    double slots_asked; /* a whole number of experts, or per cent of those that may overflow */

    size_t host_bytes_max; /* memory that the host can give; SIZE_MAX: not known */
    size_t host_loading;   /* of it, besides what overflows, until all is loaded */
    enum budget_host host; /* where experts that overflow are */
    size_t file_bytes;     /* of a file for those of all layers that may */
    size_t file_bytes_max; /* room for one; SIZE_MAX: not known */
    const char *folder;    /* where; NULL: there is none */
    const char *no_file;   /* why experts cannot be in a file whatever its size; NULL: they can */

    /* For advice when nothing fits */
    size_t int8_saves; /* bytes, if --dense-quant int8 is possible and not given */
    size_t kv_page_bytes, kv_page_tokens, n_kv_pages;
    size_t state_bytes, n_states; /* of a sequence; one state more than running sequences */
};

struct budget_plan {
    bool overflows;
    size_t n_slots, n_staging;
    size_t n_overflowing;             /* experts of the layers that overflow */
    size_t slots_least, slots_most;   /* of a layer, when they are spread evenly */
    size_t bytes[BUDGET_CLASS_COUNT]; /* on the device */
    size_t total_bytes, static_bytes; /* on the device */
    size_t total_max, static_max;     /* what they may be */
    size_t host[BUDGET_CLASS_COUNT];  /* in host memory, experts that overflow among them */
    size_t host_bytes;                /* their sum */
    size_t host_wanted;               /* if all that overflows were in memory, with loading */
    bool in_file;                     /* experts that overflow are in a file, not in host[] */
    size_t file_bytes;
    size_t absent_bytes; /* of experts without a slot */
};

/* ERR_NO_MEMORY says what is needed and which flags would make it fit; ERR_USAGE is a number that cannot be
 * meant. *out is filled as far as it got. */
enum status budget_make(struct budget_plan *out, const struct budget_input *in, struct error *err);

/* Whether a layer of the model is one of the last `in_group` of its group of `size` layers. size 0: no groups,
 * every layer is. */
bool budget_group_selects(size_t layer, size_t size, size_t in_group);

/* The share of choices that slots for `share` of all experts hold, for bounds. Uniform: the share itself.
 * Local: between points that were published for a model of this kind (26 % hold 83.5 %, 37 % hold 89 %). */
double budget_hits_uniform(double share);
double budget_hits_local(double share);

#endif
