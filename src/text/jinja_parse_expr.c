/* jinja_parse_expr.c - expressions, by operator precedence. See jinja_parse.h.
 *
 * From loose to tight: a if b else c, or, and, not, comparisons (chained), + -, ~, * / // %, **
 * (left to right, as Jinja has it), unary - and +, then .name [item] (call) and |filter, is test. */
#include "text/jinja_parse.h"

#include <string.h>

#include "text/jinja_run.h"

enum power {
    POWER_OR = 1,
    POWER_AND,
    POWER_NOT,
    POWER_COMPARE,
    POWER_SUM,
    POWER_CONCAT,
    POWER_PRODUCT,
    POWER_POW
};

static struct jinja_node *parse_unary(struct jinja_parser *p, bool with_filter);

/* Guards the recursion of the parser itself. */
static bool enter(struct jinja_parser *p)
{
    if (p->depth >= JINJA_NESTING_MAX) {
        jinja_parse_fail(p, p->current.line, "nested more than %d levels deep", JINJA_NESTING_MAX);
        return false;
    }
    p->depth++;
    return true;
}

/* ---- primary ---- */

static struct jinja_node *constant(struct jinja_parser *p, struct jinja_value v)
{
    struct jinja_node *n = jinja_node_new(p, NODE_CONST, p->current.line);

    if (n) {
        n->value = v;
    }
    return n && jinja_parse_advance(p) ? n : NULL;
}

static struct jinja_node *parse_name(struct jinja_parser *p)
{
    struct str name = p->current.text;
    struct jinja_node *n;

    if (str_eq(name, STR("true")) || str_eq(name, STR("True"))) {
        return constant(p, jinja_bool(true));
    }
    if (str_eq(name, STR("false")) || str_eq(name, STR("False"))) {
        return constant(p, jinja_bool(false));
    }
    if (str_eq(name, STR("none")) || str_eq(name, STR("None"))) {
        return constant(p, jinja_none());
    }
    n = jinja_node_new(p, NODE_NAME, p->current.line);
    if (!n || (n->name = jinja_name_intern(p, name)) == UINT32_MAX) {
        return NULL;
    }
    p->t->is_read[n->name] |= !p->is_target;
    p->uses |= (uint8_t)((n->name == p->t->name_varargs ? USES_VARARGS : 0) |
                         (n->name == p->t->name_kwargs ? USES_KWARGS : 0) |
                         (n->name == p->t->name_caller ? USES_CALLER : 0));
    return jinja_parse_advance(p) ? n : NULL;
}

/* Strings side by side are one. */
static struct jinja_node *parse_string(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, NODE_CONST, p->current.line);
    struct buf joined;
    struct jinja_string *s;
    char *copy;

    if (!n) {
        return NULL;
    }
    n->value = p->current.value;
    if (p->next.kind != TOKEN_STRING) {
        return jinja_parse_advance(p) ? n : NULL;
    }
    buf_init_limited(&joined, JINJA_SOURCE_BYTES_MAX);
    while (p->current.kind == TOKEN_STRING) {
        s = p->current.value.as.string;
        buf_append(&joined, s->ptr, s->len);
        if (!jinja_parse_advance(p)) {
            buf_release(&joined);
            return NULL;
        }
    }
    copy = buf_ok(&joined) ? arena_copy(&p->t->arena, buf_cstr(&joined), joined.len) : NULL;
    s = copy ? jinja_lex_string(&p->t->arena, (struct str){copy, joined.len}) : NULL;
    buf_release(&joined);
    if (!s) {
        return jinja_parse_fail(p, n->line, "the template needs too much memory");
    }
    n->value = jinja_of_string(s);
    return n;
}

static struct jinja_node *parse_list(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, NODE_LIST, p->current.line);
    struct jinja_chain items;

    jinja_chain_init(&items);
    if (!n || !jinja_expect_op(p, '[')) {
        return NULL;
    }
    while (!jinja_is_op(p, ']')) {
        struct jinja_node *item;
        if (items.n > 0 && !jinja_expect_op(p, ',')) {
            return NULL;
        }
        if (jinja_is_op(p, ']')) {
            break;
        }
        item = jinja_parse_expression(p, true);
        if (!item) {
            return NULL;
        }
        jinja_chain_add(&items, item);
    }
    n->items = items.first;
    n->n_items = items.n;
    return jinja_expect_op(p, ']') ? jinja_node_close(p, n) : NULL;
}

