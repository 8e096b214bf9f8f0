/* cuda_share.c - the CPU's part of large steps. See cuda_share.h.
 *
 * Place: backend/cuda.
 * Reuse: there is one set of rows. A layer is divided when the card has done all that was launched before, so
 *        nobody reads the last layer's any more. */
#include "backend/cuda/cuda_share.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_private.h"
#include "base/size.h"

enum { LINE = 64 };

struct cuda_share {
    const struct expert_home *home;
    uint8_t *host; /* pinned; the five below are in it */
    float *x, *y;  /* [EXPERT_HOME_LARGE_ROWS][hidden] */
    float *prob;   /* [EXPERT_HOME_LARGE_ROWS][top_k], as the two lists of choices */
    int32_t *card_idx, *cpu_idx;
    CUdeviceptr idx; /* card_idx on the card */
    CUevent is_read; /* x and prob are here */
    bool *on_cpu;    /* [n_experts] */
    size_t n_rows;   /* of the layer that was divided last; 0: nothing is the CPU's */
};

static size_t choices_bytes(const struct expert_home *home)
{
    return EXPERT_HOME_LARGE_ROWS * home->top_k * sizeof(int32_t);
}

static bool shares(const struct expert_home *home)
{
    return home->has_cpu && home->ops->large_divide && home->ops->large_compute;
}

size_t cuda_share_bytes(const struct expert_home *home)
{
    return shares(home) ? choices_bytes(home) : 0;
}

static enum status host_new(struct cuda_backend *be, struct cuda_share *s, struct error *err)
{
    size_t rows = EXPERT_HOME_LARGE_ROWS * s->home->hidden * sizeof(float); /* hidden: checked */
    size_t choices = size_divide_up(choices_bytes(s->home), LINE) * LINE;
    size_t n_bytes = 2 * rows + 3 * choices;
    void *host = NULL;
    enum status rc =
        cuda_result(be, be->drv->mem_host_alloc(&host, n_bytes, 0), err,
                    "cuMemHostAlloc of %zu bytes for the CPU's rows of large steps", n_bytes);

    if (rc != OK) {
        return rc;
    }
    s->host = host;
    s->x = (float *)(void *)s->host;
    s->y = (float *)(void *)(s->host + rows);
    s->prob = (float *)(void *)(s->host + 2 * rows);
    s->card_idx = (int32_t *)(void *)(s->host + 2 * rows + choices);
    s->cpu_idx = (int32_t *)(void *)(s->host + 2 * rows + 2 * choices);
    return OK;
}

enum status cuda_share_open(struct cuda_share **out, struct cuda_backend *be,
                            const struct expert_home *home, struct error *err)
{
    struct cuda_share *s;
    enum status rc;

    *out = NULL;
    if (!shares(home)) {
        return OK;
    }
    s = calloc(1, sizeof *s);
    if (s) {
        s->home = home;
        s->on_cpu = calloc(home->n_experts, sizeof *s->on_cpu);
    }
    if (!s || !s->on_cpu) {
        cuda_share_close(be, s);
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a list of %zu experts",
                         home->n_experts);
    }
    rc = host_new(be, s, err);
    rc = rc == OK ? cuda_alloc(be, &s->idx, choices_bytes(home), "the card's choices", err) : rc;
    rc = rc == OK ? cuda_result(be, be->drv->event_create(&s->is_read, CUDA_EVENT_NO_TIMING), err,
                                "cuEventCreate")
                  : rc;
    if (rc != OK) {
        cuda_share_close(be, s);
        return rc;
    }
    *out = s;
    return OK;
}

void cuda_share_close(struct cuda_backend *be, struct cuda_share *s)
{
    if (!s) {
        return;
    }
    if (s->is_read) {
        be->drv->event_destroy(s->is_read);
    }
    if (s->idx) {
        be->drv->mem_free(s->idx);
    }
    if (s->host) {
        be->drv->mem_free_host(s->host);
    }
    free(s->on_cpu);
    free(s);
}

