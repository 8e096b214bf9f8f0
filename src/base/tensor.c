/* tensor.c - facts about element types, and slow exact conversions. See tensor.h. */
#include "base/tensor.h"

#include <string.h>

#include "base/half.h"

static const struct {
    const char *name;
    size_t bytes;
    bool is_float;
} dtypes[DTYPE_COUNT] = {
    [DTYPE_NONE] = {"none", 0, false},       [DTYPE_F64] = {"float64", 8, true},
    [DTYPE_F32] = {"float32", 4, true},      [DTYPE_F16] = {"float16", 2, true},
    [DTYPE_BF16] = {"bfloat16", 2, true},    [DTYPE_F8_E4M3] = {"fp8_e4m3", 1, true},
    [DTYPE_F8_E5M2] = {"fp8_e5m2", 1, true}, [DTYPE_I64] = {"int64", 8, false},
    [DTYPE_I32] = {"int32", 4, false},       [DTYPE_I16] = {"int16", 2, false},
    [DTYPE_I8] = {"int8", 1, false},         [DTYPE_U64] = {"uint64", 8, false},
    [DTYPE_U32] = {"uint32", 4, false},      [DTYPE_U16] = {"uint16", 2, false},
    [DTYPE_U8] = {"uint8", 1, false},        [DTYPE_BOOL] = {"bool", 1, false},
};

size_t dtype_bytes(enum dtype t)
{
    return (unsigned)t < DTYPE_COUNT ? dtypes[t].bytes : 0;
}

const char *dtype_name(enum dtype t)
{
    return (unsigned)t < DTYPE_COUNT ? dtypes[t].name : "unknown";
}

bool dtype_is_float(enum dtype t)
{
    return (unsigned)t < DTYPE_COUNT && dtypes[t].is_float;
}

size_t tensor_count(const struct tensor *t)
{
    size_t n = 1;
    for (size_t i = 0; i < t->n_dims; i++) {
        n *= t->shape[i];
    }
    return n;
}

float dtype_load(enum dtype t, const void *data, size_t i)
{
    const unsigned char *p = (const unsigned char *)data + i * dtype_bytes(t);
    double d;
    float f;
    uint16_t h;

    switch (t) {
    case DTYPE_F64:
        memcpy(&d, p, sizeof d);
        return (float)d;
    case DTYPE_F32:
        memcpy(&f, p, sizeof f);
        return f;
    case DTYPE_F16:
        memcpy(&h, p, sizeof h);
        return f16_to_f32(h);
    case DTYPE_BF16:
        memcpy(&h, p, sizeof h);
        return bf16_to_f32(h);
    case DTYPE_F8_E4M3:
        return f8e4m3_to_f32(*p);
    case DTYPE_F8_E5M2:
        return f8e5m2_to_f32(*p);
    default:
        return 0.0f;
    }
}

void dtype_store(enum dtype t, void *data, size_t i, float v)
{
    unsigned char *p = (unsigned char *)data + i * dtype_bytes(t);
    double d = v;
    uint16_t h;

    switch (t) {
    case DTYPE_F64:
        memcpy(p, &d, sizeof d);
        break;
    case DTYPE_F32:
        memcpy(p, &v, sizeof v);
        break;
    case DTYPE_F16:
        h = f16_from_f32(v);
        memcpy(p, &h, sizeof h);
        break;
    case DTYPE_BF16:
        h = bf16_from_f32(v);
        memcpy(p, &h, sizeof h);
        break;
    case DTYPE_F8_E4M3:
        *p = f8e4m3_from_f32(v);
        break;
    case DTYPE_F8_E5M2:
        *p = f8e5m2_from_f32(v);
        break;
    default:
        break;
    }
}

void dtype_to_f32(float *dst, enum dtype t, const void *src, size_t n)
{
    if (t == DTYPE_F32) {
        if (n > 0) {
            memcpy(dst, src, n * sizeof *dst);
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        dst[i] = dtype_load(t, src, i);
    }
}

void dtype_from_f32(enum dtype t, void *dst, const float *src, size_t n)
{
    if (t == DTYPE_F32) {
        if (n > 0) {
            memcpy(dst, src, n * sizeof *src);
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        dtype_store(t, dst, i, src[i]);
    }
}

float dtype_round(enum dtype t, float v)
{
    switch (t) {
    case DTYPE_F16:
        return f16_to_f32(f16_from_f32(v));
    case DTYPE_BF16:
        return bf16_to_f32(bf16_from_f32(v));
    case DTYPE_F8_E4M3:
        return f8e4m3_to_f32(f8e4m3_from_f32(v));
    case DTYPE_F8_E5M2:
        return f8e5m2_to_f32(f8e5m2_from_f32(v));
    default:
        return v;
    }
}
