/* jinja_access.c - obj[key], obj.name and obj[a:b:c], as the sandbox of Jinja2 answers them.
 *
 * Place: text, inside the Jinja engine.
 * obj.name looks for an attribute first and an item second, obj['name'] the other way round: for a
 * tool schema with a property called "items", p.items is the method and p['items'] the property. */
#include "text/jinja_run.h"

#include <string.h>

/* ---- attributes ---- */

static const struct jinja_builtin *method_table(struct jinja_value v)
{
    switch ((enum jinja_kind)v.kind) {
    case JINJA_STRING:
        return jinja_str_methods;
    case JINJA_LIST:
        return jinja_list_methods;
    case JINJA_TUPLE:
        return jinja_tuple_methods;
    case JINJA_DICT:
        return jinja_dict_methods;
    case JINJA_LOOP:
        return jinja_loop_methods;
    default:
        return NULL;
    }
}

static bool bind_method(struct jinja_run *j, struct jinja_value *out, const struct jinja_builtin *b,
                        struct jinja_value self)
{
    struct jinja_method *m = jinja_alloc(j, 1, sizeof *m);

    if (!m) {
        return false;
    }
    m->b = b;
    m->self = self;
    *out = (struct jinja_value){.kind = JINJA_METHOD, .as.method = m};
    return true;
}

static bool macro_attribute(struct jinja_run *j, bool *found, struct jinja_value *out,
                            const struct jinja_macro *m, struct str name)
{
    *found = true;
    if (str_eq(name, STR("name")) && m->node->kind == NODE_MACRO) {
        *out = jinja_of_string(j->t->names[m->node->name]);
        return true;
    }
    if (str_eq(name, STR("arguments"))) {
        if (!jinja_list_new(j, out, JINJA_TUPLE, m->node->n_items)) {
            return false;
        }
        for (const struct jinja_node *p = m->node->items; p; p = p->next) {
            if (!jinja_list_push(j, out->as.list, jinja_of_string(j->t->names[p->name]))) {
                return false;
            }
        }
        return true;
    }
    *found = false;
    return true;
}

static bool range_attribute(struct jinja_value *out, const struct jinja_range *r, struct str name)
{
    if (str_eq(name, STR("start"))) {
        *out = jinja_int(r->start);
    } else if (str_eq(name, STR("stop"))) {
        *out = jinja_int(r->stop);
    } else if (str_eq(name, STR("step"))) {
        *out = jinja_int(r->step);
    } else {
        return false;
    }
    return true;
}

static bool group_attribute(struct jinja_value *out, const struct jinja_list *l, struct str name)
{
    if (!l->is_group || (!str_eq(name, STR("grouper")) && !str_eq(name, STR("list")))) {
        return false;
    }
    *out = l->items[str_eq(name, STR("list")) ? 1 : 0];
    return true;
}

static bool plain_attribute(struct jinja_run *j, bool *found, struct jinja_value *out,
                            struct jinja_value object, struct str name)
{
    struct jinja_value *v;

    *found = false;
    switch ((enum jinja_kind)object.kind) {
    case JINJA_NAMESPACE:
        v = jinja_dict_get(object.as.dict, name);
        *found = v && name.len > 0 && name.ptr[0] != '_'; /* the sandbox hides _private ones */
        if (*found) {
            *out = *v;
        }
        return true;
    case JINJA_LOOP:
        return jinja_loop_attribute(j, found, out, object.as.loop, name);
    case JINJA_MACRO:
        return macro_attribute(j, found, out, object.as.macro, name);
    case JINJA_RANGE:
        *found = range_attribute(out, object.as.range, name);
        return true;
    case JINJA_TUPLE:
        *found = group_attribute(out, object.as.list, name);
        return true;
    default:
        return true;
    }
}

bool jinja_own_attribute(struct jinja_run *j, bool *found, struct jinja_value *out,
                         struct jinja_value object, struct jinja_string *name)
{
    const struct jinja_builtin *table = method_table(object), *b;

    if (!plain_attribute(j, found, out, object, jinja_slice_of(name))) {
        return false;
    }
    if (*found || !table) {
        return true;
    }
    b = jinja_builtin_find(table, jinja_slice_of(name));
    if (!b) {
        return true;
    }
    *found = true;
    if (!b->params) { /* would change the object */
        *out = jinja_undefined(JINJA_UNSAFE, object.kind, name);
        return true;
    }
    return bind_method(j, out, b, object);
}

bool jinja_get_attribute(struct jinja_run *j, struct jinja_value *out, struct jinja_value object,
                         struct jinja_string *name)
{
    bool found;
    struct jinja_value *item;

