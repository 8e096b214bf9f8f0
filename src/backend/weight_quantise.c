/* weight_quantise.c - a dense matrix as int8. See weight_quantise.h. */
#include "backend/weight_quantise.h"

#include <assert.h>
#include <math.h>

#include "base/half.h"
#include "base/pool.h"
#include "base/size.h"

enum { BLOCK_ALIGN = 64, ROWS_PER_SHARE = 8, Q_MAX = 127, Q_ZERO = 128 };

bool weight_int8_fits(const struct weight *src, size_t group)
{
    return src->kind == WEIGHT_DENSE && !src->perm && weight_int4_fits(src->n_in, group) &&
           src->n_in % group == 0;
}

/* Bytes up to the scales, which begin at a 64-byte border. */
static bool values_bytes(size_t *out, const struct weight *src)
{
    return size_mul(out, src->n_out, src->n_in) && size_align(out, *out, BLOCK_ALIGN);
}

size_t weight_int8_bytes(const struct weight *src, size_t group)
{
    size_t values, scales, total;

    if (!values_bytes(&values, src) || !size_mul(&scales, src->n_out, src->n_in / group) ||
        !size_mul(&scales, scales, sizeof(uint16_t)) || !size_align(&scales, scales, BLOCK_ALIGN) ||
        !size_add(&total, values, scales)) {
        return 0;
    }
    return total;
}

/* The smallest bfloat16 that is not below v (v >= 0). */
static uint16_t bf16_above(float v)
{
    uint32_t bits = f32_bits(v);

    return (uint16_t)((bits >> 16) + ((bits & 0xffff) != 0));
}

/* One group of n values of the type's row, from k0 on. */
static uint16_t quantise_group(uint8_t *q, const struct weight *src, const uint8_t *row, size_t k0,
                               size_t n)
{
    float x[WEIGHT_BLOCK], most = 0, inverse;
    size_t each = dtype_bytes(src->dtype);
    bool is_finite = true;
    uint16_t scale;

    for (size_t k = 0; k < n; k += WEIGHT_BLOCK) {
        dtype_to_f32(x, src->dtype, row + (k0 + k) * each, WEIGHT_BLOCK);
        for (size_t i = 0; i < WEIGHT_BLOCK; i++) {
            is_finite = is_finite && isfinite(x[i]);
            most = most < fabsf(x[i]) ? fabsf(x[i]) : most;
        }
    }
    scale = is_finite ? bf16_above(most / Q_MAX) : bf16_from_f32(NAN);
    inverse = is_finite && most > 0 ? 1.0f / bf16_to_f32(scale) : 0;
    if (isinf(inverse)) { /* the whole group is next to nothing */
        inverse = 0;
        scale = 0;
    }
    for (size_t k = 0; k < n; k += WEIGHT_BLOCK) {
        dtype_to_f32(x, src->dtype, row + (k0 + k) * each, WEIGHT_BLOCK);
        for (size_t i = 0; i < WEIGHT_BLOCK; i++) {
            /* In (1, 255.5), so truncating rounds. A value that is not finite must not reach the
             * conversion. */
            q[k + i] = is_finite ? (uint8_t)(x[i] * inverse + (Q_ZERO + 0.5f)) : Q_ZERO;
        }
    }
    return scale;
}

struct quantise_run {
    const struct weight *src;
    uint8_t *values;
    uint16_t *scales;
    size_t group;
};

static void quantise_rows(void *ctx, size_t begin, size_t end, size_t thread)
{
    const struct quantise_run *r = ctx;
    size_t n_in = r->src->n_in, n_groups = n_in / r->group;

    (void)thread;
    for (size_t n = begin; n < end; n++) {
        const uint8_t *row = (const uint8_t *)r->src->data + n * weight_row_bytes(r->src);

        for (size_t g = 0; g < n_groups; g++) {
            r->scales[n * n_groups + g] = quantise_group(r->values + n * n_in + g * r->group,
                                                         r->src, row, g * r->group, r->group);
        }
    }
}

void weight_quantise_int8(struct weight *dst, void *block, const struct weight *src, size_t group,
                          struct pool *pool)
{
    struct quantise_run r = {.src = src, .values = block, .group = group};
    size_t values;

    assert(weight_int8_fits(src, group));
    if (!values_bytes(&values, src)) {
        assert(false && "weight_int8_bytes() was asked first");
        return;
    }
    r.scales = (uint16_t *)(void *)(r.values + values);
    *dst = (struct weight){
        .kind = WEIGHT_INT8,
        .dtype = DTYPE_BF16,
        .n_out = src->n_out,
        .n_in = src->n_in,
        .data = r.values,
        .group = group,
        .scales = r.scales,
    };
    pool_run(pool, src->n_out, ROWS_PER_SHARE, quantise_rows, &r);
}
