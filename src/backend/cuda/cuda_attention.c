/* cuda_attention.c - causal attention over the KV pages, times sigmoid(gate).
 *
 * Place:  backend/cuda. Spans of up to ATTENTION_SHORT_ROWS rows (decode) are cut along their context into
 *         splits, enough of them to fill the card with one sequence, and joined; longer ones (prefill)
 *         are cut into tiles of lanes (attention_args.h has the words). The kernels decide by the step's
 *         table which spans are theirs, so a step of both kinds launches both.
 * Choice: matrix instructions where keys are exact in the activations' 16-bit type (the same type, or
 *         fp8) and head sizes are the built ones:
 *             attention_split  decode        attention_flash  prefill
 *         else attention_any, in float32. float16 runs on cards before 8.0 too, except with fp8.
 * Splits: at most ATTENTION_BLOCKS / nkv for a span, by whole pages. The number depends on the model and the
 *         span alone. Scratch for many sequences at once would be large, so they are taken in turns of
 *         as many as fit SCRATCH_WANTED. */
#include "backend/cuda/cuda_kv.h"
#include "base/size.h"

enum { ATTENTION_BLOCKS = 128, SPLITS_MIN = 16, GRID_Z_MAX = 65535 };
static const size_t SCRATCH_WANTED = (size_t)32 << 20;

enum { N_ANY = 4 }; /* head sizes up to 32, 64, 128, 256 */
enum attention_kernel {
    ANY_SHORT,
    ANY_LONG = ANY_SHORT + N_ANY,
    JOIN = ANY_LONG + N_ANY,
    SPLIT_BF16,
    SPLIT_F16 = SPLIT_BF16 + N_SPLIT,
    FLASH_BF16 = SPLIT_F16 + N_SPLIT,
    FLASH_F16 = FLASH_BF16 + N_FLASH,
    FLASH_F16_256_SMALL = FLASH_F16 + N_FLASH, /* for cards with 64 KB, which have no bfloat16 */
    ATTENTION_KERNELS
};

#define NAMES_FLASH(at, name)                                                                      \
    NAMES_SPLIT(at, name), [at + SAME_256_LARGE] = name "_256_large",                              \
                                 [at + E4M3_256_LARGE] = name "_e4m3_256_large",                   \
                                 [at + E5M2_256_LARGE] = name "_e5m2_256_large"

static const char *const attention_kernels[ATTENTION_KERNELS] = {
    "attention_any_short_32",
    "attention_any_short_64",
    "attention_any_short_128",
    "attention_any_short_256",
    "attention_any_long_32",
    "attention_any_long_64",
    "attention_any_long_128",
    "attention_any_long_256",
    [JOIN] = "attention_join",
    NAMES_SPLIT(SPLIT_BF16, "attention_split_bf16"),
    NAMES_SPLIT(SPLIT_F16, "attention_split_f16"),
    NAMES_FLASH(FLASH_BF16, "attention_flash_bf16"),
    NAMES_FLASH(FLASH_F16, "attention_flash_f16"),
    [FLASH_F16_256_SMALL] = "attention_flash_f16_256_small",
};

bool cuda_has_mma(const struct cuda_backend *be, enum dtype act, enum dtype kv)
{
    if (act == DTYPE_F16 && kv == DTYPE_F16) {
        return true;
    }
    return be->card.sm >= 80 && (act == DTYPE_F16 || act == DTYPE_BF16) &&
           (kv == act || cuda_kv_is_fp8(kv));
}

static enum status attention_check(struct cuda_backend *be, struct op *op, struct error *err)
{
    const struct op_attention *u = &op->u.attention;
    enum status rc = cuda_kv_check(op, u->nq, u->nkv, u->hd, err);

    if (rc == OK) {
        rc = cuda_check_operand(op, "q", &u->q, u->nq * u->hd * (u->is_gated ? 2 : 1), err);
    }
    if (rc == OK) {
        rc = cuda_check_operand(op, "the output", &u->out, u->nq * u->hd, err);
    }
    if (rc == OK && u->out.data == u->q.data) {
        rc = cuda_refuse(err, op, "the output overlaps the input");
    }
    op->kernel = rc != OK                                    ? NULL
                 : !cuda_has_mma(be, u->q.round, u->q.round) ? "attention float32 cuda"
                 : u->q.round == DTYPE_BF16                  ? "attention bf16 cuda"
                                                             : "attention f16 cuda";
    return rc;
}

