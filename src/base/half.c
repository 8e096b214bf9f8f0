/* half.c - float16 and fp8, scalar. See half.h.
 *
 * Both narrow kinds of float share one idea: the value is scaled so that the last kept bit of the
 * mantissa becomes the unit, rounded to an integer (half to even, by the addition of a power of two
 * that pushes the rest out), and its bits are put together again. */
#include "base/half.h"

#include <math.h>

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu;
    uint32_t mantissa = h & 0x3ffu;

    if (exponent == 0) { /* zero or subnormal: mantissa * 2^-24 is exact in float32 */
        float v = (float)mantissa * 0x1p-24f;
        return sign ? -v : v;
    }
    if (exponent == 31) {
        return f32_from_bits(sign | 0x7f800000u | mantissa << 13);
    }
    return f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t f16_from_f32(float f)
{
    uint32_t bits = f32_bits(f);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;

    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u); /* NaN */
    }
    if (magnitude >= 0x477ff000u) { /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magnitude < 0x38800000u) { /* below 2^-14: adding 0.5 leaves units of 2^-24 */
        float shifted = f32_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (f32_bits(shifted) - f32_bits(0.5f)));
    }
    magnitude += 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | (magnitude - (112u << 23)) >> 13);
}

float f8e4m3_to_f32(uint8_t v)
{
    uint32_t exponent = v >> 3 & 0xfu;
    uint32_t mantissa = v & 7u;
    float magnitude;

    if ((v & 0x7f) == 0x7f) {
        magnitude = NAN;
    } else if (exponent == 0) {
        magnitude = (float)mantissa * 0x1p-9f;
    } else {
        magnitude = f32_from_bits((exponent + 120) << 23 | mantissa << 20);
    }
    return v & 0x80 ? -magnitude : magnitude;
}

uint8_t f8e4m3_from_f32(float f)
{
    uint32_t bits = f32_bits(f);
    uint8_t sign = (uint8_t)(bits >> 24 & 0x80u);
    uint32_t magnitude = bits & 0x7fffffffu;

    if (magnitude > 0x7f800000u) {
        return (uint8_t)(sign | 0x7f);
    }
    if (magnitude >= 0x43e00000u) { /* 448 and more saturate */
        return (uint8_t)(sign | 0x7e);
    }
    if (magnitude < 0x3c800000u) { /* below 2^-6: units of 2^-9, so add 2^14 */
        float shifted = f32_from_bits(magnitude) + 16384.0f;
        return (uint8_t)(sign | (f32_bits(shifted) - f32_bits(16384.0f)));
    }
    magnitude += 0x7ffffu + (magnitude >> 20 & 1u);
    return (uint8_t)(sign | (magnitude - (120u << 23)) >> 20);
}

float f8e5m2_to_f32(uint8_t v)
{
    return f16_to_f32((uint16_t)(v << 8));
}

uint8_t f8e5m2_from_f32(float f)
{
    uint32_t bits = f32_bits(f);
    uint8_t sign = (uint8_t)(bits >> 24 & 0x80u);
    uint32_t magnitude = bits & 0x7fffffffu;

    if (magnitude > 0x7f800000u) {
        return (uint8_t)(sign | 0x7f);
    }
    if (magnitude >= 0x47600000u) { /* 57344 and more saturate */
        return (uint8_t)(sign | 0x7b);
    }
    if (magnitude < 0x38800000u) { /* below 2^-14: units of 2^-16, so add 2^7 */
        float shifted = f32_from_bits(magnitude) + 128.0f;
        return (uint8_t)(sign | (f32_bits(shifted) - f32_bits(128.0f)));
    }
    magnitude += 0xfffffu + (magnitude >> 21 & 1u);
    return (uint8_t)(sign | (magnitude - (112u << 23)) >> 21);
}
