/* cuda_experts.c - the routed experts.
 *
 * Place: backend/cuda; route.cu chose the experts.
 * Ways:  int4 weights with 16-bit activations have two: for a few rows two launches that read what is needed
 *        of each expert once (experts_decode.cu), for many rows a sort of the pairs by expert and
 *        products with matrix instructions (experts_tile.cu). Everything else, and what these cannot do
 *        on the card at hand, is computed in float32 (experts_plain.cu).
 * Long:  steps are worked off in segments, so that scratch does not grow with them: a result per pair is
 *        the largest part. A row's result does not depend on where segments are cut.
 * Moves: kernels find weights through a table of addresses on the card.
 * Home:  experts that do not all fit (expert_home.h) stream past in steps of many rows (cuda_stream.h): the
 *        products are launched for one group of experts after the other. Each segment brings all of
 *        them over again, so segments are longer then: 2,048 rows of a 35B-A3B model take 152 MiB of
 *        scratch, 8,192 rows 608 MiB, the room of 393 of its 10,240 experts; 3,500 experts that come
 *        three times more take 350 ms on a link of 50 GB/s. In steps of few rows the CPU computes some of
 *        them meanwhile, on the thread that launches: when all of a layer's products are launched. */
#include "backend/cuda/cuda_experts.h"

#include <stdlib.h>

#include "backend/cuda/cuda_offload.h"
#include "backend/cuda/cuda_stream.h"
#include "base/size.h"

enum {
    EXPERTS_MAX = 65536,
    SEGMENT_ROWS = 2048,
    SEGMENT_ROWS_LEAST = 16,
    SCRATCH_ALIGN = 256,
    UNIT_BYTES = 16,
    CHUNK_BYTES_16 = EXPERTS_CHUNK * 2,                        /* of a row of x */
    STATIC_SHARED = 12 << 10,                                  /* more than any kernel has */
    TILE_WEIGHT_BYTES = EXPERTS_TILE_THREADS * 4 * UNIT_BYTES, /* of a stage */
    PART_BYTES = 2 * 32 * UNIT_BYTES,                          /* of a chunk of 16 weight rows */
    DECODE_WARPS = EXPERTS_DECODE_THREADS / 32,
};
#define HOME_SCRATCH_BYTES ((size_t)768 << 20) /* at the most, of a segment of streamed experts */

/* The kernels for bfloat16 are followed by those for float16. */
enum experts_kernel {
    GATE_UP_DECODE,
    GATE_UP_DECODE_F16,
    DOWN_DECODE,
    DOWN_DECODE_F16,
    GATE_UP_TILE,
    GATE_UP_TILE_F16,
    GATE_UP_SMALL,
    GATE_UP_SMALL_F16,
    GATE_UP_PERM,
    GATE_UP_PERM_F16,
    DOWN_TILE,
    DOWN_TILE_F16,
    DOWN_SMALL,
    DOWN_SMALL_F16,
    GATE_UP_PLAIN,
    DOWN_PLAIN,
    SORT,
    GATHER_X,
    GATHER_MID,
    SUM,
    EXPERTS_KERNELS
};

static const char *const experts_kernels[EXPERTS_KERNELS] = {
    [GATE_UP_DECODE] = "experts_gate_up_decode_bf16",
    [GATE_UP_DECODE_F16] = "experts_gate_up_decode_f16",
    [DOWN_DECODE] = "experts_down_decode_bf16",
    [DOWN_DECODE_F16] = "experts_down_decode_f16",
    [GATE_UP_TILE] = "experts_gate_up_tile_bf16",
    [GATE_UP_TILE_F16] = "experts_gate_up_tile_f16",
    [GATE_UP_SMALL] = "experts_gate_up_small_bf16",
    [GATE_UP_SMALL_F16] = "experts_gate_up_small_f16",
    [GATE_UP_PERM] = "experts_gate_up_perm_bf16",
    [GATE_UP_PERM_F16] = "experts_gate_up_perm_f16",
    [DOWN_TILE] = "experts_down_tile_bf16",
    [DOWN_TILE_F16] = "experts_down_tile_f16",
    [DOWN_SMALL] = "experts_down_small_bf16",
    [DOWN_SMALL_F16] = "experts_down_small_f16",
    [GATE_UP_PLAIN] = "experts_gate_up_plain",
    [DOWN_PLAIN] = "experts_down_plain",
    [SORT] = "experts_sort",
    [GATHER_X] = "experts_gather_x",
    [GATHER_MID] = "experts_gather_mid",
    [SUM] = "experts_sum",
};

