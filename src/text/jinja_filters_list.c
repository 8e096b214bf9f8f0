/* jinja_filters_list.c - filters on sequences that compute at once: sort, min, sum, first, ...
 *
 * Place: text, inside the Jinja engine. The lazy ones are in jinja_filters_lazy.c. */
#include <string.h>

#include "text/jinja_run.h"

#define FILTER(name)                                                                               \
    static bool name(struct jinja_run *j, const struct jinja_builtin *b, struct jinja_value self,  \
                     const struct jinja_value *arg, const struct jinja_call *call,                 \
                     struct jinja_value *out)

FILTER(filter_list)
{
    (void)b, (void)arg, (void)call;
    return jinja_iter_list(j, out, self);
}

FILTER(filter_first)
{
    struct jinja_iter *it;
    enum jinja_next next;

    (void)b, (void)arg, (void)call;
    if (!jinja_iter_new(j, &it, self)) {
        return false;
    }
    next = jinja_iter_next(j, it, out);
    if (next == JINJA_NEXT_END) {
        *out = jinja_undefined(JINJA_EMPTY, 0, NULL);
    }
    return next != JINJA_NEXT_FAILED;
}

FILTER(filter_last)
{
    struct jinja_value reversed;
    bool possible;
    enum jinja_next next;

    (void)b, (void)arg, (void)call;
    if (!jinja_iter_reversed(j, &possible, &reversed, self)) {
        return false;
    }
    if (!possible) {
        return jinja_fail(j, "'%s' object is not reversible", jinja_type_name(self));
    }
    next = jinja_iter_next(j, reversed.as.iter, out);
    if (next == JINJA_NEXT_END) {
        *out = jinja_undefined(JINJA_EMPTY, 0, NULL);
    }
    return next != JINJA_NEXT_FAILED;
}

FILTER(filter_reverse)
{
    static const struct jinja_value none = {.kind = JINJA_NONE};
    bool possible;
    struct jinja_list *l;

    (void)b, (void)arg, (void)call;
    if (self.kind == JINJA_STRING) {
        const struct jinja_value bound[3] = {none, none, jinja_int(-1)};
        return jinja_slice(j, out, self, bound);
    }
    if (!jinja_iter_reversed(j, &possible, out, self)) {
        return false;
    }
    if (possible) {
        return true;
    }
    if (!jinja_iter_list(j, out, self)) {
        return false;
    }
    l = out->as.list;
    for (size_t i = 0; i < l->n / 2; i++) {
        struct jinja_value v = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = v;
    }
    return true;
}

/* ---- ordering ---- */

/* Strings lower-cased, unless case_sensitive. */
static bool sort_key(struct jinja_run *j, struct jinja_value *v, bool case_sensitive)
{
    return case_sensitive || v->kind != JINJA_STRING ||
           jinja_change_case(j, v, v->as.string, JINJA_LOWER);
}

/* The items of list in the order of keys. */
static bool reorder(struct jinja_run *j, struct jinja_value *out, const struct jinja_list *list,
                    const struct jinja_value *keys, bool reverse)
{
    size_t *order = jinja_alloc(j, list->n, sizeof *order);

    if (!order || !jinja_sort_order(j, order, keys, list->n, reverse) ||
        !jinja_list_new(j, out, JINJA_LIST, list->n)) {
        return false;
    }
    for (size_t i = 0; i < list->n; i++) {
        if (!jinja_list_push(j, out->as.list, list->items[order[i]])) {
            return false;
        }
    }
    return true;
}

/* "a,b.c": several attributes, one path each. */
static bool split_paths(struct jinja_run *j, struct jinja_path ***out, size_t *n,
                        struct jinja_value attribute)
{
    struct jinja_string *s = attribute.as.string;
    size_t begin = 0;

