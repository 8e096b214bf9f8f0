/* cpu_x86.h - the kernels for x86 that cpu_tables.c names. Contracts: cpu_kernels.h. */
#ifndef BACKEND_CPU_CPU_X86_H
#define BACKEND_CPU_CPU_X86_H

#include "backend/cpu/cpu_kernels.h"

/* linear_int8_avx2.c, linear_int8_avxvnni.c, linear_int8_avx512vnni.c */
void linear_int8_avx2(const struct linear_job *job, const struct weight *w, size_t n0, size_t n1);
void linear_int8_avxvnni(const struct linear_job *job, const struct weight *w, size_t n0,
                         size_t n1);
void linear_int8_avx512vnni(const struct linear_job *job, const struct weight *w, size_t n0,
                            size_t n1);
void act_order_avx2(struct act_form *f, enum weight_kind kind);
void act_order_avxvnni(struct act_form *f, enum weight_kind kind);
void act_order_avx512vnni(struct act_form *f, enum weight_kind kind);
void quantise_avx2(uint8_t *row, const struct act_form *f, const float *x);

/* linear_int8_amx.c */
void linear_int8_amx(const struct linear_job *job, const struct weight *w, size_t n0, size_t n1);

/* probe_amx.c */
bool amx_works(void);

/* linear_avx2.c */
void linear_avx2(const struct linear_job *job, const struct weight *w, size_t n0, size_t n1);

/* linear_avx512.c */
void linear_avx512(const struct linear_job *job, const struct weight *w, size_t n0, size_t n1);

/* matrix_avx2.c */
void delta_step_avx2(float *out, float *S, const float *q, const float *k, const float *v,
                     float decay, float beta, size_t dk, size_t dv, float *delta);
void matmul_avx2(float *C, size_t ldc, const float *A, size_t lda, const float *B, size_t ldb,
                 size_t m, size_t n, size_t k, bool accumulates);
void scores_avx2(float *s, const float *q, const float *K, size_t n, size_t hd, float scale);
void weigh_avx2(float *acc, float keep, const float *p, const float *V, size_t n, size_t hd);

/* matrix_avx512.c */
void delta_step_avx512(float *out, float *S, const float *q, const float *k, const float *v,
                       float decay, float beta, size_t dk, size_t dv, float *delta);
void matmul_avx512(float *C, size_t ldc, const float *A, size_t lda, const float *B, size_t ldb,
                   size_t m, size_t n, size_t k, bool accumulates);
void scores_avx512(float *s, const float *q, const float *K, size_t n, size_t hd, float scale);
void weigh_avx512(float *acc, float keep, const float *p, const float *V, size_t n, size_t hd);

/* rows_avx2.c */
float dot_avx2(const float *a, const float *b, size_t n);
void norm_avx2(float *out, const float *x, const float *weight, size_t n, float eps);
void gated_norm_avx2(float *out, const float *x, const float *weight, const float *z, size_t n,
                     float eps);
void swiglu_avx2(float *out, const float *gate, const float *up, size_t n);
void sigmoid_mul_avx2(float *out, const float *x, const float *gate, size_t n);
void axpy_avx2(float *y, float a, const float *x, size_t n);
void scale_avx2(float *y, float a, size_t n);
float exp_sum_avx2(float *x, float max, size_t n);
float max_avx2(const float *x, size_t n);
bool all_finite_avx2(const float *x, size_t n);
void round_avx2(enum dtype t, float *v, size_t n);
void load_avx2(float *dst, enum dtype t, const void *src, size_t n);
void store_avx2(enum dtype t, void *dst, const float *src, size_t n);
void load_fp8_avx2(float *dst, enum dtype t, const uint8_t *src, size_t n, float scale);
void conv_avx2(float *out, const float *const *column, const float *weight, size_t weight_stride,
               size_t taps, size_t n);

#endif