static struct jinja_node *parse_pair(struct jinja_parser *p)
{
    struct jinja_node *pair = jinja_node_new(p, NODE_PAIR, p->current.line);

    if (!pair || !(pair->a = jinja_parse_expression(p, true)) || !jinja_expect_op(p, ':') ||
        !(pair->b = jinja_parse_expression(p, true))) {
        return NULL;
    }
    return jinja_node_close(p, pair);
}

static struct jinja_node *parse_dict(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, NODE_DICT, p->current.line);
    struct jinja_chain items;

    jinja_chain_init(&items);
    if (!n || !jinja_expect_op(p, '{')) {
        return NULL;
    }
    while (!jinja_is_op(p, '}')) {
        struct jinja_node *pair;
        if (items.n > 0 && !jinja_expect_op(p, ',')) {
            return NULL;
        }
        if (jinja_is_op(p, '}')) {
            break;
        }
        pair = parse_pair(p);
        if (!pair) {
            return NULL;
        }
        jinja_chain_add(&items, pair);
    }
    n->items = items.first;
    n->n_items = items.n;
    return jinja_expect_op(p, '}') ? jinja_node_close(p, n) : NULL;
}

/* ---- tuples ---- */

struct tuple_rules {
    bool only_primary; /* targets */
    bool with_condition;
    bool in_parentheses; /* "()" is a tuple */
    const char *end;
};

static bool is_tuple_end(const struct jinja_parser *p, const char *end)
{
    return p->current.kind == TOKEN_VARIABLE_END || p->current.kind == TOKEN_BLOCK_END ||
           jinja_is_op(p, ')') || (end && jinja_is_name(p, end));
}

static struct jinja_node *parse_primary(struct jinja_parser *p);

static struct jinja_node *parse_tuple_by(struct jinja_parser *p, struct tuple_rules rules)
{
    struct jinja_node *n = jinja_node_new(p, NODE_TUPLE, p->current.line);
    struct jinja_chain items;
    bool is_tuple = false;

    jinja_chain_init(&items);
    if (!n) {
        return NULL;
    }
    for (;;) {
        struct jinja_node *item;
        if (items.n > 0 && !jinja_expect_op(p, ',')) {
            return NULL;
        }
        if (is_tuple_end(p, rules.end)) {
            break;
        }
        item =
            rules.only_primary ? parse_primary(p) : jinja_parse_expression(p, rules.with_condition);
        if (!item) {
            return NULL;
        }
        jinja_chain_add(&items, item);
        if (!jinja_is_op(p, ',')) {
            break;
        }
        is_tuple = true;
    }
    if (!is_tuple && items.n == 1) {
        return items.first;
    }
    if (!is_tuple && !rules.in_parentheses) {
        return jinja_parse_fail(p, p->current.line, "expected an expression, got '%.*s'",
                                (int)p->current.text.len, p->current.text.ptr);
    }
    n->items = items.first;
    n->n_items = items.n;
    return jinja_node_close(p, n);
}

struct jinja_node *jinja_parse_tuple(struct jinja_parser *p, bool with_condition, const char *end)
{
    return parse_tuple_by(p, (struct tuple_rules){.with_condition = with_condition, .end = end});
}

static bool can_assign(struct jinja_parser *p, const struct jinja_node *n)
{
    if (n->kind == NODE_NAME) {
        return true;
    }
    if (n->kind != NODE_TUPLE) {
        jinja_parse_fail(p, n->line, "only names and tuples of names can be assigned to");
        return false;
    }
    for (const struct jinja_node *item = n->items; item; item = item->next) {
        if (!can_assign(p, item)) {
            return false;
        }
    }
    return true;
}

struct jinja_node *jinja_parse_target(struct jinja_parser *p, const char *end, bool with_namespace)
{
    struct jinja_node *n;

