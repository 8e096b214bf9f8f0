/* ref_rows.c - the scalar row kernels: norms, activations, sums, rounding.
 *
 * Place: backend/cpu; the reference that rows_avx2.c is tested against. Sums are kept in double and
 *        rounded once, so the reference itself adds no error worth speaking of. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu_kernels.h"
#include "base/half.h"

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static float inverse_rms(const float *x, size_t n, float eps)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    return (float)(1.0 / sqrt(sum / (double)n + (double)eps));
}

void norm_ref(float *out, const float *x, const float *weight, size_t n, float eps)
{
    float inverse = inverse_rms(x, n, eps);

    for (size_t i = 0; i < n; i++) {
        out[i] = x[i] * inverse * weight[i];
    }
}

void gated_norm_ref(float *out, const float *x, const float *weight, const float *z, size_t n,
                    float eps)
{
    float inverse = inverse_rms(x, n, eps);

    for (size_t i = 0; i < n; i++) {
        out[i] = x[i] * inverse * weight[i] * (z[i] * sigmoid(z[i]));
    }
}

void swiglu_ref(float *out, const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = gate[i] * sigmoid(gate[i]) * up[i];
    }
}

void sigmoid_mul_ref(float *out, const float *x, const float *gate, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = x[i] * sigmoid(gate[i]);
    }
}

float dot_ref(const float *a, const float *b, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        sum += (double)a[i] * (double)b[i];
    }
    return (float)sum;
}

void axpy_ref(float *y, float a, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] += a * x[i];
    }
}

void scale_ref(float *y, float a, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] *= a;
    }
}

float exp_sum_ref(float *x, float max, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        x[i] = expf(x[i] - max);
        sum += (double)x[i];
    }
    return (float)sum;
}

float max_ref(const float *x, size_t n)
{
    float max = x[0];

    for (size_t i = 1; i < n; i++) {
        if (x[i] > max || isnan(x[i])) {
            max = x[i];
        }
    }
    return max;
}

bool all_finite_ref(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            return false;
        }
    }
    return true;
}

void round_ref(enum dtype t, float *v, size_t n)
{
    if (t == DTYPE_F32) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        v[i] = t == DTYPE_BF16 ? bf16_to_f32(bf16_from_f32(v[i])) : f16_to_f32(f16_from_f32(v[i]));
    }
}

void load_ref(float *dst, enum dtype t, const void *src, size_t n)
{
    const uint8_t *from = src;

    if (t == DTYPE_F32) {
        memcpy(dst, src, n * sizeof *dst);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t half;

        memcpy(&half, from + i * sizeof half, sizeof half);
        dst[i] = t == DTYPE_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
    }
}

void store_ref(enum dtype t, void *dst, const float *src, size_t n)
{
    uint8_t *to = dst;

    if (t == DTYPE_F32) {
        memcpy(dst, src, n * sizeof *src);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t half = t == DTYPE_BF16 ? bf16_from_f32(src[i]) : f16_from_f32(src[i]);

        memcpy(to + i * sizeof half, &half, sizeof half);
    }
}

void load_fp8_ref(float *dst, enum dtype t, const uint8_t *src, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++) {
        dst[i] = scale * (t == DTYPE_F8_E4M3 ? f8e4m3_to_f32(src[i]) : f8e5m2_to_f32(src[i]));
    }
}

void conv_ref(float *out, const float *const *column, const float *weight, size_t weight_stride,
              size_t taps, size_t n)
{
    for (size_t c = 0; c < n; c++) {
        float sum = 0;

        for (size_t j = 0; j < taps; j++) {
            sum += weight[j * weight_stride + c] * column[j][c];
        }
        out[c] = sum * sigmoid(sum);
    }
}
