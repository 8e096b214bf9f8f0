/* jinja_compare.c - truth, equality, order and membership, as Python defines them.
 *
 * Place: text, inside the Jinja engine. Marks never matter here: a trusted and an untrusted string
 *        of the same characters are equal. */
#include <math.h>
#include <string.h>

#include "base/size.h"
#include "text/jinja_run.h"

const char *jinja_type_name(struct jinja_value v)
{
    static const char *const names[] = {
        [JINJA_MISSING] = "missing",
        [JINJA_UNDEFINED] = "Undefined",
        [JINJA_NONE] = "NoneType",
        [JINJA_BOOL] = "bool",
        [JINJA_INT] = "int",
        [JINJA_BIGINT] = "int",
        [JINJA_FLOAT] = "float",
        [JINJA_STRING] = "str",
        [JINJA_LIST] = "list",
        [JINJA_TUPLE] = "tuple",
        [JINJA_DICT] = "dict",
        [JINJA_VIEW] = "dict view",
        [JINJA_RANGE] = "range",
        [JINJA_ITERATOR] = "generator",
        [JINJA_NAMESPACE] = "Namespace",
        [JINJA_LOOP] = "LoopContext",
        [JINJA_FUNCTION] = "function",
        [JINJA_METHOD] = "method",
        [JINJA_MACRO] = "Macro",
    };
    return names[v.kind];
}

bool jinja_truth(struct jinja_value v)
{
    switch ((enum jinja_kind)v.kind) {
    case JINJA_MISSING:
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return false;
    case JINJA_BOOL:
        return v.as.boolean;
    case JINJA_INT:
        return v.as.integer != 0;
    case JINJA_FLOAT:
        return v.as.real != 0.0; /* NaN is true */
    case JINJA_STRING:
        return v.as.string->len > 0;
    case JINJA_LIST:
    case JINJA_TUPLE:
        return v.as.list->n > 0;
    case JINJA_DICT:
    case JINJA_VIEW:
        return v.as.dict->n > 0;
    case JINJA_RANGE:
        return v.as.range->n > 0;
    case JINJA_LOOP:
    default:
        return true;
    }
}

bool jinja_is_integer(struct jinja_value v)
{
    return v.kind == JINJA_INT || v.kind == JINJA_BOOL;
}

bool jinja_is_number(struct jinja_value v)
{
    return jinja_is_integer(v) || v.kind == JINJA_FLOAT;
}

int64_t jinja_integer(struct jinja_value v)
{
    return v.kind == JINJA_BOOL ? (int64_t)v.as.boolean : v.as.integer;
}

double jinja_real(struct jinja_value v)
{
    return v.kind == JINJA_FLOAT ? v.as.real : (double)jinja_integer(v);
}

bool jinja_is_string(struct jinja_value v, const char *text)
{
    return v.kind == JINJA_STRING && str_eq(jinja_slice_of(v.as.string), str_of(text));
}

bool jinja_fail_undefined(struct jinja_run *j, struct jinja_value v)
{
    const struct jinja_string *s = v.as.string;
    int n = s ? (int)s->len : 0;
    const char *name = s ? s->ptr : "";
    const char *owner = jinja_type_name((struct jinja_value){.kind = v.owner});

    switch ((enum jinja_why)v.detail) {
    case JINJA_NO_NAME:
        return jinja_fail(j, "'%.*s' is undefined", n, name);
    case JINJA_NO_ATTRIBUTE:
        if (v.owner == JINJA_NONE) {
            return jinja_fail(j, "'None' has no attribute '%.*s'", n, name);
        }
        return jinja_fail(j, "'%s object' has no attribute '%.*s'", owner, n, name);
    case JINJA_NO_ELEMENT:
        return jinja_fail(j, "%s object has no such element", owner);
    case JINJA_NO_PARAMETER:
        return jinja_fail(j, "parameter '%.*s' was not provided", n, name);
    case JINJA_UNSAFE:
        return jinja_fail(j, "access to attribute '%.*s' of '%s' object is unsafe", n, name, owner);
    case JINJA_EMPTY:
    default:
        return jinja_fail(j, "the value is undefined: there is no such item");
    }
}

