/* peak_loops_avxvnni.c - the int8 product of AVX-VNNI. See peak_loops.h. */
#if defined(__x86_64__)
#include "cli/peak_loops.h"

#include <immintrin.h>

enum { CHAINS = 12, VECTOR = 32 };

double peak_int8_avxvnni(size_t rounds)
{
    __m256i sum[CHAINS], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);

    for (int i = 0; i < CHAINS; i++) {
        sum[i] = b;
    }
    for (size_t r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) {
            sum[i] = _mm256_dpbusd_avx_epi32(sum[i], a, b);
        }
    }
    for (int i = 0; i < CHAINS; i++) {
        __asm__ volatile("" ::"x"(sum[i]));
    }
    return 2.0 * VECTOR * CHAINS * (double)rounds;
}
#else
typedef int empty_peak_loops_avxvnni;
#endif
