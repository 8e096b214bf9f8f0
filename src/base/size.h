/* size.h - checked arithmetic on sizes that come from files or sockets.
 *
 * Place: base. Each function returns true when the result fits and false on overflow (then *out is
 * unchanged); the caller turns false into an error that names the field. */
#ifndef BASE_SIZE_H
#define BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool size_mul(size_t *out, size_t a, size_t b)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}

static inline bool size_add(size_t *out, size_t a, size_t b)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}

/* Round up to a multiple of align, a power of two. */
static inline bool size_align(size_t *out, size_t n, size_t align)
{
    size_t r;
    if (!size_add(&r, n, align - 1)) {
        return false;
    }
    *out = r & ~(align - 1);
    return true;
}

/* a / b, rounded up; b > 0, and a + b - 1 fits. */
static inline size_t size_divide_up(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

static inline size_t size_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t size_max(size_t a, size_t b)
{
    return a > b ? a : b;
}

#endif
