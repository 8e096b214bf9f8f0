/* jinja_exec.c - statements, macros and loops. See jinja_run.h.
 *
 * Scopes: a loop round, a macro call and each block that has a body of its own get a scope; {% if %}
 * does not. {% set %} writes to the innermost one, so what a loop round sets is gone in the next,
 * as in Jinja. A scope that a macro or a lazy filter holds on to is not reused for the next round. */
#include <string.h>

#include "text/jinja_run.h"

/* ---- scopes ---- */

struct jinja_scope *jinja_scope_new(struct jinja_run *j, struct jinja_scope *parent)
{
    struct jinja_scope *s = jinja_alloc(j, 1, sizeof *s);

    if (s) {
        s->parent = parent;
    }
    return s;
}

void jinja_scope_capture(struct jinja_scope *s)
{
    for (; s && !s->is_captured; s = s->parent) {
        s->is_captured = true;
    }
}

bool jinja_scope_set(struct jinja_run *j, struct jinja_scope *s, uint32_t name,
                     struct jinja_value v)
{
    for (size_t i = 0; i < s->n; i++) {
        if (s->bindings[i].name == name) {
            s->bindings[i].value = v;
            return true;
        }
    }
    if (!jinja_charge(j, s->n / 32)) {
        return false;
    }
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 4;
        struct jinja_binding *bindings = jinja_alloc(j, cap, sizeof *bindings);
        if (!bindings) {
            return false;
        }
        if (s->n > 0) {
            memcpy(bindings, s->bindings, s->n * sizeof *bindings);
        }
        s->bindings = bindings;
        s->cap = cap;
    }
    s->bindings[s->n++] = (struct jinja_binding){.name = name, .value = v};
    return true;
}

static bool assign_namespace(struct jinja_run *j, const struct jinja_node *target,
                             struct jinja_value v)
{
    struct jinja_value ns;

    if (!jinja_lookup(j, &ns, target->name)) {
        return false;
    }
    if (ns.kind != JINJA_NAMESPACE) {
        return jinja_fail(j, "cannot assign attribute on non-namespace object");
    }
    return jinja_dict_set(j, ns.as.dict, target->value, v);
}

static bool unpack(struct jinja_run *j, const struct jinja_node *target, struct jinja_value v)
{
    struct jinja_iter *it;
    struct jinja_value item;
    enum jinja_next next;

    if (!jinja_iter_new(j, &it, v)) {
        return false;
    }
    for (const struct jinja_node *t = target->items; t; t = t->next) {
        next = jinja_iter_next(j, it, &item);
        if (next == JINJA_NEXT_FAILED) {
            return false;
        }
        if (next == JINJA_NEXT_END) {
            return jinja_fail(j, "not enough values to unpack (expected %u)", target->n_items);
        }
        if (!jinja_assign(j, t, item)) {
            return false;
        }
    }
    next = jinja_iter_next(j, it, &item);
    if (next == JINJA_NEXT_ITEM) {
        return jinja_fail(j, "too many values to unpack (expected %u)", target->n_items);
    }
    return next == JINJA_NEXT_END;
}

bool jinja_assign(struct jinja_run *j, const struct jinja_node *target, struct jinja_value v)
{
    if (target->kind == NODE_NAME) {
        return jinja_scope_set(j, j->scope, target->name, v);
    }
    if (target->kind == NODE_NSREF) {
        return assign_namespace(j, target, v);
    }
    return unpack(j, target, v);
}

/* ---- bodies ---- */

/* Run a body in a new scope. */
static enum jinja_flow exec_scoped(struct jinja_run *j, const struct jinja_node *body)
{
    struct jinja_scope *outer = j->scope;
    enum jinja_flow flow;

    j->scope = jinja_scope_new(j, outer);
    flow = j->scope ? jinja_exec(j, body) : JINJA_FLOW_FAILED;
    j->scope = outer;
    return flow;
}

/* The same, and what it prints becomes a string. */
static enum jinja_flow exec_captured(struct jinja_run *j, const struct jinja_node *body,
                                     struct jinja_value *out)
{
    struct jinja_text text, *outer = j->out;
    enum jinja_flow flow;

