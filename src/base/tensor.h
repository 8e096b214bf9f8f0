/* tensor.h - element types and the descriptor that every buffer carries.
 *
 * Place: base. Kernels are chosen by these tags when the op plan is built; nothing guesses a type
 *        from byte counts. */
#ifndef BASE_TENSOR_H
#define BASE_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype {
    DTYPE_NONE = 0,
    DTYPE_F64,
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_F8_E4M3,
    DTYPE_F8_E5M2,
    DTYPE_I64,
    DTYPE_I32,
    DTYPE_I16,
    DTYPE_I8,
    DTYPE_U64,
    DTYPE_U32,
    DTYPE_U16,
    DTYPE_U8,
    DTYPE_BOOL,
    DTYPE_COUNT
};

enum { TENSOR_DIMS_MAX = 8 };

/* A dense, row-major array. data is borrowed from whatever made it (a mapped file, an arena). */
struct tensor {
    void *data;
    enum dtype dtype;
    size_t n_dims;
    size_t shape[TENSOR_DIMS_MAX];
};

size_t dtype_bytes(enum dtype t);     /* of one element; 0 for DTYPE_NONE */
const char *dtype_name(enum dtype t); /* "float32", "bfloat16", "fp8_e4m3", ...: what flags say */
bool dtype_is_float(enum dtype t);
size_t tensor_count(const struct tensor *t); /* elements; the shape was checked when it was read */

/* Element i of a float array of type t (F64..F8) as float32, and the reverse (rounds). For loading
 * and for the reference kernels, not for inner loops. */
float dtype_load(enum dtype t, const void *data, size_t i);
void dtype_store(enum dtype t, void *data, size_t i, float v);

/* n elements, converted; src and dst do not overlap. */
void dtype_to_f32(float *dst, enum dtype t, const void *src, size_t n);
void dtype_from_f32(enum dtype t, void *dst, const float *src, size_t n);

/* v rounded to t and back (identity for F32). */
float dtype_round(enum dtype t, float v);

#endif
