/* cpu_check.c - what every op family checks of its operands, and the names of kernels.
 *
 * Place: backend/cpu. Called while the plan is built; a plan that passed never fails for types or
 *        shapes later. */
#include <stdio.h>
#include <string.h>

#include "backend/cpu/cpu_internal.h"

enum status cpu_refuse(struct error *err, const struct op *op, const char *fmt, ...)
{
    char text[256];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return error_set(err, ERR_UNSUPPORTED, "%s '%s' of layer %d: %s", op_kind_name(op->kind),
                     op->name ? op->name : "?", op->layer, text);
}

enum status cpu_broken(struct error *err, const struct op *op, const char *what)
{
    return error_set(err, ERR_INTERNAL, "%s '%s' of layer %d: %s", op_kind_name(op->kind),
                     op->name ? op->name : "?", op->layer, what);
}

enum status cpu_check_operand(const struct op *op, const char *what, const struct operand *o,
                              size_t cols, struct error *err)
{
    if (!o->data) {
        return cpu_refuse(err, op, "%s has no buffer", what);
    }
    if (o->dtype != DTYPE_F32) {
        return cpu_refuse(err, op, "%s is stored as %s, the CPU computes on float32", what,
                          dtype_name(o->dtype));
    }
    if (o->round != DTYPE_F32 && o->round != DTYPE_F16 && o->round != DTYPE_BF16) {
        return cpu_refuse(err, op, "%s cannot be rounded to %s", what, dtype_name(o->round));
    }
    if (o->cols != cols || cols == 0) {
        return cpu_refuse(err, op, "%s has %zu columns, %zu expected", what, o->cols, cols);
    }
    return OK;
}

enum status cpu_check_exact(const struct op *op, const char *what, const struct operand *o,
                            size_t cols, struct error *err)
{
    enum status rc = cpu_check_operand(op, what, o, cols, err);

    if (rc == OK && o->round != DTYPE_F32) {
        rc = cpu_refuse(err, op, "%s must be float32, not %s", what, dtype_name(o->round));
    }
    return rc;
}

static enum status check_quantised(const struct op *op, const char *what, const struct weight *w,
                                   struct error *err)
{
    if (!weight_int4_fits(w->n_in, w->group) || w->group > w->n_in) {
        return cpu_refuse(err, op, "%s: %zu inputs in groups of %zu do not fit blocks of %d", what,
                          w->n_in, w->group, WEIGHT_BLOCK);
    }
    if (!w->scales) {
        return cpu_refuse(err, op, "%s has no scales", what);
    }
    for (size_t k = 0; w->perm && k < w->n_in; k++) {
        if (w->perm[k] < 0 || (size_t)w->perm[k] >= w->n_in) {
            return cpu_refuse(err, op, "%s: input %zu is taken from column %d", what, k,
                              w->perm[k]);
        }
    }
    return OK;
}

enum status cpu_check_weight(const struct op *op, const char *what, const struct weight *w,
                             size_t n_in, struct error *err)
{
    if (!w->data || w->n_in == 0 || w->n_out == 0) {
        return cpu_refuse(err, op, "%s is empty", what);
    }
    if (w->dtype != DTYPE_F32 && w->dtype != DTYPE_F16 && w->dtype != DTYPE_BF16) {
        return cpu_refuse(err, op, "%s: no kernel for %s", what, dtype_name(w->dtype));
    }
    if (n_in != 0 && w->n_in != n_in) {
        return cpu_refuse(err, op, "%s has %zu inputs, its operand %zu columns", what, w->n_in,
                          n_in);
    }
    switch (w->kind) {
    case WEIGHT_DENSE:
        return w->perm ? cpu_refuse(err, op, "%s is dense and permuted", what) : OK;
    case WEIGHT_INT4:
    case WEIGHT_INT8:
        return check_quantised(op, what, w, err);
    case WEIGHT_NONE:
        break;
    }
    return cpu_refuse(err, op, "%s has no kind", what);
}

enum status cpu_check_all_rows(const struct op *op, struct error *err)
{
    return op->rows == ROWS_ALL ? OK : cpu_refuse(err, op, "works on all rows of a step only");
}

static const struct cpu_kernels *const isa_order[] = {
    &cpu_kernels_scalar,
#if defined(__x86_64__)
    &cpu_kernels_avx2,   &cpu_kernels_avxvnni, &cpu_kernels_avx512, &cpu_kernels_amx,
#endif
};

/* Place of the backend's instruction set in CPU_NAMES. */
static size_t isa_index(const struct cpu_backend *be)
{
    size_t i = 0;

    while (isa_order[i] != be->kernels) {
        i++;
    }
    return i;
}

const char *cpu_isa_name(const struct cpu_backend *be, const char *const *names)
{
    return names[isa_index(be)];
}

/* op->kernel is a static string, so the names are a table: every family that reads weights times every
 * kind times every instruction set. */
#define NAME_ISAS(family, kind, activations)                                                       \
    {                                                                                              \
        family, kind, activations[0] != 0,                                                         \
        {                                                                                          \
            family " " kind activations " scalar", family " " kind activations " avx2",            \
                family " " kind activations " avxvnni", family " " kind activations " avx512",     \
                family " " kind activations " amx"                                                 \
        }                                                                                          \
    }
#define NAME_QUANTISED(family, activations)                                                        \
    NAME_ISAS(family, "int4", activations), NAME_ISAS(family, "int4 row", activations),            \
        NAME_ISAS(family, "int4 g32", activations), NAME_ISAS(family, "int4 g64", activations),    \
        NAME_ISAS(family, "int4 g128", activations), NAME_ISAS(family, "int8", activations),       \
        NAME_ISAS(family, "int8 row", activations), NAME_ISAS(family, "int8 g32", activations),    \
        NAME_ISAS(family, "int8 g64", activations), NAME_ISAS(family, "int8 g128", activations)
#define NAME_KINDS(family)                                                                         \
    NAME_ISAS(family, "float32", ""), NAME_ISAS(family, "float16", ""),                            \
        NAME_ISAS(family, "bfloat16", ""), NAME_ISAS(family, "mixed", ""),                         \
        NAME_QUANTISED(family, ""), NAME_QUANTISED(family, " x int8")

const char *cpu_kernel_name(const struct cpu_backend *be, const char *family,
                            const struct weight *w)
{
    static const struct {
        const char *family, *kind;
        bool is_int8; /* the activations */
        const char *names[5];
    } table[] = {
        NAME_KINDS("linear"),
        NAME_KINDS("route"),
        NAME_KINDS("experts"),
        NAME_KINDS("embed"),
    };
    const char *kind = w ? weight_kind_name(w) : "mixed";
    bool is_int8 = w && strcmp(family, "embed") != 0 && cpu_input_of(be, w).kind == INPUT_INT8;

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (strcmp(table[i].family, family) == 0 && strcmp(table[i].kind, kind) == 0 &&
            table[i].is_int8 == is_int8) {
            return table[i].names[isa_index(be)];
        }
    }
    return family;
}
