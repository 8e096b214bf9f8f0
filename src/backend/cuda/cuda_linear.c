/* cuda_linear.c - linear layers: W x for up to four matrices that share an input.
 *
 * Place: backend/cuda. Checks the op; steps of few rows are launched here (kernels/linear_gemv*.cu), those
 *        of many by cuda_linear_gemm.c.
 * Few:   parts whose weights are of one kind and want the input in one order go in one launch: usually all
 *        of them. Which kernel:
 *          linear_mma   3 rows or more of 16-bit activations, and weights that become exactly that type; for
 *                       quantised weights, all inputs that one instruction adds up must share a scale
 *          linear_gemv  everything else whose rows are whole pieces of 16 bytes: it reads memory in longer
 *                       runs; _int8_one, which dense parts join, when there is one row of 16-bit activations
 *          _any         every shape
 *        More rows than a kernel takes become more blocks; then weights are read once for each. */
#include <string.h>

#include "backend/cuda/cuda_linear.h"
#include "backend/cuda/cuda_linear_gemm.h"
#include "backend/cuda/kernels/linear_args.h"
#include "base/size.h"

#define KERNELS_GEMV(X)                                                                            \
    X(linear_gemv_f32_1)                                                                           \
    X(linear_gemv_f32_2)                                                                           \
    X(linear_gemv_f32_4)                                                                           \
    X(linear_gemv_f32_8)                                                                           \
    X(linear_gemv_f16_1)                                                                           \
    X(linear_gemv_f16_2)                                                                           \
    X(linear_gemv_f16_4)                                                                           \
    X(linear_gemv_f16_8)                                                                           \
    X(linear_gemv_bf16_1)                                                                          \
    X(linear_gemv_bf16_2)                                                                          \
    X(linear_gemv_bf16_4)                                                                          \
    X(linear_gemv_bf16_8)                                                                          \
    X(linear_gemv_int8_1)                                                                          \
    X(linear_gemv_int8_2)                                                                          \
    X(linear_gemv_int8_4)                                                                          \
    X(linear_gemv_int8_8)                                                                          \
    X(linear_gemv_int4_1)                                                                          \
    X(linear_gemv_int4_2)                                                                          \
    X(linear_gemv_int4_4)                                                                          \
    X(linear_gemv_int4_8)
#define KERNELS_MMA(X)                                                                             \
    X(linear_mma_f16_8)                                                                            \
    X(linear_mma_f16_16)                                                                           \
    X(linear_mma_bf16_8)                                                                           \
    X(linear_mma_bf16_16)                                                                          \
    X(linear_mma_int8_f16_8)                                                                       \
    X(linear_mma_int8_f16_16)                                                                      \
    X(linear_mma_int8_bf16_8)                                                                      \
    X(linear_mma_int8_bf16_16)                                                                     \
    X(linear_mma_int4_f16_8)                                                                       \
    X(linear_mma_int4_f16_16)                                                                      \
    X(linear_mma_int4_bf16_8)                                                                      \
    X(linear_mma_int4_bf16_16)

#define KERNELS_MORE(X)                                                                            \
    X(linear_gemv_int8_one)                                                                        \
    X(linear_gemv_any)

#define KERNEL_INDEX(name) KERNEL_##name,
#define KERNEL_NAME(name)  #name,
enum kernel {
    KERNELS_GEMV(KERNEL_INDEX) KERNELS_MMA(KERNEL_INDEX) KERNELS_MORE(KERNEL_INDEX)
        KERNEL_GEMM, /* the first of LINEAR_GEMM_KERNELS */
};
static const char *const kernel_names[] = {KERNELS_GEMV(KERNEL_NAME) KERNELS_MMA(
    KERNEL_NAME) KERNELS_MORE(KERNEL_NAME) LINEAR_GEMM_KERNELS(KERNEL_NAME)};

/* How kernels see weights, in the order of their names. */
enum form { FORM_F32, FORM_F16, FORM_BF16, FORM_INT8, FORM_INT4 };
static const size_t chunk_inputs[] = {4, 8, 8, 16, 32}; /* weights in CHUNK_BYTES */

