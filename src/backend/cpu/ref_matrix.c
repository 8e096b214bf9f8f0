/* ref_matrix.c - the scalar matrix kernels: linear layers, delta rule, attention.
 *
 * Place:  backend/cpu; the reference that linear_avx2.c and matrix_avx2.c are tested against.
 * Source: delta rule: Yang et al., "Gated Delta Networks" (arXiv 2412.06464), state as [key][value]. */
#include "backend/cpu/cpu_kernels.h"

void linear_ref(const struct linear_job *job, const struct weight *w, size_t n0, size_t n1)
{
    for (size_t n = n0; n < n1; n++) {
        weight_row_stored_f32(w, n, job->tile);
        for (size_t i = 0; i < job->n_x; i++) {
            float sum = dot_ref(job->tile, linear_job_x(job, i), w->n_in);
            float *out = job->out + i * job->out_stride + n;

            *out = job->accumulates ? *out + sum : sum;
        }
    }
}

/* The decay is applied where S is used, which saves writing the decayed S and reading it again:
 * (decay * S)'k = decay * (S'k). */
void delta_step_ref(float *out, float *S, const float *q, const float *k, const float *v,
                    float decay, float beta, size_t dk, size_t dv, float *delta)
{
    for (size_t j = 0; j < dv; j++) {
        delta[j] = 0;
        out[j] = 0;
    }
    for (size_t i = 0; i < dk; i++) {
        axpy_ref(delta, k[i], S + i * dv, dv);
    }
    for (size_t j = 0; j < dv; j++) {
        delta[j] = beta * (v[j] - decay * delta[j]);
    }
    for (size_t i = 0; i < dk; i++) {
        float *row = S + i * dv;

        for (size_t j = 0; j < dv; j++) {
            row[j] = decay * row[j] + k[i] * delta[j];
            out[j] += q[i] * row[j];
        }
    }
}

void matmul_ref(float *C, size_t ldc, const float *A, size_t lda, const float *B, size_t ldb,
                size_t m, size_t n, size_t k, bool accumulates)
{
    for (size_t i = 0; i < m; i++) {
        float *row = C + i * ldc;

        if (!accumulates) {
            for (size_t j = 0; j < n; j++) {
                row[j] = 0;
            }
        }
        for (size_t t = 0; t < k; t++) {
            axpy_ref(row, A[i * lda + t], B + t * ldb, n);
        }
    }
}

void scores_ref(float *s, const float *q, const float *K, size_t n, size_t hd, float scale)
{
    for (size_t j = 0; j < n; j++) {
        s[j] = scale * dot_ref(q, K + j * hd, hd);
    }
}

void weigh_ref(float *acc, float keep, const float *p, const float *V, size_t n, size_t hd)
{
    scale_ref(acc, keep, hd);
    for (size_t j = 0; j < n; j++) {
        axpy_ref(acc, p[j], V + j * hd, hd);
    }
}
