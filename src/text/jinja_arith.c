/* jinja_arith.c - the arithmetic operators, with Python's rules for each pair of types.
 *
 * Place: text, inside the Jinja engine. Integers are 64 bits; a result beyond is an error where
 *        Python would go on with a longer integer. */
#include <math.h>

#include "base/size.h"
#include "text/jinja_run.h"

static bool fail_types(struct jinja_run *j, enum jinja_op op, struct jinja_value a,
                       struct jinja_value b)
{
    static const char *const symbols[] = {"+", "-", "*", "/", "//", "%", "**"};

    if (a.kind == JINJA_UNDEFINED || b.kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, a.kind == JINJA_UNDEFINED ? a : b);
    }
    return jinja_fail(j, "unsupported operand types for %s: '%s' and '%s'", symbols[op],
                      jinja_type_name(a), jinja_type_name(b));
}

static bool fail_range(struct jinja_run *j)
{
    return jinja_fail(j, "an integer result leaves 64 bits");
}

/* Text joined to a Markup string is escaped first. */
static bool add_strings(struct jinja_run *j, struct jinja_value *out, struct jinja_value a,
                        struct jinja_value b)
{
    bool markup = a.as.string->is_markup || b.as.string->is_markup;

    if (markup && (!jinja_escape_html(j, &a, a) || !jinja_escape_html(j, &b, b))) {
        return false;
    }
    if (!jinja_string_concat(j, out, a.as.string, b.as.string)) {
        return false;
    }
    if (out->as.string != a.as.string && out->as.string != b.as.string) {
        out->as.string->is_markup = markup;
    }
    return true;
}

static bool repeat_string(struct jinja_run *j, struct jinja_value *out, struct jinja_string *s,
                          int64_t n)
{
    struct jinja_text t;
    bool markup = s->is_markup;

    jinja_text_init(&t, j);
    for (int64_t i = 0; i < n && s->len > 0 && !t.failed; i++) {
        jinja_text_put_string(&t, s);
    }
    if (!jinja_text_take(&t, out)) {
        return false;
    }
    out->as.string->is_markup = markup;
    return true;
}

static bool repeat_list(struct jinja_run *j, struct jinja_value *out, struct jinja_value list,
                        int64_t n)
{
    const struct jinja_list *l = list.as.list;

    if (!jinja_list_new(j, out, (enum jinja_kind)list.kind, 0)) {
        return false;
    }
    for (int64_t i = 0; i < n && l->n > 0; i++) {
        for (size_t k = 0; k < l->n; k++) {
            if (!jinja_charge(j, 1) || !jinja_list_push(j, out->as.list, l->items[k])) {
                return false;
            }
        }
    }
    return true;
}

static bool is_list(struct jinja_value v)
{
    return v.kind == JINJA_LIST || v.kind == JINJA_TUPLE;
}

static bool add_or_repeat(struct jinja_run *j, struct jinja_value *out, enum jinja_op op,
                          struct jinja_value a, struct jinja_value b)
{
    if (op == JINJA_ADD && a.kind == JINJA_STRING && b.kind == JINJA_STRING) {
        return add_strings(j, out, a, b);
    }
    if (op == JINJA_ADD && is_list(a) && a.kind == b.kind) {
        return jinja_list_concat(j, out, (enum jinja_kind)a.kind, a.as.list, b.as.list);
    }
    if (op == JINJA_MUL && jinja_is_integer(a)) { /* 3 * 'ab' */
        struct jinja_value swap = a;
        a = b;
        b = swap;
    }
    if (op == JINJA_MUL && jinja_is_integer(b) && a.kind == JINJA_STRING) {
        return repeat_string(j, out, a.as.string, jinja_integer(b));
    }
    if (op == JINJA_MUL && jinja_is_integer(b) && is_list(a)) {
        return repeat_list(j, out, a, jinja_integer(b));
    }
    return fail_types(j, op, a, b);
}

/* Towards minus infinity; b is not 0. */
static bool floor_divide(struct jinja_run *j, int64_t a, int64_t b, int64_t *quotient,
                         int64_t *remainder)
{
    if (b == -1) { /* INT64_MIN / -1 traps */
        *remainder = 0;
        return !__builtin_sub_overflow((int64_t)0, a, quotient) || fail_range(j);
    }
    *quotient = a / b;
    *remainder = a % b;
    if (*remainder != 0 && (*remainder < 0) != (b < 0)) {
        *remainder += b;
        (*quotient)--;
    }
    return true;
}

