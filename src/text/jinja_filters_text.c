/* jinja_filters_text.c - filters whose work is text: upper, trim, join, replace, indent, tojson, ...
 *
 * Place: text, inside the Jinja engine; a table row per filter. */
#include <string.h>

#include "text/jinja_run.h"

#define FILTER(name)                                                                               \
    static bool name(struct jinja_run *j, const struct jinja_builtin *b, struct jinja_value self,  \
                     const struct jinja_value *arg, const struct jinja_call *call,                 \
                     struct jinja_value *out)

static bool as_markup(struct jinja_run *j, struct jinja_value *out, struct jinja_value v)
{
    if (!jinja_soft_string(j, &v, v) ||
        !jinja_string_slice(j, out, v.as.string, 0, v.as.string->len)) {
        return false;
    }
    out->as.string->is_markup = true;
    return true;
}

/* upper, lower, capitalize */
FILTER(filter_case)
{
    (void)arg, (void)call;
    return jinja_soft_string(j, &self, self) &&
           jinja_change_case(j, out, self.as.string, (enum jinja_case)b->detail);
}

/* Words begin after white space, "-", "(", "{", "[" and "<", unlike with str.title(). */
FILTER(filter_title)
{
    struct jinja_text t;
    const struct jinja_string *s;
    bool at_start = true;
    uint32_t cp;

    (void)b, (void)arg, (void)call;
    if (!jinja_soft_string(j, &self, self)) {
        return false;
    }
    s = self.as.string;
    jinja_text_init(&t, j);
    for (size_t i = 0, n; i < s->len && !t.failed; i += n) {
        n = utf8_decode(&cp, s->ptr + i, s->len - i);
        if (jinja_is_space(cp) || (cp < 0x80 && strchr("-({[<", (char)cp))) {
            jinja_text_put_slice(&t, s, i, i + n);
            at_start = true;
            continue;
        }
        jinja_put_case(&t, s, i, i + n, at_start ? JINJA_UPPER : JINJA_LOWER);
        at_start = false;
    }
    return jinja_charge(j, s->len / 16) && jinja_text_take(&t, out);
}

FILTER(filter_trim)
{
    const struct jinja_string *chars = NULL;

    (void)b, (void)call;
    if (!jinja_soft_string(j, &self, self)) {
        return false;
    }
    if (arg[0].kind != JINJA_MISSING && arg[0].kind != JINJA_NONE) {
        if (arg[0].kind != JINJA_STRING) {
            return jinja_fail(j, "strip arg must be None or str");
        }
        chars = arg[0].as.string;
    }
    return jinja_strip(j, out, self.as.string, chars, JINJA_STRIP_BOTH);
}

FILTER(filter_string)
{
    (void)b, (void)arg, (void)call;
    return jinja_soft_string(j, out, self);
}

FILTER(filter_safe)
{
    (void)b, (void)arg, (void)call;
    return as_markup(j, out, self);
}

FILTER(filter_escape)
{
    (void)arg, (void)call;
    if (b->detail && !jinja_to_string(j, &self, self)) { /* forceescape */
        return false;
    }
    return jinja_escape_html(j, out, self);
}

FILTER(filter_replace)
{
    struct jinja_value from, to;
    int64_t max = -1;

    (void)b, (void)call;
    if (arg[2].kind != JINJA_MISSING && arg[2].kind != JINJA_NONE) {
        if (!jinja_is_integer(arg[2])) {
            return jinja_fail(j, "replace: count must be an integer");
        }
        max = jinja_integer(arg[2]);
    }
    return jinja_to_string(j, &self, self) && jinja_to_string(j, &from, arg[0]) &&
           jinja_to_string(j, &to, arg[1]) &&
           jinja_replace(j, out, self.as.string, from.as.string, to.as.string, max);
}

