/* cuda_linear_gemm.c - the many-rows product: which kernel for which weights, tiles, pieces, scratch.
 *
 * Place: backend/cuda; the kernels are kernels/linear_gemm_*.cu.
 * Chunk: rows are worked through in chunks, which bounds the scratch. Per chunk the input is converted once
 *        per form that a part wants; then one launch serves all parts of one kind of weight.
 * Split: when the tiles are fewer than the multiprocessors, the sum over inputs is cut in pieces for
 *        different blocks; a second kernel adds the pieces in order. How many is decided by the rows
 *        rounded up to a power of two. */
#include "backend/cuda/cuda_linear_gemm.h"

#include "backend/cuda/kernels/linear_gemm_args.h"
#include "base/size.h"

enum {
    CHUNK_ROWS = 4096,
    ROWS_LEAST = 32, /* of a tile */
    FMA_COLS = 64,
    WIDE_PERCENT = 180,   /* a wide tile's time beside a tile of 128 columns */
    WIDE_COLS = 256,      /* of the widest tile */
    SPLIT_STAGES_MIN = 4, /* a piece should be long beside its start */
    SCRATCH_ALIGN = 256,
    ALIGN = 16, /* of what the kernels copy in pieces of 16 bytes */
};

/* Kernels from `first` on, in the order of LINEAR_GEMM_KERNELS. */
enum {
    KERNEL_CONVERT,
    KERNEL_REDUCE,
    KERNEL_FMA_32,
    KERNEL_FMA_128,
    KERNEL_TILES, /* and on: those of the kinds, by rows of a tile */
};

/* How weights are multiplied; FMA first, the others as their kernels follow each other. */
enum how {
    BY_FMA,
    BY_BF16,
    BY_F16,
    BY_F16_AS_BF16,
    BY_INT4_BF16,
    BY_INT4_F16,
    BY_INT8_BF16,
    BY_INT8_F16,
    HOW_COUNT
};

static const struct how_info {
    int kernel;  /* of its 32-row tile, from KERNEL_TILES on */
    bool is_f16; /* type of the converted input */
    bool is_quant;
    bool has_wide;    /* a tile of 128 x 256 */
    int row_bytes;    /* of a weight row in a stage */
    int n_buffers[4]; /* stages in shared memory, by tile: 32, 64, 128, wide */
} hows[HOW_COUNT] = {
    [BY_BF16] = {0, false, false, true, 2 * GEMM_K, {4, 4, 3, 4}},
    [BY_F16] = {4, true, false, true, 2 * GEMM_K, {4, 4, 3, 4}},
    [BY_F16_AS_BF16] = {8, false, false, false, 2 * GEMM_K, {4, 4, 3, 0}},
    [BY_INT4_BF16] = {11, false, true, false, GEMM_K / 2, {4, 4, 4, 0}},
    [BY_INT4_F16] = {14, true, true, false, GEMM_K / 2, {4, 4, 4, 0}},
    [BY_INT8_BF16] = {17, false, true, false, GEMM_K, {4, 4, 4, 0}},
    [BY_INT8_F16] = {20, true, true, false, GEMM_K, {4, 4, 4, 0}},
};

/* The input as a part wants it. */
struct form {
    enum how how;
    int n_planes;
    const int32_t *perm;
};

static bool is_aligned(const struct weight *w)
{
    size_t row_bytes = weight_row_bytes(w);

    return (uintptr_t)w->data % ALIGN == 0 && row_bytes % ALIGN == 0;
}

static enum how how_of(const struct cuda_backend *be, enum dtype x, const struct weight *w)
{
    bool is_f16 = x == DTYPE_F16, is_int4 = w->kind == WEIGHT_INT4;

    if (!is_aligned(w) || (be->card.sm < 80 && !is_f16)) {
        return BY_FMA;
    }
    if (w->kind != WEIGHT_DENSE) {
        return is_int4 ? (is_f16 ? BY_INT4_F16 : BY_INT4_BF16)
                       : (is_f16 ? BY_INT8_F16 : BY_INT8_BF16);
    }
    switch (w->dtype) {
    case DTYPE_BF16:
        return be->card.sm < 80 ? BY_FMA : BY_BF16;
    case DTYPE_F16:
        return is_f16 ? BY_F16 : BY_F16_AS_BF16;
    default:
        return BY_FMA;
    }
}

/* A float32 value is the sum of three bfloat16 ones, a float16 value of two. */
static struct form form_of(const struct cuda_backend *be, const struct op_linear *u, size_t p)
{
    enum dtype x = u->in.round;
    struct form f = {.how = how_of(be, x, &u->part[p].w), .n_planes = 1, .perm = u->part[p].w.perm};