enum {
    CHUNK_BYTES = 16,
    WARP_LANES = 32,
    BANKS_BYTES = 128, /* of shared memory at once */
    /* Blocks of LINEAR_WARPS_FEW warps that a multiprocessor holds. */
    DENSE_PER_CARD = 3,
    INT8_ONE_PER_CARD = 3,
    QUANTISED_PER_CARD = 2,
    /* Warps that share a tile must find work for so many quarters of all warps. */
    BUSY_QUARTERS = 3,
    BESIDE_STEPS = 4, /* of a slice of parts that join a launch */
    MMA_COLUMNS = 8,
    MMA_ROWS_LEAST = 3,
};

static enum form form_of(const struct weight *w)
{
    return w->kind == WEIGHT_INT4   ? FORM_INT4
           : w->kind == WEIGHT_INT8 ? FORM_INT8
           : w->dtype == DTYPE_F16  ? FORM_F16
           : w->dtype == DTYPE_BF16 ? FORM_BF16
                                    : FORM_F32;
}

/* Parts of an op that go in one launch, and how. */
struct launch {
    const struct op_linear *u;
    const struct op *ahead; /* see cuda_linear.h; or NULL */
    size_t n_rows;          /* of the step, or more */
    size_t part[LINEAR_PARTS_MAX], n_parts;
    enum form form;
    enum kernel kernel;
    size_t tile, lanes, warps; /* outputs of a tile, lanes that share a row, warps of a block */
    size_t rows;               /* of x, of a block */
    size_t per_card;           /* blocks of a multiprocessor */
    size_t n_chunks, n_steps;
    size_t x_stride, shared_bytes;
};

/* Vectors of 16 bytes, wherever the input comes from. */
static bool input_is_aligned(const struct op_linear *u, const struct op *ahead)
{
    if (!ahead) {
        return cuda_is_aligned(u->in.data);
    }
    return ahead->kind == OP_NORM
               ? cuda_is_aligned(ahead->u.norm.in.data) && cuda_is_aligned(ahead->u.norm.weight)
               : cuda_is_aligned(ahead->u.swiglu.gate.data) &&
                     cuda_is_aligned(ahead->u.swiglu.up.data);
}

/* Rows in whole pieces of 16 bytes, and indices that fit the kernels' integers. */
static bool is_plain(const struct launch *l)
{
    for (size_t i = 0; i < l->n_parts; i++) {
        const struct weight *w = &l->u->part[l->part[i]].w;

        if (weight_row_bytes(w) % CHUNK_BYTES != 0 || !cuda_is_aligned(w->data) ||
            !cuda_is_aligned(w->perm) || w->n_in > LINEAR_INPUTS_MAX ||
            w->n_out > INT32_MAX / (weight_n_groups(w) + 1)) {
            return false;
        }
    }
    return input_is_aligned(l->u, l->ahead);
}

/* Do all inputs of each step have one scale? */
static bool steps_have_one_scale(const struct launch *l)
{
    size_t step = LINEAR_LANES_MMA * chunk_inputs[l->form];

    for (size_t i = 0; i < l->n_parts; i++) {
        const struct weight *w = &l->u->part[l->part[i]].w;

        if (w->group % step != 0 && w->group != w->n_in) {
            return false;
        }
    }
    return true;
}

static bool shared_fits(const struct cuda_backend *be, struct launch *l, size_t sums_bytes,
                        size_t row_bytes)
{
    size_t most = be->card.shared_bytes_max;

    if (l->ahead && l->ahead->kind == OP_NORM) {
        sums_bytes += (LINEAR_NORM_HEAD + l->u->in.cols) * sizeof(float);
    }
    if (sums_bytes > most || l->rows > (most - sums_bytes) / row_bytes) {
        return false;
    }
    l->shared_bytes = sums_bytes + l->rows * row_bytes;
    if (l->warps == LINEAR_WARPS_FEW) {
        size_t wanted = l->kernel == KERNEL_linear_gemv_int8_one ? INT8_ONE_PER_CARD
                        : l->form < FORM_INT8                    ? DENSE_PER_CARD
                                                                 : QUANTISED_PER_CARD;

        l->per_card = size_min(wanted, most / l->shared_bytes);
    } else {
        l->per_card = 1;
    }
    return true;
}

