/* cuda_delta.c - OP_DELTA: the gated delta rule with its gates, l2 norms and gated output norm.
 *
 * Place: backend/cuda; launches kernels/delta_*.cu.
 * Forms: with heads of 128 (every model of the family) short spans run row by row with the state in
 *        registers, spans of chunk_min rows and more in chunks of 64 on the matrix units; a step may have
 *        both. Heads of another size, and cards without bfloat16 matrix units or with too little shared
 *        memory, take every span row by row, which is slower and gives the same within rounding.
 *        Which form a span gets depends on its own rows only. */
#include <limits.h>

#include "backend/cuda/cuda_gdn.h"

enum {
    KERNEL_STEP,
    KERNEL_ANY,
    KERNEL_PREPARE, /* + terms - 1 */
    KERNEL_SCAN = KERNEL_PREPARE + DELTA_TERMS_MAX,
    KERNEL_NORM = KERNEL_SCAN + DELTA_TERMS_MAX,
    N_KERNELS
};
static const char *const kernels[N_KERNELS] = {
    [KERNEL_STEP] = "delta_step",
    [KERNEL_ANY] = "delta_any",
    [KERNEL_PREPARE] = "delta_prepare_1",
    [KERNEL_PREPARE + 1] = "delta_prepare_2",
    [KERNEL_PREPARE + 2] = "delta_prepare_3",
    [KERNEL_SCAN] = "delta_scan_1",
    [KERNEL_SCAN + 1] = "delta_scan_2",
    [KERNEL_SCAN + 2] = "delta_scan_3",
    [KERNEL_NORM] = "delta_norm",
};
enum {
    SM_BF16 = 80,       /* matrix units for bfloat16 */
    KEY_DIM_MAX = 2048, /* so that delta_any has at least four columns of a state in hand */
};