/* An int and a float, exactly: no rounding of the int. */
static int compare_int_real(int64_t i, double d)
{
    double whole;

    if (d >= 9223372036854775808.0) {
        return -1;
    }
    if (d < -9223372036854775808.0) {
        return 1;
    }
    whole = floor(d);
    if (i != (int64_t)whole) {
        return i < (int64_t)whole ? -1 : 1;
    }
    return d > whole ? -1 : 0;
}

/* Neither is NaN. */
static int compare_numbers(struct jinja_value a, struct jinja_value b)
{
    if (a.kind == JINJA_FLOAT && b.kind == JINJA_FLOAT) {
        return a.as.real < b.as.real ? -1 : a.as.real > b.as.real;
    }
    if (a.kind == JINJA_FLOAT) {
        return -compare_int_real(jinja_integer(b), a.as.real);
    }
    if (b.kind == JINJA_FLOAT) {
        return compare_int_real(jinja_integer(a), b.as.real);
    }
    return jinja_integer(a) < jinja_integer(b) ? -1 : jinja_integer(a) > jinja_integer(b);
}

static bool is_nan(struct jinja_value v)
{
    return v.kind == JINJA_FLOAT && isnan(v.as.real);
}

static bool lists_equal(struct jinja_run *j, bool *out, const struct jinja_list *a,
                        const struct jinja_list *b)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && a != b && i < a->n; i++) {
        if (jinja_same(a->items[i], b->items[i])) {
            continue; /* identity first: a NaN in a list equals itself */
        }
        if (!jinja_equal(j, out, a->items[i], b->items[i])) {
            return false;
        }
    }
    return true;
}

static bool dicts_equal(struct jinja_run *j, bool *out, const struct jinja_dict *a,
                        const struct jinja_dict *b)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && a != b && i < a->n; i++) {
        struct jinja_value *other;
        if (!jinja_dict_find(j, &other, b, a->entries[i].key)) {
            return false;
        }
        if (!other) {
            *out = false;
        } else if (!jinja_equal(j, out, a->entries[i].value, *other)) {
            return false;
        }
    }
    return true;
}

static bool ranges_equal(const struct jinja_range *a, const struct jinja_range *b)
{
    return a->n == b->n && (a->n == 0 || a->start == b->start) && (a->n <= 1 || a->step == b->step);
}

static bool equal_deep(struct jinja_run *j, bool *out, struct jinja_value a, struct jinja_value b)
{
    switch ((enum jinja_kind)a.kind) {
    case JINJA_LIST:
    case JINJA_TUPLE:
        return lists_equal(j, out, a.as.list, b.as.list);
    case JINJA_DICT:
        return dicts_equal(j, out, a.as.dict, b.as.dict);
    default:
        *out = jinja_same(a, b);
        return true;
    }
}

bool jinja_equal(struct jinja_run *j, bool *out, struct jinja_value a, struct jinja_value b)
{
    bool ok;

    if (jinja_is_number(a) && jinja_is_number(b)) {
        *out = !is_nan(a) && !is_nan(b) && compare_numbers(a, b) == 0;
        return true;
    }
    *out = false;
    if (a.kind != b.kind) {
        return true;
    }
    switch ((enum jinja_kind)a.kind) {
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        *out = true;
        return true;
    case JINJA_STRING:
    case JINJA_BIGINT:
        *out = str_eq(jinja_slice_of(a.as.string), jinja_slice_of(b.as.string));
        return jinja_charge(j, *out ? a.as.string->len / 256 : 0);
    case JINJA_RANGE:
        *out = ranges_equal(a.as.range, b.as.range);
        return true;
    default:
        break;
    }
    if (!jinja_charge(j, 1) || !jinja_enter(j)) {
        return false;
    }
    ok = equal_deep(j, out, a, b);
    jinja_leave(j);
    return ok;
}