static bool choose_mma(const struct cuda_backend *be, struct launch *l)
{
    enum dtype act = l->u->in.round;
    bool is_quantised = l->form >= FORM_INT8, is_bf16 = act == DTYPE_BF16;
    size_t row_bytes;
    enum kernel first;

    if (act == DTYPE_F32 || be->card.sm < (is_bf16 ? 80 : 75) || l->n_rows < MMA_ROWS_LEAST ||
        (!is_quantised && l->form != (is_bf16 ? FORM_BF16 : FORM_F16)) ||
        (is_quantised && !steps_have_one_scale(l))) {
        return false;
    }
    first = l->form == FORM_INT8   ? KERNEL_linear_mma_int8_f16_8
            : l->form == FORM_INT4 ? KERNEL_linear_mma_int4_f16_8
                                   : KERNEL_linear_mma_f16_8;
    first += is_bf16 ? KERNEL_linear_mma_bf16_8 - KERNEL_linear_mma_f16_8 : 0;
    l->tile = LINEAR_TILE_MMA;
    l->lanes = LINEAR_LANES_MMA;
    l->n_steps = size_divide_up(l->n_chunks, l->lanes);
    l->x_stride = l->n_steps * l->lanes * chunk_inputs[l->form];
    row_bytes = l->x_stride * sizeof(uint16_t);
    if (row_bytes % BANKS_BYTES == 0) { /* see the kernels' file */
        row_bytes += BANKS_BYTES / 2;
        l->x_stride = row_bytes / sizeof(uint16_t);
    }
    for (l->rows = size_min(l->n_rows, 2 * MMA_COLUMNS); l->rows > 0; l->rows--) {
        size_t blocks = size_divide_up(l->rows, MMA_COLUMNS), sums;

        l->warps = LINEAR_WARPS;
        sums = 2 * l->warps * blocks * 4 * WARP_LANES * sizeof(float);
        if (shared_fits(be, l, sums, row_bytes)) {
            l->kernel = first + (blocks == 1 ? 0 : 1);
            return true;
        }
    }
    return false;
}

/* Symmetric weights whose scales come in whole words, a tile's all at once. */
static bool is_for_int8_one(const struct launch *l)
{
    for (size_t i = 0; i < l->n_parts; i++) {
        const struct weight *w = &l->u->part[l->part[i]].w;
        size_t row_scales = weight_n_groups(w) * dtype_bytes(w->dtype);

        if (w->zeros || (uintptr_t)w->scales % sizeof(uint32_t) != 0 ||
            LINEAR_INT8_TILE * row_scales > LINEAR_INT8_SCALES ||
            w->n_out * row_scales % sizeof(uint32_t) != 0) {
            return false;
        }
    }
    return l->form == FORM_INT8 && l->n_rows == 1 && l->u->in.round != DTYPE_F32;
}

static bool choose_int8_one(const struct cuda_backend *be, struct launch *l)
{
    if (!is_for_int8_one(l)) {
        return false;
    }
    l->kernel = KERNEL_linear_gemv_int8_one;
    l->lanes = WARP_LANES;
    l->n_steps = size_divide_up(l->n_chunks, l->lanes);
    l->x_stride = l->n_steps * l->lanes * chunk_inputs[FORM_INT8];
    l->rows = 1;
    l->tile = LINEAR_INT8_TILE;
    l->warps = LINEAR_WARPS_FEW;
    return shared_fits(be, l, l->warps * (2 * l->tile + LINEAR_INT8_SCALES / 2) * sizeof(float),
                       l->x_stride * sizeof(float));
}

static bool choose_gemv(const struct cuda_backend *be, struct launch *l)
{
    size_t variant = l->n_rows > 4 ? 3 : l->n_rows > 2 ? 2 : l->n_rows - 1;

    l->lanes = WARP_LANES;
    l->n_steps = size_divide_up(l->n_chunks, l->lanes);
    l->x_stride = l->n_steps * l->lanes * chunk_inputs[l->form];
    for (;; variant--) {
        l->rows = (size_t)1 << variant;
        l->tile = (l->form < FORM_INT8 ? l->rows > 2 : l->rows == 1) ? 4 : 2;
        l->warps = l->rows == 1 ? LINEAR_WARPS_FEW : LINEAR_WARPS;
        l->kernel = (enum kernel)(KERNEL_linear_gemv_f32_1 + 4 * (size_t)l->form + variant);
        if (shared_fits(be, l, 2 * l->warps * l->tile * l->rows * sizeof(float),
                        l->x_stride * sizeof(float))) {
            return true;
        }
        if (variant == 0) {
            return false;
        }
    }
}

