/* jinja_ast.h - the compiled template: a tree of nodes.
 *
 * Place:  text, inside the Jinja engine; made by jinja_parse.c and jinja_parse_expr.c, walked by
 *         jinja_exec.c and jinja_eval.c. Read-only after compiling, shared by threads.
 * Memory: all nodes live in the template's arena. */
#ifndef TEXT_JINJA_AST_H
#define TEXT_JINJA_AST_H

#include "base/arena.h"
#include "text/jinja_value.h"

enum jinja_node_kind {
    /* statements; what they use is listed after each */
    NODE_TEXT,         /* value */
    NODE_PRINT,        /* a */
    NODE_IF,           /* items: NODE_BRANCH..., orelse */
    NODE_BRANCH,       /* a: test, body */
    NODE_FOR,          /* a: target, b: what to walk, c: filter or NULL, body, orelse */
    NODE_SET,          /* a: target, b: value */
    NODE_SET_BLOCK,    /* a: target, b: filters or NULL, body */
    NODE_MACRO,        /* name, items: NODE_PARAM..., body, flags USES_* */
    NODE_CALL_BLOCK,   /* a: the call, items: parameters of caller(), body; name "caller" */
    NODE_FILTER_BLOCK, /* b: filters, body */
    NODE_WITH,         /* items: NODE_WITH_ITEM..., body */
    NODE_GENERATION,   /* body: rendered in its own scope */
    NODE_BREAK,
    NODE_CONTINUE,
    /* parts */
    NODE_PARAM,     /* name, a: default or NULL */
    NODE_WITH_ITEM, /* a: target, b: value */
    NODE_KEYWORD,   /* value: name, a: value; an argument name=... */
    NODE_STAR,      /* a: *args */
    NODE_STAR_STAR, /* a: **kwargs */
    NODE_PAIR,      /* a: key, b: value */
    NODE_OPERAND,   /* op, a */
    /* expressions */
    NODE_CONST,     /* value */
    NODE_NAME,      /* name */
    NODE_NSREF,     /* name, value: attribute; a target only */
    NODE_LIST,      /* items */
    NODE_TUPLE,     /* items */
    NODE_DICT,      /* items: NODE_PAIR */
    NODE_AND,       /* a, b */
    NODE_OR,        /* a, b */
    NODE_NOT,       /* a */
    NODE_NEG,       /* a */
    NODE_POS,       /* a */
    NODE_ARITH,     /* op: enum jinja_op, a, b */
    NODE_CONCAT,    /* items */
    NODE_COMPARE,   /* a, items: NODE_OPERAND */
    NODE_COND,      /* a: test, b: value, c: other value or NULL */
    NODE_ATTRIBUTE, /* a, value: name */
    NODE_ITEM,      /* a, b */
    NODE_SLICE,     /* a, items: three bounds (NODE_CONST none where absent) */
    NODE_CALL,      /* a: callee, items: arguments */
    NODE_FILTER,    /* a: input (NULL at the start of a block's chain), fn, value: name, items */
    NODE_TEST       /* a, fn, value: name, items */
};

enum jinja_compare_op { OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE, OP_IN, OP_NOT_IN };

enum { USES_VARARGS = 1, USES_KWARGS = 2, USES_CALLER = 4 };

struct jinja_node {
    uint8_t kind; /* enum jinja_node_kind */
    uint8_t op;
    uint8_t flags;
    uint16_t depth; /* of the tree below, at most JINJA_NESTING_MAX */
    int line;
    uint32_t name; /* index of the template's names */
    uint32_t n_items;
    struct jinja_value value;
    const struct jinja_builtin *fn;
    struct jinja_node *a, *b, *c;
    struct jinja_node *items;         /* first of a list linked by next */
    struct jinja_node *body, *orelse; /* first of a list linked by next */
    struct jinja_node *next;
};

struct jinja_template {
    struct arena arena;
    struct jinja_node *body;
    struct jinja_string **names; /* each distinct variable, parameter and macro name once */
    bool *is_read;               /* per name: whether an expression reads it */
    uint32_t n_names, names_cap;
    uint32_t *name_slots; /* hash table of index + 1 */
    uint32_t n_name_slots;
    uint32_t name_loop, name_caller, name_varargs, name_kwargs;
};

const struct jinja_string *jinja_template_name(const struct jinja_template *t, uint32_t name);
/* The index of a name, or UINT32_MAX when the template does not use it. */
uint32_t jinja_template_name_find(const struct jinja_template *t, struct str name);

#endif
