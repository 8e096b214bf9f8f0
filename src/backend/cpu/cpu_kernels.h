/* cpu_kernels.h - the inner loops of the CPU backend, one table per instruction set.
 *
 * Place:  backend/cpu. cpu_*.c hold the operations (threads, scratch, rounding points) once; what they
 *         compute with is one of these tables: ref_*.c and linear_int8_ref.c in plain C, *_avx2.c for
 *         AVX2 + FMA + F16C, *_avxvnni.c, *_avx512*.c and *_amx.c for more. cpu_tables.c lists them.
 * Order:  every function computes an output element with one fixed order of operations, which depends
 *         on the vector lengths only, never on how the caller cut rows or columns. That is what makes
 *         results independent of batch and thread count. The tables differ in that order, so they
 *         agree within rounding, not bit for bit; only the int8 kernels agree exactly (see there).
 * Memory: pointers to floats need the alignment of a float; weight data need none. Outputs do not
 *         overlap inputs unless a comment says so. Nothing allocates, nothing fails. */
#ifndef BACKEND_CPU_CPU_KERNELS_H
#define BACKEND_CPU_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/weight.h"
#include "base/tensor.h"

enum {
    LINEAR_TILE_ROWS = 4, /* weight rows that a kernel may keep decoded in linear_job.tile */
    INT8_TILE_ROWS = 16,  /* the same for the int8 kernels, as bytes */
    INT8_GROUP_MAX = 256, /* 8 products of 15 * 127 twice fit int16; 256 of 255 * 127 fit float32 */
    CONV_TAPS_MAX = 8,
};

/* Activations as int8, for quantised weights. A row is one record, written by quantise():
 *
 *     | q [n_in] | scale [n_groups] f32 | sum [n_groups] int32 |       parts begin at 64-byte borders
 *
 *     x[k] ~ scale[g] * q[k]     |q| <= 127     g = k / group     sum[g] = the group's q, added up
 *
 * A group with a value that is not finite gets the scale NaN, so that every output that reads it is
 * NaN; one whose largest value is next to nothing gets scale 0.
 *
 * unit says in which order the q lie: a kernel that splits U / 2 bytes of int4 values in low and high
 * nibbles gets the inputs in this order, and no shuffle is needed. 32 is the plain order.
 *
 *     unit 64:  0..15, 32..47, 16..31, 48..63        (low nibbles of 2 blocks, then high nibbles)
 *
 * value_bytes is 2 where the kernel multiplies int16. */
struct act_form {
    size_t n_in, group, n_groups;
    size_t unit, value_bytes;
    size_t scale_at, sum_at, row_bytes; /* offsets in the record, and its size */
};

static inline const float *act_scales(const struct act_form *f, const uint8_t *row)
{
    return (const float *)(const void *)(row + f->scale_at);
}

static inline const int32_t *act_sums(const struct act_form *f, const uint8_t *row)
{
    return (const int32_t *)(const void *)(row + f->sum_at);
}

/* Inputs x and outputs of a matrix product: out[i][n] (+)= sum_k W[n][k] * x[x_rows[i]][k]. */
struct linear_job {
    float *out; /* element (row i, output n) at out[i * out_stride + n] */
    size_t out_stride;
    const float *x; /* already in the order of the weight's perm */
    size_t x_stride;
    const int32_t *x_rows; /* [n_x] row numbers within x, or NULL: 0, 1, 2, ... */
    size_t n_x;
    bool accumulates; /* add to out instead of writing it */
    float *tile;      /* scratch: linear_tile_floats(), or int8_tile_floats() for linear_int8 */
    /* linear_int8 reads these instead of x: records of `form`. */
    const uint8_t *act;
    const struct act_form *form;
};

/* Rows of the tile begin at whole cache lines. */
static inline size_t linear_tile_stride(size_t n_in)
{
    return (n_in + 15) / 16 * 16;
}

static inline size_t linear_tile_floats(size_t n_in)
{
    return LINEAR_TILE_ROWS * linear_tile_stride(n_in);
}

/* Values of the rows as bytes (or 4 rows as int16), and per group and row a scale and a zero. */
static inline size_t int8_tile_floats(size_t n_in, size_t n_groups)
{
    return INT8_TILE_ROWS * ((n_in + 15) / 16 * 4 + 2 * n_groups);
}

static inline const float *linear_job_x(const struct linear_job *job, size_t i)
{
    return job->x + (job->x_rows ? (size_t)job->x_rows[i] : i) * job->x_stride;
}

static inline const uint8_t *linear_job_act(const struct linear_job *job, size_t i)
{
    return job->act + (job->x_rows ? (size_t)job->x_rows[i] : i) * job->form->row_bytes;
}

struct cpu_kernels {
    const char *isa; /* "scalar", "avx2", "avxvnni", "avx512", "amx" */

    /* Outputs [n0, n1) of w for all inputs of the job. */
    void (*linear)(const struct linear_job *job, const struct weight *w, size_t n0, size_t n1);

    /* The same for int4 and int8 weights and activations of form `job->form`:
     *
     *     isum = sum_k (q_w - zero) * q_x within a group, in integers
     *     out  = fma(isum, scale_w * scale_x, out)      groups ascending, from 0
     *
     * The sums are exact and the float operations are these and no others, so that every instruction
     * set gives the same bits. */
    void (*linear_int8)(const struct linear_job *job, const struct weight *w, size_t n0, size_t n1);
    /* linear_int8 is given about so many bytes of inputs at a time, which stay in the second level
     * cache, in multiples of so many rows. */
    size_t int8_block_bytes, int8_block_rows;
    /* Fills unit and value_bytes; group and n_in are set. */
    void (*act_order)(struct act_form *f, enum weight_kind kind);
    /* q = x * (127 / max |x|) rounded to nearest even, scale = max |x| / 127. */
    void (*quantise)(uint8_t *row, const struct act_form *f, const float *x);