    if (with_namespace && p->current.kind == TOKEN_NAME && p->next.kind == TOKEN_OPERATOR &&
        p->next.op == '.') {
        struct str name;
        n = jinja_node_new(p, NODE_NSREF, p->current.line);
        if (!n || (n->name = jinja_name_intern(p, p->current.text)) == UINT32_MAX ||
            !jinja_parse_advance(p) || !jinja_expect_op(p, '.') || !jinja_expect_name(p, &name)) {
            return NULL;
        }
        n->value = jinja_of_string(jinja_lex_string(&p->t->arena, name));
        return n->value.as.string
                   ? n
                   : jinja_parse_fail(p, n->line, "the template needs too much memory");
    }
    p->is_target = true;
    n = parse_tuple_by(p, (struct tuple_rules){.only_primary = true, .end = end});
    p->is_target = false;
    return n && can_assign(p, n) ? n : NULL;
}

static struct jinja_node *parse_primary(struct jinja_parser *p)
{
    struct jinja_node *n = NULL;

    if (!enter(p)) {
        return NULL;
    }
    if (p->current.kind == TOKEN_NAME) {
        n = parse_name(p);
    } else if (p->current.kind == TOKEN_STRING) {
        n = parse_string(p);
    } else if (p->current.kind == TOKEN_NUMBER) {
        n = constant(p, p->current.value);
    } else if (jinja_is_op(p, '(')) {
        if (jinja_parse_advance(p)) {
            n = parse_tuple_by(
                p, (struct tuple_rules){.with_condition = true, .in_parentheses = true});
            n = n && jinja_expect_op(p, ')') ? n : NULL;
        }
    } else if (jinja_is_op(p, '[')) {
        n = parse_list(p);
    } else if (jinja_is_op(p, '{')) {
        n = parse_dict(p);
    } else {
        jinja_parse_fail(p, p->current.line, "unexpected '%.*s'", (int)p->current.text.len,
                         p->current.text.ptr);
    }
    p->depth--;
    return n;
}

/* ---- calls, subscripts, filters, tests ---- */

static struct jinja_node *parse_argument(struct jinja_parser *p)
{
    int line = p->current.line;
    struct jinja_node *n = NULL;

    if (jinja_is_op(p, '*') || jinja_is_op(p, TOKEN_POW)) {
        n = jinja_node_new(p, jinja_is_op(p, '*') ? NODE_STAR : NODE_STAR_STAR, line);
        if (!n || !jinja_parse_advance(p)) {
            return NULL;
        }
    } else if (p->current.kind == TOKEN_NAME && p->next.kind == TOKEN_OPERATOR &&
               p->next.op == '=') {
        n = jinja_node_new(p, NODE_KEYWORD, line);
        if (!n) {
            return NULL;
        }
        n->value = jinja_of_string(jinja_lex_string(&p->t->arena, p->current.text));
        if (!n->value.as.string) {
            return jinja_parse_fail(p, line, "the template needs too much memory");
        }
        if (!jinja_parse_advance(p) || !jinja_parse_advance(p)) {
            return NULL;
        }
    } else {
        return jinja_parse_expression(p, true);
    }
    n->a = jinja_parse_expression(p, true);
    return n->a ? jinja_node_close(p, n) : NULL;
}

/* Python's order: values, *args and name=value, **kwargs. seen: bits of what came before. */
static bool argument_fits(const struct jinja_node *n, unsigned *seen)
{
    enum { STAR = 1, KEYWORD = 2, STAR_STAR = 4 };
    unsigned bit = n->kind == NODE_STAR        ? STAR
                   : n->kind == NODE_KEYWORD   ? KEYWORD
                   : n->kind == NODE_STAR_STAR ? STAR_STAR
                                               : 0;
    unsigned forbidden = bit == KEYWORD ? STAR_STAR : bit == STAR ? STAR | STAR_STAR : bit;
    bool fits = bit ? !(*seen & forbidden) : *seen == 0;

    *seen |= bit;
    return fits;
}

