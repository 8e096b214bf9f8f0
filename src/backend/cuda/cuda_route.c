/* cuda_route.c - the router: logits, softmax over all experts in float32, then the top k by probability,
 * ties to the lower id.
 *
 * Place: backend/cuda; the kernels are in kernels/route.cu. Few rows take one launch, many take a tiled
 *        product and a choice. Dense rows at 16-byte borders are read so; quantised routers and odd
 *        widths value by value. The result of a row depends on which of the two ways it went, and on
 *        nothing else of its company. */
#include "backend/cuda/cuda_internal.h"
#include "backend/cuda/kernels/route_args.h"
#include "base/size.h"

enum { FEW_ROWS_MAX = 64, WIDE_BYTES = 16 };

/* Of each sort the kernel of enum route_matrix counts from the first. */
enum route_kernel {
    ROUTE_ONE_BF16,
    ROUTE_ONE_F16,
    ROUTE_ONE_F32,
    ROUTE_FOUR_BF16,
    ROUTE_FOUR_F16,
    ROUTE_FOUR_F32,
    ROUTE_FOUR_ANY,
    ROUTE_TILE_BF16,
    ROUTE_TILE_F16,
    ROUTE_TILE_F32,
    ROUTE_TILE_ANY,
    ROUTE_SELECT,
    ROUTE_KERNELS
};

static const char *const route_kernels[ROUTE_KERNELS] = {
    [ROUTE_ONE_BF16] = "route_one_bf16", [ROUTE_ONE_F16] = "route_one_f16",
    [ROUTE_ONE_F32] = "route_one_f32",   [ROUTE_FOUR_BF16] = "route_four_bf16",
    [ROUTE_FOUR_F16] = "route_four_f16", [ROUTE_FOUR_F32] = "route_four_f32",
    [ROUTE_FOUR_ANY] = "route_four_any", [ROUTE_TILE_BF16] = "route_tile_bf16",
    [ROUTE_TILE_F16] = "route_tile_f16", [ROUTE_TILE_F32] = "route_tile_f32",
    [ROUTE_TILE_ANY] = "route_tile_any", [ROUTE_SELECT] = "route_select",
};

static enum route_matrix matrix_of(const struct op_route *u)
{
    const struct weight *w = &u->router;

    if (w->kind != WEIGHT_DENSE || weight_row_bytes(w) % WIDE_BYTES != 0 || w->n_in % 4 != 0 ||
        !cuda_is_aligned(w->data) || !cuda_is_aligned(u->in.data)) {
        return MATRIX_ANY;
    }
    return w->dtype == DTYPE_BF16 ? MATRIX_BF16 : w->dtype == DTYPE_F16 ? MATRIX_F16 : MATRIX_F32;
}

static const char *kernel_name(const struct op_route *u)
{
    static const char *const wide[] = {"route bf16 cuda", "route f16 cuda", "route f32 cuda"};
    enum route_matrix m = matrix_of(u);

    return m != MATRIX_ANY                 ? wide[m]
           : u->router.kind == WEIGHT_INT4 ? "route int4 cuda"
           : u->router.kind == WEIGHT_INT8 ? "route int8 cuda"
                                           : "route narrow cuda";
}

static enum status route_check(struct cuda_backend *be, struct op *op, struct error *err)
{
    const struct op_route *u = &op->u.route;
    enum status rc = cuda_check_operand(op, "the input", &u->in, u->in.cols, err);

    (void)be;
    if (rc == OK && (u->top_k == 0 || u->top_k > u->n_experts || u->top_k > ROUTE_TOP_K_MAX ||
                     u->n_experts > ROUTE_EXPERTS_MAX)) {
        rc = cuda_refuse(err, op, "%zu of %zu experts (at most %d of %d are built)", u->top_k,
                         u->n_experts, ROUTE_TOP_K_MAX, ROUTE_EXPERTS_MAX);
    }
    if (rc == OK) {
        rc = cuda_check_weight(op, "the router", &u->router, u->in.cols, err);
    }
    if (rc == OK && u->router.n_out != u->n_experts) {
        rc = cuda_refuse(err, op, "the router has %zu rows for %zu experts", u->router.n_out,
                         u->n_experts);
    }
    if (rc == OK) {
        rc = cuda_check_exact(op, "the probabilities", &u->prob, u->top_k, err);
    }
    if (rc == OK && (!u->idx.data || u->idx.dtype != DTYPE_I32 || u->idx.cols != u->top_k)) {
        rc = cuda_refuse(err, op, "the choices need an int32 buffer of %zu columns", u->top_k);
    }
    if (rc == OK && u->in.cols > INT32_MAX / 2) {
        rc = cuda_refuse(err, op, "%zu columns are too many", u->in.cols);
    }
    op->kernel = rc == OK ? kernel_name(u) : NULL;
    return rc;
}

