/* jinja_run.h - the state of one rendering, and how functions of the engine are called.
 *
 * Place:  text, inside the Jinja engine. One struct jinja_run per jinja_render(); one thread. */
#ifndef TEXT_JINJA_RUN_H
#define TEXT_JINJA_RUN_H

#include "text/jinja.h"
#include "text/jinja_ast.h"
#include "text/jinja_value.h"

struct jinja_binding {
    uint32_t name;
    struct jinja_value value;
};

/* Variables of a block. Inner ones hide outer ones; {% set %} writes to the innermost. */
struct jinja_scope {
    struct jinja_scope *parent;
    struct jinja_binding *bindings;
    size_t n, cap;
    bool is_captured; /* a macro or lazy filter may look at it later: not to be reused */
};

struct jinja_run {
    struct arena arena;
    const struct jinja_template *t;
    struct jinja_scope *scope;
    struct jinja_loop *loop; /* innermost running loop, for errors */
    struct jinja_text *out;  /* where text goes */
    struct jinja_list *watched;
    size_t steps_left;
    size_t output_bytes_max;
    unsigned depth;
    int line; /* of the statement or expression at work */
    int64_t now_s;
    bool failed;
    struct error error;
    struct jinja_string empty; /* "" */
};

enum { JINJA_PARAMS_MAX = 6 };

struct jinja_call { /* the arguments as written */
    struct jinja_value *args;
    size_t n_args;
    struct jinja_string **names; /* of the keyword arguments */
    struct jinja_value *named;
    size_t n_named;
};

/* A function as the interpreter sees it: filter (self: the value piped in), test, method (self: the
 * object) or global (self: missing).
 *
 * params: names by commas. A leading '/' says that they cannot be given by name; "*" that fn looks at
 * call itself, and arg[] is not filled. Arguments that were not given are JINJA_MISSING. */
typedef bool jinja_fn(struct jinja_run *j, const struct jinja_builtin *b, struct jinja_value self,
                      const struct jinja_value *arg, const struct jinja_call *call,
                      struct jinja_value *out);

struct jinja_builtin {
    const char *name;
    const char *params;
    size_t n_required;
    jinja_fn *fn; /* NULL: known to Jinja or Python, but not offered here */
    int detail;   /* for functions that share code */
};

struct jinja_method {
    const struct jinja_builtin *b;
    struct jinja_value self;
};

struct jinja_macro {
    const struct jinja_node *node; /* NODE_MACRO or NODE_CALL_BLOCK */
    struct jinja_scope *scope;     /* where it was defined */
};

struct jinja_loop {
    struct jinja_iter *iter;
    struct jinja_loop *outer; /* the loop that runs around it, also across macro calls */
    struct jinja_value over;  /* what is walked, for length */
    struct jinja_value previous, current, ahead; /* MISSING: none */
    size_t index0;
    size_t n; /* SIZE_MAX: not asked for yet */
    struct jinja_value last_changed;
};

/* Check arguments against the table row and call. */
bool jinja_call_builtin(struct jinja_run *j, const struct jinja_builtin *b, struct jinja_value self,
                        const struct jinja_call *call, struct jinja_value *out);
/* Call any value. */
bool jinja_call_value(struct jinja_run *j, struct jinja_value callee, const struct jinja_call *call,
                      struct jinja_value *out);
const struct jinja_builtin *jinja_builtin_find(const struct jinja_builtin *table, struct str name);

/* The tables, each ended by a row without a name. */
extern const struct jinja_builtin jinja_filters_text[], jinja_filters_list[], jinja_filters_lazy[],
    jinja_filters_misc[];
extern const struct jinja_builtin jinja_tests[], jinja_globals[];
extern const struct jinja_builtin jinja_str_methods[], jinja_list_methods[], jinja_tuple_methods[],
    jinja_dict_methods[], jinja_loop_methods[];
const struct jinja_builtin *jinja_filter_find(struct str name);

/* Subscripts and attributes as the sandbox looks them up; never an error for something that is
 * missing: *out is then undefined. Asking an undefined value is an error. */
bool jinja_get_item(struct jinja_run *j, struct jinja_value *out, struct jinja_value object,
                    struct jinja_value key);
bool jinja_get_attribute(struct jinja_run *j, struct jinja_value *out, struct jinja_value object,
                         struct jinja_string *name);
/* The attribute alone, without falling back to an item; *found false when there is none. */
bool jinja_own_attribute(struct jinja_run *j, bool *found, struct jinja_value *out,
                         struct jinja_value object, struct jinja_string *name);
bool jinja_slice(struct jinja_run *j, struct jinja_value *out, struct jinja_value object,
                 const struct jinja_value bound[3]); /* NONE: not given */
bool jinja_loop_attribute(struct jinja_run *j, bool *found, struct jinja_value *out,
                          struct jinja_loop *loop, struct str name);

/* Operators. */
enum jinja_op { JINJA_ADD, JINJA_SUB, JINJA_MUL, JINJA_DIV, JINJA_FLOORDIV, JINJA_MOD, JINJA_POW };
bool jinja_arithmetic(struct jinja_run *j, struct jinja_value *out, enum jinja_op op,
                      struct jinja_value a, struct jinja_value b);

/* Iteration. */
enum jinja_next { JINJA_NEXT_FAILED = -1, JINJA_NEXT_END = 0, JINJA_NEXT_ITEM = 1 };
/* iter(); fails when v cannot be walked. */
bool jinja_iter_new(struct jinja_run *j, struct jinja_iter **out, struct jinja_value v);
bool jinja_iterable(struct jinja_value v);
enum jinja_next jinja_iter_next(struct jinja_run *j, struct jinja_iter *it,
                                struct jinja_value *out);
