/* cpu.h - what this processor and its operating system can run.
 *
 * Place: base. A feature counts only when CPUID reports it and the operating system saves its
 *        registers (XCR0). */
#ifndef BASE_CPU_H
#define BASE_CPU_H

#include <stdbool.h>
#include <stddef.h>

struct cpu_features {
    bool avx2; /* with FMA and F16C */
    bool avx_vnni;
    bool avx512; /* F, BW, DQ, VL */
    bool avx512_vnni;
    bool avx512_bf16;
    bool amx; /* tile, int8, bf16, and the kernel granted the tile state */
};

struct cpu_features cpu_detect(void);

/* Cores this process may run on: logical, and physical (hyper-threads of one core count once). */
size_t cpu_count_logical(void);
size_t cpu_count_physical(void);

/* "AMD EPYC 7R13"; out holds n bytes. */
void cpu_model_name(char *out, size_t n);

/* A short list of the features, "avx2 avx512 vnni", for print-outs. */
void cpu_features_text(char *out, size_t n, const struct cpu_features *f);

#endif