    *n = 1;
    for (size_t i = 0; attribute.kind == JINJA_STRING && i < s->len; i++) {
        *n += s->ptr[i] == ',';
    }
    *out = jinja_alloc(j, *n, sizeof(struct jinja_path *));
    if (!*out) {
        return false;
    }
    if (attribute.kind != JINJA_STRING) {
        return jinja_path_new(j, &(*out)[0], attribute);
    }
    *n = 0;
    for (size_t i = 0; i <= s->len; i++) {
        struct jinja_value part;
        if (i < s->len && s->ptr[i] != ',') {
            continue;
        }
        if (!jinja_string_slice(j, &part, s, begin, i) ||
            !jinja_path_new(j, &(*out)[(*n)++], part)) {
            return false;
        }
        begin = i + 1;
    }
    return true;
}

static bool keys_of(struct jinja_run *j, struct jinja_value **out, const struct jinja_list *list,
                    struct jinja_value attribute, bool case_sensitive)
{
    struct jinja_path **paths;
    size_t n_paths;
    struct jinja_value *keys = jinja_alloc(j, list->n, sizeof *keys);

    if (!keys || !split_paths(j, &paths, &n_paths, attribute)) {
        return false;
    }
    for (size_t i = 0; i < list->n; i++) {
        if (!jinja_list_new(j, &keys[i], JINJA_LIST, n_paths)) {
            return false;
        }
        for (size_t p = 0; p < n_paths; p++) {
            struct jinja_value v;
            if (!jinja_path_get(j, &v, paths[p], list->items[i], (struct jinja_value){0}) ||
                !sort_key(j, &v, case_sensitive) || !jinja_list_push(j, keys[i].as.list, v)) {
                return false;
            }
        }
    }
    *out = keys;
    return true;
}

FILTER(filter_sort)
{
    struct jinja_value list, *keys;

    (void)b, (void)call;
    return jinja_iter_list(j, &list, self) &&
           keys_of(j, &keys, list.as.list, arg[2], jinja_truth(arg[1])) &&
           reorder(j, out, list.as.list, keys, jinja_truth(arg[0]));
}

FILTER(filter_dictsort)
{
    bool by_value = jinja_is_string(arg[1], "value");
    struct jinja_value list, *keys;

    (void)b, (void)call;
    if (arg[1].kind != JINJA_MISSING && !by_value && !jinja_is_string(arg[1], "key")) {
        return jinja_fail(j, "You can only sort by either \"key\" or \"value\"");
    }
    if (self.kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, self);
    }
    if (self.kind != JINJA_DICT) {
        return jinja_fail(j, "'%s' object has no attribute 'items'", jinja_type_name(self));
    }
    self.kind = JINJA_VIEW;
    self.detail = JINJA_ITEMS;
    if (!jinja_iter_list(j, &list, self)) {
        return false;
    }
    keys = jinja_alloc(j, list.as.list->n, sizeof *keys);
    for (size_t i = 0; keys && i < list.as.list->n; i++) {
        keys[i] = list.as.list->items[i].as.list->items[by_value];
        if (!sort_key(j, &keys[i], jinja_truth(arg[0]))) {
            return false;
        }
    }
    return keys && reorder(j, out, list.as.list, keys, jinja_truth(arg[2]));
}

/* min and max (b->detail 1) */
FILTER(filter_extreme)
{
    struct jinja_path *path;
    struct jinja_iter *it;
    struct jinja_value item, key, best_key = {0};
    enum jinja_next next;

    (void)call;
    if (!jinja_path_new(j, &path, arg[1]) || !jinja_iter_new(j, &it, self)) {
        return false;
    }
    *out = jinja_undefined(JINJA_EMPTY, 0, NULL);
    while ((next = jinja_iter_next(j, it, &item)) == JINJA_NEXT_ITEM) {
        int order = 0;
        bool better = best_key.kind == JINJA_MISSING;
        if (!jinja_path_get(j, &key, path, item, (struct jinja_value){0}) ||
            !sort_key(j, &key, jinja_truth(arg[0]))) {
            return false;
        }
        if (!better) {
            if (!jinja_compare(j, &order, key, best_key, b->detail ? ">" : "<")) {
                return false;
            }
            better = order == (b->detail ? 1 : -1);
        }
        if (better) {
            *out = item;
            best_key = key;
        }
    }
    return next == JINJA_NEXT_END;
}

