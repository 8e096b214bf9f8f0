/* placement.c - see placement.h. The print-outs are placement_report.c. */
#include "cli/placement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/file_memory.h"
#include "base/size.h"
#include "cli/memory_check.h"

enum {
    /* Captured steps, kernels that the driver loads when they are first used, its rounding of some
     * twenty buffers: seen on cards, rounded up. */
    RESERVE_BYTES = 112 << 20,
    RESERVE_BYTES_NO_GRAPHS = 64 << 20,
    /* Of a card that is not here: a context and the kernels. */
    DRIVER_BYTES_ASSUMED = 512 << 20,
    PAGE_BYTES = 2 << 20, /* the driver hands out whole ones */
    /* Of the host while weights are loaded, besides what grows with the model: buffers of the threads that
     * pack, the CPU's scratch, tables and rows that the driver pins, allocators' leftovers. */
    HOST_LOADING_BYTES = 256 << 20,
};

struct placement_target placement_target_assumed(size_t memory_bytes)
{
    return (struct placement_target){
        .is_assumed = true,
        .card = {.name = "a card that is not here",
                 .sm = 120,
                 .n_multiprocessors = 70,
                 .shared_bytes_max = 99 << 10,
                 .memory = memory_bytes,
                 .free_bytes = memory_bytes},
        .base_bytes = memory_bytes,
        .driver_bytes = DRIVER_BYTES_ASSUMED,
    };
}

void placement_target_host(struct placement_target *t, const char *folder)
{
    struct error why = {0};
    struct rlimit limit;

    t->host_bytes_max = memory_available("/proc/meminfo", "/sys/fs/cgroup");
    t->pin_bytes_max = SIZE_MAX;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        t->pin_bytes_max = (size_t)limit.rlim_cur;
    }
    t->folder = folder;
    t->folder_fault[0] = '\0';
    if (folder && file_memory_room(&t->folder_bytes_max, folder, &why) != OK) {
        snprintf(t->folder_fault, sizeof t->folder_fault, "--offload-folder: %.200s", why.text);
    }
}

/* ---- the input of the budget ---- */

static enum status pools_count(struct placement *p, const struct model_config *c,
                               const struct model_options *mo, struct error *err)
{
    const struct dtype_table *d = &p->outline.dtypes;
    struct state_shape shape = memory_state_shape(c, d->conv, d->recurrent, d->kv);
    struct state_shape states = shape, kv = shape;
    struct state_budget one = {.n_live = 1, .n_tokens = KV_PAGE_TOKENS};
    struct budget_input *in = &p->in;

    states.n_attn_layers = 0;
    kv.n_gdn_layers = 0;
    if (!state_store_outline(&p->pools, &shape, &mo->budget) ||
        !state_store_bytes(&in->bytes[BUDGET_STATES], &states, &mo->budget) ||
        !state_store_bytes(&in->bytes[BUDGET_KV], &kv, &mo->budget) ||
        !state_store_bytes(&in->state_bytes, &states, &one) ||
        !state_store_bytes(&in->kv_page_bytes, &kv, &one)) {
        return error_set(err, ERR_NO_MEMORY,
                         "the pools asked for exceed the address space; lower --max-total-tokens "
                         "or --max-running-requests");
    }
    in->n_states = mo->budget.n_live;
    in->n_kv_pages = p->pools.n_pages;
    in->kv_page_tokens = KV_PAGE_TOKENS;
    return OK;
}

static enum status layers_mark(struct placement *p, struct error *err)
{
    const struct model_outline *o = &p->outline;
    const struct offload_request *asked = &p->asked;
    bool can = !p->target.is_host && o->has_blocks && o->top_k <= EXPERT_HOME_TOP_K;

    p->may_overflow = calloc(o->spec.n_layers + 1, sizeof *p->may_overflow);
    if (!p->may_overflow) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the table of layers");
    }
    for (size_t l = 0; l < o->spec.n_layers; l++) {
        p->may_overflow[l] = can && o->layer_has_experts[l] &&
                             budget_group_selects(l, asked->group_size, asked->in_group);
        p->in.n_layers_overflow += p->may_overflow[l];
    }
    return OK;
}

static void weights_count(struct placement *p)
{
    const struct model_outline *o = &p->outline;
    struct budget_input *in = &p->in;
    size_t layer;

    in->bytes[BUDGET_EMBEDDING] = o->class_bytes[CLASS_EMBEDDING];
    in->spilled[BUDGET_EMBEDDING] = o->embedding_may_stay_bytes;
    in->int8_saves = o->int8_saves;
    in->bytes[BUDGET_DENSE] = o->vector_bytes + o->original_bytes;
    for (int c = 0; c < CLASS_COUNT; c++) {
        bool is_apart = c == CLASS_EMBEDDING || (c == CLASS_EXPERT && o->has_blocks);

        in->bytes[BUDGET_DENSE] += is_apart ? 0 : o->class_bytes[c];
    }
    if (!o->has_blocks) {
        return;
    }
    in->n_layers = o->n_moe_layers;
    in->n_experts = o->n_experts;
    in->block_bytes = o->block.n_bytes;
    if (!p->target.is_host && size_mul(&layer, in->n_experts, in->block_bytes) &&
        size_align(&layer, layer, PAGE_BYTES)) {
        in->layer_bytes = layer;
    }
}