    jinja_text_init(&text, j);
    j->out = &text;
    flow = exec_scoped(j, body);
    j->out = outer;
    if (flow == JINJA_FLOW_FAILED || !jinja_text_take(&text, out)) {
        return JINJA_FLOW_FAILED;
    }
    return flow;
}

/* ---- macros ---- */

static bool take_named(struct jinja_call *call, struct str name, struct jinja_value *out)
{
    for (size_t i = 0; i < call->n_named; i++) {
        if (str_eq(jinja_slice_of(call->names[i]), name)) {
            *out = call->named[i];
            call->n_named--;
            for (; i < call->n_named; i++) { /* keep the order of the rest */
                call->names[i] = call->names[i + 1];
                call->named[i] = call->named[i + 1];
            }
            return true;
        }
    }
    return false;
}

static bool bind_rest(struct jinja_run *j, const struct jinja_node *macro, struct jinja_call *rest,
                      size_t n_positional)
{
    struct jinja_value v;

    if (macro->flags & USES_CALLER) {
        v = jinja_undefined(JINJA_NO_NAME, 0, j->t->names[j->t->name_caller]);
        (void)take_named(rest, STR("caller"), &v);
        if (!jinja_scope_set(j, j->scope, j->t->name_caller, v)) {
            return false;
        }
    }
    if (macro->flags & USES_KWARGS) {
        if (!jinja_dict_new(j, &v)) {
            return false;
        }
        for (size_t i = 0; i < rest->n_named; i++) {
            if (!jinja_dict_set(j, v.as.dict, jinja_of_string(rest->names[i]), rest->named[i])) {
                return false;
            }
        }
        if (!jinja_scope_set(j, j->scope, j->t->name_kwargs, v)) {
            return false;
        }
    } else if (rest->n_named > 0) {
        return jinja_fail(j, "the macro takes no keyword argument '%.*s'", (int)rest->names[0]->len,
                          rest->names[0]->ptr);
    }
    if (macro->flags & USES_VARARGS) {
        if (!jinja_list_new(j, &v, JINJA_TUPLE, 0)) {
            return false;
        }
        for (size_t i = n_positional; i < rest->n_args; i++) {
            if (!jinja_list_push(j, v.as.list, rest->args[i])) {
                return false;
            }
        }
        return jinja_scope_set(j, j->scope, j->t->name_varargs, v);
    }
    if (rest->n_args > n_positional) {
        return jinja_fail(j, "the macro takes not more than %zu argument(s)", n_positional);
    }
    return true;
}

static bool is_missing(const struct jinja_scope *s, uint32_t name)
{
    for (size_t i = 0; i < s->n; i++) {
        if (s->bindings[i].name == name) {
            return s->bindings[i].value.kind == JINJA_MISSING;
        }
    }
    return false;
}

/* The parameters, in the macro's new scope. */
static bool bind_params(struct jinja_run *j, const struct jinja_node *macro,
                        const struct jinja_call *call)
{
    struct jinja_call rest = *call;
    size_t i = 0;

    rest.names = jinja_alloc(j, call->n_named, sizeof(struct jinja_string *));
    rest.named = jinja_alloc(j, call->n_named, sizeof *rest.named);
    if (!rest.names || !rest.named) {
        return false;
    }
    for (size_t k = 0; k < call->n_named; k++) {
        rest.names[k] = call->names[k];
        rest.named[k] = call->named[k];
    }
    for (const struct jinja_node *p = macro->items; p; p = p->next, i++) {
        struct jinja_value v = {0};
        if (i < call->n_args) {
            v = call->args[i];
        } else {
            (void)take_named(&rest, jinja_slice_of(j->t->names[p->name]), &v);
        }
        if (!jinja_charge(j, 1) || !jinja_scope_set(j, j->scope, p->name, v)) {
            return false;
        }
    }
    if (!bind_rest(j, macro, &rest, macro->n_items)) {
        return false;
    }
    for (const struct jinja_node *p = macro->items; p; p = p->next) { /* see earlier ones */
        struct jinja_value v = jinja_undefined(JINJA_NO_PARAMETER, 0, j->t->names[p->name]);
        if (!is_missing(j->scope, p->name)) {
            continue;
        }
        if ((p->a && !jinja_eval(j, p->a, &v)) || !jinja_scope_set(j, j->scope, p->name, v)) {
            return false;
        }
    }
    return true;
}

