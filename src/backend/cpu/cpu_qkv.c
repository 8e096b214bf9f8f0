/* cpu_qkv.c - query and key norm, partial rotary embedding, and the write into the KV cache.
 *
 * Place:  backend/cpu. Rows are independent. Values are rounded to the activations' type after norm
 *         and rotation, then once more to the cache's type.
 * fp8:    each head's row has a scale of its own, amax / (largest fp8 value), so a row of any size
 *         uses the whole range. */
#include <assert.h>
#include <float.h>
#include <math.h>

#include "backend/cpu/cpu_kv.h"
#include "base/half.h"
#include "base/size.h"

static const float E4M3_MAX = 448.0f, E5M2_MAX = 57344.0f;

static bool is_fp8(enum dtype t)
{
    return t == DTYPE_F8_E4M3 || t == DTYPE_F8_E5M2;
}

static struct kv_rows kv_rows_at(const struct state_pools *s, uint8_t *data, float *scales,
                                 size_t layer, int32_t page, size_t head, size_t hd)
{
    size_t place = layer * s->n_pages + (size_t)page;
    struct kv_rows rows;

    rows.data =
        data + (place * s->kv_elems + head * KV_PAGE_TOKENS * hd) * dtype_bytes(s->kv_dtype);
    rows.scales =
        is_fp8(s->kv_dtype) ? scales + place * s->kv_scales + head * KV_PAGE_TOKENS : NULL;
    return rows;
}

struct kv_rows cpu_kv_keys(const struct state_pools *s, size_t layer, int32_t page, size_t head,
                           size_t hd)
{
    return kv_rows_at(s, s->k, s->k_scale, layer, page, head, hd);
}

struct kv_rows cpu_kv_values(const struct state_pools *s, size_t layer, int32_t page, size_t head,
                             size_t hd)
{
    return kv_rows_at(s, s->v, s->v_scale, layer, page, head, hd);
}

static void store_fp8(enum dtype t, uint8_t *out, float *scale, const float *x, size_t hd)
{
    float amax = 0;

    for (size_t i = 0; i < hd; i++) {
        float size = fabsf(x[i]);

        amax = size > amax ? size : amax;
    }
    *scale = amax / (t == DTYPE_F8_E4M3 ? E4M3_MAX : E5M2_MAX);
    if (*scale < FLT_MIN) {
        *scale = 1.0f; /* all zero, or so small that the quotient would not be one */
    }
    for (size_t i = 0; i < hd; i++) {
        float v = x[i] / *scale;

        out[i] = t == DTYPE_F8_E4M3 ? f8e4m3_from_f32(v) : f8e5m2_from_f32(v);
    }
}

void cpu_kv_store(const struct cpu_backend *be, enum dtype t, struct kv_rows rows, size_t at,
                  const float *x, size_t hd)
{
    uint8_t *out = rows.data + at * hd * dtype_bytes(t);

    if (is_fp8(t)) {
        store_fp8(t, out, rows.scales + at, x, hd);
    } else {
        be->kernels->store(t, out, x, hd);
    }
}

const float *cpu_kv_load(const struct cpu_backend *be, enum dtype t, struct kv_rows rows, size_t n,
                         size_t hd, float *buffer)
{
    if (t == DTYPE_F32) {
        return (const float *)(const void *)rows.data;
    }
    if (!is_fp8(t)) {
        be->kernels->load(buffer, t, rows.data, n * hd);
        return buffer;
    }
    for (size_t j = 0; j < n; j++) {
        be->kernels->load_fp8(buffer + j * hd, t, rows.data + j * hd, hd, rows.scales[j]);
    }
    return buffer;
}