    if (!hows[f.how].is_f16 && x != DTYPE_BF16) {
        f.n_planes = x == DTYPE_F16 ? 2 : 3;
    }
    return f;
}

static bool same_input(const struct form *a, const struct form *b)
{
    return a->n_planes == b->n_planes && a->perm == b->perm &&
           hows[a->how].is_f16 == hows[b->how].is_f16 &&
           hows[a->how].is_quant == hows[b->how].is_quant;
}

/* The first part whose converted input serves part p. */
static size_t owner_of(const struct form *forms, size_t p)
{
    size_t owner = 0;

    while (forms[owner].how == BY_FMA || !same_input(&forms[owner], &forms[p])) {
        owner++;
    }
    return owner;
}

/* --- tiles --- */

struct tiling {
    size_t index;      /* 0: 32 rows, 1: 64, 2: 128, 3: 128 and wide */
    size_t rows, cols; /* of a tile */
    size_t n_cols;     /* column tiles of all parts */
    size_t n_splits, split_stages;
    size_t n_buffers, shared_bytes;
};

static size_t rows_bucket(size_t n_rows)
{
    size_t bucket = ROWS_LEAST;

    while (bucket < n_rows && bucket < CHUNK_ROWS) {
        bucket *= 2;
    }
    return bucket;
}

static size_t column_tiles(const struct op_linear *u, const struct form *forms, enum how how,
                           size_t cols)
{
    size_t n = 0;

    for (size_t p = 0; p < u->n_parts; p++) {
        n += forms[p].how == how ? size_divide_up(u->part[p].w.n_out, cols) : 0;
    }
    return n;
}

static size_t shared_of(const struct how_info *h, const struct tiling *t)
{
    return t->n_buffers * (t->rows * 2 * GEMM_K + t->cols * (size_t)h->row_bytes);
}

/* For all parts of one kind, in a step of a bucket's rows. */
static struct tiling tiling_of(const struct cuda_backend *be, const struct op_linear *u,
                               const struct form *forms, enum how how, int n_planes, size_t bucket)
{
    const struct how_info *h = &hows[how];
    size_t n_sm = (size_t)be->card.n_multiprocessors, n_tiles, n_stages;
    struct tiling t = {.cols = GEMM_COLS, .n_splits = 1};

    t.index = bucket <= 32 ? 0 : bucket <= 64 ? 1 : 2;
    t.rows = (size_t)32 << t.index;
    if (h->has_wide && t.index == 2) {
        struct tiling wide = {.index = 3, .rows = t.rows, .cols = WIDE_COLS, .n_splits = 1};
        size_t n_rows = size_divide_up(bucket, t.rows);
        size_t rounds = size_divide_up(n_rows * column_tiles(u, forms, how, t.cols), n_sm);
        size_t wide_rounds = size_divide_up(n_rows * column_tiles(u, forms, how, WIDE_COLS), n_sm);

        wide.n_buffers = (size_t)h->n_buffers[3];
        if (wide_rounds * WIDE_PERCENT <= rounds * 100 &&
            shared_of(h, &wide) <= be->card.shared_bytes_max) {
            t = wide;
        }
    }
    t.n_buffers = be->card.sm < 80 ? 2 : (size_t)h->n_buffers[t.index];
    t.shared_bytes = shared_of(h, &t);
    t.n_cols = column_tiles(u, forms, how, t.cols);
    n_tiles = size_divide_up(bucket, t.rows) * t.n_cols;
    n_stages = size_divide_up(u->in.cols, GEMM_K) * (size_t)n_planes;
    t.split_stages = n_stages;
    if (n_tiles * 2 <= n_sm && n_stages >= 2 * SPLIT_STAGES_MIN) {
        t.n_splits = size_min(n_sm / n_tiles, n_stages / SPLIT_STAGES_MIN);
        t.split_stages = size_divide_up(n_stages, t.n_splits);
        t.n_splits = size_divide_up(n_stages, t.split_stages);
    }
    return t;
}

/* --- scratch --- */

/* a + b * c; SIZE_MAX if that is too much. */
static size_t plus_times(size_t a, size_t b, size_t c)
{
    size_t r;

    return size_mul(&r, b, c) && size_add(&r, r, a) ? r : SIZE_MAX;
}

static size_t align_up(size_t n)
{
    size_t r;

    return size_align(&r, n, SCRATCH_ALIGN) ? r : SIZE_MAX;
}

/* The scratch is one converted input after the other, then the pieces of sums. at[p]: where the one that
 * part p owns begins. Returns the end. */
static size_t inputs_layout(const struct op_linear *u, const struct form *forms, size_t rows,
                            size_t *at)
{
    size_t end = 0;

    for (size_t p = 0; p < u->n_parts; p++) {
        at[p] = end;
        if (forms[p].how != BY_FMA && owner_of(forms, p) == p) {
            end = align_up(plus_times(end, rows * (size_t)forms[p].n_planes * 2, u->in.cols));
        }
    }
    return end;
}