bool jinja_call_macro(struct jinja_run *j, struct jinja_macro *m, const struct jinja_call *call,
                      struct jinja_value *out)
{
    struct jinja_scope *outer = j->scope;
    struct jinja_text text, *outer_out = j->out;
    bool ok;

    if (!jinja_enter(j)) {
        return false;
    }
    jinja_text_init(&text, j);
    j->scope = jinja_scope_new(j, m->scope);
    j->out = &text;
    ok = j->scope && bind_params(j, m->node, call) &&
         jinja_exec(j, m->node->body) != JINJA_FLOW_FAILED && jinja_text_take(&text, out);
    j->scope = outer;
    j->out = outer_out;
    jinja_leave(j);
    return ok;
}

static bool macro_value(struct jinja_run *j, const struct jinja_node *n, struct jinja_value *out)
{
    struct jinja_macro *m = jinja_alloc(j, 1, sizeof *m);

    if (!m) {
        return false;
    }
    m->node = n;
    m->scope = j->scope;
    jinja_scope_capture(j->scope);
    *out = (struct jinja_value){.kind = JINJA_MACRO, .as.macro = m};
    return true;
}

/* {% call(...) f(x) %}body{% endcall %}: f gets a keyword argument `caller`. */
static bool exec_call_block(struct jinja_run *j, const struct jinja_node *n)
{
    struct jinja_value callee, caller, v;
    struct jinja_call call;

    if (!macro_value(j, n, &caller) || !jinja_eval(j, n->a->a, &callee) ||
        !jinja_eval_call(j, n->a, &call)) {
        return false;
    }
    if (!call.names) {
        call.names = jinja_alloc(j, 1, sizeof(struct jinja_string *));
        call.named = jinja_alloc(j, 1, sizeof *call.named);
        if (!call.names || !call.named) {
            return false;
        }
    }
    call.names[call.n_named] = j->t->names[j->t->name_caller];
    call.named[call.n_named++] = caller;
    j->line = n->line;
    return jinja_call_value(j, callee, &call, &v) && jinja_print(j->out, v);
}

/* ---- loops ---- */

/* "for x in y if z": pulls until z holds. Yields the target's values, as Jinja does. */
static bool target_value(struct jinja_run *j, const struct jinja_node *target,
                         struct jinja_value *out)
{
    if (target->kind == NODE_NAME) {
        return jinja_lookup(j, out, target->name);
    }
    if (!jinja_list_new(j, out, JINJA_TUPLE, target->n_items)) {
        return false;
    }
    for (const struct jinja_node *t = target->items; t; t = t->next) {
        struct jinja_value v;
        if (!target_value(j, t, &v) || !jinja_list_push(j, out->as.list, v)) {
            return false;
        }
    }
    return true;
}

static enum jinja_next next_for_filter(struct jinja_run *j, struct jinja_lazy *l,
                                       struct jinja_value *out)
{
    struct jinja_scope *outer = j->scope;
    struct jinja_value item, holds;
    enum jinja_next next;

    while ((next = jinja_lazy_pull(j, l, &item)) == JINJA_NEXT_ITEM) {
        bool ok;
        j->scope = jinja_scope_new(j, l->scope);
        ok = j->scope && jinja_assign(j, l->node->a, item) && jinja_eval(j, l->node->c, &holds) &&
             (!jinja_truth(holds) || target_value(j, l->node->a, out));
        j->scope = outer;
        if (!ok) {
            return JINJA_NEXT_FAILED;
        }
        if (jinja_truth(holds)) {
            return JINJA_NEXT_ITEM;
        }
    }
    return next;
}

static enum jinja_next loop_advance(struct jinja_run *j, struct jinja_loop *loop)
{
    struct jinja_value item;
    enum jinja_next next = JINJA_NEXT_ITEM;

    if (loop->ahead.kind != JINJA_MISSING) {
        item = loop->ahead;
        loop->ahead = (struct jinja_value){0};
    } else {
        next = jinja_iter_next(j, loop->iter, &item);
    }
    if (next == JINJA_NEXT_ITEM) {
        loop->index0++;
        loop->previous = loop->current;
        loop->current = item;
    }
    return next;
}

