/* expert_block.c - one routed expert as one piece of memory. See expert_block.h. */
#include "backend/expert_block.h"

#include "base/size.h"

static bool is_quantised(const struct weight *w)
{
    return w->kind == WEIGHT_INT4 || w->kind == WEIGHT_INT8;
}

static bool same_form(const struct weight *a, const struct weight *b)
{
    return a->kind == b->kind && a->dtype == b->dtype && !a->zeros == !b->zeros &&
           !a->perm == !b->perm;
}

bool expert_shape_of(struct expert_shape *shape, const struct expert_weights *w)
{
    *shape = (struct expert_shape){
        .hidden = w->gate.n_in,
        .width = w->gate.n_out,
        .kind = w->gate.kind,
        .scales = w->gate.dtype,
        .group = w->gate.group,
        .down_group = w->down.group,
        .has_zeros = w->gate.zeros != NULL,
        .has_perms = w->gate.perm != NULL,
    };
    return is_quantised(&w->gate) && same_form(&w->gate, &w->up) && same_form(&w->gate, &w->down) &&
           w->up.group == w->gate.group && w->up.n_in == w->gate.n_in &&
           w->up.n_out == w->gate.n_out && w->down.n_in == w->gate.n_out &&
           w->down.n_out == w->gate.n_in;
}

bool expert_shape_equal(const struct expert_shape *a, const struct expert_shape *b)
{
    return a->hidden == b->hidden && a->width == b->width && a->kind == b->kind &&
           a->scales == b->scales && a->group == b->group && a->down_group == b->down_group &&
           a->has_zeros == b->has_zeros && a->has_perms == b->has_perms;
}

/* The matrix of a part without its memory. */
static struct weight part_weight(const struct expert_shape *s, enum expert_part part)
{
    bool is_down = part == EXPERT_DOWN;

    return (struct weight){
        .kind = s->kind,
        .dtype = s->scales,
        .n_out = is_down ? s->hidden : s->width,
        .n_in = is_down ? s->width : s->hidden,
        .group = is_down ? s->down_group : s->group,
    };
}

/* n elements of `each` bytes at *end, which moves past them. */
static bool take(size_t *offset, size_t *end, size_t rows, size_t n, size_t each)
{
    size_t bytes;

    *offset = *end;
    return size_mul(&bytes, rows, n) && size_mul(&bytes, bytes, each) &&
           size_add(end, *end, bytes) && size_align(end, *end, EXPERT_BLOCK_ALIGN);
}

bool expert_block_init(struct expert_block *b, const struct expert_shape *shape)
{
    bool fits = true;

    *b = (struct expert_block){.shape = *shape};
    for (int what = 0; what < 4; what++) { /* values, scales, zeros, perms, each of all parts */
        for (int p = 0; p < EXPERT_PARTS; p++) {
            struct weight w = part_weight(shape, (enum expert_part)p);
            size_t groups = weight_n_groups(&w);

            if (what == 0) {
                fits =
                    fits && take(&b->part[p].values, &b->n_bytes, w.n_out, weight_row_bytes(&w), 1);
            } else if (what == 1) {
                fits = fits &&
                       take(&b->part[p].scales, &b->n_bytes, w.n_out, groups, dtype_bytes(w.dtype));
            } else if (what == 2 && shape->has_zeros) {
                fits = fits && take(&b->part[p].zeros, &b->n_bytes, w.n_out, groups, 1);
            } else if (what == 3 && shape->has_perms) {
                fits = fits && take(&b->part[p].perm, &b->n_bytes, 1, w.n_in, sizeof(int32_t));
            }
        }
    }
    return fits;
}

static struct weight part_view(const struct expert_block *b, const uint8_t *base,
                               enum expert_part part)
{
    struct weight w = part_weight(&b->shape, part);

    w.data = base + b->part[part].values;
    w.scales = base + b->part[part].scales;
    if (b->shape.has_zeros) {
        w.zeros = base + b->part[part].zeros;
    }
    if (b->shape.has_perms) {
        w.perm = (const int32_t *)(const void *)(base + b->part[part].perm);
    }
    return w;
}

struct expert_weights expert_block_view(const struct expert_block *b, const void *base)
{
    return (struct expert_weights){
        .gate = part_view(b, base, EXPERT_GATE),
        .up = part_view(b, base, EXPERT_UP),
        .down = part_view(b, base, EXPERT_DOWN),
    };
}