static size_t partial_bytes(const struct tiling *t, size_t rows)
{
    return t->n_splits > 1 ? t->n_splits * rows * t->n_cols * t->cols * sizeof(float) : 0;
}

size_t cuda_linear_gemm_scratch(const struct cuda_backend *be, const struct op *op)
{
    const struct op_linear *u = &op->u.linear;
    size_t rows = size_min(be->rows_max, CHUNK_ROWS), at[LINEAR_PARTS_MAX], partial = 0, inputs;
    struct form forms[LINEAR_PARTS_MAX] = {{0}};

    for (size_t p = 0; p < u->n_parts; p++) {
        forms[p] = form_of(be, u, p);
    }
    inputs = inputs_layout(u, forms, rows, at);
    for (size_t p = 0; p < u->n_parts; p++) {
        for (size_t bucket = ROWS_LEAST; forms[p].how != BY_FMA && bucket <= rows_bucket(rows);
             bucket *= 2) {
            struct tiling t = tiling_of(be, u, forms, forms[p].how, forms[p].n_planes, bucket);

            partial = size_max(partial, partial_bytes(&t, size_min(bucket, rows)));
        }
    }
    return plus_times(inputs, partial, 1);
}

bool cuda_linear_gemm_fits(const struct cuda_backend *be, const struct op *op, size_t n_rows)
{
    (void)be;
    (void)op;
    return n_rows >= LINEAR_GEMM_ROWS_MIN;
}

/* --- run --- */

struct chunk {
    struct cuda_backend *be;
    const struct op_linear *u;
    const struct form *forms;
    const size_t *at; /* of converted inputs in the scratch */
    size_t inputs_bytes;
    const int32_t *n_rows; /* of the step, on the device */
    size_t row0, rows, bucket;
    size_t first;
};

static enum status convert(const struct chunk *c, size_t p, struct error *err)
{
    const struct form *f = &c->forms[p];
    size_t n_in = c->u->in.cols;
    struct gemm_convert_args args = {
        .n_rows = c->n_rows,
        .x = c->u->in.data,
        .perm = f->perm,
        .out = (uint16_t *)((uint8_t *)c->be->scratch + c->at[p]),
        .row0 = (int32_t)c->row0,
        .rows_max = (int32_t)c->rows,
        .n_in = (int32_t)n_in,
        .n_planes = f->n_planes,
        .order = hows[f->how].is_quant ? GEMM_ORDER_QUANT : GEMM_ORDER_PLAIN,
        .is_f16 = hows[f->how].is_f16,
    };
    struct cuda_grid grid = {.x = (unsigned)size_divide_up(n_in / 4, GEMM_THREADS),
                             .y = (unsigned)c->rows,
                             .threads = GEMM_THREADS};

    return cuda_launch(c->be, &cuda_linear, c->first + KERNEL_CONVERT, grid, &args, err);
}

static struct gemm_part part_of(const struct chunk *c, size_t p, const struct tiling *t,
                                size_t tile0)
{
    const struct weight *w = &c->u->part[p].w;
    bool is_quant = w->kind != WEIGHT_DENSE;

    return (struct gemm_part){
        .x = (const uint16_t *)((const uint8_t *)c->be->scratch + c->at[owner_of(c->forms, p)]),
        .data = w->data,
        .scales = w->scales,
        .zeros = w->zeros,
        .out = c->u->part[p].out.data,
        .n_out = (int32_t)w->n_out,
        .tile0 = (int32_t)tile0,
        .n_tiles = (int32_t)size_divide_up(w->n_out, t->cols),
        .group_blocks = is_quant ? (int32_t)(w->group / WEIGHT_BLOCK) : 0,
        .n_groups = (int32_t)weight_n_groups(w),
        .scale_dtype = (int32_t)w->dtype,
        .round = (int32_t)c->u->part[p].out.round,
        .accumulates = c->u->part[p].accumulates,
    };
}

/* All parts that are multiplied so. */
static enum status multiply(const struct chunk *c, enum how how, int n_planes, struct error *err)
{
    struct tiling t = tiling_of(c->be, c->u, c->forms, how, n_planes, c->bucket);
    struct linear_gemm_args args = {
        .n_rows = c->n_rows,
        .partial = (float *)(void *)((uint8_t *)c->be->scratch + c->inputs_bytes),
        .row0 = (int32_t)c->row0,
        .rows_max = (int32_t)c->rows,
        .n_in = (int32_t)c->u->in.cols,
        .n_planes = n_planes,
        .n_splits = (int32_t)t.n_splits,
        .split_stages = (int32_t)t.split_stages,
        .partial_cols = (int32_t)(t.n_cols * t.cols),
        .tile_cols = (int32_t)t.cols,
        .n_buffers = (int32_t)t.n_buffers,
    };
    struct cuda_grid grid = {.x = (unsigned)size_divide_up(c->rows, t.rows),
                             .y = (unsigned)t.n_cols,
                             .z = (unsigned)t.n_splits,
                             .threads = GEMM_THREADS,
                             .shared_bytes = t.shared_bytes};
    size_t tile0 = 0;
    enum status rc;

