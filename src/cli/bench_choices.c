/* bench_choices.c - see bench_choices.h. */
#include "cli/bench_choices.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

static void *table_new(size_t rows, size_t each)
{
    size_t n;

    return size_mul(&n, rows + 1, each) ? calloc(n, sizeof(int32_t)) : NULL;
}

enum status bench_choices_open(struct bench_choices *c, struct routing_sim *sim,
                               const struct op *ops, size_t n_ops, size_t rows_max,
                               size_t next_rows_max, size_t steps_max, struct error *err)
{
    *c = (struct bench_choices){
        .sim = sim, .rows_max = rows_max, .next_rows_max = next_rows_max, .steps_max = steps_max};
    c->layers = calloc(n_ops + 1, sizeof *c->layers);
    c->touched = calloc(steps_max + 1, sizeof *c->touched);
    for (size_t i = 0; c->layers && i < n_ops; i++) {
        if (ops[i].kind == OP_ROUTE) {
            c->layers[c->n_routes++] = ops[i].layer;
            c->n_experts = ops[i].u.route.n_experts;
            c->top_k = ops[i].u.route.top_k;
        }
    }
    c->idx = table_new(rows_max, c->n_routes * c->top_k);
    c->next = table_new(next_rows_max, c->n_routes * c->top_k);
    c->seen = calloc(c->n_experts / 64 + 1, sizeof *c->seen);
    if (!c->layers || !c->touched || !c->idx || !c->next || !c->seen) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the choices of %zu tokens", rows_max);
    }
    return OK;
}

void bench_choices_close(struct bench_choices *c)
{
    free(c->layers);
    free(c->touched);
    free(c->idx);
    free(c->next);
    free(c->seen);
    *c = (struct bench_choices){0};
}

void bench_choices_begin(struct bench_choices *c)
{
    c->n_rows = c->n_next = c->n_steps = 0;
    c->at_row = c->at_next = c->at_step = 0;
}

static size_t count_distinct(struct bench_choices *c, const int32_t *idx, size_t n)
{
    size_t n_distinct = 0;

    memset(c->seen, 0, (c->n_experts + 63) / 64 * sizeof *c->seen);
    for (size_t i = 0; i < n; i++) {
        uint64_t *word = &c->seen[(size_t)idx[i] / 64], bit = UINT64_C(1) << idx[i] % 64;

        n_distinct += (*word & bit) == 0;
        *word |= bit;
    }
    return n_distinct;
}

/* The step of n_rows rows that begins at idx is complete. */
static void step_added(struct bench_choices *c, const int32_t *idx, size_t n_rows)
{
    size_t n = n_rows * c->top_k, n_distinct = 0;

    assert(c->n_steps < c->steps_max && c->n_rows + n_rows <= c->rows_max);
    for (size_t r = 0; r < c->n_routes; r++) {
        n_distinct += count_distinct(c, idx + r * n, n);
    }
    c->touched[c->n_steps++] = (double)n_distinct / (double)size_max(c->n_routes, 1);
    c->n_rows += n_rows;
}

void bench_choices_add_chunk(struct bench_choices *c, size_t stream, size_t n_tokens)
{
    int32_t *idx = c->idx + c->n_rows * c->n_routes * c->top_k;

    for (size_t r = 0; r < c->n_routes; r++) {
        routing_sim_choose(c->sim, stream, (size_t)c->layers[r], n_tokens,
                           idx + r * n_tokens * c->top_k);
    }
    step_added(c, idx, n_tokens);
}

void bench_choices_add_tokens(struct bench_choices *c, const size_t *streams, size_t n_streams)
{
    int32_t *idx = c->idx + c->n_rows * c->n_routes * c->top_k;
    int32_t *next = c->next + c->n_next * c->n_routes * c->top_k;

    assert(c->n_next + n_streams <= c->next_rows_max);
    for (size_t r = 0; r < c->n_routes; r++) {
        for (size_t i = 0; i < n_streams; i++) {
            size_t at = (r * n_streams + i) * c->top_k, layer = (size_t)c->layers[r];

            routing_sim_predict(c->sim, streams[i], layer, 1, next + at);
            routing_sim_choose(c->sim, streams[i], layer, 1, idx + at);
        }
    }
    step_added(c, idx, n_streams);
    c->n_next += n_streams;
}

struct bench_choice bench_choices_take(struct bench_choices *c, size_t n_rows)
{
    struct bench_choice taken = {.idx = c->idx + c->at_row * c->n_routes * c->top_k,
                                 .n_touched = c->touched[c->at_step++]};

    c->at_row += n_rows;
    if (c->n_next > 0) {
        taken.next = c->next + c->at_next * c->n_routes * c->top_k;
        c->at_next += n_rows;
    }
    assert(c->at_row <= c->n_rows && c->at_step <= c->n_steps);
    return taken;
}
