/* cpu_delta.c - the gated delta rule with its gates, l2 norms and gated output norm.
 *
 * Place:  backend/cpu. One work item is one value head of one span; it runs over the span's rows in
 *         order, with the state in float32, and needs no other head.
 * Forms:  short spans take the recurrence row by row; spans of chunk_min rows and more take chunks of
 *         64 rows, which do the same arithmetic as matrix products:
 *
 *             G_i = sum_{t<=i} g_t                     M_ij = beta_i (k_i.k_j) exp(G_i - G_j), j < i
 *             B_i = beta_i (v_i - exp(G_i) S'k_i)      (I + M) R = B, forward substitution
 *             o_i = exp(G_i) S'q_i + sum_{j<=i} (q_i.k_j) exp(G_i - G_j) R_j
 *             S   = exp(G_n) S + sum_t exp(G_n - G_t) k_t R_t'
 *
 *         (solving for U - W S at once instead of for U and W apart saves one solve.) Only j <= i is
 *         ever exponentiated, so every exponent is <= 0 and nothing overflows.
 * Source: Yang et al., "Gated Delta Networks" (arXiv 2412.06464); state [key][value]. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu_internal.h"
#include "base/size.h"

enum { CHUNK = 64 };
static const float L2_EPS = 1e-6f; /* inside the sum of squares, fixed by the architecture */
static const float SOFTPLUS_LINEAR = 20.0f;

/* Scratch of one thread. */
struct delta_scratch {
    float *S;            /* [dk][dv], for states that are not stored as float32 */
    float *q, *k;        /* [CHUNK][dk] normalised */
    float *kt;           /* [dk][CHUNK] transposed */
    float *r;            /* [CHUNK][dv] B, then R */
    float *o;            /* [CHUNK][dv] */
    float *m, *p;        /* [CHUNK][CHUNK] */
    float *beta, *decay; /* [CHUNK] */
    float *fade;         /* [CHUNK] */
    double G[CHUNK];     /* double: the differences of large sums matter */
};

static size_t delta_scratch_cut(struct delta_scratch *s, float *base, size_t dk, size_t dv)
{
    size_t at = 0;
    struct {
        float **part;
        size_t n;
    } parts[] = {
        {&s->S, cpu_times(dk, dv)},
        {&s->q, cpu_times(CHUNK, dk)},
        {&s->k, cpu_times(CHUNK, dk)},
        {&s->kt, cpu_times(CHUNK, dk)},
        {&s->r, cpu_times(CHUNK, dv)},
        {&s->o, cpu_times(CHUNK, dv)},
        {&s->m, CHUNK * CHUNK},
        {&s->p, CHUNK * CHUNK},
        {&s->beta, CHUNK},
        {&s->decay, CHUNK},
        {&s->fade, CHUNK},
    };

    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i].part = base ? base + at : NULL;
        at = cpu_plus(at, cpu_plus(parts[i].n, 15) & ~(size_t)15);
    }
    return at;
}

static enum status delta_check(struct cpu_backend *be, struct op *op, struct error *err)
{
    const struct op_delta *u = &op->u.delta;
    enum status rc = cpu_check_all_rows(op, err);

    if (rc == OK && (u->nk == 0 || u->dk == 0 || u->dv == 0 || u->nv == 0 || u->nv % u->nk != 0)) {
        rc = cpu_refuse(err, op, "%zu key heads of %zu and %zu value heads of %zu", u->nk, u->dk,
                        u->nv, u->dv);
    }
    if (rc == OK) {
        rc = cpu_check_operand(op, "q, k and v", &u->qkv, 2 * u->nk * u->dk + u->nv * u->dv, err);
    }
    if (rc == OK) {
        rc = cpu_check_operand(op, "z", &u->z, u->nv * u->dv, err);
    }
    if (rc == OK) {
        rc = cpu_check_operand(op, "a", &u->a, u->nv, err);
    }
    if (rc == OK) {
        rc = cpu_check_operand(op, "b", &u->b, u->nv, err);
    }
    if (rc == OK) {
        rc = cpu_check_operand(op, "the output", &u->out, u->nv * u->dv, err);
    }
    if (rc == OK && (u->out.data == u->qkv.data || u->out.data == u->z.data)) {
        rc = cpu_refuse(err, op, "the output overlaps an input");
    }
    if (rc == OK && (!u->neg_exp_a || !u->dt_bias || !u->norm)) {
        rc = cpu_refuse(err, op, "decay, dt_bias or norm is missing");
    }
    op->kernel = rc == OK ? cpu_isa_name(be, CPU_NAMES("delta")) : NULL;
    return rc;
}

