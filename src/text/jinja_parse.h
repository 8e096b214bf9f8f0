/* jinja_parse.h - tokens to the tree: what the two parser files share.
 *
 * Place:  text, inside the Jinja engine. jinja_parse.c reads statements, jinja_parse_expr.c
 *         expressions. Functions that return a node give NULL after recording an error in p->rc. */
#ifndef TEXT_JINJA_PARSE_H
#define TEXT_JINJA_PARSE_H

#include "text/jinja_ast.h"
#include "text/jinja_lex.h"

struct jinja_parser {
    struct jinja_lexer lexer;
    struct jinja_template *t;
    struct jinja_token current, next; /* one token of look-ahead */
    struct error *err;
    enum status rc;
    unsigned depth;   /* of the recursion */
    unsigned n_loops; /* around the current place, up to the macro's border */
    uint8_t uses;     /* USES_* since the innermost macro began */
    bool is_soft;     /* inside if: an unknown filter or test is an error only when it runs */
    bool is_target;   /* names are being assigned to, not read */
    const struct jinja_node *unknown; /* such a one outside, unless an inline if still follows */
};

/* Appends nodes to a list linked by next. */
struct jinja_chain {
    struct jinja_node *first, **end;
    uint32_t n;
};

static inline void jinja_chain_init(struct jinja_chain *c)
{
    *c = (struct jinja_chain){.end = &c->first};
}

static inline void jinja_chain_add(struct jinja_chain *c, struct jinja_node *n)
{
    *c->end = n;
    c->end = &n->next;
    c->n++;
}

/* Always NULL. */
void *jinja_parse_fail(struct jinja_parser *p, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
bool jinja_parse_advance(struct jinja_parser *p);
struct jinja_node *jinja_node_new(struct jinja_parser *p, enum jinja_node_kind kind, int line);
/* Set depth from the children; NULL (and an error) when the tree gets too deep. */
struct jinja_node *jinja_node_close(struct jinja_parser *p, struct jinja_node *n);
uint32_t jinja_name_intern(struct jinja_parser *p, struct str name); /* UINT32_MAX: no memory */

bool jinja_is_op(const struct jinja_parser *p, int op);
bool jinja_is_name(const struct jinja_parser *p, const char *name);
bool jinja_skip_op(struct jinja_parser *p, int op);
bool jinja_skip_name(struct jinja_parser *p, const char *name);
bool jinja_expect_op(struct jinja_parser *p, int op);
bool jinja_expect_name(struct jinja_parser *p, struct str *name);

struct jinja_node *jinja_parse_expression(struct jinja_parser *p, bool with_condition);
/* "a, b": a tuple, or the one expression. end: a name that also ends it ("recursive"), or NULL. */
struct jinja_node *jinja_parse_tuple(struct jinja_parser *p, bool with_condition, const char *end);
/* What {% set %} and {% for %} assign to; with_namespace allows "ns.attribute". */
struct jinja_node *jinja_parse_target(struct jinja_parser *p, const char *end, bool with_namespace);
/* "| a | b(1)" applied to input, which may be NULL (then the chain's first node has a == NULL).
 * starts_inline: the first filter's name comes without '|'. *out NULL when there is none. */
bool jinja_parse_filters(struct jinja_parser *p, struct jinja_node **out, struct jinja_node *input,
                         bool starts_inline);

#endif
