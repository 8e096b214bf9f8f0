/* cpu_attention.c - causal attention over the KV pages, times sigmoid(gate).
 *
 * Place:  backend/cpu. A work item is a block of rows of one span with the query heads that share a KV
 *         head, so each page is converted to float32 once per item. When that makes fewer items than
 *         threads (decode), an item is one query head: converting a page again for each costs less
 *         than idle cores.
 * Order:  softmax is accumulated online, one page (64 positions) after the other:
 *
 *             m' = max(m, max s_j)   keep = exp(m - m')   l = l keep + sum exp(s_j - m')
 *             acc = acc keep + sum exp(s_j - m') v_j      out = acc / l
 *
 *         The pages begin at multiples of 64 positions whatever the span, so what a row computes
 *         depends on its position only: prefill in any chunks and decode agree bit for bit. */
#include <math.h>

#include "backend/cpu/cpu_kv.h"
#include "base/size.h"

enum { ROW_BLOCK = 16 };

static enum status attention_check(struct cpu_backend *be, struct op *op, struct error *err)
{
    const struct op_attention *u = &op->u.attention;
    enum status rc = cpu_check_all_rows(op, err);

    if (rc == OK && (u->nkv == 0 || u->hd == 0 || u->nq == 0 || u->nq % u->nkv != 0)) {
        rc = cpu_refuse(err, op, "%zu query and %zu KV heads of %zu", u->nq, u->nkv, u->hd);
    }
    if (rc == OK) {
        rc = cpu_check_operand(op, "q", &u->q, u->nq * u->hd * (u->is_gated ? 2 : 1), err);
    }
    if (rc == OK) {
        rc = cpu_check_operand(op, "the output", &u->out, u->nq * u->hd, err);
    }
    if (rc == OK && u->out.data == u->q.data) {
        rc = cpu_refuse(err, op, "the output overlaps the input");
    }
    op->kernel = rc == OK ? cpu_isa_name(be, CPU_NAMES("attention")) : NULL;
    return rc;
}

/* Scratch of one thread: a page of keys and of values, and the running softmax of each row and
 * query head of the item ("lane"). */
struct attention_scratch {
    float *K, *V;     /* [KV_PAGE_TOKENS][hd] */
    float *p;         /* [KV_PAGE_TOKENS] */
    float *max, *sum; /* [lanes] */
    float *acc;       /* [lanes][hd] */
};

static size_t attention_scratch_cut(struct attention_scratch *s, float *base,
                                    const struct op_attention *u)
{
    size_t page = cpu_times(KV_PAGE_TOKENS, u->hd), lanes = ROW_BLOCK * (u->nq / u->nkv), at = 0;
    struct {
        float **part;
        size_t n;
    } parts[] = {
        {&s->K, page},    {&s->V, page},    {&s->p, KV_PAGE_TOKENS},
        {&s->max, lanes}, {&s->sum, lanes}, {&s->acc, cpu_times(lanes, u->hd)},
    };

    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i].part = base ? base + at : NULL;
        at = cpu_plus(at, cpu_plus(parts[i].n, 15) & ~(size_t)15);
    }
    return at;
}

static void attention_need(const struct cpu_backend *be, const struct op *op, size_t rows_max,
                           struct cpu_need *need)
{
    struct attention_scratch s;

    (void)be;
    (void)rows_max;
    need->per_thread = attention_scratch_cut(&s, NULL, &op->u.attention);
}

struct attention_run {
    const struct cpu_backend *be;
    const struct op_attention *u;
    const struct step *step;
    const struct state_pools *state;
    size_t heads; /* query heads of an item; divides nq / nkv */
};

/* Rows [first, last) of a span and r->heads query heads from first_head on. */
struct attention_item {
    const struct span *span;
    size_t first, last;
    size_t first_head;
};

static size_t query_at(const struct op_attention *u, size_t row, size_t head)
{
    return row * u->q.cols + head * (u->is_gated ? 2 * u->hd : u->hd);
}

/* Lane takes the first n positions of the page in s->K and s->V. */
static void attend_page(const struct attention_run *r, struct attention_scratch *s, const float *q,
                        const float *K, const float *V, size_t n, size_t lane)
{
    const struct cpu_kernels *kn = r->be->kernels;
    float max, keep, sum;

    kn->scores(s->p, q, K, n, r->u->hd, r->u->scale);
    max = kn->max(s->p, n);
    if (max < s->max[lane]) {
        max = s->max[lane];
    }
    keep = expf(s->max[lane] - max);
    sum = kn->exp_sum(s->p, max, n);
    s->sum[lane] = s->sum[lane] * keep + sum;
    s->max[lane] = max;
    kn->weigh(s->acc + lane * r->u->hd, keep, s->p, V, n, r->u->hd);
}