/* What check() chose; run() knows it by the text. */
static const char name_int4[] = "experts int4 cuda";
static const char name_perm[] = "experts int4 act-order cuda";
static const char name_plain[] = "experts plain cuda";

/* ---- check ---- */

static enum status expert_check(const struct op *op, size_t e, const struct expert_weights *w,
                                struct error *err)
{
    const struct op_experts *u = &op->u.experts;
    enum status rc = cuda_check_weight(op, "the gate projection", &w->gate, u->in.cols, err);

    if (rc == OK) {
        rc = cuda_check_weight(op, "the up projection", &w->up, u->in.cols, err);
    }
    if (rc == OK) {
        rc = cuda_check_weight(op, "the down projection", &w->down, u->width, err);
    }
    if (rc == OK &&
        (w->gate.n_out != u->width || w->up.n_out != u->width || w->down.n_out != u->out.cols)) {
        rc = cuda_refuse(err, op, "its matrices have %zu, %zu and %zu rows", w->gate.n_out,
                         w->up.n_out, w->down.n_out);
    }
    if (rc != OK) {
        error_prefix(err, "expert %zu", e);
    }
    return rc;
}

static enum status operands_check(const struct op *op, struct error *err)
{
    const struct op_experts *u = &op->u.experts;
    enum status rc = cuda_check_operand(op, "the input", &u->in, u->in.cols, err);

    if (rc == OK) {
        rc = cuda_check_exact(op, "the output", &u->out, u->out.cols, err);
    }
    if (rc == OK) {
        rc = cuda_check_exact(op, "the probabilities", &u->prob, u->top_k, err);
    }
    if (rc == OK && (!u->idx.data || u->idx.dtype != DTYPE_I32 || u->idx.cols != u->top_k)) {
        rc = cuda_refuse(err, op, "the choices need an int32 buffer of %zu columns", u->top_k);
    }
    if (rc == OK && u->top_k > EXPERTS_CHOICES_MAX) {
        rc = cuda_refuse(err, op, "%zu choices (at most %d are built)", u->top_k,
                         EXPERTS_CHOICES_MAX);
    }
    if (rc == OK && (u->n_experts == 0 || u->n_experts > EXPERTS_MAX || !u->experts)) {
        rc = cuda_refuse(err, op, "%zu experts (at most %d are built)", u->n_experts, EXPERTS_MAX);
    }
    return rc;
}

/* Whether the kernels with matrix instructions can read it, as the first of its kind is. */
static bool fits_tiles(const struct weight *w, const struct weight *first)
{
    return w->kind == WEIGHT_INT4 && w->dtype == first->dtype && w->group == first->group &&
           w->group % EXPERTS_CHUNK == 0 && w->n_in % EXPERTS_CHUNK == 0 &&
           cuda_is_aligned(w->data) && cuda_is_aligned(w->perm) &&
           (uintptr_t)w->scales % dtype_bytes(w->dtype) == 0;
}

static const char *kernel_name(const struct cuda_backend *be, const struct op_experts *u)
{
    const struct expert_weights *first = &u->experts[0];
    bool has_perm = false;

    if (u->in.round == DTYPE_F32 || (u->in.round == DTYPE_BF16 && be->card.sm < 80) ||
        u->out.cols % 32 != 0 || first->gate.dtype != first->up.dtype ||
        !cuda_is_aligned(u->in.data) || !cuda_is_aligned(u->out.data)) {
        return name_plain;
    }
    for (size_t e = 0; e < u->n_experts; e++) {
        const struct expert_weights *w = &u->experts[e];

        if (!fits_tiles(&w->gate, &first->gate) || !fits_tiles(&w->up, &first->up) ||
            !fits_tiles(&w->down, &first->down)) {
            return name_plain;
        }
        has_perm = has_perm || w->gate.perm || w->up.perm || w->down.perm;
    }
    return has_perm ? name_perm : name_int4;
}

static enum status experts_check(struct cuda_backend *be, struct op *op, struct error *err)
{
    const struct op_experts *u = &op->u.experts;
    enum status rc = operands_check(op, err);

