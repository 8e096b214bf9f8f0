/* jinja_parse.c - statements, and the template as a whole. See jinja.h and jinja_parse.h.
 *
 * A body is read until one of the tags that may end it; the tag's name is then the current token.
 * Tags that Jinja has but chat templates do not need are refused by name. */
#include "text/jinja_parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_run.h"

enum {
    TEMPLATE_ARENA_BYTES_MAX = 256 << 20
}; /* of the tree of a source of JINJA_SOURCE_BYTES_MAX */

/* ---- shared helpers ---- */

void *jinja_parse_fail(struct jinja_parser *p, int line, const char *fmt, ...)
{
    char text[ERROR_TEXT_BYTES - 32];
    va_list args;

    if (p->rc == OK) {
        va_start(args, fmt);
        (void)vsnprintf(text, sizeof text, fmt, args);
        va_end(args);
        text[utf8_valid_prefix(text, strlen(text))] = '\0'; /* cut inside a character */
        p->rc = error_set(p->err, ERR_FORMAT, "line %d: %s", line, text);
    }
    return NULL;
}

bool jinja_parse_advance(struct jinja_parser *p)
{
    enum status rc;

    if (p->rc != OK) {
        return false;
    }
    p->current = p->next;
    if (p->current.kind == TOKEN_EOF) {
        return true;
    }
    rc = jinja_lex_next(&p->lexer, &p->next);
    if (rc != OK) {
        p->rc = rc;
    }
    return rc == OK;
}

struct jinja_node *jinja_node_new(struct jinja_parser *p, enum jinja_node_kind kind, int line)
{
    struct jinja_node *n = p->rc == OK ? arena_alloc(&p->t->arena, sizeof *n) : NULL;

    if (!n) {
        if (p->rc == OK) {
            p->rc =
                error_set(p->err, ERR_LIMIT, "line %d: the template needs too much memory", line);
        }
        return NULL;
    }
    n->kind = (uint8_t)kind;
    n->line = line;
    n->name = UINT32_MAX;
    n->depth = 1;
    return n;
}

static uint16_t deeper(uint16_t depth, const struct jinja_node *list)
{
    for (; list; list = list->next) {
        depth = list->depth > depth ? list->depth : depth;
    }
    return depth;
}

struct jinja_node *jinja_node_close(struct jinja_parser *p, struct jinja_node *n)
{
    const struct jinja_node *one[] = {n->a, n->b, n->c};
    uint16_t depth = 0;

    for (size_t i = 0; i < 3; i++) {
        depth = one[i] && one[i]->depth > depth ? one[i]->depth : depth;
    }
    depth = deeper(deeper(deeper(depth, n->items), n->body), n->orelse);
    if (depth >= JINJA_NESTING_MAX) {
        return jinja_parse_fail(p, n->line, "nested more than %d levels deep", JINJA_NESTING_MAX);
    }
    n->depth = (uint16_t)(depth + 1);
    return n;
}

static uint32_t hash_name(struct str name)
{
    uint32_t h = 2166136261u;

    for (size_t i = 0; i < name.len; i++) {
        h = (h ^ (unsigned char)name.ptr[i]) * 16777619u;
    }
    return h ^ (h >> 15);
}

uint32_t jinja_template_name_find(const struct jinja_template *t, struct str name)
{
    uint32_t at;

    if (t->n_name_slots == 0) {
        return UINT32_MAX;
    }
    at = hash_name(name) & (t->n_name_slots - 1);
    for (; t->name_slots[at]; at = (at + 1) & (t->n_name_slots - 1)) {
        uint32_t idx = t->name_slots[at] - 1;
        if (str_eq(jinja_slice_of(t->names[idx]), name)) {
            return idx;
        }
    }
    return UINT32_MAX;
}

const struct jinja_string *jinja_template_name(const struct jinja_template *t, uint32_t name)
{
    return t->names[name];
}