static void delta_need(const struct cpu_backend *be, const struct op *op, size_t rows_max,
                       struct cpu_need *need)
{
    struct delta_scratch s;

    (void)be;
    (void)rows_max;
    need->per_thread = delta_scratch_cut(&s, NULL, op->u.delta.dk, op->u.delta.dv);
}

struct delta_run {
    struct cpu_backend *be;
    const struct op_delta *u;
    const struct step *step;
    const struct state_pools *state;
};

/* Row `row`, head h: write strength and logarithm of the decay. */
static void delta_gates(const struct op_delta *u, size_t row, size_t h, float *beta, float *g)
{
    float a = ((const float *)u->a.data)[row * u->nv + h] + u->dt_bias[h];
    float b = ((const float *)u->b.data)[row * u->nv + h];
    float softplus = a > SOFTPLUS_LINEAR ? a : log1pf(expf(a));

    *beta = 1.0f / (1.0f + expf(-b));
    *g = u->neg_exp_a[h] * softplus;
}

static void l2_normalise(const struct cpu_kernels *kn, float *out, const float *x, size_t n,
                         float factor)
{
    float inverse = 1.0f / sqrtf(kn->dot(x, x, n) + L2_EPS);

    for (size_t i = 0; i < n; i++) {
        out[i] = x[i] * inverse * factor;
    }
}

/* Normalised query and key of value head h (its key head is h / r), and where its value lies. */
static const float *delta_inputs(const struct delta_run *r, size_t row, size_t h, float *q,
                                 float *k)
{
    const struct op_delta *u = r->u;
    const float *x = (const float *)u->qkv.data + row * u->qkv.cols;
    size_t key_head = h / (u->nv / u->nk), n_keys = u->nk * u->dk;

    l2_normalise(r->be->kernels, q, x + key_head * u->dk, u->dk, 1.0f / sqrtf((float)u->dk));
    l2_normalise(r->be->kernels, k, x + n_keys + key_head * u->dk, u->dk, 1.0f);
    return x + 2 * n_keys + h * u->dv;
}

static void delta_output(const struct delta_run *r, size_t row, size_t h, const float *o)
{
    const struct op_delta *u = r->u;
    size_t at = row * u->nv * u->dv + h * u->dv;
    float *out = (float *)u->out.data + at;

    r->be->kernels->gated_norm(out, o, u->norm, (const float *)u->z.data + at, u->dv, u->eps);
    r->be->kernels->round(u->out.round, out, u->dv);
}

static void delta_recurrent(const struct delta_run *r, const struct span *span, size_t h, float *S,
                            struct delta_scratch *s)
{
    const struct op_delta *u = r->u;

    for (size_t row = span->row; row < span->row + span->n_rows; row++) {
        const float *v = delta_inputs(r, row, h, s->q, s->k);
        float beta, g;

        delta_gates(u, row, h, &beta, &g);
        r->be->kernels->delta_step(s->o, S, s->q, s->k, v, expf(g), beta, u->dk, u->dv, s->r);
        delta_output(r, row, h, s->o);
    }
}

/* Inputs of a chunk's n rows; s->r takes v. */
static void chunk_inputs(const struct delta_run *r, size_t row0, size_t n, size_t h,
                         struct delta_scratch *s)
{
    const struct op_delta *u = r->u;
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        const float *v = delta_inputs(r, row0 + i, h, s->q + i * u->dk, s->k + i * u->dk);
        float g;

        memcpy(s->r + i * u->dv, v, u->dv * sizeof *v);
        delta_gates(u, row0 + i, h, &s->beta[i], &g);
        sum += (double)g;
        s->G[i] = sum;
        s->decay[i] = expf((float)sum);
        for (size_t d = 0; d < u->dk; d++) {
            s->kt[d * CHUNK + i] = s->k[i * u->dk + d];
        }
    }
}

/* Turns the raw products k_i.k_j and q_i.k_j into -M (strictly lower) and P (lower). */
static void chunk_mask(const struct cpu_kernels *kn, struct delta_scratch *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float *m = s->m + i * CHUNK, *p = s->p + i * CHUNK;

        for (size_t j = 0; j <= i; j++) {
            s->fade[j] = (float)(s->G[i] - s->G[j]);
        }
        kn->exp_sum(s->fade, 0, i + 1);
        for (size_t j = 0; j <= i; j++) {
            m[j] *= -s->beta[i] * s->fade[j];
            p[j] *= s->fade[j];
        }
        for (size_t j = i + 1; j < n; j++) {
            p[j] = 0;
        }
    }
}

static void chunk_rows(const struct delta_run *r, size_t row0, size_t n, size_t h, float *S,
                       struct delta_scratch *s)
{
    const struct cpu_kernels *kn = r->be->kernels;
    size_t dk = r->u->dk, dv = r->u->dv;

