/* cpu_internal.h - what the files of the CPU backend share.
 *
 * Place:  backend/cpu, not for others. Each operation family (cpu_linear.c, cpu_delta.c, ...) offers
 *         three functions: check its operands, say how much scratch it wants, run.
 * Memory: one shared scratch and one per thread, sized by prepare() for the greediest op. */
#ifndef BACKEND_CPU_CPU_INTERNAL_H
#define BACKEND_CPU_CPU_INTERNAL_H

#include <stdarg.h>

#include "backend/backend.h"
#include "backend/cpu/cpu_kernels.h"
#include "base/pool.h"

struct cpu_backend {
    struct backend base;
    struct pool *pool;
    const struct cpu_kernels *kernels;
    size_t n_threads;
    size_t rows_max, context_max; /* 0 before prepare() */
    float *shared;                /* scratch of the op as a whole */
    float *scratch;               /* n_threads times scratch_floats */
    size_t scratch_floats;
};

/* Scratch of one op in floats. Sizes saturate, so that absurd ones fail as "no memory". */
struct cpu_need {
    size_t shared, per_thread;
};

size_t cpu_times(size_t a, size_t b);
size_t cpu_plus(size_t a, size_t b);

static inline float *cpu_scratch(const struct cpu_backend *be, size_t thread)
{
    return be->scratch + thread * be->scratch_floats;
}

/* Run fn over [0, n) on the pool, or inline when `work` (multiply-adds, about) is less than what
 * waking the workers costs. Each index must be computed alike whatever the split. */
void cpu_parallel(struct cpu_backend *be, size_t n, size_t grain, size_t work, pool_fn *fn,
                  void *ctx);

size_t cpu_op_rows(const struct op *op, const struct step *step);

/* Refuse an op: "linear 'o_proj' of layer 3: ...". Returns ERR_UNSUPPORTED. */
enum status cpu_refuse(struct error *err, const struct op *op, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Operand checks for check(): a float32 buffer of `cols` whose values are rounded to F32, F16 or
 * BF16; and a weight of a kind that the kernels read, with n_in inputs (0: any). */
enum status cpu_check_operand(const struct op *op, const char *what, const struct operand *o,
                              size_t cols, struct error *err);
enum status cpu_check_exact(const struct op *op, const char *what, const struct operand *o,
                            size_t cols, struct error *err); /* round must be F32 */
enum status cpu_check_weight(const struct op *op, const char *what, const struct weight *w,
                             size_t n_in, struct error *err);
enum status cpu_check_all_rows(const struct op *op, struct error *err);

/* "linear int4 g128 avx2": joins family, kind and instruction set to a static string. */
const char *cpu_kernel_name(const struct cpu_backend *be, const char *family,
                            const struct weight *w);

/* The same for families that have one kernel per instruction set. */
static inline const char *cpu_isa_name(const struct cpu_backend *be, const char *scalar,
                                       const char *avx2)
{
    return be->kernels == &cpu_kernels_scalar ? scalar : avx2;
}

/* A fault of ours that shows only at run time, as an error and not as a crash. */
enum status cpu_broken(struct error *err, const struct op *op, const char *what);

/* The matrix product as the families use it: rows in cache-sized blocks, then the kernel. With w->perm
 * and x_permuted false, the inputs are gathered into scratch block by block. */
size_t cpu_product_scratch(const struct weight *w, size_t rows);
void cpu_product(const struct cpu_backend *be, const struct linear_job *job, const struct weight *w,
                 size_t n0, size_t n1, bool x_permuted, float *scratch);

/* One op family. */
struct cpu_family {
    enum status (*check)(struct cpu_backend *be, struct op *op, struct error *err);
    void (*need)(const struct cpu_backend *be, const struct op *op, size_t rows_max,
                 struct cpu_need *need); /* NULL: none */
    enum status (*run)(struct cpu_backend *be, const struct op *op, const struct step *step,
                       const struct state_pools *state, struct error *err);
};

extern const struct cpu_family cpu_embed, cpu_norm, cpu_linear, cpu_conv, cpu_delta, cpu_qkv,
    cpu_attention, cpu_route, cpu_experts, cpu_swiglu, cpu_add_shared, cpu_rows_check, cpu_gather;

#endif