    if (object.kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, object);
    }
    if (!jinja_own_attribute(j, &found, out, object, name)) {
        return false;
    }
    if (found) {
        return true;
    }
    item = object.kind == JINJA_DICT ? jinja_dict_get(object.as.dict, jinja_slice_of(name)) : NULL;
    *out = item ? *item : jinja_undefined(JINJA_NO_ATTRIBUTE, object.kind, name);
    return true;
}

/* ---- items ---- */

static bool hashable(struct jinja_value v, unsigned depth)
{
    if (v.kind == JINJA_TUPLE) {
        for (size_t i = 0; i < v.as.list->n; i++) {
            if (depth > 64 || !hashable(v.as.list->items[i], depth + 1)) {
                return false;
            }
        }
        return true;
    }
    return v.kind != JINJA_LIST && v.kind != JINJA_DICT && v.kind != JINJA_VIEW;
}

bool jinja_hashable(struct jinja_value v)
{
    return hashable(v, 0);
}

/* A Python index into n items: counts from the end when negative. */
static bool index_in(struct jinja_value key, size_t n, size_t *out)
{
    int64_t i = jinja_integer(key);

    if (i < 0) {
        i += (int64_t)n;
    }
    if (i < 0 || (uint64_t)i >= n) {
        return false;
    }
    *out = (size_t)i;
    return true;
}

static bool char_at(struct jinja_run *j, struct jinja_value *out, struct jinja_string *s, size_t i)
{
    size_t begin, n;
    uint32_t cp;

    if (jinja_string_chars(s) != s->len && !jinja_charge(j, s->len / 64)) {
        return false;
    }
    begin = jinja_string_offset(s, i);
    n = utf8_decode(&cp, s->ptr + begin, s->len - begin);
    return jinja_string_slice(j, out, s, begin, begin + n);
}

/* The item itself; *found false when obj[key] would raise. */
static bool own_item(struct jinja_run *j, bool *found, struct jinja_value *out,
                     struct jinja_value object, struct jinja_value key)
{
    struct jinja_value *v;
    size_t i, n;

    *found = false;
    switch ((enum jinja_kind)object.kind) {
    case JINJA_DICT:
        if (!jinja_hashable(key)) {
            return true;
        }
        if (!jinja_dict_find(j, &v, object.as.dict, key)) {
            return false;
        }
        *found = v != NULL;
        if (v) {
            *out = *v;
        }
        return true;
    case JINJA_STRING:
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE:
        if (!jinja_is_integer(key)) {
            return true;
        }
        if (!jinja_length(j, &n, object)) {
            return false;
        }
        if (!index_in(key, n, &i)) {
            return true;
        }
        *found = true;
        if (object.kind == JINJA_STRING) {
            return char_at(j, out, object.as.string, i);
        }
        *out = object.kind == JINJA_RANGE
                   ? jinja_int(object.as.range->start + (int64_t)i * object.as.range->step)
                   : object.as.list->items[i];
        return true;
    default:
        return true;
    }
}

bool jinja_get_item(struct jinja_run *j, struct jinja_value *out, struct jinja_value object,
                    struct jinja_value key)
{
    bool found;

    if (object.kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, object);
    }
    if (!own_item(j, &found, out, object, key)) {
        return false;
    }
    if (found) {
        return true;
    }
    if (key.kind == JINJA_STRING) {
        if (!jinja_own_attribute(j, &found, out, object, key.as.string)) {
            return false;
        }
        if (!found) {
            *out = jinja_undefined(JINJA_NO_ATTRIBUTE, object.kind, key.as.string);
        }
        return true;
    }
    *out = jinja_undefined(JINJA_NO_ELEMENT, object.kind, NULL);
    return true;
}

/* ---- slices ---- */

struct range {
    int64_t start, stop, step;
    size_t n; /* items */
};

static bool bound_of(struct jinja_run *j, int64_t *out, struct jinja_value v, int64_t absent)
{
    if (v.kind == JINJA_NONE) {
        *out = absent;
        return true;
    }
    if (!jinja_is_integer(v)) {
        return jinja_fail(j, "slice indices must be integers or None, not %s", jinja_type_name(v));
    }
    *out = jinja_integer(v);
    return true;
}

static int64_t clamp(int64_t i, int64_t low, int64_t high)
{
    return i < low ? low : i > high ? high : i;
}

