/* jinja_eval.c - expressions. See jinja_run.h.
 *
 * Each node costs a step and a level of depth, so that hostile templates end in an error and not in
 * a full stack. */
#include "text/jinja_run.h"

#include <string.h>

/* ---- names ---- */

bool jinja_lookup(struct jinja_run *j, struct jinja_value *out, uint32_t name)
{
    const struct jinja_builtin *b;

    for (const struct jinja_scope *s = j->scope; s; s = s->parent) {
        for (size_t i = 0; i < s->n; i++) {
            if (s->bindings[i].name == name) {
                *out = s->bindings[i].value;
                if (out->kind == JINJA_MISSING) { /* a parameter that a default reads too early */
                    *out = jinja_undefined(JINJA_NO_PARAMETER, 0, j->t->names[name]);
                }
                return true;
            }
        }
        if (!jinja_charge(j, s->n / 32)) {
            return false;
        }
    }
    b = jinja_builtin_find(jinja_globals, jinja_slice_of(j->t->names[name]));
    *out = b ? (struct jinja_value){.kind = JINJA_FUNCTION, .as.function = b}
             : jinja_undefined(JINJA_NO_NAME, 0, j->t->names[name]);
    return true;
}

/* ---- calls ---- */

const struct jinja_builtin *jinja_builtin_find(const struct jinja_builtin *table, struct str name)
{
    for (; table->name; table++) {
        if (str_eq(str_of(table->name), name)) {
            return table;
        }
    }
    return NULL;
}

static size_t count_params(const char *params)
{
    size_t n = *params ? 1 : 0;

    for (; *params; params++) {
        n += *params == ',';
    }
    return n;
}

/* The position of a parameter's name in the list, or SIZE_MAX. */
static size_t find_param(const char *params, struct str name)
{
    for (size_t i = 0; *params; i++) {
        size_t n = strcspn(params, ",");
        if (str_eq((struct str){params, n}, name)) {
            return i;
        }
        params += n + (params[n] == ',');
    }
    return SIZE_MAX;
}

bool jinja_call_builtin(struct jinja_run *j, const struct jinja_builtin *b, struct jinja_value self,
                        const struct jinja_call *call, struct jinja_value *out)
{
    struct jinja_value arg[JINJA_PARAMS_MAX] = {{0}};
    const char *params = b->params;
    bool by_position = *params == '/';
    size_t n;

    if (!b->fn) {
        return jinja_fail(j, "'%s' is not supported", b->name);
    }
    if (strcmp(params, "*") == 0) {
        return b->fn(j, b, self, NULL, call, out);
    }
    params += by_position;
    n = count_params(params);
    if (call->n_args > n) {
        return jinja_fail(j, "%s() takes at most %zu arguments (%zu given)", b->name, n,
                          call->n_args);
    }
    for (size_t i = 0; i < call->n_args; i++) {
        arg[i] = call->args[i];
    }
    for (size_t i = 0; i < call->n_named; i++) {
        struct str name = jinja_slice_of(call->names[i]);
        size_t at = by_position ? SIZE_MAX : find_param(params, name);
        if (at == SIZE_MAX || arg[at].kind != JINJA_MISSING) {
            return jinja_fail(j, "%s() got an unexpected or repeated keyword argument '%.*s'",
                              b->name, (int)name.len, name.ptr);
        }
        arg[at] = call->named[i];
    }
    for (size_t i = 0; i < b->n_required; i++) {
        if (arg[i].kind == JINJA_MISSING) {
            return jinja_fail(j, "%s() lacks argument %zu", b->name, i + 1);
        }
    }
    return b->fn(j, b, self, arg, call, out);
}

bool jinja_call_value(struct jinja_run *j, struct jinja_value callee, const struct jinja_call *call,
                      struct jinja_value *out)
{
    switch ((enum jinja_kind)callee.kind) {
    case JINJA_FUNCTION:
        return jinja_call_builtin(j, callee.as.function, (struct jinja_value){0}, call, out);
    case JINJA_METHOD:
        return jinja_call_builtin(j, callee.as.method->b, callee.as.method->self, call, out);
    case JINJA_MACRO:
        return jinja_call_macro(j, callee.as.macro, call, out);
    case JINJA_UNDEFINED:
        return jinja_fail_undefined(j, callee);
    default:
        return jinja_fail(j, "'%s' object is not callable", jinja_type_name(callee));
    }
}

static bool add_named(struct jinja_run *j, struct jinja_call *call, size_t cap,
                      struct jinja_string *name, struct jinja_value v)
{
    for (size_t i = 0; i < call->n_named; i++) {
        if (!jinja_charge(j, 1)) {
            return false;
        }
        if (str_eq(jinja_slice_of(call->names[i]), jinja_slice_of(name))) {
            return jinja_fail(j, "keyword argument '%.*s' is given twice", (int)name->len,
                              name->ptr);
        }
    }
    if (call->n_named >= cap) {
        return jinja_fail(j, "too many keyword arguments");
    }
    call->names[call->n_named] = name;
    call->named[call->n_named++] = v;
    return true;
}

