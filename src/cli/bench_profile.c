/* bench_profile.c - see bench_profile.h. */
#include "cli/bench_profile.h"

#include <stdlib.h>
#include <string.h>

static struct profile_row *row_of(struct op_profile *p, const struct op *op)
{
    for (size_t i = 0; i < p->n_rows; i++) {
        if (p->rows[i].kind == op->kind && strcmp(p->rows[i].name, op->name) == 0) {
            return &p->rows[i];
        }
    }
    if (p->n_rows == PROFILE_ROWS_MAX) {
        return NULL;
    }
    p->rows[p->n_rows] = (struct profile_row){.name = op->name, .kind = op->kind};
    return &p->rows[p->n_rows++];
}

void op_profile_note(void *ctx, const struct op *op, uint64_t ns)
{
    struct profile_row *row = row_of(ctx, op);

    if (row) {
        row->n_calls++;
        row->ns += ns;
    }
}

void op_profile_cost(struct op_profile *p, const struct op *ops, size_t n_ops,
                     const struct cost_step *step, const struct state_pools *pools)
{
    for (size_t i = 0; i < n_ops; i++) {
        struct profile_row *row = row_of(p, &ops[i]);
        struct op_cost c = op_cost(&ops[i], step, pools);

        if (row) {
            row->bytes += op_cost_bytes(&c) * (double)p->n_steps;
            row->flop += c.flop * (double)p->n_steps;
        }
    }
}

static int by_time(const void *a, const void *b)
{
    uint64_t x = ((const struct profile_row *)a)->ns, y = ((const struct profile_row *)b)->ns;

    return (x < y) - (x > y);
}

static uint64_t sum_ns(const struct op_profile *p)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < p->n_rows; i++) {
        sum += p->rows[i].ns;
    }
    return sum;
}

double op_profile_sort(struct op_profile *p)
{
    qsort(p->rows, p->n_rows, sizeof p->rows[0], by_time);
    return p->step_ns > 0 ? (double)sum_ns(p) / (double)p->step_ns : 0;
}

static void print_row(FILE *out, const struct op_profile *p, const struct profile_row *row)
{
    double seconds = (double)row->ns * 1e-9;

    fprintf(out, "%-16s %-10s %8.1f %9.1f %6.1f %%", row->name, op_kind_name(row->kind),
            (double)row->n_calls / (double)p->n_steps, (double)row->ns * 1e-3 / (double)p->n_steps,
            100 * (double)row->ns / (double)p->step_ns);
    if (row->bytes > 0 && seconds > 0) {
        fprintf(out, " %10.3f %8.2f %9.2f", row->bytes * 1e-6 / (double)p->n_steps,
                row->bytes / seconds * 1e-9, row->flop / seconds * 1e-9);
    }
    fputc('\n', out);
}

void op_profile_print(FILE *out, const struct op_profile *p)
{
    uint64_t inside = sum_ns(p);

    if (p->n_steps == 0 || p->step_ns == 0) {
        return;
    }
    fprintf(out, "%-16s %-10s %8s %9s %8s %10s %8s %9s\n", "operation", "kind", "calls", "us",
            "share", "MB", "GB/s", "GFLOP/s");
    for (size_t i = 0; i < p->n_rows; i++) {
        print_row(out, p, &p->rows[i]);
    }
    uint64_t rest = p->step_ns > inside ? p->step_ns - inside : 0;
    fprintf(out, "%-16s %-10s %8s %9.1f %6.1f %%\n", "between them", "", "",
            (double)rest * 1e-3 / (double)p->n_steps, 100 * (double)rest / (double)p->step_ns);
    fprintf(out, "%-16s %-10s %8s %9.1f %6.1f %%\n", "step", "", "",
            (double)p->step_ns * 1e-3 / (double)p->n_steps, 100.0);
}