FILTER(filter_join)
{
    struct jinja_value d = jinja_of_string(&j->empty), item;
    struct jinja_path *path = NULL;
    struct jinja_iter *it;
    struct jinja_text t;
    enum jinja_next next;
    bool first = true;

    (void)b, (void)call;
    if (arg[1].kind != JINJA_MISSING && arg[1].kind != JINJA_NONE &&
        !jinja_path_new(j, &path, arg[1])) {
        return false;
    }
    if ((arg[0].kind != JINJA_MISSING && !jinja_to_string(j, &d, arg[0])) ||
        !jinja_iter_new(j, &it, self)) {
        return false;
    }
    jinja_text_init(&t, j);
    while ((next = jinja_iter_next(j, it, &item)) == JINJA_NEXT_ITEM) {
        if (path && !jinja_path_get(j, &item, path, item, (struct jinja_value){0})) {
            return false;
        }
        if (!first) {
            jinja_text_put_string(&t, d.as.string);
        }
        first = false;
        if (!jinja_print(&t, item)) {
            return false;
        }
    }
    return next == JINJA_NEXT_END && jinja_text_take(&t, out);
}

static bool indentation(struct jinja_run *j, struct jinja_value *out, struct jinja_value width,
                        bool is_trusted)
{
    struct jinja_text t;

    if (width.kind == JINJA_STRING) {
        *out = width;
        return true;
    }
    if (width.kind != JINJA_MISSING && !jinja_is_integer(width)) {
        return jinja_fail(j, "indent: width must be an integer or a string");
    }
    jinja_text_init(&t, j);
    for (int64_t i = 0; i < (width.kind == JINJA_MISSING ? 4 : jinja_integer(width)) && !t.failed;
         i++) {
        jinja_text_put(&t, " ", 1, is_trusted);
    }
    return jinja_text_take(&t, out);
}

FILTER(filter_indent)
{
    struct jinja_value width;
    const struct jinja_string *s = self.as.string;
    struct jinja_text t;
    bool blank = jinja_truth(arg[2]);

    (void)b, (void)call;
    if (self.kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, self);
    }
    if (self.kind != JINJA_STRING) {
        return jinja_fail(j, "indent: must be str, not %s", jinja_type_name(self));
    }
    if (!indentation(j, &width, arg[0], jinja_string_all_trusted(s))) {
        return false;
    }
    jinja_text_init(&t, j);
    if (jinja_truth(arg[1])) {
        jinja_text_put_string(&t, width.as.string);
    }
    /* One line more than there are line ends: a text that ends in one has an empty last line. */
    for (size_t at = 0, line = 0; !t.failed; line++) {
        size_t next, end = jinja_line_end(s, at, &next);
        if (line > 0 && (blank || end > at)) {
            jinja_text_put_string(&t, width.as.string);
        }
        jinja_text_put_slice(&t, s, at, end);
        if (end == next) {
            break;
        }
        jinja_text_put(&t, "\n", 1, jinja_string_mark(s, end));
        at = next;
    }
    if (!jinja_text_take(&t, out)) {
        return false;
    }
    out->as.string->is_markup = s->is_markup;
    return true;
}

FILTER(filter_format)
{
    struct jinja_value args;

    (void)b, (void)arg;
    if (call->n_args > 0 && call->n_named > 0) {
        return jinja_fail(j, "can't handle positional and keyword arguments at the same time");
    }
    if (!jinja_soft_string(j, &self, self)) {
        return false;
    }
    if (call->n_named > 0) {
        if (!jinja_dict_new(j, &args)) {
            return false;
        }
        for (size_t i = 0; i < call->n_named; i++) {
            if (!jinja_dict_set(j, args.as.dict, jinja_of_string(call->names[i]), call->named[i])) {
                return false;
            }
        }
    } else {
        if (!jinja_list_new(j, &args, JINJA_TUPLE, call->n_args)) {
            return false;
        }
        for (size_t i = 0; i < call->n_args; i++) {
            if (!jinja_list_push(j, args.as.list, call->args[i])) {
                return false;
            }
        }
    }
    return jinja_format_percent(j, out, self.as.string, args);
}