bool jinja_same(struct jinja_value a, struct jinja_value b)
{
    if (a.kind != b.kind) {
        return false;
    }
    switch ((enum jinja_kind)a.kind) {
    case JINJA_NONE:
        return true;
    case JINJA_BOOL:
        return a.as.boolean == b.as.boolean;
    case JINJA_INT: /* Python keeps one object for each small integer */
        return a.as.integer == b.as.integer && a.as.integer >= -5 && a.as.integer <= 256;
    case JINJA_FLOAT:
        return false;
    case JINJA_UNDEFINED:
        return false;
    case JINJA_METHOD:
        return false; /* each access binds anew */
    default:
        return a.as.string == b.as.string; /* one pointer or another */
    }
}

static int compare_bytes(const struct jinja_string *a, const struct jinja_string *b)
{
    size_t n = a->len < b->len ? a->len : b->len;
    int order = n > 0 ? memcmp(a->ptr, b->ptr, n) : 0; /* UTF-8 sorts as its code points do */

    if (order != 0) {
        return order < 0 ? -1 : 1;
    }
    return a->len < b->len ? -1 : a->len > b->len;
}

static bool compare_lists(struct jinja_run *j, int *out, const struct jinja_list *a,
                          const struct jinja_list *b, const char *op)
{
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool equal = jinja_same(a->items[i], b->items[i]);
        if (!jinja_charge(j, 1) || (!equal && !jinja_equal(j, &equal, a->items[i], b->items[i]))) {
            return false;
        }
        if (!equal) {
            return jinja_compare(j, out, a->items[i], b->items[i], op);
        }
    }
    *out = a->n < b->n ? -1 : a->n > b->n;
    return true;
}

bool jinja_compare(struct jinja_run *j, int *out, struct jinja_value a, struct jinja_value b,
                   const char *op)
{
    if (jinja_is_number(a) && jinja_is_number(b)) {
        *out = is_nan(a) || is_nan(b) ? JINJA_UNORDERED : compare_numbers(a, b);
        return true;
    }
    if (a.kind == JINJA_UNDEFINED || b.kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, a.kind == JINJA_UNDEFINED ? a : b);
    }
    if (a.kind == JINJA_STRING && b.kind == JINJA_STRING) {
        *out = compare_bytes(a.as.string, b.as.string);
        return jinja_charge(j, size_min(a.as.string->len, b.as.string->len) / 256);
    }
    if (a.kind == b.kind && (a.kind == JINJA_LIST || a.kind == JINJA_TUPLE)) {
        bool ok;
        if (!jinja_enter(j)) {
            return false;
        }
        ok = compare_lists(j, out, a.as.list, b.as.list, op);
        jinja_leave(j);
        return ok;
    }
    return jinja_fail(j, "'%s' not supported between instances of '%s' and '%s'", op,
                      jinja_type_name(a), jinja_type_name(b));
}

static bool comes_before(struct jinja_run *j, bool *out, struct jinja_value a, struct jinja_value b)
{
    int order;

    if (!jinja_charge(j, 1) || !jinja_compare(j, &order, a, b, "<")) {
        return false;
    }
    *out = order < 0;
    return true;
}

bool jinja_sort_order(struct jinja_run *j, size_t *order, const struct jinja_value *keys, size_t n,
                      bool reverse)
{
    size_t *from = order, *to = jinja_alloc(j, n, sizeof *to);

    if (!to) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        order[i] = i;
    }
    for (size_t width = 1; width < n; width *= 2) { /* merge sort, bottom up */
        size_t *swap = from;
        for (size_t begin = 0; begin < n; begin += 2 * width) {
            size_t middle = begin + width < n ? begin + width : n;
            size_t end = middle + width < n ? middle + width : n;
            size_t left = begin, right = middle;
            for (size_t at = begin; at < end; at++) {
                bool take_right = left == middle;
                if (left < middle && right < end) {
                    struct jinja_value l = keys[from[left]], r = keys[from[right]];
                    if (!comes_before(j, &take_right, reverse ? l : r, reverse ? r : l)) {
                        return false;
                    }
                }
                to[at] = take_right ? from[right++] : from[left++];
            }
        }
        from = to;
        to = swap;
    }
    if (from != order) {
        memcpy(order, from, n * sizeof *order);
    }
    return true;
}