FILTER(filter_sum)
{
    struct jinja_path *path;
    struct jinja_iter *it;
    struct jinja_value item;
    enum jinja_next next;

    (void)b, (void)call;
    *out = arg[1].kind == JINJA_MISSING ? jinja_int(0) : arg[1];
    if (out->kind == JINJA_STRING) {
        return jinja_fail(j, "sum() can't sum strings [use ''.join(seq) instead]");
    }
    if (!jinja_path_new(j, &path, arg[0]) || !jinja_iter_new(j, &it, self)) {
        return false;
    }
    while ((next = jinja_iter_next(j, it, &item)) == JINJA_NEXT_ITEM) {
        if (!jinja_path_get(j, &item, path, item, (struct jinja_value){0}) ||
            !jinja_arithmetic(j, out, JINJA_ADD, *out, item)) {
            return false;
        }
    }
    return next == JINJA_NEXT_END;
}

/* ---- groupby ---- */

static bool push_group(struct jinja_run *j, struct jinja_value *groups, struct jinja_value grouper,
                       struct jinja_value items)
{
    struct jinja_value pair;

    if (!jinja_list_new(j, &pair, JINJA_TUPLE, 2) || !jinja_list_push(j, pair.as.list, grouper) ||
        !jinja_list_push(j, pair.as.list, items)) {
        return false;
    }
    pair.as.list->is_group = true;
    return jinja_list_push(j, groups->as.list, pair);
}

FILTER(filter_groupby)
{
    bool case_sensitive = jinja_truth(arg[2]);
    struct jinja_value list, *keys, group = {0};
    struct jinja_value fallback = arg[1].kind == JINJA_NONE ? (struct jinja_value){0} : arg[1];
    struct jinja_path *path;
    size_t *order;

    (void)b, (void)call;
    if (!jinja_iter_list(j, &list, self) || !jinja_path_new(j, &path, arg[0])) {
        return false;
    }
    keys = jinja_alloc(j, list.as.list->n, sizeof *keys);
    order = jinja_alloc(j, list.as.list->n, sizeof *order);
    if (!keys || !order) {
        return false;
    }
    for (size_t i = 0; i < list.as.list->n; i++) {
        if (!jinja_path_get(j, &keys[i], path, list.as.list->items[i], fallback) ||
            !sort_key(j, &keys[i], case_sensitive)) {
            return false;
        }
    }
    if (!jinja_sort_order(j, order, keys, list.as.list->n, false) ||
        !jinja_list_new(j, out, JINJA_LIST, 0)) {
        return false;
    }
    for (size_t i = 0; i < list.as.list->n; i++) {
        struct jinja_value item = list.as.list->items[order[i]], grouper = keys[order[i]];
        bool same = false;
        if (i > 0 && !jinja_equal(j, &same, keys[order[i - 1]], grouper)) {
            return false;
        }
        if (!same) {
            if (!case_sensitive && !jinja_path_get(j, &grouper, path, item, fallback)) {
                return false;
            }
            if (!jinja_list_new(j, &group, JINJA_LIST, 0) || !push_group(j, out, grouper, group)) {
                return false;
            }
        }
        if (!jinja_list_push(j, group.as.list, item)) {
            return false;
        }
    }
    return true;
}

const struct jinja_builtin jinja_filters_list[] = {
    {"dictsort", "case_sensitive,by,reverse", 0, filter_dictsort, 0},
    {"first", "", 0, filter_first, 0},
    {"groupby", "attribute,default,case_sensitive", 1, filter_groupby, 0},
    {"last", "", 0, filter_last, 0},
    {"list", "", 0, filter_list, 0},
    {"max", "case_sensitive,attribute", 0, filter_extreme, 1},
    {"min", "case_sensitive,attribute", 0, filter_extreme, 0},
    {"reverse", "", 0, filter_reverse, 0},
    {"sort", "reverse,case_sensitive,attribute", 0, filter_sort, 0},
    {"sum", "attribute,start", 0, filter_sum, 0},
    {0}};