/* **v */
static bool add_mapping(struct jinja_run *j, struct jinja_call *call, size_t n_more,
                        struct jinja_value v)
{
    size_t cap = call->n_named + n_more;
    struct jinja_string **names;
    struct jinja_value *named;

    if (v.kind != JINJA_DICT) {
        return v.kind == JINJA_UNDEFINED
                   ? jinja_fail_undefined(j, v)
                   : jinja_fail(j, "argument after ** must be a mapping, not %s",
                                jinja_type_name(v));
    }
    cap += v.as.dict->n;
    names = jinja_alloc(j, cap, sizeof(struct jinja_string *));
    named = jinja_alloc(j, cap, sizeof *named);
    if (!names || !named) {
        return false;
    }
    for (size_t i = 0; i < call->n_named; i++) {
        names[i] = call->names[i];
        named[i] = call->named[i];
    }
    call->names = names;
    call->named = named;
    for (size_t i = 0; i < v.as.dict->n; i++) {
        struct jinja_value key = v.as.dict->entries[i].key;
        if (key.kind != JINJA_STRING) {
            return jinja_fail(j, "keywords must be strings");
        }
        if (!add_named(j, call, cap, key.as.string, v.as.dict->entries[i].value)) {
            return false;
        }
    }
    return true;
}

/* *v: the arguments become a list with its items behind. */
static bool add_sequence(struct jinja_run *j, struct jinja_call *call, struct jinja_value v)
{
    struct jinja_value before, more, all;

    if (!jinja_list_new(j, &before, JINJA_LIST, 0) || !jinja_iter_list(j, &more, v)) {
        return false;
    }
    for (size_t i = 0; i < call->n_args; i++) {
        if (!jinja_list_push(j, before.as.list, call->args[i])) {
            return false;
        }
    }
    if (!jinja_list_concat(j, &all, JINJA_LIST, before.as.list, more.as.list)) {
        return false;
    }
    call->args = all.as.list->items;
    call->n_args = all.as.list->n;
    return true;
}

static bool eval_argument(struct jinja_run *j, const struct jinja_node *n, struct jinja_call *call,
                          size_t cap)
{
    struct jinja_value v;

    if (!jinja_eval(
            j,
            n->kind == NODE_KEYWORD || n->kind == NODE_STAR || n->kind == NODE_STAR_STAR ? n->a : n,
            &v)) {
        return false;
    }
    switch ((enum jinja_node_kind)n->kind) {
    case NODE_KEYWORD:
        return add_named(j, call, cap, n->value.as.string, v);
    case NODE_STAR:
        return add_sequence(j, call, v);
    case NODE_STAR_STAR:
        return add_mapping(j, call, 1, v); /* 1: a call block adds `caller` */
    default:
        call->args[call->n_args++] = v;
        return true;
    }
}

bool jinja_eval_call(struct jinja_run *j, const struct jinja_node *n, struct jinja_call *out)
{
    size_t cap = (size_t)n->n_items + 1; /* + 1: a call block adds `caller` */

    *out = (struct jinja_call){0};
    if (n->n_items == 0) {
        return true;
    }
    out->args = jinja_alloc(j, cap, sizeof *out->args);
    out->names = jinja_alloc(j, cap, sizeof(struct jinja_string *));
    out->named = jinja_alloc(j, cap, sizeof *out->named);
    if (!out->args || !out->names || !out->named) {
        return false;
    }
    for (const struct jinja_node *item = n->items; item; item = item->next) {
        if (!eval_argument(j, item, out, cap)) {
            return false;
        }
    }
    return true;
}

static bool eval_call(struct jinja_run *j, const struct jinja_node *n, struct jinja_value *out)
{
    struct jinja_value callee;
    struct jinja_call call;

    if (!jinja_eval(j, n->a, &callee) || !jinja_eval_call(j, n, &call)) {
        return false;
    }
    j->line = n->line;
    return jinja_call_value(j, callee, &call, out);
}

static bool fail_unknown(struct jinja_run *j, const struct jinja_node *n, const char *what)
{
    return jinja_fail(j, "no %s named '%.*s'", what, (int)n->value.as.string->len,
                      n->value.as.string->ptr);
}

bool jinja_apply_filter(struct jinja_run *j, const struct jinja_node *n, struct jinja_value self,
                        struct jinja_value *out)
{
    struct jinja_call call;

