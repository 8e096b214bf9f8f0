/* cpu_test_util.h - what the tests of the CPU backend share: random data, poisoned buffers, weights,
 * and one-op plans. */
#ifndef BACKEND_CPU_CPU_TEST_UTIL_H
#define BACKEND_CPU_CPU_TEST_UTIL_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the four above */
#include <cmocka.h>

#include "backend/cpu/cpu_backend.h"
#include "base/arena.h"
#include "base/half.h"

static inline uint64_t test_next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* Uniform in [-1, 1). */
static inline float test_float(uint64_t *seed)
{
    return (float)(int32_t)(test_next(seed) >> 32) / 2147483648.0f;
}

static inline float *test_floats(size_t n, float size, uint64_t *seed)
{
    float *x = aligned_new(n * sizeof *x + 1);

    assert_non_null(x);
    for (size_t i = 0; i < n; i++) {
        x[i] = size * test_float(seed);
    }
    return x;
}

static inline void test_poison(void *data, size_t n_bytes)
{
    memset(data, 0xff, n_bytes); /* NaN as float32, bfloat16 and float16; -1 as int32 */
}

static inline float *test_poisoned(size_t n)
{
    float *x = aligned_new(n * sizeof *x + 1);

    assert_non_null(x);
    test_poison(x, n * sizeof *x);
    return x;
}

static inline struct operand test_operand(float *data, size_t cols, enum dtype round)
{
    return (struct operand){.data = data, .dtype = DTYPE_F32, .round = round, .cols = cols};
}

/* Largest |a - b| / (1 + |b|); INFINITY when one of them is not finite. */
static inline double test_error(const float *a, const float *b, size_t n)
{
    double worst = 0;

    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]) / (1.0 + fabs((double)b[i]));

        if (!isfinite(a[i]) || !isfinite(b[i])) {
            return INFINITY;
        }
        worst = d > worst ? d : worst;
    }
    return worst;
}

static inline struct backend *test_backend_with(enum cpu_isa isa, size_t n_threads,
                                                enum cpu_activations activations)
{
    struct cpu_backend_options o = {.n_threads = n_threads, .isa = isa, .activations = activations};
    struct backend *be;
    struct error err = {0};

    if (cpu_backend_new(&be, &o, &err) != OK) {
        fail_msg("%s", err.text);
    }
    return be;
}

static inline struct backend *test_backend(enum cpu_isa isa, size_t n_threads)
{
    return test_backend_with(isa, n_threads, CPU_ACTIVATIONS_F32);
}

/* Instruction sets of this machine, scalar first. */
enum { TEST_ISAS = 5 };

static inline size_t test_isas(enum cpu_isa out[TEST_ISAS])
{
    struct cpu_features has = cpu_detect();
    size_t n = 0;

    out[n++] = CPU_ISA_SCALAR;
    if (has.avx2) {
        out[n++] = CPU_ISA_AVX2;
    }
    if (has.avx_vnni) {
        out[n++] = CPU_ISA_AVX_VNNI;
    }
    if (has.avx512_vnni) {
        out[n++] = CPU_ISA_AVX512;
    }
    if (has.avx512_vnni && has.amx) {
        out[n++] = CPU_ISA_AMX;
    }
    return n;
}

static inline const char *test_isa_name(enum cpu_isa isa)
{
    static const char *const names[] = {"auto", "scalar", "avx2", "avxvnni", "avx512", "amx"};

    return names[isa];
}

static inline void test_prepare(struct backend *be, struct op *op, size_t rows_max)
{
    struct error err = {0};

    op->name = op->name ? op->name : "test";
    if (be->ops->check(be, op, &err) != OK || be->ops->prepare(be, op, 1, rows_max, 4096, &err)) {
        fail_msg("%s", err.text);
    }
    assert_non_null(op->kernel);
}

static inline void test_run(struct backend *be, const struct op *op, const struct step *step,
                            const struct state_pools *state)
{
    struct error err = {0};

    if (be->ops->run(be, op, step, state, &err) != OK) {
        fail_msg("%s", err.text);
    }
}

/* check() must refuse op with a text that holds `part`. */
static inline void test_refused(struct backend *be, struct op *op, const char *part)
{
    struct error err = {0};

    op->name = "test";
    assert_int_equal(be->ops->check(be, op, &err), ERR_UNSUPPORTED);
    if (!strstr(err.text, part)) {
        fail_msg("'%s' is not in '%s'", part, err.text);
    }
    assert_null(op->kernel);
}

