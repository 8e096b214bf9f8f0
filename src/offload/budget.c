/* budget.c - see budget.h.
 *
 * Idea: two layouts are possible, everything resident or experts behind slots. Both are sums; the first that
 *       fits is taken. Where none does, the distance to the limits is known, and so is which flag's number
 *       would cover it. */
#include "offload/budget.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"

enum { ADVICE_BYTES = 512, GROWTH_PARTS = 10 };

static const double GIB = 1073741824.0;

const char *budget_class_name(enum budget_class c)
{
    static const char *const names[BUDGET_CLASS_COUNT] = {
        [BUDGET_DRIVER] = "driver",       [BUDGET_DENSE] = "dense weights",
        [BUDGET_EMBEDDING] = "embedding", [BUDGET_EXPERTS] = "routed experts",
        [BUDGET_SLOTS] = "expert slots",  [BUDGET_KV] = "KV pool",
        [BUDGET_STATES] = "states",       [BUDGET_ACTIVATIONS] = "activations",
        [BUDGET_SCRATCH] = "scratch",     [BUDGET_STAGING] = "staging",
        [BUDGET_TABLES] = "tables",       [BUDGET_RESERVE] = "graphs and reserve",
    };

    return (unsigned)c < BUDGET_CLASS_COUNT ? names[c] : "unknown";
}

bool budget_class_is_static(enum budget_class c)
{
    return c == BUDGET_DENSE || c == BUDGET_EMBEDDING || c == BUDGET_EXPERTS || c == BUDGET_SLOTS ||
           c == BUDGET_KV || c == BUDGET_STATES;
}

bool budget_group_selects(size_t layer, size_t size, size_t in_group)
{
    return size == 0 || layer % size + size_min(in_group, size) >= size;
}

double budget_hits_uniform(double share)
{
    return fmin(fmax(share, 0), 1);
}

double budget_hits_local(double share)
{
    static const struct {
        double share, hits;
    } points[] = {{0, 0}, {0.26, 0.835}, {0.37, 0.89}, {1, 1}};
    size_t i = 1;

    share = fmin(fmax(share, 0), 1);
    while (share > points[i].share) {
        i++;
    }
    return points[i - 1].hits + (points[i].hits - points[i - 1].hits) *
                                    (share - points[i - 1].share) /
                                    (points[i].share - points[i - 1].share);
}

/* ---- sums ---- */

/* Fills the totals; false: they do not fit a size_t. */
static bool sum_up(struct budget_plan *p)
{
    p->total_bytes = p->static_bytes = p->host_bytes = 0;
    for (int c = 0; c < BUDGET_CLASS_COUNT; c++) {
        if (!size_add(&p->total_bytes, p->total_bytes, p->bytes[c]) ||
            !size_add(&p->host_bytes, p->host_bytes, p->host[c])) {
            return false;
        }
        if (budget_class_is_static((enum budget_class)c)) {
            p->static_bytes += p->bytes[c]; /* at most the total */
        }
    }
    return true;
}

static size_t over(size_t n, size_t max)
{
    return n > max ? n - max : 0;
}

/* By how much a layout passes its limits. */
static size_t excess(const struct budget_plan *p)
{
    return size_max(over(p->total_bytes, p->total_max), over(p->static_bytes, p->static_max));
}

static size_t room(const struct budget_plan *p)
{
    return size_min(over(p->total_max, p->total_bytes), over(p->static_max, p->static_bytes));
}

static size_t experts_that_may(const struct budget_input *in)
{
    return in->n_layers_overflow * in->n_experts; /* both from a checked config */
}

static bool layout(struct budget_plan *p, const struct budget_input *in, bool overflows,
                   size_t n_slots, size_t n_staging)
{
    size_t in_place = (overflows ? in->n_layers - in->n_layers_overflow : in->n_layers);
    bool fits = true;
    size_t layer;

    memcpy(p->bytes, in->bytes, sizeof p->bytes);
    memset(p->host, 0, sizeof p->host);
    for (int c = 0; overflows && c < BUDGET_CLASS_COUNT; c++) {
        p->host[c] = size_min(in->spilled[c], in->bytes[c]);
        fits = fits && size_add(&p->bytes[c], in->bytes[c] - p->host[c], in->overflowing[c]);
    }
    if (overflows) {
        p->host[BUDGET_EXPERTS] = experts_that_may(in) * in->block_bytes;
    }
    p->overflows = overflows;
    p->n_slots = overflows ? n_slots : 0;
    p->n_staging = overflows ? n_staging : 0;
    return fits && size_mul(&layer, in->n_experts, in->block_bytes) &&
           size_mul(&p->bytes[BUDGET_EXPERTS], in_place, size_max(layer, in->layer_bytes)) &&
           size_mul(&p->bytes[BUDGET_SLOTS], p->n_slots, in->block_bytes) &&
           size_mul(&p->bytes[BUDGET_STAGING], p->n_staging, in->block_bytes) && sum_up(p);
}

