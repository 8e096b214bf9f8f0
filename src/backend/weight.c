/* weight.c - sizes, views and the reference decoding of weight matrices.
 *
 * Place: backend; see weight.h for the layouts. Nothing here is fast: loading and tests use it, and
 *        the scalar kernels decode one row at a time with it. Elements are read with memcpy because
 *        a tensor in a mapped file may start at any byte. */
#include "backend/weight.h"

#include <assert.h>
#include <string.h>

#include "base/half.h"

size_t weight_n_groups(const struct weight *w)
{
    if (w->kind != WEIGHT_INT4 && w->kind != WEIGHT_INT8) {
        return 0;
    }
    assert(w->group > 0);
    return (w->n_in + w->group - 1) / w->group;
}

size_t weight_row_bytes(const struct weight *w)
{
    switch (w->kind) {
    case WEIGHT_DENSE:
        return w->n_in * dtype_bytes(w->dtype);
    case WEIGHT_INT4:
        return w->n_in / 2;
    case WEIGHT_INT8:
        return w->n_in;
    case WEIGHT_NONE:
        break;
    }
    return 0;
}

size_t weight_bytes(const struct weight *w)
{
    size_t n_scales = w->n_out * weight_n_groups(w);
    size_t bytes = w->n_out * weight_row_bytes(w) + n_scales * dtype_bytes(w->dtype);

    if (w->zeros) {
        bytes += n_scales;
    }
    if (w->perm) {
        bytes += w->n_in * sizeof *w->perm;
    }
    return bytes;
}

/* The groups that files have in practice get a name of their own; the names must be static. */
const char *weight_kind_name(const struct weight *w)
{
    switch (w->kind) {
    case WEIGHT_DENSE:
        return dtype_name(w->dtype);
    case WEIGHT_INT4:
        return w->group == w->n_in ? "int4 row"
               : w->group == 32    ? "int4 g32"
               : w->group == 64    ? "int4 g64"
               : w->group == 128   ? "int4 g128"
                                   : "int4";
    case WEIGHT_INT8:
        return w->group == w->n_in ? "int8 row"
               : w->group == 32    ? "int8 g32"
               : w->group == 64    ? "int8 g64"
               : w->group == 128   ? "int8 g128"
                                   : "int8";
    case WEIGHT_NONE:
        break;
    }
    return "none";
}

struct weight weight_rows(const struct weight *w, size_t row0, size_t n)
{
    struct weight part = *w;
    size_t n_groups = weight_n_groups(w);

    assert(row0 <= w->n_out && n <= w->n_out - row0);
    part.n_out = n;
    part.data = (const uint8_t *)w->data + row0 * weight_row_bytes(w);
    if (w->scales) {
        part.scales = (const uint8_t *)w->scales + row0 * n_groups * dtype_bytes(w->dtype);
    }
    if (w->zeros) {
        part.zeros = w->zeros + row0 * n_groups;
    }
    return part;
}

void weight_pack_int4(uint8_t *dst, const uint8_t *q, size_t n)
{
    enum { HALF = WEIGHT_BLOCK / 2 };
    const uint64_t nibbles = 0x0f0f0f0f0f0f0f0f;

    assert(n % WEIGHT_BLOCK == 0);
    for (size_t block = 0; block < n; block += WEIGHT_BLOCK) {
        for (size_t j = 0; j < HALF; j += sizeof nibbles) { /* so many bytes at a time */
            uint64_t low, high;

            memcpy(&low, q + block + j, sizeof low);
            memcpy(&high, q + block + HALF + j, sizeof high);
            low = (low & nibbles) | (high & nibbles) << 4;
            memcpy(dst + block / 2 + j, &low, sizeof low);
        }
    }
}

static float load_float(enum dtype t, const uint8_t *data, size_t i)
{
    uint16_t half;
    float value;

    switch (t) {
    case DTYPE_BF16:
        memcpy(&half, data + i * sizeof half, sizeof half);
        return bf16_to_f32(half);
    case DTYPE_F16:
        memcpy(&half, data + i * sizeof half, sizeof half);
        return f16_to_f32(half);
    case DTYPE_F32:
        memcpy(&value, data + i * sizeof value, sizeof value);
        return value;
    default:
        assert(t == DTYPE_F32); /* F32, F16 or BF16: check() refuses others */
        return 0;
    }
}

static unsigned int4_at(const uint8_t *row, size_t k)
{
    size_t in_block = k % WEIGHT_BLOCK;
    uint8_t byte = row[k / WEIGHT_BLOCK * (WEIGHT_BLOCK / 2) + in_block % (WEIGHT_BLOCK / 2)];

    return in_block < WEIGHT_BLOCK / 2 ? byte & 15u : byte >> 4;
}

void weight_row_stored_f32(const struct weight *w, size_t row, float *out)
{
    const uint8_t *data = (const uint8_t *)w->data + row * weight_row_bytes(w);
    size_t n_groups = weight_n_groups(w);

    assert(row < w->n_out);
    if (w->kind == WEIGHT_DENSE) {
        for (size_t k = 0; k < w->n_in; k++) {
            out[k] = load_float(w->dtype, data, k);
        }
        return;
    }
    for (size_t group = 0; group < n_groups; group++) {
        size_t at = row * n_groups + group, begin = group * w->group;
        size_t end = begin + w->group < w->n_in ? begin + w->group : w->n_in;
        int middle = w->kind == WEIGHT_INT4 ? 8 : 128;
        int zero = w->zeros ? w->zeros[at] : middle;
        float scale = load_float(w->dtype, w->scales, at);

        for (size_t k = begin; k < end; k++) {
            int q = (int)(w->kind == WEIGHT_INT4 ? int4_at(data, k) : data[k]);

            out[k] = scale * (float)(q - zero);
        }
    }
}

void weight_row_f32(const struct weight *w, size_t row, float *out)
{
    size_t n_groups = weight_n_groups(w);

    if (!w->perm) {
        weight_row_stored_f32(w, row, out);
        return;
    }
    /* Only quantised rows are sorted; decode element by element into the original place. */
    const uint8_t *data = (const uint8_t *)w->data + row * weight_row_bytes(w);

    assert(row < w->n_out);
    for (size_t k = 0; k < w->n_in; k++) {
        float value;

        if (w->kind == WEIGHT_DENSE) {
            value = load_float(w->dtype, data, k);
        } else {
            size_t at = row * n_groups + k / w->group;
            int middle = w->kind == WEIGHT_INT4 ? 8 : 128;
            int zero = w->zeros ? w->zeros[at] : middle;
            int q = (int)(w->kind == WEIGHT_INT4 ? int4_at(data, k) : data[k]);

            value = load_float(w->dtype, w->scales, at) * (float)(q - zero);
        }
        out[w->perm[k]] = value;
    }
}

bool weight_int4_fits(size_t n_in, size_t group)
{
    return n_in > 0 && n_in % WEIGHT_BLOCK == 0 && group > 0 &&
           (group % WEIGHT_BLOCK == 0 || group == n_in);
}