    if (n->a) { /* the chain's earlier filters first */
        if (!jinja_enter(j)) {
            return false;
        }
        if (!jinja_apply_filter(j, n->a, self, &self)) {
            return false;
        }
        jinja_leave(j);
    }
    if (!jinja_eval_call(j, n, &call)) {
        return false;
    }
    j->line = n->line;
    return n->fn ? jinja_call_builtin(j, n->fn, self, &call, out) : fail_unknown(j, n, "filter");
}

static bool eval_filter_or_test(struct jinja_run *j, const struct jinja_node *n,
                                struct jinja_value *out)
{
    struct jinja_value input;
    struct jinja_call call;

    if (!jinja_eval(j, n->a, &input) || !jinja_eval_call(j, n, &call)) {
        return false;
    }
    j->line = n->line;
    if (!n->fn) {
        return fail_unknown(j, n, n->kind == NODE_FILTER ? "filter" : "test");
    }
    return jinja_call_builtin(j, n->fn, input, &call, out);
}

/* ---- operators ---- */

static bool compare_one(struct jinja_run *j, bool *out, enum jinja_compare_op op,
                        struct jinja_value a, struct jinja_value b)
{
    static const char *const symbols[] = {"==", "!=", "<", "<=", ">", ">=", "in", "not in"};
    int order;

    if (op == OP_EQ || op == OP_NE) {
        if (!jinja_equal(j, out, a, b)) {
            return false;
        }
        *out = *out == (op == OP_EQ);
        return true;
    }
    if (op == OP_IN || op == OP_NOT_IN) {
        if (!jinja_contains(j, out, b, a)) {
            return false;
        }
        *out = *out == (op == OP_IN);
        return true;
    }
    if (!jinja_compare(j, &order, a, b, symbols[op])) {
        return false;
    }
    *out = op == OP_LT   ? order == -1
           : op == OP_LE ? order == -1 || order == 0
           : op == OP_GT ? order == 1
                         : order == 1 || order == 0;
    return true;
}

static bool eval_compare(struct jinja_run *j, const struct jinja_node *n, struct jinja_value *out)
{
    struct jinja_value left, right;
    bool holds = true;

    if (!jinja_eval(j, n->a, &left)) {
        return false;
    }
    for (const struct jinja_node *o = n->items; o && holds; o = o->next) {
        if (!jinja_eval(j, o->a, &right)) {
            return false;
        }
        j->line = n->line;
        if (!compare_one(j, &holds, (enum jinja_compare_op)o->op, left, right)) {
            return false;
        }
        left = right;
    }
    *out = jinja_bool(holds);
    return true;
}

static bool eval_concat(struct jinja_run *j, const struct jinja_node *n, struct jinja_value *out)
{
    *out = jinja_of_string(&j->empty);
    for (const struct jinja_node *item = n->items; item; item = item->next) {
        struct jinja_value v;
        if (!jinja_eval(j, item, &v) || !jinja_to_string(j, &v, v) ||
            !jinja_string_concat(j, out, out->as.string, v.as.string)) {
            return false;
        }
    }
    return true;
}

/* The negative of digits: a smaller one may fit in 64 bits again. */
static bool negate_big(struct jinja_run *j, struct jinja_value *out, const struct jinja_string *s)
{
    struct jinja_text t;
    bool is_negative = s->len > 0 && s->ptr[0] == '-';

    if (str_eq(jinja_slice_of(s), STR("9223372036854775808"))) {
        *out = jinja_int(INT64_MIN);
        return true;
    }
    jinja_text_init(&t, j);
    jinja_text_put_cstr(&t, is_negative ? "" : "-", true);
    jinja_text_put_slice(&t, s, is_negative, s->len);
    if (!jinja_text_take(&t, out)) {
        return false;
    }
    out->kind = JINJA_BIGINT;
    return true;
}

static bool eval_sign(struct jinja_run *j, const struct jinja_node *n, struct jinja_value *out)
{
    struct jinja_value v;

    if (!jinja_eval(j, n->a, &v)) {
        return false;
    }
    if (v.kind == JINJA_UNDEFINED) {
        return jinja_fail_undefined(j, v);
    }
    if (v.kind == JINJA_BIGINT) {
        *out = v;
        return n->kind == NODE_POS || negate_big(j, out, v.as.string);
    }
    if (!jinja_is_number(v)) {
        return jinja_fail(j, "bad operand type for unary %c: '%s'", n->kind == NODE_NEG ? '-' : '+',
                          jinja_type_name(v));
    }
    if (n->kind == NODE_POS) {
        *out = v.kind == JINJA_FLOAT ? v : jinja_int(jinja_integer(v));
        return true;
    }
    if (v.kind == JINJA_FLOAT) {
        *out = jinja_float(-v.as.real);
        return true;
    }
    return jinja_arithmetic(j, out, JINJA_SUB, jinja_int(0), v);
}