static bool int_power(struct jinja_run *j, struct jinja_value *out, int64_t base, int64_t exponent)
{
    int64_t result = 1;

    if (exponent < 0) {
        if (base == 0) {
            return jinja_fail(j, "0.0 cannot be raised to a negative power");
        }
        *out = jinja_float(pow((double)base, (double)exponent));
        return true;
    }
    if (base == 0 || base == 1 || base == -1) {
        *out = jinja_int(exponent == 0 ? 1 : base == -1 && exponent % 2 == 0 ? 1 : base);
        return true;
    }
    for (int64_t i = 0; i < exponent; i++) { /* at most 63 rounds before it overflows */
        if (__builtin_mul_overflow(result, base, &result)) {
            return fail_range(j);
        }
    }
    *out = jinja_int(result);
    return true;
}

static bool int_arithmetic(struct jinja_run *j, struct jinja_value *out, enum jinja_op op,
                           int64_t a, int64_t b)
{
    int64_t r = 0, other;
    bool overflow = false;

    if (b == 0 && (op == JINJA_DIV || op == JINJA_FLOORDIV || op == JINJA_MOD)) {
        return jinja_fail(j, "division by zero");
    }
    switch (op) {
    case JINJA_ADD:
        overflow = __builtin_add_overflow(a, b, &r);
        break;
    case JINJA_SUB:
        overflow = __builtin_sub_overflow(a, b, &r);
        break;
    case JINJA_MUL:
        overflow = __builtin_mul_overflow(a, b, &r);
        break;
    case JINJA_DIV: /* long double holds both exactly */
        *out = jinja_float((double)((long double)a / (long double)b));
        return true;
    case JINJA_FLOORDIV:
        if (!floor_divide(j, a, b, &r, &other)) {
            return false;
        }
        break;
    case JINJA_MOD:
        if (b == -1) {
            r = 0;
        } else if (!floor_divide(j, a, b, &other, &r)) {
            return false;
        }
        break;
    case JINJA_POW:
        return int_power(j, out, a, b);
    }
    *out = jinja_int(r);
    return !overflow || fail_range(j);
}

/* Python's float % and //: the remainder has the sign of b. */
static double float_mod(double a, double b)
{
    double m = fmod(a, b);

    if (m != 0.0) {
        return (b < 0) != (m < 0) ? m + b : m;
    }
    return copysign(0.0, b);
}

static double float_floordiv(double a, double b)
{
    double m = fmod(a, b);
    double q = (a - m) / b;
    double whole;

    if (m != 0.0 && (b < 0) != (m < 0)) {
        q -= 1.0;
    }
    if (q == 0.0) {
        return copysign(0.0, a / b);
    }
    whole = floor(q);
    return q - whole > 0.5 ? whole + 1.0 : whole;
}

static bool float_power(struct jinja_run *j, struct jinja_value *out, double a, double b)
{
    double r = pow(a, b);

    if (a == 0.0 && b < 0) {
        return jinja_fail(j, "0.0 cannot be raised to a negative power");
    }
    if (isnan(r) && !isnan(a) && !isnan(b)) {
        return jinja_fail(j, "a negative number to a fractional power is complex");
    }
    if (isinf(r) && isfinite(a) && isfinite(b)) {
        return jinja_fail(j, "a power is too large for a float");
    }
    *out = jinja_float(r);
    return true;
}

static bool float_arithmetic(struct jinja_run *j, struct jinja_value *out, enum jinja_op op,
                             double a, double b)
{
    if (b == 0.0 && (op == JINJA_DIV || op == JINJA_FLOORDIV || op == JINJA_MOD)) {
        return jinja_fail(j, "float division by zero");
    }
    switch (op) {
    case JINJA_ADD:
        *out = jinja_float(a + b);
        return true;
    case JINJA_SUB:
        *out = jinja_float(a - b);
        return true;
    case JINJA_MUL:
        *out = jinja_float(a * b);
        return true;
    case JINJA_DIV:
        *out = jinja_float(a / b);
        return true;
    case JINJA_FLOORDIV:
        *out = jinja_float(float_floordiv(a, b));
        return true;
    case JINJA_MOD:
        *out = jinja_float(float_mod(a, b));
        return true;
    case JINJA_POW:
        return float_power(j, out, a, b);
    }
    return false;
}

bool jinja_arithmetic(struct jinja_run *j, struct jinja_value *out, enum jinja_op op,
                      struct jinja_value a, struct jinja_value b)
{
    if (jinja_is_integer(a) && jinja_is_integer(b)) {
        return int_arithmetic(j, out, op, jinja_integer(a), jinja_integer(b));
    }
    if (jinja_is_number(a) && jinja_is_number(b)) {
        return float_arithmetic(j, out, op, jinja_real(a), jinja_real(b));
    }
    if (op == JINJA_MOD && a.kind == JINJA_STRING) {
        return jinja_format_percent(j, out, a.as.string, b);
    }
    return add_or_repeat(j, out, op, a, b);
}