static enum status too_large(struct error *err)
{
    return error_set_param(err, ERR_NO_MEMORY, "max-total-tokens",
                           "the pools asked for exceed the address space; lower "
                           "--max-total-tokens or --max-running-requests");
}

/* ---- advice ---- */

/* Tenths of a GiB, upwards: what one would type. */
static double gib_up(size_t n_bytes)
{
    return ceil((double)n_bytes / GIB * GROWTH_PARTS) / GROWTH_PARTS;
}

static void advise(char *out, size_t *used, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void advise(char *out, size_t *used, const char *fmt, ...)
{
    va_list args;
    int n = snprintf(out + *used, ADVICE_BYTES - *used, *used > 0 ? ", or " : "; it fits with ");

    *used = size_min(*used + (n > 0 ? (size_t)n : 0), ADVICE_BYTES - 1);
    va_start(args, fmt);
    n = vsnprintf(out + *used, ADVICE_BYTES - *used, fmt, args);
    va_end(args);
    *used = size_min(*used + (n > 0 ? (size_t)n : 0), ADVICE_BYTES - 1);
}

static size_t units(size_t n_bytes, size_t each)
{
    return n_bytes / each + (n_bytes % each != 0);
}

/* Which numbers would make the layout fit: each of them alone. */
static void advice_make(char out[ADVICE_BYTES], const struct budget_plan *p,
                        const struct budget_input *in)
{
    double f = in->static_fraction > 0 ? in->static_fraction : 1;
    size_t used = 0, missing = excess(p);
    size_t base = size_max(p->total_bytes, (size_t)ceil((double)p->static_bytes / f));

    out[0] = '\0';
    if (p->total_bytes <= p->total_max && in->static_fraction > 0) {
        double least = ceil((double)p->static_bytes / (double)in->base_bytes * 100) / 100;

        if (least <= 1) {
            advise(out, &used, "--mem-fraction-static %.2f", least);
        }
    }
    if (missing <= in->int8_saves) {
        advise(out, &used, "--dense-quant int8");
    }
    if (gib_up(base) * GIB <= (double)in->base_bytes_max) {
        advise(out, &used, "--gpu-memory-gb %.1f", gib_up(base));
    }
    if (in->kv_page_bytes > 0 && units(missing, in->kv_page_bytes) < in->n_kv_pages) {
        advise(out, &used, "--max-total-tokens %zu",
               (in->n_kv_pages - units(missing, in->kv_page_bytes)) * in->kv_page_tokens);
    }
    if (in->state_bytes > 0 && units(missing, in->state_bytes) + 1 < in->n_states) {
        advise(out, &used, "--max-running-requests %zu",
               in->n_states - units(missing, in->state_bytes) - 1);
    }
}

/* "12.31 GiB are needed, 11.00 GiB of the card may be used; ..." */
static enum status refuse(struct error *err, const char *param, const char *what,
                          const struct budget_plan *p, const struct budget_input *in)
{
    char advice[ADVICE_BYTES];
    bool by_fraction = p->total_bytes <= p->total_max;

    advice_make(advice, p, in);
    if (by_fraction) {
        return error_set_param(
            err, ERR_NO_MEMORY, param,
            "%s: weights, slots, KV and states need %.2f GiB, --mem-fraction-static %.2f of %.2f "
            "GiB leaves them %.2f%s",
            what, (double)p->static_bytes / GIB, in->static_fraction, (double)in->base_bytes / GIB,
            (double)p->static_max / GIB, advice);
    }
    return error_set_param(err, ERR_NO_MEMORY, param,
                           "%s: %.2f GiB are needed, %.2f GiB of the card may be used%s", what,
                           (double)p->total_bytes / GIB, (double)p->total_max / GIB, advice);
}

/* ---- the plan ---- */

/* Slots asked for by number; *n is left alone when they were not. */
static enum status slots_asked(size_t *n, const struct budget_input *in, struct error *err)
{
    size_t all = experts_that_may(in);
    double want = in->slots_asked;

    if (in->slots == BUDGET_SLOTS_AUTO) {
        return OK;
    }
    if (!(want >= 0) || (in->slots == BUDGET_SLOTS_PERCENT && want > 100)) {
        return error_set_param(err, ERR_USAGE, "gpu-expert-slots",
                               "--gpu-expert-slots: %g%s is not possible", want,
                               in->slots == BUDGET_SLOTS_PERCENT ? "%" : "");
    }
    if (in->slots == BUDGET_SLOTS_PERCENT) {
        want = floor(want / 100 * (double)all + 0.5);
    }
    *n = want >= (double)all ? all : (size_t)want;
    return OK;
}

/* At least so many experts must have a slot. */
static size_t slots_wanted(const struct budget_input *in)
{
    size_t all = experts_that_may(in);

    return in->offload == BUDGET_OFFLOAD_AUTO || in->block_bytes == 0
               ? 0
               : over(all, in->offload_bytes / in->block_bytes);
}

static enum status check_slots(struct budget_plan *p, const struct budget_input *in, size_t most,
                               struct error *err)
{
    size_t least = slots_wanted(in);
    char what[128];

    if (in->slots != BUDGET_SLOTS_AUTO && p->n_slots < least) {
        return error_set_param(err, ERR_USAGE, "gpu-expert-slots",
                               "--gpu-expert-slots leaves %.2f GiB of routed experts without a "
                               "slot, --cpu-offload-gb allows %.2f",
                               (double)(experts_that_may(in) - p->n_slots) *
                                   (double)in->block_bytes / GIB,
                               (double)in->offload_bytes / GIB);
    }
    if (in->slots != BUDGET_SLOTS_AUTO && p->n_slots > most) {
        snprintf(what, sizeof what, "--gpu-expert-slots: %zu slots do not fit, %zu do", p->n_slots,
                 most);
        return layout(p, in, true, p->n_slots, p->n_staging)
                   ? refuse(err, "gpu-expert-slots", what, p, in)
                   : too_large(err);
    }
    if (least > most) {
        double absent = (double)(experts_that_may(in) - most) * (double)in->block_bytes / GIB;

        snprintf(what, sizeof what,
                 "--cpu-offload-gb %.4g is too little, %.2f GiB of routed experts do not fit the "
                 "card (auto allows it)",
                 (double)in->offload_bytes / GIB, absent);
        return layout(p, in, true, least, p->n_staging) ? refuse(err, "cpu-offload-gb", what, p, in)
                                                        : too_large(err);
    }
    return OK;
}

/* ---- the host ---- */

static size_t host_need(const struct budget_plan *p, const struct budget_input *in)
{
    size_t n;

    return size_add(&n, p->host_bytes, in->host_loading) ? n : SIZE_MAX;
}

/* Why there is no file instead, or what would allow one. */
static void file_advice(char out[ADVICE_BYTES], const struct budget_input *in)
{
    double needed = (double)in->file_bytes / GIB, room = (double)in->file_bytes_max / GIB;

    out[0] = '\0';
    if (in->no_file) {
        snprintf(out, ADVICE_BYTES, "; experts cannot be in a file: %s", in->no_file);
    } else if (in->folder && in->file_bytes > in->file_bytes_max) {
        snprintf(out, ADVICE_BYTES,
                 "; a file of %.2f GiB for experts does not fit '%s', where %.2f GiB are free: "
                 "--offload-folder names another folder",
                 needed, in->folder, room);
    } else if (in->folder && in->host == BUDGET_HOST_MEMORY) {
        snprintf(out, ADVICE_BYTES, "; --offload-host auto puts %.2f GiB of experts in a file",
                 needed);
    }
}

static enum status refuse_host(const struct budget_plan *p, const struct budget_input *in,
                               struct error *err)
{
    char advice[ADVICE_BYTES], loading[64] = "", most[64] = "";

    file_advice(advice, in);
    if (in->host_loading > 0) {
        snprintf(loading, sizeof loading, " and %.2f while loading",
                 (double)in->host_loading / GIB);
    }
    if (in->host_bytes_max != SIZE_MAX) {
        snprintf(most, sizeof most, ", %.2f GiB are available", (double)in->host_bytes_max / GIB);
    }
    return error_set_param(err, ERR_NO_MEMORY,
                           in->no_file || in->host == BUDGET_HOST_MEMORY ? "offload-host"
                                                                         : "offload-folder",
                           "the host's memory is too small: %.2f GiB for what overflows%s%s%s",
                           (double)p->host_bytes / GIB, loading, most, advice);
}

/* Where what overflows is: memory, or a file and memory for the rest. */
static enum status host_place(struct budget_plan *p, const struct budget_input *in,
                              struct error *err)
{
    p->host_wanted = host_need(p, in);
    if (in->host != BUDGET_HOST_FILE && p->host_wanted <= in->host_bytes_max) {
        return OK;
    }
    if (in->host == BUDGET_HOST_FILE && in->no_file) {
        return error_set_param(err, ERR_USAGE, "offload-host", "--offload-host file: %s",
                               in->no_file);
    }
    if (in->host == BUDGET_HOST_FILE && in->file_bytes > in->file_bytes_max) {
        return error_set_param(err, ERR_NO_MEMORY, "offload-folder",
                               "--offload-host file: %.2f GiB of experts do not fit '%s', where "
                               "%.2f GiB are free: --offload-folder names another folder",
                               (double)in->file_bytes / GIB, in->folder ? in->folder : "",
                               (double)in->file_bytes_max / GIB);
    }
    if (in->host == BUDGET_HOST_MEMORY || in->no_file || !in->folder ||
        in->file_bytes > in->file_bytes_max) {
        return refuse_host(p, in, err);
    }
    p->in_file = true;
    p->file_bytes = in->file_bytes;
    p->host[BUDGET_EXPERTS] = 0;
    sum_up(p); /* less than before */
    if (host_need(p, in) <= in->host_bytes_max) {
        return OK;
    }
    return error_set_param(err, ERR_NO_MEMORY, "offload-host",
                           "the host's memory is too small, even with experts in a file: %.2f GiB "
                           "for what overflows besides and %.2f while loading, %.2f GiB are "
                           "available",
                           (double)p->host_bytes / GIB, (double)in->host_loading / GIB,
                           (double)in->host_bytes_max / GIB);
}

static enum status make_overflowing(struct budget_plan *p, const struct budget_input *in,
                                    struct error *err)
{
    size_t all = experts_that_may(in), most;
    size_t n_staging = size_max(size_min(in->n_staging, all), BUDGET_STAGING_LEAST);
    enum status rc;

    if (!layout(p, in, true, 0, n_staging)) {
        return too_large(err);
    }
    p->n_overflowing = all;
    p->absent_bytes = all * in->block_bytes;
    if (excess(p) > 0) { /* then every slot is worth more than a smooth stream */
        n_staging = BUDGET_STAGING_LEAST;
        layout(p, in, true, 0, n_staging);
    }
    if (excess(p) > 0) {
        return refuse(err, "gpu-memory-gb", "the model does not fit, even without expert slots", p,
                      in);
    }
    most = size_min(room(p) / in->block_bytes, all);
    p->n_slots = most;
    rc = slots_asked(&p->n_slots, in, err);
    if (rc == OK) {
        rc = check_slots(p, in, most, err);
    }
    if (rc != OK) {
        return rc;
    }
    layout(p, in, true, p->n_slots, n_staging);
    p->slots_least = p->n_slots / in->n_layers_overflow;
    p->slots_most = p->slots_least + (p->n_slots % in->n_layers_overflow != 0);
    p->absent_bytes = (all - p->n_slots) * in->block_bytes;
    return host_place(p, in, err);
}

enum status budget_make(struct budget_plan *out, const struct budget_input *in, struct error *err)
{
    bool may_overflow = in->block_bytes > 0 && experts_that_may(in) > 0;
    bool none_may = in->offload == BUDGET_OFFLOAD_MAX && in->offload_bytes == 0 &&
                    in->slots == BUDGET_SLOTS_AUTO;

    *out = (struct budget_plan){.total_max = in->base_bytes, .static_max = SIZE_MAX};
    if (in->static_fraction > 0) {
        out->static_max = (size_t)((double)in->base_bytes * in->static_fraction);
    }
    if (!layout(out, in, false, 0, 0)) {
        return too_large(err);
    }
    if (in->slots != BUDGET_SLOTS_AUTO && may_overflow) {
        return make_overflowing(out, in, err);
    }
    if (excess(out) == 0) {
        return OK;
    }
    if (!may_overflow) {
        return refuse(err, "gpu-memory-gb",
                      in->n_layers > 0 ? "the model does not fit, and no layer's experts may "
                                         "overflow"
                                       : "the model does not fit",
                      out, in);
    }
    if (none_may) {
        return refuse(err, "cpu-offload-gb",
                      "the model does not fit, and --cpu-offload-gb 0 lets nothing overflow", out,
                      in);
    }
    return make_overflowing(out, in, err);
}