static bool range_contains(const struct jinja_range *r, struct jinja_value v)
{
    int64_t i;

    if (v.kind == JINJA_FLOAT) {
        if (v.as.real != floor(v.as.real) || fabs(v.as.real) > 9e15) {
            return false;
        }
        i = (int64_t)v.as.real;
    } else if (jinja_is_integer(v)) {
        i = jinja_integer(v);
    } else {
        return false;
    }
    if (r->n == 0 || (r->step > 0 ? i < r->start || i >= r->stop : i > r->start || i <= r->stop)) {
        return false;
    }
    return (i - r->start) % r->step == 0; /* both ends are small: see globals' range() */
}

static bool walk_contains(struct jinja_run *j, bool *out, struct jinja_value container,
                          struct jinja_value item)
{
    struct jinja_iter *it;
    struct jinja_value v;
    enum jinja_next next;

    if (!jinja_iter_new(j, &it, container)) {
        return false;
    }
    *out = false;
    while (!*out && (next = jinja_iter_next(j, it, &v)) != JINJA_NEXT_END) {
        if (next == JINJA_NEXT_FAILED || !jinja_charge(j, 1)) {
            return false;
        }
        *out = jinja_same(v, item);
        if (!*out && !jinja_equal(j, out, v, item)) {
            return false;
        }
    }
    return true;
}

bool jinja_contains(struct jinja_run *j, bool *out, struct jinja_value container,
                    struct jinja_value item)
{
    struct jinja_value *found;

    switch ((enum jinja_kind)container.kind) {
    case JINJA_STRING:
        if (item.kind != JINJA_STRING) {
            return jinja_fail(j, "'in <string>' requires string as left operand, not %s",
                              jinja_type_name(item));
        }
        *out = str_find(jinja_slice_of(container.as.string), jinja_slice_of(item.as.string)) !=
               SIZE_MAX;
        return jinja_charge(j, container.as.string->len / 64);
    case JINJA_DICT:
        if (!jinja_dict_find(j, &found, container.as.dict, item)) {
            return false;
        }
        *out = found != NULL;
        return true;
    case JINJA_VIEW:
        if (container.detail == JINJA_KEYS) {
            container.kind = JINJA_DICT;
            return jinja_contains(j, out, container, item);
        }
        return walk_contains(j, out, container, item);
    case JINJA_RANGE:
        *out = range_contains(container.as.range, item);
        return true;
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_ITERATOR:
    case JINJA_UNDEFINED:
        return walk_contains(j, out, container, item);
    default:
        return jinja_fail(j, "argument of type '%s' is not iterable", jinja_type_name(container));
    }
}

bool jinja_length(struct jinja_run *j, size_t *out, struct jinja_value v)
{
    switch ((enum jinja_kind)v.kind) {
    case JINJA_UNDEFINED:
        *out = 0;
        return true;
    case JINJA_STRING:
        if (v.as.string->n_chars == SIZE_MAX && !jinja_charge(j, v.as.string->len / 64)) {
            return false;
        }
        *out = jinja_string_chars(v.as.string);
        return true;
    case JINJA_LIST:
    case JINJA_TUPLE:
        *out = v.as.list->n;
        return true;
    case JINJA_DICT:
    case JINJA_VIEW:
        *out = v.as.dict->n;
        return true;
    case JINJA_RANGE:
        *out = v.as.range->n;
        return true;
    case JINJA_LOOP: {
        struct jinja_value n;
        bool found;
        if (!jinja_loop_attribute(j, &found, &n, v.as.loop, STR("length"))) {
            return false;
        }
        *out = (size_t)n.as.integer;
        return true;
    }
    default:
        return jinja_fail(j, "object of type '%s' has no len()", jinja_type_name(v));
    }
}