/* Room for one more name in the list and the table. */
static bool names_reserve(struct jinja_template *t)
{
    uint32_t cap = t->names_cap ? t->names_cap * 2 : 64;
    struct jinja_string **names;
    bool *is_read;
    uint32_t *slots;

    if (t->n_names < t->names_cap) {
        return true;
    }
    names = arena_array(&t->arena, cap, sizeof *names);
    is_read = arena_array(&t->arena, cap, sizeof *is_read);
    slots = arena_array(&t->arena, (size_t)cap * 2, sizeof *slots);
    if (!names || !is_read || !slots) {
        return false;
    }
    for (uint32_t i = 0; i < t->n_names; i++) {
        uint32_t at = hash_name(jinja_slice_of(t->names[i])) & (cap * 2 - 1);
        while (slots[at]) {
            at = (at + 1) & (cap * 2 - 1);
        }
        slots[at] = i + 1;
        names[i] = t->names[i];
        is_read[i] = t->is_read[i];
    }
    t->names = names;
    t->is_read = is_read;
    t->names_cap = cap;
    t->name_slots = slots;
    t->n_name_slots = cap * 2;
    return true;
}

uint32_t jinja_name_intern(struct jinja_parser *p, struct str name)
{
    struct jinja_template *t = p->t;
    uint32_t idx = jinja_template_name_find(t, name), at;
    struct jinja_string *s;

    if (idx != UINT32_MAX) {
        return idx;
    }
    s = names_reserve(t) ? jinja_lex_string(&t->arena, name) : NULL;
    if (!s) {
        jinja_parse_fail(p, p->current.line, "the template needs too much memory");
        return UINT32_MAX;
    }
    at = hash_name(name) & (t->n_name_slots - 1);
    while (t->name_slots[at]) {
        at = (at + 1) & (t->n_name_slots - 1);
    }
    t->names[t->n_names] = s;
    t->name_slots[at] = ++t->n_names;
    return t->n_names - 1;
}

bool jinja_is_op(const struct jinja_parser *p, int op)
{
    return p->current.kind == TOKEN_OPERATOR && p->current.op == op;
}

bool jinja_is_name(const struct jinja_parser *p, const char *name)
{
    return p->current.kind == TOKEN_NAME && str_eq(p->current.text, str_of(name));
}

bool jinja_skip_op(struct jinja_parser *p, int op)
{
    return jinja_is_op(p, op) && jinja_parse_advance(p);
}

bool jinja_skip_name(struct jinja_parser *p, const char *name)
{
    return jinja_is_name(p, name) && jinja_parse_advance(p);
}

static void fail_expected(struct jinja_parser *p, const char *what)
{
    jinja_parse_fail(p, p->current.line, "expected %s, got '%.*s'", what, (int)p->current.text.len,
                     p->current.text.ptr);
}

bool jinja_expect_op(struct jinja_parser *p, int op)
{
    char what[] = "' '";

    if (!jinja_is_op(p, op)) {
        what[1] = (char)op;
        fail_expected(p, what);
        return false;
    }
    return jinja_parse_advance(p);
}

bool jinja_expect_name(struct jinja_parser *p, struct str *name)
{
    if (p->current.kind != TOKEN_NAME) {
        fail_expected(p, "a name");
        return false;
    }
    *name = p->current.text;
    return jinja_parse_advance(p);
}

static bool expect_block_end(struct jinja_parser *p)
{
    if (p->current.kind != TOKEN_BLOCK_END) {
        fail_expected(p, "the end of the tag");
        return false;
    }
    return jinja_parse_advance(p);
}

/* ---- bodies ---- */

struct body {
    struct jinja_node *first;
    bool ok;
};

static bool is_one_of(const struct jinja_parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++) {
        if (jinja_is_name(p, *ends)) {
            return true;
        }
    }
    return false;
}

static struct jinja_node *parse_statement(struct jinja_parser *p);

static struct jinja_node *parse_print_tag(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, NODE_PRINT, p->current.line);

    if (!n || !jinja_parse_advance(p) || !(n->a = jinja_parse_tuple(p, true, NULL))) {
        return NULL;
    }
    if (p->current.kind != TOKEN_VARIABLE_END) {
        fail_expected(p, "'}}'");
        return NULL;
    }
    return jinja_parse_advance(p) ? jinja_node_close(p, n) : NULL;
}

