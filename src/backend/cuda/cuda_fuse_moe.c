/* cuda_fuse_moe.c - the tail of a layer with routed experts, in decode steps of a few rows: four launches.
 *
 * Place: backend/cuda; a fusion (cuda_internal.h). The ops are, in this order:
 *
 *            norm         x -> u                                  | moe_in.cu, which has blocks for
 *            route        u -> choices                            | the router's logits and blocks for
 *            linear       u -> gate, up of the shared expert      | the shared expert up to mid
 *                         (and its own gate)
 *            swiglu       gate, up -> mid                         | moe_choose.cu: choices
 *            linear       mid -> shared                           | moe_gate.cu: gate and up of the chosen
 *            experts      u, choices -> routed
 *            add_shared   x += routed + sigmoid(gate) * shared    | moe_down.cu: down of all experts,
 *            check        x                                       | and all that follows
 *
 * Leaves: x, u, the choices and mid, the shared gate; not gate, up, shared and routed, which nobody else
 *         reads.
 * Takes:  16-bit activations, int4 experts in plain order, everything else of floats or int8 in whole pieces
 *         of 16 bytes. What is different runs op by op. */
#include "backend/cuda/cuda_experts.h"
#include "backend/cuda/cuda_offload.h"
#include "backend/cuda/kernels/moe_args.h"
#include "base/size.h"

enum moe_op { NORM, ROUTE, SHARED_IN, SWIGLU, SHARED_DOWN, EXPERTS, ADD, CHECK, MOE_OPS };
enum { PART_GATE, PART_UP, PART_SHARE };
enum { PIECE_BYTES = 16, QUAD_COLS = 4, STATIC_SHARED = 1 << 10, ROW_VARIANTS = 4 };

/* Those for bfloat16 are followed by those for float16. */
enum moe_kernel {
    MOE_IN,
    MOE_CHOOSE = MOE_IN + 2 * ROW_VARIANTS,
    MOE_GATE,
    MOE_DOWN = MOE_GATE + 2,
    MOE_GATE_ONE = MOE_DOWN + 2,
    MOE_DOWN_ONE = MOE_GATE_ONE + 2,
    MOE_KERNELS = MOE_DOWN_ONE + 2,
};

static const char *const moe_kernels[MOE_KERNELS] = {
    "moe_in_bf16_1",    "moe_in_bf16_2",     "moe_in_bf16_4",    "moe_in_bf16_8",
    "moe_in_f16_1",     "moe_in_f16_2",      "moe_in_f16_4",     "moe_in_f16_8",
    "moe_choose",       "moe_gate_bf16",     "moe_gate_f16",     "moe_down_bf16",
    "moe_down_f16",     "moe_gate_one_bf16", "moe_gate_one_f16", "moe_down_one_bf16",
    "moe_down_one_f16",
};

static const struct cuda_family moe_family = {.kernels = moe_kernels, .n_kernels = MOE_KERNELS};

/* ---- match ---- */

static bool weight_fits(const struct weight *w)
{
    return (w->kind == WEIGHT_DENSE || w->kind == WEIGHT_INT8) && !w->perm &&
           weight_row_bytes(w) % PIECE_BYTES == 0 && w->n_in % 8 == 0 && cuda_is_aligned(w->data) &&
           w->n_out <= INT32_MAX && w->n_in <= INT32_MAX / 4;
}

static bool kinds_are(const struct op *ops)
{
    static const enum op_kind kinds[MOE_OPS] = {OP_NORM,   OP_ROUTE,   OP_LINEAR,     OP_SWIGLU,
                                                OP_LINEAR, OP_EXPERTS, OP_ADD_SHARED, OP_CHECK};

    for (size_t i = 0; i < MOE_OPS; i++) {
        if (ops[i].kind != kinds[i] || ops[i].rows != ROWS_ALL) {
            return false;
        }
    }
    return true;
}