FILTER(filter_center)
{
    const struct jinja_builtin *center = jinja_builtin_find(jinja_str_methods, STR("center"));
    struct jinja_value width = arg[0].kind == JINJA_MISSING ? jinja_int(80) : arg[0];
    struct jinja_call one = {.args = &width, .n_args = 1};

    (void)b, (void)call;
    return jinja_soft_string(j, &self, self) && jinja_call_builtin(j, center, self, &one, out);
}

FILTER(filter_wordcount)
{
    const struct jinja_string *s;
    int64_t n = 0;
    bool in_word = false;

    (void)b, (void)arg, (void)call;
    if (!jinja_soft_string(j, &self, self)) {
        return false;
    }
    s = self.as.string;
    for (size_t i = 0; i < s->len;) {
        uint32_t cp;
        bool word;
        i += utf8_decode(&cp, s->ptr + i, s->len - i);
        word = jinja_is_word(cp);
        n += word && !in_word;
        in_word = word;
    }
    *out = jinja_int(n);
    return jinja_charge(j, s->len / 16);
}

static bool int_or(struct jinja_run *j, struct jinja_value v, int64_t absent, int64_t *out)
{
    *out = absent;
    if (v.kind == JINJA_MISSING || v.kind == JINJA_NONE) {
        return true;
    }
    *out = jinja_is_integer(v) ? jinja_integer(v) : 0;
    return jinja_is_integer(v) ||
           jinja_fail(j, "'%s' object cannot be interpreted as an integer", jinja_type_name(v));
}

FILTER(filter_truncate)
{
    struct jinja_string *s = self.as.string;
    struct jinja_value end = arg[2];
    int64_t length, leeway, n, keep;
    size_t cut;

    (void)b, (void)call;
    if (self.kind == JINJA_UNDEFINED) {
        *out = self; /* its length is 0, so it is returned as it is */
        return true;
    }
    if (self.kind != JINJA_STRING || (end.kind != JINJA_MISSING && end.kind != JINJA_STRING)) {
        return jinja_fail(j, "truncate: must be str");
    }
    if (end.kind == JINJA_MISSING && !jinja_string_borrow(j, &end, STR("..."), true)) {
        return false;
    }
    if (!int_or(j, arg[0], 255, &length) || !int_or(j, arg[3], 5, &leeway)) {
        return false;
    }
    n = (int64_t)jinja_string_chars(s);
    keep = length - (int64_t)jinja_string_chars(end.as.string);
    if (keep < 0 || leeway < 0) {
        return jinja_fail(j, "truncate: length is too small or leeway negative");
    }
    if (n <= length || n - length <= leeway) {
        *out = self;
        return true;
    }
    cut = jinja_string_offset(s, (size_t)keep);
    if (!jinja_truth(arg[1])) {
        const char *space = cut > 0 ? memrchr(s->ptr, ' ', cut) : NULL;
        cut = space ? (size_t)(space - s->ptr) : cut;
    }
    return jinja_string_slice(j, out, s, 0, cut) &&
           jinja_string_concat(j, out, out->as.string, end.as.string);
}

/* ---- JSON ---- */

static bool json_indent(struct jinja_run *j, struct jinja_value v, struct jinja_json_style *style)
{
    struct jinja_value text;
    struct jinja_text t;

    if (v.kind == JINJA_MISSING || v.kind == JINJA_NONE) {
        return true;
    }
    style->has_indent = true;
    if (v.kind == JINJA_STRING) {
        style->indent = v.as.string;
        return true;
    }
    if (!jinja_is_integer(v)) {
        return jinja_fail(j, "tojson: indent must be an integer or a string");
    }
    jinja_text_init(&t, j);
    for (int64_t i = 0; i < jinja_integer(v) && !t.failed; i++) {
        jinja_text_put(&t, " ", 1, false);
    }
    style->indent = &j->empty;
    if (!jinja_text_take(&t, &text)) {
        return false;
    }
    style->indent = text.as.string;
    return true;
}

