/* op_cost.c - see op_cost.h. */
#include "backend/op_cost.h"

#include <math.h>

#include "base/size.h"

enum { DELTA_FLOP = 7 }; /* per state element: decay, S'k, the update, S'q */

const char *cost_class_name(enum cost_class c)
{
    static const char *const names[COST_CLASS_COUNT] = {"dense weights", "experts", "KV cache",
                                                        "states"};

    return (unsigned)c < COST_CLASS_COUNT ? names[c] : "unknown";
}

static void add_product(struct op_cost *c, const struct weight *w, double rows)
{
    double flop = 2 * (double)w->n_in * (double)w->n_out * rows;

    c->flop += flop;
    if (w->kind != WEIGHT_DENSE) {
        c->flop_quantised += flop;
    }
}

static void add_matrix(struct op_cost *c, const struct weight *w, double rows)
{
    c->bytes[COST_DENSE] += (double)weight_bytes(w);
    add_product(c, w, rows);
}

static void add_floats(struct op_cost *c, size_t n)
{
    c->bytes[COST_DENSE] += (double)n * sizeof(float);
}

static void add_experts(struct op_cost *c, const struct op_experts *u, double rows,
                        const struct cost_step *step)
{
    double bytes = 0, n = (double)u->n_experts;
    struct op_cost all = {0}; /* the arithmetic of one row in every expert */

    for (size_t e = 0; e < u->n_experts; e++) {
        const struct weight *parts[] = {&u->experts[e].gate, &u->experts[e].up,
                                        &u->experts[e].down};

        for (size_t i = 0; i < 3; i++) {
            bytes += (double)weight_bytes(parts[i]);
            add_product(&all, parts[i], 1);
        }
    }
    c->bytes[COST_EXPERT] += bytes / n * step->n_touched;
    c->flop += all.flop / n * (double)u->top_k * rows;
    c->flop_quantised += all.flop_quantised / n * (double)u->top_k * rows;
}

/* Bytes of one token's keys and values in one layer. */
static double kv_token_bytes(const struct state_pools *p)
{
    return 2 * ((double)(p->kv_elems / KV_PAGE_TOKENS) * (double)dtype_bytes(p->kv_dtype) +
                (double)(p->kv_scales / KV_PAGE_TOKENS) * sizeof(float));
}

static void add_attention(struct op_cost *c, const struct op_attention *u,
                          const struct cost_step *step, const struct state_pools *pools)
{
    double seqs = (double)step->n_seqs, each = (double)step->n_rows / seqs;
    double depth = (double)step->depth;
    double pairs = seqs * (each * depth + each * (each + 1) / 2); /* row i sees depth + i + 1 */

    c->bytes[COST_KV] += seqs * (depth + each) * kv_token_bytes(pools);
    c->flop += 4 * (double)(u->nq * u->hd) * pairs;
}

static void add_delta(struct op_cost *c, const struct op_delta *u, double rows,
                      const struct cost_step *step, const struct state_pools *pools)
{
    double state = (double)pools->recurrent_elems * (double)dtype_bytes(pools->recurrent_dtype);

    add_floats(c, 2 * u->nv + u->dv);
    c->bytes[COST_STATE] += 2 * state * (double)step->n_seqs;
    c->flop += DELTA_FLOP * (double)(u->nv * u->dk * u->dv) * rows;
}

static void add_conv(struct op_cost *c, const struct op_conv *u, double rows,
                     const struct cost_step *step, const struct state_pools *pools)
{
    double state = (double)pools->conv_elems * (double)dtype_bytes(pools->conv_dtype);

    add_floats(c, u->taps * u->channels);
    c->bytes[COST_STATE] += 2 * state * (double)step->n_seqs;
    c->flop += 2 * (double)(u->taps * u->channels) * rows;
}

struct op_cost op_cost(const struct op *op, const struct cost_step *step,
                       const struct state_pools *pools)
{
    double rows = (double)(op->rows == ROWS_OUT ? step->n_out_rows : step->n_rows);
    struct op_cost c = {0};

    if (rows == 0) {
        return c;
    }
    switch (op->kind) {
    case OP_EMBED: /* of a table only the rows of the tokens */
        c.bytes[COST_DENSE] = (double)weight_row_bytes(&op->u.embed.table) * rows;
        break;
    case OP_NORM:
        add_floats(&c, op->u.norm.in.cols);
        break;
    case OP_LINEAR:
        for (size_t i = 0; i < op->u.linear.n_parts; i++) {
            add_matrix(&c, &op->u.linear.part[i].w, rows);
        }
        break;
    case OP_CONV:
        add_conv(&c, &op->u.conv, rows, step, pools);
        break;
    case OP_DELTA:
        add_delta(&c, &op->u.delta, rows, step, pools);
        break;
    case OP_QKV:
        add_floats(&c, 2 * op->u.qkv.hd);
        c.bytes[COST_KV] = kv_token_bytes(pools) * rows;
        break;
    case OP_ATTENTION:
        add_attention(&c, &op->u.attention, step, pools);
        break;
    case OP_ROUTE:
        add_matrix(&c, &op->u.route.router, rows);
        break;
    case OP_EXPERTS:
        add_experts(&c, &op->u.experts, rows, step);
        break;
    case OP_SWIGLU:
    case OP_ADD_SHARED:
    case OP_CHECK:
    case OP_GATHER:
    case OP_BEST:
    case OP_KIND_COUNT:
        break;
    }
    return c;
}

double op_cost_bytes(const struct op_cost *c)
{
    double sum = 0;

    for (int i = 0; i < COST_CLASS_COUNT; i++) {
        sum += c->bytes[i];
    }
    return sum;
}

void op_cost_add(struct op_cost *sum, const struct op_cost *c)
{
    for (int i = 0; i < COST_CLASS_COUNT; i++) {
        sum->bytes[i] += c->bytes[i];
    }
    sum->flop += c->flop;
    sum->flop_quantised += c->flop_quantised;
}

struct op_cost plan_cost(const struct op *ops, size_t n_ops, const struct cost_step *step,
                         const struct state_pools *pools)
{
    struct op_cost sum = {0};

    for (size_t i = 0; i < n_ops; i++) {
        struct op_cost c = op_cost(&ops[i], step, pools);
        op_cost_add(&sum, &c);
    }
    return sum;
}

double cost_uniform_touched(size_t n_experts, size_t top_k, size_t n_rows)
{
    double n = (double)n_experts;

    return n == 0 ? 0 : n * (1 - pow(1 - (double)size_min(top_k, n_experts) / n, (double)n_rows));
}
