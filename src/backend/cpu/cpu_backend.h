/* cpu_backend.h - the CPU as a backend. Only cli/ (and tests) include this. */
#ifndef BACKEND_CPU_CPU_BACKEND_H
#define BACKEND_CPU_CPU_BACKEND_H

#include "backend/backend.h"
#include "base/cpu.h"

enum cpu_isa { CPU_ISA_AUTO, CPU_ISA_SCALAR, CPU_ISA_AVX2 };

struct cpu_backend_options {
    size_t n_threads; /* 0: one per physical core */
    enum cpu_isa
        isa; /* AUTO: the best that this machine runs; asking for more than that is ERR_UNSUPPORTED */
};

enum status cpu_backend_new(struct backend **out, const struct cpu_backend_options *o,
                            struct error *err);

/* The pool inside, for the loader's parallel work (never during run()). */
struct pool *cpu_backend_pool(struct backend *be);

#endif