static void choose(const struct cuda_backend *be, struct launch *l)
{
    if (is_plain(l)) {
        const struct weight *w = &l->u->part[l->part[0]].w;

        l->n_chunks = weight_row_bytes(w) / CHUNK_BYTES;
        if (choose_mma(be, l) || choose_int8_one(be, l) || choose_gemv(be, l)) {
            return;
        }
    }
    l->kernel = KERNEL_linear_gemv_any;
    l->warps = l->tile = LINEAR_WARPS_FEW;
    l->rows = LINEAR_ANY_ROWS;
    l->shared_bytes = 0;
}

/* Warps that share a tile: as few as keep all multiprocessors busy. */
static size_t slices_of(const struct cuda_backend *be, const struct launch *l, size_t n_tiles)
{
    size_t n_warps = (size_t)be->card.n_multiprocessors * l->per_card * l->warps, n = 1;

    while (4 * n * n_tiles < BUSY_QUARTERS * n_warps && 2 * n <= size_min(l->warps, l->n_steps)) {
        n *= 2;
    }
    return n;
}

static void fill_part(struct linear_part *to, const struct op_linear *u, size_t p, size_t tile0)
{
    const struct weight *w = &u->part[p].w;
    size_t group_blocks = w->kind == WEIGHT_DENSE ? 1 : w->group / WEIGHT_BLOCK;
    uint64_t one = (uint64_t)1 << LINEAR_INVERSE_BITS;

    *to = (struct linear_part){
        .data = w->data,
        .scales = w->scales,
        .zeros = w->zeros,
        .perm = w->perm,
        .out = u->part[p].out.data,
        .n_out = (int32_t)w->n_out,
        .first_tile = (int32_t)tile0,
        .kind = w->kind == WEIGHT_INT4   ? LINEAR_INT4
                : w->kind == WEIGHT_INT8 ? LINEAR_INT8
                                         : LINEAR_DENSE,
        .dtype = (int32_t)w->dtype,
        .n_groups = (int32_t)weight_n_groups(w),
        .group_blocks = (int32_t)group_blocks,
        .group_inverse = (uint32_t)((one + group_blocks - 1) / group_blocks),
        .round = (int32_t)u->part[p].out.round,
        .accumulates = u->part[p].accumulates,
    };
}

/* What the kernel takes, but for the number of slices. */
static struct linear_args args_of(const struct op *op, const struct launch *l,
                                  const struct cuda_shape *shape)
{
    const struct op_linear *u = l->u;
    size_t n_tiles = 0;
    struct linear_args args = {
        .x = u->in.data,
        .n_rows = shape->view.counts + (op->rows == ROWS_OUT ? STEP_OUT_ROWS : STEP_ROWS),
        .perm = u->part[l->part[0]].w.perm,
        .n_in = (int32_t)u->in.cols,
        .rows = (int32_t)l->rows,
        .n_chunks = (int32_t)l->n_chunks,
        .n_steps = (int32_t)l->n_steps,
        .n_parts = (int32_t)l->n_parts,
        .x_stride = (int32_t)l->x_stride,
        .ahead_round = (int32_t)u->in.round,
    };

    if (l->ahead && l->ahead->kind == OP_NORM) {
        args.x = l->ahead->u.norm.in.data;
        args.norm = l->ahead->u.norm.weight;
        args.norm_eps = l->ahead->u.norm.eps;
    } else if (l->ahead) {
        args.x = l->ahead->u.swiglu.up.data;
        args.gate = l->ahead->u.swiglu.gate.data;
    }
    for (size_t i = 0; i < l->n_parts; i++) {
        fill_part(&args.part[i], u, l->part[i], n_tiles);
        n_tiles += size_divide_up(u->part[l->part[i]].w.n_out, l->tile);
    }
    args.n_tiles = (int32_t)n_tiles;
    args.n_slices = 1;
    return args;
}

static void set_slices(struct linear_args *args, size_t n)
{
    args->n_slices = (int32_t)n;
    args->slices_log2 = 0;
    while ((size_t)1 << args->slices_log2 < n) {
        args->slices_log2++;
    }
}

static struct cuda_grid grid_of(const struct launch *l, size_t n_blocks)
{
    return (struct cuda_grid){.x = (unsigned)n_blocks,
                              .y = (unsigned)size_divide_up(l->n_rows, l->rows),
                              .threads = (unsigned)(WARP_LANES * l->warps),
                              .shared_bytes = l->shared_bytes};
}