/* A random weight; free with test_weight_release. Data starts 2 bytes past an aligned address, as it may
 * in a mapped file. */
struct test_weight {
    struct weight w;
    void *blocks[4];
};

enum test_kind {
    TEST_F32,
    TEST_BF16,
    TEST_F16,
    TEST_INT4,
    TEST_INT4_ZEROS,
    TEST_INT4_PERM,
    TEST_INT4_ROW, /* one group */
    TEST_INT8,
    TEST_INT8_ZEROS,
    TEST_KINDS
};

static inline const char *test_kind_name(enum test_kind kind)
{
    static const char *const names[TEST_KINDS] = {
        "f32", "bf16", "f16", "int4", "int4 zero", "int4 perm", "int4 row", "int8", "int8 zero"};

    return names[kind];
}

static inline bool test_kind_fits(enum test_kind kind, size_t n_in)
{
    return kind <= TEST_F16 || n_in % WEIGHT_BLOCK == 0;
}

static inline void test_dense(struct test_weight *t, enum dtype type, uint64_t *seed)
{
    size_t n = t->w.n_out * t->w.n_in, each = dtype_bytes(type);
    uint8_t *data = aligned_new(n * each + 2);

    assert_non_null(data);
    for (size_t i = 0; i < n; i++) {
        float v = test_float(seed);
        uint8_t one[4];

        dtype_store(type, one, 0, v);
        memcpy(data + 2 + i * each, one, each);
    }
    t->w.kind = WEIGHT_DENSE;
    t->w.dtype = type;
    t->w.data = data + 2;
    t->blocks[0] = data;
}

static inline void test_quantised(struct test_weight *t, enum test_kind kind, uint64_t *seed)
{
    bool is_int8 = kind == TEST_INT8 || kind == TEST_INT8_ZEROS;
    bool has_zeros = kind == TEST_INT4_ZEROS || kind == TEST_INT8_ZEROS;
    size_t n_in = t->w.n_in, n_out = t->w.n_out, n_groups;
    uint8_t *data, *scales;

    t->w.kind = is_int8 ? WEIGHT_INT8 : WEIGHT_INT4;
    t->w.dtype = n_out % 2 ? DTYPE_BF16 : DTYPE_F16;
    t->w.group = kind == TEST_INT4_ROW ? n_in : n_in % 64 == 0 ? 64 : 32;
    n_groups = weight_n_groups(&t->w);
    data = t->blocks[0] = aligned_new(n_out * weight_row_bytes(&t->w) + 2);
    scales = t->blocks[1] = aligned_new(n_out * n_groups * 2 + 2);
    for (size_t i = 0; i < n_out * weight_row_bytes(&t->w); i++) {
        data[2 + i] = (uint8_t)(test_next(seed) >> 40);
    }
    for (size_t i = 0; i < n_out * n_groups; i++) {
        uint8_t one[4];

        dtype_store(t->w.dtype, one, 0, (1.5f + test_float(seed)) / (is_int8 ? 256.0f : 16.0f));
        memcpy(scales + 2 + 2 * i, one, 2);
    }
    t->w.data = data + 2;
    t->w.scales = scales + 2;
    if (has_zeros) {
        uint8_t *zeros = t->blocks[2] = aligned_new(n_out * n_groups);

        for (size_t i = 0; i < n_out * n_groups; i++) {
            zeros[i] = (uint8_t)((test_next(seed) >> 40) % (is_int8 ? 256 : 16));
        }
        t->w.zeros = zeros;
    }
    if (kind == TEST_INT4_PERM) {
        int32_t *perm = t->blocks[3] = aligned_new(n_in * sizeof *perm);

        for (size_t i = 0; i < n_in; i++) {
            size_t j = (size_t)(test_next(seed) >> 33) % (i + 1);

            perm[i] = perm[j];
            perm[j] = (int32_t)i;
        }
        t->w.perm = perm;
    }
}

static inline void test_weight_make(struct test_weight *t, enum test_kind kind, size_t n_out,
                                    size_t n_in, uint64_t *seed)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

    memset(t, 0, sizeof *t);
    t->w.n_out = n_out;
    t->w.n_in = n_in;
    if (kind <= TEST_F16) {
        test_dense(t, types[kind], seed);
    } else {
        test_quantised(t, kind, seed);
    }
}

static inline void test_weight_release(struct test_weight *t)
{
    for (size_t i = 0; i < 4; i++) {
        free(t->blocks[i]);
    }
}

#endif