/* Where the host has what overflows, and what it needs until all is loaded. */
static void host_count(struct placement *p)
{
    struct budget_input *in = &p->in;
    size_t layer = in->n_experts * in->block_bytes; /* both from a checked config */

    in->host_bytes_max = p->target.host_bytes_max;
    in->host_loading = HOST_LOADING_BYTES + p->outline.rewritten_bytes +
                       (in->n_layers_overflow < in->n_layers ? layer : 0);
    in->host = p->asked.host;
    in->file_bytes = weights_file_bytes(in->n_layers_overflow, layer);
    in->file_bytes_max = p->target.folder_bytes_max;
    in->folder = p->target.folder;
    in->no_file = p->asked.miss == EXPERT_MISS_FETCH
                      ? "--expert-miss fetch lets the card read every expert, which it cannot in a "
                        "file (auto and cpu let the CPU)"
                  : p->target.folder_fault[0] ? p->target.folder_fault
                                              : NULL;
}

static enum status steps_count(struct placement *p, const struct model_options *mo,
                               struct error *err)
{
    struct op_plan *plan = &p->outline.plan;
    struct budget_input *in = &p->in;
    struct cuda_plan_bytes need = {0};
    enum status rc = OK;

    in->bytes[BUDGET_ACTIVATIONS] = plan->buffer_bytes;
    if (p->target.is_host) {
        return OK;
    }
    rc = cuda_plan_measure(&need, &p->target.card, plan->ops, plan->n_ops, mo->rows_max,
                           mo->budget.context_max, err);
    in->bytes[BUDGET_DRIVER] = p->target.driver_bytes;
    in->bytes[BUDGET_SCRATCH] = need.scratch;
    in->bytes[BUDGET_TABLES] = need.tables;
    in->bytes[BUDGET_RESERVE] = p->target.no_graphs ? RESERVE_BYTES_NO_GRAPHS : RESERVE_BYTES;
    in->overflowing[BUDGET_SCRATCH] = need.scratch_home - need.scratch;
    in->overflowing[BUDGET_TABLES] = cuda_home_tables_bytes(in->n_layers_overflow, in->n_experts);
    return rc;
}

enum status placement_make(struct placement *out, const struct placement_target *target,
                           const struct offload_request *asked, const struct checkpoint *ck,
                           const struct model_config *c, const struct model_options *mo,
                           struct error *err)
{
    struct budget_input *in = &out->in;
    enum status rc;

    *out = (struct placement){.target = *target, .asked = *asked};
    out->max_running = mo->budget.n_live - 1;
    out->max_total_tokens = mo->budget.n_tokens;
    out->context_length = mo->budget.context_max;
    in->base_bytes = target->base_bytes;
    in->base_bytes_max = target->is_assumed ? SIZE_MAX : target->card.free_bytes;
    in->static_fraction = target->static_fraction;
    in->n_staging = OFFLOAD_STAGING_DEFAULT;
    in->offload = asked->offload;
    in->offload_bytes = asked->offload_bytes;
    in->slots = target->is_host ? BUDGET_SLOTS_AUTO : asked->slots;
    in->slots_asked = asked->slots_asked;
    rc = model_outline_make(&out->outline, ck, c, mo, err);
    if (rc == OK) {
        rc = pools_count(out, c, mo, err);
    }
    if (rc == OK) {
        rc = layers_mark(out, err);
    }
    if (rc == OK) {
        weights_count(out);
        host_count(out);
        rc = steps_count(out, mo, err);
    }
    return rc == OK ? budget_make(&out->plan, in, err) : rc;
}

void placement_release(struct placement *p)
{
    model_outline_release(&p->outline);
    free(p->may_overflow);
    *p = (struct placement){0};
}

bool placement_offload(struct model_offload *out, const struct placement *p, struct backend *cpu)
{
    *out = (struct model_offload){
        .n_slots = p->plan.n_slots,
        .n_staging = p->plan.n_staging,
        .miss = p->asked.miss,
        .no_prefetch = p->asked.no_prefetch,
        .no_overlap = p->asked.no_overlap,
        .may_overflow = p->may_overflow,
        .folder = p->plan.in_file ? p->target.folder : NULL,
        .cpu = p->asked.miss == EXPERT_MISS_FETCH ? NULL : cpu,
    };
    return p->plan.overflows;
}