/* Do the ops read what the ones before them wrote, as in the table above? */
static bool is_chained(const struct op *ops)
{
    const struct op_norm *norm = &ops[NORM].u.norm;
    const struct op_route *route = &ops[ROUTE].u.route;
    const struct op_linear *in = &ops[SHARED_IN].u.linear, *down = &ops[SHARED_DOWN].u.linear;
    const struct op_swiglu *swiglu = &ops[SWIGLU].u.swiglu;
    const struct op_experts *experts = &ops[EXPERTS].u.experts;
    const struct op_add_shared *add = &ops[ADD].u.add_shared;
    const void *x = norm->in.data, *u = norm->out.data;

    return x != u && norm->in.cols == add->x.cols && norm->out.round == experts->in.round &&
           route->in.data == u && in->in.data == u && experts->in.data == u &&
           (in->n_parts == 2 || in->n_parts == 3) &&
           swiglu->gate.data == in->part[PART_GATE].out.data &&
           swiglu->up.data == in->part[PART_UP].out.data && down->n_parts == 1 &&
           down->in.data == swiglu->out.data && down->part[0].out.data == add->shared.data &&
           experts->idx.data == route->idx.data && experts->prob.data == route->prob.data &&
           add->routed.data == experts->out.data && add->x.data == x &&
           ops[CHECK].u.check.x.data == x &&
           add->gate.data == (in->n_parts == 3 ? in->part[PART_SHARE].out.data : NULL);
}

static bool shared_fits(const struct op *ops)
{
    const struct op_linear *in = &ops[SHARED_IN].u.linear, *down = &ops[SHARED_DOWN].u.linear;

    for (size_t i = 0; i < in->n_parts; i++) {
        if (!weight_fits(&in->part[i].w) || in->part[i].accumulates) {
            return false;
        }
    }
    return weight_fits(&down->part[0].w) && !down->part[0].accumulates &&
           down->part[0].out.round == DTYPE_F32 && in->part[PART_GATE].w.n_out == down->in.cols &&
           in->part[PART_UP].w.n_out == down->in.cols &&
           (in->n_parts == 2 ||
            (in->part[PART_SHARE].w.n_out == 1 && in->part[PART_SHARE].out.round == DTYPE_F32));
}

/* Kernels for one row read the scales of two groups at once. */
static bool scales_fit(const struct op_experts *u)
{
    uintptr_t all = 0;

    for (size_t e = 0; e < u->n_experts; e++) {
        const struct expert_weights *w = &u->experts[e];

        all |= (uintptr_t)w->gate.scales | (uintptr_t)w->up.scales | (uintptr_t)w->down.scales;
    }
    return all % sizeof(uint32_t) == 0;
}

/* Of the kernel's rows; the rest of the step's rows have ones of their own. */
static size_t in_shared(const struct op *ops, size_t rows)
{
    size_t n = ops[NORM].u.norm.in.cols;

    return n * sizeof(float) + rows * n * sizeof(uint16_t);
}

static size_t down_extra(size_t n_rows)
{
    return n_rows * EXPERTS_DECODE_COLS * sizeof(float);
}

static size_t moe_match(const struct cuda_backend *be, const struct op *ops, size_t n)
{
    const struct op_norm *norm;
    const struct op_route *route;

    if (n < MOE_OPS || !kinds_are(ops) || !is_chained(ops)) {
        return 0;
    }
    norm = &ops[NORM].u.norm;
    route = &ops[ROUTE].u.route;
    /* The experts' kernel says that u is of 16 bits and that the card can multiply them. */
    return shared_fits(ops) && scales_fit(&ops[EXPERTS].u.experts) &&
                   route->router.kind == WEIGHT_DENSE && weight_fits(&route->router) &&
                   cuda_is_aligned(norm->in.data) && cuda_is_aligned(norm->out.data) &&
                   cuda_is_aligned(norm->weight) &&
                   cuda_is_aligned(ops[SWIGLU].u.swiglu.out.data) && norm->in.cols % 8 == 0 &&
                   in_shared(ops, 1) + STATIC_SHARED <= be->card.shared_bytes_max &&
                   cuda_experts_decodes(be, &ops[EXPERTS], 1, down_extra(1))
               ? MOE_OPS
               : 0;
}

/* Logits outlive the launch that the experts' scratch is first used in, so they have a place of their own. */
static enum status moe_prepare(struct cuda_backend *be, const struct op *ops, void *const *op_data,
                               struct cuda_need *need, void **data, struct error *err)
{
    (void)op_data;
    (void)need;
    *data =
        cuda_constant(be, NULL, MOE_ROWS_MAX * ops[ROUTE].u.route.n_experts * sizeof(float), err);
    return *data ? OK : ERR_NO_MEMORY;
}

/* ---- run ---- */

/* Of moe_in: for 1, 2, 4 or 8 rows. */
static size_t variant_of(size_t n_rows)
{
    return n_rows > 4 ? 3 : n_rows > 2 ? 2 : n_rows - 1;
}

