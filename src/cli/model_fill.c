/* model_fill.c - see model_fill.h.
 *
 * The generator is the finaliser of splitmix64 (Steele, Lea, Flood 2014) over a Weyl sequence: word
 * i of a stream is mix(key + i x odd constant). One word feeds four numbers or two packed words. */
#include "cli/model_fill.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "base/size.h"

enum { LANES = 4 /* numbers per random word */, LANE_BITS = 16 };

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint64_t word_at(uint64_t key, size_t i)
{
    return mix(key + (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15));
}

uint64_t fill_key(uint64_t seed, const char *name)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325); /* FNV-1a */

    for (const char *p = name; *p; p++) {
        h = (h ^ (unsigned char)*p) * UINT64_C(0x100000001b3);
    }
    return mix(h ^ mix(seed + 1));
}

/* ---- tables ---- */

/* x with P(standard normal < x) = p, by halving; 0 < p < 1. */
static double normal_quantile(double p)
{
    double low = -8, high = 8;

    for (int i = 0; i < 50; i++) {
        double x = (low + high) / 2;

        if (erfc(-x * M_SQRT1_2) / 2 < p) {
            low = x;
        } else {
            high = x;
        }
    }
    return (low + high) / 2;
}

static double quantile(const struct fill_spec *s, double p)
{
    switch (s->kind) {
    case FILL_NORMAL:
        return s->a + s->b * normal_quantile(p);
    case FILL_UNIFORM:
        return s->a + (s->b - s->a) * p;
    case FILL_DECAY_RATE:
        return log(s->a + (s->b - s->a) * p);
    case FILL_TIME_STEP:
        return log(expm1(exp(log(s->a) + (log(s->b) - log(s->a)) * p)));
    default:
        return 0;
    }
}

void fill_init(struct fill *f, const struct fill_spec *spec)
{
    *f = (struct fill){.spec = *spec};
    if (spec->dtype == DTYPE_I32) {
        return;
    }
    assert(spec->dtype == DTYPE_F32 || spec->dtype == DTYPE_F16 || spec->dtype == DTYPE_BF16);
    for (size_t i = 0; i < FILL_QUANTILES; i++) {
        float v = (float)quantile(spec, ((double)i + 0.5) / FILL_QUANTILES);

        if (spec->dtype == DTYPE_F32) {
            f->table.whole[i] = v;
        } else {
            f->table.half[i] = spec->dtype == DTYPE_F16 ? f16_from_f32(v) : bf16_from_f32(v);
        }
    }
}

/* ---- content ---- */

static size_t lane(uint64_t word, size_t i)
{
    return word >> (LANE_BITS * i) & (FILL_QUANTILES - 1);
}

/* Numbers of 16 bits: whole groups of LANES in the middle, single ones at the ends. */
static void fill_half(uint16_t *out, const uint16_t *table, uint64_t key, size_t first, size_t n)
{
    size_t i = first, end = first + n;
    size_t head = size_min(end, (first + LANES - 1) / LANES * LANES);

    for (; i < head; i++) {
        *out++ = table[lane(word_at(key, i / LANES), i % LANES)];
    }
    for (; i + LANES <= end; i += LANES) {
        uint64_t w = word_at(key, i / LANES);

        out[0] = table[lane(w, 0)];
        out[1] = table[lane(w, 1)];
        out[2] = table[lane(w, 2)];
        out[3] = table[lane(w, 3)];
        out += LANES;
    }
    for (; i < end; i++) {
        *out++ = table[lane(word_at(key, i / LANES), i % LANES)];
    }
}

static void fill_whole(float *out, const float *table, uint64_t key, size_t first, size_t n)
{
    for (size_t i = first; i < first + n; i++) {
        *out++ = table[lane(word_at(key, i / LANES), i % LANES)];
    }
}

/* Sixteen random weights. A plain word would do, but for its mean of 7.5 against a zero point of 8: the
 * same small bias in every weight adds up along a direction that all experts share, and grows from
 * layer to layer. So a 0 becomes an 8. */
static uint64_t int4_at(uint64_t key, size_t i)
{
    uint64_t w = word_at(key, i);
    uint64_t any = w | w >> 1 | w >> 2 | w >> 3; /* bit 0 of a weight: is it other than 0 */

    return w | (~any & UINT64_C(0x1111111111111111)) << 3;
}

/* Two of 32 bits from each random word, the lower half first. */
static void fill_int4(uint32_t *out, uint64_t key, size_t first, size_t n)
{
    size_t i = first, end = first + n;

    if (i < end && i % 2 == 1) {
        *out++ = (uint32_t)(int4_at(key, i / 2) >> 32);
        i++;
    }
    for (; i + 2 <= end; i += 2) {
        uint64_t w = int4_at(key, i / 2);

        out[0] = (uint32_t)w;
        out[1] = (uint32_t)(w >> 32);
        out += 2;
    }
    if (i < end) {
        *out = (uint32_t)int4_at(key, i / 2);
    }
}

void fill_range(void *out, const struct fill *f, uint64_t key, size_t first, size_t n)
{
    uint32_t *words = out;

    switch (f->spec.kind) {
    case FILL_INT4:
        fill_int4(words, key, first, n);
        break;
    case FILL_CONSTANT:
        for (size_t i = 0; i < n; i++) {
            words[i] = f->spec.word;
        }
        break;
    case FILL_GROUPS:
        for (size_t i = 0; i < n; i++) {
            words[i] = (uint32_t)((first + i) / f->spec.word);
        }
        break;
    default:
        if (f->spec.dtype == DTYPE_F32) {
            fill_whole(out, f->table.whole, key, first, n);
        } else {
            fill_half(out, f->table.half, key, first, n);
        }
    }
}