    chunk_inputs(r, row0, n, h, s);
    kn->matmul(s->m, CHUNK, s->k, dk, s->kt, CHUNK, n, n, dk, false);
    kn->matmul(s->p, CHUNK, s->q, dk, s->kt, CHUNK, n, n, dk, false);
    chunk_mask(kn, s, n);

    kn->matmul(s->o, dv, s->k, dk, S, dv, n, dv, dk, false); /* S'k_i, for B */
    for (size_t i = 0; i < n; i++) {
        float *b = s->r + i * dv;

        kn->axpy(b, -s->decay[i], s->o + i * dv, dv);
        kn->scale(b, s->beta[i], dv);
        kn->matmul(b, dv, s->m + i * CHUNK, CHUNK, s->r, dv, 1, dv, i, true);
    }

    kn->matmul(s->o, dv, s->q, dk, S, dv, n, dv, dk, false);
    for (size_t i = 0; i < n; i++) {
        kn->scale(s->o + i * dv, s->decay[i], dv);
    }
    kn->matmul(s->o, dv, s->p, CHUNK, s->r, dv, n, dv, n, true);

    for (size_t t = 0; t < n; t++) {
        float fade = expf((float)(s->G[n - 1] - s->G[t]));

        for (size_t d = 0; d < dk; d++) {
            s->kt[d * CHUNK + t] *= fade;
        }
    }
    kn->scale(S, s->decay[n - 1], dk * dv);
    kn->matmul(S, dv, s->kt, CHUNK, s->r, dv, dk, dv, n, true);
}

static void delta_chunked(const struct delta_run *r, const struct span *span, size_t h, float *S,
                          struct delta_scratch *s)
{
    for (size_t i = 0; i < span->n_rows; i += CHUNK) {
        size_t n = size_min(CHUNK, span->n_rows - i);

        chunk_rows(r, span->row + i, n, h, S, s);
        for (size_t t = 0; t < n; t++) {
            delta_output(r, span->row + i + t, h, s->o + t * r->u->dv);
        }
    }
}

/* A state that is not stored as float32 is widened here, and rounded once at the end of the span. */
static void delta_head(const struct delta_run *r, const struct span *span, size_t h, size_t thread)
{
    const struct op_delta *u = r->u;
    const struct state_pools *st = r->state;
    size_t n = u->dk * u->dv;
    size_t place = u->gdn_layer * st->n_slots + (size_t)span->slot;
    uint8_t *kept =
        st->recurrent + (place * st->recurrent_elems + h * n) * dtype_bytes(st->recurrent_dtype);
    bool is_direct = st->recurrent_dtype == DTYPE_F32;
    struct delta_scratch s;
    float *S;

    delta_scratch_cut(&s, cpu_scratch(r->be, thread), u->dk, u->dv);
    S = is_direct ? (float *)(void *)kept : s.S;
    if (span->state_is_zero) {
        memset(S, 0, n * sizeof *S);
    } else if (!is_direct) {
        r->be->kernels->load(S, st->recurrent_dtype, kept, n);
    }
    if (span->n_rows >= u->chunk_min) {
        delta_chunked(r, span, h, S, &s);
    } else {
        delta_recurrent(r, span, h, S, &s);
    }
    if (!is_direct) {
        r->be->kernels->store(st->recurrent_dtype, kept, S, n);
    }
}

static void delta_range(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct delta_run *r = ctx;

    for (size_t i = begin; i < end; i++) {
        delta_head(r, &r->step->spans[i / r->u->nv], i % r->u->nv, thread);
    }
}

static enum status delta_run(struct cpu_backend *be, const struct op *op, const struct step *step,
                             const struct state_pools *state, struct error *err)
{
    const struct op_delta *u = &op->u.delta;
    struct delta_run r = {be, u, step, state};

    if (u->gdn_layer >= state->n_gdn_layers || state->recurrent_elems != u->nv * u->dk * u->dv) {
        return cpu_broken(err, op, "the recurrent state has another shape");
    }
    if (state->recurrent_dtype != DTYPE_F32 && state->recurrent_dtype != DTYPE_BF16) {
        return cpu_broken(err, op, "the recurrent state must be float32 or bfloat16");
    }
    for (size_t i = 0; i < step->n_spans; i++) {
        assert(step->spans[i].slot >= 0 && (size_t)step->spans[i].slot < state->n_slots);
    }
    cpu_parallel(be, step->n_spans * u->nv, 1, step->n_rows * u->nv * u->dk * u->dv, delta_range,
                 &r);
    return OK;
}

const struct cpu_family cpu_delta = {delta_check, delta_need, delta_run};