static struct jinja_node *parse_text(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, NODE_TEXT, p->current.line);

    if (n) {
        n->value = jinja_of_string(jinja_lex_string(&p->t->arena, p->current.text));
        if (!n->value.as.string) {
            return jinja_parse_fail(p, n->line, "the template needs too much memory");
        }
    }
    return n && jinja_parse_advance(p) ? n : NULL;
}

static bool check_known(struct jinja_parser *p)
{
    const struct jinja_node *n = p->unknown;

    if (n) {
        jinja_parse_fail(p, n->line, "no %s named '%.*s'", n->kind == NODE_TEST ? "test" : "filter",
                         (int)n->value.as.string->len, n->value.as.string->ptr);
    }
    return !n;
}

/* Up to one of `ends` (then the current token), or to the end of the file when ends is NULL. */
static bool parse_until(struct jinja_parser *p, struct jinja_node **out, const char *const *ends)
{
    struct jinja_chain body;

    jinja_chain_init(&body);
    for (;;) {
        struct jinja_node *n;
        if (p->rc != OK) {
            return false;
        }
        if (p->current.kind == TOKEN_EOF) {
            if (ends) {
                jinja_parse_fail(p, p->current.line, "the template ends before '%s'", ends[0]);
            }
            break;
        }
        if (p->current.kind == TOKEN_DATA && p->current.text.len == 0) {
            if (!jinja_parse_advance(p)) {
                return false;
            }
            continue;
        }
        if (p->current.kind == TOKEN_DATA) {
            n = parse_text(p);
        } else if (p->current.kind == TOKEN_VARIABLE_BEGIN) {
            n = parse_print_tag(p);
        } else {
            if (!jinja_parse_advance(p)) { /* "{%" */
                return false;
            }
            if (is_one_of(p, ends)) {
                break;
            }
            n = parse_statement(p);
            if (n && !expect_block_end(p)) {
                return false;
            }
        }
        if (!n || !check_known(p)) {
            return false;
        }
        jinja_chain_add(&body, n);
    }
    *out = body.first;
    return p->rc == OK;
}

/* The rest of an opening tag, then the body. last: the closing tag's name is passed over. */
static bool parse_body(struct jinja_parser *p, struct jinja_node **out, const char *const *ends,
                       bool last)
{
    if (jinja_is_op(p, ':') && !jinja_parse_advance(p)) {
        return false;
    }
    return expect_block_end(p) && parse_until(p, out, ends) && (!last || jinja_parse_advance(p));
}

/* A body in a scope of its own: what is unknown in it fails at once, also inside an if. */
static bool parse_own_body(struct jinja_parser *p, struct jinja_node **out, const char *end)
{
    const char *const ends[] = {end, NULL};
    bool was_soft = p->is_soft;
    bool ok;

    p->is_soft = false;
    ok = parse_body(p, out, ends, true);
    p->is_soft = was_soft;
    return ok;
}

/* The body of something that is called: loops around it are out of reach. */
static bool parse_called_body(struct jinja_parser *p, struct jinja_node **out, const char *end)
{
    unsigned n_loops = p->n_loops;
    bool ok;

    p->n_loops = 0;
    ok = parse_own_body(p, out, end);
    p->n_loops = n_loops;
    return ok;
}

/* ---- statements; the current token is the tag's name ---- */

static struct jinja_node *parse_branch(struct jinja_parser *p, struct jinja_node *branch)
{
    static const char *const ends[] = {"endif", "elif", "else", NULL};

    if (!jinja_parse_advance(p) || !(branch->a = jinja_parse_tuple(p, false, NULL)) ||
        !parse_body(p, &branch->body, ends, false)) {
        return NULL;
    }
    return jinja_node_close(p, branch);
}

static struct jinja_node *parse_if_inner(struct jinja_parser *p, struct jinja_node *n)
{
    static const char *const ends[] = {"endif", NULL};
    struct jinja_chain branches;

    jinja_chain_init(&branches);
    do {
        struct jinja_node *branch = jinja_node_new(p, NODE_BRANCH, p->current.line);
        if (!branch || !parse_branch(p, branch)) {
            return NULL;
        }
        jinja_chain_add(&branches, branch);
    } while (jinja_is_name(p, "elif"));
    n->items = branches.first;
    n->n_items = branches.n;
    if (jinja_is_name(p, "else")) {
        if (!jinja_parse_advance(p) || !parse_body(p, &n->orelse, ends, false)) {
            return NULL;
        }
    }
    return jinja_parse_advance(p) ? jinja_node_close(p, n) : NULL;
}