/* All items, as a fresh list. */
bool jinja_iter_list(struct jinja_run *j, struct jinja_value *out, struct jinja_value v);
/* Python's reversed(): an iterator; *possible false when v has no reverse order. */
bool jinja_iter_reversed(struct jinja_run *j, bool *possible, struct jinja_value *out,
                         struct jinja_value v);
/* A lazy filter: step(source item) decides. See jinja_iter.c. */
struct jinja_lazy;
typedef enum jinja_next jinja_lazy_fn(struct jinja_run *j, struct jinja_lazy *l,
                                      struct jinja_value *out);
struct jinja_lazy {
    jinja_lazy_fn *next;
    struct jinja_value over;   /* what it walks */
    struct jinja_iter *source; /* NULL until the first item is asked for */
    const struct jinja_builtin *b;
    struct jinja_call call; /* arguments of the filter */
    bool is_done;
    struct jinja_path *path;           /* select, map: the attribute */
    const struct jinja_builtin *inner; /* select, map: the test or filter */
    struct jinja_call inner_call;
    struct jinja_value fallback;   /* map(default=); batch(fill_with=) */
    struct jinja_value seen;       /* unique */
    int64_t count;                 /* batch */
    const struct jinja_node *node; /* for ... if */
    struct jinja_scope *scope;
};
bool jinja_iter_lazy(struct jinja_run *j, struct jinja_value *out, struct jinja_lazy *l);
/* The next of l->source, opened on first use. */
enum jinja_next jinja_lazy_pull(struct jinja_run *j, struct jinja_lazy *l, struct jinja_value *out);

/* "a.b.0" of filters' attribute= arguments. */
struct jinja_path {
    struct jinja_value *parts;
    size_t n;
};
bool jinja_path_new(struct jinja_run *j, struct jinja_path **out, struct jinja_value attribute);
/* fallback replaces what is undefined on the way, unless MISSING. */
bool jinja_path_get(struct jinja_run *j, struct jinja_value *out, const struct jinja_path *p,
                    struct jinja_value item, struct jinja_value fallback);

/* Text helpers shared by filters and methods. */
bool jinja_format_percent(struct jinja_run *j, struct jinja_value *out, struct jinja_string *fmt,
                          struct jinja_value args);
bool jinja_format_braces(struct jinja_run *j, struct jinja_value *out, struct jinja_string *fmt,
                         const struct jinja_call *call);
/* str.strip: chars NULL is white space. which: where to strip. */
enum { JINJA_STRIP_LEFT = 1, JINJA_STRIP_RIGHT = 2, JINJA_STRIP_BOTH = 3 };
bool jinja_strip(struct jinja_run *j, struct jinja_value *out, struct jinja_string *s,
                 const struct jinja_string *chars, int which);
bool jinja_replace(struct jinja_run *j, struct jinja_value *out, struct jinja_string *s,
                   struct jinja_string *from, struct jinja_string *to, int64_t count_max);
enum jinja_case {
    JINJA_UPPER,
    JINJA_LOWER,
    JINJA_TITLE,
    JINJA_CAPITALIZE,
    JINJA_SWAPCASE,
    JINJA_FOLD
};
void jinja_put_case(struct jinja_text *t, const struct jinja_string *s, size_t begin, size_t end,
                    enum jinja_case how);
bool jinja_change_case(struct jinja_run *j, struct jinja_value *out, struct jinja_string *s,
                       enum jinja_case how);
bool jinja_escape_html(struct jinja_run *j, struct jinja_value *out, struct jinja_value v);
bool jinja_is_space(uint32_t cp);
bool jinja_is_printable(uint32_t cp);
bool jinja_is_word(uint32_t cp); /* \w */
bool jinja_is_alpha(uint32_t cp);
bool jinja_is_numeric(uint32_t cp);
bool jinja_is_decimal(uint32_t cp);
enum jinja_letter { JINJA_LETTER_NONE, JINJA_LETTER_UPPER, JINJA_LETTER_LOWER, JINJA_LETTER_TITLE };
enum jinja_letter jinja_letter_case(uint32_t cp);
/* Where the line that begins at `begin` ends (its break excluded), and where the next begins. */
size_t jinja_line_end(const struct jinja_string *s, size_t begin, size_t *next);
bool jinja_parse_int(struct str s, int base, int64_t *out); /* int("...") */
bool jinja_parse_float(struct str s, double *out);

/* Statements and expressions. */
bool jinja_eval(struct jinja_run *j, const struct jinja_node *n, struct jinja_value *out);
enum jinja_flow {
    JINJA_FLOW_FAILED = -1,
    JINJA_FLOW_ON = 0,
    JINJA_FLOW_BREAK,
    JINJA_FLOW_CONTINUE
};
enum jinja_flow jinja_exec(struct jinja_run *j, const struct jinja_node *first);
bool jinja_assign(struct jinja_run *j, const struct jinja_node *target, struct jinja_value v);
bool jinja_call_macro(struct jinja_run *j, struct jinja_macro *m, const struct jinja_call *call,
                      struct jinja_value *out);
bool jinja_eval_call(struct jinja_run *j, const struct jinja_node *n, struct jinja_call *out);
bool jinja_apply_filter(struct jinja_run *j, const struct jinja_node *n, struct jinja_value self,
                        struct jinja_value *out);
bool jinja_scope_set(struct jinja_run *j, struct jinja_scope *s, uint32_t name,
                     struct jinja_value v);
bool jinja_lookup(struct jinja_run *j, struct jinja_value *out, uint32_t name);
struct jinja_scope *jinja_scope_new(struct jinja_run *j, struct jinja_scope *parent);
void jinja_scope_capture(struct jinja_scope *s);
/* Whether v may be a dict key; never fails. */
bool jinja_hashable(struct jinja_value v);

#endif