/* How short spans share the scratch. */
struct split_plan {
    size_t splits_max;
    size_t rows;  /* of the scratch: one for each row of a span */
    size_t lanes; /* splits_max each */
};

static struct split_plan split_plan(const struct cuda_backend *be, const struct op_attention *u)
{
    struct split_plan p;
    size_t pages = size_divide_up(size_max(be->context_max, 1), KV_PAGE_TOKENS), row_bytes;

    p.splits_max = size_max(ATTENTION_BLOCKS / u->nkv, SPLITS_MIN);
    p.splits_max = size_min(size_min(p.splits_max, ATTENTION_SPLITS_MAX), pages);
    row_bytes = u->nq * p.splits_max * (u->hd + 2) * sizeof(float);
    p.rows = size_min(SCRATCH_WANTED / row_bytes, be->rows_max);
    p.rows = size_max(p.rows, ATTENTION_SHORT_ROWS);
    p.lanes = p.rows * u->nq;
    return p;
}

static enum status attention_prepare(struct cuda_backend *be, const struct op *op,
                                     struct cuda_need *need, void **data, struct error *err)
{
    const struct op_attention *u = &op->u.attention;
    struct split_plan p = split_plan(be, u);

    (void)data;
    (void)err;
    need->scratch_bytes = p.lanes * p.splits_max * (u->hd + 2) * sizeof(float);
    return OK;
}

enum mma_kernel cuda_choose_mma(const struct cuda_backend *be, const struct op_attention *u,
                                const struct kv_cache *c)
{
    static const struct {
        size_t hd;
        enum mma_kernel same, e4m3, e5m2;
    } sizes[] = {
        {64, SAME_64, NO_MMA, NO_MMA},
        {128, SAME_128, E4M3_128, E5M2_128},
        {256, SAME_256, E4M3_256, E5M2_256},
    };

    if (!cuda_has_mma(be, u->q.round, c->dtype) || !cuda_is_aligned(u->q.data) ||
        !cuda_is_aligned(u->out.data) || !cuda_is_aligned(c->k) || !cuda_is_aligned(c->v) ||
        !cuda_is_aligned(c->k_scale) || !cuda_is_aligned(c->v_scale)) {
        return NO_MMA;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i].hd == u->hd) {
            return c->dtype == DTYPE_F8_E4M3   ? sizes[i].e4m3
                   : c->dtype == DTYPE_F8_E5M2 ? sizes[i].e5m2
                                               : sizes[i].same;
        }
    }
    return NO_MMA;
}

static enum attention_kernel any_kernel(enum attention_kernel first, size_t hd)
{
    int i = 0;

    while ((size_t)32 << i < hd) {
        i++;
    }
    return first + (enum attention_kernel)i;
}

static size_t any_shared_bytes(size_t hd)
{
    size_t stride = size_divide_up(hd, 4) * 4 + ANY_PAD;

    return ((ANY_LANES + ANY_TOKENS) * stride + ANY_LANES * ANY_TOKENS) * sizeof(float);
}

static size_t split_shared_bytes(size_t hd)
{
    size_t warps = SPLIT_THREADS / 32;

    return SPLIT_LANES * hd * 2 + warps * SPLIT_LANES * (SPLIT_P_STRIDE + 2 + hd) * sizeof(float);
}

static size_t flash_shared_bytes(size_t hd, size_t warps, size_t tokens, bool is_fp8)
{
    size_t tile = tokens * hd, q = 16 * warps * hd * 2;

    return is_fp8 ? q + 2 * tile * 2 + 2 * tile + 4 * tokens * sizeof(float) : q + 4 * tile * 2;
}

/* A kernel with its launch. */
struct choice {
    enum attention_kernel kernel;
    size_t lanes; /* of a block */
    unsigned threads;
    size_t shared_bytes;
};

static struct choice choose_short(const struct op_attention *u, enum mma_kernel mma)
{
    if (mma == NO_MMA) {
        return (struct choice){any_kernel(ANY_SHORT, u->hd), ANY_LANES, ANY_THREADS,
                               any_shared_bytes(u->hd)};
    }
    return (struct choice){(u->q.round == DTYPE_BF16 ? SPLIT_BF16 : SPLIT_F16) +
                               (enum attention_kernel)mma,
                           SPLIT_LANES, SPLIT_THREADS, split_shared_bytes(u->hd)};
}

