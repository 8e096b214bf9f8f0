/* peak_loops_avx2.c - the loops with AVX2 and FMA. See peak_loops.h. */
#if defined(__x86_64__)
#include "cli/peak_loops.h"

#include <immintrin.h>

enum { CHAINS = 12, VECTOR = 32, AHEAD = 2048 /* bytes; prefetched into the second level */ };

double peak_f32_avx2(size_t rounds)
{
    __m256 sum[CHAINS], a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);

    for (int i = 0; i < CHAINS; i++) {
        sum[i] = b;
    }
    for (size_t r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) {
            sum[i] = _mm256_fmadd_ps(sum[i], a, b);
        }
    }
    for (int i = 0; i < CHAINS; i++) {
        __asm__ volatile("" ::"x"(sum[i]));
    }
    return 2.0 * 8 * CHAINS * (double)rounds;
}

/* Without VNNI a product takes three instructions: to int16 pairs, to int32, the sum. */
double peak_int8_avx2(size_t rounds)
{
    __m256i sum[CHAINS], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);
    __m256i ones = _mm256_set1_epi16(1);

    for (int i = 0; i < CHAINS; i++) {
        sum[i] = b;
    }
    for (size_t r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) {
            __m256i x = a;
            __asm__ volatile("" : "+x"(x));
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(_mm256_maddubs_epi16(x, b), ones));
        }
    }
    for (int i = 0; i < CHAINS; i++) {
        __asm__ volatile("" ::"x"(sum[i]));
    }
    return 2.0 * VECTOR * CHAINS * (double)rounds;
}

static __m256i load(const unsigned char *p)
{
    return _mm256_load_si256((const __m256i *)(const void *)p);
}

/* Step bytes from each of four places, `apart` bytes from one another, and so on. */
static uint64_t read_streams(const unsigned char *p, size_t n, size_t apart, size_t ahead)
{
    __m256i sum[8];
    uint64_t lanes[4];

    for (int i = 0; i < 8; i++) {
        sum[i] = _mm256_setzero_si256();
    }
    for (size_t at = 0; at < n; at += apart == 64 ? 256 : 64) {
#pragma GCC unroll 4
        for (size_t s = 0; s < 4; s++) {
            const unsigned char *q = p + at + s * apart;

            if (ahead > 0) {
                _mm_prefetch((const char *)q + ahead, _MM_HINT_T1);
            }
            sum[2 * s] = _mm256_add_epi64(sum[2 * s], load(q));
            sum[2 * s + 1] = _mm256_add_epi64(sum[2 * s + 1], load(q + VECTOR));
        }
    }
    for (int i = 1; i < 8; i++) {
        sum[0] = _mm256_add_epi64(sum[0], sum[i]);
    }
    _mm256_storeu_si256((__m256i *)(void *)lanes, sum[0]);
    return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

uint64_t peak_read_avx2(const unsigned char *data, size_t n_bytes, int pattern)
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
typedef int empty_peak_loops_avx2;
#endif