static struct jinja_node *parse_if(struct jinja_parser *p, struct jinja_node *n)
{
    bool was_soft = p->is_soft;

    n->kind = NODE_IF;
    p->is_soft = true;
    n = parse_if_inner(p, n);
    p->is_soft = was_soft;
    return n;
}

static struct jinja_node *parse_for(struct jinja_parser *p, struct jinja_node *n)
{
    static const char *const ends[] = {"endfor", "else", NULL}, *const last[] = {"endfor", NULL};
    bool was_soft = p->is_soft;
    bool ok;

    n->kind = NODE_FOR;
    if (!jinja_parse_advance(p) || !(n->a = jinja_parse_target(p, "in", false))) {
        return NULL;
    }
    if (!jinja_skip_name(p, "in")) {
        fail_expected(p, "'in'");
        return NULL;
    }
    n->b = jinja_parse_tuple(p, false, "recursive");
    if (!n->b || (jinja_skip_name(p, "if") && !(n->c = jinja_parse_expression(p, true)))) {
        return NULL;
    }
    if (jinja_is_name(p, "recursive")) {
        return jinja_parse_fail(p, n->line, "recursive loops are not supported");
    }
    p->is_soft = false;
    p->n_loops++;
    ok = parse_body(p, &n->body, ends, false);
    p->n_loops--;
    if (ok && jinja_is_name(p, "else")) {
        ok = jinja_parse_advance(p) && parse_body(p, &n->orelse, last, false);
    }
    p->is_soft = was_soft;
    return ok && jinja_parse_advance(p) ? jinja_node_close(p, n) : NULL;
}

static struct jinja_node *parse_set(struct jinja_parser *p, struct jinja_node *n)
{
    n->kind = NODE_SET;
    if (!jinja_parse_advance(p) || !(n->a = jinja_parse_target(p, NULL, true))) {
        return NULL;
    }
    if (jinja_skip_op(p, '=')) {
        n->b = jinja_parse_tuple(p, true, NULL);
        return n->b ? jinja_node_close(p, n) : NULL;
    }
    n->kind = NODE_SET_BLOCK;
    if (p->rc != OK || !jinja_parse_filters(p, &n->b, NULL, false) ||
        !parse_own_body(p, &n->body, "endset")) {
        return NULL;
    }
    return jinja_node_close(p, n);
}

/* "(a, b=1)" */
static bool parse_signature(struct jinja_parser *p, struct jinja_node *n)
{
    struct jinja_chain params;
    bool has_default = false;

    jinja_chain_init(&params);
    if (!jinja_expect_op(p, '(')) {
        return false;
    }
    while (!jinja_is_op(p, ')')) {
        struct jinja_node *param = jinja_node_new(p, NODE_PARAM, p->current.line);
        struct str name;
        if (!param || (params.n > 0 && !jinja_expect_op(p, ',')) || !jinja_expect_name(p, &name) ||
            (param->name = jinja_name_intern(p, name)) == UINT32_MAX) {
            return false;
        }
        if (jinja_skip_op(p, '=')) {
            has_default = true;
            param->a = jinja_parse_expression(p, true);
            if (!param->a || !jinja_node_close(p, param)) {
                return false;
            }
        } else if (has_default) {
            jinja_parse_fail(p, param->line,
                             "a parameter without default follows one with a default");
            return false;
        }
        jinja_chain_add(&params, param);
    }
    n->items = params.first;
    n->n_items = params.n;
    return jinja_expect_op(p, ')');
}

static struct jinja_node *parse_macro(struct jinja_parser *p, struct jinja_node *n)
{
    uint8_t outer_uses = p->uses;
    struct str name;
    bool ok;