    for (size_t e = 0; rc == OK && e < u->n_experts; e++) {
        rc = expert_check(op, e, &u->experts[e], err);
    }
    if (rc == OK && u->home) {
        rc = cuda_offload_check(be, op, err);
    }
    op->kernel = rc == OK ? kernel_name(be, u) : NULL;
    return rc;
}

/* ---- prepare ---- */

/* The scratch of one segment. */
struct experts_scratch {
    size_t first, slot_pair, pair_slot, packed, mid, mid_packed, y; /* offsets */
    size_t n_bytes;
};

static bool part_add(struct experts_scratch *s, size_t *at, size_t rows, size_t cols, size_t each)
{
    size_t n;

    *at = s->n_bytes;
    return size_mul(&n, rows, cols) && size_mul(&n, n, each) && size_align(&n, n, SCRATCH_ALIGN) &&
           size_add(&s->n_bytes, s->n_bytes, n);
}

static bool scratch_cut(struct experts_scratch *s, const struct op *op, size_t n_rows)
{
    const struct op_experts *u = &op->u.experts;
    bool is_plain = op->kernel == name_plain, has_perm = op->kernel == name_perm;
    size_t n_pairs = n_rows * u->top_k; /* of a segment: small */
    size_t n_packed = is_plain ? 0 : has_perm ? 2 * n_pairs : n_rows;

    *s = (struct experts_scratch){0};
    if (!part_add(s, &s->first, u->n_experts + 1, 1, sizeof(int32_t)) ||
        !part_add(s, &s->slot_pair, n_pairs, 1, sizeof(int32_t)) ||
        !part_add(s, &s->pair_slot, n_pairs, 1, sizeof(int32_t)) ||
        !part_add(s, &s->packed, n_packed, u->in.cols, sizeof(uint16_t)) ||
        !part_add(s, &s->mid, n_pairs, u->width, is_plain ? sizeof(float) : sizeof(uint16_t)) ||
        !part_add(s, &s->y, n_pairs, u->out.cols, sizeof(float))) {
        return false;
    }
    s->mid_packed = s->mid;
    return !has_perm || part_add(s, &s->mid_packed, n_pairs, u->width, sizeof(uint16_t));
}

/* Of any step; without a home the same for all. */
static size_t segment_rows_max(const struct cuda_backend *be, const struct op *op)
{
    size_t most = cuda_stream_scratch(be, HOME_SCRATCH_BYTES), n = SEGMENT_ROWS_LEAST;
    struct experts_scratch s;

    if (!op->u.experts.home) {
        return size_min(be->rows_max, SEGMENT_ROWS);
    }
    while (n < be->rows_max && scratch_cut(&s, op, 2 * n) && s.n_bytes <= most) {
        n *= 2;
    }
    return size_min(be->rows_max, n);
}

size_t cuda_experts_segment(const struct cuda_backend *be, const struct op *op, size_t n_rows)
{
    size_t most = segment_rows_max(be, op), n_segments = (n_rows + most - 1) / most;

    return op->u.experts.home ? (n_rows + n_segments - 1) / n_segments : most;
}

struct experts_matrix cuda_experts_matrix(const struct weight *w)
{
    return (struct experts_matrix){
        .data = w->data,
        .scales = w->scales,
        .zeros = w->zeros,
        .perm = w->perm,
        .kind = (int32_t)w->kind,
        .dtype = (int32_t)w->dtype,
        .group = (int32_t)w->group,
        .n_groups = (int32_t)weight_n_groups(w),
    };
}

/* The table of addresses, which is what run() is given. */
static enum status table_make(struct cuda_backend *be, const struct op_experts *u, void **data,
                              struct error *err)
{
    size_t n = u->n_experts * EXPERTS_MATRICES;
    struct experts_matrix *table = calloc(n, sizeof *table);

    if (!table) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a table of %zu experts",
                         u->n_experts);
    }
    for (size_t e = 0; e < u->n_experts; e++) {
        struct experts_matrix *m = table + e * EXPERTS_MATRICES;

        m[EXPERTS_GATE] = cuda_experts_matrix(&u->experts[e].gate);
        m[EXPERTS_UP] = cuda_experts_matrix(&u->experts[e].up);
        m[EXPERTS_DOWN] = cuda_experts_matrix(&u->experts[e].down);
    }
    *data = cuda_constant(be, table, n * sizeof *table, err);
    free(table);
    return *data ? OK : ERR_NO_MEMORY;
}

