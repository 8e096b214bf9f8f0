/* peak_loops.h - the inner loops of machine_bounds.c, one set per instruction set.
 *
 * Place: cli; private to machine_bounds.c. Each file is compiled with its own flags, like the kernels. */
#ifndef CLI_PEAK_LOOPS_H
#define CLI_PEAK_LOOPS_H

#include <stddef.h>
#include <stdint.h>

enum { READ_PATTERNS = 3, READ_UNIT_BYTES = 4096 };

struct peak_loops {
    const char *isa; /* as cpu_backend_isa() */
    /* Multiply-adds in registers; returns the operations of `rounds` rounds. */
    double (*f32)(size_t rounds);
    double (*int8)(size_t rounds);
    /* Reads n_bytes (a multiple of READ_UNIT_BYTES, 64-byte aligned) once, by one of READ_PATTERNS
     * patterns; the result depends on every byte. */
    uint64_t (*read)(const unsigned char *data, size_t n_bytes, int pattern);
};

double peak_f32_scalar(size_t rounds);
double peak_int8_scalar(size_t rounds);
uint64_t peak_read_scalar(const unsigned char *data, size_t n_bytes, int pattern);
#if defined(__x86_64__)
double peak_f32_avx2(size_t rounds);
double peak_int8_avx2(size_t rounds);
uint64_t peak_read_avx2(const unsigned char *data, size_t n_bytes, int pattern);
double peak_int8_avxvnni(size_t rounds);
double peak_f32_avx512(size_t rounds);
double peak_int8_avx512(size_t rounds);
double peak_int8_amx(size_t rounds);
uint64_t peak_read_avx512(const unsigned char *data, size_t n_bytes, int pattern);
#endif

#endif
