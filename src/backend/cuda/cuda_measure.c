/* cuda_measure.c - how much memory a plan will need on a card, before there is a plan or even a card.
 *
 * Place: backend/cuda; for `spillway plan` and the placement of every start. See cuda_plan_measure.
 * Idea:  families say what they need in check() and prepare(), from the sizes of an op and what the card is.
 *        So they are asked with a backend that has no driver, and constants that are only counted. */
#include "backend/cuda/cuda_private.h"

#include <stdlib.h>

#include "backend/cuda/cuda_experts.h"
#include "backend/cuda/cuda_stream.h"
#include "backend/cuda/kernels/offload_args.h"
#include "backend/expert_home.h"
#include "base/size.h"

/* Chunks are whole, and those of large constants leave rests. */
enum { CONSTANTS_REST = 1 << 20 };
/* Of a home: orders and reports of a step, the list of fetches, predictions of the next layer, and that each of
 * these begins at a border. */
enum { HOME_REST = 1 << 20 };

static enum status op_measure(struct cuda_backend *be, struct op *op, size_t *scratch, void **data,
                              struct error *err)
{
    const struct cuda_family *family = cuda_family_of(op->kind);
    struct cuda_need need = {0};
    enum status rc = family
                         ? family->check(be, op, err)
                         : cuda_refuse(err, op, "there are no kernels for this kind of operation");

    if (rc == OK && family->prepare) {
        rc = family->prepare(be, op, &need, data, err);
    }
    *scratch = size_max(*scratch, need.scratch_bytes);
    return rc;
}

/* As units_prepare() in cuda_backend.c. */
static enum status unit_measure(struct cuda_backend *be, const struct op *ops, size_t n_ops,
                                void *const *data, size_t *scratch, size_t *n, struct error *err)
{
    const struct cuda_fusion *f;
    struct cuda_need need = {0};
    enum status rc = OK;
    void *own = NULL;

    *n = 0;
    for (size_t j = 0; *n == 0 && (f = cuda_fusion_at(j)) != NULL; j++) {
        *n = f->match(be, ops, n_ops);
        if (*n > 0 && f->prepare) {
            rc = f->prepare(be, ops, data, &need, &own, err);
        }
    }
    *n = *n ? *n : 1;
    *scratch = size_max(*scratch, need.scratch_bytes);
    return rc;
}

/* With a home, experts of large steps are worked off in longer segments. */
static size_t home_scratch(const struct cuda_backend *be, const struct op *ops, size_t n_ops)
{
    static const struct expert_home some = {0};
    size_t most = 0, n = 0;

    for (size_t i = 0; i < n_ops; i++) {
        struct op op = ops[i];

        if (op.kind == OP_EXPERTS) {
            op.u.experts.home = &some;
            most = cuda_experts_scratch(&n, be, &op) ? size_max(most, n) : SIZE_MAX;
        }
    }
    return most;
}

static enum status measure(struct cuda_backend *be, struct op *ops, size_t n_ops, void **data,
                           size_t *scratch, struct error *err)
{
    enum status rc = OK;
    size_t n;

    for (size_t i = 0; rc == OK && i < n_ops; i++) {
        rc = op_measure(be, &ops[i], scratch, &data[i], err);
    }
    for (size_t i = 0; rc == OK && i < n_ops; i += n) {
        rc = unit_measure(be, &ops[i], n_ops - i, &data[i], scratch, &n, err);
    }
    return rc;
}

enum status cuda_plan_measure(struct cuda_plan_bytes *out, const struct cuda_card *card,
                              struct op *ops, size_t n_ops, size_t rows_max, size_t context_max,
                              struct error *err)
{
    struct cuda_private *own = calloc(1, sizeof *own);
    void **data = calloc(n_ops + 1, sizeof *data);
    struct cuda_backend be = {
        .own = own, .card = *card, .rows_max = rows_max, .context_max = context_max};
    size_t pages_max;
    enum status rc;

    *out = (struct cuda_plan_bytes){0};
    if (!own || !data) {
        free(own);
        free(data);
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a plan of %zu operations", n_ops);
    }
    own->is_measuring = true;
    own->ops = ops;
    own->n_ops = n_ops;
    rc = measure(&be, ops, n_ops, data, &out->scratch, err);
    out->tables = cuda_tables_bytes(&be, &pages_max) + own->measured_bytes + CONSTANTS_REST;
    out->scratch_home = rc == OK ? size_max(out->scratch, home_scratch(&be, ops, n_ops)) : 0;
    free(own);
    free(data);
    return rc;
}

/* As tables_cut() in cuda_offload.c, where every expert may have a slot, and as cuda_stream_open(). */
size_t cuda_home_tables_bytes(size_t n_layers, size_t n_experts)
{
    const struct expert_home home = {.n_layers = n_layers, .n_experts = n_experts};
    size_t each = sizeof(int32_t) + sizeof(struct offload_owner) +
                  EXPERTS_MATRICES * sizeof(struct experts_matrix);

    return n_layers * n_experts * each + cuda_stream_bytes(&home) + HOME_REST;
}
