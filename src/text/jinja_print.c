/* jinja_print.c - str(), repr() and json.dumps() of values. See jinja_value.h.
 *
 * Models were trained on what Python prints, so quotes, escapes and separators follow it to the
 * letter. Marks: the characters of a string keep theirs, escapes take the mark of what they stand
 * for; brackets, commas and quotes around request data are untrusted, since their number and order
 * are the client's. A bare number, None or bool is trusted: it cannot spell a control token. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja_run.h"

/* ---- str and repr ---- */

static void put_hex_escape(struct jinja_text *t, uint32_t cp, bool is_trusted)
{
    char text[16];

    if (cp < 0x100) {
        snprintf(text, sizeof text, "\\x%02" PRIx32, cp);
    } else if (cp < 0x10000) {
        snprintf(text, sizeof text, "\\u%04" PRIx32, cp);
    } else {
        snprintf(text, sizeof text, "\\U%08" PRIx32, cp);
    }
    jinja_text_put_cstr(t, text, is_trusted);
}

static bool is_plain(unsigned char c, char quote)
{
    return c >= 0x20 && c < 0x7f && c != '\\' && c != (unsigned char)quote;
}

static void repr_string(struct jinja_text *t, const struct jinja_string *s)
{
    bool has_single = s->len > 0 && memchr(s->ptr, '\'', s->len);
    char quote = has_single && !memchr(s->ptr, '"', s->len) ? '"' : '\'';

    jinja_text_put(t, &quote, 1, false);
    for (size_t i = 0; i < s->len && !t->failed;) {
        uint32_t cp;
        size_t n, run = i;
        bool mark;
        while (run < s->len && is_plain((unsigned char)s->ptr[run], quote)) {
            run++;
        }
        if (run > i) {
            jinja_text_put_slice(t, s, i, run);
            i = run;
            continue;
        }
        n = utf8_decode(&cp, s->ptr + i, s->len - i);
        mark = jinja_string_mark(s, i);
        if (cp == (unsigned char)quote || cp == '\\') {
            char pair[2] = {'\\', (char)cp};
            jinja_text_put(t, pair, 2, mark);
        } else if (cp == '\n' || cp == '\r' || cp == '\t') {
            jinja_text_put_cstr(t, cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : "\\t", mark);
        } else if (!jinja_is_printable(cp)) {
            put_hex_escape(t, cp, mark);
        } else {
            jinja_text_put_slice(t, s, i, i + n);
        }
        i += n;
    }
    jinja_text_put(t, &quote, 1, false);
}

static void put_float(struct jinja_text *t, double d, bool is_trusted)
{
    char number[32];

    if (isnan(d) || isinf(d)) {
        jinja_text_put_cstr(t, isnan(d) ? "nan" : d < 0 ? "-inf" : "inf", is_trusted);
        return;
    }
    json_float_repr(number, d);
    jinja_text_put_cstr(t, number, is_trusted);
}

static void put_int(struct jinja_text *t, int64_t i, bool is_trusted)
{
    char number[24];

    snprintf(number, sizeof number, "%" PRId64, i);
    jinja_text_put_cstr(t, number, is_trusted);
}

/* True if v was one of the simple kinds. */
static bool put_scalar(struct jinja_text *t, struct jinja_value v, bool is_trusted)
{
    switch ((enum jinja_kind)v.kind) {
    case JINJA_NONE:
        jinja_text_put_cstr(t, "None", is_trusted);
        return true;
    case JINJA_BOOL:
        jinja_text_put_cstr(t, v.as.boolean ? "True" : "False", is_trusted);
        return true;
    case JINJA_INT:
        put_int(t, v.as.integer, is_trusted);
        return true;
    case JINJA_BIGINT:
        jinja_text_put(t, v.as.string->ptr, v.as.string->len, is_trusted);
        return true;
    case JINJA_FLOAT:
        put_float(t, v.as.real, is_trusted);
        return true;
    default:
        return false;
    }
}

static bool repr_items(struct jinja_text *t, const struct jinja_list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        if (i > 0) {
            jinja_text_put(t, ", ", 2, false);
        }
        if (!jinja_repr(t, l->items[i])) {
            return false;
        }
    }
    return true;
}