static bool moe_fits(const struct cuda_backend *be, const struct op *ops,
                     const struct cuda_shape *shape)
{
    size_t n = shape->n_rows;

    return n > 0 && n <= MOE_ROWS_MAX &&
           in_shared(ops, (size_t)1 << variant_of(n)) + STATIC_SHARED <=
               be->card.shared_bytes_max &&
           cuda_experts_decodes(be, &ops[EXPERTS], n, down_extra(n));
}

/* Whether the step is for the kernels for one row (experts_one.cuh). Others do the same with more instructions. */
static bool is_for_one(const struct experts_args *a)
{
    for (size_t m = 0; m < EXPERTS_MATRICES; m++) {
        if (a->group[m] != EXPERTS_CHUNK ||
            (a->dtype[m] != DTYPE_BF16 && a->dtype[m] != DTYPE_F16)) {
            return false;
        }
    }
    return a->rows_max == 1 && a->top_k <= ONE_CHOICES_MAX && a->width == ONE_WIDTH &&
           a->hidden <= ONE_HIDDEN_MAX && a->hidden % (2 * EXPERTS_CHUNK) == 0;
}

static struct moe_matrix matrix_of(const struct weight *w)
{
    size_t n_chunks = weight_row_bytes(w) / PIECE_BYTES;

    return (struct moe_matrix){
        .data = w->data,
        .scales = w->scales,
        .zeros = w->zeros,
        .kind = w->kind == WEIGHT_INT8   ? MOE_INT8
                : w->dtype == DTYPE_BF16 ? MOE_BF16
                : w->dtype == DTYPE_F16  ? MOE_F16
                                         : MOE_F32,
        .scale_type = (int32_t)w->dtype,
        .n_chunks = (int32_t)n_chunks,
        .group_chunks = (int32_t)(w->kind == WEIGHT_INT8 ? w->group / PIECE_BYTES : n_chunks),
        .n_groups = (int32_t)weight_n_groups(w),
    };
}

static struct route_args route_of(const struct cuda_backend *be, const struct op *ops, void *logits,
                                  const struct cuda_shape *shape)
{
    const struct op_route *u = &ops[ROUTE].u.route;

    return (struct route_args){.view = shape->view,
                               .count = STEP_ROWS,
                               .in = ops[NORM].u.norm.in.data,
                               .logits = logits,
                               .idx = u->idx.data,
                               .prob = u->prob.data,
                               .n_in = (int32_t)u->in.cols,
                               .n_experts = (int32_t)u->n_experts,
                               .top_k = (int32_t)u->top_k,
                               .n_slices = 1,
                               .route_layer = (int32_t)cuda_route_layer(be, &ops[ROUTE]),
                               .renormalise = u->renormalise};
}

static enum status run_in(struct cuda_backend *be, const struct op *ops,
                          const struct route_args *route_args, const struct cuda_shape *shape,
                          const struct weight *next, float *next_logits, struct error *err)
{
    const struct op_norm *norm = &ops[NORM].u.norm;
    const struct op_route *route = &ops[ROUTE].u.route;
    const struct op_linear *in = &ops[SHARED_IN].u.linear;
    const struct op_swiglu *swiglu = &ops[SWIGLU].u.swiglu;
    bool has_share = in->n_parts == 3;
    size_t variant = variant_of(shape->n_rows);
    size_t route_blocks = size_divide_up(route->n_experts, MOE_WARPS);
    size_t mid_blocks = size_divide_up(swiglu->out.cols, MOE_MID_COLS);
    struct moe_in_args args = {
        .route = *route_args,
        .norm = norm->weight,
        .eps = norm->eps,
        .u = norm->out.data,
        .router = matrix_of(&route->router),
        .gate = matrix_of(&in->part[PART_GATE].w),
        .up = matrix_of(&in->part[PART_UP].w),
        .route_blocks = (int32_t)route_blocks,
        .mid_blocks = (int32_t)mid_blocks,
        .share_blocks = has_share,
        .width = (int32_t)swiglu->out.cols,
        .gate_round = (int32_t)in->part[PART_GATE].out.round,
        .up_round = (int32_t)in->part[PART_UP].out.round,
        .mid_round = (int32_t)swiglu->out.round,
        .mid = swiglu->out.data,
    };
    struct cuda_grid grid = {
        .x = (unsigned)(route_blocks + mid_blocks + has_share),
        .threads = MOE_THREADS,
        .shared_bytes = in_shared(ops, (size_t)1 << variant),
    };

    if (has_share) {
        args.share = matrix_of(&in->part[PART_SHARE].w);
        args.share_out = in->part[PART_SHARE].out.data;
    }
    if (next) {
        args.next = matrix_of(next);
        args.next_logits = next_logits;
        grid.x += (unsigned)route_blocks;
    }
    variant += norm->out.round == DTYPE_F16 ? ROW_VARIANTS : 0;
    return cuda_launch(be, &moe_family, MOE_IN + variant, grid, &args, err);
}

