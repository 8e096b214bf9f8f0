/* jinja_globals.c - functions that every template can call: range, namespace, dict, and what
 * transformers adds: raise_exception, strftime_now.
 *
 * Place: text, inside the Jinja engine. A variable of the same name hides them. */
#include <string.h>
#include <time.h>

#include "text/jinja_run.h"

enum {
    RANGE_ITEMS_MAX = 100000, /* as Jinja2's sandbox */
    STRFTIME_FORMAT_BYTES_MAX = 1024,
    STRFTIME_TEXT_BYTES_MAX = 16384
};
static const int64_t RANGE_BOUND_MAX = INT64_C(1) << 53; /* keeps start + i * step in 64 bits */

#define GLOBAL(name)                                                                               \
    static bool name(struct jinja_run *j, const struct jinja_builtin *b, struct jinja_value self,  \
                     const struct jinja_value *arg, const struct jinja_call *call,                 \
                     struct jinja_value *out)

static bool range_bound(struct jinja_run *j, struct jinja_value v, int64_t *out)
{
    if (!jinja_is_integer(v)) {
        return v.kind == JINJA_UNDEFINED
                   ? jinja_fail_undefined(j, v)
                   : jinja_fail(j, "'%s' object cannot be interpreted as an integer",
                                jinja_type_name(v));
    }
    *out = jinja_integer(v);
    return (*out <= RANGE_BOUND_MAX && *out >= -RANGE_BOUND_MAX) ||
           jinja_fail(j, "range: a bound is too large");
}

GLOBAL(global_range)
{
    struct jinja_range *r = jinja_alloc(j, 1, sizeof *r);
    bool has_start = arg[1].kind != JINJA_MISSING;

    (void)b, (void)self, (void)call;
    if (!r) {
        return false;
    }
    r->step = 1;
    if ((has_start && !range_bound(j, arg[0], &r->start)) ||
        !range_bound(j, arg[has_start], &r->stop) ||
        (arg[2].kind != JINJA_MISSING && !range_bound(j, arg[2], &r->step))) {
        return false;
    }
    if (r->step == 0) {
        return jinja_fail(j, "range() arg 3 must not be zero");
    }
    if (r->step > 0 && r->start < r->stop) {
        r->n = (size_t)((r->stop - r->start - 1) / r->step + 1);
    } else if (r->step < 0 && r->start > r->stop) {
        r->n = (size_t)((r->start - r->stop - 1) / -r->step + 1);
    }
    if (r->n > RANGE_ITEMS_MAX) {
        return jinja_fail(j, "range too big: the sandbox blocks ranges larger than %d",
                          RANGE_ITEMS_MAX);
    }
    *out = (struct jinja_value){.kind = JINJA_RANGE, .as.range = r};
    return true;
}

/* [key, value] pairs of any iterable */
static bool add_pairs(struct jinja_run *j, struct jinja_dict *d, struct jinja_value from)
{
    struct jinja_iter *it;
    struct jinja_value item, pair;
    enum jinja_next next;

    if (from.kind == JINJA_DICT) {
        from.kind = JINJA_VIEW;
        from.detail = JINJA_ITEMS;
    }
    if (!jinja_iter_new(j, &it, from)) {
        return false;
    }
    while ((next = jinja_iter_next(j, it, &item)) == JINJA_NEXT_ITEM) {
        if (!jinja_iter_list(j, &pair, item)) {
            return false;
        }
        if (pair.as.list->n != 2) {
            return jinja_fail(j, "dictionary update sequence element has length %zu; 2 is required",
                              pair.as.list->n);
        }
        if (!jinja_dict_set(j, d, pair.as.list->items[0], pair.as.list->items[1])) {
            return false;
        }
    }
    return next == JINJA_NEXT_END;
}

/* dict(...), and namespace(...) with b->detail JINJA_NAMESPACE */
GLOBAL(global_dict)
{
    (void)self, (void)arg;
    if (!jinja_dict_new(j, out)) {
        return false;
    }
    if (call->n_args > 1) {
        return jinja_fail(j, "%s expected at most 1 argument, got %zu", b->name, call->n_args);
    }
    if (call->n_args == 1 && !add_pairs(j, out->as.dict, call->args[0])) {
        return false;
    }
    for (size_t i = 0; i < call->n_named; i++) {
        if (!jinja_dict_set(j, out->as.dict, jinja_of_string(call->names[i]), call->named[i])) {
            return false;
        }
    }
    out->kind = (uint8_t)b->detail;
    return true;
}

/* The message stands alone: it is written for the person who sent the messages. */
GLOBAL(global_raise)
{
    struct jinja_value text;
    const struct jinja_string *s;

    (void)b, (void)self, (void)call;
    if (!jinja_to_string(j, &text, arg[0])) {
        return false;
    }
    s = text.as.string;
    if (!j->failed) {
        (void)error_set(&j->error, ERR_BAD_REQUEST, "%.*s", (int)s->len, s->ptr);
        j->failed = true;
    }
    *out = jinja_none();
    return false;
}

/* %f, %z and %Z are Python's to fill in: microseconds, and nothing for a time without a zone. */
static bool python_format(char *out, size_t cap, struct str format)
{
    size_t n = 0;

    for (size_t i = 0; i < format.len; i++) {
        const char *add = NULL;
        if (format.ptr[i] == '\0' || n + 8 > cap) {
            return false;
        }
        if (format.ptr[i] == '%' && i + 1 < format.len) {
            char c = format.ptr[++i];
            add = c == 'f' ? "000000" : c == 'z' || c == 'Z' ? "" : NULL;
            if (!add) {
                out[n++] = '%';
                out[n++] = c;
            }
        } else {
            out[n++] = format.ptr[i];
        }
        for (; add && *add; add++) {
            out[n++] = *add;
        }
    }
    out[n] = '\0';
    return true;
}

GLOBAL(global_strftime)
{
    char format[STRFTIME_FORMAT_BYTES_MAX], text[STRFTIME_TEXT_BYTES_MAX];
    time_t now = (time_t)j->now_s;
    struct tm tm;
    struct jinja_text t;
    size_t n;

    (void)b, (void)self, (void)call;
    if (arg[0].kind != JINJA_STRING) {
        return jinja_fail(j, "strftime_now: must be str, not %s", jinja_type_name(arg[0]));
    }
    if (!python_format(format, sizeof format, jinja_slice_of(arg[0].as.string)) ||
        !localtime_r(&now, &tm)) {
        return jinja_fail(j, "strftime_now: the format or the time is not usable");
    }
    n = format[0] ? strftime(text, sizeof text, format, &tm) : 0;
    if (utf8_valid_prefix(text, n) < n) {
        return jinja_fail(j, "strftime_now: the format gives no text");
    }
    jinja_text_init(&t, j);
    jinja_text_put(&t, text, n, jinja_string_all_trusted(arg[0].as.string));
    return jinja_text_take(&t, out);
}

const struct jinja_builtin jinja_globals[] = {{"range", "/start,stop,step", 1, global_range, 0},
                                              {"namespace", "*", 0, global_dict, JINJA_NAMESPACE},
                                              {"dict", "*", 0, global_dict, JINJA_DICT},
                                              {"raise_exception", "message", 1, global_raise, 0},
                                              {"strftime_now", "format", 1, global_strftime, 0},
                                              {"lipsum", "*", 0, NULL, 0},
                                              {"cycler", "*", 0, NULL, 0},
                                              {"joiner", "*", 0, NULL, 0},
                                              {0}};