static bool is_at_16_bytes(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

bool cuda_delta_has_fast_heads(const struct op_delta *u)
{
    return u->dk == DELTA_DIM && u->dv == DELTA_DIM && is_at_16_bytes(u->qkv.data) &&
           is_at_16_bytes(u->z.data) && is_at_16_bytes(u->out.data) && is_at_16_bytes(u->norm);
}

/* bfloat16 terms that make a query's or key's value. */
static unsigned n_terms(const struct op_delta *u)
{
    return u->qkv.round == DTYPE_BF16 ? 1 : u->qkv.round == DTYPE_F16 ? 2 : 3;
}

static size_t scan_shared_bytes(const struct op_delta *u, unsigned key_buffers)
{
    return DELTA_SCAN_FIXED + n_terms(u) * (1 + key_buffers) * DELTA_SHARED_PER_TERM;
}

static bool has_chunks(const struct cuda_backend *be, const struct op_delta *u)
{
    return cuda_delta_has_fast_heads(u) && be->card.sm >= SM_BF16 &&
           be->card.shared_bytes_max >= scan_shared_bytes(u, 1);
}

static enum status delta_check(struct cuda_backend *be, struct op *op, struct error *err)
{
    const struct op_delta *u = &op->u.delta;
    enum status rc = OK;

    op->kernel = NULL;
    if (op->rows != ROWS_ALL) {
        return cuda_refuse(err, op, "the delta rule works on all rows");
    }
    if (u->nk == 0 || u->dk == 0 || u->dv == 0 || u->nv == 0 || u->nv % u->nk != 0) {
        return cuda_refuse(err, op, "%zu key heads of %zu and %zu value heads of %zu", u->nk, u->dk,
                           u->nv, u->dv);
    }
    if (u->dk > KEY_DIM_MAX || u->nk > INT16_MAX || u->nv > INT16_MAX || u->dv > INT16_MAX ||
        2 * u->nk * u->dk + u->nv * u->dv > INT_MAX / 8) {
        return cuda_refuse(err, op, "%zu key heads of %zu and %zu value heads of %zu are too large",
                           u->nk, u->dk, u->nv, u->dv);
    }
    rc = cuda_check_operand(op, "q, k and v", &u->qkv, 2 * u->nk * u->dk + u->nv * u->dv, err);
    if (rc == OK) {
        rc = cuda_check_operand(op, "z", &u->z, u->nv * u->dv, err);
    }
    if (rc == OK) {
        rc = cuda_check_operand(op, "a", &u->a, u->nv, err);
    }
    if (rc == OK) {
        rc = cuda_check_operand(op, "b", &u->b, u->nv, err);
    }
    if (rc == OK) {
        rc = cuda_check_operand(op, "the output", &u->out, u->nv * u->dv, err);
    }
    if (rc == OK && (u->out.data == u->qkv.data || u->out.data == u->z.data)) {
        rc = cuda_refuse(err, op, "the output overlaps an input");
    }
    if (rc == OK && (!u->neg_exp_a || !u->dt_bias || !u->norm)) {
        rc = cuda_refuse(err, op, "decay, dt_bias or norm is missing");
    }
    if (rc == OK) {
        op->kernel = has_chunks(be, u)              ? "delta chunked cuda"
                     : cuda_delta_has_fast_heads(u) ? "delta recurrent cuda"
                                                    : "delta any cuda";
    }
    return rc;
}

/* The parts of the scratch one after the other; args may be NULL. The bytes of all. */
static size_t scratch_cut(struct delta_args *args, uint8_t *base, const struct op_delta *u,
                          size_t rows)
{
    size_t heads = rows * u->nv, at[5];

    at[0] = 0;
    at[1] = at[0] + heads * DELTA_CHUNK * sizeof(float);
    at[2] = at[1] + heads * DELTA_FACTORS * sizeof(float);
    at[3] = at[2] + (heads + 3) / 4 * 4 * sizeof(float); /* whole 16 bytes: planes are copied so */
    at[4] = at[3] + rows * 2 * u->nk * n_terms(u) * DELTA_DIM * sizeof(uint16_t);
    if (args) {
        args->square = (float *)(void *)(base + at[0]);
        args->factors = (float *)(void *)(base + at[1]);
        args->fade = (float *)(void *)(base + at[2]);
        args->planes = (uint16_t *)(void *)(base + at[3]);
    }
    return at[4];
}

static enum status delta_prepare(struct cuda_backend *be, const struct op *op,
                                 struct cuda_need *need, void **data, struct error *err)
{
    const struct op_delta *u = &op->u.delta;

    (void)data;
    (void)err;
    if (has_chunks(be, u) && be->rows_max >= u->chunk_min) {
        need->scratch_bytes = scratch_cut(NULL, NULL, u, be->rows_max);
    }
    return OK;
}

enum status cuda_delta_args(struct delta_args *args, struct cuda_backend *be, const struct op *op,
                            const struct cuda_shape *shape, const struct state_pools *state,
                            struct error *err)
{
    const struct op_delta *u = &op->u.delta;
    size_t layer_bytes = state->n_slots * state->recurrent_elems;

    if (u->gdn_layer >= state->n_gdn_layers || state->recurrent_elems != u->nv * u->dk * u->dv) {
        return error_set(err, ERR_INTERNAL, "op '%s': the recurrent state has another shape",
                         op->name);
    }
    if (state->recurrent_dtype != DTYPE_F32 && state->recurrent_dtype != DTYPE_BF16) {
        return error_set(err, ERR_INTERNAL,
                         "op '%s': the recurrent state must be float32 or bfloat16", op->name);
    }
    *args = (struct delta_args){
        .view = shape->view,
        .qkv = u->qkv.data,
        .z = u->z.data,
        .a = u->a.data,
        .b = u->b.data,
        .out = u->out.data,
        .neg_exp_a = u->neg_exp_a,
        .dt_bias = u->dt_bias,
        .norm = u->norm,
        .nk = (int32_t)u->nk,
        .nv = (int32_t)u->nv,
        .dk = (int32_t)u->dk,
        .dv = (int32_t)u->dv,
        .chunk_min = INT32_MAX,
        .eps = u->eps,
        .state_dtype = state->recurrent_dtype,
        .round = u->out.round,
    };
    layer_bytes *= dtype_bytes(state->recurrent_dtype);
    args->state = state->recurrent + u->gdn_layer * layer_bytes;
    if (has_chunks(be, u) && u->chunk_min < INT32_MAX) {
        args->chunk_min = (int32_t)u->chunk_min;
        args->key_buffers = be->card.shared_bytes_max >= scan_shared_bytes(u, 2) ? 2 : 1;
        if (be->rows_max >= u->chunk_min) {
            scratch_cut(args, be->scratch, u, be->rows_max);
        }
    }
    return OK;
}

static enum status run_recurrent(struct cuda_backend *be, const struct op_delta *u,
                                 const struct cuda_shape *shape, struct delta_args *args,
                                 struct error *err)
{
    struct cuda_grid grid = {.x = (unsigned)u->nv, .y = (unsigned)shape->n_spans};
    size_t columns = (DELTA_ANY_SHARED / sizeof(float) - 2 * u->dk) / u->dk;

    if (cuda_delta_has_fast_heads(u)) {
        grid.threads = DELTA_THREADS;
        return cuda_launch(be, &cuda_delta, KERNEL_STEP, grid, args, err);
    }
    columns = columns < DELTA_ANY_THREADS ? columns : DELTA_ANY_THREADS;
    columns = columns < u->dv ? columns : u->dv;
    args->columns = (int32_t)columns;
    grid.threads = DELTA_ANY_THREADS;
    grid.shared_bytes = (columns + 2) * u->dk * sizeof(float);
    return cuda_launch(be, &cuda_delta, KERNEL_ANY, grid, args, err);
}

static enum status run_chunks(struct cuda_backend *be, const struct op_delta *u,
                              const struct cuda_shape *shape, const struct delta_args *args,
                              struct error *err)
{
    size_t windows = (shape->n_rows + DELTA_CHUNK - 1) / DELTA_CHUNK, form = n_terms(u) - 1;
    struct cuda_grid prepare = {.x = (unsigned)u->nk,
                                .y = (unsigned)windows,
                                .threads = DELTA_THREADS,
                                .shared_bytes =
                                    DELTA_PREPARE_FIXED + n_terms(u) * 2 * DELTA_SHARED_PER_TERM};
    struct cuda_grid scan = {.x = (unsigned)(u->nv * (DELTA_DIM / DELTA_SLICE)),
                             .y = (unsigned)shape->n_spans,
                             .threads = DELTA_SCAN_THREADS,
                             .shared_bytes = scan_shared_bytes(u, (unsigned)args->key_buffers)};
    struct cuda_grid norm = {.x = (unsigned)shape->n_rows,
                             .y = (unsigned)((u->nv + DELTA_NORM_HEADS - 1) / DELTA_NORM_HEADS),
                             .threads = DELTA_THREADS};
    enum status rc = cuda_launch(be, &cuda_delta, KERNEL_PREPARE + form, prepare, args, err);

    if (rc == OK) {
        rc = cuda_launch(be, &cuda_delta, KERNEL_SCAN + form, scan, args, err);
    }
    if (rc == OK) {
        rc = cuda_launch(be, &cuda_delta, KERNEL_NORM, norm, args, err);
    }
    return rc;
}

static enum status delta_run(struct cuda_backend *be, const struct op *op, void *data,
                             const struct cuda_shape *shape, const struct state_pools *state,
                             struct error *err)
{
    const struct op_delta *u = &op->u.delta;
    struct delta_args args;
    enum status rc = cuda_delta_args(&args, be, op, shape, state, err);

    (void)data;
    if (rc == OK && args.chunk_min > 1) {
        rc = run_recurrent(be, u, shape, &args, err);
    }
    if (rc == OK && shape->span_rows_max >= (size_t)args.chunk_min) {
        rc = run_chunks(be, u, shape, &args, err);
    }
    return rc;
}

const struct cuda_family cuda_delta = {kernels, N_KERNELS, delta_check, delta_prepare, delta_run};