/* A fresh scope for the next round; the old one's memory unless somebody kept it. */
static bool round_scope(struct jinja_run *j, struct jinja_scope **scope, struct jinja_scope *outer)
{
    if (*scope && !(*scope)->is_captured) {
        (*scope)->n = 0;
        return true;
    }
    *scope = jinja_scope_new(j, outer);
    return *scope != NULL;
}

/* All rounds. *completed: one of them ran to its end, so that {% else %} is not due. */
static enum jinja_flow exec_rounds(struct jinja_run *j, const struct jinja_node *n,
                                   struct jinja_loop *loop, bool *completed)
{
    struct jinja_scope *outer = j->scope, *scope = NULL;
    struct jinja_value loop_value = {.kind = JINJA_LOOP, .as.loop = loop};
    enum jinja_flow flow = JINJA_FLOW_ON;
    enum jinja_next next = JINJA_NEXT_END;

    while (flow != JINJA_FLOW_BREAK && (next = loop_advance(j, loop)) == JINJA_NEXT_ITEM) {
        if (!round_scope(j, &scope, outer)) {
            return JINJA_FLOW_FAILED;
        }
        j->scope = scope;
        j->line = n->line;
        if (!jinja_assign(j, n->a, loop->current) ||
            !jinja_scope_set(j, scope, j->t->name_loop, loop_value)) {
            return JINJA_FLOW_FAILED;
        }
        flow = jinja_exec(j, n->body);
        j->scope = outer;
        if (flow == JINJA_FLOW_FAILED) {
            return flow;
        }
        *completed |= flow == JINJA_FLOW_ON;
    }
    return next == JINJA_NEXT_FAILED ? JINJA_FLOW_FAILED : JINJA_FLOW_ON;
}

static bool exec_for(struct jinja_run *j, const struct jinja_node *n, enum jinja_flow *flow)
{
    struct jinja_loop *loop = jinja_alloc(j, 1, sizeof *loop);
    bool completed = false;

    if (!loop || !jinja_eval(j, n->b, &loop->over)) {
        return false;
    }
    j->line = n->line;
    if (n->c) {
        struct jinja_lazy filter = {
            .next = next_for_filter, .over = loop->over, .node = n, .scope = j->scope};
        jinja_scope_capture(j->scope);
        if (!jinja_iter_new(j, &filter.source, loop->over) ||
            !jinja_iter_lazy(j, &loop->over, &filter)) {
            return false;
        }
    }
    if (!jinja_iter_new(j, &loop->iter, loop->over)) {
        return false;
    }
    loop->index0 = SIZE_MAX; /* becomes 0 with the first item */
    loop->n = SIZE_MAX;
    loop->outer = j->loop;
    j->loop = loop; /* stays on failure: it tells where */
    if (exec_rounds(j, n, loop, &completed) == JINJA_FLOW_FAILED) {
        return false;
    }
    j->loop = loop->outer;
    if (!completed && n->orelse) {
        *flow = exec_scoped(j, n->orelse);
    }
    return *flow != JINJA_FLOW_FAILED;
}

/* ---- loop.* ---- */

static bool loop_peek(struct jinja_run *j, struct jinja_loop *loop, bool *has_next)
{
    enum jinja_next next = JINJA_NEXT_ITEM;

    if (loop->ahead.kind == JINJA_MISSING) {
        next = jinja_iter_next(j, loop->iter, &loop->ahead);
        if (next != JINJA_NEXT_ITEM) {
            loop->ahead = (struct jinja_value){0};
        }
    }
    *has_next = next == JINJA_NEXT_ITEM;
    return next != JINJA_NEXT_FAILED;
}

/* What has no length is drained into a list first, and walked from there. */
static bool loop_length(struct jinja_run *j, struct jinja_loop *loop, int64_t *out)
{
    if (loop->n == SIZE_MAX) {
        if (loop->over.kind == JINJA_ITERATOR) {
            struct jinja_value rest;
            if (!jinja_iter_list(j, &rest, loop->over) || !jinja_iter_new(j, &loop->iter, rest)) {
                return false;
            }
            loop->n = rest.as.list->n + loop->index0 + 1 + (loop->ahead.kind != JINJA_MISSING);
        } else if (!jinja_length(j, &loop->n, loop->over)) {
            return false;
        }
    }
    *out = (int64_t)loop->n;
    return true;
}