static bool repr_dict(struct jinja_text *t, const struct jinja_dict *d)
{
    jinja_text_put(t, "{", 1, false);
    for (size_t i = 0; i < d->n; i++) {
        if (i > 0) {
            jinja_text_put(t, ", ", 2, false);
        }
        if (!jinja_repr(t, d->entries[i].key)) {
            return false;
        }
        jinja_text_put(t, ": ", 2, false);
        if (!jinja_repr(t, d->entries[i].value)) {
            return false;
        }
    }
    jinja_text_put(t, "}", 1, false);
    return !t->failed;
}

static bool repr_view(struct jinja_text *t, struct jinja_value v)
{
    static const char *const names[] = {"dict_keys([", "dict_values([", "dict_items(["};
    const struct jinja_dict *d = v.as.dict;

    jinja_text_put_cstr(t, names[v.detail], false);
    for (size_t i = 0; i < d->n; i++) {
        if (i > 0) {
            jinja_text_put(t, ", ", 2, false);
        }
        if (v.detail == JINJA_ITEMS) {
            jinja_text_put(t, "(", 1, false);
        }
        if (v.detail != JINJA_VALUES && !jinja_repr(t, d->entries[i].key)) {
            return false;
        }
        if (v.detail == JINJA_ITEMS) {
            jinja_text_put(t, ", ", 2, false);
        }
        if (v.detail != JINJA_KEYS && !jinja_repr(t, d->entries[i].value)) {
            return false;
        }
        if (v.detail == JINJA_ITEMS) {
            jinja_text_put(t, ")", 1, false);
        }
    }
    jinja_text_put(t, "])", 2, false);
    return !t->failed;
}

static void repr_range(struct jinja_text *t, const struct jinja_range *r)
{
    char text[96];

    if (r->step == 1) {
        snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64 ")", r->start, r->stop);
    } else {
        snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")", r->start,
                 r->stop, r->step);
    }
    jinja_text_put_cstr(t, text, false);
}

static bool repr_loop(struct jinja_text *t, struct jinja_value v)
{
    size_t n;

    if (!jinja_length(t->j, &n, v)) {
        return false;
    }
    jinja_text_put_cstr(t, "<LoopContext ", true);
    put_int(t, (int64_t)v.as.loop->index0 + 1, true);
    jinja_text_put(t, "/", 1, true);
    put_int(t, (int64_t)n, true);
    jinja_text_put(t, ">", 1, true);
    return true;
}

static bool repr_macro(struct jinja_text *t, const struct jinja_macro *m)
{
    if (m->node->kind == NODE_CALL_BLOCK) {
        jinja_text_put_cstr(t, "<Macro anonymous>", true);
    } else {
        jinja_text_put_cstr(t, "<Macro '", true);
        jinja_text_put_string(t, jinja_template_name(t->j->t, m->node->name));
        jinja_text_put_cstr(t, "'>", true);
    }
    return true;
}

static bool repr_inner(struct jinja_text *t, struct jinja_value v)
{
    switch ((enum jinja_kind)v.kind) {
    case JINJA_LIST:
        jinja_text_put(t, "[", 1, false);
        if (!repr_items(t, v.as.list)) {
            return false;
        }
        jinja_text_put(t, "]", 1, false);
        return true;
    case JINJA_TUPLE:
        jinja_text_put(t, "(", 1, false);
        if (!repr_items(t, v.as.list)) {
            return false;
        }
        jinja_text_put_cstr(t, v.as.list->n == 1 ? ",)" : ")", false);
        return true;
    case JINJA_DICT:
        return repr_dict(t, v.as.dict);
    case JINJA_VIEW:
        return repr_view(t, v);
    case JINJA_NAMESPACE:
        jinja_text_put_cstr(t, "<Namespace ", false);
        if (!repr_dict(t, v.as.dict)) {
            return false;
        }
        jinja_text_put(t, ">", 1, false);
        return true;
    case JINJA_RANGE:
        repr_range(t, v.as.range);
        return true;
    case JINJA_LOOP:
        return repr_loop(t, v);
    case JINJA_MACRO:
        return repr_macro(t, v.as.macro);
    case JINJA_FUNCTION:
        jinja_text_put_cstr(t, "<function ", true);
        jinja_text_put_cstr(t, v.as.function->name, true);
        jinja_text_put(t, ">", 1, true);
        return true;
    default: /* Python prints an address here: no two runs agree */
        jinja_text_put_cstr(t, v.kind == JINJA_METHOD ? "<method>" : "<generator>", true);
        return true;
    }
}