/* As Python cuts bounds to a sequence of n items. */
static bool slice_range(struct jinja_run *j, struct range *out, size_t n,
                        const struct jinja_value bound[3])
{
    int64_t len = (int64_t)n, low, high;

    if (!bound_of(j, &out->step, bound[2], 1)) {
        return false;
    }
    if (out->step == 0) {
        return jinja_fail(j, "slice step cannot be zero");
    }
    out->step = clamp(out->step, -INT64_MAX, INT64_MAX);
    low = out->step < 0 ? -1 : 0;
    high = out->step < 0 ? len - 1 : len;
    if (!bound_of(j, &out->start, bound[0], out->step < 0 ? INT64_MAX : 0) ||
        !bound_of(j, &out->stop, bound[1], out->step < 0 ? INT64_MIN : INT64_MAX)) {
        return false;
    }
    if (out->start < 0) {
        out->start = clamp(out->start, -len - 1, 0) + len; /* -len - 1: before the first */
    }
    if (out->stop < 0 && bound[1].kind != JINJA_NONE) {
        out->stop = clamp(out->stop, -len - 1, 0) + len;
    }
    out->start = clamp(out->start, low, high);
    out->stop = clamp(out->stop, low, high);
    out->n = 0;
    if (out->step > 0 && out->start < out->stop) {
        out->n = (size_t)((out->stop - out->start - 1) / out->step + 1);
    } else if (out->step < 0 && out->stop < out->start) {
        out->n = (size_t)((out->start - out->stop - 1) / -out->step + 1);
    }
    return true;
}

static bool slice_string(struct jinja_run *j, struct jinja_value *out, struct jinja_string *s,
                         const struct range *r)
{
    struct jinja_text t;
    size_t *offset;
    size_t n = jinja_string_chars(s);

    if (r->step == 1 || r->n == 0) {
        size_t begin = r->n ? jinja_string_offset(s, (size_t)r->start) : 0;
        size_t end = r->n ? jinja_string_offset(s, (size_t)r->start + r->n) : 0;
        return jinja_charge(j, n == s->len ? 0 : s->len / 64) &&
               jinja_string_slice(j, out, s, begin, end);
    }
    offset = jinja_alloc(j, n + 1, sizeof *offset);
    if (!offset || !jinja_charge(j, s->len / 8)) {
        return false;
    }
    for (size_t i = 0, at = 0; i < n; i++) {
        uint32_t cp;
        offset[i] = at;
        at += utf8_decode(&cp, s->ptr + at, s->len - at);
        offset[i + 1] = at;
    }
    jinja_text_init(&t, j);
    for (size_t i = 0; i < r->n; i++) {
        size_t k = (size_t)(r->start + (int64_t)i * r->step);
        jinja_text_put_slice(&t, s, offset[k], offset[k + 1]);
    }
    if (!jinja_text_take(&t, out)) {
        return false;
    }
    out->as.string->is_markup = s->is_markup;
    return true;
}

static bool slice_of_range(struct jinja_run *j, struct jinja_value *out,
                           const struct jinja_range *from, const struct range *r)
{
    struct jinja_range *range = jinja_alloc(j, 1, sizeof *range);
    int64_t to_start, to_stop;

    if (!range) {
        return false;
    }
    if (__builtin_mul_overflow(from->step, r->step, &range->step) ||
        __builtin_mul_overflow(from->step, r->start, &to_start) ||
        __builtin_mul_overflow(from->step, r->stop, &to_stop) ||
        __builtin_add_overflow(from->start, to_start, &range->start) ||
        __builtin_add_overflow(from->start, to_stop, &range->stop)) {
        return jinja_fail(j, "a range leaves 64 bits");
    }
    range->n = r->n;
    *out = (struct jinja_value){.kind = JINJA_RANGE, .as.range = range};
    return true;
}

bool jinja_slice(struct jinja_run *j, struct jinja_value *out, struct jinja_value object,
                 const struct jinja_value bound[3])
{
    struct range r = {0};
    size_t n;

    if (object.kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, object);
    }
    if (object.kind != JINJA_STRING && object.kind != JINJA_LIST && object.kind != JINJA_TUPLE &&
        object.kind != JINJA_RANGE) {
        return jinja_fail(j,
                          object.kind == JINJA_DICT ? "unhashable type: 'slice' for '%s'"
                                                    : "'%s' object cannot be sliced",
                          jinja_type_name(object));
    }
    if (!jinja_length(j, &n, object) || !slice_range(j, &r, n, bound)) {
        return false;
    }
    if (object.kind == JINJA_STRING) {
        return slice_string(j, out, object.as.string, &r);
    }
    if (object.kind == JINJA_RANGE) {
        return slice_of_range(j, out, object.as.range, &r);
    }
    if (!jinja_charge(j, r.n / 16) || !jinja_list_new(j, out, (enum jinja_kind)object.kind, r.n)) {
        return false;
    }
    for (size_t i = 0; i < r.n; i++) {
        if (!jinja_list_push(j, out->as.list,
                             object.as.list->items[r.start + (int64_t)i * r.step])) {
            return false;
        }
    }
    return true;
}