static enum status launch(struct cuda_backend *be, const struct op *op, const struct launch *l,
                          const struct cuda_shape *shape, struct error *err)
{
    struct linear_args args = args_of(op, l, shape);
    size_t n_tiles = (size_t)args.n_tiles, n_blocks = n_tiles;

    if (l->kernel != KERNEL_linear_gemv_any) {
        size_t n_slices = slices_of(be, l, n_tiles);

        set_slices(&args, n_slices);
        n_blocks = size_min(size_divide_up(n_tiles * n_slices, l->warps),
                            (size_t)be->card.n_multiprocessors * l->per_card);
    }
    return cuda_launch(be, &cuda_linear, l->kernel, grid_of(l, n_blocks), &args, err);
}

/* linear_gemv_int8_one with the dense parts that join it, or NULL. */
static enum status launch_int8_one(struct cuda_backend *be, const struct op *op,
                                   const struct launch *l, const struct launch *beside,
                                   const struct cuda_shape *shape, struct error *err)
{
    struct linear_pair_args args = {.main = args_of(op, l, shape)};
    size_t n_tiles = (size_t)args.main.n_tiles, n_slices = slices_of(be, l, n_tiles);
    size_t n_blocks = (size_t)be->card.n_multiprocessors * l->per_card, n_beside = 0;
    struct cuda_grid grid = grid_of(l, 0);

    set_slices(&args.main, n_slices);
    if (beside) {
        size_t n = 1;

        args.beside = args_of(op, beside, shape);
        while (2 * n * BESIDE_STEPS <= beside->n_steps && 2 * n <= beside->warps) {
            n *= 2;
        }
        set_slices(&args.beside, n);
        n_beside = size_divide_up((size_t)args.beside.n_tiles * n, beside->warps);
        n_beside = size_min(n_beside, size_divide_up(n_blocks, 4));
        n_blocks -= n_beside;
        grid.shared_bytes = size_max(grid.shared_bytes, beside->shared_bytes);
    }
    args.beside_blocks = (int32_t)n_beside;
    n_blocks = size_min(n_blocks, size_divide_up(n_tiles * n_slices, l->warps));
    grid.x = (unsigned)(n_beside + n_blocks);
    return cuda_launch(be, &cuda_linear, l->kernel, grid, &args, err);
}

/* The launch that begins with part p; its n_parts is 0 if p goes along with an earlier part. */
static struct launch launch_of(const struct cuda_backend *be, const struct op_linear *u, size_t p,
                               const struct op *ahead, size_t n_rows)
{
    struct launch l = {.u = u, .ahead = ahead, .n_rows = n_rows, .form = form_of(&u->part[p].w)};

    for (size_t q = 0; q < u->n_parts; q++) {
        if (form_of(&u->part[q].w) != l.form || u->part[q].w.perm != u->part[p].w.perm) {
            continue;
        }
        if (q < p) {
            l.n_parts = 0;
            return l;
        }
        l.part[l.n_parts++] = q;
    }
    choose(be, &l);
    return l;
}

/* The first of the launches whose kernel is one of these; n if there is none. */
static size_t first_of(const struct launch *all, size_t n, enum kernel a, enum kernel b,
                       enum kernel c)
{
    size_t i = 0;

    while (i < n && all[i].kernel != a && all[i].kernel != b && all[i].kernel != c) {
        i++;
    }
    return i;
}

static enum status launch_all(struct cuda_backend *be, const struct op *op, const struct op *ahead,
                              size_t n_rows, const struct cuda_shape *shape, struct error *err)
{
    struct launch all[LINEAR_PARTS_MAX];
    size_t n = 0, main, beside;
    enum status rc = OK;

    for (size_t p = 0; p < op->u.linear.n_parts; p++) {
        all[n] = launch_of(be, &op->u.linear, p, ahead, n_rows);
        n += all[n].n_parts > 0;
    }
    main = first_of(all, n, KERNEL_linear_gemv_int8_one, KERNEL_linear_gemv_int8_one,
                    KERNEL_linear_gemv_int8_one);
    beside = first_of(all, n, KERNEL_linear_gemv_f32_1, KERNEL_linear_gemv_f16_1,
                      KERNEL_linear_gemv_bf16_1);
    for (size_t i = 0; rc == OK && i < n; i++) {
        if (all[i].kernel == KERNEL_linear_gemv_int8_one) {
            rc = launch_int8_one(be, op, &all[i], i == main && beside < n ? &all[beside] : NULL,
                                 shape, err);
        } else if (i != beside || main == n) {
            rc = launch(be, op, &all[i], shape, err);
        }
    }
    return rc;
}

