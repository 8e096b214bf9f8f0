/* jinja_render.c - one rendering from variables to runs. See jinja.h. */
#include <stdlib.h>
#include <string.h>

#include "text/jinja_run.h"

/* ---- variables ---- */

static bool is_role_word(struct str s)
{
    static const char *const words[] = {"system", "user",     "assistant",
                                        "tool",   "function", "developer"};

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (str_eq(s, str_of(words[i]))) {
            return true;
        }
    }
    return false;
}

/* Templates build control tokens around the role ("<|user|>"); it is one of a few fixed words, so
 * it may count as the template's own text. */
static void trust_roles(struct jinja_list *items)
{
    for (size_t i = 0; i < items->n; i++) {
        struct jinja_value *role = items->items[i].kind == JINJA_DICT
                                       ? jinja_dict_get(items->items[i].as.dict, STR("role"))
                                       : NULL;
        if (role && role->kind == JINJA_STRING && is_role_word(jinja_slice_of(role->as.string))) {
            role->as.string->is_trusted = true;
        }
    }
}

static bool bind_variables(struct jinja_run *j, const struct jinja_variables *v,
                           const struct jinja_options *o)
{
    if (!v->object) {
        return true;
    }
    json_object_object_foreach(v->object, key, member)
    {
        struct jinja_value value;
        uint32_t name = jinja_template_name_find(j->t, str_of(key));
        if (name == UINT32_MAX) {
            continue; /* the template does not look at it */
        }
        if (!jinja_from_json(j, &value, member, v->is_trusted) ||
            !jinja_scope_set(j, j->scope, name, value)) {
            return false;
        }
        if (o->watched && strcmp(key, o->watched) == 0 && value.kind == JINJA_LIST) {
            j->watched = value.as.list;
            if (o->roles_trusted) {
                trust_roles(value.as.list);
            }
        }
    }
    return true;
}

/* The item of the watched list that the innermost loop over such items was at. */
static size_t find_watched(const struct jinja_run *j)
{
    for (const struct jinja_loop *l = j->loop; l && j->watched; l = l->outer) {
        for (size_t i = 0; l->current.kind == JINJA_DICT && i < j->watched->n; i++) {
            if (j->watched->items[i].kind == JINJA_DICT &&
                j->watched->items[i].as.dict == l->current.as.dict) {
                return i;
            }
        }
    }
    return SIZE_MAX;
}

/* ---- runs ---- */

static bool mark_at(const struct jinja_text *t, size_t i)
{
    return t->marks ? t->marks[i] != 0 : t->is_trusted;
}

static size_t run_end(const struct jinja_text *t, size_t begin)
{
    const uint8_t *hit;

    if (!t->marks) {
        return t->len;
    }
    hit = memchr(t->marks + begin, !t->marks[begin], t->len - begin);
    return hit ? (size_t)(hit - t->marks) : t->len;
}

static enum status make_runs(struct jinja_result *out, const struct jinja_text *t,
                             struct error *err)
{
    size_t n = 0;

    for (size_t at = 0; at < t->len; at = run_end(t, at)) {
        n++;
    }
    if (t->len == 0) {
        return OK;
    }
    buf_append(&out->text, t->data, t->len);
    out->runs = calloc(n, sizeof *out->runs);
    if (!buf_ok(&out->text) || !out->runs) {
        return error_set(err, ERR_NO_MEMORY, "cannot keep a rendered prompt of %zu bytes", t->len);
    }
    for (size_t at = 0; at < t->len;) {
        size_t end = run_end(t, at);
        out->runs[out->n_runs++] = (struct text_run){.text = {out->text.data + at, end - at},
                                                     .is_trusted = mark_at(t, at)};
        at = end;
    }
    return OK;
}

void jinja_result_release(struct jinja_result *r)
{
    buf_release(&r->text);
    free(r->runs);
    *r = (struct jinja_result){0};
}

/* ---- rendering ---- */

static enum status run_template(struct jinja_result *out, struct jinja_run *j,
                                const struct jinja_options *o, struct error *err)
{
    struct jinja_text text;

    jinja_text_init(&text, j);
    j->out = &text;
    j->scope = jinja_scope_new(j, NULL);
    for (size_t i = 0; j->scope && i < o->n_variables; i++) {
        if (!bind_variables(j, &o->variables[i], o)) {
            break;
        }
    }
    if (!j->failed) {
        j->scope = jinja_scope_new(j, j->scope); /* {% set %} hides a variable, not replaces it */
    }
    if (j->failed || jinja_exec(j, j->t->body) == JINJA_FLOW_FAILED || text.failed) {
        out->watched_idx = find_watched(j);
        if (err) {
            *err = j->error;
        }
        return j->error.code;
    }
    return make_runs(out, &text, err);
}

enum status jinja_render(struct jinja_result *out, const struct jinja_template *t,
                         const struct jinja_options *o, struct error *err)
{
    struct jinja_run j = {.t = t,
                          .steps_left = o->steps_max,
                          .output_bytes_max = o->output_bytes_max,
                          .now_s = o->now_s,
                          .line = 1,
                          .empty = {.ptr = "", .is_trusted = true, .n_chars = 0}};
    enum status rc;

    *out = (struct jinja_result){.watched_idx = SIZE_MAX};
    buf_init(&out->text);
    arena_init(&j.arena, o->memory_bytes_max);
    rc = run_template(out, &j, o, err);
    arena_release(&j.arena);
    if (rc != OK) {
        size_t idx = out->watched_idx;
        jinja_result_release(out);
        out->watched_idx = idx;
    }
    return rc;
}