bool jinja_repr(struct jinja_text *t, struct jinja_value v)
{
    bool ok;

    if (v.kind == JINJA_STRING) {
        if (v.as.string->is_markup) {
            jinja_text_put_cstr(t, "Markup(", false);
        }
        repr_string(t, v.as.string);
        if (v.as.string->is_markup) {
            jinja_text_put(t, ")", 1, false);
        }
        return !t->failed;
    }
    if (v.kind == JINJA_UNDEFINED) {
        jinja_text_put_cstr(t, "Undefined", false);
        return !t->failed;
    }
    if (put_scalar(t, v, false)) {
        return !t->failed;
    }
    if (!jinja_charge(t->j, 1) || !jinja_enter(t->j)) {
        return false;
    }
    ok = repr_inner(t, v);
    jinja_leave(t->j);
    return ok && !t->failed;
}

bool jinja_print(struct jinja_text *t, struct jinja_value v)
{
    if (v.kind == JINJA_STRING) {
        jinja_text_put_string(t, v.as.string);
        return !t->failed;
    }
    if (v.kind == JINJA_UNDEFINED) {
        return true;
    }
    if (put_scalar(t, v, true)) {
        return !t->failed;
    }
    return jinja_repr(t, v);
}

bool jinja_soft_string(struct jinja_run *j, struct jinja_value *out, struct jinja_value v)
{
    struct jinja_text t;

    if (v.kind == JINJA_STRING) {
        *out = v;
        return true;
    }
    jinja_text_init(&t, j);
    return jinja_print(&t, v) && jinja_text_take(&t, out);
}

bool jinja_to_string(struct jinja_run *j, struct jinja_value *out, struct jinja_value v)
{
    if (v.kind == JINJA_STRING && v.as.string->is_markup) {
        if (!jinja_string_slice(j, out, v.as.string, 0, v.as.string->len)) {
            return false;
        }
        out->as.string->is_markup = false;
        return true;
    }
    return jinja_soft_string(j, out, v);
}

/* ---- JSON ---- */

struct json_writer {
    struct jinja_text *t;
    const struct jinja_json_style *style;
    size_t level;
};

static void json_escape(struct jinja_text *t, uint32_t cp, bool mark)
{
    static const char shorts[] = "btnvfr"; /* 8..13; \v has no short form in JSON */
    char text[16];

    if (cp == '"' || cp == '\\') {
        snprintf(text, sizeof text, "\\%c", (char)cp);
    } else if (cp >= 8 && cp <= 13 && cp != 11) {
        snprintf(text, sizeof text, "\\%c", shorts[cp - 8]);
    } else if (cp >= 0x10000) {
        snprintf(text, sizeof text, "\\u%04x\\u%04x", (unsigned)(0xd800 + ((cp - 0x10000) >> 10)),
                 (unsigned)(0xdc00 + ((cp - 0x10000) & 0x3ff)));
    } else {
        snprintf(text, sizeof text, "\\u%04x", (unsigned)cp);
    }
    jinja_text_put_cstr(t, text, mark);
}

static void json_string(struct json_writer *w, const struct jinja_string *s)
{
    bool ascii = w->style->ensure_ascii;
    size_t begin = 0;

    jinja_text_put(w->t, "\"", 1, false);
    for (size_t i = 0; i < s->len && !w->t->failed;) {
        unsigned char c = (unsigned char)s->ptr[i];
        uint32_t cp = c;
        size_t n = 1;
        if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x7f || !ascii)) {
            i++;
            continue;
        }
        if (c >= 0x80) {
            n = utf8_decode(&cp, s->ptr + i, s->len - i);
        }
        jinja_text_put_slice(w->t, s, begin, i);
        json_escape(w->t, cp, jinja_string_mark(s, i));
        i += n;
        begin = i;
    }
    jinja_text_put_slice(w->t, s, begin, s->len);
    jinja_text_put(w->t, "\"", 1, false);
}

static void json_newline(struct json_writer *w)
{
    if (!w->style->has_indent) {
        return;
    }
    jinja_text_put(w->t, "\n", 1, false);
    for (size_t i = 0; i < w->level; i++) {
        jinja_text_put(w->t, w->style->indent->ptr, w->style->indent->len, false);
    }
}

static void json_comma(struct json_writer *w)
{
    if (w->style->item_separator) {
        jinja_text_put_string(w->t, w->style->item_separator);
    } else {
        jinja_text_put_cstr(w->t, w->style->has_indent ? "," : ", ", false);
    }
    json_newline(w);
}

