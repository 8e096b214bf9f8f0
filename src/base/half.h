/* half.h - bfloat16, float16 and fp8 conversions, scalar and exact.
 *
 * Place:  base. Rounding is to nearest even everywhere. float16: overflow gives infinity. fp8 (OCP
 *         e4m3fn: no infinity, max 448; e5m2: max finite 57344): overflow saturates to the largest
 *         finite value, NaN stays NaN. */
#ifndef BASE_HALF_H
#define BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float f32_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float bf16_to_f32(uint16_t h)
{
    return f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t bf16_from_f32(float f)
{
    uint32_t u = f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((u >> 16) | 0x40u); /* quiet the NaN */
    }
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

float f16_to_f32(uint16_t h);
uint16_t f16_from_f32(float f);
float f8e4m3_to_f32(uint8_t v);
uint8_t f8e4m3_from_f32(float f);
float f8e5m2_to_f32(uint8_t v);
uint8_t f8e5m2_from_f32(float f);

#endif
