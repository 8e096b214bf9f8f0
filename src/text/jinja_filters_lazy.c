/* jinja_filters_lazy.c - filters that give an iterator: select, reject, map, unique, batch, ...
 *
 * Place: text, inside the Jinja engine. As in Jinja2 nothing happens until the first item is asked
 *        for: wrong arguments of a filter over an empty list are never noticed. */
#include <string.h>

#include "text/jinja_run.h"

#define FILTER(name)                                                                               \
    static bool name(struct jinja_run *j, const struct jinja_builtin *b, struct jinja_value self,  \
                     const struct jinja_value *arg, const struct jinja_call *call,                 \
                     struct jinja_value *out)

/* The first round: whether there is anything to walk at all. */
static bool is_empty(const struct jinja_lazy *l)
{
    return !l->source && !jinja_truth(l->over);
}

/* The arguments after the first n, for the inner test or filter. */
static struct jinja_call rest_of(const struct jinja_call *call, size_t n)
{
    struct jinja_call rest = *call;

    rest.args += n;
    rest.n_args -= n;
    return rest;
}

/* ---- select, reject, selectattr, rejectattr ---- */

enum { SELECT_REJECTS = 1, SELECT_BY_ATTRIBUTE = 2 };

static bool prepare_select(struct jinja_run *j, struct jinja_lazy *l)
{
    size_t at = l->b->detail & SELECT_BY_ATTRIBUTE ? 1 : 0;
    struct jinja_value name;

    if (at && l->call.n_args == 0) {
        return jinja_fail(j, "Missing parameter for attribute name");
    }
    if (!jinja_path_new(j, &l->path, at ? l->call.args[0] : jinja_none())) {
        return false;
    }
    if (l->call.n_args <= at) {
        return true; /* without a test: truth */
    }
    name = l->call.args[at];
    if (name.kind != JINJA_STRING) {
        return jinja_fail(j, "a test's name must be a string");
    }
    l->inner = jinja_builtin_find(jinja_tests, jinja_slice_of(name.as.string));
    l->inner_call = rest_of(&l->call, at + 1);
    return l->inner ||
           jinja_fail(j, "no test named '%.*s'", (int)name.as.string->len, name.as.string->ptr);
}

static enum jinja_next next_selected(struct jinja_run *j, struct jinja_lazy *l,
                                     struct jinja_value *out)
{
    struct jinja_value v;
    enum jinja_next next;

    if (is_empty(l)) {
        return JINJA_NEXT_END;
    }
    if (!l->source && !prepare_select(j, l)) {
        return JINJA_NEXT_FAILED;
    }
    while ((next = jinja_lazy_pull(j, l, out)) == JINJA_NEXT_ITEM) {
        if (!jinja_path_get(j, &v, l->path, *out, (struct jinja_value){0}) ||
            (l->inner && !jinja_call_builtin(j, l->inner, v, &l->inner_call, &v))) {
            return JINJA_NEXT_FAILED;
        }
        if (jinja_truth(v) != ((l->b->detail & SELECT_REJECTS) != 0)) {
            return JINJA_NEXT_ITEM;
        }
    }
    return next;
}

/* ---- map ---- */

static bool prepare_map(struct jinja_run *j, struct jinja_lazy *l)
{
    struct jinja_value name, attribute = {0};

    if (l->call.n_args == 0) {
        for (size_t i = 0; i < l->call.n_named; i++) {
            struct str key = jinja_slice_of(l->call.names[i]);
            if (str_eq(key, STR("attribute"))) {
                attribute = l->call.named[i];
            } else if (str_eq(key, STR("default"))) {
                l->fallback = l->call.named[i];
            } else {
                return jinja_fail(j, "map: unexpected keyword argument '%.*s'", (int)key.len,
                                  key.ptr);
            }
        }
        if (l->fallback.kind == JINJA_NONE) {
            l->fallback.kind = JINJA_MISSING;
        }
        return attribute.kind != JINJA_MISSING ? jinja_path_new(j, &l->path, attribute)
                                               : jinja_fail(j, "map requires a filter argument");
    }
    name = l->call.args[0];
    if (name.kind != JINJA_STRING) {
        return jinja_fail(j, "a filter's name must be a string");
    }
    l->inner = jinja_filter_find(jinja_slice_of(name.as.string));
    l->inner_call = rest_of(&l->call, 1);
    return l->inner ||
           jinja_fail(j, "no filter named '%.*s'", (int)name.as.string->len, name.as.string->ptr);
}