bool cuda_experts_scratch(size_t *n_bytes, const struct cuda_backend *be, const struct op *op)
{
    struct experts_scratch s;

    if (!scratch_cut(&s, op, segment_rows_max(be, op))) {
        return false;
    }
    *n_bytes = s.n_bytes;
    return true;
}

static enum status experts_prepare(struct cuda_backend *be, const struct op *op,
                                   struct cuda_need *need, void **data, struct error *err)
{
    if (!cuda_experts_scratch(&need->scratch_bytes, be, op)) {
        return error_set(err, ERR_LIMIT, "experts '%s' of layer %d are too large", op->name,
                         op->layer);
    }
    if (op->u.experts.home) {
        *data = cuda_offload_table(be, op);
        return OK;
    }
    return table_make(be, &op->u.experts, data, err);
}

/* ---- run ---- */

/* One segment of a step. */
struct segment {
    struct cuda_backend *be;
    const struct op *op;
    struct experts_args args;
    size_t n_rows, n_pairs;
    size_t half;          /* added to a kernel for bfloat16: 1 for float16 */
    size_t group_experts; /* of the group that is launched, about; 0: all are one group */
};

static enum status launch(const struct segment *s, size_t kernel, size_t blocks, size_t threads,
                          size_t shared_bytes, struct error *err)
{
    struct cuda_grid grid = {
        .x = (unsigned)blocks, .threads = (unsigned)threads, .shared_bytes = shared_bytes};

    if (blocks > INT32_MAX) {
        return error_set(err, ERR_LIMIT, "experts '%s' of layer %d: %zu blocks are too many",
                         s->op->name, s->op->layer, blocks);
    }
    return cuda_launch(s->be, &cuda_experts, kernel, grid, &s->args, err);
}

static size_t gate_decode_shared(const struct op *op, size_t group_max)
{
    size_t n_inputs = op->kernel == name_perm ? 2 : 1; /* for gate and for up */
    size_t chunk = 2 * PART_BYTES + n_inputs * group_max * CHUNK_BYTES_16;

    return (size_t)DECODE_WARPS * EXPERTS_GATE_CHUNKS * chunk;
}

static size_t down_decode_shared(const struct op *op, size_t n_rows, size_t group_max,
                                 size_t stages)
{
    size_t chunk = stages * PART_BYTES + group_max * CHUNK_BYTES_16;
    size_t results = n_rows * op->u.experts.top_k * (EXPERTS_DECODE_COLS + 2) * sizeof(float);

    return (size_t)DECODE_WARPS * EXPERTS_DOWN_CHUNKS * chunk + results;
}

static bool fits_shared(const struct cuda_backend *be, size_t dynamic)
{
    return dynamic + STATIC_SHARED <= be->card.shared_bytes_max;
}

/* Whether a step of so many rows is for the decode kernels: group_max is how many pairs of an expert they take
 * together, as many as there is shared memory for; it changes no result. extra: more bytes for the second
 * one. */
static bool fits_decode(const struct cuda_backend *be, const struct op *op, size_t n_rows,
                        size_t extra, size_t *group_max)
{
    *group_max = n_rows;
    if (n_rows > EXPERTS_DECODE_MAX) {
        return false;
    }
    while (*group_max > 0 &&
           (!fits_shared(be, gate_decode_shared(op, *group_max)) ||
            !fits_shared(be, extra + down_decode_shared(op, n_rows, *group_max, 1)))) {
        *group_max /= 2;
    }
    return *group_max > 0;
}

