/* cuda_checks.c - what families of operations check of their operands and weights.
 *
 * Place: backend/cuda; called while a plan is built, so that no step fails for types or shapes. The rules
 *        are the CPU's, except that what lies on the card (an act-order permutation) cannot be looked
 *        at here: the loader has checked it. */
#include <stdarg.h>
#include <stdio.h>

#include "backend/cuda/cuda_internal.h"

enum status cuda_refuse(struct error *err, const struct op *op, const char *format, ...)
{
    char text[256];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return error_set(err, ERR_UNSUPPORTED, "%s '%s' of layer %d: %s", op_kind_name(op->kind),
                     op->name ? op->name : "?", op->layer, text);
}

static bool is_compute_type(enum dtype t)
{
    return t == DTYPE_F32 || t == DTYPE_F16 || t == DTYPE_BF16;
}

enum status cuda_check_operand(const struct op *op, const char *what, const struct operand *o,
                               size_t cols, struct error *err)
{
    if (!o->data) {
        return cuda_refuse(err, op, "%s has no buffer", what);
    }
    if (o->dtype != DTYPE_F32) {
        return cuda_refuse(err, op, "%s is stored as %s, the kernels take float32", what,
                           dtype_name(o->dtype));
    }
    if (!is_compute_type(o->round)) {
        return cuda_refuse(err, op, "%s cannot be rounded to %s", what, dtype_name(o->round));
    }
    if (o->cols != cols || cols == 0) {
        return cuda_refuse(err, op, "%s has %zu columns, %zu expected", what, o->cols, cols);
    }
    return OK;
}

enum status cuda_check_exact(const struct op *op, const char *what, const struct operand *o,
                             size_t cols, struct error *err)
{
    enum status rc = cuda_check_operand(op, what, o, cols, err);

    if (rc == OK && o->round != DTYPE_F32) {
        rc = cuda_refuse(err, op, "%s must be float32, not %s", what, dtype_name(o->round));
    }
    return rc;
}

static enum status check_quantised(const struct op *op, const char *what, const struct weight *w,
                                   struct error *err)
{
    if (!weight_int4_fits(w->n_in, w->group) || w->group > w->n_in) {
        return cuda_refuse(err, op, "%s: %zu inputs in groups of %zu do not fit blocks of %d", what,
                           w->n_in, w->group, WEIGHT_BLOCK);
    }
    return w->scales ? OK : cuda_refuse(err, op, "%s has no scales", what);
}

enum status cuda_check_weight(const struct op *op, const char *what, const struct weight *w,
                              size_t n_in, struct error *err)
{
    if (!w->data || w->n_in == 0 || w->n_out == 0) {
        return cuda_refuse(err, op, "%s is empty", what);
    }
    if (w->n_in > INT32_MAX || w->n_out > INT32_MAX) {
        return cuda_refuse(err, op, "%s has %zu rows of %zu inputs, at most %d are possible", what,
                           w->n_out, w->n_in, INT32_MAX);
    }
    if (!is_compute_type(w->dtype)) {
        return cuda_refuse(err, op, "%s: no kernel for %s", what, dtype_name(w->dtype));
    }
    if (n_in != 0 && w->n_in != n_in) {
        return cuda_refuse(err, op, "%s has %zu inputs, its operand %zu columns", what, w->n_in,
                           n_in);
    }
    switch (w->kind) {
    case WEIGHT_DENSE:
        return w->perm ? cuda_refuse(err, op, "%s is dense and permuted", what) : OK;
    case WEIGHT_INT4:
    case WEIGHT_INT8:
        return check_quantised(op, what, w, err);
    case WEIGHT_NONE:
        break;
    }
    return cuda_refuse(err, op, "%s has no kind", what);
}