/* The largest tiles that the card has shared memory for. */
static struct choice choose_long(const struct cuda_backend *be, const struct op_attention *u,
                                 const struct kv_cache *c, enum mma_kernel mma)
{
    enum attention_kernel first = u->q.round == DTYPE_BF16 ? FLASH_BF16 : FLASH_F16;
    enum mma_kernel large = mma == SAME_256   ? SAME_256_LARGE
                            : mma == E4M3_256 ? E4M3_256_LARGE
                            : mma == E5M2_256 ? E5M2_256_LARGE
                                              : NO_MMA;
    const struct {
        bool is_built;
        enum attention_kernel kernel;
        size_t warps, tokens;
    } sizes[] = {
        {large != NO_MMA, first + (enum attention_kernel)large, FLASH_LARGE_WARPS,
         FLASH_LARGE_TOKENS},
        {mma != NO_MMA, first + (enum attention_kernel)mma, FLASH_WARPS, FLASH_TOKENS},
        {mma == SAME_256 && first == FLASH_F16, FLASH_F16_256_SMALL, FLASH_WARPS,
         FLASH_SMALL_TOKENS},
    };

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t warps = sizes[i].warps;
        size_t bytes = flash_shared_bytes(u->hd, warps, sizes[i].tokens, cuda_kv_is_fp8(c->dtype));

        if (sizes[i].is_built && bytes <= be->card.shared_bytes_max) {
            return (struct choice){sizes[i].kernel, 16 * warps, (unsigned)(32 * warps), bytes};
        }
    }
    return (struct choice){any_kernel(ANY_LONG, u->hd), ANY_LANES, ANY_THREADS,
                           any_shared_bytes(u->hd)};
}

static void scratch_cut(struct attention_args *args, const struct cuda_backend *be,
                        const struct op_attention *u, const struct split_plan *p)
{
    args->partial = be->scratch;
    args->partial_max = args->partial + p->lanes * p->splits_max * u->hd;
    args->partial_sum = args->partial_max + p->lanes * p->splits_max;
}

static struct cuda_grid split_grid(const struct op_attention *u, const struct cuda_shape *shape,
                                   struct choice c, size_t n, const struct attention_args *args)
{
    size_t pages = size_divide_up(size_max(shape->context_max, 1), KV_PAGE_TOKENS);
    size_t lanes = (size_t)args->rows_each * (u->nq / u->nkv);

    return (struct cuda_grid){.x = (unsigned)size_min((size_t)args->splits_max, pages),
                              .y = (unsigned)u->nkv,
                              .z = (unsigned)(n * size_divide_up(lanes, c.lanes)),
                              .threads = c.threads,
                              .shared_bytes = c.shared_bytes};
}

struct cuda_grid cuda_split_grid(const struct op_attention *u, const struct cuda_shape *shape,
                                 size_t n, const struct attention_args *args)
{
    struct choice c = {
        .lanes = SPLIT_LANES, .threads = SPLIT_THREADS, .shared_bytes = split_shared_bytes(u->hd)};

    return split_grid(u, shape, c, n, args);
}

enum status cuda_split_join(struct cuda_backend *be, const struct op_attention *u, size_t n,
                            const struct attention_args *args, struct error *err)
{
    size_t lanes = (size_t)args->rows_each * (u->nq / u->nkv);

    return cuda_launch(
        be, &cuda_attention, JOIN,
        (struct cuda_grid){
            .x = (unsigned)lanes, .y = (unsigned)u->nkv, .z = (unsigned)n, .threads = JOIN_THREADS},
        args, err);
}

/* The splits of n spans from args->span_first on, then their joins. */
static enum status run_splits(struct cuda_backend *be, const struct op_attention *u,
                              const struct cuda_shape *shape, struct choice c, size_t n,
                              const struct attention_args *args, struct error *err)
{
    enum status rc = cuda_launch(be, &cuda_attention, (size_t)c.kernel,
                                 split_grid(u, shape, c, n, args), args, err);

    return rc != OK ? rc : cuda_split_join(be, u, n, args, err);
}

size_t cuda_split_spans(struct cuda_backend *be, const struct op_attention *u, size_t rows_each,
                        size_t lanes, struct attention_args *args)
{
    struct split_plan p = split_plan(be, u);
    size_t tiles = size_divide_up(rows_each * (u->nq / u->nkv), lanes);

    scratch_cut(args, be, u, &p);
    args->rows_each = (int32_t)rows_each;
    args->splits_max = (int32_t)p.splits_max;
    return size_min(p.rows / rows_each, GRID_Z_MAX / tiles);
}

