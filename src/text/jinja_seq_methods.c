/* jinja_seq_methods.c - the methods of list, tuple and dict, as far as the sandbox allows them.
 *
 * Place: text, inside the Jinja engine. Jinja2's immutable sandbox hides the methods that change a
 *        list or dict (rows without parameters here: the attribute is undefined and calling it an
 *        error), but not list.pop and list.clear; those two work on a private copy of the items,
 *        because lists may share their memory. */
#include <string.h>

#include "text/jinja_run.h"

#define METHOD(name)                                                                               \
    static bool name(struct jinja_run *j, const struct jinja_builtin *b, struct jinja_value self,  \
                     const struct jinja_value *arg, const struct jinja_call *call,                 \
                     struct jinja_value *out)

/* ---- lists and tuples ---- */

/* index (b->detail 0) and count (1) */
METHOD(list_search)
{
    const struct jinja_list *l = self.as.list;
    int64_t start = 0, stop = (int64_t)l->n, n = 0;

    (void)call;
    for (int i = 1; i <= 2; i++) {
        if (!b->detail && arg[i].kind != JINJA_MISSING) {
            int64_t v;
            if (!jinja_is_integer(arg[i])) {
                return jinja_fail(j, "slice indices must be integers");
            }
            v = jinja_integer(arg[i]);
            v = v < 0 ? (v < -(int64_t)l->n ? 0 : v + (int64_t)l->n) : v;
            *(i == 1 ? &start : &stop) = v;
        }
    }
    for (int64_t i = start; i < stop && i < (int64_t)l->n; i++) {
        bool equal = jinja_same(l->items[i], arg[0]);
        if (!jinja_charge(j, 1) || (!equal && !jinja_equal(j, &equal, l->items[i], arg[0]))) {
            return false;
        }
        if (equal && !b->detail) {
            *out = jinja_int(i);
            return true;
        }
        n += equal;
    }
    *out = jinja_int(n);
    return b->detail || jinja_fail(j, "the value is not in the list");
}

METHOD(list_copy)
{
    (void)b, (void)arg, (void)call;
    return jinja_iter_list(j, out, self);
}

/* The list gets items of its own, which nothing else looks at. */
static bool make_private(struct jinja_run *j, struct jinja_list *l)
{
    struct jinja_value *items = jinja_alloc(j, l->n, sizeof *items);

    if (!items || !jinja_charge(j, l->n / 16)) {
        return false;
    }
    if (l->n > 0) {
        memcpy(items, l->items, l->n * sizeof *items);
    }
    l->items = items;
    l->store = NULL;
    return true;
}

METHOD(list_pop)
{
    struct jinja_list *l = self.as.list;
    int64_t i = arg[0].kind == JINJA_MISSING ? -1 : 0;

    (void)b, (void)call;
    if (arg[0].kind != JINJA_MISSING) {
        if (!jinja_is_integer(arg[0])) {
            return jinja_fail(j, "'%s' object cannot be interpreted as an integer",
                              jinja_type_name(arg[0]));
        }
        i = jinja_integer(arg[0]);
    }
    i += i < 0 ? (int64_t)l->n : 0;
    if (i < 0 || i >= (int64_t)l->n) {
        return jinja_fail(j, l->n ? "pop index out of range" : "pop from empty list");
    }
    *out = l->items[i];
    if (i == (int64_t)l->n - 1) { /* the end: others keep seeing their own length */
        l->n--;
        return true;
    }
    if (!make_private(j, l)) {
        return false;
    }
    memmove(l->items + i, l->items + i + 1, (l->n - 1 - (size_t)i) * sizeof *l->items);
    l->n--;
    return true;
}

METHOD(list_clear)
{
    (void)j, (void)b, (void)arg, (void)call;
    self.as.list->n = 0;
    self.as.list->store = NULL;
    *out = jinja_none();
    return true;
}

const struct jinja_builtin jinja_list_methods[] = {
    {"append", NULL, 0, NULL, 0},   {"clear", "/", 0, list_clear, 0},
    {"copy", "/", 0, list_copy, 0}, {"count", "/value", 1, list_search, 1},
    {"extend", NULL, 0, NULL, 0},   {"index", "/value,start,stop", 1, list_search, 0},
    {"insert", NULL, 0, NULL, 0},   {"pop", "/index", 0, list_pop, 0},
    {"remove", NULL, 0, NULL, 0},   {"reverse", NULL, 0, NULL, 0},
    {"sort", NULL, 0, NULL, 0},     {0}};

const struct jinja_builtin jinja_tuple_methods[] = {
    {"count", "/value", 1, list_search, 1}, {"index", "/value,start,stop", 1, list_search, 0}, {0}};

/* ---- dicts ---- */

METHOD(dict_get)
{
    struct jinja_value *found;

    (void)b, (void)call;
    if (!jinja_dict_find(j, &found, self.as.dict, arg[0])) {
        return false;
    }
    *out = found ? *found : arg[1].kind == JINJA_MISSING ? jinja_none() : arg[1];
    return true;
}

/* keys, values, items */
METHOD(dict_view)
{
    (void)j, (void)arg, (void)call;
    *out = (struct jinja_value){
        .kind = JINJA_VIEW, .detail = (uint8_t)b->detail, .as.dict = self.as.dict};
    return true;
}

METHOD(dict_copy)
{
    const struct jinja_dict *d = self.as.dict;

    (void)b, (void)arg, (void)call;
    if (!jinja_dict_new(j, out)) {
        return false;
    }
    for (size_t i = 0; i < d->n; i++) {
        if (!jinja_charge(j, 1) ||
            !jinja_dict_set(j, out->as.dict, d->entries[i].key, d->entries[i].value)) {
            return false;
        }
    }
    return true;
}

METHOD(dict_fromkeys)
{
    struct jinja_iter *it;
    struct jinja_value key;
    enum jinja_next next;

    (void)b, (void)self, (void)call;
    if (!jinja_iter_new(j, &it, arg[0]) || !jinja_dict_new(j, out)) {
        return false;
    }
    while ((next = jinja_iter_next(j, it, &key)) == JINJA_NEXT_ITEM) {
        if (!jinja_dict_set(j, out->as.dict, key,
                            arg[1].kind == JINJA_MISSING ? jinja_none() : arg[1])) {
            return false;
        }
    }
    return next == JINJA_NEXT_END;
}

const struct jinja_builtin jinja_dict_methods[] = {
    {"clear", NULL, 0, NULL, 0},
    {"copy", "/", 0, dict_copy, 0},
    {"fromkeys", "/iterable,value", 1, dict_fromkeys, 0},
    {"get", "/key,default", 1, dict_get, 0},
    {"items", "/", 0, dict_view, JINJA_ITEMS},
    {"keys", "/", 0, dict_view, JINJA_KEYS},
    {"pop", NULL, 0, NULL, 0},
    {"popitem", NULL, 0, NULL, 0},
    {"setdefault", NULL, 0, NULL, 0},
    {"update", NULL, 0, NULL, 0},
    {"values", "/", 0, dict_view, JINJA_VALUES},
    {0}};
