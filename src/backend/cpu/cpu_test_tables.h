/* cpu_test_tables.h - the kernel tables of this machine, for tests that call kernels directly. */
#ifndef BACKEND_CPU_CPU_TEST_TABLES_H
#define BACKEND_CPU_CPU_TEST_TABLES_H

#include "backend/cpu/cpu_internal.h"
#include "backend/cpu/cpu_test_util.h"

/* Scalar first; returns their number. */
static inline size_t test_tables(const struct cpu_kernels *out[TEST_ISAS])
{
    enum cpu_isa isas[TEST_ISAS];
    size_t n = test_isas(isas);

    for (size_t a = 0; a < n; a++) {
        struct backend *be = test_backend(isas[a], 1);

        out[a] = ((struct cpu_backend *)be)->kernels;
        be->ops->free(be);
    }
    return n;
}

#endif
