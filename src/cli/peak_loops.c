/* peak_loops.c - the loops in plain C. See peak_loops.h.
 *
 * An empty asm statement that "changes" a value keeps the compiler from computing it ahead. */
#include "cli/peak_loops.h"

enum { CHAINS = 12 }; /* independent sums: more than a pipeline is deep */

double peak_f32_scalar(size_t rounds)
{
    float sum[CHAINS] = {0}, a = 0.999f, b = 0.001f;

    for (size_t r = 0; r < rounds; r++) {
        for (int i = 0; i < CHAINS; i++) {
            sum[i] = sum[i] * a + b;
        }
    }
    for (int i = 0; i < CHAINS; i++) {
        __asm__ volatile("" ::"m"(sum[i]));
    }
    return 2.0 * CHAINS * (double)rounds;
}

double peak_int8_scalar(size_t rounds)
{
    int32_t sum[CHAINS] = {0}, a = 3;

    for (size_t r = 0; r < rounds; r++) {
        __asm__ volatile("" : "+r"(a));
        for (int i = 0; i < CHAINS; i++) {
            sum[i] += a * (a + i);
        }
    }
    for (int i = 0; i < CHAINS; i++) {
        __asm__ volatile("" ::"m"(sum[i]));
    }
    return 2.0 * CHAINS * (double)rounds;
}

uint64_t peak_read_scalar(const unsigned char *data, size_t n_bytes, int pattern)
{
    const uint64_t *p = (const uint64_t *)(const void *)data;
    size_t n = n_bytes / sizeof *p, quarter = n / 4;
    uint64_t a = 0, b = 0, c = 0, d = 0;

    if (pattern == 0) { /* one stream */
        for (size_t i = 0; i < n; i += 4) {
            a += p[i];
            b += p[i + 1];
            c += p[i + 2];
            d += p[i + 3];
        }
    } else { /* four, apart */
        for (size_t i = 0; i < quarter; i++) {
            a += p[i];
            b += p[quarter + i];
            c += p[2 * quarter + i];
            d += p[3 * quarter + i];
        }
    }
    return a + b + c + d;
}