static enum status run_short(struct cuda_backend *be, const struct op_attention *u,
                             const struct cuda_shape *shape, struct choice c,
                             struct attention_args *args, struct error *err)
{
    size_t rows_each = shape->is_decode ? 1 : ATTENTION_SHORT_ROWS;
    size_t at_once = cuda_split_spans(be, u, rows_each, c.lanes, args);
    enum status rc = OK;

    for (size_t i = 0; rc == OK && i < shape->n_spans; i += at_once) {
        args->span_first = (int32_t)i;
        rc = run_splits(be, u, shape, c, size_min(at_once, shape->n_spans - i), args, err);
    }
    return rc;
}

static enum status run_long(struct cuda_backend *be, const struct op_attention *u,
                            const struct cuda_shape *shape, struct choice c,
                            struct attention_args *args, struct error *err)
{
    size_t spans = size_min(shape->n_spans, shape->n_rows / (ATTENTION_SHORT_ROWS + 1));
    size_t tiles = size_divide_up(shape->n_rows * (u->nq / u->nkv), c.lanes) + spans;

    args->splits_max = 0;
    return cuda_launch(be, &cuda_attention, (size_t)c.kernel,
                       (struct cuda_grid){.x = (unsigned)tiles,
                                          .y = (unsigned)u->nkv,
                                          .threads = c.threads,
                                          .shared_bytes = c.shared_bytes},
                       args, err);
}

/* A span alone: a prompt, or what was added to one. Only decode steps are captured, so this shape is the
 * step itself and may decide how it is cut. */
static enum status run_alone(struct cuda_backend *be, const struct op_attention *u,
                             const struct cuda_shape *shape, struct choice c,
                             struct attention_args *args, struct error *err)
{
    struct split_plan p = split_plan(be, u);
    size_t tiles = size_divide_up(shape->n_rows * (u->nq / u->nkv), c.lanes);
    size_t pages = size_divide_up(shape->context_max, KV_PAGE_TOKENS);
    size_t splits = size_min(ATTENTION_BLOCKS / (tiles * u->nkv), pages);

    splits = size_min(splits, p.rows * p.splits_max / shape->n_rows);
    if (splits < 2) {
        return run_long(be, u, shape, c, args, err);
    }
    if (c.kernel >= ANY_LONG && c.kernel < ANY_LONG + N_ANY) {
        c.kernel = c.kernel - ANY_LONG + ANY_SHORT;
    }
    scratch_cut(args, be, u, &p);
    args->rows_each = (int32_t)shape->n_rows;
    args->splits_max = (int32_t)splits;
    return run_splits(be, u, shape, c, 1, args, err);
}

enum status cuda_attention_args(struct attention_args *args, const struct op *op,
                                const struct cuda_shape *shape, const struct state_pools *state,
                                struct error *err)
{
    const struct op_attention *u = &op->u.attention;

    *args = (struct attention_args){
        .view = shape->view,
        .q = u->q.data,
        .out = u->out.data,
        .nkv = (int32_t)u->nkv,
        .hd = (int32_t)u->hd,
        .group = (int32_t)(u->nq / u->nkv),
        .q_cols = (int32_t)u->q.cols,
        .q_stride = (int32_t)(u->is_gated ? 2 * u->hd : u->hd),
        .is_gated = u->is_gated,
        .scale = u->scale,
        .round = u->out.round,
    };
    return cuda_kv_cache(&args->cache, op, state, u->attn_layer, u->nkv, u->hd, err);
}

static enum status attention_run(struct cuda_backend *be, const struct op *op, void *data,
                                 const struct cuda_shape *shape, const struct state_pools *state,
                                 struct error *err)
{
    const struct op_attention *u = &op->u.attention;
    bool has_long = shape->span_rows_max > ATTENTION_SHORT_ROWS;
    struct attention_args args;
    enum status rc = cuda_attention_args(&args, op, shape, state, err);
    enum mma_kernel mma;
    struct choice c;

    (void)data;
    if (rc != OK) {
        return rc;
    }
    mma = cuda_choose_mma(be, u, &args.cache);
    c = choose_long(be, u, &args.cache, mma);
    if (has_long && shape->n_spans == 1) {
        return run_alone(be, u, shape, c, &args, err);
    }
    rc = run_short(be, u, shape, choose_short(u, mma), &args, err);
    return rc == OK && has_long ? run_long(be, u, shape, c, &args, err) : rc;
}

const struct cuda_family cuda_attention = {
    .kernels = attention_kernels,
    .n_kernels = ATTENTION_KERNELS,
    .check = attention_check,
    .prepare = attention_prepare,
    .run = attention_run,
};
