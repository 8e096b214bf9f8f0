/* cpu_backend.c - the CPU as a backend: options, scratch, dispatch to the op families.
 *
 * Place: backend/cpu. A plan is checked op by op, then prepare() sizes all scratch, then run() is
 *        called for each op of each step. Buffers of this backend are plain host memory. */
#include "backend/cpu/cpu_backend.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu_internal.h"
#include "backend/cpu/cpu_x86.h"
#include "base/arena.h"
#include "base/size.h"

/* Below this many multiply-adds a region costs more than a second core saves: waking the workers
 * takes about a microsecond, in which one core does some ten thousand. */
enum { INLINE_WORK = 24 * 1024 };

static const struct cpu_family *family_of(enum op_kind kind)
{
    static const struct cpu_family *const families[OP_KIND_COUNT] = {
        [OP_EMBED] = &cpu_embed,           [OP_NORM] = &cpu_norm,
        [OP_LINEAR] = &cpu_linear,         [OP_CONV] = &cpu_conv,
        [OP_DELTA] = &cpu_delta,           [OP_QKV] = &cpu_qkv,
        [OP_ATTENTION] = &cpu_attention,   [OP_ROUTE] = &cpu_route,
        [OP_EXPERTS] = &cpu_experts,       [OP_SWIGLU] = &cpu_swiglu,
        [OP_ADD_SHARED] = &cpu_add_shared, [OP_CHECK] = &cpu_rows_check,
        [OP_GATHER] = &cpu_gather,         [OP_BEST] = &cpu_best,
    };

    return (unsigned)kind < OP_KIND_COUNT ? families[kind] : NULL;
}

size_t cpu_times(size_t a, size_t b)
{
    size_t r;

    return size_mul(&r, a, b) ? r : SIZE_MAX;
}

size_t cpu_plus(size_t a, size_t b)
{
    size_t r;

    return size_add(&r, a, b) ? r : SIZE_MAX;
}

void cpu_parallel(struct cpu_backend *be, size_t n, size_t grain, size_t work, pool_fn *fn,
                  void *ctx)
{
    if (n == 0) {
        return;
    }
    if (be->n_threads == 1 || n <= grain || work < INLINE_WORK) {
        fn(ctx, 0, n, 0);
    } else {
        pool_run(be->pool, n, grain, fn, ctx);
    }
}

size_t cpu_op_rows(const struct op *op, const struct step *step)
{
    return op->rows == ROWS_OUT ? step->n_out_rows : step->n_rows;
}

static enum status cpu_check(struct backend *base, struct op *op, struct error *err)
{
    struct cpu_backend *be = (struct cpu_backend *)base;
    const struct cpu_family *family = family_of(op->kind);

    op->kernel = NULL;
    if (!family) {
        return error_set(err, ERR_UNSUPPORTED, "the CPU has no operation of kind %d",
                         (int)op->kind);
    }
    return family->check(be, op, err);
}

static enum status grow(float **data, size_t n_floats, const char *what, struct error *err)
{
    size_t bytes = cpu_times(n_floats, sizeof **data);

    free(*data);
    *data = bytes > SIZE_MAX / 2 ? NULL : aligned_new(bytes ? bytes : 64);
    if (!*data) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate %zu bytes of %s scratch", bytes,
                         what);
    }
    return OK;
}

static enum status cpu_prepare(struct backend *base, const struct op *ops, size_t n_ops,
                               size_t rows_max, size_t context_max, struct error *err)
{
    struct cpu_backend *be = (struct cpu_backend *)base;
    struct cpu_need most = {0, 0};
    enum status rc;

    for (size_t i = 0; i < n_ops; i++) {
        const struct cpu_family *family = family_of(ops[i].kind);
        struct cpu_need need = {0, 0};

        if (family && family->need) {
            family->need(be, &ops[i], rows_max, &need);
        }
        most.shared = size_max(most.shared, need.shared);
        most.per_thread = size_max(most.per_thread, need.per_thread);
    }
    /* Whole cache lines per thread, so that threads never share one. */
    most.per_thread = cpu_plus(most.per_thread, 32) & ~(size_t)15;
    be->rows_max = 0;
    rc = grow(&be->shared, most.shared, "shared", err);
    if (rc == OK) {
        rc = grow(&be->scratch, cpu_times(most.per_thread, be->n_threads), "thread", err);
    }
    if (rc != OK) {
        return rc;
    }
    be->scratch_floats = most.per_thread;
    be->rows_max = rows_max;
    be->context_max = context_max;
    return OK;
}

static enum status cpu_run(struct backend *base, const struct op *op, const struct step *step,
                           const struct state_pools *state, struct error *err)
{
    struct cpu_backend *be = (struct cpu_backend *)base;

    assert(op->kernel && "check() comes before run()");
    if (step->n_rows > be->rows_max || step->n_out_rows > be->rows_max) {
        return cpu_broken(err, op, "the step has more rows than were prepared for");
    }
    if (cpu_op_rows(op, step) == 0) {
        return OK;
    }
    return family_of(op->kind)->run(be, op, step, state, err);
}

