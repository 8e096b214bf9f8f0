/* jinja_iter.c - walking over values, and the lazy iterators that filters return.
 *
 * Place: text, inside the Jinja engine.
 * Idea:  as in Python, select, map, reverse and their kin give an iterator that computes items when
 *        they are asked for, has no length and can be walked once; templates that rely on it, or
 *        trip over it, behave the same here. */
#include "text/jinja_run.h"

enum source { OVER_NOTHING, OVER_LIST, OVER_DICT, OVER_STRING, OVER_RANGE, OVER_LAZY };

struct jinja_iter {
    enum source source;
    bool is_reversed;
    size_t at; /* items given so far; strings: the byte offset */
    size_t n;  /* reversed: items at the start */
    struct jinja_value over;
    struct jinja_lazy lazy;
};

static enum source source_of(struct jinja_value v)
{
    switch ((enum jinja_kind)v.kind) {
    case JINJA_LIST:
    case JINJA_TUPLE:
        return OVER_LIST;
    case JINJA_DICT:
    case JINJA_VIEW:
        return OVER_DICT;
    case JINJA_STRING:
        return OVER_STRING;
    case JINJA_RANGE:
        return OVER_RANGE;
    default:
        return OVER_NOTHING;
    }
}

bool jinja_iterable(struct jinja_value v)
{
    return source_of(v) != OVER_NOTHING || v.kind == JINJA_UNDEFINED || v.kind == JINJA_ITERATOR ||
           v.kind == JINJA_LOOP;
}

bool jinja_iter_new(struct jinja_run *j, struct jinja_iter **out, struct jinja_value v)
{
    if (v.kind == JINJA_ITERATOR) {
        *out = v.as.iter; /* an iterator is its own iterator: what was taken is gone */
        return true;
    }
    if (!jinja_iterable(v) || v.kind == JINJA_LOOP) {
        return jinja_fail(j, "'%s' object is not iterable", jinja_type_name(v));
    }
    *out = jinja_alloc(j, 1, sizeof **out);
    if (!*out) {
        return false;
    }
    (*out)->source = source_of(v);
    (*out)->over = v;
    return true;
}

static bool dict_item(struct jinja_run *j, struct jinja_value *out, struct jinja_value over,
                      const struct jinja_entry *e)
{
    if (over.kind == JINJA_DICT || over.detail == JINJA_KEYS) {
        *out = e->key;
        return true;
    }
    if (over.detail == JINJA_VALUES) {
        *out = e->value;
        return true;
    }
    return jinja_list_new(j, out, JINJA_TUPLE, 2) && jinja_list_push(j, out->as.list, e->key) &&
           jinja_list_push(j, out->as.list, e->value);
}

static enum jinja_next next_char(struct jinja_run *j, struct jinja_iter *it,
                                 struct jinja_value *out)
{
    const struct jinja_string *s = it->over.as.string;
    uint32_t cp;
    size_t n;

    if (it->at >= s->len) {
        return JINJA_NEXT_END;
    }
    n = utf8_decode(&cp, s->ptr + it->at, s->len - it->at);
    if (!jinja_string_slice(j, out, s, it->at, it->at + n)) {
        return JINJA_NEXT_FAILED;
    }
    out->as.string->is_markup = false;
    it->at += n;
    return JINJA_NEXT_ITEM;
}

static enum jinja_next next_plain(struct jinja_run *j, struct jinja_iter *it,
                                  struct jinja_value *out)
{
    struct jinja_value over = it->over;
    size_t n = it->source == OVER_LIST   ? over.as.list->n
               : it->source == OVER_DICT ? over.as.dict->n
                                         : over.as.range->n;
    size_t i = it->at;

    if (it->is_reversed) {
        if (i >= it->n || it->n - 1 - i >= n) { /* the list may have become shorter */
            return JINJA_NEXT_END;
        }
        i = it->n - 1 - i;
    } else if (i >= n) {
        return JINJA_NEXT_END;
    }
    it->at++;
    if (it->source == OVER_LIST) {
        *out = over.as.list->items[i];
    } else if (it->source == OVER_RANGE) {
        *out = jinja_int(over.as.range->start + (int64_t)i * over.as.range->step);
    } else if (!dict_item(j, out, over, &over.as.dict->entries[i])) {
        return JINJA_NEXT_FAILED;
    }
    return JINJA_NEXT_ITEM;
}

static enum jinja_next next_lazy(struct jinja_run *j, struct jinja_iter *it,
                                 struct jinja_value *out)
{
    enum jinja_next next;

    if (it->lazy.is_done) {
        return JINJA_NEXT_END;
    }
    if (!jinja_enter(j)) {
        return JINJA_NEXT_FAILED;
    }
    next = it->lazy.next(j, &it->lazy, out);
    it->lazy.is_done = next == JINJA_NEXT_END;
    jinja_leave(j);
    return next;
}

