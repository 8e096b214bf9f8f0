/* attention_tile.cuh - which part of a step a block of an attention kernel works on, and how it finishes.
 *
 * Place:  backend/cuda/kernels; shared by attention_any.cu, attention_split.cuh, attention_flash.cuh.
 * Idea:   a grid is only an upper bound, so every block finds its span in the step's table. How a span is
 *         cut depends on the span alone: what is computed for it is the same in any company. */
#ifndef BACKEND_CUDA_ATTENTION_TILE_CUH
#define BACKEND_CUDA_ATTENTION_TILE_CUH

#include "backend/cuda/kernels/attention_args.h"
#include "backend/cuda/kernels/kernel.cuh"

/* Lanes [lane, lane_end) of a span for one KV head, and the tokens they may see. */
struct attention_tile {
    struct step_span span;
    int kv_head;
    int lane, lane_end;
    int token, token_end; /* of this block's part of the context */
};

DEVICE int smaller(int a, int b)
{
    return a < b ? a : b;
}

DEVICE int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

/* Into how many parts a short span's context is cut. */
DEVICE int attention_splits(const struct attention_args *a, const struct step_span *span)
{
    return smaller(ceil_div(span->position + span->n_rows, ATTENTION_PAGE), a->splits_max);
}

/* Block (split, KV head, span and tile of lanes) of a launch for short spans; false: nothing to do. Parts
 * are whole pages, as even as can be. */
DEVICE bool attention_short_tile(const struct attention_args *a, int lanes, int x, int y, int z,
                                 struct attention_tile *t)
{
    int n_tiles = ceil_div(a->rows_each * a->group, lanes), i = a->span_first + z / n_tiles;
    int context, n_splits, n_pages;

    if (i >= a->view.counts[STEP_SPANS]) {
        return false;
    }
    t->span = a->view.spans[i];
    t->lane = z % n_tiles * lanes;
    t->lane_end = smaller(t->lane + lanes, t->span.n_rows * a->group);
    if (t->span.n_rows > a->rows_each || t->lane >= t->lane_end) {
        return false;
    }
    n_splits = attention_splits(a, &t->span);
    if (x >= n_splits) {
        return false;
    }
    context = t->span.position + t->span.n_rows;
    n_pages = ceil_div(context, ATTENTION_PAGE);
    t->kv_head = y;
    t->token = x * n_pages / n_splits * ATTENTION_PAGE;
    t->token_end = smaller((x + 1) * n_pages / n_splits * ATTENTION_PAGE, context);
    return true;
}

DEVICE int attention_long_tiles(const struct attention_args *a, int lanes, int i)
{
    int n_rows = i < 0 ? 0 : a->view.spans[i].n_rows;

    return n_rows <= ATTENTION_SHORT_ROWS ? 0 : ceil_div(n_rows * a->group, lanes);
}

/* Tile number x of the longer spans: the last span's last tile comes first, so that of one long prompt
 * the blocks with most tokens start first. Each warp looks for itself, 32 spans at a time. */
DEVICE bool attention_long_tile(const struct attention_args *a, int lanes, int x, int y,
                                struct attention_tile *t)
{
    int me = (int)threadIdx.x % WARP, before = 0;

    for (int last = a->view.counts[STEP_SPANS] - 1; last >= 0; last -= WARP) {
        int n = attention_long_tiles(a, lanes, last - me), sum = n;

        UNROLL
        for (int d = 1; d < WARP; d *= 2) {
            int other = shuffle_up(sum, d);

            sum += me >= d ? other : 0;
        }
        int total = shuffle(sum, WARP - 1);

        if (x < before + total) {
            uint32_t found = warp_ballot(x < before + sum);
            int at = 0;

            while (!(found >> at & 1)) {
                at++;
            }
            int tile = shuffle(before + sum, at) - 1 - x;

            t->span = a->view.spans[last - at];
            t->kv_head = y;
            t->lane = tile * lanes;
            t->lane_end = smaller(t->lane + lanes, t->span.n_rows * a->group);
            t->token = 0;
            t->token_end = t->span.position + (t->lane_end - 1) / a->group + 1;
            return true;
        }
        before += total;
    }
    return false;
}

/* Where a lane's query begins, in q and (as if heads had no gates) in out. */
DEVICE const float *attention_query(const struct attention_args *a, const struct attention_tile *t,
                                    int lane)
{
    int head = t->kv_head * a->group + lane % a->group;

    return a->q + (size_t)(t->span.row + lane / a->group) * (size_t)a->q_cols +
           (size_t)head * (size_t)a->q_stride;
}

DEVICE float *attention_out(const struct attention_args *a, const struct attention_tile *t,
                            int lane)
{
    size_t n_heads = (size_t)a->nkv * (size_t)a->group;
    size_t head = (size_t)(t->kv_head * a->group + lane % a->group);

    return a->out + ((size_t)(t->span.row + lane / a->group) * n_heads + head) * (size_t)a->hd;
}

/* Tokens that a lane sees: all before its row, and its own. */
DEVICE int attention_visible(const struct attention_args *a, const struct attention_tile *t,
                             int lane)
{
    return t->span.position + lane / a->group + 1;
}

/* The page that holds a token; past the context's end, its last page. Asked for a strip ahead, so that
 * no copy waits for it. */
DEVICE int32_t kv_page(const struct attention_args *a, const struct attention_tile *t, int token)
{
    return a->view.pages[t->span.pages_at + smaller(token, t->token_end - 1) / ATTENTION_PAGE];
}

/* A token's row of a KV head in the layer's cache: of hd elements, and of one scale. */
DEVICE size_t kv_row(const struct attention_args *a, const struct attention_tile *t, int32_t page,
                     int token)
{
    return ((size_t)page * (size_t)a->nkv + (size_t)t->kv_head) * ATTENTION_PAGE +
           (size_t)(token % ATTENTION_PAGE);
}

DEVICE size_t attention_place(const struct attention_args *a, const struct attention_tile *t,
                              int span, int lane, int split)
{
    size_t lanes = (size_t)(a->rows_each * a->group);

    return (((size_t)(span * a->nkv + t->kv_head)) * lanes + (size_t)lane) * (size_t)a->splits_max +
           (size_t)split;
}

/* exp(score - max) where max may be -infinity: nothing was visible yet. */
DEVICE float softmax_base(float max)
{
    return max == -INFINITY ? 0.0f : max;
}

#endif