static void *cpu_buffer_new(struct backend *be, size_t n_bytes)
{
    (void)be;
    return aligned_new(n_bytes);
}

static void cpu_buffer_free(struct backend *be, void *data)
{
    (void)be;
    free(data);
}

static void cpu_copy(struct backend *be, void *dst, const void *src, size_t n_bytes)
{
    (void)be;
    memmove(dst, src, n_bytes);
}

static void cpu_awake(struct backend *base, bool is_awake)
{
    pool_awake(((struct cpu_backend *)base)->pool, is_awake);
}

static void cpu_free(struct backend *base)
{
    struct cpu_backend *be = (struct cpu_backend *)base;

    if (!be) {
        return;
    }
    pool_free(be->pool);
    free(be->shared);
    free(be->scratch);
    free(be);
}

static const struct backend_ops cpu_ops = {
    .name = "cpu",
    .check = cpu_check,
    .prepare = cpu_prepare,
    .run = cpu_run,
    .buffer_new = cpu_buffer_new,
    .buffer_free = cpu_buffer_free,
    .copy = cpu_copy,
    .read = cpu_copy, /* one memory: all three are the same */
    .write = cpu_copy,
    .free = cpu_free,
    .awake = cpu_awake,
};

static const struct cpu_kernels *kernels_of(enum cpu_isa isa)
{
    switch (isa) {
    case CPU_ISA_SCALAR:
        return &cpu_kernels_scalar;
#if defined(__x86_64__)
    case CPU_ISA_AVX2:
        return cpu_detect().avx2 ? &cpu_kernels_avx2 : NULL;
    case CPU_ISA_AVX_VNNI:
        return cpu_detect().avx_vnni ? &cpu_kernels_avxvnni : NULL;
    case CPU_ISA_AVX512:
        return cpu_detect().avx512_vnni ? &cpu_kernels_avx512 : NULL;
    case CPU_ISA_AMX:
        return cpu_detect().avx512_vnni && cpu_detect().amx && amx_works() ? &cpu_kernels_amx
                                                                           : NULL;
#endif
    default:
        return NULL;
    }
}

static enum status pick_kernels(struct cpu_backend *be, enum cpu_isa isa, struct error *err)
{
    static const struct {
        enum cpu_isa isa;
        const char *text;
    } by_speed[] = {
        {CPU_ISA_AMX, "AMX for int8 that works"},
        {CPU_ISA_AVX512, "AVX-512 with VNNI"},
        {CPU_ISA_AVX_VNNI, "AVX-VNNI"},
        {CPU_ISA_AVX2, "AVX2 with FMA and F16C"},
        {CPU_ISA_SCALAR, ""},
    };

    for (size_t i = 0; i < sizeof by_speed / sizeof by_speed[0] && !be->kernels; i++) {
        if (isa != CPU_ISA_AUTO && isa != by_speed[i].isa) {
            continue;
        }
        be->kernels = kernels_of(by_speed[i].isa);
        if (!be->kernels && isa != CPU_ISA_AUTO) {
            return error_set(err, ERR_UNSUPPORTED, "this processor has no %s", by_speed[i].text);
        }
    }
    return be->kernels ? OK : error_set(err, ERR_UNSUPPORTED, "no instruction set %d", (int)isa);
}

enum status cpu_backend_new(struct backend **out, const struct cpu_backend_options *o,
                            struct error *err)
{
    struct cpu_backend *be = calloc(1, sizeof *be);
    enum status rc;

    *out = NULL;
    if (!be) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the CPU backend");
    }
    be->base.ops = &cpu_ops;
    be->activations = o->activations;
    rc = pick_kernels(be, o->isa, err);
    if (rc == OK) {
        rc = pool_new(&be->pool, o->n_threads, err);
    }
    if (rc != OK) {
        error_prefix(err, "cannot start the CPU backend");
        cpu_free(&be->base);
        return rc;
    }
    be->n_threads = pool_threads(be->pool);
    *out = &be->base;
    return OK;
}

struct pool *cpu_backend_pool(struct backend *be)
{
    return ((struct cpu_backend *)be)->pool;
}

const char *cpu_backend_isa(struct backend *be)
{
    return ((struct cpu_backend *)be)->kernels->isa;
}

enum status cpu_backend_set_threads(struct backend *base, size_t n_threads, struct error *err)
{
    struct cpu_backend *be = (struct cpu_backend *)base;
    enum status rc = pool_set_threads(be->pool, n_threads, err);

    be->n_threads = pool_threads(be->pool); /* also after a failure: those that there are */
    return rc;
}
