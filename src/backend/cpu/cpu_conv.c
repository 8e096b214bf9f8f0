/* cpu_conv.c - causal depthwise convolution over time, then silu, with the state carried.
 *
 * Place:  backend/cpu. y_t[c] = silu(sum_j w[j][c] * m_{t - taps + 1 + j}[c]); what lies before the
 *         span comes from the state (the last taps-1 columns of raw inputs), what lies before the
 *         sequence is zero. Threads split the channels, which never meet. */
#include <assert.h>
#include <string.h>

#include "backend/cpu/cpu_internal.h"

enum { CHANNEL_GRAIN = 64 };

static enum status conv_check(struct cpu_backend *be, struct op *op, struct error *err)
{
    const struct op_conv *u = &op->u.conv;
    enum status rc = cpu_check_all_rows(op, err);

    if (rc == OK) {
        rc = cpu_check_operand(op, "the input", &u->in, u->channels, err);
    }
    if (rc == OK) {
        rc = cpu_check_operand(op, "the output", &u->out, u->channels, err);
    }
    if (rc == OK && u->in.data == u->out.data) {
        rc = cpu_refuse(err, op, "the output overlaps the input");
    }
    if (rc == OK && (u->taps < 1 || u->taps > CONV_TAPS_MAX)) {
        rc = cpu_refuse(err, op, "%zu taps, 1 to %d are built", u->taps, CONV_TAPS_MAX);
    }
    if (rc == OK && !u->weight) {
        rc = cpu_refuse(err, op, "it has no weight");
    }
    op->kernel = rc == OK ? cpu_isa_name(be, CPU_NAMES("conv")) : NULL;
    return rc;
}

static void conv_need(const struct cpu_backend *be, const struct op *op, size_t rows_max,
                      struct cpu_need *need)
{
    (void)be;
    (void)rows_max;
    need->per_thread = cpu_times(CONV_TAPS_MAX - 1, op->u.conv.channels);
}

struct conv_run {
    const struct cpu_backend *be;
    const struct op_conv *u;
    const struct step *step;
    const struct state_pools *state;
};

/* Row t of the span, counted from its start; negative rows are history. */
static const float *conv_column(const struct op_conv *u, const struct span *span, ptrdiff_t t,
                                const float *history, size_t c0, size_t n)
{
    if (t < 0) {
        return history + (size_t)(t + (ptrdiff_t)u->taps - 1) * n;
    }
    return (const float *)u->in.data + (span->row + (size_t)t) * u->channels + c0;
}

static void conv_span(const struct conv_run *r, const struct span *span, size_t c0, size_t n,
                      float *history)
{
    const struct op_conv *u = r->u;
    const struct state_pools *s = r->state;
    size_t each = dtype_bytes(s->conv_dtype), n_history = u->taps - 1;
    size_t place = u->gdn_layer * s->n_slots + (size_t)span->slot;
    uint8_t *kept = s->conv + place * s->conv_elems * each;
    const float *column[CONV_TAPS_MAX];

    for (size_t j = 0; j < n_history; j++) {
        if (span->state_is_zero) {
            memset(history + j * n, 0, n * sizeof *history);
        } else {
            r->be->kernels->load(history + j * n, s->conv_dtype,
                                 kept + (j * u->channels + c0) * each, n);
        }
    }
    for (size_t t = 0; t < span->n_rows; t++) {
        float *out = (float *)u->out.data + (span->row + t) * u->channels + c0;

        for (size_t j = 0; j < u->taps; j++) {
            column[j] =
                conv_column(u, span, (ptrdiff_t)(t + j) - (ptrdiff_t)n_history, history, c0, n);
        }
        r->be->kernels->conv(out, column, u->weight + c0, u->channels, u->taps, n);
        r->be->kernels->round(u->out.round, out, n);
    }
    for (size_t j = 0; j < n_history; j++) {
        ptrdiff_t t = (ptrdiff_t)(span->n_rows + j) - (ptrdiff_t)n_history;

        r->be->kernels->store(s->conv_dtype, kept + (j * u->channels + c0) * each,
                              conv_column(u, span, t, history, c0, n), n);
    }
}

static void conv_range(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct conv_run *r = ctx;

    for (size_t i = 0; i < r->step->n_spans; i++) {
        conv_span(r, &r->step->spans[i], begin, end - begin, cpu_scratch(r->be, thread));
    }
}

static enum status conv_run(struct cpu_backend *be, const struct op *op, const struct step *step,
                            const struct state_pools *state, struct error *err)
{
    const struct op_conv *u = &op->u.conv;
    struct conv_run r = {be, u, step, state};

    if (u->gdn_layer >= state->n_gdn_layers || state->conv_elems != (u->taps - 1) * u->channels) {
        return cpu_broken(err, op, "the conv state has another shape");
    }
    /* A state of lower precision than its inputs would make decode differ from prefill. */
    if (state->conv_dtype != DTYPE_F32 && state->conv_dtype != u->in.round) {
        return cpu_broken(err, op, "the conv state has another type than the conv's input");
    }
    for (size_t i = 0; i < step->n_spans; i++) {
        assert(step->spans[i].slot >= 0 && (size_t)step->spans[i].slot < state->n_slots);
    }
    cpu_parallel(be, u->channels, CHANNEL_GRAIN, step->n_rows * u->channels * (u->taps + 8),
                 conv_range, &r);
    return OK;
}

const struct cpu_family cpu_conv = {conv_check, conv_need, conv_run};