static enum status moe_run(struct cuda_backend *be, const struct op *ops, void *data,
                           void *const *op_data, const struct cuda_shape *shape,
                           const struct state_pools *state, struct error *err)
{
    const struct op_add_shared *add = &ops[ADD].u.add_shared;
    size_t half = ops[NORM].u.norm.out.round == DTYPE_F16;
    struct moe_choose_args choose = {.route = route_of(be, ops, data, shape)};
    struct moe_gate_args gate = {0};
    struct moe_down_args down = {
        .down = matrix_of(&ops[SHARED_DOWN].u.linear.part[0].w),
        .mid = ops[SWIGLU].u.swiglu.out.data,
        .share = add->gate.cols ? add->gate.data : NULL,
        .shared_width = (int32_t)ops[SWIGLU].u.swiglu.out.cols,
        .layer = ops[CHECK].layer,
        .bad_layer = shape->view.bad_layer,
    };
    bool has_home = ops[EXPERTS].u.experts.home != NULL, is_one;
    const struct weight *next = NULL;
    float *next_logits = NULL;
    size_t gate_kernel = MOE_GATE + half, down_kernel = MOE_DOWN + half;
    struct cuda_grid grid[2], one = {.x = 1, .threads = MOE_THREADS};
    enum status rc = cuda_experts_decode(be, &ops[EXPERTS], op_data[EXPERTS], shape,
                                         down_extra(shape->n_rows), &gate.experts, grid, err);

    (void)state;
    down.experts = gate.experts;
    down.experts.out = add->x.data;
    is_one = rc == OK && is_for_one(&gate.experts);
    if (is_one) {
        gate_kernel = MOE_GATE_ONE + half;
        down_kernel = MOE_DOWN_ONE + half;
        grid[0].x = ONE_WIDTH / EXPERTS_DECODE_COLS;
        grid[0].y = (unsigned)gate.experts.top_k;
        grid[0].shared_bytes = grid[1].shared_bytes = 0;
    }
    if (has_home) {
        choose.has_home = 1;
        choose.home = cuda_offload_args(be, &ops[EXPERTS], shape);
        choose.home.away = is_one ? cuda_offload_away(be) : NULL;
        gate.away = down.away = choose.home.away;
        down.join = cuda_offload_join(be, &ops[EXPERTS]);
        next = cuda_offload_next_router(be, &ops[EXPERTS], shape, &next_logits);
        next = next && weight_fits(next) ? next : NULL;
    }
    if (rc == OK) {
        rc = run_in(be, ops, &choose.route, shape, next, next_logits, err);
    }
    if (rc == OK && has_home) {
        rc = next ? cuda_offload_join_ahead(be, err)
                  : cuda_offload_before(be, &ops[EXPERTS], shape, err);
    }
    if (rc == OK) {
        rc = cuda_launch(be, &moe_family, MOE_CHOOSE, one, &choose, err);
    }
    if (rc == OK && has_home && !is_one) {
        rc = cuda_offload_fetch(be, &ops[EXPERTS], shape, err);
    }
    if (rc == OK) {
        rc = cuda_launch(be, &moe_family, gate_kernel, grid[0], &gate, err);
    }
    if (rc == OK && has_home && is_one) { /* not beside what gate fetches */
        rc = cuda_offload_fork_ahead(be, &ops[EXPERTS], shape, err);
    }
    return rc == OK ? cuda_launch(be, &moe_family, down_kernel, grid[1], &down, err) : rc;
}

const struct cuda_fusion cuda_fuse_moe = {.family = &moe_family,
                                          .match = moe_match,
                                          .prepare = moe_prepare,
                                          .fits = moe_fits,
                                          .run = moe_run};