    n->kind = NODE_MACRO;
    p->uses = 0;
    ok = jinja_parse_advance(p) && jinja_expect_name(p, &name) &&
         (n->name = jinja_name_intern(p, name)) != UINT32_MAX && parse_signature(p, n);
    p->uses = 0; /* only the body counts, not the defaults */
    ok = ok && parse_called_body(p, &n->body, "endmacro");
    n->flags = p->uses;
    for (const struct jinja_node *param = n->items; ok && param; param = param->next) {
        n->flags &= (uint8_t) ~(param->name == p->t->name_varargs  ? USES_VARARGS
                                : param->name == p->t->name_kwargs ? USES_KWARGS
                                : param->name == p->t->name_caller ? USES_CALLER
                                                                   : 0);
    }
    p->uses |= outer_uses;
    return ok ? jinja_node_close(p, n) : NULL;
}

static struct jinja_node *parse_call_block(struct jinja_parser *p, struct jinja_node *n)
{
    uint8_t outer_uses;

    n->kind = NODE_CALL_BLOCK;
    n->name = p->t->name_caller;
    if (!jinja_parse_advance(p) || (jinja_is_op(p, '(') && !parse_signature(p, n)) ||
        !(n->a = jinja_parse_expression(p, true))) {
        return NULL;
    }
    if (n->a->kind != NODE_CALL) {
        return jinja_parse_fail(p, n->line, "a call block needs a call");
    }
    outer_uses = p->uses;
    p->uses = 0;
    if (!parse_called_body(p, &n->body, "endcall")) {
        return NULL;
    }
    n->flags = p->uses;
    p->uses |= outer_uses;
    return jinja_node_close(p, n);
}

static struct jinja_node *parse_filter_block(struct jinja_parser *p, struct jinja_node *n)
{
    n->kind = NODE_FILTER_BLOCK;
    if (!jinja_parse_advance(p) || !jinja_parse_filters(p, &n->b, NULL, true) ||
        !parse_own_body(p, &n->body, "endfilter")) {
        return NULL;
    }
    return jinja_node_close(p, n);
}

static struct jinja_node *parse_with(struct jinja_parser *p, struct jinja_node *n)
{
    struct jinja_chain items;

    n->kind = NODE_WITH;
    jinja_chain_init(&items);
    if (!jinja_parse_advance(p)) {
        return NULL;
    }
    while (p->current.kind != TOKEN_BLOCK_END) {
        struct jinja_node *item = jinja_node_new(p, NODE_WITH_ITEM, p->current.line);
        if (!item || (items.n > 0 && !jinja_expect_op(p, ',')) ||
            !(item->a = jinja_parse_target(p, NULL, false)) || !jinja_expect_op(p, '=') ||
            !(item->b = jinja_parse_expression(p, true)) || !jinja_node_close(p, item)) {
            return NULL;
        }
        jinja_chain_add(&items, item);
    }
    n->items = items.first;
    n->n_items = items.n;
    return parse_own_body(p, &n->body, "endwith") ? jinja_node_close(p, n) : NULL;
}

static struct jinja_node *parse_generation(struct jinja_parser *p, struct jinja_node *n)
{
    n->kind = NODE_GENERATION;
    if (!jinja_parse_advance(p) || !parse_called_body(p, &n->body, "endgeneration")) {
        return NULL;
    }
    return jinja_node_close(p, n);
}

static struct jinja_node *parse_print(struct jinja_parser *p, struct jinja_node *n)
{
    struct jinja_chain items;

    n->kind = NODE_CONCAT; /* {% print a, b %}: one after the other */
    jinja_chain_init(&items);
    if (!jinja_parse_advance(p)) {
        return NULL;
    }
    while (p->current.kind != TOKEN_BLOCK_END) {
        struct jinja_node *item;
        if ((items.n > 0 && !jinja_expect_op(p, ',')) ||
            !(item = jinja_parse_expression(p, true))) {
            return NULL;
        }
        jinja_chain_add(&items, item);
    }
    n->items = items.first;
    n->n_items = items.n;
    if (jinja_node_close(p, n)) {
        struct jinja_node *print = jinja_node_new(p, NODE_PRINT, n->line);
        if (print) {
            print->a = n;
            return jinja_node_close(p, print);
        }
    }
    return NULL;
}

static struct jinja_node *parse_loop_control(struct jinja_parser *p, struct jinja_node *n)
{
    bool is_break = jinja_is_name(p, "break");