/* ---- a layer ---- */

/* Both lists of choices. An expert that the CPU was given although it has a slot stays the card's. */
static void choices_divide(struct cuda_share *s, size_t layer, size_t n, const int32_t *idx,
                           bool *is_wanted)
{
    const struct expert_home *home = s->home;

    for (size_t e = 0; e < home->n_experts; e++) {
        s->on_cpu[e] = s->on_cpu[e] && home->ops->slot_of(home->ctx, layer, e) < 0;
        is_wanted[e] = is_wanted[e] && !s->on_cpu[e];
    }
    for (size_t i = 0; i < n; i++) {
        bool is_cpu = idx[i] >= 0 && (size_t)idx[i] < home->n_experts && s->on_cpu[idx[i]];

        s->cpu_idx[i] = is_cpu ? idx[i] : -1;
        s->card_idx[i] = is_cpu ? -1 : idx[i];
    }
}

static enum status read_back(struct cuda_backend *be, void *host, const void *src, size_t n_bytes,
                             struct error *err)
{
    return cuda_result(
        be, be->drv->memcpy_dtoh_async(host, (CUdeviceptr)(uintptr_t)src, n_bytes, be->stream), err,
        "cuMemcpyDtoHAsync of %zu bytes for the CPU", n_bytes);
}

enum status cuda_share_divide(struct cuda_backend *be, struct cuda_share *s, const struct op *op,
                              size_t n_rows, const int32_t *idx, bool *is_wanted, struct error *err)
{
    const struct op_experts *u = &op->u.experts;
    const struct expert_home *home = s->home;
    size_t n = n_rows * u->top_k;
    enum status rc;

    s->n_rows = 0;
    if (n_rows == 0 || n_rows > EXPERT_HOME_LARGE_ROWS) {
        return OK;
    }
    memset(s->on_cpu, 0, home->n_experts * sizeof *s->on_cpu);
    if (home->ops->large_divide(home->ctx, u->home_layer, n_rows, idx, s->on_cpu) == 0) {
        return OK;
    }
    choices_divide(s, u->home_layer, n, idx, is_wanted);
    rc = read_back(be, s->x, u->in.data, n_rows * home->hidden * sizeof *s->x, err);
    rc = rc == OK ? read_back(be, s->prob, u->prob.data, n * sizeof *s->prob, err) : rc;
    rc = rc == OK ? cuda_result(be, be->drv->event_record(s->is_read, be->stream), err,
                                "cuEventRecord after the CPU's rows")
                  : rc;
    rc = rc == OK ? cuda_result(be,
                                be->drv->memcpy_htod_async(s->idx, s->card_idx,
                                                           n * sizeof *s->card_idx, be->stream),
                                err, "cuMemcpyHtoDAsync of %zu choices", n)
                  : rc;
    s->n_rows = rc == OK ? n_rows : 0;
    return rc;
}

const int32_t *cuda_share_idx(const struct cuda_share *s, size_t row0)
{
    return s && s->n_rows > 0
               ? (const int32_t *)(const void *)(uintptr_t)s->idx + row0 * s->home->top_k
               : NULL;
}

const float *cuda_share_sum(const struct cuda_share *s, size_t row0)
{
    return s && s->n_rows > 0 ? s->y + row0 * s->home->hidden : NULL;
}

enum status cuda_share_compute(struct cuda_backend *be, struct cuda_share *s, const struct op *op,
                               struct error *err)
{
    const struct expert_home *home = s->home;
    enum status rc = cuda_result(be, be->drv->event_synchronize(s->is_read), err,
                                 "waiting for the CPU's rows (the error may be an earlier "
                                 "kernel's)");

    if (rc == OK) {
        rc = home->ops->large_compute(home->ctx, op->u.experts.home_layer, s->n_rows, s->cpu_idx,
                                      s->prob, s->x, s->y, err);
        if (rc != OK) {
            error_prefix(err, "experts '%s' of layer %d on the CPU", op->name, op->layer);
        }
    }
    return rc;
}
