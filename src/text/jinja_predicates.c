/* jinja_predicates.c - the tests of "x is test": defined, string, mapping, in, eq, ...
 *
 * Place: text, inside the Jinja engine; a table row per test. */
#include <math.h>

#include "text/jinja_run.h"

#define TEST(name)                                                                                 \
    static bool name(struct jinja_run *j, const struct jinja_builtin *b, struct jinja_value self,  \
                     const struct jinja_value *arg, const struct jinja_call *call,                 \
                     struct jinja_value *out)

enum kind_question {
    IS_DEFINED,
    IS_UNDEFINED,
    IS_NONE,
    IS_BOOLEAN,
    IS_TRUE,
    IS_FALSE,
    IS_INTEGER,
    IS_FLOAT,
    IS_NUMBER,
    IS_STRING,
    IS_MAPPING,
    IS_SEQUENCE,
    IS_ITERABLE,
    IS_CALLABLE,
    IS_ESCAPED
};

static bool answer(enum kind_question q, struct jinja_value v)
{
    enum jinja_kind k = (enum jinja_kind)v.kind;

    switch (q) {
    case IS_DEFINED:
        return k != JINJA_UNDEFINED;
    case IS_UNDEFINED:
        return k == JINJA_UNDEFINED;
    case IS_NONE:
        return k == JINJA_NONE;
    case IS_BOOLEAN:
        return k == JINJA_BOOL;
    case IS_TRUE:
        return k == JINJA_BOOL && v.as.boolean;
    case IS_FALSE:
        return k == JINJA_BOOL && !v.as.boolean;
    case IS_INTEGER:
        return k == JINJA_INT || k == JINJA_BIGINT;
    case IS_FLOAT:
        return k == JINJA_FLOAT;
    case IS_NUMBER: /* bool is one in Python */
        return jinja_is_number(v) || k == JINJA_BIGINT;
    case IS_STRING:
        return k == JINJA_STRING;
    case IS_MAPPING:
        return k == JINJA_DICT;
    case IS_SEQUENCE: /* has a length and [ ]; undefined has both */
        return k == JINJA_STRING || k == JINJA_LIST || k == JINJA_TUPLE || k == JINJA_DICT ||
               k == JINJA_RANGE || k == JINJA_UNDEFINED;
    case IS_ITERABLE:
        return jinja_iterable(v);
    case IS_CALLABLE:
        return k == JINJA_FUNCTION || k == JINJA_METHOD || k == JINJA_MACRO || k == JINJA_LOOP ||
               k == JINJA_UNDEFINED;
    case IS_ESCAPED:
    default:
        return k == JINJA_STRING && v.as.string->is_markup;
    }
}

TEST(test_kind)
{
    (void)j, (void)arg, (void)call;
    *out = jinja_bool(answer((enum kind_question)b->detail, self));
    return true;
}

/* odd (b->detail 1), even (0) and divisibleby (2): by way of %, so a string raises as in Python. */
TEST(test_remainder)
{
    struct jinja_value by = b->detail == 2 ? arg[0] : jinja_int(2), rest;
    bool equal;

    (void)call;
    if (!jinja_arithmetic(j, &rest, JINJA_MOD, self, by) ||
        !jinja_equal(j, &equal, rest, jinja_int(b->detail == 1))) {
        return false;
    }
    *out = jinja_bool(equal);
    return true;
}

TEST(test_equal) /* b->detail: eq or ne */
{
    bool equal;

    (void)call;
    if (!jinja_equal(j, &equal, self, arg[0])) {
        return false;
    }
    *out = jinja_bool(equal == (b->detail == OP_EQ));
    return true;
}

TEST(test_order)
{
    static const char *const symbols[] = {"==", "!=", "<", "<=", ">", ">="};
    int order;

    (void)call;
    if (!jinja_compare(j, &order, self, arg[0], symbols[b->detail])) {
        return false;
    }
    *out = jinja_bool(b->detail == OP_LT   ? order == -1
                      : b->detail == OP_LE ? order == -1 || order == 0
                      : b->detail == OP_GT ? order == 1
                                           : order == 1 || order == 0);
    return true;
}