/* ---- literals ---- */

static bool eval_list(struct jinja_run *j, const struct jinja_node *n, struct jinja_value *out)
{
    if (!jinja_list_new(j, out, n->kind == NODE_LIST ? JINJA_LIST : JINJA_TUPLE, n->n_items)) {
        return false;
    }
    for (const struct jinja_node *item = n->items; item; item = item->next) {
        struct jinja_value v;
        if (!jinja_eval(j, item, &v) || !jinja_list_push(j, out->as.list, v)) {
            return false;
        }
    }
    return true;
}

static bool eval_dict(struct jinja_run *j, const struct jinja_node *n, struct jinja_value *out)
{
    if (!jinja_dict_new(j, out)) {
        return false;
    }
    for (const struct jinja_node *pair = n->items; pair; pair = pair->next) {
        struct jinja_value key, v;
        if (!jinja_eval(j, pair->a, &key) || !jinja_eval(j, pair->b, &v) ||
            !jinja_dict_set(j, out->as.dict, key, v)) {
            return false;
        }
    }
    return true;
}

static bool eval_slice(struct jinja_run *j, const struct jinja_node *n, struct jinja_value *out)
{
    struct jinja_value object, bound[3];
    const struct jinja_node *b = n->items;

    if (!jinja_eval(j, n->a, &object)) {
        return false;
    }
    for (int i = 0; i < 3; i++, b = b->next) {
        if (!jinja_eval(j, b, &bound[i])) {
            return false;
        }
    }
    j->line = n->line;
    return jinja_slice(j, out, object, bound);
}

static bool eval_cond(struct jinja_run *j, const struct jinja_node *n, struct jinja_value *out)
{
    if (!jinja_eval(j, n->a, out)) {
        return false;
    }
    if (jinja_truth(*out)) {
        return jinja_eval(j, n->b, out);
    }
    if (n->c) {
        return jinja_eval(j, n->c, out);
    }
    *out = jinja_undefined(JINJA_EMPTY, 0, NULL);
    return true;
}

static bool eval_binary(struct jinja_run *j, const struct jinja_node *n, struct jinja_value *out)
{
    struct jinja_value a, b;

    if (!jinja_eval(j, n->a, &a) || !jinja_eval(j, n->b, &b)) {
        return false;
    }
    j->line = n->line;
    return n->kind == NODE_ITEM ? jinja_get_item(j, out, a, b)
                                : jinja_arithmetic(j, out, (enum jinja_op)n->op, a, b);
}

static bool eval_kind(struct jinja_run *j, const struct jinja_node *n, struct jinja_value *out)
{
    switch ((enum jinja_node_kind)n->kind) {
    case NODE_CONST:
        *out = n->value;
        return true;
    case NODE_NAME:
        return jinja_lookup(j, out, n->name);
    case NODE_LIST:
    case NODE_TUPLE:
        return eval_list(j, n, out);
    case NODE_DICT:
        return eval_dict(j, n, out);
    case NODE_AND:
    case NODE_OR:
        if (!jinja_eval(j, n->a, out)) {
            return false;
        }
        return jinja_truth(*out) == (n->kind == NODE_OR) || jinja_eval(j, n->b, out);
    case NODE_NOT:
        if (!jinja_eval(j, n->a, out)) {
            return false;
        }
        *out = jinja_bool(!jinja_truth(*out));
        return true;
    case NODE_NEG:
    case NODE_POS:
        return eval_sign(j, n, out);
    case NODE_ARITH:
    case NODE_ITEM:
        return eval_binary(j, n, out);
    case NODE_CONCAT:
        return eval_concat(j, n, out);
    case NODE_COMPARE:
        return eval_compare(j, n, out);
    case NODE_COND:
        return eval_cond(j, n, out);
    case NODE_ATTRIBUTE: {
        struct jinja_value object;
        if (!jinja_eval(j, n->a, &object)) {
            return false;
        }
        j->line = n->line;
        return jinja_get_attribute(j, out, object, n->value.as.string);
    }
    case NODE_SLICE:
        return eval_slice(j, n, out);
    case NODE_CALL:
        return eval_call(j, n, out);
    case NODE_FILTER:
    case NODE_TEST:
        return eval_filter_or_test(j, n, out);
    default:
        return jinja_fail(j, "not an expression"); /* the parser makes no such tree */
    }
}

bool jinja_eval(struct jinja_run *j, const struct jinja_node *n, struct jinja_value *out)
{
    bool ok;

    j->line = n->line;
    if (!jinja_charge(j, 1) || !jinja_enter(j)) {
        return false;
    }
    ok = eval_kind(j, n, out);
    jinja_leave(j);
    return ok;
}