    /* out = x * rsqrt(mean(x^2) + eps) * weight; out may be x. */
    void (*norm)(float *out, const float *x, const float *weight, size_t n, float eps);
    /* The same times silu(z). */
    void (*gated_norm)(float *out, const float *x, const float *weight, const float *z, size_t n,
                       float eps);
    /* out = silu(gate) * up; out may be either. */
    void (*swiglu)(float *out, const float *gate, const float *up, size_t n);
    /* out = x * sigmoid(gate); out may be either. */
    void (*sigmoid_mul)(float *out, const float *x, const float *gate, size_t n);
    float (*dot)(const float *a, const float *b, size_t n);
    /* y += a * x */
    void (*axpy)(float *y, float a, const float *x, size_t n);
    /* y *= a */
    void (*scale)(float *y, float a, size_t n);
    /* x[i] = exp(x[i] - max), returns the sum */
    float (*exp_sum)(float *x, float max, size_t n);
    float (*max)(const float *x, size_t n); /* NaN if one is; n >= 1 */
    bool (*all_finite)(const float *x, size_t n);

    /* v rounded to t in place, and conversions; t is F32, F16 or BF16. */
    void (*round)(enum dtype t, float *v, size_t n);
    void (*load)(float *dst, enum dtype t, const void *src, size_t n);
    void (*store)(enum dtype t, void *dst, const float *src, size_t n);
    /* dst = value of the byte * scale; t is F8_E4M3 or F8_E5M2. */
    void (*load_fp8)(float *dst, enum dtype t, const uint8_t *src, size_t n, float scale);

    /* out[c] = silu(sum_j weight[j * weight_stride + c] * column[j][c]), j ascending */
    void (*conv)(float *out, const float *const *column, const float *weight, size_t weight_stride,
                 size_t taps, size_t n);

    /* One step of the gated delta rule: S = decay * S; d = beta * (v - S'k); S += k d'; out = S'q.
     * S [dk][dv]; delta is scratch of dv floats. */
    void (*delta_step)(float *out, float *S, const float *q, const float *k, const float *v,
                       float decay, float beta, size_t dk, size_t dv, float *delta);

    /* C[m][n] (+)= A[m][k] B[k][n] with row strides; the sum runs over k ascending. */
    void (*matmul)(float *C, size_t ldc, const float *A, size_t lda, const float *B, size_t ldb,
                   size_t m, size_t n, size_t k, bool accumulates);

    /* s[j] = scale * (q . K[j]) for n rows of K [n][hd] */
    void (*scores)(float *s, const float *q, const float *K, size_t n, size_t hd, float scale);
    /* acc = acc * keep + sum_j p[j] * V[j], j ascending; V [n][hd] */
    void (*weigh)(float *acc, float keep, const float *p, const float *V, size_t n, size_t hd);
};

extern const struct cpu_kernels cpu_kernels_scalar;
#if defined(__x86_64__)
extern const struct cpu_kernels cpu_kernels_avx2, cpu_kernels_avxvnni, cpu_kernels_avx512,
    cpu_kernels_amx;
#endif

/* The parts of the tables. */
void linear_ref(const struct linear_job *job, const struct weight *w, size_t n0, size_t n1);
void linear_int8_ref(const struct linear_job *job, const struct weight *w, size_t n0, size_t n1);
void act_order_ref(struct act_form *f, enum weight_kind kind);
void quantise_ref(uint8_t *row, const struct act_form *f, const float *x);
void norm_ref(float *out, const float *x, const float *weight, size_t n, float eps);
void gated_norm_ref(float *out, const float *x, const float *weight, const float *z, size_t n,
                    float eps);
void swiglu_ref(float *out, const float *gate, const float *up, size_t n);
void sigmoid_mul_ref(float *out, const float *x, const float *gate, size_t n);
float dot_ref(const float *a, const float *b, size_t n);
void axpy_ref(float *y, float a, const float *x, size_t n);
void scale_ref(float *y, float a, size_t n);
float exp_sum_ref(float *x, float max, size_t n);
float max_ref(const float *x, size_t n);
bool all_finite_ref(const float *x, size_t n);
void round_ref(enum dtype t, float *v, size_t n);
void load_ref(float *dst, enum dtype t, const void *src, size_t n);
void store_ref(enum dtype t, void *dst, const float *src, size_t n);
void load_fp8_ref(float *dst, enum dtype t, const uint8_t *src, size_t n, float scale);
void conv_ref(float *out, const float *const *column, const float *weight, size_t weight_stride,
              size_t taps, size_t n);
void delta_step_ref(float *out, float *S, const float *q, const float *k, const float *v,
                    float decay, float beta, size_t dk, size_t dv, float *delta);
void matmul_ref(float *C, size_t ldc, const float *A, size_t lda, const float *B, size_t ldb,
                size_t m, size_t n, size_t k, bool accumulates);
void scores_ref(float *s, const float *q, const float *K, size_t n, size_t hd, float scale);
void weigh_ref(float *acc, float keep, const float *p, const float *V, size_t n, size_t hd);

#endif