static bool json_separators(struct jinja_run *j, struct jinja_value v,
                            struct jinja_json_style *style)
{
    struct jinja_value list;

    if (v.kind == JINJA_MISSING || v.kind == JINJA_NONE) {
        return true;
    }
    if (!jinja_iter_list(j, &list, v)) {
        return false;
    }
    if (list.as.list->n != 2 || list.as.list->items[0].kind != JINJA_STRING ||
        list.as.list->items[1].kind != JINJA_STRING) {
        return jinja_fail(j, "tojson: separators must be two strings");
    }
    style->item_separator = list.as.list->items[0].as.string;
    style->key_separator = list.as.list->items[1].as.string;
    return true;
}

FILTER(filter_tojson)
{
    struct jinja_json_style style = {.ensure_ascii = jinja_truth(arg[0]),
                                     .sort_keys = jinja_truth(arg[3])};
    struct jinja_text t;

    (void)b, (void)call;
    if (!json_indent(j, arg[1], &style) || !json_separators(j, arg[2], &style)) {
        return false;
    }
    jinja_text_init(&t, j);
    return jinja_tojson(&t, self, &style) && jinja_text_take(&t, out);
}

FILTER(filter_from_json)
{
    struct json_object *v = NULL;
    struct jinja_string *s = self.as.string;
    struct error err = {0};
    struct jinja_value text;
    bool ok;

    (void)b, (void)arg, (void)call;
    if (self.kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, self);
    }
    if (self.kind != JINJA_STRING) {
        return jinja_fail(j, "the JSON object must be str, not %s", jinja_type_name(self));
    }
    if (!jinja_charge(j, s->len / 16)) {
        return false;
    }
    if (json_parse(&v, s->ptr, s->len, &err) != OK) {
        return jinja_fail(j, "from_json: %s", err.text);
    }
    ok = jinja_from_json(j, &text, v, jinja_string_all_trusted(s)) && jinja_deep_copy(j, &text);
    json_object_put(v);
    *out = text;
    return ok;
}

const struct jinja_builtin jinja_filters_text[] = {
    {"capitalize", "", 0, filter_case, JINJA_CAPITALIZE},
    {"center", "width", 0, filter_center, 0},
    {"e", "", 0, filter_escape, 0},
    {"escape", "", 0, filter_escape, 0},
    {"forceescape", "", 0, filter_escape, 1},
    {"format", "*", 0, filter_format, 0},
    {"from_json", "", 0, filter_from_json, 0},
    {"indent", "width,first,blank", 0, filter_indent, 0},
    {"join", "d,attribute", 0, filter_join, 0},
    {"lower", "", 0, filter_case, JINJA_LOWER},
    {"replace", "old,new,count", 2, filter_replace, 0},
    {"safe", "", 0, filter_safe, 0},
    {"string", "", 0, filter_string, 0},
    {"title", "", 0, filter_title, 0},
    {"tojson", "ensure_ascii,indent,separators,sort_keys", 0, filter_tojson, 0},
    {"trim", "chars", 0, filter_trim, 0},
    {"truncate", "length,killwords,end,leeway", 0, filter_truncate, 0},
    {"upper", "", 0, filter_case, JINJA_UPPER},
    {"wordcount", "", 0, filter_wordcount, 0},
    {"filesizeformat", "", 0, NULL, 0},
    {"pprint", "", 0, NULL, 0},
    {"striptags", "", 0, NULL, 0},
    {"urlencode", "", 0, NULL, 0},
    {"urlize", "", 0, NULL, 0},
    {"wordwrap", "", 0, NULL, 0},
    {"xmlattr", "", 0, NULL, 0},
    {0}};
