/* jinja_filters_misc.c - filters on single values and numbers: default, int, round, length, ...
 *
 * Place: text, inside the Jinja engine; also finds a filter among all tables. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "text/jinja_run.h"

#define FILTER(name)                                                                               \
    static bool name(struct jinja_run *j, const struct jinja_builtin *b, struct jinja_value self,  \
                     const struct jinja_value *arg, const struct jinja_call *call,                 \
                     struct jinja_value *out)

FILTER(filter_default)
{
    (void)b, (void)call;
    *out = self;
    if (self.kind == JINJA_UNDEFINED || (jinja_truth(arg[1]) && !jinja_truth(self))) {
        *out = arg[0].kind == JINJA_MISSING ? jinja_of_string(&j->empty) : arg[0];
    }
    return true;
}

FILTER(filter_length)
{
    size_t n;

    (void)b, (void)arg, (void)call;
    if (!jinja_length(j, &n, self)) {
        return false;
    }
    *out = jinja_int((int64_t)n);
    return true;
}

/* attr(name): the attribute alone, never the item. */
FILTER(filter_attr)
{
    bool found = false;

    (void)b, (void)call;
    if (self.kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, self);
    }
    if (arg[0].kind != JINJA_STRING) {
        return jinja_fail(j, "attribute name must be string, not '%s'", jinja_type_name(arg[0]));
    }
    if (!jinja_own_attribute(j, &found, out, self, arg[0].as.string)) {
        return false;
    }
    if (!found) {
        *out = jinja_undefined(JINJA_NO_ATTRIBUTE, self.kind, arg[0].as.string);
    }
    return true;
}

/* ---- numbers ---- */

FILTER(filter_abs)
{
    (void)b, (void)arg, (void)call;
    if (self.kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, self);
    }
    if (self.kind == JINJA_FLOAT) {
        *out = jinja_float(fabs(self.as.real));
        return true;
    }
    if (!jinja_is_integer(self)) {
        return jinja_fail(j, "bad operand type for abs(): '%s'", jinja_type_name(self));
    }
    *out = jinja_int(jinja_integer(self));
    return jinja_integer(self) >= 0 || jinja_arithmetic(j, out, JINJA_SUB, jinja_int(0), self);
}

static bool real_to_int(struct jinja_run *j, double d, struct jinja_value *out)
{
    if (!(d > -9.3e18 && d < 9.3e18) || d >= 9223372036854775808.0 || d < -9223372036854775808.0) {
        return jinja_fail(j, "a float does not fit in an integer of 64 bits");
    }
    *out = jinja_int((int64_t)d);
    return true;
}

FILTER(filter_int)
{
    struct jinja_value otherwise = arg[0].kind == JINJA_MISSING ? jinja_int(0) : arg[0];
    int base = 10;
    int64_t i;
    double d;

    (void)b, (void)call;
    if (self.kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, self);
    }
    if (arg[1].kind != JINJA_MISSING) {
        if (!jinja_is_integer(arg[1])) {
            return jinja_fail(j, "int: base must be an integer");
        }
        base = jinja_integer(arg[1]) == 0 ||
                       (jinja_integer(arg[1]) >= 2 && jinja_integer(arg[1]) <= 36)
                   ? (int)jinja_integer(arg[1])
                   : -1;
    }
    if (jinja_is_integer(self) || self.kind == JINJA_BIGINT) {
        *out = self.kind == JINJA_BIGINT ? self : jinja_int(jinja_integer(self));
        return true;
    }
    if (self.kind == JINJA_STRING) {
        if (base >= 0 && jinja_parse_int(jinja_slice_of(self.as.string), base, &i)) {
            *out = jinja_int(i);
            return true;
        }
        if (!jinja_parse_float(jinja_slice_of(self.as.string), &d) || isnan(d)) {
            *out = otherwise;
            return true;
        }
        return real_to_int(j, d, out);
    }
    if (self.kind != JINJA_FLOAT || isnan(self.as.real)) {
        *out = otherwise;
        return true;
    }
    return real_to_int(j, self.as.real, out);
}

