/* cpu_internal.h - what the files of the CPU backend share.
 *
 * Place:  backend/cpu, not for others. Each operation family (cpu_linear.c, cpu_delta.c, ...) offers
 *         three functions: check its operands, say how much scratch it wants, run.
 * Memory: one shared scratch and one per thread, sized by prepare() for the greediest op. */
#ifndef BACKEND_CPU_CPU_INTERNAL_H
#define BACKEND_CPU_CPU_INTERNAL_H

#include <stdarg.h>

#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/cpu_kernels.h"
#include "base/pool.h"

enum { TOP_K_MAX = 64, EXPERTS_MAX = 65536 };

struct cpu_backend {
    struct backend base;
    struct pool *pool;
    const struct cpu_kernels *kernels;
    enum cpu_activations activations;
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

/* "linear int4 g128 avx2", or "linear int4 g128 x int8 avx2" with int8 activations: joins family, kind
 * and instruction set to a static string. w NULL: "mixed". */
const char *cpu_kernel_name(const struct cpu_backend *be, const char *family,
                            const struct weight *w);

/* The same for families that have one kernel per instruction set: give CPU_NAMES("delta"). */
#define CPU_NAMES(family)                                                                          \
    ((const char *const[]){family " scalar", family " avx2", family " avxvnni", family " avx512",  \
                           family " amx"})
const char *cpu_isa_name(const struct cpu_backend *be, const char *const *names);

/* A fault of ours that shows only at run time, as an error and not as a crash. */
enum status cpu_broken(struct error *err, const struct op *op, const char *what);

/* --- inputs of matrix products (cpu_act.c) --- */

/* What a weight reads: its op's input as it is, or a copy that is gathered in the order of act-order,
 * rounded, or quantised. Weights with equal forms share one copy. */
struct cpu_input {
    enum { INPUT_AS_IS, INPUT_FLOATS, INPUT_INT8 } kind;
    const int32_t *perm; /* or NULL */
    size_t row_floats;   /* of the copy */
    struct act_form form;
};

struct cpu_input cpu_input_of(const struct cpu_backend *be, const struct weight *w);
bool cpu_input_equal(const struct cpu_input *a, const struct cpu_input *b);

/* Write row i (0-based) of the copy that begins at `copy`. `gathered` is scratch of n_in floats, used
 * when there is a perm. */
void cpu_input_write(const struct cpu_backend *be, const struct cpu_input *in, float *copy,
                     size_t i, const float *x, float *gathered);

/* All rows of x, in parallel; gathers in the threads' scratch (n_in floats from its start). */
void cpu_input_write_all(struct cpu_backend *be, const struct cpu_input *in, float *copy,
                         const float *x, size_t x_stride, size_t n_rows);

/* Make the job read `copy`, which holds rows as its x_rows numbers them. */
void cpu_input_use(struct linear_job *job, const struct cpu_input *in, const float *copy);

/* --- the matrix product as the families use it: rows in cache-sized blocks, then the kernel --- */

/* The job reads what `in`, the weight's own form, says: with is_ready that copy (or x as it is);
 * otherwise job->x is the op's input, and copies are made in scratch, block by block. */
size_t cpu_product_scratch(const struct cpu_backend *be, const struct weight *w, size_t rows,
                           bool is_ready);
void cpu_product(const struct cpu_backend *be, const struct linear_job *job, const struct weight *w,
                 size_t n0, size_t n1, bool is_ready, float *scratch);

/* Weight rows that a thread takes at the least, for products of n_x inputs. */
size_t cpu_rows_grain(size_t n_x);

/* One op family. */
struct cpu_family {
    enum status (*check)(struct cpu_backend *be, struct op *op, struct error *err);
    void (*need)(const struct cpu_backend *be, const struct op *op, size_t rows_max,
                 struct cpu_need *need); /* NULL: none */
    enum status (*run)(struct cpu_backend *be, const struct op *op, const struct step *step,
                       const struct state_pools *state, struct error *err);
};

extern const struct cpu_family cpu_embed, cpu_norm, cpu_linear, cpu_conv, cpu_delta, cpu_qkv,
    cpu_attention, cpu_route, cpu_experts, cpu_swiglu, cpu_add_shared, cpu_rows_check, cpu_gather,
    cpu_best;

#endif