static size_t slices_of(const struct op_route *u)
{
    return (u->in.cols + ROUTE_SLICE - 1) / ROUTE_SLICE;
}

static enum status route_prepare(struct cuda_backend *be, const struct op *op,
                                 struct cuda_need *need, void **data, struct error *err)
{
    const struct op_route *u = &op->u.route;
    size_t floats;

    if (!size_mul(&floats, be->rows_max, u->n_experts) ||
        !size_mul(&floats, floats, slices_of(u)) ||
        !size_mul(&need->scratch_bytes, floats, sizeof(float))) {
        return error_set(err, ERR_LIMIT, "a step of %zu rows is too large for the router",
                         be->rows_max);
    }
    *data = cuda_constant(be, NULL, FEW_ROWS_MAX * sizeof(int32_t), err); /* tickets */
    return *data ? OK : ERR_NO_MEMORY;
}

static enum status run_few(struct cuda_backend *be, const struct op *op, struct route_args *args,
                           size_t n_rows, struct error *err)
{
    enum route_matrix m = matrix_of(&op->u.route);
    bool is_one = n_rows == 1 && m != MATRIX_ANY;
    size_t rows = is_one ? 1 : ROUTE_FEW_ROWS;
    struct cuda_grid grid = {
        .x = (unsigned)((op->u.route.n_experts + ROUTE_FEW_EXPERTS - 1) / ROUTE_FEW_EXPERTS),
        .y = (unsigned)((n_rows + rows - 1) / rows),
        .threads = ROUTE_THREADS,
    };

    args->n_slices = 1;
    return cuda_launch(be, &cuda_route, (is_one ? ROUTE_ONE_BF16 : ROUTE_FOUR_BF16) + (size_t)m,
                       grid, args, err);
}

static enum status run_many(struct cuda_backend *be, const struct op *op, struct route_args *args,
                            size_t n_rows, struct error *err)
{
    const struct op_route *u = &op->u.route;
    size_t tiles = (u->n_experts + ROUTE_TILE_EXPERTS - 1) / ROUTE_TILE_EXPERTS;
    struct cuda_grid product = {
        .x = (unsigned)((n_rows + ROUTE_TILE_ROWS - 1) / ROUTE_TILE_ROWS),
        .y = (unsigned)tiles,
        .z = (unsigned)slices_of(u),
        .threads = ROUTE_THREADS,
    };
    struct cuda_grid choice = {
        .x = (unsigned)((n_rows + ROUTE_SELECT_ROWS - 1) / ROUTE_SELECT_ROWS),
        .threads = ROUTE_THREADS,
    };
    enum status rc;

    args->n_slices = (int32_t)slices_of(u);
    rc = cuda_launch(be, &cuda_route, ROUTE_TILE_BF16 + (size_t)matrix_of(u), product, args, err);
    return rc == OK ? cuda_launch(be, &cuda_route, ROUTE_SELECT, choice, args, err) : rc;
}

static enum status route_run(struct cuda_backend *be, const struct op *op, void *data,
                             const struct cuda_shape *shape, const struct state_pools *state,
                             struct error *err)
{
    const struct op_route *u = &op->u.route;
    const struct weight *w = &u->router;
    size_t n_rows = cuda_op_rows(op, shape);
    struct route_args args = {
        .view = shape->view,
        .count = op->rows == ROWS_OUT ? STEP_OUT_ROWS : STEP_ROWS,
        .in = u->in.data,
        .data = w->data,
        .scales = w->scales,
        .zeros = w->zeros,
        .perm = w->perm,
        .dtype = w->dtype,
        .bits = w->kind == WEIGHT_INT4   ? 4
                : w->kind == WEIGHT_INT8 ? 8
                                         : 0,
        .group = (int32_t)w->group,
        .logits = be->scratch,
        .slice_stride = be->rows_max * u->n_experts,
        .tickets = data,
        .idx = u->idx.data,
        .prob = u->prob.data,
        .n_in = (int32_t)u->in.cols,
        .n_experts = (int32_t)u->n_experts,
        .top_k = (int32_t)u->top_k,
        .route_layer = (int32_t)cuda_route_layer(be, op),
        .renormalise = u->renormalise,
    };

    (void)state;
    return n_rows <= FEW_ROWS_MAX ? run_few(be, op, &args, n_rows, err)
                                  : run_many(be, op, &args, n_rows, err);
}

const struct cuda_family cuda_route = {.kernels = route_kernels,
                                       .n_kernels = ROUTE_KERNELS,
                                       .check = route_check,
                                       .prepare = route_prepare,
                                       .run = route_run};