bool jinja_loop_attribute(struct jinja_run *j, bool *found, struct jinja_value *out,
                          struct jinja_loop *loop, struct str name)
{
    static const char *const names[] = {"index",  "index0",   "first",     "last",
                                        "length", "revindex", "revindex0", "depth",
                                        "depth0", "previtem", "nextitem"};
    enum {
        INDEX,
        INDEX0,
        FIRST,
        LAST,
        LENGTH,
        REVINDEX,
        REVINDEX0,
        DEPTH,
        DEPTH0,
        PREVITEM,
        NEXTITEM
    };
    int64_t i = (int64_t)loop->index0, n = 0;
    size_t which = 0;
    bool has_next;

    while (which < sizeof names / sizeof *names && !str_eq(name, str_of(names[which]))) {
        which++;
    }
    *found = true;
    switch (which) {
    case INDEX:
        *out = jinja_int(i + 1);
        return true;
    case INDEX0:
        *out = jinja_int(i);
        return true;
    case FIRST:
        *out = jinja_bool(i == 0);
        return true;
    case LAST:
    case NEXTITEM:
        if (!loop_peek(j, loop, &has_next)) {
            return false;
        }
        *out = which == LAST ? jinja_bool(!has_next)
               : has_next    ? loop->ahead
                             : jinja_undefined(JINJA_EMPTY, 0, NULL);
        return true;
    case LENGTH:
    case REVINDEX:
    case REVINDEX0:
        if (!loop_length(j, loop, &n)) {
            return false;
        }
        *out = jinja_int(which == LENGTH ? n : which == REVINDEX ? n - i : n - i - 1);
        return true;
    case DEPTH:
    case DEPTH0:
        *out = jinja_int(which == DEPTH ? 1 : 0); /* only recursive loops get deeper */
        return true;
    case PREVITEM:
        *out = i > 0 ? loop->previous : jinja_undefined(JINJA_EMPTY, 0, NULL);
        return true;
    default:
        *found = false;
        return true;
    }
}

static bool loop_cycle(struct jinja_run *j, const struct jinja_builtin *b, struct jinja_value self,
                       const struct jinja_value *arg, const struct jinja_call *call,
                       struct jinja_value *out)
{
    (void)b, (void)arg;
    if (call->n_args == 0 || call->n_named > 0) {
        return jinja_fail(j, "no items for cycling given");
    }
    *out = call->args[self.as.loop->index0 % call->n_args];
    return true;
}

static bool loop_changed(struct jinja_run *j, const struct jinja_builtin *b,
                         struct jinja_value self, const struct jinja_value *arg,
                         const struct jinja_call *call, struct jinja_value *out)
{
    struct jinja_loop *loop = self.as.loop;
    struct jinja_value now;
    bool equal = false;

    (void)b, (void)arg;
    if (!jinja_list_new(j, &now, JINJA_TUPLE, call->n_args)) {
        return false;
    }
    for (size_t i = 0; i < call->n_args; i++) {
        if (!jinja_list_push(j, now.as.list, call->args[i])) {
            return false;
        }
    }
    if (loop->last_changed.kind != JINJA_MISSING &&
        !jinja_equal(j, &equal, loop->last_changed, now)) {
        return false;
    }
    loop->last_changed = now;
    *out = jinja_bool(!equal);
    return true;
}

const struct jinja_builtin jinja_loop_methods[] = {
    {"cycle", "*", 0, loop_cycle, 0}, {"changed", "*", 0, loop_changed, 0}, {0}};

/* ---- statements ---- */

static bool exec_set(struct jinja_run *j, const struct jinja_node *n, enum jinja_flow *flow)
{
    struct jinja_value v;

    if (n->kind == NODE_SET) {
        return jinja_eval(j, n->b, &v) && jinja_assign(j, n->a, v);
    }
    *flow = exec_captured(j, n->body, &v);
    if (*flow != JINJA_FLOW_ON) {
        return *flow != JINJA_FLOW_FAILED; /* left by break: nothing is set */
    }
    return (!n->b || jinja_apply_filter(j, n->b, v, &v)) && jinja_assign(j, n->a, v);
}