/* Fills what the two launches are given, and how large they are. */
static void decode_cut(struct segment *s, size_t group_max, size_t extra, struct cuda_grid grid[2])
{
    const struct op_experts *u = &s->op->u.experts;
    bool is_one_step =
        s->n_pairs <= DECODE_WARPS && u->width <= EXPERTS_DOWN_CHUNKS * EXPERTS_CHUNK;
    size_t two = down_decode_shared(s->op, s->n_rows, group_max, 2);
    size_t stages = !is_one_step && fits_shared(s->be, extra + two) ? 2 : 1;
    size_t gate_blocks = s->n_pairs * (u->width / EXPERTS_DECODE_COLS); /* of a few rows: small */

    s->args.group_max = (int32_t)group_max;
    s->args.stages = (int32_t)stages;
    grid[0] = (struct cuda_grid){.x = (unsigned)gate_blocks,
                                 .threads = EXPERTS_DECODE_THREADS,
                                 .shared_bytes = gate_decode_shared(s->op, group_max)};
    grid[1] = (struct cuda_grid){
        .x = (unsigned)(u->out.cols / EXPERTS_DECODE_COLS),
        .threads = EXPERTS_DECODE_THREADS,
        .shared_bytes = extra + down_decode_shared(s->op, s->n_rows, group_max, stages)};
}

static enum status run_decode(struct segment *s, size_t group_max, struct error *err)
{
    struct cuda_grid grid[2];
    enum status rc;

    decode_cut(s, group_max, 0, grid);
    rc = cuda_launch(s->be, &cuda_experts, GATE_UP_DECODE + s->half, grid[0], &s->args, err);
    return rc == OK
               ? cuda_launch(s->be, &cuda_experts, DOWN_DECODE + s->half, grid[1], &s->args, err)
               : rc;
}

/* Tiles of at most so many slots that a segment can have. */
static size_t tiles_max(const struct segment *s, size_t tile)
{
    return s->n_pairs / tile + size_min(s->n_pairs, s->op->u.experts.n_experts);
}

/* Tiles that a launch has blocks for. Of a group only the card knows how many it has: twice its share, for few
 * blocks shall find nothing to do; where it has more, blocks take several. */
static size_t tiles_launched(const struct segment *s, size_t tile)
{
    size_t n = s->group_experts, all = s->op->u.experts.n_experts, most = tiles_max(s, tile);

    return n > 0 ? size_min(most, 2 * s->n_pairs * n / all / tile + n) : most;
}

/* Large tiles where experts have many rows and shared memory takes two blocks of them; small ones, which
 * run in more blocks, else. It changes no result. */
static bool tile_choose(struct segment *s, bool has_two)
{
    size_t shared = s->be->card.shared_bytes_max, small = EXPERTS_TILE_MAX / 2;
    bool is_small =
        shared < 128 << 10 || has_two || s->n_pairs <= small * s->op->u.experts.n_experts;

    /* With two x a tile has twice the bytes. */
    s->args.tile_max = (int32_t)(!is_small                       ? EXPERTS_TILE_MAX
                                 : has_two && shared < 128 << 10 ? small / 2
                                                                 : small);
    s->args.stages = shared >= 208 << 10 ? 4 : 3;
    s->args.tiles_max = (int32_t)tiles_max(s, (size_t)s->args.tile_max);
    return is_small;
}

static size_t tile_shared(const struct segment *s, bool has_two)
{
    size_t x = (size_t)s->args.tile_max * CHUNK_BYTES_16 * (has_two ? 2 : 1);

    return (size_t)s->args.stages * (TILE_WEIGHT_BYTES + x);
}

/* What comes before the products: pairs sorted, x packed where all experts take it in one order. */
static enum status run_sort(const struct segment *s, struct error *err)
{
    bool packs_rows = s->op->kernel == name_int4;

    return launch(s, SORT, s->op->u.experts.n_experts + (packs_rows ? s->n_rows : 0),
                  EXPERTS_ROW_THREADS, 0, err);
}

static enum status run_tiles(struct segment *s, struct error *err)
{
    const struct op_experts *u = &s->op->u.experts;
    bool has_perm = s->args.has_perm, is_small = tile_choose(s, has_perm);
    size_t gate_blocks = (u->width + EXPERTS_GATE_COLS - 1) / EXPERTS_GATE_COLS;
    size_t down_blocks = (u->out.cols + EXPERTS_DOWN_COLS - 1) / EXPERTS_DOWN_COLS;
    size_t gate = has_perm ? GATE_UP_PERM : is_small ? GATE_UP_SMALL : GATE_UP_TILE;
    enum status rc = OK;