TEST(test_in)
{
    bool found;

    (void)b, (void)call;
    if (!jinja_contains(j, &found, arg[0], self)) {
        return false;
    }
    *out = jinja_bool(found);
    return true;
}

TEST(test_sameas)
{
    (void)j, (void)b, (void)call;
    *out = jinja_bool(jinja_same(self, arg[0]));
    return true;
}

TEST(test_case) /* lower, upper: by the method */
{
    const struct jinja_builtin *method =
        jinja_builtin_find(jinja_str_methods, b->detail ? STR("isupper") : STR("islower"));
    const struct jinja_call none = {0};

    (void)arg, (void)call;
    return jinja_to_string(j, &self, self) && jinja_call_builtin(j, method, self, &none, out);
}

TEST(test_name) /* filter, test: whether one of this name exists */
{
    struct str name;

    (void)j, (void)arg, (void)call;
    if (self.kind != JINJA_STRING) {
        *out = jinja_bool(false);
        return jinja_hashable(self) ||
               jinja_fail(j, "unhashable type: '%s'", jinja_type_name(self));
    }
    name = jinja_slice_of(self.as.string);
    *out = jinja_bool(b->detail ? jinja_builtin_find(jinja_tests, name) != NULL
                                : jinja_filter_find(name) != NULL);
    return true;
}

const struct jinja_builtin jinja_tests[] = {
    {"boolean", "", 0, test_kind, IS_BOOLEAN},
    {"callable", "", 0, test_kind, IS_CALLABLE},
    {"defined", "", 0, test_kind, IS_DEFINED},
    {"divisibleby", "num", 1, test_remainder, 2},
    {"eq", "/b", 1, test_equal, OP_EQ},
    {"equalto", "/b", 1, test_equal, OP_EQ},
    {"escaped", "", 0, test_kind, IS_ESCAPED},
    {"even", "", 0, test_remainder, 0},
    {"false", "", 0, test_kind, IS_FALSE},
    {"filter", "", 0, test_name, 0},
    {"float", "", 0, test_kind, IS_FLOAT},
    {"ge", "/b", 1, test_order, OP_GE},
    {"greaterthan", "/b", 1, test_order, OP_GT},
    {"gt", "/b", 1, test_order, OP_GT},
    {"in", "seq", 1, test_in, 0},
    {"integer", "", 0, test_kind, IS_INTEGER},
    {"iterable", "", 0, test_kind, IS_ITERABLE},
    {"le", "/b", 1, test_order, OP_LE},
    {"lessthan", "/b", 1, test_order, OP_LT},
    {"lower", "", 0, test_case, 0},
    {"lt", "/b", 1, test_order, OP_LT},
    {"mapping", "", 0, test_kind, IS_MAPPING},
    {"ne", "/b", 1, test_equal, OP_NE},
    {"none", "", 0, test_kind, IS_NONE},
    {"number", "", 0, test_kind, IS_NUMBER},
    {"odd", "", 0, test_remainder, 1},
    {"sameas", "other", 1, test_sameas, 0},
    {"sequence", "", 0, test_kind, IS_SEQUENCE},
    {"string", "", 0, test_kind, IS_STRING},
    {"test", "", 0, test_name, 1},
    {"true", "", 0, test_kind, IS_TRUE},
    {"undefined", "", 0, test_kind, IS_UNDEFINED},
    {"upper", "", 0, test_case, 1},
    {"==", "/b", 1, test_equal, OP_EQ}, /* reached by select('==', x) only */
    {"!=", "/b", 1, test_equal, OP_NE},
    {"<", "/b", 1, test_order, OP_LT},
    {"<=", "/b", 1, test_order, OP_LE},
    {">", "/b", 1, test_order, OP_GT},
    {">=", "/b", 1, test_order, OP_GE},
    {0}};
