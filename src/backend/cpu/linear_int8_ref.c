/* linear_int8_ref.c - products with int8 activations in plain C: what the int8 kernels must equal.
 *
 * Place: backend/cpu; reference for linear_int8_avx2.c, linear_int8_avxvnni.c and
 *        linear_int8_avx512vnni.c, which give the same bits. Definitions: cpu_kernels.h. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu_kernels.h"
#include "base/half.h"

/* A group whose largest value is below this is taken as zeros: 127 divided by it would overflow. */
static const float QUANTISE_MIN = 1e-36f;

/* Where input k lies in a row of this form. */
static size_t order_of(size_t k, size_t unit)
{
    enum { HALF = WEIGHT_BLOCK / 2 };
    size_t in_unit = k % unit, block = in_unit / WEIGHT_BLOCK, at = in_unit % WEIGHT_BLOCK;

    return k - in_unit + at / HALF * (unit / 2) + block * HALF + at % HALF;
}

static void put_value(uint8_t *row, const struct act_form *f, size_t k, int q)
{
    size_t at = order_of(k, f->unit);

    if (f->value_bytes == 2) {
        int16_t wide = (int16_t)q;

        memcpy(row + 2 * at, &wide, sizeof wide);
    } else {
        row[at] = (uint8_t)(int8_t)q;
    }
}

void act_order_ref(struct act_form *f, enum weight_kind kind)
{
    (void)kind;
    f->unit = WEIGHT_BLOCK;
    f->value_bytes = 1;
}

void quantise_ref(uint8_t *row, const struct act_form *f, const float *x)
{
    float *scales = (float *)(void *)(row + f->scale_at);
    int32_t *sums = (int32_t *)(void *)(row + f->sum_at);

    for (size_t g = 0; g < f->n_groups; g++) {
        const float *in = x + g * f->group;
        bool is_finite = all_finite_ref(in, f->group);
        float most = 0, inverse;

        for (size_t k = 0; is_finite && k < f->group; k++) {
            most = fmaxf(most, fabsf(in[k]));
        }
        inverse = most < QUANTISE_MIN ? 0 : 127.0f / most;
        scales[g] = !is_finite ? NAN : most < QUANTISE_MIN ? 0 : most / 127.0f;
        sums[g] = 0;
        for (size_t k = 0; k < f->group; k++) {
            int q = is_finite ? (int)rintf(in[k] * inverse) : 0;

            put_value(row, f, g * f->group + k, q);
            sums[g] += q;
        }
    }
}

static int weight_at(const struct weight *w, size_t row, size_t k)
{
    const uint8_t *data = (const uint8_t *)w->data + row * weight_row_bytes(w);
    size_t in_block = k % WEIGHT_BLOCK;

    if (w->kind == WEIGHT_INT8) {
        return data[k];
    }
    data += k / WEIGHT_BLOCK * (WEIGHT_BLOCK / 2) + in_block % (WEIGHT_BLOCK / 2);
    return in_block < WEIGHT_BLOCK / 2 ? *data & 15 : *data >> 4;
}

static float scale_at(const struct weight *w, size_t at)
{
    float scale;
    uint16_t half;

    if (w->dtype == DTYPE_F32) {
        memcpy(&scale, (const uint8_t *)w->scales + 4 * at, sizeof scale);
        return scale;
    }
    memcpy(&half, (const uint8_t *)w->scales + 2 * at, sizeof half);
    return w->dtype == DTYPE_F16 ? f16_to_f32(half) : bf16_to_f32(half);
}

static float product(const struct weight *w, size_t row, const struct act_form *f,
                     const uint8_t *act)
{
    size_t n_groups = weight_n_groups(w), per_scale = w->group / f->group;
    int middle = w->kind == WEIGHT_INT4 ? 8 : 128;
    float sum = 0;

    for (size_t g = 0; g < f->n_groups; g++) {
        size_t at = row * n_groups + g / per_scale;
        int zero = w->zeros ? w->zeros[at] : middle, isum = 0;

        for (size_t k = g * f->group; k < (g + 1) * f->group; k++) {
            isum += weight_at(w, row, k) * (int8_t)act[k];
        }
        isum -= zero * act_sums(f, act)[g];
        sum = fmaf((float)isum, scale_at(w, at) * act_scales(f, act)[g], sum);
    }
    return sum;
}

void linear_int8_ref(const struct linear_job *job, const struct weight *w, size_t n0, size_t n1)
{
    for (size_t n = n0; n < n1; n++) {
        for (size_t i = 0; i < job->n_x; i++) {
            float *out = job->out + i * job->out_stride + n;
            float sum = product(w, n, job->form, linear_job_act(job, i));

            *out = job->accumulates ? *out + sum : sum;
        }
    }
}
