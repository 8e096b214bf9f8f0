/* cpu_backend.h - the CPU as a backend. Only cli/ (and tests) include this. */
#ifndef BACKEND_CPU_CPU_BACKEND_H
#define BACKEND_CPU_CPU_BACKEND_H

#include "backend/backend.h"
#include "base/cpu.h"

/* AUTO: the best that this machine runs; asking for more than that is ERR_UNSUPPORTED.
 *   AVX2      with FMA and F16C
 *   AVX_VNNI  and the 256-bit int8 dot product without AVX-512
 *   AVX512    F, BW, DQ, VL and VNNI; a processor without VNNI takes AVX2
 *   AMX       and the int8 tiles, if the system grants them and a first product is right */
enum cpu_isa {
    CPU_ISA_AUTO,
    CPU_ISA_SCALAR,
    CPU_ISA_AVX2,
    CPU_ISA_AVX_VNNI,
    CPU_ISA_AVX512,
    CPU_ISA_AMX
};

/* What quantised (int4, int8) matrices multiply; dense ones always read the activations as they are.
 *   F32   the activations as they are
 *   BF16  rounded to bfloat16 first
 *   INT8  quantised per row and group of inputs, products summed in integers; a matrix whose groups
 *         do not divide its inputs keeps F32, and its kernel's name says so */
enum cpu_activations { CPU_ACTIVATIONS_F32, CPU_ACTIVATIONS_BF16, CPU_ACTIVATIONS_INT8 };

struct cpu_backend_options {
    size_t n_threads; /* 0: one per physical core */
    enum cpu_isa isa;
    enum cpu_activations activations;
};

enum status cpu_backend_new(struct backend **out, const struct cpu_backend_options *o,
                            struct error *err);

/* The pool inside, for the loader's parallel work (never during run()). */
struct pool *cpu_backend_pool(struct backend *be);

/* "scalar", "avx2", "avxvnni", "avx512", "amx": static. */
const char *cpu_backend_isa(struct backend *be);

/* Go on with another number of threads, at most what the backend was made with (ERR_LIMIT): for
 * measurements, between steps. */
enum status cpu_backend_set_threads(struct backend *be, size_t n_threads, struct error *err);

#endif