static bool parse_arguments(struct jinja_parser *p, struct jinja_node *n)
{
    struct jinja_chain items;
    unsigned seen = 0;
    int line = p->current.line;

    jinja_chain_init(&items);
    if (!jinja_expect_op(p, '(')) {
        return false;
    }
    while (!jinja_is_op(p, ')')) {
        struct jinja_node *item;
        if (items.n > 0 && !jinja_expect_op(p, ',')) {
            return false;
        }
        if (jinja_is_op(p, ')')) {
            break;
        }
        item = parse_argument(p);
        if (!item) {
            return false;
        }
        if (!argument_fits(item, &seen)) {
            jinja_parse_fail(p, line, "invalid order of arguments in a call");
            return false;
        }
        jinja_chain_add(&items, item);
    }
    n->items = items.first;
    n->n_items = items.n;
    return jinja_expect_op(p, ')');
}

static struct jinja_node *parse_call(struct jinja_parser *p, struct jinja_node *callee)
{
    struct jinja_node *n = jinja_node_new(p, NODE_CALL, p->current.line);

    if (!n) {
        return NULL;
    }
    n->a = callee;
    return parse_arguments(p, n) ? jinja_node_close(p, n) : NULL;
}

static struct jinja_node *none_node(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, NODE_CONST, p->current.line);

    if (n) {
        n->value = jinja_none();
    }
    return n;
}

/* What stands in brackets: an expression, or a slice as a node without `a`. */
static struct jinja_node *parse_subscript(struct jinja_parser *p)
{
    struct jinja_node *slice, *bound[3] = {NULL};
    struct jinja_chain items;

    if (!jinja_is_op(p, ':')) {
        bound[0] = jinja_parse_expression(p, true);
        if (!bound[0] || !jinja_is_op(p, ':')) {
            return bound[0];
        }
    }
    slice = jinja_node_new(p, NODE_SLICE, p->current.line);
    if (!slice || !jinja_parse_advance(p)) {
        return NULL;
    }
    for (int i = 1; i < 3; i++) {
        if (i == 2 && !jinja_skip_op(p, ':')) {
            break;
        }
        if (!jinja_is_op(p, ':') && !jinja_is_op(p, ']') && !jinja_is_op(p, ',') &&
            !(bound[i] = jinja_parse_expression(p, true))) {
            return NULL;
        }
    }
    jinja_chain_init(&items);
    for (int i = 0; i < 3; i++) {
        bound[i] = bound[i] ? bound[i] : none_node(p);
        if (!bound[i]) {
            return NULL;
        }
        jinja_chain_add(&items, bound[i]);
    }
    slice->items = items.first;
    slice->n_items = items.n;
    return p->rc == OK ? slice : NULL;
}

static struct jinja_node *parse_brackets(struct jinja_parser *p, struct jinja_node *object)
{
    int line = p->current.line;
    struct jinja_node *arg, *n;

    if (!jinja_expect_op(p, '[') || !(arg = parse_subscript(p))) {
        return NULL;
    }
    if (arg->kind == NODE_SLICE) {
        if (!jinja_is_op(p, ']')) {
            return jinja_parse_fail(p, line, "a slice cannot be part of a tuple here");
        }
        arg->a = object;
        return jinja_expect_op(p, ']') ? jinja_node_close(p, arg) : NULL;
    }
    n = jinja_node_new(p, NODE_ITEM, line);
    if (!n) {
        return NULL;
    }
    n->a = object;
    n->b = arg;
    if (jinja_is_op(p, ',')) { /* x[1, 2] asks for the tuple */
        struct jinja_node *tuple = jinja_node_new(p, NODE_TUPLE, line);
        struct jinja_chain items;
        if (!tuple) {
            return NULL;
        }
        jinja_chain_init(&items);
        jinja_chain_add(&items, arg);
        while (jinja_skip_op(p, ',')) {
            struct jinja_node *more = jinja_parse_expression(p, true);
            if (!more) {
                return NULL;
            }
            jinja_chain_add(&items, more);
        }
        tuple->items = items.first;
        tuple->n_items = items.n;
        n->b = jinja_node_close(p, tuple);
    }
    return n->b && jinja_expect_op(p, ']') ? jinja_node_close(p, n) : NULL;
}

static struct jinja_node *parse_dot(struct jinja_parser *p, struct jinja_node *object)
{
    struct jinja_node *n = jinja_node_new(p, NODE_ATTRIBUTE, p->current.line);
    struct str name;

