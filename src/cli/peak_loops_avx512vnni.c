/* peak_loops_avx512vnni.c - the loops with 512-bit vectors and VNNI. See peak_loops.h. */
#if defined(__x86_64__)
#include "cli/peak_loops.h"

#include <immintrin.h>

enum { CHAINS = 16, VECTOR = 64, AHEAD = 2048 };

double peak_f32_avx512(size_t rounds)
{
    __m512 sum[CHAINS], a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);

    for (int i = 0; i < CHAINS; i++) {
        sum[i] = b;
    }
    for (size_t r = 0; r < rounds; r++) {
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++) {
            sum[i] = _mm512_fmadd_ps(sum[i], a, b);
        }
    }
    for (int i = 0; i < CHAINS; i++) {
        __asm__ volatile("" ::"v"(sum[i]));
    }
    return 2.0 * 16 * CHAINS * (double)rounds;
}

double peak_int8_avx512(size_t rounds)
{
    __m512i sum[CHAINS], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);

    for (int i = 0; i < CHAINS; i++) {
        sum[i] = b;
    }
    for (size_t r = 0; r < rounds; r++) {
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++) {
            sum[i] = _mm512_dpbusd_epi32(sum[i], a, b);
        }
    }
    for (int i = 0; i < CHAINS; i++) {
        __asm__ volatile("" ::"v"(sum[i]));
    }
    return 2.0 * VECTOR * CHAINS * (double)rounds;
}

/* As in peak_loops_avx2.c, a cache line per load. */
static uint64_t read_streams(const unsigned char *p, size_t n, size_t apart, size_t ahead)
{
    __m512i sum[4];
    uint64_t lanes[8];

    for (int i = 0; i < 4; i++) {
        sum[i] = _mm512_setzero_si512();
    }
    for (size_t at = 0; at < n; at += apart == 64 ? 256 : 64) {
#pragma GCC unroll 4
        for (size_t s = 0; s < 4; s++) {
            const unsigned char *q = p + at + s * apart;

            if (ahead > 0) {
                _mm_prefetch((const char *)q + ahead, _MM_HINT_T1);
            }
            sum[s] = _mm512_add_epi64(sum[s], _mm512_load_si512(q));
        }
    }
    sum[0] = _mm512_add_epi64(_mm512_add_epi64(sum[0], sum[1]), _mm512_add_epi64(sum[2], sum[3]));
    _mm512_storeu_si512(lanes, sum[0]);
    return lanes[0] + lanes[1] + lanes[2] + lanes[3] + lanes[4] + lanes[5] + lanes[6] + lanes[7];
}

uint64_t peak_read_avx512(const unsigned char *data, size_t n_bytes, int pattern)
{
    switch (pattern) {
    case 0:
        return read_streams(data, n_bytes, 64, 0);
    case 1:
        return read_streams(data, n_bytes, 64, AHEAD);
    default:
        return read_streams(data, n_bytes / 4, n_bytes / 4, 0);
    }
}
#else
typedef int empty_peak_loops_avx512vnni;
#endif