static void attend_pages(const struct attention_run *r, const struct attention_item *it,
                         struct attention_scratch *s)
{
    const struct op_attention *u = r->u;
    size_t kv_head = it->first_head / (u->nq / u->nkv), end = it->span->position + it->last;
    enum dtype t = r->state->kv_dtype;

    for (size_t base = 0; base < end; base += KV_PAGE_TOKENS) {
        int32_t page = it->span->pages[base / KV_PAGE_TOKENS];
        size_t n_page = size_min(KV_PAGE_TOKENS, end - base);
        const float *K, *V;

        K = cpu_kv_load(r->be, t, cpu_kv_keys(r->state, u->attn_layer, page, kv_head, u->hd),
                        n_page, u->hd, s->K);
        V = cpu_kv_load(r->be, t, cpu_kv_values(r->state, u->attn_layer, page, kv_head, u->hd),
                        n_page, u->hd, s->V);
        for (size_t i = it->first; i < it->last; i++) {
            size_t visible = it->span->position + i + 1;

            if (visible <= base) {
                continue;
            }
            for (size_t g = 0; g < r->heads; g++) {
                const float *q =
                    (const float *)u->q.data + query_at(u, it->span->row + i, it->first_head + g);

                attend_page(r, s, q, K, V, size_min(KV_PAGE_TOKENS, visible - base),
                            (i - it->first) * r->heads + g);
            }
        }
    }
}

static void attend_item(const struct attention_run *r, const struct attention_item *it,
                        struct attention_scratch *s)
{
    const struct op_attention *u = r->u;
    const struct cpu_kernels *kn = r->be->kernels;
    size_t n_lanes = (it->last - it->first) * r->heads;

    for (size_t lane = 0; lane < n_lanes; lane++) {
        s->max[lane] = -INFINITY;
        s->sum[lane] = 0;
    }
    for (size_t i = 0; i < n_lanes * u->hd; i++) {
        s->acc[i] = 0;
    }
    attend_pages(r, it, s);
    for (size_t lane = 0; lane < n_lanes; lane++) {
        size_t row = it->span->row + it->first + lane / r->heads;
        size_t head = it->first_head + lane % r->heads;
        float *acc = s->acc + lane * u->hd;
        float *out = (float *)u->out.data + (row * u->nq + head) * u->hd;

        kn->scale(acc, 1.0f / s->sum[lane], u->hd);
        if (u->is_gated) {
            const float *gate = (const float *)u->q.data + query_at(u, row, head) + u->hd;

            kn->sigmoid_mul(out, acc, gate, u->hd);
        } else {
            kn->store(DTYPE_F32, out, acc, u->hd);
        }
        kn->round(u->out.round, out, u->hd);
    }
}

static size_t span_blocks(const struct span *span)
{
    return (span->n_rows + ROW_BLOCK - 1) / ROW_BLOCK;
}

/* Later blocks see more positions. Taking them from both ends in turn gives equal stretches of items
 * about equal work. */
static size_t balanced(size_t i, size_t n)
{
    return i % 2 == 0 ? i / 2 : n - 1 - i / 2;
}

static void attention_range(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct attention_run *r = ctx;
    struct attention_scratch s;
    size_t base = 0;

    attention_scratch_cut(&s, cpu_scratch(r->be, thread), r->u);
    for (size_t i = 0; i < r->step->n_spans && base < end; i++) {
        const struct span *span = &r->step->spans[i];
        size_t n_blocks = span_blocks(span), n_items = n_blocks * (r->u->nq / r->heads);

        for (size_t item = size_max(begin, base); item < size_min(end, base + n_items); item++) {
            size_t block = balanced((item - base) % n_blocks, n_blocks);
            struct attention_item it = {
                .span = span,
                .first = block * ROW_BLOCK,
                .last = size_min((block + 1) * ROW_BLOCK, span->n_rows),
                .first_head = (item - base) / n_blocks * r->heads,
            };

            attend_item(r, &it, &s);
        }
        base += n_items;
    }
}

static enum status attention_run(struct cpu_backend *be, const struct op *op,
                                 const struct step *step, const struct state_pools *state,
                                 struct error *err)
{
    const struct op_attention *u = &op->u.attention;
    struct attention_run r = {be, u, step, state, u->nq / u->nkv};
    enum status rc = cpu_kv_check(op, state, step, u->attn_layer, u->nkv, u->hd, err);
    size_t n_blocks = 0, work = 0;

    if (rc != OK) {
        return rc;
    }
    for (size_t i = 0; i < step->n_spans; i++) {
        const struct span *span = &step->spans[i];

        n_blocks += span_blocks(span);
        work += span->n_rows * (span->position + span->n_rows) * u->nq * u->hd;
    }
    if (n_blocks * u->nkv < be->n_threads) {
        r.heads = 1;
    }
    cpu_parallel(be, n_blocks * (u->nq / r.heads), 1, work, attention_range, &r);
    return OK;
}

const struct cpu_family cpu_attention = {attention_check, attention_need, attention_run};