    if (!n || !jinja_expect_op(p, '.')) {
        return NULL;
    }
    n->a = object;
    if (p->current.kind == TOKEN_NUMBER && p->current.value.kind == JINJA_INT) {
        n->kind = NODE_ITEM;
        n->b = constant(p, p->current.value);
        return n->b ? jinja_node_close(p, n) : NULL;
    }
    if (!jinja_expect_name(p, &name)) {
        return NULL;
    }
    n->value = jinja_of_string(jinja_lex_string(&p->t->arena, name));
    if (!n->value.as.string) {
        return jinja_parse_fail(p, n->line, "the template needs too much memory");
    }
    return jinja_node_close(p, n);
}

static struct jinja_node *parse_postfix(struct jinja_parser *p, struct jinja_node *n)
{
    while (n) {
        if (jinja_is_op(p, '.')) {
            n = parse_dot(p, n);
        } else if (jinja_is_op(p, '[')) {
            n = parse_brackets(p, n);
        } else if (jinja_is_op(p, '(')) {
            n = parse_call(p, n);
        } else {
            break;
        }
    }
    return n;
}

/* "a.b.c" names a filter or test as a whole. */
static bool parse_dotted(struct jinja_parser *p, struct jinja_node *n)
{
    struct str name, part;

    if (!jinja_expect_name(p, &name)) {
        return false;
    }
    while (jinja_skip_op(p, '.')) {
        if (!jinja_expect_name(p, &part)) {
            return false;
        }
        name.len = (size_t)(part.ptr + part.len - name.ptr);
    }
    n->value = jinja_of_string(jinja_lex_string(&p->t->arena, name));
    return n->value.as.string != NULL;
}

/* Unknown names fail now, or when they run if an `if` stands around them; Jinja's own filters that
 * are not offered here always fail now. */
static bool check_function(struct jinja_parser *p, struct jinja_node *n, const char *what)
{
    struct jinja_string *name = n->value.as.string;

    if (n->fn && !n->fn->fn) {
        jinja_parse_fail(p, n->line, "the %s '%.*s' is not supported", what, (int)name->len,
                         name->ptr);
        return false;
    }
    if (!n->fn && !p->is_soft && !p->unknown) {
        p->unknown = n;
    }
    return true;
}

bool jinja_parse_filters(struct jinja_parser *p, struct jinja_node **out, struct jinja_node *input,
                         bool starts_inline)
{
    *out = input;
    while (starts_inline || jinja_is_op(p, '|')) {
        struct jinja_node *n = jinja_node_new(p, NODE_FILTER, p->current.line);
        if (!n || (!starts_inline && !jinja_expect_op(p, '|'))) {
            return false;
        }
        starts_inline = false;
        n->a = *out;
        if (!parse_dotted(p, n) || (jinja_is_op(p, '(') && !parse_arguments(p, n))) {
            return false;
        }
        n->fn = jinja_filter_find(jinja_slice_of(n->value.as.string));
        if (!check_function(p, n, "filter") || !jinja_node_close(p, n)) {
            return false;
        }
        *out = n;
    }
    return true;
}

static bool test_takes_operand(const struct jinja_parser *p)
{
    switch (p->current.kind) {
    case TOKEN_NAME:
        return !jinja_is_name(p, "else") && !jinja_is_name(p, "or") && !jinja_is_name(p, "and");
    case TOKEN_STRING:
    case TOKEN_NUMBER:
        return true;
    default:
        return jinja_is_op(p, '[') || jinja_is_op(p, '{');
    }
}

static struct jinja_node *parse_test(struct jinja_parser *p, struct jinja_node *input)
{
    struct jinja_node *n = jinja_node_new(p, NODE_TEST, p->current.line), *not_node;
    bool is_negated;