FILTER(filter_float)
{
    double d;

    (void)b, (void)call;
    if (self.kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, self);
    }
    if (jinja_is_number(self)) {
        *out = jinja_float(jinja_real(self));
    } else if ((self.kind == JINJA_STRING || self.kind == JINJA_BIGINT) &&
               jinja_parse_float(jinja_slice_of(self.as.string), &d)) {
        *out = jinja_float(d);
    } else {
        *out = arg[0].kind == JINJA_MISSING ? jinja_float(0.0) : arg[0];
    }
    return true;
}

enum { ROUND_DIGITS_MAX = 323 }; /* a double has no digit beyond */

/* Python's round(): to the nearest, ties to even, on the exact value. */
static bool round_real(struct jinja_run *j, double d, int64_t digits, double *out)
{
    char text[800];

    if (!isfinite(d) || digits > ROUND_DIGITS_MAX) {
        *out = d;
        return true;
    }
    if (digits >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)digits, d);
        *out = strtod(text, NULL);
    } else if (digits < -308) {
        *out = copysign(0.0, d);
    } else {
        double scale = pow(10.0, (double)-digits);
        *out = nearbyint(d / scale) * scale;
        if (isinf(*out)) {
            return jinja_fail(j, "rounded value too large to represent");
        }
    }
    return true;
}

/* round(int, digits): only negative digits change it. */
static bool round_int(struct jinja_run *j, int64_t i, int64_t digits, struct jinja_value *out)
{
    int64_t scale = 1, rest, half;

    *out = jinja_int(i);
    if (digits >= 0) {
        return true;
    }
    if (digits < -18) {
        *out = jinja_int(0);
        return true;
    }
    for (int64_t k = digits; k < 0; k++) {
        scale *= 10;
    }
    rest = i % scale;
    half = scale / 2;
    i -= rest;
    if (rest > half || (rest == half && (i / scale) % 2 != 0)) {
        return jinja_arithmetic(j, out, JINJA_ADD, jinja_int(i), jinja_int(scale));
    }
    if (rest < -half || (rest == -half && (i / scale) % 2 != 0)) {
        return jinja_arithmetic(j, out, JINJA_SUB, jinja_int(i), jinja_int(scale));
    }
    *out = jinja_int(i);
    return true;
}

FILTER(filter_round)
{
    int64_t digits = 0;
    double d = 0, scale;

    (void)b, (void)call;
    if (self.kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, self);
    }
    if (!jinja_is_number(self) || (arg[0].kind != JINJA_MISSING && !jinja_is_integer(arg[0]))) {
        return jinja_fail(j, "round: a number is required");
    }
    digits = arg[0].kind == JINJA_MISSING ? 0 : jinja_integer(arg[0]);
    if (arg[1].kind == JINJA_MISSING || jinja_is_string(arg[1], "common")) {
        if (jinja_is_integer(self)) {
            return round_int(j, jinja_integer(self), digits, out);
        }
        if (!round_real(j, self.as.real, digits, &d)) {
            return false;
        }
        *out = jinja_float(d);
        return true;
    }
    if (!jinja_is_string(arg[1], "ceil") && !jinja_is_string(arg[1], "floor")) {
        return jinja_fail(j, "method must be common, ceil or floor");
    }
    scale = pow(10.0, (double)digits);
    d = jinja_real(self) * scale;
    if (!isfinite(d) || scale == 0.0) {
        return jinja_fail(j, "round: the value is out of range");
    }
    *out = jinja_float((jinja_is_string(arg[1], "ceil") ? ceil(d) : floor(d)) / scale);
    return true;
}

const struct jinja_builtin jinja_filters_misc[] = {
    {"abs", "", 0, filter_abs, 0},
    {"attr", "name", 1, filter_attr, 0},
    {"count", "", 0, filter_length, 0},
    {"d", "default_value,boolean", 0, filter_default, 0},
    {"default", "default_value,boolean", 0, filter_default, 0},
    {"float", "default", 0, filter_float, 0},
    {"int", "default,base", 0, filter_int, 0},
    {"length", "", 0, filter_length, 0},
    {"round", "precision,method", 0, filter_round, 0},
    {"random", "", 0, NULL, 0},
    {0}};

const struct jinja_builtin *jinja_filter_find(struct str name)
{
    const struct jinja_builtin *const tables[] = {jinja_filters_text, jinja_filters_list,
                                                  jinja_filters_lazy, jinja_filters_misc};

    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        const struct jinja_builtin *b = jinja_builtin_find(tables[i], name);
        if (b) {
            return b;
        }
    }
    return NULL;
}