    if (has_perm) {
        rc = launch(s, GATHER_X, 2 * s->n_pairs, EXPERTS_ROW_THREADS, 0, err);
    }
    if (rc == OK) {
        rc = launch(s, gate + s->half, gate_blocks * tiles_launched(s, (size_t)s->args.tile_max),
                    EXPERTS_TILE_THREADS, tile_shared(s, has_perm), err);
    }
    if (rc == OK && has_perm) {
        rc = launch(s, GATHER_MID, s->n_pairs, EXPERTS_ROW_THREADS, 0, err);
    }
    is_small = tile_choose(s, false);
    return rc == OK ? launch(s, (is_small ? DOWN_SMALL : DOWN_TILE) + s->half,
                             down_blocks * tiles_launched(s, (size_t)s->args.tile_max),
                             EXPERTS_TILE_THREADS, tile_shared(s, false), err)
                    : rc;
}

static enum status run_plain(struct segment *s, struct error *err)
{
    const struct op_experts *u = &s->op->u.experts;
    size_t gate_blocks = (u->width + EXPERTS_PLAIN_COLS - 1) / EXPERTS_PLAIN_COLS;
    size_t down_blocks = (u->out.cols + EXPERTS_PLAIN_COLS - 1) / EXPERTS_PLAIN_COLS;
    size_t n_tiles = tiles_launched(s, EXPERTS_PLAIN_TILE);
    enum status rc;

    s->args.tiles_max = (int32_t)tiles_max(s, EXPERTS_PLAIN_TILE);
    rc = launch(s, GATE_UP_PLAIN, gate_blocks * n_tiles, EXPERTS_PLAIN_THREADS, 0, err);
    return rc == OK ? launch(s, DOWN_PLAIN, down_blocks * n_tiles, EXPERTS_PLAIN_THREADS, 0, err)
                    : rc;
}

/* Of all experts, or of the group that s->args names. */
static enum status run_products(struct segment *s, struct error *err)
{
    return s->op->kernel == name_plain ? run_plain(s, err) : run_tiles(s, err);
}

static enum status run_sum(const struct segment *s, struct error *err)
{
    return launch(s, SUM, s->n_rows, EXPERTS_ROW_THREADS, 0, err);
}

static enum status run_sorted(struct segment *s, struct error *err)
{
    enum status rc = run_sort(s, err);

    rc = rc == OK ? run_products(s, err) : rc;
    return rc == OK ? run_sum(s, err) : rc;
}

/* Group by group, each when its experts are there. */
static enum status run_streamed(struct segment *s, const struct cuda_shape *shape, size_t row0,
                                struct error *err)
{
    struct cuda_pass pass;
    enum status rc = cuda_stream_begin(s->be, s->op, shape, row0, &pass, err);

    if (rc == OK) {
        s->args.experts = pass.experts;
        s->args.group_of = pass.group_of;
        s->args.idx = pass.idx ? pass.idx : s->args.idx;
        s->args.more = pass.more;
        rc = run_sort(s, err);
    }
    for (size_t i = 0; rc == OK && i < pass.n_groups; i++) {
        s->args.group_now = (int32_t)i;
        s->group_experts = i == 0 ? pass.first_experts : pass.other_experts;
        rc = cuda_stream_wait(s->be, err);
        rc = rc == OK ? run_products(s, err) : rc;
        rc = rc == OK ? cuda_stream_done(s->be, err) : rc;
    }
    if (rc == OK && pass.more) {
        rc = cuda_stream_share(s->be, err);
    }
    rc = rc == OK ? run_sum(s, err) : rc;
    return rc == OK ? cuda_stream_end(s->be, err) : rc;
}

/* Whether the card computes a part of the choices only: a small step of experts that overflow. */
static bool is_resolved(const struct op *op, const struct cuda_shape *shape)
{
    return op->u.experts.home && cuda_offload_is_small(shape);
}