    if (!n || !jinja_parse_advance(p)) {
        return NULL;
    }
    is_negated = jinja_skip_name(p, "not");
    n->a = input;
    if (!parse_dotted(p, n)) {
        return NULL;
    }
    if (jinja_is_op(p, '(')) {
        if (!parse_arguments(p, n)) {
            return NULL;
        }
    } else if (test_takes_operand(p)) {
        if (jinja_is_name(p, "is")) {
            return jinja_parse_fail(p, n->line, "tests cannot be chained with is");
        }
        n->items = parse_primary(p);
        n->items = n->items ? parse_postfix(p, n->items) : NULL;
        n->n_items = 1;
        if (!n->items) {
            return NULL;
        }
    }
    n->fn = jinja_builtin_find(jinja_tests, jinja_slice_of(n->value.as.string));
    if (!check_function(p, n, "test") || !jinja_node_close(p, n)) {
        return NULL;
    }
    if (!is_negated) {
        return n;
    }
    not_node = jinja_node_new(p, NODE_NOT, n->line);
    if (!not_node) {
        return NULL;
    }
    not_node->a = n;
    return jinja_node_close(p, not_node);
}

static struct jinja_node *parse_filter_chain(struct jinja_parser *p, struct jinja_node *n)
{
    while (n) {
        if (jinja_is_op(p, '|')) {
            n = jinja_parse_filters(p, &n, n, false) ? n : NULL;
        } else if (jinja_is_name(p, "is")) {
            n = parse_test(p, n);
        } else if (jinja_is_op(p, '(')) {
            n = parse_call(p, n);
        } else {
            break;
        }
    }
    return n;
}

/* ---- operators ---- */

static struct jinja_node *parse_unary(struct jinja_parser *p, bool with_filter)
{
    struct jinja_node *n;

    if (jinja_is_op(p, '-') || jinja_is_op(p, '+')) {
        n = jinja_node_new(p, jinja_is_op(p, '-') ? NODE_NEG : NODE_POS, p->current.line);
        if (!n || !jinja_parse_advance(p) || !enter(p)) {
            return NULL;
        }
        n->a = parse_unary(p, false);
        p->depth--;
        n = n->a ? jinja_node_close(p, n) : NULL;
    } else {
        n = parse_primary(p);
    }
    n = n ? parse_postfix(p, n) : NULL;
    return n && with_filter ? parse_filter_chain(p, n) : n;
}

struct binary {
    enum power power;
    enum jinja_node_kind kind;
    uint8_t op;
};

/* The binary operator at hand; power 0 when there is none. */
static struct binary binary_at(const struct jinja_parser *p)
{
    static const struct {
        int token;
        struct binary binary;
    } table[] = {
        {'+', {POWER_SUM, NODE_ARITH, JINJA_ADD}},
        {'-', {POWER_SUM, NODE_ARITH, JINJA_SUB}},
        {'~', {POWER_CONCAT, NODE_CONCAT, 0}},
        {'*', {POWER_PRODUCT, NODE_ARITH, JINJA_MUL}},
        {'/', {POWER_PRODUCT, NODE_ARITH, JINJA_DIV}},
        {TOKEN_FLOORDIV, {POWER_PRODUCT, NODE_ARITH, JINJA_FLOORDIV}},
        {'%', {POWER_PRODUCT, NODE_ARITH, JINJA_MOD}},
        {TOKEN_POW, {POWER_POW, NODE_ARITH, JINJA_POW}},
        {TOKEN_EQ, {POWER_COMPARE, NODE_COMPARE, OP_EQ}},
        {TOKEN_NE, {POWER_COMPARE, NODE_COMPARE, OP_NE}},
        {'<', {POWER_COMPARE, NODE_COMPARE, OP_LT}},
        {TOKEN_LE, {POWER_COMPARE, NODE_COMPARE, OP_LE}},
        {'>', {POWER_COMPARE, NODE_COMPARE, OP_GT}},
        {TOKEN_GE, {POWER_COMPARE, NODE_COMPARE, OP_GE}},
    };

    if (p->current.kind == TOKEN_OPERATOR) {
        for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
            if (table[i].token == p->current.op) {
                return table[i].binary;
            }
        }
    }
    if (jinja_is_name(p, "or")) {
        return (struct binary){POWER_OR, NODE_OR, 0};
    }
    if (jinja_is_name(p, "and")) {
        return (struct binary){POWER_AND, NODE_AND, 0};
    }
    if (jinja_is_name(p, "in")) {
        return (struct binary){POWER_COMPARE, NODE_COMPARE, OP_IN};
    }
    if (jinja_is_name(p, "not") && p->next.kind == TOKEN_NAME && str_eq(p->next.text, STR("in"))) {
        return (struct binary){POWER_COMPARE, NODE_COMPARE, OP_NOT_IN};
    }
    return (struct binary){0};
}