static bool exec_filter_block(struct jinja_run *j, const struct jinja_node *n,
                              enum jinja_flow *flow)
{
    struct jinja_value v;

    *flow = exec_captured(j, n->body, &v);
    if (*flow != JINJA_FLOW_ON) {
        return *flow != JINJA_FLOW_FAILED;
    }
    return jinja_apply_filter(j, n->b, v, &v) && jinja_print(j->out, v);
}

static bool exec_if(struct jinja_run *j, const struct jinja_node *n, enum jinja_flow *flow)
{
    for (const struct jinja_node *b = n->items; b; b = b->next) {
        struct jinja_value v;
        if (!jinja_eval(j, b->a, &v)) {
            return false;
        }
        if (jinja_truth(v)) {
            *flow = jinja_exec(j, b->body);
            return *flow != JINJA_FLOW_FAILED;
        }
    }
    *flow = jinja_exec(j, n->orelse);
    return *flow != JINJA_FLOW_FAILED;
}

static bool exec_with(struct jinja_run *j, const struct jinja_node *n, enum jinja_flow *flow)
{
    struct jinja_scope *outer = j->scope, *inner = jinja_scope_new(j, outer);

    for (const struct jinja_node *item = n->items; inner && item; item = item->next) {
        struct jinja_value v;
        bool ok;
        if (!jinja_eval(j, item->b, &v)) { /* in the outer scope */
            return false;
        }
        j->scope = inner;
        ok = jinja_assign(j, item->a, v);
        j->scope = outer;
        if (!ok) {
            return false;
        }
    }
    if (!inner) {
        return false;
    }
    j->scope = inner;
    *flow = jinja_exec(j, n->body);
    j->scope = outer;
    return *flow != JINJA_FLOW_FAILED;
}

static bool exec_macro(struct jinja_run *j, const struct jinja_node *n)
{
    struct jinja_value v;

    return macro_value(j, n, &v) && jinja_scope_set(j, j->scope, n->name, v);
}

static bool exec_one(struct jinja_run *j, const struct jinja_node *n, enum jinja_flow *flow)
{
    struct jinja_value v;

    j->line = n->line;
    switch ((enum jinja_node_kind)n->kind) {
    case NODE_TEXT:
        jinja_text_put_string(j->out, n->value.as.string);
        return !j->out->failed;
    case NODE_PRINT:
        return jinja_eval(j, n->a, &v) && jinja_print(j->out, v);
    case NODE_IF:
        return exec_if(j, n, flow);
    case NODE_FOR:
        return exec_for(j, n, flow);
    case NODE_SET:
    case NODE_SET_BLOCK:
        return exec_set(j, n, flow);
    case NODE_MACRO:
        return exec_macro(j, n);
    case NODE_CALL_BLOCK:
        return exec_call_block(j, n);
    case NODE_FILTER_BLOCK:
        return exec_filter_block(j, n, flow);
    case NODE_WITH:
        return exec_with(j, n, flow);
    case NODE_GENERATION:
        *flow = exec_scoped(j, n->body);
        return *flow != JINJA_FLOW_FAILED;
    case NODE_BREAK:
        *flow = JINJA_FLOW_BREAK;
        return true;
    case NODE_CONTINUE:
        *flow = JINJA_FLOW_CONTINUE;
        return true;
    default:
        return jinja_fail(j, "not a statement"); /* the parser makes no such tree */
    }
}

enum jinja_flow jinja_exec(struct jinja_run *j, const struct jinja_node *first)
{
    enum jinja_flow flow = JINJA_FLOW_ON;

    if (!jinja_enter(j)) {
        return JINJA_FLOW_FAILED;
    }
    for (const struct jinja_node *n = first; n && flow == JINJA_FLOW_ON; n = n->next) {
        if (!jinja_charge(j, 1) || !exec_one(j, n, &flow)) {
            flow = JINJA_FLOW_FAILED;
        }
    }
    jinja_leave(j);
    return flow;
}
