/* floats.c - see floats.h.
 *
 * Idea: LANES values at a time in vectors as the compiler knows them, several of them side by side so that
 *       no operation waits for the one before; the rest one by one. */
#include "base/floats.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/half.h"

enum { WIDTH = 4, SIDE = 8, LANES = WIDTH * SIDE, BLOCK = 32 * LANES };

typedef float floats __attribute__((vector_size(WIDTH * sizeof(float))));
typedef int32_t ints __attribute__((vector_size(WIDTH * sizeof(int32_t))));

static const int32_t EXPONENT = 0x7f800000;

bool floats_are_finite(const float *x, size_t n)
{
    ints bad[SIDE] = {{0}}, all;
    bool found = false;
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
#pragma GCC unroll 8
        for (int s = 0; s < SIDE; s++) {
            ints v;

            memcpy(&v, x + i + s * WIDTH, sizeof v);
            bad[s] |= (v & EXPONENT) == EXPONENT;
        }
    }
    all = bad[0];
    for (int s = 1; s < SIDE; s++) {
        all |= bad[s];
    }
    for (int l = 0; l < WIDTH; l++) {
        found |= all[l] != 0;
    }
    for (; i < n; i++) {
        found |= (f32_bits(x[i]) & (uint32_t)EXPONENT) == (uint32_t)EXPONENT;
    }
    return !found;
}

/* Of each pair v where it is larger, else `than`, also where v is NaN. */
static floats larger(floats v, floats than)
{
    ints is_more = v > than; /* all ones or zeros */

    return (floats)(((ints)v & is_more) | ((ints)than & ~is_more));
}

float floats_max(const float *x, size_t n)
{
    floats most[SIDE];
    float max = -INFINITY;
    size_t i = 0;

    for (int s = 0; s < SIDE; s++) {
        most[s] = (floats){0} - INFINITY;
    }
    for (; i + LANES <= n; i += LANES) {
#pragma GCC unroll 8
        for (int s = 0; s < SIDE; s++) {
            floats v;

            memcpy(&v, x + i + s * WIDTH, sizeof v);
            most[s] = larger(v, most[s]);
        }
    }
    for (int s = 1; s < SIDE; s++) {
        most[0] = larger(most[s], most[0]);
    }
    for (int l = 0; l < WIDTH; l++) {
        max = most[0][l] > max ? most[0][l] : max;
    }
    for (; i < n; i++) {
        max = x[i] > max ? x[i] : max;
    }
    return max;
}

size_t floats_argmax(const float *x, size_t n)
{
    float best = -INFINITY;
    size_t where = 0, end = 0;

    /* The block that holds the largest, then the place in it. */
    for (size_t at = 0; at < n; at += BLOCK) {
        size_t len = n - at < BLOCK ? n - at : BLOCK;
        float max = floats_max(x + at, len);

        if (max > best) {
            best = max;
            where = at;
            end = at + len;
        }
    }
    while (where < end && x[where] != best) {
        where++;
    }
    return where;
}
