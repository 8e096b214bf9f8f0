/* weight.h - a matrix as the kernels read it.
 *
 * Place:  backend; filled at load by model/weights, read by every backend.
 *
 * Dense: rows [n_out][n_in] of one float type, row-major, as stored in the checkpoint.
 *
 * Quantised: rows of unsigned values with one scale (and maybe one zero) per group of inputs:
 *
 *     w[n][k] = scale[n][k / group] * (q[n][k] - zero[n][k / group])      zero = 2^(bits-1) if absent
 *
 * int4 rows are cut into blocks of 32 inputs, 16 bytes each: the low nibble of byte j is input j of
 * the block, the high nibble is input j + 16. So one 16-byte load, one AND and one shift give the 32
 * values in order.
 *
 *     byte     0        1        2             15
 *            +--------+--------+--------+---+--------+
 *     high   | q[16]  | q[17]  | q[18]  |...| q[31]  |
 *     low    | q[0]   | q[1]   | q[2]   |...| q[15]  |
 *            +--------+--------+--------+---+--------+
 *
 * int8 rows are plain bytes. n_in is a multiple of 32 and group a multiple of 32 (or group == n_in);
 * other shapes are kept dense (dequantised) by the loader, with one log line.
 *
 * perm: with act-order the rows' inputs are sorted by group; input k of a row multiplies
 * x[perm[k]]. NULL: plain order. */
#ifndef BACKEND_WEIGHT_H
#define BACKEND_WEIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/tensor.h"

enum weight_kind { WEIGHT_NONE = 0, WEIGHT_DENSE, WEIGHT_INT4, WEIGHT_INT8 };
enum { WEIGHT_BLOCK = 32 };

struct weight {
    enum weight_kind kind;
    enum dtype dtype; /* dense: of the elements (F32, F16, BF16); quantised: of the scales */
    size_t n_out, n_in;
    const void *data;     /* dense elements, or packed values; may be only element-aligned */
    size_t group;         /* inputs per scale */
    const void *scales;   /* [n_out][n_groups] in dtype */
    const uint8_t *zeros; /* [n_out][n_groups]; NULL: symmetric */
    const int32_t *perm;  /* [n_in] or NULL */
};

size_t weight_n_groups(const struct weight *w);
size_t weight_row_bytes(const struct weight *w); /* of data */
size_t weight_bytes(const struct weight *w);     /* data, scales, zeros, perm */
const char *
weight_kind_name(const struct weight *w); /* "bfloat16", "int4 g128", static storage per kind */

/* Rows [row0, row0+n) of w as a weight of its own (shares perm). */
struct weight weight_rows(const struct weight *w, size_t row0, size_t n);

/* Pack n values (one byte each, n a multiple of 32) of one row into the int4 layout: n/2 bytes. */
void weight_pack_int4(uint8_t *dst, const uint8_t *q, size_t n);

/* One row as float32 in original input order: the reference that kernels are tested against. */
void weight_row_f32(const struct weight *w, size_t row, float *out);

/* The same in the stored order: value k multiplies x[perm[k]]. */
void weight_row_stored_f32(const struct weight *w, size_t row, float *out);

/* The shape rules above. */
bool weight_int4_fits(size_t n_in, size_t group);

#endif