    for (size_t p = 0; p < c->u->n_parts; p++) {
        if (c->forms[p].how == how) {
            args.part[args.n_parts++] = part_of(c, p, &t, tile0);
            tile0 += size_divide_up(c->u->part[p].w.n_out, t.cols);
        }
    }
    rc =
        cuda_launch(c->be, &cuda_linear,
                    c->first + KERNEL_TILES + (size_t)hows[how].kernel + t.index, grid, &args, err);
    if (rc == OK && t.n_splits > 1) {
        grid =
            (struct cuda_grid){.x = (unsigned)size_divide_up(t.n_cols * t.cols / 2, GEMM_THREADS),
                               .y = (unsigned)c->rows,
                               .threads = GEMM_THREADS};
        rc = cuda_launch(c->be, &cuda_linear, c->first + KERNEL_REDUCE, grid, &args, err);
    }
    return rc;
}

static enum status multiply_fma(const struct chunk *c, size_t p, struct error *err)
{
    const struct weight *w = &c->u->part[p].w;
    bool is_small = c->bucket <= 32;
    struct gemm_fma_args args = {
        .n_rows = c->n_rows,
        .x = c->u->in.data,
        .perm = w->perm,
        .data = w->data,
        .scales = w->scales,
        .zeros = w->zeros,
        .out = c->u->part[p].out.data,
        .row0 = (int32_t)c->row0,
        .rows_max = (int32_t)c->rows,
        .n_in = (int32_t)w->n_in,
        .n_out = (int32_t)w->n_out,
        .kind = (int32_t)w->kind,
        .dtype = (int32_t)w->dtype,
        .group = (int32_t)w->group,
        .n_groups = (int32_t)weight_n_groups(w),
        .round = (int32_t)c->u->part[p].out.round,
        .accumulates = c->u->part[p].accumulates,
    };
    struct cuda_grid grid = {.x = (unsigned)size_divide_up(c->rows, is_small ? 32 : 128),
                             .y = (unsigned)size_divide_up(w->n_out, FMA_COLS),
                             .threads = GEMM_THREADS};

    return cuda_launch(c->be, &cuda_linear, c->first + (is_small ? KERNEL_FMA_32 : KERNEL_FMA_128),
                       grid, &args, err);
}

static enum status chunk_run(const struct chunk *c, struct error *err)
{
    enum status rc = OK;

    for (size_t p = 0; rc == OK && p < c->u->n_parts; p++) {
        if (c->forms[p].how == BY_FMA) {
            rc = multiply_fma(c, p, err);
        } else if (owner_of(c->forms, p) == p) {
            rc = convert(c, p, err);
        }
    }
    for (int how = BY_FMA + 1; rc == OK && how < HOW_COUNT; how++) {
        for (size_t p = 0; p < c->u->n_parts; p++) {
            if (c->forms[p].how == (enum how)how) {
                rc = multiply(c, (enum how)how, c->forms[p].n_planes, err);
                break;
            }
        }
    }
    return rc;
}

enum status cuda_linear_gemm_run(struct cuda_backend *be, const struct op *op,
                                 const struct cuda_shape *shape, size_t first, struct error *err)
{
    const struct op_linear *u = &op->u.linear;
    size_t n_rows = cuda_op_rows(op, shape), at[LINEAR_PARTS_MAX];
    struct form forms[LINEAR_PARTS_MAX] = {{0}};
    struct chunk c = {.be = be,
                      .u = u,
                      .forms = forms,
                      .at = at,
                      .n_rows =
                          shape->view.counts + (op->rows == ROWS_OUT ? STEP_OUT_ROWS : STEP_ROWS),
                      .bucket = rows_bucket(n_rows),
                      .first = first};
    enum status rc = OK;

    for (size_t p = 0; p < u->n_parts; p++) {
        forms[p] = form_of(be, u, p);
    }
    c.inputs_bytes = inputs_layout(u, forms, size_min(n_rows, CHUNK_ROWS), at);
    for (c.row0 = 0; rc == OK && c.row0 < n_rows; c.row0 += CHUNK_ROWS) {
        c.rows = size_min(n_rows - c.row0, CHUNK_ROWS);
        rc = chunk_run(&c, err);
    }
    return rc;
}