enum status cpu_kv_check(const struct op *op, const struct state_pools *s, const struct step *step,
                         size_t layer, size_t nkv, size_t hd, struct error *err)
{
    if (layer >= s->n_attn_layers || s->kv_elems != nkv * KV_PAGE_TOKENS * hd) {
        return cpu_broken(err, op, "the KV pool has another shape");
    }
    switch (s->kv_dtype) {
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
        break;
    case DTYPE_F8_E4M3:
    case DTYPE_F8_E5M2:
        if (!s->k_scale || !s->v_scale || s->kv_scales != nkv * KV_PAGE_TOKENS) {
            return cpu_broken(err, op, "the KV pool has no scales");
        }
        break;
    default:
        return cpu_broken(err, op, "the KV pool has a type that no kernel reads");
    }
    for (size_t i = 0; i < step->n_spans; i++) {
        const struct span *span = &step->spans[i];
        size_t n_pages = (span->position + span->n_rows + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;

        for (size_t p = 0; p < n_pages; p++) {
            assert(span->pages[p] >= 0 && (size_t)span->pages[p] < s->n_pages);
        }
    }
    return OK;
}

static enum status qkv_check(struct cpu_backend *be, struct op *op, struct error *err)
{
    const struct op_qkv *u = &op->u.qkv;
    enum status rc = cpu_check_all_rows(op, err);

    if (rc == OK && (u->nkv == 0 || u->hd == 0 || u->nq == 0 || u->nq % u->nkv != 0 ||
                     u->rope_dims > u->hd || u->rope_dims % 2 != 0)) {
        rc = cpu_refuse(err, op, "%zu query and %zu KV heads of %zu, %zu rotary dims", u->nq,
                        u->nkv, u->hd, u->rope_dims);
    }
    if (rc == OK) {
        rc = cpu_check_operand(op, "q", &u->q, u->nq * u->hd * (u->is_gated ? 2 : 1), err);
    }
    if (rc == OK) {
        rc = cpu_check_operand(op, "k", &u->k, u->nkv * u->hd, err);
    }
    if (rc == OK) {
        rc = cpu_check_operand(op, "v", &u->v, u->nkv * u->hd, err);
    }
    if (rc == OK && (!u->q_norm || !u->k_norm || (u->rope_dims && !u->inv_freq))) {
        rc = cpu_refuse(err, op, "a norm weight or the frequencies are missing");
    }
    op->kernel = rc == OK ? cpu_isa_name(be, CPU_NAMES("qkv")) : NULL;
    return rc;
}

static void qkv_need(const struct cpu_backend *be, const struct op *op, size_t rows_max,
                     struct cpu_need *need)
{
    (void)be;
    (void)rows_max;
    need->per_thread = cpu_plus(op->u.qkv.rope_dims, op->u.qkv.hd);
}

struct qkv_run {
    const struct cpu_backend *be;
    const struct op_qkv *u;
    const struct step *step;
    const struct state_pools *state;
};

/* The pairs are (i, i + rope_dims/2); dimensions from rope_dims on pass through. */
static void rotate(float *x, const float *cosines, const float *sines, size_t half)
{
    for (size_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];

        x[i] = a * cosines[i] - b * sines[i];
        x[i + half] = b * cosines[i] + a * sines[i];
    }
}

static void qkv_row(const struct qkv_run *r, const struct span *span, size_t t, float *scratch)
{
    const struct op_qkv *u = r->u;
    const struct cpu_kernels *kn = r->be->kernels;
    const struct state_pools *s = r->state;
    size_t row = span->row + t, position = span->position + t, half = u->rope_dims / 2;
    size_t q_stride = u->is_gated ? 2 * u->hd : u->hd, at = position % KV_PAGE_TOKENS;
    int32_t page = span->pages[position / KV_PAGE_TOKENS];
    float *cosines = scratch, *sines = scratch + half, *head = scratch + 2 * half;

    for (size_t i = 0; i < half; i++) {
        float angle = (float)position * u->inv_freq[i];

        cosines[i] = cosf(angle) * u->rope_scale;
        sines[i] = sinf(angle) * u->rope_scale;
    }
    for (size_t h = 0; h < u->nq; h++) {
        float *q = (float *)u->q.data + row * u->q.cols + h * q_stride;

        kn->norm(q, q, u->q_norm, u->hd, u->eps);
        rotate(q, cosines, sines, half);
        kn->round(u->q.round, q, u->hd);
    }
    for (size_t h = 0; h < u->nkv; h++) {
        size_t from = row * u->nkv * u->hd + h * u->hd;

        kn->norm(head, (const float *)u->k.data + from, u->k_norm, u->hd, u->eps);
        rotate(head, cosines, sines, half);
        kn->round(u->k.round, head, u->hd);
        cpu_kv_store(r->be, s->kv_dtype, cpu_kv_keys(s, u->attn_layer, page, h, u->hd), at, head,
                     u->hd);
        cpu_kv_store(r->be, s->kv_dtype, cpu_kv_values(s, u->attn_layer, page, h, u->hd), at,
                     (const float *)u->v.data + from, u->hd);
    }
}

static void qkv_range(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct qkv_run *r = ctx;

    for (size_t i = 0; i < r->step->n_spans; i++) {
        const struct span *span = &r->step->spans[i];
        size_t first = size_max(begin, span->row), last = size_min(end, span->row + span->n_rows);

        for (size_t row = first; row < last; row++) {
            qkv_row(r, span, row - span->row, cpu_scratch(r->be, thread));
        }
    }
}

static enum status qkv_run(struct cpu_backend *be, const struct op *op, const struct step *step,
                           const struct state_pools *state, struct error *err)
{
    const struct op_qkv *u = &op->u.qkv;
    struct qkv_run r = {be, u, step, state};
    enum status rc = cpu_kv_check(op, state, step, u->attn_layer, u->nkv, u->hd, err);

    if (rc == OK) {
        cpu_parallel(be, step->n_rows, 1, step->n_rows * (u->nq + u->nkv) * u->hd * 8, qkv_range,
                     &r);
    }
    return rc;
}

const struct cpu_family cpu_qkv = {qkv_check, qkv_need, qkv_run};