static enum jinja_next next_mapped(struct jinja_run *j, struct jinja_lazy *l,
                                   struct jinja_value *out)
{
    struct jinja_value item;
    enum jinja_next next;
    bool ok;

    if (is_empty(l)) {
        return JINJA_NEXT_END;
    }
    if (!l->source && !prepare_map(j, l)) {
        return JINJA_NEXT_FAILED;
    }
    next = jinja_lazy_pull(j, l, &item);
    if (next != JINJA_NEXT_ITEM) {
        return next;
    }
    ok = l->path ? jinja_path_get(j, out, l->path, item, l->fallback)
                 : jinja_call_builtin(j, l->inner, item, &l->inner_call, out);
    return ok ? JINJA_NEXT_ITEM : JINJA_NEXT_FAILED;
}

/* select and its kin, and map: the arguments are looked at later. */
FILTER(filter_later)
{
    struct jinja_lazy l = {.over = self, .b = b, .call = *call};

    (void)arg;
    l.next = strcmp(b->name, "map") == 0 ? next_mapped : next_selected;
    return jinja_iter_lazy(j, out, &l);
}

/* ---- unique, items, batch, slice ---- */

static enum jinja_next next_unique(struct jinja_run *j, struct jinja_lazy *l,
                                   struct jinja_value *out)
{
    struct jinja_value key, *found;
    enum jinja_next next;

    while ((next = jinja_lazy_pull(j, l, out)) == JINJA_NEXT_ITEM) {
        if (!jinja_path_get(j, &key, l->path, *out, (struct jinja_value){0})) {
            return JINJA_NEXT_FAILED;
        }
        if (l->count == 0 && key.kind == JINJA_STRING &&
            !jinja_change_case(j, &key, key.as.string, JINJA_LOWER)) {
            return JINJA_NEXT_FAILED;
        }
        if (!jinja_dict_find(j, &found, l->seen.as.dict, key)) {
            return JINJA_NEXT_FAILED;
        }
        if (!found) {
            return jinja_dict_set(j, l->seen.as.dict, key, jinja_none()) ? JINJA_NEXT_ITEM
                                                                         : JINJA_NEXT_FAILED;
        }
    }
    return next;
}

FILTER(filter_unique)
{
    struct jinja_lazy l = {.next = next_unique, .over = self, .count = jinja_truth(arg[0])};

    (void)b, (void)call;
    return jinja_dict_new(j, &l.seen) && jinja_path_new(j, &l.path, arg[1]) &&
           jinja_iter_lazy(j, out, &l);
}

static enum jinja_next next_pair(struct jinja_run *j, struct jinja_lazy *l, struct jinja_value *out)
{
    if (l->over.kind == JINJA_UNDEFINED) {
        return JINJA_NEXT_END;
    }
    if (l->over.kind != JINJA_DICT && !l->source) {
        (void)jinja_fail(j, "Can only get item pairs from a mapping");
        return JINJA_NEXT_FAILED;
    }
    if (!l->source) {
        l->over.kind = JINJA_VIEW;
        l->over.detail = JINJA_ITEMS;
    }
    return jinja_lazy_pull(j, l, out);
}

FILTER(filter_items)
{
    struct jinja_lazy l = {.next = next_pair, .over = self};

    (void)b, (void)arg, (void)call;
    return jinja_iter_lazy(j, out, &l);
}