/* Rows [row0, row0 + n_rows) of a step. */
static bool segment_open(struct segment *s, const struct cuda_shape *shape, const void *table,
                         size_t row0)
{
    const struct op_experts *u = &s->op->u.experts;
    const struct expert_weights *first = &u->experts[0];
    uint8_t *scratch = s->be->scratch;
    struct experts_scratch at;

    if (!scratch_cut(&at, s->op, s->n_rows)) {
        return false;
    }
    s->n_pairs = s->n_rows * u->top_k;
    s->half = u->in.round == DTYPE_F16;
    s->args = (struct experts_args){
        .n_rows = shape->view.counts + (s->op->rows == ROWS_OUT ? STEP_OUT_ROWS : STEP_ROWS),
        .row0 = (int32_t)row0,
        .rows_max = (int32_t)s->n_rows,
        .x = (const float *)u->in.data + row0 * u->in.cols,
        .idx = is_resolved(s->op, shape) ? cuda_offload_resolved(s->be)
                                         : (const int32_t *)u->idx.data + row0 * u->top_k,
        .prob = (const float *)u->prob.data + row0 * u->top_k,
        .out = (float *)u->out.data + row0 * u->out.cols,
        .experts = table,
        .n_experts = (int32_t)u->n_experts,
        .top_k = (int32_t)u->top_k,
        .hidden = (int32_t)u->in.cols,
        .width = (int32_t)u->width,
        .n_out = (int32_t)u->out.cols,
        .round = (int32_t)u->in.round,
        .has_perm = s->op->kernel == name_perm,
        .dtype = {(int32_t)first->gate.dtype, (int32_t)first->up.dtype, (int32_t)first->down.dtype},
        .group = {(int32_t)first->gate.group, (int32_t)first->up.group, (int32_t)first->down.group},
        .first = (int32_t *)(void *)(scratch + at.first),
        .slot_pair = (int32_t *)(void *)(scratch + at.slot_pair),
        .pair_slot = (int32_t *)(void *)(scratch + at.pair_slot),
        .packed = (uint16_t *)(void *)(scratch + at.packed),
        .mid = (uint16_t *)(void *)(scratch + at.mid),
        .mid_packed = (uint16_t *)(void *)(scratch + at.mid_packed),
        .y = (float *)(void *)(scratch + at.y),
    };
    return true;
}

static enum status experts_run(struct cuda_backend *be, const struct op *op, void *data,
                               const struct cuda_shape *shape, const struct state_pools *state,
                               struct error *err)
{
    size_t n_rows = cuda_op_rows(op, shape), group_max;
    size_t each = cuda_experts_segment(be, op, n_rows);
    bool is_streamed = op->u.experts.home && shape->n_rows > EXPERT_HOME_ROWS;
    enum status rc = OK;

    (void)state;
    if (is_resolved(op, shape)) {
        rc = cuda_offload_resolve(be, op, shape, err);
        rc = rc == OK ? cuda_offload_fetch(be, op, shape, err) : rc;
    }
    for (size_t row0 = 0; rc == OK && row0 < n_rows; row0 += each) {
        struct segment s = {.be = be, .op = op, .n_rows = size_min(each, n_rows - row0)};

        if (!segment_open(&s, shape, data, row0)) {
            return error_set(err, ERR_INTERNAL, "experts '%s' of layer %d: no scratch", op->name,
                             op->layer);
        }
        if (is_streamed) {
            rc = run_streamed(&s, shape, row0, err);
        } else if (op->kernel != name_plain && fits_decode(be, op, n_rows, 0, &group_max)) {
            rc = run_decode(&s, group_max, err);
        } else {
            rc = run_sorted(&s, err);
        }
    }
    return rc == OK && is_resolved(op, shape) ? cuda_offload_add(be, op, shape, err) : rc;
}

bool cuda_experts_decodes(const struct cuda_backend *be, const struct op *op, size_t n_rows,
                          size_t extra)
{
    size_t group_max;

    return op->kernel == name_int4 && fits_decode(be, op, n_rows, extra, &group_max);
}

enum status cuda_experts_decode(struct cuda_backend *be, const struct op *op, void *data,
                                const struct cuda_shape *shape, size_t extra,
                                struct experts_args *args, struct cuda_grid grid[2],
                                struct error *err)
{
    struct segment s = {.be = be, .op = op, .n_rows = cuda_op_rows(op, shape)};
    size_t group_max;

    if (!fits_decode(be, op, s.n_rows, extra, &group_max) || !segment_open(&s, shape, data, 0)) {
        return error_set(err, ERR_INTERNAL, "experts '%s' of layer %d: not for a few rows",
                         op->name, op->layer);
    }
    decode_cut(&s, group_max, extra, grid);
    *args = s.args;
    return OK;
}

const struct cuda_family cuda_experts = {.kernels = experts_kernels,
                                         .n_kernels = EXPERTS_KERNELS,
                                         .check = experts_check,
                                         .prepare = experts_prepare,
                                         .run = experts_run};