static void json_simple(struct jinja_text *t, struct jinja_value v)
{
    if (v.kind == JINJA_NONE) {
        jinja_text_put_cstr(t, "null", false);
    } else if (v.kind == JINJA_BOOL) {
        jinja_text_put_cstr(t, v.as.boolean ? "true" : "false", false);
    } else if (v.kind == JINJA_FLOAT && !isfinite(v.as.real)) {
        char number[32];
        json_float_repr(number, v.as.real);
        jinja_text_put_cstr(t, number, false);
    } else {
        (void)put_scalar(t, v, false);
    }
}

static bool is_json_simple(struct jinja_value v)
{
    return v.kind == JINJA_NONE || v.kind == JINJA_BIGINT || jinja_is_number(v);
}

static bool json_key(struct json_writer *w, struct jinja_value key)
{
    if (key.kind == JINJA_STRING) {
        json_string(w, key.as.string);
    } else if (is_json_simple(key)) {
        jinja_text_put(w->t, "\"", 1, false);
        json_simple(w->t, key);
        jinja_text_put(w->t, "\"", 1, false);
    } else {
        return jinja_fail(w->t->j, "keys must be str, int, float, bool or None, not %s",
                          jinja_type_name(key));
    }
    if (w->style->key_separator) {
        jinja_text_put_string(w->t, w->style->key_separator);
    } else {
        jinja_text_put(w->t, ": ", 2, false);
    }
    return true;
}

static bool json_value(struct json_writer *w, struct jinja_value v);

static bool json_list(struct json_writer *w, const struct jinja_list *l)
{
    jinja_text_put(w->t, "[", 1, false);
    if (l->n > 0) {
        w->level++;
        json_newline(w);
        for (size_t i = 0; i < l->n; i++) {
            if (i > 0) {
                json_comma(w);
            }
            if (!json_value(w, l->items[i])) {
                return false;
            }
        }
        w->level--;
        json_newline(w);
    }
    jinja_text_put(w->t, "]", 1, false);
    return true;
}

static bool sorted_keys(struct jinja_run *j, size_t **out, const struct jinja_dict *d)
{
    struct jinja_value *keys = jinja_alloc(j, d->n, sizeof *keys);
    size_t *order = jinja_alloc(j, d->n, sizeof *order);

    if (!keys || !order) {
        return false;
    }
    for (size_t i = 0; i < d->n; i++) {
        keys[i] = d->entries[i].key;
    }
    *out = order;
    return jinja_sort_order(j, order, keys, d->n, false);
}

static bool json_dict(struct json_writer *w, const struct jinja_dict *d)
{
    size_t *order = NULL;

    if (w->style->sort_keys && d->n > 0 && !sorted_keys(w->t->j, &order, d)) {
        return false;
    }
    jinja_text_put(w->t, "{", 1, false);
    if (d->n > 0) {
        w->level++;
        json_newline(w);
        for (size_t i = 0; i < d->n; i++) {
            const struct jinja_entry *e = &d->entries[order ? order[i] : i];
            if (i > 0) {
                json_comma(w);
            }
            if (!json_key(w, e->key) || !json_value(w, e->value)) {
                return false;
            }
        }
        w->level--;
        json_newline(w);
    }
    jinja_text_put(w->t, "}", 1, false);
    return true;
}

static bool json_value(struct json_writer *w, struct jinja_value v)
{
    bool ok;

    if (v.kind == JINJA_STRING) {
        json_string(w, v.as.string);
        return !w->t->failed;
    }
    if (is_json_simple(v)) {
        json_simple(w->t, v);
        return !w->t->failed;
    }
    if (v.kind != JINJA_LIST && v.kind != JINJA_TUPLE && v.kind != JINJA_DICT) {
        return jinja_fail(w->t->j, "Object of type %s is not JSON serializable",
                          jinja_type_name(v));
    }
    if (!jinja_charge(w->t->j, 1) || !jinja_enter(w->t->j)) {
        return false;
    }
    ok = v.kind == JINJA_DICT ? json_dict(w, v.as.dict) : json_list(w, v.as.list);
    jinja_leave(w->t->j);
    return ok && !w->t->failed;
}

bool jinja_tojson(struct jinja_text *t, struct jinja_value v, const struct jinja_json_style *style)
{
    struct json_writer w = {.t = t, .style = style};

    return json_value(&w, v);
}