enum jinja_next jinja_iter_next(struct jinja_run *j, struct jinja_iter *it, struct jinja_value *out)
{
    if (!jinja_charge(j, 1)) {
        return JINJA_NEXT_FAILED;
    }
    switch (it->source) {
    case OVER_NOTHING:
        return JINJA_NEXT_END;
    case OVER_STRING:
        return next_char(j, it, out);
    case OVER_LAZY:
        return next_lazy(j, it, out);
    case OVER_LIST:
    case OVER_DICT:
    case OVER_RANGE:
    default:
        return next_plain(j, it, out);
    }
}

bool jinja_iter_list(struct jinja_run *j, struct jinja_value *out, struct jinja_value v)
{
    struct jinja_iter *it;
    struct jinja_value item;
    enum jinja_next next;

    if (!jinja_iter_new(j, &it, v) || !jinja_list_new(j, out, JINJA_LIST, 0)) {
        return false;
    }
    while ((next = jinja_iter_next(j, it, &item)) == JINJA_NEXT_ITEM) {
        if (!jinja_list_push(j, out->as.list, item)) {
            return false;
        }
    }
    return next == JINJA_NEXT_END;
}

static bool iterator_value(struct jinja_run *j, struct jinja_value *out)
{
    struct jinja_iter *it = jinja_alloc(j, 1, sizeof *it);

    *out = (struct jinja_value){.kind = JINJA_ITERATOR, .as.iter = it};
    return it != NULL;
}

bool jinja_iter_reversed(struct jinja_run *j, bool *possible, struct jinja_value *out,
                         struct jinja_value v)
{
    *possible = v.kind == JINJA_LIST || v.kind == JINJA_TUPLE || v.kind == JINJA_DICT ||
                v.kind == JINJA_VIEW || v.kind == JINJA_RANGE || v.kind == JINJA_UNDEFINED ||
                v.kind == JINJA_STRING;
    if (!*possible) {
        return true;
    }
    if (v.kind == JINJA_STRING && !jinja_iter_list(j, &v, v)) {
        return false;
    }
    if (!iterator_value(j, out)) {
        return false;
    }
    out->as.iter->source = source_of(v);
    out->as.iter->over = v;
    out->as.iter->is_reversed = true;
    return v.kind == JINJA_UNDEFINED || jinja_length(j, &out->as.iter->n, v);
}

bool jinja_iter_lazy(struct jinja_run *j, struct jinja_value *out, struct jinja_lazy *l)
{
    if (!iterator_value(j, out)) {
        return false;
    }
    out->as.iter->source = OVER_LAZY;
    out->as.iter->lazy = *l;
    return true;
}

enum jinja_next jinja_lazy_pull(struct jinja_run *j, struct jinja_lazy *l, struct jinja_value *out)
{
    if (!l->source && !jinja_iter_new(j, &l->source, l->over)) {
        return JINJA_NEXT_FAILED;
    }
    return jinja_iter_next(j, l->source, out);
}

/* ---- attribute paths of filters ---- */

/* x.isdigit(), for the part of a path. */
static bool is_number(struct str s)
{
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] < '0' || s.ptr[i] > '9') {
            return false;
        }
    }
    return s.len > 0 && s.len < 18;
}

static bool path_add(struct jinja_run *j, struct jinja_path *p, struct jinja_string *s,
                     size_t begin, size_t end)
{
    struct str part = {s->ptr + begin, end - begin};
    int64_t i = 0;

    if (is_number(part)) {
        for (size_t k = 0; k < part.len; k++) {
            i = i * 10 + (part.ptr[k] - '0');
        }
        p->parts[p->n++] = jinja_int(i);
        return true;
    }
    return jinja_string_slice(j, &p->parts[p->n++], s, begin, end);
}

bool jinja_path_new(struct jinja_run *j, struct jinja_path **out, struct jinja_value attribute)
{
    struct jinja_path *p = jinja_alloc(j, 1, sizeof *p);
    struct jinja_string *s = attribute.as.string;
    size_t n = 1, begin = 0;

    *out = p;
    if (!p || attribute.kind == JINJA_NONE || attribute.kind == JINJA_MISSING) {
        return p != NULL;
    }
    if (attribute.kind == JINJA_STRING) {
        for (size_t i = 0; i < s->len; i++) {
            n += s->ptr[i] == '.';
        }
    }
    p->parts = jinja_alloc(j, n, sizeof *p->parts);
    if (!p->parts) {
        return false;
    }
    if (attribute.kind != JINJA_STRING) {
        p->parts[p->n++] = attribute;
        return true;
    }
    for (size_t i = 0; i <= s->len; i++) {
        if (i == s->len || s->ptr[i] == '.') {
            if (!path_add(j, p, s, begin, i)) {
                return false;
            }
            begin = i + 1;
        }
    }
    return true;
}

bool jinja_path_get(struct jinja_run *j, struct jinja_value *out, const struct jinja_path *p,
                    struct jinja_value item, struct jinja_value fallback)
{
    for (size_t i = 0; i < p->n; i++) {
        if (!jinja_get_item(j, &item, item, p->parts[i])) {
            return false;
        }
        if (item.kind == JINJA_UNDEFINED && fallback.kind != JINJA_MISSING) {
            item = fallback;
        }
    }
    *out = item;
    return true;
}