bool cuda_linear_takes(const struct cuda_backend *be, const struct op *op, const struct op *ahead)
{
    const struct op_linear *u = &op->u.linear;
    size_t most = ahead->kind == OP_NORM ? LINEAR_NORM_ROWS : 1;

    if (ahead->kind != OP_NORM && u->in.cols > LINEAR_SWIGLU_INPUTS) {
        return false;
    }
    for (size_t rows = 1; rows <= most; rows++) {
        for (size_t p = 0; p < u->n_parts; p++) {
            struct launch l = launch_of(be, u, p, ahead, rows);

            if (u->part[p].w.perm || (l.n_parts > 0 && l.kernel == KERNEL_linear_gemv_any)) {
                return false;
            }
        }
    }
    return true;
}

enum status cuda_linear_run_after(struct cuda_backend *be, const struct op *op,
                                  const struct op *ahead, const struct cuda_shape *shape,
                                  struct error *err)
{
    size_t n_rows = cuda_op_rows(op, shape);

    return n_rows == 0 ? OK : launch_all(be, op, ahead, n_rows, shape, err);
}

static enum status linear_run(struct cuda_backend *be, const struct op *op, void *data,
                              const struct cuda_shape *shape, const struct state_pools *state,
                              struct error *err)
{
    size_t n_rows = cuda_op_rows(op, shape);

    (void)data;
    (void)state;
    if (n_rows == 0) {
        return OK;
    }
    if (cuda_linear_gemm_fits(be, op, n_rows)) {
        return cuda_linear_gemm_run(be, op, shape, KERNEL_GEMM, err);
    }
    return launch_all(be, op, NULL, n_rows, shape, err);
}

static enum status linear_prepare(struct cuda_backend *be, const struct op *op,
                                  struct cuda_need *need, void **data, struct error *err)
{
    (void)err;
    *data = NULL;
    need->scratch_bytes = cuda_linear_gemm_scratch(be, op);
    return OK;
}

/* "linear bfloat16 cuda": static, by the name of the weights' kind. */
static const char *kernel_text(const char *kind)
{
    static const struct {
        const char *kind, *text;
    } texts[] = {
#define TEXT(kind) {kind, "linear " kind " cuda"}
        TEXT("float32"),  TEXT("float16"),  TEXT("bfloat16"),  TEXT("int4"), TEXT("int4 row"),
        TEXT("int4 g32"), TEXT("int4 g64"), TEXT("int4 g128"), TEXT("int8"), TEXT("int8 row"),
        TEXT("int8 g32"), TEXT("int8 g64"), TEXT("int8 g128"),
#undef TEXT
    };

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (strcmp(texts[i].kind, kind) == 0) {
            return texts[i].text;
        }
    }
    return "linear cuda";
}

static enum status linear_check(struct cuda_backend *be, struct op *op, struct error *err)
{
    const struct op_linear *u = &op->u.linear;
    const char *kernel = NULL;
    enum status rc;

    (void)be;
    op->kernel = NULL;
    if (u->n_parts == 0 || u->n_parts > LINEAR_PARTS_MAX) {
        return cuda_refuse(err, op, "%zu matrices", u->n_parts);
    }
    rc = cuda_check_operand(op, "the input", &u->in, u->in.cols, err);
    for (size_t p = 0; rc == OK && p < u->n_parts; p++) {
        const struct operand *out = &u->part[p].out;
        const char *text;

        rc = cuda_check_weight(op, "the matrix", &u->part[p].w, u->in.cols, err);
        if (rc != OK) {
            break;
        }
        rc = u->part[p].accumulates
                 ? cuda_check_exact(op, "the sum", out, u->part[p].w.n_out, err)
                 : cuda_check_operand(op, "the output", out, u->part[p].w.n_out, err);
        if (rc == OK && out->data == u->in.data) {
            rc = cuda_refuse(err, op, "the output overlaps the input");
        }
        text = kernel_text(weight_kind_name(&u->part[p].w));
        kernel = p == 0 || kernel == text ? text : "linear mixed cuda";
    }
    op->kernel = rc == OK ? kernel : NULL;
    return rc;
}

const struct cuda_family cuda_linear = {
    .kernels = kernel_names,
    .n_kernels = sizeof kernel_names / sizeof kernel_names[0],
    .check = linear_check,
    .prepare = linear_prepare,
    .run = linear_run,
};