static struct jinja_node *parse_binary(struct jinja_parser *p, enum power least);

/* a < b < c is one node with operands; a ~ b ~ c one with items. */
static struct jinja_node *parse_series(struct jinja_parser *p, struct jinja_node *left,
                                       struct binary binary)
{
    struct jinja_node *n = jinja_node_new(p, binary.kind, left->line), *item;
    struct jinja_chain items;

    jinja_chain_init(&items);
    if (!n) {
        return NULL;
    }
    if (binary.kind == NODE_COMPARE) {
        n->a = left;
    } else {
        jinja_chain_add(&items, left);
    }
    for (struct binary b = binary; b.power == binary.power; b = binary_at(p)) {
        if (b.op == OP_NOT_IN && b.kind == NODE_COMPARE && !jinja_parse_advance(p)) {
            return NULL;
        }
        if (!jinja_parse_advance(p) || !(item = parse_binary(p, b.power + 1))) {
            return NULL;
        }
        if (binary.kind == NODE_COMPARE) {
            struct jinja_node *operand = jinja_node_new(p, NODE_OPERAND, item->line);
            if (!operand) {
                return NULL;
            }
            operand->op = b.op;
            operand->a = item;
            item = jinja_node_close(p, operand);
            if (!item) {
                return NULL;
            }
        }
        jinja_chain_add(&items, item);
    }
    n->items = items.first;
    n->n_items = items.n;
    return p->rc == OK ? jinja_node_close(p, n) : NULL;
}

static struct jinja_node *parse_prefix(struct jinja_parser *p, enum power least)
{
    struct jinja_node *n;

    if (least > POWER_NOT || !jinja_is_name(p, "not")) {
        return parse_unary(p, true);
    }
    n = jinja_node_new(p, NODE_NOT, p->current.line);
    if (!n || !jinja_parse_advance(p) || !(n->a = parse_binary(p, POWER_NOT))) {
        return NULL;
    }
    return jinja_node_close(p, n);
}

static struct jinja_node *parse_binary(struct jinja_parser *p, enum power least)
{
    struct jinja_node *left, *n;
    struct binary b;

    if (!enter(p)) {
        return NULL;
    }
    left = parse_prefix(p, least);
    while (left && (b = binary_at(p)).power >= least && b.power != 0) {
        if (b.kind == NODE_COMPARE || b.kind == NODE_CONCAT) {
            left = parse_series(p, left, b);
            continue;
        }
        n = jinja_node_new(p, b.kind, left->line);
        if (!n || !jinja_parse_advance(p)) {
            left = NULL;
            break;
        }
        n->op = b.op;
        n->a = left;
        n->b = parse_binary(p, b.power + 1);
        left = n->b ? jinja_node_close(p, n) : NULL;
    }
    p->depth--;
    return p->rc == OK ? left : NULL;
}

struct jinja_node *jinja_parse_expression(struct jinja_parser *p, bool with_condition)
{
    const struct jinja_node *unknown_before = p->unknown;
    struct jinja_node *left, *n;
    bool was_soft = p->is_soft;

    if (!enter(p)) {
        return NULL;
    }
    left = parse_binary(p, POWER_OR);
    while (left && with_condition && jinja_skip_name(p, "if")) {
        p->is_soft = true;
        p->unknown = unknown_before;
        n = jinja_node_new(p, NODE_COND, left->line);
        if (!n || !(n->a = parse_binary(p, POWER_OR))) {
            left = NULL;
            break;
        }
        n->b = left;
        if (jinja_skip_name(p, "else") && !(n->c = jinja_parse_expression(p, true))) {
            left = NULL;
            break;
        }
        left = jinja_node_close(p, n);
    }
    p->is_soft = was_soft;
    p->depth--;
    return p->rc == OK ? left : NULL;
}