static enum jinja_next next_batch(struct jinja_run *j, struct jinja_lazy *l,
                                  struct jinja_value *out)
{
    struct jinja_value item;
    enum jinja_next next = JINJA_NEXT_END;

    if (!jinja_list_new(j, out, JINJA_LIST, 0)) {
        return JINJA_NEXT_FAILED;
    }
    while ((int64_t)out->as.list->n < l->count &&
           (next = jinja_lazy_pull(j, l, &item)) == JINJA_NEXT_ITEM) {
        if (!jinja_list_push(j, out->as.list, item)) {
            return JINJA_NEXT_FAILED;
        }
    }
    if (next == JINJA_NEXT_FAILED || out->as.list->n == 0) {
        return next;
    }
    while (l->fallback.kind != JINJA_MISSING && (int64_t)out->as.list->n < l->count) {
        if (!jinja_charge(j, 1) || !jinja_list_push(j, out->as.list, l->fallback)) {
            return JINJA_NEXT_FAILED;
        }
    }
    return JINJA_NEXT_ITEM;
}

static enum jinja_next next_slice(struct jinja_run *j, struct jinja_lazy *l,
                                  struct jinja_value *out)
{
    const struct jinja_list *all = l->seen.as.list;
    size_t n_slices = (size_t)l->fallback.as.integer, i = (size_t)l->count++;
    size_t each = all->n / n_slices, extra = all->n % n_slices;
    size_t begin = i * each + (i < extra ? i : extra), end = begin + each + (i < extra);

    if (i >= n_slices) {
        return JINJA_NEXT_END;
    }
    if (!jinja_list_new(j, out, JINJA_LIST, 0)) {
        return JINJA_NEXT_FAILED;
    }
    for (size_t k = begin; k < end; k++) {
        if (!jinja_list_push(j, out->as.list, all->items[k])) {
            return JINJA_NEXT_FAILED;
        }
    }
    if (l->call.n_args > 1 && l->call.args[1].kind != JINJA_NONE && i >= extra &&
        !jinja_list_push(j, out->as.list, l->call.args[1])) {
        return JINJA_NEXT_FAILED;
    }
    return JINJA_NEXT_ITEM;
}

/* batch(n, fill) and slice(n, fill) (b->detail 1) */
FILTER(filter_parts)
{
    struct jinja_lazy l = {.next = b->detail ? next_slice : next_batch, .over = self};
    struct jinja_value *kept;

    (void)call;
    if (!jinja_is_integer(arg[0]) || jinja_integer(arg[0]) < 1) {
        return jinja_fail(j, "%s: the count must be a positive integer", b->name);
    }
    if (!b->detail) {
        l.count = jinja_integer(arg[0]);
        l.fallback = arg[1].kind == JINJA_NONE ? (struct jinja_value){0} : arg[1];
        return jinja_iter_lazy(j, out, &l);
    }
    l.fallback = jinja_int(jinja_integer(arg[0]));
    kept = jinja_alloc(j, 2, sizeof *kept);
    if (!kept || !jinja_iter_list(j, &l.seen, self)) {
        return false;
    }
    kept[1] = arg[1].kind == JINJA_MISSING ? jinja_none() : arg[1];
    l.call = (struct jinja_call){.args = kept, .n_args = 2};
    return jinja_iter_lazy(j, out, &l);
}

const struct jinja_builtin jinja_filters_lazy[] = {
    {"batch", "linecount,fill_with", 1, filter_parts, 0},
    {"items", "", 0, filter_items, 0},
    {"map", "*", 0, filter_later, 0},
    {"reject", "*", 0, filter_later, SELECT_REJECTS},
    {"rejectattr", "*", 0, filter_later, SELECT_REJECTS | SELECT_BY_ATTRIBUTE},
    {"select", "*", 0, filter_later, 0},
    {"selectattr", "*", 0, filter_later, SELECT_BY_ATTRIBUTE},
    {"slice", "slices,fill_with", 1, filter_parts, 1},
    {"unique", "case_sensitive,attribute", 0, filter_unique, 0},
    {0}};
