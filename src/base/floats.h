/* floats.h - passes over long arrays of float32, such as a row of logits.
 *
 * Place: base. Written so that any compiler makes vector code of them: a row of 248,320 logits takes some
 *        ten microseconds, where a plain loop waits for each comparison and takes hundreds. */
#ifndef BASE_FLOATS_H
#define BASE_FLOATS_H

#include <stdbool.h>
#include <stddef.h>

/* Whether none of n values is infinite or NaN. */
bool floats_are_finite(const float *x, size_t n);

/* The largest of n values; -INFINITY for none. NaNs count as nothing. */
float floats_max(const float *x, size_t n);

/* Where it is, the first of equals; 0 when there is none. */
size_t floats_argmax(const float *x, size_t n);

#endif