    n->kind = is_break ? NODE_BREAK : NODE_CONTINUE;
    if (p->n_loops == 0) {
        return jinja_parse_fail(p, n->line, "'%s' outside a loop", is_break ? "break" : "continue");
    }
    return jinja_parse_advance(p) ? n : NULL;
}

typedef struct jinja_node *statement_fn(struct jinja_parser *p, struct jinja_node *n);

static struct jinja_node *parse_statement(struct jinja_parser *p)
{
    static const struct {
        const char *tag;
        statement_fn *parse; /* NULL: Jinja has it, we refuse it by name */
    } tags[] = {{"if", parse_if},
                {"for", parse_for},
                {"set", parse_set},
                {"macro", parse_macro},
                {"call", parse_call_block},
                {"filter", parse_filter_block},
                {"with", parse_with},
                {"generation", parse_generation},
                {"print", parse_print},
                {"break", parse_loop_control},
                {"continue", parse_loop_control},
                {"include", NULL},
                {"import", NULL},
                {"from", NULL},
                {"extends", NULL},
                {"block", NULL},
                {"autoescape", NULL},
                {"do", NULL}};
    struct jinja_node *n = jinja_node_new(p, NODE_TEXT, p->current.line);
    int line = p->current.line;

    if (!n) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        if (!jinja_is_name(p, tags[i].tag)) {
            continue;
        }
        if (!tags[i].parse) {
            return jinja_parse_fail(p, line, "the tag '%s' is not supported", tags[i].tag);
        }
        if (p->depth >= JINJA_NESTING_MAX) {
            return jinja_parse_fail(p, line, "nested more than %d levels deep", JINJA_NESTING_MAX);
        }
        p->depth++;
        n = tags[i].parse(p, n);
        p->depth--;
        return n;
    }
    return jinja_parse_fail(p, line, "unknown tag '%.*s'", (int)p->current.text.len,
                            p->current.text.ptr);
}

/* ---- the template ---- */

static bool intern_special(struct jinja_parser *p)
{
    struct jinja_template *t = p->t;

    t->name_loop = jinja_name_intern(p, STR("loop"));
    t->name_caller = jinja_name_intern(p, STR("caller"));
    t->name_varargs = jinja_name_intern(p, STR("varargs"));
    t->name_kwargs = jinja_name_intern(p, STR("kwargs"));
    return p->rc == OK;
}

static enum status compile(struct jinja_template *t, struct str source, struct error *err)
{
    struct jinja_parser p = {.t = t, .err = err};
    struct str text;
    enum status rc = jinja_lex_normalise(&text, &t->arena, source, err);

    if (rc != OK) {
        return rc;
    }
    jinja_lex_init(&p.lexer, &t->arena, text, err);
    if (intern_special(&p)) {
        p.next = (struct jinja_token){.kind = TOKEN_DATA, .text = STR("")};
        if (jinja_parse_advance(&p) && jinja_parse_advance(&p)) {
            (void)parse_until(&p, &t->body, NULL);
        }
    }
    return p.rc;
}

enum status jinja_template_new(struct jinja_template **out, struct str source, struct error *err)
{
    struct jinja_template *t;
    enum status rc;
    size_t valid;

    *out = NULL;
    if (source.len > JINJA_SOURCE_BYTES_MAX) {
        return error_set(err, ERR_LIMIT, "the template has %zu bytes, more than %d", source.len,
                         JINJA_SOURCE_BYTES_MAX);
    }
    valid = source.len ? utf8_valid_prefix(source.ptr, source.len) : 0;
    if (valid < source.len) {
        return error_set(err, ERR_FORMAT, "the template is not UTF-8 at byte %zu", valid);
    }
    t = calloc(1, sizeof *t);
    if (!t) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a template");
    }
    arena_init(&t->arena, TEMPLATE_ARENA_BYTES_MAX);
    rc = compile(t, source, err);
    if (rc != OK) {
        jinja_template_free(t);
        return rc;
    }
    *out = t;
    return OK;
}

void jinja_template_free(struct jinja_template *t)
{
    if (t) {
        arena_release(&t->arena);
        free(t);
    }
}

bool jinja_template_reads(const struct jinja_template *t, struct str variable)
{
    uint32_t name = jinja_template_name_find(t, variable);

    return name != UINT32_MAX && t->is_read[name];
}
